"""What explains a step in a graph: driver loads, maintenance windows, Xids."""

import typing

from .looks import BLUE, RED


Annotation = dict[str, typing.Any]


def _annotation(name: str, color: str, title: str, text: str, expr: str, *, value_is_time: bool) -> Annotation:
    return {
        "name": name,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "enable": True,
        "hide": False,
        "iconColor": color,
        "expr": expr,
        "step": "60s",
        "titleFormat": title,
        "textFormat": text,
        "tagKeys": "instance,gpu",
        "useValueForTime": "on" if value_is_time else False,
    }


# Of the two hours after it, so that the nodes of a fleet are not joined at every step.
DRIVER_LOADED = _annotation(
    "Driver loaded",
    "purple",
    "Driver {{driver_version}} loaded",
    "{{instance}}",
    """max by ($BY_NODE, driver_version) (
        (gpu_driver_load_timestamp_seconds{$NODE} > time() - 7200) * 1000
        * on ($BY_NODE) group_left (driver_version) gpu_driver_info{$NODE})""",
    value_is_time=True,
)
MAINTENANCE = _annotation(
    "Maintenance window",
    BLUE,
    "Maintenance window",
    "{{instance}}",
    'gpu_window_active{$NODE,kind="maintenance"} == 1',
    value_is_time=False,
)
# For a fleet the codes would mean to read every code of every GPU at every step, so only the moment is drawn.
XID_OF_A_FLEET = _annotation(
    "Xid",
    RED,
    "Xid",
    "{{instance}} GPU {{gpu}}",
    "gpu_xid_last_event_timestamp_seconds{$NODE} * 1000",
    value_is_time=True,
)
# Counted now and not two minutes ago, by an exporter that was scraped then: a restart is no Xid.
XID_OF_A_GPU = _annotation(
    "Xid",
    RED,
    "Xid {{xid}}: {{action}}",
    "{{instance}} GPU {{gpu}}, {{severity}}",
    """(gpu_xid_errors_total{$GPU} > 0 unless gpu_xid_errors_total{$GPU} offset 2m
        and on ($BY_NODE) gpu_exporter_build_info{$NODE} offset 2m)
        or gpu_xid_errors_total{$GPU} > gpu_xid_errors_total{$GPU} offset 2m""",
    value_is_time=False,
)


def annotations(*, one_gpu: bool) -> list[Annotation]:
    return [DRIVER_LOADED, MAINTENANCE, XID_OF_A_GPU if one_gpu else XID_OF_A_FLEET]
