// launch: how long does it take from asking for a kernel until its end is seen?
//
// Proves: the way through driver, firmware and bus, without work.
// Cost: some 10 us each; no memory.
// Roofline: none; compared with its own past.
#include "parts.h"

SHARE_KERNEL(launch, LaunchArgs, 32) { (void)args; }
