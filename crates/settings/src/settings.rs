//! Every setting, declared once: documentation, type, default, range.
//!
//! `key: Type = default, rule;`, and with `>= other` not less than the setting `other` of the same section. A key after
//! `@live` applies as soon as the configuration is reloaded: what uses it reads it at each turn. Any other key keeps its
//! value until the daemon starts again. From here come the structs, the checks, `check-config` and
//! `systemd/gpu-node-exporter.toml`.

use std::path::PathBuf;
use std::time::Duration;

use glob::Pattern;
use tracing::Level;

use super::key::{Key, Section, settings};
use super::value::PathRule::{Optional, Required, Socket};
use super::value::TextRule::{Any, HostName, LabelValue, OneOf, UrlPath};
use super::value::{HideOwners, Listen, Setting};
use dcgm::fields::Release;
use dcgm::page::Values;
use model::catalog::{CanaryCheck, CanaryMode, MetricGroup, PerfEvent};

settings! {
    /// The HTTP server.
    http: Http {
        /// Listen address: "IP:PORT", "[IPv6]:PORT", or ":PORT" for all IPv4 and IPv6 addresses.
        listen: Listen = Listen::all(9408);
        /// Host names that clients may ask for, without port, such as ["node1", "*.gpu.example.net", "10.0.0.3"]; probes too.
        /// Other names get 421, but `localhost` and loopback addresses. An empty list allows every name.
        hosts: Vec<String> = Vec::new(), (0.., HostName);
        /// Maximum open connections. Beyond them the connection that is idle longest goes. Each may take 128 KiB of buffers in
        /// the kernel, which MemoryMax= of the systemd unit counts: raise both together.
        max_connections: u32 = 128, 1..=10_000;
        /// Time for the header of a request (5 s for the first one), and longest idle time of a connection.
        read_timeout: Duration = secs(30), ms(100)..=minutes(10);
        /// Longest time in which a client takes nothing of a response. A whole response has three times as long, a stream
        /// of events no limit.
        write_timeout: Duration = secs(10), ms(100)..=minutes(10);
        /// TLS, client certificates and passwords of both listeners: the web configuration file of the Prometheus
        /// exporter-toolkit, as node_exporter has it; "" for plain HTTP that everybody may read. A changed file, and changed
        /// certificates, are loaded by the next connection. docs/access.md has examples.
        web_config_file: PathBuf = PathBuf::new(), Optional;
        /// Paths that everybody may read, without password, client certificate or limit on requests: for probes. With none
        /// (an empty list) a client without a required certificate does not get past the handshake.
        open_paths: Vec<String> = vec!["/livez".into(), "/health".into()], (0.., UrlPath);
        /// "unauthenticated": names of owners (pods, jobs, users, accounts, processes) are for clients with a password or a
        /// verified certificate alone; "never": for everybody who may read the path.
        hide_owners: HideOwners = HideOwners::Never;
    }

    /// The status page: /.
    page: Page {
        /// Length of the history that sparklines and charts show, kept in memory; "0s" for none. 360 points whatever the
        /// length, so that an hour has one for each 10 s.
        history: Duration = hours(1), secs(0)..=hours(24);
    }

    /// The page of dcgm-exporter, for its dashboards, alerts and autoscalers: /dcgm/metrics.
    dcgm: Dcgm {
        /// Second listen address, which speaks as dcgm-exporter does: /metrics and /health there, as on ":9400"; "" for none.
        /// The limits of [http] hold for both addresses together, and its host names for each.
        listen: Option<Listen> = None;
        /// Release of dcgm-exporter whose default fields are served, and whose unit a name has that two releases share: "4.9"
        /// has the names in base units.
        @live release: Release = Release::V4_8;
        /// Fields to serve instead of the default: dcgm-exporter's CSV or YAML, a ConfigMap's manifest, or the folder as
        /// which a ConfigMap is mounted; "" for the default. Rows that cannot be served are reported and left out.
        @live fields_file: PathBuf = PathBuf::new(), Optional;
        /// "faithful": as dcgm-exporter has them; "corrected": without its known faults, which docs/migrating.md lists.
        @live values: Values = Values::Faithful;
        /// Label with the node's name: the variable NODE_NAME, else the host's name. Until 4.8.2 it was "Hostname"; "" for none.
        @live hostname_label: String = "hostname".into(), OneOf(&["hostname", "Hostname", ""]);
        /// Labels of the pod, and of its claims, that was given the GPU.
        @live pods: bool = true;
        /// Label pod_uid as well, as far as it is known: of pods with a process on a GPU.
        @live pod_uids: bool = false;
        /// Label hpc_job: the Slurm jobs that were given the GPU, as far as their environments name it.
        @live jobs: bool = false;
        /// Directory with the files that a scheduler's hooks write for dcgm-exporter's HPC job mapping, whose jobs are in the
        /// label hpc_job; "" for none. Needs owners.enabled.
        hpc_job_dir: PathBuf = PathBuf::new(), Optional;
        /// Window of DCGM_EXP_XID_ERRORS_COUNT.
        @live xid_window: Duration = minutes(5), secs(1)..=hours(24);
        /// Window of DCGM_EXP_CLOCK_EVENTS_COUNT.
        @live clock_events_window: Duration = minutes(5), secs(1)..=hours(1);
    }

    /// Published metrics: each metric that `include` matches and `exclude` does not.
    metrics: Metrics {
        /// Patterns of metric names to publish: "*" matches any text, "?" one character. A pattern without a match
        /// is an error. `gpu-node-exporter metrics` lists the names.
        @live include: Vec<Pattern> = vec![pattern("*")], (0.., ());
        /// Patterns of metric names to leave out, such as ["gpu_nvlink_*"]. Takes precedence over `include`.
        @live exclude: Vec<Pattern> = Vec::new(), (0.., ());
        /// Groups of metrics to serve beside the default set, such as ["nvlink-links"]; ["all"] for every group.
        /// docs/METRICS.md lists them.
        @live groups: Vec<MetricGroup> = Vec::new(), (0.., ());
        /// Maximum series on one page. A metric counts the series above the limit, which are dropped.
        @live max_series: u32 = 20_000, 100..=1_000_000;
        /// Interval between two snapshots. Scrapes between them return the same values.
        publish_interval: Duration = secs(1), ms(50)..=minutes(1);
    }

    /// The process that calls the driver. docs/METRICS.md lists the tier of each metric.
    sampler: Sampler {
        /// NVML library; "" for the loader's search of libnvidia-ml.so.1.
        nvml_library: PathBuf = PathBuf::new(), Optional;
        /// Interval of the fast tier.
        @live fast_interval: Duration = ms(100), ms(10)..=secs(10);
        /// Interval of the normal tier.
        @live normal_interval: Duration = secs(1), ms(10)..=minutes(1), >= fast_interval;
        /// Interval of the samples tier: the driver's power samples, of which it keeps some 2.4 s.
        @live samples_interval: Duration = secs(2), ms(10)..=minutes(1);
        /// Interval of the slow tier: calls that take milliseconds in the driver.
        @live slow_interval: Duration = secs(10), ms(10)..=minutes(10), >= normal_interval;
        /// Interval of the rare tier: calls that take tens of milliseconds in the driver.
        @live rare_interval: Duration = minutes(1), ms(10)..=minutes(60), >= slow_interval;
        /// Read the PCIe throughput with the rare tier: two NVML calls a GPU that block for 20 ms each, because that is
        /// the time they measure. For GPUs before Hopper, which lack the profiling counters (GPM).
        @live pcie_throughput: bool = false;
        /// Interval of the NVLink tier: counters of each link, some 70 ms in the driver for each GPU.
        @live nvlink_interval: Duration = minutes(10), ms(10)..=minutes(60);
        /// Time after which a driver call counts as stuck. The values of its GPU are then withdrawn until the call
        /// returns.
        @live call_timeout: Duration = secs(3), ms(100)..=minutes(1);
        /// Replaces a sampler in which a call that opens the driver or a GPU lasts for longer: slow on a node without
        /// nvidia-persistenced, where such calls wake the GPUs first. `gpu_driver_stuck` does not wait for this:
        /// 1 while the initialization has lasted for more than twice `call_timeout`.
        @live init_timeout: Duration = secs(20), ms(100)..=minutes(10);
        /// Interval between attempts to open a missing driver.
        driver_retry_interval: Duration = secs(5), ms(50)..=minutes(10);
        /// Delay before the restart of a sampler process that ended; doubles with each restart.
        restart_backoff: Duration = secs(1), ms(10)..=minutes(1);
        /// Upper limit of the restart delay.
        restart_backoff_max: Duration = secs(30), ms(10)..=minutes(10), >= restart_backoff;
    }

    /// Profiling counters (GPM) of Hopper and later GPUs.
    gpm: Gpm {
        /// Read the profiling counters. They allow one reader at a time: `gpu-node-exporter gpm off` leaves them to
        /// a profiler for a while.
        @live enabled: bool = true;
    }

    /// The MIG layout that the GPUs should have.
    mig: Mig {
        /// File with MIG layouts in the format of nvidia-mig-parted; "" for none. The metric gpu_mig_layout_matches
        /// compares the GPUs with the layout.
        @live layout_file: PathBuf = PathBuf::new(), Optional;
        /// Name of this node's layout in the file. Required if the file has several.
        @live layout: String = String::new(), Any;
    }

    /// Processes on the GPUs.
    processes: Processes {
        /// Publish series of each process on a GPU. Such series come and go with the processes.
        @live per_process: bool = false;
        /// Maximum processes with series per GPU: those with the most memory.
        @live max_per_gpu: u32 = 32, 1..=1000;
    }

    /// GPU faults and other events.
    events: Events {
        /// Read faults (Xid, SXid) from the kernel log. Needs CAP_SYSLOG where dmesg is restricted.
        kernel_log: bool = true;
        /// Number of events that /api/v1/events keeps.
        @live history_size: u32 = 500, 10..=10_000;
    }

    /// The canary: small CUDA programs that verify results and rates of a GPU.
    canary: Canary {
        /// When the canary runs: "off": never; "idle": periodically on each idle GPU; "after_job": also soon after a
        /// job has left; "on_demand": with `gpu-node-exporter canary` alone.
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
        /// Maximum device memory in MiB, beside the CUDA context (some 530 MiB). Doubled on GPUs where eight times
        /// the L2 cache need it.
        @live max_memory_mib: u32 = 256, 8..=4096;
        /// Maximum share of a GPU's time.
        @live max_duty_ratio: f64 = 0.001, 0.000_001..=0.1;
        /// Time without progress after which a run counts as hung.
        @live progress_timeout: Duration = minutes(1), secs(1)..=minutes(10);
        /// Time between the request to end and SIGKILL of a canary process. Long, because SIGKILL inside the driver
        /// can wedge a GPU.
        @live kill_after: Duration = minutes(5), secs(1)..=minutes(60);
        /// CUDA driver library, named libcuda.so.1 or libcuda.so; "" for the loader's search.
        cuda_library: PathBuf = PathBuf::new(), Optional;
        /// Lock file of a canary run. No canary runs while another process holds the lock:
        /// `flock /run/gpu-node-exporter/canary.lock dcgmi diag -r 2`.
        lock_file: PathBuf = "/run/gpu-node-exporter/canary.lock".into(), Required;
    }

    /// Topology of the host around the GPUs.
    topology: Topology {
        /// Discover the topology (hwloc), in a process of its own.
        enabled: bool = true;
        /// Interval between two readings of links and network devices. The rest is read when GPUs come or go.
        @live interval: Duration = minutes(1), secs(1)..=hours(24);
        /// File with the topology that the host should have, from `gpu-node-exporter topology --format json`; "" for
        /// none.
        @live expected_file: PathBuf = PathBuf::new(), Optional;
    }

    /// Counters of the network devices nearest to the GPUs.
    network: Network {
        /// Read bytes, errors and flaps. Needs the topology.
        enabled: bool = true;
        /// Interval between two readings.
        @live interval: Duration = secs(10), secs(1)..=minutes(5);
    }

    /// Owners of GPU processes: pods, containers, jobs, units, users.
    owners: Owners {
        /// Look up the owners of GPU processes.
        enabled: bool = true;
        /// The kubelet's pod-resources socket; "" for none. Where the default path is missing, there is no kubelet; where another
        /// one is missing, the kubelet does not answer, and no canary runs.
        kubelet_socket: PathBuf = "/var/lib/kubelet/pod-resources/kubelet.sock".into(), Socket;
        /// Time that the counters of an owner stay after its end: longer than any scrape interval.
        @live retention: Duration = minutes(15), secs(1)..=hours(24);
        /// Maximum owners with series. One namespace or user has at most a quarter of them; further owners of a GPU are
        /// the owner "other".
        @live max_series: u32 = 256, 1..=4000;
        /// Read job, step, account, user and GPUs of Slurm jobs from the environments of their processes (needs
        /// CAP_SYS_PTRACE, or root).
        slurm_environment: bool = true;
        /// Timeout for reading a process or asking the kubelet.
        read_timeout: Duration = secs(1), ms(10)..=minutes(1);
        /// Time of kernels that run and compute nothing until work counts as wedged; three fifths of it where a GPU of the
        /// same owner does nothing meanwhile. Raise where ranks wait longer for the rank that writes a checkpoint.
        @live wedged_after: Duration = minutes(1), secs(30)..=hours(24);
        /// Time without any work until an owner that worked counts as stalled; 15 s or three steps where its step was known.
        /// Raise where a checkpoint or an evaluation on the CPU takes longer.
        @live stalled_after: Duration = minutes(5), secs(30)..=hours(24);
        /// Ask the RAS sockets of NCCL jobs for the collectives that each rank has launched. Asked are only jobs whose
        /// NCCL is 2.28.7 or later, in a halt 2.29.2 or later: polling crashed jobs with earlier versions, and can crash
        /// those with others too. docs/nccl.md says when; off unless you know the versions on your nodes.
        nccl_ras: bool = false;
        /// Age of all GPU processes of the node from which on their RAS sockets are asked: longer than a job takes to
        /// make its communicators.
        nccl_ras_after: Duration = minutes(2), secs(10)..=hours(24);
        /// Port of the RAS sockets on the loopback addresses, where the jobs' NCCL_RAS_ADDR names another than NCCL's own.
        nccl_ras_port: u32 = 28028, 1..=65535;
    }

    /// CPU event counters.
    cpu: Cpu {
        /// Count CPU events. Hardware events need a CPU with counters (most virtual machines have none), and
        /// CAP_PERFMON or kernel.perf_event_paranoid of at most 0.
        enabled: bool = true;
        /// Interval between two readings.
        @live interval: Duration = secs(10), secs(1)..=minutes(10);
        /// Events to count. An event without support on the CPU has no series.
        events: Vec<PerfEvent> = {
            use PerfEvent::*;
            vec![
                ContextSwitches, CpuMigrations, PageFaults, MajorFaults, Cycles, Instructions, LlcMisses, BranchMisses,
            ]
        }, (1.., ());
        /// Count events for the cgroup of each owner too.
        per_owner: bool = false;
    }

    /// Windows of planned work.
    windows: Windows {
        /// Directory of window files (NAME.toml), where `gpu-node-exporter window` makes its own; "" for none.
        @live dir: PathBuf = "/etc/gpu-node-exporter/windows.d".into(), Optional;
        /// Maximum duration of a window. A longer window is cut.
        @live max_duration: Duration = hours(7 * 24), minutes(1)..=hours(28 * 24);
    }

    /// The place of the node in the data centre, as labels `rack` and `zone` on each of its series.
    node: Node {
        /// Rack: what shares power and cooling; "" for no label. Rules for racks need it here or from relabeling.
        @live rack: String = String::new(), LabelValue;
        /// Zone; "" for no label.
        @live zone: String = String::new(), LabelValue;
    }

    /// Health of the node.
    health: Health {
        /// Number of GPUs that the node should have; 0 for the maximum since boot.
        @live expected_gpus: u32 = 0, 0..=64;
        /// Unix socket on which every local user may ask for the verdict, with `gpu-node-exporter health`, and for nothing
        /// else; "" for none. Root and members of its group ask on `control.socket`.
        socket: PathBuf = "/run/gpu-node-exporter/health.sock".into(), Socket;
        /// Unix socket on which every local user may ask for the verdict as NVRx's node health check does (gRPC), such as
        /// "/run/gpu-node-exporter/nvrx.sock": the endpoint of ft_launcher; "" for none.
        nvrx_socket: PathBuf = PathBuf::new(), Socket;
    }

    /// The NVIDIA driver.
    driver: Driver {
        /// Version that the loaded kernel module should have, such as "580.159.04"; "" for any.
        @live expected_version: String = String::new(), Any;
    }

    /// State across restarts.
    state: State {
        /// Directory for small state files. The unit file permits writes to /var/lib/gpu-node-exporter alone: for
        /// another directory add ReadWritePaths= with `systemctl edit`.
        dir: PathBuf = "/var/lib/gpu-node-exporter".into(), Required;
    }

    /// The flight recorder: after a fault that pages, the last minutes at full rate go to a file.
    recorder: Recorder {
        /// Keep the last minutes in memory, some 0.5 MiB for eight GPUs, and write them after a fault.
        enabled: bool = true;
        /// Directory of the recordings; "" for `recordings` in `state.dir`. The unit file permits writes below `state.dir`
        /// alone: for another directory add ReadWritePaths= with `systemctl edit`.
        dir: PathBuf = PathBuf::new(), Optional;
        /// Maximum bytes of all recordings. The oldest ones go.
        max_bytes: u32 = 64 << 20, 1 << 20..=u32::MAX;
        /// Maximum number of recordings. The oldest ones go.
        max_files: u32 = 100, 1..=10_000;
        /// Time before the fault that a recording covers. In memory it takes at most 34 KiB a GPU for "2m", and 68 KiB for
        /// "5m".
        duration: Duration = minutes(2), secs(10)..=minutes(5);
        /// Time after the fault that a recording covers.
        after: Duration = secs(5), ms(0)..=minutes(1);
        /// Shortest time between two recordings of one fault of one GPU. Between any two is a minute.
        pause: Duration = minutes(10), secs(1)..=hours(24);
    }

    /// The host's file system.
    host: Host {
        /// Directory with the host's /proc, /sys, /dev/kmsg, /run and /etc: "/", or the mount point of the host's
        /// root in a container.
        root: PathBuf = "/".into(), Required;
    }

    /// The local control socket.
    control: Control {
        /// Unix socket of the daemon for `gpu-node-exporter snapshot` and other commands; "" for none.
        socket: PathBuf = "/run/gpu-node-exporter/control.sock".into(), Socket;
    }

    /// Log lines on standard error.
    log: Log {
        /// Minimum level.
        @live level: Level = Level::INFO;
    }
}

/// Former keys, and what replaces them.
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
