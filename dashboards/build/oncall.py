"""What is broken now, and what do I do? Every query here is cheap: newest values and recorded series only, so that
the board answers at once for a fleet."""

from common import (
    ALERT,
    BAD_ABOVE_ZERO,
    BLUE,
    BY_GPU,
    BY_NODE,
    GPU_FROM_ROW,
    GPU_FROM_SERIES,
    GREEN,
    GREY,
    INVENTORY,
    NEUTRAL,
    NODE,
    NOT_TOLD,
    NOTHING,
    ORANGE,
    RED,
    RUNBOOKS,
    TARGETS,
    TICKET_ABOVE_ZERO,
    YELLOW,
    Board,
    Column,
    Label,
    Placed,
    Query,
    bargauge,
    board_link,
    by_gpu,
    gpu_rows,
    mapped,
    matrix,
    node_variables,
    or_none,
    or_zero,
    row_link,
    special,
    stat,
    steps,
    table,
    timeseries,
    url_link,
)

FIRING = f'alertname=~"Gpu.+",alertstate="firing",{ALERT}'
# Always firing while rules are evaluated: without it the absence of alerts means nothing.
WATCHDOG = 'ALERTS{alertname="GpuWatchdog",alertstate="firing"}'
RUNBOOK = url_link("Runbook", f"{RUNBOOKS}/${{__data.fields.alertname}}.md")
RULES_MISSING = "unknown: no rules"

# What keeps clocks down and is neither idleness nor somebody's setting.
HELD_DOWN = 'reason=~"hw_slowdown|hw_thermal_slowdown|hw_power_brake_slowdown|sw_thermal_slowdown|sw_power_cap"'


# Verdicts of the canary that mean that the GPU cannot be relied on.
BROKEN = 'verdict=~"wrong_result|driver_fault|hung"'


def firing(severity: str) -> str:
    return or_zero(f'count(ALERTS{{{FIRING},severity="{severity}"}})', WATCHDOG)


def alerts(severity: str) -> str:
    """Seconds for which each alert has been true."""
    since = f'ALERTS_FOR_STATE{{alertname=~"Gpu.+",severity="{severity}",{ALERT}}}'
    return f"""max by (cluster, alertname, instance, gpu, gpu_instance, owner, team) (
        time() - {since} and ignoring (alertstate) ALERTS{{{FIRING},severity="{severity}"}})"""


def alert_table(title: str, description: str, severity: str, no_value: str, height: int) -> Placed:
    return table(
        title,
        description,
        [
            Label("alertname", links=[RUNBOOK], width=260),
            Label("instance", links=[row_link("Its GPUs", "gpu-node-drilldown", "instance")], width=200),
            Label("gpu", links=[GPU_FROM_ROW], width=70),
            Label("gpu_instance", width=110),
            Label("owner", width=260),
            Label("team", width=100),
        ],
        [Column("for", alerts(severity), unit="dtdurations", width=220)],
        no_value=no_value,
        height=height,
        sort_by="for",
        descending=False,
    )


def worth_a_look(*conditions: str) -> str:
    """The GPUs that meet one of the conditions."""
    return " or ".join(f"{by_gpu(condition)}" for condition in conditions)


def of_these(expr: str, these: str) -> str:
    """The value for these GPUs alone, and none where it is absent. What is left out first need not be added up."""
    return or_none(by_gpu(f"({expr}) and on ({BY_GPU}) ({these})"), f"({these})")


def now() -> list[Placed]:
    return [
        stat(
            "Pages",
            "Alerts firing that lose work or data now. Zero is told only while the rules are evaluated.",
            Query(firing("page"), "pages"),
            unit="short",
            thresholds=BAD_ABOVE_ZERO,
            no_value=RULES_MISSING,
            width=3,
        ),
        stat(
            "Tickets",
            "Alerts firing that can wait for the day.",
            Query(firing("ticket"), "tickets"),
            unit="short",
            thresholds=TICKET_ABOVE_ZERO,
            no_value=RULES_MISSING,
            width=3,
        ),
        stat(
            "GPUs out",
            "GPUs that cannot be used, those of nodes that are down included, those in a planned window left out.",
            Query(f"sum(instance:gpu_unhealthy:gpus{{{NODE}}})", "GPUs"),
            unit="short",
            thresholds=BAD_ABOVE_ZERO,
            no_value=RULES_MISSING,
            width=3,
            links=[board_link("Capacity", "gpu-node-capacity")],
        ),
        stat(
            "Nodes not scraped",
            "Exporters that Prometheus cannot reach: of their GPUs nothing is known.",
            Query(or_zero(f"count({TARGETS} == 0)", TARGETS), "nodes"),
            unit="short",
            thresholds=BAD_ABOVE_ZERO,
            no_value="no target",
            width=3,
            links=[board_link("The exporter", "gpu-node-exporter")],
        ),
        stat(
            "Drivers not answering",
            "Nodes whose driver is away or stuck. A driver released for an upgrade is not counted.",
            Query(
                or_zero(
                    f"count(max by ({BY_NODE}) (gpu_driver_stuck{{{NODE}}} == 1 or gpu_driver_up{{{NODE}}} == 0))",
                    f"gpu_driver_stuck{{{NODE}}}",
                ),
                "nodes",
            ),
            unit="short",
            thresholds=BAD_ABOVE_ZERO,
            no_value="not scraped",
            width=3,
            links=[board_link("The exporter", "gpu-node-exporter")],
        ),
        stat(
            "Canary: wrong or hung",
            "GPUs and MIG instances whose newest check computed wrongly, broke the driver's state or hung.",
            Query(
                or_zero(
                    f"""count(max by ({BY_GPU}) (gpu_canary_verdict{{{NODE},{BROKEN}}} == 1
                        or gpu_mig_canary_verdict{{{NODE},{BROKEN}}} == 1))""",
                    f"gpu_canary_verdict{{{NODE}}} or gpu_mig_canary_verdict{{{NODE}}}",
                ),
                "GPUs",
            ),
            unit="short",
            thresholds=BAD_ABOVE_ZERO,
            no_value="none tested",
            width=3,
            links=[board_link("Canary", "gpu-node-canary")],
        ),
        stat(
            "Error budget burn, 1 h",
            "How fast unusable GPUs use up the budget of 1 % of GPU-minutes: at 1 it lasts just as long as it must.",
            Query('max(job:gpu_unhealthy:burnrate1h{cluster=~"$cluster",job=~"$job"})', "burn"),
            unit="short",
            thresholds=steps((None, GREEN), (1, YELLOW), (2, ORANGE), (14.4, RED)),
            no_value=RULES_MISSING,
            decimals=1,
            width=3,
            links=[board_link("Capacity", "gpu-node-capacity")],
        ),
        stat(
            "Rules evaluated",
            "Whether the watchdog alert fires, as it always must. If it does not, no alert of this board can.",
            Query(f"count({WATCHDOG})", "watchdog"),
            unit="short",
            thresholds=steps((None, RED), (1, GREEN)),
            no_value="no",
            mappings=[mapped({1: ("yes", GREEN)}), special("no", RED)],
            width=3,
        ),
    ]


def which() -> list[Placed]:
    healthy = f"max by ({BY_GPU}) (3 - 3 * gpu_healthy{{{NODE}}})"
    silent = f"{INVENTORY} * 0 + 1"
    # Of a node that is not scraped, or whose driver is released, nothing is told: what was there within the last hour.
    gone = f"""max by ({BY_GPU}) (last_over_time(gpu_info{{{NODE}}}[1h])) * 0
        + on ({BY_NODE}) group_left () (2 - max by ({BY_NODE}) (up{{{NODE}}}))"""
    state = f"max by (instance, gpu) ({healthy} or on ({BY_GPU}) ({silent}) or on ({BY_GPU}) ({gone}))"
    info = "model, serial, pci_address"
    reason = f"max by ({BY_GPU}, uuid, reason) (gpu_unhealthy_reason{{{NODE}}} == 1)"
    return [
        matrix(
            "Health of every GPU",
            "Rows are nodes, columns the GPUs' numbers. Down: the exporter tells that the GPU cannot be relied on. "
            "Unknown: the driver is away or released. Not scraped: the exporter is silent, the GPU was there within "
            "the last hour. A node without a GPU has no row.",
            state,
            row="instance",
            column="gpu",
            thresholds=steps((None, GREEN), (1, GREY), (2, ORANGE), (3, RED)),
            mappings=[
                mapped({0: ("ok", GREEN), 1: ("unknown", GREY), 2: ("not scraped", ORANGE), 3: ("down", RED)}),
            ],
            no_value="no GPU is known",
            row_links=[board_link("Its GPUs", "gpu-node-drilldown", instance="${__value.text:percentencode}")],
            height=9,
        ),
        table(
            "Why they are down",
            "Each reason why a GPU cannot be relied on, with what the board is called when it is sent in. What to do "
            "is in the runbook of its alert.",
            [
                *gpu_rows(170),
                Label("reason", width=150),
                Label("model", width=130),
                Label("serial", width=130),
                Label("pci_address", width=130),
                Label("uuid"),
            ],
            [
                Column(
                    "told",
                    f"""{reason} * on ({BY_GPU}, uuid) group_left ({info})
                        max by ({BY_GPU}, uuid, {info}) (gpu_info{{{NODE}}})
                        or on ({BY_GPU}, uuid, reason) {reason}""",
                    hidden=True,
                )
            ],
            no_value="no GPU tells of a reason",
            height=7,
        ),
    ]


def faults() -> list[Placed]:
    recent = f"gpu_xid_last_event_timestamp_seconds{{{NODE}}} > time() - 86400"
    rows = "cluster, job, instance, gpu, xid, severity, action"
    memory = worth_a_look(
        f'gpu_ecc_total_errors{{{NODE},counter="volatile",error="uncorrected"}} > 0',
        f"gpu_row_remap_pending{{{NODE}}} == 1",
        f"gpu_row_remap_failure{{{NODE}}} == 1",
        f"gpu_ecc_sram_threshold_exceeded{{{NODE}}} == 1",
        f"gpu_retired_pages_pending{{{NODE}}} == 1",
        f"gpu_repair_pending{{{NODE}}} == 1",
    )

    def told(title: str, expr: str, color: str) -> Column:
        """A column that is yes, in this colour, or no."""
        return Column(
            title,
            of_these(expr, memory),
            thresholds=steps((None, GREEN), (1, color)),
            mappings=[mapped({0: ("no", GREEN), 1: ("yes", color)}), NOT_TOLD],
            paint=True,
            width=90,
        )

    return [
        table(
            "Xids of the last day",
            "GPUs with an Xid within 24 h, and all the codes counted since their exporter started. The action is the "
            "first thing to do by the table of codes. Of a GPU that the driver does not list any more the codes are "
            "on the board of its node.",
            [
                *gpu_rows(170),
                Label("xid", width=60),
                Label("severity", width=80),
                Label("action", width=130),
            ],
            [
                Column(
                    "times",
                    f"""max by ({rows}) (gpu_xid_errors_total{{{NODE}}} > 0
                        and on ({BY_GPU}, uuid) ({recent}))""",
                    width=70,
                ),
                Column(
                    "newest",
                    f"""max by ({rows}) ((gpu_xid_errors_total{{{NODE}}} > 0) * 0
                        + on ({BY_GPU}, uuid) group_left () ({recent}) * 1000)""",
                    unit="dateTimeFromNow",
                ),
            ],
            no_value="no Xid within 24 h",
            width=12,
            sort_by="newest",
        ),
        table(
            "Memory errors",
            "GPUs with uncorrected errors since the driver was loaded, or with a repair that waits for a reset or has "
            "failed. Failed, or over the vendor's limit of SRAM errors: a candidate for return.",
            gpu_rows(150),
            [
                Column(
                    "uncorrected",
                    of_these(f'gpu_ecc_total_errors{{{NODE},counter="volatile",error="uncorrected"}}', memory),
                    thresholds=BAD_ABOVE_ZERO,
                    paint=True,
                    width=90,
                ),
                Column(
                    "corrected",
                    of_these(f'gpu_ecc_total_errors{{{NODE},counter="volatile",error="corrected"}}', memory),
                    thresholds=NEUTRAL,
                    width=90,
                ),
                told("remap waits", f"gpu_row_remap_pending{{{NODE}}} or gpu_retired_pages_pending{{{NODE}}}", ORANGE),
                told("failed", f"gpu_row_remap_failure{{{NODE}}}", RED),
                told("SRAM limit", f"gpu_ecc_sram_threshold_exceeded{{{NODE}}}", RED),
                told("repair waits", f"gpu_repair_pending{{{NODE}}}", ORANGE),
            ],
            no_value="no GPU tells of memory errors",
            width=12,
            sort_by="uncorrected",
        ),
    ]


def slow() -> list[Placed]:
    to_slowdown = f"""max by ({BY_GPU}) (gpu_temperature_threshold_celsius{{{NODE},threshold="slowdown"}})
        - max by ({BY_GPU}) (gpu_temperature_celsius{{{NODE},sensor="gpu"}})"""
    links = worth_a_look(
        f"gpu_pcie_link_width_lanes{{{NODE}}} < gpu_pcie_link_max_width_lanes{{{NODE}}}",
        f"gpu_nvlink_links_up{{{NODE}}} < gpu_nvlink_links{{{NODE}}}",
        f"gpu_fabric_fault{{{NODE}}} == 1",
        f'gpu_fabric_state{{{NODE},state=~"not_started|in_progress"}} == 1',
    )
    flag = mapped({0: ("no", GREEN), 1: ("yes", RED)})
    return [
        bargauge(
            "Clocks held down, by reason",
            "How many GPUs' worth of time is lost to each reason now. A power cap is often as intended; heat and "
            "power brake never are. Two reasons can hold the same GPU.",
            Query(
                f"sum by (reason) (rate(gpu_clock_event_seconds_total{{{NODE},{HELD_DOWN}}}[$__rate_interval]))",
                "{{reason}}",
            ),
            unit="short",
            thresholds=steps((None, GREEN), (0.1, YELLOW), (1, ORANGE)),
            no_value="not measured",
            decimals=2,
            width=7,
        ),
        bargauge(
            "Nearest to slowing down for heat",
            "Degrees left to the device's own threshold, the ten GPUs that have least.",
            Query(
                f"bottomk(10, {by_gpu(f'gpu_temperature_margin_celsius{{{NODE}}}')} or on ({BY_GPU}) ({to_slowdown}))",
                "{{instance}} GPU {{gpu}}",
            ),
            unit="celsius",
            thresholds=steps((None, RED), (1, ORANGE), (6, GREEN)),
            no_value="not measured",
            links=[GPU_FROM_SERIES],
            width=7,
        ),
        table(
            "Links below what they can be",
            "GPUs whose PCIe link has fewer lanes than it could, that lack NVLinks, or whose fabric is not ready.",
            gpu_rows(150),
            [
                Column("lanes", of_these(f"gpu_pcie_link_width_lanes{{{NODE}}}", links), width=70),
                Column("of", of_these(f"gpu_pcie_link_max_width_lanes{{{NODE}}}", links), width=60),
                Column("NVLinks up", of_these(f"gpu_nvlink_links_up{{{NODE}}}", links), width=100),
                Column("of all", of_these(f"gpu_nvlink_links{{{NODE}}}", links), width=70),
                Column(
                    "fabric fault",
                    of_these(f"gpu_fabric_fault{{{NODE}}}", links),
                    thresholds=BAD_ABOVE_ZERO,
                    mappings=[flag, NOT_TOLD],
                    paint=True,
                ),
            ],
            no_value="no GPU tells of a link below its best",
            width=10,
        ),
    ]


def history() -> list[Placed]:
    return [
        timeseries(
            "GPUs out over time",
            "GPUs that cannot be used, by scrape job; planned windows left out.",
            Query(
                'sum by (cluster, job) (job:gpu_unhealthy:gpus{cluster=~"$cluster",job=~"$job"})', "{{cluster}} {{job}}"
            ),
            unit="short",
            thresholds=BAD_ABOVE_ZERO,
            no_value="rules not evaluated",
            minimum=0,
            decimals=0,
        ),
        timeseries(
            "Alerts firing over time",
            "Pages and tickets. The watchdog's line is always at 1: a gap in it is a time without alerting.",
            [
                Query(firing("page"), "pages"),
                Query(firing("ticket"), "tickets"),
                Query(f"count({WATCHDOG})", "watchdog"),
            ],
            unit="short",
            thresholds=NOTHING,
            no_value="rules not evaluated",
            minimum=0,
            decimals=0,
            colors={"pages": RED, "tickets": ORANGE, "watchdog": BLUE},
        ),
    ]


def board() -> Board:
    board = Board(
        "gpu-node-oncall",
        "GPU nodes: on call",
        "What is broken now, and what do I do?",
        variables=node_variables(),
    )
    board.row("Now", now())
    board.row(
        "Act now",
        [
            alert_table(
                "Pages firing",
                "Work or data is lost now. The name leads to the runbook, the GPU to its own board.",
                "page",
                "no page fires (see whether rules are evaluated)",
                8,
            ),
            alert_table(
                "Tickets firing",
                "What can wait for the day. A page of the same GPU comes first.",
                "ticket",
                "no ticket fires (see whether rules are evaluated)",
                8,
            ),
        ],
    )
    board.row("Which GPUs", which())
    board.row("Faults", faults())
    board.row("Slowed down", slow())
    board.row("Since when", history())
    return board
