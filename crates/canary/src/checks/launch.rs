//! `launch` measures the time from an empty launch until the host notices its end, and compares it with the GPU's own
//! history.

use super::*;
use crate::abi::LaunchArgs;

pub static CHECK: Check = Check::new(CanaryCheck::Launch, CanaryStep::Launch, &["launch"], measure, judge);

impl Quantity {
    /// Seconds of an empty launch. Times depend on the host, so only a multiple of the usual time points to the GPU.
    pub const LAUNCH: Quantity = Quantity::time("launch", 0.5, 20e-6);
}

/// Number of launches to measure.
const LAUNCHES: usize = 200;

fn measure(s: &mut Session<'_>) -> Try<Option<CheckResult>> {
    let kernel = s.kernel("launch")?;
    let grid = Grid { blocks: 1, threads: 32, shared: 0 };
    let launch = |_| s.awake(|cuda, stream| cuda.launch(kernel, grid, stream, &LaunchArgs::default()));
    let mut seconds = (0..LAUNCHES).map(launch).collect::<Try<Vec<f64>>>()?;
    seconds.sort_by(f64::total_cmp);
    Ok(Some((CheckFigures::Launched(seconds), Mismatches::default())))
}

fn judge(view: &RunContext<'_>, measured: &Measurement, clock: &Clock) -> Sample {
    let CheckFigures::Launched(times) = &measured.found else { return CheckFigures::of_another_check() };
    let Some(median) = stats::median(times.iter().copied()) else {
        return Sample::discarded(CanaryVerdict::Skipped, "no launch was timed".into());
    };
    let mut sample = Sample::new();
    sample.rate = Some(Rate::Seconds(median));
    sample.say(format!("{} from the launch until the host noticed its end", seconds(median)));
    if let Some(low) = view.compare(&mut sample, Quantity::LAUNCH, median) {
        if !clock.is_fine() {
            let why = "not judged: the clock of the multiprocessors was low".to_owned();
            return Sample::discarded(CanaryVerdict::Skipped, why);
        }
        let todo = "check the load of the host's CPUs first, then check `dmesg` for Xid 119 and 120";
        sample.find(CanaryVerdict::Slow, format!("launches are slow (speed {low}); {todo}"));
    }
    sample
}
