//! Durations, sizes and the other words of a scenario file.

use std::time::Duration;

/// Reads `50ms`, `1.5s`, `2m`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("'{text}' is no duration such as \"50ms\", \"5s\" or \"2m\"")),
    };
    let number: f64 = number.trim().parse().map_err(|_| format!("'{text}' is no duration"))?;
    Duration::try_from_secs_f64(number * seconds).map_err(|e| format!("'{text}': {e}"))
}

/// Reads `20GiB`, `512MiB` or a plain number of bytes.
pub fn bytes(text: &str) -> Result<u64, String> {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let (number, shift) = units
        .iter()
        .find_map(|(unit, shift)| text.strip_suffix(unit).map(|n| (n, *shift)))
        .unwrap_or((text, 0));
    let number: u64 = number.trim().parse().map_err(|_| format!("'{text}' is no size such as \"20GiB\""))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("'{text}' is too large"))
}

/// The reasons that hold a clock down, by the names used in scenarios.
const REASONS: &[(&str, u64)] = &[
    ("gpu_idle", 0x1),
    ("applications_clocks_setting", 0x2),
    ("sw_power_cap", 0x4),
    ("hw_slowdown", 0x8),
    ("sync_boost", 0x10),
    ("sw_thermal_slowdown", 0x20),
    ("hw_thermal_slowdown", 0x40),
    ("hw_power_brake_slowdown", 0x80),
    ("display_clock_setting", 0x100),
];

/// The mask of a list of reasons.
pub fn reasons(names: &[String]) -> Result<u64, String> {
    names.iter().try_fold(0, |mask, name| {
        let known = REASONS.iter().find(|(n, _)| n == name);
        known.map(|(_, bit)| mask | bit).ok_or_else(|| {
            let all: Vec<&str> = REASONS.iter().map(|(n, _)| *n).collect();
            format!("no clock event reason '{name}', there are {}", all.join(", "))
        })
    })
}

/// What a GPU wants done to be well again, by its number.
const RECOVERIES: [&str; 5] = ["none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset"];

/// The number of a recovery action.
pub fn recovery(name: &str) -> Result<u64, String> {
    let number = RECOVERIES.iter().position(|n| *n == name);
    let number =
        number.ok_or_else(|| format!("no recovery action '{name}', there are {}", RECOVERIES.join(", ")));
    number.map(|n| n as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_read() {
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("50ms"), Ok(Duration::from_millis(50)));
        assert!(duration("5").is_err() && duration("-1s").is_err() && duration("s").is_err());
        assert_eq!(bytes("20GiB"), Ok(20 << 30));
        assert_eq!(bytes("7"), Ok(7));
        assert!(bytes("20GB").is_err() && bytes("99999999TiB").is_err());
    }
}
