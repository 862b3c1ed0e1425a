//! A period in the last seconds, or none.

use crate::correlation::{at, flatten};
use crate::grid::Grid;
use crate::thresholds::{AS_HIGH, FOUND, SHORTEST, TICK};
use crate::{Beat, Kind};

/// The period of the samples on the grid.
pub fn search(grid: &Grid) -> Option<Beat> {
    let values = flatten(&grid.last(1500), 500);
    let heights: Vec<f32> = (0..values.len() / 3).map(|lag| at(&values, lag)).collect();
    let peaks: Vec<(usize, f32)> = heights
        .windows(3)
        .zip(1..)
        .filter_map(|(window, lag)| match window {
            [left, top, right] if lag >= SHORTEST && top > left && top >= right => Some((lag, *top)),
            _ => None,
        })
        .collect();
    let highest = peaks.iter().map(|(_, height)| *height).fold(0.0_f32, f32::max);
    if highest < FOUND {
        return None;
    }
    let (lag, height) = peaks.iter().find(|(_, height)| *height >= AS_HIGH * highest)?;
    Some(Beat { seconds: *lag as f64 * TICK, confidence: f64::from(*height), jitter: 0.0, kind: Kind::Step })
}
