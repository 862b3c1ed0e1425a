//! A strict reader of the text format: what Prometheus refuses or dcgm-exporter would answer with 500 is an error.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug, PartialEq)]
pub struct PageSample {
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

impl PageSample {
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name).map(String::as_str)
    }
}

#[derive(Debug, Default)]
pub struct FamilyText {
    pub kind: String,
    pub samples: Vec<PageSample>,
}

impl FamilyText {
    /// The samples with these labels.
    pub fn of(&self, labels: &[(&str, &str)]) -> Vec<PageSample> {
        let has =
            |sample: &&PageSample| labels.iter().all(|(name, value)| sample.label(name) == Some(*value));
        self.samples.iter().filter(has).cloned().collect()
    }
}

#[derive(Debug, Default)]
pub struct Page {
    pub families: BTreeMap<String, FamilyText>,
}

impl Page {
    #[track_caller]
    pub fn family(&self, name: &str) -> &FamilyText {
        self.families.get(name).unwrap_or_else(|| panic!("no family {name}"))
    }
}

fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Reads a page: each family with HELP, TYPE and at least one sample, in this order, once.
pub fn read(text: &str) -> Result<Page, String> {
    let mut page = Page::default();
    let mut lines = text.lines().peekable();
    if !text.is_empty() && !text.ends_with('\n') {
        return Err("no end of line at the end".into());
    }
    while let Some(line) = lines.next() {
        let help = line.strip_prefix("# HELP ").ok_or_else(|| format!("no HELP: {line}"))?;
        let (name, help) = help.split_once(' ').ok_or_else(|| format!("no help: {line}"))?;
        unescaped(help, false)?;
        if !is_name(name) {
            return Err(format!("no name of a metric: {name}"));
        }
        let declared = lines.next().unwrap_or_default();
        let kind = declared
            .strip_prefix(&format!("# TYPE {name} "))
            .ok_or_else(|| format!("no TYPE: {declared}"))?;
        if !["gauge", "counter", "untyped"].contains(&kind) {
            return Err(format!("no type: {declared}"));
        }
        let mut family = FamilyText { kind: kind.to_owned(), samples: Vec::new() };
        let mut seen = BTreeSet::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            let rest = line.strip_prefix(name).and_then(|rest| rest.strip_prefix('{'));
            let rest = rest.ok_or_else(|| format!("not of {name}: {line}"))?;
            let sample = sample(rest).map_err(|error| format!("{error}: {line}"))?;
            if !sample.value.is_finite() || kind == "counter" && sample.value < 0.0 {
                return Err(format!("no value of a {kind}: {line}"));
            }
            if !seen.insert(sample.labels.clone()) {
                return Err(format!("twice: {line}"));
            }
            family.samples.push(sample);
        }
        if family.samples.is_empty() {
            return Err(format!("no sample of {name}"));
        }
        if page.families.insert(name.to_owned(), family).is_some() {
            return Err(format!("{name} is there twice"));
        }
    }
    Ok(page)
}

/// What follows the opening brace.
fn sample(mut rest: &str) -> Result<PageSample, String> {
    let mut labels = BTreeMap::new();
    loop {
        let (name, value) = rest.split_once("=\"").ok_or("no label")?;
        if !is_name(name) {
            return Err(format!("no name of a label: {name:?}"));
        }
        let end = end_of_value(value).ok_or("a value without end")?;
        let text = unescaped(&value[..end], true)?;
        if labels.insert(name.to_owned(), text).is_some() {
            return Err(format!("label {name} twice"));
        }
        rest = &value[end + 1..];
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => break,
        }
    }
    let number = rest.strip_prefix("} ").ok_or("no closing brace")?;
    let value: f64 = number.parse().map_err(|_| format!("no number: {number:?}"))?;
    Ok(PageSample { labels, value })
}

/// Position of the quote that ends the value.
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

fn unescaped(text: &str, quote: bool) -> Result<String, String> {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match char {
            '\\' => match chars.next() {
                Some('\\') => out.push('\\'),
                Some('n') => out.push('\n'),
                Some('"') if quote => out.push('"'),
                other => return Err(format!("no escape: \\{other:?}")),
            },
            '\n' => return Err("a line within a text".into()),
            char => out.push(char),
        }
    }
    Ok(out)
}

#[test]
fn what_prometheus_refuses_is_refused() {
    let head = "# HELP a b\n# TYPE a gauge\n";
    assert!(read(&format!("{head}a{{b=\"c\"}} 1\n")).is_ok());
    for wrong in [
        "a{b=\"c\"} 1\na{b=\"c\"} 2\n",
        "a{b=\"c\",b=\"d\"} 1\n",
        "a{b=\"c\\d\"} 1\n",
        "a{b=\"c\"} x\n",
        "a{b=\"c\"} NaN\n",
        "a{b=\"c} 1\n",
        "a{1b=\"c\"} 1\n",
        "b{b=\"c\"} 1\n",
        "a{b=\"c\"} 1",
        "",
    ] {
        assert!(read(&format!("{head}{wrong}")).is_err(), "{wrong}");
    }
    assert!(read("# TYPE a gauge\na{b=\"c\"} 1\n").is_err());
    assert!(read("# HELP a b\n# TYPE a counter\na{b=\"c\"} -1\n").is_err());
}
