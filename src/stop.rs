//! A stop that threads can sleep on.

use std::sync::{Condvar, Mutex, PoisonError};

use crate::clock::Mono;

/// Says when it is time to end; ends all sleeps then.
#[derive(Debug, Default)]
pub struct Stop {
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    /// Ends all sleeps.
    pub fn stop(&self) {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Whether it is time to end.
    pub fn stopped(&self) -> bool {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until then, or until it is time to end.
    pub fn wait_until(&self, when: Mono) {
        let mut stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let left = when.since(Mono::now());
            if *stopped || left.is_zero() {
                return;
            }
            stopped = self.changed.wait_timeout(stopped, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
