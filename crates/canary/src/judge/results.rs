//! Wrong results: what was computed, copied or kept is not what it should be.

use super::view::{Sample, View};
use super::words::{counted, listed, seconds};
use crate::report::{Measured, Mismatch, Transform};
use model::canary::Rate;
use model::catalog::schema::KnownLabel;
use model::catalog::{BadSmKind, CanaryCheck, CanaryVerdict};

/// Multiprocessors that are named.
const NAMED: usize = 8;

/// Largest relative error of `sqrt(x) * sin(x) / log(x + 1)` in single precision for x from 0.1 on, against
/// double precision.
///
/// In units of 2^-24 (half the distance of two floats at their largest): `sqrtf`, the product and the quotient
/// are rounded rightly, 1 each; `sinf` is off by 2 units in the last place at most, 4; `logf` by 1, 2 (CUDA C++
/// programming guide, mathematical functions, without fast math); and `x + 1` is rounded, which `log` magnifies
/// by 1 / ln(1.1) at x = 0.1, 10.5. Together 19.5 x 2^-24 = 1.2e-6. The guide's figures are the largest seen in
/// its tests, no proofs: the limit is twice that. Near x = 0 there is none.
pub const TRANSFORM_LIMIT: f64 = 2.0 * 19.5 / 16_777_216.0;

/// Looks for wrong results and sets the verdict.
pub fn judge(view: Option<&View<'_>>, measured: &Measured, sample: Sample) -> Sample {
    let wrong = &measured.mismatches;
    if wrong.wrong == 0 {
        return sample;
    }
    let before = view.and_then(|view| earlier(view, measured.check));
    let again = wrong.wrong_reruns > 0;
    let verdict = match again || before.is_some() {
        true => CanaryVerdict::WrongResult,
        false => CanaryVerdict::WrongResultSuspected,
    };
    let mut text = format!("{} of {} results are wrong", wrong.wrong, wrong.compared.max(wrong.wrong));
    if wrong.zeroed > 0 {
        text.push_str(&format!(" ({} with all bits 0)", wrong.zeroed.min(wrong.wrong)));
    }
    let sms = smids(&wrong.first);
    if !sms.is_empty() {
        text.push_str(&format!(", on SM {}", listed(&sms)));
    }
    if let Some(first) = wrong.first.first() {
        text.push_str(&format!("; the first: {}", describe(first)));
    }
    text.push_str(&match (again, before) {
        (true, _) => format!("; wrong again in {} of {} reruns", wrong.wrong_reruns, wrong.reruns),
        (false, Some(check)) => format!("; not in {} reruns, but {check} was wrong before", wrong.reruns),
        (false, None) => format!("; not again in {}", counted(wrong.reruns as usize, "rerun")),
    });
    text.push_str(match verdict {
        CanaryVerdict::WrongResult => {
            "; take the GPU out of use, doubt what it computed lately, and run `dcgmi diag -r 4`"
        }
        _ => "; run `gpu-node-exporter canary` on the drained GPU; a second time within 30 days confirms it",
    });
    Sample {
        verdict,
        text: vec![text],
        bad_sms: sms.into_iter().take(NAMED).map(|smid| (smid, BadSmKind::Wrong)).collect(),
        rate: sample.rate,
        ..Sample::new()
    }
}

/// A check that was wrong there within the last 30 days.
fn earlier(view: &View<'_>, this: CanaryCheck) -> Option<&'static str> {
    let wrong = view.memory.wrong(view.spot).iter().filter(|wrong| wrong.counts(view.now));
    // This check first: it says most.
    let wrong = wrong.max_by_key(|wrong| wrong.check == this)?;
    Some(wrong.check.known())
}

fn smids(mismatches: &[Mismatch]) -> Vec<u32> {
    let mut smids: Vec<u32> = mismatches.iter().filter_map(|mismatch| mismatch.smid).collect();
    smids.sort_unstable();
    smids.dedup();
    smids
}

fn describe(mismatch: &Mismatch) -> String {
    let mut text = if mismatch.unit.is_empty() { "a value".to_owned() } else { mismatch.unit.clone() };
    if let Some(smid) = mismatch.smid {
        text.push_str(&format!(" on SM {smid}"));
    }
    if let Some((warp, lane)) = mismatch.warp_lane {
        text.push_str(&format!(", warp {warp}, lane {lane}"));
    }
    if let Some(offset) = mismatch.offset {
        text.push_str(&format!(", offset {offset:#x}"));
    }
    let (expected, got) = (mismatch.expected, mismatch.got);
    text.push_str(&format!(", {got:#x} instead of {expected:#x} (bits {:#x})", expected ^ got));
    text
}

/// Judges the errors of `transform`.
pub fn transform(found: &Transform) -> Sample {
    let error = found.max_relative_error;
    if !error.is_finite() || found.count == 0 {
        return Sample::discarded(CanaryVerdict::Skipped, "no error was measured".into());
    }
    let mut sample = Sample::new();
    let timed = found.kernel.is_finite() && found.kernel > 0.0;
    sample.rate = timed.then_some(Rate::Seconds(found.kernel));
    sample.say(format!(
        "{} values: copy in {}, kernel {}, copy out {}, one thread of the CPU {}; largest error {:.1e} relative, \
         {:.1e} absolute",
        found.count,
        seconds(found.copy_in),
        seconds(found.kernel),
        seconds(found.copy_out),
        seconds(found.cpu),
        error,
        found.max_absolute_error
    ));
    if error > TRANSFORM_LIMIT {
        sample.find(
            CanaryVerdict::WrongResultSuspected,
            format!(
                "the error is above the limit of {TRANSFORM_LIMIT:.1e}; run `gpu-node-exporter canary --check \
                 sm_sdc --repeat 20` on the drained GPU"
            ),
        );
    }
    sample
}
