// sm_sdc: does every multiprocessor compute the right bits?
//
// Proves: seven units, each with a result of each thread, the same in all blocks; the host has the same bits
//   from its own arithmetic (src/canary/reference.rs), which IEEE 754 and integers define completely.
// Cost: some 0.05 ms for SDC_ROUNDS on an H200, and 14 KiB a block; more by more launches with other seeds.
// Roofline: none; any wrong bit is a fault.
//
// One block a multiprocessor: the host gives it more than half of the shared memory. Inputs follow from the
// seed, the thread and the round. No unit takes another's results, but all take numbers from integer
// arithmetic, so an integer unit that fails shows in all.
#include "parts.h"

// A number for one use by one thread in one round.
DEVICE u32 draw(u32 seed, u32 who, u32 round, u32 use) {
    return mix32(seed ^ mix32(who + 0x10000u * round + 0x1000000u * use));
}

// A float in [1, 2) of these bits, and a double.
DEVICE float one_to_two(u32 random) { return float_of(0x3f800000u | random >> 9); }
DEVICE double one_to_two_wide(u32 high, u32 low) {
    return double_of(0x3ff0000000000000ull | ((u64)high << 32 | low) >> 12);
}

// --- SDC_INT32: multiply and add, rotate, high half of a product, choose by bits, shift, count bits.

enum { INT_STEPS = 160 };

DEVICE void integers(u32 &a, u32 &b) {
    for (u32 i = 0; i < INT_STEPS; i++) {
        a = a * 747796405u + b;
        b = rotate_left(b ^ a, a & 31);
        const u32 high = (u32)(((u64)a * 2891336453u) >> 32);
        b += (a & high) | (~a & (b >> 3));
        a ^= popcount(b) + high;
    }
}

// --- SDC_FP32, SDC_FP64: the two FMA of a step together multiply by almost -1, so that values stay small and
// normal and a wrong bit is not forgotten. Each round takes other factors, which also tries division.

enum { FP32_STEPS = 65, FP64_STEPS = 33 };

DEVICE void singles(float x[2], u32 random) {
    const float by = one_to_two(random), back = -1.0f / by;
    for (u32 i = 0; i < FP32_STEPS; i++) {
        UNROLL for (u32 c = 0; c < 2; c++) x[c] = fma32(fma32(x[c], by, 0.3125f), back, 1.2345f);
    }
}

DEVICE void doubles(double x[2], u32 high, u32 low) {
    const double by = one_to_two_wide(high, low), back = -1.0 / by;
    for (u32 i = 0; i < FP64_STEPS; i++) {
        UNROLL for (u32 c = 0; c < 2; c++) x[c] = fma64(fma64(x[c], by, 0.3125), back, 1.2345);
    }
}

// --- SDC_TENSOR: halves of either sign, 1 to 2 in steps of 1/16; sums are exact: 1/512
// (so that none is zero, whose sign is no other kernel's promise) and multiples of 1/256.

DEVICE u32 half_pair_of(u32 random) { return (random & 0x83c083c0u) | 0x3c003c00u; }

DEVICE void products(float sums[4], u32 seed, u32 round) {
    const u32 random = draw(seed, thread(), round, 3);
    const u32 a[2] = {half_pair_of(random), half_pair_of(random << 5)};
    mma_16x8x8_f16(sums, a, half_pair_of(rotate_left(random, 11)));
}

// --- SDC_SHARED: all words are written by their own threads and read in another order by others.

DEVICE u32 shared_word(u32 at, u32 key) { return (at * 0x9e3779b1u) ^ key; }

DEVICE void write_shared(u32 *words, u32 key) {
    for (u32 at = thread(); at < SDC_SHARED_WORDS; at += SDC_THREADS) words[at] = shared_word(at, key);
}

DEVICE u64 read_shared(const u32 *words, u32 key, u64 sum) {
    for (u32 i = thread(); i < SDC_SHARED_WORDS; i += SDC_THREADS) {
        const u32 at = (i * 2053 + key) % SDC_SHARED_WORDS;
        sum = (sum << 1 | sum >> 63) ^ words[at];
    }
    return sum;
}

// --- SDC_SHUFFLE: exchange within the warp.

DEVICE u64 exchange(u64 value, u32 random, u32 round) {
    const u32 near = shuffle_xor((u32)value + random, 1u << round % 5);
    const u32 far = shuffle_xor((u32)(value >> 32) ^ random, 31u - round % 5);
    return (u64)(far * 0x9e3779b1u) << 32 | (near * 0x85ebca6bu);
}

// --- SDC_ATOMIC: counters in shared memory to which many threads add; sums do not depend on the order.

DEVICE void add_to_counters(u32 *counters, u32 random) {
    UNROLL for (u32 i = 0; i < 4; i++) {
        atomic_add_block(&counters[(thread() * 7 + i * 19) % SDC_COUNTERS], rotate_left(random, 8 * i));
    }
}

KERNEL(sm_sdc, SmSdcArgs, SDC_THREADS) {
    u32 *words = block_memory();
    u32 *counters = words + SDC_SHARED_WORDS;
    if (thread() < SDC_COUNTERS) counters[thread()] = 0;
    const u32 seed = args.seed;
    const u32 random = draw(seed, thread(), 0, 7);
    u32 a = random, b = ~random;
    float x[2] = {one_to_two(random), one_to_two(~random)};
    double y[2] = {one_to_two_wide(random, ~random), one_to_two_wide(~random, random)};
    float sums[4] = {1.0f / 512, 1.0f / 512, 1.0f / 512, 1.0f / 512};
    u64 shared = 0, shuffled = random, counted = 0;

    const Stopwatch watch = start_watch();
    for (u32 round = 0; round < args.rounds; round++) {
        const u32 key = draw(seed, 0x8000, round, 0);
        const u32 own = draw(seed, thread(), round, 1), other = draw(seed, thread(), round, 2);
        write_shared(words, key);
        add_to_counters(counters, own);
        integers(a, b);
        singles(x, own);
        doubles(y, own, other);
        products(sums, seed, round);
        shuffled = exchange(shuffled, other, round);
        barrier();
        shared = read_shared(words, key, shared);
        const u32 counter = counters[(thread() + round) % SDC_COUNTERS];
        counted = (counted << 5 | counted >> 59) ^ counter;
        barrier();
    }
    stop_watch(args.stamps, watch);

    u64 *results = (u64 *)args.results + (u64)block() * SDC_UNITS * SDC_THREADS + thread();
    results[SDC_INT32 * SDC_THREADS] = (u64)a << 32 | b;
    results[SDC_FP32 * SDC_THREADS] = (u64)bits(x[0]) << 32 | bits(x[1]);
    results[SDC_FP64 * SDC_THREADS] = bits64(y[0]) ^ (bits64(y[1]) << 1 | bits64(y[1]) >> 63);
    results[SDC_TENSOR * SDC_THREADS] = (u64)(bits(sums[0]) ^ rotate_left(bits(sums[1]), 16)) << 32 |
                                        (bits(sums[2]) ^ rotate_left(bits(sums[3]), 16));
    results[SDC_SHARED * SDC_THREADS] = shared;
    results[SDC_SHUFFLE * SDC_THREADS] = shuffled;
    results[SDC_ATOMIC * SDC_THREADS] = counted;
}
