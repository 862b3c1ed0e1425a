//! Metrics that are sources of other metrics. The sampler reads them even if the configuration excludes them, so that
//! excluding a metric never changes the value of another one.

use std::collections::HashSet;

use super::{self as m, METRICS, MetricId};

/// Metrics about the work of an owner, which need the activity of the GPU as well as its processes.
const OWNER_WORK: &[MetricId] = &[
    m::gpu_owner_busy_seconds_total.id(),
    m::gpu_owner_start_seconds.id(),
    m::gpu_bottleneck.id(),
    m::gpu_owner_gpu_seconds_total.id(),
    m::gpu_owner_step_seconds.id(),
    m::gpu_owner_step_confidence_ratio.id(),
    m::gpu_owner_step_jitter_ratio.id(),
    m::gpu_owner_steps_total.id(),
    m::gpu_owner_step_slowdown_ratio.id(),
    m::gpu_owner_slow_rank_ratio.id(),
    m::gpu_owner_missing_rank.id(),
    m::gpu_owner_last_progress_timestamp_seconds.id(),
];

/// Sources of every metric `gpu_owner_*`.
const OWNER_SOURCES: &[MetricId] = &[
    m::gpu_processes.id(),
    m::gpu_mig_compute_processes.id(),
    m::gpu_mig_info.id(),
    m::gpu_memory_total_bytes.id(),
    m::gpu_memory_free_bytes.id(),
    m::gpu_mig_memory_total_bytes.id(),
    m::gpu_mig_memory_free_bytes.id(),
    m::gpu_mig_slices.id(),
    m::gpu_mig_profile_capacity.id(),
];

/// Metrics that the ledger derives from other metrics, each list with its sources.
const MADE_OF: [(&[MetricId], &[MetricId]); 8] = [
    (OWNER_WORK, OWNER_SOURCES),
    (
        OWNER_WORK,
        &[
            m::gpu_busy_seconds_total.id(),
            m::gpu_clock_event_active.id(),
            m::gpu_gpm_active_seconds_total.id(),
            m::gpu_gpm_pcie_bytes_total.id(),
            m::gpu_gpm_nvlink_bytes_total.id(),
            m::gpu_energy_sampled_joules_total.id(),
            m::gpu_mig_gpm_active_seconds_total.id(),
            m::gpu_mig_gpm_pcie_bytes_total.id(),
            m::gpu_pcie_link_generation.id(),
            m::gpu_pcie_link_width_lanes.id(),
        ],
    ),
    (
        &[m::gpu_allocation_info.id(), m::gpu_claim_info.id(), m::gpu_exporter_claims_unresolved.id()],
        &[
            m::gpu_info.id(),
            m::gpu_mig_info.id(),
            m::gpu_mig_profile_id.id(),
            m::gpu_mig_placement_start.id(),
            m::gpu_mig_placement_slices.id(),
        ],
    ),
    (&[m::gpu_owner_energy_joules_total.id()], &[m::gpu_energy_sampled_joules_total.id()]),
    (
        &[m::gpu_healthy.id(), m::gpu_unhealthy_reason.id()],
        &[m::gpu_recovery_action.id(), m::gpu_row_remap_failure.id()],
    ),
    (
        &[m::gpu_flops_estimate.id()],
        &[m::gpu_gpm_active_ratio.id(), m::gpu_clock_hertz.id(), m::gpu_cuda_cores.id()],
    ),
    (&[m::gpu_nvlink_errors_total.id()], &[m::gpu_nvlink_link_errors_total.id()]),
    (
        &[m::gpu_last_busy_timestamp_seconds.id()],
        &[
            m::gpu_processes.id(),
            m::gpu_mig_compute_processes.id(),
            m::gpu_utilization_ratio.id(),
            m::gpu_busy_seconds_total.id(),
        ],
    ),
];

/// Sources of the list of events: the PCI addresses of the GPUs, and the driver's events.
const EVENTS: [MetricId; 2] = [m::gpu_info.id(), m::gpu_driver_events_total.id()];

/// Returns the metrics that are switched off and that no published metric or event needs.
pub fn unread(off: &HashSet<MetricId>) -> Vec<MetricId> {
    let wanted = |made: &[MetricId]| made.iter().any(|id| !off.contains(id));
    let mut ids = (0..).map(MetricId).zip(METRICS);
    let owners = ids.any(|(id, metric)| metric.name.starts_with("gpu_owner_") && !off.contains(&id));
    let needed = |id: &MetricId| {
        EVENTS.contains(id)
            || (owners && OWNER_SOURCES.contains(id))
            || MADE_OF.iter().any(|(made, of)| of.contains(id) && wanted(made))
    };
    off.iter().copied().filter(|id| !needed(id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_metric_is_made_of_is_read() {
        let (links, sum) = (m::gpu_nvlink_link_errors_total.id(), m::gpu_nvlink_errors_total.id());
        assert_eq!(unread(&[links, m::gpu_info.id()].into()), []);
        assert_eq!(unread(&[sum].into()), [sum]);
        assert_eq!(unread(&[links, sum].into()).len(), 2);
        let one_of_two = [m::gpu_recovery_action.id(), m::gpu_healthy.id()].into();
        assert_eq!(unread(&one_of_two), [m::gpu_healthy.id()]);
    }
}
