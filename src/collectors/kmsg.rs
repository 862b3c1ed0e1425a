//! The kernel log, read as it is written: Xid and SXid faults, loads of the driver. `record` understands
//! its lines, `reader` gets them, `position` knows which of them are new.
//!
//! The thread sleeps in poll(2) until a record comes or the daemon ends. It tells the ledger facts, and as
//! rows what it counted. Without the right to read the log it says so and goes on without: the driver's own
//! events tell of Xid faults too.

pub mod position;
mod reader;
pub mod record;

use std::io;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use super::Context;
use host::Host;
use host::state::Store;
use ledger::inbox::Event;
use model::catalog::schema::KnownLabel;
use model::catalog::{self as m, KmsgOutcome, Node};
use model::clock::{Mono, unix_seconds};
use model::fact::{Fact, KernelFact, Teller, What};
use model::sample::{Batch, Rows, Source};
use position::{Age, Position};
use reader::{Got, Reader};
use record::Verdict;

/// What was counted is told so soon after it changed, and
const SOON: Duration = Duration::from_secs(1);
/// so often if it did not.
const IDLE: Duration = Duration::from_secs(5);
/// A log that cannot be opened is tried again after this time.
const RETRY: Duration = Duration::from_secs(10);
/// Pause after what was there was read: a flood is read in bulk, and a fault is told far within 200 ms.
const BREATH: Duration = Duration::from_millis(20);
/// Most records between two looks at the clock.
const AT_ONCE: usize = 4096;
/// The collector lives as long as the daemon, so all facts are of one life.
const LIFE: u64 = 0;

/// Starts the collector.
pub fn start(context: Context) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("kmsg".into()).stack_size(512 * 1024).spawn(move || {
        if !context.config.events.kernel_log {
            hindered(&context, "switched off (events.kernel_log)");
            return wait_for_the_end(&context);
        }
        let host = Host::new(&context.config.host.root);
        let path = host.path("/dev/kmsg");
        let position = Position::new(&host, &Store::new(&context.config.state.dir));
        let mut watch = Watch::new(context, path, position);
        if let Err(error) = watch.run() {
            tracing::error!(%error, "the kernel log cannot be watched");
            hindered(&watch.context, &error.to_string());
            wait_for_the_end(&watch.context);
        }
        watch.position.finish();
    })
}

fn hindered(context: &Context, why: &str) {
    context.inbox.event(Event::Hindered(Source::Kmsg, Some(why.to_owned())));
}

/// A collector's thread that ends before the daemon is taken for a fault.
fn wait_for_the_end(context: &Context) {
    while !context.stop.stopped() {
        context.stop.wait_until(Mono::now() + Duration::from_secs(3600));
    }
}

/// The state of the collector.
struct Watch {
    context: Context,
    path: PathBuf,
    position: Position,
    records: [u64; KmsgOutcome::ALL.len()],
    overruns: u64,
    facts: u64,
    changed: bool,
    /// When what was counted was told last.
    told: Mono,
}

impl Watch {
    fn new(context: Context, path: PathBuf, position: Position) -> Watch {
        let records = [0; KmsgOutcome::ALL.len()];
        Watch { context, path, position, records, overruns: 0, facts: 0, changed: true, told: Mono(0) }
    }

    /// Opens the log and reads it, again and again, until the daemon ends.
    fn run(&mut self) -> io::Result<()> {
        let hang_up = self.context.stop.hang_up()?;
        let mut said = None;
        while !self.context.stop.stopped() {
            let ended = Reader::open(&self.path).and_then(|mut reader| {
                said = None;
                self.read(&mut reader, &hang_up)
            });
            let Err(error) = ended else { continue };
            let why = explained(&error);
            if said.as_ref() != Some(&why) {
                tracing::info!("the kernel log is not read: {why}");
                hindered(&self.context, &why);
                said = Some(why);
            }
            self.context.inbox.event(Event::ReadsKernelLog(None));
            self.context.stop.wait_until(Mono::now() + RETRY);
        }
        Ok(())
    }

    /// Reads until the daemon ends or the log cannot be read any more.
    fn read(&mut self, reader: &mut Reader, hang_up: &io::PipeReader) -> io::Result<()> {
        let mut listening = false;
        while !self.context.stop.stopped() {
            let caught_up = self.drain(reader)?;
            if caught_up {
                self.position.caught_up();
                if !listening {
                    listening = true;
                    self.context.inbox.event(Event::Hindered(Source::Kmsg, None));
                    self.context.inbox.event(Event::ReadsKernelLog(Some(Mono::now())));
                }
            }
            let now = Mono::now();
            let due = self.told + if self.changed { SOON } else { IDLE };
            if now >= due {
                self.tell(now);
            }
            self.position.keep(now);
            if caught_up {
                self.context.stop.wait_until(now + BREATH);
                reader.wait(hang_up, due.since(now).max(BREATH))?;
            }
        }
        Ok(())
    }

    /// Takes in what is there, up to a bound; gives whether that was all.
    fn drain(&mut self, reader: &mut Reader) -> io::Result<bool> {
        let mut lines = 0;
        while lines < AT_ONCE {
            let got = reader.next(|line, whole| {
                lines += 1;
                self.line(line, whole);
            })?;
            match got {
                Got::Records => {}
                Got::Overrun => {
                    self.overruns += 1;
                    self.changed = true;
                }
                Got::Nothing => return Ok(true),
            }
        }
        Ok(false)
    }

    fn line(&mut self, line: &[u8], whole: bool) {
        // Lines that belong to the record before tell nothing of it that we need.
        if line.is_empty() || line[0] == b' ' {
            return;
        }
        let Some(record) = record::parse(line) else { return self.count(KmsgOutcome::Malformed) };
        let old = match self.position.take(record.sequence, record.micros) {
            Age::Seen => return,
            age => age == Age::Old,
        };
        if !record.kernel {
            return self.count(KmsgOutcome::NotOurs);
        }
        match record::classify(record.text) {
            // What was before is nobody's any more.
            Verdict::Told(model::fact::KernelLine::OomKill { .. }, _) if old => {
                self.count(KmsgOutcome::NotOurs)
            }
            Verdict::Told(what @ model::fact::KernelLine::OomKill { .. }, text) => {
                self.count(KmsgOutcome::NotOurs);
                self.fact(record.micros, KernelFact { old, line: what, text });
            }
            Verdict::Told(what, text) => {
                self.count(match (old, &what) {
                    (true, _) => KmsgOutcome::Old,
                    (false, model::fact::KernelLine::Xid { .. } | model::fact::KernelLine::Sxid { .. }) => {
                        KmsgOutcome::Fault
                    }
                    (false, _) => KmsgOutcome::Driver,
                });
                self.position.ours();
                self.fact(record.micros, KernelFact { old, line: what, text });
            }
            Verdict::NotOurs => self.count(KmsgOutcome::NotOurs),
            _ if old => self.count(KmsgOutcome::Old),
            Verdict::Driver if whole => self.count(KmsgOutcome::Driver),
            Verdict::Driver | Verdict::Malformed => self.count(KmsgOutcome::Malformed),
        }
    }

    fn count(&mut self, outcome: KmsgOutcome) {
        self.changed = true;
        self.records[outcome as usize] += 1;
    }

    fn fact(&mut self, micros: u64, kernel: KernelFact) {
        self.facts += 1;
        let taken = Mono::now();
        // Records are stamped on the clock that counts since boot, as `Mono` is.
        let ago = taken.since(Mono(micros.saturating_mul(1000)));
        let fact = Fact {
            teller: Teller::Kmsg,
            number: self.facts,
            taken,
            unix_seconds: unix_seconds() - ago.as_secs_f64(),
            what: What::Kernel(kernel),
        };
        self.context.inbox.fact(LIFE, fact);
    }

    /// Tells what was counted.
    fn tell(&mut self, now: Mono) {
        let mut rows = Rows::default();
        let mut of = rows.of(&Node {});
        let mut put = Ok(());
        for outcome in KmsgOutcome::ALL {
            let count = self.records[*outcome as usize] as f64;
            put = put.and(of.put(&m::gpu_exporter_kmsg_records_total, (*outcome,), count));
        }
        put = put.and(of.put(&m::gpu_exporter_kmsg_overruns_total, (), self.overruns as f64));
        if put.is_err() {
            tracing::warn!("a count of kernel log records cannot be true");
        }
        self.context.inbox.batch(Batch::of_node(Source::Kmsg, now, Some(IDLE * 3), rows));
        (self.told, self.changed) = (now, false);
    }
}

/// Why the log cannot be read, in words that say what to do.
fn explained(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no /dev/kmsg".into(),
        io::ErrorKind::PermissionDenied => {
            "not permitted: needs CAP_SYSLOG and read access to /dev/kmsg".into()
        }
        _ => format!("cannot be read: {error}"),
    }
}

#[cfg(test)]
mod tests;
