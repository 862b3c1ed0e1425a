//! A daemon on a simulated node, and scrapers of it.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running daemon.
pub struct Daemon {
    process: Child,
    /// Where it serves.
    pub addr: SocketAddr,
    /// The simulator's controls.
    pub state: simgpu::State,
    dir: tempfile::TempDir,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // SIGKILL of the daemon closes the samplers' pipes, and they end.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Daemon {
    /// Starts it at default settings and waits until it serves.
    pub fn start(scenario: &Path, binary: Option<&PathBuf>) -> Result<Daemon, Box<dyn Error>> {
        Daemon::start_with(scenario, binary, &[])
    }

    /// The same with these settings, each as `SECTION__KEY` and value.
    pub fn start_with(
        scenario: &Path,
        binary: Option<&PathBuf>,
        settings: &[(&str, &str)],
    ) -> Result<Daemon, Box<dyn Error>> {
        let dir = tempfile::tempdir()?;
        let library = dir.path().join("libnvidia-ml.so.1");
        symlink(simgpu::library_path().map_err(|e| e.to_string())?, &library)?;
        let state = simgpu::State::open(dir.path().join("sim")).map_err(|e| e.to_string())?;
        let mut process = Command::new(super::program(binary)?)
            .args(["serve", "--listen", "127.0.0.1:0", "--nvml-library"])
            .arg(&library)
            .arg("--state-dir")
            .arg(dir.path().join("state"))
            .envs(sockets(dir.path()))
            .envs(settings.iter().map(|(key, value)| (format!("GPU_NODE_EXPORTER__{key}"), *value)))
            .env("GPU_SIM_SCENARIO", scenario.canonicalize()?)
            .env("GPU_SIM_STATE", dir.path().join("sim"))
            .stderr(Stdio::piped())
            .spawn()?;
        let mut stderr = BufReader::new(process.stderr.take().ok_or("no stderr")?);
        let addr = loop {
            let mut line = String::new();
            if stderr.read_line(&mut line)? == 0 {
                return Err("the daemon does not serve".into());
            }
            if let Some((_, rest)) = line.split_once("serving http://") {
                break rest.trim().trim_end_matches('/').parse()?;
            }
        };
        // What else it says is read and thrown away, so that it never waits for a reader.
        std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
        Ok(Daemon { process, addr, state, dir })
    }

    /// The settings that commands find the daemon by.
    pub fn sockets(&self) -> [(&'static str, PathBuf); 2] {
        sockets(self.dir.path())
    }

    /// Process id.
    pub fn pid(&self) -> Result<i32, Box<dyn Error>> {
        Ok(i32::try_from(self.process.id())?)
    }

    /// SIGTERM; gives the seconds until the end, and the exit status.
    pub fn terminate(&mut self) -> Result<(f64, String), Box<dyn Error>> {
        let started = Instant::now();
        let asked = Command::new("kill").args(["-TERM", &self.process.id().to_string()]).status()?;
        if !asked.success() {
            return Err("no signal could be sent".into());
        }
        let status = self.process.wait()?;
        Ok((started.elapsed().as_secs_f64(), status.to_string()))
    }
}

fn sockets(dir: &Path) -> [(&'static str, PathBuf); 2] {
    [
        ("GPU_NODE_EXPORTER__CONTROL__SOCKET", dir.join("control.sock")),
        ("GPU_NODE_EXPORTER__HEALTH__SOCKET", dir.join("health.sock")),
    ]
}

/// A scraper on a kept connection.
pub struct Scraper(BufReader<TcpStream>);

impl Scraper {
    /// Connects.
    pub fn connect(addr: SocketAddr) -> std::io::Result<Scraper> {
        Scraper::patient(addr, Duration::from_secs(5))
    }

    /// Connects to a server whose answers take at most so long.
    pub fn patient(addr: SocketAddr, patience: Duration) -> std::io::Result<Scraper> {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        Ok(Scraper(BufReader::with_capacity(256 * 1024, stream)))
    }

    /// Scrapes OpenMetrics in gzip. Gives the seconds from the request's first byte to the answer's last,
    /// and the length of its body.
    pub fn scrape(&mut self) -> std::io::Result<(f64, usize)> {
        let accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
        let headers = format!("Accept-Encoding: gzip\r\nAccept: {accept}\r\n");
        let (seconds, body) = self.get("/metrics", &headers)?;
        Ok((seconds, body.len()))
    }

    /// Scrapes the text format. Gives the seconds and the page.
    pub fn page(&mut self) -> std::io::Result<(f64, String)> {
        let (seconds, body) = self.get("/metrics", "")?;
        Ok((seconds, String::from_utf8(body).map_err(std::io::Error::other)?))
    }

    /// Asks for a path. Gives the seconds and the body; an error unless the status is 200.
    pub fn get(&mut self, path: &str, headers: &str) -> std::io::Result<(f64, Vec<u8>)> {
        self.ask("GET", path, headers)
    }

    /// The same with another method.
    pub fn ask(&mut self, method: &str, path: &str, headers: &str) -> std::io::Result<(f64, Vec<u8>)> {
        let request = format!("{method} {path} HTTP/1.1\r\nHost: bench\r\n{headers}\r\n");
        let started = Instant::now();
        self.0.get_mut().write_all(request.as_bytes())?;
        let mut length = 0;
        let mut first = true;
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line)?;
            if first && !line.starts_with("HTTP/1.1 200") {
                return Err(std::io::Error::other(line));
            }
            first = false;
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().map_err(std::io::Error::other)?;
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body)?;
        Ok((started.elapsed().as_secs_f64(), body))
    }
}

/// Waits so long. Parking may end early, and does after a scope of threads.
pub fn wait(time: Duration) {
    let until = Instant::now() + time;
    while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
}
