//! The parent's side of the sampler: starts it, watches it, replaces it by the rules of [`policy`].

pub mod policy;
mod process;

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Context;
use crate::catalog::{Gpu, MetricId, SamplerEnd};
use crate::child;
use crate::clock::Mono;
use crate::ledger::inbox::{Event, Stall};
use crate::sampler::inflight::NODE_SLOT;
use crate::sampler::wire::{Orders, Seat};
use policy::{Backoff, Decision, StuckCall};
use process::{News, Sampler, What};

/// How often the in-flight tables are looked at. Looking costs a few microseconds and no system call.
const LOOK: Duration = Duration::from_millis(100);
/// How long samplers get to end when the daemon does; the unit's own deadline is 10 s, ours 5 s.
const SHUTDOWN: Duration = Duration::from_secs(3);

/// Process ids of the samplers alive.
#[derive(Debug, Default)]
pub struct Pids(Mutex<Vec<i32>>);

impl Pids {
    /// The ids now.
    pub fn get(&self) -> Vec<i32> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, pids: Vec<i32>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = pids;
    }
}

/// Starts the supervisor.
pub fn start(context: Context) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("nvml".into()).stack_size(512 * 1024).spawn(move || {
        let (sender, news) = channel();
        Supervisor::new(context, sender).run(&news);
    })
}

struct Supervisor {
    context: Context,
    sender: Sender<News>,
    off: Vec<MetricId>,
    serving: Option<Sampler>,
    /// Samplers that were given up and have not ended. At most one while another serves.
    given_up: Vec<Sampler>,
    seats: BTreeMap<usize, Seat>,
    generation: u64,
    next_start: Mono,
    backoff: Backoff,
    /// What was last said, so that only changes are.
    said_stalls: Vec<Stall>,
    said_stuck: bool,
    said_alive: Option<usize>,
}

impl Supervisor {
    fn new(context: Context, sender: Sender<News>) -> Supervisor {
        let s = &context.config.sampler;
        let backoff = Backoff::new(s.restart_backoff, s.restart_backoff_max);
        let off = context.off.iter().copied().collect();
        Supervisor {
            context,
            sender,
            off,
            serving: None,
            given_up: Vec::new(),
            seats: BTreeMap::new(),
            generation: 0,
            next_start: Mono(0),
            backoff,
            said_stalls: Vec::new(),
            said_stuck: false,
            said_alive: None,
        }
    }

    fn run(mut self, news: &Receiver<News>) {
        while !self.context.stop.stopped() {
            self.start_if_due();
            match news.recv_timeout(LOOK) {
                Ok(first) => {
                    self.hear(first);
                    while let Ok(more) = news.try_recv() {
                        self.hear(more);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                // Cannot be: `self.sender` keeps the channel open.
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.look();
        }
        self.shut_down();
    }

    fn grace(&self) -> Duration {
        self.context.config.sampler.call_deadline
    }

    fn start_if_due(&mut self) {
        if self.serving.is_some() || self.given_up.len() > 1 || Mono::now() < self.next_start {
            return;
        }
        let now = Mono::now();
        // GPUs that another process is stuck on are not touched by the new one.
        let stuck: Vec<usize> = self
            .given_up
            .iter()
            .flat_map(|s| s.health(now, self.grace()).stuck)
            .map(|call| call.slot)
            .filter(|slot| *slot != NODE_SLOT)
            .collect();
        let (without, with): (Vec<Seat>, Vec<Seat>) =
            self.seats.values().cloned().partition(|seat| stuck.contains(&seat.slot));
        self.generation += 1;
        let s = &self.context.config.sampler;
        let orders = Orders {
            library: (!s.nvml_library.as_os_str().is_empty()).then(|| s.nvml_library.clone()),
            seats: (!stuck.is_empty()).then_some(with),
            epoch: self.generation << 32,
            off: self.off.clone(),
            intervals: [s.fast_interval, s.normal_interval, s.slow_interval, s.rare_interval],
            call_deadline: s.call_deadline,
            init_deadline: s.init_deadline,
        };
        let started = Sampler::start(
            &child::this_program(),
            self.generation,
            orders,
            without,
            &self.context.inbox,
            &self.sender,
        );
        match started {
            Ok(sampler) => {
                tracing::debug!(pid = sampler.pid(), generation = self.generation, "sampler started");
                self.context.inbox.event(Event::SamplerStarted);
                self.serving = Some(sampler);
            }
            Err(error) => {
                let wait = self.backoff.failed_after(Duration::ZERO).max(Duration::from_secs(1));
                tracing::error!(%error, "no sampler could be started; next try in {wait:?}");
                self.next_start = Mono::now() + wait;
            }
        }
        self.count();
    }

    fn hear(&mut self, news: News) {
        let from_serving = self.serving.as_ref().is_some_and(|s| s.generation == news.generation);
        if !from_serving {
            return;
        }
        match news.what {
            What::DriverUp => self.context.inbox.event(Event::DriverUp),
            What::DriverAway(text) => {
                tracing::warn!(%text, "the driver is away");
                self.context.inbox.event(Event::DriverAway { text });
                self.give_up(None);
                self.next_start = Mono::now() + self.context.config.sampler.driver_retry_interval;
            }
            What::Seated(seat) => {
                self.context.inbox.event(Event::Seated(seat.gpu.clone()));
                self.seats.insert(seat.slot, seat);
            }
            What::Over(end, text) => {
                tracing::warn!(%text, "the sampler is given up");
                self.give_up(Some(end));
            }
        }
    }

    /// Gives the serving sampler up. With a reason it is a failure, and the next start may wait.
    fn give_up(&mut self, reason: Option<SamplerEnd>) {
        let Some(mut sampler) = self.serving.take() else { return };
        sampler.give_up();
        if let Some(reason) = reason {
            self.context.inbox.event(Event::SamplerEnded(reason));
            let wait = self.backoff.failed_after(Mono::now().since(sampler.started));
            self.next_start = Mono::now() + wait;
        }
        self.given_up.push(sampler);
        self.count();
    }

    /// Looks at the tables, ends what is overdue, and says what changed.
    fn look(&mut self) {
        let now = Mono::now();
        let grace = self.grace();
        for sampler in &self.given_up {
            sampler.end_overdue(now, grace);
        }
        self.given_up.retain_mut(|sampler| !sampler.ended());

        if let Some(health) = self.serving.as_ref().map(|s| s.health(now, grace)) {
            let old = self.given_up.first().map(|s| s.health(now, grace));
            let decision = policy::decide(&health, old.as_ref());
            self.say_stuck(decision == Decision::DriverStuck);
            if decision == Decision::Replace {
                let reason = if health.stuck.is_empty() { SamplerEnd::Stopped } else { SamplerEnd::Stuck };
                tracing::warn!(stuck = ?health.stuck, late = health.late, "the sampler is replaced");
                self.give_up(Some(reason));
            }
        }
        self.take_back(now);
        self.say_stalls(now);
        self.count();
    }

    /// GPUs that no other process is stuck on any more go back to the serving sampler.
    fn take_back(&mut self, now: Mono) {
        let grace = self.grace();
        let stuck: Vec<usize> =
            self.given_up.iter().flat_map(|s| s.health(now, grace).stuck).map(|c| c.slot).collect();
        let Some(serving) = &mut self.serving else { return };
        // Only once the old process has ended: until then it may enter another call on the same GPU.
        if self.given_up.is_empty() {
            for seat in std::mem::take(&mut serving.without) {
                if !stuck.contains(&seat.slot) {
                    serving.include(seat);
                }
            }
        }
    }

    fn say_stuck(&mut self, stuck: bool) {
        if stuck != self.said_stuck {
            if stuck {
                tracing::error!(
                    "two samplers hang in driver calls: the driver is stuck; nothing more is started"
                );
            }
            self.said_stuck = stuck;
            self.context.inbox.event(Event::DriverStuck(stuck));
        }
    }

    fn say_stalls(&mut self, now: Mono) {
        let grace = self.grace();
        let mut stalls: Vec<Stall> = Vec::new();
        for sampler in self.serving.iter().chain(&self.given_up) {
            for call in sampler.health(now, grace).stuck {
                let stall = self.stall(call);
                // One series a GPU and call: the older process has waited longer.
                match stalls.iter_mut().find(|s| s.gpu == stall.gpu && s.call == stall.call) {
                    Some(known) => known.since = known.since.min(stall.since),
                    None => stalls.push(stall),
                }
            }
        }
        if stalls != self.said_stalls {
            for new in stalls.iter().filter(|s| !self.said_stalls.contains(s)) {
                tracing::warn!(gpu = ?new.gpu, call = %new.call, "a driver call does not return");
            }
            self.said_stalls = stalls.clone();
            self.context.inbox.event(Event::Stalls(stalls));
        }
    }

    fn stall(&self, call: StuckCall) -> Stall {
        let gpu = (call.slot != NODE_SLOT).then(|| match self.seats.get(&call.slot) {
            Some(seat) => seat.gpu.clone(),
            // Stuck before it told its UUID: the index is all that is known.
            None => Gpu { gpu: u32::try_from(call.slot - 1).unwrap_or(u32::MAX), uuid: "".into() },
        });
        Stall { gpu, call: call.call, since: call.since }
    }

    fn count(&mut self) {
        let pids: Vec<i32> = self.serving.iter().chain(&self.given_up).map(Sampler::pid).collect();
        if self.said_alive != Some(pids.len()) {
            self.said_alive = Some(pids.len());
            self.context.inbox.event(Event::Samplers(pids.len()));
        }
        self.context.samplers.set(pids);
    }

    /// Ends every sampler that can be ended. One that is stuck in the driver is left: its control pipe
    /// closes with us, and it ends when its call returns.
    fn shut_down(mut self) {
        self.give_up(None);
        let deadline = Mono::now() + SHUTDOWN;
        let grace = self.grace();
        let look = crate::sampler::Stop::default();
        while Mono::now() < deadline {
            let now = Mono::now();
            self.given_up.retain_mut(|sampler| !sampler.ended());
            if self.given_up.iter().all(|s| !s.health(now, grace).stuck.is_empty()) {
                break;
            }
            for sampler in &self.given_up {
                sampler.end_overdue(now, grace);
            }
            look.wait_until(now + Duration::from_millis(10));
        }
        for sampler in &self.given_up {
            tracing::warn!(
                pid = sampler.pid(),
                "left behind in a driver call; it ends when the call returns"
            );
        }
    }
}
