//! Video: encoder sessions and frame buffer capture.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings as sys;

use crate::call::{self, numbers, nvml};
use crate::device::Device;
use crate::functions::{Function, Key};
use crate::scenario::{SESSION_FPS, SESSION_LATENCY_US};
use crate::value::Answer;

numbers! { c_uint, kind: nvmlDeviceGetEncoderCapacity }

/// What every session shows.
const WIDTH: c_uint = 1920;
const HEIGHT: c_uint = 1080;

/// The sessions of a call, each with its number and its process.
fn sessions(device: sys::nvmlDevice_t, function: Function) -> Answer<Vec<(c_uint, c_uint)>> {
    let pids = Device::called(device, Key::new(function, &[]))?.value(function, &[])?.numbers()?;
    Ok((1..).zip(pids.into_iter().map(|pid| pid as c_uint)).collect())
}

/// Writes sessions to the caller. Unlike other lists, their number comes without an error.
///
/// # Safety
/// As for `call::put_list`.
unsafe fn put_sessions<T: Copy>(count: *mut c_uint, out: *mut T, list: &[T]) -> Answer<()> {
    // SAFETY: the caller's count.
    let room = unsafe { call::inout(count) }?;
    if *room == 0 {
        *room = list.len() as c_uint;
        return Ok(());
    }
    // SAFETY: the caller's list.
    unsafe { call::put_list(count, out, list) }
}

nvml! {
    fn nvmlDeviceGetEncoderStats(
        device: sys::nvmlDevice_t, count: *mut c_uint, fps: *mut c_uint, latency: *mut c_uint,
    ) {
        let function = Function::nvmlDeviceGetEncoderStats;
        let v = Device::called(device, Key::new(function, &[]))?.value(function, &[])?;
        for (i, out) in [count, fps, latency].into_iter().enumerate() {
            call::put(out, v.u32(i)?)?;
        }
        Ok(())
    }

    fn nvmlDeviceGetEncoderSessions(
        device: sys::nvmlDevice_t, count: *mut c_uint, out: *mut sys::nvmlEncoderSessionInfo_t,
    ) {
        let sessions = sessions(device, Function::nvmlDeviceGetEncoderSessions)?;
        let info = |(sessionId, pid)| sys::nvmlEncoderSessionInfo_t {
            sessionId,
            pid,
            vgpuInstance: 0,
            codecType: sys::nvmlEncoderQueryType_enum_NVML_ENCODER_QUERY_H264,
            hResolution: WIDTH,
            vResolution: HEIGHT,
            averageFps: SESSION_FPS,
            averageLatency: SESSION_LATENCY_US,
        };
        put_sessions(count, out, &sessions.into_iter().map(info).collect::<Vec<_>>())
    }

    fn nvmlDeviceGetFBCStats(device: sys::nvmlDevice_t, out: *mut sys::nvmlFBCStats_t) {
        let function = Function::nvmlDeviceGetFBCStats;
        let v = Device::called(device, Key::new(function, &[]))?.value(function, &[])?;
        call::put(out, sys::nvmlFBCStats_t {
            sessionsCount: v.u32(0)?, averageFPS: v.u32(1)?, averageLatency: v.u32(2)?,
        })
    }

    fn nvmlDeviceGetFBCSessions(
        device: sys::nvmlDevice_t, count: *mut c_uint, out: *mut sys::nvmlFBCSessionInfo_t,
    ) {
        let sessions = sessions(device, Function::nvmlDeviceGetFBCSessions)?;
        let info = |(sessionId, pid)| sys::nvmlFBCSessionInfo_t {
            sessionId,
            pid,
            vgpuInstance: 0,
            displayOrdinal: 0,
            sessionType: sys::nvmlFBCSessionType_enum_NVML_FBC_SESSION_TYPE_TOSYS,
            sessionFlags: 0,
            hMaxResolution: WIDTH,
            vMaxResolution: HEIGHT,
            hResolution: WIDTH,
            vResolution: HEIGHT,
            averageFPS: SESSION_FPS,
            averageLatency: SESSION_LATENCY_US,
        };
        put_sessions(count, out, &sessions.into_iter().map(info).collect::<Vec<_>>())
    }
}
