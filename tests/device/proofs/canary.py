"""The canary on real GPUs: its rates beside what the hardware can do, its spread, its costs, and that it yields.

What cannot be provoked on a shared GPU (capped clocks, bad multiprocessors, narrowed links, hangs) is provoked
in the simulator.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from proofs.common import HERE, Env, Gpu, Report, Skip, mean

SECONDS = 560
PERIODIC = ["init", "sm_rate", "tensor", "sm_sdc", "hbm_read", "hbm_walk", "l2", "pcie", "launch"]
ON_DEMAND = ["overlap", "transform"]
LEAST = {"sm_rate": 0.98, "tensor": 0.80, "hbm_read": 0.88}  # share of the roofline
GPU_SECONDS, WALL_SECONDS = 0.060, 1.5


class Canary:
    """The command, with a lock file of its own so that GPUs can be proven side by side."""

    def __init__(self, env: Env, gpu: Gpu, settings: dict[str, str] | None = None) -> None:
        self.env, self.gpu = env, gpu
        folder = env.folder / f"canary-{gpu.index}"
        folder.mkdir(exist_ok=True)
        prefix = "GPU_NODE_EXPORTER__CANARY__"
        own = {"LOCK_FILE": str(folder / "lock")}
        self.variables = os.environ | {prefix + k: v for k, v in (own | (settings or {})).items()}
        self.state = folder / "state"

    def run(self, *arguments: str, checks: list[str] = (), repeat: int = 1) -> tuple[int, list[dict], float]:
        """Exit status, what was reported of each run, wall seconds. Each run is a process of its own; several are asked
        for at once, because a command by itself stays away while the GPU's utilization still shows the one before."""
        self.settle()
        command = [str(self.env.binary), "canary", "--state-dir", str(self.state), "--gpu", self.gpu.uuid,
                   "--format", "json", "--repeat", str(repeat), *arguments]  # fmt: skip
        for check in checks:
            command += ["--check", check]
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, timeout=120 + 5 * repeat, env=self.variables)
        wall = time.monotonic() - began
        try:
            return done.returncode, json.loads(done.stdout)["runs"], wall
        except (ValueError, KeyError) as problem:
            raise RuntimeError(f"{problem}; status {done.returncode}: {done.stdout[-400:]} {done.stderr[-800:]}") from None

    def settle(self) -> None:
        """Until NVML tells no utilization any more, if that comes soon."""
        end = time.monotonic() + 5
        nvml = self.env.nvml()
        while nvml.nvmlDeviceGetUtilizationRates(self.env.handle(self.gpu)).gpu > 0 and time.monotonic() < end:
            time.sleep(0.05)


def judged(run: dict, check: str) -> dict:
    found = [j for j in run["outcome"]["checks"] if j["check"] == check]
    if not found:
        raise RuntimeError(f"{check} was not judged: {run['outcome']['end']}: {run['outcome']['text']}")
    return found[0]


def measured(run: dict, check: str) -> dict:
    found = [m for m in (run["run"] or {"measured": []})["measured"] if m["check"] == check]
    if not found:
        raise RuntimeError(f"{check} was not measured: {run['outcome']['end']}: {run['outcome']['text']}")
    return found[0]


def kept_away(run: dict) -> bool:
    """No verdict: NVML's utilization showed other work (or the run before), and the canary did not run."""
    return run["outcome"]["skip"] is not None


def ratio(one: dict, against: str) -> float | None:
    return next((value for name, value in one["ratios"] if name == against), None)


def run(env: Env, report: Report) -> None:
    gpu = env.gpu()
    with report.part("suite"):
        suite(env, gpu, report)
    with report.part("on demand"):
        on_demand(env, gpu, report)
    with report.part("spread"):
        spread(env, gpu, report)
    with report.part("memory"):
        memory(env, gpu, report)
    with report.part("pcie"):
        pcie(env, gpu, report)
    with report.part("neighbour"):
        neighbour(env, gpu, report)
    with report.part("job"):
        job(env, gpu, report)
    with report.part("many"):
        many(env, report)


def suite(env: Env, gpu: Gpu, report: Report) -> None:
    """The periodic suite, once."""
    status, runs, wall = Canary(env, gpu).run(checks=PERIODIC)
    one = runs[0]
    report.data["suite"] = one
    report.judge("suite: exit status", status == 0, status, 0, one["outcome"]["text"])
    for check in PERIODIC:
        result = judged(one, check)
        report.judge(f"suite: {check}", result["verdict"] == "ok", result["verdict"], "ok", result["text"])
    for check, least in LEAST.items():
        share = ratio(judged(one, check), "roofline")
        report.judge(f"suite: {check}, share of the roofline", share is not None and share >= least, share,
                     f"at least {least}")  # fmt: skip
    covered = measured(one, "sm_sdc")["found"]["covered"]
    sms = one["run"]["device"]["multiprocessors"]
    report.judge("suite: multiprocessors that sm_sdc ran on", len(set(covered)) == sms, len(set(covered)), sms)
    report.at_most("suite: GPU seconds", one["run"]["gpu_seconds"], GPU_SECONDS)
    report.at_most("suite: seconds from begin to end of the run", one["run"]["ended"] - one["run"]["began"], WALL_SECONDS)
    report.info("suite: wall seconds of the command", wall)
    report.info("suite: steps, ms", ", ".join(f"{step} {seconds * 1e3:.1f}" for step, seconds in one["run"]["steps"]))
    report.info("suite: GPU ms of checks",
                ", ".join(f"{m['check']} {m['gpu_seconds'] * 1e3:.2f}" for m in one["run"]["measured"]))  # fmt: skip
    clock = judged(one, "sm_rate")["sm_clock_hertz"]
    report.near("suite: clock measured beside NVML's, Hz", clock, measured(one, "sm_rate")["around"]["sm_clock_hertz"],
                relative=0.002)  # fmt: skip


def on_demand(env: Env, gpu: Gpu, report: Report) -> None:
    """What runs on demand alone."""
    checks = ON_DEMAND + (["p2p"] if len(env.gpus()) > 1 else [])
    status, runs, _ = Canary(env, gpu).run(checks=checks)
    report.data["on_demand"] = runs[0]
    for check in checks:
        result = judged(runs[0], check)
        report.judge(f"on demand: {check}", result["verdict"] == "ok", result["verdict"], "ok", result["text"])
    report.judge("on demand: exit status", status == 0, status, 0)


def spread(env: Env, gpu: Gpu, report: Report) -> None:
    """`sm_rate` in so many processes, one after another."""
    number = env.options.canary_processes
    canary, work, clocks, off = Canary(env, gpu), [], [], []
    for one in canary.run(checks=["sm_rate"], repeat=number)[1]:
        result = judged(one, "sm_rate")
        work.append(result["rate"]["value"])
        clocks.append(result["sm_clock_hertz"])
        nvml = measured(one, "sm_rate")["around"]["sm_clock_hertz"]
        off.append(abs(result["sm_clock_hertz"] / nvml - 1) if nvml else float("nan"))
    report.data["spread"] = {"work_per_cycle": work, "clock_hertz": clocks}
    middle = statistics.median(work)
    report.at_most(f"spread of work per cycle over {number} processes: (max - min) / median", (max(work) - min(work)) / middle,
                   0.0005, f"median {middle:.4f}, sd / median {statistics.pstdev(work) / middle:.2e}")  # fmt: skip
    report.info("spread of the clock: sd / median", statistics.pstdev(clocks) / statistics.median(clocks))
    report.at_most("clock beside NVML's, largest difference", max(off), 0.002)


def memory(env: Env, gpu: Gpu, report: Report) -> None:
    """`hbm_read` at the default size and at 1 GiB, repeated."""
    for name, settings, least in (("default", {}, 0.88), ("1 GiB", {"MEMORY_MIB": "1024"}, 0.92)):
        canary, shares, away = Canary(env, gpu, settings), [], set()
        for one in canary.run(checks=["hbm_read"], repeat=10)[1]:
            if kept_away(one):
                away.add(f"{one['outcome']['skip']}: {one['outcome']['text']}")
                continue
            share = ratio(judged(one, "hbm_read"), "roofline")
            shares.append(share if share is not None else float("nan"))
        if len(shares) < 5:
            raise RuntimeError(f"{name}: only {len(shares)} of 10 runs were made: {'; '.join(sorted(away))}")
        report.data[f"hbm_read {name}"] = shares
        report.judge(f"hbm_read, {name}: share of the roofline, median of 10", statistics.median(shares) >= least,
                     statistics.median(shares), f"at least {least}")  # fmt: skip
        report.at_most(f"hbm_read, {name}: (max - min) / median of 10",
                       (max(shares) - min(shares)) / statistics.median(shares), 0.01)  # fmt: skip


def pcie(env: Env, gpu: Gpu, report: Report) -> None:
    """The copies beside a plain loop of pinned copies of the same size, made right after."""
    _, runs, _ = Canary(env, gpu).run(checks=["pcie"])
    found = measured(runs[0], "pcie")["found"]["copied"]
    size = int(found["bytes"])
    # In a process of its own: a context that stays would keep every later canary away.
    plain = program("copy_loop.py", gpu.uuid, str(size))
    for way, loop in plain.items():
        # The fastest of both: what others do on the host slows some copies of either.
        own, best = size / min(found[way]), size / min(loop)
        report.judge(f"pcie, {way}: over a plain loop", own >= 0.98 * best, own / best, "at least 0.98",
                     f"{own / 1e9:.2f} GB/s and {best / 1e9:.2f} GB/s, {size >> 20} MiB; medians "
                     f"{size / statistics.median(found[way]) / 1e9:.2f} and {size / statistics.median(loop) / 1e9:.2f}")  # fmt: skip
    report.info("pcie: link while copying", f"generation {found['link_generation']}, {found['link_width']} lanes")


def neighbour(env: Env, gpu: Gpu, report: Report) -> None:
    """Beside a process that burns the GPU nothing is judged."""
    canary, verdicts = Canary(env, gpu), []
    with env.load("fma", gpu, "--seconds", "600"):
        status, runs, _ = canary.run(checks=["sm_rate"])
        report.judge("neighbour: without --force it stays away", status == 0 and runs[0]["outcome"]["skip"] is not None,
                     f"{status}, {runs[0]['outcome']['skip']}", "0, skipped")  # fmt: skip
        _, runs, _ = canary.run("--force", checks=["sm_rate", "hbm_read", "launch"], repeat=env.options.canary_contended)
        verdicts += [j["sample"] for one in runs for j in one["outcome"]["checks"] if j["check"] != "init"]
    report.data["neighbour"] = verdicts
    judged_all = [v for v in verdicts if v != "contended"]
    report.judge(f"neighbour: samples of {len(verdicts)} that were judged", not judged_all and bool(verdicts),
                 len(judged_all), 0, ", ".join(sorted(set(verdicts))))  # fmt: skip


def program(name: str, *arguments: str) -> dict:
    """What a program of this folder prints as JSON."""
    done = subprocess.run([sys.executable, str(HERE / name), *arguments], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise RuntimeError(f"{name} ended with status {done.returncode}: {done.stderr[-800:]}")
    return json.loads(done.stdout)


def job(env: Env, gpu: Gpu, report: Report) -> None:
    """A job that starts while a canary runs, beside one that starts alone."""
    canary, alone, beside, ends = Canary(env, gpu), [], [], []
    _, _, whole = canary.run(checks=PERIODIC)
    for at in range(env.options.canary_jobs):
        alone.append(program("job_start.py", gpu.uuid))
        canary.settle()
        with ThreadPoolExecutor(1) as pool:
            # The suite takes the same way again and again; the job comes at another place of it each time.
            running = pool.submit(canary.run, checks=PERIODIC)
            time.sleep(whole * at / env.options.canary_jobs)
            beside.append(program("job_start.py", gpu.uuid))
            _, runs, _ = running.result()
            ends.append(runs[0]["outcome"]["end"])
    report.data["job"] = {"alone": alone, "beside": beside, "ends": ends}
    for part in ("init", "context", "kernel", "total"):
        a, b = [j[part] for j in alone], [j[part] for j in beside]
        report.info(f"job: {part}, ms, alone", f"median {statistics.median(a) * 1e3:.2f}, max {max(a) * 1e3:.2f}")
        report.info(f"job: {part}, ms, beside a canary", f"median {statistics.median(b) * 1e3:.2f}, max {max(b) * 1e3:.2f}")
    kernels = [j["kernel"] for j in beside]
    report.at_most("job: its first kernel, seconds, beside a canary, longest", max(kernels),
                   max(j["kernel"] for j in alone) + 0.006, "one kernel of the canary is at most 5 ms")  # fmt: skip
    report.info("job: how the canaries ended", ", ".join(f"{e} {ends.count(e)}" for e in sorted(set(ends))))


def many(env: Env, report: Report) -> None:
    """So many runs of the whole suite on all GPUs: no false verdict."""
    gpus = env.gpus()
    number = env.options.canary_runs

    def on(gpu: Gpu) -> list[dict]:
        canary, seen = Canary(env, gpu), []
        end = time.monotonic() + env.options.canary_seconds
        while len(seen) < -(-number // len(gpus)) and time.monotonic() < end:
            for one in canary.run(checks=PERIODIC, repeat=10)[1]:
                outcome = one["outcome"]
                seen.append({"gpu": gpu.index, "wall": outcome["ended"] - outcome["began"], "outcome": outcome})
        return seen

    with ThreadPoolExecutor(len(gpus)) as pool:
        seen = [one for found in pool.map(on, gpus) for one in found]
    made = [s for s in seen if not kept_away(s)]
    wrong = [f"GPU {s['gpu']} {j['check']}: {j['sample']}: {j['text']}" for s in made for j in s["outcome"]["checks"]
             if j["sample"] != "ok"]  # fmt: skip
    unfinished = [s["outcome"]["text"] for s in made if s["outcome"]["end"] != "finished"]
    report.data["many"] = [{k: s[k] for k in ("gpu", "wall")} | {"ratios": {
        j["check"]: j["ratios"] for j in s["outcome"]["checks"]}} for s in made]  # fmt: skip
    report.judge(f"many: {len(made)} runs on {len(gpus)} GPUs, verdicts other than ok", not wrong and bool(made),
                 len(wrong), 0, "; ".join(wrong[:6]))  # fmt: skip
    report.judge("many: runs that did not finish", not unfinished, len(unfinished), 0, "; ".join(unfinished[:3]))
    report.info("many: runs put off", len(seen) - len(made),
                text="; ".join(s["outcome"]["text"] for s in seen if kept_away(s))[:300])  # fmt: skip
    if not made:
        raise Skip("no run was made")
    report.info("many: no false verdict in so many runs bounds its rate (95 %) at", 3 / len(made),
                text=f"the rule of three; {number} were asked for; wall seconds of one {mean([s['wall'] for s in made]):.2f}")  # fmt: skip
