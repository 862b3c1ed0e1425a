//! What people ask of the supervisor while the daemon runs: to release the driver, to take it up again,
//! to leave the profiling counters alone. Requests and the supervisor meet here without waiting.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use host::flock;
use model::clock::Mono;
use model::driver_module::{LoadId, ModuleState};
use model::sync::lock;
use sampler::wire::CanaryProcess;

/// Processes of the canary that samplers know: more than hang at a time, and run in a minute.
const MOST_CANARIES: usize = 32;
/// How long samplers know a process of the canary after its end: then its id may be another process's, also in a namespace
/// that this process does not see.
const KNOWN_FOR: Duration = Duration::from_secs(60);

/// The driver is released, or is to be.
#[derive(Clone, Debug, PartialEq)]
pub struct Released {
    /// Since when.
    pub since: Mono,
    /// The same in seconds since 1970.
    pub unix_seconds: f64,
    /// The load of the kernel module that the release is for, once it was seen.
    load: Option<LoadId>,
    /// Whether the module was seen gone since.
    gone: bool,
    /// Which load is back, and since when it is seen.
    back: Option<(LoadId, Mono)>,
}

impl Released {
    /// The module was looked at. Gives whether the driver may be taken up again: the module was gone, or is
    /// of another load, and has been there for `settle` (installers load it for a trial and unload it).
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

/// A process of ours that has the driver open.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Holder {
    /// Process id.
    pub pid: i32,
    /// The driver call in it that is past its deadline, if one is.
    pub stuck: Option<StuckIn>,
}

/// A driver call past its deadline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StuckIn {
    /// NVML function.
    pub call: String,
    /// NVML's index of the GPU; none for a call about no single GPU.
    pub gpu: Option<u32>,
    /// For how long, in seconds.
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

/// How far the driver is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Use {
    /// It is used, as far as it is there.
    InUse,
    /// It is to be released, and processes still hold it.
    Releasing,
    /// No process of ours holds it.
    Released,
}

/// The state of the driver's use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DriverStatus {
    /// Whether it is in use or released.
    pub driver: Use,
    /// Since when it is, or is to be, released, in seconds since 1970.
    pub released_unix_seconds: Option<f64>,
    /// For how long, in seconds.
    pub released_seconds: Option<f64>,
    /// Whether the kernel module is loaded; none if the host does not show it.
    pub module_loaded: Option<bool>,
    /// Processes of ours that have the driver open.
    pub holders: Vec<Holder>,
    /// Whether the profiling counters are read.
    pub gpm: bool,
}

/// What the supervisor is to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Requested {
    /// Since when the driver is to be released, if it is.
    pub released: Option<Released>,
    /// Whether the profiling counters are to be read.
    pub gpm: bool,
    /// The newest processes of the canary, also those that have just ended: the driver lists a process for a moment after
    /// its end.
    pub canaries: Vec<CanaryProcess>,
}

/// Where those who ask and the supervisor meet.
#[derive(Debug)]
pub struct Switch {
    state: Mutex<SwitchState>,
    /// How long a module must be back before the driver is taken up again.
    settle: Duration,
}

#[derive(Debug)]
struct SwitchState {
    requested: Requested,
    /// Whether the supervisor knows of the release, so that it starts nothing.
    acknowledged: bool,
    sight: ModuleState,
    holders: Vec<Holder>,
    /// The canary's.
    canaries: Vec<Holder>,
    /// When the canary's processes ended, of those that samplers still know.
    ended: HashMap<u32, Mono>,
    /// Whether a canary's process is being started.
    starting: bool,
}

impl Switch {
    /// A driver in use.
    pub fn new(gpm: bool, settle: Duration) -> Switch {
        let requested = Requested { released: None, gpm, canaries: Vec::new() };
        let state = SwitchState {
            requested,
            acknowledged: false,
            sight: ModuleState::Unknown,
            holders: Vec::new(),
            canaries: Vec::new(),
            ended: HashMap::new(),
            starting: false,
        };
        Switch { state: Mutex::new(state), settle }
    }

    /// Asks for the driver's release. Asked again, it changes nothing.
    pub fn release(&self, now: Mono, unix_seconds: f64) {
        let mut state = lock(&self.state);
        if state.requested.released.is_none() {
            let mut released = Released { since: now, unix_seconds, load: None, gone: false, back: None };
            released.sees(&state.sight, now, self.settle);
            state.requested.released = Some(released);
        }
    }

    /// Asks for the driver to be taken up again.
    pub fn resume(&self) {
        lock(&self.state).requested.released = None;
    }

    /// Asks for the profiling counters to be read, or left alone.
    pub fn gpm(&self, read: bool) {
        lock(&self.state).requested.gpm = read;
    }

    /// The kernel module was looked at. Ends a release whose module is back.
    pub(crate) fn module(&self, sight: &ModuleState, now: Mono) {
        let mut state = lock(&self.state);
        state.sight = sight.clone();
        let settle = self.settle;
        if state.requested.released.as_mut().is_some_and(|released| released.sees(sight, now, settle)) {
            tracing::info!("the kernel module is back: driver resumed");
            state.requested.released = None;
        }
    }

    /// Whether the driver is, or is to be, released.
    pub fn is_released(&self) -> bool {
        lock(&self.state).requested.released.is_some()
    }

    /// What the supervisor is to do. From now on the request counts as known.
    pub fn take_requests(&self, now: Mono) -> Requested {
        let mut state = lock(&self.state);
        let SwitchState { requested, ended, .. } = &mut *state;
        let known = |pid: &u32| ended.get(pid).is_none_or(|ended| now.since(*ended) < KNOWN_FOR);
        requested.canaries.retain(|canary| known(&canary.pid));
        ended.retain(|pid, _| requested.canaries.iter().any(|canary| canary.pid == *pid));
        state.acknowledged = state.requested.released.is_some();
        state.requested.clone()
    }

    /// Which of the canary's processes have the driver open: all of them.
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

    /// A process of the canary was started.
    pub(crate) fn canary_started(&self, pid: i32) {
        let (Some(started), Ok(pid)) = (flock::started(pid), u32::try_from(pid)) else { return };
        let mut state = lock(&self.state);
        // Another process may have had this id.
        state.ended.remove(&pid);
        let canaries = &mut state.requested.canaries;
        canaries.retain(|canary| canary.pid != pid);
        canaries.push(CanaryProcess { pid, started });
        if canaries.len() > MOST_CANARIES {
            canaries.remove(0);
        }
    }

    /// Whether a canary may be started. If so, it counts as holding the driver from now on, until
    /// [`Switch::held_by_canary`] reports it.
    pub(crate) fn begin_canary(&self) -> bool {
        let mut state = lock(&self.state);
        state.starting = state.requested.released.is_none();
        state.starting
    }

    /// Process ids of the canary's processes that have the driver open.
    pub(crate) fn canaries(&self) -> Vec<i32> {
        lock(&self.state).canaries.iter().map(|holder| holder.pid).collect()
    }

    /// Which samplers have the driver open: all of them.
    pub(crate) fn held_by(&self, holders: Vec<Holder>) {
        lock(&self.state).holders = holders;
    }

    /// The state of the driver's use.
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
