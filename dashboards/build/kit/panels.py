"""Panels as rows of a table. None is built without help, unit, thresholds and a text for "no value"."""

import dataclasses
import typing
from collections.abc import Callable

from grafana_foundation_sdk.builders import barchart as barchart_builder
from grafana_foundation_sdk.builders import bargauge as bargauge_builder
from grafana_foundation_sdk.builders import common as common_builder
from grafana_foundation_sdk.builders import dashboard as dashboard_builder
from grafana_foundation_sdk.builders import heatmap as heatmap_builder
from grafana_foundation_sdk.builders import prometheus as prometheus_builder
from grafana_foundation_sdk.builders import stat as stat_builder
from grafana_foundation_sdk.builders import statetimeline as statetimeline_builder
from grafana_foundation_sdk.builders import text as text_builder
from grafana_foundation_sdk.builders import timeseries as timeseries_builder
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import heatmap as heatmap_model
from grafana_foundation_sdk.models import prometheus as prometheus_model
from grafana_foundation_sdk.models import text as text_model
from grafana_foundation_sdk.models import units

from .looks import NEUTRAL, Steps, special

DATASOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
UNITS = {value for name, value in vars(units).items() if name[0].isupper() and isinstance(value, str)}

# What a row may say beside its kind's own looks, with what it means to say nothing. `group` names the group of
# metrics that a panel of recorded series needs; for metrics it is known (`groups`). `interval`: the shortest time
# between two points.
COMMON = {
    "unit": "short",
    "steps": NEUTRAL,
    "no_value": "",
    "mappings": (),
    "links": (),
    "decimals": None,
    "minimum": None,
    "maximum": None,
    "width": 12,
    "height": 8,
    "group": None,
    "interval": None,
}

Looks = dict[str, typing.Any]


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of panel: Grafana's builder, the looks that rows may change, and what is always so."""

    builder: Callable[[], typing.Any]
    looks: Looks
    draw: Callable[[typing.Any, "Panel", Looks], None]
    # Rows as a table, and the newest value alone.
    table: bool = False
    instant: bool = False


class Panel:
    """One row: title and looks, then `help` and each `query`."""

    def __init__(self, kind: Kind, title: str, looks: Looks) -> None:
        unknown = looks.keys() - COMMON.keys() - kind.looks.keys()
        assert not unknown, f"{title}: no panel of this kind has {unknown}"
        self.kind = kind
        self.title = title
        self.looks = looks
        self.description = ""
        self.queries: list[tuple[str, str]] = []

    def help(self, text: str) -> "Panel":
        self.description = " ".join(text.split())
        return self

    def query(self, expr: str, legend: str = "") -> "Panel":
        """PromQL and the name of its lines."""
        self.queries.append((expr, legend))
        return self

    def build(self, defaults: Looks) -> tuple[typing.Any, Looks]:
        """Grafana's panel and the looks that hold for it."""
        looks = COMMON | self.kind.looks | defaults | self.looks
        assert self.description.endswith("."), f"{self.title}: help in sentences"
        assert looks["unit"] in UNITS, f"{self.title}: Grafana knows no unit {looks['unit']!r}"
        assert looks["no_value"] not in {"", "0", "-", "OK", "ok"}, f"{self.title}: no value must not look like a value"
        panel = self.kind.builder().title(self.title).description(self.description)
        panel.unit(looks["unit"]).thresholds(threshold_config(looks["steps"])).no_value(looks["no_value"])
        self.kind.draw(panel, self, looks)
        if self.kind is not TEXT:
            self._ask(panel, looks)
        return panel, looks

    def _ask(self, panel: typing.Any, looks: Looks) -> None:
        assert self.queries, f"{self.title}: a query"
        panel.datasource(DATASOURCE)
        panel.mappings(list(looks["mappings"]))
        heatmap = looks.get("from_buckets", False)
        for index, (expr, legend) in enumerate(self.queries):
            assert self.kind.table or legend or len(self.queries) == 1, f"{self.title}: each line has a name"
            query = prometheus_builder.Dataquery().expr(expr).legend_format(legend or "__auto")
            query.ref_id(chr(ord("A") + index)).datasource(DATASOURCE)
            query.editor_mode(prometheus_model.QueryEditorMode.CODE)
            if self.kind.instant or self.kind.table:
                query.instant()
            else:
                query.range()
            format = "table" if self.kind.table else "heatmap" if heatmap else "time_series"
            query.format(prometheus_model.PromQueryFormat(format))
            panel.with_target(query)
        if looks["links"]:
            panel.data_links([_Ready(link) for link in looks["links"]])
        if looks["interval"]:
            panel.interval(looks["interval"])
        if looks["decimals"] is not None:
            panel.decimals(looks["decimals"])
        if looks["minimum"] is not None:
            panel.min(looks["minimum"])
        if looks["maximum"] is not None:
            panel.max(looks["maximum"])


class _Ready:
    """A ready value where Grafana's builders want a builder."""

    def __init__(self, value: typing.Any) -> None:
        self._value = value

    def build(self) -> typing.Any:
        return self._value


def stat(title: str, **looks: typing.Any) -> Panel:
    """One number in large letters, the newest. The tile is painted where its colour means something."""
    return Panel(STAT, title, looks)


def timeseries(title: str, **looks: typing.Any) -> Panel:
    """Lines over time. `draw_steps`: off, line, dashed, area. `dashed` takes patterns of the names of lines that are
    limits rather than measurements. `soft_maximum`: the axis ends no lower, as Grafana's ends at 100 where all is zero."""
    return Panel(TIMESERIES, title, looks)


def shares(title: str, **looks: typing.Any) -> Panel:
    """Lines over time that are shares of a whole, from 0 to 100 %."""
    return timeseries(title, unit="percentunit", minimum=0, maximum=1, **looks)


def bargauge(title: str, **looks: typing.Any) -> Panel:
    """The newest value of each line as a bar."""
    return Panel(BARGAUGE, title, looks)


def barchart(title: str, **looks: typing.Any) -> Panel:
    """Bars by the label `x_field`; of several queries each has its own colour."""
    return Panel(BARCHART, title, looks)


def heatmap(title: str, **looks: typing.Any) -> Panel:
    """Density over time. `from_buckets`: the lines are a histogram's buckets by `le`; else each line is a row."""
    return Panel(HEATMAP, title, looks)


def state_timeline(title: str, **looks: typing.Any) -> Panel:
    """States over time as bands. Their colours come from the mappings."""
    return Panel(STATE_TIMELINE, title, looks)


def text(title: str, markdown: str, **looks: typing.Any) -> Panel:
    """A text. Unit and thresholds are there because every panel has them."""
    return Panel(TEXT, title, looks | {"markdown": " ".join(markdown.split())})


# ------------------------------------------------------------------------------------------------ drawing


def threshold_config(of: Steps) -> dashboard_builder.ThresholdsConfig:
    return (
        dashboard_builder.ThresholdsConfig()
        .mode(model.ThresholdsMode.ABSOLUTE)
        .steps([model.Threshold(value=value, color=color) for value, color in of])
    )


def color(mode: model.FieldColorModeId) -> dashboard_builder.FieldColor:
    return dashboard_builder.FieldColor().mode(mode)


def by_threshold() -> dashboard_builder.FieldColor:
    return color(model.FieldColorModeId.THRESHOLDS)


def dynamic(**properties: typing.Any) -> list[model.DynamicConfigValue]:
    """Properties of an override; a double underscore is a dot."""
    return [model.DynamicConfigValue(id_val=name.replace("__", "."), value=is_) for name, is_ in properties.items()]


def transform(panel: typing.Any, name: str, **options: typing.Any) -> None:
    panel.with_transformation(model.DataTransformerConfig(id_val=name, options=options))


def _legend() -> common_builder.VizLegendOptions:
    return (
        common_builder.VizLegendOptions()
        .show_legend(True)
        .display_mode(common_model.LegendDisplayMode.LIST)
        .placement(common_model.LegendPlacement.BOTTOM)
        .calcs([])
    )


def _newest(panel: typing.Any, looks: Looks) -> None:
    """Grey for "no value": Grafana would paint it in the colour below the first threshold, which is often green."""
    if not any(isinstance(mapping, model.SpecialValueMap) for mapping in looks["mappings"]):
        looks["mappings"] = [*looks["mappings"], special(looks["no_value"])]
    panel.reduce_options(common_builder.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    panel.color_scheme(by_threshold())


def _draw_stat(panel: typing.Any, row: Panel, looks: Looks) -> None:
    _newest(panel, looks)
    panel.text_mode(common_model.BigValueTextMode(looks["text_mode"]))
    panel.justify_mode(common_model.BigValueJustifyMode.CENTER)
    modes = common_model.BigValueColorMode
    panel.color_mode(modes.VALUE if looks["steps"] == NEUTRAL else modes.BACKGROUND_SOLID)
    panel.graph_mode(common_model.BigValueGraphMode.NONE)
    panel.orientation(common_model.VizOrientation.AUTO)


def _draw_timeseries(panel: typing.Any, row: Panel, looks: Looks) -> None:
    panel.color_scheme(color(model.FieldColorModeId.PALETTE_CLASSIC))
    panel.line_width(1).span_nulls(False).show_points(common_model.VisibilityMode.NEVER)
    panel.fill_opacity(60 if looks["stacked"] else 0)
    if looks["stacked"]:
        panel.stacking(common_builder.StackingConfig().mode(common_model.StackingMode.NORMAL).group("A"))
    if looks["soft_maximum"] is not None:
        panel.axis_soft_max(looks["soft_maximum"])
    style = common_model.GraphThresholdsStyleMode(looks["draw_steps"])
    panel.thresholds_style(common_builder.GraphThresholdsStyleConfig().mode(style))
    tooltip = common_builder.VizTooltipOptions().mode(common_model.TooltipDisplayMode.MULTI)
    panel.tooltip(tooltip.sort(common_model.SortOrder.DESCENDING)).legend(_legend())
    for pattern in looks["dashed"]:
        properties = dynamic(
            custom__lineStyle={"fill": "dash", "dash": [8, 6]},
            custom__fillOpacity=0,
            custom__stacking={"mode": common_model.StackingMode.NONE, "group": "A"},
        )
        panel.override_by_regexp(pattern, properties)
    for name, fixed in looks["colors"].items():
        panel.override_by_name(name, dynamic(color={"mode": "fixed", "fixedColor": fixed}))


def _draw_bargauge(panel: typing.Any, row: Panel, looks: Looks) -> None:
    assert len(looks["no_value"]) <= 14, f"{row.title}: there is no room for {looks['no_value']!r}"
    _newest(panel, looks)
    panel.orientation(common_model.VizOrientation.HORIZONTAL)
    panel.display_mode(common_model.BarGaugeDisplayMode.BASIC).show_unfilled(True)
    panel.value_mode(common_model.BarGaugeValueMode.TEXT)
    for name, fixed in looks["colors"].items():
        panel.override_by_name(name, dynamic(color={"mode": "fixed", "fixedColor": fixed}))


def _draw_barchart(panel: typing.Any, row: Panel, looks: Looks) -> None:
    panel.x_field(looks["x_field"]).orientation(common_model.VizOrientation.AUTO).fill_opacity(80)
    panel.show_value(common_model.VisibilityMode.AUTO).legend(_legend())
    panel.color_scheme(by_threshold())
    transform(panel, "organize", excludeByName={"Time": True})
    for name, fixed in looks["colors"].items():
        panel.override_by_name(name, dynamic(color={"mode": "fixed", "fixedColor": fixed}))
    if len(row.queries) > 1:
        # One frame: a row for each value of the label, a column for each query.
        panel.color_scheme(color(model.FieldColorModeId.PALETTE_CLASSIC))
        names = {f"Value #{chr(ord('A') + index)}": legend for index, (_, legend) in enumerate(row.queries)}
        transform(panel, "merge")
        order = {name: index for index, name in enumerate([looks["x_field"], *names])}
        transform(panel, "organize", renameByName=names, indexByName=order)
        transform(panel, "sortBy", sort=[{"field": looks["x_field"]}])


def _draw_heatmap(panel: typing.Any, row: Panel, looks: Looks) -> None:
    panel.calculate(False).y_axis(heatmap_builder.YAxisConfig().unit(looks["unit"]))
    scheme = heatmap_builder.HeatmapColorOptions().mode(heatmap_model.HeatmapColorMode.SCHEME)
    if looks["cell_maximum"] is not None:
        scheme.min(0).max(looks["cell_maximum"])
    panel.color(scheme.scheme("Oranges").steps(64))
    panel.cell_values(heatmap_builder.CellValues().unit(looks["cell_unit"])).cell_gap(1).show_legend()


def _draw_state_timeline(panel: typing.Any, row: Panel, looks: Looks) -> None:
    assert looks["mappings"], f"{row.title}: states have texts"
    panel.color_scheme(by_threshold()).merge_values(True).row_height(0.85).fill_opacity(80)
    panel.show_value(common_model.VisibilityMode.AUTO).legend(_legend())


def _draw_text(panel: typing.Any, row: Panel, looks: Looks) -> None:
    panel.mode(text_model.TextMode.MARKDOWN).content(looks["markdown"])


STAT = Kind(stat_builder.Panel, {"width": 4, "height": 4, "text_mode": "auto"}, _draw_stat, instant=True)
TIMESERIES = Kind(
    timeseries_builder.Panel,
    {"stacked": False, "draw_steps": "off", "dashed": (), "colors": {}, "soft_maximum": None},
    _draw_timeseries,
)
BARGAUGE = Kind(bargauge_builder.Panel, {"width": 8, "minimum": 0, "colors": {}}, _draw_bargauge, instant=True)
BARCHART = Kind(barchart_builder.Panel, {"minimum": 0, "x_field": "", "colors": {}}, _draw_barchart, table=True)
HEATMAP = Kind(heatmap_builder.Panel, {"cell_unit": "short", "from_buckets": True, "cell_maximum": None}, _draw_heatmap)
STATE_TIMELINE = Kind(statetimeline_builder.Panel, {"width": 24}, _draw_state_timeline)
TEXT = Kind(
    text_builder.Panel, {"width": 24, "height": 4, "unit": "none", "no_value": "no text", "markdown": ""}, _draw_text
)
