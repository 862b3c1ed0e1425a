//! Timestamps as people write them: RFC 3339, always with an offset from UTC.

use toml::value::{Datetime, Offset};

/// Seconds of a day.
const DAY: i64 = 86_400;

/// Reads a timestamp, as `2026-11-22T08:00:00Z` or `2026-11-22T09:00:00+01:00`: seconds since 1970.
pub fn read(text: &str) -> Result<f64, String> {
    let parsed: Datetime = text
        .trim()
        .parse()
        .map_err(|_| "is no timestamp such as 2026-11-22T08:00:00Z (RFC 3339)".to_owned())?;
    of(&parsed)
}

/// A timestamp that TOML has read.
pub fn of(datetime: &Datetime) -> Result<f64, String> {
    let (Some(date), Some(time)) = (datetime.date, datetime.time) else {
        return Err("must have date and time, as 2026-11-22T08:00:00Z".into());
    };
    let minutes = match datetime.offset {
        Some(Offset::Z) => 0,
        Some(Offset::Custom { minutes }) => i64::from(minutes),
        None => return Err("must say the offset from UTC: end it with Z or, say, +01:00".into()),
    };
    let days = days_since_1970(i64::from(date.year), i64::from(date.month), i64::from(date.day));
    // A leap second counts as the one after it, as clocks do.
    let of_day = i64::from(time.hour) * 3600 + i64::from(time.minute) * 60;
    let whole = days * DAY + of_day + i64::from(time.second.unwrap_or(0)) - minutes * 60;
    if whole < 0 {
        return Err("is before 1970".into());
    }
    Ok(whole as f64 + f64::from(time.nanosecond.unwrap_or(0)) * 1e-9)
}

/// Days from 1970-01-01 to a date of the Gregorian calendar. Years are counted from March, so that the leap day is
/// the last of its year: then the days before a month are `(153 * month + 2) / 5`, whatever the year.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    let leap_days = year / 4 - year / 100 + year / 400;
    // 719468 days lie between 0000-03-01 and 1970-01-01.
    365 * year + leap_days + (153 * month + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::window::write;
    use proptest::prelude::*;

    #[test]
    fn offsets_are_taken_into_account() {
        assert_eq!(read("1970-01-01T00:00:00Z"), Ok(0.0));
        assert_eq!(read("2026-11-22T09:00:00+01:00"), read("2026-11-22T08:00:00Z"));
        assert_eq!(read("2026-11-21T23:30:00-08:30"), read("2026-11-22 08:00:00z"));
        assert_eq!(read("1970-01-01T00:00:01.25Z"), Ok(1.25));
        assert_eq!(read("2024-02-29T00:00:00Z"), Ok(1_709_164_800.0));
        assert_eq!(write(1_709_164_800.9), "2024-02-29T00:00:00Z");
    }

    #[test]
    fn what_is_no_single_moment_is_refused_and_says_why() {
        for (text, why) in [
            ("2026-11-22T08:00:00", "offset"),
            ("2026-11-22", "date and time"),
            ("08:00:00", "date and time"),
            ("2026-02-29T08:00:00Z", "RFC 3339"),
            ("2026-13-01T08:00:00Z", "RFC 3339"),
            ("2026-11-22T24:00:00Z", "RFC 3339"),
            ("tomorrow", "RFC 3339"),
            ("1969-12-31T23:00:00Z", "before 1970"),
            ("", "RFC 3339"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
        assert_eq!(write(-5.0), "1970-01-01T00:00:00Z");
        assert_eq!(write(f64::MAX), "9999-12-31T23:59:59Z");
        assert_eq!(write(f64::NAN), "1970-01-01T00:00:00Z");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_as_the_same(seconds in 0u64..253_402_300_800) {
            prop_assert_eq!(read(&write(seconds as f64)), Ok(seconds as f64));
        }

        #[test]
        fn no_text_is_too_odd(text in ".{0,40}") {
            let _ = read(&text);
        }
    }
}
