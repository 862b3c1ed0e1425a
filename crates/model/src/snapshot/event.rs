//! One entry of the list of events: a fault, or something else that happened, as it is published.

use std::sync::Arc;

use serde::{Serialize, Serializer};

pub use crate::catalog::EventKind;
use crate::catalog::{FaultAction, Gpu, Severity};

/// An event, or several of the same kind in a burst.
#[derive(Clone, Debug, PartialEq, Serialize)]
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
    #[serde(skip)]
    pub gpu: Option<Gpu>,
    /// PCI address as its source has it, without function.
    pub pci: Option<String>,
    /// Number of the NVSwitch.
    pub nvswitch: Option<String>,
    /// Xid or SXid code, the driver's number of the event, or the CUDA error that the canary met.
    pub code: Option<u64>,
    /// The vendor's name of the code, the name of the driver's event, or the canary's verdict; empty if there is
    /// none.
    #[serde(serialize_with = "null_if_empty")]
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
    /// The line of the kernel log, the canary's text, or the window; empty if only the driver reported it.
    pub text: String,
    /// Whether it came as a driver event.
    #[serde(skip)]
    pub nvml: bool,
    /// Whether it came from the kernel log.
    #[serde(skip)]
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

fn null_if_empty<S: Serializer>(text: &&str, serializer: S) -> Result<S::Ok, S::Error> {
    Some(text).filter(|text| !text.is_empty()).serialize(serializer)
}
