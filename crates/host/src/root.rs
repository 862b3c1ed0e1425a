//! The root under which the host's files are read: `/` on a node, the mounted host in a container, a
//! folder of fixtures in tests.

use std::io;
use std::path::{Path, PathBuf};

/// Where the host's files are.
#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
}

impl Host {
    /// The host whose files are below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Host {
        Host { root: root.into() }
    }

    /// The real path of one of the host's files, given its absolute path there.
    pub fn path(&self, absolute: impl AsRef<Path>) -> PathBuf {
        let path = absolute.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The id of this boot: counts since boot are void when it changes.
    pub fn boot_id(&self) -> io::Result<String> {
        let text = std::fs::read_to_string(self.path("/proc/sys/kernel/random/boot_id"))?;
        Ok(text.trim().to_owned())
    }

    /// The id of the machine, by `/etc/machine-id`: another one if a disk moved to another machine. Empty if there is none.
    pub fn machine_id(&self) -> String {
        let text = std::fs::read_to_string(self.path("/etc/machine-id")).unwrap_or_default();
        text.trim().chars().take(64).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_paths_stay_below_the_root() {
        assert_eq!(Host::new("/host").path("/proc/stat"), Path::new("/host/proc/stat"));
        assert_eq!(Host::new("/").path("/proc/stat"), Path::new("/proc/stat"));
    }
}
