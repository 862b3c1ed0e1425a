//! A known period, measured again.

use crate::correlation::{Course, Scale, level_and_swing};
use crate::fold::Fold;
use crate::thresholds::{
    HALT_PERIODS, HALT_SECONDS, HALT_SHARE, KEEP, REACH, STEADY, STRETCH, TICK, WINDOW_PERIODS,
    WINDOW_SECONDS,
};

/// What the last seconds say of a known period.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    pub seconds: f64,
    pub explained: f64,
}

/// The seconds of flat power after which work with this period has halted.
pub fn halt(seconds: f64) -> f64 {
    (HALT_PERIODS * seconds).max(HALT_SECONDS)
}

/// The seconds that a period is measured in.
pub fn window(seconds: f64) -> f64 {
    (WINDOW_PERIODS * seconds).max(WINDOW_SECONDS)
}

/// Measures a period of about `seconds`, which explained so much of the variance before, in the last `watts`; none
/// where it is not there.
pub fn measure(watts: &[f32], seconds: f64, before: f64, scale: Scale) -> Option<Measure> {
    let recent = watts.get(watts.len().checked_sub((halt(seconds) / TICK) as usize)?..)?;
    if level_and_swing(recent).1 < HALT_SHARE * level_and_swing(watts).1 {
        return None;
    }
    let unit = scale.seconds();
    let period = seconds / unit;
    let course = Course::new(watts, scale, recent.len().max(STRETCH));
    let fold = Fold::new(course.values(), period);
    let (mut found, mut explained) = fold.best(period, 2);
    if explained < STEADY * before {
        (found, explained) = fold.best(period, (REACH / fold.grain(period)) as i32);
    }
    (explained >= (KEEP * before)).then_some(Measure { seconds: found * unit, explained })
}
