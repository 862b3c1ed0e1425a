//! The cases of the rules' tests, each with the rules that it needs. promtool evaluates every rule of every file at every
//! step of every case: nine of ten have nothing to do with what the case asks for.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use promql_parser::label::Matcher;
use promql_parser::parser::{AggregateExpr, Expr, VectorSelector};
use promql_parser::util::{ExprVisitor, walk_expr};
use serde::Deserialize;
use yaml_serde::Value;

use super::files;
use super::promql::parse;

/// Series that Prometheus makes of alerts.
const OF_ALERTS: [&str; 2] = ["ALERTS", "ALERTS_FOR_STATE"];

/// One rule: as it is written, and what it reads.
#[derive(Clone, Debug)]
pub struct Rule {
    document: Value,
    record: Option<String>,
    alert: Option<String>,
    reads: Reads,
}

/// The groups of a rule file, as they are written, each with its rules.
pub type Groups = Vec<(Value, Vec<Rule>)>;

/// What an expression reads, and words of templates, one of which may name a series.
#[derive(Clone, Debug, Default)]
struct Reads {
    selectors: Vec<VectorSelector>,
    words: BTreeSet<String>,
}

impl ExprVisitor for Reads {
    type Error = String;

    fn pre_visit(&mut self, expr: &Expr) -> Result<bool, String> {
        match expr {
            Expr::VectorSelector(selector) => self.selectors.push(selector.clone()),
            Expr::MatrixSelector(matrix) => self.selectors.push(matrix.vs.clone()),
            // The walk leaves it out.
            Expr::Aggregate(AggregateExpr { param: Some(param), .. }) => {
                walk_expr(self, param)?;
            }
            _ => {}
        }
        Ok(true)
    }
}

impl Reads {
    fn of(text: &str) -> Result<Reads, String> {
        let mut reads = Reads::default();
        walk_expr(&mut reads, &parse(text).map_err(|error| format!("{text}: {error}"))?)?;
        Ok(reads)
    }

    fn any(&self, rule: &Rule) -> bool {
        let named = |name: &String| self.words.contains(name);
        rule.record.iter().chain(&rule.alert).any(named)
            || self.selectors.iter().any(|selector| selects(selector, rule))
    }
}

/// Whether a selector may select what a rule makes.
fn selects(selector: &VectorSelector, rule: &Rule) -> bool {
    let of = |label: &str, value: &str| {
        let mut matchers = selector.matchers.matchers.iter().filter(|matcher| matcher.name == label);
        matchers.all(|matcher: &Matcher| matcher.is_match(value))
    };
    let named =
        |name: &str| selector.name.as_ref().is_none_or(|selected| selected == name) && of("__name__", name);
    rule.record.as_ref().is_some_and(|record| named(record))
        || rule
            .alert
            .as_ref()
            .is_some_and(|alert| OF_ALERTS.iter().any(|name| named(name)) && of("alertname", alert))
}

fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    let parts = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    parts.filter(|word| !word.is_empty()).map(str::to_owned)
}

/// Reads the rule files at these paths.
pub fn rules(paths: &[PathBuf]) -> BTreeMap<PathBuf, Groups> {
    paths.iter().map(|path| (path.clone(), groups(&files::name(path), &files::read(path)))).collect()
}

fn groups(name: &str, text: &str) -> Groups {
    #[derive(Deserialize)]
    struct File {
        groups: Vec<Value>,
    }
    let file: File = yaml_serde::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"));
    let rule = |document: Value| {
        let of: files::Rule =
            yaml_serde::from_value(document.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut reads = Reads::of(&of.expr).unwrap_or_else(|error| panic!("{name}: {error}"));
        reads.words =
            of.annotations.values().chain(of.labels.values()).flat_map(|text| words(text)).collect();
        Rule { document, record: of.record, alert: of.alert, reads }
    };
    let group = |mut group: Value| {
        let rules = group.get_mut("rules").map(std::mem::take);
        let rules = rules.as_ref().and_then(Value::as_sequence).cloned().unwrap_or_default();
        (group, rules.into_iter().map(rule).collect())
    };
    file.groups.into_iter().map(group).collect()
}

/// What a case asks for.
#[derive(Deserialize)]
struct Asked {
    name: String,
    #[serde(default)]
    alert_rule_test: Vec<Alert>,
    #[serde(default)]
    promql_expr_test: Vec<Expression>,
}

#[derive(Deserialize)]
struct Alert {
    alertname: String,
}

#[derive(Deserialize)]
struct Expression {
    expr: String,
}

/// A file of tests without its cases: how they are evaluated.
#[derive(Deserialize)]
struct File {
    rule_files: Vec<String>,
    tests: Vec<Value>,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

/// The rules of these groups that a case needs: those that it asks for, and those that these read. An error names an alert
/// that none of them has.
fn needed(groups: &[&(Value, Vec<Rule>)], asked: &Asked) -> Result<Vec<Value>, String> {
    let mut reads = Reads::default();
    for asked in &asked.promql_expr_test {
        reads.selectors.extend(Reads::of(&asked.expr)?.selectors);
    }
    for asked in &asked.alert_rule_test {
        let mut alerts = groups.iter().flat_map(|(_, rules)| rules).filter_map(|rule| rule.alert.as_ref());
        if !alerts.any(|alert| *alert == asked.alertname) {
            return Err(format!("none of rule_files has {}", asked.alertname));
        }
        reads.words.insert(asked.alertname.clone());
    }
    let mut kept: Vec<Vec<bool>> = groups.iter().map(|(_, rules)| vec![false; rules.len()]).collect();
    loop {
        let mut more = false;
        for ((_, rules), kept) in groups.iter().zip(&mut kept) {
            for (rule, kept) in rules.iter().zip(kept).filter(|(_, kept)| !**kept) {
                if reads.any(rule) {
                    (*kept, more) = (true, true);
                    reads.selectors.extend(rule.reads.selectors.iter().cloned());
                    reads.words.extend(rule.reads.words.iter().cloned());
                }
            }
        }
        if !more {
            break;
        }
    }
    let of = |((group, rules), kept): (&&(Value, Vec<Rule>), Vec<bool>)| {
        let rules = rules.iter().zip(kept).filter(|(_, kept)| *kept).map(|(rule, _)| rule.document.clone());
        let rules: Vec<Value> = rules.collect();
        let mut group = group.clone();
        group["rules"] = Value::Sequence(rules.clone());
        (!rules.is_empty()).then_some(group)
    };
    Ok(groups.iter().zip(kept).filter_map(of).collect())
}

/// A case on its own.
#[derive(Debug)]
pub struct Case {
    /// Its name, with the file that it is in.
    pub name: String,
    /// What promtool is given.
    pub path: PathBuf,
}

/// Writes each case of a file of tests into a folder, with the rules that it needs.
pub fn split(test: &Path, rules: &BTreeMap<PathBuf, Groups>, folder: &Path) -> Result<Vec<Case>, String> {
    let name = files::name(test);
    let file: File = yaml_serde::from_str(&files::read(test)).map_err(|error| format!("{name}: {error}"))?;
    let mut groups = Vec::new();
    for rule_file in &file.rule_files {
        let path = test.with_file_name(rule_file).canonicalize();
        let known = path.ok().and_then(|path| rules.get(&path));
        groups.extend(known.ok_or_else(|| format!("{name}: there is no rule file {rule_file}"))?);
    }
    let text = |value: &Value| yaml_serde::to_string(value).expect("it was read");
    let one = |(at, case): (usize, Value)| {
        let asked: Asked =
            yaml_serde::from_value(case.clone()).map_err(|error| format!("{name}, case {at}: {error}"))?;
        let case_name = format!("{name}: {}", asked.name);
        let needed = needed(&groups, &asked).map_err(|what| format!("{case_name}: {what}"))?;
        let place = |kind: &str| {
            let stem = test.file_stem().expect("it has a name").to_string_lossy();
            folder.join(format!("{stem}.{at}.{kind}.yml"))
        };
        let (rules_path, path) = (place("rules"), place("case"));
        let mut document = file.rest.clone();
        document.insert("rule_files".into(), Value::Sequence(vec![rules_path.to_string_lossy().into()]));
        document.insert("tests".into(), Value::Sequence(vec![case]));
        let rules = BTreeMap::from([("groups", Value::Sequence(needed))]);
        let rules = yaml_serde::to_value(rules).expect("it was read");
        let document = yaml_serde::to_value(document).expect("it was read");
        for (path, document) in [(&rules_path, rules), (&path, document)] {
            std::fs::write(path, text(&document)).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(Case { name: case_name, path })
    };
    file.tests.into_iter().enumerate().map(one).collect()
}

/// What promtool says, with the names of cases in the place of their paths.
pub fn named(cases: &[Case], said: &str) -> String {
    let name = |said: String, case: &Case| said.replace(&*case.path.to_string_lossy(), &case.name);
    cases.iter().fold(said.to_owned(), name)
}

#[test]
fn a_case_has_the_rules_that_it_needs() {
    let groups = groups(
        "rules",
        r#"
groups:
  - name: records
    interval: 15s
    rules:
      - {record: 'a:one', expr: 'gpu_up'}
      - {record: 'a:two', expr: 'quantile(scalar(a:one), gpu_up)'}
      - {record: 'b:three', expr: 'max_over_time(gpu_up[5m])'}
      - {record: 'b:four', expr: 'gpu_devices'}
  - name: alerts
    interval: 1m
    rules:
      - {alert: Hot, expr: 'a:two > 0'}
      - {alert: Cold, expr: 'gpu_up unless on () ALERTS{alertname="Hot"}'}
      - {alert: Asks, expr: 'gpu_up', annotations: {description: '{{ query "b:three" }}'}}
"#,
    );
    let groups: Vec<_> = groups.iter().collect();
    let names = |alerts: &[&str], expressions: &[&str]| -> Result<Vec<String>, String> {
        let alert_rule_test =
            alerts.iter().map(|alert| Alert { alertname: (*alert).to_owned() }).collect::<Vec<_>>();
        let promql_expr_test =
            expressions.iter().map(|expr| Expression { expr: (*expr).to_owned() }).collect();
        let asked = Asked { name: "case".into(), alert_rule_test, promql_expr_test };
        let kept = needed(&groups, &asked)?;
        let rules = kept.iter().flat_map(|group| group["rules"].as_sequence().unwrap());
        let name =
            |rule: &Value| rule.get("record").or(rule.get("alert")).unwrap().as_str().unwrap().to_owned();
        Ok(rules.map(name).collect())
    };
    let all = ["a:one", "a:two", "b:three", "Hot", "Cold", "Asks"].map(String::from);
    for (alerts, expressions, rules) in [
        (&["Hot"][..], &[][..], "a:one a:two Hot"),
        (&["Cold"], &[], "a:one a:two Hot Cold"),
        (&["Asks"], &["b:four"], "b:three b:four Asks"),
        (&[], &["ALERTS{alertname!~\"Hot|Cold\"}"], "b:three Asks"),
        (&[], &["ALERTS_FOR_STATE"], &all.join(" ")),
        (&[], &["{__name__=~\"a:.*\"}"], "a:one a:two"),
        (&[], &["gpu_up"], ""),
    ] {
        assert_eq!(names(alerts, expressions).unwrap().join(" "), rules, "{alerts:?} {expressions:?}");
    }
    assert_eq!(names(&["Warm"], &[]), Err("none of rule_files has Warm".into()));
}
