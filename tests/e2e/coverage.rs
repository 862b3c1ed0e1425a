//! What real GPUs answered is read, or left out for a reason that the documents give.

use std::collections::BTreeSet;

use sampler::{fields_read, gpm_metrics_read};

use super::node::Setup;

const ANSWERED: &str = include_str!("../data/nvml-answered.txt");
const NOT_READ: &str = include_str!("../../docs/NVML.md");

/// What the document says is not read: functions (without version), fields and GPM metrics. Each is there once.
struct LeftOut(BTreeSet<String>);

impl LeftOut {
    fn read() -> LeftOut {
        let mut found = LeftOut(BTreeSet::new());
        for row in NOT_READ.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")).skip(1) {
            let (what, why) = row.split_once(" | ").expect("two columns");
            assert!(why.ends_with('.') && !why.contains('|'), "{row}");
            let kinds = [("fields ", "field"), ("GPM metrics ", "gpm")];
            let numbers = kinds.iter().find_map(|(word, kind)| Some((*kind, what.strip_prefix(word)?)));
            match numbers {
                Some((kind, ranges)) => {
                    for range in ranges.split(", ") {
                        let (from, to) = range.split_once(" to ").unwrap_or((range, range));
                        let ids = from.parse::<u32>().unwrap()..=to.parse().unwrap();
                        ids.for_each(|id| found.add(format!("{kind} {id}")));
                    }
                }
                None => what.split(", ").for_each(|name| found.add(name.trim_matches('`').to_owned())),
            }
        }
        assert!(found.0.len() > 50);
        found
    }

    fn add(&mut self, member: String) {
        assert!(self.0.insert(member.clone()), "{member} is there twice");
    }

    fn function(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    fn number(&self, kind: &str, id: u32) -> bool {
        self.0.contains(&format!("{kind} {id}"))
    }
}

/// Names or numbers of one kind in the list of what was answered.
fn answered(kind: &str) -> Vec<&'static str> {
    let lines = ANSWERED.lines().filter_map(|line| line.strip_prefix(kind)?.strip_prefix(' '));
    let names: Vec<_> = lines.filter_map(|rest| rest.split(' ').next()).collect();
    assert!(names.len() > 50, "{kind}");
    names
}

fn numbers(kind: &str) -> impl Iterator<Item = u32> {
    answered(kind).into_iter().map(|n| n.parse().unwrap())
}

/// A function's name without the version at its end.
fn unversioned(name: &str) -> &str {
    match name.rsplit_once("_v") {
        Some((base, version)) if version.bytes().all(|b| b.is_ascii_digit()) => base,
        _ => name,
    }
}

/// The number of a field in drivers from 580.82 on, by that of the bindings.
fn renumbered(id: u32) -> u32 {
    match id {
        251..=255 => id + 18,
        256..=273 => id - 5,
        same => same,
    }
}

#[test]
fn every_function_that_real_gpus_answered_is_called_or_left_out_for_a_reason() {
    // What is read only where it is switched on.
    let setup = Setup::new("tests/scenarios/node-8xh200.toml").with("PROCESSES__PER_PROCESS", "true");
    let node = setup.with("SAMPLER__PCIE_THROUGHPUT", "true").start();
    node.wait_ready();
    // The last calls of the rare and of the once tier, and those of the node and the events.
    let called = |page: &super::node::Metrics| -> BTreeSet<String> {
        let calls = page.0.iter().filter(|(name, ..)| name == "gpu_exporter_driver_calls_total");
        calls.map(|(_, labels, _)| unversioned(&labels["call"]).to_owned()).collect()
    };
    let left_out = LeftOut::read();
    let missing = |page: &super::node::Metrics| -> Vec<&str> {
        let called = called(page);
        let read = |name: &str| called.contains(unversioned(name)) || left_out.function(unversioned(name));
        answered("function").into_iter().filter(|name| !read(name)).collect()
    };
    node.wait_for("all functions", |node| missing(&node.metrics()).is_empty());
    let page = node.metrics();
    let both: Vec<_> =
        called(&page).into_iter().filter(|name| left_out.function(unversioned(name))).collect();
    assert!(both.is_empty(), "read, and said to be left out: {both:?}");
}

#[test]
fn every_field_that_real_gpus_answered_is_read_or_left_out_for_a_reason() {
    let left_out = LeftOut::read();
    let read: BTreeSet<u32> = fields_read().map(renumbered).collect();
    let missing: Vec<_> =
        numbers("field").filter(|id| !read.contains(id) && !left_out.number("field", *id)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let both: Vec<_> = read.into_iter().filter(|id| left_out.number("field", *id)).collect();
    assert!(both.is_empty(), "read, and said to be left out: {both:?}");
}

#[test]
fn every_gpm_metric_that_real_gpus_answered_is_read_or_left_out_for_a_reason() {
    let left_out = LeftOut::read();
    let read: BTreeSet<u32> = gpm_metrics_read().collect();
    let missing: Vec<_> =
        numbers("gpm").filter(|id| !read.contains(id) && !left_out.number("gpm", *id)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let both: Vec<_> = read.into_iter().filter(|id| left_out.number("gpm", *id)).collect();
    assert!(both.is_empty(), "read, and said to be left out: {both:?}");
}
