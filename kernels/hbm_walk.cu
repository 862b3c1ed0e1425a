// hbm_walk: does memory keep what is written to it, bit by bit, at every address?
//
// Proves: that each word holds its pattern when a second kernel reads it: own address and its complement
//   (addresses mixed up), constants (stuck bits), random numbers and their complement.
// Cost: two passes a pattern: 0.1 ms for 256 MiB and one pattern on an H200.
// Roofline: that of hbm_read.
//
// `fill` and `check` are two kernels and go through the buffer in the same order, so that what is checked has
// left the L2 cache if the buffer is larger than that. Copies are checked with them too.
#include "parts.h"

DEVICE Words pattern_words(const FillArgs &args, u64 i) {
    Words words;
    words.x = pattern_word(args.pattern, 2 * i, args.a, args.b);
    words.y = pattern_word(args.pattern, 2 * i + 1, args.a, args.b);
    return words;
}

SHARE_KERNEL(fill, FillArgs, WALK_THREADS) {
    Words *data = (Words *)args.data;
    const u64 pairs = args.words / 2;
    for (u64 tile = block(); tile < tiles_of(pairs); tile += blocks()) {
        const u64 end = tile_end(tile, pairs);
        for (u64 i = tile * TILE + lane(); i < end; i += lanes()) {
            store_stream(data + i, pattern_words(args, i));
        }
    }
    const u64 last = args.words - 1;
    if (args.words % 2 == 1 && block() == 0 && lane() == 0) {
        ((u64 *)args.data)[last] = pattern_word(args.pattern, last, args.a, args.b);
    }
}

DEVICE void check_word(const CheckArgs &args, u64 i, u64 got) {
    const u64 expected = pattern_word(args.pattern, i, args.a, args.b);
    if (got == expected) return;
    BadWords *bad = (BadWords *)args.bad;
    const u32 at = atomic_add(&bad->count, 1);
    if (at < BAD_WORDS) {
        BadWord *word = &bad->words[at];
        word->offset = 8 * i;
        word->expected = expected;
        word->got = got;
    }
}

SHARE_KERNEL(check, CheckArgs, WALK_THREADS) {
    const Words *data = (const Words *)args.data;
    const u64 pairs = args.words / 2;
    for (u64 tile = block(); tile < tiles_of(pairs); tile += blocks()) {
        const u64 end = tile_end(tile, pairs);
        for (u64 i = tile * TILE + lane(); i < end; i += lanes()) {
            const Words got = load_stream(data + i);
            check_word(args, 2 * i, got.x);
            check_word(args, 2 * i + 1, got.y);
        }
    }
    const u64 last = args.words - 1;
    if (args.words % 2 == 1 && block() == 0 && lane() == 0) {
        check_word(args, last, ((const u64 *)args.data)[last]);
    }
}
