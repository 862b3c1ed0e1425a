//! The HTTP server: read-only, bounded in every direction, and never in the way of the driver.
//!
//! `listen` opens the sockets, `connection` holds each client to the [`Limits`], `doors` answers, `events`
//! also as a stream.
//! Everything runs in one thread's runtime: a handler looks at the [`crate::snapshot_cell::SnapshotCell`], sends
//! bytes that are ready, and waits for nothing but the client.

mod connection;
mod events;
mod listen;
pub mod routes;
mod stats;
#[cfg(test)]
mod tests;

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

pub use listen::bind;
pub use routes::{Doors, PATHS};
pub use stats::Stats;

/// How long answers that are on their way may take once the server is told to stop.
const DRAIN: Duration = Duration::from_secs(2);

/// What one server grants its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections open at the same time.
    pub max_connections: usize,
    /// Time for a client to send a whole request header, and for an idle connection to stay.
    pub read_timeout: Duration,
    /// Time for a client to take some of the bytes it is sent.
    pub write_timeout: Duration,
}

/// Serves until `stop` is true or its sender is gone; then lets answers on their way end, for two seconds.
pub async fn serve(
    listeners: Vec<TcpListener>,
    doors: Arc<Doors>,
    limits: Limits,
    stats: Arc<Stats>,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let streams = events::Streams::new(limits.max_connections, stop.clone());
    let router = routes::router(doors, streams, stats.clone());
    let clients = connection::Clients::new(router, limits, stats, stop.clone());
    let mut accepting = JoinSet::new();
    for listener in listeners {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        accepting.spawn(clients.clone().accept(listener));
    }
    stopped(&mut stop).await;
    let drained = async { while accepting.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN, drained).await.is_err() {
        tracing::warn!("some answers were cut off: their clients were too slow");
    }
    Ok(())
}

/// Resolves once `stop` is true or its sender is gone.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error says that the sender is gone, which is a reason to stop as well.
    let _ = stop.wait_for(|stop| *stop).await;
}
