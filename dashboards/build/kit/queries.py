"""Terms of PromQL, and what takes the place of series that are absent."""

import re
import typing

TERMS = {
    # Identities to aggregate and to join by.
    "BY_NODE": "cluster, job, instance",
    "BY_GPU": "cluster, job, instance, gpu",
    # Label matchers. `cluster` may be absent: its "All" matches that too.
    "NODE": 'cluster=~"$cluster",job=~"$job",instance=~"$instance"',
    "GPU": '$NODE,gpu=~"$gpu"',
    # An alert of the fleet has no instance, one of a node no GPU: a choice of nodes hides neither.
    "ALERT": 'cluster=~"$cluster",job=~"$job|",instance=~"$instance|"',
    # The GPUs that exist, whether they answer or not: tables have a row for each of these.
    "INVENTORY": "max by ($BY_GPU) (gpu_info{$NODE} or gpu_up{$NODE})",
    "THIS_GPU": "max by ($BY_GPU) (gpu_info{$GPU} or gpu_up{$GPU})",
    # The exporters that Prometheus is to scrape, with whether it can. "All" jobs are all of Prometheus: exporters of
    # another kind are recognized by the job's name, or by what the target answered now or an hour ago.
    "ANSWERING": "gpu_exporter_build_info{$NODE}",
    "SEEN": "($ANSWERING or $ANSWERING offset 1h)",
    "TARGETS": """(up{$NODE,job=~".*gpu-node-exporter.*"} or up{$NODE} and on ($BY_NODE) $SEEN)""",
    # The name of a GPU's line.
    "LINE": "{{instance}} GPU {{gpu}}",
}


def expand(value: typing.Any, terms: dict[str, str]) -> typing.Any:
    """A document of JSON with each term in its place."""
    if isinstance(value, dict):
        return {key: expand(entry, terms) for key, entry in value.items()}
    if isinstance(value, list):
        return [expand(entry, terms) for entry in value]
    if isinstance(value, str):
        expanded = re.sub(r"\$([A-Z][A-Z_]*)", lambda term: terms[term[1]], value)
        return tidy(expanded) if expanded == value else expand(expanded, terms)
    return value


def tidy(text: str) -> str:
    """The text on one line, if it is a query over several."""
    return " ".join(text.split()).replace("( ", "(").replace(" )", ")") if "\n" in text else text


def or_none(expr: str, anchor: str = "$INVENTORY", by: str = "$BY_GPU") -> str:
    """The expression, and NaN for each row of the anchor that it lacks, so that no table loses rows or columns
    when a series is absent. Map it with `ABSENT`."""
    return f"({expr}) or on ({by}) (({anchor}) * NaN)"


def or_zero(expr: str, collected: str) -> str:
    """The expression, or 0 where it has no result although `collected` has one. Without that, nothing: a zero
    from `vector(0)` would hide that no exporter collects."""
    return f"({expr}) or on () (count({collected}) * 0)"


def or_zero_by(expr: str, anchor: str, by: str) -> str:
    """The expression, and 0 for each row of the anchor that it lacks: where the anchor's series say that it is measured."""
    return f"({expr}) or on ({by}) (({anchor}) * 0)"


def if_set(variable: str, expr: str) -> str:
    """The expression if a variable of text has a value, else nothing: a label with an empty value is no label."""
    return f'({expr}) and on () (label_replace(vector(1), "set", "${variable}", "", "") unless vector(1))'


def age(series: str) -> str:
    """How long before the node's newest time each of these times was. By the node's own clock: a wrong one makes no
    reading old."""
    clock = """max by ($BY_NODE) (gpu_exporter_collector_last_success_timestamp_seconds{$NODE}
        or gpu_exporter_sample_timestamp_seconds{$NODE})"""
    return f"clamp_min({clock} - on ($BY_NODE) group_right () {series}, 0)"


def by_gpu(expr: str) -> str:
    """One value a GPU, whatever other labels there are."""
    return f"max by ($BY_GPU) ({expr})"


def activity(by: str, selector: str, *, of_instances: bool = False) -> str:
    """Activity of the units of GPUs, or of GPU instances: by GPM, and where there is none (before Hopper) what a
    dcgm-exporter beside reports (alerts/recording.rules.yml)."""
    own, place = ("gpu_mig_gpm_active_ratio", "!=") if of_instances else ("gpu_gpm_active_ratio", "=")
    recorded = f'place:dcgm_active:ratio{{{selector},gpu_instance{place}""}}'
    return f"(max by ({by}) ({own}{{{selector}}}) or max by ({by}) ({recorded}))"


def pcie_rate(by: str, selector: str) -> str:
    """Bytes a second over PCIe of whole GPUs: by GPM, else by a dcgm-exporter beside, else by NVML in 20 ms of each minute."""
    return f"""(max by ({by}) (rate(gpu_gpm_pcie_bytes_total{{{selector}}}[$__rate_interval]))
        or max by ({by}) (place:dcgm_pcie_bytes:rate{{{selector},gpu_instance=""}})
        or max by ({by}) (gpu_pcie_throughput_bytes_per_second{{{selector}}}))"""


def most(
    expr: str, by: str, *, ranked: str | None = None, lowest: bool = False, look: str = "5m", count: int = 10
) -> str:
    """Of the lines those of the ten (nodes, GPUs...) that were highest in the time shown, or lowest, and the same ten
    all the time: the lines of a fleet cannot be read. `ranked` is another value to choose them by. The choice is made
    of one value each `look`: at every step it would cost as much again."""
    pick, extreme = ("bottomk", "min") if lowest else ("topk", "max")
    value = f"{extreme}_over_time(({ranked or expr})[$__range:{look}] @ end())"
    return f"({expr}) and on ({by}) {pick}({count}, {extreme} by ({by}) ({value}))"
