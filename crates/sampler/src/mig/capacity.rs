//! Free capacity of a GPU in MIG mode.
//!
//! A GPU instance uses consecutive memory slices in one of the regions that its profile allows, and as many
//! compute slices as its profile has. A free compute slice is useless if no profile finds memory slices for it.

use super::{InstanceState, answered};
use crate::raw::mig::{ProfileInfo, possible_placements, remaining_capacity};
use crate::visit::{ONE, Visit};
use model::catalog::{self as m, ProfileName};
use model::sample::Missing;

/// Regions in which instances can be created. They do not change while the GPU is in MIG mode.
#[derive(Debug, Default)]
pub(crate) struct Capacity {
    regions: Option<Vec<PlacementRegion>>,
}

impl Capacity {
    /// Reads the capacity by profile, and sums the slices. `instances` has all GPU instances. It is `None` if
    /// those without compute instances are unknown; in that case the number of used slices is unknown too.
    pub fn read(&mut self, v: &mut Visit<'_>, profiles: &[ProfileInfo], instances: Option<&[InstanceState]>) {
        const INFO: &str = "nvmlDeviceGetGpuInstanceProfileInfoV";
        const REMAINING: &str = "nvmlDeviceGetGpuInstanceRemainingCapacity";
        for profile in profiles {
            let name = || (ProfileName(profile.name.as_str().into()),);
            v.add(INFO, &m::gpu_mig_profile_capacity, name(), profile.instances, ONE);
            let (call, free) = ((REMAINING, profile.id), &m::gpu_mig_profile_free);
            if let Some(count) = v.read_privileged(call, &[free.id()], |d| remaining_capacity(d, profile.id))
            {
                v.add(call, free, name(), count, ONE);
            }
        }
        // The largest profile covers the whole GPU.
        let Some(slices) = profiles.iter().map(|profile| profile.slices).max() else { return };
        v.add(INFO, &m::gpu_mig_slices, (), slices, ONE);
        let sums = [m::gpu_mig_slices_used.id(), m::gpu_mig_slices_unplaceable.id()];
        let Some(instances) = instances else {
            if v.wants(&sums) {
                v.gap("nvmlDeviceGetGpuInstances".into(), &sums, Missing::Unsupported);
            }
            return;
        };
        let used: u32 = instances.iter().filter_map(|i| i.slices).sum();
        v.add(INFO, &m::gpu_mig_slices_used, (), used, ONE);
        if let Some(regions) = self.regions(v, profiles) {
            let occupied: Vec<(u32, u32)> = instances.iter().filter_map(|i| i.placement).collect();
            let free = slices.saturating_sub(used);
            let stranded = free - most_placeable(regions, &occupied, free);
            v.add(INFO, &m::gpu_mig_slices_unplaceable, (), stranded, ONE);
        }
    }

    fn regions(&mut self, v: &mut Visit<'_>, profiles: &[ProfileInfo]) -> Option<&[PlacementRegion]> {
        if self.regions.is_none() {
            let feeds = [m::gpu_mig_slices_unplaceable.id()];
            let mut regions = Vec::new();
            for profile in profiles {
                let call = ("nvmlDeviceGetGpuInstancePossiblePlacements_v2", profile.id);
                let found = answered(v, |v| {
                    v.read_privileged(call, &feeds, |d| possible_placements(d, profile.id))
                })??;
                let compute = profile.slices;
                regions.extend(found.iter().map(|(start, size)| PlacementRegion {
                    start: *start,
                    size: *size,
                    compute,
                }));
            }
            self.regions = Some(regions);
        }
        self.regions.as_deref()
    }
}

/// A region of the memory in which an instance can be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlacementRegion {
    /// First memory slice of the region.
    start: u32,
    /// Number of memory slices.
    size: u32,
    /// Number of compute slices.
    compute: u32,
}

/// Upper limit for slices of either kind. NVIDIA's GPUs have eight memory slices and seven compute slices.
const MOST: u32 = 64;

/// Returns how many of the `free` compute slices further instances in these regions can use, if the memory
/// slices in `occupied` (first slice, number of slices) are taken.
fn most_placeable(regions: &[PlacementRegion], occupied: &[(u32, u32)], free: u32) -> u32 {
    let taken = occupied.iter().fold(0, |taken, (start, size)| taken | mask(*start, *size));
    let fits = |place: &&PlacementRegion| {
        let within = place.size > 0 && place.start.saturating_add(place.size) <= MOST;
        within && place.compute <= MOST && mask(place.start, place.size) & taken == 0
    };
    let regions: Vec<&PlacementRegion> = regions.iter().filter(fits).collect();
    // Bit n of `sums[from]` is set if instances that begin at memory slice `from` or later can use n compute
    // slices.
    let mut sums = [1u128; MOST as usize + 1];
    for from in (0..MOST).rev() {
        let here = regions.iter().filter(|place| place.start == from);
        sums[from as usize] = here.fold(sums[from as usize + 1], |sum, place| {
            let after = sums[(from + place.size) as usize];
            sum | (after & up_to(MOST - place.compute)) << place.compute
        });
    }
    // Bit 0 means no instance and is always set.
    127 - (sums[0] & up_to(free.min(MOST))).leading_zeros()
}

/// Returns the memory slices from `start` on as bits.
fn mask(start: u32, size: u32) -> u128 {
    match (start < MOST, size) {
        (true, 1..) => up_to(size.min(MOST - start) - 1) << start,
        _ => 0,
    }
}

/// Returns a word with bits 0 to `last` set.
fn up_to(last: u32) -> u128 {
    (1u128 << (last + 1)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn regions(profiles: &[(u32, u32, &[u32])]) -> Vec<PlacementRegion> {
        let all = profiles.iter().flat_map(|(size, compute, starts)| {
            starts.iter().map(|start| PlacementRegion { start: *start, size: *size, compute: *compute })
        });
        all.collect()
    }

    /// Places on an A100, H100 or H200.
    fn large() -> Vec<PlacementRegion> {
        regions(&[
            (1, 1, &[0, 1, 2, 3, 4, 5, 6]),
            (2, 1, &[0, 2, 4, 6]),
            (2, 2, &[0, 2, 4]),
            (4, 3, &[0, 4]),
            (4, 4, &[0]),
            (8, 7, &[0]),
        ])
    }

    /// Places on an A30.
    fn small() -> Vec<PlacementRegion> {
        regions(&[(1, 1, &[0, 1, 2, 3]), (2, 2, &[0, 2]), (4, 4, &[0])])
    }

    #[test]
    fn an_empty_gpu_can_be_filled() {
        assert_eq!(most_placeable(&large(), &[], 7), 7);
        assert_eq!(most_placeable(&small(), &[], 4), 4);
    }

    #[test]
    fn slices_without_memory_are_stranded() {
        // Two instances of three: the seventh compute slice has no memory left.
        assert_eq!(most_placeable(&large(), &[(0, 4), (4, 4)], 1), 0);
        // Four instances of one compute slice and twice its memory.
        assert_eq!(most_placeable(&large(), &[(0, 2), (2, 2), (4, 2), (6, 2)], 3), 0);
        // One of three at the end leaves room for one of four; at the beginning it does not.
        assert_eq!(most_placeable(&large(), &[(4, 4)], 4), 4);
        assert_eq!(most_placeable(&large(), &[(0, 4)], 4), 3);
        // One in the middle of an A30 leaves three that can be had one by one.
        assert_eq!(most_placeable(&small(), &[(1, 1)], 3), 3);
    }

    #[test]
    fn a_profile_that_differs_in_engines_alone_changes_nothing() {
        let mut more = large();
        more.extend(regions(&[(1, 1, &[0, 1, 2, 3, 4, 5, 6])]));
        for occupied in [&[][..], &[(0, 4)], &[(2, 2), (6, 1)]] {
            assert_eq!(most_placeable(&more, occupied, 4), most_placeable(&large(), occupied, 4));
        }
    }

    #[test]
    fn numbers_no_gpu_has_are_no_trouble() {
        let odd = [
            PlacementRegion { start: u32::MAX, size: 1, compute: 1 },
            PlacementRegion { start: 0, size: 0, compute: 9 },
            PlacementRegion { start: 63, size: 1, compute: 64 },
            PlacementRegion { start: 1, size: 1, compute: u32::MAX },
        ];
        assert_eq!(most_placeable(&odd, &[(u32::MAX, u32::MAX), (70, 3), (62, 1)], u32::MAX), 64);
        assert_eq!(most_placeable(&odd, &[(0, u32::MAX)], 7), 0);
    }

    /// Tries every set of regions.
    fn brute(regions: &[PlacementRegion], taken: u64, free: u32) -> u32 {
        let Some((first, rest)) = regions.split_first() else { return 0 };
        let without = brute(rest, taken, free);
        let own = (0..first.size).fold(0u64, |bits, n| bits | 1 << (first.start + n));
        if own & taken != 0 || first.compute > free {
            return without;
        }
        without.max(first.compute + brute(rest, taken | own, free - first.compute))
    }

    proptest! {
        #[test]
        fn no_other_set_of_regions_takes_more(
            regions in prop::collection::vec((0u32..8, 1u32..5, 0u32..5), 0..12),
            occupied in prop::collection::vec((0u32..8, 0u32..4), 0..3),
            free in 0u32..9,
        ) {
            let place = |(start, size, compute): &(u32, u32, u32)| {
                PlacementRegion { start: *start, size: *size, compute: *compute }
            };
            let regions: Vec<PlacementRegion> = regions.iter().map(place).collect();
            let taken = occupied.iter().fold(0u64, |taken, (start, size)| {
                (0..*size).fold(taken, |taken, n| taken | 1 << (start + n))
            });
            prop_assert_eq!(most_placeable(&regions, &occupied, free), brute(&regions, taken, free));
        }
    }
}
