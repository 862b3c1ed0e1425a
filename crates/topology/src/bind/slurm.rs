//! Lines for Slurm's gres.conf, which identify cores by Slurm's own numbers.

use super::{comment, comments, push_line, why};
use crate::map::Map;
use crate::tree;
use model::cpus::CpuSet;

pub fn lines(out: &mut String, map: &Map) {
    comments(
        out,
        "For gres.conf. Cores= lists Slurm's logical core ids (Core L# of `lstopo -l`), which count all cores of\n\
         the machine and are neither CPU numbers nor the kernel's core ids. With --gres-flags=enforce-binding a\n\
         job gets only these cores; a job that needs more cores must use --gres-flags=disable-binding.\n\
         By default Slurm selects by sockets and NUMA nodes: without that flag, GPUs of one socket prefer any of\n\
         its cores. Steps with --exact use the individual cores.",
    );
    if map.share_holders().iter().any(|holder| holder.share().shared) {
        comment(out, "If GPUs share cores, only as many jobs run at the same time as there are cores.");
    }
    let slices: Vec<_> = map.gpus.iter().flat_map(|gpu| &gpu.slices).collect();
    if !slices.is_empty() {
        comments(
            out,
            "A GPU is in MIG mode. With only this line in gres.conf, Slurm detects the MIG devices and assigns\n\
             every one the cores near its GPU. The share of a slice can be configured only with MultipleFiles=\n\
             and the numbers of /dev/nvidia-caps, which change with the MIG layout.",
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
        "Do not combine these lines with AutoDetect=nvml: it detects all cores near a GPU, and Slurm drains a\n\
         node whose gres.conf contradicts the detection.",
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
            comment(out, "its cores are unknown");
            continue;
        }
        let Some(minor) = gpu.minor else {
            comment(
                out,
                &format!(
                    "its device file is unknown because the driver did not report it; its cores: {cores}"
                ),
            );
            continue;
        };
        push_line(out, format_args!("Name=gpu{} File=/dev/nvidia{minor} Cores={cores}", model(&gpu.model)));
    }
}

/// Returns ` Type=` with the model as one word (`h200` for `NVIDIA H200`), or an empty string if the name has no such
/// word. Slurm's own detection uses the whole name and accepts a substring of it.
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
