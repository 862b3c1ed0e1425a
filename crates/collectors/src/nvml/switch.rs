//! Requests to the supervisor of the sampler: release the driver, resume its use, and stop reading the profiling
//! counters. Requesters and the supervisor share this state without waiting for each other.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use host::flock;
use model::clock::Mono;
use model::driver_module::{LoadId, ModuleState};
use model::sync::lock;
use sampler::wire::CanaryProcess;

/// Maximum number of canary processes that samplers exclude: more than hang at the same time and run within a minute.
const MOST_CANARIES: usize = 32;
/// Time for which samplers exclude a canary process after its end. Later, another process may have its ID, possibly in
/// a PID namespace that is not visible here.
const KNOWN_FOR: Duration = Duration::from_secs(60);

/// Release of the driver, requested or done.
#[derive(Clone, Debug, PartialEq)]
pub struct Released {
    pub since: Mono,
    /// Time of the request in seconds since 1970.
    pub unix_seconds: f64,
    /// Module load for which the release was requested, once it was observed.
    load: Option<LoadId>,
    /// Whether the module was observed to be absent since the request.
    gone: bool,
    /// New module load and the time of its first observation.
    back: Option<(LoadId, Mono)>,
}

impl Released {
    /// Updates the release with an observation of the module. Returns whether the use of the driver may resume: the
    /// module was absent or is another load, and has been present for `settle`, because installers load the module for
    /// a trial and unload it.
    fn sees(&mut self, sight: &ModuleState, now: Mono, settle: Duration) -> bool {
        let load = match sight {
            ModuleState::Unknown => return false,
            ModuleState::Absent => {
                (self.gone, self.back) = (true, None);
                return false;
            }
            ModuleState::Loaded(load) => load,
        };
        let of_release = self.load.get_or_insert_with(|| load.id.clone());
        let another = self.gone || *of_release != load.id;
        if !another || !load.live {
            self.back = None;
            return false;
        }
        match &self.back {
            Some((id, since)) if *id == load.id => now.since(*since) >= settle,
            _ => {
                self.back = Some((load.id.clone(), now));
                settle.is_zero()
            }
        }
    }
}

/// Process of the exporter that has the driver open.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Holder {
    pub pid: i32,
    /// Driver call of the process that is past its deadline.
    pub stuck: Option<StuckIn>,
}

/// Driver call past its deadline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StuckIn {
    /// Name of the NVML function.
    pub call: String,
    /// NVML's index of the GPU; `None` for a call that concerns no single GPU.
    pub gpu: Option<u32>,
    /// Duration of the call in seconds.
    pub seconds: f64,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {}", self.pid)?;
        let Some(stuck) = &self.stuck else { return Ok(()) };
        write!(f, " is stuck in {}", stuck.call)?;
        if let Some(gpu) = stuck.gpu {
            write!(f, " on GPU {gpu}")?;
        }
        write!(f, " for {:.0} s", stuck.seconds)
    }
}

/// Use of the driver by the exporter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Use {
    /// The exporter uses the driver if it is loaded.
    InUse,
    /// A release was requested, but processes still have the driver open.
    Releasing,
    /// No process of the exporter has the driver open.
    Released,
}

/// Response to requests about the driver on the control socket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DriverStatus {
    pub driver: Use,
    /// Time of the request to release in seconds since 1970.
    pub released_unix_seconds: Option<f64>,
    /// Time since the request in seconds.
    pub released_seconds: Option<f64>,
    /// Whether the kernel module is loaded; `None` if the host does not show it.
    pub module_loaded: Option<bool>,
    /// Processes of the exporter that have the driver open.
    pub holders: Vec<Holder>,
    /// Whether the profiling counters are read.
    pub gpm: bool,
}

/// Requests that the supervisor has to follow.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Requested {
    /// Current release of the driver.
    pub released: Option<Released>,
    /// Whether to read the profiling counters.
    pub gpm: bool,
    /// Newest processes of the canary. Processes that have just ended are included, because the driver lists them for
    /// another moment.
    pub canaries: Vec<CanaryProcess>,
}

/// State shared by the requesters and the supervisor.
#[derive(Debug, Default)]
pub struct Switch {
    state: Mutex<SwitchState>,
    /// Time for which a module must be present before the use of the driver resumes.
    settle: Duration,
}

#[derive(Debug, Default)]
struct SwitchState {
    requested: Requested,
    /// Whether the supervisor has received the release and starts nothing.
    acknowledged: bool,
    sight: ModuleState,
    holders: Vec<Holder>,
    /// Canary processes that have the driver open.
    canaries: Vec<Holder>,
    /// Times at which excluded canary processes have ended.
    ended: HashMap<u32, Mono>,
    /// Whether a canary process is being started.
    starting: bool,
}

impl Switch {
    /// Creates the state with the driver in use.
    pub fn new(gpm: bool, settle: Duration) -> Switch {
        let requested = Requested { gpm, ..Requested::default() };
        Switch { state: Mutex::new(SwitchState { requested, ..SwitchState::default() }), settle }
    }

    /// Requests the release of the driver. A repeated request changes nothing.
    pub fn release(&self, now: Mono, unix_seconds: f64) {
        let mut state = lock(&self.state);
        if state.requested.released.is_none() {
            let mut released = Released { since: now, unix_seconds, load: None, gone: false, back: None };
            released.sees(&state.sight, now, self.settle);
            state.requested.released = Some(released);
        }
    }

    /// Requests to resume the use of the driver.
    pub fn resume(&self) {
        lock(&self.state).requested.released = None;
    }

    /// Requests that the profiling counters are read, or are no longer read.
    pub fn gpm(&self, read: bool) {
        lock(&self.state).requested.gpm = read;
    }

    /// Records an observation of the kernel module. Ends the release if the module has returned.
    pub(crate) fn module(&self, sight: &ModuleState, now: Mono) {
        let mut state = lock(&self.state);
        state.sight = sight.clone();
        let settle = self.settle;
        if state.requested.released.as_mut().is_some_and(|released| released.sees(sight, now, settle)) {
            tracing::info!("the kernel module has returned; resumed the use of the driver");
            state.requested.released = None;
        }
    }

    /// Returns whether a release of the driver is requested or done.
    pub fn is_released(&self) -> bool {
        lock(&self.state).requested.released.is_some()
    }

    /// Returns the current requests and marks them as received.
    pub fn take_requests(&self, now: Mono) -> Requested {
        let mut state = lock(&self.state);
        let SwitchState { requested, ended, .. } = &mut *state;
        let known = |pid: &u32| ended.get(pid).is_none_or(|ended| now.since(*ended) < KNOWN_FOR);
        requested.canaries.retain(|canary| known(&canary.pid));
        ended.retain(|pid, _| requested.canaries.iter().any(|canary| canary.pid == *pid));
        state.acknowledged = state.requested.released.is_some();
        state.requested.clone()
    }

    /// Replaces the list of canary processes that have the driver open.
    pub(crate) fn held_by_canary(&self, canaries: Vec<Holder>, now: Mono) {
        let mut state = lock(&self.state);
        let SwitchState { requested, ended, .. } = &mut *state;
        for CanaryProcess { pid, .. } in &requested.canaries {
            if !canaries.iter().any(|holder| u32::try_from(holder.pid) == Ok(*pid)) {
                ended.entry(*pid).or_insert(now);
            }
        }
        (state.canaries, state.starting) = (canaries, false);
    }

    /// Records the start of a canary process.
    pub(crate) fn canary_started(&self, pid: i32) {
        let (Some(started), Ok(pid)) = (flock::started(pid), u32::try_from(pid)) else { return };
        let mut state = lock(&self.state);
        // An earlier process may have had the same ID.
        state.ended.remove(&pid);
        let canaries = &mut state.requested.canaries;
        canaries.retain(|canary| canary.pid != pid);
        canaries.push(CanaryProcess { pid, started });
        if canaries.len() > MOST_CANARIES {
            canaries.remove(0);
        }
    }

    /// Returns whether a canary may start. If so, the canary counts as a holder of the driver until the next
    /// [`Switch::held_by_canary`].
    pub(crate) fn begin_canary(&self) -> bool {
        let mut state = lock(&self.state);
        state.starting = state.requested.released.is_none();
        state.starting
    }

    /// Returns the process IDs of the canaries that have the driver open.
    pub(crate) fn canaries(&self) -> Vec<i32> {
        lock(&self.state).canaries.iter().map(|holder| holder.pid).collect()
    }

    /// Replaces the list of samplers that have the driver open.
    pub(crate) fn held_by(&self, holders: Vec<Holder>) {
        lock(&self.state).holders = holders;
    }

    /// Returns the use of the driver.
    pub fn status(&self, now: Mono) -> DriverStatus {
        let state = lock(&self.state);
        let released = state.requested.released.as_ref();
        let free = state.holders.is_empty() && state.canaries.is_empty() && !state.starting;
        DriverStatus {
            driver: match released {
                None => Use::InUse,
                Some(_) if state.acknowledged && free => Use::Released,
                Some(_) => Use::Releasing,
            },
            released_unix_seconds: released.map(|released| released.unix_seconds),
            released_seconds: released.map(|released| now.since(released.since).as_secs_f64()),
            module_loaded: match state.sight {
                ModuleState::Unknown => None,
                ModuleState::Absent => Some(false),
                ModuleState::Loaded(_) => Some(true),
            },
            holders: state.holders.iter().chain(&state.canaries).cloned().collect(),
            gpm: state.requested.gpm,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::driver_module::Load;

    const SETTLE: Duration = Duration::from_secs(5);

    fn loaded(inode: u64, live: bool) -> ModuleState {
        let id = LoadId { boot: "b".into(), inode, made: None };
        ModuleState::Loaded(Load { id, live, version: "1".into(), unix_seconds: None })
    }

    fn at(seconds: u64) -> Mono {
        Mono(seconds * 1_000_000_000)
    }

    fn released(sight: &ModuleState) -> Switch {
        let switch = Switch::new(true, SETTLE);
        switch.module(sight, at(1));
        switch.release(at(10), 1000.0);
        switch
    }

    #[test]
    fn it_is_released_once_the_supervisor_knows_and_is_free_it() {
        let switch = Switch::new(true, SETTLE);
        switch.held_by(vec![Holder { pid: 7, stuck: None }]);
        assert_eq!(switch.status(at(1)).driver, Use::InUse);
        switch.release(at(10), 1000.0);
        switch.release(at(20), 1010.0);
        let status = switch.status(at(30));
        assert_eq!((status.driver, status.released_seconds), (Use::Releasing, Some(20.0)), "once");
        switch.held_by(Vec::new());
        assert_eq!(switch.status(at(30)).driver, Use::Releasing, "a start may be under way");
        assert!(switch.take_requests(at(30)).released.is_some());
        assert_eq!(switch.status(at(30)).driver, Use::Released);
        switch.resume();
        assert!(switch.take_requests(at(30)).released.is_none());
        assert_eq!(switch.status(at(31)).driver, Use::InUse);
    }

    #[test]
    fn a_canary_holds_it_too_and_none_begins_once_it_is_to_be_released() {
        let switch = Switch::new(true, SETTLE);
        assert!(switch.begin_canary());
        switch.release(at(10), 1000.0);
        switch.take_requests(at(30));
        assert_eq!(switch.status(at(11)).driver, Use::Releasing, "one is being started");
        switch.held_by_canary(vec![Holder { pid: 9, stuck: None }], at(11));
        let status = switch.status(at(12));
        assert_eq!((status.driver, status.holders.len(), switch.canaries()), (Use::Releasing, 1, vec![9]));
        switch.held_by_canary(Vec::new(), at(12));
        assert!(!switch.begin_canary());
        assert_eq!(switch.status(at(13)).driver, Use::Released);
        switch.resume();
        assert!(switch.begin_canary());
    }

    #[test]
    fn a_canarys_process_is_known_for_a_minute_after_its_end() {
        let switch = Switch::new(true, SETTLE);
        let pid = std::process::id();
        let known = |seconds| switch.take_requests(at(seconds)).canaries.iter().any(|one| one.pid == pid);
        let starts = || {
            switch.canary_started(pid as i32);
            switch.held_by_canary(vec![Holder { pid: pid as i32, stuck: None }], at(1));
        };
        starts();
        assert!(known(1) && known(10_000), "one that hangs");
        switch.held_by_canary(Vec::new(), at(10_000));
        switch.held_by_canary(Vec::new(), at(10_050));
        assert!(known(10_059) && !known(10_060));
        starts();
        assert!(known(10_070), "another process with this id");
    }

    #[test]
    fn it_resumes_when_the_module_was_gone_and_has_settled() {
        let switch = released(&loaded(1, true));
        for second in 11..20 {
            switch.module(&loaded(1, true), at(second));
        }
        assert!(switch.is_released(), "the same load as before");
        switch.module(&ModuleState::Absent, at(20));
        switch.module(&loaded(2, false), at(21));
        switch.module(&loaded(2, true), at(30));
        switch.module(&loaded(2, true), at(34));
        assert!(switch.is_released(), "not settled");
        // A trial of the installer.
        switch.module(&ModuleState::Absent, at(35));
        switch.module(&loaded(3, true), at(36));
        switch.module(&loaded(3, true), at(40));
        assert!(switch.is_released());
        switch.module(&loaded(3, true), at(41));
        assert!(!switch.is_released());
    }

    #[test]
    fn it_resumes_when_the_module_was_exchanged_between_two_looks() {
        let switch = released(&loaded(1, true));
        switch.module(&loaded(2, true), at(11));
        switch.module(&loaded(3, true), at(15));
        switch.module(&loaded(3, true), at(19));
        assert!(switch.is_released(), "exchanged again");
        switch.module(&loaded(3, true), at(20));
        assert!(!switch.is_released());
    }

    #[test]
    fn a_module_that_was_not_there_at_the_release_resumes_when_it_comes() {
        for sight in [ModuleState::Absent, ModuleState::Unknown] {
            let switch = released(&sight);
            switch.module(&ModuleState::Absent, at(11));
            switch.module(&loaded(1, true), at(12));
            switch.module(&loaded(1, true), at(17));
            assert!(!switch.is_released(), "{sight:?}");
        }
        let switch = released(&ModuleState::Unknown);
        for second in 11..100 {
            switch.module(&loaded(1, true), at(second));
        }
        assert!(switch.is_released(), "first seen after the release: it is that of the release");
    }

    #[test]
    fn a_holder_is_named_with_its_call() {
        let mut holder = Holder { pid: 7, stuck: None };
        assert_eq!(holder.to_string(), "process 7");
        holder.stuck = Some(StuckIn { call: "nvmlX".into(), gpu: Some(3), seconds: 12.3 });
        assert_eq!(holder.to_string(), "process 7 is stuck in nvmlX on GPU 3 for 12 s");
    }
}
