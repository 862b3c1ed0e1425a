//! Asks the driver once or more, in a sampler of the command's own: this process loads no NVIDIA library and waits
//! for no call. A call that does not return is named, and its process left behind.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::collectors::nvml::policy::StuckCall;
use crate::collectors::nvml::process::{
    CallDeadlines, SamplerMessage, SamplerProcess, end_all, sampler_config,
};
use host::child::Stderr;
use host::inflight::is_gpu;
use ledger::inbox::Inbox;
use model::catalog::schema::LabelSet;
use model::catalog::{self as m, DriverError, Gpu, MetricId, Tier};
use model::clock::Mono;
use model::sample::{Batch, BatchKey, Missing, Rows};
use sampler::wire::{FromSampler, GpuSlot, Intervals, SamplerConfig};
use settings::Config;

/// What asking takes at most beside the deadlines of the calls: 64 GPUs, whose expensive visits are made one at
/// a time.
const SPARE: Duration = Duration::from_secs(15);
/// How long the sampler gets to end.
const END: Duration = Duration::from_secs(5);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// What is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Aim {
    /// Tiers of a GPU, of each of which one visit is waited for.
    pub tiers: &'static [Tier],
    /// Shortest time of asking.
    pub shortest: Duration,
}

/// All values, and cheap calls measured some ten times.
pub const ALL: Aim = Aim {
    tiers: &[
        Tier::Identity,
        Tier::Once,
        Tier::Fast,
        Tier::Normal,
        Tier::Samples,
        Tier::Slow,
        Tier::Rare,
        Tier::Nvlink,
    ],
    shortest: Duration::from_secs(3),
};

/// Who the GPUs are and who uses them, as soon as that is known.
pub const BRIEF: Aim = Aim { tiers: &[Tier::Identity, Tier::Normal, Tier::Slow], shortest: Duration::ZERO };

/// A GPU that another process is stuck on: its index, and who it is.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownGpu {
    /// The GPU.
    pub gpu: Gpu,
    /// Its PCI address.
    pub pci_address: String,
    /// Whether a process is stuck on it.
    pub stuck: bool,
}

/// A driver call that did not return in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HungCall {
    /// NVML function.
    pub call: String,
    /// NVML's index of the GPU; none for a call about no single GPU.
    pub gpu: Option<u32>,
}

/// What the driver said.
#[derive(Debug, Default)]
pub struct Asked {
    /// Whether it answers.
    pub up: bool,
    /// Why it does not.
    pub away: Option<(Option<DriverError>, String)>,
    /// What each visit learned, the newest of each part.
    pub batches: BTreeMap<BatchKey, Batch>,
    /// Wall time of each call by name, in nanoseconds.
    pub calls: BTreeMap<String, Vec<u64>>,
    /// Calls that did not return in time.
    pub hung: Vec<HungCall>,
    /// GPUs without a handle, and why.
    pub attach_failed: BTreeMap<u32, String>,
    /// The process left behind in a driver call.
    pub left: Option<i32>,
    attached: BTreeMap<usize, Gpu>,
}

impl Asked {
    /// How many GPUs the driver lists, once known.
    pub fn devices(&self) -> Option<usize> {
        let node = self.batches.iter().filter(|(part, _)| part.gpu.is_none()).map(|(_, batch)| batch);
        let rows = node.flat_map(|batch| batch.rows.groups()).flat_map(|(_, rows)| rows);
        rows.filter(|row| row.metric == m::gpu_devices.id()).map(|row| row.value as usize).next_back()
    }

    /// One label of `gpu_driver_info`.
    pub fn driver_info(&self, label: &str) -> Option<String> {
        let at = m::DriverInfo::DEFS.iter().position(|def| def.name == label)?;
        let rows = |rows: &Rows| {
            let mut rows = rows.groups().iter().flat_map(|(_, rows)| rows);
            let row = rows.find(|row| row.metric == m::gpu_driver_info.id())?;
            Some(row.labels.get(at)?.text(&m::DriverInfo::DEFS[at]).to_owned())
        };
        self.batches.values().find_map(|batch| rows(&batch.rows)).filter(|text| !text.is_empty())
    }

    /// GPUs of which all was heard that will be.
    fn heard(&self, avoid: &[usize], tiers: &[Tier]) -> usize {
        let Some(devices) = self.devices() else { return 0 };
        let heard = |slot: &usize| {
            let index = u32::try_from(slot - 1).unwrap_or(u32::MAX);
            avoid.contains(slot)
                || self.attach_failed.contains_key(&index)
                || self.hung.iter().any(|hung| hung.gpu == Some(index))
                || self.attached.get(slot).is_some_and(|gpu| self.all_of(gpu, tiers))
        };
        (1..=devices).filter(heard).count()
    }

    fn all_of(&self, gpu: &Gpu, tiers: &[Tier]) -> bool {
        let of = |(part, batch): &(&BatchKey, &Batch)| part.gpu.as_ref() == Some(gpu) && !batch.answered;
        let lost = self.batches.iter().filter(of).flat_map(|(_, batch)| &batch.gaps).any(|gap| {
            matches!(&gap.missing, Missing::Failed { error, .. }
                if matches!(error, DriverError::GpuIsLost | DriverError::ResetRequired))
        });
        lost || tiers
            .iter()
            .all(|tier| self.batches.keys().any(|part| part.gpu.as_ref() == Some(gpu) && part.tier == *tier))
    }

    fn take(&mut self, inbox: &Inbox) {
        let Some(pending) = inbox.take(Mono(0)) else { return };
        for mut batch in pending.batches {
            for cost in std::mem::take(&mut batch.calls) {
                self.calls.entry(cost.call).or_default().push(cost.nanos);
            }
            self.batches.insert(batch.part.clone(), batch);
        }
    }

    fn hear(&mut self, message: SamplerMessage) -> bool {
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
            // In the inbox.
            Ok(FromSampler::Batch(_) | FromSampler::Fact(_)) => {}
            Err((_, text)) => {
                self.away.get_or_insert((None, format!("the process that asks has failed: {text}")));
                return true;
            }
        }
        false
    }
}

/// Asks. GPUs that the daemon is stuck on are left alone. `progress` gets how long it takes, of how many
/// GPUs all was heard, and how many there are.
pub fn ask(
    config: &Config,
    off: &HashSet<MetricId>,
    aim: Aim,
    known: &[KnownGpu],
    mut progress: impl FnMut(Duration, usize, usize),
) -> io::Result<Asked> {
    let avoid: Vec<usize> = known.iter().filter(|k| k.stuck).map(slot).collect();
    let s = &config.sampler;
    let (quick, slow) = (Duration::from_millis(200), Duration::from_secs(1));
    let known_slot = |gpu: &KnownGpu| GpuSlot {
        slot: slot(gpu),
        gpu: gpu.gpu.clone(),
        pci_bus_id: gpu.pci_address.clone(),
    };
    let sampler_config = SamplerConfig {
        // Attaching by index might touch others: with one stuck, each is attached by its address.
        known: if avoid.is_empty() { Vec::new() } else { known.iter().map(known_slot).collect() },
        avoid: avoid.clone(),
        // The driver's events are for the daemon.
        off: off
            .iter()
            .copied()
            .chain([m::gpu_driver_events_registered.id(), m::gpu_driver_events_total.id()])
            .collect(),
        intervals: Intervals {
            fast: quick,
            normal: quick,
            samples: slow,
            slow,
            // Some windows begin with one of these visits and end with the next.
            rare: slow,
            // Expensive, and complete after one visit.
            nvlink: Duration::from_secs(3600),
        },
        ..sampler_config(config)
    };
    let deadlines = CallDeadlines { call: s.call_timeout, init: s.init_timeout };
    let inbox = Arc::new(Inbox::default());
    let (sender, messages) = channel();
    let mut sampler = SamplerProcess::start(1, "error", Stderr::Null, sampler_config, &inbox, &sender)?;
    let started = Mono::now();
    let deadline = started + s.init_timeout + s.call_timeout + SPARE;
    let mut asked = Asked::default();
    let mut over = false;
    while !over {
        over = match messages.recv_timeout(LOOK) {
            Ok(message) => asked.hear(message),
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => true,
        };
        asked.take(&inbox);
        let now = Mono::now();
        let health = sampler.health(now, deadlines);
        asked.hung = health.stuck.iter().map(hung).collect();
        let heard = asked.heard(&avoid, aim.tiers);
        let listed = asked.devices();
        progress(now.since(started), heard, listed.unwrap_or(0));
        let node_hangs = asked.hung.iter().any(|hung| hung.gpu.is_none());
        let complete = listed == Some(heard) && now.since(started) >= aim.shortest;
        // Stopped or starved: it will say nothing.
        let silent = health.well == 0 && health.late > 0;
        if silent && asked.hung.is_empty() {
            asked.away.get_or_insert((None, "the process that asks is starved or stopped".into()));
        }
        over |= complete || node_hangs || silent || now >= deadline;
    }
    sampler.abandon();
    let mut samplers = vec![sampler];
    end_all(&mut samplers, Mono::now() + END, deadlines);
    asked.left = samplers.first().map(SamplerProcess::pid);
    asked.take(&inbox);
    Ok(asked)
}

fn slot(known: &KnownGpu) -> usize {
    known.gpu.gpu as usize + 1
}

fn hung(stuck: &StuckCall) -> HungCall {
    let gpu = is_gpu(stuck.slot).then(|| u32::try_from(stuck.slot - 1).unwrap_or(u32::MAX));
    HungCall { call: stuck.call.clone(), gpu }
}
