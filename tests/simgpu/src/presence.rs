//! The processes that have a CUDA context on a GPU, as NVML lists them. They are in the shared state; one
//! that died without giving its context back leaves with its process, as the driver sees to it.

use std::fs;

use crate::device::Device;
use crate::hardware::Hardware;
use crate::process::{Process, ProcessKind};
use crate::sim::Sim;

/// When a process started, in the kernel's ticks: with its number, it names the process for good. Nothing
/// if it is gone or has ended.
pub(crate) fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in brackets, and may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X" | "x") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// The processes with a context on a GPU, and the memory that each holds.
pub(crate) fn processes(sim: &Sim, gpu: usize) -> Vec<Process> {
    let mut list: Vec<Process> = Vec::new();
    for context in sim.state.contexts() {
        if started(context.pid) != Some(context.started) {
            sim.state.release_context(context.slot);
            continue;
        }
        if context.gpu != gpu {
            continue;
        }
        let pid = context.pid + sim.scenario.pid_offset;
        let same = list.iter_mut().find(|p| p.pid == pid && p.instance == context.mig);
        match same {
            Some(process) => process.memory += context.bytes,
            None => list.push(Process {
                pid,
                memory: context.bytes,
                kind: ProcessKind::Compute,
                instance: context.mig,
                idle: false,
            }),
        }
    }
    list
}

impl Device {
    /// What steps do to the GPU's hardware now.
    pub(crate) fn hardware(&self) -> impl Iterator<Item = &'static Hardware> {
        self.sim.hardware(self.index)
    }

    /// Processes that steps put on the GPU.
    pub(crate) fn jobs(&self) -> Vec<Process> {
        let jobs = self.hardware().filter_map(|h| match h {
            Hardware::Job(process) => Some(process.clone()),
            _ => None,
        });
        jobs.collect()
    }

    /// Whether a CUDA context is on the GPU, so that its clock is up.
    pub(crate) fn worked_on(&self) -> bool {
        !processes(self.sim, self.index).is_empty() || !self.jobs().is_empty()
    }

    /// How busy kernels and jobs of steps kept the GPU between two moments of the scenario, 0 to 1.
    pub(crate) fn worked(&self, from: f64, to: f64) -> f64 {
        if self.jobs().iter().any(|job| !job.idle) {
            return 1.0;
        }
        self.sim.state.busy(self.index, from, to).min(1.0)
    }
}
