// What the simulated GPU and the kernels that run on it say to each other; `src/cuda/machine.rs` says the same
// in Rust.
#pragma once

#include "abi.h"

// How a kernel is run on the CPU: see `kernels/device.h`.
enum SimKind { SIM_TOGETHER = 0, SIM_RATE = 1, SIM_SHARE = 2 };

// A kernel.
struct SimKernel {
    const char *name;
    void (*body)(const void *args);
    u32 args_bytes;
    u32 threads; // of a block at most
    u32 kind;
    u32 reserved;
};

// Words of the module that the host reads.
struct SimWords {
    const char *name;
    u32 *words;
    u64 bytes;
};

// A launch: what is asked, how fast the machine is, and how long it took.
struct SimLaunch {
    u32 blocks;
    u32 threads;
    u32 shared_bytes;
    u32 sms;
    u32 blocks_of_sm; // at once
    // A wrong multiprocessor: which unit of it (SdcUnit), of which thread, and the bits that flip; none if
    // there are no such bits and they are not all gone.
    u32 wrong_sm;
    u32 wrong_unit;
    u32 wrong_thread;
    u32 wrong_bits;
    u32 wrong_zero;
    const double *sm_parts; // of its rates that each multiprocessor reaches
    double fp32;            // FMA of a multiprocessor in a cycle
    double tensor;
    double memory; // bytes in a cycle of all multiprocessors
    double l2;
    double ghz;
    u64 begin_ns;
    u64 begin_cycles;
    u64 cycles; // out: that the longest multiprocessor took
};
