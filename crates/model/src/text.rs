//! Cleaning of external text for labels and logs, and formatting of numbers for people.

use std::time::Duration;

/// Returns the text without line breaks or repeated spaces.
pub fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the text on one line, with a maximum length of `most` bytes.
pub fn clean(text: &str, most: usize) -> String {
    let mut out = String::new();
    for char in text.trim().chars() {
        let char = if char.is_control() { ' ' } else { char };
        if out.len() + char.len_utf8() > most {
            break;
        }
        out.push(char);
    }
    out
}

/// Formats a duration for people, in its largest unit.
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..10 => format!("{:.1} s", duration.as_secs_f64()),
        10..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Formats seconds since 1970 as `15:04:05 UTC`.
pub fn time_of_day(unix_seconds: f64) -> String {
    let seconds = Duration::try_from_secs_f64(unix_seconds).unwrap_or_default().as_secs() % 86_400;
    format!("{:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Returns the value of a label for people.
pub fn plain(label: &str) -> String {
    label.replace('_', " ")
}

/// Returns the text with its first letter in upper case.
pub fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        let cases = [
            (0.14, "0.1 s"),
            (12.9, "12 s"),
            (119.0, "119 s"),
            (125.0, "2 min"),
            (7_300.0, "2 h"),
            (4e5, "4 d"),
        ];
        for (seconds, text) in cases {
            assert_eq!(duration(Duration::from_secs_f64(seconds)), text);
        }
        assert_eq!(time_of_day(1_795_000_000.25), "11:06:40 UTC");
    }
}
