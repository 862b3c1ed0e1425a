//! Devices of dynamic claims are resolved on the node, by minor number, profile and placement.

use std::collections::BTreeSet;
use std::fs;

use attribution::kubelet::api::{CdiDevice, ClaimResource, DynamicResource, PodResources};

use super::dcgm;
use super::node::{Metrics, Node};
use super::podresources::{Kubelet, pod};

const DRIVER: &str = "gpu.nvidia.com";
const UID: &str = "3f1e0f6c-7c43-4f0f-8a3b-0c5e1b1e7a5";

/// A pod with a device of a claim, whose UID ends in this digit.
fn claimed(name: &str, claim: (&str, u32), driver: &str, device: &str) -> PodResources {
    let (claim_name, digit) = claim;
    let mut pod = pod(name, Vec::new());
    pod.containers[0].dynamic_resources = vec![DynamicResource {
        claim_name: claim_name.into(),
        claim_namespace: "ml".into(),
        claim_resources: vec![ClaimResource {
            cdi_devices: vec![CdiDevice { name: format!("k8s.gpu.nvidia.com/claim={UID}{digit}-{device}") }],
            driver_name: driver.into(),
            pool_name: "node7".into(),
            device_name: device.into(),
            share_id: None,
        }],
    }];
    pod
}

/// Writes the specification of a claim with one device.
fn specify(node: &Node, digit: u32, device: &str, files: &[&str]) {
    let folder = node.root().join("var/run/cdi");
    fs::create_dir_all(&folder).unwrap();
    let files: String = files.iter().map(|file| format!("    - path: {file}\n")).collect();
    let text = format!(
        "cdiVersion: 0.5.0\nkind: k8s.gpu.nvidia.com/claim\ncontainerEdits:\n  env:\n  - \
         NVIDIA_VISIBLE_DEVICES=void\ndevices:\n- containerEdits:\n    deviceNodes:\n{files}  name: \
         {UID}{digit}-{device}\n"
    );
    fs::write(folder.join(format!("k8s.gpu.nvidia.com-claim_{UID}{digit}.yaml")), text).unwrap();
}

/// GPU and instance of each pod's series, with one label more.
fn places(m: &Metrics, metric: &str, more: &str) -> Vec<String> {
    let of = |label: &str, labels: &std::collections::BTreeMap<String, String>| {
        labels.get(label).cloned().unwrap_or_default()
    };
    let series = m.0.iter().filter(|(name, ..)| name == metric);
    let mut all: Vec<String> = series
        .map(|(_, l, _)| {
            format!("{} {}/{} {}", of("pod", l), of("gpu", l), of("gpu_instance", l), of(more, l))
        })
        .collect();
    all.sort();
    all
}

fn unresolved(m: &Metrics) -> Vec<(String, f64)> {
    let series = m.0.iter().filter(|(name, ..)| name == "gpu_exporter_claims_unresolved");
    series
        .map(|(_, labels, value)| (labels["reason"].clone(), *value))
        .filter(|(_, value)| *value > 0.0)
        .collect()
}

#[test]
fn devices_of_claims_have_their_pods_and_what_is_not_certain_is_counted() {
    let node = Node::start("tests/scenarios/dynamic-claims.toml");
    node.wait_metrics("MIG devices", |m| m.all("gpu_mig_info", &[]).len() == 2);
    let slice = "gpu-0-mig-1g18gb-19-1";
    // Numbers of the driver's table: GPU instance 8 of the GPU with minor number 0, and its compute instance.
    let table = node.root().join("proc/driver/nvidia-caps");
    fs::create_dir_all(&table).unwrap();
    fs::write(
        table.join("mig-minors"),
        "config 1\ngpu0/gi7/access 75\ngpu0/gi8/access 84\ngpu0/gi8/ci0/access 85\n",
    )
    .unwrap();
    specify(
        &node,
        1,
        slice,
        &["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap84", "/dev/nvidia-caps/nvidia-cap85"],
    );
    specify(&node, 5, "gpu-1", &["/dev/nvidia2"]);
    specify(&node, 6, "renamed", &["/dev/nvidia2"]);
    let pods = vec![
        claimed("whole", ("one", 0), DRIVER, "gpu-2"),
        claimed("slice", ("part", 1), DRIVER, slice),
        claimed("later", ("made", 2), DRIVER, "gpu-0-mig-2g35gb-14-2"),
        claimed("share-a", ("both", 3), DRIVER, "gpu-1"),
        claimed("share-b", ("both", 3), DRIVER, "gpu-1"),
        claimed("odd", ("odd", 4), DRIVER, "gpu-0-mig-what"),
        claimed("wrong", ("wrong", 5), DRIVER, "gpu-1"),
        claimed("renamed", ("new", 6), DRIVER, "renamed"),
        claimed("channel", ("domain", 7), "compute-domain.nvidia.com", "channel-0"),
    ];
    let kubelet = Kubelet::start(&node.root(), pods, Vec::new());
    let m = node.wait_metrics("the claims", |m| m.all("gpu_allocation_info", &[]).len() == 5);
    let expected = ["renamed 0/ ml", "share-a 2/ ml", "share-b 2/ ml", "slice 1/8 ml", "whole 0/ ml"];
    assert_eq!(places(&m, "gpu_allocation_info", "namespace"), expected);
    let counts = [("name", 1.0), ("no_device", 1.0), ("disagreement", 1.0), ("other_driver", 1.0)];
    assert_eq!(unresolved(&m), counts.map(|(reason, count)| (reason.to_owned(), count)));
    node.wait_said(&["failed to resolve a dynamic claim", "gpu-0-mig-what"]);

    node.sim().open_gate("made").unwrap();
    let m = node.wait_metrics("the instance made for a claim", |m| {
        m.all("gpu_allocation_info", &[("pod", "later")]).len() == 1
    });
    let later =
        places(&m, "gpu_allocation_info", "namespace").into_iter().find(|text| text.starts_with("later"));
    let made = m.0.iter().find(|(name, l, _)| name == "gpu_mig_info" && l["profile"] == "2g.35gb").unwrap();
    let instance = &made.1["gpu_instance"];
    assert_eq!(later, Some(format!("later 1/{instance} ml")));
    assert!(!unresolved(&m).iter().any(|(reason, _)| reason == "no_device"));

    // What the page of dcgm-exporter has of claims is in the snapshot alone.
    assert!(m.all("gpu_claim_info", &[]).is_empty() && m.all("gpu_mig_profile_id", &[]).is_empty());
    let all = node.everything();
    let with = |label: &str| places(&all, "gpu_claim_info", label);
    let devices = [
        "later 1/ID gpu-0-mig-2g35gb-14-2",
        "renamed 0/ renamed",
        "share-a 2/ gpu-1",
        "share-b 2/ gpu-1",
        "slice 1/8 gpu-0-mig-1g18gb-19-1",
        "whole 0/ gpu-2",
    ];
    assert_eq!(with("device"), devices.map(|text| text.replace("ID", instance)));
    let profiles = with("mig_profile");
    assert_eq!(
        (&*profiles[0], &*profiles[4]),
        (&*format!("later 1/{instance} 2g.35gb"), "slice 1/8 1g.18gb")
    );
    assert_eq!(with("mig_uuid")[0], format!("later 1/{instance} {}", made.1["mig_uuid"]));
    let of = [
        ("claim", "both"),
        ("claim_namespace", "ml"),
        ("driver", DRIVER),
        ("pool", "node7"),
        ("container", "main"),
    ];
    assert_eq!(all.all("gpu_claim_info", &of).len(), 2);

    // That page names each pod of a shared claim, and no device of another driver.
    let page = dcgm::page(&node);
    let memory = page.0.iter().filter(|(name, ..)| name == "DCGM_FI_DEV_FB_USED");
    let owners = memory.map(|(_, labels, _)| {
        let text = |label: &str| labels.get(label).map_or("-", String::as_str);
        ["pod", "gpu", "GPU_I_ID", "dra_claim_name", "dra_device_name"].map(text).join(" ")
    });
    let owners: BTreeSet<String> = owners.collect();
    let expected = [
        "- 1 7 - -".to_owned(),
        format!("later 1 {instance} made gpu-0-mig-2g35gb-14-2"),
        "renamed 0 - new renamed".to_owned(),
        "share-a 2 - both gpu-1".to_owned(),
        "share-b 2 - both gpu-1".to_owned(),
        format!("slice 1 8 part {slice}"),
        "whole 0 - one gpu-2".to_owned(),
    ];
    assert_eq!(owners, BTreeSet::from(expected));
    let (_, labels, _) =
        page.0.iter().find(|(_, labels, _)| labels.get("pod").is_some_and(|pod| pod == "later")).unwrap();
    for (label, value) in [
        ("dra_claim_name", "made"),
        ("dra_claim_namespace", "ml"),
        ("dra_driver_name", DRIVER),
        ("dra_pool_name", "node7"),
        ("dra_mig_profile", "2g.35gb"),
        ("dra_mig_device_uuid", &made.1["mig_uuid"]),
    ] {
        assert_eq!(labels[label], value, "{label}");
    }

    // A kubelet that is away ends no claim at once.
    drop(kubelet);
    let up = |m: &Metrics| m.value("gpu_exporter_collector_up", &[("collector", "kubelet")]);
    let m = node.wait_metrics("the kubelet is away", |m| up(m) == Some(0.0));
    assert_eq!(m.all("gpu_allocation_info", &[]).len(), 6);
}

#[test]
fn where_the_driver_hides_placements_the_specification_tells_the_instance() {
    let node = Node::start("tests/scenarios/mig-forbidden.toml");
    let m =
        node.wait_metrics("MIG devices", |m| !m.all("gpu_mig_info", &[("profile", "1g.18gb")]).is_empty());
    let small = m.0.iter().find(|(name, l, _)| name == "gpu_mig_info" && l["profile"] == "1g.18gb").unwrap();
    let instance = small.1["gpu_instance"].clone();
    let device = "gpu-0-mig-1g18gb-19-6";
    let kubelet =
        Kubelet::start(&node.root(), vec![claimed("slice", ("part", 1), DRIVER, device)], Vec::new());
    let placed = |m: &Metrics| m.value("gpu_exporter_claims_unresolved", &[("reason", "no_placement")]);
    let m = node.wait_metrics("the claim", |m| placed(m) == Some(1.0));
    assert!(m.all("gpu_allocation_info", &[]).is_empty());
    let table = node.root().join("proc/driver/nvidia-caps");
    fs::create_dir_all(&table).unwrap();
    fs::write(table.join("mig-minors"), format!("gpu0/gi{instance}/access 84\n")).unwrap();
    specify(&node, 2, device, &["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap84"]);
    let pods = vec![claimed("slice-2", ("part", 2), DRIVER, device)];
    kubelet.now(|script| script.pods.pod_resources = pods);
    let m = node.wait_metrics("the instance", |m| placed(m) == Some(0.0));
    assert_eq!(m.all("gpu_allocation_info", &[("pod", "slice-2"), ("gpu_instance", &instance)]), [1.0]);
}
