"""What is asked of Prometheus: label matchers, the inventory, and what stands in for series that are absent."""

import dataclasses

from grafana_foundation_sdk.builders import prometheus as prometheus_builder
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import prometheus as prometheus_model

DATASOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")

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

# The exporters that Prometheus is to scrape, with whether it can. "All" jobs are all of Prometheus: those of other
# exporters are told apart by the job's name, or by what the target answered within the last hour.
ANSWERING = f"gpu_exporter_build_info{{{NODE}}}"
TARGETS = (
    f'(up{{{NODE},job=~".*gpu-node-exporter.*"}} or up{{{NODE}}} and on ({BY_NODE}) last_over_time({ANSWERING}[1h]))'
)


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
    return f"({expr}) or on ({by}) (({anchor}) * NaN)"


def age(series: str) -> str:
    """How long before the node's newest time each of these times was. By the node's own clock: one that is wrong makes
    no reading old."""
    clock = f"""max by ({BY_NODE}) (gpu_exporter_collector_last_success_timestamp_seconds{{{NODE}}}
        or gpu_exporter_sample_timestamp_seconds{{{NODE}}})"""
    return f"clamp_min({clock} - on ({BY_NODE}) group_right () {series}, 0)"


def by_gpu(expr: str) -> str:
    """One value a GPU, whatever other labels there are."""
    return f"max by ({BY_GPU}) ({expr})"


def most(expr: str, by: str, *, ranked: str | None = None, lowest: bool = False) -> str:
    """Of the lines those of the ten (nodes, GPUs...) that were highest in the time shown, or lowest, and the same ten
    all the time: nobody can read the lines of a fleet. `ranked` tells of another value by which they are chosen. To
    choose, it is looked every five minutes: at every step it would cost as much again."""
    pick, extreme = ("bottomk", "min") if lowest else ("topk", "max")
    value = f"{extreme}_over_time(({ranked or expr})[$__range:5m] @ end())"
    return f"({expr}) and on ({by}) {pick}(10, {extreme} by ({by}) ({value}))"


def or_zero(expr: str, collected: str) -> str:
    """The expression, or 0 where it has no result although `collected` has one. Without that, nothing: a zero
    from `vector(0)` would hide that nobody collects."""
    return f"({expr}) or on () (count({collected}) * 0)"


def target(query: Query, ref: str, table: bool) -> prometheus_builder.Dataquery:
    made = prometheus_builder.Dataquery().expr(tidy(query.expr)).legend_format(query.legend or "__auto")
    made.ref_id(ref).datasource(DATASOURCE).editor_mode(prometheus_model.QueryEditorMode.CODE)
    if query.instant or table:
        made.instant()
    else:
        made.range()
    if table:
        made.format(prometheus_model.PromQueryFormat.TABLE)
    elif query.heatmap:
        made.format(prometheus_model.PromQueryFormat.HEATMAP)
    else:
        made.format(prometheus_model.PromQueryFormat.TIME_SERIES)
    return made
