//! Text forms of sizes, links and devices, shared by all drawings of the machine.

use model::topology::{Device, DeviceKind, LinkCapability, MemoryKind, NumaNode};

/// Formats a size in bytes, such as `64 GiB`.
pub fn size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(shift, _)| bytes >> shift > 0) {
        Some((shift, unit)) => {
            let value = bytes as f64 / (1u64 << shift) as f64;
            if value < 10.0 && value.fract() >= 0.05 {
                format!("{value:.1} {unit}")
            } else {
                format!("{value:.0} {unit}")
            }
        }
        None => format!("{bytes} B"),
    }
}

/// Formats memory of this kind, such as `96 GiB GPU memory`, or `64 GiB` for DRAM.
fn memory(bytes: u64, kind: MemoryKind) -> String {
    let name = match kind {
        MemoryKind::Dram | MemoryKind::Unknown => "",
        MemoryKind::Gpu => " GPU memory",
        MemoryKind::Hbm => " HBM",
        MemoryKind::Nvm => " NVM",
        MemoryKind::Cxl => " CXL memory",
    };
    format!("{}{name}", size(bytes))
}

/// Formats the memory of a NUMA node, such as `96 GiB GPU memory of GPU 3`. `name` returns the name of the GPU at a PCI
/// address.
pub fn node_memory(node: &NumaNode, name: impl Fn(&str) -> Option<String>) -> String {
    let memory = memory(node.memory_bytes, node.memory_kind);
    match &node.gpu {
        Some(gpu) => format!("{memory} of {}", name(gpu).unwrap_or_else(|| format!("GPU at {gpu}"))),
        None => memory,
    }
}

/// Formats the total host memory of all nodes, followed by the other memory by kind.
pub fn machine_memory(nodes: &[NumaNode]) -> Vec<String> {
    let sum = |wanted: &dyn Fn(&&NumaNode) -> bool| -> u64 {
        nodes.iter().filter(wanted).map(|node| node.memory_bytes).sum()
    };
    let mut parts = vec![size(sum(&|node| node.is_host_memory()))];
    for kind in [MemoryKind::Gpu, MemoryKind::Hbm, MemoryKind::Nvm, MemoryKind::Cxl] {
        let bytes = sum(&|node| !node.is_host_memory() && node.memory_kind == kind);
        parts.extend((bytes > 0).then(|| memory(bytes, kind)));
    }
    let bytes = sum(&|node| !node.is_host_memory() && node.memory_kind == MemoryKind::Unknown);
    parts.extend((bytes > 0).then(|| format!("{} of unknown kind", size(bytes))));
    parts
}

/// Formats a count with its noun, such as `1 core` or `8 cores`.
pub fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Formats a link, such as `PCIe 5 x16`, or `PCIe 5 x8 of x16` if the link has fewer lanes than device and port
/// support. A lower current generation appears as `(now 1)` but is no fault, because idle links drop to a lower one.
/// Returns an empty string if the link is unknown.
pub fn link(device: &Device) -> String {
    let Some(link) = device.link else { return String::new() };
    let could = could(device).unwrap_or(link.most);
    let width = match link.now.lanes < could.lanes {
        true => format!("x{} of x{}", link.now.lanes, could.lanes),
        false => format!("x{}", link.now.lanes),
    };
    let now = match link.now.generation < could.generation {
        true => format!(" (now {})", link.now.generation),
        false => String::new(),
    };
    format!("PCIe {}{now} {width}", could.generation)
}

/// Returns true if the link has fewer lanes than device and port support.
pub fn is_narrow(device: &Device) -> bool {
    device.link.zip(could(device)).is_some_and(|(link, could)| link.now.lanes < could.lanes)
}

/// Returns the best link that both the device and the port support.
fn could(device: &Device) -> Option<LinkCapability> {
    let most = device.link?.most;
    let port = device.port.unwrap_or(most);
    Some(LinkCapability {
        generation: most.generation.min(port.generation),
        lanes: most.lanes.min(port.lanes),
    })
}

/// Returns the kernel's names of a device, such as `mlx5_0 ib0` or `nvme0n1`, or its kind if it has no name.
pub fn names(device: &Device) -> String {
    if !device.names.is_empty() {
        return device.names.join(" ");
    }
    match device.kind {
        DeviceKind::Gpu => "GPU",
        DeviceKind::Nvswitch => "NVSwitch",
        DeviceKind::Network => "network device",
        DeviceKind::Storage => "storage device",
    }
    .to_owned()
}

/// Formats a group of identical devices as a count and a name. A single device is formatted without the count.
pub fn many(devices: &[&Device]) -> String {
    match devices {
        [] => String::new(),
        [one] => names(one),
        [first, ..] => format!("{} × {}", devices.len(), names(first)),
    }
}

/// Formats the addresses of a group as the first and the last address.
pub fn addresses<'a>(mut addresses: impl Iterator<Item = &'a str>) -> String {
    match (addresses.next(), addresses.last()) {
        (Some(first), Some(last)) => format!("{first} … {last}"),
        (first, _) => first.unwrap_or_default().to_owned(),
    }
}

/// Formats a bridge by its addresses from the root down, such as `root port 0000:00:01.0 ▸ switch 0000:01:00.0`.
pub fn bridge<'a>(root: bool, addresses: impl Iterator<Item = &'a str>) -> String {
    let name = |at| if root && at == 0 { "root port" } else { "switch" };
    let named = addresses.enumerate().map(|(at, address)| format!("{} {address}", name(at)));
    named.collect::<Vec<_>>().join(" ▸ ")
}

/// Formats the state of a network device, such as `up, 400 Gb/s`. Returns an empty string for other devices and if the
/// state is unknown.
pub fn network(device: &Device) -> String {
    let Some(network) = &device.network else { return String::new() };
    let state = network.up.map(|up| if up { "up" } else { "down" }.to_owned());
    // Link rates are advertised in bits per second.
    let rate = network.bytes_per_second.filter(|rate| *rate > 0.0).map(|rate| match rate * 8.0 / 1e9 {
        gigabits if gigabits >= 1.0 => format!("{gigabits:.0} Gb/s"),
        gigabits => format!("{:.0} Mb/s", gigabits * 1e3),
    });
    state.into_iter().chain(rate).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::topology::fixtures::device;
    use model::topology::{Link, Network};

    #[test]
    fn sizes_are_short() {
        for (bytes, text) in [
            (0, "0 B"),
            (32 << 20, "32 MiB"),
            (3 << 39, "1.5 TiB"),
            (810_234_351_616, "755 GiB"),
            (1 << 40, "1 TiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
        assert_eq!((count(1, "core"), count(0, "core")), ("1 core".into(), "0 cores".into()));
    }

    #[test]
    fn a_link_is_compared_with_what_both_ends_can_do() {
        let of = |generation, lanes| LinkCapability { generation, lanes };
        let link_of = |most, now, port| {
            let gpu = Device {
                link: Some(Link { most, now }),
                port,
                ..device(DeviceKind::Gpu, "a", None, "", &[])
            };
            (link(&gpu), is_narrow(&gpu))
        };
        assert_eq!(link_of(of(5, 16), of(5, 16), Some(of(5, 16))), ("PCIe 5 x16".into(), false));
        assert_eq!(link_of(of(5, 16), of(1, 8), Some(of(4, 16))), ("PCIe 4 (now 1) x8 of x16".into(), true));
        assert_eq!(
            link_of(of(5, 16), of(5, 8), Some(of(5, 8))),
            ("PCIe 5 x8".into(), false),
            "the slot has no more"
        );
        assert_eq!(link_of(of(3, 16), of(3, 16), None), ("PCIe 3 x16".into(), false));
    }

    #[test]
    fn a_network_device_tells_its_state_and_rate() {
        let with = |up, bytes_per_second| {
            let network =
                Network { interface: "".into(), rdma: "".into(), up, bytes_per_second, was_up: false };
            network_of(Some(network))
        };
        fn network_of(network: Option<Network>) -> String {
            super::network(&Device { network, ..device(DeviceKind::Network, "a", None, "", &[]) })
        }
        assert_eq!(with(Some(true), Some(50e9)), "up, 400 Gb/s");
        assert_eq!(with(Some(false), None), "down");
        assert_eq!(with(None, Some(12.5e6)), "100 Mb/s");
        assert_eq!(network_of(None), "");
    }
}
