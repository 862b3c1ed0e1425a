//! The GPU models: what each answers to every call, as data files compiled into the library.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use serde::Deserialize;

use crate::functions::{Function, Key};
use crate::value::{Code, Value, code, code_of};

const FILES: &[(&str, &str)] = &[
    ("B200", include_str!("../models/b200.toml")),
    ("H200", include_str!("../models/h200.toml")),
    ("H100", include_str!("../models/h100.toml")),
    ("A100", include_str!("../models/a100.toml")),
    ("L4", include_str!("../models/l4.toml")),
    ("T4", include_str!("../models/t4.toml")),
];

/// The range in which a GPU under load moves.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Behaviour {
    /// Board power at rest and at full load.
    pub idle_watts: f64,
    /// See `idle_watts`.
    pub full_watts: f64,
    /// Clocks, in MHz.
    pub min_mhz: f64,
    /// See `min_mhz`.
    pub max_mhz: f64,
    /// Temperatures at rest and in steady full load.
    pub idle_celsius: f64,
    /// See `idle_celsius`.
    pub full_celsius: f64,
    /// What the PCIe link carries at most, in bytes a second.
    pub pcie_bytes: f64,
    /// What all NVLinks carry together at most, in bytes a second; 0 without NVLink.
    pub nvlink_bytes: f64,
}

/// A GPU instance profile.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MigProfile {
    /// `3g.71gb`.
    pub name: String,
    /// The id that the driver gives it.
    pub id: u32,
    /// Its NVML_GPU_INSTANCE_PROFILE number.
    pub profile: u32,
    /// Compute slices.
    pub slices: u32,
    /// At most so many on one GPU.
    pub count: u32,
    /// Multiprocessors.
    pub sms: u32,
    /// Copy engines.
    pub copy_engines: u32,
    /// Decoders.
    pub decoders: u32,
    /// JPEG engines.
    pub jpegs: u32,
    /// Optical flow engines.
    pub ofas: u32,
    /// Memory.
    pub memory_mib: u64,
    /// Memory slices, and at which it may begin.
    pub size: u32,
    /// See `size`.
    pub starts: Vec<u32>,
    /// The instance id at the first start; the others follow.
    pub first_id: u32,
}

/// The answers of CUDA about a GPU, and how fast its parts work. Rates are those of a GPU that is well.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compute {
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of L2 cache.
    pub l2_bytes: u64,
    /// Bytes of shared memory of a multiprocessor, and what a block can have of it.
    pub shared_bytes: u32,
    /// See `shared_bytes`.
    pub shared_bytes_of_block: u32,
    /// Threads of a multiprocessor.
    pub threads: u32,
    /// FP32 FMA of a multiprocessor in a cycle, and the part of them that a kernel gets.
    pub fp32_fma: f64,
    /// See `fp32_fma`.
    pub fp32_part: f64,
    /// Half-precision FMA of a multiprocessor's tensor cores in a cycle, and the part that a kernel gets.
    pub tensor_fma: f64,
    /// See `tensor_fma`.
    pub tensor_part: f64,
    /// The part of twice the memory clock times the bus that a kernel gets of buffers of 256 MiB, and of
    /// buffers of 1 GiB and more.
    pub memory_part: [f64; 2],
    /// Bytes that L2 gives all multiprocessors together in a cycle.
    pub l2_bytes_per_cycle: f64,
    /// The part of the PCIe link's raw rate that a copy gets.
    pub pcie_part: f64,
    /// The part of all NVLinks that a copy between two GPUs gets.
    pub nvlink_part: f64,
    /// Device memory that a context takes, in MiB.
    pub context_mib: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    pci_device_id: u32,
    pci_subsystem_id: u32,
    behaviour: Behaviour,
    compute: Compute,
    calls: toml::Table,
    #[serde(default)]
    per_gpu: toml::Table,
    fields: Fields,
    #[serde(default)]
    latency_us: HashMap<String, u64>,
    #[serde(default)]
    mig_profile: Vec<MigProfile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    #[serde(default)]
    u32: toml::Table,
    #[serde(default)]
    u64: toml::Table,
    #[serde(default)]
    i32: toml::Table,
    refused: HashMap<String, Vec<(u32, u32)>>,
}

/// The type in which a field value is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldType {
    /// Unsigned 32 bits.
    U32,
    /// Unsigned 64 bits.
    U64,
    /// Signed 32 bits.
    I32,
}

/// One GPU model.
#[derive(Debug)]
pub struct Model {
    /// PCI device and vendor.
    pub pci_device_id: u32,
    /// PCI subsystem.
    pub pci_subsystem_id: u32,
    /// How it moves under load.
    pub behaviour: Behaviour,
    /// The answers of CUDA, and how fast it works.
    pub compute: Compute,
    /// Its GPU instance profiles; empty without MIG.
    pub mig_profiles: Vec<MigProfile>,
    calls: HashMap<Key, Vec<Value>>,
    field_types: HashMap<u32, FieldType>,
    refused: Vec<(u32, u32, Code)>,
    latency_us: HashMap<Key, u64>,
}

impl Model {
    /// The model of that name.
    pub fn named(name: &str) -> Result<Arc<Model>, String> {
        static MODELS: [OnceLock<Result<Arc<Model>, String>>; FILES.len()] =
            [const { OnceLock::new() }; FILES.len()];
        let Some(i) = FILES.iter().position(|(n, _)| *n == name) else {
            let known: Vec<&str> = FILES.iter().map(|(n, _)| *n).collect();
            return Err(format!("no model '{name}', there are {}", known.join(", ")));
        };
        MODELS[i].get_or_init(|| Model::parse(FILES[i].1).map(Arc::new)).clone()
    }

    fn parse(text: &str) -> Result<Model, String> {
        let file: File = toml::from_str(text).map_err(|e| e.to_string())?;
        let mut calls = HashMap::new();
        let mut field_types = HashMap::new();
        for (name, value) in &file.calls {
            calls.insert(Key::parse(name)?, vec![Value::from_toml(value)?]);
        }
        let typed = [
            (&file.fields.u32, FieldType::U32),
            (&file.fields.u64, FieldType::U64),
            (&file.fields.i32, FieldType::I32),
        ];
        for (table, kind) in typed {
            for (id, value) in table {
                let id = id.parse().map_err(|_| format!("'{id}' is no field id"))?;
                let key = Key::new(Function::nvmlDeviceGetFieldValues, &[id]);
                field_types.insert(id, kind);
                calls.insert(key, vec![Value::from_toml(value)?]);
            }
        }
        for (name, values) in &file.per_gpu {
            let Value::List(list) = Value::from_toml(values)? else {
                return Err(format!("per_gpu.{name} is no list"));
            };
            calls.insert(Key::parse(name)?, list);
        }
        let mut refused = Vec::new();
        for (name, ranges) in &file.fields.refused {
            let code = code_of(name).ok_or_else(|| format!("'{name}' is no return code"))?;
            refused.extend(ranges.iter().map(|(from, to)| (*from, *to, code)));
        }
        let mut latency_us = HashMap::new();
        for (name, us) in &file.latency_us {
            latency_us.insert(Key::parse(name)?, *us);
        }
        Ok(Model {
            pci_device_id: file.pci_device_id,
            pci_subsystem_id: file.pci_subsystem_id,
            behaviour: file.behaviour,
            compute: file.compute,
            mig_profiles: file.mig_profile,
            calls,
            field_types,
            refused,
            latency_us,
        })
    }

    /// What GPU `gpu` of this model answers.
    pub fn answer(&self, gpu: usize, key: &Key) -> Option<&Value> {
        let values = self.calls.get(key)?;
        values.get(gpu % values.len().max(1))
    }

    /// The type of a field, or the code with which it is refused.
    pub fn field(&self, id: u32) -> Result<FieldType, Code> {
        if let Some(kind) = self.field_types.get(&id) {
            return Ok(*kind);
        }
        let refused = self.refused.iter().find(|(from, to, _)| (*from..=*to).contains(&id));
        Err(refused.map_or(code::ERROR_INVALID_ARGUMENT, |(_, _, code)| *code))
    }

    /// The cost of a call, if it is an expensive one.
    pub fn latency_us(&self, call: &Key) -> Option<u64> {
        self.latency_us.get(call).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_reads() {
        for (name, _) in FILES {
            if let Err(e) = Model::named(name) {
                panic!("{name}: {e}");
            }
        }
    }
}
