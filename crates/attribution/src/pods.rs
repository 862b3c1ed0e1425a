//! What the kubelet has given out, as its pod-resources API tells it: the kubelet's collector puts it here, others
//! look. No reader waits.
//!
//! That API names namespace, pod, container and device ids, but neither the pod's UID nor the container's id, which
//! are all that a process's control group has. So names come from the paths of the kubelet's log folders
//! (`crate::names`), which hold both; this list helps where those cannot be read and one container alone
//! has the device, and it says which devices are claimed before any process is there.

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
    /// Driver of the device, as `gpu.nvidia.com`; of others there are no [`Claim::devices`].
    pub driver: Arc<str>,
    /// Pool of the device: the node, as a rule.
    pub pool: Arc<str>,
    /// The driver's name of the device.
    pub device: Arc<str>,
    /// UID of the claim, by which its CDI specification is found; empty if the kubelet does not tell it.
    pub uid: Arc<str>,
}

/// Devices that one container of a pod was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Namespace of the pod.
    pub namespace: Arc<str>,
    /// Name of the pod.
    pub pod: Arc<str>,
    /// Name of the container.
    pub container: Arc<str>,
    /// Name of the resource, as `nvidia.com/gpu`; of a dynamic claim (DRA) its name.
    pub resource: Arc<str>,
    /// Ids of its devices: the UUID of a GPU or MIG device (`GPU-…`, `MIG-…`), or whatever else the device plugin
    /// calls them (an index, as GKE's `nvidia0/gi1`). What a plugin adds for shares in time (`::3`) is cut off
    /// with [`device_id`].
    pub devices: Vec<Arc<str>>,
    /// What a dynamic claim says of its device.
    pub dynamic: Option<DynamicClaim>,
}

impl Claim {
    /// Ids of devices that may be GPUs: a bare number is one of NVIDIA's own resources for GPUs and MIG devices alone. Of
    /// others below `nvidia.com/` the number may be an IOMMU group or a network device.
    pub fn gpu_ids(&self) -> impl Iterator<Item = &Arc<str>> {
        let of_gpus = self.resource.strip_prefix("nvidia.com/");
        let of_gpus = of_gpus.is_some_and(|name| name.starts_with("gpu") || name.starts_with("mig-"));
        self.devices.iter().filter(move |id| of_gpus || !matches!(named(id), Named::Index(..)))
    }
}

/// All claims the kubelet listed at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// When they were listed; `None`: never, or the kubelet has not answered for so long that nothing is known.
    pub listed_at: Option<Mono>,
    /// The claims.
    pub all: Vec<Claim>,
}

impl Claims {
    /// The one of these claims, if one container alone has them.
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

/// The id of a device without what a plugin adds for each share in time: `GPU-…::3` is `GPU-…`.
pub fn device_id(id: &str) -> &str {
    id.split_once("::").map_or(id, |(device, _)| device)
}

/// State of the kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KubeletStatus {
    /// It was not asked yet.
    #[default]
    Unasked,
    /// It is not to be asked.
    Off,
    /// There is none on this machine.
    Absent,
    /// It answers.
    Answers,
    /// It does not answer, and why.
    Silent(String),
}

/// Where the claims hang.
#[derive(Debug, Default)]
pub struct Pods {
    claims: Mutex<Arc<Claims>>,
    status: Mutex<KubeletStatus>,
}

impl Pods {
    /// Replaces the claims; [`Claims::default`] if it no longer answers.
    pub fn set_claims(&self, claims: Claims) {
        *lock(&self.claims) = Arc::new(claims);
    }

    /// Sets the state of the kubelet.
    pub fn set_status(&self, status: KubeletStatus) {
        *lock(&self.status) = status;
    }

    /// State of the kubelet.
    pub fn status(&self) -> KubeletStatus {
        lock(&self.status).clone()
    }

    /// The newest claims.
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
