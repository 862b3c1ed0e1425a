//! What still fits on a GPU in MIG mode.

use super::packing::{Place, most_placeable};
use super::privilege::Told;
use super::{Instance, answered};
use crate::raw::mig::{ProfileInfo, possible_placements, remaining_capacity};
use crate::visit::{Scale, Visit};
use model::catalog::{self as m, ProfileName};
use model::sample::Missing;

/// Where instances could be made. Does not change while the GPU is in MIG mode.
#[derive(Debug, Default)]
pub struct Capacity {
    places: Option<Vec<Place>>,
}

impl Capacity {
    /// Reads capacity by profile, and reckons up slices. `instances` are all GPU instances, `None` if those
    /// without compute instances are not known: then nobody knows what is used.
    pub fn read(
        &mut self,
        v: &mut Visit<'_>,
        told: &mut Told,
        profiles: &[ProfileInfo],
        instances: Option<&[Instance]>,
    ) {
        const INFO: &str = "nvmlDeviceGetGpuInstanceProfileInfoV";
        const REMAINING: &str = "nvmlDeviceGetGpuInstanceRemainingCapacity";
        for profile in profiles {
            let name = || (ProfileName(profile.name.as_str().into()),);
            v.put(INFO, &m::gpu_mig_profile_capacity, name(), profile.instances, Scale::ONE);
            let (call, free) = ((REMAINING, profile.id), &m::gpu_mig_profile_free);
            if let Some(count) = told.read(v, call, &[free.id()], |d| remaining_capacity(d, profile.id)) {
                v.put(call, free, name(), count, Scale::ONE);
            }
        }
        // The largest profile is the whole GPU.
        let Some(slices) = profiles.iter().map(|profile| profile.slices).max() else { return };
        v.put(INFO, &m::gpu_mig_slices, (), slices, Scale::ONE);
        let sums = [m::gpu_mig_slices_used.id(), m::gpu_mig_slices_unplaceable.id()];
        let Some(instances) = instances else {
            if v.wants(&sums) {
                v.gap("nvmlDeviceGetGpuInstances".into(), &sums, Missing::Unsupported);
            }
            return;
        };
        let used: u32 = instances.iter().filter_map(|i| i.slices).sum();
        v.put(INFO, &m::gpu_mig_slices_used, (), used, Scale::ONE);
        if let Some(places) = self.places(v, told, profiles) {
            let occupied: Vec<(u32, u32)> =
                instances.iter().filter_map(|i| i.placement.map(|p| (p.start, p.size))).collect();
            let free = slices.saturating_sub(used);
            let stranded = free - most_placeable(places, &occupied, free);
            v.put(INFO, &m::gpu_mig_slices_unplaceable, (), stranded, Scale::ONE);
        }
    }

    fn places(&mut self, v: &mut Visit<'_>, told: &mut Told, profiles: &[ProfileInfo]) -> Option<&[Place]> {
        if self.places.is_none() {
            let feeds = [m::gpu_mig_slices_unplaceable.id()];
            let mut places = Vec::new();
            for profile in profiles {
                let call = ("nvmlDeviceGetGpuInstancePossiblePlacements_v2", profile.id);
                let found =
                    answered(v, |v| told.read(v, call, &feeds, |d| possible_placements(d, profile.id)))??;
                places.extend(found.iter().map(|p| Place {
                    start: p.start,
                    size: p.size,
                    compute: profile.slices,
                }));
            }
            self.places = Some(places);
        }
        self.places.as_deref()
    }
}
