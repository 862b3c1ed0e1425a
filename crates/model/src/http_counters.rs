//! Counters of the HTTP server, which the exporter publishes about itself.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::catalog::HttpStatus;
use crate::catalog::schema::KnownLabel;

/// Answers and connections of one server. Counters only grow.
#[derive(Debug, Default)]
pub struct HttpCounters {
    answers: [AtomicU64; HttpStatus::ALL.len()],
    connections: AtomicUsize,
    refused: AtomicU64,
    evicted: AtomicU64,
    handshakes_failed: AtomicU64,
}

impl HttpCounters {
    /// Answers with this status.
    pub fn answers(&self, status: HttpStatus) -> u64 {
        self.answers[status as usize].load(Ordering::Relaxed)
    }

    /// Connections open.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Connections turned away because all others worked.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Waiting connections closed because another needed the place.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// TLS handshakes that failed.
    pub fn handshakes_failed(&self) -> u64 {
        self.handshakes_failed.load(Ordering::Relaxed)
    }

    /// Counts a response with this status.
    pub fn count(&self, status: u16) {
        let known = HttpStatus::ALL.iter().find(|known| known.known().parse() == Ok(status));
        let status = known.copied().unwrap_or(HttpStatus::Other);
        self.answers[status as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection that was turned away.
    pub fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a waiting connection that was closed.
    pub fn count_evicted(&self) {
        self.evicted.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a TLS handshake that failed.
    pub fn count_handshake_failed(&self) {
        self.handshakes_failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Stores the number of open connections.
    pub fn set_connections(&self, open: usize) {
        self.connections.store(open, Ordering::Relaxed);
    }
}
