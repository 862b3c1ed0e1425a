//! Memory: of devices, which is private memory of the process, and of the host.

use std::collections::BTreeMap;
use std::ffi::{c_uchar, c_uint, c_void};

use memmap2::MmapRaw;

use super::device::{Handle, put};
use super::driver::{Driver, current};
use super::engine::Unit;
use super::rates;
use super::result::cu;
use crate::call::cuda;
use crate::hardware::{Direction, Hardware};
use crate::value::Answer;

/// What the driver gives out at least.
const GRAIN: u64 = 2 << 20;

/// Memory that a context holds on its device.
struct Allocation {
    bytes: u64,
    context: Handle,
    _map: MmapRaw,
}

/// Memory of the host that copy engines reach by themselves.
struct Pinned {
    bytes: u64,
    /// Nothing if the caller brought it.
    _map: Option<MmapRaw>,
}

/// All memory that the driver knows, by address.
#[derive(Default)]
pub struct Memory {
    allocations: BTreeMap<u64, Allocation>,
    pinned: BTreeMap<u64, Pinned>,
    /// Words of modules: how many bytes, and in which context.
    words: BTreeMap<u64, (u64, Handle)>,
}

impl Memory {
    /// What a context holds, as the driver counts it: small ones share a grain.
    pub fn held(&self, context: Handle) -> u64 {
        let own = self.allocations.values().filter(|a| a.context == context);
        let (small, large): (Vec<u64>, Vec<u64>) = own.map(|a| a.bytes).partition(|bytes| *bytes < GRAIN / 2);
        let grains = |bytes: u64| bytes.div_ceil(GRAIN) * GRAIN;
        grains(small.iter().sum()) + large.into_iter().map(grains).sum::<u64>()
    }

    /// The allocation that holds all of a range: its context, and how far into it the range begins.
    pub fn find(&self, address: u64, bytes: u64) -> Option<(Handle, u64)> {
        let allocated =
            self.allocations.range(..=address).next_back().map(|(at, a)| (at, a.bytes, a.context));
        let words =
            self.words.range(..=address).next_back().map(|(at, (bytes, context))| (at, *bytes, *context));
        let holds = |(base, length, context): (&u64, u64, Handle)| {
            let offset = address - base;
            (offset.checked_add(bytes)? <= length).then_some((context, offset))
        };
        allocated.and_then(holds).or_else(|| words.and_then(holds))
    }

    fn is_pinned(&self, address: u64, bytes: u64) -> bool {
        let below = self.pinned.range(..=address).next_back();
        below.is_some_and(|(base, pinned)| address - base + bytes <= pinned.bytes)
    }

    /// Knows of words of a module, which are no allocation of anybody.
    pub fn know(&mut self, context: Handle, address: u64, bytes: u64) {
        self.words.insert(address, (bytes, context));
    }

    /// Frees what a context holds.
    pub fn forget(&mut self, context: Handle) {
        self.allocations.retain(|_, a| a.context != context);
        self.words.retain(|_, (_, owner)| *owner != context);
    }

    /// Lets stuck bits of a context's memory be what they are.
    fn stick(&self, context: Handle, offset: u64, bit: u32, zero: bool) {
        for (base, allocation) in &self.allocations {
            if allocation.context == context && offset + 8 <= allocation.bytes {
                let word = (base + offset) as *mut u64;
                // SAFETY: within the allocation, and aligned as it is; only calls touch it, one at a time.
                unsafe {
                    let value = word.read();
                    word.write(if zero { value & !(1 << bit) } else { value | 1 << bit });
                }
            }
        }
    }
}

fn map(bytes: u64) -> Answer<MmapRaw> {
    let bytes = usize::try_from(bytes).map_err(|_| cu::OUT_OF_MEMORY)?;
    memmap2::MmapOptions::new()
        .len(bytes)
        .no_reserve_swap()
        .map_anon()
        .map(Into::into)
        .map_err(|_| cu::OUT_OF_MEMORY)
}

impl Driver {
    /// What stuck bits of a context's memory do after something may have written to it.
    pub fn stick(&self, context: Handle) -> Answer<()> {
        let device = self.device(self.contexts.get(context)?.device)?;
        for hardware in device.hardware() {
            if let Hardware::Memory(stuck) = hardware {
                self.memory.stick(context, stuck.offset, stuck.bit, stuck.zero);
            }
        }
        Ok(())
    }

    /// A range of device memory; the context that holds it.
    fn range(&self, address: u64, bytes: usize) -> Answer<Handle> {
        self.memory.find(address, bytes as u64).map(|(context, _)| context).ok_or(cu::INVALID_VALUE)
    }

    /// Copies bytes, and lets steps change them on the way.
    unsafe fn move_bytes(&self, to: u64, from: u64, bytes: usize, way: Option<Direction>) -> Answer<()> {
        // SAFETY: one side was found to be device memory, the other is the caller's or device memory too.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
        let (_, device) = self.here()?;
        for hardware in device.hardware() {
            if let Hardware::Copy(bad) = hardware
                && Some(bad.direction) == way
                && bad.offset + u64::from(bad.bit / 8) < bytes as u64
            {
                let byte = (to + bad.offset + u64::from(bad.bit / 8)) as *mut u8;
                // SAFETY: within the range just written.
                unsafe { byte.write(byte.read() ^ 1 << (bad.bit % 8)) };
            }
        }
        Ok(())
    }

    /// A copy between host and device in a stream.
    unsafe fn copy(
        &mut self,
        to: u64,
        from: u64,
        bytes: usize,
        way: Direction,
        stream: Handle,
    ) -> Answer<u64> {
        let (host, device) = if way == Direction::ToGpu { (from, to) } else { (to, from) };
        let context = self.range(device, bytes)?;
        if host == 0 && bytes > 0 {
            return Err(cu::INVALID_VALUE);
        }
        let pinned = self.memory.is_pinned(host, bytes as u64);
        let noise = self.next_work();
        let ns = rates::copy(&self.here()?.1, way, bytes as u64, pinned, noise);
        let unit = if way == Direction::ToGpu { Unit::ToGpu } else { Unit::ToHost };
        let (_, end) = self.work(stream, unit, ns)?;
        // SAFETY: the range is the device's, and the caller's side is valid.
        unsafe { self.move_bytes(to, from, bytes, Some(way)) }?;
        self.stick(context)?;
        Ok(end)
    }

    /// A copy within a device or between two.
    unsafe fn inner_copy(&mut self, to: u64, from: u64, bytes: usize, stream: Handle) -> Answer<u64> {
        let (target, source) = (self.range(to, bytes)?, self.range(from, bytes)?);
        let side = |driver: &Driver, context| driver.device(driver.contexts.get(context)?.device);
        let (target_device, source_device) = (side(self, target)?, side(self, source)?);
        let noise = self.next_work();
        let ns = if target_device.index == source_device.index {
            rates::inner_copy(&target_device, bytes as u64, noise)
        } else {
            rates::peer_copy(&source_device, &target_device, bytes as u64, noise)
        };
        let (_, end) = self.work(stream, Unit::Sms(1), ns)?;
        // SAFETY: both ranges are devices'.
        unsafe { self.move_bytes(to, from, bytes, None) }?;
        self.stick(target)?;
        Ok(end)
    }

    /// Writes a value over and over.
    unsafe fn fill<T: Copy>(&mut self, to: u64, value: T, count: usize, stream: Handle) -> Answer<u64> {
        let bytes = count.checked_mul(size_of::<T>()).ok_or(cu::INVALID_VALUE)?;
        let context = self.range(to, bytes)?;
        if !to.is_multiple_of(size_of::<T>() as u64) {
            return Err(cu::INVALID_VALUE);
        }
        let noise = self.next_work();
        let ns = rates::inner_copy(&self.here()?.1, bytes as u64 / 2, noise);
        let (_, end) = self.work(stream, Unit::Sms(1), ns)?;
        // SAFETY: the range is the device's, aligned for the type.
        unsafe { std::slice::from_raw_parts_mut(to as *mut T, count) }.fill(value);
        self.stick(context)?;
        Ok(end)
    }
}

/// What a call without a stream does: it uses the one that has no handle, and waits.
fn waited(driver: &mut Driver, end: Answer<u64>) -> Answer<()> {
    driver.wait_until(end?);
    Ok(())
}

const NULL: Handle = std::ptr::null_mut();

fn allocate_host(driver: &mut Driver, out: *mut Handle, bytes: usize) -> Answer<()> {
    driver.here()?;
    if bytes == 0 {
        return Err(cu::INVALID_VALUE);
    }
    let map = map(bytes as u64)?;
    let address = map.as_mut_ptr();
    driver.memory.pinned.insert(address as u64, Pinned { bytes: bytes as u64, _map: Some(map) });
    put(out, address.cast::<c_void>())
}

cuda! {
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |driver| {
        let (_, device) = driver.here()?;
        let info = device.memory(crate::functions::Function::nvmlDeviceGetMemoryInfo_v2);
        let info = info.map_err(|_| cu::UNKNOWN)?;
        let member = |i| info.u64(i).map_err(|_| cu::UNKNOWN);
        put(free, driver.free_bytes(&device) as usize)?;
        put(total, (member(0)? - member(1)?) as usize)
    }

    fn cuMemAlloc_v2(out: *mut u64, bytes: usize) |driver| {
        let (context, device) = driver.here()?;
        let bytes = bytes as u64;
        if bytes == 0 {
            return Err(cu::INVALID_VALUE);
        }
        if bytes > driver.free_bytes(&device) {
            return Err(cu::OUT_OF_MEMORY);
        }
        let map = map(bytes)?;
        let address = map.as_mut_ptr() as u64;
        driver.memory.allocations.insert(address, Allocation { bytes, context, _map: map });
        driver.tell_memory(context)?;
        driver.stick(context)?;
        put(out, address)
    }

    fn cuMemFree_v2(address: u64) |driver| {
        driver.here()?;
        let freed = driver.memory.allocations.remove(&address).ok_or(cu::INVALID_VALUE)?;
        // It waits until nothing uses the memory.
        let end = driver.contexts.get(freed.context)?.end;
        driver.wait_until(end);
        driver.tell_memory(freed.context)
    }

    fn cuMemAllocHost_v2(out: *mut Handle, bytes: usize) |driver| {
        allocate_host(driver, out, bytes)
    }

    fn cuMemHostAlloc(out: *mut Handle, bytes: usize, _flags: c_uint) |driver| {
        allocate_host(driver, out, bytes)
    }

    fn cuMemFreeHost(address: Handle) |driver| {
        driver.memory.pinned.remove(&(address as u64)).map(|_| ()).ok_or(cu::INVALID_VALUE)
    }

    fn cuMemHostRegister_v2(address: Handle, bytes: usize, _flags: c_uint) |driver| {
        driver.here()?;
        if address.is_null() || bytes == 0 {
            return Err(cu::INVALID_VALUE);
        }
        if driver.memory.is_pinned(address as u64, 1) {
            return Err(cu::HOST_MEMORY_ALREADY_REGISTERED);
        }
        driver.memory.pinned.insert(address as u64, Pinned { bytes: bytes as u64, _map: None });
        Ok(())
    }

    fn cuMemHostUnregister(address: Handle) |driver| {
        driver.memory.pinned.remove(&(address as u64)).map(|_| ()).ok_or(cu::HOST_MEMORY_NOT_REGISTERED)
    }

    fn cuMemsetD8_v2(to: u64, value: c_uchar, count: usize) |driver| {
        let end = driver.fill(to, value, count, NULL);
        waited(driver, end)
    }

    fn cuMemsetD8Async(to: u64, value: c_uchar, count: usize, stream: Handle) |driver| {
        driver.fill(to, value, count, stream).map(|_| ())
    }

    fn cuMemsetD32_v2(to: u64, value: c_uint, count: usize) |driver| {
        let end = driver.fill(to, value, count, NULL);
        waited(driver, end)
    }

    fn cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: Handle) |driver| {
        driver.fill(to, value, count, stream).map(|_| ())
    }

    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) |driver| {
        let end = driver.copy(to, from as u64, bytes, Direction::ToGpu, NULL);
        waited(driver, end)
    }

    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: Handle) |driver| {
        driver.copy(to, from as u64, bytes, Direction::ToGpu, stream).map(|_| ())
    }

    fn cuMemcpyDtoH_v2(to: Handle, from: u64, bytes: usize) |driver| {
        let end = driver.copy(to as u64, from, bytes, Direction::ToHost, NULL);
        waited(driver, end)
    }

    fn cuMemcpyDtoHAsync_v2(to: Handle, from: u64, bytes: usize, stream: Handle) |driver| {
        driver.copy(to as u64, from, bytes, Direction::ToHost, stream).map(|_| ())
    }

    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) |driver| {
        let end = driver.inner_copy(to, from, bytes, NULL);
        waited(driver, end)
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) |driver| {
        driver.inner_copy(to, from, bytes, stream).map(|_| ())
    }

    fn cuMemcpyPeer(to: u64, target: Handle, from: u64, source: Handle, bytes: usize) |driver| {
        driver.contexts.get(target)?;
        driver.contexts.get(source)?;
        let end = driver.inner_copy(to, from, bytes, NULL);
        waited(driver, end)
    }

    fn cuMemcpyPeerAsync(
        to: u64, target: Handle, from: u64, source: Handle, bytes: usize, stream: Handle,
    ) |driver| {
        driver.contexts.get(target)?;
        driver.contexts.get(source)?;
        current()?;
        driver.inner_copy(to, from, bytes, stream).map(|_| ())
    }
}
