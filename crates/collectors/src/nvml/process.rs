//! One sampler process as the parent sees it: its messages, its in-flight table, and how it is ended.

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

/// A message for the supervisor from the thread that reads a sampler's frames.
#[derive(Debug)]
pub struct SamplerMessage {
    pub generation: u64,
    /// What the sampler sent, batches and facts apart; an error is the end of its stream.
    pub event: Result<FromSampler, (SamplerEnd, String)>,
}

/// A sampler process.
#[derive(Debug)]
pub struct SamplerProcess {
    /// Counts samplers from 1.
    pub generation: u64,
    pub started: Mono,
    /// Slots left alone, because another process is stuck on their GPUs.
    pub avoids: Vec<usize>,
    /// GPUs with workers, or known from an earlier sampler, by slot.
    pub slots: BTreeMap<usize, GpuSlot>,
    /// Whether it has opened the driver.
    pub opened: bool,
    pub(super) child: Supervised,
    abandoned: Arc<AtomicBool>,
}

/// A sampler in a driver call is never killed; any other gets this long to end by itself.
const PATIENCE: Patience = Patience { outside: Duration::from_secs(2), inside: None };

impl SamplerProcess {
    /// Starts a sampler. Its batches and facts go to the inbox, everything else to `events`. Generations count samplers
    /// from 1.
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

    /// Process id.
    pub fn pid(&self) -> i32 {
        self.child.pid()
    }

    /// The in-flight table, judged. A process that has not come to write there in time is as late as one that
    /// stopped writing.
    pub fn health(&self, now: Mono, deadlines: CallDeadlines) -> SamplerHealth {
        let views = self.child.views();
        if views.is_empty() && self.child.asked().is_none() && now.since(self.started) > deadlines.init {
            return SamplerHealth { late: 1, ..SamplerHealth::default() };
        }
        policy::health(&views, now, deadlines.call)
    }

    /// The slots of the GPUs that it works on.
    pub(crate) fn works_on(&self) -> Vec<usize> {
        self.slots.keys().copied().filter(|slot| !self.avoids.contains(slot)).collect()
    }

    /// The state of an abandoned sampler, as far as it matters to its successor.
    pub(crate) fn abandoned(&self, health: &SamplerHealth, now: Mono) -> Abandoned {
        if health.in_call || self.child.is_unkillable(now) { Abandoned::Stuck } else { Abandoned::Ending }
    }

    /// Allows the sampler to attach the GPUs that it was to leave alone.
    pub(crate) fn include_all(&mut self) {
        for slot in std::mem::take(&mut self.avoids) {
            let known = self.slots.get(&slot).cloned();
            self.child.send(&ToSampler::Include { slot, known });
        }
    }

    /// Abandons the sampler: its further messages are thrown away, and it is asked to end.
    pub fn abandon(&mut self) {
        self.abandoned.store(true, Ordering::Release);
        self.child.ask_to_end();
    }

    /// Kills the sampler if it was asked to end, did not, and is in no driver call.
    pub(crate) fn kill_if_overdue(&mut self, now: Mono) {
        self.child.kill_if_overdue(now, PATIENCE);
    }
}

/// Waits until all samplers have ended, only stuck ones remain, or the deadline has passed; those that remain are
/// left to end when their calls return.
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

/// A sampler's configuration as the settings have it.
pub fn sampler_config(config: &Config) -> SamplerConfig {
    let s = &config.sampler;
    SamplerConfig {
        library: (!s.nvml_library.as_os_str().is_empty()).then(|| s.nvml_library.clone()),
        root: config.host.root.clone(),
        gpm: config.gpm.enabled,
        canary_lock: config.canary.lock_file.clone(),
        settings: sampler_settings(config),
        ..SamplerConfig::default()
    }
}

/// What a running sampler takes over of a new configuration. The rest needs a restart, but for the profiling counters,
/// which have a switch of their own.
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

/// Longest time of driver calls.
#[derive(Clone, Copy, Debug)]
pub struct CallDeadlines {
    /// A driver call, and being behind the promised time.
    pub call: Duration,
    /// Starting, and getting a handle.
    pub init: Duration,
}

impl CallDeadlines {
    pub(crate) fn from_config(config: &Config) -> CallDeadlines {
        CallDeadlines { call: config.sampler.call_timeout, init: config.sampler.init_timeout }
    }
}

/// Takes the messages of one sampler.
struct FrameReceiver {
    generation: u64,
    abandoned: Arc<AtomicBool>,
    inbox: Arc<Inbox>,
    events: Sender<SamplerMessage>,
}

impl FrameReceiver {
    /// Gives whether more is to be read.
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
            // Also of an abandoned sampler: it happened.
            FromSampler::Fact(fact) => self.inbox.fact(self.generation, fact),
            message => {
                if matches!(message, FromSampler::DriverAway { .. }) {
                    // What it still sends is of a driver that is gone.
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
        // The supervisor ends before its readers only when the daemon does.
        if self.events.send(SamplerMessage { generation: self.generation, event }).is_err() {
            tracing::debug!("the supervisor of this sampler has ended");
        }
    }
}
