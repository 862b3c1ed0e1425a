"""What the exporter costs at its defaults: CPU, memory, time inside driver calls, scrapes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from daemon import Daemon, Page, Scraper

BUDGET_CPU_PERCENT = 1.5
BUDGET_DRIVER_SECONDS = 0.03
BUDGET_PSS_MIB = 30.0
BUDGET_SERIES = 400
# After the start: what is read once is no part of what the exporter costs from then on.
SETTLED = 20.0


def quantile(values: list[float], q: float) -> float:
    """Nearest-rank quantile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def by_label(page: Page, name: str, label: str) -> dict[str, float]:
    """Sums of a metric's series by one of its labels."""
    sums: dict[str, float] = {}
    for labels, value in page.all(name):
        if label in labels:
            sums[labels[label]] = sums.get(labels[label], 0.0) + value
    return sums


@dataclass
class ProcessCost:
    """One process of the exporter over the measurement."""

    pid: int
    role: str
    threads: int
    cpu: float  # % of a core, from /proc/PID/stat
    scheduled: float  # the same from schedstat, of threads that live
    by_thread: dict[str, float]  # of that, by the thread's name
    pss: int  # bytes


@dataclass
class Taken:
    """One measurement."""

    elapsed: float
    every: float  # seconds between scrapes
    span: float  # seconds between the first and the last page's newest fast samples
    processes: list[ProcessCost]
    replaced: list[int]
    counts: dict[str, float]
    spent: dict[str, float]
    tiers: dict[str, float]  # seconds in driver calls per second, by tier
    per_gpu: dict[str, int]
    series: int
    first: float
    latencies: list[float]
    wire: int
    plain: int

    @property
    def cpu(self) -> float:
        return sum(p.cpu for p in self.processes)

    @property
    def scheduled(self) -> float:
        return sum(p.scheduled for p in self.processes)

    @property
    def pss_mib(self) -> float:
        return sum(p.pss for p in self.processes) / 2**20

    @property
    def inside(self) -> float:
        """Wall seconds inside driver calls, per second."""
        return sum(self.spent.values()) / self.span

    def budget(self) -> list[tuple[str, float, float, bool]]:
        """Figures of the budget: what, how much, how much is allowed, whether it is kept."""
        cpu, most = max(self.cpu, self.scheduled), max(self.per_gpu.values(), default=0)
        figures = [
            ("CPU, % of a core (the larger of both sources)", cpu, BUDGET_CPU_PERCENT),
            ("wall seconds inside driver calls, per second", self.inside, BUDGET_DRIVER_SECONDS),
            ("memory (PSS of all processes), MiB", self.pss_mib, BUDGET_PSS_MIB),
            ("series of the GPU that has most", float(most), float(BUDGET_SERIES)),
        ]
        return [(what, got, allowed, got <= allowed) for what, got, allowed in figures]

    def document(self) -> dict:
        """All of it, for JSON."""
        return {
            "elapsed": self.elapsed, "scraped_every": self.every, "span": self.span, "processes": [vars(p) for p in self.processes],
            "replaced": self.replaced, "cpu_percent": self.cpu, "cpu_percent_schedstat": self.scheduled,
            "pss_mib": self.pss_mib, "driver_seconds_per_second": self.inside,
            "driver_seconds_per_second_by_tier": self.tiers,
            "calls_per_second": {k: v / self.span for k, v in self.counts.items() if v},
            "call_seconds_per_second": {k: v / self.span for k, v in self.spent.items() if v},
            "series": self.series, "series_by_gpu": self.per_gpu, "scrape_bytes": self.plain,
            "scrape_bytes_gzip": self.wire, "scrape_seconds": self.latencies,
        }  # fmt: skip

    def report(self, header: str, load: str) -> str:
        """The measurement as Markdown."""
        out = [header, "## Processes", ""]
        out += [f"{self.elapsed:.1f} s at default settings, scraped every {self.every:g} s (OpenMetrics, gzip). {load}", ""]
        out += ["| process | pid | threads | CPU, % of a core (/proc/PID/stat) | (schedstat) | PSS, MiB |",
                "|---|---|---|---|---|---|"]  # fmt: skip
        for p in self.processes:
            out.append(f"| {p.role} | {p.pid} | {p.threads} | {p.cpu:.2f} | {p.scheduled:.2f} | {p.pss / 2**20:.1f} |")
        out += [f"| all | | {sum(p.threads for p in self.processes)} | {self.cpu:.2f} | {self.scheduled:.2f} | "
                f"{self.pss_mib:.1f} |", ""]  # fmt: skip
        threads = [(share, p.role, name) for p in self.processes for name, share in p.by_thread.items() if share >= 0.01]
        out += ["| thread | CPU, % of a core (schedstat) |", "|---|---|"]
        out += [f"| {role}: {name} | {share:.3f} |" for share, role, name in sorted(threads, reverse=True)] + [""]
        if self.replaced:
            out += [f"Processes that came or went meanwhile: {self.replaced}.", ""]
        out += ["## Budget (set for eight GPUs)", "", f"GPUs here: {len(self.per_gpu)}.", "",
                "| figure | measured | budget | |", "|---|---|---|---|"]  # fmt: skip
        out += [f"| {what} | {got:.4g} | {allowed:g} | {'kept' if kept else '**EXCEEDED**'} |"
                for what, got, allowed, kept in self.budget()]  # fmt: skip
        ms = [v * 1e3 for v in self.latencies]
        out += ["", "## Scrapes", "",
                f"{len(ms)} scrapes on one open connection, gzip OpenMetrics, until the last byte: "
                f"p50 {quantile(ms, 0.5):.3f} ms, p99 {quantile(ms, 0.99):.3f} ms, max {max(ms):.3f} ms. "
                f"The first scrape ({self.first * 1e3:.3f} ms, it opens the connection and makes the format known) is "
                f"not among them. {self.plain} bytes, {self.wire} on the wire. "
                f"{self.series} series in text format 0.0.4 (buckets counted), "
                f"{self.series - sum(self.per_gpu.values())} of them of the node.", ""]  # fmt: skip
        if self.tiers:
            out += ["## Driver calls by tier", "", "| tier | seconds per second |", "|---|---|"]
            out += [f"| {tier} | {seconds:.5f} |" for tier, seconds in sorted(self.tiers.items(), key=lambda t: -t[1])]
            out += [""]
        out += ["## Driver calls", "",
                f"Over {self.span:.1f} s, all GPUs together, from `gpu_exporter_driver_calls_total` and "
                "`gpu_exporter_driver_call_seconds_total`.", "",
                "| call | per second | mean, us | share of the time |", "|---|---|---|---|"]  # fmt: skip
        whole = sum(self.spent.values()) or 1.0
        for call in sorted(self.counts, key=lambda c: -self.spent.get(c, 0.0)):
            if self.counts[call]:
                spent = self.spent.get(call, 0.0)
                out.append(f"| {call} | {self.counts[call] / self.span:.2f} | {spent / self.counts[call] * 1e6:.1f} | "
                           f"{spent / whole * 100:.1f} % |")  # fmt: skip
        return "\n".join(out) + "\n"


def take(daemon: Daemon, seconds: float, every: float = 1.0) -> Taken:
    """Scrapes at this interval for `seconds` and counts what that cost."""
    before = daemon.processes()
    page_before, begin = daemon.scrape(), time.monotonic()
    scheduled_before = {pid: p.scheduled_seconds() for pid, p in before.items()}
    scraper = Scraper(daemon.port)
    first, *_ = scraper.scrape()
    latencies, wire, plain = [], 0, 0
    for at in range(1, int(seconds / every) + 1):
        time.sleep(max(0.0, begin + at * every - time.monotonic()))
        took, wire, plain = scraper.scrape()
        latencies.append(took)
    scraper.close()
    after, elapsed = daemon.processes(), time.monotonic() - begin
    scheduled_after = {pid: p.scheduled_seconds() for pid, p in after.items()}
    # The same page format as at the beginning; the driver counters are those of the newest publication.
    page_after = daemon.scrape()
    processes = []
    for pid, p in sorted(after.items()):
        cpu = (p.cpu_seconds - before[pid].cpu_seconds if pid in before else p.cpu_seconds) / elapsed * 100
        known, by_thread = scheduled_before.get(pid, {}), {}
        for (number, name), spent in scheduled_after[pid].items():
            share = (spent - known.get((number, name), 0.0)) / elapsed * 100
            by_thread[name] = by_thread.get(name, 0.0) + share
        processes.append(ProcessCost(pid, p.role(), p.threads, cpu, sum(by_thread.values()), by_thread, p.pss_bytes()))

    def grown(name: str, label: str) -> dict[str, float]:
        had = by_label(page_before, name, label)
        return {k: v - had.get(k, 0.0) for k, v in by_label(page_after, name, label).items()}

    # The pages are published each second: divide by the time between their newest fast samples.
    span = newest_sample(page_after) - newest_sample(page_before) or elapsed
    per_gpu: dict[str, int] = {}
    for _, labels in page_after.series:
        if gpu := dict(labels).get("gpu"):
            per_gpu[gpu] = per_gpu.get(gpu, 0) + 1
    return Taken(
        elapsed=elapsed, every=every, span=span, processes=processes, replaced=sorted(set(before) ^ set(after)),
        counts=grown("gpu_exporter_driver_calls_total", "call"),
        spent=grown("gpu_exporter_driver_call_seconds_total", "call"),
        tiers={k: v / span for k, v in grown("gpu_exporter_driver_call_seconds_total", "tier").items()},
        per_gpu=per_gpu, series=len(page_after.series), first=first, latencies=latencies, wire=wire, plain=plain,
    )  # fmt: skip


def measure(daemon: Daemon, seconds: float, every: float, header: str, path: Path) -> list[str]:
    """Measures for `seconds` and writes the report. Gives the lines of the summary."""
    time.sleep(SETTLED)
    taken = take(daemon, seconds, every)
    path.write_text(taken.report(
        header, f"From {SETTLED:g} s after the start on. No GPU load, no other reader of NVML by this script."))  # fmt: skip
    ms = [v * 1e3 for v in taken.latencies]
    return [f"cost: {what}: {got:.4g} (budget {allowed:g}{'' if kept else ', EXCEEDED'})"
            for what, got, allowed, kept in taken.budget()] + [
        f"cost: scrape p50 {quantile(ms, 0.5):.2f} ms, p99 {quantile(ms, 0.99):.2f} ms, max {max(ms):.2f} ms; "
        f"{taken.series} series"]  # fmt: skip


def newest_sample(page: Page) -> float:
    return max((v for _, v in page.all("gpu_exporter_sample_timestamp_seconds")), default=0.0)
