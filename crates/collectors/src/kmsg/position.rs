//! Which records of the kernel log are new, over restarts of the daemon: the kernel numbers them from its
//! boot on, and the number of the newest one taken in is kept with the boot's id.

use std::time::Duration;

use host::Host;
use host::state::{Keeper, KernelLogPosition, Store};
use model::clock::Mono;

/// The position is saved at most this often,
const EVERY: Duration = Duration::from_secs(5);
/// and only after a line of ours or this many records: a chatty kernel does not wear the disk.
const MANY: u64 = 1000;

/// Whether a record is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Age {
    /// It was taken in already.
    Seen,
    /// The daemon before took it in, or, if there was none in this boot, it was logged before this one
    /// started.
    Old,
    /// It counts.
    New,
}

/// How far the log was read.
#[derive(Debug)]
pub(crate) struct Position {
    started: Mono,
    /// Number of the newest record that the daemon before this one took in.
    before: Option<u64>,
    /// Whether the end of the log was reached once.
    caught_up: bool,
    /// Number of the newest record taken in.
    newest: Option<u64>,
    /// The same when it was saved last, and when that was.
    saved: Option<u64>,
    saved_at: Mono,
    /// Whether a record since then was about GPUs.
    pub(super) ours: bool,
    boot_id: String,
    keeper: Keeper<KernelLogPosition>,
}

impl Position {
    /// The position after the daemon before this one. Without a boot id it is kept only while the daemon runs.
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

    /// Notes a record, given its number and its time in microseconds since boot.
    pub(crate) fn advance(&mut self, sequence: u64, micros: u64) -> Age {
        // A log that was opened again is read from its start.
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

    /// Notes that the end of the log was reached.
    pub(crate) fn caught_up(&mut self) {
        if !self.caught_up {
            self.caught_up = true;
            // What is in the log now is old for the next daemon.
            self.ours = true;
        }
    }

    /// Saves the position if it is time to.
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

    /// Saves the position for the next daemon and waits until that is done.
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
