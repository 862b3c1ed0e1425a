"""Does every GPU compute right, and at its rate?"""

from kit import *

# Verdicts from well to worst; the number is their value in the table.
VERDICTS = (
    ("ok", "ok", GREEN),
    ("throttled", "throttled", YELLOW),
    ("contended", "contended", GREY),
    ("skipped", "skipped", GREY),
    ("could_not_run", "could not run", GREY),
    ("slow", "slow", ORANGE),
    ("unexplained_clock_cap", "clock capped", ORANGE),
    ("narrowed_link", "narrow link", ORANGE),
    ("degraded_memory", "slow memory", ORANGE),
    ("slow_sm", "slow SM", ORANGE),
    ("wrong_result_suspected", "suspected wrong", RED),
    ("hung", "hung", RED),
    ("driver_fault", "driver fault", RED),
    ("wrong_result", "WRONG", RED),
)
TEXTS = mapped({index: (text, color) for index, (_, text, color) in enumerate(VERDICTS)})
COLORS = steps(GREEN, 1, YELLOW, 2, GREY, 5, ORANGE, 10, RED)
CHECKS = (
    (".+", "worst"),
    ("init", "starts"),
    ("sm_rate", "SM rate"),
    ("tensor", "tensor"),
    ("sm_sdc", "SM results"),
    ("hbm_read", "HBM rate"),
    ("hbm_walk", "HBM data"),
    ("l2", "L2"),
    ("pcie", "PCIe"),
    ("launch", "launch"),
)
OFF = "the canary is off"
NEVER = special("not run")


def number(check: str) -> str:
    """The newest verdict of a check as its number, or the worst of several."""
    found = " or ".join(
        f'((gpu_canary_verdict{{$GPU,check=~"{check}",verdict="{name}"}} == 1) * 0 + {index})'
        for index, (name, _, _) in enumerate(VERDICTS)
    )
    return by_gpu(found)


def of_worst(expr: str) -> str:
    """For the table of the worst GPUs."""
    return or_none(f"({expr}) and on ($BY_GPU) $WORST", "$WORST")


def code(check: str) -> str:
    return of_worst(number(check))


def gap(against: str) -> str:
    """By how much rates are below what they are compared with."""
    return f'clamp_min(max by (instance, gpu, check) (1 - gpu_canary_rate_ratio{{$GPU,against="{against}"}}), 0)'


def count_of(verdicts: str) -> str:
    """Zero only where something was tested: a canary that never ran has found nothing wrong."""
    return or_zero(
        f"""count(max by ($BY_GPU) (gpu_canary_verdict{{$GPU,{verdicts}}} == 1
            or gpu_mig_canary_verdict{{$GPU,{verdicts}}} == 1))""",
        "gpu_canary_verdict{$GPU} or gpu_mig_canary_verdict{$GPU}",
    )


dashboard = Dashboard(
    "gpu-node-canary",
    "GPU / Canary",
    "Does every GPU compute right, and at its rate?",
    variables=[*node_variables(), gpu_variable()],
    start="now-24h",
    refresh="1m",
    terms={
        "BROKEN": 'verdict=~"wrong_result|driver_fault|hung"',
        "SLOW": 'verdict=~"slow|slow_sm|degraded_memory|narrowed_link|unexplained_clock_cap"',
        # The thirty with the worst verdict; of a fleet the others are counted above.
        "WORST": """topk(30, max by ($BY_GPU) (gpu_canary_verdict{$GPU,$BROKEN} == 1) + 2
            or max by ($BY_GPU) (gpu_canary_verdict{$GPU,verdict!~"ok|$HARMLESS"} == 1) + 1
            or max by ($BY_GPU) (gpu_canary_verdict{$GPU,verdict=~"$HARMLESS"} == 1) or $THIS_GPU * 0)""",
        "HARMLESS": "throttled|contended|skipped|could_not_run",
        # GPUs on which it has run.
        "TESTED": "gpu_canary_last_run_timestamp_seconds{$GPU}",
        # Where it may run at all.
        "ON": 'gpu_canary_mode{$NODE,mode!="off"} == 1',
    },
)

dashboard.row("Now", no_value="none tested").panels(
    stat("Wrong or hung", steps=BAD_ABOVE_ZERO)
    .help("""GPUs whose newest run had wrong results, a driver fault or a hang. Take them out of service at once.""")
    .query(count_of("$BROKEN"), "GPUs"),
    stat("Wrong results", steps=BAD_ABOVE_ZERO, decimals=0)
    .help("Wrong results and memory words of all runs in the time shown. A single one is a fault.")
    .query("sum(increase(gpu_canary_mismatches_total{$GPU}[$__range]) and on ($BY_GPU) $TESTED)", "wrong"),
    stat("Slow", steps=TICKET_ABOVE_ZERO)
    .help("GPUs whose newest run was slow because of the hardware: SM, memory, link or clock.")
    .query(count_of("$SLOW"), "GPUs"),
    stat("Not tested for 6 h", steps=steps(GREEN, 1, YELLOW), no_value=OFF)
    .help("GPUs whose newest run ended over six hours ago, or without a known run. The canary does not run on busy GPUs.")
    .query(or_zero("""count($THIS_GPU and on ($BY_NODE) ($ON)
            unless on ($BY_GPU) (gpu_canary_last_run_timestamp_seconds{$GPU} > time() - 21600))""", "$ON"), "GPUs"),
    stat("Share of GPU time", unit="percentunit", steps=steps(GREEN, 0.001, YELLOW, 0.005, ORANGE),
        no_value=OFF, decimals=3)
    .help("Share of all GPU time that the canary uses. It should be below 0.1 %.")
    .query("avg(rate(gpu_canary_gpu_seconds_total{$GPU}[1h]) and on ($BY_NODE) ($ON))", "share"),
    stat("Nodes without canary", steps=steps(GREEN, 1, YELLOW), no_value="not scraped")
    .help("Nodes whose canary is off.")
    .query(or_zero('count(gpu_canary_mode{$NODE,mode="off"} == 1)', "gpu_canary_mode{$NODE}"), "nodes"),
)

dashboard.row("By GPU").panels(
    table("Newest verdict by check", no_value="no GPU is known", height=11, sort_by="worst")
    .help("""Newest verdict of each check on the thirty worst GPUs. Instances of a GPU in MIG mode are on the MIG
        dashboard. Not run: never since the exporter knows the GPU, or the GPU does not answer.""")
    .gpus(150)
    .columns(*((title, code(check)) for check, title in CHECKS), steps=COLORS, mappings=[TEXTS, NEVER], width=90)
    .column("newest run", of_worst(by_gpu("gpu_canary_last_run_timestamp_seconds{$GPU} * 1000")),
        unit="dateTimeFromNow", mappings=[NEVER], width=132)
    .column("newest success", of_worst(by_gpu("gpu_canary_last_success_timestamp_seconds{$GPU} * 1000")),
        unit="dateTimeFromNow", mappings=[NEVER], width=132)
    .column("next", of_worst(by_gpu("gpu_canary_next_due_timestamp_seconds{$GPU} * 1000")),
        unit="dateTimeFromNow", mappings=[special("not planned")]),
    table("Slow or wrong multiprocessors", no_value="none was slow or wrong", width=8)
    .help("Multiprocessors that were slow or wrong in the newest run; at most eight a GPU.")
    .gpus(170)
    .label("smid", width=80)
    .label("kind")
    .labels_from("max by ($BY_GPU, smid, kind) (gpu_canary_bad_sm_info{$GPU})"),
    bargauge("Below their siblings", unit="percentunit", steps=steps(GREEN, 0.03, ORANGE, 0.1, RED), no_value="none yet",
        maximum=0.5, decimals=1, links=[GPU_FROM_SERIES])
    .help("""How far the rate is below that of the other GPUs of the model on the node, the ten largest gaps. None where
        there are too few GPUs to compare with.""")
    .query(f"topk(10, {gap('siblings')})", "$LINE {{check}}"),
    bargauge("Below the roofline", unit="percentunit", steps=steps(BLUE, 0.3, ORANGE), no_value="not run yet", maximum=1,
        decimals=1, links=[GPU_FROM_SERIES])
    .help("How far the rate is below the maximum of the model, the ten largest gaps.")
    .query(f"topk(10, {gap('roofline')})", "$LINE {{check}}"),
    table("Throttled in the newest run", no_value="no run was throttled", width=12, height=6)
    .help("GPUs whose newest verdict is throttled: clocks were held down during a check, so its rate was not judged.")
    .gpus(170)
    .label("check")
    .labels_from('max by ($BY_GPU, check) (gpu_canary_verdict{$GPU,verdict="throttled"} == 1)'),
    table("Overdue for a week", no_value="no run is overdue for a week", width=12, height=6, sort_by="overdue for")
    .help("Healthy GPUs whose next run has been due for more than seven days, the twenty longest: always busy, or skipped.")
    .gpus(170)
    .column("overdue for", """topk(20, max by ($BY_GPU) (time() - (gpu_canary_next_due_timestamp_seconds{$GPU}
        < time() - 7 * 86400 > time() - 365 * 86400)) and on ($BY_GPU) gpu_healthy{$GPU} == 1)""", unit="dtdurations"),
)

dashboard.row("Rates").panels(
    timeseries("Rate against their own baseline", unit="percentunit", steps=steps(NONE, 0.9, GREEN), draw_steps="line",
        no_value="no baseline yet: it takes some runs", links=[GPU_FROM_SERIES])
    .help("""The lowest of each GPU's checks, against its own earlier rates, of the ten lowest GPUs. A step down that
        stays is a change of the hardware or its clocks.""")
    .query(most('min by ($BY_GPU) (gpu_canary_rate_ratio{$GPU,against="baseline"})', "$BY_GPU", lowest=True), "$LINE"),
    timeseries("Measured SM clock", unit="hertz", decimals=2, steps=NOTHING, no_value="not run yet",
        links=[GPU_FROM_SERIES])
    .help("""Clock of the multiprocessors during the checks, by their own counters, of the ten lowest GPUs. NVML reports the
        nominal one.""")
    .query(most("max by ($BY_GPU) (gpu_canary_sm_clock_hertz{$GPU})", "$BY_GPU", lowest=True), "$LINE"),
    heatmap("Duration of steps", unit="s", no_value="no run in this time")
    .help("Durations of the steps of all runs. A tail that grows is a driver that becomes slow.")
    .query("sum by (le) (increase(gpu_canary_step_duration_seconds_bucket{$NODE}[$__rate_interval]))", "{{le}}"),
    heatmap("Distribution of rates", unit="percentunit", no_value="no run with a baseline in this time")
    .help("Rates of valid runs against their own baselines. All should be close to 1.")
    .query("sum by (le) (increase(gpu_canary_sample_rate_ratio_bucket{$NODE}[$__rate_interval]))", "{{le}}"),
)

dashboard.row("Runs", no_value="not scraped").panels(
    timeseries("Runs by end", steps=NOTHING, minimum=0, stacked=True, width=8,
        colors={"finished": GREEN, "abandoned": BLUE, "could_not_run": YELLOW, "broken": ORANGE, "hung": RED,
            "driver_fault": "dark-red"})
    .help("Runs an hour. Abandoned: a job came, which has priority.")
    .query("sum by (end) (rate(gpu_canary_runs_total{$NODE}[$__rate_interval])) * 3600", "{{end}}"),
    bargauge("Reasons for skipped runs", decimals=0)
    .help("Due runs that were postponed or impossible in the time shown, by reason, the ten most frequent.")
    .query("topk(10, sum by (reason) (increase(gpu_canary_skipped_total{$NODE}[$__range])))", "{{reason}}"),
    timeseries("Share of GPU time by GPU", unit="percentunit", steps=NOTHING, minimum=0, dashed=["/limit$/"], width=8)
    .help("Share of each GPU's time that the canary uses, the five largest, and the budget.")
    .query(most("max by ($BY_GPU) (rate(gpu_canary_gpu_seconds_total{$GPU}[$__rate_interval]))", "$BY_GPU", count=5),
        "$LINE")
    .query("max(gpu_canary_duty_budget_ratio{$NODE})", "budget limit"),
    timeseries("Discarded samples", steps=NOTHING, minimum=0, soft_maximum=1, width=12)
    .help("Samples an hour that were discarded because other work used the GPU, of the ten nodes with the most.")
    .query(most("sum by ($BY_NODE) (rate(gpu_canary_discarded_total{$GPU}[$__rate_interval])) * 3600", "$BY_NODE"),
        "{{instance}}"),
    timeseries("Killed and hung processes", steps=steps(NONE, 1, RED), minimum=0, soft_maximum=1, width=12)
    .help("""Canary processes that had to be killed (an hour), and GPUs on which one hangs now, of the five nodes with
        the most of each.""")
    .query(most("sum by ($BY_NODE) (rate(gpu_canary_kills_total{$NODE}[$__rate_interval])) * 3600", "$BY_NODE",
            count=5), "{{instance}} killed")
    .query(most("sum by ($BY_NODE) (gpu_canary_hung{$GPU}) or sum by ($BY_NODE) (gpu_canary_mode{$NODE}) * 0", "$BY_NODE",
            count=5), "{{instance}} hung"),
)
