"""Are the values of the other dashboards complete and new? The exporter's own rate, errors, durations and cost."""

import typing

from kit import *

SILENT = "not scraped"
ODD = steps(GREEN, 1, YELLOW)
STUCK = mapped({0: ("no", GREEN), 1: ("yes", RED)})


def here(expr: str) -> str:
    """A column of the table of nodes."""
    return or_none(f"max by ($BY_NODE) ({expr}) and on ($BY_NODE) $NODES", "$NODES", "$BY_NODE")


def count(condition: str, collected: str = "$ANSWERING") -> str:
    return or_zero(f"count(max by ($BY_NODE) ({condition}))", collected)


def lost(*counters: str, collected: str = "$ANSWERING") -> str:
    """How often something was lost in the time shown, of all nodes. Some counters have no series before the first loss."""
    return " + ".join(f"({or_zero(f'sum(increase({counter}{{$NODE}}[$__range]))', collected)})" for counter in counters)


def grown(counter: str) -> str:
    """By node, how much a counter grew in the time shown."""
    return f"sum by ($BY_NODE) (increase({counter}{{$NODE}}[$__range]))"


def of_exporters(title: str, **looks: typing.Any) -> Panel:
    """A graph of an exporter's own metrics; three fill a line."""
    return timeseries(title, no_value=SILENT, minimum=0, width=8, height=9, **looks)


dashboard = Dashboard(
    "gpu-node-exporter",
    "GPU / Exporter",
    "Are the values of the other dashboards complete and new?",
    variables=node_variables(),
    start="now-3h",
    terms={
        "LINE": "{{instance}}",
        "SERVING": '$NODE,role!="canary"',
        # How many things are wrong with a target: not scraped, driver down or stuck, collectors down, old readings.
        "PROBLEMS": f"""(3 * max by ($BY_NODE) (1 - ($TARGETS))
            + on ($BY_NODE) (count by ($BY_NODE) (gpu_driver_stuck{{$NODE}} == 1 or gpu_driver_up{{$NODE}} == 0
                or gpu_exporter_collector_up{{$NODE}} == 0 or {age('$READ')} > 60)
            or on ($BY_NODE) max by ($BY_NODE) ($TARGETS) * 0))""",
        # The ten worst; of a fleet the others are counted above.
        "NODES": "(max by ($BY_NODE) ($TARGETS) and on ($BY_NODE) topk(10, $PROBLEMS))",
        # The last reading of each GPU: of values that are read every second, and of all that are read repeatedly.
        "READ": 'gpu_exporter_sample_timestamp_seconds{$NODE,tier="normal"}',
        "ALL_READ": 'gpu_exporter_sample_timestamp_seconds{$NODE,tier!~"identity|once"}',
        "BY": "$BY_NODE, window",
        "LIMITED": f"""(topk(20, {grown('gpu_exporter_series_dropped_total')} > 0)
            or on ($BY_NODE) topk(20, {grown('gpu_exporter_http_connections_refused_total')} > 0))""",
        "LOST": f"""({grown('gpu_exporter_facts_lost_total')} + {grown('gpu_exporter_events_lost_total')}
            + on ($BY_NODE) ({grown('gpu_exporter_kmsg_overruns_total')} or on ($BY_NODE) max by ($BY_NODE) ($ANSWERING) * 0))""",
        "GAPS": 'max by ($BY_NODE) (rate(gpu_exporter_sample_gap_seconds_total{$NODE,buffer="power"}[15m]))',
        "LOSING": "(topk(20, $LOST > 0) or on ($BY_NODE) topk(20, $GAPS > 0.02))",
    },
)

dashboard.row("Now", width=3, no_value=SILENT).panels(
    stat("Not scraped", steps=BAD_ABOVE_ZERO, no_value="no target")
    .help("Targets of the exporter's job that Prometheus cannot scrape. The state of their GPUs is unknown.")
    .query(or_zero("count($TARGETS == 0)", "$TARGETS"), "nodes"),
    stat("Answering", no_value="none")
    .help("Exporters whose series Prometheus has now.")
    .query("count($ANSWERING)", "nodes"),
    stat("Collectors down", steps=TICKET_ABOVE_ZERO)
    .help("Nodes with a collector that fails or is late: its values are old or missing.")
    .query(count("gpu_exporter_collector_up{$NODE} == 0"), "nodes"),
    stat("Stale readings", steps=TICKET_ABOVE_ZERO)
    .help("Nodes with a GPU whose values of every second are over a minute old, by the node's own clock.")
    .query(count(f"{age('$READ')} > 60"), "nodes"),
    stat("Drivers down", steps=BAD_ABOVE_ZERO)
    .help("Nodes whose driver does not answer or is stuck.")
    .query(count("gpu_driver_stuck{$NODE} == 1 or gpu_driver_up{$NODE} == 0"), "nodes"),
    stat("Drivers released", steps=ODD)
    .help("Nodes whose driver was released on request: without measurements until it is resumed.")
    .query(count("gpu_driver_paused{$NODE} == 1"), "nodes"),
    stat("In a window", steps=steps(BLUE, 1, YELLOW))
    .help("Nodes in a maintenance window, which inhibits their alerts.")
    .query(count('gpu_window_active{$NODE,kind="maintenance"} == 1'), "nodes"),
    stat("Versions", steps=steps(GREEN, 2, YELLOW))
    .help("Different versions of the exporter. Older ones lack newer metrics.")
    .query("count(count by (version, revision) ($ANSWERING))", "versions"),
)

dashboard.row("By node").panels(
    table("Worst nodes", no_value="no target", height=9, sort_by="problems")
    .help("""The ten targets with the most problems: not scraped (counts three), driver down or stuck, collectors down, GPUs
        with old readings. No value: the exporter does not answer, or has no such value (without a GPU there are no readings; a
        released driver is neither up nor down).""")
    .label("instance", links=[row_link("On call, this node", "gpu-node-oncall", "instance")], width=180)
    .column("problems", here("$PROBLEMS"), steps=TICKET_ABOVE_ZERO, width=85)
    .column("scraped", "$NODES", mappings=[YES_NO], steps=GOOD_AT_ONE, width=80)
    .column("driver up", here("gpu_driver_up{$NODE}"), mappings=[YES_NO, ABSENT], steps=GOOD_AT_ONE, width=90)
    .column("stuck", here("gpu_driver_stuck{$NODE}"), mappings=[STUCK, ABSENT], steps=BAD_ABOVE_ZERO, width=80)
    .column("GPUs", here("gpu_devices{$NODE}"), width=70)
    .column("expected", here("gpu_devices_expected{$NODE}"), width=90)
    .column("collectors down",
        here("count by ($BY_NODE) (gpu_exporter_collector_up{$NODE} == 0) or on ($BY_NODE) $ANSWERING * 0"),
        steps=TICKET_ABOVE_ZERO, width=130)
    .column("oldest reading", here(age("$READ")), unit="s", decimals=0, steps=steps(NONE, 60, ORANGE), width=120)
    .column("publishing", here("gpu_exporter_publish_duration_seconds{$NODE}"), unit="s",
        steps=steps(NONE, 0.5, YELLOW), width=100)
    .column("scrape", here("scrape_duration_seconds{$NODE} and on ($BY_NODE) $TARGETS"), unit="s", width=90)
    .column("series", here("gpu_exporter_series{$NODE}"), width=80)
    .column("memory", here("sum by ($BY_NODE) (gpu_exporter_resident_memory_bytes{$NODE})"), unit="bytes", width=100)
    .column("running for", here("time() - process_start_time_seconds{$NODE} and on ($BY_NODE) $ANSWERING"),
        unit="dtdurations"),
    table("Versions of exporter and driver", no_value=SILENT, width=12, sort_by="nodes", descending=False)
    .help("Nodes by build of the exporter and by driver, the rarest first.")
    .labels("version", "revision", "driver_version", "cuda_version")
    .column("nodes", """count by (version, revision, driver_version, cuda_version) ($ANSWERING
        * on ($BY_NODE) group_left (driver_version, cuda_version)
        max by ($BY_NODE, driver_version, cuda_version) (gpu_driver_info{$NODE})
        or on ($BY_NODE) $ANSWERING)"""),
    table("Collectors", no_value=SILENT, width=12, sort_by="nodes down")
    .help("Collectors, with the nodes on which they are down, and the age of the oldest success.")
    .label("collector", width=160)
    .column("nodes down", "sum by (collector) (1 - gpu_exporter_collector_up{$NODE})", steps=steps(NONE, 1, ORANGE))
    .column("nodes", "count by (collector) (gpu_exporter_collector_up{$NODE})")
    .column("oldest success", or_none(
            "min by (collector) (gpu_exporter_collector_last_success_timestamp_seconds{$NODE} * 1000)",
            "count by (collector) (gpu_exporter_collector_up{$NODE})", "collector"), unit="dateTimeFromNow"),
)

dashboard.row("Rate").panels(
    of_exporters("HTTP responses", unit="reqps", steps=NOTHING)
    .help("Responses a second by status. Each scrape is one.")
    .query("sum by (code) (rate(gpu_exporter_http_requests_total{$NODE}[$__rate_interval]))", "{{code}}"),
    of_exporters("Snapshots published", unit="cps", steps=steps(NONE, 0.5, GREEN))
    .help("""Snapshots a second and node, of the six nodes with the fewest. One is usual; fewer: the exporter is short
        of CPU.""")
    .query(most("rate(gpu_exporter_publications_total{$NODE}[$__rate_interval])", "$BY_NODE", lowest=True, count=6), "$LINE"),
    of_exporters("Driver calls", unit="cps", steps=NOTHING, stacked=True)
    .help("Calls to the driver a second, by tier: how often their values are read.")
    .query("sum by (tier) (rate(gpu_exporter_driver_calls_total{$NODE}[$__rate_interval]))", "{{tier}}"),
)

dashboard.row("Errors", no_value=SILENT, width=3).panels(
    timeseries("Failed driver calls", unit="cps", steps=steps(NONE, 0.1, ORANGE), minimum=0, soft_maximum=0.1, width=12)
    .help("Failed calls a second, by error. A call that the device does not support is no failure.")
    .query("sum by (error) (rate(gpu_exporter_driver_error_kinds_total{$NODE}[$__rate_interval]))", "{{error}}"),
    timeseries("Samplers replaced", steps=steps(NONE, 1, ORANGE), minimum=0, soft_maximum=1, width=12)
    .help("Sampler processes that ended or were replaced an hour, by reason. A stuck one hung in the driver.")
    .query("sum by (reason) (rate(gpu_exporter_sampler_ends_total{$NODE}[$__rate_interval])) * 3600", "{{reason}}"),
    stat("Stuck calls", steps=BAD_ABOVE_ZERO)
    .help("Driver calls that have not returned, of all GPUs and of the driver as a whole.")
    .query(or_zero("""count(gpu_exporter_driver_call_stuck_seconds{$NODE}
            or gpu_exporter_node_call_stuck_seconds{$NODE})""", "$ANSWERING"), "calls"),
    stat("Events lost", steps=ODD, decimals=0)
    .help("Faults and events lost to full queues, and overruns of the kernel log, in the time shown.")
    .query(lost("gpu_exporter_events_lost_total", "gpu_exporter_facts_lost_total", "gpu_exporter_kmsg_overruns_total"),
        "lost"),
    stat("Series dropped", steps=ODD, decimals=0)
    .help("Series above metrics.max_series, which snapshots leave out, in the time shown. Alerts on them are silent.")
    .query(lost("gpu_exporter_series_dropped_total"), "lost"),
    stat("Readings dropped", steps=ODD, no_value="no GPU is read", decimals=0)
    .help("Values of the driver out of range, and counters that went backwards, in the time shown.")
    .query(
        lost("gpu_exporter_readings_dropped_total", "gpu_exporter_reading_regressions_total", collected="gpu_up{$NODE}"),
        "lost",
    ),
    stat("Gaps in samples", unit="percentunit", steps=steps(GREEN, 0.01, YELLOW, 0.1, ORANGE),
        no_value="no GPU is sampled", decimals=2)
    .help("Share of time without samples in the driver's buffers, the worst GPU.")
    .query(or_zero("max(rate(gpu_exporter_sample_gap_seconds_total{$NODE}[$__rate_interval]))", "gpu_up{$NODE}"), "share"),
    stat("HTTP refused", steps=ODD, decimals=0)
    .help("HTTP connections refused because too many were open, in the time shown.")
    .query(lost("gpu_exporter_http_connections_refused_total"), "lost"),
    stat("State not writable", steps=TICKET_ABOVE_ZERO)
    .help("Nodes that cannot write state.dir: counts and faults are lost at a restart.")
    .query(count("gpu_exporter_state_writable{$NODE} == 0", "gpu_exporter_state_writable{$NODE}"), "nodes"),
    stat("Owners dropped", steps=ODD, no_value="no owner", decimals=0)
    .help("Owners that share the owner other: owners.max_series or the quota of their namespace or user is reached.")
    .query("sum(gpu_exporter_owners_dropped{$NODE})", "owners"),
    table("Unsupported metrics", no_value="all is supported", width=12, sort_by="GPUs without it")
    .help("Metrics without series on some GPUs: neither zero nor a failure.")
    .label("metric", width=320)
    .column("GPUs without it", "sum by (metric) (gpu_exporter_metric_unsupported{$NODE})", width=140)
    .column("on nodes", "count by (metric) (gpu_exporter_metric_unsupported{$NODE} > 0)"),
    bargauge("Owner lookups by result", decimals=0, width=12)
    .help("Owner lookups of processes in the time shown, by result.")
    .query("sort_desc(sum by (outcome) (increase(gpu_exporter_owner_lookups_total{$NODE}[$__range])))", "{{outcome}}"),
)

dashboard.row("Limits", no_value=SILENT).panels(
    table("Memory above 256 MiB", no_value="no exporter uses more", width=8, sort_by="memory", height=7)
    .help("Exporters whose serving and sampling processes use more than 256 MiB, the twenty largest.")
    .label("instance", width=200)
    .column("memory", """topk(20, sum by ($BY_NODE) (gpu_exporter_resident_memory_bytes{$NODE,role=~"serve|sampler"})
        > 256 * 1024 * 1024)""", unit="bytes"),
    table("Series dropped, connections refused", no_value="none was dropped or refused", width=8, height=7)
    .help("Nodes that dropped series or refused connections in the time shown, the twenty with the most of each.")
    .label("instance", width=160)
    .column("series", or_none(f"topk(20, {grown('gpu_exporter_series_dropped_total')} > 0)", "$LIMITED", "$BY_NODE"),
        decimals=0)
    .column("connections", or_none(f"topk(20, {grown('gpu_exporter_http_connections_refused_total')} > 0)",
            "$LIMITED", "$BY_NODE"), decimals=0),
    table("Data lost", no_value="no data was lost", width=8, height=7)
    .help("""Nodes that lost faults, events or records of the kernel log in the time shown, or with gaps in more than 2 %
        of the time of their power samples, the twenty with the most of each.""")
    .label("instance", width=160)
    .column("lost", or_zero_by("topk(20, $LOST > 0)", "$LOSING", "$BY_NODE"), decimals=0)
    .share("gaps in samples", or_zero_by("topk(20, $GAPS > 0.02)", "$LOSING", "$BY_NODE"), width=130),
)

dashboard.row("Durations", unit="s").panels(
    timeseries("Scrapes", steps=steps(NONE, 1, ORANGE), no_value="no target", minimum=0, width=8, height=9)
    .help("Duration of scrapes, of the six slowest nodes.")
    .query(most("max by ($BY_NODE) (scrape_duration_seconds{$NODE} and on ($BY_NODE) $TARGETS)", "$BY_NODE", count=6), "$LINE"),
    of_exporters("Publishing a snapshot", steps=steps(NONE, 0.5, ORANGE))
    .help("Duration of the newest publication, of the six slowest nodes.")
    .query(most("max by ($BY_NODE) (gpu_exporter_publish_duration_seconds{$NODE})", "$BY_NODE", count=6), "$LINE"),
    heatmap("Driver calls by duration", no_value=SILENT, width=8, height=9)
    .help("Duration of single driver calls. A tail that grows comes before a hang.")
    .query("sum by (le) (increase(gpu_exporter_driver_call_duration_seconds_bucket{$NODE}[$__rate_interval]))",
        "{{le}}"),
    bargauge("Most expensive driver calls", unit="percentunit", no_value=SILENT, decimals=3, width=12)
    .help("Share of time inside each driver call, the ten largest.")
    .query("topk(10, sum by (call) (rate(gpu_exporter_driver_call_seconds_total{$NODE}[$__rate_interval])))",
        "{{call}}"),
    timeseries("Age of readings by tier", steps=steps(NONE, 120, ORANGE), no_value="no GPU is read", minimum=0)
    .help("The oldest reading of each tier. Each has its own interval: a line that climbs is a tier that is not read.")
    .query(f"max by (tier) ({age('$ALL_READ')})", "{{tier}}"),
)

dashboard.row("Cost").panels(
    of_exporters("CPU", unit="percentunit", steps=steps(NONE, 0.5, YELLOW))
    .help("CPUs that the exporter uses, of the six processes of all nodes with the most. The canary has its own dashboard.")
    .query(most("sum by ($BY_NODE, role) (rate(gpu_exporter_cpu_seconds_total{$SERVING}[$__rate_interval]))",
            "$BY_NODE, role", count=6),
        "{{instance}} {{role}}"),
    of_exporters("Resident memory", unit="bytes", steps=NOTHING)
    .help("""Memory of the exporter's processes, of the six of all nodes with the most, without the canary's; pages
        shared between them count in each.""")
    .query(most("sum by ($BY_NODE, role) (gpu_exporter_resident_memory_bytes{$SERVING})",
            "$BY_NODE, role", count=6), "{{instance}} {{role}}"),
    of_exporters("Series", steps=NOTHING)
    .help("Series in the newest snapshot, of the six nodes with the most.")
    .query(most("max by ($BY_NODE) (gpu_exporter_series{$NODE})", "$BY_NODE", count=6), "$LINE"),
    # Not by the time of its start, which moves when the node's clock is set.
    of_exporters("Restarts", steps=steps(NONE, 1, ORANGE), decimals=0, soft_maximum=1)
    .help("Restarts of the exporter and starts of its sampler in the last 15 min, of the three nodes with the most.")
    .query(most("resets(gpu_exporter_publications_total{$NODE}[15m])", "$BY_NODE", count=3), "{{instance}} exporter")
    .query(most("increase(gpu_exporter_sampler_starts_total{$NODE}[15m])", "$BY_NODE", count=3), "{{instance}} sampler"),
    of_exporters("File descriptors", unit="percentunit", steps=steps(NONE, 0.8, ORANGE))
    .help("Share of the file descriptors that the serving process may open, of the six nodes with the most.")
    .query(most("max by ($BY_NODE) (process_open_fds{$NODE} / process_max_fds{$NODE} and on ($BY_NODE) $ANSWERING)",
            "$BY_NODE", count=6), "$LINE"),
    of_exporters("Threads", steps=NOTHING)
    .help("Threads of the serving process, of the six nodes with the most.")
    .query(most("max by ($BY_NODE) (process_threads{$NODE} and on ($BY_NODE) $ANSWERING)", "$BY_NODE",
            count=6), "$LINE"),
)

dashboard.row("Windows").panels(
    table("Open and planned windows", no_value="no window is planned", height=6)
    .help("Windows that are open, planned, or ended within the last hour.")
    .label("instance", width=200)
    .label("window", width=180)
    .label("kind", width=120)
    .label("reason")
    .labels_from("max by ($BY, kind, reason) (gpu_window_info{$NODE})")
    .column("begins", "max by ($BY) (gpu_window_start_timestamp_seconds{$NODE} * 1000)", unit="dateTimeAsIso")
    .column("ends", "max by ($BY) (gpu_window_end_timestamp_seconds{$NODE} * 1000)", unit="dateTimeAsIso"),
)
