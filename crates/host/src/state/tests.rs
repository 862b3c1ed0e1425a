//! The folder, its files, and what befalls them.

use super::*;
use model::persisted::SeenGpus;
use std::os::unix::fs::{PermissionsExt, symlink};

fn inventory(devices: usize) -> Inventory {
    Inventory { boot_id: "b".into(), seen: SeenGpus { devices, gpus: Vec::new() } }
}

#[test]
fn a_saved_document_comes_back_and_the_last_wins() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path().join("new/folder"));
    assert_eq!(store.load::<Inventory>().unwrap(), None);
    store.save(&inventory(3)).unwrap();
    store.save(&inventory(8)).unwrap();
    assert_eq!(store.load().unwrap(), Some(inventory(8)));
}

#[test]
fn an_invalid_file_is_renamed() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path());
    let other_version = r#"{"kind":"inventory","version":1,"data":{"boot_id":"b","devices":1,"gpus":[]}}"#;
    let huge = vec![b' '; Inventory::MAX_BYTES + 1];
    for bytes in [b"{".as_slice(), b"\xff\x00", other_version.as_bytes(), &huge] {
        fs::write(dir.path().join("inventory.json"), bytes).unwrap();
        assert!(store.look::<Inventory>().is_err(), "`look` leaves the file in place");
        assert_eq!(store.load::<Inventory>().unwrap(), None);
        assert_eq!(fs::read(dir.path().join("inventory.corrupt")).unwrap(), bytes);
        assert!(!dir.path().join("inventory.json").exists());
        assert!(store.probe().unwrap_err().to_string().contains("inventory.corrupt"));
    }
}

#[test]
fn a_special_file_is_set_aside_and_never_written_through() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path());
    let (victim, file) = (dir.path().join("victim"), dir.path().join("inventory.json"));
    fs::write(&victim, "precious").unwrap();
    for name in ["inventory.json", "inventory.new"] {
        symlink(&victim, dir.path().join(name)).unwrap();
    }
    assert_eq!(store.load::<Inventory>().unwrap(), None);
    store.save(&inventory(3)).unwrap();
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
    let about = fs::symlink_metadata(&file).unwrap();
    assert!(about.is_file() && about.permissions().mode() & 0o777 == 0o600, "{about:?}");
    fs::remove_file(&file).unwrap();
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(store.look::<Inventory>().unwrap_err().to_string().contains("FIFO"), "no writer is waited for");
    assert_eq!(store.load::<Inventory>().unwrap(), None);
    store.save(&inventory(4)).unwrap();
    assert_eq!(store.load().unwrap(), Some(inventory(4)));
}

#[test]
fn a_file_of_a_later_version_is_read_as_far_as_it_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path());
    let later = r#"{"kind":"inventory","version":99,"more":1,"data":{"boot_id":"b","devices":3,"gpus":[],"more":{}}}"#;
    fs::write(dir.path().join("inventory.json"), later).unwrap();
    assert_eq!(store.load().unwrap(), Some(inventory(3)));
    store.save(&inventory(4)).unwrap();
    assert_eq!(store.load().unwrap(), Some(inventory(4)));
}

/// Starts this test in a process of its own, which has the folder in the environment.
#[allow(clippy::disallowed_methods, reason = "the test itself is the child")]
fn in_child(test: &str, dir: &Path, shell: &str) -> std::process::Command {
    let program = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &format!("{shell} exec \"$0\" \"$@\"")]).arg(program);
    command.args(["--exact", test]).env("GNE_TEST_STATE_DIR", dir).stdout(std::process::Stdio::null());
    command
}

fn large(devices: usize) -> Inventory {
    let gpu = |index| {
        let (uuid, pci) = ("GPU-".repeat(8), "0000:06:00".into());
        model::persisted::Identity { index, uuid, pci, last_seen: 1_795_000_000 }
    };
    let gpus = (0..400).map(gpu).collect();
    Inventory { boot_id: "b".into(), seen: SeenGpus { devices, gpus } }
}

#[test]
fn a_process_that_is_killed_while_it_writes_leaves_a_whole_file() {
    if let Some(dir) = std::env::var_os("GNE_TEST_STATE_DIR") {
        let store = Store::new(dir);
        for devices in 1.. {
            store.save(&large(devices)).unwrap();
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path());
    let mut newest = 0;
    for round in 1..=20 {
        let name = "state::tests::a_process_that_is_killed_while_it_writes_leaves_a_whole_file";
        let mut child = in_child(name, dir.path(), "").spawn().unwrap();
        let written =
            |store: &Store| store.look::<Inventory>().unwrap().map_or(0, |known| known.seen.devices);
        let deadline = model::clock::Mono::now() + Duration::from_secs(60);
        // Each round is killed at another moment of a write.
        let begun = loop {
            let now = written(&store);
            if now > 0 && now != newest && now >= round {
                break now;
            }
            assert!(model::clock::Mono::now() < deadline, "nothing was written");
        };
        child.kill().unwrap();
        child.wait().unwrap();
        newest = store.load::<Inventory>().unwrap().expect("a whole file").seen.devices;
        assert!(newest >= begun && !dir.path().join("inventory.corrupt").exists());
    }
}

#[test]
fn a_disk_that_fills_up_leaves_the_file_before() {
    if let Some(dir) = std::env::var_os("GNE_TEST_STATE_DIR") {
        let error = Store::new(dir).save(&large(2)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge, "{error}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path());
    store.save(&inventory(1)).unwrap();
    let name = "state::tests::a_disk_that_fills_up_leaves_the_file_before";
    // A limit on the size of files ends a write in its midst, as a full disk does.
    let shell = "trap '' XFSZ; ulimit -f 4;";
    assert!(in_child(name, dir.path(), shell).status().unwrap().success());
    assert!(dir.path().join("inventory.new").metadata().unwrap().len() > 0, "it was begun");
    assert_eq!(store.load().unwrap(), Some(inventory(1)));
    store.save(&inventory(3)).unwrap();
    assert_eq!(store.load().unwrap(), Some(inventory(3)));
}

#[test]
fn a_folder_is_probed() {
    let dir = tempfile::tempdir().unwrap();
    Store::new(dir.path().join("new")).probe().unwrap();
    assert_eq!(fs::read_dir(dir.path().join("new")).unwrap().count(), 0);
    fs::write(dir.path().join("file"), "").unwrap();
    assert!(Store::new(dir.path().join("file")).probe().is_err());
}

#[test]
fn a_half_written_file_leaves_the_old_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path());
    store.save(&inventory(5)).unwrap();
    fs::write(dir.path().join("inventory.new"), b"{\"ki").unwrap();
    assert_eq!(store.load().unwrap(), Some(inventory(5)));
}
