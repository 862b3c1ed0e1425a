//! Events counted on the CPUs.

use std::io;
use std::thread::JoinHandle;

use super::Context;
use crate::sample::Source;

/// Starts the collector.
pub fn start(context: Context) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name("cpu".into())
        .spawn(move || super::switched_off(&context, Source::Cpu, "cpu.enabled"))
}
