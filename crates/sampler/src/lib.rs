//! The sampler: the only lasting process that loads libnvidia-ml, and the only crate that names nvml-wrapper. Started, watched
//! and replaced by `serve`.
//!
//! The sampler holds no sums: it sends readings. One worker thread a GPU (`worker`, which visits the tiers of `gpu`), one
//! for the node (`node`: library, driver, list of GPUs), one for the driver's events, one for the fast tier. The process
//! ends when its control pipe closes, but never in the middle of a driver call.
//!
//! [`wire`] has the messages between parent and sampler. [`watch`] is the canary's own reading of NVML. All unsafe code
//! is in `raw`.

#![deny(unsafe_code)]

mod canary_pids;
mod driver;
mod events;
mod fast;
mod gpm;
mod gpu;
mod mig;
mod node;
mod peers;
mod raw;
mod samples;
mod visit;
pub mod watch;
pub mod wire;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufReader, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use host::Host;
use host::inflight::{SlotWriter, Table};
use host::stop::Stop;
use host::{child, frame};
use model::catalog::{CollectorName, DriverError, Gpu, Tier};
use model::clock::Mono;
use model::sample::{Batch, BatchKey, Gap, Missing, Rows};
use model::sync::lock;
use nvml_wrapper::Device;
use wire::{CanaryProcess, FromSampler, GpuSlot, SamplerConfig, SamplerSettings, ToSampler};

pub use gpm::metrics_read as gpm_metrics_read;
pub use gpu::fields_read;
pub use samples::{POWER as POWER_SAMPLE_METRICS, UTILIZATION as UTILIZATION_SAMPLE_METRICS};

/// Longest wait of a fast batch for further ones: with a publication a second its values are then at most 1.5 s old on
/// the wire.
const MAX_QUEUED: Duration = Duration::from_millis(250);

/// State of the sampler that all threads use.
struct Shared {
    config: SamplerConfig,
    host: Host,
    /// What is to be read now. A visit keeps to those that it began with.
    settings: Mutex<Arc<SamplerSettings>>,
    table: &'static Table,
    expensive: driver::ExpensiveVisits,
    /// Whether the profiling counters (GPM) are to be read now. A worker that finds it false releases its samples, so
    /// that a profiler can have the counters.
    gpm: AtomicBool,
    /// The processes of the canary that the parent has started.
    canaries: Mutex<Vec<CanaryProcess>>,
    /// Ends all threads.
    stop: Stop,
    frames: Mutex<Outbox>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    events: events::EventSets,
    fast: fast::FastTier,
    /// GPUs with a handle, by slot.
    attached: Mutex<BTreeMap<usize, AttachedGpu>>,
    /// How many GPUs the driver lists.
    listed: AtomicUsize,
    /// Whether the peer-to-peer matrix is asked for, or was.
    peers: AtomicBool,
}

/// A GPU with a handle.
#[derive(Clone, Debug)]
struct AttachedGpu {
    gpu: Gpu,
    device: Arc<Device<'static>>,
    epoch: u64,
}

/// Slots of GPUs for which something happened.
type SlotSet = Mutex<BTreeSet<usize>>;

impl Shared {
    fn settings(&self) -> Arc<SamplerSettings> {
        Arc::clone(&lock(&self.settings))
    }

    /// Takes over other settings, and has all threads look at them.
    fn set_settings(self: &Arc<Self>, settings: SamplerSettings) {
        *lock(&self.settings) = Arc::new(settings);
        self.stop.wake();
        peers::start(self);
    }

    /// Sends a frame, with all that were queued before it.
    fn send(&self, message: &FromSampler) {
        self.enqueue(message, true);
    }

    /// Queues a frame: it goes at once, or with the next that does, or that is queued [`MAX_QUEUED`] later. Each write
    /// costs both processes a wake-up.
    fn enqueue(&self, message: &FromSampler, at_once: bool) {
        let bytes = match frame::encode(message) {
            Ok(bytes) => bytes,
            Err(error) => return tracing::error!(%error, "a frame that cannot be sent"),
        };
        let mut out = lock(&self.frames);
        let now = Mono::now();
        if !at_once && now.since(out.since) >= MAX_QUEUED {
            // The queue goes first; this frame waits for those of its own tick.
            out.flush(&self.stop);
        }
        if out.bytes.is_empty() {
            out.since = now;
        }
        out.bytes.extend_from_slice(&bytes);
        if at_once {
            out.flush(&self.stop);
        }
    }

    /// Sends a batch about the node as a whole.
    fn report_node(&self, tier: Tier, taken: Mono, rows: Rows, gaps: Vec<Gap>, caller: &mut driver::Caller) {
        let part = BatchKey { collector: CollectorName::Nvml, gpu: None, tier };
        self.report(Batch {
            answered: !gaps.iter().any(|gap| matches!(gap.missing, Missing::Failed { .. })),
            rows,
            gaps,
            calls: caller.take_costs(),
            ..Batch::new(part, self.config.epoch, taken, self.settings().lifetime(tier))
        });
    }

    /// Sends the batch of a visit. Fast ones are queued.
    fn report(&self, batch: Batch) {
        let queued = batch.part.tier == Tier::Fast && batch.answered;
        self.enqueue(&FromSampler::Batch(batch), !queued);
    }

    /// Reports to the parent that the driver went away, and ends.
    fn driver_gone(&self, error: DriverError, text: String) {
        if !self.stop.stopped() {
            self.send(&FromSampler::DriverAway { error, text });
        }
        self.stop.stop();
    }

    /// Sleeps until then, or until it is time to end; the slot shows when the worker will show life again.
    fn sleep(&self, slot: SlotWriter, next: Mono) {
        while !self.stop.stopped() && Mono::now() < next {
            self.sleep_since(self.stop.woken(), slot, next);
        }
    }

    /// The same. Ends as well once there is something new to look at since `woken`.
    fn sleep_since(&self, woken: u64, slot: SlotWriter, next: Mono) {
        slot.expect(next);
        self.stop.wait_since(woken, next);
    }

    /// Follows the parent's requests until the control pipe closes or breaks, or nobody takes the GPUs to include.
    fn listen(self: &Arc<Self>, mut control: BufReader<File>, included: &Sender<(usize, Option<GpuSlot>)>) {
        loop {
            match frame::read(&mut control) {
                Ok(Some(ToSampler::Include { slot, known })) => {
                    if included.send((slot, known)).is_err() {
                        return;
                    }
                }
                Ok(Some(ToSampler::Gpm(read))) => self.gpm.store(read, Ordering::Relaxed),
                Ok(Some(ToSampler::Settings(settings))) => self.set_settings(settings),
                Ok(Some(ToSampler::Canaries(canaries))) => *lock(&self.canaries) = canaries,
                Ok(Some(ToSampler::Start(_))) => tracing::warn!("duplicate start message"),
                Ok(None) => return,
                Err(error) => return tracing::warn!(%error, "the parent's messages cannot be read"),
            }
        }
    }

    /// Starts a thread that owns a slot of the in-flight table. The end of the process waits for the thread.
    fn spawn(
        self: &Arc<Self>,
        name: &str,
        slot: usize,
        run: impl FnOnce(&Shared) + Send + 'static,
    ) -> std::io::Result<()> {
        let shared = Arc::clone(self);
        let thread = host::thread::spawn(name, 256, move || {
            run(&shared);
            shared.table.writer(slot).leave();
        })?;
        lock(&self.threads).push(thread);
        Ok(())
    }
}

/// Frames on their way to the parent.
struct Outbox {
    pipe: File,
    bytes: Vec<u8>,
    /// When the oldest of them was queued.
    since: Mono,
}

impl Outbox {
    /// Writes the queue. Without a parent nothing can be done but to end.
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
pub fn run() -> std::io::Result<()> {
    child::ignore_signals()?;
    let (frames, control, table) = child::inherited()?;
    let table: &'static Table = Box::leak(Box::new(Table::open(table)?));
    let mut control = BufReader::new(control);
    let config = match frame::read(&mut control).map_err(std::io::Error::other)? {
        Some(ToSampler::Start(config)) => *config,
        Some(_) => return Err(std::io::Error::other("the parent's first message is not the start message")),
        None => return Ok(()),
    };
    let shared = Arc::new(Shared {
        settings: Mutex::new(Arc::new(config.settings.clone())),
        host: Host::new(&config.root),
        gpm: AtomicBool::new(config.gpm),
        canaries: Mutex::new(config.canaries.clone()),
        config,
        table,
        expensive: driver::ExpensiveVisits::default(),
        stop: Stop::default(),
        frames: Mutex::new(Outbox { pipe: frames, bytes: Vec::new(), since: Mono(0) }),
        threads: Mutex::default(),
        events: events::EventSets::default(),
        fast: fast::FastTier::default(),
        attached: Mutex::default(),
        listed: AtomicUsize::default(),
        peers: AtomicBool::default(),
    });
    let (included, more) = channel();
    let listener = Arc::clone(&shared);
    host::thread::spawn("control", 256, move || {
        listener.listen(control, &included);
        listener.stop.stop();
    })?;
    node::run(&shared, &more);
    // Threads in a driver call are waited for, however long it takes: ending a GPU client in the middle of a call can
    // wedge the GPU. The parent does not wait for this process.
    let threads = std::mem::take(&mut *lock(&shared.threads));
    for thread in threads {
        if thread.join().is_err() {
            tracing::error!("a worker thread panicked");
        }
    }
    Ok(())
}
