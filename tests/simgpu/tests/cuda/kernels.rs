//! The kernels on the CPU: their results, and the rates that follow from what they do.

use std::ffi::CStr;

use crate::cuda::{Cuda, out};
use canary::abi::*;
use canary::reference;

pub const H200: &str = "still = true\n[[gpu]]\nmodel = 'H200'\n";

/// More than half of a multiprocessor's shared memory, so that it has one block.
pub const ALONE: u32 = 120 << 10;

pub struct Rate {
    pub stamps: Vec<SmStamp>,
    pub bad: BadLanes,
    /// FMA of a block.
    pub work: f64,
}

impl Rate {
    /// FMA in a cycle, of each multiprocessor.
    pub fn work_per_cycle(&self) -> Vec<f64> {
        self.stamps.iter().map(|s| self.work / (s.end_cycles - s.begin_cycles) as f64).collect()
    }

    pub fn mhz(&self) -> Vec<f64> {
        let mhz = |s: &SmStamp| (s.end_cycles - s.begin_cycles) as f64 / (s.end_ns - s.begin_ns) as f64 * 1e3;
        self.stamps.iter().map(mhz).collect()
    }
}

pub fn median(mut list: Vec<f64>) -> f64 {
    list.sort_by(f64::total_cmp);
    list[list.len() / 2]
}

fn launch(
    cuda: &Cuda,
    name: &CStr,
    threads: u32,
    shared: u32,
    blocks: u32,
    args: impl Fn(u64, u64) -> Vec<u64>,
) -> Rate {
    let stamps = cuda.upload(&vec![SmStamp::default(); blocks as usize]);
    let bad = cuda.upload(&[BadLanes::default()]);
    let args = args(stamps, bad);
    let kernel = cuda.kernel(name);
    let mut fixed = [0u64; 8];
    fixed[..args.len()].copy_from_slice(&args);
    cuda.run(kernel, blocks, threads, shared, &fixed).expect("it runs");
    let rate =
        Rate { stamps: cuda.download(stamps, blocks as usize), bad: cuda.download(bad, 1)[0], work: 0.0 };
    cuda.cuMemFree_v2(stamps).expect("freed");
    cuda.cuMemFree_v2(bad).expect("freed");
    rate
}

pub fn sm_rate(cuda: &Cuda, turns: u32) -> Rate {
    let sms = cuda.attribute(16) as u32;
    let expected = reference::sm_rate(5, turns);
    let args = |stamps, bad| vec![stamps, bad, u64::from(turns) | 5 << 32, expected];
    let rate = launch(cuda, c"sm_rate", SM_RATE_THREADS, ALONE, sms, args);
    let work = f64::from(turns * SM_RATE_CHAINS * SM_RATE_CHAIN_FMA * SM_RATE_THREADS);
    Rate { work, ..rate }
}

pub fn tensor(cuda: &Cuda, turns: u32) -> Rate {
    let module_words = cuda.tensor_shape();
    let (threads, fma) = (module_words[0], module_words[1]);
    let args = |stamps, bad| vec![stamps, bad, u64::from(turns) | 2 << 32, 3];
    let rate = launch(cuda, c"tensor", threads, ALONE, cuda.attribute(16) as u32, args);
    Rate { work: f64::from(turns) * f64::from(fma), ..rate }
}

/// The results of `sm_sdc`: of each block, unit by unit, thread by thread; and where the blocks ran.
pub fn sm_sdc(cuda: &Cuda, seed: u32) -> (Vec<Vec<u64>>, Vec<u32>) {
    let blocks = cuda.attribute(16) as usize;
    let results = cuda.allocate(blocks * SDC_UNITS * SDC_THREADS * 8);
    let stamps = cuda.upload(&vec![SmStamp::default(); blocks]);
    let args = SmSdcArgs { results, stamps, rounds: SDC_ROUNDS, seed };
    cuda.run(cuda.kernel(c"sm_sdc"), blocks as u32, SDC_THREADS as u32, ALONE, &args).expect("it runs");
    let all = cuda.download::<u64>(results, blocks * SDC_UNITS * SDC_THREADS);
    let smids = cuda.download::<SmStamp>(stamps, blocks).iter().map(|s| s.smid).collect();
    (all.chunks(SDC_UNITS * SDC_THREADS).map(<[u64]>::to_vec).collect(), smids)
}

/// Bytes a second of reading a buffer, and the sum of its words.
pub fn read(cuda: &Cuda, name: &CStr, data: u64, bytes: usize, passes: u32) -> (f64, u64) {
    let blocks = cuda.attribute(16) as u32;
    let (stamps, sums) = (cuda.allocate(40 * blocks as usize), cuda.allocate(8 * blocks as usize));
    let args = ReadArgs { data, words: bytes as u64 / 16, stamps, sums, passes, reserved: 0 };
    cuda.run(cuda.kernel(name), blocks, READ_THREADS, READ_SHARED_BYTES, &args).expect("it runs");
    let stamps = cuda.download::<SmStamp>(stamps, blocks as usize);
    let begin = stamps.iter().map(|s| s.begin_ns).min().expect("a block");
    let end = stamps.iter().map(|s| s.end_ns).max().expect("a block");
    let sum = cuda.download::<u64>(sums, blocks as usize).into_iter().fold(0u64, u64::wrapping_add);
    (bytes as f64 * f64::from(passes) / (end - begin) as f64 * 1e9, sum)
}

pub fn fill(cuda: &Cuda, data: u64, words: u64, pattern: Pattern, a: u64, b: u64) {
    let args = FillArgs { data, words, a, b, pattern: pattern as u32, reserved: 0 };
    cuda.run(cuda.kernel(c"fill"), 132, WALK_THREADS, 0, &args).expect("it runs");
}

pub fn check(cuda: &Cuda, data: u64, words: u64, pattern: Pattern, a: u64, b: u64) -> BadWords {
    let bad = cuda.upload(&[BadWords::default()]);
    let args = CheckArgs { data, words, a, b, bad, pattern: pattern as u32, reserved: 0 };
    cuda.run(cuda.kernel(c"check"), 132, WALK_THREADS, 0, &args).expect("it runs");
    cuda.download(bad, 1)[0]
}

#[test]
fn sm_rate_shows_the_rate_and_the_clock_of_every_multiprocessor() {
    let cuda = Cuda::with_context(H200);
    let rate = sm_rate(&cuda, 1200);
    assert_eq!(rate.bad.count, 0);
    let mut smids: Vec<u32> = rate.stamps.iter().map(|s| s.smid).collect();
    smids.sort_unstable();
    smids.dedup();
    assert_eq!((smids.len(), rate.stamps[0].threads), (132, 1024));
    let (work, mhz) = (median(rate.work_per_cycle()), median(rate.mhz()));
    assert!((work / (128.0 * 0.989) - 1.0).abs() < 1e-4, "{work}");
    assert!((mhz / 1980.0 - 1.0).abs() < 2e-3, "{mhz}");
    // Half the work is half the time, and not the same rate by decree.
    let half = sm_rate(&cuda, 600);
    let cycles = |r: &Rate| (r.stamps[0].end_cycles - r.stamps[0].begin_cycles) as f64;
    assert!((cycles(&rate) / cycles(&half) - 2.0).abs() < 1e-3);
}

#[test]
fn sm_rate_notes_lanes_that_are_not_as_expected() {
    let cuda = Cuda::with_context(H200);
    let stamps = cuda.allocate(40 * 4);
    let bad = cuda.upload(&[BadLanes::default()]);
    let args = SmRateArgs { stamps, bad, turns: 2, seed: 1, expected: 0x1234 };
    cuda.run(cuda.kernel(c"sm_rate"), 4, SM_RATE_THREADS, 0, &args).expect("it runs");
    let bad = cuda.download::<BadLanes>(bad, 1)[0];
    assert_eq!((bad.count, bad.lanes[3].smid, bad.lanes[3].expected), (4, 3, 0x1234));
    assert_eq!(bad.lanes[0].got, reference::sm_rate(1, 2));
}

#[test]
fn tensor_shows_its_rate_and_right_sums() {
    let cuda = Cuda::with_context(H200);
    let rate = tensor(&cuda, 60);
    assert_eq!(rate.bad.count, 0);
    let work = median(rate.work_per_cycle());
    assert!((work / (2048.0 * 0.85) - 1.0).abs() < 1e-3, "{work}");
}

#[test]
fn sm_sdc_has_the_expected_bits_in_all_blocks_and_other_bits_with_another_seed() {
    let cuda = Cuda::with_context(H200);
    let (first, smids) = sm_sdc(&cuda, 7);
    assert_eq!(smids, (0..132).collect::<Vec<u32>>());
    let expected = reference::sm_sdc(7, SDC_ROUNDS);
    assert!(first.iter().all(|block| *block == expected));
    let (again, _) = sm_sdc(&cuda, 7);
    assert_eq!(first, again);
    let (other, _) = sm_sdc(&cuda, 8);
    for unit in 0..SDC_UNITS {
        let of = |blocks: &[Vec<u64>]| blocks[0][unit * SDC_THREADS..(unit + 1) * SDC_THREADS].to_vec();
        assert_ne!(of(&first), of(&other), "unit {unit}");
    }
}

#[test]
fn patterns_are_written_and_found_again() {
    let cuda = Cuda::with_context(H200);
    let words = 100_001;
    let data = cuda.allocate(words * 8);
    use Pattern::*;
    for pattern in [Arithmetic, Constant, Address, NotAddress, Random, NotRandom] {
        fill(&cuda, data, words as u64, pattern, 77, 3);
        assert_eq!(check(&cuda, data, words as u64, pattern, 77, 3).count, 0, "{pattern:?}");
    }
    fill(&cuda, data, words as u64, Arithmetic, 77, 3);
    let expected: Vec<u64> = (0..words as u64).map(|i| reference::pattern(Arithmetic, i, 77, 3)).collect();
    assert_eq!(cuda.download::<u64>(data, words), expected);
    cuda.cuMemcpyHtoD_v2(data + 8 * 5, [0u64].as_ptr().cast(), 8).expect("a copy");
    let bad = check(&cuda, data, words as u64, Arithmetic, 77, 3);
    assert_eq!((bad.count, bad.words[0].offset, bad.words[0].expected, bad.words[0].got), (1, 40, 92, 0));
}

#[test]
fn memory_and_l2_are_read_at_their_rates() {
    let cuda = Cuda::with_context(H200);
    // 128 tiles, 33 times: as many for each of 132 blocks.
    const PASSES: u32 = 33;
    let bytes = 16 << 20;
    let data = cuda.allocate(bytes);
    fill(&cuda, data, bytes as u64 / 8, Pattern::Arithmetic, 1, 3);
    let expected = reference::arithmetic_sum(1, 3, bytes as u64 / 8, PASSES);
    let (rate, sum) = read(&cuda, c"hbm_read", data, bytes, PASSES);
    assert_eq!(sum, expected);
    // Twice the memory clock times the bus, and a little less for a small buffer.
    let peak = 3201e6 * 2.0 * 6016.0 / 8.0;
    assert!((rate / (peak * 0.885) - 1.0).abs() < 0.03, "{rate:e}");
    let (rate, sum) = read(&cuda, c"l2", data, bytes, PASSES);
    assert_eq!(sum, expected);
    assert!((rate / 5.5e12 - 1.0).abs() < 0.05, "{rate:e}");
}

#[test]
fn overlap_and_transform_compute() {
    let cuda = Cuda::with_context(H200);
    let x: Vec<f32> = (1..=1000).map(|i| i as f32 / 10.0).collect();
    let (from, to) = (cuda.upload(&x), cuda.allocate(4000));
    let args = OverlapArgs { x: from, y: to, count: 1000, turns: 3, reserved: 0 };
    cuda.run(cuda.kernel(c"overlap"), 4, OVERLAP_THREADS, 0, &args).expect("it runs");
    let expected: Vec<f32> = x.iter().map(|x| reference::overlap(*x, 3)).collect();
    assert_eq!(cuda.download::<f32>(to, 1000), expected);
    let args = TransformArgs { x: from, y: to, count: 1000 };
    cuda.run(cuda.kernel(c"transform"), 4, TRANSFORM_THREADS, 0, &args).expect("it runs");
    for (x, y) in x.iter().zip(cuda.download::<f32>(to, 1000)) {
        assert!((f64::from(y) - reference::transform(*x)).abs() < 1e-5, "{x}");
    }
}

#[test]
fn noise_is_as_small_as_was_measured_and_never_twice_the_same() {
    let cuda = Cuda::with_context(H200);
    let rates: Vec<f64> = (0..20).map(|_| median(sm_rate(&cuda, 400).work_per_cycle())).collect();
    let mean = rates.iter().sum::<f64>() / 20.0;
    assert!(rates.iter().all(|r| (r / mean - 1.0).abs() < 1e-4), "{rates:?}");
    assert!(rates.windows(2).any(|w| w[0] != w[1]));
}

#[test]
fn a_block_that_asks_for_too_much_does_not_fit() {
    let cuda = Cuda::with_context(H200);
    let kernel = cuda.kernel(c"sm_rate");
    let at_once = |shared| {
        out(0, |out| cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(out, kernel, 256, shared))
            .expect("a number")
    };
    assert_eq!((at_once(0), at_once(100 << 10), at_once(ALONE as usize)), (4, 2, 1));
    assert_eq!(cuda.cuFuncSetAttribute(kernel, 8, 230 << 10), Err(1));
    let args = SmRateArgs::default();
    assert_eq!(cuda.run(kernel, 1, 2048, 0, &args), Err(700), "no addresses");
}
