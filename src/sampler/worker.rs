//! One thread a GPU: gets the handle, keeps the cadences, sends batches.

use std::sync::Arc;
use std::time::Duration;

use nvml_wrapper::{Device, Nvml};

use super::Shared;
use super::driver::{CallName, Caller, Failure};
use super::mig::Layout;
use super::visit::{Memory, Visit};
use super::wire::{FromSampler, Seat};
use super::{gpu, inflight::SlotWriter};
use crate::catalog::{self as m, Gpu, Tier};
use crate::clock::{Cadence, Mono};
use crate::sample::{Batch, Gap, Part, Rows, Source};

/// How a worker finds its GPU.
#[derive(Clone, Debug)]
pub enum Target {
    /// By NVML's index: at the first start.
    Index(u32),
    /// By PCI address: touches no other GPU.
    Seat(Seat),
}

/// Runs until the sampler stops.
pub fn run(shared: &Shared, nvml: &'static Nvml, slot_number: usize, target: Target) {
    let slot = shared.table.writer(slot_number);
    let mut worker = Worker {
        shared,
        nvml,
        slot,
        slot_number,
        caller: Caller::new(slot, shared.token, shared.orders.call_deadline),
        target,
        epoch: shared.orders.epoch,
    };
    while !shared.stop.stopped() {
        worker.one_handle();
        // The handle is lost or was never had: not asked again before the rare cadence.
        let again = Mono::now() + shared.orders.intervals[3];
        worker.slot.expect(again);
        shared.stop.wait_until(again);
    }
    slot.leave();
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

impl Worker<'_> {
    /// Gets a handle and works with it until it is lost or the sampler stops.
    fn one_handle(&mut self) {
        match self.acquire() {
            Ok((device, gpu)) => {
                // A new handle voids what was read with the last one.
                self.epoch += 1;
                self.work(&device, &gpu);
            }
            Err(Failure::DriverGone(text)) => self.shared.driver_gone(text),
            Err(failure) => self.report_no_handle(&failure),
        }
    }

    fn acquire(&mut self) -> Result<(Device<'static>, Gpu), Failure> {
        let allowed = self.shared.orders.init_deadline;
        let nvml = self.nvml;
        let (device, gpu, seated) = match self.target.clone() {
            Target::Index(index) => {
                let name = CallName::from(("nvmlDeviceGetHandleByIndex_v2", index));
                let device = self.caller.call_allowing(name, allowed, || nvml.device_by_index(index))?;
                let uuid = self.caller.call("nvmlDeviceGetUUID".into(), || device.uuid())?;
                let pci = self.caller.call("nvmlDeviceGetPciInfo_v3".into(), || device.pci_info())?;
                let gpu = Gpu { gpu: index, uuid: uuid.as_str().into() };
                (device, gpu.clone(), Seat { slot: self.slot_number, gpu, pci_bus_id: pci.bus_id })
            }
            Target::Seat(seat) => {
                let name = CallName::from("nvmlDeviceGetHandleByPciBusId_v2");
                let device = self
                    .caller
                    .call_allowing(name, allowed, || nvml.device_by_pci_bus_id(seat.pci_bus_id.as_str()))?;
                // Another board may sit at that address by now.
                let uuid = self.caller.call("nvmlDeviceGetUUID".into(), || device.uuid())?;
                let gpu = Gpu { gpu: seat.gpu.gpu, uuid: uuid.as_str().into() };
                (device, gpu.clone(), Seat { gpu, slot: self.slot_number, ..seat })
            }
        };
        self.shared.send(&FromSampler::Seated(seated.clone()));
        self.target = Target::Seat(seated);
        Ok((device, gpu))
    }

    /// Says that there is no handle: the GPU, if it was ever seen, has no values but a reason.
    fn report_no_handle(&mut self, failure: &Failure) {
        let Target::Seat(seat) = &self.target else {
            tracing::warn!(slot = self.slot_number, ?failure, "no handle for this GPU");
            return;
        };
        let gap = Gap {
            call: "nvmlDeviceGetHandleByPciBusId_v2".into(),
            metrics: vec![m::gpu_up.id()],
            missing: failure.missing(),
        };
        let gpu = seat.gpu.clone();
        let now = Mono::now();
        self.send(&gpu, Tier::Fast, now, Rows::default(), vec![gap]);
    }

    /// Keeps the cadences until the GPU or the driver is lost, or the sampler stops.
    fn work(&mut self, device: &Device<'static>, gpu: &Gpu) {
        let mut memory = Memory::new(self.shared.off.clone());
        let mut layout = Layout::default();
        let n = u32::try_from(self.slot_number).unwrap_or(0);
        let cadences = || {
            Tier::SAMPLED.map(|tier| {
                let interval = self.shared.orders.intervals[tier_index(tier)];
                (tier, Cadence::new(interval, phase(tier, interval, n)))
            })
        };
        let mut rhythm = cadences();
        // MIG mode and layout first: a change of them voids what was read before.
        let mut before_all = vec![Tier::Slow, Tier::Normal, Tier::Identity, Tier::Once];
        while !self.shared.stop.stopped() {
            let due: Vec<Tier> = before_all
                .drain(..)
                .chain(rhythm.iter_mut().filter_map(|(tier, c)| c.take(Mono::now()).then_some(*tier)))
                .collect();
            for tier in due {
                match self.visit(tier, device, gpu, &mut memory, &mut layout) {
                    Visited::Well => {}
                    Visited::LayoutChanged => {
                        memory.forget();
                        rhythm = cadences();
                        before_all = vec![Tier::Once];
                    }
                    Visited::Over => return,
                }
            }
            let next = rhythm.iter().map(|(_, c)| c.next()).min().unwrap_or_default();
            if before_all.is_empty() {
                self.slot.expect(next);
                self.shared.stop.wait_until(next);
            }
        }
    }

    /// One visit.
    fn visit(
        &mut self,
        tier: Tier,
        device: &Device<'static>,
        gpu: &Gpu,
        memory: &mut Memory,
        layout: &mut Layout,
    ) -> Visited {
        if self.shared.stop.stopped() {
            return Visited::Over;
        }
        let taken = Mono::now();
        let mut visit = Visit::new(gpu, device, &mut self.caller, memory);
        gpu::read(tier, &mut visit);
        let mut changed = false;
        match tier {
            Tier::Slow => layout.refresh_mode(&mut visit),
            Tier::Normal => {
                changed = layout.refresh(&mut visit);
                layout.read(&mut visit);
            }
            _ => {}
        }
        let (rows, gaps, ended) = (visit.rows, visit.gaps, visit.ended);
        if changed || matches!(ended, Some(Failure::Lost(..))) {
            // Every value read before is void, those of the other tiers too.
            self.epoch += 1;
        }
        self.send(gpu, tier, taken, rows, gaps);
        match ended {
            None if changed => Visited::LayoutChanged,
            None => Visited::Well,
            Some(Failure::DriverGone(text)) => {
                self.shared.driver_gone(text);
                Visited::Over
            }
            Some(_) => Visited::Over,
        }
    }

    fn send(&mut self, gpu: &Gpu, tier: Tier, taken: Mono, rows: Rows, gaps: Vec<Gap>) {
        let nanos = u64::try_from(Mono::now().since(taken).as_nanos()).unwrap_or(u64::MAX);
        self.shared.send(&FromSampler::Batch(Batch {
            part: Part { collector: Source::Nvml, gpu: Some(gpu.clone()), tier },
            epoch: self.epoch,
            taken,
            nanos,
            lifetime_nanos: self.shared.lifetime(tier),
            rows,
            gaps,
            calls: self.caller.take_costs(),
        }));
    }
}

/// What a visit means for the next ones.
enum Visited {
    /// Go on.
    Well,
    /// The MIG layout is another: everything is read anew.
    LayoutChanged,
    /// The handle is of no more use, or it is time to end.
    Over,
}

fn tier_index(tier: Tier) -> usize {
    Tier::SAMPLED.iter().position(|t| *t == tier).unwrap_or(0)
}

/// Where in its interval a GPU's tier is read. Fast visits of all GPUs come together, so that the node
/// wakes up once; dearer tiers are spread, so that one GPU's slow calls do not meet another's.
fn phase(tier: Tier, interval: Duration, n: u32) -> Duration {
    match tier {
        Tier::Fast => Duration::ZERO,
        Tier::Normal => interval.mul_f64(0.02) * (n % 16),
        _ => interval.mul_f64(0.1) + interval.mul_f64(0.053) * (n % 16),
    }
}

/// The same shared state, for a thread of its own.
pub fn spawn(shared: &Arc<Shared>, nvml: &'static Nvml, slot: usize, target: Target) -> std::io::Result<()> {
    let own = Arc::clone(shared);
    // The slot is in use from now on: a thread that never gets to run is seen by the parent.
    shared.table.writer(slot).expect(Mono::now());
    let handle = std::thread::Builder::new()
        .name(format!("gpu-{slot}"))
        .stack_size(256 * 1024)
        .spawn(move || run(&own, nvml, slot, target))?;
    shared.joined(handle);
    Ok(())
}
