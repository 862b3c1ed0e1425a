//! The driver's own sample buffers: power every 20 ms, utilization every 200 ms.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings as sys;

use crate::call::{self, nvml};
use crate::curve::Point;
use crate::device::Device;
use crate::functions::{Function, Key};
use crate::value::{Answer, code};

const SAMPLES: Function = Function::nvmlDeviceGetSamples;

/// A buffer: the distance of its samples, its size, and their values.
struct Buffer {
    period: f64,
    length: usize,
    value: fn(Point) -> f64,
    /// The call whose answer a still GPU repeats, and the member of it.
    still: (Function, usize),
}

fn buffer(kind: c_uint) -> Answer<Buffer> {
    let slow = |value, still| Ok(Buffer { period: 0.2, length: 71, value, still });
    match kind {
        sys::nvmlSamplingType_enum_NVML_TOTAL_POWER_SAMPLES => Ok(Buffer {
            period: 0.02,
            length: 119,
            value: |p| p.watts * 1000.0,
            still: (Function::nvmlDeviceGetPowerUsage, 0),
        }),
        sys::nvmlSamplingType_enum_NVML_GPU_UTILIZATION_SAMPLES => {
            slow(|p| (p.busy * 100.0).round(), (Function::nvmlDeviceGetUtilizationRates, 0))
        }
        sys::nvmlSamplingType_enum_NVML_MEMORY_UTILIZATION_SAMPLES => {
            slow(|p| (p.busy * 62.0).round(), (Function::nvmlDeviceGetUtilizationRates, 1))
        }
        sys::nvmlSamplingType_enum_NVML_ENC_UTILIZATION_SAMPLES => {
            slow(|_| 0.0, (Function::nvmlDeviceGetEncoderUtilization, 0))
        }
        sys::nvmlSamplingType_enum_NVML_DEC_UTILIZATION_SAMPLES => {
            slow(|_| 0.0, (Function::nvmlDeviceGetDecoderUtilization, 0))
        }
        _ => Err(code::ERROR_NOT_FOUND),
    }
}

/// What the GPU did by itself, and the kernels' share of its time besides.
fn worked(device: &Device, point: Point, from: f64, to: f64) -> Point {
    Point { busy: (point.busy + device.worked(from + 1e-6, to - 1e-6)).min(1.0), ..point }
}

/// The samples newer than `since`. A sample has its number on the scenario's clock, so every
/// process sees the same ones.
fn samples(device: &Device, kind: c_uint, since: u64) -> Answer<Vec<sys::nvmlSample_t>> {
    let buffer = buffer(kind)?;
    let (function, member) = buffer.still;
    let set = device.value(SAMPLES, &[kind]).and_then(|v| v.u64(0));
    let still = match device.value(function, &[]) {
        // MIG: power is the whole GPU's, utilization has no owner.
        Err(code) if member > 0 || kind != 0 => return Err(code),
        // What kernels do now is no part of what was before.
        Ok(_) if device.worked(device.sim.now() - 0.2, device.sim.now()) > 0.0 => device
            .recorded(&Key::new(function, &[]))
            .ok_or(code::ERROR_NOT_SUPPORTED)
            .and_then(|v| v.u64(member)),
        other => other.and_then(|v| v.u64(member)),
    };
    let newest = (device.sim.now() / buffer.period).floor() as i64;
    let mut list = Vec::with_capacity(buffer.length);
    for n in newest - buffer.length as i64 + 1..=newest {
        let (from, to) = ((n - 1) as f64 * buffer.period, n as f64 * buffer.period);
        let timeStamp = device.sim.stamp_us(to);
        if timeStamp > since {
            let value = match (&set, &device.gpu.curve) {
                (Ok(set), _) => *set,
                (_, Some(curve)) => (buffer.value)(worked(device, curve.mean(from, to), from, to)) as u64,
                (_, None) => still? + (buffer.value)(worked(device, Point::default(), from, to)) as u64,
            };
            let mut sampleValue = sys::nvmlValue_t { ullVal: 0 };
            sampleValue.uiVal = value as u32;
            list.push(sys::nvmlSample_t { timeStamp, sampleValue });
        }
    }
    Ok(list)
}

nvml! {
    fn nvmlDeviceGetSamples(
        device: sys::nvmlDevice_t, kind: c_uint, since: c_ulonglong,
        value_type: *mut sys::nvmlValueType_t, count: *mut c_uint, out: *mut sys::nvmlSample_t,
    ) {
        let device = Device::called(device, Key::new(SAMPLES, &[kind]))?.whole()?;
        call::put(value_type, sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT)?;
        let list = samples(&device, kind, since)?;
        if list.is_empty() {
            return Err(code::ERROR_NOT_FOUND);
        }
        if out.is_null() {
            // The room that the whole buffer takes.
            return call::put(count, buffer(kind)?.length as c_uint);
        }
        let room = *call::inout(count)? as usize;
        let oldest = &list[..list.len().min(room)];
        call::put_list(count, out, oldest)
    }
}
