//! Ready lines that bind the work on each GPU or MIG device to its share of CPUs and memory, for those who start it.
//! Each is a file or command that can be used as it is; what it cannot do is said in a comment.

mod containers;
mod kubernetes;
mod slurm;

use std::fmt::Write;

use host::terminal::printable;

use super::map::{Map, ShareHolder};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Binder {
    /// `docker run`
    Docker,
    /// A drop-in of a unit
    Systemd,
    /// Lines of gres.conf
    Slurm,
    /// Settings of the kubelet, and what a pod must ask for
    Kubernetes,
    /// A command line
    Numactl,
}

pub fn lines(map: &Map, binder: Binder) -> String {
    let mut out = String::new();
    for note in &map.topology.notes {
        comment(&mut out, note);
    }
    if map.gpus.is_empty() {
        comment(&mut out, "no GPU was found: there is nothing to bind");
        return out;
    }
    match binder {
        Binder::Docker => containers::docker(&mut out, map),
        Binder::Systemd => containers::systemd(&mut out, map),
        Binder::Numactl => containers::numactl(&mut out, map),
        Binder::Slurm => slurm::lines(&mut out, map),
        Binder::Kubernetes => kubernetes::lines(&mut out, map),
    }
    out
}

/// Appends a line; writing to a string cannot fail.
fn push_line(out: &mut String, text: std::fmt::Arguments<'_>) {
    let written = out.write_fmt(text).and_then(|()| out.write_char('\n'));
    debug_assert!(written.is_ok());
}

/// Appends a comment on one line: names from the driver cannot end it.
fn comment(out: &mut String, text: &str) {
    push_line(out, format_args!("# {}", printable(text)));
}

/// Appends a comment of several lines.
fn comments(out: &mut String, text: &'static str) {
    text.lines().for_each(|line| comment(out, line));
}

/// Who it is and why these CPUs, as a comment.
fn why(out: &mut String, holder: &ShareHolder<'_>) {
    let (place, share) = (&holder.gpu.place, holder.share());
    let node = match place.numa_node {
        Some(node) => format!("near NUMA node {node}"),
        None => "the machine does not tell which NUMA node is near: all are taken for near".to_owned(),
    };
    let l3: Vec<String> = share.l3.iter().map(u32::to_string).collect();
    let l3 = if l3.is_empty() { String::new() } else { format!(", L3 {}", l3.join(",")) };
    comment(out, &format!("{}: {}, {node}{l3}", holder.name(), place.address));
    if share.shared {
        comment(out, "there are fewer cores than GPUs or slices: others have these CPUs too");
    }
}

/// The UUID of a GPU or MIG device, if it is one that can be written anywhere; says so if it is not.
fn uuid<'a>(out: &mut String, holder: &ShareHolder<'a>) -> Option<&'a str> {
    let plain = |uuid: &&str| uuid.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./".contains(&b));
    let uuid = holder.uuid().filter(|uuid| !uuid.is_empty()).filter(plain);
    if uuid.is_none() {
        comment(
            out,
            "its UUID is not known, as the driver was not asked or did not tell: nothing names it safely",
        );
    }
    uuid
}

#[cfg(test)]
mod tests;
