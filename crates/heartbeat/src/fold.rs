//! How much of the power a period explains.

use crate::thresholds::{PIECE_PERIODS, PIECE_VALUES};

const BINS: usize = 64;
const LEAST: f64 = 5.0;

/// A stretch of values laid over itself, period upon period.
#[derive(Clone, Copy, Debug)]
pub struct Fold<'a> {
    values: &'a [f32],
    /// Values of a piece: each is laid over itself alone, for the steps of a job are not evenly long for ever.
    piece: usize,
    bins: f64,
}

impl<'a> Fold<'a> {
    /// For periods near `period`, in values.
    pub fn new(values: &'a [f32], period: f64) -> Fold<'a> {
        let piece = ((PIECE_PERIODS * period) as usize).max(PIECE_VALUES).clamp(1, values.len().max(1));
        let pieces = (values.len() / piece).max(1);
        Fold { values, piece: (values.len() / pieces).max(1), bins: period.round().clamp(LEAST, BINS as f64) }
    }

    /// Step between two periods, as a share, between which nothing is missed.
    pub fn grain(&self, period: f64) -> f64 {
        0.4 * (period / self.bins) / self.piece as f64
    }

    /// The share of the variance that a course of this period explains, 0 (or a little less) to 1: the mean of the
    /// pieces. What a course explains by its mere freedom is taken away.
    pub fn explained(&self, period: f64) -> f64 {
        let pieces = self.values.rchunks_exact(self.piece);
        let count = pieces.len().max(1) as f64;
        pieces.map(|piece| self.explained_of(piece, period)).sum::<f64>() / count
    }

    fn explained_of(&self, piece: &[f32], period: f64) -> f64 {
        let (mut sums, mut counts) = ([0.0_f32; BINS], [0.0_f32; BINS]);
        let (bins, step) = (self.bins as f32, (self.bins / period) as f32);
        let (mut phase, mut sum, mut squares) = (0.0_f32, 0.0_f32, 0.0_f32);
        for value in piece {
            // `phase` is below `bins`, so the bin is there.
            if let (Some(bin), Some(count)) = (sums.get_mut(phase as usize), counts.get_mut(phase as usize)) {
                *bin += value;
                *count += 1.0;
            }
            sum += value;
            squares += value * value;
            phase += step;
            if phase >= bins {
                phase -= bins;
            }
        }
        let length = piece.len() as f64;
        let used = counts.iter().filter(|count| **count > 0.0).count() as f64;
        let mean = f64::from(sum * sum) / length;
        let all = f64::from(squares) - mean;
        let course: f32 = sums.iter().zip(&counts).map(|(sum, count)| sum * sum / count.max(1.0)).sum();
        if all <= 0.0 || length <= used + 1.0 {
            return 0.0;
        }
        1.0 - (1.0 - (f64::from(course) - mean) / all) * (length - 1.0) / (length - used)
    }

    /// The best period within `grains` steps of `period`, and what it explains.
    pub fn best(&self, period: f64, grains: i32) -> (f64, f64) {
        let grain = self.grain(period);
        let at = |step: i32| period * (1.0 + grain * f64::from(step));
        let scores: Vec<f64> = (-grains - 1..=grains + 1).map(|step| self.explained(at(step))).collect();
        let inner = scores.windows(3).zip(-grains..);
        let Some((window, step)) = inner.max_by(|(a, _), (b, _)| middle(a).total_cmp(&middle(b))) else {
            return (period, 0.0);
        };
        let [left, height, right] = window else { return (period, 0.0) };
        let bend = left - 2.0 * height + right;
        let offset = if bend < 0.0 { (0.5 * (left - right) / bend).clamp(-0.5, 0.5) } else { 0.0 };
        (period * (1.0 + grain * (f64::from(step) + offset)), *height)
    }
}

fn middle(window: &[f64]) -> f64 {
    window.get(1).copied().unwrap_or_default()
}
