//! The steps of a scenario as its file has them.

use std::collections::HashMap;
use std::time::Duration;

use serde::Deserialize;

use super::{Action, Event, Step, When, Xid};
use crate::cuda::result;
use crate::functions::{Function, Key};
use crate::hardware::{CopiedBit, HardwareEntry, Link, SlowSm, StuckBit, Wrong};
use crate::process::ProcessEntry;
use crate::units;
use crate::value::{Code, Value, code_of};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AfterCalls {
    function: String,
    gpu: Option<usize>,
    count: u64,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ErrorEntry {
    Name(String),
    Number(Code),
}

impl ErrorEntry {
    /// A name says whose code it is; a number is libcuda's if the step names a function of libcuda.
    fn read(self, function: Option<Key>) -> Result<Action, String> {
        let cuda = function.map(|key| key.function.is_cuda());
        let action = match self {
            ErrorEntry::Number(code) if cuda == Some(true) => Action::CudaError(code),
            ErrorEntry::Number(code) => Action::Error(code),
            ErrorEntry::Name(name) if name.starts_with("CUDA_") => {
                let code = result::code_of(&name);
                Action::CudaError(code.ok_or_else(|| format!("'{name}' is no return code of libcuda"))?)
            }
            ErrorEntry::Name(name) => {
                Action::Error(code_of(&name).ok_or_else(|| format!("'{name}' is no NVML return code"))?)
            }
        };
        if cuda.is_some_and(|cuda| cuda != matches!(action, Action::CudaError(_))) {
            return Err("that function returns other codes than this".into());
        }
        Ok(action)
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum MigEntry {
    Profiles(Vec<String>),
    Word(String),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum XidEntry {
    Code(u64),
    Whole(Xid),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Lines {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WriteEntry {
    fd: i32,
    bytes: String,
}

/// Memory errors in short; they become answers of the calls that report them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ecc {
    corrected: Option<u64>,
    uncorrected: Option<u64>,
    sram_corrected: Option<u64>,
    sram_uncorrected: Option<u64>,
    remapped_corrected: Option<u64>,
    remapped_uncorrected: Option<u64>,
    #[serde(default)]
    remap_pending: bool,
    #[serde(default)]
    remap_failure: bool,
}

/// A step as the file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepEntry {
    at: Option<String>,
    gate: Option<String>,
    after_calls: Option<AfterCalls>,
    #[serde(rename = "for")]
    lasts: Option<String>,
    until_gate: Option<String>,
    gpu: Option<usize>,
    function: Option<String>,
    set: Option<toml::Table>,
    error: Option<ErrorEntry>,
    #[serde(default)]
    lost: bool,
    #[serde(default)]
    hang: bool,
    #[serde(default)]
    hang_lock: bool,
    slow: Option<String>,
    #[serde(default)]
    driver_gone: bool,
    #[serde(default)]
    driver_back: bool,
    mig: Option<MigEntry>,
    throttle: Option<Vec<String>>,
    ecc: Option<Ecc>,
    recovery_action: Option<String>,
    write_fd: Option<WriteEntry>,
    exit: Option<i32>,
    #[serde(default)]
    abort: bool,
    #[serde(default)]
    stop: bool,
    #[serde(default)]
    every_process: bool,
    xid: Option<XidEntry>,
    event: Option<Event>,
    kmsg: Option<Lines>,
    repeat: Option<u64>,
    every: Option<String>,
    times: Option<u64>,
    sm: Option<SlowSm>,
    wrong: Option<Wrong>,
    memory_wrong: Option<StuckBit>,
    copy_wrong: Option<CopiedBit>,
    sm_clock: Option<f64>,
    #[serde(default)]
    reported: bool,
    memory_rate: Option<f64>,
    pcie: Option<Link>,
    pcie_rate: Option<f64>,
    job: Option<ProcessEntry>,
    free_memory: Option<String>,
}

impl StepEntry {
    /// The step, with its gates added to `gates`.
    pub fn read(self, gpus: usize, gates: &mut Vec<String>) -> Result<Step, String> {
        let mut gate = |name: String| {
            gates.iter().position(|g| *g == name).unwrap_or_else(|| {
                gates.push(name);
                gates.len() - 1
            })
        };
        let in_range = |gpu: Option<usize>| match gpu {
            Some(i) if i >= gpus => Err(format!("gpu {i}: there are {gpus} GPUs")),
            other => Ok(other),
        };
        let when = match (self.at, self.gate, self.after_calls) {
            (None, None, None) => When::At(Duration::ZERO),
            (Some(at), None, None) => When::At(units::duration(&at)?),
            (None, Some(name), None) => When::Gate(gate(name)),
            (None, None, Some(c)) => When::Calls(Key::parse(&c.function)?, in_range(c.gpu)?, c.count),
            _ => return Err("more than one of at, gate and after_calls".into()),
        };
        let function = self.function.as_deref().map(Key::parse).transpose()?;
        let mut actions = Vec::new();
        let mut flag = |on: bool, action: Action| actions.extend(on.then_some(action));
        flag(self.lost, Action::Lost);
        flag(self.hang, Action::Hang);
        flag(self.hang_lock, Action::HangLock);
        flag(self.driver_gone, Action::DriverGone);
        flag(self.driver_back, Action::DriverBack);
        flag(self.abort, Action::Abort);
        flag(self.stop, Action::Stop);
        actions.extend(self.exit.map(Action::Exit));
        actions.extend(self.event.map(Action::Event));
        actions.extend(self.xid.map(|xid| match xid {
            XidEntry::Code(code) => Action::Xid(Xid::plain(code)),
            XidEntry::Whole(xid) => Action::Xid(xid),
        }));
        actions.extend(self.kmsg.map(|lines| match lines {
            Lines::One(line) => Action::Kmsg(vec![line]),
            Lines::Many(lines) => Action::Kmsg(lines),
        }));
        if let Some(table) = self.set {
            actions.push(Action::Set(read_set(&table)?));
        }
        if let Some(error) = self.error {
            actions.push(error.read(function)?);
        }
        if let Some(slow) = self.slow {
            actions.push(Action::Slow(units::duration(&slow)?));
        }
        match self.mig {
            None => {}
            Some(MigEntry::Profiles(list)) => actions.push(Action::Mig(Some(list))),
            Some(MigEntry::Word(word)) if word == "off" => actions.push(Action::Mig(None)),
            Some(MigEntry::Word(word)) => return Err(format!("mig is a list or \"off\", not '{word}'")),
        }
        if let Some(names) = self.throttle {
            actions.push(Action::Throttle(units::reasons(&names)?));
        }
        if let Some(ecc) = self.ecc {
            actions.push(Action::Set(ecc.answers()));
        }
        if let Some(name) = self.recovery_action {
            let key = Key::new(Function::nvmlDeviceGetFieldValues, &[230]);
            actions.push(Action::Set(HashMap::from([(key, Value::list([units::recovery(&name)?]))])));
        }
        if let Some(write) = self.write_fd {
            actions.push(Action::Write(write.fd, foreign_bytes(&write.bytes)?));
        }
        let hardware = HardwareEntry {
            sm: self.sm,
            wrong: self.wrong,
            memory_wrong: self.memory_wrong,
            copy_wrong: self.copy_wrong,
            sm_clock: self.sm_clock,
            reported: self.reported,
            memory_rate: self.memory_rate,
            pcie: self.pcie,
            pcie_rate: self.pcie_rate,
            job: self.job,
            free_memory: self.free_memory,
        };
        actions.extend(hardware.read()?.into_iter().map(Action::Hardware));
        if actions.len() > 1 {
            return Err("more than one action; write a step for each".into());
        }
        let action = actions.pop().ok_or("no action")?;
        let gpu = in_range(self.gpu)?;
        if gpu.is_none() && matches!(action, Action::Xid(_) | Action::Event(_) | Action::Hardware(_)) {
            return Err("an xid, an event or a fault of the hardware needs its gpu".into());
        }
        if self.times.is_some() && !matches!(action, Action::Error(_) | Action::CudaError(_)) {
            return Err("times goes with error".into());
        }
        let repeats = matches!(action, Action::Xid(_) | Action::Event(_) | Action::Kmsg(_));
        if (self.repeat.is_some() || self.every.is_some()) && !repeats {
            return Err("repeat and every go with xid, event and kmsg".into());
        }
        if self.every.is_some() && self.repeat.is_none() {
            return Err("every needs repeat".into());
        }
        let own = matches!(action, Action::Write(..) | Action::Exit(_) | Action::Abort | Action::Stop);
        if self.every_process && !own {
            return Err("every_process goes with write_fd, exit, abort and stop".into());
        }
        Ok(Step {
            when,
            until_gate: self.until_gate.map(gate),
            lasts: self.lasts.as_deref().map(units::duration).transpose()?,
            gpu,
            function,
            action,
            times: self.times,
            repeat: self.repeat.unwrap_or(1),
            every: self.every.as_deref().map(units::duration).transpose()?.unwrap_or_default(),
            every_process: self.every_process,
        })
    }
}

/// Reads a table of calls and their answers.
pub fn read_set(table: &toml::Table) -> Result<HashMap<Key, Value>, String> {
    table.iter().map(|(name, value)| Ok((Key::parse(name)?, Value::from_toml(value)?))).collect()
}

/// What a vendor's library might write where it has no business: `garbage`, or bytes as hex digits.
fn foreign_bytes(text: &str) -> Result<Vec<u8>, String> {
    if text == "garbage" {
        return Ok((0..256u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect());
    }
    let bad = || format!("write_fd.bytes is garbage or pairs of hex digits, not '{text}'");
    let digits: Vec<u8> =
        text.chars().map(|c| c.to_digit(16).map(|d| d as u8).ok_or_else(bad)).collect::<Result<_, _>>()?;
    if !digits.len().is_multiple_of(2) {
        return Err(bad());
    }
    Ok(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

impl Ecc {
    fn answers(&self) -> HashMap<Key, Value> {
        use Function::*;
        let mut set = HashMap::new();
        let mut put = |function, args: &[u32], n: u64| {
            set.insert(Key::new(function, args), Value::Int(n as i64));
        };
        // Error type, location, and the fields of the volatile and the aggregate total.
        let counts = [
            (0, 2, self.corrected, Some([3, 5])),
            (1, 2, self.uncorrected, Some([4, 6])),
            (0, 7, self.sram_corrected, None),
            (1, 7, self.sram_uncorrected, None),
        ];
        for (error, location, count, fields) in counts {
            let Some(n) = count else { continue };
            for counter in 0..2 {
                put(nvmlDeviceGetMemoryErrorCounter, &[error, counter, location], n);
                if let Some(fields) = fields {
                    put(nvmlDeviceGetTotalEccErrors, &[error, counter], n);
                    put(nvmlDeviceGetFieldValues, &[fields[counter as usize]], n);
                }
            }
        }
        if self.sram_corrected.is_some() || self.sram_uncorrected.is_some() {
            let (c, u) = (self.sram_corrected.unwrap_or(0), self.sram_uncorrected.unwrap_or(0));
            let status = Value::list([0, u, c, 0, u, c, u, 0, 0, 0, 0, 0]);
            set.insert(Key::new(nvmlDeviceGetSramEccErrorStatus, &[]), status);
        }
        let rows = [
            self.remapped_corrected.unwrap_or(0),
            self.remapped_uncorrected.unwrap_or(0),
            u64::from(self.remap_pending),
            u64::from(self.remap_failure),
        ];
        if rows.iter().any(|n| *n != 0) {
            set.insert(Key::new(nvmlDeviceGetRemappedRows, &[]), Value::list(rows));
            for (field, n) in (142..).zip(rows) {
                set.insert(Key::new(nvmlDeviceGetFieldValues, &[field]), Value::Int(n as i64));
            }
        }
        set
    }
}
