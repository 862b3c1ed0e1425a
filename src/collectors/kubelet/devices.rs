//! What an answer of the kubelet means: devices by resource, and who has them. Pure. Whatever names it brings are
//! bounded here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use attribution::kubelet::api::{AllocatableResponse, ClaimResource, ContainerDevices, ListResponse};
use attribution::pods::{Claim, device_id};
use model::catalog::{self as m, Node, Resource};
use model::sample::Rows;
use model::text::clean;

/// Longest name that is kept, in bytes.
const MAX_NAME: usize = 128;
/// Resources with series.
const MAX_RESOURCES: usize = 64;
/// Claims that are kept: far more than containers on a node.
const MAX_CLAIMS: usize = 4096;
/// Driver of NVIDIA's GPUs for dynamic resource allocation.
const DRIVER: &str = "gpu.nvidia.com";

/// Whether a resource of device plugins is NVIDIA's: `nvidia.com/gpu`, `nvidia.com/gpu.shared`,
/// `nvidia.com/mig-1g.10gb`.
fn is_ours(resource: &str) -> bool {
    resource.starts_with("nvidia.com/")
}

/// Who has which of NVIDIA's devices.
pub fn claims(list: &ListResponse) -> Vec<Claim> {
    let mut claims = Vec::new();
    for pod in &list.pod_resources {
        let (namespace, name) = (text(&pod.namespace), text(&pod.name));
        for container in &pod.containers {
            let container_name = text(&container.name);
            let mut add = |resource: &str, devices: Vec<Arc<str>>| {
                if !devices.is_empty() && claims.len() < MAX_CLAIMS {
                    claims.push(Claim {
                        namespace: Arc::clone(&namespace),
                        pod: Arc::clone(&name),
                        container: Arc::clone(&container_name),
                        resource: text(resource),
                        devices,
                    });
                }
            };
            for devices in container.devices.iter().filter(|devices| is_ours(&devices.resource_name)) {
                let ids = devices.device_ids.iter().map(|id| text(device_id(id))).collect();
                add(&devices.resource_name, ids);
            }
            for dynamic in &container.dynamic_resources {
                let ids = dynamic.claim_resources.iter().flat_map(dynamic_devices).map(text).collect();
                add(&dynamic.claim_name, ids);
            }
        }
    }
    claims
}

/// The GPUs that were given for a dynamic claim, as their driver calls them.
fn dynamic_devices(resource: &ClaimResource) -> Vec<&str> {
    if !resource.device_name.is_empty() {
        let ours = resource.driver_name == DRIVER;
        return if ours { vec![resource.device_name.as_str()] } else { Vec::new() };
    }
    // Before Kubernetes 1.31 only the name for the container runtime tells.
    let names = resource.cdi_devices.iter().filter_map(|device| device.name.split_once('='));
    names
        .filter(|(kind, _)| kind.contains(DRIVER) || *kind == "nvidia.com/gpu")
        .map(|(_, name)| name)
        .collect()
}

/// Rows about devices by resource.
pub fn rows(list: &ListResponse, allocatable: Option<&AllocatableResponse>, rows: &mut Rows) {
    let containers = || list.pod_resources.iter().flat_map(|pod| &pod.containers);
    let mut given = count(containers().flat_map(|container| &container.devices));
    let dynamic = containers().flat_map(|container| &container.dynamic_resources);
    let devices: BTreeSet<&str> =
        dynamic.flat_map(|d| &d.claim_resources).flat_map(dynamic_devices).collect();
    if !devices.is_empty() {
        given.insert(DRIVER.into(), devices.len());
    }
    let all = allocatable.map(|answer| count(&answer.devices)).unwrap_or_default();
    let mut of = rows.of(&Node {});
    for (resource, devices) in all.iter().take(MAX_RESOURCES) {
        // What can be given out and is not, is 0 of it.
        given.entry(Arc::clone(resource)).or_insert(0);
        let _ =
            of.put(&m::gpu_kubelet_allocatable_devices, (Resource(Arc::clone(resource)),), *devices as f64);
    }
    for (resource, devices) in given.iter().take(MAX_RESOURCES) {
        let _ = of.put(&m::gpu_kubelet_allocated_devices, (Resource(Arc::clone(resource)),), *devices as f64);
    }
}

/// Different devices by resource: what several containers of a pod have together is one device.
fn count<'a>(devices: impl IntoIterator<Item = &'a ContainerDevices>) -> BTreeMap<Arc<str>, usize> {
    let mut ids: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for devices in devices.into_iter().filter(|devices| is_ours(&devices.resource_name)) {
        ids.entry(&devices.resource_name).or_default().extend(devices.device_ids.iter().map(String::as_str));
    }
    ids.into_iter().map(|(resource, ids)| (text(resource), ids.len())).collect()
}

fn text(text: &str) -> Arc<str> {
    clean(text, MAX_NAME).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use attribution::kubelet::api::{CdiDevice, ContainerResources, DynamicResource, PodResources};
    use proptest::prelude::*;

    fn devices(resource: &str, ids: &[&str]) -> ContainerDevices {
        let device_ids = ids.iter().map(|id| (*id).to_owned()).collect();
        ContainerDevices { resource_name: resource.into(), device_ids }
    }

    fn list(containers: Vec<ContainerResources>) -> ListResponse {
        let pod = PodResources { name: "train-0".into(), namespace: "ml".into(), containers };
        ListResponse { pod_resources: vec![pod] }
    }

    fn container(devices: Vec<ContainerDevices>) -> ContainerResources {
        ContainerResources { name: "main".into(), devices, dynamic_resources: Vec::new() }
    }

    fn rows_of(list: &ListResponse, allocatable: Option<&AllocatableResponse>) -> Vec<String> {
        let mut rows = Rows::default();
        super::rows(list, allocatable, &mut rows);
        assert!(rows.conform());
        let row = |row: &model::sample::Row| {
            let def = m::def(row.metric).unwrap();
            format!("{} {} {}", def.name, row.labels[0].text(&def.labels[0]), row.value)
        };
        rows.groups().iter().flat_map(|(_, rows)| rows).map(row).collect()
    }

    #[test]
    fn devices_are_counted_by_resource() {
        let list = list(vec![
            container(vec![devices("nvidia.com/gpu", &["GPU-1"]), devices("intel.com/qat", &["q"])]),
            container(vec![
                devices("nvidia.com/gpu", &["GPU-1"]),
                devices("nvidia.com/gpu.shared", &["GPU-2::0", "GPU-2::1"]),
            ]),
        ]);
        let allocatable = AllocatableResponse {
            devices: vec![
                devices("nvidia.com/gpu", &["GPU-1"]),
                devices("nvidia.com/gpu", &["GPU-3"]),
                devices("nvidia.com/gpu.shared", &["GPU-2::0", "GPU-2::1", "GPU-2::2", "GPU-2::3"]),
                devices("nvidia.com/mig-1g.10gb", &["MIG-1", "MIG-2"]),
                devices("intel.com/qat", &["q"]),
            ],
        };
        assert_eq!(
            rows_of(&list, Some(&allocatable)),
            [
                "gpu_kubelet_allocatable_devices nvidia.com/gpu 2",
                "gpu_kubelet_allocatable_devices nvidia.com/gpu.shared 4",
                "gpu_kubelet_allocatable_devices nvidia.com/mig-1g.10gb 2",
                "gpu_kubelet_allocated_devices nvidia.com/gpu 1",
                "gpu_kubelet_allocated_devices nvidia.com/gpu.shared 2",
                "gpu_kubelet_allocated_devices nvidia.com/mig-1g.10gb 0",
            ]
        );
        assert_eq!(rows_of(&list, None).len(), 2, "an old kubelet lists only what it has given out");
        let claims = claims(&list);
        assert_eq!(claims.len(), 3);
        assert_eq!(
            (&*claims[0].namespace, &*claims[0].pod, &*claims[0].container),
            ("ml", "train-0", "main")
        );
        assert_eq!(claims[2].devices, ["GPU-2".into(), "GPU-2".into()]);
    }

    #[test]
    fn dynamic_claims_name_the_gpus_of_nvidias_driver() {
        let of = |driver: &str, device: &str, cdi: &str| ClaimResource {
            cdi_devices: vec![CdiDevice { name: cdi.into() }],
            driver_name: driver.into(),
            device_name: device.into(),
        };
        let dynamic = DynamicResource {
            claim_name: "gpus".into(),
            claim_resources: vec![
                of("gpu.nvidia.com", "gpu-1", "k8s.gpu.nvidia.com/device=gpu-1"),
                of("compute-domain.nvidia.com", "channel-0", "k8s.compute-domain.nvidia.com/channel=0"),
                of("", "", "k8s.gpu.nvidia.com/claim=0a1b-gpu-2"),
                of("", "", "vendor.com/net=x"),
            ],
        };
        let list =
            list(vec![ContainerResources { dynamic_resources: vec![dynamic], ..container(Vec::new()) }]);
        let claims = claims(&list);
        assert_eq!((claims.len(), &*claims[0].resource), (1, "gpus"));
        assert_eq!(claims[0].devices, ["gpu-1".into(), "0a1b-gpu-2".into()]);
        assert_eq!(rows_of(&list, None), ["gpu_kubelet_allocated_devices gpu.nvidia.com 2"]);
    }

    proptest! {
        #[test]
        fn hostile_names_are_bounded(name in "\\PC{0,300}|[\\n\"\\\\]{0,9}", ids in prop::collection::vec(".{0,200}", 0..5)) {
            let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
            let mut list = list(vec![container(vec![devices(&format!("nvidia.com/{name}"), &ids)])]);
            list.pod_resources[0].name = name;
            rows_of(&list, None);
            for claim in claims(&list) {
                for text in claim.devices.iter().chain([&claim.pod, &claim.resource]) {
                    prop_assert!(text.len() <= MAX_NAME && !text.chars().any(char::is_control));
                }
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(list) = <ListResponse as prost::Message>::decode(&bytes[..]) {
                rows_of(&list, None);
                claims(&list);
            }
        }
    }
}
