//! Root folder under which the host's files are read: `/` on a node, the mounted host in a container, or a
//! folder of fixtures in tests.

use std::io;
use std::path::{Path, PathBuf};

/// Access to the host's files below a root folder.
#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
}

impl Host {
    pub fn new(root: impl Into<PathBuf>) -> Host {
        Host { root: root.into() }
    }

    /// Returns the real path of a file, given its absolute path on the host.
    pub fn path(&self, absolute: impl AsRef<Path>) -> PathBuf {
        let path = absolute.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Returns the id of this boot. Counts since boot are void when it changes.
    pub fn boot_id(&self) -> io::Result<String> {
        let text = std::fs::read_to_string(self.path("/proc/sys/kernel/random/boot_id"))?;
        Ok(text.trim().to_owned())
    }

    /// Returns the id of the machine from `/etc/machine-id`, or an empty text. It changes when a disk moves to
    /// another machine.
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
