//! Memory errors beyond the ECC counters, and the driver's recovery action.

use nvml_wrapper::enum_wrappers::device::RetirementCause as NvmlCause;

use super::ONE;
use crate::raw;
use crate::visit::Visit;
use model::catalog::schema::KnownLabel;
use model::catalog::{
    self as m, DropReason, EccCounter, Gpu, RecoveryAction, RepairPart, RetirementCause, SpareRows,
    SramError, SramUnit,
};
use model::sample::Rows;

/// Adds the driver's recovery action, given by its number in the header.
pub(super) fn recovery_action(
    rows: &mut Rows,
    gpu: &Gpu,
    _scope: u32,
    number: f64,
) -> Result<(), DropReason> {
    let action = RecoveryAction::ALL.iter().zip(0u8..).find(|(_, n)| f64::from(*n) == number);
    let (action, _) = action.ok_or(DropReason::OutOfRange)?;
    rows.entity(gpu).state(&m::gpu_recovery_action, *action);
    Ok(())
}

/// Reads the errors of on-chip memory and the spare rows.
pub(super) fn slow(v: &mut Visit<'_>) {
    const SRAM: &str = "nvmlDeviceGetSramEccErrorStatus";
    let feeds = [
        m::gpu_ecc_sram_errors.id(),
        m::gpu_ecc_sram_uncorrected_errors.id(),
        m::gpu_ecc_sram_threshold_exceeded.id(),
    ];
    if let Some(s) = v.read(SRAM, &feeds, raw::sram_ecc_status) {
        use {EccCounter as C, SramError as E};
        for (counter, error, n) in [
            (C::Volatile, E::Corrected, s.volatileCor),
            (C::Volatile, E::UncorrectedParity, s.volatileUncParity),
            (C::Volatile, E::UncorrectedSecded, s.volatileUncSecDed),
            (C::Aggregate, E::Corrected, s.aggregateCor),
            (C::Aggregate, E::UncorrectedParity, s.aggregateUncParity),
            (C::Aggregate, E::UncorrectedSecded, s.aggregateUncSecDed),
        ] {
            v.add(SRAM, &m::gpu_ecc_sram_errors, (counter, error), n, ONE);
        }
        for (unit, n) in [
            (SramUnit::L2, s.aggregateUncBucketL2),
            (SramUnit::Sm, s.aggregateUncBucketSm),
            (SramUnit::Mcu, s.aggregateUncBucketMcu),
            (SramUnit::Pcie, s.aggregateUncBucketPcie),
            (SramUnit::Other, s.aggregateUncBucketOther),
        ] {
            v.add(SRAM, &m::gpu_ecc_sram_uncorrected_errors, (unit,), n, ONE);
        }
        v.add(SRAM, &m::gpu_ecc_sram_threshold_exceeded, (), s.bThresholdExceeded, ONE);
    }

    const BANKS: &str = "nvmlDeviceGetRowRemapperHistogram";
    if let Some(h) = v.read(BANKS, &[m::gpu_row_remap_banks.id()], raw::row_remapper_histogram) {
        for (left, n) in [
            (SpareRows::Max, h.max),
            (SpareRows::High, h.high),
            (SpareRows::Partial, h.partial),
            (SpareRows::Low, h.low),
            (SpareRows::None, h.none),
        ] {
            v.add(BANKS, &m::gpu_row_remap_banks, (left,), n, ONE);
        }
    }
}

/// Reads the retired pages (before Ampere) and the repairs that wait for a reset.
pub(super) fn rare(v: &mut Visit<'_>) {
    for (cause, c) in [
        (NvmlCause::MultipleSingleBitEccErrors, RetirementCause::MultipleSingleBit),
        (NvmlCause::DoubleBitEccError, RetirementCause::DoubleBit),
    ] {
        let call = ("nvmlDeviceGetRetiredPages_v2", cause.as_c());
        v.value(call, &m::gpu_retired_pages, (c,), ONE, |d| d.retired_pages(cause).map(|list| list.len()));
    }
    v.value("nvmlDeviceGetRetiredPagesPendingStatus", &m::gpu_retired_pages_pending, (), ONE, |d| {
        d.are_pages_pending_retired()
    });
    const REPAIR: &str = "nvmlDeviceGetRepairStatus";
    if let Some(status) = v.read(REPAIR, &[m::gpu_repair_pending.id()], raw::repair_status) {
        let metric = &m::gpu_repair_pending;
        v.add(REPAIR, metric, (RepairPart::Channel,), status.bChannelRepairPending, ONE);
        v.add(REPAIR, metric, (RepairPart::Tpc,), status.bTpcRepairPending, ONE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvml_wrapper_sys::bindings as sys;

    fn gpu() -> Gpu {
        Gpu { gpu: 0, uuid: "GPU-1".into() }
    }

    #[test]
    fn a_recovery_action_is_one_state_of_all() {
        let mut rows = Rows::default();
        assert_eq!(recovery_action(&mut rows, &gpu(), 0, 2.0), Ok(()));
        let values: Vec<f64> = rows.groups()[0].1.iter().map(|row| row.value).collect();
        assert_eq!(values, [0.0, 0.0, 1.0, 0.0, 0.0]);
        assert_eq!(RecoveryAction::ALL[2], RecoveryAction::NodeReboot);
    }

    #[test]
    fn an_unknown_action_is_no_action() {
        for number in [5.0, -1.0, 0.5, f64::NAN, f64::INFINITY] {
            let mut rows = Rows::default();
            assert_eq!(recovery_action(&mut rows, &gpu(), 0, number), Err(DropReason::OutOfRange));
            assert!(rows.is_empty());
        }
    }

    #[test]
    fn retirement_causes_are_those_of_the_header() {
        assert_eq!(
            NvmlCause::DoubleBitEccError.as_c(),
            sys::nvmlPageRetirementCause_enum_NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR
        );
    }
}
