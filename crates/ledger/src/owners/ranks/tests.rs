use super::*;

const AFTER: Duration = Duration::from_secs(60);

fn at(seconds: u64) -> Mono {
    Mono(seconds * 1_000_000_000)
}

fn rank(gpu: u32, pace: Pace) -> OwnerGpu {
    OwnerGpu {
        gpu,
        pace: Some(pace),
        of_work: true,
        longer_than_waits: Duration::ZERO,
        sm: None,
        step: Some(0.5),
        beats: true,
        still: false,
    }
}

fn follow(ranks: &mut Ranks, now: u64, list: &[OwnerGpu]) -> RanksFound {
    let owners = BTreeMap::from([(Arc::from("job"), list.to_vec())]);
    ranks.follow(&owners, AFTER, at(now)).remove("job").unwrap()
}

/// What is found after these seconds of the same.
fn after(seconds: u64, list: &[OwnerGpu]) -> RanksFound {
    let mut ranks = Ranks::default();
    (0..seconds).for_each(|now| drop(follow(&mut ranks, now, list)));
    follow(&mut ranks, seconds, list)
}

#[test]
fn the_rank_that_rests_while_others_wait_is_missing() {
    use Pace::*;
    let wedged = [rank(0, Waits), rank(1, Rests), rank(2, Waits)];
    assert_eq!(after(5, &wedged).missing, None);
    assert_eq!(after(6, &wedged).missing, Some(vec![1]));
    assert_eq!(after(500, &[rank(0, Waits), rank(1, Waits)]).missing, None, "each GPU is judged alone");
    assert_eq!(after(500, &[rank(0, Rests), rank(1, Rests)]).missing, None);
    assert_eq!(after(500, &[rank(0, Waits), rank(1, Moves)]).missing, None);
    assert_eq!(after(500, &[rank(0, Waits)]).missing, None);
    let unknown = OwnerGpu { pace: None, ..rank(1, Rests) };
    assert_eq!(after(500, &[rank(0, Waits), unknown]).missing, None);
    let stepless = OwnerGpu { step: None, ..rank(1, Rests) };
    assert_eq!(after(500, &[rank(0, Waits), stepless]).missing, None, "a server");
    let other = OwnerGpu { step: Some(0.7), ..rank(1, Rests) };
    assert_eq!(after(500, &[rank(0, Waits), other]).missing, None, "two jobs of a user");
    let new = OwnerGpu { of_work: false, ..rank(1, Rests) };
    assert_eq!(after(500, &[rank(0, Waits), new]).missing, None);
}

#[test]
fn a_wait_that_ended_once_must_last_longer() {
    let patient = OwnerGpu { longer_than_waits: Duration::from_secs(200), ..rank(0, Pace::Waits) };
    let list = [patient, rank(1, Pace::Rests)];
    assert_eq!(after(169, &list).missing, None);
    assert_eq!(after(170, &list).missing, Some(vec![1]));
}

#[test]
fn all_must_be_still_to_have_stalled() {
    let still = |gpu| OwnerGpu { still: true, ..rank(gpu, Pace::Rests) };
    assert!(after(0, &[still(0)]).stalled);
    assert!(after(0, &[still(0), still(1)]).stalled);
    assert!(!after(0, &[still(0), rank(1, Pace::Waits)]).stalled);
}

#[test]
fn the_slow_rank_waits_least() {
    let works = |gpu, sm, step| OwnerGpu { sm: Some(sm), step: Some(step), ..rank(gpu, Pace::Moves) };
    // The recording `slow5`: rank 1 does 6 % more work.
    let slow = [works(0, 0.864, 0.4875), works(1, 0.910, 0.4877)];
    assert_eq!(after(9, &slow).slow, None);
    let (gpu, share) = after(10, &slow).slow.unwrap();
    assert_eq!(gpu, 1);
    assert!((share - 0.056).abs() < 0.001, "{share}");
    // Of one rank two steps are found as one.
    let twice = [works(0, 0.864, 0.4875), works(1, 0.910, 0.975)];
    assert_eq!(after(10, &twice).slow.map(|(gpu, _)| gpu), Some(1));
    // Before that they differ for other reasons.
    assert_eq!(after(99, &[works(0, 0.912, 0.4666), works(1, 0.893, 0.4666)]).slow, None);
    // Two jobs, or no step, or not all known.
    assert_eq!(after(99, &[works(0, 0.5, 0.4), works(1, 0.9, 0.7)]).slow, None);
    let stepless = OwnerGpu { step: None, ..works(1, 0.9, 0.4) };
    assert_eq!(after(99, &[works(0, 0.5, 0.4), stepless]).slow, None);
    // One waits in a collective with 24 channels, and the other is missing.
    let halted = [OwnerGpu { pace: Some(Pace::Waits), ..works(0, 0.182, 0.47) }, works(1, 0.0, 0.47)];
    assert_eq!(after(99, &halted).slow, None);
    let ended = OwnerGpu { beats: false, ..works(1, 0.9, 0.47) };
    assert_eq!(after(99, &[works(0, 0.8, 0.47), ended]).slow, None);
    // Two slow ranks of four: which of them holds the others back is not known.
    let two = [0.86, 0.91, 0.91, 0.86].iter().zip(0..).map(|(sm, gpu)| works(gpu, *sm, 0.5));
    assert_eq!(after(99, &two.collect::<Vec<_>>()).slow, None);
}
