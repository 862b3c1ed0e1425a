//! Measurements of a GPU or GPU instance over the last 30 s, as shares of the time.

use std::collections::VecDeque;
use std::time::Duration;

use super::classes::Gathered;
use super::gpm::UnitWindow;
use super::pulse::{self, Measured};
use super::timeline::InstanceId;
use crate::bottleneck::WINDOW;
use model::clock::Mono;

/// Minimum number of power samples in a second (of about 50) for a variance.
const FEWEST_SAMPLES: f64 = 10.0;
/// Maximum age of utilization samples, which are drained at least every 10 s.
const FRESH: Duration = Duration::from_secs(15);
/// Maximum number of power samples kept: one minute, more than arrive between two publications.
const MOST_MEASURED: usize = 4096;
/// Limit of the variance in a second, in square watts, so that one restless second in thirty does not count as work.
const MOST_VARIANCE: f64 = 1.0;

/// Quantity measured over time, with totals of both.
#[derive(Default)]
pub(crate) struct Track {
    /// Readings: their time, total seconds and total amount.
    points: VecDeque<(Mono, f64, f64)>,
    seconds: f64,
    amount: f64,
}

impl Track {
    /// Adds an amount over these seconds, read at `at`.
    pub fn add(&mut self, at: Mono, seconds: f64, amount: f64) {
        self.seconds += seconds;
        self.amount += amount;
        match self.points.back_mut() {
            Some(last) if last.0 == at => (last.1, last.2) = (self.seconds, self.amount),
            _ => {
                if self.points.is_empty() {
                    self.points.push_back((at, self.seconds - seconds, self.amount - amount));
                }
                self.points.push_back((at, self.seconds, self.amount));
            }
        }
        // One reading older than the window stays as its start.
        while self.points.get(1).is_some_and(|second| at.since(second.0) > WINDOW) {
            self.points.pop_front();
        }
    }

    /// Adds a reading of a running total.
    pub fn total(&mut self, at: Mono, amount: f64) {
        match self.points.back().copied() {
            // A lower total has restarted.
            Some((_, _, before)) if amount < before => *self = Track::default(),
            _ => {}
        }
        let (seconds, before) = match self.points.back() {
            Some((then, _, before)) => (at.since(*then).as_secs_f64(), *before),
            None => {
                (self.seconds, self.amount) = (0.0, amount);
                self.points.push_back((at, 0.0, amount));
                return;
            }
        };
        self.add(at, seconds, amount - before);
    }

    /// Returns the amount per second over the last 30 s, or `None` without a recent reading.
    pub fn rate(&self, now: Mono) -> Option<f64> {
        let (first, last) = (self.points.front()?, self.points.back()?);
        let seconds = last.1 - first.1;
        // The next reading of a long window cannot come before the window ends.
        let newest = self.points.iter().nth_back(1).map_or(0.0, |before| last.1 - before.1);
        let fresh = WINDOW.max(Duration::from_secs_f64(1.5 * newest.max(0.0)));
        (now.since(last.0) <= fresh && seconds >= 1.0).then(|| (last.2 - first.2).max(0.0) / seconds)
    }

    /// Returns the rate as a share of the time, at most 1.
    pub fn share(&self, now: Mono) -> Option<f64> {
        self.rate(now).map(|rate| rate.min(1.0))
    }
}

/// Tracks of all quantities of a GPU or GPU instance.
#[derive(Default)]
pub(crate) struct Tracks {
    /// Seconds with clocks reduced by the power cap or a power brake.
    pub power_held: Track,
    /// Seconds with clocks reduced by heat.
    pub heat_held: Track,
    /// Seconds in which it worked.
    pub busy: Track,
    /// Active seconds of the multiprocessors.
    pub sm: Track,
    /// Active seconds of the memory interface.
    pub dram: Track,
    /// Active seconds of all pipes added up.
    pub pipes: Track,
    /// Bytes over PCIe, from the host and to it.
    pub pcie: [Track; 2],
    /// Bytes over NVLink, from other GPUs and to them.
    pub nvlink: [Track; 2],
    /// Variance of the power within each second, in square watts.
    power_variance: Track,
    second: PowerSecond,
    /// Measurements that are not in a class yet.
    pub gathered: Gathered,
    /// Measurements since the step was last searched.
    pub measured: Measured,
    /// Times of the newest utilization sample, and of the newest above 0.
    newest_sample: Option<Mono>,
    pub newest_work: Option<Mono>,
    /// Whether its work, and for a GPU its power, was ever measured.
    pub has_work: bool,
    pub has_power: bool,
    link: Option<(f64, Mono)>,
}

/// Power samples of one second: number, mean and sum of squared deviations (Welford's algorithm).
#[derive(Default)]
struct PowerSecond {
    number: u64,
    samples: f64,
    mean: f64,
    squares: f64,
}

impl Tracks {
    /// Adds the energy that the board drew in these seconds.
    pub fn drew(&mut self, at: Mono, seconds: f64, joules: f64) {
        self.has_power = true;
        let number = at.0 / 1_000_000_000;
        if number != self.second.number {
            let done = std::mem::replace(&mut self.second, PowerSecond { number, ..PowerSecond::default() });
            if done.samples >= FEWEST_SAMPLES {
                self.power_variance.add(at, 1.0, (done.squares / done.samples).min(MOST_VARIANCE));
            }
        }
        let second = &mut self.second;
        let watts = joules / seconds.max(1e-9);
        if self.measured.power.len() < MOST_MEASURED {
            self.measured.power.push((pulse::seconds(at), watts));
        }
        second.samples += 1.0;
        let deviation = watts - second.mean;
        second.mean += deviation / second.samples;
        second.squares += deviation * (watts - second.mean);
    }

    /// Adds a GPM window.
    pub fn add_window(&mut self, place: InstanceId, window: &UnitWindow) {
        let &UnitWindow { at, seconds, sm, pipes, dram, .. } = window;
        let gathered = &mut self.gathered;
        let [from_peers, to_peers] = &mut self.nvlink;
        let [gathered_from, gathered_to] = &mut gathered.nvlink;
        for (track, sum, amount) in [
            (&mut self.sm, &mut gathered.sm, sm),
            (&mut self.pipes, &mut gathered.pipes, pipes),
            (&mut self.dram, &mut gathered.dram, dram),
            (from_peers, gathered_from, window.nvlink[0]),
            (to_peers, gathered_to, window.nvlink[1]),
        ] {
            if let Some(amount) = amount {
                track.add(at, seconds, amount);
                sum.add(seconds, amount);
            }
        }
        for (track, amount) in self.pcie.iter_mut().zip(window.pcie) {
            amount.into_iter().for_each(|amount| track.add(at, seconds, amount));
        }
        // The busy time of an instance comes in windows of its own.
        let complete = if place.is_some() { window.graphics } else { sm };
        if complete.is_some() {
            gathered.complete(seconds);
        }
        if let (None, Some(tensor), Some(pipes), Some(dram)) = (place, window.tensor, pipes, dram)
            && seconds > 0.0
        {
            let [tensor, pipes, dram] = [tensor, pipes, dram].map(|amount| amount / seconds);
            let to = pulse::seconds(at);
            self.measured.activity.push((to - seconds, to, heartbeat::UnitActivity { tensor, pipes, dram }));
        }
    }

    /// Returns the standard deviation of the power within a second, in watts, at most 1. Longer intervals would
    /// include the falling mean of a GPU that cools down for minutes.
    pub fn power_deviation(&self, now: Mono) -> Option<f64> {
        self.power_variance.rate(now).map(f64::sqrt)
    }

    /// Adds the time for which it worked within these seconds.
    pub fn worked(&mut self, at: Mono, seconds: f64, amount: f64) {
        self.has_work = true;
        self.busy.add(at, seconds, amount);
        self.gathered.busy.add(seconds, amount);
        self.newest_sample = self.newest_sample.max(Some(at));
        if amount > 0.0 {
            self.newest_work = self.newest_work.max(Some(at));
        }
    }

    /// Returns the time without any work, if the samples are fresh.
    pub fn rests(&self, now: Mono) -> Option<Duration> {
        let sample = self.newest_sample.filter(|sample| now.since(*sample) <= FRESH)?;
        Some(sample.since(self.newest_work?))
    }

    /// Updates the link rate, and returns the highest of the last 30 s. Some models slow their link down at rest, and
    /// earlier traffic must not be compared with that.
    pub fn link(&mut self, now: Mono, rate: Option<f64>) -> Option<f64> {
        let held = self.link.filter(|(_, at)| now.since(*at) <= WINDOW);
        match (held, rate) {
            (Some((before, _)), Some(rate)) if rate < before => {}
            (_, Some(rate)) => self.link = Some((rate, now)),
            (held, None) => self.link = held,
        }
        self.link.map(|(rate, _)| rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Mono {
        Mono(seconds * 1_000_000_000)
    }

    #[test]
    fn a_share_is_of_the_last_half_minute() {
        let mut track = Track::default();
        assert_eq!(track.share(at(0)), None);
        for second in 1..=10 {
            track.add(at(10 * second), 10.0, if second > 5 { 5.0 } else { 0.0 });
        }
        assert_eq!(track.share(at(101)), Some(0.5));
        assert_eq!(track.share(at(131)), None, "too old");
        let mut total = Track::default();
        for second in 0..100 {
            total.total(at(second), second as f64 * 0.25);
        }
        assert!((total.share(at(99)).unwrap() - 0.25).abs() < 1e-9);
        total.total(at(100), 0.0);
        assert_eq!(total.share(at(100)), None, "it began again");
    }

    #[test]
    fn a_window_of_a_minute_counts_until_the_next_one() {
        let mut track = Track::default();
        for minute in 1..=3 {
            track.add(at(60 * minute), 60.0, 45.0);
        }
        assert_eq!((track.share(at(181)), track.share(at(241))), (Some(0.75), Some(0.75)));
        assert_eq!(track.share(at(271)), None, "the next one never came");
    }

    #[test]
    fn power_deviates_within_seconds_and_not_while_it_falls() {
        let mut tracks = Tracks::default();
        let mut draw = |seconds: std::ops::Range<u64>, watts: fn(u64) -> f64| {
            for sample in seconds.start * 50..seconds.end * 50 {
                tracks.drew(Mono(sample * 20_000_000), 0.02, watts(sample) * 0.02);
            }
            tracks.power_deviation(at(seconds.end))
        };
        let cools = draw(0..60, |sample| 140.0 - sample as f64 * 0.002 + (sample % 2) as f64 * 0.6).unwrap();
        assert!((cools - 0.3).abs() < 0.02, "{cools}");
        let blip = draw(60..90, |sample| if sample / 50 == 75 { 140.0 + (sample % 9) as f64 } else { 140.0 });
        assert!(blip < Some(0.2), "{blip:?}");
        let works = draw(90..130, |sample| if sample % 25 < 20 { 690.0 } else { 400.0 });
        assert!((works.unwrap() - 1.0).abs() < 1e-9, "{works:?}");
    }

    #[test]
    fn a_link_that_rests_is_measured_by_what_it_was() {
        let mut tracks = Tracks::default();
        assert_eq!(tracks.link(at(0), None), None);
        assert_eq!(tracks.link(at(1), Some(63e9)), Some(63e9));
        assert_eq!(tracks.link(at(31), Some(4e9)), Some(63e9));
        assert_eq!(tracks.link(at(32), Some(4e9)), Some(4e9));
        assert_eq!(tracks.link(at(33), Some(63e9)), Some(63e9));
        assert_eq!((tracks.link(at(63), None), tracks.link(at(64), None)), (Some(63e9), None));
    }
}
