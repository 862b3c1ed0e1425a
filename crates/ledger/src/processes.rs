//! Who is on a GPU: what its two tiers list, united.

use std::collections::BTreeSet;

use super::Ledger;
use model::catalog::{Gpu, Tier};
use model::clock::Mono;
use model::owners::GpuProcess;
use model::sample::{Part, Source};

/// The processes that compute, listed once a second, and the others, listed every slow visit. In MIG mode the
/// slow visit lists those that compute once more, instance by instance: that counts only where the GPU's own list
/// is not told. `None`: neither list is known.
pub fn unite(normal: Option<&[GpuProcess]>, slow: Option<&[GpuProcess]>) -> Option<Vec<GpuProcess>> {
    let mut all: BTreeSet<GpuProcess> = normal?.iter().copied().collect();
    all.extend(slow.unwrap_or_default().iter().filter(|one| one.instance.is_none()));
    Some(once_each(all))
}

/// Each process once an instance, with the most memory that is said of it.
fn once_each(all: BTreeSet<GpuProcess>) -> Vec<GpuProcess> {
    let mut list: Vec<GpuProcess> = Vec::with_capacity(all.len());
    for one in all {
        match list.last_mut() {
            Some(last) if (last.pid, last.instance) == (one.pid, one.instance) => *last = one,
            _ => list.push(one),
        }
    }
    list
}

impl Ledger {
    /// Every process on a GPU, as far as it is known now.
    pub(super) fn processes_of(&self, gpu: &Gpu, now: Mono) -> Option<Vec<GpuProcess>> {
        let list = |tier| {
            let part = Part { collector: Source::Nvml, gpu: Some(gpu.clone()), tier };
            let held = self.parts.get(&part).filter(|held| !held.expired(now))?;
            held.processes.as_deref()
        };
        let (normal, slow) = (list(Tier::Normal), list(Tier::Slow));
        unite(normal, slow).or_else(|| Some(once_each(slow?.iter().copied().collect())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(pid: u32, instance: Option<(u32, u32)>, memory: Option<u64>) -> GpuProcess {
        GpuProcess { pid, instance, memory }
    }

    #[test]
    fn both_lists_are_united_and_nobody_is_counted_twice() {
        let normal = [on(1, None, Some(5)), on(2, None, None)];
        let slow = [on(2, None, Some(7)), on(3, None, Some(1))];
        let all = unite(Some(&normal), Some(&slow)).unwrap();
        assert_eq!(all, [on(1, None, Some(5)), on(2, None, Some(7)), on(3, None, Some(1))]);
        assert_eq!(unite(Some(&[]), None), Some(vec![]));
        assert_eq!(unite(None, Some(&slow)), None);
    }

    #[test]
    fn an_instances_old_list_does_not_bring_back_who_has_gone() {
        let slow = [on(1, Some((1, 0)), Some(5))];
        assert_eq!(unite(Some(&[]), Some(&slow)), Some(vec![]));
    }
}
