//! Parser of the web configuration file of the Prometheus exporter-toolkit. It checks every key, so that one pass
//! reports all errors. Keys, names and defaults are the toolkit's. A value that rustls does not support is an error; in
//! a list it is dropped with a warning if other values remain.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustls::crypto::SupportedKxGroup;
use rustls::crypto::ring::{ALL_CIPHER_SUITES, ALL_KX_GROUPS, kx_group};
use rustls::version::{TLS12, TLS13};
use rustls::{SupportedCipherSuite, SupportedProtocolVersion};
use yaml_serde::{Mapping, Value};

use crate::password::PasswordHash;

/// Cipher suites that Go supports in addition to [`ALL_CIPHER_SUITES`].
const SUITES_OF_GO: [&str; 4] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
];
/// Headers that may be set, with the permitted values; an empty list permits any value.
const HEADERS: [(&str, &[&str]); 5] = [
    ("Content-Security-Policy", &[]),
    ("Strict-Transport-Security", &[]),
    ("X-Content-Type-Options", &["nosniff"]),
    ("X-Frame-Options", &["deny", "sameorigin"]),
    ("X-XSS-Protection", &[]),
];

/// Contents of a file.
#[derive(Debug)]
pub(crate) struct WebConfig {
    /// `None` for plain HTTP.
    pub tls: Option<TlsSection>,
    pub headers: Vec<(&'static str, String)>,
    /// Password hashes by user; empty if no password is required.
    pub users: BTreeMap<String, PasswordHash>,
    pub rate_limit: Option<RateLimit>,
    pub warnings: Vec<String>,
}

/// Token bucket that gains one token per interval, up to `burst` tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimit {
    pub interval: Duration,
    pub burst: u32,
}

#[derive(Debug)]
pub(crate) struct TlsSection {
    pub certificates: Pem,
    pub key: Pem,
    pub client_ca: Option<Pem>,
    pub client_auth: ClientAuth,
    pub client_allowed_sans: Option<Vec<String>>,
    pub versions: Vec<&'static SupportedProtocolVersion>,
    pub cipher_suites: Vec<SupportedCipherSuite>,
    /// Empty for the default curves.
    pub curves: Vec<&'static dyn SupportedKxGroup>,
}

/// PEM text, with the key that contains it.
#[derive(Debug)]
pub(crate) enum Pem {
    File(&'static str, PathBuf),
    Inline(&'static str, String),
}

/// Requirements on client certificates, as in Go's `crypto/tls`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientAuth {
    No,
    Request,
    RequireAny,
    VerifyIfGiven,
    RequireAndVerify,
}

impl ClientAuth {
    fn parse(name: &str) -> Option<ClientAuth> {
        Some(match name {
            "" | "NoClientCert" => ClientAuth::No,
            "RequestClientCert" => ClientAuth::Request,
            // The toolkit also accepts its former name.
            "RequireAnyClientCert" | "RequireClientCert" => ClientAuth::RequireAny,
            "VerifyClientCertIfGiven" => ClientAuth::VerifyIfGiven,
            "RequireAndVerifyClientCert" => ClientAuth::RequireAndVerify,
            _ => return None,
        })
    }

    /// Returns Go's name, which the file uses too.
    pub const fn name(self) -> &'static str {
        match self {
            ClientAuth::No => "NoClientCert",
            ClientAuth::Request => "RequestClientCert",
            ClientAuth::RequireAny => "RequireAnyClientCert",
            ClientAuth::VerifyIfGiven => "VerifyClientCertIfGiven",
            ClientAuth::RequireAndVerify => "RequireAndVerifyClientCert",
        }
    }

    pub const fn requires(self) -> bool {
        matches!(self, ClientAuth::RequireAny | ClientAuth::RequireAndVerify)
    }

    pub const fn verifies(self) -> bool {
        matches!(self, ClientAuth::VerifyIfGiven | ClientAuth::RequireAndVerify)
    }
}

impl WebConfig {
    /// Parses the text of a file. Paths in it are relative to the folder of the file. Returns all errors that can be
    /// found.
    pub fn parse(text: &str, file: &Path) -> Result<WebConfig, Vec<String>> {
        let top = match yaml_serde::from_str(text) {
            Ok(Value::Mapping(top)) => top,
            Ok(Value::Null) => Mapping::new(),
            Ok(_) => return Err(vec!["is not a YAML mapping of keys to values".into()]),
            Err(error) => return Err(vec![format!("is not valid YAML: {error}")]),
        };
        let mut reader =
            Reader { section: String::new(), keys: top, problems: Vec::new(), warnings: Vec::new() };
        let tls = reader.section("tls_server_config", |keys| tls(keys, file));
        let headers = reader.section("http_server_config", |keys| {
            // The server does not offer HTTP/2, and no client depends on it.
            keys.boolean("http2");
            headers(keys)
        });
        let rate_limit = reader.section("rate_limit", rate_limit);
        let users = users(&mut reader);
        reader.refuse_others();
        let Reader { problems, warnings, .. } = reader;
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(WebConfig {
            tls: tls.flatten(),
            headers: headers.unwrap_or_default(),
            users,
            rate_limit: rate_limit.flatten(),
            warnings,
        })
    }
}

fn tls(keys: &mut Reader, file: &Path) -> Option<TlsSection> {
    if keys.keys.is_empty() {
        return None;
    }
    let mut pem = |inline: &'static str, named: &'static str| {
        let (text, path) = (keys.string(inline), keys.string(named));
        match (text.is_empty(), path.is_empty()) {
            (_, false) => Some(Pem::File(named, file.with_file_name(path))),
            (false, true) => Some(Pem::Inline(inline, text)),
            (true, true) => None,
        }
    };
    let (certificates, key) = (pem("cert", "cert_file"), pem("key", "key_file"));
    let client_ca = pem("client_ca", "client_ca_file");
    if certificates.is_none() {
        keys.problem("", "missing one of cert or cert_file");
    }
    if key.is_none() {
        keys.problem("", "missing one of key or key_file");
    }
    let name = keys.string("client_auth_type");
    let client_auth = ClientAuth::parse(&name).unwrap_or_else(|| {
        keys.problem("client_auth_type", format!("invalid value \"{name}\""));
        ClientAuth::No
    });
    if client_ca.is_some() && client_auth == ClientAuth::No && ClientAuth::parse(&name).is_some() {
        keys.problem(
            "client_auth_type",
            "client CAs are configured, but this type does not request client certificates",
        );
    }
    if client_ca.is_none() && client_auth == ClientAuth::RequireAndVerify {
        let why = "needs client_ca or client_ca_file; the system's certificate authorities are not used, because that \
                   would accept every certificate that they have issued";
        keys.problem("client_auth_type", why);
    }
    let client_allowed_sans = keys.strings("client_allowed_sans");
    if client_allowed_sans.is_some() && client_auth == ClientAuth::No {
        keys.warning(
            "client_allowed_sans",
            "has no effect, because client_auth_type does not request client certificates",
        );
    }
    // The toolkit ignores this key too.
    keys.boolean("prefer_server_cipher_suites");
    let (versions, cipher_suites) = versions_and_suites(keys);
    let curves = curves(keys);
    Some(TlsSection {
        certificates: certificates?,
        key: key?,
        client_ca,
        client_auth,
        client_allowed_sans,
        versions,
        cipher_suites,
        curves,
    })
}

fn versions_and_suites(
    keys: &mut Reader,
) -> (Vec<&'static SupportedProtocolVersion>, Vec<SupportedCipherSuite>) {
    let mut number = |key, default| match keys.string(key).as_str() {
        "" => default,
        "TLS12" => 12,
        "TLS13" => 13,
        old @ ("TLS10" | "TLS11") => {
            keys.problem(key, format!("{old} is not supported; use TLS12 or TLS13"));
            default
        }
        unknown => {
            keys.problem(key, format!("unknown TLS version \"{unknown}\"; use TLS12 or TLS13"));
            default
        }
    };
    let (min, max) = (number("min_version", 12), number("max_version", 13));
    let mut versions = Vec::new();
    versions.extend((max == 13).then_some(&TLS13));
    versions.extend((min == 12).then_some(&TLS12));
    if min > max {
        keys.problem("min_version", "is higher than max_version");
        return (versions, Vec::new());
    }
    let names = keys.strings("cipher_suites").unwrap_or_default();
    let suite_name = |suite: &SupportedCipherSuite| {
        // Go's names of TLS 1.3 suites do not include the version.
        format!("{:?}", suite.suite()).replacen("TLS13_", "TLS_", 1)
    };
    let mut suites: Vec<SupportedCipherSuite> = Vec::new();
    for name in &names {
        match ALL_CIPHER_SUITES.iter().find(|suite| suite_name(suite) == *name) {
            Some(suite) => suites.push(*suite),
            None if SUITES_OF_GO.contains(&name.as_str()) => {
                keys.warning("cipher_suites", format!("{name} is not supported and is ignored"));
            }
            None => keys.problem("cipher_suites", format!("unknown cipher suite \"{name}\"")),
        }
    }
    // As in Go, the list applies only to TLS 1.2: TLS 1.3 always has all of its suites.
    let of_tls13 = |suite: &SupportedCipherSuite| suite.tls13().is_some();
    suites.retain(|suite| !of_tls13(suite));
    if names.is_empty() {
        return (versions, ALL_CIPHER_SUITES.to_vec());
    }
    if suites.is_empty() {
        versions.retain(|version| **version != TLS12);
    }
    if versions.is_empty() {
        keys.problem("cipher_suites", "contains no supported suite");
    }
    suites.extend(ALL_CIPHER_SUITES.iter().filter(|suite| of_tls13(suite)));
    (versions, suites)
}

fn curves(keys: &mut Reader) -> Vec<&'static dyn SupportedKxGroup> {
    let names = keys.strings("curve_preferences").unwrap_or_default();
    let mut curves = Vec::new();
    for name in &names {
        match name.as_str() {
            "CurveP256" => curves.push(kx_group::SECP256R1),
            "CurveP384" => curves.push(kx_group::SECP384R1),
            "X25519" => curves.push(kx_group::X25519),
            "CurveP521" => keys.warning("curve_preferences", "CurveP521 is not supported and is ignored"),
            _ => keys.problem("curve_preferences", format!("unknown curve \"{name}\"")),
        }
    }
    if names.is_empty() {
        return ALL_KX_GROUPS.to_vec();
    }
    if curves.is_empty() {
        keys.problem("curve_preferences", "contains no supported curve; use X25519, CurveP256 or CurveP384");
    }
    curves
}

fn headers(keys: &mut Reader) -> Vec<(&'static str, String)> {
    let found = keys.section("headers", |keys| {
        let mut found = Vec::new();
        for (name, permitted) in HEADERS {
            let value = keys.string(name);
            if value.is_empty() {
                continue;
            }
            if !permitted.is_empty() && !permitted.contains(&value.as_str()) {
                keys.problem(name, format!("\"{value}\" is not permitted; use {}", permitted.join(" or ")));
            } else if !value.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
                keys.problem(name, "contains characters that are not permitted in a header");
            }
            found.push((name, value));
        }
        found
    });
    found.unwrap_or_default()
}

fn rate_limit(keys: &mut Reader) -> Option<RateLimit> {
    let (interval, burst) = (keys.string("interval"), keys.string("burst"));
    let interval = match interval.as_str() {
        "" | "0" => Duration::ZERO,
        text => humantime::parse_duration(text).unwrap_or_else(|_| {
            keys.problem("interval", format!("\"{text}\" is not a duration, such as \"1s\""));
            Duration::ZERO
        }),
    };
    let burst = if burst.is_empty() { Ok(0) } else { burst.parse() }.unwrap_or_else(|_| {
        keys.problem("burst", "must be a whole number");
        0
    });
    if interval.is_zero() {
        return None;
    }
    if burst == 0 {
        keys.warning("burst", "0 rejects every request");
    }
    Some(RateLimit { interval, burst })
}

fn users(top: &mut Reader) -> BTreeMap<String, PasswordHash> {
    let read = |keys: &mut Reader| {
        let mut users = BTreeMap::new();
        for (name, hash) in std::mem::take(&mut keys.keys) {
            let Some(name) = scalar(&name).filter(|name| !name.contains(':')) else {
                keys.problem("", "a user name must be a string without a colon");
                continue;
            };
            match scalar(&hash).as_deref().and_then(PasswordHash::parse) {
                Some(hash) => {
                    if let Some(why) = hash.slow() {
                        keys.warning(&name, why);
                    }
                    users.insert(name, hash);
                }
                None => keys.problem(&name, "must be a bcrypt hash of a password, such as \"$2y$10$...\""),
            }
        }
        users
    };
    top.section("basic_auth_users", read).unwrap_or_default()
}

/// Keys of one section. Reading a key removes it, so that the remaining keys are unknown ones.
struct Reader {
    /// Path of the section with the enclosing sections; empty at the top.
    section: String,
    keys: Mapping,
    problems: Vec<String>,
    warnings: Vec<String>,
}

impl Reader {
    fn path(&self, key: &str) -> String {
        match (self.section.as_str(), key) {
            ("", path) | (path, "") => path.to_owned(),
            (section, key) => format!("{section}.{key}"),
        }
    }

    fn problem(&mut self, key: &str, text: impl Display) {
        self.problems.push(format!("{}: {text}", self.path(key)));
    }

    fn warning(&mut self, key: &str, text: impl Display) {
        self.warnings.push(format!("{}: {text}", self.path(key)));
    }

    fn remove(&mut self, key: &str) -> Option<Value> {
        self.keys.remove(key).filter(|value| !value.is_null())
    }

    /// Returns the result of `read` on the section with this name; `None` if the section is missing.
    fn section<T>(&mut self, key: &str, read: impl FnOnce(&mut Reader) -> T) -> Option<T> {
        let keys = match self.remove(key)? {
            Value::Mapping(keys) => keys,
            _ => {
                self.problem(key, "must be a section with keys");
                return None;
            }
        };
        let mut inner = Reader { section: self.path(key), keys, problems: Vec::new(), warnings: Vec::new() };
        let found = read(&mut inner);
        inner.refuse_others();
        self.problems.append(&mut inner.problems);
        self.warnings.append(&mut inner.warnings);
        Some(found)
    }

    fn refuse_others(&mut self) {
        for (key, _) in std::mem::take(&mut self.keys) {
            self.problem(&scalar(&key).unwrap_or_default(), "unknown key");
        }
    }

    /// Returns the text of a key; empty if the key is missing.
    fn string(&mut self, key: &str) -> String {
        let Some(value) = self.remove(key) else { return String::new() };
        scalar(&value).unwrap_or_else(|| {
            self.problem(key, "must be a string");
            String::new()
        })
    }

    fn strings(&mut self, key: &str) -> Option<Vec<String>> {
        let values = self.remove(key)?;
        let list = values.as_sequence().and_then(|list| list.iter().map(scalar).collect());
        if list.is_none() {
            self.problem(key, "must be a list of strings");
        }
        list
    }

    fn boolean(&mut self, key: &str) {
        if self.remove(key).is_some_and(|value| !value.is_bool()) {
            self.problem(key, "must be true or false");
        }
    }
}

/// Returns a text, number or boolean as text.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        _ => None,
    }
}
