//! State of every metric family, from the results of the visits.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde::Serialize;

use model::catalog::{DriverError, METRICS, MetricDef, MetricId, SampleBuffer, Tier};
use model::sample::{Batch, Drained, Missing};
use sampler::{POWER_SAMPLE_METRICS, UTILIZATION_SAMPLE_METRICS};

/// State of a metric family. If GPUs differ, the last of these states counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Standing {
    /// Turned off in the configuration.
    Off,
    /// Not reported because there is nothing to report, for example MIG instances without MIG.
    Nothing,
    /// Not supported by the GPU or driver.
    Unsupported,
    /// At least one value was read.
    Works,
    /// Not permitted to this user.
    NotPermitted,
    /// At least one call failed.
    Failed,
}

/// Metric family with its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Family {
    pub metric: &'static str,
    pub standing: Standing,
    /// Failed calls with their errors; empty if the family works.
    pub why: String,
}

/// Judges every metric that is read from the driver.
pub fn judge<'a>(batches: impl Iterator<Item = &'a Batch>, off: &HashSet<MetricId>) -> Vec<Family> {
    let mut seen: BTreeMap<MetricId, BTreeSet<(Standing, String)>> = BTreeMap::new();
    let mut note = |metric: MetricId, standing, why: String| {
        seen.entry(metric).or_default().insert((standing, why));
    };
    for batch in batches {
        for drained in &batch.drained {
            // Metrics that the ledger computes from samples.
            let made: Vec<MetricId> = match drained {
                Drained::Samples { buffer: SampleBuffer::Power, .. } => POWER_SAMPLE_METRICS.to_vec(),
                Drained::Samples { buffer: SampleBuffer::Utilization, .. } => {
                    UTILIZATION_SAMPLE_METRICS.to_vec()
                }
                Drained::Gpm(window) => window.sums.iter().map(|row| row.metric).collect(),
            };
            made.into_iter().for_each(|metric| note(metric, Standing::Works, String::new()));
        }
        for row in batch.rows.groups().iter().flat_map(|(_, rows)| rows) {
            note(row.metric, Standing::Works, String::new());
        }
        for gap in &batch.gaps {
            let about = batch.part.gpu.as_ref().map(|gpu| format!(" (GPU {})", gpu.gpu)).unwrap_or_default();
            let why = |text: &str| format!("{}{about}: {text}", gap.call);
            let (standing, why) = match &gap.missing {
                // A missing feature is usually missing on all GPUs, so the GPU is not named.
                Missing::Unsupported => (Standing::Unsupported, gap.call.clone()),
                Missing::Failed { error: DriverError::NoPermission, text } => {
                    (Standing::NotPermitted, why(text))
                }
                Missing::Failed { text, .. } => (Standing::Failed, why(text)),
                Missing::Dropped(_) => (Standing::Failed, why("value out of range")),
            };
            gap.metrics.iter().for_each(|metric| note(*metric, standing, why.clone()));
        }
    }
    let read = METRICS.iter().zip((0..).map(MetricId)).filter(|(def, _)| def.tier != Tier::Computed);
    let family = |(def, id): (&'static MetricDef, MetricId)| {
        let of = seen.get(&id).filter(|_| !off.contains(&id));
        let none = if off.contains(&id) { Standing::Off } else { Standing::Nothing };
        let standing = of.and_then(BTreeSet::last).map_or(none, |(standing, _)| *standing);
        let whys = of.into_iter().flatten().filter(|(of, why)| *of == standing && !why.is_empty());
        let whys: Vec<&str> = whys.map(|(_, why)| why.as_str()).collect();
        Family { metric: def.name, standing, why: whys.join("; ") }
    };
    read.map(family).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::catalog::{self as m, CollectorName, Gpu};
    use model::clock::Mono;
    use model::sample::{BatchKey, Gap, Rows};

    fn batch(gpu: u32, rows: Rows, gaps: Vec<Gap>) -> Batch {
        let gpu = Gpu { gpu, uuid: format!("GPU-{gpu}").as_str().into() };
        Batch {
            part: BatchKey { collector: CollectorName::Nvml, gpu: Some(gpu), tier: Tier::Normal },
            epoch: 1,
            taken: Mono(1),
            nanos: 1,
            lifetime_nanos: None,
            answered: true,
            rows,
            gaps,
            drained: Vec::new(),
            processes: None,
            calls: Vec::new(),
        }
    }

    fn gap(metric: MetricId, missing: Missing) -> Gap {
        Gap { call: "nvmlX".into(), metrics: vec![metric], missing }
    }

    #[test]
    fn the_worst_of_a_family_is_reported_with_its_reason() {
        let mut rows = Rows::default();
        let gpu = Gpu { gpu: 0, uuid: "GPU-0".into() };
        rows.entity(&gpu).record(&m::gpu_power_watts, (), 70.0).unwrap();
        rows.entity(&gpu).record(&m::gpu_utilization_ratio, (), 0.5).unwrap();
        let failed = |error, text: &str| Missing::Failed { error, text: text.into() };
        let gaps = vec![
            gap(m::gpu_utilization_ratio.id(), Missing::Unsupported),
            gap(m::gpu_temperature_celsius.id(), Missing::Unsupported),
            gap(m::gpu_memory_used_bytes.id(), failed(DriverError::NoPermission, "no")),
        ];
        let other = vec![gap(m::gpu_power_watts.id(), failed(DriverError::Timeout, "late"))];
        let batches = [batch(0, rows, gaps), batch(1, Rows::default(), other)];
        let off: HashSet<MetricId> = [m::gpu_bar1_memory_used_bytes.id()].into();
        let families = judge(batches.iter(), &off);
        let of = |name: &str| families.iter().find(|family| family.metric == name).unwrap();
        assert_eq!(of("gpu_power_watts").standing, Standing::Failed);
        assert_eq!(of("gpu_power_watts").why, "nvmlX (GPU 1): late");
        assert_eq!(of("gpu_utilization_ratio").standing, Standing::Works, "one of its values is not known");
        assert_eq!(of("gpu_utilization_ratio").why, "");
        assert_eq!(
            (of("gpu_temperature_celsius").standing, of("gpu_temperature_celsius").why.as_str()),
            (Standing::Unsupported, "nvmlX")
        );
        assert_eq!(of("gpu_memory_used_bytes").standing, Standing::NotPermitted);
        assert_eq!(of("gpu_bar1_memory_used_bytes").standing, Standing::Off);
        assert_eq!(of("gpu_mig_info").standing, Standing::Nothing);
        assert!(
            families.iter().all(|family| family.metric != "gpu_driver_up"),
            "that is not read from the driver"
        );
    }
}
