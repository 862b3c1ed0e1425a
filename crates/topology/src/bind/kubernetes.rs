//! Kubernetes: settings of the kubelet, which are not the share of each GPU, and what a pod must ask for.

use super::{comment, comments, push_line, why};
use crate::map::Map;
use model::cpus::CpuSet;

const KUBELET: &str = r#"
# KubeletConfiguration. After a change of cpuManagerPolicy: drain the node, stop the kubelet, remove
# /var/lib/kubelet/cpu_manager_state, start it.
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
cpuManagerPolicyOptions:
#   hardware threads of a core stay together; a request must then be a multiple of them
  full-pcpus-only: "true"
#   with Kubernetes 1.32 and later, and its feature gate, CPUs of one last-level cache are preferred:
#   prefer-align-cpus-by-uncorecache: "true"
"#;

pub fn lines(out: &mut String, map: &Map) {
    let nodes = map.topology.numa_nodes.iter().filter(|node| !node.cpus.is_empty()).count();
    let nodes_known = map.gpus.iter().all(|gpu| gpu.place.numa_node.is_some());
    comments(
        out,
        "Kubernetes has no setting for which CPUs belong to which GPU: the kubelet itself picks CPUs for a pod, on\n\
         the NUMA node that the device plugin names for its GPU, whichever are free. What keeps it fair is that\n\
         a pod asks for as many whole CPUs a GPU as the share has. It does so alone for pods of the class\n\
         Guaranteed: requests equal to limits, CPUs a whole number, in every container.",
    );
    if !nodes_known {
        comment(
            out,
            "This machine does not tell the NUMA node of every GPU: the kubelet has nothing to align them by.",
        );
    }
    out.push_str(KUBELET);
    if nodes_known && nodes > 1 && within_a_node(map) {
        comment(
            out,
            "a pod that cannot have its CPUs and GPU on one NUMA node is refused; best-effort lets it run",
        );
        push_line(out, format_args!("topologyManagerPolicy: single-numa-node"));
    } else {
        comment(out, "single-numa-node would refuse pods, or has nothing to align, on this machine");
        push_line(out, format_args!("topologyManagerPolicy: best-effort"));
    }
    push_line(out, format_args!("topologyManagerScope: pod"));
    comment(
        out,
        "the static policy wants some CPUs for the system, which no pod gets then: a core, near no GPU if there is one",
    );
    let reserved = reserved(map);
    push_line(out, format_args!("reservedSystemCPUs: \"{reserved}\""));
    for holder in map.share_holders() {
        push_line(out, format_args!(""));
        why(out, &holder);
        let left = holder.share().cpus.without(&reserved).len();
        comment(out, &format!("share: CPUs {}; a pod with it asks for at most", holder.share().cpus));
        let resource = match holder.slice {
            Some(slice) => format!("nvidia.com/mig-{}", slice.device.profile.replace('+', ".")),
            None => "nvidia.com/gpu".to_owned(),
        };
        if holder.slice.is_some() {
            comment(
                out,
                "(the resource's name with the device plugin's strategy `mixed`; with `single` nvidia.com/gpu)",
            );
        }
        if left == 0 || holder.share().shared {
            comment(out, &format!("{resource}: 1 and less than a core: too few for CPUs of its own"));
            continue;
        }
        comment(out, &format!("resources: {{ limits: {{ {resource}: 1, cpu: {left} }} }}"));
    }
}

/// Whether each share is on one NUMA node.
fn within_a_node(map: &Map) -> bool {
    let within = |cpus: &CpuSet| map.topology.numa_nodes.iter().any(|node| cpus.is_within(&node.cpus));
    map.share_holders().iter().all(|holder| within(&holder.share().cpus))
}

/// CPUs for the system: the first core, of those near no GPU if there are such. No more than one: what is reserved is
/// lost to every pod.
fn reserved(map: &Map) -> CpuSet {
    let first = map.left_over.iter().chain(map.topology.cpus.iter()).next();
    let core = map.topology.cores.iter().find(|core| first.is_some_and(|first| core.contains(first)));
    core.cloned().unwrap_or_else(|| first.into_iter().collect())
}
