//! Devices, contexts and memory, as a program meets them.

use std::ffi::CStr;

use crate::cuda::{Cuda, NULL, out, scratch};

const H200: &str = "still = true\n[[gpu]]\nmodel = 'H200'\n";
const EIGHT: &str = "still = true\n[[gpu]]\nmodel = 'H200'\ncount = 8\n";

fn text(call: impl FnOnce(*mut i8) -> Result<(), u32>) -> String {
    let mut buffer = [0i8; 64];
    call(buffer.as_mut_ptr()).expect("a text");
    // SAFETY: the library ends what it writes.
    unsafe { CStr::from_ptr(buffer.as_ptr()) }.to_string_lossy().into_owned()
}

#[test]
fn nothing_works_before_it_is_initialised() {
    let cuda = Cuda::load(H200);
    assert_eq!(out(0, |out| cuda.cuDriverGetVersion(out)), Ok(13000));
    assert_eq!(out(0, |out| cuda.cuDeviceGetCount(out)), Err(3));
    assert_eq!(cuda.cuInit(1), Err(1));
    assert_eq!(cuda.cuInit(0), Ok(()));
    assert_eq!(out(0, |out| cuda.cuDeviceGetCount(out)), Ok(1));
    assert_eq!(out(0, |out| cuda.cuDeviceGet(out, 1)), Err(101));
    assert_eq!(out(0, |out| cuda.cuMemAlloc_v2(out, 1)), Err(201), "without a context");
}

#[test]
fn a_device_is_what_nvml_says_it_is() {
    let cuda = Cuda::with_context(H200);
    assert_eq!(text(|at| cuda.cuDeviceGetName(at, 64, 0)), "NVIDIA H200");
    assert_eq!(text(|at| cuda.cuDeviceGetName(at, 7, 0)), "NVIDIA");
    assert_eq!(text(|at| cuda.cuDeviceGetPCIBusId(at, 64, 0)), "0000:00:06.0");
    assert_eq!(cuda.uuid()[..8], [0, 0, 0, 0, 0, 0, 0x40, 0]);
    // Compute capability, multiprocessors, L2, clock in kHz, bus, warp.
    let numbers: Vec<i32> = [75, 76, 16, 38, 13, 37, 10].map(|n| cuda.attribute(n)).into();
    assert_eq!(numbers, [9, 0, 132, 62_914_560, 1_980_000, 6016, 32]);
    assert_eq!(out(0, |out| cuda.cuDeviceGetAttribute(out, 0, 0)), Err(1));
    let total = out(0, |out| cuda.cuDeviceTotalMem_v2(out, 0)).expect("a size");
    assert_eq!(total, 150_754_820_096 - 644_939_776);
}

#[test]
fn a_process_sees_what_it_is_shown() {
    let all = Cuda::load(EIGHT);
    let count = |list: &str| {
        let cuda = Cuda::join(&all.scenario, &all.state_file, Some(list));
        let count = out(0, |out| cuda.cuDeviceGetCount(out)).expect("a count");
        (count, cuda.uuid()[15])
    };
    assert_eq!(count("GPU-00000000-0000-4000-8000-000000000003"), (1, 3));
    assert_eq!(
        count("GPU-00000000-0000-4000-8000-000000000008,GPU-00000000-0000-4000-8000-000000000002"),
        (2, 8)
    );
    assert_eq!(count("5,1,nonsense,0"), (2, 6));
    let none = std::panic::catch_unwind(|| count("GPU-11111111-0000-4000-8000-000000000003"));
    assert!(none.is_err(), "no device: cuInit fails");
}

#[test]
fn a_mig_device_is_one_by_itself() {
    let text = "still = true\n[[gpu]]\nmodel = 'H200'\nmig = ['3g.71gb', '1g.18gb']\n";
    let first = Cuda::load(text);
    let cuda =
        Cuda::join(&first.scenario, &first.state_file, Some("MIG-00000000-0000-5000-8000-000001000002"));
    cuda.context(0);
    assert_eq!((cuda.attribute(16), cuda.uuid()[15]), (16, 2));
    let total = out(0, |out| cuda.cuDeviceTotalMem_v2(out, 0)).expect("a size");
    assert_eq!(total, (16_384 - 16) << 20);
    let listed = |index| {
        let gpu = first.nvml.device_by_index(0).expect("a device");
        let mig = gpu.mig_device_by_index(index).expect("a MIG device");
        mig.running_compute_processes().expect("processes").len()
    };
    assert_eq!((listed(0), listed(1)), (0, 1));
    // The GPU's own UUID means its first MIG device.
    let whole =
        Cuda::join(&first.scenario, &first.state_file, Some("GPU-00000000-0000-4000-8000-000000000001"));
    assert_eq!((whole.attribute(16), whole.uuid()[15]), (60, 1));
}

#[test]
fn memory_keeps_what_is_copied_to_it() {
    let cuda = Cuda::with_context(H200);
    let words: Vec<u64> = (0..100_000).collect();
    let address = cuda.upload(&words);
    assert_eq!(cuda.download::<u64>(address, words.len()), words);
    cuda.cuMemsetD8_v2(address + 8, 0xff, 8).expect("set");
    cuda.cuMemsetD32Async(address + 16, 7, 2, NULL).expect("set");
    assert_eq!(cuda.download::<u64>(address, 4), [0, u64::MAX, 7 | 7 << 32, 3]);
    let mut word = 0u64;
    let at = std::ptr::from_mut(&mut word).cast();
    assert_eq!(cuda.cuMemcpyDtoH_v2(at, address + 8 * 100_000, 8), Err(1), "past the end");
    assert_eq!(cuda.cuMemFree_v2(address), Ok(()));
    assert_eq!(cuda.cuMemFree_v2(address), Err(1));
}

#[test]
fn memory_ends_where_the_gpus_memory_ends() {
    let cuda = Cuda::with_context(&format!("{H200}[[step]]\ngpu = 0\nfree_memory = '1GiB'\n"));
    let info = || {
        let mut total = 0;
        let free = out(0, |free| cuda.cuMemGetInfo_v2(free, &mut total)).expect("sizes");
        (free >> 20, total >> 20)
    };
    assert_eq!(info().0, 1024 - 527);
    let address = cuda.allocate(100 << 20);
    assert_eq!(info().0, 1024 - 527 - 100);
    assert_eq!(out(0, |out| cuda.cuMemAlloc_v2(out, 400 << 20)), Err(2));
    cuda.cuMemFree_v2(address).expect("freed");
    assert!(out(0, |out| cuda.cuMemAlloc_v2(out, 400 << 20)).is_ok());
    let little = Cuda::load(&format!("{H200}[[step]]\ngpu = 0\nfree_memory = '100MiB'\n"));
    little.cuInit(0).expect("initialised");
    assert_eq!(out(NULL, |out| little.cuDevicePrimaryCtxRetain(out, 0)), Err(2), "no room for a context");
}

#[test]
fn a_context_is_gone_when_it_was_given_back() {
    let cuda = Cuda::with_context(H200);
    let again = out(NULL, |out| cuda.cuDevicePrimaryCtxRetain(out, 0)).expect("the same context");
    let address = cuda.allocate(8);
    cuda.cuDevicePrimaryCtxRelease_v2(0).expect("released once");
    assert_eq!(cuda.download::<u64>(address, 1).len(), 1, "it is still there");
    cuda.cuDevicePrimaryCtxRelease_v2(0).expect("released twice");
    assert_eq!(cuda.cuCtxSetCurrent(again), Err(201));
    assert_eq!(cuda.cuMemFree_v2(address), Err(201));
    let own = out(NULL, |out| cuda.cuCtxCreate_v2(out, 0, 0)).expect("a context");
    assert_eq!(cuda.cuCtxSynchronize(), Ok(()));
    assert_eq!(cuda.cuCtxDestroy_v2(own), Ok(()));
    assert_eq!(cuda.cuCtxSynchronize(), Err(201));
}

#[test]
fn gpus_with_nvlink_reach_each_other() {
    let cuda = Cuda::with_context(EIGHT);
    assert_eq!(out(0, |out| cuda.cuDeviceCanAccessPeer(out, 0, 1)), Ok(1));
    let first = cuda.context(0);
    let from = cuda.upload(&[1u64, 2, 3]);
    let second = cuda.context(1);
    let to = cuda.allocate(24);
    cuda.cuCtxEnablePeerAccess(first, 0).expect("enabled");
    assert_eq!(cuda.cuCtxEnablePeerAccess(first, 0), Err(704));
    cuda.cuMemcpyPeerAsync(to, second, from, first, 24, NULL).expect("a copy");
    cuda.cuCtxSynchronize().expect("synchronised");
    assert_eq!(cuda.download::<u64>(to, 3), [1, 2, 3]);
    let lone = Cuda::with_context("still = true\n[[gpu]]\nmodel = 'L4'\ncount = 2\n");
    assert_eq!(out(0, |out| lone.cuDeviceCanAccessPeer(out, 0, 1)), Ok(0));
}

#[test]
fn without_a_scenario_there_is_no_driver() {
    let (missing, state) = (scratch("none.toml"), scratch("state"));
    let loaded = std::panic::catch_unwind(|| Cuda::join(&missing, &state, None).cuInit(0));
    assert!(loaded.is_err() || loaded.is_ok_and(|code| code == Err(999)));
}
