//! A host for tests whose control groups are these files.

use std::fs;

use host::Host;
use tempfile::TempDir;

/// Each file: its path below `/sys/fs/cgroup`, and its text.
pub fn host(files: &[(&str, &str)]) -> (TempDir, Host) {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join("sys/fs/cgroup").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let host = Host::new(root.path());
    (root, host)
}
