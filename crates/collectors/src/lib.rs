//! Collectors of the serving process. Every collector is one file and one line in [`start`]. It has its own thread and
//! cadence, never calls another collector, and sends batches and events to the ledger. [`views`] gives it the facts of
//! the ledger that it needs.

#![forbid(unsafe_code)]

pub mod canary;
pub mod cpu;
pub(crate) mod kmsg;
pub(crate) mod kubelet;
pub mod module;
pub(crate) mod nccl;
pub(crate) mod network;
pub mod nvml;
pub(crate) mod owners;
pub(crate) mod process;
pub mod topology;
pub mod views;
pub mod windows;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use access::Access;
use arc_swap::ArcSwap;
use attribution::pods::Pods;
use host::child::ChildSet;
use host::state::Store;
use host::stop::Stop;
use ledger::inbox::{Inbox, LedgerEvent};
use model::catalog::schema::{Entity, KnownLabel, LabelSet, Metric};
use model::catalog::{CollectorName, Node};
use model::clock::{Cadence, Mono};
use model::http_counters::HttpCounters;
use model::sample::{Batch, Rows, SWITCHED_OFF};
use model::snapshot::Snapshot;
use model::snapshot_cell::SnapshotCell;
use settings::Config;

use crate::views::View;

/// Current configuration. A reload replaces it with one that differs only in keys that apply at once.
pub type LiveConfig = ArcSwap<Config>;

/// Handles that every collector receives.
#[derive(Debug, Clone)]
pub struct Context {
    pub live: Arc<LiveConfig>,
    /// Destination of batches and events.
    pub inbox: Arc<Inbox>,
    /// Directory of the state files.
    pub state: Store,
    /// Stops the thread of the collector.
    pub stop: Arc<Stop>,
}

impl Context {
    /// Returns the current configuration. The next turn may get another one.
    fn config(&self) -> Arc<Config> {
        self.live.load_full()
    }

    /// Calls `visit` at once, at every interval and for every new configuration, until the daemon stops.
    fn every(&self, interval: impl Fn(&Config) -> Duration, mut visit: impl FnMut(&Config)) {
        let mut turns = Turns::new(self);
        while !self.stop.stopped() {
            if turns.is_due(&interval) {
                visit(&turns.config);
            }
            turns.wait_until(turns.next());
        }
    }

    /// Reports the reason why the collector has no values; `None` withdraws the report.
    fn unavailable(&self, collector: CollectorName, why: Option<String>) {
        self.inbox.event(LedgerEvent::CollectorUnavailable(collector, why));
    }

    /// Runs a collector that has nothing to do: reports the reason and sleeps until the daemon stops. A thread that
    /// returned earlier would count as a fault.
    fn idle(&self, collector: CollectorName, why: String) {
        self.unavailable(collector, Some(why));
        while !self.stop.stopped() {
            self.stop.wait_until(Mono::now() + Duration::from_secs(3600));
        }
    }

    /// Runs a collector that the key `key` switches off.
    fn switched_off(&self, collector: CollectorName, key: &str) {
        self.idle(collector, format!("{SWITCHED_OFF} ({key})"));
    }

    /// Sends the values of a visit. They stay valid for three intervals.
    fn send(&self, collector: CollectorName, taken: Mono, every: Duration, rows: Rows) {
        self.inbox.batch(Batch::of_node(collector, taken, Some(lifetime(every)), rows));
    }

    /// Sends a batch without values, which shows the ledger and `/readyz` that the collector is alive.
    fn beat(&self, collector: CollectorName) {
        self.inbox.batch(Batch::of_node(collector, Mono::now(), None, Rows::default()));
    }
}

/// Schedule of a collector: one turn at once, then one at every interval and for every new configuration.
struct Turns {
    live: Arc<LiveConfig>,
    stop: Arc<Stop>,
    /// Value of [`Stop::woken`] before the configuration was last read.
    woken: u64,
    /// Configuration of the last turn.
    config: Arc<Config>,
    cadence: Option<Cadence>,
}

impl Turns {
    fn new(context: &Context) -> Turns {
        let (live, stop) = (Arc::clone(&context.live), Arc::clone(&context.stop));
        Turns { live, woken: stop.woken(), stop, config: context.config(), cadence: None }
    }

    /// Returns whether a turn is due.
    fn is_due(&mut self, interval: impl Fn(&Config) -> Duration) -> bool {
        self.woken = self.stop.woken();
        let config = self.live.load();
        if !Arc::ptr_eq(&config, &self.config) {
            (self.config, self.cadence) = (Arc::clone(&config), None);
        }
        let begin = || Cadence::new(interval(&self.config), Duration::ZERO);
        self.cadence.get_or_insert_with(begin).tick(Mono::now())
    }

    /// Sleeps until `when`, or until there is a new configuration.
    fn wait_until(&self, when: Mono) {
        self.stop.wait_since(self.woken, when);
    }

    fn next(&self) -> Mono {
        self.cadence.as_ref().map_or(Mono::now(), Cadence::next)
    }
}

/// Returns the lifetime of values that are read at this interval.
fn lifetime(every: Duration) -> Duration {
    (every * 3).max(Duration::from_secs(3))
}

/// Handles that only some collectors need.
#[derive(Debug, Clone, Default)]
pub struct Parts {
    /// Process IDs of the running samplers.
    pub samplers: Arc<nvml::Pids>,
    /// Running canary processes and the CPU time of the ended ones.
    pub canary_children: Arc<ChildSet>,
    /// Running topology processes and the CPU time of the ended ones.
    pub topology_children: Arc<ChildSet>,
    /// Switch that releases the driver and the profiling counters.
    pub switch: Arc<nvml::switch::Switch>,
    /// State of the canary, shared with the control socket.
    pub canary: Arc<canary::state::CanaryCell>,
    /// Devices that the kubelet has assigned.
    pub pods: Arc<Pods>,
    /// Published snapshot. Collectors read it only through views.
    pub snapshots: Arc<SnapshotCell>,
    /// Counters of the HTTP server.
    pub http: Arc<HttpCounters>,
    /// Web configuration; `None` without TLS and passwords.
    pub access: Option<Arc<Access>>,
}

impl Parts {
    fn view<T>(&self, project: fn(&Arc<Snapshot>) -> T) -> View<T> {
        View::new(&self.snapshots, project)
    }
}

/// Starts the thread of every collector. The threads end when [`Context::stop`] is set.
pub fn start(context: &Context, parts: &Parts) -> io::Result<Vec<(CollectorName, JoinHandle<()>)>> {
    use CollectorName::*;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut threads = Vec::new();
    let mut spawn = |name: CollectorName, stack_kib, run: Box<dyn FnOnce(Context, Parts) + Send>| {
        let (context, parts) = (context.clone(), parts.clone());
        let thread = host::thread::spawn(name.known(), stack_kib, move || run(context, parts))?;
        threads.push((name, thread));
        io::Result::Ok(())
    };
    spawn(Process, 256, Box::new(process::run))?;
    spawn(Nvml, 512, Box::new(|context, parts| nvml::run(context, parts.samplers, parts.switch)))?;
    spawn(Kmsg, 512, Box::new(|context, _| kmsg::run(context)))?;
    spawn(
        Module,
        256,
        Box::new(|context, parts| module::run(context, &parts.switch, parts.view(views::has_fabric))),
    )?;
    spawn(Canary, 1024, Box::new(canary::run))?;
    spawn(Topology, 2048, Box::new(topology::run))?;
    spawn(
        Owners,
        2048,
        Box::new(|context, parts| owners::run(context, parts.view(views::gpu_work), parts.pods)),
    )?;
    spawn(Kubelet, 1024, Box::new(move |context, parts| kubelet::run(context, parts.pods, runtime)))?;
    spawn(
        Cpu,
        256,
        Box::new(|context, parts| cpu::run(context, parts.view(views::topology), parts.view(views::owners))),
    )?;
    spawn(Windows, 512, Box::new(|context, _| windows::run(context)))?;
    spawn(Network, 256, Box::new(|context, parts| network::run(context, parts.view(views::topology))))?;
    spawn(Nccl, 1024, Box::new(|context, parts| nccl::run(context, parts.view(views::rank_places))))?;
    Ok(threads)
}

/// Adds a number of the node.
fn put_node_row<L: LabelSet>(rows: &mut Rows, metric: &Metric<Node, L>, labels: L, value: f64) {
    put_row(rows, &Node {}, metric, labels, value);
}

/// Adds a number. A value outside the limits of its unit is dropped with a warning; no counter of a live machine has
/// one.
fn put_row<E: Entity, L: LabelSet>(rows: &mut Rows, of: &E, metric: &Metric<E, L>, labels: L, value: f64) {
    if rows.entity(of).record(metric, labels, value).is_err() {
        tracing::warn!(metric = metric.def().name, value, "dropped a value outside the limits of its unit");
    }
}
