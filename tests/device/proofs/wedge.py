"""Work that comes to a halt: a kernel of one block that polls host memory after real work is wedged, processes that do
nothing after work are stalled. The same kernel without work before and copies without end are neither."""

from __future__ import annotations

import time

from daemon import Daemon
from proofs.common import Env, Gpu, Load, Report

SECONDS = 440
HALTS = {"wedged", "stalled"}
WEDGED_AFTER = 60  # owners.wedged_after by default
# Beside the time that is set: two GPM windows of 10 s that are begun, and 10 s until a new cause is published; some more.
LATER = 45
# Up to 40 s of evidence, and 10 s until another cause is published.
EVIDENCE = 55
UNITS = ["sm", "tensor", "fp64", "fp32", "fp16", "dram"]


def cause(daemon: Daemon, gpu: Gpu) -> str | None:
    """The cause that is published of the one owner on the GPU."""
    now = [labels["cause"] for labels, value in gpu.all(daemon.scrape(), "gpu_bottleneck") if value == 1]
    return now[0] if len(now) == 1 else None


def until(daemon: Daemon, gpu: Gpu, wanted: str, seconds: float, seen: list[str | None]) -> float | None:
    """Seconds until the cause is published; none if it was not. Adds each cause on the way to `seen`."""
    begin = time.monotonic()
    while time.monotonic() < begin + seconds:
        now = cause(daemon, gpu)
        if not seen or seen[-1] != now:
            seen.append(now)
        if now == wanted:
            return time.monotonic() - begin
        time.sleep(0.5)
    return None


def figures(daemon: Daemon, gpu: Gpu) -> str:
    page = daemon.scrape()
    units = ", ".join(f"{unit} {gpu.get(page, 'gpu_gpm_active_ratio', unit=unit)}" for unit in UNITS)
    return f"utilization {gpu.get(page, 'gpu_utilization_ratio')}, {units}, {gpu.get(page, 'gpu_power_watts')} W"


def order(load: Load, line: str) -> None:
    """Has the load do this."""
    load.send(line)
    load.wait(line, 60)


def claim(daemon: Daemon, gpu: Gpu, load: Load, report: Report, line: str, wanted: str, least: float) -> float:
    """What the load does must get this cause, no sooner than it may. Gives the seconds it took."""
    order(load, line)
    seen: list[str | None] = []
    took = until(daemon, gpu, wanted, least + LATER, seen)
    name = f"{line} after work: {wanted}"
    report.judge(name, took is not None and took >= least - 10, took, f"{least:.0f} to {least + LATER:.0f} s",
                 f"causes {seen}; {figures(daemon, gpu)}")  # fmt: skip
    return took if took is not None else least + LATER


def none(daemon: Daemon, gpu: Gpu, load: Load, report: Report, line: str, name: str, seconds: float) -> None:
    """What the load does must have neither cause once the evidence of what was before is over."""
    order(load, line)
    time.sleep(EVIDENCE)
    seen: list[str | None] = []
    end = time.monotonic() + seconds - EVIDENCE
    while time.monotonic() < end:
        now = cause(daemon, gpu)
        if not seen or seen[-1] != now:
            seen.append(now)
        time.sleep(0.5)
    report.judge(name, bool(seen) and not HALTS & set(seen), str(seen), f"neither within {seconds:.0f} s",
                 figures(daemon, gpu))  # fmt: skip


def run(env: Env, report: Report) -> None:
    gpu, options = env.gpu(), env.options
    # The evidence need not be served.
    settings = {"METRICS__GROUPS": "", "CANARY__MODE": "off", "OWNERS__STALLED_AFTER": f"{options.wedge_rest}s"}
    with env.daemon("wedge", settings) as daemon:
        with env.load("halt", gpu, "--seconds", str(options.wedge_work)) as load:
            load.wait("end", options.wedge_work + 60)
            took = claim(daemon, gpu, load, report, "spin", "wedged", WEDGED_AFTER)
            report.data["wedged_after_seconds"] = took
            none(daemon, gpu, load, report, "copy", "copies without end, after work", max(70.0, took + 5))
            report.data["stalled_after_seconds"] = claim(
                daemon, gpu, load, report, "rest", "stalled", options.wedge_rest
            )
        with env.load("halt", gpu, "--seconds", "0") as load:
            none(daemon, gpu, load, report, "spin", "the same kernel without work before", took + 10)
        left = [p for p in env.nvml().nvmlDeviceGetComputeRunningProcesses(env.handle(gpu))]
        report.judge("processes left on the GPU", not left, len(left), 0)
