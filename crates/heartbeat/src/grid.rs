//! Power on a regular time grid.

use crate::thresholds::*;
use std::collections::VecDeque;

/// Last samples, interpolated at multiples of [`TICK`].
#[derive(Default)]
pub(crate) struct PowerGrid {
    watts: VecDeque<f32>,
    /// Number of the newest value: its time divided by [`TICK`].
    tick: i64,
    last: Option<(f64, f64)>,
}

impl PowerGrid {
    /// Adds a sample. Impossible values and samples older than the last one are ignored.
    pub fn push(&mut self, at: f64, watts: f64) {
        if !(at.abs() < 1e12 && (0.0..=1e5).contains(&watts)) {
            return;
        }
        let Some((before, from)) = self.last else { return self.begin(at, watts) };
        let step = at - before;
        if step > GAP {
            return self.begin(at, watts);
        }
        if step <= 0.0 {
            return;
        }
        let tick = (at / TICK).floor() as i64;
        while self.tick < tick {
            self.tick += 1;
            let share = (self.tick as f64 * TICK - before) / step;
            if self.watts.len() == KEPT {
                self.watts.pop_front();
            }
            self.watts.push_back((from + (watts - from) * share) as f32);
        }
        self.last = Some((at, watts));
    }

    fn begin(&mut self, at: f64, watts: f64) {
        self.watts.clear();
        self.tick = (at / TICK).floor() as i64;
        self.last = Some((at, watts));
    }

    /// Returns the time at which the newest sample ended.
    pub fn newest(&self) -> Option<f64> {
        self.last.map(|(at, _)| at)
    }

    /// Returns up to `ticks` of the last values, oldest first.
    pub fn last(&self, ticks: usize) -> Vec<f32> {
        self.watts.iter().skip(self.watts.len().saturating_sub(ticks)).copied().collect()
    }
}
