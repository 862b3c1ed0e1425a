//! Search for a period in the last seconds.

use crate::PeriodKind;
use crate::correlation::Course;
use crate::fold::{Fold, PeriodFit};
use crate::thresholds::*;

#[derive(Clone, Copy)]
pub(crate) struct PeriodFound {
    pub seconds: f64,
    /// Share of the variance that the period explains.
    pub explained: f64,
    pub kind: PeriodKind,
    pub scale: SearchScale,
}

/// Search result at one scale.
#[derive(Clone, Copy)]
struct SearchLook {
    found: PeriodFound,
    /// Root mean square, in watts, of the part that the period explains.
    swing: f64,
}

/// Finds the period of the last `watts`. Weak periods count only if there is other evidence that the GPU trains.
pub fn search(watts: &[f32], trains: bool) -> Option<PeriodFound> {
    let fine = Sight::new(watts, FINE, STRETCH).and_then(|sight| sight.look(trains));
    let wide = Sight::new(watts, COARSE, STRETCH);
    // A flat stretch is either the time before the work or a part of a long step.
    let coarse = wide
        .as_ref()
        .and_then(|sight| sight.look(trains))
        .or_else(|| Sight::new(watts, COARSE, COARSE_STRETCH)?.look(trains));
    // A long period makes the power similar at long lags. A weak short period is then a part of it.
    let part = wide.is_some_and(|sight| sight.highest() > LONGER_ALIKE);
    let fine = fine.filter(|look| look.found.explained >= STRONG || look.long() || !part);
    let (Some(fine), Some(coarse)) = (fine, coarse) else { return fine.or(coarse).map(|look| look.found) };
    let times = coarse.found.seconds / fine.found.seconds;
    let multiple = times < f64::from(DIVISORS) && (times - times.round()).abs() < 0.02 * times;
    let longer = times > 1.5 && !multiple && coarse.swing > WIDER * fine.swing;
    if !longer || coarse.found.explained < STRONG {
        return Some(fine.found);
    }
    // A short and a long period repeat: parts of a step, or steps between evaluations.
    let found = if fine.found.explained < STRONG { coarse.found } else { fine.found };
    Some(PeriodFound { kind: PeriodKind::SmallestUnit, ..found })
}

/// Returns true if a period still explains at least half as much over the whole span of a search.
pub fn explains(watts: &[f32], found: &PeriodFound) -> bool {
    let Some(sight) = Sight::new(watts, found.scale, STRETCH) else { return false };
    let period = found.seconds / found.scale.seconds();
    Fold::new(&sight.course.values, period).best(period, 2).explained >= 0.5 * found.explained
}

impl SearchLook {
    /// Returns true if the coarse scale would find the period too.
    fn long(&self) -> bool {
        self.found.seconds >= COARSE.first * COARSE.seconds()
    }
}

/// Power at one scale, and its autocorrelation at each lag.
struct Sight {
    course: Course,
    heights: Vec<f32>,
    level: f64,
}

impl Sight {
    fn new(watts: &[f32], scale: SearchScale, stretch: usize) -> Option<Sight> {
        let watts = watts.get(watts.len().saturating_sub(scale.ticks)..)?;
        let course = Course::new(watts, scale, stretch);
        if (course.len() as f64) * scale.seconds() < SEEN_SECONDS {
            return None;
        }
        let heights = (0..course.len() / 2).map(|lag| course.alike(lag)).collect();
        let level = f64::from(watts.iter().sum::<f32>() / watts.len().max(1) as f32);
        Some(Sight { course, heights, level })
    }

    /// Returns the highest correlation among lags that are measured over several pieces.
    fn highest(&self) -> f32 {
        let scale = self.course.scale;
        let lags = self.course.len().saturating_sub(2 * scale.piece);
        let (first, last) = (scale.first as usize, lags.min(self.heights.len()));
        self.heights.get(first..last).unwrap_or_default().iter().fold(0.0, |a: f32, b| a.max(*b))
    }

    fn look(&self, trains: bool) -> Option<SearchLook> {
        let (course, heights, level) = (&self.course, self.heights.as_slice(), self.level);
        let scale = course.scale;
        let values = &course.values;
        let seen = values.len() as f64 * scale.seconds();
        let longest = scale.longest.min(values.len() as f64 / ENOUGH_PERIODS);
        let more = heights.iter().skip(longest as usize).fold(0.0, |a: f32, b| a.max(*b));
        let mut wholes: Vec<PeriodFit> = candidates(heights, scale.first, longest)
            .into_iter()
            .map(|period| Fold::new(values, period).best(period, 2))
            .collect();
        wholes.sort_by(|a, b| b.explained.total_cmp(&a.explained));
        for whole in wholes {
            let RepeatedUnit { fit, mut kind } = unit(values, heights, whole, scale, longest);
            let PeriodFit { period, explained } = fit;
            let seconds = period * scale.seconds();
            let alike = near(heights, period);
            // A longer period is visible but has not been repeated often enough yet.
            if alike < UNFINISHED * more || period < scale.first {
                continue;
            }
            let swing = course.swing() * explained.max(0.0).sqrt();
            let ripples = seconds / RIPPLES;
            let multiple = ripples < 5.0 && (ripples - ripples.round()).abs() < 0.03 * ripples;
            if RIPPLE.contains(&seconds) && swing < RIPPLE_SHARE * level
                || multiple && swing < RIPPLES_SHARE * level
            {
                continue;
            }
            let periods = seen / seconds;
            let much = if periods < MANY { FEW_ALIKE } else { STRONG_ALIKE };
            if explained < STRONG || alike < much {
                let (least, least_alike) = if periods < MANY { (FEW, FEW_ALIKE) } else { (WEAK, WEAK_ALIKE) };
                let enough = explained >= least && alike >= least_alike && periods >= WEAK_PERIODS;
                if !(trains && enough && seen >= WEAK_SECONDS && swing >= WEAK_SHARE * level) {
                    return None;
                }
                if seen < SURE_SECONDS {
                    kind = PeriodKind::SmallestUnit;
                }
            }
            return Some(SearchLook { found: PeriodFound { seconds, explained, kind, scale }, swing });
        }
        None
    }
}

/// Period, and the mean correlation at its multiples.
#[derive(Clone, Copy)]
struct Candidate {
    period: f64,
    height: f32,
}

/// Returns the periods with the highest correlation at their multiples.
fn candidates(heights: &[f32], from: f64, longest: f64) -> Vec<f64> {
    let grid: Vec<Candidate> = std::iter::successors(Some(from), |period| Some(period * 1.003))
        .take_while(|period| *period <= longest)
        .map(|period| Candidate { period, height: comb(heights, period, f64::from(TEETH) * period) })
        .collect();
    let mut peaks: Vec<Candidate> = grid
        .windows(3)
        .filter_map(|window| match window {
            [left, top, right] if top.height > left.height && top.height >= right.height => Some(*top),
            _ => None,
        })
        .collect();
    peaks.sort_by(|a, b| b.height.total_cmp(&a.height));
    peaks.into_iter().take(CANDIDATES).map(|peak| peak.period).collect()
}

/// Returns the interpolated correlation at a lag.
fn between(heights: &[f32], lag: f64) -> Option<f32> {
    let (below, share) = (lag as usize, lag.fract() as f32);
    let (one, two) = (heights.get(below)?, heights.get(below + 1)?);
    Some(one + (two - one) * share)
}

/// Returns the mean correlation at the multiples of a period, up to a lag.
fn comb(heights: &[f32], period: f64, reach: f64) -> f32 {
    let teeth =
        (1..=(reach / period).round() as u32).map_while(|tooth| between(heights, period * f64::from(tooth)));
    let (sum, count) = teeth.fold((0.0, 0.0_f32), |(sum, count), height| (sum + height, count + 1.0));
    sum / count.max(1.0)
}

/// Returns the correlation near a lag.
fn near(heights: &[f32], lag: f64) -> f32 {
    let around = heights.iter().skip(lag as usize).take(2);
    around.fold(0.0, |highest, height| highest.max(*height))
}

/// Unit that repeats within a period, and whether it is certainly the step.
#[derive(Clone, Copy)]
struct RepeatedUnit {
    fit: PeriodFit,
    kind: PeriodKind,
}

/// Relation of a part of a period to the whole.
#[derive(Clone, Copy)]
struct Relation {
    /// Share of the variance unexplained by the part that the whole explains.
    more: f64,
    /// Whether the part is as good as the whole.
    as_good: bool,
}

/// Compares a part with its whole, or returns `None` if the part does not repeat by itself.
fn relate(heights: &[f32], part: PeriodFit, whole: PeriodFit) -> Option<Relation> {
    if part.explained < PART * whole.explained {
        return None;
    }
    let more = (whole.explained - part.explained) / (1.0 - part.explained + SMEARED);
    // The length of the whole is known more precisely than that of its part.
    let exact = whole.period / (whole.period / part.period).round().max(1.0);
    // If the samples hit the whole at the same phase every time but the part at varying phases, the whole seems
    // better than it is.
    let off = |period: f64| (period - period.round()).abs();
    let aliased = exact < SHARP
        && off(exact) > 0.5 * ALIASED
        && off(whole.period) < ALIASED.min(0.7 * off(exact))
        && near(heights, exact) > 0.5 * near(heights, whole.period);
    let reach = f64::from(TEETH) * whole.period;
    let alike = comb(heights, exact, reach) / comb(heights, whole.period, reach).max(f32::MIN_POSITIVE);
    let nearly = alike >= NEARLY as f32 && part.explained >= NEARLY * whole.explained;
    let blurred = part.period < BLURRED && alike >= BLURRED_ALIKE && more < BLURRED_MORE;
    if aliased && more < MORE_ALIASED || nearly {
        return Some(Relation { more: 0.0, as_good: true });
    }
    Some(Relation { more, as_good: blurred || alike >= PART_ALIKE && more < MORE })
}

/// Returns the smallest part of the period that explains as much, or the smallest multiple that explains more.
fn unit(values: &[f32], heights: &[f32], whole: PeriodFit, scale: SearchScale, longest: f64) -> RepeatedUnit {
    let (mut divided_by, mut best) = (1, RepeatedUnit { fit: whole, kind: PeriodKind::Step });
    let fold = |guess: f64, least: f64| {
        let fold = Fold::new(values, guess);
        match fold.explained(guess) < least {
            true => PeriodFit { period: guess, explained: 0.0 },
            false => fold.best(guess, 1),
        }
    };
    for divisor in 2..=DIVISORS {
        let guess = whole.period / f64::from(divisor);
        if guess < scale.shortest {
            break;
        }
        let part = fold(guess, 0.5 * PART * whole.explained);
        // A part of the best part so far is compared with that part, not with the whole.
        let larger = if divisor % divided_by == 0 { best.fit } else { whole };
        if let Some(Relation { more, as_good: true }) = relate(heights, part, larger) {
            let kind = if more < SAME { PeriodKind::Step } else { PeriodKind::SmallestUnit };
            (divided_by, best) = (divisor, RepeatedUnit { fit: part, kind });
        }
    }
    for times in 2..=MULTIPLES {
        let part = best.fit;
        let guess = part.period * f64::from(times);
        if guess > longest {
            break;
        }
        let larger = fold(guess, 0.5 * part.explained);
        let as_good = || relate(heights, part, larger).is_some_and(|relation| relation.as_good);
        if larger.explained > part.explained && !as_good() {
            return RepeatedUnit { fit: larger, ..best };
        }
    }
    best
}
