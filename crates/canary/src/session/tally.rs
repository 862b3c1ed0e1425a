//! Counts wrong results. The details are from the first attempt with any wrong result; later attempts are only counted.

use serde::{Deserialize, Serialize};

use crate::abi::{BadLanes, BadWords};

/// Wrong results of a check.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mismatches {
    pub compared: u64,
    /// Number of wrong results in the first wrong attempt.
    pub wrong: u64,
    /// Number of these with all bits 0.
    pub zeroed: u64,
    /// The first of the wrong results.
    pub first: Vec<Mismatch>,
    /// Number of attempts repeated because of a wrong result.
    pub reruns: u32,
    pub wrong_reruns: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mismatch {
    /// Multiprocessor that computed the result, if there is one.
    pub smid: Option<u32>,
    /// Unit of the multiprocessor, such as `fp32`. For copies it is the direction, and for memory the pattern.
    pub unit: String,
    /// Warp and lane within the block.
    pub warp_lane: Option<(u32, u32)>,
    /// Offset within the buffer, in bytes.
    pub offset: Option<u64>,
    pub expected: u64,
    pub got: u64,
}

/// Maximum number of wrong results that are listed individually.
pub const FIRST: usize = 16;
/// Number of attempts repeated after a wrong one.
pub const RERUNS: u32 = 3;

/// Wrong results of one attempt.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct WrongResults {
    pub count: u64,
    /// Number of these with all bits 0.
    pub zeroed: u64,
    /// The first of the wrong results.
    pub first: Vec<Mismatch>,
}

impl WrongResults {
    pub(crate) fn add(&mut self, mismatch: Mismatch) {
        self.count += 1;
        self.zeroed += u64::from(mismatch.got == 0);
        if self.first.len() < FIRST {
            self.first.push(mismatch);
        }
    }

    /// Converts the wrong results that a rate kernel recorded.
    pub fn of_lanes(bad: &BadLanes, unit: &str) -> WrongResults {
        let mut wrong = WrongResults::default();
        for lane in bad.lanes.iter().take(bad.count as usize) {
            wrong.add(Mismatch {
                smid: Some(lane.smid),
                unit: unit.to_owned(),
                warp_lane: Some((lane.thread / 32, lane.thread % 32)),
                expected: lane.expected,
                got: lane.got,
                ..Mismatch::default()
            });
        }
        wrong.count = bad.count.into();
        wrong
    }

    /// Converts the wrong results that `check` recorded.
    pub fn of_words(bad: &BadWords, unit: &str) -> WrongResults {
        let mut wrong = WrongResults::default();
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

impl Mismatches {
    /// Adds an attempt with this many results. The details of the first wrong attempt are reported, and later attempts
    /// count as repetitions.
    pub(crate) fn add(&mut self, compared: u64, wrong: WrongResults) {
        if self.wrong > 0 {
            self.reruns += 1;
            self.wrong_reruns += u32::from(wrong.count > 0);
            return;
        }
        self.compared += compared;
        if wrong.count > 0 {
            (self.wrong, self.zeroed, self.first) = (wrong.count, wrong.zeroed, wrong.first);
        }
    }

    /// Returns true if a result was wrong and was not repeated often enough yet.
    pub fn wants_more(&self) -> bool {
        self.wrong > 0 && self.reruns < RERUNS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::BadLane;

    #[test]
    fn the_first_wrong_try_is_reported_and_later_ones_are_counted() {
        let mut tally = Mismatches::default();
        tally.add(100, WrongResults::default());
        assert!(!tally.wants_more());
        let mut wrong = WrongResults::default();
        for got in 0..40 {
            wrong.add(Mismatch { expected: 9, got, ..Mismatch::default() });
        }
        tally.add(100, wrong.clone());
        tally.add(100, WrongResults::default());
        tally.add(100, wrong);
        assert!(tally.wants_more());
        tally.add(100, WrongResults::default());
        assert!(tally.wrong > 0 && !tally.wants_more());
        let read = tally;
        assert_eq!((read.compared, read.wrong, read.zeroed, read.first.len()), (200, 40, 1, FIRST));
        assert_eq!((read.reruns, read.wrong_reruns), (3, 1));
    }

    #[test]
    fn bad_lanes_beyond_those_listed_are_counted() {
        let mut bad = BadLanes { count: 1000, ..BadLanes::default() };
        bad.lanes[0] = BadLane { smid: 17, thread: 69, expected: 5, got: 0 };
        let others = BadLane { got: 1, ..bad.lanes[0] };
        bad.lanes[1..].fill(others);
        let wrong = WrongResults::of_lanes(&bad, "fp32");
        assert_eq!((wrong.count, wrong.zeroed, wrong.first.len()), (1000, 1, FIRST));
        assert_eq!((wrong.first[0].smid, wrong.first[0].warp_lane), (Some(17), Some((2, 5))));
        assert_eq!(WrongResults::of_words(&BadWords::default(), "address"), WrongResults::default());
    }
}
