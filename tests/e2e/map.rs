//! `gpu-node-exporter topology`, through the shipped program.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use model::topology::Topology;

use super::golden::compare;
use super::node::{Node, Setup};

const DGX_2: [&str; 3] = ["topology", "--input", "tests/data/topologies/nvidia-dgx2.xml"];

/// Runs the program to its end, on no node.
fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-node-exporter"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("GPU_NODE_EXPORTER__") {
            command.env_remove(name);
        }
    }
    said(command.args(args).output().expect("the program runs"))
}

fn said(Output { status, stdout, stderr }: Output) -> (Option<i32>, String, String) {
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// On a simulated node, but this machine.
fn on(node: &Node, args: &[&str]) -> (Option<i32>, String, String) {
    said(node.command(&[&["topology", "--root", "/"], args].concat()).output().expect("the program runs"))
}

#[test]
fn a_dgx_2_is_drawn_in_every_format() {
    let (code, text, _) = run(&DGX_2);
    assert_eq!(code, Some(0));
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/golden/topology-dgx2.txt");
    compare(&golden, &text);

    let (code, json, _) = run(&[&DGX_2[..], &["--format", "json"]].concat());
    assert_eq!(code, Some(0));
    let map: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(map["gpus"].as_array().unwrap().len(), 16);
    assert_eq!(map["gpus"][15]["share"]["cpus"], "25");
    let declared: Topology = serde_json::from_str(&json).unwrap();
    assert_eq!((declared.packages.len(), declared.machine.as_str()), (2, "NVIDIA DGX-2H"));

    let (code, svg, _) = run(&[&DGX_2[..], &["--format", "svg"]].concat());
    assert_eq!(code, Some(0));
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
    let (code, xml, _) = run(&[&DGX_2[..], &["--format", "xml"]].concat());
    assert!(code == Some(0) && xml.contains("<topology version=\"2.0\">"), "{xml}");
}

#[test]
fn a_file_that_is_not_whole_or_of_a_newer_hwloc_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("machine.xml");
    let whole = std::fs::read_to_string("tests/data/topologies/nvidia-dgx2.xml").unwrap();
    let third = whole.replace("<topology version=\"2.0\">", "<topology version=\"3.0\">");
    for (text, why) in [("", "empty"), (&whole[..whole.len() / 2], "cut off"), (&third, "written by hwloc 3")]
    {
        std::fs::write(&file, text).unwrap();
        let (code, out, errors) = run(&["topology", "--input", file.to_str().unwrap()]);
        assert_eq!((code, out.as_str()), (Some(1), ""), "{errors}");
        assert!(errors.contains("machine.xml: ") && errors.contains(why), "{why}: {errors}");
    }
}

#[test]
fn a_pipe_gets_every_line_whole() {
    let (code, text, _) = run(&["topology", "--input", "tests/data/topologies/memory-kinds.xml"]);
    assert_eq!(code, Some(0));
    let title = "128 GiB, 96 GiB GPU memory, 32 GiB HBM, 512 GiB NVM, 256 GiB CXL memory, 1 GPU\n";
    assert!(text.contains(title) && !text.contains('…'), "{text}");
}

#[test]
fn a_machine_made_up_is_drawn() {
    let (code, text, _) = run(&["topology", "--synthetic", "package:1 numa:1 l3:3 core:8 pu:1"]);
    assert_eq!(code, Some(0));
    assert!(
        text.contains("L3 2  16 MiB  CPUs 16-23 (8 cores)") && text.contains("No GPU was found."),
        "{text}"
    );
}

#[test]
fn mig_devices_are_named_by_their_uuids() {
    let node = Node::start("tests/scenarios/mig-mixed.toml");
    let (code, json, errors) = on(&node, &["--format", "json"]);
    assert_eq!(code, Some(0), "{errors}");
    let map: serde_json::Value = serde_json::from_str(&json).unwrap();
    let gpus: Vec<&serde_json::Value> =
        map["gpus"].as_array().unwrap().iter().filter(|gpu| gpu["index"].is_u64()).collect();
    let slices: Vec<usize> = gpus.iter().map(|gpu| gpu["slices"].as_array().unwrap().len()).collect();
    assert_eq!(slices, [3, 4, 0, 0], "{json}");
    assert_eq!(gpus[0]["slices"][0]["profile"], "1c.3g.71gb");
    for tool in ["docker", "systemd", "numactl"] {
        let (code, lines, _) = on(&node, &["--bind", tool]);
        assert_eq!(code, Some(0));
        for gpu in &gpus {
            let uuids: Vec<&str> = match gpu["slices"].as_array().unwrap().as_slice() {
                [] => vec![gpu["uuid"].as_str().unwrap()],
                slices => slices.iter().map(|slice| slice["uuid"].as_str().unwrap()).collect(),
            };
            for uuid in uuids {
                let named = match tool {
                    "docker" => format!("\ndocker run --gpus '\"device={uuid}\"' --cpuset-cpus="),
                    "systemd" => {
                        format!("\n[Service]\nEnvironment=CUDA_VISIBLE_DEVICES={uuid}\nCPUAffinity=")
                    }
                    _ => format!("env CUDA_VISIBLE_DEVICES={uuid} COMMAND\n"),
                };
                assert!(lines.contains(&named), "{named}: {lines}");
            }
        }
    }
    let (code, lines, _) = on(&node, &["--bind", "slurm"]);
    assert!(code == Some(0) && lines.contains("\nAutoDetect=nvml\n"), "{lines}");
    let (code, lines, _) = on(&node, &["--bind", "kubernetes"]);
    assert!(code == Some(0) && lines.contains("\ncpuManagerPolicy: static\n"), "{lines}");
}

#[test]
fn a_driver_that_hangs_is_reported_and_not_waited_for() {
    let node = Setup::new("tests/scenarios/hang-init.toml").start();
    node.wait_metrics("stuck", |m| m.value("gpu_driver_stuck", &[]) == Some(1.0));
    let started = Instant::now();
    let (code, text, _) = on(&node, &[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("not queried, because the daemon reports it as stuck"), "{text}");
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}

#[test]
fn what_cannot_be_done_is_said() {
    let refused = |args: &[&str], code, part: &str| {
        let (status, out, errors) = run(args);
        assert_eq!(status, Some(code), "{args:?}: {errors}");
        assert!(out.is_empty() && errors.contains(part), "{args:?}: {out}{errors}");
    };
    refused(&["topology", "--input", "no-such.xml"], 1, "no-such.xml: No such file");
    refused(&["topology", "--input", "tests"], 1, "tests: not a regular file");
    refused(&["topology", "--input", "Cargo.toml"], 1, "gpu-node-exporter: ");
    refused(&["topology", "--synthetic", "nonsense"], 1, "nonsense");
    refused(&["topology", "--bind", "docker", "--format", "svg"], 64, "cannot be used with");
    refused(&["topology", "--latency", "--synthetic", "core:1"], 64, "cannot be used with");
    refused(&["topology", "--latency", "--format", "svg"], 1, "--latency needs");
    refused(&["topology", "--root", "/no/such/root"], 1, "gpu-node-exporter: ");
}

#[test]
fn memory_latency_is_measured_or_says_why_not() {
    let (code, json, errors) =
        run(&["topology", "--latency", "--format", "json", "--nvml-library", "/no/such.so"]);
    assert_eq!(code, Some(0), "{errors}");
    let map: serde_json::Value = serde_json::from_str(&json).unwrap();
    let pairs = map["latency"]["pairs"].as_array().unwrap();
    assert!(!pairs.is_empty(), "{json}");
    for pair in pairs {
        let measured = pair["nanoseconds"].as_f64();
        assert!(measured.is_some_and(|ns| ns > 0.1) || pair["why"].is_string(), "{pair}");
    }
}
