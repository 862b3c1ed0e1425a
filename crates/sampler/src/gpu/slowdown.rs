//! Time of hardware slowdowns, from the driver's own counters. On an H200 with driver 580.159 these two fields
//! take the driver 1 ms, against 0.07 to 0.14 ms for any other slow field, and they rarely change. They are
//! therefore read after a fast visit that observed such a slowdown, once more after that, and otherwise at the
//! interval of the rare tier. In between, the last reading is published again. Only a slowdown that began and
//! ended between two fast visits may appear late.

use nvml_wrapper_sys::bindings::field_id;

use super::NANO;
use crate::visit::{Field, Visit};
use model::catalog::{self as m, ClockEvent};
use model::clock::Mono;
use model::sample::Rows;

/// Bits of `nvmlClocksEventReason*` for a hardware slowdown: any cause, heat and power brake.
pub(super) const BITS: u64 = 0x8 | 0x40 | 0x80;

pub(super) static FIELDS: [Field; 2] = [
    clock_event!(NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, HwThermalSlowdown),
    clock_event!(NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, HwPowerBrakeSlowdown),
];

/// Reads the counters, or publishes the last reading again.
pub(super) fn slow(v: &mut Visit<'_>) {
    if v.ended.is_some() {
        // A lost GPU has no values, and its counts belong to a life that has ended.
        return;
    }
    let now = Mono::now();
    let rarely = v.settings.intervals.rare;
    let known = std::mem::take(&mut v.state.slowdown);
    let current = |at: Mono| !known.seen && !known.again && now.since(at) < rarely;
    match known.read {
        Some((at, rows)) if current(at) => {
            v.rows.extend(rows.clone());
            v.state.slowdown.read = Some((at, rows));
        }
        before => {
            let (others, gaps) = (std::mem::take(&mut v.rows), v.gaps.len());
            v.fields(&FIELDS);
            let read = std::mem::replace(&mut v.rows, others);
            v.rows.extend(read.clone());
            // The ledger accepts a lower value after three readings, so a counter that fell is read again every
            // time.
            let sound = v.gaps.len() == gaps && before.is_none_or(|(_, before)| !fell(&before, &read));
            let slowdown = &mut v.state.slowdown;
            slowdown.again = known.seen;
            slowdown.read = sound.then_some((now, read));
        }
    }
}

/// Returns whether a counter has decreased.
fn fell(before: &Rows, now: &Rows) -> bool {
    before.all().zip(now.all()).any(|(before, now)| now.value < before.value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::catalog::Gpu;

    #[test]
    fn a_counter_that_fell_is_seen() {
        let gpu = Gpu { gpu: 0, uuid: "GPU-0".into() };
        let rows = |heat, brake| {
            let mut rows = Rows::default();
            for (event, seconds) in
                [(ClockEvent::HwThermalSlowdown, heat), (ClockEvent::HwPowerBrakeSlowdown, brake)]
            {
                rows.entity(&gpu).record(&m::gpu_clock_event_seconds_total, (event,), seconds).unwrap();
            }
            rows
        };
        assert!(!fell(&rows(1.0, 2.0), &rows(1.0, 3.0)));
        assert!(fell(&rows(1.0, 2.0), &rows(5.0, 1.0)));
        assert!(!fell(&Rows::default(), &rows(5.0, 1.0)));
    }
}
