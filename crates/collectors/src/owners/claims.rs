//! Resolves devices of dynamic claims to GPUs or MIG instances of this node. The driver's name of the device is checked
//! against the claim's CDI specification. A device is not resolved if the two disagree.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::views::GpuWork;
use attribution::cdi::{self, CdiPart, CdiWitness};
use attribution::devices::{DynamicDevice, dynamic_device};
use attribution::pods::{Claims, DynamicClaim};
use host::Host;
use host::reader::{DeadlineReader, MAX_ABANDONED};
use model::catalog::schema::KnownLabel;
use model::catalog::{AllocatedGpu, ClaimUnresolved};
use model::clock::Mono;

/// Driver of NVIDIA's GPUs for dynamic resource allocation.
pub(crate) const DRIVER: &str = "gpu.nvidia.com";
/// Maximum number of specifications read at a time.
const MOST_READ: usize = 64;
/// Time between two attempts to read a specification without a result.
const AGAIN: Duration = Duration::from_secs(60);

/// Content of a specification and the time of its reading.
#[derive(Clone, Copy)]
struct SpecificationRead {
    witness: Option<CdiWitness>,
    at: Mono,
}

/// Dynamic claims and their specifications.
pub(super) struct DynamicClaims {
    host: Arc<Host>,
    reader: DeadlineReader,
    /// Specifications by claim UID and device.
    specified: HashMap<(Arc<str>, Arc<str>), SpecificationRead>,
    /// Unresolved claims that were already logged.
    reported: BTreeSet<(ClaimUnresolved, DynamicClaim)>,
}

impl DynamicClaims {
    pub(super) fn new(host: &Arc<Host>, reader: DeadlineReader) -> DynamicClaims {
        let (specified, reported) = (HashMap::new(), BTreeSet::new());
        DynamicClaims { host: Arc::clone(host), reader, specified, reported }
    }

    /// Reads the specifications of new claims.
    pub(super) fn read(&mut self, claims: &Claims, now: Mono) {
        let dynamic = claims.all.iter().filter_map(|claim| claim.dynamic.as_ref());
        let ours = dynamic.filter(|claim| &*claim.driver == DRIVER && !claim.uid.is_empty());
        let keys: BTreeSet<_> =
            ours.map(|claim| (Arc::clone(&claim.uid), Arc::clone(&claim.device))).collect();
        self.specified.retain(|key, _| keys.contains(key));
        let silent = |known: &SpecificationRead| known.witness.is_none() && now.since(known.at) >= AGAIN;
        let due = |key: &(Arc<str>, Arc<str>)| self.specified.get(key).is_none_or(silent);
        let due: Vec<_> = keys.into_iter().filter(due).take(MOST_READ).collect();
        for key in due {
            let (host, (uid, device)) = (Arc::clone(&self.host), key.clone());
            let read = self.reader.read(MAX_ABANDONED, move || cdi::look(&host, &uid, &device));
            self.specified.insert(key, SpecificationRead { witness: read.ok().flatten(), at: now });
        }
    }

    /// Resolves a device to a GPU or MIG instance.
    pub(super) fn resolve(
        &self,
        claim: &DynamicClaim,
        work: &GpuWork,
    ) -> Result<AllocatedGpu, ClaimUnresolved> {
        if &*claim.driver != DRIVER {
            return Err(ClaimUnresolved::OtherDriver);
        }
        let key = (Arc::clone(&claim.uid), Arc::clone(&claim.device));
        let witness = self.specified.get(&key).and_then(|known| known.witness);
        agreed(dynamic_device(&claim.device), witness, work)
    }

    /// Returns the number of unresolved devices by reason. New ones are logged.
    pub(super) fn unresolved(&mut self, now: BTreeSet<(ClaimUnresolved, DynamicClaim)>) -> Vec<f64> {
        let mut counts = vec![0.0; ClaimUnresolved::ALL.len()];
        for (reason, claim) in &now {
            counts[*reason as usize] += 1.0;
            if !self.reported.contains(&(*reason, claim.clone())) {
                let DynamicClaim { claim, namespace, driver, device, .. } = claim;
                tracing::info!(%namespace, %claim, %driver, %device, reason = reason.known(), "failed to resolve a dynamic claim to a GPU");
            }
        }
        self.reported = now;
        counts
    }
}

/// Combines the name and the specification of a device. The specification decides if the name has an unknown form, or
/// if the driver does not report the placement.
fn agreed(
    device: Option<DynamicDevice>,
    witness: Option<CdiWitness>,
    work: &GpuWork,
) -> Result<AllocatedGpu, ClaimUnresolved> {
    use ClaimUnresolved::{Disagreement, Name, NoDevice, NoPlacement};
    let by_name = device.map_or(Err(Name), |device| work.dynamic(device));
    let Some(witness) = witness else { return by_name };
    let gpu = work.of_minor(witness.minor);
    match (by_name, gpu) {
        (Ok(at), Some(gpu)) => {
            let same = at.uuid == gpu.uuid
                && match witness.part {
                    CdiPart::Whole => at.gpu_instance.is_empty(),
                    CdiPart::Instance(id) => *at.gpu_instance == *id.to_string(),
                    CdiPart::Unknown => !at.gpu_instance.is_empty(),
                };
            if same { Ok(at) } else { Err(Disagreement) }
        }
        (Ok(_), None) => Err(Disagreement),
        (Err(why @ (Name | NoPlacement)), Some(gpu)) => {
            let named = match device {
                Some(DynamicDevice::Mig { minor, .. }) => Some(minor),
                _ => None,
            };
            match witness.part {
                _ if named.is_some_and(|minor| minor != witness.minor) => Err(Disagreement),
                CdiPart::Whole if named.is_some() => Err(Disagreement),
                CdiPart::Whole => Ok(AllocatedGpu::new(gpu, None)),
                CdiPart::Instance(id) if work.instances.contains_key(&(Arc::clone(&gpu.uuid), id)) => {
                    Ok(AllocatedGpu::new(gpu, Some(id)))
                }
                CdiPart::Instance(_) => Err(NoDevice),
                CdiPart::Unknown => Err(why),
            }
        }
        (Err(why), _) => Err(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::MigPlace;
    use attribution::pods::Claim;
    use model::catalog::Gpu;

    #[test]
    fn a_specification_that_hangs_is_no_witness_and_is_read_again_later() {
        let root = tempfile::tempdir().unwrap();
        let host = Arc::new(Host::new(root.path()));
        let folder = root.path().join("run/cdi");
        std::fs::create_dir_all(&folder).unwrap();
        // Without a writer: opening it waits.
        let file = folder.join("k8s.gpu.nvidia.com-claim_77-ab.yaml");
        nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let reader = DeadlineReader::new("cdi-reader", Duration::from_millis(200), Arc::default());
        let mut dynamic = DynamicClaims::new(&host, reader);
        let of = DynamicClaim {
            driver: DRIVER.into(),
            device: "gpu-1".into(),
            uid: "77-ab".into(),
            ..DynamicClaim::default()
        };
        let claim = Claim { dynamic: Some(of.clone()), ..Claim::default() };
        let claims = Claims { listed_at: Some(Mono(0)), all: vec![claim] };
        let work =
            GpuWork { gpus: vec![(Gpu { gpu: 0, uuid: "GPU-a".into() }, Some(1))], ..GpuWork::default() };
        let after = |seconds: u64| Mono(seconds * 1_000_000_000);
        dynamic.read(&claims, after(0));
        dynamic.read(&claims, after(59));
        assert_eq!(dynamic.reader.abandoned(), 1, "not read at each look");
        assert_eq!(dynamic.resolve(&of, &work).map(|at| at.gpu), Ok(0), "by its name");
        std::fs::remove_file(&file).unwrap();
        let text = "devices: [{name: 77-ab-gpu-1, containerEdits: {deviceNodes: [{path: /dev/nvidia2}]}}]";
        std::fs::write(&file, text).unwrap();
        dynamic.reader = DeadlineReader::new("cdi-reader", Duration::from_secs(60), Arc::default());
        dynamic.read(&claims, after(60));
        assert_eq!(dynamic.resolve(&of, &work), Err(ClaimUnresolved::Disagreement));
        dynamic.read(&Claims::default(), after(61));
        assert!(dynamic.specified.is_empty(), "the claim has ended");
    }

    #[test]
    fn two_witnesses_that_disagree_resolve_nothing() {
        use ClaimUnresolved::{Disagreement, Name, NoDevice, NoPlacement, Passthrough};
        let gpu = |gpu: u32, uuid: &str| Gpu { gpu, uuid: uuid.into() };
        let place = |profile_id, start| MigPlace { profile_id, start, ..MigPlace::default() };
        let work = GpuWork {
            gpus: vec![(gpu(0, "GPU-a"), Some(1)), (gpu(1, "GPU-b"), Some(0)), (gpu(2, "GPU-c"), Some(2))],
            instances: [
                (("GPU-b".into(), 7), place(Some(19), Some(0))),
                (("GPU-b".into(), 8), place(Some(19), Some(6))),
                (("GPU-c".into(), 3), place(None, None)),
            ]
            .into(),
            ..GpuWork::default()
        };
        let whole = |minor| Some(CdiWitness { minor, part: CdiPart::Whole });
        let part = |minor, id| Some(CdiWitness { minor, part: CdiPart::Instance(id) });
        let some = |minor| Some(CdiWitness { minor, part: CdiPart::Unknown });
        let (static_mig, unplaced) = ("gpu-0-mig-1g18gb-19-6", "gpu-2-mig-1g18gb-19-6");
        for (name, witness, is) in [
            ("gpu-1", None, Ok("0/")),
            ("gpu-1", whole(1), Ok("0/")),
            ("gpu-1", whole(0), Err(Disagreement)),
            ("gpu-1", whole(9), Err(Disagreement)),
            ("gpu-1", some(1), Err(Disagreement)),
            ("gpu-9", whole(0), Err(NoDevice)),
            (static_mig, None, Ok("1/8")),
            (static_mig, part(0, 8), Ok("1/8")),
            (static_mig, some(0), Ok("1/8")),
            (static_mig, part(0, 7), Err(Disagreement)),
            (static_mig, whole(0), Err(Disagreement)),
            (unplaced, None, Err(NoPlacement)),
            (unplaced, part(2, 3), Ok("2/3")),
            (unplaced, part(2, 4), Err(NoDevice)),
            (unplaced, part(0, 7), Err(Disagreement)),
            (unplaced, whole(2), Err(Disagreement)),
            (unplaced, some(2), Err(NoPlacement)),
            ("strange", None, Err(Name)),
            ("strange", whole(0), Ok("1/")),
            ("strange", part(0, 7), Ok("1/7")),
            ("strange", some(0), Err(Name)),
            ("strange", whole(9), Err(Name)),
            ("gpu-vfio-0", whole(0), Err(Passthrough)),
        ] {
            let found = agreed(dynamic_device(name), witness, &work);
            let found = found.map(|at| format!("{}/{}", at.gpu, at.gpu_instance));
            assert_eq!(found, is.map(str::to_owned), "{name} {witness:?}");
        }
    }
}
