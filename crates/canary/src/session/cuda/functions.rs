//! Functions of the CUDA driver that the canary calls, resolved once. Their results are plain numbers, because a driver
//! newer than the bindings returns codes that the bindings' enumeration lacks.

#![allow(unsafe_code, non_snake_case)]

use std::ffi::{c_char, c_int, c_uint, c_void};

use cudarc::driver::sys;

use super::{CudaDriver, CudaResult};

type Handle = *mut c_void;
type Address = u64;

/// Loads the driver's library and keeps it loaded. Returns false if there is none.
pub fn present() -> bool {
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
    ($( fn $name:ident($($argument:ident: $type:ty),*); )+) => {
        /// Function pointers of the driver. All functions return a CUresult.
        #[derive(Clone, Copy)]
        pub(crate) struct Functions { $( $name: unsafe extern "C" fn($($type),*) -> u32, )+ }

        impl Functions {
            /// Resolves all functions. Returns the name of the first missing function as an error.
            pub fn load() -> Result<Functions, &'static str> {
                // SAFETY: as in `present`, which loaded the library before.
                let library = unsafe { sys::culib() };
                Ok(Functions { $(
                    // SAFETY: the type is that of the driver's header for this symbol; the library is never
                    // unloaded.
                    $name: *unsafe {
                        library.get::<unsafe extern "C" fn($($type),*) -> u32>(stringify!($name).as_bytes())
                    }
                    .map_err(|_| stringify!($name))?,
                )+ })
            }
        }

        /// Calls of the functions, recorded in the in-flight table. Pointers must be valid as the driver's header
        /// requires.
        impl CudaDriver { $(
            #[allow(clippy::too_many_arguments, reason = "the driver's own")]
            pub(super) unsafe fn $name(&self, $($argument: $type),*) -> CudaResult<()> {
                // SAFETY: the caller's.
                self.call(stringify!($name), || unsafe { (self.f.$name)($($argument),*) })
            }
        )+ }
    };
}

functions! {
    fn cuInit(a: c_uint);
    fn cuDriverGetVersion(a: *mut c_int);
    fn cuDeviceGet(a: *mut c_int, b: c_int);
    fn cuDeviceGetName(a: *mut c_char, b: c_int, c: c_int);
    fn cuDeviceGetUuid_v2(a: *mut [u8; 16], b: c_int);
    fn cuDeviceTotalMem_v2(a: *mut usize, b: c_int);
    fn cuDeviceGetAttribute(a: *mut c_int, b: c_uint, c: c_int);
    fn cuDeviceCanAccessPeer(a: *mut c_int, b: c_int, c: c_int);
    fn cuDevicePrimaryCtxSetFlags_v2(a: c_int, b: c_uint);
    fn cuDevicePrimaryCtxRetain(a: *mut Handle, b: c_int);
    fn cuDevicePrimaryCtxRelease_v2(a: c_int);
    fn cuCtxSetCurrent(a: Handle);
    fn cuCtxEnablePeerAccess(a: Handle, b: c_uint);
    fn cuModuleLoadData(a: *mut Handle, b: *const c_void);
    fn cuModuleGetFunction(a: *mut Handle, b: Handle, c: *const c_char);
    fn cuModuleGetGlobal_v2(a: *mut Address, b: *mut usize, c: Handle, d: *const c_char);
    fn cuFuncSetAttribute(a: Handle, b: c_uint, c: c_int);
    fn cuFuncGetAttribute(a: *mut c_int, b: c_uint, c: Handle);
    fn cuMemGetInfo_v2(a: *mut usize, b: *mut usize);
    fn cuMemAlloc_v2(a: *mut Address, b: usize);
    fn cuMemsetD8_v2(a: Address, b: u8, c: usize);
    fn cuMemHostAlloc(a: *mut *mut c_void, b: usize, c: c_uint);
    fn cuMemFreeHost(a: *mut c_void);
    fn cuMemcpyDtoH_v2(a: *mut c_void, b: Address, c: usize);
    fn cuMemcpyHtoDAsync_v2(a: Address, b: *const c_void, c: usize, d: Handle);
    fn cuMemcpyDtoHAsync_v2(a: *mut c_void, b: Address, c: usize, d: Handle);
    fn cuMemcpyPeerAsync(a: Address, b: Handle, c: Address, d: Handle, e: usize, g: Handle);
    fn cuStreamCreate(a: *mut Handle, b: c_uint);
    fn cuStreamDestroy_v2(a: Handle);
    fn cuStreamSynchronize(a: Handle);
    fn cuStreamQuery(a: Handle);
    fn cuStreamWaitEvent(a: Handle, b: Handle, c: c_uint);
    fn cuEventCreate(a: *mut Handle, b: c_uint);
    fn cuEventDestroy_v2(a: Handle);
    fn cuEventRecord(a: Handle, b: Handle);
    fn cuEventElapsedTime(a: *mut f32, b: Handle, c: Handle);
    fn cuLaunchKernel(
        a: Handle, b: c_uint, c: c_uint, d: c_uint, e: c_uint, g: c_uint,
        h: c_uint, i: c_uint, j: Handle, k: *mut *mut c_void, l: *mut *mut c_void
    );
}
