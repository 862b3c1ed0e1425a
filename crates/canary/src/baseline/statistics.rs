//! Middle and spread of samples that may hold a few wild ones.

/// What a robust sigma is of the median of absolute deviations, for normally distributed samples.
const SIGMA_OF_MAD: f64 = 1.4826;

/// Smallest sigma, as a share of the median: what work per cycle was seen to repeat to (0.001 %). Samples that
/// are all alike would otherwise have none.
const SIGMA_FLOOR: f64 = 1e-5;

/// Middle and spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Median.
    pub median: f64,
    /// 1.4826 x the median of absolute deviations from it, and at least a hundred-thousandth of it.
    pub sigma: f64,
}

/// The median of what is finite and above 0; `None` if nothing is.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    middle(values.into_iter().filter(|value| value.is_finite() && *value > 0.0).collect())
}

/// Median and spread of what is finite and above 0; `None` if nothing is.
pub fn spread(values: &[f64]) -> Option<Spread> {
    let valid: Vec<f64> = values.iter().copied().filter(|value| value.is_finite() && *value > 0.0).collect();
    let median = middle(valid.clone())?;
    let away = middle(valid.iter().map(|value| (value - median).abs()).collect())?;
    Some(Spread { median, sigma: (SIGMA_OF_MAD * away).max(SIGMA_FLOOR * median) })
}

fn middle(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let at = values.len() / 2;
    let upper = *values.get(at)?;
    match values.len() % 2 {
        1 => Some(upper),
        // Halves first: the sum of two large values could pass the largest number there is.
        _ => Some(values.get(at.checked_sub(1)?)? / 2.0 + upper / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn middles() {
        assert_eq!(median([]), None);
        assert_eq!(median([f64::NAN, f64::INFINITY, 0.0, -1.0]), None);
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, f64::NAN, 2.0]), Some(3.0));
        let spread = spread(&[9.0, 10.0, 11.0, 10.0, 1000.0]).unwrap();
        assert_eq!(spread.median, 10.0);
        assert!((spread.sigma - SIGMA_OF_MAD).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn order_does_not_matter_and_scale_only_scales(
            mut values in prop::collection::vec(0.001f64..1e15, 1..50), scale in 0.001f64..1000.0
        ) {
            let before = spread(&values).unwrap();
            let scaled: Vec<f64> = values.iter().rev().map(|value| value * scale).collect();
            let after = spread(&scaled).unwrap();
            prop_assert!((after.median / before.median / scale - 1.0).abs() < 1e-9);
            prop_assert!((after.sigma / before.sigma / scale - 1.0).abs() < 1e-6);
            values.sort_by(f64::total_cmp);
            prop_assert!(values[0] <= before.median && before.median <= values[values.len() - 1]);
        }

        #[test]
        fn nothing_is_too_odd(values in prop::collection::vec(any::<f64>(), 0..50)) {
            if let Some(spread) = spread(&values) {
                prop_assert!(spread.median > 0.0 && spread.median.is_finite() && spread.sigma >= 0.0);
            }
        }
    }
}
