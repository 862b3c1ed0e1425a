//! Docker, systemd, numactl: each takes CPUs and memory nodes by the kernel's numbers.

use super::{comment, comments, push_line, uuid, why};
use crate::map::{Map, ShareHolder};

/// `docker run` for each.
pub fn docker(out: &mut String, map: &Map) {
    comments(
        out,
        "The container sees this one device, runs on the CPUs near it and takes memory there.\n\
         A UUID stays with its device; an index (device=0) is another one after a reboot or with MIG.",
    );
    each(out, map, |out, holder, uuid| {
        let cpus = &holder.share().cpus;
        let memory = option("--cpuset-mems=", holder);
        push_line(
            out,
            format_args!("docker run --gpus '\"device={uuid}\"' --cpuset-cpus={cpus}{memory} IMAGE"),
        );
    });
}

/// `numactl` for each.
pub fn numactl(out: &mut String, map: &Map) {
    comments(
        out,
        "CUDA shows the program this one device. --membind fails rather than take memory elsewhere;\n\
         --preferred=NODE in its place takes it elsewhere when the node is full.",
    );
    each(out, map, |out, holder, uuid| {
        let cpus = &holder.share().cpus;
        let memory = option("--membind=", holder);
        push_line(
            out,
            format_args!("numactl --physcpubind={cpus}{memory} env CUDA_VISIBLE_DEVICES={uuid} COMMAND"),
        );
    });
}

/// A drop-in for each.
pub fn systemd(out: &mut String, map: &Map) {
    comments(
        out,
        "For /etc/systemd/system/UNIT.service.d/gpu.conf, then `systemctl daemon-reload` and a restart.\n\
         CPUAffinity= is what the service starts with and may leave. AllowedCPUs= and AllowedMemoryNodes=\n\
         hold all its processes there, with cgroup v2 alone. NUMAPolicy=bind takes memory nowhere else.\n\
         CUDA_VISIBLE_DEVICES shows CUDA this one device; it is no wall, as DevicePolicy= is.",
    );
    each(out, map, |out, holder, uuid| {
        let (cpus, memory) = (&holder.share().cpus, &holder.share().memory_nodes);
        push_line(out, format_args!("[Service]"));
        push_line(out, format_args!("Environment=CUDA_VISIBLE_DEVICES={uuid}"));
        push_line(out, format_args!("CPUAffinity={cpus}"));
        push_line(out, format_args!("AllowedCPUs={cpus}"));
        if !memory.is_empty() {
            push_line(out, format_args!("NUMAPolicy=bind"));
            push_line(out, format_args!("NUMAMask={memory}"));
            push_line(out, format_args!("AllowedMemoryNodes={memory}"));
        }
    });
}

/// For each with a name and CPUs, after an empty line and a comment that says why.
fn each(out: &mut String, map: &Map, mut line: impl FnMut(&mut String, &ShareHolder<'_>, &str)) {
    for holder in map.share_holders() {
        push_line(out, format_args!(""));
        why(out, &holder);
        if holder.share().cpus.is_empty() {
            comment(out, "no CPU is known");
            continue;
        }
        if let Some(uuid) = uuid(out, &holder) {
            line(out, &holder, uuid);
        }
    }
}

/// An option with the memory nodes of a share; nothing where none is known.
fn option(name: &str, holder: &ShareHolder<'_>) -> String {
    let memory = &holder.share().memory_nodes;
    if memory.is_empty() { String::new() } else { format!(" {name}{memory}") }
}
