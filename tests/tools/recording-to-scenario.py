#!/usr/bin/env python3
"""Turns a recording of the flight recorder into a scenario of the simulated driver (tests/simgpu/README.md).

    recording-to-scenario.py RECORDING > tests/scenarios/NAME.toml
    recording-to-scenario.py RECORDING --lead 10 --gate fault

The scenario has the recorded GPUs and MIG-free layout, their power, utilization, temperature and SM clock as means of
equal stretches, and what the driver and the kernel log said of the faults: Xids, lost and stuck GPUs, slowdowns, the
recovery action, failed row remapping, a driver that was gone. Times are those of the recording, or the faults come with a gate.
"""

import argparse
import gzip
import json
import re
import sys
import zlib
from collections import defaultdict

VERSION = 1
# The simulated driver has room for so many steps.
MAX_STEPS = 128
MODELS = ("B200", "H200", "H100", "A100", "L4", "T4")
# Series of a recording: name, NVML's key, factor to NVML's unit.
SERIES = {
    'gpu_temperature_celsius{sensor="gpu"}': ("nvmlDeviceGetTemperature/0", 1),
    'gpu_clock_hertz{domain="sm"}': ("nvmlDeviceGetClockInfo/1", 1e-6),
}
SLOWDOWNS = ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")


def read(path):
    """The header, and the lines of readings; a truncated file up to its end."""
    lines = []
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                lines.append(json.loads(line))
    except (EOFError, zlib.error, ValueError) as error:
        print(f"{path}: truncated after {len(lines)} lines: {error}", file=sys.stderr)
    except OSError as error:
        sys.exit(f"{path}: {error}")
    if not lines or lines[0].get("format") != "gpu-node-exporter recording":
        sys.exit(f"{path}: no recording")
    if lines[0]["version"] != VERSION:
        sys.exit(f"{path}: version {lines[0]['version']}; this program reads {VERSION}")
    return lines[0], lines[1:]


def document(lines, name):
    return next((line[name] for line in lines if name in line), {})


def series(snapshot, name):
    return [m for m in snapshot.get("metrics", []) if m["name"] == name]


def models(snapshot, readings):
    """The model of each GPU, by index."""
    found = {}
    for info in series(snapshot, "gpu_info"):
        text = " ".join(str(value) for value in info["labels"].values())
        found[int(info["labels"]["gpu"])] = next((m for m in MODELS if m in text), "H200")
    indexes = {gpu["gpu"] for gpu in snapshot.get("gpus", [])} | {
        line["gpu"] for line in readings if isinstance(line.get("gpu"), int)
    }
    count = max(indexes | {0}) + 1
    return [found.get(gpu, next(iter(found.values()), "H200")) for gpu in range(count)]


def curves(readings, begin):
    """Readings of each GPU as (key, seconds, value of NVML)."""
    found = defaultdict(list)
    for line in readings:
        if line.get("samples"):
            at = line["t"]
            for step, value in zip(line["step_ms"], line["values"]):
                at += step / 1000
                if line["samples"] == "power":
                    found[line["gpu"], "nvmlDeviceGetPowerUsage"].append((at - begin, value * 1000))
                else:
                    found[line["gpu"], "nvmlDeviceGetUtilizationRates"].append((at - begin, value * 100))
        elif "values" in line and set(line["subject"]) == {"gpu", "uuid"}:
            for name, (key, factor) in SERIES.items():
                if name in line["values"]:
                    found[int(line["subject"]["gpu"]), key].append((line["t"] - begin, line["values"][name] * factor))
    return found


def load_steps(found, gpus, length, room):
    """Means of equal stretches, as steps."""
    stretches = max(1, min(room // gpus, int(length)))
    width = length / stretches
    for gpu in range(gpus):
        for stretch in range(stretches):
            begin, end = stretch * width, (stretch + 1) * width
            values = {}
            for (of, key), curve in found.items():
                inside = [value for at, value in curve if of == gpu and begin <= at < end]
                if inside:
                    mean = round(sum(inside) / len(inside))
                    values[key] = [mean, mean] if key.endswith("Rates") else mean
            if values:
                yield begin, gpu, {"for": seconds(width), "set": values}


def fault_steps(header, lines, snapshot, begin):
    """What the driver and the kernel log said, as steps."""
    offset = header["written"]["unix_seconds"] - header["written"]["monotonic_seconds"]
    readings = [line for line in lines if "t" in line]
    lost = {}
    for line in readings:
        if line.get("failed") and "lost" in line["text"]:
            lost.setdefault(line["gpu"], line["t"] - begin)
    for event in document(lines, "events").get("events", []):
        at = event["unix_seconds"] - offset - begin
        if at < 0 or event["old"]:
            continue
        gpu, sources = event.get("gpu"), [s for s in event.get("sources", []) if s in ("nvml", "kmsg")]
        if event["kind"] == "xid" and gpu is not None:
            xid = {"code": event["code"], "sources": sources}
            for key, name in (("pid", "pid"), ("process", "name")):
                if event.get(key) is not None:
                    xid[name] = event[key]
            line = re.search(r"Xid \(PCI:[^)]*\): \d+, (?:pid=[^,]*, )?(?:name=[^,]*, )?(.*)", event["text"])
            if line:
                xid["text"] = line[1]
            # It was heard of after the GPU was lost, but a lost GPU sends none.
            at = min(at, lost.get(gpu, at))
            yield at, gpu, {"xid": xid, "repeat": min(event["repeats"] + 1, 100)}
        elif event["kind"] == "driver_event" and gpu is not None:
            yield at, gpu, {"event": {"type": event["code"]}}
        elif event["text"] and "kmsg" in sources:
            yield at, None, {"kmsg": event["text"]}
        elif event["kind"] == "xid" and event["text"]:
            yield at, None, {"kmsg": event["text"]}
    first = {}
    for fault in header["faults"]:
        first.setdefault((fault["gpu"], fault["fault"]), fault["t"] - begin)
    for (gpu, fault), at in first.items():
        state = next((g for g in snapshot.get("gpus", []) if g["gpu"] == gpu), {})
        if fault in ("Lost", "Failing"):
            yield lost.get(gpu, at), gpu, {"lost": True}
        elif fault == "Stuck":
            visits = [line["t"] - begin for line in readings if "calls" in line and line["gpu"] == gpu]
            call = re.search(r"nvml\w+", state.get("text", ""))
            yield max(visits + [0]), gpu, {"hang": True, **({"function": call[0]} if call else {})}
        elif fault == "RecoveryAction":
            active = [
                m["labels"]["recovery_action"]
                for m in series(snapshot, "gpu_recovery_action")
                if m["labels"]["gpu"] == str(gpu) and m["value"] == 1
            ]
            yield at, gpu, {"recovery_action": (active or ["gpu_reset"])[0]}
        elif fault == "RowRemapFailure":
            yield at, gpu, {"ecc": {"remap_failure": True}}
        elif fault == "UncontainedEcc" and (gpu, "xid") not in first:
            yield at, gpu, {"xid": {"code": 95}}
    gone = [at for (_, fault), at in first.items() if fault == "NoDriver"]
    if gone:
        yield min(gone), None, {"driver_gone": True}
    slow = defaultdict(list)
    for line in readings:
        for name, value in line.get("values", {}).items() if "subject" in line else ():
            reason = re.fullmatch(r'gpu_clock_event_active\{reason="(\w+)"\}', name)
            if reason and reason[1] in SLOWDOWNS and set(line["subject"]) == {"gpu", "uuid"}:
                slow[int(line["subject"]["gpu"]), reason[1]].append((line["t"] - begin, value))
    for (gpu, reason), changes in slow.items():
        began = None
        for at, value in [*changes, (header["to"] - begin, 0)]:
            if value and began is None:
                began = at
            elif not value and began is not None:
                yield began, gpu, {"for": seconds(max(at - began, 0.1)), "throttle": [reason]}
                began = None


def seconds(number):
    return f"{max(round(number * 1000), 1)}ms"


def toml(value):
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    # Strings of JSON without escapes of surrogates are strings of TOML.
    return json.dumps(value, ensure_ascii=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording")
    parser.add_argument("--lead", type=float, metavar="SECONDS", help="begin so long before the first fault")
    parser.add_argument("--gate", metavar="NAME", help="the faults come together when this gate opens")
    arguments = parser.parse_args()
    header, lines = read(arguments.recording)
    snapshot = document(lines, "snapshot")
    begin = header["from"]
    faults = [fault["t"] for fault in header["faults"]]
    if arguments.lead is not None and faults:
        begin = max(begin, min(faults) - arguments.lead)
    readings = [line for line in lines if "t" in line and line["t"] >= begin]
    of_gpus = models(snapshot, readings)
    what = ", ".join(f"{fault['fault']} of GPU {fault['gpu']}" for fault in header["faults"])
    out = [
        f"# From a recording of release {header['release']}: {what}.",
        "# Made by tests/tools/recording-to-scenario.py.",
        "still = true",
    ]
    for model in of_gpus:
        out += ["", "[[gpu]]", f"model = {toml(model)}"]
    steps = sorted(fault_steps(header, lines, snapshot, begin), key=lambda step: step[0])
    length = max(header["to"] - begin, 1)
    room = MAX_STEPS - len(steps)
    if room < len(of_gpus):
        steps, room = steps[: MAX_STEPS - len(of_gpus)], len(of_gpus)
        print(f"more steps than {MAX_STEPS}: the last ones are left out", file=sys.stderr)
    load = list(load_steps(curves(readings, begin), len(of_gpus), length, room))
    for at, gpu, action in [*load, *steps]:
        gated = arguments.gate and "set" not in action
        out += ["", "[[step]]", f"gate = {toml(arguments.gate)}" if gated else f"at = {toml(seconds(max(at, 0)))}"]
        if gpu is not None:
            out.append(f"gpu = {gpu}")
        out += [f"{key} = {toml(value)}" for key, value in action.items()]
    print("\n".join(out))


if __name__ == "__main__":
    main()
