//! Topology of the machine as plain data. The topology process creates it, and all other parts read it.

pub mod compare;
pub mod divide;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
pub mod place;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::cpus::CpuSet;

/// Discovered topology. Every update replaces the previous one.
#[derive(Clone, Debug, PartialEq)]
pub struct TopologyUpdate {
    pub topology: Arc<Topology>,
    /// Differences from the first topology of this machine, as text; `None` if the topologies were not compared.
    pub against_first_seen: Option<Vec<String>>,
    /// Differences from the declared topology, as text; `None` if none is declared, or if it cannot be read.
    pub against_declared: Option<Vec<String>>,
}

/// Topology of one machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Topology {
    /// Vendor and product of the machine (DMI); empty if unknown.
    pub machine: String,
    /// All CPUs that may be used.
    pub cpus: CpuSet,
    /// Packages (sockets), by number.
    pub packages: Vec<Package>,
    /// NUMA nodes with CPUs or memory, by number.
    pub numa_nodes: Vec<NumaNode>,
    /// Groups of CPUs that share a last-level cache, in the order of their first CPU.
    pub l3_groups: Vec<L3Group>,
    /// Cores with their hardware threads, in the order of their first CPU.
    pub cores: Vec<CpuSet>,
    /// PCI devices of interest (GPUs, NVSwitches, network, storage), in the order of their addresses.
    pub devices: Vec<Device>,
    /// Reasons for unknown values.
    pub notes: Vec<String>,
}

/// Package (socket) of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Package {
    /// Number of the package in the kernel.
    pub index: u32,
    pub cpus: CpuSet,
    /// Model of the processor; empty if unknown.
    pub model: String,
}

/// Kind of memory of a NUMA node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryKind {
    /// Memory of the processors.
    Dram,
    /// Memory of a GPU.
    Gpu,
    /// High-bandwidth memory next to the processors.
    Hbm,
    /// Persistent (non-volatile) memory of the machine.
    Nvm,
    /// Memory behind a CXL link.
    Cxl,
    /// The machine does not report the kind. In a node with CPUs, this is processor memory.
    #[default]
    Unknown,
}

/// NUMA node of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumaNode {
    /// Number of the node in the kernel.
    pub index: u32,
    /// CPUs of the node; empty for a node with only memory, such as GPU memory on Grace.
    pub cpus: CpuSet,
    /// Size of the memory in bytes.
    pub memory_bytes: u64,
    #[serde(default)]
    pub memory_kind: MemoryKind,
    /// PCI address of the GPU to which the memory belongs.
    #[serde(default)]
    pub gpu: Option<String>,
    /// Package of the node, if it belongs to one.
    pub package: Option<u32>,
}

impl NumaNode {
    /// Returns true if the memory is host memory, and not memory of a GPU or an extension that programs must request
    /// explicitly.
    pub fn is_host_memory(&self) -> bool {
        !self.cpus.is_empty() || self.memory_kind == MemoryKind::Dram
    }
}

/// CPUs that share a last-level cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct L3Group {
    /// Number of the cache, in the order of the first CPU of each cache.
    pub index: u32,
    pub cpus: CpuSet,
    /// Size of the cache in bytes.
    pub size_bytes: u64,
}

/// Kind of a PCI device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// NVIDIA GPU (3D or display controller).
    Gpu,
    /// NVSwitch (NVIDIA bridge of another class).
    Nvswitch,
    /// Network controller for Ethernet or InfiniBand.
    Network,
    /// Storage controller, such as NVMe.
    Storage,
}

/// PCI device of the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Device {
    pub kind: DeviceKind,
    /// PCI address in the form of sysfs, such as `0000:06:00.0`.
    pub address: String,
    /// Vendor and device, such as `10de:2335`.
    pub id: String,
    /// Names of the device in the kernel, such as `eth0`, `mlx5_0` or `nvme0n1`; empty for a GPU.
    pub names: Vec<String>,
    /// NUMA node near the device; `None` if unknown (`-1` in a virtual machine), which means that all nodes are
    /// equally near.
    pub numa_node: Option<u32>,
    /// CPUs near the device: the CPUs of its NUMA node, or all CPUs if the node is unknown.
    pub cpus: CpuSet,
    /// Addresses of the bridges above the device, from the root port down; empty for a device directly at the root
    /// complex.
    pub bridges: Vec<String>,
    /// PCIe link of the device; `None` if sysfs does not report it.
    pub link: Option<Link>,
    /// Capability of the port (slot or switch) above the device.
    pub port: Option<LinkCapability>,
    /// State of a network device; `None` for other devices.
    pub network: Option<Network>,
}

/// Capability of one end of a PCIe link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkCapability {
    /// PCIe generation; generation 5 is 32 GT/s.
    pub generation: u8,
    pub lanes: u8,
}

/// PCIe link, as reported by the device at its lower end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Maximum that the device supports.
    pub most: LinkCapability,
    /// Current state of the link. An idle GPU may lower the generation, but never the width.
    pub now: LinkCapability,
}

/// State of a network device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Network {
    /// Name of the interface, as in the label `device` of node_exporter; empty without an interface.
    pub interface: String,
    /// Name of the RDMA device; empty without RDMA.
    pub rdma: String,
    /// True if the device can carry traffic: the interface is up with a carrier, or the InfiniBand port is active.
    pub up: Option<bool>,
    /// Link rate in bytes per second and direction.
    pub bytes_per_second: Option<f64>,
    /// True if the link was up at any earlier discovery. A link that fails remains the link that its GPUs use.
    #[serde(default)]
    pub was_up: bool,
}

impl Device {
    /// Returns the name of a network device: the RDMA device, or else the interface, or else the PCI address.
    pub fn network_name(&self) -> &str {
        let names = self.network.as_ref().map(|network| [network.rdma.as_str(), network.interface.as_str()]);
        names.into_iter().flatten().find(|name| !name.is_empty()).unwrap_or(&self.address)
    }
}

impl Network {
    /// Adopts from an earlier discovery that the link was up.
    pub fn remember(&mut self, before: &Network) {
        self.was_up |= before.was_up || before.up == Some(true);
    }

    /// Forgets the current state, because it is no longer known.
    pub fn forget_state(&mut self) {
        self.was_up |= self.up == Some(true);
        (self.up, self.bytes_per_second) = (None, None);
    }
}

impl Topology {
    /// Adopts from an earlier discovery of this machine which links were up.
    pub fn remember_networks(&mut self, before: &Topology) {
        for device in &mut self.devices {
            let known = before.devices.iter().find(|known| known.address == device.address);
            let before = known.and_then(|known| known.network.as_ref());
            if let Some((network, before)) = device.network.as_mut().zip(before) {
                network.remember(before);
            }
        }
    }

    /// Returns the GPU with this PCI address, in any form (such as `00000000:06:00.0`, in upper or lower case).
    pub fn gpu(&self, address: &str) -> Option<&Device> {
        let wanted = crate::pci::pci_address(address)?;
        let mut gpus = self.devices.iter().filter(|device| device.kind == DeviceKind::Gpu);
        gpus.find(|gpu| crate::pci::pci_address(&gpu.address).as_ref() == Some(&wanted))
    }
}
