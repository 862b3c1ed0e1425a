"""Variables, from series of the inventory."""

import typing

from grafana_foundation_sdk.builders import dashboard as dashboard_builder
from grafana_foundation_sdk.models import dashboard as model

from .panels import DATASOURCE


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


def rack_variable() -> dashboard_builder.QueryVariable:
    return query_variable(
        "rack",
        "Rack",
        'label_values(gpu_exporter_build_info{cluster=~"$cluster",job=~"$job"}, rack)',
        description="Rack of the nodes, where targets or the exporter's settings have one; All includes nodes without.",
        all_value=".*",
    )


def node_variables(*, one_node: bool = False, rack: bool = False) -> list[typing.Any]:
    """Data source, cluster, job and instance, from a series that there is even on a node without a GPU. `rack`: a rack
    can be chosen, and only its nodes."""
    of_rack = ',rack=~"$rack"' if rack else ""
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
        *([rack_variable()] if rack else []),
        query_variable(
            "instance",
            "Node",
            f'label_values(gpu_exporter_build_info{{cluster=~"$cluster",job=~"$job"{of_rack}}}, instance)',
            description="Node, as Prometheus scrapes it.",
            all_value=None if one_node else ".+",
        ),
    ]


def gpu_variable(*, one_gpu: bool = False) -> dashboard_builder.QueryVariable:
    return query_variable(
        "gpu",
        "GPU",
        "label_values(gpu_info{$NODE}, gpu)",
        description="Number of the GPU on its node.",
        all_value=None if one_gpu else ".+",
    )


def text_variable(name: str, label: str, default: str, *, description: str) -> dashboard_builder.TextBoxVariable:
    variable = dashboard_builder.TextBoxVariable(name).label(label).description(description).default_value(default)
    return variable.current(model.VariableOption(selected=True, text=default, value=default))


def explore_variables() -> list[typing.Any]:
    """Data sources of logs and traces. Empty by default: the panels that lead there say that they are off."""
    return [
        text_variable("loki", "Loki", "", description="UID of the Loki data source; empty: no links to logs."),
        text_variable("tempo", "Tempo", "", description="UID of the Tempo data source; empty: no links to traces."),
    ]
