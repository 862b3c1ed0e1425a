//! Declaration of every setting: documentation, type, default and range.
//!
//! The syntax is `key: Type = default, rule;`. With `>= other`, the value must not be less than the setting `other` of
//! the same section. A key after `@live` applies when the configuration is reloaded, because its users read it in every
//! turn. Any other key keeps its value until the daemon restarts. This table generates the structs, the checks, the
//! output of `check-config`, and `systemd/gpu-node-exporter.toml`.

use std::path::PathBuf;
use std::time::Duration;

use glob::Pattern;
use tracing::Level;

use super::key::{Key, Section, settings};
use super::value::PathRule::{Plain, Socket};
use super::value::TextRule::{Any, HostName, LabelValue, OneOf, UrlPath};
use super::value::{HideOwners, Listen, Setting};
use dcgm::fields::Release;
use dcgm::page::Values;
use model::catalog::{CanaryCheck, CanaryMode, MetricGroup, PerfEvent};

settings! {
    /// The HTTP server, which serves the metrics, the API and the status page.
    http: Http {
        /// Listen address: "IP:PORT", "[IPv6]:PORT", or ":PORT" for all IPv4 and IPv6 addresses.
        listen: Listen = Listen::all(9408);
        /// Host names that clients, including probes, may use, without port, such as ["node1", "*.gpu.example.net",
        /// "10.0.0.3"]. Requests with other names get status 421, except `localhost` and loopback addresses. An
        /// empty list allows every name.
        hosts: Vec<String> = Vec::new(), (0.., HostName);
        /// Maximum number of open connections. When the limit is reached, the server closes the connection that is
        /// idle longest. A connection can use up to 128 KiB of kernel buffers, which count toward MemoryMax= of the
        /// systemd unit: raise both together.
        max_connections: u32 = 128, 1..=10_000;
        /// Timeout for the header of a request (5 s for the first request), and maximum idle time of a connection.
        read_timeout: Duration = secs(30), ms(100)..=minutes(10);
        /// Maximum time during which a client reads nothing of a response. The limit for a whole response is three
        /// times as long. A stream of events has no limit.
        write_timeout: Duration = secs(10), ms(100)..=minutes(10);
        /// TLS, client certificates and passwords for both listeners: a web configuration file of the Prometheus
        /// exporter-toolkit, as used by node_exporter. "" means plain HTTP that anyone can read. The next
        /// connection loads a changed file and changed certificates. docs/access.md has examples.
        web_config_file: Option<PathBuf> = None, Plain;
        /// Paths that anyone can read without a password, a client certificate or a rate limit, for probes. If the
        /// list is empty, the TLS handshake fails for a client without a required certificate.
        open_paths: Vec<String> = vec!["/livez".into(), "/health".into()], (0.., UrlPath);
        /// Visibility of owner names (pods, jobs, users, accounts, processes). "unauthenticated": only clients with
        /// a password or a verified certificate get the names; "never": everyone who can read the path gets the
        /// names.
        hide_owners: HideOwners = HideOwners::Never;
    }

    /// The status page at the path /.
    page: Page {
        /// Time span of the sparklines and charts, kept in memory; "0s" for none. The history has 360 points
        /// regardless of the span, so a span of one hour has one point every 10 s.
        history: Duration = hours(1), secs(0)..=hours(24);
    }

    /// The page /dcgm/metrics, which serves the metrics of dcgm-exporter for its dashboards, alerts and
    /// autoscalers.
    dcgm: Dcgm {
        /// Second listen address, such as ":9400", which serves /metrics and /health like dcgm-exporter; "" for
        /// none. The limits of [http] apply to both addresses together, and its host names apply to both.
        listen: Option<Listen> = None;
        /// Release of dcgm-exporter that defines the default fields, and the unit of a name that two releases use
        /// with different units. "4.9" has names in base units.
        @live release: Release = Release::V4_8;
        /// Fields to serve instead of the default fields: the CSV or YAML file of dcgm-exporter, the manifest of a
        /// ConfigMap, or the directory of a mounted ConfigMap; "" for the default fields. The exporter reports and
        /// omits rows that it cannot serve.
        @live fields_file: Option<PathBuf> = None, Plain;
        /// "faithful": the same values as dcgm-exporter; "corrected": without the known faults of dcgm-exporter,
        /// which docs/migrating.md lists.
        @live values: Values = Values::Faithful;
        /// Label with the name of the node, taken from the variable NODE_NAME or else from the host name.
        /// dcgm-exporter up to 4.8.2 used "Hostname". "" for no label.
        @live hostname_label: String = "hostname".into(), OneOf(&["hostname", "Hostname", ""]);
        /// Add labels for the pod to which the GPU is allocated, and for its resource claims.
        @live pods: bool = true;
        /// Add the label pod_uid. It is only available for pods with a process on a GPU.
        @live pod_uids: bool = false;
        /// Add the label hpc_job with the Slurm jobs to which the GPU is allocated, if the environments of the jobs
        /// name the GPU.
        @live jobs: bool = false;
        /// Directory of the files that the hooks of a scheduler write for the HPC job mapping of dcgm-exporter. The
        /// label hpc_job has the jobs of these files. "" for none. Requires owners.enabled.
        hpc_job_dir: Option<PathBuf> = None, Plain;
        /// Time window of DCGM_EXP_XID_ERRORS_COUNT, which counts Xid errors.
        @live xid_window: Duration = minutes(5), secs(1)..=hours(24);
        /// Time window of DCGM_EXP_CLOCK_EVENTS_COUNT, which counts clock events.
        @live clock_events_window: Duration = minutes(5), secs(1)..=hours(1);
    }

    /// Published metrics: all metrics that match `include` and do not match `exclude`.
    metrics: Metrics {
        /// Patterns of metric names to publish: "*" matches any text, "?" one character. A pattern without a match
        /// is an error. `gpu-node-exporter metrics` lists the names.
        @live include: Vec<Pattern> = vec![pattern("*")], (0.., ());
        /// Patterns of metric names to omit, such as ["gpu_nvlink_*"]. Takes precedence over `include`.
        @live exclude: Vec<Pattern> = Vec::new(), (0.., ());
        /// Groups of metrics to serve in addition to the default set, such as ["nvlink-links"]; ["all"] for every
        /// group. docs/METRICS.md lists the groups.
        @live groups: Vec<MetricGroup> = Vec::new(), (0.., ());
        /// Maximum number of series on one page. The exporter drops the series above the limit and counts them in
        /// gpu_exporter_series_dropped_total.
        @live max_series: u32 = 20_000, 100..=1_000_000;
        /// Interval between two snapshots. Scrapes between two snapshots return the same values.
        publish_interval: Duration = secs(1), ms(50)..=minutes(1);
    }

    /// The process that calls the driver. docs/METRICS.md lists the tier of every metric.
    sampler: Sampler {
        /// NVML library; "" for the default search of the loader for libnvidia-ml.so.1.
        nvml_library: Option<PathBuf> = None, Plain;
        /// Interval of the fast tier.
        @live fast_interval: Duration = ms(100), ms(10)..=secs(10);
        /// Interval of the normal tier.
        @live normal_interval: Duration = secs(1), ms(10)..=minutes(1), >= fast_interval;
        /// Interval of the samples tier, which reads the driver's power samples. The driver keeps about 2.4 s of
        /// samples.
        @live samples_interval: Duration = secs(2), ms(10)..=minutes(1);
        /// Interval of the slow tier, whose calls take milliseconds in the driver.
        @live slow_interval: Duration = secs(10), ms(10)..=minutes(10), >= normal_interval;
        /// Interval of the rare tier, whose calls take tens of milliseconds in the driver.
        @live rare_interval: Duration = minutes(1), ms(10)..=minutes(60), >= slow_interval;
        /// Read the PCIe throughput with the rare tier. NVML needs two calls per GPU, and a call blocks for 20 ms
        /// because it measures for that long. For GPUs before Hopper, which have no profiling counters (GPM).
        @live pcie_throughput: bool = false;
        /// Interval of the NVLink tier, which reads the counters of every link. The calls take about 70 ms per GPU
        /// in the driver.
        @live nvlink_interval: Duration = minutes(10), ms(10)..=minutes(60);
        /// Time after which a driver call counts as stuck. The exporter then stops serving the values of the GPU
        /// until the call returns.
        @live call_timeout: Duration = secs(3), ms(100)..=minutes(1);
        /// Time after which a sampler is replaced if a call that opens the driver or a GPU does not return. Such
        /// calls are slow on a node without nvidia-persistenced, because they have to wake the GPUs first.
        /// `gpu_driver_stuck` does not wait for this timeout: it is 1 once the initialization has taken more than
        /// twice `call_timeout`.
        @live init_timeout: Duration = secs(20), ms(100)..=minutes(10);
        /// Interval between attempts to open a missing driver.
        driver_retry_interval: Duration = secs(5), ms(50)..=minutes(10);
        /// Delay before a sampler process that ended is restarted. The delay doubles with every restart.
        restart_backoff: Duration = secs(1), ms(10)..=minutes(1);
        /// Upper limit of the restart delay.
        restart_backoff_max: Duration = secs(30), ms(10)..=minutes(10), >= restart_backoff;
    }

    /// Profiling counters (GPM) of Hopper and later GPUs.
    gpm: Gpm {
        /// Read the profiling counters. Only one process can read them at a time: `gpu-node-exporter gpm off`
        /// releases them to a profiler for a limited time.
        @live enabled: bool = true;
    }

    /// The MIG layout that the GPUs should have.
    mig: Mig {
        /// File with MIG layouts in the format of nvidia-mig-parted; "" for none. The metric gpu_mig_layout_matches
        /// compares the GPUs with the layout.
        @live layout_file: Option<PathBuf> = None, Plain;
        /// Name of the layout for this node. Required if the file has several layouts.
        @live layout: String = String::new(), Any;
    }

    /// Processes on the GPUs.
    processes: Processes {
        /// Publish series for every process on a GPU. These series appear and disappear with the processes.
        @live per_process: bool = false;
        /// Maximum number of processes with series per GPU. Processes with the most memory take precedence.
        @live max_per_gpu: u32 = 32, 1..=1000;
    }

    /// GPU faults and other events.
    events: Events {
        /// Read faults (Xid, SXid) from the kernel log. Requires CAP_SYSLOG if the kernel restricts dmesg.
        kernel_log: bool = true;
        /// Number of events that /api/v1/events keeps.
        @live history_size: u32 = 500, 10..=10_000;
    }

    /// The canary: small CUDA programs that verify results and rates of a GPU.
    canary: Canary {
        /// When the canary runs. "off": never; "idle": periodically on every idle GPU; "after_job": also shortly
        /// after a job has left the GPU; "on_demand": only with `gpu-node-exporter canary`.
        @live mode: CanaryMode = CanaryMode::Idle;
        /// Interval between two runs on one GPU, with a random jitter of up to a fifth.
        @live interval: Duration = minutes(30), secs(1)..=hours(24);
        /// Minimum idle time of a GPU before a run.
        @live idle_for: Duration = minutes(5), secs(1)..=hours(24);
        /// Checks of a run.
        @live checks: Vec<CanaryCheck> = {
            use CanaryCheck::*;
            vec![Init, SmRate, Tensor, SmSdc, HbmRead, HbmWalk, L2, Pcie, Launch]
        }, (1.., ());
        /// Maximum device memory in MiB, in addition to the CUDA context (about 530 MiB). Doubled on GPUs with an
        /// L2 cache of more than an eighth of this size.
        @live max_memory_mib: u32 = 256, 8..=4096;
        /// Maximum share of a GPU's time.
        @live max_duty_ratio: f64 = 0.001, 0.000_001..=0.1;
        /// Time without progress after which a run counts as hung.
        @live progress_timeout: Duration = minutes(1), secs(1)..=minutes(10);
        /// Time between the request to stop and SIGKILL of a canary process. Keep it long, because SIGKILL during a
        /// driver call can wedge a GPU.
        @live kill_after: Duration = minutes(5), secs(1)..=minutes(60);
        /// CUDA driver library, named libcuda.so.1 or libcuda.so; "" for the default search of the loader.
        cuda_library: Option<PathBuf> = None, Plain;
        /// Lock file of a canary run. No canary runs while another process holds the lock, as in `flock
        /// /run/gpu-node-exporter/canary.lock dcgmi diag -r 2`.
        lock_file: PathBuf = "/run/gpu-node-exporter/canary.lock".into(), Plain;
    }

    /// Topology of the host around the GPUs.
    topology: Topology {
        /// Discover the topology with hwloc, in a separate process.
        enabled: bool = true;
        /// Interval between two readings of links and network devices. The exporter reads the rest of the topology
        /// when GPUs appear or disappear.
        @live interval: Duration = minutes(1), secs(1)..=hours(24);
        /// File with the topology that the host should have, written by `gpu-node-exporter topology --format json`;
        /// "" for none.
        @live expected_file: Option<PathBuf> = None, Plain;
    }

    /// Counters of the network devices nearest to the GPUs.
    network: Network {
        /// Read bytes, errors and flaps. Requires topology.enabled.
        enabled: bool = true;
        /// Interval between two readings.
        @live interval: Duration = secs(10), secs(1)..=minutes(5);
    }

    /// Owners of GPU processes: pods, containers, jobs, units, users.
    owners: Owners {
        /// Look up the owners of GPU processes.
        enabled: bool = true;
        /// Pod-resources socket of the kubelet; "" for none. If the socket at the default path is missing, the node
        /// has no kubelet. If a socket at another path is missing, the kubelet is unresponsive, and no canary runs.
        kubelet_socket: Option<PathBuf> = Some("/var/lib/kubelet/pod-resources/kubelet.sock".into()), Socket;
        /// Time for which the exporter keeps the counters of an owner after the owner has ended. Must be longer
        /// than any scrape interval.
        @live retention: Duration = minutes(15), secs(1)..=hours(24);
        /// Maximum number of owners with series. One namespace or user gets at most a quarter of them. Further
        /// owners of a GPU are combined in the owner "other".
        @live max_series: u32 = 256, 1..=4000;
        /// Read job, step, account, user and GPUs of Slurm jobs from the environments of their processes. Requires
        /// CAP_SYS_PTRACE or root.
        slurm_environment: bool = true;
        /// Timeout for reading a process, and for a request to the kubelet.
        read_timeout: Duration = secs(1), ms(10)..=minutes(1);
        /// Time after which work counts as wedged if its kernels run and compute nothing. Three fifths of this time
        /// if another GPU of the same owner does nothing meanwhile. Increase it if ranks wait longer for the rank
        /// that writes a checkpoint.
        @live wedged_after: Duration = minutes(1), secs(30)..=hours(24);
        /// Time after which an owner that worked before counts as stalled if it does no work; 15 s or three steps
        /// if its step is known. Increase it if a checkpoint or an evaluation on the CPU takes longer.
        @live stalled_after: Duration = minutes(5), secs(30)..=hours(24);
        /// Read the number of collectives that every rank has launched from the RAS sockets of NCCL jobs. The
        /// exporter only sends requests to jobs with NCCL 2.28.7 or later, or 2.29.2 or later if the job hangs.
        /// Polling crashed jobs with earlier versions, and can crash jobs with other versions too. Leave it
        /// disabled unless you know the versions on your nodes; see docs/nccl.md.
        nccl_ras: bool = false;
        /// Minimum age of all GPU processes of the node before the exporter sends requests to their RAS sockets.
        /// Must be longer than the time that a job needs to create its communicators.
        nccl_ras_after: Duration = minutes(2), secs(10)..=hours(24);
        /// Port of the RAS sockets on the loopback addresses, if NCCL_RAS_ADDR of the jobs has a port other than
        /// the default port of NCCL.
        nccl_ras_port: u32 = 28028, 1..=65535;
    }

    /// Event counters of the CPUs.
    cpu: Cpu {
        /// Count CPU events. Hardware events require a CPU with counters (most virtual machines have none), and
        /// either CAP_PERFMON or kernel.perf_event_paranoid of at most 0.
        enabled: bool = true;
        /// Interval between two readings.
        @live interval: Duration = secs(10), secs(1)..=minutes(10);
        /// Events to count. An event that the CPU does not support has no series.
        events: Vec<PerfEvent> = {
            use PerfEvent::*;
            vec![
                ContextSwitches, CpuMigrations, PageFaults, MajorFaults, Cycles, Instructions, LlcMisses, BranchMisses,
            ]
        }, (1.., ());
        /// Also count events for the control group of every owner.
        per_owner: bool = false;
    }

    /// Windows of planned work.
    windows: Windows {
        /// Directory of window files (NAME.toml), in which `gpu-node-exporter window` creates its own files; "" for
        /// none.
        @live dir: Option<PathBuf> = Some("/etc/gpu-node-exporter/windows.d".into()), Plain;
        /// Maximum duration of a window. The exporter shortens longer windows.
        @live max_duration: Duration = hours(7 * 24), minutes(1)..=hours(28 * 24);
    }

    /// Location of the node in the data center, as labels `rack` and `zone` on all of its series.
    node: Node {
        /// Rack, whose nodes share power and cooling; "" for no label. Alert rules about racks require this label,
        /// set here or by relabeling.
        @live rack: String = String::new(), LabelValue;
        /// Zone of the data center; "" for no label.
        @live zone: String = String::new(), LabelValue;
    }

    /// Health of the node.
    health: Health {
        /// Number of GPUs that the node should have; 0 for the maximum since boot.
        @live expected_gpus: u32 = 0, 0..=64;
        /// Unix socket on which every local user can request the verdict with `gpu-node-exporter health`, and
        /// nothing else; "" for none. Root and members of the exporter's group use `control.socket`.
        socket: Option<PathBuf> = Some("/run/gpu-node-exporter/health.sock".into()), Socket;
        /// Unix socket on which every local user can request the verdict with the protocol of NVRx's node health
        /// check (gRPC), such as "/run/gpu-node-exporter/nvrx.sock". This is the endpoint for ft_launcher. "" for
        /// none.
        nvrx_socket: Option<PathBuf> = None, Socket;
    }

    /// Expected state of the NVIDIA driver.
    driver: Driver {
        /// Version that the loaded kernel module should have, such as "580.159.04"; "" for any.
        @live expected_version: String = String::new(), Any;
    }

    /// State that the exporter keeps across restarts.
    state: State {
        /// Directory for small state files. The unit file permits writes only to /var/lib/gpu-node-exporter: for
        /// another directory, add ReadWritePaths= with `systemctl edit`.
        dir: PathBuf = "/var/lib/gpu-node-exporter".into(), Plain;
    }

    /// The flight recorder, which writes the last minutes at full rate to a file after a fault that pages.
    recorder: Recorder {
        /// Keep the last minutes in memory, about 0.5 MiB for eight GPUs, and write them to a file after a fault.
        enabled: bool = true;
        /// Directory of the recordings; "" for `recordings` in `state.dir`. The unit file permits writes only below
        /// `state.dir`: for another directory, add ReadWritePaths= with `systemctl edit`.
        dir: Option<PathBuf> = None, Plain;
        /// Maximum size of all recordings in bytes. The exporter deletes the oldest recordings first.
        max_bytes: u32 = 64 << 20, 1 << 20..=u32::MAX;
        /// Maximum number of recordings. The exporter deletes the oldest recordings first.
        max_files: u32 = 100, 1..=10_000;
        /// Time before the fault that a recording covers. The memory per GPU is at most 34 KiB for "2m" and 68 KiB
        /// for "5m".
        duration: Duration = minutes(2), secs(10)..=minutes(5);
        /// Time after the fault that a recording covers.
        after: Duration = secs(5), ms(0)..=minutes(1);
        /// Minimum time between two recordings of the same fault on the same GPU. Any two recordings are at least
        /// one minute apart.
        pause: Duration = minutes(10), secs(1)..=hours(24);
    }

    /// The file system of the host.
    host: Host {
        /// Directory with /proc, /sys, /dev/kmsg, /run and /etc of the host: "/", or in a container the mount point
        /// of the host's root.
        root: PathBuf = "/".into(), Plain;
    }

    /// The local control socket.
    control: Control {
        /// Unix socket of the daemon for `gpu-node-exporter snapshot` and other commands; "" for none.
        socket: Option<PathBuf> = Some("/run/gpu-node-exporter/control.sock".into()), Socket;
    }

    /// Log lines on standard error.
    log: Log {
        /// Minimum level of log lines.
        @live level: Level = Level::INFO;
    }
}

/// Former keys, with the instruction for their replacement.
pub(super) const RENAMED: &[(&str, &str)] = &[
    ("canary.duty_ppm", "renamed to canary.max_duty_ratio, a ratio: 1000 is now 0.001"),
    ("canary.hung_after", "renamed to canary.progress_timeout"),
    ("canary.interlock", "renamed to canary.lock_file"),
    ("canary.maintenance_file", "removed; put a window file into windows.dir instead"),
    ("canary.memory_mib", "renamed to canary.max_memory_mib"),
    ("driver.version", "renamed to driver.expected_version"),
    ("events.keep", "renamed to events.history_size"),
    ("ledger.publish_interval", "renamed to metrics.publish_interval"),
    ("owners.keep", "renamed to owners.retention"),
    ("owners.most", "renamed to owners.max_series"),
    ("owners.read_deadline", "renamed to owners.read_timeout"),
    ("processes.most", "renamed to processes.max_per_gpu"),
    ("sampler.call_deadline", "renamed to sampler.call_timeout"),
    ("sampler.drain_interval", "renamed to sampler.samples_interval"),
    ("sampler.init_deadline", "renamed to sampler.init_timeout"),
    ("sampler.links_interval", "renamed to sampler.nvlink_interval"),
    ("topology.declared", "renamed to topology.expected_file"),
    ("windows.longest", "renamed to windows.max_duration"),
];

fn pattern(text: &str) -> Pattern {
    Pattern::new(text).unwrap_or_default()
}

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

const fn minutes(n: u64) -> Duration {
    secs(60 * n)
}

const fn hours(n: u64) -> Duration {
    minutes(60 * n)
}
