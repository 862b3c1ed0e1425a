//! The rule files: copies whose times are shorter, and what their comments say of `for`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Fallible;

/// All rule files of a folder.
pub fn files(alerts: &Path) -> Fallible<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = fs::read_dir(alerts)
        .map_err(|e| format!("{}: {e}", alerts.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.to_string_lossy().ends_with(".rules.yml"))
        .collect();
    files.sort();
    if files.is_empty() {
        return Err(format!("{}: no rule files", alerts.display()).into());
    }
    Ok(files)
}

/// Copies the files into a folder with all times divided by the factor.
pub fn scaled(files: &[PathBuf], dir: &Path, factor: u64) -> Fallible<Vec<PathBuf>> {
    fs::create_dir_all(dir)?;
    let mut copies = Vec::new();
    for file in files {
        let name = file.file_name().ok_or("no file name")?;
        let text = fs::read_to_string(file)?;
        let copy = dir.join(name);
        fs::write(&copy, text.lines().map(|line| shorter(line, factor) + "\n").collect::<String>())?;
        copies.push(copy);
    }
    Ok(copies)
}

/// A line of a rule file with its times divided: `for: 15m`, `[6h]`, `[1h:5m]`, `offset 1d`, and numbers of seconds as
/// `6 * 3600`, `86400` and `4 * 3600`. No group is evaluated more often than once a second, which is how often is scraped.
pub fn shorter(line: &str, factor: u64) -> String {
    if line.trim_start().starts_with('#') {
        return line.to_owned();
    }
    let least = if line.trim_start().starts_with("interval:") { 1_000 } else { 1 };
    let mut out = String::new();
    let mut rest = line;
    while !rest.is_empty() {
        let start = rest.find(|c: char| c.is_ascii_alphanumeric() || c == '_').unwrap_or(rest.len());
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
        out.push_str(&word(&rest[..end], factor, least));
        rest = &rest[end..];
    }
    out
}

fn word(word: &str, factor: u64, least: u64) -> String {
    let milliseconds = |unit: &str| match unit {
        "s" => Some(1_000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        "d" => Some(86_400_000),
        "w" => Some(604_800_000),
        _ => None,
    };
    let digits = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
    let (number, unit) = word.split_at(digits);
    let Ok(number) = number.parse::<u64>() else { return word.to_owned() };
    match milliseconds(unit) {
        Some(each) => format!("{}ms", (number * each / factor).max(least)),
        // An hour and a day in seconds.
        None if unit.is_empty() && (number == 3600 || number == 86400) => (number / factor).to_string(),
        None => word.to_owned(),
    }
}

/// What the comments at each alert say, on one line.
pub fn comments(files: &[PathBuf]) -> Fallible<BTreeMap<String, String>> {
    let mut comments = BTreeMap::new();
    for file in files {
        comments.extend(comments_in(&fs::read_to_string(file)?));
    }
    Ok(comments)
}

/// A comment is above the alert or between its name and its expression.
fn comments_in(text: &str) -> BTreeMap<String, String> {
    let mut comments = BTreeMap::new();
    let mut comment: Vec<&str> = Vec::new();
    let mut alert: Option<&str> = None;
    for line in text.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix('#') {
            comment.push(text.trim());
        } else if let Some(name) = line.strip_prefix("- alert:") {
            alert = Some(name.trim());
        } else {
            if let Some(name) = alert.take_if(|_| line.starts_with("expr:")) {
                comments.insert(name.to_owned(), comment.join(" "));
            }
            comment.clear();
        }
    }
    comments
}

/// Why an alert waits as long as it does: the sentence of its comment that begins as `5 min: ` or `for 5m: `.
pub fn reason(comment: &str, lasts: Duration) -> Option<&str> {
    let seconds = lasts.as_secs();
    let ways =
        [(1, "s", "s"), (60, "m", "min"), (3600, "h", "h"), (86400, "d", "d")].map(|(unit, short, long)| {
            let number = seconds / unit;
            seconds.is_multiple_of(unit).then(|| [format!("{number}{short}: "), format!("{number} {long}: ")])
        });
    let after = ways.iter().flatten().flatten().find_map(|way| {
        let at = comment.match_indices(way.as_str()).map(|(at, _)| at);
        let mut whole = at.filter(|at| !comment[..*at].ends_with(|c: char| c.is_ascii_digit()));
        whole.next().map(|at| &comment[at + way.len()..])
    })?;
    Some(after.split_once(". ").map_or(after, |(sentence, _)| sentence).trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_divided_and_nothing_else() {
        for (line, expected) in [
            ("        for: 15m", "        for: 30000ms"),
            ("    interval: 5m", "    interval: 10000ms"),
            ("    interval: 15s", "    interval: 1000ms"),
            (
                "expr: rate(gpu_x2_total{gpu=\"1\"}[5m]) > 10",
                "expr: rate(gpu_x2_total{gpu=\"1\"}[10000ms]) > 10",
            ),
            ("avg_over_time(x[6h:5m] offset 1d)", "avg_over_time(x[720000ms:10000ms] offset 2880000ms)"),
            ("time() - y > 6 * 3600", "time() - y > 6 * 120"),
            ("job:gpu_unhealthy:burnrate5m > 14.4", "job:gpu_unhealthy:burnrate5m > 14.4"),
            ("# for: 15m", "# for: 15m"),
        ] {
            assert_eq!(shorter(line, 30), expected);
        }
    }

    #[test]
    fn a_reason_is_what_follows_the_time_in_the_comment_of_the_alert() {
        let text = "# Above. 5 min: it lasts. More.\n- alert: A\n  expr: x\n  for: 5m\n- alert: B\n  # Of b.\n\
                    # for 2m: two lines\n  # of it.\n  expr: x\n- alert: C\n  expr: y";
        let comments = comments_in(text);
        let reason = |name: &str, minutes: u64| reason(&comments[name], Duration::from_secs(minutes * 60));
        assert_eq!(reason("A", 5), Some("it lasts"));
        assert_eq!(reason("A", 15), None);
        assert_eq!(reason("B", 2), Some("two lines of it"));
        assert_eq!(reason("C", 0), None);
    }
}
