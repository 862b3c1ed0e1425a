"""Alerts as Alertmanager sends them, as far as Prometheus knows: the inhibitions of alerts/alertmanager.yml as PromQL."""

import json
import pathlib
import re
import sys
import typing

from kit import RUNBOOKS, Table, mapped, or_zero, url_link

PAGES_OF_RUNBOOKS = pathlib.Path(__file__).resolve().parent.parent.parent / "docs" / "runbooks"

# inhibit_rules of alerts/alertmanager.yml, as a test of the repository keeps them (tests/assets/inhibitions.rs).
INHIBITIONS = pathlib.Path(__file__).resolve().parent / "inhibitions.json"
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"\\]*)"')


def firing(matchers: str) -> str:
    """Alerts that fire and match."""
    named = "" if "alertname=" in matchers else 'alertname=~"Gpu.+",'
    return f'ALERTS{{{named}alertstate="firing",{matchers},$ALERT}}'


def _takes(matcher: str, label: str, value: str) -> bool:
    """Whether a series whose label has this value can match."""
    name, operator, wanted = _MATCHER.fullmatch(matcher).groups()
    found = re.fullmatch(wanted, value) if "~" in operator else wanted == value
    return name != label or bool(found) != operator.startswith("!")


def _apart(source: list[str], target: list[str]) -> bool:
    """Whether the source names values of a label, of which the target takes none."""
    for label, operator, values in (_MATCHER.fullmatch(matcher).groups() for matcher in source):
        named = operator in ("=", "=~") and re.fullmatch(r"\w+(\|\w+)*", values)
        if named and not any(all(_takes(m, label, value) for m in target) for value in values.split("|")):
            return True
    return False


def _inhibited(matchers: str, source: list[str], target: list[str], equal: list[str]) -> str:
    """The alerts that match and that an inhibition holds back."""
    unread = [matcher for matcher in source + target if not _MATCHER.fullmatch(matcher)]
    if unread or not equal:
        sys.exit(f"error: an inhibition of alerts/alertmanager.yml is no PromQL: {unread or source}: write each matcher as "
            "name, =, !=, =~ or !~, and a value in double quotes without a backslash, and give `equal`")
    # Alertmanager lets no alert inhibit itself. PromQL would.
    if not _apart(source, target):
        sys.exit(f"error: an inhibition of alerts/alertmanager.yml may have an alert inhibit itself: {source}: name the source's "
            "alerts, or its severity, and leave them out of the target")
    return f"({firing(','.join([matchers, *target]))} and on ({', '.join(equal)}) {firing(','.join(source))})"


def inhibited(matchers: str) -> str:
    """Alerts that match and that another holds back. Each inhibition has the matchers, so that it reads few alerts."""
    return f"({' or '.join(_inhibited(matchers, **rule) for rule in json.loads(INHIBITIONS.read_text()))})"


QUIET = firing('alertname=~"GpuMaintenanceWindow|GpuNodeDrained",instance!=""')

TERMS = {
    # Always fires while rules are evaluated: without it the absence of alerts has no meaning.
    "WATCHDOG": 'ALERTS{alertname="GpuWatchdog",alertstate="firing"}',
    "INHIBITED": inhibited('severity=~"page|ticket"'),
    # Nodes with planned work, or without work.
    "QUIET": f"max by ($BY_NODE) ({QUIET})",
}


def sent(severity: str, matchers: str = "") -> str:
    """Alerts of a severity that fire and that nothing inhibits."""
    matchers = ",".join([f'severity=~"{severity}"', *filter(None, [matchers])])
    return f"({firing(matchers)} unless {inhibited(matchers)})"


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
