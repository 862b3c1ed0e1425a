"""What is sent about this node or rack, and who is hit? Newest values, recorded series and alerts, so that the
dashboard answers at once for a fleet as well."""

import incidents
from incidents import add_columns, count_sent, firing, sent, since, with_summary
from kit import *

NO_RULES = "rules not evaluated"
NOT_SCRAPED = "not scraped"
# Texts in cells that are 0 or 1.
NO_OR_ORANGE = mapped({0: ("no", GREEN), 1: ("yes", ORANGE)})
NO_OR_RED = mapped({0: ("no", GREEN), 1: ("yes", RED)})
TREND = {"no_value": "not measured", "interval": "5m", "width": 8, "height": 9}
OF_OWNER = [row_link("Job", "gpu-node-job", "owner")]


def alert_table(title: str, severity: str, help: str, *, height: int) -> Table:
    """Alerts that are sent, with the owner that has most memory on the GPU, if the alert names none itself."""
    of_gpus = since(sent(severity, 'gpu!="",owner=""'))
    every = f"(({of_gpus} * on (cluster, instance, gpu) group_left (owner) $HIT) or on ($ROW) {since(sent(severity))})"
    return (
        add_columns(table(title, no_value=f"no {severity} is sent, or rules are not evaluated", sort_by="for",
            height=height).label("cluster", width=90), summary_width=None)
        .widths(alertname=220, reason=165)
        .help(help)
        .label("instance", links=[row_link("Host", "gpu-node-host", "instance")], width=150)
        .label("gpu", links=[GPU_FROM_ROW], width=50)
        .label("gpu_instance", width=110)
        .label("owner", links=OF_OWNER, width=220)
        .label("team", width=80)
        .column("for", f"max by ($ROW, summary, owner) ({with_summary(every)})", unit="dtdurations", width=130)
    )


def any_of(*conditions: str) -> str:
    """The GPUs that meet one of the conditions."""
    return " or ".join(conditions)


def of_these(expr: str, these: str) -> str:
    """The value for these GPUs alone. Of a fleet few are left before anything is added up."""
    return by_gpu(f"({expr}) and on ($BY_GPU) ({these})")


def changes(kind: str = ".+") -> str:
    """Loads of the driver, resets of GPUs and reboots of a node in a day, where there are any."""
    return f'sum by ($BY_NODE) (sum_over_time(instance:gpu_changes:increase5m{{$NODE,change=~"{kind}"}}[1d]))'


def count_changes(kind: str) -> str:
    """0 only where the rules that count changes are evaluated."""
    return or_zero(f"sum({changes(kind)})", "instance:gpu_expected:gpus{$NODE}")


def of_changed(expr: str) -> str:
    """The value of each node that changed, or 0."""
    return f"({expr}) and on ($BY_NODE) $CHANGED or on ($BY_NODE) $CHANGED * 0"


def highest(series: str) -> str:
    """The ten GPUs whose recorded value was highest in the time shown. No sums and no subqueries: for a fleet each of
    them costs as much again."""
    return f"{series} and on ($BY_GPU, uuid) topk(10, max_over_time({series}[$__range] @ end()))"


dashboard = Dashboard(
    "gpu-node-oncall",
    "GPU / On call",
    "What is sent about this node or rack, who is hit, and what changed?",
    variables=node_variables(rack=True),
    terms=incidents.TERMS
    | {
        "NODE": 'cluster=~"$cluster",job=~"$job",rack=~"$rack",instance=~"$instance"',
        # An alert of the fleet has no rack, one of a rack no instance, one of a node no GPU.
        "ALERT": 'cluster=~"$cluster",job=~"$job|",rack=~"$rack|",instance=~"$instance|"',
        "ALERTS_OF_GPUS": firing('severity=~"page|ticket",gpu!=""'),
        "FIRES": firing('severity=~"page|ticket"'),
        "ROW": "cluster, alertname, reason, instance, gpu, gpu_instance, team",
        # The rack may be a label of the exporter's own series alone.
        "UP": 'up{cluster=~"$cluster",job=~"$job",instance=~"$instance"}',
        "TARGETS": """(up{$NODE,job=~".*gpu-node-exporter.*"} or $UP and on ($BY_NODE) $SEEN)""",
        "HIT": """(topk by (cluster, instance, gpu) (1, max by (cluster, instance, gpu, owner) (
            gpu_owner_memory_used_bytes{$NODE} and on (cluster, instance, gpu) $ALERTS_OF_GPUS)) * 0 + 1)""",
        # What keeps clocks down and is neither idleness nor a setting.
        "HELD_DOWN": 'reason=~"hw_slowdown|hw_thermal_slowdown|hw_power_brake_slowdown|sw_thermal_slowdown"',
        "DOWN": "max by ($BY_NODE) ($TARGETS == 0)",
        "PROBLEMS": """topk(30, count by ($BY_NODE) (gpu_healthy{$NODE} == 0) or max by ($BY_NODE) (gpu_driver_up{$NODE}
            == 0) + 1 or max by ($BY_NODE) (gpu_driver_stuck{$NODE} == 1) or $DOWN + 1)""",
        # 0 ok, 1 unknown, 2 not scraped, 3 down, of a selection of all GPUs as few times as can be.
        "STATE": """max by (instance, gpu) ((3 - 3 * gpu_healthy{$NODE} or on ($BY_GPU) gpu_up{$NODE} * 0 + 1)
            and on ($BY_NODE) $PROBLEMS
            or (gpu_info{$NODE} offset 1h) * 0 + 2 and on ($BY_NODE) $DOWN)""",
        "INFO": "model, serial, pci_address",
        "REASON": "max by ($BY_GPU, uuid, reason) (gpu_unhealthy_reason{$NODE} == 1)",
        "RECENT": "gpu_xid_last_event_timestamp_seconds{$NODE} > time() - 86400",
        "MEMORY": any_of(
            'gpu_ecc_total_errors{$NODE,counter="volatile",error="uncorrected"} > 0',
            "gpu_row_remap_pending{$NODE} == 1",
            "gpu_row_remap_failure{$NODE} == 1",
            "gpu_ecc_sram_threshold_exceeded{$NODE} == 1",
            "gpu_retired_pages_pending{$NODE} == 1",
            "gpu_repair_pending{$NODE} == 1",
        ),
        "LINKS": any_of(
            "gpu:gpu_pcie_lanes:fewer{$NODE}",
            "gpu_nvlink_links_up{$NODE} < gpu_nvlink_links{$NODE}",
            'gpu_fabric_state{$NODE,state=~"not_started|in_progress"} == 1',
        ),
        # Owners on GPUs with an alert, or that cannot be used.
        "HIT_OWNERS": """(max by ($OWNER) (gpu_owner_info{$NODE}) and on (cluster, instance, gpu)
            (max by (cluster, instance, gpu) ($ALERTS_OF_GPUS) or max by (cluster, instance, gpu) (gpu_healthy{$NODE}
            == 0)))""",
        "OWNER": "$BY_GPU, gpu_instance, owner",
        "PARTS": "slurm_account, user",
        "CHANGED": f"topk(30, {changes()})",
        # kube-state-metrics and Slurm's exporter have scrape jobs of their own.
        "CLUSTER": 'cluster=~"$cluster"',
    },
)

dashboard.row("Now", width=3, no_value=NO_RULES).panels(
    stat("Pages sent", steps=BAD_ABOVE_ZERO)
    .help("""Pages that fire and that no other alert, drained node or maintenance window inhibits, as far as Prometheus
        knows. Silences of Alertmanager are not included. Zero only while rules are evaluated.""")
    .query(count_sent("page"), "pages"),
    stat("Tickets sent", steps=TICKET_ABOVE_ZERO)
    .help("Tickets that fire and are not inhibited, in the same way.")
    .query(count_sent("ticket"), "tickets"),
    stat("Unusable GPUs", steps=BAD_ABOVE_ZERO, links=[dashboard_link("Fleet", "gpu-node-fleet")])
    .help("GPUs that cannot be used, those of nodes that are down included. Planned windows are not counted.")
    .query("sum(instance:gpu_unhealthy:gpus{$NODE})", "GPUs"),
    stat("Nodes not scraped", steps=BAD_ABOVE_ZERO, no_value="no target",
        links=[dashboard_link("Exporter", "gpu-node-exporter")])
    .help("Targets that Prometheus cannot scrape. The state of their GPUs is unknown.")
    .query(or_zero("count($DOWN)", "$TARGETS"), "nodes"),
    stat("Drained, window", steps=steps(BLUE, 1, YELLOW))
    .help("Nodes that are cordoned, draining or in a maintenance window: their alerts are inhibited.")
    .query(or_zero("count($QUIET)", "$WATCHDOG"), "nodes"),
    stat("Driver loads, 24 h", steps=steps(BLUE, 1, YELLOW), decimals=0)
    .help("Loads of the driver in the last 24 h.")
    .query(count_changes("driver_load"), "loads"),
    stat("GPU resets, 24 h", steps=steps(BLUE, 1, YELLOW), decimals=0)
    .help("Resets of GPUs in the last 24 h.")
    .query(count_changes("gpu_reset"), "resets"),
    stat("Reboots, 24 h", steps=steps(BLUE, 1, YELLOW), decimals=0)
    .help("Reboots of nodes in the last 24 h.")
    .query(count_changes("reboot"), "reboots"),
)

dashboard.row("Sent").panels(
    alert_table("Pages", "page",
        """Pages that are not inhibited. The name leads to the runbook, the GPU to its dashboard. The owner is the one
        with most memory on the GPU; all are below.""", height=7),
    alert_table("Tickets", "ticket", "Tickets that are not inhibited. A page of the same GPU inhibits its tickets.",
        height=9),

    table("Inhibited", no_value="no alert is inhibited", sort_by="alertname", descending=False, height=5)
    .help("""Alerts that fire and are not sent: another alert covers them, or the node is drained or in a maintenance
        window.""")
    .label("cluster", width=90)
    .label("alertname", links=[incidents.RUNBOOK], width=220)
    .label("reason", width=165)
    .label("instance", width=150)
    .label("gpu", links=[GPU_FROM_ROW], width=50)
    .column("alerts",
        "count by (cluster, alertname, reason, instance, gpu) ($FIRES and $INHIBITED)"),
)

dashboard.row("Who is hit").panels(
    table("Owners on GPUs with an alert", sort_by="memory", no_value="no owner is on a GPU with an alert", width=12,
        height=6, labels_last=["slurm_account", "user"])
    .help("Owners with processes, now or within a quarter of an hour, on GPUs that have an alert or cannot be used.")
    .label("cluster", width=70)
    .label("instance", width=130)
    .label("gpu", links=[GPU_FROM_ROW], width=50)
    .label("owner", links=OF_OWNER, width=215)
    .label("slurm_account", width=125)
    .label("user", width=95)
    .column("memory", or_none("max by ($OWNER) (gpu_owner_memory_used_bytes{$NODE}) and on ($OWNER) $HIT_OWNERS",
            "$HIT_OWNERS", "$OWNER"), unit="bytes", width=90)
    .labels_from("max by ($OWNER, $PARTS) (gpu_owner_info{$NODE}) and on ($OWNER) $HIT_OWNERS"),
    stat("GPU pods pending", steps=TICKET_ABOVE_ZERO, no_value=NOT_SCRAPED, width=3, height=6)
    .help("Pending pods that request GPUs, of the cluster. Needs kube-state-metrics and the optional Kubernetes rules.")
    .query("sum(cluster:kube_gpu_pods_pending:count{$CLUSTER})", "pods"),
    stat("Longest pod wait", unit="s", steps=steps(GREEN, 1800, ORANGE), no_value=NOT_SCRAPED, width=3,
        height=6)
    .help("Age of the oldest pending pod that requests GPUs.")
    .query("max(namespace:kube_gpu_pods_pending_wait:max{$CLUSTER}) or on () 0 * max(kube_state_metrics:up{$CLUSTER})",
        "wait"),
    table("Failed GPU jobs, 24 h", sort_by="failed", no_value=NOT_SCRAPED, width=6, height=6)
    .help("The ten workloads with the most failed runs. Needs kube-state-metrics and the optional Kubernetes rules.")
    .label("cluster", width=80)
    .labels("namespace", "workload", width=110)
    .column("failed", """topk(10, sum by (cluster, namespace, workload) (
        last_over_time(workload:kube_gpu_runs_failed:count1d{$CLUSTER}[10m]))) or on () label_replace(
        0 * max(kube_state_metrics:up{$CLUSTER}), "workload", "none failed", "", "")""", decimals=0, width=70),
)

dashboard.row("Faults").panels(
    matrix("GPUs of nodes with a problem", row="instance", column="gpu", steps=steps(GREEN, 1, GREY, 2, ORANGE, 3, RED),
        mappings=[mapped({0: ("ok", GREEN), 1: ("unknown", GREY), 2: ("not scraped", ORANGE), 3: ("down", RED)})],
        no_value="no node has a GPU that is down",
        row_links=[dashboard_link("Host", "gpu-node-host", instance="${__value.text:percentencode}")],
        width=12, height=8)
    .help("""At most 30 nodes; columns are the GPUs' indices. Down: a reason keeps the GPU from being used. Unknown: the
        driver does not answer or is released. Not scraped: the node had this GPU an hour ago.""")
    .query("$STATE"),
    table("Reasons", no_value="no GPU has a reason", width=12, height=8)
    .help("Reasons why GPUs cannot be used, and the serial number that the vendor asks for.")
    .label("cluster", width=80)
    .gpus(130)
    .label("reason", width=150)
    .labels("serial", "model", "pci_address", width=125)
    .labels_from("""max by ($BY_GPU, reason, $INFO) ($REASON * on ($BY_GPU, uuid) group_left ($INFO)
        max by ($BY_GPU, uuid, $INFO) (gpu_info{$NODE} and on ($BY_GPU, uuid) gpu_unhealthy_reason{$NODE} == 1)
        or on ($BY_GPU, uuid, reason) $REASON)"""),
    table("Xids, 24 h", no_value="no Xid within 24 h", width=9, sort_by="newest")
    .help("""GPUs with an Xid within 24 h, and the newest code. All codes with their first action are on the GPU
        dashboard. Codes of a GPU that the driver does not list are in the events of the exporter.""")
    .label("cluster", width=80)
    .gpus(130)
    .column("newest code", "max by ($BY_GPU) (gpu_xid_last_code{$NODE} and on ($BY_GPU, uuid) ($RECENT))", unit="none",
        width=110)
    .column("newest", "max by ($BY_GPU) ($RECENT) * 1000", unit="dateTimeFromNow"),
    table("Memory errors", no_value="no GPU has memory errors", width=15, sort_by="uncorrected")
    .help("""GPUs with uncorrected errors since the driver was loaded, with a repair that waits for a reset, or with one
        that failed. Failed, or above the vendor's limit of SRAM errors: a candidate for return.""")
    .label("cluster", width=80)
    .gpus(130)
    .column("uncorrected", of_these('gpu_ecc_total_errors{$NODE,counter="volatile",error="uncorrected"}', "$MEMORY"),
        steps=BAD_ABOVE_ZERO, width=110)
    .column("corrected", of_these('gpu_ecc_total_errors{$NODE,counter="volatile",error="corrected"}', "$MEMORY"),
        width=95)
    .column("remap pending", of_these("gpu_row_remap_pending{$NODE} or gpu_retired_pages_pending{$NODE}", "$MEMORY"),
        steps=TICKET_ABOVE_ZERO, mappings=[NO_OR_ORANGE, ABSENT], width=130)
    .column("remap failed", of_these("gpu_row_remap_failure{$NODE}", "$MEMORY"), steps=BAD_ABOVE_ZERO,
        mappings=[NO_OR_RED, ABSENT], width=115)
    .column("SRAM limit", of_these("gpu_ecc_sram_threshold_exceeded{$NODE}", "$MEMORY"), steps=BAD_ABOVE_ZERO,
        mappings=[NO_OR_RED, ABSENT], width=105)
    .column("repair pending", of_these("gpu_repair_pending{$NODE}", "$MEMORY"), steps=TICKET_ABOVE_ZERO,
        mappings=[NO_OR_ORANGE, ABSENT], width=125),
    bargauge("Clocks held down, by reason", unit="percentunit", steps=steps(GREEN, 0.001, YELLOW, 0.01, ORANGE),
        no_value="not measured", decimals=2, width=9, height=7)
    .help("""Share of the GPUs' time that each reason takes: heat and the power brake. Two reasons can hold the same
        GPU. A power cap is often a setting and is not shown.""")
    .query("avg by (reason) (rate(gpu_clock_event_seconds_total{$NODE,$HELD_DOWN}[$__rate_interval]))", "{{reason}}"),
    table("Links below their maximum", no_value="no GPU has a link below its maximum", width=15, height=7)
    .help("GPUs whose PCIe link has fewer lanes than it could, that lack NVLinks, or whose fabric is not ready.")
    .label("cluster", width=80)
    .gpus(130)
    .column("PCIe lanes", of_these("gpu_pcie_link_width_lanes{$NODE}", "$LINKS"), width=110)
    .column("maximum lanes", of_these("gpu_pcie_link_max_width_lanes{$NODE}", "$LINKS"), width=140)
    .column("NVLinks up", of_these("gpu_nvlink_links_up{$NODE}", "$LINKS"), width=120)
    .column("NVLinks", of_these("gpu_nvlink_links{$NODE}", "$LINKS"), width=100)
    .column("fabric joined", of_these('gpu_fabric_state{$NODE,state="completed"}', "$LINKS"),
        mappings=[YES_NO, special("", NONE)], steps=GOOD_AT_ONE, width=130),
)

dashboard.row("Changes in 24 h").panels(
    table("Driver loads, resets and reboots", sort_by="reboots", no_value="no node changed in 24 h", height=7)
    .help("At most 30 nodes whose driver was loaded, or with a GPU that was reset, or that booted, in the last 24 h.")
    .label("cluster", width=90)
    .label("instance", links=[row_link("Host", "gpu-node-host", "instance")], width=180)
    .label("driver_version", width=120)
    .labels_from("max by ($BY_NODE, driver_version) (gpu_driver_info{$NODE}) and on ($BY_NODE) $CHANGED")
    .column("reboots", of_changed(changes("reboot")), decimals=0, steps=steps(NONE, 2, ORANGE))
    .column("booted", "max by ($BY_NODE) (gpu_host_boot_timestamp_seconds{$NODE} * 1000) and on ($BY_NODE) $CHANGED",
        unit="dateTimeFromNow")
    .column("driver loads", of_changed(changes("driver_load")), decimals=0, steps=steps(NONE, 2, ORANGE))
    .column("driver loaded",
        "max by ($BY_NODE) (gpu_driver_load_timestamp_seconds{$NODE} * 1000) and on ($BY_NODE) $CHANGED",
        unit="dateTimeFromNow")
    .column("GPU resets", of_changed(changes("gpu_reset")), decimals=0, steps=steps(NONE, 2, ORANGE)),
)

dashboard.row("Trends", **TREND).panels(
    shares("Utilization", steps=UTILIZATION_BAND, draw_steps="area", links=[GPU_FROM_SERIES])
    .help("""Share of time with a kernel, of the ten busiest GPUs: all GPUs of one node. Between 60 and 80 % (green) a
        GPU is well used; neither side is a fault.""")
    .query(highest("gpu:gpu_utilization:trend5m{$NODE}"), "$LINE"),
    shares("Memory used", steps=steps(NONE, 0.85, ORANGE), draw_steps="line", links=[GPU_FROM_SERIES])
    .help("Highest share of device memory in use in each 5 minutes, of the ten fullest GPUs.")
    .query(highest("gpu:gpu_memory_used:trend5m{$NODE}"), "$LINE"),
    timeseries("Temperature", unit="celsius", steps=NOTHING, links=[GPU_FROM_SERIES])
    .help("Highest temperature of each 5 minutes, of the ten hottest GPUs. The GPU dashboard shows each GPU's own limits.")
    .query(highest("gpu:gpu_temperature:trend5m{$NODE}"), "$LINE"),
)
