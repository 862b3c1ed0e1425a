//! How a number is written, the same in every format.

/// Above this a float no longer holds every whole number.
const WHOLE: f64 = 9_007_199_254_740_992.0;

/// The number as an integer, if it is whole and small enough to be exact.
pub fn whole(value: f64) -> Option<i64> {
    (value.abs() < WHOLE && value.fract() == 0.0).then_some(value as i64)
}

/// Appends a sample value: an integer where it is one, else the shortest decimal that reads back the same.
pub fn push_value(out: &mut String, value: f64) {
    match whole(value) {
        Some(whole) => out.push_str(itoa::Buffer::new().format(whole)),
        None => push_float(out, value),
    }
}

/// Appends a number with a point or exponent always (`1.0`): bucket bounds and histogram sums, which
/// `prometheus-client` writes so.
pub fn push_float(out: &mut String, value: f64) {
    out.push_str(dtoa::Buffer::new().format(value));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value(v: f64) -> String {
        let mut out = String::new();
        push_value(&mut out, v);
        out
    }

    #[test]
    fn whole_numbers_have_no_point() {
        assert_eq!(value(0.0), "0");
        assert_eq!(value(-0.0), "0");
        assert_eq!(value(-12.0), "-12");
        assert_eq!(value(0.25), "0.25");
        assert_eq!(value(9_007_199_254_740_991.0), "9007199254740991");
        assert_eq!(value(1.980e9), "1980000000");
        assert!(value(WHOLE).contains('.'));
    }

    proptest! {
        #[test]
        fn numbers_read_back_the_same(v in prop::num::f64::NORMAL | prop::num::f64::ZERO) {
            prop_assert_eq!(value(v).parse::<f64>().unwrap(), v);
        }
    }
}
