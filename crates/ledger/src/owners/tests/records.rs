//! Records of owners that have ended.

use super::*;
use model::documents::Documents;
use model::owner_records::{FaultCount, OwnerRecord};

impl Bench {
    /// Seconds in which these were listed, each published.
    fn seconds(&mut self, count: usize, pids: &[u32]) -> Snapshot {
        let processes: Vec<GpuProcess> = pids.iter().map(|pid| on(*pid)).collect();
        (0..count).for_each(|_| {
            self.second(&processes, 0.5, 300.0, 0.9);
            self.publish();
        });
        self.publish()
    }

    /// A ledger whose GPU was watched before process 7 of owner `a` came.
    fn with_owner() -> Bench {
        let mut bench = Bench::new(settings::Owners::default());
        bench.seconds(3, &[]);
        bench.attribute(7, 102.0, "a");
        bench
    }
}

fn ended(s: &Snapshot) -> Vec<&OwnerRecord> {
    s.owner_records.ended.iter().map(|record| &**record).collect()
}

fn pending(s: &Snapshot) -> Vec<&str> {
    s.owner_records.pending.iter().map(|owner| &*owner.id).collect()
}

#[test]
fn a_record_has_what_the_owner_had_and_nothing_of_another() {
    let mut bench = Bench::with_owner();
    bench.attribute(8, 102.0, "b");
    bench.seconds(20, &[7]);
    let s = bench.seconds(20, &[7, 8]);
    assert!(ended(&s).is_empty());
    assert_eq!(pending(&s), ["a", "b"]);
    bench.seconds(1, &[8]);
    let s = bench.seconds(2, &[8]);
    let [record] = ended(&s)[..] else { panic!("{:?}", s.owner_records) };
    assert_eq!((&*record.owner, record.complete, record.partial), ("a", false, false));
    assert_eq!(record.allocated_seconds, 20.0 + 10.0);
    let busy = record.busy_seconds.unwrap();
    assert!((busy - 15.0).abs() < 0.3, "{busy}");
    let joules = record.energy_joules.unwrap();
    assert!((joules - 9000.0).abs() < 100.0, "{joules}");
    assert_eq!(record.start_unix_seconds, BOOT + 102.0);
    assert_eq!([record.since_unix_seconds, record.end_unix_seconds], [BOOT + 104.0, BOOT + 144.0]);
    let [place] = &record.places[..] else { panic!("{:?}", record.places) };
    assert_eq!((place.gpu, &*place.uuid, place.gpu_instance), (0, "a", None));
    assert_eq!(place.memory_peak_bytes, Some(1 << 30));
    assert_eq!((place.allocated_seconds, place.energy_joules), (30.0, record.energy_joules));
    assert_eq!(record.host_oom_kills, None, "not known");
    assert_eq!(pending(&s), ["b"]);
    // It changes no more, and outlasts its account.
    let at_once = record.clone();
    bench.seconds(70, &[8]);
    let s = bench.seconds(16 * 60, &[8]);
    assert_eq!(ended(&s), [&OwnerRecord { complete: true, ..at_once }]);
    assert!(s.number(&m::gpu_owner_allocated_seconds_total, &owned("a"), ()).is_none());
}

#[test]
fn what_is_in_one_record_is_in_no_other() {
    let mut bench = Bench::with_owner();
    let compute = |bench: &mut Bench, seconds: f64| {
        let (_, account) =
            bench.ledger.owners.accounts.all.iter_mut().find(|(key, _)| &*key.owner == "a").unwrap();
        account.sums.classes[m::GpuTimeClass::Computing as usize] += seconds;
        account.sums.peak = Some(seconds as u64 * (1 << 30));
    };
    bench.seconds(20, &[7]);
    compute(&mut bench, 1000.0);
    bench.seconds(70, &[]);
    bench.attribute(9, bench.now, "a");
    bench.seconds(15, &[9]);
    compute(&mut bench, 500.0);
    let s = bench.seconds(70, &[]);
    let of = |of: &dyn Fn(&OwnerRecord) -> f64| ended(&s).into_iter().map(of).collect::<Vec<_>>();
    assert_eq!(of(&|record| record.allocated_seconds), [15.0, 20.0]);
    let computing = of(&|record| record.class_seconds["computing"]);
    assert!(
        (500.0..=515.0).contains(&computing[0]) && (1000.0..=1020.0).contains(&computing[1]),
        "{computing:?}"
    );
    let peak = of(&|record| record.places[0].memory_peak_bytes.unwrap() as f64);
    assert_eq!(peak, [500.0, 1000.0].map(|gib| gib * f64::from(1 << 30)));
}

#[test]
fn an_owner_that_returns_soon_continues_its_record() {
    let mut bench = Bench::with_owner();
    bench.seconds(20, &[7]);
    let s = bench.seconds(55, &[]);
    assert_eq!(ended(&s).len(), 1);
    let s = bench.seconds(20, &[7]);
    assert!(ended(&s).is_empty(), "it is at work again");
    assert_eq!(pending(&s), ["a"]);
    let s = bench.seconds(70, &[]);
    let [record] = ended(&s)[..] else { panic!("{:?}", s.owner_records) };
    assert_eq!((record.allocated_seconds, record.partial), (40.0, false));
    // Later it has another one.
    bench.attribute(9, bench.now, "a");
    bench.seconds(30, &[9]);
    let s = bench.seconds(70, &[]);
    let times: Vec<f64> = ended(&s).iter().map(|record| record.allocated_seconds).collect();
    assert_eq!(times, [30.0, 40.0], "the newest first");
}

#[test]
fn less_than_ten_seconds_are_no_record() {
    let mut bench = Bench::with_owner();
    bench.seconds(9, &[7]);
    let s = bench.seconds(17, &[]);
    assert!(ended(&s).is_empty() && pending(&s).is_empty());
    assert!(ended(&bench.seconds(70, &[])).is_empty());
}

#[test]
fn time_that_is_not_counted_makes_a_record_partial() {
    // It was there before the daemon.
    let mut bench = Bench::new(settings::Owners::default());
    bench.attribute(7, 50.0, "a");
    bench.seconds(20, &[7]);
    let s = bench.seconds(17, &[]);
    assert!(ended(&s)[0].partial);
    assert_eq!(ended(&s)[0].start_unix_seconds, BOOT + 50.0);
    assert_eq!(ended(&s)[0].since_unix_seconds, BOOT + 101.0);
    // The GPU was not read for a while.
    let mut bench = Bench::with_owner();
    bench.seconds(10, &[7]);
    bench.now += 20.0;
    bench.seconds(10, &[7]);
    assert!(ended(&bench.seconds(17, &[]))[0].partial);
    // It is read no more.
    let mut bench = Bench::with_owner();
    bench.seconds(20, &[7]);
    bench.now += 250.0;
    assert!(ended(&bench.publish()).is_empty(), "it may work on");
    bench.now += 60.0;
    let s = bench.publish();
    assert!(ended(&s)[0].partial);
    assert!((ended(&s)[0].end_unix_seconds - BOOT - 123.0).abs() <= 5.0);
}

#[test]
fn an_owner_that_was_counted_with_others_has_a_partial_record() {
    let mut bench = Bench::new(settings::Owners { max_series: 1, ..settings::Owners::default() });
    bench.seconds(3, &[]);
    bench.attribute(8, 102.0, "b");
    bench.seconds(20, &[8]);
    bench.attribute(7, 122.0, "a");
    bench.seconds(20, &[7, 8]);
    // After a minute it has the place of the other.
    let s = bench.seconds(90, &[7]);
    assert_eq!(ended(&s).len(), 1, "that of b");
    let s = bench.seconds(70, &[]);
    let a = ended(&s)[0];
    assert_eq!((&*a.owner, a.partial), ("a", true));
    assert!(a.allocated_seconds < 40.0, "{}", a.allocated_seconds);
    assert!(ended(&s).iter().all(|record| &*record.owner != "other"));
}

#[test]
fn a_gpu_that_is_replaced_leaves_what_its_owners_had() {
    let mut bench = Bench::with_owner();
    bench.seconds(20, &[7]);
    let other = Gpu { gpu: 0, uuid: "another".into() };
    bench.ledger.event(LedgerEvent::GpuAttached(other));
    let s = bench.seconds(1, &[]);
    let [record] = ended(&s)[..] else { panic!("{:?}", s.owner_records) };
    assert!(record.partial && record.allocated_seconds >= 19.0, "{record:?}");
}

#[test]
fn a_fault_in_its_time_is_in_the_record() {
    let mut bench = Bench::with_owner();
    bench.seconds(20, &[7]);
    let event = DriverFact { gpu: gpu(), bits: 8, data: 31, gpu_instance: None, compute_instance: None };
    let fact = Fact {
        source: FaultSource::Nvml,
        number: 1,
        taken: mono(bench.now),
        unix_seconds: BOOT + bench.now,
        kind: FactKind::Driver(event),
    };
    bench.ledger.fact(1, fact);
    bench.publish();
    let s = bench.seconds(17, &[]);
    let xid = FaultCount { kind: "xid".into(), code: Some(31), count: 1 };
    assert_eq!(ended(&s)[0].faults, [xid]);
}

#[test]
fn records_are_kept_and_go_on_as_they_were() {
    let mut bench = Bench::with_owner();
    bench.seconds(20, &[7]);
    assert_eq!(bench.ledger.owners.take_records(mono(bench.now)), None);
    bench.seconds(17, &[]);
    let kept = bench.ledger.owners.take_records(mono(bench.now)).unwrap();
    assert_eq!(kept.records.len(), 1, "before it is complete: the daemon may be killed");
    bench.seconds(5, &[]);
    assert_eq!(bench.ledger.owners.take_records(mono(bench.now)), None);
    let last = bench.ledger.owners.take_last_records(mono(bench.now)).unwrap();
    assert!(last.records[0].complete);
    assert_eq!(bench.ledger.owners.take_last_records(mono(bench.now)), None);

    let settings = LedgerSettings {
        documents: Documents { owner_records: kept.clone(), ..Documents::default() },
        ..LedgerSettings::default()
    };
    let mut next = Ledger::new(settings);
    let s = next.publish(mono(200.0), BOOT + 200.0);
    let earlier = OwnerRecord { complete: true, ..OwnerRecord::clone(&kept.records[0]) };
    assert_eq!(ended(&s), [&earlier]);
    assert_eq!(next.owners.take_records(mono(200.0)), None);
    // A clock that is set ahead forgets nothing.
    let years = 1e9;
    assert_eq!(ended(&next.publish(mono(210.0), BOOT + years)), [&earlier]);
    assert_eq!(next.owners.take_records(mono(210.0)), None);
}

#[test]
fn nothing_is_served_of_records_where_owners_are_switched_off() {
    let mut bench = Bench::with_owner();
    bench.seconds(20, &[7]);
    assert_eq!(ended(&bench.seconds(17, &[])).len(), 1);
    let live = LiveSettings {
        owners: settings::Owners { enabled: false, ..settings::Owners::default() },
        ..LiveSettings::default()
    };
    bench.ledger.event(LedgerEvent::Reloaded(Some(Box::new(live)), BOOT));
    let s = bench.publish();
    assert!(ended(&s).is_empty() && pending(&s).is_empty());
}

#[test]
fn a_record_waits_for_the_samples_of_its_time_but_not_for_ever() {
    // A second that is listed, and whose samples have not come.
    let listed = |bench: &mut Bench| {
        bench.now += 1.0;
        let batch = bench.batch(Tier::Normal, |rows| {
            rows.entity(&gpu()).record(&m::gpu_memory_total_bytes, (), 100e9).unwrap();
        });
        bench.ledger.fold(Batch { processes: Some(Vec::new()), ..batch });
        bench.publish()
    };
    for samples_come in [true, false] {
        let mut bench = Bench::with_owner();
        bench.seconds(20, &[7]);
        for _ in 0..10 {
            let s = listed(&mut bench);
            assert!(ended(&s).is_empty());
            assert_eq!(pending(&s), ["a"]);
        }
        let s = if samples_come {
            bench.seconds(1, &[])
        } else {
            (0..5).for_each(|_| assert!(ended(&listed(&mut bench)).is_empty()));
            listed(&mut bench)
        };
        assert_eq!((ended(&s).len(), pending(&s).len()), (1, 0), "{samples_come}");
    }
}

#[test]
fn the_classes_of_a_record_add_up_to_its_time() {
    let adds_up = |record: &OwnerRecord| {
        let sum: f64 = record.class_seconds.values().sum();
        assert!((sum - record.allocated_seconds).abs() < 0.01, "{sum}: {record:?}");
    };
    // Wherever its end is between two divisions.
    for seconds in [20, 27, 34, 41] {
        let mut bench = Bench::with_owner();
        bench.seconds(seconds, &[7]);
        for _ in 0..70 {
            ended(&bench.seconds(1, &[])).into_iter().for_each(adds_up);
        }
        bench.attribute(9, bench.now, "a");
        bench.seconds(seconds, &[9]);
        let s = bench.seconds(70, &[]);
        assert_eq!(ended(&s).len(), 2);
        ended(&s).into_iter().for_each(adds_up);
    }
}

#[test]
fn an_owner_has_the_same_labels_on_all_its_places() {
    let mut bench = Bench::with_owner();
    bench.seconds(5, &[7]);
    let account = |bench: &Bench| {
        let accounts = bench.ledger.owners.accounts.all.iter().filter(|(key, _)| &*key.owner == "a");
        accounts.map(|(_, account)| account.owner.info.slurm_account.clone()).collect::<Vec<_>>()
    };
    bench.seconds(5, &[]);
    assert_eq!(account(&bench), [""]);
    let info = m::OwnerInfo { slurm_account: "vision".into(), ..m::OwnerInfo::default() };
    let owner = Arc::new(Owner { id: "a".into(), info, ..Owner::unknown() });
    let more = Attribution { pid: 8, started: None, owner };
    bench.ledger.event(LedgerEvent::Owners(OwnerUpdate::Attributed(vec![more])));
    assert_eq!(account(&bench), ["vision"], "also where it has ended");
    bench.seconds(5, &[7]);
    assert_eq!(account(&bench), ["vision"], "the first process has them too");
}
