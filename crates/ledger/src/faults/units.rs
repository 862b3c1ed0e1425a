//! Which units of a GPU had faults of programs (Xid 13, 31): the same unit under several programs points to the
//! hardware, different units to a program.

use std::collections::VecDeque;

/// Faults remembered of a GPU; a crash brings one a multiprocessor.
const MOST: usize = 256;
/// Lines of one process that come sooner than this after each other are of one crash.
const BURST_SECONDS: f64 = 180.0;
/// How long a fault is remembered.
const KEEP_SECONDS: f64 = 7.0 * 86_400.0;

/// Faults of one GPU, by unit and crash.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Units {
    faults: VecDeque<UnitFault>,
}

#[derive(Clone, Debug, PartialEq)]
struct UnitFault {
    code: u32,
    unit: String,
    pid: Option<u32>,
    last: f64,
}

impl Units {
    /// Takes in a fault. Gives whether an earlier crash had it in the same unit; `None` if there was none.
    pub fn take(&mut self, code: u32, unit: &str, pid: Option<u32>, unix_seconds: f64) -> Option<bool> {
        self.faults.retain(|fault| unix_seconds - fault.last <= KEEP_SECONDS);
        let unit = without_sm(unit);
        let mut before = None;
        let mut known = None;
        for (at, fault) in self.faults.iter().enumerate().filter(|(_, fault)| fault.code == code) {
            if fault.pid == pid && (unix_seconds - fault.last).abs() < BURST_SECONDS {
                known = known.or((fault.unit == unit).then_some(at));
            } else {
                before = Some(before == Some(true) || fault.unit == unit);
            }
        }
        match known.and_then(|at| self.faults.get_mut(at)) {
            Some(fault) => fault.last = fault.last.max(unix_seconds),
            None => {
                if self.faults.len() >= MOST {
                    self.faults.pop_front();
                }
                self.faults.push_back(UnitFault { code, unit: unit.to_owned(), pid, last: unix_seconds });
            }
        }
        before
    }
}

/// The multiprocessors of a TPC share what fails: the vendor compares GPC and TPC.
fn without_sm(unit: &str) -> &str {
    unit.split_once(" SM ").map_or(unit, |(unit, _)| unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_unit_in_another_process_or_later_is_a_repetition() {
        let mut units = Units::default();
        let mut take = |unit, pid, at| units.take(13, unit, Some(pid), at);
        assert_eq!(take("GPC 0 TPC 1 SM 0", 5, 0.0), None);
        assert_eq!(take("GPC 3 TPC 1 SM 0", 5, 1.0), None, "of one crash");
        assert_eq!(take("GPC 0 TPC 1 SM 1", 6, 2.0), Some(true));
        assert_eq!(take("GPC 4 TPC 0 SM 0", 7, 3.0), Some(false));
        assert_eq!(take("GPC 4 TPC 0 SM 0", 7, 300.0), Some(true), "the same process again");
        assert_eq!(units.take(31, "GPC 4 TPC 0", Some(7), 300.0), None, "another code");
        assert_eq!(units.take(13, "GPC 4 TPC 0", Some(8), 10.0 * 86_400.0), None, "long ago");
    }

    #[test]
    fn a_flood_takes_bounded_memory() {
        let mut units = Units::default();
        for pid in 0..10_000 {
            units.take(13, "GPC 0 TPC 0", Some(pid), 0.0);
        }
        assert_eq!(units.faults.len(), MOST);
    }
}
