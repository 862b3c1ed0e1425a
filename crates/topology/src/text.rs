//! The map for a terminal: the machine as a tree, then who gets which CPUs.

use std::fmt::Write;

use super::map::{Gpu, Map, Taker};
use super::tree::{self, Branch, Part, Pci};
use super::words;
use model::cpus::CpuSet;
use model::topology::place::Near;
use model::topology::{Device, DeviceKind, Topology};

/// Most columns of a line; only lists of CPUs may be longer, as half a list would be wrong advice.
const COLUMNS: usize = 100;

/// Bold and colours, on a terminal alone. What they say is said in words as well.
struct Paint(bool);

impl Paint {
    fn with(&self, code: u8, text: &str) -> String {
        if self.0 && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn bold(&self, text: &str) -> String {
        self.with(1, text)
    }
}

/// Appends; writing to a string cannot fail.
fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    let written = out.write_fmt(text);
    debug_assert!(written.is_ok());
}

/// All of it.
pub fn text(map: &Map, colours: bool) -> String {
    let paint = Paint(colours);
    let mut out = String::new();
    put(&mut out, format_args!("{}\n", paint.bold(&fit(&title(&map.topology), COLUMNS))));
    let tree = tree::of(&map.topology);
    let mut lines = Lines { map, paint: &paint, out: &mut out };
    lines.inside(&tree, "");
    shares(&mut out, &paint, map);
    if let Some(latency) = &map.latency {
        put(&mut out, format_args!("\n{}\n{}", paint.bold("Memory latency"), latency.text()));
    }
    for note in &map.topology.notes {
        put(&mut out, format_args!("\n{} {}\n", paint.with(33, "!"), wrap(&shown(note), COLUMNS - 2, "  ")));
    }
    out
}

/// What there is, in one line.
pub fn title(topology: &Topology) -> String {
    let of = |kind| topology.devices.iter().filter(|device| device.kind == kind).count();
    let memory = topology.numa_nodes.iter().map(|node| node.memory_bytes).sum();
    let mut parts = vec![
        words::count(topology.packages.len(), "package"),
        words::count(topology.numa_nodes.len(), "NUMA node"),
        words::count(topology.cores.len(), "core"),
        words::count(topology.cpus.len(), "CPU"),
        words::size(memory),
        words::count(of(DeviceKind::Gpu), "GPU"),
    ];
    let switches = of(DeviceKind::Nvswitch);
    if switches > 0 {
        parts.push(words::count(switches, "NVSwitch").replace("NVSwitchs", "NVSwitches"));
    }
    let name = if topology.machine.is_empty() { "This machine" } else { &topology.machine };
    format!("{}: {}", shown(name), parts.join(", "))
}

struct Lines<'a> {
    map: &'a Map,
    paint: &'a Paint,
    out: &'a mut String,
}

/// A line of the tree and what is below it.
enum Item<'a> {
    Branch(&'a Branch<'a>),
    Pci(&'a Pci<'a>),
    /// Devices of which one is as the other.
    Alike(Vec<&'a Device>),
}

impl Lines<'_> {
    /// What is in a branch.
    fn inside(&mut self, branch: &Branch<'_>, before: &str) {
        let mut items: Vec<Item<'_>> = branch.branches.iter().map(Item::Branch).collect();
        items.extend(alike(&branch.pci));
        self.items(items, before);
    }

    fn items(&mut self, items: Vec<Item<'_>>, before: &str) {
        let last = items.len().saturating_sub(1);
        for (at, item) in items.into_iter().enumerate() {
            let (fork, next) = if at == last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            let below = format!("{before}{next}");
            let room = COLUMNS.saturating_sub(before.chars().count() + 3);
            let line = self.line(&item, room);
            put(self.out, format_args!("{}{line}\n", self.paint.with(2, &format!("{before}{fork}"))));
            match item {
                Item::Branch(branch) => self.inside(branch, &below),
                Item::Pci(Pci::Bridge { below: devices, .. }) => self.items(alike(devices), &below),
                _ => {}
            }
        }
    }

    fn line(&self, item: &Item<'_>, room: usize) -> String {
        match item {
            Item::Branch(branch) => fit(&self.branch(branch), room),
            Item::Pci(Pci::Bridge { root, addresses, .. }) => {
                let name = |at: usize| if *root && at == 0 { "root port" } else { "switch" };
                let named =
                    addresses.iter().enumerate().map(|(at, address)| format!("{} {address}", name(at)));
                fit(&named.collect::<Vec<_>>().join(" ▸ "), room)
            }
            Item::Pci(Pci::Device(device)) => self.device(device, room),
            Item::Alike(devices) => {
                let addresses = words::addresses(devices.iter().map(|device| &*device.address));
                fit(&format!("{}  {addresses}", words::many(devices)), room)
            }
        }
    }

    fn branch(&self, branch: &Branch<'_>) -> String {
        let cores = count_cores(branch);
        let with = format!("CPUs {} ({})", branch.cpus, words::count(cores, "core"));
        match branch.part {
            Part::Machine => String::new(),
            Part::Package(package) => {
                let model = if package.model.is_empty() { "" } else { "  " };
                format!("package {}{model}{}  {with}", package.index, shown(&package.model))
            }
            Part::Node(node) if node.cpus.is_empty() => {
                format!("NUMA node {}  {}, no CPUs", node.index, words::size(node.memory_bytes))
            }
            Part::Node(node) => {
                format!("NUMA node {}  {}  {with}", node.index, words::size(node.memory_bytes))
            }
            Part::L3(group) => format!("L3 {}  {}  {with}", group.index, words::size(group.size_bytes)),
        }
    }

    fn device(&self, device: &Device, room: usize) -> String {
        let gpu = self.map.gpu(&device.address);
        let mut parts = vec![match gpu {
            Some(gpu) => gpu_name(gpu),
            None => shown(&words::names(device)),
        }];
        if gpu.is_none_or(|gpu| gpu.index.is_some()) {
            parts.push(device.address.clone());
        }
        parts.extend([words::link(device), words::network(device)]);
        if let Some(gpu) = gpu {
            let mig = words::count(gpu.slices.len(), "MIG device");
            parts.push(if gpu.slices.is_empty() { String::new() } else { mig });
            parts.push(format!("→ CPUs {}", gpu.share.cpus));
        }
        parts.retain(|part| !part.is_empty());
        let line = fit(&parts.join("  "), room);
        let trouble =
            words::is_narrow(device) || device.network.as_ref().is_some_and(|n| n.up == Some(false));
        match gpu {
            _ if trouble => self.paint.with(33, &line),
            Some(_) => self.paint.with(36, &line),
            None => line,
        }
    }
}

fn gpu_name(gpu: &Gpu) -> String {
    shown(&gpu.name())
}

/// Neighbours that differ in nothing but their address, as the NVSwitches of a board, take one line.
fn alike<'a>(pci: &'a [Pci<'a>]) -> Vec<Item<'a>> {
    let mut items: Vec<Item<'a>> = Vec::new();
    for pci in pci {
        let Pci::Device(device) = pci else {
            items.push(Item::Pci(pci));
            continue;
        };
        let plain = device.kind == DeviceKind::Nvswitch && !words::is_narrow(device);
        match items.last_mut() {
            Some(Item::Alike(devices)) if plain && devices[0].link == device.link => devices.push(device),
            _ if plain => items.push(Item::Alike(vec![device])),
            _ => items.push(Item::Pci(pci)),
        }
    }
    items
}

fn count_cores(branch: &Branch<'_>) -> usize {
    branch.cores.len() + branch.branches.iter().map(count_cores).sum::<usize>()
}

/// Who gets which CPUs.
fn shares(out: &mut String, paint: &Paint, map: &Map) {
    if map.gpus.is_empty() {
        put(out, format_args!("\nNo GPU was found.\n"));
        return;
    }
    put(out, format_args!("\n{}\n", paint.bold("Fair shares of the CPUs near each GPU")));
    put(
        out,
        format_args!(
            "  {:<6}{:<24}{:<6}{:<8}{:<9}{:<23}CPUs\n",
            "GPU", "device", "node", "memory", "L3", "nearest NIC"
        ),
    );
    for taker in map.takers() {
        let gpu = taker.gpu;
        let node = gpu.place.numa_node.map_or_else(|| "-".to_owned(), |node| node.to_string());
        let l3: CpuSet = taker.share().l3.iter().copied().collect();
        let shared = if taker.share().shared { "  (shared)" } else { "" };
        put(
            out,
            format_args!(
                "  {:<6}{:<24}{node:<6}{:<8}{:<9}{:<23}{}{shared}\n",
                taker.label(),
                fit(&device(&taker), 23),
                fit(&dash(&taker.share().memory_nodes), 7),
                fit(&dash(&l3), 8),
                fit(&nic(map, gpu.place.nic.as_ref()), 22),
                dash(&taker.share().cpus),
            ),
        );
    }
    if map.takers().iter().any(|taker| taker.share().shared) {
        put(out, format_args!("  (shared): there are fewer cores than GPUs or slices near them.\n"));
    }
    if !map.left_over.is_empty() {
        put(out, format_args!("  near no GPU: CPUs {}\n", map.left_over));
    }
}

fn device(taker: &Taker<'_>) -> String {
    match taker.slice {
        Some(slice) => format!("MIG {}", shown(&slice.profile)),
        None if taker.gpu.model.is_empty() => taker.gpu.place.address.clone(),
        None => shown(&taker.gpu.model),
    }
}

/// The nearest network device by its first name, and how near it is.
fn nic(map: &Map, near: Option<&Near>) -> String {
    let Some(near) = near else { return "-".into() };
    let device = map.topology.devices.iter().find(|device| device.address == near.address);
    let name = device.and_then(|device| device.names.first()).unwrap_or(&near.address);
    format!("{} ({})", shown(name), near.path.name())
}

fn dash(set: &CpuSet) -> String {
    if set.is_empty() { "-".into() } else { set.to_string() }
}

/// Without what would move the cursor of a terminal.
fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// In lines of so many columns, broken between words.
fn wrap(text: &str, columns: usize, before: &str) -> String {
    let mut out = String::new();
    let mut used = 0;
    for word in text.split_whitespace() {
        let long = word.chars().count();
        if used > 0 && used + 1 + long > columns {
            put(&mut out, format_args!("\n{before}"));
            used = 0;
        } else if used > 0 {
            out.push(' ');
            used += 1;
        }
        out.push_str(word);
        used += long;
    }
    out
}

/// Cut to so many columns.
fn fit(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    text.chars().take(columns.saturating_sub(1)).chain(['…']).collect()
}
