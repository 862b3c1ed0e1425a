//! The running simulation of this process: the scenario, the shared state, and the gauntlet of
//! steps that every call runs before it is answered.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use crate::cuda::result::cu;
use crate::functions::{Function, Key};
use crate::hardware::Hardware;
use crate::kmsg::{self, KernelLog};
use crate::mig::Layout;
use crate::os;
use crate::scenario::{Gpu, Scenario};
use crate::state::State;
use crate::step::{Action, Source, Step, When};
use crate::value::{Answer, Value, code};

static SIM: OnceLock<Result<Sim, ()>> = OnceLock::new();

/// The simulation of this process.
pub(crate) struct Sim {
    pub(crate) scenario: Scenario,
    pub(crate) state: State,
    /// The kernel log, if it is kept.
    log: Option<KernelLog>,
    /// The state's slots of the scenario's gates.
    slots: Vec<usize>,
    /// Steps that happened in this process.
    happened: Vec<AtomicBool>,
    /// Inits without a shutdown.
    pub(crate) inits: AtomicU32,
}

/// The simulation, if it was loaded.
pub(crate) fn loaded() -> Option<&'static Sim> {
    SIM.get()?.as_ref().ok()
}

/// The simulation, if NVML is initialised.
pub(crate) fn initialised() -> Answer<&'static Sim> {
    loaded().filter(|sim| sim.inits.load(SeqCst) > 0).ok_or(code::ERROR_UNINITIALIZED)
}

/// Loads the scenario that the environment names, once in a process.
pub(crate) fn load() -> Answer<&'static Sim> {
    let loaded = SIM.get_or_init(|| Sim::from_environment().map_err(|e| eprintln!("simgpu: {e}")));
    loaded.as_ref().map_err(|()| code::ERROR_UNKNOWN)
}

/// A step's time, in nanoseconds of the monotonic clock.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    pub(crate) from: u64,
    pub(crate) to: Option<u64>,
}

impl Sim {
    fn from_environment() -> Result<Sim, String> {
        let path = std::env::var_os("GPU_SIM_SCENARIO").map(PathBuf::from);
        let path = path.ok_or("GPU_SIM_SCENARIO is not set; it names the scenario file")?;
        let scenario = Scenario::load(path).map_err(|e| e.to_string())?;
        let state = match std::env::var_os("GPU_SIM_STATE") {
            Some(path) => State::open(PathBuf::from(path)),
            None => State::private(),
        };
        let state = state.map_err(|e| format!("state {e}"))?;
        let slots = scenario.gates.iter().map(|g| state.gate_slot(g)).collect::<Result<_, _>>();
        let slots = slots.map_err(|e| e.to_string())?;
        let log = std::env::var_os("GPU_SIM_KMSG").map(|path| KernelLog::open(path.into()));
        let log = log.transpose().map_err(|e| format!("GPU_SIM_KMSG: {e}"))?;
        state.start();
        let happened = scenario.steps.iter().map(|_| AtomicBool::new(false)).collect();
        Ok(Sim { scenario, state, log, slots, happened, inits: AtomicU32::new(0) })
    }

    /// Seconds of the scenario's clock.
    pub(crate) fn now(&self) -> f64 {
        self.seconds(os::monotonic_ns())
    }

    /// A moment of the monotonic clock in seconds of the scenario's.
    pub(crate) fn seconds(&self, ns: u64) -> f64 {
        (ns as f64 - self.state.start_ns() as f64) / 1e9
    }

    /// The driver's wall clock, in microseconds, at a moment of the scenario's.
    pub(crate) fn stamp_us(&self, seconds: f64) -> u64 {
        (self.state.start_wall_us() as f64 + seconds * 1e6) as u64
    }

    pub(crate) fn gpu(&self, index: usize) -> Answer<&Gpu> {
        self.scenario.gpus.get(index).ok_or(code::ERROR_INVALID_ARGUMENT)
    }

    // ---- steps

    /// When step `i` began and ended, if it began.
    pub(crate) fn window(&self, i: usize) -> Option<Window> {
        let step = &self.scenario.steps[i];
        let now = os::monotonic_ns();
        let ns = |d: Duration| d.as_nanos() as u64;
        let (from, closed) = match &step.when {
            When::At(at) => (self.state.start_ns() + ns(*at), None),
            When::Gate(g) => self.state.gate(self.slots[*g])?,
            When::Calls(..) => (self.state.fired_ns(i)?, None),
        };
        if from > now {
            return None;
        }
        let over = step.lasts.map(|d| from + ns(d));
        let gate = step.until_gate.and_then(|g| self.state.gate(self.slots[g]));
        // An opened gate ends the step; closed again, it ends nothing.
        let gate = gate.and_then(|(opened, closed)| closed.is_none().then_some(opened.max(from)));
        let to = [over, gate, closed].into_iter().flatten().filter(|to| *to <= now).min();
        Some(Window { from, to })
    }

    pub(crate) fn active(&self, i: usize) -> bool {
        self.window(i).is_some_and(|w| w.to.is_none())
    }

    /// The steps that last now, as the file lists them.
    pub(crate) fn active_steps(&self) -> impl Iterator<Item = (usize, &Step)> {
        self.scenario.steps.iter().enumerate().filter(|(i, _)| self.active(*i))
    }

    /// The answer that steps set, of a call about this GPU or about none; the last step that lasts wins.
    pub(crate) fn set(&self, gpu: Option<usize>, key: &Key) -> Option<&Value> {
        let mut found = None;
        for (_, step) in self.active_steps() {
            if let Action::Set(set) = &step.action
                && (step.gpu.is_none() || step.gpu == gpu)
            {
                found = key.shortening().find_map(|k| set.get(&k)).or(found);
            }
        }
        found
    }

    /// How often what a step repeats has come by now.
    pub(crate) fn times(&self, i: usize) -> u64 {
        let step = &self.scenario.steps[i];
        let Some(Window { from, to }) = self.window(i) else { return 0 };
        if step.every.is_zero() {
            return step.repeat;
        }
        let spent = to.unwrap_or_else(os::monotonic_ns).saturating_sub(from);
        step.repeat.min(1 + spent / step.every.as_nanos() as u64)
    }

    // ---- the kernel log

    /// Writes the records that are due.
    pub(crate) fn log(&self) {
        let Some(log) = &self.log else { return };
        let steps = || 0..self.scenario.steps.len();
        if !steps().any(|i| self.state.lacks_records(i, self.records(i))) {
            return;
        }
        let next =
            || steps().find_map(|i| Some(self.record(i, self.state.claim_record(i, self.records(i))?)));
        if let Err(e) = log.write(&self.state, next) {
            eprintln!("simgpu: GPU_SIM_KMSG: {e}");
        }
    }

    /// How many records of the kernel log a step has brought by now.
    fn records(&self, i: usize) -> u64 {
        match &self.scenario.steps[i].action {
            Action::Kmsg(lines) => self.times(i) * lines.len() as u64,
            Action::Xid(xid) if xid.sources.contains(&Source::Kmsg) => self.times(i),
            Action::DriverBack => u64::from(self.window(i).is_some()),
            // A driver that is no longer gone is loaded again.
            Action::DriverGone => self.window(i).map_or(0, |w| 1 + u64::from(w.to.is_some())),
            _ => 0,
        }
    }

    /// The text of a step's `n`-th record.
    fn record(&self, i: usize, n: u64) -> String {
        let step = &self.scenario.steps[i];
        match &step.action {
            Action::Kmsg(lines) => lines[n as usize % lines.len()].clone(),
            Action::Xid(xid) => kmsg::xid(step.gpu.unwrap_or_default(), xid),
            Action::DriverGone if n == 0 => kmsg::UNLOADED.into(),
            _ => kmsg::loaded(&self.scenario.driver),
        }
    }

    // ---- what calls meet

    /// Waits while any call holds the library-wide lock.
    pub(crate) fn wait_for_lock(&self) {
        for (i, step) in self.scenario.steps.iter().enumerate() {
            if matches!(step.action, Action::HangLock) && self.state.locked(i) && self.active(i) {
                self.state.hold_until(|| !self.active(i));
            }
        }
    }

    /// Whether the driver is unloaded now.
    pub(crate) fn driver_gone(&self) -> bool {
        let mut last = (0, false);
        for (i, step) in self.active_steps() {
            let gone = matches!(step.action, Action::DriverGone);
            if gone || matches!(step.action, Action::DriverBack) {
                let from = self.window(i).map_or(0, |w| w.from);
                if from >= last.0 {
                    last = (from, gone);
                }
            }
        }
        last.1
    }

    /// What steps do to a GPU's hardware now.
    pub(crate) fn hardware(&'static self, gpu: usize) -> impl Iterator<Item = &'static Hardware> {
        self.scenario.steps.iter().enumerate().filter_map(move |(i, step)| match &step.action {
            Action::Hardware(hardware) if step.gpu == Some(gpu) && self.active(i) => Some(hardware),
            _ => None,
        })
    }

    /// Whether a GPU has fallen off the bus.
    pub(crate) fn lost(&self, gpu: usize) -> bool {
        self.active_steps().any(|(_, s)| matches!(s.action, Action::Lost) && s.gpu.is_none_or(|g| g == gpu))
    }

    /// The MIG layout of a GPU and its generation.
    pub(crate) fn layout(&self, gpu: usize) -> Answer<(usize, &Layout)> {
        let layouts = &self.gpu(gpu)?.layouts;
        let latest = layouts.iter().enumerate().filter_map(|(n, (step, layout))| {
            let from = match step {
                None => 0,
                Some(i) => self.window(*i).filter(|w| w.to.is_none())?.from,
            };
            Some((from, n, layout))
        });
        let latest = latest.max_by_key(|(from, n, _)| (*from, *n));
        latest.map(|(_, n, layout)| (n, layout)).ok_or(code::ERROR_UNKNOWN)
    }

    /// What a call meets before it is answered: the lock, the driver, and the steps about it.
    pub(crate) fn pass(&self, gpu: Option<usize>, call: Key) -> Answer<()> {
        self.wait_for_lock();
        if self.driver_gone() && call.function != Function::nvmlShutdown {
            return Err(match call.function {
                Function::cuInit => cu::NO_DEVICE,
                f if f.is_cuda() => cu::UNKNOWN,
                _ => code::ERROR_DRIVER_NOT_LOADED,
            });
        }
        self.take_time(gpu, Key::new(call.function, &[]));
        self.meet(gpu, &call, |_| true)
    }

    /// As `pass`, for a part of a call that has passed: only steps that name the part are met.
    pub(crate) fn pass_part(&self, gpu: usize, part: Key) -> Answer<()> {
        self.take_time(Some(gpu), Key::new(part.function, &part.args()[..1]));
        self.meet(Some(gpu), &part, |key| key.is_some_and(|k| !k.args().is_empty()))
    }

    /// Takes as long as the call took when it was recorded, if the scenario wants that. A call that
    /// is about no GPU takes what it took with the first one.
    pub(crate) fn take_time(&self, gpu: Option<usize>, call: Key) {
        let gpu = self.scenario.gpus.get(gpu.unwrap_or(0)).filter(|_| self.scenario.recorded_latency);
        if let Some(us) = gpu.and_then(|g| g.model.latency_us(&call)) {
            std::thread::sleep(Duration::from_micros(us));
        }
    }

    fn meet(&self, gpu: Option<usize>, call: &Key, about: impl Fn(Option<&Key>) -> bool) -> Answer<()> {
        for (i, step) in self.scenario.steps.iter().enumerate() {
            if let When::Calls(key, of, count) = &step.when
                && about(Some(key))
                && key.covers(call)
                && (of.is_none() || *of == gpu)
                && self.state.count_step(i) >= *count
            {
                self.state.fire(i);
            }
        }
        for (i, step) in self.scenario.steps.iter().enumerate() {
            if about(step.function.as_ref()) && step.covers(gpu, call) && self.active(i) {
                self.act(i, step, gpu, call.function.is_cuda())?;
            }
        }
        Ok(())
    }

    /// True once for a step that happens once.
    fn first(&self, i: usize, step: &Step) -> bool {
        if step.every_process { !self.happened[i].swap(true, SeqCst) } else { self.state.consume(i, 1) }
    }

    fn act(&self, i: usize, step: &Step, gpu: Option<usize>, cuda: bool) -> Answer<()> {
        let again = || step.times.is_none_or(|times| self.state.consume(i, times));
        match &step.action {
            Action::Error(error) if !cuda && again() => return Err(*error),
            Action::CudaError(error) if cuda && again() => return Err(*error),
            Action::Lost if gpu.is_some() && cuda => return Err(cu::UNKNOWN),
            Action::Lost if gpu.is_some() => return Err(code::ERROR_GPU_IS_LOST),
            Action::Hang => self.state.hold_until(|| !self.active(i)),
            Action::HangLock => {
                self.state.lock(i);
                self.state.hold_until(|| !self.active(i));
            }
            Action::Slow(time) => std::thread::sleep(*time),
            Action::Write(fd, bytes) if self.first(i, step) => os::write_fd(*fd, bytes),
            Action::Exit(code) if self.first(i, step) => os::exit(*code),
            Action::Abort if self.first(i, step) => std::process::abort(),
            Action::Stop if self.first(i, step) => os::stop(),
            _ => {}
        }
        Ok(())
    }
}
