//! Answers derived by hand, and what holds on any machine.

use proptest::prelude::*;

use super::super::fixtures::{cpus, machine, threaded};
use super::*;

fn text(shares: &[CpuShare]) -> Vec<String> {
    shares.iter().map(|share| share.cpus.to_string()).collect()
}

fn near(sets: &[&str]) -> Vec<CpuSet> {
    sets.iter().map(|set| cpus(set)).collect()
}

#[test]
fn three_slices_get_a_cache_each() {
    let topology = machine(&[("0-23", &["0-7", "8-15", "16-23"])]);
    let shares = among_slices(&topology, &cpus("0-23"), &[2, 2, 2]);
    assert_eq!(text(&shares), ["0-7", "8-15", "16-23"]);
    assert_eq!(shares.iter().map(|share| share.l3.clone()).collect::<Vec<_>>(), [[0], [1], [2]]);
    assert!(shares.iter().all(|share| !share.shared && share.memory_nodes == cpus("0")));
    assert_eq!(text(&among_gpus(&topology, &near(&["0-23"; 3]))), ["0-7", "8-15", "16-23"]);
}

#[test]
fn slices_get_cpus_by_their_compute_slices_and_at_least_a_core() {
    let topology = machine(&[("0-13", &["0-13"])]);
    let shares = |cpus_: &str, weights: &[u32]| text(&among_slices(&topology, &cpus(cpus_), weights));
    assert_eq!(shares("0-13", &[4, 2, 1]), ["0-7", "8-11", "12-13"]);
    // 3.43, 3.43 and 1.14 of 8: the first of the two with the larger remainder gets the core too many.
    assert_eq!(shares("0-7", &[3, 3, 1]), ["0-3", "4-6", "7"]);
    assert_eq!(shares("0-3", &[6, 1]), ["0-2", "3"]);
    assert_eq!(shares("0-2", &[100, 1, 1]), ["0", "1", "2"]);
    assert_eq!(
        [
            compute_slices("3g.71gb"),
            compute_slices("1c.3g.71gb"),
            compute_slices("1g.18gb+me"),
            compute_slices("")
        ],
        [3, 1, 1, 1]
    );
}

#[test]
fn two_sockets_in_four_clusters_each() {
    // SNC-4: eight nodes of four cores; a GPU near each of nodes 0, 2, 4 and 6, and a second one near node 0.
    let nodes = ["0-3", "4-7", "8-11", "12-15", "16-19", "20-23", "24-27", "28-31"];
    let topology =
        machine(&nodes.map(|node| (node, std::slice::from_ref(Box::leak(Box::new(node))) as &[&str])));
    let shares = among_gpus(&topology, &near(&["0-3", "8-11", "16-19", "24-27", "0-3"]));
    assert_eq!(text(&shares), ["0-1", "8-11", "16-19", "24-27", "2-3"]);
    assert_eq!(shares[3].memory_nodes, cpus("6"));
    assert_eq!(left_over(&topology, &shares), cpus("4-7,12-15,20-23,28-31"));
}

#[test]
fn hardware_threads_of_a_core_stay_together() {
    // Eight cores, threads 0 and 8, 1 and 9, and so on; two caches of four cores.
    let topology = threaded(&[("0-15", &["0-3,8-11", "4-7,12-15"])], &|cpu| vec![cpu % 8, cpu % 8 + 8]);
    assert_eq!(text(&among_gpus(&topology, &near(&["0-15"; 2]))), ["0-3,8-11", "4-7,12-15"]);
    assert_eq!(text(&among_gpus(&topology, &near(&["0-15"; 3]))), ["0-2,8-10", "3-5,11-13", "6-7,14-15"]);
}

#[test]
fn the_core_too_many_goes_where_a_cache_has_one_more() {
    let topology = machine(&[("0-12", &["0-3", "4-8", "9-12"])]);
    assert_eq!(text(&among_gpus(&topology, &near(&["0-12"; 3]))), ["0-3", "4-8", "9-12"]);
}

#[test]
fn more_gpus_than_cores_share_and_it_is_said() {
    // As a DGX-2 of which two cores a socket may be used.
    let topology = machine(&[("0-1", &["0-1"]), ("24-25", &["24-25"])]);
    let all: Vec<&str> = (0..16).map(|gpu| if gpu < 8 { "0-1" } else { "24-25" }).collect();
    let shares = among_gpus(&topology, &near(&all));
    assert_eq!(text(&shares).join(" "), "0 0 0 0 1 1 1 1 24 24 24 24 25 25 25 25");
    assert!(shares.iter().all(|share| share.shared));
    assert_eq!((shares[0].memory_nodes.clone(), shares[15].memory_nodes.clone()), (cpus("0"), cpus("1")));
}

#[test]
fn who_may_go_elsewhere_leaves_the_scarce_ones_theirs() {
    // Two nodes of four; one GPU near node 0, one of unknown place.
    let topology = machine(&[("0-3", &["0-3"]), ("4-7", &["4-7"])]);
    assert_eq!(text(&among_gpus(&topology, &near(&["0-7", "0-3"]))), ["4-7", "0-3"]);
    assert_eq!(
        text(&among_gpus(&topology, &near(&["0-7", "0-7", "0-7", "0-3"]))),
        ["2-3", "4-5", "6-7", "0-1"]
    );
}

#[test]
fn a_node_without_memory_is_given_that_of_its_package() {
    let mut topology = machine(&[("0-3", &["0-3"]), ("4-7", &["4-7"])]);
    topology.numa_nodes[0].memory_bytes = 0;
    let of = |topology: &Topology| among_gpus(topology, &near(&["0-3"]))[0].memory_nodes.clone();
    assert_eq!(of(&topology), cpus("1"), "any");
    topology.numa_nodes.push(NumaNode {
        index: 2,
        memory_bytes: 1 << 30,
        package: Some(0),
        ..NumaNode::default()
    });
    assert_eq!(of(&topology), cpus("1"), "never memory without CPUs, as that of a GPU");
    topology.numa_nodes[1].package = Some(0);
    assert_eq!(of(&topology), cpus("1"));
}

#[test]
fn nothing_to_divide_is_no_fault() {
    let empty = Topology::default();
    assert_eq!(text(&among_gpus(&empty, &near(&["", "0-3"]))), ["", ""]);
    assert!(among_gpus(&empty, &[]).is_empty() && among_slices(&empty, &cpus("0-3"), &[]).is_empty());
    assert_eq!(text(&among_slices(&empty, &cpus("0-3"), &[1, 1])), ["0-1", "2-3"], "of unknown core");
}

prop_compose! {
    /// Nodes of some caches of some cores of one or two threads, numbered as Linux does: second threads last.
    fn any_machine()(
        nodes in prop::collection::vec(prop::collection::vec(1u32..9, 1..4), 1..4),
        threads in 1u32..3,
    ) -> Topology {
        let cores: u32 = nodes.iter().flatten().sum();
        let with_threads = |first: u32, last: u32| match threads {
            1 => format!("{first}-{last}"),
            _ => format!("{first}-{last},{}-{}", first + cores, last + cores),
        };
        let mut next = 0;
        let mut described: Vec<(String, Vec<String>)> = Vec::new();
        for caches in &nodes {
            let first = next;
            let mut groups = Vec::new();
            for size in caches {
                groups.push(with_threads(next, next + size - 1));
                next += size;
            }
            described.push((with_threads(first, next - 1), groups));
        }
        let groups: Vec<Vec<&str>> =
            described.iter().map(|(_, groups)| groups.iter().map(String::as_str).collect()).collect();
        let nodes: Vec<(&str, &[&str])> =
            described.iter().zip(&groups).map(|((node, _), groups)| (node.as_str(), groups.as_slice())).collect();
        threaded(&nodes, &|cpu| (0..threads).map(|thread| cpu % cores + thread * cores).collect())
    }
}

proptest! {
    #[test]
    fn shares_are_fair_on_any_machine(topology in any_machine(), choices in prop::collection::vec(0usize..4, 1..20)) {
        // Near one of the nodes, or, past the last, near all as in a virtual machine.
        let near: Vec<CpuSet> = choices.iter().map(|choice| {
            topology.numa_nodes.get(*choice).map_or(topology.cpus.clone(), |node| node.cpus.clone())
        }).collect();
        let shares = among_gpus(&topology, &near);
        prop_assert_eq!(&shares, &among_gpus(&topology, &near));
        let mut given = CpuSet::default();
        for (share, near) in shares.iter().zip(&near) {
            prop_assert!(!share.cpus.is_empty() && share.cpus.is_within(near));
            prop_assert!(topology.cores.iter().all(|core| core.is_within(&share.cpus) || core.and(&share.cpus).is_empty()));
            prop_assert!(share.shared || given.and(&share.cpus).is_empty());
            given = given.or(&share.cpus);
        }
        let some_near = near.iter().fold(CpuSet::default(), |all, near| all.or(near));
        let enough = |near_: &CpuSet| {
            cores(&topology, near_).len() >= near.iter().filter(|of| !of.and(near_).is_empty()).count()
        };
        if enough(&some_near) && topology.numa_nodes.iter().all(|node| enough(&node.cpus)) {
            prop_assert!(shares.iter().all(|share| !share.shared));
            prop_assert_eq!(&given, &some_near, "no CPU is lost");
        }
        for (at, share) in shares.iter().enumerate().filter(|(_, share)| !share.shared) {
            for (other, _) in shares.iter().enumerate().filter(|(other, share)| !share.shared && near[*other] == near[at]) {
                let size = |at: usize| cores(&topology, &shares[at].cpus).len();
                prop_assert!(size(at).abs_diff(size(other)) <= 1);
            }
            prop_assert_eq!(&share.memory_nodes, &topology.numa_nodes.iter()
                .filter(|node| !node.cpus.and(&share.cpus).is_empty()).map(|node| node.index).collect::<CpuSet>());
        }
    }

    #[test]
    fn slices_are_fair_on_any_machine(topology in any_machine(), weights in prop::collection::vec(1u32..8, 1..8)) {
        let shares = among_slices(&topology, &topology.cpus, &weights);
        let all = shares.iter().fold(CpuSet::default(), |all, share| all.or(&share.cpus));
        prop_assert_eq!(&all, &topology.cpus);
        let count = topology.cores.len();
        if count >= weights.len() {
            prop_assert_eq!(shares.iter().map(|share| share.cpus.len()).sum::<usize>(), topology.cpus.len());
            for (share, weight) in shares.iter().zip(&weights) {
                let ideal = f64::from(*weight) * count as f64 / f64::from(weights.iter().sum::<u32>());
                let size = cores(&topology, &share.cpus).len() as f64;
                // A core is the least; who has more gives it.
                prop_assert!(size == 1.0 || size - ideal < 1.0, "{size} of {ideal}");
            }
        }
    }
}
