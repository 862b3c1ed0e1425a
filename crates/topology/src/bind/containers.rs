//! Docker, systemd, numactl: each takes CPUs and memory nodes by the kernel's numbers.

use super::{comment, put, uuid, why};
use crate::map::{Map, Taker};

/// `docker run` for each.
pub fn docker(out: &mut String, map: &Map) {
    comment(out, "The container sees this one device, runs on the CPUs near it and takes memory there.");
    comment(
        out,
        "A UUID stays with its device; an index (device=0) is another one after a reboot or with MIG.",
    );
    each(out, map, |out, taker, uuid| {
        let cpus = &taker.share().cpus;
        let memory = option("--cpuset-mems=", taker);
        put(out, format_args!("docker run --gpus '\"device={uuid}\"' --cpuset-cpus={cpus}{memory} IMAGE"));
    });
}

/// `numactl` for each.
pub fn numactl(out: &mut String, map: &Map) {
    comment(
        out,
        "CUDA shows the program this one device. --membind fails rather than take memory elsewhere;",
    );
    comment(out, "--preferred=NODE in its place takes it elsewhere when the node is full.");
    each(out, map, |out, taker, uuid| {
        let cpus = &taker.share().cpus;
        let memory = option("--membind=", taker);
        put(
            out,
            format_args!("numactl --physcpubind={cpus}{memory} env CUDA_VISIBLE_DEVICES={uuid} COMMAND"),
        );
    });
}

/// A drop-in for each.
pub fn systemd(out: &mut String, map: &Map) {
    comment(
        out,
        "For /etc/systemd/system/UNIT.service.d/gpu.conf, then `systemctl daemon-reload` and a restart.",
    );
    comment(
        out,
        "CPUAffinity= is what the service starts with and may leave. AllowedCPUs= and AllowedMemoryNodes=",
    );
    comment(
        out,
        "hold all its processes there, with cgroup v2 alone. NUMAPolicy=bind takes memory nowhere else.",
    );
    comment(out, "CUDA_VISIBLE_DEVICES shows CUDA this one device; it is no wall, as DevicePolicy= is.");
    each(out, map, |out, taker, uuid| {
        let (cpus, memory) = (&taker.share().cpus, &taker.share().memory_nodes);
        put(out, format_args!("[Service]"));
        put(out, format_args!("Environment=CUDA_VISIBLE_DEVICES={uuid}"));
        put(out, format_args!("CPUAffinity={cpus}"));
        put(out, format_args!("AllowedCPUs={cpus}"));
        if !memory.is_empty() {
            put(out, format_args!("NUMAPolicy=bind"));
            put(out, format_args!("NUMAMask={memory}"));
            put(out, format_args!("AllowedMemoryNodes={memory}"));
        }
    });
}

/// For each with a name and CPUs, after an empty line and a comment that says why.
fn each(out: &mut String, map: &Map, mut line: impl FnMut(&mut String, &Taker<'_>, &str)) {
    for taker in map.takers() {
        put(out, format_args!(""));
        why(out, &taker);
        if taker.share().cpus.is_empty() {
            comment(out, "no CPU is known");
            continue;
        }
        if let Some(uuid) = uuid(out, &taker) {
            line(out, &taker, uuid);
        }
    }
}

/// An option with the memory nodes of a share; nothing where none is known.
fn option(name: &str, taker: &Taker<'_>) -> String {
    let memory = &taker.share().memory_nodes;
    if memory.is_empty() { String::new() } else { format!(" {name}{memory}") }
}
