//! The sockets for HTTP: the service manager's, by name, else those of the settings.

use std::io;
use std::net::TcpListener;

use exposition::http::{self, Listeners};
use host::activation;
use settings::Config;

/// Names of the service manager's sockets (`FileDescriptorName=` of a socket unit): the settings that they stand for.
const HTTP: &str = "http.listen";
const DCGM: &str = "dcgm.listen";

/// Why there is no socket to serve on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address cannot be served on.
    #[error("{0}; choose another with --listen, http.listen in the file, or GPU_NODE_EXPORTER__HTTP__LISTEN")]
    Http(io::Error),
    /// The second address cannot be served on.
    #[error(
        "{0}; choose another with dcgm.listen in the file, or GPU_NODE_EXPORTER__DCGM__LISTEN; \"\" for none"
    )]
    Dcgm(io::Error),
    /// What the service manager passes cannot be served on.
    #[error("socket of the service manager: {0}")]
    Passed(io::Error),
    /// The service manager passes a socket without use.
    #[error(
        "socket of the service manager: the name {0:?} is neither {HTTP} nor {DCGM}; set FileDescriptorName= in its socket unit"
    )]
    Name(String),
}

/// Opens them. A setting whose socket the service manager passes is not listened at.
pub fn open(config: &Config) -> Result<Listeners, ListenError> {
    let mut passed = Listeners::default();
    for (name, listener) in activation::sockets().map_err(ListenError::Passed)? {
        let listeners: &mut Vec<TcpListener> = match name.as_str() {
            HTTP => &mut passed.main,
            DCGM => &mut passed.dcgm,
            _ => return Err(ListenError::Name(name)),
        };
        listeners.push(http::adopt(listener).map_err(ListenError::Passed)?);
    }
    if passed.main.is_empty() {
        passed.main = http::bind(&config.http.listen.to_string()).map_err(ListenError::Http)?;
    }
    if let (true, Some(listen)) = (passed.dcgm.is_empty(), config.dcgm.listen) {
        passed.dcgm = http::bind(&listen.to_string()).map_err(ListenError::Dcgm)?;
    }
    Ok(passed)
}
