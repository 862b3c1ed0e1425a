//! The containers beside the daemon's in a pod: its folders, and the relay to the kubelet's socket.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getegid};
use tempfile::TempDir;

use super::node::Setup;
use super::podresources::{Kubelet, devices, pod, socket};

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-node-exporter"));
    command.arg("pod").args(args);
    command
}

fn relay(listen: &Path, kubelet: &Path) -> Child {
    command(&["relay", listen.to_str().unwrap(), kubelet.to_str().unwrap()]).spawn().unwrap()
}

#[test]
fn folders_are_given_to_the_group_and_one_that_is_not_there_is_an_error() {
    let dir = TempDir::new().unwrap();
    let folder = dir.path().join("state");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    let ended = command(&["folders", folder.to_str().unwrap()]).output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let metadata = fs::metadata(&folder).unwrap();
    assert_eq!((metadata.mode() & 0o7777, metadata.gid()), (0o2775, getegid().as_raw()));

    let ended = command(&["folders", dir.path().join("none").to_str().unwrap()]).output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(said.contains("/none to the group"), "{said}");
}

#[test]
fn the_relay_brings_the_kubelets_answers_also_from_one_that_starts_later_and_ends_when_asked() {
    let host = TempDir::new().unwrap();
    let node =
        Setup::new("tests/scenarios/still-1xh200.toml").with("OWNERS__KUBELET_SOCKET", "/relay.sock").start();
    let listen = host.path().join("relay.sock");
    symlink(&listen, node.root().join("relay.sock")).unwrap();
    let mut process = relay(&listen, &socket(host.path()));
    node.wait_metrics("no kubelet behind the relay is no answer", |m| {
        m.value("gpu_exporter_collector_up", &[("collector", "kubelet")]) == Some(0.0)
    });

    let gpu = || vec![devices("nvidia.com/gpu", ["GPU-1".to_owned()])];
    let _kubelet = Kubelet::start(host.path(), vec![pod("train-0", gpu())], gpu());
    node.wait_metrics("the kubelet's answer", |m| {
        m.value("gpu_kubelet_allocated_devices", &[("resource", "nvidia.com/gpu")]) == Some(1.0)
    });
    assert_eq!(fs::metadata(&listen).unwrap().mode() & 0o777, 0o660);

    kill(Pid::from_raw(process.id() as i32), Signal::SIGTERM).unwrap();
    assert!(process.wait().unwrap().success());
    assert!(!listen.exists(), "the socket goes with the relay");
}
