//! The host of a simulated node, as files below a folder: what `--root` (`host.root`) of the exporter is pointed at.
//!
//! A machine of two packages with 16 CPUs each, in L3 groups of eight; near each package four GPUs, at the addresses of
//! the simulated ones, and one network device. Processes and services are added one by one. CPU events happen at the rates of
//! `sys/bus/event_source/devices/simulated`, a source that the exporter knows and no kernel has.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// CPUs of the machine.
const CPUS: u32 = 32;
/// CPUs of a package, which is a NUMA node.
const PACKAGE: u32 = 16;
/// CPUs that share an L3 cache.
const L3: u32 = 8;
/// GPUs; four near each package.
const GPUS: u32 = 8;
/// How often each event happens on one CPU in a second, by the exporter's names: a CPU at work.
const CPU_EVENTS: [(&str, u64); 11] = [
    ("context_switches", 1_200),
    ("cpu_migrations", 5),
    ("page_faults", 500),
    ("major_faults", 0),
    ("cycles", 1_900_000_000),
    ("instructions", 2_600_000_000),
    ("llc_references", 9_000_000),
    ("llc_misses", 2_100_000),
    ("branches", 420_000_000),
    ("branch_misses", 3_800_000),
    ("ref_cycles", 1_700_000_000),
];

/// The files of a host.
#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
}

/// A process of the host.
#[derive(Clone, Debug)]
pub struct HostProcess<'a> {
    /// Its id.
    pub pid: u32,
    /// Its name.
    pub name: &'a str,
    /// Its control group (v2) below the mount point, with a slash before it.
    pub cgroup: &'a str,
    /// CPUs it may run on, as `0-15`; it was seen on the first of them.
    pub cpus: &'a str,
    /// Number of its user.
    pub uid: u32,
    /// Bytes of memory of its control group on each NUMA node.
    pub memory: [u64; 2],
    /// When it was started: ticks (hundredths of a second) after the machine.
    pub started_ticks: u64,
}

impl Host {
    /// A machine without processes, made in this folder.
    pub fn make(root: impl Into<PathBuf>) -> io::Result<Host> {
        let host = Host { root: root.into() };
        host.write("proc/stat", "cpu 1 2 3 4\nbtime 1700000000")?;
        host.write("proc/sys/kernel/random/boot_id", "11111111-2222")?;
        // By it the processes are known to be the host's.
        host.write("proc/2/comm", "kthreadd")?;
        host.write("etc/machine-id", "00112233445566778899aabbccddeeff")?;
        host.write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu memory")?;
        for file in ["online", "possible", "present"] {
            host.write(&format!("sys/devices/system/cpu/{file}"), &format!("0-{}", CPUS - 1))?;
        }
        for cpu in 0..CPUS {
            host.cpu(cpu)?;
        }
        for (event, rate) in CPU_EVENTS {
            let file = format!("sys/bus/event_source/devices/simulated/events/{event}");
            host.write(&file, &rate.to_string())?;
        }
        for file in ["online", "possible", "has_cpu", "has_memory"] {
            host.write(&format!("sys/devices/system/node/{file}"), "0-1")?;
        }
        for node in 0..2u32 {
            let folder = format!("sys/devices/system/node/node{node}");
            host.write(&format!("{folder}/cpumap"), &mask(PACKAGE * node, PACKAGE))?;
            host.write(&format!("{folder}/distance"), if node == 0 { "10 21" } else { "21 10" })?;
            let memory = format!("Node {node} MemTotal:       67108864 kB\nNode {node} MemFree:  1 kB");
            host.write(&format!("{folder}/meminfo"), &memory)?;
        }
        for gpu in 0..GPUS {
            host.pci(&gpu_address(gpu), "0x030200", "0x10de", gpu / (GPUS / 2))?;
        }
        for node in 0..2 {
            let address = format!("0000:00:{:02x}.0", 1 + node);
            host.pci(&address, "0x020700", "0x15b3", node)?;
            fs::create_dir_all(host.device(&address).join(format!("infiniband/mlx5_{node}")))?;
            let port = format!("sys/class/infiniband/mlx5_{node}/ports/1");
            host.write(&format!("{port}/link_layer"), "InfiniBand")?;
            host.write(&format!("{port}/rate"), "400 Gb/sec (4X NDR)")?;
            host.write(&format!("{port}/state"), "4: ACTIVE")?;
            for (counter, value) in [
                ("port_xmit_data", "2500000000"),
                ("port_rcv_data", "2750000000"),
                ("port_rcv_errors", "0"),
                ("port_xmit_discards", "0"),
                ("symbol_error", "0"),
                ("link_error_recovery", "0"),
                ("link_downed", "0"),
            ] {
                host.write(&format!("{port}/counters/{counter}"), value)?;
            }
        }
        Ok(host)
    }

    /// Takes the GPUs above the first `count` off PCI.
    pub fn keep_gpus(&self, count: u32) -> io::Result<()> {
        for gpu in count..GPUS {
            let address = gpu_address(gpu);
            fs::remove_file(self.device(&address))?;
            fs::remove_dir_all(self.path(&format!("sys/devices/pci0000:00/port-of-{address}")))?;
        }
        Ok(())
    }

    /// Where one of its files is, given its path without the slash before it.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// The folder of all.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Writes one of its files: the text and a newline.
    pub fn write(&self, path: &str, text: &str) -> io::Result<()> {
        let path = self.path(path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, format!("{text}\n"))
    }

    /// The folder of a PCI device.
    pub fn device(&self, address: &str) -> PathBuf {
        self.path("sys/bus/pci/devices").join(address)
    }

    /// Adds a service of the system. As the kernel does, its name is cut to 15 characters.
    pub fn service(&self, pid: u32, name: &str) -> io::Result<()> {
        let name = &name[..name.len().min(15)];
        self.write(&format!("proc/{pid}/comm"), name)?;
        self.write(
            &format!("proc/{pid}/status"),
            &format!("Name:\t{name}\nState:\tS (sleeping)\nUid:\t0\t0\t0\t0"),
        )
    }

    /// Ends a process.
    pub fn end(&self, pid: u32) -> io::Result<()> {
        fs::remove_dir_all(self.path(&format!("proc/{pid}")))
    }

    /// Adds a process.
    pub fn process(&self, process: &HostProcess<'_>) -> io::Result<()> {
        let HostProcess { pid, name, cgroup, cpus, uid, memory, started_ticks } = process;
        let first = cpus.split(['-', ',']).next().unwrap_or("0");
        let stat = format!(
            "{pid} ({name}) S 1 1 1 0 -1 0 0 0 0 0 9 0 0 0 20 0 1 0 {started_ticks} 1 1 1 1 1 1 1 1 0 0 0 0 0 0 0 17 {first} 0"
        );
        let folder = format!("proc/{pid}");
        self.write(&format!("{folder}/stat"), &stat)?;
        self.write(&format!("{folder}/task/{pid}/stat"), &stat)?;
        self.write(&format!("{folder}/comm"), name)?;
        self.write(&format!("{folder}/cgroup"), &format!("0::{cgroup}"))?;
        let status = format!(
            "Name:\t{name}\nState:\tS (sleeping)\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nCpus_allowed_list:\t{cpus}"
        );
        self.write(&format!("{folder}/status"), &status)?;
        let group = format!("sys/fs/cgroup{cgroup}");
        let [near, far] = memory;
        self.write(
            &format!("{group}/memory.numa_stat"),
            &format!("anon N0={near} N1={far}\nfile N0=0 N1=0"),
        )?;
        self.write(&format!("{group}/memory.events"), "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0")?;
        self.write(&format!("{group}/cpu.stat"), "usage_usec 90000000")?;
        self.write(&format!("{group}/cpu.max"), "max 100000")?;
        self.write(&format!("{group}/cgroup.procs"), &pid.to_string())
    }

    fn cpu(&self, cpu: u32) -> io::Result<()> {
        let folder = format!("sys/devices/system/cpu/cpu{cpu}");
        for (file, text) in [
            ("topology/physical_package_id", (cpu / PACKAGE).to_string()),
            ("topology/core_id", (cpu % PACKAGE).to_string()),
            ("topology/core_cpus", mask(cpu, 1)),
            ("topology/thread_siblings", mask(cpu, 1)),
            ("topology/package_cpus", mask(cpu / PACKAGE * PACKAGE, PACKAGE)),
            ("topology/core_siblings", mask(cpu / PACKAGE * PACKAGE, PACKAGE)),
            ("cache/index0/level", "3".into()),
            ("cache/index0/type", "Unified".into()),
            ("cache/index0/size", "32768K".into()),
            ("cache/index0/shared_cpu_map", mask(cpu / L3 * L3, L3)),
        ] {
            self.write(&format!("{folder}/{file}"), &text)?;
        }
        Ok(())
    }

    /// A device in a port of its own, both of generation 5 with 16 lanes.
    fn pci(&self, address: &str, class: &str, vendor: &str, node: u32) -> io::Result<()> {
        let port = format!("sys/devices/pci0000:00/port-of-{address}");
        let folder = format!("{port}/{address}");
        for folder in [&port, &folder] {
            self.write(&format!("{folder}/vendor"), vendor)?;
            for (file, text) in [("speed", "32.0 GT/s PCIe"), ("width", "16")] {
                self.write(&format!("{folder}/max_link_{file}"), text)?;
                self.write(&format!("{folder}/current_link_{file}"), text)?;
            }
        }
        for (file, text) in [
            ("class", class.to_owned()),
            ("device", "0x2335".to_owned()),
            ("subsystem_vendor", vendor.to_owned()),
            ("subsystem_device", "0x0001".to_owned()),
            ("numa_node", node.to_string()),
            ("local_cpus", mask(PACKAGE * node, PACKAGE)),
        ] {
            self.write(&format!("{folder}/{file}"), &text)?;
        }
        fs::create_dir_all(self.path("sys/bus/pci/devices"))?;
        symlink(Path::new("../../../..").join(&folder), self.device(address))
    }
}

fn gpu_address(gpu: u32) -> String {
    format!("0000:00:{:02x}.0", 6 + gpu)
}

/// So many CPUs from the first on, as the kernel writes a mask.
fn mask(first: u32, count: u32) -> String {
    format!("{:08x}", ((1u64 << count) - 1) << first)
}

/// Makes a host of a kernel log alone, with so many different Xids in it, each record some 470 bytes long.
pub fn log_faults(root: &Path, faults: usize) -> io::Result<()> {
    fs::create_dir_all(root.join("proc/sys/kernel/random"))?;
    fs::create_dir_all(root.join("dev"))?;
    fs::write(root.join("proc/sys/kernel/random/boot_id"), "one-boot\n")?;
    let text = "x".repeat(400);
    let line = |n: usize| {
        let (bus, code) = (n % 97, n % 60 + 1);
        format!("4,{n},{n},-;NVRM: Xid (PCI:0000:{bus:02x}:00): {code}, pid={n}, name=x, {text}\n")
    };
    fs::write(root.join("dev/kmsg"), (1..=faults).map(line).collect::<String>())
}
