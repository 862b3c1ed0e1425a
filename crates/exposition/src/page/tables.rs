//! Tables below the GPUs: hung driver calls, events, collectors and files.

use maud::{Markup, html};

use super::{figures, link, mark};
use crate::assets::ASSETS;
use model::catalog::{self as m, Gpu, Subject};
use model::health::HealthLevel;
use model::snapshot::{Snapshot, Value};
use model::text;

/// Maximum number of events in the table.
const MOST_EVENTS: usize = 20;

/// Renders the driver calls that have not returned, longest first.
pub fn stuck_calls(snapshot: &Snapshot) -> Markup {
    let mut calls: Vec<(f64, &Subject, &str)> = Vec::new();
    for series in snapshot.series(&m::gpu_exporter_driver_call_stuck_seconds) {
        let call = series.label_pairs(m::gpu_exporter_driver_call_stuck_seconds.def()).last();
        if let (Value::Number(age), Some((_, call))) = (&series.value, call) {
            calls.push((*age, &series.subject.subject, call));
        }
    }
    calls.sort_by(|a, b| b.0.total_cmp(&a.0));
    html! {
        @if !calls.is_empty() {
            section {
                h2 #calls { "Stuck driver calls" }
                div.table tabindex="0" role="region" aria-labelledby="calls" { table {
                    thead { tr { th scope="col" { "GPU" } th scope="col" { "Call" } th scope="col" { "Not returned for" } } }
                    tbody { @for (age, subject, call) in calls { tr {
                        th scope="row" { @if let Some((index, _)) = subject.gpu() { (link(index)) } @else { "–" } }
                        td { code { (call) } }
                        td { (text::duration(figures::seconds(age))) }
                    } } }
                } }
            }
        }
    }
}

/// Renders the newest events, newest first.
pub fn events(snapshot: &Snapshot) -> Markup {
    html! {
        section {
            h2 #events { "Events" }
            @if snapshot.events.is_empty() { p.empty { "No events since the exporter started" } } @else {
                div.table tabindex="0" role="region" aria-labelledby="events" { table {
                    thead { tr { th scope="col" { "UTC" } th scope="col" { "GPU" } th scope="col" { "Event" } } }
                    tbody { @for event in snapshot.events.iter().rev().take(MOST_EVENTS) {
                        @let level = if event.old { HealthLevel::Note } else { event.severity.into() };
                        tr {
                            td { (text::time_of_day(event.last_unix_seconds).trim_end_matches(" UTC")) }
                            td { @if let Some(gpu) = &event.gpu { (card_of(snapshot, gpu)) } @else { "–" } }
                            td {
                                (mark(level)) " " (event.line())
                                @if event.repeats > 0 { " (" (event.repeats + 1) " times)" }
                            }
                        }
                    } }
                } }
            }
        }
    }
}

/// Renders a link to the card of a GPU, which may be missing.
fn card_of(snapshot: &Snapshot, gpu: &Gpu) -> Markup {
    match snapshot.health.absent.iter().position(|absent| absent.gpu == *gpu) {
        Some(at) => html! { a href={ "#missing-" (at) } { "GPU " (gpu.gpu) } },
        None => link(gpu.gpu),
    }
}

/// Renders every collector with the age of its values.
pub fn collectors(snapshot: &Snapshot) -> Markup {
    html! {
        section {
            h2 #collectors { "Collectors" }
            div.table tabindex="0" role="region" aria-labelledby="collectors" { table {
                thead { tr { th scope="col" { "Collector" } th scope="col" { "State" } } }
                tbody { @for view in &snapshot.collectors { tr {
                    th scope="row" { (view.name) }
                    td { (mark(if view.up { HealthLevel::Ok } else { HealthLevel::Faulty })) " " (view.text()) }
                } } }
            } }
        }
    }
}

/// Renders links to the alert rules and dashboards.
pub fn files() -> Markup {
    html! {
        details #files {
            summary { "Alert rules and Grafana dashboards" }
            ul { @for asset in ASSETS { li { a href=(asset.path.trim_start_matches('/')) { (asset.path) } } } }
        }
    }
}
