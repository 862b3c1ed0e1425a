//! Queries the driver in a separate sampler process. This process loads no NVIDIA library and waits for no
//! driver call. If a call hangs, it is reported and the sampler is left behind.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use collectors::nvml::policy::StuckCall;
use collectors::nvml::process::{
    CallDeadlines, SamplerMessage, SamplerProcess, end_all, sampler_config, sampler_settings,
};
use host::child::Stderr;
use host::terminal::progress;
use ledger::inbox::Inbox;
use model::catalog::{self as m, ComputeInstance, DriverError, Gpu, METRICS, MetricId, Subject, Tier};
use model::clock::Mono;
use model::sample::{Batch, BatchKey, Missing, Row};
use sampler::wire::{FromSampler, GpuSlot, Intervals, SamplerConfig, SamplerSettings};
use settings::Config;

/// Additional time for a query besides the deadlines of the calls, sufficient for 64 GPUs with one expensive
/// visit at a time.
const SPARE: Duration = Duration::from_secs(15);
/// Time for the sampler to exit.
const END: Duration = Duration::from_secs(5);
/// Time between two checks.
const LOOK: Duration = Duration::from_millis(50);
/// Time after which the progress is shown.
const LONG: Duration = Duration::from_secs(1);

/// Metrics that a query reads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum QueryScope<'a> {
    /// All metrics except these. The query takes long enough to measure cheap calls about ten times.
    AllBut(&'a HashSet<MetricId>),
    /// Only these metrics, from the tiers that list GPUs and their users. The query ends when they are known.
    Only(&'a [MetricId]),
}

/// Answers of the driver.
#[derive(Debug, Default)]
pub(crate) struct DriverAnswers {
    /// True if the driver responds.
    pub up: bool,
    /// Reason why the driver does not respond.
    pub away: Option<(Option<DriverError>, String)>,
    /// Newest result of every visit.
    pub batches: BTreeMap<BatchKey, Batch>,
    /// Wall times by call, in nanoseconds.
    pub calls: BTreeMap<String, Vec<u64>>,
    /// Calls that did not return in time.
    pub hung: Vec<StuckCall>,
    /// GPUs without a handle, with the reason.
    pub attach_failed: BTreeMap<u32, String>,
    /// Process left behind in a driver call.
    pub left: Option<i32>,
    attached: BTreeMap<usize, Gpu>,
}

impl DriverAnswers {
    /// Returns the rows of a metric with their subjects.
    pub fn rows(&self, id: MetricId) -> impl Iterator<Item = (&Subject, &Row)> {
        let groups = self.batches.values().flat_map(|batch| batch.rows.groups());
        let rows = groups.flat_map(|(subject, rows)| rows.iter().map(move |row| (subject, row)));
        rows.filter(move |(_, row)| row.metric == id)
    }

    /// Returns the number of GPUs that the driver lists, if known.
    pub fn devices(&self) -> Option<usize> {
        self.rows(m::gpu_devices.id()).last().map(|(_, row)| row.value as usize)
    }

    /// Returns a label of `gpu_driver_info`.
    pub fn driver_info(&self, name: &str) -> Option<String> {
        self.rows(m::gpu_driver_info.id()).map(|(_, row)| label(row, name)).find(|text| !text.is_empty())
    }

    /// Returns the GPUs with their `gpu_info`.
    pub fn gpus(&self) -> BTreeMap<&Gpu, &Row> {
        let rows = self.rows(m::gpu_info.id());
        rows.filter_map(|(of, row)| if let Subject::Gpu(gpu) = of { Some((gpu, row)) } else { None })
            .collect()
    }

    /// Returns the MIG devices of a GPU with their `gpu_mig_info`.
    pub fn mig_devices(&self, gpu: &Gpu) -> BTreeMap<&ComputeInstance, &Row> {
        let devices = self.rows(m::gpu_mig_info.id()).filter_map(|(of, row)| match of {
            Subject::ComputeInstance(instance) if instance.uuid == gpu.uuid => Some((instance, row)),
            _ => None,
        });
        devices.filter(|(_, row)| !label(row, "mig_uuid").is_empty()).collect()
    }

    /// Returns the number of GPUs with complete answers, or without any to come.
    fn finished(&self, avoid: &[usize], tiers: &[Tier]) -> usize {
        let Some(devices) = self.devices() else { return 0 };
        let heard = |slot: &usize| {
            let index = u32::try_from(slot - 1).unwrap_or(u32::MAX);
            avoid.contains(slot)
                || self.attach_failed.contains_key(&index)
                || self.hung.iter().any(|hung| hung.slot == *slot)
                || self.attached.get(slot).is_some_and(|gpu| self.all_of(gpu, tiers))
        };
        (1..=devices).filter(heard).count()
    }

    /// Returns true if every tier of a GPU was visited in its newest epoch. A visit that finds another MIG
    /// layout, including the first visit, invalidates all earlier visits except the identity.
    fn all_of(&self, gpu: &Gpu, tiers: &[Tier]) -> bool {
        let of_gpu = || self.batches.values().filter(|batch| batch.part.gpu.as_ref() == Some(gpu));
        let newest = of_gpu().map(|batch| batch.epoch).max();
        let counts = |batch: &Batch| batch.part.tier == Tier::Identity || Some(batch.epoch) == newest;
        let visited = |tier: &Tier| of_gpu().any(|batch| batch.part.tier == *tier && counts(batch));
        self.lost(gpu).is_some() || tiers.iter().all(visited)
    }

    /// Returns the call that showed that a GPU is lost, with its error.
    fn lost(&self, gpu: &Gpu) -> Option<String> {
        let of = |(part, batch): &(&BatchKey, &Batch)| part.gpu.as_ref() == Some(gpu) && !batch.answered;
        self.batches.iter().filter(of).flat_map(|(_, batch)| &batch.gaps).find_map(|gap| match &gap.missing {
            Missing::Failed { error: DriverError::GpuIsLost | DriverError::ResetRequired, text } => {
                Some(format!("{}: {text}", gap.call))
            }
            _ => None,
        })
    }

    /// Returns the lost GPUs that have a handle, with the reason.
    pub fn lost_gpus(&self) -> BTreeMap<u32, String> {
        self.attached.values().filter_map(|gpu| Some((gpu.gpu, self.lost(gpu)?))).collect()
    }

    fn receive(&mut self, inbox: &Inbox) {
        let Some(pending) = inbox.wait_until(Mono(0)) else { return };
        for mut batch in pending.batches {
            for cost in std::mem::take(&mut batch.calls) {
                self.calls.entry(cost.call).or_default().push(cost.nanos);
            }
            self.batches.insert(batch.part.clone(), batch);
        }
    }

    fn handle(&mut self, message: SamplerMessage) -> bool {
        match message.event {
            Ok(FromSampler::DriverUp) => self.up = true,
            Ok(FromSampler::DriverAway { error, text }) => {
                self.away = Some((Some(error), text));
                return true;
            }
            Ok(FromSampler::AttachFailed { index, text, .. }) => {
                self.attach_failed.insert(index, text);
            }
            Ok(FromSampler::Attached(slot)) => {
                self.attached.insert(slot.slot, slot.gpu);
            }
            // Batches and facts are in the inbox.
            Ok(FromSampler::Batch(_) | FromSampler::Fact(_)) => {}
            Err((_, text)) => {
                self.away.get_or_insert((None, format!("the sampler process failed: {text}")));
                return true;
            }
        }
        false
    }
}

/// Queries the driver, and shows the progress of a long query. Leaves out the GPUs to `avoid`; if there are
/// any, attaches the other GPUs by their addresses, as listed in `known`.
pub fn query(
    config: &Config,
    scope: QueryScope<'_>,
    known: Vec<GpuSlot>,
    avoid: Vec<usize>,
) -> io::Result<DriverAnswers> {
    use Tier::*;
    let (tiers, shortest): (&[Tier], _) = match scope {
        QueryScope::AllBut(_) => {
            (&[Identity, Once, Fast, Normal, Samples, Slow, Rare, Nvlink], Duration::from_secs(3))
        }
        QueryScope::Only(_) => (&[Identity, Normal, Slow], Duration::ZERO),
    };
    let deadlines = CallDeadlines { call: config.sampler.call_timeout, init: config.sampler.init_timeout };
    let inbox = Arc::new(Inbox::default());
    let (sender, messages) = channel();
    let settings = one_time_config(config, scope, known, avoid.clone());
    let mut sampler = SamplerProcess::start(1, "error", Stderr::Null, settings, &inbox, &sender)?;
    let started = Mono::now();
    let deadline = started + deadlines.init + deadlines.call + SPARE;
    let mut answers = DriverAnswers::default();
    let mut is_over = false;
    while !is_over {
        is_over = match messages.recv_timeout(LOOK) {
            Ok(message) => answers.handle(message),
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => true,
        };
        answers.receive(&inbox);
        let now = Mono::now();
        let waited = now.since(started);
        let health = sampler.health(now, deadlines);
        answers.hung = health.stuck;
        let (finished, listed) = (answers.finished(&avoid, tiers), answers.devices());
        if waited > LONG {
            let (seconds, listed) = (waited.as_secs_f64(), listed.unwrap_or_default());
            progress(&format!("querying the driver: {seconds:.0} s, {finished} of {listed} GPUs "));
        }
        let node_hangs = answers.hung.iter().any(|hung| hung.gpu().is_none());
        let is_complete = listed == Some(finished) && waited >= shortest;
        // A stopped or starved process sends nothing more.
        let is_silent = health.well == 0 && health.late > 0;
        if is_silent && answers.hung.is_empty() {
            answers.away.get_or_insert((None, "the sampler process is stopped or starved".into()));
        }
        is_over |= is_complete || node_hangs || is_silent || now >= deadline;
    }
    progress("");
    sampler.abandon();
    let mut samplers = vec![sampler];
    end_all(&mut samplers, Mono::now() + END, deadlines);
    answers.left = samplers.first().map(SamplerProcess::pid);
    answers.receive(&inbox);
    Ok(answers)
}

/// Returns the configuration of a sampler that reads every metric soon after its start.
fn one_time_config(
    config: &Config,
    scope: QueryScope<'_>,
    known: Vec<GpuSlot>,
    avoid: Vec<usize>,
) -> SamplerConfig {
    let mut off: HashSet<MetricId> = match scope {
        QueryScope::AllBut(off) => off.clone(),
        QueryScope::Only(wanted) => {
            (0..).map(MetricId).take(METRICS.len()).filter(|id| !wanted.contains(id)).collect()
        }
    };
    // Only the daemon reads the driver's events.
    off.extend([m::gpu_driver_events_registered.id(), m::gpu_driver_events_total.id()]);
    let (quick, slow) = (Duration::from_millis(200), Duration::from_secs(1));
    let intervals = Intervals {
        fast: quick,
        normal: quick,
        samples: slow,
        slow,
        // Some windows start with one of these visits and end with the next.
        rare: slow,
        // These calls are expensive, and one visit reads everything.
        nvlink: Duration::from_secs(3600),
    };
    let settings = SamplerSettings { off, intervals, ..sampler_settings(config) };
    SamplerConfig { known, avoid, settings, ..sampler_config(config) }
}

/// Returns a label of a row by its name; empty if there is none.
pub fn label(row: &Row, name: &str) -> String {
    let labels = m::def(row.metric).map_or(&[][..], |def| def.labels).iter().zip(&row.labels);
    let found = labels.into_iter().find(|(def, _)| def.name == name);
    found.map(|(def, text)| text.text(def).to_owned()).unwrap_or_default()
}

/// Describes a call that does not return, with its GPU.
pub fn does_not_return(hung: &StuckCall) -> String {
    let gpu = hung.gpu().map(|gpu| format!(" on GPU {gpu}")).unwrap_or_default();
    format!("{} does not return{gpu}", hung.call)
}

#[cfg(test)]
mod tests {
    use model::catalog::CollectorName;

    use super::*;
    use Tier::{Identity, Normal, Slow};

    #[test]
    fn what_was_read_before_a_change_of_the_layout_is_read_again() {
        let gpu = Gpu { gpu: 0, uuid: "GPU-0".into() };
        let mut answers = DriverAnswers::default();
        let mut visited = |tier: Tier, epoch: u64| {
            let part = BatchKey { collector: CollectorName::Nvml, gpu: Some(gpu.clone()), tier };
            answers.batches.insert(part.clone(), Batch::new(part, epoch, Mono(0), None));
            answers.all_of(&gpu, &[Identity, Normal, Slow])
        };
        assert!(!visited(Tier::Identity, 1) && !visited(Tier::Normal, 1));
        assert!(!visited(Tier::Slow, 2), "the mode was switched: Normal has not seen the instances");
        assert!(!visited(Tier::Normal, 3), "it has found some: Slow has not seen them");
        assert!(visited(Tier::Slow, 3));
    }
}
