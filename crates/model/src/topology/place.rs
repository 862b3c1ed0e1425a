//! Where each GPU sits: what is near it, by the PCI tree and the NUMA nodes. Pure arithmetic over the model.

use serde::Serialize;

pub use crate::catalog::DevicePath;
use crate::cpus::CpuSet;
use crate::topology::{Device, DeviceKind, Topology};

/// The device of a kind that is nearest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NearestDevice {
    /// Its PCI address.
    pub address: String,
    /// How near it is.
    pub path: DevicePath,
}

/// Where a GPU sits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GpuPlacement {
    /// PCI address of the GPU.
    pub address: String,
    /// NUMA node it is near to; `None`: not known.
    pub numa_node: Option<u32>,
    /// CPUs near it.
    pub cpus: CpuSet,
    /// Last-level caches of these CPUs, by number.
    pub l3: Vec<u32>,
    /// Package of its NUMA node; that of all its CPUs where no node is known and they are in one.
    pub package: Option<u32>,
    /// PCI address of the root port above it; `None` if the machine shows none, as many guests.
    pub root_port: Option<String>,
    /// PCI address (upstream port) of the lowest switch above it.
    pub switch: Option<String>,
    /// The network device nearest to it.
    pub nic: Option<NearestDevice>,
    /// The storage device nearest to it.
    pub storage: Option<NearestDevice>,
}

/// The place of every GPU, sorted by address. GPUs to which several devices are equally near get
/// different ones as far as there are, so that they do not all use the first.
pub fn gpus(topology: &Topology) -> Vec<GpuPlacement> {
    let of = |kind| topology.devices.iter().filter(move |device| device.kind == kind);
    let mut gpus: Vec<&Device> = of(DeviceKind::Gpu).collect();
    gpus.sort_by(|a, b| a.address.cmp(&b.address));
    let nics = nearest(topology, &gpus, &of(DeviceKind::Network).collect::<Vec<_>>());
    let storage = nearest(topology, &gpus, &of(DeviceKind::Storage).collect::<Vec<_>>());
    let around = nics.into_iter().zip(storage);
    gpus.into_iter().zip(around).map(|(gpu, (nic, storage))| place(topology, gpu, nic, storage)).collect()
}

/// Where the GPU at this PCI address sits, in whichever form it is written.
pub fn gpu(topology: &Topology, address: &str) -> Option<GpuPlacement> {
    let address = topology.gpu(address)?.address.clone();
    gpus(topology).into_iter().find(|place| place.address == address)
}

fn place(
    topology: &Topology,
    gpu: &Device,
    nic: Option<NearestDevice>,
    storage: Option<NearestDevice>,
) -> GpuPlacement {
    let cpus = near_cpus(topology, gpu);
    let package = gpu.numa_node.and_then(|index| {
        topology.numa_nodes.iter().find(|node| node.index == index).and_then(|node| node.package)
    });
    GpuPlacement {
        address: gpu.address.clone(),
        numa_node: gpu.numa_node,
        l3: l3_of(topology, &cpus),
        package: package.or_else(|| package_of(topology, &cpus)),
        root_port: gpu.bridges.first().cloned(),
        switch: switch(gpu).map(str::to_owned),
        nic,
        storage,
        cpus,
    }
}

/// CPUs near a device that may be used; all where the machine names none.
pub fn near_cpus(topology: &Topology, device: &Device) -> CpuSet {
    let near = device.cpus.and(&topology.cpus);
    if near.is_empty() { topology.cpus.clone() } else { near }
}

/// Last-level caches that these CPUs use, by number.
pub fn l3_of(topology: &Topology, cpus: &CpuSet) -> Vec<u32> {
    let used = topology.l3_groups.iter().filter(|group| !group.cpus.and(cpus).is_empty());
    used.map(|group| group.index).collect()
}

/// The package all of these CPUs are in.
fn package_of(topology: &Topology, cpus: &CpuSet) -> Option<u32> {
    let package = topology.packages.iter().find(|package| cpus.is_within(&package.cpus))?;
    (!cpus.is_empty()).then_some(package.index)
}

/// Upstream port of the lowest switch above a device. Below the root port each switch is two bridges: its upstream
/// port and one of its downstream ports.
pub fn switch(device: &Device) -> Option<&str> {
    let below_root = device.bridges.get(1..)?;
    below_root.iter().step_by(2).next_back().map(String::as_str)
}

/// For each GPU the device nearest to it. Each takes, of the nearest ones, that with the fewest GPUs so far.
fn nearest(topology: &Topology, gpus: &[&Device], devices: &[&Device]) -> Vec<Option<NearestDevice>> {
    let mut devices = devices.to_vec();
    devices.sort_by(|a, b| a.address.cmp(&b.address));
    let mut given = vec![0u32; devices.len()];
    let near = |gpu: &&Device| {
        let far = |device: &Device| far(topology, gpu, device);
        let at = (0..devices.len()).min_by_key(|at| (far(devices[*at]), given[*at], *at))?;
        given[at] += 1;
        Some(NearestDevice { address: devices[at].address.clone(), path: far(devices[at]).0 })
    };
    gpus.iter().map(near).collect()
}

/// How far apart two devices are: by what they share, and below one root port by the bridges they do not share.
fn far(topology: &Topology, one: &Device, other: &Device) -> (DevicePath, usize) {
    let shared = one.bridges.iter().zip(&other.bridges).take_while(|(a, b)| a == b).count();
    let apart = one.bridges.len().saturating_sub(shared);
    match shared {
        0 => {}
        1 => return (DevicePath::RootPort, 0),
        _ => return (DevicePath::Switch, apart),
    }
    let same_node = match (one.numa_node, other.numa_node) {
        (Some(one), Some(other)) => one == other,
        // With one node there is no other.
        _ => topology.numa_nodes.iter().filter(|node| !node.cpus.is_empty()).count() == 1,
    };
    (if same_node { DevicePath::NumaNode } else { DevicePath::System }, 0)
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{device, machine};
    use super::*;
    use crate::topology::DeviceKind::*;

    fn nics(topology: &Topology) -> Vec<(String, DevicePath)> {
        let nic = |place: GpuPlacement| place.nic.map(|near| (near.address, near.path));
        gpus(topology).into_iter().filter_map(nic).collect()
    }

    #[test]
    fn the_nearest_network_device_is_below_the_same_switch() {
        let mut topology = machine(&[("0-7", &["0-7"]), ("8-15", &["8-15"])]);
        // Two GPUs and a NIC below one switch, a NIC below its upper switch, one on the node, one on the other.
        topology.devices = vec![
            device(Network, "0000:00:01.0", Some(0), "0-7", &[]),
            device(Gpu, "0000:05:00.0", Some(0), "0-7", &["rp0", "up0", "down0", "up1", "down1"]),
            device(Gpu, "0000:06:00.0", Some(0), "0-7", &["rp0", "up0", "down0", "up1", "down2"]),
            device(Network, "0000:04:00.0", Some(0), "0-7", &["rp0", "up0", "down3"]),
            device(Network, "0000:07:00.0", Some(0), "0-7", &["rp0", "up0", "down0", "up1", "down4"]),
            device(Gpu, "0000:85:00.0", Some(1), "8-15", &["rp1"]),
            device(Network, "0000:86:00.0", Some(1), "8-15", &["rp2"]),
        ];
        let nic = |address: &str, path| (address.to_owned(), path);
        assert_eq!(
            nics(&topology),
            [
                nic("0000:07:00.0", DevicePath::Switch),
                nic("0000:07:00.0", DevicePath::Switch),
                nic("0000:86:00.0", DevicePath::NumaNode)
            ]
        );
        let first = gpu(&topology, "00000000:05:00.0").unwrap();
        assert_eq!(
            (first.root_port.as_deref(), first.switch.as_deref(), first.package, &*first.l3),
            (Some("rp0"), Some("up1"), Some(0), &[0][..])
        );
        let last = gpu(&topology, "0000:85:00.0").unwrap();
        assert_eq!(
            (last.root_port.as_deref(), last.switch, last.package, &*last.l3),
            (Some("rp1"), None, Some(1), &[1][..])
        );
        assert_eq!((last.storage, gpu(&topology, "0000:99:00.0")), (None, None));
    }

    #[test]
    fn equally_near_devices_are_dealt_round() {
        let mut topology = machine(&[("0-7", &["0-7"])]);
        for bus in 1..=5 {
            topology.devices.push(device(Gpu, &format!("0000:0{bus}:00.0"), Some(0), "0-7", &[]));
        }
        topology.devices.push(device(Network, "0000:0b:00.0", Some(0), "0-7", &[]));
        topology.devices.push(device(Network, "0000:0a:00.0", Some(0), "0-7", &[]));
        let addresses: Vec<String> = nics(&topology).into_iter().map(|(address, _)| address).collect();
        assert_eq!(
            addresses,
            ["0000:0a:00.0", "0000:0b:00.0", "0000:0a:00.0", "0000:0b:00.0", "0000:0a:00.0"]
        );
    }

    #[test]
    fn a_guest_that_tells_no_node_has_every_cpu_near() {
        let mut topology = machine(&[("0-7", &["0-7"]), ("8-15", &["8-15"])]);
        topology.devices = vec![
            device(Gpu, "0000:05:00.0", None, "0-15", &[]),
            device(Network, "0000:03:00.0", None, "", &[]),
        ];
        let place = gpu(&topology, "0000:05:00.0").unwrap();
        assert_eq!((place.numa_node, place.package, place.root_port, place.switch), (None, None, None, None));
        assert_eq!((place.cpus.to_string(), place.l3), ("0-15".into(), vec![0, 1]));
        assert_eq!(place.nic.unwrap().path, DevicePath::System, "nothing says that they are near");
    }
}
