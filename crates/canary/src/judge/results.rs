//! Detects wrong results of computations, copies and memory.

use std::collections::BTreeSet;

use super::{RunContext, Sample};
use crate::format::{counted, listed};
use crate::report::{Measurement, Mismatch};
use model::catalog::schema::KnownLabel;
use model::catalog::{BadSmKind, CanaryCheck, CanaryVerdict};

/// Maximum number of multiprocessors to list.
const NAMED: usize = 8;

/// Checks for wrong results and sets the verdict.
pub fn judge(view: &RunContext<'_>, measured: &Measurement, sample: Sample) -> Sample {
    let wrong = &measured.mismatches;
    if wrong.wrong == 0 {
        return sample;
    }
    let before = earlier(view, measured.check);
    let again = wrong.wrong_reruns > 0;
    let verdict = match again || before.is_some() {
        true => CanaryVerdict::WrongResult,
        false => CanaryVerdict::WrongResultSuspected,
    };
    let mut text = format!("{} of {} results are wrong", wrong.wrong, wrong.compared.max(wrong.wrong));
    if wrong.zeroed > 0 {
        text.push_str(&format!(" ({} with all bits 0)", wrong.zeroed.min(wrong.wrong)));
    }
    let sms: BTreeSet<u32> = wrong.first.iter().filter_map(|mismatch| mismatch.smid).collect();
    let sms = Vec::from_iter(sms);
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

/// Returns a check with a wrong result at this place within the last 30 days.
fn earlier(view: &RunContext<'_>, this: CanaryCheck) -> Option<&'static str> {
    let wrong = view.baseline.wrong(view.key).iter().filter(|wrong| wrong.counts(view.now));
    // The same check comes first, because it is the strongest evidence.
    let wrong = wrong.max_by_key(|wrong| wrong.check == this)?;
    Some(wrong.check.known())
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
