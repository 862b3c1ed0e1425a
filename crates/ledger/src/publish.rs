//! Creation of a snapshot from the parts of the ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::Ledger;
use super::builder::{Builder, Subjects};
use super::counters::OwnCounters;
use super::declared;
use super::intake::LedgerMoment;
use model::catalog::schema::KnownLabel;
use model::catalog::{self as m, CollectorName, Gpu, MetricId, MetricName, Node, Tier};
use model::clock::Mono;
use model::sample::Missing;
use model::snapshot::{CollectorView, DriverState, Event, GpuState, GpuView, PartView, Snapshot, Value};

/// State that lasts from one publication to the next.
#[derive(Default)]
pub(super) struct Publication {
    /// Whether every collector has answered or was found absent.
    pub(super) ready: bool,
    sequence: u64,
    seconds: f64,
    subjects: Subjects,
    /// Published events, and the time of their first publication.
    events: Option<(Arc<[Arc<Event>]>, f64)>,
}

impl Publication {
    /// Returns the time at which this event list was first published.
    fn first_published(&mut self, events: &Arc<[Arc<Event>]>, unix_seconds: f64) -> f64 {
        self.events.take_if(|(list, _)| !Arc::ptr_eq(list, events));
        self.events.get_or_insert_with(|| (Arc::clone(events), unix_seconds)).1
    }
}

impl Ledger {
    /// Creates the snapshot of this moment.
    ///
    /// The order of the stages matters:
    /// - Changes come first, so that the snapshot lists their events. Losses come before the event log is settled,
    ///   because a loss must be logged at once.
    /// - All parts publish their series before the verdicts, which read published values.
    /// - Counters are published after the stages that count. Series dropped by the cap are counted in the next
    ///   publication.
    /// - The history counts incidents by the verdicts, so it follows them.
    /// - The cap comes after the last series, and the trends follow only the remaining ones.
    pub fn publish(&mut self, now: Mono, unix_seconds: f64) -> Snapshot {
        self.publication.sequence += 1;
        let settings = Arc::clone(&self.settings);
        let driver = self.driver.state(now, settings.bridge);
        let states = self.states(now, &driver);
        self.record_changes(&driver, &states, now, unix_seconds);
        let subjects = std::mem::take(&mut self.publication.subjects);
        let mut builder = Builder::new(subjects, &settings.off);
        let b = &mut builder;
        let mut snapshot = self.publish_parts(b, driver, &states, now, unix_seconds);
        self.publish_exporter(b, &snapshot);
        self.publish_counters(b, now);
        snapshot.health = self.publish_health(b, &snapshot);
        self.follow_health(b, &snapshot);
        snapshot.ready = self.publication.ready || self.is_ready(&snapshot);
        self.publication.ready = snapshot.ready;
        (snapshot.families, self.publication.subjects) =
            builder.cap(settings.max_series, &settings.groups, &mut self.counters);
        snapshot.trends = self.trends.follow(&snapshot, now);
        self.publication.seconds = Mono::now().since(now).as_secs_f64();
        snapshot
    }

    /// Returns the state of every known GPU, ordered by index.
    fn states(&self, now: Mono, driver: &DriverState) -> Vec<(Gpu, GpuState)> {
        self.intake.gpus().map(|gpu| (gpu.clone(), self.state_of(gpu, now, driver))).collect()
    }

    /// Records the changes since the last publication: answers, losses and returns, resets, windows.
    fn record_changes(
        &mut self,
        driver: &DriverState,
        states: &[(Gpu, GpuState)],
        now: Mono,
        unix_seconds: f64,
    ) {
        let answering = states.iter().filter(|(_, state)| *state == GpuState::Up);
        self.inventory.answers(answering.map(|(gpu, _)| gpu), unix_seconds);
        let unlisted = self.unlisted(now, driver, states);
        for event in self.losses.follow(states, &unlisted, self.settings.steady, now, unix_seconds) {
            self.faults.note(event, now);
        }
        for reset in self.faults.settle(now, self.publication.ready) {
            self.gpu_reset(reset);
        }
        for event in self.windows.changes(unix_seconds) {
            self.faults.mention(event, now);
        }
    }

    /// Publishes the series of all parts that do not depend on the verdicts, and creates the snapshot.
    fn publish_parts(
        &mut self,
        b: &mut Builder<'_>,
        driver: DriverState,
        states: &[(Gpu, GpuState)],
        now: Mono,
        unix_seconds: f64,
    ) -> Snapshot {
        let node_up = driver == DriverState::Up && !self.driver.node_call_stuck();
        self.intake.publish(b, now, node_up, states);
        self.faults.publish(b, self.intake.gpus());
        let (intake, settings) = (&self.intake, &*self.settings);
        let moment = LedgerMoment { now, unix_seconds, settings, intake, states };
        let mut canary = self.canary.publish(b, &moment);
        canary.wrong = self.wrong_results.publish(b, intake.gpus());
        let topology = self.topology.publish(b, &moment, &self.accounting);
        let owners = self.owners.publish(b, &moment, &self.topology, &self.accounting);
        let events = self.faults.list();
        let mut snapshot = Snapshot {
            sequence: self.publication.sequence,
            taken: now,
            unix_seconds,
            gpus: self.publish_gpus(b, &moment),
            driver,
            events_unix_seconds: self.publication.first_published(&events, unix_seconds),
            canary,
            topology,
            owners,
            owner_records: self.owners.publish_records(&events, now),
            events,
            windows: self.windows.publish(b, unix_seconds),
            ..Snapshot::default()
        };
        snapshot.collectors = self.publish_collectors(b, &moment, &snapshot);
        snapshot
    }

    /// Publishes the series about the driver and the exporter.
    fn publish_exporter(&self, b: &mut Builder<'_>, snapshot: &Snapshot) {
        self.driver.publish(b, snapshot.taken, &snapshot.driver);
        self.accounting.publish_calls(b);
        b.add(&m::gpu_exporter_publications_total, &Node {}, (), self.publication.sequence as f64);
        b.add(&m::gpu_exporter_publish_duration_seconds, &Node {}, (), self.publication.seconds);
        self.reloads.publish(b);
        b.add(&m::gpu_devices_expected, &Node {}, (), self.inventory.devices() as f64);
        b.add(&m::gpu_exporter_build_info, &Node {}, self.build.clone(), 1.0);
    }

    fn publish_counters(&mut self, b: &mut Builder<'_>, now: Mono) {
        let all = [&self.counters, &self.faults.counters, &self.canary.counters];
        for ((metric, subject, labels), value) in all.into_iter().flat_map(OwnCounters::iter) {
            b.row(subject, *metric, labels.clone(), Value::Number(value));
            self.recent_xids.record(*metric, subject, labels, value, now);
        }
        self.recent_xids.publish(b, self.settings.xid_window, now);
    }

    /// Passes the verdicts on to the parts that count by them, and publishes the history of incidents.
    fn follow_health(&mut self, b: &mut Builder<'_>, snapshot: &Snapshot) {
        let unhealthy = snapshot.health.gpus.iter().filter(|gpu| gpu.healthy == Some(false));
        self.owners.unhealthy = unhealthy.map(|gpu| Arc::clone(&gpu.gpu.uuid)).collect();
        let absent: Vec<Gpu> = snapshot.health.absent.iter().map(|absent| absent.gpu.clone()).collect();
        let listed = self.listed(snapshot.taken, &snapshot.driver);
        if let Some(event) = self.history.follow(snapshot, listed, &absent, snapshot.taken) {
            self.faults.mention(event, snapshot.taken);
        }
        self.history.publish(b, self.intake.gpus().chain(&absent));
    }

    fn state_of(&self, gpu: &Gpu, now: Mono, driver: &DriverState) -> GpuState {
        if let Some(stall) = self.driver.stall_of(gpu) {
            return GpuState::Stuck { call: stall.call.clone(), age: now.since(stall.since) };
        }
        match driver {
            DriverState::Paused { .. } => GpuState::Paused,
            DriverState::Up => self.intake.state_of(gpu, now),
            _ => GpuState::NoDriver,
        }
    }

    /// Publishes the ledger's own series about each GPU, and returns its view.
    fn publish_gpus(&self, b: &mut Builder<'_>, moment: &LedgerMoment<'_>) -> Vec<GpuView> {
        let mut views = Vec::with_capacity(moment.states.len());
        let mut lacking: BTreeMap<MetricId, u32> = BTreeMap::new();
        for (gpu, state) in moment.states {
            let up = *state == GpuState::Up;
            // A released GPU is not down, because it is not read.
            if !matches!(state, GpuState::Waiting | GpuState::Paused) {
                b.flag(&m::gpu_up, gpu, (), up);
            }
            let processes = up.then(|| self.intake.processes_of(gpu, moment.now)).flatten();
            let mut view = GpuView {
                gpu: gpu.clone(),
                state: state.clone(),
                parts: Vec::new(),
                gaps: Vec::new(),
                processes: processes.unwrap_or_default(),
            };
            let mut unsupported = BTreeSet::new();
            for (part, stored) in self.intake.of_gpu(gpu) {
                view.gaps.extend(stored.gaps.iter().cloned());
                unsupported.extend(stored.unsupported());
                if stored.expired(moment.now) || !up {
                    continue;
                }
                let (age, duration) = (moment.now.since(stored.taken), Duration::from_nanos(stored.nanos));
                view.parts.push(PartView { tier: part.tier, age, duration, rows: stored.rows.len() });
                if !matches!(part.tier, Tier::Identity | Tier::Computed) {
                    let at = moment.unix(stored.taken);
                    b.add(&m::gpu_exporter_sample_timestamp_seconds, gpu, (part.tier,), at);
                }
            }
            self.accounting.publish_gpu(b, moment, gpu, up, &mut unsupported);
            if let Some(layout) = &self.settings.declared {
                declared::publish(b, layout, moment, gpu, up);
            }
            // The ledger's own metric, which is absent without a declared layout.
            unsupported.remove(&m::gpu_mig_layout_matches.id());
            // A metric that is switched off may still be read for another one, and a metric that is in no scrape cannot
            // be missing from it.
            unsupported.retain(|id| !b.is_off(*id) && m::def(*id).is_some_and(|def| !def.json_only));
            for metric in unsupported {
                *lacking.entry(metric).or_default() += 1;
            }
            views.push(view);
        }
        for (metric, gpus) in lacking {
            let Some(def) = m::def(metric) else { continue };
            let name = MetricName(def.name.into());
            b.add(&m::gpu_exporter_metric_unsupported, &Node {}, (name,), f64::from(gpus));
        }
        views
    }

    fn publish_collectors(
        &self,
        b: &mut Builder<'_>,
        moment: &LedgerMoment<'_>,
        snapshot: &Snapshot,
    ) -> Vec<CollectorView> {
        let mut views = Vec::new();
        for source in CollectorName::ALL.iter().copied() {
            let nvml = source == CollectorName::Nvml;
            // Neither up nor down, because it has nothing to do.
            let idle = if nvml && matches!(snapshot.driver, DriverState::Paused { .. }) {
                Some("paused: the driver is released".to_owned())
            } else {
                self.intake.switched_off(source).cloned()
            };
            if let Some(text) = idle {
                views.push(CollectorView { name: source.known(), up: true, age: None, text });
                continue;
            }
            let answered = self.intake.last_success.get(&source).copied();
            let text = match source {
                CollectorName::Nvml => self.nvml_trouble(snapshot),
                _ => self.intake.trouble(source, moment.now),
            };
            let up = answered.is_some() && text.is_none();
            // The state is unknown before the first answer or the reason for its absence.
            let failed = if nvml { snapshot.driver != DriverState::Waiting } else { text.is_some() };
            if answered.is_some() || failed {
                b.flag(&m::gpu_exporter_collector_up, &Node {}, (source,), up);
            }
            let last_success = &m::gpu_exporter_collector_last_success_timestamp_seconds;
            b.add_known(last_success, &Node {}, (source,), answered.map(|at| moment.unix(at)));
            let age = answered.map(|at| moment.now.since(at));
            views.push(CollectorView { name: source.known(), up, age, text: text.unwrap_or_default() });
        }
        views
    }

    /// Returns the problem of the NVML collector.
    fn nvml_trouble(&self, snapshot: &Snapshot) -> Option<String> {
        match &snapshot.driver {
            DriverState::Away { text } | DriverState::Mismatch { text } => {
                return Some(format!("the driver is away: {text}"));
            }
            DriverState::Stuck => return Some("the driver is stuck".into()),
            DriverState::Paused { .. } => return None,
            DriverState::Waiting => return Some("waiting for the driver's first answer".into()),
            DriverState::Up if !self.driver.has_sampler() => return Some("no sampler is running".into()),
            DriverState::Up => {}
        }
        for view in &snapshot.gpus {
            let index = view.gpu.gpu;
            match &view.state {
                GpuState::Up | GpuState::Waiting | GpuState::Paused => {}
                GpuState::Stuck { call, .. } => return Some(format!("GPU {index} is stuck in {call}")),
                GpuState::Unread => return Some(format!("GPU {index}: {}", view.state.text())),
                GpuState::Failing { text, .. } => return Some(format!("GPU {index}: {text}")),
                GpuState::NoDriver => return Some(format!("GPU {index}: no driver")),
            }
            let failed = view.gaps.iter().find(|gap| matches!(gap.missing, Missing::Failed { .. }));
            if let Some(gap) = failed {
                return Some(format!("GPU {index}: {} failed", gap.call));
            }
        }
        self.intake.node_failure()
    }

    /// Returns true once every collector has answered or is known to be absent. Does not depend on the health of a
    /// GPU.
    fn is_ready(&self, snapshot: &Snapshot) -> bool {
        let settled = |view: &GpuView| match view.state {
            GpuState::Waiting => false,
            GpuState::Up => [Tier::Once, Tier::Slow, Tier::Rare]
                .iter()
                .all(|tier| view.parts.iter().any(|part| part.tier == *tier)),
            // A stuck or failing GPU counts as an answer, because it will not improve.
            _ => true,
        };
        let gpus = &snapshot.gpus;
        let nvml = match snapshot.driver {
            DriverState::Waiting => false,
            DriverState::Up => {
                let listed = self.intake.awaited_gpus();
                listed.is_some_and(|count| gpus.len() >= count) && gpus.iter().all(settled)
            }
            _ => true,
        };
        nvml && CollectorName::ALL
            .iter()
            .all(|source| *source == CollectorName::Nvml || self.intake.is_settled(*source))
    }
}
