//! Sub-codes of Xid 144 to 150 (NVLink 5): NVIDIA's decode rows, and the result for a line without a row.

use std::sync::LazyLock;

use super::Xid;
use crate::catalog::{FaultAction, Severity};
use crate::fact::NvlinkFault;

/// Codes whose severity depends on the kernel log line.
pub const CODES: std::ops::RangeInclusive<u32> = 144..=150;
/// Bits of the first word that contain the sub-code: before driver 575, and since driver 575.
const LOW_BITS: [u32; 2] = [0x3ff, 0x7f];
/// Bit above the sub-code that is set if the error was promoted.
const PROMOTED: [u32; 2] = [1 << 10, 1 << 7];

static ROWS: LazyLock<Vec<DecodeRow>> = LazyLock::new(|| {
    let lines = include_str!("nvlink5.psv").lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(row).collect()
});

/// Row of NVIDIA's table for one sub-code.
#[derive(Debug)]
struct DecodeRow {
    code: u32,
    unit: &'static str,
    /// Low bits of the first word, before driver 575 and since driver 575.
    low: [u32; 2],
    /// Value of bits 20 to 25 of the first word.
    reason: u32,
    /// Value of the second word; `None` for any value.
    status: Option<u32>,
    fatal: bool,
    /// True if the severity in the log line can override the row.
    varies: bool,
    promotes: bool,
    severity: Severity,
    action: FaultAction,
    investigate: &'static str,
    /// Meanings of a fault that is not fatal and of a fatal fault.
    meanings: [String; 2],
}

impl DecodeRow {
    /// Returns `None` if the row does not match the fault, and otherwise whether the fault was promoted.
    fn fits(&self, code: u32, fault: &NvlinkFault) -> Option<bool> {
        let (intr_info, status) = (fault.intr_info?, fault.error_status);
        let named = self.unit.split('/').any(|unit| unit.eq_ignore_ascii_case(&fault.unit));
        let right = self.code == code && named && (intr_info >> 20) & 0x3f == self.reason;
        if !right || self.status.is_some_and(|wanted| status != Some(wanted)) {
            return None;
        }
        let version = (0..2).find(|version| intr_info & LOW_BITS[*version] == self.low[*version])?;
        Some(self.promotes && intr_info & PROMOTED[version] != 0)
    }
}

/// Returns the meaning of a fault with one of these codes. `code` is the row of the code itself.
///
/// A sub-code that is not in the table has the severity of its log line, or else of its code.
pub fn decode(code: Xid, fault: &NvlinkFault) -> Xid {
    let found = ROWS.iter().find_map(|row| Some((row, row.fits(code.code, fault)?)));
    let (severity, action, meaning) = match (found, fault.fatal) {
        (Some((row, promoted)), said) => {
            let differs = said.is_some_and(|fatal| fatal != row.fatal);
            // A fault that the line calls fatal is never less severe. A fault that the line calls nonfatal is less
            // severe only if NVIDIA's table permits it.
            let fatal = promoted
                || (if differs && row.varies { !row.fatal } else { row.fatal })
                || said == Some(true);
            let (severity, action) = match (fatal, row.fatal) {
                (true, false) => (Severity::Page, FaultAction::ResetGpu),
                (false, true) => (code.severity, code.action),
                _ => (row.severity, row.action),
            };
            (severity, action, row.meanings[usize::from(fatal)].as_str())
        }
        (None, Some(true)) => (
            Severity::Page,
            FaultAction::ResetGpu,
            "NVLink error (Blackwell) that the kernel log calls fatal. Its sub-code is unknown to the exporter.",
        ),
        (None, Some(false)) => (
            code.severity,
            code.action,
            "NVLink error (Blackwell) that is not fatal. Its sub-code is unknown to the exporter.",
        ),
        (None, None) => (code.severity, code.action, code.meaning),
    };
    Xid { severity, action, meaning, ..code }
}

/// Returns NVIDIA's keyword for the investigation of a fault with this sub-code.
pub fn investigation(code: u32, fault: &NvlinkFault) -> Option<&'static str> {
    ROWS.iter().find(|row| row.fits(code, fault).is_some()).map(|row| row.investigate)
}

fn row(line: &'static str) -> Option<DecodeRow> {
    let fields: Vec<_> = line.split('|').map(str::trim).collect();
    let [code, unit, v1, v2, reason, status, class, severity, action, _, promoted, investigate, _] =
        fields[..]
    else {
        return None;
    };
    let hex = |text: &str| u32::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let (first, name) = (unit.split('/').next()?, class.trim_end_matches('*'));
    let look = advice(investigate)?;
    let meaning = |gravity: &str| format!("NVLink error in the unit {first} (Blackwell), {gravity}.{look}");
    let fatal = match name {
        "link_fatal" => "fatal for the link",
        "fatal" | "nonfatal" => "fatal for the GPU",
        _ => return None,
    };
    Some(DecodeRow {
        code: code.parse().ok()?,
        unit,
        low: [hex(v1)?, hex(v2)?],
        reason: reason.parse().ok()?,
        status: if status == "-" { None } else { Some(hex(status)?) },
        fatal: name != "nonfatal",
        varies: class.ends_with('*'),
        promotes: promoted != "-",
        severity: super::word(severity)?,
        action: super::word(action)?,
        investigate,
        meanings: [meaning("not fatal"), meaning(fatal)],
    })
}

/// Returns advice for NVIDIA's investigation keyword, with a leading space.
fn advice(investigate: &str) -> Option<&'static str> {
    Some(match investigate {
        "ignore" => "",
        "contact_support" => " If it repeats, contact NVIDIA support.",
        "check_nvlink_failure_flow" => {
            " If no link of the partition went down in the 30 s before, report it to NVIDIA."
        }
        "investigate_link_si" => " Check the signal quality of the link.",
        "investigate_link_si_and_cables" => {
            " Check the cables, seating, transceivers and temperature of the link."
        }
        "investigate_sw_user" => " Check which software or person took the link down.",
        "investigate_sw_user_link_si" => {
            " Check which software or person took the link down, then check the signal quality of the link."
        }
        "investigate_peer_device" => " The cause is at the other end of the link. Check the peer.",
        "investigate_host" => " The cause is in the host. Check its other logs.",
        "sympathetic_report_solo" => " It follows another fault. Check that fault first.",
        "report_issue" => " If it occurs more than once a day, report it to NVIDIA.",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::xid;
    use super::*;

    fn lines() -> Vec<Vec<&'static str>> {
        let lines = include_str!("nvlink5.psv").lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| line.split('|').map(str::trim).collect()).collect()
    }

    fn fault(unit: &str, intr_info: u32, status: u32, fatal: Option<bool>) -> NvlinkFault {
        let (intr_info, error_status) = (Some(intr_info), Some(status));
        NvlinkFault { unit: unit.into(), link: Some(4), fatal, intr_info, error_status }
    }

    fn judged(code: u32, fault: &NvlinkFault) -> (Severity, FaultAction) {
        let row = decode(xid(code), fault);
        (row.severity, row.action)
    }

    #[test]
    fn every_row_is_found_by_a_line_of_either_driver() {
        assert_eq!(ROWS.len(), lines().len());
        for row in ROWS.iter() {
            let units: Vec<&str> = row.unit.split('/').collect();
            for (version, unit) in [units[0], units[units.len() - 1]].into_iter().enumerate() {
                // The bits between are the line's own.
                let intr_info = row.low[version] | row.reason << 20 | 0xfc00_1000;
                let fault = fault(unit, intr_info, row.status.unwrap_or(77), Some(row.fatal));
                let found = decode(xid(row.code), &fault);
                assert_eq!((found.severity, found.action), (row.severity, row.action), "{row:?}");
                assert!(found.meaning.contains("NVLink error in the unit"), "{row:?}");
                assert!(investigation(row.code, &fault).is_some(), "{row:?}");
            }
        }
    }

    #[test]
    fn harmless_rows_ask_for_nothing_and_fatal_ones_page() {
        let mut harmless = 0;
        for (row, fields) in ROWS.iter().zip(lines()) {
            let expected = match (row.fatal, fields[9]) {
                (false, "ignore") => {
                    harmless += 1;
                    (Severity::Info, FaultAction::Ignore)
                }
                (false, "xid_154_eval") if row.investigate == "ignore" => {
                    (Severity::Info, FaultAction::RestartApp)
                }
                (false, "xid_154_eval") => (Severity::Ticket, FaultAction::RestartApp),
                (true, "reset_gpu") => (Severity::Page, FaultAction::ResetGpu),
                (true, "ignore") => (Severity::Page, FaultAction::ContactSupport),
                _ => panic!("{row:?}"),
            };
            assert_eq!((row.severity, row.action), expected, "{row:?}");
        }
        assert_eq!(harmless, 43, "as the vendor's table has them");
    }

    #[test]
    fn an_error_that_was_promoted_needs_a_reset() {
        let reset = (Severity::Page, FaultAction::ResetGpu);
        for (plain, promoted) in [(0x0c2, 0x4c2), (0x06, 0x86)] {
            let nothing = (Severity::Info, FaultAction::Ignore);
            assert_eq!(judged(145, &fault("RLW_RXPIPE", plain, 2, Some(false))), nothing);
            assert_eq!(judged(145, &fault("RLW_RXPIPE", promoted, 2, Some(false))), reset);
            assert_eq!(judged(145, &fault("RLW_RXPIPE", promoted, 8, Some(false))), nothing, "no such row");
        }
    }

    #[test]
    fn the_louder_of_row_and_line_counts_unless_the_vendor_says_that_it_varies() {
        let reset = (Severity::Page, FaultAction::ResetGpu);
        let ticket = (Severity::Ticket, FaultAction::ContactSupport);
        assert_eq!(judged(144, &fault("SAW_MVB", 1, 4, Some(true))), reset);
        assert_eq!(judged(144, &fault("SAW_MVB", 1, 2, Some(false))), reset);
        assert_eq!(judged(149, &fault("NETIR_MFDE_EVENT", 0x14, 1, Some(false))), ticket);
        assert_eq!(judged(149, &fault("NETIR_MFDE_EVENT", 0x14, 1, None)), reset);
    }

    #[test]
    fn a_sub_code_without_a_row_is_as_severe_as_its_line_says() {
        let unknown = |fatal| decode(xid(147), &fault("TREX", 0x0e, 0x400, fatal));
        assert_eq!(
            (unknown(Some(true)).severity, unknown(Some(true)).action),
            (Severity::Page, FaultAction::ResetGpu)
        );
        for fatal in [Some(false), None] {
            let row = unknown(fatal);
            assert_eq!((row.severity, row.action), (Severity::Ticket, FaultAction::ContactSupport));
        }
        for fatal in [true, false] {
            assert!(unknown(Some(fatal)).meaning.contains("sub-code is unknown"));
        }
        assert_eq!(investigation(147, &fault("TREX", 0x0e, 0x400, None)), None);
        let bare = NvlinkFault { unit: "TREX".into(), fatal: Some(true), ..NvlinkFault::default() };
        assert_eq!(judged(147, &bare).0, Severity::Page, "an older form without words");
    }

    proptest! {
        #[test]
        fn what_a_line_calls_fatal_always_pages(
            code in 144u32..151, at in 0usize..96, intr_info: u32, status: u32, exact: bool
        ) {
            let row = &ROWS[at % ROWS.len()];
            let (intr_info, status) =
                if exact { (row.low[1] | row.reason << 20, row.status.unwrap_or(status)) } else { (intr_info, status) };
            let fault = fault(row.unit.rsplit('/').next().unwrap(), intr_info, status, Some(true));
            prop_assert_eq!(decode(xid(code), &fault).severity, Severity::Page);
        }
    }
}
