//! A Prometheus and an Alertmanager of our own, with the rules and routes of this repository.

use std::fmt::Write as _;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::http::{escaped, get};
use crate::{Fallible, pause};

/// Neither takes longer to start, on a busy machine.
const START: Duration = Duration::from_secs(120);
/// The address in `alerts/alertmanager.yml` that all notifications go to.
const RECEIVERS: &str = "http://alerts.example.com";

/// A process that ends with its owner.
#[derive(Debug)]
pub struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a program in the background; what it says goes to a file.
pub fn spawn(command: &mut Command, log: &Path) -> Fallible<Guard> {
    let file = fs::File::create(log)?;
    let program = command.get_program().to_string_lossy().into_owned();
    let child = command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()
        .map_err(|e| format!("{program} does not start: {e}"))?;
    Ok(Guard(child))
}

/// Where a program of the tools is: as an environment variable says, else on the PATH.
pub fn tool(variable: &str, name: &str) -> PathBuf {
    std::env::var_os(variable).map_or_else(|| PathBuf::from(name), PathBuf::from)
}

/// A port that is free now.
pub fn free_port() -> Fallible<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// An Alertmanager with the routes of the repository, all receivers at one port of this machine.
#[derive(Debug)]
pub struct Alertmanager {
    /// Where it listens.
    pub port: u16,
    _process: Guard,
}

impl Alertmanager {
    /// Starts it and waits until it is ready.
    pub fn start(dir: &Path, config: &Path, receivers: u16) -> Fallible<Alertmanager> {
        let text = fs::read_to_string(config).map_err(|e| format!("{}: {e}", config.display()))?;
        if !text.contains(RECEIVERS) {
            return Err(format!("{}: no receiver at {RECEIVERS}", config.display()).into());
        }
        let file = dir.join("alertmanager.yml");
        fs::write(&file, text.replace(RECEIVERS, &format!("http://127.0.0.1:{receivers}")))?;
        let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        let port = free_port()?;
        let process = spawn(
            alertmanager()
                .arg(format!("--config.file={}", file.display()))
                .arg(format!("--storage.path={}", dir.join("alertmanager").display()))
                .arg(format!("--web.listen-address=127.0.0.1:{port}"))
                .arg("--cluster.listen-address="),
            &dir.join("alertmanager.log"),
        )?;
        let process = ready(port, process, &dir.join("alertmanager.log"))?;
        Ok(Alertmanager { port, _process: process })
    }
}

/// Held from the choice of a port until the server answers on it: another server could choose the same port, and its answers
/// would be mistaken for those of this one.
static STARTING: Mutex<()> = Mutex::new(());

/// The Alertmanager, started in the folder that `ensure-tools.sh` unpacked it to: that copy reads its templates from a path
/// relative to the folder.
fn alertmanager() -> Command {
    let program = tool("ALERTMANAGER", "alertmanager");
    let root = program.canonicalize().ok().and_then(|path| path.ancestors().nth(3).map(Path::to_owned));
    let mut command = Command::new(program);
    if let Some(root) = root.filter(|root| root.ends_with("alertmanager")) {
        command.current_dir(root);
    }
    command
}

/// What a Prometheus scrapes.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its label `instance`.
    pub instance: String,
    /// Its label `cluster`; none if empty.
    pub cluster: String,
    /// Where it listens on this machine.
    pub port: u16,
}

/// A Prometheus with rules.
#[derive(Debug)]
pub struct Prometheus {
    /// Where it listens.
    pub port: u16,
    _process: Guard,
}

impl Prometheus {
    /// Starts it, on the data in `dir/data` if there are some, and waits until it is ready.
    pub fn start(
        dir: &Path,
        targets: &[Target],
        rules: &[PathBuf],
        every: (&str, &str),
        alertmanager: Option<u16>,
    ) -> Fallible<Prometheus> {
        fs::create_dir_all(dir)?;
        let (scrape, evaluate) = every;
        let mut config =
            format!("global:\n  scrape_interval: {scrape}\n  evaluation_interval: {evaluate}\nrule_files:\n");
        for file in rules {
            writeln!(config, "  - '{}'", file.display())?;
        }
        if let Some(port) = alertmanager {
            writeln!(
                config,
                "alerting:\n  alertmanagers:\n    - static_configs:\n        - targets: ['127.0.0.1:{port}']"
            )?;
        }
        if !targets.is_empty() {
            config.push_str("scrape_configs:\n  - job_name: gpu-node-exporter\n    static_configs:\n");
        }
        for Target { instance, cluster, port } in targets {
            writeln!(
                config,
                "      - targets: ['127.0.0.1:{port}']\n        labels: {{ instance: '{instance}', cluster: '{cluster}' }}"
            )?;
        }
        let file = dir.join("prometheus.yml");
        fs::write(&file, config)?;
        let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        let port = free_port()?;
        let process = spawn(
            Command::new(tool("PROMETHEUS", "prometheus"))
                .arg(format!("--config.file={}", file.display()))
                .arg(format!("--storage.tsdb.path={}", dir.join("data").display()))
                // History that is brought along may be older than what is kept by default.
                .arg("--storage.tsdb.retention.time=10y")
                .arg(format!("--web.listen-address=127.0.0.1:{port}")),
            &dir.join("prometheus.log"),
        )?;
        let process = ready(port, process, &dir.join("prometheus.log"))?;
        Ok(Prometheus { port, _process: process })
    }

    /// The result of a query.
    pub fn query(&self, promql: &str) -> Fallible<Vec<Value>> {
        self.ask(&format!("/api/v1/query?query={}", escaped(promql)))
    }

    /// The series of a query over a time, in seconds since 1970.
    pub fn query_range(&self, promql: &str, from: u64, to: u64, step: u64) -> Fallible<Vec<Value>> {
        let query = escaped(promql);
        self.ask(&format!("/api/v1/query_range?query={query}&start={from}&end={to}&step={step}"))
    }

    fn ask(&self, path: &str) -> Fallible<Vec<Value>> {
        let answer: Value = serde_json::from_str(&get(self.port, path)?)?;
        answer["data"]["result"].as_array().cloned().ok_or_else(|| "no result".into())
    }

    /// A single number.
    pub fn number(&self, promql: &str) -> Fallible<Option<f64>> {
        let result = self.query(promql)?;
        Ok(result.first().and_then(|one| one["value"][1].as_str()?.parse().ok()))
    }

    /// Its rules of this kind: `alert` or `record`.
    pub fn rules(&self, kind: &str) -> Fallible<Vec<Value>> {
        let answer: Value = serde_json::from_str(&get(self.port, &format!("/api/v1/rules?type={kind}"))?)?;
        let groups = answer["data"]["groups"].as_array().ok_or("no groups of rules")?;
        let rules = groups.iter().filter_map(|group| group["rules"].as_array()).flatten();
        Ok(rules.cloned().collect())
    }
}

fn ready(port: u16, mut process: Guard, log: &Path) -> Fallible<Guard> {
    let deadline = Instant::now() + START;
    loop {
        let answers = get(port, "/-/ready").is_ok();
        // One that could not listen has ended: then it was another that answered.
        let ended = process.0.try_wait()?.is_some();
        if answers && !ended {
            return Ok(process);
        }
        if ended || Instant::now() > deadline {
            let said = fs::read_to_string(log)?;
            return Err(
                format!("it is not ready; it said: {}", said.lines().last().unwrap_or("nothing")).into()
            );
        }
        pause();
    }
}
