// What the host and the kernels agree on: arguments, results and shapes. `src/canary/abi.rs` says the same
// in Rust; a test compares sizes and offsets of the two.
//
// Every kernel takes one structure by value. Addresses are 64-bit device addresses. Counts of operations
// follow from the constants here, so that a rate is work that was really done over cycles really counted.
#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;

// What one block noted of the multiprocessor it ran on. One a block, written by its thread 0.
struct SmStamp {
    u32 smid;         // %smid: the multiprocessor; numbers need not be contiguous
    u32 threads;      // threads of the block, as the device saw it
    u64 begin_cycles; // clock64() before and after the work, behind a barrier of the block
    u64 end_cycles;
    u64 begin_ns; // %globaltimer at the same places
    u64 end_ns;
};

// A thread whose result was not the expected one.
struct BadLane {
    u32 smid;
    u32 thread; // within its block; the warp is thread / 32, the lane thread % 32
    u64 expected;
    u64 got;
};

// The first bad lanes of a launch. Zeroed by the host before it.
enum { BAD_LANES = 62 };
struct BadLanes {
    u32 count; // all of them, also those that found no room
    u32 reserved;
    BadLane lanes[BAD_LANES];
};

// A word of memory that did not hold what was written.
struct BadWord {
    u64 offset; // in bytes from the start of the buffer
    u64 expected;
    u64 got;
};

enum { BAD_WORDS = 62 };
struct BadWords {
    u32 count;
    u32 reserved;
    BadWord words[BAD_WORDS];
};

// --- sm_rate: FP32 FMA. Chain c of every thread starts at 1 + c / 16 + (seed mod 65536) / 2^20 and takes
// SM_RATE_CHAIN_FMA steps x = fma(x, SM_RATE_A, SM_RATE_B) a turn. The 32 bits of every chain are
// kept side by side, the first chain's highest: what is wrong in one cannot make up for what is wrong in another.
// The values swing around 0.617 and come nearer to it so slowly that bits change for eight million steps; a
// slope of almost 1 keeps a wrong bit from being forgotten.
enum { SM_RATE_THREADS = 1024, SM_RATE_CHAINS = 2, SM_RATE_CHAIN_FMA = 128 };
constexpr float SM_RATE_A = -0.9999999f, SM_RATE_B = 1.2345f;
struct SmRateArgs {
    u64 stamps; // SmStamp a block
    u64 bad;    // BadLanes
    u32 turns;
    u32 seed;
    u64 expected; // the chains' bits after the turns
};

// --- tensor: products of constant matrices of small integers, so that every element of the sum is
// a * b * depth * products, exact in FP32 up to 2^24.
struct TensorArgs {
    u64 stamps; // SmStamp a block
    u64 bad;    // BadLanes; expected and got are the bits of the FP32 sum
    u32 turns;
    u32 a; // 1 to 3: every element of the left matrix
    u32 b; // 1 to 3: every element of the right matrix
    u32 reserved;
};
// FMA of one block in one turn, and its threads: by architecture, read from the module's global
// `u32 tensor_shape[4]` = { threads, FMA a turn (low), FMA a turn (high), depth: k summed a turn }.
enum { TENSOR_SHARED_BYTES = 10240 }; // dynamic shared memory that it needs at least

// --- sm_sdc: every unit's result of every thread, the same in all blocks. SDC_ROUNDS is what one launch
// should do: sums of the tensor unit are exact up to SDC_MAX_ROUNDS; more is gained by other seeds.
enum { SDC_THREADS = 256, SDC_UNITS = 7, SDC_ROUNDS = 8, SDC_MAX_ROUNDS = 256 };
enum { SDC_SHARED_WORDS = 8192, SDC_COUNTERS = 64 };
enum { SDC_SHARED_BYTES = 4 * (SDC_SHARED_WORDS + SDC_COUNTERS) }; // dynamic shared memory, at least
enum SdcUnit { SDC_INT32, SDC_FP32, SDC_FP64, SDC_TENSOR, SDC_SHARED, SDC_SHUFFLE, SDC_ATOMIC };
struct SmSdcArgs {
    u64 results; // u64 [block][SDC_UNITS][SDC_THREADS]
    u64 stamps;  // SmStamp a block
    u32 rounds;
    u32 seed;
};

// --- hbm_read and l2: sums of 64-bit words, read 16 bytes at a time, over and over, by all blocks together.
// A block has exactly READ_THREADS threads; the sum of all blocks' sums is what counts.
enum { READ_THREADS = 1024, READ_SHARED_BYTES = 8 * READ_THREADS }; // dynamic shared memory, at least
struct ReadArgs {
    u64 data;
    u64 words;  // 16-byte words
    u64 stamps; // SmStamp a block
    u64 sums;   // u64 a block: sum of all 64-bit words it read, modulo 2^64
    u32 passes;
    u32 reserved;
};

// --- hbm_walk (also the copies' checks): word i of a buffer is pattern(kind, i, a, b).
enum Pattern {
    PATTERN_ARITHMETIC = 0,  // a + i * b: its sum is known without a table
    PATTERN_CONSTANT = 1,    // a
    PATTERN_ADDRESS = 2,     // a + 8 * i
    PATTERN_NOT_ADDRESS = 3, // ~(a + 8 * i)
    PATTERN_RANDOM = 4,      // splitmix64(a + i)
    PATTERN_NOT_RANDOM = 5,  // ~splitmix64(a + i)
};
enum { WALK_THREADS = 512 };
struct FillArgs {
    u64 data;
    u64 words; // 64-bit words
    u64 a;
    u64 b;
    u32 pattern;
    u32 reserved;
};
struct CheckArgs {
    u64 data;
    u64 words; // 64-bit words
    u64 a;
    u64 b;
    u64 bad; // BadWords
    u32 pattern;
    u32 reserved;
};

// --- overlap: y[i] = x[i] after `turns` steps x = fma(x, OVERLAP_A, OVERLAP_B).
enum { OVERLAP_THREADS = 256 };
constexpr float OVERLAP_A = SM_RATE_A, OVERLAP_B = SM_RATE_B;
struct OverlapArgs {
    u64 x; // f32
    u64 y; // f32
    u64 count;
    u32 turns;
    u32 reserved;
};

// --- transform: y[i] = sqrt(x[i]) * sin(x[i]) / log(x[i] + 1).
enum { TRANSFORM_THREADS = 256 };
struct TransformArgs {
    u64 x; // f32
    u64 y; // f32
    u64 count;
};

// --- launch: does nothing.
struct LaunchArgs {
    u64 reserved;
};
