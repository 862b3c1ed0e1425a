//! A GPU that is ready for checks, with its context, kernels and memory, and the operations that checks use. Every
//! operation first tests if the run may continue, and measures and accumulates the time in which the GPU works.

pub mod cuda;
pub mod device;
pub mod errors;
pub mod library;
pub mod numa;
pub mod poll;
pub mod tally;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use crate::abi::{BadWords, CheckArgs, FillArgs, Pattern, Plain, SmStamp, TensorShape, WALK_THREADS};
use crate::device::{CudaDevice, RunRequest};
use crate::stats;
use cuda::{
    CudaContext, CudaDriver, CudaEvent, CudaFunction, CudaResult, CudaStream, DeviceId, DeviceMemory,
    DeviceSlice, Grid,
};
use device::DeviceLimits;
use errors::{CudaError, Ended, Try};
use model::catalog::CanarySkip;
use model::clock::Mono;
use poll::Poll;
use tally::WrongResults;

/// Minimum device memory for meaningful checks, in bytes.
const LEAST_MEMORY: u64 = 8 << 20;
/// Alignment of slices in the arena, so that no two share a cache line.
const ALIGNMENT: u64 = 512;
/// Maximum time that [`Session::awake`] polls without sleep. A wake-up delay would dominate the time of short work.
const AWAKE: Duration = Duration::from_millis(2);

/// All device memory of a run in one allocation. Every check divides it again, with data from the start and results
/// from the end.
#[derive(Debug)]
pub(crate) struct Arena {
    memory: DeviceMemory,
    free: Range<u64>,
}

impl Arena {
    /// Allocates the wanted size, or less if the device has less free memory.
    pub fn new(cuda: &CudaDriver, device: &CudaDevice, request: &RunRequest) -> Try<Arena> {
        let mut bytes = wanted(request.memory_bytes, device.l2_bytes, cuda.free_memory()?);
        while bytes >= LEAST_MEMORY {
            match cuda.alloc(bytes) {
                Ok(memory) => return Ok(Arena { memory, free: 0..bytes }),
                Err(CudaError { code: 2, .. }) => bytes /= 2,
                Err(error) => return Err(error.into()),
            }
        }
        let text = format!("less than {} MiB of device memory is available", LEAST_MEMORY >> 20);
        Err(Ended::Unable(CanarySkip::NoMemory, text))
    }

    /// Frees all slices for the next check.
    pub fn clear(&mut self) {
        self.free = 0..self.memory.bytes;
    }

    /// Returns the number of bytes left.
    pub fn left(&self) -> u64 {
        self.free.end - self.free.start
    }

    pub fn data<T: Plain>(&mut self, count: usize) -> Try<DeviceSlice<T>> {
        let bytes = self.room::<T>(count)?;
        let begin = self.free.start;
        self.free.start = (begin + bytes).next_multiple_of(ALIGNMENT).min(self.free.end);
        self.slice(begin, count)
    }

    pub fn results<T: Plain>(&mut self, count: usize) -> Try<DeviceSlice<T>> {
        let bytes = self.room::<T>(count)?;
        self.free.end = (self.free.end - bytes) / ALIGNMENT * ALIGNMENT;
        let begin = self.free.end;
        self.free.start = self.free.start.min(begin);
        self.slice(begin, count)
    }

    /// Returns the size of `count` elements in bytes. Returns an error if they do not fit.
    fn room<T: Plain>(&self, count: usize) -> Try<u64> {
        let bytes = (count * size_of::<T>()) as u64;
        match bytes + ALIGNMENT <= self.left() || (bytes <= self.left() && bytes.is_multiple_of(ALIGNMENT)) {
            true => Ok(bytes),
            false => Err(self.too_small()),
        }
    }

    fn slice<T: Plain>(&self, begin: u64, count: usize) -> Try<DeviceSlice<T>> {
        DeviceSlice::within(&self.memory, begin, count).ok_or_else(|| self.too_small())
    }

    fn too_small(&self) -> Ended {
        let text = format!("{} MiB of device memory is not enough", self.memory.bytes >> 20);
        Ended::Unable(CanarySkip::NoMemory, text)
    }
}

/// Returns the amount of memory to use. This is the allowed amount, or up to twice as much if eight times the L2 cache
/// requires it, and at most half of the free memory. An L2 cache does not evict strictly by age. On an H200, about 5 %
/// of repeatedly read data stays in the cache with 256 MiB (4.3 times the cache), 2 % with 512 MiB, and none with 1
/// GiB.
fn wanted(allowed: u64, l2: u64, free: u64) -> u64 {
    allowed.max((8 * l2).min(2 * allowed)).min(free / 2) & !0xffff
}

/// Time that work took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spent {
    /// Time by the GPU's clock, in seconds.
    pub gpu: f64,
    /// The same time including known periods in which other processes used the GPU, in seconds.
    pub wall: f64,
    /// End of the newest launch that recorded stamps, in nanoseconds of the GPU's clock.
    last_end_ns: Option<u64>,
}

pub(crate) type KernelsByName = BTreeMap<&'static str, CudaFunction>;

/// A GPU that is ready for checks.
pub(crate) struct Session<'a> {
    pub cuda: &'a CudaDriver,
    pub poll: Poll<'a>,
    pub request: &'a RunRequest,
    pub device: CudaDevice,
    pub limits: DeviceLimits,
    pub id: DeviceId,
    pub context: CudaContext,
    pub kernels: KernelsByName,
    /// Shape of `tensor`, which differs between architectures.
    pub tensor_shape: TensorShape,
    pub arena: Arena,
    /// Queue of all checks that do not need several queues.
    pub stream: CudaStream,
    pub events: (CudaEvent, CudaEvent),
    /// Time spent by this check.
    pub spent: Spent,
    /// GPU time of the whole run, in seconds.
    pub gpu_seconds: f64,
    /// True while the clock may still be rising from idle.
    pub rising: bool,
}

impl Session<'_> {
    /// Returns the number of multiprocessors, at least 1.
    pub fn multiprocessors(&self) -> u32 {
        self.device.multiprocessors.max(1)
    }

    /// Returns a kernel by its name.
    pub fn kernel(&self, name: &str) -> Try<CudaFunction> {
        let missing = || Ended::Unable(CanarySkip::NoKernels, format!("the kernel {name} was not loaded"));
        self.kernels.get(name).copied().ok_or_else(missing)
    }

    /// Adds to the time spent.
    pub fn spend(&mut self, gpu: f64, wall: f64) {
        self.spent.gpu += gpu;
        self.spent.wall += wall;
        self.gpu_seconds += gpu;
    }

    /// Marks the GPU as busy while it runs `work`. Returns an error without work if the run must end.
    fn working<T>(&self, work: impl FnOnce(&CudaDriver, &CudaStream) -> CudaResult<T>) -> Try<T> {
        self.poll.go_on()?;
        self.poll.watch.working(true);
        let done = work(self.cuda, &self.stream);
        self.poll.watch.working(false);
        Ok(done?)
    }

    /// Runs work between the two events and waits for it. Returns the time between the events.
    pub fn timed(&mut self, work: impl FnOnce(&CudaDriver, &CudaStream) -> CudaResult<()>) -> Try<f64> {
        let (begin, end) = (&self.events.0, &self.events.1);
        let seconds = self.working(|cuda, stream| {
            cuda.record(begin, stream)?;
            work(cuda, stream)?;
            cuda.record(end, stream)?;
            cuda.wait(stream)?;
            cuda.elapsed(begin, end)
        })?;
        self.spend(seconds, seconds);
        Ok(seconds)
    }

    /// Runs a kernel and waits for it. Returns its time in seconds.
    pub fn run<A: Copy>(&mut self, kernel: CudaFunction, grid: Grid, args: &A) -> Try<f64> {
        self.timed(|cuda, stream| cuda.launch(kernel, grid, stream, args))
    }

    /// Queues work and waits for it: polls without sleep up to [`AWAKE`], then sleeps. Returns the host's seconds.
    pub fn awake(&mut self, work: impl FnOnce(&CudaDriver, &CudaStream) -> CudaResult<()>) -> Try<f64> {
        let took = self.working(|cuda, stream| {
            let began = Mono::now();
            work(cuda, stream)?;
            while !cuda.idle(stream)? {
                if Mono::now().since(began) > AWAKE {
                    cuda.wait(stream)?;
                    break;
                }
            }
            Ok(Mono::now().since(began).as_secs_f64())
        })?;
        self.spend(took, took);
        Ok(took)
    }

    /// Runs a kernel whose blocks record where and when they ran, and waits for it. The GPU time comes from these
    /// stamps. Time that other processes used on the GPU is only part of the wall time.
    pub fn stamped<A: Copy>(
        &mut self,
        kernel: CudaFunction,
        grid: Grid,
        args: &A,
        stamps: DeviceSlice<SmStamp>,
    ) -> Try<Vec<SmStamp>> {
        let wall = self.working(|cuda, stream| {
            cuda.zero(stamps)?;
            cuda.launch(kernel, grid, stream, args)?;
            let handed_over = Mono::now();
            cuda.wait(stream)?;
            Ok(Mono::now().since(handed_over).as_secs_f64())
        })?;
        let mut read = self.cuda.copy_out(stamps)?;
        read.retain(|stamp| stamp.threads > 0);
        let span = stats::span(&read);
        // The wall time is the smaller of two figures: the host's wait, and the time by the GPU's clock since the
        // previous launch. Another process on the GPU lengthens both. A late host lengthens only the first, and a host
        // that was busy between the launches only the second.
        let passed = stats::since(self.spent.last_end_ns, &read).unwrap_or(span);
        self.spent.last_end_ns = stats::last_end(&read);
        self.spend(span, wall.min(passed).max(span));
        Ok(read)
    }

    pub fn fill(&mut self, data: DeviceSlice<u64>, pattern: Pattern, (a, b): (u64, u64)) -> Try<f64> {
        let (data, words) = (data.address, data.count as u64);
        let args = FillArgs { data, words, a, b, pattern: pattern as u32, reserved: 0 };
        self.run(self.kernel("fill")?, self.walk_grid(), &args)
    }

    /// Reads a pattern back. Returns the wrong words.
    pub fn check(
        &mut self,
        (data, bad): (DeviceSlice<u64>, DeviceSlice<BadWords>),
        pattern: Pattern,
        start: (u64, u64),
        unit: &str,
    ) -> Try<WrongResults> {
        self.cuda.zero(bad)?;
        self.run(self.kernel("check")?, self.walk_grid(), &check_args(data, bad, pattern, start))?;
        Ok(WrongResults::of_words(&self.cuda.copy_one(bad)?, unit))
    }

    /// Returns the grid for `fill` and `check`.
    pub fn walk_grid(&self) -> Grid {
        Grid { blocks: 4 * self.multiprocessors(), threads: WALK_THREADS, shared: 0 }
    }

    /// Returns a grid of one block per multiprocessor. A block uses more than half of the multiprocessor's shared
    /// memory, of which at least `least` bytes are dynamic.
    pub fn one_each(&self, kernel: CudaFunction, threads: u32, least: u32) -> Try<Grid> {
        let fixed = self.cuda.static_shared(kernel)?;
        let DeviceLimits { shared_of_multiprocessor, shared_of_block, .. } = self.limits;
        let shared = stats::whole_multiprocessor(shared_of_multiprocessor, shared_of_block, fixed).max(least);
        self.cuda.allow_shared(kernel, shared)?;
        Ok(Grid { blocks: self.multiprocessors(), threads, shared })
    }
}

pub fn check_args(
    data: DeviceSlice<u64>,
    bad: DeviceSlice<BadWords>,
    pattern: Pattern,
    (a, b): (u64, u64),
) -> CheckArgs {
    let (data, words) = (data.address, data.count as u64);
    CheckArgs { data, words, a, b, bad: bad.address, pattern: pattern as u32, reserved: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn memory_is_doubled_only_where_the_cache_needs_it() {
        let free = 140_000 * MIB;
        assert_eq!(wanted(256 * MIB, 4 * MIB, free), 256 * MIB, "T4");
        assert_eq!(wanted(256 * MIB, 60 * MIB, free), 480 * MIB, "H200");
        assert_eq!(wanted(256 * MIB, 126 * MIB, free), 512 * MIB, "B200");
        assert_eq!(wanted(64 * MIB, 60 * MIB, free), 128 * MIB);
        assert_eq!(wanted(256 * MIB, 50 * MIB, 100 * MIB), 50 * MIB);
    }

    proptest! {
        #[test]
        fn parts_of_the_arena_lie_within_it_and_apart(
            bytes in 0u64..1 << 20, parts in prop::collection::vec((any::<bool>(), 0usize..1 << 15), 0..12),
        ) {
            let memory = DeviceMemory { address: 1 << 40, bytes: bytes / ALIGNMENT * ALIGNMENT };
            let mut arena = Arena { free: 0..memory.bytes, memory };
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (front, count) in parts {
                let part = if front { arena.data::<u64>(count) } else { arena.results::<u64>(count) };
                let Ok(part) = part else { continue };
                let (begin, end) = (part.address, part.address + part.bytes());
                prop_assert!(begin % ALIGNMENT == 0 && begin >= 1 << 40 && end <= (1 << 40) + bytes);
                prop_assert!(taken.iter().all(|(b, e)| end <= *b || begin >= *e));
                taken.push((begin, end));
            }
            let all = arena.left();
            prop_assert!(arena.data::<u8>(all as usize).is_ok(), "what is left can be had");
        }

        #[test]
        fn never_more_than_allowed_twice_or_half_of_what_is_free(
            allowed in 0u64..1 << 33, l2 in 0u64..1 << 30, free in 0u64..1 << 38,
        ) {
            let bytes = wanted(allowed, l2, free);
            prop_assert!(bytes <= 2 * allowed && bytes <= free / 2);
        }
    }
}
