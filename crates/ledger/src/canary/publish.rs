//! Series of the canary. Those about the node are always published. Verdicts and rates of a place are published only
//! while its GPU answers and the place exists.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::super::builder::Builder;
use super::super::intake::{LedgerMoment, label};
use super::{CanaryFindings, CheckState, MOST_BAD_SMS, PlaceRecord};
use model::canary::{Instance, Rate, loudness};
use model::catalog::schema::KnownLabel;
use model::catalog::{
    self as m, BadSmInfo, CanaryMode, CanaryVerdict, ComputeInstance, Gpu, GpuInstance, MigInfo, Node, Tier,
};
use model::sample::Missing;
use model::snapshot::{CanaryView, CheckView, PlaceView};

/// MIG devices of a GPU, as last read.
struct MigDevices {
    /// Devices with their UUID, if known.
    found: Vec<(ComputeInstance, Option<String>)>,
    /// Whether the list is complete.
    complete: bool,
}

impl MigDevices {
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

impl CanaryFindings {
    pub fn publish(&mut self, b: &mut Builder<'_>, moment: &LedgerMoment<'_>) -> CanaryView {
        self.publish_node(b);
        let mut view = CanaryView { mode: self.mode, ..CanaryView::default() };
        for (gpu, up) in moment.gpus() {
            let devices = devices(moment, gpu).filter(|_| up);
            if let Some(devices) = devices.as_ref().filter(|devices| devices.complete) {
                self.retain(gpu, |instance| devices.have(instance).is_some());
            }
            let mig =
                moment.intake.value_of(gpu, m::gpu_mig_mode_enabled.id(), None, moment.now) == Some(1.0);
            self.publish_history(b, gpu);
            if up
                && !mig
                && let Some(record) = self.places.get(&(Arc::clone(&gpu.uuid), None))
            {
                publish_gpu(b, gpu, record);
            }
            if let Some(devices) = &devices {
                self.publish_instances(b, gpu, devices);
            }
            let own = self.places_of(gpu).filter(|(instance, record)| {
                instance.is_none() || devices.is_some() || record.hung.is_some()
            });
            view.places.extend(own.map(|(instance, record)| {
                let mut view = record.view(gpu, instance.clone());
                // Results for the whole GPU from before its division do not apply to its instances. Planned runs are
                // published for the GPU as a whole.
                if mig && instance.is_none() {
                    (view.last_run, view.end) = (None, None);
                    view.text.clear();
                    view.checks.clear();
                }
                view
            }));
        }
        view
    }

    fn places_of(&self, gpu: &Gpu) -> impl Iterator<Item = (&Option<Instance>, &PlaceRecord)> {
        let own = self.places.iter().filter(move |((uuid, _), _)| *uuid == gpu.uuid);
        own.map(|((_, instance), record)| (instance, record))
    }

    fn publish_node(&self, b: &mut Builder<'_>) {
        let node = Node {};
        if let Some(mode) = self.mode {
            for one in CanaryMode::ALL {
                b.flag(&m::gpu_canary_mode, &node, (*one,), *one == mode);
            }
        }
        b.add_known(&m::gpu_canary_duty_budget_ratio, &node, (), self.duty);
        b.add_known(&m::gpu_canary_processes, &node, (), self.processes.map(|processes| processes as f64));
        for (step, histogram) in &self.steps {
            b.histogram(&m::gpu_canary_step_duration_seconds, &node, (*step,), histogram);
        }
        for (check, histogram) in &self.rates {
            b.histogram(&m::gpu_canary_sample_rate_ratio, &node, (*check,), histogram);
        }
    }

    /// Publishes past and planned runs of all places of a GPU, even while it does not answer.
    fn publish_history(&self, b: &mut Builder<'_>, gpu: &Gpu) {
        let times = |time: fn(&PlaceRecord) -> Option<f64>| {
            self.places_of(gpu).filter_map(move |(_, place)| time(place))
        };
        let last_run = times(|place| place.last_run).reduce(f64::max);
        let last_success = times(|place| place.last_success).reduce(f64::max);
        let due = times(|place| place.due).reduce(f64::min);
        b.add_known(&m::gpu_canary_last_run_timestamp_seconds, gpu, (), last_run);
        b.add_known(&m::gpu_canary_last_success_timestamp_seconds, gpu, (), last_success);
        b.add_known(&m::gpu_canary_next_due_timestamp_seconds, gpu, (), due);
        for step in self.hung.get(&gpu.uuid).into_iter().flatten() {
            let hangs = self.places_of(gpu).any(|(_, place)| place.hung == Some(*step));
            b.flag(&m::gpu_canary_hung, gpu, (*step,), hangs);
        }
    }

    fn publish_instances(&self, b: &mut Builder<'_>, gpu: &Gpu, devices: &MigDevices) {
        let mut by_instance: BTreeMap<GpuInstance, Vec<&PlaceRecord>> = BTreeMap::new();
        for (instance, place) in self.places_of(gpu) {
            let Some(device) = instance.as_ref().and_then(|instance| devices.have(instance)) else {
                continue;
            };
            let instance = GpuInstance {
                gpu: gpu.gpu,
                uuid: Arc::clone(&gpu.uuid),
                gpu_instance: device.gpu_instance,
                profile: Arc::clone(&device.profile),
            };
            by_instance.entry(instance).or_default().push(place);
        }
        for (instance, places) in &by_instance {
            publish_instance(b, instance, places);
        }
    }
}

/// Returns the current MIG devices of a GPU, if known.
fn devices(moment: &LedgerMoment<'_>, gpu: &Gpu) -> Option<MigDevices> {
    let stored = moment.intake.fresh(gpu, Tier::Normal, moment.now)?;
    let info = m::gpu_mig_info.id();
    let uuid = |row| label::<MigInfo>(row, "mig_uuid").map(str::to_owned);
    let found = stored.mig_devices().map(|(device, row)| (device.clone(), row.and_then(uuid)));
    let unread = |gap: &model::sample::Gap| {
        gap.metrics.contains(&info) && matches!(gap.missing, Missing::Failed { .. })
    };
    Some(MigDevices { found: found.collect(), complete: stored.answered && !stored.gaps.iter().any(unread) })
}

fn publish_gpu(b: &mut Builder<'_>, gpu: &Gpu, place: &PlaceRecord) {
    let mut bad = BTreeSet::new();
    for (check, state) in &place.checks {
        for (verdict, holds) in verdicts(&[state]) {
            b.flag(&m::gpu_canary_verdict, gpu, (*check, verdict), holds);
        }
        let figures = &state.figures;
        for (against, ratio) in &figures.ratios {
            b.add(&m::gpu_canary_rate_ratio, gpu, (*check, *against), *ratio);
        }
        if let Some(Rate::WorkPerCycle(rate)) = figures.rate
            && m::gpu_canary_work_per_cycle.def().limits().contains(&rate)
        {
            b.add(&m::gpu_canary_work_per_cycle, gpu, (*check,), rate);
        }
        let clock = figures.clock.filter(|_| *check == m::CanaryCheck::SmRate);
        b.add_known(&m::gpu_canary_sm_clock_hertz, gpu, (), clock);
        bad.extend(figures.bad_sms.iter().copied());
    }
    for (smid, kind) in bad.into_iter().take(MOST_BAD_SMS) {
        let labels = BadSmInfo { smid: smid.to_string(), kind: kind.known().to_owned() };
        b.add(&m::gpu_canary_bad_sm_info, gpu, labels, 1.0);
    }
}

/// Publishes the state of a GPU instance, from those of its compute instances.
fn publish_instance(b: &mut Builder<'_>, instance: &GpuInstance, places: &[&PlaceRecord]) {
    let checks: BTreeSet<_> = places.iter().flat_map(|place| place.checks.keys().copied()).collect();
    for check in checks {
        let state: Vec<&CheckState> = places.iter().filter_map(|place| place.checks.get(&check)).collect();
        for (verdict, holds) in verdicts(&state) {
            b.flag(&m::gpu_mig_canary_verdict, instance, (check, verdict), holds);
        }
        let mut lowest = BTreeMap::new();
        for (against, ratio) in state.iter().flat_map(|state| &state.figures.ratios) {
            let low = lowest.entry(*against).or_insert(*ratio);
            *low = f64::min(*low, *ratio);
        }
        for (against, ratio) in lowest {
            b.add(&m::gpu_mig_canary_rate_ratio, instance, (check, against), ratio);
        }
    }
    let last_run = places.iter().filter_map(|place| place.last_run).reduce(f64::max);
    b.add_known(&m::gpu_mig_canary_last_run_timestamp_seconds, instance, (), last_run);
}

/// Returns whether each verdict of one check holds: `ok` and all others seen so far. With several places, the worst
/// verdict holds.
fn verdicts(state: &[&CheckState]) -> Vec<(CanaryVerdict, bool)> {
    // Severities are declared from loud to quiet. Verdicts without one are better than all with one.
    let rank = |v: &CanaryVerdict| loudness(*v).map_or(u8::MAX, |severity| severity as u8);
    let worst = state.iter().map(|state| state.verdict).min_by_key(|v| (rank(v), *v));
    let mut seen: BTreeSet<CanaryVerdict> = state.iter().flat_map(|one| one.seen.iter().copied()).collect();
    seen.insert(CanaryVerdict::Ok);
    seen.into_iter().map(|verdict| (verdict, Some(verdict) == worst)).collect()
}

impl PlaceRecord {
    fn view(&self, gpu: &Gpu, instance: Option<Instance>) -> PlaceView {
        let check = |(check, state): (&m::CanaryCheck, &CheckState)| CheckView {
            check: *check,
            verdict: state.verdict,
            text: state.text.clone(),
            rate: state.figures.rate,
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
