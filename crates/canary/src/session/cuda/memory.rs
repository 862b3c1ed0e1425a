//! Device memory, host memory, and copies between them.
//!
//! Copies may write pinned host memory at any time. It is therefore only accessed word by word through [`Pinned`],
//! never through a reference.

#![allow(unsafe_code)]

use std::marker::PhantomData;

use super::{CudaContext, CudaDriver, CudaResult, CudaStream, written};
use crate::abi::Plain;

#[derive(Debug)]
pub(crate) struct DeviceMemory {
    pub address: u64,
    pub bytes: u64,
}

/// Part of device memory, as elements of one type.
#[derive(Debug)]
pub(crate) struct DeviceSlice<T> {
    pub address: u64,
    pub count: usize,
    of: PhantomData<T>,
}

impl<T> Clone for DeviceSlice<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DeviceSlice<T> {}

impl<T: Plain> DeviceSlice<T> {
    /// Returns the part of `memory` at `offset` bytes from its start, or `None` if it exceeds the memory.
    pub fn within(memory: &DeviceMemory, offset: u64, count: usize) -> Option<DeviceSlice<T>> {
        let bytes = u64::try_from(count.checked_mul(size_of::<T>())?).ok()?;
        let end = offset.checked_add(bytes)?;
        (end <= memory.bytes).then_some(DeviceSlice {
            address: memory.address + offset,
            count,
            of: PhantomData,
        })
    }

    /// Returns the first `count` bytes of the slice, or all of it if it is shorter.
    pub fn as_bytes(self, count: usize) -> DeviceSlice<u8> {
        DeviceSlice { address: self.address, count: count.min(self.bytes() as usize), of: PhantomData }
    }

    /// Returns the length in bytes.
    pub fn bytes(self) -> u64 {
        (self.count * size_of::<T>()) as u64
    }
}

/// Host memory that the GPU reads and writes directly.
#[derive(Debug)]
pub(crate) struct Pinned {
    start: *mut u64,
    words: usize,
}

impl Pinned {
    /// Returns the length in 8-byte words.
    pub fn words(&self) -> usize {
        self.words
    }

    /// Writes a word. A write beyond the end has no effect.
    pub fn set(&self, index: usize, word: u64) {
        if index < self.words {
            // SAFETY: within the allocation, which lives as long as `self`; volatile, because a device may
            // access it too.
            unsafe { self.start.add(index).write_volatile(word) }
        }
    }

    /// Reads a word. A read beyond the end returns 0.
    pub fn get(&self, index: usize) -> u64 {
        match index < self.words {
            // SAFETY: as in `set`.
            true => unsafe { self.start.add(index).read_volatile() },
            false => 0,
        }
    }
}

/// Pinned memory, starting at one of its words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PinnedPart<'a>(pub &'a Pinned, pub usize);

impl PinnedPart<'_> {
    /// Returns the start and `bytes`, limited to the remaining memory.
    fn range(self, bytes: u64) -> (*mut u64, usize) {
        let first = self.1.min(self.0.words);
        let bytes = (bytes as usize).min((self.0.words - first) * 8);
        // SAFETY: within the allocation, or one past its end.
        (unsafe { self.0.start.add(first) }, bytes)
    }
}

impl CudaDriver {
    /// Returns the free device memory in bytes.
    pub fn free_memory(&self) -> CudaResult<u64> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two sizes.
        unsafe { self.cuMemGetInfo_v2(&mut free, &mut total) }?;
        Ok(free as u64)
    }

    pub fn alloc(&self, bytes: u64) -> CudaResult<DeviceMemory> {
        // SAFETY: writes one address.
        let address = written(|address| unsafe { self.cuMemAlloc_v2(address, bytes as usize) })?;
        Ok(DeviceMemory { address, bytes })
    }

    /// Sets all bytes to 0.
    pub fn zero<T: Plain>(&self, slice: DeviceSlice<T>) -> CudaResult<()> {
        // SAFETY: a slice lies within allocated memory.
        unsafe { self.cuMemsetD8_v2(slice.address, 0, slice.bytes() as usize) }
    }

    /// Allocates host memory that the GPU can access directly.
    pub fn pin(&self, bytes: u64) -> CudaResult<Pinned> {
        let words = (bytes / 8) as usize;
        // SAFETY: writes one pointer.
        let start = written(|start| unsafe { self.cuMemHostAlloc(start, words * 8, 0) })?;
        Ok(Pinned { start: start.cast(), words })
    }

    pub fn unpin(&self, pinned: Pinned) -> CudaResult<()> {
        // SAFETY: taken by value, so it is freed once.
        unsafe { self.cuMemFreeHost(pinned.start.cast()) }
    }

    /// Copies from the device and waits for the copy.
    pub fn copy_out<T: Plain>(&self, from: DeviceSlice<T>) -> CudaResult<Vec<T>> {
        let mut to = vec![T::default(); from.count];
        // SAFETY: both have that size, and every bit pattern is a value of the type.
        unsafe { self.cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), from.address, from.bytes() as usize) }?;
        Ok(to)
    }

    /// Copies one element from the device, like [`CudaDriver::copy_out`].
    pub fn copy_one<T: Plain>(&self, from: DeviceSlice<T>) -> CudaResult<T> {
        Ok(self.copy_out(from)?.first().copied().unwrap_or_default())
    }

    /// Queues a copy of the first words of pinned memory to the device.
    pub fn queue_in<T: Plain>(
        &self,
        to: DeviceSlice<T>,
        from: PinnedPart<'_>,
        stream: &CudaStream,
    ) -> CudaResult<()> {
        let (start, bytes) = from.range(to.bytes());
        // SAFETY: both have at least that size; only `unpin` frees pinned memory, and it waits for the copy.
        unsafe { self.cuMemcpyHtoDAsync_v2(to.address, start.cast_const().cast(), bytes, stream.0) }
    }

    /// Queues a copy from the device to the first words of pinned memory.
    pub fn queue_out<T: Plain>(
        &self,
        to: PinnedPart<'_>,
        from: DeviceSlice<T>,
        stream: &CudaStream,
    ) -> CudaResult<()> {
        let (start, bytes) = to.range(from.bytes());
        // SAFETY: as in `queue_in`.
        unsafe { self.cuMemcpyDtoHAsync_v2(start.cast(), from.address, bytes, stream.0) }
    }

    /// Queues a copy between two devices.
    pub fn queue_peer(
        &self,
        (to, to_context): (DeviceSlice<u64>, CudaContext),
        (from, from_context): (DeviceSlice<u64>, CudaContext),
        stream: &CudaStream,
    ) -> CudaResult<()> {
        let bytes = to.bytes().min(from.bytes()) as usize;
        // SAFETY: both have at least that size, in the given contexts.
        unsafe {
            self.cuMemcpyPeerAsync(to.address, to_context.0, from.address, from_context.0, bytes, stream.0)
        }
    }
}
