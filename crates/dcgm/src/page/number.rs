//! Formatting of numbers and texts as in dcgm-exporter 4.8.3 and later, which use Go's shortest form.

use crate::fields::FieldFormat;

/// Smallest of DCGM's "blank" integers. The largest is the maximum of a 64-bit integer.
const BLANK_INTEGER: f64 = 9_223_372_036_854_775_792.0;
/// Range of DCGM's "blank" floating-point numbers.
const BLANK_DOUBLE: std::ops::RangeInclusive<f64> = 140_737_488_355_328.0..=140_737_488_355_331.0;

/// Formats a number, or returns `None` for one of DCGM's blank values.
pub fn text(value: f64, format: FieldFormat) -> Option<String> {
    let value = match format {
        FieldFormat::Integer => whole(value),
        // DCGM provides six decimals.
        FieldFormat::Double => format!("{value:.6}").parse().ok()?,
        FieldFormat::Text => return None,
    };
    let blank = match format {
        FieldFormat::Integer => value >= BLANK_INTEGER,
        _ => BLANK_DOUBLE.contains(&value),
    };
    (value.is_finite() && !blank).then(|| shortest(value))
}

/// Truncates decimals, but rounds a number that differs from an integer only by a rounding error, such as 57 % stored
/// as 0.57.
fn whole(value: f64) -> f64 {
    let near = value.round();
    let rounding = 1e-6f64.max(near.abs() * 1e-12);
    if (value - near).abs() <= rounding { near } else { value.trunc() }
}

/// Returns the shortest text that parses to the same number. Numbers from a million on and below a ten-thousandth
/// have an exponent.
fn shortest(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    match exponent.parse::<i32>() {
        Ok(-4..=5) => format!("{value}"),
        Ok(exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
        Err(_) => scientific,
    }
}

/// Appends text and escapes backslashes, newlines and, in label values, double quotes.
pub fn escape(out: &mut String, text: &str, quote: bool) {
    for char in text.chars() {
        match char {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quote => out.push_str("\\\""),
            char => out.push(char),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_lose_what_is_behind_the_point_but_no_rounding() {
        let text = |value| text(value, FieldFormat::Integer).unwrap();
        assert_eq!(text(0.57 * 100.0), "57");
        assert_eq!(text(143_771.9), "143771");
        assert_eq!(text(0.0), "0");
        assert_eq!(text(-0.4), "0");
        assert_eq!(text(999_999.0), "999999");
        assert_eq!(text(1_000_000.0), "1e+06");
        assert_eq!(text(98_765_432_100.0), "9.87654321e+10");
        assert_eq!(text(1_980_000_000.0), "1.98e+09");
        assert_eq!(text(3_456_789_012.345 * 1e3), "3.456789012345e+12");
    }

    #[test]
    fn doubles_have_six_decimals_at_most() {
        let text = |value| text(value, FieldFormat::Double).unwrap();
        assert_eq!(text(72.345), "72.345");
        assert_eq!(text(0.000_123_4), "0.000123");
        assert_eq!(text(0.000_002_2), "2e-06");
        assert_eq!(text(0.000_000_2), "0");
        assert_eq!(text(1.0 / 3.0), "0.333333");
        assert_eq!(text(1_234_567.891), "1.234567891e+06");
        assert_eq!(text(-0.000_000_1), "0");
    }

    #[test]
    fn a_blank_is_no_value() {
        for blank in [f64::NAN, f64::INFINITY, i64::MAX as f64, 0x7fff_ffff_ffff_fff0_u64 as f64] {
            assert_eq!(text(blank, FieldFormat::Integer), None, "{blank}");
        }
        for blank in [f64::NAN, f64::NEG_INFINITY, 140_737_488_355_328.0, 140_737_488_355_330.0] {
            assert_eq!(text(blank, FieldFormat::Double), None, "{blank}");
        }
        assert_eq!(text(1.0, FieldFormat::Text), None);
    }
}
