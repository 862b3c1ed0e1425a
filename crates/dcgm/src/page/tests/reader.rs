//! A strict reader: what dcgm-exporter would answer with 500 is an error, and so is another order of the lines.

use crate::parse::{self, ParsedFamily, ParsedPage, ParsedSample};

pub trait OfPage {
    fn family(&self, name: &str) -> &ParsedFamily;
}

impl OfPage for ParsedPage {
    #[track_caller]
    fn family(&self, name: &str) -> &ParsedFamily {
        self.families.get(name).unwrap_or_else(|| panic!("no family {name}"))
    }
}

pub trait OfFamily {
    /// The samples with these labels.
    fn with(&self, labels: &[(&str, &str)]) -> Vec<ParsedSample>;
}

impl OfFamily for ParsedFamily {
    fn with(&self, labels: &[(&str, &str)]) -> Vec<ParsedSample> {
        let has =
            |sample: &&ParsedSample| labels.iter().all(|(name, value)| sample.label(name) == Some(*value));
        self.samples.iter().filter(has).cloned().collect()
    }
}

/// Reads a page: each family with HELP, TYPE and at least one sample, in this order, once.
pub fn read(text: &str) -> Result<ParsedPage, String> {
    let page = parse::read(text).map_err(|error| error.to_string())?;
    if let Some(series) = page.doubled.first() {
        return Err(format!("twice: {series}"));
    }
    let mut lines = text.lines().peekable();
    let mut families = 0;
    while let Some(line) = lines.next() {
        let help = line.strip_prefix("# HELP ").ok_or_else(|| format!("no HELP: {line}"))?;
        let (name, _) = help.split_once(' ').ok_or_else(|| format!("no help: {line}"))?;
        let declared = lines.next().unwrap_or_default();
        let kind = declared
            .strip_prefix(&format!("# TYPE {name} "))
            .ok_or_else(|| format!("no TYPE: {declared}"))?;
        if !["gauge", "counter", "untyped"].contains(&kind) {
            return Err(format!("no type: {declared}"));
        }
        let mut samples = 0;
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            if !line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{')) {
                return Err(format!("not of {name}: {line}"));
            }
            samples += 1;
        }
        let family = page.families.get(name).ok_or_else(|| format!("no sample of {name}"))?;
        if family.samples.len() != samples {
            return Err(format!("{name} is there twice"));
        }
        let is_value = |value: f64| value.is_finite() && (kind != "counter" || value >= 0.0);
        if !family.samples.iter().all(|sample| is_value(sample.value)) {
            return Err(format!("no value of a {kind}: {name}"));
        }
        families += 1;
    }
    if families == page.families.len() { Ok(page) } else { Err("a family is there twice".into()) }
}

#[test]
fn what_dcgm_exporter_refuses_is_refused() {
    let head = "# HELP a b\n# TYPE a gauge\n";
    assert!(read(&format!("{head}a{{b=\"c\"}} 1\n")).is_ok());
    for wrong in [
        "a{b=\"c\"} 1\na{b=\"c\"} 2\n",
        "a{b=\"c\"} NaN\n",
        "b{b=\"c\"} 1\n",
        "a{b=\"c\"} 1",
        "a{b=\"c\"} 1\n# HELP a b\n# TYPE a gauge\na{b=\"d\"} 1\n",
        "",
    ] {
        assert!(read(&format!("{head}{wrong}")).is_err(), "{wrong}");
    }
    assert!(read("# TYPE a gauge\na{b=\"c\"} 1\n").is_err());
    assert!(read("# HELP a b\n# TYPE a counter\na{b=\"c\"} -1\n").is_err());
}
