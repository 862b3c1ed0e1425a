//! Every entity and every label, declared once: what a metric can be about, and what else its series say.

use std::sync::Arc;

use super::schema::{self, entities, groups, info_labels, labels, text_labels};

entities! {
    /// The node.
    Node {}
    /// A GPU: the whole board, also in MIG mode.
    Gpu {
        /// NVML's index, for people; it can change at a reboot.
        gpu: u32,
        /// NVML's UUID: the identity.
        uuid: Arc<str>
    }
    /// A MIG GPU instance, with memory and bandwidth of its own.
    GpuInstance {
        /// NVML's index of the GPU.
        gpu: u32,
        /// UUID of the GPU (the instance's own is `mig_uuid` on `gpu_mig_info`).
        uuid: Arc<str>,
        /// NVML's GPU instance id.
        gpu_instance: u32,
        /// Profile, as `3g.71gb`.
        profile: Arc<str>
    }
    /// A MIG compute instance: the share of a GPU instance that a process sees as its device.
    ComputeInstance {
        /// NVML's index of the GPU.
        gpu: u32,
        /// UUID of the GPU.
        uuid: Arc<str>,
        /// NVML's GPU instance id.
        gpu_instance: u32,
        /// Profile of the GPU instance.
        profile: Arc<str>,
        /// NVML's compute instance id.
        compute_instance: u32
    }
    /// An NVLink of a GPU.
    Link {
        /// NVML's index of the GPU.
        gpu: u32,
        /// UUID of the GPU.
        uuid: Arc<str>,
        /// NVML's number of the link.
        link: u32
    }
    /// A process on a GPU; only with `processes.per_process`.
    Process {
        /// NVML's index of the GPU.
        gpu: u32,
        /// UUID of the GPU.
        uuid: Arc<str>,
        /// Process id, as the host sees it.
        pid: u32
    }
    /// A group of CPUs: those of one NUMA node that share a last-level cache. The sum over either label is that of the NUMA node or of the cache.
    CpuGroup {
        /// The kernel's number of the NUMA node.
        numa_node: Arc<str>,
        /// Number of the last-level cache, counted in the order of the first CPU.
        l3: Arc<str>
    }
    /// An owner of GPU work on this node.
    Owner {
        /// Name of the owner; `gpu_owner_info` has its parts.
        owner: Arc<str>
    }
    /// An owner's share of a GPU or MIG GPU instance.
    OwnedGpu {
        /// NVML's index of the GPU.
        gpu: u32,
        /// UUID of the GPU.
        uuid: Arc<str>,
        /// NVML's GPU instance id; empty on a whole GPU.
        gpu_instance: Arc<str>,
        /// Name of the owner; `gpu_owner_info` has its parts.
        owner: Arc<str>
    }
    /// A GPU or MIG GPU instance that a pod or a Slurm job was given.
    AllocatedGpu {
        /// NVML's index of the GPU.
        gpu: u32,
        /// UUID of the GPU.
        uuid: Arc<str>,
        /// NVML's GPU instance id; empty on a whole GPU.
        gpu_instance: Arc<str>
    }
    /// A window of planned work.
    Window {
        /// Name of the window.
        window: Arc<str>
    }
    /// A virtual GPU on a virtualization host.
    Vgpu {
        /// NVML's index of the GPU.
        gpu: u32,
        /// UUID of the GPU.
        uuid: Arc<str>,
        /// UUID of the virtual GPU.
        vgpu_uuid: Arc<str>
    }
}

impl DriverError {
    /// Whether it says that the GPU is of no use before it is reset.
    pub fn is_lost(self) -> bool {
        matches!(self, DriverError::GpuIsLost | DriverError::ResetRequired)
    }
}

impl GpuInstance {
    /// The GPU of the instance.
    pub fn parent(&self) -> Gpu {
        Gpu { gpu: self.gpu, uuid: self.uuid.clone() }
    }
}

impl OwnedGpu {
    /// What an owner has of a GPU, or of one of its GPU instances.
    pub fn new(gpu: &Gpu, gpu_instance: Option<u32>, owner: &Arc<str>) -> OwnedGpu {
        OwnedGpu {
            gpu: gpu.gpu,
            uuid: Arc::clone(&gpu.uuid),
            gpu_instance: gpu_instance.map(|id| id.to_string()).unwrap_or_default().into(),
            owner: Arc::clone(owner),
        }
    }
}

impl AllocatedGpu {
    /// A GPU, or one of its GPU instances.
    pub fn new(gpu: &Gpu, gpu_instance: Option<u32>) -> AllocatedGpu {
        AllocatedGpu {
            gpu: gpu.gpu,
            uuid: Arc::clone(&gpu.uuid),
            gpu_instance: gpu_instance.map(|id| id.to_string()).unwrap_or_default().into(),
        }
    }
}

impl Subject {
    /// The GPU this is, or is a part of.
    pub fn gpu(&self) -> Option<(u32, &Arc<str>)> {
        match self {
            Subject::Node(_) | Subject::CpuGroup(_) | Subject::Owner(_) | Subject::Window(_) => None,
            Subject::Gpu(g) => Some((g.gpu, &g.uuid)),
            Subject::GpuInstance(g) => Some((g.gpu, &g.uuid)),
            Subject::ComputeInstance(g) => Some((g.gpu, &g.uuid)),
            Subject::OwnedGpu(o) => Some((o.gpu, &o.uuid)),
            Subject::AllocatedGpu(a) => Some((a.gpu, &a.uuid)),
            Subject::Link(l) => Some((l.gpu, &l.uuid)),
            Subject::Process(p) => Some((p.gpu, &p.uuid)),
            Subject::Vgpu(v) => Some((v.gpu, &v.uuid)),
        }
    }
}

labels! {
    /// Place of the sensor.
    Sensor "sensor" { Gpu "gpu", Memory "memory" }
    /// Event at the threshold, or largest allowed value.
    TemperatureThreshold "threshold" { Shutdown "shutdown", Slowdown "slowdown", MemoryMax "memory_max", GpuMax "gpu_max" }
    /// Clock domain, as NVML names it.
    ClockDomain "domain" { Graphics "graphics", Sm "sm", Memory "memory", Video "video" }
    /// Reason for a clock below the requested one (NVML clocks event reasons).
    ClockEvent "reason" {
        GpuIdle "gpu_idle", ApplicationsClocksSetting "applications_clocks_setting", SwPowerCap "sw_power_cap",
        HwSlowdown "hw_slowdown", SyncBoost "sync_boost", SwThermalSlowdown "sw_thermal_slowdown",
        HwThermalSlowdown "hw_thermal_slowdown", HwPowerBrakeSlowdown "hw_power_brake_slowdown",
        DisplayClockSetting "display_clock_setting",
    }
    /// Power limit: `enforced` is in force, `configured` was set, `default` is the vendor's; `min` and `max` bound the settings.
    PowerLimit "limit" { Enforced "enforced", Configured "configured", Default "default", Min "min", Max "max" }
    /// Since the driver was loaded (`volatile`) or over the GPU's life (`aggregate`).
    EccCounter "counter" { Volatile "volatile", Aggregate "aggregate" }
    /// Whether ECC could correct the error.
    EccError "error" { Corrected "corrected", Uncorrected "uncorrected" }
    /// Memory location, as NVML names it.
    EccMemory "memory" {
        L1Cache "l1_cache", L2Cache "l2_cache", Dram "dram", RegisterFile "register_file",
        TextureMemory "texture_memory", TextureShm "texture_shm", Cbu "cbu", Sram "sram",
    }
    /// Cause of the remap.
    RemapCause "cause" { Correctable "correctable", Uncorrectable "uncorrectable" }
    /// Processes that may use the GPU.
    ComputeMode "mode" { Default "default", ExclusiveThread "exclusive_thread", Prohibited "prohibited", ExclusiveProcess "exclusive_process" }
    /// Use of the GPU.
    ProcessType "type" { Compute "compute", Graphics "graphics", Mps "mps" }
    /// Tier: how often the values are read.
    Tier "tier" { Identity "identity", Fast "fast", Normal "normal", Samples "samples", Slow "slow", Rare "rare", Nvlink "nvlink", Once "once", Computed "computed" }
    /// Collector of the exporter.
    CollectorName "collector" { Nvml "nvml", Process "process", Kmsg "kmsg", Module "module", Canary "canary", Topology "topology", Owners "owners", Kubelet "kubelet", Cpu "cpu", Windows "windows", Network "network" }
    /// Sample buffer of the driver.
    SampleBuffer "buffer" { Power "power", Utilization "utilization" }
    /// Unit of the GPU (NVML GPM): `graphics` any engine, `sm` at least one warp on a multiprocessor, `sm_occupancy` resident warps of those possible, `tensor` any tensor pipe and `tensor_dfma`, `tensor_hmma`, `tensor_imma` one of them (double, half and similar, integer), `fp64`, `fp32`, `fp16` and `integer` the other pipes, `dram` the memory interface.
    GpmUnit "unit" {
        Graphics "graphics", Sm "sm", SmOccupancy "sm_occupancy", Integer "integer", Tensor "tensor",
        TensorDfma "tensor_dfma", TensorHmma "tensor_hmma", TensorImma "tensor_imma", Dram "dram",
        Fp64 "fp64", Fp32 "fp32", Fp16 "fp16",
    }
    /// Seen from the GPU or network device: `tx` is sent, `rx` received.
    Direction "direction" { Tx "tx", Rx "rx" }
    /// Pipe: the vector pipes by precision, and the tensor pipes (`tensor_hmma` counts dense half precision).
    FlopPipe "pipe" { Fp64 "fp64", Fp32 "fp32", Fp16 "fp16", TensorDfma "tensor_dfma", TensorHmma "tensor_hmma" }
    /// Error counter of an NVLink, as NVML names it. Up to NVLink 4: replays, recoveries of the link, packets with a wrong checksum. NVLink 5: `link_recovery` counts recoveries of the link with either result, `effective` errors that error correction left, `symbol` wrong symbols, the others packets by what was wrong with them.
    NvLinkError "error" {
        Replay "dl_replay", Recovery "dl_recovery", CrcFlit "dl_crc_flit", LinkRecovery "link_recovery",
        RecoverySuccessful "link_recovery_successful", RecoveryFailed "link_recovery_failed",
        Effective "effective", Symbol "symbol", MalformedPacket "malformed_packet",
        BufferOverrun "buffer_overrun", Receive "receive", ReceiveRemote "receive_remote",
        ReceiveGeneral "receive_general", LocalLinkIntegrity "local_link_integrity",
        TransmitDiscard "transmit_discard",
    }
    /// Errors of the ratio: those that error correction left, or wrong symbols.
    NvLinkBitErrors "errors" { Effective "effective", Symbol "symbol" }
    /// Symbols of the codeword that were corrected.
    SymbolErrors "symbol_errors" {
        S0 "0", S1 "1", S2 "2", S3 "3", S4 "4", S5 "5", S6 "6", S7 "7", S8 "8", S9 "9", S10 "10", S11 "11",
        S12 "12", S13 "13", S14 "14", S15 "15",
    }
    /// Limit that held the clocks down (NVML performance policy).
    PerfPolicy "policy" { BoardLimit "board_limit", LowUtilization "low_utilization", Reliability "reliability" }
    /// Error counter of the lanes of an NVLink, as NVML names it.
    NvLinkLaneError "error" { CrcData "dl_crc_data", EccData "dl_ecc_data" }
    /// State of joining the NVLink fabric (NVML `nvmlGpuFabricState_t`).
    FabricState "state" { NotSupported "not_supported", NotStarted "not_started", InProgress "in_progress", Completed "completed" }
    /// Fault in the NVML fabric health mask.
    FabricFault "fault" {
        DegradedBandwidth "degraded_bandwidth", RouteRecovery "route_recovery", RouteUnhealthy "route_unhealthy",
        AccessTimeoutRecovery "access_timeout_recovery", IncorrectConfiguration "incorrect_configuration",
    }
    /// Error of SRAM: by parity or by SECDED code.
    SramError "error" { Corrected "corrected", UncorrectedParity "uncorrected_parity", UncorrectedSecded "uncorrected_secded" }
    /// Unit of the GPU with the SRAM.
    SramUnit "unit" { L2 "l2", Sm "sm", Mcu "mcu", Pcie "pcie", Other "other" }
    /// Spare rows left in the bank (NVML row remapper histogram).
    SpareRows "spare_rows" { Max "max", High "high", Partial "partial", Low "low", None "none" }
    /// Cause of the retirement.
    RetirementCause "cause" { MultipleSingleBit "multiple_single_bit", DoubleBit "double_bit" }
    /// Part of the GPU under repair.
    RepairPart "part" { Channel "channel", Tpc "tpc" }
    /// Kind of PCIe error (NVML fields 173 to 183).
    PcieError "error" {
        Correctable "correctable", NaksReceived "naks_received", Receiver "receiver", BadTlp "bad_tlp",
        NaksSent "naks_sent", BadDllp "bad_dllp", NonFatal "non_fatal", Fatal "fatal",
        UnsupportedRequest "unsupported_request", Lcrc "lcrc", Lane "lane",
    }
    /// Severity in the kernel's advanced error reporting (AER).
    AerSeverity "severity" { Correctable "correctable", NonFatal "non_fatal", Fatal "fatal" }
    /// Recovery action that the driver asks for.
    RecoveryAction "recovery_action" {
        None "none", GpuReset "gpu_reset", NodeReboot "node_reboot", DrainP2p "drain_p2p", DrainAndReset "drain_and_reset",
    }
    /// Kind of an NVML event.
    DriverEvent "event" {
        DoubleBitEcc "double_bit_ecc_error", Xid "xid", SingleBitEccStorm "single_bit_ecc_storm",
        DramRetirement "dram_retirement", DramRetirementFailure "dram_retirement_failure",
        NonFatalPoison "non_fatal_poison", FatalPoison "fatal_poison", GpuUnavailable "gpu_unavailable",
        RecoveryAction "recovery_action", Unknown "unknown",
    }
    /// First action by the table of Xid codes.
    FaultAction "action" {
        Ignore "ignore", RestartApp "restart_app", ResetGpu "reset_gpu", RebootNode "reboot_node",
        CheckHardware "check_hardware", UpdateSoftware "update_software", ContactSupport "contact_support",
    }
    /// Severity by the table of Xid codes.
    Severity "severity" { Page "page", Ticket "ticket", Info "info" }
    /// Source of the report.
    FaultSource "source" { Nvml "nvml", Kmsg "kmsg" }
    /// The unit of a metric; the last word of its name (before `_total` or `_info`). `none`: counts, states, numbers.
    Unit "unit" {
        None "none", Bytes "bytes", Seconds "seconds", Joules "joules", Watts "watts", Celsius "celsius",
        Hertz "hertz", Ratio "ratio", Lanes "lanes", BytesPerSecond "bytes_per_second",
    }
    /// What kind of event it is.
    EventKind "kind" {
        Xid "xid", Sxid "sxid", DriverEvent "driver_event", RecoveryAction "recovery_action",
        DriverLoad "driver_load", DriverUnload "driver_unload", GpuReset "gpu_reset",
        GpuLost "gpu_lost", GpuReturned "gpu_returned", Canary "canary", Window "window",
        FallenOffBus "fallen_off_bus", InitFailed "init_failed",
    }
    /// Error of a network port: `receive` and `transmit` packets that were broken or dropped; on InfiniBand also `symbol` (bits that came wrong) and `recovery` (the link was trained again).
    NetworkError "error" { Receive "receive", Transmit "transmit", Symbol "symbol", Recovery "recovery" }
    /// Service of the vendor.
    HostService "service" { FabricManager "nv-fabricmanager", Imex "nvidia-imex", Persistenced "nvidia-persistenced" }
    /// How near a device is: below the same switch, the same root port, the same NUMA node, or elsewhere.
    DevicePath "path" { Switch "switch", RootPort "root_port", NumaNode "numa_node", System "system" }
    /// Reason why the GPU is not healthy.
    UnhealthyReason "reason" {
        Lost "lost", Stuck "stuck", RecoveryAction "recovery_action", FatalXid "fatal_xid",
        UncontainedEcc "uncontained_ecc", RowRemapFailure "row_remap_failure", Missing "missing",
        Canary "canary",
    }
    /// Version to compare the loaded kernel module with.
    VersionAgainst "against" { Declared "declared", Library "library" }
    /// Engine of the GPU.
    Engine "engine" { Sm "sm", Memory "memory", Encoder "encoder", Decoder "decoder" }
    /// Outcome of a kernel log record.
    KmsgOutcome "outcome" { Fault "fault", Driver "driver", NotOurs "not_ours", Malformed "malformed", Old "old" }
    /// Process of the exporter.
    Role "role" { Serve "serve", Sampler "sampler", Canary "canary", Topology "topology" }
    /// Kind of a failed driver call, by NVML's return code.
    DriverError "error" {
        NoPermission "no_permission", NotFound "not_found", InsufficientPower "insufficient_power",
        DriverNotLoaded "driver_not_loaded", Timeout "timeout", IrqIssue "irq_issue",
        CorruptedInforom "corrupted_inforom", GpuIsLost "gpu_is_lost", ResetRequired "reset_required",
        OperatingSystem "operating_system", LibRmVersionMismatch "lib_rm_version_mismatch",
        Busy "busy", Resources "resources", Argument "argument", Unknown "unknown",
    }
    /// Reason why a reading was dropped: no value, a value that cannot be, or one that another reading contradicts.
    DropReason "reason" { Blank "blank", OutOfRange "out_of_range", Contradicted "contradicted" }
    /// Reason for the end of a sampler process.
    SamplerEnd "reason" {
        Exited "exited", Garbage "garbage", Oversized "oversized", Truncated "truncated", Refused "refused",
        Stopped "stopped", Stuck "stuck",
    }
    /// Check of the canary; see `kernels/README.md`.
    CanaryCheck "check" {
        Init "init", SmRate "sm_rate", Tensor "tensor", SmSdc "sm_sdc", HbmRead "hbm_read", HbmWalk "hbm_walk",
        L2 "l2", Pcie "pcie", Launch "launch", Overlap "overlap", Transform "transform", P2p "p2p",
    }
    /// Verdict of a canary check. `contended`: another process used the GPU, the sample was discarded. `slow`: below its rate without a closer reason. `wrong_result_suspected`: seen once, not again.
    CanaryVerdict "verdict" {
        Ok "ok", Throttled "throttled", UnexplainedClockCap "unexplained_clock_cap", Contended "contended",
        SlowSm "slow_sm", DegradedMemory "degraded_memory", NarrowedLink "narrowed_link", Slow "slow",
        WrongResultSuspected "wrong_result_suspected", WrongResult "wrong_result", DriverFault "driver_fault",
        Hung "hung", Skipped "skipped", CouldNotRun "could_not_run",
    }
    /// Reference of a canary rate: the GPU's own earlier rates, the hardware's maximum, or the other GPUs of the model on the node.
    RateAgainst "against" { Baseline "baseline", Roofline "roofline", Siblings "siblings" }
    /// Step of a canary run: of the driver, or one of its checks.
    CanaryStep "step" {
        Load "load_library", Init "init", Device "device", Context "context", Module "module", FirstLaunch "first_launch",
        SmRate "sm_rate", Tensor "tensor", SmSdc "sm_sdc", HbmRead "hbm_read", HbmWalk "hbm_walk", L2 "l2", Pcie "pcie",
        Launch "launch", Overlap "overlap", Transform "transform", P2p "p2p", Destroy "destroy",
    }
    /// End of a canary run.
    CanaryEnd "end" {
        Finished "finished", Abandoned "abandoned", DriverFault "driver_fault", Hung "hung", CouldNotRun "could_not_run",
        Broken "broken",
    }
    /// Reason why a canary run was postponed or impossible.
    CanarySkip "reason" {
        Processes "processes", Busy "busy", Memory "memory", Claimed "claimed", ComputeMode "compute_mode",
        RecentXid "recent_xid", Unhealthy "unhealthy", Maintenance "maintenance", Interlock "interlock", Duty "duty_budget",
        Mps "mps", PersistenceOff "persistence_off", Unread "unread", Released "driver_released", ChildAlive "child_alive",
        NoInstance "no_mig_instance", NoLibrary "no_cuda_library", ForeignLibrary "foreign_cuda_library",
        OldDriver "old_driver", NoKernels "no_kernels", NoMemory "no_memory", NoPermission "no_permission",
        DeviceUnavailable "device_unavailable", NoDevice "no_device", Environment "environment",
    }
    /// Kind of wrong result: all bits zero, or some flipped.
    MismatchKind "kind" { Zeroed "zeroed", Flipped "flipped" }
    /// Fault of the multiprocessor.
    BadSmKind "kind" { Slow "slow", Wrong "wrong" }
    /// Mode of the canary.
    CanaryMode "mode" { Off "off", Idle "idle", AfterJob "after_job", OnDemand "on_demand" }
    /// Part of the machine, as hwloc names it.
    HostObject "object" {
        Package "package", NumaNode "numa_node", L3 "l3", Core "core", Cpu "cpu", Gpu "gpu", Nvswitch "nvswitch",
        Network "network", Storage "storage",
    }
    /// Reference topology: the first one seen on this machine, kept over restarts, or the declared one (`topology.expected_file`).
    TopologyAgainst "against" { FirstSeen "first_seen", Declared "declared" }
    /// Compared property of the PCIe link.
    LinkAspect "aspect" { Generation "generation", Width "width" }
    /// Event counted on the CPUs. The kernel counts the first four, the others need a CPU with counters (PMU). `fp_*`: floating-point operations' instructions retired, by width in bits, on Intel alone.
    PerfEvent "event" {
        ContextSwitches "context_switches", CpuMigrations "cpu_migrations", PageFaults "page_faults",
        MajorFaults "major_faults", Cycles "cycles", Instructions "instructions", LlcMisses "llc_misses",
        BranchMisses "branch_misses", RefCycles "ref_cycles", LlcReferences "llc_references",
        Branches "branches", StalledFrontend "stalled_cycles_frontend", StalledBackend "stalled_cycles_backend",
        NodeLoads "node_loads", NodeLoadMisses "node_load_misses", FpScalar "fp_scalar", Fp128 "fp_128",
        Fp256 "fp_256", Fp512 "fp_512",
    }
    /// State of counting: `works`; `no_pmu` the CPU or virtual machine has no such counter; `not_permitted` (perf_event_paranoid, capability, seccomp); `unknown` the kernel refused for another reason, or it was not tried.
    PerfState "state" { Works "works", NoPmu "no_pmu", NotPermitted "not_permitted", Unknown "unknown" }
    /// Mode of CPU time: `busy` (work of processes, guests and the kernel, interrupts too), `iowait` (nothing to run, and a process waits for a disk), `steal` (another virtual machine had the CPU), `idle`.
    CpuMode "mode" { Busy "busy", Iowait "iowait", Steal "steal", Idle "idle" }
    /// Kind of owner.
    OwnerKind "kind" { Pod "pod", Container "container", Slurm "slurm", Unit "unit", User "user", Unknown "unknown", Other "other" }
    /// Mode of the CPU: `user` for the program, `system` for the kernel on its behalf.
    CpuTimeMode "mode" { User "user", System "system" }
    /// What is known of a Slurm job's GPUs: `known`; `none`, the job has none; `unknown`, no process names them, or not in
    /// a way that identifies them; `not_permitted`, the environments cannot be read.
    SlurmGpus "gpus" { Known "known", None "none", Unknown "unknown", NotPermitted "not_permitted" }
    /// Result of an owner lookup.
    OwnerLookup "outcome" { Found "found", Gone "gone", Refused "refused", Late "late", Malformed "malformed" }
    /// Failure of a request to the kubelet.
    KubeletError "error" { NoSocket "no_socket", Refused "refused", Late "late", Malformed "malformed", TooLarge "too_large" }
    /// Phase of a process: until its first context on a GPU, or its first work there.
    StartPhase "phase" { FirstContext "first_context", FirstBusy "first_busy" }
    /// Cause of the bottleneck; formulas in `docs/BOTTLENECKS.md`. `wedged`: kernels run without end and compute nothing; `stalled`: it worked, and does nothing now; `none`: none of the others; `unknown`: none is proven, and the units of the GPU are not measured (no GPM, as before Hopper).
    Cause "cause" {
        None "none", Wedged "wedged", Stalled "stalled", PowerCapped "power_capped", ThermallyThrottled "thermally_throttled", Contended "contended",
        HostCpuBound "host_cpu_bound", RemoteNuma "remote_numa", PcieBound "pcie_bound",
        MemoryBound "memory_bound", Underfilled "underfilled", SerialCopies "serial_copies", Unknown "unknown",
    }
    /// Kind of window: `maintenance` mutes effects of planned work (idle GPUs, restarts, driver loads, skipped canaries), never lost work or wrong results, and keeps the canary away; `training` mutes tickets about high utilization and memory only.
    WindowKind "kind" { Maintenance "maintenance", Training "training" }
    /// Status of the response.
    HttpStatus "code" {
        C200 "200", C304 "304", C400 "400", C404 "404", C405 "405", C408 "408", C421 "421", C431 "431", C500 "500",
        C503 "503", Other "other",
    }
}

text_labels! {
    /// NVML function, with its argument where one function answers several questions.
    Call "call"
    /// Metric of this catalogue.
    MetricName "metric"
    /// Xid code.
    XidCode "xid"
    /// SXid code (NVSwitch).
    SxidCode "sxid"
    /// Number of the NVSwitch as the driver logs it.
    SwitchName "nvswitch"
    /// CUDA driver error code, as `719`.
    CudaError "cuda_error"
    /// MIG profile, as `3g.71gb`.
    ProfileName "mig_profile"
    /// Network device, as `mlx5_0` or, without RDMA, the interface.
    Nic "nic"
    /// Port: the number of an RDMA device's port, or the interface.
    NetworkPort "port"
    /// Name of an extended resource of Kubernetes, as `nvidia.com/gpu`.
    Resource "resource"
}

info_labels! {
    /// Labels of `gpu_host_topology_info`.
    TopologyInfo {
        /// NUMA node near the GPU; empty if unknown (in a guest).
        numa_node,
        /// CPUs near it, as `0-7,16-23`.
        cpus,
        /// Number of the last-level cache of its share of CPUs.
        l3,
        /// Package (socket) of its NUMA node.
        package,
        /// PCI address of the root port above it.
        root_port,
        /// PCI address of the lowest switch above it; empty without one.
        pcie_switch,
        /// Its share of the near CPUs, divided fairly among the GPUs.
        share,
    }
    /// Labels of `gpu_mig_host_topology_info`.
    MigTopologyInfo {
        /// UUID of the MIG device, as CUDA_VISIBLE_DEVICES takes it.
        mig_uuid,
        /// NUMA node near it; empty if unknown.
        numa_node,
        /// Its share of the GPU's CPUs.
        share,
    }
    /// Labels of `gpu_host_nic_info`: the network device nearest the GPU.
    NicInfo {
        /// Network device, as `mlx5_0` or, without RDMA, the interface.
        nic,
        /// Name of the interface, as node_exporter's label `device` has it.
        device,
        /// PCI address.
        pci_address,
        /// Distance: `switch` (below the same switch), `root_port`, `numa_node`, or `system`.
        path,
    }
    /// Labels of `gpu_owner_info`. What does not apply is empty.
    OwnerInfo {
        /// Kind of owner: `pod`, `container`, `slurm`, `unit`, `user`, `unknown`, or `other`: all that have no series.
        kind,
        /// Namespace of the pod.
        namespace,
        /// Name of the pod.
        pod,
        /// UID of the pod.
        pod_uid,
        /// Name of the container.
        container,
        /// Id of the container.
        container_id,
        /// Container runtime: `docker`, `podman`, `containerd`, `cri-o`.
        runtime,
        /// Slurm job id; not `job`, which Prometheus gives the scrape job's name.
        slurm_job,
        /// Slurm step.
        slurm_step,
        /// Slurm account from the job's environment; empty if it names none.
        slurm_account,
        /// systemd unit.
        unit,
        /// Login name of the user, or the number if it has none here.
        user,
    }
    /// Labels of `gpu_allocation_info`. What does not apply is empty.
    AllocationInfo {
        /// Namespace of the pod.
        namespace,
        /// Name of the pod.
        pod,
        /// Name of the container.
        container,
        /// Slurm job id; not `job`, which Prometheus gives the scrape job's name.
        slurm_job,
        /// Slurm account from the job's environment; empty if it names none.
        slurm_account,
        /// User of the Slurm job.
        user,
    }
    /// Labels of `gpu_hpc_job_info`.
    HpcJobInfo {
        /// The job as the scheduler's hook wrote it down.
        hpc_job,
    }
    /// Labels of `gpu_window_info`.
    WindowInfo {
        /// Kind: `maintenance` or `training`.
        kind,
        /// Reason given with the window.
        reason,
    }
    /// Labels of `gpu_info`.
    GpuInfo {
        /// Product name.
        model,
        /// Architecture, as `hopper`.
        architecture,
        /// CUDA compute capability, as `9.0`.
        compute_capability,
        /// PCI address, as `0000:06:00.0` (domain:bus:device.function).
        pci_address,
        /// PCI device and vendor, as `0x233510de`.
        pci_device_id,
        /// PCI subsystem device and vendor, as `0x18be10de`.
        pci_subsystem_id,
        /// Serial number of the board.
        serial,
        /// Vendor's part number.
        board_part_number,
        /// N of the device file `/dev/nvidiaN`.
        minor_number,
        /// Position on the baseboard (SXM).
        module_id,
        /// VBIOS version.
        vbios_version,
        /// InfoROM image version.
        inforom_version,
        /// GSP firmware version; empty without GSP.
        gsp_firmware_version,
        /// `none`, `passthrough` (in a virtual machine), `vgpu`, `host_vgpu` or `host_vsga`; empty if unknown.
        virtualization_mode,
    }
    /// Labels of `gpu_platform_info`.
    PlatformInfo {
        /// Serial number of the chassis; empty if the driver does not know it.
        chassis_serial,
        /// Slot of the chassis, switches counted.
        slot,
        /// Tray among the compute slots of the chassis.
        tray,
        /// Node within the slot.
        host_id,
        /// GPU within the node.
        module_id,
    }
    /// Labels of `gpu_board_info`; empty where the driver knows none.
    BoardInfo {
        /// Brand, as `NVIDIA`.
        brand,
        /// Version of the InfoROM's OEM object.
        inforom_oem_version,
        /// Version of the InfoROM's ECC object.
        inforom_ecc_version,
        /// Version of the InfoROM's power management object.
        inforom_power_version,
    }
    /// Labels of `gpu_driver_info`.
    DriverInfo {
        /// Kernel driver's version.
        driver_version,
        /// Branch of the driver; empty if unknown.
        driver_branch,
        /// Version of libnvidia-ml.
        nvml_version,
        /// Newest CUDA version the driver supports.
        cuda_version,
    }
    /// Labels of `gpu_mig_info`.
    MigInfo {
        /// UUID of the MIG device, as jobs get it.
        mig_uuid,
        /// Profile of the MIG device: that of its GPU instance, or a part of it, as `1c.3g.71gb`.
        mig_profile,
        /// NVML's name of the MIG device.
        name,
    }
    /// Labels of `gpu_nvlink_info`.
    NvLinkInfo {
        /// Version of the link protocol, as NVML numbers it.
        version,
        /// Remote end: `gpu`, `switch`, `ibmnpu` or `unknown`.
        remote_type,
        /// PCI address of the remote end; empty where the driver hides it.
        remote_pci_address,
        /// Number of the link at the remote end; empty if unknown.
        remote_link,
    }
    /// Labels of `gpu_peer_info`.
    PeerInfo {
        /// NVML's index of the other GPU.
        peer_gpu,
        /// UUID of the other GPU.
        peer_uuid,
        /// Common ancestor: `internal` (one board), `single` or `multiple` PCIe switches, `hostbridge`, `node`, `system`.
        topology,
        /// Access to read the other's memory (NVML P2P status).
        read,
        /// Access to write the other's memory.
        write,
        /// Connection by NVLink.
        nvlink,
    }
    /// Labels of `gpu_fabric_info`.
    FabricInfo {
        /// UUID of the NVLink cluster; empty on a node of its own.
        cluster_uuid,
        /// Clique within the cluster: GPUs of one clique can reach each other.
        clique_id,
    }
    /// Labels of `gpu_process_info`.
    ProcessInfo {
        /// Name of the program.
        process_name,
        /// `compute`, `graphics` or `mps`.
        process_type,
        /// NVML's GPU instance id; empty without MIG.
        gpu_instance,
        /// NVML's compute instance id; empty without MIG.
        compute_instance,
    }
    /// Labels of `gpu_vgpu_info`.
    VgpuInfo {
        /// Type of the virtual GPU, as `NVIDIA L4-6Q`.
        vgpu_type,
        /// Identity of its virtual machine.
        vm_id,
        /// Driver version in the virtual machine; empty while none is loaded.
        guest_driver_version,
    }
    /// Labels of `gpu_nvswitch_info`.
    NvSwitchInfo {
        /// PCI address.
        pci_address,
        /// Firmware (BIOS) version; empty if unknown.
        firmware_version,
    }
    /// Labels of `gpu_canary_bad_sm_info`.
    BadSmInfo {
        /// Number of the multiprocessor (`%smid`).
        smid,
        /// `slow` or `wrong`.
        kind,
    }
    /// Labels of `gpu_exporter_build_info`.
    BuildInfo {
        /// Release.
        version,
        /// Source revision; `unknown` when built outside a checkout.
        revision,
    }
}

// Groups of metrics that `/metrics` leaves out by default: most scrapers do without.
groups! {
    /// Every group.
    All "all" 2283,
    /// States that are not true now, as series of 0. By default a state is served while it is true.
    InactiveStates "inactive-states" 210,
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
    /// Limits and sizes of the hardware that no rule compares with.
    Limits "limits" 56,
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
    /// Durations and rates of canary runs as distributions, and work per cycle.
    CanaryDetail "canary-detail" 202,
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
