//! One run, from the interlock to the verdict.

use std::sync::Arc;
use std::time::Duration;

use super::{Collector, Process, desk, places, take_interlock};
use canary::gate::{self, Allows, Claimed};
use canary::judge::{judge, worth_another_try};
use canary::parent::{Active, Remains, Start};
use canary::report::{End, Order, Report, Run};
use canary::stray;
use host::Host;
use host::child::{self, Voice};
use model::canary::{CanaryEvent, Outcome, Place};
use model::catalog::schema::KnownLabel;
use model::catalog::{self as m, CanaryCheck, CanarySkip, CanaryVerdict, Gpu};
use model::clock::{Mono, unix_seconds};
use model::snapshot::{DriverState, GpuState};

/// Time between two looks at a run and at what may end it.
const LOOK: Duration = Duration::from_millis(50);
const MIB: u64 = 1024 * 1024;

impl Collector {
    /// Makes a run there, with `peer` at the other end of copies between two GPUs, and tells what came of it.
    pub(super) fn visit(&mut self, place: &Place, peer: Option<Place>) {
        let order = match self.order(place, peer.as_ref()) {
            Ok(order) => order,
            Err(reason) => return self.put_off(place, reason, "nothing is known of the GPU"),
        };
        if let Err(text) = take_interlock(&mut self.interlock, &self.context.config.canary.lock_file) {
            return self.put_off(place, CanarySkip::Interlock, &text);
        }
        if let Some(pid) = self.stray(place, peer.as_ref()) {
            self.interlock = None;
            return self.put_off(place, CanarySkip::ChildAlive, &format!("process {pid} of another canary"));
        }
        if !self.context.switch.begin_canary() {
            self.interlock = None;
            return self.put_off(place, CanarySkip::Released, "");
        }
        let peer = order.peer.as_ref().and(peer).map(|peer| peer.gpu);
        if peer.is_some() {
            self.last_peer.clone_from(&peer);
        }
        self.desk.with(|state| state.schedule.began(Mono::now(), place));
        self.tell(CanaryEvent::Began(place.clone()));
        self.borrow(peer.as_ref(), true);
        let (mut run, mut remains) = self.run_once(place, &order);
        if worth_another_try(&run)
            && remains.is_none()
            && self.still_free(place)
            && self.context.switch.begin_canary()
        {
            tracing::info!(%place, end = ?run.end, "a canary failed and is tried once more");
            let spent = run.gpu_seconds;
            (run, remains) = self.run_once(place, &order);
            run.gpu_seconds += spent;
        }
        let over = remains.is_none();
        self.conclude(place, run);
        if over {
            // What was told to hang may have ended at the same moment.
            self.tell(CanaryEvent::Hung(place.clone(), None));
        }
        self.borrow(peer.as_ref(), false);
        self.left.extend(remains.map(|remains| Process { place: place.clone(), peer, remains, said: None }));
        self.tend(None);
    }

    /// A process of another daemon's or command's canary on one of the GPUs.
    fn stray(&self, place: &Place, peer: Option<&Place>) -> Option<i32> {
        let gpus = [Some(&place.gpu), peer.map(|peer| &peer.gpu)];
        let uuids = self.desk.with(|state| {
            let of = |gpu: &Gpu| state.devices.get(gpu).into_iter().flatten();
            stray::uuids(gpus.into_iter().flatten().flat_map(of))
        });
        let ours = self.left.iter().map(|process| process.remains.pid()).collect();
        let host = Host::new(&self.context.config.host.root);
        self.strays.on(&host, uuids.unwrap_or_default(), ours)
    }

    fn borrow(&self, peer: Option<&Gpu>, takes_part: bool) {
        if let Some(peer) = peer {
            self.tell(CanaryEvent::Peer(peer.clone(), takes_part));
        }
    }

    fn put_off(&self, place: &Place, reason: CanarySkip, text: &str) {
        let counts = self.desk.with(|state| state.schedule.refused(Mono::now(), &place.gpu, reason));
        if counts == Some(true) {
            self.refused(place, reason, text);
        }
    }

    /// What the process is to do.
    fn order(&mut self, place: &Place, peer: Option<&Place>) -> Result<Order, CanarySkip> {
        let config = Arc::clone(&self.context.config);
        let snapshot = self.context.board.current();
        let pci = snapshot.info(&m::gpu_info, &place.gpu, "pci_address").filter(|pci| !pci.is_empty());
        let mut checks = config.canary.checks.clone();
        let peer = peer.filter(|_| checks.contains(&CanaryCheck::P2p));
        if peer.is_none() {
            checks.retain(|check| *check != CanaryCheck::P2p);
        }
        Ok(Order {
            fingerprint: m::fingerprint(),
            device: place.device().to_owned(),
            pci_address: pci.ok_or(CanarySkip::Unread)?.to_owned(),
            instance: place.instance.as_ref().map(|i| (i.gpu_instance, i.compute_instance)),
            peer: peer.map(|peer| peer.device().to_owned()),
            nvml_library: config.sampler.nvml_library.clone(),
            cuda_library: config.canary.cuda_library.clone(),
            checks,
            memory_bytes: u64::from(config.canary.max_memory_mib) * MIB,
            seed: self.dice.number(),
            yields: true,
        })
    }

    /// One process, until the end of its run is known.
    fn run_once(&mut self, place: &Place, order: &Order) -> (Run, Option<Remains>) {
        let program = child::this_program();
        let config = &self.context.config.canary;
        let start = Start {
            program: &program,
            order,
            hung_after: config.progress_timeout,
            kill_after: config.kill_after,
            voice: Voice::Log,
        };
        let mut active = match Active::start(start) {
            Ok(active) => active,
            Err(run) => {
                self.count(None);
                return (*run, None);
            }
        };
        active.join(&self.context.canaries);
        let pid = active.pid();
        tracing::debug!(pid, %place, "a canary runs");
        self.count(Some((place, pid)));
        loop {
            if self.context.stop.stopped() {
                self.ending.get_or_insert_with(Mono::now);
            }
            if let Some(why) = self.why_end(place) {
                active.ask_to_end(&why);
            }
            if !self.left.is_empty() {
                self.tend(Some((place, pid)));
            }
            let mut on = |report: &Report| tracing::trace!(?report, "canary");
            if let Some(end) = active.look(LOOK, &mut on) {
                let (run, remains) = active.over(end);
                if remains.is_none() {
                    self.count(None);
                }
                return (run, remains);
            }
        }
    }

    /// Why a run under way has to end, if it has to. Other processes on the GPU are seen by the run itself.
    fn why_end(&self, place: &Place) -> Option<String> {
        if self.context.stop.stopped() {
            return Some("the daemon ends".into());
        }
        if self.context.switch.is_released() {
            return Some("the driver is to be released".into());
        }
        let snapshot = self.context.board.current();
        if let Some(text) = desk::maintenance(&snapshot) {
            return Some(format!("maintenance: {text}"));
        }
        if let Some(Claimed::By(whom)) = self.desk.with(|state| state.pod(&snapshot, place)) {
            return Some(format!("the GPU is given to {whom}"));
        }
        if snapshot.driver != DriverState::Up {
            return Some("the driver is away or stuck".into());
        }
        match snapshot.gpus.iter().find(|view| view.gpu == place.gpu).map(|view| &view.state) {
            Some(GpuState::Up) => {}
            Some(GpuState::Stuck { call, .. }) => return Some(format!("{call} on the GPU does not return")),
            _ => return Some("the GPU does not answer any more".into()),
        }
        let known = self.desk.with(|state| state.devices.clone()).unwrap_or_default();
        let there = places::of(&snapshot, &known).get(&place.gpu).is_some_and(|of| of.contains(place));
        (!there).then(|| "the GPU is divided anew".into())
    }

    /// Whether nothing has come in the way of another try.
    fn still_free(&self, place: &Place) -> bool {
        if self.why_end(place).is_some() {
            return false;
        }
        let snapshot = self.context.board.current();
        let config = &self.context.config;
        let facts = self.desk.with(|state| state.facts(config, false, &snapshot, place, Mono::now()));
        // What the first try has left behind in the values is none of anybody else's.
        let ours = |allows: &Allows| {
            use CanarySkip::{Busy, Memory, RecentXid};
            matches!(allows, Allows::Yes | Allows::NotChecked(_) | Allows::No(RecentXid | Busy | Memory))
        };
        facts.is_some_and(|facts| {
            gate::conditions(&facts, Duration::ZERO).iter().all(|condition| ours(&condition.allows))
        })
    }

    /// Judges a run, remembers what it taught, and tells.
    fn conclude(&mut self, place: &Place, run: Run) {
        let siblings =
            run.device.as_ref().map(|device| self.memory.siblings(place, device)).unwrap_or_default();
        let judgement = judge(place, &run, &self.memory, &siblings, unix_seconds());
        self.memory.take(judgement.lesson);
        if let Some(keeper) = &self.keeper {
            keeper.save(self.memory.clone());
        }
        let outcome = judgement.outcome;
        say(&outcome, &run.end);
        let now = Mono::now();
        self.desk.with(|state| {
            state.schedule.ended(now, &outcome);
            let gone = |gpu: &Gpu| !state.devices.contains_key(gpu);
            state.last.retain(|place, _| !gone(&place.gpu));
            state.last.insert(place.clone(), outcome.clone());
        });
        self.tell(CanaryEvent::Ended(Box::new(outcome)));
    }
}

/// One line of the log for what is worth it.
fn say(outcome: &Outcome, end: &End) {
    let place = &outcome.place;
    match end {
        End::Finished | End::Abandoned { .. } => {
            tracing::debug!(%place, end = outcome.end.known(), text = outcome.text, "a canary has ended");
        }
        End::Unable { .. } => {
            tracing::info!(%place, text = outcome.text, "a canary could not be run");
        }
        End::Fault { .. } | End::Hung { .. } | End::Broken { .. } => {
            tracing::warn!(%place, end = outcome.end.known(), text = outcome.text, "a canary has failed");
        }
    }
    let quiet =
        |verdict| matches!(verdict, CanaryVerdict::Ok | CanaryVerdict::Contended | CanaryVerdict::Skipped);
    for judged in outcome.checks.iter().filter(|judged| *end == End::Finished && !quiet(judged.verdict)) {
        let (check, verdict) = (judged.check.known(), judged.verdict.known());
        tracing::warn!(%place, check, verdict, text = judged.text, "a canary has found something");
    }
}
