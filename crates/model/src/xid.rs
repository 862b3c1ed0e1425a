//! Meaning of Xid (GPU) and SXid (NVSwitch) codes, with the recommended first action. The tables in `xid/` name the
//! source of every row.

pub mod nvlink;

use std::sync::LazyLock;

use crate::catalog::schema::{KnownLabel, Label};
use crate::catalog::{FaultAction, Severity};

/// Table row of an Xid or SXid code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xid {
    pub code: u32,
    /// Name of the code by NVIDIA; empty for an SXid, and for a code that is not in the table.
    pub mnemonic: &'static str,
    pub severity: Severity,
    pub action: FaultAction,
    /// Possibility that a program causes the fault: `yes`, `possible`, `rare` or `no`; empty for an SXid, and for a
    /// code that is not in the table.
    pub app_can_cause: &'static str,
    /// Meaning of the code in one or two sentences.
    pub meaning: &'static str,
}

static XIDS: LazyLock<Vec<Xid>> = LazyLock::new(|| rows(include_str!("xid/xid.psv")));
static SXIDS: LazyLock<Vec<Xid>> = LazyLock::new(|| rows(include_str!("xid/sxid.psv")));

/// Returns the row of an Xid code. A code that is not in the table is a ticket, because every driver adds codes.
pub fn xid(code: u32) -> Xid {
    find(&XIDS, code)
}

/// Returns the row of an SXid code. A code that is not in the table is a ticket.
pub fn sxid(code: u32) -> Xid {
    find(&SXIDS, code)
}

fn find(rows: &[Xid], code: u32) -> Xid {
    match rows.binary_search_by_key(&code, |row| row.code) {
        Ok(at) => rows[at],
        Err(_) => Xid {
            code,
            mnemonic: "",
            severity: Severity::Ticket,
            action: FaultAction::ContactSupport,
            app_can_cause: "",
            meaning: "This code is not in the exporter's table.",
        },
    }
}

/// Returns all Xid codes that page, in ascending order. Their counters exist from the start.
pub fn paging() -> impl Iterator<Item = &'static Xid> {
    XIDS.iter().filter(|row| row.severity == Severity::Page)
}

/// Returns true if the meaning of a code depends on the text of the kernel log line: the sub-code (NVLink of
/// Blackwell), or the requested recovery action (154).
pub fn depends_on_text(code: u32) -> bool {
    nvlink::CODES.contains(&code) || code == 154
}

/// Returns true if the code is an uncorrectable memory error. Other codes (94, 95) report whether the error was
/// contained.
pub fn is_memory_error(code: u32) -> bool {
    matches!(code, 48 | 171 | 172)
}

fn rows(table: &'static str) -> Vec<Xid> {
    table.lines().filter(|line| !line.starts_with('#')).filter_map(row).collect()
}

fn row(line: &'static str) -> Option<Xid> {
    let fields: Vec<_> = line.split('|').map(str::trim).collect();
    let (code, mnemonic, severity, action, app_can_cause, meaning) = match fields[..] {
        [code, mnemonic, severity, action, app_can_cause, _source, meaning] => {
            (code, mnemonic, severity, action, app_can_cause, meaning)
        }
        [code, severity, action, _source, meaning] => (code, "", severity, action, "", meaning),
        _ => return None,
    };
    let (severity, action) = (word(severity)?, word(action)?);
    Some(Xid { code: code.parse().ok()?, mnemonic, severity, action, app_can_cause, meaning })
}

/// Returns the label value with this text.
fn word<L: KnownLabel + Label>(text: &str) -> Option<L> {
    let at = L::DEF.values?.iter().position(|value| *value == text)?;
    L::ALL.get(at).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(table: &'static str) -> Vec<Vec<&'static str>> {
        let lines = table.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| line.split('|').map(str::trim).collect()).collect()
    }

    #[test]
    fn every_row_is_understood_and_codes_rise() {
        let (xids, sxids) = (lines(include_str!("xid/xid.psv")), lines(include_str!("xid/sxid.psv")));
        assert_eq!((XIDS.len(), SXIDS.len()), (xids.len(), sxids.len()));
        assert!(XIDS.is_sorted_by(|a, b| a.code < b.code));
        assert!(SXIDS.is_sorted_by(|a, b| a.code < b.code));
        for (row, fields) in XIDS.iter().zip(xids) {
            assert!(row.meaning.ends_with('.') && !row.mnemonic.is_empty(), "{row:?}");
            assert!(["yes", "possible", "rare", "no"].contains(&fields[4]), "{row:?}");
            assert!(["catalog-2025-10", "header-595.45"].contains(&fields[5]), "{row:?}");
        }
        for (row, fields) in SXIDS.iter().zip(sxids) {
            assert!(row.meaning.ends_with('.') && fields[3] == "fabric-manager-guide", "{row:?}");
        }
    }

    #[test]
    fn severity_and_action_agree() {
        for row in XIDS.iter() {
            match row.severity {
                // A page that asks for nothing would teach people to ignore pages.
                Severity::Page => {
                    let acts = [FaultAction::ResetGpu, FaultAction::RebootNode];
                    assert!(acts.contains(&row.action), "{row:?}");
                }
                Severity::Info => {
                    let acts = [FaultAction::ResetGpu, FaultAction::RebootNode, FaultAction::CheckHardware];
                    assert!(!acts.contains(&row.action), "{row:?}");
                }
                Severity::Ticket => {}
            }
        }
    }

    #[test]
    fn the_codes_that_page_are_those_of_the_fault_catalogue() {
        let codes: Vec<u32> = paging().map(|row| row.code).collect();
        for code in [46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 158, 167, 169, 173] {
            assert!(codes.contains(&code), "{code}");
        }
        for code in [13, 31, 43, 45, 63, 92, 94, 109, 154] {
            assert!(!codes.contains(&code), "{code}");
        }
    }

    #[test]
    fn an_unknown_code_is_a_ticket() {
        for (severity, action) in [(xid(9999).severity, xid(9999).action), (sxid(1).severity, sxid(1).action)]
        {
            assert_eq!((severity, action), (Severity::Ticket, FaultAction::ContactSupport));
        }
        assert_eq!((xid(9999).code, sxid(1).code), (9999, 1));
    }

    #[test]
    fn codes_that_the_vendor_ignores_ask_for_nothing() {
        for code in [14, 106, 107, 108] {
            assert_eq!(
                (xid(code).severity, xid(code).action),
                (Severity::Info, FaultAction::Ignore),
                "{code}"
            );
        }
        assert!(xid(61).meaning.contains("power management") && xid(122).meaning.contains("flash"));
    }
}
