//! Opens the listening sockets.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn6, bind as bind_socket, listen, setsockopt, socket,
    sockopt,
};

/// Maximum number of connections that the kernel queues before the server accepts them. `net.core.somaxconn` may lower
/// it. The limit is high because a connection beyond it succeeds only after the client retransmits its SYN.
const BACKLOG: i32 = 4096;
/// Size of the kernel's send buffer per connection, in bytes. A compressed page fits into it, and a client that reads
/// nothing occupies little memory. The kernel doubles the value for its own data.
const SEND_BUFFER: usize = 64 << 10;

/// Listens on `HOST:PORT`, or on `:PORT` for all IPv6 and IPv4 addresses. If a name has several addresses, the server
/// listens on all of them that the machine has. The error contains the address.
pub fn bind(listen: &str) -> io::Result<Vec<TcpListener>> {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("cannot listen on {listen}: {error}"));
    let listeners = match listen.strip_prefix(':') {
        Some(port) => {
            let port = port.parse().map_err(|_| {
                let text = format!("cannot listen on {listen}: the port must be a number from 0 to 65535");
                io::Error::new(io::ErrorKind::InvalidInput, text)
            })?;
            vec![all_addresses(port).map_err(named)?]
        }
        None => addresses(listen).map_err(named)?,
    };
    listeners.iter().try_for_each(limit).map_err(|errno| named(errno.into()))?;
    Ok(listeners)
}

/// Configures a socket that the service manager has opened.
pub fn adopt(listener: TcpListener) -> io::Result<TcpListener> {
    limit(&listener)?;
    Ok(listener)
}

/// Sets the send buffer, which connections inherit, and the backlog, which the standard library sets to 128.
fn limit(listener: &TcpListener) -> nix::Result<()> {
    setsockopt(listener, sockopt::SndBuf, &SEND_BUFFER)?;
    listen(listener, Backlog::new(BACKLOG)?)
}

fn addresses(listen: &str) -> io::Result<Vec<TcpListener>> {
    let mut addresses: Vec<SocketAddr> = listen.to_socket_addrs()?.collect();
    addresses.sort();
    addresses.dedup();
    let mut listeners = Vec::new();
    let mut absent = None;
    for address in addresses {
        match TcpListener::bind(address) {
            Ok(listener) => listeners.push(listener),
            // For example, ::1 for "localhost" on a machine without IPv6.
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => absent = Some(error),
            Err(error) => return Err(error),
        }
    }
    match absent {
        Some(error) if listeners.is_empty() => Err(error),
        _ if listeners.is_empty() => Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address")),
        _ => Ok(listeners),
    }
}

/// Opens one socket for IPv6 and IPv4, regardless of `net.ipv6.bindv6only`, or an IPv4 socket if the machine has no
/// IPv6.
fn all_addresses(port: u16) -> io::Result<TcpListener> {
    match dual_stack(port) {
        Ok(listener) => Ok(listener),
        Err(Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL | Errno::EPROTONOSUPPORT) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
        }
        Err(errno) => Err(errno.into()),
    }
}

fn dual_stack(port: u16) -> nix::Result<TcpListener> {
    let fd = socket(AddressFamily::Inet6, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&fd, sockopt::Ipv6V6Only, &false)?;
    // The standard library sets this option too, so that a restart need not wait for old connections.
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    let address = std::net::SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0);
    bind_socket(std::os::fd::AsRawFd::as_raw_fd(&fd), &SockaddrIn6::from(address))?;
    listen(&fd, Backlog::new(BACKLOG)?)?;
    Ok(TcpListener::from(fd))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    #[test]
    fn a_port_alone_is_reached_over_ipv4() {
        let listeners = bind(":0").unwrap();
        let port = listeners[0].local_addr().unwrap().port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    }

    #[test]
    fn a_name_may_have_addresses_the_machine_lacks() {
        assert!(!bind("localhost:0").unwrap().is_empty());
    }

    #[test]
    fn errors_name_the_address() {
        let taken = bind("127.0.0.1:0").unwrap();
        let taken = taken[0].local_addr().unwrap().to_string();
        for listen in [taken.as_str(), "127.0.0.1", ":http", "127.0.0.1:99999", "192.0.2.1:0"] {
            let text = bind(listen).unwrap_err().to_string();
            assert!(text.contains(listen), "{text}");
        }
    }
}
