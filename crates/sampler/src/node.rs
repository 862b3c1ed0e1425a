//! The worker of the node: loads the library, starts a worker for each GPU, and reads the values that belong to
//! no GPU.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::driver::{self, CallFailure, Caller, file_error, gap};
use super::wire::{FromSampler, GpuSlot, Intervals, SamplerSettings};
use super::worker;
use super::{Shared, events, fast, peers, raw};
use host::inflight::{MAX_GPUS, NODE_SLOT, SlotWriter};
use model::catalog::{self as m, DriverInfo, DropReason, Node, NvSwitchInfo, Tier};
use model::clock::{Cadence, Mono};
use model::sample::{Missing, Rows};

/// Longest time until the worker notices that a GPU can be attached again.
const INCLUDE: Duration = Duration::from_secs(1);

/// Folder of the nvswitch driver. It contains a folder per switch, named after its PCI address, with a file
/// `information`.
const NVSWITCHES: &str = "/proc/driver/nvidia-nvswitch/devices";

/// Runs until the sampler stops. `more` receives the slots of GPUs that can be attached again.
pub fn run(shared: &Arc<Shared>, more: &Receiver<(usize, Option<GpuSlot>)>) {
    let slot = shared.table.writer(NODE_SLOT);
    let settings = shared.settings();
    let mut caller = Caller::new(slot, settings.call_deadline);
    slot.expect(Mono::now());
    let library = shared.config.library.clone();
    let loaded = caller
        .call_allowing("nvmlInitWithFlags", settings.init_deadline, || driver::load(library.as_deref()));
    match loaded {
        Ok(nvml) => {
            // The library is never unloaded: threads in a call keep using it, and it disappears with the
            // process.
            let nvml = Box::leak(Box::new(nvml));
            shared.send(&FromSampler::DriverUp);
            events::start(shared, nvml);
            fast::start(shared);
            peers::start(shared);
            let taken = shared.config.avoid.iter().copied().collect();
            NodeWorker { shared, nvml, slot, caller, taken }.work(settings, more);
        }
        Err(failure) => {
            let (error, text) = failure.error();
            shared.driver_gone(error, text);
        }
    }
    slot.leave();
}

/// Returns the cadences of the list of GPUs and of the switches.
fn cadences(intervals: &Intervals) -> [Cadence; 2] {
    [intervals.slow, intervals.rare].map(|interval| Cadence::new(interval, Duration::ZERO))
}

struct NodeWorker<'a> {
    shared: &'a Arc<Shared>,
    nvml: &'static Nvml,
    slot: SlotWriter,
    caller: Caller,
    /// Slots that are in use, or whose GPUs must be avoided.
    taken: HashSet<usize>,
}

impl NodeWorker<'_> {
    /// Keeps the cadences until the sampler stops.
    fn work(&mut self, mut settings: Arc<SamplerSettings>, more: &Receiver<(usize, Option<GpuSlot>)>) {
        let shared = self.shared;
        for gpu_slot in &shared.config.known {
            if !shared.config.avoid.contains(&gpu_slot.slot) {
                self.attach(gpu_slot.slot, Some(gpu_slot.clone()));
            }
        }
        let [mut cadence, mut switches] = cadences(&settings.intervals);
        let mut known = false;
        while !shared.stop.stopped() {
            let woken = shared.stop.woken();
            let now = shared.settings();
            if !Arc::ptr_eq(&now, &settings) {
                self.caller.set_allowed(now.call_deadline);
                [cadence, switches] = cadences(&now.intervals);
                known = false;
                settings = now;
            }
            while let Ok((slot, gpu_slot)) = more.try_recv() {
                self.taken.remove(&slot);
                if gpu_slot.is_some() {
                    self.attach(slot, gpu_slot);
                }
            }
            if cadence.tick(Mono::now()) {
                known = known || self.identity();
                self.devices();
            }
            if switches.tick(Mono::now()) {
                self.switches();
            }
            // Also wakes for GPUs that can be attached again.
            let next = cadence.next().min(switches.next()).min(Mono::now() + INCLUDE);
            shared.sleep_since(woken, self.slot, next);
        }
    }

    /// Starts the worker of a GPU in a slot.
    fn attach(&mut self, slot: usize, known: Option<GpuSlot>) {
        if slot == NODE_SLOT || slot > MAX_GPUS || !self.taken.insert(slot) {
            tracing::warn!(
                "slot {slot} is in use or above {MAX_GPUS}, the maximum number of GPUs; this GPU is not read"
            );
            return;
        }
        if let Err(error) = worker::spawn(self.shared, self.nvml, slot, known) {
            tracing::error!(
                "failed to start the thread of the GPU in slot {slot}: {error}; the next list of GPUs tries again"
            );
            self.taken.remove(&slot);
        }
    }

    /// Reads the versions of driver and library. Returns whether all of them could be read.
    fn identity(&mut self) -> bool {
        let taken = Mono::now();
        let nvml = self.nvml;
        let mut gaps = Vec::new();
        let mut text = |call: &'static str, f: &dyn Fn() -> Result<String, NvmlError>| {
            self.caller.call(call, f).unwrap_or_else(|failure| {
                gaps.push(gap(call, &[m::gpu_driver_info.id()], failure.missing()));
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
            rows.entity(&Node {}).info(&m::gpu_driver_info, info);
        }
        self.shared.report_node(Tier::Identity, taken, rows, gaps, &mut self.caller);
        !failed
    }

    /// Reads the number of GPUs that the driver lists, and starts a worker for every new one.
    fn devices(&mut self) {
        let taken = Mono::now();
        let nvml = self.nvml;
        let (mut rows, mut gaps) = (Rows::default(), Vec::new());
        const COUNT: &str = "nvmlDeviceGetCount_v2";
        match self.caller.call(COUNT, || nvml.device_count()) {
            Ok(count) => {
                if rows.entity(&Node {}).record(&m::gpu_devices, (), f64::from(count)).is_err() {
                    gaps.push(gap(COUNT, &[m::gpu_devices.id()], Missing::Dropped(DropReason::OutOfRange)));
                }
                self.shared.listed.store(count as usize, Ordering::Relaxed);
                for slot in 1..=MAX_GPUS.min(count as usize) {
                    if !self.taken.contains(&slot) {
                        self.attach(slot, None);
                    }
                }
            }
            Err(CallFailure::DriverGone(error, text)) => return self.shared.driver_gone(error, text),
            Err(failure) => gaps.push(gap(COUNT, &[m::gpu_devices.id()], failure.missing())),
        }
        self.shared.report_node(Tier::Slow, taken, rows, gaps, &mut self.caller);
    }

    /// Reads the switches between the GPUs, if the kernel of this node drives them.
    fn switches(&mut self) {
        let taken = Mono::now();
        if self.shared.settings().off.contains(&m::gpu_nvswitch_info.id()) {
            return;
        }
        let (mut rows, mut gaps) = (Rows::default(), Vec::new());
        const CALL: &str = "nvswitch/devices";
        // The driver's code produces the file, so the reading is recorded and measured like a call.
        match self.caller.call(CALL, || nvswitches(&self.shared.host.path(NVSWITCHES)).map_err(file_error)) {
            Ok(switches) => {
                for switch in switches {
                    rows.entity(&Node {}).info(&m::gpu_nvswitch_info, switch);
                }
            }
            // Without the nvswitch driver there is nothing to report.
            Err(CallFailure::Unsupported) => return,
            Err(failure) => gaps.push(gap(CALL, &[m::gpu_nvswitch_info.id()], failure.missing())),
        }
        self.shared.report_node(Tier::Rare, taken, rows, gaps, &mut self.caller);
    }
}

/// Lists the NVSwitches that the node's own kernel drives, from the files of the nvswitch driver.
fn nvswitches(folder: &Path) -> io::Result<Vec<NvSwitchInfo>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let text = std::fs::read_to_string(entry.path().join("information"))?;
        let pci_address = entry.file_name().to_string_lossy().to_lowercase();
        found.push(NvSwitchInfo { pci_address, firmware_version: firmware(&text) });
    }
    found.sort_by(|a, b| a.pci_address.cmp(&b.pci_address));
    Ok(found)
}

/// Returns the firmware version from `BIOS Version: 92.10.14.00.01`, or an empty text if the driver reports
/// `N/A`.
fn firmware(information: &str) -> String {
    let version = information.lines().find_map(|line| line.strip_prefix("BIOS Version:"));
    let version = version.map(str::trim).unwrap_or_default();
    if version == "N/A" { String::new() } else { version.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn switches_are_found_with_their_firmware() {
        let dir = tempfile::tempdir().unwrap();
        let devices = dir.path().join("devices");
        for (address, text) in
            [("0000:C1:00.0", "BIOS Version: 92.10.14.00.01\n"), ("0000:83:00.0", "BIOS Version: N/A\n")]
        {
            fs::create_dir_all(devices.join(address)).unwrap();
            fs::write(devices.join(address).join("information"), text).unwrap();
        }
        let found = nvswitches(&devices).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].pci_address.as_str(), found[0].firmware_version.as_str()), ("0000:83:00.0", ""));
        assert_eq!(found[1].pci_address, "0000:c1:00.0");
        assert_eq!(found[1].firmware_version, "92.10.14.00.01");
    }

    #[test]
    fn a_node_without_the_driver_has_no_switches() {
        let dir = tempfile::tempdir().unwrap();
        let error = nvswitches(&dir.path().join("devices")).unwrap_err();
        assert!(matches!(file_error(error), NvmlError::NotSupported));
    }
}
