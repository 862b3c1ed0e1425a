//! Binding lines for Docker, systemd and numactl. All three use the kernel's numbers of CPUs and memory nodes.

use super::{comment, comments, push_line, uuid, why};
use crate::map::{Map, ShareHolder};

const DOCKER: &str = "\
The container can use only this device, runs on the CPUs near it and allocates memory there.
A UUID stays with its device; an index (device=0) can change after a reboot or with MIG.";

const NUMACTL: &str = "\
CUDA shows the program only this device. With --membind an allocation fails when the node is full;
with --preferred=NODE instead, the kernel allocates the memory on another node.";

const SYSTEMD: &str = "\
For /etc/systemd/system/UNIT.service.d/gpu.conf, then `systemctl daemon-reload` and a restart.
CPUAffinity= is the initial affinity, which the service may change. AllowedCPUs= and AllowedMemoryNodes=
confine all its processes and require cgroup v2. NUMAPolicy=bind allocates memory only on these nodes.
CUDA_VISIBLE_DEVICES shows CUDA only this device but, unlike DevicePolicy=, does not enforce it.";

/// Appends a `docker run` command per device.
pub fn docker(out: &mut String, map: &Map) {
    each(out, map, DOCKER, |holder, uuid| {
        let (cpus, memory) = (&holder.share().cpus, option(" --cpuset-mems=", holder));
        format!("docker run --gpus '\"device={uuid}\"' --cpuset-cpus={cpus}{memory} IMAGE")
    });
}

/// Appends a `numactl` command per device.
pub fn numactl(out: &mut String, map: &Map) {
    each(out, map, NUMACTL, |holder, uuid| {
        let (cpus, memory) = (&holder.share().cpus, option(" --membind=", holder));
        format!("numactl --physcpubind={cpus}{memory} env CUDA_VISIBLE_DEVICES={uuid} COMMAND")
    });
}

/// Appends a systemd drop-in per device.
pub fn systemd(out: &mut String, map: &Map) {
    each(out, map, SYSTEMD, |holder, uuid| {
        let cpus = &holder.share().cpus;
        let memory =
            option("\nNUMAPolicy=bind\nNUMAMask=", holder) + &option("\nAllowedMemoryNodes=", holder);
        format!(
            "[Service]\nEnvironment=CUDA_VISIBLE_DEVICES={uuid}\nCPUAffinity={cpus}\nAllowedCPUs={cpus}{memory}"
        )
    });
}

/// Appends `head` as a comment, then the lines of every device with a UUID and CPUs. An empty line and a comment with
/// the reason precede the lines of a device.
fn each(out: &mut String, map: &Map, head: &'static str, lines: impl Fn(&ShareHolder<'_>, &str) -> String) {
    comments(out, head);
    for holder in map.share_holders() {
        push_line(out, format_args!(""));
        why(out, &holder);
        if holder.share().cpus.is_empty() {
            comment(out, "its CPUs are unknown");
        } else if let Some(uuid) = uuid(out, &holder) {
            push_line(out, format_args!("{}", lines(&holder, uuid)));
        }
    }
}

/// Returns an option with the memory nodes of a share, or nothing if none is known.
fn option(name: &str, holder: &ShareHolder<'_>) -> String {
    let memory = &holder.share().memory_nodes;
    if memory.is_empty() { String::new() } else { format!("{name}{memory}") }
}
