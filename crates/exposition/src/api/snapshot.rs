//! The snapshot as one JSON document, served at `/api/v1/snapshot`.
//!
//! ```text
//! taken_unix_seconds  time at which the snapshot was created
//! sequence            number of the snapshot, starting at 1
//! ready               true if every collector has answered or been found absent
//! driver              state: waiting, up, stuck, away, library_mismatch or paused; text: the state as text
//! health              health of the node. level: as for a GPU; text: a sentence
//! gpus[]              gpu, uuid; state: up, waiting, stuck, failing, no_driver or paused; text: the state as text
//!   health            level: ok, note, waiting, degraded or faulty; word; healthy (null: no current verdict)
//!     reasons[]       condition, level, text, action (first action; ignore: no action), most serious first
//!   parts[]           tier, age_seconds, duration_seconds, values (number of values)
//!   canary[]          GPUs and MIG instances on which the canary runs: instance (null: the whole GPU; otherwise
//!                     gpu_instance, compute_instance, profile, mig_uuid), running, hung (step),
//!                     last_run_unix_seconds, next_due_unix_seconds, skipped (reason for which it was postponed), end
//!                     (result of the last run), text
//!     checks[]        check, verdict, text, rate (unit and value)
//!   gaps[]            call, metrics (names); missing: unsupported, failed, blank or out_of_range;
//!                     error (kind of a failed call), text (error text of the driver)
//! missing_gpus[]      GPUs that were present under an earlier daemon or load of the driver, but are no longer listed
//!                     by the driver: gpu (its last index), uuid, pci_address, last_seen_unix_seconds (null: unknown),
//!                     health as for a GPU
//! collectors[]        collector, up, age_seconds, text (error text; empty if there is no error)
//! metrics[]           name, labels, and either value or
//!   histogram         buckets[] of le and count (cumulative), sum, count
//! ```

use serde::{Serialize, Serializer};

use crate::text::whole;
use model::catalog::schema::KnownLabel;
use model::catalog::{self, Gpu, MetricDef};
use model::health::{AbsentGpu, GpuHealth, NodeHealth};
use model::sample::{Gap, Missing};
use model::snapshot::{CanaryView, CollectorView, GpuView, Histogram, PartView, Series, Snapshot, Value};

/// Appends the document, followed by a newline.
pub fn encode(snapshot: &Snapshot, out: &mut String) {
    super::append(&document(snapshot), out);
}

fn document(snapshot: &Snapshot) -> impl Serialize {
    #[derive(Serialize)]
    struct SnapshotDocument<'a, G: Serialize, M: Serialize> {
        taken_unix_seconds: f64,
        sequence: u64,
        ready: bool,
        driver: StateText,
        health: &'a NodeHealth,
        gpus: G,
        missing_gpus: &'a [AbsentGpu],
        collectors: &'a [CollectorView],
        metrics: M,
    }
    #[derive(Serialize)]
    struct StateText {
        state: &'static str,
        text: String,
    }
    let canary = &snapshot.canary;
    let (state, text) = snapshot.driver.texts();
    SnapshotDocument {
        taken_unix_seconds: snapshot.unix_seconds,
        sequence: snapshot.sequence,
        ready: snapshot.ready,
        driver: StateText { state, text },
        health: &snapshot.health,
        gpus: Seq(|| snapshot.gpus.iter().zip(&snapshot.health.gpus).map(|(view, of)| gpu(view, of, canary))),
        missing_gpus: &snapshot.health.absent,
        collectors: &snapshot.collectors,
        metrics: Seq(|| {
            let node = &*snapshot.node_labels;
            snapshot.families.iter().flat_map(move |f| f.series.iter().map(move |s| metric(node, f.def, s)))
        }),
    }
}

/// Serializes an iterator as a JSON array without an intermediate vector.
struct Seq<F>(F);

impl<F: Fn() -> I, I: Iterator<Item: Serialize>> Serialize for Seq<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

fn gpu<'a>(view: &'a GpuView, health: &'a GpuHealth, canary: &'a CanaryView) -> impl Serialize + 'a {
    #[derive(Serialize)]
    struct GpuDocument<'a, C: Serialize, G: Serialize> {
        #[serde(flatten)]
        gpu: &'a Gpu,
        state: &'static str,
        text: String,
        health: &'a GpuHealth,
        parts: &'a [PartView],
        canary: C,
        gaps: G,
    }
    let (state, text) = view.state.texts();
    GpuDocument {
        gpu: &view.gpu,
        state,
        text,
        health,
        parts: &view.parts,
        canary: Seq(|| canary.places_on(&view.gpu)),
        gaps: Seq(|| view.gaps.iter().map(gap)),
    }
}

fn gap(gap: &Gap) -> impl Serialize {
    #[derive(Serialize)]
    struct Missed<'a, M: Serialize> {
        call: &'a str,
        metrics: M,
        missing: &'static str,
        error: Option<&'static str>,
        text: &'a str,
    }
    let (missing, error, text) = match &gap.missing {
        Missing::Unsupported => ("unsupported", None, ""),
        Missing::Failed { error, text } => ("failed", Some(error.known()), text.as_str()),
        Missing::Dropped(drop) => (drop.known(), None, ""),
    };
    let metrics = Seq(|| gap.metrics.iter().filter_map(|id| catalog::def(*id)).map(|def| def.name));
    Missed { call: &gap.call, metrics, missing, error, text }
}

fn metric<'a>(node: &'a NodeLabels, def: &'static MetricDef, series: &'a Series) -> impl Serialize + 'a {
    #[derive(Serialize)]
    struct Metric<L: Serialize, H: Serialize> {
        name: &'static str,
        labels: L,
        #[serde(skip_serializing_if = "Option::is_none")]
        value: Option<JsonNumber>,
        #[serde(skip_serializing_if = "Option::is_none")]
        histogram: Option<H>,
    }
    let (value, histogram) = match &series.value {
        Value::Number(value) => (Some(JsonNumber(*value)), None),
        Value::Histogram(histogram) => (None, Some(distribution(histogram))),
    };
    Metric { name: def.name, labels: JsonLabels(node, def, series), value, histogram }
}

type NodeLabels = [(&'static str, String)];

struct JsonLabels<'a>(&'a NodeLabels, &'static MetricDef, &'a Series);

impl Serialize for JsonLabels<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let node = self.0.iter().map(|(name, value)| (*name, value.as_str()));
        serializer.collect_map(node.chain(self.2.label_pairs(self.1)))
    }
}

/// A sample value, which is serialized as an integer if it is a whole number.
struct JsonNumber(f64);

impl Serialize for JsonNumber {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match whole(self.0) {
            Some(whole) => serializer.serialize_i64(whole),
            None => serializer.serialize_f64(self.0),
        }
    }
}

fn distribution(histogram: &Histogram) -> impl Serialize {
    #[derive(Serialize)]
    struct Distribution<B: Serialize> {
        buckets: B,
        sum: f64,
        count: u64,
    }
    #[derive(Serialize)]
    struct Bucket {
        le: f64,
        count: u64,
    }
    let buckets = Seq(|| {
        histogram.bounds.iter().zip(&histogram.counts).scan(0, |cumulative, (le, count)| {
            *cumulative += count;
            Some(Bucket { le: *le, count: *cumulative })
        })
    });
    Distribution { buckets, sum: histogram.sum, count: histogram.count() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use model::canary::Rate;
    use model::catalog::{CanaryCheck, CanaryEnd, CanarySkip, CanaryVerdict};
    use model::snapshot::{CheckView, PlaceView};

    #[test]
    fn a_gpu_has_the_state_of_its_canary() {
        let mut snapshot = fixtures::node_taken(1, model::clock::Mono(1));
        let check = CheckView {
            check: CanaryCheck::HbmRead,
            verdict: CanaryVerdict::DegradedMemory,
            text: "80 % of its rate".into(),
            rate: Some(Rate::BytesPerSecond(3.5e12)),
        };
        snapshot.canary.places = vec![PlaceView {
            gpu: fixtures::gpu(2),
            instance: None,
            running: false,
            hung: None,
            last_run: Some(1_795_000_000.0),
            due: None,
            skipped: Some(CanarySkip::Processes),
            end: Some(CanaryEnd::Finished),
            text: String::new(),
            checks: vec![check],
        }];
        let mut text = String::new();
        encode(&std::sync::Arc::new(snapshot), &mut text);
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        let place = &document["gpus"][2]["canary"][0];
        assert_eq!(
            (&place["instance"], &place["hung"]),
            (&serde_json::Value::Null, &serde_json::Value::Null)
        );
        assert_eq!((&place["skipped"], &place["end"]), (&"processes".into(), &"finished".into()));
        let check = serde_json::json!({
            "check": "hbm_read", "verdict": "degraded_memory", "text": "80 % of its rate",
            "rate": { "unit": "bytes_per_second", "value": 3.5e12 },
        });
        assert_eq!(place["checks"][0], check);
    }

    #[test]
    fn a_missing_gpu_is_listed_apart() {
        let mut snapshot = fixtures::node_taken(1, model::clock::Mono(1));
        let mut text = String::new();
        encode(&snapshot, &mut text);
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(document["missing_gpus"], serde_json::json!([]));
        snapshot.health.absent = vec![fixtures::absent()];
        text.clear();
        encode(&snapshot, &mut text);
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        let reason = serde_json::json!({
            "condition": "missing", "level": "faulty", "text": "the driver does not list it any more",
            "action": "reboot_node",
        });
        let missing = serde_json::json!([{
            "gpu": 0, "uuid": "GPU-fa11e4a0-0b1d-4c3e-9f2a-7b6c5d4e3f21", "pci_address": "0000:0a:00",
            "last_seen_unix_seconds": 1_794_990_000,
            "health": { "level": "faulty", "word": "missing", "reasons": [reason], "healthy": false },
        }]);
        assert_eq!(document["missing_gpus"], missing);
        assert_eq!(document["gpus"].as_array().unwrap().len(), 8);
    }

    #[test]
    fn the_document_has_states_values_and_gaps() {
        let snapshot = fixtures::node();
        let mut text = String::new();
        encode(&snapshot, &mut text);
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();

        assert_eq!(document["sequence"], 1);
        assert_eq!(document["ready"], true);
        assert_eq!(document["driver"]["state"], "up");
        assert_eq!(document["gpus"].as_array().unwrap().len(), 8);
        let stuck = &document["gpus"][fixtures::STUCK];
        assert_eq!(stuck["state"], "stuck");
        assert_eq!((&stuck["health"]["word"], &stuck["health"]["healthy"]), (&"stuck".into(), &false.into()));
        assert_eq!(stuck["health"]["reasons"][0]["action"], "reset_gpu");
        assert_eq!(document["health"]["level"], "faulty");
        assert!(stuck["text"].as_str().unwrap().contains("nvmlDeviceGetPowerUsage"));
        let well = &document["gpus"][0];
        assert_eq!(well["state"], "up");
        assert_eq!(well["parts"][0]["tier"], "fast");
        assert_eq!(well["gaps"][0]["missing"], "unsupported");
        assert_eq!(well["gaps"][0]["error"], serde_json::Value::Null);
        assert_eq!(well["gaps"][0]["metrics"][0], "gpu_encoder_utilization_ratio");

        assert_eq!(well["canary"], serde_json::json!([]));
        let metrics = document["metrics"].as_array().unwrap();
        let find = |name: &str| metrics.iter().find(|m| m["name"] == name).unwrap();
        assert_eq!(find("gpu_power_watts")["labels"]["gpu"], "0");
        assert!(find("gpu_power_watts")["value"].is_number());
        assert_eq!(find("gpu_driver_up")["value"].to_string(), "1");
        let histogram = &find("gpu_exporter_driver_call_duration_seconds")["histogram"];
        assert!(histogram["count"].as_u64().unwrap() >= histogram["buckets"][0]["count"].as_u64().unwrap());
        assert_eq!(metrics.iter().filter(|m| m["name"] == "gpu_info").count(), 8);
    }
}
