"""Which owner has which slice of a GPU, and what is stranded, drifted or free?"""

from kit import *

NO_MIG = "no GPU is in MIG mode"
NEVER = special("not run")
DECLARED = mapped({1: ("yes", GREEN), 0: ("no", ORANGE)})


def here(expr: str) -> str:
    """A column of the table of instances."""
    return or_none(f"max by ($BY_INSTANCE) ({expr})", "$INSTANCES", "$BY_INSTANCE")


def of_gpu(expr: str) -> str:
    """A column of the table of GPUs in MIG mode."""
    return or_none(f"{by_gpu(expr)} and on ($BY_GPU) $MIG_GPUS", "$MIG_GPUS")


def slices(expr: str) -> str:
    return or_zero(f"sum({expr})", "gpu_mig_slices{$GPU}")


dashboard = Dashboard(
    "gpu-node-mig",
    "GPU / MIG",
    "Which owner has which slice, and what is stranded, drifted or free?",
    variables=[*node_variables(), gpu_variable()],
    terms={
        "BY_INSTANCE": "$BY_GPU, gpu_instance",
        # Each GPU instance there is, those without a compute instance included.
        "INSTANCES": "max by ($BY_INSTANCE) (gpu_mig_placement_slices{$GPU})",
        "LINE": "{{instance}} GPU {{gpu}} {{gpu_instance}} {{profile}}",
        "MIG_GPUS": "max by ($BY_GPU) (gpu_mig_mode_enabled{$GPU} == 1)",
        "OWNER": "$BY_INSTANCE, owner",
        "DECLARED": "max by ($BY_GPU, mig_profile) (gpu_mig_layout_declared{$GPU})",
        "PRESENT": """count by ($BY_GPU, mig_profile) (gpu_mig_info{$GPU}
            and on ($BY_GPU) gpu_mig_layout_matches{$GPU})""",
        "ACTIVE": activity("$BY_INSTANCE, profile", '$GPU,unit="sm"', of_instances=True),
    },
)

dashboard.row("Now", no_value=NO_MIG).panels(
    stat("Compute slices stranded", steps=steps(GREEN, 1, YELLOW))
    .help("Free compute slices that no further instance can use: lost until the layout is changed.")
    .query(slices("gpu_mig_slices_unplaceable{$GPU}"), "slices"),
    stat("Layouts not as declared", steps=TICKET_ABOVE_ZERO, no_value="no layout declared")
    .help("GPUs whose MIG layout differs from the declared one. Only where a layout is declared.")
    .query(or_zero("count(gpu_mig_layout_matches{$GPU} == 0)", "gpu_mig_layout_matches{$GPU}"), "GPUs"),
    stat("Mode change pending", steps=TICKET_ABOVE_ZERO, no_value="MIG not supported")
    .help("GPUs whose MIG mode will change with the next reset.")
    .query(or_zero("count(gpu_mig_mode_enabled{$GPU} != gpu_mig_mode_pending_enabled{$GPU})",
            "gpu_mig_mode_enabled{$GPU}"), "GPUs"),
    stat("GPUs in MIG mode", no_value="MIG not supported")
    .help("GPUs that are in MIG mode, of those chosen above.")
    .query(or_zero("count(gpu_mig_mode_enabled{$GPU} == 1)", "gpu_mig_mode_enabled{$GPU}"), "GPUs"),
    stat("Compute slices used")
    .help("Compute slices in GPU instances.")
    .query(slices("gpu_mig_slices_used{$GPU}"), "slices"),
    stat("Compute slices free")
    .help("Compute slices that further instances could use.")
    .query(slices("gpu_mig_slices{$GPU} - gpu_mig_slices_used{$GPU} - gpu_mig_slices_unplaceable{$GPU}"), "slices"),
)

dashboard.row("By GPU", no_value=NO_MIG).panels(
    table("Slices and layout by GPU", width=14, height=9, sort_by="stranded")
    .help("""Compute slices of each GPU in MIG mode, whether its layout is the declared one, and power and temperature of the
        board.""")
    .gpus(145)
    .column("stranded", of_gpu("gpu_mig_slices_unplaceable{$GPU}"), steps=steps(NONE, 1, YELLOW), width=85)
    .column("used", of_gpu("gpu_mig_slices_used{$GPU}"), width=65)
    .column("compute slices", of_gpu("gpu_mig_slices{$GPU}"), width=125)
    .column("instances", "(count by ($BY_GPU) ($INSTANCES) or on ($BY_GPU) $MIG_GPUS * 0)", width=90)
    .column("as declared", of_gpu("gpu_mig_layout_matches{$GPU}"), mappings=[DECLARED, ABSENT], paint=True, width=105)
    .column("power", of_gpu("gpu_power_watts{$GPU}"), unit="watt", decimals=0)
    .column("temperature", of_gpu('gpu_temperature_celsius{$GPU,sensor="gpu"}'), unit="celsius", width=105),
    table("MIG devices against the layout", no_value="no layout declared", width=10, height=9, sort_by="off by")
    .help("""MIG devices by profile: declared by the layout, and present. Only where a layout is declared.""")
    .gpus(160)
    .label("mig_profile", width=115)
    .column("declared", or_zero_by("$DECLARED", "$PRESENT", "$BY_GPU, mig_profile"))
    .column("present", or_zero_by("$PRESENT", "$DECLARED", "$BY_GPU, mig_profile"))
    .column("off by", """abs(($DECLARED or on ($BY_GPU, mig_profile) $PRESENT * 0) - on ($BY_GPU, mig_profile)
        ($PRESENT or on ($BY_GPU, mig_profile) $DECLARED * 0))""", steps=steps(NONE, 1, ORANGE)),
    timeseries("Compute slices over time", steps=NOTHING, minimum=0, decimals=0, stacked=True,
        colors={"used": BLUE, "free": GREEN, "stranded": YELLOW}, height=10)
    .help("Compute slices used, free and stranded, of the GPUs chosen above.")
    .query("sum(gpu_mig_slices_used{$GPU})", "used")
    .query("sum(gpu_mig_slices{$GPU} - gpu_mig_slices_used{$GPU} - gpu_mig_slices_unplaceable{$GPU})", "free")
    .query("sum(gpu_mig_slices_unplaceable{$GPU})", "stranded"),
    table("Free instances by profile", width=12, height=10, sort_by="now")
    .help("Further instances of each profile that can be created on each GPU now, and on an empty GPU.")
    .gpus(180)
    .label("mig_profile", width=120)
    .column("now", "max by ($BY_GPU, mig_profile) (gpu_mig_profile_free{$GPU})", steps=steps(NONE, 1, GREEN))
    .column("on an empty GPU", "max by ($BY_GPU, mig_profile) (gpu_mig_profile_capacity{$GPU})"),
)

dashboard.row("By instance").panels(
    table("Instances", no_value="no GPU instance", height=10)
    .help("""Every GPU instance: place in memory slices, compute instances, memory, activity, processes and owners. One
        without compute instances cannot be used and reports no memory.""")
    .gpus(None)
    .label("gpu_instance", width=110)
    .label("profile", width=90)
    .column("memory slices", "max by ($BY_INSTANCE, profile) (gpu_mig_placement_slices{$GPU})", width=125)
    .column("first memory slice", here("gpu_mig_placement_start{$GPU}"), width=150)
    .column("compute instances", """count by ($BY_INSTANCE) (max by ($BY_INSTANCE,
        compute_instance) (gpu_mig_info{$GPU})) or on ($BY_INSTANCE) $INSTANCES * 0""", steps=steps(ORANGE, 1, NONE),
        width=155)
    .column("memory", here("gpu_mig_memory_total_bytes{$GPU}"), unit="bytes", width=90)
    .share("used", here("gpu_mig_memory_used_bytes{$GPU} / gpu_mig_memory_total_bytes{$GPU}"),
        steps=steps(NONE, 0.85, ORANGE), width=70)
    .share("SM active", here("$ACTIVE"), width=90)
    .column("processes", here("sum by ($BY_INSTANCE) (gpu_mig_compute_processes{$GPU})"), width=90)
    .column("owners", """count by ($BY_INSTANCE) (max by ($OWNER) (gpu_owner_processes{$GPU,gpu_instance!=""} > 0))
        or on ($BY_INSTANCE) $INSTANCES * 0""", steps=steps(NONE, 2, YELLOW), width=80),
    table("Owners of instances", no_value="no owner works on an instance", width=12, sort_by="memory")
    .help("Owners of the work on each instance, with the memory that they use.")
    .gpus(140)
    .label("gpu_instance", width=115)
    .label("owner", links=[row_link("Job", "gpu-node-job", "instance", "gpu", "owner")])
    .column("memory",
        or_none('max by ($OWNER) (gpu_owner_memory_used_bytes{$GPU,gpu_instance!=""})',
            'max by ($OWNER) (gpu_owner_info{$GPU,gpu_instance!=""})', "$OWNER"), unit="bytes"),
    table("MIG right-sizing", no_value="no owner has data of 24 h", width=12)
    .help("""The smallest MIG profile that fits an owner's 95th percentiles of memory and active
        multiprocessors, beside the instance that it has (none: the whole GPU). After 24 h of data; docs/OWNERS.md has the
        formula.""")
    .gpus(140)
    .label("gpu_instance", width=115)
    .label("profile", width=95, mappings=[special("whole GPU")])
    .label("owner", links=[row_link("Job", "gpu-node-job", "instance", "gpu", "owner")])
    .label("mig_profile", width=105)
    .labels_from("""max by ($OWNER, mig_profile) (gpu_owner_mig_profile_hint_info{$GPU})
        * on ($BY_INSTANCE) group_left (profile) max by ($BY_INSTANCE, profile) (gpu_mig_placement_slices{$GPU} * 0 + 1)
        or on ($OWNER) max by ($OWNER, mig_profile) (gpu_owner_mig_profile_hint_info{$GPU})"""),
    table("MIG devices", no_value="no MIG device", width=24, height=7)
    .help("Compute instances by the UUID that jobs are given.")
    .label("instance", width=150)
    .label("gpu", width=60)
    .label("gpu_instance", width=110)
    .label("compute_instance", width=145)
    .label("mig_profile", width=110)
    .label("mig_uuid")
    .labels_from("max by ($BY_INSTANCE, compute_instance, mig_profile, mig_uuid) (gpu_mig_info{$GPU})"),
    shares("Activity of instances", dashed=["^all, on average$"], steps=UTILIZATION_BAND, draw_steps="area",
        no_value="not measured (GPM: Hopper and later)", height=10)
    .help("""Share of the instance's multiprocessors at work (GPM, once a minute), the ten busiest and the average of
        all (dashed). The band from 60 to 80 % is good use; neither side of it is a fault.""")
    .query(most("$ACTIVE", "$BY_INSTANCE"), "$LINE")
    .query("avg($ACTIVE)", "all, on average"),
    shares("Memory of instances", steps=steps(NONE, 0.85, ORANGE), draw_steps="line",
        no_value="no instance reports its memory", height=10)
    .help("""Share of each instance's own memory in use, of the ten fullest. The line is at 85 %.""")
    .query(most("max by ($BY_INSTANCE, profile) (gpu_mig_memory_used_bytes{$GPU} / gpu_mig_memory_total_bytes{$GPU})",
            "$BY_INSTANCE"), "$LINE"),
    table("Canary on instances", no_value="no GPU instance", width=24, sort_by="not ok")
    .help("""Checks that passed and failed in each instance's newest run, and its age. Not run: the canary waits for
        the instance to be idle.""")
    .label("instance", width=170)
    .label("gpu", width=60)
    .label("gpu_instance", width=110)
    .column("ok",
        or_none('count by ($BY_INSTANCE) (gpu_mig_canary_verdict{$GPU,verdict="ok"} == 1)', "$INSTANCES",
            "$BY_INSTANCE"), mappings=[NEVER])
    .column("not ok", """count by ($BY_INSTANCE) (gpu_mig_canary_verdict{$GPU,verdict!="ok"} == 1)
        or on ($BY_INSTANCE) max by ($BY_INSTANCE) (gpu_mig_canary_verdict{$GPU}) * 0 or on ($BY_INSTANCE) $INSTANCES
        * NaN""", steps=BAD_ABOVE_ZERO, mappings=[NEVER])
    .column("newest run", here("gpu_mig_canary_last_run_timestamp_seconds{$GPU} * 1000"), unit="dateTimeFromNow",
        mappings=[NEVER], links=[row_link("Canary", "gpu-node-canary", "instance", "gpu")]),
)
