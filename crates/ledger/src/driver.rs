//! The driver as a whole: its answer, its loads, its release, its stuck calls, and the samplers that ask it.

use std::time::Duration;

use super::builder::Builder;
use super::inbox::{Pause, Stall};
use super::loads::Loads;
use model::catalog::{self as m, Call, DriverError, Gpu, Node};
use model::clock::Mono;
use model::driver_module::ModuleState;
use model::fact::{Fact, FactKind, KernelFact, KernelLine};
use model::snapshot::DriverState;

#[derive(Debug, Default)]
pub(crate) struct DriverWatch {
    /// What was heard last: never stuck or paused.
    answer: DriverState,
    pub stuck: bool,
    /// The release of the driver, while it lasts.
    paused: Option<Pause>,
    loads: Loads,
    /// Since when no sampler has said that the driver answers.
    unanswered: Option<Mono>,
    pub stalls: Vec<Stall>,
    /// Sampler processes alive.
    pub samplers: usize,
}

impl DriverWatch {
    pub fn answers(&mut self) {
        (self.answer, self.unanswered) = (DriverState::Up, None);
    }

    pub fn no_sampler(&mut self, text: &str) {
        self.answer = DriverState::Away { text: format!("no sampler can be started: {text}") };
    }

    pub fn resumed(&mut self) {
        (self.paused, self.answer) = (None, DriverState::Waiting);
    }

    pub fn sampler_ended(&mut self, at: Mono) {
        self.unanswered.get_or_insert(at);
    }

    /// Gives whether the kernel module may be gone: where the module is seen to stay, only its library is missing.
    pub fn away(&mut self, error: DriverError, text: String) -> bool {
        self.unanswered = None;
        self.answer = match error {
            DriverError::LibRmVersionMismatch => DriverState::Mismatch { text },
            _ => DriverState::Away { text },
        };
        error == DriverError::DriverNotLoaded && !self.loads.module_seen()
    }

    /// Gives whether the release begins.
    pub fn released(&mut self, pause: Pause) -> bool {
        self.unanswered = None;
        self.paused.replace(pause).is_none()
    }

    /// Gives whether a load is to be counted.
    pub fn module(&mut self, state: &ModuleState, at: Mono, unix_seconds: f64) -> bool {
        self.loads.folder(state, at, unix_seconds)
    }

    /// Gives whether a line of the kernel log is a load that is to be counted.
    pub fn logged(&mut self, fact: &Fact) -> bool {
        let FactKind::Kernel(KernelFact { old, line, .. }) = &fact.kind else { return false };
        let loaded = matches!(line, KernelLine::DriverLoaded { .. });
        loaded && self.loads.line(*old, fact.taken, fact.unix_seconds)
    }

    pub fn has_sampler(&self) -> bool {
        self.samplers > 0
    }

    /// Returns the state of the driver. `patience`: how long the next sampler has for its first answer.
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

    /// The driver call that is stuck on a GPU, if one is.
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
