//! Facts, which are events that collectors report to the ledger. Newer rows may replace older rows because rows are
//! state, but every fact counts. Facts have a number per stream and a separate queue, so that the ledger detects lost
//! facts.

use serde::{Deserialize, Serialize};

use crate::catalog::schema::KnownLabel;
use crate::catalog::{DriverEvent, FaultSource, Gpu, RecoveryAction};
use crate::clock::Mono;

/// Event that a collector reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fact {
    /// Source that reported the fact.
    pub source: FaultSource,
    /// Sequence number of the fact, counted from 1 for every source and process lifetime.
    pub number: u64,
    /// Time at which the exporter received the fact.
    pub taken: Mono,
    /// Time at which the fact happened, in seconds since 1970.
    pub unix_seconds: f64,
    pub kind: FactKind,
}

/// Content of a fact.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FactKind {
    /// Event reported by NVML.
    Driver(DriverFact),
    /// Line of the kernel log.
    Kernel(KernelFact),
}

/// Event reported by NVML.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DriverFact {
    pub gpu: Gpu,
    /// Bit of the event, as defined in the header of NVML.
    pub bits: u64,
    /// Data of the event: the Xid code, or the new recovery action.
    pub data: u64,
    /// GPU instance, if the event concerns one.
    pub gpu_instance: Option<u32>,
    /// Compute instance, if the event concerns one.
    pub compute_instance: Option<u32>,
}

/// Bits of nvmlEventType* in the header, in the order of [`DriverEvent`]. The value 0 means all other events.
pub const EVENT_BITS: [u64; 10] = [0x2, 0x8, 0x200, 0x400, 0x800, 0x1000, 0x2000, 0x4000, 0x8000, 0];

impl DriverFact {
    /// Returns the kind of the event.
    pub fn event(&self) -> DriverEvent {
        let known = DriverEvent::ALL.iter().zip(EVENT_BITS).find(|(_, bit)| *bit == self.bits);
        known.map_or(DriverEvent::Unknown, |(event, _)| *event)
    }
}

/// Line of the kernel log that concerns GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelFact {
    /// True if the line was logged before the exporter started to read the log. Such faults are listed, but not
    /// counted.
    pub old: bool,
    /// Parsed content of the line.
    pub line: KernelLine,
    /// Complete text of the line.
    pub text: String,
}

/// Parsed content of a line of the kernel log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum KernelLine {
    /// `NVRM: Xid (PCI:0000:06:00): 79, pid=..., name=..., ...`
    Xid {
        /// PCI address in the form `0000:06:00`: domain, bus and device.
        pci: String,
        code: u32,
        /// Process id, if the line contains one.
        pid: Option<u32>,
        /// Name of the process.
        process: Option<String>,
        /// GPU instance, if the line contains one.
        gpu_instance: Option<u32>,
        /// Compute instance, if the line contains one.
        compute_instance: Option<u32>,
        /// Text after the code and the process, parsed for the codes that need it.
        detail: Option<XidDetail>,
    },
    /// Failure of a GPU in a line without a code: `NVRM: GPU 0000:06:00.0: GPU has fallen off the bus.`
    GpuFailed {
        /// PCI address, if the line contains one.
        pci: Option<String>,
        failure: GpuFailure,
    },
    /// `nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 20034, Fatal, Link 25 ...`
    Sxid {
        /// Number of the NVSwitch.
        nvswitch: String,
        /// PCI address of the NVSwitch.
        pci: String,
        code: u32,
        /// True if the line calls the fault fatal.
        fatal: bool,
    },
    /// `NVRM: loading NVIDIA UNIX ... Kernel Module  580.159.04 ...`
    DriverLoaded { version: String },
    /// The kernel module was unloaded.
    DriverUnloaded,
    /// Process killed because the host had no memory left:
    /// `oom-kill:constraint=CONSTRAINT_MEMCG,...,task_memcg=/a/b,task=app,pid=522,uid=0`.
    OomKill {
        /// Control group of the process, relative to the root of the hierarchy; `None` if the line is ambiguous.
        group: Option<String>,
        /// Process id in the PID namespace of the host.
        pid: u32,
    },
}

/// Failure of a GPU that a line without a code reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GpuFailure {
    /// The GPU no longer responds on PCIe.
    FallenOffBus,
    /// The driver failed to initialize the GPU.
    InitFailed,
}

/// Text of an Xid line after the code and the process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XidDetail {
    /// Unit in which a program caused the fault (Xid 13 and 31), such as `GPC 0 TPC 1 SM 1`.
    Unit(String),
    /// NVLink fault of Xid 144 to 150.
    Nvlink(NvlinkFault),
    /// Recovery action of Xid 154.
    Recovery(RecoveryChange),
}

/// Fault of NVLink 5, such as `RLW_REMAP Nonfatal XC0 i0 Link 04 (0x00000004 0x00000001 ...)`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvlinkFault {
    /// Unit of the fault; empty if the line is unreadable.
    pub unit: String,
    /// Link number, if the fault concerns a link.
    pub link: Option<u32>,
    /// True if the line calls the fault fatal; `None` if the line does not state it.
    pub fatal: Option<bool>,
    /// First word of the fault.
    pub intr_info: Option<u32>,
    /// Second word of the fault.
    pub error_status: Option<u32>,
}

/// Change of the recovery action that the driver requests; `None` for an unknown action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryChange {
    pub from: Option<RecoveryAction>,
    pub to: Option<RecoveryAction>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_has_its_bit() {
        assert_eq!(DriverEvent::ALL.len(), EVENT_BITS.len());
        let gpu = Gpu { gpu: 0, uuid: "a".into() };
        let mut fact = DriverFact { gpu, bits: 0x8, data: 31, gpu_instance: None, compute_instance: None };
        assert_eq!(fact.event(), DriverEvent::Xid);
        fact.bits = 0x10000;
        assert_eq!(fact.event(), DriverEvent::Unknown);
    }
}
