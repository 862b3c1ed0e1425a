//! Makes the parts of the daemon and starts its threads.

use std::io;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sd_notify::NotifyState;

use super::pages::Pages;
use super::persistence::StateKeepers;
use super::threads::Threads;
use super::{Daemon, Origins};
use crate::lifecycle;
use crate::listeners::Listening;
use crate::recorder::FlightRecorder;
use crate::reload::{Applied, Configuration, Reloader};
use access::Access;
use collectors::nvml::switch::Switch;
use collectors::{Context, LiveConfig, Parts};
use host::Host;
use host::state::Store;
use ledger::{Hooks, LedgerSettings, LiveSettings};
use model::catalog::BuildInfo;
use model::catalog::schema::KnownLabel;
use model::clock::unix_seconds;
use model::sync::lock;
use settings::{Config, Overrides};

impl Daemon {
    pub(super) fn build(
        configuration: Configuration,
        overrides: Overrides,
        access: Option<Access>,
        listening: Listening,
        trim_heap: fn(),
    ) -> io::Result<Daemon> {
        let Configuration { loaded, declared, fields, files } = configuration;
        let config = Arc::new(loaded.config);
        let origins = Arc::new(Mutex::new(loaded.origins));
        let context = context(&config);
        let parts = parts(&config, access);
        let pages = Arc::new(Pages::new(&config, &fields, &parts.snapshots, &listening));
        let build = BuildInfo {
            version: env!("CARGO_PKG_VERSION").into(),
            revision: option_env!("GNE_REVISION").unwrap_or("unknown").into(),
        };
        let recorder = FlightRecorder::new(&config, build.clone(), Arc::clone(&context.inbox), trim_heap)
            .map(|recorder| Arc::new(Mutex::new(recorder)));
        let (documents, keepers) =
            StateKeepers::open(&Host::new(&config.host.root), &context.state, &context.inbox);
        let live = LiveSettings::from_config(&config, declared);
        let settings = LedgerSettings { documents, configured: unix_seconds(), live, build };
        let hooks = hooks(&pages, recorder.clone(), keepers);
        let (inbox, interval) = (Arc::clone(&context.inbox), config.metrics.publish_interval);
        let ledger =
            host::thread::spawn("ledger", 2048, move || ledger::run(settings, interval, &inbox, hooks))?;
        let collecting = collectors::start(&context, &parts)?;
        let collectors = collecting.into_iter().map(|(name, thread)| (name.known(), thread)).collect();
        let reloader = Reloader {
            overrides,
            live: Arc::clone(&context.live),
            inbox: Arc::clone(&context.inbox),
            stop: Arc::clone(&context.stop),
            applied: applied(&origins, &pages, &parts.switch, config.gpm.enabled),
            listening: listening.clone(),
            files,
            has_file: loaded.has_file,
            failed: None,
        };
        let (reload, requests) = channel();
        let threads = Threads { ledger, reload: reloader.start(requests)?, collectors };
        Ok(Daemon { config, origins, context, parts, pages, recorder, listening, threads, reload })
    }
}

fn context(config: &Arc<Config>) -> Context {
    let retry = (config.metrics.publish_interval * 60).min(Duration::from_secs(60));
    Context {
        live: Arc::new(LiveConfig::new(Arc::clone(config))),
        inbox: Arc::default(),
        state: Store::new(&config.state.dir).with_retry(retry).exclusive(),
        stop: Arc::default(),
    }
}

fn parts(config: &Config, access: Option<Access>) -> Parts {
    let switch = Switch::new(config.gpm.enabled, config.sampler.driver_retry_interval);
    Parts { switch: Arc::new(switch), access: access.map(Arc::new), ..Parts::default() }
}

/// Hooks of the ledger. They run on its thread, so they wait for no lock except while the daemon ends.
fn hooks(pages: &Arc<Pages>, recorder: Option<Arc<Mutex<FlightRecorder>>>, keepers: StateKeepers) -> Hooks {
    let watchdog = sd_notify::watchdog_enabled().is_some();
    let (pages, batches) = (Arc::clone(pages), recorder.clone());
    Hooks {
        pass: Box::new(move |batch| {
            if let Some(recorder) = &batches {
                lock(recorder).record(batch);
            }
        }),
        publish: Box::new(move |snapshot| {
            let published = pages.publish(snapshot);
            if let Some(recorder) = &recorder {
                lock(recorder).inspect(&published);
            }
        }),
        beat: Box::new(move || {
            if watchdog {
                lifecycle::notify(&[NotifyState::Watchdog]);
            }
        }),
        save: Box::new(move |changed| keepers.save(changed)),
    }
}

/// Returns the function that puts a new configuration in force outside the collectors and the ledger.
fn applied(
    origins: &Arc<Mutex<Origins>>,
    pages: &Arc<Pages>,
    switch: &Arc<Switch>,
    mut gpm: bool,
) -> Applied {
    let (origins, pages, switch) = (Arc::clone(origins), Arc::clone(pages), Arc::clone(switch));
    Box::new(move |config, Configuration { loaded, fields, .. }| {
        lock(&origins).clone_from(&loaded.origins);
        pages.configure(config, fields);
        // An operator's `gpm on` or `gpm off` stays in force until the setting changes.
        if std::mem::replace(&mut gpm, config.gpm.enabled) != gpm {
            switch.gpm(gpm);
        }
    })
}
