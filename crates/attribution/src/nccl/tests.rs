use std::time::Duration;

use super::questions::Questions;
use super::*;
use proptest::prelude::*;

const STEADY: &str = include_str!("../../../../tests/data/nccl/steady.json");
const WEDGED: &str = include_str!("../../../../tests/data/nccl/wedged.json");

fn at(seconds: u64) -> Mono {
    Mono(seconds * 1_000_000_000)
}

fn place(owner: &str, gpu: u32, pid: u32) -> RankPlace {
    RankPlace {
        owner: owner.into(),
        gpu: Gpu { gpu, uuid: format!("GPU-{gpu}").into() },
        gpu_instance: None,
        pids: vec![pid],
        worked: Some(at(0)),
        waits_since: None,
    }
}

fn own(pids: &[u32]) -> BTreeMap<u32, Vec<u32>> {
    pids.iter().map(|pid| (*pid, vec![*pid])).collect()
}

/// A communicator: its size, and its ranks' process, GPU and count of all-reduces.
type Members<'a> = (u64, &'a [(u32, u32, u64)]);

/// A document of communicators.
fn document(version: &str, communicators: &[Members<'_>]) -> String {
    let rank = |(number, (pid, gpu, count)): (usize, &(u32, u32, u64))| {
        format!(
            r#"{{"rank":{number},"host":"h","pid":{pid},"nvml_dev":{gpu},"collective_counts":{{"AllReduce":{count}}}}}"#
        )
    };
    let communicator = |(size, ranks): &Members<'_>| {
        let ranks: Vec<String> = ranks.iter().enumerate().map(rank).collect();
        format!(r#"{{"size":{size},"ranks":[{}]}}"#, ranks.join(","))
    };
    let all: Vec<String> = communicators.iter().map(communicator).collect();
    format!(r#"{{"nccl_version":"{version}","communicators":[{}]}}"#, all.join(","))
}

fn read(document: &str) -> Status {
    status(document.as_bytes()).unwrap()
}

#[test]
fn the_recorded_answers_name_the_rank_that_is_missing() {
    let steady = read(STEADY);
    assert_eq!((steady.version, steady.communicators), (NcclVersion(2, 28, 9), 1));
    assert!(!steady.is_old() && steady.ranks.iter().all(|rank| rank.collectives == 55 && !rank.behind));
    let wedged = read(WEDGED);
    let ranks: Vec<_> = wedged
        .ranks
        .iter()
        .map(|r| (r.pid, r.nvml_dev, r.rank, r.collectives, r.launched, r.behind))
        .collect();
    assert_eq!(ranks, [(631, 0, 0, 109, 109, false), (632, 1, 1, 107, 107, true)]);
}

#[test]
fn the_rank_that_leads_nowhere_is_the_one_that_is_missing() {
    // Process 3 is missing in the pair of 2 and 3; so 2 is late for the pair of 1 and 2, and 1 waits there.
    let status = read(&document("2.29.2", &[(2, &[(1, 0, 8), (2, 1, 7)]), (2, &[(2, 1, 5), (3, 2, 4)])]));
    let behind: Vec<_> = status.ranks.iter().map(|rank| (rank.pid, rank.behind)).collect();
    assert_eq!(behind, [(1, false), (2, false), (3, true)]);
    // The number and count are of the largest communicator, what was launched of all.
    let status = read(&document("2.29.2", &[(1, &[(7, 0, 90)]), (2, &[(8, 1, 3), (7, 0, 4)])]));
    let seven = status.ranks.iter().find(|rank| rank.pid == 7).unwrap();
    assert_eq!((seven.rank, seven.collectives, seven.launched), (1, 4, 94));
}

#[test]
fn versions_are_read_and_ordered() {
    for (text, version) in [
        ("2.28.9", Some(NcclVersion(2, 28, 9))),
        ("2.28.7+cuda13.0", Some(NcclVersion(2, 28, 7))),
        ("2.28", None),
        ("2.28.", None),
        ("2.x.1", None),
        ("", None),
    ] {
        assert_eq!(NcclVersion::parse(text), version, "{text}");
    }
    assert!(read(&document("2.28.6", &[])).is_old() && !read(&document("2.28.7", &[])).is_old());
    assert!(!read(&document("2.100.0", &[])).is_old());
}

#[test]
fn a_greeting_has_its_reply() {
    let [first, timeout, format] = GREETINGS;
    assert_eq!(reply(first, "SERVER PROTOCOL 2"), Reply::Accepted);
    assert_eq!((reply(timeout, "OK"), reply(format, "OK")), (Reply::Accepted, Reply::Accepted));
    assert_eq!(reply(format, "ERROR: Unknown command SET FORMAT json"), Reply::Refused);
    for (greeting, line) in [(first, "OK"), (first, "ERROR"), (timeout, "ERROR"), (format, "HTTP/1.1 400")] {
        assert_eq!(reply(greeting, line), Reply::Foreign, "{greeting} {line}");
    }
}

#[test]
fn ranks_are_joined_by_process_and_host() {
    let status = read(WEDGED);
    let places = [place("a", 4, 9631), place("a", 5, 9632)];
    // In a container the process has another id, and the GPU another index.
    let inner: BTreeMap<u32, Vec<u32>> = [(631, vec![9631]), (632, vec![9632])].into();
    let joined = join(&status.ranks, &places, &inner, |host| host == "192.0.2.2");
    let found: Vec<_> = joined.iter().map(|(pid, place, rank)| (*pid, place.gpu.gpu, rank.rank)).collect();
    assert_eq!(found, [(9631, 4, 0), (9632, 5, 1)]);
    assert!(join(&status.ranks, &places, &inner, |_| false).is_empty(), "of another node");
    let twice: BTreeMap<u32, Vec<u32>> = [(631, vec![9631, 9632])].into();
    assert!(join(&status.ranks, &places, &twice, |_| true).is_empty(), "of two containers");
}

#[test]
fn a_process_on_several_gpus_has_its_rank_where_nvml_counts_alike() {
    let status = read(WEDGED);
    // Process 632 has a context on GPU 0 too.
    let both = RankPlace { pids: vec![631, 632], ..place("a", 0, 0) };
    let gpus = |places: &[RankPlace]| -> Vec<(u32, u32)> {
        let joined = join(&status.ranks, places, &own(&[631, 632]), |_| true);
        joined.iter().map(|(pid, place, _)| (*pid, place.gpu.gpu)).collect()
    };
    assert_eq!(gpus(&[both.clone(), place("a", 1, 632)]), [(631, 0), (632, 1)]);
    // The job sees GPUs 3 and 1 as 0 and 1.
    let three = RankPlace { gpu: Gpu { gpu: 3, uuid: "GPU-3".into() }, ..both };
    assert_eq!(gpus(&[three, place("a", 1, 632)]), [(631, 3)]);
}

/// Whether it is asked at this second, while the places work that do not wait.
fn look(questions: &mut Questions, places: &[RankPlace], second: u64) -> bool {
    let mut places = places.to_vec();
    for place in places.iter_mut().filter(|place| place.worked.is_some()) {
        place.worked = Some(at(second));
    }
    questions.look(&places, at(second))
}

/// Asks every second while the ranks are like this; the seconds at which it was asked.
fn asked(questions: &mut Questions, places: &[RankPlace], seconds: std::ops::Range<u64>) -> Vec<u64> {
    seconds.filter(|second| look(questions, places, *second)).collect()
}

fn waits(mut places: Vec<RankPlace>, since: u64) -> Vec<RankPlace> {
    for place in &mut places {
        (place.worked, place.waits_since) = (None, Some(at(since)));
    }
    places
}

fn job() -> Vec<RankPlace> {
    vec![place("a", 0, 631), place("a", 1, 632)]
}

/// Asks a job at 120 s that answers with so many communicators, and whether it may be asked again, where these of its two
/// processes are known.
fn answer(version: &str, communicators: usize, known: &[u32]) -> (Questions, bool) {
    let mut questions = Questions::new(Duration::from_secs(120));
    assert_eq!(asked(&mut questions, &job(), 0..121), [120]);
    let ranks: &[(u32, u32, u64)] = &[(631, 0, 1), (632, 1, 1)];
    let status = read(&document(version, &vec![(2, ranks); communicators]));
    let places = job();
    let joined = join(&status.ranks, &places, &own(known), |_| true);
    let again = questions.answered(&status, &joined, status.ranks.len());
    (questions, again)
}

/// The same of a job that may be asked again.
fn answered(version: &str, communicators: usize) -> Questions {
    let (questions, again) = answer(version, communicators, &[631, 632]);
    assert!(again);
    questions
}

#[test]
fn a_job_is_asked_once_a_minute_and_at_once_when_it_waits() {
    let mut questions = answered("2.29.2", 1);
    assert_eq!(asked(&mut questions, &job(), 121..250), [180, 240]);
    assert_eq!(asked(&mut questions, &waits(job(), 245), 246..312), [250, 280, 310], "10 s after the last");
    for second in 330..400 {
        look(&mut questions, &if second % 2 == 0 { waits(job(), second) } else { job() }, second);
    }
    assert_eq!(asked(&mut questions, &waits(job(), 400), 400..431), [400, 430], "it waited before");
    let mut none = Questions::new(Duration::from_secs(120));
    assert!(asked(&mut none, &[], 0..500).is_empty(), "without work");
}

#[test]
fn a_young_process_puts_off_every_question() {
    let mut questions = answered("2.28.9", 1);
    let more = [job(), vec![place("b", 2, 700)]].concat();
    assert_eq!(asked(&mut questions, &more, 130..300), [250]);
}

#[test]
fn none_is_asked_first_unless_all_places_compute() {
    let mut questions = Questions::new(Duration::from_secs(10));
    assert!(asked(&mut questions, &waits(job(), 5), 0..200).is_empty());
    let mut unseen = job();
    unseen[1].worked = None;
    assert!(asked(&mut questions, &unseen, 200..300).is_empty(), "a GPU without GPM, or shared");
    let computed = |second| {
        let mut places = job();
        (places[0].worked, places[1].worked) = (Some(at(310)), Some(at(second)));
        places
    };
    assert!(!questions.look(&computed(299), at(310)), "11 s ago");
    assert!(questions.look(&computed(300), at(310)));

    // Of another job nothing is known, however safe the first is.
    let mut questions = answered("2.29.2", 1);
    let more = [job(), waits(vec![place("b", 2, 700)], 125)].concat();
    assert!(asked(&mut questions, &more, 121..600).is_empty());
    let mut questions = Questions::new(Duration::from_secs(10));
    look(&mut questions, &job(), 0);
    assert_eq!(asked(&mut questions, &job()[..1], 10..90), [61], "a process has left");
}

#[test]
fn below_2_29_2_only_one_communicator_of_known_ranks_is_asked_about_again_and_in_no_halt() {
    for (version, communicators, known, again, in_halt) in [
        ("2.28.6", 1, [631, 632].as_slice(), false, false),
        ("2.28.7", 1, &[631, 632], true, false),
        ("2.29.1", 1, &[631, 632], true, false),
        ("2.29.1", 2, &[631, 632], false, false),
        ("2.28.9", 1, &[631], false, false),
        ("2.28.9", 1, &[], false, false),
        ("2.29.2", 2, &[631, 632], true, true),
        ("3.0.0", 9, &[631, 632], true, true),
        ("2.29.2", 1, &[631], true, false),
        ("2.29.2", 1, &[], true, false),
    ] {
        let case = format!("{version} {communicators} {known:?}");
        let (mut questions, may) = answer(version, communicators, known);
        assert_eq!(may, again, "{case}");
        assert_eq!(!asked(&mut questions, &job(), 121..1000).is_empty(), again, "{case}");
        let (mut questions, _) = answer(version, communicators, known);
        assert_eq!(
            !asked(&mut questions, &waits(job(), 130), 131..1000).is_empty(),
            in_halt,
            "{case}: it waits"
        );
        let mut unseen = job();
        unseen[1].worked = None;
        let (mut questions, _) = answer(version, communicators, known);
        assert_eq!(
            !asked(&mut questions, &unseen, 121..1000).is_empty(),
            in_halt,
            "{case}: it is not seen to compute"
        );
        // A rank that has left the GPU is missing too.
        let (mut questions, _) = answer(version, communicators, known);
        assert_eq!(
            !asked(&mut questions, &job()[..1], 179..181).is_empty(),
            in_halt,
            "{case}: a process has left"
        );
    }
}

#[test]
fn a_rank_that_has_left_is_missing_as_long_as_its_job_lives() {
    let mut questions = answered("2.28.9", 1);
    assert!(asked(&mut questions, &job()[..1], 121..1000).is_empty());
    assert_eq!(asked(&mut questions, &[place("b", 0, 900)], 1000..1200), [1120, 1180], "another job");
}

#[test]
fn a_job_that_must_not_be_asked_is_not_asked_while_it_lives() {
    let mut questions = Questions::new(Duration::from_secs(10));
    assert_eq!(asked(&mut questions, &job(), 0..11), [10]);
    questions.refused();
    assert!(asked(&mut questions, &job(), 11..1000).is_empty());
    assert_eq!(asked(&mut questions, &[place("b", 0, 900)], 1000..1100), [1060], "another job");
}

#[test]
fn what_does_not_answer_is_asked_ever_less_often() {
    let mut questions = answered("2.29.2", 1);
    let mut last = 120;
    let mut gaps = Vec::new();
    for second in 121..4000 {
        if look(&mut questions, &job(), second) {
            gaps.push(second - last);
            last = second;
            questions.failed();
        }
    }
    assert_eq!(gaps, [60, 120, 240, 480, 960, 960, 960]);
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = status(&bytes);
    }

    #[test]
    fn a_recorded_answer_cut_or_changed_is_read_or_refused(
        at in 0..STEADY.len(), byte in any::<u8>(), cut in any::<bool>(),
    ) {
        let mut bytes = WEDGED.as_bytes().to_vec();
        let at = at.min(bytes.len() - 1);
        if cut {
            // Nothing but the end of the line may be missing.
            prop_assert_eq!(status(&bytes[..at]).is_some(), at >= WEDGED.trim_end().len());
        } else {
            bytes[at] = byte;
            if let Some(status) = status(&bytes) {
                prop_assert!(status.ranks.len() <= 2);
            }
        }
    }

    #[test]
    fn nested_answers_do_no_harm(depth in 1usize..20_000, open in "\\[|\\{\"a\":") {
        prop_assert!(status(open.repeat(depth).as_bytes()).is_none());
    }

    /// One communicator: behind are those with fewer than the most, if they have the fewest.
    #[test]
    fn only_those_with_the_fewest_are_behind(counts in prop::collection::vec(0u64..4, 1..9)) {
        let ranks: Vec<(u32, u32, u64)> =
            counts.iter().zip(0..).map(|(count, n)| (100 + n, n, *count)).collect();
        let status = read(&document("2.29.2", &[(ranks.len() as u64, &ranks)]));
        let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        for rank in &status.ranks {
            prop_assert_eq!(rank.behind, rank.launched == *least && least < most);
        }
    }

    #[test]
    fn questions_are_never_close(steps in prop::collection::vec((any::<bool>(), 0u8..4), 1..300)) {
        let mut questions = answered("2.29.2", 3);
        let mut last = 120;
        for (second, (waiting, outcome)) in (121..).zip(steps) {
            let places = if waiting { waits(job(), second) } else { job() };
            if look(&mut questions, &places, second) {
                prop_assert!(second - last >= 10);
                last = second;
                match outcome {
                    0 => questions.found_none(),
                    1 => questions.failed(),
                    _ => {}
                }
            }
        }
    }
}
