//! Finding out what the machine is: hwloc for packages, NUMA nodes, caches, cores and the PCI tree, sysfs for the
//! links and network devices. Only for a process of its own: a file of a sick device can hang its reader.
//!
//! The only module that uses hwloc ([`machine`]) is here.

mod machine;
mod sysfs;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use host::Host;
use model::topology::{Device, DeviceKind, Link, LinkCapability, Network, Topology};

/// Where a topology comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// The machine whose files are below this root.
    Live(PathBuf),
    /// A file that hwloc wrote (`lstopo machine.xml`).
    Xml(PathBuf),
    /// A description in hwloc's words: `package:2 l3:3 core:8 pu:1`.
    Synthetic(String),
}

/// Links and network devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Links(pub Vec<DeviceState>);

/// What of one device can change while the machine runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceState {
    pub address: String,
    /// See [`Device::link`].
    pub link: Option<Link>,
    /// See [`Device::port`].
    pub port: Option<LinkCapability>,
    /// See [`Device::network`].
    pub network: Option<Network>,
}

impl Links {
    /// Which devices there are, in order.
    pub fn addresses(&self) -> Vec<String> {
        self.0.iter().map(|state| state.address.clone()).collect()
    }

    /// Brings the devices of a topology up to date.
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
    /// Brings the device up to date.
    pub fn apply(self, device: &mut Device) {
        device.link = self.link;
        device.port = self.port;
        let before = std::mem::replace(&mut device.network, self.network);
        if let Some((network, before)) = device.network.as_mut().zip(before) {
            network.remember(&before);
        }
    }
}

/// How it begins to say that there is no machine to look at.
pub const NO_MACHINE: &str = "no folder";

/// Looks at all of it: the machine, and, if `xml`, the same in hwloc's own format. An error says why nothing was found.
/// The environment has to be that of [`super::ask`], which tells hwloc of the root.
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

/// Whether there is a machine below this root at all: without its files hwloc makes one up, of one CPU.
pub(super) fn check(root: &Path) -> Result<(), String> {
    let cpus = Host::new(root).path("/sys/devices/system/cpu");
    if cpus.is_dir() { Ok(()) } else { Err(format!("{NO_MACHINE} {}", cpus.display())) }
}

/// Looks at links and network devices alone.
pub(crate) fn links(root: &Path) -> Links {
    sysfs::links(&Host::new(root))
}

/// What a PCI device is for, by its vendor and class; `None` if it is of no interest.
fn kind(vendor: u32, class: u32) -> Option<DeviceKind> {
    let nvidia = vendor == 0x10de;
    match (class >> 8, class & 0xff) {
        (0x03, _) if nvidia => Some(DeviceKind::Gpu),
        (0x06, 0x80) if nvidia => Some(DeviceKind::Nvswitch),
        // The second is InfiniBand as a serial bus: some adapters have that class.
        (0x02, _) | (0x0c, 0x06) => Some(DeviceKind::Network),
        (0x01, _) => Some(DeviceKind::Storage),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
