"""GPM: activity of the units beside what loads of known work must cause.

The expectation is counted, not assumed: work done within each window of the slow tier over what the unit
could have done in that window at the clock it really had.

- fp32: FMA instructions over multiprocessors x 128 lanes x cycles; cycles from `clock64` and `%globaltimer`
  that the kernel reads itself.
- tensor: operations of bfloat16 products over multiprocessors x 4096 operations a cycle (dense; H100 and H200:
  989.4 TFLOP/s at 132 multiprocessors and 1830 MHz); cycles from stamps between the products.
- dram: bytes read plus bytes written over 2 x memory clock x bus width.
"""

from __future__ import annotations

import time

from proofs.common import Clock, Env, Follower, Gpu, Load, Missing, Report, Skip, mean

SECONDS = 240
LANES = 128  # FP32 lanes of a multiprocessor, compute capability 9.0
BF16_FLOP_PER_CYCLE = 4096  # dense, of a multiprocessor, compute capability 9.0
TOLERANCE = 0.03
SETTLED = 2.0  # seconds after a change of load that no judged window may hold
UNITS = ["graphics", "sm", "sm_occupancy", "tensor", "tensor_hmma", "tensor_dfma", "tensor_imma", "dram", "fp64",
         "fp32", "fp16", "integer"]  # fmt: skip


class Windows:
    """Windows of the slow tier that lie within a steady load."""

    def __init__(self, follower: Follower, begin: float, end: float) -> None:
        visits = follower.visits("slow")
        self.found = [(a, b, page_a, page_b) for (a, page_a), (b, page_b) in zip(visits, visits[1:])
                      if a >= begin + SETTLED and b <= end]  # fmt: skip
        self.summary = f"{len(visits)} visits, {len(follower.failures)} failed scrapes"
        if follower.failures:
            self.summary += f" ({follower.failures[-1]})"

    def need(self) -> None:
        if len(self.found) < 2:
            raise RuntimeError(f"only {len(self.found)} whole windows in the load: {self.summary}")


def run(env: Env, report: Report) -> None:
    gpu = env.gpu()
    n, handle = env.nvml(), env.handle(gpu)
    sms = n.nvmlDeviceGetNumGpuCores(handle) / LANES
    capability = tuple(n.nvmlDeviceGetCudaComputeCapability(handle))
    bus = n.nvmlDeviceGetMemoryBusWidth(handle) / 8
    report.data |= {"gpu": gpu.index, "sms": sms, "bus_bytes": bus, "capability": list(capability), "loads": {}}
    report.info("multiprocessors, compute capability", f"{sms:g}, {capability[0]}.{capability[1]}")
    if capability != (9, 0):
        raise Skip("the peaks are those of compute capability 9.0")
    hold = env.options.hold
    with env.daemon("gpm", {"SAMPLER__SLOW_INTERVAL": "5s"}) as daemon:
        page = daemon.scrape()
        report.info("gpu_gpm_enabled", gpu.get(page, "gpu_gpm_enabled"))
        for kind in ("idle", "fma", "tensor", "copy"):
            with report.part(f"{kind}: as a whole"):
                with Follower(daemon, gpu) as follower, Clock(env, gpu) as clock:
                    begin = time.time()
                    if kind == "idle":
                        time.sleep(hold)
                        judge(report, gpu, "idle", Windows(follower, begin, time.time()), None, clock, sms, bus)
                        continue
                    with env.load(kind, gpu, "--seconds", str(hold)) as load:
                        begin = load.wait("ready", 1)["unix"]
                        load.wait("end", hold + 60)
                        ticks = load.ticks()
                        end = ticks[-2]["unix"] if len(ticks) > 2 else time.time()
                        time.sleep(1.5)  # until the page shows the last visit in the load
                        judge(report, gpu, kind, Windows(follower, begin, end), load, clock, sms, bus)


def judge(report: Report, gpu: Gpu, kind: str, windows: Windows, load: Load | None, clock: Clock, sms: float,
          bus: float) -> None:  # fmt: skip
    windows.need()
    rows = []
    for begin, end, page_before, page in windows.found:
        row: dict[str, float | None] = {"begin": begin, "end": end, "seconds": end - begin}
        row["nvml_sm_hertz"], row["nvml_memory_hertz"] = clock.mean(begin, end), clock.mean(begin, end, True)
        for unit in UNITS:
            row[unit] = gpu.get(page, "gpu_gpm_active_ratio", unit=unit)
            total = [gpu.get(p, "gpu_gpm_active_seconds_total", unit=unit) for p in (page_before, page)]
            row[f"{unit}_by_counter"] = None if None in total else (total[1] - total[0]) / (end - begin)
        for pipe in ("fp32", "tensor_hmma"):
            row[f"flops_{pipe}"] = gpu.get(page, "gpu_flops_estimate", pipe=pipe)
        if load is not None:
            a, b = load.done_at(begin), load.done_at(end)
            if a is None or b is None:
                continue
            row["rate"] = (b - a) / (end - begin)
            hertz = mean(load.between(begin, end, "hertz"))
            row["hertz"] = hertz if hertz == hertz else row["nvml_sm_hertz"]
            busy = load.between(begin, end, "busy")
            row["duty"] = min(1.0, mean(busy) * len(busy) / (end - begin)) if busy else None
            if kind == "fma":
                row["want_fp32"] = row["rate"] / 2 / (sms * LANES * row["hertz"])
                # One piece more or less lies in a window: the duty is known to a piece, the work to a tick.
                row["want_sm"] = 1.0
            elif kind == "tensor":
                row["want_tensor"] = row["rate"] / (sms * BF16_FLOP_PER_CYCLE * row["hertz"])
            elif kind == "copy":
                row["want_dram"] = 2 * row["rate"] / (2 * row["nvml_memory_hertz"] * bus)
        else:
            row |= {"want_sm": 0.0, "want_fp32": 0.0, "want_tensor": 0.0, "want_dram": 0.0}
        rows.append(row)
    report.data["loads"][kind] = rows
    if not rows:
        raise RuntimeError("no window could be matched with the load's ticks")
    report.info(f"{kind}: windows", f"{len(rows)} of {mean([r['seconds'] for r in rows]):.2f} s")

    def over(name: str) -> list[float]:
        return [r[name] for r in rows if r.get(name) is not None]

    for unit in ("sm", "fp32", "tensor", "dram"):
        if not over(f"want_{unit}"):
            continue
        with report.part(f"{kind}: {unit}"):
            if not over(unit):
                raise Missing(f'gpu_gpm_active_ratio{{unit="{unit}"}} is not in /metrics')
            report.near(f"{kind}: {unit}, mean of windows", mean(over(unit)), mean(over(f"want_{unit}")), TOLERANCE)
            worst = max(rows, key=lambda r: abs((r[unit] if r[unit] is not None else 9) - r[f"want_{unit}"]))
            if worst[unit] is None:
                report.fail(f"{kind}: {unit}, worst window", "absent in a window")
            else:
                report.near(f"{kind}: {unit}, worst window", worst[unit], worst[f"want_{unit}"], TOLERANCE)
            if over(f"{unit}_by_counter"):
                report.near(f"{kind}: {unit}, by gpu_gpm_active_seconds_total", mean(over(f"{unit}_by_counter")),
                            mean(over(f"want_{unit}")), TOLERANCE)  # fmt: skip
            else:
                raise Missing(f'gpu_gpm_active_seconds_total{{unit="{unit}"}} is not in /metrics')
    others = [u for u in UNITS if not over(f"want_{u}") and over(u)]
    report.info(f"{kind}: other units", ", ".join(f"{u} {mean(over(u)):.3f}" for u in others))
    if load is None:
        return
    clocks = f"by stamps {mean(over('hertz')) / 1e6:.1f}, by NVML {mean(over('nvml_sm_hertz')) / 1e6:.1f}"
    report.info(f"{kind}: clock, MHz", clocks, text=f"memory {mean(over('nvml_memory_hertz')) / 1e6:.0f}")
    if kind == "copy":
        report.info("copy: bytes copied a second", mean(over("rate")))
        return
    pipe = "fp32" if kind == "fma" else "tensor_hmma"
    report.info(f"{kind}: operations a second, counted", mean(over("rate")))
    if over(f"flops_{pipe}"):
        ratios = [r[f"flops_{pipe}"] / r["rate"] for r in rows if r.get(f"flops_{pipe}") is not None]
        report.info(f'{kind}: gpu_flops_estimate{{pipe="{pipe}"}} over counted', mean(ratios),
                    text=f"from {min(ratios):.4f} to {max(ratios):.4f}")  # fmt: skip
    else:
        report.fail(f"{kind}: gpu_flops_estimate", f'gpu_flops_estimate{{pipe="{pipe}"}} is not in /metrics')
    if over("duty"):
        report.info(f"{kind}: share of the time in kernels", mean(over("duty")))
