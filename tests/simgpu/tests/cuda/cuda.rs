//! A process's view of a simulated node through libcuda. Every one loads a copy of the library of its own,
//! which has its own statics, so that one test program plays several processes.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use canary::code;
use nvml_wrapper::Nvml;
use simgpu::{SCENARIO_ENV, STATE_ENV, State};

pub type Handle = *mut c_void;
pub const NULL: Handle = std::ptr::null_mut();

static ENVIRONMENT: Mutex<()> = Mutex::new(());
static NUMBER: AtomicU32 = AtomicU32::new(0);

pub fn scratch(name: &str) -> PathBuf {
    let n = NUMBER.fetch_add(1, Ordering::SeqCst);
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("simgpu-cuda-{}-{n}-{name}", std::process::id()))
}

/// Declares the functions of the library that the tests call, each a method that answers its code.
macro_rules! functions {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
        /// The library, and the node behind it.
        pub struct Cuda {
            /// The handle of the library, as a number: no memory belongs to it.
            library: usize,
            pub nvml: Nvml,
            pub state: State,
            pub state_file: PathBuf,
            pub scenario: PathBuf,
        }

        #[allow(non_snake_case)]
        impl Cuda {
            $(
                #[allow(clippy::too_many_arguments)]
                pub fn $name(&self, $($arg: $ty),*) -> Result<(), u32> {
                    type Call = unsafe extern "C" fn($($ty),*) -> u32;
                    let name = CString::new(stringify!($name)).expect("a name");
                    // SAFETY: the library is loaded, and the symbol is a function of this type.
                    let code = unsafe {
                        let symbol = libc::dlsym(self.library as Handle, name.as_ptr());
                        assert!(!symbol.is_null(), "{name:?} is not exported");
                        std::mem::transmute::<Handle, Call>(symbol)($($arg),*)
                    };
                    if code == 0 { Ok(()) } else { Err(code) }
                }
            )*
        }
    };
}

functions! {
    fn cuDriverGetVersion(out: *mut c_int);
    fn cuDeviceGetCount(out: *mut c_int);
    fn cuDeviceGet(out: *mut c_int, ordinal: c_int);
    fn cuDeviceGetName(out: *mut c_char, length: c_int, device: c_int);
    fn cuDeviceGetUuid_v2(out: *mut [u8; 16], device: c_int);
    fn cuDeviceGetAttribute(out: *mut c_int, attribute: c_uint, device: c_int);
    fn cuDeviceGetPCIBusId(out: *mut c_char, length: c_int, device: c_int);
    fn cuDeviceTotalMem_v2(out: *mut usize, device: c_int);
    fn cuDeviceCanAccessPeer(out: *mut c_int, from: c_int, to: c_int);
    fn cuDevicePrimaryCtxRetain(out: *mut Handle, device: c_int);
    fn cuDevicePrimaryCtxRelease_v2(device: c_int);
    fn cuCtxCreate_v2(out: *mut Handle, flags: c_uint, device: c_int);
    fn cuCtxDestroy_v2(context: Handle);
    fn cuCtxSetCurrent(context: Handle);
    fn cuCtxSynchronize();
    fn cuCtxEnablePeerAccess(context: Handle, flags: c_uint);
    fn cuModuleLoadData(out: *mut Handle, image: *const c_void);
    fn cuModuleGetFunction(out: *mut Handle, module: Handle, name: *const c_char);
    fn cuModuleGetGlobal_v2(out: *mut u64, bytes: *mut usize, module: Handle, name: *const c_char);
    fn cuFuncSetAttribute(kernel: Handle, attribute: c_uint, value: c_int);
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(out: *mut c_int, kernel: Handle, threads: c_int, shared: usize);
    fn cuLaunchKernel(
        kernel: Handle, x: c_uint, y: c_uint, z: c_uint, threads_x: c_uint, threads_y: c_uint, threads_z: c_uint,
        shared: c_uint, stream: Handle, params: *mut Handle, extra: *mut Handle,
    );
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    fn cuMemAlloc_v2(out: *mut u64, bytes: usize);
    fn cuMemFree_v2(address: u64);
    fn cuMemHostAlloc(out: *mut Handle, bytes: usize, flags: c_uint);
    fn cuMemFreeHost(address: Handle);
    fn cuMemsetD8_v2(to: u64, value: u8, count: usize);
    fn cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: Handle);
    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize);
    fn cuMemcpyDtoH_v2(to: Handle, from: u64, bytes: usize);
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: Handle);
    fn cuMemcpyDtoHAsync_v2(to: Handle, from: u64, bytes: usize, stream: Handle);
    fn cuMemcpyPeerAsync(to: u64, target: Handle, from: u64, source: Handle, bytes: usize, stream: Handle);
    fn cuStreamCreate(out: *mut Handle, flags: c_uint);
    fn cuStreamDestroy_v2(stream: Handle);
    fn cuStreamSynchronize(stream: Handle);
    fn cuStreamQuery(stream: Handle);
    fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint);
    fn cuEventCreate(out: *mut Handle, flags: c_uint);
    fn cuEventRecord(event: Handle, stream: Handle);
    fn cuEventSynchronize(event: Handle);
    fn cuEventElapsedTime(out: *mut f32, from: Handle, to: Handle);
    fn cuGetErrorName(error: c_uint, out: *mut *const c_char);
}

/// What a call writes to its first argument.
pub fn out<T>(zero: T, call: impl FnOnce(*mut T) -> Result<(), u32>) -> Result<T, u32> {
    let mut value = zero;
    call(&mut value).map(|()| value)
}

/// Code of the kernels that every GPU takes.
pub fn ptx() -> *const c_void {
    code::choose((99, 0)).expect("PTX").image.as_ptr().cast()
}

impl Cuda {
    /// A process on the node of a scenario, given as text; CUDA is not initialised.
    pub fn load(scenario: &str) -> Cuda {
        let file = scratch("scenario.toml");
        std::fs::write(&file, scenario).expect("a scenario can be written");
        Cuda::join(&file, &scratch("state"), None)
    }

    /// A process on a node that is there, or that it makes.
    pub fn join(scenario: &Path, state_file: &Path, devices: Option<&str>) -> Cuda {
        let copy = scratch("lib.so");
        std::fs::copy(simgpu::library_path().expect("the library is built"), &copy)
            .expect("it can be copied");
        let _guard = ENVIRONMENT.lock().unwrap_or_else(|e| e.into_inner());
        // SAFETY: only this function touches the environment, under the lock.
        unsafe {
            std::env::set_var(SCENARIO_ENV, scenario);
            std::env::set_var(STATE_ENV, state_file);
            if let Some(list) = devices {
                std::env::set_var("CUDA_VISIBLE_DEVICES", list);
            }
        }
        // As a process that watches itself does; the scenario is read here.
        let nvml = Nvml::builder().lib_path(copy.as_os_str()).init().expect("NVML initialises");
        let path = CString::new(copy.as_os_str().as_encoded_bytes()).expect("a path");
        // SAFETY: a path, and flags that exist.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "the library loads");
        std::fs::remove_file(&copy).expect("the copy can go once it is loaded");
        let state = State::open(state_file).expect("the state opens");
        let (state_file, scenario) = (state_file.to_owned(), scenario.to_owned());
        let cuda = Cuda { library: library as usize, nvml, state, state_file, scenario };
        if devices.is_some() {
            // The list is read now, under the lock.
            let begun = cuda.init(0);
            // SAFETY: as above.
            unsafe { std::env::remove_var("CUDA_VISIBLE_DEVICES") };
            begun.expect("CUDA initialises");
        }
        cuda
    }

    /// Under the lock, because it reads the list of devices, which another test may have set for a process of its own.
    #[allow(non_snake_case)]
    pub fn cuInit(&self, flags: c_uint) -> Result<(), u32> {
        let _guard = ENVIRONMENT.lock().unwrap_or_else(|e| e.into_inner());
        self.init(flags)
    }

    fn init(&self, flags: c_uint) -> Result<(), u32> {
        // SAFETY: the library is loaded, and the symbol is a function of this type.
        let code = unsafe {
            let symbol = libc::dlsym(self.library as Handle, c"cuInit".as_ptr());
            assert!(!symbol.is_null(), "cuInit is not exported");
            std::mem::transmute::<Handle, unsafe extern "C" fn(c_uint) -> u32>(symbol)(flags)
        };
        if code == 0 { Ok(()) } else { Err(code) }
    }

    /// Another process on the same node.
    pub fn other(&self) -> Cuda {
        Cuda::join(&self.scenario, &self.state_file, None)
    }

    /// A process with the first device's context current.
    pub fn with_context(scenario: &str) -> Cuda {
        let cuda = Cuda::load(scenario);
        cuda.cuInit(0).expect("CUDA initialises");
        cuda.context(0);
        cuda
    }

    /// A device's primary context, now current.
    pub fn context(&self, device: c_int) -> Handle {
        let context = out(NULL, |out| self.cuDevicePrimaryCtxRetain(out, device)).expect("a context");
        self.cuCtxSetCurrent(context).expect("it is current");
        context
    }

    pub fn attribute(&self, number: c_uint) -> i32 {
        out(0, |out| self.cuDeviceGetAttribute(out, number, 0)).expect("an attribute")
    }

    pub fn uuid(&self) -> [u8; 16] {
        out([0; 16], |out| self.cuDeviceGetUuid_v2(out, 0)).expect("a UUID")
    }

    pub fn error_name(&self, code: u32) -> String {
        let name = out(std::ptr::null(), |out| self.cuGetErrorName(code, out)).expect("a name");
        // SAFETY: the library answers a literal.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    pub fn allocate(&self, bytes: usize) -> u64 {
        out(0, |out| self.cuMemAlloc_v2(out, bytes)).expect("device memory")
    }

    /// Device memory with these words.
    pub fn upload<T: Copy>(&self, words: &[T]) -> u64 {
        let address = self.allocate(size_of_val(words).max(1));
        self.cuMemcpyHtoD_v2(address, words.as_ptr().cast(), size_of_val(words)).expect("a copy");
        address
    }

    /// What device memory holds.
    pub fn download<T: Copy + Default>(&self, address: u64, count: usize) -> Vec<T> {
        let mut words = vec![T::default(); count];
        let bytes = size_of_val(&words[..]);
        self.cuMemcpyDtoH_v2(words.as_mut_ptr().cast(), address, bytes).expect("a copy");
        words
    }

    /// A kernel, with the module that it is in.
    pub fn kernel(&self, name: &CStr) -> Handle {
        let module = out(NULL, |out| self.cuModuleLoadData(out, ptx())).expect("a module");
        out(NULL, |out| self.cuModuleGetFunction(out, module, name.as_ptr())).expect("a kernel")
    }

    /// The words of the module with the shape of `tensor`.
    pub fn tensor_shape(&self) -> Vec<u32> {
        let module = out(NULL, |out| self.cuModuleLoadData(out, ptx())).expect("a module");
        let mut bytes = 0;
        let name = c"tensor_shape".as_ptr();
        let address = out(0, |out| self.cuModuleGetGlobal_v2(out, &mut bytes, module, name)).expect("words");
        self.download(address, bytes / 4)
    }

    /// Launches a kernel and waits for it.
    pub fn run<T>(
        &self,
        kernel: Handle,
        blocks: u32,
        threads: u32,
        shared: u32,
        args: &T,
    ) -> Result<(), u32> {
        self.start(kernel, blocks, threads, shared, args, NULL)?;
        self.cuCtxSynchronize()
    }

    /// Launches a kernel in a stream.
    pub fn start<T>(
        &self,
        kernel: Handle,
        blocks: u32,
        threads: u32,
        shared: u32,
        args: &T,
        stream: Handle,
    ) -> Result<(), u32> {
        if shared > 48 << 10 {
            self.cuFuncSetAttribute(kernel, 8, shared as c_int)?;
        }
        let mut params = [std::ptr::from_ref(args).cast_mut().cast::<c_void>()];
        self.cuLaunchKernel(
            kernel,
            blocks,
            1,
            1,
            threads,
            1,
            1,
            shared,
            stream,
            params.as_mut_ptr(),
            std::ptr::null_mut(),
        )
    }

    pub fn stream(&self) -> Handle {
        out(NULL, |out| self.cuStreamCreate(out, 1)).expect("a stream")
    }

    /// Milliseconds of simulated time that the work takes which is given to the streams meanwhile.
    pub fn timed(&self, work: impl FnOnce()) -> f64 {
        let event = || out(NULL, |out| self.cuEventCreate(out, 0)).expect("an event");
        let (from, to) = (event(), event());
        self.cuCtxSynchronize().expect("synchronised");
        self.cuEventRecord(from, NULL).expect("recorded");
        work();
        self.cuCtxSynchronize().expect("synchronised");
        self.cuEventRecord(to, NULL).expect("recorded");
        self.cuEventSynchronize(to).expect("synchronised");
        f64::from(out(0.0, |out| self.cuEventElapsedTime(out, from, to)).expect("a time"))
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // Processes of the same node may still want the file.
        if self.state.calls_of("nvmlInit_v2") <= 1 {
            let _ = std::fs::remove_file(&self.state_file);
        }
    }
}
