//! Processes on GPUs, from their first listing to their last, and their owners.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use model::clock::Mono;
use model::owners::{Attribution, Owner};

/// Time after which a process without an owner belongs to `unknown`, so that no series appears before its owner is
/// found.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Pause in the listings after which a process with the same id is another process.
const RETURN: Duration = Duration::from_secs(60);
/// Time for which an ended process is kept, because samples of its work may come late.
const REMEMBER: Duration = Duration::from_secs(180);
/// Tolerance, in seconds, between the start of a process and the last listing of the previous process with its id,
/// because clocks and readings differ.
const SLACK: f64 = 2.0;

#[derive(Clone, Default)]
pub(crate) struct Tenant {
    /// Process id on the host.
    pub pid: u32,
    /// First listing on any GPU.
    pub first: Mono,
    /// Last listing on any GPU.
    pub last: Mono,
    /// Whether its GPU was observed before it appeared. Only then is the first listing its first context.
    pub fresh: bool,
    /// Start time in seconds since 1970; `None` if unknown.
    pub started: Option<f64>,
    /// `None` while the owner is unknown.
    pub owner: Option<Arc<Owner>>,
    /// Whether its first context was counted.
    pub context_counted: bool,
    /// Whether its first work was counted.
    pub work_counted: bool,
}

#[derive(Default)]
pub(crate) struct Tenants {
    pub all: HashMap<u64, Tenant>,
    /// Processes by id, newest last. Older ones stay as long as they are kept.
    current: HashMap<u32, Vec<u64>>,
    /// Owners of processes that are not listed yet, and their time. The processes of a slow visit are published, and
    /// therefore looked up, before the next listing counts them.
    early: HashMap<u32, (Attribution, Mono)>,
    next: u64,
}

impl Tenants {
    /// Records the listing of a process, and returns its number.
    pub fn listed(&mut self, pid: u32, at: Mono, fresh: bool) -> u64 {
        let known = self.current.entry(pid).or_default();
        if let Some(id) = known.last()
            && let Some(tenant) = self.all.get_mut(id)
            && at.since(tenant.last) <= RETURN
        {
            tenant.last = tenant.last.max(at);
            return *id;
        }
        let before = known.last().and_then(|id| self.all.get(id));
        let mut tenant = Tenant::new(pid, at, fresh);
        if let Some((attribution, _)) = self.early.remove(&pid) {
            tenant.fresh &= !before.is_some_and(|before| before.is(attribution.started));
            (tenant.started, tenant.owner) = (attribution.started, Some(attribution.owner));
        }
        self.next += 1;
        known.push(self.next);
        self.all.insert(self.next, tenant);
        self.next
    }

    /// Records the owner of a process, found at `now`. `offset`: wall clock minus monotonic clock, in seconds.
    pub fn attribute(&mut self, attribution: &Attribution, offset: f64, now: Mono) {
        let Some(known) = self.current.get_mut(&attribution.pid) else {
            self.early.insert(attribution.pid, (attribution.clone(), now));
            return;
        };
        // The same process returns after a pause. Its first context was earlier.
        if let [.., before, newest] = known[..]
            && self.all.get(&before).is_some_and(|before| before.is(attribution.started))
            && let Some(tenant) = self.all.get_mut(&newest).filter(|newest| newest.owner.is_none())
        {
            (tenant.started, tenant.owner) = (attribution.started, Some(Arc::clone(&attribution.owner)));
            tenant.fresh = false;
            return;
        }
        // Finds the newest process that can have started then: not before the previous one with its id was gone.
        let begun = |all: &HashMap<u64, Tenant>, at: usize| -> bool {
            let (Some(started), Some(before)) = (attribution.started, at.checked_sub(1)) else { return true };
            let before = known.get(before).and_then(|id| all.get(id));
            before.is_none_or(|b| started + SLACK >= b.last.0 as f64 * 1e-9 + offset)
        };
        let Some(at) = (0..known.len()).rev().find(|at| begun(&self.all, *at)) else { return };
        let Some(id) = known.get(at).copied() else { return };
        let Some(tenant) = self.all.get_mut(&id) else { return };
        let another = tenant.owner.is_some()
            && tenant.started.zip(attribution.started).is_some_and(|(a, b)| (a - b).abs() > SLACK);
        if tenant.owner.is_some() {
            // A process that is attributed again was missing from the listings, and is another one if it was missing
            // for long.
            self.early.insert(attribution.pid, (attribution.clone(), now));
        }
        if !another {
            tenant.started = attribution.started.or(tenant.started);
            tenant.owner = Some(Arc::clone(&attribution.owner));
            return;
        }
        // The id was reused between two listings. From now on it means the new process.
        let mut next = Tenant::new(attribution.pid, tenant.last, tenant.fresh);
        (next.started, next.owner) = (attribution.started, Some(Arc::clone(&attribution.owner)));
        self.next += 1;
        known.push(self.next);
        self.all.insert(self.next, next);
    }

    /// Returns the owner of a process: `unknown` after [`PATIENCE`] without one, `None` before.
    pub fn owner(&self, id: u64, now: Mono, unknown: &Arc<Owner>) -> Option<Arc<Owner>> {
        let Some(tenant) = self.all.get(&id) else { return Some(Arc::clone(unknown)) };
        let late = || (now.since(tenant.first) >= PATIENCE).then(|| Arc::clone(unknown));
        tenant.owner.clone().or_else(late)
    }

    /// Returns the owner of the newest process with this id.
    pub fn owner_of_pid(&self, pid: u32) -> Option<&Arc<Owner>> {
        self.all.get(self.current.get(&pid)?.last()?)?.owner.as_ref()
    }

    /// Returns the owner of the process with this id, or else of a process in this control group or below.
    pub fn owner_in(&self, group: Option<&str>, pid: u32) -> Option<Arc<str>> {
        let within = |owner: &&Arc<Owner>| {
            let group = group.filter(|_| !owner.cgroup.is_empty());
            group
                .and_then(|group| group.strip_prefix(&*owner.cgroup))
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let in_group = || self.all.values().filter_map(|tenant| tenant.owner.as_ref()).find(within);
        self.owner_of_pid(pid).or_else(in_group).map(|owner| Arc::clone(&owner.id))
    }

    /// Forgets processes that ended long ago.
    pub fn forget(&mut self, now: Mono) {
        self.early.retain(|_, (_, at)| now.since(*at) <= RETURN);
        let all = &mut self.all;
        all.retain(|_, tenant| now.since(tenant.last) <= REMEMBER);
        self.current.retain(|_, known| {
            known.retain(|id| all.contains_key(id));
            !known.is_empty()
        });
    }
}

impl Tenant {
    fn new(pid: u32, at: Mono, fresh: bool) -> Tenant {
        Tenant { pid, first: at, last: at, fresh, ..Tenant::default() }
    }

    /// Returns true if the process is known to have started at this time.
    fn is(&self, started: Option<f64>) -> bool {
        self.started.zip(started).is_some_and(|(a, b)| (a - b).abs() <= SLACK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Mono {
        Mono((seconds * 1e9) as u64)
    }

    fn attribution(pid: u32, started: Option<f64>, id: &str) -> Attribution {
        let owner = Arc::new(Owner { id: id.into(), ..Owner::unknown() });
        Attribution { pid, started, owner }
    }

    fn owner(tenants: &Tenants, id: u64, seconds: f64) -> Option<String> {
        let unknown = Arc::new(Owner::unknown());
        tenants.owner(id, at(seconds), &unknown).map(|owner| owner.id.to_string())
    }

    #[test]
    fn an_owner_that_is_not_found_for_a_while_is_unknown() {
        let mut tenants = Tenants::default();
        let id = tenants.listed(7, at(10.0), true);
        assert_eq!(owner(&tenants, id, 14.0), None);
        assert_eq!(owner(&tenants, id, 15.0).as_deref(), Some("unknown"));
        tenants.attribute(&attribution(7, Some(9.0), "a"), 0.0, at(10.0));
        assert_eq!(owner(&tenants, id, 16.0).as_deref(), Some("a"), "late, but from now on");
    }

    #[test]
    fn an_id_that_is_used_again_is_another_process() {
        let mut tenants = Tenants::default();
        let first = tenants.listed(7, at(10.0), true);
        tenants.listed(7, at(30.0), true);
        let second = tenants.listed(7, at(100.0), true);
        assert_ne!(first, second);
        tenants.attribute(&attribution(7, Some(9.0), "a"), 0.0, at(100.0));
        assert_eq!(owner(&tenants, second, 101.0), None, "that was the first");
        tenants.attribute(&attribution(7, Some(99.0), "b"), 0.0, at(101.0));
        assert_eq!(owner(&tenants, second, 101.0).as_deref(), Some("b"));
        assert_eq!(owner(&tenants, first, 101.0).as_deref(), Some("a"));
        // It passed on without a pause in the lists.
        tenants.attribute(&attribution(7, Some(150.0), "c"), 0.0, at(150.0));
        assert_eq!(owner(&tenants, tenants.current[&7][2], 151.0).as_deref(), Some("c"));
        tenants.forget(at(1000.0));
        assert!(tenants.all.is_empty() && tenants.current.is_empty());
    }

    #[test]
    fn one_that_was_not_listed_for_a_moment_is_the_same() {
        let mut tenants = Tenants::default();
        let first = tenants.listed(7, at(10.0), true);
        assert_eq!(tenants.listed(7, at(40.0), true), first);
    }

    #[test]
    fn one_that_is_back_after_a_pause_has_its_owner_again_and_no_first_context() {
        let mut tenants = Tenants::default();
        let first = tenants.listed(7, at(10.0), true);
        tenants.attribute(&attribution(7, Some(9.0), "a"), 0.0, at(10.0));
        let second = tenants.listed(7, at(100.0), true);
        assert_ne!(first, second);
        tenants.attribute(&attribution(7, Some(9.0), "a"), 0.0, at(100.0));
        assert_eq!(owner(&tenants, second, 101.0).as_deref(), Some("a"));
        assert!(!tenants.all[&second].fresh);
        // The same, but attributed before it is listed.
        tenants.attribute(&attribution(7, Some(9.0), "a"), 0.0, at(200.0));
        let third = tenants.listed(7, at(200.5), true);
        assert_eq!(owner(&tenants, third, 201.0).as_deref(), Some("a"));
        assert!(third != second && !tenants.all[&third].fresh);
    }

    #[test]
    fn an_attribution_before_a_process_is_listed_counts_once_it_is() {
        let mut tenants = Tenants::default();
        tenants.attribute(&attribution(7, Some(9.0), "a"), 0.0, at(10.0));
        tenants.attribute(&attribution(8, Some(9.0), "b"), 0.0, at(10.0));
        let id = tenants.listed(7, at(11.0), true);
        assert_eq!(owner(&tenants, id, 11.0).as_deref(), Some("a"));
        tenants.forget(at(71.0));
        let id = tenants.listed(8, at(71.0), true);
        assert_eq!(owner(&tenants, id, 71.0), None, "that may have been another one");
        assert!(tenants.early.is_empty());
    }
}
