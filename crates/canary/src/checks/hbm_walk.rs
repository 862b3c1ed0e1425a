//! `hbm_walk` writes six patterns to the buffer and reads them back. Any word that changed is a wrong result.

use super::*;

pub static CHECK: Check =
    Check::new(CanaryCheck::HbmWalk, CanaryStep::HbmWalk, &["fill", "check"], measure, judge);

/// Pattern in which neighbouring bits differ. Its complement tests every bit with the other value.
const STRIPES: u64 = 0xa5a5_a5a5_a5a5_a5a5;

fn measure(s: &mut Session<'_>) -> Try<Option<CheckResult>> {
    let bad = s.arena.results::<BadWords>(1)?;
    let data = s.arena.data::<u64>((s.arena.left() / 512 * 64) as usize)?;
    let random = stats::seed(s.request.seed, 5);
    let patterns = [
        (Pattern::Address, data.address, "address"),
        (Pattern::NotAddress, data.address, "not_address"),
        (Pattern::Constant, STRIPES, "a5"),
        (Pattern::Constant, !STRIPES, "5a"),
        (Pattern::Random, random, "random"),
        (Pattern::NotRandom, random, "not_random"),
    ];
    let mut tally = Mismatches::default();
    for (pattern, a, unit) in patterns {
        loop {
            s.fill(data, pattern, (a, 0))?;
            let wrong = s.check((data, bad), pattern, (a, 0), unit)?;
            tally.add(data.count as u64, wrong);
            if !tally.wants_more() {
                break;
            }
        }
        if tally.wrong > 0 {
            break;
        }
    }
    let found = CheckFigures::Walked { bytes: data.bytes(), patterns: patterns.len() as u32 };
    Ok(Some((found, tally)))
}

fn judge(_: &RunContext<'_>, measured: &Measurement, _: &Clock) -> Sample {
    let CheckFigures::Walked { bytes, patterns } = &measured.found else {
        return CheckFigures::of_another_check();
    };
    let mut sample = Sample::new();
    sample.say(format!("{} MiB held {patterns} patterns", bytes >> 20));
    sample
}
