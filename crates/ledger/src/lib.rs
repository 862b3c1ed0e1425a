//! The ledger: the one owner of all mutable state. Folds batches as they come, joins, ages, counts, and
//! publishes a [`Snapshot`] once an interval and at once after a stall or a change of the driver.
//!
//! The rules that keep wrong values off the wire:
//! - the rows of a batch replace those of its part as a whole, and expire at the part's deadline;
//! - each GPU has an epoch, raised when its handle or MIG layout changes: the first batch of a new epoch
//!   drops all rows of the older one (identity excepted), and late batches of an older one are thrown away;
//! - what was measured of a GPU is served only while the GPU answers: a stall, a loss, a driver that is away
//!   or stuck, or no sampler at all withdraws everything but the identity.

mod bottleneck;
mod busy;
mod canary;
mod clock_events;
mod counters;
mod declared;
mod events;
mod faults;
mod faulty;
mod flops;
mod fold;
mod gpm;
mod health;
pub mod inbox;
mod inventory;
mod journal;
mod loads;
mod owners;
mod processes;
mod publish;
mod resets;
mod run;
mod samples;
mod tally;
mod topology;
mod windows;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use busy::Busy;
use canary::Canary;
use clock_events::ClockEvents;
use counters::DriverCounters;
use faults::Faults;
pub use faulty::Faulty;
use fold::is_lost;
use gpm::GpmSums;
use inbox::{Event, Pause, Stall};
pub use inventory::Seen;
use loads::Loads;
use model::catalog::{
    self as m, Call, CollectorName, DriverError, Gpu, MetricId, Node, SamplerEnd, Subject, Tier, TierLabel,
};
use model::clock::{Mono, unix_seconds};
use model::driver_module::LoadId;
use model::fact::{Fact, KernelFact, KernelLine, What};
use model::owners::GpuProcess;
use model::sample::{Gap, Missing, Part, Rows, Source};
use model::snapshot::{DriverState, Histogram};
use resets::Resets;
pub use run::{Hooks, run};
use samples::Samples;
use settings::mig_layout::DeclaredLayout;
use tally::Tally;

/// Bounds of the histogram of driver calls, in seconds: a decade in three steps from 1 us, where most calls
/// are, to the deadline's order.
const CALL_SECONDS: [f64; 20] = [
    1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5,
    1.0, 5.0,
];

/// What the ledger is told once.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Most series in a snapshot, those about the node itself not counted.
    pub max_series: usize,
    /// Metrics that are switched off.
    pub off: HashSet<MetricId>,
    /// Groups that `/metrics` serves beside the default set.
    pub groups: Vec<m::MetricGroup>,
    /// Longest pause between two fast visits that is bridged when seconds are added up, and longest time
    /// after the end of a sampler in which the next one's first word is waited for.
    pub bridge: Duration,
    /// GPUs seen before the daemon started, in this boot.
    pub seen: Seen,
    /// Faults that an earlier daemon knew of, and the present load of the driver.
    pub faulty: Faulty,
    /// GPUs the node should have; 0: the most seen.
    pub expected_gpus: usize,
    /// Events kept in the list.
    pub keep_events: usize,
    /// Whose work is on the GPUs.
    pub owners: settings::Owners,
    /// The MIG layout that the GPUs should have.
    pub declared: Option<DeclaredLayout>,
    /// Release and source revision.
    pub build: m::BuildInfo,
}

/// What is held of one part.
#[derive(Debug)]
struct Held {
    rows: Rows,
    gaps: Vec<Gap>,
    unsupported: Vec<MetricId>,
    taken: Mono,
    nanos: u64,
    lifetime: Option<u64>,
    answered: bool,
    /// Processes it listed; `None` if it listed none.
    processes: Option<Vec<GpuProcess>>,
}

impl Held {
    fn expired(&self, now: Mono) -> bool {
        self.lifetime.is_some_and(|lifetime| now.since(self.taken).as_nanos() > u128::from(lifetime))
    }

    /// Words for the first failed call, if any.
    fn failure(&self) -> Option<String> {
        self.gaps.iter().find_map(|gap| match &gap.missing {
            Missing::Failed { text, .. } => Some(format!("{}: {text}", gap.call)),
            _ => None,
        })
    }
}

/// What is known of one GPU beside its parts.
#[derive(Debug, Default)]
struct GpuBook {
    /// 0 until its first batch.
    epoch: u64,
    /// Why there is no handle on it.
    no_handle: Option<String>,
    clock_events: ClockEvents,
    samples: Samples,
}

/// What the driver was last known to say.
#[derive(Debug, Clone, PartialEq)]
enum Answer {
    Waiting,
    Up,
    Away(String),
    /// Library and kernel module differ in version.
    Mismatch(String),
}

/// The ledger.
#[derive(Debug)]
pub struct Ledger {
    settings: Settings,
    parts: BTreeMap<Part, Held>,
    /// By index and UUID: GPUs that never told their UUID differ by index alone.
    gpus: BTreeMap<Gpu, GpuBook>,
    node_epoch: u64,
    /// NVML batches of epochs below this are of a driver that went.
    floor: u64,
    answer: Answer,
    stuck: bool,
    /// The release of the driver, while it lasts.
    paused: Option<Pause>,
    loads: Loads,
    resets: Resets,
    /// The present load of the kernel module, as far as it was seen.
    load: Option<LoadId>,
    /// What was last said of faults that last.
    faulty: Faulty,
    /// Since when no sampler has said that the driver answers.
    unanswered: Option<Mono>,
    stalls: Vec<Stall>,
    samplers: usize,
    tally: Tally,
    calls: HashMap<(String, TierLabel), (u64, u64)>,
    call_seconds: Histogram,
    counters: DriverCounters,
    faults: Faults,
    gpm: GpmSums,
    busy: Busy,
    canary: Canary,
    topology: topology::Topology,
    owners: owners::Owners,
    windows: windows::Windows,
    last_success: BTreeMap<Source, Mono>,
    /// Collectors that cannot work, and why.
    hindered: BTreeMap<Source, String>,
    seen: Seen,
    seen_changed: bool,
    ready: bool,
    sequence: u64,
    publish_seconds: f64,
    subjects: publish::Subjects,
}

impl Ledger {
    /// An empty ledger.
    pub fn new(settings: Settings) -> Ledger {
        let mut tally = Tally::default();
        tally.born(&m::gpu_exporter_sampler_ends_total, &Node {});
        tally.born(&m::gpu_exporter_driver_error_kinds_total, &Node {});
        tally.born(&m::gpu_exporter_facts_lost_total, &Node {});
        tally.add(&m::gpu_exporter_sampler_starts_total, &Node {}, (), 0.0);
        tally.add(&m::gpu_exporter_batches_discarded_total, &Node {}, (), 0.0);
        tally.add(&m::gpu_exporter_events_lost_total, &Node {}, (), 0.0);
        tally.add(&m::gpu_exporter_series_dropped_total, &Node {}, (), 0.0);
        tally.add(&m::gpu_driver_loads_total, &Node {}, (), 0.0);
        Canary::born(&mut tally);
        let mut ledger = Ledger {
            faults: Faults::new(settings.keep_events, &settings.seen.gpus),
            seen: settings.seen.clone(),
            seen_changed: false,
            hindered: BTreeMap::new(),
            parts: BTreeMap::new(),
            gpus: BTreeMap::new(),
            node_epoch: 0,
            floor: 0,
            answer: Answer::Waiting,
            stuck: false,
            paused: None,
            loads: Loads::default(),
            resets: Resets::default(),
            load: settings.faulty.load.clone(),
            faulty: settings.faulty.clone(),
            unanswered: None,
            stalls: Vec::new(),
            samplers: 0,
            tally,
            calls: HashMap::new(),
            call_seconds: Histogram::new(&CALL_SECONDS),
            counters: DriverCounters::default(),
            gpm: GpmSums::default(),
            busy: Busy::default(),
            canary: Canary::default(),
            topology: topology::Topology::default(),
            owners: owners::Owners::new(settings.owners.clone()),
            windows: windows::Windows::default(),
            last_success: BTreeMap::new(),
            settings,
            ready: false,
            sequence: 0,
            publish_seconds: 0.0,
            subjects: publish::Subjects::default(),
        };
        ledger.restore_faults();
        ledger
    }

    /// The GPUs seen in this boot, if there are others than when this was asked last.
    pub fn newly_seen(&mut self) -> Option<Seen> {
        std::mem::take(&mut self.seen_changed).then(|| self.seen.clone())
    }

    /// Notes that a GPU exists. A GPU that comes back under another index, or another GPU under its index,
    /// replaces what was there.
    fn seat(&mut self, gpu: &Gpu) {
        if self.gpus.contains_key(gpu) {
            return;
        }
        let same = |other: &&Gpu| other.gpu == gpu.gpu || other.uuid == gpu.uuid && !gpu.uuid.is_empty();
        let gone: Vec<Gpu> = self.gpus.keys().filter(same).cloned().collect();
        for old in gone {
            self.gpus.remove(&old);
            self.parts.retain(|part, _| part.gpu.as_ref() != Some(&old));
            self.counters.forget(&old.uuid);
            self.gpm.forget(&old);
            self.owners.forget(&old);
            if old.uuid != gpu.uuid {
                self.faults.forget(&old.uuid);
                self.busy.forget(&old.uuid);
                self.canary.forget(&old.uuid);
            }
            self.resets.forget(&old.uuid);
            self.tally.forget(&Subject::Gpu(old));
        }
        if !gpu.uuid.is_empty() {
            self.tally.add(&m::gpu_resets_total, gpu, (), 0.0);
        }
        self.tally.add(&m::gpu_exporter_driver_errors_total, gpu, (), 0.0);
        self.tally.born(&m::gpu_exporter_readings_dropped_total, gpu);
        self.tally.add(&m::gpu_exporter_counter_regressions_total, gpu, (), 0.0);
        Faults::born(&mut self.tally, gpu);
        Canary::seated(&mut self.tally, gpu);
        self.gpus.insert(gpu.clone(), GpuBook::default());
        self.seen_changed |= self.seen.count(self.gpus.len());
    }

    /// The book of the GPU with this index; a GPU that never told its UUID gets one without.
    fn book_by_index(&mut self, index: u32) -> Option<(&Gpu, &mut GpuBook)> {
        if !self.gpus.keys().any(|gpu| gpu.gpu == index) {
            self.seat(&Gpu { gpu: index, uuid: "".into() });
        }
        self.gpus.iter_mut().find(|(gpu, _)| gpu.gpu == index)
    }

    /// Takes in an event.
    pub fn event(&mut self, event: Event) {
        match event {
            Event::DriverUp => {
                self.answer = Answer::Up;
                self.unanswered = None;
            }
            Event::DriverAway { error, text, epoch } => {
                self.count_error(None, error.label());
                self.answer = match error.label() {
                    DriverError::LibRmVersionMismatch => Answer::Mismatch(text),
                    _ => Answer::Away(text),
                };
                self.unanswered = None;
                // Where the module is seen to stay, nothing was reset: only its library is missing.
                if error.label() == DriverError::DriverNotLoaded && !self.loads.module_seen() {
                    self.driver_reset();
                }
                self.floor = epoch;
                self.void_driver();
                // The driver's counters start anew when it is loaded again.
                self.counters.forget_all();
            }
            Event::NoSampler { text } => {
                self.answer = Answer::Away(format!("no sampler can be started: {text}"));
            }
            Event::NoHandle { index, error, text } => {
                if let Some((gpu, book)) = self.book_by_index(index) {
                    book.no_handle = Some(format!("no handle: {text}"));
                    let gpu = gpu.clone();
                    if is_lost(error.label()) {
                        self.resets.lost(&gpu.uuid, None, Mono::now());
                    }
                    self.count_error(Some(&gpu), error.label());
                }
            }
            Event::Released(pause) => {
                if self.paused.is_none() {
                    self.floor = pause.epoch;
                    self.void_driver();
                }
                self.unanswered = None;
                self.paused = Some(pause);
            }
            Event::Resumed => {
                self.paused = None;
                self.answer = Answer::Waiting;
            }
            Event::Module { sight, at, unix_seconds } => {
                self.note_load(&sight);
                if self.loads.sight(&sight, at, unix_seconds) {
                    self.driver_loaded();
                }
            }
            Event::DriverStuck(stuck) => self.stuck = stuck,
            Event::Seated(gpu) => self.seat(&gpu),
            Event::Stalls(stalls) => {
                for stall in stalls.iter().filter_map(|s| s.gpu.as_ref()) {
                    // Also a GPU that was never read is shown as stuck.
                    self.book_by_index(stall.gpu);
                }
                self.stalls = stalls;
            }
            Event::Samplers(alive) => self.samplers = alive,
            Event::SamplerStarted => {
                self.tally.add(&m::gpu_exporter_sampler_starts_total, &Node {}, (), 1.0);
            }
            Event::SamplerEnded(reason, at) => {
                self.unanswered.get_or_insert(at);
                let reason: SamplerEnd = reason;
                self.tally.add(&m::gpu_exporter_sampler_ends_total, &Node {}, (reason,), 1.0);
            }
            Event::LateBatch => {
                self.tally.add(&m::gpu_exporter_batches_discarded_total, &Node {}, (), 1.0);
            }
            Event::Canary(news) => self.canary_news(news, Mono::now(), unix_seconds()),
            Event::Topology(news) => self.topology.take(news),
            Event::Owners(news) => self.owners.take(news, Mono::now()),
            Event::Windows(windows) => self.windows.take(windows),
            Event::Hindered(source, Some(why)) => {
                self.hindered.insert(source, why);
            }
            Event::Hindered(source, None) => {
                self.hindered.remove(&source);
            }
            Event::ReadsKernelLog(since) => self.faults.reads_kernel_log(since),
        }
    }

    /// Takes in a fact, told in this life of its teller.
    pub fn fact(&mut self, life: u64, mut fact: Fact) {
        let missing = self.faults.missing(life, &fact);
        let lost = &m::gpu_exporter_facts_lost_total;
        self.tally.add(lost, &Node {}, (fact.teller.label(),), missing as f64);
        if let What::Driver(told) = &mut fact.what {
            // It may come before the first batch of its GPU, or under an index that is no longer its own.
            match self.gpus.keys().find(|gpu| gpu.uuid == told.gpu.uuid) {
                Some(known) => told.gpu = known.clone(),
                None => self.seat(&told.gpu),
            }
        }
        self.driver_line(&fact);
        if let What::Kernel(KernelFact { old: false, line: KernelLine::OomKill { group, pid }, .. }) =
            &fact.what
        {
            self.owners.killed(group, *pid);
        }
        let owner = self.owner_of_fact(&fact);
        self.faults.take(&mut self.tally, fact, self.ready, owner);
    }

    /// What a line of the kernel log says of the driver: a load of its module.
    fn driver_line(&mut self, fact: &Fact) {
        let What::Kernel(KernelFact { old, line, .. }) = &fact.what else { return };
        let loaded = matches!(line, KernelLine::DriverLoaded { .. });
        if loaded && self.loads.line(*old, fact.taken, fact.unix_seconds) {
            self.driver_loaded();
        }
    }

    /// Counts a load of the kernel module. The driver's counters start anew with it.
    fn driver_loaded(&mut self) {
        self.tally.add(&m::gpu_driver_loads_total, &Node {}, (), 1.0);
        self.counters.forget_all();
        // Also where the kernel log cannot be read.
        self.driver_reset();
    }

    /// What was wrong with the GPUs before is over, or is told again.
    fn driver_reset(&mut self) {
        self.faults.driver_reset();
        self.canary.reset(None);
    }

    /// Counts events that found no room in the inbox.
    pub fn lost(&mut self, events: u64) {
        self.tally.add(&m::gpu_exporter_events_lost_total, &Node {}, (), events as f64);
    }

    /// Drops every value of the driver but the identity of its GPUs.
    fn void_driver(&mut self) {
        self.parts.retain(|part, _| {
            part.collector != Source::Nvml || (part.tier == Tier::Identity && part.gpu.is_some())
        });
    }

    /// The driver as it is to be told.
    fn driver(&self, now: Mono) -> DriverState {
        if let Some(pause) = &self.paused {
            return DriverState::Paused {
                since_unix_seconds: pause.unix_seconds,
                age: now.since(pause.since),
                holders: pause.holders.clone(),
            };
        }
        match &self.answer {
            _ if self.stuck => DriverState::Stuck,
            Answer::Waiting => DriverState::Waiting,
            Answer::Away(text) => DriverState::Away { text: text.clone() },
            Answer::Mismatch(text) => DriverState::Mismatch { text: text.clone() },
            Answer::Up => match self.unanswered {
                Some(since) if now.since(since) > self.settings.bridge => {
                    DriverState::Away { text: "no sampler answers".into() }
                }
                _ => DriverState::Up,
            },
        }
    }

    /// The driver call that is stuck on a GPU, if one is.
    fn stall_of(&self, gpu: &Gpu) -> Option<&Stall> {
        self.stalls.iter().find(|stall| {
            let about = stall.gpu.as_ref();
            about.is_some_and(|g| g == gpu || g.gpu == gpu.gpu && g.uuid.is_empty())
        })
    }

    /// The calls made, for the publication.
    fn call_rows(&self) -> impl Iterator<Item = (Call, TierLabel, u64, f64)> {
        self.calls.iter().map(|((name, tier), (count, nanos))| {
            (Call(name.as_str().into()), *tier, *count, *nanos as f64 * 1e-9)
        })
    }

    fn collectors(&self) -> impl Iterator<Item = (Source, CollectorName)> {
        Source::ALL.iter().map(|source| (*source, source.label()))
    }
}

#[cfg(test)]
mod tests;
