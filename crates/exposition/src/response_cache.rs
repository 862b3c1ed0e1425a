//! Cache of encoded responses.
//!
//! After every publication, the ledger thread encodes the metrics in the formats that were requested recently, so that
//! a scrape sends bytes that are already encoded. A helper thread encodes any other response on the first request after
//! a change; the thread that serves requests encodes nothing. Concurrent requests wait for one encoder and share the
//! bytes. Encoding only on request is cheaper, but takes 0.7 ms for eight GPUs and raised the p99 latency of a scrape
//! from 0.7 ms to 2.5 ms.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use dcgm::page::PageConfig;
use flate2::{Compress, CompressError, Compression, FlushCompress, Status};
use tokio::sync::OwnedMutexGuard;

use crate::api;
use crate::api::events::EncodedEvents;
use crate::api::owners::OwnerQuery;
use crate::assets::Asset;
use crate::format::{Encoding, ResponseFormat};
use crate::nameless;
use model::catalog::{self as m, Gpu};
use model::clock::Mono;
use model::snapshot::Snapshot;
use model::snapshot_cell::SnapshotCell;
use model::sync::lock;
use model::topology::TopologyUpdate;

/// Time after a request for which the ledger thread encodes the metrics with every publication. A client that scrapes
/// every second or two never waits for an encoder. For a slower client, encoding on request is cheaper than encoding
/// every second.
const KEEP: Duration = Duration::from_secs(3);
/// Time after the last request for which an unchanged response stays in memory.
const KEEP_UNCHANGED: Duration = Duration::from_secs(60);
/// Maximum size of a response before compression, in bytes. `metrics.max_series` keeps usual responses far below it.
const MAX_BYTES: usize = 16 << 20;
/// Compression level. On the metrics of eight GPUs, it needs a quarter of the time of level 6 and yields a tenth more
/// bytes.
const GZIP_LEVEL: u32 = 2;
/// Base-2 logarithm of the window size: 32 KiB, the maximum of gzip.
const GZIP_WINDOW_BITS: u8 = 15;

/// Reason for which a response could not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    #[error("compression failed: {0}")]
    Compress(#[from] CompressError),
    #[error("the document has {0} bytes, which exceeds the limit of {MAX_BYTES}")]
    TooLarge(usize),
    #[error("the helper thread failed: {0}")]
    Thread(#[from] tokio::task::JoinError),
}

/// A response body in one format and encoding.
#[derive(Clone, Debug)]
pub struct EncodedResponse {
    pub bytes: Bytes,
    /// Value of the `ETag` header; `None` for metrics.
    pub etag: Option<String>,
}

/// Version of the data in a response, which is encoded again when its version changes.
#[derive(Clone, Debug)]
enum Version {
    Publication(u64),
    Events(u64),
    History(Mono),
    /// The topology, and the PCI addresses of the GPUs.
    Topology(Option<Arc<TopologyUpdate>>, Vec<(Gpu, Option<String>)>),
}

impl Version {
    fn for_format(format: ResponseFormat, snapshot: &Snapshot) -> Version {
        match format {
            ResponseFormat::Events => Version::Events(snapshot.events_revision()),
            ResponseFormat::History => Version::History(snapshot.trends.end),
            ResponseFormat::Topology => {
                let address = |gpu| snapshot.info(&m::gpu_info, gpu, "pci_address").map(str::to_owned);
                let gpus = snapshot.gpus.iter().map(|view| (view.gpu.clone(), address(&view.gpu)));
                Version::Topology(snapshot.topology.clone(), gpus.collect())
            }
            _ => Version::Publication(snapshot.sequence),
        }
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Version) -> bool {
        match (self, other) {
            (Version::Publication(one), Version::Publication(two))
            | (Version::Events(one), Version::Events(two)) => one == two,
            (Version::History(one), Version::History(two)) => one == two,
            // An update is immutable, so that comparing the pointers is enough.
            (Version::Topology(one, gpus), Version::Topology(two, others)) => {
                one.as_ref().map(Arc::as_ptr) == two.as_ref().map(Arc::as_ptr) && gpus == others
            }
            _ => false,
        }
    }
}

/// Cache of the encoded responses of one server.
#[derive(Debug)]
pub struct ResponseCache {
    snapshots: Arc<SnapshotCell>,
    /// True if the responses omit the names of owners.
    nameless: bool,
    dcgm: Arc<ArcSwap<PageConfig>>,
    slots: [Arc<Slot>; ResponseFormat::ALL.len()],
    events: Arc<Mutex<ReadyEvents>>,
    /// One encoder at a time.
    events_encoder: Arc<tokio::sync::Mutex<()>>,
    /// Rules, dashboards and page files by path. They never change.
    assets: Arc<Mutex<HashMap<(&'static str, Encoding), EncodedResponse>>>,
}

/// The encoded events, and the time of the last request for them.
type ReadyEvents = Option<(Mono, Arc<EncodedEvents>)>;

/// The responses in one format.
#[derive(Debug)]
struct Slot {
    format: ResponseFormat,
    nameless: bool,
    dcgm: Arc<ArcSwap<PageConfig>>,
    ready: Mutex<Ready>,
    /// One encoder at a time.
    encoder: Arc<tokio::sync::Mutex<Encoder>>,
}

#[derive(Debug, Default)]
struct Ready {
    /// Version of all `responses`.
    version: Option<Version>,
    responses: [Option<EncodedResponse>; Encoding::ALL.len()],
    requested: [Option<Mono>; Encoding::ALL.len()],
}

#[derive(Debug, Default)]
struct Encoder {
    /// Size of the last response before compression, in bytes. The next buffer is allocated with this size.
    size: usize,
    /// State of the compressor: 300 KB, which are kept only for metrics.
    gzip: Option<Compress>,
}

impl ResponseCache {
    /// Returns an empty cache. `dcgm` configures the page of dcgm-exporter.
    pub fn new(snapshots: Arc<SnapshotCell>, dcgm: PageConfig) -> ResponseCache {
        ResponseCache::with(snapshots, dcgm, false)
    }

    /// Returns an empty cache whose responses omit the names of owners.
    pub fn nameless(snapshots: Arc<SnapshotCell>, dcgm: PageConfig) -> ResponseCache {
        ResponseCache::with(snapshots, dcgm, true)
    }

    fn with(snapshots: Arc<SnapshotCell>, dcgm: PageConfig, nameless: bool) -> ResponseCache {
        let dcgm = Arc::new(ArcSwap::from_pointee(dcgm));
        let slot = |format| {
            let dcgm = Arc::clone(&dcgm);
            Slot { format, nameless, dcgm, ready: Mutex::default(), encoder: Arc::default() }
        };
        let slots = ResponseFormat::ALL.map(|format| Arc::new(slot(format)));
        let (events, events_encoder, assets) = Default::default();
        ResponseCache { snapshots, nameless, dcgm, slots, events, events_encoder, assets }
    }

    /// Changes the configuration of dcgm-exporter's page, which takes effect with the next publication.
    pub fn set_dcgm(&self, page: PageConfig) {
        self.dcgm.store(Arc::new(page));
    }

    /// Returns the newest snapshot in this format and encoding.
    pub async fn get(
        &self,
        format: ResponseFormat,
        encoding: Encoding,
    ) -> Result<EncodedResponse, EncodeError> {
        let slot = &self.slots[format as usize];
        lock(&slot.ready).requested[encoding as usize] = Some(Mono::now());
        if let Some(response) = slot.ready(&self.snapshots.current(), encoding) {
            return Ok(response);
        }
        let encoder = Arc::clone(&slot.encoder).lock_owned().await;
        // The snapshot is loaded under the lock, so that no response replaces a newer one.
        let snapshot = self.snapshots.current();
        if let Some(response) = slot.ready(&snapshot, encoding) {
            return Ok(response);
        }
        let slot = Arc::clone(slot);
        tokio::task::spawn_blocking(move || slot.encode(encoder, &snapshot, encoding)).await?
    }

    /// Returns the encoded events, from which streams and documents with a part of the list are built.
    pub(crate) async fn events(&self) -> Result<Arc<EncodedEvents>, EncodeError> {
        if let Some(list) = self.ready_events() {
            return Ok(list);
        }
        let turn = Arc::clone(&self.events_encoder).lock_owned().await;
        if let Some(list) = self.ready_events() {
            return Ok(list);
        }
        let (snapshot, events) = (self.snapshots.current(), Arc::clone(&self.events));
        let nameless = self.nameless;
        // The helper thread owns the lock and stores the result, so that a client that disconnects early does not
        // cause a second encoding.
        let encode = move || {
            let _turn = turn;
            let list = Arc::new(EncodedEvents::from_snapshot(&shown(&snapshot, nameless)));
            *lock(&events) = Some((Mono::now(), Arc::clone(&list)));
            list
        };
        Ok(tokio::task::spawn_blocking(encode).await?)
    }

    /// Returns the document of the owners that match the query.
    pub(crate) async fn owners(&self, query: OwnerQuery) -> Result<String, EncodeError> {
        let slot = &self.slots[ResponseFormat::Owners as usize];
        let encoder = Arc::clone(&slot.encoder).lock_owned().await;
        let (snapshot, nameless) = (self.snapshots.current(), self.nameless);
        let encode = move || {
            let _turn = encoder;
            let mut text = String::new();
            api::owners::encode(&shown(&snapshot, nameless), &query, &mut text);
            text
        };
        Ok(tokio::task::spawn_blocking(encode).await?)
    }

    /// Returns a rule file, dashboard or page file, which is encoded only once.
    pub(crate) async fn asset(
        &self,
        asset: &'static Asset,
        encoding: Encoding,
    ) -> Result<EncodedResponse, EncodeError> {
        let key = (asset.path, encoding);
        let ready = lock(&self.assets).get(&key).cloned();
        if let Some(response) = ready {
            return Ok(response);
        }
        let assets = Arc::clone(&self.assets);
        let encode = move || {
            let plain = Bytes::from_static(asset.text.as_bytes());
            let etag = Some(etag(&plain, encoding));
            let bytes = match encoding {
                Encoding::Identity => plain,
                Encoding::Gzip => match asset.gzip {
                    Some(bytes) => Bytes::from_static(bytes),
                    None => gzip(&mut new_gzip(), &plain)?.into(),
                },
            };
            let response = EncodedResponse { bytes, etag };
            lock(&assets).insert(key, response.clone());
            Ok(response)
        };
        tokio::task::spawn_blocking(encode).await?
    }

    fn ready_events(&self) -> Option<Arc<EncodedEvents>> {
        let revision = self.snapshots.current().events_revision();
        let mut events = lock(&self.events);
        let (requested, list) = events.as_mut().filter(|(_, list)| list.revision == revision)?;
        *requested = Mono::now();
        Some(Arc::clone(list))
    }

    /// Encodes the newest metrics in the formats that were requested recently, and drops outdated responses.
    pub fn refresh(&self, now: Mono) {
        let snapshot = self.snapshots.current();
        for slot in &self.slots {
            for encoding in Encoding::ALL {
                if !slot.is_due(&snapshot, encoding, now) {
                    continue;
                }
                // If a request is encoding this format now, a second encoding is unnecessary.
                let Ok(encoder) = Arc::clone(&slot.encoder).try_lock_owned() else { continue };
                if let Err(error) = slot.encode(encoder, &snapshot, encoding) {
                    let kind = slot.format.content_type();
                    tracing::error!(
                        "failed to encode a response of type {kind}: {error}; the next request retries"
                    );
                }
            }
        }
        let revision = snapshot.events_revision();
        lock(&self.events).take_if(|(at, list)| list.revision != revision || now.since(*at) > KEEP_UNCHANGED);
    }
}

impl Slot {
    fn ready(&self, snapshot: &Snapshot, encoding: Encoding) -> Option<EncodedResponse> {
        let version = Version::for_format(self.format, snapshot);
        let ready = lock(&self.ready);
        ready.responses[encoding as usize].clone().filter(|_| ready.version == Some(version))
    }

    /// Returns true if the response must be encoded with this publication. Drops a response that is outdated or unused.
    fn is_due(&self, snapshot: &Snapshot, encoding: Encoding, now: Mono) -> bool {
        let mut ready = lock(&self.ready);
        let is_within = |time| ready.requested[encoding as usize].is_some_and(|at| now.since(at) <= time);
        let (is_due, is_kept) = (self.format.is_metrics() && is_within(KEEP), is_within(KEEP_UNCHANGED));
        let is_new =
            ready.version.is_some() && ready.version != Some(Version::for_format(self.format, snapshot));
        if is_new || !is_kept {
            ready.responses[encoding as usize] = None;
        }
        is_due
    }

    fn encode(
        &self,
        mut encoder: OwnedMutexGuard<Encoder>,
        snapshot: &Arc<Snapshot>,
        encoding: Encoding,
    ) -> Result<EncodedResponse, EncodeError> {
        let version = Version::for_format(self.format, snapshot);
        let plain = match self.ready(snapshot, Encoding::Identity) {
            Some(response) => response.bytes,
            None => {
                let mut plain = String::with_capacity(encoder.size);
                self.format.encode_into(&shown(snapshot, self.nameless), &self.dcgm.load(), &mut plain);
                encoder.size = plain.len();
                plain.into()
            }
        };
        if plain.len() > MAX_BYTES {
            return Err(EncodeError::TooLarge(plain.len()));
        }
        let etag = (!self.format.is_metrics()).then(|| etag(&plain, encoding));
        let bytes = match encoding {
            Encoding::Identity => plain,
            Encoding::Gzip => {
                let bytes = gzip(encoder.gzip.get_or_insert_with(new_gzip), &plain)?;
                encoder.gzip.take_if(|_| !self.format.is_metrics());
                bytes.into()
            }
        };
        let response = EncodedResponse { bytes, etag };
        let mut ready = lock(&self.ready);
        if ready.version.as_ref() != Some(&version) {
            ready.version = Some(version);
            ready.responses = Default::default();
        }
        Ok(ready.responses[encoding as usize].insert(response).clone())
    }
}

fn shown(snapshot: &Arc<Snapshot>, nameless: bool) -> Arc<Snapshot> {
    if nameless { Arc::new(nameless::without_owners(snapshot)) } else { Arc::clone(snapshot) }
}

/// Returns the quoted entity tag of these bytes in this encoding.
fn etag(plain: &[u8], encoding: Encoding) -> String {
    let mut hasher = DefaultHasher::new();
    plain.hash(&mut hasher);
    let coding = encoding.content_encoding().map(|coding| format!("-{coding}")).unwrap_or_default();
    format!("\"{:016x}{coding}\"", hasher.finish())
}

fn new_gzip() -> Compress {
    Compress::new_gzip(Compression::new(GZIP_LEVEL), GZIP_WINDOW_BITS)
}

/// Compresses `input` into one gzip member.
fn gzip(compress: &mut Compress, input: &[u8]) -> Result<Vec<u8>, CompressError> {
    compress.reset();
    // Metrics shrink to less than a tenth, so that the buffer rarely grows.
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
    use model::owner_records::OwnerRecord;
    use std::io::Read;

    use super::*;
    use crate::fixtures;

    fn cache() -> ResponseCache {
        let snapshots = Arc::new(SnapshotCell::default());
        snapshots.publish(fixtures::node_taken(1, Mono::now()));
        ResponseCache::new(snapshots, PageConfig::default())
    }

    fn publish(cache: &ResponseCache, sequence: u64) {
        cache.snapshots.publish(fixtures::node_taken(sequence, Mono::now()));
    }

    /// Returns the number of responses in memory.
    fn cached(cache: &ResponseCache) -> usize {
        let of = |slot: &Arc<Slot>| lock(&slot.ready).responses.iter().flatten().count();
        cache.slots.iter().map(of).sum()
    }

    async fn address(cache: &ResponseCache, format: ResponseFormat) -> usize {
        cache.get(format, Encoding::Identity).await.unwrap().bytes.as_ptr() as usize
    }

    #[tokio::test]
    async fn a_publication_is_encoded_once_on_request() {
        let cache = cache();
        let first = address(&cache, ResponseFormat::Json).await;
        assert_eq!(first, address(&cache, ResponseFormat::Json).await, "the very same bytes");
        assert_eq!(cached(&cache), 1, "no other format");
        publish(&cache, 2);
        cache.refresh(Mono::now());
        assert_eq!(cached(&cache), 0, "nothing is kept of an older publication");
        let next = cache.get(ResponseFormat::Text, Encoding::Gzip).await.unwrap();
        assert!(!next.bytes.is_empty() && next.etag.is_none());
    }

    #[tokio::test]
    async fn what_has_not_changed_is_not_encoded_again() {
        let cache = cache();
        for format in [ResponseFormat::Events, ResponseFormat::Topology] {
            let first = address(&cache, format).await;
            publish(&cache, cache.snapshots.current().sequence + 1);
            cache.refresh(Mono::now());
            assert_eq!(first, address(&cache, format).await, "{format:?}");
        }
        assert!(Arc::ptr_eq(&cache.events().await.unwrap(), &cache.events().await.unwrap()));
        cache.refresh(Mono::now() + KEEP_UNCHANGED + Duration::from_secs(1));
        assert_eq!(cached(&cache), 0, "nor kept for ever");
    }

    #[tokio::test]
    async fn a_list_that_is_encoded_again_without_a_change_keeps_its_tag() {
        let cache = cache();
        let first = cache.get(ResponseFormat::Events, Encoding::Identity).await.unwrap();
        let mut snapshot = fixtures::node_taken(2, Mono::now());
        snapshot.unix_seconds += 1.0;
        cache.snapshots.publish(snapshot);
        cache.refresh(Mono::now() + KEEP_UNCHANGED + Duration::from_secs(1));
        assert_eq!(cached(&cache), 0);
        let again = cache.get(ResponseFormat::Events, Encoding::Identity).await.unwrap();
        assert_eq!(first.etag, again.etag);
    }

    #[tokio::test]
    async fn a_tag_names_bytes_and_their_encoding() {
        let cache = cache();
        let mut tags = std::collections::HashSet::new();
        for encoding in Encoding::ALL {
            let response = cache.get(ResponseFormat::Owners, encoding).await.unwrap();
            assert!(tags.insert(response.etag.unwrap()));
        }
        let mut snapshot = fixtures::node_taken(2, Mono::now());
        snapshot.unix_seconds += 1.0;
        cache.snapshots.publish(snapshot);
        let changed = cache.get(ResponseFormat::Owners, Encoding::Identity).await.unwrap();
        assert!(tags.insert(changed.etag.unwrap()));
    }

    #[tokio::test]
    async fn requested_metrics_are_encoded_with_each_publication_for_a_while() {
        let cache = cache();
        let ready = |format: ResponseFormat, encoding: Encoding| {
            cache.slots[format as usize].ready(&cache.snapshots.current(), encoding).is_some()
        };
        cache.get(ResponseFormat::Text, Encoding::Gzip).await.unwrap();
        cache.get(ResponseFormat::Page, Encoding::Gzip).await.unwrap();
        publish(&cache, 2);
        cache.refresh(Mono::now());
        assert!(ready(ResponseFormat::Text, Encoding::Gzip));
        assert!(!ready(ResponseFormat::Text, Encoding::Identity), "not requested");
        assert!(!ready(ResponseFormat::Page, Encoding::Gzip), "no metrics");
        publish(&cache, 3);
        cache.refresh(Mono::now() + KEEP + Duration::from_secs(1));
        assert!(!ready(ResponseFormat::Text, Encoding::Gzip), "not requested any more");
    }

    #[tokio::test]
    async fn each_request_gets_the_newest_publication() {
        let cache = cache();
        for sequence in 2..5 {
            cache.get(ResponseFormat::Json, Encoding::Identity).await.unwrap();
            publish(&cache, sequence);
            let response = cache.get(ResponseFormat::Json, Encoding::Identity).await.unwrap();
            let text = String::from_utf8(response.bytes.to_vec()).unwrap();
            assert!(text.contains(&format!("\"sequence\":{sequence},")));
        }
    }

    #[tokio::test]
    async fn simultaneous_requests_share_one_encoding() {
        let cache = Arc::new(cache());
        let mut requests = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let cache = Arc::clone(&cache);
            requests.spawn(async move { address(&cache, ResponseFormat::OpenMetrics).await });
        }
        let pointers: std::collections::HashSet<usize> = requests.join_all().await.into_iter().collect();
        assert_eq!(pointers.len(), 1);
    }

    #[tokio::test]
    async fn the_list_of_a_client_that_left_early_is_kept() {
        let cache = cache();
        tokio::select! {
            biased;
            _ = cache.events() => {}
            () = std::future::ready(()) => {}
        }
        let _turn = cache.events_encoder.lock().await;
        assert!(cache.ready_events().is_some());
    }

    #[tokio::test]
    async fn an_asset_is_encoded_once() {
        let cache = cache();
        let asset = crate::assets::ASSETS.iter().max_by_key(|asset| asset.text.len()).unwrap();
        let plain = cache.asset(asset, Encoding::Identity).await.unwrap();
        assert_eq!(plain.bytes.as_ptr(), asset.text.as_ptr(), "not copied");
        let gzip = cache.asset(asset, Encoding::Gzip).await.unwrap();
        assert!(gzip.bytes.len() < plain.bytes.len() / 4 && gzip.etag != plain.etag);
        let again = cache.asset(asset, Encoding::Gzip).await.unwrap();
        assert_eq!(gzip.bytes.as_ptr(), again.bytes.as_ptr());
    }

    #[tokio::test]
    async fn compression_takes_the_bytes_that_are_there() {
        let cache = cache();
        for (first, second) in [(Encoding::Identity, Encoding::Gzip), (Encoding::Gzip, Encoding::Identity)] {
            publish(&cache, cache.snapshots.current().sequence + 1);
            let mut text = Vec::new();
            for encoding in [first, second] {
                let bytes = cache.get(ResponseFormat::Json, encoding).await.unwrap().bytes;
                let mut plain = Vec::new();
                match encoding {
                    Encoding::Identity => plain.extend_from_slice(&bytes),
                    Encoding::Gzip => {
                        flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut plain).unwrap();
                    }
                }
                text.push(plain);
            }
            assert!(text[0] == text[1] && !text[0].is_empty());
        }
    }

    #[test]
    fn gzip_reads_back_with_reused_state() {
        let mut compress = new_gzip();
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

    #[tokio::test]
    async fn a_query_for_an_owner_is_answered_without_names_to_those_who_get_none() {
        let record = OwnerRecord { owner: "user/alice".into(), ..OwnerRecord::default() };
        let mut node = crate::fixtures::node_taken(1, Mono::now());
        node.owner_records.ended = Arc::new([Arc::new(record)]);
        let snapshots = Arc::new(SnapshotCell::default());
        snapshots.publish(node);
        let query = OwnerQuery { owner: Some("user/alice".into()), ..OwnerQuery::default() };
        let whole = ResponseCache::new(Arc::clone(&snapshots), PageConfig::default());
        assert!(whole.owners(query.clone()).await.unwrap().contains("user/alice"));
        let nameless = ResponseCache::nameless(snapshots, PageConfig::default());
        assert!(nameless.owners(query).await.unwrap().contains("\"ended\":[]"));
    }
}
