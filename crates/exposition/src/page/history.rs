//! The points of the charts as JSON, served at `/page/history`.
//!
//! ```text
//! step_seconds        time between two points; 0: `page.history` is off
//! end_unix_seconds    end of the newest point of all curves
//! curves[]            curves of whole GPUs
//!   metric, gpu       name of the metric, index of the GPU
//!   points[]          means in the metric's unit with three significant digits, oldest first; null: no value
//! ```
//!
//! The document changes with every step of the history. A point of the document is the mean of three points of the history,
//! because all points would be half of the bytes of the page, and a chart has too few pixels for them.

use serde::Serialize;

use super::spark;
use crate::api;
use model::catalog::{self, Subject};
use model::snapshot::Snapshot;
use model::trends::FOLLOWED;

/// Number of history points that are merged into a point of the document.
const MERGED: usize = 3;
/// Number of followed values that have charts, counted from the first.
const CHARTED: usize = 4;

#[derive(Serialize)]
struct HistoryDocument {
    step_seconds: f64,
    end_unix_seconds: f64,
    curves: Vec<CurveEntry>,
}

#[derive(Serialize)]
struct CurveEntry {
    metric: &'static str,
    gpu: u32,
    points: Vec<Option<f64>>,
}

/// Appends the document with all charted curves.
pub fn encode(snapshot: &Snapshot, out: &mut String) {
    let trends = &snapshot.trends;
    let charted = trends.curves.iter().filter(|((at, _), _)| *at < CHARTED);
    let curves = charted.filter_map(|((at, subject), points)| {
        let Subject::Gpu(gpu) = subject else { return None };
        let metric = catalog::def(FOLLOWED.get(*at)?.metric)?.name;
        let mut points: Vec<Option<f64>> =
            points.rchunks(MERGED).map(|some| spark::mean(some).map(three_digits)).collect();
        points.reverse();
        Some(CurveEntry { metric, gpu: gpu.gpu, points })
    });
    let document = HistoryDocument {
        step_seconds: trends.step.as_secs_f64() * MERGED as f64,
        end_unix_seconds: snapshot.unix_seconds - snapshot.taken.since(trends.end).as_secs_f64(),
        curves: curves.collect(),
    };
    api::append(&document, out);
}

/// Rounds to three significant digits. More digits are invisible in a chart and compress badly.
fn three_digits(value: f32) -> f64 {
    format!("{value:.2e}").parse().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use model::catalog::schema::Entity;
    use model::clock::Mono;
    use model::trends::Trends;

    use super::*;
    use crate::fixtures;

    #[test]
    fn a_point_is_the_mean_of_what_is_known() {
        let mut snapshot = fixtures::node_taken(1, Mono(12_000_000_000));
        let points: Box<[f32]> = [5.0, 65.4321, f32::NAN, 65.4321, f32::NAN, f32::NAN, f32::NAN].into();
        let curves =
            [((3, fixtures::gpu(2).subject()), points.clone()), ((4, fixtures::gpu(2).subject()), points)];
        let (step, end) = (Duration::from_secs(10), Mono(10_000_000_000));
        snapshot.trends = Arc::new(Trends { step, end, curves: curves.into() });
        let mut text = String::new();
        encode(&snapshot, &mut text);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let curve = serde_json::json!({
            "metric": "gpu_temperature_celsius", "gpu": 2, "points": [5.0, 65.4, null]
        });
        let end = snapshot.unix_seconds - 2.0;
        assert_eq!(
            json,
            serde_json::json!({ "step_seconds": 30.0, "end_unix_seconds": end, "curves": [curve] })
        );
    }
}
