"""Every GPU series of the exporter, and where NVML and nvidia-smi say the same thing.

`table()` is the one table of the comparison: for each series how NVML gives the value (already in the
metric's unit), how nvidia-smi gives it, and how far apart the two may be. A tolerance of 0 means exactly
equal. What moves is not compared with one reading but with the range of all NVML readings around the
moment at which the exporter read its value (`gpu_exporter_sample_timestamp_seconds`): `window` seconds
before the visit began until `window` seconds after it ended, and one reading more on either side.
The tolerance widens that range.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pynvml as n

Value = float | str
FAST, NORMAL, SLOW, RARE, PER_LINK = "fast", "normal", "slow", "rare", "nvlink"
ONCE, IDENTITY = "once", "identity"


class Unanswered(Exception):
    """The source has no answer; the text says why."""


@dataclass(frozen=True)
class Smi:
    """A field of nvidia-smi: `--query-gpu` name (or path in `-q -x` after "xml:"), conversion, rounding."""

    name: str
    convert: Callable[[str], Value]
    rounding: float = 0.0


@dataclass(frozen=True)
class Spec:
    """One series of a GPU."""

    metric: str
    labels: tuple[tuple[str, str], ...]
    call: str  # as the exporter names it in its gaps
    read: Callable[[object], Value]  # from an NVML handle, in the metric's unit
    tier: str
    absolute: float = 0.0
    relative: float = 0.0
    window: float = 0.5
    misses: float = 0.0  # share of rounds in which a value may lie outside all the same
    smi: Smi | None = None
    info_label: str | None = None  # the value is this label of an info series
    pace: str = ""  # how often NVML is read beside it, if not as its tier's: a name of POLL
    recorded: bool = True  # whether an H200's answers, as recorded, hold one to this call

    @property
    def poll(self) -> str:
        """How often NVML is read beside it: a name of POLL."""
        return self.pace or self.tier

    @property
    def name(self) -> str:
        """The series as a person writes it, without gpu and uuid."""
        if self.info_label:
            which = ",".join(f'{k}="{v}"' for k, v in self.labels)
            return f"{self.metric}{{{which}{',' if which else ''}{self.info_label}}}"
        inner = ",".join(f'{k}="{v}"' for k, v in self.labels)
        return f"{self.metric}{{{inner}}}" if inner else self.metric

    def tolerance(self, value: float) -> float:
        """How far outside the range a value may lie."""
        return self.absolute + self.relative * abs(value)

    def tolerance_text(self) -> str:
        """The tolerance as text."""
        parts = [f"{self.absolute:g}"] if self.absolute else []
        parts += [f"{self.relative * 100:g} %"] if self.relative else []
        text = " + ".join(parts) if parts else "exact"
        return text + (f", {self.misses * 100:g} % of rounds may miss" if self.misses else "")


def text(value: object) -> str:
    """pynvml gives bytes in some versions and text in others."""
    return value.decode() if isinstance(value, bytes) else str(value)


def nvml(function: str, *args: object) -> object:
    """Calls pynvml; an error or a function this pynvml lacks is `Unanswered`."""
    if not hasattr(n, function):
        raise Unanswered(f"this pynvml has no {function}")
    return asking(getattr(n, function), *args)


def asking(ask: Callable, *args: object) -> object:
    """Calls a function; an error of NVML is `Unanswered`."""
    try:
        return ask(*args)
    except n.NVMLError as error:
        raise Unanswered(str(error)) from None


def number(function: str, *args: object, over: float = 1.0, times: float = 1.0, of=None) -> Callable:
    """A reader of a number. `of` picks it from a structure or list."""

    def read(handle: object) -> float:
        answer = nvml(function, handle, *args)
        answer = of(answer) if of else answer
        if answer in (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF, 0x7FFFFFFFFFFFFFFF):
            raise Unanswered("blank")
        return float(answer) * times / over

    return read


def field_number(answer: object) -> float:
    """The number in an answer about one field."""
    members = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal"}
    if answer.nvmlReturn != 0:
        raise Unanswered(str(n.NVMLError(answer.nvmlReturn)))
    return float(getattr(answer.value, members[answer.valueType]))


def field_values(handle: object, asked: list[tuple[int, int]]) -> list:
    """Answers about fields, each given as id and scope. libnvidia-ml 580.159 looks at the entry behind the last, and may
    write into it (docs/evidence/2026-11-22-h200/x2-field-values-past-the-end.md): there is one, which it passes over."""
    entries = (n.c_nvmlFieldValue_t * (len(asked) + 1))()
    for entry, (field_id, scope) in zip(entries, asked):
        entry.fieldId, entry.scopeId = field_id, scope
    entries[len(asked)].nvmlReturn = n.NVML_ERROR_NOT_SUPPORTED

    def call() -> None:
        function = n._nvmlGetFunctionPointer("nvmlDeviceGetFieldValues")
        n._nvmlCheckReturn(function(handle, ctypes.c_int(len(asked)), entries))

    asking(call)
    return entries[: len(asked)]


def field_value(field_id: int, over: float = 1.0, times: float = 1.0, scope: int | None = None) -> Callable:
    """A reader of one NVML field."""

    def read(handle: object) -> float:
        return field_number(field_values(handle, [(field_id, scope or 0)])[0]) * times / over

    return read


def shared(ask: Callable[[object], object], seconds: float = 0.05) -> Callable[[object], object]:
    """One answer for all series that come of one call: asked again when it is older than `seconds`."""
    kept: dict[int, tuple[float, object]] = {}

    def read(handle: object) -> object:
        at, answer = kept.get(id(handle), (0.0, None))
        if answer is None or time.monotonic() - at > seconds:
            try:
                answer = ask(handle)
            except Unanswered as why:
                answer = why
            kept[id(handle)] = (time.monotonic(), answer)
        if isinstance(answer, Unanswered):
            raise answer
        return answer

    return read


def words(function: str, *args: object, of=None) -> Callable:
    """A reader of a text."""

    def read(handle: object) -> str:
        answer = nvml(function, handle, *args)
        return text(of(answer) if of else answer)

    return read


def _num(times: float = 1.0, over: float = 1.0) -> Callable[[str], float]:
    return lambda s: float(s.split()[0]) * times / over


def _one_of(word: str) -> Callable[[str], float]:
    return lambda s: 1.0 if s.strip().lower() == word else 0.0


def smi_percent(name: str) -> Smi:
    return Smi(name, _num(over=100), 0.01)


def smi_mib(name: str) -> Smi:
    return Smi(name, _num(times=2**20), 2**20)


def smi_watts(name: str) -> Smi:
    return Smi(name, _num(), 0.01)


def smi_mhz(name: str) -> Smi:
    return Smi(name, _num(times=1e6))


def smi_count(name: str) -> Smi:
    return Smi(name, _num())


def smi_text(name: str) -> Smi:
    return Smi(name, str.strip)


# In the order of NVML's numbers, with nvidia-smi's words.
VIRTUALIZATION = [("none", "none"), ("passthrough", "pass-through"), ("vgpu", "vgpu"), ("host_vgpu", "host vgpu"),
                  ("host_vsga", "host vsga")]  # fmt: skip
ARCHITECTURES = {2: "kepler", 3: "maxwell", 4: "pascal", 5: "volta", 6: "turing", 7: "ampere", 8: "ada",
                 9: "hopper", 10: "blackwell"}  # fmt: skip

# reason, bit in the mask, nvidia-smi's name, field id of the driver's own counter
CLOCK_EVENTS = [
    ("gpu_idle", 0x1, "gpu_idle", None),
    ("applications_clocks_setting", 0x2, "applications_clocks_setting", None),
    ("sw_power_cap", 0x4, "sw_power_cap", 74),
    ("hw_slowdown", 0x8, "hw_slowdown", None),
    ("sync_boost", 0x10, "sync_boost", 76),
    ("sw_thermal_slowdown", 0x20, "sw_thermal_slowdown", 269),
    ("hw_thermal_slowdown", 0x40, "hw_thermal_slowdown", 270),
    ("hw_power_brake_slowdown", 0x80, "hw_power_brake_slowdown", 271),
    ("display_clock_setting", 0x100, None, None),
]
# The last three were numbered 251 to 253 by earlier drivers; field numbers are looked for in this order.
OLDER_FIELD = {269: 251, 270: 252, 271: 253}

MEMORIES = ["l1_cache", "l2_cache", "dram", "register_file", "texture_memory", "texture_shm", "cbu", "sram"]


def unanswered_on_h200(spec: Spec) -> bool:
    """What an H200 (driver 580.159.04, MIG off) was recorded not to answer. All else must be in /metrics."""
    memory = dict(spec.labels).get("memory")
    return not spec.recorded or spec.metric == "gpu_ecc_errors" and memory not in ("dram", "sram")


def event_seconds(field_id: int) -> Callable:
    """A driver's counter of nanoseconds, under whichever number this driver has it."""
    ids = [field_id] + ([OLDER_FIELD[field_id]] if field_id in OLDER_FIELD else [])

    def read(handle: object) -> float:
        for at, candidate in enumerate(ids):
            try:
                return field_value(candidate, 1e9)(handle)
            except Unanswered:
                if at == len(ids) - 1:
                    raise
        raise AssertionError

    return read


def reasons(handle: object) -> int:
    """The mask of clock event reasons."""
    return int(nvml("nvmlDeviceGetCurrentClocksEventReasons", handle))


def table() -> list[Spec]:
    """The table."""
    t: list[Spec] = []

    def add(metric: str, call: str, read: Callable, tier: str, smi: Smi | None = None, **more) -> None:
        labels = tuple(more.pop("labels", {}).items())
        t.append(Spec(metric, labels, call, read, tier, smi=smi, **more))

    # --- moving: the tolerance widens the range of the NVML readings around the exporter's -----------------
    # The driver's utilization is a figure of its last period (some 0.2 s): both see the same steps.
    for metric, member, name in [
        ("gpu_utilization_ratio", "gpu", "utilization.gpu"),
        ("gpu_memory_utilization_ratio", "memory", "utilization.memory"),
    ]:
        add(metric, "nvmlDeviceGetUtilizationRates",
            number("nvmlDeviceGetUtilizationRates", of=lambda u, m=member: getattr(u, m), over=100),
            NORMAL, smi_percent(name), absolute=0.05, window=1.0)  # fmt: skip
    for metric, call, name in [
        ("gpu_encoder_utilization_ratio", "nvmlDeviceGetEncoderUtilization", "utilization.encoder"),
        ("gpu_decoder_utilization_ratio", "nvmlDeviceGetDecoderUtilization", "utilization.decoder"),
        ("gpu_jpeg_utilization_ratio", "nvmlDeviceGetJpgUtilization", "utilization.jpeg"),
        ("gpu_ofa_utilization_ratio", "nvmlDeviceGetOfaUtilization", "utilization.ofa"),
    ]:
        add(metric, call, number(call, of=lambda u: u[0], over=100), NORMAL, smi_percent(name),
            absolute=0.05, window=1.0)  # fmt: skip

    # Memory moves in steps when a process allocates; 4 MiB for what lies between two readings.
    memory = "nvmlDeviceGetMemoryInfo_v2"
    for member in ("used", "free"):
        add(f"gpu_memory_{member}_bytes", memory, memory_info(member), NORMAL, smi_mib(f"memory.{member}"),
            absolute=4 * 2**20)  # fmt: skip
    bar1 = "nvmlDeviceGetBAR1MemoryInfo"
    for member in ("used", "free"):
        add(f"gpu_bar1_memory_{member}_bytes", bar1,
            number(bar1, of=lambda b, m=member: getattr(b, f"bar1{m.capitalize()}")), RARE,
            smi_mib(f"xml:bar1_memory_usage/{member}"), absolute=4 * 2**20, window=1.5)  # fmt: skip

    # Power moves between two readings 0.1 s apart, the instant one by tens of watts.
    add("gpu_power_watts", "nvmlDeviceGetPowerUsage", number("nvmlDeviceGetPowerUsage", over=1e3), NORMAL,
        smi_watts("power.draw.average"), absolute=3, relative=0.03)  # fmt: skip
    add("gpu_power_instant_watts", "nvmlDeviceGetFieldValues(186)", field_value(186, 1e3), SLOW,
        smi_watts("power.draw.instant"), absolute=10, relative=0.08, misses=0.1, window=1.5)  # fmt: skip
    # Read seldom, at a known moment; NVML beside it each second: the range holds about 2 s of draw.
    add("gpu_energy_joules_total", "nvmlDeviceGetTotalEnergyConsumption",
        number("nvmlDeviceGetTotalEnergyConsumption", over=1e3), RARE, absolute=5, window=0.5)  # fmt: skip
    add("gpu_temperature_celsius", "nvmlDeviceGetTemperature(0)", number("nvmlDeviceGetTemperature", 0),
        NORMAL, smi_count("temperature.gpu"), labels={"sensor": "gpu"}, absolute=1)  # fmt: skip
    add("gpu_temperature_celsius", "nvmlDeviceGetFieldValues(82)", field_value(82), SLOW,
        smi_count("temperature.memory"), labels={"sensor": "memory"}, absolute=1, window=1.5)  # fmt: skip
    # Derived from temperature and thresholds, each of them a whole number of degrees.
    add("gpu_temperature_margin_celsius", "nvmlDeviceGetMarginTemperature",
        number("nvmlDeviceGetMarginTemperature"), NORMAL, smi_count("temperature.gpu.tlimit"), absolute=1)  # fmt: skip
    for policy, field_id in [("board_limit", 77), ("low_utilization", 78), ("reliability", 79)]:
        add("gpu_violation_seconds_total", f"nvmlDeviceGetFieldValues({field_id})", field_value(field_id, 1e9), RARE,
            labels={"policy": policy}, absolute=0.05, window=1.5)  # fmt: skip
    # Clocks move in steps of 15 MHz, under load several times a second.
    for at, domain in enumerate(["graphics", "sm", "memory", "video"]):
        add("gpu_clock_hertz", f"nvmlDeviceGetClockInfo({at})",
            number("nvmlDeviceGetClockInfo", at, times=1e6), NORMAL, smi_mhz(f"clocks.current.{domain}"),
            labels={"domain": domain}, absolute=45e6, misses=0.1)  # fmt: skip
    for reason, bit, name, _ in CLOCK_EVENTS:
        smi = Smi(f"clocks_event_reasons.{name}", _one_of("active")) if name else None
        add("gpu_clock_event_active", "nvmlDeviceGetCurrentClocksEventReasons",
            lambda h, b=bit: float(bool(reasons(h) & b)), FAST, smi, labels={"reason": reason},
            window=0.6, misses=0.1)  # fmt: skip
    for reason, _, name, field_id in CLOCK_EVENTS:
        if field_id:
            add("gpu_clock_event_seconds_total", f"nvmlDeviceGetFieldValues({field_id})", event_seconds(field_id),
                SLOW, Smi(f"clocks_event_reasons_counters.{name}", _num(over=1e6), 1e-6),
                labels={"reason": reason}, absolute=0.05, window=1.0)  # fmt: skip
    add("gpu_performance_state", "nvmlDeviceGetPerformanceState", number("nvmlDeviceGetPerformanceState"), NORMAL,
        Smi("pstate", lambda s: float(s.strip().lstrip("P"))))  # fmt: skip
    # Those that compute are listed more often, for their owners.
    for kind, call, tier in [
        ("compute", "nvmlDeviceGetComputeRunningProcesses_v3", NORMAL),
        ("graphics", "nvmlDeviceGetGraphicsRunningProcesses_v3", SLOW),
        ("mps", "nvmlDeviceGetMPSComputeRunningProcesses_v3", SLOW),
    ]:
        add("gpu_processes", call, number(call, of=len), tier, labels={"type": kind}, window=1.5)

    # --- counts of errors: equal, unless one happens between two readings ----------------------------------
    for c, counter in enumerate(["volatile", "aggregate"]):
        for e, error in enumerate(["corrected", "uncorrected"]):
            labels = {"counter": counter, "error": error}
            add("gpu_ecc_total_errors", f"nvmlDeviceGetTotalEccErrors({e},{c})",
                number("nvmlDeviceGetTotalEccErrors", e, c), NORMAL,
                smi_count(f"ecc.errors.{error}.{counter}.total"), labels=labels)  # fmt: skip
            for m, location in enumerate(MEMORIES):
                add("gpu_ecc_errors", f"nvmlDeviceGetMemoryErrorCounter({e},{c},{m})",
                    number("nvmlDeviceGetMemoryErrorCounter", e, c, m), SLOW,
                    smi_count(f"ecc.errors.{error}.{counter}.{location}"), labels=labels | {"memory": location},
                    window=5.0)  # fmt: skip
    for cause, field_id, short in [("correctable", 142, "corr"), ("uncorrectable", 143, "unc")]:
        add("gpu_remapped_rows", f"nvmlDeviceGetFieldValues({field_id})", field_value(field_id), SLOW,
            smi_count(f"xml:remapped_rows/remapped_row_{short}"),
            labels={"cause": cause}, window=5.0)  # fmt: skip
    for metric, field_id, name in [("gpu_row_remap_pending", 144, "pending"), ("gpu_row_remap_failure", 145, "failure")]:
        add(metric, f"nvmlDeviceGetFieldValues({field_id})", field_value(field_id), SLOW,
            Smi(f"xml:remapped_rows/remapped_row_{name}", _one_of("yes")), window=5.0)  # fmt: skip
    add("gpu_pcie_replays_total", "nvmlDeviceGetPcieReplayCounter", number("nvmlDeviceGetPcieReplayCounter"), RARE,
        smi_count("xml:pci/replay_counter"))  # fmt: skip

    # --- settings: exact -------------------------------------------------------------------------------------
    add("gpu_memory_total_bytes", memory, memory_info("total"), NORMAL, smi_mib("memory.total"))
    add("gpu_memory_reserved_bytes", memory, memory_info("reserved"), NORMAL, smi_mib("memory.reserved"),
        absolute=4 * 2**20)  # fmt: skip
    add("gpu_bar1_memory_total_bytes", bar1, number(bar1, of=lambda b: b.bar1Total), RARE,
        smi_mib("xml:bar1_memory_usage/total"))  # fmt: skip
    for limit, call, name, tier in [
        ("enforced", "nvmlDeviceGetEnforcedPowerLimit", "enforced.power.limit", SLOW),
        ("configured", "nvmlDeviceGetPowerManagementLimit", "power.limit", RARE),
        ("default", "nvmlDeviceGetPowerManagementDefaultLimit", "power.default_limit", RARE),
    ]:
        add("gpu_power_limit_watts", call, number(call, over=1e3), tier, smi_watts(name), labels={"limit": limit})
    constraints = "nvmlDeviceGetPowerManagementLimitConstraints"
    for at, limit in enumerate(["min", "max"]):
        add("gpu_power_limit_watts", constraints, number(constraints, of=lambda c, i=at: c[i], over=1e3), RARE,
            smi_watts(f"power.{limit}_limit"), labels={"limit": limit})  # fmt: skip
    # nvidia-smi shows Hopper's thresholds only as distances from T.Limit, so NVML alone is compared.
    for at, threshold in enumerate(["shutdown", "slowdown", "memory_max", "gpu_max"]):
        add("gpu_temperature_threshold_celsius", f"nvmlDeviceGetTemperatureThreshold({at})",
            number("nvmlDeviceGetTemperatureThreshold", at), ONCE, labels={"threshold": threshold})  # fmt: skip
    for at, (domain, smi) in enumerate([
        ("graphics", smi_mhz("clocks.max.graphics")),
        ("sm", smi_mhz("clocks.max.sm")),
        ("memory", smi_mhz("clocks.max.memory")),
        ("video", smi_mhz("xml:max_clocks/video_clock")),
    ]):  # fmt: skip
        add("gpu_clock_max_hertz", f"nvmlDeviceGetMaxClockInfo({at})",
            number("nvmlDeviceGetMaxClockInfo", at, times=1e6), ONCE, smi, labels={"domain": domain})  # fmt: skip
    for metric, call, tier, name in [
        ("gpu_pcie_link_generation", "nvmlDeviceGetCurrPcieLinkGeneration", SLOW, "pcie.link.gen.current"),
        ("gpu_pcie_link_width_lanes", "nvmlDeviceGetCurrPcieLinkWidth", SLOW, "pcie.link.width.current"),
        ("gpu_pcie_link_max_generation", "nvmlDeviceGetMaxPcieLinkGeneration", ONCE, "pcie.link.gen.max"),
        ("gpu_pcie_link_max_width_lanes", "nvmlDeviceGetMaxPcieLinkWidth", ONCE, "pcie.link.width.max"),
    ]:
        add(metric, call, number(call), tier, smi_count(name))
    add("gpu_cuda_cores", "nvmlDeviceGetNumGpuCores", number("nvmlDeviceGetNumGpuCores"), ONCE)
    add("gpu_memory_bus_width_bytes", "nvmlDeviceGetMemoryBusWidth", number("nvmlDeviceGetMemoryBusWidth", over=8), ONCE)
    enabled = _one_of("enabled")
    for at, (metric, name) in enumerate([
        ("gpu_ecc_mode_enabled", "ecc.mode.current"), ("gpu_ecc_mode_pending_enabled", "ecc.mode.pending"),
    ]):  # fmt: skip
        add(metric, "nvmlDeviceGetEccMode", number("nvmlDeviceGetEccMode", of=lambda e, i=at: e[i]), RARE,
            Smi(name, enabled))  # fmt: skip
    add("gpu_persistence_mode_enabled", "nvmlDeviceGetPersistenceMode", number("nvmlDeviceGetPersistenceMode"), SLOW,
        Smi("persistence_mode", enabled))  # fmt: skip
    for at, mode in enumerate(["default", "exclusive_thread", "prohibited", "exclusive_process"]):
        add("gpu_compute_mode", "nvmlDeviceGetComputeMode",
            number("nvmlDeviceGetComputeMode", of=lambda m, i=at: float(m == i)), SLOW,
            Smi("compute_mode", _one_of(mode)), labels={"mode": mode})  # fmt: skip
    for at, (metric, name) in enumerate([
        ("gpu_mig_mode_enabled", "mig.mode.current"), ("gpu_mig_mode_pending_enabled", "mig.mode.pending"),
    ]):  # fmt: skip
        add(metric, "nvmlDeviceGetMigMode", number("nvmlDeviceGetMigMode", of=lambda m, i=at: m[i]), SLOW,
            Smi(name, enabled))  # fmt: skip

    # --- identity: the same text ------------------------------------------------------------------------------
    def info(label: str, call: str, read: Callable, smi: Smi | None = None) -> None:
        t.append(Spec("gpu_info", (), call, read, IDENTITY, smi=smi, info_label=label))

    info("uuid", "nvmlDeviceGetUUID", words("nvmlDeviceGetUUID"), smi_text("uuid"))
    info("model", "nvmlDeviceGetName", words("nvmlDeviceGetName"), smi_text("name"))
    info("architecture", "nvmlDeviceGetArchitecture",
         words("nvmlDeviceGetArchitecture", of=lambda a: ARCHITECTURES.get(a, a)),
         Smi("xml:product_architecture", lambda s: s.strip().lower()))  # fmt: skip
    info("compute_capability", "nvmlDeviceGetCudaComputeCapability",
         words("nvmlDeviceGetCudaComputeCapability", of=lambda c: f"{c[0]}.{c[1]}"), smi_text("compute_cap"))  # fmt: skip
    info("pci_address", "nvmlDeviceGetPciInfo_v3",
         words("nvmlDeviceGetPciInfo", of=lambda p: kernel_address(text(p.busId))),
         Smi("pci.bus_id", lambda s: kernel_address(s.strip())))  # fmt: skip
    for label, member, name in [
        ("pci_device_id", "pciDeviceId", "pci.device_id"), ("pci_subsystem_id", "pciSubSystemId", "pci.sub_device_id"),
    ]:  # fmt: skip
        info(label, "nvmlDeviceGetPciInfo_v3",
             words("nvmlDeviceGetPciInfo", of=lambda p, m=member: f"0x{getattr(p, m):08x}"),
             Smi(name, lambda s: s.strip().lower()))  # fmt: skip
    info("serial", "nvmlDeviceGetSerial", words("nvmlDeviceGetSerial"), smi_text("serial"))
    info("board_part_number", "nvmlDeviceGetBoardPartNumber", words("nvmlDeviceGetBoardPartNumber"),
         smi_text("xml:board_part_number"))  # fmt: skip
    info("minor_number", "nvmlDeviceGetMinorNumber", words("nvmlDeviceGetMinorNumber"), smi_text("xml:minor_number"))
    info("module_id", "nvmlDeviceGetModuleId", words("nvmlDeviceGetModuleId"), smi_text("xml:gpu_module_id"))
    info("vbios_version", "nvmlDeviceGetVbiosVersion", words("nvmlDeviceGetVbiosVersion"), smi_text("vbios_version"))
    info("inforom_version", "nvmlDeviceGetInforomImageVersion", words("nvmlDeviceGetInforomImageVersion"),
         smi_text("inforom.img"))  # fmt: skip
    info("gsp_firmware_version", "nvmlDeviceGetGspFirmwareVersion", words("nvmlDeviceGetGspFirmwareVersion"),
         smi_text("xml:gsp_firmware_version"))  # fmt: skip
    info("virtualization_mode", "nvmlDeviceGetVirtualizationMode",
         words("nvmlDeviceGetVirtualizationMode", of=lambda mode: VIRTUALIZATION[mode][0]),
         Smi("xml:gpu_virtualization_mode/virtualization_mode",
             lambda s: {word: mode for mode, word in VIRTUALIZATION}[s.strip().lower()]))  # fmt: skip
    return t


def memory_info(member: str) -> Callable:
    """A member of the second version of the memory structure, the one that tells reserved memory apart."""

    def read(handle: object) -> float:
        version = getattr(n, "nvmlMemory_v2", None)
        if version is None:
            raise Unanswered("this pynvml lacks the second version of the memory structure")
        return float(getattr(nvml("nvmlDeviceGetMemoryInfo", handle, version), member))

    return read


def kernel_address(bus_id: str) -> str:
    """The kernel's spelling of a PCI address, from NVML's with eight digits of domain."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[4:]}:{rest}" if len(domain) == 8 and domain.startswith("0000") else bus_id.lower()


def driver_info() -> dict[str, str]:
    """Labels of `gpu_driver_info` as NVML gives them; empty where it has no answer."""

    def ask(function: str, of=text) -> str:
        try:
            return of(nvml(function))
        except Unanswered:
            return ""

    def branch(answer: object) -> str:
        return text(getattr(answer, "branch", answer))

    return {
        "driver_version": ask("nvmlSystemGetDriverVersion"),
        "driver_branch": ask("nvmlSystemGetDriverBranch", branch),
        "nvml_version": ask("nvmlSystemGetNVMLVersion"),
        "cuda_version": ask("nvmlSystemGetCudaDriverVersion_v2", lambda v: f"{v // 1000}.{v % 1000 // 10}"),
    }


@dataclass
class History:
    """Readings of one series of one GPU, in order of time."""

    readings: list[tuple[float, Value]] = field(default_factory=list)
    unanswered: str | None = None

    def around(self, begin: float, end: float) -> list[Value]:
        """Readings from `begin` to `end`, and one more on either side."""
        before = [v for t, v in self.readings if t < begin][-1:]
        inside = [v for t, v in self.readings if begin <= t <= end]
        after = [v for t, v in self.readings if t > end][:1]
        return before + inside + after

    def spread(self, begin: float, end: float) -> float:
        """Largest minus smallest number in that time."""
        values = [v for v in self.around(begin, end) if isinstance(v, float)]
        return max(values) - min(values) if values else 0.0

    def active_seconds(self, begin: float, end: float) -> float:
        """Time for which a 0/1 value was 1, each reading holding until the next."""
        total = 0.0
        for (t, v), (after, _) in zip(self.readings, self.readings[1:]):
            total += max(0.0, min(after, end) - max(t, begin)) * float(v)
        return total


def show(value: Value | None) -> str:
    """A value for people: whole numbers whole."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return f"{value:.0f}" if value == math.floor(value) else f"{value:.6g}"
