"""Why is this GPU slow or ill? One GPU, everything that is known of it, in the order in which one asks."""

from common import (
    BAD_ABOVE_ZERO,
    BLUE,
    BY_GPU,
    BY_NODE,
    GPU,
    GREEN,
    GREY,
    NEUTRAL,
    NODE,
    NONE,
    NOTHING,
    ORANGE,
    RED,
    THIS_GPU,
    TICKET_ABOVE_ZERO,
    UTILIZATION_BAND,
    YELLOW,
    YES_NO,
    Board,
    Column,
    Label,
    Placed,
    Query,
    age,
    bargauge,
    by_gpu,
    gpu_variable,
    mapped,
    node_variables,
    or_none,
    series_link,
    share,
    shares,
    stat,
    state_timeline,
    steps,
    table,
    timeseries,
)

LINE = "{{instance}} GPU {{gpu}}"
# When it was last read of what is read every second.
READ = f'gpu_exporter_sample_timestamp_seconds{{{GPU},tier="normal"}}'
# Times by reason, without those that hold nothing back.
REASON = 'reason!="gpu_idle"'
# Parts of the GPU that tell how full it was, and thresholds below the one at which it switches off.
UNITS = 'unit=~"sm|sm_occupancy|tensor|dram|fp64|fp32|fp16"'
LIMITS = 'threshold=~"slowdown|memory_max|gpu_max"'
ON_OFF = [mapped({0: ("no", GREEN), 1: ("yes", RED)})]


def this(expr: str) -> str:
    """For a table of one GPU: the value, or "not told"."""
    return or_none(by_gpu(expr), THIS_GPU)


def who() -> list[Placed]:
    labels = (
        "model, uuid, serial, pci_address, board_part_number, vbios_version, inforom_version, gsp_firmware_version, "
        "module_id"
    )
    place = "numa_node, root_port, pcie_switch"
    return [
        table(
            "Which board it is",
            "The identity of the GPU, as a vendor asks for it, and where it sits in the host.",
            [
                Label("instance", width=130),
                Label("gpu", width=50),
                *(Label(name, width=325 if name == "uuid" else 130) for name in labels.split(", ")),
                *(Label(name) for name in place.split(", ")),
                Label("driver_version"),
            ],
            [
                Column("identity", f"max by ({BY_GPU}, {labels}) (gpu_info{{{GPU}}})", hidden=True),
                Column("place", f"max by ({BY_GPU}, {place}) (gpu_host_topology_info{{{GPU}}})", hidden=True),
                Column(
                    "driver",
                    f"""max by ({BY_GPU}, driver_version) ({THIS_GPU}
                        * on ({BY_NODE}) group_left (driver_version) gpu_driver_info{{{NODE}}})""",
                    hidden=True,
                ),
            ],
            no_value="no such GPU in this time",
            height=4,
        ),
        stat(
            "Can be relied on",
            "Whether anything is known that keeps the GPU from being relied on; why is in the band below.",
            Query(f"min(gpu_healthy{{{GPU}}})", LINE),
            unit="short",
            thresholds=steps((None, RED), (1, GREEN)),
            mappings=[YES_NO],
            no_value="not told",
            width=3,
        ),
        stat(
            "Answers",
            "Whether the driver answers about this GPU in time.",
            Query(f"min(gpu_up{{{GPU}}})", LINE),
            unit="short",
            thresholds=steps((None, RED), (1, GREEN)),
            mappings=[YES_NO],
            no_value="driver away",
            width=3,
        ),
        stat(
            "Driver asks for",
            "What the driver wants to be done to bring the GPU back.",
            Query(
                f"""max by (recovery_action) (gpu_recovery_action{{{GPU},recovery_action!="none"}} == 1
                    or (gpu_recovery_action{{{GPU},recovery_action="none"}} == 1) * 0)""",
                "{{recovery_action}}",
            ),
            unit="short",
            thresholds=BAD_ABOVE_ZERO,
            no_value="not told",
            text_mode="name",
            width=3,
        ),
        stat(
            "Age of the readings",
            "How old the values read every second are, by the node's own clock. Old ones are not what the GPU does "
            "now.",
            Query(f"max({age(READ)})", LINE),
            unit="s",
            thresholds=steps((None, GREEN), (30, ORANGE), (120, RED)),
            no_value="not read",
            decimals=0,
            width=3,
        ),
        stat(
            "Left until slowdown",
            "Degrees until the GPU slows down for heat, by its own threshold.",
            Query(f"min(gpu_temperature_margin_celsius{{{GPU}}})", LINE),
            unit="celsius",
            thresholds=steps((None, RED), (1, ORANGE), (6, GREEN)),
            no_value="not measured",
            width=3,
        ),
        stat(
            "Memory used",
            "Share of the device memory that is in use.",
            Query(f"max(gpu_memory_used_bytes{{{GPU}}} / gpu_memory_total_bytes{{{GPU}}})", LINE),
            unit="percentunit",
            thresholds=steps((None, BLUE), (0.85, ORANGE)),
            no_value="not measured",
            decimals=0,
            width=3,
        ),
        stat(
            "Last at work",
            "How long ago the GPU was last seen with a process or at work, the canary left out.",
            Query(f"min({age(f'gpu_last_busy_timestamp_seconds{{{GPU}}}')})", LINE),
            unit="s",
            thresholds=NEUTRAL,
            no_value="not seen at work",
            decimals=0,
            width=3,
        ),
        stat(
            "Resets seen",
            "Resets of the GPU in the time shown.",
            Query(f"sum(increase(gpu_resets_total{{{GPU}}}[$__range]))", LINE),
            unit="short",
            thresholds=steps((None, BLUE), (1, YELLOW)),
            no_value="not told",
            decimals=0,
            width=3,
        ),
    ]


def ill() -> list[Placed]:
    return [
        state_timeline(
            "Why it cannot be relied on",
            "Each reason over time. Several can hold at once. A gap is a time in which the driver was away.",
            Query(f"max by (reason) (gpu_unhealthy_reason{{{GPU}}})", "{{reason}}"),
            thresholds=BAD_ABOVE_ZERO,
            mappings=ON_OFF,
            no_value="driver away",
            width=12,
            height=9,
        ),
        table(
            "Xids",
            "Codes counted since the exporter started, with the first thing to do. The newest one's time is in the "
            "events of the exporter (/api/v1/events). No code at all: an older exporter, or none is counted.",
            [Label("xid"), Label("severity"), Label("action")],
            [
                Column(
                    "times",
                    f"sum by (xid, severity, action) (gpu_xid_errors_total{{{GPU}}}) > 0 "
                    f'or sum by (xid, severity, action) (gpu_xid_errors_total{{{GPU},severity="page"}})',
                    thresholds=BAD_ABOVE_ZERO,
                    paint=True,
                )
            ],
            no_value="Xids are not counted",
            width=12,
            height=9,
            sort_by="times",
        ),
        timeseries(
            "Memory errors since the driver was loaded",
            "Uncorrected errors kill the work that meets them. Corrected ones do no harm; many of them tell of a "
            "row that will be replaced.",
            Query(
                f'max by (instance, gpu, error) (gpu_ecc_total_errors{{{GPU},counter="volatile"}})',
                f"{LINE} {{{{error}}}}",
            ),
            unit="short",
            thresholds=BAD_ABOVE_ZERO,
            no_value="ECC off or not supported",
            minimum=0,
            decimals=0,
            width=8,
        ),
        bargauge(
            "Banks by spare rows left",
            "Banks of device memory by how many spare rows they have left. A bank without any cannot be repaired.",
            Query(f"sum by (spare_rows) (gpu_row_remap_banks{{{GPU}}})", "{{spare_rows}}"),
            unit="short",
            thresholds=NEUTRAL,
            no_value="not supported",
            width=6,
        ),
        table(
            "Repairs",
            "What waits for a reset, and what has failed. Failed: a candidate for return.",
            [Label("instance", width=130), Label("gpu", width=50)],
            [
                Column("ECC on", this(f"gpu_ecc_mode_enabled{{{GPU}}}"), mappings=[YES_NO]),
                Column("rows remapped", this(f"sum by ({BY_GPU}) (gpu_remapped_rows{{{GPU}}})")),
                Column(
                    "remap waits",
                    this(f"gpu_row_remap_pending{{{GPU}}} or gpu_retired_pages_pending{{{GPU}}}"),
                    thresholds=TICKET_ABOVE_ZERO,
                    paint=True,
                ),
                Column("remap failed", this(f"gpu_row_remap_failure{{{GPU}}}"), thresholds=BAD_ABOVE_ZERO, paint=True),
                Column(
                    "SRAM over limit",
                    this(f"gpu_ecc_sram_threshold_exceeded{{{GPU}}}"),
                    thresholds=BAD_ABOVE_ZERO,
                    paint=True,
                ),
            ],
            no_value="no such GPU in this time",
            width=10,
        ),
    ]


def slow() -> list[Placed]:
    return [
        shares(
            "Utilization",
            "Share of time in which a kernel ran, the canary's included: not how full the GPU was. The band from 60 "
            "to 80 % is good use; neither side of it is a fault. On a GPU in MIG mode there is none: see the MIG "
            "board.",
            [
                Query(f"max by (instance, gpu) (gpu_utilization_ratio{{{GPU}}})", f"{LINE} kernels"),
                Query(f"max by (instance, gpu) (gpu_memory_utilization_ratio{{{GPU}}})", f"{LINE} memory interface"),
            ],
            thresholds=UTILIZATION_BAND,
            draw_thresholds="area",
            no_value="not measured (MIG, or driver away)",
            links=[series_link("Whose work", "gpu-node-drilldown", "instance", "gpu")],
        ),
        shares(
            "How full it was",
            "Activity of the parts of the GPU (GPM). Kernels that run all the time with few multiprocessors active "
            "are too small; the tensor pipes tell of matrix work.",
            Query(
                f"max by (instance, gpu, unit) (gpu_gpm_active_ratio{{{GPU},{UNITS}}})",
                f"{LINE} {{{{unit}}}}",
            ),
            thresholds=NOTHING,
            no_value="not supported (GPM: Hopper and later)",
        ),
        state_timeline(
            "What held the clocks down",
            "The driver's reasons over time. Idleness is left out. Heat and power brake are the hardware's own "
            "protection; a power cap is often as intended.",
            Query(f"max by (reason) (gpu_clock_event_active{{{GPU},{REASON}}})", "{{reason}}"),
            thresholds=BAD_ABOVE_ZERO,
            mappings=[mapped({0: ("no", NONE), 1: ("yes", ORANGE)})],
            no_value="not told",
            width=12,
        ),
        shares(
            "Share of time held down",
            "How much of the time each reason held the clocks down, by the driver's own counters: short ones too.",
            Query(
                f"""max by (instance, gpu, reason) (
                    rate(gpu_clock_event_seconds_total{{{GPU},{REASON}}}[$__rate_interval]))""",
                f"{LINE} {{{{reason}}}}",
            ),
            thresholds=steps((None, NONE), (0.1, YELLOW)),
            no_value="not told",
            stacked=False,
        ),
        timeseries(
            "Power and its limit",
            "Power as the driver averages it, its samples (50 a second) added up, and the limit in force.",
            [
                Query(f"max by (instance, gpu) (gpu_power_watts{{{GPU}}})", f"{LINE} power"),
                Query(
                    f"max by (instance, gpu) (rate(gpu_energy_sampled_joules_total{{{GPU}}}[$__rate_interval]))",
                    f"{LINE} by its samples added up",
                ),
                Query(f'max by (instance, gpu) (gpu_power_limit_watts{{{GPU},limit="enforced"}})', f"{LINE} limit"),
            ],
            unit="watt",
            thresholds=NOTHING,
            no_value="not measured",
            minimum=0,
            dashed=["/limit$/"],
        ),
        timeseries(
            "Temperatures and their limits",
            "The core and the memory against this device's own thresholds.",
            [
                Query(f"max by (instance, gpu, sensor) (gpu_temperature_celsius{{{GPU}}})", f"{LINE} {{{{sensor}}}}"),
                Query(
                    f"max by (instance, gpu, threshold) (gpu_temperature_threshold_celsius{{{GPU},{LIMITS}}})",
                    f"{LINE} {{{{threshold}}}} limit",
                ),
            ],
            unit="celsius",
            thresholds=NOTHING,
            no_value="not measured",
            dashed=["/limit$/"],
        ),
        timeseries(
            "Clocks and their most",
            "The clocks now and the highest that they can be. Low clocks without a reason above are worth a ticket.",
            [
                Query(
                    f'max by (instance, gpu, domain) (gpu_clock_hertz{{{GPU},domain=~"sm|memory"}})',
                    f"{LINE} {{{{domain}}}}",
                ),
                Query(
                    f'max by (instance, gpu, domain) (gpu_clock_max_hertz{{{GPU},domain=~"sm|memory"}})',
                    f"{LINE} {{{{domain}}}} limit",
                ),
            ],
            unit="hertz",
            thresholds=NOTHING,
            no_value="not measured",
            minimum=0,
            dashed=["/limit$/"],
        ),
        timeseries(
            "Memory",
            "Device memory in use and in all. A ticket is opened when it stays above 85 %.",
            [
                Query(f"max by (instance, gpu) (gpu_memory_used_bytes{{{GPU}}})", f"{LINE} used"),
                Query(f"max by (instance, gpu) (gpu_memory_total_bytes{{{GPU}}})", f"{LINE} limit"),
                Query(f"max by (instance, gpu) (gpu_memory_total_bytes{{{GPU}}}) * 0.85", f"{LINE} 85 % limit"),
            ],
            unit="bytes",
            thresholds=NOTHING,
            no_value="not measured",
            minimum=0,
            dashed=["/limit$/"],
        ),
    ]


def links() -> list[Placed]:
    return [
        table(
            "Links now",
            "The PCIe link as it is and as it could be, NVLinks that are up, and the host port's own limit. A GPU at "
            "rest lowers the generation to save power; the number of lanes never falls by itself.",
            [Label("instance"), Label("gpu")],
            [
                Column("generation", this(f"gpu_pcie_link_generation{{{GPU}}}")),
                Column("of generation", this(f"gpu_pcie_link_max_generation{{{GPU}}}")),
                Column("lanes", this(f"gpu_pcie_link_width_lanes{{{GPU}}}")),
                Column("of lanes", this(f"gpu_pcie_link_max_width_lanes{{{GPU}}}")),
                Column("port's lanes", this(f"gpu_host_pcie_port_max_width_lanes{{{GPU}}}")),
                Column("NVLinks up", this(f"gpu_nvlink_links_up{{{GPU}}}")),
                Column("of NVLinks", this(f"gpu_nvlink_links{{{GPU}}}")),
                Column(
                    "fabric joined",
                    this(f'gpu_fabric_state{{{GPU},state="completed"}}'),
                    mappings=[mapped({1: ("yes", GREEN), 0: ("no", GREY)})],
                ),
            ],
            no_value="no such GPU in this time",
            height=4,
        ),
        timeseries(
            "PCIe traffic",
            "Bytes a second over PCIe, seen from the GPU (GPM).",
            Query(
                f"max by (instance, gpu, direction) (rate(gpu_gpm_pcie_bytes_total{{{GPU}}}[$__rate_interval]))",
                f"{LINE} {{{{direction}}}}",
            ),
            unit="Bps",
            thresholds=NOTHING,
            no_value="not supported (GPM: Hopper and later)",
            minimum=0,
            width=8,
        ),
        timeseries(
            "NVLink traffic",
            "Bytes a second over all NVLinks, seen from the GPU.",
            Query(
                f"max by (instance, gpu, direction) (rate(gpu_nvlink_bytes_total{{{GPU}}}[$__rate_interval]))",
                f"{LINE} {{{{direction}}}}",
            ),
            unit="Bps",
            thresholds=NOTHING,
            no_value="no NVLink",
            minimum=0,
            width=8,
        ),
        timeseries(
            "Errors on the links",
            "PCIe replays and errors, NVLink errors, each a second. A healthy link has next to none.",
            [
                Query(
                    f"max by (instance, gpu) (rate(gpu_pcie_replays_total{{{GPU}}}[$__rate_interval]))",
                    f"{LINE} PCIe replays",
                ),
                Query(
                    f"max by (instance, gpu, error) (rate(gpu_pcie_errors_total{{{GPU}}}[$__rate_interval]))",
                    f"{LINE} PCIe {{{{error}}}}",
                ),
                Query(
                    f"max by (instance, gpu, error) (rate(gpu_nvlink_errors_total{{{GPU}}}[$__rate_interval]))",
                    f"{LINE} NVLink {{{{error}}}}",
                ),
            ],
            unit="cps",
            thresholds=steps((None, NONE), (1, ORANGE)),
            no_value="not counted",
            minimum=0,
            width=8,
        ),
    ]


def whose() -> list[Placed]:
    owner = f"{BY_GPU}, gpu_instance, owner"
    parts = "kind, namespace, pod, container, slurm_job, user"
    anchor = f"max by ({owner}) (gpu_owner_info{{{GPU}}})"
    return [
        table(
            "Owners",
            "Whose work is on the GPU, or was in the last minutes.",
            [
                Label("instance", width=120),
                Label("gpu", width=50),
                Label("gpu_instance", width=105),
                Label("owner", width=220),
                *(Label(name.strip()) for name in parts.split(",")),
            ],
            [
                Column("told", f"max by ({owner}, {parts}) (gpu_owner_info{{{GPU}}})", hidden=True),
                Column(
                    "processes",
                    or_none(f"max by ({owner}) (gpu_owner_processes{{{GPU}}})", anchor, owner),
                ),
                Column(
                    "memory",
                    or_none(f"max by ({owner}) (gpu_owner_memory_used_bytes{{{GPU}}})", anchor, owner),
                    unit="bytes",
                ),
                share(
                    "busy",
                    or_none(
                        f"max by ({owner}) (rate(gpu_owner_busy_seconds_total{{{GPU}}}[$__rate_interval]))",
                        anchor,
                        owner,
                    ),
                ),
            ],
            no_value="nobody has it",
            width=14,
        ),
        state_timeline(
            "What holds its work back",
            "The cause that is proven for each owner; docs/BOTTLENECKS.md has the formulas. None: nothing is known to "
            "be slow.",
            Query(
                f'max by (owner, cause) (gpu_bottleneck{{{GPU},cause!="none"}} == 1) '
                f'or max by (owner, cause) (gpu_bottleneck{{{GPU},cause="none"}})',
                "{{owner}}: {{cause}}",
            ),
            thresholds=NEUTRAL,
            mappings=[mapped({0: ("no", NONE), 1: ("yes", BLUE)})],
            no_value="nobody's work is measured",
            width=10,
        ),
        table(
            "Processes",
            "Processes on the GPU, if the exporter is configured to tell of each one (processes.per_process).",
            [
                Label("instance", width=120),
                Label("gpu", width=50),
                Label("pid", width=90),
                *(Label(name) for name in ("process_name", "process_type", "gpu_instance")),
            ],
            [
                Column(
                    "told",
                    f"max by ({BY_GPU}, pid, process_name, process_type, gpu_instance) (gpu_process_info{{{GPU}}})",
                    hidden=True,
                ),
                Column(
                    "memory",
                    or_none(
                        f"max by ({BY_GPU}, pid) (gpu_process_memory_used_bytes{{{GPU}}})",
                        f"max by ({BY_GPU}, pid) (gpu_process_info{{{GPU}}})",
                        f"{BY_GPU}, pid",
                    ),
                    unit="bytes",
                ),
            ],
            no_value="no process is told of one by one",
            width=12,
            sort_by="memory",
        ),
        timeseries(
            "Canary: rate against what it was",
            "Rates of the checks in their newest valid runs, compared with this GPU's own earlier ones. Below 0.9 the "
            "hardware is slower than it was.",
            Query(
                f'max by (instance, gpu, check) (gpu_canary_rate_ratio{{{GPU},against="baseline"}})',
                f"{LINE} {{{{check}}}}",
            ),
            unit="percentunit",
            thresholds=steps((None, NONE), (0.9, GREEN)),
            draw_thresholds="line",
            no_value="no canary has a baseline here yet",
            links=[series_link("Canary", "gpu-node-canary", "instance", "gpu")],
            width=12,
        ),
    ]


def board() -> Board:
    board = Board(
        "gpu-node-gpu",
        "GPU nodes: one GPU",
        "Why is this GPU slow or ill?",
        variables=[*node_variables(one_node=True), gpu_variable(one_gpu=True)],
        start="now-3h",
        one_gpu=True,
    )
    board.row("What it is and how it is now", who())
    board.row("Is it ill?", ill())
    board.row("Is it slow?", slow())
    board.row("Links", links())
    board.row("Whose work, and is the hardware at its rate?", whose())
    return board
