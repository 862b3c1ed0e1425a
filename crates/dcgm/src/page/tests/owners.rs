//! Labels of pods, claims and jobs.

use std::collections::{BTreeMap, BTreeSet};

use model::catalog::{self as m, AllocatedGpu, AllocationInfo, HpcJobInfo};
use model::sample::Rows;

use super::node::gpu;
use super::reader::{OfFamily, OfPage};
use super::*;

#[test]
fn a_shared_gpu_names_one_pod_and_corrected_each() {
    let node = node::pods();
    let pods = |values| {
        let page = parsed(&config(Release::V4_8, values), &node);
        let of = page.family("DCGM_FI_DEV_GPU_TEMP").with(&[("gpu", "0")]);
        let pod = |one: &ParsedSample| one.label("pod").map(str::to_owned);
        of.iter().map(pod).collect::<Vec<_>>()
    };
    assert_eq!(pods(Values::Faithful), [Some("train-1".to_owned())]);
    assert_eq!(pods(Values::Corrected), [Some("train-0".to_owned()), Some("train-1".to_owned())]);
}

/// All labels of pod and claim that a series has, as text.
fn owner(sample: &ParsedSample) -> String {
    let [namespace, pod, container] =
        ["namespace", "pod", "container"].map(|name| sample.label(name).unwrap_or(""));
    let dra = [
        "claim_namespace",
        "claim_name",
        "driver_name",
        "pool_name",
        "device_name",
        "mig_profile",
        "mig_device_uuid",
    ];
    let [of, claim, driver, pool, device, profile, uuid] =
        dra.map(|name| sample.label(&format!("dra_{name}")).unwrap_or(""));
    format!("{namespace}/{pod}/{container} {of}/{claim} {driver}/{pool}/{device} {profile} {uuid}")
}

/// A GPU's index and the id of a GPU instance.
type Place = (u32, Option<u32>);

#[test]
fn each_series_has_the_labels_of_each_pod_of_its_claim() {
    let node = node::claims();
    for (release, values) in Release::ALL.into_iter().flat_map(|it| Values::ALL.map(|values| (it, values))) {
        let page = parsed(&config(release, values), &node);
        for (name, family) in &page.families {
            let mut found: BTreeMap<Place, BTreeSet<String>> = BTreeMap::new();
            for sample in &family.samples {
                let number = |label: &str| sample.label(label).map(|text| text.parse().unwrap());
                let place = (number("gpu").unwrap(), number("GPU_I_ID"));
                found.entry(place).or_default().insert(owner(sample));
            }
            for (place, found) in found {
                let known = node::CLAIMS.iter().find(|(gpu, id, ..)| (*gpu, *id) == place);
                let expected: BTreeSet<String> = match known {
                    Some((_, _, pods, claim, device, profile, uuid)) => pods
                        .iter()
                        .map(|pod| {
                            format!("ml/{pod}/main ml/{claim} gpu.nvidia.com/node1/{device} {profile} {uuid}")
                        })
                        .collect(),
                    // Of the device plugin there is one pod, corrected each.
                    None if place == (1, Some(9)) && values == Values::Faithful => {
                        ["ml/plugin-1/main / //  ".to_owned()].into()
                    }
                    None if place == (1, Some(9)) => {
                        [0, 1].map(|pod| format!("ml/plugin-{pod}/main / //  ")).into()
                    }
                    // The board of a divided GPU.
                    None => ["// / //  ".to_owned()].into(),
                };
                assert_eq!(found, expected, "{name} {place:?} {values:?}");
            }
        }
    }
}

#[test]
fn attributes_come_last_and_only_where_there_is_a_pod() {
    let node = node::pods();
    let text = page(&config(Release::V4_8, Values::Faithful), &node);
    let line = text.lines().find(|line| line.starts_with("DCGM_FI_DEV_XID_ERRORS{")).unwrap();
    let end = ",DCGM_FI_DRIVER_VERSION=\"580.95.05\",container=\"main\",err_code=\"79\",\
               err_msg=\"ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS\",namespace=\"ml\",pod=\"train-1\"} 79";
    assert!(line.ends_with(end), "{line}");
    let page = parsed(&config(Release::V4_8, Values::Faithful), &node);
    let of = |id| page.family("DCGM_FI_DEV_POWER_USAGE").with(&[("gpu", "1"), ("GPU_I_ID", id)]);
    assert_eq!(of("5")[0].label("pod"), Some("infer-0"));
    assert_eq!(of("2")[0].label("pod"), None, "no empty label");
    let without = PageConfig { pods: false, ..config(Release::V4_8, Values::Faithful) };
    assert!(!self::page(&without, &node).contains("pod="));
}

#[test]
fn the_uid_of_a_pod_is_a_label_where_it_is_wanted_and_known() {
    let node = node::pods();
    let config = PageConfig { pod_uids: true, ..config(Release::V4_8, Values::Faithful) };
    let text = page(&config, &node);
    let line = text.lines().find(|line| line.contains("pod=\"infer-0\"")).unwrap();
    assert!(line.contains(",namespace=\"web\",pod=\"infer-0\",pod_uid=\"2c48913c\"}"), "{line}");
    let page = parsed(&config, &node);
    let of = page.family("DCGM_FI_DEV_POWER_USAGE").with(&[("gpu", "0")]);
    assert_eq!((of[0].label("pod"), of[0].label("pod_uid")), (Some("train-1"), None));
    let without = PageConfig { pod_uids: false, ..config };
    assert!(!self::page(&without, &node).contains("pod_uid"));
}

#[test]
fn jobs_are_labels_where_they_are_wanted() {
    let node = node::pods();
    let config = PageConfig { jobs: true, ..config(Release::V4_8, Values::Corrected) };
    let page = parsed(&config, &node);
    let of = page.family("DCGM_FI_DEV_FB_USED").with(&[("gpu", "1"), ("GPU_I_ID", "9")]);
    assert_eq!(of[0].label("hpc_job"), Some("4711"));
    let of_files = PageConfig { jobs: false, job_files: true, ..config };
    assert!(!self::page(&of_files, &node).contains("hpc_job"), "the environment is not asked");
    assert!(!self::page(&self::config(Release::V4_8, Values::Corrected), &node).contains("hpc_job"));
}

#[test]
fn jobs_of_files_are_labels_without_those_of_environments() {
    let (rows, given) = (&mut Rows::default(), AllocatedGpu::new(&gpu(0), None));
    let of_environment = AllocationInfo { slurm_job: "4711.batch".into(), ..AllocationInfo::default() };
    rows.entity(&given).info(&m::gpu_allocation_info, of_environment);
    rows.entity(&given).info(&m::gpu_hpc_job_info, HpcJobInfo { hpc_job: "4711".into() });
    let mut node = Snapshot::with_rows(rows);
    node.families.extend(node::plain().families);
    let jobs = |config: PageConfig| {
        let of = parsed(&config, &node).family("DCGM_FI_DEV_GPU_TEMP").with(&[("gpu", "0")]);
        of.iter().map(|one| one.label("hpc_job").unwrap_or("").to_owned()).collect::<Vec<_>>()
    };
    let base = || config(Release::V4_8, Values::Faithful);
    assert_eq!(jobs(base()), [""]);
    assert_eq!(jobs(PageConfig { job_files: true, ..base() }), ["4711"]);
    assert_eq!(jobs(PageConfig { jobs: true, ..base() }), ["4711.batch"]);
    assert_eq!(jobs(PageConfig { jobs: true, job_files: true, ..base() }), ["4711.batch", "4711"]);
}
