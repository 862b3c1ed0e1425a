//! Prometheus's text format 0.0.4, which `prometheus-client` does not support. It has no `# UNIT` and no `# EOF`, an info
//! metric is a gauge, and a family has the full name (`_total`, `_info`).

use model::catalog::{Kind, MetricDef};
use model::snapshot::{Histogram, Series, Snapshot, Value};

/// Largest value (2^53) up to which a float represents every whole number.
const WHOLE: f64 = 9_007_199_254_740_992.0;

/// Returns the number as an integer if it is whole and small enough to be exact.
pub fn whole(value: f64) -> Option<i64> {
    (value.abs() < WHOLE && value.fract() == 0.0).then_some(value as i64)
}

/// Appends a sample value: an integer if it is whole, otherwise the shortest decimal that parses to the same value.
fn push_value(out: &mut String, value: f64) {
    match whole(value) {
        Some(whole) => out.push_str(itoa::Buffer::new().format(whole)),
        None => push_float(out, value),
    }
}

/// Appends a number that always has a decimal point or an exponent (`1.0`). `prometheus-client` formats bucket bounds
/// and histogram sums in this way.
fn push_float(out: &mut String, value: f64) {
    out.push_str(dtoa::Buffer::new().format(value));
}

/// Appends the snapshot in the text format.
pub fn encode(snapshot: &Snapshot, out: &mut String) {
    let node = node_labels(snapshot);
    for family in snapshot.scraped() {
        let def = family.def;
        let kind = match def.kind {
            Kind::Gauge | Kind::Info => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
        };
        push_all(out, &["# HELP ", def.name, " "]);
        push_escaped(out, def.help(), false);
        push_all(out, &["\n# TYPE ", def.name, " ", kind, "\n"]);
        for series in family.scraped() {
            match &series.value {
                Value::Number(value) => {
                    out.push_str(def.name);
                    push_labels(out, &node, def, series, None);
                    out.push(' ');
                    push_value(out, *value);
                    out.push('\n');
                }
                Value::Histogram(histogram) => push_histogram(out, &node, def, series, histogram),
            }
        }
    }
}

/// Returns the encoded labels that every series has.
fn node_labels(snapshot: &Snapshot) -> String {
    let mut labels = String::new();
    for (name, value) in &*snapshot.node_labels {
        let before = if labels.is_empty() { '{' } else { ',' };
        push_label(&mut labels, before, name, value);
    }
    labels
}

fn push_histogram(
    out: &mut String,
    node: &str,
    def: &'static MetricDef,
    series: &Series,
    histogram: &Histogram,
) {
    push_all(out, &[def.name, "_sum"]);
    push_labels(out, node, def, series, None);
    out.push(' ');
    push_float(out, histogram.sum);
    push_all(out, &["\n", def.name, "_count"]);
    push_labels(out, node, def, series, None);
    out.push(' ');
    push_count(out, histogram.count());

    let mut cumulative = 0;
    for (at, count) in histogram.counts.iter().enumerate() {
        cumulative += count;
        push_all(out, &["\n", def.name, "_bucket"]);
        push_labels(out, node, def, series, Some(histogram.bounds.get(at).copied()));
        out.push(' ');
        push_count(out, cumulative);
    }
    out.push('\n');
}

/// Appends the labels in braces, or nothing if there are none. `node` contains the labels of the node with the opening
/// brace. `le` is `Some` for a bucket and contains its upper bound, or `None` for the last bucket.
fn push_labels(
    out: &mut String,
    node: &str,
    def: &'static MetricDef,
    series: &Series,
    le: Option<Option<f64>>,
) {
    out.push_str(node);
    let mut before = if node.is_empty() { '{' } else { ',' };
    if let Some(bound) = le {
        out.push(before);
        out.push_str("le=\"");
        match bound {
            Some(bound) => push_float(out, bound),
            None => out.push_str("+Inf"),
        }
        out.push('"');
        before = ',';
    }
    for (name, value) in series.label_pairs(def) {
        push_label(out, before, name, value);
        before = ',';
    }
    if before == ',' {
        out.push('}');
    }
}

fn push_label(out: &mut String, before: char, name: &str, value: &str) {
    out.push(before);
    push_all(out, &[name, "=\""]);
    push_escaped(out, value, true);
    out.push('"');
}

/// Appends text with escaped backslashes and newlines and, in label values, escaped double quotes.
fn push_escaped(out: &mut String, text: &str, quote: bool) {
    let mut from = 0;
    for (at, byte) in text.bytes().enumerate() {
        let escape = match byte {
            b'\\' => "\\\\",
            b'\n' => "\\n",
            b'"' if quote => "\\\"",
            _ => continue,
        };
        push_all(out, &[&text[from..at], escape]);
        from = at + 1;
    }
    out.push_str(&text[from..]);
}

fn push_count(out: &mut String, count: u64) {
    out.push_str(itoa::Buffer::new().format(count));
}

fn push_all(out: &mut String, parts: &[&str]) {
    for part in parts {
        out.push_str(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value(v: f64) -> String {
        let mut out = String::new();
        push_value(&mut out, v);
        out
    }

    #[test]
    fn whole_numbers_have_no_point() {
        assert_eq!(value(0.0), "0");
        assert_eq!(value(-0.0), "0");
        assert_eq!(value(-12.0), "-12");
        assert_eq!(value(0.25), "0.25");
        assert_eq!(value(9_007_199_254_740_991.0), "9007199254740991");
        assert_eq!(value(1.980e9), "1980000000");
        assert!(value(WHOLE).contains('.'));
    }

    proptest! {
        #[test]
        fn numbers_read_back_the_same(v in prop::num::f64::NORMAL | prop::num::f64::ZERO) {
            prop_assert_eq!(value(v).parse::<f64>().unwrap(), v);
        }
    }
}
