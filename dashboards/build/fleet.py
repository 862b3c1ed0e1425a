"""Which nodes and GPUs of the fleet are broken? One screen for 2,000 nodes: newest values, recorded series and alerts."""

import incidents
from incidents import add_columns, count_firing, count_sent, firing, sent, since, with_summary
from kit import *
from owners import CLASSES

NO_RULES = "rules not evaluated"
NO_CLASSES = "GPU time is not counted by class, or alerts/capacity.rules.yml is not loaded"
WORST = 12
ON_CALL = "gpu-node-oncall"


def nodes(condition: str) -> str:
    return f"count(max by ($BY_NODE) ({condition}))"


def worst(by: str) -> str:
    """The groups of nodes with the most unusable GPUs, the largest of those without any last."""
    return f"""topk({WORST}, sum by ({by}) (instance:gpu_unhealthy:gpus{{$NODE}}) * 1000
        or sum by ({by}) (instance:gpu_expected:gpus{{$NODE}}) * 0
        + sum by ({by}) (instance:gpu_expected:gpus{{$NODE}}) / 1e6)"""


def of_racks(expr: str) -> str:
    return or_none(f"({expr}) and on ($BY_RACK) $RACKS", "$RACKS", "$BY_RACK")


def of_drivers(expr: str) -> str:
    return or_none(expr, "$DRIVERS", "cluster, driver_version")


def of_models(expr: str) -> str:
    return or_none(expr, "$MODELS", "cluster, model")


def team_time(classes: str) -> str:
    """GPUs of each team in classes of time; work without a known owner says so. The rule is evaluated every five minutes."""
    newest = f'last_over_time(payer:gpu_owner_gpu_seconds:rate15m{{$NODE,class=~"{classes}"}}[10m])'
    joined = f'label_join({newest}, "all", "", "namespace", "slurm_account", "user")'
    return f'sum by ($BY_TEAM) (label_replace({joined}, "user", "no owner known", "all", ""))'


def team_share(classes: str) -> str:
    """The share of their measured GPU time in these classes, 0 where all of it is in others."""
    return f"({or_zero_by(team_time(classes), '$MEASURED', '$BY_TEAM')}) / ($MEASURED > 0)"


def of_teams(classes: str) -> str:
    return or_none(f"({team_share(classes)}) and on ($BY_TEAM) $TEAMS", "$TEAMS", "$BY_TEAM")


def with_driver(expr: str) -> str:
    """Values of nodes, summed by driver version; nodes whose driver does not answer have none."""
    return f"""sum by (cluster, driver_version) (sum by ($BY_NODE) ({expr})
        * on ($BY_NODE) group_left (driver_version) $DRIVER)"""


dashboard = Dashboard(
    "gpu-node-fleet",
    "GPU / Fleet",
    "Which nodes and GPUs of the fleet are broken, since when, and what waits for repair?",
    variables=node_variables()[:3],
    refresh="1m",
    terms=incidents.TERMS
    | {
        # No variable for nodes: with 2,000 of them a choice is made on the next dashboard.
        "NODE": 'cluster=~"$cluster",job=~"$job"',
        "ALERT": 'cluster=~"$cluster",job=~"$job|"',
        "BY_RACK": "cluster, zone, rack",
        "RACKS": worst("$BY_RACK"),
        "DRIVER": "max by ($BY_NODE, driver_version) (gpu_driver_info{$NODE})",
        "DRIVERS": "count by (cluster, driver_version) (gpu_driver_info{$NODE})",
        "MODELS": "sum by (cluster, model) (instance_model:gpu:count{$NODE})",
        "BY_TEAM": "cluster, namespace, slurm_account, user",
        "MEASURED": team_time("$KNOWN"),
        "TEAMS": f"topk(20, {team_time('.+')})",
        "NOT_GOODPUT": "|".join(name for name in CLASSES if name not in {"computing", "unknown"}),
        "KNOWN": "|".join(name for name in CLASSES if name != "unknown"),
        "DOWN": "max by ($BY_NODE) ($TARGETS == 0)",
        "NO_DRIVER": "max by ($BY_NODE) (gpu_driver_stuck{$NODE} == 1 or gpu_driver_up{$NODE} == 0)",
        "BROKEN": 'verdict=~"wrong_result|driver_fault|hung"',
        # Faults of one GPU that end with a reset, a reboot or a new board. Also of drained nodes: the repair is due there.
        "REPAIRS": firing('gpu!="",alertname=~"$FAULTS"'),
        "FAULTS": "GpuBoardWorn|GpuCanaryFailing|GpuCanarySlow|GpuCanaryWrongResult|GpuEccContained|GpuHot|GpuNvlinkDown"
        "|GpuNvlinkErrors|GpuPcieDegraded|GpuRepeatOffender|GpuResetPending|GpuUnhealthy|GpuXid",
        "QUEUE": "max by ($BY_GPU, alertname, reason) ($REPAIRS)",
        "ILL": """max by ($BY_GPU, reason) (gpu_unhealthy_reason{$NODE} == 1)
            unless on ($BY_GPU) max by ($BY_GPU) ($REPAIRS)""",
        "BOARD": "model, serial, pci_address",
        # A node that is down reports no board: the one of an hour or a day ago.
        "BOARDS": """topk by ($BY_GPU) (1, max by ($BY_GPU, $BOARD) (gpu_info{$NODE} and on ($BY_GPU) ($QUEUE or $ILL))
            or on ($BY_GPU) max by ($BY_GPU, $BOARD) ((gpu_info{$NODE} offset 1h) and on ($BY_GPU) ($QUEUE or $ILL))
            or on ($BY_GPU) max by ($BY_GPU, $BOARD) ((gpu_info{$NODE} offset 1d) and on ($BY_GPU) ($QUEUE or $ILL)))""",
        "FIRES": sent("page|ticket"),
        "SENT_OF_NODES": with_summary(sent("page|ticket", 'instance!=""')),
        "SENT_OF_GPUS": with_summary(sent("page|ticket", 'gpu!=""')),
        "WHAT": "cluster, severity, alertname, reason",
    },
)

dashboard.row("Now", width=3, no_value=NO_RULES).panels(
    stat("Pages sent", steps=BAD_ABOVE_ZERO, links=[dashboard_link("On call", ON_CALL)])
    .help("""Pages that fire and are not inhibited by another alert, a drained node or a maintenance window, as far as
        Prometheus knows. Silences of Alertmanager are not included. Zero only while rules are evaluated.""")
    .query(count_sent("page"), "pages"),
    stat("Tickets sent", steps=TICKET_ABOVE_ZERO, links=[dashboard_link("On call", ON_CALL)])
    .help("Tickets that fire and are not inhibited, in the same way.")
    .query(count_sent("ticket"), "tickets"),
    stat("Unusable GPUs", steps=BAD_ABOVE_ZERO)
    .help("GPUs that cannot be used, those of nodes that are down included. Planned windows are not counted.")
    .query("sum(instance:gpu_unhealthy:gpus{$NODE})", "GPUs"),
    stat("Nodes not scraped", steps=BAD_ABOVE_ZERO, no_value="no target",
        links=[dashboard_link("Exporter", "gpu-node-exporter")])
    .help("Targets of the exporter that Prometheus cannot scrape. The state of their GPUs is unknown.")
    .query(or_zero("count($DOWN)", "$TARGETS"), "nodes"),
    stat("Drivers down", steps=BAD_ABOVE_ZERO, no_value="not scraped")
    .help("Nodes whose driver does not answer or is stuck. A driver released for an upgrade is not counted.")
    .query(or_zero("count($NO_DRIVER)", "gpu_driver_stuck{$NODE}"), "nodes"),
    stat("Drained, window", steps=steps(BLUE, 1, YELLOW))
    .help("Nodes that are cordoned, draining or in a maintenance window: their alerts are inhibited.")
    .query(or_zero("count($QUIET)", "$WATCHDOG"), "nodes"),
    stat("Budget burn, 1 h", steps=steps(GREEN, 1, YELLOW, 2, ORANGE, 14.4, RED), decimals=1,
        links=[dashboard_link("Capacity", "gpu-node-capacity")])
    .help("Rate at which unusable GPUs use the budget of 1 % of GPU time. At 1 the budget lasts exactly 30 days.")
    .query("max(job:gpu_unhealthy:burnrate1h{$NODE})", "burn"),
    stat("Rules evaluated", steps=GOOD_AT_ONE, no_value="no",
        mappings=[mapped({1: ("yes", GREEN)}), special("no", RED)])
    .help("Whether the watchdog alert fires. If not, no alert can fire.")
    .query("count($WATCHDOG)", "watchdog"),
)

dashboard.row("By state, rack, model and driver", no_value="no node").panels(
    bargauge("Nodes by state", width=3, height=9, decimals=0, no_value="no target", steps=BAD_ABOVE_ZERO,
        colors={"drained, window": YELLOW, "ready": GREEN})
    .help("Nodes by their worst state: not scraped, driver down, with an unusable GPU, drained or in a window, ready.")
    .query(or_zero("count($DOWN)", "$TARGETS"), "not scraped")
    .query(or_zero("count($NO_DRIVER)", "gpu_driver_up{$NODE}"), "driver down")
    .query(or_zero("""count((instance:gpu_unhealthy:gpus{$NODE} > 0) unless on ($BY_NODE) $NO_DRIVER
            unless on ($BY_NODE) $DOWN)""", "instance:gpu_unhealthy:gpus{$NODE}"), "GPU unusable")
    .query(or_zero("count($QUIET)", "$WATCHDOG"), "drained, window")
    .query(or_zero("""count(max by ($BY_NODE) ($TARGETS == 1) unless on ($BY_NODE) $NO_DRIVER
            unless on ($BY_NODE) (instance:gpu_unhealthy:gpus{$NODE} > 0) unless on ($BY_NODE) $QUIET)""", "$TARGETS"),
        "ready"),
    bargauge("GPUs by state", width=3, height=9, decimals=0, no_value="no GPU", steps=BAD_ABOVE_ZERO,
        colors={"healthy": GREEN})
    .help("GPUs of nodes that are not scraped, unusable GPUs by reason, and healthy ones.")
    .query("sum(instance:gpu_expected:gpus{$NODE} and on ($BY_NODE) $DOWN)", "not scraped")
    .query("count by (reason) (gpu_unhealthy_reason{$NODE} == 1)", "{{reason}}")
    .query("sum(gpu_healthy{$NODE})", "healthy"),
    table("Racks", sort_by="unusable", width=6, height=9)
    .help(f"""The {WORST} racks with the most unusable GPUs. The rack is a label of the target or a setting of the
        exporter; nodes without one are one row.""")
    .label("cluster", width=70)
    .label("zone", width=40)
    .label("rack", links=[row_link("On call, this rack", ON_CALL, "rack")], width=60)
    .column("unusable", of_racks("sum by ($BY_RACK) (instance:gpu_unhealthy:gpus{$NODE})"), steps=steps(NONE, 1, RED),
        width=85)
    .column("GPUs", of_racks("sum by ($BY_RACK) (instance:gpu_expected:gpus{$NODE})"), width=55)
    .column("nodes", of_racks("count by ($BY_RACK) (instance:gpu_expected:gpus{$NODE})"), width=55),
    table("Models", sort_by="unusable", width=6, height=9)
    .help("Models of GPUs, with those that cannot be used.")
    .label("cluster", width=80)
    .label("model", width=145)
    .column("unusable", of_models("""count by (cluster, model) (gpu:gpu_info:model{$NODE}
            and on ($BY_GPU, uuid) (gpu_healthy{$NODE} == 0)) or $MODELS * 0"""), steps=steps(NONE, 1, RED), width=90)
    .column("GPUs", "$MODELS", width=65),
    table("Drivers", sort_by="share", width=6, height=9)
    .help("""Driver versions, with the share of unusable GPUs of their nodes. A version that is worse than the others
        is a reason to stop its roll-out.""")
    .label("cluster", width=75)
    .label("driver_version", width=125)
    .share("share", of_drivers(f"{with_driver('instance:gpu_unhealthy:gpus{$NODE}')} / "
        f"({with_driver('instance:gpu_expected:gpus{$NODE}')} > 0)"), steps=steps(NONE, 0.01, ORANGE), width=60)
    .column("GPUs", of_drivers(with_driver("instance:gpu_expected:gpus{$NODE}")), width=60)
    .column("nodes", "$DRIVERS", width=60),
)

dashboard.row("Broken now").panels(
    add_columns(
        table("What is broken", sort_by="severity", descending=False, width=24, height=8,
            no_value="nothing is sent, or rules are not evaluated", labels_last=["team"])
        .help("""Alerts that are sent, by name and reason: how many nodes and GPUs, and how long the oldest has been true.
            The name leads to the runbook. Nodes are on the On call dashboard.""")
        .label("cluster", width=90)
        .label("severity", width=75,
            mappings=[mapped({"page": ("page", RED), "ticket": ("ticket", ORANGE)})], paint=True),
        summary_width=None)
    .widths(alertname=230, reason=170)
    .column("nodes", "count by ($WHAT, summary, team) (max by ($WHAT, summary, team, instance) ($SENT_OF_NODES))",
        mappings=[special("", NONE)], width=60)
    .column("GPUs", "count by ($WHAT, summary, team) (max by ($WHAT, summary, team, instance, gpu) ($SENT_OF_GPUS))",
        mappings=[special("", NONE)], width=60)
    .column("oldest", f"max by ($WHAT, summary, team) ({with_summary(since('$FIRES'))})", unit="dtdurations", width=150)
    .label("team", width=90),
    table("Repair queue", sort_by="waits", width=24, height=8, no_value="no GPU waits for repair")
    .help("""GPUs with a fault that ends with a repair, the longest wait first, and GPUs that are unusable without an
        alert yet. Boards of nodes that are not scraped are those of an hour or a day ago.""")
    .label("cluster", width=90)
    .label("instance", links=[row_link("On call, this node", ON_CALL, "instance")], width=180)
    .label("gpu", links=[GPU_FROM_ROW], width=60)
    .label("alertname", links=[incidents.RUNBOOK], width=230)
    .labels("reason", "serial", "model", "pci_address", width=180)
    .column("waits", f"max by ($BY_GPU, alertname, reason) ({since('$REPAIRS')}) or $ILL * NaN", unit="dtdurations",
        width=150)
    .labels_from("""($QUEUE or $ILL) * on ($BY_GPU) group_left ($BOARD) $BOARDS
        or on ($BY_GPU, alertname, reason) ($QUEUE or $ILL)"""),
)

dashboard.row("Since when", no_value=NO_RULES, interval="2m").panels(
    timeseries("Unusable GPUs by rack", steps=NOTHING, minimum=0, decimals=0, stacked=True, width=8, height=7)
    .help("The ten racks with the most unusable GPUs in the time shown. Planned windows are not counted.")
    .query(f"label_replace({most('sum by ($BY_RACK) (instance:gpu_unhealthy:gpus{$NODE})', '$BY_RACK')}, "
        '"rack", "no rack", "rack", "^$")', "{{cluster}} {{zone}} {{rack}}"),
    timeseries("Nodes not scraped and drivers down", steps=NOTHING, minimum=0, decimals=0, width=8, height=7,
        no_value="not scraped", colors={"not scraped": RED, "driver down": ORANGE})
    .help("Nodes that cannot be scraped, and nodes whose driver does not answer.")
    .query('count(up{$NODE,job=~".*gpu-node-exporter.*"} == 0) or on () 0 * count(up{$NODE})', "not scraped")
    .query("count(gpu_driver_up{$NODE} == 0) or on () 0 * count(gpu_driver_up{$NODE})", "driver down"),
    timeseries("Alerts that fire", steps=NOTHING, minimum=0, decimals=0, width=8, height=7,
        colors={"pages": RED, "tickets": ORANGE, "watchdog": BLUE})
    .help("Pages and tickets, inhibited ones included. The watchdog is always 1: a gap is a time without alerting.")
    .query(count_firing("page"), "pages")
    .query(count_firing("ticket"), "tickets")
    .query("count($WATCHDOG)", "watchdog"),
)

dashboard.row("What GPUs do for their teams", no_value=NO_CLASSES).panels(
    table("Goodput by team", sort_by="GPUs", width=14, height=9)
    .help("""The twenty teams with the most GPUs: a namespace, a Slurm account and user, or a user. Goodput is the share of the
        measured GPU time in which kernels compute; communicating moves data between GPUs or waits for it. Lost: throttled,
        stalled, wedged or faulted. Of the last 15 min.""")
    .labels("namespace", "slurm_account", "user", width=110)
    .column("GPUs", "$TEAMS", decimals=1, width=65)
    .share("goodput", of_teams("computing"), width=80)
    .share("communicating", of_teams("communicating"), width=115)
    .share("waiting for host", of_teams("waiting_for_host"), steps=steps(NONE, 0.2, ORANGE), width=120)
    .share("idle", of_teams("idle"), steps=steps(NONE, 0.4, ORANGE), width=60)
    .share("lost", of_teams("throttled|stalled|wedged|faulted"), steps=steps(NONE, 0.01, ORANGE), width=60)
    .column("GPUs not measured", or_zero_by(f"{team_time('unknown')} and on ($BY_TEAM) $TEAMS", "$TEAMS", "$BY_TEAM"),
        decimals=1, width=140),
    shares("Goodput over time", width=10, height=9, interval="5m")
    .help("""Share of the measured GPU time of a team in which kernels compute: the ten teams that lose the most GPUs by what is not
        computing.""")
    .query(most(team_share("computing"), "$BY_TEAM", ranked=team_time("$NOT_GOODPUT")),
        "{{cluster}} {{namespace}} {{slurm_account}} {{user}}"),
    timeseries("GPUs by class of time", minimum=0, stacked=True, width=24, height=7, interval="5m", colors=CLASSES)
    .help("""What all GPUs with an owner spend their time with, each second in one class. Unknown: not measured, as most of it before
        Hopper.""")
    .query("sum by (class) (last_over_time(payer:gpu_owner_gpu_seconds:rate15m{$NODE}[10m]))", "{{class}}"),
)
