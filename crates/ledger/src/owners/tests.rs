mod halts;
mod ranks;
mod records;

use super::*;
use crate::inbox::LedgerEvent;
use crate::{Ledger, LedgerSettings, LiveSettings};
use model::catalog::schema::Label;
use model::catalog::{CollectorName, FaultSource, Node, OwnedGpu, SampleBuffer, Tier};
use model::catalog::{Direction, GpmUnit};
use model::fact::{DriverFact, Fact, FactKind, KernelFact, KernelLine};
use model::owners::Attribution;
use model::sample::{BatchKey, Drained, Rows};
use model::snapshot::Snapshot;
use model::topology::fixtures::{device, machine};
use model::topology::{Device, DeviceKind, Topology};

/// A ledger with one GPU, and the seconds of its life.
struct Bench {
    ledger: Ledger,
    now: f64,
    sampled: u64,
}

const BOOT: f64 = 1_800_000_000.0;

fn gpu() -> Gpu {
    Gpu { gpu: 0, uuid: "a".into() }
}

fn mono(seconds: f64) -> Mono {
    Mono((seconds * 1e9) as u64)
}

fn on(pid: u32) -> GpuProcess {
    GpuProcess { pid, instance: None, memory: Some(1 << 30) }
}

fn owned(owner: &str) -> OwnedGpu {
    OwnedGpu { gpu: 0, uuid: "a".into(), gpu_instance: "".into(), owner: owner.into() }
}

impl Bench {
    fn new(settings: settings::Owners) -> Bench {
        let mut ledger = Ledger::new(LedgerSettings {
            live: LiveSettings {
                off: Default::default(),
                groups: m::MetricGroup::ALL.to_vec(),
                owners: settings,
                ..LiveSettings::default()
            },
            build: m::BuildInfo { version: "0".into(), revision: "0".into() },
            ..LedgerSettings::default()
        });
        ledger.event(LedgerEvent::DriverUp);
        let mut bench = Bench { ledger, now: 100.0, sampled: 0 };
        let identity = bench.batch(Tier::Identity, |rows| {
            let info = m::GpuInfo { pci_address: "0000:06:00.0".into(), ..m::GpuInfo::default() };
            rows.entity(&gpu()).info(&m::gpu_info, info);
        });
        bench.ledger.fold(identity);
        bench.publish();
        bench
    }

    fn batch(&self, tier: Tier, fill: impl FnOnce(&mut Rows)) -> Batch {
        let mut rows = Rows::default();
        fill(&mut rows);
        Batch {
            part: BatchKey { collector: CollectorName::Nvml, gpu: Some(gpu()), tier },
            epoch: 1,
            taken: mono(self.now),
            nanos: 1000,
            lifetime_nanos: (tier != Tier::Identity).then_some(3_000_000_000),
            answered: true,
            rows,
            gaps: Vec::new(),
            drained: Vec::new(),
            processes: None,
            calls: Vec::new(),
        }
    }

    /// Adds a second with this process list, 5 utilization samples and 50 power samples.
    fn second(&mut self, processes: &[GpuProcess], busy: f64, watts: f64, free: f64) {
        self.now += 1.0;
        let mut batch = self.batch(Tier::Normal, |rows| {
            let mut of = rows.entity(&gpu());
            of.record(&m::gpu_power_watts, (), watts).unwrap();
            of.record(&m::gpu_memory_total_bytes, (), 100e9).unwrap();
            of.record(&m::gpu_memory_free_bytes, (), free * 100e9).unwrap();
        });
        batch.processes = Some(processes.to_vec());
        let stamps = |every: f64| {
            let count = (1.0 / every).round() as u64;
            (0..count).map(move |n| 1.0 - every * (count - 1 - n) as f64)
        };
        let now = self.now;
        let stamp = |part: f64| ((BOOT + now - 1.0 + part) * 1e6).round() as u64;
        for (buffer, every, value) in
            [(SampleBuffer::Utilization, 0.2, busy), (SampleBuffer::Power, 0.02, watts)]
        {
            let samples = stamps(every).map(|part| (stamp(part), value)).collect();
            let offset_micros = (BOOT * 1e6) as i64;
            batch.drained.push(Drained::Samples { buffer, offset_micros, samples });
        }
        self.sampled += 1;
        self.ledger.fold(batch);
    }

    fn attribute(&mut self, pid: u32, started: f64, owner: &str) {
        let owner = Arc::new(Owner { id: owner.into(), ..Owner::unknown() });
        let attribution = Attribution { pid, started: Some(BOOT + started), owner };
        self.ledger.event(LedgerEvent::Owners(OwnerUpdate::Attributed(vec![attribution])));
    }

    fn publish(&mut self) -> Snapshot {
        self.ledger.publish(mono(self.now), BOOT + self.now)
    }
}

#[test]
fn time_work_and_energy_are_divided_among_owners() {
    let mut bench = Bench::new(settings::Owners::default());
    bench.second(&[], 0.0, 100.0, 1.0);
    bench.second(&[on(1)], 0.5, 300.0, 0.9);
    bench.attribute(1, 100.5, "a");
    bench.attribute(2, 110.0, "b");
    for _ in 0..9 {
        bench.second(&[on(1)], 0.5, 300.0, 0.9);
    }
    for second in 0..10 {
        bench.second(&[on(1), on(2)], 0.8, 500.0, 0.9);
        if second == 0 {
            bench.attribute(2, 110.0, "b");
        }
        bench.publish();
    }
    bench.second(&[], 0.0, 100.0, 1.0);
    let s = bench.publish();
    let of = |metric, owner: &str| s.number(metric, &owned(owner), ()).unwrap();
    assert!((of(&m::gpu_owner_allocated_seconds_total, "a") - 15.0).abs() < 1e-6);
    assert!((of(&m::gpu_owner_allocated_seconds_total, "b") - 5.0).abs() < 1e-6);
    let (a, b) = (of(&m::gpu_owner_busy_seconds_total, "a"), of(&m::gpu_owner_busy_seconds_total, "b"));
    assert!((b - (9.0 * 0.4)).abs() < 0.2, "{b}");
    assert!((a - (5.0 + 4.0)).abs() < 0.5, "{a}");
    assert!(a + b <= s.number(&m::gpu_busy_seconds_total, &gpu(), ()).unwrap() + 1e-9);
    let joules = of(&m::gpu_owner_energy_joules_total, "a") + of(&m::gpu_owner_energy_joules_total, "b");
    assert!(joules <= s.number(&m::gpu_energy_sampled_joules_total, &gpu(), ()).unwrap() + 1e-6);
    assert!(joules > 7500.0, "{joules}");
    assert_eq!(of(&m::gpu_owner_processes, "a"), 0.0);
    assert_eq!(of(&m::gpu_owner_memory_used_bytes, "a"), 0.0);
    assert_eq!(s.owners.len(), 2);
}

#[test]
fn no_owner_has_series_before_it_is_known() {
    let mut bench = Bench::new(settings::Owners::default());
    bench.second(&[], 0.0, 100.0, 1.0);
    for second in 0..12 {
        bench.second(&[on(1)], 0.5, 300.0, 0.9);
        let s = bench.publish();
        assert_eq!(
            s.number(&m::gpu_owner_processes, &owned("unknown"), ()).is_some(),
            second >= 5,
            "{second}"
        );
    }
    bench.attribute(1, 100.0, "a");
    bench.second(&[on(1)], 0.5, 300.0, 0.9);
    bench.second(&[on(1)], 0.5, 300.0, 0.9);
    let s = bench.publish();
    assert_eq!(s.number(&m::gpu_owner_processes, &owned("unknown"), ()), Some(0.0));
    assert_eq!(s.number(&m::gpu_owner_processes, &owned("a"), ()), Some(1.0));
}

#[test]
fn a_process_that_is_gone_a_second_later_counts_for_its_owner() {
    let mut bench = Bench::new(settings::Owners::default());
    bench.second(&[], 0.0, 100.0, 1.0);
    bench.second(&[on(7)], 1.0, 300.0, 0.9);
    bench.second(&[], 1.0, 300.0, 0.01);
    bench.publish();
    bench.attribute(7, 101.4, "a");
    bench.second(&[], 0.0, 100.0, 1.0);
    let s = bench.publish();
    assert_eq!(s.number(&m::gpu_owner_allocated_seconds_total, &owned("a"), ()), Some(1.0));
    assert!(s.number(&m::gpu_owner_busy_seconds_total, &owned("a"), ()).unwrap() > 0.9);
    assert_eq!(s.number(&m::gpu_owner_ended_at_full_memory_total, &owned("a"), ()), Some(0.0));
}

#[test]
fn an_end_with_full_memory_is_a_suspicion() {
    let mut bench = Bench::new(settings::Owners::default());
    bench.second(&[on(7)], 1.0, 300.0, 0.01);
    bench.attribute(7, 50.0, "a");
    bench.second(&[], 1.0, 300.0, 1.0);
    bench.second(&[], 1.0, 300.0, 1.0);
    let s = bench.publish();
    assert_eq!(s.number(&m::gpu_owner_ended_at_full_memory_total, &owned("a"), ()), Some(1.0));
}

#[test]
fn starts_are_measured_only_where_they_were_seen() {
    let mut bench = Bench::new(settings::Owners::default());
    // It was there before the first listing.
    bench.second(&[on(1)], 0.0, 100.0, 0.9);
    bench.attribute(1, 10.0, "a");
    bench.second(&[], 0.0, 100.0, 0.9);
    bench.second(&[on(2)], 0.0, 100.0, 0.9);
    bench.attribute(2, 99.0, "a");
    bench.second(&[on(2)], 0.0, 100.0, 0.9);
    bench.second(&[on(2)], 0.7, 100.0, 0.9);
    bench.second(&[on(2)], 0.7, 100.0, 0.9);
    let s = bench.publish();
    let sums: Vec<(u64, f64)> = s
        .series(&m::gpu_owner_start_seconds)
        .iter()
        .filter_map(|series| match &series.value {
            model::snapshot::Value::Histogram(h) => Some((h.count(), (h.sum * 10.0).round() / 10.0)),
            model::snapshot::Value::Number(_) => None,
        })
        .collect();
    assert_eq!(sums, [(1, 4.0), (1, 5.2)], "to the first listing, and to the first sample with work");
}

#[test]
fn a_gpu_that_does_not_answer_keeps_the_counters_of_its_owners() {
    let mut bench = Bench::new(settings::Owners::default());
    bench.second(&[on(7)], 1.0, 300.0, 0.9);
    bench.attribute(7, 50.0, "a");
    for _ in 0..4 {
        bench.second(&[on(7)], 1.0, 300.0, 0.9);
    }
    let before = bench.publish();
    bench.now += 20.0;
    let s = bench.publish();
    let (time, processes) = (&m::gpu_owner_allocated_seconds_total, &m::gpu_owner_processes);
    assert_eq!(s.number(time, &owned("a"), ()), before.number(time, &owned("a"), ()));
    assert_eq!(
        (before.number(processes, &owned("a"), ()), s.number(processes, &owned("a"), ())),
        (Some(1.0), None)
    );
    bench.now += 15.0 * 60.0;
    let s = bench.publish();
    assert_eq!(s.number(time, &owned("a"), ()), None, "over for long");
}

#[test]
fn what_is_listed_no_more_is_not_published() {
    let mut bench = Bench::new(settings::Owners::default());
    bench.second(&[on(7)], 1.0, 300.0, 0.9);
    bench.attribute(7, 50.0, "a");
    for _ in 0..4 {
        bench.second(&[on(7)], 1.0, 300.0, 0.9);
    }
    let before = bench.publish();
    // The GPU answers, but lists no processes.
    for _ in 0..20 {
        bench.now += 1.0;
        let batch = bench.batch(Tier::Normal, |rows| {
            rows.entity(&gpu()).record(&m::gpu_power_watts, (), 300.0).unwrap();
        });
        bench.ledger.fold(batch);
    }
    let s = bench.publish();
    let of = |s: &Snapshot, metric| s.number(metric, &owned("a"), ());
    for metric in [&m::gpu_owner_processes, &m::gpu_owner_memory_used_bytes] {
        assert!(of(&before, metric).is_some() && of(&s, metric).is_none());
    }
    assert!(s.number(&m::gpu_owner_allocated_seconds_total, &owned("a"), ()).is_some());
}

#[test]
fn what_was_read_is_joined_with_where_the_gpu_sits() {
    let mut bench = Bench::new(settings::Owners::default());
    let device = Device {
        kind: DeviceKind::Gpu,
        address: "0000:06:00.0".into(),
        id: "10de:2335".into(),
        names: Vec::new(),
        numa_node: Some(1),
        cpus: "8-15".parse().unwrap(),
        bridges: Vec::new(),
        link: None,
        port: None,
        network: None,
    };
    let topology = Arc::new(Topology { devices: vec![device], ..Topology::default() });
    let update =
        model::topology::TopologyUpdate { topology, against_first_seen: None, against_declared: None };
    bench.ledger.event(LedgerEvent::Topology(update));
    bench.second(&[on(7)], 1.0, 300.0, 0.9);
    bench.attribute(7, 50.0, "a");
    let reading = |at: f64, kills| OwnerReading {
        owner: "a".into(),
        taken: mono(at),
        allowed_cpus: Some("0-15".parse().unwrap()),
        ran_on: Default::default(),
        memory_by_node: [(0, 30), (1, 10)].into(),
        cpu_seconds: None,
        cpu_time: None,
        cpu_limit: None,
        busiest_thread: None,
        oom_kills: Some(kills),
    };
    for (second, kills) in [(0.0, 4), (1.0, 4), (2.0, 7), (3.0, 0), (4.0, 1)] {
        let read = reading(bench.now + second, kills);
        bench.ledger.event(LedgerEvent::Owners(OwnerUpdate::Read(vec![read])));
    }
    bench.second(&[on(7)], 1.0, 300.0, 0.9);
    let s = bench.publish();
    assert_eq!(s.number(&m::gpu_owner_cpu_remote_ratio, &owned("a"), ()), Some(0.5));
    assert_eq!(s.number(&m::gpu_owner_cpu_remote_cache_ratio, &owned("a"), ()), None, "bound to no cache");
    assert_eq!(s.number(&m::gpu_owner_memory_remote_ratio, &owned("a"), ()), Some(0.75));
    let kills = s.number(&m::gpu_owner_host_oom_kills_total, &m::Owner { owner: "a".into() }, ());
    assert_eq!(kills, Some(4.0), "those before the first reading are not counted");
}

#[test]
fn a_slice_on_the_cache_of_another_is_far_on_a_machine_of_one_node() {
    let mut bench = Bench::new(settings::Owners::default());
    let mut topology = machine(&[("0-23", &["0-7", "8-15", "16-23"])]);
    // As such a machine reports its only node.
    topology.devices = vec![device(DeviceKind::Gpu, "0000:06:00.0", None, "0-23", &[])];
    let topology = Arc::new(topology);
    let update =
        model::topology::TopologyUpdate { topology, against_first_seen: None, against_declared: None };
    bench.ledger.event(LedgerEvent::Topology(update));
    for second in 0..4 {
        bench.now += 1.0;
        let mut batch = bench.batch(Tier::Normal, |rows| {
            rows.entity(&gpu()).record(&m::gpu_memory_total_bytes, (), 100e9).unwrap();
            for instance in 1..=3 {
                let slice = m::ComputeInstance {
                    gpu: 0,
                    uuid: "a".into(),
                    gpu_instance: instance,
                    profile: "2g.35gb".into(),
                    compute_instance: 0,
                };
                let mig_profile = "2g.35gb".into();
                rows.entity(&slice)
                    .info(&m::gpu_mig_info, m::MigInfo { mig_profile, ..m::MigInfo::default() });
            }
        });
        let on = |pid, instance| GpuProcess { pid, instance: Some((instance, 0)), memory: Some(1 << 30) };
        batch.processes = Some(vec![on(7, 1), on(8, 2)]);
        bench.ledger.fold(batch);
        if second == 0 {
            bench.attribute(7, 50.0, "well");
            bench.attribute(8, 50.0, "wrong");
        }
    }
    let reading = |owner: &str, allowed: &str, cpu| OwnerReading {
        owner: owner.into(),
        taken: mono(bench.now),
        allowed_cpus: Some(allowed.parse().unwrap()),
        ran_on: [(cpu, 5)].into(),
        memory_by_node: [(0, 30)].into(),
        cpu_seconds: None,
        cpu_time: None,
        cpu_limit: None,
        busiest_thread: None,
        oom_kills: None,
    };
    let readings = vec![reading("well", "0-7", 3), reading("wrong", "16-23", 17)];
    bench.ledger.event(LedgerEvent::Owners(OwnerUpdate::Read(readings)));
    let s = bench.publish();
    let remote = |instance: &str, owner: &str| {
        let of = OwnedGpu { gpu_instance: instance.into(), ..owned(owner) };
        let ratio = |metric| s.number(metric, &of, ());
        (ratio(&m::gpu_owner_cpu_remote_cache_ratio), ratio(&m::gpu_owner_cpu_remote_ratio))
    };
    assert_eq!(remote("1", "well"), (Some(0.0), None), "no node is reported");
    assert_eq!(remote("2", "wrong"), (Some(1.0), None));
}

#[test]
fn a_kill_that_only_the_kernel_log_reports_is_counted_once() {
    let mut bench = Bench::new(settings::Owners::default());
    bench.second(&[on(7)], 1.0, 300.0, 0.9);
    let owner = Owner { id: "a".into(), cgroup: "/pods/a".into(), ..Owner::unknown() };
    let attribution = Attribution { pid: 7, started: Some(BOOT + 50.0), owner: Arc::new(owner) };
    bench.ledger.event(LedgerEvent::Owners(OwnerUpdate::Attributed(vec![attribution])));
    bench.second(&[on(7)], 1.0, 300.0, 0.9);
    bench.publish();
    let mut read = |kills| {
        let read = OwnerReading {
            owner: "a".into(),
            taken: mono(bench.now),
            allowed_cpus: None,
            ran_on: Default::default(),
            memory_by_node: Default::default(),
            cpu_seconds: None,
            cpu_time: None,
            cpu_limit: None,
            busiest_thread: None,
            oom_kills: Some(kills),
        };
        bench.ledger.event(LedgerEvent::Owners(OwnerUpdate::Read(vec![read])));
        bench.publish().number(&m::gpu_owner_host_oom_kills_total, &m::Owner { owner: "a".into() }, ())
    };
    assert_eq!(read(0), Some(0.0), "born at 0");
    assert_eq!(read(1), Some(1.0));
    let lines = [(Some("/pods/a/below"), 99), (Some("/pods/ab"), 98), (None, 97), (Some("/"), 7), (None, 7)];
    for (number, (group, pid)) in lines.into_iter().enumerate() {
        let line = KernelLine::OomKill { group: group.map(Into::into), pid };
        let what = FactKind::Kernel(KernelFact { old: false, line, text: String::new() });
        let at = mono(bench.now);
        let fact = Fact {
            source: FaultSource::Kmsg,
            number: number as u64 + 1,
            taken: at,
            unix_seconds: BOOT,
            kind: what,
        };
        bench.ledger.fact(1, fact);
    }
    let s = bench.publish();
    let kills = s.number(&m::gpu_owner_host_oom_kills_total, &m::Owner { owner: "a".into() }, ());
    assert_eq!(kills, Some(3.0), "one of which the group counted too, and none of another one's");
    assert!(s.events.iter().all(|event| event.owner.is_none()), "no fault of a GPU");
}

#[test]
fn a_cause_is_named_once_it_lasts() {
    let mut bench = Bench::new(settings::Owners::default());
    bench.attribute(7, 50.0, "a");
    let mut s = bench.publish();
    for second in 0..40 {
        bench.second(&[on(7), on(8)], 1.0, 300.0, 0.9);
        if second == 0 {
            bench.attribute(7, 50.0, "a");
            bench.attribute(8, 50.0, "b");
        }
        s = bench.publish();
    }
    let of = |cause| s.number(&m::gpu_bottleneck, &owned("a"), (cause,));
    assert_eq!((of(m::Cause::Contended), of(m::Cause::None)), (Some(1.0), Some(0.0)));
    assert_eq!(s.owners[0].cause, Some(m::Cause::Contended));
    let all = m::Cause::ALL.iter().filter_map(|cause| of(*cause)).sum::<f64>();
    assert_eq!(all, 1.0, "exactly one");
}

#[test]
fn a_fault_names_the_owner_of_the_work() {
    let mut bench = Bench::new(settings::Owners::default());
    bench.second(&[on(7)], 1.0, 300.0, 0.9);
    bench.attribute(7, 50.0, "a");
    bench.second(&[on(7)], 1.0, 300.0, 0.9);
    let event = DriverFact { gpu: gpu(), bits: 8, data: 31, gpu_instance: None, compute_instance: None };
    let fact = Fact {
        source: FaultSource::Nvml,
        number: 1,
        taken: mono(bench.now),
        unix_seconds: BOOT + bench.now,
        kind: FactKind::Driver(event),
    };
    bench.ledger.fact(1, fact);
    let s = bench.publish();
    assert_eq!(s.events.last().and_then(|event| event.owner.as_deref()), Some("a"));
}

#[test]
fn nothing_is_published_of_owners_where_they_are_switched_off() {
    let mut bench = Bench::new(settings::Owners { enabled: false, ..settings::Owners::default() });
    for _ in 0..8 {
        bench.second(&[on(7)], 1.0, 300.0, 0.9);
    }
    let s = bench.publish();
    assert!(s.owners.is_empty() && s.series(&m::gpu_owner_info).is_empty());
    assert_eq!(s.number(&m::gpu_exporter_owners_dropped, &Node {}, ()), None);
    assert_eq!(s.gpus[0].processes, [on(7)], "the processes are known all the same");
}

fn read_cpu(bench: &mut Bench, owner: &str, user: f64, system: f64) {
    let read = OwnerReading {
        owner: owner.into(),
        taken: mono(bench.now),
        allowed_cpus: None,
        ran_on: Default::default(),
        memory_by_node: Default::default(),
        cpu_seconds: Some(user + system),
        cpu_time: Some(model::owners::CpuTime { user, system }),
        cpu_limit: None,
        busiest_thread: None,
        oom_kills: None,
    };
    bench.ledger.event(LedgerEvent::Owners(OwnerUpdate::Read(vec![read])));
}

fn cpu(s: &Snapshot, owner: &str) -> [Option<f64>; 2] {
    let of = |mode| s.number(&m::gpu_owner_cpu_seconds_total, &m::Owner { owner: owner.into() }, (mode,));
    [of(m::CpuTimeMode::User), of(m::CpuTimeMode::System)]
}

#[test]
fn cpu_time_counts_from_the_first_reading_and_never_back() {
    let mut bench = Bench::new(settings::Owners { max_series: 1, ..settings::Owners::default() });
    bench.second(&[on(7)], 1.0, 300.0, 0.9);
    bench.attribute(7, 50.0, "a");
    bench.second(&[on(7)], 1.0, 300.0, 0.9);
    bench.publish();
    read_cpu(&mut bench, "a", 100.0, 10.0);
    assert_eq!(cpu(&bench.publish(), "a"), [Some(0.0), Some(0.0)], "born at 0");
    read_cpu(&mut bench, "a", 103.0, 10.5);
    assert_eq!(cpu(&bench.publish(), "a"), [Some(3.0), Some(0.5)]);
    // One of its processes has ended, and its time with it.
    read_cpu(&mut bench, "a", 1.0, 11.0);
    assert_eq!(cpu(&bench.publish(), "a"), [Some(3.0), Some(1.0)]);
    // An owner without series.
    bench.second(&[on(7), on(8)], 1.0, 300.0, 0.9);
    bench.attribute(8, 60.0, "b");
    bench.second(&[on(7), on(8)], 1.0, 300.0, 0.9);
    bench.second(&[on(7), on(8)], 1.0, 300.0, 0.9);
    bench.publish();
    read_cpu(&mut bench, "b", 5.0, 5.0);
    read_cpu(&mut bench, "b", 7.0, 6.0);
    let s = bench.publish();
    assert_eq!((cpu(&s, "b"), cpu(&s, "other")), ([None; 2], [Some(2.0), Some(1.0)]));
}

#[test]
fn an_owner_starts_with_its_first_process_and_again_after_a_pause() {
    let mut bench = Bench::new(settings::Owners::default());
    let start = |s: &Snapshot| {
        s.number(&m::gpu_owner_start_timestamp_seconds, &m::Owner { owner: "a".into() }, ())
            .map(|at| at - BOOT)
    };
    bench.second(&[on(1), on(2)], 0.0, 100.0, 0.9);
    bench.attribute(1, 60.0, "a");
    bench.attribute(2, 50.0, "a");
    bench.second(&[on(1), on(2)], 0.0, 100.0, 0.9);
    assert_eq!(start(&bench.publish()), Some(50.0));
    bench.second(&[on(1)], 0.0, 100.0, 0.9);
    assert_eq!(start(&bench.publish()), Some(50.0), "it is still the same job");
    bench.second(&[], 0.0, 100.0, 0.9);
    assert_eq!(start(&bench.publish()), Some(50.0), "as long as its counters");
    bench.second(&[on(3)], 0.0, 100.0, 0.9);
    bench.attribute(3, 104.0, "a");
    bench.second(&[on(3)], 0.0, 100.0, 0.9);
    assert_eq!(start(&bench.publish()), Some(104.0));
}
