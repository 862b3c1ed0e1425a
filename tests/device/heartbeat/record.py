#!/usr/bin/env python3
"""Records what the driver keeps of a GPU while known jobs (jobs.py) run one after the other: --out has KIND.json of each.

Power samples (50 Hz) and utilization samples (5 Hz) with the driver's own times, GPM windows, SM clock, clock event reasons
and processes once a second. Reads only; changes no setting. Needs nvidia-ml-py and torch.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
# Name in the recording, GPM's metric.
GPM = {
    "graphics": 1, "sm": 2, "occ": 3, "int": 4, "tensor": 5, "dfma": 6, "hmma": 7, "imma": 9, "dram": 10, "fp64": 11,
    "fp32": 12, "fp16": 13, "pcie_tx": 20, "pcie_rx": 21, "nvl_rx": 60, "nvl_tx": 61,
}  # fmt: skip
SAMPLES = {"power_mw": 0, "utilization": 1, "memory_utilization": 2}
BEFORE, AFTER = 1.0, 1.0  # seconds of a recording around its job


class Recorder(threading.Thread):
    """Reads once a second; keeps all of it."""

    def __init__(self, index: int) -> None:
        super().__init__(daemon=True)
        import pynvml

        self.n = pynvml
        self.n.nvmlInit()
        self.handle = self.n.nvmlDeviceGetHandleByIndex(index)
        self.series: dict[str, list] = {name: [] for name in [*SAMPLES, "gpm", "sm_clock_mhz_and_reasons", "pids"]}
        self.lock, self.stopped = threading.Lock(), threading.Event()
        self.problems: list[str] = []
        self.gpm = [self.n.c_nvmlGpmSample_t(), self.n.c_nvmlGpmSample_t()]
        for sample in self.gpm:
            self.n._nvmlCheckReturn(self.n._nvmlGetFunctionPointer("nvmlGpmSampleAlloc")(ctypes.byref(sample)))
        self.n.nvmlGpmSampleGet(self.handle, self.gpm[0])

    def facts(self) -> dict:
        return {"gpu": self.n.nvmlDeviceGetName(self.handle), "driver": self.n.nvmlSystemGetDriverVersion()}

    def run(self) -> None:
        due = time.monotonic()
        while not self.stopped.is_set():
            for read in (self.read_gpm, self.read_clock, self.read_pids, *(lambda s=s: self.read_samples(s) for s in SAMPLES)):
                try:
                    read()
                except Exception as problem:  # one reading less
                    self.problems.append(f"{time.time():.1f} {problem}")
            due += 1.0
            self.stopped.wait(max(0.0, due - time.monotonic()))

    def add(self, name: str, rows: list) -> None:
        with self.lock:
            self.series[name] += rows

    def read_samples(self, name: str) -> None:
        seen = self.series[name][-1][0] if self.series[name] else 0
        try:
            _, samples = self.n.nvmlDeviceGetSamples(self.handle, SAMPLES[name], seen)
        except self.n.NVMLError_NotFound:
            return
        self.add(name, [[s.timeStamp, s.sampleValue.uiVal] for s in samples if s.timeStamp > seen])

    def read_gpm(self) -> None:
        self.gpm.reverse()
        self.n.nvmlGpmSampleGet(self.handle, self.gpm[0])
        now = time.time()
        ask = self.n.c_nvmlGpmMetricsGet_t()
        ask.version, ask.numMetrics = self.n.NVML_GPM_METRICS_GET_VERSION, len(GPM)
        ask.sample1, ask.sample2 = self.gpm[1], self.gpm[0]
        for at, metric in enumerate(GPM.values()):
            ask.metrics[at].metricId = metric
        self.n.nvmlGpmMetricsGet(ask)
        got = {name: round(ask.metrics[at].value, 3) for at, name in enumerate(GPM) if ask.metrics[at].nvmlReturn == 0}
        self.add("gpm", [[round(now, 3), got]])

    def read_clock(self) -> None:
        clock = self.n.nvmlDeviceGetClockInfo(self.handle, self.n.NVML_CLOCK_SM)
        reasons = self.n.nvmlDeviceGetCurrentClocksEventReasons(self.handle)
        self.add("sm_clock_mhz_and_reasons", [[round(time.time(), 3), clock, reasons]])

    def read_pids(self) -> None:
        found = [p.pid for p in self.n.nvmlDeviceGetComputeRunningProcesses(self.handle)]
        self.add("pids", [[round(time.time(), 3), found]])

    def between(self, begin: float, end: float) -> dict:
        """What was read in between, by its own times."""
        with self.lock:
            out = {}
            for name, rows in self.series.items():
                scale = 1e6 if name in SAMPLES else 1.0
                out[name] = [r for r in rows if begin <= r[0] / scale <= end]
            return out


class Program:
    """A job of jobs.py (or another script that speaks its protocol)."""

    def __init__(self, kind: str, arguments: list[str], out: Path, script: Path = HERE / "jobs.py",
                 prefix: list[str] | None = None, **more) -> None:  # fmt: skip
        self.kind, self.out = kind, out
        self.log = (out.parent / f"{kind}.log").open("w")
        self.process = subprocess.Popen(
            [*(prefix or []), sys.executable, "-B", str(script), kind, *arguments, "--out", str(out)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, **more,
        )  # fmt: skip
        self.events: queue.Queue = queue.Queue()
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self) -> None:
        for line in self.process.stdout:
            try:
                self.events.put(json.loads(line))
            except ValueError:
                self.log.write(line)
        self.events.put(None)

    def wait(self, event: str, seconds: float) -> dict:
        end = time.monotonic() + seconds
        while True:
            try:
                got = self.events.get(timeout=max(0.01, end - time.monotonic()))
            except queue.Empty:
                raise RuntimeError(f"{self.kind}: no {event} within {seconds:.0f} s") from None
            if got is None:
                raise RuntimeError(f"{self.kind}: ended before {event}")
            if got["event"] == event:
                return got

    def send(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Waits a little for its end, then kills it."""
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


def overrides(text: str) -> dict[str, float]:
    """`kind=1,other=2`"""
    return {k: float(v) for k, _, v in (part.partition("=") for part in text.split(",") if part)}


def save(recorder: Recorder, out: Path, begin: float, end: float) -> None:
    """Puts what the driver kept beside what the job wrote."""
    document = json.loads(out.read_text())
    if document.get("gpus") is None:
        document |= recorder.facts()
        document["gpus"] = [recorder.between(begin - BEFORE, end + AFTER)]
        out.write_text(json.dumps(document, separators=(",", ":")))


def main() -> int:
    from jobs import KINDS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--kinds", default=",".join(k for k in KINDS if k != "sleeping_loader"))
    parser.add_argument("--seconds", type=float, default=26.0)
    parser.add_argument("--seconds-of", type=overrides, default={}, metavar="KIND=S,...")
    parser.add_argument("--target-of", type=overrides, default={}, metavar="KIND=S,...", help="seconds of a step")
    parser.add_argument("--within", type=float, default=540.0, help="no job is begun that would end later than that")
    parser.add_argument("--gpu", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    kinds = options.kinds.split(",")

    def seconds(kind: str) -> float:
        return options.seconds_of.get(kind, options.seconds)

    def start(kind: str) -> Program:
        more = ["--target", str(options.target_of[kind])] if kind in options.target_of else []
        arguments = ["--seed", str(options.seed), "--seconds", str(seconds(kind)), *more]
        return Program(kind, arguments, options.out / f"{kind}.json")

    recorder = Recorder(options.gpu)
    recorder.start()
    failed, threads = [], []
    following = start(kinds[0])
    for at, kind in enumerate(kinds):
        program = following
        following = start(kinds[at + 1]) if at + 1 < len(kinds) else None
        try:
            program.wait("loaded", 90)
            if time.monotonic() - began + seconds(kind) > options.within:
                raise RuntimeError(f"{kind}: no time left")
            begin = time.time()
            program.send("go")
            ready = program.wait("ready", 60)
            said = program.wait("end", seconds(kind) + 60)
            end = time.time()
            print(f"{time.monotonic() - began:6.1f} {kind}: ready after {ready['unix'] - begin:.1f} s, {said['steps']} steps, "
                  f"median {said['median']}, {said['classes']}, {said['memory']} MiB, {ready['what']}", flush=True)  # fmt: skip
            # Samples of the last second are read later; the next job need not wait for them.
            timer = threading.Timer(3.0, save, (recorder, program.out, begin, end))
            timer.start()
            threads.append(timer)
            program.end()
        except (RuntimeError, OSError) as problem:
            failed.append(kind)
            program.process.kill()
            program.end()
            print(f"{time.monotonic() - began:6.1f} FAILED {problem}: "
                  f"{(options.out / f'{kind}.log').read_text()[-700:]}", flush=True)  # fmt: skip
    for timer in threads:
        timer.join()
    recorder.stopped.set()
    print(f"{time.monotonic() - began:.0f} s, failed: {failed}, problems: {recorder.problems[:5]}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
