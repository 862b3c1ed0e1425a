"""From a service to its nodes, its GPUs, and everybody who has a part of them."""

from kit import *
from owners import CAUSE_TEXTS, CAUSES, OWNER_TERMS, by_service, cause_number, service_variable

NOBODY = "nobody of this choice has a GPU"
BAD = steps(NONE, 1, RED)
TICKET = steps(NONE, 1, ORANGE)
FAR = steps(NONE, 0.5, ORANGE)


def rate(metric: str) -> str:
    return f"rate({metric}{{$CHOSEN}}[$__rate_interval])"


def of_services(expr: str) -> str:
    return or_none(f"sum by (service) ({by_service(expr)})", "$SERVICES", "service")


def of_nodes(expr: str) -> str:
    """The expression by node, of the nodes chosen; NaN where it is absent."""
    return or_none(f"({expr}) and on ($BY_NODE) $NODES", "$NODES", "$BY_NODE")


def of_gpus(expr: str) -> str:
    return or_none(f"({expr}) and on ($BY_GPU) $GPUS", "$GPUS", "$BY_GPU")


def of_owners(expr: str) -> str:
    return or_none(f"({expr}) and on ($BY_OWNER) $OWNERS", "$OWNERS", "$BY_OWNER")


def rate_on_gpus(metric: str) -> str:
    # A rate is drawn on to the ends of its range, so that it can be a little above what a GPU has.
    return f"clamp_max(sum by ($BY_OWNER) (rate({metric}{{$GPU}}[$__rate_interval])), 1)"


def alerts(by: str, anchor: str, severities: str) -> str:
    """Alerts that fire now; 0 only where the rules are known to be evaluated."""
    return f"""count by ({by}) (ALERTS{{$NODE,alertname=~"Gpu.+",alertstate="firing",severity=~"{severities}"}})
        or on ({by}) {anchor} * on () group_left () (0 * count(ALERTS{{alertname="GpuWatchdog"}}))"""


dashboard = Dashboard(
    "gpu-node-drilldown",
    "GPU nodes: from a service to its GPUs",
    "Which nodes and GPUs does this service depend on, and who shares them?",
    variables=[*node_variables()[:3], service_variable(), node_variables()[3], gpu_variable()],
    terms=OWNER_TERMS
    | {
        # What the variables choose, of owners' series.
        "CHOSEN": "$GPU,$OF_SERVICE",
        "INFO": "gpu_owner_info{$CHOSEN}",
        # The rows of each table: inventory, not measurements.
        "SERVICES": f"max by (service) ({by_service('$INFO')})",
        "NODES": "max by ($BY_NODE) ($INFO)",
        "GPUS": "max by ($BY_GPU) ($INFO)",
        # Everybody on those GPUs, so that neighbours are seen too.
        "OWNERS": "(max by ($BY_OWNER) (gpu_owner_info{$GPU}) and on ($BY_GPU) $INFO)",
        "NAMES": "namespace, slurm_job, slurm_account, user",
        "BUSY": f"sum by (service) ({by_service(rate('gpu_owner_busy_seconds_total'))})",
        "HAD": f"sum by (service) ({by_service(rate('gpu_owner_allocated_seconds_total'))})",
    },
)

dashboard.row("From top to bottom").panels(
    text(
        "Chosen",
        """**Service** ${service:text} → **node** ${instance:text} → **GPU** ${gpu:text} → **owners**. Click a
        service, a node or a GPU below to choose it; its menu also leads to the board of the host, of the GPU, of its
        slices or of its canary, with the same time and choice.""",
        height=3,
    )
    .help("What the variables above choose, from the service down to the GPU."),
)

dashboard.row("Services of this choice").panels(
    table("Services", sort_by="GPUs had", no_value=NOBODY)
    .help("""Who works on the GPUs of this choice: pods by namespace and name, Slurm jobs, other owners. GPUs had and
        busy are in whole GPUs: two halves are one.""")
    .label("service", links=[row_link("Nodes and GPUs of this service", "gpu-node-drilldown", "service")], width=330)
    .column("GPUs had", of_services(rate("gpu_owner_allocated_seconds_total")), decimals=2)
    .column("GPUs busy", of_services(rate("gpu_owner_busy_seconds_total")), decimals=2)
    .column("Memory", of_services("gpu_owner_memory_used_bytes{$CHOSEN}"), unit="bytes")
    .column("Power", of_services(rate("gpu_owner_energy_joules_total")), unit="watt", decimals=0)
    .column("Nodes",
        or_none(f"count by (service) (max by (service, $BY_NODE) ({by_service('$INFO')}))", "$SERVICES", "service"))
    .column("Unhealthy GPUs",
        or_none(f"""sum by (service) (max by (service, $BY_GPU) ({by_service('$INFO')})
            * on ($BY_GPU) group_left () max by ($BY_GPU) (1 - gpu_healthy{{$GPU}}))""", "$SERVICES", "service"),
        steps=BAD)
    .column("Held back by the host", of_services('gpu_bottleneck{$CHOSEN,cause=~"$HOST_CAUSES"}'), steps=TICKET),
)

dashboard.row("Nodes they work on").panels(
    table("Nodes", sort_by="Unhealthy GPUs", no_value=NOBODY)
    .help("The nodes on which they work, and whether the node is in their way.")
    .label("instance",
        links=[row_link("GPUs on this node", "gpu-node-drilldown", "instance"),
            row_link("The host: places, CPUs, PCIe", "gpu-node-host", "instance"),
            row_link("What is broken on it", "gpu-node-oncall", "instance")])
    .column("GPUs of this choice", "count by ($BY_NODE) (max by ($BY_GPU) ($INFO))")
    .column("GPUs of the node", of_nodes("max by ($BY_NODE) (gpu_devices_expected{$NODE})"))
    .column("Unhealthy GPUs", of_nodes("sum by ($BY_NODE) (1 - gpu_healthy{$NODE})"), steps=BAD)
    .column("Pages", of_nodes(alerts("$BY_NODE", "$NODES", "page")), steps=BAD)
    .column("Tickets", of_nodes(alerts("$BY_NODE", "$NODES", "ticket")), steps=TICKET)
    .column("GPUs busy", of_nodes(f"sum by ($BY_NODE) ({rate('gpu_owner_busy_seconds_total')})"), decimals=2)
    .share("CPU busy",
        of_nodes("""sum by ($BY_NODE) (rate(gpu_host_cpu_seconds_total{$NODE,mode=~"busy|steal"}[$__rate_interval]))
            / sum by ($BY_NODE) (rate(gpu_host_cpu_seconds_total{$NODE}[$__rate_interval]))"""),
        steps=steps(NONE, 0.9, ORANGE))
    .share("Memory far", of_nodes("max by ($BY_NODE) (gpu_owner_memory_remote_ratio{$CHOSEN})"), steps=FAR)
    .yes_no("Machine as expected", of_nodes("min by ($BY_NODE) (gpu_host_topology_matches{$NODE})")),
)

dashboard.row("GPUs they work on").panels(
    table("GPUs", sort_by="Healthy", descending=False, no_value=NOBODY)
    .help("The GPUs on which they work. Owners counts everybody with a process on the GPU, also those not chosen.")
    .label("instance", links=[row_link("The host of this GPU", "gpu-node-host", "instance")])
    .label("gpu",
        links=[row_link("Owners on this GPU", "gpu-node-drilldown", "instance", "gpu"), GPU_FROM_ROW,
            row_link("Its slices", "gpu-node-mig", "instance", "gpu"),
            row_link("Its canary", "gpu-node-canary", "instance", "gpu")], width=60)
    .label("model")
    .labels_from(of_gpus("max by ($BY_GPU, model) (gpu_info{$GPU})"))
    .yes_no("Healthy", of_gpus("min by ($BY_GPU) (gpu_healthy{$GPU})"))
    .yes_no("Answers", of_gpus("min by ($BY_GPU) (gpu_up{$GPU})"))
    .share("Busy", of_gpus("sum by ($BY_GPU) (rate(gpu_owner_busy_seconds_total{$GPU}[$__rate_interval]))"))
    .share("Memory", of_gpus("max by ($BY_GPU) (gpu_memory_used_bytes{$GPU} / gpu_memory_total_bytes{$GPU})"),
        steps=steps(NONE, 0.85, ORANGE))
    .column("Degrees to slowdown", of_gpus("min by ($BY_GPU) (gpu_temperature_margin_celsius{$GPU})"), unit="celsius",
        steps=steps(ORANGE, 3, NONE))
    .column("Last Xid", of_gpus("max by ($BY_GPU) (gpu_xid_last_event_timestamp_seconds{$GPU}) * 1000"),
        unit="dateTimeFromNow", mappings=[special("none seen")])
    .column("Owners", of_gpus("count by ($BY_GPU) (gpu_owner_processes{$GPU} > 0)")),
)

dashboard.row("Everybody on these GPUs").panels(
    table("Owners", labels_last=["namespace", "slurm_job", "slurm_account", "user"], sort_by="Busy", no_value=NOBODY,
        height=10)
    .help("""Everybody on the GPUs above, neighbours of the chosen service too: who has what of each GPU, or of each
        instance in MIG mode, and what holds the work back. Owners that ended stay for a quarter of an hour.""")
    .gpus(170)
    .label("gpu_instance", links=[row_link("Its slices", "gpu-node-mig", "instance", "gpu")], width=110)
    .label("owner", width=330)
    .label("namespace",
        links=[row_link("Requests, latency and errors of this namespace", "gpu-node-service", "namespace")])
    .labels("slurm_job", "slurm_account", "user")
    .labels_from(of_owners("max by ($BY_OWNER, $NAMES) (gpu_owner_info{$GPU})"))
    .column("Chosen", "max by ($BY_OWNER) ($INFO) or on ($BY_OWNER) $OWNERS * 0",
        mappings=[mapped({1: ("yes", BLUE), 0: ("neighbour", GREY)}), ABSENT])
    .column("Processes", of_owners("sum by ($BY_OWNER) (gpu_owner_processes{$GPU})"))
    .column("Memory", of_owners("sum by ($BY_OWNER) (gpu_owner_memory_used_bytes{$GPU})"), unit="bytes")
    .share("Had", of_owners(rate_on_gpus("gpu_owner_allocated_seconds_total")))
    .share("Busy", of_owners(rate_on_gpus("gpu_owner_busy_seconds_total")))
    .column("Held back by", of_owners(cause_number("$GPU")), mappings=[CAUSE_TEXTS, ABSENT], width=130, paint=True)
    .share("Memory far", of_owners("max by ($BY_OWNER) (gpu_owner_memory_remote_ratio{$GPU})"), steps=FAR),
)

dashboard.row("Over time", no_value=NOBODY).panels(
    timeseries("GPUs had and busy", minimum=0, dashed=[".* had$"])
    .help("""In whole GPUs, of the ten services that have most. What is had (dashed) and not busy is paid for and not
        used.""")
    .query(most("$BUSY", "service", ranked="$HAD"), "{{service}} busy")
    .query(most("$HAD", "service"), "{{service}} had"),
    shares("Share of the time had that was busy", steps=UTILIZATION_BAND, draw_steps="area")
    .help("""Of the ten services that have most. Between 60 and 80 % (green) GPUs are well used. Below, they wait;
        above, there is little room for a peak. Neither is a fault.""")
    .query(most("$BUSY / ($HAD > 0)", "service", ranked="$HAD"), "{{service}}"),
    timeseries("What holds the work back", minimum=0, stacked=True,
        colors={cause: color for cause, (_, _, color) in CAUSES.items()}, width=24)
    .help("""Places of owners (a GPU, or an instance in MIG mode) by the first proven cause, as docs/BOTTLENECKS.md
        defines it. None is not proven to be fast. The board of the host shows it owner by owner.""")
    .query("sum by (cause) (gpu_bottleneck{$CHOSEN}) > 0", "{{cause}}"),
)
