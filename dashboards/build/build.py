#!/usr/bin/env python3
"""Writes the boards to dashboards/*.json.

  build.py          write all boards
  build.py --check  write nothing; say which boards differ from what is in the repository (exit 1)
  build.py --queries  print every query of every board: board, panel and expression, with tabs between

A board is a module of this folder with a function `board()`. Python 3.11 and pip are needed; the builders are
fetched from PyPI, pinned by their checksum, into .tools/dashboards.
"""

import argparse
import difflib
import importlib
import json
import os
import pathlib
import subprocess
import sys
import typing

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE.parent
REQUIREMENTS = HERE / "requirements.txt"
TOOLS = HERE.parent.parent / ".tools" / "dashboards"

# Modules that are no boards.
HELPERS = {"build", "common", "owners"}


def install() -> None:
    """Makes sure that the pinned builders are in .tools/dashboards, and puts that on the path."""
    if sys.version_info < (3, 11):
        sys.exit("error: Python 3.11 or later is needed")
    done = TOOLS / "installed"
    wanted = REQUIREMENTS.read_text()
    if not done.exists() or done.read_text() != wanted:
        print(f"installing the dashboard builders into {TOOLS}", file=sys.stderr)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--upgrade", "--require-hashes", "--target", str(TOOLS), "-r", str(REQUIREMENTS)]
        quiet = os.environ | {"PIP_ROOT_USER_ACTION": "ignore", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        if subprocess.run(command, env=quiet).returncode:
            sys.exit("error: pip could not install the dashboard builders")
        done.write_text(wanted)
    sys.path.insert(0, str(TOOLS))


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
    return found


def text_of(board: dict[str, typing.Any]) -> str:
    return json.dumps(board, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


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
    install()
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
