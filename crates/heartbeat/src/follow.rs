//! Measurement of a known period.

use crate::correlation::{Course, level_and_swing};
use crate::fold::{Fold, PeriodFit};
use crate::search::PeriodFound;
use crate::thresholds::*;

/// Measurement of a known period over the last seconds.
#[derive(Clone, Copy)]
pub(crate) struct PeriodMeasure {
    pub seconds: f64,
    pub explained: f64,
    /// Standard deviation of the period's length as a share of the period, if requested.
    pub jitter: Option<f64>,
}

/// Returns the seconds of flat power after which work with this period counts as halted.
pub fn halt(seconds: f64) -> f64 {
    (HALT_PERIODS * seconds).max(HALT_SECONDS)
}

/// Returns the seconds over which a period is measured.
pub fn window(seconds: f64) -> f64 {
    (WINDOW_PERIODS * seconds).max(WINDOW_SECONDS)
}

/// Measures a known period in the last `watts`, or returns `None` if it is gone. `jitters`: also measures the jitter.
pub fn measure(watts: &[f32], before: &PeriodFound, jitters: bool) -> Option<PeriodMeasure> {
    let PeriodFound { seconds, scale, .. } = *before;
    let recent = watts.get(watts.len().checked_sub((halt(seconds) / TICK) as usize)?..)?;
    if level_and_swing(recent).1 < HALT_SHARE * level_and_swing(watts).1 {
        return None;
    }
    let unit = scale.seconds();
    let period = seconds / unit;
    let course = Course::new(watts, scale, recent.len().max(STRETCH));
    if (course.len() as f64) < (AGAIN_PERIODS * period).max(AGAIN_VALUES) {
        return None;
    }
    let fold = Fold::new(&course.values, period);
    let mut found = fold.best(period, 2);
    if found.explained < STEADY * before.explained {
        found = fold.best(period, (REACH / fold.grain(period)) as i32);
    }
    let PeriodFit { mut period, explained } = found;
    if explained < KEEP * before.explained {
        return None;
    }
    let longer = Fold::with_pieces(&course.values, period, LONGER_PIECES).best(period, LONGER_GRAINS);
    if longer.explained >= LONGER_SHARE * explained {
        period = longer.period;
    }
    Some(PeriodMeasure {
        seconds: period * unit,
        explained,
        jitter: jitters.then(|| jitter(&course.values, period)),
    })
}

/// Returns the standard deviation of the period's length, as a share of the period.
///
/// Every period is shifted against the mean waveform until both fit. Differences between neighbouring shifts are the
/// variation in length plus the error of the shifts. Over two periods, that error stays the same while the variance
/// of the length doubles. The variance of the length is therefore the difference between the two variances.
fn jitter(values: &[f32], period: f64) -> f64 {
    let at = |place: f64| -> Option<f32> {
        let (one, two) = (values.get(place as usize)?, values.get(place as usize + 1)?);
        Some(one + (two - one) * place.fract() as f32)
    };
    let points = period.round().clamp(1.0, 64.0) as u32;
    let place = |number: f64, point: u32| (number + f64::from(point) / f64::from(points)) * period;
    let count = (values.len() as f64 / period) as u32;
    let mean = |point: u32| -> f32 {
        (0..count).filter_map(|number| at(place(f64::from(number), point))).sum::<f32>() / count.max(1) as f32
    };
    let course: Vec<f32> = (0..points).map(mean).collect();
    let fit = |number: u32, by: f64| -> Option<f32> {
        let start = place(f64::from(number), 0) + by;
        let moved = |(point, mean): (u32, &f32)| Some(mean * at(start + place(0.0, point))?);
        if start < 0.0 { None } else { (0..points).zip(&course).map(moved).sum() }
    };
    let reach = (0.15 * period).clamp(1.0, 8.0) as i32;
    let moves: Vec<f64> = (0..count)
        .filter_map(|number| {
            let fits: Vec<f32> =
                (-reach - 1..=reach + 1).map_while(|by| fit(number, f64::from(by))).collect();
            let tops = (-reach..).zip(fits.windows(3)).filter_map(|(by, window)| match window {
                [left, top, right] if top > left && top >= right => {
                    Some((top, f64::from(by) + f64::from(0.5 * (left - right) / (left - 2.0 * top + right))))
                }
                _ => None,
            });
            tops.max_by(|one, two| one.0.total_cmp(two.0)).map(|(_, by)| by)
        })
        .collect();
    let variance = |apart: usize| {
        let lengths = moves.iter().zip(moves.iter().skip(apart)).map(|(one, two)| two - one);
        let (count, sum, squares) = lengths.fold((0.0, 0.0, 0.0), |(count, sum, squares), length| {
            (count + 1.0, sum + length, squares + length * length)
        });
        if count > 1.0 { squares / count - sum * sum / (count * count) } else { 0.0 }
    };
    (variance(2) - variance(1)).max(0.0).sqrt() / period
}
