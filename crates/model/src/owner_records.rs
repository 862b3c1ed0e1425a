//! Records of owners that have ended: what each had of the node's GPUs, kept for days.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::catalog::Gpu;
use crate::persisted::known;

/// Records of owners that ended so long before the newest one are not kept, in seconds.
const MAX_AGE: f64 = 7.0 * 86_400.0;
/// Most records.
const MAX_RECORDS: usize = 1000;
/// Most bytes of all of them as JSON.
pub const MAX_BYTES: usize = 1 << 20;
/// Most places (GPUs and MIG instances) that a record lists, and
pub const MAX_PLACES: usize = 64;
/// kinds of faults.
pub const MAX_FAULTS: usize = 16;
/// Most bytes of JSON of a record beside its texts and lists, of a place, and of a fault.
const RECORD_BYTES: usize = 1024;
const PLACE_BYTES: usize = 384;
const FAULT_BYTES: usize = 80;

/// What one owner had from its start to its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OwnerRecord {
    /// Its identity on the node.
    pub owner: Arc<str>,
    /// The labels of `gpu_owner_info` that apply, by name.
    pub labels: BTreeMap<String, String>,
    /// Start of the first of its GPU processes, in seconds since 1970; where that is not known, `since_unix_seconds`.
    pub start_unix_seconds: f64,
    /// From when on it was counted.
    pub since_unix_seconds: f64,
    /// When it was on a GPU last.
    pub end_unix_seconds: f64,
    /// Whether it was, or may have been, on a GPU at a time that is not counted.
    pub partial: bool,
    /// Whether nothing is added any more.
    pub complete: bool,
    /// GPU time that it had, in seconds.
    pub allocated_seconds: f64,
    /// The same by class; a class without time is left out.
    pub class_seconds: BTreeMap<String, f64>,
    /// Seconds in which GPUs worked for it; `None`: not measured.
    pub busy_seconds: Option<f64>,
    /// Energy; `None`: not measured.
    pub energy_joules: Option<f64>,
    /// Steps of its work, the most on any of its GPUs, which do them together; `None`: none was found.
    pub steps: Option<f64>,
    /// Ends at a place whose memory was full.
    pub ended_at_full_memory: f64,
    /// Processes that the host's OOM killer ended; `None`: not known.
    pub host_oom_kills: Option<f64>,
    /// Faults of its GPUs in its time, the most frequent first.
    pub faults: Vec<FaultCount>,
    /// Where it was, by GPU.
    pub places: Vec<RecordedPlace>,
}

/// What it had at one place.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordedPlace {
    pub gpu: u32,
    pub uuid: Arc<str>,
    /// MIG GPU instance; `None`: the whole GPU.
    pub gpu_instance: Option<u32>,
    /// GPU time, in seconds.
    pub allocated_seconds: f64,
    pub busy_seconds: Option<f64>,
    pub energy_joules: Option<f64>,
    pub steps: Option<f64>,
    /// Seconds in which this was the slow rank of the owner's GPUs.
    pub slow_seconds: f64,
    /// The most device memory that its processes held together; `None` where the driver lists none.
    pub memory_peak_bytes: Option<u64>,
}

impl RecordedPlace {
    /// Nothing yet, at this place.
    pub fn new(gpu: &Gpu, gpu_instance: Option<u32>) -> RecordedPlace {
        RecordedPlace { gpu: gpu.gpu, uuid: Arc::clone(&gpu.uuid), gpu_instance, ..RecordedPlace::default() }
    }
}

/// How often a fault happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FaultCount {
    /// The kind of the event.
    pub kind: String,
    /// Xid code, or number of the driver's event.
    pub code: Option<u64>,
    pub count: u64,
}

/// The records that outlast the daemon.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OwnerRecords {
    /// Oldest first. One that only a later version knows is left out.
    #[serde(deserialize_with = "known")]
    pub records: Vec<Arc<OwnerRecord>>,
}

impl OwnerRecords {
    /// To be called when a record has come: drops the oldest until the rest is young enough and has room. Ages are
    /// counted from the newest record, so that a clock that is wrong drops none by itself. Records of a time to come
    /// count as the oldest.
    pub fn limit(&mut self, unix_seconds: f64) {
        let has_been = |record: &Arc<OwnerRecord>| record.end_unix_seconds <= unix_seconds;
        self.records.sort_by_key(has_been);
        let past = self.records.iter().filter(|record| has_been(record));
        let newest = past.map(|record| record.end_unix_seconds).fold(f64::MIN, f64::max);
        self.records.retain(|record| newest - record.end_unix_seconds < MAX_AGE);
        self.bound();
    }

    /// Drops the oldest until the rest has room.
    pub fn bound(&mut self) {
        let mut room = MAX_BYTES - RECORD_BYTES;
        let fits = self.records.iter().rev().take(MAX_RECORDS).take_while(|record| {
            let left = room.checked_sub(bytes(record));
            room = left.unwrap_or(0);
            left.is_some()
        });
        let kept = fits.count();
        self.records.drain(..self.records.len() - kept);
    }
}

/// Most bytes of a record as JSON.
fn bytes(record: &OwnerRecord) -> usize {
    let labels: usize = record.labels.iter().map(|(name, text)| escaped(name) + escaped(text) + 8).sum();
    let lists = record.places.len() * PLACE_BYTES + record.faults.len() * FAULT_BYTES;
    RECORD_BYTES + escaped(&record.owner) + labels + lists
}

/// Bytes of a text in JSON.
fn escaped(text: &str) -> usize {
    let bytes = text.bytes().map(|byte| match byte {
        0..0x20 => 6,
        b'"' | b'\\' => 2,
        _ => 1,
    });
    bytes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::GpuTimeClass;
    use crate::catalog::schema::KnownLabel;

    /// A record with long texts and numbers, and with as many places and faults as there may be.
    fn record(end: f64, text: &str, places: usize) -> OwnerRecord {
        let number = 12_345_678.123;
        let place = RecordedPlace {
            gpu: 15,
            uuid: "GPU-00000000-0000-4000-8000-000000000001".into(),
            gpu_instance: Some(14),
            allocated_seconds: number,
            busy_seconds: Some(number),
            energy_joules: Some(number * 1e3),
            steps: Some(number),
            slow_seconds: number,
            memory_peak_bytes: Some(u64::MAX),
        };
        let fault = FaultCount { kind: "fallen_off_bus".into(), code: Some(1 << 40), count: 1 << 40 };
        OwnerRecord {
            owner: text.into(),
            labels: [("slurm_account".to_owned(), text.to_owned())].into(),
            start_unix_seconds: end,
            since_unix_seconds: end,
            end_unix_seconds: end,
            allocated_seconds: number,
            class_seconds: GpuTimeClass::ALL.iter().map(|class| (class.known().to_owned(), number)).collect(),
            busy_seconds: Some(number),
            energy_joules: Some(number),
            steps: Some(number),
            ended_at_full_memory: number,
            host_oom_kills: Some(number),
            faults: vec![fault; MAX_FAULTS],
            places: vec![place; places],
            ..OwnerRecord::default()
        }
    }

    #[test]
    fn what_is_kept_has_room_and_comes_back_as_it_was() {
        for (text, places) in [("a", 1), ("\u{1}\"\\é".repeat(500).as_str(), MAX_PLACES)] {
            let records = (0..3000).map(|n| Arc::new(record(f64::from(n), text, places))).collect();
            let mut kept = OwnerRecords { records };
            kept.limit(3000.0);
            assert!((20..=MAX_RECORDS).contains(&kept.records.len()));
            assert_eq!(kept.records.last().unwrap().end_unix_seconds, 2999.0);
            let json = serde_json::to_string(&kept).unwrap();
            assert!(json.len() < MAX_BYTES, "{}", json.len());
            assert_eq!(serde_json::from_str::<OwnerRecords>(&json).unwrap(), kept);
            let all = kept.clone();
            kept.limit(3000.0);
            assert_eq!(kept, all);
        }
    }

    #[test]
    fn one_that_ended_a_week_before_the_newest_is_gone() {
        let of = |ends: &[f64]| OwnerRecords {
            records: ends.iter().map(|end| Arc::new(record(*end, "a", 1))).collect(),
        };
        let after = |ends: &[f64], clock: f64| {
            let mut kept = of(ends);
            kept.limit(clock);
            kept.records.iter().map(|record| record.end_unix_seconds).collect::<Vec<_>>()
        };
        let now = 2.0 * MAX_AGE;
        assert_eq!(after(&[100.0, 99.0 + MAX_AGE], now), [100.0, 99.0 + MAX_AGE]);
        assert_eq!(after(&[100.0, 100.0 + MAX_AGE], now), [100.0 + MAX_AGE]);
        // A clock that is years ahead drops none, nor does one that is years behind.
        assert_eq!(after(&[100.0, 200.0], 1e9), [100.0, 200.0]);
        assert_eq!(after(&[100.0, 200.0], 0.0), [100.0, 200.0]);
        // One of a time to come makes the others no older, and goes first.
        assert_eq!(after(&[100.0, 1e9, 200.0], now), [1e9, 100.0, 200.0]);
        let many: Vec<f64> = (0..MAX_RECORDS).map(|n| n as f64).chain([1e9]).collect();
        let kept = after(&many, now);
        assert!(!kept.contains(&1e9) && kept.ends_with(&many[MAX_RECORDS - 100..MAX_RECORDS]));
    }

    #[test]
    fn what_a_later_version_knows_is_passed_over() {
        let records = vec![Arc::new(record(1.0, "a", 1)), Arc::new(record(2.0, "b", 1))];
        let mut json = serde_json::to_value(OwnerRecords { records }).unwrap();
        json["records"][0]["owner"] = serde_json::json!({ "later": 1 });
        json["records"][1]["more"] = 1.into();
        let back: OwnerRecords = serde_json::from_value(json).unwrap();
        assert_eq!(back.records.iter().map(|record| &*record.owner).collect::<Vec<_>>(), ["b"]);
    }
}
