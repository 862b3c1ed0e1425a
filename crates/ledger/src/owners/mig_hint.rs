//! Smallest MIG profile that would have been enough, from percentiles over time.

/// Number of bins between 0 and 1.
const BINS: usize = 128;
/// Minimum time for a hint, in seconds.
pub const ENOUGH: f64 = 24.0 * 3600.0;
/// Percentile that a profile must hold.
pub const PERCENTILE: f64 = 0.95;
/// Usable share of the memory in a profile's name (71 in `3g.71gb`, in 10^9 bytes). Names are rounded up, and the
/// driver reserves some.
const USABLE: f64 = 0.9;

/// Seconds by share of a GPU, in [`BINS`] bins; empty before the first value.
#[derive(Clone, Default)]
pub(crate) struct ShareHistogram(Vec<f64>);

impl ShareHistogram {
    /// Adds the seconds for which the share had this value. Values outside 0 to 1 are ignored.
    pub fn add(&mut self, share: f64, seconds: f64) {
        if (0.0..=1.0).contains(&share) && (0.0..=1e9).contains(&seconds) {
            self.0.resize(BINS, 0.0);
            // Rounded up, because the named profile must hold the work.
            let bin = ((share * BINS as f64).ceil() as usize).clamp(1, BINS) - 1;
            self.0[bin] += seconds;
        }
    }

    /// Returns the share that was not exceeded for this part of the time, rounded up to 1/128, or `None` before
    /// [`ENOUGH`] seconds.
    pub fn percentile(&self, part: f64) -> Option<f64> {
        let all: f64 = self.0.iter().sum();
        let mut left = all * part;
        let reaches = |seconds: &f64| {
            left -= seconds;
            left <= 0.0
        };
        let bin = self.0.iter().position(reaches).unwrap_or(BINS - 1);
        (all >= ENOUGH).then_some((bin + 1) as f64 / BINS as f64)
    }
}

/// Returns the smallest profile that holds this many bytes and this share of the multiprocessors of a GPU with
/// `slices_of_gpu` compute slices. Profiles with a suffix such as `+me` are for special needs.
pub fn smallest<'a>(
    profiles: impl Iterator<Item = &'a str>,
    slices_of_gpu: f64,
    (memory, multiprocessors): (f64, f64),
) -> Option<&'a str> {
    let known = profiles.filter_map(|name| parts(name).map(|(slices, memory)| (slices, memory, name)));
    let fits = known
        .filter(|(slices, has, _)| *has >= memory && f64::from(*slices) / slices_of_gpu >= multiprocessors);
    fits.min_by(|a, b| (a.0, a.1).partial_cmp(&(b.0, b.1)).unwrap_or(std::cmp::Ordering::Equal)).map(|f| f.2)
}

/// Returns the compute slices and the usable memory of a profile such as `3g.71gb`.
fn parts(name: &str) -> Option<(u32, f64)> {
    let (slices, rest) = name.split_once("g.")?;
    let gigabytes: f64 = rest.strip_suffix("gb")?.parse().ok()?;
    Some((slices.parse().ok().filter(|n| *n > 0)?, gigabytes * 1e9 * USABLE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_is_said_before_a_day_is_over() {
        let mut shares = ShareHistogram::default();
        shares.add(0.5, ENOUGH - 1.0);
        assert_eq!(shares.percentile(0.95), None);
        shares.add(0.9, 1.0);
        assert_eq!(shares.percentile(0.95), Some(0.5));
    }

    #[test]
    fn the_smallest_profile_that_holds_both_is_named() {
        let names = ["7g.141gb", "1g.18gb", "1g.18gb+me", "1g.35gb", "2g.35gb", "3g.71gb"];
        let need = |gib: f64, multiprocessors| (gib * 1073741824.0, multiprocessors);
        let of = |need| smallest(names.into_iter(), 7.0, need);
        assert_eq!(of(need(10.0, 0.1)), Some("1g.18gb"));
        assert_eq!(of(need(20.0, 0.1)), Some("1g.35gb"), "one with more memory");
        assert_eq!(of(need(20.0, 0.2)), Some("2g.35gb"));
        assert_eq!(of(need(20.0, 0.8)), Some("7g.141gb"));
        assert_eq!(of(need(200.0, 0.8)), None);
    }

    proptest! {
        #[test]
        fn the_percentile_is_that_of_the_sorted_shares_to_a_bin(
            shares in prop::collection::vec(0f64..=1.0, 20..200), part in 0.01f64..1.0,
        ) {
            let mut histogram = ShareHistogram::default();
            shares.iter().for_each(|share| histogram.add(*share, ENOUGH));
            let mut sorted = shares.clone();
            sorted.sort_by(f64::total_cmp);
            let rank = ((shares.len() as f64 * part).ceil() as usize).clamp(1, shares.len());
            let found = histogram.percentile(part).unwrap();
            // Of equal seconds the bin of the ranked share, or that of a neighbour by rounding.
            let (low, high) = (sorted[rank.saturating_sub(2)], sorted[rank.min(shares.len() - 1)]);
            prop_assert!(found >= low - 1e-9 && found <= high + 1.0 / BINS as f64 + 1e-9);
        }
    }
}
