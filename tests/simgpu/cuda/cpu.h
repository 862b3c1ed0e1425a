// The names of `kernels/device.h` on the CPU. What a kernel does through them is really done; what it does of
// the work that is measured is counted, and the clocks that it reads follow from the counts.
#pragma once

#include "machine.h"

#define DEVICE static inline __attribute__((always_inline, unused))
#define UNROLL _Pragma("GCC unroll 16")
#define KEEP_LOOP

// The machine as the thread that runs now sees it. One launch is run at a time.
struct SimCpu {
    u32 smid, thread, threads, block, blocks, kind;
    u32 *shared;
    // Counted since the block began.
    u64 fma, tensor_fma, memory_bytes, l2_bytes;
    // Cycles for one of each.
    double fma_cycles, tensor_cycles, memory_cycles, l2_cycles;
    double ghz;
    u64 begin_cycles, begin_ns;
    // The unit whose results are wrong now, as a bit, and how.
    u32 spoiled_units, spoiled_bits, spoiled_zero;
};
extern SimCpu sim_cpu;

void sim_register(const SimKernel *kernel);
void sim_register_words(const char *name, u32 *words, u64 bytes);

// Threads that work together meet: those of a warp, or those of a block.
void sim_meet_warp();
void sim_meet_block();
// What the threads of this warp hold out to each other; three words each. The threads find theirs by turns in
// one of two places, so that none overwrites what another has yet to read.
u32 (*sim_exchange())[3];

#define SIM_KERNEL(name, Args, most, kind_)                                                                  \
    static void name(const Args &args);                                                                      \
    static void sim_body_##name(const void *args) { name(*(const Args *)args); }                            \
    __attribute__((constructor)) static void sim_add_##name() {                                              \
        static const SimKernel kernel = {#name, sim_body_##name, sizeof(Args), most, kind_, 0};              \
        sim_register(&kernel);                                                                               \
    }                                                                                                        \
    static void name(const Args &args)
#define KERNEL(name, Args, most) SIM_KERNEL(name, Args, most, SIM_TOGETHER)
#define RATE_KERNEL(name, Args, most) SIM_KERNEL(name, Args, most, SIM_RATE)
#define SHARE_KERNEL(name, Args, most) SIM_KERNEL(name, Args, most, SIM_SHARE)

#define MODULE_WORDS(name, ...)                                                                              \
    static u32 name[] = {__VA_ARGS__};                                                                       \
    __attribute__((constructor)) static void sim_add_##name() {                                              \
        sim_register_words(#name, name, sizeof(name));                                                       \
    }                                                                                                        \
    static_assert(true, "")

// --- where and when

DEVICE u32 smid() { return sim_cpu.smid; }
DEVICE u32 thread() { return sim_cpu.thread; }
DEVICE u32 threads() { return sim_cpu.threads; }
DEVICE u32 block() { return sim_cpu.block; }
DEVICE u32 blocks() { return sim_cpu.blocks; }
// Only a kernel whose threads work together has more than one lane.
DEVICE u32 lane() { return sim_cpu.kind == SIM_TOGETHER ? sim_cpu.thread : 0; }
DEVICE u32 lanes() { return sim_cpu.kind == SIM_TOGETHER ? sim_cpu.threads : 1; }

DEVICE u64 sim_elapsed() {
    const double cycles = sim_cpu.fma * sim_cpu.fma_cycles + sim_cpu.tensor_fma * sim_cpu.tensor_cycles +
                          sim_cpu.memory_bytes * sim_cpu.memory_cycles + sim_cpu.l2_bytes * sim_cpu.l2_cycles;
    return (u64)cycles;
}
DEVICE u64 cycles() { return sim_cpu.begin_cycles + sim_elapsed(); }
// The clock of a GPU goes in steps of 32 ns.
DEVICE u64 nanoseconds() { return (sim_cpu.begin_ns + (u64)(sim_elapsed() / sim_cpu.ghz)) & ~31ull; }

DEVICE void barrier() {
    if (sim_cpu.kind == SIM_TOGETHER) sim_meet_block();
}

DEVICE bool all_came() {
    barrier();
    return true;
}

// --- memory

DEVICE u32 *block_memory() { return sim_cpu.shared; }
DEVICE Words load_stream(const Words *from) {
    sim_cpu.memory_bytes += sizeof(Words);
    return *from;
}
DEVICE Words load_l2(const Words *from) {
    sim_cpu.l2_bytes += sizeof(Words);
    return *from;
}
DEVICE void store_stream(Words *to, Words value) {
    sim_cpu.memory_bytes += sizeof(Words);
    *to = value;
}
DEVICE u32 atomic_add(u32 *global, u32 value) {
    const u32 old = *global;
    *global = old + value;
    return old;
}
DEVICE u32 atomic_add_block(u32 *shared, u32 value) { return atomic_add(shared, value); }

// --- arithmetic

DEVICE u32 bits(float value) {
    u32 out;
    __builtin_memcpy(&out, &value, sizeof out);
    return out;
}
DEVICE float float_of(u32 value) {
    float out;
    __builtin_memcpy(&out, &value, sizeof out);
    return out;
}
DEVICE u64 bits64(double value) {
    u64 out;
    __builtin_memcpy(&out, &value, sizeof out);
    return out;
}
DEVICE double double_of(u64 value) {
    double out;
    __builtin_memcpy(&out, &value, sizeof out);
    return out;
}

DEVICE float sim_spoil(float value) {
    return sim_cpu.spoiled_zero ? 0.0f : float_of(bits(value) ^ sim_cpu.spoiled_bits);
}
// A wrong unit flips its bit in one step of `sm_rate`, in all chains: flips that follow each other in a chain may
// undo each other. In the second step, because the first has small results, whose last bits are soon forgotten.
DEVICE float fma32(float a, float b, float c) {
    const float sum = __builtin_fmaf(a, b, c);
    const u64 step = sim_cpu.fma++ / SM_RATE_CHAINS;
    const bool spoiled = sim_cpu.spoiled_units & 1u << SDC_FP32;
    return __builtin_expect(spoiled && (sim_cpu.spoiled_zero || step == 1), false) ? sim_spoil(sum) : sum;
}
DEVICE u32 own(u32 value) { return value; }
DEVICE double fma64(double a, double b, double c) { return __builtin_fma(a, b, c); }
DEVICE u32 popcount(u32 value) { return (u32)__builtin_popcount(value); }
DEVICE u32 rotate_left(u32 value, u32 by) { return value << (by & 31) | value >> (-by & 31); }
DEVICE float accurate_sqrt(float x) { return __builtin_sqrtf(x); }
DEVICE float accurate_sin(float x) { return __builtin_sinf(x); }
DEVICE float accurate_log(float x) { return __builtin_logf(x); }

// --- warps

DEVICE u32 shuffle_xor(u32 value, u32 mask) {
    u32(*words)[3] = sim_exchange();
    words[sim_cpu.thread % 32][0] = value;
    sim_meet_warp();
    return words[(sim_cpu.thread ^ mask) % 32][0];
}

// A 16-bit floating point number; only those that are normal or zero.
DEVICE float sim_half(u32 half) {
    const u32 exponent = half >> 10 & 31, sign = (half & 0x8000) << 16;
    if (exponent == 0) return float_of(sign);
    return float_of(sign | (exponent + 112) << 23 | (half & 0x3ff) << 13);
}
// Sum of two products of halves, both exact in FP32.
DEVICE float sim_dot(u32 a, u32 b) {
    return sim_half(a & 0xffff) * sim_half(b & 0xffff) + sim_half(a >> 16) * sim_half(b >> 16);
}

DEVICE void sim_spoil_sum(float *sum, u32 sums) {
    if (__builtin_expect(!(sim_cpu.spoiled_units & 1u << SDC_TENSOR), true)) return;
    for (u32 i = 0; i < (sim_cpu.spoiled_zero ? sums : 1); i++) sum[i] = sim_spoil(sum[i]);
}

DEVICE void mma_16x8x8_f16(float d[4], const u32 a[2], u32 b) {
    sim_cpu.tensor_fma += 16 * 8 * 8 / 32;
    if (sim_cpu.kind != SIM_TOGETHER) {
        // All elements of a matrix are the same where one thread represents all.
        for (u32 i = 0; i < 4; i++) d[i] += 4 * sim_dot(a[i / 2], b);
        sim_spoil_sum(d, 4);
        return;
    }
    u32(*words)[3] = sim_exchange();
    const u32 lane = sim_cpu.thread % 32;
    words[lane][0] = a[0];
    words[lane][1] = a[1];
    words[lane][2] = b;
    sim_meet_warp();
    const u32 row = lane / 4, column = 2 * (lane % 4);
    for (u32 i = 0; i < 4; i++) {
        float sum = 0;
        for (u32 k = 0; k < 4; k++) sum += sim_dot(words[row * 4 + k][i / 2], words[(column + i % 2) * 4 + k][2]);
        d[i] += sum;
    }
}

DEVICE void tiles_written() {}
DEVICE void warpgroup_begin(float *) {}
DEVICE void warpgroup_end(float *) {}
DEVICE void warpgroup_mma(float d[GROUP_SUMS], const u32 *a, const u32 *b) {
    sim_cpu.tensor_fma += GROUP_M * GROUP_N * GROUP_K / GROUP_THREADS;
    const float product = float_of(a[0] << 16) * float_of(b[0] << 16) * GROUP_K;
    for (u32 i = 0; i < GROUP_SUMS; i++) d[i] += product;
    sim_spoil_sum(d, GROUP_SUMS);
}
