//! Slurm: lines of gres.conf, in Slurm's own numbers of cores.

use super::{comment, comments, push_line, why};
use crate::map::Map;
use crate::tree;
use model::cpus::CpuSet;

pub fn lines(out: &mut String, map: &Map) {
    comments(
        out,
        "For gres.conf. Cores= are Slurm's logical core ids (Core L# of `lstopo -l`), neither CPUs nor\n\
         the kernel's core ids; they count all cores of the machine. With --gres-flags=enforce-binding a job\n\
         gets no cores but these; one that wants more of them needs --gres-flags=disable-binding.\n\
         Slurm itself chooses by sockets and NUMA nodes: without that flag, GPUs of one socket prefer any core of it;\n\
         steps with --exact go by the single cores.",
    );
    if map.share_holders().iter().any(|holder| holder.share().shared) {
        comment(out, "Where GPUs share cores, only as many jobs run at one time as there are cores.");
    }
    let slices: Vec<_> = map.gpus.iter().flat_map(|gpu| &gpu.slices).collect();
    if !slices.is_empty() {
        comments(
            out,
            "Some GPU is in MIG mode. Slurm finds MIG devices by itself with this one line in place of all others\n\
             and gives each the cores near its GPU. The share of a slice can only be written with MultipleFiles=\n\
             and the numbers of /dev/nvidia-caps, which change with the layout.",
        );
        push_line(out, format_args!("AutoDetect=nvml"));
        for slice in slices {
            comment(
                out,
                &format!("MIG {} {}: CPUs {}", slice.device.profile, slice.device.uuid, slice.share.cpus),
            );
        }
        return;
    }
    comments(
        out,
        "Not together with AutoDetect=nvml: that one finds all cores near a GPU, and Slurm drains a node whose\n\
         gres.conf says something else.",
    );
    let tree = tree::build(&map.topology);
    let logical = tree.logical_cores();
    for holder in map.share_holders() {
        let gpu = holder.gpu;
        push_line(out, format_args!(""));
        why(out, &holder);
        let cores: CpuSet = logical
            .iter()
            .enumerate()
            .filter(|(_, core)| !core.and(&gpu.share.cpus).is_empty())
            .filter_map(|(at, _)| u32::try_from(at).ok())
            .collect();
        if cores.is_empty() {
            comment(out, "its cores are not known");
            continue;
        }
        let Some(minor) = gpu.minor else {
            comment(
                out,
                &format!("its device file is not known, as the driver did not tell; its cores: {cores}"),
            );
            continue;
        };
        push_line(out, format_args!("Name=gpu{} File=/dev/nvidia{minor} Cores={cores}", model(&gpu.model)));
    }
}

/// The type: of `NVIDIA H200` it is `h200`. Slurm's own detection takes the whole name and accepts a part of it.
fn model(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric());
    let word = words.map(str::to_ascii_lowercase).find(|word| {
        word.bytes().any(|b| b.is_ascii_digit())
            && word.bytes().next().is_some_and(|b| b.is_ascii_alphabetic())
    });
    word.map(|word| format!(" Type={word}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::model;

    #[test]
    fn types_are_short_words() {
        assert_eq!(model("NVIDIA H200"), " Type=h200");
        assert_eq!(model("NVIDIA A100-SXM4-80GB"), " Type=a100");
        assert_eq!(model("Tesla V100-SXM3-32GB"), " Type=v100");
        assert_eq!(model("NVIDIA GH200 480GB"), " Type=gh200");
        assert_eq!(model("Quadro\nName=evil"), "");
    }
}
