//! `gpu-node-exporter pod`: what needs root's user id around the daemon in a pod, in containers of their own that no client reaches.
//! They run as root without any capability, with the daemon's group.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Subcommand;
use nix::unistd::getegid;
use tokio::io::copy_bidirectional;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::lifecycle;
use crate::local_socket::LocalSocket;

/// The socket of the relay is for the daemon's group.
const SOCKET_MODE: u32 = 0o660;
/// The group reads and writes, and files that are made in the folder are the group's.
const GROUP_MODE: u32 = 0o2070;
/// Longest connection: the daemon opens one for each visit, of three deadlines of at most a minute.
const CONNECTION: Duration = Duration::from_secs(200);

#[derive(Debug, Subcommand)]
pub enum Task {
    /// Give folders to this process's group, and end
    Folders {
        /// The folders
        #[arg(required = true)]
        dirs: Vec<PathBuf>,
    },
    /// Pass connections on to the kubelet's pod-resources socket, which is root's alone
    Relay {
        /// The socket to listen on, for this process's group
        socket: PathBuf,
        /// The kubelet's socket
        kubelet: PathBuf,
    },
}

/// Does it.
pub fn run(task: Task) -> io::Result<String> {
    match task {
        Task::Folders { dirs } => dirs.iter().map(|dir| give(dir)).collect(),
        Task::Relay { socket, kubelet } => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(relay(&socket, kubelet))?;
            Ok("The relay has ended.".to_owned())
        }
    }
}

/// The owner of a folder may give it to a group of its own without any capability.
fn give(dir: &Path) -> io::Result<String> {
    let group = getegid().as_raw();
    let mode = fs::metadata(dir).map(|metadata| metadata.permissions().mode());
    mode.and_then(|mode| {
        chown(dir, None, Some(group))?;
        fs::set_permissions(dir, Permissions::from_mode(mode | GROUP_MODE))
    })
    .map(|()| format!("{} is the group {group}'s\n", dir.display()))
    .map_err(|error| {
        let text = format!("cannot give {} to the group {group}: {error}", dir.display());
        io::Error::new(error.kind(), text)
    })
}

async fn relay(socket: &Path, kubelet: PathBuf) -> io::Result<()> {
    let (stop, stopped) = watch::channel(false);
    let kubelet: Arc<Path> = kubelet.into();
    let converse = move |mut client: UnixStream, _| {
        let kubelet = Arc::clone(&kubelet);
        async move {
            let pass_on = async {
                let mut server = UnixStream::connect(&kubelet).await?;
                copy_bidirectional(&mut client, &mut server).await
            };
            match timeout(CONNECTION, pass_on).await {
                Ok(passed) => passed.map(drop),
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            }
            .inspect_err(
                |error| tracing::warn!(%error, socket = %kubelet.display(), "no answer of the kubelet"),
            )
        }
    };
    let signals = lifecycle::Signals::new()?;
    let serving = tokio::spawn(LocalSocket::bind(socket, SOCKET_MODE)?.serve(converse, stopped));
    signals.asked_to_end(|| (), || ()).await;
    stop.send_replace(true);
    serving.await?
}
