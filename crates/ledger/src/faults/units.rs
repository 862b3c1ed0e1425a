//! Units of a GPU with faults of programs (Xid 13, 31). The same single unit in several programs points to the
//! hardware, different units point to a program.

use std::collections::VecDeque;

/// Maximum number of crashes kept per GPU.
const MOST: usize = 256;
/// Interval within which lines of one process belong to the same crash.
const BURST_SECONDS: f64 = 180.0;
/// Time for which a crash is kept.
const KEEP_SECONDS: f64 = 7.0 * 86_400.0;

/// Crashes of programs on one GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Units {
    crashes: VecDeque<Crash>,
}

/// Crash of one process, with a line for each multiprocessor that it used.
#[derive(Clone, Debug, PartialEq)]
struct Crash {
    code: u32,
    pid: Option<u32>,
    /// Unit in the first line.
    unit: String,
    /// Whether other lines name other units; then none is suspect.
    several: bool,
    last: f64,
}

impl Units {
    /// Records a fault. Returns whether an earlier crash of a single unit had the same unit, or `None` if there was
    /// none, if this crash has several units, or if all programs share its unit.
    pub fn record(&mut self, code: u32, unit: &str, pid: Option<u32>, unix_seconds: f64) -> Option<bool> {
        self.crashes.retain(|crash| unix_seconds - crash.last <= KEEP_SECONDS);
        let unit = without_sm(unit);
        if !is_one_of_many(unit) {
            return None;
        }
        let of_this = |crash: &Crash| {
            (crash.code, crash.pid) == (code, pid) && (unix_seconds - crash.last).abs() < BURST_SECONDS
        };
        let at = self.crashes.iter().position(of_this).unwrap_or_else(|| {
            if self.crashes.len() >= MOST {
                self.crashes.pop_front();
            }
            let unit = unit.to_owned();
            self.crashes.push_back(Crash { code, pid, unit, several: false, last: unix_seconds });
            self.crashes.len() - 1
        });
        let this = self.crashes.get_mut(at)?;
        this.last = this.last.max(unix_seconds);
        this.several |= this.unit != unit;
        if this.several {
            return None;
        }
        let others = self.crashes.iter().enumerate().filter(|(other, _)| *other != at);
        let single = others.filter(|(_, crash)| crash.code == code && !crash.several);
        single.map(|(_, crash)| crash.unit == unit).reduce(|one, other| one || other)
    }
}

/// Returns true for a TPC or a GPC client, which programs rarely share. They do share the copy engines.
fn is_one_of_many(unit: &str) -> bool {
    unit.contains(" TPC ") || unit.contains(" GPCCLIENT")
}

/// Removes the multiprocessor, because those of a TPC share the parts that fail. The vendor compares GPC and TPC.
fn without_sm(unit: &str) -> &str {
    unit.split_once(" SM ").map_or(unit, |(unit, _)| unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_unit_in_another_process_or_later_is_a_repetition() {
        let mut units = Units::default();
        let mut record = |unit, pid, at| units.record(13, unit, Some(pid), at);
        assert_eq!(record("GPC 0 TPC 1 SM 0", 5, 0.0), None);
        assert_eq!(record("GPC 0 TPC 1 SM 1", 5, 1.0), None, "of one crash");
        assert_eq!(record("GPC 0 TPC 1 SM 1", 6, 2.0), Some(true));
        assert_eq!(record("GPC 4 TPC 0 SM 0", 7, 3.0), Some(false));
        assert_eq!(record("GPC 4 TPC 0 SM 0", 7, 300.0), Some(true), "the same process again");
        assert_eq!(units.record(31, "GRAPHICS GPC4 GPCCLIENT_T1_0", Some(7), 300.0), None, "another code");
        assert_eq!(units.record(13, "GPC 4 TPC 0", Some(8), 10.0 * 86_400.0), None, "long ago");
    }

    #[test]
    fn a_crash_on_several_multiprocessors_and_a_shared_unit_say_nothing() {
        let mut units = Units::default();
        let mut record = |code, unit: &str, pid| units.record(code, unit, Some(pid), 0.0);
        for tpc in 0..4 {
            assert_eq!(record(13, &format!("GPC 0 TPC {tpc} SM 0"), 1), None, "the first crash");
        }
        for tpc in 0..6 {
            assert_eq!(record(13, &format!("GPC 0 TPC {tpc} SM 1"), 2), None, "the second one, unit {tpc}");
        }
        assert_eq!(record(13, "GPC 0 TPC 2 SM 0", 3), None, "alone, and one of several before");
        assert_eq!(record(13, "GPC 0 TPC 2 SM 0", 4), Some(true));
        assert_eq!(record(13, "GPC 1 TPC 2 SM 0", 4), None, "one of several now");
        for pid in 1..4 {
            assert_eq!(record(31, "CE0 HUBCLIENT_CE0", pid), None, "shared by all copies");
            assert_eq!(record(13, "GPC 3", 10 + pid), None, "shared by the group");
        }
        assert_eq!(record(31, "GRAPHICS GPC2 GPCCLIENT_T1_7", 1), None);
        assert_eq!(record(31, "GRAPHICS GPC2 GPCCLIENT_T1_7", 2), Some(true));
    }

    #[test]
    fn a_flood_takes_bounded_memory() {
        let mut units = Units::default();
        for pid in 0..10_000 {
            units.record(13, "GPC 0 TPC 0", Some(pid), 0.0);
        }
        assert_eq!(units.crashes.len(), MOST);
    }
}
