#!/usr/bin/env python3
"""What all rules, and the queries of the on-call board, cost a Prometheus that scrapes 200 nodes with eight GPUs each.

    tests/alerts/cost.py [--minutes 8] [--json FILE] [--check]

A simulated node is recorded twice; from that one server plays as many nodes as are asked for, each with GPUs, pods and
jobs of its own and counters that grow. Of the scraped series that rules ask for over more than ten minutes, an hour of past is
written. A real Prometheus scrapes the nodes every 15 s and evaluates all rules but the example prices. Then it is left quiet,
and each rule and each query is asked for alone, several times, with its CPU time counted.
Last, all groups are evaluated as Prometheus does it, side by side: two workers take one group after the other and ask for
its rules in their order.

Only metrics that a rule or the on-call board asks for are served (--all serves everything): the others cost memory and
scraping, not evaluation. There is nothing of services, Kubernetes and Slurm, so their rules have nothing to work on.
"""

import argparse
import http.client
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)$")
NAME = re.compile(r"[a-zA-Z_:][\w:]*")
RANGE = re.compile(r"([a-zA-Z_:][\w:]*)(\{[^{}]*\})?\[(\d+)([smhd])\]")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
JOB = "gpu-node-exporter"
INTERVAL = 15
# Ranges longer than the run have this much past written for them; hardly any series is asked for over more.
PAST = 3600
PASSES = 4
REPEATS = 3
WORKERS = 2
# What --check wants: all rules once on two cores, and each query of the on-call board, by the clock.
MOST_FOR_RULES = 1.0
MOST_FOR_A_QUERY = 0.2


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


def record(built: Path, scenario: Path, folder: Path, port: int) -> list[tuple[float, str]]:
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
        "CANARY__INTERVAL": "1m",
        "CANARY__IDLE_FOR": "5s",
        "CANARY__MAX_DUTY_RATIO": "0.01",
        "CANARY__PROGRESS_TIMEOUT": "10m",
        "CANARY__CUDA_LIBRARY": folder / "lib/libcuda.so.1",
        "CANARY__LOCK_FILE": folder / "canary.lock",
        "CONTROL__SOCKET": folder / "control.sock",
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


class Fleet:
    """Nodes that are like the recorded one. Counters grow as they did; other values go to and fro between the pages."""

    def __init__(self, pages: list[tuple[float, str]], count: int, wanted: set[str] | None):
        (first, before), (second, after) = pages
        self.start = time.time()
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
            if wanted is not None and name not in wanted:
                continue
            old = values.get(name + labels, value)
            family = name if name in types else re.sub(r"_(bucket|sum|count)$", "", name)
            if name.endswith("_timestamp_seconds") or name == "process_start_time_seconds":
                # Times of what happened keep their age at the start; those that are published again go on.
                self.series.append((name, labels, value + self.start - second, float(value != old), None))
            elif types.get(family) in ("counter", "histogram"):
                self.series.append((name, labels, value, max(0.0, (value - old) / (second - first)), None))
            else:
                self.series.append((name, labels, value, 0.0, old if old != value else None))
        self.lines = [[(name + self.of(i, labels) + " ", *rest) for name, labels, *rest in self.series] for i in range(count)]

    @staticmethod
    def of(i: int, labels: str) -> str:
        labels = re.sub(r"\b(GPU|MIG)-00000000", rf"\1-{i:08x}", labels)
        # The simulated host has no Slurm: the owner in a container of its own is a job of it instead.
        if 'owner="docker/' in labels:
            labels = re.sub(r'owner="[^"]*"', 'owner="slurm/4711.0"', labels).replace('slurm_job=""', 'slurm_job="4711"')
        return re.sub(r'([{,](?:pod|slurm_job)="[^"]+)"', rf'\1-{i}"', labels)

    def write_past(self, file: Path, rules: list[Path]) -> int:
        """Writes OpenMetrics: the hour before the start of all series that a rule asks for over more than ten minutes. Gives
        the number of samples."""
        asked = [
            (name, MATCHER.findall(matchers))
            for path in rules
            for name, matchers, count, unit in RANGE.findall(path.read_text())
            if int(count) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit] > 600
        ]
        chosen = [
            k
            for k, (name, labels, *_) in enumerate(self.series)
            if any(name == other and matches(labels, matchers) for other, matchers in asked)
        ]
        times = range(int(self.start) - PAST, int(self.start) - INTERVAL, INTERVAL)
        with file.open("w") as out:
            for k in chosen:
                for i, lines in enumerate(self.lines):
                    before, value, rate, _ = lines[k]
                    name, _, labels = before.rstrip().partition("{")
                    series = f'{name}{{instance="{instance(i)}",job="{JOB}"{"," + labels if labels else "}"}'
                    out.writelines(f"{series} {max(0.0, value + rate * (at - self.start))!r} {at}\n" for at in times)
            out.write("# EOF\n")
        return len(chosen) * len(self.lines) * len(times)

    def page(self, i: int) -> bytes:
        since = time.time() - self.start
        odd = int(since / INTERVAL) % 2
        page = [
            f"{before}{value + rate * since if rate else other if odd and other is not None else value!r}\n"
            for before, value, rate, other in self.lines[i]
        ]
        return "".join(page).encode()


def instance(i: int) -> str:
    return f"node-{i + 1:03}:9408"


def matches(labels: str, matchers: list[tuple[str, str, str]]) -> bool:
    """Whether a series with these labels is among those that a selector asks for."""
    values = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels))
    return all(
        (values.get(label, "") == wanted if how in ("=", "!=") else bool(re.fullmatch(wanted, values.get(label, ""))))
        == (how in ("=", "=~"))
        for label, how, wanted in matchers
    )


def serve(fleet: Fleet, port: int) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = fleet.page(int(self.path.rsplit("/", 1)[1]))
            self.send_response(200)
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
    def __init__(self, program: Path, folder: Path, port: int):
        self.url = f"http://127.0.0.1:{port}"
        self.kept = threading.local()
        self.config = folder / "prometheus.yml"
        self.config.write_text("{}\n")
        command = [program, f"--config.file={self.config}", f"--storage.tsdb.path={folder / 'data'}"]
        command += [f"--web.listen-address=127.0.0.1:{port}", "--web.enable-lifecycle", "--log.level=warn"]
        with (folder / "prometheus.log").open("w") as log:
            self.child = subprocess.Popen(command, stdout=log, stderr=log)
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

    def count(self, query: str, at: float) -> int:
        """How many series a query gives. They are counted, so that no time goes into writing the answer down, and asked for
        on a connection that is kept, as rules are evaluated without one."""
        if not hasattr(self.kept, "connection"):
            self.kept.connection = http.client.HTTPConnection(urllib.parse.urlsplit(self.url).netloc, timeout=120)
        body = urllib.parse.urlencode({"query": f"count({query})", "time": f"{at:.3f}"})
        self.kept.connection.request("POST", "/api/v1/query", body, {"Content-Type": "application/x-www-form-urlencoded"})
        result = json.loads(self.kept.connection.getresponse().read())["data"]["result"]
        return int(result[0]["value"][1]) if result else 0

    def cost(self, query: str, at: float) -> tuple[float, float, int]:
        """CPU and wall time of a query and the number of series in its answer."""
        cpus, walls, found = [], [], 0
        for _ in range(REPEATS):
            cpu, wall = cpu_seconds(self.child.pid), time.monotonic()
            found = self.count(query, at)
            walls.append(time.monotonic() - wall)
            cpus.append(cpu_seconds(self.child.pid) - cpu)
        return min(cpus), min(walls), found

    def side_by_side(self, groups: list[list[str]], at: float) -> tuple[float, float]:
        """CPU and wall time of all groups once."""

        def evaluate(queries: list[str]) -> None:
            for query in queries:
                self.count(query, at)

        with ThreadPoolExecutor(WORKERS) as workers:
            cpu, wall = cpu_seconds(self.child.pid), time.monotonic()
            list(workers.map(evaluate, groups))
            return cpu_seconds(self.child.pid) - cpu, time.monotonic() - wall


def rule_files() -> list[Path]:
    return sorted((REPOSITORY / "alerts").glob("*.rules.yml")) + sorted((REPOSITORY / "alerts/optional").glob("*.rules.yml"))


def intervals() -> dict[str, float]:
    """Seconds between evaluations of each group, as the files have it."""
    group = re.compile(r"(?m)^  - name: (\S+)\n    interval: (\d+)([sm])$")
    found = {}
    for path in rule_files():
        for name, count, unit in group.findall(path.read_text()):
            found[name] = int(count) * (60 if unit == "m" else 1)
    return found


def board_queries(board: Path) -> list[tuple[str, str]]:
    def panels(some: list[dict]) -> list[dict]:
        return [inner for panel in some for inner in (panel, *panels(panel.get("panels", [])))]

    variables = {"cluster": ".*", "job": ".+", "instance": ".+", "gpu": ".+", "uuid": ".+", "__rate_interval": "1m"}
    found = []
    for panel in panels(json.loads(board.read_text())["panels"]):
        for target in panel.get("targets", []):
            query = re.sub(r"\$\{?(\w+)\}?", lambda name: variables.get(name[1], ".+"), target["expr"])
            found.append((f"{panel['title']} {target.get('refId', '')}", query))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=8, help="how long to scrape and evaluate")
    parser.add_argument("--port", type=int, default=28700, help="the first of three")
    parser.add_argument("--built", type=Path, default=REPOSITORY / "target/debug", help="folder of the built programs")
    parser.add_argument("--scenario", type=Path, default=REPOSITORY / "dashboards/preview/scenarios/healthy.toml")
    parser.add_argument("--board", type=Path, default=REPOSITORY / "dashboards/gpu-node-oncall.json")
    parser.add_argument("--prometheus", type=Path, default=REPOSITORY / ".tools/bin/prometheus")
    parser.add_argument("--pages", type=Path, help="keep the recorded pages in this file, and read them if it is there")
    parser.add_argument("--all", action="store_true", help="serve all metrics")
    parser.add_argument("--hurry", action="store_true", help="evaluate groups of 1m and 5m every 30s, for a short run")
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument(
        "--check",
        action="store_true",
        help=f"end with 1 if all rules take over {MOST_FOR_RULES:g} s, or a query of the board {MOST_FOR_A_QUERY * 1e3:.0f} ms",
    )
    options = parser.parse_args()

    folder = Path(tempfile.mkdtemp(prefix="rulecost-"))
    prometheus = None
    try:
        if options.pages and options.pages.exists():
            pages = json.loads(options.pages.read_text())
        else:
            print("recording a simulated node for 150 s", flush=True)
            pages = record(options.built.resolve(), options.scenario.resolve(), folder / "node", options.port + 2)
            if not all(re.search(r"(?m)^gpu_healthy\{.*\} 1$", page) for _, page in pages):
                raise SystemExit("the recorded node has no healthy GPU: the figures would say nothing")
            if options.pages:
                options.pages.write_text(json.dumps(pages))

        queries = board_queries(options.board)
        rules = []
        for path in rule_files():
            text = path.read_text()
            if options.hurry:
                text = re.sub(r"(?m)^(    interval: )\d+m$", r"\g<1>30s", text)
            rules.append(folder / path.name)
            rules[-1].write_text(text)
        wanted = {name for path in rules for name in NAME.findall(path.read_text())}
        wanted |= {name for _, query in queries for name in NAME.findall(query)}
        fleet = Fleet(pages, options.nodes, None if options.all else wanted)
        print(f"a node tells {fleet.total} series, {len(fleet.series)} of them asked for by rules or the board", flush=True)
        samples = fleet.write_past(folder / "past", rules)
        promtool = options.prometheus.with_name("promtool")
        made = [promtool, "tsdb", "create-blocks-from", "openmetrics", folder / "past", folder / "data"]
        subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
        (folder / "past").unlink()
        print(f"{samples} samples of the hour before written", flush=True)
        serve(fleet, options.port)

        prometheus = Prometheus(options.prometheus, folder, options.port + 1)
        targets = [
            {
                "targets": [f"127.0.0.1:{options.port}"],
                "labels": {"__metrics_path__": f"/node/{i}", "instance": instance(i)},
            }
            for i in range(options.nodes)
        ]
        prometheus.configure(targets, [str(path) for path in rules], f"{INTERVAL}s")

        # Times of evaluations as they pass; those of the first two minutes build what later ones stand on.
        end = time.monotonic() + options.minutes * 60
        evaluated: dict[tuple[str, str, int], dict[str, float]] = {}
        took: dict[str, dict[str, float]] = {}
        groups = []
        begun = time.monotonic()
        cpu_begun = None
        while time.monotonic() < end:
            time.sleep(5)
            groups = api(prometheus.url, "rules")["groups"]
            if time.monotonic() - begun < min(120, options.minutes * 30):
                continue
            cpu_begun = cpu_begun or (time.monotonic(), cpu_seconds(prometheus.child.pid))
            for group in groups:
                took.setdefault(group["name"], {})[group["lastEvaluation"]] = group["evaluationTime"]
                for i, rule in enumerate(group["rules"]):
                    evaluated.setdefault((group["name"], rule["name"], i), {})[rule["lastEvaluation"]] = rule["evaluationTime"]
        share = (cpu_seconds(prometheus.child.pid) - cpu_begun[1]) / (time.monotonic() - cpu_begun[0])
        up = api(prometheus.url, "query", query="count(up == 1)")["result"]
        head = re.findall(r"(?m)^prometheus_tsdb_head_series (\S+)$", get(f"{prometheus.url}/metrics").decode())[0]
        busy = os.getloadavg()[0]
        at = time.time()
        failed = [f"{rule['name']}: {rule['lastError']}" for group in groups for rule in group["rules"] if rule.get("lastError")]

        # Quiet: scrapes so rare that they are no load, and no rules.
        prometheus.configure(targets, [], "30m")
        time.sleep(10)
        rows, seconds = [], intervals()
        # Several times over, and the least of them: what else the machine does comes and goes.
        every = [rule["query"] for group in groups for rule in group["rules"]] + [query for _, query in queries]
        costs: dict[str, tuple[float, float, int]] = {}
        for _ in range(PASSES):
            for query in every:
                cpu, wall, found = prometheus.cost(query, at)
                before = costs.get(query, (cpu, wall, found))
                costs[query] = (min(cpu, before[0]), min(wall, before[1]), found)
        together = [
            prometheus.side_by_side([[rule["query"] for rule in group["rules"]] for group in groups], at)
            for _ in range(PASSES * REPEATS)
        ]
        for group in groups:
            for i, rule in enumerate(group["rules"]):
                cpu, wall, found = costs[rule["query"]]
                live = statistics.median(evaluated.get((group["name"], rule["name"], i), {"": float("nan")}).values())
                rows.append(
                    {"file": Path(group["file"]).name, "group": group["name"], "name": rule["name"]}
                    | {"interval": seconds[group["name"]]}
                    | {"cpu": cpu, "wall": wall, "live": live, "series": found}
                )
        asked = []
        for title, query in queries:
            cpu, wall, found = costs[query]
            asked.append({"title": title, "cpu": cpu, "wall": wall, "series": found})
        quiet = os.getloadavg()[0]
    finally:
        if prometheus:
            prometheus.child.terminate()
            prometheus.child.wait(60)
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
        live = statistics.median(took.get(name, {"": float("nan")}).values())
        share_alone += cpu / interval
        share_live += live / interval
        live_all += live
        print(f"{name:55} {interval:7.0f}s {cpu * 1e3:8.1f} {wall * 1e3:8.1f} {live * 1e3:8.1f} {len(members):7}")
    by_interval: dict[float, float] = {}
    for row in rows:
        by_interval[row["interval"]] = by_interval.get(row["interval"], 0.0) + row["cpu"]
    parts = ", ".join(f"{cpu:.3f} s every {interval:.0f} s" for interval, cpu in sorted(by_interval.items()))
    cpu, wall = (sum(row[key] for row in rows) for key in ("cpu", "wall"))
    print(f"\non-call board{'':42} {'':8} {'cpu ms':>8} {'wall ms':>8} {'series':>7}")
    for row in sorted(asked, key=lambda row: -row["wall"])[:12]:
        print(f"{row['title'][:55]:55} {'':8} {row['cpu'] * 1e3:8.1f} {row['wall'] * 1e3:8.1f} {row['series']:7}")
    least, slowest = min(wall for _, wall in together), max(asked, key=lambda row: row["wall"])
    print(f"""
nodes {options.nodes}, up {up[0]["value"][1] if up else 0}, series of a node {fleet.total} ({len(fleet.series)} served), series in all {float(head):.0f}
all {len(rows)} rules once, asked for alone: CPU {cpu:.3f} s, wall {wall:.3f} s, load average {quiet:.1f}
of that CPU {parts}
all {len(by_group)} groups once, {WORKERS} at a time: wall {least:.3f} s at best, \
{statistics.median(wall for _, wall in together):.3f} s as the median of {len(together)}; CPU {min(cpu for cpu, _ in together):.3f} s, \
load average {quiet:.1f}
all {len(by_group)} groups once, while the nodes were scraped: wall {live_all:.3f} s, load average {busy:.1f}
share of one CPU: {share_alone:.3f} by rules alone, {share_live:.3f} while scraped; all of Prometheus {share:.3f}""")
    print(f"most expensive query of the board: {slowest['wall'] * 1e3:.0f} ms ({slowest['title']})")
    if options.check and (not rows or not up or int(up[0]["value"][1]) < options.nodes):
        failed.append("not all nodes were scraped, or no rules evaluated: the figures are of something smaller")
    if options.check and least > MOST_FOR_RULES:
        failed.append(f"all rules take {least:.2f} s; {MOST_FOR_RULES:g} s are wanted")
    if options.check and slowest["wall"] > MOST_FOR_A_QUERY:
        failed.append(f"{slowest['title']}: {slowest['wall'] * 1e3:.0f} ms; {MOST_FOR_A_QUERY * 1e3:.0f} ms are wanted")
    for fault in failed:
        print(f"FAILED {fault}")
    if options.json:
        options.json.write_text(json.dumps({"rules": rows, "queries": asked, "failed": failed}, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
