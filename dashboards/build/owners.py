"""What the dashboards about owners share: places, causes that limit work, workloads, links to logs and traces."""

import typing

from kit import BLUE, GREEN, GREY, ORANGE, RED, YELLOW, Table, explore_link, if_set, mapped, query_variable, table

# What limits work, in the order of docs/BOTTLENECKS.md: a number for bands, a text, and a colour (orange: the
# host; blue: the GPU's own limits; yellow: the shape of the work). Grey, for nothing proven is no proof of health.
CAUSES = {
    "none": (0, "none known", GREY),
    "wedged": (1, "wedged", "dark-red"),
    "stalled": (2, "stalled", "dark-orange"),
    "thermally_throttled": (3, "heat", RED),
    "power_capped": (4, "power cap", BLUE),
    "contended": (5, "shared GPU", "purple"),
    "pcie_bound": (6, "PCIe full", ORANGE),
    "remote_numa": (7, "remote NUMA", ORANGE),
    "host_cpu_bound": (8, "host CPU", ORANGE),
    "memory_bound": (9, "GPU memory", BLUE),
    "serial_copies": (10, "serial copies", YELLOW),
    "underfilled": (11, "underfilled", YELLOW),
    "unknown": (12, "not measured", GREY),
}
CAUSE_TEXTS = mapped({number: (text, color) for number, text, color in CAUSES.values()})

# The classes of an owner's GPU time (docs/HEARTBEAT.md), with colours: work, then waiting, then what is lost. A cause of the
# same name has the same colour.
CLASSES = {
    "computing": GREEN,
    "communicating": BLUE,
    "waiting_for_host": ORANGE,
    "throttled": RED,
    "stalled": "dark-orange",
    "wedged": "dark-red",
    "faulted": "purple",
    "idle": YELLOW,
    "unknown": GREY,
}


def cause_number(selector: str) -> str:
    """The number of the cause that limits each owner now."""
    by_cause = " or ".join(
        f'gpu_bottleneck{{{selector},cause="{cause}"}} * {number}' for cause, (number, _, _) in CAUSES.items()
    )
    return f"max by ($BY_OWNER) ({by_cause})"


# ---------------------------------------------------------------------------------------------- workloads

# A workload is what owners of one purpose have in common: a pod's namespace and name without what its controller
# appended, a Slurm job without its step; any other owner is a workload of its own. Kubernetes makes its suffixes of
# these letters alone, so that a pod called web-front keeps its name.
_RANDOM = "[bcdfghjklmnpqrstvwxz2456789]"
_APPENDED = f"(?:-{_RANDOM}{{6,10}}-{_RANDOM}{{5}}|-[0-9]+-{_RANDOM}{{5}}|-{_RANDOM}{{5}}|-[0-9]+)?(?:/[^/]+|[.][^/]*)?"
_WORKLOAD = f"(pod/[^/]+/[^/]+?|slurm/[^./]+|.+){_APPENDED}"

OWNER_TERMS = {
    # An owner at a place: a GPU, or a GPU instance of one (`gpu_instance` is absent on a whole GPU).
    "BY_OWNER": "cluster, job, instance, gpu, gpu_instance, owner",
    # The owners of the workloads that the variable names.
    "OF_WORKLOAD": f'owner=~"($workload){_APPENDED}"',
    "HOST_CAUSES": "host_cpu_bound|remote_numa|pcie_bound|serial_copies",
}


def by_workload(expr: str) -> str:
    """The expression with the label `workload`, made of its label `owner`."""
    return f'label_replace({expr}, "workload", "$1", "owner", "{_WORKLOAD}")'


def workload_variables() -> list[typing.Any]:
    """Workloads, and single owners of them, from the inventory of owners."""
    variable = query_variable(
        "workload",
        "Workload",
        "label_values(gpu_owner_info{$NODE}, owner)",
        description="Pods by namespace and name without what their controller appended, Slurm jobs, other owners.",
        all_value=".*",
    )
    owner = query_variable(
        "owner",
        "Pod, job step or other owner",
        "label_values(gpu_owner_info{$NODE,$OF_WORKLOAD}, owner)",
        description="One container of a pod, one step of a Slurm job, or any other owner of the workload.",
        all_value=".*",
    )
    # Grafana takes what the group matches, once.
    return [variable.regex(f"/^{_WORKLOAD.replace('/', chr(92) + '/')}$/"), owner]


# ---------------------------------------------------------------------------------------------- logs and traces


def explore_tables(pods: str) -> list[Table]:
    """Links to the logs (Loki) and the traces (Tempo) of pods: none while the variable is not set."""
    return [
        table(kind.capitalize(), no_value=f"off: set the variable {variable.capitalize()}", width=12, height=6)
        .help(f"""Links to the {kind} of each pod in Grafana's Explore, at the time shown. Off until the variable
            {variable.capitalize()} has the UID of a data source. Labels by convention: namespace and pod of Loki,
            k8s.namespace.name and k8s.pod.name of Tempo.""")
        .label("namespace", width=150)
        .label("pod", links=[to])
        .labels_from(if_set(variable, f"max by (namespace, pod) ({pods})"))
        for kind, variable, to in (("logs", "loki", LOGS), ("traces", "tempo", TRACES))
    ]


_NAMESPACE, _POD = "${__data.fields.namespace:percentencode}", "${__data.fields.pod:percentencode}"
LOGS = explore_link("Logs", "loki", {"expr": f'{{namespace="{_NAMESPACE}",pod="{_POD}"}}', "queryType": "range"})
TRACES = explore_link(
    "Traces",
    "tempo",
    {
        "query": f'{{resource.k8s.namespace.name="{_NAMESPACE}" && resource.k8s.pod.name="{_POD}"}}',
        "queryType": "traceql",
    },
)
