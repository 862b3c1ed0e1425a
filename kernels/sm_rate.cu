// sm_rate: does every multiprocessor do its FP32 work at its rate, and at which clock?
//
// Proves: FMA a cycle of each multiprocessor, its true clock (cycles over nanoseconds), and that all of its
//   lanes came to the right bits. A throttled or capped clock, a slow multiprocessor, a neighbour on it.
// Does not prove: that no step was wrong. A bit that flips twice in a chain, an even number of steps apart, is
//   often right again, because two steps bring a value back almost to itself. sm_sdc is the check of results.
// Cost: about 2.5 ms with the turns that the host chooses; a few KiB.
// Roofline: FP32 lanes of the multiprocessor (64 or 128) FMA a cycle.
//
// Two chains and 32 warps hide the latency of an FMA twice over. A turn is straight code of 256 FMA and some four
// instructions of the loop, so that these cost some 1.5 %. Twice as much straight code leaves the instruction
// cache nearest to the units (4 KiB do not): warps then drift apart and the rate is another one each time.
// Measured on an H200, turn and threads varied: 98.43 % with a spread of 0.0003 %, against 98.99 % and 0.007 %
// with 512 FMA. Both constants are operands that take no register bank.
#include "parts.h"

RATE_KERNEL(sm_rate, SmRateArgs, SM_RATE_THREADS) {
    const u32 seed = own(args.seed);
    float x[SM_RATE_CHAINS];
    UNROLL for (u32 c = 0; c < SM_RATE_CHAINS; c++) {
        x[c] = 1.0f + (float)c / 16.0f + (float)(seed & 0xffff) / 1048576.0f;
    }
    const Stopwatch watch = start_watch();
    KEEP_LOOP for (u32 turn = 0; turn < args.turns; turn++) {
        UNROLL for (u32 step = 0; step < SM_RATE_CHAIN_FMA; step++) {
            UNROLL for (u32 c = 0; c < SM_RATE_CHAINS; c++) x[c] = fma32(x[c], SM_RATE_A, SM_RATE_B);
        }
    }
    stop_watch(args.stamps, watch);
    static_assert(SM_RATE_CHAINS * 32 <= 64, "no chain is shifted out");
    u64 joined = 0;
    UNROLL for (u32 c = 0; c < SM_RATE_CHAINS; c++) joined = joined << 32 | bits(x[c]);
    if (joined != args.expected) note_bad_lane(args.bad, args.expected, joined);
}
