//! Checks of what is served beside the metrics: alert rules, dashboards and runbooks, against the catalogue of metrics,
//! against each other, and with their own tools (promtool, amtool).
//!
//! Every check collects all that is wrong before it fails.

mod cases;
mod commands;
mod conformance;
mod coverage;
mod dashboards;
mod dashboards_links;
mod dashboards_lint;
mod dcgm;
mod files;
mod inhibitions;
mod kubernetes;
mod migrating;
mod promql;
mod reasons;
mod recorder;
mod release;
mod rollouts;
mod rules;
mod runbooks;
mod templates;
mod tools;
mod vocabulary;

/// Fails with all problems, a line each.
#[track_caller]
fn report(problems: Vec<String>) {
    assert!(problems.is_empty(), "{} problems:\n{}\n", problems.len(), problems.join("\n"));
}
