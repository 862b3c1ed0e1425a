//! Locks without poison: the data behind every lock of this program is whole between two statements.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The lock, also after a thread that held it panicked.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
