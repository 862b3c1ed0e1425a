//! History that outlasts restarts and reboots: how often each GPU became unhealthy, and the most GPUs ever listed.
//!
//! Only GPUs that became unhealthy have a record. A record changes when an incident begins or ends, so there are few
//! writes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::builder::Builder;
use model::catalog::{self as m, FaultAction, Gpu, Node, Severity, WindowKind};
use model::clock::Mono;
use model::health::{Condition, GpuHealth};
use model::persisted::{GpuHistory, NodeHistory};
use model::snapshot::{DriverState, Event, EventKind, GpuState, Snapshot};
use model::window::Window;

/// Maximum number of GPUs kept, far more than a node ever has. The GPU with the oldest last incident is dropped
/// first.
const MAX_GPUS: usize = 256;
/// Time for which a GPU that does not answer or is not listed is not yet an incident: the reset of a peer blocks NVML
/// for 45 s, and a delayed host reads nothing. For the same time after planned work, a lost GPU is not an incident
/// either, because its reset may not be over.
const SILENT: Duration = Duration::from_secs(60);

/// Verdict on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GpuVerdict {
    Unknown,
    Healthy,
    /// Unhealthy only because it does not answer or is not listed, without an error.
    Silent,
    /// Unhealthy only because calls fail, as during a reset.
    Lost,
    Unhealthy,
}

impl GpuVerdict {
    fn from_health(health: &GpuHealth, state: &GpuState) -> GpuVerdict {
        let silent = matches!(state, GpuState::Stuck { .. } | GpuState::Unread);
        let known = |condition: Condition| {
            condition.unhealthy().is_some()
                && !matches!(
                    condition,
                    Condition::Stuck | Condition::Lost | Condition::Failing | Condition::Missing
                )
        };
        match health.healthy {
            None => GpuVerdict::Unknown,
            Some(true) => GpuVerdict::Healthy,
            Some(false) if health.reasons.iter().any(|reason| known(reason.condition)) => {
                GpuVerdict::Unhealthy
            }
            Some(false) if silent => GpuVerdict::Silent,
            Some(false) => GpuVerdict::Lost,
        }
    }
}

#[derive(Default)]
pub(crate) struct HistoryState {
    kept: NodeHistory,
    changed: bool,
    /// Whether the history of earlier daemons exists but is not read yet. Until then, nothing is published or saved.
    unread: bool,
    /// Number of GPUs according to the operator; 0: not configured.
    configured: usize,
    /// Time for which a GPU must be healthy before its incident is over. A GPU that fails sooner had not recovered.
    steady: Duration,
    /// GPUs with an incident that are healthy again, and since when.
    recovered: BTreeMap<Arc<str>, Mono>,
    /// GPUs that do not answer, and since when.
    silent: BTreeMap<Arc<str>, Mono>,
    /// Newest publication in a maintenance window or while the driver was released.
    planned: Option<Mono>,
}

impl HistoryState {
    /// Restores the history of earlier daemons.
    pub fn new(mut kept: NodeHistory, configured: usize, steady: Duration) -> HistoryState {
        kept.gpus.truncate(MAX_GPUS);
        HistoryState { kept, configured, steady, ..HistoryState::default() }
    }

    /// Applies a new configuration.
    pub fn configure(&mut self, configured: usize, steady: Duration) {
        (self.configured, self.steady) = (configured, steady);
    }

    /// Marks the history of earlier daemons as not read yet.
    pub fn unread(&mut self) {
        self.unread = true;
    }

    /// Merges the history of earlier daemons with what was seen since the start. The greater number counts.
    pub fn join(&mut self, earlier: NodeHistory) {
        let own = std::mem::replace(&mut self.kept, earlier);
        self.kept.gpus.truncate(MAX_GPUS);
        self.kept.devices_highest = self.kept.devices_highest.max(own.devices_highest);
        for gpu in own.gpus {
            if let Some(known) = self.kept.gpus.iter_mut().find(|known| known.uuid == gpu.uuid) {
                known.unhealthy_total = known.unhealthy_total.max(gpu.unhealthy_total);
                known.unhealthy = gpu.unhealthy;
            } else if self.kept.gpus.len() < MAX_GPUS {
                self.kept.gpus.push(gpu);
            }
        }
        (self.unread, self.changed) = (false, true);
    }

    /// Applies a publication, and returns the event of a declared removal. `listed`: number of GPUs that the driver
    /// lists, if known; `absent`: GPUs that it no longer lists.
    pub fn follow(
        &mut self,
        snapshot: &Snapshot,
        listed: Option<usize>,
        absent: &[Gpu],
        now: Mono,
    ) -> Option<Event> {
        let kind = WindowKind::Maintenance;
        let open = |window: &&Window| window.kind == kind && window.is_open(snapshot.unix_seconds);
        let open: Vec<&Window> = snapshot.windows.iter().filter(open).collect();
        let lowered = listed.and_then(|listed| {
            let declared = open.iter().copied().filter(|window| window.expected_gpus.is_some());
            self.count(listed, declared.min_by_key(|window| window.expected_gpus))
        });
        if !open.is_empty() || matches!(snapshot.driver, DriverState::Paused { .. }) {
            self.planned = Some(now);
        }
        let planned = self.planned.is_some_and(|last| now.since(last) < SILENT);
        let known = snapshot.health.gpus.iter().zip(&snapshot.gpus);
        let known =
            known.map(|(health, view)| (&health.gpu.uuid, GpuVerdict::from_health(health, &view.state)));
        let absent = absent.iter().map(|gpu| (&gpu.uuid, GpuVerdict::Silent));
        let verdicts: BTreeMap<&Arc<str>, GpuVerdict> = known.chain(absent).collect();
        self.silent.retain(|uuid, _| verdicts.contains_key(uuid));
        for (uuid, verdict) in verdicts {
            // The state of the GPU shows when the work is over.
            let resets = planned && matches!(verdict, GpuVerdict::Silent | GpuVerdict::Lost);
            self.judge(uuid, if resets { GpuVerdict::Unknown } else { verdict }, now);
        }
        lowered.map(|text| {
            let meaning = "The expected number of GPUs was lowered as declared.";
            let (kind, at) = (EventKind::DevicesDeclared, snapshot.unix_seconds);
            Event { meaning, text, ..Event::new(kind, at, Severity::Info, FaultAction::Ignore) }
        })
    }

    /// Records how many GPUs the driver lists. Returns by how much and by which declaration the maximum was lowered.
    /// Only a declared number lowers the maximum: a window without one may be that of a reboot from which a GPU does
    /// not return.
    fn count(&mut self, listed: usize, declared: Option<&Window>) -> Option<String> {
        let before = self.kept.devices_highest;
        let (mut highest, mut by) = (before.max(listed), String::new());
        if let Some(window) = declared
            && let Some(most) = window.expected_gpus.map(|expected| listed.max(expected as usize))
            && most < highest
        {
            (highest, by) = (most, format!("window {}", window.name));
        }
        if self.configured > 0 && self.configured < highest {
            (highest, by) = (self.configured, "health.expected_gpus".to_owned());
        }
        self.kept.devices_highest = highest;
        self.changed |= highest != before;
        (highest < before).then(|| format!("{before} to {highest} by {by}"))
    }

    fn judge(&mut self, uuid: &Arc<str>, verdict: GpuVerdict, now: Mono) {
        if uuid.is_empty() {
            return;
        }
        if verdict != GpuVerdict::Healthy {
            self.recovered.remove(uuid);
        }
        if verdict != GpuVerdict::Silent {
            self.silent.remove(uuid);
        }
        match verdict {
            GpuVerdict::Unknown => {}
            GpuVerdict::Healthy => self.healthy(uuid, now),
            GpuVerdict::Lost | GpuVerdict::Unhealthy => self.unhealthy(uuid),
            GpuVerdict::Silent => {
                let since = *self.silent.entry(Arc::clone(uuid)).or_insert(now);
                if now.since(since) >= SILENT {
                    self.unhealthy(uuid);
                }
            }
        }
    }

    fn healthy(&mut self, uuid: &Arc<str>, now: Mono) {
        let known = self.kept.gpus.iter_mut().find(|known| *known.uuid == **uuid);
        let Some(known) = known.filter(|known| known.unhealthy) else { return };
        let since = *self.recovered.entry(Arc::clone(uuid)).or_insert(now);
        if now.since(since) >= self.steady {
            known.unhealthy = false;
            self.recovered.remove(uuid);
            self.changed = true;
        }
    }

    fn unhealthy(&mut self, uuid: &str) {
        let at = self.kept.gpus.iter().position(|known| *known.uuid == *uuid);
        let before = match at {
            Some(at) if self.kept.gpus[at].unhealthy => return,
            Some(at) => self.kept.gpus.remove(at).unhealthy_total,
            None => 0,
        };
        if self.kept.gpus.len() >= MAX_GPUS {
            self.kept.gpus.remove(0);
        }
        let unhealthy_total = before.saturating_add(1);
        self.kept.gpus.push(GpuHistory { uuid: uuid.to_owned(), unhealthy_total, unhealthy: true });
        self.changed = true;
    }

    /// Publishes the history of the node and of these GPUs.
    pub fn publish<'a>(&self, b: &mut Builder<'_>, gpus: impl Iterator<Item = &'a Gpu>) {
        if self.unread {
            return;
        }
        if self.kept.devices_highest > 0 {
            b.add(&m::gpu_devices_highest, &Node {}, (), self.kept.devices_highest as f64);
        }
        for gpu in gpus.filter(|gpu| !gpu.uuid.is_empty()) {
            let known = self.kept.gpus.iter().find(|known| *known.uuid == *gpu.uuid);
            let total = known.map_or(0, |known| known.unhealthy_total);
            b.add(&m::gpu_unhealthy_incidents, gpu, (), total as f64);
        }
    }

    /// Returns the history, if it changed since the last call.
    pub fn take_changed(&mut self) -> Option<NodeHistory> {
        let changed = !self.unread && std::mem::take(&mut self.changed);
        changed.then(|| self.kept.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::catalog::DriverError;
    use model::catalog::schema::Entity;
    use model::health::{HealthLevel, HealthReason};

    fn at(seconds: u64) -> Mono {
        Mono(seconds * 1_000_000_000)
    }

    fn state(kept: NodeHistory) -> HistoryState {
        HistoryState::new(kept, 0, Duration::from_secs(10))
    }

    fn total(state: &HistoryState, uuid: &str) -> u64 {
        let known = state.kept.gpus.iter().find(|known| known.uuid == uuid);
        known.map_or(0, |known| known.unhealthy_total)
    }

    /// A publication within these windows.
    fn published(unix_seconds: f64, windows: &[Window]) -> Snapshot {
        Snapshot { unix_seconds, windows: windows.into(), ..Snapshot::default() }
    }

    /// A window that forgets all but so many GPUs, if it says so.
    fn window(start: f64, end: f64, expected_gpus: Option<u32>) -> Window {
        let (name, kind, reason) = ("board".into(), WindowKind::Maintenance, String::new());
        Window { name, kind, reason, start, end, cut: false, expected_gpus }
    }

    #[test]
    fn a_gpu_that_does_not_come_back_from_a_planned_reboot_stays_missing() {
        let mut first = state(NodeHistory::default());
        first.follow(&published(50.0, &[]), Some(8), &[], at(50));
        // The runbook of a missing GPU has a window around the reboot.
        let reboot = [window(100.0, 200.0, None)];
        first.follow(&published(110.0, &reboot), Some(8), &[], at(110));
        let mut second = state(first.take_changed().unwrap());
        for seconds in [150_u32, 210] {
            second.follow(&published(f64::from(seconds), &reboot), Some(7), &[], at(u64::from(seconds)));
        }
        assert_eq!((second.kept.devices_highest, second.take_changed()), (8, None));
    }

    #[test]
    fn the_most_gpus_fall_only_to_a_declared_number() {
        let mut state = state(NodeHistory::default());
        let other = Window { name: "other".into(), ..window(100.0, 200.0, None) };
        let windows = [other, window(100.0, 200.0, Some(7))];
        let mut follow = |seconds: u32, listed| {
            let snapshot = published(f64::from(seconds), &windows);
            let event = state.follow(&snapshot, Some(listed), &[], at(u64::from(seconds)));
            let text = event.map(|event| event.text).unwrap_or_default();
            (state.kept.devices_highest, text)
        };
        assert_eq!(follow(90, 8), (8, String::new()));
        assert_eq!(follow(95, 7), (8, String::new()), "not yet");
        assert_eq!(follow(110, 8), (8, String::new()), "the board is still there");
        assert_eq!(follow(120, 6), (7, "8 to 7 by window board".into()), "another one does not answer");
        assert_eq!(follow(130, 7), (7, String::new()));
        assert_eq!(follow(140, 8), (8, String::new()), "the board is back");
        assert_eq!(follow(210, 6), (8, String::new()), "the window is over");
        let mut declared = HistoryState::new(state.kept.clone(), 4, Duration::ZERO);
        let event = declared.follow(&published(300.0, &[]), Some(8), &[], at(300)).unwrap();
        assert_eq!((declared.kept.devices_highest, &*event.text), (4, "8 to 4 by health.expected_gpus"));
        assert!(declared.follow(&published(301.0, &[]), Some(3), &[], at(301)).is_none());
        assert_eq!(declared.kept.devices_highest, 4);
    }

    /// The published numbers of this GPU and of the node.
    fn shown(state: &HistoryState) -> [Option<f64>; 2] {
        let gpu = Gpu { gpu: 3, uuid: "GPU-3".into() };
        let off = std::collections::HashSet::new();
        let mut b = Builder::new(Default::default(), &off);
        state.publish(&mut b, std::iter::once(&gpu));
        let number = |metric, subject: &m::Subject| b.number(metric, subject, &[]);
        let node = Node {}.subject();
        [number(m::gpu_unhealthy_incidents.id(), &gpu.subject()), number(m::gpu_devices_highest.id(), &node)]
    }

    #[test]
    fn what_is_not_read_is_not_published_and_joined_by_the_greater_numbers_when_it_is() {
        let of = |uuid: &str, unhealthy_total, unhealthy| GpuHistory {
            uuid: uuid.to_owned(),
            unhealthy_total,
            unhealthy,
        };
        let mut state = state(NodeHistory::default());
        state.unread();
        state.follow(&published(50.0, &[]), Some(7), &[], at(50));
        state.judge(&"GPU-3".into(), GpuVerdict::Unhealthy, at(50));
        state.judge(&"GPU-4".into(), GpuVerdict::Unhealthy, at(50));
        assert_eq!(shown(&state), [None, None], "7 of 8, and a GPU that failed five times");
        assert_eq!(state.take_changed(), None, "nothing takes the place of what is not read");
        let gpus = vec![of("GPU-3", 5, false), of("GPU-5", 2, true)];
        state.join(NodeHistory { machine_id: String::new(), devices_highest: 8, gpus });
        assert_eq!(shown(&state), [Some(5.0), Some(8.0)]);
        let kept = state.take_changed().unwrap();
        let mut gpus = kept.gpus;
        gpus.sort_by(|a, b| a.uuid.cmp(&b.uuid));
        assert_eq!(gpus, [of("GPU-3", 5, true), of("GPU-4", 1, true), of("GPU-5", 2, true)]);
        state.judge(&"GPU-3".into(), GpuVerdict::Unhealthy, at(60));
        assert_eq!(total(&state, "GPU-3"), 5, "the same incident");
    }

    #[test]
    fn only_a_gpu_without_any_other_fault_is_merely_silent() {
        let verdict = |state: GpuState, conditions: &[Condition], healthy| {
            let reason = |condition: &Condition| HealthReason {
                condition: *condition,
                level: condition.level(),
                text: String::new(),
                action: condition.action(),
            };
            let health = GpuHealth {
                gpu: Gpu { gpu: 3, uuid: "GPU-3".into() },
                level: HealthLevel::Ok,
                word: "",
                healthy,
                reasons: conditions.iter().map(reason).collect(),
            };
            GpuVerdict::from_health(&health, &state)
        };
        let stuck = || GpuState::Stuck { call: "nvmlX".into(), age: SILENT };
        let failing = |error| GpuState::Failing { error, text: String::new() };
        use Condition::{FatalXid, Lost, Missing, RecentFault, Stuck};
        assert_eq!(verdict(stuck(), &[Stuck, RecentFault], Some(false)), GpuVerdict::Silent);
        assert_eq!(verdict(stuck(), &[Stuck, FatalXid], Some(false)), GpuVerdict::Unhealthy);
        assert_eq!(verdict(GpuState::Unread, &[Lost, Missing], Some(false)), GpuVerdict::Silent);
        assert_eq!(verdict(failing(DriverError::GpuIsLost), &[Lost, Missing], Some(false)), GpuVerdict::Lost);
        assert_eq!(verdict(GpuState::Up, &[FatalXid], Some(false)), GpuVerdict::Unhealthy);
        assert_eq!(verdict(GpuState::Up, &[RecentFault], Some(true)), GpuVerdict::Healthy);
        assert_eq!(verdict(GpuState::NoDriver, &[], None), GpuVerdict::Unknown);
    }

    #[test]
    fn an_incident_counts_once_until_the_gpu_was_healthy_for_a_while() {
        let (uuid, mut state): (Arc<str>, _) = ("GPU-3".into(), state(NodeHistory::default()));
        let steps = [
            (1, GpuVerdict::Healthy, 0),
            (2, GpuVerdict::Unhealthy, 1),
            (3, GpuVerdict::Unhealthy, 1),
            (4, GpuVerdict::Healthy, 1),
            (13, GpuVerdict::Unhealthy, 1),
            (14, GpuVerdict::Healthy, 1),
            // How the GPU was meanwhile is not known.
            (20, GpuVerdict::Unknown, 1),
            (25, GpuVerdict::Healthy, 1),
            (34, GpuVerdict::Unhealthy, 1),
            (35, GpuVerdict::Healthy, 1),
            (45, GpuVerdict::Healthy, 1),
            (46, GpuVerdict::Unhealthy, 2),
        ];
        for (second, verdict, expected) in steps {
            state.judge(&uuid, verdict, at(second));
            assert_eq!(total(&state, "GPU-3"), expected, "second {second}");
        }
        state.judge(&"".into(), GpuVerdict::Unhealthy, at(50));
        assert_eq!(state.kept.gpus.len(), 1, "a GPU without a UUID cannot be recognized");
    }

    #[test]
    fn a_gpu_that_does_not_answer_is_an_incident_after_a_minute() {
        let (uuid, mut state): (Arc<str>, _) = ("GPU-3".into(), state(NodeHistory::default()));
        for (second, verdict, expected) in [
            (0, GpuVerdict::Silent, 0),
            (59, GpuVerdict::Silent, 0),
            (60, GpuVerdict::Healthy, 0),
            (61, GpuVerdict::Silent, 0),
            (120, GpuVerdict::Silent, 0),
            (121, GpuVerdict::Silent, 1),
            (300, GpuVerdict::Silent, 1),
            (301, GpuVerdict::Healthy, 1),
            (311, GpuVerdict::Healthy, 1),
            (312, GpuVerdict::Silent, 1),
            (313, GpuVerdict::Unhealthy, 2),
        ] {
            state.judge(&uuid, verdict, at(second));
            assert_eq!(total(&state, "GPU-3"), expected, "second {second}");
        }
    }

    #[test]
    fn an_incident_goes_on_over_a_restart_and_its_end_counts_then() {
        let uuid: Arc<str> = "GPU-3".into();
        let mut first = state(NodeHistory::default());
        first.judge(&uuid, GpuVerdict::Healthy, at(1));
        assert_eq!(first.take_changed(), None, "a healthy GPU needs no record");
        first.judge(&uuid, GpuVerdict::Unhealthy, at(2));
        let kept = first.take_changed().unwrap();
        assert_eq!(first.take_changed(), None);
        let mut second = state(kept);
        second.judge(&uuid, GpuVerdict::Unknown, at(100));
        second.judge(&uuid, GpuVerdict::Unhealthy, at(101));
        assert_eq!((total(&second, "GPU-3"), second.take_changed()), (1, None), "the same incident");
        second.judge(&uuid, GpuVerdict::Healthy, at(200));
        second.judge(&uuid, GpuVerdict::Healthy, at(210));
        let mut third = state(second.take_changed().unwrap());
        third.judge(&uuid, GpuVerdict::Unhealthy, at(300));
        assert_eq!(total(&third, "GPU-3"), 2);
    }

    #[test]
    fn the_history_is_bounded_and_the_oldest_incident_gives_way() {
        let mut state = state(NodeHistory::default());
        let first: Arc<str> = "GPU-0".into();
        for n in 0..MAX_GPUS {
            state.judge(&format!("GPU-{n}").as_str().into(), GpuVerdict::Unhealthy, at(1));
        }
        for second in [2, 12] {
            state.judge(&first, GpuVerdict::Healthy, at(second));
        }
        state.judge(&first, GpuVerdict::Unhealthy, at(13));
        state.judge(&"GPU-new".into(), GpuVerdict::Unhealthy, at(14));
        assert_eq!(state.kept.gpus.len(), MAX_GPUS);
        assert_eq!([total(&state, "GPU-0"), total(&state, "GPU-1"), total(&state, "GPU-new")], [2, 0, 1]);
        let bytes = serde_json::to_vec(&state.kept).unwrap().len();
        assert!(bytes < 32 * 1024, "{bytes}: fits in its file with UUIDs of full length");
    }
}
