//! The state that every process of one simulated node shares: the scenario's start, gates, consumed
//! steps, and what the library cost.
//!
//! It is a file of fixed size, mapped shared and made of atomics. A file of zeros is a valid state,
//! so two processes may create it at once: the first compare-and-swap of the start wins.

pub(crate) mod work;

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use memmap2::{MmapMut, MmapOptions, MmapRaw};

use crate::error::Error;
use crate::functions::Function;
use crate::os;
use work::{ContextState, MAX_CONTEXTS, MAX_GPUS, SPANS, Span};

/// At most so many gates and steps in a scenario.
pub const MAX_GATES: usize = 64;
/// At most so many steps in a scenario.
pub const MAX_STEPS: usize = 128;
const MAX_FUNCTIONS: usize = 512;
const MAGIC: u64 = 0x5349_4d47_5055_0003;

/// A gate is open while it was opened later than closed. Names are kept as hashes, so that a test
/// can open a gate before the library has read the scenario.
#[repr(C)]
struct Gate {
    name: AtomicU64,
    opened_ns: AtomicU64,
    closed_ns: AtomicU64,
}

#[repr(C)]
struct StepState {
    /// Matching calls so far.
    calls: AtomicU64,
    /// When a step that waits for calls was set off; 0 before.
    fired_ns: AtomicU64,
    /// How often a step that happens so many times has happened.
    consumed: AtomicU64,
    /// How many of its records the kernel log has.
    logged: AtomicU64,
    /// 1 once a call took the library-wide lock through this step.
    locked: AtomicU64,
}

#[repr(C)]
struct Shared {
    magic: AtomicU64,
    start_ns: AtomicU64,
    start_wall_us: AtomicU64,
    cpu_ns: AtomicU64,
    begun: AtomicU64,
    held: AtomicU64,
    /// Records of the kernel log so far.
    records: AtomicU64,
    bell: AtomicU32,
    _pad: AtomicU32,
    gates: [Gate; MAX_GATES],
    steps: [StepState; MAX_STEPS],
    functions: [AtomicU64; MAX_FUNCTIONS],
    contexts: [ContextState; MAX_CONTEXTS],
    work: [[Span; SPANS]; MAX_GPUS],
}

/// The shared state, seen from the library or from a test.
pub struct State {
    map: MmapRaw,
}

impl State {
    /// Opens the state file, creating it if need be.
    pub fn open(path: impl AsRef<Path>) -> Result<State, Error> {
        let path = path.as_ref();
        let fail = |what: &str, e: std::io::Error| Error::new(format!("{}: {what}: {e}", path.display()));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(|e| fail("cannot be opened", e))?;
        let size = size_of::<Shared>() as u64;
        match file.metadata().map_err(|e| fail("cannot be read", e))?.len() {
            0 => file.set_len(size).map_err(|e| fail("cannot be sized", e))?,
            n if n == size => {}
            n => {
                return Err(Error::new(format!(
                    "{}: is {n} bytes, no state of this library",
                    path.display()
                )));
            }
        }
        let map =
            MmapOptions::new().len(size as usize).map_raw(&file).map_err(|e| fail("cannot be mapped", e))?;
        State::checked(map).ok_or_else(|| Error::new(format!("{}: is no state file", path.display())))
    }

    /// A state of this process alone.
    pub fn private() -> Result<State, Error> {
        let map = MmapMut::map_anon(size_of::<Shared>())
            .map_err(|e| Error::new(format!("no memory for the state: {e}")))?;
        State::checked(map.into()).ok_or_else(|| Error::new("no state".into()))
    }

    fn checked(map: MmapRaw) -> Option<State> {
        let state = State { map };
        match state.shared().magic.compare_exchange(0, MAGIC, SeqCst, SeqCst) {
            Ok(_) | Err(MAGIC) => Some(state),
            Err(_) => None,
        }
    }

    fn shared(&self) -> &Shared {
        // SAFETY: the mapping has the size of `Shared`, is page-aligned, lives as long as `self`,
        // and holds nothing but atomics, for which every bit pattern is valid.
        unsafe { &*self.map.as_ptr().cast::<Shared>() }
    }

    // ---- gates

    /// The slot of a gate's name, claimed if it is new.
    pub(crate) fn gate_slot(&self, name: &str) -> Result<usize, Error> {
        let hash = hash(name);
        for (i, gate) in self.shared().gates.iter().enumerate() {
            match gate.name.compare_exchange(0, hash, SeqCst, SeqCst) {
                Ok(_) => return Ok(i),
                Err(taken) if taken == hash => return Ok(i),
                Err(_) => {}
            }
        }
        Err(Error::new(format!("more than {MAX_GATES} gates")))
    }

    /// Opens a gate. What waits for it goes on at once.
    pub fn open_gate(&self, name: &str) -> Result<(), Error> {
        let gate = &self.shared().gates[self.known_gate(name)?];
        gate.opened_ns.store(os::monotonic_ns(), SeqCst);
        self.ring();
        Ok(())
    }

    /// Closes a gate again: steps that it set off end, steps that it ended go on.
    pub fn close_gate(&self, name: &str) -> Result<(), Error> {
        let gate = &self.shared().gates[self.known_gate(name)?];
        gate.closed_ns.store(os::monotonic_ns(), SeqCst);
        self.ring();
        Ok(())
    }

    /// Once a scenario runs, a gate that it does not name is a mistake of the test.
    fn known_gate(&self, name: &str) -> Result<usize, Error> {
        let running = self.shared().start_ns.load(SeqCst) != 0;
        let hash = hash(name);
        let known = self.shared().gates.iter().any(|g| g.name.load(SeqCst) == hash);
        if running && !known {
            return Err(Error::new(format!("the running scenario has no gate '{name}'")));
        }
        self.gate_slot(name)
    }

    /// When the gate was opened and, if it was closed since, closed.
    pub(crate) fn gate(&self, slot: usize) -> Option<(u64, Option<u64>)> {
        let gate = &self.shared().gates[slot];
        let (opened, closed) = (gate.opened_ns.load(SeqCst), gate.closed_ns.load(SeqCst));
        (opened != 0).then(|| (opened, (closed > opened).then_some(closed)))
    }

    // ---- the clock

    /// Starts the scenario's clock unless it runs.
    pub(crate) fn start(&self) {
        let shared = self.shared();
        let wall = os::wall_us();
        let _ = shared.start_wall_us.compare_exchange(0, wall, SeqCst, SeqCst);
        let _ = shared.start_ns.compare_exchange(0, os::monotonic_ns(), SeqCst, SeqCst);
    }

    /// CLOCK_MONOTONIC at the scenario's start.
    pub(crate) fn start_ns(&self) -> u64 {
        self.shared().start_ns.load(SeqCst)
    }

    /// The wall clock at the scenario's start. The driver's stamps follow from it, so they are the
    /// same in every process and do not move when the wall clock is set.
    pub(crate) fn start_wall_us(&self) -> u64 {
        self.shared().start_wall_us.load(SeqCst)
    }

    /// Seconds since the first process loaded the scenario; 0 before.
    pub fn scenario_seconds(&self) -> f64 {
        match self.start_ns() {
            0 => 0.0,
            start => os::monotonic_ns().saturating_sub(start) as f64 / 1e9,
        }
    }

    // ---- steps

    /// Counts a matching call, and returns how many there were with it.
    pub(crate) fn count_step(&self, step: usize) -> u64 {
        self.shared().steps[step].calls.fetch_add(1, SeqCst) + 1
    }

    /// Sets a step off, unless it is.
    pub(crate) fn fire(&self, step: usize) {
        let fired = &self.shared().steps[step].fired_ns;
        if fired.compare_exchange(0, os::monotonic_ns(), SeqCst, SeqCst).is_ok() {
            self.ring();
        }
    }

    /// When a step was set off.
    pub(crate) fn fired_ns(&self, step: usize) -> Option<u64> {
        Some(self.shared().steps[step].fired_ns.load(SeqCst)).filter(|ns| *ns != 0)
    }

    /// True for `due` callers in all processes.
    pub(crate) fn consume(&self, step: usize, due: u64) -> bool {
        let consumed = &self.shared().steps[step].consumed;
        consumed.fetch_update(SeqCst, SeqCst, |n| (n < due).then_some(n + 1)).is_ok()
    }

    /// Whether the kernel log lacks some of a step's `due` records.
    pub(crate) fn lacks_records(&self, step: usize, due: u64) -> bool {
        self.shared().steps[step].logged.load(SeqCst) < due
    }

    /// Claims the next of a step's `due` records for the kernel log.
    pub(crate) fn claim_record(&self, step: usize, due: u64) -> Option<u64> {
        let logged = &self.shared().steps[step].logged;
        logged.fetch_update(SeqCst, SeqCst, |n| (n < due).then_some(n + 1)).ok()
    }

    /// The number of a record of the kernel log.
    pub(crate) fn next_record(&self) -> u64 {
        self.shared().records.fetch_add(1, SeqCst)
    }

    /// Takes the library-wide lock through a step.
    pub(crate) fn lock(&self, step: usize) {
        self.shared().steps[step].locked.store(1, SeqCst);
    }

    /// Whether the lock was taken through that step. It is held while the step lasts, whatever
    /// became of the process that took it.
    pub(crate) fn locked(&self, step: usize) -> bool {
        self.shared().steps[step].locked.load(SeqCst) != 0
    }

    // ---- waiting

    fn ring(&self) {
        self.shared().bell.fetch_add(1, SeqCst);
        os::futex_wake(&self.shared().bell);
    }

    /// Sleeps, without burning CPU, until `done` says so. It is asked again whenever a gate moves
    /// and every 20 ms, for steps that go by the clock.
    pub(crate) fn wait_until(&self, mut done: impl FnMut() -> bool) {
        loop {
            let seen = self.shared().bell.load(SeqCst);
            if done() {
                return;
            }
            os::futex_wait(&self.shared().bell, seen, Duration::from_millis(20));
        }
    }

    /// As `wait_until`, for a call that does not return meanwhile.
    pub(crate) fn hold_until(&self, done: impl FnMut() -> bool) {
        self.shared().held.fetch_add(1, SeqCst);
        self.wait_until(done);
        self.shared().held.fetch_sub(1, SeqCst);
    }

    // ---- cost

    /// Counts a call in.
    pub(crate) fn begin(&self, function: Function) {
        self.shared().begun.fetch_add(1, SeqCst);
        self.shared().functions[function as usize].fetch_add(1, SeqCst);
    }

    /// Counts a call out.
    pub(crate) fn end(&self, cpu_ns: u64) {
        self.shared().cpu_ns.fetch_add(cpu_ns, SeqCst);
    }

    /// CPU seconds that all processes spent inside the library, in calls that have returned.
    pub fn cpu_seconds(&self) -> f64 {
        self.shared().cpu_ns.load(SeqCst) as f64 / 1e9
    }

    /// Calls of all functions in all processes.
    pub fn calls(&self) -> u64 {
        self.shared().begun.load(SeqCst)
    }

    /// Calls that a hang or the library-wide lock holds now. A process that dies in one leaves it
    /// counted.
    pub fn calls_held(&self) -> u64 {
        self.shared().held.load(SeqCst)
    }

    /// Calls of one function; 0 for a function that is not exported.
    pub fn calls_of(&self, function: &str) -> u64 {
        Function::from_name(function).map_or(0, |f| self.shared().functions[f as usize].load(SeqCst))
    }
}

/// FNV-1a, never 0.
fn hash(name: &str) -> u64 {
    let fold = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, fold).max(1)
}

const _: () = assert!(Function::ALL.len() <= MAX_FUNCTIONS);
