//! Expected results of the kernels, computed bit for bit on the CPU. This module repeats the arithmetic of
//! `kernels/*.cu` in Rust. FMA is defined by IEEE 754 and everything else uses integers, so every GPU must return the
//! same results.

mod sdc;

pub use sdc::sm_sdc;

use crate::abi::{
    OVERLAP_A, OVERLAP_B, Pattern, SM_RATE_A, SM_RATE_B, SM_RATE_CHAIN_FMA, SM_RATE_CHAINS, TensorShape,
};

/// Chains of one thread of `sm_rate`.
type Chains = [f32; SM_RATE_CHAINS as usize];

/// Returns the concatenated bits of all chains of a thread of `sm_rate` after the turns. All threads have the same
/// result.
pub fn sm_rate(seed: u32, turns: u32) -> u64 {
    let start = std::array::from_fn(|chain| 1.0 + chain as f32 / 16.0 + (seed & 0xffff) as f32 / 1_048_576.0);
    joined(stepped(start, u64::from(turns) * u64::from(SM_RATE_CHAIN_FMA)))
}

/// Returns the chains after this many steps.
fn stepped(mut chains: Chains, steps: u64) -> Chains {
    for _ in 0..steps {
        for x in &mut chains {
            *x = x.mul_add(SM_RATE_A, SM_RATE_B);
        }
    }
    chains
}

/// Concatenates the bits of the chains, so that an error in one chain cannot cancel an error in another.
fn joined(chains: Chains) -> u64 {
    chains.iter().fold(0, |joined, x| joined << u32::BITS | u64::from(x.to_bits()))
}

/// Returns the maximum number of turns for which the sums of `tensor` are exact, which are integers of 24 bits.
pub fn tensor_turns_at_most(shape: &TensorShape, a: u32, b: u32) -> u32 {
    let turn = u64::from(a) * u64::from(b) * u64::from(shape.depth);
    u32::try_from((1_u64 << 24).checked_div(turn).unwrap_or(0)).unwrap_or(u32::MAX)
}

/// Returns the FMA operations of one block of `tensor` in one turn.
pub fn tensor_fma(shape: &TensorShape) -> u64 {
    u64::from(shape.fma_high) << 32 | u64::from(shape.fma_low)
}

/// Returns the first number of the generator SplitMix64 whose state is `x`.
pub(crate) fn splitmix64(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Returns 64-bit word `i` of a buffer.
pub fn pattern(kind: Pattern, i: u64, a: u64, b: u64) -> u64 {
    match kind {
        Pattern::Arithmetic => a.wrapping_add(i.wrapping_mul(b)),
        Pattern::Constant => a,
        Pattern::Address => a.wrapping_add(i.wrapping_mul(8)),
        Pattern::NotAddress => !a.wrapping_add(i.wrapping_mul(8)),
        Pattern::Random => splitmix64(a.wrapping_add(i)),
        Pattern::NotRandom => !splitmix64(a.wrapping_add(i)),
    }
}

/// Returns the sum modulo 2^64 over all blocks of `hbm_read` or `l2`, which read `words` words of
/// [`Pattern::Arithmetic`] `passes` times. A word has 8 bytes here, not 16.
pub fn arithmetic_sum(a: u64, b: u64, words: u64, passes: u32) -> u64 {
    let pairs = u128::from(words) * u128::from(words.saturating_sub(1)) / 2;
    // The arithmetic is intentionally modulo 2^64.
    let once = words.wrapping_mul(a).wrapping_add((pairs as u64).wrapping_mul(b));
    once.wrapping_mul(u64::from(passes))
}

/// Returns the result of `overlap` for one element.
pub fn overlap(x: f32, turns: u32) -> f32 {
    (0..turns).fold(x, |x, _| x.mul_add(OVERLAP_A, OVERLAP_B))
}

/// Returns the exact result of `transform` for one element in double precision. Both measured results are compared with
/// it.
pub fn transform(x: f32) -> f64 {
    let x = f64::from(x);
    x.sqrt() * x.sin() / (x + 1.0).ln()
}

/// Returns the result of one CPU thread in single precision.
pub fn transform_single(x: f32) -> f32 {
    x.sqrt() * x.sin() / (x + 1.0).ln()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // The known answers were computed by the kernels' own sources, compiled for a CPU.
    #[test]
    fn rates_bits_are_known_and_go_on_changing() {
        assert_eq!(sm_rate(7, 1200), 0x3f7d_a870_3f86_d438);
        assert_eq!(
            (overlap(1e-3, 50).to_bits(), overlap(100_000.0 * 1e-3, 50).to_bits()),
            (0x3a83_78ef, 0x42c7_ffb6)
        );
        assert_eq!(arithmetic_sum(5, 0x9e37_79b9_7f4a_7c15, 1_000_002, 3), 0xa54f_c9cc_dbfd_42bd);
        let some: Vec<u64> = (0..5).map(|turns| sm_rate(7, turns * 400)).collect();
        let mut different = some.clone();
        different.sort_unstable();
        different.dedup();
        assert_eq!(different.len(), some.len(), "{some:x?}");
        assert_ne!(sm_rate(1, 100), sm_rate(2, 100));
        // Only the lower half of the seed is used, as in the kernel.
        assert_eq!(sm_rate(1, 100), sm_rate(0x1_0001, 100));
    }

    /// Returns the bits that have no effect on the result this many steps after they were flipped in all chains at
    /// once.
    fn unseen(right: Chains, steps: u64) -> Vec<u32> {
        let expected = joined(stepped(right, steps));
        let flipped = |bit: u32| right.map(|x| f32::from_bits(x.to_bits() ^ 1 << bit));
        (0..u32::BITS).filter(|bit| joined(stepped(flipped(*bit), steps)) == expected).collect()
    }

    #[test]
    fn a_bit_that_flips_in_all_chains_at_once_is_seen() {
        // Values alternate between two magnitudes. A step from the small one to the large one loses its last bits.
        let large: Chains = [1.0, 1.0625];
        let small = stepped(large, 1);
        assert!(small.iter().all(|x| (0.125..0.25).contains(x)), "{small:?}");
        for steps in [0, 1, 2, 85, 127, 128, 12_800, 51_200] {
            assert_eq!(unseen(large, steps), Vec::<u32>::new(), "{steps}");
            let forgotten: &[u32] = if steps == 0 { &[] } else { &[0, 1, 2] };
            assert!(unseen(small, steps).iter().all(|bit| forgotten.contains(bit)), "{steps}");
        }
    }

    #[test]
    fn splitmix_is_the_published_one() {
        assert_eq!(splitmix64(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(splitmix64(0x9e37_79b9_7f4a_7c15), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn tensor_sums_are_exact_up_to_the_limit() {
        let shape = TensorShape { threads: 256, fma_low: 1, fma_high: 2, depth: 256 };
        assert_eq!(tensor_fma(&shape), 0x2_0000_0001);
        let most = tensor_turns_at_most(&shape, 3, 3);
        assert_eq!(most, 7281);
        assert!(9 * 256 * most <= 1 << 24 && 9 * 256 * (most + 1) > 1 << 24);
        assert_eq!(tensor_turns_at_most(&TensorShape::default(), 1, 1), 0);
    }

    #[test]
    fn transform_has_known_values() {
        assert!((transform(1.0) - 1.213_986_016_834).abs() < 1e-9, "{}", transform(1.0));
        assert!((f64::from(transform_single(1.0)) - transform(1.0)).abs() < 1e-6);
    }

    proptest! {
        #[test]
        fn what_is_wrong_in_one_chain_does_not_make_up_for_the_other(a: u32, b: u32, by in 1..=u32::MAX) {
            let joined = |bits: [u32; 2]| joined(bits.map(f32::from_bits));
            let faults =
                [[a ^ by, b ^ by], [a.wrapping_add(by), b.wrapping_sub(by)], [a ^ by, b], [a, b ^ by]];
            for wrong in faults {
                prop_assert_ne!(joined(wrong), joined([a, b]), "{:x?}", wrong);
            }
        }

        #[test]
        fn sums_are_those_of_the_words(a: u64, b: u64, words in 0_u64..300, passes in 0_u32..4) {
            let word = |i| pattern(Pattern::Arithmetic, i, a, b);
            let once = (0..words).map(word).fold(0_u64, u64::wrapping_add);
            prop_assert_eq!(arithmetic_sum(a, b, words, passes), once.wrapping_mul(u64::from(passes)));
        }

        #[test]
        fn complements_differ_in_every_bit(a: u64, b: u64, i: u64) {
            prop_assert_eq!(!pattern(Pattern::Address, i, a, b), pattern(Pattern::NotAddress, i, a, b));
            prop_assert_eq!(!pattern(Pattern::Random, i, a, b), pattern(Pattern::NotRandom, i, a, b));
            prop_assert_eq!(pattern(Pattern::Constant, i, a, b), a);
        }

        #[test]
        fn rates_values_stay_normal(seed: u32, turns in 0_u32..200) {
            // The values alternate around 0.617, between the largest start value and its first successor.
            let last = overlap(1.0 + (seed & 0xffff) as f32 / 1_048_576.0 + 7.0 / 16.0, turns);
            prop_assert!(last.is_normal() && (-0.3..1.6).contains(&last));
        }
    }
}
