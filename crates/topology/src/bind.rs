//! Ready-made lines that bind the work on a GPU or MIG device to its share of CPUs and memory. The output for every
//! binder is a file or command that can be used unchanged. Comments in the output explain its limits.

mod containers;
mod kubernetes;
mod slurm;

use std::fmt::Write;

use host::terminal::printable;

use super::map::{Map, ShareHolder};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Binder {
    /// A `docker run` command
    Docker,
    /// A drop-in file of a unit
    Systemd,
    /// Lines for Slurm's gres.conf
    Slurm,
    /// Settings of the kubelet and the resources that a pod must request
    Kubernetes,
    /// A `numactl` command line
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

/// Appends a line. Writing to a string cannot fail.
fn push_line(out: &mut String, text: std::fmt::Arguments<'_>) {
    let written = out.write_fmt(text).and_then(|()| out.write_char('\n'));
    debug_assert!(written.is_ok());
}

/// Appends a comment on one line. Line breaks in names from the driver are replaced, so that they cannot end the
/// comment.
fn comment(out: &mut String, text: &str) {
    push_line(out, format_args!("# {}", printable(text)));
}

/// Appends one comment per line of the text.
fn comments(out: &mut String, text: &'static str) {
    text.lines().for_each(|line| comment(out, line));
}

/// Appends a comment with the name of the holder and the reason for its CPUs.
fn why(out: &mut String, holder: &ShareHolder<'_>) {
    let (place, share) = (&holder.gpu.place, holder.share());
    let node = match place.numa_node {
        Some(node) => format!("near NUMA node {node}"),
        None => "the machine does not report its NUMA node, so all nodes count as near".to_owned(),
    };
    let l3: Vec<String> = share.l3.iter().map(u32::to_string).collect();
    let l3 = if l3.is_empty() { String::new() } else { format!(", L3 {}", l3.join(",")) };
    comment(out, &format!("{}: {}, {node}{l3}", holder.name(), place.address));
    if share.shared {
        comment(out, "there are fewer cores than GPUs or slices, so others share these CPUs");
    }
}

/// Returns the UUID of a GPU or MIG device if it contains only characters that need no quoting. Otherwise, appends a
/// comment that the UUID is unknown.
fn uuid<'a>(out: &mut String, holder: &ShareHolder<'a>) -> Option<&'a str> {
    let plain = |uuid: &&str| uuid.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./".contains(&b));
    let uuid = holder.uuid().filter(|uuid| !uuid.is_empty()).filter(plain);
    if uuid.is_none() {
        comment(out, "its UUID is unknown because the driver was not queried or did not report it");
    }
    uuid
}

#[cfg(test)]
mod tests;
