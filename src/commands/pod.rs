//! `gpu-node-exporter pod`: what needs root's user id around the daemon in a pod, in containers of their own that no client reaches.
//! They run as root without any capability, with the daemon's group.

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

/// The socket of the relay is for the daemon's group.
const SOCKET_MODE: u32 = 0o660;
/// The group reads and writes, and files that are made in the folder are the group's.
const GROUP_MODE: u32 = 0o2070;
const FILE_MODE: u32 = 0o060;
/// Longest connection: the daemon opens one for each visit, of three deadlines of at most a minute.
const CONNECTION: Duration = Duration::from_secs(200);

/// Run the tasks that need root around a daemon in a pod; the Helm chart starts them
#[derive(Args)]
pub(crate) struct PodArguments {
    #[command(subcommand)]
    task: PodTask,
}

#[derive(Subcommand)]
enum PodTask {
    /// Give the daemon's folders and what this user has in them to this process's group, and end
    Folders {
        /// The folder of the state, which is closed to other users
        state: PathBuf,
        /// The folder of the sockets, which other users may enter
        run: PathBuf,
    },
    /// Pass connections on to the kubelet's pod-resources socket, which is root's alone
    Relay {
        /// The socket to listen on, for this process's group
        socket: PathBuf,
        /// The kubelet's socket
        kubelet: PathBuf,
    },
}

pub fn run(arguments: PodArguments) -> io::Result<String> {
    match arguments.task {
        PodTask::Folders { state, run } => Ok(assign_group(&state, 0o007)? + &assign_group(&run, 0o002)?),
        PodTask::Relay { socket, kubelet } => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(relay(&socket, kubelet))?;
            Ok("The relay has ended.".to_owned())
        }
    }
}

/// The owner of a folder may give the folder to a group of its own without any capability. Files that this user has made there, as the
/// daemon does in a privileged container, are the group's then too.
fn assign_group(dir: &Path, closed: u32) -> io::Result<String> {
    let group = getegid().as_raw();
    let owner = fs::metadata(dir).map(|metadata| metadata.uid());
    let given = fs::metadata(dir).and_then(|metadata| {
        chown(dir, None, Some(group))?;
        fs::set_permissions(dir, Permissions::from_mode((metadata.mode() | GROUP_MODE) & !closed))?;
        assign_content(dir, group)
    });
    let shown = dir.display();
    given.map(|()| format!("{shown} is the group {group}'s\n")).map_err(|error| {
        let remedy = match owner {
            Ok(uid) if error.kind() == io::ErrorKind::PermissionDenied && uid != geteuid().as_raw() => {
                format!(
                    "; its owner is user {uid}, as after the package's unit on the node: \
                 run there `systemctl mask --now gpu-node-exporter; chown -R root: {shown}`"
                )
            }
            _ => String::new(),
        };
        io::Error::new(error.kind(), format!("cannot give {shown} to the group {group}: {error}{remedy}"))
    })
}

/// Folders and plain files of this user, and no others. The group writes to the folder: neither a symbolic nor a hard link is followed.
fn assign_content(dir: &Path, group: u32) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        match assign_entry(&path, group) {
            Ok(true) => assign_content(&path, group)?,
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, file = %path.display(), "cannot give the file to the group");
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether this is a folder that was given.
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

/// A folder has a link of each folder in it.
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
                |error| tracing::warn!(%error, socket = %kubelet.display(), "no answer of the kubelet"),
            )
        }
    };
    let signals = lifecycle::Signals::new()?;
    let serving = tokio::spawn(LocalSocket::bind(socket, SOCKET_MODE)?.serve(converse, stopped));
    signals.wait_for_end(|| (), || ()).await;
    stop.send_replace(true);
    serving.await?
}
