//! The node's worker: loads the library, gives each GPU a worker, and reads what belongs to no GPU.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::driver::{self, CallFailure, Caller};
use super::wire::{FromSampler, GpuSlot};
use super::worker::{self, GpuAddress};
use super::{Shared, events, fast, nvswitch, peers, raw};
use host::inflight::{MAX_GPUS, NODE_SLOT};
use model::catalog::{self as m, DriverInfo, DropReason, MetricId, Node, Tier};
use model::clock::{Cadence, Mono};
use model::sample::{Gap, Missing, Rows};

/// Longest time until the worker notices that a GPU may be asked again.
const INCLUDE: Duration = Duration::from_secs(1);

/// Runs until the sampler stops. `more`: slots of GPUs that may be asked again.
pub fn run(shared: &Arc<Shared>, more: &Receiver<(usize, Option<GpuSlot>)>) {
    let slot = shared.table.writer(NODE_SLOT);
    let mut caller = Caller::new(slot, shared.config.call_deadline);
    slot.expect(Mono::now());
    let library = shared.config.library.clone();
    let loaded = caller
        .call_allowing("nvmlInitWithFlags", shared.config.init_deadline, || driver::load(library.as_deref()));
    // Never unloaded: threads in a call keep using it, and the process ends with it.
    let nvml: &'static Nvml = match loaded {
        Ok(nvml) => Box::leak(Box::new(nvml)),
        Err(failure) => {
            let (error, text) = failure.error();
            shared.driver_gone(error, text);
            slot.leave();
            return;
        }
    };
    shared.send(&FromSampler::DriverUp);
    events::start(shared, nvml);
    fast::start(shared);
    peers::start(shared);
    let mut node = NodeWorker { shared, nvml, caller, taken: shared.config.avoid.iter().copied().collect() };
    for gpu_slot in &shared.config.known {
        if !shared.config.avoid.contains(&gpu_slot.slot) {
            node.attach(gpu_slot.slot, GpuAddress::Known(gpu_slot.clone()));
        }
    }
    let mut cadence = Cadence::new(shared.config.intervals.slow, Duration::ZERO);
    let mut switches = Cadence::new(shared.config.intervals.rare, Duration::ZERO);
    let mut known = false;
    while !shared.stop.stopped() {
        while let Ok((slot, gpu_slot)) = more.try_recv() {
            node.taken.remove(&slot);
            if let Some(gpu_slot) = gpu_slot {
                node.attach(slot, GpuAddress::Known(gpu_slot));
            }
        }
        if cadence.take(Mono::now()) {
            if !known {
                known = node.identity();
            }
            node.devices();
        }
        if switches.take(Mono::now()) {
            node.switches();
        }
        // Also wakes for a GPU that may be asked again.
        let next = cadence.next().min(switches.next()).min(Mono::now() + INCLUDE);
        slot.expect(next);
        shared.stop.wait_until(next);
    }
    slot.leave();
}

struct NodeWorker<'a> {
    shared: &'a Arc<Shared>,
    nvml: &'static Nvml,
    caller: Caller,
    /// Slots in use, or of GPUs that must not be asked.
    taken: HashSet<usize>,
}

impl NodeWorker<'_> {
    /// Starts a GPU's worker in a slot.
    fn attach(&mut self, slot: usize, address: GpuAddress) {
        if slot == NODE_SLOT || slot > MAX_GPUS || !self.taken.insert(slot) {
            tracing::warn!(slot, "this slot cannot be used: more than {MAX_GPUS} GPUs, or it is taken");
            return;
        }
        if let Err(error) = worker::spawn(self.shared, self.nvml, slot, address) {
            tracing::error!(slot, %error, "no thread for this GPU; tried again with the next list of GPUs");
            self.taken.remove(&slot);
        }
    }

    /// Versions of driver and library; whether all are known.
    fn identity(&mut self) -> bool {
        let taken = Mono::now();
        let nvml = self.nvml;
        let mut gaps = Vec::new();
        let mut text = |call: &'static str, f: &dyn Fn() -> Result<String, NvmlError>| {
            self.caller.call(call, f).unwrap_or_else(|failure| {
                gaps.push(gap(call, m::gpu_driver_info.id(), failure.missing()));
                String::new()
            })
        };
        let info = DriverInfo {
            driver_version: text("nvmlSystemGetDriverVersion", &|| nvml.sys_driver_version()),
            driver_branch: text("nvmlSystemGetDriverBranch", &|| raw::driver_branch(nvml)),
            nvml_version: text("nvmlSystemGetNVMLVersion", &|| nvml.sys_nvml_version()),
            cuda_version: text("nvmlSystemGetCudaDriverVersion_v2", &|| {
                nvml.sys_cuda_driver_version().map(|v| {
                    use nvml_wrapper::{
                        cuda_driver_version_major as major, cuda_driver_version_minor as minor,
                    };
                    format!("{}.{}", major(v), minor(v))
                })
            }),
        };
        let failed = gaps.iter().any(|gap| matches!(gap.missing, Missing::Failed { .. }));
        let mut rows = Rows::default();
        if !failed {
            rows.of(&Node {}).info(&m::gpu_driver_info, info);
        }
        self.send(Tier::Identity, taken, rows, gaps);
        !failed
    }

    /// How many GPUs the driver lists; those that are new get a worker.
    fn devices(&mut self) {
        let taken = Mono::now();
        let nvml = self.nvml;
        let (mut rows, mut gaps) = (Rows::default(), Vec::new());
        const COUNT: &str = "nvmlDeviceGetCount_v2";
        match self.caller.call(COUNT, || nvml.device_count()) {
            Ok(count) => {
                if rows.of(&Node {}).put(&m::gpu_devices, (), f64::from(count)).is_err() {
                    gaps.push(gap(COUNT, m::gpu_devices.id(), Missing::Dropped(DropReason::OutOfRange)));
                }
                self.shared.listed.store(count as usize, Ordering::Relaxed);
                for index in 0..count.min(MAX_GPUS as u32) {
                    let slot = index as usize + 1;
                    if !self.taken.contains(&slot) {
                        self.attach(slot, GpuAddress::Index(index));
                    }
                }
            }
            Err(CallFailure::DriverGone(error, text)) => return self.shared.driver_gone(error, text),
            Err(failure) => gaps.push(gap(COUNT, m::gpu_devices.id(), failure.missing())),
        }
        self.send(Tier::Slow, taken, rows, gaps);
    }

    /// The switches between the GPUs, where this node's kernel drives them.
    fn switches(&mut self) {
        let taken = Mono::now();
        if self.shared.off.contains(&m::gpu_nvswitch_info.id()) {
            return;
        }
        if let Some((rows, gaps)) = nvswitch::read(&self.shared.host, &mut self.caller) {
            self.send(Tier::Rare, taken, rows, gaps);
        }
    }

    fn send(&mut self, tier: Tier, taken: Mono, rows: Rows, gaps: Vec<Gap>) {
        self.shared.report_node(tier, taken, rows, gaps, &mut self.caller);
    }
}

fn gap(call: &str, metric: MetricId, missing: Missing) -> Gap {
    Gap { call: call.to_owned(), metrics: vec![metric], missing }
}
