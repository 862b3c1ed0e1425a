//! Placement of every GPU: its surroundings according to the PCI tree and the NUMA nodes. Pure calculations on the
//! model.

use serde::Serialize;

pub use crate::catalog::DevicePath;
use crate::cpus::CpuSet;
use crate::topology::{Device, DeviceKind, Topology};

/// Nearest device of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NearestDevice {
    /// PCI address of the device.
    pub address: String,
    /// Common part of the paths to the device and the GPU.
    pub path: DevicePath,
}

/// Placement of a GPU in the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GpuPlacement {
    /// PCI address of the GPU.
    pub address: String,
    /// NUMA node near the GPU; `None` if unknown.
    pub numa_node: Option<u32>,
    /// CPUs near the GPU.
    pub cpus: CpuSet,
    /// Last-level caches of these CPUs, by number.
    pub l3: Vec<u32>,
    /// Package of the NUMA node. If the node is unknown, the package that contains all CPUs near the GPU, if there is
    /// one.
    pub package: Option<u32>,
    /// PCI address of the root port above the GPU; `None` if the machine reports none, like many guests.
    pub root_port: Option<String>,
    /// PCI address (upstream port) of the lowest switch above the GPU.
    pub switch: Option<String>,
    /// Network device nearest to the GPU.
    pub nic: Option<NearestDevice>,
    /// Storage device nearest to the GPU.
    pub storage: Option<NearestDevice>,
}

/// Returns the placements of all GPUs, sorted by address. If several devices are equally near to several GPUs, the
/// GPUs get different devices as far as possible, so that not all of them use the first device.
pub fn gpus(topology: &Topology) -> Vec<GpuPlacement> {
    let of = |kind| topology.devices.iter().filter(move |device| device.kind == kind);
    let mut gpus: Vec<&Device> = of(DeviceKind::Gpu).collect();
    gpus.sort_by(|a, b| a.address.cmp(&b.address));
    let nics = nearest(topology, &gpus, &of(DeviceKind::Network).collect::<Vec<_>>(), preference);
    let storage =
        nearest(topology, &gpus, &of(DeviceKind::Storage).collect::<Vec<_>>(), |_| Preference::default());
    let around = nics.into_iter().zip(storage);
    gpus.into_iter().zip(around).map(|(gpu, (nic, storage))| place(topology, gpu, nic, storage)).collect()
}

/// Returns the placement of the GPU with this PCI address, in any form.
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

/// Returns the usable CPUs near a device, or all CPUs if the machine reports none.
pub fn near_cpus(topology: &Topology, device: &Device) -> CpuSet {
    let near = device.cpus.and(&topology.cpus);
    if near.is_empty() { topology.cpus.clone() } else { near }
}

/// Returns the numbers of the last-level caches that these CPUs use.
pub fn l3_of(topology: &Topology, cpus: &CpuSet) -> Vec<u32> {
    let used = topology.l3_groups.iter().filter(|group| !group.cpus.and(cpus).is_empty());
    used.map(|group| group.index).collect()
}

/// Returns the package that contains all of these CPUs.
pub fn package_of(topology: &Topology, cpus: &CpuSet) -> Option<u32> {
    let package = topology.packages.iter().find(|package| cpus.is_within(&package.cpus))?;
    (!cpus.is_empty()).then_some(package.index)
}

/// Returns the upstream port of the lowest switch above a device. Below the root port, every switch consists of two
/// bridges: its upstream port and one of its downstream ports.
pub fn switch(device: &Device) -> Option<&str> {
    let below_root = device.bridges.get(1..)?;
    below_root.iter().step_by(2).next_back().map(String::as_str)
}

/// Criteria for a device in addition to its distance; less is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Preference {
    /// True if the device does not support RDMA.
    no_rdma: bool,
    /// 0 if the link is or was up, 1 if its state is unknown, 2 if it was never up.
    link: u8,
}

/// Returns the preference for a network device. Work across nodes uses RDMA links that are up. A link that was up
/// earlier counts as up, so that a working link of a neighbor does not replace the GPU's own failed link.
fn preference(nic: &Device) -> Preference {
    let network = nic.network.as_ref();
    let link = match network.map(|network| (network.was_up, network.up)) {
        Some((true, _) | (_, Some(true))) => 0,
        Some((false, None)) | None => 1,
        Some((false, Some(false))) => 2,
    };
    Preference { no_rdma: network.is_some_and(|network| network.rdma.is_empty()), link }
}

/// Returns the nearest device of every GPU, among the preferred devices. A device below the GPU's own switch or root
/// port belongs to the GPU by design, regardless of the state of its link. Among equally near devices, a GPU gets the
/// one with the fewest GPUs so far.
fn nearest(
    topology: &Topology,
    gpus: &[&Device],
    devices: &[&Device],
    preference: impl Fn(&Device) -> Preference,
) -> Vec<Option<NearestDevice>> {
    let mut devices = devices.to_vec();
    devices.sort_by(|a, b| a.address.cmp(&b.address));
    let mut given = vec![0u32; devices.len()];
    let near = |gpu: &&Device| {
        let far = |device: &Device| far(topology, gpu, device);
        let rank = |at: &usize| {
            let (Preference { no_rdma, link }, (path, apart)) = (preference(devices[*at]), far(devices[*at]));
            let by_design = matches!(path, DevicePath::Switch | DevicePath::RootPort);
            (no_rdma, if by_design { 0 } else { link }, path, apart, link, given[*at], *at)
        };
        let at = (0..devices.len()).min_by_key(rank)?;
        given[at] += 1;
        Some(NearestDevice { address: devices[at].address.clone(), path: far(devices[at]).0 })
    };
    gpus.iter().map(near).collect()
}

/// Returns the distance of two devices: their common part, and below one root port the number of bridges that they do
/// not share.
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
        // If there is only one node, both devices are near it.
        _ => topology.numa_nodes.iter().filter(|node| !node.cpus.is_empty()).count() == 1,
    };
    if same_node {
        return (DevicePath::NumaNode, 0);
    }
    let package = |device| package_of(topology, &near_cpus(topology, device));
    let same_package = package(one).is_some_and(|package_of_one| package(other) == Some(package_of_one));
    (DevicePath::System, usize::from(!same_package))
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{cpus, device, machine};
    use super::*;
    use crate::topology::DeviceKind::*;
    use crate::topology::Network as Link;

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

    /// A network device of this name: an RDMA device if it is one of `mlx5`.
    fn nic(address: &str, node: u32, bridges: &[&str], name: &str, up: Option<bool>) -> Device {
        let near = if node == 0 { "0-7" } else { "8-15" };
        let rdma = name.starts_with("mlx5");
        let network = Link {
            interface: if rdma { String::new() } else { name.into() },
            rdma: if rdma { name.into() } else { String::new() },
            up,
            bytes_per_second: None,
            was_up: false,
        };
        Device { network: Some(network), ..device(Network, address, Some(node), near, bridges) }
    }

    #[test]
    fn links_that_are_up_and_speak_rdma_are_preferred() {
        let found = |nics_: Vec<Device>| {
            let mut topology = machine(&[("0-7", &["0-7"]), ("8-15", &["8-15"])]);
            topology.devices = vec![device(Gpu, "0000:05:00.0", Some(0), "0-7", &["rp0", "up0", "down0"])];
            topology.devices.extend(nics_);
            nics(&topology).remove(0)
        };
        let of = |address: &str, path| (address.to_owned(), path);
        let management = nic("0000:01:00.0", 0, &[], "eno1", Some(true));
        let other_port = nic("0000:02:00.0", 0, &[], "mlx5_0", Some(false));
        let cabled = nic("0000:02:00.1", 0, &[], "mlx5_1", Some(true));
        let all = vec![management.clone(), other_port.clone(), cabled.clone()];
        assert_eq!(found(all), of("0000:02:00.1", DevicePath::NumaNode));
        let far = nic("0000:82:00.0", 1, &[], "mlx5_2", Some(true));
        let all = vec![management.clone(), other_port.clone(), far.clone()];
        assert_eq!(found(all), of("0000:82:00.0", DevicePath::System), "the near one was never up");
        let mut failed = other_port;
        failed.network.as_mut().unwrap().was_up = true;
        assert_eq!(found(vec![management, failed, far.clone()]), of("0000:02:00.0", DevicePath::NumaNode));
        let own = nic("0000:06:00.0", 0, &["rp0", "up0", "down1"], "mlx5_3", Some(false));
        assert_eq!(found(vec![cabled.clone(), own]), of("0000:06:00.0", DevicePath::Switch), "by design");
        let unknown = nic("0000:82:00.1", 1, &[], "mlx5_4", None);
        assert_eq!(found(vec![unknown, far]), of("0000:82:00.0", DevicePath::System));
    }

    #[test]
    fn of_two_far_devices_that_of_the_same_package_is_nearer() {
        // Two nodes in each package.
        let mut topology =
            machine(&[("0-3", &["0-3"]), ("4-7", &["4-7"]), ("8-11", &["8-11"]), ("12-15", &["12-15"])]);
        topology.packages.truncate(2);
        (topology.packages[0].cpus, topology.packages[1].cpus) = (cpus("0-7"), cpus("8-15"));
        topology.devices = vec![
            device(Gpu, "0000:85:00.0", Some(2), "8-11", &[]),
            device(Network, "0000:01:00.0", Some(0), "0-3", &[]),
            device(Network, "0000:86:00.0", Some(3), "12-15", &[]),
        ];
        assert_eq!(nics(&topology), [("0000:86:00.0".to_owned(), DevicePath::System)]);
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
