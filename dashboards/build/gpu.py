"""Why is this GPU slow or unhealthy? One GPU: health first, then speed, links and owners."""

from kit import *
from owners import CAUSE_TEXTS, OWNER_TERMS, cause_number

ON_OFF = [mapped({0: ("no", GREEN), 1: ("yes", RED), 2: ("none", GREEN)})]
HELD = [mapped({0: ("no", NONE), 1: ("yes", ORANGE), 2: ("none", GREEN)})]


def this(expr: str) -> str:
    """For a table of one GPU: the value, or NaN."""
    return or_none(by_gpu(expr), "$THIS_GPU")


dashboard = Dashboard(
    "gpu-node-gpu",
    "GPU / GPU",
    "Why is this GPU slow or unhealthy?",
    variables=[*node_variables(one_node=True), gpu_variable(one_gpu=True)],
    start="now-3h",
    one_gpu=True,
    terms=OWNER_TERMS
    | {
        # One GPU is shown: its node and number are chosen above.
        "LINE": "GPU {{gpu}}",
        # The last reading of values that are read every second.
        "READ": 'gpu_exporter_sample_timestamp_seconds{$GPU,tier="normal"}',
        # Times by reason, without those that hold nothing back.
        "REASON": 'reason!="gpu_idle"',
        # Units whose activity shows how full the GPU was, and thresholds below the shutdown.
        "UNITS": 'unit=~"sm|sm_occupancy|tensor|dram|fp64|fp32|fp16"',
        "LIMITS": 'threshold=~"slowdown|memory_max|gpu_max"',
        "LABELS": "model, uuid, serial, pci_address, board_part_number, vbios_version, inforom_version, module_id",
        "OWNER": "$BY_GPU, gpu_instance, owner",
        "PARTS": "kind, slurm_job, user",
        "VGPUS": "max by ($BY_GPU, vgpu_uuid) (gpu_vgpu_info{$GPU})",
        "ANCHOR": "max by ($OWNER) (gpu_owner_info{$GPU})",
    },
)

dashboard.row("State and identity", no_value="not reported").panels(
    table("Board", no_value="no such GPU in this time", height=4, hidden=["cluster", "instance", "gpu"])
    .help("Identity of the GPU, as a vendor asks for it, and its NUMA node.")
    .label("model", width=130)
    .label("uuid", width=365)
    .label("serial", width=135)
    .label("pci_address", width=120)
    .label("board_part_number", width=160)
    .labels("vbios_version", "inforom_version", width=130)
    .label("module_id", width=90)
    .label("numa_node", width=105)
    .label("driver_version")
    .labels_from("max by ($BY_GPU, $LABELS) (gpu_info{$GPU})")
    .labels_from("max by ($BY_GPU, numa_node) (gpu_host_topology_info{$GPU})")
    .labels_from("""max by ($BY_GPU, driver_version) ($THIS_GPU
        * on ($BY_NODE) group_left (driver_version) gpu_driver_info{$NODE})"""),
    stat("Healthy", steps=GOOD_AT_ONE, mappings=[YES_NO], width=3)
    .help("Whether a reason is known that keeps the GPU from being used; the reasons are in the band below.")
    .query("min(gpu_healthy{$GPU})", "$LINE"),
    stat("Answers", steps=GOOD_AT_ONE, mappings=[YES_NO], no_value="no driver", width=3)
    .help("Whether the driver answers about this GPU in time.")
    .query("min(gpu_up{$GPU})", "$LINE"),
    stat("Recovery action", steps=BAD_ABOVE_ZERO, text_mode="name", width=3)
    .help("The action that the driver requests to recover the GPU.")
    .query("""max by (recovery_action) (gpu_recovery_action{$GPU,recovery_action!="none"} == 1
        or (gpu_recovery_action{$GPU,recovery_action="none"} == 1) * 0)""", "{{recovery_action}}"),
    stat("Age of readings", unit="s", steps=steps(GREEN, 30, ORANGE, 120, RED), no_value="not read", decimals=0,
        width=3)
    .help("How old the values read every second are, by the node's own clock. Old ones are not the present state.")
    .query(f"max({age('$READ')})", "$LINE"),
    stat("Thermal margin", unit="celsius", steps=steps(RED, 1, ORANGE, 6, GREEN), no_value="not measured", width=3)
    .help("Degrees until the GPU slows down for heat, by its own threshold.")
    .query("min(gpu_temperature_margin_celsius{$GPU})", "$LINE"),
    stat("Memory used", unit="percentunit", steps=steps(BLUE, 0.85, ORANGE), no_value="not measured", decimals=0,
        width=3)
    .help("Share of the device memory that is in use.")
    .query("max(gpu_memory_used_bytes{$GPU} / gpu_memory_total_bytes{$GPU})", "$LINE"),
    stat("Idle for", unit="s", no_value="never seen busy", decimals=0, width=3)
    .help("Time since the GPU last had a process or utilization. The canary is not counted.")
    .query(f"min({age('gpu_last_busy_timestamp_seconds{$GPU}')})", "$LINE"),
    stat("Resets", steps=steps(BLUE, 1, YELLOW), decimals=0, width=3)
    .help("Resets of the GPU in the time shown.")
    .query("sum(increase(gpu_resets_total{$GPU}[$__range]))", "$LINE"),
)

dashboard.row("Health").panels(
    state_timeline("Reasons against its use", steps=BAD_ABOVE_ZERO, mappings=ON_OFF, no_value="no driver",
        width=12, height=9)
    .help("Each reason over time. Several can hold at once. In a gap the driver did not answer.")
    .query("max by (reason) (gpu_unhealthy_reason{$GPU})", "{{reason}}")
    .query("max(gpu_healthy{$GPU} == 1) * 2", "no reason"),
    table("Xids", no_value="Xids are not counted", width=12, height=9, sort_by="count")
    .help("""Codes counted since the exporter started, with the first action. The time of the newest is in the
        events of the exporter (/api/v1/events).""")
    .labels("xid", "severity", "action")
    .column("count", """sum by (xid, severity, action) (gpu_xid_errors_total{$GPU}) > 0
        or on () label_replace(0 * count(gpu_xid_errors_total{$GPU}), "xid", "none was counted", "", "")""",
        steps=BAD_ABOVE_ZERO),
    timeseries("Memory errors since the driver was loaded", steps=BAD_ABOVE_ZERO, no_value="ECC off or not supported",
        minimum=0, soft_maximum=1, decimals=0, width=8)
    .help("""Uncorrected errors end the work that reads them. Corrected ones are harmless; many of them announce a row
        remap.""")
    .query('max by (instance, gpu, error) (gpu_ecc_total_errors{$GPU,counter="volatile"})', "$LINE {{error}}"),
    bargauge("Banks by spare rows left", no_value="not supported", width=6)
    .help("Banks of device memory by how many spare rows they have left. A bank without any cannot be repaired.")
    .query("sum by (spare_rows) (gpu_row_remap_banks{$GPU})", "{{spare_rows}}"),
    table("Repairs", no_value="no such GPU in this time", width=10, hidden=["cluster", "instance", "gpu"])
    .help("Repairs that wait for a reset, and repairs that failed. Failed: a candidate for return.")
    .column("ECC on", this("gpu_ecc_mode_enabled{$GPU}"), mappings=[YES_NO])
    .column("rows remapped", this("sum by ($BY_GPU) (gpu_remapped_rows{$GPU})"))
    .column("remap pending", this("gpu_row_remap_pending{$GPU} or gpu_retired_pages_pending{$GPU}"),
        steps=TICKET_ABOVE_ZERO)
    .column("remap failed", this("gpu_row_remap_failure{$GPU}"), steps=BAD_ABOVE_ZERO)
    .column("SRAM over limit", this("gpu_ecc_sram_threshold_exceeded{$GPU}"), steps=BAD_ABOVE_ZERO),
)

dashboard.row("Speed", no_value="not measured").panels(
    shares("Utilization", steps=UTILIZATION_BAND, draw_steps="area", no_value="not measured (MIG, or no driver)",
        links=[series_link("Job", "gpu-node-job", "instance", "gpu")])
    .help("""Share of time with a kernel, the canary's included: not how full the GPU was. The band from 60 to
        80 % is good use; neither side of it is a fault. A GPU in MIG mode has none: see the MIG dashboard.""")
    .query("max by (instance, gpu) (gpu_utilization_ratio{$GPU})", "$LINE kernels")
    .query("max by (instance, gpu) (gpu_memory_utilization_ratio{$GPU})", "$LINE memory interface"),
    shares("Activity of units", steps=NOTHING, no_value="neither GPM (Hopper and later) nor a dcgm-exporter")
    .help("""Activity of the parts of the GPU (GPM, else a dcgm-exporter beside). Kernels that run all the time with few
        multiprocessors active are too small; the tensor pipes show matrix work.""")
    .query(activity("instance, gpu, unit", "$GPU,$UNITS"), "$LINE {{unit}}"),
    state_timeline("Clock event reasons", steps=BAD_ABOVE_ZERO,
        mappings=HELD, no_value="not reported", width=12)
    .help("""The driver's reasons to hold clocks down. Idle time is left out. Heat and power brake protect the
        hardware; a power cap is often a setting.""")
    .query("max by (reason) (gpu_clock_event_active{$GPU,$REASON})", "{{reason}}")
    .query("""max(count by ($BY_GPU) (gpu_clock_event_seconds_total{$GPU}) * 0 + 2
        unless on ($BY_GPU) gpu_clock_event_active{$GPU,$REASON} == 1)""", "no reason"),
    shares("Share of time with clocks held down", steps=steps(NONE, 0.1, YELLOW), no_value="not reported")
    .help("How much of the time each reason held the clocks down, by the driver's own counters, which include short events.")
    .query("max by (instance, gpu, reason) (rate(gpu_clock_event_seconds_total{$GPU,$REASON}[$__rate_interval]))",
        "$LINE {{reason}}"),
    timeseries("Power and its limit", unit="watt", steps=NOTHING, minimum=0, dashed=["/limit$/"])
    .help("Power as the driver averages it, its samples (50 a second) added up, and the limit in force.")
    .query("max by (instance, gpu) (gpu_power_watts{$GPU})", "$LINE power")
    .query("max by (instance, gpu) (rate(gpu_energy_sampled_joules_total{$GPU}[$__rate_interval]))",
        "$LINE by its samples added up")
    .query('max by (instance, gpu) (gpu_power_limit_watts{$GPU,limit="enforced"})', "$LINE limit"),
    timeseries("Temperatures and their limits", unit="celsius", steps=NOTHING, dashed=["/limit$/"])
    .help("The core and the memory against this device's own thresholds.")
    .query("max by (instance, gpu, sensor) (gpu_temperature_celsius{$GPU})", "$LINE {{sensor}}")
    .query("max by (instance, gpu, threshold) (gpu_temperature_threshold_celsius{$GPU,$LIMITS})",
        "$LINE {{threshold}} limit"),
    timeseries("Clocks and their maximum", unit="hertz", steps=NOTHING, minimum=0, dashed=["/limit$/"])
    .help("Clocks and their maximum. Low clocks without a reason above are worth a ticket.")
    .query('max by (instance, gpu, domain) (gpu_clock_hertz{$GPU,domain=~"sm|memory"})', "$LINE {{domain}}")
    .query('max by (instance, gpu, domain) (gpu_clock_max_hertz{$GPU,domain=~"sm|memory"})', "$LINE {{domain}} limit"),
    timeseries("Memory", unit="bytes", steps=NOTHING, minimum=0, dashed=["/limit$/"])
    .help("Device memory in use, its size, and the line of 85 %.")
    .query("max by (instance, gpu) (gpu_memory_used_bytes{$GPU})", "$LINE used")
    .query("max by (instance, gpu) (gpu_memory_total_bytes{$GPU})", "$LINE limit")
    .query("max by (instance, gpu) (gpu_memory_total_bytes{$GPU}) * 0.85", "$LINE 85 % limit"),
)

dashboard.row("Bursts, video and vGPU").panels(
    shares("Utilization between scrapes", steps=NOTHING, no_value="not sampled", width=8)
    .help("""Highest and lowest of the driver's own samples (50 a second) of the 60 s before each scrape, beside the value
        at the scrape: bursts that single values miss.""")
    .query("max by (instance, gpu) (gpu_utilization_peak_ratio{$GPU})", "$LINE highest")
    .query("max by (instance, gpu) (gpu_utilization_minimum_ratio{$GPU})", "$LINE lowest")
    .query("max by (instance, gpu) (gpu_utilization_ratio{$GPU})", "$LINE at the scrape"),
    timeseries("Power between scrapes", unit="watt", steps=NOTHING, minimum=0, no_value="not sampled", width=8,
        dashed=["/limit$/"])
    .help("Highest and lowest power sample of the 60 s before each scrape, and the limit in force.")
    .query("max by (instance, gpu) (gpu_power_peak_watts{$GPU})", "$LINE highest")
    .query("max by (instance, gpu) (gpu_power_minimum_watts{$GPU})", "$LINE lowest")
    .query('max by (instance, gpu) (gpu_power_limit_watts{$GPU,limit="enforced"})', "$LINE limit"),
    timeseries("Time held down by policy", unit="percentunit", steps=NOTHING, minimum=0, no_value="not counted", width=8)
    .help("Share of time in which each policy of the driver (power, thermal, sync boost...) held clocks down.")
    .query("max by (instance, gpu, policy) (rate(gpu_violation_seconds_total{$GPU}[$__rate_interval]))",
        "$LINE {{policy}}"),
    shares("Video engines", steps=NOTHING, no_value="not supported", width=7)
    .help("Utilization of encoder, decoder, JPEG and optical flow engines.")
    .query("max by (instance, gpu) (gpu_encoder_utilization_ratio{$GPU})", "$LINE encoder")
    .query("max by (instance, gpu) (gpu_decoder_utilization_ratio{$GPU})", "$LINE decoder")
    .query("max by (instance, gpu) (gpu_jpeg_utilization_ratio{$GPU})", "$LINE JPEG")
    .query("max by (instance, gpu) (gpu_ofa_utilization_ratio{$GPU})", "$LINE optical flow"),
    timeseries("Encoder and capture sessions", steps=NOTHING, minimum=0, decimals=0, no_value="not supported", width=7)
    .help("Sessions of the encoder (NVENC) and of frame buffer capture, and their frames a second.")
    .query("max by (instance, gpu) (gpu_encoder_sessions{$GPU})", "$LINE encoder sessions")
    .query("max by (instance, gpu) (gpu_encoder_frames_per_second{$GPU})", "$LINE encoder frames/s")
    .query("max by (instance, gpu) (gpu_fbc_sessions{$GPU})", "$LINE capture sessions")
    .query("max by (instance, gpu) (gpu_fbc_frames_per_second{$GPU})", "$LINE capture frames/s"),
    table("Virtual GPUs", no_value="no virtual GPU", width=10, hidden=["cluster", "instance", "gpu"])
    .help("Virtual GPUs of this board: type, machine, licence, memory and utilization of the busiest engine.")
    .label("vgpu_uuid", width=90)
    .label("vgpu_type", width=175)
    .label("vm_id", width=105)
    .labels_from("max by ($BY_GPU, vgpu_uuid, vgpu_type, vm_id) (gpu_vgpu_info{$GPU})")
    .yes_no("licensed", or_none("max by ($BY_GPU, vgpu_uuid) (gpu_vgpu_licensed{$GPU})", "$VGPUS", "$BY_GPU, vgpu_uuid"))
    .column("memory", or_none("max by ($BY_GPU, vgpu_uuid) (gpu_vgpu_memory_used_bytes{$GPU})", "$VGPUS",
            "$BY_GPU, vgpu_uuid"), unit="bytes")
    .share("busy", or_none("max by ($BY_GPU, vgpu_uuid) (gpu_vgpu_utilization_ratio{$GPU})", "$VGPUS",
            "$BY_GPU, vgpu_uuid")),
)

dashboard.row("Links").panels(
    table("Links now", no_value="no such GPU in this time", height=4, hidden=["cluster", "instance", "gpu"])
    .help("""The PCIe link and its maximum, NVLinks that are up, and the limit of the host port. An idle GPU lowers the
        generation to save power; the number of lanes never falls by itself.""")
    .column("generation", this("gpu_pcie_link_generation{$GPU}"))
    .column("maximum generation", this("gpu_pcie_link_max_generation{$GPU}"))
    .column("lanes", this("gpu_pcie_link_width_lanes{$GPU}"))
    .column("maximum lanes", this("gpu_pcie_link_max_width_lanes{$GPU}"))
    .column("port's lanes", this("gpu_host_pcie_port_max_width_lanes{$GPU}"))
    .column("NVLinks up", this("gpu_nvlink_links_up{$GPU}"))
    .column("NVLinks", this("gpu_nvlink_links{$GPU}"))
    .column("fabric joined", this('gpu_fabric_state{$GPU,state="completed"}'),
        mappings=[mapped({1: ("yes", GREEN), 0: ("no", GREY)})]),
    timeseries("PCIe traffic", unit="Bps", steps=NOTHING, no_value="neither GPM (Hopper and later) nor a dcgm-exporter",
        minimum=0, width=8)
    .help("""Bytes a second over PCIe, seen from the GPU (GPM, else a dcgm-exporter beside, else NVML's 20 ms of each
        minute if sampler.pcie_throughput is on).""")
    .query(pcie_rate("instance, gpu, direction", "$GPU"), "$LINE {{direction}}"),
    timeseries("NVLink traffic", unit="Bps", steps=NOTHING, no_value="no NVLink", minimum=0, width=8)
    .help("Bytes a second over all NVLinks, seen from the GPU.")
    .query("max by (instance, gpu, direction) (rate(gpu_nvlink_bytes_total{$GPU}[$__rate_interval]))",
        "$LINE {{direction}}"),
    timeseries("Link errors", unit="cps", steps=steps(NONE, 1, ORANGE), no_value="not counted", minimum=0,
        soft_maximum=1, width=8)
    .help("""PCIe replays, PCIe errors and NVLink errors of all kinds, each a second, and those kinds that were counted. A
        healthy link has next to none.""")
    .query("max by (instance, gpu) (rate(gpu_pcie_replays_total{$GPU}[$__rate_interval]))", "$LINE PCIe replays")
    .query("sum by (instance, gpu) (rate(gpu_pcie_errors_total{$GPU}[$__rate_interval]))", "$LINE PCIe errors")
    .query("sum by (instance, gpu) (rate(gpu_nvlink_errors_total{$GPU}[$__rate_interval]))", "$LINE NVLink errors")
    .query("max by (instance, gpu, error) (rate(gpu_pcie_errors_total{$GPU}[$__rate_interval])) > 0",
        "$LINE PCIe {{error}}")
    .query("max by (instance, gpu, error) (rate(gpu_nvlink_errors_total{$GPU}[$__rate_interval])) > 0",
        "$LINE NVLink {{error}}"),
)

dashboard.row("Owners and canary").panels(
    table("Owners", no_value="no owner", width=14, hidden=["cluster", "instance", "gpu"])
    .help("Owners with work on the GPU, now or within a quarter of an hour.")
    .label("gpu_instance", width=105)
    .label("owner", links=[row_link("Job", "gpu-node-job", "owner")], width=270)
    .label("kind", width=60)
    .labels("slurm_job", "user", width=80)
    .labels_from("max by ($OWNER, $PARTS) (gpu_owner_info{$GPU})")
    .column("processes", or_none("max by ($OWNER) (gpu_owner_processes{$GPU})", "$ANCHOR", "$OWNER"))
    .column("memory", or_none("max by ($OWNER) (gpu_owner_memory_used_bytes{$GPU})", "$ANCHOR", "$OWNER"), unit="bytes")
    .share("busy",
        or_none("max by ($OWNER) (rate(gpu_owner_busy_seconds_total{$GPU}[$__rate_interval]))", "$ANCHOR", "$OWNER")),
    state_timeline("Limiting causes", mappings=[CAUSE_TEXTS], no_value="no work is measured", width=10)
    .help("""The cause that is proven for each owner; docs/BOTTLENECKS.md has the formulas. None known: no cause is proven.""")
    .query(cause_number("$GPU"), "{{gpu_instance}} {{owner}}"),
    table("Processes", no_value="no process is exported", width=12, sort_by="memory", hidden=["cluster", "instance", "gpu"])
    .help("Processes on the GPU, if the exporter is configured to export single ones (processes.per_process).")
    .label("pid", width=90)
    .labels("process_name", "process_type", "gpu_instance")
    .labels_from("max by ($BY_GPU, pid, process_name, process_type, gpu_instance) (gpu_process_info{$GPU})")
    .column("memory",
        or_none("max by ($BY_GPU, pid) (gpu_process_memory_used_bytes{$GPU})",
            "max by ($BY_GPU, pid) (gpu_process_info{$GPU})", "$BY_GPU, pid"), unit="bytes"),
    timeseries("Canary rate against baseline", unit="percentunit", steps=steps(NONE, 0.9, GREEN), draw_steps="line",
        no_value="the canary has no baseline yet",
        links=[series_link("Canary", "gpu-node-canary", "instance", "gpu")], width=12)
    .help("""Rates of the checks in their newest valid runs, compared with this GPU's own earlier ones. Below 90 % the
        hardware became slower.""")
    .query('max by (instance, gpu, check) (gpu_canary_rate_ratio{$GPU,against="baseline"})', "$LINE {{check}}"),
)
