//! The owner's best hour.

/// The least hourly median of the step. Before the first hour ends, the median so far counts once there are two
/// minutes of beats, so that a slowdown within the first hour shows.
#[derive(Debug, Default)]
pub struct Best {
    hour: Option<Hour>,
    least: Option<f64>,
}

/// A histogram of the steps of one hour: bins of 0.5 %.
#[derive(Debug)]
struct Hour {
    began: f64,
    bins: Vec<u16>,
    beats: u32,
}

const HOUR: f64 = 3600.0;
/// Beats (one a second) without which an hour, or its beginning, says nothing.
const ENOUGH: u32 = 120;
/// Multiples of a step are exact up to this share, and what is so many times as long is other work.
const SAME: f64 = 0.03;
const MOST: f64 = 4.0;
/// From 50 ms to 40 s in bins of 0.5 %.
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

/// Whether a step is no slower or faster one, but a multiple or part of it: several steps that differ were found as
/// one, or a part of a step.
fn is_another_period(slowdown: f64) -> bool {
    let ratio = slowdown.max(1.0 / slowdown);
    ratio > 1.5 && (ratio / ratio.round() - 1.0).abs() <= SAME || ratio >= MOST
}

impl Best {
    /// A step of `step` seconds at `now`; called once a second while there is one.
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

    /// The step now over the best one: 1.05 is 5 % longer. None before two minutes of beats.
    pub fn slowdown(&self, step: f64) -> Option<f64> {
        let best = self.least.or_else(|| self.hour.as_ref()?.median())?;
        Some(step / best)
    }
}
