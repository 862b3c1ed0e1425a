//! GPUs and MIG devices of the node, and the selection of those to test.

use std::time::Duration;

use crate::commands::doctor::daemon::Daemon;
use crate::commands::doctor::driver_query::{DriverAnswers, QueryScope, does_not_return, label};
use canary::gate::facts::{GateValue, Values, state};
use canary::gate::{self, GateFacts, RunCondition};
use collectors::windows::store::WindowStore;
use model::canary::{Instance, Place};
use model::catalog::schema::{Entity, KnownLabel, LabelSet, Metric};
use model::catalog::{self as m, CanarySkip, ComputeInstance, Gpu, MetricId, RecoveryAction};
use model::clock::{Mono, unix_seconds};
use model::sample::{Batch, BatchKey, Missing, Row};
use model::window;
use settings::Config;

/// Metrics to read from the driver; others cost time.
const WANTED: [MetricId; 14] = [
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
    m::gpu_mig_compute_processes.id(),
];

/// Maximum age of the values. The driver is queried again after a much shorter time.
const FRESH_FOR: Duration = Duration::from_secs(3600);

/// GPU or MIG device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedDevice {
    pub place: Place,
    /// Product name such as `NVIDIA H200`; empty if unknown.
    pub model: String,
    /// PCI address of the GPU; empty if unknown.
    pub pci_address: String,
    /// True if the GPU is in MIG mode without an instance.
    pub no_instance: bool,
}

impl ListedDevice {
    /// Returns true if a word of the command line selects the device: `all`, the index or UUID of its GPU, or
    /// its own UUID.
    fn is(&self, word: &str) -> bool {
        let gpu = &self.place.gpu;
        word == "all"
            || word == gpu.gpu.to_string()
            || [&*gpu.uuid, self.place.device()].iter().any(|uuid| uuid.eq_ignore_ascii_case(word))
    }
}

/// Devices with the answers of the driver and of the daemon.
pub(crate) struct DeviceList {
    answers: DriverAnswers,
    daemon: Daemon,
    pub at: Mono,
    pub devices: Vec<ListedDevice>,
}

impl DeviceList {
    /// Queries the driver in a separate process.
    pub fn query(config: &Config) -> Result<DeviceList, String> {
        let daemon = Daemon::connect(config);
        let answers = daemon.query_driver(config, QueryScope::Only(&WANTED));
        let answers = answers.map_err(|why| format!("the driver: {}", why.text))?;
        if let Some((_, text)) = answers.away.as_ref().filter(|_| !answers.up) {
            return Err(format!("the driver does not respond: {text}"));
        }
        if let Some(hung) = answers.hung.iter().find(|hung| hung.gpu().is_none()) {
            return Err(format!("{}, so the driver hangs", does_not_return(hung)));
        }
        let devices = devices(&answers);
        Ok(DeviceList { answers, daemon, at: Mono::now(), devices })
    }

    /// Returns the current conditions for a run.
    pub fn conditions(&self, config: &Config, device: &ListedDevice) -> Vec<RunCondition> {
        let mut facts = GateFacts::read(&self.answers, &device.place, FRESH_FOR);
        facts.no_instance = device.no_instance;
        let now = unix_seconds();
        facts.maintenance = window::maintenance(&WindowStore::new(config).list(now).0, now);
        if facts.state.is_none() && self.daemon.canary_stuck_on(&device.place.gpu.uuid) {
            facts.state = Some((CanarySkip::ChildAlive, "a canary of the daemon hangs on this GPU".into()));
        }
        gate::conditions(&facts, Duration::ZERO)
    }

    /// Returns the other GPU for copies between GPUs, which is the next GPU that may run.
    pub fn peer(&self, config: &Config, device: &ListedDevice, force: bool) -> Option<ListedDevice> {
        device.place.instance.is_none().then_some(())?;
        let whole = |other: &&ListedDevice| other.place.instance.is_none() && !other.no_instance;
        let (before, after): (Vec<_>, Vec<_>) =
            self.devices.iter().filter(whole).partition(|other| other.place <= device.place);
        let mut others = after.into_iter().chain(before).filter(|other| other.place != device.place);
        others.find(|other| super::refused(&self.conditions(config, other), force).is_none()).cloned()
    }
}

/// Returns the selected devices without duplicates, in order.
pub fn choose(devices: &[ListedDevice], words: &[String]) -> Result<Vec<ListedDevice>, String> {
    if devices.is_empty() {
        return Err("the driver lists no GPU".into());
    }
    let words: Vec<&String> = words.iter().filter(|word| !word.is_empty()).collect();
    if let Some(word) = words.iter().find(|word| !devices.iter().any(|device| device.is(word))) {
        let known = devices.iter().map(|device| format!("{} {}", device.place, device.place.device()));
        let known: Vec<String> = known.collect();
        return Err(format!("there is no GPU {word}; this node has {}", known.join(", ")));
    }
    let meant = |device: &&ListedDevice| words.is_empty() || words.iter().any(|word| device.is(word));
    Ok(devices.iter().filter(meant).cloned().collect())
}

/// Returns every GPU, or its MIG devices, including GPUs without a handle, sorted by place.
fn devices(answers: &DriverAnswers) -> Vec<ListedDevice> {
    let mut devices = Vec::new();
    for (gpu, row) in answers.gpus() {
        let device = |instance, no_instance| ListedDevice {
            place: Place { gpu: gpu.clone(), instance },
            model: label(row, "model"),
            pci_address: label(row, "pci_address"),
            no_instance,
        };
        let mig = answers.value(&m::gpu_mig_mode_enabled, gpu, ()).is_some_and(|on| on > 0.0);
        let parts = if mig { answers.mig_devices(gpu) } else { Default::default() };
        if parts.is_empty() {
            devices.push(device(None, mig));
        }
        let part = |(of, row): (&ComputeInstance, &Row)| Instance {
            gpu_instance: of.gpu_instance,
            compute_instance: of.compute_instance,
            profile: of.profile.to_string(),
            mig_uuid: label(row, "mig_uuid"),
        };
        devices.extend(parts.into_iter().map(|of| device(Some(part(of)), false)));
    }
    for hung in answers.hung.iter().filter(|hung| hung.gpu().is_some()) {
        tracing::warn!("{}", does_not_return(hung));
    }
    let silent =
        answers.attach_failed.keys().copied().chain(answers.hung.iter().filter_map(|hung| hung.gpu()));
    for index in silent {
        if devices.iter().all(|device| device.place.gpu.gpu != index) {
            devices.push(ListedDevice {
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

/// Values that were read just now. History is missing.
impl Values for DriverAnswers {
    fn value<E: Entity, L: LabelSet>(&self, metric: &Metric<E, L>, entity: &E, labels: L) -> Option<f64> {
        let (subject, labels) = (entity.subject(), labels.texts());
        let rows = self.rows(metric.id()).filter(|(of, row)| **of == subject && row.labels == labels);
        rows.map(|(_, row)| row.value).last()
    }

    fn unsupported(&self, gpu: &Gpu, metric: MetricId) -> bool {
        let of = |(part, _): &(&BatchKey, &Batch)| part.gpu.as_ref() == Some(gpu);
        let gaps = self.batches.iter().filter(of).flat_map(|(_, batch)| &batch.gaps);
        gaps.into_iter().any(|gap| gap.metrics.contains(&metric) && gap.missing == Missing::Unsupported)
    }

    fn state(&self, gpu: &Gpu) -> Option<(CanarySkip, String)> {
        if let Some((_, text)) = &self.away {
            return Some((CanarySkip::Unread, text.clone()));
        }
        if let Some(text) = self.attach_failed.get(&gpu.gpu) {
            return Some((CanarySkip::Unhealthy, text.clone()));
        }
        let hung = self.hung.iter().find(|hung| hung.gpu().is_none_or(|index| index == gpu.gpu))?;
        Some((CanarySkip::Unhealthy, format!("a driver call does not return: {}", hung.call)))
    }

    fn age(&self, gpu: &Gpu) -> Option<Duration> {
        self.batches.keys().any(|part| part.gpu.as_ref() == Some(gpu)).then_some(Duration::ZERO)
    }

    fn unhealthy(&self, gpu: &Gpu) -> Option<Vec<String>> {
        match state(self, gpu, &m::gpu_recovery_action) {
            GateValue::Value(RecoveryAction::None) | GateValue::Unsupported => Some(Vec::new()),
            GateValue::Value(action) => Some(vec![format!("the driver asks for {}", action.known())]),
            GateValue::Unread => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(index: u32, mig: Option<&str>) -> ListedDevice {
        let instance = mig.map(|uuid| Instance {
            gpu_instance: 1,
            compute_instance: 0,
            profile: "1g.18gb".into(),
            mig_uuid: uuid.into(),
        });
        ListedDevice {
            place: Place { gpu: Gpu { gpu: index, uuid: format!("GPU-{index}").into() }, instance },
            model: "NVIDIA H200".into(),
            pci_address: "0000:06:00.0".into(),
            no_instance: false,
        }
    }

    fn chosen(words: &[&str]) -> Result<Vec<String>, String> {
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
        let refused = chosen(&["all", "7"]).unwrap_err();
        assert!(refused.contains("no GPU 7") && refused.contains("GPU 10 GPU-10"), "{refused}");
        assert!(choose(&[], &[]).is_err());
    }
}
