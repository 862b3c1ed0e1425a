//! Kernel log: Xid and SXid faults, GPUs that fail without a code, and driver loads. `reader` reads the lines, `record`
//! parses them, `detail` parses the text after a code, `oom` parses out-of-memory kills, and `position` tracks which
//! records are new.
//!
//! The thread sleeps in poll(2) until a record arrives or the daemon stops. It sends facts to the ledger, and its
//! counts as rows. Without permission to read the log, the collector reports that and keeps running: the driver's own
//! events report Xid faults too.

mod detail;
mod oom;
pub(crate) mod position;
mod reader;
pub(crate) mod record;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::{Context, put_node_row};
use host::Host;
use ledger::inbox::LedgerEvent;
use model::catalog::FaultSource;
use model::catalog::schema::KnownLabel;
use model::catalog::{self as m, CollectorName, KmsgOutcome};
use model::clock::{Mono, unix_seconds};
use model::fact::{Fact, FactKind, KernelFact, KernelLine};
use model::sample::Rows;
use position::{Age, Position};
use reader::{LogReader, ReadOutcome};
use record::LineMeaning;

/// Time between two batches while the counts change.
const SOON: Duration = Duration::from_secs(1);
/// Time between two batches while the counts do not change.
const IDLE: Duration = Duration::from_secs(5);
/// Time between two attempts to open the log.
const RETRY: Duration = Duration::from_secs(10);
/// Pause after the end of the log is reached. Floods are read in bulk, and faults are still reported well within 200
/// ms.
const BREATH: Duration = Duration::from_millis(20);
/// Maximum number of records between two checks of the clock.
const AT_ONCE: usize = 4096;
/// Life of the source for all facts, because the collector lives as long as the daemon.
const LIFE: u64 = 0;

pub(crate) fn run(context: Context) {
    if !context.config().events.kernel_log {
        return context.switched_off(CollectorName::Kmsg, "events.kernel_log");
    }
    let host = Host::new(&context.config().host.root);
    let path = host.path("/dev/kmsg");
    let position = Position::new(&host, &context.state);
    let records = [0; KmsgOutcome::ALL.len()];
    let (overruns, facts, changed, sent) = (0, 0, true, Mono(0));
    let mut log = KernelLog { context, path, position, records, overruns, facts, changed, sent };
    if let Err(error) = log.run() {
        tracing::error!(%error, "failed to watch the kernel log; faults are reported only by the driver");
        log.context.idle(CollectorName::Kmsg, error.to_string());
    }
    log.position.finish();
}

/// State of the collector.
struct KernelLog {
    context: Context,
    path: PathBuf,
    position: Position,
    records: [u64; KmsgOutcome::ALL.len()],
    overruns: u64,
    facts: u64,
    changed: bool,
    sent: Mono,
}

impl KernelLog {
    /// Opens and reads the log repeatedly until the daemon stops.
    fn run(&mut self) -> io::Result<()> {
        let hang_up = self.context.stop.hang_up()?;
        let mut said = None;
        while !self.context.stop.stopped() {
            let ended = LogReader::open(&self.path).and_then(|mut reader| {
                said = None;
                self.read(&mut reader, &hang_up)
            });
            let Err(error) = ended else { continue };
            let why = explained(&error);
            if said.as_ref() != Some(&why) {
                tracing::info!("failed to read the kernel log: {why}");
                self.context.unavailable(CollectorName::Kmsg, Some(why.clone()));
                said = Some(why);
            }
            self.context.inbox.event(LedgerEvent::ReadsKernelLog(None));
            self.context.stop.wait_until(Mono::now() + RETRY);
        }
        Ok(())
    }

    /// Reads until the daemon stops or reading fails.
    fn read(&mut self, reader: &mut LogReader, hang_up: &io::PipeReader) -> io::Result<()> {
        let mut listening = false;
        while !self.context.stop.stopped() {
            let caught_up = self.drain(reader)?;
            if caught_up {
                self.position.caught_up();
                if !listening {
                    listening = true;
                    self.context.unavailable(CollectorName::Kmsg, None);
                    self.context.inbox.event(LedgerEvent::ReadsKernelLog(Some(Mono::now())));
                }
            }
            let now = Mono::now();
            let due = self.sent + if self.changed { SOON } else { IDLE };
            if now >= due {
                self.send_counts(now);
            }
            self.position.keep(now);
            if caught_up {
                self.context.stop.wait_until(now + BREATH);
                reader.wait(hang_up, due.since(now).max(BREATH))?;
            }
        }
        Ok(())
    }

    /// Processes the available records up to a limit. Returns whether all were processed.
    fn drain(&mut self, reader: &mut LogReader) -> io::Result<bool> {
        let mut lines = 0;
        while lines < AT_ONCE {
            let got = reader.next(|line, whole| {
                lines += 1;
                self.line(line, whole);
            })?;
            match got {
                ReadOutcome::Records => {}
                ReadOutcome::Overrun => {
                    self.overruns += 1;
                    self.changed = true;
                }
                ReadOutcome::Nothing => return Ok(true),
            }
        }
        Ok(false)
    }

    fn line(&mut self, line: &[u8], whole: bool) {
        // Continuation lines of the previous record are ignored.
        if line.is_empty() || line[0] == b' ' {
            return;
        }
        let Some(record) = record::parse(line) else { return self.count(KmsgOutcome::Malformed) };
        let old = match self.position.advance(record.sequence, record.micros) {
            Age::Seen => return,
            age => age == Age::Old,
        };
        if !record.kernel {
            return self.count(KmsgOutcome::NotOurs);
        }
        match record::classify(record.text) {
            // An old kill belongs to no current owner.
            LineMeaning::Fact(KernelLine::OomKill { .. }, _) if old => self.count(KmsgOutcome::NotOurs),
            LineMeaning::Fact(what @ KernelLine::OomKill { .. }, text) => {
                self.count(KmsgOutcome::NotOurs);
                self.fact(record.micros, KernelFact { old, line: what, text });
            }
            LineMeaning::Fact(what, text) => {
                self.count(match (old, &what) {
                    (true, _) => KmsgOutcome::Old,
                    (
                        false,
                        KernelLine::Xid { .. } | KernelLine::Sxid { .. } | KernelLine::GpuFailed { .. },
                    ) => KmsgOutcome::Fault,
                    (false, _) => KmsgOutcome::Driver,
                });
                self.position.ours = true;
                self.fact(record.micros, KernelFact { old, line: what, text });
            }
            LineMeaning::NotOurs => self.count(KmsgOutcome::NotOurs),
            _ if old => self.count(KmsgOutcome::Old),
            LineMeaning::Driver if whole => self.count(KmsgOutcome::Driver),
            LineMeaning::Driver | LineMeaning::Malformed => self.count(KmsgOutcome::Malformed),
        }
    }

    fn count(&mut self, outcome: KmsgOutcome) {
        self.changed = true;
        self.records[outcome as usize] += 1;
    }

    fn fact(&mut self, micros: u64, kernel: KernelFact) {
        self.facts += 1;
        let taken = Mono::now();
        // The time stamps of records and `Mono` both count from boot.
        let ago = taken.since(Mono(micros.saturating_mul(1000)));
        let fact = Fact {
            source: FaultSource::Kmsg,
            number: self.facts,
            taken,
            unix_seconds: unix_seconds() - ago.as_secs_f64(),
            kind: FactKind::Kernel(kernel),
        };
        self.context.inbox.fact(LIFE, fact);
    }

    fn send_counts(&mut self, now: Mono) {
        let mut rows = Rows::default();
        for outcome in KmsgOutcome::ALL {
            let count = self.records[*outcome as usize] as f64;
            put_node_row(&mut rows, &m::gpu_exporter_kmsg_records_total, (*outcome,), count);
        }
        let overruns = self.overruns as f64;
        put_node_row(&mut rows, &m::gpu_exporter_kmsg_overruns_total, (), overruns);
        self.context.send(CollectorName::Kmsg, now, IDLE, rows);
        (self.sent, self.changed) = (now, false);
    }
}

/// Describes why the log cannot be read, with the next step.
fn explained(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no /dev/kmsg".into(),
        io::ErrorKind::PermissionDenied => {
            "not permitted: needs CAP_SYSLOG and read access to /dev/kmsg".into()
        }
        _ => format!("failed to read /dev/kmsg: {error}"),
    }
}

#[cfg(test)]
mod tests;
