//! Windows of planned work.

use std::io;
use std::thread::JoinHandle;

use super::Context;
use crate::sample::Source;

/// Starts the collector.
pub fn start(context: Context) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name("windows".into())
        .spawn(move || super::switched_off(&context, Source::Windows, "windows.dir"))
}
