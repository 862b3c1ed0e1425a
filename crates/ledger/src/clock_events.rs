//! Seconds with reduced clocks, by reason, for the reasons that the driver does not count itself. A state read in the
//! fast tier lasts until the next reading.

use std::collections::VecDeque;
use std::time::Duration;

use model::catalog::schema::{KnownLabel, LabelText};
use model::catalog::{self as m, ClockEvent};
use model::clock::Mono;
use model::sample::{Gap, Missing, Row};

const REASONS: usize = ClockEvent::ALL.len();
/// Interval between the states that are kept, which is the collection interval of DCGM exporters.
const LOOK: Duration = Duration::from_secs(30);
/// Maximum number of states kept: one hour.
const MOST_LOOKS: usize = 120;

/// Clock events of one GPU.
#[derive(Default)]
pub(crate) struct ClockEvents {
    last: Option<(Mono, [bool; REASONS])>,
    seconds: [f64; REASONS],
    /// Reasons that the driver counts itself. Known after the slow tier was read.
    driver_counts: Option<[bool; REASONS]>,
    /// Newest state, of any age.
    newest: Option<[bool; REASONS]>,
    /// Number of times that each reason began.
    starts: [u64; REASONS],
    /// One state every 30 s, oldest first.
    looks: VecDeque<(Mono, [bool; REASONS])>,
}

impl ClockEvents {
    /// Applies the rows of a fast visit. Nothing is added after a pause longer than `longest`, because the state in
    /// between is unknown.
    pub fn fast(&mut self, taken: Mono, rows: &[Row], longest: Duration) {
        let mut active = [false; REASONS];
        let mut any = false;
        for row in rows.iter().filter(|r| r.metric == m::gpu_clock_event_active.id()) {
            if let Some(at) = reason(row) {
                active[at] = row.value > 0.0;
                any = true;
            }
        }
        if let Some((before, state)) = self.last {
            let passed = taken.since(before);
            if passed <= longest {
                for (seconds, was) in self.seconds.iter_mut().zip(state) {
                    *seconds += if was { passed.as_secs_f64() } else { 0.0 };
                }
            }
        }
        self.last = any.then_some((taken, active));
        if any {
            self.look(taken, active);
        }
    }

    /// Counts the reasons that began since the last state, and keeps one state every 30 s.
    fn look(&mut self, taken: Mono, active: [bool; REASONS]) {
        if let Some(before) = self.newest.replace(active) {
            for ((starts, now), was) in self.starts.iter_mut().zip(active).zip(before) {
                *starts += u64::from(now && !was);
            }
        }
        if self.looks.back().is_none_or(|(at, _)| taken.since(*at) >= LOOK) {
            self.looks.push_back((taken, active));
            if self.looks.len() > MOST_LOOKS {
                self.looks.pop_front();
            }
        }
    }

    /// Returns the reasons that began, with their number of times.
    pub fn starts(&self) -> impl Iterator<Item = (ClockEvent, f64)> {
        let all = ClockEvent::ALL.iter().copied().zip(self.starts);
        all.filter(|(_, starts)| *starts > 0).map(|(event, starts)| (event, starts as f64))
    }

    /// Returns for every reason the number of states within the window that had it; nothing if there is no state.
    pub fn looks(&self, window: Duration, now: Mono) -> impl Iterator<Item = (ClockEvent, f64)> {
        let (mut found, mut any) = ([0u32; REASONS], false);
        for (_, active) in self.looks.iter().filter(|(at, _)| now.since(*at) <= window) {
            any = true;
            for (found, active) in found.iter_mut().zip(active) {
                *found += u32::from(*active);
            }
        }
        ClockEvent::ALL.iter().copied().zip(found.map(f64::from)).filter(move |_| any)
    }

    /// Records from a slow visit which reasons the driver counts. A failed call leaves that open.
    pub fn slow(&mut self, rows: &[Row], gaps: &[Gap]) {
        let seconds = m::gpu_clock_event_seconds_total.id();
        if gaps.iter().any(|g| g.metrics.contains(&seconds) && g.missing != Missing::Unsupported) {
            return;
        }
        let mut counts = self.driver_counts.unwrap_or_default();
        for row in rows.iter().filter(|r| r.metric == seconds) {
            if let Some(at) = reason(row) {
                counts[at] = true;
            }
        }
        self.driver_counts = Some(counts);
    }

    /// Returns the exporter's own count of seconds for a reason, even if the driver counts it too.
    pub fn seconds(&self, event: ClockEvent) -> f64 {
        self.seconds.get(event as usize).copied().unwrap_or(0.0)
    }

    /// Returns the seconds of the reasons that only the exporter counts. Returns none before it is known what the
    /// driver counts, because a series that changed from one count to the other would jump.
    pub fn ours(&self) -> impl Iterator<Item = (ClockEvent, f64)> {
        let driver = self.driver_counts.filter(|_| self.last.is_some()).unwrap_or([true; REASONS]);
        ClockEvent::ALL
            .iter()
            .zip(driver)
            .zip(self.seconds)
            .filter(|((_, driver), _)| !driver)
            .map(|((event, _), seconds)| (*event, seconds))
    }
}

fn reason(row: &Row) -> Option<usize> {
    match row.labels.first() {
        Some(LabelText::Known(at)) if usize::from(*at) < REASONS => Some(usize::from(*at)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::catalog::schema::Label;

    fn row(event: ClockEvent, seconds: f64) -> Row {
        Row { metric: m::gpu_clock_event_seconds_total.id(), labels: vec![event.text()], value: seconds }
    }

    fn active(event: ClockEvent) -> Vec<Row> {
        ClockEvent::ALL
            .iter()
            .map(|e| Row {
                metric: m::gpu_clock_event_active.id(),
                labels: vec![e.text()],
                value: if *e == event { 1.0 } else { 0.0 },
            })
            .collect()
    }

    fn at(seconds: f64) -> Mono {
        Mono((seconds * 1e9) as u64)
    }

    const LONGEST: Duration = Duration::from_secs(3);

    #[test]
    fn seconds_add_up_and_pauses_do_not() {
        let mut events = ClockEvents::default();
        events.slow(&[row(ClockEvent::SwPowerCap, 7.0)], &[]);
        events.fast(at(10.0), &active(ClockEvent::GpuIdle), LONGEST);
        events.fast(at(10.5), &active(ClockEvent::SwPowerCap), LONGEST);
        events.fast(at(11.5), &active(ClockEvent::GpuIdle), LONGEST);
        events.fast(at(60.0), &active(ClockEvent::GpuIdle), LONGEST);
        let ours: Vec<_> = events.ours().collect();
        assert!(ours.contains(&(ClockEvent::GpuIdle, 0.5)));
        assert!(!ours.iter().any(|(e, _)| *e == ClockEvent::SwPowerCap), "the driver counts that one");
        assert_eq!(ours.len(), REASONS - 1);
    }

    #[test]
    fn what_begins_is_counted_and_what_held_before_is_not() {
        let mut events = ClockEvents::default();
        for (seconds, event) in [
            (1.0, ClockEvent::GpuIdle),
            (1.1, ClockEvent::SwPowerCap),
            (1.2, ClockEvent::SwPowerCap),
            (1.3, ClockEvent::GpuIdle),
            (9.0, ClockEvent::SwPowerCap),
        ] {
            events.fast(at(seconds), &active(event), LONGEST);
        }
        let starts: Vec<_> = events.starts().collect();
        assert_eq!(starts, [(ClockEvent::GpuIdle, 1.0), (ClockEvent::SwPowerCap, 2.0)]);
    }

    #[test]
    fn a_look_every_half_minute_counts_within_the_window() {
        let mut events = ClockEvents::default();
        let window = Duration::from_secs(90);
        assert_eq!(events.looks(window, at(0.0)).count(), 0);
        for tenth in 0..=3000u32 {
            let event = if tenth < 1500 { ClockEvent::SwPowerCap } else { ClockEvent::GpuIdle };
            events.fast(at(f64::from(tenth) / 10.0), &active(event), LONGEST);
        }
        let found = |now: f64, event: ClockEvent| {
            events.looks(window, at(now)).find(|(of, _)| *of == event).map(|(_, looks)| looks)
        };
        // At 210, 240, 270 and 300 s.
        assert_eq!(found(300.0, ClockEvent::GpuIdle), Some(4.0));
        assert_eq!(found(300.0, ClockEvent::SwPowerCap), Some(0.0));
        assert_eq!(found(391.0, ClockEvent::GpuIdle), None, "no look within the window");
        assert_eq!(events.looks(Duration::from_secs(300), at(300.0)).map(|(_, n)| n).sum::<f64>(), 11.0);
    }

    #[test]
    fn nothing_is_published_before_it_is_known_what_the_driver_counts() {
        let mut events = ClockEvents::default();
        events.fast(at(1.0), &active(ClockEvent::GpuIdle), LONGEST);
        assert_eq!(events.ours().count(), 0);
        let failed = Missing::Failed { error: m::DriverError::Timeout, text: "timeout".into() };
        let metrics = vec![m::gpu_clock_event_seconds_total.id()];
        events.slow(&[], &[Gap { call: "x".into(), metrics, missing: failed }]);
        assert_eq!(events.ours().count(), 0, "a failed call shows nothing");
        events.slow(&[], &[]);
        assert_eq!(events.ours().count(), REASONS);
    }
}
