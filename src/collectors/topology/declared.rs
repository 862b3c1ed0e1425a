//! The topology that the machine should have, from a file.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::Deserialize;

use model::topology::Topology;

/// Longest file.
const MOST: u64 = 8 << 20;

/// What `gpu-node-exporter topology --format json` prints and `/api/v1/topology` serves, or the topology in it.
#[derive(Deserialize)]
#[serde(untagged)]
enum DeclaredTopology {
    Whole { topology: Topology },
    Bare(Topology),
}

/// Reads it. `None`: none is declared.
pub(super) fn read(file: &Path) -> Result<Option<Topology>, String> {
    if file.as_os_str().is_empty() {
        return Ok(None);
    }
    let said = |why: &dyn std::fmt::Display| format!("topology.expected_file {}: {why}", file.display());
    let bytes = content(file).map_err(|error| said(&error))?;
    if bytes.len() as u64 > MOST {
        return Err(said(&format!("longer than {MOST} bytes")));
    }
    match serde_json::from_slice(&bytes) {
        Ok(DeclaredTopology::Whole { topology } | DeclaredTopology::Bare(topology)) => Ok(Some(topology)),
        Err(_) => Err(said(&"not a topology as `gpu-node-exporter topology --format json` prints it")),
    }
}

/// What is in it, if it is a file: what is something else, as a pipe, must not hold us up.
fn content(path: &Path) -> io::Result<Vec<u8>> {
    let flags = nix::fcntl::OFlag::O_NONBLOCK.bits();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("is no file"));
    }
    let mut bytes = Vec::new();
    file.take(MOST + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::topology::fixtures::machine;

    #[test]
    fn both_forms_are_read_and_other_files_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("declared.json");
        assert_eq!(read(Path::new("")), Ok(None));
        assert!(read(&file).unwrap_err().contains("declared.json"));
        let machine = machine(&[("0-3", &["0-3"])]);
        let bare = serde_json::to_value(&machine).unwrap();
        for text in [bare.to_string(), serde_json::json!({"gpus": [], "topology": bare}).to_string()] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(read(&file), Ok(Some(machine.clone())));
        }
        for text in ["", "{}", "[1]", "\u{0}"] {
            std::fs::write(&file, text).unwrap();
            assert!(read(&file).unwrap_err().contains("not a topology"), "{text}");
        }
        let pipe = dir.path().join("pipe.json");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(read(&pipe).unwrap_err().contains("is no file"), "no reader waits for a writer");
        assert!(read(dir.path()).unwrap_err().contains("is no file"));
    }
}
