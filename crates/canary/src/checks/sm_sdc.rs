//! `sm_sdc` verifies integer, FP32, FP64 and tensor operations, shared memory, shuffles and atomics of every
//! multiprocessor, bit for bit. Any wrong bit is a wrong result.

use super::*;
use crate::abi::{SDC_ROUNDS, SDC_SHARED_BYTES, SDC_THREADS, SDC_UNIT_NAMES, SDC_UNITS, SmSdcArgs};
use crate::session::tally::RERUNS;

pub static CHECK: Check = Check::new(CanaryCheck::SmSdc, CanaryStep::SmSdc, &["sm_sdc"], measure, judge);

/// Maximum number of launches within the time limit. Every launch has its own seed. The check makes at least one
/// launch, and more if a multiprocessor has not run any block yet. The copies and the CPU's computation take most of
/// the time.
const LAUNCHES: u64 = 16;
const A_WHILE: Duration = Duration::from_millis(20);
/// Maximum number of launches beyond the time limit until every multiprocessor has run a block.
const MOST_TRIES: u64 = 4;
/// Number of results per block.
const RESULTS: usize = SDC_UNITS * SDC_THREADS;

fn measure(s: &mut Session<'_>) -> Try<Option<CheckResult>> {
    let grid = s.one_each(s.kernel("sm_sdc")?, SDC_THREADS as u32, SDC_SHARED_BYTES)?;
    let stamps = s.arena.results::<SmStamp>(grid.blocks as usize)?;
    let results = s.arena.results::<u64>(grid.blocks as usize * RESULTS)?;
    let mut tally = Mismatches::default();
    let mut covered = BTreeSet::new();
    let began = Mono::now();
    for launch in 0..LAUNCHES {
        let seed = stats::seed(s.request.seed, 0x5dc0 + launch) as u32;
        let (wrong, smids) = run(s, grid, stamps, results, seed)?;
        covered.extend(smids);
        let failed = wrong.count > 0;
        tally.add(results.count as u64, wrong);
        if failed {
            // Repeats the launch with the same inputs, and then once with other inputs.
            for again in 0..=RERUNS {
                let seed = if again < RERUNS { seed } else { seed ^ 0x5555_5555 };
                let (wrong, smids) = run(s, grid, stamps, results, seed)?;
                covered.extend(smids);
                tally.add(0, wrong);
            }
        }
        let all = covered.len() >= s.multiprocessors() as usize;
        let late = Mono::now().since(began) >= A_WHILE;
        if failed || (late && (all || launch + 1 >= MOST_TRIES)) {
            break;
        }
    }
    Ok(Some((CheckFigures::Covered(covered.into_iter().collect()), tally)))
}

/// Makes one launch. Returns the wrong results, and the multiprocessors that ran it.
fn run(
    s: &mut Session<'_>,
    grid: Grid,
    stamps: DeviceSlice<SmStamp>,
    results: DeviceSlice<u64>,
    seed: u32,
) -> Try<(WrongResults, Vec<u32>)> {
    let args = SmSdcArgs { results: results.address, stamps: stamps.address, rounds: SDC_ROUNDS, seed };
    s.cuda.zero(results)?;
    let kernel = s.kernel("sm_sdc")?;
    let read = s.stamped(kernel, grid, &args, stamps)?;
    let got = s.cuda.copy_out(results)?;
    let smids: Vec<u32> = read.iter().map(|stamp| stamp.smid).collect();
    // If a block recorded nothing, the multiprocessors of the others could be confused, so none is named.
    let by_block = if smids.len() == grid.blocks as usize { &smids[..] } else { &[] };
    Ok((compare(&reference::sm_sdc(seed, SDC_ROUNDS), &got, by_block), smids))
}

/// Compares the results of all blocks, laid out as `[unit][thread]`, with the expected results of one block. `smids`
/// has the multiprocessor of every block, or is empty.
fn compare(expected: &[u64], got: &[u64], smids: &[u32]) -> WrongResults {
    let mut wrong = WrongResults::default();
    for (block, results) in got.chunks_exact(RESULTS).enumerate() {
        if results == expected {
            continue;
        }
        for (at, (got, expected)) in results.iter().zip(expected).enumerate() {
            if got != expected {
                let thread = (at % SDC_THREADS) as u32;
                wrong.add(Mismatch {
                    smid: smids.get(block).copied(),
                    unit: SDC_UNIT_NAMES[at / SDC_THREADS].to_owned(),
                    warp_lane: Some((thread / 32, thread % 32)),
                    offset: None,
                    expected: *expected,
                    got: *got,
                });
            }
        }
    }
    wrong
}

fn judge(view: &RunContext<'_>, measured: &Measurement, _: &Clock) -> Sample {
    let CheckFigures::Covered(sms) = &measured.found else { return CheckFigures::of_another_check() };
    let mut distinct = sms.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    let mut sample = Sample::new();
    let (done, all) = (distinct.len(), view.device.multiprocessors);
    let short = usize::try_from(all).is_ok_and(|all| done < all);
    sample.say(format!("right on {}", counted(done, "multiprocessor")));
    if short {
        sample.say(format!("the others of {all} were not tested"));
    }
    sample
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_result_names_multiprocessor_unit_warp_and_lane() {
        let expected: Vec<u64> = (1..=RESULTS as u64).collect();
        let mut got = expected.repeat(3);
        assert_eq!(compare(&expected, &got, &[4, 17, 9]), WrongResults::default());
        let at = RESULTS + SDC_THREADS + 69;
        got[at] ^= 1 << 12;
        got[2 * RESULTS] = 0;
        let wrong = compare(&expected, &got, &[4, 17, 9]);
        assert_eq!((wrong.count, wrong.zeroed), (2, 1));
        let first = &wrong.first[0];
        assert_eq!((first.smid, first.unit.as_str(), first.warp_lane), (Some(17), "fp32", Some((2, 5))));
        assert_eq!(first.expected ^ first.got, 1 << 12);
        assert_eq!((wrong.first[1].smid, wrong.first[1].unit.as_str()), (Some(9), "int32"));
        let unknown = compare(&expected, &got, &[]);
        assert_eq!((unknown.count, unknown.first[0].smid), (2, None));
    }
}
