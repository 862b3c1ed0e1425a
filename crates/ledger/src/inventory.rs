//! Which GPUs the node has had since it booted.

use super::intake::label;
use model::catalog::{self as m, Gpu, GpuInfo, Tier};
use model::pci::pci_address;
use model::persisted::Identity;
use model::sample::Batch;

/// Most GPUs remembered; far more than a node has.
const MAX_GPUS: usize = 256;

/// The GPUs seen in this boot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenGpus {
    /// The most at the same time.
    pub devices: usize,
    /// Each one as it was last seen.
    pub gpus: Vec<Identity>,
}

impl SeenGpus {
    /// Gives whether there were never so many.
    fn count(&mut self, devices: usize) -> bool {
        let more = devices > self.devices;
        self.devices = self.devices.max(devices);
        more
    }

    /// Gives whether that changes anything.
    fn note(&mut self, gpu: &Gpu, pci: Option<String>) -> bool {
        if gpu.uuid.is_empty() {
            return false;
        }
        let room = self.gpus.len() < MAX_GPUS;
        let known = self.gpus.iter_mut().find(|known| *known.uuid == *gpu.uuid);
        let pci = pci.or_else(|| known.as_ref().map(|known| known.pci.clone())).unwrap_or_default();
        let now = Identity { index: gpu.gpu, uuid: gpu.uuid.to_string(), pci };
        match known {
            Some(known) if *known == now => false,
            Some(known) => {
                *known = now;
                true
            }
            None if room => {
                self.gpus.push(now);
                true
            }
            None => false,
        }
    }
}

/// The GPUs of this boot, and how many there should be.
#[derive(Debug)]
pub struct GpuInventory {
    seen: SeenGpus,
    changed: bool,
    /// 0: the most seen.
    configured: usize,
}

impl GpuInventory {
    pub fn new(seen: SeenGpus, configured: usize) -> GpuInventory {
        GpuInventory { seen, changed: false, configured }
    }

    pub fn count(&mut self, devices: usize) {
        self.changed |= self.seen.count(devices);
    }

    /// Notes what a batch says of the GPUs there are; gives the PCI address of the GPU that it identifies.
    pub fn take(&mut self, batch: &Batch) -> Option<String> {
        for row in batch.rows.all().filter(|row| row.metric == m::gpu_devices.id()) {
            self.count(row.value as usize);
        }
        let gpu = batch.part.gpu.as_ref().filter(|_| batch.part.tier == Tier::Identity)?;
        let info = batch.find(m::gpu_info.id());
        let pci = info.and_then(|row| label::<GpuInfo>(row, "pci_address")).and_then(pci_address);
        self.changed |= self.seen.note(gpu, pci.clone());
        pci
    }

    /// The GPUs seen, if they changed since the last call.
    pub fn take_changed(&mut self) -> Option<SeenGpus> {
        std::mem::take(&mut self.changed).then(|| self.seen.clone())
    }

    /// The most GPUs seen at the same time.
    pub fn devices(&self) -> usize {
        self.seen.devices
    }

    /// GPUs there should be.
    pub fn expected(&self) -> usize {
        if self.configured == 0 { self.seen.devices } else { self.configured }
    }

    /// GPUs that an earlier daemon, or an earlier load of the driver, had seen and that are `known` no longer.
    pub fn absent(&self, known: impl Fn(&str) -> bool) -> impl Iterator<Item = Gpu> {
        let absent = self.seen.gpus.iter().filter(move |gone| !known(&gone.uuid));
        absent.map(|gone| Gpu { gpu: gone.index, uuid: gone.uuid.as_str().into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_change_counts() {
        let mut seen = SeenGpus::default();
        let gpu = Gpu { gpu: 3, uuid: "GPU-a".into() };
        assert!(seen.count(2) && !seen.count(1) && seen.devices == 2);
        assert!(seen.note(&gpu, Some("0000:06:00".into())));
        assert!(!seen.note(&gpu, None), "what is known of it stays");
        assert!(seen.note(&Gpu { gpu: 2, ..gpu }, None));
        assert!(!seen.note(&Gpu { gpu: 0, uuid: "".into() }, None));
        let last = Identity { index: 2, uuid: "GPU-a".into(), pci: "0000:06:00".into() };
        assert_eq!(seen.gpus, [last]);
    }
}
