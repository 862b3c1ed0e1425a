//! The health verdict for launchers and schedulers, served on the local sockets.
//!
//! ```text
//! status       ok, warning, critical or unknown
//! exit_code    0, 1, 2 or 3
//! text         the reasons in one line
//! age_seconds  age of the snapshot; null: no snapshot exists
//! gpus[]       all GPUs, or the GPUs in the request: gpu, uuid, status; level, word, healthy and reasons as in the
//!              snapshot. A GPU that the driver no longer lists can be requested only by its UUID
//! ```

use std::sync::Arc;

use serde::Serialize;

use model::catalog::Gpu;
use model::clock::Mono;
use model::health::{GpuHealth, HealthLevel, HealthStatus};
use model::snapshot::{DriverState, Snapshot};
use model::text::one_line;

/// The verdict on the node or on some of its GPUs.
#[derive(Clone, Debug, Serialize)]
pub struct HealthAnswer {
    pub status: HealthStatus,
    pub exit_code: u8,
    pub text: String,
    pub age_seconds: Option<f64>,
    pub gpus: Vec<GpuAnswer>,
}

/// The verdict on one GPU.
#[derive(Clone, Debug, Serialize)]
pub struct GpuAnswer {
    #[serde(flatten)]
    pub gpu: Gpu,
    pub status: HealthStatus,
    #[serde(flatten)]
    pub health: GpuHealth,
}

impl HealthAnswer {
    /// Returns an answer without a verdict, with the reason as its text.
    pub fn unknown(why: &str) -> HealthAnswer {
        HealthAnswer::new(HealthStatus::Unknown, why, None, Vec::new())
    }

    /// Returns the verdict of a snapshot on the GPUs with these indices or UUIDs, or on the node if the list is empty. If
    /// there is no snapshot, the answer contains the error text.
    pub fn from_snapshot(snapshot: Result<Arc<Snapshot>, String>, gpus: &[&str]) -> HealthAnswer {
        let snapshot = match snapshot {
            Ok(snapshot) => snapshot,
            Err(why) => return HealthAnswer::unknown(&why),
        };
        let age = Some(Mono::now().since(snapshot.taken).as_secs_f64());
        let node = &snapshot.health;
        if gpus.is_empty() {
            // While the driver is released, the level describes the release, and the GPUs have no verdict.
            let status = match snapshot.driver {
                DriverState::Paused { .. } => HealthStatus::Unknown,
                _ => node.level.into(),
            };
            let absent = node.absent.iter().map(|absent| &absent.health);
            let gpus = node.gpus.iter().chain(absent).map(GpuAnswer::from_health).collect();
            return HealthAnswer::new(status, &node.text, age, gpus);
        }
        let mut found: Vec<&GpuHealth> = Vec::new();
        for name in gpus {
            let named =
                |of: &&GpuHealth| of.gpu.uuid.eq_ignore_ascii_case(name) || name.parse() == Ok(of.gpu.gpu);
            // A missing GPU is found only by its UUID, because another GPU may have its index.
            let absent = || node.absent.iter().find(|absent| absent.gpu.uuid.eq_ignore_ascii_case(name));
            match node.gpus.iter().find(named).or_else(|| absent().map(|absent| &absent.health)) {
                Some(gpu) => found.push(gpu),
                None => {
                    let text = format!("GPU {name} is not known here. {}", node.text);
                    return HealthAnswer::new(HealthStatus::Unknown, &text, age, Vec::new());
                }
            }
        }
        let worst = found.iter().map(|gpu| gpu.level).max().unwrap_or_default();
        let text: Vec<String> = found.iter().map(|gpu| sentence(gpu)).collect();
        let gpus = found.into_iter().map(GpuAnswer::from_health).collect();
        HealthAnswer::new(worst.into(), &text.join("; "), age, gpus)
    }

    fn new(status: HealthStatus, text: &str, age: Option<f64>, gpus: Vec<GpuAnswer>) -> HealthAnswer {
        let text = one_line(text.trim());
        HealthAnswer { status, exit_code: status as u8, text, age_seconds: age, gpus }
    }

    /// Returns the answer as JSON, followed by a newline.
    pub fn json(&self) -> String {
        let mut out = String::new();
        super::append(self, &mut out);
        out
    }
}

impl GpuAnswer {
    fn from_health(health: &GpuHealth) -> GpuAnswer {
        GpuAnswer { gpu: health.gpu.clone(), status: health.level.into(), health: health.clone() }
    }
}

/// Describes a GPU with its reasons. Notes are included only if no reason is more serious.
fn sentence(of: &GpuHealth) -> String {
    let counts = |level| level > HealthLevel::Note || level == of.level;
    let reasons = of.reasons.iter().filter(|reason| counts(reason.level)).map(|reason| reason.text.as_str());
    let reasons = reasons.collect::<Vec<_>>().join(", ");
    let colon = if reasons.is_empty() { "" } else { ": " };
    format!("{} {}{colon}{reasons}", of.name(), of.word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn an_answer_is_the_verdict_of_the_snapshot_and_nothing_else() {
        let snapshot = Arc::new(fixtures::node_taken(7, Mono::now()));
        let node = HealthAnswer::from_snapshot(Ok(Arc::clone(&snapshot)), &[]);
        assert_eq!(node.status, snapshot.health.level.into());
        assert_eq!((node.exit_code, &node.text), (node.status as u8, &snapshot.health.text));
        assert_eq!(node.gpus.len(), snapshot.gpus.len());
        for of in &snapshot.health.gpus {
            let index = of.gpu.gpu.to_string();
            let asked = HealthAnswer::from_snapshot(Ok(Arc::clone(&snapshot)), &[&index]);
            assert_eq!(asked.status, of.level.into());
            assert!(asked.text.starts_with(&format!("GPU {index} {}", of.word)), "{}", asked.text);
            let uuid = of.gpu.uuid.to_uppercase();
            assert_eq!(HealthAnswer::from_snapshot(Ok(Arc::clone(&snapshot)), &[&uuid]).text, asked.text);
        }
    }

    #[test]
    fn the_worst_of_several_gpus_counts_and_an_unknown_one_has_no_verdict() {
        let snapshot = Arc::new(fixtures::node_taken(7, Mono::now()));
        let all: Vec<String> = snapshot.gpus.iter().map(|view| view.gpu.gpu.to_string()).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let worst = snapshot.health.gpus.iter().map(|gpu| gpu.level).max().unwrap();
        let answer = HealthAnswer::from_snapshot(Ok(Arc::clone(&snapshot)), &all);
        assert_eq!((answer.status, answer.gpus.len()), (worst.into(), all.len()));
        let answer = HealthAnswer::from_snapshot(Ok(snapshot), &["99"]);
        assert_eq!((answer.status, answer.exit_code), (HealthStatus::Unknown, 3));
        assert!(answer.text.starts_with("GPU 99 is not known here"), "{}", answer.text);
    }

    #[test]
    fn a_missing_gpu_is_asked_for_by_its_uuid() {
        let mut snapshot = fixtures::node_taken(7, Mono::now());
        snapshot.health.absent = vec![fixtures::absent()];
        let snapshot = Arc::new(snapshot.evaluated());
        let uuid = fixtures::absent().gpu.uuid;
        let answer = HealthAnswer::from_snapshot(Ok(Arc::clone(&snapshot)), &[&uuid]);
        assert_eq!((answer.status, answer.gpus.len()), (HealthStatus::Critical, 1));
        assert_eq!(answer.text, format!("{uuid} missing: the driver does not list it any more"));
        let by_index = HealthAnswer::from_snapshot(Ok(Arc::clone(&snapshot)), &["0"]);
        assert_ne!(by_index.gpus[0].gpu.uuid, uuid, "that is the GPU listed there");
        let node = HealthAnswer::from_snapshot(Ok(snapshot), &[]);
        assert_eq!(node.gpus.len(), 9);
        assert_eq!(node.gpus[8].status, HealthStatus::Critical);
    }

    #[test]
    fn without_a_snapshot_the_reason_is_one_line() {
        let answer = HealthAnswer::from_snapshot(Err("No values\nhave been published yet.\n".into()), &[]);
        let json: serde_json::Value = serde_json::from_str(&answer.json()).unwrap();
        assert_eq!((&json["status"], &json["exit_code"]), (&"unknown".into(), &3.into()));
        assert_eq!(json["text"], "No values have been published yet.");
        assert_eq!(json["age_seconds"], serde_json::Value::Null);
    }
}
