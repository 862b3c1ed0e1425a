//! Formats numbers for people: GiB, MHz, percentages and durations.

use std::time::Duration;

use model::canary::Rate;
use model::catalog::ClockEvent;
use model::catalog::schema::KnownLabel;
use model::text::plain;

const GIB: f64 = (1u64 << 30) as f64;

/// Formats bytes in GiB, without the unit.
pub fn gib(bytes: f64) -> String {
    let gib = bytes / GIB;
    if gib >= 1000.0 { format!("{gib:.0}") } else { format!("{gib:.1}") }
}

/// Formats a ratio as a percentage, without the sign.
pub fn percent(ratio: f64) -> String {
    format!("{:.0}", ratio * 100.0)
}

/// Formats hertz in MHz, without the unit.
pub fn mhz(hertz: f64) -> String {
    format!("{:.0}", hertz / 1e6)
}

/// Formats a whole number with separated thousands.
pub fn count(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            // A narrow no-break space.
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

/// Converts seconds to a duration. An invalid value becomes zero.
pub fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// Formats a rate that the canary measured, in the unit of its check.
pub fn rate(rate: Rate) -> String {
    match rate {
        Rate::WorkPerCycle(work) => format!("{work:.1} per cycle"),
        Rate::BytesPerSecond(bytes) => format!("{:.0} GB/s", bytes / 1e9),
        Rate::BytesPerCycle(bytes) => format!("{bytes:.0} B per cycle"),
        Rate::Seconds(seconds) if seconds < 1e-3 => format!("{:.1} µs", seconds * 1e6),
        Rate::Seconds(seconds) => format!("{:.0} ms", seconds * 1e3),
    }
}

/// Formats the name of a clock event with NVIDIA's abbreviations: `sw_power_cap` becomes "SW power cap".
pub fn clock_event(event: ClockEvent) -> String {
    let text = plain(event.known());
    match text.split_once(' ') {
        Some((side @ ("sw" | "hw"), rest)) => format!("{} {rest}", side.to_uppercase()),
        _ => text,
    }
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
        assert_eq!([8.92e-5, 0.147].map(|seconds| rate(Rate::Seconds(seconds))), ["89.2 µs", "147 ms"]);
        assert_eq!(clock_event(ClockEvent::HwThermalSlowdown), "HW thermal slowdown");
        assert_eq!(clock_event(ClockEvent::SyncBoost), "sync boost");
        assert_eq!(seconds(-1.0), Duration::ZERO);
        assert_eq!(seconds(f64::NAN), Duration::ZERO);
    }
}
