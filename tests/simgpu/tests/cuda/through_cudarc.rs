//! The library as cudarc finds and calls it, in a process of its own: all symbols, with their signatures.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cudarc::driver::{result, sys};

use crate::cuda::{Cuda, ptx, scratch};
use crate::kernels::H200;
use canary::abi::LaunchArgs;

/// A folder with the library under the names of a driver, and a node.
fn node() -> PathBuf {
    let folder = scratch("driver");
    std::fs::create_dir_all(&folder).expect("a folder");
    let library = simgpu::library_path().expect("the library is built");
    for name in ["libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1"] {
        std::os::unix::fs::symlink(&library, folder.join(name)).expect("a link");
    }
    std::fs::write(folder.join("scenario.toml"), H200).expect("a scenario can be written");
    folder
}

/// Set for a process that a test starts: it finds the library as a driver is found, and is the other half of the
/// test.
const STARTED: &str = "SIMGPU_STARTED_BY_TEST";

/// A test of this program once more, in such a process.
fn process(folder: &Path, test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args(["--exact", test, "--nocapture"])
        .env(STARTED, test)
        .env("LD_LIBRARY_PATH", folder)
        .env("GPU_SIM_SCENARIO", folder.join("scenario.toml"))
        .env("GPU_SIM_STATE", folder.join("state"))
        .env("CUDA_VISIBLE_DEVICES", "GPU-00000000-0000-4000-8000-000000000001");
    command
}

fn is_started() -> bool {
    std::env::var_os(STARTED).is_some()
}

#[test]
fn cudarc_finds_and_calls_it() {
    if is_started() {
        call_through_cudarc();
        println!("all was called");
        return;
    }
    let folder = node();
    let output = process(&folder, "through_cudarc::cudarc_finds_and_calls_it").output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("all was called"), "{said}{complained}");
    assert!(complained.contains("simgpu: ") && complained.contains("of different builds"), "{complained}");
    let _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn a_process_that_dies_leaves_no_context() {
    if is_started() {
        return wait_with_a_context();
    }
    let folder = node();
    let mut process = process(&folder, "through_cudarc::a_process_that_dies_leaves_no_context");
    let mut process = process
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
    assert!(lines.any(|line| line.is_ok_and(|line| line.contains("a context is here"))));
    let watcher = Cuda::join(&folder.join("scenario.toml"), &folder.join("state"), None);
    let listed = || {
        let gpu = watcher.nvml.device_by_index(0).expect("a device");
        gpu.running_compute_processes().expect("processes").into_iter().map(|p| p.pid).collect::<Vec<_>>()
    };
    assert_eq!(listed(), [process.id()]);
    assert!(watcher.nvml.sys_process_name(process.id(), 64).is_ok());
    process.kill().expect("killed");
    // Gone with its death, also before its parent has asked for its end.
    let deadline = Instant::now() + Duration::from_secs(20);
    while !listed().is_empty() {
        assert!(Instant::now() < deadline, "it is still there");
        std::thread::yield_now();
    }
    process.wait().expect("it has ended");
    let _ = std::fs::remove_dir_all(&folder);
}

fn wait_with_a_context() {
    // SAFETY: a driver's library is there.
    unsafe {
        result::init().expect("initialised");
        let device = result::device::get(0).expect("a device");
        result::primary_ctx::retain(device).expect("a context");
    }
    println!("a context is here");
    let _ = std::io::stdin().read(&mut [0]);
}

fn call_through_cudarc() {
    // SAFETY: a driver's library is there; handles and pointers are what the calls before gave.
    unsafe {
        assert!(sys::is_culib_present());
        result::init().expect("initialised");
        let device = result::device::get(0).expect("a device");
        assert_eq!(result::device::get_name(device).expect("a name"), "NVIDIA H200");
        assert_eq!(result::device::get_uuid(device).expect("a UUID").bytes[15], 1);
        let sms = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        assert_eq!(result::device::get_attribute(device, sms).expect("an attribute"), 132);
        let context = result::primary_ctx::retain(device).expect("a context");
        result::ctx::set_current(context).expect("current");
        let other = c".version 8.2\n.target sm_75\n".as_ptr().cast();
        assert_eq!(
            result::module::load_data(other).map_err(|error| error.0).err(),
            Some(sys::CUresult::CUDA_ERROR_INVALID_IMAGE)
        );
        let module = result::module::load_data(ptx()).expect("a module");
        let kernel = result::module::get_function(module, c"launch".to_owned()).expect("a kernel");
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking).expect("a stream");
        let event = || result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).expect("an event");
        let (from, to) = (event(), event());
        let memory = result::malloc_sync(1024).expect("device memory");
        result::memset_d8_async(memory, 7, 1024, stream).expect("set");
        result::event::record(from, stream).expect("recorded");
        let mut args = LaunchArgs::default();
        let mut params = [std::ptr::from_mut(&mut args).cast()];
        result::launch_kernel(kernel, (1, 1, 1), (32, 1, 1), 0, stream, &mut params).expect("a launch");
        result::event::record(to, stream).expect("recorded");
        let mut bytes = [0u8; 1024];
        result::memcpy_dtoh_async(&mut bytes, memory, stream).expect("a copy");
        result::stream::synchronize(stream).expect("synchronised");
        assert!(bytes.iter().all(|b| *b == 7));
        assert!((0.001..0.02).contains(&result::event::elapsed(from, to).expect("a time")));
        let (free, total) = result::mem_get_info().expect("sizes");
        assert!(free < total && total > 139 << 30);
        result::free_sync(memory).expect("freed");
        result::event::destroy(from).expect("gone");
        result::event::destroy(to).expect("gone");
        result::stream::destroy(stream).expect("gone");
        result::module::unload(module).expect("gone");
        result::primary_ctx::release(device).expect("released");
        assert_eq!(result::init(), Ok(()));
    }
}
