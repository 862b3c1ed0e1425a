"""Tables: rows by labels with a query for each column, and matrices."""

import dataclasses
import typing
from collections.abc import Sequence

from grafana_foundation_sdk.builders import common as common_builder
from grafana_foundation_sdk.builders import table as table_builder
from grafana_foundation_sdk.models import common as common_model

from .links import GPU_FROM_ROW, Link
from .looks import ABSENT, NEUTRAL, NONE, YES_NO, Steps, special
from .panels import Kind, Looks, Panel, by_threshold, dynamic, threshold_config, transform


@dataclasses.dataclass(frozen=True)
class Column:
    """How a column looks: one of a label (`steps` None, by default), or one of a query."""

    name: str
    unit: str = "short"
    steps: Steps | None = None
    mappings: Sequence[typing.Any] = ()
    links: Sequence[Link] = ()
    decimals: int | None = None
    width: int | None = None
    paint: bool | None = None

    def properties(self) -> list[typing.Any]:
        properties = dynamic(unit=self.unit)
        if self.steps is not None:
            properties += dynamic(thresholds=threshold_config(self.steps).build())
        if self.decimals is not None:
            properties += dynamic(decimals=self.decimals)
        if self.links:
            properties += dynamic(links=list(self.links))
        if self.mappings:
            properties += dynamic(mappings=list(self.mappings))
        if self.width is not None:
            properties += dynamic(custom__width=self.width)
        if self.paint:
            properties += dynamic(color={"mode": "thresholds"}, custom__cellOptions=_painted())
        return properties


class Table(Panel):
    """Rows by labels, a column for each query. Rows with the same labels become one; the labels that all queries
    have identify a row; the scrape job and those of `hidden` are not shown. Make columns of absent series with `or_none`."""

    def __init__(self, title: str, looks: Looks) -> None:
        super().__init__(TABLE, title, looks)
        self.keys: list[Column] = []
        # None: the query adds labels, and its value is not shown.
        self.shown: list[Column | None] = []

    def label(self, name: str, **look: typing.Any) -> "Table":
        """A column of a label. It keeps the label's name, by which links find it."""
        # A serial number is no number, and a label that is absent is just empty.
        look["mappings"] = [*look.get("mappings", ()), special("", NONE)]
        self.keys.append(Column(name, unit="string", **look))
        return self

    def labels(self, *names: str, **look: typing.Any) -> "Table":
        for name in names:
            self.label(name, **look)
        return self

    def gpus(self, width: int | None = 170) -> "Table":
        """A row for each GPU, which leads to the dashboard of that GPU."""
        return self.label("instance", width=width).label("gpu", links=[GPU_FROM_ROW], width=60)

    def widths(self, **pixels: int) -> "Table":
        """Other widths of columns of labels that are there."""
        self.keys = [dataclasses.replace(key, width=pixels.get(key.name, key.width)) for key in self.keys]
        return self

    def column(self, title: str, expr: str, **look: typing.Any) -> "Table":
        """A column of values. `steps` or `paint` colour the cell."""
        look.setdefault("paint", "steps" in look)
        self.shown.append(Column(title, **{"steps": NEUTRAL, "mappings": [ABSENT]} | look))
        self.query(expr)
        return self

    def columns(self, *columns: tuple[str, str], **look: typing.Any) -> "Table":
        """Columns that look alike, by title and expression."""
        for title, expr in columns:
            self.column(title, expr, **look)
        return self

    def share(self, title: str, expr: str, **look: typing.Any) -> "Table":
        """A column of shares of a whole."""
        return self.column(title, expr, unit="percentunit", decimals=0, **look)

    def yes_no(self, title: str, expr: str) -> "Table":
        """A column that is yes (good) for 1 and no (bad) for 0."""
        return self.column(title, expr, mappings=[YES_NO, ABSENT], paint=True)

    def labels_from(self, expr: str) -> "Table":
        """A query that brings labels only."""
        self.shown.append(None)
        self.query(expr)
        return self


def table(title: str, **looks: typing.Any) -> Table:
    """Labels and columns follow as `.label(...)` and `.column(...)`."""
    return Table(title, looks)


def matrix(title: str, **looks: typing.Any) -> Panel:
    """A table whose rows are the values of the label `row` and whose columns those of `column`, each cell painted. The
    expression is aggregated by just these two."""
    return Panel(MATRIX, title, looks)


def _draw_table(panel: typing.Any, row: Panel, looks: Looks) -> None:
    assert isinstance(row, Table)
    looks["mappings"] = [ABSENT]
    panel.show_header(True).cell_height(common_model.TableCellHeight.SM).filterable(True).min_width(70)
    panel.align(common_model.FieldTextAlignment.AUTO)
    count = len(row.shown)
    fields = ["Value"] if count == 1 else [f"Value #{chr(ord('A') + index)}" for index in range(count)]
    titles = {field: column and column.name for field, column in zip(fields, row.shown, strict=True)}
    if count > 1:
        transform(panel, "merge")
    first = [label.name for label in row.keys if label.name not in looks["labels_last"]]
    order = ["cluster", *first, *fields, *looks["labels_last"]]
    transform(
        panel,
        "organize",
        excludeByName=dict.fromkeys(["Time", "job", *looks["hidden"]], True)
        | {field: True for field, title in titles.items() if not title},
        indexByName={name: index for index, name in enumerate(order)},
        renameByName={field: title for field, title in titles.items() if title},
    )
    # Only where targets have one: as narrow as may be.
    panel.override_by_name("cluster", dynamic(custom__width=90))
    for column in [*row.keys, *row.shown]:
        if column:
            panel.override_by_name(column.name, column.properties())
    if looks["sort_by"]:
        panel.sort_by([_sorted(looks["sort_by"], looks["descending"])])


def _draw_matrix(panel: typing.Any, row: Panel, looks: Looks) -> None:
    looks["mappings"] = [*looks["mappings"], special("", NONE)]
    panel.show_header(True).cell_height(common_model.TableCellHeight.SM).min_width(60)
    panel.align(common_model.FieldTextAlignment.CENTER).cell_options(_painted()).color_scheme(by_threshold())
    fields = {"rowField": looks["row"], "columnField": looks["column"], "valueField": "Value"}
    transform(panel, "groupingToMatrix", **fields, emptyValue="null")
    corner = f"{looks['row']}\\{looks['column']}"
    properties = dynamic(links=list(looks["row_links"])) if looks["row_links"] else []
    properties += dynamic(custom__width=180, custom__cellOptions={"type": "auto"}, custom__align="left")
    panel.override_by_name(corner, properties)
    panel.sort_by([_sorted(corner, False)])


def _sorted(by: str, descending: bool) -> common_builder.TableSortByFieldState:
    return common_builder.TableSortByFieldState().display_name(by).desc(descending)


def _painted() -> common_model.TableColoredBackgroundCellOptions:
    return common_model.TableColoredBackgroundCellOptions(mode=common_model.TableCellBackgroundDisplayMode.BASIC)


TABLE = Kind(
    table_builder.Panel,
    {"width": 24, "sort_by": None, "descending": True, "labels_last": (), "hidden": ()},
    _draw_table,
    table=True,
)
MATRIX = Kind(
    table_builder.Panel,
    {"width": 24, "height": 10, "row": "", "column": "", "row_links": ()},
    _draw_matrix,
    table=True,
)
