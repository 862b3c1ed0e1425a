//! `sm_rate` and `tensor`: work per cycle and clock of every multiprocessor.

use super::clocks::{self, Clock};
use super::reasons::Reasons;
use super::view::{Sample, View};
use super::words::{counted, listed, megahertz, percent, rate};
use crate::baseline::{Quantity, statistics};
use crate::report::{Measured, Sm};
use crate::roofline;
use model::canary::Rate;
use model::catalog::{BadSmKind, CanaryCheck, CanaryVerdict, RateAgainst};

/// Share of its lanes that every FP32 pipe reaches with this kernel.
const FP32_FLOOR: f64 = 0.90;
/// Multiprocessors from which on their median means something.
const ENOUGH: usize = 8;
/// How many robust sigmas a multiprocessor may be below the others whatever its tolerance.
const SIGMAS: f64 = 8.0;
/// How much slower than the others of its run one may be. The 132 of an H200 differ by 0.01 % in work per
/// cycle and by 0.07 % in clock, which the timer's step adds to.
const CLOCK_TOLERANCE: f64 = 0.01;
/// Multiprocessors that are named.
const NAMED: usize = 8;

/// What differs between the two checks.
struct Kind {
    work: Quantity,
    clock: Quantity,
    bound: Option<f64>,
    floor: Option<f64>,
    /// How much less work per cycle than the others one multiprocessor may do.
    tolerance: f64,
    unit: &'static str,
}

/// Judges; also how the clock stands, by which other checks are judged.
pub fn judge(view: &View<'_>, measured: &Measured, sms: &[Sm]) -> (Sample, Clock) {
    let kind = match measured.check {
        CanaryCheck::Tensor => Kind {
            work: Quantity::TensorWork,
            clock: Quantity::TensorClock,
            bound: roofline::tensor(view.device),
            floor: None,
            tolerance: 0.02,
            unit: "tensor FMA",
        },
        _ => Kind {
            work: Quantity::SmRateWork,
            clock: Quantity::SmRateClock,
            bound: roofline::fp32(view.device),
            floor: Some(FP32_FLOOR),
            tolerance: 0.005,
            unit: "FP32 FMA",
        },
    };
    let valid = |value: f64| value.is_finite() && value > 0.0;
    let sms: Vec<Sm> = sms.iter().copied().filter(|sm| valid(sm.work_per_cycle)).collect();
    let Some(work) = statistics::median(sms.iter().map(|sm| sm.work_per_cycle)) else {
        let why = "no multiprocessor told a rate".to_owned();
        return (Sample::discarded(CanaryVerdict::Skipped, why), Clock::Fine);
    };
    let mut sample = Sample::new();
    sample.rate = Some(Rate::WorkPerCycle(work));
    sample.say(format!("{} ({})", rate(Rate::WorkPerCycle(work)), kind.unit));
    let hertz = statistics::median(sms.iter().map(|sm| sm.clock_hertz));
    sample.sm_clock_hertz = hertz;
    let clock = hertz.map_or(Clock::Fine, |hertz| judge_clock(view, measured, &kind, hertz, &mut sample));
    if clock == Clock::Unramped {
        let why = "the clocks had not risen from idle yet; thrown away".to_owned();
        return (Sample::discarded(CanaryVerdict::Skipped, why), clock);
    }
    let missing = usize::try_from(view.device.multiprocessors).unwrap_or(0).saturating_sub(sms.len());
    if missing > 0 {
        sample.say(format!("{} told nothing", counted(missing, "multiprocessor")));
    }
    name_slow_ones(&kind, &sms, clock.is_fine(), &mut sample);
    judge_work(view, &kind, work, &mut sample);
    (sample, clock)
}

fn judge_clock(view: &View<'_>, measured: &Measured, kind: &Kind, hertz: f64, sample: &mut Sample) -> Clock {
    sample.say(format!("at {}", megahertz(hertz)));
    // Tensor work may meet the power limit: it is compared with its own past alone.
    let absolute = kind.clock == Quantity::SmRateClock;
    let clock = clocks::judge(view, &measured.around, kind.clock, hertz, absolute);
    match &clock {
        Clock::Low(verdict, why) => sample.find(*verdict, why.clone()),
        Clock::Chosen(why) => sample.say(why.clone()),
        Clock::Fine | Clock::Unramped => {}
    }
    sample.figures.push((kind.clock, hertz));
    let usual = Reasons::seen(view.device, &measured.around).is_none_or(Reasons::usual);
    if !usual || !clock.is_fine() {
        sample.unusual.push(kind.clock);
    }
    clock
}

/// Multiprocessors that stand out against the others of the same run: this needs no baseline. A clock that
/// moves meanwhile (`still` is false) reaches them at different times and says nothing of one of them.
fn name_slow_ones(kind: &Kind, sms: &[Sm], still: bool, sample: &mut Sample) {
    let by_work = stragglers(sms, |sm| sm.work_per_cycle, kind.tolerance);
    let by_clock = if still { stragglers(sms, |sm| sm.clock_hertz, CLOCK_TOLERANCE) } else { Vec::new() };
    for (found, what) in [(&by_work, "work per cycle"), (&by_clock, "clock")] {
        let Some((_, least)) = found.first() else { continue };
        let mut ids: Vec<u32> = found.iter().map(|(smid, _)| *smid).collect();
        ids.sort_unstable();
        sample.find(
            CanaryVerdict::SlowSm,
            format!(
                "{} below the others in {what}: SM {} (the slowest at {} of their median); drain the GPU and \
                 run `dcgmi diag -r 3`",
                counted(ids.len(), "multiprocessor"),
                listed(&ids),
                percent(*least)
            ),
        );
    }
    let mut slow: Vec<u32> = by_work.iter().chain(&by_clock).map(|(smid, _)| *smid).collect();
    slow.dedup();
    for smid in slow {
        if sample.bad_sms.len() < NAMED && !sample.bad_sms.contains(&(smid, BadSmKind::Slow)) {
            sample.bad_sms.push((smid, BadSmKind::Slow));
        }
    }
}

/// Those below the others, with their share of the median, slowest first.
fn stragglers(sms: &[Sm], figure: impl Fn(&Sm) -> f64, tolerance: f64) -> Vec<(u32, f64)> {
    let figures: Vec<f64> = sms.iter().map(&figure).collect();
    let Some(spread) = statistics::spread(&figures).filter(|_| sms.len() >= ENOUGH) else {
        return Vec::new();
    };
    let least = spread.median - (tolerance * spread.median).max(SIGMAS * spread.sigma);
    let low = sms.iter().filter(|sm| figure(sm) > 0.0 && figure(sm) < least);
    let mut low: Vec<(u32, f64)> = low.map(|sm| (sm.smid, figure(sm) / spread.median)).collect();
    low.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    low
}

/// The median of all, against the bound, the past and the siblings.
fn judge_work(view: &View<'_>, kind: &Kind, work: f64, sample: &mut Sample) {
    let low = view.compare(sample, kind.work, work);
    let share = kind.bound.map(|bound| work / bound);
    if let Some((bound, share)) = kind.bound.zip(share) {
        sample.compare(RateAgainst::Roofline, share);
        sample.say(format!("{} of {bound:.0}", percent(share)));
    }
    let todo = "look for a changed MIG layout, an MPS share or another driver; else drain it and run \
                `dcgmi diag -r 3`";
    let below = share.zip(kind.floor).is_some_and(|(share, floor)| share < floor);
    match low {
        Some(low) => sample.find(CanaryVerdict::Slow, format!("all multiprocessors are slow: {low}; {todo}")),
        None if below => sample.find(
            CanaryVerdict::Slow,
            format!("all multiprocessors are slow: below {} of their lanes; {todo}", percent(FP32_FLOOR)),
        ),
        None => {}
    }
}
