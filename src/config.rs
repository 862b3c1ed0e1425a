//! What the operator wants: every setting, its default and what it may hold.
//!
//! The doc comments here are the documentation of the settings; `systemd/gpu-node-exporter.toml` says
//! the same to the person with an editor, and a test holds the two together. [`load`] reads the layers
//! (file, environment, flags). Nothing here binds a port, starts a thread or touches a driver.

mod load;
pub mod mig_layout;
mod problems;
mod rules;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::catalog::{CanaryCheck, CanaryMode, MetricGroup, PerfEvent};
pub use load::{DEFAULT_FILE, ENV_PREFIX, Loaded, Overrides, load};
pub use problems::{ConfigErrors, Problem};

/// The whole configuration, checked when it comes from [`Config::load`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// `[http]`: where and how pages are served.
    pub http: Http,
    /// `[metrics]`: what is published.
    pub metrics: Metrics,
    /// `[ledger]`: how often a new state is published.
    pub ledger: Ledger,
    /// `[sampler]`: the process that talks to the driver.
    pub sampler: Sampler,
    /// `[gpm]`: the profiling counters.
    pub gpm: Gpm,
    /// `[mig]`: how GPUs should be divided.
    pub mig: Mig,
    /// `[processes]`: processes on the GPUs.
    pub processes: Processes,
    /// `[events]`: faults and what else happens.
    pub events: Events,
    /// `[canary]`: small CUDA programs that prove that a GPU computes.
    pub canary: Canary,
    /// `[topology]`: the machine around the GPUs.
    pub topology: Topology,
    /// `[owners]`: whose work is on the GPUs.
    pub owners: Owners,
    /// `[cpu]`: events counted on the CPUs.
    pub cpu: Cpu,
    /// `[windows]`: planned work.
    pub windows: Windows,
    /// `[health]`: what a healthy node has.
    pub health: Health,
    /// `[driver]`: which driver the node should have.
    pub driver: Driver,
    /// `[state]`: what is kept over restarts.
    pub state: State,
    /// `[host]`: where the host's files are looked for.
    pub host: Host,
    /// `[control]`: the local socket.
    pub control: Control,
    /// `[log]`: what is written to standard error.
    pub log: Log,
}

impl Config {
    /// Reads file, environment and flags; see [`load`].
    pub fn load(overrides: &Overrides) -> Result<Self, ConfigErrors> {
        load(overrides).map(|loaded| loaded.config)
    }

    /// The groups of metrics that `/metrics` serves: single processes have theirs where they are read.
    pub fn served_groups(&self) -> Vec<MetricGroup> {
        let wanted = &self.metrics.groups;
        let on = |group: &MetricGroup| {
            wanted.contains(group)
                || wanted.contains(&MetricGroup::All)
                || (*group == MetricGroup::Process && self.processes.per_process)
        };
        MetricGroup::ALL.iter().copied().filter(on).collect()
    }
}

/// `[http]`: where and how pages are served.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Http {
    /// Address to serve on: `IP:PORT`, `[IPv6]:PORT`, or `:PORT` for all addresses of both families.
    pub listen: Listen,
    /// Connections open at one time; a further one is closed at once. 1 to 10000.
    pub max_connections: u32,
    /// Longest wait for a client to send its request. 100ms to 10m.
    #[serde(with = "humantime_serde")]
    pub read_timeout: Duration,
    /// Longest wait for a client to take its answer. 100ms to 10m.
    #[serde(with = "humantime_serde")]
    pub write_timeout: Duration,
}

impl Default for Http {
    fn default() -> Self {
        Self {
            listen: Listen(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 9408)),
            max_connections: 128,
            read_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(10),
        }
    }
}

/// `[metrics]`: what is published. A metric is published if a pattern of `include` matches its name and
/// none of `exclude` does. In patterns `*` stands for any text, `?` for one character.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// Patterns of metric names to publish.
    pub include: Vec<String>,
    /// Patterns of metric names to leave out; stronger than `include`.
    pub exclude: Vec<String>,
    /// Groups of metrics that `/metrics` serves beside the default set (`docs/METRICS.md`); `all` for every group. What
    /// `include` and `exclude` leave out stays out.
    pub groups: Vec<MetricGroup>,
    /// Most series one page may hold; those above are dropped and counted. 100 to 1000000.
    pub max_series: u32,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { include: vec!["*".into()], exclude: Vec::new(), groups: Vec::new(), max_series: 20_000 }
    }
}

impl Metrics {
    /// Whether the metric of this name is to be published. Compiles the patterns anew: ask once a
    /// metric at start, not once a series.
    pub fn publishes(&self, name: &str) -> bool {
        let any = |patterns: &[String]| {
            patterns.iter().filter_map(|p| glob::Pattern::new(p).ok()).any(|p| p.matches(name))
        };
        any(&self.include) && !any(&self.exclude)
    }
}

/// `[ledger]`: how often a new state is published.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ledger {
    /// Time between two published states; scrapes in between see the same one. 50ms to 60s.
    #[serde(with = "humantime_serde")]
    pub publish_interval: Duration,
}

impl Default for Ledger {
    fn default() -> Self {
        Self { publish_interval: Duration::from_secs(1) }
    }
}

/// `[sampler]`: the process that talks to the driver. The four intervals are those of the tiers named
/// in `docs/METRICS.md`, and must not fall from one to the next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampler {
    /// The NVML library; empty for the loader's own search of `libnvidia-ml.so.1`.
    pub nvml_library: PathBuf,
    /// Interval of the fast tier. 10ms to 10s.
    #[serde(with = "humantime_serde")]
    pub fast_interval: Duration,
    /// Interval of the normal tier. 10ms to 60s.
    #[serde(with = "humantime_serde")]
    pub normal_interval: Duration,
    /// Interval of the samples tier. 10ms to 60s; the driver keeps some 2.4 s of power samples.
    #[serde(with = "humantime_serde")]
    pub drain_interval: Duration,
    /// Interval of the slow tier. 10ms to 10m.
    #[serde(with = "humantime_serde")]
    pub slow_interval: Duration,
    /// Interval of the rare tier. 10ms to 1h.
    #[serde(with = "humantime_serde")]
    pub rare_interval: Duration,
    /// Interval of the nvlink tier. 10ms to 1h.
    #[serde(with = "humantime_serde")]
    pub links_interval: Duration,
    /// A driver call that takes longer counts as stuck. 100ms to 60s.
    #[serde(with = "humantime_serde")]
    pub call_deadline: Duration,
    /// The same for the calls that open the driver and a GPU, which may have to wake it. 100ms to 10m.
    #[serde(with = "humantime_serde")]
    pub init_deadline: Duration,
    /// Pause before a missing driver is looked for again. 50ms to 10m.
    #[serde(with = "humantime_serde")]
    pub driver_retry_interval: Duration,
    /// Pause before a sampler that ended is started again; doubled each time. 10ms to 60s.
    #[serde(with = "humantime_serde")]
    pub restart_backoff: Duration,
    /// Where the doubling ends. At least `restart_backoff`, at most 10m.
    #[serde(with = "humantime_serde")]
    pub restart_backoff_max: Duration,
}

impl Default for Sampler {
    fn default() -> Self {
        Self {
            nvml_library: PathBuf::new(),
            fast_interval: Duration::from_millis(100),
            normal_interval: Duration::from_secs(1),
            drain_interval: Duration::from_secs(2),
            slow_interval: Duration::from_secs(10),
            rare_interval: Duration::from_secs(60),
            links_interval: Duration::from_secs(600),
            call_deadline: Duration::from_secs(3),
            init_deadline: Duration::from_secs(20),
            driver_retry_interval: Duration::from_secs(5),
            restart_backoff: Duration::from_secs(1),
            restart_backoff_max: Duration::from_secs(30),
        }
    }
}

/// `[gpm]`: the profiling counters (GPM) of Hopper and later, which have one reader at a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gpm {
    /// Whether they are read. `gpu-node-exporter gpm off` gives them to a profiler for a while.
    pub enabled: bool,
}

impl Default for Gpm {
    fn default() -> Self {
        Self { enabled: true }
    }
}

/// `[mig]`: how GPUs should be divided.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mig {
    /// File with declared layouts, in nvidia-mig-parted's form; empty for none.
    pub layout_file: PathBuf,
    /// Name of the layout in that file that this node should have. Needed if the file has several.
    pub layout: String,
}

/// `[processes]`: processes on the GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Processes {
    /// Whether each process on a GPU has series of its own. They come and go with the processes.
    pub per_process: bool,
    /// Most processes of one GPU with series of their own: those with the most memory. 1 to 1000.
    pub most: u32,
}

impl Default for Processes {
    fn default() -> Self {
        Self { per_process: false, most: 32 }
    }
}

/// `[events]`: faults and what else happens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Events {
    /// Whether the kernel log is read for faults.
    pub kernel_log: bool,
    /// Newest events kept for `/api/v1/events`. 10 to 10000.
    pub keep: u32,
}

impl Default for Events {
    fn default() -> Self {
        Self { kernel_log: true, keep: 500 }
    }
}

/// `[canary]`: small CUDA programs that prove that a GPU computes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Canary {
    /// When it runs: `off`, `idle` (on each GPU now and then while nobody uses it), `after_job` (as `idle`,
    /// and soon after a job has left), `on_demand` (only by `gpu-node-exporter canary`).
    pub mode: CanaryMode,
    /// Time between two runs on one GPU; each is moved by up to a fifth of it at random. 1s to 1day.
    #[serde(with = "humantime_serde")]
    pub interval: Duration,
    /// How long the GPU must have been without work. 1s to 1day.
    #[serde(with = "humantime_serde")]
    pub idle_for: Duration,
    /// What is checked.
    pub checks: Vec<CanaryCheck>,
    /// Device memory used at most beside the context, in MiB; doubled where eight times the L2 cache need it.
    /// 8 to 4096.
    pub memory_mib: u32,
    /// Largest share of a GPU's time, in millionths. 1 to 100000.
    pub duty_ppm: u32,
    /// Longest time without progress before the run counts as hung. 1s to 10m.
    #[serde(with = "humantime_serde")]
    pub hung_after: Duration,
    /// How long a canary process that was asked to end may take before it is killed. 1s to 1h.
    #[serde(with = "humantime_serde")]
    pub kill_after: Duration,
    /// The CUDA driver library; empty for the loader's own search of `libcuda.so.1`. Its name must be
    /// `libcuda.so.1` or `libcuda.so`.
    pub cuda_library: PathBuf,
    /// File that is locked (flock) while a canary runs. Who holds its lock keeps the canary away.
    pub interlock: PathBuf,
    /// File that keeps the canary away while it exists: touch it for a maintenance window.
    pub maintenance_file: PathBuf,
}

impl Default for Canary {
    fn default() -> Self {
        use CanaryCheck::{HbmRead, HbmWalk, Init, L2, Launch, Pcie, SmRate, SmSdc, Tensor};
        Self {
            mode: CanaryMode::Idle,
            interval: Duration::from_secs(30 * 60),
            idle_for: Duration::from_secs(5 * 60),
            checks: vec![Init, SmRate, Tensor, SmSdc, HbmRead, HbmWalk, L2, Pcie, Launch],
            memory_mib: 256,
            duty_ppm: 1000,
            hung_after: Duration::from_secs(60),
            kill_after: Duration::from_secs(5 * 60),
            cuda_library: PathBuf::new(),
            interlock: "/run/gpu-node-exporter/canary.lock".into(),
            maintenance_file: "/run/gpu-node-exporter/maintenance".into(),
        }
    }
}

/// `[topology]`: the machine around the GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Topology {
    /// Whether the machine is looked at, by a process of its own.
    pub enabled: bool,
    /// Time between two looks at links and network devices; the rest is looked at again when GPUs come or go.
    /// 1s to 1day.
    #[serde(with = "humantime_serde")]
    pub interval: Duration,
    /// File with the topology the machine should have (`gpu-node-exporter topology --format json`); empty for
    /// none.
    pub declared: PathBuf,
}

impl Default for Topology {
    fn default() -> Self {
        Self { enabled: true, interval: Duration::from_secs(60), declared: PathBuf::new() }
    }
}

/// `[owners]`: whose work is on the GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Owners {
    /// Whether it is asked whom the processes on the GPUs work for.
    pub enabled: bool,
    /// The kubelet's pod-resources socket; empty if it is not to be asked.
    pub kubelet_socket: PathBuf,
    /// How long the counters of an owner stay after its end, so that every scraper sees their last value. 1s to
    /// 1day.
    #[serde(with = "humantime_serde")]
    pub keep: Duration,
    /// Most owners with series of their own, 1 to 1000.
    pub most: u32,
    /// Longest wait for what a process or the kubelet says. 10ms to 1m.
    #[serde(with = "humantime_serde")]
    pub read_deadline: Duration,
}

impl Default for Owners {
    fn default() -> Self {
        Self {
            enabled: true,
            kubelet_socket: "/var/lib/kubelet/pod-resources/kubelet.sock".into(),
            keep: Duration::from_secs(15 * 60),
            most: 64,
            read_deadline: Duration::from_secs(1),
        }
    }
}

/// `[cpu]`: events counted on the CPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// Whether they are counted.
    pub enabled: bool,
    /// Time between two readings, 1s to 10m.
    #[serde(with = "humantime_serde")]
    pub interval: Duration,
    /// What is counted, where it can be.
    pub events: Vec<PerfEvent>,
    /// Whether they are counted for the control group of each owner too.
    pub per_owner: bool,
}

impl Default for Cpu {
    fn default() -> Self {
        use PerfEvent::*;
        Self {
            enabled: true,
            interval: Duration::from_secs(10),
            events: vec![
                ContextSwitches,
                CpuMigrations,
                PageFaults,
                MajorFaults,
                Cycles,
                Instructions,
                LlcMisses,
                BranchMisses,
            ],
            per_owner: false,
        }
    }
}

/// `[windows]`: planned work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Windows {
    /// Folder of drop-in files, one a window (`NAME.toml`); empty for none. Those made by
    /// `gpu-node-exporter window` are in `state.dir`.
    pub dir: PathBuf,
    /// Longest window; what is planned longer ends then. 1m to 28days.
    #[serde(with = "humantime_serde")]
    pub longest: Duration,
}

impl Default for Windows {
    fn default() -> Self {
        Self { dir: "/etc/gpu-node-exporter/windows.d".into(), longest: Duration::from_secs(7 * 24 * 3600) }
    }
}

/// `[health]`: what a healthy node has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Health {
    /// GPUs the node should have; 0: the most seen since it booted. 0 to 64.
    pub expected_gpus: u32,
}

/// `[driver]`: which driver the node should have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Driver {
    /// Version the loaded kernel module should have, as `580.159.04`; empty if it does not matter.
    pub version: String,
}

/// `[state]`: what is kept over restarts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Folder for the small files that are kept over restarts.
    pub dir: PathBuf,
}

impl Default for State {
    fn default() -> Self {
        Self { dir: "/var/lib/gpu-node-exporter".into() }
    }
}

/// `[host]`: where the host's files are looked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// The folder under which `/proc`, `/sys`, `/dev/kmsg`, `/run` and `/etc` of the host are found: in a
    /// container, where the host's root is mounted.
    pub root: PathBuf,
}

impl Default for Host {
    fn default() -> Self {
        Self { root: "/".into() }
    }
}

/// `[control]`: the local socket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Control {
    /// Unix socket for `gpu-node-exporter snapshot` and the like; empty for none. At most 107 bytes.
    pub socket: PathBuf,
}

impl Control {
    /// The socket's path, or `None` if the operator wants none.
    pub fn path(&self) -> Option<&Path> {
        (!self.socket.as_os_str().is_empty()).then_some(&*self.socket)
    }
}

impl Default for Control {
    fn default() -> Self {
        Self { socket: "/run/gpu-node-exporter/control.sock".into() }
    }
}

/// `[log]`: what is written to standard error.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Log {
    /// Least important level that is written: error, warn, info, debug or trace.
    pub level: LogLevel,
}

/// How important a log line is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum LogLevel {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
    Trace,
}

impl From<LogLevel> for tracing::Level {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Error => Self::ERROR,
            LogLevel::Warn => Self::WARN,
            LogLevel::Info => Self::INFO,
            LogLevel::Debug => Self::DEBUG,
            LogLevel::Trace => Self::TRACE,
        }
    }
}

/// An address to serve on. `:PORT` is `[::]:PORT`: all addresses, and of both families where the host has
/// both; whoever binds it clears `IPV6_V6ONLY` and falls back to `0.0.0.0` on a host without IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Listen(pub SocketAddr);

/// The text is no address to serve on.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("not an address to serve on: write IP:PORT, [IPv6]:PORT or :PORT")]
pub struct NotAnAddress;

impl FromStr for Listen {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<Self, NotAnAddress> {
        if let Some(port) = text.strip_prefix(':') {
            let port = port.parse().map_err(|_| NotAnAddress)?;
            return Ok(Self(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port)));
        }
        text.parse().map(Self).map_err(|_| NotAnAddress)
    }
}

impl TryFrom<String> for Listen {
    type Error = NotAnAddress;

    fn try_from(text: String) -> Result<Self, NotAnAddress> {
        text.parse()
    }
}

impl From<Listen> for String {
    fn from(listen: Listen) -> Self {
        listen.to_string()
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.ip() {
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) => write!(f, ":{}", self.0.port()),
            _ => self.0.fmt(f),
        }
    }
}
