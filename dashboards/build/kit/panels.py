"""Panels that cannot be half told: none is made without title, description, unit, thresholds and a text for
"no value"."""

import dataclasses
import typing
from collections.abc import Sequence

from grafana_foundation_sdk.builders import barchart as barchart_builder
from grafana_foundation_sdk.builders import bargauge as bargauge_builder
from grafana_foundation_sdk.builders import common as common_builder
from grafana_foundation_sdk.builders import dashboard as dashboard_builder
from grafana_foundation_sdk.builders import heatmap as heatmap_builder
from grafana_foundation_sdk.builders import histogram as histogram_builder
from grafana_foundation_sdk.builders import stat as stat_builder
from grafana_foundation_sdk.builders import statetimeline as statetimeline_builder
from grafana_foundation_sdk.builders import statushistory as statushistory_builder
from grafana_foundation_sdk.builders import text as text_builder
from grafana_foundation_sdk.builders import timeseries as timeseries_builder
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import heatmap as heatmap_model
from grafana_foundation_sdk.models import text as text_model

from .links import data_links
from .looks import NEUTRAL, UNITS, Steps, by_threshold, legend, special, threshold_config
from .queries import DATASOURCE, Query, target


@dataclasses.dataclass
class Placed:
    """A panel and the room it takes."""

    panel: typing.Any
    width: int
    height: int


def finish(
    panel: typing.Any,
    title: str,
    description: str,
    queries: Sequence[Query],
    unit: str,
    thresholds: Steps,
    no_value: str,
    mappings: Sequence[typing.Any],
    links: Sequence[dict[str, typing.Any]],
    *,
    table: bool = False,
    decimals: int | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
) -> typing.Any:
    """What every panel has, checked."""
    assert title and description.endswith("."), f"{title}: a title, and a description in sentences"
    assert unit in UNITS, f"{title}: Grafana knows no unit {unit!r}"
    assert no_value, f"{title}: what it says without a value"
    assert no_value not in {"0", "-", "OK", "ok"}, f"{title}: no value must not look like a value"
    assert queries, f"{title}: a query"
    panel.title(title).description(description).datasource(DATASOURCE)
    panel.unit(unit).thresholds(threshold_config(thresholds)).no_value(no_value)
    panel.mappings(list(mappings))
    for index, query in enumerate(queries):
        assert table or query.legend or len(queries) == 1, f"{title}: each line has a name"
        panel.with_target(target(query, chr(ord("A") + index), table))
    if links:
        panel.data_links(data_links(links))
    if decimals is not None:
        panel.decimals(decimals)
    if minimum is not None:
        panel.min(minimum)
    if maximum is not None:
        panel.max(maximum)
    return panel


def told_grey(mappings: Sequence[typing.Any], no_value: str) -> list[typing.Any]:
    """Grey for "no value": Grafana would paint it in the colour below the first threshold, which is often green."""
    if any(isinstance(mapping, model.SpecialValueMap) for mapping in mappings):
        return list(mappings)
    return [*mappings, special(no_value)]


def stat(
    title: str,
    description: str,
    queries: Query | Sequence[Query],
    *,
    unit: str,
    thresholds: Steps,
    no_value: str,
    mappings: Sequence[typing.Any] = (),
    links: Sequence[dict[str, typing.Any]] = (),
    decimals: int | None = None,
    width: int = 4,
    height: int = 4,
    background: bool | None = None,
    text_mode: str = "auto",
    sparkline: bool = False,
) -> Placed:
    """One number in large letters, the newest. Without `sparkline` its queries are instant ones. The tile is
    painted where its colour means something."""
    asked = as_list(queries)
    if background is None:
        background = thresholds is not NEUTRAL
    if not sparkline:
        asked = [dataclasses.replace(query, instant=True) for query in asked]
    panel = finish(
        stat_builder.Panel(),
        title,
        description,
        asked,
        unit,
        thresholds,
        no_value,
        told_grey(mappings, no_value),
        links,
        decimals=decimals,
    )
    panel.reduce_options(common_builder.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    panel.color_scheme(by_threshold()).text_mode(common_model.BigValueTextMode(text_mode))
    panel.justify_mode(common_model.BigValueJustifyMode.CENTER)
    panel.color_mode(
        common_model.BigValueColorMode.BACKGROUND_SOLID if background else common_model.BigValueColorMode.VALUE
    )
    panel.graph_mode(common_model.BigValueGraphMode.AREA if sparkline else common_model.BigValueGraphMode.NONE)
    panel.orientation(common_model.VizOrientation.AUTO)
    return Placed(panel, width, height)


def timeseries(
    title: str,
    description: str,
    queries: Query | Sequence[Query],
    *,
    unit: str,
    thresholds: Steps,
    no_value: str,
    mappings: Sequence[typing.Any] = (),
    links: Sequence[dict[str, typing.Any]] = (),
    width: int = 12,
    height: int = 8,
    minimum: float | None = None,
    maximum: float | None = None,
    decimals: int | None = None,
    stacked: bool = False,
    bars: bool = False,
    points: bool = False,
    draw_thresholds: str = "off",
    dashed: Sequence[str] = (),
    colors: dict[str, str] | None = None,
    legend_table: bool = False,
) -> Placed:
    """Lines over time. `draw_thresholds`: off, line, dashed, area. `dashed` takes patterns of the names of lines
    that are limits rather than measurements."""
    panel = finish(
        timeseries_builder.Panel(),
        title,
        description,
        as_list(queries),
        unit,
        thresholds,
        no_value,
        mappings,
        links,
        minimum=minimum,
        maximum=maximum,
        decimals=decimals,
    )
    panel.color_scheme(dashboard_builder.FieldColor().mode(model.FieldColorModeId.PALETTE_CLASSIC))
    panel.line_width(1).span_nulls(False).show_points(
        common_model.VisibilityMode.ALWAYS if points else common_model.VisibilityMode.NEVER
    )
    panel.fill_opacity(60 if stacked or bars else 0)
    if bars:
        panel.draw_style(common_model.GraphDrawStyle.BARS)
    if points:
        panel.draw_style(common_model.GraphDrawStyle.POINTS).point_size(8)
    if stacked:
        panel.stacking(common_builder.StackingConfig().mode(common_model.StackingMode.NORMAL).group("A"))
    panel.thresholds_style(
        common_builder.GraphThresholdsStyleConfig().mode(common_model.GraphThresholdsStyleMode(draw_thresholds))
    )
    panel.tooltip(
        common_builder.VizTooltipOptions()
        .mode(common_model.TooltipDisplayMode.MULTI)
        .sort(common_model.SortOrder.DESCENDING)
    )
    panel.legend(legend(["lastNotNull", "max"] if legend_table else [], legend_table))
    for pattern in dashed:
        style = {"fill": "dash", "dash": [8, 6]}
        panel.override_by_regexp(
            pattern,
            [
                model.DynamicConfigValue(id_val="custom.lineStyle", value=style),
                model.DynamicConfigValue(id_val="custom.fillOpacity", value=0),
                model.DynamicConfigValue(
                    id_val="custom.stacking", value={"mode": common_model.StackingMode.NONE, "group": "A"}
                ),
            ],
        )
    paint_lines(panel, colors)
    return Placed(panel, width, height)


def bargauge(
    title: str,
    description: str,
    queries: Query | Sequence[Query],
    *,
    unit: str,
    thresholds: Steps,
    no_value: str,
    mappings: Sequence[typing.Any] = (),
    links: Sequence[dict[str, typing.Any]] = (),
    width: int = 8,
    height: int = 8,
    minimum: float | None = 0,
    maximum: float | None = None,
    decimals: int | None = None,
) -> Placed:
    """The newest value of each line as a bar. There is little room for what it says without a value."""
    assert len(no_value) <= 14, f"{title}: {no_value!r} is too long"
    asked = [dataclasses.replace(query, instant=True) for query in as_list(queries)]
    panel = finish(
        bargauge_builder.Panel(),
        title,
        description,
        asked,
        unit,
        thresholds,
        no_value,
        told_grey(mappings, no_value),
        links,
        minimum=minimum,
        maximum=maximum,
        decimals=decimals,
    )
    panel.reduce_options(common_builder.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    panel.color_scheme(by_threshold()).orientation(common_model.VizOrientation.HORIZONTAL)
    panel.display_mode(common_model.BarGaugeDisplayMode.BASIC).show_unfilled(True)
    panel.value_mode(common_model.BarGaugeValueMode.TEXT)
    return Placed(panel, width, height)


def barchart(
    title: str,
    description: str,
    queries: Query | Sequence[Query],
    *,
    x_field: str,
    unit: str,
    thresholds: Steps,
    no_value: str,
    mappings: Sequence[typing.Any] = (),
    links: Sequence[dict[str, typing.Any]] = (),
    width: int = 12,
    height: int = 8,
    minimum: float | None = 0,
    maximum: float | None = None,
) -> Placed:
    """Bars by a label: one query, whose label `x_field` names the bars."""
    panel = finish(
        barchart_builder.Panel(),
        title,
        description,
        as_list(queries),
        unit,
        thresholds,
        no_value,
        mappings,
        links,
        table=True,
        minimum=minimum,
        maximum=maximum,
    )
    panel.x_field(x_field).orientation(common_model.VizOrientation.AUTO).fill_opacity(80)
    panel.show_value(common_model.VisibilityMode.AUTO).legend(legend([], False))
    panel.color_scheme(by_threshold())
    panel.with_transformation(model.DataTransformerConfig(id_val="organize", options={"excludeByName": {"Time": True}}))
    return Placed(panel, width, height)


def histogram(
    title: str,
    description: str,
    queries: Query | Sequence[Query],
    *,
    unit: str,
    thresholds: Steps,
    no_value: str,
    width: int = 12,
    height: int = 8,
    bucket_size: float | None = None,
) -> Placed:
    """How the newest values spread."""
    asked = [dataclasses.replace(query, instant=True) for query in as_list(queries)]
    panel = finish(histogram_builder.Panel(), title, description, asked, unit, thresholds, no_value, (), ())
    panel.legend(legend([], False)).combine(True).fill_opacity(80).color_scheme(by_threshold())
    if bucket_size is not None:
        panel.bucket_size(bucket_size)
    return Placed(panel, width, height)


def heatmap(
    title: str,
    description: str,
    queries: Query | Sequence[Query],
    *,
    unit: str,
    thresholds: Steps = NEUTRAL,
    no_value: str,
    cell_unit: str = "short",
    from_buckets: bool = True,
    width: int = 12,
    height: int = 8,
) -> Placed:
    """Density over time. `from_buckets`: the lines are a histogram's buckets by `le`; else each line is a row."""
    asked = [dataclasses.replace(query, heatmap=from_buckets) for query in as_list(queries)]
    panel = finish(heatmap_builder.Panel(), title, description, asked, unit, thresholds, no_value, (), ())
    panel.calculate(False).y_axis(heatmap_builder.YAxisConfig().unit(unit))
    panel.color(
        heatmap_builder.HeatmapColorOptions().mode(heatmap_model.HeatmapColorMode.SCHEME).scheme("Oranges").steps(64)
    )
    panel.cell_values(heatmap_builder.CellValues().unit(cell_unit)).cell_gap(1).show_legend()
    return Placed(panel, width, height)


def state_timeline(
    title: str,
    description: str,
    queries: Query | Sequence[Query],
    *,
    unit: str = "short",
    thresholds: Steps,
    no_value: str,
    mappings: Sequence[typing.Any],
    links: Sequence[dict[str, typing.Any]] = (),
    width: int = 24,
    height: int = 8,
) -> Placed:
    """States over time as bands. Their colours come from the mappings."""
    assert mappings, f"{title}: states have words"
    panel = finish(
        statetimeline_builder.Panel(),
        title,
        description,
        as_list(queries),
        unit,
        thresholds,
        no_value,
        mappings,
        links,
    )
    panel.color_scheme(by_threshold()).merge_values(True).row_height(0.85).fill_opacity(80)
    panel.show_value(common_model.VisibilityMode.AUTO).legend(legend([], False))
    return Placed(panel, width, height)


def status_history(
    title: str,
    description: str,
    queries: Query | Sequence[Query],
    *,
    unit: str = "short",
    thresholds: Steps,
    no_value: str,
    mappings: Sequence[typing.Any],
    links: Sequence[dict[str, typing.Any]] = (),
    width: int = 24,
    height: int = 8,
) -> Placed:
    """States at regular times as cells."""
    assert mappings, f"{title}: states have words"
    panel = finish(
        statushistory_builder.Panel(),
        title,
        description,
        as_list(queries),
        unit,
        thresholds,
        no_value,
        mappings,
        links,
    )
    panel.color_scheme(by_threshold()).row_height(0.9).fill_opacity(80)
    panel.show_value(common_model.VisibilityMode.AUTO).legend(legend([], False))
    return Placed(panel, width, height)


def text(title: str, description: str, markdown: str, *, width: int = 24, height: int = 4) -> Placed:
    """Words. Unit and thresholds are there because every panel has them."""
    assert title and description.endswith("."), f"{title}: a title, and a description in sentences"
    panel = text_builder.Panel().title(title).description(description).mode(text_model.TextMode.MARKDOWN)
    panel.content(markdown).unit("none").thresholds(threshold_config(NEUTRAL)).no_value("no text")
    return Placed(panel, width, height)


def paint_lines(panel: typing.Any, colors: dict[str, str] | None) -> None:
    for name, color in (colors or {}).items():
        fixed = {"mode": "fixed", "fixedColor": color}
        panel.override_by_name(name, [model.DynamicConfigValue(id_val="color", value=fixed)])


def override(panel: typing.Any, name: str, properties: list[model.DynamicConfigValue]) -> None:
    if properties:
        panel.override_by_name(name, properties)


def as_list(queries: Query | Sequence[Query]) -> list[Query]:
    return [queries] if isinstance(queries, Query) else list(queries)
