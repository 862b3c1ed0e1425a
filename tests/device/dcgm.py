#!/usr/bin/env python3
"""Compares the page of dcgm-exporter's names with NVML on a machine with GPUs, and measures what serving both pages costs.

Each default field is read from NVML before and after each scrape: the page's value must lie within both readings, in its
own unit and rounding. One GPU works meanwhile (load.py), the others rest. Writes dcgm.md (a row a field and GPU), dcgm-4.8.txt and dcgm-4.9.txt (pages) and dcgm-cost.md into
--out. Exit status: 0 if all agree, 1 if one disagrees or is missing. Changes no setting of any GPU. Needs nvidia-ml-py.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.dont_write_bytecode = True
import pynvml as n

from daemon import Daemon, Page

MIB = 1 << 20
# The exporter's reading may be older than a scrape: by its tier's interval, and the time of a visit.
ROUNDS, PAUSE = 8, 2.0


def field(handle: object, number: int) -> float:
    value = n.nvmlDeviceGetFieldValues(handle, [number])[0]
    if value.nvmlReturn != 0:
        raise n.NVMLError(value.nvmlReturn)
    kinds = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal")
    return float(getattr(value.value, kinds[value.valueType]))


def memory(handle: object, part: str) -> float:
    return float(getattr(n.nvmlDeviceGetMemoryInfo(handle, version=n.nvmlMemory_v2), part)) // MIB


# Name of 4.8, NVML's value in the field's unit, and how far beyond both readings the page's value may lie: what moves faster
# than it is read has a tolerance.
FIELDS: list[tuple[str, Callable[[object], float], float]] = [
    ("DCGM_FI_DEV_SM_CLOCK", lambda h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM), 400.0),
    ("DCGM_FI_DEV_MEM_CLOCK", lambda h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM), 0.0),
    ("DCGM_FI_DEV_MEMORY_TEMP", lambda h: field(h, 82), 1.0),
    ("DCGM_FI_DEV_GPU_TEMP", lambda h: n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU), 1.0),
    ("DCGM_FI_DEV_POWER_USAGE", lambda h: n.nvmlDeviceGetPowerUsage(h) / 1000, 25.0),
    # Read once a minute: at most 700 W for 62 s behind.
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", lambda h: n.nvmlDeviceGetTotalEnergyConsumption(h), 700.0 * 62 * 1000),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", lambda h: n.nvmlDeviceGetPcieReplayCounter(h), 0.0),
    ("DCGM_FI_DEV_GPU_UTIL", lambda h: n.nvmlDeviceGetUtilizationRates(h).gpu, 5.0),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", lambda h: n.nvmlDeviceGetUtilizationRates(h).memory, 5.0),
    ("DCGM_FI_DEV_ENC_UTIL", lambda h: n.nvmlDeviceGetEncoderUtilization(h)[0], 0.0),
    ("DCGM_FI_DEV_DEC_UTIL", lambda h: n.nvmlDeviceGetDecoderUtilization(h)[0], 0.0),
    ("DCGM_FI_DEV_FB_FREE", lambda h: memory(h, "free"), 2.0),
    ("DCGM_FI_DEV_FB_USED", lambda h: memory(h, "used"), 2.0),
    ("DCGM_FI_DEV_FB_RESERVED", lambda h: memory(h, "reserved"), 0.0),
    ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", lambda h: field(h, 143), 0.0),
    ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", lambda h: field(h, 142), 0.0),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", lambda h: field(h, 145), 0.0),
]
# No NVML value beside: shares and rates of a window of ours.
RANGES: dict[str, tuple[float, float]] = {
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": (0.0, 1.0),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": (0.0, 1.0),
    "DCGM_FI_PROF_DRAM_ACTIVE": (0.0, 1.0),
    "DCGM_FI_PROF_PCIE_TX_BYTES": (0.0, 64e9),
    "DCGM_FI_PROF_PCIE_RX_BYTES": (0.0, 64e9),
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": (0.0, 1e6),
}
# At least, on the GPU that works: an idle GPU's zeros agree with everything.
WORKING = {
    "DCGM_FI_DEV_GPU_UTIL": 90.0,
    "DCGM_FI_DEV_POWER_USAGE": 200.0,
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.8,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.3,
    "DCGM_FI_PROF_DRAM_ACTIVE": 0.02,
}


def fetch(daemon: Daemon, path: str) -> str:
    status, body = daemon.request(path)
    if status != 200:
        raise RuntimeError(f"{path} answered {status}")
    return body.decode()


def nvml(read: Callable[[object], float], handle: object) -> float | None:
    try:
        return float(read(handle))
    except n.NVMLError:
        return None


def compare(daemon: Daemon, handles: dict[str, object], working: str) -> tuple[list[str], int]:
    seen: dict[tuple[str, str], list[tuple[float | None, float | None, float | None]]] = {}
    for _ in range(ROUNDS):
        before = {(name, uuid): nvml(read, handle) for name, read, _ in FIELDS for uuid, handle in handles.items()}
        time.sleep(PAUSE)
        page = Page.parse(fetch(daemon, "/dcgm/metrics"))
        values = {(key[0], dict(key[1]).get("UUID", "")): value for key, value in page.series.items()}
        for (name, uuid), first in before.items():
            read = next(read for known, read, _ in FIELDS if known == name)
            last = nvml(read, handles[uuid])
            seen.setdefault((name, uuid), []).append((first, values.get((name, uuid)), last))
    rows, wrong = [], 0
    for (name, uuid), rounds in sorted(seen.items()):
        slack = next(slack for known, _, slack in FIELDS if known == name)
        misses = 0
        for first, value, last in rounds:
            known = [reading for reading in (first, last) if reading is not None]
            agree = value is None if not known else value is not None and min(known) - slack <= value <= max(known) + slack
            misses += not agree
        # What moves may lie outside in one round of eight.
        bad = misses > (1 if slack else 0)
        wrong += bad
        first, value, last = rounds[-1]
        rows.append(f"| {name} | {uuid[:12]} | {first} | {value} | {last} | {slack:g} | {'DISAGREES' if bad else 'agrees'} ({misses} of {len(rounds)} outside) |")
    for name, (low, high) in RANGES.items():
        for uuid in handles:
            value = values.get((name, uuid))
            bad = value is None or not low <= value <= high or math.isnan(value)
            wrong += bad
            rows.append(f"| {name} | {uuid[:12]} | | {value} | | {low:g} to {high:g} | {'WRONG' if bad else 'plausible'} |")
    for name, low in WORKING.items():
        value = values.get((name, working))
        bad = value is None or value < low
        wrong += bad
        rows.append(f"| {name} | {working[:12]}, working | | {value} | | at least {low:g} | {'WRONG' if bad else 'plausible'} |")
    return rows, wrong


def cost(daemon: Daemon, paths: list[str], seconds: float) -> tuple[float, int]:
    """CPU seconds of the serving process a scrape of these paths, and bytes a scrape."""

    def used() -> float:
        fields = Path(f"/proc/{daemon.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / 100

    begun, scrapes, size, end = used(), 0, 0, time.monotonic() + seconds
    while time.monotonic() < end:
        size = sum(len(fetch(daemon, path).encode()) for path in paths)
        scrapes += 1
        time.sleep(1.0)
    return (used() - begun) / seconds, size


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cost-seconds", type=float, default=20.0, help="time for each of three measurements")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    n.nvmlInit()
    handles = {}
    for index in range(n.nvmlDeviceGetCount()):
        handle = n.nvmlDeviceGetHandleByIndex(index)
        handles[n.nvmlDeviceGetUUID(handle)] = handle
    wrong, working = 0, next(iter(handles))
    with tempfile.TemporaryDirectory() as folder:
        for release in ("4.8", "4.9"):
            daemon = Daemon(
                arguments.binary.resolve(), Path(folder) / release, "root", [], {"DCGM__RELEASE": release, "METRICS__GROUPS": ""}
            )
            try:
                daemon.wait_ready()
                if release == "4.9":
                    time.sleep(22)  # rates need two readings
                    (arguments.out / "dcgm-4.9.txt").write_text(fetch(daemon, "/dcgm/metrics"))
                else:
                    load = subprocess.Popen(
                        [sys.executable, Path(__file__).with_name("load.py"), "tensor", "--gpu", working, "--seconds", "240"],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.DEVNULL,
                    )
                    try:
                        # The activity of the graphics engine is read by the rare tier, each minute.
                        time.sleep(130)
                        (arguments.out / "dcgm-4.8.txt").write_text(fetch(daemon, "/dcgm/metrics"))
                        rows, wrong = compare(daemon, handles, working)
                    finally:
                        load.stdin.close()
                        load.wait(30)
                    head = "| field | GPU | NVML before | page | NVML after | tolerance | verdict |\n|---|---|---|---|---|---|---|\n"
                    (arguments.out / "dcgm.md").write_text(head + "\n".join(rows) + "\n")
                    lines = ["| scraped each second | CPU of the serving process | bytes | series |", "|---|---|---|---|"]
                    for paths in (["/metrics"], ["/dcgm/metrics"], ["/metrics", "/dcgm/metrics"]):
                        share, size = cost(daemon, paths, arguments.cost_seconds)
                        series = sum(len(Page.parse(fetch(daemon, path)).series) for path in paths)
                        lines.append(f"| {' and '.join(paths)} | {share:.2%} of a core | {size} | {series} |")
                    (arguments.out / "dcgm-cost.md").write_text("\n".join(lines) + "\n")
            finally:
                daemon.terminate()
    print(f"{len(handles)} GPUs, {wrong} fields disagree")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
