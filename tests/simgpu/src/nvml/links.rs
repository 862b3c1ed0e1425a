//! NVLink and the fabric.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings as sys;

use crate::call::{self, numbers, nvml};
use crate::device::Device;
use crate::functions::{Function, Key};
use crate::value::{Answer, Value};

numbers! { c_uint, kind:
    nvmlDeviceGetNvLinkState nvmlDeviceGetNvLinkVersion nvmlDeviceGetNvLinkRemoteDeviceType
}

fn fabric(device: sys::nvmlDevice_t, function: Function) -> Answer<Value> {
    let device = Device::called(device, Key::new(function, &[]))?;
    device.value(function, &[]).or_else(|_| device.value(Function::nvmlDeviceGetGpuFabricInfoV, &[]))
}

nvml! {
    fn nvmlDeviceGetNvLinkCapability(
        device: sys::nvmlDevice_t, link: c_uint, capability: c_uint, out: *mut c_uint,
    ) {
        let function = Function::nvmlDeviceGetNvLinkCapability;
        let device = Device::called(device, Key::new(function, &[link, capability]))?;
        call::put(out, device.value(function, &[link, capability])?.u32(0)?)
    }

    fn nvmlDeviceGetNvLinkErrorCounter(
        device: sys::nvmlDevice_t, link: c_uint, counter: c_uint, out: *mut c_ulonglong,
    ) {
        let function = Function::nvmlDeviceGetNvLinkErrorCounter;
        let device = Device::called(device, Key::new(function, &[link, counter]))?;
        // A GPU without that link has no counters; links with no recorded errors have none.
        device.value(Function::nvmlDeviceGetNvLinkState, &[link])?;
        let key = Key::new(function, &[link, counter]);
        if let Some(Value::Error(code)) = device.recorded(&key) {
            return Err(code);
        }
        let value = device.value(function, key.args()).unwrap_or(Value::Int(0));
        call::put(out, value.u64(0)?)
    }

    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
        device: sys::nvmlDevice_t, link: c_uint, out: *mut sys::nvmlPciInfo_t,
    ) {
        let function = Function::nvmlDeviceGetNvLinkRemotePciInfo_v2;
        let device = Device::called(device, Key::new(function, &[link]))?;
        device.value(Function::nvmlDeviceGetNvLinkState, &[link])?;
        // A virtual machine does not see the switches at the other end; the driver answers so.
        call::put(out, sys::nvmlPciInfo_t {
            busIdLegacy: call::chars("FFFFFFF:FF:FF.0"),
            domain: u32::MAX,
            bus: 0xff,
            device: 0xff,
            pciDeviceId: u32::MAX,
            pciSubSystemId: 0,
            busId: call::chars("FFFFFFFF:FF:FF.0"),
        })
    }

    fn nvmlDeviceGetGpuFabricInfo(device: sys::nvmlDevice_t, out: *mut sys::nvmlGpuFabricInfo_t) {
        let v = fabric(device, Function::nvmlDeviceGetGpuFabricInfo)?;
        call::put(out, sys::nvmlGpuFabricInfo_t {
            clusterUuid: [0; 16],
            status: v.u32(1)?,
            cliqueId: v.u32(2)?,
            state: v.u32(0)? as u8,
        })
    }

    fn nvmlDeviceGetGpuFabricInfoV(device: sys::nvmlDevice_t, out: *mut sys::nvmlGpuFabricInfoV_t) {
        let v = fabric(device, Function::nvmlDeviceGetGpuFabricInfoV)?;
        let info = call::inout(out)?;
        let second = call::version::<sys::nvmlGpuFabricInfo_v2_t>(2);
        if info.version != second {
            call::expect_version::<sys::nvmlGpuFabricInfoV_t>(info.version, 3)?;
            info.healthSummary = v.u32(4)? as u8;
        }
        // The second version is the beginning of the third.
        info.clusterUuid = [0; 16];
        (info.state, info.status) = (v.u32(0)? as u8, v.u32(1)?);
        (info.cliqueId, info.healthMask) = (v.u32(2)?, v.u32(3)?);
        Ok(())
    }
}
