//! The tables of docs/migrating: names of other exporters, and what of ours gives the same number.
//!
//! dcgm-exporter's names are those of its page ([`dcgm::fields`]), all others in `tests/data/migrating`: name, unit, expression
//! (`none` where nothing of ours has it), and what is to be said of it. A first line `# ...` has the labels of that exporter,
//! with `EXPR` in the place of an expression. That each expression finds something is a test of `tests/e2e`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use dcgm::fields::{self, Release, TABLE};
use dcgm::page::CORRECTIONS;
use model::catalog::{METRICS, MetricGroup};
use regex::Regex;

use super::dcgm as page;
use super::promql::{Reader, parse};
use super::vocabulary::{Vocabulary, metric_of};
use super::{files, report};

const DCGM: &str = "dcgm-exporter";

/// A name of another exporter.
struct ForeignMetric {
    /// Several names of one thing with a comma and a blank.
    name: String,
    /// Its unit; of dcgm-exporter what it is, with the unit.
    unit: String,
    /// Empty: there is none.
    expression: String,
    remark: String,
    /// Whether something of ours serves it, under this name or by the expression.
    covered: bool,
}

/// An exporter, or a set of names.
struct ForeignTable {
    /// Its file, without the ending.
    file: String,
    /// What makes its labels of ours; empty if nothing.
    labels: String,
    metrics: Vec<ForeignMetric>,
}

fn foreign(file: &str) -> ForeignTable {
    let text = files::read(&files::root().join(format!("tests/data/migrating/{file}.tsv")));
    let (labels, rows): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with("# "));
    let metric = |line: &&str| {
        let mut columns = line.split('\t').map(str::to_owned);
        let mut next = || columns.next().unwrap_or_default();
        let (name, unit, expression, remark) = (next(), next(), next(), next());
        let covered = expression != "none";
        assert!(covered || !remark.is_empty(), "{file}: {name}: no reason");
        let expression = if covered { expression } else { String::new() };
        ForeignMetric { name, unit, expression, remark, covered }
    };
    let labels = labels.first().map_or("", |line| &line[2..]).to_owned();
    ForeignTable { file: file.to_owned(), labels, metrics: rows.iter().skip(1).map(metric).collect() }
}

/// dcgm-exporter's: one row a field and unit. A name of two units is that of the newest release.
fn of_dcgm() -> ForeignTable {
    let metric = |field: &'static fields::DcgmField| {
        let newest =
            |name: &&&str| fields::find(name, Release::V4_9).is_some_and(|found| found.id == field.id);
        let names: Vec<&str> = field.names.iter().filter(newest).copied().collect();
        ForeignMetric {
            name: names.join(", "),
            unit: field.help.to_owned(),
            expression: field.expression(),
            remark: field.remark().to_owned(),
            covered: field.is_served(),
        }
    };
    ForeignTable { file: DCGM.into(), labels: String::new(), metrics: TABLE.iter().map(metric).collect() }
}

/// Exporters, and other sets of names.
fn tables() -> Vec<ForeignTable> {
    let files = ["nvidia_gpu_exporter", "nvitop-exporter", "all-smi", "pynvml", "opentelemetry", "guide"];
    [of_dcgm()].into_iter().chain(files.into_iter().map(foreign)).collect()
}

/// Names that an expression uses, of the catalogue.
fn names(vocabulary: &Vocabulary, expression: &str) -> BTreeSet<String> {
    let Ok(read) = parse(expression) else { return BTreeSet::new() };
    let mut reader = Reader::new(vocabulary);
    reader.labels(&read);
    reader.names.iter().map(|name| metric_of(name).to_owned()).collect()
}

/// The groups without which an expression finds nothing, or lacks its zeros.
pub fn groups(vocabulary: &Vocabulary, expression: &str) -> BTreeSet<String> {
    let names = names(vocabulary, expression);
    let defs = METRICS.iter().filter(|def| names.contains(def.name));
    let needs = defs.filter_map(|def| {
        let served = def.except.iter().any(|value| expression.contains(&format!("\"{value}\"")));
        match def.group.filter(|_| !served)? {
            // A sum of states lacks nothing where only the one that holds is served. Of the clock events none may hold.
            MetricGroup::InactiveStates
                if expression.contains("sum without") && def.name != "gpu_clock_event_active" =>
            {
                None
            }
            MetricGroup::InactiveStates => Some("zeros: group `inactive-states`".to_owned()),
            group => Some(format!("group `{}`", group.name())),
        }
    });
    needs.collect()
}

/// Text in code, in a cell of a table.
fn code(text: &str) -> String {
    format!("`{}`", text.replace('|', "\\|"))
}

fn table(vocabulary: &Vocabulary, table: &ForeignTable) -> String {
    let mut text = String::new();
    if !table.labels.is_empty() {
        text += &format!("```promql\n{}\n```\n\n", table.labels);
    }
    let second = if table.file == DCGM { "what" } else { "unit" };
    text += &format!("| name | {second} | PromQL over `/metrics` | remark |\n|---|---|---|---|\n");
    for metric in &table.metrics {
        let names: Vec<String> = metric.name.split(", ").map(code).collect();
        let name = names.join(", ");
        let expression = match (metric.expression.as_str(), metric.covered) {
            ("", false) => "not covered".to_owned(),
            ("", true) => "none".to_owned(),
            (expression, _) => code(expression),
        };
        let remark = Some(metric.remark.clone()).filter(|remark| !remark.is_empty());
        let remarks: Vec<String> = remark.into_iter().chain(groups(vocabulary, &metric.expression)).collect();
        text += &format!("| {name} | {} | {expression} | {} |\n", metric.unit, remarks.join("; "));
    }
    text
}

/// How much of each is covered.
fn counts(tables: &[ForeignTable]) -> String {
    let mut text = String::from(
        "| from | names or fields | covered | of these by `/metrics` | not covered |\n|---|---|---|---|---|\n",
    );
    for table in tables {
        let count = |of: &dyn Fn(&&ForeignMetric) -> bool| table.metrics.iter().filter(of).count();
        let (all, covered) = (table.metrics.len(), count(&|metric| metric.covered));
        let by_metrics = count(&|metric| !metric.expression.is_empty());
        let (file, not) = (&table.file, all - covered);
        text += &format!("| [{file}](migrating/{file}.md) | {all} | {covered} | {by_metrics} | {not} |\n");
    }
    text
}

fn corrections() -> String {
    let rows = CORRECTIONS.iter().map(|(wrong, right)| format!("| {wrong} | {right} |\n"));
    format!("| `faithful` | `corrected` |\n|---|---|\n{}", rows.collect::<String>())
}

/// The pages with each block between `<!-- NAME -->` and `<!-- end -->` as `blocks` has it.
#[test]
fn the_tables_of_migrating_are_what_the_names_give() {
    let vocabulary = Vocabulary::new();
    let tables = tables();
    let mut blocks: BTreeMap<String, String> =
        tables.iter().map(|one| (one.file.clone(), table(&vocabulary, one))).collect();
    blocks.insert("counts".into(), counts(&tables));
    blocks.insert("corrections".into(), corrections());
    blocks.insert("objections".into(), page::objections());
    let mut problems = Vec::new();
    let pages =
        [vec![files::root().join("docs/migrating.md")], files::list("docs/migrating", ".md")].concat();
    for path in pages {
        let text = files::read(&path);
        let mut made = text.clone();
        for (name, block) in blocks.clone() {
            let start = format!("<!-- {name} -->\n");
            let Some(from) = made.find(&start).map(|at| at + start.len()) else { continue };
            let length = made[from..].find("<!-- end -->").expect("a block has an end");
            made.replace_range(from..from + length, &block);
            blocks.remove(&name);
        }
        if made == text {
            continue;
        }
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&path, made).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        } else {
            problems.push(format!("{}: UPDATE=1 cargo test -p assets writes it again", files::name(&path)));
        }
    }
    problems.extend(blocks.keys().map(|name| format!("no page has the block {name}")));
    report(problems);
}

#[test]
fn names_of_other_exporters_are_listed_once_and_expressions_use_what_is_served() {
    let vocabulary = Vocabulary::new();
    let ours = Regex::new(r"\bgpu_[a-z0-9_]+").expect("an expression");
    let mut problems = Vec::new();
    for table in tables() {
        let mut seen = BTreeSet::new();
        for metric in &table.metrics {
            let mut problem =
                |text: String| problems.push(format!("{}: {}: {text}", table.file, metric.name));
            for name in metric.name.split(", ").filter(|name| !seen.insert((*name).to_owned())) {
                problem(format!("{name} is listed twice"));
            }
            if !metric.expression.is_empty() {
                match parse(&metric.expression) {
                    Err(error) => problem(error),
                    Ok(read) => {
                        let mut reader = Reader::new(&vocabulary);
                        reader.labels(&read);
                        reader.problems.into_iter().for_each(&mut problem);
                    }
                }
            }
            for name in ours.find_iter(&metric.remark).map(|found| found.as_str()) {
                let known = |def: &&model::catalog::MetricDef| {
                    def.name == name || name.ends_with('_') && def.name.starts_with(name)
                };
                if METRICS.iter().find(known).is_none() {
                    problem(format!("there is no metric {name}"));
                }
            }
        }
    }
    report(problems);
}
