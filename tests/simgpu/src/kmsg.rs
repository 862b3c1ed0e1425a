//! The kernel log: what the driver prints, as records of /dev/kmsg in the file that the environment
//! names.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::device;
use crate::os;
use crate::state::State;
use crate::step::Xid;

/// Facility kernel, level warning: what the driver's own lines have.
const PRIORITY: u32 = 4;

/// The log that the processes of a node write to.
pub(crate) struct KernelLog {
    path: PathBuf,
}

impl KernelLog {
    /// Makes the file, so that a reader finds it as soon as the library is initialised.
    pub(crate) fn open(path: PathBuf) -> io::Result<KernelLog> {
        appended(&path)?;
        Ok(KernelLog { path })
    }

    /// Writes the records that `next` yields. The file is locked meanwhile, so that the order of
    /// the numbers is the order in the file.
    pub(crate) fn write(&self, state: &State, mut next: impl FnMut() -> Option<String>) -> io::Result<()> {
        let mut file = appended(&self.path)?;
        os::lock(&file);
        while let Some(text) = next() {
            let (number, us) = (state.next_record(), os::monotonic_ns() / 1000);
            file.write_all(format!("{PRIORITY},{number},{us},-;{text}\n").as_bytes())?;
        }
        Ok(())
    }
}

fn appended(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

/// The driver's line about an Xid of a GPU.
pub(crate) fn xid(gpu: usize, xid: &Xid) -> String {
    let (bus, dev) = device::pci_bus_device(gpu);
    let instance = match (xid.gpu_instance, xid.compute_instance) {
        (Some(gi), Some(ci)) => format!(" GPU-I:{gi:02} GPU-CI:{ci:02}"),
        (Some(gi), None) => format!(" GPU-I:{gi:02}"),
        _ => String::new(),
    };
    let pid = xid.pid.map_or("'<unknown>'".into(), |pid| pid.to_string());
    let name = xid.name.as_deref().unwrap_or("<unknown>");
    let text = xid.text.as_deref().unwrap_or(match xid.code {
        31 => {
            "channel 0x0000000a, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC1 GPCCLIENT_T1_8 faulted @ \
             0x0_dead0000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE"
        }
        79 => "GPU has fallen off the bus.",
        _ => "channel 0x0000000a",
    });
    format!(
        "NVRM: Xid (PCI:0000:{bus:02x}:{dev:02x}{instance}): {}, pid={pid}, name={name}, {text}",
        xid.code
    )
}

/// What the driver says when it is loaded.
pub(crate) fn loaded(driver: &str) -> String {
    format!("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  {driver}  Mon Jan  5 12:00:00 UTC 2026")
}

/// What the driver says last when it is unloaded.
pub(crate) const UNLOADED: &str = "nvidia-nvlink: Unregistered Nvlink Core, major device number 236";
