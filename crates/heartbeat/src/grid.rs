//! Power on an even grid.

use crate::thresholds::*;
use std::collections::VecDeque;

/// The last samples, interpolated at multiples of [`TICK`].
#[derive(Debug, Default)]
pub(crate) struct PowerGrid {
    watts: VecDeque<f32>,
    /// The multiple of [`TICK`] of the newest value.
    tick: i64,
    last: Option<(f64, f64)>,
}

impl PowerGrid {
    /// Takes one sample: seconds, watts. What cannot be true, and what is older than the last, is ignored.
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

    /// When the newest sample ended.
    pub fn newest(&self) -> Option<f64> {
        self.last.map(|(at, _)| at)
    }

    /// The last `ticks` values or fewer, oldest first.
    pub fn last(&self, ticks: usize) -> Vec<f32> {
        self.watts.iter().skip(self.watts.len().saturating_sub(ticks)).copied().collect()
    }
}
