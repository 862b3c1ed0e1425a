//! Parses a record of /dev/kmsg: its header and the GPU events in its text. Pure.
//!
//! A fault counts only if its line is complete up to the comma after the code, because a line that was cut within the
//! code would count as another code. Lines that a process wrote to the log are ignored; the kernel marks them by their
//! facility.

use model::fact::{GpuFailure, KernelLine};
use model::pci::pci_address;

use super::{detail, oom};

/// Maximum length of the stored text in bytes.
const MAX_TEXT: usize = 1024;
/// Number of levels in the priority. The quotient is the facility, which is 0 for the kernel.
const LEVELS: u32 = 8;

/// Record of the kernel log.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Record<'a> {
    /// Whether the kernel itself wrote the record.
    pub(crate) kernel: bool,
    /// Sequence number, which increases by one per record since boot.
    pub(crate) sequence: u64,
    /// Time of the record in microseconds since boot.
    pub(crate) micros: u64,
    pub(crate) text: &'a [u8],
}

/// Meaning of a line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum LineMeaning {
    /// A fault or other event, and its text.
    Fact(KernelLine, String),
    /// Line of the driver without an event, such as a detail of one.
    Driver,
    /// Line that starts like a fault but cannot be parsed.
    Malformed,
    /// Line of another source.
    NotOurs,
}

/// Parses a line `PRIORITY,SEQUENCE,MICROSECONDS,FLAGS[,...];TEXT`. Returns `None` for continuation lines, which start
/// with a blank, and for anything else that is not a record.
pub(crate) fn parse(line: &[u8]) -> Option<Record<'_>> {
    let end = line.iter().position(|b| *b == b';')?;
    let (header, text) = (&line[..end], &line[end + 1..]);
    let mut fields = std::str::from_utf8(header).ok()?.split(',');
    let mut number = || fields.next().filter(|f| f.bytes().all(|b| b.is_ascii_digit()))?.parse::<u64>().ok();
    let (priority, sequence, micros) = (number()?, number()?, number()?);
    // The flags are unused, but a header without them was cut.
    fields.next()?;
    Some(Record { kernel: priority < u64::from(LEVELS), sequence, micros, text })
}

/// Classifies the text of a record.
pub(crate) fn classify(text: &[u8]) -> LineMeaning {
    // Most lines have other sources, which their first bytes show.
    if text.starts_with(oom::BEGINNING) {
        return oom::kill(text).map_or(LineMeaning::NotOurs, |line| LineMeaning::Fact(line, kept(text)));
    }
    let ours = text.starts_with(b"NVRM:") || text.starts_with(b"nvidia-");
    if !ours {
        return LineMeaning::NotOurs;
    }
    let text = kept(text);
    if let Some(rest) = text.strip_prefix("NVRM: Xid") {
        return xid(rest).map_or(LineMeaning::Malformed, |line| LineMeaning::Fact(line, text.clone()));
    }
    if text.starts_with("NVRM:")
        && let Some(line) = gpu_failed(&text)
    {
        return LineMeaning::Fact(line, text);
    }
    if let Some(rest) = text.strip_prefix("nvidia-nvswitch") {
        return switch(rest, &text);
    }
    if let Some(rest) = text.strip_prefix("NVRM: loading NVIDIA UNIX ") {
        return match version(rest) {
            Some(version) => LineMeaning::Fact(KernelLine::DriverLoaded { version }, text),
            None => LineMeaning::Malformed,
        };
    }
    // This is the last message of the kernel module on removal, even if it found no GPU.
    if text.starts_with("nvidia-nvlink: Unregistered") && text.contains("Nvlink Core") {
        return LineMeaning::Fact(KernelLine::DriverUnloaded, text);
    }
    LineMeaning::Driver
}

/// Returns the text up to its maximum length, without invalid bytes.
fn kept(text: &[u8]) -> String {
    let mut kept = String::from_utf8_lossy(&text[..text.len().min(MAX_TEXT)]).replace('\0', " ");
    kept.truncate(kept.trim_end().len());
    kept
}

/// Parses ` (PCI:0000:06:00): 79, pid=522, name=app, GPU has fallen off the bus.` Old drivers omit `PCI:` or the
/// process. With MIG the instances follow the address.
fn xid(rest: &str) -> Option<KernelLine> {
    let (place, rest) = rest.strip_prefix(" (")?.split_once(')')?;
    let mut place = place.split(' ');
    let address = place.next()?;
    let pci = pci_address(address.strip_prefix("PCI:").unwrap_or(address))?;
    let (mut gpu_instance, mut compute_instance) = (None, None);
    for word in place {
        if let Some(id) = word.strip_prefix("GPU-I:") {
            gpu_instance = id.parse().ok();
        } else if let Some(id) = word.strip_prefix("GPU-CI:") {
            compute_instance = id.parse().ok();
        }
    }
    let (code, rest) = code(rest.strip_prefix(": ")?)?;
    let mut process = None;
    let mut pid = None;
    let mut tail = rest.trim_start();
    if let Some(rest) = tail.strip_prefix("pid=") {
        // Without its comma the number may have been cut.
        let (id, rest) = rest.split_once(',').unwrap_or(("", ""));
        pid = unquoted(id).parse().ok();
        tail = rest.trim_start();
        if let Some(name) = tail.strip_prefix("name=") {
            let (name, behind) = name.split_once(", ").unwrap_or((name, ""));
            let name = unquoted(name);
            process = (!name.is_empty() && name != "<unknown>").then(|| name.to_owned());
            tail = behind;
        }
    }
    let detail = detail::parse(code, tail);
    Some(KernelLine::Xid { pci, code, pid, process, gpu_instance, compute_instance, detail })
}

/// Parses `NVRM: GPU 0000:06:00.0: GPU has fallen off the bus.`, `NVRM: The NVIDIA GPU 0000:06:00.0\x0aNVRM: (PCI ID:
/// 10de:2335) installed in this system has\x0aNVRM: fallen off the bus and is not responding to commands.` and `NVRM:
/// GPU 0000:06:00.0: RmInitAdapter failed! (0x62:0x40:2393)`.
fn gpu_failed(text: &str) -> Option<KernelLine> {
    let failure = if text.contains("fallen off the bus") {
        GpuFailure::FallenOffBus
    } else if text.contains("RmInitAdapter failed") {
        GpuFailure::InitFailed
    } else {
        return None;
    };
    let address = |word: &str| {
        let word = word.trim_end_matches(':');
        let word = word.strip_prefix("GPU-").unwrap_or(word);
        // Two numbers are a vendor and a device ID.
        pci_address(word.strip_prefix("PCI:").unwrap_or(word)).filter(|_| word.matches(':').count() >= 2)
    };
    // The kernel log escapes the line ends of a message like this.
    let text = text.replace("\\x0a", " ");
    Some(KernelLine::GpuFailed { pci: text.split_whitespace().find_map(address), failure })
}

/// Parses `3: SXid (PCI:0000:c5:00.0): 20034, Fatal, Link 25 LTSSM Fault Up`. The driver logs the severity and data of
/// a fault on further lines with the same code, which are not separate faults.
fn switch(rest: &str, text: &str) -> LineMeaning {
    let Some((nvswitch, rest)) = rest.split_once(": ") else { return LineMeaning::Driver };
    let Some(rest) = rest.strip_prefix("SXid") else { return LineMeaning::Driver };
    let parsed = || {
        let (place, rest) = rest.strip_prefix(" (")?.split_once(')')?;
        let pci = pci_address(place.strip_prefix("PCI:").unwrap_or(place))?;
        let (code, rest) = code(rest.strip_prefix(": ")?)?;
        let numbered = !nvswitch.is_empty() && nvswitch.bytes().all(|b| b.is_ascii_digit());
        let rest = rest.trim_start();
        let detail = rest.starts_with("Data {") || rest.starts_with("Severity ");
        let word = rest.split([',', ' ']).next().unwrap_or_default();
        let fatal = word.eq_ignore_ascii_case("fatal");
        numbered.then(|| (detail, KernelLine::Sxid { nvswitch: nvswitch.to_owned(), pci, code, fatal }))
    };
    match parsed() {
        Some((true, _)) => LineMeaning::Driver,
        Some((false, line)) => LineMeaning::Fact(line, text.to_owned()),
        None => LineMeaning::Malformed,
    }
}

/// Splits a text into the code and the rest after its comma.
fn code(text: &str) -> Option<(u32, &str)> {
    let (digits, rest) = text.split_once(',')?;
    let whole = (1..=9).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    Some((digits.parse().ok().filter(|_| whole)?, rest))
}

/// Parses `x86_64 Kernel Module  580.159.04  Mon ...` and `Open Kernel Module for x86_64  580.159.04  Release Build
/// ...`.
fn version(rest: &str) -> Option<String> {
    let rest = &rest[rest.find("Kernel Module")?..];
    let version = |word: &&str| {
        let mut parts = word.split('.');
        parts.clone().count() >= 2 && parts.all(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()))
    };
    rest.split_whitespace().find(version).map(ToOwned::to_owned)
}

fn unquoted(text: &str) -> &str {
    text.trim().trim_matches(['\'', '"'])
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::fact::XidDetail;
    use proptest::prelude::*;

    fn xid_of(text: &str) -> Option<(String, u32, Option<u32>, Option<String>)> {
        match classify(text.as_bytes()) {
            LineMeaning::Fact(KernelLine::Xid { pci, code, pid, process, .. }, _) => {
                Some((pci, code, pid, process))
            }
            _ => None,
        }
    }

    #[test]
    fn records_are_taken_apart() {
        let record = parse(b"4,1234,5678901,-,caller=T522;NVRM: a; b").unwrap();
        assert_eq!((record.kernel, record.sequence, record.micros), (true, 1234, 5_678_901));
        assert_eq!(record.text, b"NVRM: a; b");
        assert!(!parse(b"12,1,2,-;NVRM: Xid (PCI:0000:06:00): 79, written by a process").unwrap().kernel);
        for none in [
            "",
            " SUBSYSTEM=pci",
            "4,1,2;cut",
            "4,1,-;x",
            ";x",
            "4,-1,2,-;x",
            "4,1,2,-",
            "99999999999999999999,1,2,-;x",
        ] {
            assert_eq!(parse(none.as_bytes()), None, "{none}");
        }
    }

    #[test]
    fn failures_of_gpus_without_a_code_are_reported() {
        use GpuFailure::{FallenOffBus, InitFailed};
        for (text, pci, failure) in [
            ("NVRM: GPU 0000:06:00.0: GPU has fallen off the bus.", Some("0000:06:00"), FallenOffBus),
            ("NVRM: GPU at PCI:0000:06:00 has fallen off the bus.", Some("0000:06:00"), FallenOffBus),
            (
                "NVRM: The NVIDIA GPU 0001:06:00.0\\x0aNVRM: (PCI ID: 10de:2335) installed in this system has\\x0aNVRM: \
                 fallen off the bus and is not responding to commands.",
                Some("0001:06:00"),
                FallenOffBus,
            ),
            ("NVRM: installed in this system has fallen off the bus and", None, FallenOffBus),
            (
                "NVRM: GPU 0000:06:00.0: RmInitAdapter failed! (0x62:0x40:2393)",
                Some("0000:06:00"),
                InitFailed,
            ),
            ("NVRM: GPU-0000:3b:00: RmInitAdapter failed!", Some("0000:3b:00"), InitFailed),
            ("NVRM: RmInitAdapter failed! (0x26:0xffff:1290)", None, InitFailed),
        ] {
            let line = KernelLine::GpuFailed { pci: pci.map(Into::into), failure };
            assert_eq!(classify(text.as_bytes()), LineMeaning::Fact(line, text.into()), "{text}");
        }
        let text = "NVRM: GPU 0000:06:00.0: rm_init_adapter failed, device minor number 0";
        assert_eq!(classify(text.as_bytes()), LineMeaning::Driver, "it follows the line before");
    }

    #[test]
    fn a_detail_is_that_of_the_driver_and_not_of_a_name() {
        let text = "NVRM: Xid (PCI:0000:06:00): 13, pid=5, name=(GPC 7, TPC 1), Graphics Exception: ESR 0x1";
        let LineMeaning::Fact(KernelLine::Xid { detail, .. }, _) = classify(text.as_bytes()) else {
            panic!()
        };
        assert_eq!(detail, None);
        let text = "NVRM: Xid (PCI:0000:06:00): 145, RLW_REMAP Fatal XC0 i0 Link 04 (0x1 0x2)";
        let LineMeaning::Fact(KernelLine::Xid { detail, .. }, _) = classify(text.as_bytes()) else {
            panic!()
        };
        assert!(matches!(detail, Some(XidDetail::Nvlink(fault)) if fault.link == Some(4)));
    }

    #[test]
    fn xid_lines_of_all_drivers_are_understood() {
        let at = |code, pid, name: Option<&str>| {
            Some(("0000:06:00".to_owned(), code, pid, name.map(ToOwned::to_owned)))
        };
        for (text, is) in [
            (
                "NVRM: Xid (PCI:0000:06:00): 31, pid=522, name=app, channel 0x0000000a, intr 00000000. MMU Fault",
                at(31, Some(522), Some("app")),
            ),
            ("NVRM: Xid (PCI:0000:06:00): 79, GPU has fallen off the bus.", at(79, None, None)),
            (
                "NVRM: Xid (PCI:0000:06:00): 13, pid='<unknown>', name=<unknown>, Graphics SM",
                at(13, None, None),
            ),
            (
                "NVRM: Xid (PCI:0000:06:00): 43, pid=7, name=my app \"x\", Ch 1",
                at(43, Some(7), Some("my app \"x")),
            ),
            ("NVRM: Xid (PCI:0000:06:00): 43, pid=7, Ch 1", at(43, Some(7), None)),
            ("NVRM: Xid (PCI:0000:06:00): 45, pid=1, name='a b', Ch 1", at(45, Some(1), Some("a b"))),
            ("NVRM: Xid (PCI:0000:06:00): 45, pid=1, name=last", at(45, Some(1), Some("last"))),
            ("NVRM: Xid (0000:06:00): 31, Ch 00000003", at(31, None, None)),
            ("NVRM: Xid (0006:00): 8, Channel 00000003", at(8, None, None)),
            ("NVRM: Xid (PCI:0000:06:00.0): 8, x", at(8, None, None)),
            ("NVRM: Xid (PCI:0000:06:00): 99999, never heard of", at(99999, None, None)),
        ] {
            assert_eq!(xid_of(text), is, "{text}");
        }
    }

    #[test]
    fn mig_instances_are_read() {
        let text = b"NVRM: Xid (PCI:0000:06:00 GPU-I:05 GPU-CI:01): 43, pid=7, name=x, Ch 1";
        let LineMeaning::Fact(KernelLine::Xid { gpu_instance, compute_instance, .. }, _) = classify(text)
        else {
            panic!()
        };
        assert_eq!((gpu_instance, compute_instance), (Some(5), Some(1)));
    }

    #[test]
    fn what_looks_like_a_fault_and_is_not_whole_is_malformed() {
        for text in [
            "NVRM: Xid",
            "NVRM: Xid (PCI:0000:06:00): 7",
            "NVRM: Xid (PCI:0000:06:00): 79",
            "NVRM: Xid (PCI:0000:06:00): ",
            "NVRM: Xid (PCI:0000:06:0",
            "NVRM: Xid (PCI:0000:06:00): NVRM: Xid (PCI:0000:07:00): 79, pid=1",
            "NVRM: Xid (PCI:0000:06:00): -1, x",
            "NVRM: Xid (PCI:0000:06:00): 99999999999, x",
            "NVRM: Xid (): 31, x",
            "nvidia-nvswitch0: SXid (PCI:0000:c5:00.0): 2003",
            "NVRM: loading NVIDIA UNIX x86_64 Ker",
        ] {
            assert_eq!(classify(text.as_bytes()), LineMeaning::Malformed, "{text}");
        }
    }

    #[test]
    fn a_switch_fault_is_one_line_of_several() {
        let lines = [
            "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ interrupt",
            "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Severity 0 Engine instance 44 Sub-engine instance 00",
            "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Data {0x0000002b, 0x0000002b}",
        ];
        let meanings: Vec<LineMeaning> = lines.iter().map(|line| classify(line.as_bytes())).collect();
        let line =
            KernelLine::Sxid { nvswitch: "3".into(), pci: "0000:04:00".into(), code: 22013, fatal: false };
        assert_eq!(
            meanings,
            [LineMeaning::Fact(line, lines[0].into()), LineMeaning::Driver, LineMeaning::Driver]
        );
        let fatal =
            classify(b"nvidia-nvswitch0: SXid (PCI:0000:c5:00.0): 20034, Fatal, Link 25 LTSSM Fault Up");
        assert!(matches!(fatal, LineMeaning::Fact(KernelLine::Sxid { fatal: true, .. }, _)), "{fatal:?}");
        assert_eq!(classify(b"nvidia-nvswitch0: using MSI"), LineMeaning::Driver);
    }

    #[test]
    fn loads_and_removals_of_the_module_are_reported() {
        for text in [
            "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.159.04  Mon Jan  5 12:00:00 UTC 2026",
            "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (dvs-builder@U22-I3-H04-03-1)",
        ] {
            let LineMeaning::Fact(KernelLine::DriverLoaded { version }, _) = classify(text.as_bytes()) else {
                panic!("{text}")
            };
            assert_eq!(version, "580.159.04");
        }
        let gone = "nvidia-nvlink: Unregistered Nvlink Core, major device number 236";
        assert_eq!(classify(gone.as_bytes()), LineMeaning::Fact(KernelLine::DriverUnloaded, gone.into()));
        assert_eq!(classify(b"nvidia-nvlink: Nvlink Core is being initialized"), LineMeaning::Driver);
        assert_eq!(classify(b"NVRM: GPU at PCI:0000:06:00: GPU-12"), LineMeaning::Driver);
        assert_eq!(classify(b"usb 1-1: NVRM: Xid (PCI:0000:06:00): 79, x"), LineMeaning::NotOurs);
    }

    #[test]
    fn bytes_that_are_no_text_and_long_lines_do_no_harm() {
        let mut line = b"NVRM: Xid (PCI:0000:06:00): 31, pid=5, name=\xff\x00\xfe, ".to_vec();
        line.resize(10_240, b'x');
        let LineMeaning::Fact(KernelLine::Xid { code: 31, pid: Some(5), .. }, text) = classify(&line) else {
            panic!()
        };
        assert!(text.len() <= MAX_TEXT * 3 && !text.contains('\0'));
        line.resize(100_000, 0);
        assert!(matches!(classify(&line), LineMeaning::Fact(..)));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(line in prop::collection::vec(any::<u8>(), 0..300)) {
            parse(&line);
            classify(&line);
            classify(&[b"NVRM: Xid", line.as_slice()].concat());
            classify(&[b"NVRM: Xid (PCI:0000:06:00): 149, ", line.as_slice()].concat());
            classify(&[b"NVRM: RmInitAdapter failed", line.as_slice()].concat());
            classify(&[b"oom-kill:,task_memcg=", line.as_slice(), b",task=x,pid=1,uid=0"].concat());
            classify(&[b"nvidia-nvswitch", line.as_slice()].concat());
            classify(&[b"NVRM: loading NVIDIA UNIX ", line.as_slice()].concat());
        }

        #[test]
        fn a_line_cut_anywhere_never_tells_another_code(code in 1u32..2000, cut in 0usize..90) {
            let whole = format!("NVRM: Xid (PCI:0000:06:00): {code}, pid=1234, name=worker, channel 0x0000000a");
            if let Some((pci, found, ..)) = xid_of(&whole[..cut.min(whole.len())]) {
                prop_assert_eq!((pci.as_str(), found), ("0000:06:00", code));
            }
        }

        #[test]
        fn records_come_back(priority in 0u32..200, sequence: u64, micros: u64, text in "[ -~]{0,80}") {
            let line = format!("{priority},{sequence},{micros},-;{text}");
            let record = parse(line.as_bytes()).unwrap();
            prop_assert_eq!((record.sequence, record.micros, record.text), (sequence, micros, text.as_bytes()));
            prop_assert_eq!(record.kernel, priority < 8);
        }
    }
}
