//! What still fits: pure arithmetic over memory slices and compute slices.
//!
//! A GPU instance takes memory slices in a row, at one of the places its profile allows, and as many compute
//! slices as its profile has. Free compute slices are of no use where no profile finds its memory slices.

/// A place at which an instance could be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The first memory slice.
    pub start: u32,
    /// Memory slices.
    pub size: u32,
    /// Compute slices.
    pub compute: u32,
}

/// Most slices of either kind that are reckoned with: NVIDIA's GPUs have eight of the one, seven of the other.
const MOST: u32 = 64;

/// The most compute slices, of `free` ones, that further instances at these places could take while the
/// memory slices of `occupied` (first, how many) are taken.
pub fn most_placeable(places: &[Place], occupied: &[(u32, u32)], free: u32) -> u32 {
    let taken = occupied.iter().fold(0, |taken, (start, size)| taken | mask(*start, *size));
    let fits = |place: &&Place| {
        let within = place.size > 0 && place.start.saturating_add(place.size) <= MOST;
        within && place.compute <= MOST && mask(place.start, place.size) & taken == 0
    };
    let places: Vec<&Place> = places.iter().filter(fits).collect();
    // Bit n of `sums[from]`: instances that begin at memory slice `from` or above can take n compute slices.
    let mut sums = [1u128; MOST as usize + 1];
    for from in (0..MOST).rev() {
        let here = places.iter().filter(|place| place.start == from);
        sums[from as usize] = here.fold(sums[from as usize + 1], |sum, place| {
            let after = sums[(from + place.size) as usize];
            sum | (after & up_to(MOST - place.compute)) << place.compute
        });
    }
    // Bit 0, for no instance at all, is always set.
    127 - (sums[0] & up_to(free.min(MOST))).leading_zeros()
}

/// The memory slices from `start` on, as bits.
fn mask(start: u32, size: u32) -> u128 {
    match (start < MOST, size) {
        (true, 1..) => up_to(size.min(MOST - start) - 1) << start,
        _ => 0,
    }
}

/// Bits 0 to `last`.
fn up_to(last: u32) -> u128 {
    (1u128 << (last + 1)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn places(profiles: &[(u32, u32, &[u32])]) -> Vec<Place> {
        let all = profiles.iter().flat_map(|(size, compute, starts)| {
            starts.iter().map(|start| Place { start: *start, size: *size, compute: *compute })
        });
        all.collect()
    }

    /// Places on an A100, H100 or H200.
    fn large() -> Vec<Place> {
        places(&[
            (1, 1, &[0, 1, 2, 3, 4, 5, 6]),
            (2, 1, &[0, 2, 4, 6]),
            (2, 2, &[0, 2, 4]),
            (4, 3, &[0, 4]),
            (4, 4, &[0]),
            (8, 7, &[0]),
        ])
    }

    /// Places on an A30.
    fn small() -> Vec<Place> {
        places(&[(1, 1, &[0, 1, 2, 3]), (2, 2, &[0, 2]), (4, 4, &[0])])
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
        more.extend(places(&[(1, 1, &[0, 1, 2, 3, 4, 5, 6])]));
        for occupied in [&[][..], &[(0, 4)], &[(2, 2), (6, 1)]] {
            assert_eq!(most_placeable(&more, occupied, 4), most_placeable(&large(), occupied, 4));
        }
    }

    #[test]
    fn numbers_no_gpu_has_are_no_trouble() {
        let odd = [
            Place { start: u32::MAX, size: 1, compute: 1 },
            Place { start: 0, size: 0, compute: 9 },
            Place { start: 63, size: 1, compute: 64 },
            Place { start: 1, size: 1, compute: u32::MAX },
        ];
        assert_eq!(most_placeable(&odd, &[(u32::MAX, u32::MAX), (70, 3), (62, 1)], u32::MAX), 64);
        assert_eq!(most_placeable(&odd, &[(0, u32::MAX)], 7), 0);
    }

    /// Tries every set of places.
    fn brute(places: &[Place], taken: u64, free: u32) -> u32 {
        let Some((first, rest)) = places.split_first() else { return 0 };
        let without = brute(rest, taken, free);
        let own = (0..first.size).fold(0u64, |bits, n| bits | 1 << (first.start + n));
        if own & taken != 0 || first.compute > free {
            return without;
        }
        without.max(first.compute + brute(rest, taken | own, free - first.compute))
    }

    proptest! {
        #[test]
        fn no_other_set_of_places_takes_more(
            places in prop::collection::vec((0u32..8, 1u32..5, 0u32..5), 0..12),
            occupied in prop::collection::vec((0u32..8, 0u32..4), 0..3),
            free in 0u32..9,
        ) {
            let place = |(start, size, compute): &(u32, u32, u32)| {
                Place { start: *start, size: *size, compute: *compute }
            };
            let places: Vec<Place> = places.iter().map(place).collect();
            let taken = occupied.iter().fold(0u64, |taken, (start, size)| {
                (0..*size).fold(taken, |taken, n| taken | 1 << (start + n))
            });
            prop_assert_eq!(most_placeable(&places, &occupied, free), brute(&places, taken, free));
        }
    }
}
