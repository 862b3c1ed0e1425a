//! The rule files: copies whose times are shorter, and what their comments say of `for`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::Fallible;

/// All rule files of the folder `alerts`, without the optional ones.
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
/// `6 * 3600`, `86400` and `4 * 3600`.
fn shorter(line: &str, factor: u64) -> String {
    if line.trim_start().starts_with('#') {
        return line.to_owned();
    }
    let mut out = String::new();
    let mut rest = line;
    while !rest.is_empty() {
        let start = rest.find(|c: char| c.is_ascii_alphanumeric() || c == '_').unwrap_or(rest.len());
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
        out.push_str(&word(&rest[..end], factor));
        rest = &rest[end..];
    }
    out
}

fn word(word: &str, factor: u64) -> String {
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
        Some(each) => format!("{}ms", (number * each / factor).max(1)),
        // An hour and a day in seconds.
        None if unit.is_empty() && (number == 3600 || number == 86400) => (number / factor).to_string(),
        None => word.to_owned(),
    }
}

/// Why each alert waits as long as it does: what the comments at it say after `for 5m:`, on one line.
pub fn reasons(files: &[PathBuf]) -> Fallible<BTreeMap<String, String>> {
    let mut reasons = BTreeMap::new();
    for file in files {
        reasons.extend(reasons_in(&fs::read_to_string(file)?));
    }
    Ok(reasons)
}

fn reasons_in(text: &str) -> BTreeMap<String, String> {
    let mut reasons = BTreeMap::new();
    let mut comment: Vec<&str> = Vec::new();
    let mut alert: Option<&str> = None;
    for line in text.lines().map(str::trim).chain(["- end"]) {
        if let Some(text) = line.strip_prefix('#') {
            comment.push(text.trim());
        } else if let Some(name) = line.strip_prefix("- alert:") {
            alert = Some(name.trim());
        } else if line.starts_with("expr:") || line.starts_with("for:") || line.starts_with("- ") {
            let from = comment.iter().position(|line| line.strip_prefix("for ").is_some_and(is_reason));
            if let (Some(name), Some(from)) = (alert, from) {
                let all = comment[from..].join(" ");
                let reason = all.split_once(": ").map_or("", |(_, reason)| reason);
                reasons.entry(name.to_owned()).or_insert_with(|| reason.to_owned());
            }
            comment.clear();
            if line.starts_with("- ") {
                alert = None;
            }
        }
    }
    reasons
}

/// Whether it begins as `5m: `.
fn is_reason(text: &str) -> bool {
    text.split_once(':').is_some_and(|(time, _)| {
        time.starts_with(|c: char| c.is_ascii_digit()) && time.chars().all(|c| c.is_ascii_alphanumeric())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_divided_and_nothing_else() {
        for (line, expected) in [
            ("        for: 15m", "        for: 30000ms"),
            ("expr: rate(gpu_x2_total{gpu=\"1\"}[5m]) > 10", "expr: rate(gpu_x2_total{gpu=\"1\"}[10000ms]) > 10"),
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
        let text = "\
            # Above.\n# for 5m: it lasts.\n- alert: A\n  expr: x\n  for: 5m\n\
            - alert: B\n  # Of b.\n  # for 2m: two lines\n  # of it.\n  expr: x\n- alert: C\n  expr: y";
        let reasons = reasons_in(text);
        assert_eq!(reasons.get("A").map(String::as_str), Some("it lasts."));
        assert_eq!(reasons.get("B").map(String::as_str), Some("two lines of it."));
        assert_eq!(reasons.get("C"), None);
    }
}
