//! Configuration of the running daemon, loaded at startup, on SIGHUP, and when one of its files has changed. If a new
//! configuration is invalid, the current one stays in use as a whole.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::listeners::Listening;
use access::Access;
use collectors::LiveConfig;
use dcgm::list::FieldList;
use host::stop::Stop;
use ledger::LiveSettings;
use ledger::inbox::{Inbox, LedgerEvent};
use model::catalog::METRICS;
use model::clock::unix_seconds;
use settings::mig_layout::DeclaredLayout;
use settings::{ChangedKeys, Config, ConfigErrors, DEFAULT_FILE, Loaded, Overrides};

/// Time between two checks of the files.
const LOOK: Duration = Duration::from_secs(1);
/// Number of checks until a configuration is retried that failed for a reason outside its files, such as an address in
/// use.
const RETRY_LOOKS: u32 = 30;
/// Maximum number of checked entries per directory.
const MAX_ENTRIES: usize = 256;

/// Configuration with the content of the files that it names.
#[derive(Clone, Debug)]
pub(crate) struct Configuration {
    pub(crate) loaded: Loaded,
    /// Declared MIG layout of the GPUs.
    pub(crate) declared: Option<DeclaredLayout>,
    /// Fields of dcgm-exporter's page.
    pub(crate) fields: FieldList,
    /// State of the files just before they were read.
    pub(crate) files: Files,
}

impl Configuration {
    /// Loads the configuration from its files, the environment and flags.
    pub(crate) fn load(overrides: &Overrides) -> Result<Configuration, ConfigErrors> {
        Configuration::load_noting(overrides, &mut TriedFiles::default())
    }

    /// Does the same and records the files of an invalid configuration.
    fn load_noting(overrides: &Overrides, tried: &mut TriedFiles) -> Result<Configuration, ConfigErrors> {
        let mut files = look([main_file(overrides)]);
        tried.files.extend(files.clone());
        let loaded = load_checked(overrides)?;
        let web = loaded.config.http.web_config_file.clone();
        tried.named = named_files(&loaded.config).chain(web).collect();
        tried.files.append(&mut look(tried.named.iter().cloned()));
        files.append(&mut look(named_files(&loaded.config)));
        let (declared, fields) = (loaded.declared_layout()?, loaded.dcgm_fields()?);
        Ok(Configuration { loaded, declared, fields, files })
    }

    /// Logs problems that do not make the configuration invalid.
    pub(crate) fn warn(&self) {
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

/// Loads and checks the settings without the files that they name.
pub(crate) fn load_checked(overrides: &Overrides) -> Result<Loaded, ConfigErrors> {
    match load_known(overrides) {
        (loaded, errors) if errors.is_empty() => Ok(loaded),
        (_, errors) => Err(ConfigErrors(errors)),
    }
}

/// Loads the settings like [`load_checked`]. On errors it also returns the valid settings over the defaults, for
/// commands that contact a running daemon, which keeps its previous configuration.
pub(crate) fn load_known(overrides: &Overrides) -> (Loaded, Vec<String>) {
    let (loaded, mut errors) = settings::load(overrides);
    let names: Vec<_> = METRICS.iter().map(|metric| metric.name).collect();
    errors.extend(loaded.check_patterns(&names).err().into_iter().flat_map(|ConfigErrors(errors)| errors));
    (loaded, errors)
}

/// Opens the web configuration, if one is configured.
pub(crate) fn web_config(config: &Config) -> Result<Option<Access>, ConfigErrors> {
    let optional_certificates = !config.http.open_paths.is_empty();
    let opened = config.http.web_config_file.as_ref().map(|file| Access::open(file, optional_certificates));
    opened.transpose().map_err(ConfigErrors)
}

/// Files of an attempted load.
#[derive(Debug, Default)]
struct TriedFiles {
    /// Files that the configuration names.
    named: Vec<PathBuf>,
    /// State of all files just before they were read.
    files: Files,
}

/// Attempt to load the configuration that failed.
#[derive(Debug, Default)]
pub(crate) struct FailedLoad {
    /// Files that its configuration names.
    named: Vec<PathBuf>,
    errors: Vec<String>,
    /// Checks until the next attempt; `None` if only a changed file can help.
    retry: Option<u32>,
}

/// Function that is called with every new configuration and its source.
pub(crate) type Applied = Box<dyn FnMut(&Config, &Configuration) + Send>;

/// Thread that reloads the configuration.
pub(crate) struct Reloader {
    pub(crate) overrides: Overrides,
    /// Current configuration, shared with the collectors.
    pub(crate) live: Arc<LiveConfig>,
    pub(crate) inbox: Arc<Inbox>,
    /// Handle that wakes the collectors after a reload.
    pub(crate) stop: Arc<Stop>,
    pub(crate) applied: Applied,
    pub(crate) listening: Listening,
    /// State of the files at the last load.
    pub(crate) files: Files,
    /// Whether the current configuration has a main file.
    pub(crate) has_file: bool,
    /// Last load, if it failed.
    pub(crate) failed: Option<FailedLoad>,
}

impl Reloader {
    /// Starts the thread. Every message of `signals` reloads the configuration, and dropping the sender ends the
    /// thread.
    pub(crate) fn start(mut self, signals: Receiver<()>) -> io::Result<JoinHandle<()>> {
        let mut last = self.files.clone();
        host::thread::spawn("reload", 1024, move || {
            loop {
                match signals.recv_timeout(LOOK) {
                    Ok(()) => self.reload("SIGHUP"),
                    Err(RecvTimeoutError::Timeout) => {
                        last = self.turn(&last);
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        })
    }

    /// Checks the files and reloads the configuration if they have changed. Returns the current state of the files.
    fn turn(&mut self, last: &Files) -> Files {
        let now = self.look();
        // A file that is still being written differs at the next check.
        if now == *last && now != self.files {
            self.reload("a file has changed");
        } else if let Some(looks) = self.failed.as_mut().and_then(|failed| failed.retry.as_mut()) {
            *looks = looks.saturating_sub(1);
            if *looks == 0 {
                self.reload("the last attempt failed");
            }
        }
        now
    }

    /// Returns the current state of the files of the configuration in use and of a later one that failed.
    fn look(&self) -> Files {
        let failed = self.failed.iter().flat_map(|failed| failed.named.clone());
        look([main_file(&self.overrides)].into_iter().chain(named_files(&self.live.load())).chain(failed))
    }

    fn reload(&mut self, why: &str) {
        let before = self.failed.take();
        let mut tried = TriedFiles { named: Vec::new(), files: self.look() };
        let loaded = Configuration::load_noting(&self.overrides, &mut tried);
        // Once the files are valid, the outcome depends on the rest of the machine.
        let retry = loaded.is_ok().then_some(RETRY_LOOKS);
        let ConfigErrors(errors) = match loaded.and_then(|new| self.compare(new)) {
            Ok((config, new, changed)) => return self.apply(config, &new, &changed, why),
            Err(errors) => errors,
        };
        // Repeated attempts fail with the same errors, which are logged once.
        if retry.is_none() || before.is_none_or(|before| before.retry != Some(0) || before.errors != errors) {
            for error in &errors {
                tracing::error!("{error}");
            }
            tracing::error!(why, "failed to load the configuration; the previous one stays in use");
        }
        self.files = tried.files;
        self.failed = Some(FailedLoad { named: tried.named, errors, retry });
        self.inbox.event(LedgerEvent::Reloaded(None, unix_seconds()));
    }

    /// Checks a new configuration against the running daemon. Returns the resulting configuration if a restart could
    /// serve it.
    fn compare(&self, new: Configuration) -> Result<(Config, Configuration, ChangedKeys), ConfigErrors> {
        if self.has_file && !new.loaded.has_file {
            let file = main_file(&self.overrides);
            let next = "restore it, or restart the daemon to run without it";
            return Err(ConfigErrors(vec![format!(
                "the configuration file {} does not exist; {next}",
                file.display()
            )]));
        }
        let mut config = Config::clone(&self.live.load());
        let changed = config.apply(&new.loaded.config);
        let wanted = &new.loaded.config;
        // The file in use reports its own problems and has its own metric.
        if wanted.http.web_config_file != config.http.web_config_file {
            web_config(wanted)?;
        }
        match self.listening.problems(wanted) {
            problems if problems.is_empty() => Ok((config, new, changed)),
            problems => Err(ConfigErrors(problems)),
        }
    }

    fn apply(&mut self, config: Config, new: &Configuration, changed: &ChangedKeys, why: &str) {
        crate::log::set_level(config.log.level);
        tracing::info!(why, applied = changed.applied.join(" "), "loaded the configuration");
        if !changed.waiting.is_empty() {
            // Logged as information, because a repeated warning would be suppressed for an hour although every load is
            // new.
            tracing::info!(keys = changed.waiting.join(" "), "some keys have new values that need a restart");
        }
        new.warn();
        self.files = new.files.clone();
        self.has_file = new.loaded.has_file;
        let settings = LiveSettings::from_config(&config, new.declared.clone());
        let config = Arc::new(config);
        self.live.store(Arc::clone(&config));
        (self.applied)(&config, new);
        self.inbox.event(LedgerEvent::Reloaded(Some(Box::new(settings)), unix_seconds()));
        self.stop.wake();
    }
}

/// Files of a configuration with device, inode, size and modification time, which identify a version of the file.
pub(crate) type Files = BTreeMap<PathBuf, (u64, u64, u64, i64, i64)>;

/// Returns the path of the configuration file. Without `--config` the file is optional.
pub(crate) fn main_file(overrides: &Overrides) -> PathBuf {
    overrides.config.clone().unwrap_or_else(|| DEFAULT_FILE.into())
}

/// Returns the files that a configuration names and that are read with it.
fn named_files(config: &Config) -> impl Iterator<Item = PathBuf> + use<> {
    [&config.dcgm.fields_file, &config.mig.layout_file].map(Clone::clone).into_iter().flatten()
}

fn look(files: impl IntoIterator<Item = PathBuf>) -> Files {
    // A ConfigMap is a directory of links, which stay the same when their target changes.
    let entries = |path: &PathBuf| fs::read_dir(path).into_iter().flatten().flatten().take(MAX_ENTRIES);
    let with_entries = |path: PathBuf| {
        let entries: Vec<PathBuf> = entries(&path).map(|entry| entry.path()).collect();
        std::iter::once(path).chain(entries)
    };
    let id = |path: PathBuf| {
        let about = fs::metadata(&path).ok()?;
        Some((path, (about.dev(), about.ino(), about.size(), about.mtime(), about.mtime_nsec())))
    };
    files.into_iter().flat_map(with_entries).filter_map(id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reloader(config: Option<PathBuf>) -> Reloader {
        Reloader {
            overrides: Overrides { config, ..Overrides::default() },
            live: Arc::new(LiveConfig::new(Arc::default())),
            inbox: Arc::default(),
            stop: Arc::default(),
            applied: Box::new(|_, _| {}),
            listening: Listening::default(),
            files: Files::default(),
            has_file: true,
            failed: None,
        }
    }

    #[test]
    fn a_main_file_that_is_gone_leaves_the_configuration_in_use() {
        let mut reloader = reloader(None);
        reloader.listening.main.push(Config::default().http.listen.0);
        let new = |has_file| Configuration {
            loaded: Loaded { has_file, ..Loaded::default() },
            declared: None,
            fields: FieldList::default(),
            files: Files::default(),
        };
        let error = reloader.compare(new(false)).map(drop).unwrap_err().to_string();
        assert!(error.contains(DEFAULT_FILE) && error.contains("does not exist"), "{error}");
        assert!(reloader.compare(new(true)).is_ok());
    }

    #[test]
    fn a_file_that_only_the_failed_configuration_names_is_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let (main, layout) = (dir.path().join("config.toml"), dir.path().join("layout.yaml"));
        let text = format!(
            "[node]\nrack = 'r2'\n[http]\nlisten = '127.0.0.1:0'\n[mig]\nlayout_file = '{}'\nlayout = 'none'\n",
            layout.display()
        );
        fs::write(&main, text).unwrap();
        let mut reloader = reloader(Some(main));
        reloader.reload("test");
        assert!(reloader.failed.is_some());
        let mut last = reloader.look();
        assert_eq!(last, reloader.files, "nothing to load again");
        fs::write(
            &layout,
            "version: v1\nmig-configs:\n  none:\n    - devices: all\n      mig-enabled: false\n",
        )
        .unwrap();
        for _ in 0..2 {
            last = reloader.turn(&last);
        }
        assert!(reloader.failed.is_none());
        assert_eq!(reloader.live.load().node.rack, "r2");
        assert_eq!(reloader.look(), reloader.files);
    }

    #[test]
    fn what_failed_by_an_address_in_use_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let main = dir.path().join("config.toml");
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        fs::write(&main, format!("[node]\nrack = 'r2'\n[http]\nlisten = '{address}'\n")).unwrap();
        let mut reloader = reloader(Some(main));
        reloader.reload("test");
        assert!(reloader.failed.is_some());
        drop(taken);
        let mut last = reloader.look();
        for _ in 0..RETRY_LOOKS {
            last = reloader.turn(&last);
        }
        assert!(reloader.failed.is_none());
        assert_eq!(reloader.live.load().node.rack, "r2");
    }
}
