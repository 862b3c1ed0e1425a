//! The exporter's own names, with the attributes that traces have.

use std::collections::{BTreeMap, BTreeSet};

use super::collector::{Collector, HOST, K8S_NODE, Kind, Point, Texts};
use super::machine::Machine;
use super::node::{Metrics, Node};
use super::podresources::{Kubelet, devices, pod};

const UID: &str = "2c48913c-b29f-11e7-9350-020968147796";

/// Two GPUs: on the first one a pod's process and another one's, of which only the UID is known; the second one a pod was given.
fn node_with_pods() -> (Machine, Node, Kubelet) {
    let mut machine = Machine::new();
    let group = |uid: &str, id: &str| {
        let slice = format!("kubepods-burstable-pod{}.slice", uid.replace('-', "_"));
        format!("0::/kubepods.slice/kubepods-burstable.slice/{slice}/cri-containerd-{id}.scope\n")
    };
    let (named, nameless) = ("a".repeat(64), "b".repeat(64));
    machine.process(5_000_001, group(UID, &named));
    machine.write(&format!("var/log/containers/trainer-0_ml_main-{named}.log"), "");
    machine.process(5_000_002, group("7d5fa4b1-1111-4222-8333-944444444444", &nameless));
    machine.gpu([5_000_001, 5_000_002]);
    machine.gpu([]);
    let node = machine.start();
    let m = node.wait_metrics("both owners", |m| m.all("gpu_owner_memory_used_bytes", &[]).len() == 2);
    let (_, second, _) = m.0.iter().find(|(n, l, _)| n == "gpu_info" && l["gpu"] == "1").unwrap();
    let given = vec![devices("nvidia.com/gpu", [second["uuid"].clone()])];
    let kubelet = Kubelet::start(&machine.root(), vec![pod("serve-0", given.clone())], given);
    node.wait_metrics("the allocation", |m| !m.all("gpu_allocation_info", &[]).is_empty());
    (machine, node, kubelet)
}

/// What each family of the page is, by name of its samples.
fn types(node: &Node) -> BTreeMap<String, String> {
    let page = node.get("/metrics").1;
    let lines = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    lines.map(|(name, kind)| (name.to_owned(), kind.to_owned())).collect()
}

/// A series of the page under the names of the wire: attributes of the resource, and of the data point.
fn on_the_wire(labels: &Texts) -> (Texts, Texts) {
    let mut resource = Texts::new();
    let mut point: Texts =
        labels.iter().filter(|(_, v)| !v.is_empty()).map(|(k, v)| (k.clone(), v.clone())).collect();
    if labels.get("owner").is_some_and(|owner| owner == "pod/ml/trainer-0/main") {
        for (name, value) in [("namespace", "ml"), ("pod", "trainer-0"), ("container", "main")] {
            point.insert(name.into(), value.into());
        }
    }
    let moved = [
        ("uuid", "gpu.uuid"),
        ("namespace", "k8s.namespace.name"),
        ("pod", "k8s.pod.name"),
        ("container", "k8s.container.name"),
    ];
    for (ours, theirs) in moved {
        if let Some(value) = point.remove(ours) {
            resource.insert(theirs.into(), value);
        }
    }
    if let Some(value) = point.remove("pod_uid") {
        point.insert("k8s.pod.uid".into(), value);
    }
    (resource, point)
}

/// The resource without what each has.
fn distinct(resource: &Texts) -> Texts {
    let common = [
        "host.name",
        "k8s.node.name",
        "server.address",
        "server.port",
        "service.instance.id",
        "service.name",
        "url.scheme",
    ];
    resource
        .iter()
        .filter(|(name, _)| !common.contains(&name.as_str()))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect()
}

/// The unit by the name's ending.
fn unit(name: &str) -> Option<&'static str> {
    let ends = [
        ("_bytes_per_second", "By/s"),
        ("_bytes", "By"),
        ("_seconds", "s"),
        ("_ratio", "1"),
        ("_watts", "W"),
        ("_joules", "J"),
        ("_celsius", "Cel"),
        ("_hertz", "Hz"),
    ];
    let name = name.strip_suffix("_total").unwrap_or(name);
    ends.iter().find(|(end, _)| name.ends_with(end)).map(|(_, unit)| *unit)
}

#[test]
fn each_series_arrives_once_with_its_value_and_with_what_traces_have() {
    let (_machine, node, _kubelet) = node_with_pods();
    let before = node.metrics();
    let collector = Collector::start(node.addr(), &["deploy/otel/collector.yaml"]);
    let points = collector.second_scrape();
    let after = node.metrics();

    for point in &points {
        let common = ["host.name", "k8s.node.name", "service.name"].map(|name| point.resource[name].as_str());
        assert_eq!(common, [HOST, K8S_NODE, "gpu-node-exporter"], "{point:?}");
    }
    let types = types(&node);
    let mut by_name: BTreeMap<&str, Vec<&Point>> = BTreeMap::new();
    for point in &points {
        by_name.entry(&point.name).or_default().push(point);
    }
    let mut compared = BTreeSet::new();
    for (name, labels, value) in &after.0 {
        // A series that was there before the scrape and after it.
        let (Some(kind), Some(former)) = (types.get(name), find(&before, name, labels)) else { continue };
        let (resource, attributes) = on_the_wire(labels);
        let arrived: Vec<&&Point> = by_name
            .get(name.as_str())
            .into_iter()
            .flatten()
            .filter(|p| distinct(&p.resource) == resource && p.attributes == attributes)
            .collect();
        let [point] = arrived[..] else {
            panic!("{name} {labels:?} arrived as {arrived:?}: {:#?}", by_name.get(name.as_str()))
        };
        let expected = if kind == "counter" { Kind::Counter } else { Kind::Gauge };
        assert_eq!(point.kind, expected, "{name}");
        if let Some(unit) = unit(name) {
            assert_eq!(point.unit, unit, "{name}");
        }
        // The exporter's own gauges come and go with each request.
        if former == *value && !name.starts_with("gpu_exporter_") && !name.starts_with("process_") {
            let arrived = point.value.unwrap();
            assert!((arrived - value).abs() <= value.abs() * 1e-12, "{name} {labels:?}: {arrived} {value}");
            compared.insert(name);
        }
    }
    assert!(compared.len() > 80, "{}: {compared:?}", compared.len());
    let made: Vec<&&str> = by_name.keys().filter(|name| !types.contains_key(**name)).collect();
    assert!(made.iter().all(|name| **name == "up" || name.starts_with("scrape_")), "{made:?}");
    assert_eq!(collector.complaints(), Vec::<String>::new());
}

fn find(page: &Metrics, name: &str, labels: &Texts) -> Option<f64> {
    page.0.iter().find(|(n, l, _)| n == name && l == labels).map(|(_, _, value)| *value)
}

#[test]
fn series_of_pods_have_the_pods_names_and_no_other_has() {
    let (_machine, node, _kubelet) = node_with_pods();
    let collector = Collector::start(node.addr(), &["deploy/otel/collector.yaml"]);
    let points = collector.second_scrape();
    let pods = |name: &str| -> BTreeSet<(String, String)> {
        let of = points.iter().filter(|p| p.name == name);
        of.map(|p| {
            let parts = ["k8s.namespace.name", "k8s.pod.name", "k8s.container.name"];
            let parts = parts.map(|name| p.resource.get(name).cloned().unwrap_or_default());
            (p.resource["gpu.uuid"].clone(), parts.join("/"))
        })
        .collect()
    };
    let uuid = |gpu: &str| {
        let m = node.metrics();
        m.0.iter().find(|(n, l, _)| n == "gpu_info" && l["gpu"] == gpu).unwrap().1["uuid"].clone()
    };
    let (first, second) = (uuid("0"), uuid("1"));
    let trainer = (first.clone(), "ml/trainer-0/main".to_owned());
    let nameless = (first.clone(), "//".to_owned());
    for name in ["gpu_owner_info", "gpu_owner_memory_used_bytes", "gpu_owner_busy_seconds_total"] {
        assert_eq!(pods(name), BTreeSet::from([trainer.clone(), nameless.clone()]), "{name}");
    }
    let serve = (second.clone(), "ml/serve-0/main".to_owned());
    assert_eq!(pods("gpu_allocation_info"), BTreeSet::from([serve]));
    let none = [(first, "//".to_owned()), (second, "//".to_owned())];
    assert_eq!(pods("gpu_power_watts"), BTreeSet::from(none));
}
