//! Canary of the daemon: starts a run when a GPU is due and the gate allows it, judges the run and sends the outcome to
//! the ledger. There is one run at a time on the node. A process that outlives its run is watched, and no other run
//! starts on its GPU. This thread never waits for a process or for the driver.

pub mod state;
mod visit;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::nvml::switch::{Holder, StuckIn};
use super::{Context, Parts};
use crate::views::View;
use crate::views::canary::CanaryFacts;
use canary::baseline::BaselineStore;
use canary::gate;
use canary::interlock::HeldLock;
use canary::parent::DetachedChild;
use canary::schedule::rng::Rng;
use canary::schedule::{Due, ScheduleSettings};
use host::state::Keeper;
use ledger::inbox::LedgerEvent;
use model::canary::{CanaryEvent, Place};
use model::catalog::schema::KnownLabel;
use model::catalog::{CanaryMode, CanarySkip, CollectorName, Gpu};
use model::clock::{Mono, unix_seconds};
use model::sample::SWITCHED_OFF;
use state::{LeftProcess, RunnerState};
pub use visit::run_settings;

/// Maximum time between two reads of the published facts.
const PACE: Duration = Duration::from_secs(2);
/// Same, while a process of an earlier run is still alive.
const PACE_LEFT: Duration = Duration::from_millis(250);
/// Same, in the mode without scheduled runs, which still measures how long the GPUs have been idle.
const PACE_ON_DEMAND: Duration = Duration::from_secs(5);
/// Same, without a canary. A new configuration wakes the thread.
const PACE_OFF: Duration = Duration::from_secs(3600);
/// Time to end the canary processes. The daemon must end within 5 s; a process in a driver call is left behind earlier.
const SHUTDOWN: Duration = Duration::from_millis(3800);

pub(crate) fn run(context: Context, parts: Parts) {
    let facts = parts.view(CanaryFacts::new);
    let rng = Rng::new(unix_seconds().to_bits() ^ u64::from(std::process::id()).rotate_left(32));
    let (memory, keeper) = context.state.open::<BaselineStore>();
    let collector = CanaryCollector {
        context,
        parts,
        facts,
        schedule: None,
        rng,
        memory: memory.unwrap_or_default().sanitized(),
        keeper,
        left: Vec::new(),
        interlock: None,
        last_peer: None,
        said_due: BTreeMap::new(),
        said_alive: 0,
        ending: None,
    };
    collector.run();
}

struct CanaryCollector {
    context: Context,
    parts: Parts,
    facts: View<CanaryFacts>,
    /// Settings that the schedule uses now.
    schedule: Option<ScheduleSettings>,
    rng: Rng,
    memory: BaselineStore,
    keeper: Keeper<BaselineStore>,
    /// Processes that have outlived their runs.
    left: Vec<PlacedChild>,
    /// Lock that is held during a run, until its process has ended or is known to hang.
    interlock: Option<HeldLock>,
    /// GPU that took part in the last run with copies between two GPUs.
    last_peer: Option<Gpu>,
    said_due: BTreeMap<Gpu, Option<Mono>>,
    said_alive: usize,
    /// Time of the request to stop, once this thread has noticed the request.
    ending: Option<Mono>,
}

/// Process that has outlived its run.
struct PlacedChild {
    /// Published description of the process.
    reported: LeftProcess,
    child: DetachedChild,
}

impl CanaryCollector {
    fn run(mut self) {
        while !self.context.stop.stopped() {
            let settings = self.configure();
            let own = match settings.mode {
                CanaryMode::Off => PACE_OFF,
                CanaryMode::OnDemand => PACE_ON_DEMAND,
                _ => PACE.min(settings.interval / 4),
            };
            self.tend(None);
            if settings.mode != CanaryMode::Off {
                self.context.beat(CollectorName::Canary);
                let published = self.facts.current();
                self.look(&published);
                if let Some((place, peer)) = self.choose(&published) {
                    self.visit(&place, peer);
                }
            }
            let pace = if self.left.is_empty() { own } else { PACE_LEFT.min(own) };
            self.context.stop.wait_until(Mono::now() + pace);
        }
        self.shut_down();
    }

    /// Applies the current configuration.
    fn configure(&mut self) -> ScheduleSettings {
        let config = &self.context.config().canary;
        let (mode, duty) = (config.mode, config.max_duty_ratio);
        let settings = ScheduleSettings { mode, interval: config.interval, idle_for: config.idle_for, duty };
        if self.schedule.replace(settings) == Some(settings) {
            return settings;
        }
        self.tell(CanaryEvent::Mode { mode, duty });
        if mode == CanaryMode::Off {
            self.parts.canary.close();
            for gpu in std::mem::take(&mut self.said_due).into_keys() {
                self.tell(CanaryEvent::Due(Place { gpu, instance: None }, None));
            }
            let switched_off = format!("{SWITCHED_OFF} (canary.mode)");
            self.context.unavailable(CollectorName::Canary, Some(switched_off));
            return settings;
        }
        let configure = |state: &mut RunnerState| state.schedule.configure(settings, Mono::now());
        if self.parts.canary.with(configure).is_none() {
            self.parts.canary.open(settings, self.rng.number(), Arc::clone(&self.parts.pods));
            self.context.unavailable(CollectorName::Canary, None);
        }
        settings
    }

    fn tell(&self, event: CanaryEvent) {
        self.context.inbox.event(LedgerEvent::Canary(event));
    }

    /// Reads the published facts and publishes the times of the next runs.
    fn look(&mut self, published: &CanaryFacts) {
        let now = Mono::now();
        let due = self.parts.canary.with(|state| {
            state.devices = published.places(&state.devices);
            state.schedule.devices(now, &state.devices);
            for (place, works) in state.watch.look(published, &state.devices, now) {
                state.schedule.working(now, &place, works);
            }
            let of = |gpu: &Gpu| (gpu.clone(), state.schedule.next_due(gpu));
            state.devices.keys().map(of).collect::<BTreeMap<_, _>>()
        });
        let Some(due) = due else { return };
        for (gpu, at) in &due {
            if self.said_due.get(gpu) != Some(at) {
                let place = Place { gpu: gpu.clone(), instance: None };
                self.tell(CanaryEvent::Due(place, at.map(|at| state::unix(at, now))));
            }
        }
        for gone in self.said_due.keys().filter(|gpu| !due.contains_key(*gpu)) {
            self.tell(CanaryEvent::Due(Place { gpu: gone.clone(), instance: None }, None));
        }
        self.said_due = due;
    }

    /// Returns a place that is due and free, with another free place for copies between two GPUs. Publishes refusals.
    fn choose(&mut self, published: &CanaryFacts) -> Option<(Place, Option<Place>)> {
        // A process that is only slow to end blocks the next run; a process that hangs does not.
        if self.left.iter().any(|process| process.reported.hangs.is_none()) {
            return None;
        }
        let now = Mono::now();
        let (config, released) = (self.context.config(), self.parts.switch.is_released());
        let last_peer = self.last_peer.clone();
        let (chosen, refused) = self.parts.canary.with(|state| {
            let mut refused: Vec<(Place, CanarySkip)> = Vec::new();
            let refusal = |state: &state::RunnerState, place: &Place, idle_for| {
                let facts = state.facts(&config, released, published, place, now);
                gate::refusal(&gate::conditions(&facts, idle_for))
            };
            for Due { gpu, places, idle_for } in state.schedule.due(now) {
                let mut reason = None;
                for place in &places {
                    match refusal(state, place, idle_for) {
                        None => {
                            let others = peers(state, place, last_peer.as_ref());
                            let free =
                                |other: &Place| refusal(state, other, config.canary.idle_for).is_none();
                            return (Some((place.clone(), others.into_iter().find(free))), refused);
                        }
                        Some(found) => reason = reason.or(Some((place.clone(), found))),
                    }
                }
                let whole = Place { gpu: gpu.clone(), instance: None };
                let (place, reason) = reason.unwrap_or((whole, CanarySkip::NoInstance));
                if state.schedule.refused(now, &gpu, reason) {
                    refused.push((place, reason));
                }
            }
            (None, refused)
        })?;
        for (place, reason) in refused {
            self.refused(&place, reason, "");
        }
        chosen
    }

    /// Publishes that a due run is postponed.
    fn refused(&self, place: &Place, reason: CanarySkip, text: &str) {
        tracing::debug!(%place, reason = reason.known(), text, "postponed a canary run");
        self.tell(CanaryEvent::Skipped(place.clone(), reason));
    }

    /// Checks the processes that have outlived their runs.
    fn tend(&mut self, running: Option<(&Place, i32)>) {
        let now = Mono::now();
        let mut events = Vec::new();
        self.left.retain_mut(|process| {
            let look = process.child.check(now);
            if look.killed {
                events.push(CanaryEvent::Killed);
            }
            let hangs = process.child.hangs(now).filter(|_| look.alive);
            // The event is also sent for a process that ended before it was published as hanging, because its run is
            // over now.
            if hangs != process.reported.hangs || !look.alive {
                events.push(CanaryEvent::Hung(process.reported.place.clone(), hangs));
                process.reported.hangs = hangs;
            }
            look.alive
        });
        events.into_iter().for_each(|event| self.tell(event));
        if running.is_none() && self.left.iter().all(|process| process.reported.hangs.is_some()) {
            self.interlock = None;
        }
        self.count(running);
    }

    /// Publishes the running processes to the ledger, to the driver switch and to the canary's status.
    fn count(&mut self, running: Option<(&Place, i32)>) {
        let alive = self.left.len() + usize::from(running.is_some());
        if alive != self.said_alive {
            self.said_alive = alive;
            self.tell(CanaryEvent::Alive(alive));
        }
        let left = self.left.iter().map(|process| process.reported.clone()).collect();
        let interlocked = self.interlock.is_some();
        self.parts.canary.with(|state| {
            state.left = left;
            state.running = running.map(|(place, _)| place.clone());
            state.interlocked = interlocked;
        });
        let mut holders: Vec<Holder> = self.left.iter().map(holder).collect();
        holders.extend(running.map(|(_, pid)| Holder { pid, stuck: None }));
        self.parts.switch.held_by_canary(holders, Mono::now());
    }

    /// Ends all processes that can be ended. A process in a driver call is left behind; its control pipe closes with
    /// the daemon, and it ends when the call returns.
    fn shut_down(mut self) {
        let deadline = self.ending.unwrap_or_else(Mono::now) + SHUTDOWN;
        for process in &mut self.left {
            let look = process.child.end_by(deadline);
            if look.killed {
                self.context.inbox.event(LedgerEvent::Canary(CanaryEvent::Killed));
            }
            if look.alive {
                let pid = process.reported.pid;
                tracing::warn!(pid, "left a canary behind in a driver call; it ends when the call returns");
            }
        }
    }
}

/// Returns the other whole GPUs, starting after the one that was last.
fn peers(state: &state::RunnerState, place: &Place, last: Option<&Gpu>) -> Vec<Place> {
    let whole = |gpu: &Gpu| Place { gpu: gpu.clone(), instance: None };
    let (after, before): (Vec<Place>, Vec<Place>) = state
        .devices
        .iter()
        .filter(|(gpu, places)| **gpu != place.gpu && places.contains(&whole(gpu)))
        .map(|(gpu, _)| whole(gpu))
        .partition(|other| last.is_none_or(|last| other.gpu > *last));
    if place.instance.is_some() { Vec::new() } else { after.into_iter().chain(before).collect() }
}

fn holder(process: &PlacedChild) -> Holder {
    let stuck = process.child.call().map(|call| StuckIn {
        call: call.name,
        gpu: Some(process.reported.place.gpu.gpu),
        seconds: Mono::now().since(call.since).as_secs_f64(),
    });
    Holder { pid: process.reported.pid, stuck }
}
