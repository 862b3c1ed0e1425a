//! The canary's interface to the CUDA driver. Every call is recorded in the in-flight table, and errors name the call
//! that returned them. All `unsafe` code of the canary's driver interface is here, in `cuda/memory` and in `functions`.
//!
//! Handles are valid from the call that returns them to the call that releases them. The releasing call consumes the
//! handle.

#![allow(unsafe_code)]

mod functions;
mod memory;

pub use functions::present;

use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_int, c_uint, c_void};
use std::ptr;
use std::time::Duration;

use cudarc::driver::sys::CUdevice_attribute_enum as Attribute;
use cudarc::driver::sys::CUfunction_attribute_enum as FunctionAttribute;

pub(crate) use memory::{DeviceMemory, DeviceSlice, Pinned, PinnedPart};

use super::errors::{CudaError, skip};
use crate::abi::Plain;
use functions::Functions;
use host::inflight::SlotWriter;

/// Time after which a call looks hung. The slowest call, the first initialisation, takes several seconds.
const ALLOWED: Duration = Duration::from_secs(10);

pub(crate) type CudaResult<T> = Result<T, CudaError>;

/// The driver, for use by one thread.
pub(crate) struct CudaDriver {
    f: Functions,
    slot: SlotWriter,
    /// The fault after which no further call is made.
    dead: Cell<Option<CudaError>>,
    /// Devices whose contexts were created and not released.
    held: RefCell<Vec<DeviceId>>,
}

/// A device by its ordinal among the devices that this process can access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceId(c_int);

#[derive(Clone, Copy, Debug)]
pub(crate) struct CudaContext(*mut c_void);

#[derive(Debug)]
pub(crate) struct CudaModule(*mut c_void);

/// A kernel of a module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CudaFunction(*mut c_void);

/// A queue of work.
#[derive(Debug)]
pub(crate) struct CudaStream(*mut c_void);

/// A position in a queue of work, with the time at which it was reached.
#[derive(Debug)]
pub(crate) struct CudaEvent(*mut c_void);

/// Number of threads that run a kernel, and the size of their dynamic shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub blocks: u32,
    /// Number of threads in a block.
    pub threads: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared: u32,
}

/// Returns the value that a call writes.
fn written<T: Default>(call: impl FnOnce(&mut T) -> CudaResult<()>) -> CudaResult<T> {
    let mut value = T::default();
    call(&mut value)?;
    Ok(value)
}

/// Converts an int, with 0 for a negative value.
fn unsigned(value: c_int) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

impl CudaDriver {
    /// Loads the driver's functions. Returns the name of the first missing function as an error. The library must be
    /// present.
    pub fn load(slot: SlotWriter) -> Result<CudaDriver, &'static str> {
        slot.enter("dlsym", ALLOWED);
        let f = Functions::load();
        slot.exit();
        Ok(CudaDriver { f: f?, slot, dead: Cell::new(None), held: RefCell::default() })
    }

    /// Runs work that may hang like a driver call, and records it in the in-flight table.
    pub fn noting<T>(&self, what: &str, f: impl FnOnce() -> T) -> T {
        self.slot.enter(what, ALLOWED);
        let done = f();
        self.slot.exit();
        done
    }

    fn call(&self, call: &'static str, f: impl FnOnce() -> u32) -> CudaResult<()> {
        if let Some(error) = self.dead.get() {
            return Err(error);
        }
        self.slot.enter(call, ALLOWED);
        let code = f();
        self.slot.exit();
        if code == 0 {
            return Ok(());
        }
        let error = CudaError { code, call };
        // A failed initialisation may be repeated. Any later fault is final.
        if skip(code).is_none() && call != "cuInit" {
            self.dead.set(Some(error));
        }
        Err(error)
    }

    pub fn init(&self) -> CudaResult<()> {
        // SAFETY: no pointers.
        unsafe { self.cuInit(0) }
    }

    /// Returns the CUDA version of the driver, such as 13000 for CUDA 13.0.
    pub fn driver_version(&self) -> CudaResult<u32> {
        // SAFETY: writes one int.
        written(|version| unsafe { self.cuDriverGetVersion(version) }).map(unsigned)
    }

    /// Returns a device by its ordinal.
    pub fn device(&self, ordinal: i32) -> CudaResult<DeviceId> {
        // SAFETY: writes one int.
        written(|device| unsafe { self.cuDeviceGet(device, ordinal) }).map(DeviceId)
    }

    pub fn device_name(&self, device: DeviceId) -> CudaResult<String> {
        let mut text = [0u8; 128];
        // SAFETY: writes at most the length given.
        unsafe { self.cuDeviceGetName(text.as_mut_ptr().cast(), text.len() as c_int, device.0) }?;
        Ok(String::from_utf8_lossy(text.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned())
    }

    /// Returns the UUID of a device; for a MIG device, its own UUID.
    pub fn device_uuid(&self, device: DeviceId) -> CudaResult<[u8; 16]> {
        // SAFETY: writes 16 bytes.
        written(|uuid| unsafe { self.cuDeviceGetUuid_v2(uuid, device.0) })
    }

    /// Returns the memory of a device in bytes.
    pub fn device_memory(&self, device: DeviceId) -> CudaResult<u64> {
        // SAFETY: writes one size.
        written(|bytes| unsafe { self.cuDeviceTotalMem_v2(bytes, device.0) }).map(|bytes| bytes as u64)
    }

    /// Returns an attribute of a device, or 0 if it is negative.
    pub fn attribute(&self, device: DeviceId, attribute: Attribute) -> CudaResult<u32> {
        // SAFETY: writes one int.
        written(|value| unsafe { self.cuDeviceGetAttribute(value, attribute as c_uint, device.0) })
            .map(unsigned)
    }

    /// Returns true if a device can access the memory of another.
    pub fn can_access(&self, device: DeviceId, peer: DeviceId) -> CudaResult<bool> {
        // SAFETY: writes one int.
        written(|can| unsafe { self.cuDeviceCanAccessPeer(can, device.0, peer.0) }).map(|can| can != 0)
    }

    /// Retains the device's primary context and makes it current. Waiting for work in this context sleeps.
    pub fn retain(&self, device: DeviceId) -> CudaResult<CudaContext> {
        const BLOCKING_SYNC: c_uint = 4;
        // SAFETY: no pointers.
        unsafe { self.cuDevicePrimaryCtxSetFlags_v2(device.0, BLOCKING_SYNC) }?;
        // SAFETY: writes one pointer.
        let context = written(|context| unsafe { self.cuDevicePrimaryCtxRetain(context, device.0) })?;
        self.held.borrow_mut().push(device);
        self.make_current(CudaContext(context))?;
        Ok(CudaContext(context))
    }

    /// Makes a context the current one of this thread.
    pub fn make_current(&self, context: CudaContext) -> CudaResult<()> {
        // SAFETY: the context is retained until the device is released.
        unsafe { self.cuCtxSetCurrent(context.0) }
    }

    /// Enables access from the current context to the memory of another.
    pub fn enable_peer(&self, peer: CudaContext) -> CudaResult<()> {
        // SAFETY: as in `make_current`.
        unsafe { self.cuCtxEnablePeerAccess(peer.0, 0) }
    }

    /// Returns the devices whose contexts must still be released.
    pub fn held(&self) -> Vec<DeviceId> {
        self.held.borrow().clone()
    }

    /// Destroys the device's primary context and everything that was created in it.
    pub fn release(&self, device: DeviceId) -> CudaResult<()> {
        self.held.borrow_mut().retain(|held| *held != device);
        // SAFETY: no context.
        unsafe { self.cuCtxSetCurrent(ptr::null_mut()) }?;
        // SAFETY: no pointers; handles of the context are no longer used, or the driver rejects them.
        unsafe { self.cuDevicePrimaryCtxRelease_v2(device.0) }
    }

    /// Loads machine code or PTX into the current context.
    pub fn load_module(&self, image: &[u8]) -> CudaResult<CudaModule> {
        // PTX is text that ends with a zero byte; an additional byte does not affect machine code.
        let image = [image, &[0]].concat();
        // SAFETY: the image outlives the call, which copies it; writes one pointer.
        written(|module| unsafe { self.cuModuleLoadData(module, image.as_ptr().cast()) }).map(CudaModule)
    }

    /// Returns a kernel by its name.
    pub fn function(&self, module: &CudaModule, name: &str) -> CudaResult<CudaFunction> {
        const CALL: &str = "cuModuleGetFunction";
        let name = CString::new(name).map_err(|_| CudaError { code: 500, call: CALL })?;
        // SAFETY: a loaded module; writes one pointer.
        written(|function| unsafe { self.cuModuleGetFunction(function, module.0, name.as_ptr()) })
            .map(CudaFunction)
    }

    /// Reads a global of a module by its name.
    pub fn global<T: Plain>(&self, module: &CudaModule, name: &str) -> CudaResult<T> {
        const CALL: &str = "cuModuleGetGlobal_v2";
        let name = CString::new(name).map_err(|_| CudaError { code: 500, call: CALL })?;
        let (mut address, mut bytes) = (0, 0);
        // SAFETY: a loaded module; writes an address and a size.
        unsafe { self.cuModuleGetGlobal_v2(&mut address, &mut bytes, module.0, name.as_ptr()) }?;
        let memory = DeviceMemory { address, bytes: bytes as u64 };
        let slice = DeviceSlice::within(&memory, 0, 1).ok_or(CudaError { code: 500, call: CALL })?;
        self.copy_one(slice)
    }

    /// Returns the static shared memory of a kernel's block, in bytes.
    pub fn static_shared(&self, function: CudaFunction) -> CudaResult<u32> {
        let attribute = FunctionAttribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES as c_uint;
        // SAFETY: a kernel of a loaded module; writes one int.
        written(|value| unsafe { self.cuFuncGetAttribute(value, attribute, function.0) }).map(unsigned)
    }

    /// Sets the maximum dynamic shared memory of a kernel's blocks, in bytes.
    pub fn allow_shared(&self, function: CudaFunction, bytes: u32) -> CudaResult<()> {
        let attribute = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as c_uint;
        let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        // SAFETY: a kernel of a loaded module.
        unsafe { self.cuFuncSetAttribute(function.0, attribute, bytes) }
    }

    /// Queues a kernel. Its arguments are one structure. All addresses in it must refer to memory that lives until the
    /// stream has been waited for.
    pub fn launch<A: Copy>(
        &self,
        function: CudaFunction,
        grid: Grid,
        stream: &CudaStream,
        args: &A,
    ) -> CudaResult<()> {
        let mut args = *args;
        let mut parameters = [(&raw mut args).cast::<c_void>()];
        // SAFETY: the driver reads the one parameter, of the kernel's own type, before it returns.
        unsafe {
            self.cuLaunchKernel(
                function.0,
                grid.blocks,
                1,
                1,
                grid.threads,
                1,
                1,
                grid.shared,
                stream.0,
                parameters.as_mut_ptr(),
                ptr::null_mut(),
            )
        }
    }

    /// Creates a queue. It is independent of all other queues except the default one, which runs copies and fills
    /// without a queue. These two wait for each other.
    pub fn stream(&self) -> CudaResult<CudaStream> {
        // SAFETY: writes one pointer.
        written(|stream| unsafe { self.cuStreamCreate(stream, 0) }).map(CudaStream)
    }

    pub fn destroy_stream(&self, stream: CudaStream) -> CudaResult<()> {
        // SAFETY: taken by value, so it is destroyed once.
        unsafe { self.cuStreamDestroy_v2(stream.0) }
    }

    /// Sleeps until all queued work is done.
    pub fn wait(&self, stream: &CudaStream) -> CudaResult<()> {
        // SAFETY: a stream that was not destroyed.
        unsafe { self.cuStreamSynchronize(stream.0) }
    }

    /// Returns true if all queued work is done.
    pub fn idle(&self, stream: &CudaStream) -> CudaResult<bool> {
        const NOT_READY: u32 = 600;
        // SAFETY: a stream that was not destroyed.
        match unsafe { self.cuStreamQuery(stream.0) } {
            Ok(()) => Ok(true),
            Err(error) if error.code == NOT_READY => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes a queue wait for an event of another queue.
    pub fn wait_for(&self, stream: &CudaStream, event: &CudaEvent) -> CudaResult<()> {
        // SAFETY: neither was destroyed.
        unsafe { self.cuStreamWaitEvent(stream.0, event.0, 0) }
    }

    /// Creates an event that records its time.
    pub fn event(&self) -> CudaResult<CudaEvent> {
        // SAFETY: writes one pointer.
        written(|event| unsafe { self.cuEventCreate(event, 0) }).map(CudaEvent)
    }

    pub fn destroy_event(&self, event: CudaEvent) -> CudaResult<()> {
        // SAFETY: taken by value, so it is destroyed once.
        unsafe { self.cuEventDestroy_v2(event.0) }
    }

    /// Adds an event to the end of a queue.
    pub fn record(&self, event: &CudaEvent, stream: &CudaStream) -> CudaResult<()> {
        // SAFETY: neither was destroyed.
        unsafe { self.cuEventRecord(event.0, stream.0) }
    }

    /// Returns the seconds between two events that were reached.
    pub fn elapsed(&self, begin: &CudaEvent, end: &CudaEvent) -> CudaResult<f64> {
        // SAFETY: neither was destroyed; writes one float.
        let milliseconds = written(|ms: &mut f32| unsafe { self.cuEventElapsedTime(ms, begin.0, end.0) })?;
        Ok(f64::from(milliseconds) / 1e3)
    }
}
