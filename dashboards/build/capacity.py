"""Do we need more, and where is waste? The fleet over a month, made of recording rules wherever it looks back."""

import typing

from common import (
    BLUE,
    GPU_FROM_ROW,
    GREEN,
    NEUTRAL,
    NONE,
    ORANGE,
    RED,
    TICKET_ABOVE_ZERO,
    UTILIZATION_BAND,
    YELLOW,
    Board,
    Column,
    Label,
    Placed,
    Query,
    barchart,
    bargauge,
    dashboard_builder,
    heatmap,
    model,
    node_variables,
    or_none,
    query_variable,
    row_link,
    share,
    shares,
    stat,
    steps,
    table,
    timeseries,
)

FLEET = 'cluster=~"$cluster",job=~"$job"'
MODEL = FLEET + ',model=~"$model"'
# What comes from kube-state-metrics and Slurm has a scrape job of its own.
CLUSTER = 'cluster=~"$cluster"'

BY_MODEL = "cluster, job, model"
BY_PAYER = "cluster, job, namespace, slurm_account, user"

NO_RULES = "alerts/capacity.rules.yml is not loaded, or no GPU was seen"
NO_PRICES = "not configured"
NO_MIG = "no GPU in MIG mode"
NO_OWNERS = "nobody had a GPU"

# Rules that are evaluated every five minutes are seen by a query at any moment.
RECENT = "[10m]"

MEMORY_LINE = steps((None, NONE), (0.85, ORANGE))


def newest(series: str) -> str:
    return f"last_over_time({series}{RECENT})"


def payers(series: str) -> str:
    """The series by who pays; work of which nobody knows whose it is says so."""
    whole = f'label_join({newest(series)}, "whole", "", "namespace", "slurm_account", "user")'
    return f'sum by ({BY_PAYER}) (label_replace({whole}, "user", "nobody known", "whole", ""))'


# The hour of the day, in UTC, as a label.
HOUR = 'label_replace(count_values("hour", hour()), "hour", "0$1", "hour", "([0-9])")'
GPUS_BUSY = (
    f"(sum(model:gpu_utilization:avg5m{{{FLEET}}} * model:gpu:count{{{FLEET}}}) / sum(model:gpu:count{{{FLEET}}}))"
)
CPUS_BUSY = f"avg(job:gpu_host_cpu_busy:ratio_rate5m{{{FLEET}}})"


def by_hour(of: str, span: str = "$__range") -> str:
    """The mean at each hour of the day."""
    return f"avg_over_time(({HOUR} * on () group_left () {of})[{span}:1h])"


def busiest_quarter(of: str) -> str:
    return f"({by_hour(of)} >= on () group_left () quantile(0.75, {by_hour(of)}))"


def need() -> list[Placed]:
    return [
        stat(
            "GPUs installed",
            "GPUs that the nodes should have, those of nodes that are down too. No rules, here and below: the files "
            "alerts/recording.rules.yml, capacity.rules.yml and slo.rules.yml are not loaded, or no GPU was seen.",
            Query(f"sum(job:gpu_expected:gpus{{{FLEET}}})", "GPUs"),
            unit="short",
            thresholds=NEUTRAL,
            no_value="no rules",
        ),
        stat(
            "Usable now",
            "Share of the installed GPUs that can be used. GPUs in a planned maintenance window do not count as lost.",
            Query(f"1 - sum(job:gpu_unhealthy:gpus{{{FLEET}}}) / sum(job:gpu_expected:gpus{{{FLEET}}})", "usable"),
            unit="percentunit",
            decimals=2,
            thresholds=steps((None, RED), (0.95, ORANGE), (0.99, GREEN)),
            no_value="no rules",
        ),
        stat(
            "Usable over 30 days",
            "Share of GPU-minutes of 30 days in which GPUs could be used, of the worst scrape job. The objective is "
            "99 % (docs/SLO.md).",
            Query(f"min({newest(f'job:gpu_usable:ratio_30d{{{FLEET}}}')})", "usable"),
            unit="percentunit",
            decimals=2,
            thresholds=steps((None, RED), (0.99, GREEN)),
            no_value="no rules",
        ),
        stat(
            "Busy at the peak of a day",
            "95th percentile over a day of the mean utilization, of the busiest model. Above 80 % there is little room "
            "for more work; below 60 % there is room. Neither is a fault.",
            Query(f"max({newest(f'model:gpu_utilization:p95_1d{{{MODEL}}}')})", "busy"),
            unit="percentunit",
            decimals=0,
            thresholds=steps((None, BLUE), (0.6, GREEN), (0.8, BLUE)),
            no_value="no rules",
        ),
        stat(
            "Memory at the peak of a day",
            "95th percentile over a day of the share of memory used, of the fullest model. Above 85 % larger models "
            "will not fit.",
            Query(f"max({newest(f'model:gpu_memory_used:p95_1d{{{MODEL}}}')})", "used"),
            unit="percentunit",
            decimals=0,
            thresholds=steps((None, GREEN), (0.85, ORANGE)),
            no_value="no rules",
        ),
        stat(
            "Busy in 30 days",
            "Where the line through the last 14 days leads, for the busiest model. A line, not a plan: new projects "
            "are not in it. It is not drawn before 3.5 days of data.",
            Query(f"max({newest(f'model:gpu_utilization:forecast30d{{{MODEL}}}')})", "busy"),
            unit="percentunit",
            decimals=0,
            thresholds=steps((None, GREEN), (0.9, ORANGE)),
            no_value="too little data",
        ),
        shares(
            "Busy by model",
            "95th percentile over a day of the mean utilization of each model, and where its line leads in 30 days "
            "(dashed). Between 60 and 80 % (green) GPUs are well used; neither side of it is a fault.",
            [
                Query(f"model:gpu_utilization:p95_1d{{{MODEL}}}", "{{model}}"),
                Query(f"model:gpu_utilization:forecast30d{{{MODEL}}}", "{{model}} in 30 days"),
            ],
            thresholds=UTILIZATION_BAND,
            draw_thresholds="area",
            dashed=[".* in 30 days$"],
            no_value=NO_RULES,
        ),
        shares(
            "Memory by model",
            "95th percentile over a day of the share of memory used. The line is at 85 %: above it, the next larger "
            "model does not fit.",
            Query(f"model:gpu_memory_used:p95_1d{{{MODEL}}}", "{{model}}"),
            thresholds=MEMORY_LINE,
            draw_thresholds="line",
            no_value=NO_RULES,
        ),
        stat(
            "GPU pods that wait",
            "Pods that ask for GPUs and are pending. Needs kube-state-metrics and "
            "alerts/optional/kubernetes.rules.yml.",
            Query(f"sum(cluster:kube_gpu_pods_pending:count{{{CLUSTER}}})", "pods"),
            unit="short",
            thresholds=TICKET_ABOVE_ZERO,
            no_value="not scraped",
            width=6,
        ),
        stat(
            "Longest wait of a GPU pod",
            "How long the oldest of them has waited.",
            Query(
                f"max(namespace:kube_gpu_pods_pending_wait:max{{{CLUSTER}}})"
                f" or on () 0 * max(kube_state_metrics:up{{{CLUSTER}}})",
                "wait",
            ),
            unit="s",
            thresholds=steps((None, GREEN), (900, ORANGE)),
            no_value="not scraped",
            width=6,
        ),
        stat(
            "Slurm jobs that wait",
            "Jobs pending in all partitions, without those that their users hold back. Needs a Slurm exporter and "
            "alerts/optional/slurm.rules.yml.",
            Query(f"sum(partition:slurm_jobs_waiting:count{{{CLUSTER}}})", "jobs"),
            unit="short",
            thresholds=NEUTRAL,
            no_value="not scraped",
            width=6,
        ),
        stat(
            "GPU jobs that failed in a day",
            "Of the Kubernetes jobs with GPUs that ended in the last day, the share that failed, in the worst "
            "namespace; 0 also where none has ended. Needs kube-state-metrics and "
            "alerts/optional/kubernetes.rules.yml.",
            Query(
                f"max({newest(f'namespace:kube_gpu_runs_failed:ratio_1d{{{CLUSTER}}}')})"
                f" or on () 0 * max(kube_state_metrics:up{{{CLUSTER}}})",
                "failed",
            ),
            unit="percentunit",
            decimals=1,
            thresholds=steps((None, GREEN), (0.01, ORANGE)),
            no_value="not scraped",
            width=6,
        ),
    ]


def waste() -> list[Placed]:
    idle = f"sum({newest(f'model:gpu_idle_gpu_hours:sum1d{{{MODEL}}}')})"
    had = payers(f"payer:gpu_owner_gpu_hours:sum1d{{{FLEET}}}")
    unused = payers(f"payer:gpu_owner_idle_gpu_hours:sum1d{{{FLEET}}}")
    mig = f"""max by (cluster, job, instance, gpu) (
        gpu_mig_slices{{{FLEET}}}
        unless on (cluster, job, instance, gpu) gpu_mig_mode_enabled{{{FLEET}}} == 0)"""
    slices = newest(f"job:gpu_mig_slices:sum{{{FLEET}}}")
    return [
        stat(
            "Idle GPU-hours in a day",
            "Hours that GPUs spent below 5 % utilization, had by somebody or not.",
            Query(idle, "idle"),
            unit="h",
            decimals=0,
            thresholds=NEUTRAL,
            no_value="no rules",
            width=6,
        ),
        stat(
            "Idle share of a day",
            "Idle GPU-hours of all GPU-hours.",
            Query(f"{idle} / sum({newest(f'model:gpu_hours:sum1d{{{MODEL}}}')})", "idle"),
            unit="percentunit",
            decimals=0,
            thresholds=steps((None, GREEN), (0.4, ORANGE)),
            no_value="no rules",
            width=6,
        ),
        stat(
            "Had and not used in a day",
            "GPU-hours that owners had and in which the GPU did nothing for them.",
            Query(f"sum({newest(f'payer:gpu_owner_idle_gpu_hours:sum1d{{{FLEET}}}')})", "not used"),
            unit="h",
            decimals=0,
            thresholds=NEUTRAL,
            no_value="no owners",
            width=6,
        ),
        stat(
            "MIG slices stranded",
            "Share of all MIG slices that are free and in no shape that a further instance could use.",
            Query(
                f"sum({newest(f'job:gpu_mig_slices_unplaceable:ratio{{{FLEET}}}')} * on (cluster, job) {slices})"
                f" / sum({slices})",
                "stranded",
            ),
            unit="percentunit",
            decimals=1,
            thresholds=steps((None, GREEN), (0.1, ORANGE)),
            no_value="no MIG",
            width=6,
        ),
        timeseries(
            "GPUs by what they do",
            "Busy: 60 % and more. Idle: below 5 %. Unknown: the driver does not tell how busy they are. What is "
            "missing to the number installed was not seen.",
            Query(f"sum by (state) (model:gpu_state:gpus{{{MODEL}}})", "{{state}}"),
            unit="short",
            minimum=0,
            stacked=True,
            thresholds=NEUTRAL,
            colors={"busy": GREEN, "light": BLUE, "idle": YELLOW, "unusable": RED, "unknown": "gray"},
            no_value=NO_RULES,
        ),
        shares(
            "MIG slices",
            "Shares of all compute slices of GPUs in MIG mode: free, and free but stranded.",
            [
                Query(f"job:gpu_mig_slices_free:ratio{{{FLEET}}}", "{{job}} free"),
                Query(f"job:gpu_mig_slices_unplaceable:ratio{{{FLEET}}}", "{{job}} stranded"),
            ],
            thresholds=steps((None, NONE), (0.1, ORANGE)),
            no_value=NO_MIG,
        ),
        table(
            "Idle most in seven days",
            "The twenty GPUs with the most hours below 5 % utilization in the last seven days, whatever the time range "
            "above.",
            [
                Label("instance", links=[row_link("The host", "gpu-node-host", "instance")]),
                Label("gpu", links=[GPU_FROM_ROW]),
                Label("model"),
            ],
            [
                Column(
                    "Idle hours",
                    f"topk(20, sum by (cluster, job, instance, gpu, model)"
                    f" (sum_over_time(gpu:gpu_idle:bool{{{MODEL}}}[7d])) / 12)",
                    unit="h",
                    decimals=1,
                )
            ],
            sort_by="Idle hours",
            no_value=NO_RULES,
            width=10,
            height=10,
        ),
        table(
            "Who has how much and uses it",
            "GPU-hours of the last day by who pays: a namespace, a Slurm account and user, or a user. Nobody "
            "known: containers outside of Kubernetes and Slurm, and processes that could not be traced.",
            [
                Label(
                    "namespace",
                    links=[row_link("Requests and GPUs of this namespace", "gpu-node-service", "namespace")],
                ),
                Label("slurm_account"),
                Label("user"),
            ],
            [
                Column("Had", had, unit="h", decimals=1),
                Column(
                    "Not used",
                    or_none(unused, had, BY_PAYER),
                    unit="h",
                    decimals=1,
                ),
                share(
                    "Share not used",
                    or_none(f"{unused} / ({had} > 0)", had, BY_PAYER),
                    thresholds=steps((None, NONE), (0.4, ORANGE)),
                    paint=True,
                ),
                Column(
                    "Power",
                    or_none(payers(f"payer:gpu_owner_energy_watts:rate15m{{{FLEET}}}"), had, BY_PAYER),
                    unit="watt",
                    decimals=0,
                ),
            ],
            sort_by="Not used",
            no_value=NO_OWNERS,
            width=14,
            height=10,
        ),
        table(
            "MIG slices of each GPU",
            "Compute slices of GPUs in MIG mode, now.",
            [
                Label("instance"),
                Label("gpu", links=[row_link("Its slices", "gpu-node-mig", "instance", "gpu"), GPU_FROM_ROW]),
            ],
            [
                Column("Slices", mig),
                Column(
                    "In instances",
                    or_none(
                        f"max by (cluster, job, instance, gpu) (gpu_mig_slices_used{{{FLEET}}})",
                        mig,
                        "cluster, job, instance, gpu",
                    ),
                ),
                Column(
                    "Stranded",
                    or_none(
                        f"max by (cluster, job, instance, gpu) (gpu_mig_slices_unplaceable{{{FLEET}}})",
                        mig,
                        "cluster, job, instance, gpu",
                    ),
                    thresholds=steps((None, NONE), (1, ORANGE)),
                    paint=True,
                ),
            ],
            sort_by="Stranded",
            no_value=NO_MIG,
            width=10,
            height=8,
        ),
        table(
            "GPU jobs that fail most",
            "Runs that failed in the last day, by what they are runs of: a Job, a CronJob, a PyTorchJob. Needs "
            "kube-state-metrics and alerts/optional/kubernetes.rules.yml.",
            [Label("namespace"), Label("workload_kind"), Label("workload")],
            [
                Column(
                    "Failed runs",
                    f"topk(20, sum by (namespace, workload_kind, workload)"
                    f" ({newest(f'workload:kube_gpu_runs_failed:count1d{{{CLUSTER}}}')}))"
                    f" or on () label_replace(0 * max(kube_state_metrics:up{{{CLUSTER}}}),"
                    ' "workload", "none failed", "", "")',
                    decimals=0,
                )
            ],
            sort_by="Failed runs",
            no_value="not scraped",
            width=14,
            height=8,
        ),
    ]


def hours() -> list[Placed]:
    both = barchart(
        "CPUs and GPUs by hour of the day",
        "Mean utilization of CPUs and of GPUs at each hour (UTC) of the time range above. Where both peak together, "
        "the host may be what the GPUs wait for; where CPUs peak alone, preparation could move to other hours.",
        [Query(by_hour(GPUS_BUSY), "GPUs"), Query(by_hour(CPUS_BUSY), "CPUs")],
        x_field="hour",
        unit="percentunit",
        thresholds=UTILIZATION_BAND,
        maximum=1,
        no_value=NO_RULES,
    )
    return [
        merged(both, "hour", {"Value #A": "GPUs", "Value #B": "CPUs"}),
        heatmap(
            "GPUs by hour and day",
            "Mean utilization of the fleet at each hour of the day (rows, UTC), day by day.",
            Query(by_hour(GPUS_BUSY, "1d"), "{{hour}}"),
            unit="short",
            cell_unit="percentunit",
            thresholds=UTILIZATION_BAND,
            from_buckets=False,
            no_value=NO_RULES,
        ),
        stat(
            "Busiest hours in common",
            "Of the six busiest hours of the day of the GPUs, so many are among the six busiest of the CPUs. Not told: "
            "the exporters do not count CPU time (cpu.enabled).",
            Query(
                f"count({busiest_quarter(GPUS_BUSY)} and on (hour) {busiest_quarter(CPUS_BUSY)})"
                f" or on () 0 * count({by_hour(GPUS_BUSY)} and on (hour) {by_hour(CPUS_BUSY)})",
                "hours",
            ),
            unit="h",
            thresholds=NEUTRAL,
            no_value="not told",
            width=6,
        ),
        shares(
            "CPUs and GPUs day by day",
            "Mean utilization of all CPUs (dashed) and of all GPUs of the nodes. The green band is 60 to 80 %.",
            [Query(GPUS_BUSY, "GPUs"), Query(CPUS_BUSY, "CPUs")],
            thresholds=UTILIZATION_BAND,
            draw_thresholds="area",
            dashed=["^CPUs$"],
            no_value=NO_RULES,
            width=18,
            height=6,
        ),
    ]


def merged(placed: Placed, key: str, names: dict[str, str]) -> Placed:
    """A chart of several queries as one frame: a row for each value of the label, a column for each query, each with
    its own colour."""
    placed.panel.color_scheme(dashboard_builder.FieldColor().mode(model.FieldColorModeId.PALETTE_CLASSIC))
    placed.panel.with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
    placed.panel.with_transformation(
        model.DataTransformerConfig(
            id_val="organize", options={"renameByName": names, "indexByName": {key: 0, "Value #A": 1, "Value #B": 2}}
        )
    )
    placed.panel.with_transformation(model.DataTransformerConfig(id_val="sortBy", options={"sort": [{"field": key}]}))
    return placed


def cost() -> list[Placed]:
    def money(title: str, description: str, expr: str, **how: typing.Any) -> Placed:
        return stat(
            title,
            description,
            Query(expr, "estimate"),
            unit="locale",
            decimals=2,
            thresholds=NEUTRAL,
            no_value=NO_PRICES,
            **how,
        )

    month = payers(f"payer:gpu_cost:sum30d{{{FLEET}}}")
    day = f"payer:gpu_cost:sum1d{{{FLEET}}}"
    return [
        stat(
            "Energy in a day",
            "What the boards used in the last day, by their own counters. Hosts, network and cooling are not in it.",
            Query(f"sum({newest(f'model:gpu_energy_joules:increase1d{{{MODEL}}}')}) / 3.6e6", "energy"),
            unit="kwatth",
            decimals=0,
            thresholds=NEUTRAL,
            no_value="no rules",
            width=6,
        ),
        money(
            "Cost of a day (estimate)",
            "GPU time that owners had in the last day, times the operator's price table; in the table's currency. An "
            "estimate, not a bill.",
            f"sum({newest(day)})",
            width=6,
        ),
        money(
            "Cost of what nobody has, an hour (estimate)",
            "Price of the GPUs that nobody has now, by the same table.",
            f"sum({newest(f'job:gpu_cost_unallocated:per_hour{{{FLEET}}}')})",
            width=6,
        ),
        stat(
            "GPUs without a price",
            "GPUs of models that the price table does not have. Their time is in no estimate.",
            Query(
                f"sum({newest(f'model:gpu_price_missing:count{{{MODEL}}}')})"
                f" or on () 0 * count({newest(f'gpu:gpu_price:per_hour{{{MODEL}}}')})",
                "GPUs",
            ),
            unit="short",
            thresholds=TICKET_ABOVE_ZERO,
            no_value=NO_PRICES,
            width=6,
        ),
        timeseries(
            "Energy in a day by model",
            "Energy of the day before each point, by the boards' own counters.",
            Query(f"sum by (model) (model:gpu_energy_joules:increase1d{{{MODEL}}}) / 3.6e6", "{{model}}"),
            unit="kwatth",
            minimum=0,
            thresholds=NEUTRAL,
            no_value=NO_RULES,
        ),
        timeseries(
            "Cost an hour by namespace and account (estimate)",
            "GPU time had times the operator's price table, in its currency.",
            Query(payers(f"payer:gpu_cost:per_hour{{{FLEET}}}"), "{{namespace}} {{slurm_account}} {{user}}"),
            unit="locale",
            minimum=0,
            stacked=True,
            thresholds=NEUTRAL,
            no_value=NO_PRICES,
        ),
        table(
            "Cost by namespace and account (estimate)",
            "GPU time had times the operator's price table, and energy times the tariff, in its currency.",
            [
                Label(
                    "namespace",
                    links=[row_link("Requests and GPUs of this namespace", "gpu-node-service", "namespace")],
                ),
                Label("slurm_account"),
                Label("user"),
            ],
            [
                Column("30 days", month, unit="locale", decimals=2),
                Column("Day", or_none(payers(day), month, BY_PAYER), unit="locale", decimals=2),
                Column(
                    "Energy an hour",
                    or_none(payers(f"payer:gpu_energy_cost:per_hour{{{FLEET}}}"), month, BY_PAYER),
                    unit="locale",
                    decimals=2,
                ),
            ],
            sort_by="30 days",
            no_value=NO_PRICES,
            height=9,
        ),
        bargauge(
            "Budget spent over 30 days (estimate)",
            "Share of the operator's budgets that is spent, by namespace and by Slurm account. Above 100 % it is a "
            "ticket of its owner.",
            Query(
                f"max by (cluster, namespace, slurm_account) ({newest(f'budget:gpu_cost:ratio_30d{{{CLUSTER}}}')})",
                "{{cluster}} {{namespace}} {{slurm_account}}",
            ),
            unit="percentunit",
            decimals=0,
            maximum=1,
            thresholds=steps((None, GREEN), (0.8, YELLOW), (1, ORANGE)),
            no_value="not configured",
            width=8,
        ),
        table(
            "Cost by Slurm job in seven days (estimate)",
            "The twenty dearest Slurm jobs of the last seven days.",
            [Label("slurm_job"), Label("slurm_account"), Label("user")],
            [
                Column(
                    "Cost",
                    f"topk(20, sum by (slurm_job, slurm_account, user)"
                    f" (sum_over_time(slurm_job:gpu_cost:per_hour{{{FLEET}}}[7d])) / 12)",
                    unit="locale",
                    decimals=2,
                )
            ],
            sort_by="Cost",
            no_value="no Slurm job had a GPU, or no price table is configured",
            width=8,
        ),
        table(
            "Cost by Kubernetes job in seven days (estimate)",
            "The twenty dearest workloads of the last seven days. Pods are lifted to their Job, PyTorchJob or other "
            "controller with the help of kube-state-metrics.",
            [Label("namespace"), Label("workload_kind"), Label("workload")],
            [
                Column(
                    "Cost",
                    f"topk(20, sum by (namespace, workload_kind, workload)"
                    f" (sum_over_time(workload:gpu_cost:per_hour{{{CLUSTER}}}[7d])) / 12)",
                    unit="locale",
                    decimals=2,
                )
            ],
            sort_by="Cost",
            no_value="no price table is configured, or kube-state-metrics is not scraped",
            width=8,
        ),
    ]


def inventory() -> list[Placed]:
    node = "cluster, job, instance"
    driver = f"max by ({node}, driver_version) (gpu_driver_info{{{FLEET}}})"
    firmware = "model, vbios_version, gsp_firmware_version"
    cohorts = f"sum by (cluster, job, driver_version) (driver_version:gpu:count{{{FLEET}}})"
    return [
        bargauge(
            "GPUs by model",
            "GPUs that the nodes list now.",
            Query(f"sum by (model) (count by (cluster, job, model) (gpu_info{{{MODEL}}}))", "{{model}}"),
            unit="short",
            thresholds=NEUTRAL,
            no_value="no GPU",
            width=6,
        ),
        table(
            "Models, drivers and firmware",
            "How many GPUs have which driver, VBIOS and GSP firmware. One model with several versions is a roll-out "
            "under way, or one that was forgotten. An empty driver: the driver of the node is away.",
            [
                Label("model"),
                Label("driver_version"),
                Label("vbios_version"),
                Label("gsp_firmware_version"),
            ],
            [
                Column(
                    "GPUs",
                    f"count by ({firmware}, driver_version) (gpu_info{{{MODEL}}} * on ({node})"
                    f" group_left (driver_version) {driver}) or count by ({firmware})"
                    f" (gpu_info{{{MODEL}}} unless on ({node}) {driver})",
                )
            ],
            sort_by="GPUs",
            no_value="no GPU",
            width=18,
        ),
        table(
            "Driver versions compared",
            "Whether GPUs with one driver are worse off than the others: what a roll-out is judged by.",
            [Label("driver_version")],
            [
                Column("GPUs", cohorts),
                Column(
                    "Unhealthy",
                    or_none(
                        f"max by (cluster, job, driver_version) (driver_version:gpu_unhealthy:ratio{{{FLEET}}})",
                        cohorts,
                        "cluster, job, driver_version",
                    ),
                    unit="percentunit",
                    decimals=1,
                    thresholds=steps((None, NONE), (0.01, ORANGE)),
                    paint=True,
                ),
                Column(
                    "Canary unhappy",
                    or_none(
                        f"max by (cluster, job, driver_version) (driver_version:gpu_canary_bad:ratio{{{FLEET}}})",
                        cohorts,
                        "cluster, job, driver_version",
                    ),
                    unit="percentunit",
                    decimals=1,
                    thresholds=steps((None, NONE), (0.01, ORANGE)),
                    paint=True,
                ),
            ],
            sort_by="GPUs",
            no_value="no driver answers, or alerts/recording.rules.yml is not loaded",
            width=24,
            height=6,
        ),
    ]


class Fleet(Board):
    """Without a variable for nodes: what is recorded of models and payers has none."""

    def build(self) -> dict[str, typing.Any]:
        made = super().build()
        for annotation in made["annotations"]["list"]:
            annotation["expr"] = annotation["expr"].replace(',instance=~"$instance"', "")
        return made


def board() -> Board:
    board = Fleet(
        "gpu-node-capacity",
        "GPU nodes: capacity",
        "Do we need more, and where is waste?",
        variables=[
            *node_variables()[:3],
            query_variable(
                "model",
                "Model",
                f"label_values(gpu_info{{{FLEET}}}, model)",
                description="Model of the GPUs. Owners, MIG and cost are of all models.",
                all_value=".+",
            ),
        ],
        start="now-30d",
        refresh="5m",
    )
    board.row("Do we need more?", need())
    board.row("Where is waste?", waste())
    board.row("At which hours?", hours())
    board.row("What does it take? Money is an estimate.", cost())
    board.row("What do we have?", inventory())
    return board
