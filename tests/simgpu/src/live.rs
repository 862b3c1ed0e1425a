//! What moves on a GPU: the answers that follow from its load and from the steps that hold it back.

use crate::curve::{Curve, Point};
use crate::device::Device;
use crate::functions::{Function::*, Key};
use crate::hardware::{Hardware, Link};
use crate::presence;
use crate::process::Process;
use crate::sim::Window;
use crate::step::Action;
use crate::value::{Answer, Value};

/// Fields 74 to 81 have the values of these policies of the violation status.
const POLICY_FIELDS: [u32; 8] = [0, 1, 2, 3, 4, 5, 10, 11];
/// Billion transfers a second of one lane, by PCIe generation.
const TRANSFERS: [i64; 7] = [0, 2, 5, 8, 16, 32, 64];
const HARDWARE: u64 = 0x8 | 0x40 | 0x80;

/// A clock held down by a step.
struct Hold {
    reasons: u64,
    from: f64,
    to: f64,
    lasts: bool,
}

impl Hold {
    /// What is left of power and clock.
    fn left(&self) -> (f64, f64) {
        if self.reasons & HARDWARE != 0 { (0.6, 0.5) } else { (0.9, 0.85) }
    }
}

impl Device {
    /// The answer that moves, if the call has one.
    pub(crate) fn live(&self, key: &Key) -> Option<Value> {
        let t = self.sim.now();
        let int = |x: f64| Some(Value::Int(x as i64));
        let base = || self.recorded(key).and_then(|v| v.f64(0).ok()).unwrap_or(0.0);
        // These move by steps even on a still GPU.
        match (key.function, key.args()) {
            (nvmlDeviceGetCurrentClocksEventReasons, _) => return self.reasons(t),
            (nvmlDeviceGetViolationStatus, [policy]) => return self.held(key, *policy, t),
            (nvmlDeviceGetFieldValues, [field @ 74..=81, ..]) => {
                return self.held(key, POLICY_FIELDS[*field as usize - 74], t);
            }
            (nvmlDeviceGetFieldValues, [field @ 269..=271, ..]) => {
                let reason = [0x20, 0x40, 0x80][*field as usize - 269];
                return int(base() + self.seconds_held(reason) * 1e9);
            }
            (nvmlDeviceGetMemoryInfo | nvmlDeviceGetMemoryInfo_v2, _) => {
                let still = self.gpu.curve.is_none()
                    && self.gpu.processes.is_empty()
                    && self.gpu.vgpus.is_empty()
                    && !self.hardware().any(|h| matches!(h, Hardware::FreeMemory(_)))
                    && !self.worked_on();
                return if still { None } else { self.memory(key.function).ok() };
            }
            (nvmlDeviceGetCurrPcieLinkGeneration, _) => {
                return self.link().map(|link| Value::Int(link.generation.into()));
            }
            (nvmlDeviceGetCurrPcieLinkWidth, _) => {
                return self.link().map(|link| Value::Int(link.width.into()));
            }
            (nvmlDeviceGetPcieSpeed, _) => {
                return self.link().map(|link| Value::Int(1000 * TRANSFERS[link.generation as usize]));
            }
            (nvmlDeviceGetUtilizationRates, _) if self.worked(t - 0.2, t) > 0.0 => {
                let own = self.gpu.curve.as_ref().map_or(0.0, |c| c.mean(t - 0.2, t).busy);
                let busy = (own + self.worked(t - 0.2, t)).min(1.0);
                return Some(Value::list([percent(busy), percent(busy * 0.62)]));
            }
            (nvmlDeviceGetClockInfo, [0 | 1]) if self.worked_on() => {
                let own = self.gpu.curve.as_ref().map(|c| c.at(t)).filter(|now| now.busy > 0.02);
                let mhz = own.map_or(self.gpu.model.behaviour.max_mhz, |now| now.mhz);
                return int(clock(mhz * self.left().1));
            }
            _ => {}
        }
        let curve = self.gpu.curve.as_ref()?;
        let now = curve.at(t);
        let (power_left, clock_left) = self.left();
        match (key.function, key.args()) {
            (nvmlDeviceGetPowerUsage, _) | (nvmlDeviceGetFieldValues, [185, ..]) => {
                int(curve.mean(t - 1.0, t).watts * 1000.0 * power_left)
            }
            (nvmlDeviceGetFieldValues, [186, ..]) => int(now.watts * 1000.0 * power_left),
            (nvmlDeviceGetTotalEnergyConsumption, _) | (nvmlDeviceGetFieldValues, [83 | 191, ..]) => {
                int(self.millijoules(curve, t))
            }
            (nvmlDeviceGetTemperature, [0]) => int(now.celsius.round()),
            (nvmlDeviceGetFieldValues, [82, ..]) => int((now.celsius + 3.0).round()),
            (nvmlDeviceGetMarginTemperature, _) => {
                let highest = Key::new(nvmlDeviceGetTemperatureThreshold, &[3]);
                int(self.recorded(&highest)?.f64(0).ok()? - now.celsius.round())
            }
            (nvmlDeviceGetClockInfo, [0 | 1]) => int(clock(now.mhz * clock_left)),
            (nvmlDeviceGetClockInfo, [3]) => int(clock((now.mhz * clock_left * 0.78).max(765.0))),
            (nvmlDeviceGetUtilizationRates, _) => {
                let busy = curve.mean(t - 0.2, t).busy;
                Some(Value::list([percent(busy), percent(busy * 0.62)]))
            }
            (nvmlDeviceGetPcieThroughput, [direction]) => {
                let mean = curve.mean(t - 0.02, t);
                int(if *direction == 0 { mean.pcie_tx } else { mean.pcie_rx } / 1024.0)
            }
            // Counters of 32 bits that wrap.
            (nvmlDeviceGetFieldValues, [197, ..]) => int(wrap(base() + curve.sum(0.0, t).pcie_tx)),
            (nvmlDeviceGetFieldValues, [198, ..]) => int(wrap(base() + curve.sum(0.0, t).pcie_rx)),
            (nvmlDeviceGetFieldValues, [field @ 138..=141, scope]) => {
                let raw = if *field >= 140 { 1.064 } else { 1.0 };
                let kib = curve.sum(0.0, t).nvlink * raw / 1024.0;
                int(base() + if *scope == u32::MAX { kib } else { kib / self.links()? })
            }
            _ => None,
        }
    }

    /// The PCIe link that a step brought.
    fn link(&self) -> Option<Link> {
        let links = self.hardware().filter_map(|h| match h {
            Hardware::Pcie(link) => Some(*link),
            _ => None,
        });
        links.last()
    }

    /// NVLinks of the GPU.
    fn links(&self) -> Option<f64> {
        let count = self.recorded(&Key::new(nvmlDeviceGetFieldValues, &[91]))?.f64(0).ok()?;
        (count > 0.0).then_some(count)
    }

    /// The steps that hold this GPU's clock down, past ones included.
    fn holds(&self) -> Vec<Hold> {
        let mut holds = Vec::new();
        for (i, step) in self.sim.scenario.steps.iter().enumerate() {
            if let Action::Throttle(reasons) = step.action
                && step.gpu.is_none_or(|g| g == self.index)
                && let Some(Window { from, to }) = self.sim.window(i)
            {
                let end = to.map_or_else(|| self.sim.now(), |to| self.sim.seconds(to));
                holds.push(Hold { reasons, from: self.sim.seconds(from), to: end, lasts: to.is_none() });
            }
        }
        holds
    }

    fn left(&self) -> (f64, f64) {
        let lasting = self.holds().into_iter().filter(|h| h.lasts).map(|h| h.left());
        let reported = self.hardware().filter_map(|h| match h {
            Hardware::SmClock(rate, true) => Some((1.0, *rate)),
            _ => None,
        });
        lasting.chain(reported).fold((1.0, 1.0), |a, b| (a.0 * b.0, a.1 * b.1))
    }

    /// The energy is the integral of the power, what steps held back left out.
    fn millijoules(&self, curve: &Curve, t: f64) -> f64 {
        let key = Key::new(nvmlDeviceGetTotalEnergyConsumption, &[]);
        let before = self.recorded(&key).and_then(|v| v.f64(0).ok()).unwrap_or(0.0);
        let spared: f64 =
            self.holds().iter().map(|h| curve.sum(h.from, h.to).watts * (1.0 - h.left().0)).sum();
        before + (curve.sum(0.0, t).watts - spared) * 1000.0
    }

    fn reasons(&self, t: f64) -> Option<Value> {
        let key = Key::new(nvmlDeviceGetCurrentClocksEventReasons, &[]);
        let own = match self.gpu.curve.as_ref().map(|c| c.at(t)) {
            None => self.recorded(&key)?.u64(0).ok()?,
            Some(Point { capped, .. }) if capped > 0.0 => 0x4,
            Some(Point { busy, .. }) if busy <= 0.02 => 0x1,
            Some(_) => 0,
        };
        let own = if own & 1 != 0 && self.worked_on() { own & !1 } else { own };
        let held = self.holds().iter().filter(|h| h.lasts).fold(0, |mask, h| mask | h.reasons);
        Some(Value::Int(if held == 0 { own } else { own & !1 | held } as i64))
    }

    fn seconds_held(&self, reasons: u64) -> f64 {
        self.holds().iter().filter(|h| h.reasons & reasons != 0).map(|h| h.to - h.from).sum()
    }

    /// Nanoseconds for which a policy held the clock down.
    fn held(&self, key: &Key, policy: u32, t: f64) -> Option<Value> {
        let recorded = match self.recorded(key)? {
            Value::Error(code) => return Some(Value::Error(code)),
            value => value.f64(0).ok()?,
        };
        let curve = self.gpu.curve.as_ref();
        let capped = || curve.map_or(0.0, |c| c.sum(0.0, t).capped);
        let seconds = match policy {
            0 => capped() + self.seconds_held(0x4),
            1 => self.seconds_held(0x8 | 0x20 | 0x40),
            2 => self.seconds_held(0x10),
            3 => self.seconds_held(0x80),
            4 => curve.map_or(0.0, |c| (t - c.sum(0.0, t).busy).max(0.0)),
            10 | 11 => capped() + self.seconds_held(u64::MAX),
            _ => 0.0,
        };
        Some(Value::Int((recorded + seconds * 1e9) as i64))
    }

    /// The processes on the device.
    pub(crate) fn processes(&self) -> Answer<Vec<Process>> {
        let mut list = self.settled()?;
        list.extend(self.contexts());
        Ok(list)
    }

    /// Those of them that have a CUDA context of this library.
    pub(crate) fn contexts(&self) -> Vec<Process> {
        let mut list = presence::processes(self.sim, self.index);
        list.retain(|p| self.mig.is_none() || p.instance == self.mig);
        list
    }

    /// Those of them that the scenario puts there.
    pub(crate) fn settled(&self) -> Answer<Vec<Process>> {
        let devices = self.sim.layout(self.index)?.1.devices().count();
        let here = |p: &Process| match (self.mig, p.instance) {
            (Some(mig), Some(instance)) => mig == instance,
            (Some(_), None) => false,
            (None, Some(instance)) => instance < devices,
            (None, None) => true,
        };
        Ok(self.gpu.processes.iter().cloned().chain(self.jobs()).filter(here).collect())
    }
}

pub(crate) fn percent(part: f64) -> u64 {
    (part * 100.0).round() as u64
}

fn clock(mhz: f64) -> f64 {
    (mhz / 15.0).round() * 15.0
}

fn wrap(bytes: f64) -> f64 {
    (bytes as u64 as u32).into()
}
