//! Format of a window file. Pure.

use std::ops::RangeInclusive;
use std::time::{Duration, UNIX_EPOCH};

use toml::value::{Datetime, Offset};
use toml::{Table, Value};

use model::catalog::WindowKind;
use model::catalog::schema::KnownLabel;
use model::text;
use model::window::Window;

/// Maximum size of a file.
pub(crate) const MAX_BYTES: usize = 64 * 1024;
/// Maximum length of a name in bytes.
const MAX_NAME: usize = 64;
/// Maximum length of a stored reason in bytes; the reason becomes a label.
pub const MAX_REASON: usize = 200;
/// Maximum number of listed problems of a file; the others are counted.
const MAX_PROBLEMS: usize = 8;
const KEYS: [&str; 6] = ["kind", "reason", "start", "end", "for", "expected_gpus"];
/// Valid numbers of GPUs that a node is expected to have after the work.
pub const EXPECTED_GPUS: RangeInclusive<i64> = 1..=64;
/// Error for an expected number of GPUs in a window of another kind.
pub const ONLY_MAINTENANCE: &str = "only maintenance takes GPUs out of a node";

/// Cuts a window to the maximum duration.
pub(crate) fn cut(window: Window, max_duration: Duration) -> Window {
    let latest = window.start + max_duration.as_secs_f64();
    Window { end: window.end.min(latest), cut: window.end > latest, ..window }
}

/// Parses a file into a window without a name. Returns all problems with their keys.
pub(crate) fn read(bytes: &[u8]) -> Result<Window, Vec<String>> {
    if bytes.len() > MAX_BYTES {
        return Err(vec![format!("larger than {} KiB", MAX_BYTES / 1024)]);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| vec!["the file is not UTF-8".to_owned()])?;
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let at = error.span().map_or(0, |span| {
            text.as_bytes()[..span.start.min(text.len())].iter().filter(|b| **b == b'\n').count()
        });
        vec![format!("line {}: {}", at + 1, text::clean(error.message(), MAX_REASON))]
    })?;
    let mut problems = Vec::new();
    for key in table.keys().filter(|key| !KEYS.contains(&key.as_str())) {
        problems.push(format!("unknown key `{}`; known: {}", text::clean(key, MAX_NAME), KEYS.join(", ")));
    }
    let kind = get(&table, "kind", kind, &mut problems);
    let reason = get(&table, "reason", text_of, &mut problems);
    let start = get(&table, "start", point, &mut problems);
    let end = get(&table, "end", point, &mut problems);
    let lasts = get(&table, "for", length, &mut problems);
    for (key, needed) in [("start", true), ("end", !table.contains_key("for"))] {
        if needed && !table.contains_key(key) {
            let or = if key == "end" { " (or `for`, as \"2h\")" } else { "" };
            problems.push(format!("key `{key}`{or} is missing"));
        }
    }
    if table.contains_key("end") && table.contains_key("for") {
        problems.push("keys `end` and `for` are both set; remove one of them".into());
    }
    let end = end.or(start.zip(lasts).map(|(start, lasts)| start + lasts));
    if let (Some(start), Some(end)) = (start, end)
        && end <= start
    {
        problems.push("key `end`: is not after `start`".into());
    }
    let expected_gpus = get(&table, "expected_gpus", expected_gpus, &mut problems);
    let kind = kind.unwrap_or(WindowKind::Maintenance);
    if kind != WindowKind::Maintenance && expected_gpus.is_some() {
        problems.push(format!("key `expected_gpus`: {ONLY_MAINTENANCE}"));
    }
    let (Some(start), Some(end), true) = (start, end, problems.is_empty()) else {
        let more = problems.len().saturating_sub(MAX_PROBLEMS);
        problems.truncate(MAX_PROBLEMS);
        problems.extend((more > 0).then(|| format!("and {more} more")));
        return Err(problems);
    };
    let reason = text::clean(&reason.unwrap_or_default(), MAX_REASON);
    Ok(Window { name: String::new(), kind, reason, start, end, cut: false, expected_gpus })
}

/// Formats a window as a file. [`read`] returns the same window to the microsecond.
pub(crate) fn write(window: &Window) -> String {
    let mut table = Table::new();
    table.insert("kind".into(), window.kind.known().into());
    table.insert("reason".into(), window.reason.as_str().into());
    for (key, at) in [("start", window.start), ("end", window.end)] {
        table.insert(key.into(), model::window::write(at).into());
    }
    if let Some(gpus) = window.expected_gpus {
        table.insert("expected_gpus".into(), i64::from(gpus).into());
    }
    format!("# Made by `gpu-node-exporter window start`; `gpu-node-exporter window end` ends it.\n{table}")
}

/// Reads a key and adds a problem if the value is invalid.
fn get<T>(
    table: &Table,
    key: &str,
    read: impl Fn(&Value) -> Result<T, String>,
    problems: &mut Vec<String>,
) -> Option<T> {
    table
        .get(key)
        .and_then(|value| read(value).map_err(|why| problems.push(format!("key `{key}`: {why}"))).ok())
}

fn kind(value: &Value) -> Result<WindowKind, String> {
    kind_of(value.as_str().unwrap_or_default())
}

/// Parses the name of a kind.
pub fn kind_of(text: &str) -> Result<WindowKind, String> {
    let known = || WindowKind::ALL.iter().map(|kind| kind.known()).collect::<Vec<_>>().join(", ");
    let kind = WindowKind::ALL.iter().find(|kind| kind.known() == text);
    kind.copied().ok_or_else(|| format!("must be one of: {}", known()))
}

fn text_of(value: &Value) -> Result<String, String> {
    value.as_str().map(ToOwned::to_owned).ok_or_else(|| "must be a string".into())
}

fn expected_gpus(value: &Value) -> Result<u32, String> {
    let gpus = value.as_integer().filter(|gpus| EXPECTED_GPUS.contains(gpus));
    gpus.and_then(|gpus| u32::try_from(gpus).ok())
        .ok_or_else(|| format!("must be a number from {} to {}", EXPECTED_GPUS.start(), EXPECTED_GPUS.end()))
}

/// Parses a timestamp, as a TOML date-time or a string.
fn point(value: &Value) -> Result<f64, String> {
    match value {
        Value::Datetime(datetime) => unix_seconds(*datetime),
        Value::String(text) => timestamp(text),
        _ => Err("must be a timestamp such as 2026-11-22T08:00:00Z".into()),
    }
}

/// Parses an RFC 3339 timestamp, such as `2026-11-22T08:00:00Z` or `2026-11-22T09:00:00+01:00`, into seconds since
/// 1970.
pub fn timestamp(text: &str) -> Result<f64, String> {
    let parsed = text.trim().parse();
    unix_seconds(parsed.map_err(|_| "is not a timestamp such as 2026-11-22T08:00:00Z (RFC 3339)".to_owned())?)
}

/// Converts a TOML date-time to seconds since 1970.
fn unix_seconds(mut datetime: Datetime) -> Result<f64, String> {
    let (Some(_), Some(time)) = (datetime.date, &mut datetime.time) else {
        return Err("must have a date and a time, such as 2026-11-22T08:00:00Z".into());
    };
    time.second.get_or_insert(0);
    let minutes = match datetime.offset.replace(Offset::Z) {
        Some(Offset::Z) => 0,
        Some(Offset::Custom { minutes }) => minutes,
        None => return Err("must end with an offset from UTC, such as Z or +01:00".into()),
    };
    let utc = humantime::parse_rfc3339(&datetime.to_string()).ok();
    let since = utc.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let seconds = since.map(|since| since.as_secs_f64() - f64::from(minutes) * 60.0);
    seconds.filter(|seconds| *seconds >= 0.0).ok_or_else(|| "is before 1970".into())
}

fn length(value: &Value) -> Result<f64, String> {
    let text = value.as_str().ok_or("must be a duration such as \"2h\"")?;
    length_of(text)
}

/// Parses a duration, such as `2h` or `1day 6h`.
pub fn length_of(text: &str) -> Result<f64, String> {
    let parsed = humantime::parse_duration(text.trim());
    let length = parsed.map_err(|_| "is not a duration such as 2h or 90m".to_owned())?;
    if length.is_zero() { Err("must not be zero".into()) } else { Ok(length.as_secs_f64()) }
}

/// Returns whether this is a valid name of a window. The name becomes a label and a file name.
pub fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    let first = bytes.next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    first
        && name.len() <= MAX_NAME
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// Rule for names, for error messages.
pub const NAME_RULE: &str = "a name is 1 to 64 letters, digits, dots, dashes and underscores, of which the first is a letter or digit";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: f64 = 3600.0;

    fn problems(text: &str) -> String {
        read(text.as_bytes()).expect_err(text).join("\n")
    }

    #[test]
    fn a_plan_is_read_in_each_of_its_forms() {
        let native = "reason = 'disk'\nstart = 2026-11-22T09:00:00+01:00\nfor = '2h'";
        let quoted = "kind = 'training'\nstart = '2026-11-22T08:00:00Z'\nend = '2026-11-22T10:00:00Z'";
        let (a, b) = (read(native.as_bytes()).unwrap(), read(quoted.as_bytes()).unwrap());
        assert_eq!((a.kind, a.reason.as_str()), (WindowKind::Maintenance, "disk"));
        assert_eq!((b.kind, b.reason.as_str()), (WindowKind::Training, ""));
        assert_eq!((a.start, a.end), (b.start, b.end));
        assert_eq!(a.end - a.start, 2.0 * HOUR);
        assert_eq!(read(write(&a).as_bytes()), Ok(a));
    }

    #[test]
    fn everything_wrong_is_named_with_its_key() {
        let text = problems("kind = 'party'\nreason = 5\nstart = 2026-11-22\nend = 'soon'\nwhy = ''\n");
        for said in ["`why`", "`kind`: must be one of: maintenance, training", "`reason`", "`start`", "`end`"]
        {
            assert!(text.contains(said), "{said}: {text}");
        }
        assert!(problems("").contains("`start` is missing"), "{}", problems(""));
        assert!(problems("start = 2026-11-22T08:00:00Z").contains("`end` (or `for`"));
        assert!(problems("a = [\n\n=").contains("line "));
        let both = "start = 2026-11-22T08:00:00Z\nend = 2026-11-22T09:00:00Z\nfor = '1h'";
        assert!(problems(both).contains("both set"));
        let back = "start = 2026-11-22T08:00:00Z\nend = 2026-11-22T07:00:00Z";
        assert!(problems(back).contains("not after"));
        assert!(problems("start = 2026-11-22T08:00:00Z\nfor = '0s'").contains("`for`"));
        assert!(read(&vec![b'#'; MAX_BYTES + 1]).unwrap_err()[0].contains("larger"));
        assert!(read(b"\xff").unwrap_err()[0].contains("UTF-8"));
        let many: String = (0..1000).map(|n| format!("k{n} = 1\n")).collect();
        let problems = read(many.as_bytes()).unwrap_err();
        assert!(
            problems.len() == MAX_PROBLEMS + 1 && problems.last().unwrap().contains("994 more"),
            "{problems:?}"
        );
    }

    #[test]
    fn nothing_is_nested_too_deep_for_the_thread_that_looks() {
        let deep = |open: &str, close: &str| {
            let n = (MAX_BYTES - 100) / (open.len() + close.len());
            format!("x = {}1{}", open.repeat(n), close.repeat(n))
        };
        let dotted = |n: usize| format!("x{} = 1", ".x".repeat(n));
        let texts = [
            deep("[", "]"),
            deep("[", ""),
            deep("{x=", "}"),
            dotted(MAX_BYTES / 2 - 10),
            format!("[x{}]", ".x".repeat(MAX_BYTES / 2 - 10)),
        ];
        // As small as that of the collector.
        let looked = std::thread::Builder::new()
            .stack_size(512 * 1024)
            .spawn(move || texts.iter().all(|text| read(text.as_bytes()).is_err()));
        assert!(looked.unwrap().join().unwrap());
    }

    #[test]
    fn what_is_planned_longer_is_cut() {
        let planned = read(b"start = 1970-01-01T00:01:40Z\nfor = '2h'").unwrap();
        let window = cut(planned.clone(), Duration::from_secs(50));
        assert_eq!((window.end, window.cut), (150.0, true));
        let window = cut(Window { end: 150.0, ..planned }, Duration::from_secs(50));
        assert_eq!((window.end, window.cut), (150.0, false));
    }

    #[test]
    fn names_are_safe() {
        for good in ["a", "disk-2026.11", "A_b", &"x".repeat(64)] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", ".", "..", "-a", ".hidden", "a/b", "a b", "ä", "a\n", &"x".repeat(65)] {
            assert!(!is_name(bad), "{bad}");
        }
        assert_eq!(text::clean(" a\nb\u{1b}c ", 9), "a b c");
        assert_eq!(text::clean("ääää", 5), "ää");
    }

    #[test]
    fn offsets_are_taken_into_account() {
        assert_eq!(timestamp("1970-01-01T00:00:00Z"), Ok(0.0));
        assert_eq!(timestamp("2026-11-22T09:00:00+01:00"), timestamp("2026-11-22T08:00:00Z"));
        assert_eq!(timestamp("2026-11-21T23:30:00-08:30"), timestamp("2026-11-22 08:00:00z"));
        assert_eq!(timestamp("1970-01-01T00:00:01.25Z"), Ok(1.25));
        assert_eq!(timestamp("2024-02-29T00:00:00Z"), Ok(1_709_164_800.0));
        assert_eq!(model::window::write(1_709_164_800.9), "2024-02-29T00:00:00Z");
    }

    #[test]
    fn what_is_no_single_moment_is_refused_and_says_why() {
        for (text, why) in [
            ("2026-11-22T08:00:00", "offset"),
            ("2026-11-22", "date and a time"),
            ("08:00:00", "date and a time"),
            ("2026-02-29T08:00:00Z", "RFC 3339"),
            ("2026-13-01T08:00:00Z", "RFC 3339"),
            ("2026-11-22T24:00:00Z", "RFC 3339"),
            ("tomorrow", "RFC 3339"),
            ("1969-12-31T23:00:00Z", "before 1970"),
            ("", "RFC 3339"),
        ] {
            let error = timestamp(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
        assert_eq!(model::window::write(-5.0), "1970-01-01T00:00:00Z");
        assert_eq!(model::window::write(f64::MAX), "9999-12-31T23:59:59Z");
        assert_eq!(model::window::write(f64::NAN), "1970-01-01T00:00:00Z");
    }

    proptest! {
        #[test]
        fn a_written_timestamp_is_read_as_the_same(seconds in 0u64..253_402_300_800) {
            prop_assert_eq!(timestamp(&model::window::write(seconds as f64)), Ok(seconds as f64));
        }

        #[test]
        fn no_text_is_too_odd(text in ".{0,40}") {
            let _ = timestamp(&text);
        }


        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = read(&bytes);
        }

        #[test]
        fn any_values_are_read_or_refused(
            key in "kind|reason|start|end|for|expected_gpus|x", value in "\"[^\"\\\\]{0,30}\"|[0-9TZ:+.-]{1,25}|\\[\\]|true"
        ) {
            let text = format!("{key} = {value}\nstart = 2026-11-22T08:00:00Z\nfor = '1h'");
            match read(text.as_bytes()) {
                Ok(plan) => {
                    prop_assert!(plan.end > plan.start && plan.reason.len() <= MAX_REASON);
                    prop_assert!(!plan.reason.chars().any(char::is_control));
                }
                Err(problems) => prop_assert!(!problems.is_empty()),
            }
        }

        #[test]
        fn what_is_written_is_read_as_the_same(
            reason in "\\PC{0,60}", start in 0u64..250_000_000_000, lasts in 1u64..10_000_000, training: bool,
            gpus in 1u32..=64
        ) {
            let kind = if training { WindowKind::Training } else { WindowKind::Maintenance };
            let (start, end) = (start as f64, (start + lasts) as f64);
            let reason = text::clean(&reason, MAX_REASON);
            let expected_gpus = (!training).then_some(gpus);
            let plan = Window { name: String::new(), kind, reason, start, end, cut: false, expected_gpus };
            prop_assert_eq!(read(write(&plan).as_bytes()), Ok(plan));
        }
    }
}
