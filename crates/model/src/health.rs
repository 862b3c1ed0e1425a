//! The health of GPUs and node: one table of conditions, and their evaluation.
//!
//! The ledger evaluates once a publication; the snapshot carries the result. Metrics, status page, JSON, `/readyz` and
//! `doctor` read it and derive nothing. Where a number decides, the limit is the device's own.

use crate::catalog::schema::LabelText;
use crate::catalog::{FaultAction, Gpu, MetricId, Subject, UnhealthyReason};

/// How serious a condition is. Later ones are more serious.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
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

impl HealthLevel {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            HealthLevel::Ok => "ok",
            HealthLevel::Note => "note",
            HealthLevel::Waiting => "waiting",
            HealthLevel::Degraded => "degraded",
            HealthLevel::Faulty => "faulty",
        }
    }
}

/// The table of conditions: name in JSON, level, reason of `gpu_unhealthy_reason`, first action (`Ignore`: none).
macro_rules! conditions {
    ($($condition:ident $name:literal $level:ident $reason:expr, $action:ident;)*) => {
        /// A condition of a GPU.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Condition { $($condition),* }

        impl Condition {
            pub fn name(self) -> &'static str { match self { $(Condition::$condition => $name),* } }
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
    Waiting            "waiting"              Waiting  None, Ignore;
    Paused             "paused"               Note     None, Ignore;
    NoDriver           "no_driver"            Faulty   None, Ignore;
    Stuck              "stuck"                Faulty   Some(UnhealthyReason::Stuck), ResetGpu;
    Lost               "lost"                 Faulty   Some(UnhealthyReason::Lost), RebootNode;
    Missing            "missing"              Faulty   Some(UnhealthyReason::Missing), RebootNode;
    FatalXid           "fatal_xid"            Faulty   Some(UnhealthyReason::FatalXid), ResetGpu;
    UncontainedEcc     "uncontained_ecc"      Faulty   Some(UnhealthyReason::UncontainedEcc), ResetGpu;
    PageFault          "page_fault"           Faulty   None, Ignore;
    TicketFault        "ticket_fault"         Degraded None, Ignore;
    RecoveryAction     "recovery_action"      Faulty   Some(UnhealthyReason::RecoveryAction), ResetGpu;
    CanaryHung         "canary_hung"          Faulty   Some(UnhealthyReason::Canary), ResetGpu;
    CanaryFailed       "canary_failed"        Faulty   Some(UnhealthyReason::Canary), CheckHardware;
    CanaryDegraded     "canary_degraded"      Degraded None, Ignore;
    RowRemapFailure    "row_remap_failure"    Faulty   Some(UnhealthyReason::RowRemapFailure), CheckHardware;
    RowRemapPending    "row_remap_pending"    Degraded None, ResetGpu;
    EccUncorrected     "ecc_uncorrected"      Degraded None, Ignore;
    HwThermalSlowdown  "hw_thermal_slowdown"  Degraded None, CheckHardware;
    HwPowerBrake       "hw_power_brake"       Degraded None, CheckHardware;
    HwSlowdown         "hw_slowdown"          Degraded None, CheckHardware;
    SwThermalSlowdown  "sw_thermal_slowdown"  Degraded None, CheckHardware;
    PowerCap           "power_cap"            Note     None, Ignore;
    NearSlowdown       "near_slowdown"        Degraded None, CheckHardware;
    PcieWidthNarrowed  "pcie_width_narrowed"  Degraded None, CheckHardware;
    PcieGenerationLow  "pcie_generation_low"  Note     None, Ignore;
    CallFailed         "call_failed"          Degraded None, Ignore;
}

/// The value of one series of this publication.
pub type PublishedValue<'a> = dyn Fn(MetricId, &Subject, &[LabelText]) -> Option<f64> + 'a;

/// A condition that holds for a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthReason {
    pub condition: Condition,
    pub text: String,
    pub action: FaultAction,
}

/// The verdict on one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuHealth {
    pub gpu: Gpu,
    /// The level of the most serious reason; a note alone leaves a GPU ok.
    pub level: HealthLevel,
    /// The state in a word.
    pub word: &'static str,
    /// The most serious first.
    pub reasons: Vec<HealthReason>,
    /// Whether work can rely on the GPU; `None` while the driver is away, released or waited for: a driver upgrade
    /// is no broken GPU.
    pub healthy: Option<bool>,
}

impl GpuHealth {
    /// Whether this reason of `gpu_unhealthy_reason` holds.
    pub fn has(&self, reason: UnhealthyReason) -> bool {
        self.reasons.iter().any(|r| r.condition.unhealthy() == Some(reason))
    }
}

/// The verdicts of one snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeHealth {
    /// The level of the node.
    pub level: HealthLevel,
    /// The node in a sentence.
    pub text: String,
    /// In the order of [`crate::snapshot::Snapshot::gpus`].
    pub gpus: Vec<GpuHealth>,
}
