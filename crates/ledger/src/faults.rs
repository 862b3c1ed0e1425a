//! Faults: facts of both sources, merged so that one fault counts once, counted, and kept in a list.
//!
//! The driver's events (by UUID) and the kernel log (by PCI address) report the same Xid within seconds. It
//! counts with the first report; what the second adds goes into the list. Of n reports of each in that time n
//! are taken for the same, in order, so that of n and m reports max(n, m) count.

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

/// Reports of the same code of the same GPU by two sources within this time mean the same fault. A memory
/// error without a report in this time that it was contained was not.
const WINDOW: Duration = Duration::from_secs(5);
/// Most GPUs remembered; far more than a node has.
const MAX_GPUS: usize = 256;

/// A reset of a GPU, as a visit or a line of the kernel log shows it.
#[derive(Debug)]
pub(crate) struct SeenReset {
    pub gpu: Gpu,
    pub at: Mono,
    /// In seconds since 1970.
    pub unix_seconds: f64,
}

#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub counters: OwnCounters,
    /// The life of each source and the number of its newest fact.
    numbers: HashMap<FaultSource, (u64, u64)>,
    /// Since when the kernel log is read; `None`: it is not.
    pub reads_kernel_log: Option<Mono>,
    /// GPUs by PCI address.
    places: HashMap<String, Gpu>,
    states: BTreeMap<Arc<str>, FaultState>,
    waiting: HashMap<(Arc<str>, u32), VecDeque<PendingFault>>,
    homeless: VecDeque<Fact>,
    falls: Falls,
    /// Whether an earlier daemon left the addresses of the GPUs it saw.
    remembers: bool,
    pub events: EventList,
    last_event: Option<f64>,
    resets: Resets,
    switches: SwitchFaults,
    /// When the driver was last loaded or found gone, in seconds since 1970.
    driver_reset: Option<f64>,
    /// The present load of the kernel module, as far as that was seen.
    load: Option<LoadId>,
    /// What was handed out to be kept last.
    persisted: PersistedFaults,
}

impl Faults {
    /// Nothing has happened yet. `keep`: entries of the list; `seen`, `persisted`, `events`: what an earlier daemon left.
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

    /// Notes which load of the kernel module it is.
    pub fn note_module(&mut self, state: &ModuleState) {
        if !matches!(state, ModuleState::Unknown) {
            self.load = state.load().map(|load| load.id.clone());
        }
    }

    /// The faults that a later daemon must know of, if they changed since the last call.
    pub fn take_changed(&mut self) -> Option<PersistedFaults> {
        let lasting = self.states.iter().filter_map(|(uuid, state)| state.lasting(uuid));
        let mut gpus: Vec<FaultyGpu> = lasting.take(MAX_GPUS).collect();
        gpus.iter_mut().for_each(|gpu| self.resets.describe(gpu));
        let switches = self.switches.0.as_slice();
        let same = gpus == self.persisted.gpus && switches == self.persisted.switches;
        // Which load it is does not matter while nothing is wrong.
        let nothing = gpus.is_empty() && switches.is_empty();
        if same && (nothing || self.load == self.persisted.load) {
            return None;
        }
        self.persisted = PersistedFaults { load: self.load.clone(), gpus, switches: switches.to_vec() };
        Some(self.persisted.clone())
    }

    /// Notes that a GPU is of no use before it is reset; `batch`: the visit that found it so.
    pub fn lost(&mut self, gpu: &Gpu, batch: Option<&Batch>) {
        let (tier, at) = batch.map_or((None, Mono::now()), |batch| (Some(batch.part.tier), batch.taken));
        self.resets.lost(&gpu.uuid, tier, at);
    }

    /// Whether a visit shows that its GPU was reset: the GPU was lost and answers again, or the driver asked for a
    /// reset and asks no more.
    pub fn shows_reset(&mut self, gpu: &Gpu, batch: &Batch) -> bool {
        let (tier, taken) = (batch.part.tier, batch.taken);
        // Identity is sent before anything was measured.
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

    /// Notes the number of a fact; gives how many are missing before it.
    pub fn missing(&mut self, life: u64, fact: &Fact) -> u64 {
        let last = match self.numbers.get(&fact.source) {
            // The last words of one that was replaced, behind the first ones of its successor.
            Some((of, _)) if *of > life => return 0,
            Some((of, number)) if *of == life => *number,
            _ => 0,
        };
        self.numbers.insert(fact.source, (life, fact.number.max(last)));
        fact.number.saturating_sub(last + 1)
    }

    /// Notes which GPU has a PCI address.
    pub fn place(&mut self, pci: String, gpu: &Gpu) {
        self.places.insert(pci, gpu.clone());
    }

    /// The GPU with this PCI address.
    pub fn gpu_at(&self, pci: &str) -> Option<&Gpu> {
        self.places.get(pci)
    }

    /// Makes the counters of a GPU.
    pub fn born(&mut self, gpu: &Gpu) {
        self.counters.born(&m::gpu_xid_faults_total, gpu);
        self.counters.born(&m::gpu_driver_events_total, gpu);
        for row in xid::paging() {
            self.counters.add(&m::gpu_xid_errors_total, gpu, labels(row), 0.0);
        }
    }

    /// Forgets a GPU under its index; `replaced`: the whole GPU.
    pub fn forget(&mut self, uuid: &Arc<str>, replaced: bool) {
        self.resets.forget(uuid);
        if !replaced {
            return;
        }
        self.states.remove(uuid);
        self.waiting.retain(|(of, _), _| of != uuid);
        self.places.retain(|_, gpu| gpu.uuid != *uuid);
    }

    /// The driver was loaded again or is gone: what was wrong with its GPUs before is over, or reported again.
    pub fn driver_reset(&mut self, unix_seconds: f64) {
        self.driver_reset = Some(unix_seconds);
        self.states.values_mut().for_each(|state| state.reset(unix_seconds));
        self.switches.clear();
    }

    /// An operator says that the switches were reset; `text`: who, and why.
    pub fn clear_switches(&mut self, text: String, at: Mono, unix_seconds: f64) {
        if self.switches.clear() {
            let event = quiet(EventKind::SwitchesCleared, unix_seconds);
            let event = Event { text, meaning: "The faults of the NVSwitches were cleared.", ..event };
            self.events.record(event, at, Duration::ZERO);
        }
    }

    /// When the faults of a GPU were over last, in seconds since 1970.
    pub fn over_since(&self, gpu: &Gpu) -> Option<f64> {
        [self.driver_reset, self.state_of(gpu).and_then(|state| state.reset)]
            .into_iter()
            .flatten()
            .reduce(f64::max)
    }

    /// A GPU was reset.
    pub fn gpu_reset(&mut self, reset: SeenReset) {
        let SeenReset { gpu, at, unix_seconds } = reset;
        self.states.entry(Arc::clone(&gpu.uuid)).or_default().reset(unix_seconds);
        let event = quiet(EventKind::GpuReset, unix_seconds);
        let event = Event { gpu: Some(gpu), meaning: "The GPU was reset.", ..event };
        self.events.record(event, at, Duration::ZERO);
    }

    /// Takes in an event that is no fault of the two sources.
    pub fn note(&mut self, event: Event, heard: Mono) {
        let at = event.unix_seconds;
        self.last_event = Some(self.last_event.map_or(at, |last| last.max(at)));
        self.events.record(event, heard, Duration::ZERO);
    }

    /// Takes in an event that is nothing wrong: for the list alone.
    pub fn mention(&mut self, event: Event, heard: Mono) {
        self.events.record(event, heard, Duration::ZERO);
    }

    pub fn state_of(&self, gpu: &Gpu) -> Option<&FaultState> {
        self.states.get(&gpu.uuid)
    }

    /// When faults and other events came.
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

    /// The list of events, oldest first.
    pub fn list(&mut self) -> Arc<[Arc<Event>]> {
        self.events.list()
    }

    /// Takes in a fact. `complete`: every GPU that can be known is known; before that a line of the kernel
    /// log about the address of no known GPU may wait.
    /// `owner`: the owner of the work, if that is known.
    /// Gives the reset that the fact shows.
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

    /// Ends what has waited long enough, and logs what is due. Gives the resets that lines show which waited.
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
