//! The daemon: [`build`] makes its parts, this file runs and drains them.

mod build;
mod pages;
mod persistence;
mod sockets;
mod threads;

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::Signal;
use sd_notify::NotifyState;
use tokio::sync::watch;
use tokio::task::JoinHandle as Task;

use crate::lifecycle::Signals;
use crate::listeners::{self, Listening};
use crate::recorder::FlightRecorder;
use crate::reload::Configuration;
use crate::{control, lifecycle};
use access::Access;
use collectors::{Context, Parts};
use exposition::http::{self, AppState, Hosts, Limits, Listeners, Protection, States};
use host::child;
use model::clock::{Mono, unix_seconds};
use model::sync::lock;
use pages::Pages;
use settings::{Config, Overrides};
use threads::Threads;

/// Reason why the daemon could not start or had to end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// No socket to serve on could be opened.
    #[error(transparent)]
    Listen(#[from] listeners::ListenError),
    /// A thread that should run as long as the daemon ended by itself.
    #[error("the {0} thread has ended unexpectedly; exiting so that the service manager restarts the daemon")]
    Ended(&'static str),
    /// A thread, a signal handler or the runtime could not be created.
    #[error("failed to start: {0}")]
    Start(#[from] io::Error),
}

/// Time from a signal until everything has ended, whatever the driver does. The documented limit is 5 s.
const END_DEADLINE: Duration = Duration::from_millis(4500);
/// Maximum number of helper threads. They encode responses and run requests that read files, of which there are at most
/// [`control::MAX_BLOCKING`].
const HELPERS: usize = 2 * control::MAX_BLOCKING;
/// Idle time after which a helper thread ends. It exceeds the interval of most scrapers, so that a scrape finds a thread.
const HELPER_IDLE: Duration = Duration::from_secs(70);
/// Time between two checks that every thread is still running.
const THREAD_CHECK: Duration = Duration::from_secs(1);

/// Source of every setting.
type Origins = BTreeMap<&'static str, String>;

/// Serves until SIGTERM or SIGINT. Reloads apply the same `overrides`; `access` is the web configuration; `trim_heap`
/// returns free memory to the system.
pub(crate) fn run(
    configuration: Configuration,
    overrides: Overrides,
    access: Option<Access>,
    trim_heap: fn(),
) -> Result<(), Error> {
    child::keep_privileges();
    // SIGHUP must not end the daemon before its handler is installed. The configuration has just been loaded.
    child::ignore(Signal::SIGHUP).map_err(io::Error::from)?;
    let (listeners, listening) = listeners::open(&configuration.loaded.config)?;
    Daemon::build(configuration, overrides, access, listening, trim_heap)?.run(listeners)
}

/// Parts of the running daemon.
struct Daemon {
    /// Configuration at the start. A reload replaces only the one in the context.
    config: Arc<Config>,
    origins: Arc<Mutex<Origins>>,
    context: Context,
    parts: Parts,
    pages: Arc<Pages>,
    recorder: Option<Arc<Mutex<FlightRecorder>>>,
    listening: Listening,
    threads: Threads,
    /// Channel for requests to reload the configuration.
    reload: Sender<()>,
}

/// Tasks that serve the sockets.
struct Servers {
    http: Task<io::Result<()>>,
    local: [Task<()>; 2],
    stop: watch::Sender<bool>,
}

impl Daemon {
    fn run(self, listeners: Listeners) -> Result<(), Error> {
        // The first response needs a snapshot.
        self.parts.snapshots.wait_for_newer(0, THREAD_CHECK);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .thread_name("helper")
            .max_blocking_threads(HELPERS)
            .thread_keep_alive(HELPER_IDLE)
            .build()?;
        let (ended, deadline, recording) = runtime.block_on(async {
            // A client may request a reload as soon as it has a response.
            let signals = Signals::new()?;
            let servers = self.start_servers(listeners);
            lifecycle::notify(&[NotifyState::Ready]);
            let ended = self.wait_for_end(signals).await;
            let deadline = Mono::now() + END_DEADLINE;
            let recording = self.stop(servers).await;
            io::Result::Ok((ended, deadline, recording))
        })?;
        runtime.shutdown_background();
        drop(self.reload);
        self.threads.join(&self.context.inbox, recording, deadline);
        ended
    }

    fn start_servers(&self, listeners: Listeners) -> Servers {
        let Config { http, .. } = &*self.config;
        let (started, interval) = (Mono::now(), self.config.metrics.publish_interval);
        let stale_after = (interval * 10).max(Duration::from_secs(10));
        let state = |responses| {
            Arc::new(AppState {
                snapshots: Arc::clone(&self.parts.snapshots),
                responses,
                started,
                stale_after,
            })
        };
        let states = States {
            whole: state(Arc::clone(&self.pages.whole)),
            nameless: self.pages.nameless.clone().map(state),
        };
        let whole = Arc::clone(&states.whole);
        let access = self.parts.access.clone();
        let has_tls = access.as_ref().is_some_and(|access| access.current().tls.is_some());
        let open_paths = http.open_paths.iter().map(ToString::to_string).collect();
        let limits = Limits {
            max_connections: http.max_connections as usize,
            read_timeout: http.read_timeout,
            write_timeout: http.write_timeout,
        };
        let hosts = Hosts::new(http.hosts.iter().map(ToString::to_string));
        let (stop, stopped) = watch::channel(false);
        let counters = Arc::clone(&self.parts.http);
        let protection = Protection { access, open_paths };
        let serving = http::serve(listeners, states, protection, limits, hosts, counters, stopped.clone());
        let http = tokio::spawn(serving);
        self.log_addresses(if has_tls { "https" } else { "http" });
        let health = sockets::serve_health(Arc::clone(&self.config), Arc::clone(&whole), stopped.clone());
        let control = sockets::ControlSocket::new(self, whole).serve(stopped);
        Servers { http, local: [tokio::spawn(health), tokio::spawn(control)], stop }
    }

    fn log_addresses(&self, scheme: &str) {
        for address in &self.listening.main {
            tracing::info!("serving {scheme}://{address}/");
        }
        for address in &self.listening.dcgm {
            tracing::info!("serving dcgm-exporter's page at {scheme}://{address}/metrics");
        }
    }

    /// Resolves at SIGTERM or SIGINT, or with an error if a thread has ended by itself.
    async fn wait_for_end(&self, signals: Signals) -> Result<(), Error> {
        let release = || self.parts.switch.release(Mono::now(), unix_seconds());
        let reload = || {
            // A receiver that is gone shows as a thread that has ended.
            let _ = self.reload.send(());
        };
        tokio::select! {
            signal = signals.wait_for_end(release, reload) => {
                tracing::info!("received {signal}; exiting");
                Ok(())
            }
            name = self.threads.first_ended() => Err(Error::Ended(name)),
        }
    }

    /// Stops the collectors and servers. Returns the thread that writes the last recording, if there is one.
    async fn stop(&self, servers: Servers) -> Option<JoinHandle<()>> {
        lifecycle::notify(&[NotifyState::Stopping]);
        self.context.stop.stop();
        // The recording starts before anything is waited for: a drain or a reset often follows a fault at once.
        let snapshot = self.parts.snapshots.current();
        let recording = self.recorder.as_ref().and_then(|recorder| lock(recorder).end(&snapshot));
        servers.stop.send_replace(true);
        if let Err(error) = servers.http.await.map_err(io::Error::other).and_then(|served| served) {
            tracing::warn!(%error, "the HTTP server failed");
        }
        servers.local.iter().for_each(Task::abort);
        recording
    }
}
