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
use judge::{describe, driver_event, gpu_failure, judged, judged_sxid, recovery, was_reset};
use model::catalog::schema::{KnownLabel, Label};
use model::catalog::{
    self as m, DriverError, DriverEvent, FaultAction, FaultSource, Gpu, Node, RecoveryAction, Severity,
    SwitchName, SxidCode, Tier, XidCode,
};
use model::clock::Mono;
use model::driver_module::{LoadId, ModuleState};
use model::fact::{DriverFact, Fact, FactKind, GpuFailure, KernelFact, KernelLine, XidDetail};
use model::persisted::{FaultyGpu, Identity, PersistedFaults};
use model::sample::{Batch, Missing};
use model::snapshot::{Event, EventKind};
use model::xid::{self, Xid};
use switches::SwitchFaults;
use units::Units;

mod judge;
mod switches;
mod units;

/// Reports of the same code of the same GPU by two sources within this time mean the same fault. A memory
/// error without a report in this time that it was contained was not.
const WINDOW: Duration = Duration::from_secs(5);
/// The Xid of a GPU that fell off the bus.
const FALLEN: u32 = 79;
/// How long the log waits for what the other source adds.
const PATIENCE: Duration = Duration::from_secs(1);
/// Faults of one GPU and code that wait for their other source; more than a flood brings in that time.
const MAX_WAITING: usize = 65_536;
/// Most GPUs remembered; far more than a node has.
const MAX_GPUS: usize = 256;
/// Lines of the kernel log kept until it is known which GPU has their address.
const MAX_HOMELESS: usize = 4096;

/// A fault that one source has reported.
#[derive(Debug)]
struct PendingFault {
    /// Whether the driver reported it; else the kernel log did.
    nvml: bool,
    heard: Mono,
    entry: u64,
    /// The GPU of a report that is not counted yet: the kernel log's line says as what.
    uncounted: Option<Gpu>,
}

#[derive(Debug)]
struct Heard {
    at: Mono,
    unix_seconds: f64,
    owner: Option<Arc<str>>,
}

/// Faults of one GPU since its last reset.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultState {
    /// When the newest Xid came, in seconds since 1970, and its code.
    last_xid: Option<(f64, u32)>,
    fatal: bool,
    uncontained: bool,
    contained: Option<Mono>,
    memory_error: Option<Mono>,
    /// Where faults of programs came from.
    units: Units,
    /// When the GPU was last reset, in seconds since 1970.
    reset: Option<f64>,
}

impl FaultState {
    /// Whether a fault came after which the GPU needs a reset.
    pub fn fatal(&self) -> bool {
        self.fatal
    }

    /// Whether there was a memory error that is not known to be contained.
    pub fn uncontained(&self, now: Mono) -> bool {
        self.uncontained || self.memory_error.is_some_and(|at| now.since(at) > WINDOW)
    }

    fn note(&mut self, row: &Xid, heard: Mono) {
        match row.code {
            94 => {
                self.contained = Some(heard);
                self.memory_error = self.memory_error.filter(|at| heard.since(*at) > WINDOW);
            }
            95 => self.uncontained = true,
            code if xid::is_memory_error(code) => {
                let contained = self.contained.is_some_and(|at| heard.since(at) <= WINDOW);
                if !contained && self.memory_error.is_none() {
                    self.memory_error = Some(heard);
                }
            }
            _ => {}
        }
        // What follows a memory error shows whether it is fatal.
        self.fatal |= row.severity == Severity::Page && !xid::is_memory_error(row.code);
    }

    /// What a later daemon must know of, if that is anything. What a flood changes at every line is left
    /// out: that would wear the disk.
    fn lasting(&self, uuid: &str) -> Option<FaultyGpu> {
        let FaultState { fatal, uncontained, memory_error, .. } = *self;
        (fatal || uncontained || memory_error.is_some()).then(|| FaultyGpu {
            uuid: uuid.to_owned(),
            fatal,
            uncontained,
            memory_error,
            ..FaultyGpu::default()
        })
    }

    fn reset(&mut self, unix_seconds: f64) {
        let units = std::mem::take(&mut self.units);
        let reset = Some(unix_seconds);
        *self = FaultState { last_xid: self.last_xid, units, reset, ..FaultState::default() };
    }

    /// A fatal event of the driver that may come without an Xid.
    fn note_event(&mut self, event: DriverEvent, heard: Mono) {
        match event {
            DriverEvent::FatalPoison | DriverEvent::GpuUnavailable => self.fatal = true,
            DriverEvent::DoubleBitEcc => self.note(&xid::xid(48), heard),
            _ => {}
        }
    }
}

/// A GPU that fell off the bus.
#[derive(Debug)]
struct Fallen {
    /// In seconds since 1970, as its source says: what is old is heard all at once.
    unix_seconds: f64,
    /// The entry of the driver's line without a code, until an Xid says the same.
    line: Option<u64>,
}

#[derive(Debug, Default)]
pub struct Faults {
    /// The life of each source and the number of its newest fact.
    numbers: HashMap<FaultSource, (u64, u64)>,
    /// Since when the kernel log is read; `None`: it is not.
    reads_kernel_log: Option<Mono>,
    /// GPUs by PCI address.
    places: HashMap<String, Gpu>,
    states: BTreeMap<Arc<str>, FaultState>,
    waiting: HashMap<(Arc<str>, u32), VecDeque<PendingFault>>,
    homeless: VecDeque<Fact>,
    /// GPUs that fell off the bus, by UUID, or by PCI address while the GPU is not known.
    fallen: HashMap<String, Fallen>,
    /// Whether an earlier daemon left the addresses of the GPUs it saw.
    remembers: bool,
    events: EventList,
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
    /// Nothing has happened yet. `keep`: entries of the list; `seen`: GPUs of an earlier daemon.
    pub fn new(keep: usize, seen: &[Identity], persisted: PersistedFaults) -> Faults {
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
            faults.restore(gpu);
            faults.resets.restore(gpu);
        }
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
        let switches = self.switches.all();
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
            Missing::Failed { error, .. } => is_lost(*error),
            Missing::Unsupported | Missing::Dropped(_) => false,
        });
        let returned = measured && batch.answered && !lost && self.resets.answers(&gpu.uuid, tier, taken);
        let action = m::gpu_recovery_action.id();
        let Some(now) = batch.rows.all().find(|row| row.metric == action && row.value > 0.0) else {
            return returned;
        };
        use RecoveryAction as A;
        let is = |action: A| now.labels == [action.text()];
        let reset = [A::GpuReset, A::NodeReboot, A::DrainAndReset].into_iter().any(is);
        // A drain of peers alone is no reset, and its end is none either.
        let asked = (reset || is(A::None)) && self.resets.asks(&gpu.uuid, reset, taken);
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

    /// Notes since when the kernel log is read; `None`: it is not.
    pub fn reads_kernel_log(&mut self, since: Option<Mono>) {
        self.reads_kernel_log = since;
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
    pub fn born(counters: &mut OwnCounters, gpu: &Gpu) {
        counters.born(&m::gpu_xid_faults_total, gpu);
        counters.born(&m::gpu_driver_events_total, gpu);
        for row in xid::paging() {
            counters.add(&m::gpu_xid_errors_total, gpu, labels(row), 0.0);
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
        self.switches.driver_reset();
    }

    /// When the faults of a GPU were over last, in seconds since 1970.
    pub fn over_since(&self, gpu: &Gpu) -> Option<f64> {
        [self.driver_reset, self.of(gpu).and_then(|state| state.reset)].into_iter().flatten().reduce(f64::max)
    }

    /// A GPU was reset.
    pub fn gpu_reset(&mut self, gpu: &Gpu, at: Mono, unix_seconds: f64) {
        self.states.entry(Arc::clone(&gpu.uuid)).or_default().reset(unix_seconds);
        let event = quiet(EventKind::GpuReset, unix_seconds);
        let event = Event { gpu: Some(gpu.clone()), meaning: "The GPU was reset.", ..event };
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

    /// Takes up what an earlier daemon knew of a GPU. It was counted then.
    fn restore(&mut self, known: &FaultyGpu) {
        let state = self.states.entry(known.uuid.as_str().into()).or_default();
        state.fatal |= known.fatal;
        state.uncontained |= known.uncontained;
        state.memory_error = state.memory_error.or(known.memory_error);
    }

    pub fn of(&self, gpu: &Gpu) -> Option<&FaultState> {
        self.states.get(&gpu.uuid)
    }

    /// When faults and other events came.
    pub fn put<'a>(&self, b: &mut Builder<'_>, gpus: impl Iterator<Item = &'a Gpu>) {
        for gpu in gpus {
            if let Some((at, code)) = self.of(gpu).and_then(|state| state.last_xid) {
                b.put(&m::gpu_xid_last_event_timestamp_seconds, gpu, (), at);
                b.put(&m::gpu_xid_last_code, gpu, (), f64::from(code));
            }
        }
        if let Some(at) = self.last_event {
            b.put(&m::gpu_last_event_timestamp_seconds, &Node {}, (), at);
        }
        self.switches.put(b);
    }

    /// The list of events, oldest first.
    pub fn list(&mut self) -> Arc<[Arc<Event>]> {
        self.events.list()
    }

    /// Takes in a fact. `complete`: every GPU that can be known is known; before that a line of the kernel
    /// log about the address of no known GPU may wait.
    /// `owner`: the owner of the work, if that is known.
    pub fn take(&mut self, counters: &mut OwnCounters, fact: Fact, complete: bool, owner: Option<Arc<str>>) {
        if !complete && self.homeless.len() < MAX_HOMELESS {
            let behind = self.homeless.iter().any(is_old);
            if self.waits(&fact, behind) {
                return self.homeless.push_back(fact);
            }
        }
        let Fact { taken: at, unix_seconds, kind: what, .. } = fact;
        let heard = Heard { at, unix_seconds, owner };
        self.last_event = Some(self.last_event.map_or(unix_seconds, |last| last.max(unix_seconds)));
        match what {
            FactKind::Driver(fact) => self.driver(counters, fact, heard),
            FactKind::Kernel(fact) => self.kernel(counters, fact, heard),
        }
    }

    /// Ends what has waited long enough, and logs what is due.
    pub fn settle(&mut self, counters: &mut OwnCounters, now: Mono, complete: bool) {
        let mut behind = false;
        for fact in std::mem::take(&mut self.homeless) {
            if !complete && self.waits(&fact, behind) {
                behind |= is_old(&fact);
                self.homeless.push_back(fact);
            } else {
                self.take(counters, fact, true, None);
            }
        }
        for ((_, code), queue) in &mut self.waiting {
            expire(counters, &mut self.events, *code, queue, now);
        }
        self.waiting.retain(|_, queue| !queue.is_empty());
        self.events.settle(now);
    }

    /// Whether a fact is better taken in when more GPUs are known. What counts waits only if its GPU is not
    /// known. What is old keeps its order, but does not wait for GPUs that no earlier daemon saw.
    fn waits(&self, fact: &Fact, behind: bool) -> bool {
        let FactKind::Kernel(KernelFact { line, .. }) = &fact.kind else { return false };
        let homeless = match line {
            KernelLine::Xid { pci, .. } | KernelLine::GpuFailed { pci: Some(pci), .. } => {
                !self.places.contains_key(pci)
            }
            _ => false,
        };
        if is_old(fact) { behind || homeless && !self.remembers } else { homeless }
    }

    fn driver(&mut self, counters: &mut OwnCounters, fact: DriverFact, heard: Heard) {
        let Heard { at, unix_seconds, owner } = heard;
        let event = fact.event();
        counters.add(&m::gpu_driver_events_total, &fact.gpu, (event,), 1.0);
        if event == DriverEvent::Xid {
            let row = xid::xid(u32::try_from(fact.data).unwrap_or(u32::MAX));
            let entry = Event { owner, nvml: true, ..xid_event(&row, unix_seconds) };
            let DriverFact { gpu_instance, compute_instance, .. } = fact;
            let entry = Event { gpu_instance, compute_instance, ..entry };
            return self.xid(counters, fact.gpu, &row, entry, at);
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

    fn kernel(&mut self, counters: &mut OwnCounters, fact: KernelFact, heard: Heard) {
        let Heard { at, unix_seconds, owner } = heard;
        let KernelFact { old, line, text } = fact;
        let entry = match line {
            KernelLine::Xid { pci, code, pid, process, gpu_instance, compute_instance, detail } => {
                let row = judged(code, detail.as_ref());
                let gpu = self.places.get(&pci).cloned();
                let mut entry = Event {
                    pci: Some(pci),
                    pid,
                    process,
                    gpu_instance,
                    compute_instance,
                    owner,
                    text: text.clone(),
                    old,
                    kmsg: true,
                    ..xid_event(&row, unix_seconds)
                };
                describe(&mut entry, code, detail.as_ref());
                match gpu {
                    Some(gpu) if !old => {
                        let state = self.states.entry(gpu.uuid.clone()).or_default();
                        match detail {
                            Some(XidDetail::Unit(unit)) => {
                                entry.same_unit = state.units.take(code, &unit, pid, unix_seconds);
                            }
                            Some(XidDetail::Recovery(change)) if was_reset(change) => {
                                state.reset(unix_seconds)
                            }
                            _ => {}
                        }
                        return self.xid(counters, gpu, &row, entry, at);
                    }
                    Some(gpu) => {
                        self.note_newest(&gpu, unix_seconds, code);
                        Event { gpu: Some(gpu), ..entry }
                    }
                    None => {
                        if !old {
                            counters.add(&m::gpu_xid_unknown_gpu_total, &Node {}, labels(&row), 1.0);
                        }
                        entry
                    }
                }
            }
            KernelLine::GpuFailed { pci, failure } => {
                let gpu = pci.as_ref().and_then(|pci| self.places.get(pci)).cloned();
                if let Some(gpu) = gpu.as_ref().filter(|_| !old && failure == GpuFailure::FallenOffBus) {
                    self.states.entry(gpu.uuid.clone()).or_default().fatal = true;
                }
                let (kind, severity, action, meaning) = gpu_failure(failure);
                let base = Event::new(kind, unix_seconds, severity, action);
                let entry = Event { gpu: gpu.clone(), pci, meaning, owner, ..base };
                if self.fell(&entry).is_some_and(|known| known.line.is_none()) {
                    // The driver repeats what the Xid has said.
                    return;
                }
                entry
            }
            KernelLine::Sxid { nvswitch, pci, code, fatal } => {
                let row = judged_sxid(code, fatal);
                if !old {
                    self.switches.note(&nvswitch, code, fatal);
                    let labels = (
                        SwitchName(nvswitch.as_str().into()),
                        SxidCode(code.to_string().as_str().into()),
                        row.severity,
                        row.action,
                    );
                    counters.add(&m::gpu_nvswitch_sxid_errors_total, &Node {}, labels, 1.0);
                }
                Event {
                    pci: Some(pci),
                    nvswitch: Some(nvswitch),
                    code: Some(code.into()),
                    meaning: row.meaning,
                    fatal: Some(fatal),
                    ..Event::new(EventKind::Sxid, unix_seconds, row.severity, row.action)
                }
            }
            // Of the host's memory: no fault of a GPU.
            KernelLine::OomKill { .. } => return,
            KernelLine::DriverLoaded { .. } | KernelLine::DriverUnloaded => {
                if !old {
                    self.driver_reset(unix_seconds);
                }
                let (kind, meaning) = match line {
                    KernelLine::DriverUnloaded => (EventKind::DriverUnload, "The kernel module was removed."),
                    _ => (EventKind::DriverLoad, "The kernel module was loaded."),
                };
                Event { meaning, ..quiet(kind, unix_seconds) }
            }
        };
        self.list_fault(Event { text, old, kmsg: true, ..entry }, at, Duration::ZERO);
    }

    /// When this GPU fell off the bus, if the event says the same once more.
    fn fell(&self, event: &Event) -> Option<&Fallen> {
        let is_near =
            |known: &&Fallen| (event.unix_seconds - known.unix_seconds).abs() <= WINDOW.as_secs_f64();
        is_fall(event).then(|| self.fallen.get(&place(event)).filter(is_near)).flatten()
    }

    /// Lists a fault; gives the id of its entry. A GPU that fell off the bus did so once, also where the driver's line
    /// without a code came before the Xid: then the Xid takes the place of that line.
    fn list_fault(&mut self, event: Event, at: Mono, wait: Duration) -> u64 {
        if !is_fall(&event) {
            return self.events.record(event, at, wait);
        }
        let (place, unix_seconds) = (place(&event), event.unix_seconds);
        let is_xid = event.kind == EventKind::Xid;
        let line = self.fell(&event).and_then(|known| known.line).filter(|_| is_xid);
        let id = line
            .and_then(|line| self.events.supersede(line, event.clone(), at, wait))
            .unwrap_or_else(|| self.events.record(event, at, wait));
        if self.fallen.len() < MAX_GPUS || self.fallen.contains_key(&place) {
            self.fallen.insert(place, Fallen { unix_seconds, line: (!is_xid).then_some(id) });
        }
        id
    }

    /// A fault of a GPU that is known: the second report of a known one, or a new one.
    fn xid(&mut self, counters: &mut OwnCounters, gpu: Gpu, row: &Xid, entry: Event, heard: Mono) {
        let entry = Event { gpu: Some(gpu.clone()), ..entry };
        let nvml = entry.nvml;
        let queue = self.waiting.entry((gpu.uuid.clone(), row.code)).or_default();
        expire(counters, &mut self.events, row.code, queue, heard);
        // All that wait are of one source: each pair that could be matched is gone.
        if queue.front().is_some_and(|first| first.nvml != nvml)
            && let Some(first) = queue.pop_front()
        {
            if first.uncounted.is_some() {
                self.count(counters, &gpu, row, heard);
            } else if xid::depends_on_text(row.code) && !nvml {
                // Counted by its code alone, as while the kernel log was not read yet.
                self.states.entry(gpu.uuid.clone()).or_default().note(row, heard);
            }
            self.events.enrich(first.entry, entry, heard);
            return;
        }
        self.note_newest(&gpu, entry.unix_seconds, row.code);
        // The driver's word lacks process and text; the kernel log's lacks nothing that people read.
        let more = nvml && self.reads_kernel_log.is_some_and(|since| since <= heard);
        let uncounted = (more && xid::depends_on_text(row.code)).then(|| gpu.clone());
        if uncounted.is_none() {
            self.count(counters, &gpu, row, heard);
        }
        let wait = if more { PATIENCE } else { Duration::ZERO };
        let entry = self.list_fault(entry, heard, wait);
        if let Some(queue) = self.waiting.get_mut(&(gpu.uuid.clone(), row.code)) {
            if queue.len() >= MAX_WAITING {
                count_waiting(counters, &mut self.events, row.code, queue.pop_front(), heard);
            }
            queue.push_back(PendingFault { nvml, heard, entry, uncounted });
        }
    }

    /// Counts a fault, and takes in what it says of the GPU.
    fn count(&mut self, counters: &mut OwnCounters, gpu: &Gpu, row: &Xid, heard: Mono) {
        self.states.entry(gpu.uuid.clone()).or_default().note(row, heard);
        count(counters, gpu, row);
    }

    fn note_newest(&mut self, gpu: &Gpu, unix_seconds: f64, code: u32) {
        let last = &mut self.states.entry(gpu.uuid.clone()).or_default().last_xid;
        if last.is_none_or(|(newest, _)| newest <= unix_seconds) {
            *last = Some((unix_seconds, code));
        }
    }
}

/// Ends the wait of faults that the other source did not report in time.
fn expire(
    counters: &mut OwnCounters,
    events: &mut EventList,
    code: u32,
    queue: &mut VecDeque<PendingFault>,
    now: Mono,
) {
    while queue.front().is_some_and(|first| now.since(first.heard) > WINDOW) {
        count_waiting(counters, events, code, queue.pop_front(), now);
    }
}

/// Counts a fault whose line did not come, as its code alone says. No code that depends on its line pages without.
fn count_waiting(
    counters: &mut OwnCounters,
    events: &mut EventList,
    code: u32,
    fault: Option<PendingFault>,
    now: Mono,
) {
    if let Some(PendingFault { entry, uncounted: Some(gpu), .. }) = fault {
        let row = xid::xid(code);
        count(counters, &gpu, &row);
        events.without_line(entry, &xid_event(&row, 0.0), now);
    }
}

fn count(counters: &mut OwnCounters, gpu: &Gpu, row: &Xid) {
    counters.add(&m::gpu_xid_faults_total, gpu, (row.action,), 1.0);
    counters.add(&m::gpu_xid_errors_total, gpu, labels(row), 1.0);
}

/// Whether an error says that the GPU is of no use before it is reset.
pub(super) fn is_lost(error: DriverError) -> bool {
    matches!(error, DriverError::GpuIsLost | DriverError::ResetRequired)
}

/// Whether an event says that a GPU fell off the bus.
fn is_fall(event: &Event) -> bool {
    event.kind == EventKind::FallenOffBus
        || event.kind == EventKind::Xid && event.code == Some(u64::from(FALLEN))
}

/// UUID of an event's GPU, or its PCI address.
fn place(event: &Event) -> String {
    let uuid = event.gpu.as_ref().map(|gpu| gpu.uuid.to_string());
    uuid.or_else(|| event.pci.clone()).unwrap_or_default()
}

fn is_old(fact: &Fact) -> bool {
    matches!(&fact.kind, FactKind::Kernel(KernelFact { old: true, .. }))
}

fn labels(row: &Xid) -> (XidCode, Severity, FaultAction) {
    (XidCode(row.code.to_string().as_str().into()), row.severity, row.action)
}

fn xid_event(row: &Xid, unix_seconds: f64) -> Event {
    Event {
        code: Some(row.code.into()),
        mnemonic: row.mnemonic,
        meaning: row.meaning,
        app_can_cause: row.app_can_cause,
        ..Event::new(EventKind::Xid, unix_seconds, row.severity, row.action)
    }
}

fn quiet(kind: EventKind, unix_seconds: f64) -> Event {
    Event::new(kind, unix_seconds, Severity::Info, FaultAction::Ignore)
}

#[cfg(test)]
mod tests;
