//! Sparklines: small charts of the history of a value, drawn without JavaScript.

use std::fmt::Write;

use maud::{Markup, html};

/// Number of columns of a full history. A column is the mean of four points.
const COLUMNS: usize = 90;
/// Height of a sparkline, in rows.
const ROWS: f32 = 24.0;

/// Renders the area below `points`. `top` is the value at the upper edge, and `text` formats a value for the description.
pub fn area(points: &[f32], top: f64, text: impl Fn(f64) -> String) -> Markup {
    let size = format!("0 0 {COLUMNS} {ROWS}");
    let known = || points.iter().filter(|point| point.is_finite()).map(|point| f64::from(*point));
    let (Some(low), Some(high)) = (known().reduce(f64::min), known().reduce(f64::max)) else {
        // An empty sparkline has the same height.
        return html! { svg.spark aria-hidden="true" viewBox=(size) {} };
    };
    let description = match (text(low), text(high)) {
        (low, high) if low == high => format!("History: {low}"),
        (low, high) => format!("History: {low} to {high}"),
    };
    html! {
        svg.spark role="img" aria-label=(description) viewBox=(size) preserveAspectRatio="none" {
            path d=(path(points, top)) {}
        }
    }
}

/// Returns the area as an SVG path. The newest point is at the right edge, and missing values are gaps.
fn path(points: &[f32], top: f64) -> String {
    let width = model::trends::POINTS / COLUMNS;
    let mut means: Vec<Option<f32>> = points.rchunks(width).map(mean).collect();
    means.reverse();
    let scale = ROWS / top.max(f64::MIN_POSITIVE) as f32;
    let first = COLUMNS.saturating_sub(means.len());
    let mut out = String::new();
    let mut before: Option<i32> = None;
    for (at, mean) in means.into_iter().enumerate() {
        // A value of 0 is slightly above the lower edge, so that it differs from a missing value.
        let y = mean.map(|mean| (ROWS - (mean * scale).clamp(0.5, ROWS)).round() as i32);
        // Writing to a string cannot fail.
        let _ = match (before, y) {
            (None, Some(y)) => write!(out, "M{} {ROWS}V{y}h1", first + at),
            (Some(last), Some(y)) if last == y => write!(out, "h1"),
            (Some(last), Some(y)) => write!(out, "v{}h1", y - last),
            (Some(_), None) => write!(out, "V{ROWS}"),
            (None, None) => Ok(()),
        };
        before = y;
    }
    if before.is_some() {
        let _ = write!(out, "V{ROWS}");
    }
    out.replace("h1h1h1h1", "h4")
}

/// Returns the mean of the points that are not missing.
pub fn mean(points: &[f32]) -> Option<f32> {
    let (sum, count) = points.iter().filter(|p| p.is_finite()).fold((0.0, 0.0), |(s, n), p| (s + p, n + 1.0));
    (count > 0.0).then(|| sum / count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_point_is_at_the_right_and_a_gap_stays_a_gap() {
        let mut points = vec![0.5; 8];
        points.extend([f32::NAN; 4]);
        points.extend([1.0, 1.0, f32::NAN, 1.0]);
        assert_eq!(path(&points, 1.0), "M86 24V12h1h1V24M89 24V0h1V24");
        assert_eq!(path(&[0.0], 1.0), "M89 24V24h1V24", "a value of 0 is a line");
        assert_eq!(path(&[], 1.0), "");
        assert_eq!(path(&[7.0; 360], 1.0).matches('h').count(), 90 / 4 + 2, "above the top is the top");
    }

    #[test]
    fn the_description_has_the_range() {
        let text = |value: f64| format!("{value:.0} W");
        assert!(area(&[f32::NAN, 3.0, 9.0], 10.0, text).0.contains("History: 3 W to 9 W"));
        assert!(area(&[f32::NAN], 10.0, text).0.contains("aria-hidden"));
    }
}
