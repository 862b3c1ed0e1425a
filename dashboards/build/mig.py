"""Who has which slice of a GPU, and what is free, stranded or drifted?"""

from common import (
    BAD_ABOVE_ZERO,
    BLUE,
    BY_GPU,
    GPU,
    GREEN,
    NEUTRAL,
    NONE,
    NOTHING,
    ORANGE,
    TICKET_ABOVE_ZERO,
    UTILIZATION_BAND,
    YELLOW,
    Board,
    Column,
    Label,
    Placed,
    Query,
    by_gpu,
    gpu_rows,
    gpu_variable,
    mapped,
    most,
    node_variables,
    or_none,
    or_zero,
    row_link,
    share,
    shares,
    stat,
    steps,
    table,
    timeseries,
)

BY_INSTANCE = f"{BY_GPU}, gpu_instance"
# Each GPU instance there is, those without a compute instance included.
INSTANCES = f"max by ({BY_INSTANCE}) (gpu_mig_placement_slices{{{GPU}}})"
LINE = "{{instance}} GPU {{gpu}} instance {{gpu_instance}} {{profile}}"
NO_MIG = "no GPU is in MIG mode"
MIG_GPUS = f"max by ({BY_GPU}) (gpu_mig_mode_enabled{{{GPU}}} == 1)"


def here(expr: str) -> str:
    """A column of the table of instances."""
    return or_none(f"max by ({BY_INSTANCE}) ({expr})", INSTANCES, BY_INSTANCE)


def of_gpu(expr: str) -> str:
    """A column of the table of GPUs in MIG mode."""
    return or_none(f"{by_gpu(expr)} and on ({BY_GPU}) {MIG_GPUS}", MIG_GPUS)


def fleet() -> list[Placed]:
    def slices(expr: str) -> Query:
        return Query(or_zero(f"sum({expr})", f"gpu_mig_slices{{{GPU}}}"), "slices")

    return [
        stat(
            "GPUs in MIG mode",
            "GPUs that are in MIG mode, of those chosen above.",
            Query(or_zero(f"count(gpu_mig_mode_enabled{{{GPU}}} == 1)", f"gpu_mig_mode_enabled{{{GPU}}}"), "GPUs"),
            unit="short",
            thresholds=NEUTRAL,
            no_value="MIG not supported",
        ),
        stat(
            "Slices held",
            "Compute slices that GPU instances hold.",
            slices(f"gpu_mig_slices_used{{{GPU}}}"),
            unit="short",
            thresholds=NEUTRAL,
            no_value=NO_MIG,
        ),
        stat(
            "Slices free",
            "Compute slices that further instances could have.",
            slices(f"gpu_mig_slices{{{GPU}}} - gpu_mig_slices_used{{{GPU}}} - gpu_mig_slices_unplaceable{{{GPU}}}"),
            unit="short",
            thresholds=NEUTRAL,
            no_value=NO_MIG,
        ),
        stat(
            "Slices stranded",
            "Compute slices that are free in no shape that any instance fits: lost until the layout is changed.",
            slices(f"gpu_mig_slices_unplaceable{{{GPU}}}"),
            unit="short",
            thresholds=steps((None, GREEN), (1, YELLOW)),
            no_value=NO_MIG,
        ),
        stat(
            "GPUs off their layout",
            "GPUs that are not divided as declared. Only where a layout is declared.",
            Query(or_zero(f"count(gpu_mig_layout_matches{{{GPU}}} == 0)", f"gpu_mig_layout_matches{{{GPU}}}"), "GPUs"),
            unit="short",
            thresholds=TICKET_ABOVE_ZERO,
            no_value="no layout declared",
        ),
        stat(
            "Waiting for a reset",
            "GPUs whose MIG mode will change with the next reset.",
            Query(
                or_zero(
                    f"count(gpu_mig_mode_enabled{{{GPU}}} != gpu_mig_mode_pending_enabled{{{GPU}}})",
                    f"gpu_mig_mode_enabled{{{GPU}}}",
                ),
                "GPUs",
            ),
            unit="short",
            thresholds=TICKET_ABOVE_ZERO,
            no_value="MIG not supported",
        ),
    ]


def gpus() -> list[Placed]:
    yes_no = mapped({1: ("yes", GREEN), 0: ("no", ORANGE)})
    return [
        table(
            "Slices and layout of each GPU",
            "Each GPU with its slices, whether it is divided as declared, and what it draws: power and temperature "
            "are of the whole board and are told once.",
            gpu_rows(180),
            [
                Column("slices", of_gpu(f"gpu_mig_slices{{{GPU}}}")),
                Column("held", of_gpu(f"gpu_mig_slices_used{{{GPU}}}")),
                Column(
                    "stranded",
                    of_gpu(f"gpu_mig_slices_unplaceable{{{GPU}}}"),
                    thresholds=steps((None, NONE), (1, YELLOW)),
                    paint=True,
                ),
                Column(
                    "instances",
                    f"(count by ({BY_GPU}) ({INSTANCES}) or on ({BY_GPU}) {MIG_GPUS} * 0)",
                ),
                Column(
                    "as declared",
                    of_gpu(f"gpu_mig_layout_matches{{{GPU}}}"),
                    mappings=[yes_no],
                    thresholds=steps((None, ORANGE), (1, GREEN)),
                    paint=True,
                ),
                Column("power", of_gpu(f"gpu_power_watts{{{GPU}}}"), unit="watt", decimals=0),
                Column("temperature", of_gpu(f'gpu_temperature_celsius{{{GPU},sensor="gpu"}}'), unit="celsius"),
            ],
            no_value=NO_MIG,
            width=14,
            height=9,
            sort_by="stranded",
        ),
        table(
            "Layout: declared and there",
            "For each profile how many MIG devices the layout wants and how many there are. Only where a layout is "
            "declared.",
            [
                *gpu_rows(180),
                Label("mig_profile", width=120),
            ],
            [
                Column("declared", f"max by ({BY_GPU}, mig_profile) (gpu_mig_layout_declared{{{GPU}}})"),
                Column(
                    "there",
                    f"""count by ({BY_GPU}, mig_profile) (gpu_mig_info{{{GPU}}}
                        and on ({BY_GPU}) gpu_mig_layout_matches{{{GPU}}})
                        or on ({BY_GPU}, mig_profile)
                        max by ({BY_GPU}, mig_profile) (gpu_mig_layout_declared{{{GPU}}}) * 0""",
                ),
            ],
            no_value="no layout declared",
            width=10,
            height=9,
        ),
        timeseries(
            "Slices over time",
            "Compute slices held, free and stranded, of the GPUs chosen above.",
            [
                Query(f"sum(gpu_mig_slices_used{{{GPU}}})", "held"),
                Query(
                    f"""sum(gpu_mig_slices{{{GPU}}} - gpu_mig_slices_used{{{GPU}}}
                        - gpu_mig_slices_unplaceable{{{GPU}}})""",
                    "free",
                ),
                Query(f"sum(gpu_mig_slices_unplaceable{{{GPU}}})", "stranded"),
            ],
            unit="short",
            thresholds=NOTHING,
            no_value=NO_MIG,
            minimum=0,
            decimals=0,
            stacked=True,
            colors={"held": BLUE, "free": GREEN, "stranded": YELLOW},
            height=10,
        ),
        table(
            "What still fits",
            "How many further instances of each profile could be made on each GPU now, and on an empty one.",
            [
                *gpu_rows(180),
                Label("mig_profile", width=120),
            ],
            [
                Column(
                    "fit now",
                    f"max by ({BY_GPU}, mig_profile) (gpu_mig_profile_free{{{GPU}}})",
                    thresholds=steps((None, NONE), (1, GREEN)),
                    paint=True,
                ),
                Column("on an empty one", f"max by ({BY_GPU}, mig_profile) (gpu_mig_profile_capacity{{{GPU}}})"),
            ],
            no_value=NO_MIG,
            width=12,
            height=10,
            sort_by="fit now",
        ),
    ]


def instances() -> list[Placed]:
    owner = f"{BY_INSTANCE}, owner"
    active = f'max by ({BY_INSTANCE}, profile) (gpu_mig_gpm_active_ratio{{{GPU},unit="sm"}})'
    return [
        table(
            "Instances",
            "Every GPU instance, with its place, its memory, how busy it is and who works there. One without compute "
            "instances serves nobody and tells of no memory.",
            [
                *gpu_rows(170),
                Label("gpu_instance", width=110),
                Label("profile", width=90),
            ],
            [
                Column("slices", f"max by ({BY_INSTANCE}, profile) (gpu_mig_placement_slices{{{GPU}}})", width=70),
                Column("from slice", here(f"gpu_mig_placement_start{{{GPU}}}"), width=90),
                Column(
                    "compute instances",
                    f"""count by ({BY_INSTANCE}) (max by ({BY_INSTANCE}, compute_instance)
                        (gpu_mig_info{{{GPU}}})) or on ({BY_INSTANCE}) {INSTANCES} * 0""",
                    thresholds=steps((None, ORANGE), (1, NONE)),
                    paint=True,
                    width=140,
                ),
                Column("memory", here(f"gpu_mig_memory_total_bytes{{{GPU}}}"), unit="bytes", width=90),
                share(
                    "used",
                    here(f"gpu_mig_memory_used_bytes{{{GPU}}} / gpu_mig_memory_total_bytes{{{GPU}}}"),
                    thresholds=steps((None, NONE), (0.85, ORANGE)),
                    paint=True,
                    width=70,
                ),
                share("SM active", here(f'gpu_mig_gpm_active_ratio{{{GPU},unit="sm"}}'), width=90),
                Column(
                    "processes",
                    here(f"sum by ({BY_INSTANCE}) (gpu_mig_compute_processes{{{GPU}}})"),
                    width=90,
                ),
                Column(
                    "owners",
                    f"""count by ({BY_INSTANCE}) (max by ({owner}) (gpu_owner_processes{{{GPU},gpu_instance!=""}} > 0))
                        or on ({BY_INSTANCE}) {INSTANCES} * 0""",
                    thresholds=steps((None, NONE), (2, YELLOW)),
                    paint=True,
                    width=80,
                ),
            ],
            no_value="no GPU instance",
            height=10,
        ),
        table(
            "Who has which instance",
            "Owners of the work on each instance.",
            [
                *gpu_rows(170),
                Label("gpu_instance", width=110),
                Label(
                    "owner",
                    links=[row_link("This GPU's owners", "gpu-node-drilldown", "instance", "gpu")],
                    width=260,
                ),
                Label("namespace"),
                Label("pod"),
                Label("slurm_job"),
                Label("user"),
            ],
            [
                Column(
                    "told",
                    f"""max by ({owner}, namespace, pod, slurm_job, user)
                        (gpu_owner_info{{{GPU},gpu_instance!=""}})""",
                    hidden=True,
                ),
                Column(
                    "memory",
                    or_none(
                        f'max by ({owner}) (gpu_owner_memory_used_bytes{{{GPU},gpu_instance!=""}})',
                        f'max by ({owner}) (gpu_owner_info{{{GPU},gpu_instance!=""}})',
                        owner,
                    ),
                    unit="bytes",
                ),
            ],
            no_value="nobody works on an instance",
            width=12,
        ),
        table(
            "MIG devices",
            "What a job is given, by its UUID.",
            [
                Label("instance", width=150),
                Label("gpu", width=60),
                Label("gpu_instance", width=110),
                Label("compute_instance", width=130),
                Label("mig_profile", width=110),
                Label("mig_uuid"),
            ],
            [
                Column(
                    "told",
                    f"max by ({BY_INSTANCE}, compute_instance, mig_profile, mig_uuid) (gpu_mig_info{{{GPU}}})",
                    hidden=True,
                )
            ],
            no_value="no MIG device",
            width=12,
        ),
        shares(
            "Activity of instances",
            "Share of the instance's multiprocessors at work (GPM, once a minute), the ten busiest and the average of "
            "all (dashed). The band from 60 to 80 % is good use; neither side of it is a fault.",
            [
                Query(most(active, BY_INSTANCE), LINE),
                Query(f"avg({active})", "all, on average"),
            ],
            dashed=["^all, on average$"],
            thresholds=UTILIZATION_BAND,
            draw_thresholds="area",
            no_value="not measured (GPM: Hopper and later)",
        ),
        shares(
            "Memory of instances",
            "Share of each instance's own memory in use, of the ten fullest. A ticket is opened when it stays above "
            "85 %.",
            Query(
                most(
                    f"""max by ({BY_INSTANCE}, profile) (gpu_mig_memory_used_bytes{{{GPU}}}
                        / gpu_mig_memory_total_bytes{{{GPU}}})""",
                    BY_INSTANCE,
                ),
                LINE,
            ),
            thresholds=steps((None, NONE), (0.85, ORANGE)),
            draw_thresholds="line",
            no_value="no instance tells of its memory",
        ),
        table(
            "Canary on instances",
            "How many checks each instance's newest run passed and did not, and how long ago it was. Not run: the "
            "canary waits for the instance to be idle.",
            [
                Label("instance", width=170),
                Label("gpu", width=60),
                Label("gpu_instance", width=110),
            ],
            [
                Column(
                    "ok",
                    or_none(
                        f'count by ({BY_INSTANCE}) (gpu_mig_canary_verdict{{{GPU},verdict="ok"}} == 1)',
                        INSTANCES,
                        BY_INSTANCE,
                    ),
                ),
                Column(
                    "not ok",
                    f"""count by ({BY_INSTANCE}) (gpu_mig_canary_verdict{{{GPU},verdict!="ok"}} == 1)
                        or on ({BY_INSTANCE}) max by ({BY_INSTANCE}) (gpu_mig_canary_verdict{{{GPU}}}) * 0
                        or on ({BY_INSTANCE}) {INSTANCES} * NaN""",
                    thresholds=BAD_ABOVE_ZERO,
                    paint=True,
                ),
                Column(
                    "newest run",
                    here(f"gpu_mig_canary_last_run_timestamp_seconds{{{GPU}}} * 1000"),
                    unit="dateTimeFromNow",
                    links=[row_link("Canary", "gpu-node-canary", "instance", "gpu")],
                ),
            ],
            no_value="no GPU instance",
            width=24,
            sort_by="not ok",
        ),
    ]


def board() -> Board:
    board = Board(
        "gpu-node-mig",
        "GPU nodes: MIG",
        "Who has which slice, and what is free, stranded or drifted?",
        variables=[*node_variables(), gpu_variable()],
    )
    board.row("In all", fleet())
    board.row("By GPU", gpus())
    board.row("By instance", instances())
    return board
