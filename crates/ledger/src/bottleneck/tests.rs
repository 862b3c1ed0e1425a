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
        pipes: Some(0.6),
        pcie_bytes: Some(3e9),
        nvlink_bytes: Some(2e9),
        power_deviation: Some(1.0),
        instance: false,
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
    let apart = [Cause::None, Cause::Unknown, Cause::Wedged, Cause::Stalled];
    assert_eq!(ORDER.len() + apart.len(), Cause::ALL.len());
    assert!(ORDER.iter().all(|cause| !apart.contains(cause)));
}

/// A kernel of one block that polls host memory, as measured.
fn waits() -> Evidence {
    Evidence {
        busy: Some(0.997),
        dram: Some(0.0),
        sm: Some(0.007_58),
        pipes: Some(0.0),
        pcie_bytes: Some(35e6),
        nvlink_bytes: Some(0.0),
        power_deviation: Some(0.4),
        ..well()
    }
}

#[test]
fn kernels_wait_only_if_nothing_is_computed_or_moved() {
    let all = Evidence { sm: Some(1.0), pipes: Some(0.006_5), pcie_bytes: Some(4e5), ..waits() };
    for evidence in [waits(), all, Evidence { nvlink_bytes: None, ..waits() }] {
        assert_eq!(evidence.pace(), Some(Pace::Waits), "{evidence:?}");
    }
    for evidence in [
        well(),
        Evidence { busy: Some(0.97), ..waits() },
        Evidence { pipes: Some(0.007_5), ..waits() },
        Evidence { dram: Some(0.000_3), ..waits() },
        Evidence { pcie_bytes: Some(80e6), ..waits() },
        Evidence { pcie_bytes: Some(1.1e9), ..all },
        Evidence { nvlink_bytes: Some(1e7), ..waits() },
        Evidence { power_deviation: Some(0.6), ..waits() },
        // Copies without end, and none of them for a moment.
        Evidence { sm: Some(0.0), dram: Some(0.011), pcie_bytes: Some(56e9), ..waits() },
        Evidence { sm: Some(0.0), ..waits() },
    ] {
        assert_eq!(evidence.pace(), Some(Pace::Moves), "{evidence:?}");
    }
    let slice = Evidence { instance: true, pcie_bytes: None, power_deviation: Some(1.0), ..waits() };
    assert_eq!(slice.pace(), Some(Pace::Waits), "neither power nor links are a slice's");
}

#[test]
fn a_gpu_rests_only_if_nothing_is_copied_either() {
    let rests = Evidence { busy: Some(0.0), sm: Some(0.0), pcie_bytes: Some(7e5), ..waits() };
    assert_eq!(rests.pace(), Some(Pace::Rests));
    assert_eq!(Evidence { power_deviation: None, ..rests }.pace(), Some(Pace::Rests));
    for evidence in [
        Evidence { busy: Some(0.01), ..rests },
        Evidence { sm: Some(0.000_1), ..rests },
        Evidence { dram: Some(0.000_28), pcie_bytes: Some(1.39e9), ..rests },
        Evidence { pcie_bytes: Some(1e7), ..rests },
    ] {
        assert_eq!(evidence.pace(), Some(Pace::Moves), "{evidence:?}");
    }
}

#[test]
fn without_a_reading_no_pace_is_known() {
    for evidence in [
        Evidence { busy: None, ..waits() },
        Evidence { sm: None, ..waits() },
        Evidence { pipes: None, ..waits() },
        Evidence { dram: None, ..waits() },
        Evidence { pcie_bytes: None, ..waits() },
        Evidence { power_deviation: None, ..waits() },
    ] {
        assert_eq!(evidence.pace(), None, "{evidence:?}");
    }
}

#[test]
fn work_is_busy_pipes_or_memory_traffic() {
    assert!(is_work(0.9, 0.88, 0.17) && is_work(0.007_6, 0.007_5, 0.0) && is_work(0.5, 0.02, 0.3));
    assert!(!is_work(1.0, 0.006_5, 0.011) && !is_work(0.0, 0.0, 0.011) && !is_work(0.0002, 0.0001, 0.0));
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
            ..well()
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
