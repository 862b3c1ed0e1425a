"""What is broken now, and what do I do? Every query here is cheap: newest values and recorded series only, so that
the dashboard answers at once for a fleet."""

from kit import *

RUNBOOK = url_link("Runbook", f"{RUNBOOKS}/${{__data.fields.alertname}}.md")
RULES_MISSING = "unknown: no rules"
# Texts in cells that are 0 or 1.
NO_OR_ORANGE = mapped({0: ("no", GREEN), 1: ("yes", ORANGE)})
NO_OR_RED = mapped({0: ("no", GREEN), 1: ("yes", RED)})


def firing(severity: str) -> str:
    return or_zero(f'count(ALERTS{{$FIRING,severity="{severity}"}})', "$WATCHDOG")


def alerts(severity: str) -> str:
    """Seconds for which each alert has been true."""
    since = f'ALERTS_FOR_STATE{{alertname=~"Gpu.+",severity="{severity}",$ALERT}}'
    return f"""max by (cluster, alertname, instance, gpu, gpu_instance, owner, team) (
        time() - {since} and ignoring (alertstate) ALERTS{{$FIRING,severity="{severity}"}})"""


def alert_table(title: str, severity: str, help: str) -> Table:
    return (
        table(title, no_value=f"no {severity} fires (see whether rules are evaluated)", sort_by="for", descending=False)
        .help(help)
        .label("alertname", links=[RUNBOOK], width=260)
        .label("instance", links=[row_link("Its GPUs", "gpu-node-drilldown", "instance")], width=200)
        .label("gpu", links=[GPU_FROM_ROW], width=70)
        .label("gpu_instance", width=110)
        .label("owner", width=260)
        .label("team", width=100)
        .column("for", alerts(severity), unit="dtdurations", width=220)
    )


def worth_a_look(*conditions: str) -> str:
    """The GPUs that meet one of the conditions."""
    return " or ".join(f"{by_gpu(condition)}" for condition in conditions)


def of_these(expr: str, these: str) -> str:
    """The value for these GPUs alone, and none where it is absent. What is left out first need not be added up."""
    return or_none(by_gpu(f"({expr}) and on ($BY_GPU) ({these})"), f"({these})")


dashboard = Dashboard(
    "gpu-node-oncall",
    "GPU nodes: on call",
    "What is broken now, and what do I do?",
    variables=node_variables(),
    terms={
        "FIRING": 'alertname=~"Gpu.+",alertstate="firing",$ALERT',
        # Always firing while rules are evaluated: without it the absence of alerts means nothing.
        "WATCHDOG": 'ALERTS{alertname="GpuWatchdog",alertstate="firing"}',
        # What keeps clocks down and is neither idleness nor somebody's setting.
        "HELD_DOWN": 'reason=~"hw_slowdown|hw_thermal_slowdown|hw_power_brake_slowdown|'
        'sw_thermal_slowdown|sw_power_cap"',
        # Verdicts of the canary that mean that the GPU cannot be relied on.
        "BROKEN": 'verdict=~"wrong_result|driver_fault|hung"',
        "HEALTHY": "max by ($BY_GPU) (3 - 3 * gpu_healthy{$NODE})",
        "SILENT": "$INVENTORY * 0 + 1",
        # A node that is not scraped, or whose driver is released, reports nothing: its GPUs of the last hour.
        "GONE": """max by ($BY_GPU) (last_over_time(gpu_info{$NODE}[1h])) * 0 + on ($BY_NODE) group_left () (2
            - max by ($BY_NODE) (up{$NODE}))""",
        "STATE": "max by (instance, gpu) ($HEALTHY or on ($BY_GPU) ($SILENT) or on ($BY_GPU) ($GONE))",
        "INFO": "model, serial, pci_address",
        "REASON": "max by ($BY_GPU, uuid, reason) (gpu_unhealthy_reason{$NODE} == 1)",
        "RECENT": "gpu_xid_last_event_timestamp_seconds{$NODE} > time() - 86400",
        "ROWS": "cluster, job, instance, gpu, xid, severity, action",
        "MEMORY": worth_a_look(
            'gpu_ecc_total_errors{$NODE,counter="volatile",error="uncorrected"} > 0',
            "gpu_row_remap_pending{$NODE} == 1",
            "gpu_row_remap_failure{$NODE} == 1",
            "gpu_ecc_sram_threshold_exceeded{$NODE} == 1",
            "gpu_retired_pages_pending{$NODE} == 1",
            "gpu_repair_pending{$NODE} == 1",
        ),
        "TO_SLOWDOWN": """max by ($BY_GPU) (gpu_temperature_threshold_celsius{$NODE,threshold="slowdown"})
            - max by ($BY_GPU) (gpu_temperature_celsius{$NODE,sensor="gpu"})""",
        "LINKS": worth_a_look(
            "gpu_pcie_link_width_lanes{$NODE} < gpu_pcie_link_max_width_lanes{$NODE}",
            "gpu_nvlink_links_up{$NODE} < gpu_nvlink_links{$NODE}",
            "gpu_fabric_fault{$NODE} == 1",
            'gpu_fabric_state{$NODE,state=~"not_started|in_progress"} == 1',
        ),
    },
)

dashboard.row("Now", width=3, no_value=RULES_MISSING).panels(
    stat("Pages", steps=BAD_ABOVE_ZERO)
    .help("Alerts firing that lose work or data now. Zero is told only while the rules are evaluated.")
    .query(firing("page"), "pages"),
    stat("Tickets", steps=TICKET_ABOVE_ZERO)
    .help("Alerts firing that can wait for the day.")
    .query(firing("ticket"), "tickets"),
    stat("GPUs out", steps=BAD_ABOVE_ZERO, links=[dashboard_link("Capacity", "gpu-node-capacity")])
    .help("GPUs that cannot be used, those of nodes that are down included, those in a planned window left out.")
    .query("sum(instance:gpu_unhealthy:gpus{$NODE})", "GPUs"),
    stat("Nodes not scraped", steps=BAD_ABOVE_ZERO, no_value="no target",
        links=[dashboard_link("The exporter", "gpu-node-exporter")])
    .help("Exporters that Prometheus cannot reach: of their GPUs nothing is known.")
    .query(or_zero("count($TARGETS == 0)", "$TARGETS"), "nodes"),
    stat("Drivers not answering", steps=BAD_ABOVE_ZERO, no_value="not scraped",
        links=[dashboard_link("The exporter", "gpu-node-exporter")])
    .help("Nodes whose driver is away or stuck. A driver released for an upgrade is not counted.")
    .query(or_zero("count(max by ($BY_NODE) (gpu_driver_stuck{$NODE} == 1 or gpu_driver_up{$NODE} == 0))",
            "gpu_driver_stuck{$NODE}"), "nodes"),
    stat("Canary: wrong or hung", steps=BAD_ABOVE_ZERO, no_value="none tested",
        links=[dashboard_link("Canary", "gpu-node-canary")])
    .help("GPUs and MIG instances whose newest check computed wrongly, broke the driver's state or hung.")
    .query(or_zero("""count(max by ($BY_GPU) (gpu_canary_verdict{$NODE,$BROKEN} == 1
            or gpu_mig_canary_verdict{$NODE,$BROKEN} == 1))""",
            "gpu_canary_verdict{$NODE} or gpu_mig_canary_verdict{$NODE}"), "GPUs"),
    stat("Error budget burn, 1 h", steps=steps(GREEN, 1, YELLOW, 2, ORANGE, 14.4, RED), decimals=1,
        links=[dashboard_link("Capacity", "gpu-node-capacity")])
    .help("How fast unusable GPUs use up the budget of 1 % of GPU-minutes: at 1 it lasts just as long as it must.")
    .query('max(job:gpu_unhealthy:burnrate1h{cluster=~"$cluster",job=~"$job"})', "burn"),
    stat("Rules evaluated", steps=GOOD_AT_ONE, no_value="no",
        mappings=[mapped({1: ("yes", GREEN)}), special("no", RED)])
    .help("Whether the watchdog alert fires, as it always must. If it does not, no alert of this board can.")
    .query("count($WATCHDOG)", "watchdog"),
)

dashboard.row("Act now").panels(
    alert_table("Pages firing", "page",
        "Work or data is lost now. The name leads to the runbook, the GPU to its own board."),
    alert_table("Tickets firing", "ticket", "What can wait for the day. A page of the same GPU comes first."),
)

dashboard.row("Which GPUs").panels(
    matrix("Health of every GPU", row="instance", column="gpu", steps=steps(GREEN, 1, GREY, 2, ORANGE, 3, RED),
        mappings=[mapped({0: ("ok", GREEN), 1: ("unknown", GREY), 2: ("not scraped", ORANGE), 3: ("down", RED)})],
        no_value="no GPU is known",
        row_links=[dashboard_link("Its GPUs", "gpu-node-drilldown", instance="${__value.text:percentencode}")],
        height=9)
    .help("""Rows are nodes, columns the GPUs' numbers. Down: the exporter tells that the GPU cannot be relied on.
        Unknown: the driver is away or released. Not scraped: the exporter is silent, the GPU was there within the
        last hour. A node without a GPU has no row.""")
    .query("$STATE"),
    table("Why they are down", no_value="no GPU tells of a reason", height=7)
    .help("""Each reason why a GPU cannot be relied on, with what the board is called when it is sent in. What to do
        is in the runbook of its alert.""")
    .gpus(170)
    .label("reason", width=150)
    .labels("model", "serial", "pci_address", width=130)
    .label("uuid")
    .labels_from("""$REASON * on ($BY_GPU, uuid) group_left ($INFO) max by ($BY_GPU, uuid, $INFO) (gpu_info{$NODE})
        or on ($BY_GPU, uuid, reason) $REASON"""),
)

dashboard.row("Faults").panels(
    table("Xids of the last day", no_value="no Xid within 24 h", width=12, sort_by="newest")
    .help("""GPUs with an Xid within 24 h, and all the codes counted since their exporter started. The action is the
        first thing to do by the table of codes. Of a GPU that the driver does not list any more the codes are on the
        board of its node.""")
    .gpus(170)
    .label("xid", width=60)
    .label("severity", width=80)
    .label("action", width=130)
    .column("times", "max by ($ROWS) (gpu_xid_errors_total{$NODE} > 0 and on ($BY_GPU, uuid) ($RECENT))", width=70)
    .column("newest",
        "max by ($ROWS) ((gpu_xid_errors_total{$NODE} > 0) * 0 + on ($BY_GPU, uuid) group_left () ($RECENT) * 1000)",
        unit="dateTimeFromNow"),
    table("Memory errors", no_value="no GPU tells of memory errors", width=12, sort_by="uncorrected")
    .help("""GPUs with uncorrected errors since the driver was loaded, or with a repair that waits for a reset or has
        failed. Failed, or over the vendor's limit of SRAM errors: a candidate for return.""")
    .gpus(150)
    .column("uncorrected", of_these('gpu_ecc_total_errors{$NODE,counter="volatile",error="uncorrected"}', "$MEMORY"),
        steps=BAD_ABOVE_ZERO, width=90)
    .column("corrected", of_these('gpu_ecc_total_errors{$NODE,counter="volatile",error="corrected"}', "$MEMORY"),
        width=90)
    .column("remap waits", of_these("gpu_row_remap_pending{$NODE} or gpu_retired_pages_pending{$NODE}", "$MEMORY"),
        steps=TICKET_ABOVE_ZERO, mappings=[NO_OR_ORANGE, ABSENT], width=90)
    .column("failed", of_these("gpu_row_remap_failure{$NODE}", "$MEMORY"), steps=BAD_ABOVE_ZERO,
        mappings=[NO_OR_RED, ABSENT], width=90)
    .column("SRAM limit", of_these("gpu_ecc_sram_threshold_exceeded{$NODE}", "$MEMORY"), steps=BAD_ABOVE_ZERO,
        mappings=[NO_OR_RED, ABSENT], width=90)
    .column("repair waits", of_these("gpu_repair_pending{$NODE}", "$MEMORY"), steps=TICKET_ABOVE_ZERO,
        mappings=[NO_OR_ORANGE, ABSENT], width=90),
)

dashboard.row("Slowed down").panels(
    bargauge("Clocks held down, by reason", steps=steps(GREEN, 0.1, YELLOW, 1, ORANGE), no_value="not measured",
        decimals=2, width=7)
    .help("""How many GPUs' worth of time is lost to each reason now. A power cap is often as intended; heat and power
        brake never are. Two reasons can hold the same GPU.""")
    .query("sum by (reason) (rate(gpu_clock_event_seconds_total{$NODE,$HELD_DOWN}[$__rate_interval]))", "{{reason}}"),
    bargauge("Nearest to slowing down for heat", unit="celsius", steps=steps(RED, 1, ORANGE, 6, GREEN),
        no_value="not measured", links=[GPU_FROM_SERIES], width=7)
    .help("Degrees left to the device's own threshold, the ten GPUs that have least.")
    .query(f"bottomk(10, {by_gpu('gpu_temperature_margin_celsius{$NODE}')} or on ($BY_GPU) ($TO_SLOWDOWN))",
        "{{instance}} GPU {{gpu}}"),
    table("Links below what they can be", no_value="no GPU tells of a link below its best", width=10)
    .help("GPUs whose PCIe link has fewer lanes than it could, that lack NVLinks, or whose fabric is not ready.")
    .gpus(150)
    .column("lanes", of_these("gpu_pcie_link_width_lanes{$NODE}", "$LINKS"), width=70)
    .column("of", of_these("gpu_pcie_link_max_width_lanes{$NODE}", "$LINKS"), width=60)
    .column("NVLinks up", of_these("gpu_nvlink_links_up{$NODE}", "$LINKS"), width=100)
    .column("of all", of_these("gpu_nvlink_links{$NODE}", "$LINKS"), width=70)
    .column("fabric fault", of_these("gpu_fabric_fault{$NODE}", "$LINKS"), steps=BAD_ABOVE_ZERO,
        mappings=[NO_OR_RED, ABSENT]),
)

dashboard.row("Since when").panels(
    timeseries("GPUs out over time", steps=BAD_ABOVE_ZERO, no_value="rules not evaluated", minimum=0, decimals=0)
    .help("GPUs that cannot be used, by scrape job; planned windows left out.")
    .query('sum by (cluster, job) (job:gpu_unhealthy:gpus{cluster=~"$cluster",job=~"$job"})', "{{cluster}} {{job}}"),
    timeseries("Alerts firing over time", steps=NOTHING, no_value="rules not evaluated", minimum=0, decimals=0,
        colors={"pages": RED, "tickets": ORANGE, "watchdog": BLUE})
    .help("Pages and tickets. The watchdog's line is always at 1: a gap in it is a time without alerting.")
    .query(firing("page"), "pages")
    .query(firing("ticket"), "tickets")
    .query("count($WATCHDOG)", "watchdog"),
)
