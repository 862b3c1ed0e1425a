//! Thresholds of the step detection, with their reasons.

use std::ops::Range;

/// Grid spacing in seconds, which is the interval of the driver's power samples.
pub const TICK: f64 = 0.02;
/// Ticks kept: 164 s, or eight periods of the longest step.
pub const KEPT: usize = 8192;
/// Longest gap between samples, in seconds. The samples before a longer gap are dropped.
pub const GAP: f64 = 5.0;
/// Consecutive outdated samples after which the clock must have gone back.
pub const BEHIND: u32 = 50;
/// Time without a sample, in seconds, after which no period is reported.
pub const STALE: f64 = 5.0;
/// Search interval in seconds: at first, and after a period was followed or missing for [`SETTLED`] seconds.
pub const SEARCH_EVERY: f64 = 4.0;
pub const AUDIT_EVERY: f64 = 16.0;
pub const SETTLED: f64 = 60.0;
/// Consecutive searches that may miss a followed period before it is dropped.
pub const DOUBTS: u32 = 4;
/// Flat ticks after which the next work counts as new.
pub const RESTED: usize = 500;

/// Root mean square, in watts or as a share of the level, below which the power is flat. An idle H200 swings by 0.3
/// to 0.6 W, with a repeating pattern of its voltage regulator.
pub const FLAT_WATTS: f32 = 3.0;
pub const FLAT_SHARE: f32 = 0.01;
/// Flat ticks that separate earlier work from later work, even if periods are shorter.
pub const STRETCH: usize = 100;
pub const COARSE_STRETCH: usize = 1000;

/// Limit of the power, as a multiple of its mean distance from the trend.
pub const LIMIT: f32 = 8.0;

/// Resolution at which the power is analysed: every sample for short periods, smoothed power for long ones.
#[derive(Clone, Copy)]
pub(crate) struct SearchScale {
    /// Ticks between two values.
    pub every: usize,
    /// Ticks of the two running means that remove faster changes.
    pub smooth: usize,
    /// Values of the running mean that is subtracted as the trend.
    pub trend: usize,
    /// Values per piece. All pieces have the same weight, whatever their power.
    pub piece: usize,
    /// In values: the shortest period, the shortest one to look for without a longer one, and the longest.
    pub shortest: f64,
    pub first: f64,
    pub longest: f64,
    /// Ticks of history that a search uses.
    pub ticks: usize,
}

impl SearchScale {
    /// Returns the seconds between two values.
    pub fn seconds(&self) -> f64 {
        self.every as f64 * TICK
    }
}

/// Every sample, for periods of 0.08 to 4 s; and power without changes faster than 0.2 s, for periods of 2 to 20 s.
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

/// Multiples of a period at which the correlation is read to choose candidates, and the number of candidates.
pub const TEETH: i32 = 8;
pub const CANDIDATES: usize = 8;
/// Largest divisor of a candidate that is tried.
pub const DIVISORS: i32 = 20;
/// Largest multiple of a unit that is tried.
pub const MULTIPLES: i32 = 4;
/// Length of a folded piece, in periods and at least in values.
pub const PIECE_PERIODS: f64 = 8.0;
pub const PIECE_VALUES: f64 = 100.0;
/// Longer pieces that refine a period, if it still explains this share of the variance in them.
pub const LONGER_PIECES: f64 = 3.0;
pub const LONGER_SHARE: f64 = 0.7;
pub const LONGER_GRAINS: i32 = 10;

/// Minimum number of periods in a search.
pub const ENOUGH_PERIODS: f64 = 5.0;
/// Explained variance and correlation that suffice without other evidence.
pub const STRONG: f64 = 0.5;
pub const STRONG_ALIKE: f32 = 0.5;
/// Explained variance and correlation that suffice if tensor cores are busy and the period was repeated this often.
pub const MANY: f64 = 24.0;
pub const WEAK: f64 = 0.12;
pub const WEAK_ALIKE: f32 = 0.22;
/// The same for fewer repetitions that are more alike.
pub const WEAK_PERIODS: f64 = 6.0;
pub const FEW: f64 = 0.28;
pub const FEW_ALIKE: f32 = 0.6;
/// Minimum swing of a weak period, as a share of the power.
pub const WEAK_SHARE: f64 = 0.013;
/// Seconds after which a weak period is called a step: steps may be long and contain parts that repeat.
pub const SURE_SECONDS: f64 = 28.0;
/// Minimum history for a period, in seconds.
pub const SEEN_SECONDS: f64 = 11.0;
/// Minimum history for a weak period, in seconds.
pub const WEAK_SECONDS: f64 = 14.0;
/// A period is incomplete if its correlation is below this share of that at a longer lag.
pub const UNFINISHED: f32 = 0.6;
/// Tensor core activity above which a GPU trains or processes prompts. Generating tokens leaves them idle.
pub const TRAINS: f64 = 0.25;
/// Ratio of pipe activity to memory activity below which a GPU generates tokens, and the memory activity from which
/// on that ratio counts. Token generation reads each weight for only a few operations. Measured on an H200: 0.16 for
/// a server under steady load, 0.74 for a memory-bound training, 1.9 and more for other trainings.
pub const INTENSITY: f64 = 0.3;
pub const READS: f64 = 0.1;
/// Seconds for which a GPM window counts as evidence.
pub const WITNESSED: f64 = 30.0;
/// A part that explains less than this share of the whole's explained variance does not repeat by itself.
pub const PART: f64 = 0.45;
/// Share of the unexplained variance that the whole must explain to be the period, normally and with aliasing.
pub const MORE: f64 = 0.07;
pub const MORE_ALIASED: f64 = 0.65;
/// Variance that samples every 20 ms cannot explain in the sharpest waveform.
pub const SMEARED: f64 = 0.1;
/// Minimum correlation of a part, as a share of that of its whole.
pub const PART_ALIKE: f32 = 0.9;
/// Above this share of both measures, the difference is due to sampling.
pub const NEARLY: f64 = 0.95;
/// Below this share of the unexplained variance, the part certainly is the step.
pub const SAME: f64 = 0.05;
/// Distance of a period from a whole number of values, and number of values in a period above which aliasing does not
/// matter.
pub const ALIASED: f64 = 0.12;
pub const SHARP: f64 = 30.0;
/// Periods with fewer values are blurred by the sampling. A part of such a period is a unit if it is as correlated
/// and the whole explains no more.
pub const BLURRED: f64 = 8.0;
pub const BLURRED_ALIKE: f32 = 0.8;
pub const BLURRED_MORE: f64 = 0.3;
/// Minimum swing of a long period, as a share of that of a short one.
pub const WIDER: f64 = 0.2;
/// Range of periods with which the regulator of a GPU at its power limit oscillates, and the swing below which it is
/// the cause, as a share of the power.
pub const RIPPLE: Range<f64> = 0.85..1.2;
pub const RIPPLE_SHARE: f64 = 0.06;
/// The same for multiples of the regulator's period, which swing less.
pub const RIPPLES: f64 = 1.025;
pub const RIPPLES_SHARE: f64 = 0.025;
/// Tolerance within which two of three searches must agree.
pub const AGREE: f64 = 0.03;

/// Range in which a followed period is searched again, as a share of the last length.
pub const REACH: f64 = 0.08;
/// Shares of the earlier explained variance below which the period is searched in a wider range, and lost.
pub const STEADY: f64 = 0.8;
pub const KEEP: f64 = 0.4;
/// Minimum periods and values after a halt before a known period counts again.
pub const AGAIN_PERIODS: f64 = 3.0;
pub const AGAIN_VALUES: f64 = 40.0;
/// Periods and seconds of power that swings by less than this share of before, after which the work has halted.
pub const HALT_PERIODS: f64 = 1.5;
pub const HALT_SECONDS: f64 = 1.0;
pub const HALT_SHARE: f32 = 0.2;
/// Beats between two measurements of the jitter.
pub const JITTER_EVERY: u64 = 8;
/// Window over which a followed period is measured, in periods and at least in seconds.
pub const WINDOW_PERIODS: f64 = 6.0;
pub const WINDOW_SECONDS: f64 = 10.0;
/// Seconds for which a lost period can resume without a second search.
pub const REMEMBERED: f64 = 120.0;
/// Correlation at a long lag above which weak short periods are parts of a longer one.
pub const LONGER_ALIKE: f32 = 0.65;
