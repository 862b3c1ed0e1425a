use super::*;
use proptest::prelude::*;

fn at(seconds: f64) -> Mono {
    Mono((seconds * 1e9) as u64)
}

fn owner(tenant: u64) -> Option<Arc<Owner>> {
    Some(Arc::new(Owner { id: format!("owner{}", tenant % 3).as_str().into(), ..Owner::unknown() }))
}

fn process(tenant: u64, place: InstanceId) -> ListedProcess {
    ListedProcess { tenant, place, memory: Some(10) }
}

fn listing(processes: Vec<ListedProcess>) -> Listing {
    Listing { processes, full: Vec::new() }
}

fn busy(from: f64, to: f64, amount: f64) -> Amount {
    Amount { quantity: AmountKind::Busy(None), from: at(from), to: at(to), amount }
}

#[test]
fn nothing_is_divided_before_all_owners_are_known() {
    let mut line = Timeline::default();
    line.listed(at(1.0), listing(vec![process(0, None)]));
    line.listed(at(2.0), listing(vec![process(0, None)]));
    line.measured(busy(1.2, 1.4, 0.2));
    assert!(line.settle(|_| None).is_empty());
    assert!(line.divide(|_| None).0.is_empty());
    assert!(line.is_divided(at(1.2)) && !line.is_divided(at(1.3)));
    assert_eq!(line.settle(owner).len(), 1);
    let (parts, works) = line.divide(|_| None);
    assert_eq!((parts.len(), parts[0].amount), (1, 0.2));
    assert_eq!(works, [(0, at(1.4))]);
    assert!(line.divide(|_| None).0.is_empty(), "once");
    assert!(line.is_divided(at(9.0)));
}

#[test]
fn a_process_that_is_gone_a_second_later_had_that_second_and_two_owners_share_it() {
    let mut line = Timeline::default();
    line.listed(at(1.0), listing(vec![process(0, None), process(1, None)]));
    line.listed(at(2.0), listing(vec![process(0, None)]));
    line.listed(at(3.0), listing(vec![]));
    line.measured(busy(1.0, 2.0, 1.0));
    line.measured(busy(1.5, 2.5, 1.0));
    let settled = line.settle(owner);
    assert_eq!(settled[0].present.iter().map(|p| p.owners).collect::<Vec<_>>(), [2, 2]);
    let (parts, works) = line.divide(|_| None);
    let of = |id: &str| parts.iter().filter(|p| &*p.owner == id).map(|p| p.amount).sum::<f64>();
    assert!((of("owner0") - (0.5 + 0.25 + 0.5)).abs() < 1e-9 && (of("owner1") - 0.75).abs() < 1e-9);
    assert_eq!(works, [(0, at(2.5))], "only while it was alone");
}

#[test]
fn a_silence_is_no_owners_time() {
    let mut line = Timeline::default();
    line.listed(at(0.0), listing(vec![process(0, None)]));
    line.listed(at(100.0), listing(vec![process(0, None)]));
    line.listed(at(101.0), listing(vec![]));
    line.measured(busy(0.0, 100.0, 50.0));
    let seconds: Vec<f64> = line.settle(owner).iter().map(|s| s.to.since(s.from).as_secs_f64()).collect();
    assert_eq!(seconds, [5.0, 1.0]);
    assert_eq!(line.divide(|_| None).0.iter().map(|p| p.amount).sum::<f64>(), 2.5);
}

#[test]
fn an_instance_has_its_share_of_the_energy_and_of_the_work() {
    let mut line = Timeline::default();
    line.listed(at(0.0), listing(vec![process(0, Some(1)), process(1, Some(2)), process(2, Some(2))]));
    line.listed(at(1.0), listing(vec![]));
    line.measured(Amount { quantity: AmountKind::Joules, from: at(0.0), to: at(1.0), amount: 700.0 });
    line.measured(Amount { quantity: AmountKind::Busy(Some(2)), from: at(0.0), to: at(1.0), amount: 0.6 });
    line.settle(owner);
    let (parts, _) = line.divide(|instance| Some(if instance == 1 { 3.0 } else { 2.0 } / 7.0));
    let joules: Vec<f64> =
        parts.iter().filter(|p| p.quantity == AmountKind::Joules).map(|p| p.amount.round()).collect();
    assert_eq!(joules, [300.0, 100.0, 100.0]);
    let busy = parts.iter().filter(|p| p.quantity != AmountKind::Joules).map(|p| p.amount).sum::<f64>();
    assert!((busy - 0.6 * 2.0 / 7.0).abs() < 1e-9, "of its work too: {busy}");
}

proptest! {
    #[test]
    fn owners_never_have_more_than_the_gpu(
        listings in prop::collection::vec((0.1f64..8.0, prop::collection::vec((0u64..6, prop::option::of(0u32..3)), 0..5)), 1..40),
        amounts in prop::collection::vec((0f64..100.0, 0.01f64..70.0, 0f64..500.0, any::<bool>()), 0..40),
    ) {
        let mut line = Timeline::default();
        let mut now = 0.0;
        line.listed(at(0.0), listing(vec![]));
        let mut measured = [0.0, 0.0];
        for (from, length, amount, joules) in amounts {
            let quantity = if joules { AmountKind::Joules } else { AmountKind::Busy(None) };
            measured[usize::from(joules)] += amount;
            line.measured(Amount { quantity, from: at(from), to: at(from + length), amount });
        }
        let mut divided = [0.0, 0.0];
        for (pause, processes) in listings {
            now += pause;
            line.listed(at(now), listing(processes.into_iter().map(|(tenant, place)| process(tenant, place)).collect()));
            line.settle(owner);
            for part in line.divide(|_| Some(1.0 / 3.0)).0 {
                prop_assert!(part.amount >= 0.0);
                divided[usize::from(part.quantity == AmountKind::Joules)] += part.amount;
            }
        }
        for (divided, measured) in divided.into_iter().zip(measured) {
            prop_assert!(divided <= measured * (1.0 + 1e-9), "{divided} of {measured}");
        }
    }
}
