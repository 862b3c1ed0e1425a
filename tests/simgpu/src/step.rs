//! What happens to a node, and when: the steps of a scenario.

mod entry;

use std::collections::HashMap;
use std::time::Duration;

use nvml_wrapper_sys::bindings as sys;
use serde::Deserialize;

use crate::functions::Key;
use crate::hardware::Hardware;
use crate::value::{Code, Value};

pub use entry::{StepEntry, read_set};

/// What sets a step off.
#[derive(Clone, Debug)]
pub enum When {
    /// The scenario's clock.
    At(Duration),
    /// A gate, by its index; the step ends when the gate closes.
    Gate(usize),
    /// So many matching calls.
    Calls(Key, Option<usize>, u64),
}

/// What a step does.
#[derive(Clone, Debug)]
pub enum Action {
    /// Calls answer these values.
    Set(HashMap<Key, Value>),
    /// NVML's calls return this code.
    Error(Code),
    /// libcuda's calls return this code.
    CudaError(Code),
    /// Every call on the GPU says that it is lost.
    Lost,
    /// Calls do not return while the step lasts.
    Hang,
    /// As `Hang`, and from then on every other call of every process waits too.
    HangLock,
    /// Calls take this long.
    Slow(Duration),
    /// Every call says that the driver is not loaded.
    DriverGone,
    /// Ends `DriverGone`.
    DriverBack,
    /// The MIG layout changes. `None` turns MIG off.
    Mig(Option<Vec<String>>),
    /// The clock is held down for these reasons.
    Throttle(u64),
    /// Bytes are written to a descriptor of the process, once.
    Write(i32, Vec<u8>),
    /// The process ends with this code, once.
    Exit(i32),
    /// The process aborts, once.
    Abort,
    /// The process is stopped, once.
    Stop,
    /// An event is delivered to its waiters.
    Event(Event),
    /// An Xid: an event, and a line of the kernel log.
    Xid(Xid),
    /// Lines of the kernel log.
    Kmsg(Vec<String>),
    /// The GPU's hardware is not as it was.
    Hardware(Hardware),
}

/// An event about a GPU.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// The bit of its type.
    #[serde(rename = "type")]
    pub kind: u64,
    /// What the type says more.
    #[serde(default)]
    pub data: u64,
    /// The GPU instance that it is about.
    pub gpu_instance: Option<u32>,
    /// The compute instance that it is about.
    pub compute_instance: Option<u32>,
}

/// A source of an Xid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// NVML's events.
    Nvml,
    /// The kernel log.
    Kmsg,
}

/// An Xid as its sources report it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Xid {
    /// Its number.
    pub code: u64,
    /// The process in the line; unknown when absent.
    pub pid: Option<u32>,
    /// See `pid`.
    pub name: Option<String>,
    /// The end of the line, if it is not the usual one.
    pub text: Option<String>,
    /// The GPU instance that it is about.
    pub gpu_instance: Option<u32>,
    /// The compute instance that it is about.
    pub compute_instance: Option<u32>,
    /// The sources that report the Xid.
    #[serde(default = "both")]
    pub sources: Vec<Source>,
}

fn both() -> Vec<Source> {
    vec![Source::Nvml, Source::Kmsg]
}

impl Xid {
    fn plain(code: u64) -> Xid {
        let (pid, gpu_instance, compute_instance) = (None, None, None);
        Xid { code, pid, name: None, text: None, gpu_instance, compute_instance, sources: both() }
    }

    /// The event of the Xid.
    pub fn event(&self) -> Option<Event> {
        let (gpu_instance, compute_instance) = (self.gpu_instance, self.compute_instance);
        let event = Event { kind: Event::XID, data: self.code, gpu_instance, compute_instance };
        self.sources.contains(&Source::Nvml).then_some(event)
    }
}

impl Event {
    const XID: u64 = sys::nvmlEventTypeXidCriticalError as u64;
}

/// One step.
#[derive(Clone, Debug)]
pub struct Step {
    /// What sets it off.
    pub when: When,
    /// The gate that ends it.
    pub until_gate: Option<usize>,
    /// How long it lasts.
    pub lasts: Option<Duration>,
    /// The GPU it is about; all when absent.
    pub gpu: Option<usize>,
    /// The call it is about; all when absent.
    pub function: Option<Key>,
    /// What it does.
    pub action: Action,
    /// How often an error is returned; as long as the step lasts when absent.
    pub times: Option<u64>,
    /// How often an event or a line of the kernel log comes.
    pub repeat: u64,
    /// How far apart; at once when zero.
    pub every: Duration,
    /// What happens once happens once in every process, not once in all of them.
    pub every_process: bool,
}

impl Step {
    /// Whether a call is meant. Calls that are not about a GPU are meant by steps that name
    /// neither a GPU nor a function, or that very function.
    pub fn covers(&self, gpu: Option<usize>, call: &Key) -> bool {
        let right_gpu = self.gpu.is_none() || self.gpu == gpu;
        right_gpu && self.function.as_ref().is_none_or(|f| f.covers(call))
    }
}
