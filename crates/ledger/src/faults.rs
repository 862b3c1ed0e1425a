//! Faults: facts of both tellers, merged so that one fault counts once, counted, and kept in a list.
//!
//! The driver's events (by UUID) and the kernel log (by PCI address) tell of the same Xid within seconds. It
//! counts when the first of them tells; what the second one adds goes into the list. Of n told by each in
//! that time n are taken for the same, in order, so that of n and m told max(n, m) count.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::events::Events;
use super::tally::Tally;
use model::catalog::schema::KnownLabel;
use model::catalog::{
    self as m, DriverEvent, FaultAction, Gpu, Node, RecoveryAction, Severity, SwitchName, SxidCode, XidCode,
};
use model::clock::Mono;
use model::fact::{DriverFact, Fact, KernelFact, KernelLine, Teller, What};
use model::persisted::{FaultyGpu, Identity};
use model::snapshot::{Event, EventKind};
use model::xid::{self, Xid};

/// Two tellers who tell of the same code of the same GPU within this time mean the same fault. A memory
/// error of which nobody tells in this time that it was contained was not.
const WINDOW: Duration = Duration::from_secs(5);
/// How long the journal waits for what the second teller adds.
const PATIENCE: Duration = Duration::from_secs(1);
/// Faults of one GPU and code that wait for their second teller; more than a flood brings in that time.
const MAX_WAITING: usize = 65_536;
/// Lines of the kernel log kept until it is known which GPU has their address.
const MAX_HOMELESS: usize = 4096;

/// A fault that one teller has told of.
#[derive(Debug)]
struct Waiting {
    teller: Teller,
    heard: Mono,
    entry: u64,
}

/// What faults say about one GPU since it was last reset.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultBook {
    /// When the newest Xid came, in seconds since 1970.
    pub last_xid: Option<f64>,
    /// Whether an Xid came after which the GPU needs a reset.
    pub fatal: bool,
    uncontained: bool,
    contained: Option<Mono>,
    memory_error: Option<Mono>,
}

impl FaultBook {
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
        // Whether a memory error is fatal is told by what follows it.
        self.fatal |= row.severity == Severity::Page && !xid::is_memory_error(row.code);
    }

    /// What a later daemon must know of it, if that is anything. What a flood changes at every line is left
    /// out: that would wear the disk.
    fn lasting(&self, uuid: &str) -> Option<FaultyGpu> {
        let FaultBook { fatal, uncontained, memory_error, .. } = *self;
        (fatal || uncontained || memory_error.is_some()).then(|| FaultyGpu {
            uuid: uuid.to_owned(),
            fatal,
            uncontained,
            memory_error,
            ..FaultyGpu::default()
        })
    }

    fn reset(&mut self) {
        *self = FaultBook { last_xid: self.last_xid, ..FaultBook::default() };
    }
}

/// What is known of the facts told so far.
#[derive(Debug)]
pub struct Faults {
    /// The life of each teller and the number of its newest fact.
    told: HashMap<Teller, (u64, u64)>,
    /// Since when the kernel log is read; `None`: it is not.
    reads_kernel_log: Option<Mono>,
    places: HashMap<String, Gpu>,
    books: BTreeMap<Arc<str>, FaultBook>,
    waiting: HashMap<(Arc<str>, u32), VecDeque<Waiting>>,
    homeless: VecDeque<Fact>,
    /// Whether an earlier daemon left the addresses of the GPUs it saw.
    remembers: bool,
    events: Events,
    last_event: Option<f64>,
}

impl Faults {
    /// Nothing has happened yet. `keep`: entries of the list; `seen`: GPUs of an earlier daemon.
    pub fn new(keep: usize, seen: &[Identity]) -> Faults {
        let known = seen.iter().filter(|identity| !identity.pci.is_empty());
        let place = |identity: &Identity| {
            let gpu = Gpu { gpu: identity.index, uuid: identity.uuid.as_str().into() };
            (identity.pci.clone(), gpu)
        };
        let places: HashMap<String, Gpu> = known.map(place).collect();
        Faults {
            told: HashMap::new(),
            reads_kernel_log: None,
            remembers: !places.is_empty(),
            places,
            books: BTreeMap::new(),
            waiting: HashMap::new(),
            homeless: VecDeque::new(),
            events: Events::new(keep),
            last_event: None,
        }
    }

    /// Notes the number of a fact; gives how many are missing before it.
    pub fn missing(&mut self, life: u64, fact: &Fact) -> u64 {
        let last = match self.told.get(&fact.teller) {
            // The last words of one that was replaced, behind the first ones of its successor.
            Some((of, _)) if *of > life => return 0,
            Some((of, number)) if *of == life => *number,
            _ => 0,
        };
        self.told.insert(fact.teller, (life, fact.number.max(last)));
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
    pub fn born(tally: &mut Tally, gpu: &Gpu) {
        tally.born(&m::gpu_xid_faults_total, gpu);
        tally.born(&m::gpu_driver_events_total, gpu);
        for row in xid::paging() {
            tally.add(&m::gpu_xid_errors_total, gpu, labels(row), 0.0);
        }
    }

    /// Forgets what is known of a GPU that another one has replaced.
    pub fn forget(&mut self, uuid: &Arc<str>) {
        self.books.remove(uuid);
        self.waiting.retain(|(of, _), _| of != uuid);
        self.places.retain(|_, gpu| gpu.uuid != *uuid);
    }

    /// The driver was loaded anew or is gone: what was wrong with its GPUs before is over, or told again.
    pub fn driver_reset(&mut self) {
        self.books.values_mut().for_each(FaultBook::reset);
    }

    /// A GPU was reset.
    pub fn gpu_reset(&mut self, gpu: &Gpu, at: Mono, unix_seconds: f64) {
        if let Some(book) = self.books.get_mut(&gpu.uuid) {
            book.reset();
        }
        let event = quiet(EventKind::GpuReset, unix_seconds);
        let event = Event { gpu: Some(gpu.clone()), meaning: "The GPU was reset.", ..event };
        self.events.record(event, at, Duration::ZERO);
    }

    /// Takes in an event that is no fault of the two tellers.
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
    pub fn restore(&mut self, known: &FaultyGpu) {
        let book = self.books.entry(known.uuid.as_str().into()).or_default();
        book.fatal |= known.fatal;
        book.uncontained |= known.uncontained;
        book.memory_error = book.memory_error.or(known.memory_error);
    }

    /// The GPUs with faults that a later daemon must know of.
    pub fn lasting(&self) -> impl Iterator<Item = FaultyGpu> {
        self.books.iter().filter_map(|(uuid, book)| book.lasting(uuid))
    }

    /// What faults say about a GPU.
    pub fn book(&self, gpu: &Gpu) -> Option<&FaultBook> {
        self.books.get(&gpu.uuid)
    }

    /// When the newest event came, in seconds since 1970.
    pub fn last_event(&self) -> Option<f64> {
        self.last_event
    }

    /// The list of events, oldest first.
    pub fn list(&mut self) -> Arc<[Arc<Event>]> {
        self.events.list()
    }

    /// Takes in a fact. `complete`: every GPU that can be known is known; before that a line of the kernel
    /// log about an address that nobody has may wait.
    /// `owner`: whose work it is about, if that is known.
    pub fn take(&mut self, tally: &mut Tally, fact: Fact, complete: bool, owner: Option<Arc<str>>) {
        if !complete && self.homeless.len() < MAX_HOMELESS {
            let behind = self.homeless.iter().any(is_old);
            if self.waits(&fact, behind) {
                return self.homeless.push_back(fact);
            }
        }
        let Fact { taken, unix_seconds, what, .. } = fact;
        self.last_event = Some(self.last_event.map_or(unix_seconds, |last| last.max(unix_seconds)));
        match what {
            What::Driver(told) => self.driver(tally, told, taken, unix_seconds, owner),
            What::Kernel(told) => self.kernel(tally, told, taken, unix_seconds, owner),
        }
    }

    /// Ends what has waited long enough, and tells the journal what is due.
    pub fn settle(&mut self, tally: &mut Tally, now: Mono, complete: bool) {
        let mut behind = false;
        for fact in std::mem::take(&mut self.homeless) {
            if !complete && self.waits(&fact, behind) {
                behind |= is_old(&fact);
                self.homeless.push_back(fact);
            } else {
                self.take(tally, fact, true, None);
            }
        }
        self.waiting.values_mut().for_each(|queue| expire(queue, now));
        self.waiting.retain(|_, queue| !queue.is_empty());
        self.events.settle(now);
    }

    /// Whether a fact is better taken in when more GPUs are known. What counts waits only if nobody knows its
    /// GPU. What is old keeps its order, but does not wait for GPUs that no earlier daemon saw.
    fn waits(&self, fact: &Fact, behind: bool) -> bool {
        let What::Kernel(KernelFact { line, .. }) = &fact.what else { return false };
        let homeless = match line {
            KernelLine::Xid { pci, .. } => !self.places.contains_key(pci),
            _ => false,
        };
        if is_old(fact) { behind || homeless && !self.remembers } else { homeless }
    }

    fn driver(
        &mut self,
        tally: &mut Tally,
        told: DriverFact,
        heard: Mono,
        unix_seconds: f64,
        owner: Option<Arc<str>>,
    ) {
        let event = told.event();
        tally.add(&m::gpu_driver_events_total, &told.gpu, (event,), 1.0);
        if event == DriverEvent::Xid {
            let row = xid::xid(u32::try_from(told.data).unwrap_or(u32::MAX));
            let entry = Event {
                gpu_instance: told.gpu_instance,
                compute_instance: told.compute_instance,
                owner,
                nvml: true,
                ..xid_event(&row, unix_seconds)
            };
            return self.xid(tally, Teller::Nvml, told.gpu, &row, entry, heard);
        }
        let (kind, code, name, (severity, action, meaning)) = if event == DriverEvent::RecoveryAction {
            let wanted = usize::try_from(told.data).ok().and_then(|at| RecoveryAction::ALL.get(at).copied());
            let name = wanted.map_or("", |wanted| wanted.known());
            (EventKind::RecoveryAction, told.data, name, recovery(wanted))
        } else {
            (EventKind::DriverEvent, told.bits, event.known(), driver_event(event))
        };
        let entry = Event {
            gpu: Some(told.gpu),
            code: Some(code),
            mnemonic: name,
            meaning,
            gpu_instance: told.gpu_instance,
            compute_instance: told.compute_instance,
            owner,
            nvml: true,
            ..Event::new(kind, unix_seconds, severity, action)
        };
        self.events.record(entry, heard, Duration::ZERO);
    }

    fn kernel(
        &mut self,
        tally: &mut Tally,
        told: KernelFact,
        heard: Mono,
        unix_seconds: f64,
        owner: Option<Arc<str>>,
    ) {
        let KernelFact { old, line, text } = told;
        let entry = match line {
            KernelLine::Xid { pci, code, pid, process, gpu_instance, compute_instance } => {
                let row = xid::xid(code);
                let gpu = self.places.get(&pci).cloned();
                let mut entry = Event {
                    pci: Some(pci),
                    pid,
                    process,
                    gpu_instance,
                    compute_instance,
                    owner,
                    ..xid_event(&row, unix_seconds)
                };
                if xid::fatal_by_text(code, &text) {
                    (entry.severity, entry.action) = (Severity::Page, FaultAction::ResetGpu);
                }
                entry = Event { text: text.clone(), old, kmsg: true, ..entry };
                match gpu {
                    Some(gpu) if !old => return self.xid(tally, Teller::Kmsg, gpu, &row, entry, heard),
                    Some(gpu) => {
                        self.note_time(&gpu, unix_seconds);
                        Event { gpu: Some(gpu), ..entry }
                    }
                    None => {
                        if !old {
                            tally.add(&m::gpu_xid_unknown_gpu_total, &Node {}, labels(&row), 1.0);
                        }
                        entry
                    }
                }
            }
            KernelLine::Sxid { nvswitch, pci, code, .. } => {
                let row = xid::sxid(code);
                if !old {
                    let labels = (
                        SwitchName(nvswitch.as_str().into()),
                        SxidCode(code.to_string().as_str().into()),
                        row.severity,
                        row.action,
                    );
                    tally.add(&m::gpu_nvswitch_sxid_errors_total, &Node {}, labels, 1.0);
                }
                Event {
                    pci: Some(pci),
                    nvswitch: Some(nvswitch),
                    code: Some(code.into()),
                    meaning: row.meaning,
                    ..Event::new(EventKind::Sxid, unix_seconds, row.severity, row.action)
                }
            }
            KernelLine::DriverLoaded { .. } => {
                if !old {
                    self.driver_reset();
                }
                Event {
                    meaning: "The kernel module was loaded.",
                    ..quiet(EventKind::DriverLoad, unix_seconds)
                }
            }
            // Of the host's memory: no fault of a GPU.
            KernelLine::OomKill { .. } => return,
            KernelLine::DriverUnloaded => {
                if !old {
                    self.driver_reset();
                }
                let meaning = "The kernel module was removed.";
                Event { meaning, ..quiet(EventKind::DriverUnload, unix_seconds) }
            }
        };
        self.events.record(Event { text, old, kmsg: true, ..entry }, heard, Duration::ZERO);
    }

    /// A fault of a GPU that is known: the second word on one that was told, or a new one.
    fn xid(&mut self, tally: &mut Tally, teller: Teller, gpu: Gpu, row: &Xid, entry: Event, heard: Mono) {
        let fatal = entry.severity == Severity::Page && row.severity != Severity::Page;
        let book = self.books.entry(gpu.uuid.clone()).or_default();
        book.fatal |= fatal;
        let entry = Event { gpu: Some(gpu.clone()), ..entry };
        let queue = self.waiting.entry((gpu.uuid.clone(), row.code)).or_default();
        expire(queue, heard);
        // All that wait are of one teller: whoever could be matched was.
        if queue.front().is_some_and(|first| first.teller != teller)
            && let Some(first) = queue.pop_front()
        {
            self.events.enrich(first.entry, entry, heard);
            return;
        }
        book.note(row, heard);
        self.note_time(&gpu, entry.unix_seconds);
        tally.add(&m::gpu_xid_faults_total, &gpu, (row.action,), 1.0);
        tally.add(&m::gpu_xid_errors_total, &gpu, labels(row), 1.0);
        // The driver's word lacks process and text; the kernel log's lacks nothing that people read.
        let more = teller == Teller::Nvml && self.reads_kernel_log.is_some_and(|since| since <= heard);
        let wait = if more { PATIENCE } else { Duration::ZERO };
        let entry = self.events.record(entry, heard, wait);
        if let Some(queue) = self.waiting.get_mut(&(gpu.uuid.clone(), row.code)) {
            if queue.len() >= MAX_WAITING {
                queue.pop_front();
            }
            queue.push_back(Waiting { teller, heard, entry });
        }
    }

    fn note_time(&mut self, gpu: &Gpu, unix_seconds: f64) {
        let last = &mut self.books.entry(gpu.uuid.clone()).or_default().last_xid;
        *last = Some(last.map_or(unix_seconds, |last| last.max(unix_seconds)));
    }
}

/// Ends the wait of faults that the other source did not report in time.
fn expire(queue: &mut VecDeque<Waiting>, now: Mono) {
    while queue.front().is_some_and(|first| now.since(first.heard) > WINDOW) {
        queue.pop_front();
    }
}

fn is_old(fact: &Fact) -> bool {
    matches!(&fact.what, What::Kernel(KernelFact { old: true, .. }))
}

fn labels(row: &Xid) -> (XidCode, Severity, FaultAction) {
    (XidCode(row.code.to_string().as_str().into()), row.severity, row.action)
}

fn xid_event(row: &Xid, unix_seconds: f64) -> Event {
    Event {
        code: Some(row.code.into()),
        mnemonic: row.mnemonic,
        meaning: row.meaning,
        ..Event::new(EventKind::Xid, unix_seconds, row.severity, row.action)
    }
}

fn quiet(kind: EventKind, unix_seconds: f64) -> Event {
    Event::new(kind, unix_seconds, Severity::Info, FaultAction::Ignore)
}

/// How loud an event of the driver is, what to do, and what it means. Those that an Xid tells of as well are
/// as loud as that.
fn driver_event(event: DriverEvent) -> (Severity, FaultAction, &'static str) {
    use {FaultAction as A, Severity as S};
    match event {
        DriverEvent::DoubleBitEcc => (S::Page, A::ResetGpu, "An uncorrectable ECC error."),
        DriverEvent::Xid => (S::Ticket, A::ContactSupport, "A fault with a code."),
        DriverEvent::SingleBitEccStorm => {
            (S::Ticket, A::ContactSupport, "ECC errors that were corrected come too fast: a storm.")
        }
        DriverEvent::DramRetirement => {
            (S::Ticket, A::Ignore, "A part of device memory was marked for replacement at the next reset.")
        }
        DriverEvent::DramRetirementFailure => {
            (S::Page, A::ResetGpu, "A part of device memory could not be replaced.")
        }
        DriverEvent::NonFatalPoison => (
            S::Ticket,
            A::RestartApp,
            "Memory known to be damaged was used; the process that did is affected.",
        ),
        DriverEvent::FatalPoison => {
            (S::Page, A::ResetGpu, "Memory known to be damaged was used, with effect on the whole GPU.")
        }
        DriverEvent::GpuUnavailable => (S::Page, A::ResetGpu, "The GPU is not available."),
        DriverEvent::RecoveryAction => recovery(None),
        DriverEvent::Unknown => {
            (S::Ticket, A::ContactSupport, "This kind of event is not in the exporter's table.")
        }
    }
}

/// The same for a change of what the driver asks for.
fn recovery(wanted: Option<RecoveryAction>) -> (Severity, FaultAction, &'static str) {
    use {FaultAction as A, Severity as S};
    match wanted {
        Some(RecoveryAction::None) => (S::Info, A::Ignore, "The driver asks for no recovery any more."),
        Some(RecoveryAction::GpuReset) => (S::Page, A::ResetGpu, "The driver asks for a reset of the GPU."),
        Some(RecoveryAction::NodeReboot) => (S::Page, A::RebootNode, "The driver asks for a reboot."),
        Some(RecoveryAction::DrainP2p) => {
            (S::Ticket, A::RestartApp, "The driver asks to end what uses the GPU's memory from other GPUs.")
        }
        Some(RecoveryAction::DrainAndReset) => {
            (S::Page, A::ResetGpu, "The driver asks to end what runs on the GPU and to reset it.")
        }
        None => {
            (S::Ticket, A::ContactSupport, "The driver asks for a recovery that the exporter does not know.")
        }
    }
}
