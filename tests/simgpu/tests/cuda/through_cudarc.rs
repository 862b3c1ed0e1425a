//! The library as cudarc finds and calls it, in a process of its own: all symbols, with their signatures.

use std::path::Path;
use std::process::Command;

use cudarc::driver::{result, sys};

use crate::abi::LaunchArgs;
use crate::cuda::scratch;
use crate::kernels::H200;

/// Runs a test of this program in a process that finds the library as a driver is found.
fn in_a_process(test: &str) -> String {
    let folder = scratch("driver");
    std::fs::create_dir_all(&folder).expect("a folder");
    let library = simgpu::library_path().expect("the library is built");
    for name in ["libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1"] {
        std::os::unix::fs::symlink(&library, folder.join(name)).expect("a link");
    }
    let scenario = folder.join("scenario.toml");
    std::fs::write(&scenario, H200).expect("a scenario can be written");
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env("LD_LIBRARY_PATH", &folder)
        .env("GPU_SIM_SCENARIO", &scenario)
        .env("GPU_SIM_STATE", folder.join("state"))
        .env("CUDA_VISIBLE_DEVICES", "GPU-00000000-0000-4000-8000-000000000001")
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let _ = std::fs::remove_dir_all(Path::new(&folder));
    said
}

#[test]
fn cudarc_finds_and_calls_it() {
    assert!(in_a_process("through_cudarc::a_program_through_cudarc").contains("1 passed"));
}

#[test]
#[ignore = "run in a process of its own"]
fn a_program_through_cudarc() {
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
        let image = c".version 8.2\n.target sm_75\n";
        let module = result::module::load_data(image.as_ptr().cast()).expect("a module");
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
