//! Making a snapshot of what the ledger holds: joins, ages, states, and the cap on series.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::Ledger;
use super::counters::OwnCounters;
use super::declared;
use super::intake::Intake;
use model::catalog::schema::{Entity, LabelSet, LabelText, Metric};
use model::catalog::{
    self as m, EntityKind, Gpu, METRICS, MetricId, MetricName, Node, Subject, Tier, TierLabel,
};
use model::clock::Mono;
use model::sample::{Missing, Row, Source};
use model::snapshot::{
    CollectorView, DriverState, Family, GpuState, GpuView, Histogram, PartView, Series, Snapshot,
    SubjectText, Value,
};

/// Subjects with their label texts, made once and shared by all snapshots.
#[derive(Debug, Default)]
struct Subjects(HashMap<Subject, Arc<SubjectText>>);

impl Subjects {
    fn text(&mut self, subject: &Subject) -> Arc<SubjectText> {
        if let Some(known) = self.0.get(subject) {
            return Arc::clone(known);
        }
        let text = Arc::new(SubjectText { subject: subject.clone(), values: subject.label_values() });
        self.0.insert(subject.clone(), Arc::clone(&text));
        text
    }

    /// Drops what no series uses any more, so that coming and going MIG instances leave nothing behind.
    fn forget_unused(&mut self) {
        self.0.retain(|_, text| Arc::strong_count(text) > 1);
    }
}

/// Collects series by metric.
pub(super) struct Builder<'a> {
    subjects: Subjects,
    off: &'a HashSet<MetricId>,
    families: Vec<Vec<Series>>,
}

impl Builder<'_> {
    pub(super) fn put<E: Entity, L: LabelSet>(
        &mut self,
        metric: &Metric<E, L>,
        entity: &E,
        labels: L,
        value: f64,
    ) {
        self.row(&entity.subject(), metric.id(), labels.texts(), Value::Number(value));
    }

    pub(super) fn flag<E: Entity, L: LabelSet>(
        &mut self,
        metric: &Metric<E, L>,
        entity: &E,
        labels: L,
        set: bool,
    ) {
        self.put(metric, entity, labels, f64::from(u8::from(set)));
    }

    pub(super) fn histogram(
        &mut self,
        entity: &impl Entity,
        metric: MetricId,
        labels: Vec<LabelText>,
        histogram: &Histogram,
    ) {
        self.row(&entity.subject(), metric, labels, Value::Histogram(Arc::new(histogram.clone())));
    }

    pub(super) fn row(&mut self, subject: &Subject, metric: MetricId, labels: Vec<LabelText>, value: Value) {
        if self.off.contains(&metric) {
            return;
        }
        let subject = self.subjects.text(subject);
        if let Some(family) = self.families.get_mut(usize::from(metric.0)) {
            family.push(Series { subject, labels, value });
        }
    }

    pub(super) fn rows(&mut self, subject: &Subject, rows: &[Row]) {
        for row in rows {
            self.row(subject, row.metric, row.labels.clone(), Value::Number(row.value));
        }
    }
}

/// What every part needs to know of the publication under way.
pub(super) struct Moment<'a> {
    pub now: Mono,
    pub unix_seconds: f64,
    pub intake: &'a Intake,
    /// Every known GPU by index.
    pub states: &'a [(Gpu, GpuState)],
}

impl Moment<'_> {
    /// A moment in seconds since 1970.
    pub fn unix(&self, at: Mono) -> f64 {
        self.unix_seconds - self.now.since(at).as_secs_f64()
    }

    /// Every known GPU, and whether it answers.
    pub fn gpus(&self) -> impl Iterator<Item = (&Gpu, bool)> {
        self.states.iter().map(|(gpu, state)| (gpu, *state == GpuState::Up))
    }
}

/// What lasts from one publication to the next.
#[derive(Debug, Default)]
pub(super) struct Publication {
    ready: bool,
    sequence: u64,
    seconds: f64,
    subjects: Subjects,
}

impl Publication {
    /// Whether every collector has answered or was found absent.
    pub(super) fn is_ready(&self) -> bool {
        self.ready
    }

    fn put(&self, b: &mut Builder<'_>) {
        b.put(&m::gpu_exporter_publications_total, &Node {}, (), self.sequence as f64);
        b.put(&m::gpu_exporter_publish_duration_seconds, &Node {}, (), self.seconds);
    }
}

impl Ledger {
    /// Makes the snapshot of this moment.
    pub fn publish(&mut self, now: Mono, unix_seconds: f64) -> Snapshot {
        self.publication.sequence += 1;
        self.faults.settle(&mut self.counters, now, self.publication.ready);
        let mut builder = Builder {
            subjects: std::mem::take(&mut self.publication.subjects),
            off: &self.settings.off,
            families: METRICS.iter().map(|_| Vec::new()).collect(),
        };
        let b = &mut builder;
        let driver = self.driver.state(now);
        let state = |gpu: &Gpu| (gpu.clone(), self.state_of(gpu, now, &driver));
        let states: Vec<(Gpu, GpuState)> = self.intake.gpus().map(state).collect();
        self.intake.put(b, now, &driver, self.driver.node_call_stuck(), &states);
        self.put_health(b, now, &driver, &states);
        self.faults.put(b, self.intake.gpus());
        let moment = Moment { now, unix_seconds, intake: &self.intake, states: &states };
        let canary = self.canary.put(b, &moment);
        let topology = self.topology.put(b, &moment, &self.accounting);
        let owners = self.owners.put(b, &moment, &self.topology, &self.accounting);
        for event in self.windows.changes(unix_seconds) {
            self.faults.mention(event, now);
        }
        let windows = self.windows.put(b, unix_seconds);
        let gpus = self.put_gpus(b, &moment);
        let collectors = self.put_collectors(b, &moment, &driver, &gpus);
        self.driver.put(b, now, &driver);
        self.accounting.put_calls(b);
        self.publication.put(b);
        b.put(&m::gpu_devices_expected, &Node {}, (), self.inventory.devices() as f64);
        b.put(&m::gpu_exporter_build_info, &Node {}, self.settings.build.clone(), 1.0);
        for ((metric, subject, labels), value) in self.counters.iter() {
            b.row(subject, *metric, labels.clone(), Value::Number(value));
        }
        self.publication.ready |= self.is_ready(&driver, &gpus);
        let (families, subjects) = cap(builder, self.settings.max_series, &mut self.counters);
        self.publication.subjects = subjects;
        self.publication.seconds = Mono::now().since(now).as_secs_f64();
        Snapshot {
            sequence: self.publication.sequence,
            taken: now,
            unix_seconds,
            families,
            driver,
            gpus,
            collectors,
            ready: self.publication.ready,
            events: self.faults.list(),
            canary,
            topology,
            owners,
            windows,
        }
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

    /// What the ledger itself knows of each GPU.
    fn put_gpus(&self, b: &mut Builder<'_>, moment: &Moment<'_>) -> Vec<GpuView> {
        let mut views = Vec::with_capacity(moment.states.len());
        let mut lacking: BTreeMap<MetricId, u32> = BTreeMap::new();
        for (gpu, state) in moment.states {
            let up = *state == GpuState::Up;
            // A released GPU is not down: nothing asks it.
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
                unsupported.extend(stored.unsupported.iter().copied());
                if stored.expired(moment.now) || !up {
                    continue;
                }
                let (age, duration) = (moment.now.since(stored.taken), Duration::from_nanos(stored.nanos));
                view.parts.push(PartView { tier: part.tier, age, duration, rows: stored.rows.len() });
                if let Some(tier) = TierLabel::of(part.tier).filter(|_| part.tier != Tier::Identity) {
                    let at = moment.unix(stored.taken);
                    b.put(&m::gpu_exporter_sample_timestamp_seconds, gpu, (tier,), at);
                }
            }
            self.accounting.put_gpu(b, moment, gpu, up, &mut unsupported);
            if let Some(layout) = &self.settings.declared {
                declared::put(b, layout, moment, gpu, up);
            }
            // It is the ledger's own: absent without a declared layout.
            unsupported.remove(&m::gpu_mig_layout_matches.id());
            // What is switched off may have been read for another metric.
            unsupported.retain(|id| !b.off.contains(id));
            for metric in unsupported {
                *lacking.entry(metric).or_default() += 1;
            }
            views.push(view);
        }
        for (metric, gpus) in lacking {
            let Some(def) = m::def(metric) else { continue };
            let name = MetricName(def.name.into());
            b.put(&m::gpu_exporter_metric_unsupported, &Node {}, (name,), f64::from(gpus));
        }
        views
    }

    fn put_collectors(
        &self,
        b: &mut Builder<'_>,
        moment: &Moment<'_>,
        driver: &DriverState,
        gpus: &[GpuView],
    ) -> Vec<CollectorView> {
        let mut views = Vec::new();
        for source in Source::ALL {
            let nvml = source == Source::Nvml;
            // Neither up nor down: it has nothing to do.
            let idle = if nvml && matches!(driver, DriverState::Paused { .. }) {
                Some("paused: the driver is released".to_owned())
            } else {
                self.intake.switched_off(source).cloned()
            };
            if let Some(text) = idle {
                views.push(CollectorView { name: source.name(), up: true, age: None, text });
                continue;
            }
            let answered = self.intake.last_success(source);
            let text = match source {
                Source::Nvml => self.nvml_trouble(driver, gpus),
                _ => self.intake.trouble(source, moment.now),
            };
            let up = answered.is_some() && text.is_none();
            // Before the first answer there is nothing to say.
            if answered.is_some() || (nvml && *driver != DriverState::Waiting) {
                b.flag(&m::gpu_exporter_collector_up, &Node {}, (source.label(),), up);
            }
            if let Some(at) = answered {
                let metric = &m::gpu_exporter_collector_last_success_timestamp_seconds;
                b.put(metric, &Node {}, (source.label(),), moment.unix(at));
            }
            let age = answered.map(|at| moment.now.since(at));
            views.push(CollectorView { name: source.name(), up, age, text: text.unwrap_or_default() });
        }
        views
    }

    /// What is wrong with the NVML collector.
    fn nvml_trouble(&self, driver: &DriverState, gpus: &[GpuView]) -> Option<String> {
        match driver {
            DriverState::Away { text } | DriverState::Mismatch { text } => {
                return Some(format!("the driver is away: {text}"));
            }
            DriverState::Stuck => return Some("the driver is stuck".into()),
            DriverState::Paused { .. } => return None,
            DriverState::Waiting => return Some("waiting for the driver's first answer".into()),
            DriverState::Up if !self.driver.has_sampler() => return Some("no sampler runs".into()),
            DriverState::Up => {}
        }
        for view in gpus {
            let index = view.gpu.gpu;
            match &view.state {
                GpuState::Up | GpuState::Waiting | GpuState::Paused => {}
                GpuState::Stuck { call, .. } => return Some(format!("GPU {index} is stuck in {call}")),
                GpuState::Failing { text } => return Some(format!("GPU {index}: {text}")),
                GpuState::NoDriver => return Some(format!("GPU {index}: no driver")),
            }
            let failed = view.gaps.iter().find(|gap| matches!(gap.missing, Missing::Failed { .. }));
            if let Some(gap) = failed {
                return Some(format!("GPU {index}: {} failed", gap.call));
            }
        }
        self.intake.node_failure()
    }

    /// Ready once every collector has answered or been found absent; never dependent on a GPU's health.
    fn is_ready(&self, driver: &DriverState, gpus: &[GpuView]) -> bool {
        let settled = |view: &GpuView| match view.state {
            GpuState::Waiting => false,
            GpuState::Up => [Tier::Once, Tier::Slow, Tier::Rare]
                .iter()
                .all(|tier| view.parts.iter().any(|part| part.tier == *tier)),
            // A GPU that is stuck or failing has answered: it will not answer better.
            _ => true,
        };
        let nvml = match driver {
            DriverState::Waiting => false,
            DriverState::Up => {
                let listed = self.intake.listed_gpus(None);
                listed.is_some_and(|count| gpus.len() >= count) && gpus.iter().all(settled)
            }
            _ => true,
        };
        nvml && Source::ALL.iter().all(|source| *source == Source::Nvml || self.intake.is_settled(*source))
    }
}

/// Leaves out series above the cap, the last of the catalogue first, and counts them. Series about the
/// node itself are few and describe the others: they always stay.
fn cap(mut b: Builder<'_>, max_series: usize, counters: &mut OwnCounters) -> (Vec<Family>, Subjects) {
    let mut room = max_series;
    let mut dropped = 0;
    let mut families: Vec<Family> = Vec::new();
    for (def, mut series) in METRICS.iter().zip(b.families) {
        if def.entity != EntityKind::Node && !def.json_only {
            // A histogram is many series on the page, and is left out as a whole.
            series.retain(|one| {
                let size = one.value.series();
                let fits = size <= room;
                room -= if fits { size } else { room };
                dropped += if fits { 0 } else { size };
                fits
            });
        }
        if !series.is_empty() {
            families.push(Family { def, series });
        }
    }
    counters.add(&m::gpu_exporter_series_dropped_total, &Node {}, (), dropped as f64);
    let served = families.iter().filter(|f| !f.def.json_only);
    let total: usize = served.flat_map(|f| &f.series).map(|s| s.value.series()).sum();
    let id = m::gpu_exporter_series.id();
    if !b.off.contains(&id) {
        let def = m::gpu_exporter_series.def();
        let before = &METRICS[..usize::from(id.0)];
        let at = families.iter().take_while(|f| before.iter().any(|d| d.name == f.def.name)).count();
        // Counts itself as well.
        let value = Value::Number((total + 1) as f64);
        let subject = b.subjects.text(&Node {}.subject());
        families.insert(at, Family { def, series: vec![Series { subject, labels: Vec::new(), value }] });
    }
    b.subjects.forget_unused();
    (families, b.subjects)
}
