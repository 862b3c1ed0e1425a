//! One thread a GPU: gets the handle, keeps the cadences, sends batches.

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

/// Starts a worker in a thread of its own. A worker that panics ends the whole sampler, and the parent
/// starts another: half a sampler would leave a GPU unread without an error. A GPU that is known is asked for by PCI
/// address, which touches no other GPU; else the handle is that of the index of the slot.
pub fn spawn(
    shared: &Arc<Shared>,
    nvml: &'static Nvml,
    slot: usize,
    known: Option<GpuSlot>,
) -> std::io::Result<()> {
    // The slot is in use from now on: a thread that never gets to run is seen by the parent.
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
        // The handle is lost or could not be had: not asked again before the rare cadence.
        shared.sleep(slot, Mono::now() + shared.settings().intervals.rare);
    }
}

struct Worker<'a> {
    shared: &'a Shared,
    nvml: &'static Nvml,
    slot: SlotWriter,
    slot_number: usize,
    caller: Caller,
    /// The settings in use.
    settings: Arc<SamplerSettings>,
    known: Option<GpuSlot>,
    epoch: u64,
}

/// The result of a visit for the next ones.
enum Visited {
    Complete,
    /// Some calls failed.
    Failed,
    /// MIG mode or layout changed: everything is read again.
    LayoutChanged,
    /// The handle is void, or it is time to end.
    Over,
}

impl Worker<'_> {
    /// Takes over the newest settings; gives those before if they were others.
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
                // A new handle voids what was read with the last one.
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

    /// NVML's index of a GPU that is not known yet.
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
        // Another GPU may have taken the known address.
        let uuid = self.caller.call("nvmlDeviceGetUUID", || device.uuid())?;
        let gpu = Gpu { gpu: gpu_slot.gpu.gpu, uuid: uuid.as_str().into() };
        let gpu_slot = GpuSlot { gpu: gpu.clone(), ..gpu_slot };
        self.shared.send(&FromSampler::Attached(gpu_slot.clone()));
        self.known = Some(gpu_slot);
        Ok((device, gpu))
    }

    /// Reports that there is no handle: the GPU has no values but a reason.
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

    /// All tiers of this GPU, due at once.
    fn schedule(&self) -> TierSchedule {
        TierSchedule::new(&self.settings.intervals, u32::try_from(self.slot_number).unwrap_or(0))
    }

    /// Whether the thread of the fast tier makes this GPU's fast visits now.
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

    /// Makes the tiers due whose values have changed, or may have, since their last visit.
    fn follow_changes(&mut self, handle: &mut Handle) {
        if let Some(before) = self.follow_settings() {
            if before.off != self.settings.off {
                handle.state.wanted_changed();
                handle.readers.mig.read_again();
            }
            // All tiers are due: what was read before is served for three of the former intervals.
            handle.schedule = self.schedule();
        }
        let now = Mono::now();
        let slow = self.settings.intervals.slow;
        if lock(&self.shared.events.faults).remove(&self.slot_number)
            && handle.after_event.is_none_or(|at| now.since(at) >= slow)
        {
            // A fault changes rows to be replaced, the action that is wanted, links: they are read now. A storm of
            // events adds at most one expensive visit to each interval.
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

    /// Visits the tiers that are due. Returns `false` when the handle is void, or it is time to end.
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
                // So are the values with longer windows.
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

    /// One visit.
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
            // An identity with a hole would be another identity.
            batch.rows = Rows::default();
        }
        // A change of the layout or a loss voids every value read before, those of the other tiers too.
        let voids = changed || matches!(ended, Some(CallFailure::Lost(..)));
        self.epoch += u64::from(voids);
        batch.epoch = self.epoch;
        self.shared.report(batch);
        if voids {
            // Not before this batch has gone: a fast one ahead of it would be all that is published of the GPU.
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

/// A GPU's handle, with what is kept between visits for the life of it.
struct Handle {
    device: Arc<Device<'static>>,
    gpu: Gpu,
    state: HandleState,
    readers: Readers,
    schedule: TierSchedule,
    /// Whether the profiling counters were to be read at the last look.
    gpm: bool,
    /// When a fault last made the slow tier due.
    after_event: Option<Mono>,
}

/// What is read beyond single values, for the life of one handle.
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
                    // A profiler waits for the counters: they are released now, not with the next window.
                    self.gpm.forget();
                }
                // The driver's event comes at once; the mode itself is read seldom.
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

/// Whether a tier has calls of 1 ms and more, which delay the cheap ones of every client.
fn is_expensive(tier: Tier) -> bool {
    matches!(tier, Tier::Slow | Tier::Rare | Tier::Nvlink | Tier::Once)
}

/// MIG mode (slow) and layout (normal) come first, because a change of them voids what was read before; the identity
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

/// When each tier of one GPU is due.
pub(crate) struct TierSchedule {
    entries: Vec<DueTier>,
    intervals: Intervals,
}

struct DueTier {
    tier: Tier,
    /// None for tiers that are read once a handle.
    cadence: Option<Cadence>,
    next: Mono,
}

impl TierSchedule {
    /// All tiers due at once, then each at its interval. `n` is the GPU's place on the node.
    pub fn new(intervals: &Intervals, n: u32) -> TierSchedule {
        let entry = |tier| {
            let interval = intervals.every(tier);
            let cadence = interval.map(|every| Cadence::new(every, phase(tier, every, intervals.normal, n)));
            DueTier { tier, cadence, next: Mono(0) }
        };
        TierSchedule { entries: ORDER.into_iter().map(entry).collect(), intervals: *intervals }
    }

    /// The tiers that are due, in the order in which they are to be visited.
    pub fn due(&self, now: Mono) -> Vec<Tier> {
        self.entries.iter().filter(|e| e.next <= now).map(|e| e.tier).collect()
    }

    /// A tier was visited. A tier that is read once is read again later if a call failed.
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

    /// A tier could not be visited now: its turn comes with the next fast visit.
    pub fn postponed(&mut self, tier: Tier, now: Mono) {
        let soon = now + self.intervals.fast;
        self.change(tier, |e| e.next = soon);
    }

    /// All tiers but the identity are due again.
    pub fn all_again(&mut self) {
        for entry in self.entries.iter_mut().filter(|e| e.tier != Tier::Identity) {
            entry.next = Mono(0);
        }
    }

    /// A tier is due again at once.
    pub fn again(&mut self, tier: Tier) {
        self.change(tier, |e| e.next = Mono(0));
    }

    /// When the next tier is due, the fast one counted or not.
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

/// Where in its interval a GPU's tier is read. Fast visits of all GPUs come together, so that the node
/// wakes up once; normal ones go with a fast one, in the first half of the interval, so that they are fresh when the
/// ledger publishes in its middle; the samples are drained when a normal visit wakes the worker anyway; expensive ones
/// are spread, so that the slow calls of two GPUs do not meet.
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
