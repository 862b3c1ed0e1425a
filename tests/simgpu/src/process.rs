//! Processes that a scenario puts on a GPU.

use serde::Deserialize;

use crate::units;

/// A process as the file has it.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessEntry {
    pid: u32,
    memory: String,
    #[serde(rename = "type", default)]
    kind: ProcessKind,
    instance: Option<usize>,
    #[serde(default)]
    idle: bool,
}

impl ProcessEntry {
    /// The process.
    pub fn read(&self) -> Result<Process, String> {
        let memory = units::bytes(&self.memory)?;
        Ok(Process { pid: self.pid, memory, kind: self.kind, instance: self.instance, idle: self.idle })
    }
}

/// What a process uses the GPU for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessKind {
    /// CUDA.
    #[default]
    Compute,
    /// OpenGL, Vulkan.
    Graphics,
    /// CUDA through the MPS server.
    Mps,
}

/// A process on a GPU.
#[derive(Clone, Debug)]
pub struct Process {
    /// Its process id.
    pub pid: u32,
    /// What it holds.
    pub memory: u64,
    /// What it does.
    pub kind: ProcessKind,
    /// The index of its MIG device.
    pub instance: Option<usize>,
    /// Whether it only holds its memory.
    pub idle: bool,
}
