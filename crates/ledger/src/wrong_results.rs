//! Wrong results of the canary that are not cleared. They outlast later runs, resets, driver loads, restarts and
//! reboots. They belong to a board, so another board in its place has none.

use super::builder::Builder;
use model::catalog::schema::KnownLabel;
use model::catalog::{self as m, CanaryCheck, Gpu};
use model::persisted::{KnownWrongResults, WrongResult};
use model::text::duration;
use std::time::Duration;

/// Maximum number of boards kept, far more than a node ever has. The oldest is dropped first.
const MAX_BOARDS: usize = 256;
/// Maximum length of a finding's text, in characters.
const MAX_TEXT: usize = 400;

#[derive(Default)]
pub(crate) struct WrongResultState {
    kept: KnownWrongResults,
    changed: bool,
}

impl WrongResultState {
    /// Restores the wrong results of an earlier daemon.
    pub fn new(mut kept: KnownWrongResults) -> WrongResultState {
        kept.gpus.truncate(MAX_BOARDS);
        WrongResultState { kept, changed: false }
    }

    /// Records a wrong result. The first one is kept, because all results since then are doubtful.
    pub fn note(&mut self, gpu: &Gpu, serial: String, check: CanaryCheck, text: &str, unix_seconds: f64) {
        if gpu.uuid.is_empty() || self.get(&gpu.uuid).is_some() {
            return;
        }
        if self.kept.gpus.len() >= MAX_BOARDS {
            self.kept.gpus.remove(0);
        }
        self.kept.gpus.push(WrongResult {
            uuid: gpu.uuid.to_string(),
            serial,
            check: check.known().to_owned(),
            text: text.chars().take(MAX_TEXT).collect(),
            unix_seconds,
        });
        self.changed = true;
    }

    /// Records the board of a GPU. Another serial number under the same UUID means another board. Returns true if
    /// that cleared a wrong result.
    pub fn seen(&mut self, uuid: &str, serial: Option<&str>) -> bool {
        let Some(serial) = serial.filter(|serial| !serial.is_empty()) else { return false };
        let known = self.get(uuid).map_or("", |wrong| wrong.serial.as_str());
        !known.is_empty() && known != serial && self.clear(uuid)
    }

    /// Clears a wrong result, and returns true if there was one.
    pub fn clear(&mut self, uuid: &str) -> bool {
        let before = self.kept.gpus.len();
        self.kept.gpus.retain(|wrong| wrong.uuid != uuid);
        let cleared = self.kept.gpus.len() < before;
        self.changed |= cleared;
        cleared
    }

    pub fn get(&self, uuid: &str) -> Option<&WrongResult> {
        self.kept.gpus.iter().find(|wrong| wrong.uuid == *uuid)
    }

    /// Returns the wrong result of a GPU as a reason for its verdict.
    pub fn reason(&self, uuid: &str, unix_seconds: f64) -> Option<String> {
        let WrongResult { check, text, unix_seconds: at, .. } = self.get(uuid)?;
        let age = Duration::try_from_secs_f64(unix_seconds - at).unwrap_or_default();
        let ago = duration(age);
        Some(format!(
            "wrong result of the canary, {check}, {ago} ago, not cleared (`gpu-node-exporter canary clear`): {text}"
        ))
    }

    /// Publishes the time of each GPU's wrong result, and returns all of them.
    pub fn publish<'a>(&self, b: &mut Builder<'_>, gpus: impl Iterator<Item = &'a Gpu>) -> Vec<WrongResult> {
        for gpu in gpus {
            let at = self.get(&gpu.uuid).map(|wrong| wrong.unix_seconds);
            b.add_known(&m::gpu_canary_wrong_result_timestamp_seconds, gpu, (), at);
        }
        self.kept.gpus.clone()
    }

    /// Returns all wrong results, if they changed since the last call.
    pub fn take_changed(&mut self) -> Option<KnownWrongResults> {
        std::mem::take(&mut self.changed).then(|| self.kept.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_result_is_of_a_board_until_it_is_cleared() {
        let gpu = Gpu { gpu: 3, uuid: "GPU-3".into() };
        let mut state = WrongResultState::default();
        state.note(&gpu, "1".into(), CanaryCheck::SmSdc, "a bit", 100.0);
        state.note(&gpu, "1".into(), CanaryCheck::Pcie, "another", 200.0);
        assert!(state.reason("GPU-3", 160.0).unwrap().contains("sm_sdc, 60 s ago"), "the first stays");
        let kept = state.take_changed().unwrap();
        assert_eq!((kept.gpus.len(), state.take_changed()), (1, None));
        let mut later = WrongResultState::new(kept);
        assert!(
            !later.seen("GPU-3", None) && !later.seen("GPU-3", Some("")) && !later.seen("GPU-3", Some("1"))
        );
        assert!(!later.seen("GPU-4", Some("2")) && later.get("GPU-3").is_some());
        assert!(later.seen("GPU-3", Some("2")), "another board");
        assert_eq!(later.take_changed(), Some(KnownWrongResults::default()));
        assert!(state.clear("GPU-3") && !state.clear("GPU-3") && state.reason("GPU-3", 1.0).is_none());
        for n in 0..2 * MAX_BOARDS {
            let gpu = Gpu { gpu: 0, uuid: format!("GPU-{n}").as_str().into() };
            state.note(&gpu, String::new(), CanaryCheck::SmSdc, &"x".repeat(2 * MAX_TEXT), 1.0);
        }
        assert_eq!(state.kept.gpus.len(), MAX_BOARDS);
        assert_eq!(state.kept.gpus[0].text.len(), MAX_TEXT);
    }
}
