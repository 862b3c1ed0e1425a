//! Counts of collectives by rank from the RAS socket of NCCL. Parsing an answer and joining it with the
//! processes on the GPUs are pure functions. [`questions`] decides when a query is safe. `docs/nccl.md` has the
//! reasons.

pub mod questions;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use model::catalog::Gpu;
use model::clock::Mono;

/// Lines that the client sends first, each of which is answered by a line: its protocol, the time in seconds
/// that NCCL may spend on collecting, and the format. An NCCL release that must not be queried refuses the last
/// line.
pub const GREETINGS: [&str; 3] = ["CLIENT PROTOCOL 2\n", "TIMEOUT 2\n", "SET FORMAT json\n"];
/// The query itself, which ends with the connection. Only this line makes NCCL collect.
pub const QUESTION: &str = "VERBOSE STATUS\n";
/// Maximum size of an answer in bytes, enough for thousands of ranks of 600 bytes.
pub const MOST_BYTES: usize = 4 << 20;

/// First release with answers in JSON. Querying earlier releases crashed jobs (NVIDIA/nccl #1669, #1718,
/// #1762).
const FIRST: NcclVersion = NcclVersion(2, 28, 7);
/// First release that answers safely while a rank is missing and there are several communicators (#1762).
const SAFE: NcclVersion = NcclVersion(2, 29, 2);

/// A release of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NcclVersion(pub u32, pub u32, pub u32);

impl NcclVersion {
    /// Parses `2.28.9`, optionally with a suffix as in `2.28.9+cuda13.0`.
    pub fn parse(text: &str) -> Option<NcclVersion> {
        let mut parts = text.splitn(3, '.');
        let (major, minor) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let patch = parts.next()?;
        let digits = patch.find(|c: char| !c.is_ascii_digit()).unwrap_or(patch.len());
        Some(NcclVersion(major, minor, patch.get(..digits)?.parse().ok()?))
    }
}

/// Meaning of the reply to one of the [`GREETINGS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The next line can be sent.
    Accepted,
    /// NCCL is older than 2.28.7 and must not be queried.
    Refused,
    /// The server is not NCCL.
    Foreign,
}

/// Classifies the reply to one of the [`GREETINGS`].
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

/// Parsed answer of a job's NCCL.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    pub version: NcclVersion,
    /// Number of communicators of the job.
    pub communicators: usize,
    /// Ranks of the job.
    pub ranks: Vec<RankCounts>,
}

impl Status {
    /// Returns whether this release must not be queried.
    pub fn is_old(&self) -> bool {
        self.version < FIRST
    }
}

/// Counts of one process on one GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct RankCounts {
    /// Address of the host.
    pub host: String,
    /// Process id in the PID namespace of the process.
    pub pid: u32,
    /// NVML index of the GPU, as the process counts the GPUs.
    pub nvml_dev: u32,
    /// Rank in the largest communicator of the process.
    pub rank: u32,
    /// Number of collectives launched in that communicator.
    pub collectives: u64,
    /// Number of collectives launched in all communicators.
    pub launched: u64,
    /// Whether peers have launched collectives that this rank has not, while this rank has launched none that a
    /// peer has not. A rank that both lags and leads is waiting itself.
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

/// Counts of the kinds that all ranks of a communicator launch equally often. Other kinds are ignored.
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

/// Totals of a rank over the communicators parsed so far.
#[derive(Default)]
struct Sums {
    /// Size of the largest communicator, number of collectives in it, and rank in it.
    largest: (u64, u64, u32),
    launched: u64,
    lags: bool,
    leads: bool,
}

/// Parses an answer. Returns `None` if it is invalid.
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

/// The processes of an owner on one GPU or GPU instance.
#[derive(Clone, Debug, PartialEq)]
pub struct RankPlace {
    /// Identity of the owner.
    pub owner: Arc<str>,
    /// GPU of the processes.
    pub gpu: Gpu,
    /// MIG GPU instance, if the processes run on one.
    pub gpu_instance: Option<u32>,
    /// Process ids on the host.
    pub pids: Vec<u32>,
    /// End of the newest GPM window in which the processes computed without other processes at this place.
    /// `None` if that cannot be measured.
    pub worked: Option<Mono>,
    /// Time since which kernels of the owner have been running without computing, after they had computed.
    pub waits_since: Option<Mono>,
}

/// Joins the ranks on this node with the places of their processes, as process id on the host, place and rank.
/// `own_pids` has the processes by the id in their own PID namespaces. A rank that matches several processes or
/// places is left out.
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
    // A process that can access only some of the host's GPUs counts them differently.
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
