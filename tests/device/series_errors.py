"""Error, recovery, video and virtualization series beside NVML and `nvidia-smi -q -x`; see `series.py`."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref
from pathlib import Path

import pynvml as n

from series import (
    NORMAL,
    RARE,
    SLOW,
    Smi,
    Spec,
    Unanswered,
    field_value,
    kernel_address,
    number,
    nvml,
    shared,
    smi_count,
    text,
)  # fmt: skip

# Fields 173 to 183, in their order.
PCIE_ERRORS = ["correctable", "naks_received", "receiver", "bad_tlp", "naks_sent", "bad_dllp", "non_fatal", "fatal",
               "unsupported_request", "lcrc", "lane"]  # fmt: skip
SPARE_ROWS = ["max", "high", "partial", "low", "none"]
SRAM_ERRORS = [("corrected", "Cor", "sram_correctable"), ("uncorrected_parity", "UncParity", "sram_uncorrectable_parity"),
               ("uncorrected_secded", "UncSecDed", "sram_uncorrectable_secded")]  # fmt: skip
SRAM_UNITS = [("l2", "L2", "sram_l2"), ("sm", "Sm", "sram_sm"), ("mcu", "Mcu", "sram_microcontroller"),
              ("pcie", "Pcie", "sram_pcie"), ("other", "Other", "sram_other")]  # fmt: skip
# In the order of NVML's numbers, with nvidia-smi's words.
RECOVERY_ACTIONS = [("none", "none"), ("gpu_reset", "reset"), ("node_reboot", "reboot"), ("drain_p2p", "drain p2p"),
                    ("drain_and_reset", "drain and reset")]  # fmt: skip
RETIRED = [("multiple_single_bit", 0, "multiple_single_bit_retirement"), ("double_bit", 1, "double_bit_retirement")]
AER = [("correctable", "aer_dev_correctable"), ("non_fatal", "aer_dev_nonfatal"), ("fatal", "aer_dev_fatal")]


def _sram(handle: object) -> object:
    if not hasattr(n, "c_nvmlEccSramErrorStatus_v1_t"):
        raise Unanswered("this pynvml has no nvmlDeviceGetSramEccErrorStatus")
    status = n.c_nvmlEccSramErrorStatus_v1_t()
    nvml("nvmlDeviceGetSramEccErrorStatus", handle, byref(status))
    return status


def _aer(handle: object, name: str) -> float:
    """The total that the kernel counts for the GPU's PCI function."""
    address = kernel_address(text(nvml("nvmlDeviceGetPciInfo", handle).busId))
    try:
        said = Path(f"/sys/bus/pci/devices/{address}/{name}").read_text()
    except OSError as error:
        raise Unanswered(f"{name}: {error.strerror}") from None
    for line in said.splitlines():
        if line.startswith("TOTAL_"):
            return float(line.split()[1])
    raise Unanswered(f"{name} has no total")


def _while_sessions(call: str, sessions: Callable, latency: Callable) -> Callable:
    """An average of no sessions is no latency."""

    def read(handle: object) -> float:
        answer = nvml(call, handle)
        if not sessions(answer):
            raise Unanswered("no sessions")
        return latency(answer) / 1e6

    return read


def _word(pairs: list[tuple[str, str]], wanted: str) -> Callable[[str], float]:
    """nvidia-smi's word for a state as 1 or 0; an unknown word is no answer."""
    known = {name: state for state, name in pairs}
    return lambda said: float(known[word] == wanted) if (word := said.strip().lower()) in known else _unknown(said)


def _unknown(said: str) -> float:
    raise ValueError(said)


def table() -> list[Spec]:
    """The table."""
    t: list[Spec] = []

    def add(metric: str, call: str, read: Callable, tier: str, smi: Smi | None = None, **more) -> None:
        labels = tuple(more.pop("labels", {}).items())
        t.append(Spec(metric, labels, call, read, tier, smi=smi, **more))

    # --- on-chip memory: no recording tells what an H200 answers ---------------------------------------------
    sram, call = shared(_sram), "nvmlDeviceGetSramEccErrorStatus"
    yes = {"recorded": False, "window": 5.0}
    for counter in ("volatile", "aggregate"):
        for error, member, name in SRAM_ERRORS:
            add("gpu_ecc_sram_errors", call, lambda h, m=f"{counter}{member}": float(getattr(sram(h), m)), SLOW,
                smi_count(f"xml:ecc_errors/{counter}/{name}"), labels={"counter": counter, "error": error}, **yes)  # fmt: skip
    for unit, member, name in SRAM_UNITS:
        add("gpu_ecc_sram_uncorrected_errors", call,
            lambda h, m=f"aggregateUncBucket{member}": float(getattr(sram(h), m)), SLOW,
            smi_count(f"xml:ecc_errors/aggregate_uncorrectable_sram_sources/{name}"), labels={"unit": unit}, **yes)  # fmt: skip
    add("gpu_ecc_sram_threshold_exceeded", call, lambda h: float(bool(sram(h).bThresholdExceeded)), SLOW,
        Smi("xml:ecc_errors/aggregate/sram_threshold_exceeded", lambda s: float(s.strip().lower() == "yes")), **yes)  # fmt: skip

    # --- device memory ---------------------------------------------------------------------------------------
    for left in SPARE_ROWS:
        add("gpu_row_remap_banks", "nvmlDeviceGetRowRemapperHistogram",
            number("nvmlDeviceGetRowRemapperHistogram", of=lambda h, m=left: getattr(h, m)), SLOW,
            smi_count(f"xml:remapped_rows/row_remapper_histogram/row_remapper_histogram_{left}"),
            labels={"spare_rows": left}, window=5.0)  # fmt: skip
    for cause, number_of, name in RETIRED:
        add("gpu_retired_pages", f"nvmlDeviceGetRetiredPages_v2({number_of})",
            number("nvmlDeviceGetRetiredPages", number_of, of=len), RARE,
            smi_count(f"xml:retired_pages/{name}/retired_count"), labels={"cause": cause}, recorded=False)  # fmt: skip
    add("gpu_retired_pages_pending", "nvmlDeviceGetRetiredPagesPendingStatus",
        number("nvmlDeviceGetRetiredPagesPendingStatus"), RARE, recorded=False)  # fmt: skip
    action = shared(field_value(230))
    for at, (name, _) in enumerate(RECOVERY_ACTIONS):
        add("gpu_recovery_action", "nvmlDeviceGetFieldValues(230)", lambda h, a=at: float(action(h) == a), NORMAL,
            Smi("xml:gpu_recovery_action", _word(RECOVERY_ACTIONS, name)), labels={"recovery_action": name},
            window=1.0)  # fmt: skip

    # --- PCIe: counts that may move between two readings --------------------------------------------------------
    for at, error in enumerate(PCIE_ERRORS):
        add("gpu_pcie_errors_total", f"nvmlDeviceGetFieldValues({173 + at})", field_value(173 + at), RARE,
            labels={"error": error}, window=1.5)  # fmt: skip
    add("gpu_pcie_recoveries_total", "nvmlDeviceGetFieldValues(169)", field_value(169), RARE, window=1.5)
    for severity, name in AER:
        add("gpu_pcie_aer_errors_total", name, lambda h, f=name: _aer(h, f), RARE, labels={"severity": severity},
            recorded=False, window=1.5)  # fmt: skip

    # --- modes and video ----------------------------------------------------------------------------------------
    for prefix, call, name, sessions, frames, latency in [
        ("gpu_encoder", "nvmlDeviceGetEncoderStats", "encoder_stats", lambda s: s[0], lambda s: s[1], lambda s: s[2]),
        ("gpu_fbc", "nvmlDeviceGetFBCStats", "fbc_stats", lambda s: s.sessionsCount, lambda s: s.averageFPS,
         lambda s: s.averageLatency),
    ]:  # fmt: skip
        add(f"{prefix}_sessions", call, number(call, of=sessions), SLOW, smi_count(f"xml:{name}/session_count"), window=1.5)
        add(f"{prefix}_frames_per_second", call, number(call, of=frames), SLOW, smi_count(f"xml:{name}/average_fps"),
            absolute=2, relative=0.1, window=1.5)  # fmt: skip
        add(f"{prefix}_latency_seconds", call, _while_sessions(call, sessions, latency), SLOW, absolute=0.001,
            relative=0.2, window=1.5, recorded=False)  # fmt: skip
    return t
