//! Listening sockets that the service manager has opened: systemd's socket activation, sd_listen_fds(3).

use std::io;
use std::net::TcpListener;
use std::os::fd::FromRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::socket::{getsockopt, sockopt};

/// The sockets, each with the name that its unit gives it (`FileDescriptorName=`). They are taken once: a second call
/// gives none. Children do not inherit them.
pub fn sockets() -> io::Result<Vec<(String, TcpListener)>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    let named = |(fd, name): (i32, String)| {
        // SAFETY: the descriptor is open, because it was just set close-on-exec, and is ours alone: the service manager gives
        // it to this process id, and this line runs once for each.
        let listener = unsafe { TcpListener::from_raw_fd(fd) };
        // An address of the internet, and listening: a Unix socket, a connection or a plain file is neither.
        let listens = listener.local_addr().is_ok() && getsockopt(&listener, sockopt::AcceptConn) == Ok(true);
        if listens {
            Ok((name, listener))
        } else {
            let text = format!("descriptor {fd}, {name:?}, is no listening TCP socket");
            Err(io::Error::new(io::ErrorKind::InvalidInput, text))
        }
    };
    sd_notify::listen_fds_with_names()?.map(named).collect()
}
