#!/usr/bin/env python3
"""One kind of work on a GPU, for the proofs: `load.py KIND --gpu UUID [...]`. Changes no setting.

Tells on standard output, a JSON object a line, what it does: `ready` when the GPU is about to work, `tick` when a
piece of the work has ended (`done`: so much since the beginning, in the kind's unit; `unix` and `mono`: when;
`hertz`: clock of the multiprocessors meanwhile; `busy`: seconds in which the piece ran), `end` with the whole.
Ends by itself after --seconds, on SIGTERM, and when its standard input closes: then its parent is gone.

  fma     FP32 multiply-adds on every lane, without a gap; done is in floating-point operations
  tensor  bfloat16 matrix products by torch, without a gap; done is in floating-point operations
  copy    copies within the GPU's memory; done is in bytes copied (each is read once and written once)
  h2d     copies from pinned host memory; done is in bytes
  d2h     copies to pinned host memory; done is in bytes
  peer    copies --bytes to the GPU of --peer, then ends; done is in bytes
  mixed   bursts of `fma` of very different lengths, with pauses
  burst   one `fma` of --milliseconds for each line "go" on standard input
  halt    `fma` for --seconds, then by lines on standard input: "spin" starts a kernel of one block that polls host memory,
          "copy" copies from pinned host memory without end, "rest" ends either and does nothing
  fault   at a line "go" writes to an address where no memory is: the driver logs Xid 31
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

sys.dont_write_bytecode = True
import kernels
from cuda_driver import CudaError, Device, Driver

DEEP = 3  # pieces of work handed to the GPU ahead of time
PIECE_SECONDS = 0.2
MATRIX = 8192
GIB = 2**30

asked_to_stop = threading.Event()
lines: deque[str] = deque()
line_came = threading.Event()


def tell(event: str, **more: object) -> None:
    print(json.dumps({"event": event, "unix": time.time(), "mono": time.monotonic()} | more), flush=True)


def listen() -> None:
    """Lines of standard input; its end is the order to stop."""
    left = b""
    while got := os.read(0, 4096):  # not sys.stdin: a thread inside it would hold up the interpreter's end
        *whole, left = (left + got).split(b"\n")
        lines.extend(line.decode(errors="replace").strip() for line in whole)
        line_came.set()
    asked_to_stop.set()
    line_came.set()


def next_line() -> str | None:
    """The next line, or nothing once it is time to stop."""
    while not asked_to_stop.is_set():
        if lines:
            return lines.popleft()
        line_came.wait(0.2)
        line_came.clear()
    return None


class Fma:
    """The `fma` kernel with its memory: `slots` launches may be under way."""

    def __init__(self, device: Device, slots: int = DEEP) -> None:
        self.device, self.stream = device, device.stream()
        self.blocks = kernels.BLOCKS_PER_SM * device.multiprocessors
        self.size = self.blocks * kernels.FMA_STAMPS * 8
        self.out = device.alloc(self.blocks * kernels.THREADS * 4)
        self.stamps = [device.alloc(self.size) for _ in range(slots)]
        self.host = [device.pinned(self.size) for _ in range(slots)]
        self.events = [device.event() for _ in range(slots)]
        self.function = device.function(kernels.FMA, "fma")
        device.finish()
        self.seconds_of_a_loop = 0.0
        for loops in (200, 2000, 2000):  # the first also wakes the GPU
            self.start(0, loops)
            _, busy, _ = self.result(0, loops)
            self.seconds_of_a_loop = busy / loops

    def loops(self, seconds: float) -> int:
        """Turns of the loop that take so long."""
        return max(1, round(seconds / self.seconds_of_a_loop))

    def start(self, slot: int, loops: int) -> None:
        d = self.device
        d.launch(self.function, self.blocks, kernels.THREADS, self.stream, self.out, self.stamps[slot],
                 ctypes.c_uint32(loops))  # fmt: skip
        d.to_host(self.host[slot], self.stamps[slot], self.size, self.stream)
        d.record(self.events[slot], self.stream)

    def result(self, slot: int, loops: int) -> tuple[float, float, float]:
        """Waits for it: operations done, seconds from the first block's begin to the last one's end, clock."""
        self.device.wait(self.events[slot])
        words = self.device.words(self.host[slot], self.blocks * kernels.FMA_STAMPS)
        _, c0, c1, g0, g1 = (words[i :: kernels.FMA_STAMPS] for i in range(kernels.FMA_STAMPS))
        hertz = statistics.median((b - a) / max(1, (y - x)) for a, b, x, y in zip(c0, c1, g0, g1)) * 1e9
        operations = 2.0 * kernels.UNROLLED * loops * kernels.THREADS * self.blocks
        return operations, (max(g1) - min(g0)) / 1e9, hertz


def pipeline(seconds: float, start: Callable[[int], None], wait: Callable[[int], dict], slots: int = DEEP,
             pieces: int | None = None) -> None:  # fmt: skip
    """Keeps `slots` pieces of work under way; `wait` gives at least how much a piece has `done`."""
    tell("ready")
    begin = {"unix": time.time(), "mono": time.monotonic()}
    total, started, ended, stop_at = 0.0, 0, 0, time.monotonic() + seconds
    while True:
        more = time.monotonic() < stop_at and not asked_to_stop.is_set() and (pieces is None or started < pieces)
        if more and started - ended < slots:
            start(started % slots)
            started += 1
            continue
        if started == ended:
            break
        got = wait(ended % slots)
        ended += 1
        total += got.pop("done")
        tell("tick", done=total, **got)
    tell("end", done=total, pieces=ended, begin=begin)


def fma(device: Device, seconds: float) -> None:
    work = Fma(device)
    loops = work.loops(PIECE_SECONDS)

    def wait(slot: int) -> dict:
        operations, busy, hertz = work.result(slot, loops)
        return {"done": operations, "busy": busy, "hertz": hertz}

    pipeline(seconds, lambda slot: work.start(slot, loops), wait)


def tensor(driver: Driver, uuid: str, seconds: float) -> None:
    import torch

    ordinal = driver.ordinal(uuid)
    torch.cuda.set_device(ordinal)
    place = torch.device(f"cuda:{ordinal}")
    a = torch.randn(MATRIX, MATRIX, device=place, dtype=torch.bfloat16)
    b = torch.randn(MATRIX, MATRIX, device=place, dtype=torch.bfloat16)
    out = torch.empty_like(a)
    for _ in range(3):
        torch.matmul(a, b, out=out)
    torch.cuda.synchronize()
    device = Device(driver, ordinal, current=True)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    probe = device.function(kernels.PROBE, "probe")
    blocks = 4 * device.multiprocessors
    size = blocks * kernels.PROBE_STAMPS * 8
    stamps = [device.alloc(size) for _ in range(DEEP)]
    host = [device.pinned(size) for _ in range(DEEP)]
    events = [device.event() for _ in range(DEEP)]
    device.finish()
    began = time.monotonic()
    for _ in range(20):
        torch.matmul(a, b, out=out)
    torch.cuda.synchronize()
    batch = max(1, round(PIECE_SECONDS / ((time.monotonic() - began) / 20)))
    last: dict[int, tuple[int, int]] = {}

    def start(slot: int) -> None:
        for _ in range(batch):
            torch.matmul(a, b, out=out)
        device.launch(probe, blocks, 1, stream, stamps[slot])
        device.to_host(host[slot], stamps[slot], size, stream)
        device.record(events[slot], stream)

    def wait(slot: int) -> dict:
        nonlocal last
        device.wait(events[slot])
        words = device.words(host[slot], blocks * kernels.PROBE_STAMPS)
        now = {sm: (cycles, ns) for sm, cycles, ns in zip(words[0::3], words[1::3], words[2::3])}
        # A multiprocessor's cycles since the last stamp over its nanoseconds: the clock while the batch ran.
        clocks = [(now[sm][0] - last[sm][0]) / (now[sm][1] - last[sm][1]) * 1e9
                  for sm in now.keys() & last.keys() if now[sm][1] > last[sm][1]]  # fmt: skip
        last = now
        more = {"hertz": statistics.median(clocks)} if clocks else {}
        return {"done": 2.0 * MATRIX**3 * batch} | more

    pipeline(seconds, start, wait)


def copies(device: Device, seconds: float, piece: int, one: Callable[[ctypes.c_void_p], None]) -> None:
    """Copies of `piece` bytes, one after the other, in batches of some 0.2 s."""
    stream = device.stream()
    events = [device.event() for _ in range(DEEP)]
    begin, end = device.event(), device.event()
    for _ in range(2):
        device.record(begin, stream)
        for _ in range(4):
            one(stream)
        device.record(end, stream)
        device.wait(end)
    batch = max(1, round(PIECE_SECONDS / (device.seconds(begin, end) / 4)))

    def start(slot: int) -> None:
        for _ in range(batch):
            one(stream)
        device.record(events[slot], stream)

    def wait(slot: int) -> dict:
        device.wait(events[slot])
        return {"done": float(batch * piece)}

    pipeline(seconds, start, wait)


def copy(device: Device, seconds: float) -> None:
    piece = 4 * GIB
    source, to = device.alloc(piece), device.alloc(piece, 0)
    device.finish()
    copies(device, seconds, piece, lambda stream: device.within(to, source, piece, stream))


def over_pcie(device: Device, seconds: float, inward: bool) -> None:
    piece = GIB // 4
    here, there = device.pinned(piece), device.alloc(piece, 0)
    device.finish()
    move = device.to_device if inward else lambda d, h, size, stream: device.to_host(h, d, size, stream)
    # The copies that measure the batch count as well: readers of counters subtract `warm_up`.
    tell("warm_up", done=8.0 * piece)
    copies(device, seconds, piece, lambda stream: move(there, here, piece, stream))


def peer(driver: Driver, device: Device, other: str, size: int) -> None:
    piece = GIB
    there = Device(driver, driver.ordinal(other))
    to = there.alloc(piece, 0)
    there.finish()
    device.use()
    source = device.alloc(piece)
    device.finish()
    device.reach(there)
    stream = device.stream()
    events = [device.event() for _ in range(DEEP)]

    def start(slot: int) -> None:
        device.to_peer(to, there, source, piece, stream)
        device.record(events[slot], stream)

    def wait(slot: int) -> dict:
        device.wait(events[slot])
        return {"done": float(piece)}

    pipeline(600.0, start, wait, pieces=max(1, size // piece))


def mixed(device: Device, seconds: float) -> None:
    """Work and pauses in seconds, over and over: spikes, half-second steps, long plateaus."""
    pattern = [(0.02, 0.18)] * 15 + [(0.1, 0.3)] * 8 + [(0.5, 0.5)] * 5 + [(3.0, 2.0)] * 2 + [(1.0, 4.0)]
    work = Fma(device, 1)
    tell("ready")
    end, total, at = time.monotonic() + seconds, 0.0, 0
    while time.monotonic() < end and not asked_to_stop.is_set():
        length, pause = pattern[at % len(pattern)]
        at += 1
        left = length
        while left > 0 and not asked_to_stop.is_set():
            loops = work.loops(min(left, PIECE_SECONDS))
            work.start(0, loops)
            total += work.result(0, loops)[0]
            left -= PIECE_SECONDS
        asked_to_stop.wait(min(pause, max(0.0, end - time.monotonic())))
    tell("end", done=total)


def burst(device: Device, seconds: float) -> None:
    work = Fma(device, 1)
    tell("ready")
    while next_line() is not None:
        loops = work.loops(seconds)
        before = {"unix": time.time(), "mono": time.monotonic()}
        work.start(0, loops)
        operations, busy, hertz = work.result(0, loops)
        tell("burst", begin=before, busy=busy, done=operations, hertz=hertz)
        # The GPU's clock may be another after a pause: the next one is sized by this one.
        work.seconds_of_a_loop = busy / loops
    tell("end")


def halt(device: Device, seconds: float) -> None:
    """Work, then what looks like work."""
    spin, stream = device.function(kernels.SPIN, "spin"), device.stream()
    word = device.pinned(8)
    flag = ctypes.c_uint32.from_address(word.value)
    piece = GIB // 4
    here, there = device.pinned(piece), device.alloc(piece, 0)
    device.finish()
    if seconds > 0:
        fma(device, seconds)
    else:
        tell("ready")
    copying, done = threading.Event(), device.event()

    def copy_on() -> None:
        device.use()
        while not copying.is_set():
            for _ in range(DEEP):
                device.to_device(there, here, piece, stream)
            device.record(done, stream)
            device.wait(done)

    copier: threading.Thread | None = None
    while (line := next_line()) is not None:
        flag.value = 1
        copying.set()
        if copier:
            copier.join()
        device.finish()
        copying.clear()
        copier = None
        if line == "spin":
            flag.value = 0
            device.launch(spin, 1, 32, stream, ctypes.c_uint64(word.value))
        elif line == "copy":
            copier = threading.Thread(target=copy_on)
            copier.start()
        tell(line)
    flag.value = 1
    copying.set()
    if copier:
        copier.join()
    device.finish()
    tell("end")


def fault(device: Device) -> None:
    function, stream = device.function(kernels.FAULT, "fault"), device.stream()
    tell("ready", pid=os.getpid())
    if next_line() is None:
        return
    launched = time.monotonic()
    device.launch(function, 1, 1, stream)
    try:
        device.finish()
        tell("no_fault", launched=launched)
    except CudaError as error:
        tell("fault", launched=launched, error=str(error), code=error.code, pid=os.getpid())
    sys.stdout.flush()
    # The context is beyond use: nothing is taken down call by call, the driver clears up.
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = ["fma", "tensor", "copy", "h2d", "d2h", "peer", "mixed", "burst", "halt", "fault"]
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("--gpu", required=True, metavar="UUID", help="the GPU, by NVML's UUID")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--milliseconds", type=float, default=20.0, help="length of a burst")
    parser.add_argument("--peer", metavar="UUID")
    parser.add_argument("--bytes", type=int, default=64 * GIB)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: (asked_to_stop.set(), line_came.set()))
    threading.Thread(target=listen, daemon=True).start()
    driver = Driver()
    if options.kind == "tensor":
        tensor(driver, options.gpu, options.seconds)
        return
    device = Device(driver, driver.ordinal(options.gpu))
    if options.kind == "peer":
        if not options.peer:
            parser.error("peer needs --peer")
        peer(driver, device, options.peer, options.bytes)
    elif options.kind == "burst":
        burst(device, options.milliseconds / 1e3)
    elif options.kind == "fault":
        fault(device)
    else:
        {
            "fma": fma, "copy": copy, "mixed": mixed, "halt": halt,
            "h2d": lambda d, s: over_pcie(d, s, True), "d2h": lambda d, s: over_pcie(d, s, False),
        }[options.kind](device, options.seconds)  # fmt: skip


if __name__ == "__main__":
    main()
