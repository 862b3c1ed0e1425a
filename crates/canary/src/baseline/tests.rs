//! The history stores and drops the right samples, and tolerates any file.

use super::*;
use crate::checks::steps::STEPS;
use crate::judge::fixtures::{device, place};
use host::state::Store;

fn update(uuid: &str, driver: &str, at: f64, value: f64) -> BaselineUpdate {
    let mut place = place();
    place.gpu.uuid = uuid.into();
    let mut device = device();
    device.driver_version = driver.into();
    BaselineUpdate {
        key: key(&place),
        at,
        device: Some((configuration(&device), model(&place, &device))),
        clean: vec![(Quantity::SM_RATE_WORK, value)],
        newest: vec![(Quantity::SM_RATE_WORK, value)],
        samples: vec![(CanaryCheck::SmRate, CanaryVerdict::Ok)],
    }
}

fn key_of(uuid: &str, driver: &str) -> (String, String) {
    let update = update(uuid, driver, 0.0, 1.0);
    (update.key, update.device.unwrap().0)
}

#[test]
fn it_takes_twenty_samples_and_keeps_two_hundred() {
    let mut memory = BaselineStore::default();
    let (key, configuration) = key_of("a", "1");
    for nth in 1..=300 {
        memory.apply(update("a", "1", f64::from(nth), f64::from(nth)));
        let usual = memory.reference(&key, &configuration, Quantity::SM_RATE_WORK);
        assert_eq!(usual.is_some(), nth >= 20, "{nth}");
    }
    let usual = memory.reference(&key, &configuration, Quantity::SM_RATE_WORK).unwrap();
    assert_eq!((usual.count, usual.spread.median), (200, 200.5));
    assert_eq!(memory.reference(&key, &configuration, Quantity::L2_READ), None);
}

#[test]
fn another_configuration_begins_again_and_three_are_kept() {
    let mut memory = BaselineStore::default();
    for driver in ["1", "2", "3", "4"] {
        for nth in 0..25 {
            memory.apply(update("a", driver, f64::from(nth), 1.0));
        }
    }
    let known = |driver| {
        let (key, configuration) = key_of("a", driver);
        memory.reference(&key, &configuration, Quantity::SM_RATE_WORK).is_some()
    };
    assert!(!known("1") && known("2") && known("3") && known("4"));
    let (key, old) = key_of("a", "3");
    assert!(memory.recent(&key, &old, CanaryCheck::SmRate, 99.0).is_empty(), "verdicts hold for the newest");
    let (_, new) = key_of("a", "4");
    assert_eq!(memory.recent(&key, &new, CanaryCheck::SmRate, 99.0).len(), 4);
    assert!(memory.recent(&key, &new, CanaryCheck::SmRate, 20.0).is_empty(), "all are from the future");
}

#[test]
fn places_are_bounded_and_the_longest_unused_go_first() {
    let mut memory = BaselineStore::default();
    for nth in 0..SETS + 10 {
        memory.apply(update(&format!("GPU-{nth}"), "1", 0.0, 1.0));
        memory.apply(update("GPU-0", "1", 0.0, 1.0));
    }
    assert_eq!((memory.sets.len(), memory.recent_runs.len()), (SETS, SETS));
    let (key, configuration) = key_of("GPU-0", "1");
    assert!(memory.count(&key, &configuration, Quantity::SM_RATE_WORK) > 0);
    let (key, configuration) = key_of("GPU-5", "1");
    assert_eq!(memory.count(&key, &configuration, Quantity::SM_RATE_WORK), 0);
}

#[test]
fn the_largest_memory_fits_its_file() {
    let mut memory = BaselineStore::default();
    let every = [
        Quantity::SM_RATE_WORK,
        Quantity::SM_RATE_CLOCK,
        Quantity::TENSOR_WORK,
        Quantity::TENSOR_CLOCK,
        Quantity::HBM_READ,
        Quantity::L2_READ,
        Quantity::TO_GPU,
        Quantity::TO_HOST,
        Quantity::LAUNCH,
    ];
    let every: Vec<Quantity> = every.into_iter().chain(STEPS.map(|(_, quantity)| quantity)).collect();
    let mut full = update("GPU-00000000-0000-0000-0000-000000000000", "580.159.04", 1.8e9, 1.0);
    // One of the longest numbers when written as text.
    full.clean = every.iter().map(|quantity| (*quantity, f64::from(1.234_567_8e-30_f32))).collect();
    for _ in 0..KEPT {
        memory.apply(full.clone());
    }
    let one = serde_json::to_vec(&memory.sets[0]).unwrap().len();
    assert!(one * SETS + 1_000_000 < BaselineStore::MAX_BYTES, "{one} bytes a set");
}

#[test]
fn it_comes_back_from_its_file_and_a_bad_file_is_no_fault() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path());
    let mut memory = BaselineStore::default();
    for nth in 0..30 {
        memory.apply(update("a", "1", f64::from(nth), 121.92));
    }
    store.save(&memory).unwrap();
    assert_eq!(store.load::<BaselineStore>().unwrap().map(BaselineStore::sanitized), Some(memory));
    for text in [
        r#"{"kind":"canary","version":99,"data":{}}"#,
        r#"{"kind":"inventory","version":1,"data":{}}"#,
        r#"{"kind":"canary","version":1,"data":{"sets":[{"key":null}],"recent_runs":[]}}"#,
        "\0\0\0",
    ] {
        std::fs::write(dir.path().join("canary.json"), text).unwrap();
        assert_eq!(store.load::<BaselineStore>().unwrap(), None, "{text}");
        assert!(dir.path().join("canary.corrupt").exists());
    }
}

#[test]
fn what_is_odd_in_a_file_is_dropped() {
    let mut memory = BaselineStore::default();
    memory.apply(update("a", "1", 0.0, 1.0));
    let set = &mut memory.sets[0];
    set.samples.insert(Quantity::L2_READ.name.to_owned(), vec![-1.0, 0.0, 5.0]);
    set.samples.insert(Quantity::LAUNCH.name.to_owned(), vec![1.0; 5000]);
    memory.recent_runs[0].newest.insert(Quantity::L2_READ.name.to_owned(), -4.0);
    memory.recent_runs[0]
        .recent
        .insert(CanaryCheck::L2, vec![RecentSample { at: 1.0, sample: CanaryVerdict::Ok }; 99]);
    let memory = memory.sanitized();
    assert_eq!(memory.sets[0].samples[Quantity::L2_READ.name], vec![5.0]);
    assert_eq!(memory.sets[0].samples[Quantity::LAUNCH.name].len(), KEPT);
    assert!(!memory.recent_runs[0].newest.contains_key(Quantity::L2_READ.name));
    assert_eq!(memory.recent_runs[0].recent[&CanaryCheck::L2].len(), 4);
}
