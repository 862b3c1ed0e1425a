//! Autocorrelation of the power.

use crate::thresholds::*;

/// Power without its trend, at one scale.
pub(crate) struct Course {
    pub scale: SearchScale,
    pub values: Vec<f32>,
    /// Prefix sums of the squared values.
    energy: Vec<f64>,
    /// Mean square below which a piece counts as flat.
    floor: f64,
}

impl Course {
    /// Creates the course of `watts`, one value per tick, after the last flat stretch of `stretch` ticks. A stretch
    /// that is flat for longer than a period does not belong to the repetition.
    pub fn new(watts: &[f32], scale: SearchScale, stretch: usize) -> Course {
        let watts = active(watts, stretch);
        let floor = f64::from(flat_below(level_and_swing(watts).0));
        let smooth = match scale.smooth {
            0 | 1 => watts.to_vec(),
            width => running_mean(&running_mean(watts, width), width),
        };
        // The newest value must be kept.
        let first = smooth.len().saturating_sub(1) % scale.every;
        let thin: Vec<f32> = smooth.iter().skip(first).step_by(scale.every).copied().collect();
        let mut values = without_trend(&thin, scale.trend);
        limit(&mut values);
        let energy = prefix_sums(values.iter().map(|value| f64::from(value * value)));
        Course { scale, values, energy, floor: floor * floor }
    }

    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns the root mean square of the values, in watts.
    pub fn swing(&self) -> f64 {
        (self.energy(0, self.len()) / self.len().max(1) as f64).sqrt()
    }

    fn energy(&self, from: usize, to: usize) -> f64 {
        match (self.energy.get(from), self.energy.get(to)) {
            (Some(before), Some(after)) => after - before,
            _ => 0.0,
        }
    }

    /// Returns the mean correlation, -1 to 1, of the pieces with the values `lag` earlier.
    pub fn alike(&self, lag: usize) -> f32 {
        let (mut sum, mut pieces) = (0.0, 0_u32);
        let mut at = self.len();
        while at >= lag + self.scale.piece {
            at -= self.scale.piece;
            let end = at + self.scale.piece;
            let (Some(early), Some(late)) = (self.values.get(at - lag..end - lag), self.values.get(at..end))
            else {
                break;
            };
            let energies = self.energy(at - lag, end - lag) * self.energy(at, end);
            let floor = self.floor * self.scale.piece as f64;
            if energies > floor * floor {
                sum += dot(early, late) / energies.sqrt() as f32;
            }
            pieces += 1;
        }
        if pieces > 0 { sum / pieces as f32 } else { 0.0 }
    }
}

/// Returns the root mean square, in watts, below which power at this level counts as flat.
fn flat_below(level: f32) -> f32 {
    FLAT_WATTS.max(FLAT_SHARE * level)
}

/// Returns true if the power stays constant.
pub fn flat(watts: &[f32]) -> bool {
    let (level, swing) = level_and_swing(watts);
    swing < flat_below(level)
}

/// Returns the mean and the root mean square around it.
pub fn level_and_swing(watts: &[f32]) -> (f32, f32) {
    let count = watts.len().max(1) as f32;
    let level = watts.iter().sum::<f32>() / count;
    (level, (watts.iter().map(|watts| (watts - level) * (watts - level)).sum::<f32>() / count).sqrt())
}

/// Returns the values after the last flat stretch of `stretch` values.
fn active(watts: &[f32], stretch: usize) -> &[f32] {
    const HOP: usize = 10;
    let hops = stretch.div_ceil(HOP).max(1);
    // Sums of the values and of their squares per hop, newest hop first, relative to the newest value.
    let level = watts.last().copied().unwrap_or_default();
    let hop = |hop: &[f32]| {
        let off = hop.iter().map(|watts| f64::from(watts - level));
        off.fold((0.0, 0.0), |(sum, squares), off| (sum + off, squares + off * off))
    };
    let sums: Vec<(f64, f64)> = watts.rchunks_exact(HOP).map(hop).collect();
    let (mut sum, mut squares) = (0.0, 0.0);
    for (place, newer) in sums.iter().enumerate() {
        sum += newer.0;
        squares += newer.1;
        if let Some(oldest) = (place + 1).checked_sub(hops) {
            let count = (hops * HOP) as f64;
            let mean = sum / count;
            let flat = f64::from(flat_below(level + mean as f32));
            if squares / count - mean * mean < flat * flat {
                // The oldest hop is dropped too, because the active part may begin inside it.
                return watts.get(watts.len() - (oldest * HOP).saturating_sub(HOP)..).unwrap_or_default();
            }
            if let Some(gone) = sums.get(oldest) {
                sum -= gone.0;
                squares -= gone.1;
            }
        }
    }
    watts
}

/// Limits the values to a multiple of their mean absolute value, so that rare peaks do not dominate.
fn limit(values: &mut [f32]) {
    let mean = values.iter().map(|value| value.abs()).sum::<f32>() / values.len().max(1) as f32;
    let most = (LIMIT * mean).max(f32::MIN_POSITIVE);
    values.iter_mut().for_each(|value| *value = value.clamp(-most, most));
}

/// Returns the sums of the first 0, 1, 2, … values.
fn prefix_sums(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let sums = values.scan(0.0, |sum, value| {
        *sum += value;
        Some(*sum)
    });
    std::iter::once(0.0).chain(sums).collect()
}

/// Returns the mean of every run of `width` consecutive values.
fn running_mean(values: &[f32], width: usize) -> Vec<f32> {
    let sums = prefix_sums(values.iter().copied().map(f64::from));
    sums.iter().zip(sums.iter().skip(width)).map(|(from, to)| ((to - from) / width as f64) as f32).collect()
}

/// Subtracts from every value the mean of the `width` values around it.
fn without_trend(values: &[f32], width: usize) -> Vec<f32> {
    let sums = prefix_sums(values.iter().copied().map(f64::from));
    let half = width / 2;
    let flat = values.iter().enumerate().map(|(place, value)| {
        let (from, to) = (place.saturating_sub(half), (place + half + 1).min(values.len()));
        value - ((sums[to] - sums[from]) / (to - from) as f64) as f32
    });
    flat.collect()
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 8;
    let mut sums = [0.0_f32; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    ((a + e) + (b + f)) + ((c + g) + (d + h)) + rest
}
