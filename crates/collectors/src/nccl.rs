//! State of the ranks on this node, queried from NCCL over the RAS sockets of the jobs (`owners.nccl_ras`, off by
//! default). Queries are bounded in time and bytes and run one at a time in this thread.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use super::{Context, put_node_row};
use crate::views::View;
use attribution::nccl::questions::Questions;
use attribution::nccl::{
    GREETINGS, MOST_BYTES, NcclVersion, QUESTION, RankCounts, RankPlace, Reply, Status, join, reply, status,
};
use attribution::proc;
use host::Host;
use host::reader::{DeadlineReader, MAX_ABANDONED};
use host::stop::Stop;
use ledger::inbox::LedgerEvent;
use model::catalog::schema::KnownLabel;
use model::catalog::{self as m, CollectorName, RasOutcome};
use model::clock::{Cadence, Mono};
use model::owners::{CollectivesAnswer, OwnerRank, OwnerUpdate};
use model::sample::Rows;

/// Time between two batches.
const EVERY: Duration = Duration::from_secs(10);
/// Maximum wait for a snapshot, after which the stop signal is checked.
const LOOK: Duration = Duration::from_millis(500);
/// Maximum duration of a query. NCCL itself collects for at most 2 s.
const DEADLINE: Duration = Duration::from_secs(5);
/// Maximum duration of connecting.
const CONNECT: Duration = Duration::from_secs(1);
/// Time between two checks for the stop signal during a read.
const CHECK: Duration = Duration::from_millis(100);
/// Maximum length in bytes of the line that answers a greeting.
const MOST_LINE: usize = 256;
/// Maximum number of processes that are joined with ranks.
const MOST_PROCESSES: usize = 1024;

pub(crate) fn run(context: Context, places: View<Vec<RankPlace>>) {
    let owners = &context.config().owners;
    if !(owners.enabled && owners.nccl_ras) {
        return context.switched_off(CollectorName::Nccl, "owners.nccl_ras");
    }
    let collector = NcclCollector {
        host: Arc::new(Host::new(&context.config().host.root)),
        reader: DeadlineReader::new("nccl-reader", owners.read_timeout, context.stop.clone()),
        questions: Questions::new(owners.nccl_ras_after),
        // The range of the setting is the range of ports.
        port: u16::try_from(owners.nccl_ras_port).unwrap_or(u16::MAX),
        outcomes: [0; RasOutcome::ALL.len()],
        context,
    };
    collector.run(&places);
}

struct NcclCollector {
    context: Context,
    host: Arc<Host>,
    reader: DeadlineReader,
    questions: Questions,
    port: u16,
    outcomes: [u64; RasOutcome::ALL.len()],
}

impl NcclCollector {
    fn run(mut self, view: &View<Vec<RankPlace>>) {
        let mut cadence = Cadence::new(EVERY, Duration::ZERO);
        let mut seen = 0;
        while !self.context.stop.stopped() {
            let (sequence, places) = view.wait_for_newer(seen, LOOK);
            let asks = sequence > seen && self.questions.look(&places, Mono::now());
            seen = sequence;
            if asks {
                let outcome = self.question(&places);
                if self.context.stop.stopped() {
                    return;
                }
                self.outcomes[outcome as usize] += 1;
            }
            if cadence.tick(Mono::now()) || asks {
                self.send();
            }
        }
    }

    /// Queries one job and handles the response.
    fn question(&mut self, places: &[RankPlace]) -> RasOutcome {
        match ask(self.port, &self.context.stop).and_then(|bytes| status(&bytes).ok_or(RasOutcome::Malformed))
        {
            Ok(status) => self.answered(&status, places),
            Err(outcome) => {
                match outcome {
                    RasOutcome::NoSocket => self.questions.found_none(),
                    RasOutcome::Old => {
                        tracing::info!("a job uses NCCL before 2.28.7; its RAS socket is not queried");
                        self.questions.refused();
                    }
                    // Version 2.28.9 answers like this while a rank is missing.
                    RasOutcome::Malformed => self.questions.refused(),
                    _ => self.questions.failed(),
                }
                outcome
            }
        }
    }

    fn answered(&mut self, status: &Status, places: &[RankPlace]) -> RasOutcome {
        let taken = Mono::now();
        let hosts: BTreeSet<&str> = status.ranks.iter().map(|rank| rank.host.as_str()).collect();
        let hosts: BTreeSet<&str> = hosts.into_iter().filter(|host| is_local(host)).collect();
        let is_here = |host: &str| hosts.contains(host);
        let here = status.ranks.iter().filter(|rank| is_here(&rank.host)).count();
        let joined = join(&status.ranks, places, &self.own_pids(places), is_here);
        if !self.questions.answered(status, &joined, here) {
            let NcclVersion(major, minor, patch) = status.version;
            tracing::info!("a job's NCCL {major}.{minor}.{patch} is not queried again; see docs/nccl.md");
        }
        if status.is_old() {
            return RasOutcome::Old;
        }
        let waited = |owner: &Arc<str>| {
            let of = places.iter().filter(|place| place.owner == *owner);
            of.filter_map(|place| place.waits_since).min().map_or(Duration::ZERO, |since| taken.since(since))
        };
        let rank = |(pid, place, rank): (u32, &RankPlace, &RankCounts)| OwnerRank {
            owner: Arc::clone(&place.owner),
            gpu: place.gpu.clone(),
            gpu_instance: place.gpu_instance,
            pid,
            rank: rank.rank,
            collectives: rank.collectives,
            launched: rank.launched,
            behind: rank.behind,
            waited: waited(&place.owner),
        };
        let ranks: Vec<OwnerRank> = joined.into_iter().map(rank).collect();
        if !ranks.is_empty() {
            let answer = CollectivesAnswer { taken, ranks };
            self.context.inbox.event(LedgerEvent::Owners(OwnerUpdate::Collectives(answer)));
        }
        RasOutcome::Answered
    }

    /// Returns the processes by their ID in their own PID namespace, which is the ID that NCCL reports.
    fn own_pids(&mut self, places: &[RankPlace]) -> BTreeMap<u32, Vec<u32>> {
        let pids: BTreeSet<u32> = places.iter().flat_map(|place| place.pids.iter().copied()).collect();
        let host = Arc::clone(&self.host);
        let read = move || {
            let mut own: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
            for pid in pids.into_iter().take(MOST_PROCESSES) {
                if let Ok(Some(id)) = proc::read_own_pid(&host.path(format!("/proc/{pid}"))) {
                    own.entry(id).or_default().push(pid);
                }
            }
            own
        };
        self.reader.read(MAX_ABANDONED, read).unwrap_or_default()
    }

    fn send(&self) {
        let mut rows = Rows::default();
        for outcome in RasOutcome::ALL {
            let count = self.outcomes[*outcome as usize] as f64;
            put_node_row(&mut rows, &m::gpu_exporter_nccl_ras_requests_total, (*outcome,), count);
        }
        self.context.send(CollectorName::Nccl, Mono::now(), EVERY, rows);
    }
}

/// Queries one process of one job and returns the raw response.
fn ask(port: u16, stop: &Stop) -> Result<Vec<u8>, RasOutcome> {
    let mut talk = Talk::begin(port, stop)?;
    for greeting in GREETINGS {
        talk.say(greeting)?;
        match reply(greeting, &talk.line()?) {
            Reply::Accepted => {}
            Reply::Refused => return Err(RasOutcome::Old),
            Reply::Foreign => return Err(RasOutcome::Malformed),
        }
    }
    talk.say(QUESTION)?;
    talk.rest()
}

/// Connection with a deadline.
struct Talk<'a> {
    stream: TcpStream,
    deadline: Mono,
    stop: &'a Stop,
    /// Bytes that are read but not yet consumed.
    read: Vec<u8>,
}

impl<'a> Talk<'a> {
    /// Connects to the loopback address. NCCL listens on one of the two addresses of `localhost`.
    fn begin(port: u16, stop: &'a Stop) -> Result<Talk<'a>, RasOutcome> {
        let deadline = Mono::now() + DEADLINE;
        let mut outcome = RasOutcome::NoSocket;
        for address in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
            match TcpStream::connect_timeout(&SocketAddr::new(address, port), CONNECT) {
                Ok(stream) => return Ok(Talk { stream, deadline, stop, read: Vec::new() }),
                Err(error) if error.kind() == ErrorKind::TimedOut => outcome = RasOutcome::Late,
                Err(_) => {}
            }
        }
        Err(outcome)
    }

    fn say(&mut self, text: &str) -> Result<(), RasOutcome> {
        let said =
            self.stream.set_write_timeout(Some(CHECK)).and_then(|()| self.stream.write_all(text.as_bytes()));
        said.map_err(|_| RasOutcome::Malformed)
    }

    /// Reads more bytes; returns `false` at the end.
    fn more(&mut self) -> Result<bool, RasOutcome> {
        let mut bytes = [0; 16 * 1024];
        loop {
            let left = self.deadline.since(Mono::now());
            if left.is_zero() || self.stop.stopped() {
                return Err(RasOutcome::Late);
            }
            let read = self
                .stream
                .set_read_timeout(Some(left.min(CHECK)))
                .and_then(|()| self.stream.read(&mut bytes));
            match read {
                Ok(count) => {
                    self.read.extend_from_slice(bytes.get(..count).unwrap_or_default());
                    return Ok(count > 0);
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    _ => return Err(RasOutcome::Malformed),
                },
            }
        }
    }

    /// Reads a line without its end.
    fn line(&mut self) -> Result<String, RasOutcome> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            if self.read.len() > MOST_LINE || !self.more()? {
                return Err(RasOutcome::Malformed);
            }
        }
    }

    /// Reads the remaining bytes.
    fn rest(mut self) -> Result<Vec<u8>, RasOutcome> {
        while self.more()? {
            if self.read.len() > MOST_BYTES {
                return Err(RasOutcome::TooLarge);
            }
        }
        Ok(self.read)
    }
}

/// Returns whether this is an address of the node, that is, whether the kernel would send from it. No packet is sent.
fn is_local(host: &str) -> bool {
    let Ok(address) = host.parse::<IpAddr>() else { return false };
    let any = match address {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    // The port does not matter.
    let connected = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    connected.is_ok_and(|from| from.ip() == address)
}
