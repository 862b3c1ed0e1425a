//! The NVLink fabric that the GPU belongs to.

use nvml_wrapper_sys::bindings as sys;

use super::ONE;
use crate::raw::fabric;
use crate::visit::Visit;
use model::catalog::schema::KnownLabel;
use model::catalog::{self as m, DropReason, FabricFault, FabricInfo, FabricState};

const CALL: &str = "nvmlDeviceGetGpuFabricInfoV";

/// Reads the state of the GPU in the fabric and the faults of the fabric.
pub(super) fn slow(v: &mut Visit<'_>) {
    let feeds = [
        m::gpu_fabric_state.id(),
        m::gpu_fabric_fault.id(),
        m::gpu_fabric_status.id(),
        m::gpu_fabric_health_mask.id(),
        m::gpu_fabric_health_summary.id(),
    ];
    let Some(info) = v.read(CALL, &feeds, fabric::fabric_info) else { return };
    match FabricState::ALL.get(usize::from(info.state)) {
        None => v.dropped(CALL, m::gpu_fabric_state.id(), DropReason::OutOfRange),
        Some(state) if v.wants(&feeds[..1]) => v.rows.entity(v.gpu).state(&m::gpu_fabric_state, *state),
        Some(_) => {}
    }
    if joined(info.state) {
        v.add(CALL, &m::gpu_fabric_status, (), info.status, ONE);
    }
    v.add(CALL, &m::gpu_fabric_health_mask, (), info.healthMask, ONE);
    if u32::from(info.healthSummary) != sys::NVML_GPU_FABRIC_HEALTH_SUMMARY_NOT_SUPPORTED {
        v.add(CALL, &m::gpu_fabric_health_summary, (), u32::from(info.healthSummary), ONE);
    }
    let faults = faults(info.healthMask);
    if faults.is_empty() {
        v.unsupported(CALL, &feeds[1..2]);
    }
    for (fault, there) in faults {
        v.add(CALL, &m::gpu_fabric_fault, (fault,), there, ONE);
    }
}

/// Reads the identity of the fabric.
pub(super) fn rare(v: &mut Visit<'_>) {
    let feeds = [m::gpu_fabric_info.id()];
    let Some(info) = v.read(CALL, &feeds, fabric::fabric_info) else { return };
    // Cluster and clique are not set before the GPU has joined.
    if joined(info.state) {
        let info = FabricInfo { cluster_uuid: uuid(info.clusterUuid), clique_id: info.cliqueId.to_string() };
        v.rows.entity(v.gpu).info(&m::gpu_fabric_info, info);
    }
}

fn joined(state: u8) -> bool {
    FabricState::ALL.get(usize::from(state)) == Some(&FabricState::Completed)
}

/// Returns the faults that the health mask covers, with `true` for those that are present. Source:
/// `NVML_GPU_FABRIC_HEALTH_MASK_*` in the header. Every fault has two bits (0 not supported, 1 yes, 2 no). The
/// configuration has four bits (0 not supported, 1 correct, 2 and above a kind of misconfiguration).
fn faults(mask: u32) -> Vec<(FabricFault, bool)> {
    const TWO_BITS: [(FabricFault, u32); 4] = [
        (FabricFault::DegradedBandwidth, 0),
        (FabricFault::RouteRecovery, 2),
        (FabricFault::RouteUnhealthy, 4),
        (FabricFault::AccessTimeoutRecovery, 6),
    ];
    let mut known = Vec::new();
    for (fault, shift) in TWO_BITS {
        match mask >> shift & 0x3 {
            1 => known.push((fault, true)),
            2 => known.push((fault, false)),
            _ => {}
        }
    }
    match mask >> 8 & 0xf {
        0 => {}
        configuration => known.push((FabricFault::IncorrectConfiguration, configuration != 1)),
    }
    known
}

/// Returns a UUID as text, or an empty text for all zeros.
fn uuid(bytes: [u8; 16]) -> String {
    if bytes == [0; 16] {
        return String::new();
    }
    let hex = format!("{:032x}", u128::from_be_bytes(bytes));
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_health_mask_is_read_by_the_header() {
        use FabricFault as F;
        assert_eq!(faults(0), []);
        let all_well = 1 << 8 | 2 << 6 | 2 << 4 | 2 << 2 | 2;
        assert!(faults(all_well).iter().all(|(_, there)| !there));
        assert_eq!(faults(all_well).len(), FabricFault::ALL.len());
        assert_eq!(faults(1), [(F::DegradedBandwidth, true)]);
        assert_eq!(faults(1 << 2), [(F::RouteRecovery, true)]);
        assert_eq!(faults(1 << 4), [(F::RouteUnhealthy, true)]);
        assert_eq!(faults(1 << 6), [(F::AccessTimeoutRecovery, true)]);
        assert_eq!(faults(0x200), [(F::IncorrectConfiguration, true)]);
        assert_eq!(faults(0x100), [(F::IncorrectConfiguration, false)]);
    }

    #[test]
    fn states_are_numbered_as_in_the_header() {
        assert_eq!(FabricState::ALL[0], FabricState::NotSupported);
        assert_eq!(FabricState::ALL[sys::NVML_GPU_FABRIC_STATE_COMPLETED as usize], FabricState::Completed);
        assert!(joined(3) && !joined(2) && !joined(4));
    }

    #[test]
    fn a_cluster_is_spelled_as_a_uuid_and_none_is_empty() {
        assert_eq!(uuid([0; 16]), "");
        assert_eq!(uuid(std::array::from_fn(|i| i as u8)), "00010203-0405-0607-0809-0a0b0c0d0e0f");
    }

    proptest! {
        #[test]
        fn no_fault_is_listed_twice_whatever_the_mask(mask: u32) {
            let known = faults(mask);
            prop_assert!(known.len() <= FabricFault::ALL.len());
            for (i, (fault, _)) in known.iter().enumerate() {
                prop_assert!(known[..i].iter().all(|(other, _)| other != fault));
            }
        }
    }
}
