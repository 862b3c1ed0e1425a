//! Distance of an owner's CPUs and memory from its GPU.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use model::clock::Mono;
use model::cpus::CpuSet;
use model::owners::OwnerReading;
use model::topology::Device;

/// Time for which the CPUs of a reading count.
const LATELY: Duration = Duration::from_secs(60);

/// CPUs near the place of an owner's work, which is a GPU or a GPU instance.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NearCpus {
    /// CPUs of the GPU's NUMA node; `None` if unknown.
    pub node: Option<CpuSet>,
    /// Last-level caches of these CPUs.
    pub caches: Vec<CpuSet>,
    /// CPUs of the caches in the shares of all places of the owner; `None` if unknown.
    pub own: Option<CpuSet>,
}

impl NearCpus {
    /// Returns the CPUs of the caches in the owner's share, or `None` if the owner is not bound to some of the node's
    /// caches. Work that may run on a whole node, or on several, is not bound to the wrong cache.
    fn caches_of(&self, allowed: &CpuSet) -> Option<&CpuSet> {
        let leaves_out_one = self.caches.iter().any(|cache| cache.and(allowed).is_empty());
        let bound = leaves_out_one && !allowed.is_empty() && allowed.is_within(self.node.as_ref()?);
        self.own.as_ref().filter(|_| bound)
    }
}

/// Recent readings of one owner, oldest first.
#[derive(Default)]
pub(crate) struct Readings(VecDeque<OwnerReading>);

impl Readings {
    pub fn push(&mut self, reading: OwnerReading) {
        let now = reading.taken;
        self.0.push_back(reading);
        while self.0.len() > 2 && self.0.front().is_some_and(|r| now.since(r.taken) > LATELY) {
            self.0.pop_front();
        }
        // Readings come at most once a second, and more of them add nothing.
        while self.0.len() > 64 {
            self.0.pop_front();
        }
    }

    /// Returns the newest reading, unless it is too old.
    pub fn newest(&self, now: Mono) -> Option<&OwnerReading> {
        self.0.back().filter(|r| now.since(r.taken) <= LATELY)
    }

    /// Returns the share of its CPUs outside the caches in its share, or `None` if the owner is not bound to a cache.
    pub fn cpu_on_other_cache(&self, now: Mono, near: &NearCpus) -> Option<f64> {
        self.cpus_outside(now, near.caches_of(self.newest(now)?.allowed_cpus.as_ref()?)?)
    }

    /// Returns the share of its CPUs on another NUMA node than the GPU.
    pub fn cpu_on_other_node(&self, now: Mono, gpu: &Device) -> Option<f64> {
        gpu.numa_node?;
        self.cpus_outside(now, &gpu.cpus)
    }

    /// Returns the share of its CPUs outside `near`. Uses the CPUs on which it ran in the last minute, weighted by
    /// frequency, or else the CPUs on which it may run.
    fn cpus_outside(&self, now: Mono, near: &CpuSet) -> Option<f64> {
        let newest = self.newest(now)?;
        let recent = self.0.iter().filter(|r| now.since(r.taken) <= LATELY);
        let mut seen: BTreeMap<u32, u64> = BTreeMap::new();
        for (cpu, times) in recent.flat_map(|r| &r.ran_on) {
            *seen.entry(*cpu).or_default() += u64::from(*times);
        }
        let all: u64 = seen.values().sum();
        if all > 0 {
            let remote: u64 = seen.iter().filter(|(cpu, _)| !near.contains(**cpu)).map(|(_, n)| n).sum();
            return Some(remote as f64 / all as f64);
        }
        let allowed: &CpuSet = newest.allowed_cpus.as_ref().filter(|cpus| !cpus.is_empty())?;
        Some(allowed.without(near).len() as f64 / allowed.len() as f64)
    }

    /// Returns the share of its host memory that is not on the GPU's NUMA node.
    pub fn memory_remote(&self, now: Mono, gpu: &Device) -> Option<f64> {
        let node = gpu.numa_node?;
        let by_node = &self.newest(now)?.memory_by_node;
        let all: u64 = by_node.values().fold(0, |sum, bytes| sum.saturating_add(*bytes));
        let near = by_node.get(&node).copied().unwrap_or(0);
        (all > 0).then(|| (all - near) as f64 / all as f64)
    }

    /// Returns the share of one CPU that its busiest thread used between the last two readings.
    pub fn busiest_thread(&self, now: Mono) -> Option<f64> {
        let (before, newest, seconds) = self.last_two(now)?;
        let ((was, then), (is, at)) = (before.busiest_thread?, newest.busiest_thread?);
        // With another thread, the used time is unknown.
        (was == is && at >= then).then(|| ((at - then) / seconds).min(1.0))
    }

    /// Returns the share of its control group's quota that was used between the last two readings.
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
        assert_eq!(readings.cpu_on_other_node(now, &gpu(Some(0))), None);
        readings.push(reading(5, &[]));
        assert_eq!(readings.cpu_on_other_node(now, &gpu(Some(0))), Some(0.5));
        readings.push(reading(15, &[(1, 3), (9, 1)]));
        assert_eq!(readings.cpu_on_other_node(now, &gpu(Some(0))), Some(0.25));
        assert_eq!(readings.memory_remote(now, &gpu(Some(0))), Some(0.25));
        assert_eq!(readings.cpu_on_other_node(now, &gpu(None)), None, "what is near is not known");
        assert_eq!(readings.memory_remote(now, &gpu(None)), None);
        assert!((readings.busiest_thread(now).unwrap() - 0.9).abs() < 1e-9);
        assert_eq!(readings.quota_used(now), Some(1.0));
        assert_eq!(readings.quota_used(Mono(200_000_000_000)), None, "too old");
    }

    #[test]
    fn work_that_is_bound_to_a_cache_is_measured_by_the_caches_of_its_share() {
        let set = |text: &str| text.parse::<CpuSet>().unwrap();
        let near = NearCpus {
            node: Some(set("0-23")),
            caches: ["0-7", "8-15", "16-23"].map(set).to_vec(),
            own: Some(set("8-15")),
        };
        let now = Mono(20_000_000_000);
        let remote = |near: &NearCpus, allowed: &str, ran_on: &[(u32, u32)]| {
            let mut readings = Readings::default();
            readings.push(OwnerReading { allowed_cpus: Some(set(allowed)), ..reading(15, ran_on) });
            readings.cpu_on_other_cache(now, near)
        };
        assert_eq!(remote(&near, "8-15", &[(9, 5)]), Some(0.0));
        assert_eq!(remote(&near, "16-23", &[(17, 5)]), Some(1.0), "the cache of another slice");
        assert_eq!(remote(&near, "16-23", &[]), Some(1.0), "not seen on any CPU");
        assert_eq!(remote(&near, "0-15", &[(9, 1), (1, 3)]), Some(0.75), "one of two caches is its own");
        assert_eq!(remote(&near, "0-23", &[(1, 5)]), None, "bound to no cache");
        assert_eq!(remote(&near, "0-47", &[(1, 1), (40, 1)]), None, "bound to no node");
        assert_eq!(remote(&near, "40-47", &[]), None, "the other node");
        assert_eq!(remote(&NearCpus { own: None, ..near.clone() }, "16-23", &[]), None);
        assert_eq!(remote(&NearCpus::default(), "16-23", &[]), None);
    }
}
