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
    ("sm_sdc", "right results"),
    ("hbm_read", "memory rate"),
    ("hbm_walk", "memory words"),
    ("l2", "L2"),
    ("pcie", "PCIe"),
    ("launch", "launch"),
)
OFF = "the canary is off"
NEVER = special("not run")


def code(check: str) -> str:
    """The newest verdict of a check as its number, or the worst of several."""
    found = " or ".join(
        f'((gpu_canary_verdict{{$GPU,check=~"{check}",verdict="{name}"}} == 1) * 0 + {index})'
        for index, (name, _, _) in enumerate(VERDICTS)
    )
    return or_none(by_gpu(found), "$THIS_GPU")


def count_of(verdicts: str) -> str:
    """Zero only where something was tested: a canary that never ran has found nothing wrong."""
    return or_zero(
        f"""count(max by ($BY_GPU) (gpu_canary_verdict{{$GPU,{verdicts}}} == 1
            or gpu_mig_canary_verdict{{$GPU,{verdicts}}} == 1))""",
        "gpu_canary_verdict{$GPU} or gpu_mig_canary_verdict{$GPU}",
    )


dashboard = Dashboard(
    "gpu-node-canary",
    "GPU nodes: canary",
    "Does every GPU compute right, and at its rate?",
    variables=[*node_variables(), gpu_variable()],
    start="now-24h",
    refresh="1m",
    terms={
        "BROKEN": 'verdict=~"wrong_result|driver_fault|hung"',
        "SLOW": 'verdict=~"slow|slow_sm|degraded_memory|narrowed_link|unexplained_clock_cap"',
        # GPUs on which it has run.
        "TESTED": "gpu_canary_last_run_timestamp_seconds{$GPU}",
        # Where it may run at all.
        "ON": 'gpu_canary_mode{$NODE,mode!="off"} == 1',
    },
)

dashboard.row("In all", no_value="none tested").panels(
    stat("GPUs that compute wrongly", steps=BAD_ABOVE_ZERO)
    .help("""GPUs with results in the newest run that differ from the CPU's, that broke the driver's state or hung.
        Take them out of service at once.""")
    .query(count_of("$BROKEN"), "GPUs"),
    stat("Silent corruption in the time shown", steps=BAD_ABOVE_ZERO, decimals=0)
    .help("Results and words that were wrong, of all runs. One is one too many.")
    .query("sum(increase(gpu_canary_mismatches_total{$GPU}[$__range]) and on ($BY_GPU) $TESTED)", "wrong"),
    stat("GPUs below their rate", steps=TICKET_ABOVE_ZERO)
    .help("GPUs whose newest run was slow for a reason in the hardware: a slow SM, memory, link or clock.")
    .query(count_of("$SLOW"), "GPUs"),
    stat("GPUs not tested for 6 h", steps=steps(GREEN, 1, YELLOW), no_value=OFF)
    .help("GPUs whose newest run ended over six hours ago, or of which no run is known. A busy GPU is left alone.")
    .query(or_zero("""count($THIS_GPU and on ($BY_NODE) ($ON)
            unless on ($BY_GPU) (gpu_canary_last_run_timestamp_seconds{$GPU} > time() - 21600))""", "$ON"), "GPUs"),
    stat("Share of GPU time it takes", unit="percentunit", steps=steps(GREEN, 0.001, YELLOW, 0.005, ORANGE),
        no_value=OFF, decimals=3)
    .help("Time for which the canary keeps GPUs busy, of all GPU time: meant to be below 0.1 %.")
    .query("avg(rate(gpu_canary_gpu_seconds_total{$GPU}[1h]) and on ($BY_NODE) ($ON))", "share"),
    stat("Nodes where it is off", steps=steps(GREEN, 1, YELLOW), no_value="not scraped")
    .help("Nodes that do not test their GPUs.")
    .query(or_zero('count(gpu_canary_mode{$NODE,mode="off"} == 1)', "gpu_canary_mode{$NODE}"), "nodes"),
)

dashboard.row("By GPU").panels(
    table("Newest verdict of every check", no_value="no GPU is known", height=11, sort_by="worst")
    .help("""What each check last found on each GPU, the worst first. A GPU in MIG mode is tested by instance: see the
        MIG board. Not run: never since the exporter knows it, or the GPU does not answer.""")
    .gpus(160)
    .columns(*((title, code(check)) for check, title in CHECKS), steps=COLORS, mappings=[TEXTS, NEVER], width=95)
    .column("newest run", or_none(by_gpu("gpu_canary_last_run_timestamp_seconds{$GPU} * 1000"), "$THIS_GPU"),
        unit="dateTimeFromNow", mappings=[NEVER], width=120)
    .column("newest success", or_none(by_gpu("gpu_canary_last_success_timestamp_seconds{$GPU} * 1000"), "$THIS_GPU"),
        unit="dateTimeFromNow", mappings=[NEVER], width=120)
    .column("next", or_none(by_gpu("gpu_canary_next_due_timestamp_seconds{$GPU} * 1000"), "$THIS_GPU"),
        unit="dateTimeFromNow", mappings=[special("not planned")], width=120),
    table("Multiprocessors that stand out", no_value="none stood out", width=8)
    .help("Multiprocessors that were slow or wrong in the newest run; at most eight a GPU.")
    .gpus(170)
    .label("smid", width=80)
    .label("kind")
    .labels_from("max by ($BY_GPU, smid, kind) (gpu_canary_bad_sm_info{$GPU})"),
    bargauge("Slowest against their siblings", unit="percentunit", steps=steps(RED, 0.9, ORANGE, 0.97, GREEN),
        no_value="none yet", minimum=0.5, maximum=1.1, decimals=1, links=[GPU_FROM_SERIES])
    .help("""Rates compared with the other GPUs of the model on the node, the ten lowest. Where there are too few of
        them to compare with, there are none.""")
    .query('bottomk(10, min by (instance, gpu, check) (gpu_canary_rate_ratio{$GPU,against="siblings"}))',
        "$LINE {{check}}"),
    bargauge("Share of the hardware's best", unit="percentunit", steps=steps(ORANGE, 0.7, BLUE), no_value="not run yet",
        maximum=1.1, decimals=1, links=[GPU_FROM_SERIES])
    .help("Rates compared with what the model can do at most, the ten lowest.")
    .query('bottomk(10, min by (instance, gpu, check) (gpu_canary_rate_ratio{$GPU,against="roofline"}))',
        "$LINE {{check}}"),
)

dashboard.row("Rates").panels(
    timeseries("Rate against their own baseline", unit="percentunit", steps=steps(NONE, 0.9, GREEN), draw_steps="line",
        no_value="no baseline yet: it takes some runs", links=[GPU_FROM_SERIES])
    .help("""The lowest of each GPU's checks, against its own earlier rates, of the ten lowest GPUs. A step down that
        stays is a change of the hardware or its clocks.""")
    .query(most('min by ($BY_GPU) (gpu_canary_rate_ratio{$GPU,against="baseline"})', "$BY_GPU", lowest=True), "$LINE"),
    timeseries("True SM clock in the check", unit="hertz", steps=NOTHING, no_value="not run yet",
        links=[GPU_FROM_SERIES])
    .help("""The clock that the multiprocessors ran at, counted by themselves, of the ten lowest GPUs. NVML tells what
        it should be.""")
    .query(most("max by ($BY_GPU) (gpu_canary_sm_clock_hertz{$GPU})", "$BY_GPU", lowest=True), "$LINE"),
    heatmap("How long steps take", unit="s", no_value="no run in this time")
    .help("Durations of the steps of all runs. A tail that grows is a driver that gets slow.")
    .query("sum by (le) (increase(gpu_canary_step_duration_seconds_bucket{$NODE}[$__rate_interval]))", "{{le}}"),
    heatmap("How rates spread", unit="percentunit", no_value="no run with a baseline in this time")
    .help("Rates of valid runs against their own baselines. All of them belong close to 1.")
    .query("sum by (le) (increase(gpu_canary_sample_rate_ratio_bucket{$NODE}[$__rate_interval]))", "{{le}}"),
)

dashboard.row("Runs", no_value="not scraped").panels(
    timeseries("Runs by how they ended", steps=NOTHING, minimum=0, stacked=True, width=8,
        colors={"finished": GREEN, "driver_fault": RED, "hung": RED, "broken": ORANGE})
    .help("Runs an hour. Abandoned: a job came, which goes first.")
    .query("sum by (end) (rate(gpu_canary_runs_total{$NODE}[$__rate_interval])) * 3600", "{{end}}"),
    bargauge("Why it did not run", decimals=0)
    .help("Times that a due run was put off or could not be made in the time shown, by reason, the ten most.")
    .query("topk(10, sum by (reason) (increase(gpu_canary_skipped_total{$NODE}[$__range])))", "{{reason}}"),
    timeseries("GPU time it takes", unit="percentunit", steps=NOTHING, minimum=0, dashed=["/limit$/"], width=8)
    .help("Share of each GPU's time that the canary keeps it busy, the ten most, and the most that it may.")
    .query(most("max by ($BY_GPU) (rate(gpu_canary_gpu_seconds_total{$GPU}[$__rate_interval]))", "$BY_GPU"), "$LINE")
    .query("max(gpu_canary_duty_budget_ratio{$NODE})", "budget limit"),
    timeseries("Samples thrown away", steps=NOTHING, minimum=0, width=12)
    .help("Samples an hour in which somebody else used the GPU, of the ten nodes with the most.")
    .query(most("sum by ($BY_NODE) (rate(gpu_canary_discarded_total{$GPU}[$__rate_interval])) * 3600", "$BY_NODE"),
        "{{instance}}"),
    timeseries("Processes killed, and hung ones", steps=steps(NONE, 1, RED), minimum=0, width=12)
    .help("""Canary processes that had to be killed (an hour), and GPUs on which one hangs now, of the ten nodes with
        the most of each.""")
    .query(most("sum by ($BY_NODE) (rate(gpu_canary_kills_total{$NODE}[$__rate_interval])) * 3600", "$BY_NODE"),
        "{{instance}} killed")
    .query(
        most("sum by ($BY_NODE) (gpu_canary_hung{$GPU}) or sum by ($BY_NODE) (gpu_canary_mode{$NODE}) * 0", "$BY_NODE"),
        "{{instance}} hung"),
)
