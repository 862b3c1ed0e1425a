//! One thread a GPU: gets the handle, keeps the cadences, sends batches.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nvml_wrapper::{Device, Nvml};

use super::Shared;
use super::drain::Drains;
use super::driver::{CallName, Caller, Failure};
use super::events::Registration;
use super::gpm::Gpm;
use super::gpu;
use super::mig::Layout;
use super::schedule::Schedule;
use super::visit::{Memory, Visit};
use super::wire::{FromSampler, Seat};
use host::inflight::SlotWriter;
use model::catalog::{self as m, Gpu, Tier};
use model::clock::Mono;
use model::owners::GpuProcess;
use model::sample::{Drained, Gap, Rows};

/// How a worker finds its GPU.
#[derive(Clone, Debug)]
pub enum Target {
    /// By NVML's index: a GPU nothing is known of.
    Index(u32),
    /// By PCI address: touches no other GPU.
    Seat(Seat),
}

/// Starts a worker in a thread of its own. A worker that panics ends the whole sampler, and the parent
/// starts another: half a sampler would leave a GPU unread without a word.
pub fn spawn(shared: &Arc<Shared>, nvml: &'static Nvml, slot: usize, target: Target) -> std::io::Result<()> {
    let own = Arc::clone(shared);
    // The slot is in use from now on: a thread that never gets to run is seen by the parent.
    shared.table.writer(slot).expect(Mono::now());
    let run = move || {
        if catch_unwind(AssertUnwindSafe(|| run(&own, nvml, slot, target))).is_err() {
            own.stop.stop();
        }
        own.table.writer(slot).leave();
    };
    match std::thread::Builder::new().name(format!("gpu-{slot}")).stack_size(256 * 1024).spawn(run) {
        Ok(handle) => {
            shared.joined(handle);
            Ok(())
        }
        Err(error) => {
            shared.table.writer(slot).leave();
            Err(error)
        }
    }
}

/// Runs until the sampler stops.
fn run(shared: &Shared, nvml: &'static Nvml, slot_number: usize, target: Target) {
    let slot = shared.table.writer(slot_number);
    let mut worker = Worker {
        shared,
        nvml,
        slot,
        slot_number,
        caller: Caller::new(slot, shared.orders.call_deadline),
        target,
        epoch: shared.orders.epoch,
    };
    while !shared.stop.stopped() {
        worker.one_handle();
        // The handle is lost or was never had: not asked again before the rare cadence.
        let again = Mono::now() + shared.orders.intervals.rare;
        worker.slot.expect(again);
        shared.stop.wait_until(again);
    }
}

struct Worker<'a> {
    shared: &'a Shared,
    nvml: &'static Nvml,
    slot: SlotWriter,
    slot_number: usize,
    caller: Caller,
    target: Target,
    epoch: u64,
}

/// What a visit means for the next ones.
enum Visited {
    /// Go on.
    Well,
    /// Some calls failed.
    Failed,
    /// MIG mode or layout is another: everything is read anew.
    LayoutChanged,
    /// The handle is of no more use, or it is time to end.
    Over,
}

impl Worker<'_> {
    /// Gets a handle and works with it until it is lost or the sampler stops.
    fn one_handle(&mut self) {
        match self.acquire() {
            Ok((device, gpu)) => {
                let device = Arc::new(device);
                // A new handle voids what was read with the last one.
                self.epoch += 1;
                self.shared.fast.join(self.slot_number, &gpu, &device, self.epoch);
                self.shared.peers.join(self.slot_number, &gpu, &device);
                self.work(&device, &gpu);
                self.shared.peers.leave(self.slot_number);
                self.shared.fast.leave(self.slot_number);
            }
            Err(Failure::DriverGone(error, text)) => self.shared.driver_gone(error, text),
            Err(failure) => self.report_no_handle(&failure),
        }
    }

    fn acquire(&mut self) -> Result<(Device<'static>, Gpu), Failure> {
        let allowed = self.shared.orders.init_deadline;
        let nvml = self.nvml;
        let (device, seat) = match self.target.clone() {
            Target::Index(index) => {
                let name = CallName::from(("nvmlDeviceGetHandleByIndex_v2", index));
                let device = self.caller.call_allowing(name, allowed, || nvml.device_by_index(index))?;
                let pci = self.caller.call("nvmlDeviceGetPciInfo_v3".into(), || device.pci_info())?;
                let gpu = Gpu { gpu: index, uuid: "".into() };
                (device, Seat { slot: self.slot_number, gpu, pci_bus_id: pci.bus_id })
            }
            Target::Seat(seat) => {
                let name = CallName::from("nvmlDeviceGetHandleByPciBusId_v2");
                let address = seat.pci_bus_id.as_str();
                let device =
                    self.caller.call_allowing(name, allowed, || nvml.device_by_pci_bus_id(address))?;
                (device, seat)
            }
        };
        // Another board may sit at a known address by now.
        let uuid = self.caller.call("nvmlDeviceGetUUID".into(), || device.uuid())?;
        let gpu = Gpu { gpu: seat.gpu.gpu, uuid: uuid.as_str().into() };
        let seat = Seat { gpu: gpu.clone(), ..seat };
        self.shared.send(&FromSampler::Seated(seat.clone()));
        self.target = Target::Seat(seat);
        Ok((device, gpu))
    }

    /// Says that there is no handle: the GPU has no values but a reason.
    fn report_no_handle(&mut self, failure: &Failure) {
        let (error, text) = failure.told();
        match self.target.clone() {
            Target::Index(index) => self.shared.send(&FromSampler::NoHandle { index, error, text }),
            Target::Seat(seat) => {
                let gap = Gap {
                    call: "nvmlDeviceGetHandleByPciBusId_v2".into(),
                    metrics: vec![m::gpu_up.id()],
                    missing: failure.missing(),
                };
                let learned = Learned { gaps: vec![gap], ..Learned::default() };
                self.send(&seat.gpu, Tier::Fast, Mono::now(), learned);
            }
        }
    }

    /// Keeps the cadences until the GPU or the driver is lost, or the sampler stops.
    fn work(&mut self, device: &Device<'static>, gpu: &Gpu) {
        let mut memory = Memory::new(&self.shared.orders);
        let mut kept = Kept::default();
        let mut schedule =
            Schedule::new(&self.shared.orders.intervals, u32::try_from(self.slot_number).unwrap_or(0));
        let token = self.shared.token;
        let fast = self.shared.orders.intervals.fast;
        let slow = self.shared.orders.intervals.slow;
        let mut gpm = self.shared.gpm.load(Ordering::Relaxed);
        let mut looked: Option<Mono> = None;
        while !self.shared.stop.stopped() {
            let now = Mono::now();
            if self.shared.events.told(self.slot_number) && looked.is_none_or(|at| now.since(at) >= slow) {
                // What a fault changes (rows to be replaced, the action that is wanted, links) is read now. A storm of
                // events makes no more of these dear visits than one more in each interval.
                looked = Some(now);
                schedule.again(Tier::Slow);
            }
            if std::mem::replace(&mut gpm, self.shared.gpm.load(Ordering::Relaxed)) != gpm {
                // What was read of the counters before they were given away does not wait for its tier to go.
                schedule.again(Tier::Slow);
                schedule.again(Tier::Rare);
            }
            for tier in schedule.due(Mono::now()) {
                let now = Mono::now();
                if tier == Tier::Fast && self.shared.fast.leads(self.slot_number, now, fast) {
                    schedule.visited(tier, now, false);
                    continue;
                }
                let loan = match dear(tier) {
                    true => match token.borrow(now, self.shared.orders.call_deadline) {
                        None => {
                            schedule.postponed(tier, now);
                            continue;
                        }
                        loan => loan,
                    },
                    false => None,
                };
                let visited = self.visit(tier, device, gpu, &mut memory, &mut kept);
                drop(loan);
                schedule.visited(tier, now, matches!(visited, Visited::Failed));
                match visited {
                    Visited::Well | Visited::Failed => {}
                    Visited::LayoutChanged => {
                        memory.forget();
                        kept.gpm.forget();
                        schedule.all_again();
                        break;
                    }
                    Visited::Over => return,
                }
            }
            let now = Mono::now();
            let next = schedule.next(!self.shared.fast.leads(self.slot_number, now, fast));
            self.slot.expect(next.max(now));
            self.shared.stop.wait_until(next);
        }
    }

    /// One visit.
    fn visit(
        &mut self,
        tier: Tier,
        device: &Device<'static>,
        gpu: &Gpu,
        memory: &mut Memory,
        kept: &mut Kept,
    ) -> Visited {
        if self.shared.stop.stopped() {
            return Visited::Over;
        }
        let taken = Mono::now();
        let mut visit = Visit::new(gpu, device, &mut self.caller, memory);
        if tier == Tier::Slow {
            visit.found().slowdown.seen |= self.shared.fast.slowed(self.slot_number);
        }
        gpu::read(tier, &mut visit);
        let layout = &mut kept.layout;
        let gpm = self.shared.gpm.load(Ordering::Relaxed);
        let changed = match tier {
            Tier::Slow => {
                let changed = layout.refresh_mode(&mut visit);
                if !changed {
                    layout.read_slow(&mut visit);
                }
                visit.found().own.visited();
                kept.registered.refresh(&mut visit, &self.shared.events, self.slot_number);
                kept.drains.utilization(&mut visit);
                kept.gpm.slow(&mut visit, gpm, &layout.gpu_instances(gpu));
                changed
            }
            Tier::Normal => {
                if !gpm {
                    // A profiler waits for them: not only when the next window would begin.
                    kept.gpm.forget();
                }
                // The driver says at once that MIG was reconfigured; the mode itself is looked at seldom.
                let told = self.shared.events.mig_changed(self.slot_number);
                let changed = told && layout.mode_switched(&mut visit) || layout.read(&mut visit);
                layout.place_processes(&mut visit);
                changed
            }
            Tier::Samples => {
                kept.drains.power(&mut visit);
                false
            }
            Tier::Rare => {
                kept.gpm.rare(&mut visit, gpm, &layout.gpu_instances(gpu));
                false
            }
            _ => false,
        };
        let failed = visit.failed();
        let (mut learned, ended) = Learned::of(visit);
        if tier == Tier::Identity && failed {
            // An identity with a hole would be another identity.
            learned.rows = Rows::default();
        }
        // Every value read before is void then, those of the other tiers too.
        let voids = changed || matches!(ended, Some(Failure::Lost(..)));
        self.epoch += u64::from(voids);
        self.send(gpu, tier, taken, learned);
        if voids {
            // Not before this batch has gone: a fast one ahead of it would be all that is published of the GPU.
            self.shared.fast.epoch(self.slot_number, self.epoch);
        }
        match ended {
            None if changed => Visited::LayoutChanged,
            None if failed => Visited::Failed,
            None => Visited::Well,
            Some(Failure::DriverGone(error, text)) => {
                self.shared.driver_gone(error, text);
                Visited::Over
            }
            Some(_) => Visited::Over,
        }
    }

    fn send(&mut self, gpu: &Gpu, tier: Tier, taken: Mono, learned: Learned) {
        let calls = self.caller.take_costs();
        self.shared.report(gpu, tier, self.epoch, taken, learned, calls);
    }
}

/// What is kept from visit to visit, for the life of one handle.
#[derive(Debug, Default)]
struct Kept {
    layout: Layout,
    drains: Drains,
    gpm: Gpm,
    registered: Registration,
}

/// What a visit learned.
#[derive(Debug, Default)]
pub struct Learned {
    /// Whether the GPU answers.
    pub answered: bool,
    /// Values.
    pub rows: Rows,
    /// What could not be read, and why.
    pub gaps: Vec<Gap>,
    /// Readings of which each counts.
    pub drained: Vec<Drained>,
    /// Processes on the GPU; `None`: they were not listed.
    pub processes: Option<Vec<GpuProcess>>,
}

impl Learned {
    /// What this visit learned, and whether GPU or driver turned out to be gone.
    pub fn of(visit: Visit<'_>) -> (Learned, Option<Failure>) {
        let answered = visit.answered();
        let Visit { rows, gaps, drained, processes, ended, .. } = visit;
        (Learned { answered, rows, gaps, drained, processes }, ended)
    }
}

/// Whether a tier has calls of 1 ms and more, which hold up the cheap ones of every client.
fn dear(tier: Tier) -> bool {
    matches!(tier, Tier::Slow | Tier::Rare | Tier::Nvlink | Tier::Once)
}
