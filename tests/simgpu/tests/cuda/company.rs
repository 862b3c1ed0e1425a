//! Processes on a GPU: those with a context, as NVML lists them, those that a step brings, and compute modes.

use nvml_wrapper::enum_wrappers::device::Clock;
use nvml_wrapper::enums::device::UsedGpuMemory;

use crate::cuda::{Cuda, NULL, out};
use crate::kernels::{H200, median, sm_rate};
use canary::abi::LaunchArgs;

fn listed(cuda: &Cuda) -> Vec<(u32, u64)> {
    let gpu = cuda.nvml.device_by_index(0).expect("a device");
    let list = gpu.running_compute_processes().expect("processes");
    let memory = |m| match m {
        UsedGpuMemory::Used(bytes) => bytes >> 20,
        UsedGpuMemory::Unavailable => 0,
    };
    list.into_iter().map(|p| (p.pid, memory(p.used_gpu_memory))).collect()
}

#[test]
fn a_process_is_listed_while_it_has_a_context() {
    let cuda = Cuda::load(H200);
    let gpu = cuda.nvml.device_by_index(0).expect("a device");
    cuda.cuInit(0).expect("initialised");
    assert_eq!(listed(&cuda), []);
    let used = gpu.memory_info().expect("memory").used;
    cuda.context(0);
    let pid = std::process::id();
    assert_eq!(listed(&cuda), [(pid, 527)]);
    cuda.allocate(100 << 20);
    cuda.allocate(8);
    assert_eq!(listed(&cuda), [(pid, 527 + 102)]);
    let now = gpu.memory_info().expect("memory").used;
    assert_eq!((now - used) >> 20, 527 + 102);
    assert_eq!(gpu.clock_info(Clock::SM).expect("a clock"), 1980, "its clock is up");
    // Every process of the node sees it.
    assert_eq!(listed(&cuda.other()).len(), 1);
    cuda.cuDevicePrimaryCtxRelease_v2(0).expect("released");
    assert_eq!((listed(&cuda), gpu.clock_info(Clock::SM).expect("a clock")), (vec![], 345));
    assert_eq!(gpu.memory_info().expect("memory").used, used);
}

#[test]
fn kernels_make_the_gpu_busy() {
    let cuda = Cuda::with_context(H200);
    let gpu = cuda.nvml.device_by_index(0).expect("a device");
    assert_eq!(gpu.utilization_rates().expect("rates").gpu, 0);
    let kernel = cuda.kernel(c"launch");
    // Each takes 2 us of the GPU's time, some 20 ms together: on a loaded machine they may spread until their share of the
    // sampling period is below 1 %.
    let is_busy = || {
        for _ in 0..10_000 {
            cuda.run(kernel, 132, 32, 0, &LaunchArgs::default()).expect("it runs");
        }
        (1..100).contains(&gpu.utilization_rates().expect("rates").gpu)
    };
    assert!((0..20).any(|_| is_busy()), "kernels leave the GPU idle, or fully busy");
}

#[test]
fn a_job_is_listed_and_takes_turns_with_the_kernels() {
    let cuda = Cuda::with_context(&format!(
        "{H200}[[step]]\ngate = 'come'\ngpu = 0\njob = {{ pid = 4242, memory = '20GiB' }}\n"
    ));
    let (mut alone, mut beside) = (None, None);
    let alone_ms = cuda.timed(|| alone = Some(sm_rate(&cuda, 200)));
    cuda.state.open_gate("come").expect("a gate");
    assert!(listed(&cuda).contains(&(4242, 20 << 10)));
    let gpu = cuda.nvml.device_by_index(0).expect("a device");
    assert_eq!(gpu.utilization_rates().expect("rates").gpu, 100);
    let beside_ms = cuda.timed(|| beside = Some(sm_rate(&cuda, 200)));
    let (alone, beside) = (alone.expect("a rate"), beside.expect("a rate"));
    assert!((median(beside.work_per_cycle()) / median(alone.work_per_cycle()) - 1.0).abs() < 1e-3);
    // By its own clock the kernel is as fast as ever; for who waits it takes three times as long.
    let kernel_ms = (alone.stamps[0].end_ns - alone.stamps[0].begin_ns) as f64 / 1e6;
    let longer = (beside_ms - alone_ms) / kernel_ms;
    assert!((1.9..2.1).contains(&longer), "{alone_ms} and {beside_ms}");
    cuda.state.close_gate("come").expect("a gate");
    assert_eq!(listed(&cuda).len(), 1);
}

#[test]
fn compute_modes_keep_others_out() {
    let mode = |n: u32| format!("{H200}[gpu.set]\nnvmlDeviceGetComputeMode = {n}\n");
    let retain = |cuda: &Cuda| {
        cuda.cuInit(0)?;
        out(NULL, |out| cuda.cuDevicePrimaryCtxRetain(out, 0)).map(|_| ())
    };
    assert_eq!(retain(&Cuda::load(&mode(0))), Ok(()));
    assert_eq!(retain(&Cuda::load(&mode(2))), Err(46), "prohibited");
    assert_eq!(retain(&Cuda::load(&mode(3))), Ok(()), "exclusive, and no other process is there");
    let job = "[[step]]\ngpu = 0\njob = { pid = 4242, memory = '1GiB' }\n";
    assert_eq!(retain(&Cuda::load(&format!("{}{job}", mode(3)))), Err(46));
    assert_eq!(retain(&Cuda::load(&format!("{}{job}", mode(0)))), Ok(()));
}
