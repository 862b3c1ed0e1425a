//! The configuration: defaults, then a file, environment variables and flags, each over the one before.
//!
//! [`settings`] declares every key once. [`load`](mod@load) reads the layers and checks each key on its own, so that
//! one run names all errors.

#![forbid(unsafe_code)]

mod dcgm_fields;
mod file;
mod key;
mod load;
pub mod mig_layout;
mod settings;
#[cfg(test)]
mod tests;
mod underscore;
mod value;

use std::collections::HashSet;
use std::path::Path;

use model::catalog::{METRICS, MetricGroup, MetricId, gpu_pcie_throughput_bytes_per_second};

pub use file::ChangedKeys;
pub use load::{ConfigErrors, DEFAULT_FILE, ENV_PREFIX, Loaded, Overrides, load};
pub use settings::*;
pub use underscore::environment_warnings;
pub use value::{HideOwners, Listen};

impl Config {
    /// The groups of metrics that `/metrics` serves: that of single processes follows the setting that reads them.
    pub fn served_groups(&self) -> Vec<MetricGroup> {
        let wanted = &self.metrics.groups;
        let on = |group: &MetricGroup| {
            wanted.contains(group)
                || wanted.contains(&MetricGroup::All)
                || (*group == MetricGroup::Process && self.processes.per_process)
        };
        MetricGroup::ALL.iter().copied().filter(on).collect()
    }

    /// The metrics that are switched off.
    pub fn switched_off(&self) -> HashSet<MetricId> {
        let metrics = METRICS.iter().zip((0..).map(MetricId));
        let left_out = metrics.filter(|(metric, _)| !self.metrics.publishes(metric.name)).map(|(_, id)| id);
        let throughput = gpu_pcie_throughput_bytes_per_second.id();
        left_out.chain((!self.sampler.pcie_throughput).then_some(throughput)).collect()
    }
}

impl Metrics {
    /// Whether the configuration publishes the metric of this name.
    pub fn publishes(&self, name: &str) -> bool {
        let any = |patterns: &[glob::Pattern]| patterns.iter().any(|pattern| pattern.matches(name));
        any(&self.include) && !any(&self.exclude)
    }
}

impl Control {
    /// The socket's path; `None` if there is to be no socket.
    pub fn path(&self) -> Option<&Path> {
        named(&self.socket)
    }
}

impl Health {
    /// The path of the socket for everyone; `None` if there is to be none.
    pub fn path(&self) -> Option<&Path> {
        named(&self.socket)
    }

    /// The path of the socket for NVRx; `None` if there is to be none.
    pub fn nvrx_path(&self) -> Option<&Path> {
        named(&self.nvrx_socket)
    }
}

fn named(path: &Path) -> Option<&Path> {
    (!path.as_os_str().is_empty()).then_some(path)
}
