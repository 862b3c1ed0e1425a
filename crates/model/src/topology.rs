//! What was found of the machine, as plain data: made by the topology process, read by everybody else.

pub mod compare;
pub mod divide;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
pub mod place;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::cpus::CpuSet;

/// The topology as found. Each update replaces the one before.
#[derive(Clone, Debug, PartialEq)]
pub struct TopologyUpdate {
    /// What was found.
    pub topology: Arc<Topology>,
    /// Differences from the first topology of this machine, as text; `None`: not compared.
    pub against_first_seen: Option<Vec<String>>,
    /// What differs from the declared one; `None`: none is declared, or it cannot be read.
    pub against_declared: Option<Vec<String>>,
}

/// One machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Topology {
    /// What the machine calls itself (DMI vendor and product), empty if it does not.
    pub machine: String,
    /// Every CPU that may be used.
    pub cpus: CpuSet,
    /// Packages (sockets), by number.
    pub packages: Vec<Package>,
    /// NUMA nodes with CPUs or memory, by number.
    pub numa_nodes: Vec<NumaNode>,
    /// Groups of CPUs that share a last-level cache, in the order of their first CPU.
    pub l3_groups: Vec<L3Group>,
    /// Cores, each with its hardware threads, in the order of their first CPU.
    pub cores: Vec<CpuSet>,
    /// PCI devices of interest (GPUs, NVSwitches, network, storage) in the order of their addresses.
    pub devices: Vec<Device>,
    /// Why something is unknown.
    pub notes: Vec<String>,
}

/// A socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Package {
    /// The kernel's number.
    pub index: u32,
    /// Its CPUs.
    pub cpus: CpuSet,
    /// Model of the processor; empty if unknown.
    pub model: String,
}

/// Kind of a NUMA node's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryKind {
    /// Memory of the processors.
    Dram,
    /// Memory of a GPU.
    Gpu,
    /// High-bandwidth memory beside the processors.
    Hbm,
    /// Non-volatile memory.
    Nvm,
    /// Memory behind a CXL link.
    Cxl,
    /// The machine does not name the kind: of a node with CPUs memory of the processors.
    #[default]
    Unknown,
}

/// A NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumaNode {
    /// The kernel's number.
    pub index: u32,
    /// Its CPUs; none for a node of memory alone (as the memory of a GPU on Grace).
    pub cpus: CpuSet,
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Kind of the memory.
    #[serde(default)]
    pub memory_kind: MemoryKind,
    /// PCI address of the GPU that the memory belongs to.
    #[serde(default)]
    pub gpu: Option<String>,
    /// Package it is in, where it is in one.
    pub package: Option<u32>,
}

impl NumaNode {
    /// Whether the memory is host memory, and not that of a GPU or an extension that only who asks for it gets.
    pub fn is_host_memory(&self) -> bool {
        !self.cpus.is_empty() || self.memory_kind == MemoryKind::Dram
    }
}

/// CPUs that share a last-level cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct L3Group {
    /// Its number, counted in the order of the first CPU.
    pub index: u32,
    /// Its CPUs.
    pub cpus: CpuSet,
    /// Size of the cache, in bytes.
    pub size_bytes: u64,
}

/// What a PCI device is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// An NVIDIA GPU (3D or display controller).
    Gpu,
    /// An NVSwitch (NVIDIA bridge of another class).
    Nvswitch,
    /// A network controller: Ethernet or InfiniBand.
    Network,
    /// A storage controller, as NVMe.
    Storage,
}

/// A PCI device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// What it is for.
    pub kind: DeviceKind,
    /// PCI address in sysfs's form: `0000:06:00.0`.
    pub address: String,
    /// Vendor and device, as `10de:2335`.
    pub id: String,
    /// Names of the kernel for it: `eth0`, `mlx5_0`, `nvme0n1`. Empty for a GPU.
    pub names: Vec<String>,
    /// NUMA node it is near to. `None`: not known (`-1` in a virtual machine): every node is as near.
    pub numa_node: Option<u32>,
    /// CPUs near it: those of its NUMA node, or all where none is known.
    pub cpus: CpuSet,
    /// Addresses of the bridges above it, from the root port down: empty right at the root complex.
    pub bridges: Vec<String>,
    /// What its PCIe link can do and does; `None` where sysfs has no answer.
    pub link: Option<Link>,
    /// What the port above it (slot, switch) can do.
    pub port: Option<LinkCapability>,
    /// State of a network device; `None` for others.
    pub network: Option<Network>,
}

/// What one end of a PCIe link can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkCapability {
    /// Generation: 5 is 32 GT/s.
    pub generation: u8,
    /// Lanes.
    pub lanes: u8,
}

/// A PCIe link, as the device at its lower end has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// What the device can do.
    pub most: LinkCapability,
    /// What it has trained to; a GPU at rest may lower the generation, never the width.
    pub now: LinkCapability,
}

/// State of a network device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Network {
    /// Name of the interface, as node_exporter's label `device` has it; empty if it has none.
    pub interface: String,
    /// Name of the RDMA device; empty if it has none.
    pub rdma: String,
    /// Whether it can carry traffic: the interface is up with a carrier, or the InfiniBand port is active.
    pub up: Option<bool>,
    /// Rate of the link in bytes per second, one way.
    pub bytes_per_second: Option<f64>,
    /// Whether it was up at any earlier look: a link that fails stays the one that its GPUs use.
    #[serde(default)]
    pub was_up: bool,
}

impl Device {
    /// The name of a network device: its RDMA device, else its interface, else its PCI address.
    pub fn network_name(&self) -> &str {
        let names = self.network.as_ref().map(|network| [network.rdma.as_str(), network.interface.as_str()]);
        names.into_iter().flatten().find(|name| !name.is_empty()).unwrap_or(&self.address)
    }
}

impl Network {
    /// Takes over from an earlier look whether the link was up.
    pub fn remember(&mut self, before: &Network) {
        self.was_up |= before.was_up || before.up == Some(true);
    }

    /// The state is not known any more.
    pub fn forget_state(&mut self) {
        self.was_up |= self.up == Some(true);
        (self.up, self.bytes_per_second) = (None, None);
    }
}

impl Topology {
    /// Takes over from an earlier look at this machine which links were up.
    pub fn remember_networks(&mut self, before: &Topology) {
        for device in &mut self.devices {
            let known = before.devices.iter().find(|known| known.address == device.address);
            let before = known.and_then(|known| known.network.as_ref());
            if let Some((network, before)) = device.network.as_mut().zip(before) {
                network.remember(before);
            }
        }
    }

    /// The GPU at this PCI address, in whichever form it is written (`00000000:06:00.0`, upper or lower case).
    pub fn gpu(&self, address: &str) -> Option<&Device> {
        let wanted = crate::pci::pci_address(address)?;
        let mut gpus = self.devices.iter().filter(|device| device.kind == DeviceKind::Gpu);
        gpus.find(|gpu| crate::pci::pci_address(&gpu.address).as_ref() == Some(&wanted))
    }
}
