//! Claims on a GPU that has no process yet, by pods of the kubelet or by Slurm jobs.

use attribution::devices::{Named, named};
use attribution::pods::{Claim, Claims, KubeletStatus};
use model::canary::Place;

/// Result of a search for claims of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// No claim exists, according to this source.
    No(String),
    By(String),
    /// Unknown, for this reason.
    Unknown(String),
    /// Not checked, for this reason.
    Unasked(String),
}

/// Returns true if the device with this id is the place, contains it, or is a part of it. An id of unknown form counts as
/// a match.
fn is_at(id: &str, place: &Place, minor: Option<u32>) -> bool {
    match named(id) {
        Named::Uuid(uuid) => {
            let same = |other: &str| !other.is_empty() && uuid.eq_ignore_ascii_case(other);
            // Old drivers name a MIG device after its GPU, as in `MIG-GPU-…/1/0`.
            let within = uuid.strip_prefix("MIG-").is_some_and(|rest| {
                rest.split_once('/').is_some_and(|(gpu, _)| gpu.eq_ignore_ascii_case(&place.gpu.uuid))
            });
            same(&place.gpu.uuid)
                || match &place.instance {
                    Some(instance) => same(&instance.mig_uuid),
                    None => within,
                }
        }
        Named::Index(number, _) | Named::Minor(number, _) => number == place.gpu.gpu || Some(number) == minor,
        Named::Unknown => true,
    }
}

/// Returns the claim of a pod on a place, according to the kubelet.
pub fn by_pod(standing: &KubeletStatus, claims: &Claims, place: &Place, minor: Option<u32>) -> Claimed {
    // A reported claim stays valid for a while even if the kubelet stops responding.
    let at = |claim: &&Claim| claim.devices.iter().any(|id| is_at(id, place, minor));
    if let Some(claim) = claims.all.iter().find(at) {
        return Claimed::By(format!("pod {}/{}, container {}", claim.namespace, claim.pod, claim.container));
    }
    match standing {
        KubeletStatus::Answers => Claimed::No("the kubelet reports none".into()),
        KubeletStatus::Absent => Claimed::No("there is no kubelet".into()),
        KubeletStatus::Off => Claimed::Unasked("the kubelet is not queried (owners.kubelet_socket)".into()),
        KubeletStatus::Unasked => Claimed::Unknown("the kubelet was not queried yet".into()),
        KubeletStatus::Silent(why) => Claimed::Unknown(format!("the kubelet does not respond: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::canary::Instance;
    use model::catalog::Gpu;
    use model::clock::Mono;
    use proptest::prelude::*;

    fn place(gpu: u32, mig: Option<&str>) -> Place {
        let instance = mig.map(|uuid| Instance {
            gpu_instance: 1,
            compute_instance: 0,
            profile: "1g.18gb".into(),
            mig_uuid: uuid.into(),
        });
        Place { gpu: Gpu { gpu, uuid: format!("GPU-{gpu}a").into() }, instance }
    }

    #[test]
    fn a_claim_keeps_off_what_it_holds_and_no_more() {
        let (whole, other, slice) = (place(1, None), place(2, None), place(1, Some("MIG-77")));
        for (id, on_whole, on_other, on_slice) in [
            ("GPU-1a", true, false, true),
            ("gpu-1", true, false, true),
            ("MIG-77", false, false, true),
            ("MIG-78", false, false, false),
            ("MIG-GPU-1a/1/0", true, false, false),
            ("strange", true, true, true),
        ] {
            let at = |place| is_at(id, place, None);
            assert_eq!((at(&whole), at(&other), at(&slice)), (on_whole, on_other, on_slice), "{id}");
        }
        assert!(is_at("nvidia5", &whole, Some(5)) && !is_at("nvidia5", &whole, Some(4)));
    }

    #[test]
    fn what_is_not_known_may_be_claimed() {
        let claim = Claim {
            namespace: "ml".into(),
            pod: "train-0".into(),
            container: "main".into(),
            resource: "nvidia.com/gpu".into(),
            devices: vec!["GPU-1a".into()],
            dynamic: None,
        };
        let claims = Claims { listed_at: Some(Mono(1)), all: vec![claim] };
        let silent = KubeletStatus::Silent("late".into());
        let by = Claimed::By("pod ml/train-0, container main".into());
        assert_eq!(by_pod(&silent, &claims, &place(1, None), None), by);
        assert!(matches!(by_pod(&silent, &claims, &place(2, None), None), Claimed::Unknown(_)));
        assert!(matches!(by_pod(&KubeletStatus::Answers, &claims, &place(2, None), None), Claimed::No(_)));
        let none = Claims::default();
        assert!(matches!(by_pod(&KubeletStatus::Absent, &none, &place(1, None), None), Claimed::No(_)));
        assert!(matches!(by_pod(&KubeletStatus::Unasked, &none, &place(1, None), None), Claimed::Unknown(_)));
        assert!(matches!(by_pod(&KubeletStatus::Off, &none, &place(1, None), None), Claimed::Unasked(_)));
    }

    proptest! {
        #[test]
        fn no_id_is_too_odd(id in ".{0,40}|(GPU-|MIG-|gpu-|nvidia)[0-9a-f:/-]{0,20}") {
            is_at(&id, &place(1, Some("MIG-77")), Some(3));
        }
    }
}
