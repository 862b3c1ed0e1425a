//! A daemon on a simulated node, and its pages as tests read them.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, SystemTime};

use tempfile::TempDir;

/// No condition of a test takes longer on the slowest machine that runs it.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Between two looks at a page, which keeps daemon and test busy, and other tests waiting.
const BETWEEN_PAGES: Duration = Duration::from_millis(100);

/// Tests look at all metrics; which are served by default is a test of its own.
const ALL_GROUPS: (&str, &str) = ("METRICS__GROUPS", "all");

/// A running daemon.
pub struct Node {
    process: Child,
    addr: SocketAddr,
    dir: TempDir,
    state: simgpu::State,
    lines: Receiver<String>,
    /// What the daemon and its commands are configured with.
    environment: Vec<(String, OsString)>,
    ended: bool,
}

/// How a daemon is to be started. Cadences are short, so that tests are.
pub struct Setup {
    scenario: PathBuf,
    settings: BTreeMap<String, String>,
    library_present: bool,
    config_file: Option<PathBuf>,
    state_dir: Option<PathBuf>,
    kernel_log: Option<PathBuf>,
    in_maintenance: bool,
    restrain: Option<fn(&mut Command)>,
    listen: SocketAddr,
}

impl Setup {
    /// On this scenario file, given from the repository's root.
    pub fn new(scenario: &str) -> Setup {
        let fast = [
            ("SAMPLER__FAST_INTERVAL", "50ms"),
            ("SAMPLER__NORMAL_INTERVAL", "100ms"),
            ("SAMPLER__SLOW_INTERVAL", "200ms"),
            ("SAMPLER__RARE_INTERVAL", "400ms"),
            ("SAMPLER__CALL_TIMEOUT", "1s"),
            ("SAMPLER__INIT_TIMEOUT", "1s"),
            ("SAMPLER__DRIVER_RETRY_INTERVAL", "100ms"),
            ("SAMPLER__RESTART_BACKOFF", "20ms"),
            ("SAMPLER__RESTART_BACKOFF_MAX", "100ms"),
            ("METRICS__PUBLISH_INTERVAL", "100ms"),
            ALL_GROUPS,
        ];
        Setup {
            scenario: Path::new(env!("CARGO_MANIFEST_DIR")).join(scenario),
            settings: fast.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            library_present: true,
            config_file: None,
            state_dir: None,
            kernel_log: None,
            in_maintenance: false,
            restrain: None,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        }
    }

    /// At this address, which another daemon had.
    #[allow(dead_code, reason = "tests/otel starts a daemon again")]
    pub fn at(mut self, listen: SocketAddr) -> Setup {
        self.listen = listen;
        self
    }

    /// With what the daemon may not do: a change to how it is started.
    pub fn restrained(mut self, restrain: fn(&mut Command)) -> Setup {
        self.restrain = Some(restrain);
        self
    }

    /// With this setting, as `SECTION__KEY`.
    pub fn with(mut self, key: &str, value: &str) -> Setup {
        self.settings.insert(key.to_owned(), value.to_owned());
        self
    }

    /// With the product's own cadences and deadlines.
    pub fn with_default_times(mut self) -> Setup {
        self.settings.retain(|key, _| key == ALL_GROUPS.0);
        self
    }

    /// With this file, and no cadences, deadlines or groups but its own.
    #[allow(dead_code, reason = "only tests/e2e reloads them")]
    pub fn with_all_of_file(mut self, file: PathBuf) -> Setup {
        self.settings.clear();
        self.with_config_file(file)
    }

    /// With this configuration file, below the settings of the test.
    pub fn with_config_file(mut self, file: PathBuf) -> Setup {
        self.config_file = Some(file);
        self
    }

    /// With the state that another daemon left.
    pub fn with_state_of(mut self, other: &Node) -> Setup {
        self.state_dir = Some(other.state_dir());
        self
    }

    /// With its state in this folder.
    pub fn with_state_in(mut self, dir: PathBuf) -> Setup {
        self.state_dir = Some(dir);
        self
    }

    /// With a driver that prints to this file.
    pub fn with_kernel_log(mut self, file: PathBuf) -> Setup {
        self.kernel_log = Some(file);
        self
    }

    /// In a maintenance window.
    pub fn in_maintenance(mut self) -> Setup {
        self.in_maintenance = true;
        self
    }

    /// Without the driver's library; [`Node::install_library`] brings it.
    pub fn without_library(mut self) -> Setup {
        self.library_present = false;
        self
    }

    /// Starts it and waits until it serves.
    pub fn start(self) -> Node {
        let dir = TempDir::new().unwrap();
        if self.library_present {
            install_library(dir.path());
        }
        install_root(&dir.path().join("root"));
        if self.in_maintenance {
            open_window(&dir.path().join("root"));
        }
        install_cuda(dir.path());
        let state = simgpu::State::open(dir.path().join("sim-state")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-node-exporter"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("GPU_NODE_EXPORTER__") {
                command.env_remove(name);
            }
        }
        // The kernel log of the machine that runs the tests is none of theirs.
        command.env("GPU_NODE_EXPORTER__EVENTS__KERNEL_LOG", "false");
        command.env("GPU_NODE_EXPORTER__HOST__ROOT", dir.path().join("root"));
        // Nor is what its CPUs do.
        command.env("GPU_NODE_EXPORTER__CPU__ENABLED", "false");
        // Nor are its CUDA driver and what keeps canaries away from its GPUs.
        command.env("GPU_NODE_EXPORTER__CANARY__CUDA_LIBRARY", cuda_library(dir.path()));
        command.env("GPU_NODE_EXPORTER__CANARY__LOCK_FILE", dir.path().join("canary.lock"));
        command.env("GPU_NODE_EXPORTER__HEALTH__SOCKET", dir.path().join("health.sock"));
        command.env("GPU_NODE_EXPORTER__HEALTH__NVRX_SOCKET", dir.path().join("nvrx.sock"));
        for (key, value) in &self.settings {
            command.env(format!("GPU_NODE_EXPORTER__{key}"), value);
        }
        let state_dir = self.state_dir.unwrap_or_else(|| dir.path().join("state"));
        command
            .env("GPU_NODE_EXPORTER__STATE__DIR", &state_dir)
            .env("GPU_NODE_EXPORTER__CONTROL__SOCKET", dir.path().join("control.sock"))
            .envs(self.kernel_log.map(|file| ("GPU_SIM_KMSG", file)))
            .env("GPU_SIM_SCENARIO", &self.scenario)
            .env("GPU_SIM_STATE", dir.path().join("sim-state"));
        let environment = command
            .get_envs()
            .filter_map(|(key, value)| Some((key.to_str()?.to_owned(), value?.to_owned())))
            .collect();
        if let Some(restrain) = self.restrain {
            restrain(&mut command);
        }
        let mut process = command
            .args(["serve", "--listen", &self.listen.to_string(), "--nvml-library"])
            .arg(library(dir.path()))
            .args(self.config_file.iter().flat_map(|file| [Path::new("--config"), file]))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let (sender, lines) = channel();
        let again = sender.clone();
        let stderr = process.stderr.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut said = Vec::new();
        let addr = loop {
            let line = lines
                .recv_timeout(PATIENCE)
                .unwrap_or_else(|_| panic!("the daemon does not serve; it said: {said:#?}"));
            if let Some((_, rest)) = line.split_once("serving http") {
                break rest.trim_start_matches(['s', ':', '/']).trim_end_matches('/').parse().unwrap();
            }
            said.push(line);
        };
        // What was said before belongs to the journal, too.
        said.into_iter().for_each(|line| again.send(line).expect("the receiver is here"));
        Node { process, addr, dir, state, lines, environment, ended: false }
    }
}

/// The files of a simulated host: no kernel module of NVIDIA's, and the same boot for every node.
fn install_root(root: &Path) {
    for folder in ["proc/sys/kernel/random", "sys/module", "dev"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    fs::write(root.join("proc/stat"), "cpu 1 2 3 4\nbtime 1700000000\n").unwrap();
    fs::write(root.join("proc/sys/kernel/random/boot_id"), "11111111-2222\n").unwrap();
}

/// Adds the file of a maintenance window that is open for an hour.
pub fn open_window(root: &Path) -> PathBuf {
    let dir = root.join("etc/gpu-node-exporter/windows.d");
    fs::create_dir_all(&dir).unwrap();
    let (start, file) = (humantime::format_rfc3339_seconds(SystemTime::now()), dir.join("now.toml"));
    fs::write(&file, format!("start = {start}\nfor = '1h'\nreason = 'disk'\n")).unwrap();
    file
}

fn install_cuda(dir: &Path) {
    fs::create_dir_all(dir.join("cuda")).unwrap();
    symlink(simgpu::library_path().unwrap(), cuda_library(dir)).unwrap();
}

fn library(dir: &Path) -> PathBuf {
    dir.join("lib/libnvidia-ml.so.1")
}

fn cuda_library(dir: &Path) -> PathBuf {
    dir.join("cuda/libcuda.so.1")
}

fn install_library(dir: &Path) {
    fs::create_dir_all(dir.join("lib")).unwrap();
    let simulated = simgpu::library_path().unwrap();
    symlink(&simulated, library(dir)).unwrap();
    // CUDA's driver library is there as long as the node is.
    for name in ["libcuda.so.1", "libcuda.so"] {
        let file = library(dir).with_file_name(name);
        if !file.is_symlink() {
            symlink(&simulated, file).unwrap();
        }
    }
}

impl Node {
    /// A daemon on this scenario, ready.
    pub fn start(scenario: &str) -> Node {
        let node = Setup::new(scenario).start();
        node.wait_ready();
        node
    }

    /// Where it serves.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The daemon's process id.
    pub fn pid(&self) -> i32 {
        self.process.id() as i32
    }

    /// The control socket.
    pub fn control_socket(&self) -> PathBuf {
        self.dir.path().join("control.sock")
    }

    /// The socket on which every user may ask for health.
    pub fn health_socket(&self) -> PathBuf {
        self.dir.path().join("health.sock")
    }

    /// The socket of NVRx's health check.
    pub fn nvrx_socket(&self) -> PathBuf {
        self.dir.path().join("nvrx.sock")
    }

    /// The folder under which the simulated host's files are.
    pub fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    /// A command of the product on this node, with this daemon's configuration.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-node-exporter"));
        for (key, value) in &self.environment {
            command.env(key, value);
        }
        command.arg("--nvml-library").arg(library(self.dir.path())).args(args).stdin(Stdio::null());
        command
    }

    /// Brings the driver's library as a file of this version.
    pub fn install_library_of_version(&self, version: &str) {
        let file = library(self.dir.path()).with_file_name(format!("libnvidia-ml.so.{version}"));
        fs::copy(simgpu::library_path().unwrap(), &file).unwrap();
        symlink(file.file_name().unwrap(), library(self.dir.path())).unwrap();
    }

    /// The folder of the state files.
    pub fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// Waits until a process has ended.
    pub fn wait_until_gone(&self, pid: i32) {
        let deadline = Instant::now() + PATIENCE;
        while alive(pid) {
            assert!(Instant::now() < deadline, "process {pid} does not end");
            pause();
        }
    }

    /// The simulator's controls.
    pub fn sim(&self) -> &simgpu::State {
        &self.state
    }

    /// Brings the driver's library.
    pub fn install_library(&self) {
        install_library(self.dir.path());
    }

    /// Takes the driver's library away.
    pub fn remove_library(&self) {
        fs::remove_file(library(self.dir.path())).unwrap();
    }

    /// Waits for `/readyz`.
    pub fn wait_ready(&self) {
        self.wait_for("ready", |node| node.get("/readyz").0 == 200);
    }

    /// Gives status and body of a page.
    pub fn get(&self, path: &str) -> (u16, String) {
        let (status, body, _) = self.get_timed(path);
        (status, body)
    }

    /// The same with the time it took, connection included.
    pub fn get_timed(&self, path: &str) -> (u16, String, Duration) {
        get_timed(self.addr, path)
    }

    /// The metrics page, parsed.
    pub fn metrics(&self) -> Metrics {
        let (status, body) = self.get("/metrics");
        assert_eq!(status, 200, "{body}");
        Metrics::parse(&body)
    }

    /// The JSON snapshot.
    pub fn snapshot(&self) -> serde_json::Value {
        let (status, body) = self.get("/api/v1/snapshot");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    /// All series, of groups that are off too: the numbers of the JSON snapshot.
    pub fn everything(&self) -> Metrics {
        let snapshot = self.snapshot();
        let series = |metric: &serde_json::Value| {
            let labels = metric["labels"].as_object()?.iter();
            let labels = labels.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())));
            Some((metric["name"].as_str()?.to_owned(), labels.collect(), metric["value"].as_f64()?))
        };
        Metrics(snapshot["metrics"].as_array().into_iter().flatten().filter_map(series).collect())
    }

    /// Waits until the condition holds.
    pub fn wait_for(&self, what: &str, condition: impl Fn(&Node) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition(self) {
            if Instant::now() > deadline {
                let said: Vec<String> = self.lines.try_iter().collect();
                panic!(
                    "{what} did not come in {PATIENCE:?}; the daemon said: {said:#?}\n{}",
                    self.get("/metrics").1
                );
            }
            pause_for(BETWEEN_PAGES);
        }
    }

    /// Waits for a line of the journal with all of these in it, and gives that line.
    pub fn wait_said(&self, parts: &[&str]) -> String {
        let deadline = Instant::now() + PATIENCE;
        let mut said = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                panic!("{parts:?} was not said in {PATIENCE:?}, but {said:#?}\n{}", self.get("/metrics").1)
            };
            if parts.iter().all(|part| line.contains(part)) {
                return line;
            }
            said.push(line);
        }
    }

    /// Waits until the metrics page fulfils the condition, and gives that page.
    pub fn wait_metrics(&self, what: &str, condition: impl Fn(&Metrics) -> bool) -> Metrics {
        let page = OnceCell::new();
        self.wait_for(what, |node| {
            let metrics = node.metrics();
            condition(&metrics) && page.set(metrics).is_ok()
        });
        page.into_inner().unwrap()
    }

    /// Checks that the condition holds in every publication for so long: tests publish every 100 ms.
    pub fn hold(&self, what: &str, how_long: Duration, condition: impl Fn(&Node) -> bool) {
        let deadline = Instant::now() + how_long;
        while Instant::now() < deadline {
            assert!(condition(self), "{what}\n{}", self.get("/metrics").1);
            pause_for(BETWEEN_PAGES / 2);
        }
    }

    /// Sampler processes of this daemon.
    pub fn samplers(&self) -> Vec<i32> {
        let role = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).nth(1) == Some(b"sampler")
        };
        children(self.pid()).into_iter().filter(role).collect()
    }

    /// SIGTERM; gives the exit status and how long the end took.
    pub fn terminate(&mut self) -> (ExitStatus, Duration) {
        let started = Instant::now();
        signal(self.pid(), nix::sys::signal::Signal::SIGTERM);
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                self.ended = true;
                return (status, started.elapsed());
            }
            assert!(started.elapsed() < PATIENCE, "the daemon does not end");
            pause();
        }
    }
}

/// Gives status and body of a page, and the time it took, connection included.
pub fn get_timed(addr: SocketAddr, path: &str) -> (u16, String, Duration) {
    let started = Instant::now();
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let took = started.elapsed();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("an HTTP answer");
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned(), took)
}

impl Drop for Node {
    fn drop(&mut self) {
        // A hang would outlive the test, because a sampler in a call is never killed. Scenarios without a
        // hang have no such gate.
        let _ = self.state.open_gate("release");
        if !self.ended {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}

/// Sends a signal.
pub fn signal(pid: i32, signal: nix::sys::signal::Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).unwrap();
}

/// Whether a process is there (a zombie is not).
pub fn alive(pid: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    let mut fields = stat.rsplit(") ").next().unwrap_or("").split(' ');
    // The first thread may be over before the others, which hold files and sockets open. proc(5): state is field 3, num_threads 20.
    let is_over = fields.next() == Some("Z");
    let threads: u32 = fields.nth(16).and_then(|threads| threads.parse().ok()).unwrap_or(0);
    !is_over || threads > 1
}

fn children(parent: i32) -> Vec<i32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{parent}/task")) else { return Vec::new() };
    let mut pids: Vec<i32> = tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|text| text.split_whitespace().filter_map(|p| p.parse().ok()).collect::<Vec<i32>>())
        .filter(|pid| alive(*pid))
        .collect();
    pids.sort_unstable();
    pids
}

/// A short wait between two looks at a condition.
pub fn pause() {
    pause_for(Duration::from_millis(5));
}

/// A wait between two questions to a server whose answers change once a second: shorter ones would keep it busy.
#[allow(dead_code, reason = "only tests/e2e asks a Prometheus")]
pub fn pause_between_queries() {
    pause_for(Duration::from_millis(200));
}

fn pause_for(time: Duration) {
    let (_sender, receiver) = channel::<()>();
    let _ = receiver.recv_timeout(time);
}

/// A metrics page.
#[derive(Debug, Clone)]
pub struct Metrics(pub Vec<(String, BTreeMap<String, String>, f64)>);

impl Metrics {
    /// Parses text format 0.0.4.
    pub fn parse(page: &str) -> Metrics {
        let lines: Vec<&str> = page.lines().filter(|l| !l.starts_with('#') && !l.is_empty()).collect();
        let mut seen = std::collections::HashSet::new();
        for line in &lines {
            let series = line.rsplit_once(' ').expect("a value").0;
            assert!(seen.insert(series), "{series} is on the page twice");
        }
        let series = |line: &str| {
            let (name, sample) = dcgm::parse::sample(line).unwrap_or_else(|fault| panic!("{fault}: {line}"));
            (name.to_owned(), sample.labels, sample.value)
        };
        Metrics(lines.into_iter().map(series).collect())
    }

    /// The value of the first series of this name with at least these labels.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        self.all(name, labels).first().copied()
    }

    /// The values of all series of this name with at least these labels.
    pub fn all(&self, name: &str, labels: &[(&str, &str)]) -> Vec<f64> {
        self.0
            .iter()
            .filter(|(n, l, _)| {
                n == name && labels.iter().all(|(k, v)| l.get(*k).is_some_and(|have| have == v))
            })
            .map(|(_, _, value)| *value)
            .collect()
    }
}
