//! The driver's own sample buffers: power (50 samples a second on a data-centre GPU, some 2.4 s kept) and
//! utilization (5 a second, some 14 s kept). A read costs the same however
//! many samples are new (0.6 ms and 2.7 ms on an H200), so each is read little more often than its buffer fills. Samples
//! overwritten before a read show as a gap between the timestamps.

use nvml_wrapper::enums::device::SampleValue;

use super::raw::samples;
use super::visit::{NvmlNumber, Visit};
use model::catalog::{self as m, MetricId, SampleBuffer};
use model::clock::{Mono, unix_seconds};
use model::sample::{AHEAD_MICROS, Drained, STEP_MICROS};

/// Metrics made of the power samples.
pub const POWER: [MetricId; 4] = [
    m::gpu_power_sample_watts.id(),
    m::gpu_power_peak_watts.id(),
    m::gpu_power_minimum_watts.id(),
    m::gpu_energy_sampled_joules_total.id(),
];

/// Metrics made of the utilization samples.
pub const UTILIZATION: [MetricId; 4] = [
    m::gpu_utilization_sample_ratio.id(),
    m::gpu_utilization_peak_ratio.id(),
    m::gpu_utilization_minimum_ratio.id(),
    m::gpu_busy_seconds_total.id(),
];

const CALL: &str = "nvmlDeviceGetSamples";

/// How far a buffer of one GPU has been read.
#[derive(Debug, Default)]
pub(crate) struct SampleCursor {
    /// Timestamp of the newest sample read, and wall minus monotonic clock then, in microseconds.
    newest: Option<(u64, i64)>,
    /// The most samples the buffer holds; 0 while there is no buffer, which is asked again with the next visit.
    room: usize,
}

impl SampleCursor {
    /// Reads the samples of the buffer that are new.
    pub fn drain(&mut self, v: &mut Visit<'_>, buffer: SampleBuffer) {
        // NVML gives milliwatts and percent.
        let (feeds, over) = match buffer {
            SampleBuffer::Power => (&POWER, 1e3),
            SampleBuffer::Utilization => (&UTILIZATION, 1e2),
        };
        let wall_micros = (unix_seconds() * 1e6) as u64;
        let offset = wall_micros as i64 - (Mono::now().0 / 1000) as i64;
        let current = |(newest, then): &(u64, i64)| {
            offset.abs_diff(*then) <= STEP_MICROS as u64 && *newest <= wall_micros + AHEAD_MICROS
        };
        let since = self.newest.filter(current).map_or(0, |(newest, _)| newest);
        let call = (CALL, samples::sampling_type(buffer));
        if self.room == 0 {
            self.room = v.read(call, feeds, |d| samples::room(d, buffer)).unwrap_or(0);
        }
        if self.room == 0 {
            return;
        }
        let Some(found) = v.read(call, feeds, |d| samples::newer_than(d, buffer, since, self.room)) else {
            return;
        };
        let Some(newest) = found.last().map(|(at, _)| *at) else { return };
        self.newest = Some((newest, offset));
        // A sample without a value stays as NaN, so that its time shows as a gap.
        let value = |sample: SampleValue| sample.number().unwrap_or(f64::NAN) / over;
        let samples = found.into_iter().map(|(at, sample)| (at, value(sample))).collect();
        v.drained.push(Drained::Samples { buffer, offset_micros: offset, samples });
    }
}
