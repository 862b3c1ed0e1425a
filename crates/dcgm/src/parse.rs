//! Parser for Prometheus's text format 0.0.4, for pages of any exporter.
//!
//! The parser accepts the same pages as Prometheus: families in any order and repeated, histograms, timestamps, and
//! families without `# TYPE`. Like Prometheus, it keeps the first of equal series. It records the names of the others.

use std::collections::{BTreeMap, BTreeSet};

use model::text::clean;

/// Series with its value.
#[derive(Clone, Debug, PartialEq)]
pub struct ParsedSample {
    /// Labels of the series by name.
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

impl ParsedSample {
    /// Returns the value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name).map(String::as_str)
    }
}

/// All series of one name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ParsedFamily {
    /// Type from `# TYPE`; empty if the family has no such line.
    pub kind: String,
    /// Text from `# HELP`.
    pub help: String,
    /// Series in the order of the page.
    pub samples: Vec<ParsedSample>,
}

/// Page as a map of families.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParsedPage {
    /// Families that have at least one series.
    pub(crate) families: BTreeMap<String, ParsedFamily>,
    /// Repeated series, which were dropped.
    pub(crate) doubled: Vec<String>,
}

/// Error for a line that does not follow the format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {fault}: {text}")]
pub struct ParseError {
    /// Line number, starting at 1.
    pub line: usize,
    /// Description of the fault.
    pub fault: &'static str,
    /// Beginning of the line, shortened for the message.
    pub text: String,
}

/// Description of a fault before its line number is added.
type Fault = &'static str;

/// Maximum length of the quoted line in an error, in bytes.
const MAX_TEXT: usize = 120;

/// Parses a page and returns an error for the first faulty line.
pub fn read(text: &str) -> Result<ParsedPage, ParseError> {
    if !text.is_empty() && !text.ends_with('\n') {
        let last = text.lines().last().unwrap_or_default();
        let fault = "the page is cut off within a line";
        return Err(ParseError { line: text.lines().count(), fault, text: clean(last, MAX_TEXT) });
    }
    let mut page = ParsedPage::default();
    let mut seen = BTreeSet::new();
    for (at, line) in text.lines().enumerate() {
        let fault = |fault| ParseError { line: at + 1, fault, text: clean(line, MAX_TEXT) };
        page.read_line(line.trim(), &mut seen).map_err(fault)?;
    }
    page.families.retain(|_, family| !family.samples.is_empty());
    Ok(page)
}

impl ParsedPage {
    fn read_line(&mut self, line: &str, seen: &mut BTreeSet<(String, String)>) -> Result<(), Fault> {
        if let Some(comment) = line.strip_prefix('#') {
            return self.declare(comment.trim_start());
        }
        if line.is_empty() {
            return Ok(());
        }
        let (name, sample) = sample(line)?;
        let key = (name.to_owned(), format!("{:?}", sample.labels));
        if !seen.insert(key) {
            let series = line.rsplit_once(' ').map_or(line, |(series, _)| series);
            self.doubled.push(clean(series, MAX_TEXT));
            return Ok(());
        }
        let family = self.family_of(name).to_owned();
        self.families.entry(family).or_default().samples.push(sample);
        Ok(())
    }

    fn declare(&mut self, comment: &str) -> Result<(), Fault> {
        let (word, rest) = comment.split_once(' ').unwrap_or((comment, ""));
        let (name, text) = rest.trim_start().split_once(' ').unwrap_or((rest, ""));
        if !["HELP", "TYPE"].contains(&word) {
            return Ok(());
        }
        if !is_name(name) {
            return Err("not a metric name");
        }
        let family = self.families.entry(name.to_owned()).or_default();
        match word {
            "HELP" => family.help = unescaped(text)?,
            _ => family.kind = clean(text, MAX_TEXT),
        }
        Ok(())
    }

    /// Returns the family of a series: its own name, or the name of its histogram or summary.
    fn family_of<'a>(&self, name: &'a str) -> &'a str {
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
        let is_base = |base: &&str| {
            self.families.get(*base).is_some_and(|family| ["histogram", "summary"].contains(&&*family.kind))
        };
        base.filter(is_base).unwrap_or(name)
    }
}

/// Parses the line of one series into its name, labels and value.
pub fn sample(line: &str) -> Result<(&str, ParsedSample), &'static str> {
    let end = line.find(|char: char| char == '{' || char.is_whitespace()).ok_or("no value")?;
    let (name, mut rest) = line.split_at(end);
    if !is_name(name) {
        return Err("not a metric name");
    }
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside.trim_start();
        while !rest.starts_with('}') {
            let (name, value) = rest.split_once('=').ok_or("no label")?;
            let name = name.trim();
            if !is_name(name) || name.contains(':') {
                return Err("not a label name");
            }
            let value = value.trim_start().strip_prefix('"').ok_or("a label without a quoted value")?;
            let end = end_of_value(value).ok_or("an unclosed label value")?;
            if labels.insert(name.to_owned(), unescaped(&value[..end])?).is_some() {
                return Err("a duplicate label");
            }
            rest = value[end + 1..].trim_start();
            match rest.strip_prefix(',') {
                Some(more) => rest = more.trim_start(),
                None if rest.starts_with('}') => {}
                None => return Err("a quote within a label value, or no closing brace"),
            }
        }
        rest = &rest[1..];
    }
    let mut numbers = rest.split_whitespace();
    let value = numbers.next().ok_or("no value")?.parse().map_err(|_| "the value is not a number")?;
    if numbers.next().is_some_and(|timestamp| timestamp.parse::<i64>().is_err()) || numbers.next().is_some() {
        return Err("more than a value and a timestamp");
    }
    Ok((name, ParsedSample { labels, value }))
}

/// Returns true if the text can be a metric name, or a label name if it has no colon.
fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || b"_:".contains(&first))
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"_:".contains(&byte))
}

/// Returns the position of the quote that ends the value.
fn end_of_value(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Some(at),
            _ => {}
        }
    }
    None
}

fn unescaped(text: &str) -> Result<String, Fault> {
    if !text.contains('\\') {
        return Ok(text.to_owned());
    }
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match char {
            '\\' => match chars.next() {
                Some('\\') => out.push('\\'),
                Some('n') => out.push('\n'),
                Some('"') => out.push('"'),
                _ => return Err("an unknown escape"),
            },
            char => out.push(char),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_prometheus_takes_is_taken() {
        let page = read(
            "# a comment\n#HELP a the\\nfirst\n# TYPE a gauge\na{b=\"c\\\"\\\\\\n\",} 1e+06 1700000000000\n\n\
             a{ b = \"d\" , c=\"}\" }\t+Inf\n# TYPE h histogram\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 2\n\
             b_total NaN\n# HELP empty no series\n# TYPE a gauge\na 2\n",
        )
        .unwrap();
        assert_eq!(page.families.keys().collect::<Vec<_>>(), ["a", "b_total", "h"]);
        let a = &page.families["a"];
        assert_eq!((&*a.kind, &*a.help, a.samples.len()), ("gauge", "the\nfirst", 3));
        assert_eq!((a.samples[0].label("b"), a.samples[0].value), (Some("c\"\\\n"), 1e6));
        assert_eq!((a.samples[1].label("c"), a.samples[1].value), (Some("}"), f64::INFINITY));
        assert_eq!(page.families["h"].samples.len(), 3);
        assert!(page.families["b_total"].samples[0].value.is_nan());
        assert_eq!(page.doubled, [""; 0]);
        assert_eq!(read("").unwrap(), ParsedPage::default());
    }

    #[test]
    fn what_prometheus_refuses_is_refused_with_its_line() {
        for (wrong, fault) in [
            ("a{b=\"c\",b=\"d\"} 1\n", "a duplicate label"),
            ("a{b=\"c\\d\"} 1\n", "an unknown escape"),
            ("a{b=\"c\"} x\n", "the value is not a number"),
            ("a{b=\"c} 1\n", "an unclosed label value"),
            // dcgm-exporter until 4.8.2 writes quotes this way.
            ("a{b=\"one \"two\" three\"} 1\n", "a quote within a label value, or no closing brace"),
            ("a{1b=\"c\"} 1\n", "not a label name"),
            ("a{b=c} 1\n", "a label without a quoted value"),
            ("<html> x\n", "not a metric name"),
            ("a 1 2 3\n", "more than a value and a timestamp"),
            ("a\n", "no value"),
            ("a{b=\"c\"} 1", "the page is cut off within a line"),
        ] {
            let error = read(&format!("ok 1\n{wrong}")).unwrap_err();
            assert_eq!((error.line, error.fault), (2, fault), "{wrong}");
        }
    }

    #[test]
    fn of_equal_series_the_first_counts() {
        let page = read("a{b=\"c\",d=\"e\"} 1\na{d=\"e\",b=\"c\"} 2\na 1\n").unwrap();
        assert_eq!((page.families["a"].samples.len(), page.families["a"].samples[0].value), (2, 1.0));
        assert_eq!(page.doubled, ["a{d=\"e\",b=\"c\"}"]);
    }

    proptest! {
        #[test]
        fn no_text_is_more_than_an_error(text in "(?s).{0,200}") {
            let _ = read(&text);
        }

        #[test]
        fn a_label_value_is_read_as_it_was(value in "(?s).{0,20}") {
            let escaped = value.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"");
            let line = format!("a{{b=\"{escaped}\"}} 1");
            let (_, sample) = sample(&line).unwrap();
            prop_assert_eq!(sample.label("b"), Some(&*value));
        }
    }
}
