//! Facts: things that happened, as they travel from a collector to the ledger. Unlike rows, which are
//! state and may be overtaken, each fact counts: they are numbered per stream and queued apart, so that a
//! lost one is known.

use serde::{Deserialize, Serialize};

use crate::catalog::schema::KnownLabel;
use crate::catalog::{DriverEvent, FaultSource, Gpu, RecoveryAction};
use crate::clock::Mono;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fact {
    /// The reporter.
    pub source: FaultSource,
    /// Counts the facts of one source and life from 1.
    pub number: u64,
    /// When it was heard of.
    pub taken: Mono,
    /// When it happened, in seconds since 1970.
    pub unix_seconds: f64,
    /// An event of the driver, or a line of the kernel log.
    pub kind: FactKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FactKind {
    /// An NVML event.
    Driver(DriverFact),
    /// A line of the kernel log.
    Kernel(KernelFact),
}

/// An NVML event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DriverFact {
    /// The GPU.
    pub gpu: Gpu,
    /// The event's bit, as the header defines it.
    pub bits: u64,
    /// What comes with it: the Xid code, or the new recovery action.
    pub data: u64,
    /// GPU instance, where the event is about one.
    pub gpu_instance: Option<u32>,
    /// Compute instance, where the event is about one.
    pub compute_instance: Option<u32>,
}

/// Bits of nvmlEventType* in the header, in the order of [`DriverEvent`]; 0 is any other.
pub const EVENT_BITS: [u64; 10] = [0x2, 0x8, 0x200, 0x400, 0x800, 0x1000, 0x2000, 0x4000, 0x8000, 0];

impl DriverFact {
    /// Which event it is.
    pub fn event(&self) -> DriverEvent {
        let known = DriverEvent::ALL.iter().zip(EVENT_BITS).find(|(_, bit)| *bit == self.bits);
        known.map_or(DriverEvent::Unknown, |(event, _)| *event)
    }
}

/// A line of the kernel log that concerns GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelFact {
    /// Whether it was logged before the exporter watched: it is listed, but counted in no counter.
    pub old: bool,
    /// What it says.
    pub line: KernelLine,
    /// The whole text.
    pub text: String,
}

/// What a line of the kernel log says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum KernelLine {
    /// `NVRM: Xid (PCI:0000:06:00): 79, pid=..., name=..., ...`
    Xid {
        /// PCI address as `0000:06:00`: domain, bus and device.
        pci: String,
        /// Code.
        code: u32,
        /// Process, where the line names one.
        pid: Option<u32>,
        /// Its name.
        process: Option<String>,
        /// GPU instance, where the line names one.
        gpu_instance: Option<u32>,
        /// Compute instance, where the line names one.
        compute_instance: Option<u32>,
        /// What the line says behind code and process, for the codes that need it.
        detail: Option<XidDetail>,
    },
    /// A GPU failed, and the line has no code: `NVRM: GPU 0000:06:00.0: GPU has fallen off the bus.`
    GpuFailed {
        /// PCI address, where the line names one.
        pci: Option<String>,
        /// How.
        failure: GpuFailure,
    },
    /// `nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 20034, Fatal, Link 25 ...`
    Sxid {
        /// Number of the switch.
        nvswitch: String,
        /// PCI address.
        pci: String,
        /// Code.
        code: u32,
        /// Whether the line calls it fatal.
        fatal: bool,
    },
    /// `NVRM: loading NVIDIA UNIX ... Kernel Module  580.159.04 ...`
    DriverLoaded {
        /// Version.
        version: String,
    },
    /// The kernel module was removed.
    DriverUnloaded,
    /// `oom-kill:constraint=CONSTRAINT_MEMCG,...,task_memcg=/a/b,task=app,pid=522,uid=0`: a process was killed for want
    /// of host memory.
    OomKill {
        /// Its control group, from the root of the hierarchy; `None` where the line can be read in two ways.
        group: Option<String>,
        /// The process, as the host sees it.
        pid: u32,
    },
}

/// How a GPU failed of which a line without a code reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GpuFailure {
    /// It no longer answers on PCIe.
    FallenOffBus,
    /// The driver could not initialise it.
    InitFailed,
}

/// What the line of an Xid says behind code and process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XidDetail {
    /// The unit that a program's fault came from (13, 31), as `GPC 0 TPC 1 SM 1`.
    Unit(String),
    /// 144 to 150.
    Nvlink(NvlinkFault),
    /// 154.
    Recovery(RecoveryChange),
}

/// A fault of NVLink 5: `RLW_REMAP Nonfatal XC0 i0 Link 04 (0x00000004 0x00000001 ...)`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvlinkFault {
    /// Unit; empty if it could not be read.
    pub unit: String,
    /// Link, if it is about one.
    pub link: Option<u32>,
    /// Whether the line calls it fatal, where it says so.
    pub fatal: Option<bool>,
    /// The first word.
    pub intr_info: Option<u32>,
    /// The second word.
    pub error_status: Option<u32>,
}

/// A change of what the driver asks for; `None`: an action that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryChange {
    /// Before.
    pub from: Option<RecoveryAction>,
    /// Now.
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
