//! How a busy GPU moves: one period of its behaviour, worked out once when the scenario is read.
//!
//! Everything follows from how busy the GPU is: power from busyness, the clock from what the power
//! limit leaves, temperature from power with a lag, and every counter from the sums. So the values
//! agree with each other and with their own counters at any moment, in every process.

use std::f64::consts::TAU;

use serde::Deserialize;

use crate::model::Behaviour;

/// What a GPU is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Load {
    /// Nothing.
    #[default]
    Idle,
    /// A training job: nearly full, a dip for a checkpoint every minute.
    Training,
    /// A training job whose steps of 1.2 s show: the last sixth is a collective, which draws less.
    Steps,
    /// Requests coming and going.
    Inference,
    /// A well-used server: 60 to 80 % busy.
    Serving,
    /// Two seconds of work every ten.
    Bursty,
    /// Nothing, but 20 ms at full power every 30 s: too short for what averages.
    Spikes,
    /// The same every 2 s.
    Flicker,
    /// The recorded values, unmoving.
    Still,
}

/// Every load repeats after this many seconds.
const PERIOD: f64 = 120.0;
/// A curve is made of steps of this many seconds, as far as nothing shorter happens.
const STEP: f64 = 0.1;
/// The length of a spike: one power sample.
const SPIKE: f64 = 0.02;
/// Time constant of the heat sink in seconds.
const LAG: f64 = 25.0;

impl Load {
    /// How busy, 0 to 1, at a moment of the period.
    fn busy(self, t: f64) -> f64 {
        let wave = |period: f64| (TAU * t / period).sin();
        match self {
            Load::Idle | Load::Still => 0.0,
            Load::Spikes => spike(t, 30.0),
            Load::Flicker => spike(t, 2.0),
            Load::Training if t % 60.0 > 56.0 => 0.08,
            Load::Training => 0.93 + 0.05 * wave(6.0),
            Load::Steps if t % 1.2 >= 1.0 => 0.4,
            Load::Steps => 0.95,
            Load::Inference => 0.45 + 0.25 * wave(40.0) + 0.12 * wave(7.5),
            Load::Serving => 0.70 + 0.07 * wave(40.0) + 0.03 * wave(7.5),
            Load::Bursty if t % 10.0 < 2.0 => 0.95,
            Load::Bursty => 0.0,
        }
    }

    /// The part of the memory that the work holds.
    pub fn memory(self) -> f64 {
        match self {
            Load::Idle | Load::Spikes | Load::Flicker | Load::Still => 0.0,
            Load::Training | Load::Steps => 0.86,
            Load::Inference => 0.61,
            Load::Serving => 0.72,
            Load::Bursty => 0.27,
        }
    }

    fn step(self) -> f64 {
        if matches!(self, Load::Spikes | Load::Flicker | Load::Steps) { SPIKE } else { STEP }
    }

    /// How much it talks to the other GPUs, as part of the links' rate.
    fn chatter(self) -> f64 {
        if matches!(self, Load::Training | Load::Steps) { 0.35 } else { 0.01 }
    }
}

/// One moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Point {
    /// 0 to 1.
    pub busy: f64,
    /// Board power.
    pub watts: f64,
    /// SM clock.
    pub mhz: f64,
    /// GPU temperature.
    pub celsius: f64,
    /// Whether the power limit holds the clock down, 0 or 1.
    pub capped: f64,
    /// PCIe bytes a second, sent and received.
    pub pcie_tx: f64,
    /// See `pcie_tx`.
    pub pcie_rx: f64,
    /// NVLink bytes a second each way.
    pub nvlink: f64,
}

impl Point {
    fn add(&self, other: &Point, weight: f64) -> Point {
        Point {
            busy: self.busy + other.busy * weight,
            watts: self.watts + other.watts * weight,
            mhz: self.mhz + other.mhz * weight,
            celsius: self.celsius + other.celsius * weight,
            capped: self.capped + other.capped * weight,
            pcie_tx: self.pcie_tx + other.pcie_tx * weight,
            pcie_rx: self.pcie_rx + other.pcie_rx * weight,
            nvlink: self.nvlink + other.nvlink * weight,
        }
    }
}

/// One period, and its running sums.
#[derive(Debug)]
pub struct Curve {
    points: Vec<Point>,
    /// `sums[i]` is the integral from 0 to the beginning of step i.
    sums: Vec<Point>,
    /// Seconds that a point covers.
    step: f64,
    phase: f64,
}

impl Curve {
    /// The curve of a load on a GPU that may draw `limit` watts. GPUs differ by their phase.
    pub fn new(load: Load, b: &Behaviour, limit: f64, gpu: usize) -> Curve {
        let step = load.step();
        let steps = (PERIOD / step).round() as usize;
        let mut points = Vec::with_capacity(steps);
        let mut celsius = b.idle_celsius;
        // Two rounds, so that the temperature of the second begins where it ends.
        for i in 0..2 * steps {
            let mut p = moment(load, b, limit, (i % steps) as f64 * step);
            let span = (p.watts - b.idle_watts) / (b.full_watts - b.idle_watts);
            let target = b.idle_celsius + span * (b.full_celsius - b.idle_celsius);
            celsius += (target - celsius) * step / LAG;
            p.celsius = celsius;
            if i >= steps {
                points.push(p);
            }
        }
        let mut sums = vec![Point::default()];
        for p in &points {
            let last = sums[sums.len() - 1];
            sums.push(last.add(p, step));
        }
        Curve { points, sums, step, phase: (gpu as f64 * 7.3) % PERIOD }
    }

    /// The moment `t` seconds after the scenario's start; before it is allowed.
    pub fn at(&self, t: f64) -> Point {
        let t = (t + self.phase).rem_euclid(PERIOD);
        self.points[self.number(t)]
    }

    /// The integral of every quantity from one moment to another.
    pub fn sum(&self, from: f64, to: f64) -> Point {
        self.integral(to).add(&self.integral(from), -1.0)
    }

    /// The mean of every quantity between two moments.
    pub fn mean(&self, from: f64, to: f64) -> Point {
        if to - from < 1e-6 {
            return self.at(to);
        }
        Point::default().add(&self.sum(from, to), 1.0 / (to - from))
    }

    fn integral(&self, t: f64) -> Point {
        let t = t + self.phase;
        let (rounds, t) = (t.div_euclid(PERIOD), t.rem_euclid(PERIOD));
        let i = self.number(t);
        self.sums[i].add(&self.points[i], t - i as f64 * self.step).add(&self.sums[self.points.len()], rounds)
    }

    /// The point for a moment of the period.
    fn number(&self, t: f64) -> usize {
        ((t / self.step) as usize).min(self.points.len() - 1)
    }
}

/// One sample at full power in the middle of every period.
fn spike(t: f64, period: f64) -> f64 {
    // Half a step before and after: the sums of steps are not exact.
    f64::from(u8::from((t % period - period / 2.0).abs() < SPIKE / 2.0))
}

fn moment(load: Load, b: &Behaviour, limit: f64, t: f64) -> Point {
    let busy = load.busy(t).clamp(0.0, 1.0);
    let span = b.full_watts - b.idle_watts;
    let wanted = b.idle_watts + span * busy;
    let watts = wanted.min(limit);
    let capped = wanted > limit;
    // Dynamic power falls with more than the square of the clock.
    let slow =
        if capped { ((watts - b.idle_watts) / (wanted - b.idle_watts)).max(0.05).powf(0.4) } else { 1.0 };
    let mhz = if busy > 0.02 { (b.max_mhz * slow / 15.0).round() * 15.0 } else { b.min_mhz };
    Point {
        busy,
        watts,
        mhz,
        celsius: 0.0,
        capped: f64::from(u8::from(capped)),
        pcie_tx: busy * b.pcie_bytes * 0.04 + 600e3,
        pcie_rx: busy * b.pcie_bytes * 0.09 + 600e3,
        nvlink: busy * b.nvlink_bytes * load.chatter(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Behaviour = Behaviour {
        idle_watts: 78.0,
        full_watts: 690.0,
        min_mhz: 345.0,
        max_mhz: 1980.0,
        idle_celsius: 32.0,
        full_celsius: 70.0,
        pcie_bytes: 55e9,
        nvlink_bytes: 450e9,
    };

    #[test]
    fn the_energy_is_the_integral_of_the_power() {
        let curve = Curve::new(Load::Bursty, &H200, 700.0, 3);
        let mut joules = 0.0;
        for i in 0..20_000 {
            joules += curve.at(-30.0 + i as f64 * 0.01 + 0.005).watts * 0.01;
        }
        let sum = curve.sum(-30.0, 170.0).watts;
        assert!((sum - joules).abs() / sum < 1e-3, "{sum} and {joules}");
    }

    #[test]
    fn a_spike_shows_in_one_sample_and_in_no_average() {
        let curve = Curve::new(Load::Spikes, &H200, 700.0, 3);
        let samples =
            |from: i32, to: i32| (from..to).map(|n| curve.mean(f64::from(n - 1) * 0.02, f64::from(n) * 0.02));
        for round in 0..8 {
            let high = samples(round * 1500, (round + 1) * 1500).filter(|p| p.watts > 680.0).count();
            assert_eq!(high, 1, "in round {round}");
        }
        for second in 0..240 {
            assert!(curve.mean(f64::from(second), f64::from(second + 1)).watts < 91.0);
        }
    }

    #[test]
    fn a_flicker_is_one_sample_every_two_seconds() {
        let curve = Curve::new(Load::Flicker, &H200, 700.0, 0);
        for round in 0..120 {
            let samples = (round * 100..(round + 1) * 100).map(|n| f64::from(n) * 0.02);
            let high = samples.filter(|t| curve.mean(t - 0.02, *t).watts > 680.0).count();
            assert_eq!(high, 1, "in round {round}");
        }
    }

    #[test]
    fn a_power_limit_holds_the_clock_down() {
        let free = Curve::new(Load::Training, &H200, 700.0, 0).at(10.0);
        let held = Curve::new(Load::Training, &H200, 450.0, 0).at(10.0);
        assert_eq!((free.capped, held.capped), (0.0, 1.0));
        assert!(held.mhz < free.mhz && held.watts <= 450.0 && held.celsius < free.celsius);
    }
}
