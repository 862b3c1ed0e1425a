//! Finding out what the machine is: hwloc for packages, NUMA nodes, caches, cores and the PCI tree, sysfs for the
//! links and network devices. Only for a process of its own: a file of a sick device can hang whoever reads it.
//!
//! The only module that uses hwloc ([`machine`]) is here.

mod machine;
mod sysfs;

use std::path::{Path, PathBuf};

use super::answer::Links;
use host::Host;
use model::topology::Topology;

/// Where a topology comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The machine whose files are below this root.
    Live(PathBuf),
    /// A file that hwloc wrote (`lstopo machine.xml`).
    Xml(PathBuf),
    /// A description in hwloc's words: `package:2 l3:3 core:8 pu:1`.
    Synthetic(String),
}

/// How it begins to say that there is no machine to look at.
pub const NO_MACHINE: &str = "no folder";

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The machine.
    pub topology: Topology,
    /// The same in hwloc's own format.
    pub xml: String,
}

/// Why nothing was found.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

/// Looks at all of it. The environment has to be that of [`super::ask`], which tells hwloc of the root.
pub fn discover(origin: &Origin) -> Result<Found, Error> {
    if let Origin::Live(root) = origin {
        check(root)?;
    }
    let mut found = machine::read(origin).map_err(Error)?;
    if let Origin::Live(root) = origin {
        sysfs::complete(&Host::new(root), &mut found.topology);
    }
    Ok(found)
}

/// Whether there is a machine below this root at all: without its files hwloc makes one up, of one CPU.
pub(super) fn check(root: &Path) -> Result<(), Error> {
    let cpus = Host::new(root).path("/sys/devices/system/cpu");
    if cpus.is_dir() { Ok(()) } else { Err(Error(format!("{NO_MACHINE} {}", cpus.display()))) }
}

/// Looks at links and network devices alone.
pub fn links(root: &Path) -> Links {
    sysfs::links(&Host::new(root))
}

#[cfg(test)]
mod tests;
