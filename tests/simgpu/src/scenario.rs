//! A scenario: the node, and what happens to it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;

use crate::curve::{Curve, Load};
use crate::error::Error;
use crate::functions::{Function, Key};
use crate::mig::Layout;
use crate::model::Model;
use crate::process::{Process, ProcessEntry, ProcessKind};
use crate::state::work::MAX_GPUS;
use crate::state::{MAX_GATES, MAX_STEPS};
use crate::step::{Action, Step, StepEntry, read_set};
use crate::units;
use crate::value::Value;

/// What every video session does.
pub const SESSION_FPS: u32 = 30;
/// See `SESSION_FPS`.
pub const SESSION_LATENCY_US: u32 = 5000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default = "driver")]
    driver: String,
    #[serde(default = "cuda")]
    cuda: i32,
    nvml: Option<String>,
    #[serde(default = "yes")]
    library_present: bool,
    #[serde(default)]
    still: bool,
    latency: Option<String>,
    #[serde(default)]
    paced: bool,
    #[serde(default)]
    pid_offset: u32,
    #[serde(default)]
    gpu: Vec<GpuEntry>,
    #[serde(default)]
    step: Vec<StepEntry>,
}

fn driver() -> String {
    "580.159.04".into()
}

fn cuda() -> i32 {
    13000
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GpuEntry {
    model: String,
    count: Option<usize>,
    mig: Option<Vec<String>>,
    load: Option<Load>,
    power_limit: Option<f64>,
    #[serde(default)]
    processes: Vec<ProcessEntry>,
    #[serde(default)]
    encoder_sessions: usize,
    #[serde(default)]
    fbc_sessions: usize,
    #[serde(default)]
    vgpus: Vec<VgpuEntry>,
    #[serde(default)]
    foreign: bool,
    #[serde(default)]
    set: toml::Table,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VgpuEntry {
    uuid: String,
    #[serde(rename = "type")]
    kind: String,
    vm: String,
    memory: String,
    #[serde(default)]
    sm: u32,
    #[serde(default)]
    licensed: bool,
}

/// A type of vGPU; everything about it is in its name.
#[derive(Clone, Debug)]
pub struct VgpuType {
    /// `NVIDIA L4-6Q`.
    pub name: String,
    /// What the driver calls its series.
    pub class: &'static str,
    /// The memory that the host sets aside for it.
    pub memory: u64,
}

impl VgpuType {
    fn named(name: &str) -> Result<VgpuType, String> {
        let bad = || format!("'{name}' is no vGPU type such as 'NVIDIA L4-6Q'");
        let (_, last) = name.rsplit_once('-').ok_or_else(bad)?;
        let (gib, series) = last.split_at_checked(last.len().saturating_sub(1)).ok_or_else(bad)?;
        let class = match series {
            "Q" => "Quadro",
            "C" => "Compute",
            "A" | "B" => "NVS",
            _ => return Err(bad()),
        };
        let gib: u32 = gib.parse().map_err(|_| bad())?;
        Ok(VgpuType { name: name.into(), class, memory: u64::from(gib) << 30 })
    }
}

/// A virtual machine's share of a GPU.
#[derive(Clone, Debug)]
pub struct Vgpu {
    /// Its UUID.
    pub uuid: String,
    /// Its type.
    pub kind: VgpuType,
    /// The virtual machine.
    pub vm: String,
    /// What the virtual machine uses of its memory.
    pub memory: u64,
    /// How busy it keeps the GPU, in percent.
    pub sm: u32,
    /// Whether the virtual machine has its licence.
    pub licensed: bool,
}

/// A GPU of the node.
#[derive(Debug)]
pub struct Gpu {
    /// Its model.
    pub model: Arc<Model>,
    /// What it is doing.
    pub load: Load,
    /// Its power limit, if it is not the model's.
    pub power_limit: Option<f64>,
    /// Its processes.
    pub processes: Vec<Process>,
    /// Its vGPUs.
    pub vgpus: Vec<Vgpu>,
    /// Whether its lists are those of a foreign library.
    pub foreign: bool,
    /// Answers that differ from the model's.
    pub set: HashMap<Key, Value>,
    /// How it moves; nothing when it is still.
    pub curve: Option<Curve>,
    /// Its MIG layouts: the first, then those of the steps named.
    pub layouts: Vec<(Option<usize>, Layout)>,
}

/// A scenario, read and checked.
#[derive(Debug)]
pub struct Scenario {
    /// Driver version.
    pub driver: String,
    /// NVML version.
    pub nvml: String,
    /// CUDA driver version.
    pub cuda: i32,
    /// Whether the library says that it is there at all.
    pub library_present: bool,
    /// Whether expensive calls take as long as recorded.
    pub recorded_latency: bool,
    /// Whether work on a GPU takes its simulated time in earnest.
    pub paced: bool,
    /// By how much the ids of processes with a CUDA context are above those that they have here.
    pub pid_offset: u32,
    /// The GPUs by index.
    pub gpus: Vec<Gpu>,
    /// What happens.
    pub steps: Vec<Step>,
    /// The gates that steps name.
    pub gates: Vec<String>,
}

impl Scenario {
    /// Reads a scenario file.
    pub fn load(path: impl AsRef<Path>) -> Result<Scenario, Error> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path)
            .map_err(|e| Error::new(format!("scenario {}: {e}", path.display())))?;
        Scenario::parse(&text).map_err(|e| Error::new(format!("scenario {}: {e}", path.display())))
    }

    /// Reads the text of a scenario.
    pub fn parse(text: &str) -> Result<Scenario, Error> {
        Scenario::read(text).map_err(Error::new)
    }

    fn read(text: &str) -> Result<Scenario, String> {
        let file: File = toml::from_str(text).map_err(|e| in_one_line(text, &e))?;
        let recorded_latency = match file.latency.as_deref() {
            None | Some("none") => false,
            Some("recorded") => true,
            Some(other) => return Err(format!("latency is \"recorded\" or \"none\", not '{other}'")),
        };
        let mut gpus = Vec::new();
        for (n, entry) in file.gpu.into_iter().enumerate() {
            for _ in 0..entry.count.unwrap_or(1) {
                let gpu = read_gpu(&entry, file.still, gpus.len());
                gpus.push(gpu.map_err(|e| format!("[[gpu]] number {}: {e}", n + 1))?);
            }
            if gpus.len() > MAX_GPUS {
                return Err(format!("more than {MAX_GPUS} GPUs"));
            }
        }
        let mut gates = Vec::new();
        let mut steps: Vec<Step> = Vec::new();
        for (n, entry) in file.step.into_iter().enumerate() {
            let at = |e| format!("[[step]] number {}: {e}", n + 1);
            let step = entry.read(gpus.len(), &mut gates).map_err(at)?;
            cut(&step, n, &mut gpus).map_err(at)?;
            steps.push(step);
        }
        if steps.len() > MAX_STEPS || gates.len() > MAX_GATES {
            return Err(format!("more than {MAX_STEPS} steps or {MAX_GATES} gates"));
        }
        Ok(Scenario {
            nvml: file.nvml.unwrap_or_else(|| format!("13.{}", file.driver)),
            driver: file.driver,
            cuda: file.cuda,
            library_present: file.library_present,
            recorded_latency,
            paced: file.paced,
            pid_offset: file.pid_offset,
            gpus,
            steps,
            gates,
        })
    }
}

/// A TOML error with its line, for a log that takes one line.
fn in_one_line(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    format!("line {}: {}", before.matches('\n').count() + 1, error.message().replace('\n', " "))
}

fn read_gpu(entry: &GpuEntry, still: bool, index: usize) -> Result<Gpu, String> {
    let model = Model::named(&entry.model)?;
    let load = entry.load.unwrap_or(if still { Load::Still } else { Load::Idle });
    let layout = match &entry.mig {
        None => Layout::default(),
        Some(profiles) => Layout::new(&model, profiles)?,
    };
    let mut processes: Vec<Process> =
        entry.processes.iter().map(ProcessEntry::read).collect::<Result<_, _>>()?;
    let limit = entry.power_limit.unwrap_or(model.behaviour.full_watts * 1.02);
    let curve = (load != Load::Still).then(|| Curve::new(load, &model.behaviour, limit, index));
    if processes.is_empty() && load.memory() > 0.0 {
        processes = busy_processes(&model, load, index, &layout);
    }
    let mut set = HashMap::new();
    if let Some(watts) = entry.power_limit {
        set_power_limit(&mut set, watts);
    }
    let users: Vec<u32> = processes.iter().map(|p| p.pid).collect();
    set_sessions(&mut set, entry, if users.is_empty() { vec![made_up_pid(index, 0)] } else { users });
    let vgpus = entry.vgpus.iter().map(read_vgpu).collect::<Result<Vec<_>, _>>()?;
    if !vgpus.is_empty() {
        if entry.count.is_some_and(|n| n > 1) {
            return Err("vgpus have UUIDs; write a [[gpu]] for each".into());
        }
        set.insert(Key::new(Function::nvmlDeviceGetVirtualizationMode, &[]), Value::Int(3));
        // All GPUs with vGPUs that are modelled here share themselves by SR-IOV.
        set.insert(Key::new(Function::nvmlDeviceGetHostVgpuMode, &[]), Value::Int(1));
    }
    set.extend(read_set(&entry.set)?);
    let (power_limit, foreign) = (entry.power_limit, entry.foreign);
    Ok(Gpu { model, load, power_limit, processes, vgpus, foreign, set, curve, layouts: vec![(None, layout)] })
}

fn read_vgpu(entry: &VgpuEntry) -> Result<Vgpu, String> {
    Ok(Vgpu {
        uuid: entry.uuid.clone(),
        kind: VgpuType::named(&entry.kind)?,
        vm: entry.vm.clone(),
        memory: units::bytes(&entry.memory)?,
        sm: entry.sm,
        licensed: entry.licensed,
    })
}

/// A number above the kernel's largest, so that the process is never taken for a real one.
fn made_up_pid(gpu: usize, n: usize) -> u32 {
    4_200_000 + (gpu * 16 + n) as u32
}

/// A busy GPU without named processes has one on every MIG device.
fn busy_processes(model: &Model, load: Load, index: usize, layout: &Layout) -> Vec<Process> {
    let part = |bytes: u64| (bytes as f64 * load.memory()) as u64;
    let process = |n: usize, bytes: u64, instance: Option<usize>| Process {
        pid: made_up_pid(index, n),
        memory: part(bytes),
        kind: ProcessKind::Compute,
        instance,
        idle: false,
    };
    if layout.enabled {
        let devices = layout.devices().enumerate();
        return devices.map(|(i, (gi, _))| process(i, gi.profile.memory_mib << 20, Some(i))).collect();
    }
    let key = Key::new(Function::nvmlDeviceGetMemoryInfo, &[]);
    let total = model.answer(index, &key).and_then(|v| v.u64(0).ok()).unwrap_or(0);
    vec![process(0, total, None)]
}

fn set_power_limit(set: &mut HashMap<Key, Value>, watts: f64) {
    use Function::*;
    let milliwatts = Value::Int((watts * 1000.0) as i64);
    let calls = [
        Key::new(nvmlDeviceGetPowerManagementLimit, &[]),
        Key::new(nvmlDeviceGetEnforcedPowerLimit, &[]),
        Key::new(nvmlDeviceGetFieldValues, &[190]),
        Key::new(nvmlDeviceGetFieldValues, &[192]),
    ];
    set.extend(calls.map(|key| (key, milliwatts.clone())));
}

/// Sessions belong to processes, which share them.
fn set_sessions(set: &mut HashMap<Key, Value>, entry: &GpuEntry, pids: Vec<u32>) {
    use Function::*;
    let calls = [
        (entry.encoder_sessions, nvmlDeviceGetEncoderSessions, nvmlDeviceGetEncoderStats),
        (entry.fbc_sessions, nvmlDeviceGetFBCSessions, nvmlDeviceGetFBCStats),
    ];
    for (count, sessions, stats) in calls.into_iter().filter(|(count, ..)| *count > 0) {
        let pids = pids.iter().cycle().take(count).map(|pid| Value::Int(i64::from(*pid)));
        set.insert(Key::new(sessions, &[]), Value::List(pids.collect()));
        let means = [count as u64, SESSION_FPS.into(), SESSION_LATENCY_US.into()];
        set.insert(Key::new(stats, &[]), Value::list(means));
    }
}

/// Works out the layout that a step brings, for every GPU it is about.
fn cut(step: &Step, number: usize, gpus: &mut [Gpu]) -> Result<(), String> {
    let Action::Mig(profiles) = &step.action else { return Ok(()) };
    for (i, gpu) in gpus.iter_mut().enumerate() {
        if step.gpu.is_none_or(|g| g == i) {
            let layout = match profiles {
                None => Layout::default(),
                Some(list) => Layout::new(&gpu.model, list)?,
            };
            gpu.layouts.push((Some(number), layout));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Scenario::parse(text).expect_err("refused").to_string()
    }

    #[test]
    fn mistakes_are_named() {
        assert!(refused("still = true\ndrivr = 1").starts_with("line 2: unknown field `drivr`, expected"));
        assert!(refused("[[gpu]]\nmodel = 'H2000'").contains("[[gpu]] number 1: no model 'H2000'"));
        let gpu = "[[gpu]]\nmodel = 'H200'\n";
        assert!(refused(&format!("{gpu}[[step]]\ngpu = 1\nlost = true")).contains("there are 1 GPUs"));
        assert!(refused(&format!("{gpu}[[step]]\ngpu = 0")).contains("no action"));
        assert!(
            refused(&format!("{gpu}[[step]]\nhang = true\nlost = true")).contains("more than one action")
        );
        assert!(
            refused(&format!("{gpu}[[step]]\nset = {{ nvmlGetX = 1 }}"))
                .contains("'nvmlGetX' is no function")
        );
        assert!(
            refused(&format!("{gpu}[[step]]\nerror = 'NVML_OOPS'")).contains("'NVML_OOPS' is no NVML return")
        );
    }

    #[test]
    fn gpus_are_counted() {
        let text = "[[gpu]]\nmodel = 'H200'\ncount = 3\n[[gpu]]\nmodel = 'L4'\n";
        assert_eq!(Scenario::parse(text).expect("reads").gpus.len(), 4);
    }
}
