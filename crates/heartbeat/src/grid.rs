//! Power on an even grid.

use std::collections::VecDeque;

use crate::thresholds::{GAP, KEPT, TICK};

/// The last samples, interpolated at multiples of [`TICK`]. Unknown ones are NaN.
#[derive(Debug, Default)]
pub struct Grid {
    watts: VecDeque<f32>,
    /// The multiple of [`TICK`] of the newest value.
    tick: i64,
    last: Option<(f64, f64)>,
}

impl Grid {
    /// Takes one sample; what cannot be true is ignored.
    pub fn push(&mut self, at: f64, watts: f64) {
        if !at.is_finite() || at.abs() > 1e12 || !(0.0..=1e5).contains(&watts) {
            return;
        }
        let Some((before, from)) = self.last else { return self.begin(at, watts) };
        let step = at - before;
        if step.abs() > KEPT as f64 * TICK {
            return self.begin(at, watts);
        }
        if step <= 0.0 {
            return;
        }
        let tick = (at / TICK).floor() as i64;
        while self.tick < tick {
            self.tick += 1;
            let share = (self.tick as f64 * TICK - before) / step;
            let value = if step > GAP { f64::NAN } else { from + (watts - from) * share };
            if self.watts.len() == KEPT {
                self.watts.pop_front();
            }
            self.watts.push_back(value as f32);
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
