"""Bursts: work of 20 ms after a long pause must show in the power samples, though no gauge sees it."""

from __future__ import annotations

import statistics
import time

from proofs.common import Env, Follower, Gpu, Report, show

SECONDS = 330
WATTS_ABOVE_IDLE = 30.0
SEEN_WITHIN = 8.0


def buckets(gpu: Gpu, page) -> list[tuple[float, float]]:
    """Bounds of the power histogram with their cumulative counts."""
    found = [(float(labels["le"]), count) for labels, count in gpu.all(page, "gpu_power_sample_watts_bucket")]
    if not found:
        raise RuntimeError("gpu_power_sample_watts is not in /metrics")
    return sorted(found)


def above(gpu: Gpu, page, bound: float) -> float:
    """Samples above a bound of the histogram."""
    found = buckets(gpu, page)
    return found[-1][1] - dict(found)[bound]


def run(env: Env, report: Report) -> None:
    gpu = env.gpu()
    idle_seconds, milliseconds = env.options.burst_idle, env.options.burst_ms
    with env.daemon("burst") as daemon, env.load("burst", gpu, "--milliseconds", str(milliseconds)) as load:
        # Making the load drew power: its peak must leave the last 60 s before the first burst.
        time.sleep(env.options.burst_settle)
        page = daemon.scrape()
        idle = gpu.need(page, "gpu_power_watts")
        bounds = [le for le, _ in buckets(gpu, page)]
        bound = min(le for le in bounds if le >= idle + WATTS_ABOVE_IDLE)
        report.info("idle, watts", idle, text=f"with the load's context; counted are samples above {show(bound)} W")
        report.data |= {"idle_watts": idle, "bound": bound, "bounds": bounds[:-1], "bursts": []}
        for at in range(env.options.bursts):
            with report.part(f"burst {at + 1}"):
                if at:
                    time.sleep(idle_seconds)
                before = daemon.scrape()
                had, peak_before = above(gpu, before, bound), gpu.get(before, "gpu_power_peak_watts")
                with Follower(daemon, gpu, 1.0) as follower:
                    sent = time.monotonic()
                    load.send("go")
                    burst = load.wait("burst", 15, at + 1)
                    gained, seen_after = 0.0, None
                    while time.monotonic() < sent + SEEN_WITHIN:
                        after = daemon.scrape()
                        gained = above(gpu, after, bound) - had
                        if gained > 0:
                            seen_after = time.monotonic() - sent
                            break
                        time.sleep(0.2)
                    time.sleep(2.5)  # what the gauges read once a second
                peak = gpu.get(daemon.scrape(), "gpu_power_peak_watts")
                pages = [p for _, p in follower.pages]

                def most(name: str) -> float | None:
                    return max((v for p in pages if (v := gpu.get(p, name)) is not None), default=None)

                one = {
                    "milliseconds": burst["busy"] * 1e3, "samples_above": gained, "seen_after_seconds": seen_after,
                    "peak_before": peak_before, "peak": peak, "power_watts": most("gpu_power_watts"),
                    "power_instant_watts": most("gpu_power_instant_watts"),
                    "utilization_ratio": most("gpu_utilization_ratio"),
                    "utilization_peak_ratio": most("gpu_utilization_peak_ratio"),
                }  # fmt: skip
                report.data["bursts"].append(one)
                gauges = (f"{one['milliseconds']:.1f} ms; gauges scraped once a second saw at most "
                          f"{show(one['power_watts'])} W average, {show(one['power_instant_watts'])} W instant, "
                          f"utilization {show(one['utilization_ratio'])}")  # fmt: skip
                report.judge(f"burst {at + 1}: power samples above {show(bound)} W", gained > 0, gained, "1 or more",
                             gauges + (f"; seen after {seen_after:.1f} s" if seen_after else ""))  # fmt: skip
                # The peak is that of the last 60 s: it rises with the first burst and must stay up for the next.
                rose = peak is not None and peak > idle + WATTS_ABOVE_IDLE
                if at == 0 and rose and peak_before is not None and env.options.burst_settle >= 62:
                    rose = peak > peak_before
                report.judge(f"burst {at + 1}: gpu_power_peak_watts", rose, peak, f"above {idle + WATTS_ABOVE_IDLE:.0f}",
                             f"before the burst {show(peak_before)}")  # fmt: skip
        done = report.data["bursts"]
        if done:
            lengths = [b["milliseconds"] for b in done]
            report.judge("length of the bursts, ms", all(abs(x - milliseconds) <= 2 for x in lengths),
                         statistics.median(lengths), milliseconds, f"from {min(lengths):.2f} to {max(lengths):.2f}")  # fmt: skip
