"""The daemon beside real work: its own canaries, owners, the driver released and taken up, profiling counters released."""

from __future__ import annotations

import os
import subprocess
import time
from typing import Callable

import cost
from daemon import Daemon, Page
from proofs.common import Env, Gpu, Report

SECONDS = 200
INTERVAL = 4  # seconds between two canaries, so that a baseline of 20 is complete in some two minutes
RUNS = 22


def until(daemon: Daemon, seconds: float, what: str, holds: Callable[[Page], bool]) -> tuple[float, Page]:
    """Waits until this holds of the page: how long it took."""
    begin = time.monotonic()
    while True:
        page = daemon.scrape()
        if holds(page):
            return time.monotonic() - begin, page
        if time.monotonic() - begin > seconds:
            raise RuntimeError(f"after {seconds:.0f} s not yet: {what}")
        time.sleep(0.25)


def command(env: Env, daemon: Daemon, *arguments: str) -> str:
    """A command of the exporter that speaks with this daemon."""
    socket = daemon.log.parent / daemon.user / "control.sock"
    done = subprocess.run([str(env.binary), *arguments], capture_output=True, text=True, timeout=60,
                          env=os.environ | {"GPU_NODE_EXPORTER__CONTROL__SOCKET": str(socket)})  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)}: status {done.returncode}: {done.stdout[-400:]}{done.stderr[-400:]}")
    return done.stdout


def open_devices(daemon: Daemon) -> list[str]:
    """Device files of the driver that the daemon or what descends from it holds open."""
    found = []
    for pid in daemon.processes():
        try:
            for name in os.listdir(f"/proc/{pid}/fd"):
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                if target.startswith("/dev/nvidia"):
                    found.append(f"{pid}: {target}")
        except OSError:
            continue  # gone meanwhile
    return found


def run(env: Env, report: Report) -> None:
    gpu = env.gpu()
    settings = {
        "CANARY__INTERVAL": f"{INTERVAL}s", "CANARY__IDLE_FOR": "1s", "CANARY__MAX_DUTY_RATIO": "0.1",
        "CANARY__LOCK_FILE": str(env.folder / "lock"),
    }  # fmt: skip
    with env.daemon("living", settings) as daemon:
        with report.part("host"):
            host(daemon, gpu, report)
        with report.part("driver"):
            driver(env, daemon, report)
        with report.part("gpm"):
            gpm(env, daemon, gpu, report)
        with report.part("owner"):
            owner(env, daemon, gpu, report)
        with report.part("canary"):
            canary(daemon, gpu, report)
        with report.part("memory"):
            taken = cost.take(daemon, 20)
            report.info("memory with all collectors and canaries now and then, MiB",
                        ", ".join(f"{p.role} {p.pss / 2**20:.1f}" for p in taken.processes))  # fmt: skip


def host(daemon: Daemon, gpu: Gpu, report: Report) -> None:
    """What is reported about the machine around the GPU."""
    _, page = until(daemon, 30, "the topology", lambda p: bool(gpu.all(p, "gpu_host_topology_info")))
    labels = gpu.all(page, "gpu_host_topology_info")[0][0]
    cpus = os.cpu_count() or 0
    report.info("host: topology of the GPU", ", ".join(f"{k} {v}" for k, v in labels.items() if k not in ("gpu", "uuid")))
    report.judge("host: a NUMA node that the machine does not tell is not made up",
                 labels["numa_node"] == numa_node(page, gpu), labels["numa_node"], numa_node(page, gpu))  # fmt: skip
    reported = sum(v for _, v in page.all("gpu_host_objects") if _["object"] == "cpu")
    report.judge("host: CPUs", reported == cpus, reported, cpus)
    states = {l["event"]: l["state"] for l, v in page.all("gpu_host_cpu_event_state") if v == 1}
    report.judge("host: software events of the CPUs work", all(states.get(e) == "works" for e in (
        "context_switches", "cpu_migrations", "page_faults", "major_faults")), str(states))  # fmt: skip
    for labels, value in page.all("gpu_exporter_collector_up"):
        if labels["collector"] != "kubelet":
            report.judge(f"host: collector {labels['collector']}", value == 1, value, 1)


def numa_node(page: Page, gpu: Gpu) -> str:
    """The kernel's word on the GPU's NUMA node; nothing for -1."""
    address = gpu.all(page, "gpu_info")[0][0]["pci_address"].lower()
    with open(f"/sys/bus/pci/devices/{address[-12:]}/numa_node") as file:
        node = file.read().strip()
    return "" if node == "-1" else node


def driver(env: Env, daemon: Daemon, report: Report) -> None:
    """The driver let go of, and taken up again."""
    begin = time.monotonic()
    command(env, daemon, "driver", "release")
    until(daemon, 20, "gpu_driver_paused", lambda p: p.get("gpu_driver_paused") == 1)
    while (left := open_devices(daemon)) and time.monotonic() < begin + 20:
        time.sleep(0.1)
    report.judge("driver: device files open after the release", not left, len(left), 0, "; ".join(left[:3]))
    report.info("driver: seconds until it was let go", time.monotonic() - begin)
    page = daemon.scrape()
    report.judge("driver: identity is served meanwhile", bool(page.all("gpu_info")), len(page.all("gpu_info")))
    command(env, daemon, "driver", "resume")
    took, _ = until(daemon, 30, "values after the resumption",
                    lambda p: p.get("gpu_driver_paused") == 0 and bool(p.all("gpu_utilization_ratio")))  # fmt: skip
    report.info("driver: seconds until values are back", took)


def gpm(env: Env, daemon: Daemon, gpu: Gpu, report: Report) -> None:
    """Profiling counters released and taken up."""
    for word, wanted in (("off", 0), ("on", 1)):
        command(env, daemon, "gpm", word)
        took, _ = until(daemon, 20, f"gpm {word}", lambda p: gpu.get(p, "gpu_gpm_enabled") == wanted)  # noqa: B023
        report.judge(f"gpm: {word}", True, took, "some seconds")


def owner(env: Env, daemon: Daemon, gpu: Gpu, report: Report) -> None:
    """A process on the GPU: whose it is and what it had. No canary beside it."""
    before = {l["end"]: v for l, v in daemon.scrape().all("gpu_canary_runs_total")}
    with env.load("fma", gpu, "--seconds", "60") as load:
        took, page = until(daemon, 20, "its owner", lambda p: any(v > 0 for _, v in gpu.all(p, "gpu_owner_processes")))
        report.info("owner: seconds until it is reported", took)
        labels = gpu.all(page, "gpu_owner_info")[0][0]
        report.info("owner: reported", ", ".join(f"{k} {v}" for k, v in labels.items() if v and k not in ("gpu", "uuid")))
        begin = time.monotonic()
        start = sum(v for _, v in gpu.all(page, "gpu_owner_busy_seconds_total"))
        held = sum(v for _, v in gpu.all(page, "gpu_owner_allocated_seconds_total"))
        time.sleep(20)
        page = daemon.scrape()
        span = time.monotonic() - begin
        busy = sum(v for _, v in gpu.all(page, "gpu_owner_busy_seconds_total")) - start
        report.near("owner: allocated seconds over 20 s",
                    sum(v for _, v in gpu.all(page, "gpu_owner_allocated_seconds_total")) - held, span, absolute=2.5)  # fmt: skip
        report.judge("owner: busy seconds over 20 s of work without a pause", 0.7 * span <= busy <= 1.1 * span, busy, span,
                     "utilization samples come every 10 s")  # fmt: skip
        causes = [l["cause"] for l, v in gpu.all(page, "gpu_bottleneck") if v == 1]
        report.info("owner: bottleneck of FP32 work", ", ".join(causes))
        load.wait("tick", 5)
    after = {l["end"]: v for l, v in daemon.scrape().all("gpu_canary_runs_total")}
    ran = after.get("finished", 0) - before.get("finished", 0)
    # One may have begun before the process came.
    report.judge("owner: canaries that finished beside it", ran <= 1, ran, "at most 1")


def canary(daemon: Daemon, gpu: Gpu, report: Report) -> None:
    """Canaries that the daemon makes of itself, until its baseline is complete."""
    seconds = RUNS * (1.2 * INTERVAL + 1.5) + 20

    def finished(page: Page) -> float:
        return sum(v for l, v in page.all("gpu_canary_runs_total") if l["end"] == "finished")

    took, page = until(daemon, seconds, f"{RUNS} canaries", lambda p: finished(p) >= RUNS)
    report.info(f"canary: seconds for {finished(page):.0f} runs, one every {INTERVAL} s", took)
    wrong = [f"{l['check']} {l['verdict']}" for l, v in gpu.all(page, "gpu_canary_verdict") if v == 1 and l["verdict"] != "ok"]
    fine = sum(v == 1 and l["verdict"] == "ok" for l, v in gpu.all(page, "gpu_canary_verdict"))
    report.judge("canary: verdicts other than ok", not wrong and fine > 0, len(wrong), 0, ", ".join(wrong))
    report.judge("canary: the GPU is healthy", gpu.get(page, "gpu_healthy") == 1, gpu.get(page, "gpu_healthy"), 1)
    for labels, value in gpu.all(page, "gpu_canary_rate_ratio"):
        report.info(f"canary: {labels['check']} against {labels['against']}", value)
    spent = gpu.get(page, "gpu_canary_gpu_seconds_total") or 0.0
    report.info("canary: GPU seconds a run", spent / max(1.0, finished(page)))
    skipped = ", ".join(f"{l['reason']} {v:.0f}" for l, v in page.all("gpu_canary_skipped_total") if v > 0)
    report.info("canary: put off because of", skipped or "nothing")
    again = [l["step"] for l, v in gpu.all(page, "gpu_canary_hung") if v == 1]
    report.judge("canary: hung steps", not again, len(again), 0, ", ".join(again))
