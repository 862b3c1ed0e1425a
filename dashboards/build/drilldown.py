"""From a service to its nodes, its GPUs, and everybody who has a part of them."""

import typing

from common import (
    BLUE,
    BY_GPU,
    BY_NODE,
    GPU,
    GPU_FROM_ROW,
    GREY,
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
    gpu_rows,
    gpu_variable,
    mapped,
    most,
    node_variables,
    or_none,
    row_link,
    share,
    shares,
    special,
    steps,
    table,
    text,
    timeseries,
    yes_no,
)
from owners import BY_OWNER, CAUSE_WORDS, CAUSES, HOST_CAUSES, OF_SERVICE, by_service, cause_number, service_variable

NOBODY = "nobody of this choice has a GPU"

# What the variables choose, of owners' series.
CHOSEN = f"{GPU},{OF_SERVICE}"
INFO = f"gpu_owner_info{{{CHOSEN}}}"

# The rows of each table: inventory, not measurements.
SERVICES = f"max by (service) ({by_service(INFO)})"
NODES = f"max by ({BY_NODE}) ({INFO})"
GPUS = f"max by ({BY_GPU}) ({INFO})"
# Everybody on those GPUs, so that neighbours are seen too.
OWNERS = f"(max by ({BY_OWNER}) (gpu_owner_info{{{GPU}}}) and on ({BY_GPU}) {INFO})"

BAD = steps((None, NONE), (1, RED))
TICKET = steps((None, NONE), (1, ORANGE))
FAR = steps((None, NONE), (0.5, ORANGE))


def rate(metric: str) -> str:
    return f"rate({metric}{{{CHOSEN}}}[$__rate_interval])"


def service_column(title: str, expr: str, **how: typing.Any) -> Column:
    return Column(title, or_none(f"sum by (service) ({by_service(expr)})", SERVICES, "service"), **how)


def of_nodes(expr: str) -> str:
    """The expression by node, of the nodes chosen; NaN where it is not told."""
    return or_none(f"({expr}) and on ({BY_NODE}) {NODES}", NODES, BY_NODE)


def of_gpus(expr: str) -> str:
    return or_none(f"({expr}) and on ({BY_GPU}) {GPUS}", GPUS, BY_GPU)


def of_owners(expr: str) -> str:
    return or_none(f"({expr}) and on ({BY_OWNER}) {OWNERS}", OWNERS, BY_OWNER)


def rate_on_gpus(metric: str) -> str:
    # A rate is drawn on to the ends of its range, so that it can be a little above what a GPU has.
    return f"clamp_max(sum by ({BY_OWNER}) (rate({metric}{{{GPU}}}[$__rate_interval])), 1)"


def alerts(by: str, anchor: str, severities: str) -> str:
    """Alerts that fire now; 0 only where the rules are known to be evaluated."""
    return f"""count by ({by}) (ALERTS{{{NODE},alertname=~"Gpu.+",alertstate="firing",severity=~"{severities}"}})
        or on ({by}) {anchor} * on () group_left () (0 * count(ALERTS{{alertname="GpuWatchdog"}}))"""


def services() -> Placed:
    return table(
        "Services",
        "Who works on the GPUs of this choice: pods by namespace and name, Slurm jobs, other owners. GPUs had and busy "
        "are in whole GPUs: two halves are one.",
        [
            Label(
                "service",
                links=[row_link("Nodes and GPUs of this service", "gpu-node-drilldown", "service")],
                width=330,
            )
        ],
        [
            service_column("GPUs had", rate("gpu_owner_allocated_seconds_total"), decimals=2),
            service_column("GPUs busy", rate("gpu_owner_busy_seconds_total"), decimals=2),
            service_column("Memory", f"gpu_owner_memory_used_bytes{{{CHOSEN}}}", unit="bytes"),
            service_column("Power", rate("gpu_owner_energy_joules_total"), unit="watt", decimals=0),
            Column(
                "Nodes",
                or_none(f"count by (service) (max by (service, {BY_NODE}) ({by_service(INFO)}))", SERVICES, "service"),
            ),
            Column(
                "Unhealthy GPUs",
                or_none(
                    f"sum by (service) (max by (service, {BY_GPU}) ({by_service(INFO)}) * on ({BY_GPU})"
                    f" group_left () max by ({BY_GPU}) (1 - gpu_healthy{{{GPU}}}))",
                    SERVICES,
                    "service",
                ),
                thresholds=BAD,
                paint=True,
            ),
            service_column(
                "Held back by the host",
                f'gpu_bottleneck{{{CHOSEN},cause=~"{HOST_CAUSES}"}}',
                thresholds=TICKET,
                paint=True,
            ),
        ],
        sort_by="GPUs had",
        no_value=NOBODY,
    )


def nodes() -> Placed:
    return table(
        "Nodes",
        "The nodes on which they work, and whether the node is in their way.",
        [
            Label(
                "instance",
                links=[
                    row_link("GPUs on this node", "gpu-node-drilldown", "instance"),
                    row_link("The host: places, CPUs, PCIe", "gpu-node-host", "instance"),
                    row_link("What is broken on it", "gpu-node-oncall", "instance"),
                ],
            )
        ],
        [
            Column(
                "GPUs of this choice",
                f"count by ({BY_NODE}) (max by ({BY_GPU}) ({INFO}))",
            ),
            Column("GPUs of the node", of_nodes(f"max by ({BY_NODE}) (gpu_devices_expected{{{NODE}}})")),
            Column(
                "Unhealthy GPUs",
                of_nodes(f"sum by ({BY_NODE}) (1 - gpu_healthy{{{NODE}}})"),
                thresholds=BAD,
                paint=True,
            ),
            Column("Pages", of_nodes(alerts(BY_NODE, NODES, "page")), thresholds=BAD, paint=True),
            Column("Tickets", of_nodes(alerts(BY_NODE, NODES, "ticket")), thresholds=TICKET, paint=True),
            Column("GPUs busy", of_nodes(f"sum by ({BY_NODE}) ({rate('gpu_owner_busy_seconds_total')})"), decimals=2),
            share(
                "CPU busy",
                of_nodes(
                    f'sum by ({BY_NODE}) (rate(gpu_host_cpu_seconds_total{{{NODE},mode=~"busy|steal"}}'
                    f"[$__rate_interval])) / sum by ({BY_NODE}) (rate(gpu_host_cpu_seconds_total{{{NODE}}}"
                    "[$__rate_interval]))"
                ),
                thresholds=steps((None, NONE), (0.9, ORANGE)),
                paint=True,
            ),
            share(
                "Memory far",
                of_nodes(f"max by ({BY_NODE}) (gpu_owner_memory_remote_ratio{{{CHOSEN}}})"),
                thresholds=FAR,
                paint=True,
            ),
            yes_no("Machine as expected", of_nodes(f"min by ({BY_NODE}) (gpu_host_topology_matches{{{NODE}}})")),
        ],
        sort_by="Unhealthy GPUs",
        no_value=NOBODY,
    )


def gpus() -> Placed:
    return table(
        "GPUs",
        "The GPUs on which they work. Owners counts everybody with a process on the GPU, also those not chosen.",
        [
            Label("instance", links=[row_link("The host of this GPU", "gpu-node-host", "instance")]),
            Label(
                "gpu",
                links=[
                    row_link("Owners on this GPU", "gpu-node-drilldown", "instance", "gpu"),
                    GPU_FROM_ROW,
                    row_link("Its slices", "gpu-node-mig", "instance", "gpu"),
                    row_link("Its canary", "gpu-node-canary", "instance", "gpu"),
                ],
                width=60,
            ),
            Label("model"),
        ],
        [
            Column("Model", of_gpus(f"max by ({BY_GPU}, model) (gpu_info{{{GPU}}})"), hidden=True),
            yes_no("Healthy", of_gpus(f"min by ({BY_GPU}) (gpu_healthy{{{GPU}}})")),
            yes_no("Answers", of_gpus(f"min by ({BY_GPU}) (gpu_up{{{GPU}}})")),
            share(
                "Busy", of_gpus(f"sum by ({BY_GPU}) (rate(gpu_owner_busy_seconds_total{{{GPU}}}[$__rate_interval]))")
            ),
            share(
                "Memory",
                of_gpus(f"max by ({BY_GPU}) (gpu_memory_used_bytes{{{GPU}}} / gpu_memory_total_bytes{{{GPU}}})"),
                thresholds=steps((None, NONE), (0.85, ORANGE)),
                paint=True,
            ),
            Column(
                "Degrees to slowdown",
                of_gpus(f"min by ({BY_GPU}) (gpu_temperature_margin_celsius{{{GPU}}})"),
                unit="celsius",
                thresholds=steps((None, ORANGE), (3, NONE)),
                paint=True,
            ),
            Column(
                "Last Xid",
                of_gpus(f"max by ({BY_GPU}) (gpu_xid_last_event_timestamp_seconds{{{GPU}}}) * 1000"),
                unit="dateTimeFromNow",
                mappings=[special("none seen")],
            ),
            Column(
                "Owners",
                of_gpus(f"count by ({BY_GPU}) (gpu_owner_processes{{{GPU}}} > 0)"),
            ),
        ],
        sort_by="Healthy",
        descending=False,
        no_value=NOBODY,
    )


def owners() -> Placed:
    names = "namespace, slurm_job, slurm_account, user"
    return table(
        "Owners",
        "Everybody on the GPUs above, neighbours of the chosen service too: who has what of each GPU, or of each "
        "instance in MIG mode, and what holds the work back. Owners that ended stay for a quarter of an hour.",
        [
            *gpu_rows(170),
            Label("gpu_instance", links=[row_link("Its slices", "gpu-node-mig", "instance", "gpu")], width=110),
            Label("owner", width=330),
            Label(
                "namespace",
                links=[row_link("Requests, latency and errors of this namespace", "gpu-node-service", "namespace")],
            ),
            Label("slurm_job"),
            Label("slurm_account"),
            Label("user"),
        ],
        [
            Column("Names", of_owners(f"max by ({BY_OWNER}, {names}) (gpu_owner_info{{{GPU}}})"), hidden=True),
            Column(
                "Chosen",
                f"max by ({BY_OWNER}) ({INFO}) or on ({BY_OWNER}) {OWNERS} * 0",
                mappings=[mapped({1: ("yes", BLUE), 0: ("neighbour", GREY)}), NOT_TOLD],
                paint=False,
            ),
            Column("Processes", of_owners(f"sum by ({BY_OWNER}) (gpu_owner_processes{{{GPU}}})")),
            Column(
                "Memory",
                of_owners(f"sum by ({BY_OWNER}) (gpu_owner_memory_used_bytes{{{GPU}}})"),
                unit="bytes",
            ),
            share("Had", of_owners(rate_on_gpus("gpu_owner_allocated_seconds_total"))),
            share("Busy", of_owners(rate_on_gpus("gpu_owner_busy_seconds_total"))),
            Column(
                "Held back by",
                of_owners(cause_number(GPU)),
                mappings=[CAUSE_WORDS, NOT_TOLD],
                width=130,
                paint=True,
            ),
            share(
                "Memory far",
                of_owners(f"max by ({BY_OWNER}) (gpu_owner_memory_remote_ratio{{{GPU}}})"),
                thresholds=FAR,
                paint=True,
            ),
        ],
        labels_last=["namespace", "slurm_job", "slurm_account", "user"],
        sort_by="Busy",
        no_value=NOBODY,
        height=10,
    )


def over_time() -> list[Placed]:
    busy = f"sum by (service) ({by_service(rate('gpu_owner_busy_seconds_total'))})"
    had = f"sum by (service) ({by_service(rate('gpu_owner_allocated_seconds_total'))})"
    return [
        timeseries(
            "GPUs had and busy",
            "In whole GPUs, of the ten services that have most. What is had (dashed) and not busy is paid for and not "
            "used.",
            [
                Query(most(busy, "service", ranked=had), "{{service}} busy"),
                Query(most(had, "service"), "{{service}} had"),
            ],
            unit="short",
            minimum=0,
            thresholds=NEUTRAL,
            dashed=[".* had$"],
            no_value=NOBODY,
        ),
        shares(
            "Share of the time had that was busy",
            "Of the ten services that have most. Between 60 and 80 % (green) GPUs are well used. Below, they wait; "
            "above, there is little room for a peak. Neither is a fault.",
            Query(most(f"{busy} / ({had} > 0)", "service", ranked=had), "{{service}}"),
            thresholds=UTILIZATION_BAND,
            draw_thresholds="area",
            no_value=NOBODY,
        ),
        timeseries(
            "What holds the work back",
            "Places of owners (a GPU, or an instance in MIG mode) by the first proven cause, as docs/BOTTLENECKS.md "
            "defines it. None is not proven to be fast. The board of the host shows it owner by owner.",
            Query(f"sum by (cause) (gpu_bottleneck{{{CHOSEN}}}) > 0", "{{cause}}"),
            unit="short",
            minimum=0,
            stacked=True,
            thresholds=NEUTRAL,
            colors={cause: color for cause, (_, _, color) in CAUSES.items()},
            no_value=NOBODY,
            width=24,
        ),
    ]


def board() -> Board:
    board = Board(
        "gpu-node-drilldown",
        "GPU nodes: from a service to its GPUs",
        "Which nodes and GPUs does this service depend on, and who shares them?",
        variables=[*node_variables()[:3], service_variable(), node_variables()[3], gpu_variable()],
    )
    board.row(
        "From top to bottom",
        [
            text(
                "Chosen",
                "What the variables above choose, from the service down to the GPU.",
                "**Service** ${service:text} → **node** ${instance:text} → **GPU** ${gpu:text} → **owners**. Click a "
                "service, a node or a GPU below to choose it; its menu also leads to the board of the host, of the "
                "GPU, of its slices or of its canary, with the same time and choice.",
                height=3,
            )
        ],
    )
    board.row("Services of this choice", [services()])
    board.row("Nodes they work on", [nodes()])
    board.row("GPUs they work on", [gpus()])
    board.row("Everybody on these GPUs", [owners()])
    board.row("Over time", over_time())
    return board
