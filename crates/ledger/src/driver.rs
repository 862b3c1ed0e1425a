//! State of the driver as a whole: its answers, loads, release and stuck calls, and the samplers.

use std::time::Duration;

use super::builder::Builder;
use super::inbox::{Pause, Stall};
use super::loads::Loads;
use model::catalog::{self as m, Call, DriverError, Gpu, Node};
use model::clock::Mono;
use model::driver_module::ModuleState;
use model::fact::{Fact, FactKind, KernelFact, KernelLine};
use model::snapshot::DriverState;

#[derive(Default)]
pub(crate) struct DriverWatch {
    /// Last state reported, never stuck or paused.
    answer: DriverState,
    pub stuck: bool,
    /// Current release of the driver.
    paused: Option<Pause>,
    loads: Loads,
    /// Time since which no sampler has reported that the driver answers.
    unanswered: Option<Mono>,
    pub stalls: Vec<Stall>,
    /// Number of live sampler processes.
    pub samplers: usize,
}

impl DriverWatch {
    pub fn answers(&mut self) {
        (self.answer, self.unanswered) = (DriverState::Up, None);
    }

    pub fn no_sampler(&mut self, text: &str) {
        self.answer = DriverState::Away { text: format!("failed to start a sampler: {text}") };
    }

    pub fn resumed(&mut self) {
        (self.paused, self.answer) = (None, DriverState::Waiting);
    }

    pub fn sampler_ended(&mut self, at: Mono) {
        self.unanswered.get_or_insert(at);
    }

    /// Returns true if the kernel module may be gone. If the module is still present, only the library is missing.
    pub fn away(&mut self, error: DriverError, text: String) -> bool {
        self.unanswered = None;
        self.answer = match error {
            DriverError::LibRmVersionMismatch => DriverState::Mismatch { text },
            _ => DriverState::Away { text },
        };
        error == DriverError::DriverNotLoaded && !self.loads.module_seen()
    }

    /// Returns true if the release begins.
    pub fn released(&mut self, pause: Pause) -> bool {
        self.unanswered = None;
        self.paused.replace(pause).is_none()
    }

    /// Returns true if the module was loaded.
    pub fn module(&mut self, state: &ModuleState, at: Mono, unix_seconds: f64) -> bool {
        self.loads.folder(state, at, unix_seconds)
    }

    /// Returns true if a line of the kernel log reports a load that is not counted yet.
    pub fn logged(&mut self, fact: &Fact) -> bool {
        let FactKind::Kernel(KernelFact { old, line, .. }) = &fact.kind else { return false };
        let loaded = matches!(line, KernelLine::DriverLoaded { .. });
        loaded && self.loads.line(*old, fact.taken, fact.unix_seconds)
    }

    pub fn has_sampler(&self) -> bool {
        self.samplers > 0
    }

    /// Returns the state of the driver. `patience`: time that the next sampler has for its first answer.
    pub fn state(&self, now: Mono, patience: Duration) -> DriverState {
        if let Some(pause) = &self.paused {
            return DriverState::Paused {
                since_unix_seconds: pause.unix_seconds,
                age: now.since(pause.since),
                holders: pause.holders.clone(),
            };
        }
        match &self.answer {
            _ if self.stuck => DriverState::Stuck,
            DriverState::Up if self.unanswered.is_some_and(|since| now.since(since) > patience) => {
                DriverState::Away { text: "no sampler answers".into() }
            }
            answer => answer.clone(),
        }
    }

    /// Returns the driver call that is stuck on a GPU.
    pub fn stall_of(&self, gpu: &Gpu) -> Option<&Stall> {
        self.stalls.iter().filter(|stall| stall.overdue).find(|stall| {
            let about = stall.gpu.as_ref();
            about.is_some_and(|g| g == gpu || g.gpu == gpu.gpu && g.uuid.is_empty())
        })
    }

    pub fn node_call_stuck(&self) -> bool {
        self.stalls.iter().any(|stall| stall.overdue && stall.gpu.is_none())
    }

    pub fn publish(&self, b: &mut Builder<'_>, now: Mono, state: &DriverState) {
        let node = Node {};
        let paused = matches!(state, DriverState::Paused { .. });
        if *state != DriverState::Waiting && !paused {
            b.flag(&m::gpu_driver_up, &node, (), *state == DriverState::Up);
        }
        b.flag(&m::gpu_driver_paused, &node, (), paused);
        if matches!(state, DriverState::Up | DriverState::Away { .. } | DriverState::Mismatch { .. }) {
            let mismatch = matches!(state, DriverState::Mismatch { .. });
            b.flag(&m::gpu_driver_library_mismatch, &node, (), mismatch);
        }
        b.add_known(&m::gpu_driver_load_timestamp_seconds, &node, (), self.loads.unix_seconds);
        b.flag(&m::gpu_driver_stuck, &node, (), *state == DriverState::Stuck);
        for stall in &self.stalls {
            let (call, seconds) = (Call(stall.call.as_str().into()), now.since(stall.since).as_secs_f64());
            match &stall.gpu {
                Some(gpu) => b.add(&m::gpu_exporter_driver_call_stuck_seconds, gpu, (call,), seconds),
                None => b.add(&m::gpu_exporter_node_call_stuck_seconds, &node, (call,), seconds),
            }
        }
        b.add(&m::gpu_exporter_samplers, &node, (), self.samplers as f64);
    }
}
