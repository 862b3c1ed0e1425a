"""Panels of metrics that are off by default say which group of metrics to switch on (`metrics.groups`)."""

import json
import re
import typing

from .looks import ABSENT_TEXT

# As long as a bar, and as wide as a cell of a table.
SHORT = "group off"


def setting(groups: typing.Iterable[str]) -> str:
    return f"set metrics.groups = {json.dumps(sorted(groups))}"


def needed(expr: str, groups: dict[str, str]) -> set[str]:
    """The groups of the metrics in an expression; a histogram's series have its name and an ending."""
    series = re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*", expr)
    names = {*series, *(re.sub("_(bucket|sum|count)$", "", name) for name in series)}
    return {groups[name] for name in names if name in groups}


def mark(panel: dict[str, typing.Any], groups: dict[str, str], group: str | None) -> dict[str, typing.Any]:
    """The panel, with a text for "group off" where the group of its metrics explains that there is no value. Where
    other queries have values, the help says it, and of a table the column's empty cells."""
    by_query = {
        target["refId"]: {group} if group else needed(target["expr"], groups) for target in panel.get("targets", [])
    }
    wanted = set().union(*by_query.values())
    if not wanted:
        return panel
    defaults = panel["fieldConfig"]["defaults"]
    if all(by_query.values()):
        text = SHORT if panel["type"] == "bargauge" else f"group off: {setting(wanted)}"
        _replace(defaults.get("mappings", []), defaults["noValue"], text)
        defaults["noValue"] = text
    if not all(by_query.values()) or panel["type"] == "bargauge":
        panel["description"] += f" {SHORT.capitalize()}: {setting(wanted)}."
    columns = {}
    for transformation in panel.get("transformations", []):
        columns |= transformation["options"].get("renameByName", {})
    off = {columns.get(f"Value #{name}") or columns.get("Value") for name, needs in by_query.items() if needs}
    for override in panel["fieldConfig"].get("overrides", []):
        if override["matcher"]["options"] in off:
            for entry in override["properties"]:
                if entry["id"] == "mappings":
                    _replace(entry["value"], ABSENT_TEXT, SHORT)
    return panel


def _replace(mappings: list[dict[str, typing.Any]], text: str, by: str) -> None:
    """Another text for cells without a value."""
    for mapping in mappings:
        if mapping["type"] == "special" and mapping["options"]["result"]["text"] == text:
            mapping["options"]["result"]["text"] = by
