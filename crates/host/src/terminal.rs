//! Text for people at a terminal. Colours repeat what symbols and words say, so that the text is whole without them.

use std::io::IsTerminal;

/// Colour of a mark or a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    Red = 31,
    Green = 32,
    Yellow = 33,
    Cyan = 36,
}

/// Adds bold type and colours (SGR sequences), or leaves the text as it is.
#[derive(Clone, Copy, Debug)]
pub struct Painter {
    colours: bool,
}

/// Whether standard output takes colours: it is a terminal, and the user has not set `NO_COLOR`
/// (<https://no-color.org>).
pub fn stdout_has_colours() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stdout().is_terminal() && !refused
}

/// Most columns of a line of text for people at a terminal.
const COLUMNS: usize = 100;

/// How long lines on standard output may be; `None` where a program or file takes them, which gets them whole.
pub fn stdout_columns() -> Option<usize> {
    std::io::stdout().is_terminal().then_some(COLUMNS)
}

/// Shows a line of progress on standard error, in place of the one before, if that is a terminal; an empty one at the end.
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

/// Text without control characters, which could move the cursor.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Text cut to so many columns.
pub fn fit(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    text.chars().take(columns.saturating_sub(1)).chain(['…']).collect()
}

/// Text in lines of so many columns, broken between words; `indent` begins every line but the first.
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
