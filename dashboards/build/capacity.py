"""Do we need more, and where is waste? The fleet over a month, made of recording rules wherever it looks back."""

import typing

from kit import *

NO_RULES = "alerts/capacity.rules.yml is not loaded, or no GPU was seen"
NO_PRICES = "not configured"
NO_MIG = "no GPU in MIG mode"
NO_OWNERS = "nobody had a GPU"
MEMORY_LINE = steps(NONE, 0.85, ORANGE)


def newest(series: str) -> str:
    return f"last_over_time({series}$RECENT)"


def payers(series: str) -> str:
    """The series by who pays; work of which nobody knows whose it is says so."""
    whole = f'label_join({newest(series)}, "whole", "", "namespace", "slurm_account", "user")'
    return f'sum by ($BY_PAYER) (label_replace({whole}, "user", "nobody known", "whole", ""))'


def by_hour(of: str, span: str = "$__range") -> str:
    """The mean at each hour of the day."""
    return f"avg_over_time(($HOUR * on () group_left () {of})[{span}:1h])"


def busiest_quarter(of: str) -> str:
    return f"({by_hour(of)} >= on () group_left () quantile(0.75, {by_hour(of)}))"


def money(title: str, **looks: typing.Any) -> Panel:
    return stat(title, unit="locale", decimals=2, no_value=NO_PRICES, **looks)


dashboard = Dashboard(
    "gpu-node-capacity",
    "GPU nodes: capacity",
    "Do we need more, and where is waste?",
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
        "MIG": """max by (cluster, job, instance, gpu) (gpu_mig_slices{$FLEET}
            unless on (cluster, job, instance, gpu) gpu_mig_mode_enabled{$FLEET} == 0)""",
        "SLICES": newest("job:gpu_mig_slices:sum{$FLEET}"),
        "MONTH": payers("payer:gpu_cost:sum30d{$FLEET}"),
        "DAY": "payer:gpu_cost:sum1d{$FLEET}",
        "DRIVER": "max by ($BY_NODE, driver_version) (gpu_driver_info{$FLEET})",
        "FIRMWARE": "model, vbios_version, gsp_firmware_version",
        "COHORTS": "sum by (cluster, job, driver_version) (driver_version:gpu:count{$FLEET})",
    },
)

dashboard.row("Do we need more?", no_value="no rules").panels(
    stat("GPUs installed")
    .help("""GPUs that the nodes should have, those of nodes that are down too. No rules, here and below: the files
        alerts/recording.rules.yml, capacity.rules.yml and slo.rules.yml are not loaded, or no GPU was seen.""")
    .query("sum(job:gpu_expected:gpus{$FLEET})", "GPUs"),
    stat("Usable now", unit="percentunit", decimals=2, steps=steps(RED, 0.95, ORANGE, 0.99, GREEN))
    .help("Share of the installed GPUs that can be used. GPUs in a planned maintenance window do not count as lost.")
    .query("1 - sum(job:gpu_unhealthy:gpus{$FLEET}) / sum(job:gpu_expected:gpus{$FLEET})", "usable"),
    stat("Usable over 30 days", unit="percentunit", decimals=2, steps=steps(RED, 0.99, GREEN))
    .help("""Share of GPU-minutes of 30 days in which GPUs could be used, of the worst scrape job. The objective is 99
        % (docs/SLO.md).""")
    .query(f"min({newest('job:gpu_usable:ratio_30d{$FLEET}')})", "usable"),
    stat("Busy at the peak of a day", unit="percentunit", decimals=0, steps=steps(BLUE, 0.6, GREEN, 0.8, BLUE))
    .help("""95th percentile over a day of the mean utilization, of the busiest model. Above 80 % there is little room
        for more work; below 60 % there is room. Neither is a fault.""")
    .query(f"max({newest('model:gpu_utilization:p95_1d{$MODEL}')})", "busy"),
    stat("Memory at the peak of a day", unit="percentunit", decimals=0, steps=steps(GREEN, 0.85, ORANGE))
    .help("""95th percentile over a day of the share of memory used, of the fullest model. Above 85 % larger models
        will not fit.""")
    .query(f"max({newest('model:gpu_memory_used:p95_1d{$MODEL}')})", "used"),
    stat("Busy in 30 days", unit="percentunit", decimals=0, steps=steps(GREEN, 0.9, ORANGE), no_value="too little data")
    .help("""Where the line through the last 14 days leads, for the busiest model. A line, not a plan: new projects
        are not in it. It is not drawn before 3.5 days of data.""")
    .query(f"max({newest('model:gpu_utilization:forecast30d{$MODEL}')})", "busy"),
    shares("Busy by model", steps=UTILIZATION_BAND, draw_steps="area", dashed=[".* in 30 days$"], no_value=NO_RULES)
    .help("""95th percentile over a day of the mean utilization of each model, and where its line leads in 30 days
        (dashed). Between 60 and 80 % (green) GPUs are well used; neither side of it is a fault.""")
    .query("model:gpu_utilization:p95_1d{$MODEL}", "{{model}}")
    .query("model:gpu_utilization:forecast30d{$MODEL}", "{{model}} in 30 days"),
    shares("Memory by model", steps=MEMORY_LINE, draw_steps="line", no_value=NO_RULES)
    .help("""95th percentile over a day of the share of memory used. The line is at 85 %: above it, the next larger
        model does not fit.""")
    .query("model:gpu_memory_used:p95_1d{$MODEL}", "{{model}}"),
    stat("GPU pods that wait", steps=TICKET_ABOVE_ZERO, no_value="not scraped", width=6)
    .help("Pods that ask for GPUs and are pending. Needs kube-state-metrics and alerts/optional/kubernetes.rules.yml.")
    .query("sum(cluster:kube_gpu_pods_pending:count{$CLUSTER})", "pods"),
    stat("Longest wait of a GPU pod", unit="s", steps=steps(GREEN, 900, ORANGE), no_value="not scraped", width=6)
    .help("How long the oldest of them has waited.")
    .query("max(namespace:kube_gpu_pods_pending_wait:max{$CLUSTER}) or on () 0 * max(kube_state_metrics:up{$CLUSTER})",
        "wait"),
    stat("Slurm jobs that wait", no_value="not scraped", width=6)
    .help("""Jobs pending in all partitions, without those that their users hold back. Needs a Slurm exporter and
        alerts/optional/slurm.rules.yml.""")
    .query("sum(partition:slurm_jobs_waiting:count{$CLUSTER})", "jobs"),
    stat("GPU jobs that failed in a day", unit="percentunit", decimals=1, steps=steps(GREEN, 0.01, ORANGE),
        no_value="not scraped", width=6)
    .help("""Of the Kubernetes jobs with GPUs that ended in the last day, the share that failed, in the worst
        namespace; 0 also where none has ended. Needs kube-state-metrics and alerts/optional/kubernetes.rules.yml.""")
    .query(f"""max({newest('namespace:kube_gpu_runs_failed:ratio_1d{$CLUSTER}')}) or on () 0
        * max(kube_state_metrics:up{{$CLUSTER}})""", "failed"),
)

dashboard.row("Where is waste?").panels(
    stat("Idle GPU-hours in a day", unit="h", decimals=0, no_value="no rules", width=6)
    .help("Hours that GPUs spent below 5 % utilization, had by somebody or not.")
    .query("$IDLE", "idle"),
    stat("Idle share of a day", unit="percentunit", decimals=0, steps=steps(GREEN, 0.4, ORANGE), no_value="no rules",
        width=6)
    .help("Idle GPU-hours of all GPU-hours.")
    .query(f"$IDLE / sum({newest('model:gpu_hours:sum1d{$MODEL}')})", "idle"),
    stat("Had and not used in a day", unit="h", decimals=0, no_value="no owners", width=6)
    .help("GPU-hours that owners had and in which the GPU did nothing for them.")
    .query(f"sum({newest('payer:gpu_owner_idle_gpu_hours:sum1d{$FLEET}')})", "not used"),
    stat("MIG slices stranded", unit="percentunit", decimals=1, steps=steps(GREEN, 0.1, ORANGE), no_value="no MIG",
        width=6)
    .help("Share of all MIG slices that are free and in no shape that a further instance could use.")
    .query(f"sum({newest('job:gpu_mig_slices_unplaceable:ratio{$FLEET}')} * on (cluster, job) $SLICES) / sum($SLICES)",
        "stranded"),
    timeseries("GPUs by what they do", minimum=0, stacked=True,
        colors={"busy": GREEN, "light": BLUE, "idle": YELLOW, "unusable": RED, "unknown": "gray"}, no_value=NO_RULES)
    .help("""Busy: 60 % and more. Idle: below 5 %. Unknown: the driver does not tell how busy they are. What is
        missing to the number installed was not seen.""")
    .query("sum by (state) (model:gpu_state:gpus{$MODEL})", "{{state}}"),
    shares("MIG slices", steps=steps(NONE, 0.1, ORANGE), no_value=NO_MIG)
    .help("Shares of all compute slices of GPUs in MIG mode: free, and free but stranded.")
    .query("job:gpu_mig_slices_free:ratio{$FLEET}", "{{job}} free")
    .query("job:gpu_mig_slices_unplaceable:ratio{$FLEET}", "{{job}} stranded"),
    table("Idle most in seven days", sort_by="Idle hours", no_value=NO_RULES, width=10, height=10)
    .help("""The twenty GPUs with the most hours below 5 % utilization in the last seven days, whatever the time range
        above.""")
    .label("instance", links=[row_link("The host", "gpu-node-host", "instance")])
    .label("gpu", links=[GPU_FROM_ROW])
    .label("model")
    .column("Idle hours",
        "topk(20, sum by (cluster, job, instance, gpu, model) (sum_over_time(gpu:gpu_idle:bool{$MODEL}[7d])) / 12)",
        unit="h", decimals=1),
    table("Who has how much and uses it", sort_by="Not used", no_value=NO_OWNERS, width=14, height=10)
    .help("""GPU-hours of the last day by who pays: a namespace, a Slurm account and user, or a user. Nobody known:
        containers outside of Kubernetes and Slurm, and processes that could not be traced.""")
    .label("namespace", links=[row_link("Requests and GPUs of this namespace", "gpu-node-service", "namespace")])
    .labels("slurm_account", "user")
    .column("Had", "$HAD", unit="h", decimals=1)
    .column("Not used", or_none("$UNUSED", "$HAD", "$BY_PAYER"), unit="h", decimals=1)
    .share("Share not used", or_none("$UNUSED / ($HAD > 0)", "$HAD", "$BY_PAYER"), steps=steps(NONE, 0.4, ORANGE))
    .column("Power", or_none(payers("payer:gpu_owner_energy_watts:rate15m{$FLEET}"), "$HAD", "$BY_PAYER"), unit="watt",
        decimals=0),
    table("MIG slices of each GPU", sort_by="Stranded", no_value=NO_MIG, width=10, height=8)
    .help("Compute slices of GPUs in MIG mode, now.")
    .label("instance")
    .label("gpu", links=[row_link("Its slices", "gpu-node-mig", "instance", "gpu"), GPU_FROM_ROW])
    .column("Slices", "$MIG")
    .column("In instances",
        or_none("max by (cluster, job, instance, gpu) (gpu_mig_slices_used{$FLEET})", "$MIG",
            "cluster, job, instance, gpu"))
    .column("Stranded",
        or_none("max by (cluster, job, instance, gpu) (gpu_mig_slices_unplaceable{$FLEET})", "$MIG",
            "cluster, job, instance, gpu"), steps=steps(NONE, 1, ORANGE)),
    table("GPU jobs that fail most", sort_by="Failed runs", no_value="not scraped", width=14, height=8)
    .help("""Runs that failed in the last day, by what they are runs of: a Job, a CronJob, a PyTorchJob. Needs
        kube-state-metrics and alerts/optional/kubernetes.rules.yml.""")
    .labels("namespace", "workload_kind", "workload")
    .column("Failed runs", f"""topk(20, sum by (namespace, workload_kind,
        workload) ({newest('workload:kube_gpu_runs_failed:count1d{$CLUSTER}')})) or on () label_replace(0
        * max(kube_state_metrics:up{{$CLUSTER}}), "workload", "none failed", "", "")""", decimals=0),
)

dashboard.row("At which hours?").panels(
    barchart("CPUs and GPUs by hour of the day", x_field="hour", unit="percentunit", steps=UTILIZATION_BAND, maximum=1,
        no_value=NO_RULES)
    .help("""Mean utilization of CPUs and of GPUs at each hour (UTC) of the time range above. Where both peak together,
        the host may be what the GPUs wait for; where CPUs peak alone, preparation could move to other hours.""")
    .query(by_hour("$GPUS_BUSY"), "GPUs")
    .query(by_hour("$CPUS_BUSY"), "CPUs"),
    heatmap("GPUs by hour and day", cell_unit="percentunit", steps=UTILIZATION_BAND, from_buckets=False,
        no_value=NO_RULES)
    .help("Mean utilization of the fleet at each hour of the day (rows, UTC), day by day.")
    .query(by_hour("$GPUS_BUSY", "1d"), "{{hour}}"),
    stat("Busiest hours in common", unit="h", no_value="not told", width=6)
    .help("""Of the six busiest hours of the day of the GPUs, so many are among the six busiest of the CPUs. Not told:
        the exporters do not count CPU time (cpu.enabled).""")
    .query(f"""count({busiest_quarter('$GPUS_BUSY')} and on (hour) {busiest_quarter('$CPUS_BUSY')}) or on () 0
        * count({by_hour('$GPUS_BUSY')} and on (hour) {by_hour('$CPUS_BUSY')})""", "hours"),
    shares("CPUs and GPUs day by day", steps=UTILIZATION_BAND, draw_steps="area", dashed=["^CPUs$"], no_value=NO_RULES,
        width=18, height=6)
    .help("Mean utilization of all CPUs (dashed) and of all GPUs of the nodes. The green band is 60 to 80 %.")
    .query("$GPUS_BUSY", "GPUs")
    .query("$CPUS_BUSY", "CPUs"),
)

dashboard.row("What does it take? Money is an estimate.").panels(
    stat("Energy in a day", unit="kwatth", decimals=0, no_value="no rules", width=6)
    .help("What the boards used in the last day, by their own counters. Hosts, network and cooling are not in it.")
    .query(f"sum({newest('model:gpu_energy_joules:increase1d{$MODEL}')}) / 3.6e6", "energy"),
    money("Cost of a day (estimate)", width=6)
    .help("""GPU time that owners had in the last day, times the operator's price table; in the table's currency. An
        estimate, not a bill.""")
    .query(f"sum({newest('$DAY')})", "estimate"),
    money("Cost of what nobody has, an hour (estimate)", width=6)
    .help("Price of the GPUs that nobody has now, by the same table.")
    .query(f"sum({newest('job:gpu_cost_unallocated:per_hour{$FLEET}')})", "estimate"),
    stat("GPUs without a price", steps=TICKET_ABOVE_ZERO, no_value=NO_PRICES, width=6)
    .help("GPUs of models that the price table does not have. Their time is in no estimate.")
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
    .label("namespace", links=[row_link("Requests and GPUs of this namespace", "gpu-node-service", "namespace")])
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
    .help("The twenty dearest Slurm jobs of the last seven days.")
    .labels("slurm_job", "slurm_account", "user")
    .column("Cost", """topk(20, sum by (slurm_job, slurm_account,
        user) (sum_over_time(slurm_job:gpu_cost:per_hour{$FLEET}[7d])) / 12)""", unit="locale", decimals=2),
    table("Cost by Kubernetes job in seven days (estimate)", sort_by="Cost",
        no_value="no price table is configured, or kube-state-metrics is not scraped", width=8)
    .help("""The twenty dearest workloads of the last seven days. Pods are lifted to their Job, PyTorchJob or other
        controller with the help of kube-state-metrics.""")
    .labels("namespace", "workload_kind", "workload")
    .column("Cost", """topk(20, sum by (namespace, workload_kind,
        workload) (sum_over_time(workload:gpu_cost:per_hour{$CLUSTER}[7d])) / 12)""", unit="locale", decimals=2),
)

dashboard.row("What do we have?").panels(
    bargauge("GPUs by model", no_value="no GPU", width=6)
    .help("GPUs that the nodes list now.")
    .query("sum by (model) (count by (cluster, job, model) (gpu_info{$MODEL}))", "{{model}}"),
    table("Models, drivers and firmware", sort_by="GPUs", no_value="no GPU", width=18)
    .help("""How many GPUs have which driver, VBIOS and GSP firmware. One model with several versions is a roll-out
        under way, or one that was forgotten. An empty driver: the driver of the node is away.""")
    .labels("model", "driver_version", "vbios_version", "gsp_firmware_version")
    .column("GPUs", """count by ($FIRMWARE, driver_version) (gpu_info{$MODEL}
        * on ($BY_NODE) group_left (driver_version) $DRIVER) or count by ($FIRMWARE) (gpu_info{$MODEL}
        unless on ($BY_NODE) $DRIVER)"""),
    table("Driver versions compared", sort_by="GPUs",
        no_value="no driver answers, or alerts/recording.rules.yml is not loaded", width=24, height=6)
    .help("Whether GPUs with one driver are worse off than the others: what a roll-out is judged by.")
    .label("driver_version")
    .column("GPUs", "$COHORTS")
    .column("Unhealthy",
        or_none("max by (cluster, job, driver_version) (driver_version:gpu_unhealthy:ratio{$FLEET})", "$COHORTS",
            "cluster, job, driver_version"), unit="percentunit", decimals=1, steps=steps(NONE, 0.01, ORANGE))
    .column("Canary unhappy",
        or_none("max by (cluster, job, driver_version) (driver_version:gpu_canary_bad:ratio{$FLEET})", "$COHORTS",
            "cluster, job, driver_version"), unit="percentunit", decimals=1, steps=steps(NONE, 0.01, ORANGE)),
)
