//! Result of the last reload of the configuration.

use super::builder::Builder;
use model::catalog::{self as m, Node};

pub(crate) struct Reloads {
    successful: bool,
    /// Time at which the current configuration was loaded, in seconds since 1970.
    unix_seconds: f64,
}

impl Reloads {
    /// Records the load at the start.
    pub fn new(unix_seconds: f64) -> Reloads {
        Reloads { successful: true, unix_seconds }
    }

    pub fn succeeded(&mut self, unix_seconds: f64) {
        *self = Reloads::new(unix_seconds);
    }

    /// Records a failed reload. The current configuration stays in use.
    pub fn failed(&mut self) {
        self.successful = false;
    }

    pub fn publish(&self, b: &mut Builder<'_>) {
        let node = Node {};
        b.flag(&m::gpu_exporter_config_last_reload_successful, &node, (), self.successful);
        b.add(&m::gpu_exporter_config_last_reload_success_timestamp_seconds, &node, (), self.unix_seconds);
    }
}
