//! GPM: profiling metrics from the counters of two samples.

use std::collections::HashMap;
use std::ffi::c_uint;
use std::sync::{Mutex, PoisonError};

use nvml_wrapper_sys::bindings as sys;

use crate::call::{self, nvml};
use crate::curve::Point;
use crate::device::Device;
use crate::functions::{Function, Key};
use crate::sim;
use crate::value::{Answer, Value, code};

/// A sample: the GPU, the scenario's time, and the GPU instance. `None` before it is taken.
type Sample = Option<(usize, f64, Option<u32>)>;

struct Samples {
    next: usize,
    taken: HashMap<usize, Sample>,
}

static SAMPLES: Mutex<Option<Samples>> = Mutex::new(None);

fn samples<T>(use_them: impl FnOnce(&mut Samples) -> T) -> T {
    let mut guard = SAMPLES.lock().unwrap_or_else(PoisonError::into_inner);
    use_them(guard.get_or_insert_with(|| Samples { next: 0x4750_4d10, taken: HashMap::new() }))
}

fn read(sample: sys::nvmlGpmSample_t) -> Answer<(usize, f64, Option<u32>)> {
    samples(|s| s.taken.get(&sample.addr()).copied().flatten()).ok_or(code::ERROR_INVALID_ARGUMENT)
}

fn take(sample: sys::nvmlGpmSample_t, gpu: usize, instance: Option<u32>) -> Answer<()> {
    let now = sim::initialised()?.now();
    samples(|s| s.taken.get_mut(&sample.addr()).map(|slot| *slot = Some((gpu, now, instance))))
        .ok_or(code::ERROR_INVALID_ARGUMENT)
}

/// A device that has GPM.
fn able(device: Device) -> Answer<Device> {
    match device.value(Function::nvmlGpmQueryDeviceSupport, &[])?.u32(0)? {
        0 => Err(code::ERROR_NOT_SUPPORTED),
        _ => Ok(device),
    }
}

/// A metric of what the GPU did between two samples: percent, or MiB a second.
fn metric(id: u32, p: &Point, links: f64) -> f64 {
    const MIB: f64 = 1024.0 * 1024.0;
    let percent = |part: f64| p.busy * part * 100.0;
    match id {
        1 => percent(1.0),
        2 => percent(0.97),
        3 => percent(0.58),
        4 => percent(0.12),
        5 | 7 => percent(0.52),
        10 => percent(0.55),
        12 => percent(0.17),
        13 => percent(0.06),
        20 => p.pcie_tx / MIB,
        21 => p.pcie_rx / MIB,
        60 | 61 => p.nvlink / MIB,
        62..=97 if links > 0.0 => p.nvlink / links / MIB,
        _ => 0.0,
    }
}

fn answer(sim: &'static sim::Sim, get: &mut sys::nvmlGpmMetricsGet_t) -> Answer<()> {
    let ((gpu, from, gi), (gpu2, to, gi2)) = (read(get.sample1)?, read(get.sample2)?);
    if gpu != gpu2 || gi != gi2 || to < from || get.numMetrics as usize > get.metrics.len() {
        return Err(code::ERROR_INVALID_ARGUMENT);
    }
    let device = Device { sim, index: gpu, gpu: sim.gpu(gpu)?, mig: None };
    // Instances do different things at the same time.
    let shift = f64::from(gi.unwrap_or(0)) * 11.0;
    let point = device.gpu.curve.as_ref().map(|c| c.mean(from + shift, to + shift));
    let links = Key::new(Function::nvmlDeviceGetFieldValues, &[91]);
    let links = device.recorded(&links).and_then(|v| v.f64(0).ok()).unwrap_or(0.0);
    for m in &mut get.metrics[..get.numMetrics as usize] {
        let key = Key::new(Function::nvmlGpmMetricsGet, &[m.metricId]);
        let part = sim.pass_part(gpu, key);
        let known = (1..=97).contains(&m.metricId);
        let value = part.and_then(|()| match (device.value(key.function, key.args()), &point) {
            _ if !known => Err(code::ERROR_INVALID_ARGUMENT),
            // What the scenario sets comes before what the load makes.
            (Ok(set), None) => set.f64(0),
            (Ok(set), Some(_)) if Some(&set) != device.recorded(&key).as_ref() => set.f64(0),
            (Err(code), _) if code != code::ERROR_NOT_SUPPORTED => Err(code),
            (_, Some(point)) => Ok(metric(m.metricId, point, links)),
            (_, None) => Ok(0.0),
        });
        match value {
            Ok(value) => (m.value, m.nvmlReturn) = (value, code::SUCCESS),
            Err(code) => (m.value, m.nvmlReturn) = (0.0, code),
        }
    }
    Ok(())
}

nvml! {
    fn nvmlGpmQueryDeviceSupport(device: sys::nvmlDevice_t, out: *mut sys::nvmlGpmSupport_t) {
        let function = Function::nvmlGpmQueryDeviceSupport;
        let device = Device::called(device, Key::new(function, &[]))?;
        let info = call::inout(out)?;
        if info.version != sys::NVML_GPM_SUPPORT_VERSION {
            return Err(code::ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        let supported = device.value(function, &[]).unwrap_or(Value::Int(0));
        info.isSupportedDevice = supported.u32(0)?;
        Ok(())
    }

    fn nvmlGpmSampleAlloc(out: *mut sys::nvmlGpmSample_t) {
        sim::initialised()?.pass(None, Key::new(Function::nvmlGpmSampleAlloc, &[]))?;
        let handle = samples(|s| {
            s.next += 16;
            s.taken.insert(s.next, None);
            s.next
        });
        call::put(out, std::ptr::without_provenance_mut(handle))
    }

    fn nvmlGpmSampleFree(sample: sys::nvmlGpmSample_t) {
        sim::initialised()?.pass(None, Key::new(Function::nvmlGpmSampleFree, &[]))?;
        samples(|s| s.taken.remove(&sample.addr())).map(|_| ()).ok_or(code::ERROR_INVALID_ARGUMENT)
    }

    fn nvmlGpmSampleGet(device: sys::nvmlDevice_t, sample: sys::nvmlGpmSample_t) {
        let device = able(Device::called(device, Key::new(Function::nvmlGpmSampleGet, &[]))?.whole()?)?;
        take(sample, device.index, None)
    }

    fn nvmlGpmMigSampleGet(device: sys::nvmlDevice_t, instance: c_uint, sample: sys::nvmlGpmSample_t) {
        let call = Key::new(Function::nvmlGpmMigSampleGet, &[instance]);
        let device = able(Device::called(device, call)?.whole()?)?;
        device.sim.layout(device.index)?.1.instance(instance).ok_or(code::ERROR_NOT_FOUND)?;
        take(sample, device.index, Some(instance))
    }

    fn nvmlGpmMetricsGet(get: *mut sys::nvmlGpmMetricsGet_t) {
        let sim = sim::initialised()?;
        let get = call::inout(get)?;
        if get.version != sys::NVML_GPM_METRICS_GET_VERSION {
            return Err(code::ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        let gpu = read(get.sample1).map(|(gpu, ..)| gpu).ok();
        sim.pass(gpu, Key::new(Function::nvmlGpmMetricsGet, &[]))?;
        answer(sim, get)
    }
}
