//! Groups of series that `/metrics` omits by default, because most scrapers do not need them.

use super::schema::groups;

groups! {
    /// Every group of this list.
    All "all" 2419,
    /// Series with the value 0 for states that are not active and for kinds that were not counted yet. Without this
    /// group, a state has a series while it is active, and a kind once it was counted.
    InactiveStates "inactive-states" 354,
    /// Series of single NVLinks. The default set has the sums over the links of a GPU.
    NvlinkLinks "nvlink-links" 432,
    /// NVLink lanes, protocol bytes and speed, the identity of the fabric, and recoveries of the PCIe link.
    LinkDetail "link-detail" 56,
    /// ECC errors by memory and unit, memory banks by remaining spare rows, and retired pages.
    EccLocations "ecc-locations" 176,
    /// Reserved memory of GPUs and GPU instances, and the BAR1 aperture.
    MemoryDetail "memory-detail" 32,
    /// Graphics and video clocks, and throttled time by policy and for reasons that are not faults.
    Clocks "clocks" 88,
    /// Limits, sizes and positions of the hardware that no alert rule uses.
    Limits "limits" 64,
    /// Modes of the GPU: compute, persistence, performance state, pending ECC, GPM.
    Modes "modes" 64,
    /// Distributions and extremes of the driver's power and utilization samples.
    Samples "samples" 216,
    /// GPM activity of single pipes and in seconds, GPM bytes over NVLink, and the estimate of operations.
    GpmDetail "gpm-detail" 192,
    /// Encoder, decoder, JPEG and optical flow engines; encoder and capture sessions.
    Video "video" 64,
    /// Memory, utilization and license of virtual GPUs.
    Vgpu "vgpu" 0,
    /// Single processes. `processes.per_process` enables both the readings and the group.
    Process "process" 0,
    /// Canary rates of GPU instances, and the share of multiprocessors of compute instances.
    MigDetail "mig-detail" 0,
    /// Distributions of durations and rates of canary runs, discarded samples, and work per cycle.
    CanaryDetail "canary-detail" 210,
    /// Time from the start of owners' processes to their first context and first work, and Slurm jobs by knowledge of
    /// their GPUs.
    OwnerDetail "owner-detail" 24,
    /// CPU events by NUMA node and cache, and their counting state.
    CpuEvents "cpu-events" 72,
    /// NVML events, kernel log records, and Xid faults by action.
    Events "events" 144,
    /// Number, duration and errors of driver calls by function.
    DriverCalls "driver-calls" 220,
    /// Internals of the exporter.
    ExporterDetail "exporter-detail" 75,
}
