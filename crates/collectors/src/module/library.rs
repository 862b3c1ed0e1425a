//! NVIDIA's libraries on disk, which are located by name and never loaded. The version comes from the target of a
//! library's link: `libnvidia-ml.so.1 -> libnvidia-ml.so.580.159.04`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use host::Host;
use settings::Config;

/// Loader name of the management library.
pub(crate) const NVML: &str = "libnvidia-ml.so.1";
/// Loader name of the CUDA driver library.
pub const CUDA: &str = "libcuda.so.1";

/// Directories in which distributions, NVIDIA's installer and container platforms put the libraries.
const FOLDERS: [&str; 11] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/usr/local/nvidia/lib64",
    "/home/kubernetes/bin/nvidia/lib64",
    "/opt/nvidia/lib64",
    "/run/opengl-driver/lib",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
];
/// Maximum number of links in a chain.
const MAX_LINKS: usize = 8;

/// Library of the driver on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DriverLibrary {
    /// Path on the host.
    pub path: PathBuf,
    /// Version; `None` if the name of the file does not contain one.
    pub version: Option<String>,
}

/// Returns the configured management library, or all that are installed.
pub fn find(host: &Host, config: &Config) -> Vec<DriverLibrary> {
    let configured = config.sampler.nvml_library.as_deref().unwrap_or(Path::new(NVML));
    // The loader searches for a name without a directory, as it does without a setting.
    if configured.components().count() < 2 {
        return search(host, NVML);
    }
    // The library is loaded from this path, whatever the root of the host is.
    resolve(&Host::new("/"), configured).into_iter().map(|(library, _)| library).collect()
}

/// Returns the libraries with this name in the usual directories, without duplicates.
pub fn search(host: &Host, name: &str) -> Vec<DriverLibrary> {
    let mut found: Vec<DriverLibrary> = Vec::new();
    let mut files = Vec::new();
    for folder in FOLDERS {
        let Some((library, file)) = resolve(host, &Path::new(folder).join(name)) else { continue };
        // The directories are often links to each other.
        if !files.contains(&file) {
            files.push(file);
            found.push(library);
        }
    }
    found
}

/// Returns the version if all libraries have the same one.
pub fn only_version(found: &[DriverLibrary]) -> Option<String> {
    let first = found.first()?.version.clone()?;
    found.iter().all(|library| library.version.as_ref() == Some(&first)).then_some(first)
}

/// Follows links below the root of the host, including absolute links. Returns the library with the device and inode of
/// its file.
fn resolve(host: &Host, path: &Path) -> Option<(DriverLibrary, (u64, u64))> {
    let mut now = path.to_owned();
    for _ in 0..MAX_LINKS {
        let real = host.path(&now);
        if let Ok(target) = fs::read_link(&real) {
            // `join` replaces the path if the target is absolute.
            now = now.parent()?.join(target);
            continue;
        }
        let file = fs::metadata(&real).ok().filter(|file| file.is_file())?;
        let found = DriverLibrary { path: path.to_owned(), version: version_of(&now) };
        return Some((found, (file.dev(), file.ino())));
    }
    None
}

/// Returns `580.159.04` for `libnvidia-ml.so.580.159.04`.
fn version_of(file: &Path) -> Option<String> {
    let (_, version) = file.file_name()?.to_str()?.split_once(".so.")?;
    let numbers: Vec<&str> = version.split('.').collect();
    let digits = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    // A name that ends in `.so.1` is a link for the loader.
    (numbers.len() > 1 && numbers.iter().all(digits)).then(|| version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_library_is_found_below_the_root_and_its_file_has_the_version() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::new(dir.path());
        assert_eq!(search(&host, NVML), []);
        let folder = dir.path().join("usr/lib/x86_64-linux-gnu");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("libnvidia-ml.so.580.159.04"), "").unwrap();
        // From the root on: it must not lead out of the host's folder.
        symlink("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.159.04", folder.join("between")).unwrap();
        symlink("between", folder.join(NVML)).unwrap();
        let found = search(&host, NVML);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, Path::new("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"));
        assert_eq!(only_version(&found).as_deref(), Some("580.159.04"));
        let other = dir.path().join("usr/local/nvidia/lib64");
        fs::create_dir_all(&other).unwrap();
        fs::write(other.join("libnvidia-ml.so.570.1"), "").unwrap();
        symlink("libnvidia-ml.so.570.1", other.join(NVML)).unwrap();
        let found = search(&host, NVML);
        assert_eq!(found.len(), 2);
        assert_eq!(only_version(&found), None, "which one the loader takes is not known");
    }

    #[test]
    fn links_from_the_root_on_stay_below_it() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::new(dir.path());
        fs::create_dir_all(dir.path().join("usr/lib64")).unwrap();
        fs::write(dir.path().join("usr/lib64/libcuda.so.550.54.15"), "").unwrap();
        symlink("/usr/lib64/libcuda.so.550.54.15", dir.path().join("usr/lib64/libcuda.so.1")).unwrap();
        let (found, _) = resolve(&host, Path::new("/usr/lib64/libcuda.so.1")).unwrap();
        assert_eq!(found.version.as_deref(), Some("550.54.15"));
        symlink("loop", dir.path().join("usr/lib64/loop")).unwrap();
        assert_eq!(resolve(&host, Path::new("/usr/lib64/loop")), None);
    }

    #[test]
    fn only_numbers_are_a_version() {
        let of = |name: &str| version_of(Path::new(name));
        assert_eq!(of("/x/libnvidia-ml.so.580.159.04").as_deref(), Some("580.159.04"));
        assert_eq!(of("/x/libnvidia-ml.so.1"), None);
        assert_eq!(of("/x/libsimgpu.so"), None);
        assert_eq!(of("/x/libnvidia-ml.so.580.x"), None);
    }
}
