"""What the dashboards about owners share: their places, what limits their work, and the services they belong to."""

import typing

from kit import BLUE, GREY, ORANGE, RED, YELLOW, mapped, query_variable

# What limits work, in the order of docs/BOTTLENECKS.md: a number for bands, a text, and a colour (orange: the
# host; blue: the GPU's own limits; yellow: the shape of the work). Grey, for nothing proven is no proof of health.
CAUSES = {
    "none": (0, "nothing known", GREY),
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


def cause_number(selector: str) -> str:
    """The number of the cause that limits each owner now."""
    by_cause = " or ".join(
        f'gpu_bottleneck{{{selector},cause="{cause}"}} * {number}' for cause, (number, _, _) in CAUSES.items()
    )
    return f"max by ($BY_OWNER) ({by_cause})"


# ---------------------------------------------------------------------------------------------- services

# A service is what owners of one purpose have in common: a pod's namespace and name without what its controller
# appended, a Slurm job without its step; any other owner is a service of its own. Kubernetes makes its suffixes of
# these letters alone, so that a pod called web-front keeps its name.
_RANDOM = "[bcdfghjklmnpqrstvwxz2456789]"
_APPENDED = f"(?:-{_RANDOM}{{6,10}}-{_RANDOM}{{5}}|-[0-9]+-{_RANDOM}{{5}}|-{_RANDOM}{{5}}|-[0-9]+)?(?:/[^/]+|[.][^/]*)?"
_SERVICE = f"(pod/[^/]+/[^/]+?|slurm/[^./]+|.+){_APPENDED}"

OWNER_TERMS = {
    # An owner at a place: a GPU, or a GPU instance of one (`gpu_instance` is absent on a whole GPU).
    "BY_OWNER": "cluster, job, instance, gpu, gpu_instance, owner",
    # The owners of the services that the variable names.
    "OF_SERVICE": f'owner=~"($service){_APPENDED}"',
    "HOST_CAUSES": "host_cpu_bound|remote_numa|pcie_bound|serial_copies",
}


def by_service(expr: str) -> str:
    """The expression with the label `service`, made of its label `owner`."""
    return f'label_replace({expr}, "service", "$1", "owner", "{_SERVICE}")'


def service_variable() -> typing.Any:
    """Services, from the inventory of owners."""
    variable = query_variable(
        "service",
        "Service",
        "label_values(gpu_owner_info{$NODE}, owner)",
        description="Pods by namespace and name without what their controller appended, Slurm jobs, other owners.",
        all_value=".*",
    )
    # Grafana takes what the group matches, once.
    return variable.regex(f"/^{_SERVICE.replace('/', chr(92) + '/')}$/")
