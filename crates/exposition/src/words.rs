//! What a snapshot means, in words: the verdict on each GPU with its reasons, and on the node.
//!
//! Pure functions, without a limit of their own: where a number decides, it is the device's.

use std::time::Duration;

use crate::page::{canary, figures};
use model::catalog::schema::KnownLabel;
use model::catalog::{
    self as m, Cause, ClockEvent, EccCounter, EccError, FaultAction, Gpu, Node, RecoveryAction, Severity,
};
use model::sample::Missing;
use model::snapshot::{CollectorView, DriverState, Event, EventKind, GpuState, GpuView, Snapshot};

/// Degrees to the slowdown temperature from which on the page says so.
const LITTLE_MARGIN: f64 = 5.0;

/// What holds the work on a GPU back.
pub fn cause_text(cause: Cause) -> &'static str {
    match cause {
        Cause::None => "nothing known holds it back",
        Cause::PowerCapped => "its clocks are held down by the power cap",
        Cause::ThermallyThrottled => "its clocks are held down by heat",
        Cause::Contended => "it shares a busy GPU with others",
        Cause::HostCpuBound => "its program on the CPU is the limit",
        Cause::RemoteNuma => "it moves data from far CPUs or memory",
        Cause::PcieBound => "PCIe is full",
        Cause::MemoryBound => "device memory is the limit",
        Cause::Underfilled => "many small kernels: most multiprocessors idle",
        Cause::SerialCopies => "copies and kernels seem to take turns",
    }
}

/// How much something matters. Later ones matter more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// As it should be.
    Well,
    /// Worth knowing; nothing to do.
    Note,
    /// Not known yet.
    Waiting,
    /// Works, but needs a look.
    Warn,
    /// Does not work.
    Bad,
}

impl Weight {
    /// The class in the style sheet.
    pub fn class(self) -> &'static str {
        match self {
            Weight::Well => "well",
            Weight::Note => "note",
            Weight::Waiting => "waiting",
            Weight::Warn => "warn",
            Weight::Bad => "bad",
        }
    }

    /// A symbol that tells it without colour.
    pub fn symbol(self) -> &'static str {
        match self {
            Weight::Well => "✓",
            Weight::Note => "i",
            Weight::Waiting => "…",
            Weight::Warn => "▲",
            Weight::Bad => "✕",
        }
    }
}

/// One thing to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// How much it matters.
    pub weight: Weight,
    /// What it is.
    pub text: String,
}

/// What is to say of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// NVML's index.
    pub gpu: u32,
    /// As much as the heaviest of the reasons; a note alone leaves a GPU well.
    pub weight: Weight,
    /// The state in a word.
    pub word: &'static str,
    /// Why, heaviest first.
    pub reasons: Vec<Remark>,
}

/// The verdict on every GPU, in the order of [`Snapshot::gpus`].
pub fn verdicts(snapshot: &Snapshot) -> Vec<Verdict> {
    snapshot.gpus.iter().map(|view| verdict(snapshot, view)).collect()
}

fn verdict(snapshot: &Snapshot, view: &GpuView) -> Verdict {
    let mut reasons = Vec::new();
    let (mut weight, word) = match &view.state {
        GpuState::Up => (Weight::Well, None),
        GpuState::Waiting => (Weight::Waiting, Some("waiting")),
        GpuState::Stuck { .. } => (Weight::Bad, Some("stuck")),
        GpuState::Failing { .. } => (Weight::Bad, Some("failing")),
        GpuState::NoDriver => (Weight::Bad, Some("no driver")),
        GpuState::Paused => (Weight::Note, Some("paused")),
    };
    if view.state != GpuState::Up {
        reasons.push(Remark { weight, text: gpu_text(&view.state) });
    }
    faults(snapshot, &view.gpu, &mut reasons);
    canary::reasons(snapshot, &view.gpu, &mut reasons);
    memory(snapshot, &view.gpu, &mut reasons);
    clocks(snapshot, &view.gpu, &mut reasons);
    pcie(snapshot, &view.gpu, &mut reasons);
    gaps(view, &mut reasons);
    // Stable: of equal weight, the state comes first.
    reasons.sort_by_key(|reason| std::cmp::Reverse(reason.weight));
    let heaviest = reasons.first().map_or(Weight::Well, |reason| reason.weight);
    if heaviest > Weight::Note {
        weight = weight.max(heaviest);
    }
    let word = word.unwrap_or(match weight {
        Weight::Well | Weight::Note => "well",
        Weight::Waiting => "waiting",
        Weight::Warn => "degraded",
        Weight::Bad => "faulty",
    });
    Verdict { gpu: view.gpu.gpu, weight, word, reasons }
}

/// Faults of the last hour that are more than an application's, the newest of each code; and what the driver asks
/// for.
fn faults(snapshot: &Snapshot, gpu: &Gpu, reasons: &mut Vec<Remark>) {
    const RECENT: f64 = 3600.0;
    let mut told = Vec::new();
    for event in snapshot.events.iter().rev().filter(|e| e.gpu.as_ref() == Some(gpu) && !e.old) {
        let age = snapshot.unix_seconds - event.last_unix_seconds;
        // What the canary found stands until it finds something else, and is told by what stands.
        if event.kind == EventKind::Canary
            || event.severity == Severity::Info
            || age > RECENT
            || told.contains(&(event.kind, event.code))
        {
            continue;
        }
        told.push((event.kind, event.code));
        let weight = if event.severity == Severity::Page { Weight::Bad } else { Weight::Warn };
        reasons.push(Remark { weight, text: event_text(event) });
    }
    for action in RecoveryAction::ALL.iter().filter(|action| **action != RecoveryAction::None) {
        if snapshot.number(&m::gpu_recovery_action, gpu, (*action,)) == Some(1.0) {
            let text = format!("the driver asks for: {}", plain(action.known()));
            reasons.push(Remark { weight: Weight::Bad, text });
        }
    }
}

/// An event in words: what it is, what it means, what to do first.
pub fn event_text(event: &Event) -> String {
    let code = event.code.map(|code| format!(" {code}")).unwrap_or_default();
    let what = match event.kind {
        EventKind::Xid => format!("Xid{code}: "),
        EventKind::Sxid => format!("NVSwitch fault{code}: "),
        EventKind::Canary => {
            let check = event.check.map(|check| format!(", {check}")).unwrap_or_default();
            // Its own words say what to do first.
            let text = if event.text.is_empty() { event.meaning } else { &event.text };
            return format!("canary{check}: {text}");
        }
        EventKind::Window => return format!("{} {}", event.meaning, event.text),
        _ => String::new(),
    };
    let meaning = if event.meaning.is_empty() { plain(event.kind.name()) } else { event.meaning.to_owned() };
    let first = match event.action {
        FaultAction::Ignore => String::new(),
        action => format!(" First: {}.", plain(action.known())),
    };
    format!("{what}{meaning}{first}")
}

/// Planned work in words: every window that lasts, and the next one to come.
pub fn windows(snapshot: &Snapshot) -> Vec<String> {
    let now = snapshot.unix_seconds;
    let open = snapshot.windows.iter().filter(|window| window.is_open(now));
    let mut texts: Vec<String> = open.map(|window| capital(&window.describe())).collect();
    let coming = snapshot.windows.iter().filter(|window| now < window.start);
    if let Some(next) = coming.min_by(|a, b| a.start.total_cmp(&b.start)) {
        texts.push(format!("Next, from {}: {}", model::window::write(next.start), next.describe()));
    }
    texts
}

/// A label's value as words.
pub fn plain(value: &str) -> String {
    value.replace('_', " ")
}

fn memory(snapshot: &Snapshot, gpu: &Gpu, reasons: &mut Vec<Remark>) {
    if snapshot.number(&m::gpu_row_remap_failure, gpu, ()) == Some(1.0) {
        let text = "a memory row could not be replaced: the board is a candidate for return".into();
        reasons.push(Remark { weight: Weight::Bad, text });
    }
    if snapshot.number(&m::gpu_row_remap_pending, gpu, ()) == Some(1.0) {
        reasons.push(Remark { weight: Weight::Warn, text: "a memory row waits for a GPU reset".into() });
    }
    let labels = (EccCounter::Volatile, EccError::Uncorrected);
    match snapshot.number(&m::gpu_ecc_total_errors, gpu, labels) {
        Some(errors) if errors > 0.0 => {
            let s = if errors == 1.0 { "" } else { "s" };
            let text = format!("{errors:.0} uncorrected ECC error{s} since the driver was loaded");
            reasons.push(Remark { weight: Weight::Warn, text });
        }
        _ => {}
    }
}

fn clocks(snapshot: &Snapshot, gpu: &Gpu, reasons: &mut Vec<Remark>) {
    let active = |event| snapshot.number(&m::gpu_clock_event_active, gpu, (event,)) == Some(1.0);
    let mut say = |weight, text: &str| reasons.push(Remark { weight, text: text.into() });
    let (heat, brake) = (active(ClockEvent::HwThermalSlowdown), active(ClockEvent::HwPowerBrakeSlowdown));
    if heat {
        say(Weight::Warn, "the hardware slows it down for heat");
    }
    if brake {
        say(Weight::Warn, "an external power brake slows it down");
    }
    // The driver raises the general reason together with the two above.
    if active(ClockEvent::HwSlowdown) && !heat && !brake {
        say(Weight::Warn, "the hardware slows it down");
    }
    if active(ClockEvent::SwThermalSlowdown) {
        say(Weight::Warn, "the driver slows it down for heat");
    }
    if active(ClockEvent::SwPowerCap) {
        say(Weight::Note, "at its power limit");
    }
    match snapshot.number(&m::gpu_temperature_margin_celsius, gpu, ()) {
        Some(margin) if margin <= LITTLE_MARGIN => {
            say(Weight::Warn, &format!("{margin:.0} °C left until it slows down for heat"));
        }
        _ => {}
    }
}

fn pcie(snapshot: &Snapshot, gpu: &Gpu, reasons: &mut Vec<Remark>) {
    let number = |metric| snapshot.number(metric, gpu, ());
    let width = (number(&m::gpu_pcie_link_width_lanes), number(&m::gpu_pcie_link_max_width_lanes));
    if let (Some(now), Some(max)) = width
        && now < max
    {
        let text = format!("PCIe uses {now:.0} of {max:.0} lanes");
        reasons.push(Remark { weight: Weight::Warn, text });
    }
    // An idle GPU lowers the generation to save power.
    let idle = snapshot.number(&m::gpu_clock_event_active, gpu, (ClockEvent::GpuIdle,)) == Some(1.0)
        || number(&m::gpu_utilization_ratio).is_none_or(|busy| busy == 0.0);
    let generation = (number(&m::gpu_pcie_link_generation), number(&m::gpu_pcie_link_max_generation));
    if let (Some(now), Some(max)) = generation
        && now < max
        && !idle
    {
        let text = format!("PCIe runs at generation {now:.0} of {max:.0}");
        reasons.push(Remark { weight: Weight::Note, text });
    }
}

fn gaps(view: &GpuView, reasons: &mut Vec<Remark>) {
    let failed = view.gaps.iter().filter_map(|gap| match &gap.missing {
        Missing::Failed { text, .. } => Some((gap.call.as_str(), text)),
        Missing::Unsupported | Missing::Dropped(_) => None,
    });
    let failed: Vec<_> = failed.collect();
    if let [(call, text), rest @ ..] = failed.as_slice() {
        let more = if rest.is_empty() { String::new() } else { format!(", and {} more", rest.len()) };
        reasons.push(Remark { weight: Weight::Warn, text: format!("{call} failed: {text}{more}") });
    }
}

/// The node in a sentence.
pub fn overall(snapshot: &Snapshot, verdicts: &[Verdict]) -> Remark {
    let known = match verdicts.len() {
        0 => String::new(),
        1 => " 1 GPU is known from before.".to_owned(),
        n => format!(" {n} GPUs are known from before."),
    };
    match &snapshot.driver {
        DriverState::Waiting => {
            Remark { weight: Weight::Waiting, text: "Waiting for the driver's first answer.".into() }
        }
        DriverState::Stuck => {
            let text = format!("The driver is stuck: calls into it do not return.{known}");
            Remark { weight: Weight::Bad, text }
        }
        DriverState::Away { text } => Remark {
            weight: Weight::Bad,
            text: format!("The driver is away: {}.{known}", text.trim_end_matches('.')),
        },
        DriverState::Mismatch { text } => {
            Remark { weight: Weight::Bad, text: format!("{}.{known}", capital(&mismatch(text))) }
        }
        DriverState::Paused { holders, .. } => {
            // Deliberate; only a release that does not come to its end needs a look.
            let weight = if holders.is_empty() { Weight::Note } else { Weight::Warn };
            Remark { weight, text: format!("{}.{known}", capital(&driver_text(&snapshot.driver))) }
        }
        DriverState::Up => of_gpus(snapshot, verdicts),
    }
}

fn of_gpus(snapshot: &Snapshot, verdicts: &[Verdict]) -> Remark {
    let ill: Vec<&Verdict> = {
        let mut ill: Vec<_> = verdicts.iter().filter(|v| v.weight > Weight::Note).collect();
        ill.sort_by_key(|v| (std::cmp::Reverse(v.weight), v.word, v.gpu));
        ill
    };
    let mut weight = ill.first().map_or(Weight::Well, |v| v.weight);
    let well = verdicts.len() - ill.len();
    let mut text = match (verdicts.len(), well) {
        (0, _) => "The driver lists no GPU".to_owned(),
        (1, 1) => "1 GPU, well".to_owned(),
        (1, _) => "1 GPU".to_owned(),
        (n, well) if n == well => format!("{n} GPUs, all well"),
        (n, 0) => format!("{n} GPUs, none well"),
        (n, well) => format!("{n} GPUs, {well} well"),
    };
    let missing = missing(snapshot);
    if missing > 0.0 {
        weight = Weight::Bad;
        text += &format!(", {missing:.0} missing");
    }
    if let [worst, rest @ ..] = ill.as_slice() {
        text += &format!(", GPU {} {}", worst.gpu, worst.word);
        if let Some(reason) = worst.reasons.first() {
            text += &format!(": {}", reason.text);
        }
        // The others by their state: what is wrong with each is on its card.
        for alike in rest.chunk_by(|a, b| a.word == b.word) {
            let gpus: Vec<String> = alike.iter().map(|v| v.gpu.to_string()).collect();
            text += &format!("; {}: GPU {}", alike[0].word, gpus.join(", "));
        }
    }
    for collector in snapshot.collectors.iter().filter(|c| !c.up && !c.text.is_empty()) {
        weight = weight.max(Weight::Warn);
        text += &format!("; collector {} is down", collector.name);
    }
    text.push('.');
    Remark { weight, text }
}

/// GPUs that were there before and are not listed now.
fn missing(snapshot: &Snapshot) -> f64 {
    let number = |metric| snapshot.number(metric, &Node {}, ());
    match (number(&m::gpu_devices_expected), number(&m::gpu_devices)) {
        (Some(expected), Some(now)) => (expected - now).max(0.0),
        _ => 0.0,
    }
}

/// The driver's state in words.
pub fn driver_text(driver: &DriverState) -> String {
    match driver {
        DriverState::Waiting => "waiting for its first answer".into(),
        DriverState::Up => "up".into(),
        DriverState::Stuck => "stuck: calls into it do not return".into(),
        DriverState::Away { text } => format!("away: {text}"),
        DriverState::Mismatch { text } => mismatch(text),
        DriverState::Paused { since_unix_seconds, age, holders } => {
            let (at, ago) = (figures::time_of_day(*since_unix_seconds), duration(*age));
            let pids: Vec<String> = holders.iter().map(i32::to_string).collect();
            let held = match pids.as_slice() {
                [] => String::new(),
                pids => format!(", but still held by process {}", pids.join(", ")),
            };
            format!(
                "paused: driver released at {at}, {ago} ago{held}; resumes when the kernel module is loaded \
                 again, or with `gpu-node-exporter driver resume`"
            )
        }
    }
}

/// Library and kernel module differ: what that means, and what NVML said.
fn mismatch(text: &str) -> String {
    format!(
        "the loaded kernel module and libnvidia-ml differ in version, as after an upgrade without a reload \
         of the module: {}",
        text.trim_end_matches('.')
    )
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// A GPU's state in words.
pub fn gpu_text(state: &GpuState) -> String {
    match state {
        GpuState::Up => "up".into(),
        GpuState::Waiting => "nothing was read yet".into(),
        GpuState::Stuck { call, age } => format!("{call} has not returned for {}", duration(*age)),
        GpuState::Failing { text } => format!("it answers with errors only: {text}"),
        GpuState::NoDriver => "the driver does not answer".into(),
        GpuState::Paused => "the driver is released".into(),
    }
}

/// A collector's state in words.
pub fn collector_text(view: &CollectorView) -> String {
    if view.up && view.age.is_none() && !view.text.is_empty() {
        // It has nothing to do, and says why.
        return view.text.clone();
    }
    let mut text = String::from(if view.up { "up" } else { "down" });
    if !view.text.is_empty() {
        text += &format!(": {}", view.text);
    }
    match view.age {
        Some(age) => text + &format!(", last values {} ago", duration(age)),
        None => text + ", no values yet",
    }
}

/// A duration as people say it, in its largest unit.
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..10 => format!("{:.1} s", duration.as_secs_f64()),
        10..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}
