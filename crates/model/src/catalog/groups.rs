//! Groups of metrics that `/metrics` leaves out by default: most scrapers do without.

use super::schema::groups;

groups! {
    /// Every group.
    All "all" 2419,
    /// States that are not true now, and kinds that were not counted yet, as series of 0. By default a state is served
    /// while it is true, and a kind once it was counted.
    InactiveStates "inactive-states" 354,
    /// Series of single NVLinks. The sums over a GPU's links are in the default set.
    NvlinkLinks "nvlink-links" 432,
    /// NVLink lanes, protocol bytes and speed, the fabric's identity, and recoveries of the PCIe link.
    LinkDetail "link-detail" 56,
    /// ECC errors by memory and unit, banks with spare rows left, retired pages.
    EccLocations "ecc-locations" 176,
    /// Reserved memory, of GPU instances too, and the BAR1 aperture.
    MemoryDetail "memory-detail" 32,
    /// Clocks of graphics and video, and time held down for reasons that are no fault, and by policy.
    Clocks "clocks" 88,
    /// Limits, sizes and places of the hardware that no rule compares with.
    Limits "limits" 64,
    /// Modes of the GPU: compute, persistence, performance state, pending ECC, GPM.
    Modes "modes" 64,
    /// Distributions and extremes of the driver's power and utilization samples.
    Samples "samples" 216,
    /// GPM by single pipe, in seconds, over NVLink, and the estimate of operations.
    GpmDetail "gpm-detail" 192,
    /// Encoder, decoder, JPEG and optical flow engines; encoder and capture sessions.
    Video "video" 64,
    /// Virtual GPUs.
    Vgpu "vgpu" 0,
    /// Single processes. `processes.per_process` switches both reading and group on.
    Process "process" 0,
    /// Canary rates of GPU instances, and the share of multiprocessors of compute instances.
    MigDetail "mig-detail" 0,
    /// Durations and rates of canary runs as distributions, discarded samples, work per cycle.
    CanaryDetail "canary-detail" 210,
    /// Time from the start of owners' processes to their first context and first work, and Slurm jobs by what is known of
    /// their GPUs.
    OwnerDetail "owner-detail" 24,
    /// CPU events by NUMA node and cache, and how they are counted.
    CpuEvents "cpu-events" 72,
    /// Events of NVML and records of the kernel log; Xid faults by action.
    Events "events" 144,
    /// Driver calls by function: number, time and errors.
    DriverCalls "driver-calls" 220,
    /// The exporter's inner parts.
    ExporterDetail "exporter-detail" 75,
}
