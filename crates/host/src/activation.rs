//! Listening sockets that the service manager has opened, by systemd's socket activation (sd_listen_fds(3)).

use std::io;
use std::net::TcpListener;
use std::os::fd::FromRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::socket::{getsockopt, sockopt};

/// Returns the sockets with the names that their unit gives them (`FileDescriptorName=`). They are returned
/// once: a second call returns none. Children do not inherit them. Fails if a descriptor is not a listening TCP
/// socket.
pub fn sockets() -> io::Result<Vec<(String, TcpListener)>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    let named = |(fd, name): (i32, String)| {
        // SAFETY: the descriptor is open, because it was just set close-on-exec, and this process is its only
        // owner: the service manager passes it to this process id, and this line runs once per descriptor.
        let listener = unsafe { TcpListener::from_raw_fd(fd) };
        // The socket has an internet address and is listening, unlike a Unix socket, a connection or a plain
        // file.
        let listens = listener.local_addr().is_ok() && getsockopt(&listener, sockopt::AcceptConn) == Ok(true);
        if listens {
            Ok((name, listener))
        } else {
            let text = format!("descriptor {fd} (`{name}`) is not a listening TCP socket");
            Err(io::Error::new(io::ErrorKind::InvalidInput, text))
        }
    };
    sd_notify::listen_fds_with_names()?.map(named).collect()
}
