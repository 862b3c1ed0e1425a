//! The driver as one process has it: devices, contexts, simulated time, and what every call goes through.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::engine::{Engines, Unit};
use super::event::{Event, Stream};
use super::memory::Memory;
use super::module::{Kernel, Module};
use super::rates::Noise;
use super::result::{cu, sticky};
use super::slab::Slab;
use super::visible::{self, Visible};
use crate::device::Device;
use crate::functions::{Function, Key};
use crate::os;
use crate::presence;
use crate::sim::{self, Sim};
use crate::value::{Answer, Code};

/// What a call costs its caller, in simulated nanoseconds: to hand over a kernel or a copy, and to see its end.
pub const HAND_OVER_NS: u64 = 4500;
/// See `HAND_OVER_NS`.
pub const SEE_END_NS: u64 = 2500;

static DRIVER: Mutex<Option<Driver>> = Mutex::new(None);

thread_local! {
    /// The contexts of this thread; the last is current.
    static CURRENT: RefCell<Vec<*mut c_void>> = const { RefCell::new(Vec::new()) };
}

/// A context.
pub struct Context {
    /// The device, by its ordinal.
    pub device: usize,
    /// Its entry in the node's list.
    pub seen: Option<usize>,
    /// The end of the work in the stream that has no handle.
    pub null_end: u64,
    /// The end of all work that waits for that stream, and for which it waits.
    pub blocking_end: u64,
    /// The end of all work.
    pub end: u64,
    /// The contexts whose memory it may use.
    pub peers: Vec<*mut c_void>,
}

/// A device's primary context.
#[derive(Default)]
pub struct Primary {
    /// How often it was retained.
    pub retained: u32,
    /// Its flags.
    pub flags: u32,
    /// The context, while it is retained.
    pub context: Option<*mut c_void>,
}

/// The driver.
pub struct Driver {
    /// The node.
    pub sim: &'static Sim,
    /// The devices that the process sees, by their ordinals.
    pub devices: Vec<Visible>,
    /// What the GPUs of these are busy with.
    pub engines: Vec<Engines>,
    /// Their primary contexts.
    pub primaries: Vec<Primary>,
    /// All contexts.
    pub contexts: Slab<Context>,
    /// Streams.
    pub streams: Slab<Stream>,
    /// Events.
    pub events: Slab<Event>,
    /// Modules.
    pub modules: Slab<Module>,
    /// Kernels of these.
    pub kernels: Slab<Kernel>,
    /// Memory of devices, and of the host as the driver knows it.
    pub memory: Memory,
    /// Simulated time of the caller, nanoseconds.
    pub now: u64,
    /// Real time at simulated time 0, nanoseconds.
    epoch: u64,
    /// Launches and copies so far.
    pub works: u64,
    /// Launches of each kernel so far.
    pub launches: HashMap<&'static [u8], u64>,
    noise: Noise,
    /// What every call returns once a context is dead.
    dead: Option<Code>,
}

// SAFETY: the pointers in it are handles, which are never followed, and addresses of memory that
// only the calls of this program use.
unsafe impl Send for Driver {}

fn lock() -> MutexGuard<'static, Option<Driver>> {
    DRIVER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The current context of this thread.
pub fn current() -> Answer<*mut c_void> {
    CURRENT.with_borrow(|stack| stack.last().copied()).filter(|c| !c.is_null()).ok_or(cu::INVALID_CONTEXT)
}

/// Changes the contexts of this thread.
pub fn stack<T>(change: impl FnOnce(&mut Vec<*mut c_void>) -> T) -> T {
    CURRENT.with_borrow_mut(change)
}

/// Initialises the driver: what `cuInit` does.
pub fn init() -> Answer<()> {
    let sim = sim::load()?;
    if !sim.scenario.library_present {
        return Err(cu::NO_DEVICE);
    }
    let list = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let devices = visible::visible(sim, list.as_deref());
    let call = Key::new(Function::cuInit, &[]);
    if devices.is_empty() {
        sim.pass(None, call)?;
    }
    // It asks every GPU that the process may see, and no other.
    for device in &devices {
        sim.pass(Some(device.gpu), call)?;
    }
    if devices.is_empty() {
        return Err(cu::NO_DEVICE);
    }
    let mut driver = lock();
    if driver.is_none() {
        *driver = Some(Driver::new(sim, devices));
    }
    driver.as_mut().map_or(Ok(()), |driver| {
        driver.took(call);
        Ok(())
    })
}

/// Runs a call of an initialised driver, about the device of that ordinal or the current one.
pub fn enter(
    function: Function,
    ordinal: Option<c_int>,
    body: impl FnOnce(&mut Driver) -> Answer<()>,
) -> Answer<()> {
    let sim = sim::loaded().ok_or(cu::NOT_INITIALIZED)?;
    let call = Key::new(function, &[]);
    let gpu = {
        let guard = lock();
        let driver = guard.as_ref().ok_or(cu::NOT_INITIALIZED)?;
        if let Some(code) = driver.dead {
            return Err(code);
        }
        let context = current().and_then(|c| driver.contexts.get(c).map(|c| c.device)).ok();
        let ordinal = ordinal.map_or(context.unwrap_or(0), |n| n as usize);
        driver.devices.get(ordinal).ok_or(cu::INVALID_DEVICE)?.gpu
    };
    let passed = sim.pass(Some(gpu), call);
    let mut guard = lock();
    let driver = guard.as_mut().ok_or(cu::NOT_INITIALIZED)?;
    driver.took(call);
    let answer = passed.and_then(|()| body(driver));
    if let Err(code) = answer
        && sticky(code)
        && driver.contexts.iter().next().is_some()
    {
        driver.dead = Some(code);
    }
    answer
}

impl Driver {
    fn new(sim: &'static Sim, devices: Vec<Visible>) -> Driver {
        // Runs differ from each other, and a scenario that runs again does not.
        let runs = sim.state.calls_of("cuInit");
        let first = devices.first().map_or(0, |d| d.gpu as u64);
        Driver {
            sim,
            engines: devices.iter().map(|_| Engines::default()).collect(),
            primaries: devices.iter().map(|_| Primary::default()).collect(),
            devices,
            contexts: Slab::new(0x4354_5831, cu::INVALID_CONTEXT),
            streams: Slab::of(0x5354_5231),
            events: Slab::of(0x4556_5431),
            modules: Slab::of(0x4d4f_4431),
            kernels: Slab::of(0x4b45_5231),
            memory: Memory::default(),
            now: 0,
            epoch: os::wall_us() * 1000,
            works: 0,
            launches: HashMap::new(),
            noise: Noise(runs).of(first),
            dead: None,
        }
    }

    /// Lets the simulated time pass that a call takes by the model. Real time is the gauntlet's business.
    fn took(&mut self, call: Key) {
        let gpu = self.devices.first().and_then(|d| self.sim.scenario.gpus.get(d.gpu));
        self.now += gpu.and_then(|g| g.model.latency_us(&call)).unwrap_or(0) * 1000;
        self.pace();
    }

    /// Lets simulated time go at least as fast as real time, if the scenario wants that.
    fn pace(&mut self) {
        if self.sim.scenario.paced {
            self.now = self.now.max((os::wall_us() * 1000).saturating_sub(self.epoch));
        }
    }

    /// The device of an ordinal.
    pub fn ordinal(&self, ordinal: c_int) -> Answer<usize> {
        let index = usize::try_from(ordinal).ok().filter(|n| *n < self.devices.len());
        index.ok_or(cu::INVALID_DEVICE)
    }

    /// A device as NVML's side knows it.
    pub fn device(&self, ordinal: usize) -> Answer<Device> {
        let Visible { gpu: index, mig } = *self.devices.get(ordinal).ok_or(cu::INVALID_DEVICE)?;
        let gpu = self.sim.gpu(index).map_err(|_| cu::INVALID_DEVICE)?;
        // A layout that is no more cannot be asked; the driver keeps instances in use, steps do not.
        if let Some((generation, _)) = mig
            && self.sim.layout(index).map(|(now, _)| now) != Ok(generation)
        {
            return Err(cu::UNKNOWN);
        }
        Ok(Device { sim: self.sim, index, gpu, mig: mig.map(|(_, index)| index) })
    }

    /// The current context, and its device.
    pub fn here(&self) -> Answer<(*mut c_void, Device)> {
        let context = current()?;
        Ok((context, self.device(self.contexts.get(context)?.device)?))
    }

    /// The noise of the next piece of work.
    pub fn next_work(&mut self) -> Noise {
        self.works += 1;
        self.noise.of(self.works)
    }

    // ---- contexts

    /// Makes a context on a device.
    pub fn create(&mut self, ordinal: usize) -> Answer<*mut c_void> {
        let device = self.device(ordinal)?;
        let own = std::process::id();
        let listed = own + self.sim.scenario.pid_offset;
        match device.board().number(Function::nvmlDeviceGetComputeMode) {
            Some(2) => return Err(cu::DEVICE_UNAVAILABLE),
            Some(1 | 3) if device.processes().is_ok_and(|list| list.iter().any(|p| p.pid != listed)) => {
                return Err(cu::DEVICE_UNAVAILABLE);
            }
            _ => {}
        }
        let bytes = device.gpu.model.compute.context_mib << 20;
        if self.free_bytes(&device) < bytes {
            return Err(cu::OUT_OF_MEMORY);
        }
        let started = presence::started(own).unwrap_or(0);
        let seen = self.sim.state.add_context(own, started, device.index, device.mig);
        if let Some(slot) = seen {
            self.sim.state.set_context_bytes(slot, bytes);
        }
        Ok(self.contexts.add(Context {
            device: ordinal,
            seen,
            null_end: 0,
            blocking_end: 0,
            end: 0,
            peers: Vec::new(),
        }))
    }

    /// Takes a context away, with all that is in it.
    pub fn destroy(&mut self, handle: *mut c_void) -> Answer<()> {
        let context = self.contexts.take(handle)?;
        if let Some(slot) = context.seen {
            self.sim.state.release_context(slot);
        }
        self.streams.retain(|s| s.context != handle);
        self.events.retain(|e| e.context != handle);
        self.modules.retain(|m| m.context != handle);
        let modules = &self.modules;
        self.kernels.retain(|k| modules.get(k.module).is_ok());
        self.memory.forget(handle);
        self.now = self.now.max(context.end);
        stack(|stack| stack.iter_mut().filter(|c| **c == handle).for_each(|c| *c = std::ptr::null_mut()));
        Ok(())
    }

    /// What is free on a device.
    pub fn free_bytes(&self, device: &Device) -> u64 {
        let info = device.memory(Function::nvmlDeviceGetMemoryInfo_v2).and_then(|v| v.u64(2));
        info.unwrap_or(0)
    }

    /// Tells the node how much memory a context holds.
    pub fn tell_memory(&self, handle: *mut c_void) -> Answer<()> {
        let context = self.contexts.get(handle)?;
        let device = self.device(context.device)?;
        let bytes = (device.gpu.model.compute.context_mib << 20) + self.memory.held(handle);
        if let Some(slot) = context.seen {
            self.sim.state.set_context_bytes(slot, bytes);
        }
        Ok(())
    }

    // ---- time

    /// Gives work to a stream of the current context: when it begins and ends.
    pub fn work(&mut self, stream: *mut c_void, unit: Unit, ns: u64) -> Answer<(u64, u64)> {
        let (handle, device) = self.here()?;
        // What the CPU took for it is no part of it: the work begins now.
        self.pace();
        self.now += HAND_OVER_NS;
        let sms = super::rates::share(&device).sms;
        let ordinal = self.contexts.get(handle)?.device;
        let (ready, blocking) = self.ready(handle, stream)?;
        let (begin, end) = self.engines[ordinal].place(unit, sms, ready.max(self.now), ns);
        self.finish(handle, stream, blocking, end)?;
        if matches!(unit, Unit::Sms(_)) {
            self.sim.state.add_work(device.index, self.sim.now(), ns);
        }
        Ok((begin, end))
    }

    /// When a stream is free, and whether it waits for the stream without a handle.
    pub fn ready(&self, context: *mut c_void, stream: *mut c_void) -> Answer<(u64, bool)> {
        let context = self.contexts.get(context)?;
        if is_null(stream) {
            return Ok((context.null_end.max(context.blocking_end), true));
        }
        let stream = self.streams.get(stream)?;
        let null = if stream.blocking { context.null_end } else { 0 };
        Ok((stream.end.max(null), stream.blocking))
    }

    fn finish(&mut self, context: *mut c_void, stream: *mut c_void, blocking: bool, end: u64) -> Answer<()> {
        let context = self.contexts.get_mut(context)?;
        context.end = context.end.max(end);
        if is_null(stream) {
            context.null_end = end;
            return Ok(());
        }
        if blocking {
            context.blocking_end = context.blocking_end.max(end);
        }
        self.streams.get_mut(stream)?.end = end;
        Ok(())
    }

    /// The caller waits until then.
    pub fn wait_until(&mut self, end: u64) {
        self.now = self.now.max(end) + SEE_END_NS;
        if self.sim.scenario.paced {
            let real = (os::wall_us() * 1000).saturating_sub(self.epoch);
            std::thread::sleep(Duration::from_nanos(self.now.saturating_sub(real)));
        }
    }

    /// A moment of simulated time on the clock that kernels read.
    pub fn device_clock(&self, ns: u64) -> u64 {
        self.epoch + ns
    }
}

/// Whether a stream is the one without a handle, by whichever name.
pub fn is_null(stream: *mut c_void) -> bool {
    stream.addr() <= 2
}
