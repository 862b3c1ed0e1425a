//! The collector on a file in place of /dev/kmsg.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::*;
use crate::LiveConfig;
use host::state::Store;
use host::stop::Stop;
use ledger::inbox::Inbox;
use model::fact::KernelLine;
use nix::errno::Errno;
use settings::Config;

const PATIENCE: Duration = Duration::from_secs(20);

/// A folder in place of a host, and a collector that reads it.
struct Bench {
    root: tempfile::TempDir,
}

struct Running {
    context: Context,
    thread: std::thread::JoinHandle<()>,
    facts: Vec<Fact>,
    unavailable: Option<String>,
    listens: bool,
    counted: [f64; KmsgOutcome::ALL.len()],
}

impl Bench {
    fn new() -> Bench {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc/sys/kernel/random")).unwrap();
        fs::create_dir_all(root.path().join("dev")).unwrap();
        fs::write(root.path().join("proc/sys/kernel/random/boot_id"), "boot-1\n").unwrap();
        Bench { root }
    }

    fn log(&self, bytes: &[u8]) {
        let path = self.root.path().join("dev/kmsg");
        fs::OpenOptions::new().create(true).append(true).open(path).unwrap().write_all(bytes).unwrap();
    }

    fn start(&self) -> Running {
        let mut config = Config::default();
        config.host.root = self.root.path().into();
        let context = Context {
            live: Arc::new(LiveConfig::from_pointee(config)),
            inbox: Arc::new(Inbox::default()),
            state: Store::new(self.root.path().join("state")),
            stop: Arc::new(Stop::default()),
        };
        let running = context.clone();
        let thread = host::thread::spawn("kmsg", 512, move || run(running)).unwrap();
        let counted = [0.0; KmsgOutcome::ALL.len()];
        Running { context, thread, facts: Vec::new(), unavailable: None, listens: false, counted }
    }
}

impl Running {
    /// Takes pending until the condition holds.
    fn until(&mut self, what: &str, done: impl Fn(&Running) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < deadline, "{what}: {} facts, {:?}", self.facts.len(), self.counted);
            let pending = self.context.inbox.wait_until(Mono::now() + Duration::from_millis(20)).unwrap();
            self.facts.extend(pending.facts.into_iter().map(|(_, fact)| fact));
            for event in pending.events {
                match event {
                    LedgerEvent::CollectorUnavailable(CollectorName::Kmsg, why) => self.unavailable = why,
                    LedgerEvent::ReadsKernelLog(since) => self.listens = since.is_some(),
                    _ => {}
                }
            }
            for batch in pending.batches {
                let rows = &batch.rows.groups()[0].1;
                for (at, row) in rows.iter().take(self.counted.len()).enumerate() {
                    self.counted[at] = row.value;
                }
            }
        }
    }

    fn counted(&self, outcome: KmsgOutcome) -> f64 {
        self.counted[outcome as usize]
    }

    fn end(self) {
        self.context.stop.stop();
        self.thread.join().unwrap();
    }
}

fn now_micros() -> u64 {
    Mono::now().0 / 1000
}

fn xid(sequence: u64, code: u32) -> String {
    format!("4,{sequence},{},-;NVRM: Xid (PCI:0000:06:00): {code}, pid=5, name=x, y\n", now_micros())
}

fn codes(facts: &[Fact]) -> Vec<(u32, bool)> {
    let code = |fact: &Fact| match &fact.kind {
        FactKind::Kernel(KernelFact { old, line: KernelLine::Xid { code, .. }, .. }) => Some((*code, *old)),
        _ => None,
    };
    facts.iter().filter_map(code).collect()
}

#[test]
fn what_was_logged_before_is_old_once_and_for_ever() {
    let bench = Bench::new();
    bench.log(b"4,1,10,-;NVRM: Xid (PCI:0000:06:00): 13, a\n SUBSYSTEM=pci\n DEVICE=+pci:0000:06:00.0\n");
    let mut run = bench.start();
    run.until("the old one", |r| codes(&r.facts) == [(13, true)]);
    bench.log(xid(2, 31).as_bytes());
    run.until("the new one", |r| codes(&r.facts) == [(13, true), (31, false)]);
    run.until("the counts", |r| r.counted(KmsgOutcome::Fault) == 1.0 && r.counted(KmsgOutcome::Old) == 1.0);
    assert!((run.facts[1].unix_seconds - unix_seconds()).abs() < 60.0);
    run.end();

    bench.log(xid(3, 79).as_bytes());
    let mut again = bench.start();
    again.until("all three", |r| r.facts.len() == 3);
    assert_eq!(codes(&again.facts), [(13, true), (31, true), (79, false)], "what no daemon saw counts");
    again.end();

    fs::write(bench.root.path().join("proc/sys/kernel/random/boot_id"), "boot-2\n").unwrap();
    let mut after_boot = bench.start();
    after_boot.until("all three", |r| r.facts.len() == 3);
    assert!(codes(&after_boot.facts).iter().all(|(_, old)| *old), "the numbers are of another boot");
    after_boot.end();
}

#[test]
fn ten_thousand_lines_in_one_go_are_all_reported() {
    let bench = Bench::new();
    bench.log(b"");
    let mut run = bench.start();
    run.until("it listens", |r| r.listens);
    let burst: String = (1..=10_000).map(|n| xid(n, 13)).collect();
    bench.log(burst.as_bytes());
    run.until("all", |r| r.facts.len() == 10_000);
    assert!(run.facts.iter().zip(1..).all(|(fact, number)| fact.number == number));
    run.until("the count", |r| r.counted(KmsgOutcome::Fault) == 10_000.0);
    run.end();
}

#[test]
fn garbage_counts_as_no_fault_and_hides_none() {
    let bench = Bench::new();
    bench.log(b"");
    let mut run = bench.start();
    run.until("it listens", |r| r.listens);
    let mut garbage = vec![0xff; 10_240];
    garbage.extend_from_slice(b"\n\0\0\0\n4,1,1,-;NVRM: Xid (PCI:0000:06:00): 7\n");
    garbage.extend_from_slice(b"12,2,1,-;NVRM: Xid (PCI:0000:06:00): 79, written by a process\n");
    garbage.extend_from_slice(b"NVRM: Xid (PCI:0000:06:00): 79, no header\n");
    garbage.extend_from_slice(xid(3, 43).as_bytes());
    garbage.extend_from_slice(b"4,4,1,-;NVRM: Xid (PCI:0000:06:00): 7");
    bench.log(&garbage);
    run.until("the one fault", |r| codes(&r.facts) == [(43, false)]);
    run.until("the counts", |r| {
        r.counted(KmsgOutcome::Malformed) == 4.0 && r.counted(KmsgOutcome::NotOurs) == 1.0
    });
    bench.log(b"9, the rest of its line\n");
    run.until("the line that came in two", |r| codes(&r.facts) == [(43, false), (79, false)]);
    run.end();
}

#[test]
fn a_log_that_is_not_there_is_said_to_be_absent() {
    let bench = Bench::new();
    let mut run = bench.start();
    run.until("why", |r| r.unavailable.as_deref() == Some("there is no /dev/kmsg"));
    assert!(!Path::new(&bench.root.path().join("dev/kmsg")).exists());
    run.end();
}

#[test]
fn who_may_not_read_the_log_learns_what_it_takes() {
    let needs = "not permitted: needs CAP_SYSLOG and read access to /dev/kmsg";
    // With kernel.dmesg_restrict the kernel says EPERM, the mode of the device EACCES.
    for errno in [Errno::EPERM, Errno::EACCES] {
        assert_eq!(explained(&errno.into()), needs);
    }
    assert_eq!(explained(&Errno::ENOENT.into()), "there is no /dev/kmsg");
}
