//! Translation of our verdict on a GPU to DCGM's health watches, with a result and an error for every watch.

use model::health::{Condition, GpuHealth, HealthLevel};

/// Finding of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Incident {
    /// Result of the watch: 0 for healthy, 10 for a warning, 20 for a failure.
    pub result: u8,
    pub code: &'static str,
    pub severity: &'static str,
    pub category: &'static str,
}

const HEALTHY: Incident = Incident { result: 0, code: "DCGM_FR_OK", severity: "NONE", category: "NONE" };

/// Watch with its finding.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Watch {
    pub name: &'static str,
    pub incident: Incident,
}

/// DCGM's watches in its order.
const WATCHES: [&str; 11] =
    ["PCIE", "NVLINK", "PMU", "MCU", "MEM", "SM", "INFOROM", "THERMAL", "POWER", "DRIVER", "ALL"];

/// Returns every watch of a GPU. `action` is the recovery action that the driver recommends.
pub fn watches(verdict: &GpuHealth, action: Option<&str>) -> Vec<Watch> {
    let mut watches: Vec<Watch> = WATCHES.iter().map(|name| Watch { name, incident: HEALTHY }).collect();
    for reason in &verdict.reasons {
        let Some((name, code, severity, category)) = error(reason.condition, action) else { continue };
        let warning = reason.level != HealthLevel::Faulty || code == "DCGM_FR_GPU_RECOVERY_DRAIN_P2P";
        let result = if warning { 10 } else { 20 };
        let watch = watches.iter_mut().find(|watch| watch.name == name);
        // The most serious reason comes first.
        if let Some(watch) = watch.filter(|watch| watch.incident.result < result) {
            watch.incident = Incident { result, code, severity, category };
        }
    }
    watches
}

type WatchError = (&'static str, &'static str, &'static str, &'static str);

/// Returns watch, error code, severity and category of a condition, or `None` if DCGM has no watch for it.
fn error(condition: Condition, action: Option<&str>) -> Option<WatchError> {
    Some(match condition {
        Condition::Lost | Condition::Missing => {
            ("ALL", "DCGM_FR_FALLEN_OFF_BUS", "ISOLATE", "HARDWARE_OTHER")
        }
        Condition::Stuck | Condition::Failing => {
            ("DRIVER", "DCGM_FR_API_FAIL_GPU", "TRIAGE", "SOFTWARE_LIBRARY")
        }
        Condition::FatalXid => ("ALL", "DCGM_FR_XID_ERROR", "RESET", "SOFTWARE_XID"),
        Condition::UncontainedEcc => ("MEM", "DCGM_FR_UNCONTAINED_ERROR", "RESET", "HARDWARE_MEMORY"),
        Condition::RecoveryAction => {
            let code = match action {
                Some("node_reboot") => "DCGM_FR_GPU_RECOVERY_REBOOT",
                Some("drain_p2p") => "DCGM_FR_GPU_RECOVERY_DRAIN_P2P",
                Some("drain_and_reset") => "DCGM_FR_GPU_RECOVERY_DRAIN_RESET",
                _ => "DCGM_FR_GPU_RECOVERY_RESET",
            };
            ("DRIVER", code, "RESET", "HARDWARE_OTHER")
        }
        Condition::CanaryFailed | Condition::WrongResult => {
            ("SM", "DCGM_FR_FAULTY_MEMORY", "ISOLATE", "HARDWARE_OTHER")
        }
        Condition::CanaryHung => ("SM", "DCGM_FR_API_FAIL_GPU", "TRIAGE", "SOFTWARE_CUDA"),
        Condition::RowRemapFailure => ("MEM", "DCGM_FR_ROW_REMAP_FAILURE", "ISOLATE", "HARDWARE_MEMORY"),
        Condition::RowRemapPending => ("MEM", "DCGM_FR_PENDING_ROW_REMAP", "RESET", "HARDWARE_MEMORY"),
        Condition::RepairPending => ("MEM", "DCGM_FR_FAULTY_MEMORY", "RESET", "HARDWARE_MEMORY"),
        Condition::EccUncorrected => ("MEM", "DCGM_FR_VOLATILE_DBE_DETECTED", "RESET", "HARDWARE_MEMORY"),
        Condition::SramThreshold => ("MEM", "DCGM_FR_FAULTY_MEMORY", "ISOLATE", "HARDWARE_MEMORY"),
        Condition::FabricDown | Condition::FabricFault => {
            ("NVLINK", "DCGM_FR_NVLINK_DOWN", "TRIAGE", "HARDWARE_NVLINK")
        }
        Condition::NvlinkErrors => ("NVLINK", "DCGM_FR_NVLINK_ERROR_CRITICAL", "MONITOR", "HARDWARE_NVLINK"),
        Condition::HwThermalSlowdown | Condition::SwThermalSlowdown => {
            ("THERMAL", "DCGM_FR_CLOCK_THROTTLE_THERMAL", "MONITOR", "HARDWARE_THERMAL")
        }
        Condition::HwPowerBrake => ("POWER", "DCGM_FR_CLOCK_THROTTLE_POWER", "MONITOR", "HARDWARE_POWER"),
        Condition::PcieWidthNarrowed => ("PCIE", "DCGM_FR_PCIE_WIDTH", "TRIAGE", "HARDWARE_PCIE"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::catalog::Gpu;
    use model::health::HealthReason;

    fn verdict(conditions: &[Condition]) -> GpuHealth {
        let reason = |condition: &Condition| HealthReason {
            condition: *condition,
            level: condition.level(),
            text: String::new(),
            action: condition.action(),
        };
        GpuHealth {
            gpu: Gpu { gpu: 0, uuid: "GPU-0".into() },
            level: HealthLevel::Ok,
            word: "",
            healthy: Some(true),
            reasons: conditions.iter().map(reason).collect(),
        }
    }

    fn found(conditions: &[Condition], action: Option<&str>) -> Vec<(&'static str, u8, &'static str)> {
        let watches = watches(&verdict(conditions), action);
        assert_eq!(watches.iter().map(|watch| watch.name).collect::<Vec<_>>(), WATCHES);
        let ill = watches.into_iter().filter(|watch| watch.incident.result > 0);
        ill.map(|watch| (watch.name, watch.incident.result, watch.incident.code)).collect()
    }

    #[test]
    fn a_healthy_gpu_passes_every_watch() {
        assert_eq!(found(&[], None), []);
        assert_eq!(found(&[Condition::PowerCap, Condition::CallFailed], None), []);
    }

    #[test]
    fn what_breaks_a_gpu_fails_its_watch_and_what_degrades_it_warns() {
        assert_eq!(found(&[Condition::Lost], None), [("ALL", 20, "DCGM_FR_FALLEN_OFF_BUS")]);
        assert_eq!(
            found(&[Condition::RowRemapFailure, Condition::RowRemapPending, Condition::NvlinkErrors], None),
            [("NVLINK", 10, "DCGM_FR_NVLINK_ERROR_CRITICAL"), ("MEM", 20, "DCGM_FR_ROW_REMAP_FAILURE")]
        );
    }

    #[test]
    fn the_recovery_action_names_the_error() {
        let of = |action| found(&[Condition::RecoveryAction], Some(action));
        assert_eq!(of("gpu_reset"), [("DRIVER", 20, "DCGM_FR_GPU_RECOVERY_RESET")]);
        assert_eq!(of("node_reboot"), [("DRIVER", 20, "DCGM_FR_GPU_RECOVERY_REBOOT")]);
        assert_eq!(of("drain_p2p"), [("DRIVER", 10, "DCGM_FR_GPU_RECOVERY_DRAIN_P2P")]);
        assert_eq!(of("drain_and_reset"), [("DRIVER", 20, "DCGM_FR_GPU_RECOVERY_DRAIN_RESET")]);
    }
}
