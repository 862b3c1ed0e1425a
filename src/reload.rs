//! The configuration while the daemon runs: loaded at the start, on SIGHUP, and when a file that it is made of has
//! changed. What cannot be used leaves the one before in use, as a whole.

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

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How many looks pass until a configuration is tried again that failed by more than its files, as by an address in use.
const RETRY_LOOKS: u32 = 30;
/// Most entries of a directory that are looked at.
const MAX_ENTRIES: usize = 256;

/// A configuration, and what its files say.
#[derive(Clone, Debug)]
pub(crate) struct Configuration {
    pub(crate) loaded: Loaded,
    /// The MIG layout that the GPUs should have.
    pub(crate) declared: Option<DeclaredLayout>,
    /// Fields of dcgm-exporter's page.
    pub(crate) fields: FieldList,
    /// Its files just before they were read.
    pub(crate) files: Files,
}

impl Configuration {
    /// Loads it from its files, the environment and flags.
    pub(crate) fn load(overrides: &Overrides) -> Result<Configuration, ConfigErrors> {
        Configuration::load_noting(overrides, &mut TriedFiles::default())
    }

    /// The same. Notes the files, also of what cannot be used.
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

    /// Logs what is wrong with it and does not keep it from being used.
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

/// The settings, each of them checked, without the files that they name.
pub(crate) fn load_checked(overrides: &Overrides) -> Result<Loaded, ConfigErrors> {
    match load_known(overrides) {
        (loaded, errors) if errors.is_empty() => Ok(loaded),
        (_, errors) => Err(ConfigErrors(errors)),
    }
}

/// As [`load_checked`], and with errors the settings that are right, over the defaults: for who asks a running daemon,
/// which keeps the configuration before.
pub(crate) fn load_known(overrides: &Overrides) -> (Loaded, Vec<String>) {
    let (loaded, mut errors) = settings::load(overrides);
    let names: Vec<_> = METRICS.iter().map(|metric| metric.name).collect();
    errors.extend(loaded.check_patterns(&names).err().into_iter().flat_map(|ConfigErrors(errors)| errors));
    (loaded, errors)
}

/// The web configuration, where there is to be one.
pub(crate) fn web_config(config: &Config) -> Result<Option<Access>, ConfigErrors> {
    let optional_certificates = !config.http.open_paths.is_empty();
    let opened = config.http.web_config_file.as_ref().map(|file| Access::open(file, optional_certificates));
    opened.transpose().map_err(ConfigErrors)
}

/// The files of a configuration that was to be loaded.
#[derive(Debug, Default)]
struct TriedFiles {
    /// Those that it names.
    named: Vec<PathBuf>,
    /// All of them just before they were read.
    files: Files,
}

/// A load that failed.
#[derive(Debug, Default)]
pub(crate) struct FailedLoad {
    /// Files that its configuration names.
    named: Vec<PathBuf>,
    errors: Vec<String>,
    /// Looks until the next try; `None`: only its files matter.
    retry: Option<u32>,
}

/// Called with a new configuration that is in use now, and what it was loaded from.
pub(crate) type Applied = Box<dyn FnMut(&Config, &Configuration) + Send>;

/// Loads the configuration again.
pub(crate) struct Reloader {
    pub(crate) overrides: Overrides,
    /// The configuration in use, for the collectors.
    pub(crate) live: Arc<LiveConfig>,
    pub(crate) inbox: Arc<Inbox>,
    /// Wakes the collectors.
    pub(crate) stop: Arc<Stop>,
    pub(crate) applied: Applied,
    pub(crate) listening: Listening,
    /// The files as they were when the configuration was loaded last.
    pub(crate) files: Files,
    /// Whether the configuration in use has a main file.
    pub(crate) has_file: bool,
    /// The last load, if it failed.
    pub(crate) failed: Option<FailedLoad>,
}

impl Reloader {
    /// Starts the thread, which ends with the sender of `signals`. Each of them loads the configuration.
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

    /// Looks at the files, and loads the configuration if they have changed. Gives the files as they are now.
    fn turn(&mut self, last: &Files) -> Files {
        let now = self.look();
        // A file that is being written is another one at the next look.
        if now == *last && now != self.files {
            self.reload("a file has changed");
        } else if let Some(looks) = self.failed.as_mut().and_then(|failed| failed.retry.as_mut()) {
            *looks = looks.saturating_sub(1);
            if *looks == 0 {
                self.reload("the last one failed");
            }
        }
        now
    }

    /// The files that the configuration in use is made of, and those of one that failed after it, as they are now.
    fn look(&self) -> Files {
        let failed = self.failed.iter().flat_map(|failed| failed.named.clone());
        look([main_file(&self.overrides)].into_iter().chain(named_files(&self.live.load())).chain(failed))
    }

    fn reload(&mut self, why: &str) {
        let before = self.failed.take();
        let mut tried = TriedFiles { named: Vec::new(), files: self.look() };
        let loaded = Configuration::load_noting(&self.overrides, &mut tried);
        // Beyond its files, it depends on what else there is on this machine.
        let retry = loaded.is_ok().then_some(RETRY_LOOKS);
        let ConfigErrors(errors) = match loaded.and_then(|new| self.compare(new)) {
            Ok((config, new, changed)) => return self.apply(config, &new, &changed, why),
            Err(errors) => errors,
        };
        // What is tried again and again fails alike.
        if retry.is_none() || before.is_none_or(|before| before.retry != Some(0) || before.errors != errors) {
            for error in &errors {
                tracing::error!("{error}");
            }
            tracing::error!(why, "the configuration cannot be used: the one before stays in use");
        }
        self.files = tried.files;
        self.failed = Some(FailedLoad { named: tried.named, errors, retry });
        self.inbox.event(LedgerEvent::Reloaded(None, unix_seconds()));
    }

    /// What comes of a new configuration, if a restart could serve as it says.
    fn compare(&self, new: Configuration) -> Result<(Config, Configuration, ChangedKeys), ConfigErrors> {
        if self.has_file && !new.loaded.has_file {
            let file = main_file(&self.overrides);
            let next = "put it back, or restart for a configuration without it";
            return Err(ConfigErrors(vec![format!(
                "the configuration file {} is gone; {next}",
                file.display()
            )]));
        }
        let mut config = Config::clone(&self.live.load());
        let changed = config.apply(&new.loaded.config);
        let wanted = &new.loaded.config;
        // The file in use has a state and a metric of its own.
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
        tracing::info!(why, applied = changed.applied.join(" "), "the configuration was loaded");
        if !changed.waiting.is_empty() {
            // Not a warning: the same one is silent for an hour, and each load is another.
            tracing::info!(
                keys = changed.waiting.join(" "),
                "these keys have new values, which need a restart"
            );
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

/// The files of a configuration. Two of the same name differ in device, number, size, or the time of the last change.
pub(crate) type Files = BTreeMap<PathBuf, (u64, u64, u64, i64, i64)>;

/// The configuration file, which need not be there without `--config`.
pub(crate) fn main_file(overrides: &Overrides) -> PathBuf {
    overrides.config.clone().unwrap_or_else(|| DEFAULT_FILE.into())
}

/// The files that a configuration names and that are read with it.
fn named_files(config: &Config) -> impl Iterator<Item = PathBuf> + use<> {
    [&config.dcgm.fields_file, &config.mig.layout_file].map(Clone::clone).into_iter().flatten()
}

fn look(files: impl IntoIterator<Item = PathBuf>) -> Files {
    // A ConfigMap is a directory of links, which stay while their target changes.
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
        assert!(error.contains(DEFAULT_FILE) && error.contains("is gone"), "{error}");
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
