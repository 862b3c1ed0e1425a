//! A node under test, and how to ask it.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{EventSet, Nvml};
use nvml_wrapper_sys::bindings as sys;
use simgpu::{KMSG_ENV, SCENARIO_ENV, STATE_ENV, State};

/// A process's view of a node. Every one loads a copy of the library of its own, which has its own
/// statics, so that one test program plays several processes.
pub struct Node {
    pub nvml: Nvml,
    pub state: State,
    pub state_file: PathBuf,
}

static ENVIRONMENT: Mutex<()> = Mutex::new(());
static NUMBER: AtomicU32 = AtomicU32::new(0);

pub fn scratch(name: &str) -> PathBuf {
    let n = NUMBER.fetch_add(1, Ordering::SeqCst);
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("simgpu-{}-{n}-{name}", std::process::id()))
}

pub fn load(scenario: &Path, state_file: &Path) -> Result<Nvml, NvmlError> {
    let copy = scratch("lib.so");
    std::fs::copy(simgpu::library_path().expect("the library is built"), &copy).expect("it can be copied");
    let _guard = ENVIRONMENT.lock().unwrap_or_else(|e| e.into_inner());
    // SAFETY: only this function touches the environment, under the lock.
    unsafe {
        std::env::set_var(SCENARIO_ENV, scenario);
        std::env::set_var(STATE_ENV, state_file);
        std::env::set_var(KMSG_ENV, kernel_log(state_file));
    }
    let nvml = Nvml::builder().lib_path(copy.as_os_str()).init();
    std::fs::remove_file(&copy).expect("the copy can go once it is loaded");
    nvml
}

/// The kernel log of the node with that state.
pub fn kernel_log(state_file: &Path) -> PathBuf {
    state_file.with_extension("kmsg")
}

pub fn scenario(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios").join(name)
}

pub fn node(name: &str) -> Node {
    node_of(&scenario(name))
}

pub fn node_from(text: &str) -> Node {
    let file = scratch("scenario.toml");
    std::fs::write(&file, text).expect("a scenario can be written");
    node_of(&file)
}

pub fn node_of(scenario: &Path) -> Node {
    let state_file = scratch("state");
    let nvml = load(scenario, &state_file).expect("the library initialises");
    let state = State::open(&state_file).expect("the state opens");
    Node { nvml, state, state_file }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.state_file);
        let _ = std::fs::remove_file(kernel_log(&self.state_file));
    }
}

/// Waits for a condition; fails when it does not come.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not come");
        thread::yield_now();
    }
}

pub fn raw_fields(node: &Node, gpu: u32, asked: &[(u32, u32)]) -> Vec<sys::nvmlFieldValue_t> {
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

pub fn temperature(node: &Node, gpu: u32) -> Result<u32, String> {
    let device = node.nvml.device_by_index(gpu).said()?;
    device.temperature(TemperatureSensor::Gpu).said()
}

/// The Xid of an event set.
pub fn xid(set: &EventSet, timeout_ms: u32) -> Result<u64, String> {
    match set.wait(timeout_ms).said()?.event_data {
        Some(XidError::Value(xid)) => Ok(xid),
        _ => no("no Xid"),
    }
}

/// The crate's errors cannot be compared; their names can.
pub trait Said<T> {
    fn said(self) -> Result<T, String>;
}

impl<T> Said<T> for Result<T, NvmlError> {
    fn said(self) -> Result<T, String> {
        self.map_err(|e| format!("{e:?}"))
    }
}

pub fn no<T>(name: &str) -> Result<T, String> {
    Err(name.into())
}
