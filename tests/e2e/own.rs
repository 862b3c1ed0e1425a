//! The canary's own process on a GPU is nobody's work.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::node::Setup;

/// A host on which one process is the canary's, and others are not.
fn host() -> TempDir {
    let root = TempDir::new().unwrap();
    let write = |path: &Path, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    for (pid, name, line) in [
        (4300001, "exe", "gpu-node-exporter\0canary-child\0"),
        (4300002, "exe", "gpu-node-exporter\0canary\0"),
        (4300003, "trainer", "trainer\0"),
    ] {
        let folder = Path::new("proc").join(pid.to_string());
        write(&folder.join("comm"), &format!("{name}\n"));
        write(&folder.join("cmdline"), line);
    }
    write(Path::new("proc/sys/kernel/random/boot_id"), "11111111-2222-4333-8444-555555555555\n");
    root
}

#[test]
fn the_canarys_process_is_not_counted_and_keeps_no_gpu_busy() {
    let root = host();
    let node = Setup::new("tests/scenarios/canary-own.toml")
        .with("HOST__ROOT", root.path().to_str().unwrap())
        .with("PROCESSES__PER_PROCESS", "true")
        .start();
    let m = node.wait_metrics("the processes of all", |m| {
        m.all("gpu_processes", &[("type", "compute")]).len() == 3
            && m.all("gpu_mig_compute_processes", &[]).len() == 2
            && m.all("gpu_last_busy_timestamp_seconds", &[]).len() == 2
    });
    assert_eq!(m.all("gpu_processes", &[("type", "compute")]), [1.0, 1.0, 0.0]);
    assert_eq!(m.all("gpu_mig_compute_processes", &[]), [0.0, 1.0]);
    assert!(m.all("gpu_process_memory_used_bytes", &[("pid", "4300001")]).is_empty());
    assert_eq!(m.all("gpu_process_memory_used_bytes", &[]).len(), 2);
    assert!(m.all("gpu_last_busy_timestamp_seconds", &[("gpu", "2")]).is_empty(), "nobody was at work there");
    assert_eq!(m.all("gpu_process_dropped", &[]), [0.0, 0.0, 0.0]);
}

#[test]
fn what_tells_when_a_gpu_was_busy_is_read_also_if_it_is_not_to_be_published() {
    let root = host();
    let node = Setup::new("tests/scenarios/canary-own.toml")
        .with("HOST__ROOT", root.path().to_str().unwrap())
        .with("METRICS__EXCLUDE", "gpu_processes,gpu_mig_compute_processes")
        .start();
    let m = node.wait_metrics("who was busy", |m| m.all("gpu_last_busy_timestamp_seconds", &[]).len() == 2);
    assert!(m.all("gpu_processes", &[]).is_empty());
}
