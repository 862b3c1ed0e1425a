//! Reads a page over HTTP without TLS, or from a file.

use std::fmt;
use std::fs::File;
use std::future::poll_fn;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::str::FromStr;
use std::time::Duration;

use dcgm::parse::{self, ParsedPage};
use hyper::body::Body;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, LOCATION};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use model::text::clean;
use settings::Listen;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Timeout of a scrape. dcgm-exporter answers within seconds, and Prometheus waits for 10 s by default.
const DEADLINE: Duration = Duration::from_secs(10);
/// Maximum page size in bytes. The page of eight GPUs in MIG mode is smaller than 1 MiB.
const MAX_PAGE: usize = 64 << 20;
/// Remedy for pages that need more than plain HTTP.
const SAVE: &str = "save the page with curl and pass the file instead";

/// URL or file of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PageSource {
    Url(Uri),
    File(PathBuf),
}

impl FromStr for PageSource {
    type Err = String;

    fn from_str(text: &str) -> Result<PageSource, String> {
        let Some((scheme, _)) = text.split_once("://") else {
            let file = PathBuf::from(text);
            return match file.exists() {
                true => Ok(PageSource::File(file)),
                false => Err(format!(
                    "no such file, and a URL is http://HOST:PORT/metrics; did you mean http://{text}?"
                )),
            };
        };
        let url: Uri = text.parse().map_err(|error| format!("{error}; a URL is http://HOST:PORT/metrics"))?;
        match scheme {
            "http" => {}
            "https" => return Err(format!("TLS is not supported; {SAVE}")),
            _ => return Err("only http:// is supported".into()),
        }
        match url.authority() {
            Some(authority) if authority.as_str().contains('@') => {
                Err(format!("passwords are not supported; {SAVE}"))
            }
            Some(_) => Ok(PageSource::Url(url)),
            None => Err("the URL has no host".into()),
        }
    }
}

impl fmt::Display for PageSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PageSource::Url(url) => url.fmt(f),
            PageSource::File(file) => file.display().fmt(f),
        }
    }
}

impl PageSource {
    /// Returns the page of the daemon that listens on this address.
    pub fn daemon_page(listen: Listen) -> Result<PageSource, String> {
        let ip = if listen.0.ip().is_unspecified() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { listen.0.ip() };
        let address = SocketAddr::new(ip, listen.0.port());
        if address.port() == 0 {
            return Err("http.listen has port 0; pass this exporter's page with --ours".into());
        }
        format!("http://{address}/dcgm/metrics").parse()
    }

    pub fn is_url(&self) -> bool {
        matches!(self, PageSource::Url(_))
    }

    /// Adds this path to a URL without a path.
    pub fn with_path(self, path: &'static str) -> PageSource {
        match self {
            PageSource::Url(url) if url.path() == "/" && url.query().is_none() => {
                let mut parts = url.clone().into_parts();
                parts.path_and_query = Some(hyper::http::uri::PathAndQuery::from_static(path));
                PageSource::Url(Uri::from_parts(parts).unwrap_or(url))
            }
            other => other,
        }
    }

    /// Reads the page once. Errors contain a remedy.
    pub async fn read(&self) -> Result<ParsedPage, String> {
        let bytes = match self {
            PageSource::File(file) => {
                let mut bytes = Vec::new();
                let file = File::open(file).map_err(|error| error.to_string())?;
                file.take(MAX_PAGE as u64 + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
                no_longer_than_a_page(bytes)?
            }
            PageSource::Url(url) => match timeout(DEADLINE, get(url)).await {
                Ok(bytes) => bytes?,
                Err(_) => {
                    return Err(format!(
                        "no answer within {} s; check the exporter's log",
                        DEADLINE.as_secs()
                    ));
                }
            },
        };
        let text =
            String::from_utf8(bytes).map_err(|_| "the page is not UTF-8, so Prometheus rejects it too")?;
        if text.trim_start().starts_with('<') {
            return Err("the page is HTML and not metrics; dcgm-exporter's page is /metrics".into());
        }
        parse::read(&text).map_err(|error| format!("{error} (Prometheus rejects the page too)"))
    }
}

fn no_longer_than_a_page(bytes: Vec<u8>) -> Result<Vec<u8>, String> {
    if bytes.len() > MAX_PAGE {
        return Err(format!("the page is longer than {} MiB", MAX_PAGE >> 20));
    }
    Ok(bytes)
}

/// Returns the body of the page.
async fn get(url: &Uri) -> Result<Vec<u8>, String> {
    let authority = url.authority().map_or("", |authority| authority.as_str());
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, url.port_u16().unwrap_or(80))).await.map_err(|error| {
        format!("{error}; is the exporter running on this port? `ss -ltnp` lists the listening programs")
    })?;
    let failed = |error: hyper::Error| {
        format!("incomplete HTTP response: {error}; is this the exporter's port, without TLS?")
    };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    tokio::spawn(connection);
    let path = url.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::get(path).header(HOST, authority).header(ACCEPT, "text/plain;version=0.0.4");
    let request = request.body(String::new()).map_err(|error| error.to_string())?;
    let response = sender.send_request(request).await.map_err(failed)?;
    let (status, headers) = (response.status(), response.headers().clone());
    let mut body = response.into_body();
    let mut bytes = Vec::new();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        bytes.extend_from_slice(frame.map_err(failed)?.data_ref().map_or(&[], |data| data));
        bytes = no_longer_than_a_page(bytes)?;
    }
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let next = match status {
        StatusCode::OK if header(CONTENT_TYPE).starts_with("text/html") => {
            return Err("the page is HTML and not metrics; dcgm-exporter's page is /metrics".into());
        }
        StatusCode::OK => return Ok(bytes),
        StatusCode::NOT_FOUND => {
            "no such page; dcgm-exporter's page is /metrics, this exporter's page is /dcgm/metrics, or /metrics at the address of dcgm.listen"
                .to_owned()
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => format!("the page needs a password; {SAVE}"),
        StatusCode::SERVICE_UNAVAILABLE => "the exporter is busy; try again".to_owned(),
        status if status.is_redirection() => format!("the page has moved to {}", header(LOCATION)),
        status if status.is_server_error() => "check the exporter's log".to_owned(),
        _ => "check host, port and path".to_owned(),
    };
    Err(format!("{status}: {} ({next})", clean(&String::from_utf8_lossy(&bytes), 200)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Result<PageSource, String> {
        text.parse()
    }

    #[test]
    fn a_source_is_a_url_of_http_or_a_file_that_there_is() {
        let url = source("http://localhost:9400").unwrap().with_path("/metrics");
        assert_eq!(url.to_string(), "http://localhost:9400/metrics");
        assert_eq!(
            source("http://[::1]:1/a?b").unwrap().with_path("/metrics").to_string(),
            "http://[::1]:1/a?b"
        );
        let file = source("Cargo.toml").unwrap().with_path("/metrics");
        assert_eq!((file.to_string().as_str(), file.is_url()), ("Cargo.toml", false));
        for (wrong, part) in [
            ("localhost:9400", "did you mean http://localhost:9400?"),
            ("https://localhost:9400/metrics", "TLS"),
            ("http://me:word@localhost:9400/metrics", "passwords"),
            ("ftp://localhost/metrics", "only http://"),
            ("http://", "http://HOST:PORT/metrics"),
        ] {
            let error = source(wrong).unwrap_err();
            assert!(error.contains(part), "{wrong}: {error}");
        }
    }

    #[test]
    fn the_daemon_is_found_by_its_configuration() {
        let of = |listen: &str| PageSource::daemon_page(listen.parse().unwrap()).map(|page| page.to_string());
        assert_eq!(of(":9408").unwrap(), "http://127.0.0.1:9408/dcgm/metrics");
        assert_eq!(of("0.0.0.0:1").unwrap(), "http://127.0.0.1:1/dcgm/metrics");
        assert_eq!(of("[::1]:9408").unwrap(), "http://[::1]:9408/dcgm/metrics");
        assert!(of("127.0.0.1:0").unwrap_err().contains("--ours"));
    }
}
