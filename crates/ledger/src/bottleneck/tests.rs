use super::*;
use model::catalog::schema::KnownLabel;
use proptest::prelude::*;

/// A GPU at work with nothing to complain of.
fn well() -> Evidence {
    Evidence {
        power_held: Some(0.0),
        heat_held: Some(0.0),
        owners: 1,
        busy: Some(0.9),
        busiest_thread: Some(0.5),
        quota_used: Some(0.5),
        cpu_remote: Some(0.0),
        memory_remote: Some(0.0),
        pcie: Some(0.05),
        dram: Some(0.4),
        sm: Some(0.7),
    }
}

/// The same before Hopper.
fn without_gpm() -> Evidence {
    Evidence { pcie: None, dram: None, sm: None, ..well() }
}

#[test]
fn each_cause_has_a_case() {
    let cases = [
        (Cause::None, well()),
        (Cause::ThermallyThrottled, Evidence { heat_held: Some(0.2), power_held: Some(0.9), ..well() }),
        (Cause::PowerCapped, Evidence { power_held: Some(0.11), owners: 2, ..well() }),
        (Cause::Contended, Evidence { owners: 2, ..well() }),
        (
            Cause::PcieBound,
            Evidence { pcie: Some(0.81), memory_remote: Some(1.0), busy: Some(0.2), ..well() },
        ),
        (
            Cause::RemoteNuma,
            Evidence { memory_remote: Some(0.9), pcie: Some(0.3), busy: Some(0.5), ..well() },
        ),
        (Cause::RemoteNuma, Evidence { cpu_remote: Some(1.0), pcie: Some(0.3), busy: Some(0.5), ..well() }),
        (Cause::HostCpuBound, Evidence { busiest_thread: Some(0.99), busy: Some(0.4), ..well() }),
        (Cause::HostCpuBound, Evidence { quota_used: Some(0.99), busy: Some(0.4), ..well() }),
        (Cause::MemoryBound, Evidence { dram: Some(0.9), sm: Some(0.8), ..well() }),
        (Cause::SerialCopies, Evidence { pcie: Some(0.4), busy: Some(0.55), ..well() }),
        (Cause::Underfilled, Evidence { sm: Some(0.1), busy: Some(0.95), ..well() }),
        (Cause::None, Evidence { busiest_thread: Some(1.0), ..well() }),
        (Cause::None, Evidence { pcie: Some(0.4), busy: Some(0.7), ..well() }),
        (Cause::None, Evidence { pcie: None, sm: None, ..well() }),
        (Cause::Unknown, without_gpm()),
        (Cause::Unknown, Evidence { busy: None, ..without_gpm() }),
        (Cause::HostCpuBound, Evidence { busiest_thread: Some(0.99), busy: Some(0.4), ..without_gpm() }),
        (Cause::Contended, Evidence { owners: 2, ..without_gpm() }),
    ];
    for (cause, evidence) in cases {
        assert_eq!(evidence.cause(), Some(cause), "{evidence:?}");
    }
    assert_eq!(Evidence { owners: 3, quota_used: Some(1.0), ..Evidence::default() }.cause(), None);
}

#[test]
fn every_cause_is_looked_for() {
    assert_eq!(ORDER.len() + 2, Cause::ALL.len());
    assert!(ORDER.iter().all(|cause| !matches!(cause, Cause::None | Cause::Unknown)));
}

#[test]
fn a_cause_that_comes_and_goes_is_not_reported() {
    let at = |seconds: u64| Mono(seconds * 1_000_000_000);
    let mut steady = Steady::default();
    assert_eq!(steady.found(Some(Cause::None), at(0)), None);
    assert_eq!(steady.found(Some(Cause::None), at(10)), Some(Cause::None));
    assert_eq!(steady.found(Some(Cause::PcieBound), at(11)), Some(Cause::None));
    assert_eq!(steady.found(Some(Cause::None), at(15)), Some(Cause::None));
    assert_eq!(steady.found(Some(Cause::PcieBound), at(16)), Some(Cause::None));
    assert_eq!(steady.found(Some(Cause::PcieBound), at(26)), Some(Cause::PcieBound));
}

fn share() -> impl Strategy<Value = Option<f64>> {
    prop::option::of(0f64..=1.0)
}

prop_compose! {
    fn any_evidence()(
        power_held in share(), heat_held in share(), owners in 0usize..4, busy in share(), busiest_thread in share(),
        quota_used in share(), cpu_remote in share(), memory_remote in share(), pcie in share(), dram in share(),
        sm in share(),
    ) -> Evidence {
        Evidence {
            power_held, heat_held, owners, busy, busiest_thread, quota_used, cpu_remote, memory_remote, pcie, dram, sm,
        }
    }
}

proptest! {
    #[test]
    fn what_is_not_known_proves_nothing(evidence in any_evidence(), left_out in 0usize..10) {
        let mut less = evidence;
        *[
            &mut less.power_held, &mut less.heat_held, &mut less.busy, &mut less.busiest_thread, &mut less.quota_used,
            &mut less.cpu_remote, &mut less.memory_remote, &mut less.pcie, &mut less.dram, &mut less.sm,
        ][left_out] = None;
        for cause in ORDER {
            prop_assert!(evidence.proves(cause) || !less.proves(cause));
        }
    }

    #[test]
    fn more_of_it_never_takes_a_proof_away(evidence in any_evidence(), more in 0f64..=1.0) {
        let raised = |value: Option<f64>| value.map(|value: f64| value.max(more));
        let hotter = Evidence { heat_held: raised(evidence.heat_held), ..evidence };
        prop_assert!(!evidence.proves(Cause::ThermallyThrottled) || hotter.cause() == Some(Cause::ThermallyThrottled));
        let capped = Evidence { power_held: raised(evidence.power_held), ..evidence };
        prop_assert!(!evidence.proves(Cause::PowerCapped) || capped.proves(Cause::PowerCapped));
        let fuller = Evidence { pcie: raised(evidence.pcie), ..evidence };
        for cause in [Cause::PcieBound, Cause::RemoteNuma] {
            prop_assert!(!evidence.proves(cause) || fuller.proves(cause));
        }
        let company = Evidence { owners: evidence.owners + 1, ..evidence };
        prop_assert!(!evidence.proves(Cause::Contended) || company.proves(Cause::Contended));
    }

    #[test]
    fn the_first_proven_cause_is_the_one(evidence in any_evidence()) {
        match evidence.cause() {
            None => prop_assert!(evidence.busy.is_none() && evidence.pcie.is_none()),
            Some(found @ (Cause::None | Cause::Unknown)) => {
                let measured = [evidence.pcie, evidence.dram, evidence.sm].iter().any(Option::is_some);
                prop_assert!(ORDER.iter().all(|cause| !evidence.proves(*cause)));
                prop_assert_eq!(found == Cause::None, measured);
            }
            Some(found) => {
                prop_assert!(evidence.proves(found));
                let before = ORDER.iter().take_while(|cause| **cause != found);
                prop_assert!(before.into_iter().all(|cause| !evidence.proves(*cause)));
            }
        }
    }
}
