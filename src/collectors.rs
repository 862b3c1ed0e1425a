//! Who gathers batches in the serving process. Each collector is one file and one line in [`start`]; it has
//! its own thread and cadence, never calls another, and speaks to the ledger alone.

pub mod canary;
pub mod cpu;
pub mod kmsg;
pub mod kubelet;
pub mod module;
pub mod nvml;
pub mod owners;
pub mod process;
pub mod topology;
pub mod windows;

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use attribution::pods::Pods;
use exposition::http;
use exposition::snapshot_cell::SnapshotCell;
use host::child::ChildSet;
use host::stop::Stop;
use ledger::inbox::{Inbox, LedgerEvent};
use model::catalog::schema::{Entity, LabelSet, Metric};
use model::catalog::{CollectorName, MetricId};
use model::clock::Mono;
use model::sample::{Rows, SWITCHED_OFF};
use settings::Config;

use crate::views::canary::CanaryFacts;
use crate::views::{self, View};

/// What every collector receives.
#[derive(Debug, Clone)]
pub struct Context {
    /// The checked configuration.
    pub config: Arc<Config>,
    /// Destination of batches and events.
    pub inbox: Arc<Inbox>,
    /// Ends the thread.
    pub stop: Arc<Stop>,
}

/// What single collectors receive beside the [`Context`].
#[derive(Debug, Clone)]
pub struct Parts {
    /// Metrics that are switched off.
    pub off: Arc<HashSet<MetricId>>,
    /// Process ids of the samplers alive.
    pub samplers: Arc<nvml::Pids>,
    /// Canary processes alive and their cost.
    pub canary_children: Arc<ChildSet>,
    /// Topology processes alive and their cost.
    pub topology_children: Arc<ChildSet>,
    /// Release of the driver and of the profiling counters.
    pub switch: Arc<nvml::switch::Switch>,
    /// State of the canary, for requests over the control socket.
    pub canary: Arc<canary::state::CanaryCell>,
    /// Devices that the kubelet has given out.
    pub pods: Arc<Pods>,
    /// The published snapshot, from which each collector gets its views.
    pub snapshots: Arc<SnapshotCell>,
    /// Counts of the HTTP server.
    pub http: Arc<http::Stats>,
}

/// Starts every collector: its source and its thread, which ends when [`Context::stop`] says so.
pub fn start(context: &Context, parts: &Parts) -> io::Result<Vec<(CollectorName, JoinHandle<()>)>> {
    let context = || context.clone();
    let Parts { off, samplers, canary_children, topology_children, switch, canary, pods, snapshots, http } =
        parts.clone();
    Ok(vec![
        (
            CollectorName::Nvml,
            nvml::start(
                context(),
                nvml::Parts { off: off.clone(), samplers: samplers.clone(), switch: switch.clone() },
            )?,
        ),
        (
            CollectorName::Process,
            process::start(
                context(),
                process::Sources {
                    samplers,
                    canary_children: canary_children.clone(),
                    topology_children: topology_children.clone(),
                    http,
                },
            )?,
        ),
        (CollectorName::Kmsg, kmsg::start(context())?),
        (CollectorName::Module, module::start(context(), switch.clone())?),
        (
            CollectorName::Canary,
            canary::start(
                context(),
                canary::Parts {
                    off,
                    canary_children,
                    switch,
                    canary,
                    pods: pods.clone(),
                    facts: View::new(&snapshots, CanaryFacts::of),
                },
            )?,
        ),
        (
            CollectorName::Topology,
            topology::start(context(), View::new(&snapshots, views::gpu_addresses), topology_children)?,
        ),
        (
            CollectorName::Owners,
            owners::start(context(), View::new(&snapshots, views::gpu_work), pods.clone())?,
        ),
        (CollectorName::Kubelet, kubelet::start(context(), pods)?),
        (
            CollectorName::Cpu,
            cpu::start(
                context(),
                cpu::Views {
                    topology: View::new(&snapshots, views::topology),
                    owners: View::new(&snapshots, views::owners),
                },
            )?,
        ),
        (CollectorName::Windows, windows::start(context())?),
    ])
}

/// The thread of a collector that is switched off: says so and waits for the end.
fn switched_off(context: &Context, source: CollectorName, key: &str) {
    context.inbox.event(LedgerEvent::CollectorUnavailable(source, Some(format!("{SWITCHED_OFF} ({key})"))));
    while !context.stop.stopped() {
        context.stop.wait_until(Mono::now() + Duration::from_secs(3600));
    }
}

/// Adds a number. A value outside the limits of its unit, which no counter of a live machine has, is no series.
fn put_row<E: Entity, L: LabelSet>(rows: &mut Rows, of: &E, metric: &Metric<E, L>, labels: L, value: f64) {
    if rows.of(of).put(metric, labels, value).is_err() {
        tracing::warn!(metric = metric.def().name, value, "value out of range");
    }
}
