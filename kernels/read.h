// Reading a buffer over and over, as hbm_read and l2 do.
#pragma once

#include "parts.h"

typedef Words (*Load)(const Words *);

// Sum of this lane's share of words `from` to `to`, eight reads at a time.
template <Load load> DEVICE u64 sum_of(const Words *data, u64 from, u64 to) {
    enum { BATCH = 8 };
    const u64 step = lanes();
    u64 sum = 0;
    u64 at = from + lane();
    for (; at + (BATCH - 1) * step < to; at += BATCH * step) {
        Words words[BATCH];
        UNROLL for (u32 i = 0; i < BATCH; i++) words[i] = load(data + at + i * step);
        UNROLL for (u32 i = 0; i < BATCH; i++) sum += words[i].x + words[i].y;
    }
    for (; at < to; at += step) {
        const Words words = load(data + at);
        sum += words.x + words.y;
    }
    return sum;
}

// All lanes' sums in one, for lane 0.
DEVICE u64 sum_of_lanes(u64 sum) {
    u64 *sums = (u64 *)block_memory();
    sums[lane()] = sum;
    barrier();
    for (u32 half = lanes() / 2; half > 0; half /= 2) {
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
    for (u64 turn = block(); turn < end; turn += blocks()) {
        sum += sum_of<load>(data, tile * TILE, tile_end(tile, args.words));
        tile += step;
        if (tile >= tiles) tile -= tiles;
    }
    stop_watch(args.stamps, watch);
    sum = sum_of_lanes(sum);
    if (lane() == 0) ((u64 *)args.sums)[block()] = sum;
}
