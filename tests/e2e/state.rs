//! The folder of the state files.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use canary::baseline::BaselineStore;
use collectors::topology::SavedTopology;
use host::state::{Document, KernelLogPosition, Store};
use model::event_history::EventHistory;
use model::owner_records::OwnerRecords;
use model::persisted::{FaultBooks, Inventory, KnownWrongResults, NodeHistory};
use nix::sys::signal::Signal;

use super::node::{Metrics, Node, Setup, signal};

#[test]
fn a_state_folder_that_cannot_be_written_shows() {
    let dir = tempfile::TempDir::new().unwrap();
    let state = dir.path().join("state");
    // Also root cannot make a folder below a file.
    std::fs::write(&state, "in the way").unwrap();
    let node = Setup::new("tests/scenarios/still-1xh200.toml").with_state_in(state.clone()).start();
    node.wait_metrics("it shows", |m| m.value("gpu_exporter_state_writable", &[]) == Some(0.0));
    std::fs::remove_file(&state).unwrap();
    // What could not be saved before is saved then.
    node.wait_for("the GPUs seen are saved", |_| state.join("inventory.json").exists());
    node.wait_metrics("it is over", |m| m.value("gpu_exporter_state_writable", &[]) == Some(1.0));
    assert_eq!(node.metrics().value("gpu_up", &[("gpu", "0")]), Some(1.0));
}

/// The state folder of another release.
fn folder_of(release: &str) -> tempfile::TempDir {
    let dir = tempfile::TempDir::new().unwrap();
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/state").join(release);
    for file in fs::read_dir(files).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), dir.path().join(file.file_name())).unwrap();
    }
    dir
}

fn events(node: &Node) -> Vec<serde_json::Value> {
    let (status, body) = node.get("/api/v1/events");
    assert_eq!(status, 200, "{body}");
    let list: serde_json::Value = serde_json::from_str(&body).unwrap();
    list["events"].as_array().unwrap().clone()
}

/// Checks that this release reads the file of a kind, which is of the oldest version that is read or of the next one. Gives its
/// name.
fn read<T: Document>(dir: &Path, release: &str) -> String {
    let name = format!("{}.json", T::KIND);
    let file = fs::read(dir.join(&name)).unwrap_or_else(|error| panic!("{release} has no {name}: {error}"));
    let envelope: serde_json::Value = serde_json::from_slice(&file).unwrap();
    let version = if release == "older" { T::OLDEST } else { T::VERSION + 1 };
    assert_eq!(envelope["version"], version, "{release}/{name}");
    Store::new(dir).look::<T>().unwrap_or_else(|error| panic!("{release}/{name}: {error}"));
    name
}

/// `tests/tree` has each kind in both folders.
#[test]
fn every_kind_of_file_of_an_older_and_of_a_newer_release_is_read() {
    for release in ["older", "newer"] {
        let state = folder_of(release);
        let reads = [
            read::<Inventory>,
            read::<KernelLogPosition>,
            read::<FaultBooks>,
            read::<KnownWrongResults>,
            read::<EventHistory>,
            read::<OwnerRecords>,
            read::<NodeHistory>,
            read::<BaselineStore>,
            read::<SavedTopology>,
        ];
        let known: BTreeSet<String> = reads.iter().map(|read| read(state.path(), release)).collect();
        let files = fs::read_dir(state.path()).unwrap();
        let files = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        assert_eq!(known, files, "{release}");
    }
}

#[test]
fn a_file_that_is_set_aside_shows_until_it_is_taken_away() {
    let state = folder_of("older");
    fs::write(state.path().join("history.json"), "{").unwrap();
    let node = Setup::new("tests/scenarios/still-1xh200.toml").with_state_in(state.path().to_owned()).start();
    let writable = |m: &Metrics| m.value("gpu_exporter_state_writable", &[]);
    node.wait_metrics("it shows", |m| writable(m) == Some(0.0));
    node.wait_said(&["some state in state.dir will not survive a restart", "history.corrupt"]);
    let doctor = node.command(&["doctor"]).output().unwrap();
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert_eq!(doctor.status.code(), Some(1), "{said}");
    assert!(said.contains("state folder") && said.contains("history.corrupt"), "{said}");
    fs::remove_file(state.path().join("history.corrupt")).unwrap();
    node.wait_metrics("it is over", |m| writable(m) == Some(1.0));
}

#[test]
fn the_files_of_an_older_and_of_a_newer_release_are_used() {
    for release in ["older", "newer"] {
        let state = folder_of(release);
        let setup = Setup::new("tests/scenarios/still-1xh200.toml").with_state_in(state.path().to_owned());
        let node = setup.start();
        // Two incidents of the file, and that of a wrong result that is not cleared.
        let unhealthy = |m: &Metrics| m.value("gpu_unhealthy_incidents", &[("gpu", "0")]);
        let page = node.wait_metrics("the incidents go on", |m| unhealthy(m) == Some(3.0));
        assert_eq!(page.value("gpu_devices_expected", &[]), Some(3.0), "{release}");
        let known = fs::read_to_string(state.path().join("wrong-results.json")).unwrap();
        assert!(known.contains("3 of 4096 results differ"), "{release}: {known}");
        let texts: Vec<_> = events(&node).iter().map(|event| event["text"].clone()).collect();
        assert!(texts.contains(&"known".into()), "{release}: {texts:?}");
        let (_, owners) = node.get("/api/v1/owners?slurm_job=42");
        let owners: serde_json::Value = serde_json::from_str(&owners).unwrap();
        assert_eq!(owners["ended"].as_array().unwrap().len(), 1, "{release}: {owners}");
        for file in fs::read_dir(state.path()).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            assert!(!name.ends_with(".corrupt"), "{release}: {name} was not read");
        }
    }
}

#[test]
fn events_outlast_a_kill() {
    let before = Setup::new("tests/scenarios/lost-gpu2.toml").start();
    before.wait_ready();
    before.sim().open_gate("lost").unwrap();
    before.wait_for("the events are kept", |node| node.state_dir().join("events.json").exists());
    let kept: serde_json::Value =
        serde_json::from_slice(&fs::read(before.state_dir().join("events.json")).unwrap()).unwrap();
    let first = kept["data"]["events"][0]["event"].clone();
    signal(before.pid(), Signal::SIGKILL);
    let after = Setup::new("tests/scenarios/still-1xh200.toml").with_state_of(&before).start();
    after.wait_ready();
    let listed = events(&after);
    for key in ["id", "unix_seconds", "kind", "code", "meaning", "text"] {
        assert_eq!(listed[0][key], first[key], "{key}");
    }
    assert_eq!(listed[0]["gpu"], 2);
    // A disk that is slow at the first probe is asked again a minute later.
    after
        .wait_metrics("the folder is writable", |m| m.value("gpu_exporter_state_writable", &[]) == Some(1.0));
}
