//! Events as lines of the journal, one structured line each.

use model::catalog::Severity;
use model::catalog::schema::KnownLabel;
use model::snapshot::{Event, EventKind};

/// Tells of an event that came so many times since it was told last.
pub fn tell(event: &Event, times: u64) {
    let xid = event.code.filter(|_| event.kind == EventKind::Xid);
    let code = event.code.filter(|_| event.kind != EventKind::Xid);
    let (gpu, uuid) = (event.gpu.as_ref().map(|g| g.gpu), event.gpu.as_ref().map(|g| &*g.uuid));
    let action = event.action.known();
    let verdict =
        Some(event.mnemonic).filter(|verdict| event.kind == EventKind::Canary && !verdict.is_empty());
    macro_rules! line {
        ($level:ident) => {
            tracing::$level!(
                kind = event.kind.name(),
                gpu,
                uuid,
                pci = event.pci.as_deref(),
                nvswitch = event.nvswitch.as_deref(),
                xid,
                code,
                check = event.check,
                verdict,
                action,
                pid = event.pid,
                process = event.process.as_deref(),
                times,
                text = event.text.as_str(),
                "{}",
                event.meaning
            )
        };
    }
    match event.severity {
        Severity::Page => line!(error),
        Severity::Ticket => line!(warn),
        Severity::Info => line!(info),
    }
}
