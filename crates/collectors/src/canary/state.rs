//! What the canary's collector shares with the control socket: its plan, what it has seen, and how the last runs ended.
//! Not locked while a run is made.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::watch::ActivityWatch;
use crate::views::canary::CanaryFacts;
use attribution::pods::Pods;
use canary::gate::{self, Claimed, GateFacts, RunCondition, Since, claims, slurm};
use canary::interlock;
use canary::schedule::{CanarySchedule, ScheduleSettings};
use host::Host;
use model::canary::{Outcome, Place};
use model::catalog::{self as m, CanaryMode, CanaryStep, Gpu};
use model::clock::{Mono, unix_seconds};
use model::sync::lock;
use settings::Config;

/// Values of this age count as fresh, however short the intervals are.
const FRESH: Duration = Duration::from_secs(3);

#[derive(Debug, Default)]
pub struct CanaryCell(Mutex<Option<RunnerState>>);

#[derive(Debug)]
pub(crate) struct RunnerState {
    /// When runs are due.
    pub(crate) schedule: CanarySchedule,
    /// What only time tells.
    pub(crate) watch: ActivityWatch,
    /// Where runs can be made.
    pub(crate) devices: BTreeMap<Gpu, Vec<Place>>,
    /// The run under way.
    pub(crate) running: Option<Place>,
    /// Processes of earlier runs that have not ended.
    pub(crate) left: Vec<LeftProcess>,
    /// How the last run ended at each place.
    pub(crate) last: BTreeMap<Place, Outcome>,
    /// Whether we hold the interlock ourselves.
    pub(crate) interlocked: bool,
    /// What the kubelet has given out.
    pub(crate) pods: Arc<Pods>,
}

/// A process that has not ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeftProcess {
    /// The place of its run.
    pub place: Place,
    /// The other GPU it used, if it did.
    pub peer: Option<Gpu>,
    /// Its process id.
    pub pid: i32,
    /// The step it hangs in, if it does.
    pub hangs: Option<CanaryStep>,
}

/// The answer on the control socket to `canary status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CanaryStatus {
    /// When the canary runs.
    pub mode: CanaryMode,
    /// The run under way.
    pub running: Option<Place>,
    /// Processes of earlier runs that have not ended.
    pub left: Vec<LeftProcess>,
    /// Every GPU.
    pub gpus: Vec<GpuStatus>,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuStatus {
    /// The GPU.
    pub gpu: Gpu,
    /// When the next run is due, in seconds since 1970; in the past: it is put off.
    pub next_due: Option<f64>,
    /// The places on it; none in MIG mode without an instance.
    pub places: Vec<PlaceStatus>,
}

/// One place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlaceStatus {
    /// The place.
    pub place: Place,
    /// Whether the canary may run there now.
    pub conditions: Vec<RunCondition>,
    /// How its last run ended.
    pub last: Option<Outcome>,
}

impl CanaryCell {
    /// Sets the first state.
    pub(crate) fn open(&self, settings: ScheduleSettings, seed: u64, pods: Arc<Pods>) {
        *lock(&self.0) = Some(RunnerState {
            schedule: CanarySchedule::new(settings, seed),
            watch: ActivityWatch::default(),
            devices: BTreeMap::new(),
            running: None,
            left: Vec::new(),
            last: BTreeMap::new(),
            interlocked: false,
            pods,
        });
    }

    /// Forgets the state.
    pub(crate) fn close(&self) {
        *lock(&self.0) = None;
    }

    /// Works with the state; `None` before it was opened.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut RunnerState) -> T) -> Option<T> {
        lock(&self.0).as_mut().map(work)
    }

    /// The answer to `canary status`.
    pub fn status(&self, config: &Config, released: bool, published: &CanaryFacts) -> CanaryStatus {
        let now = Mono::now();
        let mode = config.canary.mode;
        let mut status = CanaryStatus { mode, running: None, left: Vec::new(), gpus: Vec::new() };
        self.with(|state| {
            let place = |place: &Place| {
                let mut facts = state.facts(config, released, published, place, now);
                if !state.interlocked {
                    facts.interlock = interlock::free(&config.canary.lock_file).err();
                }
                PlaceStatus {
                    place: place.clone(),
                    conditions: gate::conditions(&facts, config.canary.idle_for),
                    last: state.last.get(place).cloned(),
                }
            };
            let gpus = state.devices.iter().map(|(gpu, places)| GpuStatus {
                gpu: gpu.clone(),
                next_due: state.schedule.next_due(gpu).map(|due| unix(due, now)),
                places: places.iter().map(place).collect(),
            });
            status.gpus = gpus.collect();
            status.running.clone_from(&state.running);
            status.left.clone_from(&state.left);
        });
        status
    }
}

impl RunnerState {
    /// What the gate goes by; the interlock is left out, because looking at it means to hold it for a moment.
    pub(crate) fn facts(
        &self,
        config: &Config,
        released: bool,
        published: &CanaryFacts,
        place: &Place,
        now: Mono,
    ) -> GateFacts {
        let fresh_for = config.sampler.slow_interval * 2 + config.metrics.publish_interval * 2;
        let mut facts = published.gate(place, fresh_for.max(FRESH), now);
        self.watch.complete(&mut facts, place, now);
        facts.released = released;
        // By UUID: an index may pass on to another GPU while a process hangs.
        let uuid = &place.gpu.uuid;
        let on = |left: &&LeftProcess| {
            left.place.gpu.uuid == *uuid || left.peer.as_ref().is_some_and(|peer| peer.uuid == *uuid)
        };
        facts.child = self.left.iter().find(on).map(|left| left.pid);
        facts.duty_wait = self.schedule.budget_wait(&place.gpu, now);
        facts.maintenance = published.maintenance();
        facts.pod = self.pod(published, place);
        facts.job = slurm::claimed(&Host::new(&config.host.root));
        let name = m::gpu_xid_last_event_timestamp_seconds.def().name;
        if !config.metrics.publishes(name) {
            facts.xid = Since::Unknown(format!("{name} is switched off"));
        }
        facts
    }

    /// Whether a pod was given the place.
    pub(crate) fn pod(&self, published: &CanaryFacts, place: &Place) -> Claimed {
        claims::by_pod(&self.pods.status(), &self.pods.claims(), place, published.minor_number(&place.gpu))
    }
}

/// A moment in seconds since 1970.
pub(crate) fn unix(moment: Mono, now: Mono) -> f64 {
    let distance = moment.since(now).as_secs_f64() - now.since(moment).as_secs_f64();
    unix_seconds() + distance
}
