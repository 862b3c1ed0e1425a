//! The shipped exporter on a simulated node of its own.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use serde_json::Value;
use simgpu::host::{Host, HostProcess};

use crate::http::get;
use crate::incident::{Incident, Process};
use crate::{Fallible, pause};

/// No node takes longer to be ready on the slowest machine that plays this.
const START: Duration = Duration::from_secs(240);
/// The driver that the node begins with, and the one that an upgrade brings.
const DRIVERS: [&str; 2] = ["580.159.04", "580.172.08"];
/// Process number of the first service of a host.
const SERVICES: u32 = 900;
/// When all processes of the hosts were started: ticks (hundredths of a second) after the machine.
const STARTED: u64 = 100;

/// A running exporter and the node around it.
pub struct Node {
    /// Its label `instance`.
    pub instance: String,
    /// Where it serves on this machine.
    pub port: u16,
    /// The simulator's controls.
    pub sim: simgpu::State,
    process: Child,
    dir: PathBuf,
    environment: Vec<(String, PathBuf)>,
    program: PathBuf,
    /// Keeps the canary away while held.
    canary_lock: Option<Flock<File>>,
}

impl Drop for Node {
    fn drop(&mut self) {
        // A sampler in a driver call is never killed, so a hang would outlive the game.
        let _ = self.sim.open_gate("release");
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Node {
    /// Starts it; [`Node::wait_ready`] waits.
    pub fn start(
        program: &Path,
        dir: &Path,
        instance: &str,
        incident: &Incident,
        scale: u64,
    ) -> Fallible<Node> {
        let dir = dir.join(instance);
        let root = dir.join("root");
        let host = Host::make(&root)?;
        host.write("proc/uptime", "100000.00 100000.00")?;
        // A boot of its own, longer ago than any rule about boots looks back.
        host.write("proc/sys/kernel/random/boot_id", &format!("{instance}-0001"))?;
        fs::create_dir_all(root.join("dev"))?;
        fs::write(root.join("dev/kmsg"), "")?;
        for process in &incident.process {
            place(&host, process)?;
        }
        if !incident.services.is_empty() {
            // The exporter looks for services where it sees the kernel's own processes.
            service(&host, 2, "kthreadd")?;
        }
        for (pid, name) in (SERVICES..).zip(&incident.services) {
            service(&host, pid, name)?;
        }
        module(&root, Some(DRIVERS[0]))?;
        for name in ["libnvidia-ml.so.1", "libcuda.so.1", "libcuda.so"] {
            symlink(simgpu::library_path().map_err(|e| e.to_string())?, dir.join(name))?;
        }
        let scenario = dir.join("scenario.toml");
        fs::write(&scenario, incident.scenario())?;
        for (name, text) in &incident.files {
            fs::write(dir.join(name), text)?;
        }
        let gpus = simgpu::Scenario::load(&scenario).map_err(|e| e.to_string())?.gpus.len();
        // Alerts compare the driver's list with PCI.
        host.keep_gpus(gpus.try_into()?)?;
        let sim = simgpu::State::open(dir.join("sim")).map_err(|e| e.to_string())?;
        let mut environment: Vec<(String, PathBuf)> = [
            ("GPU_SIM_SCENARIO", scenario),
            ("GPU_SIM_STATE", dir.join("sim")),
            ("GPU_SIM_KMSG", root.join("dev/kmsg")),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into();
        let own = |key: &str, value: PathBuf| (format!("GPU_NODE_EXPORTER__{key}"), value);
        environment.extend([
            own("HOST__ROOT", root),
            own("STATE__DIR", dir.join("state")),
            own("CONTROL__SOCKET", dir.join("control.sock")),
            own("HEALTH__SOCKET", dir.join("health.sock")),
            own("CANARY__CUDA_LIBRARY", dir.join("libcuda.so.1")),
            own("CANARY__LOCK_FILE", dir.join("canary.lock")),
        ]);
        let folder = dir.to_string_lossy();
        let given: Vec<(&str, String)> = incident
            .settings
            .iter()
            .map(|(key, value)| (key.as_str(), value.replace("{dir}", &folder)))
            .collect();
        let mut settings: Vec<(&str, &str)> = vec![
            // Its CPUs are files: nothing can be counted on them.
            ("CPU__ENABLED", "false"),
            // Two dozen exporters share this machine: states that are added up are looked at once a second and not
            // ten times, and only the nodes that are about the canary run it.
            ("SAMPLER__FAST_INTERVAL", "1s"),
            ("CANARY__MODE", "off"),
        ];
        if scale > 1 {
            // What is read rarely must be read as much more often as the rules' times are shorter.
            settings.extend([
                ("SAMPLER__SAMPLES_INTERVAL", "1s"),
                ("SAMPLER__SLOW_INTERVAL", "1s"),
                ("SAMPLER__RARE_INTERVAL", "2s"),
                ("SAMPLER__NVLINK_INTERVAL", "20s"),
            ]);
        }
        settings.extend(given.iter().map(|(key, value)| (*key, value.as_str())));
        environment.extend(settings.into_iter().map(|(key, value)| own(key, value.into())));
        let (process, port) = spawn(program, &dir, &environment)?;
        let program = program.to_owned();
        Ok(Node {
            instance: instance.into(),
            port,
            sim,
            process,
            dir,
            environment,
            program,
            canary_lock: None,
        })
    }

    /// Lets the canary find the GPU slow twice, and dates both runs back: the exporter starts again on the changed state, and
    /// the locked file holds the canary until [`Node::open_aged`].
    pub fn age(&mut self) -> Fallible<()> {
        const AGE: f64 = 900.0;
        let path = self.dir.join("state/canary.json");
        let read = || -> Option<Value> { serde_json::from_str(&fs::read_to_string(&path).ok()?).ok() };
        let found = |file: &mut Value| -> Vec<f64> {
            let lately =
                file["data"]["recent_runs"].as_array_mut().map(Vec::as_mut_slice).unwrap_or_default();
            let checks = lately.iter_mut().filter_map(|one| one["recent"].as_object_mut());
            let samples =
                checks.flat_map(|recent| recent.values_mut()).filter_map(Value::as_array_mut).flatten();
            let low = samples.filter(|sample| sample["sample"] != "ok");
            low.filter_map(|sample| {
                let at = sample["at"].as_f64()? - AGE;
                sample["at"] = at.into();
                Some(at)
            })
            .collect()
        };
        self.open("cause")?;
        let deadline = Instant::now() + START;
        let mut file = loop {
            let file = read();
            if let Some(file) = file.filter(|file| found(&mut file.clone()).len() >= 2) {
                break file;
            }
            if Instant::now() > deadline {
                return Err(format!("the canary of {} finds nothing", self.instance).into());
            }
            pause();
        };
        self.kill()?;
        self.sim.close_gate("cause").map_err(|e| e.to_string())?;
        found(&mut file);
        fs::write(&path, file.to_string())?;
        let lock = File::create(self.dir.join("canary.lock"))?;
        self.canary_lock = Some(Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, error)| error)?);
        (self.process, self.port) = spawn(&self.program, &self.dir, &self.environment)?;
        self.wait_ready()
    }

    /// Opens the gate `cause`, and lets the canary come again.
    pub fn open_aged(&mut self) -> Fallible<()> {
        self.open("cause")?;
        self.canary_lock = None;
        Ok(())
    }

    /// Waits until all that it reads has been read once.
    pub fn wait_ready(&self) -> Fallible<()> {
        let deadline = Instant::now() + START;
        while get(self.port, "/readyz").is_err() {
            if Instant::now() > deadline {
                return Err(format!("{} is not ready after {START:?}", self.instance).into());
            }
            pause();
        }
        Ok(())
    }

    /// Opens a gate of the scenario.
    pub fn open(&self, gate: &str) -> Fallible<()> {
        self.sim.open_gate(gate).map_err(|e| format!("{}: {e}", self.instance).into())
    }

    /// Ends the exporter without warning.
    pub fn kill(&mut self) -> Fallible<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    /// Ends the host's services.
    pub fn end_services(&self) -> Fallible<()> {
        let mut pid = SERVICES;
        while let Ok(()) = fs::remove_dir_all(self.dir.join(format!("root/proc/{pid}"))) {
            pid += 1;
        }
        if pid == SERVICES { Err(format!("{} has no services", self.instance).into()) } else { Ok(()) }
    }

    /// Runs a command of the exporter on this node.
    pub fn command(&self, args: &[&str]) -> Fallible<()> {
        let mut command = Command::new(&self.program);
        command.args(args).envs(self.environment.iter().map(|(key, value)| (key, value)));
        let output = command.stdin(Stdio::null()).output()?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(format!("{}: {args:?}: {said}", self.instance).into())
    }

    /// Takes the kernel module away while the scenario's driver is away, and brings a newer one. The scenario's gate
    /// `cause` is open meanwhile.
    pub fn upgrade(&self) -> Fallible<()> {
        let root = self.dir.join("root");
        self.open("cause")?;
        module(&root, None)?;
        // Longer than the pause between two looks at the module (10 s), so that the exporter sees it gone.
        crate::wait_until(Instant::now() + Duration::from_secs(12));
        module(&root, Some(DRIVERS[1]))?;
        self.sim.close_gate("cause").map_err(|e| format!("{}: {e}", self.instance).into())
    }
}

/// Starts the exporter; gives where it serves.
fn spawn(program: &Path, dir: &Path, environment: &[(String, PathBuf)]) -> Fallible<(Child, u16)> {
    let mut process = Command::new(program)
        .args(["serve", "--listen", "127.0.0.1:0", "--nvml-library"])
        .arg(dir.join("libnvidia-ml.so.1"))
        .envs(environment.iter().map(|(key, value)| (key, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("{}: {e}", program.display()))?;
    let mut stderr = BufReader::new(process.stderr.take().ok_or("no stderr")?);
    let port = loop {
        let mut line = String::new();
        if stderr.read_line(&mut line)? == 0 {
            return Err(format!("the exporter in {} does not serve", dir.display()).into());
        }
        if let Some((_, rest)) = line.split_once("serving http://127.0.0.1:") {
            break rest.trim().trim_end_matches('/').parse()?;
        }
    };
    let mut log = fs::File::create(dir.join("exporter.log"))?;
    std::thread::spawn(move || std::io::copy(&mut stderr, &mut log));
    Ok((process, port))
}

/// Brings or takes away the driver's kernel module.
fn module(root: &Path, version: Option<&str>) -> Fallible<()> {
    let folder = root.join("sys/module/nvidia");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    if let Some(version) = version {
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("version"), format!("{version}\n"))?;
        fs::write(folder.join("initstate"), "live\n")?;
    }
    Ok(())
}

/// A service of the host's system.
fn service(host: &Host, pid: u32, name: &str) -> Fallible<()> {
    let cgroup = format!("/system.slice/{name}.service");
    host.process(&HostProcess {
        pid,
        name,
        cgroup: &cgroup,
        cpus: "0-15",
        uid: 0,
        memory: [0, 0],
        started_ticks: STARTED,
    })?;
    Ok(())
}

/// Puts a process into a pod of the host.
fn place(host: &Host, process: &Process) -> Fallible<()> {
    let Process { pid, namespace, pod, cpus, memory } = process;
    // Unlike any other, and the same in each game.
    let uid = format!("{pid:08x}-0000-4000-8000-{pid:012x}");
    let id = format!("{pid:064x}");
    fs::create_dir_all(host.path(&format!("var/log/pods/{namespace}_{pod}_{uid}/main")))?;
    host.write(&format!("var/log/containers/{pod}_{namespace}_main-{id}.log"), "")?;
    let slice = uid.replace('-', "_");
    let cgroup = format!("/kubepods.slice/kubepods-pod{slice}.slice/cri-containerd-{id}.scope");
    host.process(&HostProcess {
        pid: *pid,
        name: "python3",
        cgroup: &cgroup,
        cpus,
        uid: 1000,
        memory: memory.map(|gib| gib << 30),
        started_ticks: STARTED,
    })?;
    Ok(())
}
