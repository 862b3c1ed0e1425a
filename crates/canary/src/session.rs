//! A GPU ready for checks: its context, kernels and memory, and the ways in which checks use it. Each way looks
//! first whether to go on, marks the time in which the GPU works, and adds up that time.

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

/// The least device memory with which checks make sense.
const LEAST_MEMORY: u64 = 8 << 20;
/// Where parts of the arena begin: no two share a line of a cache.
const ALIGNMENT: u64 = 512;
/// How long the end of work is polled for without sleep where a sleeper's waking would be most of the time.
const AWAKE: Duration = Duration::from_millis(2);

/// All device memory of a run, in one piece that each check divides again: data from the front, results from the end.
#[derive(Debug)]
pub(crate) struct Arena {
    memory: DeviceMemory,
    /// What is not taken.
    free: Range<u64>,
}

impl Arena {
    /// As much as wanted, or less where there is less.
    pub fn new(cuda: &CudaDriver, device: &CudaDevice, request: &RunRequest) -> Try<Arena> {
        let mut bytes = wanted(request.memory_bytes, device.l2_bytes, cuda.free_memory()?);
        while bytes >= LEAST_MEMORY {
            match cuda.alloc(bytes) {
                Ok(memory) => return Ok(Arena { memory, free: 0..bytes }),
                Err(CudaError { code: 2, .. }) => bytes /= 2,
                Err(error) => return Err(error.into()),
            }
        }
        let text = format!("less than {} MiB of device memory can be had", LEAST_MEMORY >> 20);
        Err(Ended::Unable(CanarySkip::NoMemory, text))
    }

    /// Gives all back to the next check.
    pub fn clear(&mut self) {
        self.free = 0..self.memory.bytes;
    }

    /// Bytes that are left.
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

    /// The bytes of so many, if there is room.
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
        let text = format!("{} MiB of device memory are too few", self.memory.bytes >> 20);
        Ended::Unable(CanarySkip::NoMemory, text)
    }
}

/// How much memory to use: what is allowed, and where eight times the L2 cache need it up to twice that; never
/// more than half of what is free. An L2 cache does not evict strictly by age: on an H200 some 5 % of what is read
/// over and over are still there with 256 MiB (4.3 times the cache), 2 % with 512 MiB, nothing with 1 GiB.
fn wanted(allowed: u64, l2: u64, free: u64) -> u64 {
    allowed.max((8 * l2).min(2 * allowed)).min(free / 2) & !0xffff
}

/// Time that work took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spent {
    /// By the GPU's clock, seconds.
    pub gpu: f64,
    /// The same with what passed while the GPU was not ours, as far as it is known, seconds.
    pub wall: f64,
    /// When the newest launch whose blocks note it had ended, by the GPU's clock.
    last_end_ns: Option<u64>,
}

pub(crate) type KernelsByName = BTreeMap<&'static str, CudaFunction>;

/// A GPU ready for checks.
pub(crate) struct Session<'a> {
    pub cuda: &'a CudaDriver,
    pub poll: Poll<'a>,
    pub request: &'a RunRequest,
    pub device: CudaDevice,
    pub limits: DeviceLimits,
    pub id: DeviceId,
    pub context: CudaContext,
    /// Its kernels by name.
    pub kernels: KernelsByName,
    /// The shape of `tensor`, which differs by architecture.
    pub tensor_shape: TensorShape,
    pub arena: Arena,
    /// The queue of all checks but those that need several.
    pub stream: CudaStream,
    pub events: (CudaEvent, CudaEvent),
    /// Time spent by this check.
    pub spent: Spent,
    /// GPU time of the whole run, seconds.
    pub gpu_seconds: f64,
    /// Whether its clock may still be on its way up from idle.
    pub rising: bool,
}

impl Session<'_> {
    /// Blocks that occupy each multiprocessor once.
    pub fn multiprocessors(&self) -> u32 {
        self.device.multiprocessors.max(1)
    }

    /// A kernel that a check of the table names.
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

    /// Does what keeps the GPU at work, unless the run is to end.
    fn working<T>(&self, work: impl FnOnce(&CudaDriver, &CudaStream) -> CudaResult<T>) -> Try<T> {
        self.poll.go_on()?;
        self.poll.watch.working(true);
        let done = work(self.cuda, &self.stream);
        self.poll.watch.working(false);
        Ok(done?)
    }

    /// Does work between the two events and waits for it. Gives the time between them.
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

    /// Runs a kernel and waits for it. Gives its time.
    pub fn run<A: Copy>(&mut self, kernel: CudaFunction, grid: Grid, args: &A) -> Try<f64> {
        self.timed(|cuda, stream| cuda.launch(kernel, grid, stream, args))
    }

    /// Queues work and polls for its end: awake at first, then asleep. Gives the host's time.
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

    /// Runs a kernel whose blocks note where and when they ran, and waits for it. Its time is what they say:
    /// what others had of the GPU meanwhile is in the wall time alone.
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
        // A process that had the GPU in between made the host wait, and shows on the GPU's own clock since the launch
        // before. A host that is late shows in the first alone, and one that did something else in the second.
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

    /// Reads a pattern back. Gives what was wrong.
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

    /// Threads for `fill` and `check`.
    pub fn walk_grid(&self) -> Grid {
        Grid { blocks: 4 * self.multiprocessors(), threads: WALK_THREADS, shared: 0 }
    }

    /// A grid of one block a multiprocessor: each takes more than half of its shared memory, at least `least`
    /// bytes of it dynamic.
    pub fn one_each(&self, kernel: CudaFunction, threads: u32, least: u32) -> Try<Grid> {
        let fixed = self.cuda.static_shared(kernel)?;
        let DeviceLimits { shared_of_multiprocessor, shared_of_block, .. } = self.limits;
        let shared = stats::whole_multiprocessor(shared_of_multiprocessor, shared_of_block, fixed).max(least);
        self.cuda.allow_shared(kernel, shared)?;
        Ok(Grid { blocks: self.multiprocessors(), threads, shared })
    }
}

/// Arguments of `check`.
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
