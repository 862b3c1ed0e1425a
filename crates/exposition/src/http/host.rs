//! The check of the `Host` header, of which a request must have exactly one. If `http.hosts` is set, the header must
//! contain one of its names. This prevents DNS rebinding, where a foreign site makes its name resolve to this machine:
//! requests of its pages contain the foreign name. `localhost` and loopback addresses are therefore always allowed.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{CONNECTION, HOST};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// The names that requests may have as `Host`.
#[derive(Clone, Debug, Default)]
pub struct Hosts(Arc<[String]>);

impl Hosts {
    /// Allows these names or addresses, which are in lower case and without a port. `*.example.net` allows every
    /// subdomain, and an empty list allows every name.
    pub fn new(names: impl IntoIterator<Item = String>) -> Hosts {
        Hosts(names.into_iter().collect())
    }

    fn allows(&self, authority: &Authority) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches([']', '.']);
        let host = match host.parse::<IpAddr>() {
            Ok(address) if address.to_canonical().is_loopback() => return true,
            Ok(address) => address.to_string(),
            Err(_) => host.to_ascii_lowercase(),
        };
        let fits = |name: &String| match name.strip_prefix('*') {
            Some(suffix) => host.len() > suffix.len() && host.ends_with(suffix),
            None => host == *name,
        };
        host == "localhost" || self.0.iter().any(fits)
    }
}

/// Refuses requests whose `Host` header is missing, repeated or invalid (400) or names another host (421).
pub(super) async fn check(State(hosts): State<Hosts>, request: Request, next: Next) -> Response {
    let Some(host) = only_host(request.headers()) else {
        let why = "A request must have exactly one Host header.\n";
        return (StatusCode::BAD_REQUEST, [(CONNECTION, "close")], why).into_response();
    };
    // A name in the request line overrides the header (RFC 9112, 3.2.2).
    if !hosts.allows(&host) || !request.uri().authority().is_none_or(|named| hosts.allows(named)) {
        let why = "This exporter does not serve that host name: see http.hosts.\n";
        return (StatusCode::MISDIRECTED_REQUEST, why).into_response();
    }
    next.run(request).await
}

fn only_host(headers: &HeaderMap) -> Option<Authority> {
    let mut hosts = headers.get_all(HOST).iter();
    let (host, None) = (hosts.next()?, hosts.next()) else { return None };
    let authority = Authority::try_from(host.as_bytes()).ok()?;
    (!authority.as_str().contains('@')).then_some(authority)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(names: &[&str], host: &str) -> bool {
        Hosts::new(names.iter().map(|name| (*name).to_owned())).allows(&host.parse().unwrap())
    }

    #[test]
    fn a_name_is_allowed_with_any_port_and_in_any_case() {
        let names = ["node1", "10.0.0.3", "::1", "*.example.net"];
        for host in [
            "node1",
            "NODE1:9408",
            "node1.",
            "10.0.0.3:1",
            "[::1]:9408",
            "[0:0::1]",
            "a.Example.net",
            "a.b.example.net:80",
        ] {
            assert!(allows(&names, host), "{host}");
        }
        for host in [
            "node2",
            "node1.example.org",
            "example.net",
            ".example.net",
            "10.0.0.30",
            "[::2]",
            "evil-example.net",
        ] {
            assert!(!allows(&names, host), "{host}");
        }
        assert!(allows(&[], "anything"));
        for host in [
            "localhost:9408",
            "LocalHost.",
            "127.0.0.1:9408",
            "127.1.2.3",
            "[::1]",
            "[::ffff:127.0.0.1]:9408",
        ] {
            assert!(allows(&["node1"], host), "{host}");
        }
        for host in ["localhost.example.net", "127.0.0.1.example.net", "128.0.0.1", "[::]", "0.0.0.0"] {
            assert!(!allows(&["node1"], host), "{host}");
        }
    }

    #[test]
    fn a_host_comes_once_and_is_a_name() {
        let only = |hosts: &[&str]| {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append(HOST, host.parse().unwrap());
            }
            only_host(&headers).is_some()
        };
        for hosts in [&["node"][..], &["node:9408"], &["[::1]:9408"]] {
            assert!(only(hosts), "{hosts:?}");
        }
        for hosts in [&[][..], &["node", "node"], &[""], &["a b"], &["user@node"], &["http://node/"]] {
            assert!(!only(hosts), "{hosts:?}");
        }
    }
}
