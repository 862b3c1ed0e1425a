//! Events as lines of the journal, one structured line each.

use crate::catalog::Severity;
use crate::catalog::schema::{KnownLabel, LabelText};
use crate::snapshot::{Event, EventKind};

/// Tells of an event that came so many times since it was told last.
pub fn tell(event: &Event, times: u64) {
    let xid = event.code.filter(|_| event.kind == EventKind::Xid);
    let code = event.code.filter(|_| event.kind != EventKind::Xid);
    let (gpu, uuid) = (event.gpu.as_ref().map(|g| g.gpu), event.gpu.as_ref().map(|g| &*g.uuid));
    let action = name(event.action);
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

/// The text of a label whose values are all known.
fn name<L: KnownLabel>(label: L) -> &'static str {
    let LabelText::Known(at) = label.text() else { return "" };
    L::DEF.values.and_then(|values| values.get(usize::from(at)).copied()).unwrap_or("")
}
