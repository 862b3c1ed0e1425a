//! The driver's own sample buffers: power (50 samples per second on a data-centre GPU, about 2.4 s kept) and
//! utilization (5 per second, about 14 s kept). A read costs the same however many samples are new (0.6 ms and
//! 2.7 ms on an H200), so each buffer is read only slightly more often than it fills. Samples that were
//! overwritten before a read appear as a gap between the timestamps.

use nvml_wrapper::enums::device::SampleValue;

use super::raw::samples;
use super::visit::{NvmlNumber, Visit};
use model::catalog::{self as m, MetricId, SampleBuffer};
use model::clock::{Mono, unix_seconds};
use model::sample::{AHEAD_MICROS, Drained, STEP_MICROS};

/// Metrics derived from the power samples.
pub const POWER: [MetricId; 4] = [
    m::gpu_power_sample_watts.id(),
    m::gpu_power_peak_watts.id(),
    m::gpu_power_minimum_watts.id(),
    m::gpu_energy_sampled_joules_total.id(),
];

/// Metrics derived from the utilization samples.
pub const UTILIZATION: [MetricId; 4] = [
    m::gpu_utilization_sample_ratio.id(),
    m::gpu_utilization_peak_ratio.id(),
    m::gpu_utilization_minimum_ratio.id(),
    m::gpu_busy_seconds_total.id(),
];

const CALL: &str = "nvmlDeviceGetSamples";

/// Position up to which a buffer of one GPU has been read.
#[derive(Debug, Default)]
pub(crate) struct SampleCursor {
    /// Timestamp of the newest sample read, and the difference between wall clock and monotonic clock at that
    /// time, in microseconds.
    newest: Option<(u64, i64)>,
    /// Maximum number of samples in the buffer. It is 0 while there is no buffer; the next visit tries again.
    room: usize,
}

impl SampleCursor {
    /// Reads the new samples of the buffer.
    pub fn drain(&mut self, v: &mut Visit<'_>, buffer: SampleBuffer) {
        // NVML reports milliwatts and percent.
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
        // A sample without a value stays as NaN, so that its time appears as a gap.
        let value = |sample: SampleValue| sample.number().unwrap_or(f64::NAN) / over;
        let samples = found.into_iter().map(|(at, sample)| (at, value(sample))).collect();
        v.drained.push(Drained::Samples { buffer, offset_micros: offset, samples });
    }
}
