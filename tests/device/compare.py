#!/usr/bin/env python3
"""Compares gpu-node-exporter with NVML and nvidia-smi on a machine with GPUs, and measures what it costs.

Starts the exporter as root and, if it is root itself, as an unprivileged user. For each it takes
rounds of scrapes while NVML is read beside it, and writes

  compare-root.md, compare-unprivileged.md   every series: exporter, NVML, nvidia-smi, tolerance, verdict
  calls-root-vs-unprivileged.md              what each driver call answered to either user
  cost.md                              CPU, memory, time in driver calls, scrape latency (root)
  metrics-root.txt, snapshot-root.json pages as served
  daemons.log                          what the two daemons logged

into --out. Exit status: 0 if all agrees, 1 if something disagrees, is missing or did not end as it must;
2 if the comparison could not be made. A budget exceeded is reported and is no disagreement
(--require-budget makes it one). Changes no setting of any GPU. Needs nvidia-ml-py; --load needs torch.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

sys.dont_write_bytecode = True
try:
    import pynvml as n
except ImportError:
    sys.exit("compare.py needs the Python package nvidia-ml-py")

import cost
import series
import series_errors
import series_links
import smi
from daemon import Daemon, Page
from series import CLOCK_EVENTS, History, Spec, Unanswered, Value

# How often NVML is read beside the exporter, in seconds, by tier. Links are expensive (some 0.1 s a GPU): one GPU at a
# time, with a pause after each.
POLL = {"fast": 0.1, "normal": 0.1, "slow": 1.0, "rare": 1.0, "once": 10.0, "identity": 10.0, series_links.LINKS: 1.0}
ROUND_SECONDS = 3.0
OUR_SECONDS_TOLERANCE = 1.5  # of seconds added up by the exporter: one publication and one reading at each end


class Poller(threading.Thread):
    """Reads NVML all the time, and on request at once."""

    def __init__(self, specs: list[Spec]) -> None:
        super().__init__(daemon=True)
        count = n.nvmlDeviceGetCount()
        self.handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        self.uuids = [series.text(n.nvmlDeviceGetUUID(h)) for h in self.handles]
        self.specs = specs
        self.history = {(gpu, spec): History() for gpu in range(count) for spec in specs}
        self._locks = {links: threading.Lock() for links in (True, False)}
        self._end = threading.Event()
        self._links = threading.Thread(target=self._read_links, daemon=True)

    def read(self, tiers: set[str]) -> None:
        """Reads every series of these tiers on every GPU, now."""
        for links in (False, True):
            for gpu in range(len(self.handles)):
                self._read(gpu, {t for t in tiers if (t == series_links.LINKS) == links}, links)

    def _read(self, gpu: int, tiers: set[str], links: bool) -> None:
        # What is read by one thread waits for nothing that another reads.
        with self._locks[links]:
            for spec in self.specs:
                history = self.history[gpu, spec]
                if spec.poll not in tiers or history.unanswered:
                    continue
                try:
                    value = spec.read(self.handles[gpu])
                    history.readings.append((time.time(), value))
                except Unanswered as why:
                    if not history.readings:
                        history.unanswered = str(why)

    def _read_links(self) -> None:
        gpu = 0
        while not self._end.wait(POLL[series_links.LINKS]):
            self._read(gpu, {series_links.LINKS}, True)
            gpu = (gpu + 1) % len(self.handles)

    def run(self) -> None:
        self._links.start()
        due = {tier: 0.0 for tier in POLL if tier != series_links.LINKS}
        while not self._end.is_set():
            now = time.monotonic()
            tiers = {tier for tier, at in due.items() if at <= now}
            due |= {tier: now + POLL[tier] for tier in tiers}
            self.read(tiers)
            self._end.wait(max(0.0, min(due.values()) - time.monotonic()))

    def stop(self) -> None:
        self._end.set()
        self.join()
        self._links.join()


@dataclass
class Round:
    """One scrape, the reading of nvidia-smi after it, and whether the load ran."""

    at: float
    page: Page
    smi: smi.Reading | None
    loaded: bool


@dataclass
class Row:
    """One series of one GPU over all rounds; the shown values are those of the worst round."""

    gpu: int
    spec: Spec
    exporter: Value | None = None
    nvml: str = ""
    smi: str = ""
    verdict: str = ""
    bad: bool = False
    compared: int = 0
    outside: int = 0
    deviation: float = 0.0  # beyond the range of NVML's readings, tolerance not taken off
    smi_outside: int = 0
    smi_compared: int = 0
    smi_unanswered: str = ""


class Load:
    """The torch program beside this one, on GPU 0."""

    def __init__(self, seconds: float) -> None:
        program = Path(__file__).with_name("gpu_load.py")
        self.process = subprocess.Popen(
            [sys.executable, str(program), "--seconds", f"{seconds:.0f}"], stdout=subprocess.PIPE, text=True
        )

    def wait_busy(self, seconds: float = 90.0) -> bool:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        return bool(ready) and self.process.stdout.readline().strip() == "loading"

    def stop(self) -> None:
        """Asks it to end; a GPU client is not killed unless it does not listen for a long time."""
        self.process.terminate()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def settle(daemon: Daemon, poller: Poller, seconds: float = 20.0) -> None:
    """Waits until every value of the slow and rare tiers was read later than NVML beside it for the first time."""
    begin, end = time.time() + 2 * POLL["slow"], time.monotonic() + seconds
    while time.monotonic() < end:
        read = [v for labels, v in daemon.scrape().all("gpu_exporter_sample_timestamp_seconds")
                if labels["tier"] in ("slow", "rare")]  # fmt: skip
        if len(read) >= len(poller.handles) and min(read) > begin:
            return
        time.sleep(0.2)


def take_rounds(daemon: Daemon, poller: Poller, tool: smi.Smi, seconds: float, load: bool) -> tuple[list[Round], str]:
    """Rounds over `seconds`: with load a third idle, a third loaded, a third idle again."""
    rounds: list[Round] = []

    def during(length: float, loaded: bool) -> None:
        end = time.monotonic() + length
        while True:
            begin = time.monotonic()
            poller.read({"fast", "normal"})
            at, page = time.time(), daemon.page()
            poller.read({"fast", "normal"})
            # nvidia-smi's links cost the driver as much as NVML's: in some rounds only.
            reading = tool.try_read(time.time, links=len(rounds) % 5 == 0)
            rounds.append(Round(at, page, reading, loaded))
            if time.monotonic() + ROUND_SECONDS > end:
                time.sleep(max(0.0, end - time.monotonic()))
                return
            time.sleep(max(0.0, begin + ROUND_SECONDS - time.monotonic()))

    note = "no load was run"
    if not load:
        during(seconds, False)
    else:
        during(seconds / 3, False)
        program = Load(seconds)
        try:
            busy = program.wait_busy()
            note = "a matrix product loop ran on GPU 0 for the middle third" if busy else "the load did NOT start"
            during(seconds / 3, busy)
        finally:
            program.stop()
        during(seconds / 3, False)
    # What the slow tier's newest reading is compared with must lie on both sides of it.
    time.sleep(2 * POLL["slow"])
    poller.read(set(POLL))
    return rounds, note


def published(spec: Spec, page: Page, gpu: int, uuid: str) -> Value | None:
    """The exporter's value of a series."""
    if spec.info_label:
        for labels, _ in page.all(spec.metric):
            if labels.get("uuid") == uuid and all(labels.get(k) == v for k, v in spec.labels):
                return labels.get(spec.info_label)
        return None
    return page.get(spec.metric, gpu=str(gpu), uuid=uuid, **dict(spec.labels))


def read_between(spec: Spec, page: Page, gpu: int, uuid: str, at: float) -> tuple[float, float]:
    """When the exporter read the value that the page shows."""
    began = page.get("gpu_exporter_sample_timestamp_seconds", gpu=str(gpu), uuid=uuid, tier=spec.tier)
    # A visit of the most expensive tier takes some 40 ms.
    return (at, at) if began is None else (began, began + 0.05)


def same(a: Value, b: Value, allowed: float) -> bool:
    if isinstance(a, str) or isinstance(b, str):
        return a == b
    return abs(a - b) <= allowed + 1e-9 * max(abs(a), abs(b))


def compare_series(spec: Spec, gpu: int, uuid: str, rounds: list[Round], history: History, strict: bool) -> Row:
    """One series over all rounds."""
    row = Row(gpu, spec)
    seen = [published(spec, r.page, gpu, uuid) for r in rounds]
    if history.unanswered is not None:
        row.nvml, row.exporter = history.unanswered, next((v for v in reversed(seen) if v not in (None, "")), None)
        row.bad = row.exporter is not None and "pynvml" not in history.unanswered
        if strict and not series.unanswered_on_h200(spec) and "pynvml" not in history.unanswered:
            row.bad, row.verdict = True, "NOT ANSWERED (recorded as answered)"
        else:
            row.verdict = "DISAGREES" if row.bad else "absent in both" if row.exporter is None else "not compared"
        return row
    if any(v is None for v in seen):
        row.bad, row.exporter = True, next((v for v in seen if v is not None), None)
        row.nvml = series.show(history.readings[-1][1]) if history.readings else ""
        row.verdict = f"MISSING in {sum(v is None for v in seen)} of {len(seen)} rounds"
        return row
    worst = -1.0
    for r, value in zip(rounds, seen):
        assert value is not None
        began, ended = read_between(spec, r.page, gpu, uuid, r.at)
        beside = history.around(began - spec.window, ended + spec.window)
        if not beside:
            continue
        row.compared += 1
        if isinstance(value, str) or any(isinstance(v, str) for v in beside):
            ok, deviation = value in beside, 0.0
            shown = " or ".join(sorted({series.show(v) for v in beside}))
        else:
            low, high = min(beside), max(beside)
            deviation = max(low - value, value - high, 0.0)
            ok = low - spec.tolerance(low) - 1e-9 * abs(low) <= value <= high + spec.tolerance(high) + 1e-9 * abs(high)
            deviation = 0.0 if deviation <= 1e-9 * abs(high) else deviation
            shown = series.show(low) if low == high else f"{series.show(low)} … {series.show(high)}"
        row.outside += not ok
        row.deviation = max(row.deviation, deviation)
        # nvidia-smi read a moment later: what moved meanwhile, as NVML saw it, is allowed for.
        smi_shown, smi_ok = "", True
        if r.smi is not None:
            try:
                other = r.smi.value(uuid, spec)
                row.smi_compared += 1
                moved = history.spread(min(began, r.smi.begin) - spec.window, max(ended, r.smi.end) + spec.window)
                rounding = spec.smi.rounding if spec.smi else 0.0
                number = value if isinstance(value, float) else 0.0
                smi_ok = same(value, other, spec.tolerance(number) + rounding + moved)
                row.smi_outside += not smi_ok
                smi_shown = series.show(other)
            except Unanswered as why:
                row.smi_unanswered = smi_shown = str(why)
        # Shown is the worst round; of rounds equally good, one under load.
        rank = 1e12 * (not ok) + 1e9 * (not smi_ok) + deviation + (1e-6 if r.loaded else 0.0)
        rank += 2e-6 if smi_shown else 0.0
        if rank > worst:
            worst, row.exporter, row.nvml, row.smi = rank, value, shown, smi_shown
    if row.compared == 0:
        row.bad, row.verdict = True, "NOT COMPARED: no reading of NVML"
        return row
    allowed = int(spec.misses * row.compared)
    row.bad = row.outside > allowed or row.smi_outside > max(allowed, int(spec.misses * row.smi_compared))
    if row.outside > allowed:
        row.verdict = f"DISAGREES in {row.outside} of {row.compared} rounds"
    elif row.bad:
        row.verdict = f"DISAGREES with nvidia-smi in {row.smi_outside} of {row.smi_compared} rounds"
    else:
        missed = max(row.outside, row.smi_outside)
        row.verdict = "agrees" + (f" ({missed} of {row.compared} rounds outside, allowed)" if missed else "")
    return row


@dataclass
class NodeRow:
    """A series that is not read from one NVML call, compared by a rule of its own."""

    name: str
    exporter: str
    beside: str
    rule: str
    bad: bool


def compare_node(rounds: list[Round], poller: Poller) -> list[NodeRow]:
    """The driver, the inventory, and the seconds that the exporter adds up itself."""
    page, last = rounds[-1].page, rounds[-1]
    rows = []

    def exact(name: str, expected: float, **labels: str) -> None:
        value = page.get(name, **labels)
        rows.append(NodeRow(name + (f" (GPU {labels['gpu']})" if "gpu" in labels else ""), series.show(value),
                            series.show(float(expected)), "exact", value != expected))  # fmt: skip

    exact("gpu_driver_up", 1)
    exact("gpu_exporter_collector_up", 1, collector="nvml")
    exact("gpu_driver_stuck", 0)
    exact("gpu_devices", len(poller.handles))
    exact("gpu_devices_expected", len(poller.handles))
    for gpu, uuid in enumerate(poller.uuids):
        exact("gpu_up", 1, gpu=str(gpu), uuid=uuid)
    found = [labels for labels, _ in page.all("gpu_driver_info")]
    for label, expected in series.driver_info().items():
        value = found[0].get(label, "") if found else ""
        beside, bad = expected, value != expected and bool(expected)
        shown = {"driver_version": "driver_version", "cuda_version": "cuda_version"}.get(label)
        if last.smi is not None and shown and (other := getattr(last.smi, shown)):
            beside, bad = f"{expected}; nvidia-smi {other}", bad or other != value
        rows.append(NodeRow(f"gpu_driver_info{{{label}}}", value, beside or "no answer", "exact", bad))
    # Seconds that the exporter adds up: their growth against the time for which NVML named the reason.
    active = {dict(s.labels)["reason"]: s for s in poller.specs if s.metric == "gpu_clock_event_active"}
    first = rounds[0]
    for gpu, uuid in enumerate(poller.uuids):
        for reason, _, _, field_id in CLOCK_EVENTS:
            history = poller.history[gpu, active[reason]]
            if field_id or history.unanswered:
                continue
            name, labels = "gpu_clock_event_seconds_total", {"gpu": str(gpu), "uuid": uuid, "reason": reason}
            begin, end = first.page.get(name, **labels), last.page.get(name, **labels)
            took = history.active_seconds(first.at, last.at)
            grown = None if begin is None or end is None else end - begin
            rows.append(NodeRow(
                f'{name}{{reason="{reason}"}} (GPU {gpu}), growth over {last.at - first.at:.0f} s',
                "MISSING" if grown is None else f"{grown:.2f}", f"{took:.2f}", f"± {OUR_SECONDS_TOLERANCE:g} s + 2 %",
                grown is None or abs(grown - took) > OUR_SECONDS_TOLERANCE + 0.02 * took,
            ))  # fmt: skip
    return rows


def compare_report(header: str, rounds: list[Round], poller: Poller, specs: list[Spec], tool: smi.Smi,
                   note: str) -> tuple[str, list[str], int]:  # fmt: skip
    """The report, the lines of the summary, and how many series are bad."""
    mig = {gpu for gpu, uuid in enumerate(poller.uuids)
           if rounds[-1].page.get("gpu_mig_mode_enabled", gpu=str(gpu), uuid=uuid) == 1}  # fmt: skip
    rows = []
    for gpu, uuid in enumerate(poller.uuids):
        model = next((l.get("model", "") for l, _ in rounds[-1].page.all("gpu_info") if l.get("uuid") == uuid), "")
        strict = "H200" in model and gpu not in mig
        rows += [compare_series(s, gpu, uuid, rounds, poller.history[gpu, s], strict) for s in specs]
    node = compare_node(rounds, poller)
    bad = [r for r in rows if r.bad]
    bad_node = [r for r in node if r.bad]
    agreed = sum(r.verdict.startswith("agrees") for r in rows)
    absent = sum(r.verdict == "absent in both" for r in rows)
    with_smi = sum(r.smi_compared > 0 for r in rows)
    loaded = sum(r.loaded for r in rounds)
    summary = [
        f"{len(rounds)} rounds ({loaded} under load; {note}) over {rounds[-1].at - rounds[0].at:.0f} s, "
        f"{len(poller.uuids)} GPUs",
        f"{agreed} series of GPUs agree with NVML, {with_smi} of all compared with nvidia-smi too; "
        f"{absent} absent in both; {len(bad)} disagree or are missing",
        f"{len(node) - len(bad_node)} of {len(node)} figures of driver, inventory and added-up time agree",
    ]
    if not tool.path:
        summary.append("nvidia-smi not found: compared with NVML only")
    if tool.failures:
        summary.append(f"nvidia-smi failed {len(tool.failures)} times so far: {tool.failures[-1]}")
    out = [header, *(f"- {line}" for line in summary), ""]
    out += ["Moving values are compared with the range of the NVML readings around the moment at which the "
            "exporter read its value, widened by the tolerance. `a … b` is that range. Shown is the worst round.",
            ""]  # fmt: skip
    if tool.refused:
        out += ["This nvidia-smi has no " + ", ".join(f"`{name}`" for name in tool.refused) + ".", ""]
    for title, some in [("Disagreements", bad), ("GPU 0", [r for r in rows if r.gpu == 0])]:
        if title == "Disagreements" and not some and not bad_node:
            continue
        out += [f"## {title}", "", "| GPU | series | exporter | NVML | nvidia-smi | tolerance | verdict |",
                "|---|---|---|---|---|---|---|"]  # fmt: skip
        for r in some:
            shown = series.show(r.exporter)
            out.append(f"| {r.gpu} | `{r.spec.name}` | {shown} | {r.nvml} | {r.smi} | {r.spec.tolerance_text()} "
                       f"| {r.verdict} |")  # fmt: skip
        out.append("")
    out += ["## Driver, inventory, added-up time", "", "| series | exporter | NVML | tolerance | verdict |",
            "|---|---|---|---|---|"]  # fmt: skip
    out += [f"| `{r.name}` | {r.exporter} | {r.beside} | {r.rule} | {'DISAGREES' if r.bad else 'agrees'} |"
            for r in node]  # fmt: skip
    out += ["", "## All GPUs, by metric", "",
            "Worst deviation: how far a value lay outside the range of NVML's readings, before the tolerance.", "",
            "| metric | series | comparisons | outside | worst deviation | on GPU | tolerance | bad series |",
            "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for metric in dict.fromkeys(s.metric for s in specs):
        of = [r for r in rows if r.spec.metric == metric]
        worst = max(of, key=lambda r: r.deviation)
        tolerances = ", ".join(dict.fromkeys(r.spec.tolerance_text() for r in of))
        out.append(f"| `{metric}` | {sum(r.compared > 0 for r in of)} | {sum(r.compared for r in of)} | "
                   f"{sum(r.outside for r in of)} | {series.show(worst.deviation)} | "
                   f"{worst.gpu if worst.deviation else ''} | {tolerances} | {sum(r.bad for r in of)} |")  # fmt: skip
    compared = {s.metric for s in specs} | {r.name.split("{")[0].split(" ")[0] for r in node}
    left = sorted({name for name, labels in rounds[-1].page.series if name not in compared
                   and not name.startswith(("gpu_exporter_", "process_"))})  # fmt: skip
    out += ["", "Published and not compared here: " + (", ".join(f"`{name}`" for name in left) or "none")
            + " (besides the exporter's own `gpu_exporter_*` and `process_*`).", ""]  # fmt: skip
    summary += [f"GPU {r.gpu} {r.spec.name}: {r.verdict}; exporter {series.show(r.exporter)}, NVML {r.nvml}, "
                f"nvidia-smi {r.smi or '-'}" for r in bad[:20]]  # fmt: skip
    summary += [f"{r.name}: DISAGREES; exporter {r.exporter}, NVML {r.beside}" for r in bad_node[:10]]
    return "\n".join(out), summary, len(bad) + len(bad_node)


def outcomes(snapshot: dict, specs: list[Spec]) -> dict[tuple[int, str, str], tuple[str, str]]:
    """(GPU, call, metric) to (outcome, reason): answered only if its series is there."""
    result: dict[tuple[int, str, str], tuple[str, str]] = {}
    have: dict[tuple[str, tuple], object] = {}
    infos: dict[str, dict] = {}
    for metric in snapshot["metrics"]:
        have[metric["name"], tuple(sorted(metric["labels"].items()))] = metric.get("value", 0)
        if metric["name"] == "gpu_info":
            infos[metric["labels"]["uuid"]] = metric["labels"]
    for gpu in snapshot["gpus"]:
        index, uuid = gpu["gpu"], gpu["uuid"]
        gaps = {}
        for gap in gpu["gaps"]:
            kind = gap["missing"] + (f" ({gap['error']})" if gap["error"] else "")
            for metric in gap["metrics"] or [""]:
                gaps[gap["call"], metric] = (kind, gap["text"])
                result[index, gap["call"], metric] = (kind, gap["text"])
        for spec in specs:
            key = (index, spec.call, spec.metric)
            if key in result:
                continue
            if spec.metric == "gpu_info":
                there = bool(infos.get(uuid, {}).get(spec.info_label))
            elif spec.info_label:
                there = any(name == spec.metric and ("uuid", uuid) in labels for name, labels in have)
            else:
                labels = dict(spec.labels) | {"gpu": str(index), "uuid": uuid}
                there = (spec.metric, tuple(sorted(labels.items()))) in have
            whole = gaps.get(("nvmlDeviceGetFieldValues", spec.metric)) if "FieldValues" in spec.call else None
            result[key] = ("answered", "") if there else whole or ("no series and no gap reported", gpu["text"])
    return result


def calls_report(header: str, root: dict, unprivileged: dict, specs: list[Spec], pages: dict[str, Page]) -> tuple[str, list[str]]:
    """Side by side: what each call answered to root and to the unprivileged user."""
    a, b = outcomes(root, specs), outcomes(unprivileged, specs)
    absent = ("not asked", "")
    keys = sorted(a.keys() | b.keys())
    differing = [k for k in keys if a.get(k, absent)[0] != b.get(k, absent)[0]]
    counts: dict[str, int] = {}
    for k in keys:
        if k not in differing:
            counts[a[k][0]] = counts.get(a[k][0], 0) + 1
    out = [header, f"- {len(keys)} calls (each GPU, each metric it feeds): {len(keys) - len(differing)} answered "
           f"alike to root and unprivileged, {len(differing)} differently",
           "- alike: " + ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())),
           ""]  # fmt: skip
    for user, snapshot in (("root", root), ("unprivileged", unprivileged)):
        states = [f"GPU {g['gpu']} {g['state']}" for g in snapshot["gpus"] if g["state"] != "up"]
        wrong = [f"{c['collector']}: {c['text']}" for c in snapshot["collectors"] if not c["up"] or c["text"]]
        out.append(f"- {user}: driver {snapshot['driver']['state']}; GPUs not up: {', '.join(states) or 'none'}; "
                   f"collectors with something to say: {'; '.join(wrong) or 'none'}")  # fmt: skip

    def names(page: Page) -> set[str]:
        return {name + "{" + ",".join(f'{k}="{v}"' for k, v in labels if k not in ("uuid", "version")) + "}"
                for name, labels in page.series if not name.endswith("_info")}  # fmt: skip

    functions = {user: set(cost.by_label(page, "gpu_exporter_driver_calls_total", "call")) for user, page in pages.items()}
    only = {"root": functions["root"] - functions["unprivileged"], "unprivileged": functions["unprivileged"] - functions["root"]}
    out.append(f"- NVML functions called: {len(functions['root'])} as root, {len(functions['unprivileged'])} as unprivileged user"
               + "".join(f"; only as {u}: {', '.join(sorted(v))}" for u, v in only.items() if v))  # fmt: skip
    here, there = names(pages["root"]), names(pages["unprivileged"])
    out.append(f"- series: {len(here)} as root, {len(there)} as unprivileged user, {len(here & there)} of the same name and labels")
    out += [f"  - only as root: `{s}`" for s in sorted(here - there)[:40]]
    out += [f"  - only as unprivileged user: `{s}`" for s in sorted(there - here)[:40]]
    info = {u: dict(next(iter(p.all("gpu_driver_info")), ({}, 0))[0]) for u, p in pages.items()}
    for label in sorted(info["root"].keys() | info["unprivileged"].keys()):
        x, y = info["root"].get(label, ""), info["unprivileged"].get(label, "")
        if x != y:
            out.append(f"  - `gpu_driver_info{{{label}}}`: `{x}` as root, `{y}` as unprivileged user")
    columns = ["| GPU | call | metric | root | unprivileged | reason |", "|---|---|---|---|---|---|"]

    def line(k: tuple[int, str, str]) -> str:
        x, y = a.get(k, absent), b.get(k, absent)
        return f"| {k[0]} | {k[1]} | `{k[2]}` | {x[0]} | {y[0]} | {' / '.join(dict.fromkeys(t for t in (x[1], y[1]) if t))} |"

    out += ["", "## Differences", ""]
    out += [*columns, *map(line, differing)] if differing else ["None."]
    out += ["", "## GPU 0, every call", "", *columns, *(line(k) for k in keys if k[0] == 0), ""]
    untold = sum("no gap" in o[0] for o in a.values())
    return "\n".join(out), [f"calls: {len(keys) - len(differing)} of {len(keys)} answered alike to root and unprivileged, "
                            f"{len(differing)} differently; {untold} with neither series nor gap (root)"]  # fmt: skip


def header(title: str, poller: Poller, arguments: list[str], user: str, binary: Path) -> str:
    """The head of a report: when, on what, with which command."""
    info = series.driver_info()
    models: dict[str, int] = {}
    for handle in poller.handles:
        name = series.text(n.nvmlDeviceGetName(handle))
        models[name] = models.get(name, 0) + 1
    version = subprocess.run([str(binary), "--version"], capture_output=True, text=True).stdout.strip()
    hardware = ", ".join(f"{count} x {name}" for name, count in models.items())
    return "\n".join([
        f"# {title}", "",
        f"- {datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S} UTC",
        f"- hardware: {hardware}; {os.cpu_count()} CPUs; Linux {platform.release()} {platform.machine()}",
        f"- driver {info['driver_version']}, NVML {info['nvml_version']}, CUDA {info['cuda_version']}",
        f"- {version or 'gpu-node-exporter'}, exporter run as {user}",
        f"- command: `tests/device/compare.py {' '.join(Path(a).name if '/' in a else a for a in arguments)}`", "",
    ])  # fmt: skip


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, required=True, metavar="PATH", help="the gpu-node-exporter")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the reports go")
    parser.add_argument("--load", action="store_true", help="run gpu_load.py (torch) on GPU 0 in the middle third")
    parser.add_argument("--seconds", type=float, default=45.0, help="length of each user's rounds (45)")
    parser.add_argument("--cost-seconds", type=float, default=60.0, help="length of the cost measurement; 0 for none (60)")
    parser.add_argument("--scrape-every", type=float, default=1.0, help="seconds between the scrapes of the cost measurement (1)")
    parser.add_argument("--require-smi", action="store_true", help="fail if there is no nvidia-smi")
    parser.add_argument("--require-budget", action="store_true", help="fail if a budget is exceeded")
    parser.add_argument("--nvml-library", type=Path, metavar="PATH",
                        help="for the exporter; this script loads libnvidia-ml.so.1 as the loader finds it")  # fmt: skip
    options = parser.parse_args(arguments)
    if options.cost_seconds and not 0 < options.scrape_every <= options.cost_seconds:
        parser.error("--scrape-every: more than 0, and no more than --cost-seconds")

    try:
        n.nvmlInit()
    except n.NVMLError as error:
        print(f"NVML does not start: {error}")
        return 2
    specs = series.table() + series_errors.table() + series_links.table(series_links.most_links())
    tool = smi.Smi(specs)
    if not tool.path:
        print("nvidia-smi not found")
        if options.require_smi:
            return 2
    options.out.mkdir(parents=True, exist_ok=True)
    users = ["root", "unprivileged"] if os.geteuid() == 0 else [os.environ.get("USER", "user")]
    extra = ["--nvml-library", str(options.nvml_library.resolve())] if options.nvml_library else []
    summary: list[str] = []
    failed = False

    def say(*lines: str) -> None:
        summary.extend(lines)
        print(*lines, sep="\n", flush=True)

    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpu-node-exporter-")))
        folder.chmod(0o755)
        binary = folder / "gpu-node-exporter"
        shutil.copyfile(options.binary, binary)
        binary.chmod(0o755)
        daemons: dict[str, Daemon] = {}
        snapshots: dict[str, dict] = {}
        pages: dict[str, Page] = {}

        def end_all() -> None:
            for daemon in daemons.values():
                if daemon.process.poll() is None:
                    daemon.terminate()

        stack.callback(end_all)
        if options.cost_seconds:
            daemon = daemons["cost"] = Daemon(binary, folder / "cost", users[0], extra)
            daemon.wait_ready()
            idle = Poller(specs)  # for the header only: not started, reads nothing
            head = header("What the exporter costs", idle, arguments, users[0], binary)
            lines = cost.measure(daemon, options.cost_seconds, options.scrape_every, head, options.out / "cost.md")
            failed |= options.require_budget and any("EXCEEDED" in line for line in lines)
            say(*lines)
            daemon.terminate()
        for user in users:
            # The rare tier more often than by default, so that its values are read again while comparing.
            often = {"SAMPLER__RARE_INTERVAL": "10s", "SAMPLER__NVLINK_INTERVAL": "10s"}
            daemon = daemons[user] = Daemon(binary, folder, user, extra, often)
            say(f"## {user}", f"ready, every GPU read, after {daemon.wait_ready():.2f} s")
            poller = Poller(specs)
            poller.read(set(POLL))
            poller.start()
            settle(daemon, poller)
            rounds, note = take_rounds(daemon, poller, tool, options.seconds, options.load)
            poller.stop()
            head = header("The exporter beside NVML and nvidia-smi", poller, arguments, user, binary)
            report, lines, bad = compare_report(head, rounds, poller, specs, tool, note)
            (options.out / f"compare-{user}.md").write_text(report)
            failed |= bad > 0 or (options.load and "NOT" in note)
            say(*lines)
            snapshots[user], pages[user] = daemon.snapshot(), daemon.page()
            if user == users[0]:
                (options.out / f"metrics-{user}.txt").write_text(pages[user].text)
                (options.out / f"snapshot-{user}.json").write_bytes(daemon.request("/api/v1/snapshot")[1])
            ended = daemon.terminate()
            failed |= not ended["ok"]
            say(f"SIGTERM: ended after {ended['seconds']:.2f} s with status {ended['status']}, "
                f"processes left: {ended['left'] or 'none'}" + ("" if ended["ok"] else "  FAILED"))  # fmt: skip
        failed |= options.require_smi and bool(tool.failures)
        if len(users) == 2:
            head = header("Driver calls as root and as unprivileged user", poller, arguments, "root and as unprivileged user", binary)
            report, lines = calls_report(head, snapshots["root"], snapshots["unprivileged"], specs, pages)
            (options.out / "calls-root-vs-unprivileged.md").write_text(report)
            say("## root and unprivileged", *lines)
        logs = "".join(f"==> {user}\n{d.log.read_text(errors='replace')[-500_000:]}\n" for user, d in daemons.items())
        (options.out / "daemons.log").write_text(logs)
    print(f"\n{'FAILED' if failed else 'ALL AGREES'}; reports in {options.out.name}")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except RuntimeError as problem:
        print(f"the comparison could not be made: {problem}")
        sys.exit(2)
