//! Numbers for people: GiB, W, °C, MHz, %.

use std::time::Duration;

const GIB: f64 = (1u64 << 30) as f64;

/// Bytes as GiB, without the unit.
pub fn gib(bytes: f64) -> String {
    let gib = bytes / GIB;
    if gib >= 1000.0 { format!("{gib:.0}") } else { format!("{gib:.1}") }
}

/// A share as percent, without the sign.
pub fn percent(ratio: f64) -> String {
    format!("{:.0}", ratio * 100.0)
}

/// Hertz as MHz, without the unit.
pub fn mhz(hertz: f64) -> String {
    format!("{:.0}", hertz / 1e6)
}

/// A whole number; thousands apart, so that large counts can be read.
pub fn count(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            // A narrow space that does not break.
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

/// Seconds as a duration; zero for what is none.
pub fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// Seconds since 1970 as `15:04:05 UTC`.
pub fn time_of_day(unix_seconds: f64) -> String {
    let seconds = seconds(unix_seconds).as_secs() % 86_400;
    format!("{:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_for_people() {
        assert_eq!(gib(150.754e9), "140.4");
        assert_eq!(gib(2e12), "1863");
        assert_eq!(percent(0.974), "97");
        assert_eq!(mhz(1.98e9), "1980");
        assert_eq!(count(0.0), "0");
        assert_eq!(count(999.0), "999");
        assert_eq!(count(1_234_567.0), "1\u{202f}234\u{202f}567");
        assert_eq!(time_of_day(1_795_000_000.25), "11:06:40 UTC");
        assert_eq!(seconds(-1.0), Duration::ZERO);
        assert_eq!(seconds(f64::NAN), Duration::ZERO);
    }
}
