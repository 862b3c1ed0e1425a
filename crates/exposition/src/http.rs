//! The HTTP server. It is read-only, limits every resource that a client can use, and never blocks driver calls.
//!
//! - `listen` opens the sockets, and `connection` applies the [`Limits`] to every client.
//! - `places` chooses the connection to close when the server reaches its limit, based on the `activity` of the
//!   connections.
//! - `guard` decides which responses a client may read, and `host` checks the `Host` header.
//! - `routes` maps paths to handlers. `events` and `live` also serve streams.
//!
//! The server runs on one thread, which never encodes a response. A handler sends bytes from the
//! [cache](crate::response_cache) or waits for a helper thread that encodes them.

mod activity;
mod app_state;
mod connection;
mod events;
mod guard;
mod host;
mod listen;
mod live;
mod owners;
mod places;
mod routes;
mod streams;
#[cfg(test)]
mod tests;

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use guard::{Guard, Routers};
use model::http_counters::HttpCounters;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::sync::watch;
use tokio::task::JoinSet;

pub use app_state::AppState;
pub use guard::Protection;
pub use host::Hosts;
pub use listen::{adopt, bind};

/// Maximum time for a client to read a whole response, in multiples of `write_timeout`. A client that reads slowly for
/// longer is as harmful as a client that reads nothing.
const MAX_RESPONSE_TIMEOUTS: u32 = 3;
/// Time for responses in progress to finish once the server stops.
const DRAIN: Duration = Duration::from_secs(2);

/// Limits of one server for its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of open connections.
    pub max_connections: usize,
    /// Maximum time for a client to send a request header, and for a connection to stay idle. The first request must
    /// arrive within 5 s even if this limit is higher.
    pub read_timeout: Duration,
    /// Maximum time for a client to read nothing of a response in progress. A client may need three times as long for
    /// a whole response; a stream of events has no such limit.
    pub write_timeout: Duration,
}

/// The sockets of one server, whose clients share the limits.
#[derive(Debug, Default)]
pub struct Listeners {
    /// Sockets of `http.listen`, which serve every path.
    pub main: Vec<TcpListener>,
    /// Sockets of `dcgm.listen`, which imitate dcgm-exporter.
    pub dcgm: Vec<TcpListener>,
}

/// States that the handlers of one server share.
#[derive(Debug)]
pub struct States {
    pub whole: Arc<AppState>,
    /// State without names of owners, for unauthenticated clients. If it is `None`, they read the same responses as
    /// everyone else.
    pub nameless: Option<Arc<AppState>>,
}

/// Serves requests until `stop` is true or its sender is dropped. Then gives responses in progress two seconds to
/// finish.
pub async fn serve(
    listeners: Listeners,
    states: States,
    protection: Protection,
    limits: Limits,
    hosts: Hosts,
    stats: Arc<HttpCounters>,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let streams = streams::Streams::new(limits.max_connections, stop.clone());
    let routers = |router: &dyn Fn(Arc<AppState>) -> Router| Routers {
        whole: router(Arc::clone(&states.whole)),
        nameless: states.nameless.clone().map(router),
    };
    let main = routers(&|state| routes::router(state, streams.clone(), hosts.clone(), stats.clone()));
    let dcgm = routers(&|state| routes::dcgm_router(state, hosts.clone(), stats.clone()));
    let guard = Arc::new(Guard::new(protection, stats.clone()));
    let clients = connection::Clients::new(main, guard, limits, stats.clone(), stop.clone());
    let dcgm_clients = clients.clone().with_routers(dcgm);
    let main = listeners.main.into_iter().map(|listener| (listener, clients.clone()));
    let dcgm = listeners.dcgm.into_iter().map(|listener| (listener, dcgm_clients.clone()));
    let mut accepting = JoinSet::new();
    for (listener, clients) in main.chain(dcgm) {
        listener.set_nonblocking(true)?;
        // Connections inherit the timeout, so that the kernel also drops bytes that a vanished client never read.
        let timeout = (limits.write_timeout * MAX_RESPONSE_TIMEOUTS).as_millis();
        setsockopt(&listener, sockopt::TcpUserTimeout, &u32::try_from(timeout).unwrap_or(u32::MAX))?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        accepting.spawn(clients.accept(listener));
    }
    stopped(&mut stop).await;
    let drained = async { while accepting.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN, drained).await.is_err() {
        let seconds = DRAIN.as_secs();
        tracing::warn!("failed to finish all responses within {seconds} s; slow clients received a part");
    }
    Ok(())
}

/// Resolves once `stop` is true or its sender is dropped.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that the sender was dropped, which also stops the server.
    let _ = stop.wait_for(|stop| *stop).await;
}
