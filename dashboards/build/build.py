#!/usr/bin/env python3
"""Writes the dashboards to dashboards/*.json.

  build.py            write all dashboards
  build.py --check    write nothing; name the panels that differ from what is in the repository (exit 1)
  build.py --queries  print every query of every dashboard: dashboard, panel and expression, with tabs between
  build.py --groups   write groups.json from the output of `gpu-node-exporter metrics --format json` (standard input)

A module of this folder that has a `dashboard` is one. The builders are Grafana's, pinned in requirements.txt;
`tests/tools/ensure-tools.sh dashboards` installs them into .tools/dashboards.
"""

import argparse
import importlib
import importlib.util
import json
import os
import pathlib
import sys
import typing

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE.parent
TOOLS = HERE.parent.parent / ".tools" / "dashboards"
# Metric to group, of the metrics that are off by default.
GROUPS = HERE / "groups.json"

# Modules that are no dashboards.
HELPERS = {"build", "incidents", "owners"}


def use_builders() -> None:
    """Goes on with the Python that has the pinned builders, if this one has not."""
    if importlib.util.find_spec("grafana_foundation_sdk"):
        return
    python = TOOLS / "bin" / "python"
    if not python.exists() or pathlib.Path(sys.prefix) == TOOLS:
        sys.exit("error: the dashboard builders are missing; get them with: tests/tools/ensure-tools.sh dashboards")
    os.execv(python, [str(python), *sys.argv])


def build() -> dict[str, dict[str, typing.Any]]:
    """Every dashboard's JSON by its uid."""
    groups = json.loads(GROUPS.read_text())
    found = {}
    for path in sorted(HERE.glob("*.py")):
        if path.stem in HELPERS:
            continue
        made = importlib.import_module(path.stem).dashboard.build(groups)
        if made["uid"] in found:
            sys.exit(f"error: two dashboards are called {made['uid']}")
        found[made["uid"]] = made
    importlib.import_module("kit.links").keep_choices(found)
    return found


def one_line(value: typing.Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def one_a_line(entries: list[typing.Any]) -> str:
    return "[\n" + ",\n".join(f"    {one_line(entry)}" for entry in entries) + "\n  ]"


def text_of(dashboard: dict[str, typing.Any]) -> str:
    """JSON with one panel, variable, annotation and link a line, so that a diff names what changed."""
    fields = []
    for key, value in sorted(dashboard.items()):
        if isinstance(value, dict) and list(value) == ["list"]:
            text = f'{{"list": {one_a_line(value["list"])}}}'
        elif isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
            text = one_a_line(value)
        else:
            text = one_line(value)
        fields.append(f'  "{key}": {text}')
    return "{\n" + ",\n".join(fields) + "\n}\n"


def write(made: dict[str, dict[str, typing.Any]]) -> None:
    for uid, dashboard in made.items():
        (OUT / f"{uid}.json").write_text(text_of(dashboard))
    for path in set(OUT.glob("*.json")) - {OUT / f"{uid}.json" for uid in made}:
        print(f"no module makes {path.name}: remove it", file=sys.stderr)


def check(made: dict[str, dict[str, typing.Any]]) -> int:
    """How many files are not what this program writes."""
    wrong = 0
    for path in sorted(set(OUT.glob("*.json")) | {OUT / f"{uid}.json" for uid in made}):
        committed = path.read_text() if path.exists() else ""
        built = text_of(made[path.stem]) if path.stem in made else ""
        if committed == built:
            continue
        wrong += 1
        for line in sorted(set(committed.splitlines()) ^ set(built.splitlines())):
            print(f"{path.name}: {'as built' if line in built else 'as committed'}: {name_of(line)}")
    if wrong:
        print(f"{wrong} dashboards differ from what dashboards/build makes: run `make dashboards`")
    return wrong


def name_of(line: str) -> str:
    """What a line of a dashboard's file holds."""
    try:
        entry = json.loads(line.strip().removesuffix(","))
        return entry.get("title") or entry["name"]
    except (ValueError, AttributeError, KeyError):
        return line[:120]


def queries(made: dict[str, dict[str, typing.Any]]) -> None:
    for uid, dashboard in made.items():
        for panel in dashboard["panels"]:
            for target in panel.get("targets", []):
                print(uid, panel["title"], target["expr"], sep="\t")


def take_groups() -> None:
    metrics = json.load(sys.stdin)["metrics"]
    # Metrics of which some series are in the default set are never wholly absent: no panel misses them.
    wanting = [m for m in metrics if m.get("group") not in (None, "inactive-states") and not m["except"]]
    groups = {metric["name"]: metric["group"] for metric in wanting}
    GROUPS.write_text(json.dumps(groups, indent=2, sort_keys=True) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds the dashboards.")
    parser.add_argument("--check", action="store_true", help="write nothing, say what differs")
    parser.add_argument("--queries", action="store_true", help="print the queries")
    parser.add_argument("--groups", action="store_true", help="write groups.json from `metrics --format json`")
    options = parser.parse_args()
    if options.groups:
        take_groups()
        return 0
    # No folder of compiled code beside the sources.
    sys.dont_write_bytecode = True
    use_builders()
    made = build()
    if options.queries:
        queries(made)
        return 0
    if options.check:
        return 1 if check(made) else 0
    write(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
