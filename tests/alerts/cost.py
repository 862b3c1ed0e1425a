#!/usr/bin/env python3
"""What all rules, and the queries of Fleet and On call, cost a Prometheus that scrapes nodes with eight GPUs each.

    tests/alerts/cost.py [--nodes 200] [--minutes 8] [--json FILE] [--check]
    tests/alerts/cost.py --nodes 2000 --still       (15 minutes, 9 GB)

Two simulated nodes are recorded, a healthy one and one with faults. From these one server plays as many nodes as are asked
for, each with GPUs, pods and jobs of its own and counters that grow: one node of 67 has the faults, one of 500 does not
answer, 25 are a rack. What rules ask for over more than ten minutes has an hour of past, what dashboards ask for over a time
all of that time; recorded series as well. A real Prometheus scrapes the nodes every 15 s and evaluates all rules but the
example prices. Then it is left quiet, and each rule and each query is asked for alone, several times, with its CPU time
counted: on a machine that has other work the clock says little. Fleet is asked for the whole fleet, On call for the whole
fleet, a rack and a node.
Last, all groups are evaluated as Prometheus does it, side by side: two workers take one group after the other and ask for
its rules in their order.

With --still nothing is scraped, so that a machine with little time left can have 2,000 nodes: the past ends with the newest
values, rules are evaluated once in their order, and what they give is written as they would record it. Every alert whose
condition is true fires.

Only series that a rule or one of the two dashboards asks for are served (--all serves everything): the others cost memory
and scraping, not evaluation. There is nothing of services, Kubernetes and Slurm, so their rules have nothing to work on.
--keep leaves Prometheus running when all is measured; --against asks such a one for the queries of the dashboards alone.
"""

import argparse
import dataclasses
import http.client
import json
import math
import os
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)$")
RANGE = re.compile(r"([a-zA-Z_:][\w:]*)(\{[^{}]*\})?\[(\d+)([smhd])\]")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
JOB = "gpu-node-exporter"
INTERVAL = 15
OFFSET = re.compile(r"([a-zA-Z_:][\w:]*)(\{[^{}]*\})?\)? offset (\d+)([smhd])")
SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)(\{[^{}]*\})?")
UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# All series have this much past, so that rules can be evaluated at once.
BEFORE = 300
# The most past of what rules ask for over more than ten minutes: hardly any scraped series is asked for over more. Recorded
# series of a fleet are few.
PAST = 3600
PAST_RECORDED = 86400
# The time that dashboards show, and the pixels across.
SHOWN = 6 * 3600
PIXELS = 1600
# For so long the nodes that are down have been so.
SILENT = 1200
# Labels of targets.
PLACE = {"cluster", "job", "instance", "rack", "zone"}
WORKERS = 2
# Of Go: rather more CPU time for collecting garbage than more of a shared machine's memory.
MEMORY = {"GOMEMLIMIT": "8GiB"}
BOARDS = ("gpu-node-fleet", "gpu-node-oncall")
# A query that takes less CPU time is asked for once.
QUICK = 0.05
# What --check wants by the clock: all rules once on two cores for 200 nodes, and each query of the dashboards, up to 200
# nodes and above.
MOST_FOR_RULES = 1.0
MOST_FOR_A_QUERY = (0.2, 1.0)


def get(url: str, **query: str) -> bytes:
    address = f"{url}?{urllib.parse.urlencode(query)}" if query else url
    with urllib.request.urlopen(address, timeout=120) as answer:
        return answer.read()


def api(url: str, path: str, **query: str) -> dict:
    return json.loads(get(f"{url}/api/v1/{path}", **query))["data"]


def wait_for(url: str, child: subprocess.Popen, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            get(url)
            return
        except OSError:
            if child.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{url} does not answer")
            time.sleep(0.5)


def record(built: Path, scenario: Path, folder: Path, port: int, groups: str) -> list[tuple[float, str]]:
    """Two pages of an exporter on a simulated node, started as tests/tools/run.sh does."""
    (folder / "lib").mkdir(parents=True)
    library = next(path for path in (built / "libsimgpu.so", built / "deps/libsimgpu.so") if path.exists())
    for name in ("libnvidia-ml.so.1", "libcuda.so.1", "libcuda.so"):
        (folder / "lib" / name).symlink_to(library)
    root = folder / "root"
    subprocess.run([built / "simhost", root, Path("/proc/uptime").read_text().split()[0]], check=True)
    for name in ("dev", "sys/module/nvidia", "proc/sys/kernel/random"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("proc/stat", "proc/sys/kernel/random/boot_id"):
        (root / name).write_bytes(Path("/", name).read_bytes())
    (root / "dev/kmsg").touch()
    (root / "sys/module/nvidia/version").write_text("580.159.04\n")
    (root / "sys/module/nvidia/initstate").write_text("live\n")
    settings = {
        "HOST__ROOT": root,
        "CPU__ENABLED": "true",
        "METRICS__GROUPS": groups,
        "CANARY__INTERVAL": "1m",
        "CANARY__IDLE_FOR": "5s",
        "CANARY__MAX_DUTY_RATIO": "0.01",
        "CANARY__PROGRESS_TIMEOUT": "10m",
        "CANARY__CUDA_LIBRARY": folder / "lib/libcuda.so.1",
        "CANARY__LOCK_FILE": folder / "canary.lock",
        "CONTROL__SOCKET": folder / "control.sock",
        "HEALTH__SOCKET": folder / "health.sock",
    }
    own = {f"GPU_NODE_EXPORTER__{key}": str(value) for key, value in settings.items()}
    own |= {"GPU_SIM_KMSG": str(root / "dev/kmsg"), "GPU_SIM_SCENARIO": str(scenario)}
    own |= {"GPU_SIM_STATE": str(folder / "state")}
    command = [built / "gpu-node-exporter", "serve", "--listen", f"127.0.0.1:{port}"]
    command += ["--nvml-library", folder / "lib/libnvidia-ml.so.1", "--state-dir", folder / "kept"]
    with (folder / "log").open("w") as log:
        child = subprocess.Popen(command, env=os.environ | own, stdout=log, stderr=log)
    pages = []
    try:
        wait_for(f"http://127.0.0.1:{port}/readyz", child)
        for _ in range(2):
            # Long enough for the slowest values, and for a run of the canary.
            time.sleep(75)
            pages.append((time.time(), get(f"http://127.0.0.1:{port}/metrics").decode()))
    finally:
        child.terminate()
        child.wait(20)
    return pages


class Page:
    """The series of one recorded node. Counters grow as they did; other values go to and fro between the two pages."""

    def __init__(self, pages: list[tuple[float, str]], start: float, wanted: "Wanted | None"):
        (first, before), (second, after) = pages
        values = {}
        for line in before.splitlines():
            if match := LINE.match(line):
                values[match[1] + (match[2] or "")] = float(match[3])
        types, self.series, self.total = {}, [], 0
        for line in after.splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split(" ")
                types[name] = kind
            match = LINE.match(line)
            if not match:
                continue
            self.total += 1
            name, labels, value = match[1], match[2] or "", float(match[3])
            if wanted is not None and not wanted.has(name, labels):
                continue
            old = values.get(name + labels, value)
            family = name if name in types else re.sub(r"_(bucket|sum|count)$", "", name)
            if name.endswith("_timestamp_seconds") or name == "process_start_time_seconds":
                # Times of what happened keep their age at the start; those that are published again go on.
                self.series.append((name, labels, value + start - second, float(value != old), None))
            elif types.get(family) in ("counter", "histogram"):
                self.series.append((name, labels, value, max(0.0, (value - old) / (second - first)), None))
            else:
                self.series.append((name, labels, value, 0.0, old if old != value else None))


class Wanted:
    """The series that expressions select."""

    def __init__(self, exprs: list[str]):
        # By name, what each selector's matchers are.
        self.selectors: dict[str, set[str]] = {}
        for expr in exprs:
            for name, matchers in SELECTOR.findall(expr):
                self.selectors.setdefault(name, set()).add(matchers)

    def has(self, name: str, labels: str) -> bool:
        return any(
            matches(labels, [one for one in MATCHER.findall(matchers) if one[0] not in PLACE and "$" not in one[2]])
            for matchers in self.selectors.get(name, ())
        )


class Fleet:
    """Nodes that are like the recorded ones, each with its own names."""

    def __init__(self, pages: dict[str, list[tuple[float, str]]], count: int, wanted: "Wanted | None"):
        self.start = time.time()
        self.pages = {name: Page(two, self.start, wanted) for name, two in pages.items()}
        self.kinds = ["faults" if "faults" in pages and i % 67 == 5 else "healthy" for i in range(count)]
        self.down = {i for i in range(count) if i % 500 == 107}
        self.named: dict[int, list[str]] = {}

    def names(self, i: int) -> list[str]:
        """Each series of the node's page, up to its value."""
        if i not in self.named:
            self.named[i] = [name + self.of(i, labels) + " " for name, labels, *_ in self.pages[self.kinds[i]].series]
        return self.named[i]

    @staticmethod
    def of(i: int, labels: str) -> str:
        labels = re.sub(r"\b(GPU|MIG)-00000000", rf"\1-{i:08x}", labels)
        # The simulated host has no Slurm: the owner in a container of its own is a job of it instead.
        if 'owner="docker/' in labels:
            labels = re.sub(r'owner="[^"]*"', 'owner="slurm/4711.0"', labels).replace('slurm_job=""', 'slurm_job="4711"')
        return re.sub(r'([{,](?:pod|slurm_job)="[^"]+)"', rf'\1-{i}"', labels)

    def page(self, i: int) -> bytes:
        since = time.time() - self.start
        odd = int(since / INTERVAL) % 2
        page = [
            f"{name}{value + rate * since if rate else other if odd and other is not None else value!r}\n"
            for name, (_, _, value, rate, other) in zip(self.names(i), self.pages[self.kinds[i]].series, strict=True)
        ]
        return "".join(page).encode()

    def write_past(self, to: "Writer", spans: "Spans") -> None:
        """Writes what each series is asked for over before the start, a sample each interval."""
        for kind, page in self.pages.items():
            blobs = []
            for name, labels, value, rate, other in page.series:
                times = spans.times(name, labels, self.start)
                to_and_fro = (value, value if other is None else other)
                points = [
                    (at, max(0.0, value + rate * (at - self.start)) if rate else to_and_fro[n % 2])
                    for n, at in enumerate(times)
                ]
                blobs.append((points, samples(points)))
            for i in (i for i, other in enumerate(self.kinds) if other == kind):
                labels = place(i).items()
                for (points, blob), (name, own, *_) in zip(blobs, page.series, strict=True):
                    if i in self.down:
                        points = [point for point in points if point[0] < self.start - SILENT]
                        blob = samples(points)
                    if points:
                        to.add([("__name__", name), *labels_of(self.of(i, own)), *labels], len(points), blob)
        times = spans.times("up", "", self.start)
        up, down = (samples([(at, value if at > self.start - SILENT else 1.0) for at in times]) for value in (1.0, 0.0))
        for i in range(len(self.kinds)):
            to.add([("__name__", "up"), *place(i).items()], len(times), down if i in self.down else up)
        to.flush()


class Spans:
    """How far back series are asked for, by selector."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[tuple[str, str, str]], float, float]] = []

    def ask(self, name: str, matchers: str | None, begin: float, end: float = 0) -> None:
        """From so many seconds before the start to so many."""
        found = [one for one in MATCHER.findall(matchers or "") if one[0] not in PLACE and "$" not in one[2]]
        self.asked.append((name, found, begin, end))

    def take(self, expr: str, most: float) -> None:
        """What an expression asks for: ranges, offsets, and all of it for subqueries of a day."""
        for name, matchers, count, unit in RANGE.findall(expr):
            if (seconds := int(count) * UNIT[unit]) > BEFORE:
                self.ask(name, matchers, min(seconds + BEFORE, most if ":" not in name else PAST_RECORDED))
        for name, matchers, count, unit in OFFSET.findall(expr):
            ago = int(count) * UNIT[unit]
            self.ask(name, matchers, ago + BEFORE, ago - 2 * BEFORE)

    def times(self, name: str, labels: str, start: float, every: int = INTERVAL) -> list[float]:
        spans = [(BEFORE, 0)]
        spans += [(begin, end) for other, matchers, begin, end in self.asked if other == name and matches(labels, matchers)]
        last = start - INTERVAL
        found: set[int] = set()
        for begin, end in spans:
            found.update(range(int(max(0, end) // every), int(begin // every) + 1))
        return [last - every * n for n in sorted(found, reverse=True)]


def labels_of(text: str) -> list[tuple[str, str]]:
    return re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', text)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(content)) + content


def samples(points: list[tuple[float, float]]) -> bytes:
    """Of protobuf's TimeSeries: samples with a value and the time in milliseconds."""
    out = bytearray()
    for at, value in points:
        time_of = varint(int(at * 1000))
        out += bytes([0x12, 10 + len(time_of), 0x09]) + struct.pack("<d", value) + b"\x10" + time_of
    return bytes(out)


class Writer:
    """Prometheus' remote write, as far as a past needs it: snappy that compresses nothing."""

    def __init__(self, url: str):
        self.url, self.parts, self.size, self.sent = url, [], 0, 0

    def add(self, labels: list[tuple[str, str]], count: int, blob: bytes) -> None:
        kept = sorted((name, value) for name, value in labels if value)
        head = b"".join(field(1, field(1, name.encode()) + field(2, value.encode())) for name, value in kept)
        self.parts.append(field(1, head + blob))
        self.size += len(head) + len(blob)
        self.sent += count
        if self.size > 4e6:
            self.flush()

    def flush(self) -> None:
        if not self.parts:
            return
        plain = b"".join(self.parts)
        self.parts, self.size = [], 0
        body = varint(len(plain)) + bytes([63 << 2]) + struct.pack("<I", len(plain) - 1) + plain
        headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
        headers["X-Prometheus-Remote-Write-Version"] = "0.1.0"
        request = urllib.request.Request(f"{self.url}/api/v1/write", body, headers, method="POST")
        urllib.request.urlopen(request, timeout=120).close()


def place(i: int) -> dict[str, str]:
    """Labels of a target."""
    rack, zone = i // 25 + 1, i // 500 + 1
    return {"cluster": "simulated", "job": JOB, "instance": instance(i), "rack": f"r{rack:03}", "zone": f"z{zone}"}


def instance(i: int) -> str:
    return f"node-{i + 1:04}:9408"


def matches(labels: str, matchers: list[tuple[str, str, str]]) -> bool:
    """Whether a series with these labels is among those that a selector asks for."""
    values = dict(labels_of(labels))
    return all(
        (values.get(label, "") == wanted if how in ("=", "!=") else bool(re.fullmatch(wanted, values.get(label, ""))))
        == (how in ("=", "=~"))
        for label, how, wanted in matchers
    )


def serve(fleet: Fleet, port: int) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            node = int(self.path.rsplit("/", 1)[1])
            body = b"" if node in fleet.down else fleet.page(node)
            self.send_response(503 if node in fleet.down else 200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

    server = Server(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads, to the nanosecond."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


class Prometheus:
    def __init__(self, program: Path | None, folder: Path, port: int, pid: int = 0):
        """`pid`: one that runs."""
        self.url = f"http://127.0.0.1:{port}"
        self.kept = threading.local()
        self.pid = pid
        self.config = folder / "prometheus.yml"
        if not program:
            return
        self.config.write_text("{}\n")
        command = [program, f"--config.file={self.config}", f"--storage.tsdb.path={folder / 'data'}"]
        command += [f"--web.listen-address=127.0.0.1:{port}", "--web.enable-lifecycle", "--log.level=warn"]
        # All of the past stays in the head, where samples of any time within half of this are taken.
        command += ["--web.enable-remote-write-receiver", "--storage.tsdb.min-block-duration=60d"]
        command += ["--storage.tsdb.max-block-duration=60d", "--storage.tsdb.retention.time=90d"]
        with (folder / "prometheus.log").open("w") as log:
            self.child = subprocess.Popen(command, env=os.environ | MEMORY, stdout=log, stderr=log)
        self.pid = self.child.pid
        wait_for(f"{self.url}/-/ready", self.child)

    def configure(self, targets: list[dict], rules: list[str], interval: str) -> None:
        # JSON is YAML.
        config = {
            "global": {"scrape_interval": interval, "scrape_timeout": "10s", "evaluation_interval": f"{INTERVAL}s"},
            "rule_files": rules,
            "scrape_configs": [{"job_name": JOB, "static_configs": targets}],
        }
        self.config.write_text(json.dumps(config))
        request = urllib.request.Request(f"{self.url}/-/reload", method="POST")
        urllib.request.urlopen(request, timeout=60).close()

    def ask(self, path: str, **query: str) -> bytes:
        """On a connection that is kept, as rules are evaluated without one; Prometheus closes it after five minutes."""
        now = time.monotonic()
        if now - getattr(self.kept, "used", -math.inf) > 200:
            self.kept.connection = http.client.HTTPConnection(urllib.parse.urlsplit(self.url).netloc, timeout=300)
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        self.kept.connection.request("POST", f"/api/v1/{path}", urllib.parse.urlencode(query), headers)
        answer = self.kept.connection.getresponse()
        self.kept.used = time.monotonic()
        body = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{query.get('query')}: {body.decode()}")
        return body

    def count(self, query: str, at: float) -> int:
        """How many series a rule gives. They are counted, so that no time goes into writing the answer down."""
        result = json.loads(self.ask("query", query=f"count({query})", time=f"{at:.3f}"))["data"]["result"]
        return int(result[0]["value"][1]) if result else 0

    def cost(self, ask: Callable[[], int], repeats: int) -> list[tuple[float, float, int]]:
        """CPU and wall time of each answer, and what it gives."""
        found = []
        for _ in range(repeats):
            cpu, wall = cpu_seconds(self.pid), time.monotonic()
            number = ask()
            wall = time.monotonic() - wall
            found.append((cpu_seconds(self.pid) - cpu, wall, number))
        return found

    def side_by_side(self, groups: list[list[str]], at: float) -> tuple[float, float]:
        """CPU and wall time of all groups once."""

        def evaluate(queries: list[str]) -> None:
            for query in queries:
                self.count(query, at)

        with ThreadPoolExecutor(WORKERS) as workers:
            cpu, wall = cpu_seconds(self.pid), time.monotonic()
            list(workers.map(evaluate, groups))
            return cpu_seconds(self.pid) - cpu, time.monotonic() - wall


class Query:
    """A query of a dashboard as Grafana asks it, with these variables. Annotations have a step of a minute."""

    def __init__(self, of: str, panel: dict, target: dict, variables: dict[str, str]):
        points = panel["gridPos"]["w"] * PIXELS // 24
        least = duration(panel.get("interval") or f"{INTERVAL}s")
        self.step = max(least, next(step for step in STEPS if step >= 0.7 * SHOWN / points))
        filled = {"__range": f"{SHOWN}s", "__interval": f"{self.step}s"}
        filled |= {"__rate_interval": f"{max(self.step + INTERVAL, 4 * INTERVAL)}s"} | variables
        self.title = f"{of}: {panel['title']} {target.get('refId', '')}"
        self.instant = target.get("instant", False)
        self.expr = re.sub(r"\$\{?(\w+)\}?", lambda name: filled.get(name[1], ".+"), target["expr"])

    def answer(self, prometheus: Prometheus, at: float) -> int:
        if self.instant:
            body = prometheus.ask("query", query=self.expr, time=f"{at:.3f}")
        else:
            start = (at - SHOWN) // self.step * self.step
            body = prometheus.ask("query_range", query=self.expr, start=f"{start:.0f}", end=f"{at:.3f}", step=f"{self.step}")
        return len(json.loads(body)["data"]["result"])


# Seconds between two points of Grafana's graphs.
STEPS = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600)


def duration(text: str) -> int:
    return int(text[:-1]) * UNIT[text[-1]]


def rule_files() -> list[Path]:
    return sorted((REPOSITORY / "alerts").glob("*.rules.yml")) + sorted((REPOSITORY / "alerts/optional").glob("*.rules.yml"))


# Files of rules that others are made of, before all others.
ORDER = ("owners", "recording", "windows", "fleet", "workload", "slo", "capacity")


def in_order(groups: list[dict]) -> list[dict]:
    """Groups so that what is recorded comes before what asks for it."""
    rank = {f"{name}.rules.yml": number for number, name in enumerate(ORDER)}
    return sorted(groups, key=lambda group: rank.get(Path(group["file"]).name, len(rank)))


def write_recorded(prometheus: Prometheus, groups: list[dict], spans: Spans, start: float, *, alerts: bool) -> int:
    """Recorded series have a past as well: the value at the start, at each evaluation of what they are asked for over.
    `alerts`: so have alerts, which fire."""
    writer = Writer(prometheus.url)
    last = [(start - INTERVAL, 1.0)]
    for group in in_order(groups):
        interval = int(group["interval"])
        for rule in group["rules"]:
            alert = rule["type"] == "alerting"
            if alert and not alerts:
                continue
            answer = json.loads(prometheus.ask("query", query=rule["query"], time=f"{start - 1:.3f}"))["data"]["result"]
            blobs: dict[str, bytes] = {}
            times = last if alert else spans.times(rule["name"], "", start, interval)
            for series in answer:
                labels = {key: text for key, text in series["metric"].items() if key != "__name__"} | rule.get("labels", {})
                if alert:
                    labels["alertname"] = rule["name"]
                    since = samples([(start - INTERVAL, start - SILENT)])
                    writer.add([("__name__", "ALERTS"), ("alertstate", "firing"), *labels.items()], 1, samples(last))
                    writer.add([("__name__", "ALERTS_FOR_STATE"), *labels.items()], 1, since)
                    continue
                value = series["value"][1]
                if value not in blobs:
                    blobs[value] = samples([(at, float(value)) for at in times])
                writer.add([("__name__", rule["name"]), *labels.items()], len(times), blobs[value])
            writer.flush()
    return writer.sent


def panels_of(board: dict) -> list[dict]:
    def panels(some: list[dict]) -> list[dict]:
        return [inner for panel in some for inner in (panel, *panels(panel.get("panels", [])))]

    annotations = [
        {"title": f"annotation {one['name']}", "gridPos": {"w": 24}, "interval": "60s", "targets": [{"expr": one["expr"]}]}
        for one in board["annotations"]["list"]
    ]
    return [panel for panel in panels(board["panels"]) if panel.get("targets")] + annotations


def boards(folder: Path) -> dict[str, dict]:
    return {uid: json.loads((folder / f"{uid}.json").read_text()) for uid in BOARDS}


def board_queries(of: dict[str, dict]) -> list[Query]:
    """Fleet of the whole fleet; On call of the whole fleet, of the rack of a node with faults, and of that node."""
    every = {"cluster": ".*", "job": ".+", "rack": ".*", "instance": ".+"}
    node = place(5)
    chosen = [
        (BOARDS[0], "Fleet", every),
        (BOARDS[1], "On call", every),
        (BOARDS[1], "On call, a rack", every | {"rack": node["rack"]}),
        (BOARDS[1], "On call, a node", every | {"instance": node["instance"]}),
    ]
    return [
        Query(name, panel, target, variables)
        for uid, name, variables in chosen
        for panel in panels_of(of[uid])
        for target in panel["targets"]
    ]


def spans_of(rules: list[Path], of: dict[str, dict]) -> Spans:
    spans = Spans()
    for path in rules:
        for expr in path.read_text().split("- alert:"):
            spans.take(expr, PAST)
    for board in of.values():
        for panel in panels_of(board):
            for target in panel["targets"]:
                expr = target["expr"]
                spans.take(expr.replace("$__range", f"{SHOWN}s"), 86400 + BEFORE)
                # A subquery asks for all in it; one that looks seldom (`:15m]`) reads as many samples.
                subquery = max((int(days) * 86400 for days in re.findall(r"\[(\d+)d:", expr)), default=0)
                if not target.get("instant") or subquery:
                    for name, matchers in SELECTOR.findall(expr):
                        spans.ask(name, matchers, max(subquery, 0 if target.get("instant") else SHOWN) + BEFORE)
    return spans


def read_rules(prometheus: Prometheus, rules: list[Path]) -> list[dict]:
    """As Prometheus reads them. For what they give to be written they must not be evaluated beside."""
    prometheus.configure([], [str(path) for path in rules], "30m")
    groups = api(prometheus.url, "rules")["groups"]
    prometheus.configure([], [], "30m")
    return groups


def measure_rules(
    prometheus: Prometheus, groups: list[dict], at: float, repeats: int
) -> tuple[dict[str, tuple[float, float, int]], list[tuple[float, float]]]:
    """CPU and wall time of each rule and what it gives, and times of all groups side by side. Several times over, and the
    least of them: what else the machine does comes and goes."""
    costs: dict[str, tuple[float, float, int]] = {}
    for _ in range(min(2, repeats)):
        for query in (rule["query"] for group in groups for rule in group["rules"]):
            found = prometheus.cost(lambda query=query: prometheus.count(query, at), (repeats + 1) // 2)
            found += [costs[query]] if query in costs else []
            costs[query] = (min(one[0] for one in found), min(one[1] for one in found), found[0][2])
    queries = [[rule["query"] for rule in group["rules"]] for group in groups]
    return costs, [prometheus.side_by_side(queries, at) for _ in range(repeats)]


def measure_boards(prometheus: Prometheus, of: dict[str, dict], at: float, repeats: int) -> list[dict]:
    """The middle of several answers to each query; one answer is enough where it is quick."""
    asked = []
    for query in board_queries(of):
        found = prometheus.cost(lambda query=query: query.answer(prometheus, at), 1)
        if found[0][0] > QUICK:
            found += prometheus.cost(lambda query=query: query.answer(prometheus, at), max(2, repeats - 1))
        cpu, wall = (statistics.median(one[key] for one in found) for key in (0, 1))
        least, series = min(one[1] for one in found), found[0][2]
        asked.append({"title": query.title, "cpu": cpu, "wall": wall, "least": least, "series": series})
    return asked


def show_boards(asked: list[dict], most: int) -> None:
    print(f"\n{'query':64} {'cpu ms':>8} {'wall ms':>8} {'least':>8} {'series':>7}")
    for row in sorted(asked, key=lambda row: -row["cpu"])[:most]:
        figures = " ".join(f"{row[key] * 1e3:8.1f}" for key in ("cpu", "wall", "least"))
        print(f"{row['title'][:64]:64} {figures} {row['series']:7}")


def record_all(options: argparse.Namespace, folder: Path) -> dict[str, list[tuple[float, str]]]:
    """Pages of the two nodes."""
    if options.pages and options.pages.exists():
        return json.loads(options.pages.read_text())
    print("recording two simulated nodes for 150 s", flush=True)
    built = options.built.resolve()
    with ThreadPoolExecutor(2) as both:
        made = {
            name: both.submit(
                record, built, options.scenarios.resolve() / f"{name}.toml", folder / name, options.port + 2 + i, options.groups
            )
            for i, name in enumerate(("healthy", "faults"))
        }
        pages = {name: one.result() for name, one in made.items()}
    if not all(re.search(r"(?m)^gpu_healthy\{.*\} 1$", page) for _, page in pages["healthy"]):
        raise SystemExit("the recorded node has no healthy GPU: the figures would say nothing")
    if not re.search(r"(?m)^gpu_healthy\{.*\} 0$", pages["faults"][1][1]):
        raise SystemExit("the recorded node with faults has none")
    if options.pages:
        options.pages.write_text(json.dumps(pages))
    return pages


def rules_in(folder: Path, hurry: bool) -> list[Path]:
    """The rule files, copied."""
    rules = []
    for path in rule_files():
        text = path.read_text()
        if hurry:
            text = re.sub(r"(?m)^(    interval: )\d+m$", r"\g<1>30s", text)
        rules.append(folder / path.name)
        rules[-1].write_text(text)
    return rules


@dataclasses.dataclass
class Live:
    """What was seen while nodes were scraped and rules evaluated."""

    share: float
    load: float
    # Times by group and rule, by the time of the evaluation.
    took: dict[str, dict[str, float]]
    evaluated: dict[tuple[str, str, int], dict[str, float]]
    failed: list[str]


def watch(prometheus: Prometheus, minutes: float) -> Live:
    """Times of evaluations as they pass; those of the first two minutes build what later ones stand on."""
    live = Live(math.nan, math.nan, {}, {}, [])
    begun, cpu_begun, groups = time.monotonic(), None, []
    while time.monotonic() < begun + minutes * 60:
        time.sleep(10)
        if time.monotonic() - begun < min(120, minutes * 30):
            continue
        groups = api(prometheus.url, "rules", **{"exclude_alerts": "true"})["groups"]
        cpu_begun = cpu_begun or (time.monotonic(), cpu_seconds(prometheus.pid))
        for group in groups:
            live.took.setdefault(group["name"], {})[group["lastEvaluation"]] = group["evaluationTime"]
            for i, rule in enumerate(group["rules"]):
                times = live.evaluated.setdefault((group["name"], rule["name"], i), {})
                times[rule["lastEvaluation"]] = rule["evaluationTime"]
    live.share = (cpu_seconds(prometheus.pid) - cpu_begun[1]) / (time.monotonic() - cpu_begun[0])
    live.load = os.getloadavg()[0]
    rules = [rule for group in groups for rule in group["rules"]]
    live.failed = [f"{rule['name']}: {rule['lastError']}" for rule in rules if rule.get("lastError")]
    return live


def head_series(prometheus: Prometheus) -> float:
    return float(re.findall(r"(?m)^prometheus_tsdb_head_series (\S+)$", get(f"{prometheus.url}/metrics").decode())[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=8, help="how long to scrape and evaluate")
    parser.add_argument("--port", type=int, default=28700, help="the first of four")
    parser.add_argument("--built", type=Path, default=REPOSITORY / "target/debug", help="folder of the built programs")
    parser.add_argument("--scenarios", type=Path, default=REPOSITORY / "dashboards/preview/scenarios")
    parser.add_argument("--boards", type=Path, default=REPOSITORY / "dashboards", help="folder of the dashboards")
    parser.add_argument("--prometheus", type=Path, default=REPOSITORY / ".tools/bin/prometheus")
    parser.add_argument("--pages", type=Path, help="keep the recorded pages in this file, and read them if it is there")
    parser.add_argument("--groups", default="", help="groups of metrics beside the default set, as all")
    parser.add_argument("--all", action="store_true", help="serve all metrics")
    parser.add_argument("--still", action="store_true", help="scrape nothing, evaluate rules once")
    parser.add_argument("--hurry", action="store_true", help="evaluate groups of 1m and 5m every 30s, for a short run")
    parser.add_argument("--repeats", type=int, default=5, help="how often each rule and each query is asked for")
    parser.add_argument("--keep", action="store_true", help="leave Prometheus running, and print how to ask it")
    parser.add_argument("--against", help="PORT,PID,TIME of a Prometheus that was left running: its queries alone")
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument(
        "--check",
        action="store_true",
        help=f"end with 1 if all rules take over {MOST_FOR_RULES:g} s for 200 nodes, or a query of the dashboards over "
        + " or ".join(f"{most * 1e3:.0f} ms" for most in MOST_FOR_A_QUERY),
    )
    options = parser.parse_args()

    dashboards = boards(options.boards)
    if options.against:
        port, pid, at = options.against.split(",")
        prometheus = Prometheus(None, Path(), int(port), int(pid))
        show_boards(measure_boards(prometheus, dashboards, float(at), options.repeats), 1000)
        return 0

    folder = Path(tempfile.mkdtemp(prefix="rulecost-"))
    prometheus = None
    try:
        # The simulated host does not say when its driver was loaded, which annotations ask for.
        loaded = "gpu_driver_load_timestamp_seconds {}\n"
        pages = {
            name: [(at, text if "\n" + loaded[:33] in text else text + loaded.format(at - 3 * 3600)) for at, text in two]
            for name, two in record_all(options, folder).items()
        }
        rules = rules_in(folder, options.hurry)
        wanted = Wanted([path.read_text() for path in rules] + [query.expr for query in board_queries(dashboards)])
        fleet = Fleet(pages, options.nodes, None if options.all else wanted)
        page = fleet.pages["healthy"]
        print(f"a node tells {page.total} series, {len(page.series)} of them asked for by rules or the dashboards", flush=True)
        spans = spans_of(rules, dashboards)
        prometheus = Prometheus(options.prometheus, folder, options.port + 1)
        writer, begun = Writer(prometheus.url), time.monotonic()
        fleet.write_past(writer, spans)
        groups = read_rules(prometheus, rules)
        seconds = {group["name"]: group["interval"] for group in groups}
        recorded = write_recorded(prometheus, groups, spans, fleet.start, alerts=options.still)
        took_past = time.monotonic() - begun
        print(f"{(writer.sent + recorded) / 1e6:.1f} million samples of the past written in {took_past:.0f} s", flush=True)
        live = Live(math.nan, math.nan, {}, {}, [])
        at = fleet.start - 1
        if not options.still:
            serve(fleet, options.port)
            targets = [
                {
                    "targets": [f"127.0.0.1:{options.port}"],
                    "labels": {"__metrics_path__": f"/node/{i}"} | {k: v for k, v in place(i).items() if k != "job"},
                }
                for i in range(options.nodes)
            ]
            prometheus.configure(targets, [str(path) for path in rules], f"{INTERVAL}s")
            live = watch(prometheus, options.minutes)
            at = time.time()
            # Quiet: scrapes so rare that they are no load, and no rules.
            prometheus.configure(targets, [], "30m")
            time.sleep(10)
        up = api(prometheus.url, "query", query="count(up == 1)", time=f"{at:.3f}")["result"]
        head = head_series(prometheus)
        failed = list(live.failed)
        # What rules add: recorded series and alerts, of nodes and of the fleet.
        added = {}
        for what, selector in (("recorded", '{__name__=~".+:.+"}'), ("alerts", '{__name__=~"ALERTS.*"}')):
            for level, matcher in (("a node", 'instance!=""'), ("of the fleet", 'instance=""')):
                found = api(prometheus.url, "query", query=f"count({selector[:-1]},{matcher}}})", time=f"{at:.3f}")["result"]
                added[what, level] = float(found[0]["value"][1]) if found else 0.0

        rows = []
        costs, together = measure_rules(prometheus, groups, at, options.repeats)
        for group in groups:
            for i, rule in enumerate(group["rules"]):
                cpu, wall, found = costs[rule["query"]]
                took = statistics.median(live.evaluated.get((group["name"], rule["name"], i), {"": math.nan}).values())
                rows.append(
                    {"file": Path(group["file"]).name, "group": group["name"], "name": rule["name"]}
                    | {"interval": seconds[group["name"]]}
                    | {"cpu": cpu, "wall": wall, "live": took, "series": found}
                )
        asked = measure_boards(prometheus, dashboards, at, options.repeats)
        quiet = os.getloadavg()[0]
        memory = int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{prometheus.pid}/status").read_text())[1]) / 1e6
    finally:
        if prometheus and options.keep:
            print(f"left running: --against {options.port + 1},{prometheus.pid},{at:.3f}; its folder is {folder}")
        elif prometheus:
            prometheus.child.terminate()
            prometheus.child.wait(60)
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)

    by_group: dict[str, list[dict]] = {}
    for row in rows:
        by_group.setdefault(row["group"], []).append(row)
    print(f"\n{'rule':55} {'interval':>8} {'cpu ms':>8} {'wall ms':>8} {'live ms':>8} {'series':>7}")
    for row in sorted(rows, key=lambda row: -row["cpu"])[:60]:
        figures = " ".join(f"{row[key] * 1e3:8.1f}" for key in ("cpu", "wall", "live"))
        print(f"{row['name'][:55]:55} {row['interval']:7.0f}s {figures} {row['series']:7}")
    print(f"\n{'group':55} {'interval':>8} {'cpu ms':>8} {'wall ms':>8} {'live ms':>8} {'rules':>7}")
    share_alone = share_live = live_all = 0.0
    for name, members in sorted(by_group.items(), key=lambda item: -sum(row["cpu"] for row in item[1])):
        interval = members[0]["interval"]
        cpu, wall = (sum(row[key] for row in members) for key in ("cpu", "wall"))
        took = statistics.median(live.took.get(name, {"": math.nan}).values())
        share_alone += cpu / interval
        share_live += took / interval
        live_all += took
        print(f"{name:55} {interval:7.0f}s {cpu * 1e3:8.1f} {wall * 1e3:8.1f} {took * 1e3:8.1f} {len(members):7}")
    core = [row for row in rows if (REPOSITORY / "alerts" / row["file"]).exists()]
    by_interval: dict[float, float] = {}
    for row in rows:
        by_interval[row["interval"]] = by_interval.get(row["interval"], 0.0) + row["cpu"]
    parts = ", ".join(f"{cpu:.3f} s every {interval:.0f} s" for interval, cpu in sorted(by_interval.items()))
    cpu, wall = (sum(row[key] for row in rows) for key in ("cpu", "wall"))
    show_boards(asked, 60)
    least, middle = min(wall for _, wall in together), statistics.median(wall for _, wall in together)
    slowest, costly = (max(asked, key=lambda row: row[key]) for key in ("wall", "cpu"))
    print(f"""
nodes {options.nodes}, up {up[0]["value"][1] if up else 0}, series of a node {page.total} ({len(page.series)} served), \
series in all {head:.0f}, {memory:.1f} GB
series added by rules: {added["recorded", "a node"] / options.nodes:.1f} recorded a node and \
{added["recorded", "of the fleet"]:.0f} of the fleet; series of alerts {added["alerts", "a node"]:.0f} of nodes and \
{added["alerts", "of the fleet"]:.0f} of the fleet
all {len(rows)} rules once, asked for alone: CPU {cpu:.3f} s, wall {wall:.3f} s, load average {quiet:.1f}
of that CPU {parts}
the {len(core)} rules that are not optional: CPU {sum(row["cpu"] for row in core):.3f} s once, \
{sum(row["cpu"] / row["interval"] for row in core):.4f} of one CPU
all {len(by_group)} groups once, {WORKERS} at a time: wall {least:.3f} s at best, \
{middle:.3f} s as the median of {len(together)}; CPU {min(cpu for cpu, _ in together):.3f} s, \
load average {quiet:.1f}
all {len(by_group)} groups once, while the nodes were scraped: wall {live_all:.3f} s, load average {live.load:.1f}
share of one CPU: {share_alone:.3f} by rules alone, {share_live:.3f} while scraped; all of Prometheus {live.share:.3f}""")
    print(f"most expensive query: {costly['cpu'] * 1e3:.0f} ms of CPU ({costly['title']})")
    print(f"slowest query: {slowest['wall'] * 1e3:.0f} ms, {slowest['least'] * 1e3:.0f} ms at best ({slowest['title']})")
    most = MOST_FOR_A_QUERY[options.nodes > 200]
    if options.check and (not rows or not up or int(up[0]["value"][1]) < options.nodes - len(fleet.down)):
        failed.append("not all nodes were scraped, or no rules evaluated: the figures are of something smaller")
    if options.check and least > MOST_FOR_RULES * options.nodes / 200:
        failed.append(f"all rules take {least:.2f} s; {MOST_FOR_RULES * options.nodes / 200:g} s are wanted")
    # One that the machine has kept waiting is as slow as its CPU time.
    failed += [
        f"{row['title']}: {min(row['wall'], row['cpu']) * 1e3:.0f} ms; {most * 1e3:.0f} ms are wanted"
        for row in asked
        if options.check and min(row["wall"], row["cpu"]) > most
    ]
    for fault in failed:
        print(f"FAILED {fault}")
    if options.json:
        figures = {"rules": rows, "queries": asked, "failed": failed, "added": {" ".join(key): n for key, n in added.items()}}
        options.json.write_text(json.dumps(figures, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
