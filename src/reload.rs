//! The configuration while the daemon runs: loaded at the start, on SIGHUP, and when a file that it is made of has
//! changed. What cannot be used leaves the one before in use, as a whole.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::collectors::LiveConfig;
use dcgm::list::FieldList;
use host::stop::Stop;
use ledger::LiveSettings;
use ledger::inbox::{Inbox, LedgerEvent};
use model::catalog::METRICS;
use model::clock::unix_seconds;
use settings::mig_layout::DeclaredLayout;
use settings::{ChangedKeys, Config, ConfigErrors, DEFAULT_FILE, Listen, Loaded, Overrides};

/// How often the files are looked at. A file that is being written is left alone until two looks find the same.
const LOOK: Duration = Duration::from_secs(1);
/// Most entries of a directory that are looked at.
const MAX_ENTRIES: usize = 256;

/// A configuration, and what its files say.
#[derive(Clone, Debug)]
pub struct Configuration {
    pub loaded: Loaded,
    /// The MIG layout that the GPUs should have.
    pub declared: Option<DeclaredLayout>,
    /// Fields of dcgm-exporter's page.
    pub fields: FieldList,
}

impl Configuration {
    /// Loads it from its files, the environment and flags.
    pub fn load(overrides: &Overrides) -> Result<Configuration, ConfigErrors> {
        Configuration::of(load_checked(overrides)?)
    }

    fn of(loaded: Loaded) -> Result<Configuration, ConfigErrors> {
        let (declared, fields) = (loaded.declared_layout()?, loaded.dcgm_fields()?);
        Ok(Configuration { loaded, declared, fields })
    }

    /// Logs what is wrong with it and does not keep it from being used.
    pub fn warn(&self) {
        for warning in
            settings::environment_warnings().into_iter().chain(self.loaded.dcgm_warnings(&self.fields))
        {
            tracing::warn!("{warning}");
        }
        if let Some(error) = self.loaded.dcgm_error(&self.fields) {
            tracing::error!("{error}");
        }
    }
}

/// The settings, each of them checked, without the files that they name.
pub fn load_checked(overrides: &Overrides) -> Result<Loaded, ConfigErrors> {
    let loaded = settings::load(overrides)?;
    loaded.check_patterns(&METRICS.iter().map(|metric| metric.name).collect::<Vec<_>>())?;
    Ok(loaded)
}

/// Called with a new configuration that is in use now.
type Applied = Box<dyn FnMut(&Config, &FieldList) + Send>;

/// Loads the configuration again.
pub struct Reloader {
    pub overrides: Overrides,
    /// The configuration in use, for the collectors.
    pub live: Arc<LiveConfig>,
    pub inbox: Arc<Inbox>,
    /// Wakes the collectors.
    pub stop: Arc<Stop>,
    pub applied: Applied,
}

impl Reloader {
    /// Starts the thread, which ends with the sender of `signals`. Each of them loads the configuration.
    pub fn start(mut self, signals: Receiver<()>) -> io::Result<JoinHandle<()>> {
        let mut watch = Watch::default();
        watch.look(&self.files());
        // Files may have changed since they were read for the start.
        host::thread::spawn("reload", 1024, move || {
            loop {
                match signals.recv_timeout(LOOK) {
                    Ok(()) => self.reload("SIGHUP"),
                    Err(RecvTimeoutError::Timeout) if watch.look(&self.files()) => {
                        self.reload("a file has changed")
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        })
    }

    /// The files that the configuration in use is made of.
    fn files(&self) -> Vec<PathBuf> {
        let config = self.live.load();
        let file = self.overrides.config.clone().unwrap_or_else(|| DEFAULT_FILE.into());
        let named = [&config.dcgm.fields_file, &config.mig.layout_file];
        let named = named.into_iter().filter(|path| !path.as_os_str().is_empty()).cloned();
        std::iter::once(file).chain(named).collect()
    }

    fn reload(&mut self, why: &str) {
        let loaded = Configuration::load(&self.overrides).and_then(|new| self.with_listeners(new));
        let ConfigErrors(errors) = match loaded {
            Ok((config, new, changed)) => return self.apply(config, &new, &changed, why),
            Err(errors) => errors,
        };
        for error in errors {
            tracing::error!("{error}");
        }
        tracing::error!(why, "the configuration cannot be used: the one before stays in use");
        self.inbox.event(LedgerEvent::Reloaded(None, unix_seconds()));
    }

    /// What comes of a new configuration, if a restart could listen where it says.
    fn with_listeners(
        &self,
        new: Configuration,
    ) -> Result<(Config, Configuration, ChangedKeys), ConfigErrors> {
        let mut config = Config::clone(&self.live.load());
        let changed = config.apply(&new.loaded.config);
        let wanted = &new.loaded.config;
        let listeners = [("http.listen", Some(wanted.http.listen)), ("dcgm.listen", wanted.dcgm.listen)];
        let own: Vec<Listen> = [Some(config.http.listen), config.dcgm.listen].into_iter().flatten().collect();
        let errors = listeners.into_iter().filter_map(|(key, listen)| {
            // Where this daemon listens itself, nobody else can.
            let listen = listen.filter(|wanted| !own.iter().any(|own| own.overlaps(*wanted)))?;
            let error = exposition::http::bind(&listen.to_string()).err()?;
            Some(format!("{key}: {error}"))
        });
        let errors: Vec<String> = errors.collect();
        if errors.is_empty() { Ok((config, new, changed)) } else { Err(ConfigErrors(errors)) }
    }

    fn apply(&mut self, config: Config, new: &Configuration, changed: &ChangedKeys, why: &str) {
        crate::log::set_level(config.log.level);
        tracing::info!(why, applied = changed.applied.join(" "), "the configuration was loaded");
        if !changed.waiting.is_empty() {
            tracing::warn!(
                keys = changed.waiting.join(" "),
                "these keys have new values, which need a restart"
            );
        }
        new.warn();
        let settings = LiveSettings::of(&config, new.declared.clone());
        let config = Arc::new(config);
        self.live.store(Arc::clone(&config));
        (self.applied)(&config, &new.fields);
        self.inbox.event(LedgerEvent::Reloaded(Some(Box::new(settings)), unix_seconds()));
        self.stop.wake();
    }
}

/// What tells a file from another one of the same name: device, number, size, and when it was changed.
type FileId = (u64, u64, u64, i64, i64);

/// The files as they were at the last looks.
#[derive(Debug, Default)]
struct Watch {
    loaded: Option<BTreeMap<PathBuf, FileId>>,
    last: BTreeMap<PathBuf, FileId>,
}

impl Watch {
    /// Whether the files are others than those that were loaded last, and no longer being written. The first files
    /// count as loaded.
    fn look(&mut self, files: &[PathBuf]) -> bool {
        let mut now = BTreeMap::new();
        for file in files {
            note(file, &mut now);
            // As a ConfigMap is mounted: links in a directory, which stay while their target changes.
            let entries = fs::read_dir(file).into_iter().flatten().flatten().take(MAX_ENTRIES);
            entries.for_each(|entry| note(&entry.path(), &mut now));
        }
        let is_still = std::mem::replace(&mut self.last, now) == self.last;
        let Some(loaded) = &self.loaded else {
            self.loaded = Some(self.last.clone());
            return false;
        };
        if !is_still || *loaded == self.last {
            return false;
        }
        self.loaded = Some(self.last.clone());
        true
    }
}

fn note(path: &Path, into: &mut BTreeMap<PathBuf, FileId>) {
    if let Ok(about) = fs::metadata(path) {
        let id = (about.dev(), about.ino(), about.size(), about.mtime(), about.mtime_nsec());
        into.insert(path.to_owned(), id);
    }
}
