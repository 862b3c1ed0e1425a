//! The local socket: what people and commands on the node ask of the running daemon.
//!
//! One request a connection. The client sends a line; the answer is the line `ok` and a payload, or the
//! line `error: TEXT`; then the connection ends. Whatever changes the daemon's state goes through here
//! and never through the network, so the file's mode (0660) decides who may.

pub mod orders;

use std::collections::VecDeque;
use std::future::Future;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, setsockopt, socket, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;

use exposition::format::{Encoding, ResponseFormat};
use exposition::response_cache::{ResponseCache, SnapshotCell};
use model::text;

/// Longest request line, its newline included.
const MAX_REQUEST: u64 = 4096;
/// Time for a request to come, and for its answer to be taken.
const DEADLINE: Duration = Duration::from_secs(5);
/// Connections at the same time.
const MAX_CONNECTIONS: usize = 8;
/// Pause after a failed accept: the reason, as too few file descriptors, lasts.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
const MODE: u32 = 0o660;
/// Requests that read files at one time, on a disk that may hang: fewer than [`MAX_CONNECTIONS`], and than there are
/// threads for blocking work.
pub const MAX_BLOCKING: usize = 4;
/// Timeout of such a request: shorter than that of the client.
pub const BLOCKING_TIMEOUT: Duration = Duration::from_secs(4);

/// A request, and the process that made it, as the kernel knows that process.
#[derive(Clone, Debug)]
pub struct Request {
    /// The line.
    pub line: String,
    /// User id of the client.
    pub uid: u32,
    /// Process id of the client; none if it is of another process namespace.
    pub pid: Option<i32>,
}

impl Request {
    /// Logs an order with its author. What only reads is not worth a line of the journal.
    fn log(&self) {
        if orders::is_order(&self.line) {
            let (uid, pid) = (self.uid, self.pid);
            tracing::info!(uid, pid, request = %text::clean(&self.line, 200), "order on the control socket");
        }
    }
}

impl std::fmt::Display for Request {
    /// The client, as `uid 0, process 4711`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "uid {}", self.uid)?;
        self.pid.map_or(Ok(()), |pid| write!(f, ", process {pid}"))
    }
}

/// The daemon's end. Removes its socket when dropped.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    path: PathBuf,
}

impl Server {
    /// Opens the socket, and its folder if there is none. A socket left behind by a daemon that is gone
    /// is replaced; one that answers, or a file of another kind, is not.
    pub fn bind(path: &Path) -> io::Result<Server> {
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("control socket {}: {error}", path.display()))
        };
        Server::open(path).map_err(named)
    }

    fn open(path: &Path) -> io::Result<Server> {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        refuse_if_in_use(path)?;
        // Made under another name, so that under its own it never has another mode than MODE.
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}", std::process::id()));
        let made = PathBuf::from(name);
        remove_if_there(&made)?;
        let listener = UnixListener::bind(&made)?;
        std::fs::set_permissions(&made, std::fs::Permissions::from_mode(MODE))?;
        std::fs::rename(&made, path)?;
        Ok(Server { listener, path: path.to_owned() })
    }

    /// Answers requests with `handler` until `stop` is true or its sender is gone. What the handler returns is the
    /// payload, or the text of the error.
    pub async fn serve<H, F>(self, handler: H, mut stop: watch::Receiver<bool>) -> io::Result<()>
    where
        H: Fn(Request) -> F + Clone + Send + 'static,
        F: Future<Output = Result<Bytes, String>> + Send,
    {
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut waiting = WaitingConnections::default();
        self.listener.set_nonblocking(true)?;
        let listener = tokio::net::UnixListener::from_std(self.listener.try_clone()?)?;
        loop {
            let stream = tokio::select! {
                // An error says that the sender is gone, which is a reason to stop as well.
                () = async { drop(stop.wait_for(|stop| *stop).await) } => return Ok(()),
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    Err(error) => {
                        tracing::warn!(%error, "control socket: no connection accepted");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                        continue;
                    }
                },
            };
            let place = match places.clone().try_acquire_owned() {
                Ok(place) => place,
                // The connection whose client keeps us waiting for longest goes. Its place is free once its task has ended.
                Err(_) if waiting.end_oldest() => match places.clone().acquire_owned().await {
                    Ok(place) => place,
                    Err(_) => continue,
                },
                // Past the limit a connection is closed at once; the client says so.
                Err(_) => continue,
            };
            let handler = handler.clone();
            let phase = Arc::new(AtomicU8::new(ASKING));
            let of_task = Arc::clone(&phase);
            let task = tokio::spawn(async move {
                let _place = place;
                if let Err(error) = converse(stream, &of_task, handler).await {
                    tracing::debug!(%error, "control connection ended");
                }
            });
            waiting.add(task.abort_handle(), phase);
        }
    }
}

/// A connection waits for its request; the request is worked on; a connection waits for its answer to be taken.
const ASKING: u8 = 0;
const WORKING: u8 = 1;
const ANSWERING: u8 = 2;

/// Connections, the oldest first, each with its phase.
#[derive(Default)]
struct WaitingConnections(VecDeque<(AbortHandle, Arc<AtomicU8>)>);

impl WaitingConnections {
    fn add(&mut self, task: AbortHandle, phase: Arc<AtomicU8>) {
        self.0.retain(|(task, _)| !task.is_finished());
        self.0.push_back((task, phase));
    }

    /// Ends the oldest one without a request, else the oldest one whose client has not taken its answer; false if there
    /// is none. What is worked on goes on.
    fn end_oldest(&mut self) -> bool {
        self.0.retain(|(task, _)| !task.is_finished());
        let in_phase = |wanted| self.0.iter().position(|(_, phase)| phase.load(Relaxed) == wanted);
        let oldest = in_phase(ASKING).or_else(|| in_phase(ANSWERING));
        oldest.and_then(|at| self.0.remove(at)).is_some_and(|(task, _)| {
            task.abort();
            true
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = remove_if_there(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "control socket stays behind");
        }
    }
}

fn refuse_if_in_use(path: &Path) -> io::Result<()> {
    let file = match std::fs::symlink_metadata(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !file.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file of another kind"));
    }
    match connect(path, DEADLINE) {
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another gpu-node-exporter answers here")),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(io::Error::new(io::ErrorKind::AddrInUse, "another gpu-node-exporter hangs here"))
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(error) => Err(error),
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

async fn converse<H, F>(stream: tokio::net::UnixStream, phase: &AtomicU8, handler: H) -> io::Result<()>
where
    H: Fn(Request) -> F,
    F: Future<Output = Result<Bytes, String>>,
{
    let client = stream.peer_cred()?;
    let (reading, mut writing) = stream.into_split();
    let answer = match tokio::time::timeout(DEADLINE, request(reading)).await {
        Ok(Ok(line)) => {
            phase.store(WORKING, Relaxed);
            let request = Request { line, uid: client.uid(), pid: client.pid() };
            request.log();
            handler(request).await
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no request within {} s", DEADLINE.as_secs())),
    };
    phase.store(ANSWERING, Relaxed);
    let send = async {
        match answer {
            Ok(payload) => {
                writing.write_all(b"ok\n").await?;
                writing.write_all(&payload).await?;
            }
            // One line, whatever the text.
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
        None => Err(io::Error::other(format!("no request line of at most {MAX_REQUEST} bytes"))),
    }
}

/// Runs a request that reads files on a thread that may wait for a disk. A disk that hangs holds up as many of them as
/// `free` has permits, and no other request.
pub async fn run_blocking(
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
            "the files of the request (in state.dir, windows.dir, /sys/fs/cgroup) have not answered within {} s",
            timeout.as_secs()
        ))
    })
}

/// Answers the requests that only read: `snapshot json|text|openmetrics` and `status`.
pub async fn read(
    request: &str,
    snapshots: &SnapshotCell,
    responses: &ResponseCache,
) -> Result<Bytes, String> {
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
            let sequence = snapshots.current().sequence;
            return Ok(format!("pid {pid} version {version} sequence {sequence}\n").into());
        }
        _ => {
            return Err(format!(
                "unknown request {request:?}; known: snapshot json, snapshot text, snapshot openmetrics, events, owners, topology, status, \
                 driver release, driver resume, driver status, gpm off, gpm on, canary status, canary clear, \
                 nvswitch clear"
            ));
        }
    };
    if snapshots.current().sequence == 0 {
        return Err("no values have been published yet".into());
    }
    let response = responses.get(format, Encoding::Identity).await;
    response.map(|response| response.bytes).map_err(|error| error.to_string())
}

/// Asks the daemon behind `socket`, and returns the payload of its answer. Waits at most 5 s for each step.
/// Errors say what to do.
pub fn fetch(socket: &Path, request: &str) -> io::Result<Vec<u8>> {
    let explained = |error: io::Error| {
        let hint = match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                "is the daemon running? If it has another configuration, name it with --config; \
                 the socket is `control.socket` there"
            }
            io::ErrorKind::PermissionDenied => "run this as root or as a member of the socket's group",
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "the daemon did not answer within 5 s",
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                "the daemon closed the connection: it is ending, or too many ask at once"
            }
            _ => return io::Error::new(error.kind(), format!("{}: {error}", socket.display())),
        };
        io::Error::new(error.kind(), format!("{}: {error}: {hint}", socket.display()))
    };
    let answer = exchange(socket, request, DEADLINE).map_err(explained)?;
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
    let mut stream = connect(socket, deadline)?;
    stream.write_all(format!("{request}\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}

/// Connects, and sets the time after which connecting, reading and writing fail. A daemon that is frozen
/// no longer accepts: connecting to it would wait for ever, so the limit is set before.
fn connect(path: &Path, deadline: Duration) -> io::Result<UnixStream> {
    let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let timeval = TimeVal::microseconds(i64::try_from(deadline.as_micros()).unwrap_or(i64::MAX));
    setsockopt(&fd, sockopt::SendTimeout, &timeval)?;
    setsockopt(&fd, sockopt::ReceiveTimeout, &timeval)?;
    nix::sys::socket::connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(UnixStream::from(fd))
}

#[cfg(test)]
mod tests {
    use super::*;
    use exposition::fixtures;

    fn serve(
        path: &Path,
    ) -> (watch::Sender<bool>, tokio::task::JoinHandle<io::Result<()>>, Arc<SnapshotCell>) {
        let snapshots = Arc::new(SnapshotCell::default());
        let responses = Arc::new(ResponseCache::new(snapshots.clone(), Default::default()));
        let (stop, stopped) = watch::channel(false);
        let shared = snapshots.clone();
        let handler = move |request: Request| {
            let (shared, responses) = (shared.clone(), responses.clone());
            async move { read(&request.line, &shared, &responses).await }
        };
        let ended = tokio::spawn(Server::bind(path).unwrap().serve(handler, stopped));
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
        let error = exchange(&path, "status", Duration::from_millis(20)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[tokio::test]
    async fn only_a_socket_without_a_server_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        drop(UnixListener::bind(&path).unwrap());
        let (_stop, _ended, _snapshots) = serve(&path);
        let text = Server::bind(&path).unwrap_err().to_string();
        assert!(text.contains("another gpu-node-exporter") && text.contains("control.sock"), "{text}");
        assert!(ask(&path, "status").await.is_ok(), "the first one is still there");

        let file = folder.path().join("file");
        std::fs::write(&file, "mine").unwrap();
        assert!(Server::bind(&file).is_err());
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
        tokio::spawn(Server::bind(&path).unwrap().serve(handler, stopped));
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
            assert!(error.contains("have not answered"), "{error}");
        }
        assert_eq!(free.available_permits(), 0, "a request without a permit waits on no thread");
        drop(release);
        let done = run_blocking(&free, Duration::from_secs(60), || Ok(Bytes::from("done"))).await;
        assert_eq!(done, Ok(Bytes::from("done")));
    }
}
