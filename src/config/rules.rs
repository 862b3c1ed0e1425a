//! What each key may hold: one line a key. A value that breaks its rule never reaches [`Config`].

use std::fmt;
use std::time::Duration;

use ::config::{Value, ValueKind};

use super::{Config, Listen};
use crate::catalog::schema::Label;
use crate::catalog::{CanaryCheck, CanaryMode, MetricGroup, PerfEvent};

/// What one key may hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Rule {
    /// An address to serve on.
    Address,
    /// Patterns over metric names.
    Patterns,
    /// A whole number in a range.
    Count(i64, i64),
    /// A duration in a range.
    Time(Duration, Duration),
    /// A path that must be there.
    Path,
    /// A path, or empty.
    OptionalPath,
    /// A Unix socket's path, or empty.
    Socket,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A list of these words.
    Words(&'static [&'static str]),
    /// A list of these words, also an empty one.
    AnyWords(&'static [&'static str]),
    /// Yes or no.
    Flag,
    /// Any text, also none.
    Text,
}

/// Longest path the kernel takes for a Unix socket: `sun_path` less its final NUL.
const SOCKET_PATH_BYTES: usize = 107;

const LEVELS: &[&str] = &["error", "warn", "info", "debug", "trace"];
const MODES: &[&str] = words::<CanaryMode>();
const CHECKS: &[&str] = words::<CanaryCheck>();
const EVENTS: &[&str] = words::<PerfEvent>();

/// The texts of a label whose values are known.
const fn words<L: Label>() -> &'static [&'static str] {
    match L::DEF.values {
        Some(values) => values,
        None => &[],
    }
}

/// Every key with its rule.
pub(super) const KEYS: &[(&str, Rule)] = &[
    ("http.listen", Rule::Address),
    ("http.max_connections", Rule::Count(1, 10_000)),
    ("http.read_timeout", Rule::Time(ms(100), minutes(10))),
    ("http.write_timeout", Rule::Time(ms(100), minutes(10))),
    ("metrics.include", Rule::Patterns),
    ("metrics.exclude", Rule::Patterns),
    ("metrics.groups", Rule::AnyWords(MetricGroup::NAMES)),
    ("metrics.max_series", Rule::Count(100, 1_000_000)),
    ("ledger.publish_interval", Rule::Time(ms(50), minutes(1))),
    ("sampler.nvml_library", Rule::OptionalPath),
    ("sampler.fast_interval", Rule::Time(ms(10), ms(10_000))),
    ("sampler.normal_interval", Rule::Time(ms(10), minutes(1))),
    ("sampler.drain_interval", Rule::Time(ms(10), minutes(1))),
    ("sampler.slow_interval", Rule::Time(ms(10), minutes(10))),
    ("sampler.rare_interval", Rule::Time(ms(10), minutes(60))),
    ("sampler.links_interval", Rule::Time(ms(10), minutes(60))),
    ("sampler.call_deadline", Rule::Time(ms(100), minutes(1))),
    ("sampler.init_deadline", Rule::Time(ms(100), minutes(10))),
    ("sampler.driver_retry_interval", Rule::Time(ms(50), minutes(10))),
    ("sampler.restart_backoff", Rule::Time(ms(10), minutes(1))),
    ("sampler.restart_backoff_max", Rule::Time(ms(10), minutes(10))),
    ("gpm.enabled", Rule::Flag),
    ("mig.layout_file", Rule::OptionalPath),
    ("mig.layout", Rule::Text),
    ("processes.per_process", Rule::Flag),
    ("processes.most", Rule::Count(1, 1000)),
    ("events.kernel_log", Rule::Flag),
    ("events.keep", Rule::Count(10, 10_000)),
    ("canary.mode", Rule::OneOf(MODES)),
    ("canary.interval", Rule::Time(ms(1000), minutes(24 * 60))),
    ("canary.idle_for", Rule::Time(ms(1000), minutes(24 * 60))),
    ("canary.checks", Rule::Words(CHECKS)),
    ("canary.memory_mib", Rule::Count(8, 4096)),
    ("canary.duty_ppm", Rule::Count(1, 100_000)),
    ("canary.hung_after", Rule::Time(ms(1000), minutes(10))),
    ("canary.kill_after", Rule::Time(ms(1000), minutes(60))),
    ("canary.cuda_library", Rule::OptionalPath),
    ("canary.interlock", Rule::Path),
    ("canary.maintenance_file", Rule::Path),
    ("topology.enabled", Rule::Flag),
    ("topology.interval", Rule::Time(ms(1000), minutes(24 * 60))),
    ("topology.declared", Rule::OptionalPath),
    ("owners.enabled", Rule::Flag),
    ("owners.kubelet_socket", Rule::Socket),
    ("owners.keep", Rule::Time(ms(1000), minutes(24 * 60))),
    ("owners.most", Rule::Count(1, 1000)),
    ("owners.read_deadline", Rule::Time(ms(10), minutes(1))),
    ("cpu.enabled", Rule::Flag),
    ("cpu.interval", Rule::Time(ms(1000), minutes(10))),
    ("cpu.events", Rule::Words(EVENTS)),
    ("cpu.per_owner", Rule::Flag),
    ("windows.dir", Rule::OptionalPath),
    ("windows.longest", Rule::Time(minutes(1), minutes(28 * 24 * 60))),
    ("health.expected_gpus", Rule::Count(0, 64)),
    ("driver.version", Rule::Text),
    ("state.dir", Rule::Path),
    ("host.root", Rule::Path),
    ("control.socket", Rule::Socket),
    ("log.level", Rule::OneOf(LEVELS)),
];

/// Pairs of which the second must not be shorter than the first.
pub(super) fn orders(config: &Config) -> [[(&'static str, Duration); 2]; 4] {
    let s = &config.sampler;
    let fast = ("sampler.fast_interval", s.fast_interval);
    let normal = ("sampler.normal_interval", s.normal_interval);
    let slow = ("sampler.slow_interval", s.slow_interval);
    let rare = ("sampler.rare_interval", s.rare_interval);
    let backoff = ("sampler.restart_backoff", s.restart_backoff);
    let backoff_max = ("sampler.restart_backoff_max", s.restart_backoff_max);
    [[fast, normal], [normal, slow], [slow, rare], [backoff, backoff_max]]
}

/// The rule of a key, if there is such a key.
pub(super) fn rule(key: &str) -> Option<&'static (&'static str, Rule)> {
    KEYS.iter().find(|(known, _)| *known == key)
}

/// Whether some key lives in this section.
pub(super) fn is_section(name: &str) -> bool {
    KEYS.iter().any(|(key, _)| key.split_once('.').is_some_and(|(section, _)| section == name))
}

impl Rule {
    /// A list given as one text (the only way in an environment variable) becomes a list.
    pub(super) fn normalise(self, value: Value) -> Value {
        match (self, &value.kind) {
            (Self::Patterns | Self::Words(_) | Self::AnyWords(_), ValueKind::String(text)) => {
                let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
                Value::from(words.map(str::to_owned).collect::<Vec<_>>())
            }
            _ => value,
        }
    }

    /// Whether the value is of the right type and in its range.
    pub(super) fn allows(self, value: &Value) -> bool {
        match (self, &value.kind) {
            (Self::Count(min, max), ValueKind::I64(n)) => (min..=max).contains(n),
            (Self::Count(min, max), ValueKind::String(text)) => {
                text.parse().is_ok_and(|n: i64| (min..=max).contains(&n))
            }
            (Self::Patterns, ValueKind::Array(items)) => items.iter().all(
                |item| matches!(&item.kind, ValueKind::String(text) if glob::Pattern::new(text).is_ok()),
            ),
            (Self::Words(known), ValueKind::Array(items)) => !items.is_empty()
                && items.iter().all(
                    |item| matches!(&item.kind, ValueKind::String(text) if known.contains(&text.as_str())),
                ),
            (Self::AnyWords(known), ValueKind::Array(items)) => items
                .iter()
                .all(|item| matches!(&item.kind, ValueKind::String(text) if known.contains(&text.as_str()))),
            (Self::Flag, ValueKind::Boolean(_)) => true,
            (_, ValueKind::String(text)) => self.allows_text(text),
            _ => false,
        }
    }

    fn allows_text(self, text: &str) -> bool {
        match self {
            Self::Address => text.parse::<Listen>().is_ok(),
            Self::Time(min, max) => humantime::parse_duration(text).is_ok_and(|d| (min..=max).contains(&d)),
            Self::Path => !text.is_empty() && !text.contains('\0'),
            Self::OptionalPath | Self::Text => !text.contains('\0'),
            Self::Flag => matches!(text, "true" | "false"),
            Self::Socket => text.len() <= SOCKET_PATH_BYTES && !text.contains('\0'),
            Self::OneOf(known) => known.contains(&text),
            Self::Count(..) | Self::Patterns | Self::Words(_) | Self::AnyWords(_) => false,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address => {
                f.write_str(r#"an address such as ":9408" (all addresses), "127.0.0.1:9408" or "[::1]:9408""#)
            }
            Self::Patterns => f.write_str(r#"a list of patterns of metric names, such as ["gpu_power_*"]"#),
            Self::Count(min, max) => write!(f, "a whole number from {min} to {max}"),
            Self::Time(min, max) => write!(f, r#"a duration from "{}" to "{}""#, human(*min), human(*max)),
            Self::Flag => f.write_str("true or false"),
            Self::Text => f.write_str("a text"),
            Self::Path => f.write_str("a path"),
            Self::OptionalPath => f.write_str("a path, or an empty text"),
            Self::Socket => {
                write!(f, "a path of at most {SOCKET_PATH_BYTES} bytes, or an empty text for no socket")
            }
            Self::OneOf(known) => write!(f, "one of {}", known.join(", ")),
            Self::AnyWords(known) => write!(f, "a list of any of {}", known.join(", ")),
            Self::Words(known) => write!(f, "a list of at least one of {}", known.join(", ")),
        }
    }
}

/// A duration as a person would write it.
pub(super) fn human(duration: Duration) -> humantime::FormattedDuration {
    humantime::format_duration(duration)
}

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn minutes(n: u64) -> Duration {
    Duration::from_secs(60 * n)
}
