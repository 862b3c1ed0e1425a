"""Faults: how long after a kernel's illegal write the Xid is counted and listed, and whether it counts once."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable

from daemon import Daemon
from proofs.common import Env, Gpu, Report, mean

SECONDS = 150
MOST_SECONDS = 0.2
CODE = 31  # MMU fault
POLL = 0.01


class KernelLog:
    """The driver's lines in the kernel log from now on, if this user may read it."""

    def __init__(self) -> None:
        self.why_not = ""
        self._fd = None
        try:
            self._fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError as error:
            self.why_not = f"/dev/kmsg: {error.strerror}"
        self._seen = set(self._dmesg()) if self._fd is None else set()

    @property
    def readable(self) -> bool:
        return self._fd is not None

    def _dmesg(self) -> list[str]:
        path = shutil.which("dmesg")
        if path is None:
            return []
        done = subprocess.run([path], capture_output=True, text=True, errors="replace", timeout=20)
        return [line for line in done.stdout.splitlines() if "NVRM" in line]

    def new(self) -> list[str]:
        """What has come since the last time."""
        if self._fd is None:
            fresh = [line for line in self._dmesg() if line not in self._seen]
            self._seen.update(fresh)
            return fresh
        found = []
        while True:
            try:
                record = os.read(self._fd, 16384).decode(errors="replace")
            except BlockingIOError:
                return [line for line in found if "NVRM" in line]
            except BrokenPipeError:  # overrun: the next read goes on
                continue
            except OSError:
                return [line for line in found if "NVRM" in line]
            if not record:
                return [line for line in found if "NVRM" in line]
            found.append(record.split("\n")[0].partition(";")[2])

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)


class Poller(threading.Thread):
    """Asks for a page every 10 ms until `look` finds in it what is waited for; notes when the answer was there."""

    def __init__(self, daemon: Daemon, path: str, look: Callable[[bytes], bool]) -> None:
        super().__init__(daemon=True)
        self.port, self.path, self.look = daemon.port, path, look
        self.seen: float | None = None
        self.asked = 0
        self.failure = ""
        self._end = threading.Event()

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        while not self._end.is_set():
            begin = time.monotonic()
            try:
                connection.request("GET", self.path, headers={"Accept": "application/json" if "api" in self.path
                                                              else "text/plain; version=0.0.4"})  # fmt: skip
                answer = connection.getresponse()
                body = answer.read()
                self.asked += 1
                if answer.status != 200:
                    self.failure = f"{self.path} answered {answer.status}"
                elif self.look(body):
                    self.seen = time.monotonic()
                    break
            except Exception as problem:
                self.failure = f"{type(problem).__name__}: {problem}"
                connection.close()
            self._end.wait(max(0.0, begin + POLL - time.monotonic()))
        connection.close()

    def stop(self) -> None:
        self._end.set()
        self.join(timeout=15)


def counted(text: str, gpu: Gpu) -> float:
    """Faults of this code of this GPU on a page; 0 before the first."""
    total = 0.0
    for found in re.finditer(r"^gpu_xid_errors_total\{([^}]*)\} (\S+)", text, re.MULTILINE):
        if f'xid="{CODE}"' in found[1] and f'uuid="{gpu.uuid}"' in found[1]:
            total += float(found[2])
    return total


def listed(body: bytes) -> list[dict]:
    """Events of this code that are not from before the exporter watched."""
    document = json.loads(body)
    events = document if isinstance(document, list) else document.get("events", [])
    return [e for e in events if str(e.get("code")) == str(CODE) and "xid" in str(e.get("kind", "xid")).lower()
            and "sxid" not in str(e.get("kind", "")).lower() and not e.get("old")]  # fmt: skip


def marks(events: list[dict]) -> set[tuple]:
    """What changes when an event is added or one is repeated."""
    return {(e.get("id"), e.get("repeats")) for e in events}


def run(env: Env, report: Report) -> None:
    gpu = env.gpu()
    log = KernelLog()
    report.data |= {"kmsg_readable": log.readable, "faults": []}
    report.info("/dev/kmsg for this user", "readable" if log.readable else log.why_not)
    with contextlib.closing(log), env.daemon("xid") as daemon:
        with report.part("state of the sources"):
            for collector in daemon.snapshot().get("collectors", []):
                report.info(f"collector {collector.get('collector')}", "up" if collector.get("up") else "not up",
                            text=collector.get("text") or "")  # fmt: skip
        for at in range(env.options.xids):
            with report.part(f"fault {at + 1}"):
                one_fault(env, report, gpu, daemon, log, at + 1)
        page = daemon.scrape()
        with report.part("afterwards"):
            total, faults = counted(page.text, gpu), len(report.data["faults"])
            report.judge("all faults counted once each", total == faults > 0, total, faults)
            for name in ("gpu_xid_faults_total", "gpu_driver_events_total"):
                counts = {v for labels, value in gpu.all(page, name) if value
                        for v in [", ".join(f"{k}={x}" for k, x in labels.items() if k not in ("gpu", "uuid")) + f": {value:g}"]}  # fmt: skip
                report.info(name, "; ".join(sorted(counts)) or "all 0")
            other = sum(v for labels, v in page.all("gpu_xid_errors_total") if labels.get("uuid") != gpu.uuid)
            report.near("faults counted for other GPUs", other, 0)
            status, body = daemon.request("/api/v1/events")
            (env.out / "xid-events.json").write_bytes(body)
            report.info("/api/v1/events", f"status {status}", text=f"{len(body)} bytes kept")
        seconds = {name: [f[name] for f in report.data["faults"] if f.get(name) is not None]
                   for name in ("metrics_seconds", "events_seconds", "complete_seconds")}  # fmt: skip
        for name, values in seconds.items():
            if values:
                report.info(f"{name}, mean of {len(values)}", mean(values), text=f"at most {max(values):.4f}")


def one_fault(env: Env, report: Report, gpu: Gpu, daemon: Daemon, log: KernelLog, number: int) -> None:
    base = counted(daemon.scrape().text, gpu)
    status, body = daemon.request("/api/v1/events")
    if status != 200:
        report.fail(f"fault {number}: /api/v1/events", f"answered {status}")
    old = marks(listed(body)) if status == 200 else set()
    log.new()
    with env.load("fault", gpu) as child:
        pid = child.wait("ready", 1)["pid"]

        def complete(body: bytes) -> bool:
            return any(e.get("pid") == pid and "Xid" in str(e.get("text") or "") for e in listed(body))

        pollers = {
            "metrics": Poller(daemon, "/metrics", lambda b: counted(b.decode(), gpu) >= base + 1),
            "events": Poller(daemon, "/api/v1/events", lambda b: bool(marks(listed(b)) - old)),
            "complete": Poller(daemon, "/api/v1/events", complete),
        }
        for poller in pollers.values():
            poller.start()
        time.sleep(0.5)
        child.send("go")
        fault = None
        try:
            try:
                fault = child.wait("fault", 20)
            except RuntimeError as problem:
                report.fail(f"fault {number}: the illegal write", str(problem))
                return
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline and any(p.seen is None for p in pollers.values()):
                time.sleep(0.02)
        finally:
            for poller in pollers.values():
                poller.stop()
    at, launched = fault["mono"], fault["launched"]
    one: dict[str, object] = {"pid": pid, "error": fault["error"], "launch_to_error_seconds": at - launched}
    report.data["faults"].append(one)
    report.info(f"fault {number}: the child's error", fault["error"], text=f"{(at - launched) * 1e3:.1f} ms after the launch")
    for name, poller in pollers.items():
        one[f"{name}_seconds"] = None if poller.seen is None else poller.seen - at
    what = {"metrics": f'gpu_xid_errors_total{{xid="{CODE}"}}', "events": "/api/v1/events, listed",
            "complete": "/api/v1/events, with pid and text"}  # fmt: skip
    for name, poller in pollers.items():
        title = f"fault {number}: {what[name]}, seconds after the error"
        if poller.seen is not None:
            report.at_most(title, poller.seen - at, MOST_SECONDS, f"asked {poller.asked} times")
        elif name == "complete" and not log.readable:
            report.skip(title, f"only the kernel log tells pid and text; {log.why_not}")
        else:
            report.fail(title, f"not within 5 s, asked {poller.asked} times. {poller.failure}")
    # Later witnesses must not count it again.
    time.sleep(10)
    lines = [line for line in log.new() if "Xid" in line]
    page = daemon.scrape()
    grown = counted(page.text, gpu) - base
    said = sum(f"): {CODE}," in line for line in lines)
    report.judge(f"fault {number}: counted once, 10 s later", grown == 1, grown, 1,
                 f"lines of Xid {CODE} in the kernel log: {said if log.readable else 'not readable'}")  # fmt: skip
    one |= {"counted": grown, "kernel_log": lines}
    report.info(f"fault {number}: kernel log", f"{len(lines)} lines of an Xid", text=" / ".join(lines[:3]))
    status, body = daemon.request("/api/v1/events")
    if status != 200:
        return
    now = listed(body)
    fresh = [e for e in now if (e.get("id"), e.get("repeats")) not in old]
    report.judge(f"fault {number}: entries new or repeated in the list", len(fresh) == 1, len(fresh), 1)
    event = next((e for e in fresh if e.get("pid") == pid), fresh[-1] if fresh else {})
    report.info(f"fault {number}: sources", ", ".join(event.get("sources") or []) or "none reported",
                text=f"pid {event.get('pid')} (child {pid}), process {event.get('process')}: {event.get('text')}")  # fmt: skip
    one |= {"event": event, "new_entries": len(fresh)}
