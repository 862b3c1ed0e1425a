"""Do GPUs limit a service? For services that Prometheus scrapes."""

from kit import *
from owners import CAUSE_TEXTS, OWNER_TERMS, cause_number, explore_tables

NOT_SCRAPED = "not scraped"
NO_SERVICE = "no service is scraped, or alerts/optional/service.rules.yml is not loaded"
NO_HISTOGRAM = "no histogram is scraped"
NO_OWNERS = "no owner of this choice has a GPU"


def of_owners(expr: str) -> str:
    """The expression, of the owners chosen."""
    return f"({expr}) and on ($BY_OWNER) $OWNERS"


def quantile(of: float) -> str:
    return f"histogram_quantile({of}, sum by ($BY_SERVICE, le) (rate($BUCKETS[$__rate_interval])))"


def here(expr: str) -> str:
    """On the GPUs and instances where the chosen namespaces have work."""
    return f"{expr} and on ($BY_PLACE) $PLACES"


def cpu_seconds(modes: str) -> str:
    """Of each node's CPUs, each second."""
    return f'sum by ($BY_NODE) (rate(gpu_host_cpu_seconds_total{{$NODE,mode=~"{modes}"}}[$__rate_interval]))'


dashboard = Dashboard(
    "gpu-node-service",
    "GPU / Service",
    "Do GPUs limit this service?",
    variables=[
        *node_variables()[:3],
        query_variable(
            "namespace",
            "Namespace",
            'label_values({__name__=~"gpu_owner_info|$RECORDED",cluster=~"$cluster"}, namespace)',
            description="Namespace of the services and of the pods that have GPUs. All takes those without one.",
            all_value=".*",
        ),
        query_variable(
            "service_job",
            "Service's job",
            'label_values({$OF_RECORDED,namespace=~"$namespace"}, job)',
            description="Scrape job of the services; not that of the exporter.",
            all_value=".*",
        ),
        query_variable(
            "rpc_service",
            "Service",
            'label_values({$OF_RECORDED,namespace=~"$namespace",job=~"$service_job"}, service)',
            description="Label service of the services, where one job serves several; of Triton the model.",
            all_value=".*",
        ),
        node_variables()[3],
        text_variable(
            "latency_buckets",
            "Latency histogram",
            "rpc_latency_p95_bucket",
            description="Name of the buckets of the services' latency histogram.",
        ),
        *explore_variables(),
    ],
    terms=OWNER_TERMS
    | {
        # Services have a scrape job, a namespace and, where one job serves several, a label `service` of their own. The
        # variable `job` is the exporter's.
        "SERVICE": 'cluster=~"$cluster",namespace=~"$namespace",job=~"$service_job",service=~"$rpc_service"',
        "BY_SERVICE": "cluster, namespace, job, service",
        "NAME": "{{namespace}} {{job}} {{service}}",
        # Not every service counts its calls: any recorded series makes a service known.
        "RECORDED": "service:req:qps|service:rpc_latency:p95|service:rpc_error:ratio|service:rpc_rtt:seconds"
        "|service:gpu_fallback:rate5m",
        "OF_RECORDED": '__name__=~"$RECORDED",cluster=~"$cluster"',
        "BUCKETS": '{__name__="$latency_buckets",$SERVICE}',
        # Owners on the GPUs: pods of the chosen namespaces; with All every owner.
        "INFO": 'gpu_owner_info{$NODE,namespace=~"$namespace"}',
        "OWNERS": "max by ($BY_OWNER) ($INFO)",
        "PLACES": "max by ($BY_NODE, gpu, gpu_instance) ($INFO)",
        "BY_PLACE": "$BY_NODE, gpu, gpu_instance",
        "BUSY": "rate(gpu_owner_busy_seconds_total{$NODE}[$__rate_interval])",
        "HAD": "rate(gpu_owner_allocated_seconds_total{$NODE}[$__rate_interval])",
        "MEMORY": """(max by ($BY_NODE, gpu) (gpu_memory_used_bytes{$NODE} / gpu_memory_total_bytes{$NODE})
            unless on ($BY_NODE, gpu) gpu_mig_mode_enabled{$NODE} == 1
            or max by ($BY_PLACE) (gpu_mig_memory_used_bytes{$NODE} / gpu_mig_memory_total_bytes{$NODE}))""",
        "SLICES": f"""(max by ($BY_NODE, gpu) (rate(gpu_busy_seconds_total{{$NODE}}[$__rate_interval]))
            unless on ($BY_NODE, gpu) gpu_mig_mode_enabled{{$NODE}} == 1
            or {activity("$BY_PLACE", '$NODE,unit="graphics"', of_instances=True)})""",
        "PLACE": "{{instance}} GPU {{gpu}} {{gpu_instance}}",
    },
)

dashboard.row("Now", no_value=NOT_SCRAPED).panels(
    stat("Services on fallback", steps=steps(GREEN, 1, RED))
    .help("""Services that should run without the GPU now: round trip over 2 ms three times, or more than 5 % errors;
        until 30 s under 1 ms and 1 %. Not scraped, here and beside: no service is scraped, or
        alerts/optional/service.rules.yml is not loaded.""")
    .query("sum(service:gpu_fallback:active{$SERVICE})", "services"),
    stat("Errors", unit="percentunit", decimals=2, steps=steps(GREEN, 0.01, BLUE, 0.05, ORANGE))
    .help("Share of calls that failed, of the worst service. Above 5 % for five minutes is a ticket.")
    .query("max(service:rpc_error:ratio{$SERVICE})", "errors"),
    stat("P95 over the day before", decimals=2, steps=steps(GREEN, 1.3, ORANGE), no_value="no day before")
    .help("""Of the service that slowed down most: its 95th percentile over its own median of the day before. Above
        1.3 for ten minutes is a ticket.""")
    .query("max(service:rpc_latency:p95{$SERVICE} / (service:rpc_latency:p95_median1d{$SERVICE} > 0))", "times"),
    stat("P95 latency", unit="s")
    .help("Of the slowest service.")
    .query("max(service:rpc_latency:p95{$SERVICE})", "p95"),
    stat("P99 latency", unit="s", no_value="no histogram")
    .help("Of the slowest service, of the histogram that the variable names.")
    .query(f"max({quantile(0.99)})", "p99"),
    stat("Requests", unit="reqps")
    .help("Requests a second of all services chosen.")
    .query("sum(service:req:qps{$SERVICE})", "requests"),
)

dashboard.row("Calls over time", no_value=NO_SERVICE).panels(
    timeseries("Requests by service", unit="reqps", minimum=0)
    .help("Requests a second.")
    .query("service:req:qps{$SERVICE}", "$NAME"),
    timeseries("Errors by service", unit="percentunit", minimum=0, steps=steps(NONE, 0.05, ORANGE), draw_steps="line")
    .help("Share of calls that failed. The line is at 5 %.")
    .query("service:rpc_error:ratio{$SERVICE}", "$NAME"),
    timeseries("P95 and P99 latency", unit="s", minimum=0, dashed=[".* of the day before$"])
    .help("95th percentile, its own median of the day before (dashed), and, where a histogram is scraped, the 99th.")
    .query("service:rpc_latency:p95{$SERVICE}", "$NAME p95")
    .query("service:rpc_latency:p95_median1d{$SERVICE}", "$NAME p95 of the day before")
    .query(quantile(0.99), "$NAME p99"),
    heatmap("Latency of calls", unit="s", cell_unit="reqps", no_value=NO_HISTOGRAM)
    .help("Calls a second by latency, of the histogram that the variable names.")
    .query("sum by (le) (rate($BUCKETS[$__rate_interval]))", "{{le}}"),
    timeseries("Fallbacks", unit="reqps", minimum=0, soft_maximum=1, width=8)
    .help("Requests a second that were answered without the GPU.")
    .query("service:gpu_fallback:rate5m{$SERVICE}", "$NAME"),
    shares("Requests answered by CPUs", steps=steps(NONE, 0.05, ORANGE), draw_steps="dashed", width=8)
    .help("Fallbacks over requests: the share of work without GPUs.")
    .query("service:gpu_fallback:rate5m{$SERVICE} / on ($BY_SERVICE) (service:req:qps{$SERVICE} > 0)", "$NAME"),
    state_timeline("On the fallback", steps=steps(GREEN, 1, RED),
        mappings=[mapped({0: ("GPU", GREEN), 1: ("fallback", RED)})], width=8)
    .help("When each service should run without the GPU.")
    .query("service:gpu_fallback:active{$SERVICE}", "$NAME"),
)

dashboard.row("GPUs", no_value=NO_OWNERS).panels(
    shares("GPU utilization", height=9, dashed=["^all, on average$"], steps=UTILIZATION_BAND, draw_steps="area")
    .help("""Share of the time in which each GPU, or each instance of a GPU in MIG mode, worked: the ten busiest and
        the average (dashed) of those on which the chosen namespaces have work. Between 60 and 80 % (green) a GPU is
        well used; neither side of it is a fault.""")
    .query(most(here("$SLICES"), "$BY_PLACE"), "$PLACE")
    .query(f"avg({here('$SLICES')})", "all, on average"),
    shares("GPU memory", height=9, steps=steps(NONE, 0.85, ORANGE), draw_steps="line", links=[GPU_FROM_SERIES])
    .help("Share of the memory that is used, of the ten fullest of all those places. The line is at 85 %.")
    .query(most(here("$MEMORY"), "$BY_PLACE"), "$PLACE"),
    shares("CPU utilization of the nodes", steps=steps(NONE, 0.9, ORANGE), draw_steps="dashed",
        no_value="not counted (cpu.enabled is off), or no owner")
    .help("""Share of the CPUs' time spent on work, of the nodes on which the chosen namespaces have GPUs: the ten
        busiest.""")
    .query(most(f"{cpu_seconds('busy|steal')} / {cpu_seconds('.+')} and on ($BY_NODE) $PLACES", "$BY_NODE"),
        "{{instance}}"),
    timeseries("Busy CPUs per busy GPU", minimum=0, no_value="not counted (cpu.enabled is off), or no GPU is busy")
    .help("""CPUs busy on the node for each of its GPUs that is busy, of the ten nodes with the most. When it rises,
        more work runs beside the GPU: fallbacks, preparation, a neighbour.""")
    .query(most(f"{cpu_seconds('busy')} / (sum by ($BY_NODE) ($BUSY) > 0.01) and on ($BY_NODE) $PLACES", "$BY_NODE"),
        "{{instance}}"),
    table("Owners", sort_by="Busy", height=9)
    .help("Pods and other owners of the chosen namespaces, with their share of each GPU. All shows every owner.")
    .label("instance", links=[row_link("Host", "gpu-node-host", "instance")], width=170)
    .label("gpu", links=[row_link("GPU", "gpu-node-gpu", "instance", "gpu")], width=60)
    .label("gpu_instance", links=[row_link("MIG", "gpu-node-mig", "instance", "gpu")], width=110)
    .label("owner", width=420, links=[row_link("Job", "gpu-node-job", "owner")])
    .share("Allocated", or_none(of_owners("clamp_max(sum by ($BY_OWNER) ($HAD), 1)"), "$OWNERS", "$BY_OWNER"))
    .share("Busy", or_none(of_owners("clamp_max(sum by ($BY_OWNER) ($BUSY), 1)"), "$OWNERS", "$BY_OWNER"))
    .column("Memory",
        or_none(of_owners("sum by ($BY_OWNER) (gpu_owner_memory_used_bytes{$NODE})"), "$OWNERS", "$BY_OWNER"),
        unit="bytes")
    .column("Limited by", or_none(of_owners(cause_number("$NODE")), "$OWNERS", "$BY_OWNER"),
        mappings=[CAUSE_TEXTS, ABSENT], paint=True),
)

dashboard.row("Logs and traces").panels(
    *explore_tables('gpu_owner_info{$NODE,namespace=~"$namespace",pod!=""}')
)
