"""Can I trust what the other boards show? The exporter's own rate, errors and durations."""

import typing

from common import (
    ANSWERING,
    BAD_ABOVE_ZERO,
    BLUE,
    BY_NODE,
    GREEN,
    NEUTRAL,
    NODE,
    NONE,
    NOT_TOLD,
    NOTHING,
    ORANGE,
    RED,
    TARGETS,
    TICKET_ABOVE_ZERO,
    YELLOW,
    Board,
    Column,
    Label,
    Placed,
    Query,
    age,
    bargauge,
    heatmap,
    mapped,
    most,
    node_variables,
    or_none,
    or_zero,
    row_link,
    stat,
    steps,
    table,
    timeseries,
)

LINE = "{{instance}}"
SILENT = "not scraped"
# The targets that there are, whether they answer or not.
NODES = f"max by ({BY_NODE}) ({TARGETS})"
ODD = steps((None, GREEN), (1, YELLOW))
# When each GPU was last read: of what is read every second, and of all that is read again and again.
READ = f'gpu_exporter_sample_timestamp_seconds{{{NODE},tier="normal"}}'
ALL_READ = f'gpu_exporter_sample_timestamp_seconds{{{NODE},tier!~"identity|once"}}'


def here(expr: str) -> str:
    """A column of the table of nodes."""
    return or_none(f"max by ({BY_NODE}) ({expr})", NODES, BY_NODE)


def count(condition: str, collected: str = ANSWERING) -> Query:
    return Query(or_zero(f"count(max by ({BY_NODE}) ({condition}))", collected), "nodes")


def lost(*counters: str) -> Query:
    """How often something was lost in the time shown, of all nodes."""
    sums = " + ".join(f"sum(increase({counter}{{{NODE}}}[$__range]))" for counter in counters)
    return Query(sums, "lost")


def of_exporters(title: str, description: str, queries: Query | list[Query], **how: typing.Any) -> Placed:
    """A graph of what exporters tell of themselves; three stand side by side."""
    return timeseries(title, description, queries, no_value=SILENT, minimum=0, width=8, **how)


def now() -> list[Placed]:
    return [
        stat(
            "Silent exporters",
            "Targets of the exporter's job that Prometheus cannot scrape. Nothing is known of their GPUs.",
            Query(or_zero(f"count({TARGETS} == 0)", TARGETS), "nodes"),
            unit="short",
            thresholds=BAD_ABOVE_ZERO,
            no_value="no target",
            width=3,
        ),
        stat(
            "Answering",
            "Exporters whose series Prometheus has now.",
            Query(f"count({ANSWERING})", "nodes"),
            unit="short",
            thresholds=NEUTRAL,
            no_value="none",
            width=3,
        ),
        stat(
            "Collectors down",
            "Nodes with a part of the exporter that fails or is late: what it gathers is old or missing.",
            count(f"gpu_exporter_collector_up{{{NODE}}} == 0"),
            unit="short",
            thresholds=TICKET_ABOVE_ZERO,
            no_value=SILENT,
            width=3,
        ),
        stat(
            "Old readings",
            "Nodes with a GPU whose values of every second are over a minute old, by the node's own clock.",
            count(f"{age(READ)} > 60"),
            unit="short",
            thresholds=TICKET_ABOVE_ZERO,
            no_value=SILENT,
            width=3,
        ),
        stat(
            "Driver not answering",
            "Nodes whose driver is away, or stuck as a whole.",
            count(f"gpu_driver_stuck{{{NODE}}} == 1 or gpu_driver_up{{{NODE}}} == 0"),
            unit="short",
            thresholds=BAD_ABOVE_ZERO,
            no_value=SILENT,
            width=3,
        ),
        stat(
            "Driver released",
            "Nodes where the driver was released on request: nothing is measured there until it is taken back.",
            count(f"gpu_driver_paused{{{NODE}}} == 1"),
            unit="short",
            thresholds=ODD,
            no_value=SILENT,
            width=3,
        ),
        stat(
            "In a window",
            "Nodes in a planned maintenance window, which mutes their alerts.",
            count(f'gpu_window_active{{{NODE},kind="maintenance"}} == 1'),
            unit="short",
            thresholds=steps((None, BLUE), (1, YELLOW)),
            no_value=SILENT,
            width=3,
        ),
        stat(
            "Versions",
            "Different versions of the exporter. Older ones lack newer metrics.",
            Query(f"count(count by (version, revision) ({ANSWERING}))", "versions"),
            unit="short",
            thresholds=steps((None, GREEN), (2, YELLOW)),
            no_value=SILENT,
            width=3,
        ),
    ]


def nodes() -> list[Placed]:
    up = mapped({1: ("yes", GREEN), 0: ("no", RED)})
    stuck = mapped({0: ("no", GREEN), 1: ("yes", RED)})
    return [
        table(
            "Nodes",
            "Every target, the silent ones first, with what tells whether its values can be trusted. Not told: the "
            "exporter does not answer, or has no such value (without a GPU there are no readings; a released driver is "
            "neither up nor down).",
            [Label("instance", links=[row_link("Its GPUs", "gpu-node-drilldown", "instance")], width=200)],
            [
                Column(
                    "scraped",
                    NODES,
                    mappings=[up],
                    thresholds=steps((None, RED), (1, GREEN)),
                    paint=True,
                    width=80,
                ),
                Column(
                    "driver up",
                    here(f"gpu_driver_up{{{NODE}}}"),
                    mappings=[up, NOT_TOLD],
                    thresholds=steps((None, RED), (1, GREEN)),
                    paint=True,
                    width=90,
                ),
                Column(
                    "stuck",
                    here(f"gpu_driver_stuck{{{NODE}}}"),
                    mappings=[stuck, NOT_TOLD],
                    thresholds=BAD_ABOVE_ZERO,
                    paint=True,
                    width=80,
                ),
                Column("GPUs", here(f"gpu_devices{{{NODE}}}"), width=70),
                Column("expected", here(f"gpu_devices_expected{{{NODE}}}"), width=90),
                Column(
                    "collectors down",
                    here(
                        f"""count by ({BY_NODE}) (gpu_exporter_collector_up{{{NODE}}} == 0)
                            or on ({BY_NODE}) {ANSWERING} * 0"""
                    ),
                    thresholds=TICKET_ABOVE_ZERO,
                    paint=True,
                    width=130,
                ),
                Column(
                    "oldest reading",
                    here(age(READ)),
                    unit="s",
                    decimals=0,
                    thresholds=steps((None, NONE), (60, ORANGE)),
                    paint=True,
                    width=120,
                ),
                Column(
                    "publishing",
                    here(f"gpu_exporter_publish_duration_seconds{{{NODE}}}"),
                    unit="s",
                    thresholds=steps((None, NONE), (0.5, YELLOW)),
                    paint=True,
                    width=100,
                ),
                Column(
                    "scrape",
                    here(f"scrape_duration_seconds{{{NODE}}} and on ({BY_NODE}) {TARGETS}"),
                    unit="s",
                    thresholds=NEUTRAL,
                    width=90,
                ),
                Column("series", here(f"gpu_exporter_series{{{NODE}}}"), width=80),
                Column(
                    "memory",
                    here(f"sum by ({BY_NODE}) (gpu_exporter_resident_memory_bytes{{{NODE}}})"),
                    unit="bytes",
                    width=100,
                ),
                Column(
                    "running for",
                    here(f"time() - process_start_time_seconds{{{NODE}}} and on ({BY_NODE}) {ANSWERING}"),
                    unit="dtdurations",
                ),
            ],
            no_value="no target",
            height=10,
            sort_by="scraped",
            descending=False,
        ),
        table(
            "Versions of exporter and driver",
            "Which build and which driver each node runs.",
            [
                Label("instance", width=200),
                *(Label(name) for name in ("version", "revision", "driver_version", "cuda_version")),
            ],
            [
                Column("build", f"max by ({BY_NODE}, version, revision) ({ANSWERING})", hidden=True),
                Column(
                    "driver",
                    f"max by ({BY_NODE}, driver_version, cuda_version) (gpu_driver_info{{{NODE}}})",
                    hidden=True,
                ),
            ],
            no_value=SILENT,
            width=12,
        ),
        table(
            "Collectors",
            "Every part of the exporter, those that are down first, and when it last delivered.",
            [Label("instance", width=200), Label("collector", width=120)],
            [
                Column(
                    "last success",
                    f"""max by ({BY_NODE}, collector) (
                        gpu_exporter_collector_last_success_timestamp_seconds{{{NODE}}} * 1000)""",
                    unit="dateTimeFromNow",
                ),
                Column(
                    "up",
                    f"max by ({BY_NODE}, collector) (gpu_exporter_collector_up{{{NODE}}})",
                    mappings=[up],
                    thresholds=steps((None, RED), (1, GREEN)),
                    paint=True,
                    width=80,
                ),
            ],
            no_value=SILENT,
            width=12,
            sort_by="up",
            descending=False,
        ),
    ]


def rate() -> list[Placed]:
    return [
        of_exporters(
            "HTTP answers",
            "Answers a second by status. Each scrape is one.",
            Query(f"sum by (code) (rate(gpu_exporter_http_requests_total{{{NODE}}}[$__rate_interval]))", "{{code}}"),
            unit="reqps",
            thresholds=NOTHING,
        ),
        of_exporters(
            "Snapshots published",
            "Snapshots a second and node, of the ten nodes with the fewest. One is usual; fewer: the exporter is short "
            "of CPU.",
            Query(
                most(f"rate(gpu_exporter_publications_total{{{NODE}}}[$__rate_interval])", BY_NODE, lowest=True), LINE
            ),
            unit="cps",
            thresholds=steps((None, NONE), (0.5, GREEN)),
        ),
        of_exporters(
            "Driver calls",
            "Calls to the driver a second, by how often their values are read.",
            Query(f"sum by (tier) (rate(gpu_exporter_driver_calls_total{{{NODE}}}[$__rate_interval]))", "{{tier}}"),
            unit="cps",
            thresholds=NOTHING,
            stacked=True,
        ),
    ]


def errors() -> list[Placed]:
    return [
        timeseries(
            "Failed driver calls",
            "Calls that failed, a second, by how. That a device does not support something is no failure.",
            Query(
                f"sum by (error) (rate(gpu_exporter_driver_error_kinds_total{{{NODE}}}[$__rate_interval]))",
                "{{error}}",
            ),
            unit="cps",
            thresholds=steps((None, NONE), (0.1, ORANGE)),
            no_value=SILENT,
            minimum=0,
        ),
        timeseries(
            "Samplers given up",
            "Sampler processes given up an hour, by reason. A stuck one hung in the driver.",
            Query(
                f"sum by (reason) (rate(gpu_exporter_sampler_ends_total{{{NODE}}}[$__rate_interval])) * 3600",
                "{{reason}}",
            ),
            unit="short",
            thresholds=steps((None, NONE), (1, ORANGE)),
            no_value=SILENT,
            minimum=0,
        ),
        stat(
            "Calls hanging now",
            "Driver calls that have not returned, of all GPUs and of the driver as a whole.",
            Query(
                or_zero(
                    f"""count(gpu_exporter_driver_call_stuck_seconds{{{NODE}}}
                        or gpu_exporter_node_call_stuck_seconds{{{NODE}}})""",
                    ANSWERING,
                ),
                "calls",
            ),
            unit="short",
            thresholds=BAD_ABOVE_ZERO,
            no_value=SILENT,
        ),
        stat(
            "Events lost",
            "Faults and events that found no room, and times the kernel log overran its reader, in the time shown.",
            lost("gpu_exporter_events_lost_total", "gpu_exporter_facts_lost_total", "gpu_exporter_kmsg_overruns_total"),
            unit="short",
            thresholds=ODD,
            no_value=SILENT,
            decimals=0,
        ),
        stat(
            "Series left out",
            "Series left out of snapshots because there were more than the exporter may have, in the time shown.",
            lost("gpu_exporter_series_dropped_total"),
            unit="short",
            thresholds=ODD,
            no_value=SILENT,
            decimals=0,
        ),
        stat(
            "Readings refused",
            "Values of the driver that cannot be true, and counters that went backwards, in the time shown.",
            lost("gpu_exporter_readings_dropped_total", "gpu_exporter_counter_regressions_total"),
            unit="short",
            thresholds=ODD,
            no_value="no GPU is read",
            decimals=0,
        ),
        stat(
            "Unknown time in samples",
            "Share of time of which the driver's own sample buffers tell nothing, the worst GPU.",
            Query(
                f"max(rate(gpu_exporter_sample_gap_seconds_total{{{NODE}}}[$__rate_interval]))",
                "share",
            ),
            unit="percentunit",
            thresholds=steps((None, GREEN), (0.01, YELLOW), (0.1, ORANGE)),
            no_value="no GPU is sampled",
            decimals=2,
        ),
        stat(
            "Connections refused",
            "HTTP connections turned away because too many were open, in the time shown.",
            lost("gpu_exporter_http_connections_refused_total"),
            unit="short",
            thresholds=ODD,
            no_value=SILENT,
            decimals=0,
        ),
        table(
            "What GPUs do not support",
            "Metrics that have no series on some GPUs: neither zero nor a failure.",
            [Label("metric", width=320)],
            [
                Column(
                    "GPUs without it",
                    f"sum by (metric) (gpu_exporter_metric_unsupported{{{NODE}}})",
                    width=140,
                ),
                Column("on nodes", f"count by (metric) (gpu_exporter_metric_unsupported{{{NODE}}} > 0)"),
            ],
            no_value="all is supported",
            width=12,
            sort_by="GPUs without it",
        ),
        bargauge(
            "Whose processes were found",
            "Processes of which it was asked whom they work for, by what became of it, in the time shown.",
            Query(f"sum by (outcome) (increase(gpu_exporter_owner_lookups_total{{{NODE}}}[$__range]))", "{{outcome}}"),
            unit="short",
            thresholds=NEUTRAL,
            no_value=SILENT,
            decimals=0,
            width=12,
        ),
    ]


def durations() -> list[Placed]:
    return [
        timeseries(
            "Scrapes",
            "How long Prometheus waits for the exporter's answer: the ten slowest.",
            Query(
                most(f"max by ({BY_NODE}) (scrape_duration_seconds{{{NODE}}} and on ({BY_NODE}) {TARGETS})", BY_NODE),
                LINE,
            ),
            unit="s",
            thresholds=steps((None, NONE), (1, ORANGE)),
            no_value="no target",
            minimum=0,
            width=8,
        ),
        of_exporters(
            "Making a snapshot",
            "How long the newest snapshot took, of the ten nodes where it took longest.",
            Query(most(f"max by ({BY_NODE}) (gpu_exporter_publish_duration_seconds{{{NODE}}})", BY_NODE), LINE),
            unit="s",
            thresholds=steps((None, NONE), (0.5, ORANGE)),
        ),
        heatmap(
            "Driver calls by duration",
            "How long single driver calls take. A tail that grows comes before a hang.",
            Query(
                f"sum by (le) (increase(gpu_exporter_driver_call_duration_seconds_bucket{{{NODE}}}[$__rate_interval]))",
                "{{le}}",
            ),
            unit="s",
            no_value=SILENT,
            width=8,
        ),
        bargauge(
            "Dearest driver calls",
            "Share of time spent inside each driver call, the ten most.",
            Query(
                f"topk(10, sum by (call) (rate(gpu_exporter_driver_call_seconds_total{{{NODE}}}[$__rate_interval])))",
                "{{call}}",
            ),
            unit="percentunit",
            thresholds=NEUTRAL,
            no_value=SILENT,
            decimals=3,
            width=12,
        ),
        timeseries(
            "Age of readings by tier",
            "The oldest reading of each tier. Each has its own pace: a line that climbs is a tier that stands still.",
            Query(f"max by (tier) ({age(ALL_READ)})", "{{tier}}"),
            unit="s",
            thresholds=steps((None, NONE), (120, ORANGE)),
            no_value="no GPU is read",
            minimum=0,
        ),
    ]


def cost() -> list[Placed]:
    return [
        of_exporters(
            "CPU",
            "CPUs that the exporter uses, by process, of the ten nodes with the most.",
            Query(
                most(
                    f"sum by ({BY_NODE}, role) (rate(gpu_exporter_cpu_seconds_total{{{NODE}}}[$__rate_interval]))",
                    BY_NODE,
                ),
                "{{instance}} {{role}}",
            ),
            unit="percentunit",
            thresholds=steps((None, NONE), (0.5, YELLOW)),
        ),
        of_exporters(
            "Resident memory",
            "Memory of the exporter's processes, of the ten nodes with the most; pages shared between them count in "
            "each.",
            Query(
                most(f"sum by ({BY_NODE}, role) (gpu_exporter_resident_memory_bytes{{{NODE}}})", BY_NODE),
                "{{instance}} {{role}}",
            ),
            unit="bytes",
            thresholds=NOTHING,
        ),
        of_exporters(
            "Series",
            "Series in the newest snapshot, of the ten nodes with the most.",
            Query(most(f"max by ({BY_NODE}) (gpu_exporter_series{{{NODE}}})", BY_NODE), LINE),
            unit="short",
            thresholds=NOTHING,
        ),
        of_exporters(
            "Restarts",
            "Restarts of the exporter and starts of its sampler in the last 15 min, of the ten nodes with the most.",
            [
                # Not by the time of its start, which moves when the node's clock is set.
                Query(
                    most(f"resets(gpu_exporter_publications_total{{{NODE}}}[15m])", BY_NODE),
                    "{{instance}} exporter",
                ),
                Query(
                    most(f"increase(gpu_exporter_sampler_starts_total{{{NODE}}}[15m])", BY_NODE), "{{instance}} sampler"
                ),
            ],
            unit="short",
            thresholds=steps((None, NONE), (1, ORANGE)),
            decimals=0,
        ),
        of_exporters(
            "File descriptors",
            "Share of the file descriptors that the serving process may open, of the ten nodes with the most.",
            Query(
                most(
                    f"""max by ({BY_NODE}) (process_open_fds{{{NODE}}} / process_max_fds{{{NODE}}}
                        and on ({BY_NODE}) {ANSWERING})""",
                    BY_NODE,
                ),
                LINE,
            ),
            unit="percentunit",
            thresholds=steps((None, NONE), (0.8, ORANGE)),
        ),
        of_exporters(
            "Threads",
            "Threads of the serving process, of the ten nodes with the most.",
            Query(
                most(f"max by ({BY_NODE}) (process_threads{{{NODE}}} and on ({BY_NODE}) {ANSWERING})", BY_NODE), LINE
            ),
            unit="short",
            thresholds=NOTHING,
        ),
    ]


def windows() -> list[Placed]:
    by = f"{BY_NODE}, window"
    return [
        table(
            "Windows of planned work",
            "Windows that are open, to come, or ended within the last hour, and what they mute.",
            [
                Label("instance", width=200),
                Label("window", width=180),
                Label("kind", width=120),
                Label("reason"),
            ],
            [
                Column("told", f"max by ({by}, kind, reason) (gpu_window_info{{{NODE}}})", hidden=True),
                Column(
                    "begins",
                    f"max by ({by}) (gpu_window_start_timestamp_seconds{{{NODE}}} * 1000)",
                    unit="dateTimeAsIso",
                ),
                Column(
                    "ends",
                    f"max by ({by}) (gpu_window_end_timestamp_seconds{{{NODE}}} * 1000)",
                    unit="dateTimeAsIso",
                ),
            ],
            no_value="no window is planned",
            height=6,
        ),
    ]


def board() -> Board:
    board = Board(
        "gpu-node-exporter",
        "GPU nodes: the exporter",
        "Can I trust what the other boards show?",
        variables=node_variables(),
        start="now-3h",
    )
    board.row("Now", now())
    board.row("By node", nodes())
    board.row("Rate", rate())
    board.row("Errors", errors())
    board.row("Durations", durations())
    board.row("Cost", cost())
    board.row("Planned work", windows())
    return board
