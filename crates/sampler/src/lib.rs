//! The sampler: the only process that loads libnvidia-ml. Started, watched and replaced by `serve`.
//!
//! It holds no sums: it sends what it reads. One worker thread a GPU, one for the node (this file: library,
//! driver, list of GPUs). It ends when its control pipe closes, but never in the middle of a driver call.

pub mod drain;
pub mod driver;
pub mod events;
pub mod fast;
pub mod gpm;
pub mod gpu;
pub mod mig;
pub mod nvswitch;
pub mod own;
pub mod peers;
pub mod raw;
pub mod schedule;
pub mod visit;
pub mod watch;
pub mod wire;
pub mod worker;

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufReader, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nvml_wrapper::Nvml;

use driver::{CallName, Caller, Failure, Token};
use host::Host;
use host::child;
use host::inflight::{MAX_GPUS, NODE_SLOT, Table};
use host::stop::Stop;
use model::catalog::{self as m, DriverInfo, Gpu, MetricId, Node, Tier};
use model::clock::{Cadence, Mono};
use model::sample::{Batch, CallCost, ErrorKind, Gap, Missing, Part, Rows, Source};
use wire::{FromSampler, Orders, Seat, ToSampler};
use worker::Target;

/// How long fast values may wait for company on their way: with a publication a second they are then at
/// most 1.5 s old on the wire.
const PUT_BY: Duration = Duration::from_millis(250);
/// How soon the node's worker notices that a GPU may be asked again.
const INCLUDE: Duration = Duration::from_secs(1);

/// What all threads of the sampler share.
#[derive(Debug)]
pub struct Shared {
    /// How to work.
    pub orders: Orders,
    /// Metrics that are switched off.
    pub off: HashSet<MetricId>,
    /// The in-flight table.
    pub table: &'static Table,
    /// The right to make a dear call.
    pub token: &'static Token,
    /// Whether the profiling counters (GPM) are to be read now. A worker that finds it false gives back what
    /// it holds of them, so that a profiler can have them.
    pub gpm: AtomicBool,
    /// Ends all threads.
    pub stop: Stop,
    frames: Mutex<Outbox>,
    workers: Mutex<Vec<JoinHandle<()>>>,
    /// Where the driver's events are asked for.
    pub events: events::Events,
    /// The thread that makes the fast visits.
    pub fast: fast::Fast,
    /// Who the GPUs with handles are.
    pub peers: peers::Peers,
}

impl Shared {
    /// Sends a frame, with all that were put by before it.
    pub fn send(&self, message: &FromSampler) {
        self.push(message, true);
    }

    /// Puts a frame by; it goes with the next that is sent, or that is put by [`PUT_BY`] later. Each write
    /// costs both processes a wake-up.
    pub fn put_by(&self, message: &FromSampler) {
        self.push(message, false);
    }

    fn push(&self, message: &FromSampler, at_once: bool) {
        let frame = match wire::encode(message) {
            Ok(frame) => frame,
            Err(error) => return tracing::error!(%error, "a frame that cannot be sent"),
        };
        let mut out = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Mono::now();
        if !at_once && now.since(out.since) >= PUT_BY {
            // What waited goes first; this one waits for those of its own tick.
            out.flush(&self.stop);
        }
        if out.bytes.is_empty() {
            out.since = now;
        }
        out.bytes.extend_from_slice(&frame);
        if at_once {
            out.flush(&self.stop);
        }
    }

    /// Sends what a visit to a GPU's tier learned. Fast batches wait for company: see [`PUT_BY`].
    pub fn report(
        &self,
        gpu: &Gpu,
        tier: Tier,
        epoch: u64,
        taken: Mono,
        learned: worker::Learned,
        calls: Vec<CallCost>,
    ) {
        let nanos = u64::try_from(Mono::now().since(taken).as_nanos()).unwrap_or(u64::MAX);
        let answered = learned.answered;
        let batch = FromSampler::Batch(Batch {
            part: Part { collector: Source::Nvml, gpu: Some(gpu.clone()), tier },
            epoch,
            taken,
            nanos,
            lifetime_nanos: self.lifetime(tier),
            answered,
            rows: learned.rows,
            gaps: learned.gaps,
            drained: learned.drained,
            processes: learned.processes,
            calls,
        });
        match tier {
            Tier::Fast if answered => self.put_by(&batch),
            _ => self.send(&batch),
        }
    }

    /// Sends what was learned of the node as a whole.
    pub fn report_node(&self, tier: Tier, taken: Mono, rows: Rows, gaps: Vec<Gap>, calls: Vec<CallCost>) {
        let nanos = u64::try_from(Mono::now().since(taken).as_nanos()).unwrap_or(u64::MAX);
        self.send(&FromSampler::Batch(Batch {
            part: Part { collector: Source::Nvml, gpu: None, tier },
            epoch: self.orders.epoch,
            taken,
            nanos,
            lifetime_nanos: self.lifetime(tier),
            answered: !gaps.iter().any(|gap| matches!(gap.missing, Missing::Failed { .. })),
            rows,
            gaps,
            drained: Vec::new(),
            processes: None,
            calls,
        }));
    }

    /// Tells the parent that the driver went away, and ends.
    pub fn driver_gone(&self, error: ErrorKind, text: String) {
        if !self.stop.stopped() {
            self.send(&FromSampler::DriverAway { error, text });
        }
        self.stop.stop();
    }

    /// How long rows of a tier may be served: three cadences, at least 3 s.
    pub fn lifetime(&self, tier: Tier) -> Option<u64> {
        let three = (self.orders.intervals.of(tier)? * 3).max(Duration::from_secs(3));
        u64::try_from(three.as_nanos()).ok()
    }

    /// Keeps a worker's handle, to be waited for at the end.
    pub fn joined(&self, handle: JoinHandle<()>) {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
    }
}

/// Frames on their way to the parent.
#[derive(Debug)]
struct Outbox {
    pipe: File,
    bytes: Vec<u8>,
    /// When the oldest of them was put by.
    since: Mono,
}

impl Outbox {
    /// Writes what waits. When the parent is gone nothing can be done but to end.
    fn flush(&mut self, stop: &Stop) {
        if let Err(error) = self.pipe.write_all(&self.bytes) {
            if !stop.stopped() {
                tracing::warn!(%error, "the parent does not read any more");
            }
            stop.stop();
        }
        self.bytes.clear();
    }
}

/// The process's whole life.
pub fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpu-node-exporter sampler: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> std::io::Result<()> {
    child::ignore_signals()?;
    let (frames, control, shared) = child::inherited()?;
    let table: &'static Table = Box::leak(Box::new(Table::open(shared)?));
    let mut control = BufReader::new(control);
    let mut frames = frames;
    wire::write(&mut frames, &FromSampler::Hello { fingerprint: m::fingerprint() })?;
    let orders = match wire::read(&mut control).map_err(std::io::Error::other)? {
        Some(ToSampler::Start(orders)) => *orders,
        Some(other) => return Err(std::io::Error::other(format!("expected orders, got {other:?}"))),
        None => return Ok(()),
    };
    let shared = Arc::new(Shared {
        off: orders.off.iter().copied().collect(),
        gpm: AtomicBool::new(orders.gpm),
        orders,
        table,
        token: Box::leak(Box::default()),
        stop: Stop::default(),
        frames: Mutex::new(Outbox { pipe: frames, bytes: Vec::new(), since: Mono(0) }),
        workers: Mutex::default(),
        events: events::Events::default(),
        fast: fast::Fast::default(),
        peers: peers::Peers::default(),
    });
    let (included, more) = std::sync::mpsc::channel();
    let listener = Arc::clone(&shared);
    std::thread::Builder::new().name("control".into()).stack_size(256 * 1024).spawn(move || {
        loop {
            match wire::read(&mut control) {
                Ok(Some(ToSampler::Include { slot, seat })) => {
                    if included.send((slot, seat)).is_err() {
                        break;
                    }
                }
                Ok(Some(ToSampler::Gpm(read))) => listener.gpm.store(read, Ordering::Relaxed),
                Ok(Some(ToSampler::Start(_))) => tracing::warn!("orders came twice"),
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(%error, "the parent's orders cannot be read");
                    break;
                }
            }
        }
        listener.stop.stop();
    })?;
    node(&shared, &more);
    // Threads still in a driver call are waited for, however long it takes: ending a GPU client in the
    // middle of a call can wedge the GPU. The parent does not wait for us.
    let workers = std::mem::take(&mut *shared.workers.lock().unwrap_or_else(PoisonError::into_inner));
    for worker in workers {
        if worker.join().is_err() {
            tracing::error!("a worker thread panicked");
        }
    }
    Ok(())
}

/// The node's worker: loads the library, seats the GPUs, and keeps what is known of the driver.
fn node(shared: &Arc<Shared>, more: &std::sync::mpsc::Receiver<(usize, Option<Seat>)>) {
    let slot = shared.table.writer(NODE_SLOT);
    let mut caller = Caller::new(slot, shared.orders.call_deadline);
    slot.expect(Mono::now());
    let library = shared.orders.library.clone();
    let loaded = caller.call_allowing("nvmlInitWithFlags".into(), shared.orders.init_deadline, || {
        driver::load(library.as_deref())
    });
    // Never unloaded: threads in a call keep using it, and the process ends with it.
    let nvml: &'static Nvml = match loaded {
        Ok(nvml) => Box::leak(Box::new(nvml)),
        Err(failure) => {
            let (error, text) = failure.told();
            shared.driver_gone(error, text);
            slot.leave();
            return;
        }
    };
    shared.send(&FromSampler::DriverUp);
    events::start(shared, nvml);
    fast::start(shared);
    peers::start(shared);
    let mut node = NodeWorker { shared, nvml, caller, taken: shared.orders.avoid.iter().copied().collect() };
    for seat in &shared.orders.known {
        if !shared.orders.avoid.contains(&seat.slot) {
            node.seat(seat.slot, Target::Seat(seat.clone()));
        }
    }
    let mut cadence = Cadence::new(shared.orders.intervals.slow, Duration::ZERO);
    let mut switches = Cadence::new(shared.orders.intervals.rare, Duration::ZERO);
    let mut known = false;
    while !shared.stop.stopped() {
        while let Ok((slot, seat)) = more.try_recv() {
            node.taken.remove(&slot);
            if let Some(seat) = seat {
                node.seat(slot, Target::Seat(seat));
            }
        }
        if cadence.take(Mono::now()) {
            if !known {
                known = node.identity();
            }
            node.devices();
        }
        if switches.take(Mono::now()) {
            node.switches();
        }
        // Also wakes for a GPU that may be asked again.
        let next = cadence.next().min(switches.next()).min(Mono::now() + INCLUDE);
        slot.expect(next);
        shared.stop.wait_until(next);
    }
    slot.leave();
}

struct NodeWorker<'a> {
    shared: &'a Arc<Shared>,
    nvml: &'static Nvml,
    caller: Caller,
    /// Slots in use, or to be left alone.
    taken: HashSet<usize>,
}

impl NodeWorker<'_> {
    fn seat(&mut self, slot: usize, target: Target) {
        if slot == NODE_SLOT || slot > MAX_GPUS || !self.taken.insert(slot) {
            tracing::warn!(slot, "this slot cannot be used: more than {MAX_GPUS} GPUs, or it is taken");
            return;
        }
        if let Err(error) = worker::spawn(self.shared, self.nvml, slot, target) {
            tracing::error!(slot, %error, "no thread for this GPU; tried again with the next look at the list");
            self.taken.remove(&slot);
        }
    }

    /// Versions of driver and library. Gives whether all are known.
    fn identity(&mut self) -> bool {
        let taken = Mono::now();
        let nvml = self.nvml;
        let mut gaps = Vec::new();
        let mut text =
            |caller: &mut Caller,
             call: &'static str,
             f: &dyn Fn() -> Result<String, nvml_wrapper::error::NvmlError>| {
                caller.call(CallName::from(call), f).unwrap_or_else(|failure| {
                    gaps.push(gap(call, m::gpu_driver_info.id(), failure.missing()));
                    String::new()
                })
            };
        let caller = &mut self.caller;
        let info = DriverInfo {
            driver_version: text(caller, "nvmlSystemGetDriverVersion", &|| nvml.sys_driver_version()),
            driver_branch: text(caller, "nvmlSystemGetDriverBranch", &|| raw::driver_branch(nvml)),
            nvml_version: text(caller, "nvmlSystemGetNVMLVersion", &|| nvml.sys_nvml_version()),
            cuda_version: text(caller, "nvmlSystemGetCudaDriverVersion_v2", &|| {
                nvml.sys_cuda_driver_version().map(|v| {
                    use nvml_wrapper::{
                        cuda_driver_version_major as major, cuda_driver_version_minor as minor,
                    };
                    format!("{}.{}", major(v), minor(v))
                })
            }),
        };
        let failed = gaps.iter().any(|gap| matches!(gap.missing, Missing::Failed { .. }));
        let mut rows = Rows::default();
        if !failed {
            rows.of(&Node {}).info(&m::gpu_driver_info, info);
        }
        self.send(Tier::Identity, taken, rows, gaps);
        !failed
    }

    /// How many GPUs the driver lists; those that are new get a worker.
    fn devices(&mut self) {
        let taken = Mono::now();
        let nvml = self.nvml;
        let (mut rows, mut gaps) = (Rows::default(), Vec::new());
        const COUNT: &str = "nvmlDeviceGetCount_v2";
        match self.caller.call(COUNT.into(), || nvml.device_count()) {
            Ok(count) => {
                if rows.of(&Node {}).put(&m::gpu_devices, (), f64::from(count)).is_err() {
                    gaps.push(gap(
                        COUNT,
                        m::gpu_devices.id(),
                        Missing::Dropped(model::sample::Drop::OutOfRange),
                    ));
                }
                self.shared.peers.listed(count as usize);
                for index in 0..count.min(MAX_GPUS as u32) {
                    let slot = index as usize + 1;
                    if !self.taken.contains(&slot) {
                        self.seat(slot, Target::Index(index));
                    }
                }
            }
            Err(Failure::DriverGone(error, text)) => return self.shared.driver_gone(error, text),
            Err(failure) => gaps.push(gap(COUNT, m::gpu_devices.id(), failure.missing())),
        }
        self.send(Tier::Slow, taken, rows, gaps);
    }

    /// The switches between the GPUs, where this node's kernel drives them.
    fn switches(&mut self) {
        let taken = Mono::now();
        if self.shared.off.contains(&m::gpu_nvswitch_info.id()) {
            return;
        }
        let host = Host::new(&self.shared.orders.root);
        if let Some((rows, gaps)) = nvswitch::read(&host, &mut self.caller) {
            self.send(Tier::Rare, taken, rows, gaps);
        }
    }

    fn send(&mut self, tier: Tier, taken: Mono, rows: Rows, gaps: Vec<Gap>) {
        self.shared.report_node(tier, taken, rows, gaps, self.caller.take_costs());
    }
}

fn gap(call: &str, metric: MetricId, missing: Missing) -> Gap {
    Gap { call: call.to_owned(), metrics: vec![metric], missing }
}
