//! Properties of PCI devices that hwloc does not report: the NUMA node as the kernel reports it, both ends of the link,
//! and the state of network devices.

use std::fs;
use std::path::{Path, PathBuf};

use super::{DeviceState, Links};
use host::Host;
use model::cpus::CpuSet;
use model::topology::{DeviceKind, Link, LinkCapability, Network, Topology};

const DEVICES: &str = "/sys/bus/pci/devices";
/// Maximum number of bytes read from a file. All files have one line.
const MOST: u64 = 4096;

/// Adds the properties from sysfs to a topology from hwloc.
pub(super) fn complete(host: &Host, topology: &mut Topology) {
    let before = topology.devices.len();
    // Virtual functions are assigned to guests and pods, so the map shows only the physical device.
    topology.devices.retain(|device| !is_virtual_function(host, &device.address));
    match before - topology.devices.len() {
        0 => {}
        left_out => topology.notes.push(format!("{left_out} virtual functions of PCI devices are not shown")),
    }
    for node in &mut topology.numa_nodes {
        // The kernel lists the CPUs that belong to the node; hwloc reports the CPUs near it.
        let list = host.path(format!("/sys/devices/system/node/node{}/cpulist", node.index));
        if let Some(Ok(cpus)) = line(&list).map(|list| list.parse::<CpuSet>()) {
            node.cpus = cpus.and(&topology.cpus);
        }
    }
    let nodes = topology.numa_nodes.clone();
    for device in &mut topology.devices {
        let known = number::<i64>(&folder(host, &device.address).join("numa_node"));
        // The kernel reports -1 if the firmware does not describe the node, as in most guests.
        device.numa_node = known.and_then(|node| u32::try_from(node).ok());
        let node = nodes.iter().find(|node| Some(node.index) == device.numa_node);
        match node {
            Some(node) if !node.cpus.is_empty() => device.cpus = node.cpus.clone(),
            Some(_) => {}
            None if device.cpus.is_empty() => device.cpus = topology.cpus.clone(),
            None => {}
        }
        state(host, &device.address, device.kind).apply(device);
        if let Some(network) = &device.network {
            device.names =
                [&network.interface, &network.rdma].into_iter().filter(|n| !n.is_empty()).cloned().collect();
        }
    }
    if topology.devices.iter().any(|d| d.kind == DeviceKind::Gpu && d.numa_node.is_none())
        && topology.numa_nodes.len() > 1
    {
        topology.notes.push("the machine does not report the NUMA node of its GPUs".to_owned());
    }
    let far = addresses(host).iter().filter(|address| address.find(':').is_some_and(|at| at > 4)).count();
    if far > 0 {
        topology.notes.push(format!("{far} PCI devices with a domain above ffff are not shown"));
    }
}

/// Reads links and network devices, ordered by address.
pub(super) fn links(host: &Host) -> Links {
    let mut addresses = addresses(host);
    addresses.sort();
    let states = addresses.into_iter().filter_map(|address| {
        let folder = folder(host, &address);
        // Classifies devices the same way as `machine`. Devices that hwloc identifies by their driver pass this filter
        // too.
        let class = hexadecimal(&folder.join("class"))?;
        let kind = super::kind(hexadecimal(&folder.join("vendor")).unwrap_or(0), class >> 8)?;
        (address.find(':') == Some(4) && !is_virtual_function(host, &address))
            .then(|| state(host, &address, kind))
    });
    Links(states.collect())
}

fn addresses(host: &Host) -> Vec<String> {
    let entries = fs::read_dir(host.path(DEVICES)).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn folder(host: &Host, address: &str) -> PathBuf {
    host.path(DEVICES).join(address)
}

fn is_virtual_function(host: &Host, address: &str) -> bool {
    fs::symlink_metadata(folder(host, address).join("physfn")).is_ok()
}

fn state(host: &Host, address: &str, kind: DeviceKind) -> DeviceState {
    let folder = folder(host, address);
    let most = capability(&folder, "max");
    let now = capability(&folder, "current");
    DeviceState {
        address: address.to_owned(),
        link: most.zip(now).map(|(most, now)| Link { most, now }),
        port: port(&folder).and_then(|port| capability(&port, "max")),
        network: (kind == DeviceKind::Network).then(|| network(host, &folder)),
    }
}

/// Returns the sysfs directory of the port above a device. sysfs nests the directory of a device in that of its bridge.
fn port(folder: &Path) -> Option<PathBuf> {
    let real = fs::canonicalize(folder).ok()?;
    let above = real.parent()?;
    above.join("vendor").exists().then(|| above.to_owned())
}

fn capability(folder: &Path, which: &str) -> Option<LinkCapability> {
    let generation = generation(&line(&folder.join(format!("{which}_link_speed")))?)?;
    let lanes = number(&folder.join(format!("{which}_link_width")))?;
    // The width is 0 without a link, and 255 if the device does not report it.
    (1..=32).contains(&lanes).then_some(LinkCapability { generation, lanes })
}

/// Returns the PCIe generation for a link speed in the kernel's format: `32.0 GT/s PCIe`, or `8 GT/s` on old kernels.
fn generation(text: &str) -> Option<u8> {
    let (rate, _) = text.split_once(" GT/s")?;
    match rate.trim() {
        "2.5" => Some(1),
        "5" | "5.0" => Some(2),
        "8" | "8.0" => Some(3),
        "16" | "16.0" => Some(4),
        "32" | "32.0" => Some(5),
        "64" | "64.0" => Some(6),
        "128" | "128.0" => Some(7),
        _ => None,
    }
}

/// Reads the first interface and the first RDMA device of a PCI device. virtio devices nest them one directory deeper.
fn network(host: &Host, folder: &Path) -> Network {
    let mut places = vec![folder.to_owned()];
    places.extend(
        children(folder).into_iter().filter(|name| name.starts_with("virtio")).map(|n| folder.join(n)),
    );
    let first = |class: &str| {
        let mut names = places.iter().flat_map(|place| children(&place.join(class)));
        names.next().unwrap_or_default()
    };
    let (interface, rdma) = (first("net"), first("infiniband"));
    // On Ethernet the state of the interface is more accurate: the RDMA device is active even without a peer.
    let (up, bytes_per_second) = match rdma_state(host, &rdma) {
        (infiniband, state) if infiniband || interface.is_empty() => state,
        _ => interface_state(host, &interface),
    };
    Network { interface, rdma, up, bytes_per_second, was_up: false }
}

fn interface_state(host: &Host, interface: &str) -> (Option<bool>, Option<f64>) {
    if interface.is_empty() {
        return (None, None);
    }
    let folder = host.path("/sys/class/net").join(interface);
    let Some(state) = line(&folder.join("operstate")) else { return (None, None) };
    // The carrier of a disabled interface cannot be read. Some drivers report only a carrier and the state `unknown`.
    let carrier = line(&folder.join("carrier")).is_some_and(|carrier| carrier == "1");
    let up = carrier && matches!(state.as_str(), "up" | "unknown");
    let megabits = number::<i64>(&folder.join("speed")).filter(|speed| *speed > 0 && up);
    (Some(up), megabits.map(|megabits| megabits as f64 * 1e6 / 8.0))
}

/// Combines all ports of an RDMA device. Returns whether any port is InfiniBand, whether any port is active, and the
/// rate of the fastest active port in bytes per second.
fn rdma_state(host: &Host, rdma: &str) -> (bool, (Option<bool>, Option<f64>)) {
    let (mut infiniband, mut up, mut bytes_per_second) = (false, None, None);
    let folder = host.path("/sys/class/infiniband").join(rdma).join("ports");
    for port in children(&folder).iter().filter(|_| !rdma.is_empty()).map(|port| folder.join(port)) {
        infiniband |= line(&port.join("link_layer")).is_some_and(|layer| layer == "InfiniBand");
        let Some(state) = line(&port.join("state")) else { continue };
        let active = state.ends_with("ACTIVE");
        up = Some(active || up == Some(true));
        if let Some(rate) = line(&port.join("rate")).filter(|_| active).and_then(|text| gigabits(&text)) {
            bytes_per_second = Some(bytes_per_second.unwrap_or(0.0_f64).max(rate * 1e9 / 8.0));
        }
    }
    (infiniband, (up, bytes_per_second))
}

/// Parses the rate in Gb/s from text such as `400 Gb/sec (4X NDR)`.
fn gigabits(text: &str) -> Option<f64> {
    let rate: f64 = text.split_once(" Gb/sec")?.0.trim().parse().ok()?;
    (rate > 0.0 && rate < 1e6).then_some(rate)
}

/// Returns the sorted names in a directory, or an empty list if it cannot be read.
fn children(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Reads a file of one line and trims it.
fn line(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut text = String::new();
    fs::File::open(path).ok()?.take(MOST).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}

fn number<N: std::str::FromStr>(path: &Path) -> Option<N> {
    line(path)?.parse().ok()
}

fn hexadecimal(path: &Path) -> Option<u32> {
    u32::from_str_radix(line(path)?.strip_prefix("0x")?, 16).ok()
}
