//! Control socket, over which users and commands on the node reach the running daemon.
//!
//! A connection carries one request. The client sends a line; the response is the line `ok` and a payload, or the line
//! `error: TEXT`, and then the connection closes. All changes to the daemon's state go through this socket and never
//! through the network, so the file mode (0660) controls access.

pub(crate) mod orders;

use std::future::Future;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::{Semaphore, watch};

use crate::local_socket::{DEADLINE, LocalSocket, MAX_CONNECTIONS, Phase, connect};
use exposition::api::health::HealthAnswer;
use exposition::format::{Encoding, ResponseFormat};
use exposition::http::AppState;
use model::clock::Mono;
use model::text;

/// Maximum length of a request line, including its newline.
const MAX_REQUEST: u64 = 4096;
/// Mode of the socket. Its owner and group may change the state of the daemon.
pub(crate) const MODE: u32 = 0o660;
/// Maximum number of concurrent requests that read files, because a disk may hang. It is below the number of
/// connections and of threads for blocking work.
pub(crate) const MAX_BLOCKING: usize = MAX_CONNECTIONS / 2;
/// Timeout of a request that reads files. It is shorter than the client's timeout.
pub(crate) const BLOCKING_TIMEOUT: Duration = Duration::from_secs(4);

/// Request and the identity of its client according to the kernel.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Request line without its newline.
    pub(crate) line: String,
    /// User ID of the client.
    pub(crate) uid: u32,
    /// Process ID of the client; `None` if it belongs to another PID namespace.
    pub(crate) pid: Option<i32>,
}

impl Request {
    /// Logs a request that changes state, with its client.
    fn log(&self) {
        if orders::is_order(&self.line) {
            let (uid, pid) = (self.uid, self.pid);
            tracing::info!(uid, pid, request = %text::clean(&self.line, 200), "received an order on the control socket");
        }
    }
}

impl std::fmt::Display for Request {
    /// Formats the client as `uid 0, process 4711`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "uid {}", self.uid)?;
        self.pid.map_or(Ok(()), |pid| write!(f, ", process {pid}"))
    }
}

/// Answers requests with `handler` until `stop` is true or its sender is dropped. The handler returns the payload, or
/// the text of the error.
pub(crate) async fn serve<H, F>(
    socket: LocalSocket,
    handler: H,
    stop: watch::Receiver<bool>,
) -> io::Result<()>
where
    H: Fn(Request) -> F + Clone + Send + 'static,
    F: Future<Output = Result<Bytes, String>> + Send + 'static,
{
    socket.serve(move |stream, phase| converse(stream, phase, handler.clone()), stop).await
}

async fn converse<H, F>(stream: tokio::net::UnixStream, phase: Arc<Phase>, handler: H) -> io::Result<()>
where
    H: Fn(Request) -> F,
    F: Future<Output = Result<Bytes, String>>,
{
    let client = stream.peer_cred()?;
    let (reading, mut writing) = stream.into_split();
    let answer = match tokio::time::timeout(DEADLINE, request(reading)).await {
        Ok(Ok(line)) => {
            phase.work();
            let request = Request { line, uid: client.uid(), pid: client.pid() };
            request.log();
            handler(request).await
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no request arrived within {} s", DEADLINE.as_secs())),
    };
    phase.answer();
    let send = async {
        match answer {
            Ok(payload) => {
                writing.write_all(b"ok\n").await?;
                writing.write_all(&payload).await?;
            }
            // The response is one line, whatever the text.
            Err(text) => {
                writing.write_all(format!("error: {}\n", text.replace('\n', " ")).as_bytes()).await?
            }
        }
        writing.shutdown().await
    };
    tokio::time::timeout(DEADLINE, send).await?
}

async fn request(reading: tokio::net::unix::OwnedReadHalf) -> io::Result<String> {
    let mut line = String::new();
    BufReader::new(reading.take(MAX_REQUEST)).read_line(&mut line).await?;
    match line.strip_suffix('\n') {
        Some(request) => Ok(request.trim().to_owned()),
        None => Err(io::Error::other(format!("the request is not a line of at most {MAX_REQUEST} bytes"))),
    }
}

/// Runs a request that reads files on a helper thread. A hanging disk can block only as many requests as `free` has
/// permits.
pub(crate) async fn run_blocking(
    free: &Arc<Semaphore>,
    timeout: Duration,
    request: impl FnOnce() -> Result<Bytes, String> + Send + 'static,
) -> Result<Bytes, String> {
    let response = async {
        let permit = Arc::clone(free).acquire_owned().await.map_err(|error| error.to_string())?;
        let work = move || {
            let _permit = permit;
            request()
        };
        tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())?
    };
    tokio::time::timeout(timeout, response).await.unwrap_or_else(|_| {
        Err(format!(
            "files needed for the request (in state.dir, windows.dir or /sys/fs/cgroup) did not respond within {} s",
            timeout.as_secs()
        ))
    })
}

/// Answers the requests that only read, such as `snapshot json` and `health GPU`.
pub(crate) async fn read(request: &str, state: &AppState) -> Result<Bytes, String> {
    let words: Vec<&str> = request.split_whitespace().collect();
    let format = match words[..] {
        ["snapshot", "json"] => ResponseFormat::Json,
        ["snapshot", "text"] => ResponseFormat::Text,
        ["snapshot", "openmetrics"] => ResponseFormat::OpenMetrics,
        ["events"] => ResponseFormat::Events,
        ["owners"] => ResponseFormat::Owners,
        ["topology"] => ResponseFormat::Topology,
        ["status"] => {
            let (pid, version) = (std::process::id(), env!("CARGO_PKG_VERSION"));
            let sequence = state.snapshots.current().sequence;
            return Ok(format!("pid {pid} version {version} sequence {sequence}\n").into());
        }
        ["health", ref gpus @ ..] => {
            return Ok(HealthAnswer::from_snapshot(state.fresh(), gpus).json().into());
        }
        _ => {
            return Err(format!(
                "unknown request \"{}\"; known: snapshot json, snapshot text, snapshot openmetrics, events, owners, \
                 topology, config, status, health, \
                 driver release, driver resume, driver status, gpm off, gpm on, canary status, canary clear, \
                 nvswitch clear",
                text::clean(request, 200)
            ));
        }
    };
    if state.snapshots.current().sequence == 0 {
        return Err("no values have been published yet".into());
    }
    let response = state.responses.get(format, Encoding::Identity).await;
    response.map(|response| response.bytes).map_err(|error| error.to_string())
}

/// Sends a request to the daemon behind `socket` and returns the payload of its response. Waits at most 5 s. Errors
/// include the next step.
pub fn fetch(socket: &Path, request: &str) -> io::Result<Vec<u8>> {
    fetch_within(DEADLINE, socket, request)
}

/// Does the same with another limit for connecting and reading the response together.
pub(crate) fn fetch_within(deadline: Duration, socket: &Path, request: &str) -> io::Result<Vec<u8>> {
    let late = format!("the daemon did not answer within {}", humantime::format_duration(deadline));
    let explained = |error: io::Error| {
        let hint = match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                "is the daemon running? If it uses another configuration file, pass the file with --config, because \
                 it sets control.socket and health.socket"
            }
            io::ErrorKind::PermissionDenied => "run this as root or as a member of the socket's group",
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => &late,
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                "the daemon closed the connection; it is stopping, or there are too many clients"
            }
            _ => return io::Error::new(error.kind(), format!("{}: {error}", socket.display())),
        };
        io::Error::new(error.kind(), format!("{}: {error}: {hint}", socket.display()))
    };
    let answer = exchange(socket, request, deadline).map_err(explained)?;
    match answer.iter().position(|byte| *byte == b'\n').map(|end| answer.split_at(end)) {
        Some((b"ok", payload)) => Ok(payload[1..].to_vec()),
        Some((line, _)) => {
            let text = String::from_utf8_lossy(line);
            Err(io::Error::other(text.strip_prefix("error: ").unwrap_or(&text).to_owned()))
        }
        None => Err(explained(io::ErrorKind::UnexpectedEof.into())),
    }
}

fn exchange(socket: &Path, request: &str, deadline: Duration) -> io::Result<Vec<u8>> {
    let end = Mono::now() + deadline;
    let mut stream = connect(socket, deadline)?;
    stream.write_all(format!("{request}\n").as_bytes())?;
    let (mut answer, mut piece) = (Vec::new(), [0; 16 << 10]);
    loop {
        let left = end.since(Mono::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece)? {
            0 => return Ok(answer),
            length => answer.extend_from_slice(&piece[..length]),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;
    use exposition::fixtures;
    use exposition::response_cache::ResponseCache;
    use model::snapshot_cell::SnapshotCell;

    fn serve(
        path: &Path,
    ) -> (watch::Sender<bool>, tokio::task::JoinHandle<io::Result<()>>, Arc<SnapshotCell>) {
        let snapshots = Arc::new(SnapshotCell::default());
        let responses = Arc::new(ResponseCache::new(snapshots.clone(), Default::default()));
        let (stop, stopped) = watch::channel(false);
        let (started, stale_after) = (Mono::now(), Duration::from_secs(10));
        let state = Arc::new(AppState { snapshots: snapshots.clone(), responses, started, stale_after });
        let handler = move |request: Request| {
            let state = Arc::clone(&state);
            async move { read(&request.line, &state).await }
        };
        let ended = tokio::spawn(super::serve(LocalSocket::bind(path, MODE).unwrap(), handler, stopped));
        (stop, ended, snapshots)
    }

    async fn ask(path: &Path, request: &str) -> io::Result<Vec<u8>> {
        let (path, request) = (path.to_owned(), request.to_owned());
        tokio::task::spawn_blocking(move || fetch(&path, &request)).await.unwrap()
    }

    #[tokio::test]
    async fn requests_are_answered_and_the_socket_goes_with_the_server() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/control.sock");
        let (stop, ended, snapshots) = serve(&path);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        assert!(ask(&path, "snapshot json").await.unwrap_err().to_string().contains("no values"));

        snapshots.publish(fixtures::node_taken(7, model::clock::Mono::now()));
        let json = ask(&path, "snapshot json").await.unwrap();
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&json).unwrap()["sequence"], 7);
        assert!(ask(&path, "snapshot openmetrics").await.unwrap().ends_with(b"# EOF\n"));
        assert!(ask(&path, "snapshot text").await.unwrap().starts_with(b"# HELP "));
        let status = String::from_utf8(ask(&path, "status").await.unwrap()).unwrap();
        assert_eq!(
            status,
            format!("pid {} version {} sequence 7\n", std::process::id(), env!("CARGO_PKG_VERSION"))
        );
        assert!(
            ask(&path, "dance\nnow").await.unwrap_err().to_string().contains("unknown request \"dance\"")
        );
        let long = "x".repeat(10_000);
        assert!(ask(&path, &long).await.is_err());

        stop.send(true).unwrap();
        ended.await.unwrap().unwrap();
        assert!(!path.exists());
        let text = ask(&path, "status").await.unwrap_err().to_string();
        assert!(text.contains("is the daemon running?") && text.contains("control.socket"), "{text}");
    }

    #[test]
    fn a_daemon_that_does_not_answer_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let _frozen = UnixListener::bind(&path).unwrap();
        let error = fetch_within(Duration::from_millis(20), &path, "status").unwrap_err();
        assert!(error.to_string().contains("did not answer within 20ms"), "{error}");
    }

    #[tokio::test]
    async fn only_a_socket_without_a_server_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        drop(UnixListener::bind(&path).unwrap());
        let (_stop, _ended, _snapshots) = serve(&path);
        let text = LocalSocket::bind(&path, MODE).unwrap_err().to_string();
        assert!(text.contains("another gpu-node-exporter") && text.contains("control.sock"), "{text}");
        assert!(ask(&path, "status").await.is_ok(), "the first one is still there");

        let file = folder.path().join("file");
        std::fs::write(&file, "mine").unwrap();
        assert!(LocalSocket::bind(&file, MODE).is_err());
        assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    }

    #[tokio::test]
    async fn idle_connections_block_no_request_and_the_oldest_goes_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let (_stop, _ended, _snapshots) = serve(&path);
        let mut held: Vec<_> = (0..MAX_CONNECTIONS).map(|_| UnixStream::connect(&path).unwrap()).collect();
        for _ in 0..3 * MAX_CONNECTIONS {
            assert!(ask(&path, "status").await.is_ok());
        }
        let rest = tokio::task::spawn_blocking(move || {
            let mut rest = [Vec::new(), Vec::new()];
            held.last_mut().unwrap().write_all(b"status\n").unwrap();
            held.first_mut().unwrap().read_to_end(&mut rest[0]).unwrap();
            held.last_mut().unwrap().read_to_end(&mut rest[1]).unwrap();
            rest
        });
        let [oldest, newest] = rest.await.unwrap();
        assert!(oldest.is_empty() && newest.starts_with(b"ok\n"), "{newest:?}");
    }

    #[tokio::test]
    async fn clients_that_do_not_read_block_no_request() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let (_stop, stopped) = watch::channel(false);
        let (answered, mut answers) = tokio::sync::mpsc::unbounded_channel();
        // More than the socket takes, of the clients that ask for it.
        let handler = move |request: Request| {
            let length = if request.line == "much" { 64 << 20 } else { 1 };
            answered.send(()).unwrap();
            async move { Ok(Bytes::from(vec![b'x'; length])) }
        };
        tokio::spawn(super::serve(LocalSocket::bind(&path, MODE).unwrap(), handler, stopped));
        let mut held = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            let mut stream = UnixStream::connect(&path).unwrap();
            stream.write_all(b"much\n").unwrap();
            held.push(stream);
            answers.recv().await.unwrap();
        }
        for _ in 0..MAX_CONNECTIONS {
            assert_eq!(ask(&path, "little").await.unwrap(), b"x");
        }
    }

    #[tokio::test]
    async fn a_disk_that_hangs_holds_up_a_few_requests_alone() {
        let free = Arc::new(Semaphore::new(MAX_BLOCKING));
        let (release, released) = std::sync::mpsc::channel::<()>();
        let released = Arc::new(std::sync::Mutex::new(released));
        for _ in 0..MAX_BLOCKING + 4 {
            let released = Arc::clone(&released);
            let hang = move || {
                let _ = released.lock().unwrap().recv();
                Ok(Bytes::new())
            };
            let error = run_blocking(&free, Duration::from_millis(50), hang).await.unwrap_err();
            assert!(error.contains("did not respond"), "{error}");
        }
        assert_eq!(free.available_permits(), 0, "a request without a permit waits on no thread");
        drop(release);
        let done = run_blocking(&free, Duration::from_secs(60), || Ok(Bytes::from("done"))).await;
        assert_eq!(done, Ok(Bytes::from("done")));
    }
}
