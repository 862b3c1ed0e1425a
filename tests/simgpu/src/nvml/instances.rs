//! MIG: modes, MIG devices, GPU instances and compute instances.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings as sys;

use crate::call::{self, numbers, nvml, pairs};
use crate::device::{Device, Kind, handle, read_handle};
use crate::functions::{Function, Key};
use crate::mig::{ComputeInstance, GpuInstance, Layout};
use crate::model::MigProfile;
use crate::sim;
use crate::value::{Answer, code};

numbers! { c_uint: nvmlDeviceGetMaxMigDeviceCount }
pairs! { c_uint: nvmlDeviceGetMigMode }

/// A GPU in MIG mode, and its layout.
fn cut(device: sys::nvmlDevice_t, call: Key) -> Answer<(Device, usize, &'static Layout)> {
    let device = Device::called(device, call)?.whole()?;
    let (generation, layout) = device.sim.layout(device.index)?;
    if layout.enabled { Ok((device, generation, layout)) } else { Err(code::ERROR_NOT_SUPPORTED) }
}

fn profile(device: &Device, with: impl Fn(&MigProfile) -> bool) -> Answer<&'static MigProfile> {
    let profiles = &device.gpu.model.mig_profiles;
    let missing = if profiles.is_empty() { code::ERROR_NOT_SUPPORTED } else { code::ERROR_INVALID_ARGUMENT };
    profiles.iter().find(|p| with(p)).ok_or(missing)
}

/// NVML_COMPUTE_INSTANCE_PROFILE of so many slices.
fn compute_profile(slices: u32) -> u32 {
    match slices {
        1..=4 => slices - 1,
        7 => 4,
        8 => 5,
        _ => 6,
    }
}

/// The GPU, generation and instance of a GPU instance's handle.
fn gpu_instance(
    instance: sys::nvmlGpuInstance_t,
    function: Function,
) -> Answer<(usize, usize, usize, &'static GpuInstance)> {
    let sim = sim::initialised()?;
    let (gpu, generation, index) = read_handle(Kind::GpuInstance, instance)?;
    sim.gpu(gpu)?;
    sim.pass(Some(gpu), Key::new(function, &[]))?;
    let (current, layout) = sim.layout(gpu)?;
    let found = layout.instances.get(index).filter(|_| current == generation);
    Ok((gpu, generation, index, found.ok_or(code::ERROR_INVALID_ARGUMENT)?))
}

/// A compute instance's handle counts it within all of its GPU, as MIG devices are counted.
fn compute_handle(
    gpu: usize,
    generation: usize,
    gi: u32,
    ci: &ComputeInstance,
) -> Answer<sys::nvmlComputeInstance_t> {
    let (_, layout) = sim::initialised()?.layout(gpu)?;
    let index = layout.devices().position(|(g, c)| g.id == gi && c.id == ci.id);
    Ok(handle(Kind::ComputeInstance, gpu, generation, index.ok_or(code::ERROR_NOT_FOUND)?))
}

nvml! {
    fn nvmlDeviceIsMigDeviceHandle(device: sys::nvmlDevice_t, out: *mut c_uint) {
        let device = Device::called(device, Key::new(Function::nvmlDeviceIsMigDeviceHandle, &[]))?;
        call::put(out, c_uint::from(device.mig.is_some()))
    }

    fn nvmlDeviceGetMigDeviceHandleByIndex(
        device: sys::nvmlDevice_t, index: c_uint, out: *mut sys::nvmlDevice_t,
    ) {
        let call = Key::new(Function::nvmlDeviceGetMigDeviceHandleByIndex, &[index]);
        let (device, generation, layout) = cut(device, call)?;
        let index = index as usize;
        layout.devices().nth(index).ok_or(code::ERROR_NOT_FOUND)?;
        call::put(out, handle(Kind::Mig, device.index, generation, index))
    }

    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
        mig: sys::nvmlDevice_t, out: *mut sys::nvmlDevice_t,
    ) {
        let call = Key::new(Function::nvmlDeviceGetDeviceHandleFromMigDeviceHandle, &[]);
        let device = Device::called(mig, call)?;
        device.instance()?;
        call::put(out, handle(Kind::Gpu, device.index, 0, 0))
    }

    fn nvmlDeviceGetGpuInstanceId(device: sys::nvmlDevice_t, out: *mut c_uint) {
        let device = Device::called(device, Key::new(Function::nvmlDeviceGetGpuInstanceId, &[]))?;
        call::put(out, device.instance()?.0.id)
    }

    fn nvmlDeviceGetComputeInstanceId(device: sys::nvmlDevice_t, out: *mut c_uint) {
        let device = Device::called(device, Key::new(Function::nvmlDeviceGetComputeInstanceId, &[]))?;
        call::put(out, device.instance()?.1.id)
    }

    fn nvmlDeviceGetAttributes_v2(device: sys::nvmlDevice_t, out: *mut sys::nvmlDeviceAttributes_t) {
        let device = Device::called(device, Key::new(Function::nvmlDeviceGetAttributes_v2, &[]))?;
        let (gi, ci) = device.instance().map_err(|_| code::ERROR_NOT_SUPPORTED)?;
        let p = &gi.profile;
        call::put(out, sys::nvmlDeviceAttributes_t {
            multiprocessorCount: p.sms * ci.slices / p.slices,
            sharedCopyEngineCount: p.copy_engines,
            sharedDecoderCount: p.decoders,
            sharedEncoderCount: 0,
            sharedJpegCount: p.jpegs,
            sharedOfaCount: p.ofas,
            gpuInstanceSliceCount: p.slices,
            computeInstanceSliceCount: ci.slices,
            memorySizeMB: p.memory_mib,
        })
    }

    fn nvmlDeviceGetGpuInstanceProfileInfo(
        device: sys::nvmlDevice_t, number: c_uint, out: *mut sys::nvmlGpuInstanceProfileInfo_t,
    ) {
        let call = Key::new(Function::nvmlDeviceGetGpuInstanceProfileInfo, &[number]);
        let device = Device::called(device, call)?.whole()?;
        let p = profile(&device, |p| p.profile == number).map_err(|_| code::ERROR_NOT_SUPPORTED)?;
        call::put(out, sys::nvmlGpuInstanceProfileInfo_t {
            id: p.id,
            isP2pSupported: 0,
            sliceCount: p.slices,
            instanceCount: p.count,
            multiprocessorCount: p.sms,
            copyEngineCount: p.copy_engines,
            decoderCount: p.decoders,
            encoderCount: 0,
            jpegCount: p.jpegs,
            ofaCount: p.ofas,
            memorySizeMB: p.memory_mib,
        })
    }

    fn nvmlDeviceGetGpuInstanceProfileInfoV(
        device: sys::nvmlDevice_t, number: c_uint, out: *mut sys::nvmlGpuInstanceProfileInfo_v2_t,
    ) {
        let call = Key::new(Function::nvmlDeviceGetGpuInstanceProfileInfoV, &[number]);
        let device = Device::called(device, call)?.whole()?;
        let p = profile(&device, |p| p.profile == number).map_err(|_| code::ERROR_NOT_SUPPORTED)?;
        let info = call::inout(out)?;
        call::expect_version::<sys::nvmlGpuInstanceProfileInfo_v2_t>(info.version, 2)?;
        *info = sys::nvmlGpuInstanceProfileInfo_v2_t {
            version: info.version,
            id: p.id,
            isP2pSupported: 0,
            sliceCount: p.slices,
            instanceCount: p.count,
            multiprocessorCount: p.sms,
            copyEngineCount: p.copy_engines,
            decoderCount: p.decoders,
            encoderCount: 0,
            jpegCount: p.jpegs,
            ofaCount: p.ofas,
            memorySizeMB: p.memory_mib,
            name: call::chars(&format!("MIG {}", p.name)),
        };
        Ok(())
    }

    fn nvmlDeviceGetGpuInstanceRemainingCapacity(
        device: sys::nvmlDevice_t, id: c_uint, out: *mut c_uint,
    ) {
        let call = Key::new(Function::nvmlDeviceGetGpuInstanceRemainingCapacity, &[id]);
        let (device, _, layout) = cut(device, call)?;
        call::put(out, layout.remaining(profile(&device, |p| p.id == id)?))
    }

    fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        device: sys::nvmlDevice_t, id: c_uint, out: *mut sys::nvmlGpuInstancePlacement_t,
        count: *mut c_uint,
    ) {
        let call = Key::new(Function::nvmlDeviceGetGpuInstancePossiblePlacements_v2, &[id]);
        let (device, _, _) = cut(device, call)?;
        let p = profile(&device, |p| p.id == id)?;
        let place = |start: &u32| sys::nvmlGpuInstancePlacement_t { start: *start, size: p.size };
        let list: Vec<_> = p.starts.iter().map(place).collect();
        if out.is_null() {
            return call::put(count, list.len() as c_uint);
        }
        call::put(count, list.len() as c_uint)?;
        call::put_list(count, out, &list)
    }

    fn nvmlDeviceGetGpuInstances(
        device: sys::nvmlDevice_t, id: c_uint, out: *mut sys::nvmlGpuInstance_t, count: *mut c_uint,
    ) {
        let (device, generation, layout) = cut(device, Key::new(Function::nvmlDeviceGetGpuInstances, &[id]))?;
        let p = profile(&device, |p| p.id == id)?;
        let all = layout.instances.iter().enumerate().filter(|(_, i)| i.profile.id == p.id);
        let list: Vec<_> = all.map(|(n, _)| handle(Kind::GpuInstance, device.index, generation, n)).collect();
        // The caller's array has room for as many instances as the profile allows.
        call::put(count, p.count)?;
        call::put_list(count, out, &list)
    }

    fn nvmlDeviceGetGpuInstanceById(
        device: sys::nvmlDevice_t, id: c_uint, out: *mut sys::nvmlGpuInstance_t,
    ) {
        let (device, generation, layout) = cut(device, Key::new(Function::nvmlDeviceGetGpuInstanceById, &[id]))?;
        let index = layout.instances.iter().position(|i| i.id == id).ok_or(code::ERROR_NOT_FOUND)?;
        call::put(out, handle(Kind::GpuInstance, device.index, generation, index))
    }

    fn nvmlGpuInstanceGetInfo(
        instance: sys::nvmlGpuInstance_t, out: *mut sys::nvmlGpuInstanceInfo_t,
    ) {
        let (gpu, _, _, gi) = gpu_instance(instance, Function::nvmlGpuInstanceGetInfo)?;
        call::put(out, sys::nvmlGpuInstanceInfo_t {
            device: handle(Kind::Gpu, gpu, 0, 0),
            id: gi.id,
            profileId: gi.profile.id,
            placement: sys::nvmlGpuInstancePlacement_t { start: gi.start, size: gi.profile.size },
        })
    }

    fn nvmlGpuInstanceGetComputeInstances(
        instance: sys::nvmlGpuInstance_t, id: c_uint, out: *mut sys::nvmlComputeInstance_t,
        count: *mut c_uint,
    ) {
        let (gpu, generation, _, gi) = gpu_instance(instance, Function::nvmlGpuInstanceGetComputeInstances)?;
        let of_profile = gi.compute.iter().filter(|c| compute_profile(c.slices) == id);
        let list = of_profile.map(|c| compute_handle(gpu, generation, gi.id, c)).collect::<Answer<Vec<_>>>()?;
        call::put(count, list.len() as c_uint)?;
        call::put_list(count, out, &list)
    }

    fn nvmlGpuInstanceGetComputeInstanceById(
        instance: sys::nvmlGpuInstance_t, id: c_uint, out: *mut sys::nvmlComputeInstance_t,
    ) {
        let (gpu, generation, _, gi) = gpu_instance(instance, Function::nvmlGpuInstanceGetComputeInstanceById)?;
        let ci = gi.compute.iter().find(|c| c.id == id).ok_or(code::ERROR_NOT_FOUND)?;
        call::put(out, compute_handle(gpu, generation, gi.id, ci)?)
    }

    fn nvmlComputeInstanceGetInfo_v2(
        instance: sys::nvmlComputeInstance_t, out: *mut sys::nvmlComputeInstanceInfo_t,
    ) {
        let sim = sim::initialised()?;
        let (gpu, generation, index) = read_handle(Kind::ComputeInstance, instance)?;
        sim.gpu(gpu)?;
        sim.pass(Some(gpu), Key::new(Function::nvmlComputeInstanceGetInfo_v2, &[]))?;
        let (current, layout) = sim.layout(gpu)?;
        let found = layout.devices().nth(index).filter(|_| current == generation);
        let (gi, ci) = found.ok_or(code::ERROR_INVALID_ARGUMENT)?;
        let of = layout.instances.iter().position(|i| i.id == gi.id).ok_or(code::ERROR_UNKNOWN)?;
        call::put(out, sys::nvmlComputeInstanceInfo_t {
            device: handle(Kind::Gpu, gpu, 0, 0),
            gpuInstance: handle(Kind::GpuInstance, gpu, generation, of),
            id: ci.id,
            profileId: compute_profile(ci.slices),
            placement: sys::nvmlComputeInstancePlacement_t { start: ci.start, size: ci.slices },
        })
    }
}
