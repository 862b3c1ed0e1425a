// What kernels may use of the machine they run on. Compiled by NVRTC, these are thin functions over PTX; else
// `cpu.h` provides the same names, and the same sources run on the CPU (tests/simgpu/cuda).
//
// Three kinds of kernels; on the GPU they are the same:
// - KERNEL: threads work together (barriers, shuffles, shared memory, mma). On the CPU all threads of a block
//   run, by turns.
// - RATE_KERNEL: every thread does the same work and none needs another's results. On the CPU only thread 0
//   of each block runs, alone, and is for all: `barrier()` does nothing, and what it does through
//   `fma32`, `mma_*` and `warpgroup_mma` counts as often as the block has threads. Of an mma each thread of
//   the warp (of a warpgroup_mma: each of its 128 threads) is given an equal part of its operations.
// - SHARE_KERNEL: a block's work is divided among its threads by `lane()` and `lanes()`. On the CPU thread 0
//   of each block runs alone as the only lane, and so does all of the block's work: what it does counts once.
//
// NAME(kernel, Args, threads of a block at most) { ... args.field ... }
#pragma once

#include "abi.h"

// 16 bytes, the most that one thread reads at once.
struct __attribute__((aligned(16))) Words {
    u64 x, y;
};

// Threads of a warpgroup, elements of the sum that each of them has, and the shape of its products.
enum { GROUP_THREADS = 128, GROUP_SUMS = 128, GROUP_M = 64, GROUP_N = 256, GROUP_K = 16 };

#ifndef __CUDACC__
// Provides the names below; of the mma these: mma_16x8x8_f16 and warpgroup_*.
#include "cpu.h"
#else

// One block may have a multiprocessor to itself, so its threads may have all registers.
#define KERNEL(name, Args, threads) \
    extern "C" __global__ void __launch_bounds__(threads, 1) name(const Args args)
#define RATE_KERNEL KERNEL
#define SHARE_KERNEL KERNEL

// A global `u32 name[]` that the host reads by its name.
#define MODULE_WORDS(name, ...) extern "C" __device__ u32 name[] = {__VA_ARGS__}

// In front of a function that kernels call; of a loop of known length that is to become straight code; and of
// a loop that is not.
#define DEVICE __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#define KEEP_LOOP _Pragma("unroll 1")

// --- where and when

// The multiprocessor.
DEVICE u32 smid() {
    u32 value;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(value));
    return value;
}

// Cycles of the multiprocessor's clock.
DEVICE u64 cycles() {
    u64 value;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(value)::"memory");
    return value;
}

// Nanoseconds of a clock that all multiprocessors share.
DEVICE u64 nanoseconds() {
    u64 value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value)::"memory");
    return value;
}

DEVICE u32 thread() { return threadIdx.x; }
DEVICE u32 threads() { return blockDim.x; }
DEVICE u32 block() { return blockIdx.x; }
DEVICE u32 blocks() { return gridDim.x; }

// Which of the lanes that share a block's work; on the CPU 0 of 1.
DEVICE u32 lane() { return threadIdx.x; }
DEVICE u32 lanes() { return blockDim.x; }

DEVICE void barrier() { __syncthreads(); }

// A barrier, and true. What a thread does only if it is true begins after all threads have come: behind
// `barrier()` alone a warp goes on to read its clock before the last has come (BAR.SYNC.DEFER_BLOCKING).
DEVICE bool all_came() { return __syncthreads_and(1) != 0; }

// --- memory

// The block's dynamic shared memory.
DEVICE u32 *block_memory() {
    extern __shared__ __align__(128) u32 shared_words[];
    return shared_words;
}

// Reads 16 bytes that no other thread will read: they take no place in L1.
DEVICE Words load_stream(const Words *from) {
    Words value;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u64 {%0, %1}, [%2];"
                 : "=l"(value.x), "=l"(value.y)
                 : "l"(from));
    return value;
}

// Reads 16 bytes from L2, never from L1.
DEVICE Words load_l2(const Words *from) {
    Words value;
    asm volatile("ld.global.cg.v2.u64 {%0, %1}, [%2];" : "=l"(value.x), "=l"(value.y) : "l"(from));
    return value;
}

DEVICE void store_stream(Words *to, Words value) {
    asm volatile("st.global.cs.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(value.x), "l"(value.y) : "memory");
}

// The old value.
DEVICE u32 atomic_add(u32 *global, u32 value) { return atomicAdd(global, value); }
DEVICE u32 atomic_add_block(u32 *shared, u32 value) { return atomicAdd(shared, value); }

// The same value, of which the compiler cannot know that all threads have it: else it may have the work done
// once a warp, by a unit beside the lanes (on sm_120 it does). On the CPU the value.
DEVICE u32 own(u32 value) { return value + (threadIdx.x >= blockDim.x ? 1 : 0); }

// --- arithmetic: rounded to nearest even, subnormals kept

DEVICE float fma32(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE double fma64(double a, double b, double c) { return __fma_rn(a, b, c); }
DEVICE u32 bits(float value) { return __float_as_uint(value); }
DEVICE float float_of(u32 value) { return __uint_as_float(value); }
DEVICE u64 bits64(double value) { return (u64)__double_as_longlong(value); }
DEVICE double double_of(u64 value) { return __longlong_as_double((long long)value); }
DEVICE u32 popcount(u32 value) { return (u32)__popc(value); }
DEVICE u32 rotate_left(u32 value, u32 by) { return __funnelshift_l(value, value, by); }
DEVICE float accurate_sqrt(float x) { return sqrtf(x); }
DEVICE float accurate_sin(float x) { return sinf(x); }
DEVICE float accurate_log(float x) { return logf(x); }

// --- warps

// What the thread of this warp has whose lane is this one's xor `mask`.
DEVICE u32 shuffle_xor(u32 value, u32 mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }

// d += a * b of the whole warp: 16x8 = 16x8 * 8x8, halves multiplied, summed in FP32. Lane l has, with
// r = l / 4 and c = 2 * (l % 4), as pairs (low half first): a[0] = A[r][c, c+1], a[1] = A[r+8][c, c+1],
// b = B[c, c+1][r]; and d = D[r][c], D[r][c+1], D[r+8][c], D[r+8][c+1].
DEVICE void mma_16x8x8_f16(float d[4], const u32 a[2], u32 b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b));
}

#if __CUDA_ARCH__ >= 800
// d += a * b of the whole warp: 16x8 = 16x16 * 16x8, bfloat16 multiplied, summed in FP32.
DEVICE void mma_16x8x16_bf16(float d[4], const u32 a[4], const u32 b[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

#endif

// --- warpgroups: four warps of a block, from a multiple of four on; only on sm_90a, and on the CPU
//
// `warpgroup_mma` adds a * b to d for 128 threads: 64x256 = 64x16 * 16x256, bfloat16 multiplied, summed in
// FP32; each thread has 128 elements of the sum. `a` and `b` are tiles in shared memory with 64 * 16 and 16 *
// 256 elements, two in a u32. All elements of a tile are the same, so that their order is of no concern, and
// the CPU may read the first alone. What a thread wrote into a tile is seen after its `tiles_written()` and a
// barrier. Products may be under way from `warpgroup_begin` to `warpgroup_end`: only then may `d` be read.

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

DEVICE void tiles_written() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Keeps the compiler from moving what it does with the sums over this point.
DEVICE void hold_sums(float d[GROUP_SUMS]) {
    UNROLL for (u32 i = 0; i < GROUP_SUMS; i++) asm volatile("" : "+f"(d[i])::"memory");
}

DEVICE void warpgroup_begin(float d[GROUP_SUMS]) {
    hold_sums(d);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

DEVICE void warpgroup_end(float d[GROUP_SUMS]) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    hold_sums(d);
}

// Matrix descriptor of a tile without swizzling: pieces of 8 rows by 16 bytes, each 128 bytes in a row; the
// next piece along k 128 bytes on, the next eight rows 256 bytes on. All in units of 16 bytes.
DEVICE u64 tile_descriptor(const u32 *tile) {
    const u64 at = (u64)__cvta_generic_to_shared(tile);
    return ((at & 0x3ffff) >> 4) | (128ull >> 4) << 16 | (256ull >> 4) << 32;
}

#define SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SUMS_16(i) SUMS_4(i), SUMS_4(i + 4), SUMS_4(i + 8), SUMS_4(i + 12)
#define SUMS_64(i) SUMS_16(i), SUMS_16(i + 16), SUMS_16(i + 32), SUMS_16(i + 48)
DEVICE void warpgroup_mma(float d[GROUP_SUMS], const u32 *a, const u32 *b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "%128, %129, 1, 1, 1, 0, 0;"
        : SUMS_64(0), SUMS_64(64)
        : "l"(tile_descriptor(a)), "l"(tile_descriptor(b)));
}
#undef SUMS_4
#undef SUMS_16
#undef SUMS_64

#endif
