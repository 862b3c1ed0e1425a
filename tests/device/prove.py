#!/usr/bin/env python3
"""Proves on real GPUs what the exporter says of known work: each proof makes its own load and counts it.

  gpm     activity of the units beside counted work: idle, FP32, tensor cores, memory copies
  nvlink  a known number of bytes from GPU to GPU beside all byte counters (two GPUs)
  pcie    known bytes from and to the host beside GPM's
  energy  the driver's energy counter beside its power samples added up
  burst   20 ms of work after a pause must show in the power samples
  xid     an illegal write: how soon it is counted and listed, and that it counts once
  cost    CPU, memory, driver time, series; cheap calls beside the exporter
  canary  its rates, spread and costs; that it yields to a job and judges nothing beside one
  living  the daemon beside real work: canaries of its own, owners, the driver released, GPM released, the host reported
  wedge   a kernel that polls after real work is wedged, a rest is stalled; a server that polls and copies are neither
  doctor  `doctor` as root and as an unprivileged user; a record of page and machine at default settings

Each runs in a process of its own and is bounded in time; one that fails hides no other. Writes into --out:
NAME.json of each proof, prove.json and prove.md of all, logs/. Exit status: 0 if nothing failed, 1 if something
did, 2 if nothing could be run. Changes no setting of any GPU and resets none. Needs nvidia-ml-py; `gpm` needs
torch for the tensor cores. `xid` makes the driver log a fault (Xid 31) of a program of its own.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

sys.dont_write_bytecode = True
from daemon import Process, pids
from proofs.common import FAIL, INFO, PASS, SKIP, Env, Report, Skip, table

# Proof, its module, seconds it takes with one GPU and default options.
CHECKS = {
    "gpm": ("gpm", 200), "nvlink": ("nvlink", 50), "xid": ("xid", 50), "doctor": ("doctor", 60),
    "burst": ("burst", 180), "energy": ("energy", 160), "pcie": ("pcie", 190), "cost": ("budget", 320),
    "canary": ("canary", 500), "living": ("living", 300), "wedge": ("wedge", 440),
}  # fmt: skip


TERMINATED = "the whole run was terminated"


class Stopped(BaseException):
    """Terminated by a signal."""


def stop(*_: object) -> None:
    raise Stopped("terminated")


def one(name: str, options) -> int:
    """The proof itself, in its own process."""
    signal.signal(signal.SIGTERM, stop)
    report = Report(name)
    began, env = time.monotonic(), None
    try:
        module = importlib.import_module(f"proofs.{CHECKS[name][0]}")
        env = Env(options)
        module.run(env, report)
    except Skip as why:
        report.skip("as a whole", str(why))
    except (Exception, Stopped) as problem:
        report.fail("as a whole", f"{type(problem).__name__}: {problem}"[:1500])
    finally:
        document = report.document() | {"seconds": time.monotonic() - began}
        (options.out / f"{name}.json").write_text(json.dumps(document, indent=1, default=str) + "\n")
        if env is not None:
            env.close()
    return 0


def descendants(pid: int) -> list[Process]:
    """All that descend from a process."""
    every = [p for p in map(Process.of, pids()) if p]
    family, found = {pid}, []
    while more := [p for p in every if p.parent in family and p.pid not in family]:
        family |= {p.pid for p in more}
        found += more
    return found


def end_all(process: subprocess.Popen, seconds: float = 40.0) -> None:
    """Ends a proof that is late: asked first; then it and what it started, by their ids."""
    family = descendants(process.pid)
    process.terminate()
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        family += [p for p in descendants(process.pid) if p.pid not in {f.pid for f in family}]
        process.kill()
        process.wait()
    for number in (signal.SIGTERM, signal.SIGKILL):
        alive = [p for p in family if (now := Process.of(p.pid)) and now.start == p.start]
        for p in alive:
            try:
                os.kill(p.pid, number)
            except OSError:
                pass
        if alive:
            time.sleep(5)


def prove(name: str, arguments: list[str], options) -> dict:
    """One proof; what it wrote, or why it wrote nothing."""
    result = options.out / f"{name}.json"
    result.unlink(missing_ok=True)
    module = importlib.import_module(f"proofs.{CHECKS[name][0]}")
    limit = options.limit or max(module.SECONDS, 1.6 * CHECKS[name][1]) + 60
    began = time.monotonic()
    with (options.out / "logs" / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), *arguments, "--one", name],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    late = ""
    try:
        process.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        late = f"had not ended after {limit:.0f} s"
        end_all(process)
    except Stopped:
        late = TERMINATED
        end_all(process, 20)
    try:
        document = json.loads(result.read_text())
    except (OSError, ValueError):
        said = (options.out / "logs" / f"{name}.log").read_text(errors="replace")[-1500:]
        report = Report(name)
        report.fail("as a whole", late or f"ended with status {process.returncode}: {said}")
        document = report.document() | {"seconds": time.monotonic() - began}
    if late:
        document["late"] = late
        document["rows"].append({"name": "in time", "verdict": FAIL, "got": None, "want": None, "tolerance": "",
                                 "text": late})  # fmt: skip
        document["verdict"] = FAIL
    return document


def machine(options) -> dict:
    """When, on what, with which command. NVML is asked in a process of its own: a driver that hangs ends nothing."""
    ask = ("import pynvml as n, json; n.nvmlInit(); t=lambda x: x.decode() if isinstance(x, bytes) else x; "
           "print(json.dumps({'driver': t(n.nvmlSystemGetDriverVersion()), 'gpus': "
           "[t(n.nvmlDeviceGetName(n.nvmlDeviceGetHandleByIndex(i))) for i in range(n.nvmlDeviceGetCount())]}))")  # fmt: skip
    facts = {
        "utc": f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S}", "cpus": os.cpu_count(), "kernel": platform.release(),
        "uid": os.geteuid(), "options": {k: v for k, v in vars(options).items() if not isinstance(v, Path)},
    }  # fmt: skip
    try:
        done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, timeout=60)
        facts |= json.loads(done.stdout)
    except (ValueError, subprocess.TimeoutExpired):
        facts |= {"driver": "does not answer", "gpus": []}
    try:
        version = subprocess.run([str(options.binary.resolve()), "--version"], capture_output=True, text=True, timeout=20)
        facts["exporter"] = version.stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as problem:
        facts["exporter"] = str(problem)
    return facts


def summary(head: dict, results: list[dict], left: list[str]) -> str:
    """All proofs as Markdown: the verdicts first."""
    counts = {g: head["gpus"].count(g) for g in dict.fromkeys(head["gpus"])}
    hardware = ", ".join(f"{c} x {g}" for g, c in counts.items()) or "no GPU"
    out = ["# Proofs on real GPUs", "", f"- {head['utc']} UTC; {hardware}; driver {head['driver']}; "
           f"{head['cpus']} CPUs; Linux {head['kernel']}; uid {head['uid']}",
           f"- {head['exporter']}", f"- options: {head['options']}", "",
           "| proof | | PASS | FAIL | SKIP | seconds |", "|---|---|---|---|---|---|"]  # fmt: skip
    for r in results:
        count = {v: sum(row["verdict"] == v for row in r["rows"]) for v in (PASS, FAIL, SKIP, INFO)}
        out.append(f"| {r['check']} | {r['verdict']} | {count[PASS]} | {count[FAIL]} | {count[SKIP]} | {r['seconds']:.0f} |")
    out += [f"| {name} | not run | | | | |" for name in left] + [""]
    out += [table(r["rows"], f"{r['check']}: {r['verdict']}") for r in results]
    return "\n".join(out)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--binary", type=Path, required=True, metavar="BIN", help="the gpu-node-exporter")
    add("--out", type=Path, required=True, metavar="DIR", help="where the results go")
    add("--only", metavar="NAME,...", help=f"these of {', '.join(CHECKS)}, in this order")
    add("--gpu", type=int, default=0, help="NVML's index of the GPU to prove on (0)")
    add("--limit", type=float, help="most seconds of one proof (by default some more than it needs)")
    add("--nvml-library", type=Path, metavar="PATH", help="for the exporter")
    add("--hold", type=float, default=40.0, help="gpm: seconds of each load (40)")
    add("--nvlink-gib", type=int, default=64, help="nvlink: GiB to copy (64)")
    add("--pcie-seconds", type=float, default=60.0, help="pcie: seconds of copying each way, all repeats together (60)")
    add("--pcie-repeats", type=int, default=3, help="pcie: repeats each way (3)")
    add("--energy-seconds", type=float, default=120.0, help="energy: seconds of load (120)")
    add("--bursts", type=int, default=8, help="burst: how many (8)")
    add("--burst-ms", type=float, default=20.0, help="burst: length in milliseconds (20)")
    add("--burst-idle", type=float, default=10.0, help="burst: seconds of pause before each (10)")
    add("--burst-settle", type=float, default=63.0, help="burst: seconds before the first (63: older peaks are gone)")
    add("--xids", type=int, default=3, help="xid: how many faults (3)")
    add("--cost-seconds", type=float, default=120.0, help="cost: seconds idle (120)")
    add("--load-seconds", type=float, default=60.0, help="cost: seconds under load (60)")
    add("--latency-seconds", type=float, default=60.0, help="cost: seconds of cheap calls without, and with (60)")
    add("--canary-processes", type=int, default=100, help="canary: processes whose spread is measured (100)")
    add("--wedge-work", type=float, default=30.0, help="wedge: seconds of work before (30)")
    add("--wedge-rest", type=int, default=120, help="wedge: owners.stalled_after in seconds, by default 300 (120)")
    add("--canary-contended", type=int, default=10, help="canary: runs beside a burning neighbour (10)")
    add("--canary-jobs", type=int, default=20, help="canary: jobs that start during a run (20)")
    add("--canary-runs", type=int, default=500, help="canary: runs of the whole suite, on all GPUs together (500)")
    add("--canary-seconds", type=float, default=240.0, help="canary: most seconds for them (240)")
    add("--one", choices=list(CHECKS), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    unknown = [name for name in (options.only or "").split(",") if name and name not in CHECKS]
    if unknown:
        parser.error(f"no such proof: {', '.join(unknown)}; there are {', '.join(CHECKS)}")
    return options


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.one:
        return one(options.one, options)
    (options.out / "logs").mkdir(exist_ok=True)
    if not options.binary.is_file():
        print(f"{options.binary} is no file")
        return 2
    signal.signal(signal.SIGTERM, stop)
    names = [name for name in (options.only or ",".join(CHECKS)).split(",") if name]
    head, results, left = machine(options), [], list(names)
    print(f"{len(head['gpus'])} GPUs, driver {head['driver']}, {head['exporter']}", flush=True)

    def write() -> None:
        document = {"machine": head, "proofs": results, "not_run": left}
        (options.out / "prove.json").write_text(json.dumps(document, indent=1, default=str) + "\n")
        (options.out / "prove.md").write_text(summary(head, results, left))

    try:
        for name in names:
            print(f"\n# {name} (some {CHECKS[name][1]} s)", flush=True)
            document = prove(name, arguments, options)
            results.append(document)
            left.remove(name)
            write()
            print(table(document["rows"], f"{name}: {document['verdict']}, {document['seconds']:.0f} s"), flush=True)
            if document.get("late") == TERMINATED:
                break
    except (Stopped, KeyboardInterrupt):
        print("terminated", flush=True)
    write()
    failed = [r["check"] for r in results if r["verdict"] == FAIL]
    print(f"\nfailed: {', '.join(failed) or 'none'}; not run: {', '.join(left) or 'none'}; results in {options.out}")
    for r in results:
        print(f"{r['verdict']}  {r['check']}  ({r['seconds']:.0f} s)")
    return 1 if failed or left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
