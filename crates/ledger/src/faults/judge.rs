//! Meaning of fault reports: severity, first action and details. Pure functions.

use model::catalog::{DriverEvent, FaultAction, RecoveryAction, Severity};
use model::fact::{GpuFailure, XidDetail};
use model::snapshot::{Event, EventKind};
use model::xid::{self, Xid, nvlink};

/// Returns the meaning of a line, by its code, or by its details if they decide.
pub fn judged(code: u32, detail: Option<&XidDetail>) -> Xid {
    let row = xid::xid(code);
    match detail {
        Some(XidDetail::Nvlink(fault)) => nvlink::decode(row, fault),
        Some(XidDetail::Recovery(change)) => {
            let (severity, action, meaning) = recovery(change.to);
            Xid { severity, action, meaning, ..row }
        }
        Some(XidDetail::Unit(_)) | None => row,
    }
}

/// Returns the meaning of an NVSwitch line. The table lacks the codes of newer drivers.
pub fn judged_sxid(code: u32, fatal: bool) -> Xid {
    let row = xid::sxid(code);
    if fatal && row.severity != Severity::Page {
        return Xid { severity: Severity::Page, action: FaultAction::ResetGpu, ..row };
    }
    row
}

/// Adds the details that follow code and process in the line.
pub fn describe(event: &mut Event, code: u32, detail: Option<&XidDetail>) {
    match detail {
        Some(XidDetail::Unit(unit)) => event.unit = Some(unit.clone()),
        Some(XidDetail::Nvlink(fault)) => {
            event.unit = Some(fault.unit.clone()).filter(|unit| !unit.is_empty());
            (event.link, event.fatal) = (fault.link, fault.fatal);
            (event.intr_info, event.error_status) = (fault.intr_info, fault.error_status);
            event.investigate = nvlink::investigation(code, fault);
        }
        Some(XidDetail::Recovery(_)) | None => {}
    }
}

/// Returns severity, action and meaning of a driver event. Events that accompany an Xid have the severity of the Xid.
pub fn driver_event(event: DriverEvent) -> (Severity, FaultAction, &'static str) {
    use {DriverEvent as E, FaultAction as A, Severity as S};
    match event {
        E::DoubleBitEcc => (S::Page, A::ResetGpu, "An uncorrectable ECC error."),
        E::Xid => (S::Ticket, A::ContactSupport, "A fault with a code."),
        E::SingleBitEccStorm => {
            (S::Ticket, A::ContactSupport, "Corrected ECC errors come too fast: a storm.")
        }
        E::DramRetirement => (S::Ticket, A::Ignore, "The next reset replaces a part of device memory."),
        E::DramRetirementFailure => (S::Page, A::ResetGpu, "A part of device memory could not be replaced."),
        E::NonFatalPoison => {
            (S::Ticket, A::RestartApp, "A process used damaged memory; it alone is affected.")
        }
        E::FatalPoison => (S::Page, A::ResetGpu, "Damaged memory was used: the whole GPU is affected."),
        E::GpuUnavailable => (S::Page, A::ResetGpu, "The GPU is not available."),
        E::RecoveryAction => recovery(None),
        E::Unknown => (S::Ticket, A::ContactSupport, "This event is not in the exporter's table."),
    }
}

/// Returns severity, action and meaning of a changed recovery action.
pub fn recovery(wanted: Option<RecoveryAction>) -> (Severity, FaultAction, &'static str) {
    use {FaultAction as A, RecoveryAction as R, Severity as S};
    match wanted {
        Some(R::None) => (S::Info, A::Ignore, "The driver asks for no recovery any more."),
        Some(R::GpuReset) => (S::Page, A::ResetGpu, "The driver asks for a reset of the GPU."),
        Some(R::NodeReboot) => (S::Page, A::RebootNode, "The driver asks for a reboot."),
        Some(R::DrainP2p) => (S::Ticket, A::RestartApp, "The driver asks to end peer-to-peer work."),
        // The fault was contained, so running work continues.
        Some(R::DrainAndReset) => (S::Ticket, A::ResetGpu, "The driver asks to drain and reset the GPU."),
        None => {
            (S::Ticket, A::ContactSupport, "The driver asks for a recovery that the exporter does not know.")
        }
    }
}

/// Returns kind, severity, action and meaning of a GPU failure without a code.
pub fn gpu_failure(failure: GpuFailure) -> (EventKind, Severity, FaultAction, &'static str) {
    use {EventKind as K, FaultAction as A, Severity as S};
    match failure {
        GpuFailure::FallenOffBus => {
            let meaning = "The GPU no longer answers on PCIe: it has fallen off the bus.";
            (K::FallenOffBus, S::Page, A::RebootNode, meaning)
        }
        // The next attempt may succeed. If none does, the driver does not list the GPU.
        GpuFailure::InitFailed => {
            (K::InitFailed, S::Ticket, A::ResetGpu, "The driver could not initialise the GPU.")
        }
    }
}

/// Returns the event of an Xid, from its row in the table.
pub fn xid_event(row: &Xid, unix_seconds: f64) -> Event {
    Event {
        code: Some(row.code.into()),
        mnemonic: row.mnemonic,
        meaning: row.meaning,
        app_can_cause: row.app_can_cause,
        ..Event::new(EventKind::Xid, unix_seconds, row.severity, row.action)
    }
}

/// Returns an event that is not a problem.
pub fn quiet(kind: EventKind, unix_seconds: f64) -> Event {
    Event::new(kind, unix_seconds, Severity::Info, FaultAction::Ignore)
}
