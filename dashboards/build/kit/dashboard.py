"""A dashboard: its question, its variables, and rows of panels from left to right in Grafana's 24 columns."""

import json
import typing
from collections.abc import Sequence

from grafana_foundation_sdk.builders import dashboard as dashboard_builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model

from .annotations import annotations
from .groups import mark
from .links import DASHBOARDS
from .panels import Looks, Panel
from .queries import TERMS, expand


class Heading:
    """A heading and the panels below it, which share its looks."""

    def __init__(self, title: str, looks: Looks) -> None:
        self.title = title
        self.looks = looks
        self.rows: Sequence[Panel] = ()

    def panels(self, *rows: Panel) -> None:
        self.rows = rows


class Dashboard:
    """`terms` are its own `$NAME`s, beside those of all dashboards and instead of them."""

    def __init__(
        self,
        uid: str,
        title: str,
        question: str,
        *,
        variables: Sequence[typing.Any],
        terms: dict[str, str],
        start: str = "now-6h",
        refresh: str = "30s",
        one_gpu: bool = False,
    ) -> None:
        assert uid in DASHBOARDS, uid
        assert question.endswith("?"), "a dashboard answers a question"
        self.uid = uid
        self._terms = TERMS | terms
        self._annotations = annotations(one_gpu=one_gpu)
        self._builder = dashboard_builder.Dashboard(title).uid(uid).description(question).tags(["gpu-node"])
        self._builder.readonly().time(start, "now").refresh(refresh).timezone("browser")
        self._builder.tooltip(model.DashboardCursorSync.CROSSHAIR)
        others = dashboard_builder.DashboardLink("GPU boards").type(model.DashboardLinkType.DASHBOARDS)
        self._builder.link(others.tags(["gpu-node"]).as_dropdown(True).include_vars(True).keep_time(True))
        for variable in variables:
            self._builder.with_variable(variable)
        self._headings: list[Heading] = []

    def row(self, title: str, **looks: typing.Any) -> Heading:
        """A heading; `.panels(...)` follows. Its looks are those of panels that say nothing else."""
        heading = Heading(title, looks)
        self._headings.append(heading)
        return heading

    def build(self, groups: dict[str, str]) -> dict[str, typing.Any]:
        """As JSON holds it. `groups`: metric to group, of the metrics that are off by default."""
        made = json.loads(json.dumps(self._builder.build(), cls=JSONEncoder))
        made["annotations"] = {"list": self._annotations}
        made["panels"] = panels = []
        y = 0
        for heading in self._headings:
            row = dashboard_builder.Row(heading.title).id(len(panels) + 1).collapsed(False)
            panels.append(_json(row.grid_pos(model.GridPos(x=0, y=y, w=24, h=1)).build()))
            y += 1
            x = tallest = 0
            for panel in heading.rows:
                builder, looks = panel.build(heading.looks)
                width, height = looks["width"], looks["height"]
                if x + width > 24:
                    y, x, tallest = y + tallest, 0, 0
                built = builder.id(len(panels) + 1).grid_pos(model.GridPos(x=x, y=y, w=width, h=height)).build()
                panels.append(mark(expand(_json(built), self._terms), groups, looks["group"]))
                x += width
                tallest = max(tallest, height)
            y += tallest
        titles = [panel["title"] for panel in panels]
        assert len(titles) == len(set(titles)), f"{self.uid}: two panels have one title"
        return expand(made, self._terms)


def _json(built: typing.Any) -> dict[str, typing.Any]:
    return json.loads(json.dumps(built, cls=JSONEncoder))
