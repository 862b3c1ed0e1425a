//! A GPU or a MIG device as a call sees it: its handle, who it is, and what it answers.

use crate::functions::{Function, Function::*, Key};
use crate::hardware::Hardware;
use crate::mig::{ComputeInstance, GpuInstance};
use crate::process::Process;
use crate::scenario::Gpu;
use crate::sim::{self, Sim};
use crate::value::{Answer, Value, code};

/// A handle is a number that says what it is, never an address: a wrong one is refused, not followed.
const TAG: usize = 0x0047_5055 << 32;

/// The object of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Gpu = 1,
    Mig = 2,
    GpuInstance = 3,
    ComputeInstance = 4,
}

/// Makes a handle of the `index`-th thing of a kind on a GPU, in a generation of its MIG layout.
pub(crate) fn handle<T>(kind: Kind, gpu: usize, generation: usize, index: usize) -> *mut T {
    let number = TAG | (kind as usize) << 28 | gpu << 20 | generation << 12 | index << 4;
    std::ptr::without_provenance_mut(number)
}

/// Reads a handle: GPU, generation, index.
pub(crate) fn read_handle<T>(kind: Kind, handle: *mut T) -> Answer<(usize, usize, usize)> {
    let number = handle.addr();
    if number & !0xfff_fff0 != TAG | (kind as usize) << 28 {
        return Err(code::ERROR_INVALID_ARGUMENT);
    }
    Ok((number >> 20 & 0xff, number >> 12 & 0xff, number >> 4 & 0xff))
}

/// A GPU, or a MIG device on it.
pub(crate) struct Device {
    pub(crate) sim: &'static Sim,
    pub(crate) index: usize,
    pub(crate) gpu: &'static Gpu,
    /// The index of the MIG device.
    pub(crate) mig: Option<usize>,
}

/// Values that a GPU in MIG mode does not have as a whole.
const NOT_WITH_MIG: &[Function] = &[
    nvmlDeviceGetUtilizationRates,
    nvmlDeviceGetEncoderUtilization,
    nvmlDeviceGetDecoderUtilization,
    nvmlDeviceGetJpgUtilization,
    nvmlDeviceGetOfaUtilization,
    nvmlDeviceGetDynamicPstatesInfo,
    nvmlDeviceGetProcessUtilization,
];

impl Device {
    /// The device of a handle, once the call has run the gauntlet.
    pub(crate) fn called<T>(handle: *mut T, call: Key) -> Answer<Device> {
        let sim = sim::initialised()?;
        let whole = read_handle(Kind::Gpu, handle);
        let parts = whole.or_else(|_| read_handle(Kind::Mig, handle));
        let Ok((index, generation, mig)) = parts else {
            sim.wait_for_lock();
            return Err(code::ERROR_INVALID_ARGUMENT);
        };
        let gpu = sim.gpu(index)?;
        sim.pass(Some(index), call)?;
        if whole.is_ok() {
            return Ok(Device { sim, index, gpu, mig: None });
        }
        // A MIG device of an earlier layout is gone.
        if sim.layout(index)?.0 != generation {
            return Err(code::ERROR_INVALID_ARGUMENT);
        }
        Ok(Device { sim, index, gpu, mig: Some(mig) })
    }

    /// Only a whole GPU will do.
    pub(crate) fn whole(self) -> Answer<Device> {
        if self.mig.is_some() { Err(code::ERROR_INVALID_ARGUMENT) } else { Ok(self) }
    }

    /// The instances behind a MIG device.
    pub(crate) fn instance(&self) -> Answer<(&'static GpuInstance, &'static ComputeInstance)> {
        let index = self.mig.ok_or(code::ERROR_INVALID_ARGUMENT)?;
        self.sim.layout(self.index)?.1.devices().nth(index).ok_or(code::ERROR_INVALID_ARGUMENT)
    }

    /// What the device answers.
    pub(crate) fn value(&self, function: Function, args: &[u32]) -> Answer<Value> {
        let key = Key::new(function, args);
        match self.find(&key)? {
            Value::Error(code) => Err(code),
            value => Ok(value),
        }
    }

    fn find(&self, key: &Key) -> Answer<Value> {
        let same = canonical(key);
        if self.mig.is_some() {
            return self.mig_value(&same);
        }
        if let Some(value) = self.set(key).or_else(|| self.set(&same)) {
            return Ok(value);
        }
        if self.sim.layout(self.index)?.1.enabled && NOT_WITH_MIG.contains(&key.function) {
            return Err(code::ERROR_NOT_SUPPORTED);
        }
        self.identity(&same)
            .or_else(|| self.live(&same))
            .or_else(|| self.recorded(&same))
            .ok_or(code::ERROR_NOT_SUPPORTED)
    }

    /// The answer that the scenario sets; the last step that lasts wins.
    fn set(&self, key: &Key) -> Option<Value> {
        let found = self.sim.set(Some(self.index), key);
        found.or_else(|| key.shortening().find_map(|k| self.gpu.set.get(&k))).cloned()
    }

    /// The model's answer.
    pub(crate) fn recorded(&self, key: &Key) -> Option<Value> {
        key.shortening().find_map(|k| self.gpu.model.answer(self.index, &k)).cloned()
    }

    /// Who the GPU is follows from its index, on from the recorded node: PCI addresses 00:06.0 and
    /// up, UUIDs and serial numbers made up.
    fn identity(&self, key: &Key) -> Option<Value> {
        const MODULES: [i64; 8] = [2, 4, 1, 3, 6, 8, 5, 7];
        let i = self.index as i64;
        Some(match key.function {
            nvmlDeviceGetIndex | nvmlDeviceGetMinorNumber => Value::Int(i),
            nvmlDeviceGetUUID => Value::Text(gpu_uuid(self.index)),
            nvmlDeviceGetSerial => Value::Text(serial(self.index)),
            nvmlDeviceGetModuleId => Value::Int(MODULES[self.index % 8] + i / 8 * 8),
            nvmlDeviceGetBoardId => Value::Int(i64::from(pci_number(self.index))),
            nvmlDeviceGetGspFirmwareVersion => Value::Text(self.sim.scenario.driver.clone()),
            nvmlDeviceGetMigMode => {
                let capable = !self.gpu.model.mig_profiles.is_empty();
                let on = i64::from(self.sim.layout(self.index).is_ok_and(|(_, l)| l.enabled));
                if !capable {
                    return Some(Value::Error(code::ERROR_NOT_SUPPORTED));
                }
                Value::List(vec![Value::Int(on), Value::Int(on)])
            }
            nvmlDeviceGetMaxMigDeviceCount => {
                let on = self.sim.layout(self.index).is_ok_and(|(_, l)| l.enabled);
                Value::Int(if on { 7 } else { 0 })
            }
            _ => return None,
        })
    }

    fn mig_value(&self, key: &Key) -> Answer<Value> {
        let (gi, ci) = self.instance()?;
        let index = self.mig.unwrap_or_default();
        Ok(match key.function {
            nvmlDeviceGetIndex => Value::Int(index as i64),
            nvmlDeviceGetGpuInstanceId => Value::Int(i64::from(gi.id)),
            nvmlDeviceGetComputeInstanceId => Value::Int(i64::from(ci.id)),
            nvmlDeviceGetUUID => {
                let (generation, _) = self.sim.layout(self.index)?;
                Value::Text(mig_uuid(self.index, generation, index))
            }
            nvmlDeviceGetName => {
                let name = self.recorded(key).ok_or(code::ERROR_UNKNOWN)?;
                let cut =
                    if ci.slices == gi.profile.slices { String::new() } else { format!("{}c.", ci.slices) };
                Value::Text(format!("{} MIG {cut}{}", name.text()?, gi.profile.name))
            }
            nvmlDeviceGetMemoryInfo | nvmlDeviceGetMemoryInfo_v2 => self.memory(key.function)?,
            nvmlDeviceGetBrand
            | nvmlDeviceGetArchitecture
            | nvmlDeviceGetCudaComputeCapability
            | nvmlDeviceGetBAR1MemoryInfo => self.recorded(key).ok_or(code::ERROR_NOT_SUPPORTED)?,
            _ => return Err(code::ERROR_NOT_SUPPORTED),
        })
    }

    /// Memory of the device: what its processes hold, and what the driver keeps back.
    pub(crate) fn memory(&self, function: Function) -> Answer<Value> {
        let (total, reserved) = match self.mig {
            Some(_) => (self.instance()?.0.profile.memory_mib << 20, 16 << 20),
            None => {
                let key = Key::new(nvmlDeviceGetMemoryInfo_v2, &[]);
                let v2 = self.recorded(&key).ok_or(code::ERROR_NOT_SUPPORTED)?;
                (v2.u64(0)?, v2.u64(1)?)
            }
        };
        let taken = self.hardware().filter_map(|h| match h {
            Hardware::FreeMemory(free) => Some((total - reserved).saturating_sub(*free)),
            _ => None,
        });
        let taken = taken.max().unwrap_or(0);
        // The host sets all memory of a vGPU aside, whatever the virtual machine uses of it.
        let vgpus: u64 = self.gpu.vgpus.iter().map(|v| v.kind.memory).sum();
        let of = |list: Vec<Process>| list.iter().map(|p| p.memory).sum::<u64>();
        let held = (vgpus + of(self.settled()?)).max(taken) + of(self.contexts());
        let used = held.min(total - reserved);
        let free = total - reserved - used;
        Ok(match function {
            nvmlDeviceGetMemoryInfo => Value::list([total, free, used + reserved]),
            _ => Value::list([total, reserved, free, used]),
        })
    }
}

/// The function that answers for another of the same meaning.
fn canonical(key: &Key) -> Key {
    let function = match key.function {
        nvmlDeviceGetCurrentClocksThrottleReasons => nvmlDeviceGetCurrentClocksEventReasons,
        nvmlDeviceGetSupportedClocksThrottleReasons => nvmlDeviceGetSupportedClocksEventReasons,
        nvmlDeviceGetTemperatureV => nvmlDeviceGetTemperature,
        nvmlDeviceGetRetiredPages_v2 => nvmlDeviceGetRetiredPages,
        nvmlDeviceGetCpuAffinityWithinScope => nvmlDeviceGetCpuAffinity,
        nvmlDeviceGetPowerState => nvmlDeviceGetPerformanceState,
        same => same,
    };
    Key::new(function, key.args())
}

/// The number that a GPU's PCI address is made of.
fn pci_number(index: usize) -> u32 {
    6 + index as u32
}

/// Bus and device of a GPU's PCI address.
pub(crate) fn pci_bus_device(index: usize) -> (u32, u32) {
    (pci_number(index) / 32, pci_number(index) % 32)
}

/// The UUID of a GPU.
pub(crate) fn gpu_uuid(index: usize) -> String {
    format!("GPU-00000000-0000-4000-8000-{:012}", index + 1)
}

/// The UUID of a MIG device: another one after every change of the layout.
pub(crate) fn mig_uuid(gpu: usize, generation: usize, index: usize) -> String {
    format!("MIG-00000000-0000-5000-8{generation:03x}-{:06}{:06}", gpu + 1, index + 1)
}

/// The serial number of a GPU.
pub(crate) fn serial(index: usize) -> String {
    format!("{}", 1_650_000_000_000_u64 + index as u64)
}
