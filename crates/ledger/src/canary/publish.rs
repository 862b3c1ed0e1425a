//! What is published of the canary: about the node always; of a place its verdicts and rates only while the GPU
//! answers and the place is there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::super::Ledger;
use super::super::publish::Builder;
use super::{Book, MOST_BAD_SMS, Standing};
use model::canary::{Instance, Rate, loudness};
use model::catalog::schema::{Entity, KnownLabel, LabelSet, LabelText};
use model::catalog::{
    self as m, BadSmInfo, CanaryMode, CanaryVerdict, ComputeInstance, Gpu, GpuInstance, MetricId, MigInfo,
    Node, Subject, Tier,
};
use model::clock::Mono;
use model::sample::{Missing, Part, Source};
use model::snapshot::{CanaryView, CheckView, GpuState, Histogram, PlaceView, Value};

/// The MIG devices of a GPU as they were read last.
#[derive(Debug)]
struct Devices {
    /// Each with its UUID, if that was read.
    found: Vec<(ComputeInstance, Option<String>)>,
    /// Whether there are no others.
    complete: bool,
}

impl Devices {
    fn have(&self, instance: &Instance) -> Option<&ComputeInstance> {
        let same = |(device, uuid): &&(ComputeInstance, Option<String>)| {
            device.gpu_instance == instance.gpu_instance
                && device.compute_instance == instance.compute_instance
                && *device.profile == *instance.profile
                && uuid.as_ref().is_none_or(|uuid| *uuid == instance.mig_uuid)
        };
        self.found.iter().find(same).map(|(device, _)| device)
    }
}

impl Ledger {
    /// Everything about the canary.
    pub(crate) fn put_canary(
        &mut self,
        b: &mut Builder<'_>,
        now: Mono,
        states: &[(Gpu, GpuState)],
    ) -> CanaryView {
        self.put_canary_node(b);
        let mut view = CanaryView { mode: self.canary.mode, places: Vec::new() };
        for (gpu, state) in states {
            let up = *state == GpuState::Up;
            let devices = self.devices(gpu, now).filter(|_| up);
            if let Some(devices) = devices.as_ref().filter(|devices| devices.complete) {
                self.canary.retain(gpu, |instance| devices.have(instance).is_some());
            }
            let mig = self.value_of(gpu, m::gpu_mig_mode_enabled.id(), None, now) == Some(1.0);
            self.put_canary_history(b, gpu);
            if up
                && !mig
                && let Some(book) = self.canary.books.get(&(Arc::clone(&gpu.uuid), None))
            {
                put_gpu(b, gpu, book);
            }
            if let Some(devices) = &devices {
                self.put_canary_instances(b, gpu, devices);
            }
            let own = self.canary.books.iter().filter(|((uuid, _), _)| *uuid == gpu.uuid);
            let own = own.filter(|((_, instance), book)| {
                instance.is_none() || devices.is_some() || book.hung.is_some()
            });
            view.places.extend(own.map(|((_, instance), book)| {
                let view = book.view(gpu, instance.clone());
                // What was found of the whole GPU before it was divided is no news of what is there now; what is
                // planned is told of the GPU as a whole.
                if mig && instance.is_none() { view.planned() } else { view }
            }));
        }
        view
    }

    fn put_canary_node(&self, b: &mut Builder<'_>) {
        let (canary, node) = (&self.canary, Node {});
        if let Some(mode) = canary.mode {
            for one in CanaryMode::ALL {
                b.put(&m::gpu_canary_mode, &node, (*one,), flag(*one == mode));
            }
        }
        if let Some(duty) = canary.duty {
            b.put(&m::gpu_canary_duty_budget_ratio, &node, (), duty);
        }
        if let Some(processes) = canary.processes {
            b.put(&m::gpu_canary_processes, &node, (), processes as f64);
        }
        let mut put = |metric: MetricId, labels: Vec<LabelText>, histogram: &Histogram| {
            b.row(&node.subject(), metric, labels, Value::Histogram(Arc::new(histogram.clone())));
        };
        for (step, histogram) in &canary.steps {
            put(m::gpu_canary_step_duration_seconds.id(), (*step,).texts(), histogram);
        }
        for (check, histogram) in &canary.rates {
            put(m::gpu_canary_sample_rate_ratio.id(), (*check,).texts(), histogram);
        }
    }

    /// What happened on a GPU and what is planned, of all its places: told also while it does not answer.
    fn put_canary_history(&self, b: &mut Builder<'_>, gpu: &Gpu) {
        let books =
            || self.canary.books.iter().filter(|((uuid, _), _)| *uuid == gpu.uuid).map(|(_, book)| book);
        let newest = |times: &mut dyn Iterator<Item = f64>| times.reduce(f64::max);
        if let Some(at) = newest(&mut books().filter_map(|book| book.last_run)) {
            b.put(&m::gpu_canary_last_run_timestamp_seconds, gpu, (), at);
        }
        if let Some(at) = newest(&mut books().filter_map(|book| book.last_success)) {
            b.put(&m::gpu_canary_last_success_timestamp_seconds, gpu, (), at);
        }
        if let Some(at) = books().filter_map(|book| book.due).reduce(f64::min) {
            b.put(&m::gpu_canary_next_due_timestamp_seconds, gpu, (), at);
        }
        for step in self.canary.hung.get(&gpu.uuid).into_iter().flatten() {
            let hangs = books().any(|book| book.hung == Some(*step));
            b.put(&m::gpu_canary_hung, gpu, (*step,), flag(hangs));
        }
    }

    fn put_canary_instances(&self, b: &mut Builder<'_>, gpu: &Gpu, devices: &Devices) {
        let mut by_instance: BTreeMap<GpuInstance, Vec<&Book>> = BTreeMap::new();
        for ((_, instance), book) in self.canary.books.iter().filter(|((uuid, _), _)| *uuid == gpu.uuid) {
            let Some(device) = instance.as_ref().and_then(|instance| devices.have(instance)) else {
                continue;
            };
            let instance = GpuInstance {
                gpu: gpu.gpu,
                uuid: Arc::clone(&gpu.uuid),
                gpu_instance: device.gpu_instance,
                profile: Arc::clone(&device.profile),
            };
            by_instance.entry(instance).or_default().push(book);
        }
        for (instance, books) in &by_instance {
            put_instance(b, instance, books);
        }
    }

    /// The MIG devices that a GPU has now, if that was read.
    fn devices(&self, gpu: &Gpu, now: Mono) -> Option<Devices> {
        let part = Part { collector: Source::Nvml, gpu: Some(gpu.clone()), tier: Tier::Normal };
        let held = self.parts.get(&part).filter(|held| !held.expired(now))?;
        let info = m::gpu_mig_info.id();
        let at = MigInfo::DEFS.iter().position(|def| def.name == "mig_uuid")?;
        let uuid = |rows: &[model::sample::Row]| {
            let label = rows.iter().find(|row| row.metric == info)?.labels.get(at)?;
            match label {
                LabelText::Text(uuid) => Some(uuid.to_string()),
                LabelText::Known(_) => None,
            }
        };
        let found = held.rows.groups().iter().filter_map(|(subject, rows)| match subject {
            Subject::ComputeInstance(device) => Some((device.clone(), uuid(rows))),
            _ => None,
        });
        let unread = |gap: &model::sample::Gap| {
            gap.metrics.contains(&info) && matches!(gap.missing, Missing::Failed { .. })
        };
        Some(Devices { found: found.collect(), complete: held.answered && !held.gaps.iter().any(unread) })
    }
}

/// What stands of a whole GPU.
fn put_gpu(b: &mut Builder<'_>, gpu: &Gpu, book: &Book) {
    let mut bad = BTreeSet::new();
    for (check, standing) in &book.checks {
        for (verdict, holds) in verdicts(&[standing]) {
            b.put(&m::gpu_canary_verdict, gpu, (*check, verdict), flag(holds));
        }
        let measured = &standing.measured;
        for (against, ratio) in &measured.ratios {
            b.put(&m::gpu_canary_rate_ratio, gpu, (*check, *against), *ratio);
        }
        if let Some(Rate::WorkPerCycle(rate)) = measured.rate
            && m::gpu_canary_work_per_cycle.def().limits().contains(&rate)
        {
            b.put(&m::gpu_canary_work_per_cycle, gpu, (*check,), rate);
        }
        if let Some(hertz) = measured.clock.filter(|_| *check == m::CanaryCheck::SmRate) {
            b.put(&m::gpu_canary_sm_clock_hertz, gpu, (), hertz);
        }
        bad.extend(measured.bad_sms.iter().copied());
    }
    for (smid, kind) in bad.into_iter().take(MOST_BAD_SMS) {
        let labels = BadSmInfo { smid: smid.to_string(), kind: kind.known().to_owned() };
        b.put(&m::gpu_canary_bad_sm_info, gpu, labels, 1.0);
    }
}

/// What stands of a GPU instance, by the books of its compute instances.
fn put_instance(b: &mut Builder<'_>, instance: &GpuInstance, books: &[&Book]) {
    let checks: BTreeSet<_> = books.iter().flat_map(|book| book.checks.keys().copied()).collect();
    for check in checks {
        let standing: Vec<&Standing> = books.iter().filter_map(|book| book.checks.get(&check)).collect();
        for (verdict, holds) in verdicts(&standing) {
            b.put(&m::gpu_mig_canary_verdict, instance, (check, verdict), flag(holds));
        }
        let mut lowest = BTreeMap::new();
        for (against, ratio) in standing.iter().flat_map(|standing| &standing.measured.ratios) {
            let low = lowest.entry(*against).or_insert(*ratio);
            *low = f64::min(*low, *ratio);
        }
        for (against, ratio) in lowest {
            b.put(&m::gpu_mig_canary_rate_ratio, instance, (check, against), ratio);
        }
    }
    if let Some(at) = books.iter().filter_map(|book| book.last_run).reduce(f64::max) {
        b.put(&m::gpu_mig_canary_last_run_timestamp_seconds, instance, (), at);
    }
}

/// The verdicts to tell of one check, and whether each holds: `ok` and every other there ever was. Of several
/// places the worst holds.
fn verdicts(standing: &[&Standing]) -> Vec<(CanaryVerdict, bool)> {
    // Severities are listed from loud to quiet; what is not loud is better than anything that is.
    let rank = |v: &CanaryVerdict| loudness(*v).map_or(u8::MAX, |severity| severity as u8);
    let worst = standing.iter().map(|standing| standing.verdict).min_by_key(|v| (rank(v), *v));
    let mut seen: BTreeSet<CanaryVerdict> =
        standing.iter().flat_map(|one| one.seen.iter().copied()).collect();
    seen.insert(CanaryVerdict::Ok);
    seen.into_iter().map(|verdict| (verdict, Some(verdict) == worst)).collect()
}

fn flag(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

impl Book {
    fn view(&self, gpu: &Gpu, instance: Option<Instance>) -> PlaceView {
        let check = |(check, standing): (&m::CanaryCheck, &Standing)| CheckView {
            check: *check,
            verdict: standing.verdict,
            text: standing.text.clone(),
            rate: standing.measured.rate,
        };
        PlaceView {
            gpu: gpu.clone(),
            instance,
            running: self.running,
            hung: self.hung,
            last_run: self.last_run,
            due: self.due,
            skipped: self.skipped,
            end: self.end,
            text: self.text.clone(),
            checks: self.checks.iter().map(check).collect(),
        }
    }
}
