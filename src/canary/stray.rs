//! Processes of canaries that another daemon or command has left behind in the driver: none of ours is started
//! beside one of them. They are found by their command line, because one that hangs early is on no GPU's list.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use super::report::COMMAND;
use crate::canary::outcome::Place;
use crate::host::Host;

/// The begin of an environment that is looked at, bytes.
const ENVIRONMENT: u64 = 256 * 1024;
const DEVICES: &[u8] = b"CUDA_VISIBLE_DEVICES=";

/// A canary's process on this GPU, by the host's list of processes; `uuids` are the GPU's and its instances'. One
/// that does not tell where it is may be on any. For when none of our own is on it.
pub fn on(host: &Host, uuids: &[String]) -> Option<i32> {
    for entry in fs::read_dir(host.path("/proc")).ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        if !is_canarys(&entry.path()) {
            continue;
        }
        match devices(&entry.path()) {
            Some(devices) if !devices.split(',').any(|device| uuids.iter().any(|uuid| uuid == device)) => {}
            _ => return Some(pid),
        }
    }
    None
}

/// The UUIDs by which CUDA may know the GPU of these places.
pub fn uuids(places: &[Place]) -> Vec<String> {
    let of = |place: &Place| {
        let instance = place.instance.as_ref().map(|instance| instance.mig_uuid.clone());
        [Some(place.gpu.uuid.to_string()), instance].into_iter().flatten()
    };
    places.iter().flat_map(of).collect()
}

/// A process that has ended and was not waited for has no command line any more.
fn is_canarys(folder: &Path) -> bool {
    let begin = [b"gpu-node-exporter\0", COMMAND.as_bytes(), b"\0"].concat();
    let mut line = vec![0; begin.len()];
    let read = File::open(folder.join("cmdline")).and_then(|mut file| file.read_exact(&mut line));
    read.is_ok() && line == begin
}

/// What it was told to see, where we may look.
fn devices(folder: &Path) -> Option<String> {
    let mut environment = Vec::new();
    File::open(folder.join("environ")).ok()?.take(ENVIRONMENT).read_to_end(&mut environment).ok()?;
    let value = environment.split(|byte| *byte == 0).find_map(|word| word.strip_prefix(DEVICES))?;
    String::from_utf8(value.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canaries_of_others_on_this_gpu_are_found() {
        let root = tempfile::tempdir().unwrap();
        let proc = root.path().join("proc");
        fs::create_dir(&proc).unwrap();
        let process = |pid: i32, cmdline: &[u8], environ: &[u8]| {
            let folder = proc.join(pid.to_string());
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("cmdline"), cmdline).unwrap();
            fs::write(folder.join("environ"), environ).unwrap();
        };
        let canary = b"gpu-node-exporter\0canary-child\0";
        process(1, b"gpu-node-exporter\0serve\0", b"CUDA_VISIBLE_DEVICES=GPU-0\0");
        process(2, b"", b"");
        process(3, canary, b"A=b\0CUDA_VISIBLE_DEVICES=GPU-1,GPU-2\0");
        fs::create_dir(proc.join("self")).unwrap();
        let on = |uuid: &str| super::on(&Host::new(root.path()), &[uuid.to_owned()]);
        assert_eq!((on("GPU-0"), on("GPU-2"), on("GPU-1")), (None, Some(3), Some(3)));
        process(4, canary, b"A=b\0");
        assert_eq!(on("GPU-0"), Some(4), "it may be there");
    }
}
