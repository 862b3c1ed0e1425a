//! The map as a picture: packages, NUMA nodes and caches as boxes around their cores, below each node the PCI tree with
//! its GPUs and network devices, links written beside the lines; whose share a core is, by colour and by number.
//!
//! Readable in light and dark and without telling colours apart. It holds no script and loads nothing.

mod block;
mod cores;
mod legend;
mod pci;

use super::map::Map;
use super::text::title;
use super::tree::{self, Branch, Part};
use super::words;
use block::{Block, bold_width, escape, fit, label, rect};
use cores::Shares;

/// Space inside a box and between boxes.
const PAD: f64 = 10.0;
/// Room for the label of a box.
const HEAD: f64 = 20.0;
/// Widest content of a NUMA node before it is wrapped.
const WIDE: f64 = 560.0;

/// All of it.
pub fn svg(map: &Map) -> String {
    let shares = Shares::new(map);
    let tree = tree::of(&map.topology);
    let parts = alike(&tree.branches, &shares, map, 0.0);
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
        rows.push(pci::unplaced(&tree.pci, map, &shares, rows[0].width));
    }
    let wide = rows.iter().map(|row| row.width).fold(620.0, f64::max);
    rows.push(legend::draw(map, &shares, wide));
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

/// Branches, all as wide as the widest of them; one alone at least as wide as told.
fn alike(branches: &[Branch<'_>], shares: &Shares<'_>, map: &Map, least: f64) -> Vec<Block> {
    let natural = branches.iter().map(|branch| draw(branch, shares, map, 0.0).width);
    let alone = matches!(branches, [one] if !matches!(one.part, Part::L3(_)));
    let least = natural.fold(if alone { least } else { 0.0 }, f64::max);
    branches.iter().map(|branch| draw(branch, shares, map, least)).collect()
}

/// A package, NUMA node or cache with all that is in it, at least as wide as told.
fn draw(branch: &Branch<'_>, shares: &Shares<'_>, map: &Map, least: f64) -> Block {
    let mut rows = Vec::new();
    if !branch.branches.is_empty() {
        let inner = alike(&branch.branches, shares, map, least - 2.0 * PAD);
        rows.push(Block::flow(inner, WIDE, PAD));
    }
    if !branch.cores.is_empty() {
        rows.push(shares.grid(&branch.cores, WIDE));
    }
    if !branch.pci.is_empty() {
        rows.push(pci::draw(&branch.pci, map, shares));
    }
    let content = Block::column(rows, PAD);
    let (class, names) = names(branch);
    // The longest form of the label that fits; a cache is made wide enough for its size.
    let shortest = if class == "cache" { names.len().checked_sub(2) } else { None };
    let shortest = shortest.and_then(|at| names.get(at)).or(names.last());
    let needed = shortest.map_or(0.0, |name| bold_width(name, 12.0));
    let room = content.width.max(needed).max(least - 2.0 * PAD);
    let name = names.iter().find(|name| bold_width(name, 12.0) <= room).or(shortest);
    let (width, height) = (room + 2.0 * PAD, HEAD + content.height + 1.5 * PAD);
    let mut body = rect(class, 0.0, 0.0, width, height, 6.0);
    body.push_str(&label("name", PAD, 17.0, name.map_or("", String::as_str)));
    body.push_str(&content.at(PAD, HEAD + 0.5 * PAD));
    Block { width, height, body }
}

/// Class of the box, and its label in forms from the longest to the shortest.
fn names(branch: &Branch<'_>) -> (&'static str, Vec<String>) {
    let forms = |parts: &[String]| -> Vec<String> {
        (1..=parts.len()).rev().map(|many| parts[..many].join(" · ")).collect()
    };
    let cpus = format!("CPUs {}", branch.cpus);
    match branch.part {
        Part::Machine => ("box", Vec::new()),
        Part::Package(package) => {
            let index = format!("Package {}", package.index);
            match package.model.is_empty() {
                true => ("package", forms(&[index, cpus])),
                false => ("package", forms(&[index, package.model.clone(), cpus])),
            }
        }
        Part::Node(node) => {
            let memory = words::size(node.memory_bytes);
            let with = if node.cpus.is_empty() { "no CPUs".to_owned() } else { cpus };
            ("node", forms(&[format!("NUMA node {}", node.index), memory, with]))
        }
        Part::L3(group) => {
            ("cache", forms(&[format!("L3 {}", group.index), words::size(group.size_bytes), cpus]))
        }
    }
}

#[cfg(test)]
mod tests;
