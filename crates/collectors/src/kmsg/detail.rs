//! Parses the text after the code and process of a fault line, for the codes that need it. Pure; text of an unexpected
//! form is ignored.

use model::catalog::RecoveryAction;
use model::catalog::schema::KnownLabel;
use model::fact::{NvlinkFault, RecoveryChange, XidDetail};
use model::xid::nvlink;

/// Maximum length of a unit name in bytes. The longest known name has 20.
const MAX_UNIT: usize = 48;

/// Parses the text after the code and process.
pub(crate) fn parse(code: u32, text: &str) -> Option<XidDetail> {
    match code {
        13 => multiprocessor(text).map(XidDetail::Unit),
        31 => engine(text).map(XidDetail::Unit),
        154 => recovery(text).map(XidDetail::Recovery),
        code if nvlink::CODES.contains(&code) => link(text).map(XidDetail::Nvlink),
        _ => None,
    }
}

/// Parses `Graphics SM Warp Exception on (GPC 0, TPC 1, SM 1): Illegal Instruction Encoding`. Some drivers omit the SM.
fn multiprocessor(text: &str) -> Option<String> {
    let (_, rest) = text.rsplit_once("(GPC ")?;
    let (place, _) = rest.split_once(')')?;
    let mut parts = place.split(',').map(str::trim);
    let mut unit = format!("GPC {}", number(parts.next()?)?);
    for part in parts {
        let (name, id) = part.split_once(' ')?;
        if !["TPC", "SM"].contains(&name) {
            return None;
        }
        unit += &format!(" {name} {}", number(id)?);
    }
    bounded(&unit)
}

/// Parses `MMU Fault: ENGINE GRAPHICS GPC2 GPCCLIENT_T1_7 faulted @ 0x2b57_b3000000. Fault is of type ...`.
fn engine(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("ENGINE ")?;
    bounded(rest.split_once(" faulted")?.0)
}

/// Parses `GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)`.
fn recovery(text: &str) -> Option<RecoveryChange> {
    let (from, to) = text.split_once("changed from ")?.1.split_once(" to ")?;
    let action = |text: &str| {
        let digits = text.trim_start().strip_prefix("0x")?;
        let digits = &digits[..digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len())];
        u32::from_str_radix(digits, 16).ok()
    };
    let known = |number: u32| RecoveryAction::ALL.get(usize::try_from(number).ok()?).copied();
    Some(RecoveryChange { from: action(from).and_then(known), to: known(action(to)?) })
}

/// Parses `RLW_REMAP Nonfatal XC0 i0 Link 04 (0x00000004 0x00000001 0x00000000 ...)`. Older drivers write `XC 1 i 2`,
/// brackets and one word. A fault without a link has `Link -1`.
fn link(text: &str) -> Option<NvlinkFault> {
    let (head, words) = match text.find(['(', '[']) {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, ""),
    };
    let mut fault = NvlinkFault::default();
    let mut names = Vec::new();
    let mut parts = head.split_whitespace();
    while let Some(part) = parts.next() {
        match part.to_ascii_lowercase().as_str() {
            "fatal" => fault.fatal = Some(true),
            "nonfatal" | "non-fatal" => fault.fatal = Some(false),
            "link" => fault.link = parts.next().and_then(number),
            _ if fault.fatal.is_none() => names.push(part),
            _ => {}
        }
    }
    // A fatal fault counts even if its unit is unreadable.
    fault.unit = bounded(&names.join(" ")).unwrap_or_default();
    let mut words = words.split([' ', ')', ']']).map_while(|word| {
        let digits = word.strip_prefix("0x").or(word.strip_prefix("0X"))?;
        u32::from_str_radix(digits, 16).ok()
    });
    fault.intr_info = words.next();
    fault.error_status = words.next();
    (fault.fatal.is_some() || !fault.unit.is_empty()).then_some(fault)
}

/// Parses a number as the driver writes it, without a sign and with few digits.
fn number(text: &str) -> Option<u32> {
    let whole = (1..=4).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| whole)
}

/// Returns the name of a unit if it has the form of one.
fn bounded(text: &str) -> Option<String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b' ' | b'_' | b'-');
    let text = text.trim();
    (!text.is_empty() && text.len() <= MAX_UNIT && text.bytes().all(fits)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn unit(code: u32, text: &str) -> Option<String> {
        match parse(code, text) {
            Some(XidDetail::Unit(unit)) => Some(unit),
            _ => None,
        }
    }

    #[test]
    fn units_of_faults_of_programs_are_read() {
        for (code, text, is) in [
            (13, "Graphics SM Warp Exception on (GPC 0, TPC 1, SM 1): Illegal", Some("GPC 0 TPC 1 SM 1")),
            (13, "Graphics SM Warp Exception on (GPC 1, TPC 0): Out Of Range Address", Some("GPC 1 TPC 0")),
            (13, "Graphics Exception: ESR 0x504648=0x114000e", None),
            (13, "Graphics SM Warp Exception on (GPC 0, TPC x): y", None),
            (13, "(GPC 99999999999, TPC 0)", None),
            (
                31,
                "Ch 0000000a, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC2 GPCCLIENT_T1_7 faulted @ 0x2b57_b3000000.",
                Some("GRAPHICS GPC2 GPCCLIENT_T1_7"),
            ),
            (31, "MMU Fault: ENGINE CE0 HUBCLIENT_CE0 faulted @ 0x0", Some("CE0 HUBCLIENT_CE0")),
            (31, "MMU Fault: ENGINE <b> faulted @ 0x0", None),
            (43, "Graphics SM Warp Exception on (GPC 0, TPC 1, SM 1): x", None),
        ] {
            assert_eq!(unit(code, text).as_deref(), is, "{text}");
        }
    }

    #[test]
    fn link_faults_of_all_forms_are_read() {
        let fault = |unit: &str, fatal, link, intr_info, error_status| {
            Some(XidDetail::Nvlink(NvlinkFault { unit: unit.into(), fatal, link, intr_info, error_status }))
        };
        for (text, is) in [
            (
                "RLW_REMAP Nonfatal XC0 i0 Link 04 (0x00000004 0x00000001 0x00000000 0x00000000 0x00000000 0x00000000)",
                fault("RLW_REMAP", Some(false), Some(4), Some(4), Some(1)),
            ),
            (
                "NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000 0x00000000)",
                fault("NETIR_LINK_EVT", Some(true), Some(9), Some(0x0255_25c6), Some(0)),
            ),
            (
                "NETIR Fatal XC0 i0 Link -1 (0x000FE406 0X00000000)",
                fault("NETIR", Some(true), None, Some(0xfe406), Some(0)),
            ),
            (
                "NETIR_LINK_EVT Fatal XC 1 i 2 Link 01 [0x0000000a]",
                fault("NETIR_LINK_EVT", Some(true), Some(1), Some(10), None),
            ),
            (
                "MSE Degraded FATAL XC0 i0 Link 00 (0x0 0xffffffff)",
                fault("MSE Degraded", Some(true), Some(0), Some(0), Some(u32::MAX)),
            ),
            ("SAW_MVB Non-Fatal XC0 i0 LINK 17", fault("SAW_MVB", Some(false), Some(17), None, None)),
            ("SAW_MVB", fault("SAW_MVB", None, None, None, None)),
            (
                "SAW_MVB Nonfatal Link 3 (0x1 0x123456789 0x3)",
                fault("SAW_MVB", Some(false), Some(3), Some(1), None),
            ),
            ("Fatal XC0 i0 Link 3 (0x1)", fault("", Some(true), Some(3), Some(1), None)),
            ("<b> Fatal", fault("", Some(true), None, None, None)),
            ("", None),
        ] {
            assert_eq!(parse(149, text), is, "{text}");
        }
    }

    #[test]
    fn the_recovery_action_is_that_of_the_text() {
        let change = |from, to| Some(XidDetail::Recovery(RecoveryChange { from, to }));
        use RecoveryAction as R;
        for (text, is) in [
            ("changed from 0x0 (None) to 0x1 (GPU Reset Required)", change(Some(R::None), Some(R::GpuReset))),
            (
                "changed from 0x4 (Drain and Reset) to 0x0 (None)",
                change(Some(R::DrainAndReset), Some(R::None)),
            ),
            ("changed from 0x0 (None) to 0x77 (x)", change(Some(R::None), None)),
            ("changed from x to 0x2", change(None, Some(R::NodeReboot))),
            ("changed from 0x0 (None) to (None)", None),
            ("changed", None),
        ] {
            assert_eq!(parse(154, text), is, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics_and_units_stay_short(
            code in prop::sample::select(vec![13u32, 31, 79, 144, 149, 150, 154]),
            text in "(\\PC|Fatal|Nonfatal| |Link|-1|0x|\\(|\\[|\\)|GPC |, TPC |ENGINE | faulted|changed from | to |[0-9a-f]{1,12}){0,20}"
        ) {
            let unit = match parse(code, &text) {
                Some(XidDetail::Unit(unit)) => unit,
                Some(XidDetail::Nvlink(fault)) => fault.unit,
                _ => String::new(),
            };
            prop_assert!(unit.len() <= MAX_UNIT);
        }
    }
}
