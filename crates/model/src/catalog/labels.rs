//! Every entity and every label, declared once: what a metric can be about, and what else its series say.

use std::sync::Arc;

use super::schema::{self, Tier, entities, info_labels, labels, text_labels};

entities! {
    /// The node itself.
    Node {}
    /// One GPU (the whole board, also when it is in MIG mode).
    Gpu {
        /// NVML's index, for people; it can change at a reboot.
        gpu: u32,
        /// NVML's UUID: the identity.
        uuid: Arc<str>
    }
    /// One MIG GPU instance: memory and bandwidth of its own.
    GpuInstance {
        /// NVML's index of the GPU.
        gpu: u32,
        /// UUID of the GPU (the instance's own is `mig_uuid` on `gpu_mig_info`).
        uuid: Arc<str>,
        /// NVML's GPU instance id.
        gpu_instance: u32,
        /// Its profile, as `3g.71gb`.
        profile: Arc<str>
    }
    /// One MIG compute instance: the share of a GPU instance that a process sees as its device.
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
    /// One NVLink of a GPU.
    Link {
        /// NVML's index of the GPU.
        gpu: u32,
        /// UUID of the GPU.
        uuid: Arc<str>,
        /// NVML's number of the link.
        link: u32
    }
    /// One process on a GPU. Only with `processes.per_process`: such series come and go with the processes.
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
    /// One owner of GPU work on this node.
    Owner {
        /// Who it is; `gpu_owner_info` has the parts.
        owner: Arc<str>
    }
    /// What one owner has of one GPU or MIG GPU instance. Such series come and go with the owners.
    OwnedGpu {
        /// NVML's index of the GPU.
        gpu: u32,
        /// UUID of the GPU.
        uuid: Arc<str>,
        /// NVML's GPU instance id; empty on a whole GPU.
        gpu_instance: Arc<str>,
        /// Who it is; `gpu_owner_info` has the parts.
        owner: Arc<str>
    }
    /// One window of planned work.
    Window {
        /// Name of the window.
        window: Arc<str>
    }
    /// One virtual GPU on a virtualization host.
    Vgpu {
        /// NVML's index of the GPU.
        gpu: u32,
        /// UUID of the GPU.
        uuid: Arc<str>,
        /// UUID of the virtual GPU.
        vgpu_uuid: Arc<str>
    }
}

impl GpuInstance {
    /// The GPU it is a part of.
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

impl Subject {
    /// The GPU this is, or is a part of.
    pub fn gpu(&self) -> Option<(u32, &Arc<str>)> {
        match self {
            Subject::Node(_) | Subject::CpuGroup(_) | Subject::Owner(_) | Subject::Window(_) => None,
            Subject::Gpu(g) => Some((g.gpu, &g.uuid)),
            Subject::GpuInstance(g) => Some((g.gpu, &g.uuid)),
            Subject::ComputeInstance(g) => Some((g.gpu, &g.uuid)),
            Subject::OwnedGpu(o) => Some((o.gpu, &o.uuid)),
            Subject::Link(l) => Some((l.gpu, &l.uuid)),
            Subject::Process(p) => Some((p.gpu, &p.uuid)),
            Subject::Vgpu(v) => Some((v.gpu, &v.uuid)),
        }
    }
}

labels! {
    /// Where the temperature is measured.
    Sensor "sensor" { Gpu "gpu", Memory "memory" }
    /// What happens, or what is the most allowed, at the threshold.
    TemperatureThreshold "threshold" { Shutdown "shutdown", Slowdown "slowdown", MemoryMax "memory_max", GpuMax "gpu_max" }
    /// Clock domain, as NVML names it.
    ClockDomain "domain" { Graphics "graphics", Sm "sm", Memory "memory", Video "video" }
    /// Why the clocks are below what was asked for (NVML clocks event reasons).
    ClockEvent "reason" {
        GpuIdle "gpu_idle", ApplicationsClocksSetting "applications_clocks_setting", SwPowerCap "sw_power_cap",
        HwSlowdown "hw_slowdown", SyncBoost "sync_boost", SwThermalSlowdown "sw_thermal_slowdown",
        HwThermalSlowdown "hw_thermal_slowdown", HwPowerBrakeSlowdown "hw_power_brake_slowdown",
        DisplayClockSetting "display_clock_setting",
    }
    /// Which power limit: `enforced` is the one in force, `configured` what was set, `default` the vendor's; `min` and `max` bound what can be set.
    PowerLimit "limit" { Enforced "enforced", Configured "configured", Default "default", Min "min", Max "max" }
    /// Since the driver was loaded (`volatile`) or over the GPU's life (`aggregate`).
    EccCounter "counter" { Volatile "volatile", Aggregate "aggregate" }
    /// Whether ECC could correct the error.
    EccError "error" { Corrected "corrected", Uncorrected "uncorrected" }
    /// Where the error was, as NVML names memory locations.
    EccMemory "memory" {
        L1Cache "l1_cache", L2Cache "l2_cache", Dram "dram", RegisterFile "register_file",
        TextureMemory "texture_memory", TextureShm "texture_shm", Cbu "cbu", Sram "sram",
    }
    /// What made the driver remap the row.
    RemapCause "cause" { Correctable "correctable", Uncorrectable "uncorrectable" }
    /// Who may use the GPU.
    ComputeMode "mode" { Default "default", ExclusiveThread "exclusive_thread", Prohibited "prohibited", ExclusiveProcess "exclusive_process" }
    /// How the process uses the GPU.
    ProcessType "type" { Compute "compute", Graphics "graphics", Mps "mps" }
    /// How often these values are read.
    TierLabel "tier" { Identity "identity", Fast "fast", Normal "normal", Samples "samples", Slow "slow", Rare "rare", Nvlink "nvlink", Once "once" }
    /// Part of the exporter that gathers values.
    CollectorName "collector" { Nvml "nvml", Process "process", Kmsg "kmsg", Module "module", Canary "canary", Topology "topology", Owners "owners", Kubelet "kubelet", Cpu "cpu", Windows "windows" }
    /// Which of the driver's own sample buffers.
    SampleBuffer "buffer" { Power "power", Utilization "utilization" }
    /// Which unit of the GPU was active (NVML GPM): `graphics` any engine, `sm` at least one warp on a multiprocessor, `sm_occupancy` resident warps of those possible, `tensor` any tensor pipe and `tensor_dfma`, `tensor_hmma`, `tensor_imma` one of them (double, half and similar, integer), `fp64`, `fp32`, `fp16` and `integer` the other pipes, `dram` the memory interface.
    GpmUnit "unit" {
        Graphics "graphics", Sm "sm", SmOccupancy "sm_occupancy", Integer "integer", Tensor "tensor",
        TensorDfma "tensor_dfma", TensorHmma "tensor_hmma", TensorImma "tensor_imma", Dram "dram",
        Fp64 "fp64", Fp32 "fp32", Fp16 "fp16",
    }
    /// Seen from the GPU: `tx` is sent, `rx` received.
    Direction "direction" { Tx "tx", Rx "rx" }
    /// Pipe whose work is estimated: the vector pipes by precision, and the tensor pipes (`tensor_hmma` counts dense half precision).
    FlopPipe "pipe" { Fp64 "fp64", Fp32 "fp32", Fp16 "fp16", TensorDfma "tensor_dfma", TensorHmma "tensor_hmma" }
    /// Error counter of an NVLink, as NVML names it: packets sent again, times the link was brought up anew, packets with a wrong checksum.
    NvLinkError "error" { Replay "dl_replay", Recovery "dl_recovery", CrcFlit "dl_crc_flit" }
    /// Error counter of the lanes of an NVLink, as NVML names it.
    NvLinkLaneError "error" { CrcData "dl_crc_data", EccData "dl_ecc_data" }
    /// How far the GPU is with joining its NVLink fabric (NVML `nvmlGpuFabricState_t`).
    FabricState "state" { NotSupported "not_supported", NotStarted "not_started", InProgress "in_progress", Completed "completed" }
    /// What the fabric says of itself (NVML fabric health mask).
    FabricFault "fault" {
        DegradedBandwidth "degraded_bandwidth", RouteRecovery "route_recovery", RouteUnhealthy "route_unhealthy",
        AccessTimeoutRecovery "access_timeout_recovery", IncorrectConfiguration "incorrect_configuration",
    }
    /// Error of SRAM: by parity or by SECDED code.
    SramError "error" { Corrected "corrected", UncorrectedParity "uncorrected_parity", UncorrectedSecded "uncorrected_secded" }
    /// Where in the GPU the SRAM is.
    SramUnit "unit" { L2 "l2", Sm "sm", Mcu "mcu", Pcie "pcie", Other "other" }
    /// Spare rows left in the bank (NVML row remapper histogram).
    SpareRows "spare_rows" { Max "max", High "high", Partial "partial", Low "low", None "none" }
    /// What made the driver retire the page.
    RetirementCause "cause" { MultipleSingleBit "multiple_single_bit", DoubleBit "double_bit" }
    /// What of the GPU waits for its repair.
    RepairPart "part" { Channel "channel", Tpc "tpc" }
    /// Kind of PCIe error as the GPU counts it (NVML fields 173 to 183).
    PcieError "error" {
        Correctable "correctable", NaksReceived "naks_received", Receiver "receiver", BadTlp "bad_tlp",
        NaksSent "naks_sent", BadDllp "bad_dllp", NonFatal "non_fatal", Fatal "fatal",
        UnsupportedRequest "unsupported_request", Lcrc "lcrc", Lane "lane",
    }
    /// Severity in the kernel's advanced error reporting (AER).
    AerSeverity "severity" { Correctable "correctable", NonFatal "non_fatal", Fatal "fatal" }
    /// What the driver asks for to bring the GPU back.
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
    /// What the table of Xid codes says to do first.
    FaultAction "action" {
        Ignore "ignore", RestartApp "restart_app", ResetGpu "reset_gpu", RebootNode "reboot_node",
        CheckHardware "check_hardware", UpdateSoftware "update_software", ContactSupport "contact_support",
    }
    /// How loud the table of Xid codes calls it.
    Severity "severity" { Page "page", Ticket "ticket", Info "info" }
    /// Who told of the fault.
    FaultSource "source" { Nvml "nvml", Kmsg "kmsg" }
    /// Why the GPU cannot be relied on.
    UnhealthyReason "reason" {
        Lost "lost", Stuck "stuck", RecoveryAction "recovery_action", FatalXid "fatal_xid",
        UncontainedEcc "uncontained_ecc", RowRemapFailure "row_remap_failure", Missing "missing",
        Canary "canary",
    }
    /// What the loaded kernel module's version is compared with.
    VersionAgainst "against" { Declared "declared", Library "library" }
    /// Engine of the GPU.
    Engine "engine" { Sm "sm", Memory "memory", Encoder "encoder", Decoder "decoder" }
    /// What became of a kernel log record.
    KmsgOutcome "outcome" { Fault "fault", Driver "driver", NotOurs "not_ours", Malformed "malformed", Old "old" }
    /// Which of the exporter's processes.
    Role "role" { Serve "serve", Sampler "sampler", Canary "canary", Topology "topology" }
    /// Kind of a failed driver call, by NVML's return code.
    DriverError "error" {
        NoPermission "no_permission", NotFound "not_found", InsufficientPower "insufficient_power",
        DriverNotLoaded "driver_not_loaded", Timeout "timeout", IrqIssue "irq_issue",
        CorruptedInforom "corrupted_inforom", GpuIsLost "gpu_is_lost", ResetRequired "reset_required",
        OperatingSystem "operating_system", LibRmVersionMismatch "lib_rm_version_mismatch",
        Busy "busy", Resources "resources", Argument "argument", Unknown "unknown",
    }
    /// Why a value the driver gave was not published.
    DropReason "reason" { Blank "blank", OutOfRange "out_of_range" }
    /// Why a sampler process was given up.
    SamplerEnd "reason" {
        Exited "exited", Garbage "garbage", Oversized "oversized", Truncated "truncated", Refused "refused",
        Stopped "stopped", Stuck "stuck",
    }
    /// Check of the canary; what each proves is in `kernels/README.md`.
    CanaryCheck "check" {
        Init "init", SmRate "sm_rate", Tensor "tensor", SmSdc "sm_sdc", HbmRead "hbm_read", HbmWalk "hbm_walk",
        L2 "l2", Pcie "pcie", Launch "launch", Overlap "overlap", Transform "transform", P2p "p2p",
    }
    /// What a check of the canary found. `contended`: somebody else used the GPU, the sample was thrown away. `slow`: below its rate for no nearer reason. `wrong_result_suspected`: seen once, not again.
    CanaryVerdict "verdict" {
        Ok "ok", Throttled "throttled", UnexplainedClockCap "unexplained_clock_cap", Contended "contended",
        SlowSm "slow_sm", DegradedMemory "degraded_memory", NarrowedLink "narrowed_link", Slow "slow",
        WrongResultSuspected "wrong_result_suspected", WrongResult "wrong_result", DriverFault "driver_fault",
        Hung "hung", Skipped "skipped", CouldNotRun "could_not_run",
    }
    /// What a rate of the canary is compared with: this GPU's own earlier rates, what the hardware can do at most, or the other GPUs of the same model on the node.
    RateAgainst "against" { Baseline "baseline", Roofline "roofline", Siblings "siblings" }
    /// Step of a canary run: of the driver, or one of its checks.
    CanaryStep "step" {
        Load "load_library", Init "init", Device "device", Context "context", Module "module", FirstLaunch "first_launch",
        SmRate "sm_rate", Tensor "tensor", SmSdc "sm_sdc", HbmRead "hbm_read", HbmWalk "hbm_walk", L2 "l2", Pcie "pcie",
        Launch "launch", Overlap "overlap", Transform "transform", P2p "p2p", Destroy "destroy",
    }
    /// How a run of the canary ended.
    CanaryEnd "end" {
        Finished "finished", Abandoned "abandoned", DriverFault "driver_fault", Hung "hung", CouldNotRun "could_not_run",
        Broken "broken",
    }
    /// Why a run of the canary was put off or could not be made.
    CanarySkip "reason" {
        Processes "processes", Busy "busy", Memory "memory", Claimed "claimed", ComputeMode "compute_mode",
        RecentXid "recent_xid", Unhealthy "unhealthy", Maintenance "maintenance", Interlock "interlock", Duty "duty_budget",
        Mps "mps", PersistenceOff "persistence_off", Unread "unread", Released "driver_released", ChildAlive "child_alive",
        NoInstance "no_mig_instance", NoLibrary "no_cuda_library", ForeignLibrary "foreign_cuda_library",
        OldDriver "old_driver", NoKernels "no_kernels", NoMemory "no_memory", NoPermission "no_permission",
        DeviceUnavailable "device_unavailable", NoDevice "no_device", Environment "environment",
    }
    /// How a wrong result was wrong: all bits gone, or some changed.
    MismatchKind "kind" { Zeroed "zeroed", Flipped "flipped" }
    /// What is wrong with the multiprocessor.
    BadSmKind "kind" { Slow "slow", Wrong "wrong" }
    /// When the canary runs.
    CanaryMode "mode" { Off "off", Idle "idle", AfterJob "after_job", OnDemand "on_demand" }
    /// Part of the machine that hwloc tells.
    HostObject "object" {
        Package "package", NumaNode "numa_node", L3 "l3", Core "core", Cpu "cpu", Gpu "gpu", Nvswitch "nvswitch",
        Network "network", Storage "storage",
    }
    /// What the topology is compared with: the first one seen on this machine, kept over restarts, or the one declared (`topology.expected_file`).
    TopologyAgainst "against" { FirstSeen "first_seen", Declared "declared" }
    /// What of a PCIe link is compared.
    LinkAspect "aspect" { Generation "generation", Width "width" }
    /// Event that is counted on the CPUs. The first four the kernel counts by itself, the others need a CPU with counters (PMU). `fp_*`: floating-point operations' instructions retired, by width in bits, on Intel alone.
    PerfEvent "event" {
        ContextSwitches "context_switches", CpuMigrations "cpu_migrations", PageFaults "page_faults",
        MajorFaults "major_faults", Cycles "cycles", Instructions "instructions", LlcMisses "llc_misses",
        BranchMisses "branch_misses", RefCycles "ref_cycles", LlcReferences "llc_references",
        Branches "branches", StalledFrontend "stalled_cycles_frontend", StalledBackend "stalled_cycles_backend",
        NodeLoads "node_loads", NodeLoadMisses "node_load_misses", FpScalar "fp_scalar", Fp128 "fp_128",
        Fp256 "fp_256", Fp512 "fp_512",
    }
    /// Whether an event can be counted here: `works`; `no_pmu` the CPU or virtual machine has no such counter; `not_permitted` (perf_event_paranoid, capability, seccomp); `unknown` the kernel refused for another reason, or it was not tried.
    PerfState "state" { Works "works", NoPmu "no_pmu", NotPermitted "not_permitted", Unknown "unknown" }
    /// What CPUs did with their time: `busy` (work of processes, guests and the kernel, interrupts too), `iowait` (nothing to run, and somebody waits for a disk), `steal` (another virtual machine had the CPU), `idle`.
    CpuMode "mode" { Busy "busy", Iowait "iowait", Steal "steal", Idle "idle" }
    /// What kind of owner it is.
    OwnerKind "kind" { Pod "pod", Container "container", Slurm "slurm", Unit "unit", User "user", Unknown "unknown" }
    /// What became of asking whom a process works for.
    OwnerLookup "outcome" { Found "found", Gone "gone", Refused "refused", Late "late", Malformed "malformed" }
    /// Why a request to the kubelet brought nothing.
    KubeletError "error" { NoSocket "no_socket", Refused "refused", Late "late", Malformed "malformed", TooLarge "too_large" }
    /// How far a process had come: it had its first context on a GPU, or did its first work there.
    StartPhase "phase" { FirstContext "first_context", FirstBusy "first_busy" }
    /// What holds the work on a GPU back; each cause's formula is in `docs/BOTTLENECKS.md`. `none`: none of the others, or nothing is known to be slow.
    Cause "cause" {
        None "none", PowerCapped "power_capped", ThermallyThrottled "thermally_throttled", Contended "contended",
        HostCpuBound "host_cpu_bound", RemoteNuma "remote_numa", PcieBound "pcie_bound",
        MemoryBound "memory_bound", Underfilled "underfilled", SerialCopies "serial_copies",
    }
    /// What a window is for: `maintenance` mutes what planned work brings about (idle GPUs, restarts, driver loads, skipped canaries), never lost work or wrong results, and keeps the canary away; `training` mutes tickets about high utilization and memory only.
    WindowKind "kind" { Maintenance "maintenance", Training "training" }
    /// Status class of the answer.
    HttpStatus "code" { C200 "200", C404 "404", C405 "405", C408 "408", C431 "431", C503 "503", Other "other" }
}

impl TierLabel {
    /// The label of a sampled tier.
    pub fn of(tier: Tier) -> Option<TierLabel> {
        Some(match tier {
            Tier::Fast => TierLabel::Fast,
            Tier::Normal => TierLabel::Normal,
            Tier::Samples => TierLabel::Samples,
            Tier::Slow => TierLabel::Slow,
            Tier::Rare => TierLabel::Rare,
            Tier::Nvlink => TierLabel::Nvlink,
            Tier::Once => TierLabel::Once,
            Tier::Identity => TierLabel::Identity,
            Tier::Computed => return None,
        })
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
    /// Name of an extended resource of Kubernetes, as `nvidia.com/gpu`.
    Resource "resource"
}

info_labels! {
    /// Labels of `gpu_host_topology_info`.
    TopologyInfo {
        /// NUMA node near the GPU; empty where the machine does not tell (a guest).
        numa_node,
        /// CPUs near it, as `0-7,16-23`.
        cpus,
        /// Last-level cache of its share of CPUs, by number.
        l3,
        /// Package (socket) of its NUMA node.
        package,
        /// PCI address of the root port above it.
        root_port,
        /// PCI address of the lowest switch above it; empty without one.
        pcie_switch,
        /// CPUs that are its share where those near it are divided fairly among the GPUs.
        share,
    }
    /// Labels of `gpu_mig_host_topology_info`.
    MigTopologyInfo {
        /// UUID of the MIG device, as CUDA_VISIBLE_DEVICES takes it.
        mig_uuid,
        /// NUMA node near it; empty where the machine does not tell.
        numa_node,
        /// CPUs that are its share of those of its GPU.
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
        /// How near: `switch` (below the same switch), `root_port`, `numa_node`, or `system`.
        path,
    }
    /// Labels of `gpu_owner_info`. What does not apply is empty.
    OwnerInfo {
        /// What kind of owner it is: `pod`, `container`, `slurm`, `unit`, `user`, `unknown`.
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
        /// Who runs the container: `docker`, `podman`, `containerd`, `cri-o`.
        runtime,
        /// Slurm job id; not `job`, which Prometheus gives the scrape job's name.
        slurm_job,
        /// Slurm step.
        slurm_step,
        /// Slurm account that the job is charged to, as the job's own environment names it; empty where it does not.
        slurm_account,
        /// systemd unit.
        unit,
        /// Login name of the user, or the number if it has none here.
        user,
    }
    /// Labels of `gpu_window_info`.
    WindowInfo {
        /// What it mutes: `maintenance` or `training`.
        kind,
        /// Why, in the words of who planned it.
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
        /// `none`, `passthrough` (in a virtual machine), `vgpu`, `host_vgpu` or `host_vsga`; empty where the driver does not tell.
        virtualization_mode,
    }
    /// Labels of `gpu_driver_info`.
    DriverInfo {
        /// Kernel driver's version.
        driver_version,
        /// Branch of the driver; empty where the driver does not tell.
        driver_branch,
        /// Version of libnvidia-ml.
        nvml_version,
        /// Newest CUDA version the driver supports.
        cuda_version,
    }
    /// Labels of `gpu_mig_info`.
    MigInfo {
        /// UUID of the MIG device: what a job is given.
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
        /// What is at the other end: `gpu`, `switch`, `ibmnpu` or `unknown`.
        remote_type,
        /// PCI address of the other end; empty where the driver hides it.
        remote_pci_address,
        /// Number of the link at the other end; empty where the driver does not tell.
        remote_link,
    }
    /// Labels of `gpu_peer_info`.
    PeerInfo {
        /// NVML's index of the other GPU.
        peer_gpu,
        /// UUID of the other GPU.
        peer_uuid,
        /// What both are behind: `internal` (one board), `single` or `multiple` PCIe switches, `hostbridge`, `node`, `system`.
        topology,
        /// Whether it can read the other's memory (NVML P2P status).
        read,
        /// Whether it can write the other's memory.
        write,
        /// Whether NVLink connects them.
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
        /// Firmware (BIOS) version; empty where the driver does not tell.
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
