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
fn folders_and_what_root_has_left_in_them_are_given_to_the_group() {
    let dir = TempDir::new().unwrap();
    let make = |name: &str, mode| {
        let path = dir.path().join(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    let (state, run) = (make("state", 0o755), make("run", 0o755));
    let recordings = make("state/recordings", 0o700);
    for file in [state.join("history.json"), recordings.join("one"), dir.path().join("outside")] {
        fs::write(&file, "{}").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    }
    symlink(dir.path().join("outside"), state.join("link")).unwrap();
    fs::hard_link(dir.path().join("outside"), state.join("hard")).unwrap();

    let ended = command(&["folders", state.to_str().unwrap(), run.to_str().unwrap()]).output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let about = |path: &Path| {
        let metadata = fs::metadata(path).unwrap();
        (metadata.mode() & 0o7777, metadata.gid())
    };
    let group = getegid().as_raw();
    assert_eq!(about(&state), (0o2770, group), "the state is closed to other users");
    assert_eq!(about(&run), (0o2775, group), "other users find the socket for all");
    assert_eq!(about(&state.join("history.json")), (0o660, group));
    assert_eq!(about(&recordings), (0o2770, group));
    assert_eq!(about(&recordings.join("one")), (0o660, group));
    assert_eq!(about(&dir.path().join("outside")).0, 0o600, "a link is not followed");
}

#[test]
fn a_folder_that_is_not_there_is_an_error_and_one_of_another_user_comes_with_the_remedy() {
    let folders = |state: &str| {
        let dir = TempDir::new().unwrap();
        let ended = command(&["folders", state, dir.path().to_str().unwrap()]).output().unwrap();
        assert_eq!(ended.status.code(), Some(1));
        String::from_utf8(ended.stderr).unwrap()
    };
    let said = folders("/none");
    assert!(said.contains("cannot assign /none to group") && !said.contains("chown"), "{said}");
    // The kernel's own folder: also root may not change it.
    let said = folders("/proc/1");
    assert!(said.contains("cannot assign /proc/1 to group"), "{said}");
    if !nix::unistd::geteuid().is_root() {
        assert!(said.contains("owner is user 0") && said.contains("chown -R root: /proc/1"), "{said}");
    }
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
        let failed = |error| m.value("gpu_exporter_kubelet_errors_total", &[("error", error)]) > Some(0.0);
        (failed("refused") || failed("late") || failed("malformed"))
            && m.value("gpu_exporter_collector_up", &[("collector", "kubelet")]) != Some(1.0)
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
    node.wait_metrics("a kubelet without its relay is not an absent one", |m| {
        m.value("gpu_exporter_collector_up", &[("collector", "kubelet")]) == Some(0.0)
            && m.value("gpu_exporter_kubelet_errors_total", &[("error", "no_socket")]) > Some(0.0)
    });
}
