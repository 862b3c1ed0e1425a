use proptest::prelude::*;

use super::*;
use model::canary::{Instance, Judged};
use model::catalog::CanaryCheck;

const INTERVAL: Duration = Duration::from_secs(1800);
const START: Mono = Mono(1_000_000_000_000);

fn settings(mode: CanaryMode) -> ScheduleSettings {
    ScheduleSettings { mode, interval: INTERVAL, idle_for: Duration::from_secs(300), duty: 0.001 }
}

fn gpu(index: u32) -> Gpu {
    Gpu { gpu: index, uuid: format!("GPU-{index}").into() }
}

fn place(index: u32) -> Place {
    Place { gpu: gpu(index), instance: None }
}

fn devices(count: u32) -> BTreeMap<Gpu, Vec<Place>> {
    (0..count).map(|index| (gpu(index), vec![place(index)])).collect()
}

fn schedule(mode: CanaryMode, count: u32) -> CanarySchedule {
    let mut schedule = CanarySchedule::new(settings(mode), 7);
    schedule.devices(START, &devices(count));
    schedule
}

fn outcome(place: &Place, end: CanaryEnd, samples: &[CanaryVerdict]) -> Outcome {
    let judged = |sample: &CanaryVerdict| Judged {
        check: CanaryCheck::SmRate,
        verdict: CanaryVerdict::Ok,
        sample: *sample,
        text: String::new(),
        rate: None,
        ratios: Vec::new(),
        sm_clock_hertz: None,
        zeroed: 0,
        flipped: 0,
        bad_sms: Vec::new(),
    };
    Outcome {
        place: place.clone(),
        began: 0.0,
        ended: 1.0,
        end,
        skip: None,
        text: String::new(),
        step: None,
        cuda_error: None,
        steps: Vec::new(),
        gpu_seconds: 0.05,
        checks: samples.iter().map(judged).collect(),
    }
}

/// Makes a run on GPU 0 at `now`, and returns the time to the next run.
fn wait_after(
    schedule: &mut CanarySchedule,
    now: Mono,
    end: CanaryEnd,
    samples: &[CanaryVerdict],
) -> Duration {
    schedule.began(now, &place(0));
    schedule.ended(now, &outcome(&place(0), end, samples));
    schedule.next_due(&gpu(0)).unwrap().since(now)
}

fn about(found: Duration, expected: Duration) -> bool {
    (expected.mul_f64(0.799)..=expected.mul_f64(1.201)).contains(&found)
}

#[test]
fn the_first_runs_come_late_and_spread() {
    let schedule = schedule(CanaryMode::Idle, 8);
    let mut due: Vec<Duration> = (0..8).map(|i| schedule.next_due(&gpu(i)).unwrap().since(START)).collect();
    due.sort();
    assert!(due[0] >= INTERVAL / 4 && due[7] <= INTERVAL / 4 + INTERVAL, "{due:?}");
    for pair in due.windows(2) {
        assert!(pair[1] - pair[0] > INTERVAL / 200, "{due:?}");
        assert!(pair[1] - pair[0] < INTERVAL / 3, "{due:?}");
    }
}

#[test]
fn nothing_is_due_where_nothing_is_planned() {
    for mode in [CanaryMode::Off, CanaryMode::OnDemand] {
        let schedule = schedule(mode, 2);
        assert_eq!(schedule.due(START + INTERVAL * 10), []);
        assert_eq!(schedule.next_due(&gpu(0)), None);
    }
}

#[test]
fn a_low_sample_brings_the_next_run_forward_so_that_three_of_four_take_under_an_hour() {
    let mut schedule = schedule(CanaryMode::Idle, 1);
    let mut now = START + INTERVAL;
    let mut took = Duration::ZERO;
    for _ in 0..3 {
        let wait = wait_after(&mut schedule, now, CanaryEnd::Finished, &[CanaryVerdict::SlowSm]);
        assert!(about(wait, INTERVAL / 6), "{wait:?}");
        (now, took) = (now + wait, took + wait);
    }
    assert!(took < Duration::from_secs(3600));
    let then = wait_after(&mut schedule, now, CanaryEnd::Finished, &[CanaryVerdict::SlowSm]);
    assert!(about(then, INTERVAL), "it is known now: {then:?}");
    let well = wait_after(&mut schedule, now, CanaryEnd::Finished, &[CanaryVerdict::Ok]);
    assert!(about(well, INTERVAL));
    let low = wait_after(&mut schedule, now, CanaryEnd::Finished, &[CanaryVerdict::Slow]);
    assert!(about(low, INTERVAL / 6), "counted again");
}

#[test]
fn pauses_grow_while_nothing_can_be_found_out() {
    let mut schedule = schedule(CanaryMode::Idle, 1);
    for factor in [2, 4, 4, 4] {
        let wait = wait_after(&mut schedule, START, CanaryEnd::CouldNotRun, &[]);
        assert!(about(wait, INTERVAL * factor), "{wait:?}");
    }
    let wait = wait_after(&mut schedule, START, CanaryEnd::Finished, &[]);
    assert!(about(wait, INTERVAL));
    let faults: Vec<Duration> =
        (0..4).map(|_| wait_after(&mut schedule, START, CanaryEnd::DriverFault, &[])).collect();
    assert!(about(faults[0], INTERVAL / 6), "once more soon");
    assert!(about(faults[1], INTERVAL) && about(faults[2], INTERVAL * 2) && about(faults[3], INTERVAL * 4));
}

#[test]
fn a_refusal_counts_once_for_each_reason_and_again_after_growing_pauses() {
    let mut schedule = schedule(CanaryMode::Idle, 1);
    let mut now = START + INTERVAL * 2;
    let mut counted = Vec::new();
    let end = now + INTERVAL * 12;
    while now < end {
        for due in schedule.due(now) {
            if schedule.refused(now, &due.gpu, CanarySkip::Processes) {
                counted.push(now);
            }
            assert!(schedule.due(now).is_empty(), "not looked at again at once");
        }
        now = now + Duration::from_secs(1);
    }
    let gaps: Vec<u64> = counted.windows(2).map(|pair| pair[1].since(pair[0]).as_secs() / 600).collect();
    assert_eq!(gaps, [3, 6, 12, 12], "in intervals of 30 min: 1, 2, 4, 4");
    assert!(schedule.refused(now, &gpu(0), CanarySkip::Busy), "another reason");
    assert!(!schedule.refused(now, &gpu(0), CanarySkip::Busy));
}

#[test]
fn instances_take_turns() {
    let instance = |id| Place {
        gpu: gpu(0),
        instance: Some(Instance {
            gpu_instance: id,
            compute_instance: 0,
            profile: "1g.18gb".into(),
            mig_uuid: format!("MIG-{id}"),
        }),
    };
    let mut schedule = CanarySchedule::new(settings(CanaryMode::Idle), 1);
    let places: Vec<Place> = (0..3).map(instance).collect();
    schedule.devices(START, &[(gpu(0), places.clone())].into());
    let mut now = START + INTERVAL * 2;
    let mut order = Vec::new();
    for _ in 0..6 {
        let due = schedule.due(now);
        assert_eq!((due.len(), due[0].places.len()), (1, 3));
        let first = due[0].places[0].clone();
        schedule.began(now, &first);
        schedule.ended(now, &outcome(&first, CanaryEnd::Finished, &[]));
        order.push(first.instance.map(|i| i.gpu_instance));
        now = schedule.next_due(&gpu(0)).unwrap();
    }
    assert_eq!(order, [0, 1, 2, 0, 1, 2].map(Some));
    // An instance that was created again counts as new.
    schedule.devices(now, &[(gpu(0), Vec::new())].into());
    assert!(schedule.due(now)[0].places.is_empty());
}

#[test]
fn a_job_that_leaves_brings_a_run_once() {
    let mut schedule = schedule(CanaryMode::AfterJob, 1);
    let at = |seconds| START + Duration::from_secs(seconds);
    schedule.working(at(1), &place(0), false);
    assert_eq!(schedule.due(at(60)), [], "no job was there");
    schedule.working(at(70), &place(0), true);
    schedule.working(at(80), &place(0), false);
    assert_eq!(schedule.due(at(84)), []);
    let due = schedule.due(at(85));
    assert_eq!((due.len(), due[0].idle_for), (1, AFTER_JOB));
    // The next job starts before the run.
    schedule.working(at(86), &place(0), true);
    assert_eq!(schedule.due(at(87)), []);
    schedule.working(at(90), &place(0), false);
    schedule.began(at(95), &place(0));
    schedule.ended(at(96), &outcome(&place(0), CanaryEnd::Finished, &[]));
    assert_eq!(schedule.due(at(200)), [], "once a job");
    schedule.working(at(200), &place(0), true);
    schedule.working(at(210), &place(0), false);
    assert_eq!(schedule.due(at(394)), [], "and once in a sixth of the interval");
    assert_eq!(schedule.due(at(395)).len(), 1);
}

#[test]
fn a_budget_that_is_spent_says_for_how_long() {
    let mut schedule = schedule(CanaryMode::Idle, 1);
    assert_eq!(schedule.budget_wait(&gpu(0), START), None);
    let mut expensive = outcome(&place(0), CanaryEnd::Finished, &[]);
    expensive.gpu_seconds = 2.8;
    schedule.ended(START, &expensive);
    let wait = schedule.budget_wait(&gpu(0), START).unwrap();
    assert_eq!(wait.as_secs(), 1000, "1.8 s were in it");
}

proptest! {
    #[test]
    fn runs_that_go_well_keep_their_distance(seed: u64, count in 1u32..9) {
        let mut schedule = CanarySchedule::new(settings(CanaryMode::Idle), seed);
        schedule.devices(START, &devices(count));
        let mut last: BTreeMap<Gpu, Mono> = BTreeMap::new();
        let mut now = START;
        for _ in 0..600 {
            now = now + Duration::from_secs(30);
            // Only one GPU runs at a time.
            let Some(due) = schedule.due(now).into_iter().next() else { continue };
            prop_assert!(now.since(START) >= INTERVAL / 4, "not right after the start");
            if let Some(last) = last.insert(due.gpu.clone(), now) {
                let gap = now.since(last);
                prop_assert!(gap >= INTERVAL.mul_f64(0.8) && gap <= INTERVAL.mul_f64(1.2) + Duration::from_secs(300));
            }
            schedule.began(now, &due.places[0]);
            schedule.ended(now, &outcome(&due.places[0], CanaryEnd::Finished, &[CanaryVerdict::Ok]));
        }
        prop_assert_eq!(last.len() as u32, count, "each had its turn");
    }

    #[test]
    fn whatever_happens_a_gpu_is_never_left_for_good(
        seed: u64, ends in prop::collection::vec((0usize..6, any::<bool>()), 1..60)
    ) {
        let mut schedule = CanarySchedule::new(settings(CanaryMode::AfterJob), seed);
        schedule.devices(START, &devices(1));
        let mut now = START;
        for (end, low) in ends {
            let next = schedule.next_due(&gpu(0)).unwrap();
            prop_assert!(next.since(now) <= INTERVAL.mul_f64(4.0 * 1.2) + Duration::from_secs(1));
            now = next.max(now);
            let samples = if low { vec![CanaryVerdict::Throttled] } else { vec![] };
            let end = [
                CanaryEnd::Finished, CanaryEnd::Abandoned, CanaryEnd::DriverFault, CanaryEnd::Hung,
                CanaryEnd::CouldNotRun, CanaryEnd::Broken,
            ][end];
            schedule.began(now, &place(0));
            schedule.ended(now, &outcome(&place(0), end, &samples));
            prop_assert!(schedule.next_due(&gpu(0)).unwrap() > now, "never at once again");
        }
    }
}

#[test]
fn other_settings_bring_the_next_run_forward_and_never_put_it_off() {
    let mut schedule = schedule(CanaryMode::Idle, 1);
    let before = schedule.next_due(&gpu(0)).unwrap();
    let longer = ScheduleSettings { interval: INTERVAL * 10, ..settings(CanaryMode::Idle) };
    schedule.configure(longer, START);
    assert_eq!(schedule.next_due(&gpu(0)), Some(before));
    let shorter = ScheduleSettings { interval: Duration::from_secs(60), ..longer };
    schedule.configure(shorter, START);
    assert!(schedule.next_due(&gpu(0)).unwrap() <= START + shorter.interval * 2);
    schedule.configure(ScheduleSettings { mode: CanaryMode::OnDemand, ..shorter }, START);
    assert_eq!(schedule.next_due(&gpu(0)), None);
}
