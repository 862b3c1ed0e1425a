//! Reads the layers of the configuration, and collects every error with the file, variable or flag that contains it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use ::config::{ConfigError, Environment, File, FileFormat, Map, Source, Value, ValueKind};

use super::Config;
use super::file::{key, keys};
use super::key::Key;
use super::settings::{RENAMED, SECTIONS};
use model::plain_file::read_text;

/// Path of the configuration file without `--config`. The file is optional.
pub const DEFAULT_FILE: &str = "/etc/gpu-node-exporter/config.toml";

/// Maximum size of a configuration file or MIG layout file in bytes, about twenty times the size of the shipped file.
pub(super) const MAX_BYTES: usize = 1024 * 1024;

/// Prefix of all environment variables. Two underscores, because Kubernetes sets variables such as
/// `GPU_NODE_EXPORTER_PORT` for a Service of this name.
pub const ENV_PREFIX: &str = "GPU_NODE_EXPORTER__";

/// Variable with the path of the configuration file, used without `--config`. It gives commands in the daemon's container
/// the settings of the daemon.
const FILE_VARIABLE: &str = "GPU_NODE_EXPORTER__CONFIG";

/// Command-line options that override settings.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Global options")]
pub struct Overrides {
    /// Configuration file [default: the file of GPU_NODE_EXPORTER__CONFIG, or /etc/gpu-node-exporter/config.toml if it exists]
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    /// Listen address as IP:PORT, or :PORT for all addresses [default: :9408]
    #[arg(long, value_name = "ADDR", global = true)]
    pub listen: Option<String>,
    /// Path of the NVML library [default: libnvidia-ml.so.1, as found by the loader]
    #[arg(long, value_name = "PATH", global = true)]
    pub nvml_library: Option<String>,
    /// Path of the CUDA driver library, for the canary [default: libcuda.so.1, as found by the loader]
    #[arg(long, value_name = "PATH", global = true)]
    pub cuda_library: Option<String>,
    /// Directory for state that survives restarts [default: /var/lib/gpu-node-exporter]
    #[arg(long, value_name = "DIR", global = true)]
    pub state_dir: Option<String>,
    /// Directory where the host's /proc, /sys, /dev, /run and /etc are mounted [default: /]
    #[arg(long, value_name = "DIR", global = true)]
    pub root: Option<String>,
    /// Minimum level of log lines: error, warn, info, debug or trace [default: info]
    #[arg(long, value_name = "LEVEL", global = true)]
    pub log_level: Option<String>,
}

impl Overrides {
    /// Uses the configuration file of the environment variable if no flag names a file.
    pub fn or_variable(mut self) -> Self {
        self.config = self
            .config
            .or_else(|| std::env::var_os(FILE_VARIABLE).filter(|file| !file.is_empty()).map(PathBuf::from));
        self
    }

    /// Returns the flag, the settings key and the value of every flag that has a value.
    fn given(&self) -> impl Iterator<Item = (&'static str, &'static str, &String)> {
        [
            ("--listen", "http.listen", &self.listen),
            ("--nvml-library", "sampler.nvml_library", &self.nvml_library),
            ("--cuda-library", "canary.cuda_library", &self.cuda_library),
            ("--state-dir", "state.dir", &self.state_dir),
            ("--root", "host.root", &self.root),
            ("--log-level", "log.level", &self.log_level),
        ]
        .into_iter()
        .filter_map(|(flag, key, value)| value.as_ref().map(|value| (flag, key, value)))
    }
}

/// All errors of a configuration, one per line. Never empty.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct ConfigErrors(pub Vec<String>);

/// Configuration after all checks.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    pub config: Config,
    /// File, environment variable or flag that sets a key, by key.
    pub origins: BTreeMap<&'static str, String>,
    /// True if the configuration file exists.
    pub has_file: bool,
}

impl Loaded {
    /// Returns an error for every pattern of `[metrics]` that matches none of these names.
    pub fn check_patterns(&self, names: &[&str]) -> Result<(), ConfigErrors> {
        let metrics = &self.config.metrics;
        let include = metrics.include.iter().map(|pattern| ("metrics.include", pattern));
        let patterns = include.chain(metrics.exclude.iter().map(|pattern| ("metrics.exclude", pattern)));
        // "*" is valid even without metrics.
        let unmatched =
            patterns.filter(|(_, p)| p.as_str() != "*" && !names.iter().any(|name| p.matches(name)));
        let errors = unmatched.map(|(key, pattern)| {
            let nearest = nearest(pattern.as_str(), names.iter().copied());
            let nearest = nearest.map(|name| format!("the nearest name is {name}; ")).unwrap_or_default();
            let list = "`gpu-node-exporter metrics` lists them all";
            self.error(key, format_args!("\"{pattern}\" matches no metric; {nearest}{list}"))
        });
        let errors: Vec<String> = errors.collect();
        if errors.is_empty() { Ok(()) } else { Err(ConfigErrors(errors)) }
    }

    /// Returns the configuration as TOML, with the origin of every configured key in a comment.
    pub fn to_toml(&self) -> String {
        let origin = |key: &Key| self.origins.get(key.name).map(|origin| format!("  # {origin}"));
        self.config.to_toml(|_| String::new(), |_| String::new(), |key| origin(key).unwrap_or_default())
    }

    /// Formats an error message about a key, with the origin of its value.
    pub(super) fn error(&self, key: &str, message: impl std::fmt::Display) -> String {
        format!("{key} ({}): {message}", self.origin(key))
    }

    fn origin(&self, key: &str) -> &str {
        self.origins.get(key).map_or("default", String::as_str)
    }

    /// Returns the error if both listeners use the same port.
    fn listen_error(&self) -> Option<String> {
        let (own, dcgm) = (self.config.http.listen, self.config.dcgm.listen?);
        if !own.overlaps(dcgm) {
            return None;
        }
        let (origin, next) = (self.origin("http.listen"), "choose another port for one of them");
        Some(self.error(
            "dcgm.listen",
            format_args!("\"{dcgm}\" overlaps with http.listen ({origin}), which is \"{own}\"; {next}"),
        ))
    }

    /// Returns the error if the value of a key is less than its minimum, which is the value of another key.
    fn floor_error(&self, key: &Key) -> Option<String> {
        let (floor, _) = key.floor.iter().find(|(_, is_greater)| is_greater(&self.config))?;
        let value = |name| super::file::key(name).map(|key| (key.toml)(&self.config)).unwrap_or_default();
        let (own, least, origin) = (value(key.name), value(floor), self.origin(floor));
        let next = "raise the first or lower the second";
        Some(self.error(
            key.name,
            format_args!("{own} is shorter than {floor} ({origin}), which is {least}; {next}"),
        ))
    }
}

/// Reads the defaults, the file, the environment and the flags. Returns the valid keys and all errors. The daemon must not
/// serve with a configuration that has errors.
pub fn load(overrides: &Overrides) -> (Loaded, Vec<String>) {
    load_from(overrides, Path::new(DEFAULT_FILE), Environment::default())
}

/// Same as [`load`], with another default file and environment.
pub(super) fn load_from(
    overrides: &Overrides,
    default_file: &Path,
    environment: Environment,
) -> (Loaded, Vec<String>) {
    let mut layers = Layers::default();
    let path = overrides.config.as_deref().unwrap_or(default_file);
    match read_text(path, MAX_BYTES) {
        Ok(text) => {
            layers.loaded.has_file = true;
            layers.file(path, &text);
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound && overrides.config.is_none() => {}
        Err(e) => layers.errors.push(format!(
            "failed to read the configuration file {}: {e}; correct the path or the file",
            path.display()
        )),
    }
    layers.environment(environment);
    for (flag, key, value) in overrides.given() {
        layers.set(key, &value.as_str().into(), format!("flag {flag}"));
    }
    // Comparing two values only makes sense if both are valid.
    if layers.errors.is_empty() {
        layers.errors = keys().filter_map(|key| layers.loaded.floor_error(key)).collect();
        layers.errors.extend(layers.loaded.listen_error());
    }
    (layers.loaded, layers.errors)
}

/// Result of the layers that were read so far.
#[derive(Default)]
struct Layers {
    loaded: Loaded,
    errors: Vec<String>,
}

impl Layers {
    fn file(&mut self, path: &Path, text: &str) {
        match File::from_str(text, FileFormat::Toml).collect() {
            Ok(table) => self.table("", table, &format!("in {}", path.display())),
            Err(error) => self.errors.push(syntax_error(path, text, error)),
        }
    }

    fn environment(&mut self, environment: Environment) {
        let prefix = ENV_PREFIX.trim_end_matches('_');
        match environment.prefix(prefix).prefix_separator("__").separator("__").collect() {
            Ok(table) => {
                for (key, value) in BTreeMap::from_iter(table) {
                    let variable = format!("{ENV_PREFIX}{}", key.to_uppercase().replace('.', "__"));
                    if variable == FILE_VARIABLE {
                        continue;
                    }
                    self.set(&key, &value, format!("environment variable {variable}"));
                }
            }
            Err(error) => self.errors.push(error.to_string()),
        }
    }

    fn table(&mut self, prefix: &str, table: Map<String, Value>, origin: &str) {
        for (name, value) in BTreeMap::from_iter(table) {
            let name = format!("{prefix}{name}");
            match value.kind {
                ValueKind::Table(inner)
                    if key(&name).is_none() && (!inner.is_empty() || is_section(&name)) =>
                {
                    self.table(&format!("{name}."), inner, origin);
                }
                kind => self.set(&name, &Value::new(None, kind), origin.to_owned()),
            }
        }
    }

    fn set(&mut self, name: &str, value: &Value, origin: String) {
        let error = match key(name) {
            Some(key) if (key.set)(&mut self.loaded.config, value) => {
                self.loaded.origins.insert(key.name, origin);
                return;
            }
            Some(key) => format!("found {}, expected {}", describe(value), (key.expected)()),
            None if is_section(name) => {
                format!("found {}, expected a section [{name}] with keys in it", describe(value))
            }
            None => unknown(name),
        };
        self.errors.push(format!("{name} ({origin}): {error}"));
    }
}

fn is_section(name: &str) -> bool {
    SECTIONS.iter().any(|section| section.name == name)
}

fn unknown(name: &str) -> String {
    if let Some((_, now)) = RENAMED.iter().find(|(former, _)| *former == name) {
        return (*now).to_owned();
    }
    match nearest(name, keys().map(|key| key.name)) {
        Some(known) => format!("there is no such key; did you mean {known}?"),
        None => "there is no such key; remove it".into(),
    }
}

fn syntax_error(path: &Path, text: &str, error: ConfigError) -> String {
    let cause = match error {
        ConfigError::FileParse { cause, .. } => cause,
        other => Box::new(other),
    };
    let (mut position, mut message) = (String::new(), cause.to_string());
    if let Some(error) = cause.downcast_ref::<toml::de::Error>() {
        if let Some(before) = error.span().and_then(|span| text.get(..span.start)) {
            let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
            position = format!(":{}:{column}", before.matches('\n').count() + 1);
        }
        message = error.message().to_owned();
    }
    format!("{}{position}: not valid TOML: {}", path.display(), message.replace('\n', ", "))
}

/// Formats a value for an error message.
fn describe(value: &Value) -> String {
    match &value.kind {
        ValueKind::Nil => "nothing".into(),
        ValueKind::Table(_) => "a table".into(),
        ValueKind::Array(items) => format!("[{}]", items.iter().map(describe).collect::<Vec<_>>().join(", ")),
        ValueKind::String(text) => quoted(text),
        other => other.to_string(),
    }
}

/// Quotes a text for an error message, with escapes so that the message stays on one line.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", text.escape_debug())
}

/// Returns the name that is most similar to the wanted one, if any name is similar enough.
pub(super) fn nearest<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    names
        .map(|name| (similarity(wanted, name), name))
        // The first name wins if several are equally similar.
        .reduce(|best, next| if next.0 > best.0 { next } else { best })
        .filter(|(similarity, _)| *similarity > 0.6)
        .map(|(_, name)| name)
}

/// Returns the similarity of two names from 0 to 1. A correct key without a section or in the wrong section scores 0.99.
fn similarity(wanted: &str, name: &str) -> f64 {
    let last = |key: &str| key.rsplit('.').next().map(str::to_owned);
    if last(wanted) == last(name) { 0.99 } else { strsim::normalized_damerau_levenshtein(wanted, name) }
}
