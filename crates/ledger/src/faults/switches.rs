//! Faults of NVSwitches with severity `page`. They last until the driver is loaded again or an operator reports a
//! reset of the switches. The exporter cannot observe such a reset: the kernel log does not mention it, and resets of
//! the GPUs do not imply it.

use super::Builder;
use super::judge::judged_sxid;
use model::catalog::{self as m, Node, Severity, SwitchName, SxidCode};
use model::persisted::SwitchFault;

/// Maximum number of faults kept, far more than a node has switches.
const MAX_FAULTS: usize = 256;

#[derive(Default)]
pub(crate) struct SwitchFaults(pub Vec<SwitchFault>);

impl SwitchFaults {
    /// Restores the faults of an earlier daemon.
    pub fn new(known: &[SwitchFault]) -> SwitchFaults {
        SwitchFaults(known.iter().take(MAX_FAULTS).cloned().collect())
    }

    /// Records a fault, if it pages.
    pub fn note(&mut self, nvswitch: &str, code: u32, fatal: bool) {
        if judged_sxid(code, fatal).severity != Severity::Page {
            return;
        }
        match self.0.iter().position(|known| known.nvswitch == nvswitch && known.code == code) {
            Some(at) => self.0[at].fatal |= fatal,
            None if self.0.len() < MAX_FAULTS => {
                self.0.push(SwitchFault { nvswitch: nvswitch.to_owned(), code, fatal });
            }
            None => {}
        }
    }

    /// Ends all faults, and returns true if there were any.
    pub fn clear(&mut self) -> bool {
        !std::mem::take(&mut self.0).is_empty()
    }

    pub fn publish(&self, b: &mut Builder<'_>) {
        for SwitchFault { nvswitch, code, fatal } in &self.0 {
            let labels = (
                SwitchName(nvswitch.as_str().into()),
                SxidCode(code.to_string().as_str().into()),
                judged_sxid(*code, *fatal).action,
            );
            b.flag(&m::gpu_nvswitch_fault_active, &Node {}, labels, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::persisted::PersistedFaults;

    #[test]
    fn only_what_pages_lasts_and_each_fault_is_kept_once() {
        let mut switches = SwitchFaults::default();
        // No code of the table: as its line says.
        switches.note("0", 29_999, false);
        assert!(switches.0.is_empty());
        for _ in 0..3 {
            switches.note("0", 29_999, true);
            switches.note("1", 29_999, true);
        }
        let later = SwitchFaults::new(&switches.0);
        let known: Vec<_> = later.0.iter().map(|fault| (fault.nvswitch.as_str(), fault.code)).collect();
        assert_eq!(known, [("0", 29_999), ("1", 29_999)]);
        for code in 30_000..31_000 {
            switches.note("2", code, true);
        }
        assert_eq!(switches.0.len(), MAX_FAULTS);
        assert!(switches.clear() && switches.0.is_empty() && !switches.clear());
    }

    #[test]
    fn a_file_without_switches_has_none() {
        let kept: PersistedFaults = serde_json::from_str(r#"{"load":null,"gpus":[]}"#).unwrap();
        assert_eq!(kept, PersistedFaults::default());
    }
}
