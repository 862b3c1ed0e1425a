//! The built library, driven through nvml-wrapper as the product drives it.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{Clock, Sampling, TemperatureSensor};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{EventSet, Nvml};
use nvml_wrapper_sys::bindings as sys;
use simgpu::{Function, SCENARIO_ENV, STATE_ENV, State};

/// A process's view of a node. Every one loads a copy of the library of its own, which has its own
/// statics, so that one test program stands for several processes.
struct Node {
    nvml: Nvml,
    state: State,
    state_file: PathBuf,
}

static ENVIRONMENT: Mutex<()> = Mutex::new(());
static NUMBER: AtomicU32 = AtomicU32::new(0);

fn scratch(name: &str) -> PathBuf {
    let n = NUMBER.fetch_add(1, Ordering::SeqCst);
    std::env::temp_dir().join(format!("simgpu-{}-{n}-{name}", std::process::id()))
}

fn load(scenario: &Path, state_file: &Path) -> Result<Nvml, NvmlError> {
    let copy = scratch("lib.so");
    std::fs::copy(simgpu::library_path().expect("the library is built"), &copy).expect("it can be copied");
    let _guard = ENVIRONMENT.lock().unwrap_or_else(|e| e.into_inner());
    // SAFETY: only this function touches the environment, under the lock.
    unsafe {
        std::env::set_var(SCENARIO_ENV, scenario);
        std::env::set_var(STATE_ENV, state_file);
    }
    let nvml = Nvml::builder().lib_path(copy.as_os_str()).init();
    std::fs::remove_file(&copy).expect("the copy can go once it is loaded");
    nvml
}

fn scenario(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios").join(name)
}

fn node(name: &str) -> Node {
    node_of(&scenario(name))
}

fn node_from(text: &str) -> Node {
    let file = scratch("scenario.toml");
    std::fs::write(&file, text).expect("a scenario can be written");
    node_of(&file)
}

fn node_of(scenario: &Path) -> Node {
    let state_file = scratch("state");
    let nvml = load(scenario, &state_file).expect("the library initialises");
    let state = State::open(&state_file).expect("the state opens");
    Node { nvml, state, state_file }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.state_file);
    }
}

/// Waits for a condition; fails when it does not come.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not come");
        thread::yield_now();
    }
}

fn raw_fields(node: &Node, gpu: u32, asked: &[(u32, u32)]) -> Vec<sys::nvmlFieldValue_t> {
    let device = node.nvml.device_by_index(gpu).expect("a device");
    // SAFETY: an all-zero field value is a valid request.
    let mut values: Vec<sys::nvmlFieldValue_t> = asked
        .iter()
        .map(|(field, scope)| unsafe {
            let mut value: sys::nvmlFieldValue_t = std::mem::zeroed();
            (value.fieldId, value.scopeId) = (*field, *scope);
            value
        })
        .collect();
    let call = node.nvml.lib().nvmlDeviceGetFieldValues.as_ref().expect("exported");
    // SAFETY: the handle is the device's and the count that of the buffer.
    let code = unsafe { call(device.handle(), values.len() as i32, values.as_mut_ptr()) };
    assert_eq!(code, sys::nvmlReturn_enum_NVML_SUCCESS);
    values
}

fn temperature(node: &Node, gpu: u32) -> Result<u32, String> {
    let device = node.nvml.device_by_index(gpu).said()?;
    device.temperature(TemperatureSensor::Gpu).said()
}

/// The Xid that an event set tells.
fn xid(set: &EventSet, timeout_ms: u32) -> Result<u64, String> {
    match set.wait(timeout_ms).said()?.event_data {
        Some(XidError::Value(xid)) => Ok(xid),
        _ => no("no Xid"),
    }
}

/// The crate's errors cannot be compared; their names can.
trait Said<T> {
    fn said(self) -> Result<T, String>;
}

impl<T> Said<T> for Result<T, NvmlError> {
    fn said(self) -> Result<T, String> {
        self.map_err(|e| format!("{e:?}"))
    }
}

fn no<T>(name: &str) -> Result<T, String> {
    Err(name.into())
}

#[test]
fn every_function_is_exported() {
    let path = simgpu::library_path().expect("the library is built");
    let path = std::ffi::CString::new(path.to_str().expect("a plain path")).expect("a C string");
    // SAFETY: loading the library runs no code of it.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null());
    for function in Function::ALL {
        let name = std::ffi::CString::new(function.name()).expect("a C string");
        // SAFETY: the library is loaded.
        assert!(!unsafe { libc::dlsym(library, name.as_ptr()) }.is_null(), "{}", function.name());
    }
}

#[test]
fn a_still_node_answers_as_recorded() {
    let node = node("still-8xh200.toml");
    assert_eq!(node.nvml.device_count().said(), Ok(8));
    assert_eq!(node.nvml.sys_driver_version().expect("version"), "580.159.04");
    let gpu = node.nvml.device_by_index(3).expect("a device");
    assert_eq!(gpu.name().expect("name"), "NVIDIA H200");
    assert_eq!(gpu.uuid().expect("uuid"), "GPU-00000000-0000-4000-8000-000000000004");
    assert_eq!(gpu.pci_info().expect("pci").bus_id, "00000000:00:09.0");
    assert_eq!(gpu.power_usage().said(), Ok(77525));
    assert_eq!(gpu.clock_info(Clock::SM).said(), Ok(345));
    assert_eq!(gpu.fan_speed(0).said(), no("NotSupported"));
    assert_eq!(gpu.total_energy_consumption().said(), Ok(4071042));
    let memory = gpu.memory_info().expect("memory");
    assert_eq!((memory.total, memory.reserved, memory.used), (150754820096, 644939776, 0));
    for same in [
        node.nvml.device_by_pci_bus_id("0000:00:09.0").expect("by address"),
        node.nvml.device_by_uuid("GPU-00000000-0000-4000-8000-000000000004").expect("by uuid"),
    ] {
        assert_eq!(same.index().said(), Ok(3));
    }
    assert_eq!(node.nvml.device_by_index(8).said().err(), Some("InvalidArg".into()));
    assert_eq!(gpu.samples(Sampling::Power, None).expect("samples").len(), 119);
}

#[test]
fn field_values_come_by_position() {
    let node = node("still-8xh200.toml");
    let values = raw_fields(&node, 0, &[(83, 0), (7, 0), (82, 0), (251, 0), (269, 0), (193, 0), (999, 0)]);
    let codes: Vec<u32> = values.iter().map(|v| v.nvmlReturn).collect();
    assert_eq!(codes, [0, 3, 0, 3, 0, 0, 2]);
    // SAFETY: the types say which member is written.
    unsafe {
        assert_eq!((values[0].valueType, values[0].value.ullVal), (3, 3908481));
        assert_eq!((values[2].valueType, values[2].value.uiVal), (1, 35));
        assert_eq!((values[5].valueType, values[5].value.siVal), (5, -8));
    }
    assert!(values.windows(2).all(|w| w[0].timestamp <= w[1].timestamp && w[0].timestamp > 0));
}

#[test]
fn a_call_hangs_until_it_is_released_and_no_other_does() {
    let node = node("hang-gpu3.toml");
    node.state.open_gate("hang").expect("a gate");
    let before = node.state.calls_inside();
    thread::scope(|scope| {
        let stuck = scope.spawn(|| temperature(&node, 3));
        until("the hang", || node.state.calls_inside() > before);
        assert_eq!(temperature(&node, 2), Ok(32));
        assert!(!stuck.is_finished());
        node.state.open_gate("release").expect("a gate");
        assert_eq!(stuck.join().expect("no panic"), Ok(34));
    });
    assert_eq!(temperature(&node, 3), Ok(34));
    assert!(node.state.open_gate("no such gate").is_err());
}

#[test]
fn the_library_wide_lock_holds_every_process() {
    let node = node("hang-lock.toml");
    let uuid = "GPU-00000000-0000-4000-8000-000000000001";
    node.state.open_gate("hang").expect("a gate");
    assert_eq!(temperature(&node, 0), Ok(33), "nobody took the lock yet");
    thread::scope(|scope| {
        let holder = scope.spawn(|| temperature(&node, 3).is_ok());
        until("the lock", || node.state.calls_inside() == 1);
        let waiter = scope.spawn(|| node.nvml.device_by_uuid(uuid).is_ok());
        let other = scope.spawn(|| load(&scenario("hang-lock.toml"), &node.state_file).is_ok());
        until("the waiter", || node.state.calls_inside() == 2);
        assert!(!holder.is_finished() && !waiter.is_finished() && !other.is_finished());
        node.state.open_gate("release").expect("a gate");
        assert!(holder.join().is_ok_and(|ok| ok));
        assert!(waiter.join().is_ok_and(|ok| ok));
        assert!(other.join().is_ok_and(|ok| ok));
    });
}

#[test]
fn a_lost_gpu_says_so_once_by_event_and_then_in_every_call() {
    let node = node("lost-gpu2.toml");
    let gpu = node.nvml.device_by_index(2).expect("a device");
    let set = node.nvml.create_event_set().expect("a set");
    let set =
        gpu.register_events(EventTypes::CRITICAL_XID_ERROR, set).map_err(|e| e.error).expect("registered");
    assert_eq!(set.wait(0).said().err(), Some("Timeout".into()));
    node.state.open_gate("lost").expect("a gate");
    assert_eq!(xid(&set, 10_000), Ok(79));
    assert_eq!(set.wait(0).said().err(), Some("GpuLost".into()));
    assert_eq!(temperature(&node, 2), no("GpuLost"));
    assert_eq!(temperature(&node, 1), Ok(32));
    assert_eq!(node.nvml.device_count().said(), Ok(4));
}

#[test]
fn mig_devices_are_devices_of_their_own() {
    let node = node("still-a100-mig.toml");
    let gpu = node.nvml.device_by_index(0).expect("a device");
    assert_eq!(gpu.mig_mode().expect("mode").current, 1);
    assert_eq!(gpu.utilization_rates().said(), no("NotSupported"));
    assert!(gpu.power_usage().is_ok());
    let names: Vec<String> =
        (0..7).map_while(|i| gpu.mig_device_by_index(i).ok()).map(|d| d.name().expect("a name")).collect();
    let model = "NVIDIA A100-SXM4-80GB MIG";
    let expected = ["3g.40gb", "1c.2g.20gb", "1c.2g.20gb", "1g.10gb"].map(|p| format!("{model} {p}"));
    assert_eq!(names, expected);
    let second = gpu.mig_device_by_index(1).expect("a MIG device");
    assert!(second.uuid().expect("uuid").starts_with("MIG-"));
    assert_eq!(second.mig_parent_device().expect("parent").index().said(), Ok(0));
    assert_eq!(second.attributes().expect("attributes").multiprocessor_count, 14);
    assert_eq!(second.memory_info().expect("memory").used, 4 << 30);
    assert_eq!(second.power_usage().said(), no("NotSupported"));
    let owners: Vec<_> = gpu
        .running_compute_processes()
        .expect("processes")
        .iter()
        .map(|p| (p.pid, p.gpu_instance_id, p.compute_instance_id))
        .collect();
    let expected = [(4200001, 1, 0), (4200002, 5, 0), (4200003, 5, 1), (4200004, 13, 0)];
    assert_eq!(owners, expected.map(|(pid, gi, ci)| (pid, Some(gi), Some(ci))));
}

#[test]
fn a_new_layout_ends_the_old_devices() {
    let text = "[[gpu]]\nmodel = 'H200'\nmig = ['7g.141gb']\n\
                [[step]]\ngate = 'cut'\ngpu = 0\nmig = ['3g.71gb', '3g.71gb']\n";
    let node = node_from(text);
    let gpu = node.nvml.device_by_index(0).expect("a device");
    let old = gpu.mig_device_by_index(0).expect("a MIG device");
    let old_uuid = old.uuid().expect("uuid");
    node.state.open_gate("cut").expect("a gate");
    assert_eq!(old.uuid().said(), no("InvalidArg"));
    let new: Vec<_> = (0..2).map(|i| gpu.mig_device_by_index(i).and_then(|d| d.uuid()).said()).collect();
    assert!(new.iter().all(|uuid| uuid.is_ok() && *uuid != Ok(old_uuid.clone())), "{new:?}");
    node.state.close_gate("cut").expect("a gate");
    assert_eq!(old.uuid().said(), Ok(old_uuid));
}

#[test]
fn blank_values_arrive_as_the_driver_sends_them() {
    let node = node("blank.toml");
    let gpu = node.nvml.device_by_index(0).expect("a device");
    assert_eq!(gpu.power_usage().said(), Ok(u32::MAX));
    assert_eq!(gpu.total_energy_consumption().said(), Ok(u64::MAX));
    assert_eq!(gpu.utilization_rates().expect("rates").gpu, 250);
    assert_eq!(gpu.memory_info().expect("memory").used, i64::MAX as u64);
    let fields = raw_fields(&node, 0, &[(186, 0)]);
    // SAFETY: field 186 is an unsigned int.
    assert_eq!(unsafe { fields[0].value.uiVal }, u32::MAX);
    assert_eq!(node.nvml.device_by_index(1).expect("a device").power_usage().said(), Ok(81560));
}

#[test]
fn the_driver_goes_and_comes_back() {
    let node = node("driver-gone.toml");
    let gpu = node.nvml.device_by_index(0).expect("a device");
    node.state.open_gate("gone").expect("a gate");
    assert_eq!(gpu.power_usage().said(), no("DriverNotLoaded"));
    let other = load(&scenario("driver-gone.toml"), &node.state_file);
    assert_eq!(other.said().err(), Some("DriverNotLoaded".into()));
    node.state.close_gate("gone").expect("a gate");
    assert_eq!(gpu.power_usage().said(), Ok(78861));
}

#[test]
fn what_happens_once_happens_once_in_all_processes() {
    let text = "[[gpu]]\nmodel = 'H200'\n[[step]]\ngpu = 0\nxid = 31\n\
                [[step]]\nafter_calls = { function = 'nvmlDeviceGetTemperature', gpu = 0, count = 3 }\n\
                function = 'nvmlDeviceGetTemperature'\nerror = 'NVML_ERROR_TIMEOUT'\n";
    let file = scratch("scenario.toml");
    std::fs::write(&file, text).expect("a scenario can be written");
    let node = node_of(&file);
    let other = Node {
        nvml: load(&file, &node.state_file).expect("a second process"),
        state: State::open(&node.state_file).expect("the state opens"),
        state_file: node.state_file.clone(),
    };
    for (process, expected) in [(&node, Ok(31)), (&other, no("Timeout"))] {
        let gpu = process.nvml.device_by_index(0).expect("a device");
        let set = process.nvml.create_event_set().expect("a set");
        let set = gpu
            .register_events(EventTypes::CRITICAL_XID_ERROR, set)
            .map_err(|e| e.error)
            .expect("registered");
        assert_eq!(xid(&set, 0), expected);
    }
    assert!(temperature(&node, 0).is_ok() && temperature(&other, 0).is_ok());
    assert_eq!(temperature(&other, 0), no("Timeout"));
    assert_eq!(temperature(&node, 0), no("Timeout"));
    assert_eq!(node.state.calls_of("nvmlDeviceGetTemperature"), 4);
    assert!(node.state.cpu_seconds() > 0.0 && node.state.scenario_seconds() > 0.0);
}

#[test]
fn a_busy_gpu_agrees_with_itself() {
    let node = node("node-8xh200.toml");
    let held = node.nvml.device_by_index(3).expect("a device");
    assert_eq!(held.enforced_power_limit().said(), Ok(450_000));
    assert!(held.power_usage().expect("power") <= 450_000);
    let before = held.total_energy_consumption().expect("energy");
    until("more energy", || held.total_energy_consumption().is_ok_and(|e| e > before));
    let samples = held.samples(Sampling::Power, None).expect("samples");
    assert_eq!(samples.len(), 119);
    assert!(samples.windows(2).all(|w| (19_999..=20_001).contains(&(w[1].timestamp - w[0].timestamp))));
    let last = samples[118].timestamp;
    let mut newer = Vec::new();
    until("newer samples", || match held.samples(Sampling::Power, Some(last)) {
        Ok(list) => {
            newer = list;
            true
        }
        Err(e) => {
            assert!(matches!(e, NvmlError::NotFound));
            false
        }
    });
    assert!(newer.iter().all(|s| s.timestamp > last) && newer.len() < 119);
    let sick = node.nvml.device_by_index(5).expect("a device");
    assert!(sick.running_compute_processes().expect("processes").iter().all(|p| p.pid > 4_194_304));
    assert_eq!(raw_fields(&node, 5, &[(144, 0)])[0].nvmlReturn, 0);
}

#[test]
fn gpm_tells_what_happened_between_two_samples() {
    use nvml_wrapper::enums::gpm::GpmMetricId;
    let node = node("node-8xh200.toml");
    let gpu = node.nvml.device_by_index(0).expect("a device");
    let mut results = Vec::new();
    // A checkpoint dip may lie in the window: what must hold is that it is a percentage above 0.
    let first = gpu.gpm_sample().expect("a sample");
    let second = gpu.gpm_sample().expect("a sample");
    let ids = [GpmMetricId::SmUtil, GpmMetricId::PcieTxPerSec];
    results.extend(nvml_wrapper::gpm::gpm_metrics_get(&node.nvml, &first, &second, &ids).expect("metrics"));
    let values: Vec<f64> = results.into_iter().map(|r| r.expect("a metric").value).collect();
    assert!(values[0] > 0.0 && values[0] <= 100.0 && values[1] > 0.0, "{values:?}");
    let shared = node.nvml.device_by_index(7).expect("a device");
    let instance = shared.gpm_mig_sample(1).expect("a sample of an instance");
    assert!(shared.gpm_mig_sample(99).is_err());
    drop(instance);
}

#[test]
fn a_broken_scenario_is_no_driver() {
    let file = scratch("scenario.toml");
    std::fs::write(&file, "colour = 'red'").expect("a scenario can be written");
    assert_eq!(load(&file, &scratch("state")).said().err(), Some("Unknown".into()));
    assert_eq!(load(Path::new("/nonexistent"), &scratch("state")).said().err(), Some("Unknown".into()));
}

#[test]
fn every_scenario_of_the_project_reads() {
    let mut n = 0;
    for entry in std::fs::read_dir(scenario("")).expect("the folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|e| e == "toml") {
            if let Err(e) = simgpu::Scenario::load(&path) {
                panic!("{e}");
            }
            n += 1;
        }
    }
    assert!(n >= 14);
}
