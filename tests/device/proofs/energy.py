"""Energy: the driver's counter beside the driver's power samples added up, over a load of bursts."""

from __future__ import annotations

import bisect
import time

from proofs.common import Env, Follower, Report

SECONDS = 240
TOLERANCE = 0.02
QUIET = 12.0  # seconds before and after the load, so that a moment's shift of the ends weighs little


def interpolate(points: list[tuple[float, float]], at: float) -> float:
    """The value at that time on the line through the points."""
    times = [t for t, _ in points]
    right = min(max(bisect.bisect_left(times, at), 1), len(points) - 1)
    (t0, v0), (t1, v1) = points[right - 1], points[right]
    return v0 + (v1 - v0) * (at - t0) / max(1e-9, t1 - t0)


def run(env: Env, report: Report) -> None:
    gpu = env.gpu()
    length = env.options.energy_seconds
    settings = {"SAMPLER__SLOW_INTERVAL": "5s", "SAMPLER__RARE_INTERVAL": "5s"}
    with env.daemon("energy", settings) as daemon, Follower(daemon, gpu, 0.2) as follower:
        time.sleep(QUIET)
        with env.load("mixed", gpu, "--seconds", str(length)) as load:
            load_began = time.time()
            load.wait("end", length + 60)
        load_ended = time.time()
        time.sleep(QUIET)
    exact, sampled, gaps = [], [], []
    # Pages in order; each reading once, with when it was taken.
    for at, page in follower.visits("rare"):
        joules = gpu.get(page, "gpu_energy_joules_total")
        if joules is not None:
            exact.append((at, joules))
    for at, page in follower.visits("normal"):
        joules = gpu.get(page, "gpu_energy_sampled_joules_total")
        gap = gpu.get(page, "gpu_exporter_sample_gap_seconds_total", buffer="power")
        if joules is not None and (not sampled or joules > sampled[-1][1]):
            # Drained every few visits: only the visit that brought samples tells how far they reach.
            sampled.append((at, joules))
        if gap is not None:
            gaps.append((at, gap))
    report.data |= {"exact": exact, "sampled": sampled, "gaps": gaps, "load": [load_began, load_ended]}
    if len(exact) < 2:
        raise RuntimeError(f"gpu_energy_joules_total was read {len(exact)} times; {follower.failures[-1:]}")
    if len(sampled) < 2:
        raise RuntimeError(f"gpu_energy_sampled_joules_total grew {len(sampled)} times; {follower.failures[-1:]}")
    inside = [(t, v) for t, v in exact if sampled[0][0] <= t <= sampled[-1][0]]
    if len(inside) < 2:
        raise RuntimeError("the two counters were not read in the same time")
    (begin, first), (end, last) = inside[0], inside[-1]
    counted = last - first
    if counted <= 0:
        raise RuntimeError(f"gpu_energy_joules_total stood still for {end - begin:.0f} s")
    added = interpolate(sampled, end) - interpolate(sampled, begin)
    report.judge("seconds compared", end - begin >= min(length, 120) - 10, end - begin, f"{min(length, 120):g} or so")
    report.near("gpu_energy_sampled_joules_total beside gpu_energy_joules_total, growth", added, counted,
                relative=TOLERANCE, text=f"ratio {added / counted:.5f}, mean {counted / (end - begin):.1f} W")  # fmt: skip
    pieces = []
    for (t0, v0), (t1, v1) in zip(inside, inside[1:]):
        if v1 > v0:
            pieces.append((interpolate(sampled, t1) - interpolate(sampled, t0)) / (v1 - v0))
    report.info("the same from one rare visit to the next", f"{min(pieces):.3f} to {max(pieces):.3f}",
                text="the ends of so short a time are not known well")  # fmt: skip
    if gaps:
        lost = gaps[-1][1] - gaps[0][1]
        report.info("seconds in gaps of the power samples", lost, text="of which the sum knows nothing")
