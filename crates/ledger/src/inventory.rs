//! Which GPUs the node has had since it booted.

use model::catalog::schema::LabelSet;
use model::catalog::{self as m, Gpu, GpuInfo};
use model::persisted::Identity;
use model::sample::Rows;

/// Most GPUs remembered; far more than a node has.
const MAX_GPUS: usize = 256;

/// The GPUs seen in this boot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The most at the same time.
    pub devices: usize,
    /// Each one as it was last seen.
    pub gpus: Vec<Identity>,
}

impl Seen {
    /// Notes that there are so many; gives whether that is news.
    pub(super) fn count(&mut self, devices: usize) -> bool {
        let more = devices > self.devices;
        self.devices = self.devices.max(devices);
        more
    }

    /// Notes a GPU; gives whether that is news.
    pub(super) fn note(&mut self, gpu: &Gpu, pci: Option<String>) -> bool {
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

/// The PCI address in a GPU's identity.
pub(super) fn pci(rows: &Rows) -> Option<&str> {
    let mut rows = rows.groups().iter().flat_map(|(_, rows)| rows);
    let info = rows.find(|row| row.metric == m::gpu_info.id())?;
    let at = GpuInfo::DEFS.iter().position(|def| def.name == "pci_address")?;
    Some(info.labels.get(at)?.text(&GpuInfo::DEFS[at])).filter(|pci| !pci.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_news_is_news() {
        let mut seen = Seen::default();
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
