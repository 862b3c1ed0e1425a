//! `sm_rate` measures the FP32 FMA operations per cycle and the true clock of every multiprocessor, and verifies the
//! bits that its lanes computed. The rates are compared with the number of lanes, with the GPU's own history, with its
//! siblings, and between multiprocessors.

use super::rates::{RateJudge, RateKernel};
use super::*;
use crate::abi::{SM_RATE_CHAIN_FMA, SM_RATE_CHAINS, SM_RATE_THREADS, SmRateArgs};

pub static CHECK: Check =
    Check::new(CanaryCheck::SmRate, CanaryStep::SmRate, &["sm_rate"], measure, |view, measured, _| {
        judge(view, measured).0
    })
    .back_to_back();

impl Quantity {
    /// Median of the FP32 FMA operations of a multiprocessor per cycle. On an H200 it repeats to 0.001 %.
    pub const SM_RATE_WORK: Quantity = Quantity::rate("sm_rate_work", format::work_per_cycle, 0.005);
    /// Median clock of the multiprocessors in Hz. Measurements on an H200 repeated to 0.02 %, so 0.3 % are fifteen
    /// standard deviations (`judge/thresholds_tests.rs` has the calculation).
    pub const SM_RATE_CLOCK: Quantity =
        Quantity::rate("sm_rate_clock", format::megahertz, 0.003).where_clocks_move(0.05);
}

/// Share of its lanes that every FP32 pipe reaches with this kernel.
const FLOOR: f64 = 0.90;

fn measure(s: &mut Session<'_>) -> Try<Option<CheckResult>> {
    let seed = stats::seed(s.request.seed, 1) as u32;
    let kernel = s.kernel("sm_rate")?;
    let kernel = RateKernel {
        kernel,
        grid: s.one_each(kernel, SM_RATE_THREADS, 0)?,
        unit: "fp32",
        work: f64::from(SM_RATE_CHAINS) * f64::from(SM_RATE_CHAIN_FMA) * f64::from(SM_RATE_THREADS),
        rate: s.device.fp32_lanes.into(),
        most: u32::MAX,
        args: &|turns, stamps, bad| SmRateArgs {
            stamps: stamps.address,
            bad: bad.address,
            turns,
            seed,
            expected: reference::sm_rate(seed, turns),
        },
    };
    rates::measure(s, &kernel)
}

/// Judges the rates, and returns the clock that other checks are judged with.
pub fn judge(view: &RunContext<'_>, measured: &Measurement) -> (Sample, Clock) {
    let CheckFigures::Sms(sms) = &measured.found else {
        return (CheckFigures::of_another_check(), Clock::Fine);
    };
    let by = RateJudge {
        work: Quantity::SM_RATE_WORK,
        clock: Quantity::SM_RATE_CLOCK,
        has_highest_clock: true,
        bound: view.device.fp32_lanes,
        floor: Some(FLOOR),
        tolerance: 0.005,
        unit: "FP32 FMA",
    };
    rates::judge(view, &measured.around, sms, &by)
}
