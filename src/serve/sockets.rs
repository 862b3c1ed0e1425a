//! Local sockets of the daemon: control, health and NVRx. A daemon that cannot open one of them keeps running.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::sync::{Semaphore, watch};

use super::{Daemon, Origins};
use crate::control::{self, Request, orders};
use crate::local_socket::LocalSocket;
use crate::nvrx;
use crate::redaction::without_secrets;
use collectors::views::canary::CanaryFacts;
use collectors::{Context, Parts};
use exposition::http::AppState;
use model::sync::lock;
use settings::{Config, Loaded};

/// Mode of the health sockets. Every user of the node may read the verdict, as on the status page.
const HEALTH_MODE: u32 = 0o666;

/// State that the requests on the control socket read and change.
pub(super) struct ControlSocket {
    context: Context,
    parts: Parts,
    state: Arc<AppState>,
    origins: Arc<Mutex<Origins>>,
    /// Permits for requests that read files.
    blocking: Arc<Semaphore>,
}

impl ControlSocket {
    pub(super) fn new(daemon: &Daemon, state: Arc<AppState>) -> Arc<ControlSocket> {
        Arc::new(ControlSocket {
            context: daemon.context.clone(),
            parts: daemon.parts.clone(),
            state,
            origins: Arc::clone(&daemon.origins),
            blocking: Arc::new(Semaphore::new(control::MAX_BLOCKING)),
        })
    }

    pub(super) async fn serve(self: Arc<Self>, stopped: watch::Receiver<bool>) {
        let opened = open(self.context.live.load().control.socket.as_deref(), control::MODE).await;
        let Some(socket) = or_warn("`gpu-node-exporter snapshot` will not work", opened) else { return };
        let answer = move |request| Arc::clone(&self).answer(request);
        log_failure(control::serve(socket, answer, stopped).await);
    }

    async fn answer(self: Arc<Self>, request: Request) -> Result<Bytes, String> {
        let Parts { switch, snapshots, .. } = &self.parts;
        if let Some(answer) = orders::handle_request(&request.line, switch, &self.context.inbox) {
            return answer;
        }
        let words: Vec<&str> = request.line.split_whitespace().collect();
        match words[..] {
            ["canary" | "nvswitch", "clear", ..] => {
                let (inbox, snapshots) = (Arc::clone(&self.context.inbox), Arc::clone(snapshots));
                self.run_blocking(move || orders::handle_clear(&request, &inbox, &snapshots)).await
            }
            ["canary", "status"] => {
                let shared = Arc::clone(&self);
                self.run_blocking(move || shared.canary_status()).await
            }
            ["config"] => {
                let config = Config::clone(&self.context.live.load());
                let origins = lock(&self.origins).clone();
                let loaded = Loaded { config, origins, ..Loaded::default() };
                Ok(without_secrets(&loaded.to_toml()).into())
            }
            _ => control::read(&request.line, &self.state).await,
        }
    }

    async fn run_blocking(
        &self,
        request: impl FnOnce() -> Result<Bytes, String> + Send + 'static,
    ) -> Result<Bytes, String> {
        control::run_blocking(&self.blocking, control::BLOCKING_TIMEOUT, request).await
    }

    fn canary_status(&self) -> Result<Bytes, String> {
        let Parts { canary, switch, snapshots, .. } = &self.parts;
        let facts = CanaryFacts::new(&snapshots.current());
        orders::json(&canary.status(&self.context.live.load(), switch.is_released(), &facts))
    }
}

/// Serves the sockets on which every local user may read the verdict, and nothing else.
pub(super) async fn serve_health(config: Arc<Config>, state: Arc<AppState>, stopped: watch::Receiver<bool>) {
    let for_commands = async {
        let opened = open(config.health.socket.as_deref(), HEALTH_MODE).await;
        let Some(socket) = or_warn("only root and its group can read the verdict", opened) else { return };
        let (state, stopped) = (Arc::clone(&state), stopped.clone());
        let answer = move |request: Request| {
            let state = Arc::clone(&state);
            async move {
                match request.line.split_whitespace().next() {
                    Some("health") => control::read(&request.line, &state).await,
                    _ => Err("this socket answers only `health`".to_owned()),
                }
            }
        };
        log_failure(control::serve(socket, answer, stopped).await);
    };
    let for_nvrx = async {
        let opened = open(config.health.nvrx_socket.as_deref(), HEALTH_MODE).await;
        let Some(socket) = or_warn("NVRx cannot check this node", opened) else { return };
        log_failure(nvrx::serve(socket, Arc::clone(&state), stopped.clone()).await);
    };
    tokio::join!(for_commands, for_nvrx);
}

/// Opens a socket; returns `None` without a path.
async fn open(path: Option<&Path>, mode: u32) -> io::Result<Option<LocalSocket>> {
    let Some(path) = path.map(ToOwned::to_owned) else { return Ok(None) };
    // Opening connects to a daemon that may already use the path, and that daemon may be slow to answer.
    let opened = tokio::task::spawn_blocking(move || LocalSocket::bind(&path, mode)).await;
    opened.map_err(io::Error::other).and_then(|socket| socket).map(Some)
}

fn or_warn(effect: &str, opened: io::Result<Option<LocalSocket>>) -> Option<LocalSocket> {
    opened.unwrap_or_else(|error| {
        tracing::warn!(%error, "failed to open a local socket; {effect}");
        None
    })
}

fn log_failure(served: io::Result<()>) {
    if let Err(error) = served {
        tracing::warn!(%error, "a local socket failed and is no longer served");
    }
}
