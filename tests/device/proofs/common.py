"""What the proofs share: the report, the exporter under test, the loads beside it, windows of its slow tier."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from daemon import Daemon, Page

HERE = Path(__file__).resolve().parent.parent
PASS, FAIL, SKIP, INFO = "PASS", "FAIL", "SKIP", "INFO"


class Skip(Exception):
    """The proof cannot be made here; the text says why."""


class Missing(Exception):
    """A series that must be on the page is not."""


@dataclass
class Row:
    """One figure of a proof."""

    name: str
    verdict: str
    got: float | str | None = None
    want: float | str | None = None
    tolerance: str = ""
    text: str = ""


@dataclass
class Report:
    """What one proof found."""

    check: str
    rows: list[Row] = field(default_factory=list)
    data: dict[str, object] = field(default_factory=dict)

    def near(self, name: str, got: float, want: float, absolute: float = 0.0, relative: float = 0.0,
             text: str = "") -> bool:  # fmt: skip
        """PASS if `got` is as far from `want` as allowed or nearer."""
        ok = math.isfinite(got) and abs(got - want) <= absolute + relative * abs(want)
        parts = [f"± {absolute:g}"] * bool(absolute) + [f"± {relative * 100:g} %"] * bool(relative)
        self.rows.append(Row(name, PASS if ok else FAIL, got, want, " ".join(parts) or "exact", text))
        return ok

    def at_most(self, name: str, got: float, most: float, text: str = "") -> bool:
        ok = math.isfinite(got) and got <= most
        self.rows.append(Row(name, PASS if ok else FAIL, got, most, "at most", text))
        return ok

    def judge(self, name: str, ok: bool, got: float | str | None = None, want: float | str | None = None,
              text: str = "") -> bool:  # fmt: skip
        self.rows.append(Row(name, PASS if ok else FAIL, got, want, "", text))
        return ok

    def info(self, name: str, got: float | str | None = None, want: float | str | None = None, text: str = "") -> None:
        self.rows.append(Row(name, INFO, got, want, "", text))

    def skip(self, name: str, text: str) -> None:
        self.rows.append(Row(name, SKIP, text=text))

    def fail(self, name: str, text: str) -> None:
        self.rows.append(Row(name, FAIL, text=text))

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """A part of the proof: what goes wrong in it is a row, and the next part is made all the same."""
        try:
            yield
        except Skip as why:
            self.skip(name, str(why))
        except Exception as problem:  # whatever it is: the other parts still count
            self.fail(name, f"{type(problem).__name__}: {problem}"[:1500])

    @property
    def verdict(self) -> str:
        verdicts = {row.verdict for row in self.rows}
        return next((v for v in (FAIL, PASS, SKIP) if v in verdicts), INFO)

    def document(self) -> dict:
        return {"check": self.check, "verdict": self.verdict, "rows": [vars(row) for row in self.rows], "data": self.data}


def show(value: float | str | None) -> str:
    """A figure for people."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.7g}"


def table(rows: list[dict], title: str) -> str:
    """The rows of a proof as Markdown."""
    out = [f"## {title}", "", "| | figure | measured | expected | tolerance | |", "|---|---|---|---|---|---|"]
    for row in rows:
        text = " ".join(str(row["text"]).split())[:600].replace("|", "\\|")
        out.append(f"| {row['verdict']} | {row['name']} | {show(row['got'])} | {show(row['want'])} | "
                   f"{row['tolerance']} | {text} |")  # fmt: skip
    return "\n".join(out) + "\n"


@dataclass(frozen=True)
class Gpu:
    """The GPU under proof."""

    index: int
    uuid: str

    def get(self, page: Page, name: str, **labels: str) -> float | None:
        return page.get(name, gpu=str(self.index), uuid=self.uuid, **labels)

    def need(self, page: Page, name: str, **labels: str) -> float:
        value = self.get(page, name, **labels)
        if value is None:
            inner = ",".join(f'{k}="{v}"' for k, v in labels.items())
            raise Missing(f"{name}{{{inner}}} of GPU {self.index} is not in /metrics")
        return value

    def read_at(self, page: Page, tier: str) -> float:
        """When the values of this tier were read, in seconds since 1970."""
        return self.need(page, "gpu_exporter_sample_timestamp_seconds", tier=tier)

    def all(self, page: Page, name: str) -> list[tuple[dict[str, str], float]]:
        return [(labels, v) for labels, v in page.all(name) if labels.get("uuid") == self.uuid]


class Env:
    """Where a proof runs: the binary, the folders, the options."""

    def __init__(self, options) -> None:
        self.options = options
        self.out: Path = options.out
        self.logs = options.out / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self._folder = tempfile.TemporaryDirectory(prefix="gpu-node-exporter-")
        self.folder = Path(self._folder.name)
        self.folder.chmod(0o755)
        self.binary = self.folder / "gpu-node-exporter"
        shutil.copyfile(options.binary, self.binary)
        self.binary.chmod(0o755)
        self._nvml = None

    def close(self) -> None:
        self._folder.cleanup()

    def nvml(self):
        """pynvml, started."""
        if self._nvml is None:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
        return self._nvml

    def gpus(self) -> list[Gpu]:
        n = self.nvml()
        uuids = [n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(i)) for i in range(n.nvmlDeviceGetCount())]
        return [Gpu(i, u.decode() if isinstance(u, bytes) else u) for i, u in enumerate(uuids)]

    def gpu(self) -> Gpu:
        """The one that --gpu names."""
        gpus = self.gpus()
        if self.options.gpu >= len(gpus):
            raise Skip(f"there is no GPU {self.options.gpu}, only {len(gpus)}")
        return gpus[self.options.gpu]

    def handle(self, gpu: Gpu):
        return self.nvml().nvmlDeviceGetHandleByIndex(gpu.index)

    @contextlib.contextmanager
    def daemon(self, name: str, settings: dict[str, str] | None = None) -> Iterator[Daemon]:
        """The exporter as root with these settings, until the end of the block; its log stays."""
        folder = self.folder / name
        folder.mkdir(mode=0o755)
        extra = ["--nvml-library", str(self.options.nvml_library.resolve())] if self.options.nvml_library else []
        daemon = Daemon(self.binary, folder, "root", extra, settings)
        try:
            daemon.wait_ready()
            yield daemon
        finally:
            if daemon.process.poll() is None:
                daemon.terminate()
            with contextlib.suppress(OSError):
                shutil.copyfile(daemon.log, self.logs / f"daemon-{name}.log")

    @contextlib.contextmanager
    def load(self, kind: str, gpu: Gpu, *more: str, ready: float = 120.0) -> Iterator[Load]:
        """A load on the GPU, from when it works until the end of the block."""
        load = Load(kind, gpu, list(more), self.logs / f"load-{kind}.log")
        try:
            load.wait("ready", ready)
            yield load
        finally:
            load.stop()


class Load:
    """`load.py` beside the proof, and what it tells."""

    def __init__(self, kind: str, gpu: Gpu, more: list[str], log: Path) -> None:
        self.kind, self.log = kind, log
        self.events: list[dict] = []
        self._came = threading.Condition()
        self._ended = False
        command = [sys.executable, str(HERE / "load.py"), kind, "--gpu", gpu.uuid, *more]
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                env=os.environ | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
            )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # what a library prints
            with self._came:
                self.events.append(event)
                self._came.notify_all()
        with self._came:
            self._ended = True
            self._came.notify_all()

    def wait(self, name: str, seconds: float, number: int = 1) -> dict:
        """The `number`th event of this name."""
        end = time.monotonic() + seconds
        with self._came:
            while True:
                found = [e for e in self.events if e.get("event") == name]
                if len(found) >= number:
                    return found[number - 1]
                left = end - time.monotonic()
                if self._ended or left <= 0:
                    break
                self._came.wait(left)
        said = self.log.read_text(errors="replace")[-1500:] if self.log.exists() else ""
        how = "ended" if self._ended else f"is silent after {seconds:.0f} s"
        raise RuntimeError(f"the load {self.kind} {how} without telling {name}: {said}")

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def ticks(self) -> list[dict]:
        with self._came:
            return [e for e in self.events if e.get("event") == "tick"]

    def done_at(self, unix: float) -> float | None:
        """Work done by that moment, between two ticks in proportion; none outside of them."""
        ticks = self.ticks()
        for a, b in zip(ticks, ticks[1:]):
            if a["unix"] <= unix <= b["unix"]:
                share = (unix - a["unix"]) / max(1e-9, b["unix"] - a["unix"])
                return a["done"] + share * (b["done"] - a["done"])
        return None

    def between(self, begin: float, end: float, name: str) -> list[float]:
        """This figure of all ticks in that time."""
        return [t[name] for t in self.ticks() if begin <= t["unix"] <= end and name in t]

    def stop(self) -> None:
        """Asks it to end; a GPU client is not killed unless it does not listen for a long time."""
        with contextlib.suppress(OSError):
            if self.process.stdin is not None:
                self.process.stdin.close()
        for ask in (lambda: None, self.process.terminate, self.process.kill):
            with contextlib.suppress(OSError):
                ask()
            try:
                self.process.wait(timeout=30)
                return
            except subprocess.TimeoutExpired:
                continue

SAME_VISIT = 0.05  # seconds


class Background:
    """Runs `_run` in a thread until the end of the block."""

    def __init__(self) -> None:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(timeout=15)

    def _run(self) -> None:
        raise NotImplementedError


class Follower(Background):
    """Scrapes all the time and keeps the pages, with when they came."""

    def __init__(self, daemon: Daemon, gpu: Gpu, every: float = 0.25) -> None:
        super().__init__()
        self.daemon, self.gpu, self.every = daemon, gpu, every
        self.pages: list[tuple[float, Page]] = []
        self.failures: list[str] = []

    def _run(self) -> None:
        while not self._end.is_set():
            begin = time.monotonic()
            try:
                page = self.daemon.scrape()
                # Only this GPU's series are kept: pages of eight GPUs are large.
                mine = {k: v for k, v in page.series.items() if ("uuid", self.gpu.uuid) in k[1]}
                self.pages.append((time.time(), Page("", mine)))
            except Exception as problem:
                self.failures.append(str(problem)[:200])
            self._end.wait(max(0.0, begin + self.every - time.monotonic()))

    def visits(self, tier: str) -> list[tuple[float, Page]]:
        """The first page that shows each visit of this tier, with when the visit was."""
        seen: list[tuple[float, Page]] = []
        for _, page in list(self.pages):
            at = self.gpu.get(page, "gpu_exporter_sample_timestamp_seconds", tier=tier)
            # The same visit may be reported some microseconds apart from page to page.
            if at is not None and (not seen or at > seen[-1][0] + SAME_VISIT):
                seen.append((at, page))
        return seen


def wait_visits(daemon: Daemon, gpu: Gpu, tier: str, after: float, visits: int, seconds: float) -> Page:
    """The page once so many visits of the tier have begun later than `after` (seconds since 1970)."""
    seen: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        page = daemon.scrape()
        at = gpu.get(page, "gpu_exporter_sample_timestamp_seconds", tier=tier)
        if at is not None and at > after and all(abs(at - other) > SAME_VISIT for other in seen):
            seen.append(at)
            if len(seen) >= visits:
                return page
        time.sleep(0.1)
    raise RuntimeError(f"{len(seen)} of {visits} visits of tier {tier} within {seconds:.0f} s")


class Clock(Background):
    """NVML's clock of the multiprocessors and of the memory, read all the time."""

    def __init__(self, env: Env, gpu: Gpu, every: float = 0.05) -> None:
        super().__init__()
        self.n, self.handle, self.every = env.nvml(), env.handle(gpu), every
        self.readings: list[tuple[float, float, float]] = []

    def _run(self) -> None:
        while not self._end.wait(self.every):
            with contextlib.suppress(self.n.NVMLError):
                sm = self.n.nvmlDeviceGetClockInfo(self.handle, 1) * 1e6
                self.readings.append((time.time(), sm, self.n.nvmlDeviceGetClockInfo(self.handle, 2) * 1e6))

    def mean(self, begin: float, end: float, memory: bool = False) -> float | None:
        found = [r[2 if memory else 1] for r in list(self.readings) if begin <= r[0] <= end]
        return sum(found) / len(found) if found else None


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan
