"""Is the host in the way? Where GPUs, CPUs, memory and network devices sit, and what the CPUs do and count."""

import typing

from common import (
    BY_GPU,
    BY_NODE,
    GPU_FROM_ROW,
    GPU_FROM_SERIES,
    GREEN,
    NEUTRAL,
    NODE,
    NONE,
    NOT_TOLD,
    ORANGE,
    TICKET_ABOVE_ZERO,
    UTILIZATION_BAND,
    Board,
    Column,
    Label,
    Placed,
    Query,
    gpu_rows,
    mapped,
    node_variables,
    or_none,
    row_link,
    share,
    shares,
    stat,
    state_timeline,
    steps,
    table,
    timeseries,
    yes_no,
)
from owners import BY_OWNER, CAUSE_WORDS, HOST_CAUSES, cause_number

NO_COUNTERS = "not counted here: see Events on the CPUs"
NO_CPU_TIME = "not told: cpu.enabled is off"
NO_OWNERS = "nobody has a GPU"
NO_PLACES = "the machine does not tell"
NO_GPUS = "no GPU"

NUMA = "cluster, instance, numa_node"
ON_NUMA = "{{instance}} NUMA {{numa_node}}"
OF_GPU = "{{instance}} GPU {{gpu}}"
OF_OWNER = "{{instance}} GPU {{gpu}} {{owner}}"

CPU_SECONDS = f"gpu_host_cpu_seconds_total{{{NODE}}}"
OWNERS = f"max by ({BY_OWNER}) (gpu_owner_info{{{NODE}}}) unless on ({BY_OWNER}) gpu_owner_processes{{{NODE}}} == 0"

# Bytes a second that a link of this generation can move on each lane, one way, by its line code.
LANE_RATE = f"""(
    (2.5e9 * 0.8 / 8) * 2 ^ ((gpu_pcie_link_generation{{{NODE}}} <= 2) - 1)
    or (1e9 * 128 / 130 / 8) * 2 ^ (gpu_pcie_link_generation{{{NODE}}} > 2 < 6)
    or (1e9 * 242 / 256 / 8) * 2 ^ (gpu_pcie_link_generation{{{NODE}}} >= 6))"""


def counted(event: str, by: str = NUMA) -> str:
    """How often the event came, each second."""
    return f'sum by ({by}) (rate(gpu_host_cpu_events_total{{{NODE},event="{event}"}}[$__rate_interval]))'


def per_thousand_instructions(event: str) -> str:
    return f"1000 * {counted(event)} / ({counted('instructions')} > 0)"


def counts(title: str, description: str, queries: Query | list[Query], **how: typing.Any) -> Placed:
    """A graph of what the CPUs' own counters tell; three stand side by side."""
    return timeseries(title, description, queries, minimum=0, thresholds=NEUTRAL, no_value=NO_COUNTERS, width=8, **how)


def cpu_share(modes: str, by: str) -> str:
    """Share of the CPUs' time in these modes."""
    of_modes = f'rate(gpu_host_cpu_seconds_total{{{NODE},mode=~"{modes}"}}[$__rate_interval])'
    return f"sum by ({by}) ({of_modes}) / sum by ({by}) (rate({CPU_SECONDS}[$__rate_interval]))"


def now() -> list[Placed]:
    return [
        stat(
            "Machine as expected",
            "Whether packages, NUMA nodes, memory, GPUs and network devices are where they were when first seen, and "
            "where they were declared to be. The worst node counts; /api/v1/topology of the node says what differs.",
            Query(f"min(gpu_host_topology_matches{{{NODE}}})", "as expected"),
            unit="short",
            thresholds=steps((None, ORANGE), (1, GREEN)),
            mappings=[mapped({1: ("yes", GREEN), 0: ("changed", ORANGE)})],
            no_value="not told",
        ),
        stat(
            "PCIe links below their best",
            "Links that run narrower, or under load slower, than GPU and port can both run them.",
            Query(f"sum(max by ({BY_GPU}) (1 - gpu_host_pcie_link_matches{{{NODE}}}))", "links"),
            unit="short",
            thresholds=TICKET_ABOVE_ZERO,
            no_value="not told",
        ),
        stat(
            "Work held back by the host",
            "Places of owners whose work waits for the host: its CPUs, memory far away, PCIe, or copies that take "
            "turns with kernels. Each cause's formula is in docs/BOTTLENECKS.md.",
            Query(f'sum(gpu_bottleneck{{{NODE},cause=~"{HOST_CAUSES}"}})', "held back"),
            unit="short",
            thresholds=TICKET_ABOVE_ZERO,
            no_value="no work",
        ),
        stat(
            "CPU busy",
            "Share of the CPUs' time spent on work, all nodes chosen together. Time that a hypervisor took counts too. "
            "Not told: the exporter does not count it (cpu.enabled).",
            Query(cpu_share("busy|steal", "job"), "{{job}}"),
            unit="percentunit",
            decimals=0,
            thresholds=steps((None, GREEN), (0.9, ORANGE)),
            no_value="not told",
        ),
        stat(
            "Memory far from its GPU",
            "The largest share of an owner's memory on the host that is not on the NUMA node near its GPU. Above one "
            "half the alert GpuRemoteNuma may tell.",
            Query(f"max(gpu_owner_memory_remote_ratio{{{NODE}}})", "far"),
            unit="percentunit",
            decimals=0,
            thresholds=steps((None, GREEN), (0.5, ORANGE)),
            no_value="not told",
        ),
        stat(
            "Network devices down",
            "Network devices nearest to a GPU that cannot carry traffic.",
            Query(f"sum(1 - gpu_host_nic_up{{{NODE}}})", "down"),
            unit="short",
            thresholds=TICKET_ABOVE_ZERO,
            no_value="not told",
        ),
    ]


def places() -> list[Placed]:
    near = "numa_node, package, l3, share, root_port, pcie_switch"
    return [
        table(
            "GPUs, CPUs and network devices",
            "Where each GPU sits: NUMA node, package, last-level cache, its fair share of CPUs, the nearest network "
            "device and how near that is, and whether its PCIe link runs as both ends can run it. On most virtual "
            "machines the places are empty: the hypervisor does not tell them.",
            [
                Label("instance", links=[row_link("This node", "gpu-node-host", "instance")], width=170),
                Label("gpu", links=[GPU_FROM_ROW], width=60),
                Label("numa_node", width=90),
                Label("package", width=80),
                Label("l3", width=60),
                Label("share", width=110),
                Label("pcie_switch"),
                Label("root_port"),
                Label("nic"),
                Label("path"),
            ],
            [
                Column(
                    "Place",
                    or_none(f"max by ({BY_GPU}, {near}) (gpu_host_topology_info{{{NODE}}})"),
                    hidden=True,
                ),
                Column(
                    "Network",
                    or_none(f"max by ({BY_GPU}, nic, path) (gpu_host_nic_info{{{NODE}}})"),
                    hidden=True,
                ),
                yes_no(
                    "Network up",
                    or_none(
                        f"max by ({BY_GPU}) (gpu_host_nic_info{{{NODE}}} * on ({BY_NODE}, nic) group_left ()"
                        f" gpu_host_nic_up{{{NODE}}})"
                    ),
                ),
                Column(
                    "Link width",
                    or_none(f"max by ({BY_GPU}) (gpu_pcie_link_width_lanes{{{NODE}}})"),
                    unit="none",
                ),
                yes_no(
                    "Width matches", or_none(f'min by ({BY_GPU}) (gpu_host_pcie_link_matches{{{NODE},aspect="width"}})')
                ),
                Column(
                    "Link generation",
                    or_none(f"max by ({BY_GPU}) (gpu_pcie_link_generation{{{NODE}}})"),
                ),
                yes_no(
                    "Generation matches",
                    or_none(f'min by ({BY_GPU}) (gpu_host_pcie_link_matches{{{NODE},aspect="generation"}})'),
                ),
            ],
            labels_last=["nic", "path"],
            no_value=NO_GPUS,
            height=10,
        ),
        table(
            "CPUs of MIG instances",
            "The share of its GPU's CPUs that is each compute instance's, where they are divided fairly.",
            [
                *gpu_rows(170),
                Label("gpu_instance", links=[row_link("Slices of this GPU", "gpu-node-mig", "instance", "gpu")]),
                Label("compute_instance"),
                Label("profile"),
                Label("numa_node"),
                Label("share"),
            ],
            [
                Column(
                    "CPUs",
                    f"max by ({BY_GPU}, gpu_instance, compute_instance, profile, numa_node, share)"
                    f" (gpu_mig_host_topology_info{{{NODE}}})",
                    hidden=True,
                )
            ],
            no_value="no MIG instance",
            width=12,
            height=7,
        ),
        state_timeline(
            "The machine over time",
            "When the machine was as first seen, and as declared. A change that no one planned is a card that moved, "
            "a BIOS setting, or memory that is gone.",
            Query(f"gpu_host_topology_matches{{{NODE}}}", "{{instance}} {{against}}"),
            thresholds=steps((None, ORANGE), (1, GREEN)),
            mappings=[mapped({1: ("yes", GREEN), 0: ("changed", ORANGE)})],
            no_value=NO_PLACES,
            width=12,
            height=7,
        ),
    ]


def cpus() -> list[Placed]:
    return [
        shares(
            "CPUs and GPUs busy",
            "Share of the node's time in which its CPUs, and in which its GPUs worked. CPUs at their end beside GPUs "
            "that wait are an input pipeline that starves them. Between 60 and 80 % (green) a GPU is well used; "
            "neither side of it is a fault.",
            [
                Query(cpu_share("busy|steal", "cluster, instance"), "{{instance}} CPUs"),
                Query(
                    f"avg by (cluster, instance) (rate(gpu_busy_seconds_total{{{NODE}}}[$__rate_interval]))",
                    "{{instance}} GPUs",
                ),
            ],
            thresholds=UTILIZATION_BAND,
            draw_thresholds="area",
            dashed=[".* CPUs$"],
            no_value=NO_CPU_TIME,
        ),
        shares(
            "CPU time by NUMA node",
            "What the CPUs of each NUMA node spent their time on. Idle time is left out. Stolen is what a hypervisor "
            "gave to others.",
            Query(
                f'sum by ({NUMA}, mode) (rate(gpu_host_cpu_seconds_total{{{NODE},mode!="idle"}}[$__rate_interval]))'
                f" / on ({NUMA}) group_left () sum by ({NUMA}) (rate({CPU_SECONDS}[$__rate_interval]))",
                ON_NUMA + " {{mode}}",
            ),
            thresholds=steps((None, NONE), (0.9, ORANGE)),
            draw_thresholds="dashed",
            no_value=NO_CPU_TIME,
        ),
        counts(
            "Instructions per cycle",
            "How much the CPUs of each NUMA node got done in a cycle. Below 1 they mostly wait for memory.",
            Query(f"{counted('instructions')} / ({counted('cycles')} > 0)", ON_NUMA),
            unit="short",
            decimals=2,
        ),
        counts(
            "Cache misses per 1000 instructions",
            "Reads that the last-level cache did not have, so that memory was asked: its own or that of another "
            "NUMA node.",
            Query(per_thousand_instructions("llc_misses"), ON_NUMA),
            unit="short",
            decimals=2,
        ),
        counts(
            "Branch misses per 1000 instructions",
            "Branches that the CPUs guessed wrong.",
            Query(per_thousand_instructions("branch_misses"), ON_NUMA),
            unit="short",
            decimals=2,
        ),
        counts(
            "Context switches",
            "How often the CPUs of each NUMA node changed from one thread to another, each second.",
            Query(counted("context_switches"), ON_NUMA),
            unit="ops",
        ),
        counts(
            "Migrations and major faults",
            "Threads that moved to another CPU, and pages that had to be read from a disk, each second. Work that is "
            "bound to its CPUs does not migrate.",
            [
                Query(counted("cpu_migrations"), ON_NUMA + " migrations"),
                Query(counted("major_faults"), ON_NUMA + " major faults"),
            ],
            unit="ops",
        ),
        shares(
            "Time that events were counted",
            "Share of the time in which the event had one of the CPUs' counters for itself. Below 1 the counters were "
            "shared, and what is told is scaled up: below one half, do not trust short ranges.",
            Query(
                f"min by (cluster, instance, event) (gpu_host_cpu_event_running_ratio{{{NODE}}})",
                "{{instance}} {{event}}",
            ),
            thresholds=steps((None, ORANGE), (0.5, NONE)),
            draw_thresholds="dashed",
            no_value=NO_COUNTERS,
            width=8,
        ),
        table(
            "Events on the CPUs",
            "Whether each event can be counted on this machine, and why not: no such counter (most virtual machines), "
            "no permission (perf_event_paranoid, capability, seccomp), or refused for another reason.",
            [
                Label("instance", width=170),
                Label("event"),
                Label(
                    "state",
                    paint=False,
                ),
            ],
            [
                Column(
                    "Nodes",
                    f"max by ({BY_NODE}, event, state) (gpu_host_cpu_event_state{{{NODE}}} == 1)",
                    hidden=True,
                )
            ],
            no_value="not told: cpu.enabled is off",
            width=12,
            sort_by="state",
        ),
        timeseries(
            "Context switches of owners",
            "Of the owners' own control groups. Only counted with cpu.per_owner, because it costs.",
            Query(
                f"sum by (cluster, instance, owner) "
                f'(rate(gpu_owner_cpu_events_total{{{NODE},event="context_switches"}}[$__rate_interval]))',
                "{{instance}} {{owner}}",
            ),
            unit="ops",
            minimum=0,
            thresholds=NEUTRAL,
            no_value="not counted: cpu.per_owner is off, or nobody has a GPU",
            width=12,
        ),
    ]


def owners() -> list[Placed]:
    remote = steps((None, NONE), (0.5, ORANGE))
    return [
        table(
            "Owners and how far they are",
            "Who has which GPU, what holds the work back, and the shares of its CPUs and of its memory that are not "
            "near the GPU. Empty shares: the machine does not tell what is near.",
            [
                *gpu_rows(170),
                Label("gpu_instance", width=110),
                Label(
                    "owner",
                    width=420,
                    links=[row_link("This service, its nodes and GPUs", "gpu-node-drilldown", "instance", "gpu")],
                ),
            ],
            [
                Column(
                    "Held back by",
                    or_none(cause_number(NODE), OWNERS, BY_OWNER),
                    mappings=[CAUSE_WORDS, NOT_TOLD],
                    paint=True,
                ),
                share(
                    "CPUs far",
                    or_none(f"max by ({BY_OWNER}) (gpu_owner_cpu_remote_ratio{{{NODE}}})", OWNERS, BY_OWNER),
                    thresholds=remote,
                    paint=True,
                ),
                share(
                    "Memory far",
                    or_none(f"max by ({BY_OWNER}) (gpu_owner_memory_remote_ratio{{{NODE}}})", OWNERS, BY_OWNER),
                    thresholds=remote,
                    paint=True,
                ),
                share(
                    "GPU busy",
                    or_none(
                        f"sum by ({BY_OWNER}) (rate(gpu_owner_busy_seconds_total{{{NODE}}}[$__rate_interval]))",
                        OWNERS,
                        BY_OWNER,
                    ),
                ),
            ],
            sort_by="Memory far",
            no_value=NO_OWNERS,
            height=9,
        ),
        state_timeline(
            "What held owners back",
            "The first proven cause for each owner and place. Orange is the host. Nothing known does not mean fast: "
            "missing evidence proves nothing.",
            Query(cause_number(NODE), "{{instance}} GPU {{gpu}} {{gpu_instance}} {{owner}}"),
            thresholds=NEUTRAL,
            mappings=[CAUSE_WORDS],
            no_value=NO_OWNERS,
            height=9,
        ),
        shares(
            "CPUs far from the GPU",
            "Share of the CPUs on which each owner's processes ran that are not near its GPU. Above one half it may "
            "cost the GPU's time: bind the work with gpu-node-exporter topology.",
            Query(f"max by ({BY_OWNER}) (gpu_owner_cpu_remote_ratio{{{NODE}}})", OF_OWNER),
            thresholds=steps((None, NONE), (0.5, ORANGE)),
            draw_thresholds="dashed",
            links=[GPU_FROM_SERIES],
            no_value="not told: the machine does not say what is near, or nobody has a GPU",
        ),
        shares(
            "Memory far from the GPU over time",
            "Share of each owner's memory on the host that is not on the NUMA node near its GPU.",
            Query(f"max by ({BY_OWNER}) (gpu_owner_memory_remote_ratio{{{NODE}}})", OF_OWNER),
            thresholds=steps((None, NONE), (0.5, ORANGE)),
            draw_thresholds="dashed",
            links=[GPU_FROM_SERIES],
            no_value="not told: the machine does not say what is near, or nobody has a GPU",
        ),
    ]


def pcie() -> list[Placed]:
    moved = f"sum by ({BY_GPU}, direction) (rate(gpu_gpm_pcie_bytes_total{{{NODE}}}[$__rate_interval]))"
    return [
        timeseries(
            "PCIe traffic",
            "Bytes that each GPU received (rx) and sent (tx), as the GPU counts them. Known of Hopper and later.",
            Query(moved, OF_GPU + " {{direction}}"),
            unit="Bps",
            minimum=0,
            thresholds=NEUTRAL,
            links=[GPU_FROM_SERIES],
            no_value="not told: no GPU here counts it",
            height=10,
        ),
        shares(
            "Share of the PCIe link",
            "The busier direction's bytes over what the link can move at its present generation and width. Packet "
            "headers take some more: 85 % is full. An idle GPU lowers its link's generation, so that little traffic "
            "may look like much.",
            Query(
                f"max by ({BY_GPU}) ({moved}) / on ({BY_GPU})"
                f" max by ({BY_GPU}) ({LANE_RATE} * gpu_pcie_link_width_lanes{{{NODE}}})",
                OF_GPU,
            ),
            thresholds=steps((None, NONE), (0.8, ORANGE)),
            draw_thresholds="dashed",
            links=[GPU_FROM_SERIES],
            no_value="not told: no GPU here counts it",
            height=10,
        ),
        timeseries(
            "PCIe packets sent again",
            "Packets that the link had to repeat because of errors, each second. More than one a second for a "
            "quarter of an hour is a matter for the riser, the retimer or the slot.",
            Query(f"max by ({BY_GPU}) (rate(gpu_pcie_replays_total{{{NODE}}}[$__rate_interval]))", OF_GPU),
            unit="ops",
            minimum=0,
            thresholds=steps((None, NONE), (1, ORANGE)),
            draw_thresholds="dashed",
            links=[GPU_FROM_SERIES],
            no_value="replays not told",
            width=8,
        ),
        timeseries(
            "PCIe errors the kernel counts",
            "Errors of the GPUs' functions in the kernel's advanced error reporting, in the time between two points. "
            "Virtual machines do not have it.",
            Query(
                f"sum by ({BY_GPU}, severity) (increase(gpu_pcie_aer_errors_total{{{NODE}}}[$__rate_interval]))",
                OF_GPU + " {{severity}}",
            ),
            unit="short",
            minimum=0,
            thresholds=steps((None, NONE), (1, ORANGE)),
            draw_thresholds="dashed",
            links=[GPU_FROM_SERIES],
            no_value="not told: the kernel here counts none",
            width=8,
        ),
        timeseries(
            "Link rate of network devices",
            "One way, of the network devices nearest to GPUs. A link that trained low shows here.",
            Query(
                f"max by (cluster, instance, nic) (gpu_host_nic_speed_bytes_per_second{{{NODE}}})",
                "{{instance}} {{nic}}",
            ),
            unit="Bps",
            minimum=0,
            thresholds=NEUTRAL,
            no_value="no network device told",
            width=8,
        ),
    ]


def board() -> Board:
    board = Board(
        "gpu-node-host",
        "GPU nodes: the host",
        "Is the host in the way?",
        variables=node_variables(one_node=True),
    )
    board.row("Now", now())
    board.row("Places", places())
    board.row("CPUs", cpus())
    board.row("Owners", owners())
    board.row("PCIe and network", pcie())
    return board
