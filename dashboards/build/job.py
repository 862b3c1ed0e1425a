"""All GPUs of a pod, a workload or a Slurm job: what it has, what it uses, what slows it down, who shares them."""

from kit import *
from owners import (
    CAUSE_TEXTS,
    CAUSES,
    CLASSES,
    OWNER_TERMS,
    by_workload,
    cause_number,
    explore_tables,
    workload_variables,
)

NO_OWNER = "no owner of this choice has a GPU"
NO_REPORT = "alerts/owners.rules.yml is not loaded, or the report has no data yet"
NO_STEP = "no step found: inference and irregular work have none"
NO_CLASSES = "GPU time is not counted by class, or no owner of this choice has a GPU"
LONGER = steps(NONE, 0.05, YELLOW, 0.2, ORANGE)
BAD = steps(NONE, 1, RED)
TICKET = steps(NONE, 1, ORANGE)
FAR = steps(NONE, 0.5, ORANGE)


def rate(metric: str) -> str:
    return f"rate({metric}{{$CHOSEN}}[$__rate_interval])"


def of_workloads(expr: str) -> str:
    return or_none(f"sum by (workload) ({by_workload(expr)})", "$WORKLOADS", "workload")


def of_nodes(expr: str) -> str:
    """The expression by node, of the nodes chosen; NaN where it is absent."""
    return or_none(f"({expr}) and on ($BY_NODE) $NODES", "$NODES", "$BY_NODE")


def of_gpus(expr: str) -> str:
    return or_none(f"({expr}) and on ($BY_GPU) $GPU_ROWS", "$GPU_ROWS", "$BY_GPU")


def of_owners(expr: str) -> str:
    return or_none(f"({expr}) and on ($BY_OWNER) $OWNERS", "$OWNERS", "$BY_OWNER")


def of_ranks(expr: str) -> str:
    return or_none(f"({expr}) and on ($BY_OWNER) $RANKS", "$RANKS", "$BY_OWNER")


def rank(value: str) -> str:
    """A value of each rank: of an owner on one of its GPUs."""
    return of_ranks(f"max by ($BY_OWNER) ({value})")


def class_share(by: str, of: str) -> str:
    """Of the measured GPU time the share in one class, 0 where all of it is in others."""
    time = f"sum by ({by}) (rate(gpu_owner_gpu_seconds_total{{$CHOSEN,%s}}[$__rate_interval]))"
    measured = time % 'class!="unknown"'
    return f"""({or_zero_by(time % f'class="{of}"', measured, by)}) / ({measured} > 0)"""


def rate_on_gpus(metric: str) -> str:
    # A rate is drawn on to the ends of its range, so that it can be a little above what a GPU has.
    return f"clamp_max(sum by ($BY_OWNER) (rate({metric}{{$GPU}}[$__rate_interval])), 1)"


def of_the_job(expr: str) -> str:
    """Of the GPUs on which the chosen owners work, the six highest."""
    return most(f"{by_gpu(expr)} and on ($BY_GPU) $GPUS", "$BY_GPU", count=6)


def alerts(by: str, anchor: str, severities: str) -> str:
    """Alerts that fire now; 0 only while rules are evaluated."""
    return f"""count by ({by}) (ALERTS{{$NODE,alertname=~"Gpu.+",alertstate="firing",severity=~"{severities}"}})
        or on ({by}) {anchor} * on () group_left () (0 * count(ALERTS{{alertname="GpuWatchdog"}}))"""


def week(series: str) -> str:
    """Hours in seven days of series that count once in five minutes."""
    return f"sum by ($PAYER) (sum_over_time({series}[7d])) / 12"


dashboard = Dashboard(
    "gpu-node-job",
    "GPU / Job",
    "What do the GPUs of this pod, workload or Slurm job do, and who shares them?",
    variables=[
        *node_variables()[:3],
        *workload_variables(),
        node_variables()[3],
        gpu_variable(),
        *explore_variables(),
    ],
    terms=OWNER_TERMS
    | {
        # What the variables choose, of owners' series.
        "CHOSEN": '$GPU,$OF_WORKLOAD,owner=~"$owner"',
        "INFO": "gpu_owner_info{$CHOSEN}",
        # The rows of each table: inventory, not measurements.
        "WORKLOADS": f"max by (workload) ({by_workload('$INFO')})",
        # Of many nodes, GPUs and owners those with faults, and so many that a job's are there.
        "NODES": """topk(50, sum by ($BY_NODE) (1 - gpu_healthy{$GPU}) and on ($BY_NODE) $INFO
            or on ($BY_NODE) max by ($BY_NODE) ($INFO) * 0)""",
        "GPU_ROWS": """topk(100, max by ($BY_GPU) (1 - gpu_healthy{$GPU}) and on ($BY_GPU) $INFO
            or on ($BY_GPU) max by ($BY_GPU) ($INFO) * 0)""",
        "GPUS": "max by ($BY_GPU) ($INFO)",
        # All owners on those GPUs, so that neighbours are seen too.
        "OWNERS": "topk(100, max by ($BY_OWNER) (gpu_owner_processes{$GPU} > 0) and on ($BY_GPU) $INFO)",
        "NAMES": "namespace, slurm_job, user",
        # The chosen owners on each of their GPUs, missing and slow ranks first.
        "RANKS": """topk(100, (max by ($BY_OWNER) (gpu_owner_missing_rank{$CHOSEN}) + 1
            or max by ($BY_OWNER) (gpu_owner_slow_rank_ratio{$CHOSEN}) or max by ($BY_OWNER) ($INFO) * 0)
            and on ($BY_OWNER) gpu_owner_processes{$CHOSEN} > 0)""",
        "BUSY": f"sum by (workload) ({by_workload(rate('gpu_owner_busy_seconds_total'))})",
        "HAD": f"sum by (workload) ({by_workload(rate('gpu_owner_allocated_seconds_total'))})",
        "HELD_DOWN": 'reason!="gpu_idle"',
        "LINE": "{{instance}} GPU {{gpu}}",
        "OF_OWNER": "{{instance}} GPU {{gpu}} {{gpu_instance}} {{owner}}",
        "FLEET": 'cluster=~"$cluster",job=~"$job"',
        "PAYER": "cluster, namespace, workload, slurm_account, user",
        "REPORTED": week("workload:gpu_owner_reported:places{$FLEET}"),
    },
)

dashboard.row("Now", no_value=NO_OWNER).panels(
    stat("GPUs unusable", steps=BAD_ABOVE_ZERO)
    .help("GPUs of this choice that cannot be used.")
    .query(or_zero("count($GPUS and on ($BY_GPU) (gpu_healthy{$GPU} == 0))", "gpu_healthy{$GPU} and on ($BY_GPU) $GPUS"),
        "GPUs"),
    stat("GPUs allocated", decimals=1)
    .help("GPUs that this choice has, two halves as one.")
    .query(f"sum({rate('gpu_owner_allocated_seconds_total')})", "GPUs"),
    stat("Busy share", unit="percentunit", decimals=0, steps=steps(BLUE, 0.6, GREEN, 0.8, BLUE))
    .help("Share of the allocated GPU time with work. Between 60 and 80 % a GPU is well used; neither side is a fault.")
    .query(f"sum({rate('gpu_owner_busy_seconds_total')}) / (sum({rate('gpu_owner_allocated_seconds_total')}) > 0)",
        "busy"),
    stat("Memory", unit="bytes")
    .help("Device memory that this choice uses.")
    .query("sum(gpu_owner_memory_used_bytes{$CHOSEN})", "memory"),
    stat("Power", unit="watt", decimals=0)
    .help("Share of the boards' power that is this choice's.")
    .query(f"sum({rate('gpu_owner_energy_joules_total')})", "power"),
    stat("OOM kills", steps=BAD_ABOVE_ZERO, decimals=0)
    .help("Processes of these owners that the host's OOM killer ended in the time shown.")
    .query("""sum(increase(gpu_owner_host_oom_kills_total{$NODE,$OF_WORKLOAD,owner=~"$owner"}[$__range]))""", "kills"),
)

dashboard.row("Heartbeat", no_value=NO_STEP).panels(
    timeseries("Step time", unit="s", minimum=0)
    .help("""Period of the work, as the power of its GPUs repeats, of the ten owners with the longest. Inference, interactive and
        irregular work has none. The table below says whether it is a step or only the smallest unit that repeats.""")
    .query(most("max by (cluster, owner) (gpu_owner_step_seconds{$CHOSEN})", "cluster, owner"), "{{owner}}"),
    timeseries("Step longer than in the best hour", unit="percentunit", soft_maximum=0.1, steps=LONGER, draw_steps="line")
    .help("""By how much the step is longer now than in the owner's own best hour on that GPU, of the ten owners with the most.""")
    .query(most("max by (cluster, owner) (gpu_owner_step_slowdown_ratio{$CHOSEN}) - 1", "cluster, owner"), "{{owner}}"),
    timeseries("GPUs by class of time", minimum=0, stacked=True, no_value=NO_CLASSES, colors=CLASSES)
    .help("""What the GPUs of this choice spend their time with, each second in one class. Computing is goodput. Communicating
        moves data between GPUs or waits for it. Unknown: not measured, as most of it before Hopper.""")
    .query(f"sum by (class) ({rate('gpu_owner_gpu_seconds_total')}) > 0", "{{class}}"),
    shares("Computing by GPU", no_value=NO_CLASSES, links=[GPU_FROM_SERIES])
    .help("""Share of the measured time in which each GPU computes, of the six GPUs of this choice that compute least. A slow rank
        waits least, and those that wait for it compute less.""")
    .query(most(class_share("$BY_GPU", "computing"), "$BY_GPU", lowest=True, count=6), "$LINE"),
    table("Ranks side by side", labels_last=["owner"], sort_by="Rank", no_value=NO_OWNER, width=24, height=9)
    .help("""The chosen owners on each of their GPUs, a hundred, missing and slow ranks first. Slow by: how much less the slow rank
        waits than the others, of the step. Computing, communicating and waiting for the host are shares of the measured
        time. Confidence: how well the power repeats. NCCL's need owners.nccl_ras; collectives are those that the
        rank launched: compare only ranks of the same communicators.""")
    .gpus(160)
    .label("gpu_instance", links=[row_link("MIG", "gpu-node-mig", "instance", "gpu")], width=115)
    .column("Rank", rank("gpu_owner_missing_rank{$CHOSEN}"),
        mappings=[mapped({1: ("missing", RED), 0: ("waits", ORANGE)}), special("not wedged", NONE)], paint=True, width=95)
    .column("Last progress", rank("gpu_owner_last_progress_timestamp_seconds{$CHOSEN} * 1000"), unit="dateTimeFromNow",
        mappings=[special("goes on", NONE)], width=115)
    .share("Slow by", rank("gpu_owner_slow_rank_ratio{$CHOSEN}"), mappings=[special("not slow", NONE)],
        steps=steps(YELLOW, 0.05, ORANGE), width=80)
    .column("Step", rank("gpu_owner_step_seconds{$CHOSEN}"), unit="s", mappings=[special("none found")], width=95)
    .column("Period is", rank("""gpu_owner_step_confidence_ratio{$CHOSEN,period="step"} * 0 + 1
            or gpu_owner_step_confidence_ratio{$CHOSEN,period="smallest_unit"} * 0"""),
        mappings=[mapped({1: ("a step", BLUE), 0: ("smallest unit", GREY)}), special("none found")], width=110)
    .share("Confidence", rank("gpu_owner_step_confidence_ratio{$CHOSEN}"), mappings=[special("none found")], width=95)
    .share("Jitter", rank("gpu_owner_step_jitter_ratio{$CHOSEN}"), mappings=[special("none found")], width=90)
    .column("Longer than best", rank("gpu_owner_step_slowdown_ratio{$CHOSEN} - 1"), unit="percentunit", decimals=1,
        steps=LONGER, mappings=[special("not known")], width=130)
    .column("Steps a minute", rank(f"{rate('gpu_owner_steps_total')} * 60"), decimals=1, mappings=[special("none found")],
        width=115)
    .share("Computing", of_ranks(class_share("$BY_OWNER", "computing")), width=95)
    .share("Communicating", of_ranks(class_share("$BY_OWNER", "communicating")), width=120)
    .share("Waiting for host", of_ranks(class_share("$BY_OWNER", "waiting_for_host")), steps=steps(NONE, 0.2, ORANGE), width=125)
    .column("NCCL rank", rank("gpu_owner_nccl_rank{$CHOSEN}"), decimals=0, mappings=[special("not asked", NONE)], width=90)
    .column("Collectives", rank("gpu_owner_nccl_collectives_total{$CHOSEN}"), unit="locale", decimals=0,
        mappings=[special("not asked", NONE)], width=110)
    .label("owner", width=290),
)

dashboard.row("By workload").panels(
    table("Workloads", sort_by="Unusable GPUs", no_value=NO_OWNER)
    .help("""Pods by namespace and name, Slurm jobs, other owners. GPUs allocated and busy are in whole GPUs: two halves
        are one.""")
    .label("workload", links=[row_link("This workload alone", "gpu-node-job", "workload")], width=330)
    .column("Unusable GPUs",
        or_none(f"""sum by (workload) (max by (workload, $BY_GPU) ({by_workload('$INFO')})
            * on ($BY_GPU) group_left () max by ($BY_GPU) (1 - gpu_healthy{{$GPU}}))""", "$WORKLOADS", "workload"),
        steps=BAD)
    .column("Limited by the host",
        or_none(f"""sum by (workload) ({by_workload('gpu_bottleneck{$CHOSEN,cause=~"$HOST_CAUSES"}')})
            or on (workload) 0 * sum by (workload) ({by_workload('gpu_bottleneck{$CHOSEN}')})""", "$WORKLOADS", "workload"),
        steps=TICKET)
    .column("GPUs allocated", of_workloads(rate("gpu_owner_allocated_seconds_total")), decimals=2)
    .column("GPUs busy", of_workloads(rate("gpu_owner_busy_seconds_total")), decimals=2)
    .column("Memory", of_workloads("gpu_owner_memory_used_bytes{$CHOSEN}"), unit="bytes")
    .column("Power", of_workloads(rate("gpu_owner_energy_joules_total")), unit="watt", decimals=0)
    .column("Nodes",
        or_none(f"count by (workload) (max by (workload, $BY_NODE) ({by_workload('$INFO')}))", "$WORKLOADS",
            "workload")),
)

dashboard.row("Nodes and GPUs").panels(
    table("Nodes", sort_by="Pages", no_value=NO_OWNER, width=24, height=6)
    .help("The nodes of this choice, fifty with the most unusable GPUs, and whether the node slows the work down.")
    .label("instance",
        links=[row_link("GPUs on this node", "gpu-node-job", "instance"),
            row_link("Host", "gpu-node-host", "instance"),
            row_link("On call, this node", "gpu-node-oncall", "instance")])
    .column("Pages", of_nodes(alerts("$BY_NODE", "$NODES", "page")), steps=BAD)
    .column("Tickets", of_nodes(alerts("$BY_NODE", "$NODES", "ticket")), steps=TICKET)
    .column("Unusable GPUs", of_nodes("sum by ($BY_NODE) (1 - gpu_healthy{$NODE})"), steps=BAD)
    .column("GPUs of this choice", "count by ($BY_NODE) (max by ($BY_GPU) ($INFO))")
    .column("GPUs of the node", of_nodes("max by ($BY_NODE) (gpu_devices_expected{$NODE})"))
    .column("GPUs busy", of_nodes(f"sum by ($BY_NODE) ({rate('gpu_owner_busy_seconds_total')})"), decimals=2)
    .share("CPU busy",
        of_nodes("""sum by ($BY_NODE) (rate(gpu_host_cpu_seconds_total{$NODE,mode=~"busy|steal"}[$__rate_interval]))
            / sum by ($BY_NODE) (rate(gpu_host_cpu_seconds_total{$NODE}[$__rate_interval]))"""),
        steps=steps(NONE, 0.9, ORANGE))
    .share("Remote memory", of_nodes("max by ($BY_NODE) (gpu_owner_memory_remote_ratio{$CHOSEN})"), steps=FAR)
    .yes_no("Topology matches", of_nodes("min by ($BY_NODE) (gpu_host_topology_matches{$NODE})")),
    table("GPUs", sort_by="Healthy", descending=False, no_value=NO_OWNER)
    .help("""The GPUs of this choice, a hundred, unusable ones first. Owners counts every owner with a process on the GPU,
        also those not chosen.""")
    .label("instance", links=[row_link("Host", "gpu-node-host", "instance")])
    .label("gpu",
        links=[row_link("Owners on this GPU", "gpu-node-job", "instance", "gpu"), GPU_FROM_ROW,
            row_link("MIG", "gpu-node-mig", "instance", "gpu"),
            row_link("Canary", "gpu-node-canary", "instance", "gpu")], width=60)
    .label("model")
    .labels_from(of_gpus("max by ($BY_GPU, model) (gpu_info{$GPU})"))
    .yes_no("Healthy", of_gpus("min by ($BY_GPU) (gpu_healthy{$GPU})"))
    .yes_no("Answers", of_gpus("min by ($BY_GPU) (gpu_up{$GPU})"))
    .share("Busy", of_gpus("sum by ($BY_GPU) (rate(gpu_owner_busy_seconds_total{$GPU}[$__rate_interval]))"))
    .share("Memory", of_gpus("max by ($BY_GPU) (gpu_memory_used_bytes{$GPU} / gpu_memory_total_bytes{$GPU})"),
        steps=steps(NONE, 0.85, ORANGE))
    .column("Thermal margin", of_gpus("min by ($BY_GPU) (gpu_temperature_margin_celsius{$GPU})"), unit="celsius",
        steps=steps(ORANGE, 3, NONE))
    .column("Last Xid", of_gpus("max by ($BY_GPU) (gpu_xid_last_event_timestamp_seconds{$GPU}) * 1000"),
        unit="dateTimeFromNow", mappings=[special("none seen")])
    .column("Owners", of_gpus("count by ($BY_GPU) (gpu_owner_processes{$GPU} > 0)")),
    table("Owners", labels_last=["namespace", "slurm_job", "user"], sort_by="Chosen", no_value=NO_OWNER,
        height=9)
    .help("""A hundred owners on these GPUs, neighbours of the chosen ones too: what each has of the GPU, or of an instance
        in MIG mode, and the cause that limits the work.""")
    .gpus(160)
    .label("gpu_instance", links=[row_link("MIG", "gpu-node-mig", "instance", "gpu")], width=115)
    .label("owner", width=290)
    .label("namespace", links=[row_link("Service", "gpu-node-service", "namespace")], width=95)
    .labels("slurm_job", "user", width=85)
    .labels_from(of_owners("max by ($BY_OWNER, $NAMES) (gpu_owner_info{$GPU})"))
    .column("Chosen", or_zero_by("max by ($BY_OWNER) ($INFO) and on ($BY_OWNER) $OWNERS", "$OWNERS", "$BY_OWNER"),
        mappings=[mapped({1: ("yes", BLUE), 0: ("neighbour", GREY)}), ABSENT], width=85)
    .column("Limited by", of_owners(cause_number("$GPU")), mappings=[CAUSE_TEXTS, ABSENT], width=110, paint=True)
    .column("Processes", of_owners("sum by ($BY_OWNER) (gpu_owner_processes{$GPU})"), width=90)
    .column("Memory", of_owners("sum by ($BY_OWNER) (gpu_owner_memory_used_bytes{$GPU})"), unit="bytes", width=90)
    .share("Allocated", of_owners(rate_on_gpus("gpu_owner_allocated_seconds_total")), width=85)
    .share("Busy", of_owners(rate_on_gpus("gpu_owner_busy_seconds_total")), width=75)
    .share("Remote memory", of_owners("max by ($BY_OWNER) (gpu_owner_memory_remote_ratio{$GPU})"), steps=FAR, width=135),
)

dashboard.row("Over time", no_value=NO_OWNER).panels(
    timeseries("Memory by owner", unit="bytes", minimum=0, stacked=True)
    .help("Device memory of the ten owners of this choice with the most, all their GPUs together.")
    .query(most("sum by (cluster, owner) (gpu_owner_memory_used_bytes{$CHOSEN})", "cluster, owner"), "{{owner}}"),
    timeseries("GPUs allocated and busy", minimum=0, dashed=[".* allocated$"])
    .help("In whole GPUs, of the five workloads with the most. Allocated (dashed) and not busy is time without work.")
    .query(most("$BUSY", "workload", ranked="$HAD", count=5), "{{workload}} busy")
    .query(most("$HAD", "workload", count=5), "{{workload}} allocated"),
    shares("GPU utilization", steps=UTILIZATION_BAND, draw_steps="area", links=[GPU_FROM_SERIES],
        no_value="not measured (MIG, or no owner of this choice has a GPU)", width=8)
    .help("Share of time with a kernel, of the six busiest GPUs of this choice.")
    .query(of_the_job("gpu_utilization_ratio{$GPU}"), "$LINE"),
    timeseries("GPU power", unit="watt", minimum=0, links=[GPU_FROM_SERIES], width=8)
    .help("Power of the six GPUs of this choice that draw most. One that draws less than its peers waits for them.")
    .query(of_the_job("gpu_power_watts{$GPU}"), "$LINE"),
    shares("Clocks held down", steps=steps(NONE, 0.1, YELLOW), width=8,
        no_value="not measured, or no owner of this choice has a GPU")
    .help("Share of the time of its GPUs that each reason held clocks down. Idle time is left out.")
    .query("""avg by (reason) (max by ($BY_GPU, reason) (rate(gpu_clock_event_seconds_total{$GPU,$HELD_DOWN}[$__rate_interval]))
        and on ($BY_GPU) $GPUS)""", "{{reason}}"),
    timeseries("GPUs and instances by limiting cause", minimum=0, stacked=True, width=12,
        colors={cause: color for cause, (_, _, color) in CAUSES.items()})
    .help("""GPUs, or instances in MIG mode, by the first proven cause (docs/BOTTLENECKS.md). None: no cause is proven,
        which does not prove speed.""")
    .query("sum by (cause) (gpu_bottleneck{$CHOSEN}) > 0", "{{cause}}"),
    timeseries("OOM kills by owner", minimum=0, soft_maximum=1, decimals=0, steps=steps(NONE, 1, RED), width=12)
    .help("Processes that the host's OOM killer ended, in the time between two points, by owner: the ten most.")
    .query(most("""sum by (cluster, owner) (
        increase(gpu_owner_host_oom_kills_total{$NODE,$OF_WORKLOAD,owner=~"$owner"}[$__rate_interval]))""",
        "cluster, owner"), "{{owner}}"),
)

dashboard.row("Owner report of the last seven days", no_value=NO_REPORT).panels(
    table("Advice by workload", sort_by="hours with advice", width=13, height=9,
        labels_last=["slurm_account", "user"])
    .help("""GPU-hours (or hours of MIG instances) of seven days to which an advice applies: docs/owner-report.md has the
        advices and what to do. The twenty largest.""")
    .labels("namespace", "workload", "advice", "slurm_account", "user")
    .column("hours with advice", """topk(20, sum by ($PAYER, advice) (sum_over_time(
        workload:gpu_advice:places{$FLEET}[7d])) / 12)""", unit="locale", decimals=1),
    table("Hours and ends at full memory", sort_by="hours", width=11, height=9, labels_last=["slurm_account", "user"])
    .help("""Hours of GPUs or MIG instances of seven days that the report covers, and ends with the GPU's memory full:
        suspected out-of-memory errors of CUDA.""")
    .labels("namespace", "workload", "slurm_account", "user")
    .column("hours", "topk(20, $REPORTED)", unit="locale", decimals=1)
    .column("ends", or_zero_by("""sum by ($PAYER) (sum_over_time(
            workload:gpu_owner_ended_at_full_memory:increase5m{$FLEET}[7d])) and on ($PAYER) topk(20, $REPORTED)""",
            "topk(20, $REPORTED)", "$PAYER"), decimals=0),
    table("MIG right-sizing", no_value="no owner has data of 24 h", width=12, height=7)
    .help("""The smallest MIG profile that fits the owner's 95th percentiles of memory and active multiprocessors, for
        owners with data of 24 h.""")
    .gpus(160)
    .label("gpu_instance", width=115)
    .label("owner")
    .label("mig_profile", width=110)
    .labels_from("max by ($BY_OWNER, mig_profile) (gpu_owner_mig_profile_hint_info{$CHOSEN})"),
    timeseries("Start-up time by phase", unit="s", minimum=0, no_value="no process started", width=12, height=7)
    .help("""Time from a process's start to its first context on a GPU and to its first work there, 95th percentile of all
        processes of the chosen nodes. In this time an allocated GPU does nothing.""")
    .query("""histogram_quantile(0.95,
        sum by (phase, le) (rate(gpu_owner_start_seconds_bucket{$NODE}[$__rate_interval])))""", "{{phase}}"),
)

dashboard.row("Logs and traces").panels(
    *explore_tables('gpu_owner_info{$CHOSEN,pod!=""}')
)
