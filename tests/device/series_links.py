"""NVLink and fabric series of the exporter beside NVML and `nvidia-smi nvlink`; see `series.py`."""

from __future__ import annotations

from collections.abc import Callable

import pynvml as n

from series import (
    ONCE,
    PER_LINK, RARE,
    SLOW,
    Smi,
    Spec,
    Unanswered,
    field_number,
    field_value,
    field_values,
    kernel_address,
    number,
    nvml,
    shared,
    smi_count,
    text,
)  # fmt: skip

LINKS = "nvlink"  # the pace at which NVML is read beside the series of links
ALL_LINKS = 0xFFFFFFFF  # the scope of a field that counts all links together
KIB = 1024.0
# Fields of data and of raw bytes, in KiB. With a link's number as scope they count that link.
DATA = {"tx": 138, "rx": 139}
RAW = {"tx": 140, "rx": 141}
# Number of the counter, exporter's label, nvidia-smi's name.
ERRORS = [(0, "dl_replay", "replay_errors"), (1, "dl_recovery", "recovery_errors"), (2, "dl_crc_flit", "crc_errors")]
NVLINK_5 = {
    "malformed_packet": 206, "buffer_overrun": 207, "receive": 208, "receive_remote": 209, "receive_general": 210,
    "local_link_integrity": 211, "transmit_discard": 212, "link_recovery_successful": 213, "link_recovery_failed": 214,
    "link_recovery": 215, "effective": 219, "symbol": 221,
}  # fmt: skip
LANE_ERRORS = [(3, "dl_crc_data"), (4, "dl_ecc_data")]
REMOTE = {0: "gpu", 1: "ibmnpu", 2: "switch"}
FABRIC_STATES = ["not_supported", "not_started", "in_progress", "completed"]
# Lowest bit, and whether there are four bits (a configuration, 1 is right) or two (1 true, 2 false).
FABRIC_FAULTS = [
    ("degraded_bandwidth", 0, False), ("route_recovery", 2, False), ("route_unhealthy", 4, False),
    ("access_timeout_recovery", 6, False), ("incorrect_configuration", 8, True),
]  # fmt: skip


def most_links() -> int:
    """Links of the GPU that has most; 0 if none has any."""
    most = 0
    for at in range(n.nvmlDeviceGetCount()):
        try:
            most = max(most, int(field_value(91)(n.nvmlDeviceGetHandleByIndex(at))))
        except Unanswered:
            continue
    return most


def _bytes_of_links(links: int) -> Callable[[object], dict[tuple[str, int], object]]:
    """Data bytes of every link, in one call."""
    asked = [(direction, link) for link in range(links) for direction in DATA]

    def ask(handle: object) -> dict[tuple[str, int], object]:
        answers = field_values(handle, [(DATA[d], link) for d, link in asked])
        return dict(zip(asked, answers))

    return shared(ask, 0.5)


def _states(handle: object) -> list[bool]:
    """Whether each link is up, up to the first that the GPU has not."""
    states = []
    for link in range(36):
        try:
            states.append(bool(nvml("nvmlDeviceGetNvLinkState", handle, link)))
        except Unanswered:
            if not states:
                raise
            break
    return states


def _slowest(handle: object) -> float:
    """Speed of the slowest link that is up."""
    speeds = [field_value(164, times=1e6, scope=link)(handle) for link, up in enumerate(_states(handle)) if up]
    if not speeds:
        raise Unanswered("no link is up")
    return min(speeds)


def _field_of_links(field_id: int, links: int) -> Callable:
    """A reader of the sum of a field over the links."""

    def read(handle: object) -> float:
        answers = field_values(handle, [(field_id, link) for link in range(links)])
        return float(sum(field_number(answer) for answer in answers))

    return read


def _lane_errors(counter: int, links: int) -> Callable[[object], float]:
    return lambda h: float(sum(nvml("nvmlDeviceGetNvLinkErrorCounter", h, link, counter) for link in range(links)))


def _remote_address(handle: object, link: int) -> str:
    """PCI address at the other end; empty where a guest does not see it."""
    try:
        bus_id = text(nvml("nvmlDeviceGetNvLinkRemotePciInfo", handle, link).busId)
    except Unanswered:
        return ""
    return "" if "ffff:ff:ff" in bus_id.lower() else kernel_address(bus_id)


def _remote_link(handle: object, link: int) -> str:
    try:
        number_there = field_value(146, scope=link)(handle)
    except Unanswered:
        return ""
    return "" if number_there == 0xFFFFFFFF else f"{number_there:.0f}"


def fabric(handle: object) -> object:
    """The fabric information in the newest form that this driver and this pynvml share."""
    problem: Exception = Unanswered("this pynvml has no nvmlDeviceGetGpuFabricInfoV")
    for name in ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t", "c_nvmlGpuFabricInfoV_t"):
        if not hasattr(n, name):
            continue
        from ctypes import byref

        info = getattr(n, name)()
        try:
            nvml("nvmlDeviceGetGpuFabricInfoV", handle, byref(info))
            return info
        except Unanswered as why:
            problem = why
    raise problem


def _cluster(info: object) -> str:
    raw = bytes(bytearray(info.clusterUuid))
    hexed = raw.hex()
    return "" if not any(raw) else "-".join((hexed[:8], hexed[8:12], hexed[12:16], hexed[16:20], hexed[20:]))


def _fault(mask: int, shift: int, four_bits: bool) -> float:
    code = mask >> shift & (0xF if four_bits else 0x3)
    if code == 0 or (not four_bits and code == 3):
        raise Unanswered("the fabric does not tell")
    return float(code != 1) if four_bits else float(code == 1)


def _joined(info: object) -> object:
    if info.state != 3:
        raise Unanswered("the GPU has not joined a fabric")
    return info


def _smi_state(state: str) -> Callable[[str], float]:
    return lambda said: float(said.strip().lower().replace(" ", "_") == state)


def table(links: int) -> list[Spec]:
    """The series of a GPU with so many links. Without any, NVML must not answer and the exporter must have none."""
    t: list[Spec] = []
    has = links > 0

    def add(metric: str, call: str, read: Callable, tier: str, smi: Smi | None = None, **more) -> None:
        labels = tuple(more.pop("labels", {}).items())
        t.append(Spec(metric, labels, call, read, tier, smi=smi, **({"recorded": has} | more)))

    # --- the GPU ------------------------------------------------------------------------------------------
    for metric, fields in [("gpu_nvlink_bytes_total", DATA), ("gpu_nvlink_raw_bytes_total", RAW)]:
        for direction, field_id in fields.items():
            add(metric, f"nvmlDeviceGetFieldValues({field_id},{ALL_LINKS})",
                field_value(field_id, times=KIB, scope=ALL_LINKS), SLOW, labels={"direction": direction},
                window=1.5)  # fmt: skip
    add("gpu_nvlink_links", "nvmlDeviceGetFieldValues(91)", field_value(91), ONCE)
    add("gpu_nvlink_links_up", "nvmlDeviceGetNvLinkState", lambda h: float(sum(_states(h))), RARE, window=1.5)
    add("gpu_nvlink_speed_bytes_per_second", "nvmlDeviceGetFieldValues(164)", _slowest, RARE, pace=LINKS,
        smi=Smi("nvlink:0/speed", lambda said: float(said.split()[0]) * 1e9, 1e6))  # fmt: skip
    for counter, error in LANE_ERRORS:
        add("gpu_nvlink_lane_errors_total", "nvmlDeviceGetNvLinkErrorCounter", _lane_errors(counter, max(links, 1)),
            PER_LINK, labels={"error": error}, pace=LINKS)  # fmt: skip

    for counter, error, _ in ERRORS:
        add("gpu_nvlink_errors_total", "nvmlDeviceGetNvLinkErrorCounter", _lane_errors(counter, max(links, 1)),
            PER_LINK, labels={"error": error}, pace=LINKS)  # fmt: skip

    # Of NVLink 5: older links have none of them, nor has the exporter.
    for error, field_id in NVLINK_5.items():
        add("gpu_nvlink_errors_total", f"nvmlDeviceGetFieldValues({field_id})", _field_of_links(field_id, max(links, 1)),
            PER_LINK, recorded=False, labels={"error": error}, pace=LINKS)  # fmt: skip

    # --- the fabric: no recording tells what an H200 answers ------------------------------------------------
    info = shared(fabric, 0.2)
    call = "nvmlDeviceGetGpuFabricInfoV"
    for at, state in enumerate(FABRIC_STATES):
        add("gpu_fabric_state", call, lambda h, a=at: float(info(h).state == a), SLOW, recorded=False, window=1.5,
            smi=Smi("xml:fabric/state", _smi_state(state)), labels={"state": state})  # fmt: skip
    for fault, shift, four_bits in FABRIC_FAULTS:
        add("gpu_fabric_fault", call, lambda h, s=shift, f=four_bits: _fault(info(h).healthMask, s, f), SLOW,
            recorded=False, window=1.5, labels={"fault": fault})  # fmt: skip
    add("gpu_fabric_status", call, lambda h: float(_joined(info(h)).status), SLOW, recorded=False, window=1.5)
    add("gpu_fabric_info", call, lambda h: _cluster(_joined(info(h))), RARE, recorded=False, info_label="cluster_uuid",
        smi=Smi("xml:fabric/clusterUuid", lambda s: "" if not s.strip("0-") else s.strip().lower()))  # fmt: skip
    add("gpu_fabric_info", call, lambda h: str(_joined(info(h)).cliqueId), RARE, recorded=False, info_label="clique_id",
        smi=Smi("xml:fabric/cliqueId", str.strip))  # fmt: skip

    # --- each link --------------------------------------------------------------------------------------------
    data = _bytes_of_links(links)
    for link in range(links):
        of = {"link": str(link)}
        add("gpu_nvlink_up", f"nvmlDeviceGetNvLinkState({link})", number("nvmlDeviceGetNvLinkState", link), RARE,
            Smi(f"nvlink:{link}/speed", lambda said: float("inactive" not in said)), labels=of, pace=LINKS)  # fmt: skip
        for direction in DATA:
            add("gpu_nvlink_link_bytes_total", f"nvmlDeviceGetFieldValues({DATA[direction]},{link})",
                lambda h, key=(direction, link): field_number(data(h)[key]) * KIB, PER_LINK,
                Smi(f"nvlink:{link}/data_{direction}", lambda said: float(said.split()[0]) * KIB),
                labels=of | {"direction": direction}, pace=LINKS)  # fmt: skip
        for label, call, read in [
            ("version", "nvmlDeviceGetNvLinkVersion",
             lambda h, k=link: str(nvml("nvmlDeviceGetNvLinkVersion", h, k))),
            ("remote_type", "nvmlDeviceGetNvLinkRemoteDeviceType",
             lambda h, k=link: REMOTE.get(nvml("nvmlDeviceGetNvLinkRemoteDeviceType", h, k), "unknown")),
            ("remote_pci_address", "nvmlDeviceGetNvLinkRemotePciInfo_v2", lambda h, k=link: _remote_address(h, k)),
            ("remote_link", "nvmlDeviceGetFieldValues(146)", lambda h, k=link: _remote_link(h, k)),
        ]:  # fmt: skip
            add("gpu_nvlink_info", f"{call}({link})", read, RARE, labels=of, pace=LINKS, info_label=label)
    return t
