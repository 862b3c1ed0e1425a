//! Faults that only a reset or a load of the driver ends, as the next daemon is to know them.

use super::Ledger;
use model::driver_module::{LoadId, Sight};
use model::persisted::FaultyGpu;

/// Most GPUs remembered; far more than a node has.
const MAX_GPUS: usize = 256;

/// The GPUs with such faults, under the present load of the driver.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faulty {
    /// The load of the kernel module; `None` where no module is seen.
    pub load: Option<LoadId>,
    /// The GPUs.
    pub gpus: Vec<FaultyGpu>,
}

impl Ledger {
    /// Takes up what an earlier daemon knew of faults under the present load of the driver. Counts nothing.
    pub(super) fn restore_faults(&mut self) {
        for gpu in &self.faulty.gpus {
            self.faults.restore(gpu);
            self.resets.restore(gpu);
        }
    }

    /// Notes which load of the module it is.
    pub(super) fn note_load(&mut self, sight: &Sight) {
        if !matches!(sight, Sight::Unknown) {
            self.load = sight.load().map(|load| load.id.clone());
        }
    }

    /// The GPUs with such faults, if that is other than when this was asked last.
    pub fn newly_faulty(&mut self) -> Option<Faulty> {
        let mut gpus: Vec<FaultyGpu> = self.faults.lasting().take(MAX_GPUS).collect();
        gpus.iter_mut().for_each(|gpu| self.resets.tell(gpu));
        // Which load it is does not matter while nothing is wrong.
        let same = gpus == self.faulty.gpus && (gpus.is_empty() || self.load == self.faulty.load);
        if same {
            return None;
        }
        self.faulty = Faulty { load: self.load.clone(), gpus };
        Some(self.faulty.clone())
    }
}
