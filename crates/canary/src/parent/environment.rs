//! The environment of a canary's process: one visible device, no MPS, no cache, none of our own variables for CUDA.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use nix::unistd::mkdtemp;

use crate::report::RunRequest;
use host::child::Environment;

/// An empty private folder, for as long as this lives: a CUDA program whose MPS pipes are there finds no MPS to connect
/// to. A client of another user makes MPS end the server of all.
#[derive(Debug)]
pub(crate) struct EmptyFolder(PathBuf);

impl EmptyFolder {
    pub fn make() -> io::Result<EmptyFolder> {
        // mkdtemp(3) makes it with mode 0700.
        let folder = std::env::temp_dir();
        let made = mkdtemp(&folder.join("gpu-node-exporter-canary-XXXXXX"));
        made.map(EmptyFolder).map_err(|error| {
            let text = format!("no folder in {}: {error}; name another one in TMPDIR", folder.display());
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

/// The environment of a run: the device is chosen before CUDA looks, so that no other is initialised.
pub fn environment(request: &RunRequest, no_mps: &Path) -> Environment {
    // The device, and behind it the peer of a copy between two.
    let visible: Vec<&str> = [&request.device].into_iter().chain(&request.peer).map(String::as_str).collect();
    let mut with: Vec<(OsString, OsString)> = vec![
        ("CUDA_VISIBLE_DEVICES".into(), visible.join(",").into()),
        ("CUDA_MPS_PIPE_DIRECTORY".into(), no_mps.into()),
        ("CUDA_MPS_LOG_DIRECTORY".into(), no_mps.into()),
        ("CUDA_CACHE_DISABLE".into(), "1".into()),
        // All kernels at once: else the driver loads each when it is first asked for, in the midst of a measurement.
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

/// The loader's search path: this folder first.
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
