//! How closely the power is looked at.

use crate::thresholds::TICK;

/// Each sample for short periods, a smooth course for long ones.
#[derive(Clone, Copy, Debug)]
pub struct Resolution {
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

impl Resolution {
    /// Seconds between two values.
    pub fn seconds(&self) -> f64 {
        self.every as f64 * TICK
    }
}

/// Every sample, for periods of 0.08 to 4 s; a course without what is faster than 0.2 s, for 2 to 20 s.
pub const FINE: Resolution = Resolution {
    every: 1,
    smooth: 1,
    trend: 75,
    piece: 64,
    shortest: 4.0,
    first: 4.0,
    longest: 200.0,
    ticks: 1500,
};
pub const COARSE: Resolution = Resolution {
    every: 6,
    smooth: 8,
    trend: 50,
    piece: 42,
    shortest: 6.0,
    first: 16.0,
    longest: 170.0,
    ticks: 8192,
};
