//! GPUs that the node has had since it booted.

use super::intake::label;
use model::catalog::{self as m, Gpu, GpuInfo, Tier};
use model::pci::pci_address;
use model::persisted::{Identity, SeenGpus};
use model::sample::Batch;

/// Maximum number of GPUs kept, far more than a node has.
const MAX_GPUS: usize = 256;
/// Seconds after which the time of the last answer is saved again. A daemon also saves it when it ends.
const SAVED_EVERY: u64 = 3600;

/// Updates the maximum number of GPUs, and returns true if it rose.
fn count(seen: &mut SeenGpus, devices: usize) -> bool {
    let more = devices > seen.devices;
    seen.devices = seen.devices.max(devices);
    more
}

/// Updates the identity of a GPU, and returns true if it changed.
fn note(seen: &mut SeenGpus, gpu: &Gpu, pci: Option<String>) -> bool {
    if gpu.uuid.is_empty() {
        return false;
    }
    let at = seen.gpus.iter().position(|known| *known.uuid == *gpu.uuid);
    let mut now = at.map(|at| seen.gpus[at].clone()).unwrap_or_default();
    (now.index, now.uuid) = (gpu.gpu, gpu.uuid.to_string());
    now.pci = pci.unwrap_or(now.pci);
    match at {
        Some(at) => std::mem::replace(&mut seen.gpus[at], now.clone()) != now,
        None if seen.gpus.len() < MAX_GPUS => {
            seen.gpus.push(now);
            true
        }
        None => false,
    }
}

/// GPUs of this boot.
pub(crate) struct GpuInventory {
    seen: SeenGpus,
    changed: bool,
    /// Time of the newest answer of any GPU, and the time that is saved.
    last_seen: (u64, u64),
}

impl GpuInventory {
    pub fn new(seen: SeenGpus) -> GpuInventory {
        GpuInventory { seen, changed: false, last_seen: (0, 0) }
    }

    pub fn count(&mut self, devices: usize) {
        self.changed |= count(&mut self.seen, devices);
    }

    /// Records the GPUs of a batch, and returns the PCI address of the GPU that it identifies.
    pub fn record(&mut self, batch: &Batch) -> Option<String> {
        for row in batch.rows.all().filter(|row| row.metric == m::gpu_devices.id()) {
            self.count(row.value as usize);
        }
        let gpu = batch.part.gpu.as_ref().filter(|_| batch.part.tier == Tier::Identity)?;
        let info = batch.find(m::gpu_info.id());
        let pci = info.and_then(|row| label::<GpuInfo>(row, "pci_address")).and_then(pci_address);
        self.changed |= note(&mut self.seen, gpu, pci.clone());
        pci
    }

    /// Records that these GPUs answer at this time.
    pub fn answers<'a>(&mut self, gpus: impl Iterator<Item = &'a Gpu>, unix_seconds: f64) {
        let now = unix_seconds as u64;
        for gpu in gpus {
            if let Some(known) = self.seen.gpus.iter_mut().find(|known| *known.uuid == *gpu.uuid) {
                known.last_seen = now;
                self.last_seen.0 = now;
            }
        }
    }

    /// Returns the GPUs seen, if they changed since the last call or the saved times are old.
    pub fn take_changed(&mut self) -> Option<SeenGpus> {
        let (newest, saved) = self.last_seen;
        let old = newest.saturating_sub(saved) >= SAVED_EVERY;
        (std::mem::take(&mut self.changed) || old).then(|| self.saved())
    }

    /// Returns the GPUs seen at the end, if any of their times are not saved.
    pub fn take_last(&mut self) -> Option<SeenGpus> {
        (self.changed || self.last_seen.0 != self.last_seen.1).then(|| self.saved())
    }

    fn saved(&mut self) -> SeenGpus {
        self.last_seen.1 = self.last_seen.0;
        self.seen.clone()
    }

    /// Returns the maximum number of GPUs seen at the same time.
    pub fn devices(&self) -> usize {
        self.seen.devices
    }

    /// Returns how many GPUs the node should have: the `configured` number, or the most seen if that is 0.
    pub fn expected(&self, configured: usize) -> usize {
        if configured == 0 { self.seen.devices } else { configured }
    }

    /// Returns the GPUs seen earlier in this boot that are no longer `known`.
    pub fn absent(&self, known: impl Fn(&str) -> bool) -> impl Iterator<Item = &Identity> {
        self.seen.gpus.iter().filter(move |gone| !known(&gone.uuid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_change_counts() {
        let mut seen = SeenGpus::default();
        let gpu = Gpu { gpu: 3, uuid: "GPU-a".into() };
        assert!(count(&mut seen, 2) && !count(&mut seen, 1) && seen.devices == 2);
        assert!(note(&mut seen, &gpu, Some("0000:06:00".into())));
        assert!(!note(&mut seen, &gpu, None), "what is known of it stays");
        assert!(note(&mut seen, &Gpu { gpu: 2, ..gpu }, None));
        assert!(!note(&mut seen, &Gpu { gpu: 0, uuid: "".into() }, None));
        let last = Identity { index: 2, uuid: "GPU-a".into(), pci: "0000:06:00".into(), last_seen: 0 };
        assert_eq!(seen.gpus, [last]);
    }

    #[test]
    fn the_time_of_the_last_answer_is_saved_seldom_and_at_the_end() {
        let gpus = [3, 4].map(|index| Gpu { gpu: index, uuid: format!("GPU-{index}").into() });
        let mut inventory = GpuInventory::new(SeenGpus::default());
        inventory.changed = gpus.iter().all(|gpu| note(&mut inventory.seen, gpu, None));
        let times = |seen: SeenGpus| seen.gpus.iter().map(|gpu| gpu.last_seen).collect::<Vec<_>>();
        inventory.answers(gpus.iter(), 10_000.5);
        assert_eq!(inventory.take_changed().map(times), Some(vec![10_000, 10_000]));
        inventory.answers(gpus.iter(), 13_599.0);
        assert_eq!(inventory.take_changed(), None);
        inventory.answers(gpus[..1].iter(), 13_600.0);
        assert_eq!(inventory.take_changed().map(times), Some(vec![13_600, 13_599]));
        assert_eq!(inventory.take_last(), None, "all is saved");
        inventory.answers(gpus[..1].iter(), 13_601.0);
        assert_eq!(inventory.take_last().map(times), Some(vec![13_601, 13_599]));
        assert!(!note(&mut inventory.seen, &gpus[0], None), "an identity that is read again changes nothing");
    }
}
