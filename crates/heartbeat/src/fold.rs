//! Share of the power's variance that a period explains.

use crate::thresholds::*;

const BINS: usize = 64;
const LEAST: f64 = 5.0;

/// Values folded by a period, piece by piece, because the steps of a job do not keep the same length forever.
pub(crate) struct Fold<'a> {
    pieces: Vec<Piece<'a>>,
    length: usize,
    bins: u32,
}

/// Piece of the values, with their sum of squares split into the part that the mean explains and the rest.
struct Piece<'a> {
    values: &'a [f32],
    mean: f64,
    rest: f64,
}

/// Period in values, and the share of the variance that it explains.
#[derive(Clone, Copy)]
pub(crate) struct PeriodFit {
    pub period: f64,
    pub explained: f64,
}

impl<'a> Fold<'a> {
    /// Creates a fold for periods near `period`, in values.
    pub fn new(values: &'a [f32], period: f64) -> Fold<'a> {
        Fold::with_pieces(values, period, 1.0)
    }

    /// Creates a fold whose pieces are `times` as long.
    pub fn with_pieces(values: &'a [f32], period: f64, times: f64) -> Fold<'a> {
        let piece = ((PIECE_PERIODS * period).max(PIECE_VALUES) * times) as usize;
        let piece = piece.clamp(1, values.len().max(1));
        let length = (values.len() / (values.len() / piece).max(1)).max(1);
        let pieces = values.rchunks_exact(length).map(|values| {
            let (sum, squares) = values
                .iter()
                .fold((0.0, 0.0), |(sum, squares), value| (sum + value, squares + value * value));
            let mean = f64::from(sum * sum) / length as f64;
            Piece { values, mean, rest: f64::from(squares) - mean }
        });
        Fold { pieces: pieces.collect(), length, bins: period.round().clamp(LEAST, BINS as f64) as u32 }
    }

    /// Returns the relative step between two trial periods that is small enough to miss no maximum.
    pub fn grain(&self, period: f64) -> f64 {
        0.4 * (period / f64::from(self.bins)) / self.length as f64
    }

    /// Returns the share of the variance that a waveform of this period explains, as the mean of all pieces: 0 (or
    /// slightly less) to 1. The share that any waveform would explain by its degrees of freedom is subtracted.
    pub fn explained(&self, period: f64) -> f64 {
        let sum: f64 = self.pieces.iter().map(|piece| self.explained_of(piece, period)).sum();
        sum / self.pieces.len().max(1) as f64
    }

    fn explained_of(&self, Piece { values, mean, rest }: &Piece<'_>, period: f64) -> f64 {
        let mut course = [(0.0_f32, 0.0_f32); BINS];
        // The phase is a 32-bit integer that wraps after one period.
        let turn = (f64::from(u32::MAX) + 1.0) / period;
        // The phase starts in the middle of a bin, so that samples that divide the period evenly do not fall on the
        // edges.
        let (mut phase, step) = (u32::MAX / (2 * self.bins), turn as u32);
        for value in *values {
            let bin = (u64::from(phase) * u64::from(self.bins)) >> 32;
            if let Some((sum, count)) = course.get_mut(bin as usize % BINS) {
                *sum += value;
                *count += 1.0;
            }
            phase = phase.wrapping_add(step);
        }
        let length = values.len() as f64;
        let used = course.iter().filter(|(_, count)| *count > 0.0).count() as f64;
        if *rest <= 0.0 || length <= used + 1.0 {
            return 0.0;
        }
        let course: f32 = course.iter().map(|(sum, count)| sum * sum / count.max(1.0)).sum();
        1.0 - (1.0 - (f64::from(course) - mean) / rest) * (length - 1.0) / (length - used)
    }

    /// Returns the best period within `grains` steps of `period`.
    pub fn best(&self, period: f64, grains: i32) -> PeriodFit {
        let grain = self.grain(period);
        let at = |step: i32| period * (1.0 + grain * f64::from(step));
        let scores: Vec<f64> = (-grains - 1..=grains + 1).map(|step| self.explained(at(step))).collect();
        let inner = scores.windows(3).zip(-grains..);
        let Some((window, step)) = inner.max_by(|(a, _), (b, _)| middle(a).total_cmp(&middle(b))) else {
            return PeriodFit { period, explained: 0.0 };
        };
        let [left, height, right] = window else { return PeriodFit { period, explained: 0.0 } };
        let bend = left - 2.0 * height + right;
        let offset = if bend < 0.0 { (0.5 * (left - right) / bend).clamp(-0.5, 0.5) } else { 0.0 };
        PeriodFit { period: period * (1.0 + grain * (f64::from(step) + offset)), explained: *height }
    }
}

fn middle(window: &[f64]) -> f64 {
    window.get(1).copied().unwrap_or_default()
}
