//! One thread per GPU, which gets the handle, keeps the cadences and sends the batches.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nvml_wrapper::{Device, Nvml};

use super::driver::{CallFailure, Caller, gap};
use super::events;
use super::gpm::GpmReader;
use super::gpu;
use super::mig::MigReader;
use super::samples::SampleCursor;
use super::visit::{HandleState, Visit};
use super::wire::{FromSampler, GpuSlot, Intervals, SamplerSettings};
use super::{AttachedGpu, Shared};
use host::inflight::SlotWriter;
use model::catalog::{self as m, CollectorName, Gpu, SampleBuffer, Tier};
use model::clock::{Cadence, Mono};
use model::sample::{Batch, BatchKey, Rows};
use model::sync::lock;

const BY_PCI_ADDRESS: &str = "nvmlDeviceGetHandleByPciBusId_v2";

/// Starts the worker of a GPU in a new thread. A worker that panics ends the whole sampler, and the parent
/// starts another one; otherwise a GPU would stay unread without an error. The handle of a known GPU is
/// requested by PCI address, which accesses no other GPU. The handle of an unknown GPU is requested by the
/// index of its slot.
pub fn spawn(
    shared: &Arc<Shared>,
    nvml: &'static Nvml,
    slot: usize,
    known: Option<GpuSlot>,
) -> std::io::Result<()> {
    // The slot is in use from now on, so that the parent detects a thread that never runs.
    shared.table.writer(slot).expect(Mono::now());
    let started = shared.spawn(&format!("gpu-{slot}"), slot, move |shared| {
        if catch_unwind(AssertUnwindSafe(|| run(shared, nvml, slot, known))).is_err() {
            shared.stop.stop();
        }
    });
    if started.is_err() {
        shared.table.writer(slot).leave();
    }
    started
}

/// Runs until the sampler stops.
fn run(shared: &Shared, nvml: &'static Nvml, slot_number: usize, known: Option<GpuSlot>) {
    let slot = shared.table.writer(slot_number);
    let mut worker = Worker {
        shared,
        nvml,
        slot,
        slot_number,
        caller: Caller::new(slot, shared.settings().call_deadline),
        settings: shared.settings(),
        known,
        epoch: shared.config.epoch,
    };
    while !shared.stop.stopped() {
        worker.one_handle();
        // The handle is lost or could not be obtained, so the next attempt waits for the rare interval.
        shared.sleep(slot, Mono::now() + shared.settings().intervals.rare);
    }
}

struct Worker<'a> {
    shared: &'a Shared,
    nvml: &'static Nvml,
    slot: SlotWriter,
    slot_number: usize,
    caller: Caller,
    settings: Arc<SamplerSettings>,
    known: Option<GpuSlot>,
    epoch: u64,
}

/// Consequence of a visit for the next ones.
enum Visited {
    Complete,
    /// At least one call failed.
    Failed,
    /// MIG mode or layout has changed, so everything is read again.
    LayoutChanged,
    /// The handle is void, or the sampler stops.
    Over,
}

impl Worker<'_> {
    /// Adopts the newest settings, and returns the previous ones if they were different.
    fn follow_settings(&mut self) -> Option<Arc<SamplerSettings>> {
        let now = self.shared.settings();
        if Arc::ptr_eq(&now, &self.settings) {
            return None;
        }
        self.caller.set_allowed(now.call_deadline);
        Some(std::mem::replace(&mut self.settings, now))
    }

    /// Gets a handle and works with it until it is lost or the sampler stops.
    fn one_handle(&mut self) {
        self.follow_settings();
        match self.acquire() {
            Ok((device, gpu)) => {
                // A new handle voids the values read with the last one.
                self.epoch += 1;
                let device = Arc::new(device);
                let attached =
                    AttachedGpu { gpu: gpu.clone(), device: Arc::clone(&device), epoch: self.epoch };
                lock(&self.shared.attached).insert(self.slot_number, attached);
                self.work(Handle {
                    device,
                    gpu,
                    state: HandleState::default(),
                    readers: Readers::default(),
                    schedule: self.schedule(),
                    gpm: self.shared.gpm.load(Ordering::Relaxed),
                    after_event: None,
                });
                lock(&self.shared.attached).remove(&self.slot_number);
            }
            Err(CallFailure::DriverGone(error, text)) => self.shared.driver_gone(error, text),
            Err(failure) => self.report_no_handle(&failure),
        }
    }

    /// Returns NVML's index of a GPU that is not known yet.
    fn index(&self) -> u32 {
        u32::try_from(self.slot_number).unwrap_or(u32::MAX).saturating_sub(1)
    }

    fn acquire(&mut self) -> Result<(Device<'static>, Gpu), CallFailure> {
        let allowed = self.settings.init_deadline;
        let nvml = self.nvml;
        let (device, gpu_slot) = match self.known.clone() {
            None => {
                let index = self.index();
                let call = ("nvmlDeviceGetHandleByIndex_v2", index);
                let device = self.caller.call_allowing(call, allowed, || nvml.device_by_index(index))?;
                let pci = self.caller.call("nvmlDeviceGetPciInfo_v3", || device.pci_info())?;
                let gpu = Gpu { gpu: index, uuid: "".into() };
                (device, GpuSlot { slot: self.slot_number, gpu, pci_bus_id: pci.bus_id })
            }
            Some(gpu_slot) => {
                let address = gpu_slot.pci_bus_id.as_str();
                let device = self
                    .caller
                    .call_allowing(BY_PCI_ADDRESS, allowed, || nvml.device_by_pci_bus_id(address))?;
                (device, gpu_slot)
            }
        };
        // Another GPU may have the known address now.
        let uuid = self.caller.call("nvmlDeviceGetUUID", || device.uuid())?;
        let gpu = Gpu { gpu: gpu_slot.gpu.gpu, uuid: uuid.as_str().into() };
        let gpu_slot = GpuSlot { gpu: gpu.clone(), ..gpu_slot };
        self.shared.send(&FromSampler::Attached(gpu_slot.clone()));
        self.known = Some(gpu_slot);
        Ok((device, gpu))
    }

    /// Reports that there is no handle, so that the GPU has a reason in place of values.
    fn report_no_handle(&mut self, failure: &CallFailure) {
        let (error, text) = failure.error();
        match self.known.clone() {
            None => self.shared.send(&FromSampler::AttachFailed { index: self.index(), error, text }),
            Some(gpu_slot) => {
                let gap = gap(BY_PCI_ADDRESS, &[m::gpu_up.id()], failure.missing());
                let part =
                    BatchKey { collector: CollectorName::Nvml, gpu: Some(gpu_slot.gpu), tier: Tier::Fast };
                self.shared.report(Batch {
                    answered: false,
                    gaps: vec![gap],
                    calls: self.caller.take_costs(),
                    ..Batch::new(part, self.epoch, Mono::now(), self.settings.lifetime(Tier::Fast))
                });
            }
        }
    }

    /// Returns a schedule in which all tiers are due at once.
    fn schedule(&self) -> TierSchedule {
        TierSchedule::new(&self.settings.intervals, u32::try_from(self.slot_number).unwrap_or(0))
    }

    /// Returns whether the thread of the fast tier currently makes the fast visits of this GPU.
    fn is_led(&self, now: Mono) -> bool {
        self.shared.fast.leads(self.slot_number, now, self.settings.intervals.fast)
    }

    /// Keeps the cadences until the GPU or the driver is lost, or the sampler stops.
    fn work(&mut self, mut handle: Handle) {
        while !self.shared.stop.stopped() {
            let woken = self.shared.stop.woken();
            self.follow_changes(&mut handle);
            if !self.visit_due(&mut handle) {
                return;
            }
            let now = Mono::now();
            let next = handle.schedule.next(!self.is_led(now));
            self.slot.expect(next.max(now));
            self.shared.stop.wait_since(woken, next);
        }
    }

    /// Makes a tier due if its values have changed, or may have changed, since its last visit.
    fn follow_changes(&mut self, handle: &mut Handle) {
        if let Some(before) = self.follow_settings() {
            if before.off != self.settings.off {
                handle.state.wanted_changed();
                handle.readers.mig.read_again();
            }
            // All tiers become due, because values read before are served for only three of the previous
            // intervals.
            handle.schedule = self.schedule();
        }
        let now = Mono::now();
        let slow = self.settings.intervals.slow;
        if lock(&self.shared.events.faults).remove(&self.slot_number)
            && handle.after_event.is_none_or(|at| now.since(at) >= slow)
        {
            // A fault changes remapped rows, the recovery action and links, so they are read now. Even a storm
            // of events adds at most one expensive visit per interval.
            handle.after_event = Some(now);
            handle.schedule.again(Tier::Slow);
        }
        let gpm = self.shared.gpm.load(Ordering::Relaxed);
        if std::mem::replace(&mut handle.gpm, gpm) != gpm {
            // Values read before the counters were released must not stay until the next visit of their tier.
            handle.schedule.again(Tier::Slow);
            handle.schedule.again(Tier::Rare);
        }
    }

    /// Visits the tiers that are due. Returns `false` if the handle is void or the sampler stops.
    fn visit_due(&mut self, handle: &mut Handle) -> bool {
        let shared = self.shared;
        for tier in handle.schedule.due(Mono::now()) {
            let now = Mono::now();
            if tier == Tier::Fast && self.is_led(now) {
                handle.schedule.visited(tier, now, false);
                continue;
            }
            let acquire = || shared.expensive.try_acquire(now, self.settings.call_deadline);
            let permit = is_expensive(tier).then(acquire);
            if let Some(None) = permit {
                handle.schedule.postponed(tier, now);
                continue;
            }
            let withdrawn = handle.readers.gpm.withdrawn();
            let visited = self.visit(tier, handle);
            drop(permit);
            handle.schedule.visited(tier, now, matches!(visited, Visited::Failed));
            match handle.state.mig_enabled {
                true => lock(&shared.events.in_mig_mode).insert(self.slot_number),
                false => lock(&shared.events.in_mig_mode).remove(&self.slot_number),
            };
            if handle.readers.gpm.withdrawn() != withdrawn {
                // The values with longer windows change as well.
                handle.schedule.again(Tier::Rare);
            }
            match visited {
                Visited::Complete | Visited::Failed => {}
                Visited::LayoutChanged => {
                    handle.state.forget();
                    handle.readers.gpm.forget();
                    handle.schedule.all_again();
                    break;
                }
                Visited::Over => return false,
            }
        }
        true
    }

    fn visit(&mut self, tier: Tier, handle: &mut Handle) -> Visited {
        if self.shared.stop.stopped() {
            return Visited::Over;
        }
        let taken = Mono::now();
        let Handle { device, gpu, state, readers, .. } = handle;
        let mut visit = Visit::new(self.shared, &self.settings, gpu, device, &mut self.caller, state);
        let changed = readers.read(tier, &mut visit, self.slot_number);
        let failed = visit.failures() > 0;
        let (mut batch, ended) = visit.into_batch(tier, self.epoch, taken);
        if tier == Tier::Identity && failed {
            // Incomplete labels would identify another GPU.
            batch.rows = Rows::default();
        }
        // A change of the layout or a loss voids every value read before, including those of the other tiers.
        let voids = changed || matches!(ended, Some(CallFailure::Lost(..)));
        self.epoch += u64::from(voids);
        batch.epoch = self.epoch;
        self.shared.report(batch);
        if voids {
            // Only after this batch was sent: if a fast batch of the new epoch came first, it would be the only
            // published batch of the GPU.
            if let Some(attached) = lock(&self.shared.attached).get_mut(&self.slot_number) {
                attached.epoch = self.epoch;
            }
        }
        match ended {
            None if changed => Visited::LayoutChanged,
            None if failed => Visited::Failed,
            None => Visited::Complete,
            Some(CallFailure::DriverGone(error, text)) => {
                self.shared.driver_gone(error, text);
                Visited::Over
            }
            Some(_) => Visited::Over,
        }
    }
}

/// A GPU's handle, and the state that lasts as long as the handle.
struct Handle {
    device: Arc<Device<'static>>,
    gpu: Gpu,
    state: HandleState,
    readers: Readers,
    schedule: TierSchedule,
    /// Whether the profiling counters were on at the last check.
    gpm: bool,
    /// Time when a fault last made the slow tier due.
    after_event: Option<Mono>,
}

/// Readers that keep state between visits, for the life of one handle.
#[derive(Default)]
struct Readers {
    mig: MigReader,
    power: SampleCursor,
    utilization: SampleCursor,
    gpm: GpmReader,
    registered: Option<u64>,
}

impl Readers {
    /// Reads one tier. Returns whether MIG mode or layout has changed.
    fn read(&mut self, tier: Tier, visit: &mut Visit<'_>, slot: usize) -> bool {
        let shared = visit.shared;
        if tier == Tier::Slow {
            visit.state.slowdown.seen |= lock(&shared.fast.slowed).remove(&slot);
        }
        gpu::read(tier, visit);
        let gpm = shared.gpm.load(Ordering::Relaxed);
        let mut changed = false;
        match tier {
            Tier::Slow => {
                changed = self.mig.refresh_mode(visit);
                if !changed {
                    self.mig.read_slow(visit);
                }
                visit.state.canary_pids.visited();
                events::register(visit, &mut self.registered, slot);
                self.utilization.drain(visit, SampleBuffer::Utilization);
                self.gpm.read(tier, visit, gpm, &self.mig.gpu_instances(visit.gpu));
            }
            Tier::Normal => {
                if !gpm {
                    // A profiler is waiting for the counters, so they are released now and not at the end of
                    // the window.
                    self.gpm.forget();
                }
                // The driver's event arrives at once, while the mode itself is rarely read.
                let event = lock(&shared.events.mig).remove(&slot);
                changed = event && self.mig.mode_switched(visit) || self.mig.read(visit);
                self.mig.place_processes(visit);
            }
            Tier::Samples => self.power.drain(visit, SampleBuffer::Power),
            Tier::Rare => self.gpm.read(tier, visit, gpm, &self.mig.gpu_instances(visit.gpu)),
            _ => {}
        }
        changed
    }
}

/// Returns whether a tier has calls of 1 ms or more, which delay the cheap calls of every client.
fn is_expensive(tier: Tier) -> bool {
    matches!(tier, Tier::Slow | Tier::Rare | Tier::Nvlink | Tier::Once)
}

/// MIG mode (slow) and layout (normal) come first, because a change voids the values read before. The identity
/// comes before the rest.
const ORDER: [Tier; 8] = [
    Tier::Slow,
    Tier::Normal,
    Tier::Identity,
    Tier::Once,
    Tier::Fast,
    Tier::Samples,
    Tier::Rare,
    Tier::Nvlink,
];

/// Times when the tiers of one GPU are due.
pub(crate) struct TierSchedule {
    entries: Vec<DueTier>,
    intervals: Intervals,
}

struct DueTier {
    tier: Tier,
    /// `None` for tiers that are read once per handle.
    cadence: Option<Cadence>,
    next: Mono,
}

impl TierSchedule {
    /// Returns a schedule in which all tiers are due at once, and later at their intervals. `n` is the number
    /// of the GPU on the node.
    pub fn new(intervals: &Intervals, n: u32) -> TierSchedule {
        let entry = |tier| {
            let interval = intervals.every(tier);
            let cadence = interval.map(|every| Cadence::new(every, phase(tier, every, intervals.normal, n)));
            DueTier { tier, cadence, next: Mono(0) }
        };
        TierSchedule { entries: ORDER.into_iter().map(entry).collect(), intervals: *intervals }
    }

    /// Returns the tiers that are due, in the order of their visits.
    pub fn due(&self, now: Mono) -> Vec<Tier> {
        self.entries.iter().filter(|e| e.next <= now).map(|e| e.tier).collect()
    }

    /// Records the visit of a tier. A tier that is read once is repeated later if a call failed.
    pub fn visited(&mut self, tier: Tier, now: Mono, failed: bool) {
        let retry = self.intervals.slow;
        self.change(tier, |e| {
            e.next = match &mut e.cadence {
                Some(cadence) => {
                    cadence.tick(now);
                    cadence.next()
                }
                None if failed => now + retry,
                None => Mono(u64::MAX),
            };
        });
    }

    /// Postpones a tier that could not be visited to the next fast visit.
    pub fn postponed(&mut self, tier: Tier, now: Mono) {
        let soon = now + self.intervals.fast;
        self.change(tier, |e| e.next = soon);
    }

    /// Makes all tiers due except the identity.
    pub fn all_again(&mut self) {
        for entry in self.entries.iter_mut().filter(|e| e.tier != Tier::Identity) {
            entry.next = Mono(0);
        }
    }

    /// Makes a tier due at once.
    pub fn again(&mut self, tier: Tier) {
        self.change(tier, |e| e.next = Mono(0));
    }

    /// Returns when the next tier is due, with or without the fast tier.
    pub fn next(&self, fast: bool) -> Mono {
        let counted = self.entries.iter().filter(|e| fast || e.tier != Tier::Fast);
        counted.map(|e| e.next).min().unwrap_or_default()
    }

    fn change(&mut self, tier: Tier, f: impl FnOnce(&mut DueTier)) {
        if let Some(entry) = self.entries.iter_mut().find(|e| e.tier == tier) {
            f(entry);
        }
    }
}

/// Returns the offset of a tier within its interval. The fast visits of all GPUs coincide, so that the node
/// wakes up once. Normal visits coincide with a fast one in the first half of the interval, so that they are
/// fresh when the ledger publishes in the middle of it. The samples are drained when a normal visit wakes the
/// worker anyway. Expensive visits are spread, so that the slow calls of two GPUs do not collide.
fn phase(tier: Tier, interval: Duration, normal: Duration, n: u32) -> Duration {
    match tier {
        Tier::Fast => Duration::ZERO,
        Tier::Normal | Tier::Samples => normal / 10 * (n % 5),
        _ => interval.mul_f64(0.1) + interval.mul_f64(0.053) * (n % 16),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule() -> TierSchedule {
        let ms = Duration::from_millis;
        let intervals = Intervals {
            fast: ms(100),
            normal: ms(1000),
            samples: ms(2000),
            slow: ms(10_000),
            rare: ms(60_000),
            nvlink: ms(300_000),
        };
        TierSchedule::new(&intervals, 0)
    }

    const MS: u64 = 1_000_000;

    #[test]
    fn everything_is_due_at_once_and_then_at_its_interval() {
        let mut s = schedule();
        let start = Mono(1_000_000 * MS);
        assert_eq!(s.due(start), ORDER);
        for tier in ORDER {
            s.visited(tier, start, false);
        }
        assert_eq!(s.due(start), []);
        assert!(s.next(true).since(start) <= Duration::from_millis(100));
        assert_eq!(s.due(start + Duration::from_millis(100)), [Tier::Fast]);
        let later = s.due(start + Duration::from_secs(3600));
        assert_eq!(
            later,
            [Tier::Slow, Tier::Normal, Tier::Fast, Tier::Samples, Tier::Rare, Tier::Nvlink],
            "once is once"
        );
    }

    #[test]
    fn what_is_read_once_is_read_again_after_a_failure() {
        let mut s = schedule();
        let start = Mono(1_000_000 * MS);
        for tier in ORDER {
            s.visited(tier, start, tier == Tier::Identity);
        }
        assert!(!s.due(start + Duration::from_millis(9_999)).contains(&Tier::Identity));
        assert!(s.due(start + Duration::from_millis(10_000)).contains(&Tier::Identity));
    }

    #[test]
    fn a_postponed_tier_comes_with_the_next_fast_visit() {
        let mut s = schedule();
        let start = Mono(1_000_000 * MS);
        for tier in ORDER {
            s.visited(tier, start, false);
        }
        s.postponed(Tier::Rare, start);
        assert!(s.due(start + Duration::from_millis(100)).contains(&Tier::Rare));
        s.all_again();
        assert!(!s.due(start).contains(&Tier::Identity) && s.due(start).contains(&Tier::Once));
    }
}
