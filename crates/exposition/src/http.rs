//! The HTTP server: read-only, bounded in every direction, and never in the way of the driver.
//!
//! `listen` opens the sockets, `connection` holds each client to the [`Limits`], `places` says which connection leaves
//! when they run short, by the `activity` of each. `guard` says what its
//! client may read. `host` checks the name that a client asks for, `routes` responds, `events` also as a stream and `live` to
//! open status pages. Everything runs on one thread, which encodes nothing: a handler sends bytes of the
//! [cache](crate::response_cache), or waits for a helper thread that makes them.

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

/// A client that takes some bytes of a response, but not all of them within so many times `write_timeout`, is as harmful
/// as one that takes none.
const MAX_RESPONSE_TIMEOUTS: u32 = 3;
/// How long answers that are on their way may take once the server stops.
const DRAIN: Duration = Duration::from_secs(2);

/// What one server grants its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections open at the same time.
    pub max_connections: usize,
    /// Time for a client to send a whole request header, and for an idle connection to stay. The first request has 5 s
    /// at most.
    pub read_timeout: Duration,
    /// Time for a client to take some of the bytes it is sent; for a whole response three times as long,
    /// for a stream of events without end.
    pub write_timeout: Duration,
}

/// The sockets of one server. Their clients share the limits.
#[derive(Debug, Default)]
pub struct Listeners {
    /// For everything that the server has.
    pub main: Vec<TcpListener>,
    /// For what speaks as dcgm-exporter does.
    pub dcgm: Vec<TcpListener>,
}

/// What the handlers of one server share.
#[derive(Debug)]
pub struct States {
    pub whole: Arc<AppState>,
    /// Without names of owners, for clients that are not authenticated; `None`: these read the same.
    pub nameless: Option<Arc<AppState>>,
}

/// Serves until `stop` is true or its sender is gone; then lets answers on their way end, for two seconds.
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
        // Connections inherit the timeout: what a client that is gone has not taken leaves the kernel as well.
        let timeout = (limits.write_timeout * MAX_RESPONSE_TIMEOUTS).as_millis();
        setsockopt(&listener, sockopt::TcpUserTimeout, &u32::try_from(timeout).unwrap_or(u32::MAX))?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        accepting.spawn(clients.accept(listener));
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
