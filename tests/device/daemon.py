"""The exporter under test: starting it as root or as an unprivileged user, scraping it, looking at its processes."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

UNPRIVILEGED_ID = 65534
Key = tuple[str, tuple[tuple[str, str], ...]]
_LINE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)(?: \S+)?$")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPE = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}


@dataclass(frozen=True)
class Page:
    """A page of metrics: each series with its value."""

    text: str
    series: dict[Key, float]

    @staticmethod
    def parse(text: str) -> Page:
        series = {}
        for line in text.splitlines():
            if not line or line.startswith("#"):
                continue
            match = _LINE.match(line)
            if match is None:
                raise ValueError(f"not a sample: {line!r}")
            name, labels, value = match.groups()
            pairs = (
                (k, re.sub(r"\\.", lambda m: _ESCAPE.get(m[0], m[0]), v)) for k, v in _LABEL.findall(labels or "")
            )
            key = (name, tuple(sorted(pairs)))
            if key in series:
                raise ValueError(f"series twice on the page: {line!r}")
            series[key] = float(value)
        return Page(text, series)

    def get(self, name: str, **labels: str) -> float | None:
        return self.series.get((name, tuple(sorted(labels.items()))))

    def all(self, name: str) -> list[tuple[dict[str, str], float]]:
        return [(dict(labels), value) for (n, labels), value in self.series.items() if n == name]


class Daemon:
    """One exporter, in a folder of its own, with these settings (SECTION__KEY) beside the defaults."""

    def __init__(
        self, binary: Path, folder: Path, user: str, extra: list[str], settings: dict[str, str] | None = None
    ) -> None:
        self.user = user
        self.port = free_port()
        home = folder / user
        home.mkdir(mode=0o755, parents=True)
        self.log = folder / f"{user}.log"
        settings = {"METRICS__GROUPS": "all"} | (settings or {}) | {"CONTROL__SOCKET": str(home / "control.sock")}
        env = os.environ | {f"GPU_NODE_EXPORTER__{key}": value for key, value in settings.items()}
        command = [str(binary), "serve", "--listen", f"127.0.0.1:{self.port}", "--state-dir", str(home), *extra]
        more: dict = {}
        if user == "unprivileged":
            os.chown(home, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
            if shutil.which("setpriv"):
                command = ["setpriv", f"--reuid={UNPRIVILEGED_ID}", f"--regid={UNPRIVILEGED_ID}", "--clear-groups", *command]
            else:
                more = {"user": UNPRIVILEGED_ID, "group": UNPRIVILEGED_ID, "extra_groups": []}
        self.started = time.monotonic()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, **more,
            )  # fmt: skip
        self.command = command

    def wait_ready(self, seconds: float = 60.0) -> float:
        """Waits for 200 from /readyz and for every GPU's slow tier. Gives the seconds it took."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                break
            try:
                if self.request("/readyz")[0] == 200 and self._every_gpu_read():
                    return time.monotonic() - self.started
            except OSError:
                pass
            time.sleep(0.1)
        raise RuntimeError(f"the daemon of {self.user} is not ready:\n{self.log.read_text()[-4000:]}")

    def _every_gpu_read(self) -> bool:
        page = self.scrape()
        read = {labels["uuid"] for labels, _ in page.all("gpu_exporter_sample_timestamp_seconds")
                if labels["tier"] in ("slow", "rare")}  # fmt: skip
        gpus = {labels["uuid"] for labels, _ in page.all("gpu_info")}
        return bool(gpus) and gpus <= read

    def request(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def scrape(self) -> Page:
        status, body = self.request("/metrics", {"Accept": "text/plain; version=0.0.4"})
        if status != 200:
            raise RuntimeError(f"/metrics answered {status}")
        return Page.parse(body.decode())

    def page(self) -> Page:
        """The same with what is reported in JSON alone."""
        page = self.scrape()
        for metric in self.snapshot()["metrics"]:
            if "value" in metric:
                page.series.setdefault((metric["name"], tuple(sorted(metric["labels"].items()))), metric["value"])
        return page

    def snapshot(self) -> dict:
        status, body = self.request("/api/v1/snapshot")
        if status != 200:
            raise RuntimeError(f"/api/v1/snapshot answered {status}")
        return json.loads(body)

    def processes(self) -> dict[int, Process]:
        """The daemon and all that descend from it."""
        every = {p.pid: p for p in map(Process.of, pids()) if p}
        family = {self.process.pid}
        while True:
            more = {p.pid for p in every.values() if p.parent in family} - family
            if not more:
                return {pid: every[pid] for pid in family if pid in every}
            family |= more

    def terminate(self) -> dict:
        """SIGTERM: how long it took, the exit status and what was left. Ends what is left."""
        family = self.processes()
        begin = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            status: int | None = self.process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            status = None
        took = time.monotonic() - begin
        left = [p.pid for p in family.values() if (now := Process.of(p.pid)) and now.start == p.start]
        if status is None:
            self.process.kill()
            self.process.wait()
        return {"user": self.user, "seconds": took, "status": status, "left": left,
                "ok": status == 0 and took <= 5 and not left}  # fmt: skip


@dataclass(frozen=True)
class Process:
    """A process, from /proc/PID/stat."""

    pid: int
    parent: int
    name: str
    cpu_seconds: float
    threads: int
    start: int

    @staticmethod
    def of(pid: int) -> Process | None:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        name, rest = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2 :].split()
        if rest[0] == "Z":
            return None
        ticks = os.sysconf("SC_CLK_TCK")
        return Process(pid, int(rest[1]), name, (int(rest[11]) + int(rest[12])) / ticks, int(rest[17]), int(rest[19]))

    def role(self) -> str:
        """`serve`, or the name of the internal command it runs."""
        arguments = Path(f"/proc/{self.pid}/cmdline").read_bytes().split(b"\0")
        return arguments[1].decode() if len(arguments) > 1 and arguments[1] else self.name

    def scheduled_seconds(self) -> dict[tuple[int, str], float]:
        """CPU time of each thread that lives, by number and name, as the scheduler counts it: in nanoseconds rather than
        ticks."""
        found = {}
        for task in Path(f"/proc/{self.pid}/task").glob("*"):
            try:
                name, spent = (task / "comm").read_text().strip(), (task / "schedstat").read_text().split()[0]
            except OSError:
                continue
            found[int(task.name), name] = int(spent) / 1e9
        return found

    def pss_bytes(self) -> int:
        for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError(f"no Pss of process {self.pid}")


def pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Scraper:
    """A Prometheus-like client: one connection kept open, OpenMetrics, gzip."""

    HEADERS = {
        "Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5",
        "Accept-Encoding": "gzip",
    }

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)

    def scrape(self) -> tuple[float, int, int]:
        """Seconds until the last byte was here, bytes on the wire, bytes unpacked."""
        begin = time.perf_counter()
        self.connection.request("GET", "/metrics", headers=self.HEADERS)
        answer = self.connection.getresponse()
        body = answer.read()
        took = time.perf_counter() - begin
        if answer.status != 200:
            raise RuntimeError(f"/metrics answered {answer.status}")
        plain = gzip.decompress(body) if answer.getheader("Content-Encoding") == "gzip" else body
        return took, len(body), len(plain)

    def close(self) -> None:
        self.connection.close()
