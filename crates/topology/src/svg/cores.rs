//! Cores as squares with the colour and the number of the share holder.

use super::block::{Block, escape, rect};
use crate::map::{Map, ShareHolder};
use model::cpus::CpuSet;

/// Fill colours with their text colours. The fills are the palette of Okabe and Ito, which remains distinguishable with
/// red-green colour blindness, and a grey.
const COLOURS: [(&str, &str); 8] = [
    ("#e69f00", "#000"),
    ("#56b4e9", "#000"),
    ("#009e73", "#000"),
    ("#f0e442", "#000"),
    ("#0072b2", "#fff"),
    ("#d55e00", "#000"),
    ("#cc79a7", "#000"),
    ("#aaaaaa", "#000"),
];
/// Width and height of a core in pixels.
const CORE: (f64, f64) = (28.0, 22.0);
const GAP: f64 = 3.0;

/// The map with its numbered share holders.
pub(crate) struct Shares<'a> {
    pub map: &'a Map,
    share_holders: Vec<ShareHolder<'a>>,
}

impl<'a> Shares<'a> {
    /// Numbers all share holders of the map.
    pub fn new(map: &'a Map) -> Shares<'a> {
        Shares { map, share_holders: map.share_holders() }
    }

    /// Returns all share holders with their numbers.
    pub fn share_holders(&self) -> impl Iterator<Item = (usize, &ShareHolder<'a>)> {
        self.share_holders.iter().enumerate()
    }

    /// Draws cores in rows at most `widest` wide.
    pub fn grid(&self, cores: &[&CpuSet], widest: f64) -> Block {
        let fitting = ((widest / (CORE.0 + GAP)) as usize).max(1);
        // Rows of eight or sixteen cores are often full, because most caches have a multiple of eight cores.
        let columns = match cores.len() {
            many if many <= 8 => many.max(1),
            many if many <= 32 => 8,
            _ => 16,
        }
        .min(fitting);
        let mut all = Block::default();
        for (at, core) in cores.iter().enumerate() {
            let (x, y) = ((at % columns) as f64 * (CORE.0 + GAP), (at / columns) as f64 * (CORE.1 + GAP));
            all.place(&self.core(core), x, y);
        }
        all
    }

    fn core(&self, core: &CpuSet) -> Block {
        let (width, height) = CORE;
        let owners: Vec<(usize, &ShareHolder<'a>)> =
            self.share_holders().filter(|(_, holder)| !holder.share().cpus.and(core).is_empty()).collect();
        let names: Vec<String> = owners.iter().map(|(_, holder)| holder.name()).collect();
        let whose = if names.is_empty() { "near no GPU".to_owned() } else { names.join("; ") };
        let what = if core.len() == 1 { "CPU" } else { "CPUs" };
        let mut body = format!("<g><title>{}</title>", escape(&format!("core: {what} {core}: {whose}")));
        let stripe = width / owners.len().max(1) as f64;
        for (at, (number, _)) in owners.iter().enumerate() {
            let x = at as f64 * stripe;
            body.push_str(&format!(
                "<rect x=\"{x:.1}\" y=\"0\" width=\"{stripe:.1}\" height=\"{height}\" fill=\"{}\"/>",
                colour(*number).0
            ));
        }
        body.push_str(&rect("core", 0.0, 0.0, width, height, 2.0));
        body.push_str(&match owners.as_slice() {
            [] => String::new(),
            [(number, holder)] => text(holder.label(), colour(*number).1),
            // A white plate keeps the text readable on stripes of several colours.
            many => {
                let plate = "<rect x=\"4\" y=\"4\" width=\"20\" height=\"14\" rx=\"3\" fill=\"#fff\"/>";
                plate.to_owned() + &text(&format!("÷{}", many.len()), "#000")
            }
        });
        body.push_str("</g>");
        Block { width, height, body }
    }

    /// Draws a square with the colour and the label of a share holder.
    pub fn mark(&self, number: usize, label: &str) -> Block {
        let (width, height) = CORE;
        let (fill, on) = colour(number);
        let mut body = format!("<rect width=\"{width}\" height=\"{height}\" rx=\"2\" fill=\"{fill}\"/>");
        body.push_str(&rect("core", 0.0, 0.0, width, height, 2.0));
        body.push_str(&text(label, on));
        Block { width, height, body }
    }
}

fn colour(number: usize) -> (&'static str, &'static str) {
    COLOURS[number % COLOURS.len()]
}

fn text(label: &str, colour: &str) -> String {
    let size = if label.chars().count() > 3 { 9 } else { 11 };
    format!(
        "<text class=\"mark\" x=\"{:.1}\" y=\"15\" font-size=\"{size}\" style=\"fill:{colour}\">{}</text>",
        CORE.0 / 2.0,
        escape(label)
    )
}
