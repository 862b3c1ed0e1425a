//! NVSwitches of the node, where the node's own kernel drives them: the files of the nvswitch driver.

use std::io;
use std::path::Path;

use nvml_wrapper::error::NvmlError;

use super::driver::{CallFailure, Caller};
use host::Host;
use model::catalog::{self as m, Node, NvSwitchInfo};
use model::sample::{Gap, Rows};

/// Where the driver has a folder a switch, named by its PCI address, with a file `information`.
const DEVICES: &str = "/proc/driver/nvidia-nvswitch/devices";

/// Every switch. `None` without the driver: there is nothing to report then.
pub fn read(host: &Host, caller: &mut Caller) -> Option<(Rows, Vec<Gap>)> {
    let folder = host.path(DEVICES);
    let mut rows = Rows::default();
    let mut gaps = Vec::new();
    // The driver's code answers, so the reading is noted and measured like a call.
    match caller.call("nvswitch/devices", || switches(&folder)) {
        Ok(switches) => {
            for switch in switches {
                rows.of(&Node {}).info(&m::gpu_nvswitch_info, switch);
            }
        }
        Err(CallFailure::Unsupported) => return None,
        Err(failure) => gaps.push(Gap {
            call: "nvswitch/devices".into(),
            metrics: vec![m::gpu_nvswitch_info.id()],
            missing: failure.missing(),
        }),
    }
    Some((rows, gaps))
}

fn switches(folder: &Path) -> Result<Vec<NvSwitchInfo>, NvmlError> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failure)? {
        let entry = entry.map_err(failure)?;
        let text = std::fs::read_to_string(entry.path().join("information")).map_err(failure)?;
        let pci_address = entry.file_name().to_string_lossy().to_lowercase();
        found.push(NvSwitchInfo { pci_address, firmware_version: firmware(&text) });
    }
    found.sort_by(|a, b| a.pci_address.cmp(&b.pci_address));
    Ok(found)
}

/// The firmware's version from `BIOS Version: 92.10.14.00.01`; empty where the driver has none (`N/A`).
fn firmware(information: &str) -> String {
    let version = information.lines().find_map(|line| line.strip_prefix("BIOS Version:"));
    let version = version.map(str::trim).unwrap_or_default();
    if version == "N/A" { String::new() } else { version.to_owned() }
}

fn failure(error: io::Error) -> NvmlError {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => NvmlError::NotSupported,
        io::ErrorKind::PermissionDenied => NvmlError::NoPermission,
        _ => NvmlError::OperatingSystem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn switches_are_found_with_their_firmware() {
        let dir = tempfile::tempdir().unwrap();
        let devices = dir.path().join("devices");
        for (address, text) in
            [("0000:C1:00.0", "BIOS Version: 92.10.14.00.01\n"), ("0000:83:00.0", "BIOS Version: N/A\n")]
        {
            fs::create_dir_all(devices.join(address)).unwrap();
            fs::write(devices.join(address).join("information"), text).unwrap();
        }
        let found = switches(&devices).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].pci_address.as_str(), found[0].firmware_version.as_str()), ("0000:83:00.0", ""));
        assert_eq!(found[1].pci_address, "0000:c1:00.0");
        assert_eq!(found[1].firmware_version, "92.10.14.00.01");
    }

    #[test]
    fn a_node_without_the_driver_has_no_switches() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(switches(&dir.path().join("devices")), Err(NvmlError::NotSupported)));
    }
}
