#!/usr/bin/env python3
"""Writes the boards to dashboards/*.json.

  build.py            write all boards
  build.py --check    write nothing; say which boards differ from what is in the repository (exit 1)
  build.py --queries  print every query of every board: board, panel and expression, with tabs between

A board is a module of this folder with a function `board()`. The builders are Grafana's, pinned in
requirements.txt; `tests/tools/ensure-tools.sh dashboards` installs them into .tools/dashboards.
"""

import argparse
import difflib
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

# Modules that are no boards.
HELPERS = {"build", "common", "owners"}


def use_builders() -> None:
    """Goes on with the Python that has the pinned builders, if this one has not."""
    if importlib.util.find_spec("grafana_foundation_sdk"):
        return
    python = TOOLS / "bin" / "python"
    if not python.exists() or pathlib.Path(sys.prefix) == TOOLS:
        sys.exit("error: the dashboard builders are missing; get them with: tests/tools/ensure-tools.sh dashboards")
    os.execv(python, [str(python), *sys.argv])


def boards() -> dict[str, dict[str, typing.Any]]:
    """Every board's JSON by its uid."""
    found = {}
    for path in sorted(HERE.glob("*.py")):
        if path.stem in HELPERS:
            continue
        board = importlib.import_module(path.stem).board().build()
        if board["uid"] in found:
            sys.exit(f"error: two boards are called {board['uid']}")
        found[board["uid"]] = board
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
    for uid, board in made.items():
        (OUT / f"{uid}.json").write_text(text_of(board))
    for path in set(OUT.glob("*.json")) - {OUT / f"{uid}.json" for uid in made}:
        print(f"no module makes {path.name}: remove it", file=sys.stderr)


def check(made: dict[str, dict[str, typing.Any]]) -> int:
    """How many files are not what this program writes."""
    wrong = 0
    for path in sorted(set(OUT.glob("*.json")) | {OUT / f"{uid}.json" for uid in made}):
        is_text = path.read_text() if path.exists() else ""
        wanted = text_of(made[path.stem]) if path.stem in made else ""
        if is_text == wanted:
            continue
        wrong += 1
        lines = difflib.unified_diff(
            is_text.splitlines(), wanted.splitlines(), f"{path.name} as committed", f"{path.name} as built", n=1
        )
        print("\n".join(list(lines)[:40]))
    if wrong:
        print(f"{wrong} boards differ from what dashboards/build makes: run `make dashboards`")
    return wrong


def queries(made: dict[str, dict[str, typing.Any]]) -> None:
    for uid, board in made.items():
        for panel in board["panels"]:
            for target in panel.get("targets", []):
                print(uid, panel["title"], target["expr"], sep="\t")


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds the dashboards.")
    parser.add_argument("--check", action="store_true", help="write nothing, say what differs")
    parser.add_argument("--queries", action="store_true", help="print the queries")
    options = parser.parse_args()
    # No folder of compiled code beside the sources.
    sys.dont_write_bytecode = True
    use_builders()
    made = boards()
    if options.queries:
        queries(made)
        return 0
    if options.check:
        return 1 if check(made) else 0
    write(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
