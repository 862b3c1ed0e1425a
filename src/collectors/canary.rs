//! Runs the canary by itself: follows what is published, and when a GPU is due and the gate lets it, makes a run,
//! judges it and tells the ledger. One run at a time on the node, one process a GPU; a process that does not end is
//! watched, and nothing else is started on its GPU. Nothing here waits for a process or the driver.

pub mod desk;
mod places;
mod visit;
mod watch;

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::nvml::switch::{Holder, StuckIn, Switch};
use attribution::pods::Pods;
use canary::baseline::Memory;
use canary::gate;
use canary::interlock::{self, Held};
use canary::parent::Remains;
use canary::schedule::dice::Dice;
use canary::schedule::{Due, Settings};
use canary::stray::Search;
use desk::{Desk, Left};
use exposition::snapshot_cell::SnapshotCell;
use host::child::Family;
use host::state::{Keeper, Store};
use host::stop::Stop;
use ledger::inbox::{Inbox, LedgerEvent};
use model::canary::{CanaryEvent, Place};
use model::catalog::{CanaryMode, CanarySkip, CanaryStep, Gpu, MetricId};
use model::clock::{Mono, unix_seconds};
use model::sample::{Batch, Rows, Source};
use model::snapshot::Snapshot;
use settings::Config;

/// Longest time between two looks at what is published.
const PACE: Duration = Duration::from_secs(2);
/// The same while a process of an earlier run has not ended.
const PACE_LEFT: Duration = Duration::from_millis(250);
/// A mode without runs of its own still answers who asks: how often it looks, so that it knows for how long the
/// GPUs have been idle.
const PACE_ON_DEMAND: Duration = Duration::from_secs(5);
/// The daemon ends within 5 s of being asked to; a process in a driver call is left behind before that.
const SHUTDOWN: Duration = Duration::from_millis(3800);
/// Stack of the thread: judging and keeping the baseline recurse nowhere.
const STACK: usize = 1024 * 1024;

/// What the collector receives.
#[derive(Debug, Clone)]
pub struct Context {
    /// The checked configuration.
    pub config: Arc<Config>,
    /// Destination of batches and events.
    pub inbox: Arc<Inbox>,
    /// Ends the thread.
    pub stop: Arc<Stop>,
    /// Metrics that are switched off.
    pub off: Arc<HashSet<MetricId>>,
    /// Canary processes alive and their cost.
    pub canaries: Arc<Family>,
    /// Release of the driver and of the profiling counters.
    pub switch: Arc<Switch>,
    /// State of the canary, for requests over the control socket.
    pub canary: Arc<Desk>,
    /// Devices that the kubelet has given out.
    pub pods: Arc<Pods>,
    /// The published snapshot.
    pub board: Arc<SnapshotCell>,
}

/// Starts the collector.
pub fn start(context: Context) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("canary".into()).stack_size(STACK).spawn(move || {
        let duty = duty(&context);
        let mode = context.config.canary.mode;
        context.inbox.event(LedgerEvent::Canary(CanaryEvent::Mode { mode, duty }));
        if mode == CanaryMode::Off {
            let text = "switched off (canary.mode)".to_owned();
            context.inbox.event(LedgerEvent::CollectorUnavailable(Source::Canary, Some(text)));
            while !context.stop.stopped() {
                context.stop.wait_until(Mono::now() + Duration::from_secs(3600));
            }
            return;
        }
        Collector::new(context).run();
    })
}

fn duty(context: &Context) -> f64 {
    context.config.canary.max_duty_ratio
}

struct Collector {
    context: Context,
    desk: Arc<Desk>,
    dice: Dice,
    memory: Memory,
    keeper: Option<Keeper<Memory>>,
    /// Processes of earlier runs that have not ended.
    left: Vec<Process>,
    /// Held while a run is made, and until its process has ended or is known to hang.
    interlock: Option<Held>,
    strays: Search,
    /// Of copies between two GPUs, which had its turn last.
    last_peer: Option<Gpu>,
    said_due: BTreeMap<Gpu, Option<Mono>>,
    said_alive: usize,
    /// When we were asked to end, as far as that was seen.
    ending: Option<Mono>,
}

/// A process that has outlived its run.
struct Process {
    place: Place,
    peer: Option<Gpu>,
    remains: Remains,
    said: Option<CanaryStep>,
}

impl Collector {
    fn new(context: Context) -> Collector {
        let config = &context.config.canary;
        let settings = Settings {
            mode: config.mode,
            interval: config.interval,
            idle_for: config.idle_for,
            duty: duty(&context),
        };
        let mut dice = Dice::new(unix_seconds().to_bits() ^ u64::from(std::process::id()).rotate_left(32));
        let desk = Arc::clone(&context.canary);
        desk.open(settings, dice.number(), context.off.as_ref().clone(), Arc::clone(&context.pods));
        let (memory, keeper) = remembered(&Store::new(&context.config.state.dir));
        Collector {
            context,
            desk,
            dice,
            memory,
            keeper,
            left: Vec::new(),
            interlock: None,
            strays: Search::default(),
            last_peer: None,
            said_due: BTreeMap::new(),
            said_alive: 0,
            ending: None,
        }
    }

    fn run(mut self) {
        let own = match self.context.config.canary.mode {
            CanaryMode::OnDemand => PACE_ON_DEMAND,
            _ => PACE.min(self.context.config.canary.interval / 4),
        };
        while !self.context.stop.stopped() {
            self.beat();
            self.tend(None);
            let snapshot = self.context.board.current();
            self.look(&snapshot);
            if let Some((place, peer)) = self.choose(&snapshot) {
                self.visit(&place, peer);
            }
            let pace = if self.left.is_empty() { own } else { PACE_LEFT.min(own) };
            self.context.stop.wait_until(Mono::now() + pace);
        }
        self.shut_down();
    }

    fn tell(&self, news: CanaryEvent) {
        self.context.inbox.event(LedgerEvent::Canary(news));
    }

    /// Says that we live: there are no values, but the ledger and `/readyz` know the collector by it.
    fn beat(&self) {
        self.context.inbox.batch(Batch::of_node(Source::Canary, Mono::now(), None, Rows::default()));
    }

    /// Takes in what is published.
    fn look(&mut self, snapshot: &Snapshot) {
        let now = Mono::now();
        let due = self.desk.with(|state| {
            state.devices = places::of(snapshot, &state.devices);
            state.schedule.devices(now, &state.devices);
            for (place, works) in state.watch.look(snapshot, &state.devices, now) {
                state.schedule.working(now, &place, works);
            }
            let of = |gpu: &Gpu| (gpu.clone(), state.schedule.next_due(gpu));
            state.devices.keys().map(of).collect::<BTreeMap<_, _>>()
        });
        let Some(due) = due else { return };
        for (gpu, at) in &due {
            if self.said_due.get(gpu) != Some(at) {
                let place = Place { gpu: gpu.clone(), instance: None };
                self.tell(CanaryEvent::Due(place, at.map(|at| desk::unix(at, now))));
            }
        }
        for gone in self.said_due.keys().filter(|gpu| !due.contains_key(*gpu)) {
            self.tell(CanaryEvent::Due(Place { gpu: gone.clone(), instance: None }, None));
        }
        self.said_due = due;
    }

    /// A place that is due and free, and for copies between two GPUs another one that is free. What is refused is
    /// told.
    fn choose(&mut self, snapshot: &Snapshot) -> Option<(Place, Option<Place>)> {
        // One at a time: what is only slow to end is waited for; what hangs is not.
        if self.left.iter().any(|process| process.said.is_none()) {
            return None;
        }
        let now = Mono::now();
        let (config, released) = (Arc::clone(&self.context.config), self.context.switch.is_released());
        let last_peer = self.last_peer.clone();
        let (chosen, refused) = self.desk.with(|state| {
            let mut refused: Vec<(Place, CanarySkip)> = Vec::new();
            let refusal = |state: &desk::State, place: &Place, idle_for| {
                let facts = state.facts(&config, released, snapshot, place, now);
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

    /// A run that was due is put off, and that is to be told.
    fn refused(&self, place: &Place, reason: CanarySkip, text: &str) {
        tracing::debug!(%place, ?reason, text, "a canary is put off");
        self.tell(CanaryEvent::Skipped(place.clone(), reason));
    }

    /// Looks after the processes that have outlived their runs.
    fn tend(&mut self, running: Option<(&Place, i32)>) {
        let now = Mono::now();
        let mut news = Vec::new();
        self.left.retain_mut(|process| {
            let look = process.remains.look(now);
            if look.killed {
                news.push(CanaryEvent::Killed);
            }
            let hangs = process.remains.hangs(now).filter(|_| look.alive);
            // Also one that had ended before it was told to hang: its run is over now.
            if hangs != process.said || !look.alive {
                news.push(CanaryEvent::Hung(process.place.clone(), hangs));
                process.said = hangs;
            }
            look.alive
        });
        news.into_iter().for_each(|news| self.tell(news));
        if running.is_none() && self.left.iter().all(|process| process.said.is_some()) {
            self.interlock = None;
        }
        self.count(running);
    }

    /// Says which processes there are: to the ledger, to who wants the driver released, and on the desk.
    fn count(&mut self, running: Option<(&Place, i32)>) {
        let alive = self.left.len() + usize::from(running.is_some());
        if alive != self.said_alive {
            self.said_alive = alive;
            self.tell(CanaryEvent::Alive(alive));
        }
        let left = |process: &Process| Left {
            place: process.place.clone(),
            peer: process.peer.clone(),
            pid: process.remains.pid(),
            hangs: process.said,
        };
        let left: Vec<Left> = self.left.iter().map(left).collect();
        let interlocked = self.interlock.is_some();
        self.desk.with(|state| {
            state.left = left;
            state.running = running.map(|(place, _)| place.clone());
            state.interlocked = interlocked;
        });
        let mut holders: Vec<Holder> = self.left.iter().map(holder).collect();
        holders.extend(running.map(|(_, pid)| Holder { pid, stuck: None }));
        self.context.switch.held_by_canary(holders);
    }

    /// Ends every process that can be ended. One in a driver call is left: its control pipe closes with us, and
    /// it ends when its call returns.
    fn shut_down(mut self) {
        let deadline = self.ending.unwrap_or_else(Mono::now) + SHUTDOWN;
        for process in &mut self.left {
            let look = process.remains.end_by(deadline);
            if look.killed {
                self.context.inbox.event(LedgerEvent::Canary(CanaryEvent::Killed));
            }
            if look.alive {
                let pid = process.remains.pid();
                tracing::warn!(
                    pid,
                    "a canary is left behind in a driver call; it ends when the call returns"
                );
            }
        }
        if let Some(keeper) = self.keeper.take() {
            keeper.finish();
        }
    }
}

/// The other whole GPUs, those after the last one first.
fn peers(state: &desk::State, place: &Place, last: Option<&Gpu>) -> Vec<Place> {
    let whole = |gpu: &Gpu| Place { gpu: gpu.clone(), instance: None };
    let (after, before): (Vec<Place>, Vec<Place>) = state
        .devices
        .iter()
        .filter(|(gpu, places)| **gpu != place.gpu && places.contains(&whole(gpu)))
        .map(|(gpu, _)| whole(gpu))
        .partition(|other| last.is_none_or(|last| other.gpu > *last));
    if place.instance.is_some() { Vec::new() } else { after.into_iter().chain(before).collect() }
}

fn holder(process: &Process) -> Holder {
    let stuck = process.remains.call().map(|call| StuckIn {
        call: call.name,
        gpu: Some(process.place.gpu.gpu),
        seconds: Mono::now().since(call.since).as_secs_f64(),
    });
    Holder { pid: process.remains.pid(), stuck }
}

/// What earlier runs have taught, and the thread that keeps it. Without a usable folder it is only known while the
/// daemon runs.
fn remembered(store: &Store) -> (Memory, Option<Keeper<Memory>>) {
    let memory = match store.load::<Memory>() {
        Ok(memory) => memory.unwrap_or_default().mended(),
        Err(error) => {
            tracing::warn!(%error, "state.dir cannot be read: the canary's baseline is not kept over restarts");
            return (Memory::default(), None);
        }
    };
    match store.keeper() {
        Ok(keeper) => (memory, Some(keeper)),
        Err(error) => {
            tracing::warn!(%error, "no thread: the canary's baseline is not kept over restarts");
            (memory, None)
        }
    }
}

/// Takes the interlock for a run, unless it is still held for the one before.
fn take_interlock(held: &mut Option<Held>, path: &std::path::Path) -> Result<(), String> {
    if held.is_none() {
        *held = Some(interlock::take(path)?);
    }
    Ok(())
}
