"""What is allocated, used and free, do we need more, and where is waste? Recording rules wherever it looks back."""

import typing

from kit import *

NO_RULES = "alerts/capacity.rules.yml is not loaded, or no GPU was seen"
NO_PRICES = "not configured"
NO_MIG = "no GPU in MIG mode"
NO_OWNERS = "no owner had a GPU"
MEMORY_LINE = steps(NONE, 0.85, ORANGE)
CPU_GPU = {"GPUs": GREEN, "CPUs": BLUE}


def newest(series: str) -> str:
    return f"last_over_time({series}$RECENT)"


def payers(series: str) -> str:
    """The series by who pays; work without a known owner says so."""
    joined = f'label_join({newest(series)}, "all", "", "namespace", "slurm_account", "user")'
    return f'sum by ($BY_PAYER) (label_replace({joined}, "user", "no owner known", "all", ""))'


def by_hour(of: str, span: str = "$__range") -> str:
    """The mean at each hour of the day."""
    return f"avg_over_time(($HOUR * on () group_left () {of})[{span}:1h])"


def busiest_quarter(of: str) -> str:
    return f"({by_hour(of)} >= on () group_left () quantile(0.75, {by_hour(of)}))"


def of_mig(metric: str) -> str:
    """A column of the table of GPUs in MIG mode."""
    return or_none(f"max by ($BY_GPU) ({metric}{{$FLEET}}) and on ($BY_GPU) $MIG", "$MIG")


def money(title: str, **looks: typing.Any) -> Panel:
    return stat(title, unit="locale", decimals=2, no_value=NO_PRICES, **looks)


dashboard = Dashboard(
    "gpu-node-capacity",
    "GPU / Capacity",
    "What is allocated, used, idle and free, do we need more, and where is waste?",
    variables=[
        *node_variables()[:3],
        query_variable(
            "model",
            "Model",
            "label_values(gpu_info{$FLEET}, model)",
            description="Model of the GPUs. Owners, MIG and cost are of all models.",
            all_value=".+",
        ),
    ],
    start="now-30d",
    refresh="5m",
    terms={
        # Without a variable for nodes: what is recorded of models and payers has none.
        "FLEET": 'cluster=~"$cluster",job=~"$job"',
        "NODE": "$FLEET",
        "MODEL": '$FLEET,model=~"$model"',
        # What comes from kube-state-metrics and Slurm has a scrape job of its own.
        "CLUSTER": 'cluster=~"$cluster"',
        "BY_PAYER": "cluster, job, namespace, slurm_account, user",
        # Rules that are evaluated every five minutes are seen by a query at any moment.
        "RECENT": "[10m]",
        # The hour of the day, in UTC, as a label.
        "HOUR": 'label_replace(count_values("hour", hour()), "hour", "0$1", "hour", "([0-9])")',
        "GPUS_BUSY": """(sum(model:gpu_utilization:avg5m{$FLEET} * model:gpu:count{$FLEET})
            / sum(model:gpu:count{$FLEET}))""",
        "CPUS_BUSY": "avg(job:gpu_host_cpu_busy:ratio_rate5m{$FLEET})",
        "IDLE": f"sum({newest('model:gpu_idle_gpu_hours:sum1d{$MODEL}')})",
        "HAD": payers("payer:gpu_owner_gpu_hours:sum1d{$FLEET}"),
        "UNUSED": payers("payer:gpu_owner_idle_gpu_hours:sum1d{$FLEET}"),
        # The twenty GPUs in MIG mode with the most stranded slices.
        "MIG": """(max by ($BY_GPU) (gpu_mig_slices{$FLEET} unless on ($BY_GPU) gpu_mig_mode_enabled{$FLEET} == 0)
            and on ($BY_GPU) topk(20, max by ($BY_GPU) (gpu_mig_slices_unplaceable{$FLEET})))""",
        "OF_MODEL": "gpu:gpu_info:model{$MODEL}",
        # Given out, or with processes: without the kubelet and Slurm the processes are all that is known.
        "ALLOCATED": """(max by ($BY_GPU) (gpu_allocation_info{$FLEET} or on ($BY_GPU) gpu_owner_info{$FLEET})
            and on ($BY_GPU) $OF_MODEL)""",
        "IDLE_NOW": f"({newest('gpu:gpu_idle:bool{$MODEL}')} == 1)",
        "FREE": """(max by ($BY_GPU) (gpu_healthy{$FLEET} == 1) and on ($BY_GPU) $OF_MODEL unless on ($BY_GPU) $ALLOCATED
            unless on ($BY_NODE) ALERTS{alertname=~"GpuNodeDrained|GpuMaintenanceWindow",alertstate="firing",$FLEET})""",
        "SLICES": newest("job:gpu_mig_slices:sum{$FLEET}"),
        "MONTH": payers("payer:gpu_cost:sum30d{$FLEET}"),
        "DAY": "payer:gpu_cost:sum1d{$FLEET}",
        "DRIVER": "max by ($BY_NODE, driver_version) (gpu_driver_info{$FLEET})",
        "FIRMWARE": "model, vbios_version, gsp_firmware_version",
        "COHORTS": "sum by (cluster, job, driver_version) (driver_version:gpu:count{$FLEET})",
    },
)

dashboard.row("GPUs now", width=3, no_value="no GPU").panels(
    stat("Allocated")
    .help("""GPUs that the kubelet or Slurm has given out, or that have processes. One MIG instance that is given out
        makes its GPU allocated.""")
    .query(or_zero("count($ALLOCATED)", "gpu_info{$MODEL}"), "GPUs"),
    stat("Used")
    .help("Allocated GPUs with at least 5 % utilization in the last five minutes.")
    .query(or_zero("count($ALLOCATED unless on ($BY_GPU) $IDLE_NOW)", "gpu_info{$MODEL}"), "GPUs"),
    stat("Allocated, idle", steps=steps(GREEN, 1, YELLOW))
    .help("Allocated GPUs below 5 % utilization in the last five minutes.")
    .query(or_zero("count($ALLOCATED and on ($BY_GPU) $IDLE_NOW)", "gpu_info{$MODEL}"), "GPUs"),
    stat("Free")
    .help("Healthy GPUs that are neither allocated nor have processes, of nodes that are not drained.")
    .query(or_zero("count($FREE)", "gpu_info{$MODEL}"), "GPUs"),
    stat("Most free, one node")
    .help("Free whole GPUs of the node with the most. A pod with a larger request cannot start.")
    .query(or_zero("max(count by ($BY_NODE) ($FREE))", "gpu_info{$MODEL}"), "GPUs"),
    stat("Largest request", no_value="not scraped")
    .help("""GPUs that the largest pending pod requests (pending). More than are free on one node: the pod waits for a whole node,
        or for work to move. Needs kube-state-metrics and the optional Kubernetes rules.""")
    .query("""max(namespace_pod:kube_gpu_requested:sum{$CLUSTER}
        and on (cluster, namespace, pod) namespace_pod:kube_gpu_pod_pending:seconds{$CLUSTER})
        or on () 0 * max(kube_state_metrics:up{$CLUSTER})""", "GPUs"),
    stat("Unusable", steps=BAD_ABOVE_ZERO, links=[dashboard_link("Fleet", "gpu-node-fleet")], no_value="no rules")
    .help("""GPUs that cannot be used. Planned windows are not counted. No rules, here and below: recording.rules.yml,
        capacity.rules.yml and slo.rules.yml of alerts/ are not loaded, or no GPU was seen.""")
    .query("sum(job:gpu_unhealthy:gpus{$FLEET})", "GPUs"),
    stat("Installed", no_value="no rules")
    .help("GPUs that the nodes should have, those of nodes that are down included.")
    .query("sum(job:gpu_expected:gpus{$FLEET})", "GPUs"),
    bargauge("Nodes by free whole GPUs", decimals=0, width=8, height=8, no_value="none is free")
    .help("Nodes with free GPUs, by their number. Many nodes with few free GPUs each are fragmentation.")
    .query('count_values("free", count by ($BY_NODE) ($FREE))', "{{free}} free"),
    timeseries("GPUs by state", minimum=0, stacked=True, width=16, height=8,
        colors={"busy": GREEN, "light": BLUE, "idle": YELLOW, "unusable": RED, "unknown": "gray"}, no_value=NO_RULES)
    .help("""Busy: 60 % utilization and more. Light: 5 to 60 %. Idle: below 5 %. Unknown: utilization is not measured.
        GPUs that were not seen are missing from the sum.""")
    .query("sum by (state) (model:gpu_state:gpus{$MODEL})", "{{state}}"),
)

dashboard.row("Demand", no_value="no rules").panels(
    stat("Usable now", unit="percentunit", decimals=2, steps=steps(RED, 0.95, ORANGE, 0.99, GREEN))
    .help("Share of the installed GPUs that can be used. GPUs in a planned maintenance window are not counted as lost.")
    .query("1 - sum(job:gpu_unhealthy:gpus{$FLEET}) / sum(job:gpu_expected:gpus{$FLEET})", "usable"),
    stat("Usable over 30 days", unit="percentunit", decimals=2, steps=steps(RED, 0.99, GREEN))
    .help("Share of GPU time of 30 days in which GPUs could be used, worst scrape job. The objective is 99 % (docs/SLO.md).")
    .query(f"min({newest('job:gpu_usable:ratio_30d{$FLEET}')})", "usable"),
    stat("Utilization at a day's peak", unit="percentunit", decimals=0, steps=steps(BLUE, 0.6, GREEN, 0.8, BLUE))
    .help("""95th percentile over a day of the mean utilization, of the busiest model. Above 80 % there is little room
        for more work; below 60 % there is room. Neither is a fault.""")
    .query(f"max({newest('model:gpu_utilization:p95_1d{$MODEL}')})", "busy"),
    stat("Memory at a day's peak", unit="percentunit", decimals=0, steps=steps(GREEN, 0.85, ORANGE))
    .help("""95th percentile over a day of the share of memory used, of the fullest model. Above 85 % larger models
        do not fit.""")
    .query(f"max({newest('model:gpu_memory_used:p95_1d{$MODEL}')})", "used"),
    stat("Utilization forecast, 30 days ahead", unit="percentunit", decimals=0, steps=steps(BLUE, 0.9, ORANGE),
        no_value="too little data", width=8)
    .help("""Extrapolation of the last 14 days to a date 30 days ahead, for the busiest model. It does not know new
        projects. There is none before 3.5 days of data.""")
    .query(f"max({newest('model:gpu_utilization:forecast30d{$MODEL}')})", "in 30 days"),
    shares("Utilization by model", steps=UTILIZATION_BAND, draw_steps="area", no_value=NO_RULES)
    .help("""95th percentile over a day of the mean utilization of each model. Between 60 and 80 % (green) GPUs are well
        used; neither side is a fault.""")
    .query("model:gpu_utilization:p95_1d{$MODEL}", "{{model}}"),
    shares("Memory by model", steps=MEMORY_LINE, draw_steps="line", no_value=NO_RULES)
    .help("95th percentile over a day of the share of memory used. Above the line (85 %) larger models do not fit.")
    .query("model:gpu_memory_used:p95_1d{$MODEL}", "{{model}}"),
    stat("Pending GPU pods", steps=TICKET_ABOVE_ZERO, no_value="not scraped", width=6)
    .help("Pending pods that request GPUs. Needs kube-state-metrics and alerts/optional/kubernetes.rules.yml.")
    .query("sum(cluster:kube_gpu_pods_pending:count{$CLUSTER})", "pods"),
    stat("Longest wait of a GPU pod", unit="s", steps=steps(GREEN, 1800, ORANGE), no_value="not scraped", width=6)
    .help("Age of the oldest pending pod that requests GPUs.")
    .query("max(namespace:kube_gpu_pods_pending_wait:max{$CLUSTER}) or on () 0 * max(kube_state_metrics:up{$CLUSTER})",
        "wait"),
    stat("Pending Slurm jobs", no_value="not scraped", width=6)
    .help("""Jobs pending in all partitions, without jobs that their users hold. Needs a Slurm exporter and
        alerts/optional/slurm.rules.yml.""")
    .query("sum(partition:slurm_jobs_waiting:count{$CLUSTER})", "jobs"),
    stat("Failed GPU jobs, 24 h", unit="percentunit", decimals=1, steps=steps(GREEN, 0.01, ORANGE),
        no_value="not scraped", width=6)
    .help("""Share of the Kubernetes jobs with GPUs that ended in the last day and failed, worst namespace; 0 also where
        none ended. Needs kube-state-metrics and alerts/optional/kubernetes.rules.yml.""")
    .query(f"""max({newest('namespace:kube_gpu_runs_failed:ratio_1d{$CLUSTER}')}) or on () 0
        * max(kube_state_metrics:up{{$CLUSTER}})""", "failed"),
)

dashboard.row("Waste").panels(
    stat("Idle GPU-hours, 24 h", unit="locale", decimals=0, no_value="no rules", width=6)
    .help("GPU-hours of the last day below 5 % utilization, allocated or not.")
    .query("$IDLE", "idle"),
    stat("Idle share, 24 h", unit="percentunit", decimals=0, steps=steps(GREEN, 0.4, ORANGE), no_value="no rules",
        width=6)
    .help("Idle GPU-hours of all GPU-hours.")
    .query(f"$IDLE / sum({newest('model:gpu_hours:sum1d{$MODEL}')})", "idle"),
    stat("Unused GPU-hours, 24 h", unit="locale", decimals=0, no_value="no owners", width=6)
    .help("GPU-hours of the last day that owners had and in which the GPU did no work for them.")
    .query(f"sum({newest('payer:gpu_owner_idle_gpu_hours:sum1d{$FLEET}')})", "not used"),
    stat("Stranded compute slices", unit="percentunit", decimals=1, steps=steps(GREEN, 0.1, YELLOW), no_value="no MIG",
        width=6)
    .help("Share of the compute slices of GPUs in MIG mode that are free, but that no further instance could use.")
    .query(f"sum({newest('job:gpu_mig_slices_unplaceable:ratio{$FLEET}')} * on (cluster, job) $SLICES) / sum($SLICES)",
        "stranded"),
    shares("Compute slices free and stranded", steps=steps(NONE, 0.1, YELLOW), no_value=NO_MIG, width=10)
    .help("Shares of all compute slices of GPUs in MIG mode: free, and free but of use to no further instance (stranded).")
    .query("job:gpu_mig_slices_free:ratio{$FLEET}", "{{job}} free")
    .query("job:gpu_mig_slices_unplaceable:ratio{$FLEET}", "{{job}} stranded"),
    table("Failed GPU jobs by workload, 24 h", sort_by="failed runs", no_value="not scraped", width=14)
    .help("""Runs that failed in the last day, by what they are runs of: a Job, a CronJob, a PyTorchJob. Needs
        kube-state-metrics and alerts/optional/kubernetes.rules.yml.""")
    .labels("namespace", "workload_kind", "workload")
    .column("failed runs", f"""topk(20, sum by (namespace, workload_kind,
        workload) ({newest('workload:kube_gpu_runs_failed:count1d{$CLUSTER}')})) or on () label_replace(0
        * max(kube_state_metrics:up{{$CLUSTER}}), "workload", "none failed", "", "")""", decimals=0),
    table("Most idle GPUs, 7 days", sort_by="idle GPU-hours", no_value=NO_RULES, width=10, height=10)
    .help("""The twenty GPUs with the most hours below 5 % utilization in the last seven days, whatever time is chosen above.""")
    .label("instance", links=[row_link("Host", "gpu-node-host", "instance")], width=160)
    .label("gpu", links=[GPU_FROM_ROW], width=60)
    .label("model")
    .column("idle GPU-hours",
        "topk(20, sum by (cluster, job, instance, gpu, model) (sum_over_time(gpu:gpu_idle:bool{$MODEL}[7d])) / 12)",
        unit="locale", decimals=1),
    table("GPU-hours by payer, 24 h", sort_by="not used", no_value=NO_OWNERS, width=14, height=10)
    .help("""GPU-hours of the last day by who pays: a namespace, a Slurm account and user, or a user. No
        owner known: containers outside of Kubernetes and Slurm, and processes that could not be traced.""")
    .label("namespace", links=[row_link("Service", "gpu-node-service", "namespace")])
    .labels("slurm_account", "user", width=130)
    .column("allocated", "$HAD", unit="locale", decimals=1, width=90)
    .column("not used", or_none("$UNUSED", "$HAD", "$BY_PAYER"), unit="locale", decimals=1, width=90)
    .share("share not used", or_none("$UNUSED / ($HAD > 0)", "$HAD", "$BY_PAYER"), steps=steps(NONE, 0.4, ORANGE),
        width=125)
    .column("power", or_none(payers("payer:gpu_owner_energy_watts:rate15m{$FLEET}"), "$HAD", "$BY_PAYER"), unit="watt",
        decimals=0),
    table("Compute slices by GPU", sort_by="stranded", no_value=NO_MIG, width=10, height=8)
    .help("Compute slices of GPUs in MIG mode now, the twenty GPUs with the most stranded ones.")
    .label("instance", width=160)
    .label("gpu", links=[row_link("MIG", "gpu-node-mig", "instance", "gpu"), GPU_FROM_ROW], width=60)
    .column("stranded", of_mig("gpu_mig_slices_unplaceable"), steps=steps(NONE, 1, YELLOW), width=90)
    .column("in instances", of_mig("gpu_mig_slices_used"))
    .column("compute slices", "$MIG", width=130),
    table("Idle MIG instances, 24 h", sort_by="highest activity", descending=False, width=14, height=8,
        no_value="no MIG instance was idle, or GPM does not measure it")
    .help("""The twenty least active MIG instances whose multiprocessors were never more than 2 % active in the last 24 h,
        one look each ten minutes. Candidates to reclaim.""")
    .label("instance", width=150)
    .label("gpu", links=[row_link("MIG", "gpu-node-mig", "instance", "gpu")], width=60)
    .label("gpu_instance", width=110)
    .label("profile", width=100)
    .share("highest activity", """bottomk(20, max by ($BY_GPU, gpu_instance, profile) (
        max_over_time(gpu_mig_gpm_active_ratio{$FLEET,unit="sm"}[1d:10m])) < 0.02)"""),
)

dashboard.row("Hours").panels(
    heatmap("Utilization by hour and day", cell_unit="percentunit", steps=UTILIZATION_BAND, from_buckets=False,
        no_value=NO_RULES, interval="1d", cell_maximum=1, height=13, width=24)
    .help("""Mean utilization of the fleet: rows are the hours of the day (UTC), a column is the day that ends at its
        mark. The stronger the colour, the busier: the scale is below.""")
    .query(by_hour("$GPUS_BUSY", "1d"), "{{hour}}"),
    barchart("CPUs and GPUs by hour of the day", x_field="hour", unit="percentunit", steps=UTILIZATION_BAND, maximum=1,
        no_value=NO_RULES, width=10, colors=CPU_GPU)
    .help("""Mean utilization of CPUs and of GPUs at each hour (UTC) of the time range above. Where both peak together,
        the host may be what the GPUs wait for; where CPUs peak alone, preparation could move to other hours.""")
    .query(by_hour("$GPUS_BUSY"), "GPUs")
    .query(by_hour("$CPUS_BUSY"), "CPUs"),
    stat("Busiest hours in common", unit="locale", no_value="no CPU time", height=8)
    .help("""Of the six busiest hours of the day of the GPUs, so many are among the six busiest of the CPUs. No CPU
        time: the exporters do not count it (cpu.enabled).""")
    .query(f"""count({busiest_quarter('$GPUS_BUSY')} and on (hour) {busiest_quarter('$CPUS_BUSY')}) or on () 0
        * count({by_hour('$GPUS_BUSY')} and on (hour) {by_hour('$CPUS_BUSY')})""", "hours"),
    shares("CPUs and GPUs day by day", steps=UTILIZATION_BAND, draw_steps="area", dashed=["^CPUs$"], no_value=NO_RULES,
        width=10, colors=CPU_GPU)
    .help("Mean utilization of all CPUs (dashed) and of all GPUs of the nodes. The green band is 60 to 80 %.")
    .query("$GPUS_BUSY", "GPUs")
    .query("$CPUS_BUSY", "CPUs"),
)

dashboard.row("Energy and cost (estimates)").panels(
    stat("Energy in a day", unit="kwatth", decimals=1, no_value="no rules", width=6)
    .help("Energy of the boards in the last day, by their own counters. Hosts, network and cooling are not included.")
    .query(f"sum({newest('model:gpu_energy_joules:increase1d{$MODEL}')}) / 3.6e6", "energy"),
    money("Cost of a day (estimate)", width=6)
    .help("""GPU time that owners had in the last day, times the operator's price table; in the table's currency. An
        estimate, not a bill.""")
    .query(f"sum({newest('$DAY')})", "estimate"),
    money("Cost of unallocated GPUs, an hour (estimate)", width=6)
    .help("Price of the GPUs without an owner now, by the same table.")
    .query(f"sum({newest('job:gpu_cost_unallocated:per_hour{$FLEET}')})", "estimate"),
    stat("GPUs without a price", steps=TICKET_ABOVE_ZERO, no_value=NO_PRICES, width=6)
    .help("GPUs of models without a price in the table. Their time is in no estimate.")
    .query(f"""sum({newest('model:gpu_price_missing:count{$MODEL}')}) or on () 0
        * count({newest('gpu:gpu_price:per_hour{$MODEL}')})""", "GPUs"),
    timeseries("Energy in a day by model", unit="kwatth", minimum=0, no_value=NO_RULES)
    .help("Energy of the day before each point, by the boards' own counters.")
    .query("sum by (model) (model:gpu_energy_joules:increase1d{$MODEL}) / 3.6e6", "{{model}}"),
    timeseries("Cost an hour by namespace and account (estimate)", unit="locale", minimum=0, stacked=True,
        no_value=NO_PRICES)
    .help("GPU time had times the operator's price table, in its currency.")
    .query(payers("payer:gpu_cost:per_hour{$FLEET}"), "{{namespace}} {{slurm_account}} {{user}}"),
    table("Cost by namespace and account (estimate)", sort_by="30 days", no_value=NO_PRICES, height=9)
    .help("GPU time had times the operator's price table, and energy times the tariff, in its currency.")
    .label("namespace", links=[row_link("Service", "gpu-node-service", "namespace")])
    .labels("slurm_account", "user")
    .column("30 days", "$MONTH", unit="locale", decimals=2)
    .column("Day", or_none(payers("$DAY"), "$MONTH", "$BY_PAYER"), unit="locale", decimals=2)
    .column("Energy an hour", or_none(payers("payer:gpu_energy_cost:per_hour{$FLEET}"), "$MONTH", "$BY_PAYER"),
        unit="locale", decimals=2),
    bargauge("Budget spent over 30 days (estimate)", unit="percentunit", decimals=0, maximum=1,
        steps=steps(GREEN, 0.8, YELLOW, 1, ORANGE), no_value="not configured", width=8)
    .help("""Share of the operator's budgets that is spent, by namespace and by Slurm account. Above 100 % it is a
        ticket of its owner.""")
    .query(f"max by (cluster, namespace, slurm_account) ({newest('budget:gpu_cost:ratio_30d{$CLUSTER}')})",
        "{{cluster}} {{namespace}} {{slurm_account}}"),
    table("Cost by Slurm job in seven days (estimate)", sort_by="Cost",
        no_value="no Slurm job had a GPU, or no price table is configured", width=8)
    .help("The twenty most expensive Slurm jobs of the last seven days.")
    .labels("slurm_job", "slurm_account", "user")
    .column("Cost", """topk(20, sum by (slurm_job, slurm_account,
        user) (sum_over_time(slurm_job:gpu_cost:per_hour{$FLEET}[7d])) / 12)""", unit="locale", decimals=2),
    table("Cost by Kubernetes job in seven days (estimate)", sort_by="Cost",
        no_value="no price table is configured, or kube-state-metrics is not scraped", width=8)
    .help("""The twenty most expensive workloads of the last seven days. Pods are lifted to their Job, PyTorchJob or other
        controller with the help of kube-state-metrics.""")
    .labels("namespace", "workload_kind", "workload")
    .column("Cost", """topk(20, sum by (namespace, workload_kind,
        workload) (sum_over_time(workload:gpu_cost:per_hour{$CLUSTER}[7d])) / 12)""", unit="locale", decimals=2),
)

dashboard.row("Inventory").panels(
    bargauge("GPUs by model", no_value="no GPU", width=6)
    .help("GPUs that the nodes list now.")
    .query("sum by (model) (count by (cluster, job, model) (gpu_info{$MODEL}))", "{{model}}"),
    table("Models, drivers and firmware", sort_by="GPUs", no_value="no GPU", width=18)
    .help("""How many GPUs have which driver, VBIOS and GSP firmware. One model with several versions is a roll-out
        under way, or one that was not finished. An empty driver: the driver of the node does not answer.""")
    .labels("model", "driver_version", "vbios_version", "gsp_firmware_version")
    .column("GPUs", """count by ($FIRMWARE, driver_version) (gpu_info{$MODEL}
        * on ($BY_NODE) group_left (driver_version) $DRIVER) or count by ($FIRMWARE) (gpu_info{$MODEL}
        unless on ($BY_NODE) $DRIVER)"""),
    table("Driver versions compared", sort_by="GPUs",
        no_value="no driver answers, or alerts/recording.rules.yml is not loaded", width=24, height=6)
    .help("Whether GPUs with one driver fail more than the others: the measure of a roll-out.")
    .label("driver_version")
    .column("GPUs", "$COHORTS")
    .column("Unhealthy",
        or_none("max by (cluster, job, driver_version) (driver_version:gpu_unhealthy:ratio{$FLEET})", "$COHORTS",
            "cluster, job, driver_version"), unit="percentunit", decimals=1, steps=steps(NONE, 0.01, ORANGE))
    .column("Canary failed",
        or_none("max by (cluster, job, driver_version) (driver_version:gpu_canary_bad:ratio{$FLEET})", "$COHORTS",
            "cluster, job, driver_version"), unit="percentunit", decimals=1, steps=steps(NONE, 0.01, ORANGE)),
)
