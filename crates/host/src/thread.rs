//! Threads with a name and a small stack: the default of 2 MiB each would count against the memory limit of the unit.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread with a stack of so many KiB.
pub fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    stack_kib: usize,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.into()).stack_size(stack_kib * 1024).spawn(run)
}
