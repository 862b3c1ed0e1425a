//! One run, from acquiring the interlock to publishing the verdict.

use std::sync::Arc;
use std::time::Duration;

use super::state::LeftProcess;
use super::{CanaryCollector, PlacedChild};
use canary::gate::{self, Allows, Claimed};
use canary::interlock;
use canary::judge::judge;
use canary::report::{CanaryRun, RunEnd};
use canary::runner::{self, RunObserver, RunSettings, RunTarget};
use host::child::{ChildSet, Stderr};
use model::canary::{CanaryEvent, Outcome, Place};
use model::catalog::schema::KnownLabel;
use model::catalog::{CanarySkip, CanaryVerdict, Gpu};
use model::clock::{Mono, unix_seconds};
use settings::Config;

/// Returns the settings for runs of the daemon.
pub fn run_settings(config: &Config, children: Arc<ChildSet>) -> RunSettings {
    RunSettings {
        nvml_library: config.sampler.nvml_library.clone().unwrap_or_default(),
        cuda_library: config.canary.cuda_library.clone().unwrap_or_default(),
        lock_file: config.canary.lock_file.clone(),
        memory_mib: config.canary.max_memory_mib,
        hung_after: config.canary.progress_timeout,
        kill_after: config.canary.kill_after,
        linger: Duration::ZERO,
        yields: true,
        stderr: Stderr::Inherit,
        children,
    }
}

impl CanaryCollector {
    /// Runs the canary at `place` and publishes the outcome. `peer` is the other end of copies between two GPUs.
    pub(super) fn visit(&mut self, place: &Place, peer: Option<Place>) {
        let config = self.context.config();
        let Some(pci_address) = self.facts.current().pci_address(&place.gpu) else {
            return self.put_off(place, CanarySkip::Unread, "nothing is known of the GPU");
        };
        let seed = self.rng.number();
        let target = RunTarget::new(place.clone(), pci_address, peer, &config.canary.checks, seed);
        // The interlock may still be held for the previous run.
        if self.interlock.is_none() {
            match interlock::acquire(&config.canary.lock_file) {
                Ok(held) => self.interlock = Some(held),
                Err(text) => return self.put_off(place, CanarySkip::Interlock, &text),
            }
        }
        let locks = target.locks(&config.canary.lock_file);
        if let Some(text) = locks.iter().find_map(|lock| interlock::free(lock).err()) {
            self.interlock = None;
            return self.put_off(place, CanarySkip::ChildAlive, &text);
        }
        if !self.parts.switch.begin_canary() {
            self.interlock = None;
            return self.put_off(place, CanarySkip::Released, "");
        }
        let peer = target.peer.as_ref().map(|peer| peer.gpu.clone());
        if peer.is_some() {
            self.last_peer.clone_from(&peer);
        }
        self.parts.canary.with(|state| state.schedule.began(Mono::now(), place));
        self.tell(CanaryEvent::Began(place.clone()));
        self.occupy(peer.as_ref(), true);
        let settings = run_settings(&config, Arc::clone(&self.parts.canary_children));
        let (run, child) =
            runner::run(&settings, &target, &mut VisitObserver { collector: self, place, pid: None });
        let over = child.is_none();
        if over {
            self.count(None);
        }
        self.conclude(place, run);
        if over {
            // A process that was reported as hanging may have ended at the same moment.
            self.tell(CanaryEvent::Hung(place.clone(), None));
        }
        self.occupy(peer.as_ref(), false);
        self.left.extend(child.map(|child| {
            let reported = LeftProcess { place: place.clone(), peer, pid: child.pid(), hangs: None };
            PlacedChild { reported, child }
        }));
        self.tend(None);
    }

    /// Publishes that the second GPU takes part in the run, or no longer does.
    fn occupy(&self, peer: Option<&Gpu>, takes_part: bool) {
        if let Some(peer) = peer {
            self.tell(CanaryEvent::Peer(peer.clone(), takes_part));
        }
    }

    fn put_off(&self, place: &Place, reason: CanarySkip, text: &str) {
        let counts = self.parts.canary.with(|state| state.schedule.refused(Mono::now(), &place.gpu, reason));
        if counts == Some(true) {
            self.refused(place, reason, text);
        }
    }

    /// Returns the reason if the current run must end. Other processes on the GPU are detected by the run itself.
    fn why_end(&self, place: &Place) -> Option<String> {
        if self.context.stop.stopped() {
            return Some("the daemon is stopping".into());
        }
        if self.parts.switch.is_released() {
            return Some("the release of the driver was requested".into());
        }
        let published = self.facts.current();
        if let Some(text) = published.maintenance() {
            return Some(format!("maintenance: {text}"));
        }
        if let Some(Claimed::By(claimant)) = self.parts.canary.with(|state| state.pod(&published, place)) {
            return Some(format!("the GPU is given to {claimant}"));
        }
        if let Some(text) = published.no_answer(&place.gpu) {
            return Some(text);
        }
        let known = self.parts.canary.with(|state| state.devices.clone()).unwrap_or_default();
        let there = published.places(&known).get(&place.gpu).is_some_and(|of| of.contains(place));
        (!there).then(|| "the MIG layout changed".into())
    }

    /// Returns whether the conditions still allow a second attempt.
    fn still_free(&self, place: &Place) -> bool {
        if self.why_end(place).is_some() {
            return false;
        }
        let published = self.facts.current();
        let config = &self.context.config();
        let facts =
            self.parts.canary.with(|state| state.facts(config, false, &published, place, Mono::now()));
        // The values may still show the work of the first attempt. In a container without the host's process IDs this
        // includes the process list, where the first attempt has an unknown ID. The second attempt checks for other
        // processes itself before it uses CUDA, and ends if there are any.
        let ours = |allows: &Allows| {
            use CanarySkip::{Busy, Memory, Processes, RecentXid};
            match allows {
                Allows::Yes | Allows::NotChecked(_) => true,
                Allows::No(reason) => matches!(reason, RecentXid | Busy | Memory | Processes),
            }
        };
        facts.is_some_and(|facts| {
            gate::conditions(&facts, Duration::ZERO).iter().all(|condition| ours(&condition.allows))
        })
    }

    /// Judges a run, updates the baseline and publishes the outcome.
    fn conclude(&mut self, place: &Place, run: CanaryRun) {
        let siblings =
            run.device.as_ref().map(|device| self.memory.siblings(place, device)).unwrap_or_default();
        let judgement = judge(place, &run, &self.memory, &siblings, unix_seconds());
        self.memory.apply(judgement.update);
        self.keeper.save(self.memory.clone());
        let outcome = judgement.outcome;
        say(&outcome, &run.end);
        let now = Mono::now();
        self.parts.canary.with(|state| {
            state.schedule.ended(now, &outcome);
            let gone = |gpu: &Gpu| !state.devices.contains_key(gpu);
            state.last.retain(|place, _| !gone(&place.gpu));
            state.last.insert(place.clone(), outcome.clone());
        });
        self.tell(CanaryEvent::Ended(Box::new(outcome)));
    }
}

/// Observer of the current run.
struct VisitObserver<'a> {
    collector: &'a mut CanaryCollector,
    place: &'a Place,
    pid: Option<i32>,
}

impl RunObserver for VisitObserver<'_> {
    fn started(&mut self, pid: i32) {
        tracing::debug!(pid, place = %self.place, "started a canary");
        self.pid = Some(pid);
        self.collector.parts.switch.canary_started(pid);
        self.collector.count(Some((self.place, pid)));
    }

    fn why_end(&mut self) -> Option<String> {
        if self.collector.context.stop.stopped() {
            self.collector.ending.get_or_insert_with(Mono::now);
        }
        if let Some(pid) = self.pid.filter(|_| !self.collector.left.is_empty()) {
            self.collector.tend(Some((self.place, pid)));
        }
        self.collector.why_end(self.place)
    }

    fn may_retry(&mut self) -> bool {
        self.collector.count(None);
        self.collector.still_free(self.place) && self.collector.parts.switch.begin_canary()
    }
}

/// Logs the end of a run, with a level that depends on the outcome.
fn say(outcome: &Outcome, end: &RunEnd) {
    let place = &outcome.place;
    match end {
        RunEnd::Finished | RunEnd::Abandoned { .. } => {
            tracing::debug!(%place, end = outcome.end.known(), text = outcome.text, "the canary has ended");
        }
        RunEnd::Unable { .. } => {
            tracing::info!(%place, text = outcome.text, "failed to run the canary");
        }
        RunEnd::Fault { .. } | RunEnd::Hung { .. } | RunEnd::Broken { .. } => {
            tracing::warn!(%place, end = outcome.end.known(), text = outcome.text, "the canary failed");
        }
    }
    let quiet =
        |verdict| matches!(verdict, CanaryVerdict::Ok | CanaryVerdict::Contended | CanaryVerdict::Skipped);
    for judged in outcome.checks.iter().filter(|judged| *end == RunEnd::Finished && !quiet(judged.verdict)) {
        let (check, verdict) = (judged.check.known(), judged.verdict.known());
        tracing::warn!(%place, check, verdict, text = judged.text, "a check of the canary failed");
    }
}
