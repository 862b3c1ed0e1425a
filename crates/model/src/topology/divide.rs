//! Fair division of CPUs among the GPUs near them, or among the MIG slices of a GPU. Pure calculations on the model.
//!
//! Invariants: A share contains only CPUs near its GPU. The hardware threads of a core stay together. Shares do not
//! overlap unless there are fewer cores than GPUs. Shares with the same weight and the same near CPUs differ by at
//! most one core. A share is a run of cores in the order of NUMA nodes and last-level caches, and the shares with an
//! additional core are chosen so that runs end where caches end. Every CPU near a GPU belongs to a share.

use serde::Serialize;

use super::place::{self, GpuPlacement};
use crate::cpus::CpuSet;
use crate::topology::{NumaNode, Topology};

/// Cost of a transition to another NUMA node, relative to the cost 1 of a transition to another cache.
const NODE: usize = 1000;

/// CPU share of a GPU or MIG slice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CpuShare {
    pub cpus: CpuSet,
    /// NUMA nodes with the memory near these CPUs.
    pub memory_nodes: CpuSet,
    /// Last-level caches of these CPUs, by number.
    pub l3: Vec<u32>,
    /// True if another share contains some of these CPUs too, because there are not enough cores.
    pub shared: bool,
}

/// Returns the placements and CPU shares of all GPUs, by PCI address.
pub fn placed(topology: &Topology) -> Vec<(GpuPlacement, CpuShare)> {
    let places = place::gpus(topology);
    let near: Vec<_> = places.iter().map(|place| place.cpus.clone()).collect();
    let shares = among_gpus(topology, &near);
    places.into_iter().zip(shares).collect()
}

/// Returns the shares of GPUs with these near CPUs, in the given order.
pub fn among_gpus(topology: &Topology, near: &[CpuSet]) -> Vec<CpuShare> {
    let mut groups: Vec<NearGroup> = Vec::new();
    for (taker, cpus) in near.iter().enumerate() {
        match groups.iter_mut().find(|group| group.near == *cpus) {
            Some(group) => group.takers.push(taker),
            None => groups.push(NearGroup { near: cpus.clone(), takers: vec![taker] }),
        }
    }
    let mut free = topology.cpus.clone();
    let mut given = vec![CpuSet::default(); near.len()];
    while let Some(at) = next(topology, &groups, &free) {
        let group = groups.swap_remove(at);
        let mut cores = cores(topology, &group.near.and(&free));
        match group.fair(topology, &groups, &free, cores.len()) {
            // All near cores are already allocated, so the group shares them.
            0 => cores = self::cores(topology, &group.near.and(&topology.cpus)),
            take => cores.truncate(take),
        }
        let runs = split(topology, &cores, &vec![1; group.takers.len()]);
        for (taker, cpus) in group.takers.into_iter().zip(runs) {
            free = free.without(&cpus);
            given[taker] = cpus;
        }
    }
    shares(topology, given)
}

/// Returns the shares of the MIG slices of a GPU that has this CPU share. The weights are the numbers of compute
/// slices.
pub fn among_slices(topology: &Topology, cpus: &CpuSet, weights: &[u32]) -> Vec<CpuShare> {
    shares(topology, split(topology, &cores(topology, cpus), weights))
}

/// Returns the CPUs that are near no GPU and therefore in no share.
pub fn left_over(topology: &Topology, shares: &[CpuShare]) -> CpuSet {
    shares.iter().fold(topology.cpus.clone(), |left, share| left.without(&share.cpus))
}

/// Returns the number of compute slices of a MIG profile, such as 3 for `3g.71gb` and 1 for `1c.3g.71gb`; 1 if the
/// profile does not contain it.
pub fn compute_slices(profile: &str) -> u32 {
    let first = profile.split('.').next().unwrap_or_default();
    first.strip_suffix(['g', 'c']).and_then(|number| number.parse().ok()).filter(|n| *n > 0).unwrap_or(1)
}

/// GPUs with the same near CPUs.
struct NearGroup {
    near: CpuSet,
    takers: Vec<usize>,
}

impl NearGroup {
    /// Returns the fair number of free near cores for the group, if groups with other near CPUs compete for some of
    /// them.
    fn fair(&self, topology: &Topology, others: &[NearGroup], free: &CpuSet, mine: usize) -> usize {
        let (mut all, mut takers) = (self.near.clone(), self.takers.len());
        let mut others: Vec<&NearGroup> = others.iter().collect();
        // Includes groups that only compete with a competing group.
        while let Some(at) = others.iter().position(|other| !other.near.and(&all).and(free).is_empty()) {
            let other = others.swap_remove(at);
            all = all.or(&other.near);
            takers += other.takers.len();
        }
        if takers == self.takers.len() {
            return mine;
        }
        let all = cores(topology, &all.and(free)).len();
        ((all * self.takers.len() + takers / 2) / takers).max(self.takers.len()).min(mine)
    }
}

/// Returns the next group to serve. Groups that contain all near CPUs of another group come last. Among the remaining
/// groups, the group with the fewest free cores per GPU comes first.
fn next(topology: &Topology, groups: &[NearGroup], free: &CpuSet) -> Option<usize> {
    let wide = |at: usize| {
        let inside =
            |other: &NearGroup| other.near != groups[at].near && other.near.is_within(&groups[at].near);
        groups.iter().any(inside)
    };
    let scarce = |group: &NearGroup| {
        let cores = cores(topology, &group.near.and(free)).len();
        (cores * 1_000_000 / group.takers.len(), group.takers.first().copied())
    };
    (0..groups.len()).min_by_key(|at| (wide(*at), scarce(&groups[*at])))
}

/// Returns the cores among these CPUs, in the order of NUMA nodes, last-level caches and first CPUs. A CPU whose core
/// is unknown counts as a core.
fn cores(topology: &Topology, cpus: &CpuSet) -> Vec<CpuSet> {
    let mut cores: Vec<CpuSet> = topology.cores.iter().map(|core| core.and(cpus)).collect();
    let known = cores.iter().fold(CpuSet::default(), |known, core| known.or(core));
    cores.extend(cpus.without(&known).iter().map(|cpu| CpuSet::from_iter([cpu])));
    cores.retain(|core| !core.is_empty());
    cores.sort_by_cached_key(|core| (node_at(topology, core), l3_at(topology, core), core.iter().next()));
    cores
}

fn node_at(topology: &Topology, core: &CpuSet) -> Option<usize> {
    topology.numa_nodes.iter().position(|node| !node.cpus.and(core).is_empty())
}

fn l3_at(topology: &Topology, core: &CpuSet) -> Option<usize> {
    topology.l3_groups.iter().position(|group| !group.cpus.and(core).is_empty())
}

/// Divides cores into runs with sizes by weight. If there are fewer cores than shares, the shares overlap.
fn split(topology: &Topology, cores: &[CpuSet], weights: &[u32]) -> Vec<CpuSet> {
    let takers = weights.len();
    if cores.len() < takers {
        return (0..takers)
            .map(|taker| cores.get(taker * cores.len() / takers).cloned().unwrap_or_default())
            .collect();
    }
    let mut rest = cores.iter();
    let sizes = match weights.windows(2).all(|pair| pair[0] == pair[1]) {
        true => even(&costs(topology, cores), takers),
        false => weighted(cores.len(), weights),
    };
    let run = |size| rest.by_ref().take(size).fold(CpuSet::default(), |run, core| run.or(core));
    sizes.into_iter().map(run).collect()
}

/// Returns the cost of the transition from the first core to every core, which depends on the NUMA nodes and caches in
/// between.
fn costs(topology: &Topology, cores: &[CpuSet]) -> Vec<usize> {
    let places: Vec<_> = cores.iter().map(|core| (node_at(topology, core), l3_at(topology, core))).collect();
    let mut sum = 0;
    let mut costs = vec![0; cores.len().min(1)];
    for pair in places.windows(2) {
        sum += if pair[0].0 != pair[1].0 { NODE } else { usize::from(pair[0].1 != pair[1].1) };
        costs.push(sum);
    }
    costs
}

/// Returns equal sizes. The shares with an additional core are chosen so that runs cross as few caches as possible;
/// otherwise the first shares get it.
fn even(costs: &[usize], takers: usize) -> Vec<usize> {
    if takers == 0 {
        return Vec::new();
    }
    let (base, more) = (costs.len() / takers, costs.len() % takers);
    let run = |from: usize, size: usize| match size {
        0 => 0,
        size => costs[from + size - 1] - costs[from],
    };
    // best[taker][given]: minimum cost of the runs from this share on, if `given` earlier shares got an additional
    // core.
    let impossible = usize::MAX / 2;
    let mut best = vec![vec![impossible; more + 2]; takers + 1];
    best[takers][more] = 0;
    for taker in (0..takers).rev() {
        for given in 0..=more.min(taker) {
            let from = taker * base + given;
            let without = if from + base <= costs.len() { run(from, base) } else { impossible };
            let with =
                if given < more && from + base < costs.len() { run(from, base + 1) } else { impossible };
            best[taker][given] = (without + best[taker + 1][given]).min(with + best[taker + 1][given + 1]);
        }
    }
    let mut given = 0;
    let mut sizes = Vec::with_capacity(takers);
    for taker in 0..takers {
        let from = taker * base + given;
        let takes_more =
            given < more && run(from, base + 1) + best[taker + 1][given + 1] == best[taker][given];
        given += usize::from(takes_more);
        sizes.push(base + usize::from(takes_more));
    }
    sizes
}

/// Returns sizes by weight (largest remainders), at least one core per share. There are at least as many cores as
/// shares.
fn weighted(cores: usize, weights: &[u32]) -> Vec<usize> {
    let all: f64 = weights.iter().map(|weight| f64::from((*weight).max(1))).sum();
    let ideal: Vec<f64> =
        weights.iter().map(|weight| f64::from((*weight).max(1)) * cores as f64 / all).collect();
    let mut sizes: Vec<usize> = ideal.iter().map(|ideal| (ideal.floor() as usize).max(1)).collect();
    let by = |a: f64, b: f64| a.total_cmp(&b);
    while sizes.iter().sum::<usize>() > cores {
        let over = |at: &usize| sizes[*at] as f64 - ideal[*at];
        let large = (0..sizes.len()).filter(|at| sizes[*at] > 1);
        let Some(at) = large.max_by(|a, b| by(over(a), over(b))) else { break };
        sizes[at] -= 1;
    }
    while sizes.iter().sum::<usize>() < cores {
        let over = |at: &usize| sizes[*at] as f64 - ideal[*at];
        let Some(at) = (0..sizes.len()).min_by(|a, b| by(over(a), over(b))) else { break };
        sizes[at] += 1;
    }
    sizes
}

/// Creates the shares from their sets of CPUs.
fn shares(topology: &Topology, given: Vec<CpuSet>) -> Vec<CpuShare> {
    let shared = |at: usize| {
        given.iter().enumerate().any(|(other, cpus)| other != at && !cpus.and(&given[at]).is_empty())
    };
    let shared: Vec<bool> = (0..given.len()).map(shared).collect();
    let share = |(cpus, shared): (CpuSet, bool)| CpuShare {
        memory_nodes: memory_nodes(topology, &cpus),
        l3: place::l3_of(topology, &cpus),
        shared,
        cpus,
    };
    given.into_iter().zip(shared).map(share).collect()
}

/// Returns the NUMA nodes with memory near these CPUs: the nodes of the CPUs, or without memory there the nodes of
/// their packages, or else all nodes with CPUs. Nodes with only memory are left to programs that request them, because
/// on some machines they contain GPU memory.
fn memory_nodes(topology: &Topology, cpus: &CpuSet) -> CpuSet {
    let of = |wanted: &dyn Fn(&NumaNode) -> bool| -> CpuSet {
        let nodes = topology.numa_nodes.iter().filter(|node| node.memory_bytes > 0 && !node.cpus.is_empty());
        nodes.filter(|node| wanted(node)).map(|node| node.index).collect()
    };
    let own = of(&|node| !node.cpus.and(cpus).is_empty());
    if !own.is_empty() {
        return own;
    }
    let packages = topology.packages.iter().filter(|package| !package.cpus.and(cpus).is_empty());
    let packages: Vec<u32> = packages.map(|package| package.index).collect();
    let near = of(&|node| node.package.is_some_and(|package| packages.contains(&package)));
    if near.is_empty() { of(&|_| true) } else { near }
}

#[cfg(test)]
mod tests;
