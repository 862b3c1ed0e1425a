// overlap: work to stand between a copy in and a copy out, long enough to be hidden behind them or to hide
// them.
//
// Proves: together with the host's streams, that copies and kernels run at the same time, and independent
//   kernels as well.
// Cost: as long as the host chooses by `turns`; the host's buffers.
// Roofline: the longest of the three stages, times their number.
#include "parts.h"

SHARE_KERNEL(overlap, OverlapArgs, OVERLAP_THREADS) {
    const float *from = (const float *)args.x;
    float *to = (float *)args.y;
    // Each block has one part of the array in a row.
    const u64 part = (args.count + blocks() - 1) / blocks();
    const u64 begin = block() * part;
    const u64 end = begin + part < args.count ? begin + part : args.count;
    for (u64 i = begin + lane(); i < end; i += lanes()) {
        float x = from[i];
        for (u32 turn = 0; turn < args.turns; turn++) x = fma32(x, OVERLAP_A, OVERLAP_B);
        to[i] = x;
    }
}
