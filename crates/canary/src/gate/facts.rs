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
use model::snapshot::{DriverState, GpuState, Snapshot};

use model::catalog::schema::KnownLabel;

/// Why claims are left out where only the daemon knows whose they are.
const CALLER: &str = "only the daemon asks: in a prolog or a pod, the claim is that of who calls";

/// A value that the driver is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told<T> {
    /// It.
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
    /// Nobody watched, and why.
    Unknown(String),
}

/// Device memory, bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryUse {
    /// In use by processes.
    pub used: f64,
    /// All.
    pub total: f64,
    /// The least that was ever seen in use there.
    pub least: Option<f64>,
}

/// All that the gate goes by.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// Whether the driver is, or is to be, released.
    pub released: bool,
    /// Why nothing can be said of the GPU, if so.
    pub state: Option<(CanarySkip, String)>,
    /// Age of the oldest of the values below; `None`: there are none.
    pub age: Option<Duration>,
    /// Up to which age they count.
    pub fresh_for: Duration,
    /// What is known against the GPU, by name; `None`: nobody knows.
    pub unhealthy: Option<Vec<String>>,
    /// The last fault.
    pub xid: Since,
    /// An earlier canary's process that is still there.
    pub child: Option<i32>,
    /// Whether it is in MIG mode without an instance.
    pub no_instance: bool,
    /// Processes on the device.
    pub processes: Told<u32>,
    /// Of these, those of MPS.
    pub mps: Told<u32>,
    /// Pods that were given it.
    pub pod: Claimed,
    /// Jobs that were given it.
    pub job: Claimed,
    /// Who may use the GPU.
    pub compute_mode: Told<ComputeMode>,
    /// Whether the driver keeps the GPU initialised.
    pub persistence: Told<bool>,
    /// Share of the last sample period with work.
    pub utilization: Told<f64>,
    /// For how long there was no work; `None`: nobody watched.
    pub idle: Option<Duration>,
    /// Device memory.
    pub memory: Option<MemoryUse>,
    /// Why maintenance keeps the canary away, if so.
    pub maintenance: Option<String>,
    /// Until the budget of GPU time has something again.
    pub duty_wait: Option<Duration>,
    /// Who holds the interlock, if somebody does.
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
    /// What is known against the GPU; `None`: nobody knows.
    fn unhealthy(&self, gpu: &Gpu) -> Option<Vec<String>>;
}

impl Facts {
    /// What the values tell of a place. What only the daemon knows, as for how long it was idle, is left for it to
    /// fill in.
    pub fn read(values: &impl Values, place: &Place, fresh_for: Duration) -> Facts {
        let gpu = &place.gpu;
        Facts {
            released: false,
            state: values.state(gpu),
            age: values.age(gpu),
            fresh_for,
            unhealthy: values.unhealthy(gpu),
            xid: Since::Unknown("only the daemon watches for them".into()),
            child: None,
            no_instance: false,
            processes: processes(values, place),
            mps: count(values, gpu, &m::gpu_processes, (ProcessType::Mps,)),
            pod: Claimed::Unasked(CALLER.into()),
            job: Claimed::Unasked(CALLER.into()),
            compute_mode: state(values, gpu, &m::gpu_compute_mode),
            persistence: told(values, gpu, &m::gpu_persistence_mode_enabled, ()).map(|on| on > 0.0),
            utilization: match place.instance {
                None => told(values, gpu, &m::gpu_utilization_ratio, ()),
                // In MIG mode the driver tells it of no part.
                Some(_) => Told::Unsupported,
            },
            idle: None,
            memory: memory(values, place),
            maintenance: None,
            duty_wait: None,
            interlock: None,
        }
    }
}

impl<T> Told<T> {
    fn map<U>(self, f: impl FnOnce(T) -> U) -> Told<U> {
        match self {
            Told::Value(value) => Told::Value(f(value)),
            Told::Unsupported => Told::Unsupported,
            Told::Unread => Told::Unread,
        }
    }
}

fn told<L: LabelSet>(values: &impl Values, gpu: &Gpu, metric: &Metric<Gpu, L>, labels: L) -> Told<f64> {
    match values.value(metric, gpu, labels) {
        Some(value) => Told::Value(value),
        None if values.unsupported(gpu, metric.id()) => Told::Unsupported,
        None => Told::Unread,
    }
}

fn count<L: LabelSet>(values: &impl Values, gpu: &Gpu, metric: &Metric<Gpu, L>, labels: L) -> Told<u32> {
    told(values, gpu, metric, labels).map(|n| n as u32)
}

/// The active one of a set of states.
pub fn state<S: KnownLabel>(values: &impl Values, gpu: &Gpu, metric: &Metric<Gpu, (S,)>) -> Told<S> {
    let active = S::ALL.iter().find(|state| values.value(metric, gpu, (**state,)) == Some(1.0));
    match active {
        Some(state) => Told::Value(*state),
        None if values.unsupported(gpu, metric.id()) => Told::Unsupported,
        None => Told::Unread,
    }
}

/// Processes of all kinds on the device. A kind the driver does not know has none; one that is not told leaves
/// the number unknown.
fn processes(values: &impl Values, place: &Place) -> Told<u32> {
    if let Some(instance) = compute_instance(place) {
        return match values.value(&m::gpu_mig_compute_processes, &instance, ()) {
            Some(n) => {
                let ids = (instance.gpu_instance, instance.compute_instance);
                Told::Value((n as u32).max(values.listed(&place.gpu, ids) as u32))
            }
            None => Told::Unread,
        };
    }
    let kinds = ProcessType::ALL.iter().map(|kind| told(values, &place.gpu, &m::gpu_processes, (*kind,)));
    let kinds: Vec<Told<f64>> = kinds.collect();
    let known: Vec<f64> =
        kinds.iter().filter_map(|told| if let Told::Value(n) = told { Some(*n) } else { None }).collect();
    if kinds.contains(&Told::Unread) {
        return Told::Unread;
    }
    if known.is_empty() {
        return Told::Unsupported;
    }
    Told::Value(known.iter().sum::<f64>() as u32)
}

fn memory(values: &impl Values, place: &Place) -> Option<MemoryUse> {
    let (used, total) = match gpu_instance(place) {
        Some(instance) => (
            values.value(&m::gpu_mig_memory_used_bytes, &instance, ())?,
            values.value(&m::gpu_mig_memory_total_bytes, &instance, ())?,
        ),
        None => (
            values.value(&m::gpu_memory_used_bytes, &place.gpu, ())?,
            values.value(&m::gpu_memory_total_bytes, &place.gpu, ())?,
        ),
    };
    Some(MemoryUse { used, total, least: None })
}

/// The GPU instance of a place, as the catalogue knows it.
pub fn gpu_instance(place: &Place) -> Option<GpuInstance> {
    let instance = place.instance.as_ref()?;
    Some(GpuInstance {
        gpu: place.gpu.gpu,
        uuid: place.gpu.uuid.clone(),
        gpu_instance: instance.gpu_instance,
        profile: instance.profile.as_str().into(),
    })
}

/// The compute instance of a place, as the catalogue knows it.
pub fn compute_instance(place: &Place) -> Option<ComputeInstance> {
    let instance = place.instance.as_ref()?;
    Some(ComputeInstance {
        gpu: place.gpu.gpu,
        uuid: place.gpu.uuid.clone(),
        gpu_instance: instance.gpu_instance,
        profile: instance.profile.as_str().into(),
        compute_instance: instance.compute_instance,
    })
}

impl Values for Snapshot {
    fn value<E: Entity, L: LabelSet>(&self, metric: &Metric<E, L>, entity: &E, labels: L) -> Option<f64> {
        self.number(metric, entity, labels)
    }

    fn unsupported(&self, gpu: &Gpu, metric: MetricId) -> bool {
        let gaps = self.gpus.iter().filter(|view| view.gpu == *gpu).flat_map(|view| &view.gaps);
        gaps.into_iter().any(|gap| gap.metrics.contains(&metric) && gap.missing == Missing::Unsupported)
    }

    fn state(&self, gpu: &Gpu) -> Option<(CanarySkip, String)> {
        let text = match &self.driver {
            DriverState::Up => None,
            DriverState::Paused { .. } => Some((CanarySkip::Released, "the driver is released".to_owned())),
            DriverState::Stuck => Some((CanarySkip::Unhealthy, "the driver is stuck".to_owned())),
            DriverState::Waiting => Some((CanarySkip::Unread, "the driver was not reached yet".to_owned())),
            DriverState::Away { text } | DriverState::Mismatch { text } => {
                Some((CanarySkip::Unread, format!("the driver is away: {text}")))
            }
        };
        if text.is_some() {
            return text;
        }
        match self.gpus.iter().find(|view| view.gpu == *gpu).map(|view| &view.state) {
            Some(GpuState::Up) => None,
            Some(GpuState::Stuck { call, .. }) => {
                Some((CanarySkip::Unhealthy, format!("a driver call on it does not return: {call}")))
            }
            Some(GpuState::Failing { text }) => Some((CanarySkip::Unhealthy, text.clone())),
            Some(GpuState::Paused) => Some((CanarySkip::Released, "the driver is released".into())),
            Some(GpuState::Waiting | GpuState::NoDriver) => {
                Some((CanarySkip::Unread, "nothing was read of it".into()))
            }
            None => Some((CanarySkip::NoDevice, "it is gone".into())),
        }
    }

    fn listed(&self, gpu: &Gpu, instance: (u32, u32)) -> usize {
        let views = self.gpus.iter().filter(|view| view.gpu == *gpu);
        views.flat_map(|view| &view.processes).filter(|one| one.instance == Some(instance)).count()
    }

    fn age(&self, gpu: &Gpu) -> Option<Duration> {
        let view = self.gpus.iter().find(|view| view.gpu == *gpu)?;
        let age = |tier| view.parts.iter().find(|part| part.tier == tier).map(|part| part.age);
        Some(age(Tier::Normal)?.max(age(Tier::Slow)?))
    }

    fn unhealthy(&self, gpu: &Gpu) -> Option<Vec<String>> {
        let healthy = self.number(&m::gpu_healthy, gpu, ())?;
        let def = m::gpu_unhealthy_reason.def();
        let subject = gpu.subject();
        let active = |series: &&model::snapshot::Series| {
            series.subject.subject == subject
                && matches!(series.value, model::snapshot::Value::Number(v) if v > 0.0)
        };
        let names = self.series(&m::gpu_unhealthy_reason).iter().filter(active).flat_map(|series| {
            series.labels.iter().zip(def.labels).map(|(text, label)| text.text(label).to_owned())
        });
        let mut names: Vec<String> = names.collect();
        if healthy <= 0.0 && names.is_empty() {
            names.push("it is not healthy".into());
        }
        // What the canary found keeps it not from looking again: else it could never take that back.
        names.retain(|name| name != UnhealthyReason::Canary.known());
        Some(names)
    }
}
