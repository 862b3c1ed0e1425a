//! How many counters may be open: each takes a file descriptor, and the daemon's clients need some too.

use nix::sys::resource::{Resource, getrlimit};

use model::catalog::PerfEvent;

/// Most descriptors for the counters of owners' control groups, all together. A counter of a control group also
/// makes the kernel look at each change between groups on its CPU, so this is a bound on that too.
pub const MOST_OWNED: usize = 4096;

/// Descriptors that counters may take: half of what the process may open.
pub fn descriptors() -> usize {
    // Without an answer the least that is usual.
    let soft = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
    usize::try_from(soft / 2).unwrap_or(usize::MAX)
}

/// The events that may be counted on each of so many CPUs: the first ones configured, as many as there is room for.
pub fn that_fit(events: &[PerfEvent], cpus: usize, room: usize) -> &[PerfEvent] {
    &events[..events.len().min(room / cpus.max(1))]
}

/// Descriptors left for owners.
pub fn for_owners(room: usize, machine: usize) -> usize {
    room.saturating_sub(machine).min(MOST_OWNED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::catalog::schema::KnownLabel;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn never_more_than_there_is_room_for(cpus in 0usize..10_000, room in 0usize..100_000, known in 0usize..19) {
            let events = &PerfEvent::ALL[..known];
            let fit = that_fit(events, cpus, room);
            prop_assert!(fit.len() * cpus <= room);
            prop_assert!(fit.len() == known || (fit.len() + 1) * cpus.max(1) > room, "and no less");
            prop_assert!(for_owners(room, fit.len() * cpus) + fit.len() * cpus <= room);
        }
    }

    #[test]
    fn the_default_events_fit_a_large_machine_with_the_units_limit() {
        assert_eq!(that_fit(&PerfEvent::ALL[..8], 256, 16_384 / 2).len(), 8);
        assert_eq!(that_fit(&PerfEvent::ALL[..8], 256, 1024 / 2).len(), 2, "not with systemd's own");
    }
}
