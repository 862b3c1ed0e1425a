//! Field values: many answers in one call, each with its own return code, in the same order.

use std::ffi::c_int;

use nvml_wrapper_sys::bindings as sys;

use crate::call::{self, nvml};
use crate::device::Device;
use crate::functions::{Function, Key};
use crate::model::FieldType;
use crate::value::{Answer, code};

const FIELDS: Function = Function::nvmlDeviceGetFieldValues;

/// One field. It meets the steps that name it, so a single field can hang or fail.
fn field(device: &Device, id: u32, scope: u32) -> Answer<(sys::nvmlValueType_t, sys::nvmlValue_t)> {
    device.sim.pass_part(device.index, Key::new(FIELDS, &[id, scope]))?;
    let kind = device.gpu.model.field(id)?;
    let value = device.value(FIELDS, &[id, scope])?;
    // The union is written whole, so that no stale bytes stay in it.
    let mut out = sys::nvmlValue_t { ullVal: 0 };
    Ok(match kind {
        FieldType::U32 => {
            out.uiVal = value.u32(0)?;
            (sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT, out)
        }
        FieldType::U64 => {
            out.ullVal = value.u64(0)?;
            (sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, out)
        }
        FieldType::I32 => {
            out.siVal = value.u32(0)? as i32;
            (sys::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT, out)
        }
    })
}

nvml! {
    fn nvmlDeviceGetFieldValues(
        device: sys::nvmlDevice_t, count: c_int, values: *mut sys::nvmlFieldValue_t,
    ) {
        let device = Device::called(device, Key::new(FIELDS, &[]))?;
        let count = usize::try_from(count).map_err(|_| code::ERROR_INVALID_ARGUMENT)?;
        for i in 0..count {
            let entry = call::inout(values.wrapping_add(i))?;
            // The real driver passes over entries that come with an error.
            if entry.nvmlReturn != code::SUCCESS {
                continue;
            }
            let before = device.sim.now();
            match field(&device, entry.fieldId, entry.scopeId) {
                Ok((kind, value)) => {
                    (entry.valueType, entry.value, entry.nvmlReturn) = (kind, value, code::SUCCESS);
                }
                Err(code) => entry.nvmlReturn = code,
            }
            let after = device.sim.now();
            entry.timestamp = device.sim.stamp_us(after) as i64;
            entry.latencyUsec = ((after - before) * 1e6) as i64;
        }
        Ok(())
    }
}
