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
from grafana_foundation_sdk.builders import stat as stat_builder
from grafana_foundation_sdk.builders import statetimeline as statetimeline_builder
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


class Told(typing.TypedDict, total=False):
    """What every panel takes beside its queries (`finish` does); the first three cannot be left out."""

    unit: typing.Required[str]
    thresholds: typing.Required[Steps]
    no_value: typing.Required[str]
    mappings: Sequence[typing.Any]
    links: Sequence[dict[str, typing.Any]]
    decimals: int | None
    minimum: float | None
    maximum: float | None


def finish(
    panel: typing.Any,
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    table: bool = False,
    unit: str,
    thresholds: Steps,
    no_value: str,
    mappings: Sequence[typing.Any] = (),
    links: Sequence[dict[str, typing.Any]] = (),
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


def told_grey(told: Told) -> Told:
    """Grey for "no value": Grafana would paint it in the colour below the first threshold, which is often green."""
    mappings = list(told.get("mappings", ()))
    if not any(isinstance(mapping, model.SpecialValueMap) for mapping in mappings):
        mappings.append(special(told["no_value"]))
    return told | {"mappings": mappings}


def newest(queries: Query | Sequence[Query]) -> list[Query]:
    """The queries, asked for their newest value alone."""
    return [dataclasses.replace(query, instant=True) for query in as_list(queries)]


def stat(
    title: str,
    description: str,
    queries: Query | Sequence[Query],
    *,
    width: int = 4,
    height: int = 4,
    text_mode: str = "auto",
    **told: typing.Unpack[Told],
) -> Placed:
    """One number in large letters, the newest. The tile is painted where its colour means something."""
    panel = finish(stat_builder.Panel(), title, description, newest(queries), **told_grey(told))
    panel.reduce_options(common_builder.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    panel.color_scheme(by_threshold()).text_mode(common_model.BigValueTextMode(text_mode))
    panel.justify_mode(common_model.BigValueJustifyMode.CENTER)
    plain = told["thresholds"] is NEUTRAL
    panel.color_mode(common_model.BigValueColorMode.VALUE if plain else common_model.BigValueColorMode.BACKGROUND_SOLID)
    panel.graph_mode(common_model.BigValueGraphMode.NONE)
    panel.orientation(common_model.VizOrientation.AUTO)
    return Placed(panel, width, height)


def timeseries(
    title: str,
    description: str,
    queries: Query | Sequence[Query],
    *,
    width: int = 12,
    height: int = 8,
    stacked: bool = False,
    draw_thresholds: str = "off",
    dashed: Sequence[str] = (),
    colors: dict[str, str] | None = None,
    **told: typing.Unpack[Told],
) -> Placed:
    """Lines over time. `draw_thresholds`: off, line, dashed, area. `dashed` takes patterns of the names of lines
    that are limits rather than measurements."""
    panel = finish(timeseries_builder.Panel(), title, description, as_list(queries), **told)
    panel.color_scheme(dashboard_builder.FieldColor().mode(model.FieldColorModeId.PALETTE_CLASSIC))
    panel.line_width(1).span_nulls(False).show_points(common_model.VisibilityMode.NEVER)
    panel.fill_opacity(60 if stacked else 0)
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
    panel.legend(legend())
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


def shares(title: str, description: str, queries: Query | Sequence[Query], **how: typing.Any) -> Placed:
    """Lines over time that are shares of a whole, from 0 to 100 %."""
    return timeseries(title, description, queries, unit="percentunit", minimum=0, maximum=1, **how)


def bargauge(
    title: str,
    description: str,
    queries: Query | Sequence[Query],
    *,
    width: int = 8,
    height: int = 8,
    **told: typing.Unpack[Told],
) -> Placed:
    """The newest value of each line as a bar. There is little room for what it says without a value."""
    assert len(told["no_value"]) <= 14, f"{title}: {told['no_value']!r} is too long"
    told.setdefault("minimum", 0)
    panel = finish(bargauge_builder.Panel(), title, description, newest(queries), **told_grey(told))
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
    width: int = 12,
    height: int = 8,
    **told: typing.Unpack[Told],
) -> Placed:
    """Bars by a label: one query, whose label `x_field` names the bars."""
    told.setdefault("minimum", 0)
    panel = finish(barchart_builder.Panel(), title, description, as_list(queries), table=True, **told)
    panel.x_field(x_field).orientation(common_model.VizOrientation.AUTO).fill_opacity(80)
    panel.show_value(common_model.VisibilityMode.AUTO).legend(legend())
    panel.color_scheme(by_threshold())
    panel.with_transformation(model.DataTransformerConfig(id_val="organize", options={"excludeByName": {"Time": True}}))
    return Placed(panel, width, height)


def heatmap(
    title: str,
    description: str,
    queries: Query | Sequence[Query],
    *,
    cell_unit: str = "short",
    from_buckets: bool = True,
    width: int = 12,
    height: int = 8,
    **told: typing.Unpack[Told],
) -> Placed:
    """Density over time. `from_buckets`: the lines are a histogram's buckets by `le`; else each line is a row."""
    asked = [dataclasses.replace(query, heatmap=from_buckets) for query in as_list(queries)]
    told.setdefault("thresholds", NEUTRAL)
    panel = finish(heatmap_builder.Panel(), title, description, asked, **told)
    panel.calculate(False).y_axis(heatmap_builder.YAxisConfig().unit(told["unit"]))
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
    width: int = 24,
    height: int = 8,
    **told: typing.Unpack[Told],
) -> Placed:
    """States over time as bands. Their colours come from the mappings."""
    assert told.get("mappings"), f"{title}: states have words"
    told.setdefault("unit", "short")
    panel = finish(statetimeline_builder.Panel(), title, description, as_list(queries), **told)
    panel.color_scheme(by_threshold()).merge_values(True).row_height(0.85).fill_opacity(80)
    panel.show_value(common_model.VisibilityMode.AUTO).legend(legend())
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
