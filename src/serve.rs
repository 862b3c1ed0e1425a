//! Wiring of the daemon: build everything, run, drain. No logic of its own.

mod persistence;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::Signal;
use sd_notify::NotifyState;
use tokio::sync::{Semaphore, watch};

use crate::control::{Request, orders};
use crate::listeners::Listening;
use crate::local_socket::LocalSocket;
use crate::recorder::FlightRecorder;
use crate::redaction::without_secrets;
use crate::reload::{Configuration, Reloader};
use crate::{control, drop_in, lifecycle, listeners, nvrx};
use access::Access;
use collectors::nvml::switch::Switch;
use collectors::views::canary::CanaryFacts;
use collectors::{self, Context, LiveConfig, Parts};
use dcgm::list::FieldList;
use exposition::http::{self, AppState, Hosts, Limits, Protection, States};
use exposition::response_cache::ResponseCache;
use host::Host;
use host::child;
use host::state::Store;
use host::stop::Stop;
use ledger::inbox::Inbox;
use ledger::{Hooks, LedgerSettings, LiveSettings};
use model::catalog::BuildInfo;
use model::catalog::schema::KnownLabel;
use model::clock::{Mono, unix_seconds};
use model::http_counters::HttpCounters;
use model::snapshot_cell::SnapshotCell;
use model::sync::lock;
use persistence::StateKeepers;
use settings::{Config, HideOwners, Loaded, Overrides};

/// Why the daemon could not start or had to end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no socket to serve on.
    #[error(transparent)]
    Listen(#[from] listeners::ListenError),
    /// A part of the daemon ended by itself.
    #[error("the {0} thread has ended, which is a fault; ending, to be started again")]
    Ended(&'static str),
    /// A thread, a signal handler or the runtime could not be had.
    #[error("cannot start: {0}")]
    Start(#[from] io::Error),
}

/// All of it ends within this time after a signal, whatever the driver does; the promise is 5 s.
const END_DEADLINE: Duration = Duration::from_millis(4500);
/// What of it is the ledger's, to save what it knows.
const LEDGER_TIME: Duration = Duration::from_secs(1);
/// Threads for what the thread that serves must not do: requests that read files ([`control::MAX_BLOCKING`] at most), and
/// encoding.
const HELPERS: usize = 2 * control::MAX_BLOCKING;
/// Longer than the interval of most scrapers, so that a scrape finds a thread.
const HELPER_IDLE: Duration = Duration::from_secs(70);
/// Who may ask for the verdict: everyone on the node, as with the page.
const HEALTH_MODE: u32 = 0o666;
/// How often it is looked whether every part still runs.
const LOOK: Duration = Duration::from_secs(1);

/// Serves until SIGTERM or SIGINT. The configuration is loaded again with the same `overrides`; `access` is the web
/// configuration. `trim_heap` gives free memory back to the system.
pub fn run(
    configuration: Configuration,
    overrides: Overrides,
    access: Option<Access>,
    trim_heap: fn(),
) -> Result<(), Error> {
    let Configuration { loaded, declared, fields, files } = configuration;
    let Loaded { config, has_file, origins } = loaded;
    let origins = Arc::new(Mutex::new(origins));
    child::keep_privileges();
    // From the start on no signal to load the configuration ends the daemon; until the signals are taken, it has just
    // been loaded.
    child::ignore(Signal::SIGHUP).map_err(io::Error::from)?;
    let (listeners, listening) = listeners::open(&config)?;
    let config = Arc::new(config);
    let live = Arc::new(LiveConfig::new(Arc::clone(&config)));
    let inbox = Arc::new(Inbox::default());
    let board = Arc::new(SnapshotCell::default());
    let stop = Arc::new(Stop::default());
    let http_stats = Arc::new(HttpCounters::default());
    let responses =
        Arc::new(ResponseCache::new(Arc::clone(&board), drop_in::page(&config.dcgm, fields.clone())));
    let nameless = (config.http.hide_owners == HideOwners::Unauthenticated).then(|| {
        Arc::new(ResponseCache::nameless(Arc::clone(&board), drop_in::page(&config.dcgm, fields.clone())))
    });
    let access = access.map(Arc::new);

    let retry = (config.metrics.publish_interval * 60).min(Duration::from_secs(60));
    let state = Store::new(&config.state.dir).with_retry(retry).exclusive();
    let host = Host::new(&config.host.root);
    let (documents, keepers) = StateKeepers::open(&host, &state, &inbox);
    let build = BuildInfo {
        version: env!("CARGO_PKG_VERSION").into(),
        revision: option_env!("GNE_REVISION").unwrap_or("unknown").into(),
    };
    // Both hooks run on the ledger's thread: no lock is waited for but at the end of the daemon.
    let recorder = FlightRecorder::new(&config, build.clone(), Arc::clone(&inbox), trim_heap)
        .map(|it| Arc::new(Mutex::new(it)));
    let settings = LedgerSettings {
        documents,
        configured: unix_seconds(),
        live: LiveSettings::of(&config, declared),
        build,
    };
    let watchdog = sd_notify::watchdog_enabled().is_some();
    let additions = Arc::new(Mutex::new(Additions::of(&config, &fields, &listening)));
    let hooks = Hooks {
        pass: {
            let recorder = recorder.clone();
            Box::new(move |batch| {
                if let Some(recorder) = &recorder {
                    lock(recorder).pass(batch);
                }
            })
        },
        publish: {
            let recorder = recorder.clone();
            let (board, responses) = (Arc::clone(&board), Arc::clone(&responses));
            let (nameless, additions) = (nameless.clone(), Arc::clone(&additions));
            Box::new(move |mut snapshot| {
                let mut additions = lock(&additions);
                snapshot.node_labels = Arc::clone(&additions.node_labels);
                additions.profiling.look(&snapshot);
                drop(additions);
                board.publish(snapshot);
                for responses in [&responses].into_iter().chain(&nameless) {
                    responses.refresh(Mono::now());
                }
                if let Some(recorder) = &recorder {
                    lock(recorder).look(&board.current());
                }
            })
        },
        beat: Box::new(move || {
            if watchdog {
                lifecycle::notify(&[NotifyState::Watchdog]);
            }
        }),
        save: Box::new(move |changed| keepers.save(changed)),
    };
    let (of_ledger, interval) = (Arc::clone(&inbox), config.metrics.publish_interval);
    let ledger =
        host::thread::spawn("ledger", 2048, move || ledger::run(settings, interval, &of_ledger, hooks))?;
    let settle = config.sampler.driver_retry_interval;
    let switch = Arc::new(Switch::new(config.gpm.enabled, settle));
    let context =
        Context { live: Arc::clone(&live), inbox: Arc::clone(&inbox), state, stop: Arc::clone(&stop) };
    let parts = Parts {
        samplers: Arc::default(),
        canary_children: Arc::default(),
        topology_children: Arc::default(),
        switch: Arc::clone(&switch),
        canary: Arc::default(),
        pods: Arc::default(),
        snapshots: Arc::clone(&board),
        http: Arc::clone(&http_stats),
        access: access.clone(),
    };
    let collecting = collectors::start(&context, &parts)?;
    let applied = {
        let (responses, nameless) = (Arc::clone(&responses), nameless.clone());
        let (switch, mut gpm, listening) = (Arc::clone(&switch), config.gpm.enabled, listening.clone());
        let origins = Arc::clone(&origins);
        move |config: &Config, Configuration { loaded, fields, .. }: &Configuration| {
            lock(&origins).clone_from(&loaded.origins);
            *lock(&additions) = Additions::of(config, fields, &listening);
            for responses in [&responses].into_iter().chain(&nameless) {
                responses.set_dcgm(drop_in::page(&config.dcgm, fields.clone()));
            }
            // What an operator asked for stays until the setting changes.
            if std::mem::replace(&mut gpm, config.gpm.enabled) != gpm {
                switch.gpm(gpm);
            }
        }
    };
    let reloader = Reloader {
        overrides,
        live,
        inbox: Arc::clone(&inbox),
        stop: Arc::clone(&stop),
        applied: Box::new(applied),
        listening: listening.clone(),
        files,
        has_file,
        failed: None,
    };
    let (reload, asked) = channel();
    let reloading = reloader.start(asked)?;

    // From the first answer on there is something to serve.
    board.wait_for_newer(0, LOOK);
    let started = Mono::now();
    let state = |responses| {
        let stale_after = (config.metrics.publish_interval * 10).max(Duration::from_secs(10));
        Arc::new(AppState { snapshots: Arc::clone(&board), responses, started, stale_after })
    };
    let states = States { whole: state(Arc::clone(&responses)), nameless: nameless.map(state) };
    let scheme =
        if access.as_ref().is_some_and(|access| access.current().tls.is_some()) { "https" } else { "http" };
    let open_paths = config.http.open_paths.clone();
    let protection = Protection { access, open_paths };
    let state = Arc::clone(&states.whole);
    let limits = Limits {
        max_connections: config.http.max_connections as usize,
        read_timeout: config.http.read_timeout,
        write_timeout: config.http.write_timeout,
    };
    let hosts = Hosts::new(config.http.hosts.iter().cloned());
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime
        .enable_all()
        .thread_name("helper")
        .max_blocking_threads(HELPERS)
        .thread_keep_alive(HELPER_IDLE)
        .build()?;
    let mut threads: Vec<(&'static str, JoinHandle<()>)> = vec![("ledger", ledger)];
    threads.push(("reload", reloading));
    threads.extend(collecting.into_iter().map(|(source, thread)| (source.known(), thread)));
    let (mut deadline, mut recording) = (Mono::now(), None);
    let ended = runtime.block_on(async {
        // A reload may come with the first answer.
        let signals = lifecycle::Signals::new()?;
        let (stop_doors, stopped) = watch::channel(false);
        let serving = http::serve(listeners, states, protection, limits, hosts, http_stats, stopped.clone());
        let serving = tokio::spawn(serving);
        for address in &listening.main {
            tracing::info!("serving {scheme}://{address}/");
        }
        for address in &listening.dcgm {
            tracing::info!("serving dcgm-exporter's page at {scheme}://{address}/metrics");
        }
        lifecycle::notify(&[NotifyState::Ready]);
        let released = Arc::clone(&switch);
        let health = tokio::spawn(serve_health(Arc::clone(&config), Arc::clone(&state), stopped.clone()));
        let release = || released.release(Mono::now(), unix_seconds());
        // The thread that takes it is missed as soon as it ends.
        let reload = || {
            let _ = reload.send(());
        };
        let control = tokio::spawn(serve_control(context, parts, state, origins, stopped));
        let ended = tokio::select! {
            signal = signals.asked_to_end(release, reload) => {
                tracing::info!("{signal}: ending");
                Ok(())
            }
            part = one_ended(&threads) => Err(Error::Ended(part)),
        };
        deadline = Mono::now() + END_DEADLINE;
        lifecycle::notify(&[NotifyState::Stopping]);
        stop.stop();
        // Before anything is waited for: a drain or a reset often follows the fault at once.
        recording = recorder.and_then(|recorder| lock(&recorder).end(&board.current()));
        stop_doors.send_replace(true);
        if let Err(error) = serving.await.map_err(io::Error::other).and_then(|served| served) {
            tracing::warn!(%error, "the HTTP server");
        }
        control.abort();
        health.abort();
        ended
    });
    runtime.shutdown_background();
    drop(reload);
    let ledger = threads.remove(0);
    // A load that waits for a file that hangs must not take the ledger's time to save what it knows.
    let reloading = threads.remove(0);
    join_until(threads, Mono(deadline.0.saturating_sub(LEDGER_TIME.as_nanos() as u64)));
    inbox.close();
    join_until(vec![ledger], deadline);
    join_until(vec![reloading], deadline);
    join_until(recording.map(|recording| ("recording", recording)).into_iter().collect(), deadline);
    ended
}

/// Resolves once a thread that should run as long as the daemon has ended.
async fn one_ended(parts: &[(&'static str, JoinHandle<()>)]) -> &'static str {
    loop {
        if let Some((name, _)) = parts.iter().find(|(_, thread)| thread.is_finished()) {
            return name;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// What a publication gets of the configuration.
struct Additions {
    node_labels: Arc<[(&'static str, String)]>,
    profiling: drop_in::Profiling,
}

impl Additions {
    fn of(config: &Config, fields: &FieldList, listening: &Listening) -> Additions {
        let profiling = drop_in::Profiling::of(&config.dcgm, fields, !listening.dcgm.is_empty());
        Additions { node_labels: node_labels(config), profiling }
    }
}

/// The labels that each series of the node has.
fn node_labels(config: &Config) -> Arc<[(&'static str, String)]> {
    let labels = [("rack", &config.node.rack), ("zone", &config.node.zone)];
    let given = labels.into_iter().filter(|(_, value)| !value.is_empty());
    given.map(|(name, value)| (name, value.clone())).collect()
}

/// Where each setting comes from.
type Origins = BTreeMap<&'static str, String>;

/// Serves the control socket. A daemon that cannot is still of use, so this is a warning.
async fn serve_control(
    context: Context,
    parts: Parts,
    state: Arc<AppState>,
    origins: Arc<Mutex<Origins>>,
    stopped: watch::Receiver<bool>,
) {
    let opened = open(context.live.load().control.path(), control::MODE).await;
    let Some(socket) = unless("`gpu-node-exporter snapshot` will not work", opened) else { return };
    let free = Arc::new(Semaphore::new(control::MAX_BLOCKING));
    let shared = Arc::new((context, parts, state));
    let answer = move |request: Request| {
        let (shared, free) = (Arc::clone(&shared), Arc::clone(&free));
        let origins = Arc::clone(&origins);
        async move {
            let (context, parts, state) = &*shared;
            let line = request.line.as_str();
            match orders::handle_request(line, &parts.switch, &context.inbox) {
                Some(answer) => answer,
                None if line.starts_with("canary clear ") || line.starts_with("nvswitch clear ") => {
                    let shared = Arc::clone(&shared);
                    let clear = move || {
                        let (Context { inbox, .. }, Parts { snapshots, .. }, _) = &*shared;
                        let answer = orders::handle_clear(&request, inbox, snapshots);
                        let answer =
                            answer.or_else(|| orders::handle_switches_clear(&request, inbox, snapshots));
                        answer.unwrap_or_else(|| {
                            Err("canary clear GPU REASON, nvswitch clear REASON".to_owned())
                        })
                    };
                    control::run_blocking(&free, control::BLOCKING_TIMEOUT, clear).await
                }
                None if line == "canary status" => {
                    let shared = Arc::clone(&shared);
                    let status = move || {
                        let (Context { live, .. }, Parts { canary, switch, snapshots, .. }, _) = &*shared;
                        orders::json(&canary.status(
                            &live.load(),
                            switch.is_released(),
                            &CanaryFacts::of(&snapshots.current()),
                        ))
                    };
                    control::run_blocking(&free, control::BLOCKING_TIMEOUT, status).await
                }
                None if line == "config" => {
                    let config = Config::clone(&context.live.load());
                    let loaded = Loaded { config, origins: lock(&origins).clone(), ..Loaded::default() };
                    Ok(without_secrets(&loaded.to_toml()).into())
                }
                None => control::read(line, state).await,
            }
        }
    };
    log_end(control::serve(socket, answer, stopped).await);
}

/// Serves the sockets on which every local user may ask for the verdict, and for nothing else.
async fn serve_health(config: Arc<Config>, state: Arc<AppState>, stopped: watch::Receiver<bool>) {
    let for_commands = async {
        let opened = open(config.health.path(), HEALTH_MODE).await;
        let Some(socket) = unless("only root and its group can ask for health", opened) else { return };
        let (state, stopped) = (Arc::clone(&state), stopped.clone());
        let answer = move |request: Request| {
            let state = Arc::clone(&state);
            async move {
                match request.line.split_whitespace().next() {
                    Some("health") => control::read(&request.line, &state).await,
                    _ => Err("this socket answers `health` alone".to_owned()),
                }
            }
        };
        log_end(control::serve(socket, answer, stopped).await);
    };
    let for_nvrx = async {
        let opened = open(config.health.nvrx_path(), HEALTH_MODE).await;
        let Some(socket) = unless("NVRx cannot ask", opened) else { return };
        log_end(nvrx::serve(socket, Arc::clone(&state), stopped.clone()).await);
    };
    tokio::join!(for_commands, for_nvrx);
}

/// Opens a socket; none without a path.
async fn open(path: Option<&Path>, mode: u32) -> io::Result<Option<LocalSocket>> {
    let Some(path) = path.map(ToOwned::to_owned) else { return Ok(None) };
    // Opening asks whether another daemon answers on it, which may take that one a while.
    let opened = tokio::task::spawn_blocking(move || LocalSocket::bind(&path, mode)).await;
    opened.map_err(io::Error::other).and_then(|socket| socket).map(Some)
}

/// The socket, if there is one. A daemon that cannot open it is still of use, so this is a warning.
fn unless(without: &str, opened: io::Result<Option<LocalSocket>>) -> Option<LocalSocket> {
    opened.unwrap_or_else(|error| {
        tracing::warn!(%error, "{without}");
        None
    })
}

fn log_end(served: io::Result<()>) {
    if let Err(error) = served {
        tracing::warn!(%error, "a local socket is no longer served");
    }
}

/// Waits for threads, but not for ever: what has not ended by then ends with the process.
fn join_until(threads: Vec<(&'static str, JoinHandle<()>)>, deadline: Mono) {
    let pause = Stop::default();
    for (name, thread) in threads {
        while !thread.is_finished() && Mono::now() < deadline {
            pause.wait_until(Mono::now() + Duration::from_millis(5));
        }
        if !thread.is_finished() {
            tracing::warn!("the {name} thread has not ended in time");
        } else if thread.join().is_err() {
            tracing::error!("the {name} thread panicked");
        }
    }
}
