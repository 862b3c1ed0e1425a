//! Counters of the HTTP server, which the exporter publishes as its own metrics.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::catalog::HttpStatus;
use crate::catalog::schema::KnownLabel;

/// Responses and connections of one server. Counters only increase.
#[derive(Debug, Default)]
pub struct HttpCounters {
    answers: [AtomicU64; HttpStatus::ALL.len()],
    connections: AtomicUsize,
    refused: AtomicU64,
    evicted: AtomicU64,
    handshakes_failed: AtomicU64,
}

impl HttpCounters {
    /// Returns the number of responses with this status.
    pub fn answers(&self, status: HttpStatus) -> u64 {
        self.answers[status as usize].load(Ordering::Relaxed)
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Returns the number of connections refused because all other connections were active.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Returns the number of idle connections closed to make room for another one.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Returns the number of failed TLS handshakes.
    pub fn handshakes_failed(&self) -> u64 {
        self.handshakes_failed.load(Ordering::Relaxed)
    }

    /// Counts a response with this status.
    pub fn count(&self, status: u16) {
        let known = HttpStatus::ALL.iter().find(|known| known.known().parse() == Ok(status));
        let status = known.copied().unwrap_or(HttpStatus::Other);
        self.answers[status as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a refused connection.
    pub fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an idle connection that was closed.
    pub fn count_evicted(&self) {
        self.evicted.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a failed TLS handshake.
    pub fn count_handshake_failed(&self) {
        self.handshakes_failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Stores the number of open connections.
    pub fn set_connections(&self, open: usize) {
        self.connections.store(open, Ordering::Relaxed);
    }
}
