//! Reads the layers: built-in defaults, then the file, then the environment, then the flags.
//!
//! Every layer is looked at key by key before they are laid over each other, so that all unknown keys and
//! all bad values are told at once, each with the file, variable or flag it stands in, also when a later
//! layer hides it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use ::config::{ConfigError, Environment, File, FileFormat, Map, Source, Value, ValueKind};

use super::Config;
use super::problems::{ConfigErrors, Problem, nearest};
use super::rules::{is_section, orders, rule};

/// The file that is read, if it exists, when no `--config` is given.
pub const DEFAULT_FILE: &str = "/etc/gpu-node-exporter/config.toml";

/// What the name of every environment variable that sets a key starts with. The underscores are two
/// because Kubernetes sets single-underscore variables (`GPU_NODE_EXPORTER_PORT`) for a Service of this name.
pub const ENV_PREFIX: &str = "GPU_NODE_EXPORTER__";

/// The settings that are also flags; they win over file and environment.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Overrides {
    /// Configuration file [default: /etc/gpu-node-exporter/config.toml, if it exists]
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    /// Address to serve on, IP:PORT or :PORT for all addresses [default: :9408]
    #[arg(long, value_name = "ADDR", global = true)]
    pub listen: Option<String>,
    /// NVML library [default: the loader's search of libnvidia-ml.so.1]
    #[arg(long, value_name = "PATH", global = true)]
    pub nvml_library: Option<String>,
    /// CUDA driver library, for the canary [default: the loader's search of libcuda.so.1]
    #[arg(long, value_name = "PATH", global = true)]
    pub cuda_library: Option<String>,
    /// Folder for what is kept over restarts [default: /var/lib/gpu-node-exporter]
    #[arg(long, value_name = "DIR", global = true)]
    pub state_dir: Option<String>,
    /// Where the host's /proc, /sys, /dev, /run and /etc are looked for [default: /]
    #[arg(long, value_name = "DIR", global = true)]
    pub root: Option<String>,
    /// What to log: error, warn, info, debug or trace [default: info]
    #[arg(long, value_name = "LEVEL", global = true)]
    pub log_level: Option<String>,
}

impl Overrides {
    /// The flags given: flag, key, value.
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

/// A checked configuration, and where its values come from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// File, environment variable or flag, for each key that is not at its built-in default.
    pub origins: BTreeMap<&'static str, String>,
}

impl Loaded {
    /// Checks that every pattern of `[metrics]` matches a name of the catalogue.
    pub fn check_patterns(&self, names: &[&str]) -> Result<(), ConfigErrors> {
        let metrics = &self.config.metrics;
        let mut problems = Vec::new();
        for (key, patterns) in [("metrics.include", &metrics.include), ("metrics.exclude", &metrics.exclude)]
        {
            for text in patterns {
                let matches = |name: &&str| glob::Pattern::new(text).is_ok_and(|p| p.matches(name));
                // A lone "*" stands for whatever there is.
                if text != "*" && !names.iter().any(matches) {
                    problems.push(Problem::NoSuchMetric {
                        key,
                        origin: self.origin(key),
                        pattern: text.clone(),
                        nearest: nearest(text, names.iter().copied()).map(str::to_owned),
                    });
                }
            }
        }
        if problems.is_empty() { Ok(()) } else { Err(ConfigErrors(problems)) }
    }

    /// The configuration as TOML, each value that is not a default with a comment where it comes from.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        let mut section = "";
        let mut out = String::new();
        let text = toml::to_string(&self.config)?;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                section = name;
            }
            let key = line.split_once(" = ").map(|(name, _)| format!("{section}.{name}"));
            out.push_str(line);
            if let Some(origin) = key.and_then(|key| self.origins.get(key.as_str())) {
                out.push_str(&format!("  # {origin}"));
            }
            out.push('\n');
        }
        Ok(out)
    }

    /// Where the value of a key comes from.
    pub(super) fn origin(&self, key: &str) -> String {
        self.origins.get(key).map_or_else(|| "default".into(), Clone::clone)
    }
}

/// Reads file, environment and flags over the defaults, and tells everything that is wrong at once.
pub fn load(overrides: &Overrides) -> Result<Loaded, ConfigErrors> {
    load_from(overrides, Path::new(DEFAULT_FILE), Environment::default())
}

/// As [`load`], with the default file and the environment that tests want.
pub(super) fn load_from(
    overrides: &Overrides,
    default_file: &Path,
    environment: Environment,
) -> Result<Loaded, ConfigErrors> {
    let mut layers = Layers::default();
    let path = overrides.config.as_deref().unwrap_or(default_file);
    match std::fs::read_to_string(path) {
        Ok(text) => layers.file(path, &text),
        Err(e) if e.kind() == io::ErrorKind::NotFound && overrides.config.is_none() => {}
        Err(e) => layers.problems.push(Problem::Unreadable { path: path.into(), error: e.to_string() }),
    }
    layers.environment(environment);
    for (flag, key, value) in overrides.given() {
        layers.leaf(key, Value::from(value.clone()), format!("flag {flag}"));
    }
    layers.finish()
}

/// The good values so far, a later layer's over an earlier one's, and all that is wrong.
#[derive(Default)]
struct Layers {
    values: BTreeMap<&'static str, (Value, String)>,
    problems: Vec<Problem>,
}

impl Layers {
    fn file(&mut self, path: &Path, text: &str) {
        match File::from_str(text, FileFormat::Toml).collect() {
            Ok(table) => self.table("", table, &format!("in {}", path.display())),
            Err(error) => self.problems.push(syntax_problem(path, text, error)),
        }
    }

    fn environment(&mut self, environment: Environment) {
        let prefix = ENV_PREFIX.trim_end_matches('_');
        match environment.prefix(prefix).prefix_separator("__").separator("__").collect() {
            Ok(table) => {
                for (key, value) in sorted(table) {
                    let variable = format!("{ENV_PREFIX}{}", key.to_uppercase().replace('.', "__"));
                    self.leaf(&key, value, format!("environment variable {variable}"));
                }
            }
            Err(error) => self.problems.push(Problem::Environment(error.to_string())),
        }
    }

    fn table(&mut self, prefix: &str, table: Map<String, Value>, origin: &str) {
        for (name, value) in sorted(table) {
            let key = format!("{prefix}{name}");
            match value.kind {
                ValueKind::Table(inner)
                    if rule(&key).is_none() && (!inner.is_empty() || is_section(&key)) =>
                {
                    self.table(&format!("{key}."), inner, origin);
                }
                kind => self.leaf(&key, Value::new(None, kind), origin.to_owned()),
            }
        }
    }

    fn leaf(&mut self, key: &str, value: Value, origin: String) {
        let Some(&(key, rule)) = rule(key) else {
            let key = key.to_owned();
            self.problems.push(if is_section(&key) {
                let expected = format!("a section [{key}] with keys in it");
                Problem::BadValue { key, origin, found: describe(&value), expected }
            } else {
                Problem::UnknownKey { key, origin }
            });
            return;
        };
        let value = rule.normalise(value);
        if rule.allows(&value) {
            self.values.insert(key, (value, origin));
        } else {
            self.problems.push(Problem::bad_value(key, origin, describe(&value), rule));
        }
    }

    fn finish(mut self) -> Result<Loaded, ConfigErrors> {
        let origins: BTreeMap<_, _> =
            self.values.iter().map(|(key, (_, origin))| (*key, origin.clone())).collect();
        let config = match deserialize(self.values) {
            Ok(config) => config,
            // Not reached while every rule is as strict as its field's type; told rather than hidden if it is.
            Err(error) => {
                self.problems.push(Problem::Environment(error));
                return Err(ConfigErrors(self.problems));
            }
        };
        let loaded = Loaded { config, origins };
        // The order of two values means something only once both are good.
        if self.problems.is_empty() {
            for [shorter, longer] in orders(&loaded.config) {
                if longer.1 < shorter.1 {
                    let with_origin = |(key, time)| (key, time, loaded.origin(key));
                    let (shorter, longer) = (with_origin(shorter), with_origin(longer));
                    self.problems.push(Problem::WrongOrder { shorter, longer });
                }
            }
        }
        if self.problems.is_empty() { Ok(loaded) } else { Err(ConfigErrors(self.problems)) }
    }
}

fn deserialize(values: BTreeMap<&'static str, (Value, String)>) -> Result<Config, String> {
    let defaults = toml::to_string(&Config::default()).map_err(|e| e.to_string())?;
    let mut builder = ::config::Config::builder().add_source(File::from_str(&defaults, FileFormat::Toml));
    for (key, (value, _)) in values {
        builder = builder.set_override(key, value).map_err(|e| e.to_string())?;
    }
    builder.build().and_then(::config::Config::try_deserialize).map_err(|e| e.to_string())
}

fn syntax_problem(path: &Path, text: &str, error: ConfigError) -> Problem {
    let path = path.to_owned();
    let ConfigError::FileParse { cause, .. } = error else {
        return Problem::Syntax { path, position: None, message: error.to_string() };
    };
    match cause.downcast_ref::<toml::de::Error>() {
        Some(error) => {
            let before = error.span().and_then(|span| text.get(..span.start));
            let position = before.map(|before| {
                let line = before.rsplit('\n').next().unwrap_or_default();
                (before.matches('\n').count() + 1, line.chars().count() + 1)
            });
            Problem::Syntax { path, position, message: error.message().replace('\n', ", ") }
        }
        None => Problem::Syntax { path, position: None, message: cause.to_string().replace('\n', " ") },
    }
}

/// A value as a person would name it.
fn describe(value: &Value) -> String {
    match &value.kind {
        ValueKind::Nil => "nothing".into(),
        ValueKind::Table(_) => "a table".into(),
        ValueKind::Array(items) => format!("[{}]", items.iter().map(describe).collect::<Vec<_>>().join(", ")),
        ValueKind::String(text) => format!("{text:?}"),
        other => other.to_string(),
    }
}

/// A table in the order of its keys: messages come in the same order each time.
fn sorted(table: Map<String, Value>) -> BTreeMap<String, Value> {
    table.into_iter().collect()
}
