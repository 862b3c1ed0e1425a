//! Drawn SVG parts with their sizes, arranged in rows and columns.

use super::{HEAD, PAD};

/// SVG fragment with its size in pixels. Its origin is the upper left corner.
#[derive(Clone, Debug, Default)]
pub(crate) struct Block {
    pub width: f64,
    pub height: f64,
    pub body: String,
}

impl Block {
    /// Returns the SVG with its upper left corner at this point.
    pub fn at(&self, x: f64, y: f64) -> String {
        format!("<g transform=\"translate({x:.1} {y:.1})\">{}</g>\n", self.body)
    }

    /// Adds another block with its upper left corner at this point.
    pub fn place(&mut self, other: &Block, x: f64, y: f64) {
        self.body.push_str(&other.at(x, y));
        self.width = self.width.max(x + other.width);
        self.height = self.height.max(y + other.height);
    }

    /// Places blocks below one another.
    pub fn column(blocks: Vec<Block>, gap: f64) -> Block {
        let mut all = Block::default();
        for block in &blocks {
            let y = if all.height > 0.0 { all.height + gap } else { 0.0 };
            all.place(block, 0.0, y);
        }
        all
    }

    /// Places blocks next to one another. A row wraps before it exceeds `widest`.
    pub fn flow(blocks: Vec<Block>, widest: f64, gap: f64) -> Block {
        let mut all = Block::default();
        let (mut x, mut y) = (0.0, 0.0);
        for block in &blocks {
            if x > 0.0 && x + block.width > widest {
                (x, y) = (0.0, all.height + gap);
            }
            all.place(block, x, y);
            x += block.width + gap;
        }
        all
    }

    /// Places content in a box with a name. The inside of the box is at least `least` wide.
    pub fn named(class: &str, name: &str, content: Block, least: f64) -> Block {
        let width = content.width.max(least) + 2.0 * PAD;
        let height = HEAD + content.height + 1.5 * PAD;
        let body = rect(class, 0.0, 0.0, width, height, 6.0) + &label("name", PAD, 17.0, name);
        Block { width, height, body: body + &content.at(PAD, HEAD + 0.5 * PAD) }
    }

    /// Places blocks in rows of `columns` blocks.
    pub fn table(blocks: Vec<Block>, columns: usize, gap: f64) -> Block {
        let row = |row: &[Block]| Block::flow(row.to_vec(), f64::INFINITY, gap);
        Block::column(blocks.chunks(columns.max(1)).map(row).collect(), gap)
    }
}

pub fn rect(class: &str, x: f64, y: f64, width: f64, height: f64, round: f64) -> String {
    format!(
        "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"{round}\"/>"
    )
}

/// Returns a text element. The text is escaped.
pub fn label(class: &str, x: f64, y: f64, text: &str) -> String {
    format!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape(text))
}

/// Returns the estimated width of text at this font size. The estimate is generous because fonts differ.
pub fn width_of(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.56
}

/// Returns the estimated width of bold text at this font size.
pub fn bold_width(text: &str, size: f64) -> f64 {
    width_of(text, size) * 1.14
}

/// Truncates text to about this width.
pub fn fit(text: &str, size: f64, width: f64) -> String {
    host::terminal::fit(text, (width / (size * 0.56)).max(1.0) as usize)
}

/// Escapes text for an XML element or attribute. Control characters become spaces, and characters that XML cannot
/// represent are removed.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\u{fffe}' | '\u{ffff}' => {}
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}
