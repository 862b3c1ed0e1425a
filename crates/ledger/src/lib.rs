//! The ledger, which owns all mutable state. It folds batches as they come, joins, ages and counts them, and
//! publishes a [`model::snapshot::Snapshot`] once an interval, and at once after a stall or a change of the driver.
//!
//! Rules that keep wrong values out of the snapshots:
//! - The rows of a batch replace those of its part as a whole, and expire at the part's deadline.
//! - Each GPU has an epoch, which rises when its handle or MIG layout changes. The first batch of a new epoch drops
//!   all older rows except the identity, and late batches of an older epoch are discarded.
//! - Measured values of a GPU are served only while the GPU answers. A stall, a loss, an absent or stuck driver, or
//!   the lack of a sampler withdraws everything except the identity.
//!
//! The state is divided into parts, one per file. This file joins them.

#![forbid(unsafe_code)]

mod accounting;
mod activity;
mod bottleneck;
mod builder;
mod canary;
mod clock_events;
mod counters;
mod declared;
mod driver;
mod events;
mod faults;
mod health;
mod history;
pub mod inbox;
mod intake;
mod inventory;
mod links;
mod loads;
mod losses;
mod owners;
mod persistence;
mod publish;
mod recent;
mod reloads;
mod resets;
mod run;
mod samples;
mod topology;
mod trends;
mod windows;
mod wrong_results;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use accounting::Accounting;
use canary::CanaryFindings;
use counters::OwnCounters;
use driver::DriverWatch;
use faults::{Faults, SeenReset};
use history::HistoryState;
use inbox::{LedgerEvent, Stall};
use intake::{Intake, label};
use inventory::GpuInventory;
use links::LinkHistory;
use losses::Losses;
use model::canary::CanaryEvent;
use model::catalog::schema::{LabelSet, Metric};
use model::catalog::{self as m, CollectorName, DriverError, Gpu, GpuInfo, MetricId, Node, Subject, Tier};
use model::clock::{Mono, unix_seconds};
use model::documents::Documents;
use model::fact::{Fact, FactKind, KernelFact, KernelLine};
use model::sample::{Batch, Drained, Missing};
use model::trends::POINTS;
use owners::OwnerState;
use publish::Publication;
use recent::RecentXids;
use reloads::Reloads;
pub use run::{Hooks, run};
use settings::Config;
use settings::mig_layout::DeclaredLayout;
use topology::TopologyState;
use trends::TrendState;
use windows::WindowState;
use wrong_results::WrongResultState;

/// Settings that the ledger receives once.
#[derive(Debug, Clone, Default)]
pub struct LedgerSettings {
    /// Documents of an earlier daemon.
    pub documents: Documents,
    /// Time at which the configuration was loaded, in seconds since 1970.
    pub configured: f64,
    /// Settings that a new configuration may change.
    pub live: LiveSettings,
    pub build: m::BuildInfo,
}

/// Settings that the ledger receives with every new configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveSettings {
    /// Maximum number of series in a snapshot, not counting those about the node.
    pub max_series: usize,
    /// Metrics that are switched off.
    pub off: HashSet<MetricId>,
    /// Groups that `/metrics` serves in addition to the default set.
    pub groups: Vec<m::MetricGroup>,
    /// Longest pause between two fast visits whose time still counts, and longest wait for the first answer of a new
    /// sampler.
    pub bridge: Duration,
    /// Time for which a lost GPU must answer before its return is reported.
    pub steady: Duration,
    /// Number of GPUs that the node should have; 0: the most seen.
    pub expected_gpus: usize,
    /// Maximum number of entries in the event list.
    pub keep_events: usize,
    pub owners: settings::Owners,
    /// MIG layout that the GPUs should have.
    pub declared: Option<DeclaredLayout>,
    /// Window of the recent Xid faults.
    pub xid_window: Duration,
    /// Window of the recent clock events.
    pub clock_events_window: Duration,
    /// Time per point of the status page's history; zero: no history.
    pub trend_step: Duration,
}

impl LiveSettings {
    /// Derives the settings from the configuration. `declared`: the MIG layout that the GPUs should have.
    pub fn from_config(config: &Config, declared: Option<DeclaredLayout>) -> LiveSettings {
        let Config { sampler, metrics, dcgm, .. } = config;
        LiveSettings {
            max_series: metrics.max_series as usize,
            off: config.switched_off(),
            groups: config.served_groups(),
            bridge: (sampler.fast_interval * 3).max(Duration::from_secs(3)),
            // A slow call is repeated in the next visit of its tier.
            steady: sampler.rare_interval.min(Duration::from_secs(60)) + sampler.call_timeout,
            expected_gpus: config.health.expected_gpus as usize,
            keep_events: config.events.history_size as usize,
            owners: config.owners.clone(),
            declared,
            xid_window: dcgm.xid_window,
            clock_events_window: dcgm.clock_events_window,
            trend_step: trend_step(config),
        }
    }
}

/// Returns the time per point of the status page's history, which is at least the publication interval.
fn trend_step(config: &Config) -> Duration {
    match config.page.history {
        Duration::ZERO => Duration::ZERO,
        history => (history / POINTS as u32).max(config.metrics.publish_interval),
    }
}

impl Default for LiveSettings {
    fn default() -> LiveSettings {
        LiveSettings::from_config(&Config::default(), None)
    }
}

pub struct Ledger {
    settings: Arc<LiveSettings>,
    build: m::BuildInfo,
    reloads: Reloads,
    intake: Intake,
    inventory: GpuInventory,
    driver: DriverWatch,
    counters: OwnCounters,
    accounting: Accounting,
    faults: Faults,
    recent_xids: RecentXids,
    losses: Losses,
    links: LinkHistory,
    canary: CanaryFindings,
    wrong_results: WrongResultState,
    history: HistoryState,
    topology: TopologyState,
    owners: OwnerState,
    windows: WindowState,
    trends: TrendState,
    publication: Publication,
}

impl Ledger {
    /// Creates a ledger without readings.
    pub fn new(settings: LedgerSettings) -> Ledger {
        let LedgerSettings { documents, configured, live: settings, build } = settings;
        let mut counters = OwnCounters::default();
        counters.born(&m::gpu_exporter_sampler_ends_total, &Node {});
        counters.born(&m::gpu_exporter_driver_error_kinds_total, &Node {});
        counters.born(&m::gpu_exporter_facts_lost_total, &Node {});
        counters.born(&m::gpu_exporter_recordings_total, &Node {});
        for counter in [
            &m::gpu_exporter_sampler_starts_total,
            &m::gpu_exporter_batches_discarded_total,
            &m::gpu_exporter_events_lost_total,
            &m::gpu_exporter_series_dropped_total,
            &m::gpu_driver_loads_total,
        ] {
            counters.add(counter, &Node {}, (), 0.0);
        }
        Ledger {
            intake: Intake::default(),
            driver: DriverWatch::default(),
            counters,
            accounting: Accounting::new(),
            faults: Faults::new(
                settings.keep_events,
                &documents.seen.gpus,
                documents.faults,
                documents.events,
            ),
            inventory: GpuInventory::new(documents.seen),
            recent_xids: RecentXids::default(),
            losses: Losses::default(),
            links: LinkHistory::default(),
            canary: CanaryFindings::new(),
            wrong_results: WrongResultState::new(documents.wrong_results),
            history: HistoryState::new(documents.history, settings.expected_gpus, settings.steady),
            topology: TopologyState::default(),
            owners: OwnerState::new(settings.owners.clone(), documents.owner_records),
            windows: WindowState::default(),
            trends: TrendState::new(settings.trend_step),
            publication: Publication::default(),
            reloads: Reloads::new(configured),
            build,
            settings: Arc::new(settings),
        }
    }

    /// Applies a new configuration. Counters are kept.
    fn configure(&mut self, settings: LiveSettings) {
        self.faults.events.keep(settings.keep_events);
        self.history.configure(settings.expected_gpus, settings.steady);
        self.owners.configure(settings.owners.clone());
        self.settings = Arc::new(settings);
    }

    /// Adds a GPU. A GPU that returns under another index, or another GPU under its index, replaces the old one.
    fn attach(&mut self, gpu: &Gpu) {
        if self.intake.knows(gpu) {
            return;
        }
        for old in self.intake.add_gpu(gpu) {
            let replaced = old.uuid != gpu.uuid;
            self.accounting.forget(&old, replaced);
            self.owners.forget(&old);
            self.recent_xids.forget(&old);
            self.faults.forget(&old.uuid, replaced);
            if replaced {
                self.canary.forget(&old.uuid);
                self.links.forget(&old.uuid);
            }
            let subject = Subject::Gpu(old);
            for counters in [&mut self.counters, &mut self.faults.counters, &mut self.canary.counters] {
                counters.forget(&subject);
            }
        }
        if !gpu.uuid.is_empty() {
            self.counters.add(&m::gpu_resets_total, gpu, (), 0.0);
        }
        self.counters.add(&m::gpu_exporter_driver_errors_total, gpu, (), 0.0);
        self.counters.born(&m::gpu_exporter_readings_dropped_total, gpu);
        self.counters.add(&m::gpu_exporter_reading_regressions_total, gpu, (), 0.0);
        self.faults.born(gpu);
        self.canary.born(gpu);
        self.inventory.count(self.intake.gpus().count());
    }

    /// Returns the GPU with this index, and adds one without a UUID if its UUID was never read.
    fn attach_index(&mut self, index: u32) -> Gpu {
        if let Some(gpu) = self.intake.gpu_by_index(index) {
            return gpu.clone();
        }
        let gpu = Gpu { gpu: index, uuid: "".into() };
        self.attach(&gpu);
        gpu
    }

    pub fn event(&mut self, event: LedgerEvent) {
        match event {
            LedgerEvent::DriverAway { error, text, epoch } => self.driver_away(error, text, epoch),
            LedgerEvent::AttachFailed { index, error, text } => self.attach_failed(index, error, &text),
            LedgerEvent::Released(pause) => {
                let epoch = pause.epoch;
                if self.driver.released(pause) {
                    self.intake.void_driver(epoch);
                }
            }
            LedgerEvent::Module { state, at, unix_seconds } => {
                self.faults.note_module(&state);
                if self.driver.module(&state, at, unix_seconds) {
                    self.driver_loaded();
                }
            }
            LedgerEvent::GpuAttached(gpu) => self.attach(&gpu),
            LedgerEvent::Stalls(stalls) => self.stalled(stalls),
            LedgerEvent::DriverUp => self.driver.answers(),
            LedgerEvent::NoSampler { text } => self.driver.no_sampler(&text),
            LedgerEvent::Resumed => self.driver.resumed(),
            LedgerEvent::DriverStuck(stuck) => self.driver.stuck = stuck,
            LedgerEvent::Samplers(alive) => self.driver.samplers = alive,
            LedgerEvent::SamplerStarted => self.count(&m::gpu_exporter_sampler_starts_total, (), 1),
            LedgerEvent::SamplerEnded(reason, at) => {
                self.driver.sampler_ended(at);
                self.count(&m::gpu_exporter_sampler_ends_total, (reason,), 1);
            }
            LedgerEvent::LateBatch => self.count(&m::gpu_exporter_batches_discarded_total, (), 1),
            LedgerEvent::Canary(event) => self.canary_event(event, Mono::now(), unix_seconds()),
            LedgerEvent::Topology(update) => self.topology.replace(update),
            LedgerEvent::Owners(update) => self.owners.update(update, Mono::now()),
            LedgerEvent::Windows(windows) => self.windows.replace(windows),
            LedgerEvent::CollectorUnavailable(source, reason) => self.intake.set_unavailable(source, reason),
            LedgerEvent::History(None) => self.history.unread(),
            LedgerEvent::History(Some(earlier)) => self.history.join(earlier),
            LedgerEvent::SwitchesCleared(text) => {
                self.faults.clear_switches(text, Mono::now(), unix_seconds());
            }
            LedgerEvent::Reloaded(Some(settings), unix_seconds) => {
                self.reloads.succeeded(unix_seconds);
                self.configure(*settings);
            }
            LedgerEvent::Reloaded(None, _) => self.reloads.failed(),
            LedgerEvent::Recording(outcome, count) => {
                self.count(&m::gpu_exporter_recordings_total, (outcome,), count);
            }
            LedgerEvent::ReadsKernelLog(since) => self.faults.reads_kernel_log = since,
        }
    }

    fn driver_away(&mut self, error: DriverError, text: String, epoch: u64) {
        self.count_error(None, error);
        if self.driver.away(error, text) {
            self.driver_reset();
        }
        self.intake.void_driver(epoch);
        // The driver's counters restart when it is loaded again.
        self.accounting.driver.forget(None);
    }

    fn attach_failed(&mut self, index: u32, error: DriverError, text: &str) {
        let gpu = self.attach_index(index);
        self.intake.attach_failed(&gpu, error, text);
        if error.is_lost() {
            self.faults.lost(&gpu, None);
        }
        self.count_error(Some(&gpu), error);
    }

    /// Stores the calls that are taking long. Adds GPUs that were never read, so that they show as stuck.
    fn stalled(&mut self, stalls: Vec<Stall>) {
        for gpu in stalls.iter().filter(|stall| stall.overdue).filter_map(|stall| stall.gpu.as_ref()) {
            self.attach_index(gpu.gpu);
        }
        self.driver.stalls = stalls;
    }

    /// Applies a fact that was sent in this life of its source.
    pub fn fact(&mut self, life: u64, mut fact: Fact) {
        let missing = self.faults.missing(life, &fact);
        self.count(&m::gpu_exporter_facts_lost_total, (fact.source,), missing);
        if let FactKind::Driver(event) = &mut fact.kind {
            // The event may precede the first batch of its GPU, or have an index that is no longer the GPU's.
            match self.intake.gpu_by_uuid(&event.gpu.uuid) {
                Some(known) => event.gpu = known.clone(),
                None => self.attach(&event.gpu),
            }
        }
        if self.driver.logged(&fact) {
            self.driver_loaded();
        }
        let owner = match &fact.kind {
            FactKind::Driver(event) => self.owners.owner_of(Some(&event.gpu), event.gpu_instance, None),
            FactKind::Kernel(KernelFact { old: false, line, .. }) => match line {
                KernelLine::Xid { pci, pid, gpu_instance, .. } => {
                    self.owners.owner_of(self.faults.gpu_at(pci), *gpu_instance, *pid)
                }
                KernelLine::GpuFailed { pci: Some(pci), .. } => {
                    self.owners.owner_of(self.faults.gpu_at(pci), None, None)
                }
                KernelLine::OomKill { group, pid } => {
                    self.owners.killed(group.as_deref(), *pid);
                    None
                }
                _ => None,
            },
            FactKind::Kernel(_) => None,
        };
        let ready = self.publication.ready;
        if let Some(reset) = self.faults.record(fact, ready, owner) {
            self.gpu_reset(reset);
        }
    }

    /// Applies an event of the canary.
    fn canary_event(&mut self, event: CanaryEvent, at: Mono, unix_seconds: f64) {
        let gpu = event.gpu().and_then(|about| self.intake.gpu_by_uuid(&about.uuid)).cloned();
        if let Some(gpu) = &gpu {
            self.accounting.activity.canary(&gpu.uuid, &event, at);
        }
        if let Some(about) = event.gpu()
            && let Some((check, text)) = event.wrong_result()
        {
            // The GPU may be unknown, for example while the driver is released.
            let serial = gpu.as_ref().and_then(|gpu| self.intake.info_of(gpu, "serial"));
            self.wrong_results.note(about, serial.unwrap_or_default(), check, text, unix_seconds);
        }
        if let CanaryEvent::Cleared(gpu, _) = &event {
            // The board may be missing now.
            self.wrong_results.clear(&gpu.uuid);
        }
        for event in self.canary.record(gpu.as_ref(), event, unix_seconds) {
            self.faults.note(event, at);
        }
    }

    /// Counts a load of the kernel module, after which the driver's counters restart.
    fn driver_loaded(&mut self) {
        self.count(&m::gpu_driver_loads_total, (), 1);
        self.accounting.driver.forget(None);
        // Faults end even if the kernel log cannot be read.
        self.driver_reset();
    }

    /// Ends all earlier problems of the GPUs. Those that persist are reported again.
    fn driver_reset(&mut self) {
        self.faults.driver_reset(unix_seconds());
        self.canary.reset(None);
    }

    /// Counts a reset of a GPU, which ends its faults.
    fn gpu_reset(&mut self, reset: SeenReset) {
        self.counters.add(&m::gpu_resets_total, &reset.gpu, (), 1.0);
        self.canary.reset(Some(&reset.gpu));
        self.faults.gpu_reset(reset);
    }

    /// Counts events that did not fit into the inbox.
    pub fn lost(&mut self, events: u64) {
        self.count(&m::gpu_exporter_events_lost_total, (), events);
    }

    /// Adds to a counter about the node.
    fn count<S: LabelSet>(&mut self, metric: &Metric<Node, S>, labels: S, by: u64) {
        self.counters.add(metric, &Node {}, labels, by as f64);
    }

    /// Counts a failed driver call.
    fn count_error(&mut self, gpu: Option<&Gpu>, error: DriverError) {
        self.count(&m::gpu_exporter_driver_error_kinds_total, (error,), 1);
        if let Some(gpu) = gpu {
            self.counters.add(&m::gpu_exporter_driver_errors_total, gpu, (), 1.0);
        }
    }

    /// Folds one batch, and returns true if it began a new epoch, which must be published at once.
    ///
    /// The order of the stages matters:
    /// - The epoch comes first, because a new epoch voids all earlier readings. Drained samples count even if the
    ///   epoch is over, because they belong to the GPU regardless of its layout.
    /// - Losses are recorded before resets are detected, because an answer after a loss shows a reset.
    /// - Driver counters are corrected before the rows are used.
    /// - The batch is stored before its processes are listed, because a list is merged from two tiers.
    pub fn fold(&mut self, mut batch: Batch) -> bool {
        self.accounting.count_calls(&batch);
        let Some(new_epoch) = self.enter_epoch(&batch) else {
            self.count(&m::gpu_exporter_batches_discarded_total, (), 1);
            return false;
        };
        self.count_gaps(&batch);
        self.count_reset(&batch);
        if self.intake.overtaken(&batch) {
            self.count(&m::gpu_exporter_batches_discarded_total, (), 1);
            return new_epoch;
        }
        self.correct_counters(&mut batch);
        self.add_up(&batch);
        self.identify(&batch);
        self.store(batch);
        new_epoch
    }

    /// Adds the GPU of an NVML batch, adds up its drained samples and enters its epoch. Returns whether the epoch is
    /// new, or `None` if it is over and the batch must be discarded.
    fn enter_epoch(&mut self, batch: &Batch) -> Option<bool> {
        if batch.part.collector != CollectorName::Nvml {
            return Some(false);
        }
        let outdated = self.intake.is_outdated(batch);
        if let Some(gpu) = batch.part.gpu.as_ref().filter(|_| !outdated) {
            self.attach(gpu);
        }
        self.add_drained(batch);
        if outdated {
            return None;
        }
        let new_epoch = self.intake.enter_epoch(batch);
        if let Some(gpu) = batch.part.gpu.as_ref().filter(|_| new_epoch) {
            self.accounting.gpm.forget_instances(gpu);
        }
        Some(new_epoch)
    }

    /// Adds up drained samples and GPM windows. Samples belong to the GPU regardless of its MIG layout, windows to
    /// the layout under which they were measured.
    fn add_drained(&mut self, batch: &Batch) {
        let Some(gpu) = batch.part.gpu.as_ref().filter(|gpu| self.intake.knows(gpu)) else { return };
        let current = self.intake.is_of_layout(gpu, batch.epoch);
        for drained in &batch.drained {
            match drained {
                Drained::Samples { .. } => {
                    let report = |buffer, at, seconds, amount| {
                        self.owners.sampled(gpu, buffer, at, seconds, amount);
                    };
                    self.accounting.add_samples(gpu, batch.taken, drained, report);
                }
                Drained::Gpm(window) if current || matches!(window.subject, Subject::Gpu(_)) => {
                    self.accounting.gpm.add(window);
                    self.owners.gpm(gpu, window, batch.taken);
                }
                Drained::Gpm(_) => {}
            }
        }
    }

    fn count_gaps(&mut self, batch: &Batch) {
        for gap in &batch.gaps {
            let gpu = batch.part.gpu.as_ref();
            match (&gap.missing, gpu) {
                (Missing::Failed { error, .. }, _) => {
                    self.count_error(gpu, *error);
                    if let Some(gpu) = gpu.filter(|_| error.is_lost()) {
                        // A lost GPU returns only after a reset, which clears its counters.
                        self.accounting.driver.forget(Some(&gpu.uuid));
                        self.faults.lost(gpu, Some(batch));
                    }
                }
                (Missing::Dropped(drop), Some(gpu)) => {
                    let dropped = &m::gpu_exporter_readings_dropped_total;
                    self.counters.add(dropped, gpu, (*drop,), 1.0);
                }
                _ => {}
            }
        }
    }

    /// Counts a reset that a batch shows.
    fn count_reset(&mut self, batch: &Batch) {
        if let Some(gpu) = &batch.part.gpu
            && self.faults.shows_reset(gpu, batch)
        {
            let age = Mono::now().since(batch.taken).as_secs_f64();
            let unix_seconds = unix_seconds() - age;
            self.gpu_reset(SeenReset { gpu: gpu.clone(), at: batch.taken, unix_seconds });
        }
    }

    /// Holds back driver counters that step back, and counts the steps.
    fn correct_counters(&mut self, batch: &mut Batch) {
        if batch.part.collector != CollectorName::Nvml {
            return;
        }
        let steps_back = self.accounting.hold_counters(&mut batch.rows);
        if let Some(gpu) = batch.part.gpu.as_ref().filter(|gpu| steps_back > 0 && self.intake.knows(gpu)) {
            let metric = &m::gpu_exporter_reading_regressions_total;
            self.counters.add(metric, gpu, (), f64::from(steps_back));
        }
    }

    /// Adds a batch to the sums of its GPU: work, seconds of clock events, NVLink errors.
    fn add_up(&mut self, batch: &Batch) {
        self.accounting.activity.record(batch);
        if let Some(gpu) = batch.part.gpu.as_ref().filter(|gpu| self.intake.knows(gpu)) {
            self.accounting.count_clock_events(gpu, batch, self.settings.bridge);
            self.links.record(batch);
        }
    }

    /// Records the board and the PCI address of a batch's GPU.
    fn identify(&mut self, batch: &Batch) {
        let gpu = batch.part.gpu.as_ref();
        if let Some(gpu) = gpu.filter(|gpu| self.intake.knows(gpu)) {
            let info = batch.find(m::gpu_info.id());
            let serial = info.and_then(|row| label::<GpuInfo>(row, "serial"));
            if self.wrong_results.seen(&gpu.uuid, serial) {
                tracing::warn!(
                    gpu = gpu.gpu,
                    uuid = &*gpu.uuid,
                    "the GPU has another serial number; cleared the wrong result of the previous board"
                );
            }
        }
        if let Some((pci, gpu)) = self.inventory.record(batch).zip(gpu) {
            self.faults.place(pci, gpu);
        }
    }

    /// Stores a batch, and passes the processes of its GPU on to their owners.
    fn store(&mut self, batch: Batch) {
        let (tier, taken, full) = (batch.part.tier, batch.taken, owners::full_memory(&batch));
        let gpu = batch.part.gpu.clone().filter(|_| tier == Tier::Normal);
        self.intake.store(batch);
        if let Some(gpu) = gpu
            && let Some(processes) = self.intake.processes_of(&gpu, taken)
        {
            self.owners.listed(&gpu, taken, &processes, full);
        }
    }
}

#[cfg(test)]
mod tests;
