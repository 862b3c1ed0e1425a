//! Supervisor of the sampler: starts, watches and replaces the sampler process by the rules of [`policy`].

pub mod policy;
pub mod process;
pub mod switch;

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::Context;
use host::child::Stderr;
use host::inflight::is_gpu;
use ledger::inbox::{LedgerEvent, Pause, Stall};
use model::catalog::{Gpu, SamplerEnd};
use model::clock::Mono;
use model::sync::lock;
use policy::{Abandoned, Backoff, Decision, SamplerHealth, StuckCall};
use process::{CallDeadlines, SamplerMessage, SamplerProcess, end_all, sampler_config, sampler_settings};
use sampler::wire::{CanaryProcess, FromSampler, SamplerConfig, ToSampler};
use settings::Config;
use switch::{Holder, Released, StuckIn, Switch};

/// Time between two reads of the in-flight tables. A read takes about ten microseconds.
const LOOK: Duration = Duration::from_millis(250);
/// Time for the samplers to end when the daemon stops. The unit allows 10 s, and the daemon must end within 5 s.
const SHUTDOWN: Duration = Duration::from_secs(3);

/// Process IDs of the running samplers.
pub(crate) type Pids = Mutex<Vec<i32>>;

pub(crate) fn run(context: Context, pids: Arc<Pids>, switch: Arc<Switch>) {
    let (sender, messages) = channel();
    let config = context.config();
    let s = &config.sampler;
    let supervisor = Supervisor {
        backoff: Backoff::new(s.restart_backoff, s.restart_backoff_max),
        deadlines: CallDeadlines::from_config(&config),
        config,
        context,
        pids,
        switch,
        sender,
        serving: None,
        abandoned: Vec::new(),
        generation: 0,
        next_start: Mono(0),
        judge_from: Mono(0),
        looked: Mono::now(),
        last_stalls: Vec::new(),
        last_stuck: false,
        last_alive: None,
        last_pause: None,
        released: None,
        gpm: true,
        canaries: Vec::new(),
    };
    supervisor.run(&messages);
}

struct Supervisor {
    context: Context,
    /// Configuration that the serving sampler uses.
    config: Arc<Config>,
    /// Process IDs of the running samplers, shared with the `process` collector.
    pids: Arc<Pids>,
    switch: Arc<Switch>,
    sender: Sender<SamplerMessage>,
    deadlines: CallDeadlines,
    serving: Option<SamplerProcess>,
    /// Abandoned samplers that have not ended; at most one while another sampler serves.
    abandoned: Vec<SamplerProcess>,
    generation: u64,
    next_start: Mono,
    backoff: Backoff,
    /// Time before which no sampler is judged, because the daemon itself was suspended or an old sampler has just
    /// ended.
    judge_from: Mono,
    looked: Mono,
    /// Last published values. Only changes are published.
    last_stalls: Vec<Stall>,
    last_stuck: bool,
    last_alive: Option<usize>,
    last_pause: Option<Pause>,
    /// Current release of the driver, during which no sampler may run.
    released: Option<Released>,
    /// Whether the sampler reads the profiling counters.
    gpm: bool,
    /// Newest processes of the canary.
    canaries: Vec<CanaryProcess>,
}

impl Supervisor {
    fn run(mut self, messages: &Receiver<SamplerMessage>) {
        while !self.context.stop.stopped() {
            self.handle_requests();
            self.follow_configuration();
            self.start_if_due();
            match messages.recv_timeout(LOOK) {
                Ok(first) => {
                    self.receive(first);
                    while let Ok(more) = messages.try_recv() {
                        self.receive(more);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                // Unreachable: `self.sender` keeps the channel open.
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.look();
        }
        self.shut_down();
    }

    /// Handles the requests since the last turn.
    fn handle_requests(&mut self) {
        let wanted = self.switch.take_requests(Mono::now());
        if wanted.gpm != self.gpm {
            self.gpm = wanted.gpm;
            tracing::info!("{} the profiling counters", if self.gpm { "reading" } else { "stopped reading" });
            if let Some(serving) = &mut self.serving {
                serving.child.send(&ToSampler::Gpm(self.gpm));
            }
        }
        if wanted.canaries != self.canaries {
            self.canaries = wanted.canaries;
            if let Some(serving) = &mut self.serving {
                serving.child.send(&ToSampler::Canaries(self.canaries.clone()));
            }
        }
        if wanted.released.is_some() == self.released.is_some() {
            return;
        }
        self.released = wanted.released;
        match &self.released {
            Some(_) => {
                tracing::info!("releasing the driver; the sampler ends and no other one starts");
                self.abandon(None);
                self.say_pause();
            }
            None => {
                tracing::info!("resumed the use of the driver");
                self.next_start = Mono(0);
                self.last_pause = None;
                self.context.inbox.event(LedgerEvent::Resumed);
            }
        }
    }

    /// Applies the current configuration. Every worker of the serving sampler applies its part before its next visit.
    fn follow_configuration(&mut self) {
        let config = self.context.config();
        if Arc::ptr_eq(&config, &self.config) {
            return;
        }
        self.deadlines = CallDeadlines::from_config(&config);
        let settings = sampler_settings(&config);
        if settings != sampler_settings(&self.config)
            && let Some(serving) = &mut self.serving
        {
            tracing::info!(pid = serving.pid(), "sent new settings to the sampler");
            serving.child.send(&ToSampler::Settings(settings));
        }
        self.config = config;
    }

    fn start_if_due(&mut self) {
        let now = Mono::now();
        if self.released.is_some()
            || self.serving.is_some()
            || self.abandoned.len() > 1
            || now < self.next_start
        {
            return;
        }
        // The new sampler skips the GPUs on which another process is stuck, and gets their identities from that
        // process. If none is stuck, it reads the driver's list.
        let (mut known, mut avoid) = (Vec::new(), Vec::new());
        for old in &self.abandoned {
            let stuck = old.health(now, self.deadlines).stuck;
            avoid.extend(stuck.iter().map(|call| call.slot).filter(|slot| is_gpu(*slot)));
            avoid.extend(&old.avoids);
            known.extend(old.slots.values().cloned());
        }
        self.generation += 1;
        let config = SamplerConfig {
            known,
            avoid,
            epoch: first_epoch(self.generation),
            gpm: self.gpm,
            canaries: self.canaries.clone(),
            ..sampler_config(&self.config)
        };
        let log_level = &self.config.log.level.to_string().to_lowercase();
        let (inbox, sender) = (&self.context.inbox, &self.sender);
        match SamplerProcess::start(self.generation, log_level, Stderr::Inherit, config, inbox, sender) {
            Ok(sampler) => {
                tracing::debug!(pid = sampler.pid(), generation = self.generation, "started a sampler");
                self.context.inbox.event(LedgerEvent::SamplerStarted);
                self.serving = Some(sampler);
            }
            Err(error) => {
                let wait = self.backoff.failed_after(Duration::ZERO).max(Duration::from_secs(1));
                let wait_seconds = wait.as_secs_f64();
                tracing::error!(%error, wait_seconds, "failed to start a sampler; retrying after the wait");
                self.context.inbox.event(LedgerEvent::NoSampler { text: error.to_string() });
                self.next_start = now + wait;
            }
        }
        self.count();
    }

    fn receive(&mut self, message: SamplerMessage) {
        let Some(serving) = self.serving.as_mut().filter(|s| s.generation == message.generation) else {
            return;
        };
        match message.event {
            Ok(FromSampler::DriverUp) => {
                serving.opened = true;
                self.context.inbox.event(LedgerEvent::DriverUp);
            }
            Ok(FromSampler::DriverAway { error, text }) => {
                tracing::warn!(error = %text, "the driver is not available");
                let epoch = first_epoch(serving.generation + 1);
                self.context.inbox.event(LedgerEvent::DriverAway { error, text, epoch });
                self.abandon(None);
                self.next_start = Mono::now() + self.context.config().sampler.driver_retry_interval;
            }
            Ok(FromSampler::Attached(slot)) => {
                self.context.inbox.event(LedgerEvent::GpuAttached(slot.gpu.clone()));
                serving.slots.insert(slot.slot, slot);
            }
            Ok(FromSampler::AttachFailed { index, error, text }) => {
                self.context.inbox.event(LedgerEvent::AttachFailed { index, error, text });
            }
            // The receiver has already sent these to the ledger.
            Ok(FromSampler::Batch(_) | FromSampler::Fact(_)) => {}
            Err((end, text)) => {
                tracing::warn!(reason = %text, "abandoned the sampler");
                self.abandon(Some(end));
            }
        }
    }

    /// Abandons the serving sampler. With a reason this counts as a failure, which may delay the next start.
    fn abandon(&mut self, reason: Option<SamplerEnd>) {
        let Some(mut sampler) = self.serving.take() else { return };
        sampler.abandon();
        if let Some(reason) = reason {
            self.context.inbox.event(LedgerEvent::SamplerEnded(reason, Mono::now()));
            let wait = self.backoff.failed_after(Mono::now().since(sampler.started));
            self.next_start = Mono::now() + wait;
        }
        self.abandoned.push(sampler);
        self.count();
    }

    /// Reads the in-flight tables, ends overdue samplers and publishes the changes.
    fn look(&mut self) {
        let now = Mono::now();
        if now.since(self.looked) > self.deadlines.call {
            // The daemon itself was suspended, and with it the pipe that the samplers write to.
            self.judge_from = now + self.deadlines.call;
        }
        self.looked = now;
        let (old, waiting_stuck, mut stuck) = self.check_abandoned(now);
        let driver_stuck = match self.serving {
            Some(_) => self.judge_serving(now, old, &mut stuck),
            // Without a stuck process there is no evidence that the driver is still stuck.
            None => waiting_stuck || (self.last_stuck && old == Some(Abandoned::Stuck)),
        };
        // The individual calls are published first, because they are the reason.
        self.say_stalls(stuck);
        if driver_stuck != self.last_stuck {
            if driver_stuck {
                tracing::error!("the driver is stuck; its calls do not return");
            }
            self.last_stuck = driver_stuck;
            self.context.inbox.event(LedgerEvent::DriverStuck(driver_stuck));
        }
        self.count();
        if self.released.is_some() {
            self.say_pause();
        }
    }

    /// Drops abandoned samplers that have ended. Returns the state of the others, whether they show that the driver is
    /// stuck, and their calls.
    fn check_abandoned(&mut self, now: Mono) -> (Option<Abandoned>, bool, Vec<Stall>) {
        let (mut old, mut waiting_stuck, mut stuck) = (None, false, Vec::new());
        let (deadlines, before) = (self.deadlines, self.abandoned.len());
        self.abandoned.retain_mut(|sampler| {
            let health = sampler.health(now, deadlines);
            sampler.kill_if_overdue(now);
            if sampler.child.ended().is_some() {
                return false;
            }
            if old != Some(Abandoned::Stuck) {
                old = Some(sampler.abandoned(&health, now));
            }
            waiting_stuck |= policy::waiting_is_stuck(&health, &sampler.works_on(), now, deadlines.call)
                && !sampler.child.all_stopped();
            stuck.extend(stalls(sampler, &health));
            true
        });
        if self.abandoned.len() < before {
            // The cause that blocked the old sampler may also have blocked the new one, which has returned at the same
            // moment.
            self.judge_from = self.judge_from.max(now + Duration::from_secs(1));
        }
        (old, waiting_stuck, stuck)
    }

    /// Replaces the serving sampler if necessary and adds its calls to `stuck`. Returns whether the driver is stuck.
    fn judge_serving(&mut self, now: Mono, old: Option<Abandoned>, stuck: &mut Vec<Stall>) -> bool {
        let Some(serving) = &mut self.serving else { return false };
        if self.abandoned.is_empty() {
            serving.include_all();
        }
        let health = serving.health(now, self.deadlines);
        let mut decision = policy::decide(&health, old);
        // A process that a signal stopped in the middle of a call is no evidence against the driver.
        let stopped = decision == Decision::DriverStuck && serving.child.all_stopped();
        if stopped {
            decision = Decision::Replace;
        }
        if now < self.judge_from && decision == Decision::Replace {
            decision = Decision::Keep;
        }
        let opening = !serving.opened && !serving.child.all_stopped();
        let driver_stuck = decision == Decision::DriverStuck
            || opening && policy::opening_is_stuck(&health, old, self.last_stuck, now, self.deadlines.call);
        stuck.extend(stalls(serving, &health));
        if decision == Decision::Replace {
            let reason =
                if stopped || health.stuck.is_empty() { SamplerEnd::Stopped } else { SamplerEnd::Stuck };
            let calls = health.stuck.iter().map(|call| &*call.call).collect::<Vec<_>>().join(" ");
            tracing::warn!(
                calls,
                late_workers = health.late,
                "replacing the sampler, whose calls do not return"
            );
            self.abandon(Some(reason));
        }
        driver_stuck
    }

    fn say_pause(&mut self) {
        let Some(released) = &self.released else { return };
        let pause = Pause {
            since: released.since,
            unix_seconds: released.unix_seconds,
            epoch: first_epoch(self.generation + 1),
            holders: {
                let samplers = self.abandoned.iter().map(SamplerProcess::pid);
                samplers.chain(self.switch.canaries()).collect()
            },
        };
        if self.last_pause.as_ref() != Some(&pause) {
            self.last_pause = Some(pause.clone());
            self.context.inbox.event(LedgerEvent::Released(pause));
        }
    }

    fn say_stalls(&mut self, found: Vec<Stall>) {
        let mut stalls: Vec<Stall> = Vec::new();
        for stall in found {
            // There is one series per GPU and call. The call of the older process has waited longer.
            match stalls.iter_mut().find(|s| s.gpu == stall.gpu && s.call == stall.call) {
                Some(known) => {
                    known.since = known.since.min(stall.since);
                    known.overdue |= stall.overdue;
                }
                None => stalls.push(stall),
            }
        }
        if stalls != self.last_stalls {
            for new in stalls.iter().filter(|s| !self.last_stalls.contains(s)) {
                let gpu = new.gpu.as_ref().map(|gpu| gpu.gpu);
                tracing::warn!(gpu, call = %new.call, overdue = new.overdue, "a driver call does not return");
            }
            self.last_stalls = stalls.clone();
            self.context.inbox.event(LedgerEvent::Stalls(stalls));
        }
    }

    fn count(&mut self) {
        let pids: Vec<i32> = self.serving.iter().chain(&self.abandoned).map(SamplerProcess::pid).collect();
        if self.last_alive != Some(pids.len()) {
            self.last_alive = Some(pids.len());
            self.context.inbox.event(LedgerEvent::Samplers(pids.len()));
        }
        *lock(&self.pids) = pids;
        let now = Mono::now();
        let holder = |sampler: &SamplerProcess| {
            let stuck = sampler.health(now, self.deadlines).stuck.into_iter().min_by_key(|call| call.since);
            let stuck = stuck.map(|call| stall(sampler, &call, true)).map(|stall| StuckIn {
                call: stall.call,
                gpu: stall.gpu.map(|gpu| gpu.gpu),
                seconds: now.since(stall.since).as_secs_f64(),
            });
            Holder { pid: sampler.pid(), stuck }
        };
        self.switch.held_by(self.serving.iter().chain(&self.abandoned).map(holder).collect());
    }

    /// Ends all samplers that can be ended. A sampler that is stuck in the driver is left behind; its control pipe
    /// closes with the daemon, and it ends when its call returns.
    fn shut_down(mut self) {
        self.abandon(None);
        end_all(&mut self.abandoned, Mono::now() + SHUTDOWN, self.deadlines);
        for sampler in &self.abandoned {
            let pid = sampler.pid();
            tracing::warn!(pid, "left a sampler behind in a driver call; it ends when the call returns");
        }
    }
}

/// Returns the lower bound of a sampler's epochs, which is above all epochs of the previous sampler.
fn first_epoch(generation: u64) -> u64 {
    generation << 32
}

/// Returns the long-running calls of a sampler.
fn stalls(sampler: &SamplerProcess, health: &SamplerHealth) -> Vec<Stall> {
    let overdue = health.stuck.iter().map(|call| stall(sampler, call, true));
    overdue.chain(health.slow.iter().map(|call| stall(sampler, call, false))).collect()
}

/// Converts a call to a stall, with the GPU as the sampler identified it.
fn stall(sampler: &SamplerProcess, call: &StuckCall, overdue: bool) -> Stall {
    let gpu = call.gpu().map(|gpu| match sampler.slots.get(&call.slot) {
        Some(slot) => slot.gpu.clone(),
        // The sampler is stuck before it has read the UUID, so only the index is known.
        None => Gpu { gpu, uuid: "".into() },
    });
    Stall { gpu, call: call.call.clone(), since: call.since, overdue }
}
