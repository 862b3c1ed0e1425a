//! Access over the network, as a web configuration file of the Prometheus exporter-toolkit sets it: TLS, client
//! certificates, passwords, response headers and a request limit.
//!
//! The file and the files that it names are read again before every connection and request, on a thread that may block
//! on a disk. If the files cannot be used, or if a change would remove a protection, the earlier configuration stays in
//! use. No other crate uses rustls or ring.

#![forbid(unsafe_code)]

mod client_certificate;
mod handshake;
mod password;
#[cfg(test)]
mod tests;
mod tls;
mod web_config;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use model::clock::Mono;
use model::plain_file;
use model::sync::lock;
use ring::digest;
use tokio::time::timeout;

pub use client_certificate::{ClientCertificate, ClientChain};
pub use handshake::{Handshakes, TLS_FIRST_BYTE, TlsStream};
pub use password::{PasswordCheck, PasswordHash, Passwords};
pub use tls::Tls;
pub use web_config::RateLimit;
use web_config::WebConfig;

/// Maximum time that a request waits for the files: a disk that hangs must not delay scrapes.
const PATIENCE: Duration = Duration::from_millis(100);

/// Access rules from one state of the files.
#[derive(Debug)]
pub struct Grants {
    /// `None` for plain HTTP.
    pub tls: Option<Arc<Tls>>,
    /// Headers added to every response.
    pub headers: Vec<(&'static str, String)>,
    /// Password hashes by user; empty if no password is required.
    pub users: BTreeMap<String, PasswordHash>,
    pub rate_limit: Option<RateLimit>,
    warnings: Vec<String>,
}

impl Grants {
    /// Returns true if clients have to present a certificate.
    pub fn requires_certificate(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.client_auth.requires())
    }

    /// Returns the protection that `new` would remove, if any.
    fn lost_in(&self, new: &Grants) -> Option<String> {
        let Some(old_tls) = &self.tls else { return self.lost_users(new) };
        let Some(new_tls) = &new.tls else { return Some("tls_server_config".into()) };
        let (old_auth, new_auth) = (old_tls.client_auth, new_tls.client_auth);
        let limits_names = |tls: &Tls| tls.verifier.as_ref().is_some_and(|verifier| verifier.limits_names());
        match () {
            () if old_auth.requires() && !new_auth.requires()
                || old_auth.verifies() && !new_auth.verifies() =>
            {
                Some(format!("client_auth_type: {}", old_auth.name()))
            }
            () if limits_names(old_tls) && !limits_names(new_tls) => Some("client_allowed_sans".into()),
            () => self.lost_users(new),
        }
    }

    fn lost_users(&self, new: &Grants) -> Option<String> {
        (!self.users.is_empty() && new.users.is_empty()).then(|| "basic_auth_users".into())
    }
}

/// The web configuration in use.
#[derive(Debug)]
pub struct Access {
    file: PathBuf,
    optional_certificates: bool,
    current: ArcSwap<Grants>,
    /// Start of the last check of the files. The lock allows one check at a time.
    looked: Arc<tokio::sync::Mutex<Mono>>,
    seen: Mutex<Seen>,
}

/// State of the files at the last check.
#[derive(Debug)]
struct Seen {
    paths: Vec<PathBuf>,
    contents: Contents,
    /// Reasons why this state is not in use.
    problems: Vec<String>,
}

impl Access {
    /// Reads the file and the files that it names. With `optional_certificates`, a handshake succeeds without a client
    /// certificate that the file requires, for the open paths. Returns all errors that can be found, each with the
    /// file.
    pub fn open(file: &Path, optional_certificates: bool) -> Result<Access, Vec<String>> {
        let (paths, contents) = (vec![file.to_owned()], Contents::default());
        let mut seen = Seen { paths, contents, problems: Vec::new() };
        let grants = seen.read(file, optional_certificates)?;
        Ok(Access {
            file: file.to_owned(),
            optional_certificates,
            current: ArcSwap::from_pointee(grants),
            looked: Arc::default(),
            seen: Mutex::new(seen),
        })
    }

    /// Returns warnings about files that are valid but probably not what the operator intended.
    pub fn warnings(&self) -> Vec<String> {
        let grants = self.current();
        let untimely = grants.tls.as_ref().and_then(|tls| tls.untimely());
        let untimely =
            untimely.map(|why| format!("tls_server_config: the certificate {why}; clients will refuse it"));
        let authorities = grants.tls.iter().flat_map(|tls| tls.untimely_authorities());
        let authorities = authorities.map(|why| format!("tls_server_config: {why}; its clients are refused"));
        let plain = (grants.tls.is_none() && !grants.users.is_empty()).then(|| {
            "basic_auth_users: without tls_server_config, passwords are sent in plain text".to_owned()
        });
        let all = grants.warnings.iter().cloned().chain(untimely).chain(authorities).chain(plain);
        all.map(|text| format!("{}: {text}", self.file.display())).collect()
    }

    /// Returns the rules from the newest usable files.
    pub fn current(&self) -> Arc<Grants> {
        self.current.load_full()
    }

    /// Returns the reasons why the files of the last check are not in use; empty if they are.
    pub fn problems(&self) -> Vec<String> {
        lock(&self.seen).problems.clone()
    }

    /// Applies changed files. Waits for the disk for at most 100 ms.
    pub async fn refresh(self: &Arc<Access>) {
        let asked = Mono::now();
        let look = async {
            let mut looked = Arc::clone(&self.looked).lock_owned().await;
            if *looked >= asked {
                return;
            }
            *looked = Mono::now();
            let this = Arc::clone(self);
            let look = move || {
                this.look();
                drop(looked);
            };
            if let Err(error) = tokio::task::spawn_blocking(look).await {
                tracing::error!(%error, "failed to check the web configuration for changes; it stays in use unchanged");
            }
        };
        // The check continues in the background, and the next request uses its result.
        let _ = timeout(PATIENCE, look).await;
    }

    fn look(&self) {
        let mut seen = lock(&self.seen);
        if Contents::read(&seen.paths) == seen.contents {
            return;
        }
        let former = std::mem::take(&mut seen.problems);
        let current = self.current();
        let read = seen.read(&self.file, self.optional_certificates).and_then(|grants| {
            let expired = |grants: &Grants| grants.tls.as_ref().and_then(|tls| tls.untimely());
            let why = match (current.lost_in(&grants), expired(&grants)) {
                (Some(lost), _) => format!("{lost} was removed, which takes effect only after a restart"),
                (None, Some(why)) if expired(&current).is_none() => {
                    format!("tls_server_config: the new certificate {why}")
                }
                _ => return Ok(grants),
            };
            Err(vec![format!("{}: {why}", self.file.display())])
        });
        match read {
            Ok(grants) => {
                self.current.store(Arc::new(grants));
                tracing::info!(file = %self.file.display(), "applied the changed web configuration");
                for warning in self.warnings() {
                    tracing::warn!("{warning}");
                }
            }
            Err(problems) => {
                // One line per state of the files; a state that was already reported gets none.
                for problem in problems.iter().filter(|problem| !former.contains(problem)) {
                    tracing::error!("{problem}; the earlier web configuration stays in use");
                }
                seen.problems = problems;
            }
        }
    }
}

impl Seen {
    /// Reads the files and records their paths and hashes.
    fn read(&mut self, file: &Path, optional_certificates: bool) -> Result<Grants, Vec<String>> {
        let named = |problems: Vec<String>| -> Vec<String> {
            problems.into_iter().map(|problem| format!("{}: {problem}", file.display())).collect()
        };
        self.paths = vec![file.to_owned()];
        // Hashed before the files are read for use, so that the next check detects a change from here on.
        self.contents = Contents::read(&self.paths);
        let bytes = plain_file::read_linked(file, tls::MAX_BYTES);
        let bytes = bytes.map_err(|error| named(vec![tls::explained(&error, file)]))?;
        let text = String::from_utf8(bytes).map_err(|_| named(vec!["is not UTF-8".into()]))?;
        let WebConfig { tls, headers, users, rate_limit, warnings } =
            WebConfig::parse(&text, file).map_err(named)?;
        if let Some(section) = &tls {
            let files = [Some(&section.certificates), Some(&section.key), section.client_ca.as_ref()];
            self.paths.extend(files.into_iter().flatten().filter_map(|pem| pem.path()).cloned());
            self.contents.0.extend(Contents::read(&self.paths[1..]).0);
        }
        let tls = tls.map(|section| tls::build(section, optional_certificates)).transpose().map_err(named)?;
        Ok(Grants { tls: tls.map(Arc::new), headers, users, rate_limit, warnings })
    }
}

/// Hashes of the contents of all files.
#[derive(Debug, Default, PartialEq)]
struct Contents(Vec<Vec<u8>>);

impl Contents {
    fn read(paths: &[PathBuf]) -> Contents {
        let hash = |path: &PathBuf| {
            let bytes = plain_file::read_linked(path, tls::MAX_BYTES);
            let bytes = bytes.unwrap_or_else(|error| error.to_string().into_bytes());
            digest::digest(&digest::SHA256, &bytes).as_ref().to_vec()
        };
        Contents(paths.iter().map(hash).collect())
    }
}
