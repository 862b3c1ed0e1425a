//! The topology map: sockets, NUMA nodes, PCIe switches, and the devices below them.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::{look, mark};
use model::catalog as m;
use model::health::{GpuHealth, HealthLevel};
use model::snapshot::Snapshot;
use model::topology::place::switch;
use model::topology::{Device, DeviceKind, NumaNode, Topology};

const GIB: u64 = 1 << 30;

/// Renders the map, or nothing if no topology has been detected or it contains no GPU.
pub fn map(snapshot: &Snapshot) -> Markup {
    let Some(update) = snapshot.topology.as_deref() else { return Markup::default() };
    let topology = &*update.topology;
    if topology.devices.iter().all(|device| device.kind != DeviceKind::Gpu) {
        return Markup::default();
    }
    let map = MachineMap { topology, gpus: gpus(snapshot, topology) };
    let changes = update.against_first_seen.iter().chain(&update.against_declared).flatten();
    html! {
        section aria-labelledby="topology" {
            h2 #topology { "Topology " small { (topology.machine) } }
            @for change in changes { p.change { (mark(HealthLevel::Degraded)) " " (change) } }
            ul.machine {
                @for package in &topology.packages {
                    li.socket {
                        h3 { "Socket " (package.index) " " small { (package.model) } }
                        ul { @for node in map.nodes(Some(package.index)) { (map.node(node)) } }
                    }
                }
                @for node in map.nodes(None) { (map.node(node)) }
                (map.elsewhere())
            }
        }
    }
}

/// Returns the GPUs that the driver lists, by their PCI addresses in the topology's notation.
fn gpus<'a>(snapshot: &'a Snapshot, topology: &'a Topology) -> BTreeMap<&'a str, &'a GpuHealth> {
    let known = snapshot.health.gpus.iter().filter_map(|health| {
        let address = snapshot.info(&m::gpu_info, &health.gpu, "pci_address")?;
        Some((&*topology.gpu(address)?.address, health))
    });
    known.collect()
}

struct MachineMap<'a> {
    topology: &'a Topology,
    gpus: BTreeMap<&'a str, &'a GpuHealth>,
}

impl<'a> MachineMap<'a> {
    /// Returns the NUMA nodes of a package, or those without a package. NUMA nodes of GPU memory are omitted.
    fn nodes(&self, package: Option<u32>) -> impl Iterator<Item = &'a NumaNode> {
        self.topology.numa_nodes.iter().filter(move |node| node.package == package && node.gpu.is_none())
    }

    fn node(&self, node: &NumaNode) -> Markup {
        html! {
            li.numa {
                h4 {
                    "NUMA node " (node.index)
                    @if !node.cpus.is_empty() { " " small { "CPUs " (node.cpus) } }
                    @if node.memory_bytes > 0 { " " small { (node.memory_bytes / GIB) " GiB" } }
                }
                (self.switches(|device| device.numa_node == Some(node.index)))
            }
        }
    }

    /// Renders the devices that belong to none of the rendered NUMA nodes.
    fn elsewhere(&self) -> Markup {
        let drawn =
            |index| self.topology.numa_nodes.iter().any(|node| node.index == index && node.gpu.is_none());
        let is_elsewhere = |device: &Device| !device.numa_node.is_some_and(drawn);
        html! {
            @if self.topology.devices.iter().any(is_elsewhere) {
                li.numa { h4 { "NUMA node not known" } (self.switches(is_elsewhere)) }
            }
        }
    }

    /// Renders the selected devices, grouped by the PCIe switch above them.
    fn switches(&self, is_here: impl Fn(&Device) -> bool) -> Markup {
        let mut groups: BTreeMap<Option<&str>, Vec<&Device>> = BTreeMap::new();
        for device in self.topology.devices.iter().filter(|device| is_here(device)) {
            groups.entry(switch(device)).or_default().push(device);
        }
        html! {
            @for (switch, devices) in groups {
                ul.switch aria-label=[switch.map(|address| format!("PCIe switch {address}"))] title=[switch] {
                    @for device in devices { (self.device(device)) }
                }
            }
        }
    }

    fn device(&self, device: &Device) -> Markup {
        let name = || device.names.first().unwrap_or(&device.address);
        match device.kind {
            DeviceKind::Gpu => match self.gpus.get(&*device.address) {
                Some(health) => html! {
                    li.device.(look(health.level).class) title=(device.address) {
                        a href={ "#gpu-" (health.gpu.gpu) } { (mark(health.level)) " GPU " (health.gpu.gpu) }
                    }
                },
                None => {
                    html! { li.device { "GPU " (device.address) " " small { "not listed by the driver" } } }
                }
            },
            DeviceKind::Nvswitch => html! { li.device title=(device.address) { "NVSwitch" } },
            DeviceKind::Storage => html! { li.device title=(device.address) { (name()) } },
            DeviceKind::Network => {
                let level = match device.network.as_ref().and_then(|network| network.up) {
                    Some(true) => Some(HealthLevel::Ok),
                    Some(false) => Some(HealthLevel::Note),
                    None => None,
                };
                html! {
                    li.device title=(device.address) {
                        @if let Some(level) = level { (mark(level)) " " }
                        (device.network_name())
                        @if level == Some(HealthLevel::Note) { " " small { "down" } }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::topology::TopologyUpdate;
    use model::topology::fixtures::{device, machine};

    use super::*;
    use crate::fixtures;

    #[test]
    fn each_device_is_in_its_numa_node_and_each_gpu_leads_to_its_card() {
        let mut topology = machine(&[("0-23", &["0-23"]), ("24-31", &["24-31"])]);
        topology.devices = vec![
            device(DeviceKind::Gpu, "0000:0a:00.0", Some(0), "0-23", &[]),
            device(DeviceKind::Gpu, "0000:1b:00.0", Some(1), "24-31", &[]),
            device(DeviceKind::Gpu, "0000:ff:00.0", None, "0-31", &[]),
        ];
        let mut snapshot = fixtures::node_taken(1, model::clock::Mono(1));
        assert_eq!(map(&snapshot).0, "", "not known");
        let against_first_seen = Some(vec!["eth0 <is> gone".to_owned()]);
        let update =
            TopologyUpdate { topology: Arc::new(topology), against_first_seen, against_declared: None };
        snapshot.topology = Some(Arc::new(update));
        let map = map(&snapshot).0;
        let at = |text: &str| map.find(text).unwrap_or_else(|| panic!("{text} in {map}"));
        assert!(at("NUMA node 0") < at("href=\"#gpu-0\"") && at("href=\"#gpu-0\"") < at("NUMA node 1"));
        assert!(
            at("NUMA node 1") < at("href=\"#gpu-1\"") && at("href=\"#gpu-1\"") < at("NUMA node not known")
        );
        assert!(at("NUMA node not known") < at("not listed by the driver"));
        assert!(map.contains("eth0 &lt;is&gt; gone"));
    }
}
