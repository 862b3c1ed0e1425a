//! Discovery of the machine. hwloc reports packages, NUMA nodes, caches, cores and the PCI tree; sysfs reports PCI
//! links and network devices. This code must run in a separate process because reading a sysfs file of a failing device
//! can hang.
//!
//! Only the submodule [`machine`] uses hwloc.

mod machine;
mod sysfs;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use host::Host;
use model::topology::{Device, DeviceKind, Link, LinkCapability, Network, Topology};

/// Source of a topology.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// The machine whose files are below this root.
    Live(PathBuf),
    /// A file that hwloc wrote (`lstopo machine.xml`).
    Xml(PathBuf),
    /// A description in hwloc's synthetic format, such as `package:2 l3:3 core:8 pu:1`.
    Synthetic(String),
}

/// Link and network state of all PCI devices, ordered by address.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Links(pub Vec<DeviceState>);

/// Properties of one PCI device that can change while the machine runs, with the meaning of the fields of [`Device`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceState {
    pub address: String,
    pub link: Option<Link>,
    pub port: Option<LinkCapability>,
    pub network: Option<Network>,
}

impl Links {
    /// Returns the addresses of all devices, in order.
    pub fn addresses(&self) -> Vec<String> {
        self.0.iter().map(|state| state.address.clone()).collect()
    }

    /// Updates the devices of a topology. Devices that the topology does not contain are ignored.
    pub fn apply(self, topology: &mut Topology) {
        for state in self.0 {
            let known = topology.devices.iter_mut().find(|device| device.address == state.address);
            if let Some(device) = known {
                state.apply(device);
            }
        }
    }
}

impl DeviceState {
    /// Updates the link, port and network state of the device.
    pub fn apply(self, device: &mut Device) {
        device.link = self.link;
        device.port = self.port;
        let before = std::mem::replace(&mut device.network, self.network);
        if let Some((network, before)) = device.network.as_mut().zip(before) {
            network.remember(&before);
        }
    }
}

/// Beginning of the error message for a root without a machine.
pub const NO_MACHINE: &str = "no folder";

/// Discovers the machine and, if `xml` is set, exports it as hwloc's XML. The error is a message for the user. The
/// environment must be the one that [`super::ask`] sets, because it passes the root to hwloc.
pub(crate) fn discover(origin: &Origin, xml: bool) -> Result<(Topology, Option<String>), String> {
    if let Origin::Live(root) = origin {
        check(root)?;
    }
    let (mut topology, xml) = machine::read(origin, xml)?;
    if let Origin::Live(root) = origin {
        sysfs::complete(&Host::new(root), &mut topology);
    }
    Ok((topology, xml))
}

/// Checks that the root contains the files of a machine. Without them hwloc would report a machine of one CPU. The
/// error is a message for the user.
pub(super) fn check(root: &Path) -> Result<(), String> {
    let cpus = Host::new(root).path("/sys/devices/system/cpu");
    if cpus.is_dir() { Ok(()) } else { Err(format!("{NO_MACHINE} {}", cpus.display())) }
}

/// Reads only links and network devices.
pub(crate) fn links(root: &Path) -> Links {
    sysfs::links(&Host::new(root))
}

/// Returns the kind of a PCI device from its vendor and class, or `None` if the map does not show such devices.
fn kind(vendor: u32, class: u32) -> Option<DeviceKind> {
    let nvidia = vendor == 0x10de;
    match (class >> 8, class & 0xff) {
        (0x03, _) if nvidia => Some(DeviceKind::Gpu),
        (0x06, 0x80) if nvidia => Some(DeviceKind::Nvswitch),
        // 0x0c06 is InfiniBand as a serial bus, the class of some adapters.
        (0x02, _) | (0x0c, 0x06) => Some(DeviceKind::Network),
        (0x01, _) => Some(DeviceKind::Storage),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
