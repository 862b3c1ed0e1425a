// Runs launches: blocks one after another, the threads of a block as fibres where they work together.
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "device.h"

SimCpu sim_cpu;

// --- what there is to run

enum { MOST_KERNELS = 32, MOST_WORDS = 8 };
static const SimKernel *kernels[MOST_KERNELS];
static SimWords words[MOST_WORDS];
static u32 kernel_count, words_count;

void sim_register(const SimKernel *kernel) {
    if (kernel_count < MOST_KERNELS) kernels[kernel_count++] = kernel;
}

void sim_register_words(const char *name, u32 *at, u64 bytes) {
    if (words_count < MOST_WORDS) words[words_count++] = {name, at, bytes};
}

void sim_suite();

extern "C" const SimKernel *sim_kernel(u32 index) {
    sim_suite();
    return index < kernel_count ? kernels[index] : nullptr;
}
extern "C" const SimWords *sim_words(u32 index) { return index < words_count ? &words[index] : nullptr; }

// --- fibres
//
// A fibre is entered once by `setcontext`; from then on `_longjmp` goes to and fro, which asks nothing of the
// kernel. Fibres and their stacks stay for later launches.

enum { MOST_THREADS = 1024, STACK = 64 << 10 };
enum State { RUNS, AT_WARP, AT_BLOCK, DONE };

struct Fibre {
    jmp_buf at;
    bool made;
    State state;
    u32 meetings;
};
static Fibre fibres[MOST_THREADS];
static char *stacks;
static jmp_buf scheduler;
static void (*body)(const void *);
static const void *body_args;
static u32 held_out[MOST_THREADS / 32][2][32][3];

static void leave(State state) {
    Fibre *self = &fibres[sim_cpu.thread];
    self->state = state;
    if (!_setjmp(self->at)) _longjmp(scheduler, 1);
}

static void fibre() {
    for (;;) {
        body(body_args);
        leave(DONE);
    }
}

static void resume(u32 thread) {
    sim_cpu.thread = thread;
    Fibre *next = &fibres[thread];
    next->state = RUNS;
    if (_setjmp(scheduler)) return;
    if (next->made) _longjmp(next->at, 1);
    next->made = true;
    static ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks + (u64)thread * STACK;
    context.uc_stack.ss_size = STACK;
    context.uc_link = nullptr;
    makecontext(&context, fibre, 0);
    setcontext(&context);
}

void sim_meet_warp() { leave(AT_WARP); }
void sim_meet_block() { leave(AT_BLOCK); }

u32 (*sim_exchange())[3] {
    const u32 meeting = fibres[sim_cpu.thread].meetings++;
    return held_out[sim_cpu.thread / 32][meeting % 2];
}

// Lets the threads of a warp run until all of them wait for the block, or are done.
static bool run_warp(u32 first, u32 last) {
    for (bool again = true; again;) {
        again = false;
        for (u32 thread = first; thread < last; thread++) {
            if (fibres[thread].state != AT_WARP) continue;
            resume(thread);
            again = again || fibres[thread].state == AT_WARP;
        }
    }
    for (u32 thread = first; thread < last; thread++) {
        if (fibres[thread].state == AT_BLOCK) return true;
    }
    return false;
}

static bool run_together(const SimKernel *kernel, const void *args, u32 count) {
    if (!stacks) {
        void *at = mmap(nullptr, (u64)MOST_THREADS * STACK, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) return false;
        stacks = (char *)at;
    }
    body = kernel->body;
    body_args = args;
    for (u32 thread = 0; thread < count; thread++) {
        fibres[thread].state = AT_WARP;
        fibres[thread].meetings = 0;
    }
    for (bool waiting = true; waiting;) {
        waiting = false;
        for (u32 first = 0; first < count; first += 32) {
            waiting = run_warp(first, first + 32 < count ? first + 32 : count) || waiting;
        }
        for (u32 thread = 0; thread < count; thread++) {
            if (fibres[thread].state == AT_BLOCK) fibres[thread].state = AT_WARP;
        }
    }
    return true;
}

// --- launches

// Multiprocessors that have at least one block.
static u32 busy_sms(const SimLaunch *launch) { return launch->blocks < launch->sms ? launch->blocks : launch->sms; }

// Begins a block: what one of each costs it. Blocks that are on a multiprocessor at once share it, and those of
// all share memory and L2. A thread that represents its block does what all threads do. Elsewhere an FMA costs as
// much as 64: programs make such kernels as long as they need by what they measure, and the CPU has less to do.
static void begin_block(const SimLaunch *launch, u32 block, u32 kind, u64 begin) {
    const u32 sm = block % launch->sms;
    const u32 on_sm = (launch->blocks - sm + launch->sms - 1) / launch->sms;
    const double beside = on_sm < launch->blocks_of_sm ? on_sm : launch->blocks_of_sm;
    const double part = launch->sm_parts[sm] / beside;
    const double times = kind == SIM_RATE ? launch->threads : 64;
    const double products = kind == SIM_RATE ? launch->threads : 1;
    const double all = beside * busy_sms(launch);
    sim_cpu.smid = sm;
    sim_cpu.block = block;
    sim_cpu.fma = sim_cpu.tensor_fma = sim_cpu.memory_bytes = sim_cpu.l2_bytes = 0;
    sim_cpu.fma_cycles = times / (launch->fp32 * part);
    sim_cpu.tensor_cycles = products / (launch->tensor * part);
    sim_cpu.memory_cycles = all / (launch->memory * launch->sm_parts[sm]);
    sim_cpu.l2_cycles = all / (launch->l2 * launch->sm_parts[sm]);
    sim_cpu.begin_cycles = launch->begin_cycles + begin;
    sim_cpu.begin_ns = launch->begin_ns + (u64)(begin / launch->ghz);
}

// Runs the block once more as the thread whose results are wrong. It leaves no trace but what it finds.
static void run_wrong(const SimKernel *kernel, const void *args, const SimLaunch *launch) {
    const SimCpu before = sim_cpu;
    sim_cpu.fma = 0;
    sim_cpu.thread = launch->wrong_thread;
    sim_cpu.spoiled_units = 1u << launch->wrong_unit;
    sim_cpu.spoiled_bits = launch->wrong_bits;
    sim_cpu.spoiled_zero = launch->wrong_zero;
    kernel->body(args);
    sim_cpu = before;
}

extern "C" int sim_run(const SimKernel *kernel, const void *args, SimLaunch *launch) {
    u32 *shared = (u32 *)calloc(launch->shared_bytes / 4 + 1, 4);
    u64 *ends = (u64 *)calloc(2 * launch->sms, sizeof(u64));
    if (!shared || !ends) {
        free(shared);
        free(ends);
        return 1;
    }
    u64 *begins = ends + launch->sms;
    const bool wrong = launch->wrong_bits || launch->wrong_zero;
    int failed = 0;
    sim_cpu = {};
    sim_cpu.kind = kernel->kind;
    sim_cpu.threads = launch->threads;
    sim_cpu.blocks = launch->blocks;
    sim_cpu.shared = shared;
    sim_cpu.ghz = launch->ghz;
    for (u32 block = 0; block < launch->blocks && !failed; block++) {
        const u32 sm = block % launch->sms;
        // The first block of those that are on the multiprocessor at once.
        if (block / launch->sms % launch->blocks_of_sm == 0) begins[sm] = ends[sm];
        begin_block(launch, block, kernel->kind, begins[sm]);
        memset(shared, 0xa5, launch->shared_bytes);
        if (kernel->kind == SIM_TOGETHER) {
            failed = !run_together(kernel, args, launch->threads);
        } else {
            sim_cpu.thread = 0;
            kernel->body(args);
            if (wrong && kernel->kind == SIM_RATE && sm == launch->wrong_sm) run_wrong(kernel, args, launch);
        }
        const u64 end = begins[sm] + sim_elapsed();
        if (end > ends[sm]) ends[sm] = end;
        if (end > launch->cycles) launch->cycles = end;
    }
    free(shared);
    free(ends);
    return failed;
}
