// hbm_read: does device memory deliver its bandwidth, and what was written?
//
// Proves: bytes a second out of device memory, and the sum of all words.
// Cost: 480 MiB read 8 times: about 0.9 ms on an H200; a buffer of eight times the L2 cache, so that next to
//   nothing (2 % on an H200) is still there when it is read again.
// Roofline: 2 x memory clock x width of the bus.
//
// Passes follow each other without a pause: blocks take tiles by turns over all passes together, so that no
// block is idle at the end of a pass. Each thread has eight reads of 16 bytes under way, 128 KiB a
// multiprocessor, several times what latency x bandwidth asks for.
#include "read.h"

SHARE_KERNEL(hbm_read, ReadArgs, READ_THREADS) { read_passes<load_stream>(args); }
