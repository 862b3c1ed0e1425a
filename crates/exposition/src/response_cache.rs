//! The published snapshot, and encoded responses of it.
//!
//! After each publication the ledger's thread encodes the formats that were requested lately, so that a scrape sends
//! bytes that are ready. Any other first request encodes under the lock, and requests at the same time share the
//! bytes. Encoding on request alone is cheaper, but eight GPUs take 0.7 ms: the 99th percentile of a scrape was 2.5 ms
//! instead of 0.7 ms.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use flate2::{Compress, CompressError, Compression, FlushCompress, Status};
use tokio::sync::watch;

use crate::format::{Encoding, ResponseFormat};
use model::clock::Mono;
use model::snapshot::Snapshot;
use model::sync::lock;

/// For how long after a request its format is encoded with each publication: a client that asks every second or two waits
/// for no encoder. A request of a slower client encodes once, which costs less than encoding every second for it.
const KEEP: Duration = Duration::from_secs(3);
/// Measured on the metrics of eight GPUs: a quarter of the time of level 6 for a tenth more bytes.
const GZIP_LEVEL: u32 = 2;
/// 32 KiB, the most that gzip allows.
const GZIP_WINDOW_BITS: u8 = 15;

/// The published snapshot: the ledger stores, readers load without waiting.
#[derive(Debug, Default)]
pub struct SnapshotCell {
    current: ArcSwap<Snapshot>,
    sequence: Mutex<u64>,
    changed: Condvar,
    events: watch::Sender<u64>,
}

impl SnapshotCell {
    /// Stores a new snapshot and wakes the threads in [`SnapshotCell::wait_for_newer`].
    pub fn publish(&self, snapshot: Snapshot) {
        let (sequence, revision) = (snapshot.sequence, snapshot.events_revision());
        self.current.store(Arc::new(snapshot));
        self.events.send_if_modified(|newest| std::mem::replace(newest, revision) != revision);
        *lock(&self.sequence) = sequence;
        self.changed.notify_all();
    }

    /// Changes with each snapshot that has new or changed events, to their newest revision.
    pub fn events(&self) -> watch::Receiver<u64> {
        self.events.subscribe()
    }

    /// The newest snapshot. Never blocks.
    pub fn current(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// Blocks until a snapshot newer than `sequence` is there, or the time is over, and returns the newest one. Not
    /// for threads that serve requests.
    pub fn wait_for_newer(&self, sequence: u64, at_most: Duration) -> Arc<Snapshot> {
        drop(self.changed.wait_timeout_while(lock(&self.sequence), at_most, |now| *now <= sequence));
        self.current()
    }
}

/// The responses of one publication.
#[derive(Debug)]
pub struct ResponseCache {
    snapshots: Arc<SnapshotCell>,
    cached: Mutex<Cached>,
}

#[derive(Debug)]
struct Cached {
    /// [`model::snapshot::Snapshot::sequence`] of all responses.
    sequence: u64,
    responses: PerFormat<Option<Bytes>>,
    requested: PerFormat<Option<Mono>>,
    /// Sizes before compression, so that the next buffer is allocated once.
    sizes: [usize; ResponseFormat::ALL.len()],
    /// 300 KB of state, allocated once.
    gzip: Compress,
}

type PerFormat<T> = [[T; Encoding::ALL.len()]; ResponseFormat::ALL.len()];

impl ResponseCache {
    pub fn new(snapshots: Arc<SnapshotCell>) -> ResponseCache {
        let cached = Cached {
            sequence: 0,
            responses: Default::default(),
            requested: Default::default(),
            sizes: Default::default(),
            gzip: Compress::new_gzip(Compression::new(GZIP_LEVEL), GZIP_WINDOW_BITS),
        };
        ResponseCache { snapshots, cached: Mutex::new(cached) }
    }

    /// The newest snapshot in this format and encoding.
    pub fn get(&self, format: ResponseFormat, encoding: Encoding) -> Result<Bytes, CompressError> {
        let mut cached = lock(&self.cached);
        cached.requested[format as usize][encoding as usize] = Some(Mono::now());
        // Loaded under the lock, so that no response replaces a newer one.
        cached.get(&self.snapshots.current(), format, encoding)
    }

    /// Encodes the newest snapshot in the formats requested lately, and drops all older responses.
    pub fn refresh(&self, now: Mono) {
        for format in ResponseFormat::ALL {
            for encoding in Encoding::ALL {
                // Locked for one encoding at a time: a scrape waits for no other format.
                let mut cached = lock(&self.cached);
                let requested = cached.requested[format as usize][encoding as usize];
                if requested.is_none_or(|at| now.since(at) > KEEP) {
                    continue;
                }
                if let Err(error) = cached.get(&self.snapshots.current(), format, encoding) {
                    tracing::error!(%error, ?format, "snapshot not encoded");
                }
            }
        }
    }
}

impl Cached {
    fn get(
        &mut self,
        snapshot: &Arc<Snapshot>,
        format: ResponseFormat,
        encoding: Encoding,
    ) -> Result<Bytes, CompressError> {
        if self.sequence != snapshot.sequence {
            self.sequence = snapshot.sequence;
            self.responses = Default::default();
        }
        let response = &mut self.responses[format as usize][encoding as usize];
        if let Some(bytes) = response {
            return Ok(bytes.clone());
        }
        let mut plain = String::with_capacity(self.sizes[format as usize]);
        format.encode_into(snapshot, &mut plain);
        self.sizes[format as usize] = plain.len();
        let bytes = Bytes::from(match encoding {
            Encoding::Identity => plain.into_bytes(),
            Encoding::Gzip => gzip(&mut self.gzip, plain.as_bytes())?,
        });
        Ok(response.insert(bytes).clone())
    }
}

/// `input` as one gzip member.
fn gzip(compress: &mut Compress, input: &[u8]) -> Result<Vec<u8>, CompressError> {
    compress.reset();
    // Metrics shrink to less than a tenth, so the buffer seldom has to grow.
    let room = input.len() / 8 + 64;
    let mut out = Vec::with_capacity(room);
    loop {
        let read = usize::try_from(compress.total_in()).unwrap_or(usize::MAX);
        let rest = input.get(read..).unwrap_or_default();
        match compress.compress_vec(rest, &mut out, FlushCompress::Finish)? {
            Status::StreamEnd => return Ok(out),
            Status::Ok | Status::BufError => out.reserve(room),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::fixtures;

    fn cache() -> ResponseCache {
        let snapshots = Arc::new(SnapshotCell::default());
        snapshots.publish(fixtures::node_taken(1, Mono::now()));
        ResponseCache::new(snapshots)
    }

    fn publish(cache: &ResponseCache, sequence: u64) {
        cache.snapshots.publish(fixtures::node_taken(sequence, Mono::now()));
    }

    #[test]
    fn a_publication_is_encoded_once_on_request() {
        let cache = cache();
        let first = cache.get(ResponseFormat::Json, Encoding::Identity).unwrap();
        let again = cache.get(ResponseFormat::Json, Encoding::Identity).unwrap();
        assert_eq!(first.as_ptr(), again.as_ptr(), "the very same bytes");
        let cached = |cache: &ResponseCache| {
            cache.cached.lock().unwrap().responses.as_flattened().iter().flatten().count()
        };
        assert_eq!(cached(&cache), 1, "no other format");
        publish(&cache, 2);
        let next = cache.get(ResponseFormat::Text, Encoding::Gzip).unwrap();
        assert_eq!(cached(&cache), 1, "nothing is kept of an older publication");
        assert!(!next.is_empty());
    }

    #[test]
    fn a_requested_format_is_encoded_with_each_publication_for_a_while() {
        let cache = cache();
        let ready = |format: ResponseFormat, encoding: Encoding| {
            let cached = cache.cached.lock().unwrap();
            let bytes = cached.responses[format as usize][encoding as usize].is_some();
            bytes && cached.sequence == cache.snapshots.current().sequence
        };
        cache.get(ResponseFormat::Text, Encoding::Gzip).unwrap();
        publish(&cache, 2);
        cache.refresh(Mono::now());
        assert!(ready(ResponseFormat::Text, Encoding::Gzip));
        assert!(!ready(ResponseFormat::Text, Encoding::Identity), "not requested");
        assert!(!ready(ResponseFormat::Page, Encoding::Gzip), "not requested either");
        publish(&cache, 3);
        cache.refresh(Mono::now() + KEEP + Duration::from_secs(1));
        assert!(!ready(ResponseFormat::Text, Encoding::Gzip), "not requested any more");
    }

    #[test]
    fn each_request_gets_the_newest_publication() {
        let cache = cache();
        for sequence in 2..5 {
            cache.get(ResponseFormat::Json, Encoding::Identity).unwrap();
            publish(&cache, sequence);
            let bytes = cache.get(ResponseFormat::Json, Encoding::Identity).unwrap();
            let text = String::from_utf8(bytes.to_vec()).unwrap();
            assert!(text.contains(&format!("\"sequence\":{sequence},")));
        }
    }

    #[test]
    fn simultaneous_requests_share_one_encoding() {
        let cache = cache();
        let get = || cache.get(ResponseFormat::OpenMetrics, Encoding::Identity).unwrap().as_ptr() as usize;
        let pointers: std::collections::HashSet<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..50).map(|_| scope.spawn(get)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(pointers.len(), 1);
    }

    #[test]
    fn gzip_reads_back_with_reused_state() {
        let mut compress = cache().cached.into_inner().unwrap().gzip;
        for input in [&b""[..], b"gpu_power_watts 1\n", &[7; 100_000], &noise(200_000), b"x"] {
            let bytes = gzip(&mut compress, input).unwrap();
            let mut back = Vec::new();
            flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut back).unwrap();
            assert_eq!(back, input);
        }
    }

    fn noise(len: usize) -> Vec<u8> {
        let mut state = 1u64;
        std::iter::repeat_with(|| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as u8
        })
        .take(len)
        .collect()
    }
}
