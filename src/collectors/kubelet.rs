//! What the kubelet has given out: pods and containers with their devices.

use std::io;
use std::thread::JoinHandle;

use super::Context;
use crate::sample::Source;

/// Starts the collector.
pub fn start(context: Context) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name("kubelet".into())
        .spawn(move || super::switched_off(&context, Source::Kubelet, "owners.kubelet_socket"))
}
