//! Configuration from defaults, a file, environment variables and flags. Later layers override earlier ones.
//!
//! [`settings`] declares every key. [`load`](mod@load) reads the layers and checks every key separately, so that one run
//! reports all errors.

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

use model::catalog::{METRICS, MetricGroup, MetricId, gpu_pcie_throughput_bytes_per_second};

pub use file::ChangedKeys;
pub use load::{ConfigErrors, DEFAULT_FILE, ENV_PREFIX, Loaded, Overrides, load};
pub use settings::*;
pub use underscore::environment_warnings;
pub use value::{HideOwners, Listen};

impl Config {
    /// Returns the groups of metrics that `/metrics` serves. `processes.per_process` adds the group of single processes.
    pub fn served_groups(&self) -> Vec<MetricGroup> {
        let wanted = &self.metrics.groups;
        let on = |group: &MetricGroup| {
            wanted.contains(group)
                || wanted.contains(&MetricGroup::All)
                || (*group == MetricGroup::Process && self.processes.per_process)
        };
        MetricGroup::ALL.iter().copied().filter(on).collect()
    }

    /// Returns the metrics that the configuration disables.
    pub fn switched_off(&self) -> HashSet<MetricId> {
        let metrics = METRICS.iter().zip((0..).map(MetricId));
        let left_out = metrics.filter(|(metric, _)| !self.metrics.publishes(metric.name)).map(|(_, id)| id);
        let throughput = gpu_pcie_throughput_bytes_per_second.id();
        left_out.chain((!self.sampler.pcie_throughput).then_some(throughput)).collect()
    }
}

impl Metrics {
    /// Returns true if the configuration publishes the metric with this name.
    pub fn publishes(&self, name: &str) -> bool {
        let any = |patterns: &[glob::Pattern]| patterns.iter().any(|pattern| pattern.matches(name));
        any(&self.include) && !any(&self.exclude)
    }
}
