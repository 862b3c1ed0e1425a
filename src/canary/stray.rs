//! Processes of canaries that another daemon or command has left behind in the driver: none of ours is started
//! beside one of them. They are found by their command line, because one that hangs early is on no GPU's list.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use super::report::COMMAND;
use crate::canary::outcome::Place;

/// The begin of an environment that is looked at, bytes.
const ENVIRONMENT: u64 = 256 * 1024;
const DEVICES: &[u8] = b"CUDA_VISIBLE_DEVICES=";

/// A process of another's canary on this GPU, but those in `own`. `uuids`: the GPU's and its instances'. One that
/// does not tell where it is may be on any.
pub fn on(uuids: &[String], own: &[i32]) -> Option<i32> {
    on_in(Path::new("/proc"), uuids, own)
}

/// The UUIDs by which CUDA may know the GPU of these places.
pub fn uuids(places: &[Place]) -> Vec<String> {
    let of = |place: &Place| {
        let instance = place.instance.as_ref().map(|instance| instance.mig_uuid.clone());
        [Some(place.gpu.uuid.to_string()), instance].into_iter().flatten()
    };
    places.iter().flat_map(of).collect()
}

fn on_in(proc: &Path, uuids: &[String], own: &[i32]) -> Option<i32> {
    for entry in fs::read_dir(proc).ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        if own.contains(&pid) || !is_canarys(&entry.path()) {
            continue;
        }
        match devices(&entry.path()) {
            Some(devices) if !devices.split(',').any(|device| uuids.iter().any(|uuid| uuid == device)) => {}
            _ => return Some(pid),
        }
    }
    None
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
        let proc = tempfile::tempdir().unwrap();
        let process = |pid: i32, cmdline: &[u8], environ: &[u8]| {
            let folder = proc.path().join(pid.to_string());
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("cmdline"), cmdline).unwrap();
            fs::write(folder.join("environ"), environ).unwrap();
        };
        let canary = b"gpu-node-exporter\0canary-child\0";
        process(1, b"gpu-node-exporter\0serve\0", b"CUDA_VISIBLE_DEVICES=GPU-0\0");
        process(2, b"", b"");
        process(3, canary, b"A=b\0CUDA_VISIBLE_DEVICES=GPU-1,GPU-2\0");
        fs::create_dir(proc.path().join("self")).unwrap();
        let on = |uuid: &str, own: &[i32]| on_in(proc.path(), &[uuid.to_owned()], own);
        assert_eq!((on("GPU-0", &[]), on("GPU-2", &[]), on("GPU-1", &[3])), (None, Some(3), None));
        process(4, canary, b"A=b\0");
        assert_eq!(on("GPU-0", &[3]), Some(4), "it may be there");
    }
}
