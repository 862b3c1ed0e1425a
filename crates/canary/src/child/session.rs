//! A GPU ready for checks: its context, kernels and memory, and the ways in which checks use it. Each way looks
//! first whether to go on, marks the time in which the GPU works, and adds up that time.

use std::ops::Range;

use super::cuda::{Context, Cuda, DeviceId, Event, Function, Grid, Memory, Module, Slice, Stream};
use super::device::Shape;
use super::errors::{CudaError, Ended, Try};
use super::figures;
use super::poll::Poll;
use super::tally::Wrong;
use crate::abi::WALK_THREADS;
use crate::abi::{BadLanes, BadWords, CheckArgs, FillArgs, Pattern, Plain, SmStamp, TensorShape};
use crate::report::{Device, Order};
use model::catalog::CanarySkip;
use model::clock::Mono;

/// The least device memory with which checks make sense.
const LEAST_MEMORY: u64 = 8 << 20;
/// Where parts of the arena begin: no two share a line of a cache.
const ALIGNMENT: u64 = 512;

/// The kernels by name.
#[derive(Debug)]
pub struct Kernels {
    /// FP32 work.
    pub sm_rate: Function,
    /// Tensor work.
    pub tensor: Function,
    /// Its shape.
    pub tensor_shape: TensorShape,
    /// All units, bit for bit.
    pub sm_sdc: Function,
    /// Reads from device memory.
    pub hbm_read: Function,
    /// Reads from L2.
    pub l2: Function,
    /// Writes a pattern.
    pub fill: Function,
    /// Reads it back.
    pub check: Function,
    /// Work to hide copies behind.
    pub overlap: Function,
    /// `sqrt(x) * sin(x) / log(x + 1)`.
    pub transform: Function,
    /// Nothing.
    pub launch: Function,
}

impl Kernels {
    /// Those of a module.
    pub fn of(cuda: &Cuda, module: &Module) -> Result<Kernels, CudaError> {
        let named = |name| cuda.function(module, name);
        Ok(Kernels {
            sm_rate: named("sm_rate")?,
            tensor: named("tensor")?,
            tensor_shape: cuda.global(module, "tensor_shape")?,
            sm_sdc: named("sm_sdc")?,
            hbm_read: named("hbm_read")?,
            l2: named("l2")?,
            fill: named("fill")?,
            check: named("check")?,
            overlap: named("overlap")?,
            transform: named("transform")?,
            launch: named("launch")?,
        })
    }
}

/// All device memory of a run, in one piece that checks divide anew: data from the front, results from the end.
#[derive(Debug)]
pub struct Arena {
    memory: Memory,
    /// What is not taken.
    free: Range<u64>,
}

impl Arena {
    /// As much as wanted, or less where there is less.
    pub fn new(cuda: &Cuda, device: &Device, order: &Order) -> Try<Arena> {
        let mut bytes = wanted(order.memory_bytes, device.l2_bytes, cuda.free_memory()?);
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

    /// Room for data.
    pub fn data<T: Plain>(&mut self, count: usize) -> Try<Slice<T>> {
        let bytes = self.room::<T>(count)?;
        let begin = self.free.start;
        self.free.start = (begin + bytes).next_multiple_of(ALIGNMENT).min(self.free.end);
        self.slice(begin, count)
    }

    /// Room for results.
    pub fn results<T: Plain>(&mut self, count: usize) -> Try<Slice<T>> {
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

    fn slice<T: Plain>(&self, begin: u64, count: usize) -> Try<Slice<T>> {
        Slice::of(&self.memory, begin, count).ok_or_else(|| self.too_small())
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
pub struct Spent {
    /// As the GPU tells it, seconds.
    pub gpu: f64,
    /// The same with what passed while the GPU was not ours, as far as it is known, seconds.
    pub wall: f64,
    /// When the newest launch whose blocks note it had ended, by the GPU's clock.
    last_end_ns: Option<u64>,
}

/// A GPU ready for checks.
pub struct Session<'a> {
    /// The driver.
    pub cuda: &'a Cuda,
    /// Whether to go on.
    pub poll: Poll<'a>,
    /// What was ordered.
    pub order: &'a Order,
    /// Who the device is.
    pub device: Device,
    /// What kernels need to know of it.
    pub shape: Shape,
    /// Its handle.
    pub id: DeviceId,
    /// Its context.
    pub context: Context,
    /// Its kernels.
    pub kernels: Kernels,
    /// Its memory.
    pub arena: Arena,
    /// The queue of all checks but those that need several.
    pub stream: Stream,
    /// Around timed work.
    pub events: (Event, Event),
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

    /// Adds to the time spent.
    pub fn spend(&mut self, gpu: f64, wall: f64) {
        self.spent.gpu += gpu;
        self.spent.wall += wall;
        self.gpu_seconds += gpu;
    }

    /// Does work between the two events and waits for it. Gives the time between them.
    pub fn timed(&mut self, work: impl FnOnce(&Cuda, &Stream) -> Result<(), CudaError>) -> Try<f64> {
        self.poll.go_on()?;
        self.poll.watch.working(true);
        let done = self.between_events(work);
        self.poll.watch.working(false);
        let seconds = done?;
        self.spend(seconds, seconds);
        Ok(seconds)
    }

    fn between_events(
        &self,
        work: impl FnOnce(&Cuda, &Stream) -> Result<(), CudaError>,
    ) -> Result<f64, CudaError> {
        self.cuda.record(&self.events.0, &self.stream)?;
        work(self.cuda, &self.stream)?;
        self.cuda.record(&self.events.1, &self.stream)?;
        self.cuda.wait(&self.stream)?;
        self.cuda.elapsed(&self.events.0, &self.events.1)
    }

    /// Runs a kernel and waits for it. Gives its time.
    pub fn run<A: Copy>(&mut self, kernel: Function, grid: Grid, args: &A) -> Try<f64> {
        self.timed(|cuda, stream| cuda.launch(kernel, grid, stream, args))
    }

    /// Runs a kernel whose blocks note where and when they ran, and waits for it. Its time is what they say:
    /// what others had of the GPU meanwhile is in the wall time alone.
    pub fn stamped<A: Copy>(
        &mut self,
        kernel: Function,
        grid: Grid,
        args: &A,
        stamps: Slice<SmStamp>,
    ) -> Try<Vec<SmStamp>> {
        self.poll.go_on()?;
        self.cuda.zero(stamps)?;
        self.poll.watch.working(true);
        let done = self.launch_and_wait(kernel, grid, args);
        self.poll.watch.working(false);
        let wall = done?;
        let mut told = self.cuda.copy_out(stamps)?;
        told.retain(|stamp| stamp.threads > 0);
        let span = figures::span(&told);
        // Whoever had the GPU in between made the host wait, and shows on the GPU's own clock since the launch
        // before. A host that is late shows in the first alone, and one that did something else in the second.
        let passed = figures::since(self.spent.last_end_ns, &told).unwrap_or(span);
        self.spent.last_end_ns = figures::last_end(&told);
        self.spend(span, wall.min(passed).max(span));
        Ok(told)
    }

    /// Gives the time from handing over to the end, seconds.
    fn launch_and_wait<A: Copy>(&self, kernel: Function, grid: Grid, args: &A) -> Result<f64, CudaError> {
        self.cuda.launch(kernel, grid, &self.stream, args)?;
        let handed_over = Mono::now();
        self.cuda.wait(&self.stream)?;
        Ok(Mono::now().since(handed_over).as_secs_f64())
    }

    /// Writes a pattern.
    pub fn fill(&mut self, data: Slice<u64>, pattern: Pattern, a: u64, b: u64) -> Try<f64> {
        let args = fill_args(data, pattern, a, b);
        self.run(self.kernels.fill, self.walk_grid(), &args)
    }

    /// Reads a pattern back. Gives what was wrong.
    pub fn check(
        &mut self,
        (data, bad): (Slice<u64>, Slice<BadWords>),
        pattern: Pattern,
        (a, b): (u64, u64),
        unit: &str,
    ) -> Try<Wrong> {
        self.cuda.zero(bad)?;
        let args = check_args(data, bad, pattern, (a, b));
        self.run(self.kernels.check, self.walk_grid(), &args)?;
        let told = self.cuda.copy_out(bad)?;
        Ok(told.first().map(|bad| Wrong::of_words(bad, unit)).unwrap_or_default())
    }

    /// Threads for `fill` and `check`.
    pub fn walk_grid(&self) -> Grid {
        Grid { blocks: 4 * self.multiprocessors(), threads: WALK_THREADS, shared: 0 }
    }

    /// What a rate kernel noted as wrong.
    pub fn bad_lanes(&self, bad: Slice<BadLanes>, unit: &str) -> Try<Wrong> {
        let told = self.cuda.copy_out(bad)?;
        Ok(told.first().map(|bad| Wrong::of_lanes(bad, unit)).unwrap_or_default())
    }

    /// A grid of one block a multiprocessor: each takes more than half of its shared memory, at least `least`
    /// bytes of it dynamic.
    pub fn one_each(&self, kernel: Function, threads: u32, least: u32) -> Try<Grid> {
        let fixed = self.cuda.static_shared(kernel)?;
        let Shape { shared_of_multiprocessor, shared_of_block, .. } = self.shape;
        let shared =
            figures::whole_multiprocessor(shared_of_multiprocessor, shared_of_block, fixed).max(least);
        self.cuda.allow_shared(kernel, shared)?;
        Ok(Grid { blocks: self.multiprocessors(), threads, shared })
    }
}

/// Arguments of `fill`.
pub fn fill_args(data: Slice<u64>, pattern: Pattern, a: u64, b: u64) -> FillArgs {
    FillArgs { data: data.address, words: data.count as u64, a, b, pattern: pattern as u32, reserved: 0 }
}

/// Arguments of `check`.
pub fn check_args(data: Slice<u64>, bad: Slice<BadWords>, pattern: Pattern, (a, b): (u64, u64)) -> CheckArgs {
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
            let memory = Memory { address: 1 << 40, bytes: bytes / ALIGNMENT * ALIGNMENT };
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
