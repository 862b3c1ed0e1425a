//! What the topology process answers, and what of it is looked at again and again.

use serde::{Deserialize, Serialize};

use model::topology::{Device, Link, LinkCapability, Network, Topology};

/// The hidden command of the topology process.
pub const COMMAND: &str = "topology-child";

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum What {
    /// The whole machine.
    All,
    /// The whole machine, and hwloc's own format of it.
    Xml,
    /// Links and network devices.
    Links,
}

/// The whole machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct All {
    /// What was found.
    pub topology: Topology,
    /// Devices that a look at links sees, so that the next such look tells whether one came or went.
    pub devices: Vec<String>,
    /// The same in hwloc's own format, if it was asked for.
    pub xml: Option<String>,
}

/// Links and network devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Links(pub Vec<DeviceState>);

/// What of one device can change while the machine runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceState {
    /// PCI address.
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
        device.network = self.network;
    }
}
