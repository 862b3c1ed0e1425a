//! The health of GPUs and node: one table of conditions, and their evaluation.
//!
//! The ledger evaluates once a publication; the snapshot carries the result. Metrics, status page, JSON, `/readyz` and
//! `doctor` read it and derive nothing. Where a number decides, the limit is the device's own.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::catalog::schema::LabelText;
use crate::catalog::{FaultAction, Gpu, MetricId, Severity, Subject, UnhealthyReason};

/// The state of a GPU that is missing, for people.
pub const NOT_LISTED: &str = "the driver does not list it any more";

/// How serious a condition is. Later ones are more serious.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HealthLevel {
    /// As expected.
    #[default]
    Ok,
    /// Worth knowing; nothing to do.
    Note,
    /// Not known yet.
    Waiting,
    /// Works, but needs a look.
    Degraded,
    /// Does not work.
    Faulty,
}

impl From<Severity> for HealthLevel {
    fn from(severity: Severity) -> HealthLevel {
        match severity {
            Severity::Page => HealthLevel::Faulty,
            Severity::Ticket => HealthLevel::Degraded,
            Severity::Info => HealthLevel::Note,
        }
    }
}

/// A verdict as launchers, schedulers and monitoring plugins know it, with the exit codes of the latter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HealthStatus {
    /// Work can start.
    Ok = 0,
    /// Works, but needs a look.
    Warning = 1,
    /// Does not work.
    Critical = 2,
    /// There is no verdict.
    Unknown = 3,
}

impl HealthStatus {
    pub fn word(self) -> &'static str {
        match self {
            HealthStatus::Ok => "ok",
            HealthStatus::Warning => "warning",
            HealthStatus::Critical => "critical",
            HealthStatus::Unknown => "unknown",
        }
    }
}

impl From<HealthLevel> for HealthStatus {
    /// The status of a verdict. Its level is a note only while the driver is released, and then nothing is known.
    fn from(level: HealthLevel) -> HealthStatus {
        match level {
            HealthLevel::Ok => HealthStatus::Ok,
            HealthLevel::Note | HealthLevel::Waiting => HealthStatus::Unknown,
            HealthLevel::Degraded => HealthStatus::Warning,
            HealthLevel::Faulty => HealthStatus::Critical,
        }
    }
}

/// The table of conditions: level, reason of `gpu_unhealthy_reason`, first action (`Ignore`: none). A condition is
/// faulty if and only if it has a reason, so that the page and `gpu_healthy` never differ; `NoDriver` has no verdict.
macro_rules! conditions {
    ($($condition:ident $level:ident $reason:expr, $action:ident;)*) => {
        /// A condition of a GPU.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Condition { $($condition),* }

        impl Condition {
            pub const ALL: &[Condition] = &[$(Condition::$condition),*];

            pub fn level(self) -> HealthLevel {
                match self { $(Condition::$condition => HealthLevel::$level),* }
            }
            /// The reason of `gpu_unhealthy_reason` that the condition is; none: the GPU stays healthy.
            pub fn unhealthy(self) -> Option<UnhealthyReason> {
                match self { $(Condition::$condition => $reason),* }
            }
            pub fn action(self) -> FaultAction {
                match self { $(Condition::$condition => FaultAction::$action),* }
            }
        }
    };
}
conditions! {
    Waiting            Waiting  None, Ignore;
    Unread             Waiting  None, Ignore;
    Paused             Note     None, Ignore;
    NoDriver           Faulty   None, Ignore;
    Stuck              Faulty   Some(UnhealthyReason::Stuck), ResetGpu;
    Lost               Faulty   Some(UnhealthyReason::Lost), RebootNode;
    Failing            Faulty   Some(UnhealthyReason::Lost), ContactSupport;
    Missing            Faulty   Some(UnhealthyReason::Missing), RebootNode;
    FatalXid           Faulty   Some(UnhealthyReason::FatalXid), ResetGpu;
    UncontainedEcc     Faulty   Some(UnhealthyReason::UncontainedEcc), ResetGpu;
    RecentFault        Degraded None, Ignore;
    RecoveryAction     Faulty   Some(UnhealthyReason::RecoveryAction), ResetGpu;
    CanaryHung         Faulty   Some(UnhealthyReason::Canary), ResetGpu;
    CanaryFailed       Faulty   Some(UnhealthyReason::Canary), CheckHardware;
    WrongResult        Faulty   Some(UnhealthyReason::Canary), CheckHardware;
    CanaryDegraded     Degraded None, Ignore;
    RowRemapFailure    Faulty   Some(UnhealthyReason::RowRemapFailure), CheckHardware;
    RowRemapPending    Degraded None, ResetGpu;
    RepairPending      Degraded None, ResetGpu;
    EccUncorrected     Degraded None, Ignore;
    SramThreshold      Degraded None, CheckHardware;
    FabricDown         Degraded None, CheckHardware;
    FabricFault        Degraded None, CheckHardware;
    NvlinkErrors       Degraded None, CheckHardware;
    NvlinkNoted        Note     None, Ignore;
    HwThermalSlowdown  Degraded None, CheckHardware;
    HwPowerBrake       Degraded None, CheckHardware;
    HwSlowdown         Degraded None, CheckHardware;
    SwThermalSlowdown  Degraded None, CheckHardware;
    PowerCap           Note     None, Ignore;
    NearSlowdown       Degraded None, CheckHardware;
    PcieWidthNarrowed  Degraded None, CheckHardware;
    PcieGenerationLow  Note     None, Ignore;
    CallFailed         Degraded None, Ignore;
}

impl Condition {
    /// How long the condition lasts until it pages; `None`: it never does. The flight recorder goes by this alone, and a
    /// test compares it with the alerts that page.
    pub fn pages_after(self) -> Option<Duration> {
        match self {
            // These come and go without a fault, and their alerts wait as well.
            Condition::FabricDown | Condition::HwPowerBrake | Condition::HwThermalSlowdown => {
                Some(Duration::from_secs(60))
            }
            _ => (self.level() == HealthLevel::Faulty).then_some(Duration::ZERO),
        }
    }
}

/// The value of one series of this publication.
pub type PublishedValue<'a> = dyn Fn(MetricId, &Subject, &[LabelText]) -> Option<f64> + 'a;

/// A condition that holds for a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HealthReason {
    pub condition: Condition,
    /// The condition's.
    pub level: HealthLevel,
    pub text: String,
    pub action: FaultAction,
}

/// The verdict on one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuHealth {
    #[serde(skip)]
    pub gpu: Gpu,
    /// The level of the most serious reason; a note alone leaves a GPU ok.
    pub level: HealthLevel,
    /// The state in a word.
    pub word: &'static str,
    /// Whether work can rely on the GPU; `None` while the driver is away, released or waited for: a driver upgrade
    /// is no broken GPU.
    pub healthy: Option<bool>,
    /// The most serious first.
    pub reasons: Vec<HealthReason>,
}

impl GpuHealth {
    /// Whether this reason of `gpu_unhealthy_reason` holds.
    pub fn has(&self, reason: UnhealthyReason) -> bool {
        self.reasons.iter().any(|r| r.condition.unhealthy() == Some(reason))
    }

    /// The GPU for people: by its UUID if the driver does not list it, as another GPU may have its index.
    pub fn name(&self) -> String {
        match self.has(UnhealthyReason::Missing) {
            true => self.gpu.uuid.to_string(),
            false => format!("GPU {}", self.gpu.gpu),
        }
    }
}

/// The verdicts of one snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeHealth {
    /// The level of the node.
    pub level: HealthLevel,
    /// The node in a sentence.
    pub text: String,
    /// In the order of [`crate::snapshot::Snapshot::gpus`].
    #[serde(skip)]
    pub gpus: Vec<GpuHealth>,
    /// GPUs that the driver does not list and that are in no list but this.
    #[serde(skip)]
    pub absent: Vec<AbsentGpu>,
}

/// A GPU that an earlier daemon, or an earlier load of the driver, knew in this boot and that the driver does not list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AbsentGpu {
    /// With the index that it had last; another GPU may have that one now.
    #[serde(flatten)]
    pub gpu: Gpu,
    /// As `0000:06:00`; empty if not known.
    pub pci_address: String,
    /// When it last answered, in seconds since 1970, if that is known.
    pub last_seen_unix_seconds: Option<u64>,
    pub health: GpuHealth,
}

impl AbsentGpu {
    pub fn new(gpu: Gpu, pci_address: String, last_seen_unix_seconds: Option<u64>) -> AbsentGpu {
        let condition = Condition::Missing;
        let (level, action) = (condition.level(), condition.action());
        let reasons = vec![HealthReason { condition, level, text: NOT_LISTED.to_owned(), action }];
        let health = GpuHealth { gpu: gpu.clone(), level, word: "missing", reasons, healthy: Some(false) };
        AbsentGpu { gpu, pci_address, last_seen_unix_seconds, health }
    }

    /// The board for people: its UUID, and its PCI address if that is known.
    pub fn name(&self) -> String {
        match self.pci_address.as_str() {
            "" => self.gpu.uuid.to_string(),
            address => format!("{} at {address}", self.gpu.uuid),
        }
    }
}
