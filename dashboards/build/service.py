"""Is a service well served by its GPUs? For those who have Prometheus scrape their services."""

from common import (
    BLUE,
    BY_NODE,
    GPU_FROM_SERIES,
    GREEN,
    NEUTRAL,
    NODE,
    NONE,
    NOT_TOLD,
    ORANGE,
    RED,
    UTILIZATION_BAND,
    Board,
    Column,
    Label,
    Placed,
    Query,
    dashboard_builder,
    heatmap,
    mapped,
    model,
    most,
    node_variables,
    or_none,
    query_variable,
    row_link,
    share,
    shares,
    stat,
    state_timeline,
    steps,
    table,
    timeseries,
)
from owners import BY_OWNER, CAUSE_WORDS, cause_number

# Services have a scrape job, a namespace and, where one job serves several, a label `service` of their own. The
# variable `job` is the exporter's.
SERVICE = 'cluster=~"$cluster",namespace=~"$namespace",job=~"$service_job",service=~"$rpc_service"'
BY_SERVICE = "cluster, namespace, job, service"
NAME = "{{namespace}} {{job}} {{service}}"
# Not every service tells how often it is called: it is known by any of what is recorded from what it does tell.
RECORDED = (
    "service:req:qps|service:rpc_latency:p95|service:rpc_error:ratio|service:rpc_rtt:seconds|service:gpu_fallback:rate5m"
)
OF_RECORDED = f'__name__=~"{RECORDED}",cluster=~"$cluster"'
BUCKETS = f'{{__name__="$latency_buckets",{SERVICE}}}'

NOT_SCRAPED = "not scraped"
NO_HISTOGRAM = "no histogram is scraped"
NO_OWNERS = "nobody here has a GPU"

# Whose work is on the GPUs: pods of the chosen namespaces; with All everybody.
INFO = f'gpu_owner_info{{{NODE},namespace=~"$namespace"}}'
OWNERS = f"max by ({BY_OWNER}) ({INFO})"
PLACES = f"max by ({BY_NODE}, gpu, gpu_instance) ({INFO})"
BY_PLACE = f"{BY_NODE}, gpu, gpu_instance"


def of_owners(expr: str) -> str:
    """The expression, of the owners chosen."""
    return f"({expr}) and on ({BY_OWNER}) {OWNERS}"


def quantile(of: float) -> str:
    return f"histogram_quantile({of}, sum by ({BY_SERVICE}, le) (rate({BUCKETS}[$__rate_interval])))"


def now() -> list[Placed]:
    return [
        stat(
            "Requests",
            "Requests a second of all services chosen.",
            Query(f"sum(service:req:qps{{{SERVICE}}})", "requests"),
            unit="reqps",
            thresholds=NEUTRAL,
            no_value=NOT_SCRAPED,
        ),
        stat(
            "Errors",
            "Share of calls that failed, of the worst service. Above 5 % for five minutes it is a ticket.",
            Query(f"max(service:rpc_error:ratio{{{SERVICE}}})", "errors"),
            unit="percentunit",
            decimals=2,
            thresholds=steps((None, GREEN), (0.01, BLUE), (0.05, ORANGE)),
            no_value=NOT_SCRAPED,
        ),
        stat(
            "P95 latency",
            "Of the slowest service.",
            Query(f"max(service:rpc_latency:p95{{{SERVICE}}})", "p95"),
            unit="s",
            thresholds=NEUTRAL,
            no_value=NOT_SCRAPED,
        ),
        stat(
            "P95 against the day before",
            "Of the service that slowed down most: its 95th percentile over its own median of the day before. Above "
            "1.3 for ten minutes it is a ticket.",
            Query(
                f"max(service:rpc_latency:p95{{{SERVICE}}} / (service:rpc_latency:p95_median1d{{{SERVICE}}} > 0))",
                "times",
            ),
            unit="short",
            decimals=2,
            thresholds=steps((None, GREEN), (1.3, ORANGE)),
            no_value="no day before",
        ),
        stat(
            "P99 latency",
            "Of the slowest service, of the histogram named by the variable.",
            Query(f"max({quantile(0.99)})", "p99"),
            unit="s",
            thresholds=NEUTRAL,
            no_value="no histogram",
        ),
        stat(
            "Services on their fallback",
            "Services that should run without the GPU now: round trip over 2 ms three times, or more than 5 % errors; "
            "until 30 s under 1 ms and 1 %.",
            Query(f"sum(service:gpu_fallback:active{{{SERVICE}}})", "services"),
            unit="short",
            thresholds=steps((None, GREEN), (1, RED)),
            no_value=NOT_SCRAPED,
        ),
    ]


def requests() -> list[Placed]:
    return [
        timeseries(
            "Requests by service",
            "Requests a second.",
            Query(f"service:req:qps{{{SERVICE}}}", NAME),
            unit="reqps",
            minimum=0,
            thresholds=NEUTRAL,
            no_value=NOT_SCRAPED,
        ),
        timeseries(
            "Errors by service",
            "Share of calls that failed. The line is at 5 %.",
            Query(f"service:rpc_error:ratio{{{SERVICE}}}", NAME),
            unit="percentunit",
            minimum=0,
            thresholds=steps((None, NONE), (0.05, ORANGE)),
            draw_thresholds="line",
            no_value=NOT_SCRAPED,
        ),
        timeseries(
            "P95 and P99 latency",
            "95th percentile, its own median of the day before (dashed), and, where a histogram is scraped, the 99th.",
            [
                Query(f"service:rpc_latency:p95{{{SERVICE}}}", NAME + " p95"),
                Query(f"service:rpc_latency:p95_median1d{{{SERVICE}}}", NAME + " p95 of the day before"),
                Query(quantile(0.99), NAME + " p99"),
            ],
            unit="s",
            minimum=0,
            thresholds=NEUTRAL,
            dashed=[".* of the day before$"],
            no_value=NOT_SCRAPED,
        ),
        heatmap(
            "Latency of calls",
            "How many calls a second took how long, of the histogram named by the variable.",
            Query(f"sum by (le) (rate({BUCKETS}[$__rate_interval]))", "{{le}}"),
            unit="s",
            cell_unit="reqps",
            no_value=NO_HISTOGRAM,
        ),
        timeseries(
            "Fallbacks",
            "Requests a second that were answered without the GPU.",
            Query(f"service:gpu_fallback:rate5m{{{SERVICE}}}", NAME),
            unit="reqps",
            minimum=0,
            thresholds=NEUTRAL,
            no_value=NOT_SCRAPED,
            width=8,
        ),
        shares(
            "Share of requests answered by CPUs",
            "Fallbacks over requests: how much of the work the GPUs do not do.",
            Query(
                f"service:gpu_fallback:rate5m{{{SERVICE}}} / on ({BY_SERVICE}) (service:req:qps{{{SERVICE}}} > 0)", NAME
            ),
            thresholds=steps((None, NONE), (0.05, ORANGE)),
            draw_thresholds="dashed",
            no_value=NOT_SCRAPED,
            width=8,
        ),
        state_timeline(
            "On the fallback",
            "When each service should run without the GPU.",
            Query(f"service:gpu_fallback:active{{{SERVICE}}}", NAME),
            thresholds=steps((None, GREEN), (1, RED)),
            mappings=[mapped({0: ("GPU", GREEN), 1: ("fallback", RED)})],
            no_value=NOT_SCRAPED,
            width=8,
        ),
    ]


def gpus() -> list[Placed]:
    busy = f"rate(gpu_owner_busy_seconds_total{{{NODE}}}[$__rate_interval])"
    had = f"rate(gpu_owner_allocated_seconds_total{{{NODE}}}[$__rate_interval])"
    memory = f"""(
        max by ({BY_NODE}, gpu) (gpu_memory_used_bytes{{{NODE}}} / gpu_memory_total_bytes{{{NODE}}})
            unless on ({BY_NODE}, gpu) gpu_mig_mode_enabled{{{NODE}}} == 1
        or max by ({BY_PLACE}) (gpu_mig_memory_used_bytes{{{NODE}}} / gpu_mig_memory_total_bytes{{{NODE}}}))"""
    slices = f"""(
        max by ({BY_NODE}, gpu) (rate(gpu_busy_seconds_total{{{NODE}}}[$__rate_interval]))
            unless on ({BY_NODE}, gpu) gpu_mig_mode_enabled{{{NODE}}} == 1
        or max by ({BY_PLACE}) (gpu_mig_gpm_active_ratio{{{NODE},unit="graphics"}}))"""

    def here(expr: str) -> str:
        """Where the chosen namespaces have work."""
        return f"{expr} and on ({BY_PLACE}) {PLACES}"

    def cpu_seconds(modes: str) -> str:
        """Of each node's CPUs, each second."""
        of_modes = f'gpu_host_cpu_seconds_total{{{NODE},mode=~"{modes}"}}'
        return f"sum by ({BY_NODE}) (rate({of_modes}[$__rate_interval]))"

    place = "{{instance}} GPU {{gpu}} {{gpu_instance}}"
    return [
        shares(
            "Utilization of each slice",
            "Share of the time in which each GPU, or each instance of a GPU in MIG mode, worked: the ten busiest and "
            "the average (dashed) of those on which the chosen namespaces have work. Between 60 and 80 % (green) a GPU "
            "is well used; neither side of it is a fault.",
            [
                Query(most(here(slices), BY_PLACE), place),
                Query(f"avg({here(slices)})", "all, on average"),
            ],
            dashed=["^all, on average$"],
            thresholds=UTILIZATION_BAND,
            draw_thresholds="area",
            no_value=NO_OWNERS,
        ),
        shares(
            "Memory of each slice",
            "Share of the memory that is used, of the ten fullest of all those places. The line is at 85 %.",
            Query(most(here(memory), BY_PLACE), place),
            thresholds=steps((None, NONE), (0.85, ORANGE)),
            draw_thresholds="line",
            links=[GPU_FROM_SERIES],
            no_value=NO_OWNERS,
        ),
        shares(
            "CPU busy on their nodes",
            "Share of the CPUs' time spent on work, of the nodes on which the chosen namespaces have GPUs: the ten "
            "busiest.",
            Query(
                most(
                    f"{cpu_seconds('busy|steal')} / {cpu_seconds('.+')} and on ({BY_NODE}) {PLACES}",
                    BY_NODE,
                ),
                "{{instance}}",
            ),
            thresholds=steps((None, NONE), (0.9, ORANGE)),
            draw_thresholds="dashed",
            no_value="not told: cpu.enabled is off, or nobody here has a GPU",
        ),
        timeseries(
            "CPUs' work for each GPU's work",
            "CPUs busy on the node for each of its GPUs that is busy, of the ten nodes with the most. When it rises, "
            "more is done beside the GPU: fallbacks, preparation, a neighbour.",
            Query(
                most(
                    f"{cpu_seconds('busy')} / (sum by ({BY_NODE}) ({busy}) > 0.01) and on ({BY_NODE}) {PLACES}",
                    BY_NODE,
                ),
                "{{instance}}",
            ),
            unit="short",
            minimum=0,
            thresholds=NEUTRAL,
            no_value="not told: cpu.enabled is off, or no GPU is busy",
        ),
        table(
            "Owners on the GPUs",
            "The pods and others of the chosen namespaces, with what they have of each GPU. All shows everybody's.",
            [
                Label("instance", links=[row_link("The host", "gpu-node-host", "instance")], width=170),
                Label("gpu", links=[row_link("Debug this GPU", "gpu-node-gpu", "instance", "gpu")], width=60),
                Label("gpu_instance", links=[row_link("Its slices", "gpu-node-mig", "instance", "gpu")], width=110),
                Label(
                    "owner",
                    width=420,
                    links=[row_link("Everybody on this GPU", "gpu-node-drilldown", "instance", "gpu")],
                ),
            ],
            [
                share("Had", or_none(of_owners(f"clamp_max(sum by ({BY_OWNER}) ({had}), 1)"), OWNERS, BY_OWNER)),
                share("Busy", or_none(of_owners(f"clamp_max(sum by ({BY_OWNER}) ({busy}), 1)"), OWNERS, BY_OWNER)),
                Column(
                    "Memory",
                    or_none(
                        of_owners(f"sum by ({BY_OWNER}) (gpu_owner_memory_used_bytes{{{NODE}}})"), OWNERS, BY_OWNER
                    ),
                    unit="bytes",
                ),
                Column(
                    "Held back by",
                    or_none(of_owners(cause_number(NODE)), OWNERS, BY_OWNER),
                    mappings=[CAUSE_WORDS, NOT_TOLD],
                    paint=True,
                ),
            ],
            sort_by="Busy",
            no_value=NO_OWNERS,
            height=9,
        ),
    ]


def board() -> Board:
    text_box = dashboard_builder.TextBoxVariable("latency_buckets").label("Latency histogram")
    text_box.description("Name of the buckets of the services' latency histogram.")
    text_box.default_value("rpc_latency_p95_bucket")
    text_box.current(model.VariableOption(selected=True, text="rpc_latency_p95_bucket", value="rpc_latency_p95_bucket"))
    variables = node_variables()
    board = Board(
        "gpu-node-service",
        "GPU nodes: services",
        "Is a service well served by its GPUs?",
        variables=[
            *variables[:3],
            query_variable(
                "namespace",
                "Namespace",
                f'label_values({{__name__=~"gpu_owner_info|{RECORDED}",cluster=~"$cluster"}}, namespace)',
                description="Namespace of the services and of the pods that have GPUs. All takes those without one.",
                all_value=".*",
            ),
            query_variable(
                "service_job",
                "Service's job",
                f'label_values({{{OF_RECORDED},namespace=~"$namespace"}}, job)',
                description="Scrape job of the services; not that of the exporter.",
                all_value=".*",
            ),
            query_variable(
                "rpc_service",
                "Service",
                f'label_values({{{OF_RECORDED},namespace=~"$namespace",job=~"$service_job"}}, service)',
                description="Label service of the services, where one job serves several; of Triton the model.",
                all_value=".*",
            ),
            variables[3],
            text_box,
        ],
    )
    board.row("Now. Needs alerts/optional/service.rules.yml and services that are scraped.", now())
    board.row("Calls over time", requests())
    board.row("The GPUs below", gpus())
    return board
