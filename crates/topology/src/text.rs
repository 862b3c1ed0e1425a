//! The map for a terminal: the machine as a tree, then who gets which CPUs.

use super::format;
use super::map::{Map, ShareHolder};
use super::tree::{self, Branch, BranchKind, Pci};
use host::terminal::{Colour, Painter, fit, printable, wrap};
use model::cpus::CpuSet;
use model::topology::{Device, DeviceKind, Topology};

/// Most columns of a line; only lists of CPUs may be longer, as half a list would be wrong advice.
const COLUMNS: usize = 100;

/// All of it.
pub fn text(map: &Map, colours: bool) -> String {
    let paint = Painter::new(colours);
    let mut out = String::new();
    out += &format!("{}\n", paint.bold(&fit(&title(&map.topology), COLUMNS)));
    let tree = tree::of(&map.topology);
    let mut lines = TreeWriter { map, paint, out: &mut out };
    lines.inside(&tree, "");
    shares(&mut out, paint, map);
    if let Some(latency) = &map.latency {
        out += &format!("\n{}\n{}", paint.bold("Memory latency"), latency.text());
    }
    for note in &map.topology.notes {
        out += &format!(
            "\n{} {}\n",
            paint.colour(Colour::Yellow, "!"),
            wrap(&printable(note), COLUMNS - 2, "  ")
        );
    }
    out
}

/// What there is, in one line.
pub fn title(topology: &Topology) -> String {
    let of = |kind| topology.devices.iter().filter(|device| device.kind == kind).count();
    let memory = topology.numa_nodes.iter().map(|node| node.memory_bytes).sum();
    let mut parts = vec![
        format::count(topology.packages.len(), "package"),
        format::count(topology.numa_nodes.len(), "NUMA node"),
        format::count(topology.cores.len(), "core"),
        format::count(topology.cpus.len(), "CPU"),
        format::size(memory),
        format::count(of(DeviceKind::Gpu), "GPU"),
    ];
    let switches = of(DeviceKind::Nvswitch);
    if switches > 0 {
        parts.push(format::count(switches, "NVSwitch").replace("NVSwitchs", "NVSwitches"));
    }
    let name = if topology.machine.is_empty() { "This machine" } else { &topology.machine };
    format!("{}: {}", printable(name), parts.join(", "))
}

struct TreeWriter<'a> {
    map: &'a Map,
    paint: Painter,
    out: &'a mut String,
}

/// A line of the tree and what is below it.
enum Item<'a> {
    Branch(&'a Branch<'a>),
    Pci(&'a Pci<'a>),
}

impl TreeWriter<'_> {
    /// What is in a branch.
    fn inside(&mut self, branch: &Branch<'_>, before: &str) {
        let mut items: Vec<Item<'_>> = branch.branches.iter().map(Item::Branch).collect();
        items.extend(branch.pci.iter().map(Item::Pci));
        self.items(items, before);
    }

    fn items(&mut self, items: Vec<Item<'_>>, before: &str) {
        let last = items.len().saturating_sub(1);
        for (at, item) in items.into_iter().enumerate() {
            let (fork, next) = if at == last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            let below = format!("{before}{next}");
            let room = COLUMNS.saturating_sub(before.chars().count() + 3);
            let line = self.line(&item, room);
            *self.out += &format!("{}{line}\n", self.paint.dim(&format!("{before}{fork}")));
            match item {
                Item::Branch(branch) => self.inside(branch, &below),
                Item::Pci(Pci::Bridge { below: pci, .. }) => {
                    self.items(pci.iter().map(Item::Pci).collect(), &below);
                }
                Item::Pci(Pci::Devices(_)) => {}
            }
        }
    }

    fn line(&self, item: &Item<'_>, room: usize) -> String {
        match item {
            Item::Branch(branch) => fit(&self.branch(branch), room),
            Item::Pci(Pci::Bridge { root, addresses, .. }) => {
                fit(&format::bridge(*root, addresses.iter().copied()), room)
            }
            Item::Pci(Pci::Devices(devices)) => match devices.as_slice() {
                [device] => self.device(device, room),
                same => {
                    let addresses = format::addresses(same.iter().map(|device| &*device.address));
                    fit(&format!("{}  {addresses}", format::many(same)), room)
                }
            },
        }
    }

    fn branch(&self, branch: &Branch<'_>) -> String {
        let cores = count_cores(branch);
        let with = format!("CPUs {} ({})", branch.cpus, format::count(cores, "core"));
        match branch.kind {
            BranchKind::Machine => String::new(),
            BranchKind::Package(package) => {
                let model = if package.model.is_empty() { "" } else { "  " };
                format!("package {}{model}{}  {with}", package.index, printable(&package.model))
            }
            BranchKind::Node(node) if node.cpus.is_empty() => {
                format!("NUMA node {}  {}, no CPUs", node.index, format::size(node.memory_bytes))
            }
            BranchKind::Node(node) => {
                format!("NUMA node {}  {}  {with}", node.index, format::size(node.memory_bytes))
            }
            BranchKind::L3(group) => {
                format!("L3 {}  {}  {with}", group.index, format::size(group.size_bytes))
            }
        }
    }

    fn device(&self, device: &Device, room: usize) -> String {
        let gpu = self.map.gpu(&device.address);
        let mut parts = vec![match gpu {
            Some(gpu) => printable(&gpu.name()),
            None => printable(&format::names(device)),
        }];
        if gpu.is_none_or(|gpu| gpu.index.is_some()) {
            parts.push(device.address.clone());
        }
        parts.extend([format::link(device), format::network(device)]);
        if let Some(gpu) = gpu {
            let mig = format::count(gpu.slices.len(), "MIG device");
            parts.push(if gpu.slices.is_empty() { String::new() } else { mig });
            parts.push(format!("→ CPUs {}", gpu.share.cpus));
        }
        parts.retain(|part| !part.is_empty());
        let line = fit(&parts.join("  "), room);
        let trouble =
            format::is_narrow(device) || device.network.as_ref().is_some_and(|n| n.up == Some(false));
        match gpu {
            _ if trouble => self.paint.colour(Colour::Yellow, &line),
            Some(_) => self.paint.colour(Colour::Cyan, &line),
            None => line,
        }
    }
}

fn count_cores(branch: &Branch<'_>) -> usize {
    branch.cores.len() + branch.branches.iter().map(count_cores).sum::<usize>()
}

/// Who gets which CPUs.
fn shares(out: &mut String, paint: Painter, map: &Map) {
    if map.gpus.is_empty() {
        *out += "\nNo GPU was found.\n";
        return;
    }
    *out += &format!("\n{}\n", paint.bold("Fair shares of the CPUs near each GPU"));
    *out += &format!(
        "  {:<6}{:<24}{:<6}{:<8}{:<9}{:<23}CPUs\n",
        "GPU", "device", "node", "memory", "L3", "nearest NIC"
    );
    for holder in map.share_holders() {
        let gpu = holder.gpu;
        let node = gpu.place.numa_node.map_or_else(|| "-".to_owned(), |node| node.to_string());
        let nic = gpu.place.nic.as_ref().map_or_else(|| "-".into(), |near| map.nic(near));
        let l3: CpuSet = holder.share().l3.iter().copied().collect();
        let shared = if holder.share().shared { "  (shared)" } else { "" };
        *out += &format!(
            "  {:<6}{:<24}{node:<6}{:<8}{:<9}{:<23}{}{shared}\n",
            holder.label(),
            fit(&device(&holder), 23),
            fit(&dash(&holder.share().memory_nodes), 7),
            fit(&dash(&l3), 8),
            fit(&printable(&nic), 22),
            dash(&holder.share().cpus)
        );
    }
    if map.share_holders().iter().any(|holder| holder.share().shared) {
        *out += "  (shared): there are fewer cores than GPUs or slices near them.\n";
    }
    if !map.left_over.is_empty() {
        *out += &format!("  near no GPU: CPUs {}\n", map.left_over);
    }
}

fn device(holder: &ShareHolder<'_>) -> String {
    match holder.slice {
        Some(slice) => format!("MIG {}", printable(&slice.device.profile)),
        None if holder.gpu.model.is_empty() => holder.gpu.place.address.clone(),
        None => printable(&holder.gpu.model),
    }
}

fn dash(set: &CpuSet) -> String {
    if set.is_empty() { "-".into() } else { set.to_string() }
}
