//! Allocations by the kubelet according to its pod-resources API. The kubelet's collector stores them here, and
//! readers never wait.
//!
//! The API returns namespace, pod, container and device ids, but neither the pod's UID nor the container's id,
//! and a control group has only those two. Names therefore come from the paths of the kubelet's log folders
//! (`crate::names`), which have both. This list helps if the folders cannot be read and only one container has
//! the device, and it shows which devices are allocated before any process runs.

use std::sync::{Arc, Mutex};

use crate::devices::{Named, named};
use model::clock::Mono;
use model::sync::lock;

/// A device of a claim of dynamic resource allocation (DRA).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct DynamicClaim {
    /// Name of the claim.
    pub claim: Arc<str>,
    /// Namespace of the claim.
    pub namespace: Arc<str>,
    /// Driver of the device, for example `gpu.nvidia.com`. Devices of other drivers are not in
    /// [`Claim::devices`].
    pub driver: Arc<str>,
    /// Pool of the device, usually the node.
    pub pool: Arc<str>,
    /// The driver's name of the device.
    pub device: Arc<str>,
    /// UID of the claim, through which its CDI specification is found; empty if the kubelet does not report it.
    pub uid: Arc<str>,
}

/// Devices that are allocated to one container of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Namespace of the pod.
    pub namespace: Arc<str>,
    pub pod: Arc<str>,
    pub container: Arc<str>,
    /// Name of the resource, for example `nvidia.com/gpu`; for a dynamic claim (DRA), its name.
    pub resource: Arc<str>,
    /// Ids of the devices: the UUID of a GPU or MIG device (`GPU-…`, `MIG-…`), or any other id of the device
    /// plugin (an index, or GKE's `nvidia0/gi1`). [`device_id`] cuts off the suffix for time slices (`::3`).
    pub devices: Vec<Arc<str>>,
    /// Device of a dynamic claim.
    pub dynamic: Option<DynamicClaim>,
}

impl Claim {
    /// Returns the ids that may be GPUs. A bare number is a GPU only in NVIDIA's resources for GPUs and MIG
    /// devices. In other resources of `nvidia.com/` the number may be an IOMMU group or a network device.
    pub fn gpu_ids(&self) -> impl Iterator<Item = &Arc<str>> {
        let of_gpus = self.resource.strip_prefix("nvidia.com/");
        let of_gpus = of_gpus.is_some_and(|name| name.starts_with("gpu") || name.starts_with("mig-"));
        self.devices.iter().filter(move |id| of_gpus || !matches!(named(id), Named::Index(..)))
    }
}

/// All allocations that the kubelet listed at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// Time of the listing; `None` if the kubelet was never listed, or has not answered for so long that
    /// nothing is known.
    pub listed_at: Option<Mono>,
    /// Allocations of all containers.
    pub all: Vec<Claim>,
}

impl Claims {
    /// Returns the first matching claim if all matching claims belong to the same container.
    pub fn only_one(&self, is: impl Fn(&Claim) -> bool) -> Option<&Claim> {
        let mut claims = self.all.iter().filter(|claim| is(claim));
        let first = claims.next()?;
        let same = |other: &Claim| {
            (&other.namespace, &other.pod, &other.container)
                == (&first.namespace, &first.pod, &first.container)
        };
        claims.all(same).then_some(first)
    }
}

/// Returns the id of a device without the plugin's suffix for time slices: `GPU-…` for `GPU-…::3`.
pub fn device_id(id: &str) -> &str {
    id.split_once("::").map_or(id, |(device, _)| device)
}

/// State of the connection to the kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KubeletStatus {
    /// The kubelet was not queried yet.
    #[default]
    Unasked,
    /// Querying is switched off.
    Off,
    /// There is no kubelet on this host.
    Absent,
    /// The kubelet answers its requests.
    Answers,
    /// The kubelet does not answer, for this reason.
    Silent(String),
}

/// The newest allocations and the state of the kubelet.
#[derive(Debug, Default)]
pub struct Pods {
    claims: Mutex<Arc<Claims>>,
    status: Mutex<KubeletStatus>,
}

impl Pods {
    /// Replaces the claims; [`Claims::default`] if the kubelet no longer answers.
    pub fn set_claims(&self, claims: Claims) {
        *lock(&self.claims) = Arc::new(claims);
    }

    pub fn set_status(&self, status: KubeletStatus) {
        *lock(&self.status) = status;
    }

    pub fn status(&self) -> KubeletStatus {
        lock(&self.status).clone()
    }

    pub fn claims(&self) -> Arc<Claims> {
        Arc::clone(&lock(&self.claims))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(pod: &str, container: &str, devices: &[&str]) -> Claim {
        Claim {
            namespace: "ml".into(),
            pod: pod.into(),
            container: container.into(),
            resource: "nvidia.com/gpu".into(),
            devices: devices.iter().map(|id| device_id(id).into()).collect(),
            dynamic: None,
        }
    }

    #[test]
    fn a_device_that_is_shared_in_time_has_no_single_claim() {
        let pods = Pods::default();
        assert_eq!(pods.claims().listed_at, None);
        let all = vec![
            claim("a", "train", &["GPU-1", "GPU-2::0"]),
            claim("b", "serve", &["GPU-2::1"]),
            claim("a", "train", &["GPU-1::7"]),
        ];
        pods.set_claims(Claims { listed_at: Some(Mono(1)), all });
        let claims = pods.claims();
        let only = |device: &str| claims.only_one(|claim| claim.gpu_ids().any(|id| **id == *device));
        assert_eq!(only("GPU-1").map(|claim| &*claim.pod), Some("a"));
        assert_eq!((only("GPU-2"), only("GPU-3")), (None, None));
    }

    #[test]
    fn a_bare_number_is_a_gpus_only_of_a_resource_of_gpus() {
        for (resource, count) in [
            ("nvidia.com/gpu", 2),
            ("nvidia.com/gpu.shared", 2),
            ("nvidia.com/mig-1g.18gb", 2),
            ("nvidia.com/GH100_H100_SXM5_80GB", 1),
            ("nvidia.com/hostdev", 1),
            ("gpus", 1),
        ] {
            let claim = Claim { resource: resource.into(), ..claim("a", "main", &["3", "GPU-1"]) };
            assert_eq!(claim.gpu_ids().count(), count, "{resource}");
        }
    }
}
