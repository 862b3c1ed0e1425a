//! GPM: what the units of the GPU did between two samples of the driver's profiling counters (Hopper and
//! later). The counters have one reader at a time, so they can be switched off, which frees the samples.
//!
//! Windows follow each other without a gap: the sample that ends one begins the next.

use std::collections::HashMap;

use nvml_wrapper::GpmSample;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::gpm::gpm_metrics_get;

use super::visit::Visit;
use crate::catalog::schema::{Entity, Label, Metric};
use crate::catalog::{self as m, Direction, GpmUnit, GpuInstance, MetricId, Subject};
use crate::clock::Mono;
use crate::sample::{Drained, Drop, GpmWindow, Missing, Row};

/// Units of the GPU with their GPM metric, a percentage.
const UNITS: [(GpmMetricId, GpmUnit); 12] = [
    (GpmMetricId::GraphicsUtil, GpmUnit::Graphics),
    (GpmMetricId::SmUtil, GpmUnit::Sm),
    (GpmMetricId::SmOccupancy, GpmUnit::SmOccupancy),
    (GpmMetricId::IntegerUtil, GpmUnit::Integer),
    (GpmMetricId::AnyTensorUtil, GpmUnit::Tensor),
    (GpmMetricId::DfmaTensorUtil, GpmUnit::TensorDfma),
    (GpmMetricId::HmmaTensorUtil, GpmUnit::TensorHmma),
    (GpmMetricId::ImmaTensorUtil, GpmUnit::TensorImma),
    (GpmMetricId::DramBwUtil, GpmUnit::Dram),
    (GpmMetricId::Fp64Util, GpmUnit::Fp64),
    (GpmMetricId::Fp32Util, GpmUnit::Fp32),
    (GpmMetricId::Fp16Util, GpmUnit::Fp16),
];

/// Links with their GPM metric, a rate in MiB a second.
const RATES: [(GpmMetricId, Wire, Direction); 4] = [
    (GpmMetricId::PcieTxPerSec, Wire::Pcie, Direction::Tx),
    (GpmMetricId::PcieRxPerSec, Wire::Pcie, Direction::Rx),
    (GpmMetricId::NvlinkTotalTxPerSec, Wire::NvLink, Direction::Tx),
    (GpmMetricId::NvlinkTotalRxPerSec, Wire::NvLink, Direction::Rx),
];

/// Ids of all GPM metrics that are read.
pub fn metrics_read() -> impl Iterator<Item = u32> {
    UNITS.iter().map(|(id, _)| id.as_c()).chain(RATES.iter().map(|(id, ..)| id.as_c()))
}

const MIB: f64 = 1_048_576.0;
/// A unit can be measured a little more than always active, as numerator and denominator are not read at
/// the same instant. More than this is no rounding.
const MOST_PERCENT: f64 = 105.0;

const METRICS_GET: &str = "nvmlGpmMetricsGet";

#[derive(Clone, Copy, PartialEq)]
enum Wire {
    Pcie,
    NvLink,
}

/// The metrics of one kind of subject.
struct Family<E: Entity + 'static> {
    active: &'static Metric<E, (GpmUnit,)>,
    seconds: &'static Metric<E, (GpmUnit,)>,
    pcie: &'static Metric<E, (Direction,)>,
    nvlink: &'static Metric<E, (Direction,)>,
}

impl<E: Entity + 'static> Family<E> {
    fn feeds(&self) -> [MetricId; 4] {
        [self.active.id(), self.seconds.id(), self.pcie.id(), self.nvlink.id()]
    }
}

const WHOLE: Family<m::Gpu> = Family {
    active: &m::gpu_gpm_active_ratio,
    seconds: &m::gpu_gpm_active_seconds_total,
    pcie: &m::gpu_gpm_pcie_bytes_total,
    nvlink: &m::gpu_gpm_nvlink_bytes_total,
};

const INSTANCE: Family<GpuInstance> = Family {
    active: &m::gpu_mig_gpm_active_ratio,
    seconds: &m::gpu_mig_gpm_active_seconds_total,
    pcie: &m::gpu_mig_gpm_pcie_bytes_total,
    nvlink: &m::gpu_mig_gpm_nvlink_bytes_total,
};

/// The newest sample of the GPU and of each of its GPU instances: the beginning of the next window.
#[derive(Debug, Default)]
pub struct Gpm {
    begun: HashMap<Option<u32>, (GpmSample<'static>, Mono)>,
    supported: Option<bool>,
}

impl Gpm {
    /// Ends a window and begins the next, of the GPU and of its GPU instances. Switched off, it frees
    /// the samples.
    pub fn read(&mut self, v: &mut Visit<'_>, on: bool, instances: &[GpuInstance]) {
        const SUPPORT: &str = "nvmlGpmQueryDeviceSupport";
        let feeds: Vec<MetricId> =
            [m::gpu_gpm_enabled.id()].into_iter().chain(WHOLE.feeds()).chain(INSTANCE.feeds()).collect();
        if !v.wants(&feeds) {
            return;
        }
        if self.supported.is_none() {
            self.supported = v.read(SUPPORT, &feeds, |d| d.gpm_support());
        }
        match self.supported {
            Some(true) => {}
            Some(false) => return v.gap(SUPPORT.into(), &feeds, Missing::Unsupported),
            None => return,
        }
        v.rows.of(v.gpu).flag(&m::gpu_gpm_enabled, (), on);
        if !on {
            self.begun.clear();
            return;
        }
        self.begun.retain(|of, _| of.is_none_or(|id| instances.iter().any(|i| i.gpu_instance == id)));
        if v.wants(&WHOLE.feeds()) {
            let gpu = v.gpu.clone();
            self.window(v, &gpu, None, &WHOLE);
        }
        if v.wants(&INSTANCE.feeds()) {
            for instance in instances {
                self.window(v, instance, Some(instance.gpu_instance), &INSTANCE);
            }
        }
    }

    /// What was read under another MIG layout is void.
    pub fn forget(&mut self) {
        self.begun.clear();
    }

    fn window<E: Entity + 'static>(
        &mut self,
        v: &mut Visit<'_>,
        entity: &E,
        id: Option<u32>,
        family: &Family<E>,
    ) {
        let feeds = family.feeds();
        let sampled = match id {
            None => v.read("nvmlGpmSampleGet", &feeds, |d| d.gpm_sample()),
            Some(id) => v.read(("nvmlGpmMigSampleGet", id), &feeds, |d| d.gpm_mig_sample(id)),
        };
        // A sample that failed leaves the window open; one that is not supported leaves none.
        let Some(sample) = sampled else { return };
        let now = Mono::now();
        let Some((begin, since)) = self.begun.get(&id) else {
            // Counters begin at 0 with the first sample, before anything was measured.
            v.drained.push(Drained::Gpm(born(entity.subject(), family)));
            self.begun.insert(id, (sample, now));
            return;
        };
        let seconds = now.since(*since).as_secs_f64();
        let ids: Vec<GpmMetricId> =
            UNITS.iter().map(|(id, _)| *id).chain(RATES.iter().map(|(id, ..)| *id)).collect();
        let Some(values) = v.read(METRICS_GET, &feeds, |d| gpm_metrics_get(d.nvml(), begin, &sample, &ids))
        else {
            return;
        };
        self.begun.insert(id, (sample, now));
        let mut values = values.into_iter().map(|value| value.map(|result| result.value));
        let mut sums = Vec::new();
        for ((metric, unit), value) in UNITS.iter().zip(&mut values) {
            let call = (METRICS_GET, metric.as_c());
            match value {
                Ok(percent) => match ratio(percent) {
                    Ok(ratio) => {
                        let put = v.rows.of(entity).put(family.active, (*unit,), ratio);
                        debug_assert!(put.is_ok());
                        sums.push(row(family.seconds, unit.text(), ratio * seconds));
                    }
                    Err(drop) => v.gap(call.into(), &feeds[..2], Missing::Dropped(drop)),
                },
                Err(error) => v.gap(call.into(), &feeds[..2], super::driver::classify(&error).missing()),
            }
        }
        for ((metric, wire, direction), value) in RATES.iter().zip(&mut values) {
            let call = (METRICS_GET, metric.as_c());
            let total = if *wire == Wire::Pcie { family.pcie } else { family.nvlink };
            match value {
                // 10 PB/s: no link is as fast.
                Ok(rate) if (0.0..1e10).contains(&rate) => {
                    sums.push(row(total, direction.text(), rate * MIB * seconds));
                }
                Ok(_) => v.gap(call.into(), &[total.id()], Missing::Dropped(Drop::OutOfRange)),
                Err(error) => v.gap(call.into(), &[total.id()], super::driver::classify(&error).missing()),
            }
        }
        v.drained.push(Drained::Gpm(GpmWindow { subject: entity.subject(), seconds, sums }));
    }
}

/// A window in which nothing was measured.
fn born<E: Entity + 'static>(subject: Subject, family: &Family<E>) -> GpmWindow {
    let units = UNITS.iter().map(|(_, unit)| row(family.seconds, unit.text(), 0.0));
    let rates = RATES.iter().map(|(_, wire, direction)| {
        row(if *wire == Wire::Pcie { family.pcie } else { family.nvlink }, direction.text(), 0.0)
    });
    GpmWindow { subject, seconds: 0.0, sums: units.chain(rates).collect() }
}

fn row<E: Entity, L: crate::catalog::schema::LabelSet>(
    metric: &Metric<E, L>,
    label: crate::catalog::schema::LabelText,
    value: f64,
) -> Row {
    Row { metric: metric.id(), labels: vec![label], value }
}

/// A percentage as a ratio; NaN and what no rounding explains are none.
fn ratio(percent: f64) -> Result<f64, Drop> {
    match (0.0..=MOST_PERCENT).contains(&percent) {
        true => Ok((percent / 100.0).min(1.0)),
        false => Err(Drop::OutOfRange),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_is_a_ratio_only_if_it_can_be_one() {
        assert_eq!(ratio(57.0), Ok(0.57));
        assert_eq!(ratio(100.4), Ok(1.0));
        for wrong in [-0.1, 105.1, f64::NAN, f64::INFINITY] {
            assert_eq!(ratio(wrong), Err(Drop::OutOfRange));
        }
    }
}
