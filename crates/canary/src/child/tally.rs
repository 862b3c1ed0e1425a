//! Wrong results, counted: those of the first try that had any, and how later tries went.

use crate::abi::{BadLanes, BadWords};
use crate::report::{Mismatch, Mismatches};

/// Wrong results that are told one by one.
pub const FIRST: usize = 16;
/// Tries made again after a wrong one.
pub const RERUNS: u32 = 3;

/// The results of all tries of a check.
#[derive(Debug, Default)]
pub struct Tally(Mismatches);

/// The wrong results of one try.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wrong {
    /// How many.
    pub count: u64,
    /// Of these, with all bits 0.
    pub zeroed: u64,
    /// The first of them.
    pub first: Vec<Mismatch>,
}

impl Wrong {
    /// Adds one.
    pub fn add(&mut self, mismatch: Mismatch) {
        self.count += 1;
        self.zeroed += u64::from(mismatch.got == 0);
        if self.first.len() < FIRST {
            self.first.push(mismatch);
        }
    }

    /// Those that a rate kernel noted.
    pub fn of_lanes(bad: &BadLanes, unit: &str) -> Wrong {
        let mut wrong = Wrong::default();
        for lane in bad.lanes.iter().take(bad.count as usize) {
            wrong.add(Mismatch {
                smid: Some(lane.smid),
                unit: unit.to_owned(),
                warp_lane: Some((lane.thread / 32, lane.thread % 32)),
                offset: None,
                expected: lane.expected,
                got: lane.got,
            });
        }
        wrong.count = bad.count.into();
        wrong
    }

    /// Those that `check` noted.
    pub fn of_words(bad: &BadWords, unit: &str) -> Wrong {
        let mut wrong = Wrong::default();
        for word in bad.words.iter().take(bad.count as usize) {
            wrong.add(Mismatch {
                unit: unit.to_owned(),
                offset: Some(word.offset),
                expected: word.expected,
                got: word.got,
                ..Mismatch::default()
            });
        }
        wrong.count = bad.count.into();
        wrong
    }
}

impl Tally {
    /// Adds a try of so many results. The first that is wrong is told; those after it are tries made again.
    pub fn add(&mut self, compared: u64, wrong: Wrong) {
        if self.0.wrong > 0 {
            self.again(&wrong);
            return;
        }
        self.0.compared += compared;
        if wrong.count > 0 {
            (self.0.wrong, self.0.zeroed, self.0.first) = (wrong.count, wrong.zeroed, wrong.first);
        }
    }

    fn again(&mut self, wrong: &Wrong) {
        self.0.reruns += 1;
        self.0.wrong_reruns += u32::from(wrong.count > 0);
    }

    /// Whether something was wrong and has not been tried again often enough.
    pub fn wants_more(&self) -> bool {
        self.0.wrong > 0 && self.0.reruns < RERUNS
    }

    /// Whether something was wrong.
    pub fn wrong(&self) -> bool {
        self.0.wrong > 0
    }

    /// All of it.
    pub fn told(self) -> Mismatches {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::BadLane;

    #[test]
    fn the_first_wrong_try_is_told_and_later_ones_are_counted() {
        let mut tally = Tally::default();
        tally.add(100, Wrong::default());
        assert!(!tally.wants_more());
        let mut wrong = Wrong::default();
        for got in 0..40 {
            wrong.add(Mismatch { expected: 9, got, ..Mismatch::default() });
        }
        tally.add(100, wrong.clone());
        tally.add(100, Wrong::default());
        tally.add(100, wrong);
        assert!(tally.wants_more());
        tally.add(100, Wrong::default());
        assert!(tally.wrong() && !tally.wants_more());
        let told = tally.told();
        assert_eq!((told.compared, told.wrong, told.zeroed, told.first.len()), (200, 40, 1, FIRST));
        assert_eq!((told.reruns, told.wrong_reruns), (3, 1));
    }

    #[test]
    fn bad_lanes_beyond_those_told_are_counted() {
        let mut bad = BadLanes { count: 1000, ..BadLanes::default() };
        bad.lanes[0] = BadLane { smid: 17, thread: 69, expected: 5, got: 0 };
        let others = BadLane { got: 1, ..bad.lanes[0] };
        bad.lanes[1..].fill(others);
        let wrong = Wrong::of_lanes(&bad, "fp32");
        assert_eq!((wrong.count, wrong.zeroed, wrong.first.len()), (1000, 1, FIRST));
        assert_eq!((wrong.first[0].smid, wrong.first[0].warp_lane), (Some(17), Some((2, 5))));
        assert_eq!(Wrong::of_words(&BadWords::default(), "address"), Wrong::default());
    }
}
