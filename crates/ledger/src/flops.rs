//! Floating-point operations a second, estimated from the activity of the pipes: activity x multiprocessors
//! x operations a cycle x clock.

use model::catalog::{FlopPipe, GpmUnit};

/// Compute capability, FP32 lanes of a multiprocessor, and operations a cycle by pipe.
type Rates = (&'static str, f64, &'static [(FlopPipe, f64)]);

/// Operations a cycle of one multiprocessor, by pipe, a multiply-add counting two. From the peak rates and clocks of NVIDIA's data sheets and architecture
/// papers: H100 SXM at 1980 MHz with 132 multiprocessors has 66.9 TFLOP/s FP32 and as much FP64 in tensor
/// cores, 133.8 FP16 outside them, and at 1830 MHz 989 dense FP16 in tensor cores; B200 with 148
/// multiprocessors and 1965 MHz 74.5 FP32 (its other rates are not derived here).
const TABLE: [Rates; 2] = [
    (
        "9.0",
        128.0,
        &[
            (FlopPipe::Fp64, 128.0),
            (FlopPipe::Fp32, 256.0),
            (FlopPipe::Fp16, 512.0),
            (FlopPipe::TensorDfma, 256.0),
            (FlopPipe::TensorHmma, 4096.0),
        ],
    ),
    ("10.0", 128.0, &[(FlopPipe::Fp32, 256.0)]),
];

/// The estimates for a GPU of this compute capability: FP32 lanes (CUDA cores) of the whole GPU, clock of
/// the multiprocessors in hertz, activity of a unit. None where a figure is missing.
pub fn estimate(
    compute_capability: &str,
    cores: f64,
    hertz: f64,
    activity: impl Fn(GpmUnit) -> Option<f64>,
) -> Vec<(FlopPipe, f64)> {
    let Some((_, lanes, rates)) = TABLE.iter().find(|(capability, ..)| *capability == compute_capability)
    else {
        return Vec::new();
    };
    let multiprocessors = cores / lanes;
    let estimate = |(pipe, a_cycle): &(FlopPipe, f64)| {
        Some((*pipe, activity(unit(*pipe))? * multiprocessors * a_cycle * hertz))
    };
    rates.iter().filter_map(estimate).collect()
}

fn unit(pipe: FlopPipe) -> GpmUnit {
    match pipe {
        FlopPipe::Fp64 => GpmUnit::Fp64,
        FlopPipe::Fp32 => GpmUnit::Fp32,
        FlopPipe::Fp16 => GpmUnit::Fp16,
        FlopPipe::TensorDfma => GpmUnit::TensorDfma,
        FlopPipe::TensorHmma => GpmUnit::TensorHmma,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fully_active_h100_has_the_rates_of_its_data_sheet() {
        let at = |hertz: f64, pipe| {
            let all = estimate("9.0", 16_896.0, hertz, |_| Some(1.0));
            all.iter().find(|(p, _)| *p == pipe).map(|(_, rate)| rate / 1e12).unwrap()
        };
        assert!((at(1.98e9, FlopPipe::Fp32) - 66.9).abs() < 0.1);
        assert!((at(1.98e9, FlopPipe::Fp64) - 33.5).abs() < 0.1);
        assert!((at(1.98e9, FlopPipe::TensorDfma) - 66.9).abs() < 0.1);
        assert!((at(1.83e9, FlopPipe::TensorHmma) - 989.0).abs() < 1.0);
    }

    #[test]
    fn nothing_is_estimated_of_what_is_not_known() {
        assert!(estimate("8.9", 18_176.0, 2e9, |_| Some(1.0)).is_empty());
        assert!(estimate("9.0", 16_896.0, 2e9, |_| None).is_empty());
    }
}
