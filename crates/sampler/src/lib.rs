//! The sampler: the only long-lived process that loads libnvidia-ml, and the only crate that names
//! nvml-wrapper. `serve` starts, watches and replaces it.
//!
//! The sampler sends readings and keeps no sums. It has one worker thread per GPU (`worker`, which visits the
//! tiers of `gpu`), one for the node (`node`: library, driver, list of GPUs), one for the driver's events and
//! one for the fast tier. The process ends when its control pipe closes, but never in the middle of a driver
//! call.
//!
//! [`wire`] defines the messages between parent and sampler. [`watch`] reads NVML for the canary. All unsafe
//! code is in `raw`.

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

/// Longest time for which a fast batch waits for further ones. With one publication per second, its values are
/// then at most 1.5 s old on the wire.
const MAX_QUEUED: Duration = Duration::from_millis(250);

/// State shared by all threads of the sampler.
struct Shared {
    config: SamplerConfig,
    host: Host,
    /// Current settings. A visit uses the settings with which it began.
    settings: Mutex<Arc<SamplerSettings>>,
    table: &'static Table,
    expensive: driver::ExpensiveVisits,
    /// Whether to read the profiling counters (GPM). A worker that finds `false` frees its samples, so that a
    /// profiler can use the counters.
    gpm: AtomicBool,
    /// Canary processes that the parent has started.
    canaries: Mutex<Vec<CanaryProcess>>,
    stop: Stop,
    frames: Mutex<Outbox>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    events: events::EventSets,
    fast: fast::FastTier,
    /// GPUs with a handle, by slot.
    attached: Mutex<BTreeMap<usize, AttachedGpu>>,
    /// Number of GPUs that the driver lists.
    listed: AtomicUsize,
    /// Whether the peer-to-peer matrix was or is being read.
    peers: AtomicBool,
}

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

    /// Replaces the settings and wakes all threads.
    fn set_settings(self: &Arc<Self>, settings: SamplerSettings) {
        *lock(&self.settings) = Arc::new(settings);
        self.stop.wake();
        peers::start(self);
    }

    /// Sends a frame, together with all queued frames.
    fn send(&self, message: &FromSampler) {
        self.enqueue(message, true);
    }

    /// Queues a frame. It is written at once if `at_once`, and otherwise together with the next such frame or
    /// with the next frame that is queued after [`MAX_QUEUED`]. Each write costs both processes a wake-up.
    fn enqueue(&self, message: &FromSampler, at_once: bool) {
        let bytes = match frame::encode(message) {
            Ok(bytes) => bytes,
            Err(error) => {
                return tracing::error!("failed to encode a frame: {error}; its values are missing");
            }
        };
        let mut out = lock(&self.frames);
        let now = Mono::now();
        if !at_once && now.since(out.since) >= MAX_QUEUED {
            // The queue is written first, and this frame waits for the others of its own tick.
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

    /// Sends the batch of a visit. Fast batches are queued.
    fn report(&self, batch: Batch) {
        let queued = batch.part.tier == Tier::Fast && batch.answered;
        self.enqueue(&FromSampler::Batch(batch), !queued);
    }

    /// Reports to the parent that the driver is gone, and stops the sampler.
    fn driver_gone(&self, error: DriverError, text: String) {
        if !self.stop.stopped() {
            self.send(&FromSampler::DriverAway { error, text });
        }
        self.stop.stop();
    }

    /// Sleeps until `next` or until the stop. The slot promises that the worker will be active again by then.
    fn sleep(&self, slot: SlotWriter, next: Mono) {
        while !self.stop.stopped() && Mono::now() < next {
            self.sleep_since(self.stop.woken(), slot, next);
        }
    }

    /// Sleeps like [`Shared::sleep`], but ends early if the threads were woken since `woken` was read.
    fn sleep_since(&self, woken: u64, slot: SlotWriter, next: Mono) {
        slot.expect(next);
        self.stop.wait_since(woken, next);
    }

    /// Follows the parent's requests until the control pipe closes or breaks, or until the thread that attaches
    /// GPUs has ended.
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
                Ok(Some(ToSampler::Start(_))) => tracing::warn!("ignored a second start message"),
                Ok(None) => return,
                Err(error) => {
                    return tracing::warn!(
                        "failed to read a message of the parent: {error}; the sampler ends"
                    );
                }
            }
        }
    }

    /// Starts a thread that owns a slot of the in-flight table. The process waits for the thread before it
    /// ends.
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

/// Frames that are not written to the parent yet.
struct Outbox {
    pipe: File,
    bytes: Vec<u8>,
    /// Time when the oldest frame was queued.
    since: Mono,
}

impl Outbox {
    /// Writes the queue. Without a parent the sampler can only end.
    fn flush(&mut self, stop: &Stop) {
        if let Err(error) = self.pipe.write_all(&self.bytes) {
            if !stop.stopped() {
                tracing::warn!("failed to write to the parent: {error}; the sampler ends");
            }
            stop.stop();
        }
        self.bytes.clear();
    }
}

/// Runs the sampler until the end of the process. Fails if the inherited descriptors or the start message are
/// unusable.
pub fn run() -> std::io::Result<()> {
    child::ignore_signals()?;
    let (frames, control, table) = child::inherited()?;
    let table: &'static Table = Box::leak(Box::new(Table::open(table)?));
    let mut control = BufReader::new(control);
    let config = match frame::read(&mut control).map_err(std::io::Error::other)? {
        Some(ToSampler::Start(config)) => *config,
        Some(_) => {
            return Err(std::io::Error::other("the first message of the parent is not the start message"));
        }
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
    // Wait for threads in a driver call, however long the call takes: ending a GPU client in the middle of a
    // call can wedge the GPU. The parent does not wait for this process.
    let threads = std::mem::take(&mut *lock(&shared.threads));
    for thread in threads {
        if thread.join().is_err() {
            tracing::error!("a worker thread panicked");
        }
    }
    Ok(())
}
