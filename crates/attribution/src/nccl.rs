//! What a job's NCCL says over its RAS socket: counts of collectives by rank. Reading an answer and joining it with the
//! processes on the GPUs are pure; [`questions`] decides when NCCL may be asked. `docs/nccl.md` has the reasons.

pub mod questions;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use model::catalog::Gpu;
use model::clock::Mono;

/// What the client says first, and waits for a line of reply each: who it is, how long NCCL may collect, in seconds, and
/// the format. A NCCL that must not be asked refuses the last.
pub const GREETINGS: [&str; 3] = ["CLIENT PROTOCOL 2\n", "TIMEOUT 2\n", "SET FORMAT json\n"];
/// The question itself, which ends with the connection. Only this makes NCCL collect.
pub const QUESTION: &str = "VERBOSE STATUS\n";
/// Longest answer in bytes: 600 bytes a rank, of thousands of ranks.
pub const MOST_BYTES: usize = 4 << 20;

/// First release with answers in JSON. Polling crashed jobs with earlier ones (NVIDIA/nccl #1669, #1718, #1762).
const FIRST: NcclVersion = NcclVersion(2, 28, 7);
/// First release that answers safely while a rank is missing and there are several communicators (#1762).
const SAFE: NcclVersion = NcclVersion(2, 29, 2);

/// A release of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NcclVersion(pub u32, pub u32, pub u32);

impl NcclVersion {
    /// Reads `2.28.9`, also with a suffix as `2.28.9+cuda13.0`.
    pub fn parse(text: &str) -> Option<NcclVersion> {
        let mut parts = text.splitn(3, '.');
        let (major, minor) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let patch = parts.next()?;
        let digits = patch.find(|c: char| !c.is_ascii_digit()).unwrap_or(patch.len());
        Some(NcclVersion(major, minor, patch.get(..digits)?.parse().ok()?))
    }
}

/// A line of reply to one of [`GREETINGS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Go on.
    Accepted,
    /// NCCL before 2.28.7: do not ask.
    Refused,
    /// Not NCCL.
    Foreign,
}

/// Reads the reply to one of [`GREETINGS`].
pub fn reply(greeting: &str, line: &str) -> Reply {
    let is_first = GREETINGS.first() == Some(&greeting);
    let is_format = GREETINGS.last() == Some(&greeting);
    match line {
        _ if is_first && line.starts_with("SERVER PROTOCOL ") => Reply::Accepted,
        "OK" if !is_first => Reply::Accepted,
        _ if is_format && line.starts_with("ERROR") => Reply::Refused,
        _ => Reply::Foreign,
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// NCCL's release.
    pub version: NcclVersion,
    /// Communicators of the job.
    pub communicators: usize,
    /// The job's ranks.
    pub ranks: Vec<RankCounts>,
}

impl Status {
    /// Whether its NCCL must not be asked.
    pub fn is_old(&self) -> bool {
        self.version < FIRST
    }
}

/// What one process has with one GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct RankCounts {
    /// Address of its host.
    pub host: String,
    /// Its process, as it sees itself.
    pub pid: u32,
    /// NVML's index of its GPU, as the process sees the GPUs.
    pub nvml_dev: u32,
    /// Its number in its largest communicator.
    pub rank: u32,
    /// Collectives that it launched there.
    pub collectives: u64,
    /// Collectives that it launched in all communicators.
    pub launched: u64,
    /// Whether peers have launched collectives that it has not, and it none that a peer has not. A rank that both lags
    /// and leads waits itself.
    pub behind: bool,
}

#[derive(Deserialize)]
struct RasDocument {
    nccl_version: String,
    communicators: Vec<Communicator>,
}

#[derive(Deserialize)]
struct Communicator {
    size: u64,
    ranks: Vec<CommunicatorRank>,
}

#[derive(Deserialize)]
struct CommunicatorRank {
    rank: u32,
    host: String,
    pid: u32,
    nvml_dev: u32,
    collective_counts: Counts,
}

/// The kinds that each rank of a communicator launches as often as the others. Other kinds, if there are, do not count.
#[derive(Deserialize)]
#[serde(default, rename_all = "PascalCase")]
#[derive(Default)]
struct Counts {
    broadcast: u64,
    reduce: u64,
    all_gather: u64,
    reduce_scatter: u64,
    all_reduce: u64,
}

impl Counts {
    fn sum(&self) -> u64 {
        [self.broadcast, self.reduce, self.all_gather, self.reduce_scatter, self.all_reduce]
            .into_iter()
            .fold(0, u64::saturating_add)
    }
}

/// A rank over all communicators, while they are read.
#[derive(Default)]
struct Sums {
    /// Size of the largest communicator, collectives there, and rank there.
    largest: (u64, u64, u32),
    launched: u64,
    lags: bool,
    leads: bool,
}

/// Reads an answer; `None` if it is none.
pub fn status(bytes: &[u8]) -> Option<Status> {
    let document: RasDocument = serde_json::from_slice(bytes).ok()?;
    let version = NcclVersion::parse(&document.nccl_version)?;
    let mut all: BTreeMap<(&str, u32, u32), Sums> = BTreeMap::new();
    for communicator in &document.communicators {
        let sums = || communicator.ranks.iter().map(|rank| rank.collective_counts.sum());
        let (least, most) = (sums().min().unwrap_or(0), sums().max().unwrap_or(0));
        for (rank, sum) in communicator.ranks.iter().zip(sums()) {
            let of = all.entry((&rank.host, rank.pid, rank.nvml_dev)).or_default();
            of.largest = of.largest.max((communicator.size, sum, rank.rank));
            of.launched = of.launched.saturating_add(sum);
            of.lags |= sum < most;
            of.leads |= sum > least;
        }
    }
    let rank = |((host, pid, nvml_dev), of): ((&str, u32, u32), Sums)| RankCounts {
        host: host.to_owned(),
        pid,
        nvml_dev,
        rank: of.largest.2,
        collectives: of.largest.1,
        launched: of.launched,
        behind: of.lags && !of.leads,
    };
    let ranks = all.into_iter().map(rank).collect();
    Some(Status { version, communicators: document.communicators.len(), ranks })
}

/// An owner's processes at one place.
#[derive(Clone, Debug, PartialEq)]
pub struct RankPlace {
    /// The owner's identity.
    pub owner: Arc<str>,
    /// The GPU.
    pub gpu: Gpu,
    /// MIG GPU instance, if it is on one.
    pub gpu_instance: Option<u32>,
    /// Processes, as the host sees them.
    pub pids: Vec<u32>,
    /// The end of the newest GPM window in which its processes, alone there, computed. `None` where that is not seen.
    pub worked: Option<Mono>,
    /// Since when its kernels have run and computed nothing, after work.
    pub waits_since: Option<Mono>,
}

/// Joins ranks on this node with the places of their processes: process id on the host, place and rank. `own_pids` has the
/// processes by the id that each has in its own PID namespace. A rank that can be of several processes or places has none.
pub fn join<'a>(
    ranks: &'a [RankCounts],
    places: &'a [RankPlace],
    own_pids: &BTreeMap<u32, Vec<u32>>,
    is_local: impl Fn(&str) -> bool,
) -> Vec<(u32, &'a RankPlace, &'a RankCounts)> {
    let mut known = Vec::new();
    for rank in ranks {
        let Some([pid]) = own_pids.get(&rank.pid).map(Vec::as_slice) else { continue };
        if is_local(&rank.host) {
            let here: Vec<&RankPlace> = places.iter().filter(|place| place.pids.contains(pid)).collect();
            known.push((*pid, here, rank));
        }
    }
    // A process that sees fewer GPUs than the host counts them otherwise.
    let same = known.iter().all(|(_, here, rank)| match here.as_slice() {
        [place] => place.gpu.gpu == rank.nvml_dev,
        _ => true,
    });
    let place = |here: Vec<&'a RankPlace>, rank: &RankCounts| match here.as_slice() {
        [place] => Some(*place),
        _ => {
            let mut of = here.into_iter().filter(|place| same && place.gpu.gpu == rank.nvml_dev);
            of.next().filter(|_| of.next().is_none())
        }
    };
    known.into_iter().filter_map(|(pid, here, rank)| Some((pid, place(here, rank)?, rank))).collect()
}

#[cfg(test)]
mod tests;
