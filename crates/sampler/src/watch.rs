//! NVML readings while a canary works on the GPU: clocks, clock event reasons, the PCIe link and foreign
//! processes. A separate thread reads them (`visits`), and this module is the interface for the CUDA thread. An
//! NVML call that never returns delays the CUDA thread by at most one deadline.

mod visits;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use host::inflight::{EVENTS_SLOT, Table};
use model::clock::Mono;
use model::sync::lock;
use serde::{Deserialize, Serialize};

/// Maximum time for a reading; the most expensive call takes a few milliseconds.
const READ: Duration = Duration::from_secs(2);
/// Maximum time for the start of NVML, which usually takes tens of milliseconds.
const START: Duration = Duration::from_secs(10);

/// NVML's clock event reason bit of an idle GPU (`nvmlClocksEventReasonGpuIdle`).
pub const IDLE: u64 = 0x1;

/// The device to watch, and the library to use.
#[derive(Clone, Debug)]
pub struct WatchTarget {
    /// Path of the NVML library; empty for the default search of the dynamic loader.
    pub nvml_library: PathBuf,
    /// PCI address of the GPU in NVML's spelling.
    pub pci_address: String,
    /// GPU and compute instance, if the device is a MIG device.
    pub instance: Option<(u32, u32)>,
}

/// Summary of the readings before, during and after a check.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Around {
    /// All clock event reasons that occurred, as bits of NVML's mask.
    pub reasons: u64,
    /// Growth of the driver's counters of reasons in nanoseconds: power cap, sync boost, software thermal,
    /// hardware thermal and hardware brake.
    pub reason_ns: [u64; 5],
    /// Last SM clock while the check ran, in Hz; 0 if unknown.
    pub sm_clock_hertz: f64,
    /// Last memory clock while the check ran, in Hz; 0 if unknown.
    pub memory_clock_hertz: f64,
    /// Temperature at the end in degrees Celsius; 0 if unknown.
    pub temperature_celsius: f64,
    /// Other processes observed on the device.
    pub others: Vec<u32>,
    /// Growth of the counter of corrected memory errors.
    pub corrected_errors: u64,
    /// Growth of the counter of PCIe replays.
    pub pcie_replays: u64,
}

/// Constants of the GPU; 0 or empty if unknown.
#[derive(Clone, Debug, Default)]
pub struct DeviceFacts {
    pub driver_version: String,
    pub vbios_version: String,
    /// Maximum SM clock in Hz.
    pub max_sm_clock_hertz: f64,
    /// Maximum memory clock in Hz.
    pub max_memory_clock_hertz: f64,
    /// Width of the memory bus in bits.
    pub bus_width_bits: u32,
    /// Maximum PCIe generation of GPU and slot together.
    pub max_link_generation: u32,
    /// Maximum number of PCIe lanes of GPU and slot together.
    pub max_link_width: u32,
    /// Current power limit in milliwatts.
    pub power_limit_milliwatts: u64,
    /// Default power limit in milliwatts.
    pub default_power_limit_milliwatts: u64,
    /// Whether ECC is enabled; `None` if unknown.
    pub ecc: Option<bool>,
    /// Number N of the device file `/dev/nvidiaN`.
    pub minor: Option<u32>,
}

/// A full reading of the GPU, as made before and after every check.
#[derive(Clone, Debug, Default)]
pub struct DeviceReading {
    /// Processes on the device; `None` if the driver does not list them.
    pub processes: Option<BTreeSet<u32>>,
    /// The driver's counters of reasons in nanoseconds, in the order of [`Around::reason_ns`].
    pub reason_ns: [Option<u64>; 5],
    /// Temperature in degrees Celsius.
    pub temperature: Option<f64>,
    /// Number of corrected memory errors.
    pub corrected: Option<u64>,
    /// Number of PCIe replays.
    pub replays: Option<u64>,
}

/// Readings made during a check.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    /// Reasons observed while the GPU worked. Idleness is included only if every reading had it.
    reasons: Option<u64>,
    /// Last SM clock while the GPU worked, in Hz.
    sm_clock: f64,
    /// Last memory clock while the GPU worked, in Hz.
    memory_clock: f64,
    /// Last PCIe generation and number of lanes while the GPU worked.
    pub link: Option<(u32, u32)>,
}

impl Notes {
    /// Adds the reasons of one reading. A reading at the moment when work begins or ends may still report an
    /// idle GPU, which does not explain the clock of that work.
    fn add_reasons(&mut self, seen: u64) {
        let before = self.reasons.unwrap_or(seen);
        self.reasons = Some((before | seen) & !IDLE | before & seen & IDLE);
    }
}

/// Interface of the watch for the CUDA thread.
#[derive(Debug)]
pub struct NvmlWatch {
    shared: Arc<WatchShared>,
    thread: JoinHandle<()>,
}

/// State shared by both threads.
#[derive(Debug, Default)]
struct WatchShared {
    state: Mutex<WatchState>,
    changed: Condvar,
    /// Odd while the GPU works for the canary. Every period of work has another number.
    work: AtomicU64,
}

#[derive(Debug, Default)]
struct WatchState {
    /// Number of full readings requested, and number of requests answered.
    asked: u64,
    made: u64,
    reading: DeviceReading,
    facts: Option<DeviceFacts>,
    /// Whether to read NVML continuously, and whether to include the PCIe link.
    watching: bool,
    link: bool,
    notes: Notes,
    /// Process ids under which NVML may list this process.
    own_pids: BTreeSet<u32>,
    /// Other processes observed during this check, and during the whole run.
    foreign_pids: BTreeSet<u32>,
    ever_foreign: BTreeSet<u32>,
    /// Reason why NVML cannot be used.
    broken: Option<String>,
    end: bool,
}

impl WatchShared {
    /// Waits until `done` returns a value, at most for `within`.
    fn wait<T>(&self, within: Duration, mut done: impl FnMut(&mut WatchState) -> Option<T>) -> Option<T> {
        let deadline = Mono::now() + within;
        let mut state = lock(&self.state);
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

impl NvmlWatch {
    /// Starts the thread. `own_pids` are the process ids under which NVML may list this process.
    pub fn start(
        target: WatchTarget,
        own_pids: BTreeSet<u32>,
        table: &'static Table,
    ) -> io::Result<NvmlWatch> {
        let shared = Arc::new(WatchShared::default());
        lock(&shared.state).own_pids = own_pids;
        let theirs = Arc::clone(&shared);
        let slot = table.writer(EVENTS_SLOT);
        let thread = host::thread::spawn("watch", 512, move || visits::run(&theirs, &target, slot))?;
        Ok(NvmlWatch { shared, thread })
    }

    /// Waits for the start of NVML and returns the constants of the GPU, or the reason why NVML cannot be used.
    pub fn facts(&self) -> Result<DeviceFacts, String> {
        let facts = self.shared.wait(START, |state| match (&state.broken, &state.facts) {
            (Some(text), _) => Some(Err(text.clone())),
            (None, Some(facts)) => Some(Ok(facts.clone())),
            (None, None) => None,
        });
        facts.unwrap_or_else(|| Err(format!("NVML did not start within {} s", START.as_secs())))
    }

    /// Returns a full reading that was made after this call, or `None` if NVML does not answer in time.
    pub fn read(&self) -> Option<DeviceReading> {
        let mut state = lock(&self.shared.state);
        state.asked += 1;
        let asked = state.asked;
        drop(state);
        self.shared.changed.notify_all();
        self.shared.wait(READ, |state| match state.broken {
            Some(_) => Some(None),
            None => (state.made >= asked).then(|| Some(state.reading.clone())),
        })?
    }

    /// Adds a process id to this program's own ids.
    pub fn ignore_pid(&self, pid: u32) {
        let mut state = lock(&self.shared.state);
        state.own_pids.insert(pid);
        state.foreign_pids.remove(&pid);
        state.ever_foreign.remove(&pid);
    }

    /// Returns the foreign processes observed so far.
    pub fn foreign_pids(&self) -> Vec<u32> {
        lock(&self.shared.state).ever_foreign.iter().copied().collect()
    }

    /// Begins to watch a check.
    pub fn begin(&self, link: bool) {
        let mut state = lock(&self.shared.state);
        (state.watching, state.link) = (true, link);
        state.notes = Notes::default();
        state.foreign_pids.clear();
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Stops watching a check, and returns its readings.
    pub fn end(&self) -> Notes {
        let mut state = lock(&self.shared.state);
        state.watching = false;
        std::mem::take(&mut state.notes)
    }

    /// Returns the readings so far.
    pub fn notes(&self) -> Notes {
        lock(&self.shared.state).notes.clone()
    }

    /// Records that the GPU starts or stops working for the canary.
    pub fn working(&self, working: bool) {
        let now = self.shared.work.load(Ordering::Relaxed);
        if (now % 2 == 1) != working {
            self.shared.work.store(now.wrapping_add(1), Ordering::Release);
        }
    }

    /// Summarises the readings before, during and after a check.
    pub fn around(
        &self,
        before: Option<&DeviceReading>,
        notes: &Notes,
        after: Option<&DeviceReading>,
    ) -> Around {
        let others = lock(&self.shared.state).foreign_pids.iter().copied().collect();
        around(before, notes, after, others)
    }

    /// Ends the thread, and waits for it however long its call takes: a client of the GPU must not end in the
    /// middle of a call.
    pub fn finish(self) {
        lock(&self.shared.state).end = true;
        self.shared.changed.notify_all();
        if self.thread.join().is_err() {
            tracing::error!("the thread that watches the GPU panicked");
        }
    }
}

/// Combines two readings and the notes between them. A counter that one of the readings lacks has not grown.
fn around(
    before: Option<&DeviceReading>,
    notes: &Notes,
    after: Option<&DeviceReading>,
    others: Vec<u32>,
) -> Around {
    let grown = |of: &dyn Fn(&DeviceReading) -> Option<u64>| match (before.and_then(of), after.and_then(of)) {
        (Some(before), Some(after)) => after.saturating_sub(before),
        _ => 0,
    };
    Around {
        reasons: notes.reasons.unwrap_or(0),
        reason_ns: std::array::from_fn(|i| grown(&|reading| reading.reason_ns[i])),
        sm_clock_hertz: notes.sm_clock,
        memory_clock_hertz: notes.memory_clock,
        temperature_celsius: after.and_then(|reading| reading.temperature).unwrap_or(0.0),
        others,
        corrected_errors: grown(&|reading| reading.corrected),
        pcie_replays: grown(&|reading| reading.replays),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(ns: [Option<u64>; 5], corrected: Option<u64>) -> DeviceReading {
        DeviceReading { reason_ns: ns, corrected, temperature: Some(41.0), ..DeviceReading::default() }
    }

    #[test]
    fn counters_become_growth_only_where_both_readings_have_them() {
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
    fn idleness_counts_only_if_every_reading_has_it() {
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
    #[expect(clippy::disallowed_methods, reason = "a thread of the test")]
    fn work_is_marked_by_odd_numbers_that_differ() {
        let shared = Arc::new(WatchShared::default());
        let thread = std::thread::spawn(|| {});
        let watch = NvmlWatch { shared: Arc::clone(&shared), thread };
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
