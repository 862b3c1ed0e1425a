//! Wiring of the daemon: build everything, run, drain. No logic of its own.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::watch;

use crate::catalog::{BuildInfo, METRICS, MetricId};
use crate::clock::Mono;
use crate::collectors::{self, Context};
use crate::config::Config;
use crate::encode::Renderings;
use crate::host::Host;
use crate::http::{self, Doors, Limits};
use crate::ledger::inbox::Inbox;
use crate::ledger::{self, Beat, Hooks, Settings};
use crate::sampler::Stop;
use crate::snapshot::Board;
use crate::state::{Inventory, Store};
use crate::{control, lifecycle};

/// Why the daemon could not start or had to end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be served on.
    #[error(
        "cannot listen on {address}: {source}; choose another with --listen, http.listen in the file, or GPU_NODE_EXPORTER__HTTP__LISTEN"
    )]
    Listen {
        /// The address.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// A thread, a signal handler or the runtime could not be had.
    #[error("cannot start: {0}")]
    Start(#[from] io::Error),
}

/// All of it ends within this time after a signal, whatever the driver does.
const END_DEADLINE: Duration = Duration::from_secs(5);

/// Serves until SIGTERM or SIGINT.
pub fn run(config: Config) -> Result<(), Error> {
    let address = config.http.listen.to_string();
    let listeners =
        http::bind(&address).map_err(|source| Error::Listen { address: address.clone(), source })?;
    let bound: Vec<String> =
        listeners.iter().filter_map(|l| l.local_addr().ok()).map(|a| a.to_string()).collect();
    let config = Arc::new(config);
    let off: Arc<HashSet<MetricId>> = Arc::new(switched_off(&config));
    let inbox = Arc::new(Inbox::default());
    let board = Arc::new(Board::default());
    let stop = Arc::new(Stop::default());
    let http_stats = Arc::new(http::Stats::default());
    let renderings = Renderings::start(Arc::clone(&board))?;

    let (expected, remember) = inventory(&config);
    let settings = Settings {
        max_series: config.metrics.max_series as usize,
        off: HashSet::clone(&off),
        bridge: (config.sampler.fast_interval * 3).max(Duration::from_secs(3)),
        expected,
        build: BuildInfo {
            version: env!("CARGO_PKG_VERSION").into(),
            revision: option_env!("GNE_REVISION").unwrap_or("unknown").into(),
        },
    };
    let watchdog = lifecycle::watchdog();
    let hooks = Hooks {
        beat: Box::new(move || {
            if watchdog {
                lifecycle::notify(&[NotifyState::Watchdog]);
            }
        }),
        expected: remember,
    };
    let ledger = {
        let (inbox, board) = (Arc::clone(&inbox), Arc::clone(&board));
        let every = Beat { publish: config.ledger.publish_interval, fold: config.sampler.fast_interval };
        std::thread::Builder::new()
            .name("ledger".into())
            .spawn(move || ledger::run(settings, every, &inbox, &board, hooks))?
    };
    let context = Context {
        config: Arc::clone(&config),
        off,
        inbox: Arc::clone(&inbox),
        stop: Arc::clone(&stop),
        samplers: Arc::default(),
        http: Arc::clone(&http_stats),
    };
    let mut collecting = Vec::new();
    for collector in collectors::ALL {
        collecting.push((collector.start)(context.clone())?);
    }

    let doors = Doors {
        board: Arc::clone(&board),
        renderings: Arc::clone(&renderings),
        started: Mono::now(),
        stale_after: (config.ledger.publish_interval * 10).max(Duration::from_secs(10)),
    };
    let limits = Limits {
        max_connections: config.http.max_connections as usize,
        read_timeout: config.http.read_timeout,
        write_timeout: config.http.write_timeout,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        let (stop_doors, stopped) = watch::channel(false);
        let control = open_control(&config, &board, &renderings, stopped.clone());
        let serving = tokio::spawn(http::serve(listeners, Arc::new(doors), limits, http_stats, stopped));
        for address in &bound {
            tracing::info!("serving http://{address}/");
        }
        lifecycle::notify(&[NotifyState::Ready]);
        let signal = lifecycle::asked_to_end().await?;
        tracing::info!("{signal}: ending");
        lifecycle::notify(&[NotifyState::Stopping]);
        stop.stop();
        stop_doors.send_replace(true);
        if let Err(error) = serving.await.map_err(io::Error::other).and_then(|served| served) {
            tracing::warn!(%error, "the HTTP server");
        }
        if let Some(control) = control {
            control.abort();
        }
        Ok::<(), io::Error>(())
    });
    runtime.shutdown_background();
    join_until(collecting, Mono::now() + END_DEADLINE.mul_f64(0.8));
    inbox.close();
    join_until(vec![ledger], Mono::now() + END_DEADLINE.mul_f64(0.1));
    Ok(ended?)
}

/// The metrics that are switched off.
fn switched_off(config: &Config) -> HashSet<MetricId> {
    METRICS
        .iter()
        .enumerate()
        .filter(|(_, metric)| !config.metrics.publishes(metric.name))
        .filter_map(|(at, _)| u16::try_from(at).ok().map(MetricId))
        .collect()
}

type Remember = Box<dyn FnMut(usize) + Send>;

/// The most GPUs seen earlier in this boot, and how to remember more. Without a boot id or a usable folder
/// the number is only kept while the daemon runs.
fn inventory(config: &Config) -> (usize, Remember) {
    let forgetful = |what: &str, error: io::Error| -> (usize, Remember) {
        tracing::warn!(%error, "{what}: the number of GPUs is not kept over restarts");
        (0, Box::new(|_| {}))
    };
    let boot_id = match Host::new(&config.host.root).boot_id() {
        Ok(id) => id,
        Err(error) => return forgetful("no boot id", error),
    };
    let store = Store::new(&config.state.dir);
    let known = match store.load::<Inventory>() {
        Ok(known) => known.filter(|i| i.boot_id == boot_id).map_or(0, |i| i.devices),
        Err(error) => return forgetful("state.dir cannot be read", error),
    };
    let keeper: Sender<Inventory> = match store.keeper() {
        Ok(keeper) => keeper,
        Err(error) => return forgetful("no thread", error),
    };
    let remember = move |devices| {
        if keeper.send(Inventory { boot_id: boot_id.clone(), devices }).is_err() {
            tracing::warn!("the thread that keeps the state has ended");
        }
    };
    (known, Box::new(remember))
}

/// Opens the control socket. A daemon that cannot is still of use, so this is a warning.
fn open_control(
    config: &Config,
    board: &Arc<Board>,
    renderings: &Arc<Renderings>,
    stopped: watch::Receiver<bool>,
) -> Option<tokio::task::JoinHandle<io::Result<()>>> {
    let path = config.control.path()?;
    let server = match control::Server::bind(path) {
        Ok(server) => server,
        Err(error) => {
            tracing::warn!(%error, socket = %path.display(), "no control socket: `snapshot` will not work");
            return None;
        }
    };
    let (board, renderings) = (Arc::clone(board), Arc::clone(renderings));
    Some(tokio::spawn(server.serve(
        move |request: String| {
            let (board, renderings) = (Arc::clone(&board), Arc::clone(&renderings));
            async move { control::look(&request, &board, &renderings).await }
        },
        stopped,
    )))
}

/// Waits for threads, but not for ever: what has not ended by then ends with the process.
fn join_until(threads: Vec<std::thread::JoinHandle<()>>, deadline: Mono) {
    let pause = Stop::default();
    for thread in threads {
        while !thread.is_finished() && Mono::now() < deadline {
            pause.wait_until(Mono::now() + Duration::from_millis(5));
        }
        if !thread.is_finished() {
            tracing::warn!(thread = thread.thread().name(), "has not ended in time");
        } else if thread.join().is_err() {
            tracing::error!("a thread panicked");
        }
    }
}
