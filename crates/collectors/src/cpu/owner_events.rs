//! Event counts of owners, by control group.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::backend::{CounterBackend, CounterGroup, CounterScope, Refusal};
use super::counter_set::{self, CounterSet, open_counters};
use host::Host;
use model::catalog::PerfEvent;
use model::cpus::CpuSet;

/// Directory of every owner's control group, by owner ID. `None` means that the owner has ended or has no group of its
/// own; its sums stay.
pub(crate) type WantedOwners = BTreeMap<Arc<str>, Option<PathBuf>>;

/// Event counts of all owners.
#[derive(Debug)]
pub(crate) struct OwnerEvents<K: CounterBackend> {
    pub(super) owners: BTreeMap<Arc<str>, OfOwner<K::Group>>,
}

/// Event counts of one owner.
#[derive(Debug)]
pub(super) struct OfOwner<G> {
    folder: PathBuf,
    events: Vec<PerfEvent>,
    pub(super) counters: CounterSet<G>,
    sums: BTreeMap<PerfEvent, u128>,
}

/// Owners that a step could not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Uncounted {
    /// Owners without room for their counters.
    pub(crate) without_room: Vec<Arc<str>>,
    /// Owners whose counters were refused.
    pub(crate) refused: Vec<(Arc<str>, Refusal)>,
}

impl<K: CounterBackend> OwnerEvents<K> {
    /// Adds the counts since the last step. Drops owners that are no longer published, closes the counters of owners
    /// that have ended, and opens the others while there is room. An open counter keeps an ended control group alive in
    /// the kernel.
    pub(crate) fn step(
        &mut self,
        kernel: &K,
        cpus: &CpuSet,
        events: &[PerfEvent],
        wanted: &WantedOwners,
        room: usize,
    ) -> Uncounted {
        let mut left = Uncounted::default();
        self.owners.retain(|id, _| wanted.contains_key(id));
        for owner in self.owners.values_mut() {
            // Time advances only while the group runs on the CPU.
            counter_set::read(&mut owner.counters, false, |_, events, counted| {
                for (event, value) in events.iter().zip(&counted.values) {
                    *owner.sums.entry(*event).or_default() += u128::from(*value);
                }
            });
            owner.counters.retain(|cpu, _| cpus.contains(*cpu));
        }
        let each = events.len() * cpus.len();
        for (id, folder) in wanted {
            let others = self.owners.iter().filter(|(of, _)| *of != id);
            let open: usize = others.map(|(_, other)| open_counters(&other.counters)).sum();
            let folder = match folder {
                Some(folder) if open + each <= room => folder,
                ended_or_without_room => {
                    // The sums stay.
                    if let Some(owner) = self.owners.get_mut(id) {
                        owner.counters.clear();
                    }
                    left.without_room.extend(ended_or_without_room.as_ref().map(|_| Arc::clone(id)));
                    continue;
                }
            };
            let owner = self.owners.entry(Arc::clone(id)).or_insert_with(|| OfOwner {
                folder: PathBuf::new(),
                events: Vec::new(),
                counters: CounterSet::new(),
                sums: BTreeMap::new(),
            });
            if let Err(refusal) = owner.open(kernel, cpus, events, folder) {
                owner.counters.clear();
                left.refused.push((Arc::clone(id), refusal));
            }
        }
        left
    }

    /// Returns the sums by owner and event.
    pub(crate) fn sums(&self) -> impl Iterator<Item = (&Arc<str>, PerfEvent, u128)> {
        self.owners
            .iter()
            .flat_map(|(id, owner)| owner.sums.iter().map(move |(event, sum)| (id, *event, *sum)))
    }
}

impl<G: CounterGroup> OfOwner<G> {
    fn open<K: CounterBackend<Group = G>>(
        &mut self,
        kernel: &K,
        cpus: &CpuSet,
        events: &[PerfEvent],
        folder: &Path,
    ) -> Result<(), Refusal> {
        if self.folder != *folder || self.events != *events {
            self.counters.clear();
            (self.folder, self.events) = (folder.to_owned(), events.to_owned());
        }
        let missing: Vec<u32> = cpus.iter().filter(|cpu| !self.counters.contains_key(cpu)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let group = File::open(folder)?;
        for cpu in missing {
            let place = CounterScope { cpu, cgroup: Some(&group) };
            for (event, outcome) in counter_set::open(&mut self.counters, kernel, place, events) {
                outcome?;
                self.sums.entry(event).or_default();
            }
        }
        Ok(())
    }
}

/// Returns the directory of a control group: in the version 1 hierarchy with perf_event, otherwise in the version 2
/// hierarchy.
pub(crate) fn folder(host: &Host, cgroup: &str) -> Option<PathBuf> {
    let below = Path::new(cgroup.trim_start_matches('/'));
    let plain = below.components().all(|part| matches!(part, Component::Normal(_)));
    if below.as_os_str().is_empty() || !plain {
        return None;
    }
    let roots = [
        ("/sys/fs/cgroup/perf_event", "cgroup.procs"),
        ("/sys/fs/cgroup/unified", "cgroup.controllers"),
        ("/sys/fs/cgroup", "cgroup.controllers"),
    ];
    let mut roots = roots.map(|(root, file)| (host.path(root), file)).into_iter();
    let (root, _) = roots.find(|(root, file)| root.join(file).exists())?;
    Some(root.join(below)).filter(|folder| folder.is_dir())
}
