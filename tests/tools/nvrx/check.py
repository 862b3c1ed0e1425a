#!/usr/bin/env python3
"""check.py EXPORTER LIBSIMGPU: NVRx's own NodeHealthCheck, of nvidia-resiliency-ext's wheel, asks the daemon on a simulated node:
while all is well, once a GPU hangs, while the daemon is frozen, and when it is gone. Prints the daemon's memory too."""

import io
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from nvidia_resiliency_ext.shared_utils import health_check

# GPU 1 hangs some seconds after the start; the end is for the sampler, which no one kills inside a call.
SCENARIO = """
still = true
[[gpu]]
model = "H200"
count = 8
[[step]]
at = "20s"
gpu = 1
hang = true
for = "120s"
"""
CALLS = 300
# Seconds after which memory is what it stays at; before the hang.
SETTLED = 10


class Node:
    def __init__(self, exporter, library, folder, nvrx=True):
        folder.mkdir()
        self.nvrx = folder / "nvrx.sock"
        (folder / "scenario.toml").write_text(SCENARIO)
        settings = {
            "CONTROL__SOCKET": folder / "control.sock",
            "HEALTH__SOCKET": folder / "health.sock",
            "HEALTH__NVRX_SOCKET": self.nvrx if nvrx else "",
            "CANARY__MODE": "off",
            "STATE__DIR": folder / "state",
        }
        env = {f"GPU_NODE_EXPORTER__{key}": str(value) for key, value in settings.items()}
        env |= {"GPU_SIM_SCENARIO": str(folder / "scenario.toml"), "GPU_SIM_STATE": str(folder / "sim")}
        # A driver is known by the name of its library.
        (folder / "libnvidia-ml.so.1").symlink_to(library)
        command = [exporter, "serve", "--listen", "127.0.0.1:0", "--nvml-library", folder / "libnvidia-ml.so.1"]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(command, env=os.environ | env, stdin=quiet, stdout=quiet, stderr=quiet)
        wait("the daemon's sockets", lambda: (folder / "health.sock").exists())

    def pss(self):
        text = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        return int(re.search(r"^Pss: +(\d+)", text, re.M)[1]) / 1024

    def ask(self, **more):
        """What NVRx makes of the answer, and what it logs."""
        log = io.StringIO()
        health_check.logger.handlers = [logging.StreamHandler(log)]
        return health_check.NodeHealthCheck(endpoint=str(self.nvrx), **more)(), log.getvalue()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait(10)


def wait(what, holds):
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.05)


def check(node, without):
    idle = node.pss()
    assert node.ask() == (True, ""), node.ask()
    wait("the hang", lambda: not node.ask()[0])
    healthy, log = node.ask()
    assert not healthy and "exit_code=2" in log and "GPU 1 stuck" in log, log
    print(f"NVRx logs: {log.strip()[:200]}")
    started = time.monotonic()
    for _ in range(CALLS):
        assert not node.ask()[0]
    each = (time.monotonic() - started) / CALLS * 1000
    print(f"PSS of serve: {without:.2f} MiB without the socket, {idle:.2f} with, {node.pss():.2f} after {CALLS} calls of {each:.0f} ms")

    # What is frozen gives no verdict: NVRx logs it and goes on.
    node.process.send_signal(signal.SIGSTOP)
    started = time.monotonic()
    healthy, log = node.ask(request_timeout_sec=1)
    assert healthy and "DEADLINE_EXCEEDED" in log and time.monotonic() - started < 20, log
    node.process.send_signal(signal.SIGCONT)
    wait("an answer", lambda: not node.ask()[0])


def main(exporter, library):
    exporter, library = Path(exporter).resolve(), Path(library).resolve()
    with tempfile.TemporaryDirectory() as folder:
        with Node(exporter, library, Path(folder) / "off", nvrx=False) as node:
            time.sleep(SETTLED)
            without = node.pss()
        with Node(exporter, library, Path(folder) / "on") as node:
            time.sleep(SETTLED)
            check(node, without)
        assert not node.nvrx.exists() and node.ask() == (True, ""), "no socket, no check"
    print("NVRx's client: passes, fails for a GPU that hangs, skips a daemon that is frozen or gone")


if __name__ == "__main__":
    main(*sys.argv[1:])
