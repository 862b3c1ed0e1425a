//! One sampler process as the parent sees it: its frames, its in-flight table, and how it is ended.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use super::policy::{self, GivenUp, Health};
use host::child::{self, Running, Voice};
use host::inflight::Table;
use ledger::inbox::{Inbox, LedgerEvent};
use model::catalog::{self, SamplerEnd};
use model::clock::Mono;
use model::sample::ErrorKind;
use sampler::wire::{self, FrameError, FromSampler, Orders, Seat, ToSampler};

/// What the thread that reads a sampler's frames tells the supervisor.
#[derive(Debug)]
pub struct News {
    /// Which sampler.
    pub generation: u64,
    /// What it said, or how its stream ended.
    pub what: What,
}

/// What a sampler said, or how its stream ended.
#[derive(Debug)]
pub enum What {
    /// The driver answers.
    DriverUp,
    /// The driver is away, and the sampler ends.
    DriverAway(ErrorKind, String),
    /// A GPU's handle cannot be had.
    NoHandle(u32, ErrorKind, String),
    /// A GPU has a worker.
    Seated(Seat),
    /// The stream is over; nothing more will come.
    Over(SamplerEnd, String),
}

/// A sampler process.
#[derive(Debug)]
pub struct Sampler {
    /// Counts samplers from 1.
    pub generation: u64,
    /// When it was started.
    pub started: Mono,
    /// Slots it was told to leave alone, because another process is stuck on their GPUs.
    pub avoids: Vec<usize>,
    /// GPUs it has workers for, or is to have, by slot.
    pub seats: BTreeMap<usize, Seat>,
    running: Running,
    table: Table,
    given_up: Arc<AtomicBool>,
    asked_to_end: Option<Mono>,
    killed: Option<Mono>,
}

/// How long a sampler that is in no driver call gets to end by itself.
const END_DEADLINE: Duration = Duration::from_secs(2);
/// How long a killed sampler may take to end before it counts as stuck in the driver.
const KILL_DEADLINE: Duration = Duration::from_secs(5);

impl Sampler {
    /// Starts one. Its batches go to the inbox, everything else to `news`.
    pub fn start(
        start: Start<'_>,
        orders: Orders,
        inbox: &Arc<Inbox>,
        news: &Sender<News>,
    ) -> io::Result<Sampler> {
        let table = Table::create()?;
        let args = ["sampler", "--log-level", start.log_level];
        let as_ours = child::Environment::default();
        let (mut running, frames) =
            child::start(start.program, &args, &as_ours, table.descriptor(), start.voice)?;
        let given_up = Arc::new(AtomicBool::new(false));
        let reader = Reader {
            generation: start.generation,
            given_up: Arc::clone(&given_up),
            inbox: Arc::clone(inbox),
            news: news.clone(),
        };
        let thread = std::thread::Builder::new().name("frames".into()).stack_size(256 * 1024);
        if let Err(error) = thread.spawn(move || reader.run(frames)) {
            running.end_at_once();
            return Err(error);
        }
        let seats = orders.known.iter().map(|seat| (seat.slot, seat.clone())).collect();
        let avoids = orders.avoid.clone();
        if let Some(control) = &mut running.control {
            // A child that died at once makes this fail; its end is seen where ends are seen.
            if let Err(error) = wire::write(control, &ToSampler::Start(Box::new(orders))) {
                tracing::warn!(%error, "the sampler did not take its orders");
            }
        }
        Ok(Sampler {
            generation: start.generation,
            started: Mono::now(),
            avoids,
            seats,
            running,
            table,
            given_up,
            asked_to_end: None,
            killed: None,
        })
    }

    /// Process id.
    pub fn pid(&self) -> i32 {
        self.running.pid
    }

    /// What its in-flight table says. A process that has not come to write there in time is as late as
    /// one that stopped writing.
    pub fn health(&self, now: Mono, times: Times) -> Health {
        let views = self.table.views();
        if views.is_empty() && self.asked_to_end.is_none() && now.since(self.started) > times.init {
            return Health { late: 1, ..Health::default() };
        }
        policy::health(&views, now, times.call)
    }

    /// How a sampler that was given up stands to its successor.
    pub fn given_up(&self, health: &Health, now: Mono) -> GivenUp {
        let undead = self.killed.is_some_and(|killed| now.since(killed) > KILL_DEADLINE);
        if health.in_call || undead { GivenUp::Stuck } else { GivenUp::Ending }
    }

    /// Whether it was stopped by a signal.
    pub fn all_stopped(&self) -> bool {
        child::all_stopped(self.pid())
    }

    /// Whether it has ended.
    pub fn ended(&mut self) -> bool {
        match self.running.ended() {
            Ok(status) => status.is_some(),
            Err(error) => {
                tracing::warn!(%error, pid = self.pid(), "cannot tell whether the sampler has ended");
                false
            }
        }
    }

    /// Tells it that the GPUs it was to leave alone may be asked again.
    pub fn include_all(&mut self) {
        for slot in std::mem::take(&mut self.avoids) {
            let seat = self.seats.get(&slot).cloned();
            let Some(control) = &mut self.running.control else { return };
            if let Err(error) = wire::write(control, &ToSampler::Include { slot, seat }) {
                tracing::warn!(%error, "the sampler does not take orders");
            }
        }
    }

    /// Tells it whether the profiling counters are to be read.
    pub fn gpm(&mut self, read: bool) {
        let Some(control) = &mut self.running.control else { return };
        if let Err(error) = wire::write(control, &ToSampler::Gpm(read)) {
            tracing::warn!(%error, "the sampler does not take orders");
        }
    }

    /// Gives it up: what it still sends is thrown away, and it is asked to end.
    pub fn give_up(&mut self) {
        self.given_up.store(true, Ordering::Release);
        self.running.ask_to_end();
        self.asked_to_end.get_or_insert_with(Mono::now);
    }

    /// Kills it if it was asked to end, did not, and is in no driver call.
    pub fn end_overdue(&mut self, health: &Health, now: Mono) {
        let overdue = self.asked_to_end.is_some_and(|asked| now.since(asked) > END_DEADLINE);
        if overdue && self.killed.is_none() && (!health.in_call || self.all_stopped()) {
            self.running.kill();
            self.killed = Some(now);
        }
    }
}

/// How a sampler is started.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// The program.
    pub program: &'a Path,
    /// Counts samplers from 1.
    pub generation: u64,
    /// What its log holds.
    pub log_level: &'a str,
    /// Where that goes.
    pub voice: Voice,
}

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// A driver call, and being behind what was promised.
    pub call: Duration,
    /// Starting, and getting a handle.
    pub init: Duration,
}

/// Reads the frames of one sampler.
struct Reader {
    generation: u64,
    given_up: Arc<AtomicBool>,
    inbox: Arc<Inbox>,
    news: Sender<News>,
}

impl Reader {
    fn run(&self, frames: std::fs::File) {
        let mut frames = io::BufReader::with_capacity(64 * 1024, frames);
        let (end, text) = self.read_all(&mut frames);
        self.tell(What::Over(end, text));
        // To the end of the stream, so that a sampler that still writes can end by itself.
        if let Err(error) = io::copy(&mut frames, &mut io::sink()) {
            tracing::debug!(%error, "the rest of a sampler's stream");
        }
    }

    fn read_all(&self, frames: &mut impl io::Read) -> (SamplerEnd, String) {
        let mut greeted = false;
        loop {
            let message = match wire::read(frames) {
                Ok(Some(message)) => message,
                Ok(None) => return (SamplerEnd::Exited, "the process ended".into()),
                Err(error) => {
                    let end = match error {
                        FrameError::Garbage(_) => SamplerEnd::Garbage,
                        FrameError::Oversized(_) => SamplerEnd::Oversized,
                        FrameError::Truncated | FrameError::Io(_) => SamplerEnd::Truncated,
                    };
                    return (end, error.to_string());
                }
            };
            if !greeted {
                match message {
                    FromSampler::Hello { fingerprint } if fingerprint == catalog::fingerprint() => {
                        greeted = true;
                        continue;
                    }
                    FromSampler::Hello { .. } => {
                        return (SamplerEnd::Refused, "the sampler is of another build".into());
                    }
                    other => {
                        return (SamplerEnd::Garbage, format!("expected a greeting, got {other:?}"));
                    }
                }
            }
            match message {
                FromSampler::Hello { .. } => {
                    return (SamplerEnd::Garbage, "a second greeting".into());
                }
                FromSampler::DriverUp => self.tell(What::DriverUp),
                FromSampler::DriverAway { error, text } => {
                    // What it still sends is of a driver that is gone.
                    self.given_up.store(true, Ordering::Release);
                    self.tell(What::DriverAway(error, text));
                }
                FromSampler::NoHandle { index, error, text } => {
                    self.tell(What::NoHandle(index, error, text));
                }
                FromSampler::Seated(seat) => self.tell(What::Seated(seat)),
                FromSampler::Batch(batch) => {
                    if !batch.conform() {
                        return (SamplerEnd::Garbage, "a batch the catalogue does not allow".into());
                    }
                    if self.given_up.load(Ordering::Acquire) {
                        self.inbox.event(LedgerEvent::LateBatch);
                    } else {
                        self.inbox.batch(batch);
                    }
                }
                // Also of a sampler that was given up: it happened.
                FromSampler::Fact(fact) => self.inbox.fact(self.generation, fact),
            }
        }
    }

    fn tell(&self, what: What) {
        // The supervisor ends before its readers only when the daemon does.
        if self.news.send(News { generation: self.generation, what }).is_err() {
            tracing::debug!("nobody listens to this sampler any more");
        }
    }
}
