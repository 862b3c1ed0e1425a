#!/usr/bin/env python3
"""Whether the boards' links lead somewhere, with the variables that the next board needs.

  links.py                   checks every link of every board in dashboards/, and how owners become services
  links.py --prometheus URL  also walks the drill-down board as a person would: from the first service to its node, its
                             GPU and its owners, with the values of the rows; every service leads down, and the
                             boards beside the way are asked for all that they show

Exit status 1 if a link is wrong or a table is empty. Needs Python 3.11 and nothing else.
"""

import argparse
import json
import pathlib
import re
import sys
import typing
import urllib.parse
import urllib.request

BOARDS = pathlib.Path(__file__).resolve().parents[2] / "dashboards"

# What a link to a board has to say. Without it the board would show something else than what was clicked on.
NEEDED: dict[str, set[str]] = {
    "gpu-node-gpu": {"instance", "gpu"},
    "gpu-node-mig": {"instance"},
    "gpu-node-host": {"instance"},
}
# Time, data source and fleet go along wherever a link leads.
KEPT = ("${__url_time_range}", "${datasource:queryparam}", "${cluster:queryparam}", "${job:queryparam}")

# The ways down of the drill-down board: table, column that is clicked on, board, and what is chosen there. Nothing that
# was chosen before is lost.
WAYS = (
    ("Services", "service", "gpu-node-drilldown", {"service", "instance", "gpu"}),
    ("Nodes", "instance", "gpu-node-drilldown", {"service", "instance", "gpu"}),
    ("Nodes", "instance", "gpu-node-host", {"instance"}),
    ("Nodes", "instance", "gpu-node-oncall", {"instance"}),
    ("GPUs", "gpu", "gpu-node-drilldown", {"service", "instance", "gpu"}),
    ("GPUs", "gpu", "gpu-node-gpu", {"instance", "gpu"}),
    ("GPUs", "gpu", "gpu-node-mig", {"instance", "gpu"}),
    ("GPUs", "gpu", "gpu-node-canary", {"instance", "gpu"}),
    ("Owners", "gpu", "gpu-node-gpu", {"instance", "gpu"}),
    ("Owners", "namespace", "gpu-node-service", {"namespace"}),
)

# Owners, and the service that each is part of: what a pod's controller appended to its name, and steps of Slurm jobs,
# are no services of their own.
SERVICES = {
    "pod/inference/chat-7d9c6b5f4-x2kqp/server": "pod/inference/chat",
    "pod/inference/chat-7d9c6b5f4-x2kqp/0a1b2c3d4e5f": "pod/inference/chat",
    "pod/training/llm-0/trainer": "pod/training/llm",
    "pod/training/llm-worker-12/pytorch": "pod/training/llm-worker",
    "pod/batch/sweep-3-bw5tz/main": "pod/batch/sweep",
    "pod/infra/agent-9kq2z/agent": "pod/infra/agent",
    "pod/web/web-front/main": "pod/web/web-front",
    "pod/infra/proxy-ip-10-0-0-1.internal/proxy": "pod/infra/proxy-ip-10-0-0-1.internal",
    "pod/2c48913c-b29f-11e7-9350-020968147796/9bca8d63d5fa": "pod/2c48913c-b29f-11e7-9350-020968147796/9bca8d63d5fa",
    "slurm/4711.0": "slurm/4711",
    "slurm/4711.batch": "slurm/4711",
    "slurm/4711": "slurm/4711",
    "unit/jupyter.service": "unit/jupyter.service",
    "unit/alice/train.service": "unit/alice/train.service",
    "user/alice": "user/alice",
    "docker/4be1f3f5c0a9d8e7": "docker/4be1f3f5c0a9d8e7",
    "unknown": "unknown",
}
# Names that begin alike and are other services.
OTHERS = (
    ("pod/inference/chat", "pod/inference/chatbot-7d9c6b5f4-x2kqp/server"),
    ("pod/web/web", "pod/web/web-front/main"),
    ("slurm/47", "slurm/4711.0"),
)

Board = dict[str, typing.Any]
Choice = dict[str, str]


# ---------------------------------------------------------------------------------------------- as written


def panels(board: Board) -> typing.Iterator[Board]:
    for panel in board["panels"]:
        yield panel
        yield from panel.get("panels", [])


def panel_of(board: Board, title: str) -> Board:
    return next(panel for panel in panels(board) if panel["title"] == title)


def links(panel: Board) -> typing.Iterator[tuple[str, str]]:
    """The links of a panel: the column that has it ("" of the whole panel), and where it leads."""
    for link in panel.get("links") or []:
        yield "", link.get("url", "")
    config = panel.get("fieldConfig", {})
    for link in config.get("defaults", {}).get("links") or []:
        yield "", link["url"]
    for override in config.get("overrides", []):
        for found in override["properties"]:
            if found["id"] == "links":
                for link in found["value"]:
                    yield str(override["matcher"].get("options", "")), link["url"]


def variables(board: Board) -> dict[str, Board]:
    return {variable["name"]: variable for variable in board["templating"]["list"]}


def target(url: str) -> tuple[str, list[str]] | None:
    """The board that a link leads to and the variables that it passes; None for other pages."""
    found = re.fullmatch(r"/d/([\w-]+)\?(.*)", url)
    if not found:
        return None
    return found[1], re.findall(r"(?:^|&)var-(\w+)=", found[2]) + re.findall(r"\$\{(\w+):queryparam\}", found[2])


def wrong_links(boards: dict[str, Board]) -> typing.Iterator[str]:
    for uid, board in boards.items():
        for panel in panels(board):
            for _, url in links(panel):
                where = f"{uid}, {panel['title']}: {url}"
                if url.startswith("/d/") and target(url) is None:
                    yield f"{where}: not a link to a board with variables"
                if (leads := target(url)) is None:
                    continue
                to, passed = leads
                if to not in boards:
                    yield f"{where}: no such board"
                    continue
                unknown = set(passed) - set(variables(boards[to]))
                own = set(re.findall(r"\$\{(\w+):queryparam\}", url)) - set(variables(board))
                if unknown:
                    yield f"{where}: {to} has no variable {', '.join(sorted(unknown))}"
                if own:
                    yield f"{where}: {uid} itself has no variable {', '.join(sorted(own))}"
                if missing := NEEDED.get(to, set()) - set(passed):
                    yield f"{where}: {to} needs {', '.join(sorted(missing))}"
                if lost := [part for part in KEPT if part not in url]:
                    yield f"{where}: loses {', '.join(lost)}"


def missing_ways(board: Board) -> typing.Iterator[str]:
    for title, column, to, chosen in WAYS:
        passed = [
            set(leads[1])
            for at, url in links(panel_of(board, title))
            if at == column and (leads := target(url)) and leads[0] == to
        ]
        if not passed:
            yield f"{board['uid']}, {title}: no link from {column} to {to}"
        elif not any(chosen <= names for names in passed):
            yield f"{board['uid']}, {title}: the link from {column} to {to} does not pass {sorted(chosen)}"


def wrong_services(board: Board) -> typing.Iterator[str]:
    """Whether the three places that make services of owners agree: the variable, the label, and the choice."""
    of_variable = variables(board)["service"]["regex"].strip("/").replace("\\/", "/")
    text = "\n".join(target["expr"] for panel in panels(board) for target in panel.get("targets", []))
    of_label = set(re.findall(r'"service", "\$1", "owner", "([^"]*)"', text))
    chosen = set(re.findall(r'owner=~"\((\$service)\)([^"]*)"', text))
    if len(of_label) != 1 or len(chosen) != 1:
        yield f"{board['uid']}: {len(of_label)} ways to name services, {len(chosen)} to choose them"
        return
    appended = chosen.pop()[1]
    for owner, service in SERVICES.items():
        for what, pattern in (("variable", of_variable), ("label", of_label.copy().pop())):
            found = re.fullmatch(pattern, owner)
            if not found or found[1] != service:
                yield f"{board['uid']}: the {what} makes {found and found[1]} of {owner}"
        if not re.fullmatch(f"({re.escape(service)}){appended}", owner):
            yield f"{board['uid']}: {service} does not choose {owner}"
    for service, owner in OTHERS:
        if re.fullmatch(f"({re.escape(service)}){appended}", owner):
            yield f"{board['uid']}: {service} also chooses {owner}"


# ---------------------------------------------------------------------------------------------- as walked


class Walk:
    """A person who clicks."""

    def __init__(self, boards: dict[str, Board], prometheus: str) -> None:
        self.boards = boards
        self.prometheus = prometheus
        self.wrong: list[str] = []
        self.asked = 0

    def get(self, path: str, **arguments: str) -> typing.Any:
        url = f"{self.prometheus}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]

    def interpolate(self, uid: str, expr: str, choice: Choice) -> str:
        """The expression as Grafana sends it: a chosen value is escaped, as one of a variable of many is."""
        for name, variable in sorted(variables(self.boards[uid]).items(), key=lambda item: -len(item[0])):
            if name in choice:
                value = re.escape(choice[name]).replace("\\-", "-").replace("\\/", "/").replace("\\", "\\\\")
            else:
                value = variable.get("allValue") or variable.get("query") or ""
            if isinstance(value, str):
                expr = re.sub(rf"\$\{{{name}\}}|\${name}\b", lambda _, value=value: value, expr)
        return expr.replace("$__rate_interval", "1m").replace("$__range", "1h")

    def rows(self, uid: str, panel: Board, choice: Choice) -> list[Choice]:
        """The labels of a table's rows, by its query with the most of them."""
        best: list[Choice] = []
        for query in panel["targets"]:
            self.asked += 1
            found = self.get("query", query=self.interpolate(uid, query["expr"], choice))["result"]
            labels = [row["metric"] for row in found]
            if sum(map(len, labels)) > sum(map(len, best)):
                best = labels
        return best

    def follow(self, url: str, row: Choice, choice: Choice) -> tuple[str, Choice]:
        """The board that a link of this row leads to, and what is chosen there."""

        def value(found: re.Match[str]) -> str:
            return urllib.parse.quote(row.get(found[1], ""), safe="")

        url = re.sub(r"\$\{__data\.fields\.(\w+):percentencode\}", value, url)
        url = re.sub(
            r"\$\{(\w+):queryparam\}",
            lambda found: (
                f"var-{found[1]}={urllib.parse.quote(choice[found[1]], safe='')}"
                if found[1] in choice
                else f"var-{found[1]}=$__all"
            ),
            url,
        )
        parts = urllib.parse.urlsplit(url)
        passed = urllib.parse.parse_qs(parts.query, keep_blank_values=True)
        chosen = {
            name.removeprefix("var-"): values[0]
            for name, values in passed.items()
            if name.startswith("var-") and values[0] != "$__all"
        }
        return parts.path.removeprefix("/d/"), chosen

    def say(self, where: str, what: str) -> None:
        self.wrong.append(f"{where}: {what}")

    def leaf(self, uid: str, choice: Choice, where: str) -> None:
        """Something is shown at the other end: every value passed names rows, and no row is of something else."""
        shown = 0
        for panel in panels(self.boards[uid]):
            for query in panel.get("targets", []):
                self.asked += 1
                found = self.get("query", query=self.interpolate(uid, query["expr"], choice))["result"]
                shown += bool(found)
                for row in found:
                    for name in ("instance", "gpu"):
                        if name in choice and row["metric"].get(name, choice[name]) != choice[name]:
                            self.say(where, f"{uid}, {panel['title']} shows {name} {row['metric'][name]}")
                            return
        if not shown:
            self.say(where, f"{uid} shows nothing for {choice}")

    def step(self, title: str, choice: Choice) -> list[Choice]:
        """One table of the drill-down board: its rows are those chosen, and each of their links leads on."""
        board = self.boards["gpu-node-drilldown"]
        panel = panel_of(board, title)
        rows = self.rows(board["uid"], panel, choice)
        where = f"{title} for {choice or 'All'}"
        print(f"{where}: {len(rows)} rows")
        if not rows:
            self.say(where, "no row")
        for number, row in enumerate(rows):
            for column, url in links(panel):
                if not target(url) or (column and not row.get(column)):
                    continue
                uid, chosen = self.follow(url, row, choice)
                # Every row leads down; what it shows elsewhere is looked at for the first.
                if uid == board["uid"]:
                    if not self.rows(uid, panel_of(board, "Owners"), chosen):
                        self.say(where, f"nothing below {chosen}")
                elif number == 0:
                    self.leaf(uid, chosen, where)
        return rows

    def down(self) -> None:
        board = self.boards["gpu-node-drilldown"]
        choice: Choice = {}
        for title, column in (("Services", "service"), ("Nodes", "instance"), ("GPUs", "gpu")):
            rows = self.step(title, choice)
            if not rows:
                return
            url = next(
                url
                for at, url in links(panel_of(board, title))
                if at == column and (leads := target(url)) and leads[0] == board["uid"]
            )
            _, choice = self.follow(url, rows[0], choice)
        self.step("Owners", choice)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prometheus", metavar="URL", help="walk the drill-down board on this Prometheus")
    options = parser.parse_args()
    boards = {path.stem: json.loads(path.read_text()) for path in sorted(BOARDS.glob("*.json"))}
    down = boards["gpu-node-drilldown"]
    wrong = [*wrong_links(boards), *missing_ways(down), *wrong_services(down)]
    counted = sum(1 for board in boards.values() for panel in panels(board) for _ in links(panel))
    print(f"{counted} links on {len(boards)} boards")
    if options.prometheus and not wrong:
        walk = Walk(boards, options.prometheus.rstrip("/"))
        walk.down()
        print(f"{walk.asked} queries asked on the way")
        wrong += walk.wrong
    for line in wrong:
        print(f"wrong: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
