"""PCIe: a known number of bytes each way beside the bytes that GPM's rates add up to."""

from __future__ import annotations

import time

from proofs.common import Env, Report, mean, wait_visits

SECONDS = 300
TOLERANCE = 0.02


def run(env: Env, report: Report) -> None:
    gpu = env.gpu()
    length, repeats = env.options.pcie_seconds / env.options.pcie_repeats, env.options.pcie_repeats
    with env.daemon("pcie", {"SAMPLER__SLOW_INTERVAL": "5s"}) as daemon:
        name = "gpu_gpm_pcie_bytes_total"
        for kind, direction, other in (("h2d", "rx", "tx"), ("d2h", "tx", "rx")):
            with report.part(f"{kind}"):
                ratios, back, rates = [], [], []
                for _ in range(repeats):
                    # One window that lies in quiet on either side: no copy is cut by a reading.
                    before = wait_visits(daemon, gpu, "slow", time.time(), 1, 30)
                    with env.load(kind, gpu, "--seconds", str(length)) as load:
                        end = load.wait("end", length + 60)
                        copied = end["done"] + load.wait("warm_up", 1)["done"]
                    after = wait_visits(daemon, gpu, "slow", time.time(), 2, 30)
                    rates.append(end["done"] / (end["mono"] - end["begin"]["mono"]))
                    for way, into in ((direction, ratios), (other, back)):
                        grown = gpu.need(after, name, direction=way) - gpu.need(before, name, direction=way)
                        into.append(grown / copied)
                spread = (max(ratios) - min(ratios)) / mean(ratios)
                report.data[kind] = {"ratios": ratios, "back": back, "rates": rates}
                factor = mean(ratios)
                report.info(f"{kind}: bytes a second", mean(rates), text=f"{repeats} x {length:g} s")
                text = ", ".join(f"{r:.4f}" for r in ratios)
                if abs(factor - 1) <= TOLERANCE:
                    report.near(f"{kind}: {name}{{{direction}}} over bytes copied", factor, 1.0, TOLERANCE, text=text)
                else:
                    report.judge(f"{kind}: {name}{{{direction}}} over bytes copied", spread <= TOLERANCE, factor,
                                 "1 or a constant factor", f"{text}: a factor, spread as below")  # fmt: skip
                report.at_most(f"{kind}: spread of the {repeats} ratios", spread, TOLERANCE)
                report.info(f"{kind}: {name}{{{other}}}, the way back, over bytes copied", mean(back))
