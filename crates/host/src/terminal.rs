//! Text for people at a terminal. Colours only repeat what symbols and words express, so the text is complete
//! without them.

use std::io::IsTerminal;

/// Colour of a mark or a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    Red = 31,
    Green = 32,
    Yellow = 33,
    Cyan = 36,
}

/// Adds bold type and colours (SGR sequences), or leaves the text unchanged.
#[derive(Clone, Copy, Debug)]
pub struct Painter {
    colours: bool,
}

/// Returns whether standard output supports colours: it is a terminal, and `NO_COLOR` is unset
/// (<https://no-color.org>).
pub fn stdout_has_colours() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stdout().is_terminal() && !refused
}

/// Maximum number of columns of text at a terminal.
const COLUMNS: usize = 100;

/// Returns the maximum line length on standard output, or `None` if a program or file receives the lines, which
/// are then written whole.
pub fn stdout_columns() -> Option<usize> {
    std::io::stdout().is_terminal().then_some(COLUMNS)
}

/// Replaces the progress line on standard error if that is a terminal. Pass an empty text at the end.
pub fn progress(text: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r{text}\x1b[K");
    }
}

impl Painter {
    pub fn new(colours: bool) -> Painter {
        Painter { colours }
    }

    fn with(self, code: u8, text: &str) -> String {
        if self.colours && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    pub fn bold(self, text: &str) -> String {
        self.with(1, text)
    }

    pub fn dim(self, text: &str) -> String {
        self.with(2, text)
    }

    pub fn colour(self, colour: Colour, text: &str) -> String {
        self.with(colour as u8, text)
    }
}

/// Returns the text without control characters, which could move the cursor.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Returns the text cut to `columns`.
pub fn fit(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    text.chars().take(columns.saturating_sub(1)).chain(['…']).collect()
}

/// Breaks text between words into lines of at most `columns`. `indent` starts every line but the first.
pub fn wrap(text: &str, columns: usize, indent: &str) -> String {
    let (mut out, mut used) = (String::new(), 0);
    for word in text.split_whitespace() {
        let width = word.chars().count();
        if used > 0 && used + 1 + width > columns {
            out += "\n";
            out += indent;
            used = 0;
        } else if used > 0 {
            out.push(' ');
            used += 1;
        }
        out.push_str(word);
        used += width;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_without_colours_is_unchanged() {
        let plain = Painter::new(false);
        assert_eq!(plain.bold("x") + &plain.colour(Colour::Red, "y"), "xy");
        let painted = Painter::new(true);
        assert_eq!(painted.colour(Colour::Red, "y"), "\x1b[31my\x1b[0m");
        assert_eq!(painted.dim(""), "");
    }

    #[test]
    fn long_text_is_cut_or_wrapped() {
        assert_eq!((fit("abcdef", 4), fit("abcd", 4)), ("abc…".into(), "abcd".into()));
        assert_eq!(wrap("one two three", 8, "  "), "one two\n  three");
        assert_eq!(printable("a\x1b[2Jb"), "a [2Jb");
    }
}
