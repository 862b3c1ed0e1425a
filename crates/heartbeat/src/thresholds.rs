//! Every threshold of the step, with its reason.

use std::ops::Range;

/// The grid: the driver's samples of power come 20 ms apart.
pub const TICK: f64 = 0.02;
/// Ticks kept: 164 s, eight periods of the longest step.
pub const KEPT: usize = 8192;
/// Samples further apart than this, in seconds: what was before says nothing of what comes.
pub const GAP: f64 = 5.0;
/// So many samples in a row that are older than what is kept: the clock went back.
pub const BEHIND: u32 = 50;
/// Without a sample for this long, in seconds, nothing is said.
pub const STALE: f64 = 5.0;
/// A search this often, in seconds; and once a period was followed, or none was found, for so many seconds.
pub const SEARCH_EVERY: f64 = 4.0;
pub const AUDIT_EVERY: f64 = 16.0;
pub const SETTLED: f64 = 60.0;
/// More searches in a row than this that do not find what is followed end it.
pub const DOUBTS: u32 = 4;
/// After so many flat ticks, what works next is new.
pub const RESTED: usize = 500;

/// Power that swings by less than this many watts (root mean square), or this share of its level, is flat. An idle
/// H200 swings by 0.3 to 0.6 W, with a pattern of the regulator's own that repeats.
pub const FLAT_WATTS: f32 = 3.0;
pub const FLAT_SHARE: f32 = 0.01;
/// A flat stretch of this many ticks parts what is before from what comes, also where periods are shorter.
pub const STRETCH: usize = 100;
pub const COARSE_STRETCH: usize = 1000;

/// Power is limited to this many times its mean distance from the trend.
pub const LIMIT: f32 = 8.0;

/// How closely the power is looked at: each sample for short periods, a smooth course for long ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SearchScale {
    /// Ticks between two values.
    pub every: usize,
    /// Ticks of the two running means that take away what is faster.
    pub smooth: usize,
    /// Values of the running mean that is taken away.
    pub trend: usize,
    /// Values that are compared as one piece: each piece has the same weight, whatever its power.
    pub piece: usize,
    /// In values: the shortest period, the shortest that is looked for without a longer one, and the longest.
    pub shortest: f64,
    pub first: f64,
    pub longest: f64,
    /// Ticks of the past that a search looks at.
    pub ticks: usize,
}

impl SearchScale {
    /// Seconds between two values.
    pub fn seconds(&self) -> f64 {
        self.every as f64 * TICK
    }
}

/// Every sample, for periods of 0.08 to 4 s; a course without what is faster than 0.2 s, for 2 to 20 s.
pub const FINE: SearchScale = SearchScale {
    every: 1,
    smooth: 1,
    trend: 75,
    piece: 64,
    shortest: 4.0,
    first: 4.0,
    longest: 200.0,
    ticks: 1500,
};
pub const COARSE: SearchScale = SearchScale {
    every: 6,
    smooth: 8,
    trend: 50,
    piece: 42,
    shortest: 6.0,
    first: 16.0,
    longest: 170.0,
    ticks: 8192,
};

/// Multiples of a period at which the power is compared to choose candidates, and how many are looked at closely.
pub const TEETH: i32 = 8;
pub const CANDIDATES: usize = 8;
/// A candidate's parts are tried up to this one.
pub const DIVISORS: i32 = 20;
/// A unit's multiples are tried up to this one.
pub const MULTIPLES: i32 = 4;
/// Periods, and values, of a piece that is laid over itself.
pub const PIECE_PERIODS: f64 = 8.0;
pub const PIECE_VALUES: f64 = 100.0;
/// A period is measured in pieces this many times as long, if it still explains this share there.
pub const LONGER_PIECES: f64 = 3.0;
pub const LONGER_SHARE: f64 = 0.7;
pub const LONGER_GRAINS: i32 = 10;

/// Periods that a search must have seen.
pub const ENOUGH_PERIODS: f64 = 5.0;
/// A period explains this share of the variance and is this much alike, whatever else is known.
pub const STRONG: f64 = 0.5;
pub const STRONG_ALIKE: f32 = 0.5;
/// Where tensor cores work, less does, if it was repeated many times.
pub const MANY: f64 = 24.0;
pub const WEAK: f64 = 0.12;
pub const WEAK_ALIKE: f32 = 0.22;
/// Or if it was repeated a few times, each much like the last.
pub const WEAK_PERIODS: f64 = 6.0;
pub const FEW: f64 = 0.28;
pub const FEW_ALIKE: f32 = 0.6;
/// What a weak period explains swings by this share of the power.
pub const WEAK_SHARE: f64 = 0.013;
/// A weak period is called a step after so many seconds: the steps may be long, with parts that repeat.
pub const SURE_SECONDS: f64 = 28.0;
/// Seconds in which a period must be seen.
pub const SEEN_SECONDS: f64 = 11.0;
/// Seconds in which a weak period must be seen.
pub const WEAK_SECONDS: f64 = 14.0;
/// At a longer lag the power is that much more alike: the period is not the whole one.
pub const UNFINISHED: f32 = 0.6;
/// Share of the time of tensor cores above which a GPU trains, or reads prompts: generating tokens leaves them idle.
pub const TRAINS: f64 = 0.25;
/// Activity of the pipes for that of the memory interface, below which tokens are generated, once the memory is read at all: each
/// weight is read for a few operations. 0.16 of a server at an even rate, 0.74 of a training that the memory bounds, 1.9 and
/// more of other trainings (H200).
pub const INTENSITY: f64 = 0.3;
pub const READS: f64 = 0.1;
/// Seconds for which what GPM saw counts.
pub const WITNESSED: f64 = 30.0;
/// A part of a period explains this share of what the whole does, or it is no unit of its own.
pub const PART: f64 = 0.45;
/// The whole is the period if it explains so much of what the part leaves open.
pub const MORE: f64 = 0.07;
pub const MORE_ALIASED: f64 = 0.65;
/// What samples 20 ms apart leave open of the sharpest course.
pub const SMEARED: f64 = 0.1;
/// A part is as much alike as this share of the whole.
pub const PART_ALIKE: f32 = 0.9;
/// Above this share of both, the samples alone make the difference.
pub const NEARLY: f64 = 0.95;
/// With less than this, it is the part without doubt.
pub const SAME: f64 = 0.05;
/// Values from a whole number of values; and values in a period, above which it makes no difference.
pub const ALIASED: f64 = 0.12;
pub const SHARP: f64 = 30.0;
/// With fewer values in a period, the samples tell less: what is as much alike is a unit, if the whole explains no more.
pub const BLURRED: f64 = 8.0;
pub const BLURRED_ALIKE: f32 = 0.8;
pub const BLURRED_MORE: f64 = 0.3;
/// A long period beside a short one swings by this share of it.
pub const WIDER: f64 = 0.2;
/// The regulator of a GPU at its power limit swings with a period in this range, by less than this share of the power.
pub const RIPPLE: Range<f64> = 0.85..1.2;
pub const RIPPLE_SHARE: f64 = 0.06;
/// Its multiples swing less.
pub const RIPPLES: f64 = 1.025;
pub const RIPPLES_SHARE: f64 = 0.025;
/// Two of three searches agree within this share.
pub const AGREE: f64 = 0.03;

/// A period that is followed is looked for within this share of the last one.
pub const REACH: f64 = 0.08;
/// It is looked for further away when it explains less than this share of what it did, and lost below the other.
pub const STEADY: f64 = 0.8;
pub const KEEP: f64 = 0.4;
/// Periods, and values, that a known period must be seen in after a halt.
pub const AGAIN_PERIODS: f64 = 3.0;
pub const AGAIN_VALUES: f64 = 40.0;
/// After this many periods and seconds of power that swings by less than this share of before, the work has halted.
pub const HALT_PERIODS: f64 = 1.5;
pub const HALT_SECONDS: f64 = 1.0;
pub const HALT_SHARE: f32 = 0.2;
/// Beats from one look at the jitter to the next.
pub const JITTER_EVERY: u64 = 8;
/// Periods, and seconds, of the window that a followed period is measured in.
pub const WINDOW_PERIODS: f64 = 6.0;
pub const WINDOW_SECONDS: f64 = 10.0;
/// A lost period is taken up again within this many seconds without a second search.
pub const REMEMBERED: f64 = 120.0;
/// Above this correlation at a long lag, what is weak and short is a part of something longer.
pub const LONGER_ALIKE: f32 = 0.65;
