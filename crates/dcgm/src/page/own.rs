//! Families that dcgm-exporter computes itself.

use model::catalog::{self as m, MetricId, Subject};
use model::snapshot::{Series, Snapshot};

use super::entities::{Entities, PageEntity};
use super::health;
use super::values::{family, info, number};
use super::{PageConfig, PageLabel, PageSample};
use crate::fields::{Level, Own};

/// Returns the values of one family.
pub fn samples(own: Own, config: &PageConfig, snapshot: &Snapshot, entities: &Entities) -> Vec<PageSample> {
    let corrected = config.corrected();
    match own {
        Own::ClockEventsCount => {
            let window = config.clock_events_window_ms;
            counted(snapshot, entities, &CLOCK_EVENTS, Some(window), Level::Board, corrected)
        }
        Own::ClockEventsTotal => counted(snapshot, entities, &CLOCK_STARTS, None, Level::Board, corrected),
        // An Xid belongs to the GPU. If MIG is enabled, dcgm-exporter only reads the instances.
        Own::XidErrorsCount => {
            let window = Some(config.xid_window_ms);
            let level = if corrected { Level::Whole } else { Level::GpuInstance };
            counted(snapshot, entities, &XIDS, window, level, corrected)
        }
        Own::XidErrorsTotal => {
            let level = if corrected { Level::Whole } else { Level::GpuInstance };
            counted(snapshot, entities, &XIDS_TOTAL, None, level, corrected)
        }
        Own::GpuHealthStatus => health(snapshot, entities),
        Own::P2pStatus => peers(snapshot, entities),
    }
}

/// Family that counts events by the value of a label.
struct EventFamily {
    metric: fn() -> MetricId,
    /// Our label and dcgm-exporter's label.
    label: (&'static str, &'static str),
    /// Converts our label value to dcgm-exporter's.
    word: fn(&str) -> String,
    /// True if a missing series means that nothing happened.
    none_is_zero: bool,
}

const CLOCK_EVENTS: EventFamily = EventFamily {
    metric: || m::gpu_clock_event_window_samples.id(),
    label: ("reason", "clock_event"),
    word: clock_event,
    none_is_zero: false,
};
const CLOCK_STARTS: EventFamily = EventFamily {
    metric: || m::gpu_clock_event_starts_total.id(),
    label: ("reason", "clock_event"),
    word: clock_event,
    none_is_zero: false,
};
const XIDS: EventFamily = EventFamily {
    metric: || m::gpu_xid_window_errors.id(),
    label: ("xid", "xid"),
    word: str::to_owned,
    none_is_zero: true,
};
const XIDS_TOTAL: EventFamily = EventFamily { metric: || m::gpu_xid_errors_total.id(), ..XIDS };

/// Returns dcgm-exporter's name for a clock event reason.
fn clock_event(reason: &str) -> String {
    let word = match reason {
        "applications_clocks_setting" => "clocks_setting",
        "sw_power_cap" => "power_cap",
        "sw_thermal_slowdown" => "sw_thermal",
        "hw_thermal_slowdown" => "hw_thermal",
        "hw_power_brake_slowdown" => "hw_power_brake",
        "display_clock_setting" => "display_clocks",
        other => other,
    };
    word.to_owned()
}

/// Returns one value per counted name. With a window, an entity without data has a single 0 without the name. Corrected
/// values have this 0 only for Xids, whose series start with the first Xid. Totals have no 0.
fn counted(
    snapshot: &Snapshot,
    entities: &Entities,
    what: &EventFamily,
    window: Option<u64>,
    level: Level,
    corrected: bool,
) -> Vec<PageSample> {
    let found = family(snapshot, (what.metric)());
    let mut samples = Vec::new();
    for entity in entities.at(level, corrected) {
        // The value is on the GPU once, or repeated on its instances like any value of the board.
        if corrected && entity.instance.is_some() {
            continue;
        }
        let subjects = entities.subjects(entity, level, corrected);
        let size = || window.map(|ms| PageLabel::new("window_size_in_ms", ms.to_string()));
        let own = found.into_iter().flat_map(|family| family.series.iter().map(move |one| (family, one)));
        let own = own.filter(|(_, series)| subjects.contains(&series.subject.subject));
        let mut known = false;
        let mut counts: Vec<(String, f64)> = Vec::new();
        for (family, series) in own {
            known = true;
            let (Some(value), Some(text)) = (number(series), info(family, series, what.label.0)) else {
                continue;
            };
            let word = (what.word)(text);
            match counts.iter_mut().find(|(known, _)| *known == word) {
                Some((_, sum)) => *sum += value,
                None => counts.push((word, value)),
            }
        }
        for (word, value) in counts.into_iter().filter(|(_, value)| *value > 0.0) {
            let labels = [Some(PageLabel::new(what.label.1, word)), size()].into_iter().flatten().collect();
            samples.push(PageSample { entity, labels, attributes: Vec::new(), value });
        }
        if window.is_some() && !known && (what.none_is_zero || !corrected) {
            let labels = size().into_iter().collect();
            samples.push(PageSample { entity, labels, attributes: Vec::new(), value: 0.0 });
        }
    }
    samples
}

/// Returns all watches of all GPUs, based on the verdict of this snapshot.
fn health(snapshot: &Snapshot, entities: &Entities) -> Vec<PageSample> {
    let mut samples = Vec::new();
    for entity in entities.at(Level::Whole, false) {
        let gpu = &entities.0[entity.gpu].gpu;
        let Some(verdict) = snapshot.health.gpus.iter().find(|verdict| verdict.gpu == *gpu) else { continue };
        // There is no verdict while the driver is unavailable.
        if verdict.healthy.is_none() {
            continue;
        }
        let action = recovery_action(snapshot, &entities.0[entity.gpu].subject);
        for watch in health::watches(verdict, action) {
            let labels = vec![
                PageLabel::new("health_error_category", watch.incident.category),
                PageLabel::new("health_error_code", watch.incident.code),
                PageLabel::new("health_error_severity", watch.incident.severity),
                PageLabel::new("health_watch", watch.name),
            ];
            let value = f64::from(watch.incident.result);
            samples.push(PageSample { entity, labels, attributes: Vec::new(), value });
        }
    }
    samples
}

/// Returns the recovery action that the driver recommends.
fn recovery_action<'a>(snapshot: &'a Snapshot, subject: &Subject) -> Option<&'a str> {
    let family = family(snapshot, m::gpu_recovery_action.id())?;
    let holds = |series: &&Series| series.subject.subject == *subject && number(series) == Some(1.0);
    let series = family.series.iter().find(holds)?;
    info(family, series, "recovery_action")
}

/// States of a peer-to-peer path in NVML's order, as pairs of our name and dcgm-exporter's name.
const P2P: [(&str, &str); 7] = [
    ("ok", "OK"),
    ("chipset_not_supported", "ChipsetNotSupported"),
    ("gpu_not_supported", "GPUNotSupported"),
    ("ioh_topology_not_supported", "TopologyNotSupported"),
    ("disabled_by_regkey", "DisabledByRegKey"),
    ("not_supported", "NotSupported"),
    ("unknown", "Unknown"),
];

fn peers(snapshot: &Snapshot, entities: &Entities) -> Vec<PageSample> {
    let Some(family) = family(snapshot, m::gpu_peer_info.id()) else { return Vec::new() };
    let mut samples = Vec::new();
    for (gpu, known) in entities.0.iter().enumerate() {
        let entity = PageEntity { gpu, instance: None, compute: None };
        for series in family.series.iter().filter(|series| series.subject.subject == known.subject) {
            let text = |label| info(family, series, label);
            let (Some(peer), Some(state)) = (text("peer_gpu"), text("nvlink")) else { continue };
            let at = P2P.iter().position(|(ours, _)| *ours == state).unwrap_or(P2P.len() - 1);
            let labels =
                vec![PageLabel::new("link_status", P2P[at].1), PageLabel::new("peer_gpu", peer.to_owned())];
            samples.push(PageSample { entity, labels, attributes: Vec::new(), value: at as f64 });
        }
    }
    samples
}
