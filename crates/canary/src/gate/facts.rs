//! Input of the gate, from the published metrics or from readings that a separate process has made.

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

/// Reason for claims that only the daemon can check.
const CALLER: &str =
    "only the daemon checks claims, because in a prolog or a pod the claim belongs to the caller";

/// A value that the driver reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GateValue<T> {
    Value(T),
    /// The device or the driver does not support the value.
    Unsupported,
    /// The value is unavailable, because it was not read yet, is too old, failed, or is switched off.
    Unread,
}

/// Time since an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Since {
    /// The event has never occurred.
    Never,
    /// The event occurred this long ago.
    Ago(Duration),
    /// The event is not monitored, with the reason.
    Unknown(String),
}

/// Use of device memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryUse {
    pub used: f64,
    pub total: f64,
    /// Least use ever measured on this GPU.
    pub least: Option<f64>,
}

/// All facts that the gate considers.
#[derive(Clone, Debug, PartialEq)]
pub struct GateFacts {
    /// True if the driver is released or is about to be released.
    pub released: bool,
    /// Reason why the state of the GPU is unknown, if it is.
    pub state: Option<(CanarySkip, String)>,
    /// Age of the oldest of the values below; `None` if there are none.
    pub age: Option<Duration>,
    /// Maximum age at which the values count.
    pub fresh_for: Duration,
    /// Names of the GPU's health problems; `None` if they are unknown.
    pub unhealthy: Option<Vec<String>>,
    pub xid: Since,
    /// PID of an earlier canary process that still exists.
    pub child: Option<i32>,
    /// True if the GPU is in MIG mode without an instance.
    pub no_instance: bool,
    /// Number of processes on the device.
    pub processes: GateValue<u32>,
    /// Number of MPS processes among them.
    pub mps: GateValue<u32>,
    /// Pods that the GPU is assigned to.
    pub pod: Claimed,
    /// Jobs that the GPU is assigned to.
    pub job: Claimed,
    /// Compute mode, which restricts the processes that may use the GPU.
    pub compute_mode: GateValue<ComputeMode>,
    /// True if the driver keeps the GPU initialised.
    pub persistence: GateValue<bool>,
    /// Share of the last sample period in which the GPU was busy.
    pub utilization: GateValue<f64>,
    /// Time for which the GPU was idle; `None` if it is not monitored.
    pub idle: Option<Duration>,
    pub memory: Option<MemoryUse>,
    /// Reason why maintenance forbids a run, if it does.
    pub maintenance: Option<String>,
    /// Time until the budget of GPU time allows a run.
    pub duty_wait: Option<Duration>,
    /// Holder of the interlock.
    pub interlock: Option<String>,
}

/// Source of values: the published metrics, or readings that a separate process has made.
pub trait Values {
    /// Returns the value of one series, if it exists.
    fn value<E: Entity, L: LabelSet>(&self, metric: &Metric<E, L>, entity: &E, labels: L) -> Option<f64>;
    /// Returns true if the device or the driver does not support a metric of this GPU.
    fn unsupported(&self, gpu: &Gpu, metric: MetricId) -> bool;
    /// Returns the reason why the state of the GPU is unknown, if it is.
    fn state(&self, gpu: &Gpu) -> Option<(CanarySkip, String)>;
    /// Returns the number of processes listed on a MIG instance, given the IDs of its GPU and compute instance. It
    /// counts them even if the metric is older.
    fn listed(&self, _gpu: &Gpu, _instance: (u32, u32)) -> usize {
        0
    }
    /// Returns the age of the older of the two tiers that read processes and utilization.
    fn age(&self, gpu: &Gpu) -> Option<Duration>;
    /// Returns the names of the GPU's health problems, or `None` if they are unknown.
    fn unhealthy(&self, gpu: &Gpu) -> Option<Vec<String>>;
}

impl GateFacts {
    /// Reads the values of a place. The daemon adds the facts that are unavailable to other processes, such as the idle
    /// time.
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
            xid: Since::Unknown("only the daemon watches for faults".into()),
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
                // In MIG mode, the driver reports no utilization for instances.
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

/// Returns the value that was read, or else the reason why there is none.
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

/// Returns the active state of a set of states.
pub fn state<S: KnownLabel>(values: &impl Values, gpu: &Gpu, metric: &Metric<Gpu, (S,)>) -> GateValue<S> {
    let active = S::ALL.iter().find(|state| values.value(metric, gpu, (**state,)) == Some(1.0));
    known(values, gpu, metric.id(), active.copied())
}

/// Returns the number of processes of all kinds on the device. A kind that the driver does not support counts as zero.
/// A supported kind without a value makes the number unknown.
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

/// Returns the GPU instance of a place, as labelled in the catalogue.
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
                    (CanarySkip::Unhealthy, format!("a driver call for this GPU hangs: {call}"))
                }
                Some(GpuState::Failing { text, .. }) => (CanarySkip::Unhealthy, text.clone()),
                Some(GpuState::Paused) => (CanarySkip::Released, "the driver is released".into()),
                Some(GpuState::Waiting | GpuState::Unread | GpuState::NoDriver) => {
                    (CanarySkip::Unread, "no value was read yet".into())
                }
                None => (CanarySkip::NoDevice, "the GPU is missing".into()),
            },
            DriverState::Paused { .. } => (CanarySkip::Released, "the driver is released".into()),
            DriverState::Stuck => (CanarySkip::Unhealthy, "the driver is stuck".into()),
            DriverState::Waiting => (CanarySkip::Unread, "the driver has not responded yet".into()),
            DriverState::Away { text } | DriverState::Mismatch { text } => {
                (CanarySkip::Unread, format!("the driver is unavailable: {text}"))
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
        // The canary's own findings do not forbid a run, because otherwise a later run could never clear them.
        names.retain(|name| name != UnhealthyReason::Canary.known());
        Some(names)
    }
}

fn view<'a>(snapshot: &'a Snapshot, gpu: &Gpu) -> Option<&'a GpuView> {
    snapshot.gpus.iter().find(|view| view.gpu == *gpu)
}
