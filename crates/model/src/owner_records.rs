//! Records of owners that have ended, with their use of the node's GPUs. The records are kept for days.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::catalog::Gpu;
use crate::persisted::known;

/// Maximum time between the end of an owner and the end of the newest owner, in seconds. Older records are dropped.
const MAX_AGE: f64 = 7.0 * 86_400.0;
/// Maximum number of records.
const MAX_RECORDS: usize = 1000;
/// Maximum size of all records as JSON, in bytes.
pub const MAX_BYTES: usize = 1 << 20;
/// Maximum number of places (GPUs and MIG instances) that a record lists.
pub const MAX_PLACES: usize = 64;
/// Maximum number of kinds of faults that a record lists.
pub const MAX_FAULTS: usize = 16;
/// Maximum size as JSON of a record without its texts and lists, of a place, and of a fault, in bytes.
const RECORD_BYTES: usize = 1024;
const PLACE_BYTES: usize = 384;
const FAULT_BYTES: usize = 80;

/// Use of GPUs by one owner from its start to its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OwnerRecord {
    /// Identity of the owner on the node.
    pub owner: Arc<str>,
    /// Labels of `gpu_owner_info` that apply to the owner, by name.
    pub labels: BTreeMap<String, String>,
    /// Start time of the first GPU process, in seconds since 1970; `since_unix_seconds` if that time is unknown.
    pub start_unix_seconds: f64,
    /// Time from which on the owner was counted, in seconds since 1970.
    pub since_unix_seconds: f64,
    /// Time at which the owner last used a GPU, in seconds since 1970.
    pub end_unix_seconds: f64,
    /// True if the owner used a GPU, or may have used one, at a time that is not counted.
    pub partial: bool,
    /// True if the record is final.
    pub complete: bool,
    /// Allocated GPU time in seconds.
    pub allocated_seconds: f64,
    /// Allocated GPU time in seconds by class. Classes without time are omitted.
    pub class_seconds: BTreeMap<String, f64>,
    /// Time in which GPUs worked for the owner, in seconds; `None` if it was not measured.
    pub busy_seconds: Option<f64>,
    /// Energy in joules; `None` if it was not measured.
    pub energy_joules: Option<f64>,
    /// Number of steps: the maximum over the owner's GPUs, which execute steps together; `None` if no step was found.
    pub steps: Option<f64>,
    /// Number of times that the owner ended at a place whose memory was full.
    pub ended_at_full_memory: f64,
    /// Number of processes killed by the OOM killer of the host; `None` if unknown.
    pub host_oom_kills: Option<f64>,
    /// Faults of the owner's GPUs during its lifetime, most frequent first.
    pub faults: Vec<FaultCount>,
    /// Places that the owner used, by GPU.
    pub places: Vec<RecordedPlace>,
}

/// Use of one place by an owner.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordedPlace {
    pub gpu: u32,
    pub uuid: Arc<str>,
    /// MIG GPU instance; `None` for the whole GPU.
    pub gpu_instance: Option<u32>,
    /// Allocated GPU time in seconds.
    pub allocated_seconds: f64,
    pub busy_seconds: Option<f64>,
    pub energy_joules: Option<f64>,
    pub steps: Option<f64>,
    /// Time in which this place was the slow rank of the owner's GPUs, in seconds.
    pub slow_seconds: f64,
    /// Maximum device memory of all processes together, in bytes; `None` if the driver reports none.
    pub memory_peak_bytes: Option<u64>,
}

impl RecordedPlace {
    /// Returns an empty record of this place.
    pub fn new(gpu: &Gpu, gpu_instance: Option<u32>) -> RecordedPlace {
        RecordedPlace { gpu: gpu.gpu, uuid: Arc::clone(&gpu.uuid), gpu_instance, ..RecordedPlace::default() }
    }
}

/// Number of faults of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FaultCount {
    /// Kind of the event.
    pub kind: String,
    /// Xid code, or number of the driver event.
    pub code: Option<u64>,
    pub count: u64,
}

/// Records that are kept across restarts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OwnerRecords {
    /// Records, oldest first. Reading skips records that only a later version supports.
    #[serde(deserialize_with = "known")]
    pub records: Vec<Arc<OwnerRecord>>,
}

impl OwnerRecords {
    /// Drops the oldest records until the rest is recent enough and fits. Call this after adding a record. The age of
    /// a record is relative to the newest record, so that a wrong clock does not drop records. Records with an end in
    /// the future count as the oldest.
    pub fn limit(&mut self, unix_seconds: f64) {
        let has_been = |record: &Arc<OwnerRecord>| record.end_unix_seconds <= unix_seconds;
        self.records.sort_by_key(has_been);
        let past = self.records.iter().filter(|record| has_been(record));
        let newest = past.map(|record| record.end_unix_seconds).fold(f64::MIN, f64::max);
        self.records.retain(|record| newest - record.end_unix_seconds < MAX_AGE);
        self.bound();
    }

    /// Drops the oldest records until the rest fits.
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

/// Returns the maximum size of a record as JSON, in bytes.
fn bytes(record: &OwnerRecord) -> usize {
    let labels: usize = record.labels.iter().map(|(name, text)| escaped(name) + escaped(text) + 8).sum();
    let lists = record.places.len() * PLACE_BYTES + record.faults.len() * FAULT_BYTES;
    RECORD_BYTES + escaped(&record.owner) + labels + lists
}

/// Returns the maximum size of a text in JSON, in bytes.
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
