//! Loads of the kernel module. They are observed in the module's folder and in the kernel log, and each load counts
//! once.

use std::time::Duration;

use model::clock::Mono;
use model::driver_module::{LoadId, ModuleState};

/// Interval within which both sources report the same load. The folder is checked at least every 10 s, and a kernel
/// log in a storm is read late.
pub const WINDOW: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Witness {
    Module,
    Kernel,
}

/// Loads of the kernel module that were observed while the daemon runs.
#[derive(Default)]
pub(crate) struct Loads {
    /// Load in the module's folder at the last check, if any; `None`: not checked yet.
    seen: Option<Option<LoadId>>,
    /// Loads that one source has reported and the other may still report.
    waiting: Vec<(Witness, Mono)>,
    /// Time of the current load, in seconds since 1970.
    pub unix_seconds: Option<f64>,
}

impl Loads {
    /// Records a check of the folder, and returns true if it shows a new load.
    pub fn folder(&mut self, state: &ModuleState, at: Mono, unix_seconds: f64) -> bool {
        let load = match state {
            ModuleState::Unknown => return false,
            ModuleState::Absent => {
                self.seen = Some(None);
                self.unix_seconds = None;
                return false;
            }
            ModuleState::Loaded(load) => load,
        };
        let before = self.seen.replace(Some(load.id.clone()));
        // A module that is present at the start was loaded before.
        let first = before.is_none();
        if before.flatten().as_ref() == Some(&load.id) {
            return false;
        }
        let new = load.unix_seconds.or_else(|| (!first).then_some(unix_seconds));
        let known = self.unix_seconds.filter(|known| new.is_none_or(|new| (known - new).abs() <= seconds()));
        // The kernel log has the exact time.
        self.unix_seconds = known.or(new);
        !first && self.count(Witness::Module, at)
    }

    /// Records a load from the kernel log, and returns true if it is new. `old`: the line is older than the daemon.
    pub fn line(&mut self, old: bool, at: Mono, unix_seconds: f64) -> bool {
        let absent = self.seen == Some(None) && old;
        if !absent && self.unix_seconds.is_none_or(|known| unix_seconds >= known - seconds()) {
            self.unix_seconds = Some(unix_seconds);
        }
        !old && self.count(Witness::Kernel, at)
    }

    /// Returns true if the last check found the module. Its next load will then show in the folder.
    pub fn module_seen(&self) -> bool {
        matches!(self.seen, Some(Some(_)))
    }

    fn count(&mut self, witness: Witness, at: Mono) -> bool {
        self.waiting.retain(|(_, then)| at.since(*then) <= WINDOW);
        // The oldest load that this source has not reported yet.
        match self.waiting.iter().position(|(by, _)| *by != witness) {
            Some(known) => {
                self.waiting.remove(known);
                false
            }
            None => {
                self.waiting.push((witness, at));
                true
            }
        }
    }
}

fn seconds() -> f64 {
    WINDOW.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::driver_module::Load;
    use proptest::prelude::*;

    fn loaded(inode: u64, unix_seconds: Option<f64>) -> ModuleState {
        let id = LoadId { boot: "b".into(), inode, made: None };
        ModuleState::Loaded(Load { id, live: true, version: "1".into(), unix_seconds })
    }

    fn at(seconds: u64) -> Mono {
        Mono(seconds * 1_000_000_000)
    }

    #[test]
    fn what_is_there_at_the_start_is_no_load_and_a_change_is_one() {
        let mut loads = Loads::default();
        assert!(!loads.folder(&loaded(1, Some(500.0)), at(10), 1010.0));
        assert_eq!(loads.unix_seconds, Some(500.0));
        assert!(!loads.folder(&loaded(1, Some(500.0)), at(20), 1020.0));
        assert!(loads.folder(&loaded(2, None), at(30), 1030.0), "exchanged between two looks");
        assert_eq!(loads.unix_seconds, Some(1030.0));
        assert!(!loads.folder(&ModuleState::Absent, at(40), 1040.0));
        assert_eq!(loads.unix_seconds, None);
        assert!(loads.folder(&loaded(3, Some(1045.0)), at(50), 1050.0));
        assert_eq!(loads.unix_seconds, Some(1045.0));
    }

    #[test]
    fn a_module_that_comes_late_is_a_load() {
        let mut loads = Loads::default();
        assert!(!loads.folder(&ModuleState::Unknown, at(1), 1001.0));
        assert!(!loads.folder(&ModuleState::Absent, at(2), 1002.0));
        assert!(loads.folder(&loaded(1, None), at(3), 1003.0));
    }

    #[test]
    fn two_witnesses_count_once_in_either_order_and_the_log_has_the_moment() {
        let mut loads = Loads::default();
        loads.folder(&loaded(1, None), at(1), 1001.0);
        assert!(loads.folder(&loaded(2, None), at(100), 1100.0));
        assert!(!loads.line(false, at(130), 1095.0), "the log is read late");
        assert_eq!(loads.unix_seconds, Some(1095.0));
        assert!(loads.line(false, at(300), 1300.0));
        assert!(!loads.folder(&loaded(3, None), at(309), 1309.0));
        assert_eq!(loads.unix_seconds, Some(1300.0));
        // Two loads in a row, each seen by both.
        assert!(loads.line(false, at(400), 1400.0));
        assert!(loads.line(false, at(405), 1405.0));
        assert!(!loads.folder(&loaded(4, None), at(409), 1409.0));
        assert!(!loads.folder(&loaded(5, None), at(410), 1410.0));
    }

    #[test]
    fn lines_from_before_count_nothing_but_give_the_time() {
        let mut loads = Loads::default();
        assert!(!loads.line(true, at(1), 700.0));
        assert!(!loads.line(true, at(1), 900.0));
        assert!(!loads.folder(&loaded(1, None), at(1), 1001.0));
        assert_eq!(loads.unix_seconds, Some(900.0));
        // Of a load that was over before the present one began.
        let mut loads = Loads::default();
        assert!(!loads.line(true, at(1), 500.0));
        assert!(!loads.folder(&loaded(1, Some(900.0)), at(1), 1001.0));
        assert_eq!(loads.unix_seconds, Some(900.0));
        let mut loads = Loads::default();
        assert!(!loads.folder(&ModuleState::Absent, at(1), 1000.0));
        assert!(!loads.line(true, at(1), 500.0));
        assert_eq!(loads.unix_seconds, None, "it was unloaded since");
    }

    proptest! {
        #[test]
        fn loads_far_apart_count_once_each(
            both in prop::collection::vec((any::<bool>(), any::<bool>(), 0u64..50), 1..20)
        ) {
            let mut loads = Loads::default();
            loads.folder(&loaded(0, None), at(0), 0.0);
            let (mut counted, mut happened) = (0, 0);
            for (n, (module, kernel, late)) in both.into_iter().enumerate() {
                let now = 1000 * (n as u64 + 1);
                happened += u32::from(module || kernel);
                if module {
                    counted += u32::from(loads.folder(&loaded(n as u64 + 1, None), at(now), now as f64));
                }
                if kernel {
                    counted += u32::from(loads.line(false, at(now + late), now as f64));
                }
            }
            prop_assert_eq!(counted, happened);
        }
    }
}
