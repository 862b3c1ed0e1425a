// Reading a buffer over and over, as hbm_read and l2 do: with exactly READ_THREADS threads a block.
#pragma once

#include "parts.h"

typedef Words (*Load)(const Words *);

// How far a lane's next word is. A number known to the compiler, so that the reads of a batch have one
// address and fixed distances from it: it then has the registers to start them all before it needs the first.
#ifdef __CUDACC__
enum { READ_STEP = READ_THREADS };
#else
enum { READ_STEP = 1 };
#endif
enum { READ_BATCH = 8 };
static_assert(TILE % (READ_BATCH * READ_STEP) == 0, "a tile is whole batches");

// Sum of this lane's share of words `from` to `to`.
template <Load load> DEVICE u64 sum_of(const Words *data, u64 from, u64 to) {
    u64 sum = 0;
    const Words *at = data + from + lane();
    const Words *end = data + to;
    if (to - from == TILE) {
        for (u32 batch = 0; batch < TILE / READ_BATCH / READ_STEP; batch++, at += READ_BATCH * READ_STEP) {
            Words words[READ_BATCH];
            UNROLL for (u32 i = 0; i < READ_BATCH; i++) words[i] = load(at + i * READ_STEP);
            UNROLL for (u32 i = 0; i < READ_BATCH; i++) sum += words[i].x + words[i].y;
        }
    } else {
        KEEP_LOOP for (; at < end; at += READ_STEP) {
            const Words words = load(at);
            sum += words.x + words.y;
        }
    }
    return sum;
}

// All lanes' sums in one, for lane 0.
DEVICE u64 sum_of_lanes(u64 sum) {
    u64 *sums = (u64 *)block_memory();
    sums[lane()] = sum;
    barrier();
    for (u32 half = READ_STEP / 2; half > 0; half /= 2) {
        if (lane() < half) sums[lane()] += sums[lane() + half];
        barrier();
    }
    return sums[0];
}

template <Load load> DEVICE void read_passes(const ReadArgs &args) {
    const Words *data = (const Words *)args.data;
    const u64 tiles = tiles_of(args.words);
    const u64 end = tiles * args.passes;
    u64 sum = 0;
    const Stopwatch watch = start_watch();
    // Tile of the buffer: `turn` modulo the tiles, without a division each time.
    u64 tile = tiles > 0 ? block() % tiles : 0;
    const u64 step = tiles > 0 ? blocks() % tiles : 0;
    KEEP_LOOP for (u64 turn = block(); turn < end; turn += blocks()) {
        sum += sum_of<load>(data, tile * TILE, tile_end(tile, args.words));
        tile += step;
        if (tile >= tiles) tile -= tiles;
    }
    stop_watch(args.stamps, watch);
    sum = sum_of_lanes(sum);
    if (lane() == 0) ((u64 *)args.sums)[block()] = sum;
}
