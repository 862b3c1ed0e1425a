//! Writing markup: every text from outside goes through [`esc`].

use std::fmt;

/// Text that shows as it is, in an element or in a quoted attribute.
pub struct Esc<'a>(&'a str);

/// Escapes a text.
pub fn esc(text: &str) -> Esc<'_> {
    Esc(text)
}

impl fmt::Display for Esc<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut from = 0;
        for (at, byte) in self.0.bytes().enumerate() {
            let entity = match byte {
                b'&' => "&amp;",
                b'<' => "&lt;",
                b'>' => "&gt;",
                b'"' => "&quot;",
                b'\'' => "&#39;",
                _ => continue,
            };
            f.write_str(&self.0[from..at])?;
            f.write_str(entity)?;
            from = at + 1;
        }
        f.write_str(&self.0[from..])
    }
}

/// Appends formatted markup to a string, which cannot fail.
macro_rules! put {
    ($out:expr, $($format:tt)+) => {{
        use std::fmt::Write as _;
        let _ = write!($out, $($format)+);
    }};
}
pub(super) use put;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_a_text_stays_text() {
        let text = r#"<b class="x">é & 'y'</b>"#;
        assert_eq!(esc(text).to_string(), "&lt;b class=&quot;x&quot;&gt;é &amp; &#39;y&#39;&lt;/b&gt;");
    }
}
