//! PCIe errors counted by the GPU and by the host's kernel, and PCIe throughput.

use nvml_wrapper::enum_wrappers::device::PcieUtilCounter;
use nvml_wrapper_sys::bindings::field_id;

use super::{KIBI, ONE};
use crate::driver::file_error;
use crate::visit::{Field, Visit};
use model::catalog::{self as m, AerSeverity, Direction, PcieError};
use model::pci::{kernel_address, link_rate};

macro_rules! error {
    ($id:ident, $error:ident) => {
        field!($id, gpu_pcie_errors_total, (PcieError::$error,), ONE)
    };
}

pub(super) static FIELDS: [Field; 12] = [
    error!(NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS, Correctable),
    error!(NVML_FI_DEV_PCIE_COUNT_NAKS_RECEIVED, NaksReceived),
    error!(NVML_FI_DEV_PCIE_COUNT_RECEIVER_ERROR, Receiver),
    error!(NVML_FI_DEV_PCIE_COUNT_BAD_TLP, BadTlp),
    error!(NVML_FI_DEV_PCIE_COUNT_NAKS_SENT, NaksSent),
    error!(NVML_FI_DEV_PCIE_COUNT_BAD_DLLP, BadDllp),
    error!(NVML_FI_DEV_PCIE_COUNT_NON_FATAL_ERROR, NonFatal),
    error!(NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR, Fatal),
    error!(NVML_FI_DEV_PCIE_COUNT_UNSUPPORTED_REQ, UnsupportedRequest),
    error!(NVML_FI_DEV_PCIE_COUNT_LCRC_ERROR, Lcrc),
    error!(NVML_FI_DEV_PCIE_COUNT_LANE_ERROR, Lane),
    field!(NVML_FI_DEV_PCIE_L0_TO_RECOVERY_COUNTER, gpu_pcie_recoveries_total, (), ONE),
];

/// Kernel files of advanced error reporting. Reading them does not access the device, but it is recorded and
/// measured like a driver call, because the device may be sick.
const AER: [(&str, AerSeverity); 3] = [
    ("aer_dev_correctable", AerSeverity::Correctable),
    ("aer_dev_nonfatal", AerSeverity::NonFatal),
    ("aer_dev_fatal", AerSeverity::Fatal),
];

/// Reads the best link that GPU and slot support.
pub(super) fn once(v: &mut Visit<'_>) {
    let metric = &m::gpu_pcie_link_max_generation;
    let generation =
        v.value("nvmlDeviceGetMaxPcieLinkGeneration", metric, (), ONE, |d| d.max_pcie_link_gen());
    let metric = &m::gpu_pcie_link_max_width_lanes;
    let width = v.value("nvmlDeviceGetMaxPcieLinkWidth", metric, (), ONE, |d| d.max_pcie_link_width());
    let best = generation.zip(width);
    let rate = best.and_then(|(generation, lanes)| link_rate(generation.into(), lanes.into()));
    v.state.link_rates.pcie = Some(rate);
}

/// Reads the throughput. It is off by default, because each call blocks for the 20 ms that it measures.
pub(super) fn throughput(v: &mut Visit<'_>) {
    for (counter, direction) in
        [(PcieUtilCounter::Send, Direction::Tx), (PcieUtilCounter::Receive, Direction::Rx)]
    {
        let call = ("nvmlDeviceGetPcieThroughput", counter.as_c());
        v.value(call, &m::gpu_pcie_throughput_bytes_per_second, (direction,), KIBI, |d| {
            d.pcie_throughput(counter)
        });
    }
}

/// Reads the host kernel's error counts of the GPU's PCI function.
pub(super) fn rare(v: &mut Visit<'_>) {
    let metric = &m::gpu_pcie_aer_errors_total;
    if !v.wants(&[metric.id()]) {
        return;
    }
    if v.state.pci_address.is_none() {
        let address = v.read("nvmlDeviceGetPciInfo_v3", &[metric.id()], |d| d.pci_info());
        v.state.pci_address = address.map(|pci| kernel_address(&pci.bus_id));
    }
    let Some(address) = v.state.pci_address.clone() else { return };
    let folder = v.shared.host.path("/sys/bus/pci/devices").join(address);
    for (name, severity) in AER {
        let path = folder.join(name);
        let text = v.read(name, &[metric.id()], |_| std::fs::read_to_string(path).map_err(file_error));
        let Some(text) = text else { continue };
        match total(&text) {
            Some(count) => v.add(name, metric, (severity,), count, ONE),
            None => v.unsupported(name, &[metric.id()]),
        }
    }
}

/// Returns the total of a kernel file of error counts, which is its last line, for example `TOTAL_ERR_COR 3`
/// (`Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats`).
fn total(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("TOTAL_"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::catalog::schema::KnownLabel;
    use proptest::prelude::*;

    #[test]
    fn the_total_of_a_kernel_file_is_its_total_line() {
        let text = "RxErr 1\nBadTLP 2\nBadDLLP 0\nRollover 0\nTimeout 0\nTOTAL_ERR_COR 3\n";
        assert_eq!(total(text), Some(3));
        assert_eq!(total("Undefined 0\nTOTAL_ERR_FATAL 0\n"), Some(0));
        assert_eq!(total(""), None);
        assert_eq!(total("TOTAL_ERR_COR\n"), None);
        assert_eq!(total("TOTAL_ERR_COR -1\n"), None);
    }

    #[test]
    fn every_kind_of_error_has_its_field_and_every_severity_its_file() {
        assert_eq!(PcieError::ALL.len() + 1, FIELDS.len());
        assert_eq!(AerSeverity::ALL.len(), AER.len());
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text: String) {
            let _ = total(&text);
        }
    }
}
