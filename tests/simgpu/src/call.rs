//! The frame of every exported call: what it costs, and how its answer reaches the caller's memory.

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::functions::Function;
use crate::os;
use crate::sim;
use crate::value::{Answer, Code, code};

/// Runs a call and adds it to the account.
pub(crate) fn run(function: Function, body: impl FnOnce() -> Answer<()>) -> Code {
    let before = os::thread_cpu_ns();
    let known = sim::loaded();
    if let Some(sim) = known {
        sim.state.begin(function);
        sim.log();
    }
    let code = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => code::SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => code::ERROR_UNKNOWN,
    };
    if let Some(sim) = sim::loaded() {
        // The first call of all is the one that loads the scenario.
        if known.is_none() {
            sim.state.begin(function);
            sim.log();
        }
        sim.state.end(os::thread_cpu_ns() - before);
    }
    code
}

/// Declares exported functions. A body returns `Answer<()>`.
macro_rules! nvml {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> $crate::value::Code {
            $crate::call::run($crate::functions::Function::$name, || -> $crate::value::Answer<()> {
                // SAFETY: the caller keeps NVML's contract: pointers are null or valid, and lengths
                // and counts are those of the buffers behind them.
                unsafe { $body }
            })
        }
    )*};
}

/// Declares getters of a number of a device, with or without an argument.
macro_rules! numbers {
    ($ty:ty: $($name:ident)*) => { nvml! {$(
        fn $name(device: sys::nvmlDevice_t, out: *mut $ty) {
            let device = Device::called(device, Key::new(Function::$name, &[]))?;
            call::put(out, device.value(Function::$name, &[])?.u64(0)? as $ty)
        }
    )*}};
    ($ty:ty, kind: $($name:ident)*) => { nvml! {$(
        fn $name(device: sys::nvmlDevice_t, kind: std::ffi::c_uint, out: *mut $ty) {
            let device = Device::called(device, Key::new(Function::$name, &[kind]))?;
            call::put(out, device.value(Function::$name, &[kind])?.u64(0)? as $ty)
        }
    )*}};
}

/// Declares getters of two numbers of a device.
macro_rules! pairs {
    ($ty:ty: $($name:ident)*) => { nvml! {$(
        fn $name(device: sys::nvmlDevice_t, first: *mut $ty, second: *mut $ty) {
            let device = Device::called(device, Key::new(Function::$name, &[]))?;
            let value = device.value(Function::$name, &[])?;
            call::put(first, value.u64(0)? as $ty)?;
            call::put(second, value.u64(1)? as $ty)
        }
    )*}};
}

/// Declares getters of a string of a device.
macro_rules! texts {
    ($($name:ident)*) => { nvml! {$(
        fn $name(device: sys::nvmlDevice_t, out: *mut std::ffi::c_char, length: std::ffi::c_uint) {
            let device = Device::called(device, Key::new(Function::$name, &[]))?;
            call::put_text(out, length, device.value(Function::$name, &[])?.text()?)
        }
    )*}};
}

pub(crate) use {numbers, nvml, pairs, texts};

/// Writes a value to the caller.
///
/// # Safety
/// `out` is null or valid for writes.
pub(crate) unsafe fn put<T>(out: *mut T, value: T) -> Answer<()> {
    if out.is_null() {
        return Err(code::ERROR_INVALID_ARGUMENT);
    }
    // SAFETY: not null, so valid.
    unsafe { out.write(value) };
    Ok(())
}

/// The struct that the caller handed in.
///
/// # Safety
/// `at` is null or valid for reads and writes, by this call alone.
pub(crate) unsafe fn inout<'a, T>(at: *mut T) -> Answer<&'a mut T> {
    // SAFETY: as above.
    unsafe { at.as_mut() }.ok_or(code::ERROR_INVALID_ARGUMENT)
}

/// Writes a string and its end to the caller.
///
/// # Safety
/// `out` is null or valid for `length` bytes.
pub(crate) unsafe fn put_text(out: *mut c_char, length: u32, text: &str) -> Answer<()> {
    if out.is_null() {
        return Err(code::ERROR_INVALID_ARGUMENT);
    }
    if text.len() >= length as usize {
        return Err(code::ERROR_INSUFFICIENT_SIZE);
    }
    // SAFETY: the text and its end fit into the buffer.
    unsafe {
        out.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
        out.add(text.len()).write(0);
    }
    Ok(())
}

/// Writes a list to the caller in NVML's way: `count` is the room on the way in and the length on
/// the way out.
///
/// # Safety
/// `count` is null or valid; `out` is null or valid for `*count` entries.
pub(crate) unsafe fn put_list<T: Copy>(count: *mut u32, out: *mut T, list: &[T]) -> Answer<()> {
    // SAFETY: as above.
    let count = unsafe { inout(count) }?;
    let room = std::mem::replace(count, list.len() as u32);
    if (room as usize) < list.len() {
        return Err(code::ERROR_INSUFFICIENT_SIZE);
    }
    if list.is_empty() {
        return Ok(());
    }
    if out.is_null() {
        return Err(code::ERROR_INVALID_ARGUMENT);
    }
    // SAFETY: there is room for the list.
    unsafe { out.copy_from_nonoverlapping(list.as_ptr(), list.len()) };
    Ok(())
}

/// Reads a string of the caller.
///
/// # Safety
/// `text` is null or a C string.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Answer<&'a str> {
    if text.is_null() {
        return Err(code::ERROR_INVALID_ARGUMENT);
    }
    // SAFETY: not null, so a C string.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| code::ERROR_INVALID_ARGUMENT)
}

/// Copies a string into a fixed array of a struct, cut to fit.
pub(crate) fn chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0; N];
    for (slot, byte) in out.iter_mut().zip(text.bytes().take(N - 1)) {
        *slot = byte as c_char;
    }
    out
}

/// The version word of a versioned struct.
pub(crate) const fn version<T>(number: u32) -> u32 {
    size_of::<T>() as u32 | number << 24
}

/// Refuses a struct of another version than the call knows.
pub(crate) fn expect_version<T>(given: u32, number: u32) -> Answer<()> {
    if given == version::<T>(number) { Ok(()) } else { Err(code::ERROR_ARGUMENT_VERSION_MISMATCH) }
}

/// Declares exported functions of libcuda, which pass the gauntlet before their body runs. `on` names the
/// argument that says which device the call is about; without, it is about the current one.
macro_rules! cuda {
    ($($(on $ordinal:ident)? fn $name:ident($($arg:ident: $ty:ty),* $(,)?) |$driver:ident| $body:block)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> $crate::value::Code {
            let function = $crate::functions::Function::$name;
            #[allow(unused_mut, unused_assignments)]
            let mut ordinal: Option<std::ffi::c_int> = None;
            $(ordinal = Some($ordinal);)?
            $crate::call::run(function, || $crate::cuda::enter(function, ordinal, |$driver| -> $crate::value::Answer<()> {
                // SAFETY: the caller keeps libcuda's contract: pointers are null or valid, and lengths are
                // those of the buffers behind them.
                unsafe { $body }
            }))
        }
    )*};
}

pub(crate) use cuda;
