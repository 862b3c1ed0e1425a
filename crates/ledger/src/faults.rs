//! Faults: reports of two sources are merged so that each fault counts once, and are listed as events.
//!
//! The driver's events (by UUID) and the kernel log (by PCI address) report the same Xid within seconds. The first
//! report counts, and the second one completes the entry in the list. Reports are paired in order: n of one source
//! and m of the other count as max(n, m).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::builder::Builder;
use super::counters::OwnCounters;
use super::events::EventList;
use super::resets::Resets;
use falls::Falls;
use judge::{driver_event, quiet, recovery, xid_event};
use kernel::{Heard, MAX_HOMELESS, is_old};
use model::catalog::schema::{KnownLabel, Label};
use model::catalog::{self as m, DriverEvent, FaultSource, Gpu, Node, RecoveryAction, Tier};
use model::clock::Mono;
use model::driver_module::{LoadId, ModuleState};
use model::event_history::EventHistory;
use model::fact::{DriverFact, Fact, FactKind};
use model::persisted::{FaultyGpu, Identity, PersistedFaults};
use model::sample::{Batch, Missing};
use model::snapshot::{Event, EventKind};
use model::xid;
use pairs::{PendingFault, labels};
use state::FaultState;
use switches::SwitchFaults;

mod falls;
mod judge;
mod kernel;
mod pairs;
mod state;
mod switches;
mod units;

/// Time within which two reports of the same code and GPU mean the same fault, and within which a memory error must
/// be reported as contained.
const WINDOW: Duration = Duration::from_secs(5);
/// Maximum number of GPUs kept, far more than a node has.
const MAX_GPUS: usize = 256;

/// Reset of a GPU, as shown by a visit or a line of the kernel log.
pub(crate) struct SeenReset {
    pub gpu: Gpu,
    pub at: Mono,
    pub unix_seconds: f64,
}

#[derive(Default)]
pub(crate) struct Faults {
    pub counters: OwnCounters,
    /// Life of each source, and the number of its newest fact.
    numbers: HashMap<FaultSource, (u64, u64)>,
    /// Time since which the kernel log is read; `None`: it is not read.
    pub reads_kernel_log: Option<Mono>,
    /// GPUs by PCI address.
    places: HashMap<String, Gpu>,
    states: BTreeMap<Arc<str>, FaultState>,
    waiting: HashMap<(Arc<str>, u32), VecDeque<PendingFault>>,
    homeless: VecDeque<Fact>,
    falls: Falls,
    /// Whether an earlier daemon left the addresses of its GPUs.
    remembers: bool,
    pub events: EventList,
    last_event: Option<f64>,
    resets: Resets,
    switches: SwitchFaults,
    /// Time at which the driver was last loaded, or at which it was first missing, in seconds since 1970.
    driver_reset: Option<f64>,
    /// Current load of the kernel module, if known.
    load: Option<LoadId>,
    /// Faults that were last saved.
    persisted: PersistedFaults,
}

impl Faults {
    /// Creates the faults. `keep`: entries of the event list; `seen`, `persisted`, `events`: documents of an earlier
    /// daemon.
    pub fn new(keep: usize, seen: &[Identity], persisted: PersistedFaults, events: EventHistory) -> Faults {
        let known = seen.iter().filter(|identity| !identity.pci.is_empty());
        let gpu = |identity: &Identity| Gpu { gpu: identity.index, uuid: identity.uuid.as_str().into() };
        let places: HashMap<_, _> = known.map(|identity| (identity.pci.clone(), gpu(identity))).collect();
        let mut faults = Faults {
            remembers: !places.is_empty(),
            places,
            events: EventList::new(keep),
            load: persisted.load.clone(),
            switches: SwitchFaults::new(&persisted.switches),
            ..Faults::default()
        };
        for gpu in &persisted.gpus {
            faults.states.entry(gpu.uuid.as_str().into()).or_default().restore(gpu);
            faults.resets.restore(gpu);
        }
        faults.events.restore(events.into_events());
        faults.persisted = persisted;
        faults
    }

    /// Records the current load of the kernel module.
    pub fn note_module(&mut self, state: &ModuleState) {
        if !matches!(state, ModuleState::Unknown) {
            self.load = state.load().map(|load| load.id.clone());
        }
    }

    /// Returns the faults that a later daemon needs, if they changed since the last call.
    pub fn take_changed(&mut self) -> Option<PersistedFaults> {
        let lasting = self.states.iter().filter_map(|(uuid, state)| state.lasting(uuid));
        let mut gpus: Vec<FaultyGpu> = lasting.take(MAX_GPUS).collect();
        gpus.iter_mut().for_each(|gpu| self.resets.describe(gpu));
        let switches = self.switches.0.as_slice();
        let same = gpus == self.persisted.gpus && switches == self.persisted.switches;
        // The load does not matter while there are no faults.
        let nothing = gpus.is_empty() && switches.is_empty();
        if same && (nothing || self.load == self.persisted.load) {
            return None;
        }
        self.persisted = PersistedFaults { load: self.load.clone(), gpus, switches: switches.to_vec() };
        Some(self.persisted.clone())
    }

    /// Marks a GPU as unusable until its reset. `batch`: the visit that showed this.
    pub fn lost(&mut self, gpu: &Gpu, batch: Option<&Batch>) {
        let (tier, at) = batch.map_or((None, Mono::now()), |batch| (Some(batch.part.tier), batch.taken));
        self.resets.lost(&gpu.uuid, tier, at);
    }

    /// Returns true if a visit shows a reset of its GPU: the GPU was lost and answers again, or the driver no longer
    /// requests a reset.
    pub fn shows_reset(&mut self, gpu: &Gpu, batch: &Batch) -> bool {
        let (tier, taken) = (batch.part.tier, batch.taken);
        // The identity is sent before anything is measured.
        let measured = tier != Tier::Identity && !batch.rows.is_empty();
        let lost = batch.gaps.iter().any(|gap| match &gap.missing {
            Missing::Failed { error, .. } => error.is_lost(),
            Missing::Unsupported | Missing::Dropped(_) => false,
        });
        let returned = measured && batch.answered && !lost && self.resets.answers(&gpu.uuid, tier, taken);
        let action = m::gpu_recovery_action.id();
        let Some(now) = batch.rows.all().find(|row| row.metric == action && row.value > 0.0) else {
            return returned;
        };
        let action = RecoveryAction::ALL.iter().find(|action| now.labels == [action.text()]);
        let asked = action.is_some_and(|action| self.resets.asks(&gpu.uuid, *action, taken));
        returned || asked
    }

    /// Records the number of a fact, and returns how many facts are missing before it.
    pub fn missing(&mut self, life: u64, fact: &Fact) -> u64 {
        let last = match self.numbers.get(&fact.source) {
            // Late facts of a replaced source, after the first ones of its successor.
            Some((of, _)) if *of > life => return 0,
            Some((of, number)) if *of == life => *number,
            _ => 0,
        };
        self.numbers.insert(fact.source, (life, fact.number.max(last)));
        fact.number.saturating_sub(last + 1)
    }

    /// Records which GPU has a PCI address.
    pub fn place(&mut self, pci: String, gpu: &Gpu) {
        self.places.insert(pci, gpu.clone());
    }

    pub fn gpu_at(&self, pci: &str) -> Option<&Gpu> {
        self.places.get(pci)
    }

    /// Creates the counters of a GPU.
    pub fn born(&mut self, gpu: &Gpu) {
        self.counters.born(&m::gpu_xid_faults_total, gpu);
        self.counters.born(&m::gpu_driver_events_total, gpu);
        for row in xid::paging() {
            self.counters.add(&m::gpu_xid_errors_total, gpu, labels(row), 0.0);
        }
    }

    /// Forgets a GPU under its index, or the whole GPU if it was `replaced`.
    pub fn forget(&mut self, uuid: &Arc<str>, replaced: bool) {
        self.resets.forget(uuid);
        if !replaced {
            return;
        }
        self.states.remove(uuid);
        self.waiting.retain(|(of, _), _| of != uuid);
        self.places.retain(|_, gpu| gpu.uuid != *uuid);
    }

    /// Ends all faults after a driver load or unload. Faults that persist are reported again.
    pub fn driver_reset(&mut self, unix_seconds: f64) {
        self.driver_reset = Some(unix_seconds);
        self.states.values_mut().for_each(|state| state.reset(unix_seconds));
        self.switches.clear();
    }

    /// Ends the faults of the NVSwitches after an operator reported their reset. `text`: the operator and the reason.
    pub fn clear_switches(&mut self, text: String, at: Mono, unix_seconds: f64) {
        if self.switches.clear() {
            let event = quiet(EventKind::SwitchesCleared, unix_seconds);
            let event = Event { text, meaning: "The faults of the NVSwitches were cleared.", ..event };
            self.events.record(event, at, Duration::ZERO);
        }
    }

    /// Returns the time at which the faults of a GPU last ended, in seconds since 1970.
    pub fn over_since(&self, gpu: &Gpu) -> Option<f64> {
        [self.driver_reset, self.state_of(gpu).and_then(|state| state.reset)]
            .into_iter()
            .flatten()
            .reduce(f64::max)
    }

    /// Ends the faults of a GPU after its reset.
    pub fn gpu_reset(&mut self, reset: SeenReset) {
        let SeenReset { gpu, at, unix_seconds } = reset;
        self.states.entry(Arc::clone(&gpu.uuid)).or_default().reset(unix_seconds);
        let event = quiet(EventKind::GpuReset, unix_seconds);
        let event = Event { gpu: Some(gpu), meaning: "The GPU was reset.", ..event };
        self.events.record(event, at, Duration::ZERO);
    }

    /// Adds an event that comes from neither of the two sources.
    pub fn note(&mut self, event: Event, heard: Mono) {
        let at = event.unix_seconds;
        self.last_event = Some(self.last_event.map_or(at, |last| last.max(at)));
        self.events.record(event, heard, Duration::ZERO);
    }

    /// Adds an event that is not a problem, only to the list.
    pub fn mention(&mut self, event: Event, heard: Mono) {
        self.events.record(event, heard, Duration::ZERO);
    }

    pub fn state_of(&self, gpu: &Gpu) -> Option<&FaultState> {
        self.states.get(&gpu.uuid)
    }

    /// Publishes the times of faults and other events.
    pub fn publish<'a>(&self, b: &mut Builder<'_>, gpus: impl Iterator<Item = &'a Gpu>) {
        for gpu in gpus {
            if let Some((at, code)) = self.state_of(gpu).and_then(|state| state.last_xid) {
                b.add(&m::gpu_xid_last_event_timestamp_seconds, gpu, (), at);
                b.add(&m::gpu_xid_last_code, gpu, (), f64::from(code));
            }
        }
        b.add_known(&m::gpu_last_event_timestamp_seconds, &Node {}, (), self.last_event);
        self.switches.publish(b);
    }

    /// Returns the event list, oldest first.
    pub fn list(&mut self) -> Arc<[Arc<Event>]> {
        self.events.list()
    }

    /// Applies a fact, and returns the reset that it shows. `complete`: all GPUs that can be known are known; before
    /// that, a kernel log line about an unknown address may wait. `owner`: the owner of the work, if known.
    pub fn record(&mut self, fact: Fact, complete: bool, owner: Option<Arc<str>>) -> Option<SeenReset> {
        if !complete && self.homeless.len() < MAX_HOMELESS {
            let behind = self.homeless.iter().any(is_old);
            if self.waits(&fact, behind) {
                self.homeless.push_back(fact);
                return None;
            }
        }
        let Fact { taken: at, unix_seconds, kind: what, .. } = fact;
        let heard = Heard { at, unix_seconds, owner };
        self.last_event = Some(self.last_event.map_or(unix_seconds, |last| last.max(unix_seconds)));
        match what {
            FactKind::Driver(fact) => {
                self.driver(fact, heard);
                None
            }
            FactKind::Kernel(fact) => self.kernel(fact, heard),
        }
    }

    /// Applies facts that have waited long enough, and logs the entries that are due. Returns the resets that these
    /// facts show.
    pub fn settle(&mut self, now: Mono, complete: bool) -> Vec<SeenReset> {
        let mut resets = Vec::new();
        let mut behind = false;
        for fact in std::mem::take(&mut self.homeless) {
            if !complete && self.waits(&fact, behind) {
                behind |= is_old(&fact);
                self.homeless.push_back(fact);
            } else {
                resets.extend(self.record(fact, true, None));
            }
        }
        self.expire_pairs(now);
        self.events.settle(now);
        resets
    }

    fn driver(&mut self, fact: DriverFact, heard: Heard) {
        let Heard { at, unix_seconds, owner } = heard;
        let event = fact.event();
        self.counters.add(&m::gpu_driver_events_total, &fact.gpu, (event,), 1.0);
        if event == DriverEvent::Xid {
            let row = xid::xid(u32::try_from(fact.data).unwrap_or(u32::MAX));
            let entry = Event { owner, nvml: true, ..xid_event(&row, unix_seconds) };
            let DriverFact { gpu_instance, compute_instance, .. } = fact;
            let entry = Event { gpu_instance, compute_instance, ..entry };
            return self.xid(fact.gpu, &row, entry, at);
        }
        let (kind, code, name, (severity, action, meaning)) = if event == DriverEvent::RecoveryAction {
            let wanted = usize::try_from(fact.data).ok().and_then(|at| RecoveryAction::ALL.get(at).copied());
            let name = wanted.map_or("", |wanted| wanted.known());
            (EventKind::RecoveryAction, fact.data, name, recovery(wanted))
        } else {
            self.states.entry(Arc::clone(&fact.gpu.uuid)).or_default().note_event(event, at);
            (EventKind::DriverEvent, fact.bits, event.known(), driver_event(event))
        };
        let entry = Event {
            gpu: Some(fact.gpu),
            code: Some(code),
            mnemonic: name,
            meaning,
            gpu_instance: fact.gpu_instance,
            compute_instance: fact.compute_instance,
            owner,
            nvml: true,
            ..Event::new(kind, unix_seconds, severity, action)
        };
        self.events.record(entry, at, Duration::ZERO);
    }
}

#[cfg(test)]
mod tests;
