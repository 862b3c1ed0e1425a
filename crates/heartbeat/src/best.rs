//! Slowdown of a step against the owner's best hour.

/// Lowest hourly median of the step. Before the first hour ends, the median so far counts after two minutes of beats,
/// so that a slowdown within the first hour shows.
#[derive(Default)]
pub struct Best {
    hour: Option<Hour>,
    least: Option<f64>,
}

/// Histogram of the steps of one hour, in bins of 0.5 %.
struct Hour {
    began: f64,
    bins: Vec<u16>,
    beats: u32,
}

const HOUR: f64 = 3600.0;
/// Minimum number of beats, one a second, for a median.
const ENOUGH: u32 = 120;
/// Tolerance for multiples of a step, and the multiple from which on a step counts as other work.
const SAME: f64 = 0.03;
const MOST: f64 = 4.0;
/// Bins of 0.5 %, from 50 ms to 40 s.
const SHORTEST: f64 = 0.05;
const WIDTH: f64 = 1.005;
const BINS: usize = 1341;

impl Hour {
    fn new(began: f64) -> Hour {
        Hour { began, bins: vec![0; BINS], beats: 0 }
    }

    fn median(&self) -> Option<f64> {
        if self.beats < ENOUGH {
            return None;
        }
        let mut seen = 0;
        let bin = self.bins.iter().position(|beats| {
            seen += u32::from(*beats);
            seen * 2 >= self.beats
        })?;
        Some(SHORTEST * WIDTH.powf(bin as f64 + 0.5))
    }
}

/// Returns true if a step is not merely slower or faster, but a multiple or a part of the best one: several unequal
/// steps were found as one, or only part of a step.
fn is_another_period(slowdown: f64) -> bool {
    let ratio = slowdown.max(1.0 / slowdown);
    ratio > 1.5 && (ratio / ratio.round() - 1.0).abs() <= SAME || ratio >= MOST
}

impl Best {
    /// Records a step of `step` seconds at `now`. Called once a second while a step is known.
    pub fn note(&mut self, now: f64, step: f64) {
        let bin = (step / SHORTEST).ln() / WIDTH.ln();
        if !now.is_finite() || !(0.0..BINS as f64).contains(&bin) {
            return;
        }
        if self.slowdown(step).is_some_and(is_another_period) {
            *self = Best::default();
        }
        let hour = self.hour.get_or_insert_with(|| Hour::new(now));
        if !(0.0..HOUR).contains(&(now - hour.began)) {
            self.least = hour.median().into_iter().chain(self.least).reduce(f64::min);
            *hour = Hour::new(now);
        }
        if let Some(beats) = hour.bins.get_mut(bin as usize) {
            *beats = beats.saturating_add(1);
            hour.beats += 1;
        }
    }

    /// Returns the current step divided by the best one (1.05 is 5 % longer), or `None` before two minutes of beats.
    pub fn slowdown(&self, step: f64) -> Option<f64> {
        let best = self.least.or_else(|| self.hour.as_ref()?.median())?;
        Some(step / best)
    }
}
