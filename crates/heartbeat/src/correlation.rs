//! How alike a series is some time later.

/// Takes the slow trend away: the mean of `width` values around each. Unknown values become 0.
pub fn flatten(values: &[f32], width: usize) -> Vec<f32> {
    let mut sums = Vec::with_capacity(values.len() + 1);
    let (mut sum, mut known) = (0.0_f64, 0_u32);
    sums.push((sum, known));
    for value in values {
        if value.is_finite() {
            sum += f64::from(*value);
            known += 1;
        }
        sums.push((sum, known));
    }
    let half = width / 2;
    let flat = |(place, value): (usize, &f32)| {
        let from = sums.get(place.saturating_sub(half))?;
        let to = sums.get((place + half + 1).min(values.len()))?;
        value.is_finite().then(|| value - ((to.0 - from.0) / f64::from(to.1 - from.1)) as f32)
    };
    values.iter().enumerate().map(|at| flat(at).unwrap_or(0.0)).collect()
}

/// The correlation of the series with itself `lag` later, -1 to 1.
pub fn at(values: &[f32], lag: usize) -> f32 {
    let (Some(early), Some(late)) = (values.get(..values.len().saturating_sub(lag)), values.get(lag..))
    else {
        return 0.0;
    };
    let power = dot(early, early) * dot(late, late);
    if power > 0.0 { dot(early, late) / power.sqrt() } else { 0.0 }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 8;
    let mut sums = [0.0_f32; LANES];
    for (a, b) in a.chunks_exact(LANES).zip(b.chunks_exact(LANES)) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    let rest = a.len() - a.len() % LANES;
    let tail: f32 = a.iter().zip(b).skip(rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + tail
}
