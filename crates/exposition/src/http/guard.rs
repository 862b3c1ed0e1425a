//! The guard that applies the web configuration to every request. It refuses the request, or passes it to the routes
//! with or without the names of owners.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use access::{Access, ClientCertificate, ClientChain, Grants, PasswordCheck, Passwords, RateLimit, Tls};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONNECTION, HeaderName, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::StreamExt;
use hyper::body::Incoming;
use model::http_counters::HttpCounters;
use model::sync::lock;
use tokio::time::{Instant, sleep};
use tower_service::Service;

use super::places::ClientAddress;
use super::routes::finish;
use super::streams::EventStream;

/// Interval at which open streams check the web configuration for changes.
const STREAM_LOOK: Duration = Duration::from_secs(2);
/// Minimum interval between warnings about refused clients.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Access rules of a server.
#[derive(Debug, Default)]
pub struct Protection {
    /// The web configuration. If it is `None`, every client may read every path.
    pub access: Option<Arc<Access>>,
    /// Paths that every client may read.
    pub open_paths: Vec<String>,
}

/// The guard of one server.
#[derive(Debug)]
pub(super) struct Guard {
    protection: Protection,
    passwords: Option<Passwords<ClientAddress>>,
    bucket: Mutex<Bucket>,
    stats: Arc<HttpCounters>,
    log: Mutex<LogLimit>,
}

/// The routes of one listener.
#[derive(Clone)]
pub(super) struct Routers {
    pub whole: Router,
    /// Routes without names of owners, for unauthenticated clients. If it is `None`, they use `whole`.
    pub nameless: Option<Router>,
}

/// Address and TLS state of a connected client.
#[derive(Clone, Debug)]
pub(super) struct ConnectedClient {
    pub address: IpAddr,
    /// TLS configuration that the handshake used; `None` for plain HTTP.
    pub tls: Option<Arc<Tls>>,
    pub certificate: ClientCertificate,
    pub chain: ClientChain,
}

impl Guard {
    pub fn new(protection: Protection, stats: Arc<HttpCounters>) -> Guard {
        let passwords = protection.access.as_ref().and_then(|_| Passwords::new());
        Guard { protection, passwords, bucket: Mutex::default(), stats, log: Mutex::default() }
    }

    /// Returns the TLS configuration for a new connection, or `None` for plain HTTP.
    pub async fn tls(&self) -> Option<Arc<Tls>> {
        let access = self.protection.access.as_ref()?;
        access.refresh().await;
        access.current().tls.clone()
    }

    /// Returns true if new connections use TLS, according to the configuration that was read last.
    pub fn uses_tls(&self) -> bool {
        self.protection.access.as_ref().is_some_and(|access| access.current().tls.is_some())
    }

    /// Checks a request against the web configuration, and serves or refuses it.
    pub async fn answer(
        &self,
        routers: &Routers,
        peer: &ConnectedClient,
        request: Request<Incoming>,
    ) -> Result<Response, Infallible> {
        let Some(access) = &self.protection.access else {
            let router = routers.nameless.as_ref().unwrap_or(&routers.whole);
            return router.clone().call(request).await;
        };
        access.refresh().await;
        let grants = access.current();
        let mut response = match self.judge(&grants, routers, peer, &request).await {
            Ok(router) => router.clone().call(request).await?,
            Err(refusal) => finish(State(Arc::clone(&self.stats)), refusal).await,
        };
        if response.extensions().get::<EventStream>().is_some() {
            let over = Box::pin(changed(Arc::clone(access), Arc::clone(&grants)));
            response = response.map(|body| Body::from_stream(body.into_data_stream().take_until(over)));
        }
        let headers = response.headers_mut();
        for (name, value) in &grants.headers {
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(*name), HeaderValue::from_str(value)) {
                headers.insert(name, value);
            }
        }
        // The client must reconnect with the current certificates.
        if !is_of_present_files(peer, &grants) {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response)
    }

    /// Returns the routes for this client, or the response that refuses the request.
    async fn judge<'a, B>(
        &self,
        grants: &Grants,
        routers: &'a Routers,
        peer: &ConnectedClient,
        request: &Request<B>,
    ) -> Result<&'a Router, Response> {
        let certificate = match &grants.tls {
            Some(tls) if !is_of_present_files(peer, grants) => tls.judge(&peer.chain),
            _ => peer.certificate,
        };
        let path = request.uri().path();
        let is_open = self.protection.open_paths.iter().any(|open| open == path);
        if !is_open {
            if let Some(limit) = grants.rate_limit
                && !lock(&self.bucket).try_consume(limit, Instant::now())
            {
                let (wait, why) =
                    ([(RETRY_AFTER, "1")], "Too many requests: see rate_limit in the web configuration.\n");
                return Err((StatusCode::TOO_MANY_REQUESTS, wait, why).into_response());
            }
            if grants.requires_certificate() && certificate == ClientCertificate::None {
                self.log(peer.address, "no client certificate");
                let why = "This path needs a client certificate.\n";
                return Err((StatusCode::FORBIDDEN, why).into_response());
            }
        }
        let names_matter = routers.nameless.is_some();
        let known = match credentials(request.headers()) {
            _ if grants.users.is_empty() => certificate == ClientCertificate::Verified,
            Some(credentials) if names_matter || !is_open => {
                self.password(grants, peer, credentials).await?;
                true
            }
            None if !is_open => return Err(self.unauthorized(peer, "no password")),
            _ => false,
        };
        Ok(routers.nameless.as_ref().filter(|_| !known).unwrap_or(&routers.whole))
    }

    async fn password(
        &self,
        grants: &Grants,
        peer: &ConnectedClient,
        (user, password): (String, Vec<u8>),
    ) -> Result<(), Response> {
        let client = ClientAddress::from(peer.address);
        let check = match &self.passwords {
            Some(passwords) => passwords.check(&grants.users, (&user, &password), client).await,
            None => PasswordCheck::Busy,
        };
        match check {
            PasswordCheck::Right => Ok(()),
            PasswordCheck::Wrong => Err(self.unauthorized(peer, "wrong user or password")),
            PasswordCheck::Busy => {
                let (wait, why) = ([(RETRY_AFTER, "1")], "Too many passwords are being checked.\n");
                Err((StatusCode::SERVICE_UNAVAILABLE, wait, why).into_response())
            }
        }
    }

    fn unauthorized(&self, peer: &ConnectedClient, why: &str) -> Response {
        self.log(peer.address, why);
        let ask = [(WWW_AUTHENTICATE, "Basic realm=\"gpu-node-exporter\", charset=\"UTF-8\"")];
        (StatusCode::UNAUTHORIZED, ask, Body::from("This path needs a user and a password.\n"))
            .into_response()
    }

    /// Logs the reason for a refusal: as a warning at most once per [`LOG_INTERVAL`], otherwise at debug level.
    pub fn log(&self, client: IpAddr, why: &str) {
        let client = client.to_canonical();
        match lock(&self.log).next(Instant::now()) {
            Some(0) => tracing::warn!(%client, "no access: {why}"),
            Some(others) => tracing::warn!(%client, others, "no access: {why}"),
            None => tracing::debug!(%client, "no access: {why}"),
        }
    }
}

/// Returns true if the connection was established with the current TLS configuration, or with none if none is set.
fn is_of_present_files(peer: &ConnectedClient, grants: &Grants) -> bool {
    peer.tls.as_ref().map(Arc::as_ptr) == grants.tls.as_ref().map(Arc::as_ptr)
}

/// Resolves once the web configuration has changed. The stream then ends, and its client must authenticate again.
async fn changed(access: Arc<Access>, grants: Arc<Grants>) {
    while Arc::ptr_eq(&access.current(), &grants) {
        sleep(STREAM_LOOK).await;
        // The configuration is otherwise read only on requests, and no other client may send one.
        access.refresh().await;
    }
}

/// Returns user and password from the `Authorization` header, or `None` if the header is missing or does not use the
/// Basic scheme.
fn credentials(headers: &HeaderMap) -> Option<(String, Vec<u8>)> {
    let (scheme, text) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let bytes = STANDARD.decode(text.trim()).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
    let colon = bytes.iter().position(|byte| *byte == b':')?;
    let user = String::from_utf8(bytes[..colon].to_vec()).ok()?;
    Some((user, bytes[colon + 1..].to_vec()))
}

/// Token bucket for `rate_limit`.
#[derive(Debug, Default)]
struct Bucket {
    /// The limit, the time of the last request, and the number of tokens after it.
    filled: Option<(RateLimit, Instant, f64)>,
}

impl Bucket {
    fn try_consume(&mut self, limit: RateLimit, now: Instant) -> bool {
        let most = f64::from(limit.burst);
        let tokens = match self.filled {
            Some((former, at, tokens)) if former == limit => {
                let new = now.duration_since(at).as_secs_f64() / limit.interval.as_secs_f64();
                (tokens + new).min(most)
            }
            _ => most,
        };
        let taken = tokens >= 1.0;
        self.filled = Some((limit, now, if taken { tokens - 1.0 } else { tokens }));
        taken
    }
}

/// Limits the rate of warnings about refused clients.
#[derive(Debug, Default)]
struct LogLimit {
    last: Option<Instant>,
    others: u64,
}

impl LogLimit {
    /// Returns the number of warnings suppressed since the last one, or `None` to suppress this one.
    fn next(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.duration_since(last) < LOG_INTERVAL) {
            self.others += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.others))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn a_bucket_lets_a_burst_through_and_then_one_each_interval() {
        let limit = RateLimit { interval: Duration::from_secs(1), burst: 2 };
        let (mut bucket, start) = (Bucket::default(), Instant::now());
        let mut at = |millis| bucket.try_consume(limit, start + Duration::from_millis(millis));
        assert_eq!([at(0), at(0), at(0)], [true, true, false]);
        assert_eq!([at(900), at(1000), at(1100)], [false, true, false]);
        assert_eq!([at(60_000), at(60_000), at(60_000)], [true, true, false], "no more than the burst");
        let none = RateLimit { burst: 0, ..limit };
        assert!(!bucket.try_consume(none, start), "as the toolkit's example has it");
    }

    #[test]
    fn a_minute_has_one_line_which_counts_the_others() {
        let (mut log, start) = (LogLimit::default(), Instant::now());
        let mut at = |seconds| log.next(start + Duration::from_secs(seconds));
        assert_eq!([at(0), at(1), at(59), at(60), at(121)], [Some(0), None, None, Some(2), Some(0)]);
    }

    #[test]
    fn credentials_are_basic_and_of_one_user() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, value.parse().unwrap());
            credentials(&headers)
        };
        let basic = |text: &str| format!("Basic {}", STANDARD.encode(text));
        assert_eq!(of(&basic("a:b:c")), Some(("a".into(), b"b:c".to_vec())));
        assert_eq!(of(&basic("a:").to_lowercase().replace("basic", "bAsIc")), None, "base64 has cases");
        for bad in ["Basic", "Basic !", "Bearer YTpi", &basic("no colon")] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }

    #[tokio::test]
    async fn a_certificate_from_before_the_present_files_is_judged_by_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("web.yml");
        for name in ["server.pem", "server.key", "authority.pem"] {
            let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/certificates").join(name);
            fs::copy(from, folder.path().join(name)).unwrap();
        }
        let write = |auth: &str| {
            let pair = "cert_file: server.pem, key_file: server.key";
            fs::write(&file, format!("tls_server_config: {{ {pair}, client_auth_type: {auth} }}\n")).unwrap();
        };
        write("RequireAnyClientCert");
        let access = Arc::new(Access::open(&file, false).unwrap());
        let protection = Protection { access: Some(Arc::clone(&access)), open_paths: Vec::new() };
        let guard = Guard::new(protection, Arc::default());
        let routers = Routers { whole: Router::new(), nameless: None };
        let peer = ConnectedClient {
            address: [127, 0, 0, 1].into(),
            tls: access.current().tls.clone(),
            certificate: ClientCertificate::Unverified,
            chain: ClientChain::default(),
        };
        let request = Request::new(());
        let grants = access.current();
        assert!(guard.judge(&grants, &routers, &peer, &request).await.is_ok());
        write("RequireAndVerifyClientCert, client_ca_file: authority.pem");
        access.refresh().await;
        let grants = access.current();
        let refusal = guard.judge(&grants, &routers, &peer, &request).await.expect_err("not verified");
        assert_eq!(refusal.status(), StatusCode::FORBIDDEN);
    }
}
