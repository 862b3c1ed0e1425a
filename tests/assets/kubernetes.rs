//! The documents of `deploy/kubernetes` that an administrator writes from an alert.

use std::collections::BTreeSet;

use serde_json::Value;

use super::files;

fn document(path: &str) -> Value {
    yaml_serde::from_str(&files::read(&files::root().join("deploy").join(path))).unwrap()
}

fn alerts() -> BTreeSet<String> {
    files::alerts().into_iter().map(|(_, name, _)| name).collect()
}

/// Upper camel case, as Kubernetes wants of the type and the reason of a condition.
fn is_camel_case(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_uppercase()) && text.chars().all(|c| c.is_ascii_alphanumeric())
}

#[test]
fn the_taint_of_a_gpu_is_what_the_api_takes_and_names_an_alert() {
    let rule = document("kubernetes/device-taint-rule.yaml");
    assert_eq!(
        (&rule["apiVersion"], &rule["kind"]),
        (&"resource.k8s.io/v1".into(), &"DeviceTaintRule".into())
    );
    let (selector, taint) = (&rule["spec"]["deviceSelector"], &rule["spec"]["taint"]);
    // Without a device the rule takes out all GPUs of the node, and without a pool those of all nodes.
    for key in ["driver", "pool", "device"] {
        assert!(selector[key].as_str().is_some_and(|value| !value.is_empty()), "{key}: {selector}");
    }
    let (prefix, name) = taint["key"].as_str().unwrap().split_once('/').unwrap();
    let label = |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || c == '-') && text.len() <= 63;
    assert!(label(prefix) && label(name));
    assert!(["NoSchedule", "NoExecute", "None"].contains(&taint["effect"].as_str().unwrap()));
    assert!(alerts().contains(taint["value"].as_str().unwrap()), "{taint}");
    assert_eq!(rule["spec"].as_object().unwrap().len(), 2, "no field that the API does not have");
}

#[test]
fn the_condition_of_a_node_is_the_same_by_hand_and_by_node_problem_detector() {
    let patch = document("kubernetes/node-condition.yaml");
    let [by_hand] = patch["status"]["conditions"].as_array().unwrap().as_slice() else { panic!("{patch}") };
    let plugin = document("node-problem-detector/gpu-health.json");
    let [by_plugin] = plugin["conditions"].as_array().unwrap().as_slice() else { panic!("{plugin}") };
    assert_eq!(by_hand["type"], by_plugin["type"]);
    assert_eq!(by_hand["status"], "True", "a text, not a boolean");
    let reasons = [&by_hand["type"], &by_hand["reason"], &by_plugin["reason"], &plugin["rules"][0]["reason"]];
    assert!(reasons.iter().all(|reason| is_camel_case(reason.as_str().unwrap())), "{reasons:?}");
    assert!(alerts().contains(by_hand["reason"].as_str().unwrap()));
}
