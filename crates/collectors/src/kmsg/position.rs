//! Tracks which records of the kernel log are new, across restarts of the daemon. The kernel numbers records from boot;
//! the number of the newest processed record is stored with the boot ID.

use std::time::Duration;

use host::Host;
use host::state::{Keeper, KernelLogPosition, Store};
use model::clock::Mono;

/// Minimum time between two saves of the position.
const EVERY: Duration = Duration::from_secs(5);
/// Number of foreign records after which the position is saved. Otherwise, it is saved only after a GPU record, so that
/// a busy kernel log does not wear out the disk.
const MANY: u64 = 1000;

/// Age of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Age {
    /// The record was processed already.
    Seen,
    /// The record was processed by the previous daemon or, if there was none in this boot, logged before this one started.
    Old,
    New,
}

/// Position in the kernel log.
#[derive(Debug)]
pub(crate) struct Position {
    started: Mono,
    /// Number of the newest record that the previous daemon processed.
    before: Option<u64>,
    /// Whether the end of the log was reached once.
    caught_up: bool,
    /// Number of the newest processed record.
    newest: Option<u64>,
    /// Value of `newest` at the last save.
    saved: Option<u64>,
    saved_at: Mono,
    /// Whether a GPU record was processed since the last save.
    pub(super) ours: bool,
    boot_id: String,
    keeper: Keeper<KernelLogPosition>,
}

impl Position {
    /// Loads the position of the previous daemon. Without a boot ID the position is kept in memory only.
    pub(crate) fn new(host: &Host, store: &Store) -> Position {
        let boot_id = host.boot_id().unwrap_or_else(|error| {
            tracing::warn!(%error, "failed to read the boot ID; the position in the kernel log will not survive a restart");
            String::new()
        });
        let (known, keeper) = if boot_id.is_empty() { Default::default() } else { store.open() };
        let known: Option<KernelLogPosition> = known;
        let before = known.filter(|known| known.boot_id == boot_id).map(|known| known.sequence);
        Position::starting_at(Mono::now(), before, boot_id, keeper)
    }

    fn starting_at(
        started: Mono,
        before: Option<u64>,
        boot_id: String,
        keeper: Keeper<KernelLogPosition>,
    ) -> Position {
        Position {
            started,
            before,
            caught_up: false,
            newest: None,
            saved: before,
            saved_at: Mono(0),
            ours: false,
            boot_id,
            keeper,
        }
    }

    /// Processes the number of a record and its time in microseconds since boot.
    pub(crate) fn advance(&mut self, sequence: u64, micros: u64) -> Age {
        // A reopened log is read from its start.
        if self.newest.is_some_and(|newest| sequence <= newest) {
            return Age::Seen;
        }
        self.newest = Some(sequence);
        let old = match self.before {
            Some(before) => sequence <= before,
            None => !self.caught_up && micros.saturating_mul(1000) < self.started.0,
        };
        if old { Age::Old } else { Age::New }
    }

    /// Marks the end of the log as reached.
    pub(crate) fn caught_up(&mut self) {
        if !self.caught_up {
            self.caught_up = true;
            // All current records are old for the next daemon.
            self.ours = true;
        }
    }

    /// Saves the position if it is due.
    pub(crate) fn keep(&mut self, now: Mono) {
        let far = self.newest.unwrap_or(0).saturating_sub(self.saved.unwrap_or(0)) >= MANY;
        if (self.ours || far) && (self.saved_at == Mono(0) || now.since(self.saved_at) >= EVERY) {
            self.save();
            self.saved_at = now;
        }
    }

    fn save(&mut self) {
        self.ours = false;
        let newest = self.newest.max(self.before);
        let Some(sequence) = newest.filter(|_| newest != self.saved) else { return };
        self.keeper.save(KernelLogPosition { boot_id: self.boot_id.clone(), sequence });
        self.saved = newest;
    }

    /// Saves the position for the next daemon.
    pub(crate) fn finish(mut self) {
        self.save();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const START: Mono = Mono(1_000_000_000);

    #[test]
    fn at_the_first_start_what_was_logged_before_is_old() {
        let mut position = Position::starting_at(START, None, String::new(), Keeper::default());
        assert_eq!(position.advance(1, 999_999), Age::Old);
        assert_eq!(position.advance(2, 1_000_000), Age::New, "logged while the log was read");
        position.caught_up();
        assert_eq!(position.advance(3, 10), Age::New, "whatever its time says");
    }

    #[test]
    fn after_a_restart_what_was_not_taken_in_counts() {
        let mut position = Position::starting_at(START, Some(7), String::new(), Keeper::default());
        assert_eq!([position.advance(6, 1), position.advance(7, 1)], [Age::Old, Age::Old]);
        assert_eq!(position.advance(8, 1), Age::New, "logged while no daemon ran");
    }

    #[test]
    fn it_is_saved_seldom_and_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        let read = |store: &Store| store.load::<KernelLogPosition>().unwrap().map(|p| p.sequence);
        let mut position = Position::starting_at(START, None, "b".into(), store.open().1);
        position.advance(1, 1);
        position.keep(START);
        assert_eq!(position.saved, None, "nothing of ours");
        position.ours = true;
        position.keep(START);
        assert_eq!(position.saved, Some(1), "at once");
        position.advance(2, 1);
        position.ours = true;
        position.keep(START + Duration::from_secs(4));
        assert_eq!(position.saved, Some(1), "not so soon again");
        position.keep(START + Duration::from_secs(5));
        assert_eq!(position.saved, Some(2));
        position.advance(3, 1);
        position.keep(START + Duration::from_secs(60));
        assert_eq!(position.saved, Some(2), "one record of others is not worth it");
        position.finish();
        assert_eq!(read(&store), Some(3));
    }

    proptest! {
        #[test]
        fn no_record_is_new_twice(mut numbers in prop::collection::vec(0u64..50, 1..80), cut in 0usize..80) {
            // A log that is opened again is read from its start.
            numbers.sort_unstable();
            numbers.dedup();
            let mut position = Position::starting_at(START, None, String::new(), Keeper::default());
            position.caught_up();
            let cut = cut.min(numbers.len());
            let read = numbers[..cut].iter().chain(&numbers);
            let new = read.filter(|number| position.advance(**number, 0) == Age::New).count();
            prop_assert_eq!(new, numbers.len());
        }
    }
}
