//! Sums kept between publications: driver calls, the driver's samples and GPM windows, seconds of clock events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::activity::Activity;
use super::builder::Builder;
use super::clock_events::ClockEvents;
use super::counters::DriverCounters;
use super::intake::{Intake, LedgerMoment};
use super::samples::Samples;
use model::catalog::schema::{Label, LabelText};
use model::catalog::{
    self as m, Call, ClockDomain, ClockEvent, FlopPipe, GpmUnit, Gpu, Kind, MetricId, Node, SampleBuffer,
    Subject, Tier,
};
use model::clock::Mono;
use model::sample::{Batch, Drained, GpmWindow, Rows};
use model::snapshot::{Histogram, Value};

/// Bounds, in seconds, of the histogram of driver calls: three per decade from 1 us, near most calls, to the order of
/// the deadline.
const CALL_SECONDS: [f64; 20] = [
    1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5,
    1.0, 5.0,
];

#[derive(Default)]
struct GpuTotals {
    clock_events: ClockEvents,
    samples: Samples,
}

#[derive(Default)]
pub(crate) struct Accounting {
    /// Number and nanoseconds of calls, by function and tier.
    calls: BTreeMap<Arc<str>, BTreeMap<Tier, (u64, u64)>>,
    call_seconds: Histogram,
    pub driver: DriverCounters,
    pub gpm: GpmSums,
    pub activity: Activity,
    gpus: BTreeMap<Gpu, GpuTotals>,
}

impl Accounting {
    pub fn new() -> Accounting {
        Accounting { call_seconds: Histogram::new(&CALL_SECONDS), ..Accounting::default() }
    }

    pub fn count_calls(&mut self, batch: &Batch) {
        let tier = batch.part.tier;
        for call in &batch.calls {
            let tiers = match self.calls.get_mut(call.call.as_str()) {
                Some(tiers) => tiers,
                None => self.calls.entry(call.call.as_str().into()).or_default(),
            };
            let (count, nanos) = tiers.entry(tier).or_default();
            *count += 1;
            *nanos += call.nanos;
            self.call_seconds.observe(call.nanos as f64 * 1e-9);
        }
    }

    /// Adds the samples drained from a known GPU at `taken`. `report` is called for each sample that counts.
    pub fn add_samples(
        &mut self,
        gpu: &Gpu,
        taken: Mono,
        drained: &Drained,
        report: impl FnMut(SampleBuffer, Mono, f64, f64),
    ) {
        let samples = &mut self.gpus.entry(gpu.clone()).or_default().samples;
        samples.add(taken, drained, |at| self.activity.is_canarys(&gpu.uuid, at), report);
        if let Some(at) = samples.last_work() {
            self.activity.worked(&gpu.uuid, at);
        }
    }

    /// Keeps the older value of driver counters that step back. Returns how many do so for the first time.
    pub fn hold_counters(&mut self, rows: &mut Rows) -> u32 {
        let mut steps_back = 0;
        for (subject, row) in rows.iter_mut() {
            if m::def(row.metric).is_some_and(|def| def.kind == Kind::Counter) {
                let key = (row.metric, subject.clone(), row.labels.clone());
                let (value, stepped) = self.driver.read(key, row.value);
                row.value = value;
                steps_back += u32::from(stepped);
            }
        }
        steps_back
    }

    /// Adds the seconds of clock events since the last fast visit of a known GPU, unless that visit is longer ago
    /// than `longest`.
    pub fn count_clock_events(&mut self, gpu: &Gpu, batch: &Batch, longest: Duration) {
        let clock_events = &mut self.gpus.entry(gpu.clone()).or_default().clock_events;
        let own = batch.rows.groups().iter().find(|(subject, _)| matches!(subject, Subject::Gpu(_)));
        let own = own.map_or(&[][..], |(_, rows)| rows);
        match batch.part.tier {
            Tier::Fast => clock_events.fast(batch.taken, own, longest),
            Tier::Slow => clock_events.slow(own, &batch.gaps),
            _ => {}
        }
    }

    pub fn last_work(&self, gpu: &Gpu) -> Option<Mono> {
        self.activity.last_work(gpu)
    }

    /// Returns the seconds of these clock events as counted by the exporter.
    pub fn clock_event_seconds(&self, gpu: &Gpu, events: &[ClockEvent]) -> f64 {
        let own = self.gpus.get(gpu);
        own.map_or(0.0, |own| events.iter().map(|event| own.clock_events.seconds(*event)).sum())
    }

    /// Forgets a GPU under this index, or the whole GPU if it was `replaced`.
    pub fn forget(&mut self, gpu: &Gpu, replaced: bool) {
        self.gpus.remove(gpu);
        self.driver.forget(Some(&gpu.uuid));
        self.gpm.forget(gpu);
        if replaced {
            self.activity.forget(&gpu.uuid);
        }
    }

    pub fn publish_calls(&self, b: &mut Builder<'_>) {
        let calls = self.calls.iter().flat_map(|(name, tiers)| tiers.iter().map(move |of| (name, of)));
        for (name, (tier, (count, nanos))) in calls {
            let call = Call(Arc::clone(name));
            b.add(&m::gpu_exporter_driver_calls_total, &Node {}, (call.clone(), *tier), *count as f64);
            let seconds = *nanos as f64 * 1e-9;
            b.add(&m::gpu_exporter_driver_call_seconds_total, &Node {}, (call, *tier), seconds);
        }
        b.histogram(&m::gpu_exporter_driver_call_duration_seconds, &Node {}, (), &self.call_seconds);
    }

    /// Publishes the sums of a GPU. If the GPU is not `up`, only its last work is published. Metrics with a value are
    /// removed from `unsupported`.
    pub fn publish_gpu(
        &self,
        b: &mut Builder<'_>,
        moment: &LedgerMoment<'_>,
        gpu: &Gpu,
        up: bool,
        unsupported: &mut BTreeSet<MetricId>,
    ) {
        let last_work = self.last_work(gpu).map(|at| moment.unix(at));
        b.add_known(&m::gpu_last_busy_timestamp_seconds, gpu, (), last_work);
        if !up {
            return;
        }
        if let Some(totals) = self.gpus.get(gpu) {
            for (event, seconds) in totals.clock_events.ours() {
                b.add(&m::gpu_clock_event_seconds_total, gpu, (event,), seconds);
                unsupported.remove(&m::gpu_clock_event_seconds_total.id());
            }
            for (event, starts) in totals.clock_events.starts() {
                b.add(&m::gpu_clock_event_starts_total, gpu, (event,), starts);
            }
            for (event, looks) in totals.clock_events.looks(moment.settings.clock_events_window, moment.now) {
                b.add(&m::gpu_clock_event_window_samples, gpu, (event,), looks);
            }
            totals.samples.publish(b, gpu, moment.now);
        }
        for (metric, subject, labels, sum) in self.gpm.of_gpu(gpu) {
            b.row(subject, metric, labels.to_vec(), Value::Number(sum));
            unsupported.remove(&metric);
        }
        publish_flops(b, moment.intake, gpu, moment.now);
    }
}

/// Sums of GPM seconds and bytes, by GPU and GPU instance.
#[derive(Default)]
pub(crate) struct GpmSums(BTreeMap<Subject, BTreeMap<(MetricId, Vec<LabelText>), f64>>);

impl GpmSums {
    pub fn add(&mut self, window: &GpmWindow) {
        let sums = self.0.entry(window.subject.clone()).or_default();
        for row in &window.sums {
            *sums.entry((row.metric, row.labels.clone())).or_insert(0.0) += row.value;
        }
    }

    /// Forgets the instances of a GPU whose layout has changed.
    pub fn forget_instances(&mut self, gpu: &Gpu) {
        self.0.retain(|subject, _| {
            !matches!(subject, Subject::GpuInstance(i) if i.gpu == gpu.gpu && i.uuid == gpu.uuid)
        });
    }

    fn forget(&mut self, gpu: &Gpu) {
        self.0.retain(|subject, _| subject.gpu() != Some((gpu.gpu, &gpu.uuid)));
    }

    /// Returns the sums of a GPU and its instances.
    fn of_gpu(&self, gpu: &Gpu) -> impl Iterator<Item = (MetricId, &Subject, &[LabelText], f64)> {
        let own = self.0.iter().filter(|(subject, _)| subject.gpu() == Some((gpu.gpu, &gpu.uuid)));
        own.flat_map(|(subject, sums)| {
            sums.iter().map(move |((metric, labels), sum)| (*metric, subject, &labels[..], *sum))
        })
    }
}

/// Publishes the estimated floating-point operations per second: activity x multiprocessors x operations per cycle x
/// clock.
fn publish_flops(b: &mut Builder<'_>, intake: &Intake, gpu: &Gpu, now: Mono) {
    let value = |metric: MetricId, label: Option<LabelText>| intake.value_of(gpu, metric, label, now);
    let capability = intake.info_of(gpu, "compute_capability");
    let cores = value(m::gpu_cuda_cores.id(), None);
    let hertz = value(m::gpu_clock_hertz.id(), Some(ClockDomain::Sm.text()));
    let (Some(capability), Some(cores), Some(hertz)) = (capability, cores, hertz) else { return };
    let activity = |unit: GpmUnit| value(m::gpu_gpm_active_ratio.id(), Some(unit.text()));
    for (pipe, rate) in estimate(&capability, cores, hertz, activity) {
        b.add(&m::gpu_flops_estimate, gpu, (pipe,), rate);
    }
}

/// Compute capability, FP32 lanes of a multiprocessor, and for each pipe its activity and operations per cycle.
type PipeRates = (&'static str, f64, &'static [(FlopPipe, GpmUnit, f64)]);

/// Operations per cycle of one multiprocessor, by pipe; a multiply-add counts as two. Derived from the peak rates and
/// clocks in NVIDIA's data sheets and architecture papers. H100 SXM with 132 multiprocessors: at 1980 MHz 66.9
/// TFLOP/s in FP32, the same in FP64 on tensor cores and 133.8 in FP16 outside them; at 1830 MHz 989 dense FP16 on
/// tensor cores. B200 with 148 multiprocessors: 74.5 in FP32 at 1965 MHz (its other rates are not derived here).
const PIPE_RATES: [PipeRates; 2] = [
    (
        "9.0",
        128.0,
        &[
            (FlopPipe::Fp64, GpmUnit::Fp64, 128.0),
            (FlopPipe::Fp32, GpmUnit::Fp32, 256.0),
            (FlopPipe::Fp16, GpmUnit::Fp16, 512.0),
            (FlopPipe::TensorDfma, GpmUnit::TensorDfma, 256.0),
            (FlopPipe::TensorHmma, GpmUnit::TensorHmma, 4096.0),
        ],
    ),
    ("10.0", 128.0, &[(FlopPipe::Fp32, GpmUnit::Fp32, 256.0)]),
];

/// Returns the estimates for a GPU of this compute capability, by its FP32 lanes (CUDA cores), the multiprocessor
/// clock in hertz and the activity of its units. A pipe without a figure is left out.
fn estimate(
    compute_capability: &str,
    cores: f64,
    hertz: f64,
    activity: impl Fn(GpmUnit) -> Option<f64>,
) -> Vec<(FlopPipe, f64)> {
    let Some((_, lanes, rates)) =
        PIPE_RATES.iter().find(|(capability, ..)| *capability == compute_capability)
    else {
        return Vec::new();
    };
    let multiprocessors = cores / lanes;
    let estimate = |(pipe, unit, a_cycle): &(FlopPipe, GpmUnit, f64)| {
        Some((*pipe, activity(*unit)? * multiprocessors * a_cycle * hertz))
    };
    rates.iter().filter_map(estimate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::catalog::GpuInstance;
    use model::catalog::schema::Entity;
    use model::sample::Row;

    #[test]
    fn a_fully_active_h100_has_the_rates_of_its_data_sheet() {
        let at = |hertz: f64, pipe| {
            let all = estimate("9.0", 16_896.0, hertz, |_| Some(1.0));
            all.iter().find(|(p, _)| *p == pipe).map(|(_, rate)| rate / 1e12).unwrap()
        };
        assert!((at(1.98e9, FlopPipe::Fp32) - 66.9).abs() < 0.1);
        assert!((at(1.98e9, FlopPipe::Fp64) - 33.5).abs() < 0.1);
        assert!((at(1.98e9, FlopPipe::TensorDfma) - 66.9).abs() < 0.1);
        assert!((at(1.83e9, FlopPipe::TensorHmma) - 989.0).abs() < 1.0);
    }

    #[test]
    fn nothing_is_estimated_of_what_is_not_known() {
        assert!(estimate("8.9", 18_176.0, 2e9, |_| Some(1.0)).is_empty());
        assert!(estimate("9.0", 16_896.0, 2e9, |_| None).is_empty());
    }

    #[test]
    fn windows_add_up_and_a_new_layout_starts_again() {
        let gpu = Gpu { gpu: 1, uuid: "a".into() };
        let part = GpuInstance { gpu: 1, uuid: "a".into(), gpu_instance: 3, profile: "1g".into() };
        let window = |subject, metric: MetricId, value| GpmWindow {
            subject,
            seconds: 10.0,
            sums: vec![Row { metric, labels: vec![GpmUnit::Sm.text()], value }],
        };
        let whole = m::gpu_gpm_active_seconds_total.id();
        let mut sums = GpmSums::default();
        sums.add(&window(gpu.subject(), whole, 2.0));
        sums.add(&window(gpu.subject(), whole, 3.0));
        sums.add(&window(part.subject(), m::gpu_mig_gpm_active_seconds_total.id(), 1.0));
        assert_eq!(sums.of_gpu(&gpu).map(|(.., sum)| sum).collect::<Vec<_>>(), [5.0, 1.0]);
        sums.forget_instances(&gpu);
        assert_eq!(sums.of_gpu(&gpu).map(|(.., sum)| sum).collect::<Vec<_>>(), [5.0]);
        let other = Gpu { gpu: 2, uuid: "b".into() };
        assert_eq!(sums.of_gpu(&other).count(), 0);
    }
}
