//! Readings: the newest batch of every part, the epoch of every GPU, and the success of the collectors.

use std::collections::BTreeMap;

use super::LiveSettings;
use super::builder::Builder;
use model::catalog::schema::{LabelSet, LabelText};
use model::catalog::{self as m, CollectorName, DriverError, Gpu, GpuInfo, MetricId, Subject, Tier};
use model::clock::Mono;
use model::owners::GpuProcess;
use model::sample::{Batch, BatchKey, Row, SWITCHED_OFF};
use model::snapshot::GpuState;

#[derive(Default)]
struct GpuRecord {
    /// 0 before the first batch.
    epoch: u64,
    /// Reason why there is no handle on the GPU.
    attach_error: Option<(DriverError, String)>,
}

#[derive(Default)]
pub(crate) struct Intake {
    parts: BTreeMap<BatchKey, Batch>,
    /// GPUs by index and UUID. GPUs whose UUID was never read differ only by index.
    gpus: BTreeMap<Gpu, GpuRecord>,
    node_epoch: u64,
    /// NVML batches of lower epochs belong to a removed driver.
    first_epoch: u64,
    pub last_success: BTreeMap<CollectorName, Mono>,
    /// Collectors that cannot work, with the reason.
    unavailable: BTreeMap<CollectorName, String>,
}

impl Intake {
    pub fn gpus(&self) -> impl Iterator<Item = &Gpu> {
        self.gpus.keys()
    }

    pub fn knows(&self, gpu: &Gpu) -> bool {
        self.gpus.contains_key(gpu)
    }

    pub fn gpu_by_uuid(&self, uuid: &str) -> Option<&Gpu> {
        self.gpus.keys().find(|gpu| *gpu.uuid == *uuid)
    }

    pub fn gpu_by_index(&self, index: u32) -> Option<&Gpu> {
        self.gpus.keys().find(|gpu| gpu.gpu == index)
    }

    /// Adds a GPU, and returns the GPUs that it replaces: itself under another index, and another GPU under its
    /// index.
    pub fn add_gpu(&mut self, gpu: &Gpu) -> Vec<Gpu> {
        let same = |other: &&Gpu| other.gpu == gpu.gpu || other.uuid == gpu.uuid && !gpu.uuid.is_empty();
        let replaced: Vec<Gpu> = self.gpus.keys().filter(same).cloned().collect();
        for old in &replaced {
            self.gpus.remove(old);
            self.parts.retain(|part, _| part.gpu.as_ref() != Some(old));
        }
        self.gpus.insert(gpu.clone(), GpuRecord::default());
        replaced
    }

    pub fn attach_failed(&mut self, gpu: &Gpu, error: DriverError, text: &str) {
        if let Some(record) = self.gpus.get_mut(gpu) {
            record.attach_error = Some((error, format!("no handle: {text}")));
        }
    }

    /// Returns true if the epoch of a batch is over.
    pub fn is_outdated(&self, batch: &Batch) -> bool {
        let current = match &batch.part.gpu {
            Some(gpu) => self.gpus.get(gpu).map_or(0, |record| record.epoch),
            None => self.node_epoch,
        };
        batch.epoch < current.max(self.first_epoch)
    }

    /// Returns true if the GPU still has the layout of this epoch.
    pub fn is_of_layout(&self, gpu: &Gpu, epoch: u64) -> bool {
        self.gpus.get(gpu).is_some_and(|record| epoch >= record.epoch)
    }

    /// Enters the epoch of a batch. Returns true if the GPU has a new epoch, which voids all earlier readings.
    pub fn enter_epoch(&mut self, batch: &Batch) -> bool {
        let Some(gpu) = &batch.part.gpu else {
            self.node_epoch = batch.epoch;
            return false;
        };
        let Some(record) = self.gpus.get_mut(gpu) else { return false };
        record.attach_error = None;
        let before = std::mem::replace(&mut record.epoch, batch.epoch);
        if before == batch.epoch {
            return false;
        }
        self.parts.retain(|part, _| part.tier == Tier::Identity || part.gpu.as_ref() != Some(gpu));
        before != 0
    }

    /// Drops all values of the driver except the identity of the GPUs, and all batches of lower epochs.
    pub fn void_driver(&mut self, first_epoch: u64) {
        self.first_epoch = first_epoch;
        self.parts.retain(|part, _| {
            part.collector != CollectorName::Nvml || (part.tier == Tier::Identity && part.gpu.is_some())
        });
    }

    /// Returns true if a fast visit that began later is already stored. Two threads of the sampler make fast visits
    /// and replace each other when one hangs, so a delayed visit may come late.
    pub fn overtaken(&self, batch: &Batch) -> bool {
        batch.part.tier == Tier::Fast
            && self.parts.get(&batch.part).is_some_and(|newer| batch.taken < newer.taken)
    }

    pub fn store(&mut self, batch: Batch) {
        let part = batch.part.clone();
        if batch.answered {
            self.last_success.insert(part.collector, batch.taken);
        }
        // The identity of a GPU outlasts a visit that could not read it.
        if part.tier != Tier::Identity || !batch.rows.is_empty() || !self.parts.contains_key(&part) {
            self.parts.insert(part, Batch { calls: Vec::new(), drained: Vec::new(), ..batch });
        }
    }

    pub fn set_unavailable(&mut self, source: CollectorName, reason: Option<String>) {
        match reason {
            Some(reason) => self.unavailable.insert(source, reason),
            None => self.unavailable.remove(&source),
        };
    }

    /// Returns the reason if a collector is switched off.
    pub fn switched_off(&self, source: CollectorName) -> Option<&String> {
        self.unavailable.get(&source).filter(|text| text.starts_with(SWITCHED_OFF))
    }

    /// Returns true if a collector has answered or cannot work.
    pub fn is_settled(&self, source: CollectorName) -> bool {
        self.last_success.contains_key(&source) || self.unavailable.contains_key(&source)
    }

    /// Returns the problem of a collector other than the sampler.
    pub fn trouble(&self, source: CollectorName, now: Mono) -> Option<String> {
        let mut own = self.parts.iter().filter(|(part, _)| part.collector == source);
        let old = || own.any(|(_, stored)| stored.expired(now)).then(|| "its values are too old".to_owned());
        self.unavailable.get(&source).cloned().or_else(old)
    }

    /// Returns the first failed call of the sampler about the node.
    pub fn node_failure(&self) -> Option<String> {
        let node = |part: &BatchKey| part.collector == CollectorName::Nvml && part.gpu.is_none();
        let mut failures =
            self.parts.iter().filter(|(part, _)| node(part)).filter_map(|(_, stored)| stored.failure());
        failures.next().map(|(_, text)| text)
    }

    /// Returns how many GPUs the driver lists now.
    pub fn listed_gpus(&self, now: Mono) -> Option<usize> {
        let stored = self.nvml(None, Tier::Slow).filter(|stored| !stored.expired(now))?;
        stored.find(m::gpu_devices.id()).map(|row| row.value as usize)
    }

    /// Returns how many GPUs must answer before the daemon is ready, or `None` before the driver was asked.
    pub fn awaited_gpus(&self) -> Option<usize> {
        let stored = self.nvml(None, Tier::Slow)?;
        Some(stored.find(m::gpu_devices.id()).map_or(0, |row| row.value as usize))
    }

    fn nvml(&self, gpu: Option<&Gpu>, tier: Tier) -> Option<&Batch> {
        self.parts.get(&BatchKey { collector: CollectorName::Nvml, gpu: gpu.cloned(), tier })
    }

    fn nvml_of(&self, gpu: &Gpu) -> impl Iterator<Item = &Batch> {
        self.of_gpu(gpu).filter(|(part, _)| part.collector == CollectorName::Nvml).map(|(_, stored)| stored)
    }

    /// Returns the newest batch of a GPU's tier, unless it has expired.
    pub fn fresh(&self, gpu: &Gpu, tier: Tier, now: Mono) -> Option<&Batch> {
        self.nvml(Some(gpu), tier).filter(|stored| !stored.expired(now))
    }

    /// Returns all parts about a GPU, including expired ones.
    pub fn of_gpu(&self, gpu: &Gpu) -> impl Iterator<Item = (&BatchKey, &Batch)> {
        self.parts.iter().filter(move |(part, _)| part.gpu.as_ref() == Some(gpu))
    }

    /// Returns the value of a GPU's row with this label, unless it has expired.
    pub fn value_of(&self, gpu: &Gpu, metric: MetricId, label: Option<LabelText>, now: Mono) -> Option<f64> {
        self.of_gpu(gpu)
            .filter(|(_, stored)| !stored.expired(now))
            .flat_map(|(_, stored)| stored.rows.groups())
            .filter(|(subject, _)| matches!(subject, Subject::Gpu(_)))
            .flat_map(|(_, rows)| rows)
            .find(|row| row.metric == metric && row.labels.first() == label.as_ref())
            .map(|row| row.value)
    }

    /// Returns a label of `gpu_info`.
    pub fn info_of(&self, gpu: &Gpu, label: &str) -> Option<String> {
        let row = self.of_gpu(gpu).find_map(|(_, stored)| stored.find(m::gpu_info.id()))?;
        self::label::<GpuInfo>(row, label).map(str::to_owned)
    }

    /// Returns all processes on a GPU, as far as they are known.
    pub fn processes_of(&self, gpu: &Gpu, now: Mono) -> Option<Vec<GpuProcess>> {
        let list = |tier| self.fresh(gpu, tier, now)?.processes.as_deref();
        let (normal, slow) = (list(Tier::Normal), list(Tier::Slow));
        unite(normal, slow).or_else(|| unite(slow, None))
    }

    /// Returns the state of a GPU, judged by its readings.
    pub fn state_of(&self, gpu: &Gpu, now: Mono) -> GpuState {
        let tiers = || [Tier::Normal, Tier::Fast].into_iter().filter_map(|tier| self.nvml(Some(gpu), tier));
        // The two tiers that are read at least once a second show whether the GPU answers.
        let newest: Vec<_> = tiers().filter(|stored| !stored.expired(now)).collect();
        // A visit without any call proves something only if the other tier does not contradict it.
        let read = newest.iter().any(|stored| stored.answered && !stored.rows.is_empty());
        if read || !newest.is_empty() && newest.iter().all(|stored| stored.answered) {
            return GpuState::Up;
        }
        let record = self.gpus.get(gpu);
        // A failed call in an answered visit (for example, for lack of permission) is not a reason.
        let unanswered = |stored: &Batch| stored.failure().filter(|_| !stored.answered);
        // A lost GPU is not read for a while, so its last error remains the reason.
        let failure = record
            .and_then(|record| record.attach_error.clone())
            .or_else(|| newest.iter().rev().find_map(|stored| unanswered(stored)))
            .or_else(|| tiers().find_map(unanswered))
            // A call of another tier may be the first to notice a loss, which voids these two tiers.
            .or_else(|| self.nvml_of(gpu).find_map(unanswered));
        match failure {
            Some((error, text)) => GpuState::Failing { error, text },
            None if record.is_none_or(|record| record.epoch == 0) || self.begins(gpu) => GpuState::Waiting,
            None => GpuState::Unread,
        }
    }

    /// Returns true if this epoch has only successful readings, but none of the two tiers yet. MIG mode is read
    /// before them.
    fn begins(&self, gpu: &Gpu) -> bool {
        let mut own = self.of_gpu(gpu).filter(|(part, _)| part.tier != Tier::Identity).peekable();
        own.peek().is_some()
            && own.all(|(part, stored)| stored.answered && !matches!(part.tier, Tier::Fast | Tier::Normal))
    }

    /// Publishes the rows of all parts that have not expired and are not withdrawn. `node_up`: the driver answers for
    /// the node.
    pub fn publish(&self, b: &mut Builder<'_>, now: Mono, node_up: bool, states: &[(Gpu, GpuState)]) {
        for (part, stored) in self.parts.iter().filter(|(_, stored)| !stored.expired(now)) {
            let served = match &part.gpu {
                Some(_) if part.tier == Tier::Identity => true,
                Some(gpu) => states.iter().any(|(g, state)| g == gpu && *state == GpuState::Up),
                None if part.collector == CollectorName::Nvml => node_up,
                None => true,
            };
            for (subject, rows) in stored.rows.groups().iter().filter(|_| served) {
                b.rows(subject, rows);
            }
        }
    }
}

/// Context of the current publication.
pub(crate) struct LedgerMoment<'a> {
    pub now: Mono,
    pub unix_seconds: f64,
    pub settings: &'a LiveSettings,
    pub intake: &'a Intake,
    /// All known GPUs, ordered by index.
    pub states: &'a [(Gpu, GpuState)],
}

impl LedgerMoment<'_> {
    /// Converts a time to seconds since 1970. Returns the same number in every publication, because readers compare
    /// it.
    pub fn unix(&self, at: Mono) -> f64 {
        let seconds = |moment: Mono| moment.0 as f64 * 1e-9;
        let offset = self.unix_seconds - seconds(self.now);
        offset + seconds(at.min(self.now))
    }

    /// Returns all known GPUs, and whether they answer.
    pub fn gpus(&self) -> impl Iterator<Item = (&Gpu, bool)> {
        self.states.iter().map(|(gpu, state)| (gpu, *state == GpuState::Up))
    }
}

/// Returns a label of an info row by its name.
pub fn label<'a, L: LabelSet>(row: &'a Row, name: &str) -> Option<&'a str> {
    let at = L::DEFS.iter().position(|def| def.name == name)?;
    Some(row.labels.get(at)?.text(&L::DEFS[at]))
}

/// Merges the compute processes, listed once a second, with the other processes, listed in slow visits. Every process
/// appears once per instance, with the larger memory of both lists. In MIG mode, the slow visit also lists compute
/// processes by instance, which count only if the GPU's own list is unknown. Returns `None` if neither list is known.
fn unite(normal: Option<&[GpuProcess]>, slow: Option<&[GpuProcess]>) -> Option<Vec<GpuProcess>> {
    let mut all = normal?.to_vec();
    all.extend(slow.unwrap_or_default().iter().filter(|one| one.instance.is_none()));
    all.sort_unstable();
    let once: BTreeMap<_, _> = all.into_iter().map(|one| ((one.pid, one.instance), one)).collect();
    Some(once.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_the_same_number_in_each_publication() {
        let (settings, intake) = (&LiveSettings::default(), &Intake::default());
        let at = Mono(72_000_123_456_789);
        let of = |step: u64| {
            let now = Mono(at.0 + step * 50_123_457);
            let unix_seconds = 1_795_366_973.123_456 + now.0 as f64 * 1e-9;
            LedgerMoment { now, unix_seconds, settings, intake, states: &[] }.unix(at).to_bits()
        };
        assert!((1..1000).all(|step| of(step) == of(0)));
    }

    fn on(pid: u32, instance: Option<(u32, u32)>, memory: Option<u64>) -> GpuProcess {
        GpuProcess { pid, instance, memory }
    }

    #[test]
    fn both_lists_are_united_and_no_process_is_counted_twice() {
        let normal = [on(1, None, Some(5)), on(2, None, None)];
        let slow = [on(2, None, Some(7)), on(3, None, Some(1))];
        let all = unite(Some(&normal), Some(&slow)).unwrap();
        assert_eq!(all, [on(1, None, Some(5)), on(2, None, Some(7)), on(3, None, Some(1))]);
        assert_eq!(unite(Some(&[]), None), Some(vec![]));
        assert_eq!(unite(None, Some(&slow)), None);
    }

    #[test]
    fn an_instances_old_list_does_not_bring_back_processes_that_have_gone() {
        let slow = [on(1, Some((1, 0)), Some(5))];
        assert_eq!(unite(Some(&[]), Some(&slow)), Some(vec![]));
    }
}
