//! Hosts made of files, for processes on simulated GPUs.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use nix::sys::stat::Mode;
use tempfile::TempDir;

use super::node::{Node, Setup};

/// A host made of files, and a scenario with processes on its GPUs.
pub struct Machine {
    folder: TempDir,
    scenario: String,
}

impl Machine {
    /// A host without processes.
    pub fn new() -> Machine {
        let machine = Machine { folder: TempDir::new().unwrap(), scenario: "still = true\n".to_owned() };
        machine.write("proc/sys/kernel/random/boot_id", "11111111-2222\n");
        machine.write("proc/stat", "cpu 1 2 3 4\nbtime 1700000000\n");
        machine.write("etc/passwd", "root:x:0:0\nalice:x:1000:1000\n");
        machine.write("sys/fs/cgroup/cgroup.controllers", "cpu memory");
        machine
    }

    /// The folder of its files.
    pub fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    /// Writes one of its files.
    pub fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A process of user 1000, started a second after the machine, and what its control groups are.
    pub fn process(&self, pid: u32, cgroup: impl AsRef<[u8]>) {
        let stat = format!(
            "{pid} (x) S 1 1 1 0 -1 0 0 0 0 0 9 0 0 0 20 0 1 0 100 1 1 1 1 1 1 1 1 0 0 0 0 0 0 0 17 5 0\n"
        );
        self.write(&format!("proc/{pid}/stat"), &stat);
        self.write(&format!("proc/{pid}/task/{pid}/stat"), &stat);
        self.write(&format!("proc/{pid}/status"), "Uid:\t1000\t0\t0\t0\nCpus_allowed_list:\t0-3\n");
        self.write(&format!("proc/{pid}/comm"), "x\n");
        self.write(&format!("proc/{pid}/cgroup"), cgroup);
    }

    /// A file without a writer: opening it waits for ever.
    pub fn hangs(&self, path: &str) {
        let path = self.root().join(path);
        let _ = fs::remove_file(&path);
        nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
    }

    /// An H200 with these processes.
    pub fn gpu(&mut self, pids: impl IntoIterator<Item = u32>) {
        self.gpu_of("H200", pids);
    }

    /// A GPU of a model, with these processes.
    pub fn gpu_of(&mut self, model: &str, pids: impl IntoIterator<Item = u32>) {
        self.gpu_with(&format!("model = {model:?}"), pids);
    }

    /// A GPU of which the scenario says this, with these processes.
    pub fn gpu_with(&mut self, lines: &str, pids: impl IntoIterator<Item = u32>) {
        writeln!(self.scenario, "[[gpu]]\n{lines}\nprocesses = [").unwrap();
        for pid in pids {
            writeln!(self.scenario, "{{ pid = {pid}, memory = \"1MiB\", type = \"compute\" }},").unwrap();
        }
        self.scenario.push_str("]\n");
    }

    /// A step of the scenario.
    pub fn step(&mut self, lines: &str) {
        self.scenario.push_str("[[step]]\n");
        self.scenario.push_str(lines);
    }

    /// How a daemon on it is started.
    pub fn setup(&self) -> Setup {
        let file = self.folder.path().join("scenario.toml");
        fs::write(&file, &self.scenario).unwrap();
        Setup::new(file.to_str().unwrap())
            .with("HOST__ROOT", self.root().to_str().unwrap())
            .with("OWNERS__READ_TIMEOUT", "1s")
    }

    /// A daemon on it, ready.
    pub fn start(&self) -> Node {
        self.start_with(&[])
    }

    /// The same with other settings.
    pub fn start_with(&self, settings: &[(&str, &str)]) -> Node {
        let node = settings.iter().fold(self.setup(), |setup, (key, value)| setup.with(key, value)).start();
        node.wait_ready();
        node
    }
}
