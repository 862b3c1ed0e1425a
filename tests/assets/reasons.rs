//! The values that the label `reason` of an alert can have, read off its expressions.

use std::collections::{BTreeMap, BTreeSet};

use promql_parser::label::{MatchOp, Matcher};
use promql_parser::parser::{Expr, LabelModifier, VectorMatchCardinality, VectorSelector};

use super::files;
use super::promql::parse;
use super::vocabulary::Vocabulary;

/// The label.
const REASON: &str = "reason";
/// How far recorded series are followed.
const DEPTH: usize = 6;

type Values = BTreeSet<String>;

/// Reads expressions.
struct Reader {
    vocabulary: Vocabulary,
    /// Expressions by what they record.
    recorded: BTreeMap<String, Vec<String>>,
    problems: Vec<String>,
}

/// The reasons of each alert that has any, and what cannot be read.
pub fn reasons_of_alerts() -> (BTreeMap<String, Values>, Vec<String>) {
    let mut recorded: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (_, rule) in files::rules() {
        if let Some(name) = rule.record {
            recorded.entry(name).or_default().push(rule.expr);
        }
    }
    let mut reader = Reader { vocabulary: Vocabulary::new(), recorded, problems: Vec::new() };
    let mut all: BTreeMap<String, Values> = BTreeMap::new();
    let mut problems = Vec::new();
    for (file, name, rule) in files::alerts() {
        let mut values = reader.of_text(&rule.expr, DEPTH);
        if let Some(fixed) = rule.labels.get(REASON) {
            values = [fixed.clone()].into();
        }
        problems.extend(reader.problems.drain(..).map(|what| format!("{file}: {name}: {what}")));
        if !values.is_empty() {
            all.entry(name).or_default().extend(values);
        }
    }
    (all, problems)
}

impl Reader {
    fn of_text(&mut self, text: &str, depth: usize) -> Values {
        parse(text).map_or_else(|_| Values::new(), |expr| self.of(&expr, depth))
    }

    fn of(&mut self, expr: &Expr, depth: usize) -> Values {
        match expr {
            Expr::Aggregate(aggregate) => {
                let inner = self.of(&aggregate.expr, depth);
                let ranks = matches!(aggregate.op.to_string().as_str(), "topk" | "bottomk");
                let kept = match &aggregate.modifier {
                    _ if ranks => true,
                    None => false,
                    Some(LabelModifier::Include(by)) => by.labels.iter().any(|label| label == REASON),
                    Some(LabelModifier::Exclude(without)) => {
                        !without.labels.iter().any(|label| label == REASON)
                    }
                };
                if kept { inner } else { Values::new() }
            }
            Expr::Binary(binary) => {
                let (left, right) = (self.of(&binary.lhs, depth), self.of(&binary.rhs, depth));
                let modifier = binary.modifier.as_ref();
                let kept =
                    |from: &promql_parser::label::Labels| from.labels.iter().any(|label| label == REASON);
                let on = modifier.and_then(|modifier| modifier.matching.as_ref());
                match (binary.op.to_string().as_str(), modifier.map(|modifier| &modifier.card)) {
                    ("or", _) => left.union(&right).cloned().collect(),
                    ("and" | "unless", _) => left,
                    (_, Some(VectorMatchCardinality::OneToMany(from))) => {
                        if kept(from) {
                            left
                        } else {
                            right
                        }
                    }
                    (_, Some(VectorMatchCardinality::ManyToOne(from))) if kept(from) => right,
                    (_, Some(VectorMatchCardinality::ManyToOne(_))) => left,
                    _ => match on {
                        Some(LabelModifier::Include(on)) if !kept(on) => Values::new(),
                        Some(LabelModifier::Exclude(ignored)) if kept(ignored) => Values::new(),
                        _ if left.is_empty() => right,
                        _ => left,
                    },
                }
            }
            Expr::Call(call) => {
                let first = call.args.args.iter().find(|arg| !matches!(***arg, Expr::NumberLiteral(_)));
                let inner = first.map_or_else(Values::new, |arg| self.of(arg, depth));
                let text = |at: usize| match call.args.args.get(at).map(|arg| &**arg) {
                    Some(Expr::StringLiteral(text)) => text.val.clone(),
                    _ => String::new(),
                };
                if call.func.name != "label_replace" || text(1) != REASON {
                    return inner;
                }
                let value = text(2);
                if value.contains('$') {
                    self.problems.push(format!("label_replace makes a reason of a label: {value}"));
                    return inner;
                }
                // An empty expression of an empty label fits every series.
                let always = text(3).is_empty() && text(4).is_empty();
                let kept = if always { Values::new() } else { inner };
                kept.into_iter().chain([value].into_iter().filter(|value| !value.is_empty())).collect()
            }
            Expr::Unary(unary) => self.of(&unary.expr, depth),
            Expr::Paren(paren) => self.of(&paren.expr, depth),
            Expr::Subquery(subquery) => self.of(&subquery.expr, depth),
            Expr::VectorSelector(selector) => self.selector(selector, depth),
            Expr::MatrixSelector(matrix) => self.selector(&matrix.vs, depth),
            Expr::NumberLiteral(_) | Expr::StringLiteral(_) | Expr::Extension(_) => Values::new(),
        }
    }

    fn selector(&mut self, selector: &VectorSelector, depth: usize) -> Values {
        let Some(name) = selector.name.as_ref().filter(|_| depth > 0) else { return Values::new() };
        let own = self.vocabulary.get(name).and_then(|known| known.values.get(REASON));
        let mut values: Values =
            own.map(|values| values.iter().map(|value| (*value).to_owned()).collect()).unwrap_or_default();
        for text in self.recorded.get(name).cloned().unwrap_or_default() {
            values.extend(self.of_text(&text, depth - 1));
        }
        for matcher in selector.matchers.matchers.iter().filter(|matcher| matcher.name == REASON) {
            values.retain(|value| fits(matcher, value));
        }
        values
    }
}

/// Whether a matcher takes a value.
fn fits(matcher: &Matcher, value: &str) -> bool {
    match &matcher.op {
        MatchOp::Equal => matcher.value == value,
        MatchOp::NotEqual => matcher.value != value,
        MatchOp::Re(_) | MatchOp::NotRe(_) => {
            let whole = regex::Regex::new(&format!("^(?:{})$", matcher.value)).expect("it was parsed");
            whole.is_match(value) == matches!(matcher.op, MatchOp::Re(_))
        }
    }
}

#[test]
fn reasons_are_read_off_expressions() {
    let recorded =
        [("r:x:y".to_owned(), vec!["label_replace(up, \"reason\", \"made\", \"\", \"\")".to_owned()])];
    let mut reader =
        Reader { vocabulary: Vocabulary::new(), recorded: recorded.into(), problems: Vec::new() };
    let mut read = |text: &str| reader.of_text(text, DEPTH).into_iter().collect::<Vec<_>>().join(" ");
    for (text, reasons) in [
        ("up == 0", ""),
        ("gpu_unhealthy_reason{reason=~\"lost|stuck\"} == 1", "lost stuck"),
        ("max by (gpu, reason) (gpu_unhealthy_reason{reason=\"lost\"})", "lost"),
        ("max by (gpu) (gpu_unhealthy_reason)", ""),
        ("label_replace(gpu_unhealthy_reason, \"reason\", \"other\", \"\", \"\")", "other"),
        ("r:x:y or label_replace(up, \"reason\", \"b\", \"\", \"\")", "b made"),
        ("r:x:y{reason!=\"made\"}", ""),
        ("r:x:y unless on (instance) gpu_unhealthy_reason{reason=\"lost\"} == 1", "made"),
        ("up * on (instance) group_right () r:x:y", "made"),
        ("label_replace(r:x:y, \"reason\", \"c\", \"reason\", \"a\")", "c made"),
    ] {
        assert_eq!(read(text), reasons, "{text}");
    }
    read("label_replace(up, \"reason\", \"$1\", \"job\", \"(.*)\")");
    assert_eq!(reader.problems.len(), 1);
}
