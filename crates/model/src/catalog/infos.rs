//! The labels of every metric that is an identity, `gpu_..._info`.

use super::schema::{self, info_labels};

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
    /// Labels of `gpu_claim_info`. What does not apply or is not known is empty.
    ClaimInfo {
        /// Name of the claim.
        claim,
        /// Namespace of the claim.
        claim_namespace,
        /// Driver of the device, as `gpu.nvidia.com`.
        driver,
        /// Pool of the device: the node, as a rule.
        pool,
        /// The driver's name of the device, as `gpu-0-mig-1g18gb-19-0`.
        device,
        /// Profile of the MIG instance, as `1g.18gb`; empty of a whole GPU.
        mig_profile,
        /// UUID of the MIG device; empty of a whole GPU, and of an instance with several.
        mig_uuid,
        /// Namespace of the pod.
        namespace,
        /// Name of the pod.
        pod,
        /// Name of the container.
        container,
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
