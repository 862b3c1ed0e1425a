//! Loads the CUDA driver library and verifies that it is the requested one.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use super::cuda;
use super::errors::{Ended, Try};
use model::catalog::CanarySkip;

/// Remedy for a missing library.
const ABSENT: &str = "no libcuda.so.1 was found; it is part of the driver. Set its path with --cuda-library, or \
                      in a container add `compute` to NVIDIA_DRIVER_CAPABILITIES";

/// Loads the library and verifies that it is `wanted` (empty for any). Returns the path of the file, if it can be read.
pub fn find(wanted: &Path) -> Try<PathBuf> {
    if !cuda::present() {
        return Err(Ended::Unable(CanarySkip::NoLibrary, ABSENT.to_owned()));
    }
    let foreign = |text| Ended::Unable(CanarySkip::ForeignLibrary, text);
    let maps = std::fs::read_to_string("/proc/self/maps")
        .map_err(|error| foreign(format!("failed to read /proc/self/maps: {error}")))?;
    let mapped = files(&maps);
    match wanted.as_os_str().is_empty() {
        true => Ok(mapped.into_iter().find(|file| is_libcuda(file)).unwrap_or_default()),
        false => judge(&mapped, wanted, |path| path.canonicalize()).map_err(foreign),
    }
}

/// Returns the distinct files mapped into a process. The loader opens `libcuda.so.1`, but the kernel reports the target
/// of that link, such as `libcuda.so.580.159.04`.
fn files(maps: &str) -> BTreeSet<PathBuf> {
    // The path, including its spaces, is the only field that begins with a slash.
    let path = |line: &str| line.find(" /").map(|at| PathBuf::from(&line[at + 1..]));
    maps.lines().filter_map(path).collect()
}

fn is_libcuda(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libcuda.so"))
}

/// Returns the requested library's file if it is mapped and no other CUDA driver library is. `real` resolves links.
fn judge(
    mapped: &BTreeSet<PathBuf>,
    wanted: &Path,
    real: impl Fn(&Path) -> io::Result<PathBuf>,
) -> Result<PathBuf, String> {
    let file = real(wanted)
        .map_err(|error| format!("failed to read the CUDA library {}: {error}", wanted.display()))?;
    if let Some(other) = mapped.iter().find(|path| is_libcuda(path) && **path != file) {
        return Err(format!("{} was requested, but the loader loaded {}", wanted.display(), other.display()));
    }
    match mapped.contains(&file) {
        true => Ok(file),
        false => Err(format!("{} was requested, but the loader loaded another library", wanted.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0c0a00000-55d0c0a28000 r--p 00000000 fd:01 1311 /usr/bin/program
7f0000000000-7f0000028000 r--p 00000000 fd:01 1312 /usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04
7f0000028000-7f0000058000 r-xp 00028000 fd:01 1312 /usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04
7f0000100000-7f0000128000 rw-p 00000000 00:00 0
7f0000200000-7f0000228000 r--p 00000000 fd:01 1313 /usr/lib/libcudart.so.12
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0    [stack]
";

    #[test]
    fn files_are_found_among_the_mappings_with_spaces_in_their_paths() {
        let found = files(MAPS);
        assert_eq!(found.iter().filter(|file| is_libcuda(file)).count(), 1);
        assert!(found.contains(Path::new("/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04")));
        assert_eq!(found.len(), 3, "{found:?}");
        let odd = "7f0-7f1 r--p 0 fd:01 1 /opt/my drivers/libcuda.so.1\ngarbage\n\n";
        assert_eq!(files(odd), BTreeSet::from([PathBuf::from("/opt/my drivers/libcuda.so.1")]));
    }

    #[test]
    fn only_the_very_file_that_was_asked_for_is_taken() {
        let real = |path: &Path| match path.to_str() {
            Some("/lib/libcuda.so.1" | "/lib/libcuda.so.580") => Ok(PathBuf::from("/lib/libcuda.so.580")),
            _ => Err(io::Error::from(io::ErrorKind::NotFound)),
        };
        let mapped = |files: &[&str]| files.iter().map(PathBuf::from).collect::<BTreeSet<_>>();
        let wanted = Path::new("/lib/libcuda.so.1");
        let right = mapped(&["/lib/libcuda.so.580", "/lib/libc.so.6", "/lib/libcudart.so.12"]);
        assert!(judge(&right, wanted, real).is_ok());
        let stub = judge(&mapped(&["/stubs/libcuda.so", "/lib/libc.so.6"]), wanted, real).unwrap_err();
        assert!(stub.contains("/stubs/libcuda.so") && stub.contains("/lib/libcuda.so.1"), "{stub}");
        let both = mapped(&["/lib/libcuda.so.580", "/stubs/libcuda.so"]);
        assert!(judge(&both, wanted, real).is_err(), "which of two is used is not known");
        assert!(judge(&mapped(&["/lib/libc.so.6"]), wanted, real).is_err());
        assert!(judge(&right, Path::new("/gone/libcuda.so.1"), real).is_err());
    }
}
