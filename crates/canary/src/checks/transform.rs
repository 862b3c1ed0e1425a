//! `transform` computes `sqrt(x) * sin(x) / log(x + 1)` for an array on the GPU and on the CPU, and compares the
//! largest error with a fixed limit.

use super::*;
use crate::abi::{TRANSFORM_THREADS, TransformArgs};

pub static CHECK: Check =
    Check::new(CanaryCheck::Transform, CanaryStep::Transform, &["transform"], measure, judge);

/// Times in seconds, and errors against the result in double precision.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Transform {
    pub count: u64,
    /// Time of the copy to the GPU, in seconds.
    pub copy_in: f64,
    /// Time of the kernel, in seconds.
    pub kernel: f64,
    /// Time of the copy to the host, in seconds.
    pub copy_out: f64,
    /// Time of one CPU thread, in seconds.
    pub cpu: f64,
    /// Largest difference from the CPU's result in double precision.
    pub max_absolute_error: f64,
    /// Largest difference relative to the CPU's result in double precision.
    pub max_relative_error: f64,
}

/// Maximum relative error of `sqrt(x) * sin(x) / log(x + 1)` in single precision against double precision, for x of at
/// least 0.1.
///
/// The error is counted in units of 2^-24 (half the distance of two floats at their largest). `sqrtf`, the product and
/// the quotient are correctly rounded and contribute 1 each. `sinf` has an error of at most 2 units in the last place
/// and contributes 4; `logf` has 1 and contributes 2 (CUDA C++ programming guide, mathematical functions, without fast
/// math). Rounding `x + 1` is amplified by `log` by 1 / ln(1.1) at x = 0.1 and contributes 10.5. The total is 19.5 x
/// 2^-24 = 1.2e-6. The guide's figures are the largest errors seen in its tests and not proven bounds, so the limit is
/// twice the total. Near x = 0 there is no limit.
pub const TRANSFORM_LIMIT: f64 = 2.0 * 19.5 / 16_777_216.0;

const COUNT: usize = 4 << 20;
/// Range of inputs, above the first number and up to the second. At 0 the function would be 0 / 0.
const INPUTS: (f32, f32) = (0.1, 100.0);
/// Number of times that copies and kernel run.
const TIMES: usize = 3;

fn measure(s: &mut Session<'_>) -> Try<Option<CheckResult>> {
    let count = COUNT.min((s.arena.left() / 16) as usize) & !0x7f;
    let (x, y): (DeviceSlice<f32>, DeviceSlice<f32>) = (s.arena.data(count)?, s.arena.data(count)?);
    let seed = stats::seed(s.request.seed, 10);
    let inputs: Vec<f32> = (0..count as u64).map(|at| input(stats::seed(seed, at))).collect();
    let host = s.cuda.pin(x.bytes())?;
    for (at, two) in inputs.chunks_exact(2).enumerate() {
        host.set(at, u64::from(two[1].to_bits()) << 32 | u64::from(two[0].to_bits()));
    }
    let args = TransformArgs { x: x.address, y: y.address, count: count as u64 };
    let grid = Grid { blocks: 8 * s.multiprocessors(), threads: TRANSFORM_THREADS, shared: 0 };
    let kernel = s.kernel("transform")?;
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..TIMES {
        times[0].push(s.timed(|cuda, queue| cuda.queue_in(x, PinnedPart(&host, 0), queue))?);
        times[1].push(s.run(kernel, grid, &args)?);
    }
    // The inputs are on the GPU now, so the results can overwrite them on the host.
    let mut copy_out = Vec::new();
    for _ in 0..TIMES {
        copy_out.push(s.timed(|cuda, queue| cuda.queue_out(PinnedPart(&host, 0), y, queue))?);
    }
    let results: Vec<f32> = (0..host.words()).flat_map(|at| two(host.get(at))).collect();
    s.cuda.unpin(host)?;
    s.poll.go_on()?;
    let cpu = on_cpu(&inputs);
    let (max_absolute_error, max_relative_error) = errors(&inputs, &results);
    let [copy_in, kernel] = times.map(|times| stats::median_or_zero(&times));
    let copy_out = stats::median_or_zero(&copy_out);
    let count = count as u64;
    let figures = Transform { count, copy_in, kernel, copy_out, cpu, max_absolute_error, max_relative_error };
    Ok(Some((CheckFigures::Transformed(figures), Mismatches::default())))
}

/// Returns an input within the range.
fn input(random: u64) -> f32 {
    let unit = (random >> 40) as f32 / (1u64 << 24) as f32;
    // 1 - unit is above 0 and at most 1.
    (INPUTS.0 + (INPUTS.1 - INPUTS.0) * (1.0 - unit)).clamp(INPUTS.0.next_up(), INPUTS.1)
}

fn two(word: u64) -> [f32; 2] {
    [f32::from_bits(word as u32), f32::from_bits((word >> 32) as u32)]
}

/// Computes the same in single precision with one thread. Returns the seconds.
fn on_cpu(inputs: &[f32]) -> f64 {
    let began = Mono::now();
    let mut sum = 0.0;
    for x in inputs {
        sum += reference::transform_single(*x);
    }
    std::hint::black_box(sum);
    Mono::now().since(began).as_secs_f64()
}

/// Returns the largest absolute and relative difference from the CPU's result in double precision. A result that is not
/// a number counts as an infinite error.
fn errors(inputs: &[f32], results: &[f32]) -> (f64, f64) {
    let (mut absolute, mut relative) = (0.0f64, 0.0f64);
    for (x, got) in inputs.iter().zip(results) {
        let expected = reference::transform(*x);
        let off = match got.is_finite() {
            true => (f64::from(*got) - expected).abs(),
            false => f64::MAX,
        };
        absolute = absolute.max(off);
        relative = relative.max((off / expected.abs().max(f64::from(f32::MIN_POSITIVE))).min(f64::MAX));
    }
    (absolute, relative)
}

fn judge(_: &RunContext<'_>, measured: &Measurement, _: &Clock) -> Sample {
    let CheckFigures::Transformed(found) = &measured.found else { return CheckFigures::of_another_check() };
    let error = found.max_relative_error;
    if !error.is_finite() || found.count == 0 {
        return Sample::discarded(CanaryVerdict::Skipped, "no error was measured".into());
    }
    let mut sample = Sample::new();
    let timed = found.kernel.is_finite() && found.kernel > 0.0;
    sample.rate = timed.then_some(Rate::Seconds(found.kernel));
    sample.say(format!(
        "{} values: copy in {}, kernel {}, copy out {}, one thread of the CPU {}; largest error {:.1e} relative, \
         {:.1e} absolute",
        found.count,
        seconds(found.copy_in),
        seconds(found.kernel),
        seconds(found.copy_out),
        seconds(found.cpu),
        error,
        found.max_absolute_error
    ));
    if error > TRANSFORM_LIMIT {
        sample.find(
            CanaryVerdict::WrongResultSuspected,
            format!(
                "the error is above the limit of {TRANSFORM_LIMIT:.1e}; run `gpu-node-exporter canary --check \
                 sm_sdc --repeat 20` on the drained GPU"
            ),
        );
    }
    sample
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn inputs_stay_away_from_zero(random in any::<u64>()) {
            let x = input(random);
            prop_assert!(x > INPUTS.0 && x <= INPUTS.1);
        }
    }

    #[test]
    fn the_cpu_s_own_single_precision_is_within_a_few_last_places() {
        let inputs: Vec<f32> = (0..4096).map(|at| input(stats::seed(3, at))).collect();
        let results: Vec<f32> = inputs.iter().copied().map(reference::transform_single).collect();
        let (absolute, relative) = errors(&inputs, &results);
        assert!(absolute > 0.0 && absolute < 2e-6 && relative < 1e-6, "{absolute} {relative}");
    }

    #[test]
    fn a_result_that_is_no_number_is_reported_as_a_finite_error() {
        let (absolute, relative) = errors(&[1.0], &[f32::NAN]);
        assert!(absolute == f64::MAX && relative.is_finite() && relative > 1e300);
    }
}
