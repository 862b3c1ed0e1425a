// l2: does the L2 cache deliver its bandwidth?
//
// Proves: bytes in a cycle out of L2, over and over the same quarter of it, past L1, and the sum of all
//   words.
// Cost: 64 passes over 12.5 MiB: about 0.2 ms on an H200; a quarter of L2.
// Roofline: none is published; compared with its own past, by the multiprocessors' clock.
#include "read.h"

SHARE_KERNEL(l2, ReadArgs, READ_THREADS) { read_passes<load_l2>(args); }
