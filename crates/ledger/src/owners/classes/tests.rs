use super::*;
use GpuTimeClass::*;
use model::catalog::schema::KnownLabel;
use proptest::prelude::*;

fn units(sm: f64, pipes: f64, dram: f64, nvlink: f64) -> Option<UnitShares> {
    Some(UnitShares { sm, pipes, dram, nvlink })
}

/// The classes that have a share, the largest first.
fn named(stretch: ClassWindow) -> Vec<(GpuTimeClass, f64)> {
    let all = GpuTimeClass::ALL.iter().copied().zip(stretch.divide());
    let mut named: Vec<_> =
        all.filter(|(_, share)| *share > 1e-9).map(|(c, share)| (c, (share * 1e3).round() / 1e3)).collect();
    named.sort_by(|a, b| b.1.total_cmp(&a.1));
    named
}

#[test]
fn a_window_is_divided_by_what_was_measured_in_it() {
    let busy = |busy: f64, units| ClassWindow { busy: Some(busy), units, ..ClassWindow::default() };
    // Matrix products and all-reduce on two H200s, of the recording `dp05`.
    let products = ClassWindow { several: true, ..busy(0.96, units(0.911, 0.89, 0.17, 2.1e9)) };
    assert_eq!(named(products), [(Computing, 0.9), (Communicating, 0.06), (WaitingForHost, 0.04)]);
    // The same without a peer: nothing is known to wait.
    let alone = busy(0.96, units(0.911, 0.89, 0.17, 0.0));
    assert_eq!(named(alone), [(Computing, 0.96), (WaitingForHost, 0.04)]);
    // A rank that spins in a collective, before it is known to be wedged; a server that polls.
    let spins = busy(1.0, units(0.0076, 0.0, 0.0, 0.0));
    assert_eq!(named(ClassWindow { several: true, ..spins }), [(Communicating, 1.0)]);
    assert_eq!(named(spins), [(WaitingForHost, 1.0)]);
    // Copies without end from the host.
    assert_eq!(named(busy(0.99, units(0.0, 0.0, 0.011, 0.0))), [(WaitingForHost, 1.0)]);
    // Hot: the clocks were held down for half of the time.
    let hot = ClassWindow { held: 0.5, ..alone };
    assert_eq!(named(hot), [(Throttled, 0.5), (Computing, 0.46), (WaitingForHost, 0.04)]);
    assert_eq!(named(busy(0.0, units(0.0, 0.0, 0.0, 0.0))), [(Idle, 1.0)]);
}

#[test]
fn what_is_not_measured_is_in_no_other_class() {
    assert_eq!(named(ClassWindow::default()), [(Unknown, 1.0)]);
    // No GPM, as before Hopper: an idle GPU is idle; what a busy one does is not known.
    let blind = |busy: f64| named(ClassWindow { busy: Some(busy), ..ClassWindow::default() });
    assert_eq!(blind(0.0), [(Idle, 1.0)]);
    assert_eq!(blind(0.7), [(Unknown, 0.7), (WaitingForHost, 0.3)]);
}

#[test]
fn a_halt_or_fault_takes_the_whole_time() {
    let of = |faulted, cause| {
        let units = units(0.9, 0.8, 0.2, 0.0);
        named(ClassWindow { faulted, cause, busy: Some(1.0), units, ..ClassWindow::default() })
    };
    assert_eq!(of(false, Some(Cause::Wedged)), [(Wedged, 1.0)]);
    assert_eq!(of(false, Some(Cause::Stalled)), [(Stalled, 1.0)]);
    assert_eq!(of(true, Some(Cause::Wedged)), [(Faulted, 1.0)]);
    assert_eq!(of(false, Some(Cause::MemoryBound)), [(Computing, 1.0)]);
}

#[test]
fn time_is_divided_once_a_window_ends_or_none_comes() {
    let at = |seconds: u64| Mono(seconds * 1_000_000_000);
    let mut gathered = Gathered::default();
    let latest = Duration::from_secs(30);
    let close = |gathered: &mut Gathered, seconds| gathered.close_window(latest, at(seconds));
    gathered.held([3600.0, 100.0, 0.0]);
    assert_eq!(close(&mut gathered, 0), None);
    gathered.busy.add(10.0, 5.0);
    // Another reason than that of last week.
    gathered.held([3600.0, 104.0, 1.0]);
    assert_eq!(close(&mut gathered, 8), None, "no window has ended");
    for (sum, amount) in [(&mut gathered.sm, 4.0), (&mut gathered.pipes, 3.0), (&mut gathered.dram, 2.0)] {
        sum.add(10.0, amount);
    }
    gathered.complete(10.0);
    let stretch = close(&mut gathered, 10).unwrap();
    assert_eq!((stretch.busy, stretch.units, stretch.held), (Some(0.5), units(0.4, 0.3, 0.2, 0.0), 0.4));
    assert_eq!(close(&mut gathered, 39), None);
    let nothing = close(&mut gathered, 40).unwrap();
    assert_eq!((nothing.busy, nothing.units, nothing.held), (None, None, 0.0));
    // Windows of two minutes are waited for.
    gathered.complete(120.0);
    gathered.busy.add(120.0, 60.0);
    assert!(close(&mut gathered, 160).is_some());
    assert_eq!(close(&mut gathered, 339), None);
    assert!(close(&mut gathered, 340).is_some());
}

proptest! {
    #[test]
    fn the_shares_add_up(
        busy in prop::option::of(-0.5..1.5_f64),
        units in prop::option::of((0.0..1.0_f64, 0.0..3.0_f64, 0.0..1.0_f64, 0.0..1e12_f64)),
        held in -0.5..2.0_f64,
        flags in any::<[bool; 2]>(),
        cause in prop::option::of(prop::sample::select(Cause::ALL)),
    ) {
        let units = units.map(|(sm, pipes, dram, nvlink)| UnitShares { sm, pipes, dram, nvlink });
        let [faulted, several] = flags;
        let shares = ClassWindow { faulted, cause, busy, units, held, several }.divide();
        prop_assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{shares:?}");
        prop_assert!(shares.iter().all(|share| (-1e-12..=1.0 + 1e-12).contains(share)), "{shares:?}");
    }
}
