//! Resets of GPUs. A reset shows in two ways and counts once: a lost GPU answers again, or the driver no longer
//! requests a reset (in a visit or in the kernel log). No line of the kernel log proves a reset.

use std::collections::HashMap;
use std::sync::Arc;

use super::loads::WINDOW;
use model::catalog::{RecoveryAction, Tier};
use model::clock::Mono;
use model::persisted::FaultyGpu;

/// State of the resets of each GPU, by UUID.
#[derive(Default)]
pub(crate) struct Resets(HashMap<Arc<str>, ResetState>);

#[derive(Default)]
struct ResetState {
    /// Time of the loss, and the tier whose visit showed it; no tier if there was no handle.
    lost: Option<(Mono, Option<Tier>)>,
    /// Whether the driver requests an action that includes a reset.
    asked: bool,
    /// Time at which a return was last counted.
    returned: Option<Mono>,
}

impl Resets {
    /// Records that a GPU is lost or requests a reset.
    pub fn lost(&mut self, uuid: &Arc<str>, tier: Option<Tier>, at: Mono) {
        if !uuid.is_empty() {
            self.0.entry(Arc::clone(uuid)).or_default().lost.get_or_insert((at, tier));
        }
    }

    /// Records a fully answered visit, and returns true if it shows a reset. Only the tier whose visit showed the
    /// loss proves it, because a GPU that requests a reset may still answer others.
    pub fn answers(&mut self, uuid: &Arc<str>, tier: Tier, at: Mono) -> bool {
        let Some(state) = self.0.get_mut(uuid) else { return false };
        let again = |(lost, of): &(Mono, Option<Tier>)| *lost < at && of.is_none_or(|of| of == tier);
        if state.lost.take_if(|lost| again(lost)).is_none() {
            return false;
        }
        state.returned = Some(at);
        true
    }

    /// Records the recovery action that the driver requests, from a visit or the kernel log. Returns true if a
    /// request for a reset has ended.
    pub fn asks(&mut self, uuid: &Arc<str>, action: RecoveryAction, at: Mono) -> bool {
        match action {
            RecoveryAction::GpuReset | RecoveryAction::NodeReboot | RecoveryAction::DrainAndReset => {
                self.0.entry(Arc::clone(uuid)).or_default().asked = true;
                return false;
            }
            // Draining peers is not a reset, and neither is its end.
            RecoveryAction::DrainP2p => return false,
            RecoveryAction::None => {}
        }
        let Some(state) = self.0.get_mut(uuid) else { return false };
        if !std::mem::take(&mut state.asked) {
            return false;
        }
        // The same reset ended the loss.
        state.lost = None;
        if state.returned.is_some_and(|returned| at.since(returned) <= WINDOW) {
            return false;
        }
        state.returned = Some(at);
        true
    }

    /// Adds to a faulty GPU how its reset will show.
    pub fn describe(&self, gpu: &mut FaultyGpu) {
        if let Some(state) = self.0.get(gpu.uuid.as_str()) {
            (gpu.lost, gpu.asked) = (state.lost, state.asked);
        }
    }

    /// Restores the state of a faulty GPU, so that a reset between two daemons is noticed.
    pub fn restore(&mut self, known: &FaultyGpu) {
        let state = ResetState { lost: known.lost, asked: known.asked, returned: None };
        self.0.insert(known.uuid.as_str().into(), state);
    }

    pub fn forget(&mut self, uuid: &Arc<str>) {
        self.0.remove(uuid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Mono {
        Mono(seconds * 1_000_000_000)
    }

    #[test]
    fn one_reset_counts_once_by_whichever_sign_comes_first() {
        let uuid: Arc<str> = "GPU-1".into();
        let mut resets = Resets::default();
        assert!(!resets.answers(&uuid, Tier::Slow, at(1)), "it was never lost");
        resets.lost(&uuid, Some(Tier::Slow), at(10));
        assert!(!resets.answers(&uuid, Tier::Slow, at(9)), "read before it was lost");
        assert!(!resets.answers(&uuid, Tier::Fast, at(99)), "other calls may answer before a reset");
        assert!(resets.answers(&uuid, Tier::Slow, at(100)));
        assert!(!resets.answers(&uuid, Tier::Slow, at(131)));

        resets.lost(&uuid, Some(Tier::Slow), at(1000));
        resets.lost(&uuid, Some(Tier::Slow), at(1010));
        assert!(resets.answers(&uuid, Tier::Slow, at(2000)), "reported twice, lost once");
        assert!(!resets.answers(&uuid, Tier::Slow, at(2001)));
        resets.lost(&uuid, None, at(5500));
        assert!(resets.answers(&uuid, Tier::Fast, at(5560)), "any visit, where there was no handle");

        resets.asks(&uuid, RecoveryAction::GpuReset, at(6000));
        resets.lost(&uuid, Some(Tier::Slow), at(6001));
        assert!(resets.asks(&uuid, RecoveryAction::None, at(6100)), "asked for, and asked for no more");
        assert!(!resets.asks(&uuid, RecoveryAction::None, at(6101)));
        assert!(!resets.answers(&uuid, Tier::Slow, at(6105)), "the same reset");
        resets.asks(&uuid, RecoveryAction::GpuReset, at(7000));
        resets.lost(&uuid, Some(Tier::Fast), at(7001));
        assert!(resets.answers(&uuid, Tier::Fast, at(7100)));
        assert!(!resets.asks(&uuid, RecoveryAction::None, at(7101)), "the same reset");
        resets.forget(&uuid);
        assert!(!resets.answers(&uuid, Tier::Fast, at(7200)));
    }
}
