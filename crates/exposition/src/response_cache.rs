//! Bytes made ahead of those who ask for them.
//!
//! Those who scrape come at an interval, one or two of them for each format: it is made, by one thread, for the snapshots
//! about the moment when it is asked for again, and for no others. Who comes in time gets the bytes that are ready and waits
//! for nothing; who is first, or comes out of turn, waits until they are made, once, however many ask at the same time.

use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use tokio::sync::Mutex;

use crate::encode::gzip::Gzip;
use crate::encode::{Encoding, Format};
use crate::snapshot_cell::SnapshotCell;
use model::clock::Mono;
use model::snapshot::Snapshot;

/// For how long after it was last asked for a format is made ahead, and its bytes are kept.
pub const KEEP: Duration = Duration::from_secs(5 * 60);

/// How far ready bytes may be behind the newest snapshot for one who was expected. Making them takes milliseconds; where
/// they are this far behind, the thread that makes them is starved, and who asks makes them itself. Bytes are made from
/// this long before somebody is expected until this long after.
const LAG: Duration = Duration::from_secs(2);

/// How often the thread looks whether anybody is left to make bytes for.
const LOOK: Duration = Duration::from_secs(1);

/// One snapshot in one format and encoding.
#[derive(Debug)]
pub struct Rendering {
    /// [`Snapshot::sequence`] of the snapshot.
    pub sequence: u64,
    /// When the snapshot was made.
    pub taken: Mono,
    /// The bytes to send.
    pub bytes: Bytes,
}

/// A format could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Unrendered {
    /// The compressor failed.
    #[error("gzip failed: {0}")]
    Gzip(#[from] flate2::CompressError),
    /// The code that makes it panicked, or the runtime is ending.
    #[error("rendering failed: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// The newest bytes of every format.
#[derive(Debug)]
pub struct Renderings {
    board: Arc<SnapshotCell>,
    slots: [[Slot; Encoding::ALL.len()]; Format::ALL.len()],
}

#[derive(Debug, Default)]
struct Slot {
    ready: ArcSwapOption<Rendering>,
    /// When it was last asked for, the newest first.
    asked: std::sync::Mutex<[Option<Mono>; 3]>,
    /// Held by the one that makes bytes because none are ready. Never by the thread.
    making: Mutex<()>,
}

/// Buffers and state used again for every snapshot.
#[derive(Default)]
struct Workshop {
    plain: String,
    gzip: Gzip,
}

impl Renderings {
    /// Starts the thread; it ends when the last handle is gone.
    pub fn start(board: Arc<SnapshotCell>) -> std::io::Result<Arc<Renderings>> {
        let renderings = Arc::new(Renderings { board: board.clone(), slots: Default::default() });
        let weak = Arc::downgrade(&renderings);
        std::thread::Builder::new().name("encode".into()).spawn(move || keep_ready(&board, &weak))?;
        Ok(renderings)
    }

    /// The newest bytes, and a note that somebody wants them.
    pub async fn get(self: &Arc<Self>, format: Format, encoding: Encoding) -> Result<Bytes, Unrendered> {
        let slot = self.slot(format, encoding);
        let lag = if slot.ask(Mono::now()) { LAG } else { Duration::ZERO };
        let oldest = self.board.current().taken.0.saturating_sub(lag.as_nanos() as u64);
        if let Some(bytes) = slot.ready_since(Mono(oldest)) {
            return Ok(bytes);
        }
        let _making = slot.making.lock().await;
        if let Some(bytes) = slot.ready_since(Mono(oldest)) {
            return Ok(bytes);
        }
        let this = self.clone();
        tokio::task::spawn_blocking(move || this.make(format, encoding)).await?
    }

    fn slot(&self, format: Format, encoding: Encoding) -> &Slot {
        &self.slots[format as usize][encoding as usize]
    }

    /// Makes one format now, on a blocking thread.
    fn make(&self, format: Format, encoding: Encoding) -> Result<Bytes, Unrendered> {
        let snapshot = self.board.current();
        let mut workshop = Workshop::default();
        format.render_into(&snapshot, &mut workshop.plain);
        let bytes = Bytes::from(workshop.encoded(encoding)?);
        let made = Rendering { sequence: snapshot.sequence, taken: snapshot.taken, bytes: bytes.clone() };
        self.slot(format, encoding).put_if_newer(Arc::new(made));
        Ok(bytes)
    }

    /// Makes every wanted format of a snapshot, and forgets those nobody wants any more.
    fn refresh(&self, snapshot: &Arc<Snapshot>, now: Mono, workshop: &mut Workshop) {
        for format in Format::ALL {
            let mut rendered = false;
            for encoding in Encoding::ALL {
                let slot = self.slot(format, encoding);
                if !slot.wanted(now) {
                    slot.ready.store(None);
                    continue;
                }
                if !slot.due(now)
                    || slot.ready.load().as_ref().is_some_and(|r| r.sequence >= snapshot.sequence)
                {
                    continue;
                }
                if !rendered {
                    workshop.plain.clear();
                    format.render_into(snapshot, &mut workshop.plain);
                    rendered = true;
                }
                // The plain bytes are copied, as the same buffer serves the next format: one allocation
                // of just their size a second.
                match workshop.encoded(encoding) {
                    Ok(bytes) => slot.put_if_newer(Arc::new(Rendering {
                        sequence: snapshot.sequence,
                        taken: snapshot.taken,
                        bytes: bytes.into(),
                    })),
                    // Who asks will try again and be told.
                    Err(error) => tracing::error!(%error, ?format, "no bytes made ahead"),
                }
            }
        }
    }
}

impl Slot {
    /// Ready bytes of a snapshot that is not older than this.
    fn ready_since(&self, oldest: Mono) -> Option<Bytes> {
        self.ready.load().as_ref().filter(|r| r.taken >= oldest).map(|r| r.bytes.clone())
    }

    /// Notes that somebody asks now; gives whether that was to be expected, so that the thread has made bytes.
    fn ask(&self, now: Mono) -> bool {
        let awaited = self.due(now);
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        *asked = [Some(now), asked[0], asked[1]];
        awaited
    }

    /// Whether somebody is expected who would get bytes made now. One who comes every `t` was there at `n`, `n - t` and
    /// `n - 2t`; of two who do so in turn one was there at `n` and `n - t`, and the other, next, in between: both are next
    /// as long after the time before last as lies between the first and the third.
    fn due(&self, now: Mono) -> bool {
        let asked = *self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let [Some(last), Some(before), Some(first)] = asked else { return false };
        let next = before + last.since(first);
        next.since(now) <= LAG && now.since(next) <= LAG
    }

    fn wanted(&self, now: Mono) -> bool {
        let asked = *self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked[0].is_some_and(|asked| now.since(asked) <= KEEP)
    }

    /// Two make bytes at times, the thread and who asked first; the newer stay.
    fn put_if_newer(&self, made: Arc<Rendering>) {
        self.ready.rcu(|old| match old {
            Some(old) if old.sequence > made.sequence => Some(old.clone()),
            _ => Some(made.clone()),
        });
    }
}

impl Workshop {
    /// The plain bytes, encoded, in a buffer of their own.
    fn encoded(&mut self, encoding: Encoding) -> Result<Vec<u8>, flate2::CompressError> {
        match encoding {
            Encoding::Identity => Ok(self.plain.as_bytes().to_vec()),
            Encoding::Gzip => self.gzip.compress(self.plain.as_bytes()),
        }
    }
}

fn keep_ready(board: &SnapshotCell, renderings: &Weak<Renderings>) {
    let mut workshop = Workshop::default();
    let mut done = 0;
    loop {
        let snapshot = board.wait_for_newer(done, LOOK);
        let Some(renderings) = renderings.upgrade() else { return };
        if snapshot.sequence > done {
            renderings.refresh(&snapshot, Mono::now(), &mut workshop);
            done = snapshot.sequence;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::fixtures;

    /// Renderings whose thread is the test itself, over a node published once at `taken`.
    fn by_hand(taken: Mono) -> Arc<Renderings> {
        let board = Arc::new(SnapshotCell::default());
        board.publish(fixtures::node_taken(1, taken));
        Arc::new(Renderings { board, slots: Default::default() })
    }

    fn sequence(renderings: &Renderings, format: Format, encoding: Encoding) -> Option<u64> {
        renderings.slot(format, encoding).ready.load().as_ref().map(|ready| ready.sequence)
    }

    #[tokio::test]
    async fn what_was_asked_for_is_made_ahead_until_nobody_asks_any_more() {
        let now = Mono::now();
        let renderings = by_hand(now);
        let mut workshop = Workshop::default();
        let first = renderings.get(Format::Text, Encoding::Gzip).await.unwrap();
        assert_eq!(sequence(&renderings, Format::Text, Encoding::Gzip), Some(1));
        for _ in 0..2 {
            renderings.get(Format::Text, Encoding::Gzip).await.unwrap();
        }

        renderings.board.publish(fixtures::node_taken(2, now));
        renderings.refresh(&renderings.board.current(), Mono::now(), &mut workshop);
        assert_eq!(sequence(&renderings, Format::Text, Encoding::Gzip), Some(2));
        assert_eq!(sequence(&renderings, Format::Text, Encoding::Identity), None, "nobody asked for it");
        assert_eq!(sequence(&renderings, Format::Page, Encoding::Gzip), None, "nor for this");
        let ready = renderings.get(Format::Text, Encoding::Gzip).await.unwrap();
        assert_eq!((first.len(), first.as_ptr() == ready.as_ptr()), (ready.len(), false));

        let later = Mono::now() + KEEP + Duration::from_secs(1);
        renderings.refresh(&renderings.board.current(), later, &mut workshop);
        assert_eq!(sequence(&renderings, Format::Text, Encoding::Gzip), None);
    }

    #[tokio::test]
    async fn ready_bytes_are_handed_out_unless_they_lag() {
        let renderings = by_hand(Mono(1_000_000_000));
        for _ in 0..2 {
            renderings.get(Format::Json, Encoding::Identity).await.unwrap();
        }
        let first = renderings.get(Format::Json, Encoding::Identity).await.unwrap();
        renderings.board.publish(fixtures::node_taken(2, Mono(1_000_000_000) + LAG));
        let ready = renderings.get(Format::Json, Encoding::Identity).await.unwrap();
        assert_eq!(first.as_ptr(), ready.as_ptr(), "the very same bytes");
        renderings.board.publish(fixtures::node_taken(3, Mono(1_000_000_001) + LAG));
        renderings.get(Format::Json, Encoding::Identity).await.unwrap();
        assert_eq!(sequence(&renderings, Format::Json, Encoding::Identity), Some(3));
    }

    #[tokio::test]
    async fn many_first_askers_share_one_making() {
        let renderings = by_hand(Mono::now());
        let ask = || {
            let renderings = renderings.clone();
            tokio::spawn(async move { renderings.get(Format::OpenMetrics, Encoding::Identity).await })
        };
        let asking: Vec<_> = std::iter::repeat_with(ask).take(50).collect();
        let mut places = std::collections::HashSet::new();
        for asked in asking {
            places.insert(asked.await.unwrap().unwrap().as_ptr() as usize);
        }
        assert_eq!(places.len(), 1);
    }

    #[test]
    fn bytes_are_made_about_when_somebody_asks_again() {
        let (slot, at) = (Slot::default(), |seconds| Mono(1_000_000_000 * seconds));
        let due = |slot: &Slot| (100..200).filter(|now| slot.due(at(*now))).collect::<Vec<u64>>();
        for (now, awaited) in [(100, false), (115, false), (130, false), (145, true)] {
            assert_eq!(slot.ask(at(now)), awaited, "at {now}");
        }
        assert_eq!(due(&slot), [158, 159, 160, 161, 162]);
        assert!(!slot.ask(at(149)), "out of turn");
        for (now, awaited) in [(160, false), (164, true), (175, true), (179, true)] {
            assert_eq!(slot.ask(at(now)), awaited, "a second one, in turn with the first, at {now}");
        }
        assert_eq!(due(&slot), [188, 189, 190, 191, 192]);
    }

    #[tokio::test]
    async fn who_comes_out_of_turn_gets_the_newest_bytes_too() {
        let renderings = by_hand(Mono(1_000_000_000));
        let slot = renderings.slot(Format::Text, Encoding::Gzip);
        slot.ask(Mono::now());
        renderings.refresh(&renderings.board.current(), Mono::now(), &mut Workshop::default());
        assert_eq!(sequence(&renderings, Format::Text, Encoding::Gzip), None, "asked for once");
        renderings.get(Format::Text, Encoding::Gzip).await.unwrap();
        assert_eq!(sequence(&renderings, Format::Text, Encoding::Gzip), Some(1));
        *slot.asked.lock().unwrap() = [Some(Mono(3)), Some(Mono(2)), Some(Mono(1))];
        renderings.board.publish(fixtures::node_taken(2, Mono(1_500_000_000)));
        renderings.get(Format::Text, Encoding::Gzip).await.unwrap();
        let newest = Some(2);
        assert_eq!(
            sequence(&renderings, Format::Text, Encoding::Gzip),
            newest,
            "not what was ready for another"
        );
    }

    #[test]
    fn older_bytes_never_replace_newer_ones() {
        let slot = Slot::default();
        let made = |sequence| Arc::new(Rendering { sequence, taken: Mono(sequence), bytes: Bytes::new() });
        for sequence in [2, 1, 3] {
            slot.put_if_newer(made(sequence));
        }
        assert_eq!(slot.ready.load().as_ref().unwrap().sequence, 3);
    }
}
