//! One visit to one tier of one GPU, which makes the calls and collects rows and gaps.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use nvml_wrapper::Device;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;

use super::Shared;
use super::canary_pids::CanaryPids;
use super::driver::{CallFailure, CallName, Caller, classify, gap};
use super::raw;
use super::wire::SamplerSettings;
use model::catalog::schema::{Entity, LabelSet, LabelText, Metric};
use model::catalog::{CollectorName, DropReason, Gpu, MetricId, Tier};
use model::clock::Mono;
use model::owners::GpuProcess;
use model::sample::{Batch, BatchKey, Drained, Gap, Missing, Rows};

/// State of a GPU between visits, for the life of one handle.
#[derive(Debug, Default)]
pub(crate) struct HandleState {
    unsupported: HashSet<CallName>,
    /// Whether the log already reports that a call is not permitted, which is logged once per handle.
    forbidden: bool,
    pub canary_pids: CanaryPids,
    pub slowdown: Slowdown,
    /// Whether MIG mode was on at the last reading.
    pub mig_enabled: bool,
    /// Lowest temperature in degrees Celsius at which the clocks are lowered, if the driver reports it. The
    /// outer `None` means that it was not read yet.
    pub slowdown_celsius: Option<Option<f64>>,
    pub link_rates: LinkRates,
    /// Work of the GPU since the last GPM window, by the utilization rates of the normal visits.
    pub work: Work,
    /// Last list of compute processes without the canary's; `None` if listing them failed or was not tried.
    pub compute: Option<Vec<ProcessInfo>>,
    /// Number of NVLinks; `None` while unknown.
    pub links: Option<u32>,
    /// Whether the links have the counters of NVLink 5; `None` while unknown.
    pub nvlink5: Option<bool>,
    /// Last published byte counters of the NVLinks, with the time of the reading.
    pub nvlink_bytes: HashMap<(MetricId, Option<LabelText>), (Mono, f64)>,
    /// Links that were up at the last slow visit; `None` before the first.
    pub links_up: Option<Vec<u32>>,
    /// PCI address in the kernel's spelling; `None` while unknown.
    pub pci_address: Option<String>,
    /// End of the newest sample of process utilization, in microseconds since 1970.
    pub processes_seen: u64,
    /// End of the newest sample of virtual GPUs' utilization, in microseconds since 1970.
    pub vgpus_seen: u64,
}

/// Maximum rates of the GPU's links in bytes per second and direction, if known. The outer `None` means that
/// the rate was not read yet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LinkRates {
    pub pcie: Option<Option<f64>>,
    /// Total of all NVLinks that are up.
    pub nvlink: Option<Option<f64>>,
}

/// Tolerance for a rate measured between two moments, which may be slightly above the rate of the link.
pub const LINK_TOLERANCE: f64 = 1.05;

/// Summary of several utilization rates.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    pub busy: bool,
    /// Whether the GPU was idle at least once, or a rate could not be read.
    pub idle: bool,
}

/// State of the hardware slowdown counters, see `gpu/slowdown.rs`.
#[derive(Debug, Default)]
pub(crate) struct Slowdown {
    /// Whether a slowdown occurred, or may have occurred, since the counters were read.
    pub seen: bool,
    /// Whether a slowdown occurred before the counters were read, so that it may have lasted until just after
    /// the reading.
    pub again: bool,
    /// Time and rows of the last reading; `None` if the rows must not be published again.
    pub read: Option<(Mono, Rows)>,
}

impl HandleState {
    /// Discards the results of calls that may have been skipped because no published metric needed them.
    pub fn wanted_changed(&mut self) {
        self.slowdown.read = None;
        self.slowdown_celsius = None;
    }

    /// Discards everything that a change of the MIG mode or layout may have changed.
    pub fn forget(&mut self) {
        let HandleState { forbidden, mig_enabled, processes_seen, vgpus_seen, .. } = *self;
        *self = HandleState { forbidden, mig_enabled, processes_seen, vgpus_seen, ..HandleState::default() };
    }
}

pub(crate) struct Visit<'a> {
    pub shared: &'a Shared,
    /// Settings of this visit.
    pub settings: Arc<SamplerSettings>,
    pub gpu: &'a Gpu,
    device: &'a Device<'static>,
    caller: &'a mut Caller,
    /// State of the GPU from earlier visits.
    pub state: &'a mut HandleState,
    pub rows: Rows,
    pub gaps: Vec<Gap>,
    pub drained: Vec<Drained>,
    /// Processes on the GPU without the canary's; `None` if they were not listed.
    pub processes: Option<Vec<GpuProcess>>,
    /// Set when the GPU or the driver is gone. No further call is made after that.
    pub ended: Option<CallFailure>,
    asked: u32,
    succeeded: u32,
}

/// A number reported by NVML. `None` means one of NVML's "no value" sentinels: all bits set or, for 64 bits, the
/// largest signed number and the "blank" values just below it.
pub(crate) trait NvmlNumber {
    fn number(self) -> Option<f64>;
}

macro_rules! nvml_numbers {
    ($($type:ty: |$value:ident| $number:expr;)*) => {$(
        impl NvmlNumber for $type {
            fn number(self) -> Option<f64> {
                let $value = self;
                $number
            }
        }
    )*};
}

nvml_numbers! {
    u32: |n| (n != u32::MAX).then_some(f64::from(n));
    i32: |n| (n < 0x7fff_fff0).then_some(f64::from(n));
    u64: |n| (n < 0x7fff_ffff_ffff_fff0).then_some(n as f64);
    usize: |n| (n as u64).number();
    bool: |is_true| Some(f64::from(is_true));
    Option<f64>: |n| n;
}

impl NvmlNumber for SampleValue {
    fn number(self) -> Option<f64> {
        match self {
            SampleValue::F64(v) => Some(v),
            SampleValue::U32(v) => v.number(),
            SampleValue::U64(v) => v.number(),
            SampleValue::I64(v) => Some(v as f64).filter(|_| v < 0x7fff_ffff_ffff_fff0),
            #[allow(unreachable_patterns)]
            _ => None,
        }
    }
}

/// Conversion from a number of the driver to the unit of the metric. It divides by whole numbers instead of
/// multiplying by fractions, so that 57 % is 0.57 and not 0.5700000000000001.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub times: f64,
    pub over: f64,
}

impl Scale {
    fn apply(self, number: f64) -> f64 {
        number * self.times / self.over
    }
}

pub const ONE: Scale = Scale { times: 1.0, over: 1.0 };
pub const PERCENT: Scale = Scale { times: 1.0, over: 100.0 };
pub const MILLI: Scale = Scale { times: 1.0, over: 1e3 };
pub const MICRO: Scale = Scale { times: 1.0, over: 1e6 };
pub const NANO: Scale = Scale { times: 1.0, over: 1e9 };
pub const BITS: Scale = Scale { times: 1.0, over: 8.0 };
pub const KIBI: Scale = Scale { times: 1024.0, over: 1.0 };
pub const MEGA: Scale = Scale { times: 1e6, over: 1.0 };

/// Adds the value of a field to the rows. The arguments are the rows, the GPU, the scope of the field, and the
/// value in the unit of the metric.
type AddValue = fn(&mut Rows, &Gpu, u32, f64) -> Result<(), DropReason>;

/// One NVML field with its id, its scale and the function that adds its value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field {
    id: u32,
    scope: Option<u32>,
    metric: MetricId,
    add: AddValue,
    scale: Scale,
}

impl Field {
    /// Returns a field that feeds one metric.
    pub const fn new(id: u32, metric: MetricId, scale: Scale, add: AddValue) -> Field {
        Field { id, scope: None, metric, add, scale }
    }

    /// Returns the same field for a part of the GPU, for example a link.
    pub const fn scoped(self, scope: u32) -> Field {
        Field { scope: Some(scope), ..self }
    }

    /// Returns the id in the numbering of the bindings.
    pub const fn id(&self) -> u32 {
        self.id
    }

    /// Returns the metric that the field feeds.
    #[cfg(test)]
    pub const fn metric(&self) -> MetricId {
        self.metric
    }

    fn name(&self) -> CallName {
        match self.scope {
            None => ("nvmlDeviceGetFieldValues", self.id).into(),
            Some(scope) => ("nvmlDeviceGetFieldValues", [self.id, scope]).into(),
        }
    }
}

impl<'a> Visit<'a> {
    pub fn new(
        shared: &'a Shared,
        settings: &Arc<SamplerSettings>,
        gpu: &'a Gpu,
        device: &'a Device<'static>,
        caller: &'a mut Caller,
        state: &'a mut HandleState,
    ) -> Visit<'a> {
        Visit {
            shared,
            settings: Arc::clone(settings),
            gpu,
            device,
            caller,
            state,
            rows: Rows::default(),
            gaps: Vec::new(),
            drained: Vec::new(),
            processes: None,
            ended: None,
            asked: 0,
            succeeded: 0,
        }
    }

    /// Makes a call that feeds these metrics. Returns `None` and records a gap if there is no answer.
    pub fn read<T>(
        &mut self,
        call: impl Into<CallName>,
        feeds: &[MetricId],
        f: impl FnOnce(&Device<'static>) -> Result<T, NvmlError>,
    ) -> Option<T> {
        let call = call.into();
        if self.ended.is_some() || !self.wants(feeds) {
            return None;
        }
        let failure = if self.state.unsupported.contains(&call) {
            CallFailure::Unsupported
        } else {
            self.asked += 1;
            match self.caller.call(call, || f(self.device)) {
                Ok(value) => {
                    self.succeeded += 1;
                    return Some(value);
                }
                Err(failure) => failure,
            }
        };
        self.failed(call, feeds, failure);
        None
    }

    /// Makes a call like [`Visit::read`] that the driver answers only to privileged users (CAP_SYS_ADMIN).
    /// Without that capability the exporter publishes what the MIG devices themselves report, so the call
    /// counts as unsupported.
    pub fn read_privileged<T>(
        &mut self,
        call: impl Into<CallName>,
        feeds: &[MetricId],
        f: impl FnOnce(&Device<'static>) -> Result<T, NvmlError>,
    ) -> Option<T> {
        let mut forbidden = false;
        let call = call.into();
        let answer = self.read(call, feeds, |d| match f(d) {
            Err(NvmlError::NoPermission) => {
                forbidden = true;
                Err(NvmlError::NotSupported)
            }
            other => other,
        });
        if forbidden && !std::mem::replace(&mut self.state.forbidden, true) {
            tracing::info!(
                "{} requires CAP_SYS_ADMIN; placement and capacity of the MIG instances of GPU {} are missing",
                call.function,
                self.gpu.gpu
            );
        }
        answer
    }

    fn failed(&mut self, call: CallName, feeds: &[MetricId], failure: CallFailure) {
        if failure == CallFailure::Unsupported {
            self.state.unsupported.insert(call);
        }
        self.gap(call, feeds, failure.missing());
        if failure.is_final() {
            self.ended = Some(failure);
        }
    }

    /// Removes the canary's processes from a list.
    pub fn retain_foreign(&mut self, list: &mut Vec<ProcessInfo>) {
        if list.is_empty() {
            return;
        }
        let canaries = model::sync::lock(&self.shared.canaries).clone();
        let lock_file = host::flock::gpu_lock(&self.shared.config.canary_lock, &self.gpu.uuid);
        list.retain(|process| !self.state.canary_pids.is_canary(process.pid, &canaries, &lock_file));
    }

    /// Returns whether the call may be supported.
    pub fn supports(&self, call: impl Into<CallName>) -> bool {
        !self.state.unsupported.contains(&call.into())
    }

    /// Makes unsupported calls possible again, because the reason may have disappeared.
    pub fn ask_again(&mut self, calls: impl Fn(&CallName) -> bool) {
        self.state.unsupported.retain(|call| !calls(call));
    }

    /// Returns whether any of these metrics is published.
    pub fn wants(&self, metrics: &[MetricId]) -> bool {
        metrics.iter().any(|metric| !self.settings.off.contains(metric))
    }

    /// Returns the batch of this visit for `epoch`, and the failure if the GPU or the driver is gone.
    pub fn into_batch(self, tier: Tier, epoch: u64, taken: Mono) -> (Batch, Option<CallFailure>) {
        let part = BatchKey { collector: CollectorName::Nvml, gpu: Some(self.gpu.clone()), tier };
        let batch = Batch {
            // The GPU answers if a call succeeded or no call was necessary.
            answered: self.ended.is_none() && (self.asked == 0 || self.succeeded > 0),
            rows: self.rows,
            gaps: self.gaps,
            drained: self.drained,
            processes: self.processes,
            calls: self.caller.take_costs(),
            ..Batch::new(part, epoch, taken, self.settings.lifetime(tier))
        };
        (batch, self.ended)
    }

    /// Returns the number of failed calls so far. An unsupported call does not count.
    pub fn failures(&self) -> usize {
        self.gaps.iter().filter(|gap| matches!(gap.missing, Missing::Failed { .. })).count()
    }

    /// Makes a call that feeds one metric of the GPU, and converts the value with `scale`. Returns the number
    /// of the driver.
    pub fn value<L: LabelSet, N: NvmlNumber + Copy>(
        &mut self,
        call: impl Into<CallName>,
        metric: &Metric<Gpu, L>,
        labels: L,
        scale: Scale,
        f: impl FnOnce(&Device<'static>) -> Result<N, NvmlError>,
    ) -> Option<N> {
        let call = call.into();
        let value = self.read(call, &[metric.id()], f)?;
        self.add(call, metric, labels, value, scale);
        Some(value)
    }

    /// Makes a call that feeds several metrics with the same unit. The call returns the values in the order of
    /// the metrics.
    pub fn values<E: Entity, const N: usize>(
        &mut self,
        entity: &E,
        call: impl Into<CallName>,
        metrics: [&Metric<E, ()>; N],
        scale: Scale,
        f: impl FnOnce(&Device<'static>) -> Result<[Option<f64>; N], NvmlError>,
    ) {
        let call = call.into();
        if let Some(values) = self.read(call, &metrics.map(Metric::id), f) {
            for (metric, value) in metrics.into_iter().zip(values) {
                self.add_for(entity, call, metric, (), value, scale);
            }
        }
    }

    /// Adds a value about the GPU. A value out of range becomes a gap.
    pub(crate) fn add<L: LabelSet>(
        &mut self,
        call: impl Into<CallName>,
        metric: &Metric<Gpu, L>,
        labels: L,
        value: impl NvmlNumber,
        scale: Scale,
    ) {
        self.add_for(self.gpu, call, metric, labels, value, scale);
    }

    /// Adds a value about the GPU or a part of it.
    pub(crate) fn add_for<E: Entity, L: LabelSet>(
        &mut self,
        entity: &E,
        call: impl Into<CallName>,
        metric: &Metric<E, L>,
        labels: L,
        value: impl NvmlNumber,
        scale: Scale,
    ) {
        if !self.wants(&[metric.id()]) {
            return;
        }
        let put = value.number().ok_or(DropReason::Blank);
        let put = put.and_then(|number| self.rows.entity(entity).record(metric, labels, scale.apply(number)));
        if let Err(drop) = put {
            self.dropped(call, metric.id(), drop);
        }
    }

    /// Reads fields in one call. Every field has its own return code, and a field that the device does not
    /// support is not read again.
    pub fn fields(&mut self, fields: &[Field]) {
        let mut asked = Vec::with_capacity(fields.len());
        let settings = Arc::clone(&self.settings);
        for field in fields.iter().filter(|field| !settings.off.contains(&field.metric)) {
            if self.state.unsupported.contains(&field.name()) {
                self.gap(field.name(), &[field.metric], Missing::Unsupported);
            } else {
                asked.push(field);
            }
        }
        if asked.is_empty() {
            return;
        }
        let mut feeds: Vec<_> = asked.iter().map(|f| f.metric).collect();
        feeds.dedup();
        let ids: Vec<_> = asked.iter().map(|f| (f.id, f.scope.unwrap_or(0))).collect();
        let Some(values) = self.read("nvmlDeviceGetFieldValues", &feeds, |d| raw::fields::values_at(d, &ids))
        else {
            return;
        };
        // Matched by position, because newer drivers number some fields differently and the answers contain
        // their numbers.
        for (field, value) in asked.into_iter().zip(values) {
            match value {
                Ok(value) => {
                    let scope = field.scope.unwrap_or(0);
                    let put = value.number().ok_or(DropReason::Blank).and_then(|number| {
                        (field.add)(&mut self.rows, self.gpu, scope, field.scale.apply(number))
                    });
                    if let Err(drop) = put {
                        self.dropped(field.name(), field.metric, drop);
                    }
                }
                Err(error) => self.failed(field.name(), &[field.metric], classify(&error)),
            }
            if self.ended.is_some() {
                return;
            }
        }
    }

    /// Records that the answer of `call` showed that the GPU lacks these values.
    pub fn unsupported(&mut self, call: impl Into<CallName>, metrics: &[MetricId]) {
        let wanted: Vec<_> = metrics.iter().copied().filter(|m| !self.settings.off.contains(m)).collect();
        if !wanted.is_empty() {
            self.gap(call.into(), &wanted, Missing::Unsupported);
        }
    }

    /// Records that a call returned a value out of range.
    pub fn dropped(&mut self, call: impl Into<CallName>, metric: MetricId, drop: DropReason) {
        self.gap(call.into(), &[metric], Missing::Dropped(drop));
    }

    /// Records metrics without a value, with the reason.
    pub fn gap(&mut self, call: CallName, metrics: &[MetricId], missing: Missing) {
        self.gaps.push(gap(call, metrics, missing));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentinels_are_no_numbers() {
        assert_eq!(u32::MAX.number(), None);
        assert_eq!(99u32.number(), Some(99.0));
        assert_eq!(u64::MAX.number(), None);
        assert_eq!((i64::MAX as u64).number(), None);
        assert_eq!(0x7fff_ffff_ffff_fff0u64.number(), None);
        assert_eq!((1u64 << 40).number(), Some((1u64 << 40) as f64));
        assert_eq!(0x7fff_fff0i32.number(), None);
        assert_eq!((-20i32).number(), Some(-20.0));
        assert_eq!(SampleValue::U32(u32::MAX).number(), None);
        assert_eq!(SampleValue::U64(u64::MAX).number(), None);
        assert_eq!(SampleValue::I64(i64::MAX).number(), None);
    }
}
