#!/usr/bin/env python3
"""Work on a GPU that waits, or looks as if it did, and is no wedge. Protocol and --out as in jobs.py, with `phases`:
name, begin and end in Unix seconds of each.

  server    a persistent kernel polls without any work before; then real work; one multiprocessor computes; work; the
            kernel polls between requests
  trainer   a model is loaded from the host; training; compilation; training with checkpoints to the disk
  debugger  a program stops at a breakpoint within a kernel, after some work (nvcc and cuda-gdb)
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import jobs  # noqa: E402
from jobs import GIB, tell  # noqa: E402

DEBUGGED = r"""
#include <cstdio>
#include <cstdlib>
#include <chrono>
__global__ void work(float* out, int turns) {
    float a = threadIdx.x, b = 0.5f;
    for (int i = 0; i < turns; i++) { a = a * 0.999f + b; b = b * 0.998f + a; }
    out[blockIdx.x * blockDim.x + threadIdx.x] = a + b;
}
__global__ void last(float* out) {
    out[threadIdx.x] += 1.0f;  // stop here
}
int main(int count, char** words) {
    float* out;
    if (cudaMalloc(&out, 1056 * 256 * 4) != cudaSuccess) return 1;
    auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(atof(words[1]));
    printf("working\n"); fflush(stdout);
    while (std::chrono::steady_clock::now() < end) {
        work<<<1056, 256>>>(out, 20000);
        if (cudaDeviceSynchronize() != cudaSuccess) return 2;
    }
    printf("stopping\n"); fflush(stdout);
    last<<<1056, 256>>>(out);
    return cudaDeviceSynchronize() != cudaSuccess;
}
"""


class Phases:
    """What was done when."""

    def __init__(self, scale: float) -> None:
        self.rows: list[list] = []
        self.scale = scale

    def run(self, name: str, seconds: float, work: Callable[[], None]) -> None:
        """Repeats `work` so long."""
        begin = time.time()
        end = time.monotonic() + seconds * self.scale
        while time.monotonic() < end:
            work()
        self.rows.append([name, begin, time.time()])


class Poller:
    """A kernel that polls device memory until it is let go."""

    def __init__(self, torch, blocks: int, threads: int) -> None:
        import kernels
        from cuda_driver import Device, Driver

        self.torch, self.blocks, self.threads = torch, blocks, threads
        self.device = Device(Driver(), 0, current=True)
        self.function, self.stream = self.device.function(kernels.SPIN, "spin"), self.device.stream()
        self.flag = torch.zeros(1, dtype=torch.int32, device="cuda")
        self.side = torch.cuda.Stream()
        torch.cuda.synchronize()

    def start(self) -> None:
        with self.torch.cuda.stream(self.side):
            self.flag.fill_(0)
        self.side.synchronize()
        self.device.launch(self.function, self.blocks, self.threads, self.stream,
                           ctypes.c_uint64(self.flag.data_ptr()))  # fmt: skip

    def stop(self) -> None:
        with self.torch.cuda.stream(self.side):
            self.flag.fill_(1)
        self.torch.cuda.synchronize()


class OneMultiprocessor:
    """Computes on a single block."""

    def __init__(self, device) -> None:
        import kernels

        self.device, self.threads = device, kernels.THREADS
        self.function, self.stream = device.function(kernels.FMA, "fma"), device.stream()
        self.out, self.stamps = device.alloc(kernels.THREADS * 4), device.alloc(kernels.FMA_STAMPS * 8)
        self.loops = 1000
        self.turn()
        begin = time.monotonic()
        self.turn()
        self.loops = max(1000, round(1000 * 0.25 / (time.monotonic() - begin)))

    def turn(self) -> None:
        self.device.launch(self.function, 1, self.threads, self.stream, self.out, self.stamps,
                           ctypes.c_uint32(self.loops))  # fmt: skip
        self.device.finish()


def server(phases: Phases, draw: random.Random, torch) -> None:
    # On every multiprocessor, products that take all registers would never find room beside it.
    poller = Poller(torch, 24, 1024)
    one = OneMultiprocessor(poller.device)
    model = jobs.Server(16)
    # Kernels are loaded before one polls: loading may wait for all that runs.
    x = torch.ones(256, model.width, device="cuda", dtype=torch.bfloat16)

    def compute() -> None:
        for up, down in model.weights:
            torch.relu(x @ up) @ down
        torch.cuda.current_stream().synchronize()

    compute()
    tell("ready", what={"blocks": poller.blocks})

    def decode() -> None:
        if not model.left:
            model.admit(512, 60)
        model.decode()

    def request() -> None:
        """The kernel polls all the time; a request is computed beside it."""
        time.sleep(draw.uniform(5, 9))
        end = time.monotonic() + draw.uniform(0.3, 0.8)
        while time.monotonic() < end:
            compute()

    poller.start()
    phases.run("polls without work before", 12, lambda: time.sleep(0.2))
    poller.stop()
    phases.run("work", 25, decode)
    phases.run("one multiprocessor", 25, one.turn)
    phases.run("work", 3, decode)
    poller.start()
    phases.run("polls between requests", 40, request)
    poller.stop()


def trainer(phases: Phases, draw: random.Random, torch) -> None:
    host = torch.empty(2 * GIB, dtype=torch.uint8).pin_memory()
    plain = torch.ones(GIB // 2, dtype=torch.uint8)
    there = torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
    tell("ready", what={})

    def load() -> None:
        there.copy_(host)
        there[: plain.numel()].copy_(plain)
        time.sleep(draw.uniform(0, 0.1))

    phases.run("model loading", 12, load)
    train = jobs.Training(0.3, 1024, 8, 16384)

    def step() -> None:
        train.backward()
        train.update()
        torch.cuda.synchronize()

    phases.run("training", 25, step)
    begin = time.time()
    try:
        compiled = torch.compile(train.model)
        compiled(*train.words()).backward()
        torch.cuda.synchronize()
        train.model = compiled
        phases.rows.append(["compilation", begin, time.time()])
    except Exception as problem:  # without a compiler there is no such phase
        phases.rows.append([f"compilation failed: {str(problem)[:200]}", begin, time.time()])
    phases.run("training", 6, step)

    def checkpoint() -> None:
        """Copies what a checkpoint has to the host, writes it, and goes on for some steps."""
        with tempfile.TemporaryFile(dir="/var/tmp") as file:
            for _ in range(2):
                host.copy_(there)
                file.write(memoryview(host.numpy()))
            file.flush()
            os.fsync(file.fileno())
        for _ in range(8):
            step()

    phases.run("training with checkpoints", 20, checkpoint)


def debugger(phases: Phases, draw: random.Random, work_seconds: float, stop_seconds: float) -> None:
    folder = Path(tempfile.mkdtemp())
    (folder / "debugged.cu").write_text(DEBUGGED)
    subprocess.run(["nvcc", "-g", "-G", "-arch=sm_90", "-o", str(folder / "debugged"), str(folder / "debugged.cu")],
                   check=True, timeout=60, stdout=sys.stderr)  # fmt: skip
    tell("ready", what={"work_seconds": work_seconds})
    begin = time.time()
    # A line, for the kernel's name is that of a function of the host too.
    line = next(at for at, text in enumerate(DEBUGGED.splitlines(), 1) if "stop here" in text)
    commands = ["set pagination off", "set confirm off", "set breakpoint pending on", f"break debugged.cu:{line}",
                f"run {work_seconds}", "info cuda kernels", f"shell sleep {stop_seconds * phases.scale}", "kill"]  # fmt: skip
    arguments = [word for command in commands for word in ("-ex", command)]
    done = subprocess.run(["cuda-gdb", "-batch", *arguments, str(folder / "debugged")], timeout=60 + work_seconds
                          + stop_seconds * phases.scale, capture_output=True, text=True, stdin=subprocess.DEVNULL)  # fmt: skip
    print((done.stdout + done.stderr)[-3000:], file=sys.stderr)
    hit = any(said in done.stdout for said in ("focus to CUDA kernel", "CUDA thread hit"))
    end = time.time()
    phases.rows.append(["work under the debugger", begin, end - stop_seconds * phases.scale])
    phases.rows.append(["breakpoint" if hit else "breakpoint not reached", end - stop_seconds * phases.scale, end])


KINDS = {"server": server, "trainer": trainer, "debugger": debugger}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="all phases so much longer")
    parser.add_argument("--debug-work", type=float, default=8.0, help="debugger: seconds of work before the breakpoint")
    parser.add_argument("--debug-stop", type=float, default=35.0, help="debugger: seconds at the breakpoint")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    draw, phases = random.Random(f"{options.kind} {options.seed}"), Phases(options.scale)
    if options.kind == "debugger":
        tell("loaded", pid=os.getpid())
        if sys.stdin.readline().strip() != "go":
            return
        debugger(phases, draw, options.debug_work, options.debug_stop)
    else:
        import torch

        jobs.torch = torch
        tell("loaded", pid=os.getpid())
        if sys.stdin.readline().strip() != "go":
            return
        torch.cuda.init()
        torch.ones(1, device="cuda")
        KINDS[options.kind](phases, draw, torch)
    rows = [[name, round(begin, 3), round(end, 3)] for name, begin, end in phases.rows]
    document = {"name": options.kind, "what": options.kind, "seed": options.seed, "regular": False, "phases": rows,
                "window_unix_seconds": [rows[0][1], rows[-1][2]], "steps_unix_seconds": [[]]}  # fmt: skip
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump(document, file)
    tell("end", phases=rows)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
