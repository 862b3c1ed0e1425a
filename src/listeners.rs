//! Sockets for HTTP: the named sockets of the service manager, otherwise the addresses of the settings.

use std::io;
use std::net::{SocketAddr, TcpListener};

use exposition::http::{self, Listeners};
use host::activation;
use settings::{Config, Listen};

/// Names of the service manager's sockets (`FileDescriptorName=` of a socket unit), which are the settings that they
/// replace.
const HTTP: &str = "http.listen";
const DCGM: &str = "dcgm.listen";

/// Reason why no socket could be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListenError {
    /// The address of `http.listen` cannot be used.
    #[error("{0}; choose another with --listen, http.listen in the file, or GPU_NODE_EXPORTER__HTTP__LISTEN")]
    Http(io::Error),
    /// The address of `dcgm.listen` cannot be used.
    #[error(
        "{0}; choose another with dcgm.listen in the file, or GPU_NODE_EXPORTER__DCGM__LISTEN; \"\" for none"
    )]
    Dcgm(io::Error),
    /// A socket of the service manager cannot be used.
    #[error("socket of the service manager: {0}")]
    Passed(io::Error),
    /// A socket of the service manager has an unknown name.
    #[error(
        "socket of the service manager: the name {0} is neither {HTTP} nor {DCGM}; set FileDescriptorName= in its socket unit"
    )]
    Name(String),
}

/// Addresses of this daemon.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listening {
    /// Addresses that serve everything.
    pub(crate) main: Vec<SocketAddr>,
    /// Addresses that serve only dcgm-exporter's page.
    pub(crate) dcgm: Vec<SocketAddr>,
    /// Settings that are ignored because the service manager passes their sockets.
    passed: Vec<&'static str>,
}

impl Listening {
    /// Returns the reasons why a restart with this configuration could not listen. The daemon's own addresses count as
    /// free.
    pub(crate) fn problems(&self, wanted: &Config) -> Vec<String> {
        let is_own =
            |wanted: Listen| self.main.iter().chain(&self.dcgm).any(|own| Listen(*own).overlaps(wanted));
        let settings = [(HTTP, Some(wanted.http.listen)), (DCGM, wanted.dcgm.listen)];
        let used = settings.into_iter().filter(|(key, _)| !self.passed.contains(key));
        let problem = |(key, listen): (&str, Option<Listen>)| {
            let listen = listen.filter(|listen| !is_own(*listen))?;
            let error = http::bind(&listen.to_string()).err()?;
            Some(format!("{key}: {error}"))
        };
        used.filter_map(problem).collect()
    }
}

/// Opens the sockets. A setting whose socket the service manager passes is ignored.
pub(crate) fn open(config: &Config) -> Result<(Listeners, Listening), ListenError> {
    let mut passed = Listeners::default();
    let mut names = Vec::new();
    for (name, listener) in activation::sockets().map_err(ListenError::Passed)? {
        let (name, listeners): (_, &mut Vec<TcpListener>) = match name.as_str() {
            HTTP => (HTTP, &mut passed.main),
            DCGM => (DCGM, &mut passed.dcgm),
            _ => return Err(ListenError::Name(name)),
        };
        names.push(name);
        listeners.push(http::adopt(listener).map_err(ListenError::Passed)?);
    }
    if passed.main.is_empty() {
        passed.main = http::bind(&config.http.listen.to_string()).map_err(ListenError::Http)?;
    }
    if let (true, Some(listen)) = (passed.dcgm.is_empty(), config.dcgm.listen) {
        passed.dcgm = http::bind(&listen.to_string()).map_err(ListenError::Dcgm)?;
    }
    let addresses = |listeners: &[TcpListener]| -> Vec<SocketAddr> {
        listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    };
    let (main, dcgm) = (addresses(&passed.main), addresses(&passed.dcgm));
    Ok((passed, Listening { main, dcgm, passed: names }))
}
