"""What a board's module uses, from `kit`.

A board answers one question. Its panels are made by functions that take none without title, description, unit,
thresholds and a text for "no value": nothing that is absent may look like a healthy zero. `Board` lays them out from
left to right in Grafana's 24 columns.
"""
# ruff: noqa: F401

from grafana_foundation_sdk.builders import dashboard as dashboard_builder
from grafana_foundation_sdk.models import dashboard as model

from kit.annotations import annotations
from kit.board import Board
from kit.links import (
    BOARDS,
    GPU_FROM_ROW,
    GPU_FROM_SERIES,
    RUNBOOKS,
    board_link,
    row_link,
    series_link,
    url_link,
)
from kit.looks import (
    BAD_ABOVE_ZERO,
    BLUE,
    GREEN,
    GREY,
    NEUTRAL,
    NONE,
    NOT_TOLD,
    NOTHING,
    ORANGE,
    RED,
    TICKET_ABOVE_ZERO,
    UTILIZATION_BAND,
    YELLOW,
    YES_NO,
    mapped,
    special,
    steps,
)
from kit.panels import (
    Placed,
    barchart,
    bargauge,
    heatmap,
    shares,
    stat,
    state_timeline,
    text,
    timeseries,
)
from kit.queries import (
    ALERT,
    ANSWERING,
    BY_GPU,
    BY_NODE,
    DATASOURCE,
    GPU,
    INVENTORY,
    NODE,
    TARGETS,
    THIS_GPU,
    Query,
    age,
    by_gpu,
    most,
    or_none,
    or_zero,
    tidy,
)
from kit.tables import Column, Label, gpu_rows, matrix, share, table, yes_no
from kit.variables import datasource_variable, gpu_variable, node_variables, query_variable
