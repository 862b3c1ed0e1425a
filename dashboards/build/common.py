"""What all boards share: variables, links, annotations, queries, and panels that cannot be half told.

A board answers one question. Its panels are made by the functions here, which take no panel without title,
description, unit, thresholds and a text for "no value": nothing that is absent may look like a healthy zero.
`Board` lays them out from left to right in Grafana's 24 columns.
"""

import dataclasses
import json
import typing
from collections.abc import Iterable, Sequence

from grafana_foundation_sdk.builders import (
    barchart as barchart_builder,
)
from grafana_foundation_sdk.builders import (
    bargauge as bargauge_builder,
)
from grafana_foundation_sdk.builders import (
    common as common_builder,
)
from grafana_foundation_sdk.builders import (
    dashboard as dashboard_builder,
)
from grafana_foundation_sdk.builders import (
    heatmap as heatmap_builder,
)
from grafana_foundation_sdk.builders import (
    histogram as histogram_builder,
)
from grafana_foundation_sdk.builders import (
    prometheus as prometheus_builder,
)
from grafana_foundation_sdk.builders import (
    stat as stat_builder,
)
from grafana_foundation_sdk.builders import (
    statetimeline as statetimeline_builder,
)
from grafana_foundation_sdk.builders import (
    statushistory as statushistory_builder,
)
from grafana_foundation_sdk.builders import (
    table as table_builder,
)
from grafana_foundation_sdk.builders import (
    text as text_builder,
)
from grafana_foundation_sdk.builders import (
    timeseries as timeseries_builder,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import heatmap as heatmap_model
from grafana_foundation_sdk.models import prometheus as prometheus_model
from grafana_foundation_sdk.models import text as text_model
from grafana_foundation_sdk.models import units

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

# Label matchers. `cluster` may be absent: its "All" matches that too.
NODE = 'cluster=~"$cluster",job=~"$job",instance=~"$instance"'
GPU = NODE + ',gpu=~"$gpu"'
# An alert of the fleet has no instance, one of a node no GPU: a choice of nodes hides neither.
ALERT = 'cluster=~"$cluster",job=~"$job|",instance=~"$instance|"'

# Identities to aggregate and to join by.
BY_NODE = "cluster, job, instance"
BY_GPU = "cluster, job, instance, gpu"

# The GPUs that there are, whether they answer or not: nothing measured may be the anchor of a table.
INVENTORY = f"max by ({BY_GPU}) (gpu_info{{{NODE}}} or gpu_up{{{NODE}}})"
THIS_GPU = f"max by ({BY_GPU}) (gpu_info{{{GPU}}} or gpu_up{{{GPU}}})"

# Colours with a meaning of their own. Words and icons go with them: colour alone tells some people nothing.
GREEN, YELLOW, ORANGE, RED = "green", "yellow", "orange", "red"
BLUE, GREY, NONE = "blue", "#808080", "transparent"

UNITS = {value for name, value in vars(units).items() if name[0].isupper() and isinstance(value, str)}

Step = tuple[float | None, str]
Steps = Sequence[Step]

# For values that are neither good nor bad.
NEUTRAL: Steps = ((None, BLUE),)
# For counts of what must not be.
BAD_ABOVE_ZERO: Steps = ((None, GREEN), (1, RED))
TICKET_ABOVE_ZERO: Steps = ((None, GREEN), (1, ORANGE))
# The band in which a GPU is well used. Neither side of it is a fault: it only tells.
UTILIZATION_BAND: Steps = ((None, NONE), (0.6, GREEN), (0.8, NONE))


def steps(*pairs: Step) -> Steps:
    return pairs


# ---------------------------------------------------------------------------------------------- queries


@dataclasses.dataclass(frozen=True)
class Query:
    """A PromQL expression and the name of its lines. `instant` asks for the newest value only."""

    expr: str
    legend: str
    instant: bool = False
    heatmap: bool = False


def tidy(expr: str) -> str:
    """The expression on one line."""
    return " ".join(expr.split()).replace("( ", "(").replace(" )", ")")


def or_none(expr: str, anchor: str = INVENTORY, by: str = BY_GPU) -> str:
    """The expression, and NaN for each row of the anchor that it lacks, so that no table loses rows or columns
    when a series is absent. Map it with `NOT_TOLD`."""
    return f"({expr}) or on ({by}) ({anchor} * NaN)"


def by_gpu(expr: str) -> str:
    """One value a GPU, whatever other labels there are."""
    return f"max by ({BY_GPU}) ({expr})"


def or_zero(expr: str, collected: str) -> str:
    """The expression, or 0 where it has no result although `collected` has one. Without that, nothing: a zero
    from `vector(0)` would hide that nobody collects."""
    return f"({expr}) or on () (count({collected}) * 0)"


def _target(query: Query, ref: str, table: bool) -> prometheus_builder.Dataquery:
    target = prometheus_builder.Dataquery().expr(tidy(query.expr)).legend_format(query.legend or "__auto")
    target.ref_id(ref).datasource(DATASOURCE).editor_mode(prometheus_model.QueryEditorMode.CODE)
    if query.instant or table:
        target.instant()
    else:
        target.range()
    if table:
        target.format(prometheus_model.PromQueryFormat.TABLE)
    elif query.heatmap:
        target.format(prometheus_model.PromQueryFormat.HEATMAP)
    else:
        target.format(prometheus_model.PromQueryFormat.TIME_SERIES)
    return target


# ---------------------------------------------------------------------------------------------- mappings


def mapped(values: dict[float, tuple[str, str]]) -> model.ValueMap:
    """Words and colours for values."""
    return model.ValueMap(
        options={
            f"{value:g}": model.ValueMappingResult(text=text, color=color, index=index)
            for index, (value, (text, color)) in enumerate(values.items())
        }
    )


def special(text: str, color: str = GREY) -> model.SpecialValueMap:
    """A word for cells without a value."""
    return model.SpecialValueMap(
        options=model.DashboardSpecialValueMapOptions(
            match=model.SpecialValueMatch.NULL_AND_NAN,
            result=model.ValueMappingResult(text=text, color=color, index=99),
        )
    )


NOT_TOLD = special("not told")
YES_NO = mapped({1: ("yes", GREEN), 0: ("no", RED)})


# ---------------------------------------------------------------------------------------------- links

# Time range, data source and cluster go along wherever a link leads.
_KEEP = "${__url_time_range}&${datasource:queryparam}&${cluster:queryparam}&${job:queryparam}"


def board_link(title: str, uid: str, **variables: str) -> dict[str, typing.Any]:
    """A link to a board: `board_link("GPU", "gpu-node-gpu", instance="${__data.fields.instance}")`.
    Time, data source, cluster and job are kept."""
    assert uid in BOARDS, uid
    query = "".join(f"&var-{name}={value}" for name, value in variables.items())
    return {"title": title, "url": f"/d/{uid}?{_KEEP}{query}", "targetBlank": False}


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


def _data_links(links: Sequence[dict[str, typing.Any]]) -> list[dashboard_builder.DashboardLink]:
    return [_Raw(link) for link in links]  # type: ignore[misc]


class _Raw:
    """A ready value where the builders want another builder."""

    def __init__(self, value: typing.Any) -> None:
        self._value = value

    def build(self) -> typing.Any:
        return self._value


# ---------------------------------------------------------------------------------------------- variables

DATASOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")


def datasource_variable() -> dashboard_builder.DatasourceVariable:
    return dashboard_builder.DatasourceVariable("datasource").label("Data source").type("prometheus")


def query_variable(
    name: str,
    label: str,
    query: str,
    *,
    description: str,
    all_value: str | None = None,
    multi: bool = True,
) -> dashboard_builder.QueryVariable:
    """A variable from `label_values(...)`. The choices follow the time range, so that a node that is down now is
    still there. `all_value` None: there is no "All", and it starts with the first."""
    variable = (
        dashboard_builder.QueryVariable(name)
        .label(label)
        .description(description)
        .datasource(DATASOURCE)
        .query({"qryType": 1, "query": query, "refId": f"variable-{name}"})
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.NATURAL_ASC)
        .multi(multi)
    )
    if all_value is not None:
        variable.include_all(True).all_value(all_value)
        every: list[str] | str = ["$__all"] if multi else "$__all"
        text: list[str] | str = ["All"] if multi else "All"
        variable.current(model.VariableOption(selected=True, text=text, value=every))
    return variable


def node_variables(*, one_node: bool = False) -> list[typing.Any]:
    """Data source, cluster, job and instance, from a series that there is even on a node without a GPU."""
    return [
        datasource_variable(),
        query_variable(
            "cluster",
            "Cluster",
            "label_values(gpu_exporter_build_info, cluster)",
            description="Cluster, if the targets have such a label; All takes those without one too.",
            all_value=".*",
            multi=False,
        ),
        query_variable(
            "job",
            "Job",
            'label_values(gpu_exporter_build_info{cluster=~"$cluster"}, job)',
            description="Scrape job of the exporter.",
            all_value=".+",
        ),
        query_variable(
            "instance",
            "Node",
            'label_values(gpu_exporter_build_info{cluster=~"$cluster",job=~"$job"}, instance)',
            description="Node, as Prometheus scrapes it.",
            all_value=None if one_node else ".+",
        ),
    ]


def gpu_variable(*, one_gpu: bool = False) -> dashboard_builder.QueryVariable:
    return query_variable(
        "gpu",
        "GPU",
        f"label_values(gpu_info{{{NODE}}}, gpu)",
        description="Number of the GPU on its node.",
        all_value=None if one_gpu else ".+",
    )


# ---------------------------------------------------------------------------------------------- annotations


def _annotation(name: str, color: str, expr: str, title: str, text: str, value_is_time: bool) -> dict[str, typing.Any]:
    return {
        "name": name,
        "datasource": json.loads(json.dumps(DATASOURCE, cls=JSONEncoder)),
        "enable": True,
        "hide": False,
        "iconColor": color,
        "expr": tidy(expr),
        "step": "60s",
        "titleFormat": title,
        "textFormat": text,
        "tagKeys": "instance,gpu",
        "useValueForTime": "on" if value_is_time else False,
    }


def annotations(*, one_gpu: bool = False) -> list[dict[str, typing.Any]]:
    """What explains a step in any graph. The times of driver loads and Xids are the values themselves. On a board
    of one GPU an Xid is told of by its code; for a fleet that would mean to read every code of every GPU at every
    step, so the moment alone is drawn there."""
    xids = f"gpu_xid_errors_total{{{GPU}}}"
    if one_gpu:
        # Counted now and not two minutes ago, by an exporter that was scraped then: a restart is no Xid.
        xid = _annotation(
            "Xid",
            RED,
            f"""({xids} > 0 unless {xids} offset 2m
                and on ({BY_NODE}) gpu_exporter_build_info{{{NODE}}} offset 2m)
                or {xids} > {xids} offset 2m""",
            "Xid {{xid}}: {{action}}",
            "{{instance}} GPU {{gpu}}, {{severity}}",
            False,
        )
    else:
        xid = _annotation(
            "Xid",
            RED,
            f"gpu_xid_last_event_timestamp_seconds{{{NODE}}} * 1000",
            "Xid",
            "{{instance}} GPU {{gpu}}",
            True,
        )
    return [
        _annotation(
            "Driver loaded",
            "purple",
            f"""max by ({BY_NODE}, driver_version) (
                gpu_driver_load_timestamp_seconds{{{NODE}}} * 1000
                * on ({BY_NODE}) group_left (driver_version) gpu_driver_info{{{NODE}}})""",
            "Driver {{driver_version}} loaded",
            "{{instance}}",
            True,
        ),
        _annotation(
            "Maintenance window",
            BLUE,
            f'gpu_window_active{{{NODE},kind="maintenance"}} == 1',
            "Maintenance window",
            "{{instance}}",
            False,
        ),
        xid,
    ]


# ---------------------------------------------------------------------------------------------- panels


@dataclasses.dataclass
class Placed:
    """A panel and the room it takes."""

    panel: typing.Any
    width: int
    height: int


def _thresholds(of: Steps) -> dashboard_builder.ThresholdsConfig:
    assert of and of[0][0] is None, "thresholds start with the colour below the first"
    return (
        dashboard_builder.ThresholdsConfig()
        .mode(model.ThresholdsMode.ABSOLUTE)
        .steps([model.Threshold(value=value, color=color) for value, color in of])
    )


def _finish(
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
    panel.unit(unit).thresholds(_thresholds(thresholds)).no_value(no_value)
    panel.mappings(list(mappings))
    for index, query in enumerate(queries):
        assert table or query.legend or len(queries) == 1, f"{title}: each line has a name"
        panel.with_target(_target(query, chr(ord("A") + index), table))
    if links:
        panel.data_links(_data_links(links))
    if decimals is not None:
        panel.decimals(decimals)
    if minimum is not None:
        panel.min(minimum)
    if maximum is not None:
        panel.max(maximum)
    return panel


def _told_grey(mappings: Sequence[typing.Any], no_value: str) -> list[typing.Any]:
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
    asked = _as_list(queries)
    if background is None:
        background = thresholds is not NEUTRAL
    if not sparkline:
        asked = [dataclasses.replace(query, instant=True) for query in asked]
    panel = _finish(
        stat_builder.Panel(),
        title,
        description,
        asked,
        unit,
        thresholds,
        no_value,
        _told_grey(mappings, no_value),
        links,
        decimals=decimals,
    )
    panel.reduce_options(common_builder.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    panel.color_scheme(_by_threshold()).text_mode(common_model.BigValueTextMode(text_mode))
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
    panel = _finish(
        timeseries_builder.Panel(),
        title,
        description,
        _as_list(queries),
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
    panel.legend(_legend(["lastNotNull", "max"] if legend_table else [], legend_table))
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
    _color(panel, colors)
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
    asked = [dataclasses.replace(query, instant=True) for query in _as_list(queries)]
    panel = _finish(
        bargauge_builder.Panel(),
        title,
        description,
        asked,
        unit,
        thresholds,
        no_value,
        _told_grey(mappings, no_value),
        links,
        minimum=minimum,
        maximum=maximum,
        decimals=decimals,
    )
    panel.reduce_options(common_builder.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    panel.color_scheme(_by_threshold()).orientation(common_model.VizOrientation.HORIZONTAL)
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
    panel = _finish(
        barchart_builder.Panel(),
        title,
        description,
        _as_list(queries),
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
    panel.show_value(common_model.VisibilityMode.AUTO).legend(_legend([], False))
    panel.color_scheme(_by_threshold())
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
    asked = [dataclasses.replace(query, instant=True) for query in _as_list(queries)]
    panel = _finish(histogram_builder.Panel(), title, description, asked, unit, thresholds, no_value, (), ())
    panel.legend(_legend([], False)).combine(True).fill_opacity(80).color_scheme(_by_threshold())
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
    asked = [dataclasses.replace(query, heatmap=from_buckets) for query in _as_list(queries)]
    panel = _finish(heatmap_builder.Panel(), title, description, asked, unit, thresholds, no_value, (), ())
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
    panel = _finish(
        statetimeline_builder.Panel(),
        title,
        description,
        _as_list(queries),
        unit,
        thresholds,
        no_value,
        mappings,
        links,
    )
    panel.color_scheme(_by_threshold()).merge_values(True).row_height(0.85).fill_opacity(80)
    panel.show_value(common_model.VisibilityMode.AUTO).legend(_legend([], False))
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
    panel = _finish(
        statushistory_builder.Panel(),
        title,
        description,
        _as_list(queries),
        unit,
        thresholds,
        no_value,
        mappings,
        links,
    )
    panel.color_scheme(_by_threshold()).row_height(0.9).fill_opacity(80)
    panel.show_value(common_model.VisibilityMode.AUTO).legend(_legend([], False))
    return Placed(panel, width, height)


def text(title: str, description: str, markdown: str, *, width: int = 24, height: int = 4) -> Placed:
    """Words. Unit and thresholds are there because every panel has them."""
    assert title and description.endswith("."), f"{title}: a title, and a description in sentences"
    panel = text_builder.Panel().title(title).description(description).mode(text_model.TextMode.MARKDOWN)
    panel.content(markdown).unit("none").thresholds(_thresholds(NEUTRAL)).no_value("no text")
    return Placed(panel, width, height)


# ---------------------------------------------------------------------------------------------- tables


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
    panel = _finish(
        table_builder.Panel(), title, description, queries, "short", NEUTRAL, no_value, [NOT_TOLD], (), table=True
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
        _override(panel, label.name, properties)
    for column in columns:
        if column.hidden:
            continue
        properties = [
            model.DynamicConfigValue(id_val="unit", value=column.unit),
            model.DynamicConfigValue(id_val="thresholds", value=_thresholds(column.thresholds).build()),
        ]
        if column.decimals is not None:
            properties.append(model.DynamicConfigValue(id_val="decimals", value=column.decimals))
        properties += _cell(column.links, column.mappings, column.width, column.paint)
        _override(panel, column.title, properties)
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
    unit: str = "short",
    thresholds: Steps,
    mappings: Sequence[typing.Any],
    no_value: str,
    links: Sequence[dict[str, typing.Any]] = (),
    row_links: Sequence[dict[str, typing.Any]] = (),
    decimals: int | None = None,
    width: int = 24,
    height: int = 10,
) -> Placed:
    """A table whose rows are the values of one label and whose columns those of another, each cell painted. The
    expression is aggregated by just these two. The column of rows is called `row\\column`."""
    panel = _finish(
        table_builder.Panel(),
        title,
        description,
        [Query(expr, "", instant=True)],
        unit,
        thresholds,
        no_value,
        [*mappings, special("", NONE)],
        links,
        table=True,
        decimals=decimals,
    )
    panel.show_header(True).cell_height(common_model.TableCellHeight.SM).min_width(60)
    panel.align(common_model.FieldTextAlignment.CENTER).cell_options(_painted()).color_scheme(_by_threshold())
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
    _override(panel, corner, properties)
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


def _override(panel: typing.Any, name: str, properties: list[model.DynamicConfigValue]) -> None:
    if properties:
        panel.override_by_name(name, properties)


def _color(panel: typing.Any, colors: dict[str, str] | None) -> None:
    for name, color in (colors or {}).items():
        fixed = {"mode": "fixed", "fixedColor": color}
        panel.override_by_name(name, [model.DynamicConfigValue(id_val="color", value=fixed)])


def _legend(calcs: list[str], as_table: bool) -> common_builder.VizLegendOptions:
    shown = common_model.LegendDisplayMode.TABLE if as_table else common_model.LegendDisplayMode.LIST
    return (
        common_builder.VizLegendOptions()
        .show_legend(True)
        .display_mode(shown)
        .placement(common_model.LegendPlacement.BOTTOM)
        .calcs(calcs)
    )


def _by_threshold() -> dashboard_builder.FieldColor:
    return dashboard_builder.FieldColor().mode(model.FieldColorModeId.THRESHOLDS)


def _as_list(queries: Query | Sequence[Query]) -> list[Query]:
    return [queries] if isinstance(queries, Query) else list(queries)


# ---------------------------------------------------------------------------------------------- board


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
