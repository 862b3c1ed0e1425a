//! What the gate goes by, read from what is published or from what a process of one's own has asked.

use std::time::Duration;

use super::claims::Claimed;
use model::canary::Place;
use model::catalog::schema::{Entity, LabelSet, Metric};
use model::catalog::{
    self as m, CanarySkip, ComputeInstance, ComputeMode, Gpu, GpuInstance, MetricId, ProcessType, Tier,
    UnhealthyReason,
};
use model::sample::Missing;
use model::snapshot::{DriverState, GpuState, GpuView, Snapshot};

use model::catalog::schema::KnownLabel;

/// Why claims are left out where only the daemon knows whose they are.
const CALLER: &str = "only the daemon asks: in a prolog or a pod, the claim is that of who calls";

/// A value that the driver is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GateValue<T> {
    Value(T),
    /// Device or driver do not know it.
    Unsupported,
    /// It is not known now: not read yet, too old, failed, or switched off.
    Unread,
}

/// For how long something has not happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Since {
    /// It was never seen.
    Never,
    /// It was seen that long ago.
    Ago(Duration),
    /// Not watched, and why.
    Unknown(String),
}

/// Device memory, bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryUse {
    /// In use by processes.
    pub used: f64,
    pub total: f64,
    /// The least that was ever seen in use there.
    pub least: Option<f64>,
}

/// All that the gate goes by.
#[derive(Clone, Debug, PartialEq)]
pub struct GateFacts {
    /// Whether the driver is, or is to be, released.
    pub released: bool,
    /// Why nothing can be said of the GPU, if so.
    pub state: Option<(CanarySkip, String)>,
    /// Age of the oldest of the values below; `None`: there are none.
    pub age: Option<Duration>,
    /// Up to which age they count.
    pub fresh_for: Duration,
    /// What is known against the GPU, by name; `None`: not known.
    pub unhealthy: Option<Vec<String>>,
    pub xid: Since,
    /// An earlier canary's process that is still there.
    pub child: Option<i32>,
    /// Whether it is in MIG mode without an instance.
    pub no_instance: bool,
    /// Processes on the device.
    pub processes: GateValue<u32>,
    /// Of these, those of MPS.
    pub mps: GateValue<u32>,
    /// Pods that were given it.
    pub pod: Claimed,
    /// Jobs that were given it.
    pub job: Claimed,
    /// Who may use the GPU.
    pub compute_mode: GateValue<ComputeMode>,
    /// Whether the driver keeps the GPU initialised.
    pub persistence: GateValue<bool>,
    /// Share of the last sample period with work.
    pub utilization: GateValue<f64>,
    /// For how long there was no work; `None`: not watched.
    pub idle: Option<Duration>,
    pub memory: Option<MemoryUse>,
    /// Why maintenance keeps the canary away, if so.
    pub maintenance: Option<String>,
    /// Until the budget of GPU time has something again.
    pub duty_wait: Option<Duration>,
    /// The holder of the interlock.
    pub interlock: Option<String>,
}

/// Where values are read: what is published, or what a process of one's own has asked.
pub trait Values {
    /// The value of one series, if it is there.
    fn value<E: Entity, L: LabelSet>(&self, metric: &Metric<E, L>, entity: &E, labels: L) -> Option<f64>;
    /// Whether the device or driver does not know a metric of this GPU.
    fn unsupported(&self, gpu: &Gpu, metric: MetricId) -> bool;
    /// Why nothing can be said of the GPU, if so.
    fn state(&self, gpu: &Gpu) -> Option<(CanarySkip, String)>;
    /// Processes listed on a MIG instance, its GPU and compute instance given; also where the metric is older.
    fn listed(&self, _gpu: &Gpu, _instance: (u32, u32)) -> usize {
        0
    }
    /// Age of the older of the two tiers that processes and utilization are read in.
    fn age(&self, gpu: &Gpu) -> Option<Duration>;
    /// What is known against the GPU; `None`: not known.
    fn unhealthy(&self, gpu: &Gpu) -> Option<Vec<String>>;
}

impl GateFacts {
    /// The values of a place. What only the daemon knows, as for how long it was idle, is left for it to
    /// fill in.
    pub fn read(values: &impl Values, place: &Place, fresh_for: Duration) -> GateFacts {
        let gpu = &place.gpu;
        let number = |metric: &Metric<Gpu, ()>| values.value(metric, gpu, ());
        let persistence = number(&m::gpu_persistence_mode_enabled).map(|on| on > 0.0);
        GateFacts {
            released: false,
            state: values.state(gpu),
            age: values.age(gpu),
            fresh_for,
            unhealthy: values.unhealthy(gpu),
            xid: Since::Unknown("only the daemon watches for them".into()),
            child: None,
            no_instance: false,
            processes: processes(values, place),
            mps: processes_of(values, gpu, ProcessType::Mps),
            pod: Claimed::Unasked(CALLER.into()),
            job: Claimed::Unasked(CALLER.into()),
            compute_mode: state(values, gpu, &m::gpu_compute_mode),
            persistence: known(values, gpu, m::gpu_persistence_mode_enabled.id(), persistence),
            utilization: match place.instance {
                None => {
                    let metric = &m::gpu_utilization_ratio;
                    known(values, gpu, metric.id(), number(metric))
                }
                // In MIG mode the driver tells it of no part.
                Some(_) => GateValue::Unsupported,
            },
            idle: None,
            memory: memory(values, place),
            maintenance: None,
            duty_wait: None,
            interlock: None,
        }
    }
}

/// What was read; without it the driver does not know it, or it was not read.
fn known<T>(values: &impl Values, gpu: &Gpu, metric: MetricId, read: Option<T>) -> GateValue<T> {
    match read {
        Some(value) => GateValue::Value(value),
        None if values.unsupported(gpu, metric) => GateValue::Unsupported,
        None => GateValue::Unread,
    }
}

fn processes_of(values: &impl Values, gpu: &Gpu, kind: ProcessType) -> GateValue<u32> {
    let read = values.value(&m::gpu_processes, gpu, (kind,));
    known(values, gpu, m::gpu_processes.id(), read.map(|n| n as u32))
}

/// The active one of a set of states.
pub fn state<S: KnownLabel>(values: &impl Values, gpu: &Gpu, metric: &Metric<Gpu, (S,)>) -> GateValue<S> {
    let active = S::ALL.iter().find(|state| values.value(metric, gpu, (**state,)) == Some(1.0));
    known(values, gpu, metric.id(), active.copied())
}

/// Processes of all kinds on the device. A kind the driver does not know has none; one without a value leaves
/// the number unknown.
fn processes(values: &impl Values, place: &Place) -> GateValue<u32> {
    if let Some(instance) = compute_instance(place) {
        let ids = (instance.gpu_instance, instance.compute_instance);
        let read = values.value(&m::gpu_mig_compute_processes, &instance, ());
        return match read {
            Some(n) => GateValue::Value((n as u32).max(values.listed(&place.gpu, ids) as u32)),
            None => GateValue::Unread,
        };
    }
    let mut sum = GateValue::Unsupported;
    for kind in ProcessType::ALL {
        sum = match (sum, processes_of(values, &place.gpu, *kind)) {
            (GateValue::Unread, _) | (_, GateValue::Unread) => GateValue::Unread,
            (GateValue::Value(all), GateValue::Value(n)) => GateValue::Value(all + n),
            (known, GateValue::Unsupported) | (GateValue::Unsupported, known) => known,
        };
    }
    sum
}

fn memory(values: &impl Values, place: &Place) -> Option<MemoryUse> {
    let (used, total) = match gpu_instance(place) {
        Some(instance) => {
            let value = |metric| values.value(metric, &instance, ());
            (value(&m::gpu_mig_memory_used_bytes)?, value(&m::gpu_mig_memory_total_bytes)?)
        }
        None => {
            let value = |metric| values.value(metric, &place.gpu, ());
            (value(&m::gpu_memory_used_bytes)?, value(&m::gpu_memory_total_bytes)?)
        }
    };
    Some(MemoryUse { used, total, least: None })
}

/// The GPU instance of a place, as the catalogue knows it.
fn gpu_instance(place: &Place) -> Option<GpuInstance> {
    let instance = place.instance.as_ref()?;
    Some(GpuInstance {
        gpu: place.gpu.gpu,
        uuid: place.gpu.uuid.clone(),
        gpu_instance: instance.gpu_instance,
        profile: instance.profile.as_str().into(),
    })
}

fn compute_instance(place: &Place) -> Option<ComputeInstance> {
    let GpuInstance { gpu, uuid, gpu_instance, profile } = gpu_instance(place)?;
    let (_, compute_instance) = place.ids()?;
    Some(ComputeInstance { gpu, uuid, gpu_instance, profile, compute_instance })
}

impl Values for Snapshot {
    fn value<E: Entity, L: LabelSet>(&self, metric: &Metric<E, L>, entity: &E, labels: L) -> Option<f64> {
        self.number(metric, entity, labels)
    }

    fn unsupported(&self, gpu: &Gpu, metric: MetricId) -> bool {
        view(self, gpu).is_some_and(|view| {
            let mut gaps = view.gaps.iter();
            gaps.any(|gap| gap.metrics.contains(&metric) && gap.missing == Missing::Unsupported)
        })
    }

    fn state(&self, gpu: &Gpu) -> Option<(CanarySkip, String)> {
        let (reason, text) = match &self.driver {
            DriverState::Up => match view(self, gpu).map(|view| &view.state) {
                Some(GpuState::Up) => return None,
                Some(GpuState::Stuck { call, .. }) => {
                    (CanarySkip::Unhealthy, format!("a driver call on it does not return: {call}"))
                }
                Some(GpuState::Failing { text, .. }) => (CanarySkip::Unhealthy, text.clone()),
                Some(GpuState::Paused) => (CanarySkip::Released, "the driver is released".into()),
                Some(GpuState::Waiting | GpuState::Unread | GpuState::NoDriver) => {
                    (CanarySkip::Unread, "nothing was read of it".into())
                }
                None => (CanarySkip::NoDevice, "it is gone".into()),
            },
            DriverState::Paused { .. } => (CanarySkip::Released, "the driver is released".into()),
            DriverState::Stuck => (CanarySkip::Unhealthy, "the driver is stuck".into()),
            DriverState::Waiting => (CanarySkip::Unread, "the driver was not reached yet".into()),
            DriverState::Away { text } | DriverState::Mismatch { text } => {
                (CanarySkip::Unread, format!("the driver is away: {text}"))
            }
        };
        Some((reason, text))
    }

    fn listed(&self, gpu: &Gpu, instance: (u32, u32)) -> usize {
        let processes = view(self, gpu).into_iter().flat_map(|view| &view.processes);
        processes.filter(|one| one.instance == Some(instance)).count()
    }

    fn age(&self, gpu: &Gpu) -> Option<Duration> {
        let parts = &view(self, gpu)?.parts;
        let age = |tier| parts.iter().find(|part| part.tier == tier).map(|part| part.age);
        Some(age(Tier::Normal)?.max(age(Tier::Slow)?))
    }

    fn unhealthy(&self, gpu: &Gpu) -> Option<Vec<String>> {
        let healthy = self.number(&m::gpu_healthy, gpu, ())?;
        let active = |reason: &&UnhealthyReason| {
            self.number(&m::gpu_unhealthy_reason, gpu, (**reason,)).is_some_and(|on| on > 0.0)
        };
        let reasons = UnhealthyReason::ALL.iter().filter(active);
        let mut names: Vec<String> = reasons.map(|reason| reason.known().to_owned()).collect();
        if healthy <= 0.0 && names.is_empty() {
            names.push("it is not healthy".into());
        }
        // What the canary found keeps it not from looking again: else it could never take that back.
        names.retain(|name| name != UnhealthyReason::Canary.known());
        Some(names)
    }
}

fn view<'a>(snapshot: &'a Snapshot, gpu: &Gpu) -> Option<&'a GpuView> {
    snapshot.gpus.iter().find(|view| view.gpu == *gpu)
}
