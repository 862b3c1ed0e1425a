//! Whom the processes on the GPUs work for, and what their hosts say of them.

use std::io;
use std::thread::JoinHandle;

use super::Context;
use crate::sample::Source;

/// Starts the collector.
pub fn start(context: Context) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name("owners".into())
        .spawn(move || super::switched_off(&context, Source::Owners, "owners.enabled"))
}
