//! Making a snapshot of what the ledger holds: joins, ages, states, and the cap on series.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::samples::Samples;
use super::{GpuBook, Ledger, clock_events, flops};
use model::catalog::schema::{Entity, Label, LabelSet, LabelText, Metric};
use model::catalog::{
    self as m, Call, ClockDomain, EntityKind, GpmUnit, Gpu, METRICS, MetricId, MetricName, Node,
    SampleBuffer, Subject, Tier, TierLabel,
};
use model::clock::Mono;
use model::sample::SWITCHED_OFF;
use model::sample::{Missing, Part, Row, Source};
use model::snapshot::{
    CollectorView, DriverState, Family, GpuState, GpuView, PartView, Series, Snapshot, SubjectText, Value,
};

/// Subjects with their label texts, made once and shared by all snapshots.
#[derive(Debug, Default)]
pub struct Subjects(HashMap<Subject, Arc<SubjectText>>);

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
    subjects: &'a mut Subjects,
    off: &'a std::collections::HashSet<MetricId>,
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

    pub(super) fn row(&mut self, subject: &Subject, metric: MetricId, labels: Vec<LabelText>, value: Value) {
        if self.off.contains(&metric) {
            return;
        }
        let subject = self.subjects.text(subject);
        if let Some(family) = self.families.get_mut(usize::from(metric.0)) {
            family.push(Series { subject, labels, value });
        }
    }

    fn rows(&mut self, subject: &Subject, rows: &[Row]) {
        for row in rows {
            self.row(subject, row.metric, row.labels.clone(), Value::Number(row.value));
        }
    }
}

impl Ledger {
    /// Makes the snapshot of this moment.
    pub fn publish(&mut self, now: Mono, unix_seconds: f64) -> Snapshot {
        self.sequence += 1;
        self.faults.settle(&mut self.tally, now, self.ready);
        let mut subjects = std::mem::take(&mut self.subjects);
        let off = std::mem::take(&mut self.settings.off);
        let mut b = Builder {
            subjects: &mut subjects,
            off: &off,
            families: METRICS.iter().map(|_| Vec::new()).collect(),
        };
        let driver = self.driver(now);
        let states = self.states(now, &driver);
        self.put_parts(&mut b, now, &driver, &states);
        self.put_health(&mut b, now, &driver, &states);
        self.put_faults(&mut b);
        let canary = self.put_canary(&mut b, now, &states);
        let topology = self.put_topology(&mut b, now, &states);
        let owners = self.put_owners(&mut b, now, unix_seconds, &states);
        let windows = self.put_windows(&mut b, now, unix_seconds);
        let gpus = self.put_gpus(&mut b, now, unix_seconds, states);
        let collectors = self.put_collectors(&mut b, now, unix_seconds, &driver, &gpus);
        self.put_node(&mut b, now, &driver);
        self.put_own(&mut b);
        self.note_ready(&driver, &gpus);
        let families = self.cap(b);
        subjects.forget_unused();
        self.subjects = subjects;
        self.settings.off = off;
        self.publish_seconds = Mono::now().since(now).as_secs_f64();
        Snapshot {
            sequence: self.sequence,
            taken: now,
            unix_seconds,
            families,
            driver,
            gpus,
            collectors,
            ready: self.ready,
            events: self.faults.list(),
            canary,
            topology,
            owners,
            windows,
        }
    }

    /// When faults and other events came.
    fn put_faults(&self, b: &mut Builder<'_>) {
        for gpu in self.gpus.keys() {
            if let Some(at) = self.faults.book(gpu).and_then(|book| book.last_xid) {
                b.put(&m::gpu_xid_last_event_timestamp_seconds, gpu, (), at);
            }
        }
        if let Some(at) = self.faults.last_event() {
            b.put(&m::gpu_last_event_timestamp_seconds, &Node {}, (), at);
        }
    }

    /// Every known GPU by index, with its state.
    fn states(&self, now: Mono, driver: &DriverState) -> Vec<(Gpu, GpuState)> {
        let state = |(gpu, book): (&Gpu, &GpuBook)| (gpu.clone(), self.state_of(gpu, book, now, driver));
        self.gpus.iter().map(state).collect()
    }

    fn state_of(&self, gpu: &Gpu, book: &GpuBook, now: Mono, driver: &DriverState) -> GpuState {
        if let Some(stall) = self.stall_of(gpu) {
            return GpuState::Stuck { call: stall.call.clone(), age: now.since(stall.since) };
        }
        if matches!(driver, DriverState::Paused { .. }) {
            return GpuState::Paused;
        }
        if *driver != DriverState::Up {
            return GpuState::NoDriver;
        }
        let held = |tier| {
            let part = Part { collector: Source::Nvml, gpu: Some(gpu.clone()), tier };
            self.parts.get(&part)
        };
        // The two tiers that are read at least once a second tell whether it answers.
        let newest: Vec<_> = [held(Tier::Fast), held(Tier::Normal)]
            .into_iter()
            .flatten()
            .filter(|h| !h.expired(now))
            .collect();
        // A visit that had nothing to ask tells something only if the other one does not contradict it.
        let told = newest.iter().any(|held| held.answered && !held.rows.is_empty());
        if told || !newest.is_empty() && newest.iter().all(|held| held.answered) {
            return GpuState::Up;
        }
        // A lost GPU is left alone for a while: what it said last stays the reason.
        let last = || [held(Tier::Normal), held(Tier::Fast)].into_iter().flatten().find_map(|h| h.failure());
        let failure =
            book.no_handle.clone().or_else(|| newest.iter().find_map(|h| h.failure())).or_else(last);
        match failure {
            Some(text) => GpuState::Failing { text },
            None if book.epoch == 0 || self.begins(gpu) => GpuState::Waiting,
            None => GpuState::Failing { text: "nothing was read of it for too long".into() },
        }
    }

    /// Whether something was read in this epoch, all of it well, but neither of the two tiers yet: MIG mode is
    /// looked at before them.
    fn begins(&self, gpu: &Gpu) -> bool {
        let own = |part: &Part| part.gpu.as_ref() == Some(gpu) && part.tier != Tier::Identity;
        let mut own = self.parts.iter().filter(|(part, _)| own(part)).peekable();
        own.peek().is_some()
            && own.all(|(part, held)| held.answered && !matches!(part.tier, Tier::Fast | Tier::Normal))
    }

    /// The rows of every part that is not expired or withdrawn.
    fn put_parts(&self, b: &mut Builder<'_>, now: Mono, driver: &DriverState, states: &[(Gpu, GpuState)]) {
        let node_stalls = self.stalls.iter().any(|stall| stall.gpu.is_none());
        for (part, held) in &self.parts {
            let served = match &part.gpu {
                Some(_) if part.tier == Tier::Identity => true,
                Some(gpu) => states.iter().any(|(g, state)| g == gpu && *state == GpuState::Up),
                None if part.collector == Source::Nvml => *driver == DriverState::Up && !node_stalls,
                None => true,
            };
            if served && !held.expired(now) {
                for (subject, rows) in held.rows.groups() {
                    b.rows(subject, rows);
                }
            }
        }
    }

    /// What the ledger itself knows of each GPU.
    fn put_gpus(
        &self,
        b: &mut Builder<'_>,
        now: Mono,
        unix_seconds: f64,
        states: Vec<(Gpu, GpuState)>,
    ) -> Vec<GpuView> {
        let mut views = Vec::with_capacity(states.len());
        let mut lacking: BTreeMap<MetricId, u32> = BTreeMap::new();
        for (gpu, state) in states {
            let up = state == GpuState::Up;
            // What was released is not down: it is not asked.
            if state != GpuState::Waiting && state != GpuState::Paused {
                b.put(&m::gpu_up, &gpu, (), f64::from(u8::from(up)));
            }
            let mut view = GpuView {
                gpu: gpu.clone(),
                state,
                parts: Vec::new(),
                gaps: Vec::new(),
                processes: up.then(|| self.processes_of(&gpu, now)).flatten().unwrap_or_default(),
            };
            let mut unsupported = BTreeSet::new();
            for (part, held) in self.parts.iter().filter(|(p, _)| p.gpu.as_ref() == Some(&gpu)) {
                view.gaps.extend(held.gaps.iter().cloned());
                unsupported.extend(held.unsupported.iter().copied());
                if held.expired(now) || !up {
                    continue;
                }
                let (age, duration) = (now.since(held.taken), Duration::from_nanos(held.nanos));
                view.parts.push(PartView { tier: part.tier, age, duration, rows: held.rows.len() });
                let sampled = TierLabel::of(part.tier).filter(|_| part.tier != Tier::Identity);
                if let Some(tier) = sampled {
                    let timestamp = unix_seconds - age.as_secs_f64();
                    b.put(&m::gpu_exporter_sample_timestamp_seconds, &gpu, (tier,), timestamp);
                }
            }
            if let Some(at) = self.busy.last(&gpu) {
                let at = unix_seconds - now.since(at).as_secs_f64();
                b.put(&m::gpu_last_busy_timestamp_seconds, &gpu, (), at);
            }
            let book = self.gpus.get(&gpu).filter(|_| up);
            for (event, seconds) in book.iter().flat_map(|book| book.clock_events.ours()) {
                let row = clock_events::row(event, seconds);
                b.rows(&gpu.subject(), std::slice::from_ref(&row));
                unsupported.remove(&row.metric);
            }
            if let Some(book) = book {
                self.put_samples(b, &gpu, book, now);
            }
            if up {
                for ((metric, subject, labels), sum) in self.gpm.of(&gpu) {
                    b.row(&subject, metric, labels, Value::Number(sum));
                    unsupported.remove(&metric);
                }
                self.put_flops(b, &gpu, now);
            }
            for (subject, rows) in self.declared_rows(&gpu, up, now).groups() {
                b.rows(subject, rows);
            }
            // It is the ledger's own: absent without a declared layout.
            unsupported.remove(&m::gpu_mig_layout_matches.id());
            // What is switched off may have been read for another metric.
            unsupported.retain(|id| !b.off.contains(id));
            for metric in unsupported {
                *lacking.entry(metric).or_insert(0u32) += 1;
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

    /// What the driver's own samples tell.
    fn put_samples(&self, b: &mut Builder<'_>, gpu: &Gpu, book: &GpuBook, now: Mono) {
        let Samples { power, utilization } = &book.samples;
        for (series, buffer, histogram, integral, low, high) in [
            (
                power,
                SampleBuffer::Power,
                &m::gpu_power_sample_watts,
                &m::gpu_energy_sampled_joules_total,
                &m::gpu_power_minimum_watts,
                &m::gpu_power_peak_watts,
            ),
            (
                utilization,
                SampleBuffer::Utilization,
                &m::gpu_utilization_sample_ratio,
                &m::gpu_busy_seconds_total,
                &m::gpu_utilization_minimum_ratio,
                &m::gpu_utilization_peak_ratio,
            ),
        ] {
            if series.count() == 0 {
                continue;
            }
            let value = Value::Histogram(Arc::new(series.histogram.clone()));
            b.row(&gpu.subject(), histogram.id(), Vec::new(), value);
            b.put(integral, gpu, (), series.integral);
            b.put(&m::gpu_exporter_samples_total, gpu, (buffer,), series.count() as f64);
            b.put(&m::gpu_exporter_sample_gaps_total, gpu, (buffer,), series.gaps as f64);
            b.put(&m::gpu_exporter_sample_gap_seconds_total, gpu, (buffer,), series.gap_seconds);
            if let Some((lowest, highest)) = series.extremes(now) {
                b.put(low, gpu, (), lowest);
                b.put(high, gpu, (), highest);
            }
        }
    }

    /// Floating-point operations a second, estimated.
    fn put_flops(&self, b: &mut Builder<'_>, gpu: &Gpu, now: Mono) {
        let value = |metric: MetricId, label: Option<LabelText>| self.value_of(gpu, metric, label, now);
        let capability = self.info_of(gpu, m::gpu_info.id(), "compute_capability");
        let cores = value(m::gpu_cuda_cores.id(), None);
        let hertz = value(m::gpu_clock_hertz.id(), Some(ClockDomain::Sm.text()));
        let (Some(capability), Some(cores), Some(hertz)) = (capability, cores, hertz) else { return };
        let activity = |unit: GpmUnit| value(m::gpu_gpm_active_ratio.id(), Some(unit.text()));
        for (pipe, rate) in flops::estimate(&capability, cores, hertz, activity) {
            b.put(&m::gpu_flops_estimate, gpu, (pipe,), rate);
        }
    }

    /// The value of a row about a GPU with this label, if it is held and not too old.
    pub(super) fn value_of(
        &self,
        gpu: &Gpu,
        metric: MetricId,
        label: Option<LabelText>,
        now: Mono,
    ) -> Option<f64> {
        let about = |part: &&Part| part.gpu.as_ref() == Some(gpu);
        self.parts
            .iter()
            .filter(|(part, held)| about(part) && !held.expired(now))
            .flat_map(|(_, held)| held.rows.groups())
            .filter(|(subject, _)| matches!(subject, Subject::Gpu(_)))
            .flat_map(|(_, rows)| rows)
            .find(|row| row.metric == metric && row.labels.first() == label.as_ref())
            .map(|row| row.value)
    }

    /// One label of an info row about a GPU.
    pub(super) fn info_of(&self, gpu: &Gpu, metric: MetricId, label: &str) -> Option<String> {
        let def = m::def(metric)?;
        let at = def.labels.iter().position(|l| l.name == label)?;
        self.parts
            .iter()
            .filter(|(part, _)| part.gpu.as_ref() == Some(gpu))
            .flat_map(|(_, held)| held.rows.groups())
            .flat_map(|(_, rows)| rows)
            .find(|row| row.metric == metric)
            .and_then(|row| Some(row.labels.get(at)?.text(def.labels.get(at)?).to_owned()))
    }

    fn put_collectors(
        &self,
        b: &mut Builder<'_>,
        now: Mono,
        unix_seconds: f64,
        driver: &DriverState,
        gpus: &[GpuView],
    ) -> Vec<CollectorView> {
        let mut views = Vec::new();
        for (source, label) in self.collectors() {
            if source == Source::Nvml && matches!(driver, DriverState::Paused { .. }) {
                // Neither up nor down: it has nothing to do.
                let text = "paused: the driver is released".to_owned();
                views.push(CollectorView { name: source.name(), up: true, age: None, text });
                continue;
            }
            if let Some(text) = self.hindered.get(&source).filter(|text| text.starts_with(SWITCHED_OFF)) {
                views.push(CollectorView { name: source.name(), up: true, age: None, text: text.clone() });
                continue;
            }
            let age = self.last_success.get(&source).map(|at| now.since(*at));
            let text = match source {
                Source::Nvml => self.nvml_trouble(driver, gpus),
                _ => self.hindered.get(&source).cloned().or_else(|| {
                    let mut held = self.parts.iter().filter(|(part, _)| part.collector == source);
                    let old = held.any(|(_, held)| held.expired(now));
                    old.then(|| "its values are too old".to_owned())
                }),
            };
            let up = age.is_some() && text.is_none();
            // Before the first answer there is nothing to say.
            if age.is_some() || (source == Source::Nvml && *driver != DriverState::Waiting) {
                b.put(&m::gpu_exporter_collector_up, &Node {}, (label,), f64::from(u8::from(up)));
            }
            if let Some(age) = age {
                let timestamp = unix_seconds - age.as_secs_f64();
                let metric = &m::gpu_exporter_collector_last_success_timestamp_seconds;
                b.put(metric, &Node {}, (label,), timestamp);
            }
            let name = source.name();
            views.push(CollectorView { name, up, age, text: text.unwrap_or_default() });
        }
        views
    }

    /// What is wrong with the NVML collector, in words.
    fn nvml_trouble(&self, driver: &DriverState, gpus: &[GpuView]) -> Option<String> {
        match driver {
            DriverState::Away { text } => return Some(format!("the driver is away: {text}")),
            DriverState::Stuck => return Some("the driver is stuck".into()),
            DriverState::Mismatch { text } => return Some(format!("the driver is away: {text}")),
            DriverState::Paused { .. } => return None,
            DriverState::Waiting => return Some("waiting for the driver's first answer".into()),
            DriverState::Up if self.samplers == 0 => return Some("no sampler runs".into()),
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
        self.parts
            .iter()
            .filter(|(part, _)| part.collector == Source::Nvml && part.gpu.is_none())
            .find_map(|(_, held)| held.failure())
    }

    fn put_node(&self, b: &mut Builder<'_>, now: Mono, driver: &DriverState) {
        let node = Node {};
        let flag = |set: bool| f64::from(u8::from(set));
        let paused = matches!(driver, DriverState::Paused { .. });
        if *driver != DriverState::Waiting && !paused {
            b.put(&m::gpu_driver_up, &node, (), flag(*driver == DriverState::Up));
        }
        b.put(&m::gpu_driver_paused, &node, (), flag(paused));
        if matches!(driver, DriverState::Up | DriverState::Away { .. } | DriverState::Mismatch { .. }) {
            let mismatch = matches!(driver, DriverState::Mismatch { .. });
            b.put(&m::gpu_driver_library_mismatch, &node, (), flag(mismatch));
        }
        if let Some(loaded_at) = self.loads.loaded_at() {
            b.put(&m::gpu_driver_load_timestamp_seconds, &node, (), loaded_at);
        }
        let stuck = *driver == DriverState::Stuck;
        b.put(&m::gpu_driver_stuck, &node, (), f64::from(u8::from(stuck)));
        b.put(&m::gpu_devices_expected, &node, (), self.seen.devices as f64);
        for stall in &self.stalls {
            let (call, seconds) = (Call(stall.call.as_str().into()), now.since(stall.since).as_secs_f64());
            match &stall.gpu {
                Some(gpu) => b.put(&m::gpu_exporter_driver_call_stuck_seconds, gpu, (call,), seconds),
                None => b.put(&m::gpu_exporter_node_call_stuck_seconds, &node, (call,), seconds),
            }
        }
        b.put(&m::gpu_exporter_build_info, &node, self.settings.build.clone(), 1.0);
        b.put(&m::gpu_exporter_samplers, &node, (), self.samplers as f64);
        b.put(&m::gpu_exporter_publications_total, &node, (), self.sequence as f64);
        b.put(&m::gpu_exporter_publish_duration_seconds, &node, (), self.publish_seconds);
        let mut calls: Vec<_> = self.call_rows().collect();
        calls.sort_by(|a, b| (&a.0.0, a.1).cmp(&(&b.0.0, b.1)));
        for (call, tier, count, seconds) in calls {
            b.put(&m::gpu_exporter_driver_calls_total, &node, (call.clone(), tier), count as f64);
            b.put(&m::gpu_exporter_driver_call_seconds_total, &node, (call, tier), seconds);
        }
        let histogram = Value::Histogram(Arc::new(self.call_seconds.clone()));
        let metric = m::gpu_exporter_driver_call_duration_seconds.id();
        b.row(&node.subject(), metric, Vec::new(), histogram);
    }

    /// The exporter's own counters.
    fn put_own(&self, b: &mut Builder<'_>) {
        for ((metric, subject, labels), value) in self.tally.iter() {
            b.row(subject, *metric, labels.clone(), Value::Number(value));
        }
    }

    /// Ready once every collector has answered or been found absent; never dependent on a GPU's health.
    fn note_ready(&mut self, driver: &DriverState, gpus: &[GpuView]) {
        if self.ready {
            return;
        }
        let nvml = match driver {
            DriverState::Waiting => false,
            DriverState::Away { .. }
            | DriverState::Stuck
            | DriverState::Mismatch { .. }
            | DriverState::Paused { .. } => true,
            DriverState::Up => {
                let listed = self.parts.iter().find_map(|(part, held)| {
                    let about_node = part.collector == Source::Nvml && part.gpu.is_none();
                    (about_node && part.tier == Tier::Slow).then_some(&held.rows)
                });
                let count = listed.map(|rows| {
                    let rows = rows.groups().iter().flat_map(|(_, rows)| rows);
                    rows.filter(|r| r.metric == m::gpu_devices.id()).map(|r| r.value).sum::<f64>()
                });
                // A GPU that is stuck or failing has answered: it will not answer better.
                count.is_some_and(|count| gpus.len() as f64 >= count)
                    && gpus.iter().all(|view| match view.state {
                        GpuState::Waiting => false,
                        GpuState::Up => [Tier::Once, Tier::Slow, Tier::Rare]
                            .iter()
                            .all(|tier| view.parts.iter().any(|part| part.tier == *tier)),
                        _ => true,
                    })
            }
        };
        let others = self.collectors().filter(|(source, _)| *source != Source::Nvml).all(|(source, _)| {
            self.last_success.contains_key(&source) || self.hindered.contains_key(&source)
        });
        self.ready = nvml && others;
    }

    /// Leaves out series above the cap, the last of the catalogue first, and counts them. Series about the
    /// node itself are few and tell of the others: they always stay.
    fn cap(&mut self, builder: Builder<'_>) -> Vec<Family> {
        let mut room = self.settings.max_series;
        let mut dropped = 0;
        let mut families: Vec<Family> = Vec::new();
        for (def, series) in METRICS.iter().zip(builder.families) {
            let whole = def.group.is_none_or(|group| self.settings.groups.contains(&group));
            let mut family = Family { def, series, whole };
            if def.entity != EntityKind::Node {
                let mut series = std::mem::take(&mut family.series);
                // A histogram is many series on the page, and is left out as a whole.
                series.retain(|one| {
                    let size = if family.serves(one) { one.value.series() } else { 0 };
                    let fits = size <= room;
                    room -= if fits { size } else { room };
                    dropped += if fits { 0 } else { size };
                    fits
                });
                family.series = series;
            }
            if !family.series.is_empty() {
                families.push(family);
            }
        }
        self.tally.add(&m::gpu_exporter_series_dropped_total, &Node {}, (), dropped as f64);
        let total: usize = families.iter().flat_map(Family::scraped).map(|s| s.value.series()).sum();
        let id = m::gpu_exporter_series.id();
        if !builder.off.contains(&id) {
            let def = m::gpu_exporter_series.def();
            let before = &METRICS[..usize::from(id.0)];
            let at = families.iter().take_while(|f| before.iter().any(|d| d.name == f.def.name)).count();
            // Counts itself as well.
            let value = Value::Number((total + 1) as f64);
            let subject = builder.subjects.text(&Node {}.subject());
            families.insert(
                at,
                Family { def, series: vec![Series { subject, labels: Vec::new(), value }], whole: true },
            );
        }
        families
    }
}
