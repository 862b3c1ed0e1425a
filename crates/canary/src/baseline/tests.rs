//! The memory: what it keeps, what it drops, and that a file cannot hurt it.

use super::*;
use crate::judge::fixtures::{device, place};
use host::state::Store;

fn lesson(uuid: &str, driver: &str, at: f64, value: f64) -> Lesson {
    let mut place = place();
    place.gpu.uuid = uuid.into();
    let mut device = device();
    device.driver_version = driver.into();
    Lesson {
        spot: Spot::of(&place),
        at,
        device: Some((Configuration::of(&device), Model::of(&place, &device))),
        clean: vec![(Quantity::SmRateWork, value)],
        newest: vec![(Quantity::SmRateWork, value)],
        samples: vec![(CanaryCheck::SmRate, CanaryVerdict::Ok)],
    }
}

fn key(uuid: &str, driver: &str) -> (Spot, Configuration) {
    let lesson = lesson(uuid, driver, 0.0, 1.0);
    (lesson.spot, lesson.device.unwrap().0)
}

#[test]
fn it_takes_twenty_samples_and_keeps_two_hundred() {
    let mut memory = Memory::default();
    let (spot, configuration) = key("a", "1");
    for nth in 1..=300 {
        memory.take(lesson("a", "1", f64::from(nth), f64::from(nth)));
        let usual = memory.usual(&spot, &configuration, Quantity::SmRateWork);
        assert_eq!(usual.is_some(), nth >= 20, "{nth}");
    }
    let usual = memory.usual(&spot, &configuration, Quantity::SmRateWork).unwrap();
    assert_eq!((usual.count, usual.spread.median), (200, 200.5));
    assert_eq!(memory.usual(&spot, &configuration, Quantity::L2Read), None);
}

#[test]
fn another_configuration_begins_anew_and_three_are_kept() {
    let mut memory = Memory::default();
    for driver in ["1", "2", "3", "4"] {
        for nth in 0..25 {
            memory.take(lesson("a", driver, f64::from(nth), 1.0));
        }
    }
    let known = |driver| {
        let (spot, configuration) = key("a", driver);
        memory.usual(&spot, &configuration, Quantity::SmRateWork).is_some()
    };
    assert!(!known("1") && known("2") && known("3") && known("4"));
    let (spot, old) = key("a", "3");
    assert!(memory.recent(&spot, &old, CanaryCheck::SmRate, 99.0).is_empty(), "verdicts hold for the newest");
    let (_, new) = key("a", "4");
    assert_eq!(memory.recent(&spot, &new, CanaryCheck::SmRate, 99.0).len(), 4);
    assert!(memory.recent(&spot, &new, CanaryCheck::SmRate, 20.0).is_empty(), "all are from the future");
}

#[test]
fn places_are_bounded_and_the_longest_unused_go_first() {
    let mut memory = Memory::default();
    for nth in 0..SETS + 10 {
        memory.take(lesson(&format!("GPU-{nth}"), "1", 0.0, 1.0));
        memory.take(lesson("GPU-0", "1", 0.0, 1.0));
    }
    assert_eq!((memory.sets.len(), memory.lately.len()), (SETS, SETS));
    let (spot, configuration) = key("GPU-0", "1");
    assert!(memory.count(&spot, &configuration, Quantity::SmRateWork) > 0);
    let (spot, configuration) = key("GPU-5", "1");
    assert_eq!(memory.count(&spot, &configuration, Quantity::SmRateWork), 0);
}

#[test]
fn the_largest_memory_fits_its_file() {
    let mut memory = Memory::default();
    let every: Vec<Quantity> = {
        use Quantity::*;
        vec![SmRateWork, SmRateClock, TensorWork, TensorClock, HbmRead, L2Read, ToGpu, ToHost, Launch]
    };
    let every: Vec<Quantity> =
        every.into_iter().chain(Quantity::STEPS.map(|(_, quantity)| quantity)).collect();
    let mut full = lesson("GPU-00000000-0000-0000-0000-000000000000", "580.159.04", 1.8e9, 1.0);
    // One of the longest numbers there are.
    full.clean = every.iter().map(|quantity| (*quantity, f64::from(1.234_567_8e-30_f32))).collect();
    for _ in 0..KEPT {
        memory.take(full.clone());
    }
    let one = serde_json::to_vec(&memory.sets[0]).unwrap().len();
    assert!(one * SETS + 1_000_000 < Memory::MAX_BYTES, "{one} bytes a set");
}

#[test]
fn it_comes_back_from_its_file_and_a_bad_file_is_no_fault() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path());
    let mut memory = Memory::default();
    for nth in 0..30 {
        memory.take(lesson("a", "1", f64::from(nth), 121.92));
    }
    store.save(&memory).unwrap();
    assert_eq!(store.load::<Memory>().unwrap().map(Memory::mended), Some(memory));
    for text in [
        r#"{"kind":"canary","version":99,"data":{}}"#,
        r#"{"kind":"inventory","version":1,"data":{}}"#,
        r#"{"kind":"canary","version":1,"data":{"sets":[{"spot":null}],"lately":[]}}"#,
        "\0\0\0",
    ] {
        std::fs::write(dir.path().join("canary.json"), text).unwrap();
        assert_eq!(store.load::<Memory>().unwrap(), None, "{text}");
        assert!(dir.path().join("canary.corrupt").exists());
    }
}

#[test]
fn what_is_odd_in_a_file_is_dropped() {
    let mut memory = Memory::default();
    memory.take(lesson("a", "1", 0.0, 1.0));
    let set = &mut memory.sets[0];
    set.samples.insert(Quantity::L2Read, vec![-1.0, 0.0, 5.0]);
    set.samples.insert(Quantity::Launch, vec![1.0; 5000]);
    memory.lately[0].newest.insert(Quantity::L2Read, -4.0);
    memory.lately[0].recent.insert(CanaryCheck::L2, vec![Recent { at: 1.0, sample: CanaryVerdict::Ok }; 99]);
    let memory = memory.mended();
    assert_eq!(memory.sets[0].samples[&Quantity::L2Read], vec![5.0]);
    assert_eq!(memory.sets[0].samples[&Quantity::Launch].len(), KEPT);
    assert!(!memory.lately[0].newest.contains_key(&Quantity::L2Read));
    assert_eq!(memory.lately[0].recent[&CanaryCheck::L2].len(), 4);
}
