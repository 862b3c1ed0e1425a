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
use model::catalog::CollectorName;
use model::catalog::schema::{Entity, KnownLabel, LabelSet, Metric};
use model::clock::{Cadence, Mono};
use model::http_counters::HttpCounters;
use model::sample::{Batch, Rows, SWITCHED_OFF};
use model::snapshot::Snapshot;
use model::snapshot_cell::SnapshotCell;
use settings::Config;

use crate::views::View;

/// The configuration in use. A reload stores another one, in which only values differ that apply at once.
pub type LiveConfig = ArcSwap<Config>;

/// What every collector receives.
#[derive(Debug, Clone)]
pub struct Context {
    /// The configuration in use.
    pub live: Arc<LiveConfig>,
    /// Destination of batches and events.
    pub inbox: Arc<Inbox>,
    /// The folder of the state files.
    pub state: Store,
    /// Ends the thread.
    pub stop: Arc<Stop>,
}

impl Context {
    /// The configuration in use. It may be another one at the next turn.
    fn config(&self) -> Arc<Config> {
        self.live.load_full()
    }

    /// Calls `visit` at once, then at every interval and for each new configuration, until the end.
    fn every(&self, interval: impl Fn(&Config) -> Duration, mut visit: impl FnMut(&Config)) {
        let mut turns = Turns::new(self);
        while !self.stop.stopped() {
            if turns.is_due(&interval) {
                visit(&turns.config);
            }
            turns.wait_until(turns.next());
        }
    }

    /// Reports why the collector has no values; `None`: it has.
    fn unavailable(&self, collector: CollectorName, why: Option<String>) {
        self.inbox.event(LedgerEvent::CollectorUnavailable(collector, why));
    }

    /// The thread of a collector without work: reports why and waits for the end. A thread that ends before the daemon
    /// counts as a fault.
    fn idle(&self, collector: CollectorName, why: String) {
        self.unavailable(collector, Some(why));
        while !self.stop.stopped() {
            self.stop.wait_until(Mono::now() + Duration::from_secs(3600));
        }
    }

    /// The thread of a collector that this key switches off.
    fn switched_off(&self, collector: CollectorName, key: &str) {
        self.idle(collector, format!("{SWITCHED_OFF} ({key})"));
    }

    /// Sends the values of a visit, which are valid until the third visit from now.
    fn send(&self, collector: CollectorName, taken: Mono, every: Duration, rows: Rows) {
        self.inbox.batch(Batch::of_node(collector, taken, Some(lifetime(every)), rows));
    }

    /// A batch without values: the ledger and `/readyz` know by it that the collector lives.
    fn beat(&self, collector: CollectorName) {
        self.inbox.batch(Batch::of_node(collector, Mono::now(), None, Rows::default()));
    }
}

/// The turns of a collector: at once, then at every interval and for each new configuration.
struct Turns {
    live: Arc<LiveConfig>,
    stop: Arc<Stop>,
    /// [`Stop::woken`] before the configuration was looked at.
    woken: u64,
    /// That of the last turn.
    config: Arc<Config>,
    cadence: Option<Cadence>,
}

impl Turns {
    fn new(context: &Context) -> Turns {
        let (live, stop) = (Arc::clone(&context.live), Arc::clone(&context.stop));
        Turns { live, woken: stop.woken(), stop, config: context.config(), cadence: None }
    }

    /// Whether it is time for a turn.
    fn is_due(&mut self, interval: impl Fn(&Config) -> Duration) -> bool {
        self.woken = self.stop.woken();
        let config = self.live.load();
        if !Arc::ptr_eq(&config, &self.config) {
            (self.config, self.cadence) = (Arc::clone(&config), None);
        }
        let begin = || Cadence::new(interval(&self.config), Duration::ZERO);
        self.cadence.get_or_insert_with(begin).tick(Mono::now())
    }

    /// Sleeps until then, or until there is another configuration than at the last look.
    fn wait_until(&self, when: Mono) {
        self.stop.wait_since(self.woken, when);
    }

    fn next(&self) -> Mono {
        self.cadence.as_ref().map_or(Mono::now(), Cadence::next)
    }
}

/// How long values that are read so often are valid.
fn lifetime(every: Duration) -> Duration {
    (every * 3).max(Duration::from_secs(3))
}

/// What single collectors receive beside the [`Context`].
#[derive(Debug, Clone)]
pub struct Parts {
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
    pub http: Arc<HttpCounters>,
    /// The web configuration, if there is one.
    pub access: Option<Arc<Access>>,
}

impl Parts {
    fn view<T>(&self, project: fn(&Arc<Snapshot>) -> T) -> View<T> {
        View::new(&self.snapshots, project)
    }
}

/// Starts the thread of every collector. It ends when [`Context::stop`] is set.
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

/// Adds a number. A value outside the limits of its unit, which no counter of a live machine has, is no series.
fn put_row<E: Entity, L: LabelSet>(rows: &mut Rows, of: &E, metric: &Metric<E, L>, labels: L, value: f64) {
    if rows.entity(of).record(metric, labels, value).is_err() {
        tracing::warn!(metric = metric.def().name, value, "value out of range");
    }
}
