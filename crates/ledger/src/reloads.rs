//! How the last load of the configuration went.

use super::builder::Builder;
use model::catalog::{self as m, Node};

#[derive(Debug)]
pub(crate) struct Reloads {
    successful: bool,
    /// When the configuration in use was loaded, in seconds since 1970.
    unix_seconds: f64,
}

impl Reloads {
    /// The configuration was loaded then, at the start.
    pub fn new(unix_seconds: f64) -> Reloads {
        Reloads { successful: true, unix_seconds }
    }

    pub fn succeeded(&mut self, unix_seconds: f64) {
        *self = Reloads::new(unix_seconds);
    }

    /// The configuration in use stays.
    pub fn failed(&mut self) {
        self.successful = false;
    }

    pub fn publish(&self, b: &mut Builder<'_>) {
        let node = Node {};
        b.flag(&m::gpu_exporter_config_last_reload_successful, &node, (), self.successful);
        b.add(&m::gpu_exporter_config_last_reload_success_timestamp_seconds, &node, (), self.unix_seconds);
    }
}
