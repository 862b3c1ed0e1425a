//! The canary: a line on every GPU's card, and a table with the newest verdict of every check.

use maud::{Markup, html};

use super::{figures, link, mark};
use model::canary::loudness;
use model::catalog::schema::KnownLabel;
use model::catalog::{CanaryEnd, CanaryMode, CanaryVerdict, Gpu};
use model::health::HealthLevel;
use model::snapshot::{CheckView, PlaceView, Snapshot};
use model::text::{duration, plain};

/// Line about the canary on a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CanaryLine {
    pub level: HealthLevel,
    pub text: String,
}

/// Returns the newest result on a GPU and its age, or `None` if there is no canary.
pub fn line(snapshot: &Snapshot, gpu: &Gpu) -> Option<CanaryLine> {
    let places: Vec<&PlaceView> = snapshot.canary.places_on(gpu).collect();
    let mode = snapshot.canary.mode;
    if mode.is_none() && places.is_empty() {
        return None;
    }
    let now = snapshot.unix_seconds;
    let mut found = state(&places);
    let last = places.iter().filter_map(|place| place.last_run).reduce(f64::max);
    if let Some(last) = last {
        found.text += &format!(", {} ago", duration(figures::seconds(now - last)));
    }
    match mode {
        Some(CanaryMode::Off) => {
            // The text "never ran; off" would read like a failure.
            match last {
                None => found = CanaryLine { level: HealthLevel::Note, text: "off".into() },
                Some(_) => found.text += "; off now",
            }
        }
        Some(CanaryMode::OnDemand) => found.text += "; on demand",
        _ => {}
    }
    let planned = places.iter().filter(|_| mode != Some(CanaryMode::Off));
    if let Some(due) = planned.filter_map(|place| place.due).reduce(f64::min) {
        found.text += &match due > now {
            true => format!("; next in {}", duration(figures::seconds(due - now))),
            false => "; due now".to_owned(),
        };
    }
    if let Some(reason) = places.iter().find_map(|place| place.skipped) {
        found.text += &format!("; postponed: {}", reason.shown());
    }
    Some(found)
}

/// Returns the worst result on a GPU and, if it has several instances, the number of instances that are ok.
fn state(places: &[&PlaceView]) -> CanaryLine {
    let states: Vec<CanaryLine> = with_results(places).map(of_place).collect();
    let Some(worst) = states.iter().max_by_key(|state| state.level).cloned() else {
        return CanaryLine { level: HealthLevel::Note, text: "never ran".into() };
    };
    let well = states.iter().filter(|state| state.level == HealthLevel::Ok).count();
    match states.len() {
        1 => worst,
        all if well == all => CanaryLine { text: format!("all {all} instances ok"), ..worst },
        all => CanaryLine { text: format!("{well} of {all} instances ok; {}", worst.text), ..worst },
    }
}

/// Selects the places with results. A GPU with instances has no result of its own, unless a run on it hangs.
fn with_results<'a>(places: &[&'a PlaceView]) -> impl Iterator<Item = &'a PlaceView> {
    let divided = places.iter().any(|place| place.instance.is_some());
    places.iter().copied().filter(move |place| place.instance.is_some() == divided || place.hung.is_some())
}

fn of_place(place: &PlaceView) -> CanaryLine {
    let say = |level, text: String| CanaryLine { level, text };
    if let Some(step) = place.hung {
        return say(HealthLevel::Faulty, format!("hangs in {}", plain(step.known())));
    }
    if place.running {
        return say(HealthLevel::Note, "running now".into());
    }
    let loud = |check: &&CheckView| loudness(check.verdict).map(|severity| severity as u8);
    let loudest = place.checks.iter().filter(|check| loud(check).is_some()).min_by_key(loud);
    if let Some(check) = loudest {
        let text = format!("{} ({})", plain(check.verdict.known()), check.check.known());
        return say(loudness(check.verdict).map_or(HealthLevel::Ok, HealthLevel::from), text);
    }
    match place.end {
        None => say(HealthLevel::Note, "never ran".into()),
        Some(CanaryEnd::CouldNotRun) => say(HealthLevel::Note, because("could not run", &place.text)),
        Some(CanaryEnd::Abandoned) => say(HealthLevel::Note, "yielded to a job".into()),
        Some(CanaryEnd::Broken) => say(HealthLevel::Note, because("failed", &place.text)),
        Some(_) if place.checks.iter().all(|check| check.verdict == CanaryVerdict::Ok) => {
            say(HealthLevel::Ok, "ok".into())
        }
        Some(_) => say(HealthLevel::Note, "used by another process".into()),
    }
}

/// Joins a result and its reason for use within a sentence. The reason is empty for clients that may not read names.
fn because(end: &str, reason: &str) -> String {
    match reason.trim_end_matches('.') {
        "" => end.to_owned(),
        reason => format!("{end}: {reason}"),
    }
}

/// Renders a table of the verdicts of all checks, on every GPU and MIG instance with a report.
pub fn table(snapshot: &Snapshot) -> Markup {
    let now = snapshot.unix_seconds;
    let all: Vec<&PlaceView> = snapshot.canary.places.iter().collect();
    let places = || all.chunk_by(|a, b| a.gpu == b.gpu).flat_map(with_results);
    html! {
        @if !all.is_empty() {
            section {
                h2 #canary { "Canary" }
                div.table tabindex="0" role="region" aria-labelledby="canary" {
                    table {
                        thead { tr {
                            th scope="col" { "GPU" } th scope="col" { "Result" } th scope="col" { "Checks" }
                            th scope="col" { "Last run" } th scope="col" { "Next run" }
                        } }
                        tbody { @for place in places() {
                            tr {
                                th scope="row" {
                                    (link(place.gpu.gpu))
                                    @if let Some(at) = &place.instance { " " small { (at.profile) " #" (at.gpu_instance) } }
                                }
                                @let result = of_place(place);
                                td.result { (mark(result.level)) " " (result.text) }
                                td.all { (checks(place)) }
                                td.short { @if let Some(last) = place.last_run { (duration(figures::seconds(now - last))) " ago" } @else { "–" } }
                                td.next { (next(place, now)) }
                            }
                        } }
                    }
                }
            }
        }
    }
}

fn checks(place: &PlaceView) -> Markup {
    html! {
        @if place.checks.is_empty() { "–" } @else {
            ul.checks { @for check in &place.checks {
                @let level = loudness(check.verdict).map_or(HealthLevel::Ok, HealthLevel::from);
                li title=(check.text) {
                    (mark(level)) " " (check.check.known())
                    @if check.verdict != CanaryVerdict::Ok { " " (plain(check.verdict.known())) }
                    @if let Some(rate) = check.rate { " " small { (figures::rate(rate)) } }
                }
            } }
        }
    }
}

fn next(place: &PlaceView, now: f64) -> Markup {
    let due = match place.due {
        Some(due) if due > now => Some(format!("in {}", duration(figures::seconds(due - now)))),
        Some(_) => Some("due".to_owned()),
        None => None,
    };
    let postponed = place.skipped.map(|reason| format!("postponed: {}", reason.shown()));
    let parts: Vec<String> = due.into_iter().chain(postponed).collect();
    html! { @if parts.is_empty() { "–" } @else { (parts.join(", ")) } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use model::canary::Instance;
    use model::catalog::{CanaryCheck, CanarySkip, CanaryStep};
    use model::snapshot::{CanaryView, GpuState, GpuView};

    const NOW: f64 = 1_795_000_000.0;

    fn place() -> PlaceView {
        PlaceView {
            gpu: fixtures::gpu(0),
            instance: None,
            running: false,
            hung: None,
            last_run: None,
            due: None,
            skipped: None,
            end: None,
            text: String::new(),
            checks: Vec::new(),
        }
    }

    fn judged(check: CanaryCheck, verdict: CanaryVerdict, text: &str) -> CheckView {
        CheckView { check, verdict, text: text.into(), rate: None }
    }

    fn ran(verdict: CanaryVerdict, text: &str) -> PlaceView {
        let checks =
            vec![judged(CanaryCheck::Init, CanaryVerdict::Ok, ""), judged(CanaryCheck::SmSdc, verdict, text)];
        let end = Some(CanaryEnd::Finished);
        PlaceView { last_run: Some(NOW - 720.0), due: Some(NOW + 1080.0), end, checks, ..place() }
    }

    fn snapshot(mode: CanaryMode, places: Vec<PlaceView>) -> Snapshot {
        let canary = CanaryView { mode: Some(mode), places, ..CanaryView::default() };
        let (parts, gaps) = (Vec::new(), Vec::new());
        let gpus =
            vec![GpuView { gpu: fixtures::gpu(0), state: GpuState::Up, parts, gaps, processes: Vec::new() }];
        Snapshot { unix_seconds: NOW, gpus, canary, ..Snapshot::default() }.evaluated()
    }

    fn says(mode: CanaryMode, places: Vec<PlaceView>) -> (HealthLevel, String) {
        let line = line(&snapshot(mode, places), &fixtures::gpu(0)).unwrap();
        (line.level, line.text)
    }

    #[test]
    fn the_line_says_what_was_found_when_and_what_is_next() {
        use CanaryMode::{Idle, Off, OnDemand};
        use CanaryVerdict as V;
        for (mode, place, weight, text) in [
            (Idle, ran(V::Ok, ""), HealthLevel::Ok, "ok, 12 min ago; next in 18 min"),
            (Off, ran(V::Ok, ""), HealthLevel::Ok, "ok, 12 min ago; off now"),
            (Off, place(), HealthLevel::Note, "off"),
            (OnDemand, place(), HealthLevel::Note, "never ran; on demand"),
            (
                Idle,
                PlaceView { due: Some(NOW + 60.0), ..place() },
                HealthLevel::Note,
                "never ran; next in 60 s",
            ),
            (Idle, PlaceView { running: true, ..place() }, HealthLevel::Note, "running now"),
            (
                Idle,
                PlaceView { skipped: Some(CanarySkip::ComputeMode), due: Some(NOW), ..place() },
                HealthLevel::Note,
                "never ran; due now; postponed: compute mode",
            ),
            (
                Idle,
                PlaceView { end: Some(CanaryEnd::Abandoned), last_run: Some(NOW - 5.0), ..place() },
                HealthLevel::Note,
                "yielded to a job, 5.0 s ago",
            ),
            (
                Idle,
                ran(V::WrongResult, "SM 17"),
                HealthLevel::Faulty,
                "wrong result (sm_sdc), 12 min ago; next in 18 min",
            ),
            (
                Idle,
                PlaceView { hung: Some(CanaryStep::Context), ..ran(V::Ok, "") },
                HealthLevel::Faulty,
                "hangs in context, 12 min ago; next in 18 min",
            ),
            (
                Idle,
                PlaceView {
                    end: Some(CanaryEnd::CouldNotRun),
                    text: "There is no libcuda.so.1.".into(),
                    last_run: Some(NOW - 5.0),
                    ..place()
                },
                HealthLevel::Note,
                "could not run: There is no libcuda.so.1, 5.0 s ago",
            ),
        ] {
            assert_eq!(says(mode, vec![place]), (weight, text.to_owned()));
        }
        assert_eq!(line(&Snapshot::default(), &fixtures::gpu(0)), None, "no canary, no line");
    }

    fn at(id: u32, place: PlaceView) -> PlaceView {
        let (profile, mig_uuid) = ("3g.71gb".into(), format!("MIG-{id}"));
        let instance = Instance { gpu_instance: id, compute_instance: 0, profile, mig_uuid };
        PlaceView { instance: Some(instance), ..place }
    }

    #[test]
    fn the_table_has_a_row_of_each_place_in_use() {
        let due = |due| PlaceView { due: Some(due), ..place() };
        let postponed = |place| PlaceView { skipped: Some(CanarySkip::Processes), ..place };
        let table = |places| table(&snapshot(CanaryMode::Idle, places)).0;
        let divided = table(vec![due(NOW), at(1, postponed(place())), at(2, ran(CanaryVerdict::Ok, ""))]);
        assert_eq!(divided.matches("<th scope=\"row\">").count(), 2, "not of the whole GPU: {divided}");
        assert!(divided.contains("<td class=\"next\">postponed: GPU in use</td>"), "{divided}");
        let hung = PlaceView { hung: Some(CanaryStep::Context), ..place() };
        assert_eq!(table(vec![hung, at(1, place())]).matches("<th scope=\"row\">").count(), 2);
        let whole = table(vec![postponed(due(NOW + 60.0))]);
        assert!(whole.contains("<td class=\"next\">in 60 s, postponed: GPU in use</td>"), "{whole}");
        assert!(table(vec![place()]).contains("<td class=\"next\">–</td>"));
    }

    #[test]
    fn instances_are_counted_and_the_worst_is_named() {
        let well = vec![at(1, ran(CanaryVerdict::Ok, "")), at(2, ran(CanaryVerdict::Ok, ""))];
        assert_eq!(says(CanaryMode::Idle, well.clone()).1, "all 2 instances ok, 12 min ago; next in 18 min");
        let mut planned = well.clone();
        planned.push(PlaceView { due: Some(NOW + 60.0), ..place() });
        assert_eq!(says(CanaryMode::Idle, planned).1, "all 2 instances ok, 12 min ago; next in 60 s");
        let mut ill = well;
        ill.push(at(5, ran(CanaryVerdict::SlowSm, "SM 3 is 2 % slow.")));
        let (weight, text) = says(CanaryMode::Idle, ill.clone());
        assert!(text.starts_with("2 of 3 instances ok; slow sm (sm_sdc), 12 min ago"), "{text}");
        assert_eq!(weight, HealthLevel::Degraded);
        let verdict = snapshot(CanaryMode::Idle, ill).health.gpus.remove(0);
        assert_eq!(verdict.word, "degraded");
        assert_eq!(verdict.reasons[0].text, "canary on 3g.71gb #5, sm_sdc: SM 3 is 2 % slow.");
    }
}
