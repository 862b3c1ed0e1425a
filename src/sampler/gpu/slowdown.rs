//! Time for which the hardware held the clocks down, by the driver's own counters. These two fields take the driver a
//! millisecond (all other slow fields together 0.13 ms: H200, driver 580.159) and hardly ever count, so they are read when
//! the fast tier has seen the hardware at it since, and else with the rare tier's cadence; between that they stand as
//! they were read last. So only what began and ended between two fast visits may come late.

use nvml_wrapper_sys::bindings::field_id;

use super::NANO;
use crate::catalog::{self as m, ClockEvent};
use crate::clock::Mono;
use crate::sample::Rows;
use crate::sampler::visit::{Field, Visit};

/// Bits of nvmlClocksEventReason*: hardware slowdown by any cause, by heat, by the power brake.
pub(super) const BITS: u64 = 0x8 | 0x40 | 0x80;

/// The driver's counter for one reason.
macro_rules! counter {
    ($id:ident, $reason:ident) => {
        Field::new(field_id::$id, m::gpu_clock_event_seconds_total.id(), NANO, |rows, gpu, _, value| {
            rows.of(gpu).put(&m::gpu_clock_event_seconds_total, (ClockEvent::$reason,), value)
        })
    };
}

pub(super) static FIELDS: [Field; 2] = [
    counter!(NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, HwThermalSlowdown),
    counter!(NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, HwPowerBrakeSlowdown),
];

/// What is known of them from visit to visit.
#[derive(Debug, Default)]
pub struct Slowdown {
    /// Whether the hardware was seen holding the clocks down since they were read.
    pub seen: bool,
    /// When they were read, and what they told; `None` if not all of them could be read.
    read: Option<(Mono, Rows)>,
}

/// Reads them, or gives again what was read.
pub(super) fn slow(v: &mut Visit<'_>) {
    let now = Mono::now();
    let rarely = v.found().rarely;
    let known = std::mem::take(&mut v.found().slowdown);
    if let Some((at, rows)) = known.read.filter(|(at, _)| !known.seen && now.since(*at) < rarely) {
        v.rows.extend(rows.clone());
        v.found().slowdown.read = Some((at, rows));
        return;
    }
    let (others, gaps) = (std::mem::take(&mut v.rows), v.gaps.len());
    v.fields(&FIELDS);
    let read = std::mem::replace(&mut v.rows, others);
    v.rows.extend(read.clone());
    if v.gaps.len() == gaps {
        v.found().slowdown.read = Some((now, read));
    }
}
