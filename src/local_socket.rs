//! Unix socket of the daemon. The file mode controls access, the number of clients is bounded, and the client that has
//! blocked for longest is dropped first.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, setsockopt, socket, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;

/// Time limit for a request to arrive, and for its response to be read.
pub(crate) const DEADLINE: Duration = Duration::from_secs(5);
/// Maximum number of connections.
pub(crate) const MAX_CONNECTIONS: usize = 8;
/// Pause after a failed accept, because reasons such as a lack of file descriptors persist.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Listening socket. Dropping it removes its file.
#[derive(Debug)]
pub(crate) struct LocalSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl LocalSocket {
    /// Opens the socket with this file mode and creates its directory if necessary. A socket left behind by a dead
    /// daemon is replaced; a socket that answers, or a file of another kind, is an error.
    pub(crate) fn bind(path: &Path, mode: u32) -> io::Result<LocalSocket> {
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("socket {}: {error}", path.display()));
        LocalSocket::open(path, mode).map_err(named)
    }

    fn open(path: &Path, mode: u32) -> io::Result<LocalSocket> {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        refuse_if_in_use(path)?;
        // The socket is created under a temporary name, so that its final name never has another mode.
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}", std::process::id()));
        let made = PathBuf::from(name);
        remove_if_there(&made)?;
        let listener = UnixListener::bind(&made)?;
        std::fs::set_permissions(&made, std::fs::Permissions::from_mode(mode))?;
        std::fs::rename(&made, path)?;
        Ok(LocalSocket { listener, path: path.to_owned() })
    }

    /// Runs `converse` for every client until `stop` is true or its sender is dropped.
    pub(crate) async fn serve<C, F>(self, converse: C, mut stop: watch::Receiver<bool>) -> io::Result<()>
    where
        C: Fn(tokio::net::UnixStream, Arc<Phase>) -> F,
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut waiting = WaitingConnections::default();
        self.listener.set_nonblocking(true)?;
        let listener = tokio::net::UnixListener::from_std(self.listener.try_clone()?)?;
        loop {
            let stream = tokio::select! {
                // An error means that the sender is dropped, which also stops the server.
                () = async { drop(stop.wait_for(|stop| *stop).await) } => return Ok(()),
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    Err(error) => {
                        tracing::warn!(%error, socket = %self.path.display(), "failed to accept a connection on a local socket");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                        continue;
                    }
                },
            };
            let place = match places.clone().try_acquire_owned() {
                Ok(place) => place,
                // The connection that has waited for longest is dropped. Its permit is free once its task has ended.
                Err(_) if waiting.end_oldest() => match places.clone().acquire_owned().await {
                    Ok(place) => place,
                    Err(_) => continue,
                },
                // A connection over the limit is closed at once, which the client reports.
                Err(_) => continue,
            };
            let phase = Arc::new(Phase::default());
            let conversation = converse(stream, Arc::clone(&phase));
            let task = tokio::spawn(async move {
                let _place = place;
                if let Err(error) = conversation.await {
                    tracing::debug!(%error, "a local connection ended with an error");
                }
            });
            waiting.add(task.abort_handle(), phase);
        }
    }
}

/// State of a connection: waiting for its request, working, or waiting for its response to be read.
#[derive(Debug, Default)]
pub(crate) struct Phase(AtomicU8);

impl Phase {
    const ASKING: u8 = 0;
    const WORKING: u8 = 1;
    const ANSWERING: u8 = 2;

    pub(crate) fn work(&self) {
        self.0.store(Phase::WORKING, Relaxed);
    }

    pub(crate) fn answer(&self) {
        self.0.store(Phase::ANSWERING, Relaxed);
    }
}

/// Connections with their states, the oldest first.
#[derive(Default)]
struct WaitingConnections(VecDeque<(AbortHandle, Arc<Phase>)>);

impl WaitingConnections {
    fn add(&mut self, task: AbortHandle, phase: Arc<Phase>) {
        self.0.retain(|(task, _)| !task.is_finished());
        self.0.push_back((task, phase));
    }

    /// Ends the oldest connection without a request, otherwise the oldest one whose response is unread. Returns false
    /// if there is none. Connections with a request in work continue.
    fn end_oldest(&mut self) -> bool {
        self.0.retain(|(task, _)| !task.is_finished());
        let in_phase = |wanted| self.0.iter().position(|(_, phase)| phase.0.load(Relaxed) == wanted);
        let oldest = in_phase(Phase::ASKING).or_else(|| in_phase(Phase::ANSWERING));
        oldest.and_then(|at| self.0.remove(at)).is_some_and(|(task, _)| {
            task.abort();
            true
        })
    }
}

impl Drop for LocalSocket {
    fn drop(&mut self) {
        if let Err(error) = remove_if_there(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "failed to remove a local socket");
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

/// Connects with this limit for connecting, reading and writing. The limit is set before connecting, because connecting
/// to a frozen daemon would block forever.
pub(crate) fn connect(path: &Path, deadline: Duration) -> io::Result<UnixStream> {
    let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let timeval = TimeVal::microseconds(i64::try_from(deadline.as_micros()).unwrap_or(i64::MAX));
    setsockopt(&fd, sockopt::SendTimeout, &timeval)?;
    setsockopt(&fd, sockopt::ReceiveTimeout, &timeval)?;
    nix::sys::socket::connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(UnixStream::from(fd))
}
