"""Alerts as Alertmanager sends them, as far as Prometheus knows: the inhibitions of alerts/alertmanager.yml as PromQL."""

import pathlib
import re
import typing

from kit import RUNBOOKS, Table, mapped, or_zero, url_link

PAGES_OF_RUNBOOKS = pathlib.Path(__file__).resolve().parent.parent.parent / "docs" / "runbooks"

# Reported from a node that is drained or in a maintenance window, too.
_ALWAYS = "GpuCanaryWrongResult|GpuNodeForgotten|GpuOwnerGpuFailed|GpuRepeatOffender|GpuWindowTooLong"
_OF_DOWN_NODES = (
    "GpuCollectorDown|GpuDriverDown|GpuDriverLoaded|GpuExporterDown|GpuExporterRestarting|GpuNodeRebooted|GpuScrapeFlapping"
)
_OF_DRIVER = (
    "GpuCanaryFailing|GpuCanaryNotRunning|GpuCollectorDown|GpuDevicesMissing|GpuDriverLoaded|GpuDriverMismatch|"
    "GpuExporterRestarting|GpuFabricDown|GpuMigLayout|GpuNvlinkDown|GpuTelemetryDecaying|GpuTopologyChanged"
)
# Source, target, and the labels that both have in common.
_INHIBITIONS = (
    ('alertname="GpuNodesDownMany",scope="fleet"', f'alertname=~"{_OF_DOWN_NODES}"', "cluster, job"),
    ('alertname="GpuNodesDownMany",scope="rack"', f'alertname=~"{_OF_DOWN_NODES}"', "cluster, zone, rack"),
    ('alertname="GpuNodesDownMany"', 'alertname=~"GpuSloFastBurn|GpuSloSlowBurn"', "cluster"),
    ('alertname="GpuPowerBrakeRack"', 'alertname=~"GpuPowerBrake|GpuBelowPeers|GpuCanarySlow"', "cluster, zone, rack"),
    ('alertname="GpuCoolingRow"', 'alertname=~"GpuHot|GpuBelowPeers|GpuCanarySlow"', "cluster, zone, rack"),
    ('alertname="GpuSloFastBurn"', 'alertname="GpuSloSlowBurn"', "cluster, job"),
    ('alertname="GpuCohortUnhealthy"', 'alertname=~"GpuCanaryFailing|GpuCanarySlow"', "cluster, driver_version"),
    ('alertname=~"GpuMaintenanceWindow|GpuNodeDrained"', f'instance!="",alertname!~"{_ALWAYS}"', "cluster, instance"),
    ('alertname="GpuExporterDown"', f'instance!="",alertname!~"{_ALWAYS}|GpuExporterDown|GpuNodeRebooted"', "cluster, instance"),
    ('alertname="GpuDriverDown"', f'alertname=~"{_OF_DRIVER}"', "cluster, instance"),
    ('alertname="GpuFabricDown"', 'alertname=~"GpuFabricDegraded|GpuNvlinkDown|GpuNvlinkErrors"', "cluster, instance"),
    ('alertname="GpuUnhealthy",gpu!=""', f'gpu!="",alertname!~"{_ALWAYS}|GpuUnhealthy"', "cluster, instance, gpu"),
    ('severity="page",gpu!=""', f'severity="ticket",gpu!="",alertname!~"{_ALWAYS}"', "cluster, instance, gpu"),
)


def firing(matchers: str) -> str:
    """Alerts that fire and match."""
    named = "" if re.search('alertname=(?!~"Gpu.\\+")', matchers) else 'alertname=~"Gpu.+",'
    return f'ALERTS{{{named}alertstate="firing",{matchers},$ALERT}}'


_INHIBITED = " or ".join(
    f'({firing(target)} and on ({equal}) {firing(source)})' for source, target, equal in _INHIBITIONS
)

QUIET = firing('alertname=~"GpuMaintenanceWindow|GpuNodeDrained",instance!=""')

TERMS = {
    # Always fires while rules are evaluated: without it the absence of alerts has no meaning.
    "WATCHDOG": 'ALERTS{alertname="GpuWatchdog",alertstate="firing"}',
    "INHIBITED": f"({_INHIBITED})",
    # Nodes with planned work, or without work.
    "QUIET": f"max by ($BY_NODE) ({QUIET})",
}


def sent(severity: str, matchers: str = "") -> str:
    """Alerts of a severity that fire and that nothing inhibits."""
    matchers = ",".join([f'severity=~"{severity}"', *filter(None, [matchers])])
    return f"({firing(matchers)} unless $INHIBITED)"


def count_sent(severity: str) -> str:
    """0 only while rules are evaluated."""
    return or_zero(f"count({sent(severity)})", "$WATCHDOG")


def count_firing(severity: str) -> str:
    """Inhibited alerts included: for graphs, in which an alert that was inhibited at first is no step."""
    matchers = f'severity="{severity}"'
    return or_zero(f"count({firing(matchers)})", "$WATCHDOG")


def since(alerts: str) -> str:
    """Seconds since the condition of each alert became true."""
    return f'(time() - ALERTS_FOR_STATE{{alertname=~"Gpu.+",$ALERT}} and ignoring (alertstate) {alerts})'


def _summaries() -> dict[str, str]:
    """The first sentence of each runbook, by the alert's name."""
    found: dict[str, str] = {}
    for path in sorted(PAGES_OF_RUNBOOKS.glob("Gpu*.md")):
        paragraphs = [part.strip() for part in path.read_text().split("\n\n") if not part.startswith("#")]
        text = " ".join(re.sub(r"\[([^]]*)\]\([^)]*\)|`", r"\1", paragraphs[0]).split()) if paragraphs else ""
        found[path.stem] = re.split(r"(?<=[.]) ", text)[0].rstrip(".")
    return found


def summaries() -> typing.Any:
    """Texts for a column with the alert's name."""
    return mapped({name: (text, "text") for name, text in _summaries().items() if text})


RUNBOOK = url_link("Runbook", f"{RUNBOOKS}/${{__data.fields.alertname}}.md")


def add_columns(of: Table, *, summary_width: int = 380) -> Table:
    """Name with its runbook, reason, and what the alert means."""
    of.label("alertname", links=[RUNBOOK], width=190)
    of.label("reason", width=130)
    return of.label("summary", mappings=[summaries()], width=summary_width)


def with_summary(alerts: str) -> str:
    """The alert's name once more, for the column of its meaning."""
    return f'label_replace({alerts}, "summary", "$1", "alertname", "(.*)")'
