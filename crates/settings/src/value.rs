//! Types of settings, which define how values are read, shown and limited.

use std::fmt;
use std::net::{AddrParseError, IpAddr, Ipv6Addr, SocketAddr};
use std::ops::{RangeFrom, RangeInclusive};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use ::config::{Value, ValueKind};
use glob::Pattern;
use tracing::Level;

use dcgm::fields::Release;
use dcgm::page::Values;
use model::catalog::schema::KnownLabel;
use model::catalog::{CanaryCheck, CanaryMode, MetricGroup, PerfEvent};

/// Maximum length of the path of a Unix socket: `sun_path` without its final NUL.
const SOCKET_PATH_BYTES: usize = 107;
/// Maximum length of a label's value, in characters.
const LABEL_CHARS: usize = 64;

/// Type that a setting can have.
pub(super) trait Setting: Sized {
    /// Rule that limits the values further than the type.
    type Rule;
    /// True if the value has no quotes in TOML.
    const BARE: bool = false;

    /// Returns a description of the values that the rule allows, for error messages.
    fn expected(rule: &Self::Rule) -> String;
    /// Parses a text. Returns `None` if the text is invalid or the rule does not allow the value.
    fn parse(text: &str, rule: &Self::Rule) -> Option<Self>;
    /// Returns the text of the value.
    fn text(&self) -> String;

    /// Reads a value from a file, a variable or a flag. Returns `None` if the rule does not allow the value.
    fn read(value: &Value, rule: &Self::Rule) -> Option<Self> {
        match &value.kind {
            ValueKind::String(text) if !text.contains('\0') => Self::parse(text, rule),
            ValueKind::I64(_) | ValueKind::Boolean(_) if Self::BARE => Self::parse(&value.to_string(), rule),
            // The debug format keeps the decimal point: 9.0 is not a whole number.
            ValueKind::Float(number) if Self::BARE => Self::parse(&format!("{number:?}"), rule),
            _ => None,
        }
    }

    /// Returns the value in TOML.
    fn toml(&self) -> String {
        if Self::BARE { self.text() } else { toml::Value::from(self.text()).to_string() }
    }
}

/// Implements [`Setting`] for types with a range.
macro_rules! ranged {
    ($type:ty, $bare:literal, $name:literal, $parse:expr, $text:expr) => {
        impl Setting for $type {
            type Rule = RangeInclusive<$type>;
            const BARE: bool = $bare;

            fn expected(range: &Self::Rule) -> String {
                format!(concat!($name, " from {} to {}"), range.start().toml(), range.end().toml())
            }

            fn parse(text: &str, range: &Self::Rule) -> Option<Self> {
                $parse(text).ok().filter(|value| range.contains(value))
            }

            fn text(&self) -> String {
                $text(*self).to_string()
            }
        }
    };
}
ranged!(u32, true, "a whole number", str::parse, u32::from);
ranged!(f64, true, "a number", str::parse, f64::from);
ranged!(Duration, false, "a duration", humantime::parse_duration, humantime::format_duration);

/// Implements [`Setting`] for types without a range.
macro_rules! plain {
    ($type:ty, $bare:literal, $expected:literal) => {
        impl Setting for $type {
            type Rule = ();
            const BARE: bool = $bare;

            fn expected(_: &()) -> String {
                $expected.into()
            }

            fn parse(text: &str, _: &()) -> Option<Self> {
                text.parse().ok()
            }

            fn text(&self) -> String {
                self.to_string()
            }
        }
    };
}
plain!(bool, true, "true or false");
plain!(Pattern, false, r#"patterns of metric names, such as ["gpu_power_*"]"#);
plain!(Listen, false, r#"an address such as ":9408" (all addresses), "127.0.0.1:9408" or "[::1]:9408""#);

/// Rule for the texts that a setting accepts.
pub(super) enum TextRule {
    Any,
    /// The name or address of a host, without a port; `*.example.net` matches every name below `example.net`.
    HostName,
    /// A path of the HTTP server, without a query.
    UrlPath,
    /// The value of a label. Every series carries the value, so its length is limited.
    LabelValue,
    OneOf(&'static [&'static str]),
}

impl Setting for String {
    type Rule = TextRule;

    fn expected(rule: &TextRule) -> String {
        match rule {
            TextRule::Any => "a string".into(),
            TextRule::HostName => {
                r#"host names or addresses without port, such as ["node1", "*.example.net", "10.0.0.3"]"#
                    .into()
            }
            TextRule::UrlPath => r#"paths, such as ["/livez"]"#.into(),
            TextRule::LabelValue => format!("at most {LABEL_CHARS} characters without control characters"),
            TextRule::OneOf(words) => one_of(words.iter().copied()),
        }
    }

    fn parse(text: &str, rule: &TextRule) -> Option<Self> {
        let allowed = match rule {
            TextRule::Any => true,
            TextRule::HostName => return host_name(text),
            TextRule::UrlPath => {
                let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"?#%*,".contains(&byte);
                text.starts_with('/') && text.bytes().all(is_plain)
            }
            TextRule::LabelValue => {
                text.chars().count() <= LABEL_CHARS && !text.chars().any(char::is_control)
            }
            TextRule::OneOf(words) => words.contains(&text),
        };
        allowed.then(|| text.to_owned())
    }

    fn text(&self) -> String {
        self.clone()
    }
}

/// Returns the host name or address in lower case, without brackets or a final dot.
fn host_name(text: &str) -> Option<String> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Some(address.to_string());
    }
    let name = text.strip_suffix('.').unwrap_or(text);
    let labels = name.strip_prefix("*.").unwrap_or(name);
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    labels.split('.').all(is_label).then(|| name.to_ascii_lowercase())
}

fn one_of<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let quoted = |word: &'a str| if word.is_empty() { r#""""# } else { word };
    format!("one of {}", words.map(quoted).collect::<Vec<_>>().join(", "))
}

/// Rule for the paths that a setting accepts.
pub(super) enum PathRule {
    Plain,
    Socket,
}

impl Setting for PathBuf {
    type Rule = PathRule;

    fn expected(rule: &PathRule) -> String {
        match rule {
            PathRule::Plain => "a path".into(),
            PathRule::Socket => format!("a path of at most {SOCKET_PATH_BYTES} bytes"),
        }
    }

    fn parse(text: &str, rule: &PathRule) -> Option<Self> {
        let fits = matches!(rule, PathRule::Plain) || text.len() <= SOCKET_PATH_BYTES;
        (fits && !text.is_empty()).then(|| text.into())
    }

    fn text(&self) -> String {
        self.display().to_string()
    }
}

/// An address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen(pub SocketAddr);

impl Listen {
    /// Returns true if two sockets cannot listen on both addresses: the ports are equal, and the addresses are equal or one
    /// of them is the unspecified address.
    pub fn overlaps(self, other: Self) -> bool {
        let all = self.0.ip().is_unspecified() || other.0.ip().is_unspecified();
        self.0.port() != 0 && self.0.port() == other.0.port() && (all || self.0.ip() == other.0.ip())
    }

    /// Returns the address for `:PORT`, which is `[::]:PORT`. The socket also accepts IPv4 if its owner clears `IPV6_V6ONLY`.
    pub(super) const fn all(port: u16) -> Self {
        Self(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port))
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.ip() {
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) => write!(f, ":{}", self.0.port()),
            _ => self.0.fmt(f),
        }
    }
}

impl FromStr for Listen {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Self, AddrParseError> {
        let all = text.strip_prefix(':').and_then(|port| port.parse().ok()).map(Self::all);
        all.map_or_else(|| text.parse().map(Self), Ok)
    }
}

/// An empty text means `None`.
impl<T: Setting> Setting for Option<T> {
    type Rule = T::Rule;

    fn expected(rule: &Self::Rule) -> String {
        format!(r#"{}; "" for none"#, T::expected(rule))
    }

    fn parse(text: &str, rule: &Self::Rule) -> Option<Self> {
        if text.is_empty() { Some(None) } else { T::parse(text, rule).map(Some) }
    }

    fn text(&self) -> String {
        self.as_ref().map(Setting::text).unwrap_or_default()
    }
}

/// Type whose values have names.
pub(super) trait Word: Copy + PartialEq {
    /// Returns all values with their names.
    fn all() -> impl Iterator<Item = (&'static str, Self)>;
}

macro_rules! words {
    ($($type:ty, $name:ident;)+) => {
        $(impl Word for $type {
            fn all() -> impl Iterator<Item = (&'static str, Self)> {
                Self::ALL.iter().map(|value| (value.$name(), *value))
            }
        })+
    };
}
words! {
    CanaryCheck, known;
    CanaryMode, known;
    PerfEvent, known;
    MetricGroup, name;
    Release, name;
    Values, name;
}

/// Clients from which the exporter hides the names of owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HideOwners {
    Never,
    Unauthenticated,
}

impl Word for HideOwners {
    fn all() -> impl Iterator<Item = (&'static str, Self)> {
        [("never", Self::Never), ("unauthenticated", Self::Unauthenticated)].into_iter()
    }
}

impl Word for Level {
    fn all() -> impl Iterator<Item = (&'static str, Self)> {
        let levels = [Self::ERROR, Self::WARN, Self::INFO, Self::DEBUG, Self::TRACE];
        ["error", "warn", "info", "debug", "trace"].into_iter().zip(levels)
    }
}

impl<W: Word> Setting for W {
    type Rule = ();

    fn expected(_: &()) -> String {
        one_of(W::all().map(|(name, _)| name))
    }

    fn parse(text: &str, _: &()) -> Option<Self> {
        W::all().find(|(name, _)| *name == text).map(|(_, value)| value)
    }

    fn text(&self) -> String {
        W::all().find(|(_, value)| value == self).map(|(name, _)| name.to_owned()).unwrap_or_default()
    }
}

/// A list with a minimum number of items. In an environment variable, commas separate the items.
impl<T: Setting> Setting for Vec<T> {
    type Rule = (RangeFrom<usize>, T::Rule);
    const BARE: bool = true;

    fn expected((count, rule): &Self::Rule) -> String {
        format!("a list of {}{}", if count.start > 0 { "at least " } else { "" }, T::expected(rule))
    }

    fn parse(text: &str, rule: &Self::Rule) -> Option<Self> {
        let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
        Self::read(&words.collect::<Vec<_>>().into(), rule)
    }

    fn text(&self) -> String {
        format!("[{}]", self.iter().map(T::toml).collect::<Vec<_>>().join(", "))
    }

    fn read(value: &Value, rule: &Self::Rule) -> Option<Self> {
        match &value.kind {
            ValueKind::String(text) => Self::parse(text, rule),
            ValueKind::Array(items) if rule.0.contains(&items.len()) => {
                items.iter().map(|item| T::read(item, &rule.1)).collect()
            }
            _ => None,
        }
    }
}
