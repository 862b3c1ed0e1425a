"""What explains a step in a graph: driver loads, maintenance windows, Xids."""

import json
import typing

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from .looks import BLUE, RED
from .queries import BY_NODE, DATASOURCE, GPU, NODE, tidy


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
