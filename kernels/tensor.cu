// tensor: do the tensor cores of every multiprocessor work at their rate?
//
// Proves: FMA a cycle of the tensor cores of each multiprocessor and its clock meanwhile; that the sums are
//   right.
// Cost: about 2.5 ms with the turns that the host chooses; 10 KiB of shared memory a block.
// Roofline: dense half-precision FMA a cycle by architecture (1024 on 8.0, 512 on 7.5, 8.6 and 8.9, 2048 on
//   9.0).
//
// All elements of a matrix are the same small integer. So sums are exact, in whatever order the hardware
// adds, where elements lie is of no concern, and the power drawn is that of a light load: the clock stays.
// Hopper's full rate needs products of a warpgroup (wgmma) out of shared memory; two warpgroups take turns,
// so that one works while the other waits for its sums. Elsewhere products of a warp (mma), eight sums at
// once; on Blackwell these reach only a part of what its tensor cores can do.
#include "parts.h"

enum { TENSOR_THREADS = 256 };

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC__)

enum { TENSOR_PRODUCTS = 16, TENSOR_DEPTH = TENSOR_PRODUCTS * GROUP_K, TENSOR_ELEMENTS = GROUP_SUMS };
enum { TENSOR_FMA = TENSOR_THREADS / GROUP_THREADS * TENSOR_PRODUCTS * GROUP_M * GROUP_N * GROUP_K };

// Two bfloat16 of this small integer: the upper halves of its float.
DEVICE u32 bf16_pair(u32 value) {
    const u32 upper = bits((float)value) >> 16;
    return upper << 16 | upper;
}

DEVICE void tensor_work(const TensorArgs &args, float sums[TENSOR_ELEMENTS]) {
    enum { A_WORDS = GROUP_M * GROUP_K / 2, B_WORDS = GROUP_K * GROUP_N / 2 };
    static_assert(4 * (A_WORDS + B_WORDS) <= TENSOR_SHARED_BYTES, "the tiles fit");
    u32 *a = block_memory();
    u32 *b = a + A_WORDS;
    for (u32 i = lane(); i < A_WORDS; i += lanes()) a[i] = bf16_pair(args.a);
    for (u32 i = lane(); i < B_WORDS; i += lanes()) b[i] = bf16_pair(args.b);
    tiles_written();
    const Stopwatch watch = start_watch();
    KEEP_LOOP for (u32 turn = 0; turn < args.turns; turn++) {
        warpgroup_begin(sums);
        UNROLL for (u32 i = 0; i < TENSOR_PRODUCTS; i++) warpgroup_mma(sums, a, b);
        warpgroup_end(sums);
    }
    stop_watch(args.stamps, watch);
}

#else

enum { TENSOR_TILES = 8, TENSOR_REPEATS = 8, TENSOR_ELEMENTS = 4 * TENSOR_TILES };
enum { TENSOR_K = __CUDA_ARCH__ >= 800 ? 16 : 8, TENSOR_DEPTH = TENSOR_REPEATS * TENSOR_K };
enum { TENSOR_FMA = TENSOR_THREADS / 32 * TENSOR_REPEATS * TENSOR_TILES * 16 * 8 * TENSOR_K };

// Two halves (bfloat16, or float16 where that is all) of an integer from 1 to 3.
DEVICE u32 half_pair(u32 value) {
#if __CUDA_ARCH__ >= 800
    const u32 half = bits((float)value) >> 16;
#else
    const u32 half = value == 1 ? 0x3c00 : value == 2 ? 0x4000 : 0x4200;
#endif
    return half << 16 | half;
}

DEVICE void tensor_work(const TensorArgs &args, float sums[TENSOR_ELEMENTS]) {
    const u32 x = half_pair(args.a), y = half_pair(args.b);
    const Stopwatch watch = start_watch();
    KEEP_LOOP for (u32 turn = 0; turn < args.turns; turn++) {
        UNROLL for (u32 repeat = 0; repeat < TENSOR_REPEATS; repeat++) {
            UNROLL for (u32 tile = 0; tile < TENSOR_TILES; tile++) {
#if __CUDA_ARCH__ >= 800
                const u32 a[4] = {x, x, x, x}, b[2] = {y, y};
                mma_16x8x16_bf16(sums + 4 * tile, a, b);
#else
                const u32 a[2] = {x, x};
                mma_16x8x8_f16(sums + 4 * tile, a, y);
#endif
            }
        }
    }
    stop_watch(args.stamps, watch);
}

#endif

MODULE_WORDS(tensor_shape, TENSOR_THREADS, TENSOR_FMA, 0, TENSOR_DEPTH);

RATE_KERNEL(tensor, TensorArgs, TENSOR_THREADS) {
    float sums[TENSOR_ELEMENTS];
    UNROLL for (u32 i = 0; i < TENSOR_ELEMENTS; i++) sums[i] = 0.0f;
    tensor_work(args, sums);
    const u32 expected = bits((float)(args.a * args.b * TENSOR_DEPTH * args.turns));
    u32 got = expected;
    UNROLL for (u32 i = 0; i < TENSOR_ELEMENTS; i++) {
        if (bits(sums[i]) != expected) got = bits(sums[i]);
    }
    if (got != expected) note_bad_lane(args.bad, expected, got);
}
