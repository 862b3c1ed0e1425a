//! The map as text for a terminal: the machine as a tree, followed by the table of CPU shares.

use super::format;
use super::map::{Map, ShareHolder};
use super::tree::{self, Branch, BranchKind, Pci};
use host::terminal::{Colour, Painter, fit, printable, wrap};
use model::cpus::CpuSet;
use model::topology::{Device, DeviceKind, Topology};

/// Formats the map in lines of at most `columns` columns, or without a limit if it is `None`. CPU lists may exceed the
/// limit, because a truncated list would be wrong advice.
pub fn text(map: &Map, colours: bool, columns: Option<usize>) -> String {
    let paint = Painter::new(colours);
    let mut out = String::new();
    let most = columns.unwrap_or(usize::MAX);
    out += &format!("{}\n", paint.bold(&fit(&title(&map.topology), most)));
    let tree = tree::build(&map.topology);
    let mut lines = TreeWriter { map, paint, columns: most, out: &mut out };
    lines.inside(&tree, "");
    shares(&mut out, paint, map, columns);
    if let Some(latency) = &map.latency {
        out += &format!("\n{}\n{}", paint.bold("Memory latency"), latency.text());
    }
    for note in &map.topology.notes {
        out += &format!(
            "\n{} {}\n",
            paint.colour(Colour::Yellow, "!"),
            wrap(&printable(note), most.saturating_sub(2), "  ")
        );
    }
    out
}

/// Summarizes the machine in one line.
pub fn title(topology: &Topology) -> String {
    let of = |kind| topology.devices.iter().filter(|device| device.kind == kind).count();
    let mut parts = vec![
        format::count(topology.packages.len(), "package"),
        format::count(topology.numa_nodes.len(), "NUMA node"),
        format::count(topology.cores.len(), "core"),
        format::count(topology.cpus.len(), "CPU"),
    ];
    parts.extend(format::machine_memory(&topology.numa_nodes));
    parts.push(format::count(of(DeviceKind::Gpu), "GPU"));
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
    columns: usize,
    out: &'a mut String,
}

/// A line of the tree with the subtree below it.
enum Item<'a> {
    Branch(&'a Branch<'a>),
    Pci(&'a Pci<'a>),
}

impl TreeWriter<'_> {
    /// Writes the contents of a branch.
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
            let room = self.columns.saturating_sub(before.chars().count() + 3);
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
            BranchKind::Node(node) => {
                let memory = format::node_memory(node, |address| self.map.gpu_name(address));
                let cpus = if node.cpus.is_empty() { ", no CPUs".into() } else { format!("  {with}") };
                format!("NUMA node {}  {}{cpus}", node.index, printable(&memory))
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

/// Columns of the share table before the CPU column: title, and width if the line length is limited.
const TABLE: [(&str, usize); 6] =
    [("GPU", 6), ("device", 24), ("node", 6), ("memory", 8), ("L3", 9), ("nearest NIC", 23)];

/// Appends the table of shares.
fn shares(out: &mut String, paint: Painter, map: &Map, columns: Option<usize>) {
    if map.gpus.is_empty() {
        *out += "\nNo GPU was found.\n";
        return;
    }
    *out += &format!("\n{}\n", paint.bold("Fair shares of the CPUs near each GPU"));
    let row = |holder: &ShareHolder<'_>| {
        let gpu = holder.gpu;
        let node = gpu.place.numa_node.map_or_else(|| "-".to_owned(), |node| node.to_string());
        let nic = gpu.place.nic.as_ref().map_or_else(|| "-".into(), |near| map.nic(near));
        let l3: CpuSet = holder.share().l3.iter().copied().collect();
        let shared = if holder.share().shared { "  (shared)" } else { "" };
        let memory = dash(&holder.share().memory_nodes);
        let cells = [holder.label().into(), device(holder), node, memory, dash(&l3), printable(&nic)];
        (cells, format!("{}{shared}", dash(&holder.share().cpus)))
    };
    let rows: Vec<([String; 6], String)> = map.share_holders().iter().map(row).collect();
    let mut widths = TABLE.map(|(_, width)| width);
    if columns.is_none() {
        for (cells, _) in &rows {
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = (cell.chars().count() + 1).max(*width);
            }
        }
    }
    let titles = (TABLE.map(|(title, _)| title.to_owned()), "CPUs".to_owned());
    for (cells, cpus) in [titles].iter().chain(&rows) {
        let cells = cells.iter().zip(widths);
        let cells = cells.map(|(cell, width)| format!("{:<width$}", fit(cell, width - 1)));
        *out += &format!("  {}{cpus}\n", cells.collect::<String>());
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
