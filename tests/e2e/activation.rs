//! Sockets that the service manager opens, as systemd's socket units do.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use command_fds::{CommandFdExt, FdMapping};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::node::{PATIENCE, signal};

/// The configuration file.
fn config_file(dir: &TempDir) -> PathBuf {
    dir.path().join("config.toml")
}

/// Starts `serve` with these sockets, each by its name. The shell gives the daemon its own process id, as systemd does.
fn start(dir: &TempDir, settings: &[(&str, &str)], sockets: Vec<(&str, OwnedFd)>) -> Child {
    let names: Vec<&str> = sockets.iter().map(|(name, _)| *name).collect();
    let config = config_file(dir);
    fs::write(&config, "").unwrap();
    let mut command = Command::new("/bin/sh");
    command
        .args([
            "-c",
            "LISTEN_PID=$$ exec \"$0\" serve --config \"$1\"",
            env!("CARGO_BIN_EXE_gpu-node-exporter"),
        ])
        .arg(config)
        .env("LISTEN_FDS", sockets.len().to_string())
        .env("LISTEN_FDNAMES", names.join(":"))
        .env("GPU_NODE_EXPORTER__HOST__ROOT", dir.path())
        .env("GPU_NODE_EXPORTER__STATE__DIR", dir.path().join("state"))
        .env("GPU_NODE_EXPORTER__CONTROL__SOCKET", dir.path().join("control.sock"))
        .env("GPU_NODE_EXPORTER__SAMPLER__NVML_LIBRARY", dir.path().join("none.so"))
        .env("GPU_NODE_EXPORTER__TOPOLOGY__ENABLED", "false")
        .envs(settings.iter().map(|(key, value)| (format!("GPU_NODE_EXPORTER__{key}"), value)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let given = sockets.into_iter().zip(3..);
    let mappings = given.map(|((_, parent_fd), child_fd)| FdMapping { parent_fd, child_fd }).collect();
    command.fd_mappings(mappings).unwrap();
    command.spawn().unwrap()
}

fn connect(address: SocketAddr, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    stream
}

fn answer(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn both_listeners_are_taken_by_name_and_a_restart_refuses_no_request() {
    let dir = TempDir::new().unwrap();
    let [main, dcgm, taken] = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses = [&main, &dcgm].map(|listener| listener.local_addr().unwrap());
    // What the settings name is not listened at: this address is taken.
    let taken = taken.local_addr().unwrap().to_string();
    for _ in 0..2 {
        // Asked while no daemon runs.
        let waiting = connect(addresses[0], "/livez");
        let sockets = vec![
            ("dcgm.listen", OwnedFd::from(dcgm.try_clone().unwrap())),
            ("http.listen", OwnedFd::from(main.try_clone().unwrap())),
        ];
        let mut daemon = start(&dir, &[("HTTP__LISTEN", &taken)], sockets);
        assert!(answer(waiting).starts_with("HTTP/1.1 200 "));
        assert!(answer(connect(addresses[0], "/metrics")).contains("gpu_exporter_build_info"));
        assert!(answer(connect(addresses[1], "/health")).ends_with("OK\n"));
        assert!(answer(connect(addresses[1], "/livez")).starts_with("HTTP/1.1 404 "));
        signal(i32::try_from(daemon.id()).unwrap(), Signal::SIGTERM);
        let status = daemon.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

/// A reload tries the addresses that a restart would listen at, and no others.
#[test]
fn a_reload_does_not_try_an_address_whose_socket_is_passed() {
    let dir = TempDir::new().unwrap();
    let [main, dcgm, taken, also_taken] = [(); 4].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let address = main.local_addr().unwrap();
    let [taken, also_taken] = [&taken, &also_taken].map(|listener| listener.local_addr().unwrap());
    let sockets = vec![("dcgm.listen", OwnedFd::from(dcgm)), ("http.listen", OwnedFd::from(main))];
    let mut daemon = start(&dir, &[], sockets);
    let pid = i32::try_from(daemon.id()).unwrap();
    assert!(answer(connect(address, "/livez")).starts_with("HTTP/1.1 200 "));
    let text = format!(
        "http.listen = '{taken}'\ndcgm.listen = '{also_taken}'\nhealth.expected_gpus = 5\nlog.level = 'error'\n"
    );
    fs::write(config_file(&dir), text).unwrap();
    signal(pid, Signal::SIGHUP);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let page = answer(connect(address, "/metrics"));
        assert!(!page.contains("\ngpu_exporter_config_last_reload_successful 0"), "{page}");
        if page.contains("\ngpu_devices_declared 5") {
            break;
        }
        assert!(Instant::now() < deadline, "{page}");
    }
    signal(pid, Signal::SIGTERM);
    let status = daemon.wait().unwrap();
    assert!(status.success(), "{status}");
}

#[test]
fn a_socket_of_no_use_is_an_error_that_names_it() {
    let dir = TempDir::new().unwrap();
    let tcp = || OwnedFd::from(TcpListener::bind("127.0.0.1:0").unwrap());
    let unix = OwnedFd::from(UnixListener::bind(dir.path().join("unix.sock")).unwrap());
    let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let connection = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        OwnedFd::from(TcpStream::connect(listener.local_addr().unwrap()).unwrap())
    };
    let cases = [
        ("gpu-node-exporter.socket", tcp(), "FileDescriptorName"),
        ("http.listen", unix, "(`http.listen`) is not a listening TCP socket"),
        ("dcgm.listen", file, "(`dcgm.listen`) is not a listening TCP socket"),
        ("dcgm.listen", connection, "is not a listening TCP socket"),
    ];
    for (name, socket, wanted) in cases {
        let output = start(&dir, &[], vec![(name, socket)]).wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(wanted) && said.contains(name), "{said}");
    }
}
