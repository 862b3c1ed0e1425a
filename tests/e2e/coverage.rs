//! What real GPUs answered is read, or left out for a reason that the documents give.

use std::collections::BTreeSet;

use model::catalog::left_out;
use sampler::{fields_read, gpm_metrics_read};

use super::node::Setup;

const ANSWERED: &str = include_str!("../data/nvml-answered.txt");

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
    let node = Setup::new("tests/scenarios/node-8xh200.toml").with("PROCESSES__PER_PROCESS", "true").start();
    node.wait_ready();
    // The last calls of the rare and of the once tier, and those of the node and the events.
    let called = |page: &super::node::Metrics| -> BTreeSet<String> {
        let calls = page.0.iter().filter(|(name, ..)| name == "gpu_exporter_driver_calls_total");
        calls.map(|(_, labels, _)| unversioned(&labels["call"]).to_owned()).collect()
    };
    let missing = |page: &super::node::Metrics| -> Vec<&str> {
        let called = called(page);
        let read = |name: &str| called.contains(unversioned(name)) || left_out::function(name);
        answered("function").into_iter().filter(|name| !read(name)).collect()
    };
    node.wait_for("all functions", |node| missing(&node.metrics()).is_empty());
    let page = node.metrics();
    let both: Vec<_> = called(&page).into_iter().filter(|name| left_out::function(name)).collect();
    assert!(both.is_empty(), "read, and said to be left out: {both:?}");
}

#[test]
fn every_field_that_real_gpus_answered_is_read_or_left_out_for_a_reason() {
    let read: BTreeSet<u32> = fields_read().map(renumbered).collect();
    let missing: Vec<_> = numbers("field").filter(|id| !read.contains(id) && !left_out::field(*id)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let both: Vec<_> = read.into_iter().filter(|id| left_out::field(*id)).collect();
    assert!(both.is_empty(), "read, and said to be left out: {both:?}");
}

#[test]
fn every_gpm_metric_that_real_gpus_answered_is_read_or_left_out_for_a_reason() {
    let read: BTreeSet<u32> = gpm_metrics_read().collect();
    let missing: Vec<_> =
        numbers("gpm").filter(|id| !read.contains(id) && !left_out::gpm_metric(*id)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let both: Vec<_> = read.into_iter().filter(|id| left_out::gpm_metric(*id)).collect();
    assert!(both.is_empty(), "read, and said to be left out: {both:?}");
}
