//! The machine around the GPUs: a process of its own looks, at start, when GPUs come or go, and at links and network
//! devices now and then.

use std::io;
use std::thread::JoinHandle;

use super::Context;
use crate::sample::Source;

/// Starts the collector.
pub fn start(context: Context) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name("topology".into())
        .spawn(move || super::switched_off(&context, Source::Topology, "topology.enabled"))
}
