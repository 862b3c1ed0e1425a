"""What the exporter costs at its defaults: CPU, memory, time inside driver calls, scrapes."""

from __future__ import annotations

import time
from pathlib import Path

from daemon import Daemon, Page, Scraper

BUDGET_CPU_PERCENT = 1.5
BUDGET_DRIVER_SECONDS = 0.03
BUDGET_PSS_MIB = 30.0
BUDGET_SERIES = 400


def quantile(values: list[float], q: float) -> float:
    """Nearest-rank quantile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def calls(page: Page, name: str) -> dict[str, float]:
    return {labels["call"]: value for labels, value in page.all(name)}


def measure(daemon: Daemon, seconds: float, header: str, path: Path) -> list[str]:
    """Scrapes once a second for `seconds`, writes the report. Gives the lines of the summary."""
    before = daemon.processes()
    page_before, begin = daemon.scrape(), time.monotonic()
    scheduled_before = {pid: p.scheduled_seconds() for pid, p in before.items()}
    scraper = Scraper(daemon.port)
    first, *_ = scraper.scrape()
    latencies, wire, plain = [], 0, 0
    for at in range(1, int(seconds) + 1):
        time.sleep(max(0.0, begin + at - time.monotonic()))
        took, wire, plain = scraper.scrape()
        latencies.append(took)
    scraper.close()
    after, elapsed = daemon.processes(), time.monotonic() - begin
    scheduled_after = {pid: p.scheduled_seconds() for pid, p in after.items()}
    # The same page format as at the beginning; the driver counters are those of the newest publication.
    page_after = daemon.scrape()
    pss = {pid: p.pss_bytes() for pid, p in after.items()}

    out = [header, "## Processes", ""]
    out += [f"{elapsed:.1f} s at default settings, scraped once a second (OpenMetrics, gzip). No GPU load, "
            "no other reader of NVML by this script.", ""]  # fmt: skip
    out += ["| process | pid | threads | CPU, % of a core (/proc/PID/stat) | (schedstat) | PSS, MiB |",
            "|---|---|---|---|---|---|"]  # fmt: skip
    cpu_total = scheduled_total = 0.0
    for pid, p in sorted(after.items()):
        cpu = (p.cpu_seconds - before[pid].cpu_seconds if pid in before else p.cpu_seconds) / elapsed * 100
        scheduled = None
        if (now := scheduled_after.get(pid)) is not None:
            scheduled = (now - (scheduled_before.get(pid) or 0.0)) / elapsed * 100
            scheduled_total += scheduled
        cpu_total += cpu
        shown = "-" if scheduled is None else f"{scheduled:.2f}"
        out.append(f"| {p.role()} | {pid} | {p.threads} | {cpu:.2f} | {shown} | {pss[pid] / 2**20:.1f} |")
    pss_total = sum(pss.values()) / 2**20
    out += [f"| all | | {sum(p.threads for p in after.values())} | {cpu_total:.2f} | {scheduled_total:.2f} | "
            f"{pss_total:.1f} |", ""]  # fmt: skip
    replaced = set(before) ^ set(after)
    if replaced:
        out += [f"Processes that came or went meanwhile: {sorted(replaced)}.", ""]

    counts = {k: v - calls(page_before, "gpu_exporter_driver_calls_total").get(k, 0.0)
              for k, v in calls(page_after, "gpu_exporter_driver_calls_total").items()}  # fmt: skip
    spent = {k: v - calls(page_before, "gpu_exporter_driver_call_seconds_total").get(k, 0.0)
             for k, v in calls(page_after, "gpu_exporter_driver_call_seconds_total").items()}  # fmt: skip
    # The pages are published each second: divide by the time between their newest fast samples.
    span = newest_sample(page_after) - newest_sample(page_before) or elapsed
    inside = sum(spent.values()) / span
    per_gpu: dict[str, int] = {}
    for _, labels in page_after.series:
        if gpu := dict(labels).get("gpu"):
            per_gpu[gpu] = per_gpu.get(gpu, 0) + 1
    most = max(per_gpu.values(), default=0)
    cpu_shown = max(cpu_total, scheduled_total)
    rows = [
        ("CPU, % of a core (the larger of both sources)", f"{cpu_shown:.2f}", f"{BUDGET_CPU_PERCENT:g}",
         cpu_shown <= BUDGET_CPU_PERCENT),
        ("wall seconds inside driver calls, per second", f"{inside:.4f}", f"{BUDGET_DRIVER_SECONDS:g}",
         inside <= BUDGET_DRIVER_SECONDS),
        ("memory (PSS of all processes), MiB", f"{pss_total:.1f}", f"{BUDGET_PSS_MIB:g}",
         pss_total <= BUDGET_PSS_MIB),
        ("series of the GPU that has most", f"{most}", f"{BUDGET_SERIES}", most <= BUDGET_SERIES),
    ]  # fmt: skip
    out += ["## Budget (set for eight GPUs)", "", f"GPUs here: {len(per_gpu)}.", "",
            "| figure | measured | budget | |", "|---|---|---|---|"]  # fmt: skip
    out += [f"| {what} | {got} | {most_allowed} | {'kept' if kept else '**EXCEEDED**'} |"
            for what, got, most_allowed, kept in rows]  # fmt: skip
    ms = [v * 1e3 for v in latencies]
    out += ["", "## Scrapes", "",
            f"{len(ms)} scrapes on one open connection, gzip OpenMetrics, until the last byte: "
            f"p50 {quantile(ms, 0.5):.3f} ms, p99 {quantile(ms, 0.99):.3f} ms, max {max(ms):.3f} ms. "
            f"The first scrape ({first * 1e3:.3f} ms, it opens the connection and makes the format known) is "
            f"not among them. {plain} bytes, {wire} on the wire. "
            f"{len(page_after.series)} series in text format 0.0.4 (buckets counted), "
            f"{len(page_after.series) - sum(per_gpu.values())} of them of the node.", "",
            "## Driver calls", "",
            f"Over {span:.1f} s, all GPUs together, from `gpu_exporter_driver_calls_total` and "
            "`gpu_exporter_driver_call_seconds_total`.", "",
            "| call | per second | mean, us | share of the time |", "|---|---|---|---|"]  # fmt: skip
    whole = sum(spent.values()) or 1.0
    for call in sorted(counts, key=lambda c: -spent.get(c, 0.0)):
        if counts[call]:
            out.append(f"| {call} | {counts[call] / span:.2f} | {spent[call] / counts[call] * 1e6:.1f} | "
                       f"{spent[call] / whole * 100:.1f} % |")  # fmt: skip
    path.write_text("\n".join(out) + "\n")
    return [f"cost: {what}: {got} (budget {allowed}{'' if kept else ', EXCEEDED'})" for what, got, allowed, kept in rows] + [
        f"cost: scrape p50 {quantile(ms, 0.5):.2f} ms, p99 {quantile(ms, 0.99):.2f} ms, max {max(ms):.2f} ms; "
        f"{len(page_after.series)} series"]  # fmt: skip



def newest_sample(page: Page) -> float:
    return max((v for _, v in page.all("gpu_exporter_sample_timestamp_seconds")), default=0.0)
