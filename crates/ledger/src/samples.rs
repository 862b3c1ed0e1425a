//! The driver's own samples of one GPU: their integral, distribution, recent extremes and gaps.

use std::collections::VecDeque;
use std::time::Duration;

use super::builder::Builder;
use model::catalog::{self as m, Gpu, SampleBuffer};
use model::clock::Mono;
use model::sample::{AHEAD_MICROS, Drained, STEP_MICROS};
use model::snapshot::Histogram;

/// Bounds of the histogram of power samples, in watts: closer together near idle and where bursts begin.
const WATTS: [f64; 12] =
    [75.0, 100.0, 150.0, 200.0, 250.0, 300.0, 400.0, 500.0, 600.0, 700.0, 1000.0, 1500.0];
/// Bounds of the histogram of utilization samples.
const RATIOS: [f64; 7] = [0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0];
/// Time span of the extremes.
const WINDOW: Duration = Duration::from_secs(60);
/// Distance between samples that counts as a gap, in usual distances.
const GAP: f64 = 2.5;
/// Minimum number of samples in one drain to learn their usual distance.
const FEWEST: usize = 5;

pub(crate) struct Samples {
    power: SampleSeries,
    utilization: SampleSeries,
}

impl Default for Samples {
    fn default() -> Samples {
        Samples { power: SampleSeries::new(&WATTS, 10_000.0), utilization: SampleSeries::new(&RATIOS, 1.0) }
    }
}

impl Samples {
    /// Adds samples drained at `taken`. Utilization during a run of the canary does not count. `report` is called for
    /// each sample that adds to an integral, with its buffer, its time, the seconds it describes and the amount.
    pub fn add(
        &mut self,
        taken: Mono,
        drained: &Drained,
        is_canarys: impl Fn(Mono) -> bool,
        mut report: impl FnMut(SampleBuffer, Mono, f64, f64),
    ) {
        let Drained::Samples { buffer, offset_micros, samples } = drained else { return };
        let series = match buffer {
            SampleBuffer::Power => &mut self.power,
            SampleBuffer::Utilization => &mut self.utilization,
        };
        let left_out = |at| *buffer == SampleBuffer::Utilization && is_canarys(at);
        let report = |at, seconds, amount| report(*buffer, at, seconds, amount);
        series.add(taken, *offset_micros, samples, left_out, report);
    }

    /// Returns the time of the newest utilization above 0.
    pub fn last_work(&self) -> Option<Mono> {
        self.utilization.above_zero
    }

    pub fn publish(&self, b: &mut Builder<'_>, gpu: &Gpu, now: Mono) {
        let power =
            [&m::gpu_energy_sampled_joules_total, &m::gpu_power_minimum_watts, &m::gpu_power_peak_watts];
        let utilization =
            [&m::gpu_busy_seconds_total, &m::gpu_utilization_minimum_ratio, &m::gpu_utilization_peak_ratio];
        for (series, buffer, histogram, [integral, low, high]) in [
            (&self.power, SampleBuffer::Power, &m::gpu_power_sample_watts, power),
            (&self.utilization, SampleBuffer::Utilization, &m::gpu_utilization_sample_ratio, utilization),
        ] {
            if series.count() == 0 {
                continue;
            }
            b.histogram(histogram, gpu, (), &series.histogram);
            b.add(integral, gpu, (), series.integral);
            b.add(&m::gpu_exporter_samples_total, gpu, (buffer,), series.count() as f64);
            b.add(&m::gpu_exporter_sample_gaps_total, gpu, (buffer,), series.gaps as f64);
            b.add(&m::gpu_exporter_sample_gap_seconds_total, gpu, (buffer,), series.gap_seconds);
            if let Some((lowest, highest)) = series.extremes(now) {
                b.add(low, gpu, (), lowest);
                b.add(high, gpu, (), highest);
            }
        }
    }
}

/// Samples of one buffer.
#[derive(Default)]
struct SampleSeries {
    histogram: Histogram,
    /// Integral over time: joules or busy seconds.
    integral: f64,
    /// Number of gaps between samples.
    gaps: u64,
    /// Total length of the gaps.
    gap_seconds: f64,
    /// Time of the newest sample above 0.
    above_zero: Option<Mono>,
    most: f64,
    /// Timestamp of the newest sample, and when it was read: wall minus monotonic clock, and monotonic time.
    newest: Option<(u64, i64, Mono)>,
    /// Usual distance, in seconds.
    period: Option<f64>,
    /// Distances, in microseconds, collected until there are enough of them.
    few: Vec<u64>,
    /// Lowest and highest value by second.
    extremes: VecDeque<(Mono, f64, f64)>,
}

impl SampleSeries {
    fn new(bounds: &'static [f64], most: f64) -> SampleSeries {
        SampleSeries { histogram: Histogram::new(bounds), most, ..SampleSeries::default() }
    }

    fn count(&self) -> u64 {
        self.histogram.count()
    }

    /// Adds samples. At times that are `left_out`, samples count neither as values nor as gaps.
    fn add(
        &mut self,
        taken: Mono,
        offset: i64,
        samples: &[(u64, f64)],
        left_out: impl Fn(Mono) -> bool,
        mut report: impl FnMut(Mono, f64, f64),
    ) {
        let Some((last_at, _)) = samples.last().copied() else { return };
        let before = self.newest.replace((last_at, offset, taken));
        // The driver uses the wall clock, which was set in the meantime, so it is unknown which of these samples were
        // already counted. None of them is counted, and the time since the last counted sample is a gap.
        if let Some((newest, then, at)) = before
            && (offset.abs_diff(then) > STEP_MICROS as u64 || ahead(newest, taken, offset))
        {
            self.gaps += 1;
            self.gap_seconds += taken.since(at).as_secs_f64();
            return;
        }
        let cursor = before.map(|(newest, ..)| newest);
        let new = samples.iter().filter(|(at, _)| cursor.is_none_or(|cursor| *at > cursor));
        let mut stamps: Vec<u64> = cursor.into_iter().collect();
        stamps.extend(new.clone().map(|(at, _)| *at));
        self.learn(&stamps);
        let mut previous = cursor;
        for (at, value) in new {
            let distance = previous.replace(*at).map(|previous| at.saturating_sub(previous) as f64 * 1e-6);
            let sampled = monotonic(*at, offset).min(taken);
            let out = left_out(sampled);
            // The time of an invalid sample is unknown.
            let good = (0.0..=self.most).contains(value);
            let held = distance.map(|distance| self.note_distance(distance, good || out));
            if !good || out {
                continue;
            }
            if let Some(held) = held {
                self.integral += value * held;
                report(sampled, held, value * held);
            }
            if *value > 0.0 {
                self.above_zero = Some(sampled);
            }
            self.histogram.observe(*value);
            let age = Duration::from_micros(last_at.saturating_sub(*at));
            self.note(Mono(taken.0.saturating_sub(age.as_nanos() as u64)), *value);
        }
        while self.extremes.front().is_some_and(|(at, ..)| taken.since(*at) > WINDOW) {
            self.extremes.pop_front();
        }
    }

    /// Counts the gap between a sample and the one before, and returns the seconds that the sample describes. The
    /// whole distance is a gap if the sample is not `known`.
    fn note_distance(&mut self, distance: f64, known: bool) -> f64 {
        let period = self.period.unwrap_or(distance);
        let held = if distance > GAP * period { period } else { distance };
        let missing = if known { distance - held } else { distance };
        if missing > 0.0 {
            self.gaps += 1;
            self.gap_seconds += missing;
        }
        held
    }

    /// Learns the usual distance of samples: the median over one drain, or over several small ones.
    fn learn(&mut self, stamps: &[u64]) {
        let distances = stamps.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
        if stamps.len() > FEWEST {
            self.few.clear();
        }
        self.few.extend(distances);
        if self.few.len() >= FEWEST {
            self.few.sort_unstable();
            self.period = self.few.get(self.few.len() / 2).map(|micros| *micros as f64 * 1e-6);
            self.few.clear();
        }
    }

    fn note(&mut self, at: Mono, value: f64) {
        match self.extremes.back_mut() {
            Some((second, low, high)) if at.since(*second) < Duration::from_secs(1) => {
                *low = low.min(value);
                *high = high.max(value);
            }
            _ => self.extremes.push_back((at, value, value)),
        }
    }

    /// Returns the lowest and highest value of the last minute.
    fn extremes(&self, now: Mono) -> Option<(f64, f64)> {
        let recent = self.extremes.iter().filter(|(at, ..)| now.since(*at) <= WINDOW);
        recent.map(|(_, low, high)| (*low, *high)).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }
}

/// Returns the time of a sample. `offset`: wall clock minus monotonic clock, in microseconds.
fn monotonic(stamp: u64, offset: i64) -> Mono {
    let micros = i128::from(stamp) - i128::from(offset);
    Mono(u64::try_from(micros * 1000).unwrap_or(0))
}

/// Returns true if a sample's timestamp is in the future at `taken`. `offset`: wall clock minus monotonic clock, in
/// microseconds.
fn ahead(stamp: u64, taken: Mono, offset: i64) -> bool {
    let wall = i128::from(taken.0 / 1000) + i128::from(offset);
    i128::from(stamp) > wall + i128::from(AHEAD_MICROS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STEP: u64 = 20_000;

    fn series() -> SampleSeries {
        SampleSeries::new(&WATTS, 10_000.0)
    }

    fn at(seconds: f64) -> Mono {
        Mono((seconds * 1e9) as u64)
    }

    fn run(from: u64, count: u64, watts: f64) -> Vec<(u64, f64)> {
        (0..count).map(|n| (from + n * STEP, watts)).collect()
    }

    #[test]
    fn overlapping_drains_count_each_sample_once() {
        let mut s = series();
        s.add(at(1.0), 0, &run(STEP, 50, 100.0), |_| false, |_, _, _| ());
        s.add(at(1.5), 0, &run(26 * STEP, 50, 100.0), |_| false, |_, _, _| ());
        assert_eq!(s.count(), 75);
        assert!((s.integral - 74.0 * 0.02 * 100.0).abs() < 1e-6, "{}", s.integral);
        assert_eq!((s.gaps, s.gap_seconds), (0, 0.0));
    }

    #[test]
    fn what_was_overwritten_is_a_gap_and_is_not_filled() {
        let mut s = series();
        s.add(at(1.0), 0, &run(STEP, 50, 100.0), |_| false, |_, _, _| ());
        s.add(at(5.0), 0, &run(150 * STEP, 50, 100.0), |_| false, |_, _, _| ());
        assert_eq!(s.gaps, 1);
        assert!((s.gap_seconds - 99.0 * 0.02).abs() < 1e-6, "{}", s.gap_seconds);
        assert!((s.integral - 99.0 * 0.02 * 100.0).abs() < 1e-6, "one usual distance before the gap's end");
    }

    #[test]
    fn after_the_clock_was_set_nothing_is_counted_twice() {
        let mut s = series();
        s.add(at(1.0), 0, &run(1_000_000, 50, 100.0), |_| false, |_, _, _| ());
        // Set back by half a second: the buffer holds old samples again, under timestamps that seem new.
        s.add(at(2.0), -500_000, &run(1_500_000, 60, 100.0), |_| false, |_, _, _| ());
        assert_eq!(s.count(), 50);
        assert_eq!((s.gaps, s.gap_seconds), (1, 1.0));
        let newest = 1_500_000 + 59 * STEP;
        s.add(at(3.0), -500_000, &run(newest + STEP, 50, 100.0), |_| false, |_, _, _| ());
        assert_eq!(s.count(), 100);
    }

    #[test]
    fn a_stamp_from_before_the_clock_was_set_back_does_not_hide_what_comes_after() {
        let (mut s, hour) = (series(), 3_600_000_000);
        let stamp = |seconds: f64| (seconds * 1e6) as u64 + hour;
        s.add(at(1.0), hour as i64, &run(stamp(0.0), 50, 100.0), |_| false, |_, _, _| ());
        // Set back by an hour, and no sample came since.
        s.add(at(1.02), 0, &run(stamp(0.02), 50, 100.0), |_| false, |_, _, _| ());
        s.add(at(2.0), 0, &run(1_020_000, 49, 100.0), |_| false, |_, _, _| ());
        assert_eq!((s.count(), s.gaps), (50, 2));
        s.add(at(3.0), 0, &run(2_000_000, 50, 100.0), |_| false, |_, _, _| ());
        assert_eq!((s.count(), s.gaps), (100, 2));
    }

    #[test]
    fn a_gap_is_seen_also_if_each_drain_brings_few_samples() {
        let mut s = series();
        for n in 0..20 {
            s.add(at(n as f64), 0, &run((2 * n + 1) * STEP, 2, 100.0), |_| false, |_, _, _| ());
        }
        s.add(at(3600.0), 0, &run(3_600_000_000, 2, 100.0), |_| false, |_, _, _| ());
        assert_eq!((s.count(), s.gaps), (42, 1));
        assert!(s.integral < 41.0 * 0.02 * 100.0 + 1e-6, "{}", s.integral);
        assert!(s.few.capacity() < 100);
    }

    #[test]
    fn a_short_spike_is_in_the_extremes_for_a_minute() {
        let mut s = series();
        let mut samples = run(STEP, 50, 80.0);
        samples[20].1 = 600.0;
        s.add(at(100.0), 0, &samples, |_| false, |_, _, _| ());
        assert_eq!(s.extremes(at(100.0)), Some((80.0, 600.0)));
        s.add(at(150.0), 0, &run(50 * STEP + 50_000_000, 50, 80.0), |_| false, |_, _, _| ());
        assert_eq!(s.extremes(at(150.0)), Some((80.0, 600.0)));
        assert_eq!(s.extremes(at(162.0)), Some((80.0, 80.0)));
        assert_eq!(s.extremes(at(300.0)), None);
        assert_eq!(s.histogram.counts[WATTS.partition_point(|b| *b < 600.0)], 1);
    }

    #[test]
    fn what_cannot_be_true_is_a_gap() {
        let mut s = series();
        let mut samples = run(STEP, 10, 100.0);
        samples[4].1 = f64::NAN;
        samples[5].1 = -1.0;
        s.add(at(1.0), 0, &samples, |_| false, |_, _, _| ());
        assert_eq!((s.count(), s.gaps), (8, 2));
        assert!((s.integral - 7.0 * 0.02 * 100.0).abs() < 1e-6);
    }

    #[test]
    fn what_is_left_out_is_neither_work_nor_a_gap() {
        let mut s = SampleSeries::new(&RATIOS, 1.0);
        let mut samples = run(STEP, 50, 0.0);
        for busy in &mut samples[20..30] {
            busy.1 = 1.0;
        }
        // The twenty-first is stamped 0.42 s.
        let out = |at: Mono| (at.0 / 1_000_000).abs_diff(500) <= 100;
        s.add(at(1.0), 0, &samples, out, |_, _, _| ());
        assert_eq!((s.count(), s.integral, s.gaps), (39, 0.0, 0));
        assert_eq!((s.above_zero, s.extremes(at(1.0))), (None, Some((0.0, 0.0))));
        let offset = 3_600_000_000;
        let samples = [(51 * STEP + offset, 0.5), (52 * STEP + offset, 0.5)];
        let mut s = SampleSeries::new(&RATIOS, 1.0);
        s.add(at(1.04), offset as i64, &samples, |at| at.0 < 1_030_000_000, |_, _, _| ());
        assert_eq!((s.count(), s.above_zero), (1, Some(at(1.04))), "times are those of the monotonic clock");
    }

    proptest! {
        #[test]
        fn any_cuts_of_one_stream_give_the_same_sums(
            values in prop::collection::vec(0f64..700.0, 20..200),
            cuts in prop::collection::vec(1usize..40, 1..10),
        ) {
            let stream: Vec<(u64, f64)> =
                values.iter().enumerate().map(|(n, v)| ((n as u64 + 1) * STEP, *v)).collect();
            let mut whole = series();
            whole.add(at(100.0), 0, &stream, |_| false, |_, _, _| ());
            let (mut cut, mut end) = (series(), 0);
            let mut step = 0;
            while end < stream.len() {
                end = (end + cuts[step % cuts.len()]).min(stream.len());
                step += 1;
                // The driver's buffer: up to 50 samples, the newest last.
                cut.add(at(step as f64), 0, &stream[end.saturating_sub(50)..end], |_| false, |_, _, _| ());
            }
            prop_assert_eq!(&whole.histogram.counts, &cut.histogram.counts);
            prop_assert!((whole.integral - cut.integral).abs() < 1e-6);
            prop_assert_eq!((cut.gaps, whole.gaps), (0, 0));
        }
    }
}
