//! The driver's errors, as steps bring them: by name or number, for a time or so often, and those that end a
//! context.

use std::thread;
use std::time::{Duration, Instant};

use simgpu::Scenario;

use crate::cuda::{Cuda, NULL, out, ptx};
use crate::kernels::H200;
use canary::abi::LaunchArgs;
use canary::code;

fn node(step: &str) -> Cuda {
    Cuda::load(&format!("{H200}[[step]]\n{step}\n"))
}

#[test]
fn an_error_comes_by_name_or_number_and_so_often() {
    let cuda = node("function = 'cuInit'\nerror = 'CUDA_ERROR_UNKNOWN'\ntimes = 2");
    assert_eq!([cuda.cuInit(0), cuda.cuInit(0), cuda.cuInit(0)], [Err(999), Err(999), Ok(())]);
    assert!(cuda.cuDeviceGetCount(&mut 0).is_ok(), "no context, so nothing has died");
    let cuda = node("gpu = 0\nfunction = 'cuDevicePrimaryCtxRetain'\nerror = 802");
    cuda.cuInit(0).expect("initialised");
    assert_eq!(out(NULL, |out| cuda.cuDevicePrimaryCtxRetain(out, 0)), Err(802));
    assert_eq!(cuda.error_name(802), "CUDA_ERROR_SYSTEM_NOT_READY");
}

#[test]
fn a_dead_context_is_dead_for_every_call() {
    let text = "after_calls = { function = 'cuLaunchKernel', count = 3 }\nfunction = 'cuLaunchKernel'\n\
                error = 'CUDA_ERROR_LAUNCH_FAILED'\ntimes = 1";
    let cuda = node(text);
    cuda.cuInit(0).expect("initialised");
    cuda.context(0);
    let kernel = cuda.kernel(c"launch");
    let launch = || cuda.run(kernel, 1, 32, 0, &LaunchArgs::default());
    assert_eq!([launch(), launch(), launch(), launch()], [Ok(()), Ok(()), Err(719), Err(719)]);
    assert_eq!(out(0, |out| cuda.cuMemAlloc_v2(out, 8)), Err(719));
    assert_eq!(cuda.cuDevicePrimaryCtxRelease_v2(0), Err(719));
    // Another process is as well as ever.
    let other = cuda.other();
    other.cuInit(0).expect("initialised");
    other.context(0);
    assert_eq!(other.cuCtxSynchronize(), Ok(()));
}

#[test]
fn an_error_that_is_no_end_is_none() {
    let cuda = node("function = 'cuMemAlloc_v2'\nerror = 2\ntimes = 1");
    cuda.cuInit(0).expect("initialised");
    cuda.context(0);
    assert_eq!(out(0, |out| cuda.cuMemAlloc_v2(out, 8)), Err(2));
    assert!(out(0, |out| cuda.cuMemAlloc_v2(out, 8)).is_ok());
}

#[test]
fn a_kernel_that_is_given_a_wrong_address_ends_its_context() {
    let cuda = Cuda::with_context(H200);
    let args = canary::abi::FillArgs { data: 0x1000, words: 1, ..Default::default() };
    assert_eq!(cuda.run(cuda.kernel(c"fill"), 1, 32, 0, &args), Err(700));
    assert_eq!(cuda.cuCtxSynchronize(), Err(700));
}

#[test]
fn code_for_another_gpu_is_refused() {
    let cuda = Cuda::with_context(H200);
    let load = |image: &std::ffi::CStr| out(NULL, |out| cuda.cuModuleLoadData(out, image.as_ptr().cast()));
    assert_eq!(load(c".version 8.6\n.target sm_100\n"), Err(209));
    assert_eq!(load(c"what is this"), Err(200));
    let module = out(NULL, |out| cuda.cuModuleLoadData(out, ptx())).expect("a module");
    assert_eq!(out(NULL, |out| cuda.cuModuleGetFunction(out, module, c"no_such_kernel".as_ptr())), Err(500));
    assert_eq!(out(NULL, |out| cuda.cuModuleGetFunction(out, NULL, c"launch".as_ptr())), Err(400));
}

#[test]
fn code_of_another_build_is_refused() {
    let cuda = Cuda::with_context(H200);
    let load = |image: &[u8]| out(NULL, |out| cuda.cuModuleLoadData(out, image.as_ptr().cast()));
    let cubin = code::choose((9, 0)).expect("machine code").image;
    let ptx = code::choose((99, 0)).expect("PTX").image;
    assert!(load(cubin).is_ok() && load(ptx).is_ok());
    // Behind the last header of an ELF file, and in front of the zero byte of a text.
    for (code, at) in [(cubin, 64), (cubin, cubin.len() - 1), (ptx, ptx.len() - 2)] {
        let mut other = code.to_vec();
        other[at] ^= 1;
        assert_eq!(load(&other), Err(200), "byte {at}");
    }
    assert_eq!(load(b".version 8.2\n.target sm_75\n\0"), Err(200));
}

#[test]
fn a_call_hangs_until_it_is_released_and_others_may_be_slow() {
    let text = "gate = 'hang'\nuntil_gate = 'release'\nfunction = 'cuCtxSynchronize'\nhang = true\n\
                [[step]]\nfunction = 'cuMemAlloc_v2'\nslow = '30ms'";
    let cuda = node(text);
    cuda.cuInit(0).expect("initialised");
    let context = cuda.context(0);
    let begun = Instant::now();
    cuda.allocate(8);
    assert!(begun.elapsed() >= Duration::from_millis(30));
    cuda.state.open_gate("hang").expect("a gate");
    let address = context as usize;
    thread::scope(|scope| {
        let shared = &cuda;
        let stuck = scope.spawn(move || {
            shared.cuCtxSetCurrent(address as *mut _).expect("current");
            shared.cuCtxSynchronize()
        });
        let deadline = Instant::now() + Duration::from_secs(20);
        while cuda.state.calls_held() == 0 {
            assert!(Instant::now() < deadline, "the hang did not come");
            thread::yield_now();
        }
        assert!(cuda.nvml.device_count().is_ok(), "NVML answers");
        assert!(!stuck.is_finished());
        cuda.state.open_gate("release").expect("a gate");
        assert_eq!(stuck.join().expect("no panic"), Ok(()));
    });
    assert_eq!(cuda.state.calls_of("cuCtxSynchronize"), 1);
}

#[test]
fn a_lost_gpu_and_a_driver_that_is_gone_have_no_devices() {
    for step in ["gpu = 0\nlost = true", "gate = 'now'\ndriver_gone = true"] {
        let cuda = node(step);
        if step.contains("gate") {
            cuda.state.open_gate("now").expect("a gate");
        }
        assert_eq!(cuda.cuInit(0), Err(100), "{step}");
    }
    let cuda = Cuda::with_context(&format!("{H200}[[step]]\ngate = 'lost'\ngpu = 0\nlost = true\n"));
    cuda.state.open_gate("lost").expect("a gate");
    assert_eq!(cuda.cuCtxSynchronize(), Err(999));
}

#[test]
fn mistakes_in_steps_are_named() {
    let refused = |step: &str| {
        let text = format!("{H200}[[step]]\n{step}\n");
        Scenario::parse(&text).expect_err("refused").to_string()
    };
    assert!(refused("error = 'CUDA_ERROR_OOPS'").contains("no return code of libcuda"));
    assert!(refused("function = 'cuInit'\nerror = 'NVML_ERROR_UNKNOWN'").contains("other codes"));
    assert!(refused("function = 'nvmlInit_v2'\nerror = 'CUDA_ERROR_UNKNOWN'").contains("other codes"));
    assert!(refused("sm_clock = 0.5").contains("needs its gpu"));
    assert!(refused("gpu = 0\nsm_clock = 50").contains("a part such as 0.97"));
    assert!(refused("gpu = 0\ntold = true\npcie_rate = 0.5").contains("told goes with sm_clock"));
    assert!(refused("gpu = 0\nlost = true\ntimes = 2").contains("times goes with error"));
    assert!(refused("gpu = 0\nwrong = { sm = 1, unit = 'fp32', lane = 0, bit = 40 }").contains("0 to 31"));
    assert!(refused("gpu = 0\nwrong = { sm = 1, unit = 'fp16', lane = 0, bit = 0 }").contains("fp16"));
    assert!(refused("gpu = 0\npcie = { generation = 9, width = 8 }").contains("1 to 6"));
    assert!(refused("gpu = 0\nmemory_wrong = { offset = 3, bit = 1 }").contains("64-bit word"));
    assert!(refused("gpu = 0\njob = { pid = 1, memory = 'much' }").contains("no size"));
}

#[test]
fn the_committed_machine_code_is_taken_where_it_belongs() {
    let models = [("H200", (9, 0)), ("A100", (8, 0)), ("L4", (8, 9))];
    for (model, capability) in models {
        let cuda = Cuda::with_context(&format!("still = true\n[[gpu]]\nmodel = '{model}'\n"));
        for (_, other) in models {
            let code = code::choose(other).expect("machine code");
            let loaded = out(NULL, |out| cuda.cuModuleLoadData(out, code.image.as_ptr().cast()));
            let fits = other.0 == capability.0 && other.1 <= capability.1;
            assert_eq!(loaded.is_ok(), fits, "{} on {model}", code.name);
        }
        // For a GPU of which nothing is known yet.
        let ptx = code::choose((99, 0)).expect("PTX");
        let loaded = out(NULL, |out| cuda.cuModuleLoadData(out, ptx.image.as_ptr().cast()));
        assert!(loaded.is_ok(), "{} on {model}", ptx.name);
    }
}
