//! The folder of the state files.

use super::node::Setup;

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
