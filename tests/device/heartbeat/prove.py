#!/usr/bin/env python3
"""The heartbeat on a real GPU: the exporter beside jobs whose steps are known, scraped once a second.

  jobs     each kind of jobs.py: true step beside gpu_owner_step_seconds, classes beside what the job measured
  loader   a training whose loader sleeps 45 s: stalled, and never wedged
  waiting  what waits and is no wedge (waiting.py), and the canary by hand: every halt that is published counts
  paired   step times with the exporter and without, in turns

Writes into --out: KIND.json of each job (recording, as record.py), scrapes.json.gz (what was served), figures.json, table.md.
`--report DIR` makes the table again from such a folder. Each job is an owner of its own: a control group named as Slurm
names them where the host lets us make one, another user where not. Changes no setting of the GPU. Needs root, torch and
nvidia-ml-py.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import jobs  # noqa: E402
from daemon import Daemon  # noqa: E402
from record import Program, Recorder, overrides, save  # noqa: E402

KEPT = ("gpu_owner_", "gpu_bottleneck", "gpu_power_watts", "gpu_utilization_ratio")
HALTS = ("wedged", "stalled")
TOLERANCE = 0.01  # of the true step
GROUPS = [Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")]
JOB, USER = 7000, 20000  # the first job's number, the first user's


class Scrapes(threading.Thread):
    """Scrapes once a second and keeps the owners' series."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__(daemon=True)
        self.daemon, self.rows, self.failures = daemon, [], []
        self.stopped = threading.Event()

    def run(self) -> None:
        due = time.monotonic()
        while not self.stopped.is_set():
            try:
                page = self.daemon.scrape()
                kept = [[n, dict(labels), v] for (n, labels), v in page.series.items() if n.startswith(KEPT)]
                # The instances of a bottleneck that are 0 say nothing more.
                self.rows.append([time.time(), [r for r in kept if r[0] != "gpu_bottleneck" or r[2] == 1]])
            except Exception as problem:  # one scrape less
                self.failures.append(f"{time.time():.1f} {problem}"[:200])
            due += 1.0
            self.stopped.wait(max(0.0, due - time.monotonic()))


class Owner:
    """Where a job runs so that it is an owner of its own."""

    def __init__(self, number: int) -> None:
        self.name, self.prefix, self.more, self.folder = f"slurm/{JOB + number}.0", None, {}, None
        for root in GROUPS:
            folder = root / f"system.slice/slurmstepd.scope/job_{JOB + number}/step_0/user/task_0"
            try:
                if (root / "cgroup.procs").exists():
                    folder.mkdir(parents=True, exist_ok=True)
                    self.folder = folder
                    self.prefix = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(folder)]
                    return
            except OSError:
                continue
        self.name, self.more = f"user {USER + number}", {"user": USER + number, "group": USER + number, "extra_groups": []}
        home = tempfile.mkdtemp()
        os.chown(home, USER + number, USER + number)
        self.more["env"] = os.environ | {"HOME": home, "TMPDIR": home}

    def end(self) -> None:
        """Removes the folders; they are empty once the job has ended."""
        folder = self.folder
        while folder is not None and folder.name != "slurmstepd.scope":
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent


def cpu_seconds(daemon: Daemon) -> float:
    """CPU time of all processes of the exporter, as the scheduler counts it."""
    return sum(sum(p.scheduled_seconds().values()) for p in daemon.processes().values())


class Proof:
    """One exporter, one recorder, jobs one after the other."""

    def __init__(self, options) -> None:
        self.options, self.out = options, options.out
        self.out.mkdir(parents=True, exist_ok=True)
        self.out.chmod(0o777)
        self.began, self.number = time.monotonic(), 0
        self.figures: dict = {"command": " ".join(["prove.py", *sys.argv[1:]]), "unix": time.time(), "jobs": {}, "cpu": {}}
        self.threads: list[threading.Timer] = []
        self.recorder = Recorder(0)
        self.recorder.start()
        self.figures |= self.recorder.facts()
        version = subprocess.run([str(options.binary), "--version"], capture_output=True, text=True, timeout=20)
        self.figures["exporter"] = version.stdout.strip()
        self.homes = Path(tempfile.mkdtemp(prefix="heartbeat-"))
        self.homes.chmod(0o755)

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:6.1f} {text}", flush=True)

    def left(self) -> float:
        return self.options.within - (time.monotonic() - self.began)

    def daemon(self, name: str, settings: dict[str, str] | None = None) -> Daemon:
        folder = self.homes / name
        folder.mkdir(mode=0o755)
        daemon = Daemon(self.options.binary, folder, "root", [], {"CANARY__MODE": "off"} | (settings or {}))
        daemon.wait_ready()
        return daemon

    def program(self, kind: str, script: Path, arguments: list[str]) -> tuple[Program, Owner]:
        owner = Owner(self.number)
        self.number += 1
        return Program(kind, arguments, self.out / f"{kind}.json", script, owner.prefix, **owner.more), owner

    def one(self, kind: str, program: Program, owner: Owner, seconds: float) -> None:
        """Lets a job work, with all it says."""
        try:
            program.wait("loaded", 90)
            if seconds > self.left():
                raise RuntimeError("no time left")
            begin = time.time()
            program.send("go")
            ready = program.wait("ready", 90)
            said = program.wait("end", seconds + 90)
            end = time.time()
            program.end()
            self.figures["jobs"][kind] = {"owner": owner.name, "begin": begin, "ready": ready["unix"], "end": end,
                                          "what": ready.get("what"), "said": said}  # fmt: skip
            timer = threading.Timer(3.0, save, (self.recorder, program.out, begin, end))
            timer.start()
            self.threads.append(timer)
            self.say(f"{kind}: {json.dumps(said)[:300]}")
        except (RuntimeError, OSError) as problem:
            program.process.kill()
            program.end()
            self.figures["jobs"][kind] = {"failed": str(problem)}
            self.say(f"FAILED {kind}: {problem}: {(self.out / f'{kind}.log').read_text()[-800:]}")
        finally:
            owner.end()

    def all(self, works: list[tuple[str, Path, list[str], float]]) -> None:
        """Jobs one after the other; the next imports its libraries while one works."""
        following = self.program(*works[0][:3]) if works else None
        for at, (kind, _, _, seconds) in enumerate(works):
            program, owner = following
            following = self.program(*works[at + 1][:3]) if at + 1 < len(works) else None
            self.one(kind, program, owner, seconds)

    def jobs_of(self, kinds: list[str]) -> list[tuple[str, Path, list[str], float]]:
        works = []
        for kind in kinds:
            seconds = self.options.seconds_of.get(kind, self.options.seconds)
            more = ["--target", str(self.options.target_of[kind])] if kind in self.options.target_of else []
            works.append((kind, HERE / "jobs.py", ["--seed", str(self.options.seed), "--seconds", str(seconds), *more], seconds))
        return works

    def beside(self, name: str, settings: dict[str, str], works: list, canary: bool = False) -> None:
        """Jobs beside one exporter."""
        daemon = self.daemon(name, settings)
        scrapes = Scrapes(daemon)
        scrapes.start()
        try:
            self.say(f"{name}: exporter ready")
            if name == "jobs":
                time.sleep(3)
                before, at = cpu_seconds(daemon), time.monotonic()
                time.sleep(self.options.idle)
                self.figures["cpu"]["idle"] = (cpu_seconds(daemon) - before) / (time.monotonic() - at)
            before, at = cpu_seconds(daemon), time.monotonic()
            self.all(works)
            self.figures["cpu"][name] = (cpu_seconds(daemon) - before) / (time.monotonic() - at)
            if canary:
                begin, lock = time.time(), {"GPU_NODE_EXPORTER__CANARY__LOCK_FILE": str(self.homes / "lock")}
                done = subprocess.run([str(self.options.binary), "canary"], capture_output=True, text=True, timeout=60,
                                      env=os.environ | lock)  # fmt: skip
                self.figures["canary"] = {"status": done.returncode, "said": (done.stdout + done.stderr)[-600:]}
                self.figures["jobs"]["canary"] = {"owner": "canary", "begin": begin, "end": time.time()}
                self.say(f"canary: status {done.returncode}")
            time.sleep(12)  # the last window of 10 s
            try:
                self.figures[f"owners_{name}"] = json.loads(daemon.request("/api/v1/owners")[1])
            except (OSError, ValueError) as problem:
                self.figures[f"owners_{name}"] = str(problem)
            # Series of ended owners stay: the last scrape has all sums.
            self.figures["pss_mib"] = sum(p.pss_bytes() for p in daemon.processes().values()) / 2**20
        finally:
            scrapes.stopped.set()
            scrapes.join(timeout=15)
            (self.out / f"daemon-{name}.txt").write_text(daemon.log.read_text(errors="replace")[-20000:])
            self.say(f"{name}: exporter ended {daemon.terminate()}, {len(scrapes.rows)} scrapes, failed {scrapes.failures[:3]}")
            with gzip.open(self.out / f"scrapes-{name}.json.gz", "wt") as file:
                json.dump(scrapes.rows, file, separators=(",", ":"))

    def paired(self) -> None:
        """One training; the exporter beside it half of the time, in turns."""
        kind, block, pairs = self.options.paired_kind, self.options.block, self.options.pairs
        seconds = 2 * block * pairs + 2
        if self.left() < seconds + 15:
            pairs = max(0, int((self.left() - 17) / (2 * block)))
            seconds = 2 * block * pairs + 2
        if not pairs:
            self.say("paired: no time left")
            return
        arguments = ["--seed", str(self.options.seed + 1000), "--seconds", str(seconds)]
        program = Program(kind, arguments, self.out / "paired.json")
        blocks = []
        try:
            program.wait("loaded", 90)
            program.send("go")
            program.wait("ready", 60)
            for at in range(2 * pairs):
                begin = time.time()
                end = time.monotonic() + block
                daemon = self.daemon(f"paired{at}") if at % 2 else None
                settled = time.time()
                while time.monotonic() < end - 0.5:
                    if daemon:
                        daemon.scrape()
                    time.sleep(min(1.0, max(0.0, end - 0.5 - time.monotonic())))
                blocks.append([at % 2, begin, settled, time.time()])
                if daemon:
                    daemon.terminate()
            program.wait("end", 60)
        except RuntimeError as problem:
            self.say(f"FAILED paired: {problem}")
            program.process.kill()
        program.end()
        self.figures["paired"] = blocks
        self.say(f"paired: {len(blocks)} blocks")

    def finish(self) -> None:
        for timer in self.threads:
            timer.join()
        self.recorder.stopped.set()
        self.figures["recorder_problems"] = self.recorder.problems[:10]
        (self.out / "figures.json").write_text(json.dumps(self.figures, indent=1, default=str) + "\n")


# ---- the report --------------------------------------------------------------------------------------------------------


def median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def load(path: Path) -> dict | None:
    return json.loads(path.read_text()) if path.exists() else None


def owner_series(rows: list, owner: str, begin: float, end: float) -> dict[float, list]:
    """Series of a job's owner by time of the scrape: the owner of that name, or else that had a process meanwhile."""
    held: dict[str, int] = {}
    for at, series in rows:
        if begin <= at <= end:
            for name, labels, value in series:
                if name == "gpu_owner_processes" and value > 0:
                    held[labels["owner"]] = held.get(labels["owner"], 0) + 1
    if not held:
        return {}
    owner = owner if owner in held else max(held, key=lambda o: held[o])
    return {at: [s for s in series if s[1].get("owner") == owner] for at, series in rows if at >= begin}


def value(series: list, name: str, **labels: str) -> float | None:
    found = [v for n, have, v in series if n == name and all(have.get(k) == w for k, w in labels.items())]
    return found[0] if found else None


def relation(ratio: float) -> str:
    """What the period is of the true step."""
    if abs(ratio - 1) <= 0.03:
        return "step"
    for n in range(2, 33):
        for word, want in (("steps", n), ("of a step", 1 / n)):
            if abs(ratio / want - 1) <= 0.02:
                return f"{n} steps" if word == "steps" else f"1/{n} of a step"
    return "other"


def judge(kind: str, document: dict, series: dict[float, list]) -> dict:
    """What was served of a job beside what it knows of itself."""
    begin, end = document["window_unix_seconds"]
    starts, ends = document["steps_unix_seconds"][0], document.get("step_ends_unix_seconds", [[]])[0]
    lengths = [(b, b - a) for a, b in zip(starts, ends, strict=True)]
    row: dict = {"kind": kind, "true": median([v for _, v in lengths]), "steps": len(lengths), "scrapes": 0, "with_step": 0}
    row["mean"] = statistics.fmean(v for _, v in lengths) if lengths else None
    errors, served, periods, jitters = [], [], {}, []
    counted: list[tuple[float, float]] = []
    for at, one in series.items():
        if not begin <= at <= end + 1:
            continue
        row["scrapes"] += 1
        got = value(one, "gpu_owner_step_seconds")
        if (steps := value(one, "gpu_owner_steps_total")) is not None:
            counted.append((at, steps))
        if got is None:
            continue
        row["with_step"] += 1
        row.setdefault("found_after", at - begin)
        served.append(got)
        for name, labels, confidence in one:
            if name == "gpu_owner_step_confidence_ratio":
                periods[labels["period"]] = periods.get(labels["period"], 0) + 1
                row["confidence"] = confidence
        if (jitter := value(one, "gpu_owner_step_jitter_ratio")) is not None:
            jitters.append(jitter)
        # The same window: what ended in the 30 s before the scrape.
        if now := [v for e, v in lengths if at - 30 <= e <= at]:
            errors.append(got / statistics.median(now) - 1)
    row["periods"] = periods
    if served:
        row |= {"served": served[-1], "jitter": median(jitters), "jitter_true": statistics.pstdev(v for _, v in lengths)
                / row["true"] if lengths else None}  # fmt: skip
    if errors:
        row["within"] = sum(abs(e) <= TOLERANCE for e in errors)
        sizes = [abs(e) for e in errors]
        row |= {"judged": len(errors), "error_last": errors[-1], "error_median": median(sizes), "error_worst": max(sizes),
                "relation": relation(1 + median(errors))}  # fmt: skip
    if counted and counted[-1][1] > 0:
        grown = [(a, s) for a, s in counted if s > 0]
        true_steps = sum(grown[0][0] < e <= grown[-1][0] for _, e in zip(starts, ends, strict=True))
        row |= {"steps_served": grown[-1][1] - grown[0][1], "steps_true_meanwhile": true_steps}
    final = series[max(series)] if series else []
    row["classes"] = {labels["class"]: v for n, labels, v in final if n == "gpu_owner_gpu_seconds_total" and v > 0}
    row["allocated"] = value(final, "gpu_owner_allocated_seconds_total")
    row["measured"] = document.get("classes_seconds", {})
    row["window"] = end - begin
    return row


def halts(series: dict[float, list], document: dict) -> str:
    """When each halt was published, from the begin of the job or of its longest step."""
    begin = document["window_unix_seconds"][0]
    pairs = zip(document["steps_unix_seconds"][0], document.get("step_ends_unix_seconds", [[]])[0], strict=True)
    longest = max(pairs, key=lambda p: p[1] - p[0], default=(begin, begin))
    found: dict[str, list[float]] = {}
    for at, one in series.items():
        for name, labels, _ in one:
            if name == "gpu_bottleneck" and labels["cause"] in HALTS:
                found.setdefault(labels["cause"], []).append(at)
    return "; ".join(f"{cause}: {at[0] - longest[0]:.1f} to {at[-1] - longest[0]:.1f} s after the begin of a step of "
                     f"{longest[1] - longest[0]:.1f} s" for cause, at in found.items())  # fmt: skip


def percent(number: float | None, digits: int = 2) -> str:
    return "" if number is None else f"{100 * number:.{digits}f} %"


def seconds(number: float | None, digits: int = 4) -> str:
    return "" if number is None else f"{number:.{digits}f}"


def report(out: Path) -> str:
    figures = load(out / "figures.json") or {}
    lines = [f"- exporter {figures.get('exporter')}; {figures.get('gpu')}; driver {figures.get('driver')}; "
             f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(figures.get('unix', 0)))} UTC",
             f"- command: `{figures.get('command')}`", f"- CPU of the exporter, share of a core: {figures.get('cpu')}; "
             f"memory {figures.get('pss_mib')} MiB", ""]  # fmt: skip
    results, rows_of = [], {}
    for path in sorted(out.glob("scrapes-*.json.gz")):
        with gzip.open(path, "rt") as file:
            rows_of[path.name[8:-8]] = json.load(file)
    every = sorted((row for rows in rows_of.values() for row in rows), key=lambda r: r[0])
    for kind, job in figures.get("jobs", {}).items():
        document = load(out / f"{kind}.json")
        if document is None or "begin" not in job:
            continue
        near = next((rows for rows in rows_of.values() if rows and rows[0][0] - 5 <= job["begin"] <= rows[-1][0]), [])
        series = owner_series(near, job["owner"], job["begin"], job["end"])
        row = judge(kind, document, series) | {"halts": halts(series, document), "setup": job["ready"] - job["begin"]}
        results.append(row)
    lines += ["| kind | true step, s | served, s | is | error: last, median, worst | within 1 % | named | found after, s | "
              "confidence | steps true, served | jitter true, served | scrapes with a step |", "|" + "---|" * 12]  # fmt: skip
    for r in results:
        if r["kind"] in jobs.KINDS:
            errors = ", ".join(percent(r[k]) for k in ("error_last", "error_median", "error_worst") if k in r)
            within = f"{r['within']} of {r['judged']}" if "judged" in r else ""
            named = ", ".join(f"{k} {v}" for k, v in r["periods"].items())
            steps = f"{r['steps_true_meanwhile']}, {r['steps_served']:.1f}" if "steps_served" in r else ""
            jitter = f"{percent(r['jitter_true'])}, {percent(r['jitter'])}" if "jitter" in r else ""
            found, confidence = seconds(r.get("found_after"), 0), seconds(r.get("confidence"), 2)
            lines.append(f"| {r['kind']} | {seconds(r['true'])} | {seconds(r.get('served'))} | {r.get('relation', '')} | "
                         f"{errors} | {within} | {named or 'none'} | {found} | {confidence} | {steps} | {jitter} | "
                         f"{r['with_step']} of {r['scrapes']} |")  # fmt: skip
    lines += ["", "| kind | allocated, s | sum of classes, s | classes, s | measured by the job, s | its setup before, s | "
              "halts |", "|" + "---|" * 7]  # fmt: skip
    for r in results:
        total = sum(r["classes"].values())
        off = f" ({percent(total / r['allocated'] - 1)})" if r["allocated"] else ""
        classes = ", ".join(f"{k} {v:.1f}" for k, v in sorted(r["classes"].items(), key=lambda x: -x[1]))
        measured = ", ".join(f"{k} {v:.1f}" for k, v in r["measured"].items())
        lines.append(f"| {r['kind']} | {seconds(r['allocated'], 1)} | {total:.1f}{off} | {classes} | {measured} | "
                     f"{r['setup']:.1f} | {r['halts'] or 'none'} |")  # fmt: skip
    for kind in figures.get("jobs", {}):
        document = load(out / f"{kind}.json")
        if document is None or "phases" not in document:
            continue
        lines += ["", f"| {kind}: phase | seconds | causes published, scrapes | step served |", "|---|---|---|---|"]
        for name, begin, end in document["phases"]:
            causes: dict[str, int] = {}
            steps = 0
            for at, series in every:
                if begin <= at <= end:
                    for n, labels, _ in series:
                        if n == "gpu_bottleneck":
                            causes[labels["cause"]] = causes.get(labels["cause"], 0) + 1
                        steps += n == "gpu_owner_step_seconds"
            lines.append(f"| {name} | {end - begin:.0f} | {', '.join(f'{k} {v}' for k, v in causes.items())} | {steps} |")
    if blocks := figures.get("paired"):
        lines += ["", *paired_report(load(out / "paired.json"), blocks)]
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    return "\n".join(lines) + "\n"


def paired_report(document: dict, blocks: list) -> list[str]:
    ends = list(zip(document["steps_unix_seconds"][0], document["step_ends_unix_seconds"][0], strict=True))
    lines = ["| block | exporter | steps | median step, ms | mean, ms |", "|---|---|---|---|---|"]
    medians: dict[int, list[float]] = {0: [], 1: []}
    for at, (on, begin, settled, end) in enumerate(blocks):
        lengths = [b - a for a, b in ends if max(settled, begin + 3) <= a and b <= end]
        if lengths:
            medians[on].append(statistics.median(lengths))
            lines.append(f"| {at + 1} | {'on' if on else 'off'} | {len(lengths)} | {1e3 * medians[on][-1]:.3f} | "
                         f"{1e3 * statistics.fmean(lengths):.3f} |")  # fmt: skip
    pairs = [b / a - 1 for a, b in zip(medians[0], medians[1], strict=False)]
    if pairs:
        lines += ["", f"Step with the exporter over step without, block by block: {', '.join(percent(p, 3) for p in pairs)}; "
                  f"mean {percent(statistics.fmean(pairs), 3)}"]  # fmt: skip
        if len(pairs) > 1:
            lines[-1] += f", standard error {percent(statistics.stdev(pairs) / len(pairs) ** 0.5, 3)}"
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--report", type=Path, metavar="DIR", help="only make the table of these results")
    add("--binary", type=Path)
    add("--out", type=Path)
    add("--parts", default="jobs,loader,waiting,paired")
    add("--kinds", default=",".join(k for k in jobs.KINDS if k != "sleeping_loader"))
    add("--more-kinds", default="", help="kinds that run beside the exporter of `loader` and `waiting`, before those")
    add("--seed", type=int, default=2)
    add("--seconds", type=float, default=40.0)
    add("--seconds-of", type=overrides, default={}, metavar="KIND=S,...")
    add("--target-of", type=overrides, default={}, metavar="KIND=S,...", help="seconds of a step")
    add("--idle", type=float, default=10.0, help="seconds in which the exporter's CPU is measured without a job")
    add("--wedged-after", default="30s", help="owners.wedged_after of all but `jobs`: the least that may be set")
    add("--waiting", default="trainer,server,debugger", metavar="KIND,...", help="kinds of waiting.py")
    add("--scale", type=float, default=1.0, help="waiting: all phases so much longer")
    add("--debug-work", type=float, default=8.0)
    add("--debug-stop", type=float, default=35.0)
    add("--block", type=float, default=10.0, help="paired: seconds of a block")
    add("--paired-kind", default="bf16_gpt")
    add("--pairs", type=int, default=5)
    add("--within", type=float, default=560.0, help="no job is begun that would end later than that")
    options = parser.parse_args()
    if options.report:
        print(report(options.report))
        return 0
    options.binary = options.binary.resolve()
    parts = options.parts.split(",")
    proof = Proof(options)
    halts_soon = {"OWNERS__WEDGED_AFTER": options.wedged_after}
    if "jobs" in parts:
        proof.beside("jobs", {}, proof.jobs_of(options.kinds.split(",")))
    works = proof.jobs_of(options.more_kinds.split(",")) if options.more_kinds else []
    if "loader" in parts:
        seconds = 40 + jobs.REST + 5
        works.append(("sleeping_loader", HERE / "jobs.py", ["--seed", str(options.seed), "--seconds", str(seconds)], seconds))
    if "waiting" in parts:
        waiting = HERE / "waiting.py"
        common = ["--seed", str(options.seed), "--scale", str(options.scale)]
        debug = ["--debug-work", str(options.debug_work), "--debug-stop", str(options.debug_stop)]
        every = {"trainer": (common, 85 * options.scale), "server": (common, 105 * options.scale),
                 "debugger": (common + debug, options.debug_work + options.debug_stop * options.scale + 15)}  # fmt: skip
        works += [(kind, waiting, *every[kind]) for kind in options.waiting.split(",")]
    if "paired" in parts:
        proof.paired()
    if works:
        proof.beside("waiting", halts_soon, works, "waiting" in parts)
    proof.finish()
    (options.out / "table.md").write_text(report(options.out))
    print((options.out / "table.md").read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
