//! What the canary has found: its events folded into the state of each place, counters and events for the list.
//!
//! A verdict is history: it holds until the next judged run, also if the GPU stops answering. What is published of
//! it then is in [`publish`].

mod publish;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::counters::OwnCounters;
use model::canary::{CanaryEvent, Instance, Judged, Outcome, Place, Rate, loudness};
use model::catalog::schema::{Entity, KnownLabel, LabelSet, Metric};
use model::catalog::{
    self as m, BadSmKind, CanaryCheck, CanaryEnd, CanaryMode, CanarySkip, CanaryStep, CanaryVerdict,
    CudaError, FaultAction, Gpu, MismatchKind, Node, RateAgainst, Severity,
};
use model::snapshot::{Event, EventKind, Histogram};

/// Bounds of the histogram of step times, seconds: three a decade, from a launch to a context that hardly comes.
const STEP_SECONDS: [f64; 10] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 60.0];
/// Bounds of the histogram of rates: close together near 1, where a healthy GPU stays within a thousandth.
const RATIOS: [f64; 13] = [0.5, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999, 1.001, 1.005, 1.01, 1.05];
/// Multiprocessors of a GPU that are named.
const MOST_BAD_SMS: usize = 8;
/// Places kept of one GPU: it and as many MIG devices as it can have, with room for those that are just replaced.
const MOST_PLACES: usize = 32;
/// CUDA errors of one GPU that are counted apart; there are some hundred.
const MOST_ERRORS: usize = 64;

#[derive(Debug, Default)]
struct PlaceRecord {
    running: bool,
    hung: Option<CanaryStep>,
    due: Option<f64>,
    skipped: Option<CanarySkip>,
    last_run: Option<f64>,
    last_success: Option<f64>,
    end: Option<CanaryEnd>,
    text: String,
    checks: BTreeMap<CanaryCheck, CheckState>,
}

/// The newest verdict and figures of one check.
#[derive(Debug)]
struct CheckState {
    verdict: CanaryVerdict,
    text: String,
    /// Every verdict there was.
    seen: BTreeSet<CanaryVerdict>,
    /// The verdict that the list of events has last.
    listed: CanaryVerdict,
    /// Whether the last verdict that says anything of the GPU was a fault.
    faulty: bool,
    figures: CheckFigures,
}

/// What the newest valid run of a check measured.
#[derive(Debug, Default)]
struct CheckFigures {
    rate: Option<Rate>,
    ratios: BTreeMap<RateAgainst, f64>,
    clock: Option<f64>,
    bad_sms: Vec<(u32, BadSmKind)>,
}

impl CheckState {
    fn new(verdict: CanaryVerdict) -> CheckState {
        let (text, seen, figures) = (String::new(), BTreeSet::new(), CheckFigures::default());
        CheckState { verdict, text, seen, listed: CanaryVerdict::Ok, faulty: false, figures }
    }
}

/// What is known of the canary.
#[derive(Debug, Default)]
pub(crate) struct CanaryFindings {
    pub counters: OwnCounters,
    mode: Option<CanaryMode>,
    duty: Option<f64>,
    processes: Option<usize>,
    /// By UUID of the GPU: its index may change.
    places: BTreeMap<(Arc<str>, Option<Instance>), PlaceRecord>,
    /// Steps in which a process of the GPU ever hung.
    hung: BTreeMap<Arc<str>, BTreeSet<CanaryStep>>,
    errors: HashMap<Arc<str>, BTreeSet<u32>>,
    steps: BTreeMap<CanaryStep, Histogram>,
    rates: BTreeMap<CanaryCheck, Histogram>,
}

impl CanaryFindings {
    /// Creates the state with its counters about the node.
    pub fn new() -> CanaryFindings {
        let mut findings = CanaryFindings::default();
        let counters = &mut findings.counters;
        counters.born(&m::gpu_canary_runs_total, &Node {});
        counters.born(&m::gpu_canary_skipped_total, &Node {});
        counters.add(&m::gpu_canary_kills_total, &Node {}, (), 0.0);
        findings
    }

    /// Creates the counters about a GPU.
    pub fn born(&mut self, gpu: &Gpu) {
        self.counters.born(&m::gpu_canary_mismatches_total, gpu);
        self.counters.add(&m::gpu_canary_discarded_total, gpu, (), 0.0);
        self.counters.add(&m::gpu_canary_gpu_seconds_total, gpu, (), 0.0);
    }

    /// Takes an event in; gives the events for the list. `gpu` is the GPU of the event as the ledger knows it, if
    /// it does.
    pub fn record(&mut self, gpu: Option<&Gpu>, event: CanaryEvent, unix_seconds: f64) -> Vec<Event> {
        match event {
            CanaryEvent::Mode { mode, duty } => {
                self.mode = Some(mode);
                self.duty = possible(&m::gpu_canary_duty_budget_ratio, duty);
            }
            CanaryEvent::Alive(alive) => self.processes = Some(alive),
            // The ledger keeps its time apart, which is all there is to it.
            CanaryEvent::Peer(..) => {}
            CanaryEvent::WrongByHand(board, check, text) => {
                return vec![wrong_by_hand(gpu, &board.uuid, check, text, unix_seconds)];
            }
            CanaryEvent::Cleared(board, text) => {
                self.clear(&board.uuid);
                return vec![cleared(gpu, &board.uuid, text, unix_seconds)];
            }
            CanaryEvent::Killed => self.counters.add(&m::gpu_canary_kills_total, &Node {}, (), 1.0),
            CanaryEvent::Due(place, at) => {
                let at = at.and_then(|at| possible(&m::gpu_canary_next_due_timestamp_seconds, at));
                if let Some(record) = self.place(gpu, &place) {
                    record.due = at;
                }
            }
            CanaryEvent::Skipped(place, reason) => {
                self.counters.add(&m::gpu_canary_skipped_total, &Node {}, (reason,), 1.0);
                if let Some(record) = self.place(gpu, &place) {
                    record.skipped = Some(reason);
                }
            }
            CanaryEvent::Began(place) => {
                if let Some(record) = self.place(gpu, &place) {
                    (record.running, record.skipped) = (true, None);
                }
            }
            CanaryEvent::Hung(place, step) => return self.hung(gpu, &place, step, unix_seconds),
            CanaryEvent::Ended(outcome) => return self.ended(gpu, *outcome, unix_seconds),
        }
        Vec::new()
    }

    fn place(&mut self, gpu: Option<&Gpu>, place: &Place) -> Option<&mut PlaceRecord> {
        let uuid = &gpu?.uuid;
        let key = (Arc::clone(uuid), place.instance.clone());
        let of_gpu = self.places.keys().filter(|(of, _)| of == uuid).count();
        if of_gpu >= MOST_PLACES && !self.places.contains_key(&key) {
            return None;
        }
        Some(self.places.entry(key).or_default())
    }

    fn hung(&mut self, gpu: Option<&Gpu>, place: &Place, step: Option<CanaryStep>, at: f64) -> Vec<Event> {
        let Some(record) = self.place(gpu, place) else { return Vec::new() };
        let before = std::mem::replace(&mut record.hung, step);
        if let (Some(step), Some(gpu)) = (step, gpu) {
            self.hung.entry(Arc::clone(&gpu.uuid)).or_default().insert(step);
        }
        match (before, step) {
            (Some(step), None) => gpu.map(|gpu| hangs_no_more(gpu, place, step, at)).into_iter().collect(),
            _ => Vec::new(),
        }
    }

    fn ended(&mut self, gpu: Option<&Gpu>, outcome: Outcome, now: f64) -> Vec<Event> {
        self.count(gpu, &outcome);
        let Some(record) = self.place(gpu, &outcome.place) else { return Vec::new() };
        let Some(gpu) = gpu else { return Vec::new() };
        let at = possible(&m::gpu_canary_last_run_timestamp_seconds, outcome.ended);
        (record.running, record.skipped) = (false, outcome.skip);
        (record.end, record.last_run) = (Some(outcome.end), at.or(record.last_run));
        let well = |judged: &Judged| [judged.verdict, judged.sample] == [CanaryVerdict::Ok; 2];
        if outcome.end == CanaryEnd::Finished && !outcome.checks.is_empty() && outcome.checks.iter().all(well)
        {
            record.last_success = at.or(record.last_success);
        }
        let mut events = Vec::new();
        let unjudged = unjudged(&outcome);
        for judged in outcome.checks.iter().chain(&unjudged) {
            let state = record.checks.entry(judged.check).or_insert_with(|| CheckState::new(judged.verdict));
            state.record(judged);
            if let Some(event) = change(gpu, &outcome, judged, state.listed, at.unwrap_or(now)) {
                state.listed = judged.verdict;
                events.push(event);
            }
        }
        record.text = outcome.text;
        events
    }

    /// Counts a run.
    fn count(&mut self, gpu: Option<&Gpu>, outcome: &Outcome) {
        self.counters.add(&m::gpu_canary_runs_total, &Node {}, (outcome.end,), 1.0);
        if let Some(reason) = outcome.skip {
            self.counters.add(&m::gpu_canary_skipped_total, &Node {}, (reason,), 1.0);
        }
        for (step, seconds) in &outcome.steps {
            if let Some(seconds) = possible(&m::gpu_canary_step_duration_seconds, *seconds) {
                self.steps.entry(*step).or_insert_with(|| Histogram::new(&STEP_SECONDS)).observe(seconds);
            }
        }
        let rated = outcome.checks.iter().filter(|judged| valid(judged.sample));
        for (check, ratio) in rated.flat_map(|judged| judged.ratios.iter().map(|ratio| (judged.check, ratio)))
        {
            let ratio = Some(ratio.1).filter(|_| ratio.0 == RateAgainst::Baseline);
            if let Some(ratio) = ratio.and_then(|r| possible(&m::gpu_canary_sample_rate_ratio, r)) {
                self.rates.entry(check).or_insert_with(|| Histogram::new(&RATIOS)).observe(ratio);
            }
        }
        let Some(gpu) = gpu else { return };
        if let Some(seconds) = possible(&m::gpu_canary_gpu_seconds_total, outcome.gpu_seconds) {
            self.counters.add(&m::gpu_canary_gpu_seconds_total, gpu, (), seconds);
        }
        let mut discarded = 0.0;
        for judged in &outcome.checks {
            let wrong = &m::gpu_canary_mismatches_total;
            self.counters.add(wrong, gpu, (MismatchKind::Zeroed,), judged.zeroed as f64);
            self.counters.add(wrong, gpu, (MismatchKind::Flipped,), judged.flipped as f64);
            discarded += f64::from(u8::from(judged.sample == CanaryVerdict::Contended));
        }
        self.counters.add(&m::gpu_canary_discarded_total, gpu, (), discarded);
        // What could not be made failed by the environment.
        let fault = matches!(outcome.end, CanaryEnd::DriverFault | CanaryEnd::Hung);
        if let Some(code) = outcome.cuda_error.filter(|_| fault) {
            let codes = self.errors.entry(Arc::clone(&gpu.uuid)).or_default();
            if codes.len() < MOST_ERRORS || codes.contains(&code) {
                codes.insert(code);
                let label = CudaError(code.to_string().as_str().into());
                self.counters.add(&m::gpu_canary_cuda_errors_total, gpu, (label,), 1.0);
            }
        }
    }

    /// Whether the canary says that a GPU cannot be relied on.
    pub fn faulty(&self, gpu: &Gpu) -> bool {
        let mut places = self.places.iter().filter(|((uuid, _), _)| *uuid == gpu.uuid);
        places.any(|(_, record)| record.hung.is_some() || record.checks.values().any(|s| s.faulty))
    }

    /// A GPU was reset, or with `None` the driver was loaded again: that it failed or hung before is over. A wrong
    /// result is the hardware's, and holds until a run says otherwise.
    pub fn reset(&mut self, gpu: Option<&Gpu>) {
        let of = |uuid: &Arc<str>| gpu.is_none_or(|gpu| gpu.uuid == *uuid);
        for (_, record) in self.places.iter_mut().filter(|((uuid, _), _)| of(uuid)) {
            let over = |v| matches!(v, CanaryVerdict::DriverFault | CanaryVerdict::Hung);
            record.checks.retain(|_, state| !over(state.verdict));
        }
    }

    /// What was wrong on a GPU does not count any more.
    fn clear(&mut self, uuid: &Arc<str>) {
        let others = |v| matches!(v, CanaryVerdict::DriverFault | CanaryVerdict::Hung);
        for (_, record) in self.places.iter_mut().filter(|((of, _), _)| of == uuid) {
            record.checks.retain(|_, state| {
                let wrong = state.verdict == CanaryVerdict::WrongResult;
                !wrong && (!state.faulty || others(state.verdict))
            });
        }
    }

    /// Forgets a GPU that another one has replaced.
    pub fn forget(&mut self, uuid: &Arc<str>) {
        self.places.retain(|(of, _), _| of != uuid);
        self.hung.remove(uuid);
        self.errors.remove(uuid);
    }

    /// Keeps of a GPU's MIG instances those that there are.
    fn retain(&mut self, gpu: &Gpu, there: impl Fn(&Instance) -> bool) {
        self.places.retain(|(uuid, instance), _| *uuid != gpu.uuid || instance.as_ref().is_none_or(&there));
    }
}

impl CheckState {
    fn record(&mut self, judged: &Judged) {
        self.verdict = judged.verdict;
        self.text.clone_from(&judged.text);
        self.seen.insert(judged.verdict);
        if fault(judged.verdict) || valid(judged.verdict) {
            self.faulty = fault(judged.verdict);
        }
        if valid(judged.sample) {
            let ratios = judged.ratios.iter().copied();
            self.figures = CheckFigures {
                rate: judged.rate,
                ratios: ratios
                    .filter_map(|(of, ratio)| Some((of, possible(&m::gpu_canary_rate_ratio, ratio)?)))
                    .collect(),
                clock: judged.sm_clock_hertz.and_then(|hz| possible(&m::gpu_canary_sm_clock_hertz, hz)),
                bad_sms: judged.bad_sms.iter().take(MOST_BAD_SMS).copied().collect(),
            };
        }
    }
}

/// A run that the driver ended or that hangs speaks against the GPU, also if no check was judged so: the step it
/// ended in is the check.
fn unjudged(outcome: &Outcome) -> Option<Judged> {
    let verdict = match outcome.end {
        CanaryEnd::DriverFault => CanaryVerdict::DriverFault,
        CanaryEnd::Hung => CanaryVerdict::Hung,
        _ => return None,
    };
    if outcome.checks.iter().any(|judged| judged.verdict == verdict) {
        return None;
    }
    let step = outcome.step.map_or("", |step| step.known());
    let check = CanaryCheck::ALL.iter().find(|check| check.known() == step);
    Some(Judged::plain(check.copied().unwrap_or(CanaryCheck::Init), verdict, outcome.text.clone()))
}

/// Whether a verdict says that the GPU cannot be relied on.
fn fault(verdict: CanaryVerdict) -> bool {
    matches!(verdict, CanaryVerdict::WrongResult | CanaryVerdict::DriverFault | CanaryVerdict::Hung)
}

/// Whether a sample of this verdict measured the GPU.
fn valid(sample: CanaryVerdict) -> bool {
    use CanaryVerdict as V;
    !matches!(sample, V::Contended | V::DriverFault | V::Hung | V::Skipped | V::CouldNotRun)
}

/// A value that the metric can have.
fn possible<E: Entity, L: LabelSet>(metric: &Metric<E, L>, value: f64) -> Option<f64> {
    metric.def().limits().contains(&value).then_some(value)
}

/// The event that a judged check is, if it is one: its verdict is another than the one that is `listed` last.
/// A sample that was thrown away and a check that was left out change no verdict.
fn change(gpu: &Gpu, outcome: &Outcome, judged: &Judged, listed: CanaryVerdict, at: f64) -> Option<Event> {
    if judged.verdict == listed || matches!(judged.verdict, CanaryVerdict::Contended | CanaryVerdict::Skipped)
    {
        return None;
    }
    let severity = loudness(judged.verdict).unwrap_or(Severity::Info);
    let (action, meaning) = first(judged.verdict);
    let code = outcome.cuda_error.filter(|_| judged.verdict == CanaryVerdict::DriverFault);
    let event = event(gpu, &outcome.place, at, severity, action);
    Some(Event {
        code: code.map(u64::from),
        mnemonic: judged.verdict.known(),
        check: Some(judged.check.known()),
        meaning,
        text: judged.text.clone(),
        ..event
    })
}

/// A run by hand found a wrong result.
fn wrong_by_hand(gpu: Option<&Gpu>, uuid: &str, check: CanaryCheck, text: String, at: f64) -> Event {
    let verdict = CanaryVerdict::WrongResult;
    let (action, meaning) = first(verdict);
    let event = Event::new(EventKind::Canary, at, Severity::Page, action);
    let event = Event { mnemonic: verdict.known(), check: Some(check.known()), meaning, ..event };
    of_board(gpu, uuid, text, event)
}

/// A wrong result was cleared.
fn cleared(gpu: Option<&Gpu>, uuid: &str, text: String, unix_seconds: f64) -> Event {
    let meaning = "A wrong result of the canary was cleared.";
    let event = Event::new(EventKind::Canary, unix_seconds, Severity::Info, FaultAction::Ignore);
    of_board(gpu, uuid, text, Event { meaning, ..event })
}

/// An event about a board. One that is elsewhere now, or not known yet, is no GPU of this node.
fn of_board(gpu: Option<&Gpu>, uuid: &str, text: String, event: Event) -> Event {
    let text = if gpu.is_some() { text } else { format!("board {uuid}: {text}") };
    Event { gpu: gpu.cloned(), text, ..event }
}

/// A process that hung in this step has ended.
fn hangs_no_more(gpu: &Gpu, place: &Place, step: CanaryStep, unix_seconds: f64) -> Event {
    Event {
        meaning: "The canary's process that hung has ended.",
        text: format!("It hung in step {}.", step.known()),
        ..event(gpu, place, unix_seconds, Severity::Info, FaultAction::Ignore)
    }
}

fn event(gpu: &Gpu, place: &Place, unix_seconds: f64, severity: Severity, action: FaultAction) -> Event {
    let instance = place.instance.as_ref();
    Event {
        gpu: Some(gpu.clone()),
        gpu_instance: instance.map(|instance| instance.gpu_instance),
        compute_instance: instance.map(|instance| instance.compute_instance),
        ..Event::new(EventKind::Canary, unix_seconds, severity, action)
    }
}

/// What to do first after a verdict, and what it means.
fn first(verdict: CanaryVerdict) -> (FaultAction, &'static str) {
    use {CanaryVerdict as V, FaultAction as A};
    match verdict {
        V::Ok => (A::Ignore, "The canary finds nothing wrong any more."),
        V::Throttled => (A::CheckHardware, "The GPU is held below its clock; the driver names the reason."),
        V::UnexplainedClockCap => {
            (A::CheckHardware, "The GPU is held below its clock without a named reason.")
        }
        V::SlowSm => (A::CheckHardware, "A multiprocessor is slower than the others."),
        V::DegradedMemory => (A::CheckHardware, "Device memory or its cache is below its rate."),
        V::NarrowedLink => (A::CheckHardware, "The PCIe link is narrower or slower than GPU and slot allow."),
        V::Slow => (A::CheckHardware, "The GPU is below its rate."),
        V::WrongResultSuspected => (A::CheckHardware, "A wrong result was seen once, and not again."),
        V::WrongResult => (A::CheckHardware, "The GPU computes or stores wrongly."),
        V::DriverFault => (A::ResetGpu, "The CUDA driver fails on the GPU."),
        V::Hung => (A::ResetGpu, "A program on the GPU makes no progress."),
        V::CouldNotRun => (A::Ignore, "The canary could not run, for no fault of the GPU."),
        V::Contended | V::Skipped => (A::Ignore, ""),
    }
}
