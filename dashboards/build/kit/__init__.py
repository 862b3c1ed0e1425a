"""What a dashboard is written with. A module of a dashboard imports all of it.

A panel is one row of a table, as in

    stat("Answering", no_value="none", width=3)
    .help("Exporters whose series Prometheus has now.")
    .query("count($ANSWERING)", "nodes")

`$NAME` in capitals is a term (`queries.TERMS`, and the dashboard's own), `$name` a variable of Grafana's. What a row
leaves out comes from the heading it is under, then from the kind of the panel. Unit `short` and neutral colours are
the defaults; a text for "no value" has none, because an absent value must not look like a healthy zero.
"""
# ruff: noqa: F401, F403

from .dashboard import Dashboard
from .links import GPU_FROM_ROW, GPU_FROM_SERIES, RUNBOOKS, dashboard_link, explore_link, row_link, series_link, url_link
from .looks import *
from .panels import Panel, bargauge, barchart, heatmap, shares, stat, state_timeline, text, timeseries
from .queries import activity, age, by_gpu, if_set, most, or_none, or_zero, or_zero_by, pcie_rate
from .tables import Table, matrix, table
from .variables import explore_variables, gpu_variable, node_variables, query_variable, text_variable
