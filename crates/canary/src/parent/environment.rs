//! The environment of a canary process: one visible device, no MPS, no cache, and no CUDA variables of the parent.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use nix::unistd::mkdtemp;

use crate::report::RunRequest;
use host::child::Environment;

/// An empty private directory that is removed on drop. A CUDA program whose MPS pipe directory is this one does not
/// connect to any MPS server. Otherwise, a client of another user could make MPS shut down the server of all users.
#[derive(Debug)]
pub(crate) struct EmptyFolder(PathBuf);

impl EmptyFolder {
    pub fn make() -> io::Result<EmptyFolder> {
        // mkdtemp(3) creates the directory with mode 0700.
        let folder = std::env::temp_dir();
        let made = mkdtemp(&folder.join("gpu-node-exporter-canary-XXXXXX"));
        made.map(EmptyFolder).map_err(|error| {
            let text = format!(
                "failed to create a directory in {}: {error}; set TMPDIR to another directory",
                folder.display()
            );
            io::Error::other(text)
        })
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for EmptyFolder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir(&self.0) {
            tracing::debug!(%error, folder = %self.0.display(), "failed to remove the private folder of a canary");
        }
    }
}

/// Returns the environment of a run. It selects the device before CUDA starts, so that no other device is initialised.
pub fn environment(request: &RunRequest, no_mps: &Path) -> Environment {
    // The device, followed by the peer for copies between two devices.
    let visible: Vec<&str> = [&request.device].into_iter().chain(&request.peer).map(String::as_str).collect();
    let mut with: Vec<(OsString, OsString)> = vec![
        ("CUDA_VISIBLE_DEVICES".into(), visible.join(",").into()),
        ("CUDA_MPS_PIPE_DIRECTORY".into(), no_mps.into()),
        ("CUDA_MPS_LOG_DIRECTORY".into(), no_mps.into()),
        ("CUDA_CACHE_DISABLE".into(), "1".into()),
        // Load all kernels at once. Otherwise, the driver loads a kernel on its first use, in the middle of a
        // measurement.
        ("CUDA_MODULE_LOADING".into(), "EAGER".into()),
    ];
    if let Some(folder) = folder(&request.cuda_library) {
        let search = search_path(folder, std::env::var_os("LD_LIBRARY_PATH").as_deref());
        with.push(("LD_LIBRARY_PATH".into(), search));
    }
    Environment { without: vec!["CUDA_"], with }
}

fn folder(library: &Path) -> Option<&Path> {
    library.parent().filter(|folder| !folder.as_os_str().is_empty())
}

/// Returns the loader's search path with this directory first.
fn search_path(folder: &Path, before: Option<&OsStr>) -> OsString {
    let mut path = folder.as_os_str().to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        path.push(":");
        path.push(before);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_private_and_goes_with_its_owner() {
        use std::os::unix::fs::PermissionsExt;
        let folder = EmptyFolder::make().unwrap();
        let path = folder.path().to_owned();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn the_library_named_is_searched_first() {
        assert_eq!(search_path(Path::new("/a"), None), "/a");
        assert_eq!(search_path(Path::new("/a"), Some(OsStr::new("/b:/c"))), "/a:/b:/c");
        assert_eq!(folder(Path::new("")), None);
        assert_eq!(folder(Path::new("/x/libcuda.so.1")), Some(Path::new("/x")));
    }
}
