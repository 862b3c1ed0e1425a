//! How a batch is taken in: what it counts, which epoch it is of, what of it is kept.

use std::collections::HashSet;

use super::owners::Glance;
use super::{Held, Ledger, inventory};
use model::catalog::schema::Label;
use model::catalog::{
    self as m, DriverError, Gpu, Kind, MetricId, Node, RecoveryAction, Subject, Tier, TierLabel,
};
use model::clock::{Mono, unix_seconds};
use model::fact::pci_address;
use model::sample::{Batch, Drained, Missing, Source};

impl Ledger {
    /// Folds one batch. Gives whether it began a new epoch, which is published at once.
    pub fn fold(&mut self, batch: Batch) -> bool {
        self.count_calls(&batch);
        let mut new_epoch = false;
        if batch.part.collector == Source::Nvml {
            let held = match &batch.part.gpu {
                Some(gpu) => self.gpus.get(gpu).map_or(0, |book| book.epoch),
                None => self.node_epoch,
            };
            let older = batch.epoch < held.max(self.floor);
            if let Some(gpu) = batch.part.gpu.as_ref().filter(|_| !older) {
                self.seat(gpu);
            }
            self.take_drained(&batch);
            if older {
                self.tally.add(&m::gpu_exporter_batches_discarded_total, &Node {}, (), 1.0);
                return false;
            }
            match &batch.part.gpu {
                Some(gpu) => new_epoch = self.begin(gpu, batch.epoch),
                None => self.node_epoch = batch.epoch,
            }
        }
        self.count_gaps(&batch);
        self.count_return(&batch);
        self.note_recovery(&batch);
        if self.overtaken(&batch) {
            self.tally.add(&m::gpu_exporter_batches_discarded_total, &Node {}, (), 1.0);
        } else {
            let look = Glance::of(&batch);
            self.keep(batch);
            if let Some(look) = look {
                self.look_at_owners(look);
            }
        }
        new_epoch
    }

    /// Whether a fast visit that began later has been folded: two threads of the sampler make them, each for
    /// the other when that one hangs, and what was hung up comes late.
    fn overtaken(&self, batch: &Batch) -> bool {
        batch.part.tier == Tier::Fast
            && self.parts.get(&batch.part).is_some_and(|held| batch.taken < held.taken)
    }

    /// Enters an epoch of a GPU; gives whether it is a new one that voids what is held.
    fn begin(&mut self, gpu: &Gpu, epoch: u64) -> bool {
        let Some(book) = self.gpus.get_mut(gpu) else { return false };
        book.no_handle = None;
        if epoch == book.epoch {
            return false;
        }
        let voids = book.epoch != 0;
        book.epoch = epoch;
        if voids {
            self.gpm.forget_instances(gpu);
        }
        self.parts.retain(|part, _| part.tier == Tier::Identity || part.gpu.as_ref() != Some(gpu));
        voids
    }

    fn count_calls(&mut self, batch: &Batch) {
        let Some(tier) = TierLabel::of(batch.part.tier) else { return };
        for call in &batch.calls {
            let (count, nanos) = self.calls.entry((call.call.clone(), tier)).or_default();
            *count += 1;
            *nanos += call.nanos;
            self.call_seconds.observe(call.nanos as f64 * 1e-9);
        }
    }

    /// Adds up what was drained. Samples are the GPU's whatever its MIG layout; windows are of the layout
    /// they were measured under.
    fn take_drained(&mut self, batch: &Batch) {
        let Some(gpu) = batch.part.gpu.as_ref().filter(|_| !batch.drained.is_empty()) else { return };
        let Some(book) = self.gpus.get_mut(gpu) else { return };
        let current = batch.epoch >= book.epoch;
        for drained in &batch.drained {
            match drained {
                Drained::Samples { .. } => {
                    let tell = |buffer, at, seconds, amount| {
                        self.owners.sampled(gpu, buffer, at, seconds, amount);
                    };
                    book.samples.take(batch.taken, drained, |at| self.busy.canarys(&gpu.uuid, at), tell);
                    if let Some(at) = book.samples.utilization.above_zero {
                        self.busy.seen(&gpu.uuid, at);
                    }
                }
                Drained::Gpm(window) if current || matches!(window.subject, Subject::Gpu(_)) => {
                    self.gpm.add(window);
                    self.owners.gpm(gpu, window, batch.taken);
                }
                Drained::Gpm(_) => {}
            }
        }
    }

    /// Counts a driver call that failed.
    pub(super) fn count_error(&mut self, gpu: Option<&Gpu>, error: DriverError) {
        self.tally.add(&m::gpu_exporter_driver_error_kinds_total, &Node {}, (error,), 1.0);
        if let Some(gpu) = gpu {
            self.tally.add(&m::gpu_exporter_driver_errors_total, gpu, (), 1.0);
        }
    }

    fn count_gaps(&mut self, batch: &Batch) {
        for gap in &batch.gaps {
            let gpu = batch.part.gpu.as_ref();
            if let Missing::Failed { error, .. } = &gap.missing {
                self.count_error(gpu, error.label());
            }
            let Some(gpu) = gpu else { continue };
            match &gap.missing {
                Missing::Unsupported => {}
                Missing::Failed { error, .. } => {
                    let error: DriverError = error.label();
                    if is_lost(error) {
                        // A lost GPU comes back only after a reset, and a reset clears its counters.
                        self.counters.forget(&gpu.uuid);
                        self.resets.lost(&gpu.uuid, Some(batch.part.tier), batch.taken);
                    }
                }
                Missing::Dropped(drop) => {
                    self.tally.add(&m::gpu_exporter_readings_dropped_total, gpu, (drop.label(),), 1.0);
                }
            }
        }
    }

    /// Counts the reset of a GPU that was lost and answers again.
    fn count_return(&mut self, batch: &Batch) {
        let Some(gpu) = &batch.part.gpu else { return };
        // Identity is told before anything was measured.
        let measured = batch.part.tier != Tier::Identity && !batch.rows.is_empty();
        let lost = batch.gaps.iter().any(|gap| match &gap.missing {
            Missing::Failed { error, .. } => is_lost(error.label()),
            Missing::Unsupported | Missing::Dropped(_) => false,
        });
        let tier = batch.part.tier;
        if measured && batch.answered && !lost && self.resets.answers(&gpu.uuid, tier, batch.taken) {
            self.count_reset(&gpu.clone(), batch.taken);
        }
    }

    /// Counts the reset of a GPU: its faults are done with.
    fn count_reset(&mut self, gpu: &Gpu, at: Mono) {
        self.tally.add(&m::gpu_resets_total, gpu, (), 1.0);
        let age = Mono::now().since(at).as_secs_f64();
        self.faults.gpu_reset(gpu, at, unix_seconds() - age);
        self.canary.reset(Some(gpu));
    }

    /// Counts the reset of a GPU for which the driver asked and asks no more.
    fn note_recovery(&mut self, batch: &Batch) {
        let Some(gpu) = &batch.part.gpu else { return };
        let action = m::gpu_recovery_action.id();
        let rows = batch.rows.groups().iter().flat_map(|(_, rows)| rows);
        let Some(now) = rows.into_iter().find(|row| row.metric == action && row.value > 0.0) else { return };
        use RecoveryAction as A;
        let is = |action: A| now.labels == [action.text()];
        let reset = [A::GpuReset, A::NodeReboot, A::DrainAndReset].into_iter().any(is);
        // A drain of peers alone is no reset, and its end is none either.
        if (reset || is(A::None)) && self.resets.asks(&gpu.uuid, reset, batch.taken) {
            self.count_reset(&gpu.clone(), batch.taken);
        }
    }

    fn keep(&mut self, batch: Batch) {
        self.busy.look(&batch);
        let Batch { part, taken, nanos, lifetime_nanos, answered, mut rows, gaps, processes, .. } = batch;
        let mut steps_back = 0;
        if part.collector == Source::Nvml {
            for (subject, row) in rows.iter_mut() {
                if m::def(row.metric).is_some_and(|def| def.kind == Kind::Counter) {
                    let key = (row.metric, subject.clone(), row.labels.clone());
                    let (value, stepped) = self.counters.read(key, row.value);
                    row.value = value;
                    steps_back += u32::from(stepped);
                }
            }
        }
        if let Some(gpu) = &part.gpu {
            if steps_back > 0 {
                let metric = &m::gpu_exporter_counter_regressions_total;
                self.tally.add(metric, gpu, (), f64::from(steps_back));
            }
            if let Some(book) = self.gpus.get_mut(gpu) {
                let own = rows.groups().iter().find(|(s, _)| matches!(s, Subject::Gpu(_)));
                let own = own.map_or(&[][..], |(_, rows)| rows);
                match part.tier {
                    Tier::Fast => book.clock_events.fast(taken, own, self.settings.bridge),
                    Tier::Slow => book.clock_events.slow(own, &gaps),
                    _ => {}
                }
            }
        }
        let present: HashSet<MetricId> =
            rows.groups().iter().flat_map(|(_, rows)| rows).map(|row| row.metric).collect();
        let mut unsupported: Vec<MetricId> = gaps
            .iter()
            .filter(|gap| gap.missing == Missing::Unsupported)
            .flat_map(|gap| gap.metrics.iter().copied())
            .filter(|metric| !present.contains(metric))
            .collect();
        unsupported.sort_unstable();
        unsupported.dedup();
        if answered {
            self.last_success.insert(part.collector, taken);
        }
        let listed = rows.groups().iter().flat_map(|(_, rows)| rows);
        let listed = listed.filter(|row| row.metric == m::gpu_devices.id()).map(|row| row.value as usize);
        for devices in listed {
            self.seen_changed |= self.seen.count(devices);
        }
        if let Some(gpu) = part.gpu.as_ref().filter(|_| part.tier == Tier::Identity) {
            let pci = inventory::pci(&rows).and_then(pci_address);
            if let Some(pci) = &pci {
                self.faults.place(pci.clone(), gpu);
            }
            self.seen_changed |= self.seen.note(gpu, pci);
        }
        let lifetime = lifetime_nanos;
        let identity_lost = part.tier == Tier::Identity && rows.is_empty() && self.parts.contains_key(&part);
        if !identity_lost {
            let held = Held { rows, gaps, unsupported, taken, nanos, lifetime, answered, processes };
            self.parts.insert(part, held);
        }
    }
}

/// Whether an error says that the GPU is of no use before it is reset.
pub(super) fn is_lost(error: DriverError) -> bool {
    matches!(error, DriverError::GpuIsLost | DriverError::ResetRequired)
}
