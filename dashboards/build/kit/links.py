"""Links between boards and to runbooks. They keep the time and what was chosen."""

import typing
from collections.abc import Iterator, Sequence

from grafana_foundation_sdk.builders import dashboard as dashboard_builder

# Every board there is, in the order in which people go through them.
BOARDS = (
    "gpu-node-oncall",
    "gpu-node-gpu",
    "gpu-node-mig",
    "gpu-node-canary",
    "gpu-node-host",
    "gpu-node-service",
    "gpu-node-drilldown",
    "gpu-node-capacity",
    "gpu-node-exporter",
)
RUNBOOKS = "https://github.com/gpu-node-exporter/gpu-node-exporter/blob/main/docs/runbooks"


def board_link(title: str, uid: str, **variables: str) -> dict[str, typing.Any]:
    """A link to a board: `board_link("GPU", "gpu-node-gpu", instance="${__data.fields.instance}")`. The time is kept
    and, by `keep_choices`, all else that was chosen."""
    assert uid in BOARDS, uid
    query = "".join(f"&var-{name}={value}" for name, value in variables.items())
    return {"title": title, "url": f"/d/{uid}?${{__url_time_range}}{query}", "targetBlank": False}


def keep_choices(boards: dict[str, dict[str, typing.Any]]) -> None:
    """What was chosen on a board stays chosen where its links lead: each variable that both boards have, unless the
    link chooses a value of its own."""
    names = {uid: [variable["name"] for variable in board["templating"]["list"]] for uid, board in boards.items()}
    for uid, board in boards.items():
        for link in _links(board["panels"]):
            to = link["url"].removeprefix("/d/").split("?")[0]
            kept = [name for name in names[uid] if name in names[to] and f"var-{name}=" not in link["url"]]
            link["url"] += "".join(f"&${{{name}:queryparam}}" for name in kept)


def _links(value: typing.Any) -> Iterator[dict[str, typing.Any]]:
    """Links to boards, wherever they are."""
    if isinstance(value, dict):
        if str(value.get("url", "")).startswith("/d/"):
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _links(part)


def row_link(title: str, uid: str, *labels: str) -> dict[str, typing.Any]:
    """From a row of a table to a board, with the row's labels as its variables."""
    return board_link(title, uid, **{label: f"${{__data.fields.{label}:percentencode}}" for label in labels})


def series_link(title: str, uid: str, *labels: str) -> dict[str, typing.Any]:
    """From a line of a graph to a board, with the line's labels as its variables."""
    return board_link(title, uid, **{label: f"${{__field.labels.{label}:percentencode}}" for label in labels})


def url_link(title: str, url: str) -> dict[str, typing.Any]:
    return {"title": title, "url": url, "targetBlank": True}


GPU_FROM_ROW = row_link("Debug this GPU", "gpu-node-gpu", "instance", "gpu")
GPU_FROM_SERIES = series_link("Debug this GPU", "gpu-node-gpu", "instance", "gpu")


def data_links(links: Sequence[dict[str, typing.Any]]) -> list[dashboard_builder.DashboardLink]:
    return [Raw(link) for link in links]  # type: ignore[misc]


class Raw:
    """A ready value where the builders want another builder."""

    def __init__(self, value: typing.Any) -> None:
        self._value = value

    def build(self) -> typing.Any:
        return self._value
