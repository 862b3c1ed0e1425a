//! One entry of the list of events: a fault, or something else that happened, as it is published.

use std::sync::Arc;

use crate::catalog::{FaultAction, Gpu, Severity};

/// What kind of event it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// A GPU fault with a code.
    Xid,
    /// An NVSwitch fault with a code.
    Sxid,
    /// Another event of the driver.
    DriverEvent,
    /// The driver changed what it asks for to bring a GPU back.
    RecoveryAction,
    /// The kernel module was loaded.
    DriverLoad,
    /// The kernel module was removed.
    DriverUnload,
    /// A GPU was reset.
    GpuReset,
    /// The canary has found something, or finds it no more.
    Canary,
    /// A window of planned work has begun or ended.
    Window,
}

impl EventKind {
    /// Its name in JSON and in the journal.
    pub fn name(self) -> &'static str {
        match self {
            EventKind::Xid => "xid",
            EventKind::Sxid => "sxid",
            EventKind::DriverEvent => "driver_event",
            EventKind::RecoveryAction => "recovery_action",
            EventKind::DriverLoad => "driver_load",
            EventKind::DriverUnload => "driver_unload",
            EventKind::GpuReset => "gpu_reset",
            EventKind::Canary => "canary",
            EventKind::Window => "window",
        }
    }
}

/// An event, or several of the same kind in a burst.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Rises with each entry, from 1. 0 until it is in the list.
    pub id: u64,
    /// Rises over all entries with each one that is new or changed.
    pub revision: u64,
    /// When it happened first, in seconds since 1970.
    pub unix_seconds: f64,
    /// When it happened last.
    pub last_unix_seconds: f64,
    /// How many more times it happened after the first.
    pub repeats: u64,
    /// Whether it is from before the exporter watched: it is in no counter.
    pub old: bool,
    /// What kind it is.
    pub kind: EventKind,
    /// The GPU, where it is about one that is known.
    pub gpu: Option<Gpu>,
    /// PCI address as the teller has it, without function.
    pub pci: Option<String>,
    /// Number of the NVSwitch.
    pub nvswitch: Option<String>,
    /// Xid or SXid code, the driver's number of the event, or the CUDA error that the canary met.
    pub code: Option<u64>,
    /// The vendor's name of the code, the name of the driver's event, or the canary's verdict; empty if there is
    /// none.
    pub mnemonic: &'static str,
    /// Check of the canary.
    pub check: Option<&'static str>,
    /// What it means.
    pub meaning: &'static str,
    /// How loud it is.
    pub severity: Severity,
    /// What to do first.
    pub action: FaultAction,
    /// MIG GPU instance.
    pub gpu_instance: Option<u32>,
    /// MIG compute instance.
    pub compute_instance: Option<u32>,
    /// Process.
    pub pid: Option<u32>,
    /// Its name.
    pub process: Option<String>,
    /// Whose work ran there: that of the process, or of the only owner on the GPU or GPU instance.
    pub owner: Option<Arc<str>>,
    /// The line of the kernel log, the canary's words, or the window; empty if only the driver told.
    pub text: String,
    /// Whether the driver's events told of it.
    pub nvml: bool,
    /// Whether the kernel log told of it.
    pub kmsg: bool,
}

impl Event {
    /// An event of this kind and time about which nothing more is known.
    pub fn new(kind: EventKind, unix_seconds: f64, severity: Severity, action: FaultAction) -> Event {
        Event {
            id: 0,
            revision: 0,
            unix_seconds,
            last_unix_seconds: unix_seconds,
            repeats: 0,
            old: false,
            kind,
            gpu: None,
            pci: None,
            nvswitch: None,
            code: None,
            mnemonic: "",
            check: None,
            meaning: "",
            severity,
            action,
            gpu_instance: None,
            compute_instance: None,
            pid: None,
            process: None,
            owner: None,
            text: String::new(),
            nvml: false,
            kmsg: false,
        }
    }
}
