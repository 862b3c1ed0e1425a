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
use host::child::Family;
use host::stop::Stop;
use ledger::inbox::{Inbox, LedgerEvent};
use model::catalog::MetricId;
use model::clock::Mono;
use model::sample::{SWITCHED_OFF, Source};
use settings::Config;

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
    pub canaries: Arc<Family>,
    /// Topology processes alive and their cost.
    pub topology_children: Arc<Family>,
    /// Release of the driver and of the profiling counters.
    pub switch: Arc<nvml::switch::Switch>,
    /// State of the canary, for requests over the control socket.
    pub canary: Arc<canary::desk::Desk>,
    /// Devices that the kubelet has given out.
    pub pods: Arc<Pods>,
    /// The published snapshot, from which each collector gets its views.
    pub snapshots: Arc<SnapshotCell>,
    /// Counts of the HTTP server.
    pub http: Arc<http::Stats>,
}

/// Starts every collector: its source and its thread, which ends when [`Context::stop`] says so.
pub fn start(context: &Context, parts: &Parts) -> io::Result<Vec<(Source, JoinHandle<()>)>> {
    let Context { config, inbox, stop } = context.clone();
    let context = || context.clone();
    let Parts { off, samplers, canaries, topology_children, switch, canary, pods, snapshots, http } =
        parts.clone();
    Ok(vec![
        (
            Source::Nvml,
            nvml::start(
                context(),
                nvml::Parts { off: off.clone(), samplers: samplers.clone(), switch: switch.clone() },
            )?,
        ),
        (
            Source::Process,
            process::start(
                context(),
                process::Sources {
                    samplers,
                    canaries: canaries.clone(),
                    topology_children: topology_children.clone(),
                    http,
                },
            )?,
        ),
        (Source::Kmsg, kmsg::start(context())?),
        (Source::Module, module::start(context(), switch.clone())?),
        (
            Source::Canary,
            canary::start(canary::Context {
                config,
                inbox,
                stop,
                off,
                canaries,
                switch,
                canary,
                pods: pods.clone(),
                board: snapshots.clone(),
            })?,
        ),
        (
            Source::Topology,
            topology::start(context(), View::new(&snapshots, views::gpu_addresses), topology_children)?,
        ),
        (Source::Owners, owners::start(context(), View::new(&snapshots, views::gpu_work), pods.clone())?),
        (Source::Kubelet, kubelet::start(context(), pods)?),
        (
            Source::Cpu,
            cpu::start(
                context(),
                cpu::Views {
                    topology: View::new(&snapshots, views::topology),
                    owners: View::new(&snapshots, views::owners),
                },
            )?,
        ),
        (Source::Windows, windows::start(context())?),
    ])
}

/// The thread of a collector that is switched off: says so and waits for the end.
fn switched_off(context: &Context, source: Source, key: &str) {
    context.inbox.event(LedgerEvent::CollectorUnavailable(source, Some(format!("{SWITCHED_OFF} ({key})"))));
    while !context.stop.stopped() {
        context.stop.wait_until(Mono::now() + Duration::from_secs(3600));
    }
}
