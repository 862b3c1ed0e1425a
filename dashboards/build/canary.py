"""Does every GPU compute right, and at its rate?"""

from common import (
    BAD_ABOVE_ZERO,
    BLUE,
    BY_GPU,
    BY_NODE,
    GPU,
    GPU_FROM_SERIES,
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
    YELLOW,
    Board,
    Column,
    Label,
    Placed,
    Query,
    bargauge,
    by_gpu,
    gpu_rows,
    gpu_variable,
    heatmap,
    mapped,
    most,
    node_variables,
    or_none,
    or_zero,
    special,
    stat,
    steps,
    table,
    timeseries,
)

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
WORDS = mapped({index: (word, color) for index, (_, word, color) in enumerate(VERDICTS)})
COLORS = steps((None, GREEN), (1, YELLOW), (2, GREY), (5, ORANGE), (10, RED))
CHECKS = (
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
BROKEN = 'verdict=~"wrong_result|driver_fault|hung"'
SLOW = 'verdict=~"slow|slow_sm|degraded_memory|narrowed_link|unexplained_clock_cap"'
LINE = "{{instance}} GPU {{gpu}}"
OFF = "the canary is off"
# GPUs on which it has run.
TESTED = f"gpu_canary_last_run_timestamp_seconds{{{GPU}}}"
# Where it may run at all.
ON = f'gpu_canary_mode{{{NODE},mode!="off"}} == 1'


def code(check: str) -> str:
    """The newest verdict of a check as its number, or the worst of several."""
    found = " or ".join(
        f'((gpu_canary_verdict{{{GPU},check=~"{check}",verdict="{name}"}} == 1) * 0 + {index})'
        for index, (name, _, _) in enumerate(VERDICTS)
    )
    return or_none(by_gpu(found), THIS_GPU)


def count_of(verdicts: str) -> str:
    """Zero only where something was tested: a canary that never ran has found nothing wrong."""
    return or_zero(
        f"""count(max by ({BY_GPU}) (gpu_canary_verdict{{{GPU},{verdicts}}} == 1
            or gpu_mig_canary_verdict{{{GPU},{verdicts}}} == 1))""",
        f"gpu_canary_verdict{{{GPU}}} or gpu_mig_canary_verdict{{{GPU}}}",
    )


def fleet() -> list[Placed]:
    return [
        stat(
            "GPUs that compute wrongly",
            "GPUs with results in the newest run that differ from the CPU's, that broke the driver's state or hung. "
            "Take them out of service at once.",
            Query(count_of(BROKEN), "GPUs"),
            unit="short",
            thresholds=BAD_ABOVE_ZERO,
            no_value="none tested",
        ),
        stat(
            "Silent corruption in the time shown",
            "Results and words that were wrong, of all runs. One is one too many.",
            Query(f"sum(increase(gpu_canary_mismatches_total{{{GPU}}}[$__range]) and on ({BY_GPU}) {TESTED})", "wrong"),
            unit="short",
            thresholds=BAD_ABOVE_ZERO,
            no_value="none tested",
            decimals=0,
        ),
        stat(
            "GPUs below their rate",
            "GPUs whose newest run was slow for a reason in the hardware: a slow SM, memory, link or clock.",
            Query(count_of(SLOW), "GPUs"),
            unit="short",
            thresholds=TICKET_ABOVE_ZERO,
            no_value="none tested",
        ),
        stat(
            "GPUs not tested for 6 h",
            "GPUs whose newest run ended over six hours ago, or of which no run is known. A busy GPU is left alone.",
            Query(
                or_zero(
                    f"""count({THIS_GPU} and on ({BY_NODE}) ({ON})
                        unless on ({BY_GPU}) (gpu_canary_last_run_timestamp_seconds{{{GPU}}} > time() - 21600))""",
                    ON,
                ),
                "GPUs",
            ),
            unit="short",
            thresholds=steps((None, GREEN), (1, YELLOW)),
            no_value=OFF,
        ),
        stat(
            "Share of GPU time it takes",
            "Time for which the canary keeps GPUs busy, of all GPU time: meant to be below 0.1 %.",
            Query(
                f"avg(rate(gpu_canary_gpu_seconds_total{{{GPU}}}[1h]) and on ({BY_NODE}) ({ON}))",
                "share",
            ),
            unit="percentunit",
            thresholds=steps((None, GREEN), (0.001, YELLOW), (0.005, ORANGE)),
            no_value=OFF,
            decimals=3,
        ),
        stat(
            "Nodes where it is off",
            "Nodes that do not test their GPUs.",
            Query(
                or_zero(f'count(gpu_canary_mode{{{NODE},mode="off"}} == 1)', f"gpu_canary_mode{{{NODE}}}"),
                "nodes",
            ),
            unit="short",
            thresholds=steps((None, GREEN), (1, YELLOW)),
            no_value="not scraped",
        ),
    ]


def each() -> list[Placed]:
    never = special("not run")
    return [
        table(
            "Newest verdict of every check",
            "What each check last found on each GPU, the worst first. A GPU in MIG mode is tested by instance: see the "
            "MIG board. Not run: never since the exporter knows it, or the GPU does not answer.",
            gpu_rows(160),
            [
                *(
                    Column(title, code(check), thresholds=COLORS, mappings=[WORDS, never], paint=True, width=95)
                    for check, title in ((".+", "worst"), *CHECKS)
                ),
                Column(
                    "newest run",
                    or_none(by_gpu(f"gpu_canary_last_run_timestamp_seconds{{{GPU}}} * 1000"), THIS_GPU),
                    unit="dateTimeFromNow",
                    mappings=[never],
                    width=120,
                ),
                Column(
                    "newest success",
                    or_none(by_gpu(f"gpu_canary_last_success_timestamp_seconds{{{GPU}}} * 1000"), THIS_GPU),
                    unit="dateTimeFromNow",
                    mappings=[never],
                    width=120,
                ),
                Column(
                    "next",
                    or_none(by_gpu(f"gpu_canary_next_due_timestamp_seconds{{{GPU}}} * 1000"), THIS_GPU),
                    unit="dateTimeFromNow",
                    mappings=[special("not planned")],
                    width=120,
                ),
            ],
            no_value="no GPU is known",
            height=11,
            sort_by="worst",
        ),
        table(
            "Multiprocessors that stand out",
            "Multiprocessors that were slow or wrong in the newest run; at most eight a GPU.",
            [
                *gpu_rows(170),
                Label("smid", width=80),
                Label("kind"),
            ],
            [
                Column(
                    "told",
                    f"max by ({BY_GPU}, smid, kind) (gpu_canary_bad_sm_info{{{GPU}}})",
                    hidden=True,
                )
            ],
            no_value="none stood out",
            width=8,
        ),
        bargauge(
            "Slowest against their siblings",
            "Rates compared with the other GPUs of the model on the node, the ten lowest. Where there are too few of "
            "them to compare with, there are none.",
            Query(
                f'bottomk(10, min by (instance, gpu, check) (gpu_canary_rate_ratio{{{GPU},against="siblings"}}))',
                f"{LINE} {{{{check}}}}",
            ),
            unit="percentunit",
            thresholds=steps((None, RED), (0.9, ORANGE), (0.97, GREEN)),
            no_value="none yet",
            minimum=0.5,
            maximum=1.1,
            decimals=1,
            links=[GPU_FROM_SERIES],
        ),
        bargauge(
            "Share of the hardware's best",
            "Rates compared with what the model can do at most, the ten lowest.",
            Query(
                f"""bottomk(10, min by (instance, gpu, check) (gpu_canary_rate_ratio{{{GPU},against="roofline"}}))""",
                f"{LINE} {{{{check}}}}",
            ),
            unit="percentunit",
            thresholds=steps((None, ORANGE), (0.7, BLUE)),
            no_value="not run yet",
            maximum=1.1,
            decimals=1,
            links=[GPU_FROM_SERIES],
        ),
    ]


def rates() -> list[Placed]:
    return [
        timeseries(
            "Rate against their own baseline",
            "The lowest of each GPU's checks, against its own earlier rates, of the ten lowest GPUs. A step down that "
            "stays is a change of the hardware or its clocks.",
            Query(
                most(f'min by ({BY_GPU}) (gpu_canary_rate_ratio{{{GPU},against="baseline"}})', BY_GPU, lowest=True),
                LINE,
            ),
            unit="percentunit",
            thresholds=steps((None, NONE), (0.9, GREEN)),
            draw_thresholds="line",
            no_value="no baseline yet: it takes some runs",
            links=[GPU_FROM_SERIES],
        ),
        timeseries(
            "True SM clock in the check",
            "The clock that the multiprocessors ran at, counted by themselves, of the ten lowest GPUs. NVML tells what "
            "it should be.",
            Query(most(f"max by ({BY_GPU}) (gpu_canary_sm_clock_hertz{{{GPU}}})", BY_GPU, lowest=True), LINE),
            unit="hertz",
            thresholds=NOTHING,
            no_value="not run yet",
            links=[GPU_FROM_SERIES],
        ),
        heatmap(
            "How long steps take",
            "Durations of the steps of all runs. A tail that grows is a driver that gets slow.",
            Query(
                f"sum by (le) (increase(gpu_canary_step_duration_seconds_bucket{{{NODE}}}[$__rate_interval]))",
                "{{le}}",
            ),
            unit="s",
            no_value="no run in this time",
        ),
        heatmap(
            "How rates spread",
            "Rates of valid runs against their own baselines. All of them belong close to 1.",
            Query(
                f"sum by (le) (increase(gpu_canary_sample_rate_ratio_bucket{{{NODE}}}[$__rate_interval]))",
                "{{le}}",
            ),
            unit="percentunit",
            no_value="no run with a baseline in this time",
        ),
    ]


def running() -> list[Placed]:
    return [
        timeseries(
            "Runs by how they ended",
            "Runs an hour. Abandoned: a job came, which goes first.",
            Query(f"sum by (end) (rate(gpu_canary_runs_total{{{NODE}}}[$__rate_interval])) * 3600", "{{end}}"),
            unit="short",
            thresholds=NOTHING,
            no_value="not scraped",
            minimum=0,
            stacked=True,
            width=8,
            colors={"finished": GREEN, "driver_fault": RED, "hung": RED, "broken": ORANGE},
        ),
        bargauge(
            "Why it did not run",
            "Times that a due run was put off or could not be made in the time shown, by reason, the ten most.",
            Query(f"topk(10, sum by (reason) (increase(gpu_canary_skipped_total{{{NODE}}}[$__range])))", "{{reason}}"),
            unit="short",
            thresholds=NEUTRAL,
            no_value="not scraped",
            decimals=0,
        ),
        timeseries(
            "GPU time it takes",
            "Share of each GPU's time that the canary keeps it busy, the ten most, and the most that it may.",
            [
                Query(
                    most(f"max by ({BY_GPU}) (rate(gpu_canary_gpu_seconds_total{{{GPU}}}[$__rate_interval]))", BY_GPU),
                    LINE,
                ),
                Query(f"max(gpu_canary_duty_budget_ratio{{{NODE}}})", "budget limit"),
            ],
            unit="percentunit",
            thresholds=NOTHING,
            no_value="not scraped",
            minimum=0,
            dashed=["/limit$/"],
            width=8,
        ),
        timeseries(
            "Samples thrown away",
            "Samples an hour in which somebody else used the GPU, of the ten nodes with the most.",
            Query(
                most(
                    f"sum by ({BY_NODE}) (rate(gpu_canary_discarded_total{{{GPU}}}[$__rate_interval])) * 3600", BY_NODE
                ),
                "{{instance}}",
            ),
            unit="short",
            thresholds=NOTHING,
            no_value="not scraped",
            minimum=0,
            width=12,
        ),
        timeseries(
            "Processes killed, and hung ones",
            "Canary processes that had to be killed (an hour), and GPUs on which one hangs now, of the ten nodes with "
            "the most of each.",
            [
                Query(
                    most(
                        f"sum by ({BY_NODE}) (rate(gpu_canary_kills_total{{{NODE}}}[$__rate_interval])) * 3600", BY_NODE
                    ),
                    "{{instance}} killed",
                ),
                # A hang has a series from the first time on: until then there is none where the canary is known.
                Query(
                    most(
                        f"""sum by ({BY_NODE}) (gpu_canary_hung{{{GPU}}})
                            or sum by ({BY_NODE}) (gpu_canary_mode{{{NODE}}}) * 0""",
                        BY_NODE,
                    ),
                    "{{instance}} hung",
                ),
            ],
            unit="short",
            thresholds=steps((None, NONE), (1, RED)),
            no_value="not scraped",
            minimum=0,
            width=12,
        ),
    ]


def board() -> Board:
    board = Board(
        "gpu-node-canary",
        "GPU nodes: canary",
        "Does every GPU compute right, and at its rate?",
        variables=[*node_variables(), gpu_variable()],
        start="now-24h",
        refresh="1m",
    )
    board.row("In all", fleet())
    board.row("By GPU", each())
    board.row("Rates", rates())
    board.row("Runs", running())
    return board
