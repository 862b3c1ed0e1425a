//! Writing markup: every text from outside goes through [`esc`]; numbers for people: GiB, MHz, %.

use std::fmt;
use std::time::Duration;

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

const GIB: f64 = (1u64 << 30) as f64;

/// Bytes as GiB, without the unit.
pub fn gib(bytes: f64) -> String {
    let gib = bytes / GIB;
    if gib >= 1000.0 { format!("{gib:.0}") } else { format!("{gib:.1}") }
}

/// A share as percent, without the sign.
pub fn percent(ratio: f64) -> String {
    format!("{:.0}", ratio * 100.0)
}

/// Hertz as MHz, without the unit.
pub fn mhz(hertz: f64) -> String {
    format!("{:.0}", hertz / 1e6)
}

/// A whole number; thousands apart, so that large counts can be read.
pub fn count(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            // A narrow space that does not break.
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

/// Seconds as a duration; zero for what is none.
pub fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_a_text_stays_text() {
        let text = r#"<b class="x">é & 'y'</b>"#;
        assert_eq!(esc(text).to_string(), "&lt;b class=&quot;x&quot;&gt;é &amp; &#39;y&#39;&lt;/b&gt;");
    }

    #[test]
    fn figures_are_for_people() {
        assert_eq!(gib(150.754e9), "140.4");
        assert_eq!(gib(2e12), "1863");
        assert_eq!(percent(0.974), "97");
        assert_eq!(mhz(1.98e9), "1980");
        assert_eq!(count(0.0), "0");
        assert_eq!(count(999.0), "999");
        assert_eq!(count(1_234_567.0), "1\u{202f}234\u{202f}567");
        assert_eq!(seconds(-1.0), Duration::ZERO);
        assert_eq!(seconds(f64::NAN), Duration::ZERO);
    }
}
