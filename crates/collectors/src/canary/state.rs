//! State that the canary shares with the control socket: its schedule, its observations and the outcomes of the last
//! runs. The lock is not held during a run.

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

/// Minimum age limit of published values, for very short intervals.
const FRESH: Duration = Duration::from_secs(3);

#[derive(Debug, Default)]
pub struct CanaryCell(Mutex<Option<RunnerState>>);

#[derive(Debug)]
pub(crate) struct RunnerState {
    pub(crate) schedule: CanarySchedule,
    /// Observations over time, such as the idle time of a GPU.
    pub(crate) watch: ActivityWatch,
    /// Places for runs, by GPU.
    pub(crate) devices: BTreeMap<Gpu, Vec<Place>>,
    /// Place of the current run.
    pub(crate) running: Option<Place>,
    /// Processes that have outlived their runs.
    pub(crate) left: Vec<LeftProcess>,
    /// Outcome of the last run at every place.
    pub(crate) last: BTreeMap<Place, Outcome>,
    /// Whether this daemon holds the interlock.
    pub(crate) interlocked: bool,
    /// Devices that the kubelet has assigned.
    pub(crate) pods: Arc<Pods>,
}

/// Process that has outlived its run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeftProcess {
    /// Place of the run.
    pub place: Place,
    /// Second GPU of the run, if it used two.
    pub peer: Option<Gpu>,
    pub pid: i32,
    /// Step in which the process hangs, if it hangs.
    pub hangs: Option<CanaryStep>,
}

/// Response to `canary status` on the control socket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CanaryStatus {
    pub mode: CanaryMode,
    /// Place of the current run.
    pub running: Option<Place>,
    /// Processes that have outlived their runs.
    pub left: Vec<LeftProcess>,
    pub gpus: Vec<GpuStatus>,
}

/// Canary status of one GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuStatus {
    pub gpu: Gpu,
    /// Time of the next run in seconds since 1970. A time in the past means that the run is postponed.
    pub next_due: Option<f64>,
    /// Places of the GPU; empty in MIG mode without instances.
    pub places: Vec<PlaceStatus>,
}

/// Canary status of one place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlaceStatus {
    pub place: Place,
    /// Conditions for a run at this place, as of now.
    pub conditions: Vec<RunCondition>,
    /// Outcome of the last run.
    pub last: Option<Outcome>,
}

impl CanaryCell {
    /// Creates the state when the canary is switched on.
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

    /// Drops the state when the canary is switched off.
    pub(crate) fn close(&self) {
        *lock(&self.0) = None;
    }

    /// Calls `work` with the state. Returns `None` while the canary is off.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut RunnerState) -> T) -> Option<T> {
        lock(&self.0).as_mut().map(work)
    }

    /// Builds the response to `canary status`.
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
    /// Returns the facts for the gate, except the interlock: reading it would briefly lock it.
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
        // Matched by UUID, because another GPU may get the index while a process hangs.
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

    /// Returns whether the place is assigned to a pod.
    pub(crate) fn pod(&self, published: &CanaryFacts, place: &Place) -> Claimed {
        claims::by_pod(&self.pods.status(), &self.pods.claims(), place, published.minor_number(&place.gpu))
    }
}

/// Converts a moment to seconds since 1970.
pub(crate) fn unix(moment: Mono, now: Mono) -> f64 {
    let distance = moment.since(now).as_secs_f64() - now.since(moment).as_secs_f64();
    unix_seconds() + distance
}
