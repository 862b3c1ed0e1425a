//! Steps from loading the library to creating a context. This module distinguishes conditions that prevent a run from
//! faults.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::session::cuda::CudaDriver;
use crate::session::errors::{CudaError, Ended, Try, skip};
use crate::session::poll::Poll;
use model::catalog::CanarySkip;

/// Number of attempts to initialise the driver, which sometimes fails temporarily, and the time between them.
const TRIES: u32 = 3;
const BETWEEN: Duration = Duration::from_secs(2);

/// Initialises the driver. An error is a fault only after three attempts, and only if this process may open the device.
pub fn init(cuda: &CudaDriver, poll: &Poll<'_>, minor: Option<u32>) -> Try<()> {
    let mut left = TRIES;
    loop {
        poll.go_on()?;
        left -= 1;
        match cuda.init() {
            Ok(()) => return Ok(()),
            Err(error) if left > 0 && may_pass(error.code) => pause(cuda, poll)?,
            Err(error) => return Err(judged(cuda, error, minor)),
        }
    }
}

/// Waits in short intervals that are visible as progress.
fn pause(cuda: &CudaDriver, poll: &Poll<'_>) -> Try<()> {
    const PARTS: u32 = 10;
    (0..PARTS).try_for_each(|_| cuda.noting("pause before cuInit", || poll.wait(BETWEEN / PARTS)))
}

/// Returns true if another attempt to initialise may succeed.
fn may_pass(code: u32) -> bool {
    matches!(skip(code), None | Some(CanarySkip::NoDevice))
}

/// Classifies an error of the first steps as a fault, unless the device is only inaccessible to this process, as in a
/// container that lost its access.
fn judged(cuda: &CudaDriver, error: CudaError, minor: Option<u32>) -> Ended {
    const LIKE_NO_ACCESS: [u32; 5] = [3, 100, 101, 304, 999];
    if LIKE_NO_ACCESS.contains(&error.code)
        && let Some((reason, text)) = cuda.noting("open", || kept_away(Path::new("/"), minor, open))
    {
        return Ended::Unable(reason, text);
    }
    error.into()
}

fn open(path: &Path) -> io::Result<()> {
    OpenOptions::new().read(true).write(true).open(path).map(drop)
}

/// Returns the reason why this process cannot open the device files, if there is one. The function checks this only if
/// the driver's kernel module is loaded, because without the module there are no device files.
fn kept_away(
    root: &Path,
    minor: Option<u32>,
    open: impl Fn(&Path) -> io::Result<()>,
) -> Option<(CanarySkip, String)> {
    if !root.join("proc/driver/nvidia/version").exists() {
        return None;
    }
    let gpu = minor.map(|minor| format!("nvidia{minor}"));
    for name in ["nvidiactl"].into_iter().chain(gpu.as_deref()).chain(["nvidia-uvm"]) {
        let Err(error) = open(&root.join("dev").join(name)) else { continue };
        let unloaded = name == "nvidia-uvm" && !root.join("sys/module/nvidia_uvm").exists();
        return match error.kind() {
            io::ErrorKind::NotFound if unloaded => Some((
                CanarySkip::Environment,
                "the kernel module nvidia-uvm is not loaded; run `nvidia-modprobe -u -c=0`".to_owned(),
            )),
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => Some((
                CanarySkip::NoPermission,
                format!(
                    "failed to open /dev/{name}: {error}; the container may have lost access to the device"
                ),
            )),
            // The device itself returned the error.
            _ => None,
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(files: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        root
    }

    fn reason(root: &Path) -> Option<CanarySkip> {
        kept_away(root, Some(3), open).map(|(reason, _)| reason)
    }

    #[test]
    fn a_device_file_that_is_missing_is_no_fault_and_a_sick_device_is() {
        let driver = "proc/driver/nvidia/version";
        let all = root(&[driver, "dev/nvidiactl", "dev/nvidia3", "dev/nvidia-uvm"]);
        assert_eq!(reason(all.path()), None);
        assert_eq!(reason(root(&[driver, "dev/nvidia3"]).path()), Some(CanarySkip::NoPermission));
        assert_eq!(reason(root(&[driver, "dev/nvidiactl"]).path()), Some(CanarySkip::NoPermission));
        let no_uvm = root(&[driver, "dev/nvidiactl", "dev/nvidia3"]);
        assert_eq!(reason(no_uvm.path()), Some(CanarySkip::Environment));
        let hidden = root(&[driver, "dev/nvidiactl", "dev/nvidia3", "sys/module/nvidia_uvm/x"]);
        assert_eq!(reason(hidden.path()), Some(CanarySkip::NoPermission));
        assert_eq!(reason(root(&[]).path()), None, "no driver, no files");

        let denied = |_: &Path| Err(io::Error::from(io::ErrorKind::PermissionDenied));
        let (reason, text) = kept_away(all.path(), None, denied).unwrap();
        assert_eq!(reason, CanarySkip::NoPermission);
        assert!(text.contains("/dev/nvidiactl"), "{text}");
        let broken = |_: &Path| Err(io::Error::from_raw_os_error(nix::libc::EIO));
        assert_eq!(kept_away(all.path(), None, broken), None);
    }

    #[test]
    fn only_what_may_pass_is_tried_again() {
        for code in [999, 3, 100, 304, 802] {
            assert!(may_pass(code), "{code}");
        }
        for code in [34, 36, 800, 804, 46, 2] {
            assert!(!may_pass(code), "{code}");
        }
    }
}
