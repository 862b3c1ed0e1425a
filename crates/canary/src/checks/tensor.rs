//! `tensor` measures the FMA operations per cycle of the tensor cores of every multiprocessor, with exact sums. The
//! rates are judged as in `sm_rate`. Tensor work may reach the power limit, so the clock is compared only with its own
//! history.

use super::rates::{RateJudge, RateKernel};
use super::*;
use crate::abi::{TENSOR_SHARED_BYTES, TensorArgs};

pub static CHECK: Check =
    Check::new(CanaryCheck::Tensor, CanaryStep::Tensor, &["tensor"], measure, judge).back_to_back();

impl Quantity {
    /// Median of the FMA operations of a multiprocessor's tensor cores per cycle.
    pub const TENSOR_WORK: Quantity = Quantity::rate("tensor_work", format::work_per_cycle, 0.02);
    /// Median clock of the multiprocessors during `tensor`, in Hz.
    pub const TENSOR_CLOCK: Quantity = Quantity::rate("tensor_clock", format::megahertz, 0.05);
}

/// Half-precision FMA operations per cycle if the architecture's figure is unknown, used only for the length of the
/// first launch. It is the highest of any architecture. The warm-up measures the real figure.
const SOME_TENSOR_FMA: f64 = 4096.0;

fn measure(s: &mut Session<'_>) -> Try<Option<CheckResult>> {
    let shape = s.tensor_shape;
    let seed = stats::seed(s.request.seed, 2);
    let (a, b) = ((seed % 3) as u32 + 1, (seed / 3 % 3) as u32 + 1);
    let kernel = s.kernel("tensor")?;
    let rate = match s.device.tensor_fma {
        0 => SOME_TENSOR_FMA,
        known => known.into(),
    };
    let kernel = RateKernel {
        kernel,
        grid: s.one_each(kernel, shape.threads, TENSOR_SHARED_BYTES)?,
        unit: "tensor",
        work: reference::tensor_fma(&shape) as f64,
        rate,
        most: reference::tensor_turns_at_most(&shape, a, b),
        args: &|turns, stamps, bad| TensorArgs {
            stamps: stamps.address,
            bad: bad.address,
            turns,
            a,
            b,
            reserved: 0,
        },
    };
    rates::measure(s, &kernel)
}

fn judge(view: &RunContext<'_>, measured: &Measurement, _: &Clock) -> Sample {
    let CheckFigures::Sms(sms) = &measured.found else { return CheckFigures::of_another_check() };
    let by = RateJudge {
        work: Quantity::TENSOR_WORK,
        clock: Quantity::TENSOR_CLOCK,
        has_highest_clock: false,
        bound: view.device.tensor_fma,
        floor: None,
        tolerance: 0.02,
        unit: "tensor FMA",
    };
    rates::judge(view, &measured.around, sms, &by).0
}
