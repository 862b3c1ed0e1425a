//! What the server counts, for the ledger to publish.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use model::catalog::HttpStatus;
use model::catalog::schema::KnownLabel;

/// Answers and connections of one server. Counters only grow.
#[derive(Debug, Default)]
pub struct Stats {
    answers: [AtomicU64; HttpStatus::ALL.len()],
    connections: AtomicUsize,
    refused: AtomicU64,
}

impl Stats {
    /// Answers with this status.
    pub fn answers(&self, status: HttpStatus) -> u64 {
        self.answers[status as usize].load(Ordering::Relaxed)
    }

    /// Connections open.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Connections turned away because too many were open.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    pub(super) fn count(&self, status: u16) {
        let status = match status {
            200 => HttpStatus::C200,
            404 => HttpStatus::C404,
            405 => HttpStatus::C405,
            408 => HttpStatus::C408,
            431 => HttpStatus::C431,
            503 => HttpStatus::C503,
            _ => HttpStatus::Other,
        };
        self.answers[status as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes a place among at most `max` connections, if one is free.
    pub(super) fn enter(self: &std::sync::Arc<Self>, max: usize) -> Option<Place> {
        self.connections
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| (open < max).then_some(open + 1))
            .ok()
            .map(|_| Place(self.clone()))
    }
}

/// A connection's place, free again when dropped.
#[derive(Debug)]
pub(super) struct Place(std::sync::Arc<Stats>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
