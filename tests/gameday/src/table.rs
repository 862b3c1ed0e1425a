//! The table of a game day, for a terminal and for the documents.

use std::fmt::Write as _;
use std::time::Duration;

use crate::incident::Incident;
use crate::judge::{Outcome, SLACK, SLACK_THAT_LASTS};

/// An incident and what came of it.
pub struct Row<'a> {
    /// The incident.
    pub incident: &'a Incident,
    /// What came of it.
    pub outcome: Outcome,
    /// `for` of its alert, not scaled.
    pub lasts: Duration,
    /// Why that long.
    pub reason: String,
}

impl Row<'_> {
    fn alerts(&self) -> String {
        if self.incident.silent() { "none".into() } else { self.incident.alerts.join(", ") }
    }

    fn severity(&self) -> &str {
        if self.incident.silent() { "–" } else { &self.incident.severity }
    }

    fn after(&self) -> String {
        self.outcome.after.map_or("–".into(), |after| format!("{:.0}", after.as_secs_f64()))
    }

    fn limit(&self) -> String {
        if self.incident.silent() { "–".into() } else { self.outcome.limit.as_secs().to_string() }
    }

    fn lasts(&self) -> String {
        if self.incident.silent() { "–".into() } else { short(self.lasts) }
    }

    fn verdict(&self) -> String {
        if self.outcome.wrong.is_empty() { "as it must be".into() } else { self.outcome.wrong.join("; ") }
    }
}

/// A duration as rules have it.
fn short(time: Duration) -> String {
    match time.as_secs() {
        s if s > 0 && s % 3600 == 0 => format!("{}h", s / 3600),
        s if s > 0 && s % 60 == 0 => format!("{}m", s / 60),
        s => format!("{s}s"),
    }
}

/// For a terminal.
pub fn text(rows: &[Row<'_>]) -> String {
    let mut lines: Vec<[String; 8]> = vec![
        ["incident", "alert", "severity", "for", "seconds", "at most", "notifications", "result"]
            .map(str::to_owned),
    ];
    for row in rows {
        lines.push([
            row.incident.what.clone(),
            row.alerts(),
            row.severity().into(),
            row.lasts(),
            row.after(),
            row.limit(),
            row.outcome.notifications.to_string(),
            row.verdict(),
        ]);
    }
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..8).map(width).collect();
    let mut out = String::new();
    for line in &lines {
        let cells: Vec<String> = line
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell}{}", " ".repeat(width - cell.chars().count())))
            .collect();
        let _ = writeln!(out, "{}", cells.join("  ").trim_end());
    }
    out
}

/// For the documents.
pub fn markdown(rows: &[Row<'_>], scale: u64, fleet: &[String]) -> String {
    let mut out = format!(
        "Seconds from cause to notification, beside the most that was allowed: {} s, or `for` and {} s. Notifications are those in \
         the five minutes from the first one on. Alerts that only follow from another one are left out.\n\n\
         | incident | alert | severity | `for`, and why | seconds | at most | notifications |\n\
         |---|---|---|---|---|---|---|\n",
        SLACK.as_secs(),
        SLACK_THAT_LASTS.as_secs()
    );
    for row in rows {
        let incident = row.incident;
        let mark = if incident.scaled { format!(" (times / {scale})") } else { String::new() };
        let failed = if row.outcome.wrong.is_empty() { "" } else { " **wrong**" };
        let why = if row.reason.is_empty() { String::new() } else { format!(": {}", row.reason) };
        let _ = writeln!(
            out,
            "| {}{mark}{failed} | {} | {} | {}{} | {} | {} | {} |",
            incident.what,
            row.alerts(),
            row.severity(),
            row.lasts(),
            why.replace('|', "\\|"),
            row.after(),
            row.limit(),
            row.outcome.notifications
        );
    }
    let notes: Vec<&Row<'_>> = rows.iter().filter(|row| !row.incident.note.is_empty()).collect();
    if !notes.is_empty() {
        out.push_str("\nHow it was played, where that is not plain:\n\n");
    }
    for row in notes {
        let _ = writeln!(out, "- {}: {}", row.incident.what, row.incident.note);
    }
    for row in rows.iter().filter(|row| row.incident.known_after.seconds > 0) {
        let known = &row.incident.known_after;
        let _ = writeln!(out, "- {}: {} s more are allowed: {}", row.incident.what, known.seconds, known.why);
    }
    if !fleet.is_empty() {
        let _ = writeln!(
            out,
            "\nOf the fleet as a whole, in which all this happened at once: {}.",
            fleet.join(", ")
        );
    }
    for row in rows.iter().filter(|row| !row.outcome.wrong.is_empty()) {
        let _ = writeln!(out, "\nWrong: {}: {}", row.incident.what, row.verdict());
    }
    out
}
