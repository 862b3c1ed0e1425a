// transform: sqrt(x) * sin(x) / log(x + 1) of an array.
//
// Proves: that a plain numeric program gives the same on the GPU as on the CPU, within a stated error; and
//   what copies and kernel take against one thread of the CPU.
// Cost: 4 Mi elements: 32 MiB, under 0.1 ms.
// Roofline: memory: 8 bytes an element.
#include "parts.h"

SHARE_KERNEL(transform, TransformArgs, TRANSFORM_THREADS) {
    const float *from = (const float *)args.x;
    float *to = (float *)args.y;
    const u64 part = (args.count + blocks() - 1) / blocks();
    const u64 begin = block() * part;
    const u64 end = begin + part < args.count ? begin + part : args.count;
    for (u64 i = begin + lane(); i < end; i += lanes()) {
        const float x = from[i];
        to[i] = accurate_sqrt(x) * accurate_sin(x) / accurate_log(x + 1.0f);
    }
}
