//! The functions of the CUDA driver that the canary calls, looked up once and called with their results as
//! plain numbers: a driver newer than the bindings gives codes that their enumeration has no variant for.

use std::ffi::{c_char, c_int, c_uint, c_void};

use cudarc::driver::sys;

type Context = *mut c_void;
type Module = *mut c_void;
type Function = *mut c_void;
type Stream = *mut c_void;
type Event = *mut c_void;
type Address = u64;

/// Loads the driver's library, to stay loaded. Whether there is one.
pub(super) fn present() -> bool {
    // SAFETY: runs the initialisers of the vendor's driver library, which is what this process is for.
    unsafe {
        let found = sys::is_culib_present();
        if found {
            sys::culib();
        }
        found
    }
}

macro_rules! functions {
    ($( $field:ident = $symbol:literal ( $($argument:ty),* ); )+) => {
        /// The driver's functions. Each gives a CUresult.
        #[derive(Clone, Copy)]
        pub(super) struct Functions { $(
            pub $field: unsafe extern "C" fn($($argument),*) -> u32,
        )+ }

        impl Functions {
            /// Looks all of them up; the name of the first that is missing otherwise.
            pub fn load() -> Result<Functions, &'static str> {
                // SAFETY: as in `present`, which found the library before.
                let library = unsafe { sys::culib() };
                Ok(Functions { $(
                    // SAFETY: the type is that of the driver's header for this symbol; the library is never
                    // unloaded.
                    $field: *unsafe {
                        library.get::<unsafe extern "C" fn($($argument),*) -> u32>($symbol.as_bytes())
                    }
                    .map_err(|_| $symbol)?,
                )+ })
            }
        }
    };
}

functions! {
    init = "cuInit"(c_uint);
    driver_version = "cuDriverGetVersion"(*mut c_int);
    device = "cuDeviceGet"(*mut c_int, c_int);
    device_name = "cuDeviceGetName"(*mut c_char, c_int, c_int);
    device_uuid = "cuDeviceGetUuid_v2"(*mut [u8; 16], c_int);
    device_memory = "cuDeviceTotalMem_v2"(*mut usize, c_int);
    device_attribute = "cuDeviceGetAttribute"(*mut c_int, c_uint, c_int);
    device_can_access_peer = "cuDeviceCanAccessPeer"(*mut c_int, c_int, c_int);
    context_flags = "cuDevicePrimaryCtxSetFlags_v2"(c_int, c_uint);
    context_retain = "cuDevicePrimaryCtxRetain"(*mut Context, c_int);
    context_release = "cuDevicePrimaryCtxRelease_v2"(c_int);
    context_current = "cuCtxSetCurrent"(Context);
    context_peer = "cuCtxEnablePeerAccess"(Context, c_uint);
    module_load = "cuModuleLoadData"(*mut Module, *const c_void);
    module_function = "cuModuleGetFunction"(*mut Function, Module, *const c_char);
    module_global = "cuModuleGetGlobal_v2"(*mut Address, *mut usize, Module, *const c_char);
    function_set = "cuFuncSetAttribute"(Function, c_uint, c_int);
    function_get = "cuFuncGetAttribute"(*mut c_int, c_uint, Function);
    memory_info = "cuMemGetInfo_v2"(*mut usize, *mut usize);
    memory_alloc = "cuMemAlloc_v2"(*mut Address, usize);
    memory_set = "cuMemsetD8_v2"(Address, u8, usize);
    host_alloc = "cuMemHostAlloc"(*mut *mut c_void, usize, c_uint);
    host_free = "cuMemFreeHost"(*mut c_void);
    copy_out = "cuMemcpyDtoH_v2"(*mut c_void, Address, usize);
    copy_in_async = "cuMemcpyHtoDAsync_v2"(Address, *const c_void, usize, Stream);
    copy_out_async = "cuMemcpyDtoHAsync_v2"(*mut c_void, Address, usize, Stream);
    copy_peer_async = "cuMemcpyPeerAsync"(Address, Context, Address, Context, usize, Stream);
    stream_create = "cuStreamCreate"(*mut Stream, c_uint);
    stream_destroy = "cuStreamDestroy_v2"(Stream);
    stream_synchronize = "cuStreamSynchronize"(Stream);
    stream_query = "cuStreamQuery"(Stream);
    stream_wait = "cuStreamWaitEvent"(Stream, Event, c_uint);
    event_create = "cuEventCreate"(*mut Event, c_uint);
    event_destroy = "cuEventDestroy_v2"(Event);
    event_record = "cuEventRecord"(Event, Stream);
    event_elapsed = "cuEventElapsedTime"(*mut f32, Event, Event);
    launch = "cuLaunchKernel"(
        Function, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Stream, *mut *mut c_void,
        *mut *mut c_void
    );
}
