//! `sm_sdc` on the CPU, for one block and thread by thread. Every function corresponds to the one with the same purpose
//! in `kernels/sm_sdc.cu`. Change both together.

use crate::abi::{SDC_COUNTERS, SDC_SHARED_WORDS, SDC_THREADS, SDC_UNITS};

const WARP: usize = 32;

const INT_STEPS: u32 = 160;
const FP32_STEPS: u32 = 65;
const FP64_STEPS: u32 = 33;

/// Returns the expected results of one block as `[unit][thread]`. All blocks have the same results.
pub fn sm_sdc(seed: u32, rounds: u32) -> Vec<u64> {
    let mut lanes: Vec<Lane> = (0..SDC_THREADS as u32).map(|thread| Lane::new(seed, thread)).collect();
    let mut sums = vec![[0_i32; 4]; SDC_THREADS];
    let mut counters = [0_u32; SDC_COUNTERS];
    for round in 0..rounds {
        for (thread, lane) in lanes.iter_mut().enumerate() {
            let (own, other) = (draw(seed, thread as u32, round, 1), draw(seed, thread as u32, round, 2));
            lane.integers();
            lane.singles(own);
            lane.doubles(own, other);
            lane.exchanged =
                ((lane.shuffled as u32).wrapping_add(other), (lane.shuffled >> 32) as u32 ^ other);
            for i in 0..4 {
                let counter = &mut counters[(thread * 7 + i * 19) % SDC_COUNTERS];
                *counter = counter.wrapping_add(own.rotate_left(8 * i as u32));
            }
        }
        for warp in 0..SDC_THREADS / WARP {
            let threads = warp * WARP..(warp + 1) * WARP;
            products(&mut sums[threads.clone()], seed, threads.start as u32, round);
            exchange(&mut lanes[threads], round);
        }
        let key = draw(seed, 0x8000, round, 0);
        for (thread, lane) in lanes.iter_mut().enumerate() {
            for i in (thread..SDC_SHARED_WORDS).step_by(SDC_THREADS) {
                let at = (i as u32 * 2053).wrapping_add(key) % SDC_SHARED_WORDS as u32;
                lane.shared = lane.shared.rotate_left(1) ^ u64::from(shared_word(at, key));
            }
            let counter = counters[(thread + round as usize) % SDC_COUNTERS];
            lane.counted = lane.counted.rotate_left(5) ^ u64::from(counter);
        }
    }
    let mut results = vec![0; SDC_UNITS * SDC_THREADS];
    for (thread, (lane, sums)) in lanes.iter().zip(&sums).enumerate() {
        for (unit, result) in lane.results(sums).into_iter().enumerate() {
            results[unit * SDC_THREADS + thread] = result;
        }
    }
    results
}

/// State of one thread.
struct Lane {
    a: u32,
    b: u32,
    x: [f32; 2],
    y: [f64; 2],
    shared: u64,
    shuffled: u64,
    /// Values that the thread passes to others in this round.
    exchanged: (u32, u32),
    counted: u64,
}

impl Lane {
    fn new(seed: u32, thread: u32) -> Self {
        let random = draw(seed, thread, 0, 7);
        Self {
            a: random,
            b: !random,
            x: [one_to_two(random), one_to_two(!random)],
            y: [one_to_two_wide(random, !random), one_to_two_wide(!random, random)],
            shared: 0,
            shuffled: u64::from(random),
            exchanged: (0, 0),
            counted: 0,
        }
    }

    fn integers(&mut self) {
        let (mut a, mut b) = (self.a, self.b);
        for _ in 0..INT_STEPS {
            a = a.wrapping_mul(747_796_405).wrapping_add(b);
            b = (b ^ a).rotate_left(a & 31);
            let high = ((u64::from(a) * 2_891_336_453) >> 32) as u32;
            b = b.wrapping_add((a & high) | (!a & (b >> 3)));
            a ^= b.count_ones().wrapping_add(high);
        }
        (self.a, self.b) = (a, b);
    }

    fn singles(&mut self, random: u32) {
        let by = one_to_two(random);
        let back = -1.0 / by;
        for _ in 0..FP32_STEPS {
            for x in &mut self.x {
                *x = x.mul_add(by, 0.3125).mul_add(back, 1.2345);
            }
        }
    }

    fn doubles(&mut self, high: u32, low: u32) {
        let by = one_to_two_wide(high, low);
        let back = -1.0 / by;
        for _ in 0..FP64_STEPS {
            for y in &mut self.y {
                *y = y.mul_add(by, 0.3125).mul_add(back, 1.2345);
            }
        }
    }

    fn results(&self, sums: &[i32; 4]) -> [u64; SDC_UNITS] {
        // Sums start at 1/512 and count in 1/256, so they are exact in FP32 up to this size.
        let [d0, d1, d2, d3] = sums.map(|sum| ((2 * sum + 1) as f32 / 512.0).to_bits());
        [
            join(self.a, self.b),
            join(self.x[0].to_bits(), self.x[1].to_bits()),
            self.y[0].to_bits() ^ self.y[1].to_bits().rotate_left(1),
            join(d0 ^ d1.rotate_left(16), d2 ^ d3.rotate_left(16)),
            self.shared,
            self.shuffled,
            self.counted,
        ]
    }
}

fn join(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// Applies the final steps of MurmurHash3.
fn mix32(x: u32) -> u32 {
    let x = (x ^ (x >> 16)).wrapping_mul(0x85eb_ca6b);
    let x = (x ^ (x >> 13)).wrapping_mul(0xc2b2_ae35);
    x ^ (x >> 16)
}

/// Returns the pseudorandom number for one use by one thread in one round.
fn draw(seed: u32, who: u32, round: u32, usage: u32) -> u32 {
    let which = who.wrapping_add(round.wrapping_mul(0x1_0000)).wrapping_add(usage.wrapping_mul(0x100_0000));
    mix32(seed ^ mix32(which))
}

fn one_to_two(random: u32) -> f32 {
    f32::from_bits(0x3f80_0000 | random >> 9)
}

fn one_to_two_wide(high: u32, low: u32) -> f64 {
    f64::from_bits(0x3ff0_0000_0000_0000 | join(high, low) >> 12)
}

fn shared_word(at: u32, key: u32) -> u32 {
    at.wrapping_mul(0x9e37_79b1) ^ key
}

/// Returns the two halves of a pair from `half_pair_of` in sixteenths: 16 to 31, of either sign.
fn sixteenths(random: u32) -> [i32; 2] {
    [random, random >> 16].map(|half| {
        let size = 16 + (half >> 6 & 15) as i32;
        if half & 0x8000 != 0 { -size } else { size }
    })
}

/// Adds one product of a warp, in 1/256. `kernels/device.h` documents which lane has which element.
fn products(sums: &mut [[i32; 4]], seed: u32, first: u32, round: u32) {
    let mut left = [[0; 8]; 16];
    let mut right = [[0; 8]; 8];
    for lane in 0..WARP {
        let random = draw(seed, first + lane as u32, round, 3);
        let (row, column) = (lane / 4, 2 * (lane % 4));
        left[row][column..column + 2].copy_from_slice(&sixteenths(random));
        left[row + 8][column..column + 2].copy_from_slice(&sixteenths(random << 5));
        let [upper, lower] = sixteenths(random.rotate_left(11));
        (right[column][row], right[column + 1][row]) = (upper, lower);
    }
    for (lane, sums) in sums.iter_mut().enumerate() {
        let (row, column) = (lane / 4, 2 * (lane % 4));
        for (i, sum) in sums.iter_mut().enumerate() {
            let (row, column) = (row + 8 * (i / 2), column + i % 2);
            *sum += (0..8).map(|k| left[row][k] * right[k][column]).sum::<i32>();
        }
    }
}

/// Exchanges values within a warp.
fn exchange(lanes: &mut [Lane], round: u32) {
    let given: Vec<(u32, u32)> = lanes.iter().map(|lane| lane.exchanged).collect();
    for (i, lane) in lanes.iter_mut().enumerate() {
        let near = given[i ^ (1 << (round % 5))].0;
        let far = given[i ^ (31 - round as usize % 5)].1;
        lane.shuffled = join(far.wrapping_mul(0x9e37_79b1), near.wrapping_mul(0x85eb_ca6b));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::abi::{SDC_MAX_ROUNDS, SDC_ROUNDS};

    #[test]
    fn results_are_those_of_the_kernel() {
        // Combined results of every unit over its threads, computed by the kernel's own source, compiled for a CPU.
        let known = [
            0xeb0b_69aa_77a2_322f,
            0xee3c_5f08_d877_c7e4,
            0xf3f4_4744_f553_c21a,
            0x642f_f10d_e430_ab8d,
            0xd5ed_9bc5_1143_283a,
            0x636e_829d_b31d_83d4,
            0x6e7c_ce4f_5905_0360_u64,
        ];
        let results = sm_sdc(12_345, SDC_ROUNDS);
        let join = |unit: &[u64]| unit.iter().fold(0_u64, |all, one| all.wrapping_mul(31).wrapping_add(*one));
        let found: Vec<u64> = results.chunks(SDC_THREADS).map(join).collect();
        assert_eq!(found, known);
    }

    #[test]
    fn every_round_changes_every_unit_of_every_thread() {
        let (fewer, more) = (sm_sdc(1, SDC_ROUNDS - 1), sm_sdc(1, SDC_ROUNDS));
        assert_eq!(more.len(), SDC_UNITS * SDC_THREADS);
        for (i, (one, two)) in fewer.iter().zip(&more).enumerate() {
            assert_ne!(one, two, "unit {} thread {}", i / SDC_THREADS, i % SDC_THREADS);
        }
    }

    #[test]
    fn another_seed_changes_every_unit() {
        let (one, two) = (sm_sdc(1, SDC_ROUNDS), sm_sdc(2, SDC_ROUNDS));
        for unit in 0..SDC_UNITS {
            let range = unit * SDC_THREADS..(unit + 1) * SDC_THREADS;
            assert_ne!(one[range.clone()], two[range], "unit {unit}");
        }
    }

    #[test]
    fn values_stay_normal_and_sums_exact() {
        let mut lane = Lane::new(3, 17);
        for round in 0..SDC_MAX_ROUNDS {
            lane.singles(draw(3, 17, round, 1));
            lane.doubles(draw(3, 17, round, 1), draw(3, 17, round, 2));
            assert!(lane.x.iter().all(|x| x.is_normal() && x.abs() < 16.0), "{:?}", lane.x);
            assert!(lane.y.iter().all(|y| y.is_normal() && y.abs() < 16.0), "{:?}", lane.y);
        }
        // The largest sum has eight products of 31 * 31 per round, counted twice, plus one.
        const { assert!(2 * 8 * 31 * 31 * SDC_MAX_ROUNDS + 1 < 1 << 24) };
    }

    proptest! {
        #[test]
        fn halves_are_those_of_the_bits(random: u32) {
            // The pair as the kernel builds it, read as IEEE 754 halves of normal size.
            let pair = (random & 0x83c0_83c0) | 0x3c00_3c00;
            for (i, sixteenths) in sixteenths(random).into_iter().enumerate() {
                let half = pair >> (16 * i) & 0xffff;
                let size = (1.0 + f64::from(half & 0x3ff) / 1024.0)
                    * 2_f64.powi((half >> 10 & 31) as i32 - 15);
                let value = if half & 0x8000 != 0 { -size } else { size };
                prop_assert_eq!(value * 16.0, f64::from(sixteenths));
            }
        }
    }
}
