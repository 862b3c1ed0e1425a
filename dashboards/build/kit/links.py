"""Links between dashboards and to runbooks. They keep the time and what was chosen."""

import json
import re
import typing
import urllib.parse
from collections.abc import Iterator

# In the order in which people go through them.
DASHBOARDS = (
    "gpu-node-fleet",
    "gpu-node-oncall",
    "gpu-node-gpu",
    "gpu-node-job",
    "gpu-node-mig",
    "gpu-node-host",
    "gpu-node-canary",
    "gpu-node-service",
    "gpu-node-capacity",
    "gpu-node-exporter",
)
RUNBOOKS = "https://github.com/gpu-node-exporter/gpu-node-exporter/blob/main/docs/runbooks"

Link = dict[str, typing.Any]


def dashboard_link(title: str, uid: str, **variables: str) -> Link:
    """A link that sets variables: `dashboard_link("GPU", "gpu-node-gpu", instance="${__data.fields.instance}")`. The
    time is kept and, by `keep_choices`, all else that was chosen."""
    assert uid in DASHBOARDS, uid
    query = "".join(f"&var-{name}={value}" for name, value in variables.items())
    return {"title": title, "url": f"/d/{uid}?${{__url_time_range}}{query}", "targetBlank": False}


def row_link(title: str, uid: str, *labels: str) -> Link:
    """From a row of a table to a dashboard, with the row's labels as its variables."""
    return dashboard_link(title, uid, **{label: f"${{__data.fields.{label}:percentencode}}" for label in labels})


def series_link(title: str, uid: str, *labels: str) -> Link:
    """From a line of a graph to a dashboard, with the line's labels as its variables."""
    return dashboard_link(title, uid, **{label: f"${{__field.labels.{label}:percentencode}}" for label in labels})


def url_link(title: str, url: str) -> Link:
    return {"title": title, "url": url, "targetBlank": True}


def explore_link(title: str, source: str, query: Link) -> Link:
    """To Grafana's Explore on the data source that the variable `source` names, at the time shown. Strings of the query
    may have variables."""
    queries = [{"refId": "A", **query}]
    pane = {"datasource": f"${{{source}}}", "queries": queries, "range": {"from": "${__from}", "to": "${__to}"}}
    # A variable is filled in as it is; all else is percent-encoded.
    parts = re.split(r"(\$\{[^}]*\})", json.dumps({"a": pane}))
    encoded = "".join(part if part.startswith("${") else urllib.parse.quote(part, safe="") for part in parts)
    return url_link(title, f"/explore?schemaVersion=1&orgId=1&panes={encoded}")


GPU_FROM_ROW = row_link("GPU", "gpu-node-gpu", "instance", "gpu")
GPU_FROM_SERIES = series_link("GPU", "gpu-node-gpu", "instance", "gpu")


def keep_choices(dashboards: dict[str, dict[str, typing.Any]]) -> None:
    """What was chosen stays chosen where links lead: each variable that both dashboards have, unless the link sets a
    value of its own."""
    names = {uid: [variable["name"] for variable in made["templating"]["list"]] for uid, made in dashboards.items()}
    for uid, made in dashboards.items():
        for link in _links(made["panels"]):
            to = link["url"].removeprefix("/d/").split("?")[0]
            kept = [name for name in names[uid] if name in names[to] and f"var-{name}=" not in link["url"]]
            link["url"] += "".join(f"&${{{name}:queryparam}}" for name in kept)


def _links(value: typing.Any) -> Iterator[Link]:
    """Links to dashboards, at any depth."""
    if isinstance(value, dict):
        if str(value.get("url", "")).startswith("/d/"):
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _links(part)
