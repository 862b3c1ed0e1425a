//! Every threshold of the step, with its reason.

/// The grid: the driver's samples of power come 20 ms apart.
pub const TICK: f64 = 0.02;
/// Ticks kept: 164 s, eight periods of the longest step.
pub const KEPT: usize = 8192;
/// The power between two samples further apart than this is unknown.
pub const GAP: f64 = 0.5;
/// Without a sample for this long, nothing is said.
pub const STALE: f64 = 5.0;
/// A search this often, in seconds, while no period is known.
pub const SEARCH_EVERY: f64 = 4.0;
/// The shortest period, in ticks: four samples show that something repeats.
pub const SHORTEST: usize = 4;
/// A correlation below this is no period.
pub const FOUND: f32 = 0.5;
/// The smallest lag within this share of the highest peak is the period.
pub const AS_HIGH: f32 = 0.85;
