//! The identity of a GPU: names, versions, places and modes.

use std::ffi::{c_char, c_int, c_uint, c_ulong};

use nvml_wrapper_sys::bindings as sys;

use crate::call::{self, numbers, nvml, pairs, texts};
use crate::device::{self, Device};
use crate::functions::{Function, Key};
use crate::value::{Answer, code};

texts! {
    nvmlDeviceGetName nvmlDeviceGetSerial nvmlDeviceGetUUID nvmlDeviceGetBoardPartNumber
    nvmlDeviceGetVbiosVersion nvmlDeviceGetInforomImageVersion
}

numbers! { c_uint:
    nvmlDeviceGetBrand nvmlDeviceGetIndex nvmlDeviceGetMinorNumber nvmlDeviceGetModuleId
    nvmlDeviceGetBoardId nvmlDeviceGetMultiGpuBoard nvmlDeviceGetInforomConfigurationChecksum
    nvmlDeviceGetArchitecture nvmlDeviceGetNumGpuCores nvmlDeviceGetMemoryBusWidth
    nvmlDeviceGetBusType nvmlDeviceGetIrqNum nvmlDeviceGetVirtualizationMode
    nvmlDeviceGetNumaNodeId nvmlDeviceGetPersistenceMode nvmlDeviceGetComputeMode
    nvmlDeviceGetDisplayMode nvmlDeviceGetDisplayActive nvmlDeviceGetPowerManagementMode
    nvmlDeviceGetDefaultEccMode nvmlDeviceGetPowerSource nvmlDeviceGetNumFans
    nvmlDeviceGetAdaptiveClockInfoStatus nvmlDeviceGetAccountingMode
    nvmlDeviceGetAccountingBufferSize
}

pairs! { c_uint: nvmlDeviceGetGspFirmwareMode nvmlDeviceGetEccMode }
pairs! { c_int: nvmlDeviceGetCudaComputeCapability }

/// Writes a bit set: `size` words of it.
unsafe fn put_bits(device: &Device, function: Function, size: c_uint, out: *mut c_ulong) -> Answer<()> {
    let words = device.value(function, &[])?.numbers()?;
    if out.is_null() || size == 0 {
        return Err(code::ERROR_INVALID_ARGUMENT);
    }
    for i in 0..size as usize {
        // SAFETY: the caller has room for `size` words.
        unsafe { out.add(i).write(words.get(i).copied().unwrap_or(0) as c_ulong) };
    }
    Ok(())
}

nvml! {
    fn nvmlDeviceGetInforomVersion(
        device: sys::nvmlDevice_t, object: c_uint, out: *mut c_char, length: c_uint,
    ) {
        let device = Device::called(device, Key::new(Function::nvmlDeviceGetInforomVersion, &[object]))?;
        let value = device.value(Function::nvmlDeviceGetInforomVersion, &[object])?;
        call::put_text(out, length, value.text()?)
    }

    fn nvmlDeviceGetPlatformInfo(device: sys::nvmlDevice_t, out: *mut sys::nvmlPlatformInfo_t) {
        let function = Function::nvmlDeviceGetPlatformInfo;
        let info = call::inout(out)?;
        // Both versions have one layout; drivers before 570 know the first alone.
        let version = info.version >> 24;
        call::expect_version::<sys::nvmlPlatformInfo_t>(info.version, version)?;
        let device = Device::called(device, Key::new(function, &[version]))?;
        let v = device.value(function, &[version])?;
        for (byte, character) in info.chassisSerialNumber.iter_mut().zip(v.text_at(0)?.bytes()) {
            *byte = character;
        }
        let byte = |at| v.u32(at).map(|number| number as u8);
        (info.slotNumber, info.trayIndex) = (byte(1)?, byte(2)?);
        (info.hostId, info.moduleId) = (byte(3)?, byte(4)?);
        Ok(())
    }

    fn nvmlDeviceGetGspFirmwareVersion(device: sys::nvmlDevice_t, out: *mut c_char) {
        let device = Device::called(device, Key::new(Function::nvmlDeviceGetGspFirmwareVersion, &[]))?;
        let value = device.value(Function::nvmlDeviceGetGspFirmwareVersion, &[])?;
        call::put_text(out, sys::NVML_GSP_FIRMWARE_VERSION_BUF_SIZE, value.text()?)
    }

    fn nvmlDeviceGetPciInfo_v3(device: sys::nvmlDevice_t, out: *mut sys::nvmlPciInfo_t) {
        let device = Device::called(device, Key::new(Function::nvmlDeviceGetPciInfo_v3, &[]))?.whole()?;
        let (bus, dev) = device::pci_bus_device(device.index);
        call::put(out, sys::nvmlPciInfo_t {
            busIdLegacy: call::chars(&format!("0000:{bus:02X}:{dev:02X}.0")),
            domain: 0,
            bus,
            device: dev,
            pciDeviceId: device.gpu.model.pci_device_id,
            pciSubSystemId: device.gpu.model.pci_subsystem_id,
            busId: call::chars(&format!("00000000:{bus:02X}:{dev:02X}.0")),
        })
    }

    fn nvmlDeviceGetAddressingMode(
        device: sys::nvmlDevice_t, out: *mut sys::nvmlDeviceAddressingMode_t,
    ) {
        let device = Device::called(device, Key::new(Function::nvmlDeviceGetAddressingMode, &[]))?;
        let info = call::inout(out)?;
        call::expect_version::<sys::nvmlDeviceAddressingMode_t>(info.version, 1)?;
        info.value = device.value(Function::nvmlDeviceGetAddressingMode, &[])?.u32(0)?;
        Ok(())
    }

    fn nvmlDeviceGetC2cModeInfoV(device: sys::nvmlDevice_t, out: *mut sys::nvmlC2cModeInfo_v1_t) {
        let function = Function::nvmlDeviceGetC2cModeInfoV;
        let v = Device::called(device, Key::new(function, &[]))?.value(function, &[])?;
        call::put(out, sys::nvmlC2cModeInfo_v1_t { isC2cEnabled: v.u32(0)? })
    }

    fn nvmlDeviceGetConfComputeMemSizeInfo(
        device: sys::nvmlDevice_t, out: *mut sys::nvmlConfComputeMemSizeInfo_t,
    ) {
        let function = Function::nvmlDeviceGetConfComputeMemSizeInfo;
        let v = Device::called(device, Key::new(function, &[]))?.value(function, &[])?;
        call::put(out, sys::nvmlConfComputeMemSizeInfo_t {
            protectedMemSizeKib: v.u64(0)?, unprotectedMemSizeKib: v.u64(1)?,
        })
    }

    fn nvmlDeviceGetConfComputeProtectedMemoryUsage(
        device: sys::nvmlDevice_t, out: *mut sys::nvmlMemory_t,
    ) {
        let function = Function::nvmlDeviceGetConfComputeProtectedMemoryUsage;
        let v = Device::called(device, Key::new(function, &[]))?.value(function, &[])?;
        call::put(out, sys::nvmlMemory_t { total: v.u64(0)?, free: v.u64(1)?, used: v.u64(2)? })
    }

    fn nvmlDeviceGetCpuAffinity(device: sys::nvmlDevice_t, size: c_uint, out: *mut c_ulong) {
        let device = Device::called(device, Key::new(Function::nvmlDeviceGetCpuAffinity, &[]))?;
        put_bits(&device, Function::nvmlDeviceGetCpuAffinity, size, out)
    }

    fn nvmlDeviceGetCpuAffinityWithinScope(
        device: sys::nvmlDevice_t, size: c_uint, out: *mut c_ulong, _scope: c_uint,
    ) {
        let call = Function::nvmlDeviceGetCpuAffinityWithinScope;
        put_bits(&Device::called(device, Key::new(call, &[]))?, call, size, out)
    }

    fn nvmlDeviceGetMemoryAffinity(
        device: sys::nvmlDevice_t, size: c_uint, out: *mut c_ulong, _scope: c_uint,
    ) {
        let call = Function::nvmlDeviceGetMemoryAffinity;
        put_bits(&Device::called(device, Key::new(call, &[]))?, call, size, out)
    }

    fn nvmlDeviceGetTopologyCommonAncestor(
        first: sys::nvmlDevice_t, second: sys::nvmlDevice_t, out: *mut c_uint,
    ) {
        let call = Function::nvmlDeviceGetTopologyCommonAncestor;
        let first = Device::called(first, Key::new(call, &[]))?;
        let second = Device::called(second, Key::new(call, &[]))?;
        let same = first.index == second.index;
        call::put(out, if same { 0 } else { first.value(call, &[])?.u32(0)? })
    }

    fn nvmlDeviceGetP2PStatus(
        first: sys::nvmlDevice_t, second: sys::nvmlDevice_t, kind: c_uint, out: *mut c_uint,
    ) {
        let call = Function::nvmlDeviceGetP2PStatus;
        let first = Device::called(first, Key::new(call, &[kind]))?;
        Device::called(second, Key::new(call, &[kind]))?;
        call::put(out, first.value(call, &[kind])?.u32(0)?)
    }
}
