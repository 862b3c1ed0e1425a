//! One visit to one tier of one GPU: makes the calls, collects rows and gaps.

use std::collections::HashSet;

use nvml_wrapper::Device;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;

use super::driver::{CallName, Caller, Failure};
use super::gpu::Found;
use super::raw;
use super::wire::Orders;
use model::catalog::schema::{Entity, LabelSet, Metric};
use model::catalog::{Gpu, MetricId};
use model::owners::GpuProcess;
use model::sample::{Drained, Drop, Gap, Missing, Rows};

/// What a worker remembers of its GPU between visits, for the life of one handle.
#[derive(Debug)]
pub struct Memory {
    unsupported: HashSet<CallName>,
    off: HashSet<MetricId>,
    found: Found,
}

impl Memory {
    /// Knows nothing yet but how to work.
    pub fn new(orders: &Orders) -> Memory {
        Memory {
            unsupported: HashSet::new(),
            off: orders.off.iter().copied().collect(),
            found: Found::new(orders),
        }
    }

    /// Forgets what is unsupported and what was found out: MIG mode changes it.
    pub fn forget(&mut self) {
        self.unsupported.clear();
        self.found.forget();
    }
}

/// Answers to fields, by position.
type FieldAnswers = Vec<Result<SampleValue, NvmlError>>;

/// One visit.
#[derive(Debug)]
pub struct Visit<'a> {
    /// The GPU.
    pub gpu: &'a Gpu,
    device: &'a Device<'static>,
    caller: &'a mut Caller,
    memory: &'a mut Memory,
    /// What was learned.
    pub rows: Rows,
    /// What was not.
    pub gaps: Vec<Gap>,
    /// Readings of which each counts.
    pub drained: Vec<Drained>,
    /// Processes on the GPU, the canary's own left out; `None`: they were not listed.
    pub processes: Option<Vec<GpuProcess>>,
    /// Set when GPU or driver turned out to be gone; nothing more is asked then.
    pub ended: Option<Failure>,
    asked: u32,
    succeeded: u32,
}

/// A number as NVML gives it. `None` is NVML's "no value" sentinel: all bits set, or, for 64 bits, the
/// largest signed number and the "blank" values just below it.
pub trait Number {
    /// As a float, or nothing.
    fn number(self) -> Option<f64>;
}

impl Number for u32 {
    fn number(self) -> Option<f64> {
        (self != u32::MAX).then_some(f64::from(self))
    }
}

impl Number for i32 {
    fn number(self) -> Option<f64> {
        (self < 0x7fff_fff0).then_some(f64::from(self))
    }
}

impl Number for u64 {
    fn number(self) -> Option<f64> {
        (self < 0x7fff_ffff_ffff_fff0).then_some(self as f64)
    }
}

impl Number for bool {
    fn number(self) -> Option<f64> {
        Some(if self { 1.0 } else { 0.0 })
    }
}

impl Number for usize {
    fn number(self) -> Option<f64> {
        (self as u64).number()
    }
}

impl Number for SampleValue {
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

/// From a number of the driver to the metric's unit. Divides by whole numbers instead of multiplying by
/// fractions, so that 57 % is 0.57 and not 0.5700000000000001.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// What a number is multiplied with.
    pub times: f64,
    /// What it is divided by.
    pub over: f64,
}

impl Scale {
    /// As it is.
    pub const ONE: Scale = Scale { times: 1.0, over: 1.0 };
    /// Percent to a ratio.
    pub const PERCENT: Scale = Scale { times: 1.0, over: 100.0 };
    /// Thousandths.
    pub const MILLI: Scale = Scale { times: 1.0, over: 1e3 };
    /// Millionths.
    pub const MICRO: Scale = Scale { times: 1.0, over: 1e6 };
    /// Thousandths of thousandths of thousandths.
    pub const NANO: Scale = Scale { times: 1.0, over: 1e9 };
    /// Bits to bytes.
    pub const BITS: Scale = Scale { times: 1.0, over: 8.0 };
    /// KiB to bytes.
    pub const KIBI: Scale = Scale { times: 1024.0, over: 1.0 };
    /// Millions.
    pub const MEGA: Scale = Scale { times: 1e6, over: 1.0 };

    fn apply(self, number: f64) -> f64 {
        number * self.times / self.over
    }
}

/// Where the value of a field goes: rows, GPU, the field's scope, value in the metric's unit.
type Put = fn(&mut Rows, &Gpu, u32, f64) -> Result<(), Drop>;

/// One NVML field: its id, where its value goes, and how it gets to the metric's unit.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    id: u32,
    scope: Option<u32>,
    metric: MetricId,
    put: Put,
    scale: Scale,
}

impl Field {
    /// A field that feeds one metric.
    pub const fn new(id: u32, metric: MetricId, scale: Scale, put: Put) -> Field {
        Field { id, scope: None, metric, put, scale }
    }

    /// The same field of a part of the GPU, as a link.
    pub const fn of(self, scope: u32) -> Field {
        Field { scope: Some(scope), ..self }
    }

    /// Its id, in the numbering of the bindings.
    pub const fn id(&self) -> u32 {
        self.id
    }

    fn name(&self) -> CallName {
        match self.scope {
            None => ("nvmlDeviceGetFieldValues", self.id).into(),
            Some(scope) => ("nvmlDeviceGetFieldValues", [self.id, scope]).into(),
        }
    }
}

impl<'a> Visit<'a> {
    /// Begins a visit.
    pub fn new(
        gpu: &'a Gpu,
        device: &'a Device<'static>,
        caller: &'a mut Caller,
        memory: &'a mut Memory,
    ) -> Visit<'a> {
        Visit {
            gpu,
            device,
            caller,
            memory,
            rows: Rows::default(),
            gaps: Vec::new(),
            drained: Vec::new(),
            processes: None,
            ended: None,
            asked: 0,
            succeeded: 0,
        }
    }

    /// Makes a call that feeds these metrics. `None` if there is no answer; the gap is noted.
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
        let failure = if self.memory.unsupported.contains(&call) {
            Failure::Unsupported
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
        if failure == Failure::Unsupported {
            self.memory.unsupported.insert(call);
        }
        self.gap(call, feeds, failure.missing());
        if matches!(failure, Failure::Lost(..) | Failure::DriverGone(..)) {
            self.ended = Some(failure);
        }
        None
    }

    /// Whether a call is not known to be unsupported.
    pub fn supports(&self, call: impl Into<CallName>) -> bool {
        !self.memory.unsupported.contains(&call.into())
    }

    /// Whether any of these metrics is to be published.
    pub fn wants(&self, metrics: &[MetricId]) -> bool {
        metrics.iter().any(|metric| !self.memory.off.contains(metric))
    }

    /// Whether the GPU answers: a call succeeded, or none was to be made.
    pub fn answered(&self) -> bool {
        self.ended.is_none() && (self.asked == 0 || self.succeeded > 0)
    }

    /// Whether any call failed (not: that the device does not support it).
    pub fn failed(&self) -> bool {
        self.gaps.iter().any(|gap| matches!(gap.missing, Missing::Failed { .. }))
    }

    /// Makes a call that feeds one metric: `scale` takes the value to the metric's unit.
    pub fn value<L: LabelSet, N: Number>(
        &mut self,
        call: impl Into<CallName>,
        metric: &Metric<Gpu, L>,
        labels: L,
        scale: Scale,
        f: impl FnOnce(&Device<'static>) -> Result<N, NvmlError>,
    ) {
        let call = call.into();
        if let Some(value) = self.read(call, &[metric.id()], f) {
            self.put(call, metric, labels, value, scale);
        }
    }

    /// Adds a value a call gave about the GPU; a value that cannot be true becomes a gap.
    pub fn put<L: LabelSet>(
        &mut self,
        call: impl Into<CallName>,
        metric: &Metric<Gpu, L>,
        labels: L,
        value: impl Number,
        scale: Scale,
    ) {
        self.put_for(self.gpu, call, metric, labels, value, scale);
    }

    /// Adds a value about the GPU or a part of it.
    pub fn put_for<E: Entity, L: LabelSet>(
        &mut self,
        entity: &E,
        call: impl Into<CallName>,
        metric: &Metric<E, L>,
        labels: L,
        value: impl Number,
        scale: Scale,
    ) {
        if self.memory.off.contains(&metric.id()) {
            return;
        }
        let put = match value.number() {
            Some(number) => self.rows.of(entity).put(metric, labels, scale.apply(number)),
            None => Err(Drop::Blank),
        };
        if let Err(drop) = put {
            self.gap(call.into(), &[metric.id()], Missing::Dropped(drop));
        }
    }

    /// Reads fields in one call. Each field has a return code of its own; a field the device does not
    /// know is not asked again.
    pub fn fields(&mut self, fields: &[Field]) {
        self.fields_by(fields, |device, asked| {
            let ids: Vec<_> = asked.iter().map(|f| FieldId(f.id)).collect();
            let samples = device.field_values_for(&ids)?;
            Ok(samples.into_iter().map(|sample| sample.and_then(|s| s.value)).collect())
        });
    }

    /// As [`Visit::fields`], for fields of parts of the GPU ([`Field::of`]).
    pub fn fields_of_parts(&mut self, fields: &[Field]) {
        self.fields_by(fields, |device, asked| {
            let ids: Vec<_> = asked.iter().map(|f| (f.id, f.scope.unwrap_or(0))).collect();
            raw::fields::values_at(device, &ids)
        });
    }

    fn fields_by(
        &mut self,
        fields: &[Field],
        ask: impl FnOnce(&Device<'static>, &[&Field]) -> Result<FieldAnswers, NvmlError>,
    ) {
        let mut asked = Vec::with_capacity(fields.len());
        for field in fields {
            if self.memory.off.contains(&field.metric) {
                continue;
            }
            if self.memory.unsupported.contains(&field.name()) {
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
        let Some(values) = self.read("nvmlDeviceGetFieldValues", &feeds, |device| ask(device, &asked)) else {
            return;
        };
        // By position: on newer drivers the wrapper renumbers ids, and the answers carry the new numbers.
        for (field, value) in asked.into_iter().zip(values) {
            let failure = match value {
                Ok(value) => {
                    let scope = field.scope.unwrap_or(0);
                    let put = match value.number() {
                        Some(number) => {
                            (field.put)(&mut self.rows, self.gpu, scope, field.scale.apply(number))
                        }
                        None => Err(Drop::Blank),
                    };
                    if let Err(drop) = put {
                        self.gap(field.name(), &[field.metric], Missing::Dropped(drop));
                    }
                    continue;
                }
                Err(error) => super::driver::classify(&error),
            };
            if failure == Failure::Unsupported {
                self.memory.unsupported.insert(field.name());
            }
            self.gap(field.name(), &[field.metric], failure.missing());
            if matches!(failure, Failure::Lost(..) | Failure::DriverGone(..)) {
                self.ended = Some(failure);
                return;
            }
        }
    }

    /// Says that the GPU has no such values, by what `call` showed.
    pub fn unsupported(&mut self, call: impl Into<CallName>, metrics: &[MetricId]) {
        let wanted: Vec<_> = metrics.iter().copied().filter(|m| !self.memory.off.contains(m)).collect();
        if !wanted.is_empty() {
            self.gap(call.into(), &wanted, Missing::Unsupported);
        }
    }

    /// Says that a call gave what cannot be true.
    pub fn dropped(&mut self, call: impl Into<CallName>, metric: MetricId, drop: Drop) {
        self.gap(call.into(), &[metric], Missing::Dropped(drop));
    }

    /// Calls that failed (not: that the device does not support) so far.
    pub fn failures(&self) -> usize {
        self.gaps.iter().filter(|gap| matches!(gap.missing, Missing::Failed { .. })).count()
    }

    /// What was found out of the GPU, and how it is to be looked at.
    pub fn found(&mut self) -> &mut Found {
        &mut self.memory.found
    }

    /// Notes what could not be read, and why.
    pub fn gap(&mut self, call: CallName, metrics: &[MetricId], missing: Missing) {
        self.gaps.push(Gap { call: call.to_string(), metrics: metrics.to_vec(), missing });
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
