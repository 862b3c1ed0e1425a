"""Tables: rows by labels with a query for each column, and matrices."""

import dataclasses
import typing
from collections.abc import Sequence

from grafana_foundation_sdk.builders import common as common_builder
from grafana_foundation_sdk.builders import table as table_builder
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as model

from .links import GPU_FROM_ROW
from .looks import NEUTRAL, NONE, NOT_TOLD, YES_NO, Steps, by_threshold, special, threshold_config
from .panels import Placed, Told, finish, override
from .queries import Query


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of values: its own query, aggregated by the table's labels. `paint` colours the cell by its
    thresholds or mappings. Labels of its own (as `model`) become columns too: name them in `Table.labels`."""

    title: str
    expr: str
    unit: str = "short"
    thresholds: Steps = NEUTRAL
    mappings: Sequence[typing.Any] = (NOT_TOLD,)
    links: Sequence[dict[str, typing.Any]] = ()
    decimals: int | None = None
    width: int | None = None
    paint: bool = False
    hidden: bool = False


@dataclasses.dataclass(frozen=True)
class Label:
    """A column of a label. It keeps the label's name, by which links find it."""

    name: str
    links: Sequence[dict[str, typing.Any]] = ()
    mappings: Sequence[typing.Any] = ()
    width: int | None = None
    paint: bool = False


def share(title: str, expr: str, **how: typing.Any) -> Column:
    """A column of shares of a whole."""
    return Column(title, expr, unit="percentunit", decimals=0, **how)


def yes_no(title: str, expr: str) -> Column:
    """A column that is yes (good) for 1 and no (bad) for 0."""
    return Column(title, expr, mappings=[YES_NO, NOT_TOLD], paint=True)


def gpu_rows(width: int = 170) -> list[Label]:
    """The labels of a table with a row for each GPU, which leads to the board of that GPU."""
    return [Label("instance", width=width), Label("gpu", links=[GPU_FROM_ROW], width=60)]


def table(
    title: str,
    description: str,
    labels: Sequence[Label],
    columns: Sequence[Column],
    *,
    no_value: str,
    width: int = 24,
    height: int = 8,
    sort_by: str | None = None,
    descending: bool = True,
    labels_last: Sequence[str] = (),
) -> Placed:
    """Rows by labels, a column for each query. Rows with the same labels become one; the labels that all queries
    have are what rows are told apart by, the scrape job among them, which is not shown. Make columns of absent
    series with `or_none`."""
    queries = [Query(column.expr, "", instant=True) for column in columns]
    panel = finish(
        table_builder.Panel(),
        title,
        description,
        queries,
        table=True,
        unit="short",
        thresholds=NEUTRAL,
        no_value=no_value,
        mappings=[NOT_TOLD],
    )
    panel.show_header(True).cell_height(common_model.TableCellHeight.SM).filterable(True).min_width(70)
    panel.align(common_model.FieldTextAlignment.AUTO)
    fields = ["Value" if len(columns) == 1 else f"Value #{chr(ord('A') + index)}" for index in range(len(columns))]
    if len(columns) > 1:
        panel.with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
    first = [label.name for label in labels if label.name not in labels_last]
    order = ["cluster", *first, *fields, *labels_last]
    panel.with_transformation(
        model.DataTransformerConfig(
            id_val="organize",
            options={
                "excludeByName": {"Time": True, "job": True}
                | {field: True for field, column in zip(fields, columns, strict=True) if column.hidden},
                "indexByName": {name: index for index, name in enumerate(order)},
                "renameByName": {
                    field: column.title for field, column in zip(fields, columns, strict=True) if not column.hidden
                },
            },
        )
    )
    for label in labels:
        # A serial number is no number, and a label that is absent is just empty.
        properties = [model.DynamicConfigValue(id_val="unit", value="string")]
        properties += _cell(label.links, [*label.mappings, special("", NONE)], label.width, label.paint)
        override(panel, label.name, properties)
    for column in columns:
        if column.hidden:
            continue
        properties = [
            model.DynamicConfigValue(id_val="unit", value=column.unit),
            model.DynamicConfigValue(id_val="thresholds", value=threshold_config(column.thresholds).build()),
        ]
        if column.decimals is not None:
            properties.append(model.DynamicConfigValue(id_val="decimals", value=column.decimals))
        properties += _cell(column.links, column.mappings, column.width, column.paint)
        override(panel, column.title, properties)
    if sort_by:
        panel.sort_by([common_builder.TableSortByFieldState().display_name(sort_by).desc(descending)])
    return Placed(panel, width, height)


def matrix(
    title: str,
    description: str,
    expr: str,
    *,
    row: str,
    column: str,
    row_links: Sequence[dict[str, typing.Any]] = (),
    width: int = 24,
    height: int = 10,
    **told: typing.Unpack[Told],
) -> Placed:
    """A table whose rows are the values of one label and whose columns those of another, each cell painted. The
    expression is aggregated by just these two. The column of rows is called `row\\column`."""
    told.setdefault("unit", "short")
    told["mappings"] = [*told["mappings"], special("", NONE)]
    panel = finish(table_builder.Panel(), title, description, [Query(expr, "", instant=True)], table=True, **told)
    panel.show_header(True).cell_height(common_model.TableCellHeight.SM).min_width(60)
    panel.align(common_model.FieldTextAlignment.CENTER).cell_options(_painted()).color_scheme(by_threshold())
    panel.with_transformation(
        model.DataTransformerConfig(
            id_val="groupingToMatrix",
            options={"rowField": row, "columnField": column, "valueField": "Value", "emptyValue": "null"},
        )
    )
    corner = f"{row}\\{column}"
    properties = _cell(row_links, (), 180, False)
    properties.append(model.DynamicConfigValue(id_val="custom.cellOptions", value={"type": "auto"}))
    properties.append(model.DynamicConfigValue(id_val="custom.align", value="left"))
    override(panel, corner, properties)
    panel.sort_by([common_builder.TableSortByFieldState().display_name(corner).desc(False)])
    return Placed(panel, width, height)


def _painted() -> common_model.TableColoredBackgroundCellOptions:
    return common_model.TableColoredBackgroundCellOptions(mode=common_model.TableCellBackgroundDisplayMode.BASIC)


def _cell(
    links: Sequence[dict[str, typing.Any]],
    mappings: Sequence[typing.Any],
    width: int | None,
    paint: bool,
) -> list[model.DynamicConfigValue]:
    properties = []
    if links:
        properties.append(model.DynamicConfigValue(id_val="links", value=list(links)))
    if mappings:
        properties.append(model.DynamicConfigValue(id_val="mappings", value=list(mappings)))
    if width is not None:
        properties.append(model.DynamicConfigValue(id_val="custom.width", value=width))
    if paint:
        properties.append(model.DynamicConfigValue(id_val="color", value={"mode": "thresholds"}))
        properties.append(model.DynamicConfigValue(id_val="custom.cellOptions", value=_painted()))
    return properties
