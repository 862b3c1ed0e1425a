//! Who gathers batches in the serving process. Each collector is one file and one line in [`ALL`]; it has
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
use ledger::inbox::{Event, Inbox};
use model::catalog::MetricId;
use model::clock::Mono;
use model::sample::{SWITCHED_OFF, Source};
use settings::Config;

/// What a collector is given.
#[derive(Debug, Clone)]
pub struct Context {
    /// The checked configuration.
    pub config: Arc<Config>,
    /// Metrics that are switched off.
    pub off: Arc<HashSet<MetricId>>,
    /// Where batches go.
    pub inbox: Arc<Inbox>,
    /// When to end.
    pub stop: Arc<Stop>,
    /// Process ids of the samplers alive, kept by `nvml`, read by `process`.
    pub samplers: Arc<nvml::Pids>,
    /// The canary's processes: whoever starts one lets it join, `process` tells what they cost.
    pub canary_children: Arc<ChildSet>,
    /// The topology's processes, likewise.
    pub topology_children: Arc<ChildSet>,
    /// What people ask of `nvml` while the daemon runs; `module` tells it what it sees.
    pub switch: Arc<nvml::switch::Switch>,
    /// Where the canary's collector and those who ask about it meet.
    pub canary: Arc<canary::state::CanaryCell>,
    /// Windows of planned work: `windows` looks after them, people order them over the control socket.
    pub windows: Arc<crate::collectors::windows::desk::Desk>,
    /// What the kubelet has given out, kept by `kubelet`; `owners` and `canary` look at it.
    pub pods: Arc<Pods>,
    /// What is published.
    pub board: Arc<SnapshotCell>,
    /// What the HTTP server counts of itself.
    pub http: Arc<http::Stats>,
}

/// A collector: its name and how it starts.
#[derive(Debug)]
pub struct Collector {
    /// Which it is.
    pub source: Source,
    /// Starts it; the thread ends when [`Context::stop`] says so.
    pub start: fn(Context) -> io::Result<JoinHandle<()>>,
}

/// Every collector.
pub const ALL: &[Collector] = &[
    Collector { source: Source::Nvml, start: nvml::start },
    Collector { source: Source::Process, start: process::start },
    Collector { source: Source::Kmsg, start: kmsg::start },
    Collector { source: Source::Module, start: module::start },
    Collector { source: Source::Canary, start: canary::start },
    Collector { source: Source::Topology, start: topology::start },
    Collector { source: Source::Owners, start: owners::start },
    Collector { source: Source::Kubelet, start: kubelet::start },
    Collector { source: Source::Cpu, start: cpu::start },
    Collector { source: Source::Windows, start: windows::start },
];

/// The thread of a collector that is switched off: says so and waits for the end.
fn switched_off(context: &Context, source: Source, key: &str) {
    context.inbox.event(Event::Hindered(source, Some(format!("{SWITCHED_OFF} ({key})"))));
    while !context.stop.stopped() {
        context.stop.wait_until(Mono::now() + Duration::from_secs(3600));
    }
}
