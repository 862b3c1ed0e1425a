// What several kernels share: stamps of time, notes of wrong results, patterns.
#pragma once

#include "device.h"

// Notes when thread 0 began, and then when it ended; between the two is the work, behind barriers.
struct Stopwatch {
    u64 cycles, ns;
};

DEVICE Stopwatch start_watch() {
    Stopwatch begin = {0, 0};
    if (all_came() && thread() == 0) {
        begin.ns = nanoseconds();
        begin.cycles = cycles();
    }
    return begin;
}

DEVICE void stop_watch(u64 stamps, Stopwatch begin) {
    if (all_came() && thread() == 0) {
        const u64 end_cycles = cycles();
        const u64 end_ns = nanoseconds();
        SmStamp *stamp = (SmStamp *)stamps + block();
        stamp->smid = smid();
        stamp->threads = threads();
        stamp->begin_cycles = begin.cycles;
        stamp->end_cycles = end_cycles;
        stamp->begin_ns = begin.ns;
        stamp->end_ns = end_ns;
    }
}

DEVICE void note_bad_lane(u64 bad, u64 expected, u64 got) {
    BadLanes *lanes = (BadLanes *)bad;
    const u32 at = atomic_add(&lanes->count, 1);
    if (at < BAD_LANES) {
        BadLane *lane = &lanes->lanes[at];
        lane->smid = smid();
        lane->thread = thread();
        lane->expected = expected;
        lane->got = got;
    }
}

// A bijection of 32 bits that leaves no pattern (the last steps of MurmurHash3).
DEVICE u32 mix32(u32 x) {
    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    return x ^ (x >> 16);
}

// First number of the generator SplitMix64 whose state is `x`.
DEVICE u64 splitmix64(u64 x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// What 64-bit word `i` of a buffer holds.
DEVICE u64 pattern_word(u32 pattern, u64 i, u64 a, u64 b) {
    switch (pattern) {
    case PATTERN_ARITHMETIC: return a + i * b;
    case PATTERN_CONSTANT: return a;
    case PATTERN_ADDRESS: return a + 8 * i;
    case PATTERN_NOT_ADDRESS: return ~(a + 8 * i);
    case PATTERN_RANDOM: return splitmix64(a + i);
    default: return ~splitmix64(a + i);
    }
}

// A buffer is divided into tiles, which blocks take by turns: block b the tiles b, b + blocks(), and so on.
// All blocks together move through the buffer, and a tile is one batch of reads of each thread of a block.
enum { TILE = 8192 }; // words of 16 bytes

DEVICE u64 tiles_of(u64 words) { return (words + TILE - 1) / TILE; }
DEVICE u64 tile_end(u64 tile, u64 words) {
    const u64 end = (tile + 1) * TILE;
    return end < words ? end : words;
}
