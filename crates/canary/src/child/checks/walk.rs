//! `hbm_walk`: every word of the buffer keeps what was written to it, for six patterns.

use super::Finding;
use crate::abi::{BadWords, Pattern};
use crate::child::errors::Try;
use crate::child::figures;
use crate::child::session::Session;
use crate::child::tally::Tally;
use crate::report::Found;

/// Each bit both ways, neighbours different.
const STRIPES: u64 = 0xa5a5_a5a5_a5a5_a5a5;

/// Writes and reads back.
pub fn hbm_walk(s: &mut Session<'_>) -> Try<Finding> {
    let bad = s.arena.results::<BadWords>(1)?;
    let data = s.arena.data::<u64>((s.arena.left() / 512 * 64) as usize)?;
    let random = figures::seed(s.order.seed, 5);
    let patterns = [
        (Pattern::Address, data.address, "address"),
        (Pattern::NotAddress, data.address, "not_address"),
        (Pattern::Constant, STRIPES, "a5"),
        (Pattern::Constant, !STRIPES, "5a"),
        (Pattern::Random, random, "random"),
        (Pattern::NotRandom, random, "not_random"),
    ];
    let mut tally = Tally::default();
    for (pattern, a, unit) in patterns {
        loop {
            s.fill(data, pattern, a, 0)?;
            let wrong = s.check((data, bad), pattern, (a, 0), unit)?;
            tally.add(data.count as u64, wrong);
            if !tally.wants_more() {
                break;
            }
        }
        if tally.wrong() {
            break;
        }
    }
    let found = Found::Walked { bytes: data.bytes(), patterns: patterns.len() as u32 };
    Ok(Finding { found, mismatches: tally.told() })
}
