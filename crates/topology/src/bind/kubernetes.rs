//! Kubernetes: the settings of the kubelet and the resources that a pod must request. Kubernetes cannot assign specific
//! CPUs to a GPU.

use super::{comment, comments, push_line, why};
use crate::map::Map;
use model::cpus::CpuSet;

const KUBELET: &str = r#"
# KubeletConfiguration. After a change of cpuManagerPolicy, drain the node, stop the kubelet, remove
# /var/lib/kubelet/cpu_manager_state, and start the kubelet.
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
cpuManagerPolicyOptions:
#   keeps the hardware threads of a core together; a request must then be a multiple of the threads per core
  full-pcpus-only: "true"
#   prefers CPUs of one last-level cache (Kubernetes 1.32 and later, with its feature gate):
#   prefer-align-cpus-by-uncorecache: "true"
"#;

pub fn lines(out: &mut String, map: &Map) {
    let nodes = map.topology.numa_nodes.iter().filter(|node| !node.cpus.is_empty()).count();
    let nodes_known = map.gpus.iter().all(|gpu| gpu.place.numa_node.is_some());
    comments(
        out,
        "Kubernetes has no setting for which CPUs belong to which GPU. The kubelet picks free CPUs for a pod on\n\
         the NUMA node that the device plugin reports for its GPU. The division stays fair if every pod requests\n\
         as many whole CPUs per GPU as the share has. The kubelet assigns CPUs only to pods of the class\n\
         Guaranteed, in which every container has requests equal to its limits and a whole number of CPUs.",
    );
    if !nodes_known {
        comment(
            out,
            "This machine does not report the NUMA node of every GPU, so the kubelet cannot align CPUs with them.",
        );
    }
    out.push_str(KUBELET);
    if nodes_known && nodes > 1 && within_a_node(map) {
        comment(
            out,
            "rejects a pod whose CPUs and GPU do not fit on one NUMA node; best-effort would run it",
        );
        push_line(out, format_args!("topologyManagerPolicy: single-numa-node"));
    } else {
        comment(out, "on this machine single-numa-node would reject pods or would have no effect");
        push_line(out, format_args!("topologyManagerPolicy: best-effort"));
    }
    push_line(out, format_args!("topologyManagerScope: pod"));
    comment(
        out,
        "the static policy requires CPUs reserved for the system: here one core, if possible one near no GPU",
    );
    let reserved = reserved(map);
    push_line(out, format_args!("reservedSystemCPUs: \"{reserved}\""));
    for holder in map.share_holders() {
        push_line(out, format_args!(""));
        why(out, &holder);
        let left = holder.share().cpus.without(&reserved).len();
        comment(out, &format!("share: CPUs {}; maximum request of a pod:", holder.share().cpus));
        let resource = match holder.slice {
            Some(slice) => format!("nvidia.com/mig-{}", slice.device.profile.replace('+', ".")),
            None => "nvidia.com/gpu".to_owned(),
        };
        if holder.slice.is_some() {
            comment(
                out,
                "(resource name with the device plugin's strategy `mixed`; with `single` it is nvidia.com/gpu)",
            );
        }
        if left == 0 || holder.share().shared {
            comment(
                out,
                &format!("{resource}: 1 (its share is less than a core, too little for exclusive CPUs)"),
            );
            continue;
        }
        comment(out, &format!("resources: {{ limits: {{ {resource}: 1, cpu: {left} }} }}"));
    }
}

/// Returns true if every share is within one NUMA node.
fn within_a_node(map: &Map) -> bool {
    let within = |cpus: &CpuSet| map.topology.numa_nodes.iter().any(|node| cpus.is_within(&node.cpus));
    map.share_holders().iter().all(|holder| within(&holder.share().cpus))
}

/// Returns the CPUs to reserve for the system: the first core near no GPU, or the first core if all are near a GPU.
/// Only one core is reserved because pods cannot use reserved CPUs.
fn reserved(map: &Map) -> CpuSet {
    let first = map.left_over.iter().chain(map.topology.cpus.iter()).next();
    let core = map.topology.cores.iter().find(|core| first.is_some_and(|first| core.contains(first)));
    core.cloned().unwrap_or_else(|| first.into_iter().collect())
}
