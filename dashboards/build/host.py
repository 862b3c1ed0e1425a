"""Does the host limit its GPUs? Places of GPUs, CPUs, memory and network devices, and what the CPUs count."""

import typing

from kit import *
from owners import CAUSE_TEXTS, OWNER_TERMS, cause_number

NO_COUNTERS = "not counted here: see Events on the CPUs"
NO_CPU_TIME = "not counted: cpu.enabled is off"
NO_OWNERS = "no owner has a GPU"
NO_PLACES = "not reported by the machine"
NO_GPUS = "no GPU"
FAR = steps(NONE, 0.5, ORANGE)


def counted(event: str, by: str = "$NUMA") -> str:
    """How often the event came, each second."""
    return f'sum by ({by}) (rate(gpu_host_cpu_events_total{{$NODE,event="{event}"}}[$__rate_interval]))'


def per_thousand_instructions(event: str) -> str:
    return f"1000 * {counted(event)} / ({counted('instructions')} > 0)"


def counts(title: str, **looks: typing.Any) -> Panel:
    """A graph of the CPUs' own counters; three fill a line."""
    return timeseries(title, minimum=0, no_value=NO_COUNTERS, width=8, **looks)


def cpu_share(modes: str, by: str) -> str:
    """Share of the CPUs' time in these modes."""
    of_modes = f'rate(gpu_host_cpu_seconds_total{{$NODE,mode=~"{modes}"}}[$__rate_interval])'
    return f"sum by ({by}) ({of_modes}) / sum by ({by}) (rate($CPU_SECONDS[$__rate_interval]))"


def cpu_of_owners(mode: str) -> str:
    return f'sum by ($BY_NODE, owner) (rate(gpu_owner_cpu_seconds_total{{$NODE,mode="{mode}"}}[$__rate_interval]))'


def start_up(quantile: float) -> str:
    return f"""histogram_quantile({quantile}, sum by (cluster, instance, phase, le) (
        rate(gpu_owner_start_seconds_bucket{{$NODE}}[$__rate_interval])))"""


dashboard = Dashboard(
    "gpu-node-host",
    "GPU / Host",
    "Does the host limit its GPUs?",
    variables=node_variables(one_node=True),
    terms=OWNER_TERMS
    | {
        "NUMA": "cluster, instance, numa_node",
        # One node is shown: its name is above.
        "ON_NUMA": "NUMA {{numa_node}}",
        "LINE": "GPU {{gpu}}",
        "OF_OWNER": "GPU {{gpu}} {{owner}}",
        "CPU_SECONDS": "gpu_host_cpu_seconds_total{$NODE}",
        "OWNERS": "max by ($BY_OWNER) (gpu_owner_info{$NODE}) and on ($BY_OWNER) gpu_owner_processes{$NODE} > 0",
        # Bytes a second that a link of this generation can move on each lane, one way, by its line code.
        "LANE_RATE": """((2.5e9 * 0.8 / 8) * 2 ^ ((gpu_pcie_link_generation{$NODE} <= 2) - 1) or (1e9 * 128 / 130 / 8)
            * 2 ^ (gpu_pcie_link_generation{$NODE} > 2 < 6) or (1e9 * 242 / 256 / 8)
            * 2 ^ (gpu_pcie_link_generation{$NODE} >= 6))""",
        "NEAR": "numa_node, package, l3, share, root_port, pcie_switch",
        "MOVED": pcie_rate("$BY_GPU, direction", "$NODE"),
    },
)

dashboard.row("Now", no_value="not reported").panels(
    stat("Topology as expected", steps=steps(ORANGE, 1, GREEN),
        mappings=[mapped({1: ("yes", GREEN), 0: ("changed", ORANGE)})])
    .help("""Whether packages, NUMA nodes, memory, GPUs and network devices are as first seen and as declared. The worst
        node counts; /api/v1/topology of the node has the differences.""")
    .query("min(gpu_host_topology_matches{$NODE})", "as expected"),
    stat("PCIe links below maximum", steps=TICKET_ABOVE_ZERO)
    .help("Links narrower, or under load slower, than both GPU and port support.")
    .query("sum(max by ($BY_GPU) (1 - gpu_host_pcie_link_matches{$NODE}))", "links"),
    stat("Limited by the host", steps=TICKET_ABOVE_ZERO, no_value="no work")
    .help("""Places of owners whose work waits for the host: CPUs, remote memory, PCIe, or copies that alternate with
        kernels. The formulas are in docs/BOTTLENECKS.md.""")
    .query(or_zero('sum(gpu_bottleneck{$NODE,cause=~"$HOST_CAUSES"})', "gpu_bottleneck{$NODE}"), "limited"),
    stat("CPU busy", unit="percentunit", decimals=0, steps=steps(GREEN, 0.9, ORANGE))
    .help("""Share of the CPUs' time spent on work, all nodes chosen together. Time that a hypervisor took counts too.
        Not reported: the exporter does not count it (cpu.enabled).""")
    .query(cpu_share("busy|steal", "job"), "{{job}}"),
    stat("Remote memory", unit="percentunit", decimals=0, steps=steps(GREEN, 0.5, ORANGE))
    .help("""The largest share of an owner's memory on the host that is not on the NUMA node near its GPU. The
        weekly owner report counts hours above three quarters.""")
    .query("max(gpu_owner_memory_remote_ratio{$NODE})", "remote"),
    stat("Network devices down", steps=TICKET_ABOVE_ZERO)
    .help("Network devices nearest to a GPU that cannot carry traffic.")
    .query("sum(1 - gpu_host_nic_up{$NODE})", "down"),
)

dashboard.row("Places").panels(
    table("GPUs, CPUs and network devices", labels_last=["nic", "path"], no_value=NO_GPUS, height=10)
    .help("""Place of each GPU: NUMA node, package, last-level cache, its fair share of CPUs, the nearest network device
        and the path to it, and whether its PCIe link runs at the maximum of both ends. On most virtual machines the
        places are empty: the hypervisor does not report them.""")
    .label("instance", links=[row_link("On call, this node", "gpu-node-oncall", "instance")], width=150)
    .label("gpu", links=[GPU_FROM_ROW], width=60)
    .label("numa_node", width=100)
    .label("package", width=80)
    .label("l3", width=60)
    .label("share", width=110)
    .labels("pcie_switch", "root_port", "nic", "path")
    .labels_from(or_none("max by ($BY_GPU, $NEAR) (gpu_host_topology_info{$NODE})"))
    .labels_from(or_none("max by ($BY_GPU, nic, path) (gpu_host_nic_info{$NODE})"))
    .yes_no("Network up",
        or_none("""max by ($BY_GPU) (gpu_host_nic_info{$NODE}
            * on ($BY_NODE, nic) group_left () gpu_host_nic_up{$NODE})"""))
    .column("Link width", or_none("max by ($BY_GPU) (gpu_pcie_link_width_lanes{$NODE})"), unit="none", width=100)
    .yes_no("Width ok", or_none('min by ($BY_GPU) (gpu_host_pcie_link_matches{$NODE,aspect="width"})'))
    .column("Generation", or_none("max by ($BY_GPU) (gpu_pcie_link_generation{$NODE})"), width=100)
    .yes_no("Generation ok", or_none('min by ($BY_GPU) (gpu_host_pcie_link_matches{$NODE,aspect="generation"})')),
    table("CPUs of MIG instances", no_value="no MIG instance", width=12, height=7)
    .help("Share of the GPU's CPUs of each compute instance, if they are divided fairly.")
    .gpus(150)
    .label("gpu_instance", links=[row_link("MIG", "gpu-node-mig", "instance", "gpu")], width=115)
    .label("compute_instance", width=145)
    .labels("profile", "numa_node", "share")
    .labels_from("""max by ($BY_GPU, gpu_instance, compute_instance, profile, numa_node,
        share) (gpu_mig_host_topology_info{$NODE})"""),
    state_timeline("Topology over time", steps=steps(ORANGE, 1, GREEN),
        mappings=[mapped({1: ("yes", GREEN), 0: ("changed", ORANGE)})], no_value=NO_PLACES, width=12, height=7)
    .help("""When the topology was as first seen, and as declared. An unplanned change is a card that moved, a BIOS setting,
        or missing memory.""")
    .query("gpu_host_topology_matches{$NODE}", "{{against}}"),
)

dashboard.row("CPUs").panels(
    shares("CPUs and GPUs busy", steps=UTILIZATION_BAND, draw_steps="area", dashed=["^CPUs$"],
        colors={"GPUs": GREEN, "CPUs": BLUE}, no_value=NO_CPU_TIME)
    .help("""Share of time in which the CPUs and the GPUs worked. Full CPUs beside waiting GPUs are an input pipeline
        that starves them. Between 60 and 80 % (green) a GPU is well used; neither
        side of it is a fault.""")
    .query(cpu_share("busy|steal", "cluster, instance"), "CPUs")
    .query("avg by (cluster, instance) (rate(gpu_busy_seconds_total{$NODE}[$__rate_interval]))", "GPUs"),
    shares("CPU time by NUMA node", steps=steps(NONE, 0.9, ORANGE), draw_steps="dashed", no_value=NO_CPU_TIME)
    .help("""CPU time of each NUMA node by mode, without idle time. Steal: time that the hypervisor gave to other
        machines.""")
    .query("""sum by ($NUMA, mode) (rate(gpu_host_cpu_seconds_total{$NODE,mode!="idle"}[$__rate_interval]))
        / on ($NUMA) group_left () sum by ($NUMA) (rate($CPU_SECONDS[$__rate_interval]))""", "$ON_NUMA {{mode}}"),
    counts("Instructions per cycle", decimals=2)
    .help("Instructions of the CPUs of each NUMA node per cycle. Below 1 they mostly wait for memory.")
    .query(f"{counted('instructions')} / ({counted('cycles')} > 0)", "$ON_NUMA"),
    counts("Cache misses per 1000 instructions", decimals=2)
    .help("""Reads that missed the last-level cache and went to memory, local or of another NUMA node.""")
    .query(per_thousand_instructions("llc_misses"), "$ON_NUMA"),
    counts("Branch misses per 1000 instructions", decimals=2)
    .help("Mispredicted branches.")
    .query(per_thousand_instructions("branch_misses"), "$ON_NUMA"),
    counts("Context switches", unit="ops")
    .help("Context switches of the CPUs of each NUMA node, each second.")
    .query(counted("context_switches"), "$ON_NUMA"),
    counts("Migrations and major faults", unit="ops")
    .help("""Threads that moved to another CPU, and pages read from a disk, each second. Work that is bound to its CPUs
        does not migrate.""")
    .query(counted("cpu_migrations"), "$ON_NUMA migrations")
    .query(counted("major_faults"), "$ON_NUMA major faults"),
    shares("Counter time", steps=steps(ORANGE, 0.5, NONE), draw_steps="dashed", no_value=NO_COUNTERS,
        width=8)
    .help("""Share of the time in which the event had a hardware counter. Below 1 the counters were multiplexed and the
        values are extrapolated: below one half, short ranges are not reliable.""")
    .query("min by (cluster, instance, event) (gpu_host_cpu_event_running_ratio{$NODE})", "{{event}}"),
    table("Events on the CPUs", no_value=NO_CPU_TIME, width=12, sort_by="state")
    .help("""State of each event on this machine: counted, no such counter (most virtual machines), no permission
        (perf_event_paranoid, capability, seccomp), or refused for another reason.""")
    .label("instance", width=170)
    .labels("event", "state")
    .labels_from("max by ($BY_NODE, event, state) (gpu_host_cpu_event_state{$NODE} == 1)"),
    timeseries("Context switches of owners", unit="ops", minimum=0,
        no_value="not counted: cpu.per_owner is off, or no owner", width=12)
    .help("Of the owners' own control groups. Counted only with cpu.per_owner, which costs CPU time.")
    .query("""sum by (cluster, instance,
        owner) (rate(gpu_owner_cpu_events_total{$NODE,event="context_switches"}[$__rate_interval]))""",
        "{{owner}}"),
)

dashboard.row("Owners").panels(
    table("Locality by owner", sort_by="Remote memory", no_value=NO_OWNERS, height=9)
    .help("""Owners of GPUs, the cause that limits the work, and the shares of CPUs and memory that are not local to the
        GPU. Empty shares: the machine does not report distances.""")
    .gpus(170)
    .label("gpu_instance", width=110)
    .label("owner", width=420,
        links=[row_link("Job", "gpu-node-job", "instance", "gpu", "owner")])
    .column("Limited by", or_none(cause_number("$NODE"), "$OWNERS", "$BY_OWNER"), mappings=[CAUSE_TEXTS, ABSENT],
        paint=True)
    .share("Remote CPUs", or_none("max by ($BY_OWNER) (gpu_owner_cpu_remote_ratio{$NODE})", "$OWNERS", "$BY_OWNER"),
        steps=FAR)
    .share("Remote memory", or_none("max by ($BY_OWNER) (gpu_owner_memory_remote_ratio{$NODE})", "$OWNERS", "$BY_OWNER"),
        steps=FAR)
    .share("GPU busy",
        or_none("sum by ($BY_OWNER) (rate(gpu_owner_busy_seconds_total{$NODE}[$__rate_interval]))", "$OWNERS",
            "$BY_OWNER"))
    .column("Runs for",
        or_none("""($OWNERS) * on (cluster, job, instance, owner) group_left ()
            max by (cluster, job, instance, owner) (time() - gpu_owner_start_timestamp_seconds{$NODE})""",
            "$OWNERS", "$BY_OWNER"), unit="s"),
    state_timeline("Limiting causes", mappings=[CAUSE_TEXTS], no_value=NO_OWNERS, height=9)
    .help("""The first proven cause for each owner and place. Orange is the host. None known does not mean fast: missing
        evidence proves nothing.""")
    .query(cause_number("$NODE"), "GPU {{gpu}} {{gpu_instance}} {{owner}}"),
    timeseries("CPUs by owner", minimum=0, no_value=NO_OWNERS, dashed=[".* kernel$"], height=10)
    .help("""CPUs that each owner keeps busy, in user mode and in the kernel (dashed), of the four with the most of each. Much
        time in the kernel: small reads, page faults, or contention.""")
    .query(most(cpu_of_owners("user"), "$BY_NODE, owner", count=4), "{{owner}} user")
    .query(most(cpu_of_owners("system"), "$BY_NODE, owner", count=4), "{{owner}} kernel"),
    shares("Remote CPUs", steps=FAR, draw_steps="dashed", links=[GPU_FROM_SERIES], height=10,
        no_value="no distances are reported, or no owner has a GPU")
    .help("""Share of the CPUs on which each owner's processes ran that are on another NUMA node than its GPU. Above one half
        it may cost GPU time: bind the work with gpu-node-exporter topology.""")
    .query("max by ($BY_OWNER) (gpu_owner_cpu_remote_ratio{$NODE})", "$OF_OWNER"),
    shares("Remote caches", links=[GPU_FROM_SERIES], height=10,
        no_value="no owner is bound to caches of the local node")
    .help("""Share of the CPUs on which each owner's processes ran that are on last-level caches outside the share of its
        GPUs or slices. Only owners that are bound to caches of the right NUMA node. A CPU manager that packs CPUs within the
        node shows 100 %: cache and cores then compete with the owner of another share.""")
    .query("max by ($BY_OWNER) (gpu_owner_cpu_remote_cache_ratio{$NODE})", "$OF_OWNER"),
    shares("Remote memory over time", steps=FAR, draw_steps="dashed", links=[GPU_FROM_SERIES], height=10,
        no_value="no distances are reported, or no owner has a GPU")
    .help("Share of each owner's host memory that is not on the NUMA node local to its GPU.")
    .query("max by ($BY_OWNER) (gpu_owner_memory_remote_ratio{$NODE})", "$OF_OWNER"),
)

dashboard.row("OOM kills and start-up").panels(
    timeseries("OOM kills by owner", minimum=0, soft_maximum=1, decimals=0, steps=steps(NONE, 1, RED), no_value=NO_OWNERS)
    .help("Processes of owners that the host's OOM killer ended, in the time between two points.")
    .query("""sum by (cluster, instance, owner) (
        increase(gpu_owner_host_oom_kills_total{$NODE}[$__rate_interval]))""", "{{owner}}"),
    timeseries("Start-up time by phase", unit="s", minimum=0, no_value="no process started")
    .help("""Time from a process's start to its first context on a GPU, and to its first work there: median and 95th
        percentile of the processes that started.""")
    .query(start_up(0.5), "{{phase}} median")
    .query(start_up(0.95), "{{phase}} 95th percentile"),
)

dashboard.row("PCIe and network").panels(
    timeseries("PCIe traffic", unit="Bps", minimum=0, links=[GPU_FROM_SERIES],
        no_value="not counted by these GPUs", height=10)
    .help("Bytes that each GPU received (rx) and sent (tx), by its own counters (Hopper and later).")
    .query("$MOVED", "$LINE {{direction}}"),
    shares("Share of the PCIe link", steps=steps(NONE, 0.8, ORANGE), draw_steps="dashed", links=[GPU_FROM_SERIES],
        no_value="not counted by these GPUs", height=10)
    .help("""Bytes of the busier direction over the capacity of the link at its present generation and width. With packet
        headers 85 % is full. An idle GPU lowers the generation of its link, so that a small rate is a large share.""")
    .query("max by ($BY_GPU) ($MOVED) / on ($BY_GPU) max by ($BY_GPU) ($LANE_RATE * gpu_pcie_link_width_lanes{$NODE})",
        "$LINE"),
    timeseries("PCIe replays", unit="ops", minimum=0, soft_maximum=1, steps=steps(NONE, 1, ORANGE), draw_steps="dashed",
        links=[GPU_FROM_SERIES], no_value="not counted", width=8)
    .help("""Packets that the link repeated because of errors, each second. More than one a second for a quarter of an hour:
        check riser, retimer and slot.""")
    .query("max by ($BY_GPU) (rate(gpu_pcie_replays_total{$NODE}[$__rate_interval]))", "$LINE"),
    timeseries("PCIe errors (AER)", minimum=0, soft_maximum=1, steps=steps(NONE, 1, ORANGE), draw_steps="dashed",
        no_value="not counted by this kernel", width=8)
    .help("""Errors of the GPUs' functions in the kernel's advanced error reporting, in the time between two points: of all
        GPUs, and of those that have any. Virtual machines do not have it.""")
    .query("sum by (cluster, instance, severity) (increase(gpu_pcie_aer_errors_total{$NODE}[$__rate_interval]))",
        "all GPUs {{severity}}")
    .query("sum by ($BY_GPU, severity) (increase(gpu_pcie_aer_errors_total{$NODE}[$__rate_interval])) > 0",
        "$LINE {{severity}}"),
    timeseries("Link rate of network devices", unit="Bps", minimum=0, no_value="no network device found", width=8)
    .help("Rate in one direction, of the network devices nearest to GPUs. A link that trained low has a lower one.")
    .query("max by (cluster, instance, nic) (gpu_host_nic_speed_bytes_per_second{$NODE})", "{{nic}}"),
    timeseries("Network traffic", unit="Bps", minimum=0, no_value="no network device found", width=8)
    .help("""Bytes that the network devices nearest to GPUs sent (tx) and received (rx), ports of a device together: RDMA,
        and what goes through the kernel.""")
    .query("sum by (cluster, instance, nic, direction) (rate(gpu_host_network_bytes_total{$NODE}[$__rate_interval]))",
        "{{nic}} {{direction}}"),
    timeseries("Network errors and flaps", minimum=0, soft_maximum=1, steps=steps(NONE, 1, ORANGE), draw_steps="dashed",
        no_value="no network device found", width=8)
    .help("""Errors of the network devices nearest to GPUs, and losses of their links, in the time between two points. The
        alert GpuNicUnreliable fires at three losses or more than 120 errors in an hour.""")
    .query("sum by (cluster, instance, nic) (increase(gpu_host_network_errors_total{$NODE}[$__rate_interval]))",
        "{{nic}} errors")
    .query("sum by (cluster, instance, nic, error) (increase(gpu_host_network_errors_total{$NODE}[$__rate_interval])) > 0",
        "{{nic}} {{error}}")
    .query("sum by (cluster, instance, nic) (increase(gpu_host_network_flaps_total{$NODE}[$__rate_interval]))",
        "{{nic}} flaps"),
    state_timeline("Driver services", steps=steps(RED, 1, GREEN), mappings=[mapped({1: ("runs", GREEN), 0: ("ended", RED)})],
        no_value="none is expected, or none was seen", width=8, height=7)
    .help("""Whether fabric manager, IMEX and persistence daemon run, where they are expected or were seen.""")
    .query("max by (cluster, instance, service) (gpu_host_service_up{$NODE})", "{{service}}"),
)
