//! Comparison of the MIG layout with the declared one.
//!
//! MIG devices (compute instances) are compared by profile, as nvidia-mig-parted counts them. A GPU instance without
//! a compute instance is not part of any declared layout, so a GPU that has one does not match.

use std::collections::{BTreeMap, HashSet};

use super::builder::Builder;
use super::intake::{LedgerMoment, label};
use model::catalog::schema::Label;
use model::catalog::{self as m, Gpu, MigInfo, ProfileName, Subject, Tier};
use model::sample::{Batch, Missing};
use settings::mig_layout::{DeclaredLayout, Wanted, pci_id};

/// Actual layout of a GPU.
#[derive(Debug, PartialEq)]
enum Actual {
    /// The GPU is not in MIG mode, or does not support it.
    Off,
    Devices {
        /// Number of MIG devices by profile.
        profiles: BTreeMap<String, u32>,
        /// Whether a GPU instance has no compute instance.
        unused: bool,
    },
}

/// Publishes the declared layout of a GPU. While the GPU is `up` and its layout is known, also publishes whether both
/// match.
pub fn publish(
    b: &mut Builder<'_>,
    declared: &DeclaredLayout,
    moment: &LedgerMoment<'_>,
    gpu: &Gpu,
    up: bool,
) {
    let id = |label| moment.intake.info_of(gpu, label).as_deref().and_then(pci_id);
    let wanted = declared.wanted(gpu.gpu, id("pci_device_id"), id("pci_subsystem_id"));
    if let Wanted::Devices(profiles) = wanted {
        for (profile, count) in profiles {
            let labels = (ProfileName(profile.as_str().into()),);
            b.add(&m::gpu_mig_layout_declared, gpu, labels, f64::from(*count));
        }
    }
    let stored = |tier| moment.intake.fresh(gpu, tier, moment.now).filter(|_| up);
    let actual = actual(stored(Tier::Slow), stored(Tier::Normal));
    if let Some(matches) = actual.and_then(|actual| matches(wanted, &actual)) {
        b.flag(&m::gpu_mig_layout_matches, gpu, (), matches);
    }
}

fn matches(wanted: Wanted<'_>, actual: &Actual) -> Option<bool> {
    match (wanted, actual) {
        (Wanted::Nothing | Wanted::Unknown, _) => None,
        (Wanted::Off, actual) => Some(*actual == Actual::Off),
        (Wanted::Devices(_), Actual::Off) => Some(false),
        (Wanted::Devices(wanted), Actual::Devices { profiles, unused }) => {
            Some(wanted == profiles && !unused)
        }
    }
}

/// Returns the layout of a GPU from its slow tier (the mode) and its normal tier (the instances), or `None` if one of
/// them is unknown.
fn actual(slow: Option<&Batch>, normal: Option<&Batch>) -> Option<Actual> {
    let slow = slow?;
    let mode = m::gpu_mig_mode_enabled.id();
    match slow.find(mode).map(|row| row.value == 1.0) {
        Some(false) => return Some(Actual::Off),
        Some(true) => {}
        // A GPU without MIG support is not in MIG mode.
        None => return slow.unsupported().any(|metric| metric == mode).then_some(Actual::Off),
    }
    let normal = normal?;
    let info = m::gpu_mig_info.id();
    let unread =
        |gap: &model::sample::Gap| gap.metrics.contains(&info) && !matches!(gap.missing, Missing::Dropped(_));
    (!normal.gaps.iter().any(unread)).then(|| divided(normal))
}

fn divided(normal: &Batch) -> Actual {
    let mut profiles = BTreeMap::new();
    for row in normal.mig_devices().filter_map(|(_, row)| row) {
        if let Some(profile) = label::<MigInfo>(row, ProfileName::DEF.name) {
            *profiles.entry(profile.to_owned()).or_insert(0) += 1;
        }
    }
    let used: HashSet<u32> = normal.mig_devices().map(|(device, _)| device.gpu_instance).collect();
    let unused = normal.rows.groups().iter().any(|(subject, _)| {
        matches!(subject, Subject::GpuInstance(instance) if !used.contains(&instance.gpu_instance))
    });
    Actual::Devices { profiles, unused }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::catalog::{CollectorName, ComputeInstance, GpuInstance, MetricId};
    use model::clock::Mono;
    use model::sample::{BatchKey, Gap, Rows};

    fn held(rows: Rows, gaps: Vec<Gap>) -> Batch {
        let part = BatchKey { collector: CollectorName::Nvml, gpu: None, tier: Tier::Slow };
        Batch { rows, gaps, ..Batch::new(part, 0, Mono(1), None) }
    }

    fn gap(metric: MetricId, missing: Missing) -> Gap {
        Gap { call: "nvmlX".into(), metrics: vec![metric], missing }
    }

    fn mode(on: bool) -> Batch {
        let mut rows = Rows::default();
        let gpu = Gpu { gpu: 0, uuid: "GPU-0".into() };
        rows.entity(&gpu).flag(&m::gpu_mig_mode_enabled, (), on);
        held(rows, Vec::new())
    }

    /// GPU instances, each with its MIG devices.
    fn instances(list: &[&[&str]]) -> Rows {
        let mut rows = Rows::default();
        for (gi, devices) in (1..).zip(list) {
            let (uuid, profile) = ("GPU-0".into(), "3g.71gb".into());
            let instance = GpuInstance { gpu: 0, uuid, gpu_instance: gi, profile };
            rows.entity(&instance).record(&m::gpu_mig_placement_start, (), 0.0).unwrap();
            for (compute_instance, device) in (0..).zip(*devices) {
                let compute = ComputeInstance {
                    gpu: 0,
                    uuid: instance.uuid.clone(),
                    gpu_instance: gi,
                    profile: instance.profile.clone(),
                    compute_instance,
                };
                let info = MigInfo { mig_profile: (*device).to_owned(), ..MigInfo::default() };
                rows.entity(&compute).info(&m::gpu_mig_info, info);
            }
        }
        rows
    }

    fn wanted(list: &[(&str, u32)]) -> BTreeMap<String, u32> {
        list.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    fn compare(wanted: Wanted<'_>, list: &[&[&str]]) -> Option<bool> {
        matches(wanted, &actual(Some(&mode(true)), Some(&held(instances(list), Vec::new())))?)
    }

    #[test]
    fn devices_are_compared_by_profile_and_count() {
        let want = wanted(&[("1g.18gb", 2), ("1c.3g.71gb", 1)]);
        let want = Wanted::Devices(&want);
        assert_eq!(compare(want, &[&["1g.18gb"], &["1c.3g.71gb"], &["1g.18gb"]]), Some(true));
        assert_eq!(compare(want, &[&["1g.18gb"], &["1g.18gb"]]), Some(false), "one is missing");
        assert_eq!(
            compare(want, &[&["1g.18gb"], &["3g.71gb"], &["1g.18gb"]]),
            Some(false),
            "another profile"
        );
        let more: &[&[&str]] = &[&["1g.18gb"], &["1c.3g.71gb"], &["1g.18gb"], &[]];
        assert_eq!(compare(want, more), Some(false), "a GPU instance of no use");
        assert_eq!(compare(Wanted::Devices(&BTreeMap::new()), &[]), Some(true));
        assert_eq!(compare(Wanted::Off, &[]), Some(false));
        assert_eq!(compare(Wanted::Nothing, &[]), None);
        assert_eq!(compare(Wanted::Unknown, &[]), None);
    }

    #[test]
    fn a_gpu_without_mig_mode_matches_a_layout_without() {
        let none = held(Rows::default(), vec![gap(m::gpu_mig_mode_enabled.id(), Missing::Unsupported)]);
        for slow in [mode(false), none] {
            assert_eq!(actual(Some(&slow), None), Some(Actual::Off));
        }
        assert_eq!(matches(Wanted::Off, &Actual::Off), Some(true));
        assert_eq!(matches(Wanted::Devices(&BTreeMap::new()), &Actual::Off), Some(false));
    }

    #[test]
    fn what_is_not_known_is_not_compared() {
        let error = m::DriverError::Timeout;
        let failed = Missing::Failed { error, text: String::new() };
        let unread = held(instances(&[]), vec![gap(m::gpu_mig_info.id(), failed.clone())]);
        assert_eq!(actual(Some(&mode(true)), Some(&unread)), None);
        assert_eq!(actual(Some(&mode(true)), None), None);
        assert_eq!(actual(None, Some(&held(instances(&[]), Vec::new()))), None);
        let failed = held(Rows::default(), vec![gap(m::gpu_mig_mode_enabled.id(), failed)]);
        assert_eq!(actual(Some(&failed), None), None);
    }
}
