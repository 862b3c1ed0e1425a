use proptest::prelude::*;

use super::facts::MemoryUse;
use super::*;
use model::canary::Place;
use model::catalog::{self as m, Gpu, MetricId, ProcessType};

const IDLE_FOR: Duration = Duration::from_secs(300);

/// A GPU on which every condition allows a run.
fn free() -> GateFacts {
    GateFacts {
        released: false,
        state: None,
        age: Some(Duration::from_secs(3)),
        fresh_for: Duration::from_secs(21),
        unhealthy: Some(Vec::new()),
        xid: Since::Never,
        child: None,
        no_instance: false,
        processes: GateValue::Value(0),
        mps: GateValue::Value(0),
        pod: Claimed::No("none".into()),
        job: Claimed::Unasked("no control groups".into()),
        compute_mode: GateValue::Value(ComputeMode::Default),
        persistence: GateValue::Value(true),
        utilization: GateValue::Value(0.0),
        idle: Some(IDLE_FOR),
        memory: Some(MemoryUse { used: 4e6, total: 150e9, least: Some(3e6) }),
        maintenance: None,
        duty_wait: None,
        interlock: None,
    }
}

fn reason(change: impl FnOnce(&mut GateFacts)) -> Option<CanarySkip> {
    let mut facts = free();
    change(&mut facts);
    refusal(&conditions(&facts, IDLE_FOR))
}

#[test]
fn a_free_gpu_is_free_and_what_was_not_asked_is_listed_as_not_checked() {
    let list = conditions(&free(), IDLE_FOR);
    assert_eq!(refusal(&list), None, "{list:?}");
    let unchecked = list.iter().filter(|c| matches!(c.allows, Allows::NotChecked(_))).count();
    assert_eq!(unchecked, 1, "{list:?}");
}

#[test]
fn each_condition_keeps_it_away_by_its_name() {
    let seconds = Duration::from_secs;
    type Change = Box<dyn FnOnce(&mut GateFacts)>;
    let cases: Vec<(CanarySkip, Change)> = vec![
        (CanarySkip::Released, Box::new(|f| f.released = true)),
        (CanarySkip::Unhealthy, Box::new(|f| f.state = Some((CanarySkip::Unhealthy, "stuck".into())))),
        (CanarySkip::Unread, Box::new(|f| f.age = None)),
        (CanarySkip::Unread, Box::new(move |f| f.age = Some(seconds(22)))),
        (CanarySkip::Unread, Box::new(|f| f.unhealthy = None)),
        (CanarySkip::Unhealthy, Box::new(|f| f.unhealthy = Some(vec!["fatal_xid".into()]))),
        (CanarySkip::RecentXid, Box::new(move |f| f.xid = Since::Ago(seconds(119)))),
        (CanarySkip::ChildAlive, Box::new(|f| f.child = Some(7))),
        (CanarySkip::Claimed, Box::new(|f| f.pod = Claimed::By("ml/train-0".into()))),
        (CanarySkip::Claimed, Box::new(|f| f.job = Claimed::By("Slurm job 42".into()))),
        (CanarySkip::Unread, Box::new(|f| f.pod = Claimed::Unknown("the kubelet is silent".into()))),
        (CanarySkip::NoInstance, Box::new(|f| f.no_instance = true)),
        (CanarySkip::Mps, Box::new(|f| (f.mps, f.processes) = (GateValue::Value(1), GateValue::Value(2)))),
        (CanarySkip::Processes, Box::new(|f| f.processes = GateValue::Value(1))),
        (CanarySkip::Unread, Box::new(|f| f.processes = GateValue::Unread)),
        (CanarySkip::Unread, Box::new(|f| f.processes = GateValue::Unsupported)),
        (
            CanarySkip::ComputeMode,
            Box::new(|f| f.compute_mode = GateValue::Value(ComputeMode::ExclusiveProcess)),
        ),
        (CanarySkip::Unread, Box::new(|f| f.compute_mode = GateValue::Unread)),
        (CanarySkip::PersistenceOff, Box::new(|f| f.persistence = GateValue::Value(false))),
        (CanarySkip::Busy, Box::new(|f| f.utilization = GateValue::Value(0.01))),
        (CanarySkip::Busy, Box::new(move |f| f.idle = Some(seconds(299)))),
        (
            CanarySkip::Memory,
            Box::new(|f| f.memory = Some(MemoryUse { used: 2e9, total: 150e9, least: None })),
        ),
        (CanarySkip::Unread, Box::new(|f| f.memory = None)),
        (CanarySkip::Maintenance, Box::new(|f| f.maintenance = Some("x is there".into()))),
        (CanarySkip::Duty, Box::new(move |f| f.duty_wait = Some(seconds(5)))),
        (CanarySkip::Interlock, Box::new(|f| f.interlock = Some("locked".into()))),
    ];
    for (expected, change) in cases {
        assert_eq!(reason(change), Some(expected));
    }
}

#[test]
fn what_the_driver_does_not_know_is_not_checked() {
    let unknown = reason(|facts| {
        facts.compute_mode = GateValue::Unsupported;
        facts.persistence = GateValue::Unsupported;
        facts.utilization = GateValue::Unsupported;
        facts.mps = GateValue::Unsupported;
        facts.xid = Since::Unknown("not watched".into());
        facts.idle = None;
    });
    assert_eq!(unknown, None);
    assert_eq!(reason(|facts| facts.xid = Since::Ago(AFTER_XID)), None);
}

proptest! {
    #[test]
    fn memory_at_rest_is_never_much(total in 1e9f64..1e12, least in proptest::option::of(0f64..1e12)) {
        let limit = memory_at_rest(total, least);
        prop_assert!(limit <= REST_BYTES + REST_SLACK);
        prop_assert!(limit >= (total * REST_SHARE).min(REST_BYTES));
        let next = least.map(|least| memory_at_rest(total, Some(least)));
        prop_assert!(next.is_none_or(|next| next >= least.unwrap_or(0.0).min(REST_BYTES)));
    }
}

/// Values that a test provides.
struct Given(Vec<(MetricId, Vec<m::schema::LabelText>, f64)>, Vec<MetricId>);

impl facts::Values for Given {
    fn value<E: m::schema::Entity, L: m::schema::LabelSet>(
        &self,
        metric: &m::schema::Metric<E, L>,
        _: &E,
        labels: L,
    ) -> Option<f64> {
        let labels = labels.texts();
        self.0
            .iter()
            .find(|(id, texts, _)| *id == metric.id() && *texts == labels)
            .map(|(_, _, value)| *value)
    }

    fn unsupported(&self, _: &Gpu, metric: MetricId) -> bool {
        self.1.contains(&metric)
    }

    fn state(&self, _: &Gpu) -> Option<(CanarySkip, String)> {
        None
    }

    fn age(&self, _: &Gpu) -> Option<Duration> {
        Some(Duration::ZERO)
    }

    fn unhealthy(&self, _: &Gpu) -> Option<Vec<String>> {
        Some(Vec::new())
    }
}

#[test]
fn processes_of_all_kinds_are_added_up() {
    use m::schema::LabelSet;
    let place = Place { gpu: Gpu { gpu: 0, uuid: "GPU-0".into() }, instance: None };
    let read = |values: Vec<(ProcessType, f64)>, unsupported: Vec<MetricId>| {
        let id = m::gpu_processes.id();
        let rows = values.into_iter().map(|(kind, n)| (id, (kind,).texts(), n)).collect();
        GateFacts::read(&Given(rows, unsupported), &place, IDLE_FOR).processes
    };
    let (compute, graphics, mps) = (ProcessType::Compute, ProcessType::Graphics, ProcessType::Mps);
    assert_eq!(read(vec![(compute, 2.0), (graphics, 1.0), (mps, 0.0)], vec![]), GateValue::Value(3));
    assert_eq!(read(vec![(compute, 0.0)], vec![]), GateValue::Unread, "the others may have some");
    assert_eq!(read(vec![(compute, 0.0)], vec![m::gpu_processes.id()]), GateValue::Value(0));
    assert_eq!(read(vec![], vec![m::gpu_processes.id()]), GateValue::Unsupported);
}
