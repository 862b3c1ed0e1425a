//! vGPUs: those on a host's GPU, and the licence of a virtual machine.

use std::ffi::{c_char, c_uchar, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings as sys;

use crate::call::{self, numbers, nvml};
use crate::device::Device;
use crate::functions::{Function, Key};
use crate::scenario::{Scenario, Vgpu};
use crate::sim;
use crate::value::{Answer, code};

numbers! { c_uint: nvmlDeviceGetHostVgpuMode }

/// The `n`-th vGPU of the node has this number and `n`.
const INSTANCES: u32 = 0x5647_0000;
/// A type has this number and that of the first vGPU that is of it.
const TYPES: u32 = 500;
/// Licences last until the first of January of this year.
const LICENSED_UNTIL: c_uint = 2030;

/// The vGPUs of the node, each with its GPU.
fn all(scenario: &Scenario) -> impl Iterator<Item = (usize, &Vgpu)> {
    scenario.gpus.iter().enumerate().flat_map(|(gpu, g)| g.vgpus.iter().map(move |vgpu| (gpu, vgpu)))
}

/// The vGPUs of a GPU that is shared so, each with its number.
fn of_device(device: &Device) -> Answer<Vec<(sys::nvmlVgpuInstance_t, &'static Vgpu)>> {
    let here = (INSTANCES..).zip(all(&device.sim.scenario)).filter(|(_, (gpu, _))| *gpu == device.index);
    let list: Vec<_> = here.map(|(number, (_, vgpu))| (number, vgpu)).collect();
    if list.is_empty() || device.mig.is_some() { Err(code::ERROR_NOT_SUPPORTED) } else { Ok(list) }
}

/// The vGPU of a number, once the call has run the gauntlet of its GPU.
fn instance(number: sys::nvmlVgpuInstance_t, function: Function) -> Answer<&'static Vgpu> {
    let sim = sim::initialised()?;
    let n = number.checked_sub(INSTANCES).ok_or(code::ERROR_INVALID_ARGUMENT)?;
    let (gpu, vgpu) = all(&sim.scenario).nth(n as usize).ok_or(code::ERROR_NOT_FOUND)?;
    sim.pass(Some(gpu), Key::new(function, &[]))?;
    Ok(vgpu)
}

/// A vGPU of the type of that number. Types are about no GPU.
fn of_type(number: sys::nvmlVgpuTypeId_t, function: Function) -> Answer<&'static Vgpu> {
    let sim = sim::initialised()?;
    sim.pass(None, Key::new(function, &[]))?;
    let n = number.checked_sub(TYPES).ok_or(code::ERROR_INVALID_ARGUMENT)?;
    all(&sim.scenario).nth(n as usize).map(|(_, vgpu)| vgpu).ok_or(code::ERROR_INVALID_ARGUMENT)
}

nvml! {
    fn nvmlDeviceGetActiveVgpus(
        device: sys::nvmlDevice_t, count: *mut c_uint, out: *mut sys::nvmlVgpuInstance_t,
    ) {
        let device = Device::called(device, Key::new(Function::nvmlDeviceGetActiveVgpus, &[]))?;
        let numbers: Vec<_> = of_device(&device)?.into_iter().map(|(number, _)| number).collect();
        call::put_list(count, out, &numbers)
    }

    fn nvmlDeviceGetVgpuUtilization(
        device: sys::nvmlDevice_t, since: c_ulonglong, value_type: *mut sys::nvmlValueType_t,
        count: *mut c_uint, out: *mut sys::nvmlVgpuInstanceUtilizationSample_t,
    ) {
        let device = Device::called(device, Key::new(Function::nvmlDeviceGetVgpuUtilization, &[]))?;
        let vgpus = of_device(&device)?;
        call::put(value_type, sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT)?;
        if out.is_null() {
            call::put(count, vgpus.len() as c_uint)?;
            return Err(code::ERROR_INSUFFICIENT_SIZE);
        }
        // The driver samples every second.
        let timeStamp = device.sim.stamp_us(device.sim.now().floor());
        if timeStamp <= since {
            return Err(code::ERROR_NOT_FOUND);
        }
        let value = |percent: u32| {
            let mut value = sys::nvmlValue_t { ullVal: 0 };
            value.uiVal = percent;
            value
        };
        let sample = |(vgpuInstance, vgpu): (u32, &Vgpu)| sys::nvmlVgpuInstanceUtilizationSample_t {
            vgpuInstance,
            timeStamp,
            smUtil: value(vgpu.sm),
            memUtil: value(vgpu.sm / 2),
            encUtil: value(0),
            decUtil: value(0),
        };
        call::put_list(count, out, &vgpus.into_iter().map(sample).collect::<Vec<_>>())
    }

    fn nvmlDeviceGetGridLicensableFeatures_v4(
        device: sys::nvmlDevice_t, out: *mut sys::nvmlGridLicensableFeatures_t,
    ) {
        let function = Function::nvmlDeviceGetGridLicensableFeatures_v4;
        let v = Device::called(device, Key::new(function, &[]))?.value(function, &[])?.numbers()?;
        let (supported, features) = v.split_first().ok_or(code::ERROR_UNKNOWN)?;
        let features: Vec<&[u64]> = features.chunks_exact(3).take(3).collect();
        let feature = |i: usize| {
            let mut feature: sys::nvmlGridLicensableFeature_t = std::mem::zeroed();
            if let Some([code, state, enabled]) = features.get(i) {
                let product = if *code == 2 { "NVIDIA RTX Virtual Workstation" } else { "NVIDIA Virtual Applications" };
                feature.featureCode = *code as u32;
                feature.featureState = *state as u32;
                feature.productName = call::chars(product);
                feature.featureEnabled = *enabled as u32;
                if *state != 0 {
                    (feature.licenseExpiry.year, feature.licenseExpiry.month) = (LICENSED_UNTIL, 1);
                    feature.licenseExpiry.day = 1;
                    feature.licenseExpiry.status = sys::NVML_GRID_LICENSE_EXPIRY_VALID as c_uchar;
                }
            }
            feature
        };
        call::put(out, sys::nvmlGridLicensableFeatures_t {
            isGridLicenseSupported: *supported as i32,
            licensableFeaturesCount: features.len() as c_uint,
            gridLicensableFeatures: std::array::from_fn(feature),
        })
    }

    fn nvmlVgpuInstanceGetUUID(number: sys::nvmlVgpuInstance_t, out: *mut c_char, length: c_uint) {
        call::put_text(out, length, &instance(number, Function::nvmlVgpuInstanceGetUUID)?.uuid)
    }

    fn nvmlVgpuInstanceGetVmID(
        number: sys::nvmlVgpuInstance_t, out: *mut c_char, length: c_uint,
        kind: *mut sys::nvmlVgpuVmIdType_t,
    ) {
        let vgpu = instance(number, Function::nvmlVgpuInstanceGetVmID)?;
        call::put(kind, sys::nvmlVgpuVmIdType_NVML_VGPU_VM_ID_UUID)?;
        call::put_text(out, length, &vgpu.vm)
    }

    fn nvmlVgpuInstanceGetFbUsage(number: sys::nvmlVgpuInstance_t, out: *mut c_ulonglong) {
        call::put(out, instance(number, Function::nvmlVgpuInstanceGetFbUsage)?.memory)
    }

    fn nvmlVgpuInstanceGetType(number: sys::nvmlVgpuInstance_t, out: *mut sys::nvmlVgpuTypeId_t) {
        let vgpu = instance(number, Function::nvmlVgpuInstanceGetType)?;
        let first = all(&sim::initialised()?.scenario).position(|(_, v)| v.kind.name == vgpu.kind.name);
        call::put(out, TYPES + first.ok_or(code::ERROR_NOT_FOUND)? as u32)
    }

    fn nvmlVgpuInstanceGetLicenseInfo_v2(
        number: sys::nvmlVgpuInstance_t, out: *mut sys::nvmlVgpuLicenseInfo_t,
    ) {
        let licensed = instance(number, Function::nvmlVgpuInstanceGetLicenseInfo_v2)?.licensed;
        let mut info: sys::nvmlVgpuLicenseInfo_t = std::mem::zeroed();
        info.currentState = sys::NVML_GRID_LICENSE_STATE_UNLICENSED;
        if licensed {
            (info.isLicensed, info.currentState) = (1, sys::NVML_GRID_LICENSE_STATE_LICENSED);
            (info.licenseExpiry.year, info.licenseExpiry.month) = (LICENSED_UNTIL, 1);
            info.licenseExpiry.day = 1;
            info.licenseExpiry.status = sys::NVML_GRID_LICENSE_EXPIRY_VALID as c_uchar;
        }
        call::put(out, info)
    }

    fn nvmlVgpuInstanceGetVmDriverVersion(
        number: sys::nvmlVgpuInstance_t, out: *mut c_char, length: c_uint,
    ) {
        // The virtual machine runs the driver of its host.
        instance(number, Function::nvmlVgpuInstanceGetVmDriverVersion)?;
        call::put_text(out, length, &sim::initialised()?.scenario.driver)
    }

    fn nvmlVgpuInstanceGetFrameRateLimit(number: sys::nvmlVgpuInstance_t, out: *mut c_uint) {
        instance(number, Function::nvmlVgpuInstanceGetFrameRateLimit)?;
        call::put(out, 60)
    }

    fn nvmlVgpuInstanceGetEncoderStats(
        number: sys::nvmlVgpuInstance_t, count: *mut c_uint, fps: *mut c_uint, latency: *mut c_uint,
    ) {
        instance(number, Function::nvmlVgpuInstanceGetEncoderStats)?;
        for out in [count, fps, latency] {
            call::put(out, 0)?;
        }
        Ok(())
    }

    fn nvmlVgpuTypeGetName(number: sys::nvmlVgpuTypeId_t, out: *mut c_char, size: *mut c_uint) {
        let vgpu = of_type(number, Function::nvmlVgpuTypeGetName)?;
        call::put_text(out, *call::inout(size)?, &vgpu.kind.name)
    }

    fn nvmlVgpuTypeGetClass(number: sys::nvmlVgpuTypeId_t, out: *mut c_char, size: *mut c_uint) {
        let vgpu = of_type(number, Function::nvmlVgpuTypeGetClass)?;
        call::put_text(out, *call::inout(size)?, vgpu.kind.class)
    }

    fn nvmlVgpuTypeGetFramebufferSize(number: sys::nvmlVgpuTypeId_t, out: *mut c_ulonglong) {
        call::put(out, of_type(number, Function::nvmlVgpuTypeGetFramebufferSize)?.kind.memory)
    }
}
