//! What was read: the newest batch of each part, the epoch of each GPU, and the collectors' success.

use std::collections::BTreeMap;

use super::LiveSettings;
use super::builder::Builder;
use model::catalog::schema::{LabelSet, LabelText};
use model::catalog::{self as m, CollectorName, DriverError, Gpu, GpuInfo, MetricId, Subject, Tier};
use model::clock::Mono;
use model::owners::GpuProcess;
use model::sample::{Batch, BatchKey, Row, SWITCHED_OFF};
use model::snapshot::GpuState;

#[derive(Debug, Default)]
struct GpuRecord {
    /// 0 until its first batch.
    epoch: u64,
    /// Why there is no handle on it.
    attach_error: Option<(DriverError, String)>,
}

#[derive(Debug, Default)]
pub(crate) struct Intake {
    parts: BTreeMap<BatchKey, Batch>,
    /// By index and UUID: GPUs whose UUID was never read differ by index alone.
    gpus: BTreeMap<Gpu, GpuRecord>,
    node_epoch: u64,
    /// NVML batches of epochs below this are of a driver that went.
    first_epoch: u64,
    last_success: BTreeMap<CollectorName, Mono>,
    /// Collectors that cannot work, and why.
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

    /// Adds a GPU. Gives the GPUs that it replaces: itself under another index, another one under its index.
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

    /// Whether a batch of the sampler is of an epoch that is over.
    pub fn is_outdated(&self, batch: &Batch) -> bool {
        let current = match &batch.part.gpu {
            Some(gpu) => self.gpus.get(gpu).map_or(0, |record| record.epoch),
            None => self.node_epoch,
        };
        batch.epoch < current.max(self.first_epoch)
    }

    /// Whether the GPU of a batch has the layout that the batch was read under.
    pub fn is_of_layout(&self, gpu: &Gpu, epoch: u64) -> bool {
        self.gpus.get(gpu).is_some_and(|record| epoch >= record.epoch)
    }

    /// Enters the epoch of a batch; gives whether that is a new one of its GPU, which voids what was read before.
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

    /// Drops every value of the driver but the identity of its GPUs, and all batches of epochs below this.
    pub fn void_driver(&mut self, first_epoch: u64) {
        self.first_epoch = first_epoch;
        self.parts.retain(|part, _| {
            part.collector != CollectorName::Nvml || (part.tier == Tier::Identity && part.gpu.is_some())
        });
    }

    /// Whether a fast visit that began later has been folded: two threads of the sampler make them, each for
    /// the other when that one hangs, and what was hung up comes late.
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

    /// Why a collector is switched off, if it is.
    pub fn switched_off(&self, source: CollectorName) -> Option<&String> {
        self.unavailable.get(&source).filter(|text| text.starts_with(SWITCHED_OFF))
    }

    pub fn last_success(&self, source: CollectorName) -> Option<Mono> {
        self.last_success.get(&source).copied()
    }

    /// Whether a collector has answered or was found unable to work.
    pub fn is_settled(&self, source: CollectorName) -> bool {
        self.last_success.contains_key(&source) || self.unavailable.contains_key(&source)
    }

    /// What is wrong with a collector other than the sampler's.
    pub fn trouble(&self, source: CollectorName, now: Mono) -> Option<String> {
        let mut own = self.parts.iter().filter(|(part, _)| part.collector == source);
        let old = || own.any(|(_, stored)| stored.expired(now)).then(|| "its values are too old".to_owned());
        self.unavailable.get(&source).cloned().or_else(old)
    }

    /// The first failed call of the sampler that is about no GPU.
    pub fn node_failure(&self) -> Option<String> {
        let node = |part: &BatchKey| part.collector == CollectorName::Nvml && part.gpu.is_none();
        let mut failures =
            self.parts.iter().filter(|(part, _)| node(part)).filter_map(|(_, stored)| stored.failure());
        failures.next().map(|(_, text)| text)
    }

    /// GPUs that the driver lists now.
    pub fn listed_gpus(&self, now: Mono) -> Option<usize> {
        let stored = self.nvml(None, Tier::Slow).filter(|stored| !stored.expired(now))?;
        stored.find(m::gpu_devices.id()).map(|row| row.value as usize)
    }

    /// GPUs that are to answer before the daemon is ready; `None` before the driver was asked for them.
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

    /// The newest batch of a tier of a GPU, if that has not expired.
    pub fn fresh(&self, gpu: &Gpu, tier: Tier, now: Mono) -> Option<&Batch> {
        self.nvml(Some(gpu), tier).filter(|stored| !stored.expired(now))
    }

    /// Every part about a GPU, expired ones included.
    pub fn of_gpu(&self, gpu: &Gpu) -> impl Iterator<Item = (&BatchKey, &Batch)> {
        self.parts.iter().filter(move |(part, _)| part.gpu.as_ref() == Some(gpu))
    }

    /// The value of a row about a GPU with this label, if it is held and not too old.
    pub fn value_of(&self, gpu: &Gpu, metric: MetricId, label: Option<LabelText>, now: Mono) -> Option<f64> {
        self.of_gpu(gpu)
            .filter(|(_, stored)| !stored.expired(now))
            .flat_map(|(_, stored)| stored.rows.groups())
            .filter(|(subject, _)| matches!(subject, Subject::Gpu(_)))
            .flat_map(|(_, rows)| rows)
            .find(|row| row.metric == metric && row.labels.first() == label.as_ref())
            .map(|row| row.value)
    }

    /// One label of `gpu_info`.
    pub fn info_of(&self, gpu: &Gpu, label: &str) -> Option<String> {
        let row = self.of_gpu(gpu).find_map(|(_, stored)| stored.find(m::gpu_info.id()))?;
        self::label::<GpuInfo>(row, label).map(str::to_owned)
    }

    /// Every process on a GPU, as far as it is known now.
    pub fn processes_of(&self, gpu: &Gpu, now: Mono) -> Option<Vec<GpuProcess>> {
        let list = |tier| self.fresh(gpu, tier, now)?.processes.as_deref();
        let (normal, slow) = (list(Tier::Normal), list(Tier::Slow));
        unite(normal, slow).or_else(|| unite(slow, None))
    }

    /// The state of a GPU by what was read of it.
    pub fn state_of(&self, gpu: &Gpu, now: Mono) -> GpuState {
        let tiers = || [Tier::Normal, Tier::Fast].into_iter().filter_map(|tier| self.nvml(Some(gpu), tier));
        // The two tiers that are read at least once a second show whether the GPU answers.
        let newest: Vec<_> = tiers().filter(|stored| !stored.expired(now)).collect();
        // A visit that had nothing to ask shows something only if the other one does not contradict it.
        let read = newest.iter().any(|stored| stored.answered && !stored.rows.is_empty());
        if read || !newest.is_empty() && newest.iter().all(|stored| stored.answered) {
            return GpuState::Up;
        }
        let record = self.gpus.get(gpu);
        // A call that fails in a visit that is answered, for want of permission say, is no reason.
        let unanswered = |stored: &Batch| stored.failure().filter(|_| !stored.answered);
        // A lost GPU is left alone for a while: its last error stays the reason.
        let failure = record
            .and_then(|record| record.attach_error.clone())
            .or_else(|| newest.iter().rev().find_map(|stored| unanswered(stored)))
            .or_else(|| tiers().find_map(unanswered))
            // A call of another tier may be the first to find a loss, which voids these two.
            .or_else(|| self.nvml_of(gpu).find_map(unanswered));
        match failure {
            Some((error, text)) => GpuState::Failing { error, text },
            None if record.is_none_or(|record| record.epoch == 0) || self.begins(gpu) => GpuState::Waiting,
            None => GpuState::Unread,
        }
    }

    /// Whether something was read in this epoch, all of it well, but neither of the two tiers yet: MIG mode is
    /// read before them.
    fn begins(&self, gpu: &Gpu) -> bool {
        let mut own = self.of_gpu(gpu).filter(|(part, _)| part.tier != Tier::Identity).peekable();
        own.peek().is_some()
            && own.all(|(part, stored)| stored.answered && !matches!(part.tier, Tier::Fast | Tier::Normal))
    }

    /// The rows of every part that is not expired or withdrawn. `node_up`: the driver answers for the node.
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

/// What every part needs to know of the publication under way.
pub(crate) struct LedgerMoment<'a> {
    pub now: Mono,
    pub unix_seconds: f64,
    pub settings: &'a LiveSettings,
    pub intake: &'a Intake,
    /// Every known GPU by index.
    pub states: &'a [(Gpu, GpuState)],
}

impl LedgerMoment<'_> {
    /// A moment in seconds since 1970: the same number in each publication, as readers compare it.
    pub fn unix(&self, at: Mono) -> f64 {
        let seconds = |moment: Mono| moment.0 as f64 * 1e-9;
        let offset = self.unix_seconds - seconds(self.now);
        offset + seconds(at.min(self.now))
    }

    /// Every known GPU, and whether it answers.
    pub fn gpus(&self) -> impl Iterator<Item = (&Gpu, bool)> {
        self.states.iter().map(|(gpu, state)| (gpu, *state == GpuState::Up))
    }
}

/// A label of an info row by its name.
pub fn label<'a, L: LabelSet>(row: &'a Row, name: &str) -> Option<&'a str> {
    let at = L::DEFS.iter().position(|def| def.name == name)?;
    Some(row.labels.get(at)?.text(&L::DEFS[at]))
}

/// The processes that compute, listed once a second, and the others, listed every slow visit; each once an instance,
/// with the most memory of both lists. In MIG mode the slow visit lists those that compute once more, instance by
/// instance: that counts only where the GPU's own list is not known. `None`: neither list is known.
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
