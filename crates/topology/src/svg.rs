//! The map as an SVG picture. Packages, NUMA nodes and caches are boxes around their cores. The PCI tree of a node,
//! with its GPUs, network devices and link labels, is below its cores. A colour and a number mark the share that a core
//! belongs to.
//!
//! The picture is readable on light and dark backgrounds and without colour vision. It contains no script and loads no
//! resources.

mod block;
mod cores;
mod pci;

use super::format;
use super::map::{Map, ShareHolder};
use super::text::title;
use super::tree::{self, Branch, BranchKind};
use block::{Block, bold_width, escape, fit, label};
use cores::Shares;

/// Padding inside a box and gap between boxes, in pixels.
const PAD: f64 = 10.0;
/// Height of the label of a box.
const HEAD: f64 = 20.0;
/// Maximum width of the content of a NUMA node before it wraps.
const WIDE: f64 = 560.0;
/// Width of a legend entry.
const ENTRY_WIDTH: f64 = 520.0;
/// Height of a legend entry.
const ENTRY_HEIGHT: f64 = 27.0;

pub fn svg(map: &Map) -> String {
    let shares = Shares::new(map);
    let tree = tree::build(&map.topology);
    let parts = alike(&tree.branches, &shares, 0.0);
    let columns = match parts.len() {
        few @ 0..=3 => few.max(1),
        many => (1..=many).find(|columns| columns * columns >= many).unwrap_or(many),
    };
    let machine = Block::table(parts, columns, PAD * 1.6);
    let mut rows = vec![machine];
    if !tree.cores.is_empty() {
        rows.push(shares.grid(&tree.cores, WIDE));
    }
    if !tree.pci.is_empty() {
        rows.push(pci::unplaced(&tree.pci, &shares, rows[0].width));
    }
    let wide = rows.iter().map(|row| row.width).fold(620.0, f64::max);
    rows.push(legend(&shares, wide));
    let body = Block::column(rows, PAD * 1.6);
    let (top, margin) = (64.0, 20.0);
    let (width, height) = (body.width.max(wide) + 2.0 * margin, body.height + top + margin);
    let title = title(&map.topology);
    let (name, what) = title.split_once(": ").unwrap_or((&title, ""));
    let (name, what) = (fit(name, 20.0, width - 2.0 * margin), fit(what, 12.5, width - 2.0 * margin));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" role=\"img\" aria-label=\"{aria}\">\n<title>{aria}</title>\n<style>{style}</style>\n\
         <rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n\
         <text class=\"h1\" x=\"{margin}\" y=\"32\">{name}</text>\n\
         <text class=\"h2\" x=\"{margin}\" y=\"51\">{what}</text>\n\
         <g transform=\"translate({margin} {top})\">\n{body}</g>\n</svg>\n",
        aria = escape(&title),
        style = include_str!("svg/style.css"),
        name = escape(&name),
        what = escape(&what),
        body = body.body,
    )
}

/// Draws branches with the width of the widest branch. A single branch other than a cache is at least `least` wide.
fn alike(branches: &[Branch<'_>], shares: &Shares<'_>, least: f64) -> Vec<Block> {
    let natural = branches.iter().map(|branch| draw(branch, shares, 0.0).width);
    let alone = matches!(branches, [one] if !matches!(one.kind, BranchKind::L3(_)));
    let least = natural.fold(if alone { least } else { 0.0 }, f64::max);
    branches.iter().map(|branch| draw(branch, shares, least)).collect()
}

/// Draws a package, NUMA node or cache with its contents, at least `least` wide.
fn draw(branch: &Branch<'_>, shares: &Shares<'_>, least: f64) -> Block {
    let mut rows = Vec::new();
    if !branch.branches.is_empty() {
        let inner = alike(&branch.branches, shares, least - 2.0 * PAD);
        rows.push(Block::flow(inner, WIDE, PAD));
    }
    if !branch.cores.is_empty() {
        rows.push(shares.grid(&branch.cores, WIDE));
    }
    if !branch.pci.is_empty() {
        rows.push(pci::draw(&branch.pci, shares));
    }
    let content = Block::column(rows, PAD);
    let (class, names) = names(branch, shares);
    // The longest form of the label that fits. The box of a cache is always wide enough to show the cache's size.
    let shortest = if class == "cache" { names.len().checked_sub(2) } else { None };
    let shortest = shortest.and_then(|at| names.get(at)).or(names.last());
    let needed = shortest.map_or(0.0, |name| bold_width(name, 12.0));
    let room = content.width.max(needed).max(least - 2.0 * PAD);
    let name = names.iter().find(|name| bold_width(name, 12.0) <= room).or(shortest);
    Block::named(class, name.map_or("", String::as_str), content, room)
}

/// Returns the CSS class of a box and its label in several forms, ordered from the longest to the shortest.
fn names(branch: &Branch<'_>, shares: &Shares<'_>) -> (&'static str, Vec<String>) {
    let forms = |parts: &[String]| -> Vec<String> {
        (1..=parts.len()).rev().map(|many| parts[..many].join(" · ")).collect()
    };
    let cpus = format!("CPUs {}", branch.cpus);
    match branch.kind {
        BranchKind::Machine => ("box", Vec::new()),
        BranchKind::Package(package) => {
            let index = format!("Package {}", package.index);
            match package.model.is_empty() {
                true => ("package", forms(&[index, cpus])),
                false => ("package", forms(&[index, package.model.clone(), cpus])),
            }
        }
        BranchKind::Node(node) => {
            let memory = format::node_memory(node, |address| shares.map.gpu_name(address));
            let with = if node.cpus.is_empty() { "no CPUs".to_owned() } else { cpus };
            ("node", forms(&[format!("NUMA node {}", node.index), memory, with]))
        }
        BranchKind::L3(group) => {
            ("cache", forms(&[format!("L3 {}", group.index), format::size(group.size_bytes), cpus]))
        }
    }
}

/// Draws the legend below the machine: the CPUs and memory of every share holder, in as many columns as fit, and the
/// explanation of the symbols.
fn legend(shares: &Shares<'_>, width: f64) -> Block {
    let head = |text: &str| Block { width: 0.0, height: 18.0, body: label("h3", 0.0, 14.0, text) };
    let line = |text: &str| Block {
        width: 0.0,
        height: 16.0,
        body: label("note", 0.0, 12.0, &fit(text, 11.0, width)),
    };
    let mut rows = vec![head("Fair shares of the CPUs near each GPU")];
    let entries: Vec<Block> =
        shares.share_holders().map(|(number, holder)| entry(shares, number, holder)).collect();
    if entries.is_empty() {
        rows.push(line("No GPU was found."));
    } else {
        let columns = ((width / ENTRY_WIDTH) as usize).max(1);
        let columns = entries.chunks(entries.len().div_ceil(columns));
        let columns = columns.map(|entries| Block::column(entries.to_vec(), 0.0)).collect();
        rows.push(Block::flow(columns, f64::INFINITY, 0.0));
    }
    rows.push(line("A square is a core: its colour and number say whose share it is."));
    if shares.share_holders().any(|(_, holder)| holder.share().shared) {
        rows.push(line("÷N: N of them share the core, as there are fewer cores than GPUs or MIG devices."));
    }
    if !shares.map.left_over.is_empty() {
        rows.push(line(&format!("Empty squares are near no GPU: CPUs {}", shares.map.left_over)));
    }
    for note in &shares.map.topology.notes {
        rows.push(line(&format!("! {note}")));
    }
    Block::column(rows, PAD * 0.4)
}

fn entry(shares: &Shares<'_>, number: usize, holder: &ShareHolder<'_>) -> Block {
    let (share, place) = (holder.share(), &holder.gpu.place);
    let mut parts = vec![holder.name(), format!("CPUs {}", share.cpus)];
    if !share.memory_nodes.is_empty() {
        parts.push(format!("memory {}", share.memory_nodes));
    }
    if let Some(near) = &place.nic {
        parts.push(shares.map.nic(near));
    }
    let mut body = shares.mark(number, holder.label()).at(0.0, 2.0);
    body.push_str(&label("small", 38.0, 17.0, &fit(&parts.join(" · "), 11.0, ENTRY_WIDTH - 52.0)));
    Block { width: ENTRY_WIDTH, height: ENTRY_HEIGHT, body }
}

#[cfg(test)]
mod tests;
