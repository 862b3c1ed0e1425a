//! Sampler process from the parent's side: its messages, its in-flight table, and how it is ended.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use super::policy::{self, Abandoned, SamplerHealth};
use host::child::{self, Environment, Stderr};
use host::frame::FrameError;
use host::stop::Stop;
use host::supervise::{Launch, Patience, Supervised};
use ledger::inbox::{Inbox, LedgerEvent};
use model::catalog::{SamplerEnd, joins};
use model::clock::Mono;

use sampler::wire::{FromSampler, GpuSlot, Intervals, SamplerConfig, SamplerSettings, ToSampler};
use settings::Config;

/// Message from the thread that reads a sampler's frames to the supervisor.
#[derive(Debug)]
pub struct SamplerMessage {
    pub generation: u64,
    /// Message of the sampler, except batches and facts. An error is the end of the stream.
    pub event: Result<FromSampler, (SamplerEnd, String)>,
}

/// Sampler process, serving or abandoned.
#[derive(Debug)]
pub struct SamplerProcess {
    /// Number of the sampler, counted from 1.
    pub generation: u64,
    pub started: Mono,
    /// Slots that are skipped because another process is stuck on their GPUs.
    pub avoids: Vec<usize>,
    /// GPUs with workers, or known from an earlier sampler, by slot.
    pub slots: BTreeMap<usize, GpuSlot>,
    /// Whether the sampler has opened the driver.
    pub opened: bool,
    pub(super) child: Supervised,
    abandoned: Arc<AtomicBool>,
}

/// Time to end outside of driver calls. A sampler in a driver call is never killed.
const PATIENCE: Patience = Patience { outside: Duration::from_secs(2), inside: None };

impl SamplerProcess {
    /// Starts a sampler with the number `generation`, counted from 1. Its batches and facts go to the inbox, and
    /// everything else goes to `events`.
    pub fn start(
        generation: u64,
        log_level: &str,
        stderr: Stderr,
        config: SamplerConfig,
        inbox: &Arc<Inbox>,
        events: &Sender<SamplerMessage>,
    ) -> io::Result<SamplerProcess> {
        let abandoned = Arc::new(AtomicBool::new(false));
        let receiver = FrameReceiver {
            generation,
            abandoned: Arc::clone(&abandoned),
            inbox: Arc::clone(inbox),
            events: events.clone(),
        };
        let launch = Launch {
            program: &child::this_program(),
            args: &["sampler", "--log-level", log_level],
            environment: &Environment::default(),
            stderr,
            children: None,
            thread: "frames",
        };
        let mut child = Supervised::start(launch, move |message| receiver.deliver(message))?;
        let slots = config.known.iter().map(|slot| (slot.slot, slot.clone())).collect();
        let avoids = config.avoid.clone();
        child.send(&ToSampler::Start(Box::new(config)));
        let started = Mono::now();
        Ok(SamplerProcess { generation, started, avoids, slots, opened: false, child, abandoned })
    }

    pub fn pid(&self) -> i32 {
        self.child.pid()
    }

    /// Evaluates the in-flight table. A process that has not written to the table in time is as late as one that has
    /// stopped writing.
    pub fn health(&self, now: Mono, deadlines: CallDeadlines) -> SamplerHealth {
        let views = self.child.views();
        if views.is_empty() && self.child.asked().is_none() && now.since(self.started) > deadlines.init {
            return SamplerHealth { late: 1, ..SamplerHealth::default() };
        }
        policy::health(&views, now, deadlines.call)
    }

    /// Returns the slots of the GPUs that the sampler works on.
    pub(crate) fn works_on(&self) -> Vec<usize> {
        self.slots.keys().copied().filter(|slot| !self.avoids.contains(slot)).collect()
    }

    /// Returns the state of an abandoned sampler, as far as its successor depends on it.
    pub(crate) fn abandoned(&self, health: &SamplerHealth, now: Mono) -> Abandoned {
        if health.in_call || self.child.is_unkillable(now) { Abandoned::Stuck } else { Abandoned::Ending }
    }

    /// Allows the sampler to attach the skipped GPUs.
    pub(crate) fn include_all(&mut self) {
        for slot in std::mem::take(&mut self.avoids) {
            let known = self.slots.get(&slot).cloned();
            self.child.send(&ToSampler::Include { slot, known });
        }
    }

    /// Abandons the sampler: drops its further messages and requests it to end.
    pub fn abandon(&mut self) {
        self.abandoned.store(true, Ordering::Release);
        self.child.ask_to_end();
    }

    /// Kills the sampler if it was requested to end, has not ended in time, and is in no driver call.
    pub(crate) fn kill_if_overdue(&mut self, now: Mono) {
        self.child.kill_if_overdue(now, PATIENCE);
    }
}

/// Waits until all samplers have ended, only stuck ones remain, or the deadline has passed. The remaining samplers end
/// when their calls return.
pub fn end_all(samplers: &mut Vec<SamplerProcess>, deadline: Mono, deadlines: CallDeadlines) {
    let pause = Stop::default();
    loop {
        let now = Mono::now();
        let mut only_stuck = true;
        samplers.retain_mut(|sampler| {
            sampler.kill_if_overdue(now);
            let ended = sampler.child.ended().is_some();
            only_stuck &= ended || !sampler.health(now, deadlines).stuck.is_empty();
            !ended
        });
        if samplers.is_empty() || only_stuck || now > deadline {
            return;
        }
        pause.wait_until(now + Duration::from_millis(10));
    }
}

/// Builds the configuration of a new sampler from the settings.
pub fn sampler_config(config: &Config) -> SamplerConfig {
    let s = &config.sampler;
    SamplerConfig {
        library: s.nvml_library.clone(),
        root: config.host.root.clone(),
        gpm: config.gpm.enabled,
        canary_lock: config.canary.lock_file.clone(),
        settings: sampler_settings(config),
        ..SamplerConfig::default()
    }
}

/// Builds the part of the configuration that a running sampler can apply. Other keys need a restart, except for the
/// profiling counters, which have their own switch.
pub fn sampler_settings(config: &Config) -> SamplerSettings {
    let s = &config.sampler;
    SamplerSettings {
        off: joins::unread(&config.switched_off()).into_iter().collect(),
        processes: config.processes.per_process.then_some(config.processes.max_per_gpu),
        intervals: Intervals {
            fast: s.fast_interval,
            normal: s.normal_interval,
            samples: s.samples_interval,
            slow: s.slow_interval,
            rare: s.rare_interval,
            nvlink: s.nvlink_interval,
        },
        call_deadline: s.call_timeout,
        init_deadline: s.init_timeout,
    }
}

/// Deadlines of driver calls.
#[derive(Clone, Copy, Debug)]
pub struct CallDeadlines {
    /// Deadline of a driver call, and of a worker that is behind its promised time.
    pub call: Duration,
    /// Deadline of starting and of opening a GPU.
    pub init: Duration,
}

impl CallDeadlines {
    pub(crate) fn from_config(config: &Config) -> CallDeadlines {
        CallDeadlines { call: config.sampler.call_timeout, init: config.sampler.init_timeout }
    }
}

/// Receiver of one sampler's messages.
struct FrameReceiver {
    generation: u64,
    abandoned: Arc<AtomicBool>,
    inbox: Arc<Inbox>,
    events: Sender<SamplerMessage>,
}

impl FrameReceiver {
    /// Handles a message. Returns whether more messages may follow.
    fn deliver(&self, message: Result<Option<FromSampler>, FrameError>) -> bool {
        let message = match message {
            Ok(Some(message)) => message,
            Ok(None) => return self.over(SamplerEnd::Exited, "the process ended".into()),
            Err(error) => {
                let end = match error {
                    FrameError::Invalid(_) => SamplerEnd::Garbage,
                    FrameError::Oversized(_) => SamplerEnd::Oversized,
                    FrameError::OtherBuild => SamplerEnd::Refused,
                    FrameError::Truncated | FrameError::Io(_) => SamplerEnd::Truncated,
                };
                return self.over(end, error.to_string());
            }
        };
        match message {
            FromSampler::Batch(batch) if !batch.conform() => {
                return self.over(SamplerEnd::Garbage, "a batch the catalogue does not allow".into());
            }
            FromSampler::Batch(_) if self.abandoned.load(Ordering::Acquire) => {
                self.inbox.event(LedgerEvent::LateBatch);
            }
            FromSampler::Batch(batch) => self.inbox.batch(batch),
            // Facts of an abandoned sampler count too, because they happened.
            FromSampler::Fact(fact) => self.inbox.fact(self.generation, fact),
            message => {
                if matches!(message, FromSampler::DriverAway { .. }) {
                    // Later messages belong to a driver that is gone.
                    self.abandoned.store(true, Ordering::Release);
                }
                self.send(Ok(message));
            }
        }
        true
    }

    fn over(&self, end: SamplerEnd, text: String) -> bool {
        self.send(Err((end, text)));
        false
    }

    fn send(&self, event: Result<FromSampler, (SamplerEnd, String)>) {
        // The supervisor ends before its readers only when the daemon stops.
        if self.events.send(SamplerMessage { generation: self.generation, event }).is_err() {
            tracing::debug!("the supervisor of this sampler has ended");
        }
    }
}
