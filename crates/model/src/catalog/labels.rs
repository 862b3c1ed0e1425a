//! Declaration of every label that a metric adds to the labels of its entity.

use super::schema::{self, labels, text_labels};

labels! {
    /// Location of the sensor.
    Sensor "sensor" { Gpu "gpu", Memory "memory" }
    /// Event at the threshold, or the largest allowed value.
    TemperatureThreshold "threshold" { Shutdown "shutdown", Slowdown "slowdown", MemoryMax "memory_max", GpuMax "gpu_max" }
    /// Clock domain, as named by NVML.
    ClockDomain "domain" { Graphics "graphics", Sm "sm", Memory "memory", Video "video" }
    /// Reason for a clock below the requested one (NVML clocks event reasons).
    ClockEvent "reason" {
        GpuIdle "gpu_idle", ApplicationsClocksSetting "applications_clocks_setting", SwPowerCap "sw_power_cap",
        HwSlowdown "hw_slowdown", SyncBoost "sync_boost", SwThermalSlowdown "sw_thermal_slowdown",
        HwThermalSlowdown "hw_thermal_slowdown", HwPowerBrakeSlowdown "hw_power_brake_slowdown",
        DisplayClockSetting "display_clock_setting",
    }
    /// Power limit: `enforced` is in force, `configured` was set, `default` is NVIDIA's default, and `min` and `max`
    /// bound the setting.
    PowerLimit "limit" { Enforced "enforced", Configured "configured", Default "default", Min "min", Max "max" }
    /// Period of the counter: since the driver was loaded (`volatile`) or over the lifetime of the GPU (`aggregate`).
    EccCounter "counter" { Volatile "volatile", Aggregate "aggregate" }
    /// Result of the correction by ECC.
    EccError "error" { Corrected "corrected", Uncorrected "uncorrected" }
    /// Memory location, as named by NVML.
    EccMemory "memory" {
        L1Cache "l1_cache", L2Cache "l2_cache", Dram "dram", RegisterFile "register_file",
        TextureMemory "texture_memory", TextureShm "texture_shm", Cbu "cbu", Sram "sram",
    }
    /// Cause of the remap.
    RemapCause "cause" { Correctable "correctable", Uncorrectable "uncorrectable" }
    /// Compute mode, which limits the processes that may use the GPU.
    ComputeMode "mode" { Default "default", ExclusiveThread "exclusive_thread", Prohibited "prohibited", ExclusiveProcess "exclusive_process" }
    /// Type of use of the GPU.
    ProcessType "type" { Compute "compute", Graphics "graphics", Mps "mps" }
    /// Tier, which defines how often the values are read.
    Tier "tier" { Identity "identity", Fast "fast", Normal "normal", Samples "samples", Slow "slow", Rare "rare", Nvlink "nvlink", Once "once", Computed "computed" }
    /// Collector of the exporter.
    CollectorName "collector" { Nvml "nvml", Process "process", Kmsg "kmsg", Module "module", Canary "canary", Topology "topology", Owners "owners", Kubelet "kubelet", Cpu "cpu", Windows "windows", Network "network", Nccl "nccl" }
    /// Sample buffer of the driver.
    SampleBuffer "buffer" { Power "power", Utilization "utilization" }
    /// Unit of the GPU (NVML GPM). `graphics`: any engine. `sm`: a multiprocessor with at least one warp.
    /// `sm_occupancy`: resident warps, relative to the maximum. `tensor`: any tensor pipe; `tensor_dfma`, `tensor_hmma`
    /// and `tensor_imma`: the tensor pipe for double precision, for half precision and similar formats, and for
    /// integers. `fp64`, `fp32`, `fp16`, `integer`: the other pipes. `dram`: the memory interface.
    GpmUnit "unit" {
        Graphics "graphics", Sm "sm", SmOccupancy "sm_occupancy", Integer "integer", Tensor "tensor",
        TensorDfma "tensor_dfma", TensorHmma "tensor_hmma", TensorImma "tensor_imma", Dram "dram",
        Fp64 "fp64", Fp32 "fp32", Fp16 "fp16",
    }
    /// Direction as viewed from the GPU or network device: `tx` is sent, `rx` is received.
    Direction "direction" { Tx "tx", Rx "rx" }
    /// Pipe: the vector pipes by precision, and the tensor pipes (`tensor_hmma` counts dense half precision).
    FlopPipe "pipe" { Fp64 "fp64", Fp32 "fp32", Fp16 "fp16", TensorDfma "tensor_dfma", TensorHmma "tensor_hmma" }
    /// Error counter of an NVLink, as named by NVML. Up to NVLink 4: replays, recoveries of the link, and packets with
    /// a wrong checksum. NVLink 5: `link_recovery` counts all recoveries of the link, `effective` errors that error
    /// correction left, `symbol` wrong symbols, and the others packets by the kind of defect.
    NvLinkError "error" {
        Replay "dl_replay", Recovery "dl_recovery", CrcFlit "dl_crc_flit", LinkRecovery "link_recovery",
        RecoverySuccessful "link_recovery_successful", RecoveryFailed "link_recovery_failed",
        Effective "effective", Symbol "symbol", MalformedPacket "malformed_packet",
        BufferOverrun "buffer_overrun", Receive "receive", ReceiveRemote "receive_remote",
        ReceiveGeneral "receive_general", LocalLinkIntegrity "local_link_integrity",
        TransmitDiscard "transmit_discard",
    }
    /// Counted errors: `effective` errors that error correction left, or wrong symbols.
    NvLinkBitErrors "errors" { Effective "effective", Symbol "symbol" }
    /// Number of corrected symbols in the codeword.
    SymbolErrors "symbol_errors" {
        S0 "0", S1 "1", S2 "2", S3 "3", S4 "4", S5 "5", S6 "6", S7 "7", S8 "8", S9 "9", S10 "10", S11 "11",
        S12 "12", S13 "13", S14 "14", S15 "15",
    }
    /// Limit that throttled the clocks (NVML performance policy).
    PerfPolicy "policy" { BoardLimit "board_limit", LowUtilization "low_utilization", Reliability "reliability" }
    /// Error counter of the lanes of an NVLink, as named by NVML.
    NvLinkLaneError "error" { CrcData "dl_crc_data", EccData "dl_ecc_data" }
    /// State of the registration in the NVLink fabric (NVML `nvmlGpuFabricState_t`).
    FabricState "state" { NotSupported "not_supported", NotStarted "not_started", InProgress "in_progress", Completed "completed" }
    /// Fault in the NVML fabric health mask.
    FabricFault "fault" {
        DegradedBandwidth "degraded_bandwidth", RouteRecovery "route_recovery", RouteUnhealthy "route_unhealthy",
        AccessTimeoutRecovery "access_timeout_recovery", IncorrectConfiguration "incorrect_configuration",
    }
    /// Kind of SRAM error, detected by parity or by a SECDED code.
    SramError "error" { Corrected "corrected", UncorrectedParity "uncorrected_parity", UncorrectedSecded "uncorrected_secded" }
    /// Unit of the GPU that contains the SRAM.
    SramUnit "unit" { L2 "l2", Sm "sm", Mcu "mcu", Pcie "pcie", Other "other" }
    /// Remaining spare rows of the bank (NVML row remapper histogram).
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
    /// Recovery action that the driver requests.
    RecoveryAction "recovery_action" {
        None "none", GpuReset "gpu_reset", NodeReboot "node_reboot", DrainP2p "drain_p2p", DrainAndReset "drain_and_reset",
    }
    /// Kind of NVML event.
    DriverEvent "event" {
        DoubleBitEcc "double_bit_ecc_error", Xid "xid", SingleBitEccStorm "single_bit_ecc_storm",
        DramRetirement "dram_retirement", DramRetirementFailure "dram_retirement_failure",
        NonFatalPoison "non_fatal_poison", FatalPoison "fatal_poison", GpuUnavailable "gpu_unavailable",
        RecoveryAction "recovery_action", Unknown "unknown",
    }
    /// Recommended first action, from the table of Xid codes.
    FaultAction "action" {
        Ignore "ignore", RestartApp "restart_app", ResetGpu "reset_gpu", RebootNode "reboot_node",
        CheckHardware "check_hardware", UpdateSoftware "update_software", ContactSupport "contact_support",
    }
    /// Severity, from the table of Xid codes.
    Severity "severity" { Page "page", Ticket "ticket", Info "info" }
    /// Source of the report.
    FaultSource "source" { Nvml "nvml", Kmsg "kmsg" }
    /// Unit of a metric and last word of its name (before `_total` or `_info`). Counts, states and numbers have the
    /// unit `none`.
    Unit "unit" {
        None "none", Bytes "bytes", Seconds "seconds", Joules "joules", Watts "watts", Celsius "celsius",
        Hertz "hertz", Ratio "ratio", Lanes "lanes", BytesPerSecond "bytes_per_second",
    }
    /// Kind of the event.
    EventKind "kind" {
        Xid "xid", Sxid "sxid", DriverEvent "driver_event", RecoveryAction "recovery_action",
        DriverLoad "driver_load", DriverUnload "driver_unload", GpuReset "gpu_reset",
        GpuLost "gpu_lost", GpuReturned "gpu_returned", Canary "canary", Window "window",
        FallenOffBus "fallen_off_bus", InitFailed "init_failed", DevicesDeclared "devices_declared",
        SwitchesCleared "switches_cleared",
    }
    /// Error of a network port: broken or dropped packets (`receive`, `transmit`), and on InfiniBand wrong bits
    /// (`symbol`) and retrained links (`recovery`).
    NetworkError "error" { Receive "receive", Transmit "transmit", Symbol "symbol", Recovery "recovery" }
    /// NVIDIA service on the host.
    HostService "service" { FabricManager "nv-fabricmanager", Imex "nvidia-imex", Persistenced "nvidia-persistenced" }
    /// Common part of the paths to two devices: the same switch, the same root port, the same NUMA node, or none of
    /// these (`system`).
    DevicePath "path" { Switch "switch", RootPort "root_port", NumaNode "numa_node", System "system" }
    /// Reason why the GPU is unhealthy.
    UnhealthyReason "reason" {
        Lost "lost", Stuck "stuck", RecoveryAction "recovery_action", FatalXid "fatal_xid",
        UncontainedEcc "uncontained_ecc", RowRemapFailure "row_remap_failure", Missing "missing",
        Canary "canary",
    }
    /// Reference version for the loaded kernel module.
    VersionAgainst "against" { Declared "declared", Library "library" }
    /// Engine of the GPU.
    Engine "engine" { Sm "sm", Memory "memory", Encoder "encoder", Decoder "decoder" }
    /// Outcome of reading a kernel log record.
    KmsgOutcome "outcome" { Fault "fault", Driver "driver", NotOurs "not_ours", Malformed "malformed", Old "old" }
    /// Role of the exporter process.
    Role "role" { Serve "serve", Sampler "sampler", Canary "canary", Topology "topology" }
    /// Outcome of recording a fault that pages. `failed`: the recording could not be written, for example to a full
    /// disk. `suppressed`: the fault was recorded shortly before, or there are too many recordings.
    RecordingOutcome "outcome" { Written "written", Failed "failed", Suppressed "suppressed" }
    /// Kind of a failed driver call, by NVML return code.
    DriverError "error" {
        NoPermission "no_permission", NotFound "not_found", InsufficientPower "insufficient_power",
        DriverNotLoaded "driver_not_loaded", Timeout "timeout", IrqIssue "irq_issue",
        CorruptedInforom "corrupted_inforom", GpuIsLost "gpu_is_lost", ResetRequired "reset_required",
        OperatingSystem "operating_system", LibRmVersionMismatch "lib_rm_version_mismatch",
        Busy "busy", Resources "resources", Argument "argument", Unknown "unknown",
    }
    /// Reason why a reading was dropped: no value, an impossible value, or a value that another reading contradicts.
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
    /// Verdict of a canary check. `contended`: another process used the GPU, so the sample was discarded. `slow`: below
    /// the expected rate without a more specific reason. `wrong_result_suspected`: seen once and not confirmed.
    CanaryVerdict "verdict" {
        Ok "ok", Throttled "throttled", UnexplainedClockCap "unexplained_clock_cap", Contended "contended",
        SlowSm "slow_sm", DegradedMemory "degraded_memory", NarrowedLink "narrowed_link", Slow "slow",
        WrongResultSuspected "wrong_result_suspected", WrongResult "wrong_result", DriverFault "driver_fault",
        Hung "hung", Skipped "skipped", CouldNotRun "could_not_run",
    }
    /// Reference of a canary rate: earlier rates of the same GPU, the maximum of the hardware, or the other GPUs of the
    /// model on the node.
    RateAgainst "against" { Baseline "baseline", Roofline "roofline", Siblings "siblings" }
    /// Step of a canary run: a driver step or a check.
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
    /// Kind of wrong result: all bits zero, or some bits flipped.
    MismatchKind "kind" { Zeroed "zeroed", Flipped "flipped" }
    /// Fault of the multiprocessor.
    BadSmKind "kind" { Slow "slow", Wrong "wrong" }
    /// Mode of the canary.
    CanaryMode "mode" { Off "off", Idle "idle", AfterJob "after_job", OnDemand "on_demand" }
    /// Part of the machine, as named by hwloc.
    HostObject "object" {
        Package "package", NumaNode "numa_node", L3 "l3", Core "core", Cpu "cpu", Gpu "gpu", Nvswitch "nvswitch",
        Network "network", Storage "storage",
    }
    /// Reference topology: the first observed topology of this machine, kept across restarts, or the declared one
    /// (`topology.expected_file`).
    TopologyAgainst "against" { FirstSeen "first_seen", Declared "declared" }
    /// Compared property of the PCIe link.
    LinkAspect "aspect" { Generation "generation", Width "width" }
    /// Event counted on the CPUs. The kernel counts the first four; the others need a CPU with counters (PMU). `fp_*`:
    /// retired floating-point instructions by width in bits, only on Intel.
    PerfEvent "event" {
        ContextSwitches "context_switches", CpuMigrations "cpu_migrations", PageFaults "page_faults",
        MajorFaults "major_faults", Cycles "cycles", Instructions "instructions", LlcMisses "llc_misses",
        BranchMisses "branch_misses", RefCycles "ref_cycles", LlcReferences "llc_references",
        Branches "branches", StalledFrontend "stalled_cycles_frontend", StalledBackend "stalled_cycles_backend",
        NodeLoads "node_loads", NodeLoadMisses "node_load_misses", FpScalar "fp_scalar", Fp128 "fp_128",
        Fp256 "fp_256", Fp512 "fp_512",
    }
    /// Counting state. `works`: the event is counted. `no_pmu`: the CPU or virtual machine has no such counter.
    /// `not_permitted`: perf_event_paranoid, a missing capability or seccomp forbids counting. `unknown`: the kernel
    /// refused for another reason, or the event was not tried.
    PerfState "state" { Works "works", NoPmu "no_pmu", NotPermitted "not_permitted", Unknown "unknown" }
    /// Mode of CPU time. `busy`: processes, guests, the kernel and interrupts. `iowait`: idle while a process waits for
    /// a disk. `steal`: used by another virtual machine. `idle`: idle.
    CpuMode "mode" { Busy "busy", Iowait "iowait", Steal "steal", Idle "idle" }
    /// Kind of the owner.
    OwnerKind "kind" { Pod "pod", Container "container", Slurm "slurm", Unit "unit", User "user", Unknown "unknown", Other "other" }
    /// Mode of the CPU: `user` for the program, `system` for the kernel on behalf of the program.
    CpuTimeMode "mode" { User "user", System "system" }
    /// Knowledge of the GPUs of a Slurm job. `known`: identified. `none`: the job has no GPU. `unknown`: no process
    /// names the GPUs, or not in a way that identifies them. `not_permitted`: the environments cannot be read.
    SlurmGpus "gpus" { Known "known", None "none", Unknown "unknown", NotPermitted "not_permitted" }
    /// Reason why a device of a dynamic claim is not resolved. `name`: unknown form of name. `no_device`: no such GPU
    /// or MIG instance on this node. `no_placement`: the driver does not report the profile and placement of MIG
    /// instances. `disagreement`: the name contradicts the CDI specification of the claim. `passthrough`: assigned to a
    /// virtual machine. `other_driver`: a device of another driver.
    ClaimUnresolved "reason" {
        Name "name", NoDevice "no_device", NoPlacement "no_placement", Disagreement "disagreement",
        Passthrough "passthrough", OtherDriver "other_driver",
    }
    /// Result of an owner lookup.
    OwnerLookup "outcome" { Found "found", Gone "gone", Refused "refused", Late "late", Malformed "malformed" }
    /// Kind of failure of a request to the kubelet.
    KubeletError "error" { NoSocket "no_socket", Refused "refused", Late "late", Malformed "malformed", TooLarge "too_large" }
    /// Phase of a process start: until its first context on a GPU, or until its first work there.
    StartPhase "phase" { FirstContext "first_context", FirstBusy "first_busy" }
    /// Cause of the bottleneck; formulas are in `docs/BOTTLENECKS.md`. `wedged`: kernels run without end and compute
    /// nothing. `stalled`: the owner worked before and does nothing now. `none`: none of the other causes. `unknown`:
    /// no cause is proven, and the units of the GPU are not measured (no GPM, as before Hopper).
    Cause "cause" {
        None "none", Wedged "wedged", Stalled "stalled", PowerCapped "power_capped", ThermallyThrottled "thermally_throttled", Contended "contended",
        HostCpuBound "host_cpu_bound", RemoteNuma "remote_numa", PcieBound "pcie_bound",
        MemoryBound "memory_bound", Underfilled "underfilled", SerialCopies "serial_copies", Unknown "unknown",
    }
    /// Class of GPU time of an owner; thresholds are in `docs/HEARTBEAT.md`. Every second belongs to one class.
    /// `wedged`: kernels run without end and compute nothing, or their missing rank rests. `stalled`: an owner that
    /// worked before does nothing. `faulted`: the GPU is unhealthy. `throttled`: heat, the board or the power supply
    /// throttles the clocks, not the power cap. `computing`: kernels compute. `communicating`: kernels move data
    /// between GPUs or wait for it. `waiting_for_host`: nothing runs between kernels. `idle`: no work. `unknown`: not
    /// measured.
    GpuTimeClass "class" {
        Computing "computing", Communicating "communicating", WaitingForHost "waiting_for_host", Throttled "throttled",
        Stalled "stalled", Wedged "wedged", Faulted "faulted", Idle "idle", Unknown "unknown",
    }
    /// Kind of period: the whole step of the work (`step`), or the smallest unit that repeats, which may be part of a
    /// step (`smallest_unit`).
    StepPeriod "period" { Step "step", SmallestUnit "smallest_unit" }
    /// Outcome of a request to the RAS socket of NCCL. `old`: a version of NCCL that must not be queried.
    RasOutcome "outcome" {
        Answered "answered", NoSocket "no_socket", Old "old", Late "late", Malformed "malformed", TooLarge "too_large",
    }
    /// Kind of window. `maintenance` mutes effects of planned work (idle GPUs, restarts, driver loads, skipped
    /// canaries) and pauses the canary, but never mutes lost work or wrong results. `training` only mutes tickets about
    /// high utilization and memory.
    WindowKind "kind" { Maintenance "maintenance", Training "training" }
    /// Status code of the response.
    HttpStatus "code" {
        C200 "200", C304 "304", C400 "400", C401 "401", C403 "403", C404 "404", C405 "405", C408 "408", C421 "421",
        C429 "429", C431 "431", C500 "500", C503 "503", Other "other",
    }
}

text_labels! {
    /// NVML function, with its argument if one function answers several questions.
    Call "call"
    /// Name of the metric.
    MetricName "metric"
    /// Code of the Xid fault.
    XidCode "xid"
    /// Code of the SXid fault (NVSwitch).
    SxidCode "sxid"
    /// Number of the NVSwitch, as logged by the driver.
    SwitchName "nvswitch"
    /// CUDA driver error code, such as `719`.
    CudaError "cuda_error"
    /// MIG profile, such as `3g.71gb`.
    ProfileName "mig_profile"
    /// Network device, such as `mlx5_0`, or the interface if the device has no RDMA.
    Nic "nic"
    /// Number of the port of an RDMA device, or the interface.
    NetworkPort "port"
    /// Name of an extended resource of Kubernetes, such as `nvidia.com/gpu`.
    Resource "resource"
}

impl DriverError {
    /// Returns true if the GPU is unusable until it is reset.
    pub fn is_lost(self) -> bool {
        matches!(self, DriverError::GpuIsLost | DriverError::ResetRequired)
    }
}

/// Class of a [`CanarySkip`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum SkipClass {
    /// The GPU is in use or reserved; `canary --force` overrides the reason.
    Overridable,
    /// The GPU is in use or reserved, and `canary --force` does not override the reason.
    InUse,
    /// Something is missing or broken.
    Impossible,
}

impl CanarySkip {
    /// Returns the text on the status page and the class. This is the only table of these properties.
    const fn properties(self) -> (&'static str, SkipClass) {
        use CanarySkip::*;
        use SkipClass::*;
        match self {
            Processes => ("GPU in use", Overridable),
            Busy => ("GPU busy", Overridable),
            Memory => ("GPU memory in use", Overridable),
            Claimed => ("GPU assigned to a job", Overridable),
            ComputeMode => ("compute mode", Overridable),
            RecentXid => ("recent Xid", Overridable),
            Unhealthy => ("GPU unhealthy", Impossible),
            Maintenance => ("maintenance window", Overridable),
            Interlock => ("another diagnostic runs", InUse),
            Duty => ("duty limit reached", Overridable),
            Mps => ("MPS", Overridable),
            PersistenceOff => ("persistence off", Overridable),
            Unread => ("no fresh values", Impossible),
            Released => ("driver released", InUse),
            ChildAlive => ("an earlier run hangs", Impossible),
            NoInstance => ("no MIG instance", Impossible),
            NoLibrary => ("no CUDA library", Impossible),
            ForeignLibrary => ("foreign cuda library", Impossible),
            OldDriver => ("old driver", Impossible),
            NoKernels => ("no kernels", Impossible),
            NoMemory => ("no memory", InUse),
            NoPermission => ("no permission", Impossible),
            DeviceUnavailable => ("device unavailable", InUse),
            NoDevice => ("no device", Impossible),
            Environment => ("environment", Impossible),
        }
    }

    /// Returns the text for the status page.
    pub const fn shown(self) -> &'static str {
        self.properties().0
    }

    /// Returns true if the GPU is in use or reserved, and false if something is missing or broken.
    pub fn is_left_alone(self) -> bool {
        self.properties().1 != SkipClass::Impossible
    }

    /// Returns true if `canary --force` overrides the reason. Force never overrides a reason with which a run would hang,
    /// break another user's work on the driver, or have no device.
    pub fn yields_to_force(self) -> bool {
        self.properties().1 == SkipClass::Overridable
    }
}
