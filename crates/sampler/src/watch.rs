//! What NVML tells while the GPU works for us: clocks, the reasons that hold them back, the PCIe link, and
//! whether somebody else is there. A thread of its own asks (`visits`); this is how the CUDA thread talks to it
//! and takes what it noted. A call of NVML that never returns keeps nobody here waiting for longer than
//! a deadline.

mod visits;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use host::inflight::{EVENTS_SLOT, Table};
use model::clock::Mono;
use serde::{Deserialize, Serialize};

/// How long NVML may take to answer a look; the dearest call takes some milliseconds.
const LOOK: Duration = Duration::from_secs(2);
/// How long NVML may take to start; it does within some tens of milliseconds.
const START: Duration = Duration::from_secs(10);

/// NVML's clock event reason bit of an idle GPU (`nvmlClocksEventReasonGpuIdle`).
pub const IDLE: u64 = 0x1;

/// The device to watch, and the library to ask.
#[derive(Clone, Debug)]
pub struct Target {
    /// The NVML library; empty for the loader's own search.
    pub nvml_library: PathBuf,
    /// PCI address of the GPU, as NVML gives it.
    pub pci_address: String,
    /// GPU and compute instance, if the device is a MIG device.
    pub instance: Option<(u32, u32)>,
}

/// What NVML told around a check.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Around {
    /// All clock event reasons seen, as bits of NVML's mask.
    pub reasons: u64,
    /// Nanoseconds by which the driver's own counters of reasons moved: power cap, sync boost, software
    /// thermal, hardware thermal, hardware brake.
    pub reason_ns: [u64; 5],
    /// SM clock as NVML told it last while the check ran, Hz; 0 if not told.
    pub sm_clock_hertz: f64,
    /// Memory clock as NVML told it last while the check ran, Hz; 0 if not told.
    pub memory_clock_hertz: f64,
    /// Temperature at the end, degrees Celsius; 0 if not told.
    pub temperature_celsius: f64,
    /// Other processes seen on the device.
    pub others: Vec<u32>,
    /// Growth of corrected memory errors and of PCIe replays.
    pub corrected_errors: u64,
    /// See `corrected_errors`.
    pub pcie_replays: u64,
}

/// What NVML tells once of the GPU; 0 and empty for what it does not.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Driver version.
    pub driver_version: String,
    /// VBIOS version.
    pub vbios_version: String,
    /// Highest SM clock, Hz.
    pub max_sm_clock_hertz: f64,
    /// Highest memory clock, Hz.
    pub max_memory_clock_hertz: f64,
    /// Memory bus, bits.
    pub bus_width_bits: u32,
    /// Newest PCIe generation of GPU and slot together.
    pub max_link_generation: u32,
    /// Most lanes of GPU and slot together.
    pub max_link_width: u32,
    /// Power limit in force, milliwatts.
    pub power_limit_milliwatts: u64,
    /// Its default, milliwatts.
    pub default_power_limit_milliwatts: u64,
    /// Whether ECC is on.
    pub ecc: Option<bool>,
    /// Number of its device file, `/dev/nvidiaN`.
    pub minor: Option<u32>,
}

/// A full look at the GPU, as made before and after each check.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// Processes on the device; `None` if the driver does not tell.
    pub processes: Option<BTreeSet<u32>>,
    /// The driver's nanosecond counters of reasons, in the order of [`Around::reason_ns`].
    pub reason_ns: [Option<u64>; 5],
    /// Degrees Celsius.
    pub temperature: Option<f64>,
    /// Corrected memory errors.
    pub corrected: Option<u64>,
    /// PCIe replays.
    pub replays: Option<u64>,
}

/// What was noted during a check.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    /// Reasons seen while the GPU worked; idleness only if every look at it told that.
    reasons: Option<u64>,
    /// SM clock, told last while the GPU worked, Hz.
    sm_clock: f64,
    /// Memory clock, likewise.
    memory_clock: f64,
    /// PCIe generation and lanes, told last while the GPU worked.
    pub link: Option<(u32, u32)>,
}

impl Notes {
    /// Adds the reasons of one look. One made just as work began or ended still tells that the GPU is idle, which is
    /// no reason for the clock of that work.
    fn add_reasons(&mut self, seen: u64) {
        let before = self.reasons.unwrap_or(seen);
        self.reasons = Some((before | seen) & !IDLE | before & seen & IDLE);
    }
}

/// The CUDA thread's end.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

/// What the two threads share.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Odd while the GPU works for us; another number each time.
    work: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Full looks asked for, and how many of them were made.
    asked: u64,
    made: u64,
    look: Look,
    facts: Option<Facts>,
    /// Whether NVML is to be asked over and over, and for the link too.
    watching: Option<Watching>,
    notes: Notes,
    /// Numbers by which NVML may mean us.
    friends: BTreeSet<u32>,
    /// Others that were seen during this check, and in the whole run.
    others: BTreeSet<u32>,
    ever: BTreeSet<u32>,
    /// Why NVML cannot be used.
    broken: Option<String>,
    end: bool,
}

/// What a watch is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watching {
    /// Clocks, reasons and processes.
    Clocks,
    /// The PCIe link too.
    Link,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `done` or the deadline; gives what `done` gave.
    fn wait<T>(&self, within: Duration, mut done: impl FnMut(&mut State) -> Option<T>) -> Option<T> {
        let deadline = Mono::now() + within;
        let mut state = self.lock();
        loop {
            if let Some(value) = done(&mut state) {
                return Some(value);
            }
            let left = deadline.since(Mono::now());
            if left.is_zero() {
                return None;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Watch {
    /// Starts the thread. `own` are the process ids by which NVML may mean this process.
    pub fn start(target: Target, own: BTreeSet<u32>, table: &'static Table) -> io::Result<Watch> {
        let shared = Arc::new(Shared::default());
        shared.lock().friends = own;
        let theirs = Arc::clone(&shared);
        let slot = table.writer(EVENTS_SLOT);
        let thread = std::thread::Builder::new()
            .name("watch".into())
            .stack_size(512 * 1024)
            .spawn(move || visits::run(&theirs, &target, slot))?;
        Ok(Watch { shared, thread })
    }

    /// What NVML tells once, when it has started; why it cannot be used otherwise.
    pub fn facts(&self) -> Result<Facts, String> {
        let told = self.shared.wait(START, |state| match (&state.broken, &state.facts) {
            (Some(text), _) => Some(Err(text.clone())),
            (None, Some(facts)) => Some(Ok(facts.clone())),
            (None, None) => None,
        });
        told.unwrap_or_else(|| Err(format!("NVML did not start within {} s", START.as_secs())))
    }

    /// A full look, made after it was asked for. `None` if NVML does not answer in time.
    pub fn look(&self) -> Option<Look> {
        let asked = {
            let mut state = self.shared.lock();
            state.asked += 1;
            state.asked
        };
        self.shared.changed.notify_all();
        self.shared.wait(LOOK, |state| match state.broken {
            Some(_) => Some(None),
            None => (state.made >= asked).then(|| Some(state.look.clone())),
        })?
    }

    /// Takes a process for this one.
    pub fn befriend(&self, pid: u32) {
        let mut state = self.shared.lock();
        state.friends.insert(pid);
        state.others.remove(&pid);
        state.ever.remove(&pid);
    }

    /// Other processes that were seen so far.
    pub fn others(&self) -> Vec<u32> {
        self.shared.lock().ever.iter().copied().collect()
    }

    /// Begins to watch a check.
    pub fn begin(&self, link: bool) {
        let mut state = self.shared.lock();
        state.watching = Some(if link { Watching::Link } else { Watching::Clocks });
        state.notes = Notes::default();
        state.others.clear();
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Ends it.
    pub fn end(&self) -> Notes {
        let mut state = self.shared.lock();
        state.watching = None;
        std::mem::take(&mut state.notes)
    }

    /// What was noted so far.
    pub fn notes(&self) -> Notes {
        self.shared.lock().notes.clone()
    }

    /// Says that the GPU begins to work for us, or that it has ended.
    pub fn working(&self, working: bool) {
        let now = self.shared.work.load(Ordering::Relaxed);
        if (now % 2 == 1) != working {
            self.shared.work.store(now.wrapping_add(1), Ordering::Release);
        }
    }

    /// What NVML told around a check.
    pub fn around(&self, before: Option<&Look>, notes: &Notes, after: Option<&Look>) -> Around {
        let others = self.shared.lock().others.iter().copied().collect();
        around(before, notes, after, others)
    }

    /// Ends the thread, and waits for it however long its call takes: a GPU's client is not to end in the
    /// middle of one.
    pub fn finish(self) {
        self.shared.lock().end = true;
        self.shared.changed.notify_all();
        if self.thread.join().is_err() {
            tracing::error!("the thread that watches the GPU panicked");
        }
    }
}

/// Joins two looks and the notes between them. What was not told on both sides did not move.
fn around(before: Option<&Look>, notes: &Notes, after: Option<&Look>, others: Vec<u32>) -> Around {
    let grown = |of: &dyn Fn(&Look) -> Option<u64>| match (before.and_then(of), after.and_then(of)) {
        (Some(before), Some(after)) => after.saturating_sub(before),
        _ => 0,
    };
    Around {
        reasons: notes.reasons.unwrap_or(0),
        reason_ns: std::array::from_fn(|i| grown(&|look| look.reason_ns[i])),
        sm_clock_hertz: notes.sm_clock,
        memory_clock_hertz: notes.memory_clock,
        temperature_celsius: after.and_then(|look| look.temperature).unwrap_or(0.0),
        others,
        corrected_errors: grown(&|look| look.corrected),
        pcie_replays: grown(&|look| look.replays),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(ns: [Option<u64>; 5], corrected: Option<u64>) -> Look {
        Look { reason_ns: ns, corrected, temperature: Some(41.0), ..Look::default() }
    }

    #[test]
    fn counters_are_told_as_growth_and_only_where_both_looks_have_them() {
        let before = look([Some(5), Some(9), None, Some(7), Some(1)], Some(100));
        let after = look([Some(8), Some(9), Some(4), None, Some(0)], Some(103));
        let notes = Notes { reasons: Some(0x24), sm_clock: 1e9, memory_clock: 2e9, link: None };
        let around = super::around(Some(&before), &notes, Some(&after), vec![7]);
        assert_eq!(around.reason_ns, [3, 0, 0, 0, 0], "a counter that went back has not grown");
        assert_eq!((around.corrected_errors, around.pcie_replays), (3, 0));
        assert_eq!((around.reasons, around.temperature_celsius, around.others), (0x24, 41.0, vec![7]));
        let blind = super::around(None, &Notes::default(), Some(&after), vec![]);
        assert_eq!(blind.reason_ns, [0; 5]);
    }

    #[test]
    fn idleness_counts_only_if_it_was_told_all_the_while() {
        let notes = |seen: &[u64]| {
            let mut notes = Notes::default();
            seen.iter().for_each(|reasons| notes.add_reasons(*reasons));
            notes.reasons
        };
        assert_eq!(notes(&[]), None);
        assert_eq!(notes(&[0x1, 0x1]), Some(0x1));
        assert_eq!(notes(&[0x1, 0x0]), Some(0x0));
        assert_eq!(notes(&[0x0, 0x1, 0x1]), Some(0x0));
        assert_eq!(notes(&[0x1, 0x4, 0x21]), Some(0x24), "all others add up");
    }

    #[test]
    fn work_is_marked_by_odd_numbers_that_differ() {
        let shared = Arc::new(Shared::default());
        let thread = std::thread::spawn(|| {});
        let watch = Watch { shared: Arc::clone(&shared), thread };
        let now = || shared.work.load(Ordering::Relaxed);
        watch.working(false);
        assert_eq!(now(), 0);
        watch.working(true);
        watch.working(true);
        assert_eq!(now(), 1);
        watch.working(false);
        watch.working(true);
        assert_eq!(now(), 3);
        watch.finish();
    }
}
