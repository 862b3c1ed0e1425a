"""`doctor` as root and as an unprivileged user, and a record of what the machine and the page say at default settings."""

from __future__ import annotations

import json
import shutil
import subprocess
import time

from daemon import UNPRIVILEGED_ID
from proofs.common import Env, Report, wait_visits

SECONDS = 240
MOST_SECONDS = 60.0
NVIDIA_SMI = [
    ("nvidia-smi.xml", ["-q", "-x"]), ("nvidia-smi-nvlink-s.txt", ["nvlink", "-s"]),
    ("nvidia-smi-nvlink-e.txt", ["nvlink", "-e"]), ("nvidia-smi-nvlink-c.txt", ["nvlink", "-c"]),
    ("nvidia-smi-nvlink-gt-d.txt", ["nvlink", "-gt", "d"]), ("nvidia-smi-topo-m.txt", ["topo", "-m"]),
    ("nvidia-smi-topo-p2p-r.txt", ["topo", "-p2p", "r"]),
]  # fmt: skip


def run(env: Env, report: Report) -> None:
    folder = env.out / "doctor"
    folder.mkdir(exist_ok=True)
    for user in ("root", "unprivileged"):
        for form in ("text", "json"):
            with report.part(f"doctor --format {form} as {user}"):
                doctor(env, report, user, form, folder)
    with report.part("pages at default settings"), env.daemon("doctor") as daemon:
        gpu = env.gpu()
        # Two slow visits: what is a difference of two readings is there as well.
        wait_visits(daemon, gpu, "slow", time.time(), 2, 60)
        for name, path, headers in [
            ("metrics.txt", "/metrics", {"Accept": "text/plain; version=0.0.4"}),
            ("metrics.openmetrics.txt", "/metrics", {"Accept": "application/openmetrics-text; version=1.0.0"}),
            ("snapshot.json", "/api/v1/snapshot", {}), ("events.json", "/api/v1/events", {}), ("page.html", "/", {}),
        ]:  # fmt: skip
            status, body = daemon.request(path, headers)
            (folder / name).write_bytes(body)
            report.judge(f"{path} kept as {name}", status == 200, f"status {status}", "status 200", f"{len(body)} bytes")
        page = daemon.scrape()
        report.info("series", float(len(page.series)))
        gone = {labels["metric"] for labels, _ in page.all("gpu_exporter_metric_unsupported")}
        report.info("metrics listed as unsupported", float(len(gone)), text=", ".join(sorted(gone)))
        wrong = {labels["error"]: v for labels, v in page.all("gpu_exporter_driver_error_kinds_total") if v}
        report.info("failed driver calls", ", ".join(f"{k}: {v:g}" for k, v in wrong.items()) or "none")
    smi = shutil.which("nvidia-smi")
    for name, arguments in NVIDIA_SMI:
        with report.part(f"nvidia-smi {' '.join(arguments)}"):
            if smi is None:
                report.skip(f"nvidia-smi {' '.join(arguments)}", "there is no nvidia-smi")
                continue
            done = subprocess.run([smi, *arguments], capture_output=True, text=True, errors="replace", timeout=90)
            (folder / name).write_text(done.stdout + done.stderr)
            report.info(f"nvidia-smi {' '.join(arguments)}", f"status {done.returncode}",
                        text=f"{len(done.stdout.splitlines())} lines kept as {name}")  # fmt: skip


def doctor(env: Env, report: Report, user: str, form: str, folder) -> None:
    command, more = [str(env.binary), "doctor", "--format", form], {}
    if form == "text":
        command = command[:2]  # the form that a person gets without asking
    if user == "unprivileged":
        if shutil.which("setpriv"):
            command = ["setpriv", f"--reuid={UNPRIVILEGED_ID}", f"--regid={UNPRIVILEGED_ID}", "--clear-groups", *command]
        else:
            more = {"user": UNPRIVILEGED_ID, "group": UNPRIVILEGED_ID, "extra_groups": []}
    begin = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120,
                              stdin=subprocess.DEVNULL, cwd=env.folder, **more)  # fmt: skip
    except subprocess.TimeoutExpired:
        report.fail(f"doctor --format {form} as {user}", "had not ended after 120 s")
        return
    took = time.monotonic() - begin
    name = f"doctor-{user}.{'json' if form == 'json' else 'txt'}"
    (folder / name).write_text(done.stdout)
    (folder / f"{name}.stderr").write_text(done.stderr)
    title = f"doctor --format {form} as {user}"
    report.judge(f"{title}: exit status", done.returncode in (0, 1), done.returncode, "0 or 1",
                 done.stderr.strip()[-300:])  # fmt: skip
    report.at_most(f"{title}: seconds", took, MOST_SECONDS)
    if form == "json":
        try:
            document = json.loads(done.stdout)
            report.judge(f"{title}: is JSON", isinstance(document, dict), ", ".join(list(document)[:20]))
        except ValueError as error:
            report.fail(f"{title}: is JSON", str(error))
    else:
        report.judge(f"{title}: says something", bool(done.stdout.strip()), float(len(done.stdout.splitlines())), "lines")
        report.judge(f"{title}: no colours in a file", "\x1b[" not in done.stdout)
