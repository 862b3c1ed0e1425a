//! Health of GPUs and node: the table of conditions, and the verdicts.
//!
//! The ledger evaluates the health once per publication, and the snapshot contains the result. Metrics, status page, JSON,
//! `/readyz` and `doctor` read it and derive nothing. Numeric limits are the device's own.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::catalog::schema::LabelText;
use crate::catalog::{FaultAction, Gpu, MetricId, Severity, Subject, UnhealthyReason};

/// State of a missing GPU, for people.
pub const NOT_LISTED: &str = "the driver does not list it any more";

/// Seriousness of a condition, in ascending order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HealthLevel {
    #[default]
    Ok,
    /// Worth knowing, but requires no action.
    Note,
    Waiting,
    /// Works, but requires attention.
    Degraded,
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

/// Verdict in the terms of launchers, schedulers and monitoring plugins, with the exit codes of the latter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HealthStatus {
    Ok = 0,
    /// Works, but requires attention.
    Warning = 1,
    Critical = 2,
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
    /// Converts the level of a verdict. A note is the level of a verdict only while the driver is released, when
    /// nothing is known.
    fn from(level: HealthLevel) -> HealthStatus {
        match level {
            HealthLevel::Ok => HealthStatus::Ok,
            HealthLevel::Note | HealthLevel::Waiting => HealthStatus::Unknown,
            HealthLevel::Degraded => HealthStatus::Warning,
            HealthLevel::Faulty => HealthStatus::Critical,
        }
    }
}

/// Table of conditions: level, reason in `gpu_unhealthy_reason`, first action (`Ignore`: none). A condition is faulty
/// if and only if it has a reason, so that the page and `gpu_healthy` never differ. `NoDriver` has no verdict.
macro_rules! conditions {
    ($($condition:ident $level:ident $reason:expr, $action:ident;)*) => {
        /// Condition of a GPU.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Condition { $($condition),* }

        impl Condition {
            pub const ALL: &[Condition] = &[$(Condition::$condition),*];

            pub fn level(self) -> HealthLevel {
                match self { $(Condition::$condition => HealthLevel::$level),* }
            }
            /// Returns the reason in `gpu_unhealthy_reason`, or `None` if the GPU stays healthy.
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
    /// Returns the time after which the condition pages, or `None` if it never does. The flight recorder uses only
    /// this, and a test compares it with the alerts that page.
    pub fn pages_after(self) -> Option<Duration> {
        match self {
            // These conditions appear briefly without a fault, and their alerts wait too.
            Condition::FabricDown | Condition::HwPowerBrake | Condition::HwThermalSlowdown => {
                Some(Duration::from_secs(60))
            }
            _ => (self.level() == HealthLevel::Faulty).then_some(Duration::ZERO),
        }
    }
}

/// Returns the value of a series of this publication.
pub type PublishedValue<'a> = dyn Fn(MetricId, &Subject, &[LabelText]) -> Option<f64> + 'a;

/// Condition that holds for a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HealthReason {
    pub condition: Condition,
    pub level: HealthLevel,
    pub text: String,
    pub action: FaultAction,
}

/// Verdict on one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuHealth {
    #[serde(skip)]
    pub gpu: Gpu,
    /// Level of the most serious reason. A GPU with only notes is ok.
    pub level: HealthLevel,
    /// State in one word.
    pub word: &'static str,
    /// Whether work can rely on the GPU; `None` while the driver is absent, released or starting, because a driver
    /// upgrade does not make a GPU unhealthy.
    pub healthy: Option<bool>,
    /// Reasons, the most serious first.
    pub reasons: Vec<HealthReason>,
}

impl GpuHealth {
    /// Returns true if this reason of `gpu_unhealthy_reason` holds.
    pub fn has(&self, reason: UnhealthyReason) -> bool {
        self.reasons.iter().any(|r| r.condition.unhealthy() == Some(reason))
    }

    /// Returns the name of the GPU for people: its UUID if the driver does not list it, because another GPU may have
    /// its index.
    pub fn name(&self) -> String {
        match self.has(UnhealthyReason::Missing) {
            true => self.gpu.uuid.to_string(),
            false => format!("GPU {}", self.gpu.gpu),
        }
    }
}

/// Verdicts of one snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeHealth {
    pub level: HealthLevel,
    /// Summary of the node in one sentence.
    pub text: String,
    /// Verdicts in the order of [`crate::snapshot::Snapshot::gpus`].
    #[serde(skip)]
    pub gpus: Vec<GpuHealth>,
    /// GPUs that the driver does not list and that are in no other list.
    #[serde(skip)]
    pub absent: Vec<AbsentGpu>,
}

/// GPU that was seen earlier in this boot and that the driver does not list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AbsentGpu {
    /// GPU with its last index, which another GPU may have now.
    #[serde(flatten)]
    pub gpu: Gpu,
    /// Address such as `0000:06:00`; empty if unknown.
    pub pci_address: String,
    /// Time of its last answer in seconds since 1970, if known.
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

    /// Returns the name of the board for people: its UUID, and its PCI address if known.
    pub fn name(&self) -> String {
        match self.pci_address.as_str() {
            "" => self.gpu.uuid.to_string(),
            address => format!("{} at {address}", self.gpu.uuid),
        }
    }
}
