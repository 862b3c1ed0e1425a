//! Expressions read: which names and labels they use, which labels their result has, and what of it cannot be.

use std::collections::BTreeSet;
use std::time::Duration;

use promql_parser::label::{Labels, MatchOp, Matcher};
use promql_parser::parser::value::ValueType;
use promql_parser::parser::{
    AggregateExpr, BinaryExpr, Call, Expr, LabelModifier, VectorMatchCardinality, VectorSelector,
};

use super::vocabulary::Vocabulary;

/// Reads an expression.
pub fn parse(text: &str) -> Result<Expr, String> {
    promql_parser::parser::parse(text)
}

/// Labels of a result: all that some series of it may have; `None` where they are not known.
pub type LabelNames = Option<BTreeSet<String>>;

/// Reads one expression and keeps what it found.
#[derive(Debug)]
pub struct Reader<'a> {
    vocabulary: &'a Vocabulary,
    /// What is wrong.
    pub problems: Vec<String>,
    /// Names that were used.
    pub names: BTreeSet<String>,
    /// Labels that each selector matches on, with its name.
    pub selectors: Vec<(String, BTreeSet<String>)>,
    /// Ranges that `rate` and `irate` are taken over.
    pub rates: Vec<Duration>,
    /// Functions around what is read now.
    within: Vec<String>,
    /// Counters that stand in no function of growth.
    pub raw_counters: BTreeSet<String>,
}

/// Functions and aggregations that may be given a counter as it is: of growth, or of presence alone.
const FOR_COUNTERS: [&str; 12] = [
    "rate",
    "irate",
    "increase",
    "resets",
    "changes",
    "delta",
    "absent",
    "absent_over_time",
    "count",
    "count_over_time",
    "present_over_time",
    "group",
];

impl<'a> Reader<'a> {
    /// Nothing is read yet.
    pub fn new(vocabulary: &'a Vocabulary) -> Reader<'a> {
        Reader {
            vocabulary,
            problems: Vec::new(),
            names: BTreeSet::new(),
            selectors: Vec::new(),
            rates: Vec::new(),
            within: Vec::new(),
            raw_counters: BTreeSet::new(),
        }
    }

    /// Labels of the result.
    pub fn labels(&mut self, expr: &Expr) -> LabelNames {
        match expr {
            Expr::Aggregate(aggregate) => self.aggregate(aggregate),
            Expr::Binary(binary) => self.binary(binary),
            Expr::Call(call) => self.call(call),
            Expr::Unary(unary) => self.labels(&unary.expr),
            Expr::Paren(paren) => self.labels(&paren.expr),
            Expr::Subquery(subquery) => self.labels(&subquery.expr),
            Expr::VectorSelector(selector) => self.selector(selector),
            Expr::MatrixSelector(matrix) => self.selector(&matrix.vs),
            Expr::NumberLiteral(_) | Expr::StringLiteral(_) => Some(BTreeSet::new()),
            Expr::Extension(_) => None,
        }
    }

    fn selector(&mut self, selector: &VectorSelector) -> LabelNames {
        let by_name = |matcher: &&Matcher| matcher.name == "__name__" && matcher.op == MatchOp::Equal;
        let matchers = &selector.matchers.matchers;
        let name = selector.name.clone().or_else(|| Some(matchers.iter().find(by_name)?.value.clone()));
        let labels = matchers.iter().map(|matcher| matcher.name.clone()).collect();
        let Some(name) = name else {
            let listed = matchers.iter().find(|matcher| matcher.name == "__name__").map(literals);
            if let Some(names) = listed.filter(|names| !names.is_empty()) {
                for name in names {
                    if self.vocabulary.get(&name).is_none() {
                        self.problems.push(format!("there is no metric {name}"));
                    }
                    self.names.insert(name);
                }
                return None;
            }
            self.problems.push("a selector has no name".into());
            return None;
        };
        self.selectors.push((name.clone(), labels));
        self.names.insert(name.clone());
        let Some(known) = self.vocabulary.get(&name) else {
            self.problems.push(format!("there is no metric {name}"));
            return None;
        };
        if known.counter && !self.within.iter().any(|function| FOR_COUNTERS.contains(&function.as_str())) {
            self.raw_counters.insert(name.clone());
        }
        for matcher in matchers.iter().filter(|matcher| matcher.name != "__name__") {
            if known.labels.as_ref().is_some_and(|labels| !labels.contains(&matcher.name)) {
                self.problems.push(format!("{name} has no label {}", matcher.name));
            }
            let Some(values) = known.values.get(&matcher.name) else { continue };
            for value in literals(matcher) {
                if !values.contains(&value.as_str()) {
                    self.problems.push(format!("{name}: {} is never {value:?}", matcher.name));
                }
            }
        }
        known.labels.clone()
    }

    fn aggregate(&mut self, aggregate: &AggregateExpr) -> LabelNames {
        let op = aggregate.op.to_string();
        if let Some(param) = &aggregate.param {
            self.labels(param);
        }
        self.within.push(op.clone());
        let inner = self.labels(&aggregate.expr);
        self.within.pop();
        let mut labels = match &aggregate.modifier {
            _ if matches!(op.as_str(), "topk" | "bottomk") => inner,
            None => Some(BTreeSet::new()),
            Some(LabelModifier::Include(by)) => {
                self.all_known(by, &inner, &format!("{op} by"));
                Some(by.labels.iter().filter(|name| has(&inner, name)).cloned().collect())
            }
            Some(LabelModifier::Exclude(without)) => {
                inner.map(|inner| inner.into_iter().filter(|name| !without.labels.contains(name)).collect())
            }
        };
        if let (Some(labels), Some(Expr::StringLiteral(text))) = (&mut labels, aggregate.param.as_deref()) {
            labels.insert(text.val.clone());
        }
        labels
    }

    fn binary(&mut self, binary: &BinaryExpr) -> LabelNames {
        let (left, right) = (self.labels(&binary.lhs), self.labels(&binary.rhs));
        match (binary.lhs.value_type(), binary.rhs.value_type()) {
            (ValueType::Scalar, _) => return right,
            (_, ValueType::Scalar) => return left,
            _ => {}
        }
        let modifier = binary.modifier.as_ref();
        let matching = modifier.and_then(|modifier| modifier.matching.as_ref());
        if let Some(LabelModifier::Include(on)) = matching {
            self.all_known(on, &left, "on, left side");
            self.all_known(on, &right, "on, right side");
        }
        match binary.op.to_string().as_str() {
            "or" => return left.zip(right).map(|(left, right)| left.union(&right).cloned().collect()),
            "and" | "unless" => return left,
            _ => {}
        }
        let joined = |many: LabelNames, from: &Labels| {
            many.map(|many| many.into_iter().chain(from.labels.iter().cloned()).collect())
        };
        match modifier.map(|modifier| &modifier.card) {
            Some(VectorMatchCardinality::ManyToOne(from)) => {
                self.all_known(from, &right, "group_left");
                joined(left, from)
            }
            Some(VectorMatchCardinality::OneToMany(from)) => {
                self.all_known(from, &left, "group_right");
                joined(right, from)
            }
            _ => match matching {
                Some(LabelModifier::Include(on)) => {
                    left.map(|left| left.into_iter().filter(|name| on.labels.contains(name)).collect())
                }
                Some(LabelModifier::Exclude(ignoring)) => {
                    left.map(|left| left.into_iter().filter(|name| !ignoring.labels.contains(name)).collect())
                }
                None => left,
            },
        }
    }

    fn call(&mut self, call: &Call) -> LabelNames {
        let name = call.func.name;
        self.within.push(name.to_owned());
        let labels: Vec<LabelNames> = call.args.args.iter().map(|arg| self.labels(arg)).collect();
        self.within.pop();
        let text = |at: usize| match call.args.args.get(at).map(|arg| &**arg) {
            Some(Expr::StringLiteral(text)) => Some(text.val.clone()),
            _ => None,
        };
        if let (true, Some(Expr::MatrixSelector(matrix))) =
            (matches!(name, "rate" | "irate"), call.args.args.first().map(|arg| &**arg))
        {
            self.rates.push(matrix.range);
        }
        let vector = || {
            let at = call
                .args
                .args
                .iter()
                .position(|arg| matches!(arg.value_type(), ValueType::Vector | ValueType::Matrix));
            at.and_then(|at| labels.get(at).cloned())
        };
        match name {
            "vector" | "scalar" | "time" | "pi" => Some(BTreeSet::new()),
            "label_replace" | "label_join" => {
                vector().flatten().map(|labels| labels.into_iter().chain(text(1)).collect())
            }
            "histogram_quantile" => {
                let labels = vector().flatten();
                if labels.as_ref().is_some_and(|labels| !labels.contains("le")) {
                    self.problems.push("histogram_quantile is given no label le".into());
                }
                labels.map(|labels| labels.into_iter().filter(|label| label != "le").collect())
            }
            _ => vector().unwrap_or_else(|| Some(BTreeSet::new())),
        }
    }

    fn all_known(&mut self, wanted: &Labels, there: &LabelNames, place: &str) {
        for name in wanted.labels.iter().filter(|name| !has(there, name)) {
            // A label of the target that was aggregated away further in is empty on both sides.
            if !["cluster", "zone", "rack"].contains(&name.as_str()) {
                self.problems.push(format!("{place}: nothing has the label {name}"));
            }
        }
    }
}

fn has(labels: &LabelNames, name: &String) -> bool {
    labels.as_ref().is_none_or(|labels| labels.contains(name))
}

/// The texts that a matcher names; none where it is more than a list of them.
fn literals(matcher: &Matcher) -> Vec<String> {
    let plain = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "_- .:/+".contains(c));
    let listed = match &matcher.op {
        MatchOp::Equal | MatchOp::NotEqual => vec![matcher.value.as_str()],
        MatchOp::Re(_) | MatchOp::NotRe(_) => matcher.value.trim_matches(['(', ')']).split('|').collect(),
    };
    let dots = !matches!(matcher.op, MatchOp::Equal | MatchOp::NotEqual);
    let usable = |text: &&str| !text.is_empty() && plain(text) && !(dots && text.contains('.'));
    if listed.iter().all(usable) { listed.into_iter().map(str::to_owned).collect() } else { Vec::new() }
}

#[test]
fn impossible_expressions_are_found() {
    let vocabulary = Vocabulary::new();
    let read = |text: &str| {
        let mut reader = Reader::new(&vocabulary);
        let labels = reader.labels(&parse(text).unwrap());
        (labels.map(|labels| labels.into_iter().collect::<Vec<_>>().join(" ")), reader.problems)
    };
    for (text, problem) in [
        ("gpu_never_heard_of", "there is no metric gpu_never_heard_of"),
        ("gpu_up{owner=\"x\"}", "gpu_up has no label owner"),
        (
            "gpu_recovery_action{recovery_action!=\"nothing\"}",
            "gpu_recovery_action: recovery_action is never \"nothing\"",
        ),
        ("gpu_window_active{kind=~\"training|trainings\"}", "gpu_window_active: kind is never \"trainings\""),
        ("sum by (gpu) (gpu_driver_up)", "sum by: nothing has the label gpu"),
        ("gpu_up unless on (instance, gpu) gpu_driver_up", "on, right side: nothing has the label gpu"),
        (
            "sum by (job) (gpu_up) / on (instance) gpu_devices",
            "on, left side: nothing has the label instance",
        ),
        ("gpu_up * on (gpu) group_left (colour) gpu_info", "group_left: nothing has the label colour"),
        (
            "histogram_quantile(0.9, sum(rate(gpu_power_sample_watts_bucket[5m])))",
            "histogram_quantile is given no label le",
        ),
        ("{job=\"x\"}", "a selector has no name"),
    ] {
        assert_eq!(read(text).1, [problem], "{text}");
    }
    for (text, labels) in [
        ("sum by (cluster, gpu) (gpu_up) > 1", "cluster gpu"),
        ("gpu_driver_up == on (instance) gpu_devices", "instance"),
        ("gpu_devices > gpu_devices_expected", "cluster instance job rack zone"),
        (
            "gpu_devices * on (instance) group_left (driver_version) gpu_driver_info",
            "cluster driver_version instance job rack zone",
        ),
        ("topk(3, gpu_devices)", "cluster instance job rack zone"),
        ("label_replace(vector(1), \"a\", \"b\", \"\", \"\")", "a"),
        ("2 * sum without (instance) (gpu_devices)", "cluster job rack zone"),
    ] {
        assert_eq!(read(text), (Some(labels.to_owned()), Vec::new()), "{text}");
    }
}

#[test]
fn rates_and_bare_counters_are_seen() {
    let vocabulary = Vocabulary::new();
    let mut reader = Reader::new(&vocabulary);
    reader.labels(&parse("rate(gpu_resets_total[7m]) + gpu_xid_faults_total").unwrap());
    assert_eq!(reader.rates, [Duration::from_secs(420)]);
    assert_eq!(reader.raw_counters, BTreeSet::from(["gpu_xid_faults_total".to_owned()]));
}
