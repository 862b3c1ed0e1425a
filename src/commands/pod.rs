//! `gpu-node-exporter pod`: tasks around a daemon in a pod that need root's user ID. They run in separate
//! containers that no client can reach, as root without capabilities and with the daemon's group.

use std::fs::{self, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use nix::unistd::{getegid, geteuid};
use tokio::io::copy_bidirectional;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::lifecycle;
use crate::local_socket::LocalSocket;

/// Mode of the relay's socket, which the daemon's group may use.
const SOCKET_MODE: u32 = 0o660;
/// Mode of directories: the group may read and write, and new files belong to the group.
const GROUP_MODE: u32 = 0o2070;
const FILE_MODE: u32 = 0o060;
/// Maximum duration of a connection. The daemon opens one per visit, with three deadlines of at most a
/// minute.
const CONNECTION: Duration = Duration::from_secs(200);

/// Run the tasks that need root around a daemon in a pod; the Helm chart starts them
#[derive(Args)]
pub(crate) struct PodArguments {
    #[command(subcommand)]
    task: PodTask,
}

#[derive(Subcommand)]
enum PodTask {
    /// Give the group of this process access to the daemon's directories and to this user's files in them,
    /// and exit
    Folders {
        /// State directory, which stays closed to other users
        state: PathBuf,
        /// Directory of the sockets, which other users may enter
        run: PathBuf,
    },
    /// Forward connections to the kubelet's pod-resources socket, which only root may open
    Relay {
        /// Socket to listen on, for the group of this process
        socket: PathBuf,
        /// Socket of the kubelet
        kubelet: PathBuf,
    },
}

pub fn run(arguments: PodArguments) -> io::Result<String> {
    match arguments.task {
        PodTask::Folders { state, run } => Ok(assign_group(&state, 0o007)? + &assign_group(&run, 0o002)?),
        PodTask::Relay { socket, kubelet } => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(relay(&socket, kubelet))?;
            Ok("The relay has stopped.".to_owned())
        }
    }
}

/// Assigns a directory to the group of this process. The owner may do that without capabilities if it is a
/// member of the group. Includes files that this user created in the directory, as the daemon does in a
/// privileged container.
fn assign_group(dir: &Path, closed: u32) -> io::Result<String> {
    let group = getegid().as_raw();
    let owner = fs::metadata(dir).map(|metadata| metadata.uid());
    let given = fs::metadata(dir).and_then(|metadata| {
        chown(dir, None, Some(group))?;
        fs::set_permissions(dir, Permissions::from_mode((metadata.mode() | GROUP_MODE) & !closed))?;
        assign_content(dir, group)
    });
    let shown = dir.display();
    given.map(|()| format!("assigned {shown} to group {group}\n")).map_err(|error| {
        let remedy = match owner {
            Ok(uid) if error.kind() == io::ErrorKind::PermissionDenied && uid != geteuid().as_raw() => {
                format!(
                    "; its owner is user {uid}, probably because the package's unit ran on the node. Run on the \
                     node: `systemctl mask --now gpu-node-exporter; chown -R root: {shown}`"
                )
            }
            _ => String::new(),
        };
        io::Error::new(error.kind(), format!("cannot assign {shown} to group {group}: {error}{remedy}"))
    })
}

/// Assigns only directories and regular files of this user. Follows neither symbolic nor hard links, because
/// the group may write to the directory.
fn assign_content(dir: &Path, group: u32) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        match assign_entry(&path, group) {
            Ok(true) => assign_content(&path, group)?,
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, file = %path.display(), "failed to assign a file to the group; the daemon may not be able to write it");
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns true for a directory that was assigned.
fn assign_entry(path: &Path, group: u32) -> io::Result<bool> {
    if !is_own(&fs::symlink_metadata(path)?) {
        return Ok(false);
    }
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !is_own(&metadata) {
        return Ok(false);
    }
    let more = if metadata.is_dir() { GROUP_MODE } else { FILE_MODE };
    fchown(&file, None, Some(group))?;
    file.set_permissions(Permissions::from_mode(metadata.mode() & 0o777 | more))?;
    Ok(metadata.is_dir())
}

/// Subdirectories add links to a directory, so only a file must have a single link.
fn is_own(metadata: &Metadata) -> bool {
    metadata.uid() == geteuid().as_raw() && (metadata.is_dir() || metadata.is_file() && metadata.nlink() == 1)
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
                |error| tracing::warn!(%error, socket = %kubelet.display(), "failed to forward a connection to the kubelet"),
            )
        }
    };
    let signals = lifecycle::Signals::new()?;
    let serving = tokio::spawn(LocalSocket::bind(socket, SOCKET_MODE)?.serve(converse, stopped));
    signals.wait_for_end(|| (), || ()).await;
    stop.send_replace(true);
    serving.await?
}
