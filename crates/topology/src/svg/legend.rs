//! Below the machine: who gets which CPUs and memory, and how to read the picture.

use super::PAD;
use super::block::{Block, fit, label};
use super::cores::Shares;
use crate::map::{Map, Taker};

/// Width of an entry.
const WIDTH: f64 = 520.0;
/// Height of an entry.
const HEIGHT: f64 = 27.0;

/// All of it, in as many columns as there is room for.
pub fn draw(map: &Map, shares: &Shares<'_>, width: f64) -> Block {
    let head = |text: &str| Block { width: 0.0, height: 18.0, body: label("h3", 0.0, 14.0, text) };
    let line = |text: &str| Block {
        width: 0.0,
        height: 16.0,
        body: label("note", 0.0, 12.0, &fit(text, 11.0, width)),
    };
    let mut rows = vec![head("Fair shares of the CPUs near each GPU")];
    let entries: Vec<Block> =
        shares.takers().map(|(number, taker)| entry(map, shares, number, taker)).collect();
    if entries.is_empty() {
        rows.push(line("No GPU was found."));
    } else {
        let columns = ((width / WIDTH) as usize).max(1);
        rows.push(Block::table(by_column(entries, columns), columns, 0.0));
    }
    rows.push(line("A square is a core: its colour and number say whose share it is."));
    if shares.takers().any(|(_, taker)| taker.share().shared) {
        rows.push(line("÷N: N of them share the core, as there are fewer cores than GPUs or MIG devices."));
    }
    if !map.left_over.is_empty() {
        rows.push(line(&format!("Empty squares are near no GPU: CPUs {}", map.left_over)));
    }
    for note in &map.topology.notes {
        rows.push(line(&format!("! {note}")));
    }
    Block::column(rows, PAD * 0.4)
}

/// In the order of columns, for a table that is filled by rows.
fn by_column(entries: Vec<Block>, columns: usize) -> Vec<Block> {
    let height = entries.len().div_ceil(columns);
    let at = |place: usize| (place % columns) * height + place / columns;
    let empty = Block { width: WIDTH, height: HEIGHT, body: String::new() };
    (0..height * columns)
        .map(|place| entries.get(at(place)).cloned().unwrap_or_else(|| empty.clone()))
        .collect()
}

fn entry(map: &Map, shares: &Shares<'_>, number: usize, taker: &Taker<'_>) -> Block {
    let (share, place) = (taker.share(), &taker.gpu.place);
    let mut parts = vec![taker.name(), format!("CPUs {}", share.cpus)];
    if !share.memory_nodes.is_empty() {
        parts.push(format!("memory {}", share.memory_nodes));
    }
    if let Some(near) = &place.nic {
        let device = map.topology.devices.iter().find(|device| device.address == near.address);
        let name = device.and_then(|device| device.names.first()).unwrap_or(&near.address);
        parts.push(format!("{name} ({})", near.path.name()));
    }
    let mut body = shares.mark(number, taker.label()).at(0.0, 2.0);
    body.push_str(&label("small", 38.0, 17.0, &fit(&parts.join(" · "), 11.0, WIDTH - 52.0)));
    Block { width: WIDTH, height: HEIGHT, body }
}
