//! Findings of the canary: its events update the state of each place, the counters and the event list.
//!
//! A verdict holds until the next judged run, even if the GPU stops answering. [`publish`] decides which of it is
//! then published.

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

/// Bounds of the histogram of step times, in seconds: three per decade, from a launch to a context that is barely
/// created.
const STEP_SECONDS: [f64; 10] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 60.0];
/// Bounds of the histogram of rates: close together near 1, because a healthy GPU stays within 0.1 %.
const RATIOS: [f64; 13] = [0.5, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999, 1.001, 1.005, 1.01, 1.05];
/// Maximum number of bad multiprocessors named per GPU.
const MOST_BAD_SMS: usize = 8;
/// Places kept per GPU: the GPU and as many MIG devices as it can have, with room for recently replaced ones.
const MOST_PLACES: usize = 32;
/// CUDA errors of one GPU that are counted separately. There are about one hundred.
const MOST_ERRORS: usize = 64;

#[derive(Default)]
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

/// Newest verdict and figures of one check.
struct CheckState {
    verdict: CanaryVerdict,
    text: String,
    /// All verdicts so far.
    seen: BTreeSet<CanaryVerdict>,
    /// Verdict of the newest event in the event list.
    listed: CanaryVerdict,
    /// Whether the last verdict about the GPU's health was a fault.
    faulty: bool,
    figures: CheckFigures,
}

/// Measurements of the newest valid run of a check.
#[derive(Default)]
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

/// State of the canary.
#[derive(Default)]
pub(crate) struct CanaryFindings {
    pub counters: OwnCounters,
    mode: Option<CanaryMode>,
    duty: Option<f64>,
    processes: Option<usize>,
    /// Places by the UUID of the GPU, because its index may change.
    places: BTreeMap<(Arc<str>, Option<Instance>), PlaceRecord>,
    /// Steps in which a process on the GPU has ever hung.
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

    /// Applies an event, and returns the events for the list. `gpu` is the known GPU that the event is about, if any.
    pub fn record(&mut self, gpu: Option<&Gpu>, event: CanaryEvent, unix_seconds: f64) -> Vec<Event> {
        match event {
            CanaryEvent::Mode { mode, duty } => {
                self.mode = Some(mode);
                self.duty = possible(&m::gpu_canary_duty_budget_ratio, duty);
            }
            CanaryEvent::Alive(alive) => self.processes = Some(alive),
            // The ledger records the time of peer tests, and nothing else needs to be done.
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
        // A run that could not start failed because of its environment.
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

    /// Returns true if the GPU is not reliable according to the canary.
    pub fn faulty(&self, gpu: &Gpu) -> bool {
        let mut places = self.places.iter().filter(|((uuid, _), _)| *uuid == gpu.uuid);
        places.any(|(_, record)| record.hung.is_some() || record.checks.values().any(|s| s.faulty))
    }

    /// Ends failures and hangs of a GPU after its reset, or of all GPUs with `None` after a driver load. A wrong
    /// result is a property of the hardware, and stays until a later run clears it.
    pub fn reset(&mut self, gpu: Option<&Gpu>) {
        let of = |uuid: &Arc<str>| gpu.is_none_or(|gpu| gpu.uuid == *uuid);
        for (_, record) in self.places.iter_mut().filter(|((uuid, _), _)| of(uuid)) {
            let over = |v| matches!(v, CanaryVerdict::DriverFault | CanaryVerdict::Hung);
            record.checks.retain(|_, state| !over(state.verdict));
        }
    }

    /// Ends the wrong results and faults of a GPU that an operator cleared.
    fn clear(&mut self, uuid: &Arc<str>) {
        let others = |v| matches!(v, CanaryVerdict::DriverFault | CanaryVerdict::Hung);
        for (_, record) in self.places.iter_mut().filter(|((of, _), _)| of == uuid) {
            record.checks.retain(|_, state| {
                let wrong = state.verdict == CanaryVerdict::WrongResult;
                !wrong && (!state.faulty || others(state.verdict))
            });
        }
    }

    /// Forgets a GPU that was replaced.
    pub fn forget(&mut self, uuid: &Arc<str>) {
        self.places.retain(|(of, _), _| of != uuid);
        self.hung.remove(uuid);
        self.errors.remove(uuid);
    }

    /// Drops the MIG instances of a GPU that no longer exist.
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

/// Returns a verdict for a run that ended with a driver fault or hang, even if no check was judged so. The step in
/// which the run ended becomes the check.
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

/// Returns true if a verdict means that the GPU is not reliable.
fn fault(verdict: CanaryVerdict) -> bool {
    matches!(verdict, CanaryVerdict::WrongResult | CanaryVerdict::DriverFault | CanaryVerdict::Hung)
}

/// Returns true if a sample with this verdict measured the GPU.
fn valid(sample: CanaryVerdict) -> bool {
    use CanaryVerdict as V;
    !matches!(sample, V::Contended | V::DriverFault | V::Hung | V::Skipped | V::CouldNotRun)
}

/// Returns the value if it is within the metric's limits.
fn possible<E: Entity, L: LabelSet>(metric: &Metric<E, L>, value: f64) -> Option<f64> {
    metric.def().limits().contains(&value).then_some(value)
}

/// Returns the event of a judged check whose verdict differs from the one that was `listed` last. Discarded samples
/// and skipped checks do not change a verdict.
fn change(gpu: &Gpu, outcome: &Outcome, judged: &Judged, listed: CanaryVerdict, at: f64) -> Option<Event> {
    if judged.verdict == listed || matches!(judged.verdict, CanaryVerdict::Contended | CanaryVerdict::Skipped)
    {
        return None;
    }
    let code = outcome.cuda_error.filter(|_| judged.verdict == CanaryVerdict::DriverFault);
    let (code, text) = (code.map(u64::from), judged.text.clone());
    let event = at_place(gpu, &outcome.place, verdict_event(judged.verdict, judged.check, at));
    Some(Event { code, text, ..event })
}

fn verdict_event(verdict: CanaryVerdict, check: CanaryCheck, at: f64) -> Event {
    let severity = loudness(verdict).unwrap_or(Severity::Info);
    let (action, meaning) = first(verdict);
    let event = Event::new(EventKind::Canary, at, severity, action);
    Event { mnemonic: verdict.known(), check: Some(check.known()), meaning, ..event }
}

/// Returns the event of a wrong result that a manual run found.
fn wrong_by_hand(gpu: Option<&Gpu>, uuid: &str, check: CanaryCheck, text: String, at: f64) -> Event {
    of_board(gpu, uuid, text, verdict_event(CanaryVerdict::WrongResult, check, at))
}

/// Returns the event of a wrong result that was cleared.
fn cleared(gpu: Option<&Gpu>, uuid: &str, text: String, unix_seconds: f64) -> Event {
    let meaning = "A wrong result of the canary was cleared.";
    let event = Event::new(EventKind::Canary, unix_seconds, Severity::Info, FaultAction::Ignore);
    of_board(gpu, uuid, text, Event { meaning, ..event })
}

/// Returns an event about a board. A board that was moved or is not known yet is not a GPU of this node.
fn of_board(gpu: Option<&Gpu>, uuid: &str, text: String, event: Event) -> Event {
    let text = if gpu.is_some() { text } else { format!("board {uuid}: {text}") };
    Event { gpu: gpu.cloned(), text, ..event }
}

/// Returns the event of a hung process that has ended.
fn hangs_no_more(gpu: &Gpu, place: &Place, step: CanaryStep, unix_seconds: f64) -> Event {
    let event = Event::new(EventKind::Canary, unix_seconds, Severity::Info, FaultAction::Ignore);
    let meaning = "The hung canary process has ended.";
    at_place(gpu, place, Event { meaning, text: format!("It hung in step {}.", step.known()), ..event })
}

fn at_place(gpu: &Gpu, place: &Place, event: Event) -> Event {
    let instance = place.instance.as_ref();
    Event {
        gpu: Some(gpu.clone()),
        gpu_instance: instance.map(|instance| instance.gpu_instance),
        compute_instance: instance.map(|instance| instance.compute_instance),
        ..event
    }
}

/// Returns the first action after a verdict, and its meaning.
fn first(verdict: CanaryVerdict) -> (FaultAction, &'static str) {
    use {CanaryVerdict as V, FaultAction as A};
    match verdict {
        V::Ok => (A::Ignore, "The canary no longer finds a problem."),
        V::Throttled => (A::CheckHardware, "The GPU runs below its clock, and the driver names the reason."),
        V::UnexplainedClockCap => {
            (A::CheckHardware, "The GPU runs below its clock, and the driver names no reason.")
        }
        V::SlowSm => (A::CheckHardware, "A multiprocessor is slower than the others."),
        V::DegradedMemory => (A::CheckHardware, "Device memory or its cache is slower than expected."),
        V::NarrowedLink => {
            (A::CheckHardware, "The PCIe link is narrower or slower than GPU and slot support.")
        }
        V::Slow => (A::CheckHardware, "The GPU is slower than expected."),
        V::WrongResultSuspected => (A::CheckHardware, "A wrong result occurred once and did not recur."),
        V::WrongResult => (A::CheckHardware, "The GPU computes or stores incorrectly."),
        V::DriverFault => (A::ResetGpu, "The CUDA driver fails on the GPU."),
        V::Hung => (A::ResetGpu, "A program on the GPU makes no progress."),
        V::CouldNotRun => (A::Ignore, "The canary could not run, but not because of the GPU."),
        V::Contended | V::Skipped => (A::Ignore, ""),
    }
}
