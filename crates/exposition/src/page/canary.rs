//! The canary in words: a line for each GPU's card, and what it found wrong. Pure functions.

use super::figures;
use crate::words::{self, Remark, Weight};
use model::canary::{Instance, loudness};
use model::catalog::schema::KnownLabel;
use model::catalog::{CanaryEnd, CanaryMode, CanaryVerdict, Gpu, Severity};
use model::snapshot::{CheckView, PlaceView, Snapshot};

/// How a GPU stands with the canary, and when that was found; `None` if there is no canary.
pub fn line(snapshot: &Snapshot, gpu: &Gpu) -> Option<Remark> {
    let places: Vec<&PlaceView> = snapshot.canary.of(gpu).collect();
    let mode = snapshot.canary.mode;
    if mode.is_none() && places.is_empty() {
        return None;
    }
    let now = snapshot.unix_seconds;
    let mut found = state(&places);
    let last = places.iter().filter_map(|place| place.last_run).reduce(f64::max);
    if let Some(last) = last {
        found.text += &format!(", {} ago", words::duration(figures::seconds(now - last)));
    }
    match mode {
        Some(CanaryMode::Off) => {
            // Not "never ran; off": what was never to run has not failed to.
            match last {
                None => found = Remark { weight: Weight::Note, text: "off".into() },
                Some(_) => found.text += "; off now",
            }
        }
        Some(CanaryMode::OnDemand) => found.text += "; on demand",
        _ => {}
    }
    let planned = places.iter().filter(|_| mode != Some(CanaryMode::Off));
    if let Some(due) = planned.filter_map(|place| place.due).reduce(f64::min) {
        found.text += &match due > now {
            true => format!("; next in {}", words::duration(figures::seconds(due - now))),
            false => "; due now".to_owned(),
        };
    }
    if let Some(reason) = places.iter().find_map(|place| place.skipped) {
        found.text += &format!("; put off: {}", words::plain(reason.known()));
    }
    Some(found)
}

/// How all places of a GPU stand: the worst first, and a count of those that are well if there are several.
fn state(places: &[&PlaceView]) -> Remark {
    // Of a GPU that is divided its instances stand for it.
    let divided = places.iter().any(|place| place.instance.is_some());
    let own = places.iter().filter(|place| place.instance.is_some() == divided || place.hung.is_some());
    let states: Vec<Remark> = own.map(|place| of_place(place)).collect();
    let Some(worst) = states.iter().max_by_key(|state| state.weight).cloned() else {
        return Remark { weight: Weight::Note, text: "never ran".into() };
    };
    let well = states.iter().filter(|state| state.weight == Weight::Well).count();
    match states.len() {
        1 => worst,
        all if well == all => Remark { text: format!("all {all} instances ok"), ..worst },
        all => Remark { text: format!("{well} of {all} instances ok; {}", worst.text), ..worst },
    }
}

fn of_place(place: &PlaceView) -> Remark {
    let say = |weight, text: String| Remark { weight, text };
    if let Some(step) = place.hung {
        return say(Weight::Bad, format!("hangs in {}", words::plain(step.known())));
    }
    if place.running {
        return say(Weight::Note, "running now".into());
    }
    let loud = |check: &&CheckView| loudness(check.verdict).map(|severity| severity as u8);
    let loudest = place.checks.iter().filter(|check| loud(check).is_some()).min_by_key(loud);
    if let Some(check) = loudest {
        let text = format!("{} ({})", words::plain(check.verdict.known()), check.check.known());
        return say(weight(check.verdict), text);
    }
    match place.end {
        None => say(Weight::Note, "never ran".into()),
        Some(CanaryEnd::CouldNotRun) => say(Weight::Note, format!("could not run: {}", stop(&place.text))),
        Some(CanaryEnd::Abandoned) => say(Weight::Note, "made way for other work".into()),
        Some(CanaryEnd::Broken) => say(Weight::Note, format!("broke off: {}", stop(&place.text))),
        Some(_) if place.checks.iter().all(|check| check.verdict == CanaryVerdict::Ok) => {
            say(Weight::Well, "ok".into())
        }
        Some(_) => say(Weight::Note, "somebody else used it".into()),
    }
}

/// A sentence that goes on.
fn stop(text: &str) -> &str {
    text.trim_end_matches('.')
}

fn weight(verdict: CanaryVerdict) -> Weight {
    match loudness(verdict) {
        Some(Severity::Page) => Weight::Bad,
        Some(Severity::Ticket) => Weight::Warn,
        Some(Severity::Info) => Weight::Note,
        None => Weight::Well,
    }
}

/// What the canary says against a GPU.
pub fn reasons(snapshot: &Snapshot, gpu: &Gpu, reasons: &mut Vec<Remark>) {
    for place in snapshot.canary.of(gpu) {
        let whose = place.instance.as_ref().map(name).unwrap_or_default();
        if let Some(step) = place.hung {
            let text = format!("the canary{whose} hangs in {}", words::plain(step.known()));
            reasons.push(Remark { weight: Weight::Bad, text });
        }
        for check in &place.checks {
            let weight = weight(check.verdict);
            if weight > Weight::Note {
                let text = format!("canary{whose}, {}: {}", check.check.known(), check.text);
                reasons.push(Remark { weight, text });
            }
        }
    }
}

fn name(instance: &Instance) -> String {
    format!(" on {} #{}", instance.profile, instance.gpu_instance)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::fixtures;
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
        let canary = CanaryView { mode: Some(mode), places };
        let (parts, gaps) = (Vec::new(), Vec::new());
        let gpus =
            vec![GpuView { gpu: fixtures::gpu(0), state: GpuState::Up, parts, gaps, processes: Vec::new() }];
        Snapshot { unix_seconds: NOW, gpus, canary, ..Snapshot::empty() }
    }

    fn says(mode: CanaryMode, places: Vec<PlaceView>) -> (Weight, String) {
        let line = line(&snapshot(mode, places), &fixtures::gpu(0)).unwrap();
        (line.weight, line.text)
    }

    #[test]
    fn the_line_says_what_was_found_when_and_what_is_next() {
        use CanaryMode::{Idle, Off, OnDemand};
        use CanaryVerdict as V;
        for (mode, place, weight, text) in [
            (Idle, ran(V::Ok, ""), Weight::Well, "ok, 12 min ago; next in 18 min"),
            (Off, ran(V::Ok, ""), Weight::Well, "ok, 12 min ago; off now"),
            (Off, place(), Weight::Note, "off"),
            (OnDemand, place(), Weight::Note, "never ran; on demand"),
            (Idle, PlaceView { due: Some(NOW + 60.0), ..place() }, Weight::Note, "never ran; next in 60 s"),
            (Idle, PlaceView { running: true, ..place() }, Weight::Note, "running now"),
            (
                Idle,
                PlaceView { skipped: Some(CanarySkip::ComputeMode), due: Some(NOW), ..place() },
                Weight::Note,
                "never ran; due now; put off: compute mode",
            ),
            (
                Idle,
                ran(V::WrongResult, "SM 17"),
                Weight::Bad,
                "wrong result (sm_sdc), 12 min ago; next in 18 min",
            ),
            (
                Idle,
                PlaceView { hung: Some(CanaryStep::Context), ..ran(V::Ok, "") },
                Weight::Bad,
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
                Weight::Note,
                "could not run: There is no libcuda.so.1, 5.0 s ago",
            ),
        ] {
            assert_eq!(says(mode, vec![place]), (weight, text.to_owned()));
        }
        assert_eq!(line(&Snapshot::empty(), &fixtures::gpu(0)), None, "no canary, no line");
    }

    #[test]
    fn instances_are_counted_and_the_worst_is_told() {
        let instance = |id| Instance {
            gpu_instance: id,
            compute_instance: 0,
            profile: "3g.71gb".into(),
            mig_uuid: format!("MIG-{id}"),
        };
        let at = |id, place| PlaceView { instance: Some(instance(id)), ..place };
        let well = vec![at(1, ran(CanaryVerdict::Ok, "")), at(2, ran(CanaryVerdict::Ok, ""))];
        assert_eq!(says(CanaryMode::Idle, well.clone()).1, "all 2 instances ok, 12 min ago; next in 18 min");
        let mut planned = well.clone();
        planned.push(PlaceView { due: Some(NOW + 60.0), ..place() });
        assert_eq!(says(CanaryMode::Idle, planned).1, "all 2 instances ok, 12 min ago; next in 60 s");
        let mut ill = well;
        ill.push(at(5, ran(CanaryVerdict::SlowSm, "SM 3 is 2 % slow.")));
        let (weight, text) = says(CanaryMode::Idle, ill.clone());
        assert!(text.starts_with("2 of 3 instances ok; slow sm (sm_sdc), 12 min ago"), "{text}");
        assert_eq!(weight, Weight::Warn);
        let verdict = words::verdicts(&snapshot(CanaryMode::Idle, ill)).remove(0);
        assert_eq!(verdict.word, "degraded");
        assert_eq!(verdict.reasons[0].text, "canary on 3g.71gb #5, sm_sdc: SM 3 is 2 % slow.");
    }
}
