//! Minutes of a node's pages, and a day made of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Seconds between two pages, and between two samples of the day.
pub const STEP: u64 = 60;

/// Pages of one node, one each [`STEP`].
#[derive(Default)]
pub struct Tape {
    /// When each was read, in seconds since 1970.
    times: Vec<f64>,
    series: BTreeMap<Series, Vec<Option<f64>>>,
    counters: BTreeSet<String>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Series {
    name: String,
    /// Without braces; empty without labels.
    labels: String,
}

impl Tape {
    /// Adds a page in text format 0.0.4.
    pub fn add(&mut self, at: f64, page: &str) {
        let before = self.times.len();
        self.times.push(at);
        for line in page.lines() {
            if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
                if matches!(kind, "counter" | "histogram" | "summary") {
                    self.counters.insert(name.to_owned());
                }
                continue;
            }
            let Some((series, value)) = line.rsplit_once(' ').filter(|_| !line.starts_with('#')) else {
                continue;
            };
            let Ok(value) = value.parse() else { continue };
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let labels = labels.strip_suffix('}').unwrap_or(labels).trim_end_matches(',');
            let series = Series { name: name.to_owned(), labels: labels.to_owned() };
            let values = self.series.entry(series).or_insert_with(|| vec![None; before]);
            values.push(Some(value));
        }
        for values in self.series.values_mut() {
            values.resize(before + 1, None);
        }
    }

    /// Names of its metrics.
    #[cfg(test)]
    pub fn names(&self) -> BTreeSet<&str> {
        self.series.keys().map(|series| series.name.as_str()).collect()
    }

    /// A day of these metrics, from that second on: the pages over and over. Counters go on where the last round left
    /// them, moments keep their distance from now.
    pub fn day(&self, from: u64, seconds: u64, wanted: &BTreeSet<String>) -> Day {
        let pages = self.times.len();
        let samples = (seconds / STEP) as usize;
        let start = self.times.first().copied().unwrap_or(0.0);
        let mut series = Vec::new();
        for (Series { name, labels }, recorded) in
            self.series.iter().filter(|(s, _)| wanted.contains(&s.name))
        {
            let known: Vec<f64> = recorded.iter().flatten().copied().collect();
            let (Some(first), Some(last)) = (known.first(), known.last()) else { continue };
            let family = ["_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end));
            let counts = self.counters.contains(name) || family.is_some_and(|f| self.counters.contains(f));
            // Of one round: as much as between the first and the last page, and a step more.
            let round =
                if counts && pages > 1 { (last - first) * pages as f64 / (pages - 1) as f64 } else { 0.0 };
            let moment = name.ends_with("_timestamp_seconds") || name == "process_start_time_seconds";
            let moves = moment && last > first;
            let value = |n: usize| {
                let (rounds, page) = (n / pages, n % pages);
                let mut value = recorded[page]? + rounds as f64 * round;
                if moment && value > 0.0 {
                    value += from as f64 - start;
                }
                if moves {
                    value += (rounds * pages) as f64 * STEP as f64;
                }
                Some(value)
            };
            series.push((name.clone(), labels.clone(), (0..samples).map(value).collect()));
        }
        Day { from, series }
    }
}

/// A day of a node.
pub struct Day {
    from: u64,
    /// Names, labels without braces, and a value each [`STEP`].
    series: Vec<(String, String, Vec<Option<f64>>)>,
}

impl Day {
    /// Adds a series of its own.
    pub fn constant(&mut self, name: &str, value: f64) {
        let samples = self.series.first().map_or(0, |(_, _, values)| values.len());
        self.series.push((name.to_owned(), String::new(), vec![Some(value); samples]));
    }

    /// How many series and samples there are.
    pub fn size(&self) -> (usize, usize) {
        (self.series.len(), self.series.iter().map(|(_, _, values)| values.iter().flatten().count()).sum())
    }

    /// As OpenMetrics with these labels of the scrape, in order of time within each series.
    pub fn openmetrics(&self, scrape: &str) -> String {
        let mut text = String::new();
        for (name, labels, values) in &self.series {
            let series = joined(name, labels, scrape);
            for (n, value) in values.iter().enumerate() {
                if let Some(value) = value {
                    let _ = writeln!(text, "{series} {value} {}", self.from + n as u64 * STEP);
                }
            }
        }
        text.push_str("# EOF\n");
        text
    }

    /// As the series of a test of rules, whose clock begins at 0: moments count from there.
    pub fn test_series(&self, scrape: &str) -> String {
        let mut text = String::new();
        for (name, labels, values) in &self.series {
            let moment = name.ends_with("_timestamp_seconds") || name == "process_start_time_seconds";
            let from = if moment { self.from as f64 } else { 0.0 };
            let series = joined(name, labels, scrape).replace('\'', "''");
            let _ = write!(text, "      - series: '{series}'\n        values: '");
            for value in values {
                let _ = match value {
                    // What lies before the day would be before the clock.
                    Some(value) if moment => write!(text, "{} ", (value - from).max(0.0)),
                    Some(value) => write!(text, "{value} "),
                    None => write!(text, "_ "),
                };
            }
            text.push_str("'\n");
        }
        text
    }
}

fn joined(name: &str, labels: &str, scrape: &str) -> String {
    let comma = if labels.is_empty() { "" } else { "," };
    format!("{name}{{{labels}{comma}{scrape}}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_go_on_gauges_repeat_and_moments_move_with_the_day() {
        let mut tape = Tape::default();
        for (n, count) in [10.0, 12.0, 16.0].into_iter().enumerate() {
            let at = 1000.0 + 60.0 * n as f64;
            let page = format!(
                "# TYPE a_total counter\na_total{{x=\"y z\"}} {count}\n# TYPE b gauge\nb {n}\n\
                 # TYPE c_timestamp_seconds gauge\nc_timestamp_seconds {at}\nd_timestamp_seconds 900\n"
            );
            tape.add(at, &page);
        }
        let wanted = tape.names().into_iter().map(str::to_owned).collect();
        let day = tape.day(5000, 300, &wanted);
        let of = |name: &str| -> Vec<f64> {
            let series = day.series.iter().find(|(n, _, _)| n == name).unwrap();
            series.2.iter().map(|value| value.unwrap()).collect()
        };
        // From 10 to 16 in two steps is 9 in three.
        assert_eq!(of("a_total"), [10.0, 12.0, 16.0, 19.0, 21.0]);
        assert_eq!(of("b"), [0.0, 1.0, 2.0, 0.0, 1.0]);
        assert_eq!(of("c_timestamp_seconds"), [5000.0, 5060.0, 5120.0, 5180.0, 5240.0]);
        assert_eq!(of("d_timestamp_seconds"), [4900.0; 5]);
        assert!(day.openmetrics("job=\"j\"").contains("a_total{x=\"y z\",job=\"j\"} 21 5240\n"));
        assert!(
            day.test_series("job=\"j\"").contains("'c_timestamp_seconds{job=\"j\"}'\n        values: '0 60 ")
        );
    }
}
