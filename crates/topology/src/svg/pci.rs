//! The PCI tree: bridges and devices in rows, connected by lines that are labelled with the state of the links.

use super::block::{Block, bold_width, fit, label, rect, width_of};
use super::cores::Shares;
use super::{PAD, WIDE};
use crate::format;
use crate::map::MapGpu;
use crate::tree::Pci;
use model::topology::{Device, DeviceKind};

/// Indentation of the devices below a bridge, in pixels.
const STEP: f64 = 22.0;
/// Length of the line to a device, which carries the link label.
const LINK: f64 = 104.0;
const GAP: f64 = 6.0;
/// Height of a row with one line of text.
const ROW: f64 = 22.0;

/// Draws the PCI tree of a NUMA node.
pub fn draw(pci: &[Pci<'_>], shares: &Shares<'_>) -> Block {
    let mut all = Block::default();
    let x = STEP * 0.3;
    let last = items(&mut all, pci, shares, x);
    all.body.insert_str(0, &format!("<path class=\"line\" d=\"M{x:.1} 0V{last:.1}\"/>"));
    all
}

/// Draws the devices whose NUMA node is unknown.
pub fn unplaced(pci: &[Pci<'_>], shares: &Shares<'_>, least: f64) -> Block {
    let name = "The machine does not tell which NUMA node these are near";
    Block::named("node", name, draw(pci, shares), bold_width(name, 12.0).max(least - 2.0 * PAD))
}

/// Draws items below one another. Returns the vertical position of the line to the last item.
fn items(all: &mut Block, pci: &[Pci<'_>], shares: &Shares<'_>, x: f64) -> f64 {
    let mut last = 0.0;
    for item in pci {
        let y = if all.height > 0.0 { all.height + GAP } else { 2.0 };
        match item {
            Pci::Bridge { root, addresses, below } => {
                let middle = y + ROW / 2.0;
                last = middle;
                let bridge = bridge(*root, addresses, x + STEP);
                all.body.push_str(&format!("<path class=\"line\" d=\"M{x:.1} {middle:.1}h{STEP:.1}\"/>"));
                all.place(&bridge, x + STEP, y);
                let inner = x + STEP * 1.6;
                let from = y + ROW;
                let to = items(all, below, shares, inner).max(from);
                all.body.push_str(&format!("<path class=\"line\" d=\"M{inner:.1} {from:.1}V{to:.1}\"/>"));
            }
            Pci::Devices(same) => {
                let one = same[0];
                let (row, middle) = device(same, shares, x + LINK);
                let middle = y + middle;
                last = middle;
                let (class, words) = match format::is_narrow(one) {
                    true => ("narrow", "lack"),
                    false => ("line", "link"),
                };
                all.body.push_str(&format!("<path class=\"{class}\" d=\"M{x:.1} {middle:.1}h{LINK:.1}\"/>"));
                let link = fit(&format::link(one), 9.5, LINK - 7.0);
                all.body.push_str(&label(words, x + 5.0, middle - 3.0, &link));
                all.place(&row, x + LINK, y);
            }
        }
    }
    last
}

fn bridge(root: bool, addresses: &[&str], x: f64) -> Block {
    let name = fit(&format::bridge(root, addresses.iter().copied().map(short)), 11.0, WIDE - x);
    let width = width_of(&name, 11.0) + 14.0;
    let body = rect("bridge", 0.0, 0.0, width, ROW, 4.0) + &label("small", 7.0, 15.0, &name);
    Block { width, height: ROW, body }
}

/// Draws the row of a device. Also returns the vertical position, within the row, of the line to the device.
fn device(same: &[&Device], shares: &Shares<'_>, x: f64) -> (Block, f64) {
    let device = same[0];
    if let Some(gpu) = shares.map.gpu(&device.address) {
        return (card(gpu, shares, WIDE - x), 16.0);
    }
    let addresses = format::addresses(same.iter().map(|device| short(&device.address)));
    let mut parts = vec![format::many(same), addresses, format::network(device)];
    parts.retain(|part| !part.is_empty());
    let text = fit(&parts.join(" · "), 11.0, WIDE - x - 14.0);
    let class = match device.kind {
        DeviceKind::Network => "network",
        DeviceKind::Storage => "storage",
        _ => "nvswitch",
    };
    let width = bold_width(&text, 11.0) + 14.0;
    let down = device.network.as_ref().is_some_and(|network| network.up == Some(false));
    let words = if down { "small lack" } else { "small" };
    let body = rect(class, 0.0, 0.0, width, ROW, 4.0) + &label(words, 7.0, 15.0, &text);
    (Block { width, height: ROW, body }, ROW / 2.0)
}

/// Draws a GPU with its share or the shares of its MIG devices.
fn card(gpu: &MapGpu, shares: &Shares<'_>, widest: f64) -> Block {
    let name = match gpu.index {
        Some(_) => format!("{} · {}", gpu.name(), short(&gpu.place.address)),
        None => gpu.name(),
    };
    let title = fit(&name, 12.0 * 1.14, widest - 16.0);
    let mut rows: Vec<(Block, String)> = Vec::new();
    for (number, holder) in shares.share_holders().filter(|(_, holder)| std::ptr::eq(holder.gpu, gpu)) {
        let profile =
            holder.slice.map(|slice| format!("MIG {} → ", slice.device.profile)).unwrap_or_default();
        let shared = if holder.share().shared { " (shared)" } else { "" };
        let text = format!("{profile}CPUs {}{shared}", holder.share().cpus);
        rows.push((shares.mark(number, holder.label()), fit(&text, 11.0, widest - 60.0)));
    }
    let text = rows.iter().map(|(_, text)| width_of(text, 11.0) + 52.0).fold(0.0, f64::max);
    let width = text.max(bold_width(&title, 12.0) + 16.0);
    let height = 28.0 + rows.len() as f64 * 26.0;
    let mut body = rect("gpu", 0.0, 0.0, width, height, 5.0);
    body.push_str(&label("name", 8.0, 19.0, &title));
    for (at, (mark, text)) in rows.iter().enumerate() {
        let y = 26.0 + at as f64 * 26.0;
        body.push_str(&mark.at(8.0, y));
        body.push_str(&label("small", 44.0, y + 15.0, text));
    }
    Block { width, height, body }
}

/// Removes the domain from an address if it is `0000`, as on nearly all machines.
fn short(address: &str) -> &str {
    address.strip_prefix("0000:").unwrap_or(address)
}
