//! Whether an owner's CPUs and memory are near its GPU.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use model::clock::Mono;
use model::cpus::CpuSet;
use model::owners::OwnerReading;
use model::topology::Device;

/// CPUs it was seen on count for so long.
const LATELY: Duration = Duration::from_secs(60);

/// What was read of one owner lately, oldest first.
#[derive(Debug, Default)]
pub struct Readings(VecDeque<OwnerReading>);

impl Readings {
    /// Takes in a reading.
    pub fn take(&mut self, reading: OwnerReading) {
        let now = reading.taken;
        self.0.push_back(reading);
        while self.0.len() > 2 && self.0.front().is_some_and(|r| now.since(r.taken) > LATELY) {
            self.0.pop_front();
        }
        // A reading every second at most: more add nothing.
        while self.0.len() > 64 {
            self.0.pop_front();
        }
    }

    /// The newest one, if it is not too old.
    pub fn newest(&self, now: Mono) -> Option<&OwnerReading> {
        self.0.back().filter(|r| now.since(r.taken) <= LATELY)
    }

    /// Share of its CPUs that are not near the GPU: of those it was seen on in the last minute, each as often as
    /// it was, else of those it may run on. `None` where the machine does not say what is near.
    pub fn cpu_remote(&self, now: Mono, gpu: &Device) -> Option<f64> {
        gpu.numa_node?;
        let newest = self.newest(now)?;
        let recent = self.0.iter().filter(|r| now.since(r.taken) <= LATELY);
        let mut seen: BTreeMap<u32, u64> = BTreeMap::new();
        for (cpu, times) in recent.flat_map(|r| &r.ran_on) {
            *seen.entry(*cpu).or_default() += u64::from(*times);
        }
        let all: u64 = seen.values().sum();
        if all > 0 {
            let remote: u64 = seen.iter().filter(|(cpu, _)| !gpu.cpus.contains(**cpu)).map(|(_, n)| n).sum();
            return Some(remote as f64 / all as f64);
        }
        let allowed: &CpuSet = newest.allowed_cpus.as_ref().filter(|cpus| !cpus.is_empty())?;
        Some(allowed.without(&gpu.cpus).len() as f64 / allowed.len() as f64)
    }

    /// Share of its memory on the host that is not on the GPU's NUMA node.
    pub fn memory_remote(&self, now: Mono, gpu: &Device) -> Option<f64> {
        let node = gpu.numa_node?;
        let by_node = &self.newest(now)?.memory_by_node;
        let all: u64 = by_node.values().fold(0, |sum, bytes| sum.saturating_add(*bytes));
        let near = by_node.get(&node).copied().unwrap_or(0);
        (all > 0).then(|| (all - near) as f64 / all as f64)
    }

    /// Share of one CPU that its busiest thread used between the last two readings.
    pub fn busiest_thread(&self, now: Mono) -> Option<f64> {
        let (before, newest, seconds) = self.last_two(now)?;
        let ((was, then), (is, at)) = (before.busiest_thread?, newest.busiest_thread?);
        // Another thread may have used any part of the time.
        (was == is && at >= then).then(|| ((at - then) / seconds).min(1.0))
    }

    /// Share of the quota of its control group that was used between the last two readings.
    pub fn quota_used(&self, now: Mono) -> Option<f64> {
        let (before, newest, seconds) = self.last_two(now)?;
        let limit = newest.cpu_limit.filter(|limit| *limit > 0.0)?;
        let used = newest.cpu_seconds? - before.cpu_seconds?;
        (used >= 0.0).then(|| (used / seconds / limit).min(1.0))
    }

    fn last_two(&self, now: Mono) -> Option<(&OwnerReading, &OwnerReading, f64)> {
        let newest = self.newest(now)?;
        let before = self.0.get(self.0.len().checked_sub(2)?)?;
        let seconds = newest.taken.since(before.taken).as_secs_f64();
        (seconds > 0.5 && seconds <= LATELY.as_secs_f64()).then_some((before, newest, seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::topology::DeviceKind;

    fn gpu(numa_node: Option<u32>) -> Device {
        Device {
            kind: DeviceKind::Gpu,
            address: "0000:06:00.0".into(),
            id: "10de:2335".into(),
            names: Vec::new(),
            numa_node,
            cpus: "0-3".parse().unwrap(),
            bridges: Vec::new(),
            link: None,
            port: None,
            network: None,
        }
    }

    fn reading(seconds: u64, ran_on: &[(u32, u32)]) -> OwnerReading {
        OwnerReading {
            owner: "a".into(),
            taken: Mono(seconds * 1_000_000_000),
            allowed_cpus: Some("2-5".parse().unwrap()),
            ran_on: ran_on.iter().copied().collect(),
            memory_by_node: [(0, 30), (1, 10)].into(),
            cpu_seconds: Some(seconds as f64 * 2.0),
            cpu_time: None,
            cpu_limit: Some(2.0),
            busiest_thread: Some((7, seconds as f64 * 0.9)),
            oom_kills: None,
        }
    }

    #[test]
    fn cpus_it_was_seen_on_count_before_those_it_may_run_on() {
        let now = Mono(20_000_000_000);
        let mut readings = Readings::default();
        assert_eq!(readings.cpu_remote(now, &gpu(Some(0))), None);
        readings.take(reading(5, &[]));
        assert_eq!(readings.cpu_remote(now, &gpu(Some(0))), Some(0.5));
        readings.take(reading(15, &[(1, 3), (9, 1)]));
        assert_eq!(readings.cpu_remote(now, &gpu(Some(0))), Some(0.25));
        assert_eq!(readings.memory_remote(now, &gpu(Some(0))), Some(0.25));
        assert_eq!(readings.cpu_remote(now, &gpu(None)), None, "what is near is not known");
        assert_eq!(readings.memory_remote(now, &gpu(None)), None);
        assert!((readings.busiest_thread(now).unwrap() - 0.9).abs() < 1e-9);
        assert_eq!(readings.quota_used(now), Some(1.0));
        assert_eq!(readings.quota_used(Mono(200_000_000_000)), None, "too old");
    }
}
