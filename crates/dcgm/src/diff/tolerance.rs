//! Permitted difference between two readings of a field, with the reason for every number.

use model::catalog::{self as m, MetricId};

use crate::fields::{DcgmField, FieldFormat, FieldSource, Own};

/// Permitted difference between two values of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tolerance {
    /// Absolute tolerance in the unit of the field.
    pub absolute: f64,
    /// Relative tolerance as a fraction of the larger value.
    pub relative: f64,
    /// True if the value moves by itself, so that readings of different times cannot be compared.
    pub moves: bool,
    pub reason: &'static str,
}

/// Metric that moves between the readings of two exporters. DCGM keeps a reading for up to 30 s.
struct Moving {
    metric: MetricId,
    /// Absolute tolerance in the unit of the metric.
    absolute: f64,
    relative: f64,
    reason: &'static str,
}

const MIB: f64 = 1_048_576.0;

macro_rules! moving {
    ($($metric:ident $absolute:expr, $relative:expr, $reason:literal;)+) => {
        const MOVING: &[Moving] = &[$(Moving {
            metric: m::$metric.id(),
            absolute: $absolute,
            relative: $relative,
            reason: $reason,
        }),+];
    };
}

moving! {
    gpu_temperature_celsius 4.0, 0.0, "a GPU under changing load warms by some degrees within 30 s";
    gpu_temperature_margin_celsius 4.0, 0.0, "as the temperature";
    gpu_power_watts 20.0, 0.1, "NVML's average of one second; a steady job varies by a tenth";
    gpu_power_instant_watts 50.0, 0.25, "single readings without an average";
    gpu_energy_joules_total 100e3, 0.0, "read once a minute here: 1.5 kW for a minute";
    gpu_clock_hertz 60e6, 0.05, "four steps of 15 MHz; clocks follow power and heat";
    gpu_utilization_ratio 0.15, 0.0, "the last sixth of a second up to a second, not the same one";
    gpu_memory_utilization_ratio 0.15, 0.0, "as the utilization of the GPU";
    gpu_encoder_utilization_ratio 0.15, 0.0, "as the utilization of the GPU";
    gpu_decoder_utilization_ratio 0.15, 0.0, "as the utilization of the GPU";
    gpu_gpm_active_ratio 0.1, 0.0, "windows of another length that begin at another time";
    gpu_mig_gpm_active_ratio 0.1, 0.0, "as of the whole GPU";
    gpu_gpm_pcie_bytes_per_second 10e6, 0.25, "windows of another length; every call of the driver moves bytes";
    gpu_mig_gpm_pcie_bytes_per_second 10e6, 0.25, "as of the whole GPU";
    gpu_pcie_throughput_bytes_per_second 10e6, 0.25, "20 ms that the driver samples";
    gpu_gpm_nvlink_bytes_per_second 10e6, 0.25, "windows of another length";
    gpu_mig_gpm_nvlink_bytes_per_second 10e6, 0.25, "as of the whole GPU";
    gpu_nvlink_bytes_per_second 10e6, 0.25, "differences of counters over other times";
    gpu_memory_used_bytes 64.0 * MIB, 0.01, "programs come and go, the exporters' own among them";
    gpu_memory_free_bytes 64.0 * MIB, 0.01, "as the used memory";
    gpu_mig_memory_used_bytes 64.0 * MIB, 0.01, "as the used memory";
    gpu_mig_memory_free_bytes 64.0 * MIB, 0.01, "as the used memory";
    gpu_bar1_memory_used_bytes 16.0 * MIB, 0.01, "each program maps some";
    gpu_bar1_memory_free_bytes 16.0 * MIB, 0.01, "as the used aperture";
    gpu_clock_event_seconds_total 60.0, 0.0, "read up to a minute later here";
    gpu_violation_seconds_total 60.0, 0.0, "read up to a minute later here";
    gpu_thermal_violation_seconds_total 60.0, 0.0, "read up to a minute later here";
    gpu_clock_event_active 0.0, 0.0, "a reason comes and goes within seconds; both scrapes count";
    gpu_performance_state 0.0, 0.0, "follows the load; both scrapes count";
    gpu_pcie_link_generation 4.0, 0.0, "the link of an idle GPU is slower, down to the first generation";
    gpu_pcie_link_width_lanes 0.0, 0.0, "may follow the load; both scrapes count";
}

/// Reason for not comparing counters that start with the exporter, because no two exporters have the same start.
const OWN_START: &str = "counted since each exporter's own start";

/// Returns the tolerance of a field, or the reason why its values are not compared. Constants and fault counters must
/// be equal.
pub fn tolerance(field: &DcgmField) -> Result<Tolerance, &'static str> {
    let (metric, factor) = match field.source {
        FieldSource::Own(Own::XidErrorsTotal | Own::ClockEventsTotal) => return Err(OWN_START),
        FieldSource::Own(Own::ClockEventsCount) => {
            return Err("counts readings, of which each exporter makes another number");
        }
        FieldSource::Own(Own::XidErrorsCount) => {
            let reason = "a window that moves with each scrape, by one Xid";
            return Ok(Tolerance { absolute: 1.0, relative: 0.0, moves: true, reason });
        }
        FieldSource::Own(Own::GpuHealthStatus) => {
            let reason = "a fault comes and goes; both scrapes count";
            return Ok(Tolerance { absolute: 0.0, relative: 0.0, moves: true, reason });
        }
        FieldSource::Series { of: [(metric, _), ..], .. }
            if [m::gpu_gpm_pcie_bytes_total.id(), m::gpu_mig_gpm_pcie_bytes_total.id()].contains(metric) =>
        {
            return Err(OWN_START);
        }
        FieldSource::Series { of: [(metric, _), ..], factor }
        | FieldSource::Sum { of: [(metric, _), ..], factor } => (Some(*metric), factor),
        FieldSource::Bits { metric, .. } | FieldSource::Choice { metric, .. } => (Some(metric), 1.0),
        // A share of memory moves as much as the memory.
        FieldSource::Share { .. } => {
            let reason = "moves as the used memory does";
            return Ok(Tolerance { absolute: 0.01, relative: 0.01, moves: true, reason });
        }
        _ => (None, 1.0),
    };
    let rounding = match field.format {
        FieldFormat::Double => 2e-6,
        // dcgm-exporter truncates decimals. An unconverted value has no decimals.
        _ if factor == 1.0 => 0.0,
        _ => 1.0,
    };
    let moving = MOVING.iter().find(|moving| Some(moving.metric) == metric);
    Ok(Tolerance {
        absolute: moving.map_or(0.0, |moving| moving.absolute * factor) + rounding,
        relative: moving.map_or(1e-9, |moving| moving.relative),
        moves: moving.is_some(),
        reason: moving.map_or("a constant or a count of faults: equal on both pages", |moving| moving.reason),
    })
}

/// Range of the readings of one series on the scrapes of one page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ValueRange {
    pub least: f64,
    pub most: f64,
}

impl ValueRange {
    pub fn from_value(value: f64) -> ValueRange {
        ValueRange { least: value, most: value }
    }

    pub fn add(&mut self, value: f64) {
        *self = ValueRange { least: self.least.min(value), most: self.most.max(value) };
    }
}

impl Tolerance {
    /// Returns the permitted difference. A value that moves between the scrapes of one page may differ by as much
    /// between the pages.
    fn allowed(&self, theirs: ValueRange, ours: ValueRange, factor: f64) -> f64 {
        let largest = [theirs.least, theirs.most, ours.least, ours.most].into_iter().map(f64::abs);
        let movement = (theirs.most - theirs.least).max(ours.most - ours.least);
        (self.absolute + self.relative * largest.fold(0.0, f64::max)) * factor + movement
    }

    /// Returns the ratio of the actual to the permitted difference. The values differ if the ratio is above 1.
    pub fn excess(&self, theirs: ValueRange, ours: ValueRange, factor: f64) -> f64 {
        if [theirs, ours].iter().any(|range| !(range.least.is_finite() && range.most.is_finite())) {
            return if theirs.least.total_cmp(&ours.least).is_eq() { 0.0 } else { f64::INFINITY };
        }
        let gap = theirs.least.max(ours.least) - theirs.most.min(ours.most);
        if gap <= 0.0 { 0.0 } else { gap / self.allowed(theirs, ours, factor) }
    }
}
