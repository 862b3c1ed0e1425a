"""Cost: CPU, memory, driver time and series of the exporter at its defaults, and what others notice of it."""

from __future__ import annotations

import time

import cost
from proofs.common import Env, Gpu, Report

SECONDS = 480
MOST_P99_SECONDS = 0.001


def cheap_calls(env: Env, gpu: Gpu, seconds: float) -> list[float]:
    """Seconds that temperature and memory information took together, asked for every 5 ms."""
    n, handle = env.nvml(), env.handle(gpu)
    took, end = [], time.monotonic() + seconds
    while (begin := time.monotonic()) < end:
        at = time.perf_counter()
        n.nvmlDeviceGetTemperature(handle, 0)
        n.nvmlDeviceGetMemoryInfo(handle)
        took.append(time.perf_counter() - at)
        time.sleep(max(0.0, begin + 0.005 - time.monotonic()))
    return took


def tell(report: Report, title: str, took: list[float], judged: bool) -> None:
    p50, p99 = cost.quantile(took, 0.5), cost.quantile(took, 0.99)
    late = sum(t > MOST_P99_SECONDS for t in took) / len(took)
    text = f"p50 {p50 * 1e6:.0f} us, max {max(took) * 1e3:.2f} ms, {late * 100:.2f} % above 1 ms, {len(took)} times"
    report.data[title] = {"p50": p50, "p99": p99, "max": max(took), "share_above_1ms": late, "count": len(took)}
    if judged:
        report.at_most(f"{title}: p99, seconds", p99, MOST_P99_SECONDS, text)
    else:
        report.info(f"{title}: p99, seconds", p99, text=text)


def tell_cost(report: Report, title: str, taken: cost.Taken) -> None:
    for what, got, allowed, kept in taken.budget():
        report.judge(f"{title}: {what}", kept, got, f"at most {allowed:g}")
    for tier, seconds in sorted(taken.tiers.items(), key=lambda x: -x[1]):
        report.info(f"{title}: seconds in driver calls a second, tier {tier}", seconds)
    if not taken.tiers:
        report.fail(f"{title}: gpu_exporter_driver_call_seconds_total by tier", "is not in /metrics")
    for process in taken.processes:
        report.info(f"{title}: process {process.role}", f"{process.cpu:.2f} % of a core, {process.pss / 2**20:.1f} MiB",
                    text=f"{process.threads} threads")  # fmt: skip
    report.info(f"{title}: series of each GPU", ", ".join(f"{g}: {c}" for g, c in sorted(taken.per_gpu.items())),
                text=f"{taken.series} on the whole page")  # fmt: skip
    ms = [t * 1e3 for t in taken.latencies]
    report.info(f"{title}: scrape, ms", f"p50 {cost.quantile(ms, 0.5):.2f}, p99 {cost.quantile(ms, 0.99):.2f}",
                text=f"max {max(ms):.2f}, {taken.plain} bytes, {taken.wire} on the wire")  # fmt: skip
    report.data[title] = taken.document()


def run(env: Env, report: Report) -> None:
    gpu, options = env.gpu(), env.options
    with report.part("cheap calls without the exporter"):
        tell(report, "cheap calls without the exporter", cheap_calls(env, gpu, options.latency_seconds), False)
    with env.daemon("cost") as daemon:
        with report.part("idle"):
            time.sleep(10)  # the start's own work is over
            taken = cost.take(daemon, options.cost_seconds)
            tell_cost(report, "idle", taken)
            (env.out / "cost-idle.md").write_text(taken.report("# What the exporter costs, GPUs idle\n", "No GPU load."))
        with report.part("cheap calls beside the exporter"):
            tell(report, "cheap calls beside the exporter", cheap_calls(env, gpu, options.latency_seconds), True)
        with report.part("under load"), env.load("fma", gpu, "--seconds", str(options.load_seconds + 60)):
            time.sleep(5)
            taken = cost.take(daemon, options.load_seconds)
            tell_cost(report, "under load", taken)
            (env.out / "cost-load.md").write_text(
                taken.report("# What the exporter costs, one GPU busy\n", f"FP32 work on GPU {gpu.index}."))
