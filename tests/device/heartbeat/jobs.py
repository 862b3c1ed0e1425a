#!/usr/bin/env python3
"""Jobs whose steps are known: each writes down when its steps ended on the GPU, by CUDA events.

The sizes are drawn from --seed. Protocol: one JSON document a line on standard output. "loaded" once torch is imported
(the GPU is not touched yet); at a line "go" on standard input the job sets itself up and finds its sizes ("ready"), works
for --seconds, writes --out and says "end". Needs torch and one GPU of compute capability 9.0 or later (fp8).

What --out has: `steps_unix_seconds` (when a step began: the step before had ended on the GPU), `step_ends_unix_seconds`,
`units_unix_seconds` (ends of the smallest parts that repeat, such as micro-batches), `host_step_starts_unix_seconds` (when
the host began to hand it out), `classes_seconds` (GPU seconds by what the job did, from events; `waiting` is the rest).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import contextmanager

GIB = 2**30
REST = 45.0  # seconds that the sleeping loader sleeps
SIDE = 8192  # of the matrices of products that fill the GPU


def tell(event: str, **more: object) -> None:
    print(json.dumps({"event": event, "unix": time.time()} | more), flush=True)


class Track:
    """Marks on the GPU's stream, and when they were passed in Unix seconds."""

    def __init__(self) -> None:
        self.on = False
        self.parts: list[tuple[str, object, object]] = []
        self.ends: list[object] = []
        self.units: list[object] = []
        self.hosts: list[float] = []
        self.requests: list[float] = []
        self.first, self.first_unix = None, 0.0

    @staticmethod
    def mark():
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def anchor(self):
        """A mark with its time: the best of a few, for the host wakes up late at times."""
        best = None
        for _ in range(5):
            torch.cuda.synchronize()
            before = time.time()
            event = self.mark()
            event.synchronize()
            after = time.time()
            if best is None or after - before < best[1]:
                best = (event, after - before, after)
        return best[0], best[2]

    def begin(self) -> None:
        self.on = True
        self.parts, self.ends, self.units, self.hosts, self.requests = [], [], [], [], []
        self.first, self.first_unix = self.anchor()
        self.ends.append(self.mark())

    @contextmanager
    def part(self, label: str):
        """A part of the work on the GPU."""
        if not self.on:
            yield
            return
        one = self.mark()
        yield
        self.parts.append((label, one, self.mark()))

    def unit(self) -> None:
        if self.on:
            self.units.append(self.mark())

    def request(self) -> None:
        if self.on:
            self.requests.append(time.time())

    def result(self) -> dict:
        last, last_unix = self.anchor()
        milliseconds = self.first.elapsed_time(last)
        scale = (last_unix - self.first_unix) / milliseconds

        def unix(event) -> float:
            return round(self.first_unix + self.first.elapsed_time(event) * scale, 6)

        ends = [unix(e) for e in self.ends]
        classes: dict[str, float] = {}
        for label, a, b in self.parts:
            classes[label] = classes.get(label, 0.0) + a.elapsed_time(b) / 1e3
        begin = unix(self.ends[0])
        end = ends[-1] if len(ends) > 1 else unix(last)
        classes["waiting"] = max(0.0, (end - begin) - sum(classes.values()))
        return {
            "window_unix_seconds": [begin, end],
            "steps_unix_seconds": [ends[:-1]], "step_ends_unix_seconds": [ends[1:]],
            "host_step_starts_unix_seconds": [[round(h, 6) for h in self.hosts]],
            "units_unix_seconds": [[unix(e) for e in self.units]],
            "requests_unix_seconds": [round(r, 6) for r in self.requests],
            "parts_unix_seconds": [[label, unix(a), unix(b)] for label, a, b in self.parts[:400]],
            "classes_seconds": {k: round(v, 4) for k, v in classes.items()},
        }  # fmt: skip


TRACK = Track()


def seconds_of(work: Callable[[], object], least: float = 0.04) -> float:
    """Seconds on the GPU of one call of `work`, warm."""
    for _ in range(2):
        work()
    torch.cuda.synchronize()
    count = 1
    while True:
        one = Track.mark()
        for _ in range(count):
            work()
        two = Track.mark()
        two.synchronize()
        took = one.elapsed_time(two) / 1e3
        if took >= least or count >= 1000:
            return took / count
        count = min(1000, max(count + 1, math.ceil(1.3 * count * least / max(took, 1e-6))))


class Work:
    """Work that lasts a given time: as many calls as fit."""

    def __init__(self, label: str, work: Callable[[], object]) -> None:
        self.label, self.work, self.seconds = label, work, seconds_of(work)

    def run(self, seconds: float) -> None:
        with TRACK.part(self.label):
            for _ in range(max(1, round(seconds / self.seconds))):
                self.work()


def products(side: int = SIDE) -> Work:
    a = torch.randn(side, side, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(side, side, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    return Work("computing", lambda: torch.matmul(a, b, out=out))


def exchange(gib: float = 1.0) -> Work:
    """In place of a collective: copies within the GPU's memory."""
    a = torch.randn(int(gib * GIB) // 4, device="cuda")
    b = torch.empty_like(a)
    return Work("copying", lambda: b.copy_(a))


def optimizer(elements: int = 2**28) -> Work:
    p, g, m, v = (torch.rand(elements, device="cuda") for _ in range(4))

    def update() -> None:
        m.mul_(0.9).add_(g, alpha=0.1)
        v.mul_(0.99).addcmul_(g, g, value=0.01)
        p.addcdiv_(m, v, value=-1e-6)

    return Work("optimizer", update)


class Pauses:
    """The host's pauses: none while the job warms up, and none beyond its end."""

    end = 0.0

    @classmethod
    def sleep(cls, seconds: float) -> None:
        time.sleep(max(0.0, min(seconds, cls.end - time.monotonic())))


class Limit:
    """Keeps the host at most so many steps ahead of the GPU."""

    def __init__(self, ahead: int) -> None:
        self.ahead, self.events = ahead, deque()

    def step(self) -> None:
        self.events.append(Track.mark())
        while len(self.events) > self.ahead:
            self.events.popleft().synchronize()


# ---- a GPT -------------------------------------------------------------------------------------------------------------


def gpt(width: int, layers: int, vocabulary: int, length: int):
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            batch, time_, _ = x.shape
            q, k, v = (t.view(batch, time_, width // 64, 64).transpose(1, 2) for t in self.qkv(self.one(x)).chunk(3, -1))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(batch, time_, width))
            return x + self.down(F.gelu(self.up(self.two(x))))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

        def forward(self, words, target):
            x = self.words(words) + self.places.weight
            for block in self.blocks:
                x = block(x)
            return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), target.flatten())

    with torch.device("cuda"):
        return Gpt().to(torch.bfloat16)


class Training:
    """A GPT with AdamW; the batch is found so that one forward and backward pass lasts a given time."""

    def __init__(self, micro_seconds: float, width: int, layers: int, vocabulary: int, length: int = 1024) -> None:
        self.vocabulary, self.length = vocabulary, length
        self.model = gpt(width, layers, vocabulary, length)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.batch = 8
        for _ in range(2):
            self.fill()
            took = seconds_of(self.backward, 0.1)
            self.batch = max(1, min(192, round(self.batch * micro_seconds / took)))
        self.fill()
        for _ in range(2):
            self.backward()
            self.update()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def fill(self) -> None:
        self.data = torch.randint(self.vocabulary, (4, self.batch, self.length), device="cuda")
        self.at = 0

    def words(self):
        self.at += 1
        return self.data[self.at % 4], self.data[(self.at + 1) % 4]

    def backward(self) -> None:
        with TRACK.part("computing"):
            self.model(*self.words()).backward()

    def update(self) -> None:
        with TRACK.part("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def evaluate(self) -> None:
        with TRACK.part("computing"), torch.no_grad():
            self.model(*self.words())


# ---- kinds: each gives a function that does one step, and what was drawn ------------------------------------------------


def data_parallel(draw: random.Random, target: float) -> tuple[Callable[[], None], dict]:
    what = {
        "target": target, "buckets": draw.choice([1, 2, 2, 3]), "exchange": draw.uniform(0.10, 0.22),
        "optimizer": draw.uniform(0.03, 0.08), "ahead": 2,
    }  # fmt: skip
    multiply, copy, update = products(), exchange(), optimizer()
    computing = target * (1 - what["exchange"] - what["optimizer"])

    def step() -> None:
        for _ in range(what["buckets"]):
            multiply.run(computing / what["buckets"])
            copy.run(target * what["exchange"] / what["buckets"])
            TRACK.unit()
        update.run(target * what["optimizer"])

    return step, what


def data_parallel_short(draw: random.Random, target: float | None):
    return data_parallel(draw, target or draw.uniform(0.38, 0.52))


def data_parallel_long(draw: random.Random, target: float | None):
    return data_parallel(draw, target or draw.uniform(1.6, 2.2))


def accumulation(what: dict, train: Training):
    """Steps of several micro-batches, the gradients exchanged once after them."""
    copy = exchange()
    what["batch"] = train.batch

    def step() -> None:
        for _ in range(what["micros"]):
            train.backward()
            TRACK.unit()
        copy.run(what["exchange"] * what["target"])
        train.update()

    return step, what


def gradient_accumulation(draw: random.Random, target: float | None):
    what = {"micros": draw.randint(4, 8), "target": target or draw.uniform(0.35, 1.0), "exchange": draw.uniform(0.02, 0.08),
            "ahead": 2, "layers": draw.choice([12, 16])}  # fmt: skip
    return accumulation(what, Training(0.9 * what["target"] / what["micros"], 1024, what["layers"], 16384))


def long_step(draw: random.Random, target: float | None):
    what = {"micros": draw.randint(14, 28), "target": target or draw.uniform(6.5, 9.5), "exchange": draw.uniform(0.03, 0.07),
            "ahead": 1}  # fmt: skip
    return accumulation(what, Training(0.93 * what["target"] / what["micros"], 2048, 16, 16384))


def fully_sharded(draw: random.Random, target: float | None):
    what = {"target": target or draw.uniform(2.0, 3.0), "layers": draw.randint(16, 32), "gather": draw.uniform(0.12, 0.25),
            "optimizer": draw.uniform(0.03, 0.06), "ahead": 1}  # fmt: skip
    shard = torch.randn(GIB // 4, device="cuda", dtype=torch.bfloat16)  # half a GiB
    update = optimizer()
    full = torch.empty_like(shard)
    x = torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16)
    pair = Work("computing", lambda: torch.matmul(x, full[: SIDE * SIDE].view(SIDE, SIDE)))
    copy = Work("copying", lambda: full.copy_(shard))
    # Forward gathers once, backward gathers and scatters; backward computes twice as much.
    one_gather = what["target"] * what["gather"] / what["layers"] / 3
    one_compute = what["target"] * (1 - what["gather"] - what["optimizer"]) / what["layers"] / 3
    gathers, computes = max(1, round(one_gather / copy.seconds)), max(1, round(one_compute / pair.seconds))

    def layer(times: int, scatters: bool) -> None:
        weights = torch.empty_like(shard)
        with TRACK.part("copying"):
            for _ in range(gathers):
                weights.copy_(shard)
        matrix = weights[: SIDE * SIDE].view(SIDE, SIDE)
        with TRACK.part("computing"):
            for _ in range(times * computes):
                torch.matmul(x, matrix)
        if scatters:
            with TRACK.part("copying"):
                for _ in range(gathers):
                    shard.copy_(weights)
        TRACK.unit()

    def step() -> None:
        for _ in range(what["layers"]):
            layer(1, False)
        for _ in range(what["layers"]):
            layer(2, True)
        update.run(what["target"] * what["optimizer"])

    return step, what


def pipeline(draw: random.Random, target: float | None):
    what = {"target": target or draw.uniform(0.8, 1.3), "micros": draw.randint(4, 8), "stages": 4, "stage": draw.randint(0, 3),
            "exchange": 0.05, "ahead": 0}  # fmt: skip
    multiply, copy, update = products(), exchange(), optimizer()
    # A step is as long as all micro-batches and the bubbles of all other stages, forward 1 and backward 2 units each.
    unit = what["target"] * 0.9 / (3 * (what["micros"] + what["stages"] - 1))
    before, after = what["stage"] * unit, (what["stages"] - 1 - what["stage"]) * unit

    def bubble(seconds: float) -> None:
        torch.cuda.synchronize()
        if seconds > 0:
            time.sleep(seconds)

    def step() -> None:
        bubble(before)  # the first micro-batch is on its way through the stages before
        held = min(what["micros"], what["stages"] - what["stage"])
        for _ in range(held):
            multiply.run(unit)
        bubble(3 * after)  # forward and backward of the stages behind
        for at in range(what["micros"]):
            multiply.run(2 * unit)
            TRACK.unit()
            if at + held < what["micros"]:
                multiply.run(unit)
        bubble(2 * before)
        copy.run(what["target"] * what["exchange"])
        update.run(what["target"] * 0.05)

    return step, what


def memory_bound(draw: random.Random, target: float | None):
    what = {"target": target or draw.uniform(0.3, 0.55), "lookup": draw.uniform(0.25, 0.4), "dense": draw.uniform(0.1, 0.2),
            "scatter": draw.uniform(0.15, 0.25), "ahead": 2}  # fmt: skip
    table = torch.randn(2**23, 128, device="cuda")
    index = torch.randint(2**23, (2**21,), device="cuda")
    rows = torch.empty(2**21, 128, device="cuda")
    layer = torch.randn(128, 128, device="cuda")
    out = torch.empty_like(rows)
    lookup = Work("computing", lambda: torch.index_select(table, 0, index, out=rows))
    dense = Work("computing", lambda: torch.matmul(rows, layer, out=out))
    change = Work("computing", lambda: out.mul_(0.5).add_(rows).clamp_(-4, 4))
    scatter = Work("computing", lambda: table.index_add_(0, index, out, alpha=1e-6))
    rest = 1 - what["lookup"] - what["dense"] - what["scatter"]

    def step() -> None:
        lookup.run(what["target"] * what["lookup"])
        change.run(what["target"] * rest)
        dense.run(what["target"] * what["dense"])
        scatter.run(what["target"] * what["scatter"])

    return step, what


def bf16_gpt(draw: random.Random, target: float | None):
    what = {"target": target or draw.uniform(0.1, 0.2), "layers": draw.choice([8, 12]), "ahead": 2}
    train = Training(0.94 * what["target"], 1024, what["layers"], 16384)
    what["batch"] = train.batch

    def step() -> None:
        train.backward()
        train.update()

    return step, what


def fp8_products(draw: random.Random, target: float | None):
    what = {"target": target or draw.uniform(0.5, 0.75), "layers": draw.randint(6, 16), "bf16": draw.uniform(0.1, 0.2),
            "optimizer": draw.uniform(0.04, 0.09), "ahead": 2}  # fmt: skip
    eight = torch.float8_e4m3fn
    x = torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16)
    weights = torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16).to(eight).t()
    small = x.to(eight)
    one = torch.ones((), device="cuda")
    scaled = Work("computing", lambda: torch._scaled_mm(small, weights, scale_a=one, scale_b=one,
                                                        out_dtype=torch.bfloat16, use_fast_accum=True))  # fmt: skip

    def cast() -> None:
        scale = 448.0 / x.abs().amax()
        small.copy_((x * scale).to(eight))

    quantize, multiply, update = Work("computing", cast), products(), optimizer()
    computing = what["target"] * (1 - what["bf16"] - what["optimizer"]) / what["layers"]

    def step() -> None:
        for _ in range(what["layers"]):
            quantize.run(0.1 * computing)
            scaled.run(0.9 * computing)
            multiply.run(what["target"] * what["bf16"] / what["layers"])
            TRACK.unit()
        update.run(what["target"] * what["optimizer"])

    return step, what


def evaluation(draw: random.Random, target: float | None):
    what = {"target": target or draw.uniform(0.2, 0.35), "every": draw.randint(10, 18), "evaluation": draw.uniform(0.8, 1.6),
            "ahead": 2}  # fmt: skip
    train = Training(0.94 * what["target"], 1024, 12, 16384)
    forward = max(1, round(what["evaluation"] / seconds_of(train.evaluate)))
    what |= {"batch": train.batch, "forward_passes": forward}
    count = 0

    def step() -> None:
        """The evaluation counts as a part of the step that it follows."""
        nonlocal count
        train.backward()
        train.update()
        count += 1
        if count % what["every"] == 0:
            for _ in range(forward):
                train.evaluate()

    return step, what


def stuttering_loader(draw: random.Random, target: float | None):
    what = {"target": target or draw.uniform(0.3, 0.6), "late": 0.05, "longest": 1.0, "load": draw.uniform(0.02, 0.05),
            "ahead": 0}  # fmt: skip
    train = Training((1 - what["load"]) * 0.94 * what["target"], 1024, 12, 16384)
    what["batch"] = train.batch
    host = torch.empty(256 * 2**20, dtype=torch.uint8).pin_memory()
    here = torch.empty_like(host, device="cuda")

    def step() -> None:
        torch.cuda.synchronize()
        time.sleep(what["load"] * what["target"])
        if draw.random() < what["late"]:
            time.sleep(draw.uniform(0.2, what["longest"]))
        with TRACK.part("host_copy"):
            here.copy_(host, non_blocking=True)
        train.backward()
        train.update()

    return step, what


def sleeping_loader(draw: random.Random, target: float | None):
    """A loader that sleeps REST seconds, once, 5 s before the end."""
    what = {"target": target or draw.uniform(0.25, 0.4), "rest": REST, "ahead": 0}
    train = Training(0.94 * what["target"], 1024, 12, 16384)
    slept = False

    def step() -> None:
        nonlocal slept
        torch.cuda.synchronize()
        if not slept and 0 < Pauses.end - time.monotonic() < REST + 5:
            slept = True
            tell("rest", seconds=REST)
            time.sleep(REST)
        train.backward()
        train.update()

    return step, what


class Server:
    """A model that reads its weights once a token (decoding) and computes on prompts: sequences are batched as they come."""

    def __init__(self, layers: int, width: int = 8192) -> None:
        self.width = width
        self.weights = [(torch.randn(width, 4 * width, device="cuda", dtype=torch.bfloat16),
                         torch.randn(4 * width, width, device="cuda", dtype=torch.bfloat16)) for _ in range(layers)]  # fmt: skip
        self.left: list[int] = []
        for rows in (1, 8, 16, 64, 512):
            self.forward(rows)
        torch.cuda.synchronize()

    def forward(self, rows: int) -> None:
        x = torch.ones(rows, self.width, device="cuda", dtype=torch.bfloat16)
        with TRACK.part("computing"):
            for up, down in self.weights:
                x = torch.relu(x @ up) @ down * 1e-4

    def admit(self, prompt: int, tokens: int) -> None:
        TRACK.request()
        self.forward(prompt)
        self.left.append(tokens)

    def decode(self) -> None:
        self.forward(len(self.left))
        torch.cuda.synchronize()
        self.left = [n - 1 for n in self.left if n > 1]


def serve(draw: random.Random, layers: int, tokens: float, interval: Callable[[], float], what: dict):
    """One call decodes one token of each sequence, or waits for the next request."""
    server = Server(layers)
    due = time.monotonic()

    def once() -> None:
        nonlocal due
        now = time.monotonic()
        if now > due + 5:  # a pause before the recording brings no crowd of requests
            due = now
        while due <= now and len(server.left) < 48:
            server.admit(draw.randint(64, 2048), max(4, round(draw.expovariate(1 / tokens))))
            due += interval()
        if server.left:
            server.decode()
        else:
            time.sleep(max(0.0, min(0.2, due - time.monotonic())))

    return once, what | {"layers": layers, "tokens": tokens}


def inference_random(draw: random.Random, _: float | None):
    rate = draw.uniform(0.5, 1.2)
    return serve(draw, draw.randint(16, 24), draw.uniform(30, 70), lambda: draw.expovariate(rate), {"rate": rate})


def inference_steady(draw: random.Random, _: float | None):
    every = draw.uniform(0.3, 0.7)
    return serve(draw, draw.randint(16, 24), draw.uniform(150, 300), lambda: every, {"every": every})


def interactive(draw: random.Random, _: float | None):
    what = {"median_pause": draw.uniform(2.5, 4.5)}
    multiply, copy, update = products(), exchange(), optimizer()

    def once() -> None:
        TRACK.request()
        for _ in range(draw.randint(1, 4)):
            draw.choice([multiply, multiply, copy, update]).run(draw.uniform(0.03, 0.9))
            torch.cuda.synchronize()
            time.sleep(draw.uniform(0.0, 0.15))
        Pauses.sleep(min(15.0, draw.lognormvariate(math.log(what["median_pause"]), 0.7)))

    return once, what


REGULAR = [data_parallel_short, data_parallel_long, gradient_accumulation, fully_sharded, pipeline, memory_bound, bf16_gpt,
           fp8_products, evaluation, stuttering_loader, long_step, sleeping_loader]  # fmt: skip
IRREGULAR = [inference_random, inference_steady, interactive]
KINDS = {f.__name__: f for f in REGULAR + IRREGULAR}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=26.0)
    parser.add_argument("--target", type=float, help="seconds of a step (drawn)")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    global torch
    import torch

    tell("loaded", pid=os.getpid())
    if sys.stdin.readline().strip() != "go":
        return
    began = time.time()
    torch.cuda.init()
    torch.manual_seed(options.seed)
    make = KINDS[options.kind]
    regular = make in REGULAR
    step, what = make(random.Random(f"{options.kind} {options.seed}"), options.target)
    limit = Limit(what.get("ahead", 0)) if regular else None
    for _ in range(0 if options.kind == "long_step" else 2):
        step()
    torch.cuda.synchronize()
    tell("ready", what=what)
    TRACK.begin()
    Pauses.end = time.monotonic() + options.seconds
    while time.monotonic() < Pauses.end:
        TRACK.hosts.append(time.time())
        step()
        if regular:
            TRACK.ends.append(Track.mark())
            limit.step()
    torch.cuda.synchronize()
    document = {"name": options.kind, "what": options.kind, "seed": options.seed, "regular": regular, "parameters": what,
                "pid": os.getpid(), "began_unix_seconds": began} | TRACK.result()  # fmt: skip
    if not regular:
        document["host_step_starts_unix_seconds"] = [[]]
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump(document, file)
    starts, ends = document["steps_unix_seconds"][0], document["step_ends_unix_seconds"][0]
    lengths = sorted(b - a for a, b in zip(starts, ends, strict=True))
    tell("end", steps=len(lengths), median=lengths[len(lengths) // 2] if lengths else None,
         classes=document["classes_seconds"], memory=torch.cuda.max_memory_allocated() // 2**20)  # fmt: skip
    sys.stdout.flush()
    os._exit(0)  # nothing is torn down piece by piece: the next job waits


if __name__ == "__main__":
    main()
