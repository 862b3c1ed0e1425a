#!/usr/bin/env python3
"""Makes nvml-answered.txt from recordings of real GPUs: every NVML function, field and GPM metric that was
answered with success on at least one of them.

    tests/data/nvml_answered.py RECORDING.json... > tests/data/nvml-answered.txt

A recording is {"calls": [{"fn": function, "arg": what it was asked with, "value": ...} or with "error"
instead of "value", or {"fn": "field", "arg": field id, "ret": return code},
or {"fn": "gpm", "value": [[metric id, return code, value], ...]}]}.

Functions stand without the version at their end: versions of one function tell the same. Field ids are the
driver's (580.82 and later number some of them anew).
"""

import json
import re
import sys

functions, fields, gpm = {}, set(), set()
for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as file:
        for call in json.load(file)["calls"]:
            if call["fn"] == "field":
                if call.get("ret") == 0:
                    fields.add(call["arg"])
            elif call["fn"] == "gpm":
                gpm.update(metric for metric, code, _ in call["value"] if code == 0)
            elif "error" not in call:
                name = re.sub(r"_v\d+$", "", call["fn"])
                functions.setdefault(name, set())
                if call.get("arg") is not None:
                    functions[name].add(json.dumps(call["arg"]).strip("[]").replace(" ", ""))

print("# What real H200s (driver 580.159.04) answered with success: functions with the arguments asked,")
print("# fields of nvmlDeviceGetFieldValues, metrics of nvmlGpmMetricsGet. Made by nvml_answered.py.")
for name in sorted(functions):
    print("function", name, *sorted(functions[name], key=lambda a: [int(n) for n in re.findall(r"\d+", a)]))
for field in sorted(fields):
    print("field", field)
for metric in sorted(gpm):
    print("gpm", metric)
