//! Report of the doctor, as a document and as text.

use std::collections::BTreeMap;

use serde::Serialize;

use host::terminal::{Colour, Painter};

use super::families::{Family, Standing};

/// Verdict of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// The state is as expected.
    Well,
    /// Remark on something that the exporter works without.
    Note,
    /// A problem that needs a fix.
    Wrong,
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub topic: &'static str,
    pub verdict: Verdict,
    pub text: String,
    /// Command that fixes the problem.
    pub fix: Option<String>,
}

impl Finding {
    /// Creates a finding without a fix.
    pub fn new(topic: &'static str, verdict: Verdict, text: impl Into<String>) -> Finding {
        Finding { topic, verdict, text: text.into(), fix: None }
    }

    pub fn well(topic: &'static str, text: impl Into<String>) -> Finding {
        Finding::new(topic, Verdict::Well, text)
    }

    pub fn note(topic: &'static str, text: impl Into<String>) -> Finding {
        Finding::new(topic, Verdict::Note, text)
    }

    pub fn wrong(topic: &'static str, text: impl Into<String>) -> Finding {
        Finding::new(topic, Verdict::Wrong, text)
    }

    /// Adds the command that fixes the problem.
    pub fn fix(self, command: impl Into<String>) -> Finding {
        Finding { fix: Some(command.into()), ..self }
    }
}

/// Cost of one NVML function on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Cost {
    pub call: String,
    pub calls: usize,
    pub fastest_nanoseconds: u64,
    pub median_nanoseconds: u64,
}

/// Computes the costs, most expensive function first.
pub fn costs(calls: BTreeMap<String, Vec<u64>>) -> Vec<Cost> {
    let cost = |(call, mut nanos): (String, Vec<u64>)| {
        nanos.sort_unstable();
        let (fastest, median) = (*nanos.first()?, *nanos.get(nanos.len() / 2)?);
        Some(Cost { call, calls: nanos.len(), fastest_nanoseconds: fastest, median_nanoseconds: median })
    };
    let mut costs: Vec<Cost> = calls.into_iter().filter_map(cost).collect();
    costs.sort_by_key(|cost| std::cmp::Reverse(cost.median_nanoseconds));
    costs
}

/// Report. Field names are stable; new fields may be added.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// Release of the exporter.
    pub version: &'static str,
    /// True if nothing is wrong.
    pub well: bool,
    /// Results of all checks.
    pub findings: Vec<Finding>,
    /// State of the metrics that are read from the driver; empty if the driver was not queried.
    pub metrics: Vec<Family>,
    /// Costs of the NVML functions.
    pub calls: Vec<Cost>,
}

impl Report {
    pub fn new(findings: Vec<Finding>, metrics: Vec<Family>, calls: Vec<Cost>) -> Report {
        let well = findings.iter().all(|finding| finding.verdict != Verdict::Wrong);
        Report { version: env!("CARGO_PKG_VERSION"), well, findings, metrics, calls }
    }

    /// Formats the report for a terminal.
    pub fn text(&self, colours: bool) -> String {
        let mut out = String::new();
        let paint = Painter::new(colours);
        for Finding { topic, verdict, text, fix } in &self.findings {
            let (symbol, colour) = match verdict {
                Verdict::Well => ("✓", Colour::Green),
                Verdict::Note => ("i", Colour::Cyan),
                Verdict::Wrong => ("✕", Colour::Red),
            };
            out += &format!("{} {topic:<17} {text}\n", paint.colour(colour, symbol));
            if let Some(fix) = fix {
                out += &format!("  {:<17} -> {}\n", "", paint.bold(fix));
            }
        }
        if !self.metrics.is_empty() {
            out += &format!("\n{}\n", paint.bold("Metrics read from the driver"));
        }
        for (standing, title) in [
            (Standing::Works, "works"),
            (Standing::Failed, "failed"),
            (Standing::NotPermitted, "not permitted"),
            (Standing::Unsupported, "unsupported"),
            (Standing::Nothing, "nothing to report here"),
            (Standing::Off, "turned off"),
        ] {
            let of: Vec<&Family> = self.metrics.iter().filter(|family| family.standing == standing).collect();
            if !of.is_empty() {
                out += &format!("  {title}: {}\n", of.len());
            }
            for family in of {
                let why = if family.why.is_empty() { String::new() } else { format!(" ({})", family.why) };
                out += &format!("    {}{why}\n", family.metric);
            }
        }
        if !self.calls.is_empty() {
            let head = "Cost of the NVML calls, in microseconds";
            out += &format!("\n{}\n", paint.bold(head));
            out += &format!("  {:>10} {:>10} {:>6}  call\n", "fastest", "median", "calls");
        }
        for cost in &self.calls {
            let us = |nanos: u64| nanos as f64 / 1e3;
            let (fastest, median) = (us(cost.fastest_nanoseconds), us(cost.median_nanoseconds));
            out += &format!("  {fastest:>10.1} {median:>10.1} {:>6}  {}\n", cost.calls, cost.call);
        }
        let sum = match self.findings.iter().filter(|finding| finding.verdict == Verdict::Wrong).count() {
            0 => "Nothing is wrong.".to_owned(),
            1 => "1 thing is wrong.".to_owned(),
            n => format!("{n} things are wrong."),
        };
        out + &format!("\n{}\n", paint.bold(&sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let findings =
            vec![Finding::well("user", "me"), Finding::wrong("driver", "away").fix("sudo modprobe nvidia")];
        let family = |metric, standing, why: &str| Family { metric, standing, why: why.into() };
        let metrics = vec![
            family("gpu_power_watts", Standing::Works, ""),
            family("gpu_energy_joules_total", Standing::Unsupported, "nvmlX"),
        ];
        let calls: BTreeMap<String, Vec<u64>> =
            [("cheap".into(), vec![3000, 1000, 2000]), ("expensive".into(), vec![9_000_000])].into();
        Report::new(findings, metrics, costs(calls))
    }

    #[test]
    fn the_command_that_fixes_it_is_below_what_is_wrong() {
        let text = report().text(false);
        assert!(
            text.contains("✕ driver            away\n                    -> sudo modprobe nvidia\n"),
            "{text}"
        );
        assert!(text.contains("unsupported: 1\n    gpu_energy_joules_total (nvmlX)\n"), "{text}");
        assert!(text.contains("         1.0        2.0      3  cheap\n"), "{text}");
        assert!(text.find("expensive") < text.find("cheap"), "most expensive first");
        assert!(text.ends_with("1 thing is wrong.\n") && !text.contains('\x1b'), "{text}");
        assert!(report().text(true).contains("\x1b[31m✕\x1b[0m"));
    }

    #[test]
    fn the_document_says_the_same() {
        let json: serde_json::Value = serde_json::to_value(report()).unwrap();
        assert_eq!(json["well"], false);
        assert_eq!(json["findings"][1]["verdict"], "wrong");
        assert_eq!(json["metrics"][1]["standing"], "unsupported");
        assert_eq!(json["calls"][1]["median_nanoseconds"], 2000);
    }
}
