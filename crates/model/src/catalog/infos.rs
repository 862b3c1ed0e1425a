//! Labels of the `_info` metrics.

use super::schema::{self, info_labels};

info_labels! {
    /// Labels of the metric `gpu_host_topology_info`.
    TopologyInfo {
        /// NUMA node near the GPU; empty if unknown (in a guest).
        numa_node,
        /// CPUs near the GPU, such as `0-7,16-23`.
        cpus,
        /// Number of the last-level cache of the GPU's CPU share.
        l3,
        /// Package (socket) of the NUMA node.
        package,
        /// PCI address of the root port above the GPU.
        root_port,
        /// PCI address of the lowest switch above the GPU; empty without a switch.
        pcie_switch,
        /// The GPU's share of the nearby CPUs, which are divided fairly among the GPUs.
        share,
    }
    /// Labels of the metric `gpu_mig_host_topology_info`.
    MigTopologyInfo {
        /// UUID of the MIG device, as used in CUDA_VISIBLE_DEVICES.
        mig_uuid,
        /// NUMA node near the MIG device; empty if unknown.
        numa_node,
        /// The MIG device's share of the CPUs of the GPU.
        share,
    }
    /// Labels of the metric `gpu_host_nic_info`: the network device nearest to the GPU.
    NicInfo {
        /// Network device, such as `mlx5_0`, or the interface if the device has no RDMA.
        nic,
        /// Name of the interface, as in the label `device` of node_exporter.
        device,
        /// PCI address of the network device.
        pci_address,
        /// Distance: `switch` (below the same switch), `root_port`, `numa_node`, or `system`.
        path,
    }
    /// Labels of the metric `gpu_owner_info`. Labels that do not apply are empty.
    OwnerInfo {
        /// Kind of owner: `pod`, `container`, `slurm`, `unit`, `user`, `unknown`, or `other` for all owners without
        /// series.
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
        /// Slurm job id. Not `job`, because Prometheus uses that label for the name of the scrape job.
        slurm_job,
        /// Id of the Slurm step.
        slurm_step,
        /// Slurm account from the environment of the job; empty if the environment has none.
        slurm_account,
        /// Name of the systemd unit.
        unit,
        /// Login name of the user, or the UID if the user has no name on this node.
        user,
    }
    /// Labels of the metric `gpu_allocation_info`. Labels that do not apply are empty.
    AllocationInfo {
        /// Namespace of the pod.
        namespace,
        /// Name of the pod.
        pod,
        /// Name of the container.
        container,
        /// Slurm job id. Not `job`, because Prometheus uses that label for the name of the scrape job.
        slurm_job,
        /// Slurm account from the environment of the job; empty if the environment has none.
        slurm_account,
        /// User of the Slurm job.
        user,
    }
    /// Labels of the metric `gpu_hpc_job_info`.
    HpcJobInfo {
        /// Job name, as written by the scheduler's hook.
        hpc_job,
    }
    /// Labels of the metric `gpu_claim_info`. Labels that do not apply or are unknown are empty.
    ClaimInfo {
        /// Name of the claim.
        claim,
        /// Namespace of the claim.
        claim_namespace,
        /// Driver of the device, such as `gpu.nvidia.com`.
        driver,
        /// Pool of the device, usually the node.
        pool,
        /// Name of the device in the driver, such as `gpu-0-mig-1g18gb-19-0`.
        device,
        /// Profile of the MIG instance, such as `1g.18gb`; empty for a whole GPU.
        mig_profile,
        /// UUID of the MIG device; empty for a whole GPU, and for an instance with several devices.
        mig_uuid,
        /// Namespace of the pod.
        namespace,
        /// Name of the pod.
        pod,
        /// Name of the container.
        container,
    }
    /// Labels of the metric `gpu_window_info`.
    WindowInfo {
        /// Kind of window: `maintenance` or `training`.
        kind,
        /// Reason for the window.
        reason,
    }
    /// Labels of the metric `gpu_info`.
    GpuInfo {
        /// Product name of the GPU.
        model,
        /// Architecture, such as `hopper`.
        architecture,
        /// CUDA compute capability, such as `9.0`.
        compute_capability,
        /// PCI address (domain:bus:device.function), such as `0000:06:00.0`.
        pci_address,
        /// PCI device and vendor, such as `0x233510de`.
        pci_device_id,
        /// PCI subsystem device and vendor, such as `0x18be10de`.
        pci_subsystem_id,
        /// Serial number of the board.
        serial,
        /// NVIDIA part number of the board.
        board_part_number,
        /// Number N of the device file `/dev/nvidiaN`.
        minor_number,
        /// Position on the baseboard (SXM).
        module_id,
        /// Version of the VBIOS.
        vbios_version,
        /// Version of the InfoROM image.
        inforom_version,
        /// GSP firmware version; empty without GSP.
        gsp_firmware_version,
        /// Virtualization mode: `none`, `passthrough` (in a virtual machine), `vgpu`, `host_vgpu` or `host_vsga`; empty if unknown.
        virtualization_mode,
    }
    /// Labels of the metric `gpu_platform_info`.
    PlatformInfo {
        /// Serial number of the chassis; empty if the driver does not report it.
        chassis_serial,
        /// Slot of the chassis, counting switches.
        slot,
        /// Tray among the compute slots of the chassis.
        tray,
        /// Node within the slot.
        host_id,
        /// GPU within the node.
        module_id,
    }
    /// Labels of the metric `gpu_board_info`; empty if the driver does not report them.
    BoardInfo {
        /// Brand, such as `NVIDIA`.
        brand,
        /// Version of the InfoROM's OEM object.
        inforom_oem_version,
        /// Version of the InfoROM's ECC object.
        inforom_ecc_version,
        /// Version of the InfoROM's power management object.
        inforom_power_version,
    }
    /// Labels of the metric `gpu_driver_info`.
    DriverInfo {
        /// Version of the kernel driver.
        driver_version,
        /// Branch of the driver; empty if unknown.
        driver_branch,
        /// Version of the library libnvidia-ml.
        nvml_version,
        /// Newest CUDA version that the driver supports.
        cuda_version,
    }
    /// Labels of the metric `gpu_mig_info`.
    MigInfo {
        /// UUID of the MIG device, as assigned to jobs.
        mig_uuid,
        /// Profile of the MIG device: the profile of its GPU instance, or a part of it, such as `1c.3g.71gb`.
        mig_profile,
        /// Name of the MIG device in NVML.
        name,
    }
    /// Labels of the metric `gpu_nvlink_info`.
    NvLinkInfo {
        /// Version of the link protocol, in NVML's numbering.
        version,
        /// Remote end: `gpu`, `switch`, `ibmnpu` or `unknown`.
        remote_type,
        /// PCI address of the remote end; empty if the driver hides it.
        remote_pci_address,
        /// Number of the link at the remote end; empty if unknown.
        remote_link,
    }
    /// Labels of the metric `gpu_peer_info`.
    PeerInfo {
        /// NVML index of the other GPU.
        peer_gpu,
        /// UUID of the other GPU.
        peer_uuid,
        /// Common ancestor: `internal` (one board), `single` or `multiple` PCIe switches, `hostbridge`, `node`, `system`.
        topology,
        /// Read access to the memory of the other GPU (NVML P2P status).
        read,
        /// Write access to the memory of the other GPU.
        write,
        /// Peer-to-peer access over NVLink (NVML P2P status).
        nvlink,
    }
    /// Labels of the metric `gpu_fabric_info`.
    FabricInfo {
        /// UUID of the NVLink cluster; empty for a standalone node.
        cluster_uuid,
        /// Clique within the cluster: GPUs of one clique can communicate with each other.
        clique_id,
    }
    /// Labels of the metric `gpu_process_info`.
    ProcessInfo {
        /// Name of the program.
        process_name,
        /// Type of process: `compute`, `graphics` or `mps`.
        process_type,
        /// NVML id of the GPU instance; empty without MIG.
        gpu_instance,
        /// NVML id of the compute instance; empty without MIG.
        compute_instance,
    }
    /// Labels of the metric `gpu_vgpu_info`.
    VgpuInfo {
        /// Type of the virtual GPU, such as `NVIDIA L4-6Q`.
        vgpu_type,
        /// Identity of the virtual machine.
        vm_id,
        /// Driver version in the virtual machine; empty while none is loaded.
        guest_driver_version,
    }
    /// Labels of the metric `gpu_nvswitch_info`.
    NvSwitchInfo {
        /// PCI address of the NVSwitch.
        pci_address,
        /// Firmware (BIOS) version; empty if unknown.
        firmware_version,
    }
    /// Labels of the metric `gpu_canary_bad_sm_info`.
    BadSmInfo {
        /// Number of the multiprocessor (`%smid`).
        smid,
        /// Kind of fault: `slow` or `wrong`.
        kind,
    }
    /// Labels of the metric `gpu_exporter_build_info`.
    BuildInfo {
        /// Version of the release.
        version,
        /// Source revision; `unknown` if built outside a checkout.
        revision,
    }
}
