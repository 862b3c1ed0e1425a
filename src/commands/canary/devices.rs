//! Which GPUs and MIG devices there are, and which of them are meant.

use std::collections::HashSet;
use std::time::Duration;

use super::Failed;
use crate::commands::doctor::ask::{self, Asked};
use crate::commands::doctor::daemon::Daemon;
use canary::gate::{Condition, Facts};
use canary::stray;
use model::canary::{Instance, Place};
use model::catalog::schema::{LabelDef, LabelSet, LabelText};
use model::catalog::{self as m, Gpu, GpuInfo, METRICS, MetricId, MigInfo, Subject};
use model::clock::Mono;
use model::sample::Row;
use settings::Config;

/// What is asked of the driver; the rest costs time.
const WANTED: [MetricId; 13] = [
    m::gpu_devices.id(),
    m::gpu_info.id(),
    m::gpu_processes.id(),
    m::gpu_utilization_ratio.id(),
    m::gpu_memory_used_bytes.id(),
    m::gpu_memory_total_bytes.id(),
    m::gpu_persistence_mode_enabled.id(),
    m::gpu_compute_mode.id(),
    m::gpu_recovery_action.id(),
    m::gpu_mig_mode_enabled.id(),
    m::gpu_mig_info.id(),
    m::gpu_mig_memory_used_bytes.id(),
    m::gpu_mig_memory_total_bytes.id(),
];
/// Also asked, of MIG devices.
const WANTED_OF_MIG: [MetricId; 1] = [m::gpu_mig_compute_processes.id()];

/// How old values may be when they count; what was asked is asked again when it is older.
const FRESH_FOR: Duration = Duration::from_secs(3600);

/// A GPU or MIG device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Which.
    pub place: Place,
    /// Name of the product, as `NVIDIA H200`; empty if it was not told.
    pub model: String,
    /// PCI address of the GPU; empty if it was not told.
    pub pci_address: String,
    /// Whether the GPU is in MIG mode without any instance.
    pub no_instance: bool,
}

impl Device {
    /// Whether it is meant: by the index or UUID of its GPU, its own UUID, or the only one that begins so.
    fn is(&self, word: &str) -> bool {
        let gpu = &self.place.gpu;
        word == gpu.gpu.to_string()
            || [&*gpu.uuid, self.place.device()].iter().any(|uuid| uuid.eq_ignore_ascii_case(word))
    }
}

/// What there is, and what was asked of it.
pub struct Listed {
    asked: Asked,
    daemon: Daemon,
    at: Mono,
    devices: Vec<Device>,
}

impl Listed {
    /// Asks the driver, in a process of its own.
    pub fn ask(config: &Config) -> Result<Listed, Failed> {
        let daemon = Daemon::ask(config);
        let wanted = |id: &MetricId| WANTED.contains(id) || WANTED_OF_MIG.contains(id);
        let all = (0..METRICS.len()).filter_map(|at| u16::try_from(at).ok().map(MetricId));
        let off: HashSet<MetricId> = all.filter(|id| !wanted(id)).collect();
        let asked = daemon.ask_driver(config, &off, ask::BRIEF);
        let asked = asked.map_err(|why| Failed(format!("the driver: {}", why.text)))?;
        if let Some((_, text)) = asked.away.as_ref().filter(|_| !asked.up) {
            return Err(Failed(format!("the driver does not answer: {text}")));
        }
        let node_hangs = asked.hung.iter().find(|hung| hung.gpu.is_none());
        if let Some(hung) = node_hangs {
            return Err(Failed(format!("{} does not return: the driver hangs", hung.call)));
        }
        let devices = devices(&asked);
        Ok(Listed { asked, daemon, at: Mono::now(), devices })
    }

    /// How long ago.
    pub fn age(&self) -> Duration {
        Mono::now().since(self.at)
    }

    /// Those that are meant, in order, each once.
    pub fn choose(&self, words: &[String]) -> Result<Vec<Device>, Failed> {
        choose(&self.devices, words)
    }

    /// The conditions for a run there.
    pub fn conditions(&self, config: &Config, device: &Device) -> Vec<Condition> {
        let facts = Facts::read(&self.asked, &device.place, FRESH_FOR);
        super::conditions(config, &self.daemon, device, facts)
    }

    /// The UUIDs by which CUDA may know the GPU of a device: with all that is on it.
    pub fn uuids(&self, device: &Device) -> Vec<String> {
        let places = self.devices.iter().map(|of| &of.place);
        stray::uuids(places.filter(|place| place.gpu.uuid == device.place.gpu.uuid))
    }

    /// The other end of copies between GPUs: the next one that a run may use.
    pub fn peer(&self, config: &Config, device: &Device, force: bool) -> Option<Device> {
        device.place.instance.is_none().then_some(())?;
        let whole: Vec<&Device> = self
            .devices
            .iter()
            .filter(|other| other.place.instance.is_none() && !other.no_instance)
            .collect();
        let at = whole.iter().position(|other| other.place == device.place)?;
        let others = (1..whole.len()).map(|step| whole[(at + step) % whole.len()]);
        let mut free =
            others.filter(|other| super::refused(&self.conditions(config, other), force).is_none());
        free.next().cloned()
    }
}

/// Those that are meant.
fn choose(devices: &[Device], words: &[String]) -> Result<Vec<Device>, Failed> {
    if devices.is_empty() {
        return Err(Failed("the driver lists no GPU".into()));
    }
    let mut chosen: Vec<Device> = Vec::new();
    let all = ["all".to_owned()];
    for word in if words.is_empty() { &all } else { words } {
        let of_word: Vec<&Device> = match word.as_str() {
            "all" => devices.iter().collect(),
            word => devices.iter().filter(|device| device.is(word)).collect(),
        };
        if of_word.is_empty() {
            let known: Vec<String> =
                devices.iter().map(|device| format!("{} {}", device.place, device.place.device())).collect();
            return Err(Failed(format!("there is no GPU {word}; there are: {}", known.join(", "))));
        }
        chosen.extend(of_word.into_iter().cloned());
    }
    chosen.sort_by(|a, b| a.place.cmp(&b.place));
    chosen.dedup();
    Ok(chosen)
}

/// Every GPU as a whole, or its MIG devices; those that the driver gives no handle to as well.
fn devices(asked: &Asked) -> Vec<Device> {
    let rows = || {
        let groups = asked.batches.values().flat_map(|batch| batch.rows.groups());
        groups.flat_map(|(subject, rows)| rows.iter().map(move |row| (subject, row)))
    };
    let mut devices = Vec::new();
    for (subject, row) in rows().filter(|(_, row)| row.metric == m::gpu_info.id()) {
        let Subject::Gpu(gpu) = subject else { continue };
        let whole = Device {
            place: Place { gpu: gpu.clone(), instance: None },
            model: text(row, GpuInfo::DEFS, "model"),
            pci_address: text(row, GpuInfo::DEFS, "pci_address"),
            no_instance: false,
        };
        let mode = rows().find(|(of, row)| *of == subject && row.metric == m::gpu_mig_mode_enabled.id());
        if mode.is_none_or(|(_, row)| row.value <= 0.0) {
            devices.push(whole);
            continue;
        }
        let instances = rows().filter(|(_, row)| row.metric == m::gpu_mig_info.id());
        let before = devices.len();
        for (subject, row) in instances {
            let Subject::ComputeInstance(instance) = subject else { continue };
            let mig_uuid = text(row, MigInfo::DEFS, "mig_uuid");
            if instance.uuid != gpu.uuid || mig_uuid.is_empty() {
                continue;
            }
            let instance = Instance {
                gpu_instance: instance.gpu_instance,
                compute_instance: instance.compute_instance,
                profile: instance.profile.to_string(),
                mig_uuid,
            };
            devices.push(Device {
                place: Place { gpu: gpu.clone(), instance: Some(instance) },
                ..whole.clone()
            });
        }
        if devices.len() == before {
            devices.push(Device { no_instance: true, ..whole });
        }
    }
    for (index, hung) in asked.hung.iter().filter_map(|hung| Some((hung.gpu?, hung))) {
        tracing::warn!(gpu = index, call = hung.call, "a driver call does not return");
    }
    let silent = asked.no_handle.keys().copied().chain(asked.hung.iter().filter_map(|hung| hung.gpu));
    for index in silent {
        if devices.iter().all(|device| device.place.gpu.gpu != index) {
            devices.push(Device {
                place: Place { gpu: Gpu { gpu: index, uuid: "".into() }, instance: None },
                model: String::new(),
                pci_address: String::new(),
                no_instance: false,
            });
        }
    }
    devices.sort_by(|a, b| a.place.cmp(&b.place));
    devices
}

fn text(row: &Row, defs: &'static [LabelDef], name: &str) -> String {
    let at = defs.iter().position(|def| def.name == name);
    let found = at.and_then(|at| Some((row.labels.get(at)?, defs.get(at)?)));
    found.map(|(text, def): (&LabelText, _)| text.text(def).to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(index: u32, mig: Option<&str>) -> Device {
        let instance = mig.map(|uuid| Instance {
            gpu_instance: 1,
            compute_instance: 0,
            profile: "1g.18gb".into(),
            mig_uuid: uuid.into(),
        });
        Device {
            place: Place { gpu: Gpu { gpu: index, uuid: format!("GPU-{index}").into() }, instance },
            model: "NVIDIA H200".into(),
            pci_address: "0000:06:00.0".into(),
            no_instance: false,
        }
    }

    fn chosen(words: &[&str]) -> Result<Vec<String>, Failed> {
        let devices = [device(0, None), device(1, Some("MIG-a")), device(1, Some("MIG-b")), device(10, None)];
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        choose(&devices, &words)
            .map(|chosen| chosen.iter().map(|device| device.place.device().to_owned()).collect())
    }

    #[test]
    fn gpus_are_chosen_by_index_or_uuid_and_each_once() {
        assert_eq!(chosen(&[]).unwrap(), ["GPU-0", "MIG-a", "MIG-b", "GPU-10"]);
        assert_eq!(chosen(&["10", "0", "gpu-0"]).unwrap(), ["GPU-0", "GPU-10"]);
        assert_eq!(chosen(&["1"]).unwrap(), ["MIG-a", "MIG-b"]);
        assert_eq!(chosen(&["MIG-b", "MIG-b"]).unwrap(), ["MIG-b"]);
        let refused = chosen(&["all", "7"]).unwrap_err().to_string();
        assert!(refused.contains("no GPU 7") && refused.contains("GPU 10 GPU-10"), "{refused}");
        assert!(choose(&[], &[]).is_err());
    }
}
