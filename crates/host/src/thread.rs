//! Threads with a name and a small stack, because the default of 2 MiB per thread would count against the
//! memory limit of the unit.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread with a stack of `stack_kib` KiB. Fails if the system cannot start it.
pub fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    stack_kib: usize,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.into()).stack_size(stack_kib * 1024).spawn(run)
}
