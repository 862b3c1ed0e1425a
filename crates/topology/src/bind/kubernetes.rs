//! Kubernetes: what the kubelet can be told, which is not the share of each GPU, and what a pod must ask for.

use super::{comment, put, why};
use crate::map::Map;
use model::cpus::CpuSet;

/// The settings.
pub fn lines(out: &mut String, map: &Map) {
    let nodes = map.topology.numa_nodes.iter().filter(|node| !node.cpus.is_empty()).count();
    let told = map.gpus.iter().all(|gpu| gpu.place.numa_node.is_some());
    comment(
        out,
        "Kubernetes cannot be told which CPUs belong to which GPU: the kubelet itself picks CPUs for a pod, on",
    );
    comment(
        out,
        "the NUMA node that the device plugin names for its GPU, whichever are free. What keeps it fair is that",
    );
    comment(
        out,
        "a pod asks for as many whole CPUs a GPU as the share has. It does so alone for pods of the class",
    );
    comment(out, "Guaranteed: requests equal to limits, CPUs a whole number, in every container.");
    if !told {
        comment(
            out,
            "This machine does not tell the NUMA node of every GPU: the kubelet has nothing to align them by.",
        );
    }
    put(out, format_args!(""));
    comment(
        out,
        "KubeletConfiguration. After a change of cpuManagerPolicy: drain the node, stop the kubelet, remove",
    );
    comment(out, "/var/lib/kubelet/cpu_manager_state, start it.");
    put(out, format_args!("apiVersion: kubelet.config.k8s.io/v1beta1"));
    put(out, format_args!("kind: KubeletConfiguration"));
    put(out, format_args!("cpuManagerPolicy: static"));
    put(out, format_args!("cpuManagerPolicyOptions:"));
    comment(out, "  hardware threads of a core stay together; a request must then be a multiple of them");
    put(out, format_args!("  full-pcpus-only: \"true\""));
    comment(
        out,
        "  with Kubernetes 1.32 and later, and its feature gate, CPUs of one last-level cache are preferred:",
    );
    comment(out, "  prefer-align-cpus-by-uncorecache: \"true\"");
    if told && nodes > 1 && within_a_node(map) {
        comment(
            out,
            "a pod that cannot have its CPUs and GPU on one NUMA node is refused; best-effort lets it run",
        );
        put(out, format_args!("topologyManagerPolicy: single-numa-node"));
    } else {
        comment(out, "single-numa-node would refuse pods, or has nothing to align, on this machine");
        put(out, format_args!("topologyManagerPolicy: best-effort"));
    }
    put(out, format_args!("topologyManagerScope: pod"));
    comment(
        out,
        "the static policy wants some CPUs for the system, which no pod gets then: a core, near no GPU if there is one",
    );
    let reserved = reserved(map);
    put(out, format_args!("reservedSystemCPUs: \"{reserved}\""));
    for taker in map.takers() {
        put(out, format_args!(""));
        why(out, &taker);
        let left = taker.share().cpus.without(&reserved).len();
        comment(out, &format!("share: CPUs {}; a pod with it asks for at most", taker.share().cpus));
        let resource = match taker.slice {
            Some(slice) => format!("nvidia.com/mig-{}", slice.profile.replace('+', ".")),
            None => "nvidia.com/gpu".to_owned(),
        };
        if taker.slice.is_some() {
            comment(
                out,
                "(the resource's name with the device plugin's strategy `mixed`; with `single` nvidia.com/gpu)",
            );
        }
        if left == 0 || taker.share().shared {
            comment(out, &format!("{resource}: 1 and less than a core: too few for CPUs of its own"));
            continue;
        }
        comment(out, &format!("resources: {{ limits: {{ {resource}: 1, cpu: {left} }} }}"));
    }
}

/// Whether each share is on one NUMA node.
fn within_a_node(map: &Map) -> bool {
    let within = |cpus: &CpuSet| map.topology.numa_nodes.iter().any(|node| cpus.is_within(&node.cpus));
    map.takers().iter().all(|taker| within(&taker.share().cpus))
}

/// CPUs for the system: the first core, of those near no GPU if there are such. No more than one: what is reserved is
/// lost to every pod.
fn reserved(map: &Map) -> CpuSet {
    let first = map.left_over.iter().chain(map.topology.cpus.iter()).next();
    let core = map.topology.cores.iter().find(|core| first.is_some_and(|first| core.contains(first)));
    core.cloned().unwrap_or_else(|| first.into_iter().collect())
}
