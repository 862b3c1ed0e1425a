//! Lists of processes. The wrapper first requests the size of a list and treats SUCCESS as an empty list, but a
//! driver may answer with SUCCESS for any size. Here every request has room for the answer.

use std::ffi::c_uint;

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper_sys::bindings as sys;

use super::symbol;

/// Room of the first request, enough for most GPUs.
const ROOM: usize = 32;
/// Maximum number of requests, because processes may start between two of them.
const TRIES: usize = 4;
/// Maximum room, more than any GPU has processes, so that an invalid count does not allocate memory.
const MOST: usize = 65_536;

pub fn compute(device: &Device<'static>) -> Result<Vec<ProcessInfo>, NvmlError> {
    let f = symbol(&device.nvml().lib().nvmlDeviceGetComputeRunningProcesses_v3)?;
    // SAFETY: the handle is valid while the library is loaded, and the list has room for `count` entries.
    list(|count, list| nvml_try(unsafe { f(device.handle(), count, list) }))
}

pub fn graphics(device: &Device<'static>) -> Result<Vec<ProcessInfo>, NvmlError> {
    let f = symbol(&device.nvml().lib().nvmlDeviceGetGraphicsRunningProcesses_v3)?;
    // SAFETY: as above.
    list(|count, list| nvml_try(unsafe { f(device.handle(), count, list) }))
}

pub fn mps(device: &Device<'static>) -> Result<Vec<ProcessInfo>, NvmlError> {
    let f = symbol(&device.nvml().lib().nvmlDeviceGetMPSComputeRunningProcesses_v3)?;
    // SAFETY: as above.
    list(|count, list| nvml_try(unsafe { f(device.handle(), count, list) }))
}

/// Repeats the request with more room until the list fits.
fn list(
    mut ask: impl FnMut(&mut c_uint, *mut sys::nvmlProcessInfo_t) -> Result<(), NvmlError>,
) -> Result<Vec<ProcessInfo>, NvmlError> {
    let empty = sys::nvmlProcessInfo_t { pid: 0, usedGpuMemory: 0, gpuInstanceId: 0, computeInstanceId: 0 };
    let mut room = ROOM;
    for _ in 0..TRIES {
        let mut list = vec![empty; room];
        let mut count = c_uint::try_from(room).unwrap_or(0);
        let answer = ask(&mut count, list.as_mut_ptr());
        let count = count as usize;
        match answer {
            Ok(()) if count <= room => {
                list.truncate(count);
                return Ok(list.into_iter().map(ProcessInfo::from).collect());
            }
            Ok(()) | Err(NvmlError::InsufficientSize(_)) => room = (count.max(room) + ROOM).min(MOST),
            Err(error) => return Err(error),
        }
    }
    Err(NvmlError::InsufficientSize(Some(room)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks a driver with so many processes; gives their number and that of the questions.
    fn asked(processes: usize, code: Result<(), NvmlError>) -> (Option<usize>, usize) {
        let mut questions = 0;
        let found = list(|count, list| {
            questions += 1;
            let room = std::mem::replace(count, processes as c_uint) as usize;
            if room < processes {
                return match &code {
                    Ok(()) => Ok(()),
                    Err(_) => Err(NvmlError::InsufficientSize(None)),
                };
            }
            for at in 0..processes {
                let one = sys::nvmlProcessInfo_t {
                    pid: at as c_uint,
                    usedGpuMemory: 1,
                    gpuInstanceId: u32::MAX,
                    computeInstanceId: u32::MAX,
                };
                // SAFETY: there is room for all of them.
                unsafe { list.add(at).write(one) };
            }
            Ok(())
        });
        (found.ok().map(|list| list.len()), questions)
    }

    #[test]
    fn a_list_that_fits_takes_one_question_and_a_longer_one_two() {
        for short in [Ok(()), Err(NvmlError::InsufficientSize(None))] {
            assert_eq!(asked(0, short), (Some(0), 1));
        }
        assert_eq!(asked(ROOM, Ok(())), (Some(ROOM), 1));
        assert_eq!(asked(500, Err(NvmlError::InsufficientSize(None))), (Some(500), 2));
        assert_eq!(asked(500, Ok(())), (Some(500), 2), "SUCCESS with a count above the room");
    }

    #[test]
    fn a_count_that_is_no_count_ends() {
        assert_eq!(asked(usize::MAX >> 32, Ok(())), (None, TRIES));
    }
}
