//! Events of owners, each counted for its control group.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::counters::Counters;
use super::kernel::{Group, Kernel, Place, Refusal};
use host::Host;
use model::catalog::PerfEvent;
use model::cpus::CpuSet;

/// What is to be counted of owners, by their identity.
pub type Wanted = BTreeMap<Arc<str>, Folder>;

/// The folder of an owner's control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Folder {
    /// It has processes at work there.
    Alive(PathBuf),
    /// It has ended, or has none of its own: what was counted stays.
    Ended,
}

/// Events of owners.
#[derive(Debug)]
pub struct Owned<K: Kernel> {
    owners: BTreeMap<Arc<str>, OfOwner<K::Group>>,
}

#[derive(Debug)]
struct OfOwner<G> {
    folder: PathBuf,
    events: Vec<PerfEvent>,
    counters: Counters<G>,
    sums: BTreeMap<PerfEvent, u128>,
}

/// What became of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Owners that are not counted, because there is no room for their counters.
    pub without_room: Vec<Arc<str>>,
    /// Owners that cannot be counted, and why.
    pub refused: Vec<(Arc<str>, Refusal)>,
}

impl<K: Kernel> Default for Owned<K> {
    fn default() -> Self {
        Owned { owners: BTreeMap::new() }
    }
}

impl<K: Kernel> Owned<K> {
    /// Adds up what was counted, forgets owners that are not wanted any more, closes those that have ended, and opens
    /// the others as far as there is room: an open counter keeps the kernel's remains of an ended group alive.
    pub fn step(
        &mut self,
        kernel: &K,
        cpus: &CpuSet,
        events: &[PerfEvent],
        wanted: &Wanted,
        room: usize,
    ) -> Left {
        let mut left = Left::default();
        self.owners.retain(|id, _| wanted.contains_key(id));
        for owner in self.owners.values_mut() {
            owner.read();
            owner.counters.keep(cpus);
        }
        let each = events.len() * cpus.len();
        for (id, folder) in wanted {
            let Folder::Alive(folder) = folder else {
                if let Some(owner) = self.owners.get_mut(id) {
                    owner.counters.close();
                }
                continue;
            };
            let others = self.owners.iter().filter(|(of, _)| *of != id);
            let open: usize = others.map(|(_, other)| other.counters.len()).sum();
            if open + each > room {
                // What was counted while there was room stays, as with one that has ended.
                if let Some(owner) = self.owners.get_mut(id) {
                    owner.counters.close();
                }
                left.without_room.push(Arc::clone(id));
                continue;
            }
            let owner = self.owners.entry(Arc::clone(id)).or_default();
            if let Err(refusal) = owner.open(kernel, cpus, events, folder) {
                owner.counters.close();
                left.refused.push((Arc::clone(id), refusal));
            }
        }
        left
    }

    /// What was counted, by owner and event.
    pub fn sums(&self) -> impl Iterator<Item = (&Arc<str>, PerfEvent, u128)> {
        self.owners
            .iter()
            .flat_map(|(id, owner)| owner.sums.iter().map(move |(event, sum)| (id, *event, *sum)))
    }

    /// Open counters.
    pub fn open_counters(&self) -> usize {
        self.owners.values().map(|owner| owner.counters.len()).sum()
    }
}

impl<G> Default for OfOwner<G> {
    fn default() -> Self {
        OfOwner {
            folder: PathBuf::new(),
            events: Vec::new(),
            counters: Counters::default(),
            sums: BTreeMap::new(),
        }
    }
}

impl<G: Group> OfOwner<G> {
    fn read(&mut self) {
        // Time goes on only while the group runs on the CPU.
        self.counters.read(false, |_, events, counted| {
            for (event, value) in events.iter().zip(&counted.values) {
                *self.sums.entry(*event).or_default() += u128::from(*value);
            }
        });
    }

    fn open<K: Kernel<Group = G>>(
        &mut self,
        kernel: &K,
        cpus: &CpuSet,
        events: &[PerfEvent],
        folder: &Path,
    ) -> Result<(), Refusal> {
        if self.folder != *folder || self.events != *events {
            self.counters.close();
            (self.folder, self.events) = (folder.to_owned(), events.to_owned());
        }
        let missing: Vec<u32> = cpus.iter().filter(|cpu| !self.counters.has(*cpu)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let group = File::open(folder)?;
        for cpu in missing {
            let place = Place { cpu, cgroup: Some(&group) };
            for (event, outcome) in self.counters.open(kernel, place, events) {
                outcome?;
                self.sums.entry(event).or_default();
            }
        }
        Ok(())
    }
}

/// Where the control groups are that events are counted for: in the hierarchy of version 1 that has perf_event, else
/// in that of version 2.
pub fn folder(host: &Host, cgroup: &str) -> Option<PathBuf> {
    let below = Path::new(cgroup.trim_start_matches('/'));
    let plain = below.components().all(|part| matches!(part, Component::Normal(_)));
    if below.as_os_str().is_empty() || !plain {
        return None;
    }
    let first = host.path("/sys/fs/cgroup/perf_event");
    let hybrid = host.path("/sys/fs/cgroup/unified");
    let whole = host.path("/sys/fs/cgroup");
    let root = if first.join("cgroup.procs").exists() {
        first
    } else if hybrid.join("cgroup.controllers").exists() {
        hybrid
    } else if whole.join("cgroup.controllers").exists() {
        whole
    } else {
        return None;
    };
    Some(root.join(below)).filter(|folder| folder.is_dir())
}
