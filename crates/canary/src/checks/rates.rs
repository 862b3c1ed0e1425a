//! Measurement and judgement shared by `sm_rate` and `tensor`: the work per cycle of every multiprocessor, and its true
//! clock.

use super::*;
use crate::abi::BadLanes;
use crate::format::{listed, megahertz, work_per_cycle};
use crate::sample::clocks;
use crate::stats::SmRates;

/// Duration of a launch at the highest clock, in seconds. It is long compared with the step of the GPU's nanosecond
/// clock (1 us on some GPUs), and short for a process that waits for the GPU.
const LAUNCH: f64 = 2.5e-3;
/// Number of launches to measure.
const LAUNCHES: u32 = 3;
/// Maximum number of launches if a multiprocessor has not run any block yet.
const MOST_LAUNCHES: u32 = 8;
/// Maximum time for clocks to rise from idle, and the pause between two readings of the clocks.
const RISING: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_millis(5);

/// Minimum number of multiprocessors for a meaningful median.
const ENOUGH: usize = 8;
/// Minimum distance below the other multiprocessors, in robust sigmas, regardless of the tolerance.
const SIGMAS: f64 = 8.0;
/// Tolerance of one multiprocessor's clock below the others in the same run. The 132 multiprocessors of an H200 differ
/// by 0.01 % in work per cycle and by 0.07 % in clock, to which the timer's step contributes.
const CLOCK_TOLERANCE: f64 = 0.01;
/// Maximum number of multiprocessors to list.
const NAMED: usize = 8;

/// A kernel whose launches occupy every multiprocessor with one block.
pub(crate) struct RateKernel<'a, A> {
    pub kernel: CudaFunction,
    pub grid: Grid,
    pub unit: &'a str,
    /// FMA operations of a block in one turn.
    pub work: f64,
    /// FMA operations that a multiprocessor should do in one cycle.
    pub rate: f64,
    /// Maximum number of turns for which the result can be computed.
    pub most: u32,
    pub args: &'a dyn Fn(u32, DeviceSlice<SmStamp>, DeviceSlice<BadLanes>) -> A,
}

/// Launches the kernel until every multiprocessor has run it and enough launches were measured. The first launches warm
/// the GPU up and determine the length of the others, so that a throttled GPU takes as long as a healthy one.
pub fn measure<A: Copy>(s: &mut Session<'_>, kind: &RateKernel<'_, A>) -> Try<Option<CheckResult>> {
    let stamps = s.arena.results::<SmStamp>(kind.grid.blocks as usize)?;
    let bad = s.arena.results::<BadLanes>(1)?;
    let compared = u64::from(kind.grid.blocks) * u64::from(kind.grid.threads);
    let mut tally = Mismatches::default();
    let mut launch = |s: &mut Session<'_>, turns: u32| {
        s.cuda.zero(bad)?;
        let read = s.stamped(kind.kernel, kind.grid, &(kind.args)(turns, stamps, bad), stamps)?;
        tally.add(compared, WrongResults::of_lanes(&s.cuda.copy_one(bad)?, kind.unit));
        Ok::<_, Ended>((read, tally.wants_more()))
    };

    let most = stats::turns(LAUNCH, s.limits.clock_hertz, kind.rate, kind.work, kind.most);
    let warm_up = (most / 4).max(1);
    let (mut warm, mut wrong) = launch(s, warm_up)?;
    let began = Mono::now();
    while !wrong && s.rising && !stats::has_risen(stats::clock(&warm), s.limits.clock_hertz) {
        // Clocks that are throttled, or that this GPU never reaches, are measured as they are. Later checks do not wait
        // for them again.
        s.rising = Mono::now().since(began) < RISING;
        s.poll.wait(PAUSE)?;
        (warm, wrong) = launch(s, warm_up)?;
    }
    let turns = stats::scaled(most, warm_up, stats::span(&warm), LAUNCH);
    let mut rates = SmRates::default();
    for made in 1..=MOST_LAUNCHES {
        let (read, again) = launch(s, turns)?;
        rates.add(kind.work * f64::from(turns), &read);
        let covered = rates.covered() >= s.multiprocessors() as usize;
        if made >= LAUNCHES && covered && !again {
            break;
        }
    }
    Ok(Some((CheckFigures::Sms(rates.sms()), tally)))
}

/// Criteria for a rate.
pub(crate) struct RateJudge {
    pub work: Quantity,
    pub clock: Quantity,
    /// True if the clock is also compared with the device's highest clock.
    pub has_highest_clock: bool,
    /// FMA operations that a multiprocessor can do in one cycle; 0 if unknown.
    pub bound: u32,
    /// Share of the bound that every healthy GPU reaches.
    pub floor: Option<f64>,
    /// Tolerance of one multiprocessor's work per cycle below the others.
    pub tolerance: f64,
    pub unit: &'static str,
}

/// Judges the rates and the clock.
pub fn judge(view: &RunContext<'_>, around: &Around, sms: &[Sm], kind: &RateJudge) -> (Sample, Clock) {
    let valid = |value: f64| value.is_finite() && value > 0.0;
    let sms: Vec<Sm> = sms.iter().copied().filter(|sm| valid(sm.work_per_cycle)).collect();
    let Some(work) = stats::median(sms.iter().map(|sm| sm.work_per_cycle)) else {
        let why = "no multiprocessor reported a rate".to_owned();
        return (Sample::discarded(CanaryVerdict::Skipped, why), Clock::Fine);
    };
    let mut sample = Sample::new();
    sample.rate = Some(Rate::WorkPerCycle(work));
    sample.say(format!("{} ({})", work_per_cycle(work), kind.unit));
    let hertz = stats::median(sms.iter().map(|sm| sm.clock_hertz));
    sample.sm_clock_hertz = hertz;
    let clock = hertz.map_or(Clock::Fine, |hertz| judge_clock(view, around, kind, hertz, &mut sample));
    if clock == Clock::Unramped {
        let why = "the clocks had not risen from idle yet; thrown away".to_owned();
        return (Sample::discarded(CanaryVerdict::Skipped, why), clock);
    }
    let missing = usize::try_from(view.device.multiprocessors).unwrap_or(0).saturating_sub(sms.len());
    if missing > 0 {
        sample.say(format!("{} reported nothing", counted(missing, "multiprocessor")));
    }
    name_slow_ones(kind, &sms, clock.is_fine(), &mut sample);
    judge_work(view, kind, work, &mut sample);
    (sample, clock)
}

fn judge_clock(
    view: &RunContext<'_>,
    around: &Around,
    kind: &RateJudge,
    hertz: f64,
    sample: &mut Sample,
) -> Clock {
    sample.say(format!("at {}", megahertz(hertz)));
    let clock = clocks::judge(view, around, kind.clock, hertz, kind.has_highest_clock);
    match &clock {
        Clock::Low(verdict, why) => sample.find(*verdict, why.clone()),
        Clock::Chosen(why) => sample.say(why.clone()),
        Clock::Fine | Clock::Unramped => {}
    }
    sample.figures.push((kind.clock, hertz));
    let usual = Reasons::seen(view.device, around).is_none_or(Reasons::usual);
    if !usual || !clock.is_fine() {
        sample.unusual.push(kind.clock);
    }
    clock
}

/// Lists multiprocessors that are slower than the others in the same run, which requires no baseline. A clock that
/// changes during the run (`still` is false) reaches the multiprocessors at different times, so their clocks cannot be
/// compared.
fn name_slow_ones(kind: &RateJudge, sms: &[Sm], still: bool, sample: &mut Sample) {
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

/// Returns the multiprocessors below the others with their share of the median, slowest first.
fn stragglers(sms: &[Sm], figure: impl Fn(&Sm) -> f64, tolerance: f64) -> Vec<(u32, f64)> {
    let figures: Vec<f64> = sms.iter().map(&figure).collect();
    let Some(spread) = stats::spread(&figures).filter(|_| sms.len() >= ENOUGH) else {
        return Vec::new();
    };
    let least = spread.median - (tolerance * spread.median).max(SIGMAS * spread.sigma);
    let low = sms.iter().filter(|sm| figure(sm) > 0.0 && figure(sm) < least);
    let mut low: Vec<(u32, f64)> = low.map(|sm| (sm.smid, figure(sm) / spread.median)).collect();
    low.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    low
}

/// Compares the median of all multiprocessors with the bound, the history and the siblings.
fn judge_work(view: &RunContext<'_>, kind: &RateJudge, work: f64, sample: &mut Sample) {
    let low = view.compare(sample, kind.work, work);
    let share = (kind.bound > 0).then(|| work / f64::from(kind.bound));
    if let Some(share) = share {
        sample.compare(RateAgainst::Roofline, share);
        sample.say(format!("{} of {}", percent(share), kind.bound));
    }
    let todo = "look for a changed MIG layout, an MPS share or another driver; else drain it and run \
                `dcgmi diag -r 3`";
    let floor = kind.floor.filter(|floor| share.is_some_and(|share| share < *floor));
    let low = low.or(floor.map(|floor| format!("below {} of their lanes", percent(floor))));
    if let Some(low) = low {
        sample.find(CanaryVerdict::Slow, format!("all multiprocessors are slow: {low}; {todo}"));
    }
}
