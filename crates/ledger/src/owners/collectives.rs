//! NCCL's report on the ranks of every owner: the number of collectives, and the rank that the others wait for.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::accounts::AccountKey;
use crate::builder::Builder;
use model::catalog::{self as m, OwnedGpu};
use model::clock::Mono;
use model::owners::{CollectivesAnswer, OwnerRank};

/// Time for which an answer is served: three intervals of the regular queries, which run once a minute.
const SERVED: Duration = Duration::from_secs(180);
/// Time for which an answer can name the rank that is behind.
const NEW: Duration = Duration::from_secs(60);
/// Time without a change in the counts after which the job has halted. Ranks of a running job differ by the
/// collectives in flight.
const UNCHANGED: Duration = Duration::from_secs(10);
/// Waiting time of kernels after which nothing was in flight.
const WAITED: Duration = Duration::from_secs(30);

/// Newest answers by owner.
#[derive(Default)]
pub(crate) struct Collectives {
    owners: HashMap<Arc<str>, Answered>,
}

struct Answered {
    taken: Mono,
    /// Time since which the counts are unchanged.
    since: Mono,
    ranks: Vec<OwnerRank>,
}

impl Answered {
    /// Returns the number of collectives that every process has launched. These counts stop when the job hangs.
    fn launched(&self) -> Vec<(u32, u64)> {
        let mut all: Vec<(u32, u64)> = self.ranks.iter().map(|rank| (rank.pid, rank.launched)).collect();
        all.sort_unstable();
        all
    }
}

impl Collectives {
    pub fn record(&mut self, answer: CollectivesAnswer) {
        let CollectivesAnswer { taken, ranks } = answer;
        self.owners.retain(|_, known| taken.since(known.taken) <= SERVED);
        let mut now: HashMap<Arc<str>, Answered> = HashMap::new();
        for rank in ranks {
            let of = now.entry(Arc::clone(&rank.owner));
            of.or_insert_with(|| Answered { taken, since: taken, ranks: Vec::new() }).ranks.push(rank);
        }
        for (owner, mut answered) in now {
            // An old answer proves nothing about the time in between, in which the job may have resumed.
            let before = self.owners.get(&owner).filter(|before| taken.since(before.taken) <= NEW);
            if let Some(before) = before.filter(|before| before.launched() == answered.launched()) {
                answered.since = before.since;
            }
            self.owners.insert(owner, answered);
        }
    }

    /// Publishes the series of an owner at the place of these processes, unless several of them are ranks.
    pub(super) fn publish(&self, b: &mut Builder<'_>, key: &AccountKey, pids: &[u32], now: Mono) {
        let Some(known) = self.owners.get(&key.owner).filter(|known| now.since(known.taken) <= SERVED) else {
            return;
        };
        let is_here = |rank: &&OwnerRank| {
            rank.gpu == key.gpu && rank.gpu_instance == key.place && pids.contains(&rank.pid)
        };
        let mut here = known.ranks.iter().filter(is_here);
        if let (Some(rank), None) = (here.next(), here.next()) {
            let entity = OwnedGpu::new(&key.gpu, key.place, &key.owner);
            b.add(&m::gpu_owner_nccl_rank, &entity, (), f64::from(rank.rank));
            b.add(&m::gpu_owner_nccl_collectives_total, &entity, (), rank.collectives as f64);
        }
    }

    /// Returns the GPU of the only rank on this node that is behind: the others have launched collectives that it has
    /// not, and nothing moves. Returns `None` unless NCCL reported this recently.
    pub fn fewest(&self, owner: &Arc<str>, now: Mono) -> Option<u32> {
        let known = self.owners.get(owner).filter(|known| now.since(known.taken) <= NEW)?;
        let waited = known.ranks.iter().all(|rank| rank.waited >= WAITED);
        if known.taken.since(known.since) < UNCHANGED && !waited {
            return None;
        }
        let mut behind = known.ranks.iter().filter(|rank| rank.behind);
        let (Some(rank), None) = (behind.next(), behind.next()) else { return None };
        Some(rank.gpu.gpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::catalog::Gpu;

    fn at(seconds: u64) -> Mono {
        Mono(seconds * 1_000_000_000)
    }

    fn rank(pid: u32, launched: u64, behind: bool, waited: u64) -> OwnerRank {
        OwnerRank {
            owner: "a".into(),
            gpu: Gpu { gpu: pid, uuid: "u".into() },
            gpu_instance: None,
            pid,
            rank: pid,
            collectives: launched,
            launched,
            behind,
            waited: Duration::from_secs(waited),
        }
    }

    /// Takes an answer in which process 2 lags by so much.
    fn lag(known: &mut Collectives, seconds: u64, launched: u64, lag: u64, waited: u64) {
        let ranks = vec![rank(1, launched, false, waited), rank(2, launched - lag, lag > 0, waited)];
        known.record(CollectivesAnswer { taken: at(seconds), ranks });
    }

    fn fewest(known: &Collectives, seconds: u64) -> Option<u32> {
        known.fewest(&"a".into(), at(seconds))
    }

    #[test]
    fn a_lag_counts_once_nothing_moves() {
        let mut known = Collectives::default();
        lag(&mut known, 100, 109, 1, 0);
        assert_eq!(fewest(&known, 100), None, "in flight");
        lag(&mut known, 130, 150, 2, 0);
        assert_eq!(fewest(&known, 130), None, "moves");
        lag(&mut known, 139, 150, 2, 0);
        assert_eq!(fewest(&known, 139), None, "9 s");
        lag(&mut known, 140, 150, 2, 0);
        assert_eq!(fewest(&known, 140), Some(2));
        assert_eq!((fewest(&known, 200), fewest(&known, 201)), (Some(2), None), "old");
        assert_eq!(known.fewest(&"b".into(), at(140)), None);
        lag(&mut known, 270, 150, 2, 0);
        assert_eq!(fewest(&known, 270), None, "the answer before was long before");
        lag(&mut known, 300, 150, 0, 0);
        assert_eq!(fewest(&known, 300), None, "equal");
    }

    #[test]
    fn one_answer_is_enough_where_kernels_have_waited_for_long() {
        let mut known = Collectives::default();
        lag(&mut known, 100, 109, 2, 29);
        assert_eq!(fewest(&known, 100), None);
        lag(&mut known, 101, 110, 2, 30);
        assert_eq!(fewest(&known, 101), Some(2));
    }

    #[test]
    fn of_two_that_are_behind_neither_is_named() {
        let mut known = Collectives::default();
        let ranks = vec![rank(1, 9, false, 60), rank(2, 7, true, 60), rank(3, 7, true, 60)];
        known.record(CollectivesAnswer { taken: at(100), ranks });
        assert_eq!(fewest(&known, 100), None);
    }
}
