//! Quantities that are compared with earlier runs, and their tolerances. The file of a check defines the check's
//! quantities.

use crate::stats::Spread;

/// Minimum distance from the median at which a sample counts as worse, in robust sigmas, regardless of the tolerance.
const SIGMAS: f64 = 6.0;
/// Share of the siblings' median below which a GPU is slow, even if it matches its own baseline. The GPU may have been
/// slow from the start.
const OF_SIBLINGS: f64 = 0.90;

/// A figure that a run measures and that later runs are compared with.
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    /// Key of the quantity in the state file.
    pub name: &'static str,
    /// Formats a figure with its unit.
    pub shown: fn(f64) -> String,
    /// True if less is better. Siblings are then not compared.
    pub is_time: bool,
    /// Tolerance before a sample counts as low, as a share of the median.
    share: f64,
    /// Minimum tolerance, in the unit of the quantity.
    at_least: f64,
    /// Tolerance on GPUs that change their clocks with temperature and voltage without reporting a reason.
    where_clocks_move: f64,
    /// Minimum share of the siblings' median.
    pub of_siblings: f64,
}

impl Quantity {
    pub(crate) const fn rate(name: &'static str, shown: fn(f64) -> String, share: f64) -> Quantity {
        let (where_clocks_move, of_siblings) = (share, OF_SIBLINGS);
        Quantity { name, shown, is_time: false, share, at_least: 0.0, where_clocks_move, of_siblings }
    }

    pub(crate) const fn time(name: &'static str, share: f64, at_least: f64) -> Quantity {
        Quantity { is_time: true, at_least, ..Quantity::rate(name, crate::format::seconds, share) }
    }

    pub(crate) const fn where_clocks_move(self, share: f64) -> Quantity {
        Quantity { where_clocks_move: share, ..self }
    }

    pub(crate) const fn beside_siblings(self, of_siblings: f64) -> Quantity {
        Quantity { of_siblings, ..self }
    }

    /// Returns the tolerance as a share. `steady` means that the GPU runs at its highest clock unless NVML reports a
    /// reason.
    pub fn tolerance(&self, steady: bool) -> f64 {
        if steady { self.share } else { self.where_clocks_move }
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Quantity) -> bool {
        self.name == other.name
    }
}

/// Usual value of a quantity at a place in its configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reference {
    pub quantity: Quantity,
    /// Median and spread of the clean samples.
    pub spread: Spread,
    /// Number of clean samples.
    pub count: usize,
}

impl Reference {
    /// Returns the sample as a share of the median, inverted for times, so that a ratio below 1 is always worse.
    pub fn ratio(&self, sample: f64) -> f64 {
        match self.quantity.is_time {
            true => self.spread.median / sample,
            false => sample / self.spread.median,
        }
    }

    /// Returns true if the sample is worse than chance and tolerance allow.
    pub fn is_worse(&self, sample: f64, steady: bool) -> bool {
        let Spread { median, sigma } = self.spread;
        let allowed =
            (self.quantity.tolerance(steady) * median).max(SIGMAS * sigma).max(self.quantity.at_least);
        match self.quantity.is_time {
            true => sample > median + allowed,
            false => sample < median - allowed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::steps::STEPS;

    fn reference(quantity: Quantity, median: f64, sigma: f64) -> Reference {
        Reference { quantity, spread: Spread { median, sigma }, count: 100 }
    }

    #[test]
    fn rates_are_worse_below_and_times_above() {
        let rate = reference(Quantity::HBM_READ, 4.0e12, 1e10);
        assert!(rate.is_worse(3.7e12, true) && !rate.is_worse(3.85e12, true));
        assert!(!rate.is_worse(9e12, true));
        let wide = reference(Quantity::HBM_READ, 4.0e12, 1e11);
        assert!(!wide.is_worse(3.5e12, true), "six sigmas are 0.6e12");
        let launch = reference(Quantity::LAUNCH, 9e-6, 1e-7);
        assert!(!launch.is_worse(28e-6, true) && launch.is_worse(30e-6, true));
        assert!((launch.ratio(18e-6) - 0.5).abs() < 1e-9);
        let context = reference(STEPS[3].1, 0.1, 0.01);
        assert!(!context.is_worse(2.0, true) && context.is_worse(2.2, true));
        assert!(reference(STEPS[3].1, 1.0, 0.01).is_worse(5.1, true));
    }

    #[test]
    fn only_steady_parts_are_held_to_a_third_of_a_percent() {
        let clock = reference(Quantity::SM_RATE_CLOCK, 1980e6, 1e5);
        assert!(clock.is_worse(1970e6, true) && !clock.is_worse(1970e6, false));
    }
}
