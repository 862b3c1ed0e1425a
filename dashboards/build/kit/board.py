"""A board: its question, its variables, and where its panels stand."""

import json
import typing
from collections.abc import Iterable, Sequence

from grafana_foundation_sdk.builders import dashboard as dashboard_builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model

from .annotations import annotations
from .links import BOARDS
from .panels import Placed


class Board:
    """One question, its variables, and rows of panels."""

    def __init__(
        self,
        uid: str,
        title: str,
        question: str,
        *,
        variables: Sequence[typing.Any],
        start: str = "now-6h",
        refresh: str = "30s",
        one_gpu: bool = False,
    ) -> None:
        assert uid in BOARDS, uid
        assert question.endswith("?"), "a board answers a question"
        self._uid = uid
        self._one_gpu = one_gpu
        self._board = (
            dashboard_builder.Dashboard(title)
            .uid(uid)
            .description(question)
            .tags(["gpu-node"])
            .readonly()
            .time(start, "now")
            .refresh(refresh)
            .timezone("browser")
            .tooltip(model.DashboardCursorSync.CROSSHAIR)
        )
        self._board.link(
            dashboard_builder.DashboardLink("GPU boards")
            .type(model.DashboardLinkType.DASHBOARDS)
            .tags(["gpu-node"])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        for variable in variables:
            self._board.with_variable(variable)
        self._rows: list[tuple[str, list[Placed]]] = []

    def row(self, title: str, panels: Iterable[Placed]) -> "Board":
        """A heading and the panels below it, left to right, wrapping at 24 columns."""
        self._rows.append((title, list(panels)))
        return self

    def build(self) -> dict[str, typing.Any]:
        """The board as JSON holds it."""
        y = identity = 0
        for title, panels in self._rows:
            identity += 1
            row = dashboard_builder.Row(title).id(identity).collapsed(False)
            row.grid_pos(model.GridPos(x=0, y=y, w=24, h=1))
            self._place(row.build())
            y += 1
            x = tallest = 0
            for placed in panels:
                assert 0 < placed.width <= 24 and placed.height > 0, f"{self._uid}: {title}"
                if x + placed.width > 24:
                    y, x, tallest = y + tallest, 0, 0
                identity += 1
                panel = placed.panel.id(identity).build()
                panel.grid_pos = model.GridPos(x=x, y=y, w=placed.width, h=placed.height)
                self._place(panel)
                x += placed.width
                tallest = max(tallest, placed.height)
            y += tallest
        made = json.loads(json.dumps(self._board.build(), cls=JSONEncoder))
        made["annotations"] = {"list": annotations(one_gpu=self._one_gpu)}
        titles = [panel["title"] for panel in made["panels"]]
        twice = {title for title in titles if titles.count(title) > 1}
        assert not twice, f"{self._uid}: two panels are called {twice}"
        return made

    def _place(self, panel: typing.Any) -> None:
        """As it stands: the builder's own layout would move what lies at 0, 0."""
        board = self._board._internal
        board.panels = [*(board.panels or []), panel]
