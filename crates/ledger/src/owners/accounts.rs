//! Accounts of the owners on each GPU or GPU instance: counters that never decrease, kept for a while after the
//! owner's end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::classes::ClassShares;
use super::mig_hint::ShareHistogram;
use super::past::Past;
use super::pulse::Pulse;
use super::sums::AccountSums;
use super::timeline::{AmountKind, AmountShare, InstanceId, PresentOwner, SettledSpan};
use crate::bottleneck::Steady;
use model::catalog::{Gpu, GpuTimeClass};
use model::clock::Mono;
use model::owners::Owner;

/// Time for which an owner keeps its series after its end. Two scrape intervals of 30 s let the last amounts be read,
/// and short-lived owners do not create more series than there are slots.
pub const KEPT_AFTER_END: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AccountKey {
    pub gpu: Gpu,
    pub place: InstanceId,
    pub owner: Arc<str>,
}

/// Account of one owner at one place.
#[derive(Default)]
pub(crate) struct Account {
    pub owner: Arc<Owner>,
    /// Time at which the account was opened.
    since: Mono,
    pub sums: AccountSums,
    /// Last settled time at which the owner was present.
    pub until: Mono,
    /// Shares of the GPU's memory that it used, by time.
    pub memory: ShareHistogram,
    /// Shares of the GPU's multiprocessors that were active while it had the GPU to itself, by time.
    pub multiprocessors: ShareHistogram,
    pub cause: Steady,
    pub past: Past,
    /// Step of the owner. Unknown for GPU instances, which have no power reading of their own.
    pub pulse: Pulse,
    /// Allocated seconds without a class, because the GPU's activity is unknown until a GPM window ends.
    open: f64,
    /// Sums that are already in a record of the owner.
    pub recorded: AccountSums,
    full: bool,
    /// Whether the owner was absent at the last settled time.
    pub ended: bool,
}

impl Account {
    fn new(owner: Arc<Owner>, now: Mono) -> Account {
        Account { owner, since: now, until: now, ..Account::default() }
    }

    fn classify(&mut self, class: GpuTimeClass, seconds: f64) {
        if let Some(sum) = self.sums.classes.get_mut(class as usize) {
            *sum += seconds;
        }
    }

    /// Divides the time without a class among the classes.
    pub fn divide(&mut self, shares: &ClassShares) {
        let open = std::mem::take(&mut self.open);
        self.sums.classes.iter_mut().zip(shares).for_each(|(sum, share)| *sum += share * open);
    }

    /// Returns true if all time has a class.
    pub fn is_classified(&self) -> bool {
        self.open <= 0.0
    }

    /// Assigns the time without a class to `unknown`.
    pub fn close(&mut self) {
        let open = std::mem::take(&mut self.open);
        self.classify(GpuTimeClass::Unknown, open);
    }

    /// Returns all sums, with the time without a class as `unknown`.
    fn all_sums(&self) -> AccountSums {
        AccountSums { classes: self.all_classes(), steps: self.pulse.steps(), ..self.sums }
    }

    /// Returns the sums that are not in a record yet.
    pub fn unrecorded(&self) -> AccountSums {
        self.all_sums().with(&self.recorded, |sum, recorded| sum - recorded)
    }

    /// Marks all sums as recorded. The time without a class becomes `unknown`.
    pub fn record(&mut self) {
        self.close();
        self.recorded = AccountSums { peak: None, ..self.all_sums() };
        self.sums.peak = None;
    }

    /// Returns all time by class, with the time without a class as `unknown`.
    fn all_classes(&self) -> ClassShares {
        let mut all = self.sums.classes;
        if let Some(unknown) = all.get_mut(GpuTimeClass::Unknown as usize) {
            *unknown += self.open;
        }
        all
    }
}

/// Owners that share one quota of series, because a user or namespace can start any number of owners.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum QuotaKey {
    Namespace(String),
    /// Pod without a known namespace, by UID.
    Pod(String),
    /// User of the host; empty for containers that belong to none.
    User(String),
}

impl QuotaKey {
    fn from_owner(owner: &Owner) -> QuotaKey {
        let info = &owner.info;
        match (info.namespace.as_str(), info.pod_uid.as_str()) {
            ("", "") => QuotaKey::User(info.user.clone()),
            ("", uid) => QuotaKey::Pod(uid.to_owned()),
            (namespace, _) => QuotaKey::Namespace(namespace.to_owned()),
        }
    }
}

/// Owner without series at the last settled time of its GPU.
struct Unlisted {
    place: InstanceId,
    owner: Arc<str>,
    /// Whether the memory at the place was full.
    full: bool,
}

/// Accounts of all owners with series. All other owners of a GPU share the account `other`.
#[derive(Default)]
pub(crate) struct Accounts {
    pub all: BTreeMap<AccountKey, Account>,
    /// Owners with series, until they are forgotten or replaced by a live owner.
    with_series: BTreeMap<Arc<str>, QuotaKey>,
    /// Owners without series at the last settled time of each GPU, and that time.
    unlisted: BTreeMap<Gpu, (Mono, Vec<Unlisted>)>,
    /// Owner that represents all owners without series.
    pub other: Arc<Owner>,
    most: usize,
}

/// Series that further owners can get.
struct Openings {
    free: usize,
    held: BTreeMap<QuotaKey, usize>,
    /// Owners that ended long enough ago everywhere, most recent first.
    ended: Vec<Arc<str>>,
}

impl Accounts {
    /// Creates accounts for at most `most` owners with series.
    pub fn new(most: usize) -> Accounts {
        Accounts { other: Arc::new(Owner::other()), most, ..Accounts::default() }
    }

    /// Changes the maximum number of owners with series.
    pub fn allow(&mut self, most: usize) {
        self.most = most;
    }

    /// Adds settled time of a GPU. `share` returns the share of the GPU that a GPU instance has, or `None` if
    /// unknown; `total` is the memory of a place in bytes.
    pub fn settle(
        &mut self,
        gpu: &Gpu,
        settled: &SettledSpan,
        share: impl Fn(u32) -> Option<f64>,
        total: Option<f64>,
    ) {
        let seconds = settled.to.since(settled.from).as_secs_f64();
        self.note_ends(gpu, settled);
        self.give_series(gpu, settled);
        let mut unlisted = Vec::new();
        for one in &settled.present {
            let has_series = self.with_series.contains_key(&one.owner.id);
            let (place, owner) = if has_series { (one.place, &one.owner) } else { (None, &self.other) };
            let key = AccountKey { gpu: gpu.clone(), place, owner: Arc::clone(&owner.id) };
            let account =
                self.all.entry(key).or_insert_with(|| Account::new(Arc::clone(owner), settled.from));
            let of_gpu = one.place.map_or(Some(1.0), &share);
            let allocated = seconds / one.owners.max(1) as f64 * of_gpu.unwrap_or(0.0);
            account.sums.allocated += allocated;
            // It is not measured which owner did the work.
            if one.owners > 1 || !has_series {
                account.classify(GpuTimeClass::Unknown, allocated);
            } else {
                account.open += allocated;
            }
            account.until = settled.to;
            let full = settled.full.contains(&one.place);
            if !has_series {
                unlisted.push(Unlisted { place: one.place, owner: Arc::clone(&one.owner.id), full });
                continue;
            }
            account.owner = Arc::clone(&one.owner);
            account.full = full;
            account.ended = false;
            account.sums.peak = account.sums.peak.max(one.memory);
            if let (Some(bytes), Some(total)) = (one.memory, total.filter(|total| *total > 0.0)) {
                account.memory.add((bytes as f64 / total).min(1.0), seconds);
            }
        }
        self.unlisted.insert(gpu.clone(), (settled.to, unlisted));
    }

    /// Counts the owners that are no longer at a place of the GPU.
    fn note_ends(&mut self, gpu: &Gpu, settled: &SettledSpan) {
        let here: BTreeSet<(InstanceId, &Arc<str>)> =
            settled.present.iter().map(|one| (one.place, &one.owner.id)).collect();
        for (key, account) in self.all.iter_mut().filter(|(key, _)| key.gpu == *gpu) {
            let ended = !here.contains(&(key.place, &key.owner));
            if ended && !account.ended {
                account.sums.ended_full += f64::from(u8::from(account.full));
            }
            account.ended = ended;
        }
        let before = self.unlisted.get(gpu).map_or(&[][..], |(_, before)| before);
        let full = before.iter().filter(|one| one.full && !here.contains(&(one.place, &one.owner))).count();
        let key = AccountKey { gpu: gpu.clone(), place: None, owner: Arc::clone(&self.other.id) };
        if let Some(other) = self.all.get_mut(&key) {
            other.sums.ended_full += full as f64;
        }
    }

    /// Grants series to owners without them, those with the most memory first.
    fn give_series(&mut self, gpu: &Gpu, settled: &SettledSpan) {
        let mut waiting: Vec<&PresentOwner> =
            settled.present.iter().filter(|one| !self.with_series.contains_key(&one.owner.id)).collect();
        if waiting.is_empty() {
            return;
        }
        waiting.sort_by_key(|one| std::cmp::Reverse(one.memory));
        let mut openings = self.openings(settled.from);
        for one in waiting {
            if self.with_series.contains_key(&one.owner.id) {
                continue;
            }
            let quota = QuotaKey::from_owner(&one.owner);
            if !self.make_way(&mut openings, &quota) {
                continue;
            }
            *openings.held.entry(quota.clone()).or_default() += 1;
            self.with_series.insert(Arc::clone(&one.owner.id), quota);
            let key = AccountKey { gpu: gpu.clone(), place: one.place, owner: Arc::clone(&one.owner.id) };
            self.all.insert(key, Account::new(Arc::clone(&one.owner), settled.from));
        }
    }

    fn openings(&self, now: Mono) -> Openings {
        let mut held: BTreeMap<QuotaKey, usize> = BTreeMap::new();
        for quota in self.with_series.values() {
            *held.entry(quota.clone()).or_default() += 1;
        }
        let mut ends: BTreeMap<&Arc<str>, Option<Mono>> = BTreeMap::new();
        for (key, account) in self.all.iter().filter(|(key, _)| self.with_series.contains_key(&key.owner)) {
            let end = ends.entry(&key.owner).or_insert(Some(Mono(0)));
            *end = end.filter(|_| account.ended).map(|end| end.max(account.until));
        }
        let mut ended: Vec<(Mono, &Arc<str>)> =
            ends.into_iter().filter_map(|(owner, end)| Some((end?, owner))).collect();
        ended.retain(|(end, _)| now.since(*end) >= KEPT_AFTER_END);
        ended.sort_by(|a, b| b.cmp(a));
        let free = self.most.saturating_sub(self.with_series.len());
        Openings { free, held, ended: ended.into_iter().map(|(_, owner)| Arc::clone(owner)).collect() }
    }

    /// Makes room for an owner of this quota, with a free slot or that of an owner that ended long enough ago.
    /// Returns true if there is room.
    fn make_way(&mut self, openings: &mut Openings, quota: &QuotaKey) -> bool {
        let quarter = (self.most / 4).max(1);
        let spent = openings.held.get(quota).is_some_and(|held| *held >= quarter);
        if !spent && openings.free > 0 {
            openings.free -= 1;
            return true;
        }
        let fits = |owner: &Arc<str>| !spent || self.with_series.get(owner) == Some(quota);
        let Some(at) = openings.ended.iter().rposition(fits) else { return false };
        let ended = openings.ended.remove(at);
        if let Some(quota) = self.with_series.remove(&ended)
            && let Some(held) = openings.held.get_mut(&quota)
        {
            *held = held.saturating_sub(1);
        }
        self.all.retain(|key, _| key.owner != ended);
        true
    }

    /// Adds shares of measured amounts.
    pub fn add(&mut self, gpu: &Gpu, shares: Vec<AmountShare>) {
        for share in shares {
            let own = AccountKey { gpu: gpu.clone(), place: share.place, owner: share.owner };
            // Amounts before the account was opened belong to `other`, as the time does.
            let key = match self.all.get(&own) {
                Some(account) if account.since <= share.from => own,
                _ => AccountKey { gpu: gpu.clone(), place: None, owner: Arc::clone(&self.other.id) },
            };
            let Some(account) = self.all.get_mut(&key) else { continue };
            match share.quantity {
                AmountKind::Busy(_) => account.sums.busy += share.amount,
                AmountKind::Joules => account.sums.joules += share.amount,
            }
        }
    }

    /// Forgets owners that ended long ago.
    pub fn tidy(&mut self, now: Mono, keep: Duration) {
        self.all.retain(|_, account| now.since(account.until) <= keep);
        self.unlisted.retain(|_, (at, _)| now.since(*at) <= keep);
        let owners: BTreeSet<&Arc<str>> = self.all.keys().map(|key| &key.owner).collect();
        self.with_series.retain(|owner, _| owners.contains(owner));
    }

    /// Returns true if an owner has series of its own.
    pub fn has_series(&self, owner: &Arc<str>) -> bool {
        self.with_series.contains_key(owner)
    }

    /// Returns the owners without series at the last settled times.
    pub fn without_series(&self) -> BTreeSet<Arc<str>> {
        let all = self.unlisted.values().flat_map(|(_, all)| all).map(|one| &one.owner);
        all.filter(|owner| !self.with_series.contains_key(*owner)).cloned().collect()
    }

    /// Forgets a GPU that was replaced.
    pub fn forget(&mut self, gpu: &Gpu) {
        self.all.retain(|key, _| key.gpu != *gpu);
        self.unlisted.remove(gpu);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Mono {
        Mono(seconds * 1_000_000_000)
    }

    fn gpu() -> Gpu {
        Gpu { gpu: 0, uuid: "a".into() }
    }

    /// `USER/NAME`, or a name alone, which is its user's too.
    fn owner(id: &str) -> Arc<Owner> {
        let user = id.split_once('/').map_or(id, |(user, _)| user).to_owned();
        let info = model::catalog::OwnerInfo { user, ..Default::default() };
        Arc::new(Owner { id: id.into(), info, ..Owner::unknown() })
    }

    fn settled(from: u64, owners: &[&str], full: bool) -> SettledSpan {
        let present = owners.iter().map(|id| PresentOwner {
            place: None,
            owner: owner(id),
            memory: Some(1),
            owners: owners.len(),
        });
        let present = present.collect();
        SettledSpan {
            from: at(from),
            to: at(from + 1),
            present,
            full: if full { vec![None] } else { vec![] },
        }
    }

    fn feed(accounts: &mut Accounts, from: u64, owners: &[&str], full: bool) {
        accounts.settle(&gpu(), &settled(from, owners, full), |_| None, None);
        accounts.tidy(at(from + 1), Duration::from_secs(900));
    }

    fn allocated(accounts: &mut Accounts) -> Vec<(String, f64, f64)> {
        let rows =
            accounts.all.iter().map(|(key, a)| (key.owner.to_string(), a.sums.allocated, a.sums.ended_full));
        rows.collect()
    }

    #[test]
    fn time_is_shared_and_an_owner_that_comes_back_goes_on() {
        let mut accounts = Accounts::new(8);
        feed(&mut accounts, 0, &["a", "b"], false);
        feed(&mut accounts, 1, &["a"], true);
        feed(&mut accounts, 2, &[], false);
        feed(&mut accounts, 200, &["a"], false);
        let all = allocated(&mut accounts);
        assert_eq!(all, [("a".into(), 2.5, 1.0), ("b".into(), 0.5, 0.0)]);
        feed(&mut accounts, 1000, &[], false);
        assert_eq!(allocated(&mut accounts), [("a".into(), 2.5, 1.0)], "the other was over for long");
        feed(&mut accounts, 2000, &[], false);
        assert!(allocated(&mut accounts).is_empty());
    }

    fn names(user: &str, count: usize) -> Vec<String> {
        (0..count).map(|n| format!("{user}/{n:03}")).collect()
    }

    fn texts(names: &[String]) -> Vec<&str> {
        names.iter().map(String::as_str).collect()
    }

    fn of_user(accounts: &Accounts, user: &str) -> usize {
        let of = |owner: &&Arc<str>| owner.split('/').next() == Some(user);
        accounts.with_series.keys().filter(of).count()
    }

    #[test]
    fn one_user_has_a_quarter_and_the_rest_is_one_account() {
        let mut accounts = Accounts::new(64);
        let crowd = names("mallory", 300);
        feed(&mut accounts, 0, &texts(&crowd), true);
        let later: Vec<&str> = texts(&crowd).into_iter().chain(["pod"]).collect();
        for second in 1..10 {
            feed(&mut accounts, second, &later, true);
        }
        assert_eq!((of_user(&accounts, "mallory"), of_user(&accounts, "pod")), (16, 1));
        assert_eq!(accounts.without_series().len(), 284);
        let all = allocated(&mut accounts);
        assert_eq!(all.len(), 18, "memory is bounded too");
        let sum: f64 = all.iter().map(|(_, seconds, _)| seconds).sum();
        assert!((sum - 10.0).abs() < 1e-9, "{sum}: the whole time of the GPU");
        let other = all.iter().find(|(owner, ..)| owner == "other").unwrap();
        assert!((other.1 - 284.0 / 300.0 - 9.0 * 284.0 / 301.0).abs() < 1e-9, "{other:?}");
        feed(&mut accounts, 10, &["pod"], false);
        let ended: f64 = allocated(&mut accounts).iter().map(|(_, _, ended_full)| ended_full).sum();
        assert_eq!(ended, 300.0, "those without series have ended too");
    }

    #[test]
    fn live_owners_replace_those_that_ended_first() {
        let mut accounts = Accounts::new(4);
        for (second, live) in [&["a", "b", "c", "d"][..], &["b", "c", "d"], &["c", "d"], &["c", "d", "e"]]
            .into_iter()
            .enumerate()
        {
            feed(&mut accounts, second as u64, live, false);
        }
        let owners = |accounts: &mut Accounts| -> Vec<String> {
            allocated(accounts).into_iter().map(|(owner, ..)| owner).collect()
        };
        assert_eq!(owners(&mut accounts), ["a", "b", "c", "d", "other"], "the last amounts are not read yet");
        feed(&mut accounts, 61, &["c", "d", "e"], false);
        assert_eq!(owners(&mut accounts), ["b", "c", "d", "e", "other"]);
        feed(&mut accounts, 62, &["c", "c/2", "d", "e"], false);
        assert_eq!(owners(&mut accounts), ["b", "c", "d", "e", "other"], "its user has one already");
        feed(&mut accounts, 63, &["c/2", "d", "e"], false);
        assert_eq!(owners(&mut accounts), ["b", "c", "d", "e", "other"]);
        feed(&mut accounts, 123, &["c/2", "d", "e"], false);
        assert_eq!(owners(&mut accounts), ["b", "c/2", "d", "e", "other"], "the quota of its user is free");
        feed(&mut accounts, 124, &["c/2", "d", "e", "f", "g"], false);
        assert_eq!(owners(&mut accounts), ["c/2", "d", "e", "f", "other"]);
        assert_eq!(accounts.without_series(), ["g".into()].into());
    }

    #[test]
    fn every_mig_slice_of_one_namespace_has_series_by_default() {
        let mut accounts = Accounts::new(settings::Owners::default().max_series as usize);
        feed(&mut accounts, 0, &texts(&names("ml", 8 * 7)), false);
        assert_eq!(accounts.without_series(), BTreeSet::new());
    }

    #[test]
    fn owners_of_a_few_seconds_make_few_series() {
        let mut accounts = Accounts::new(16);
        let crowd = names("mallory", 300);
        let mut published = BTreeSet::new();
        for (second, id) in crowd.iter().enumerate() {
            feed(&mut accounts, second as u64, &[id], false);
            published.extend(accounts.with_series.keys().cloned());
        }
        assert_eq!(published.len(), 20, "four places, each given once a minute");
        let sum: f64 = allocated(&mut accounts).iter().map(|(_, seconds, _)| seconds).sum();
        assert!((300.0 - sum - 16.0).abs() < 1e-9, "{sum}: all but those replaced, a second each");
    }

    #[test]
    fn what_came_before_an_account_is_in_the_other_one() {
        let mut accounts = Accounts::new(1);
        feed(&mut accounts, 0, &["a", "b"], false);
        feed(&mut accounts, 1, &["b"], false);
        feed(&mut accounts, 61, &["b"], false);
        let share = |from: u64| AmountShare {
            quantity: AmountKind::Busy(None),
            from: at(from),
            place: None,
            owner: "b".into(),
            amount: 0.5,
        };
        accounts.add(&gpu(), vec![share(1), share(61)]);
        let busy: Vec<(&str, f64)> = accounts.all.iter().map(|(key, a)| (&*key.owner, a.sums.busy)).collect();
        assert_eq!(busy, [("b", 0.5), ("other", 0.5)]);
    }

    #[test]
    fn a_quota_is_of_a_namespace_a_pod_or_a_user() {
        let of = |namespace: &str, pod_uid: &str, user: &str| {
            let (namespace, pod_uid, user) = (namespace.into(), pod_uid.into(), user.into());
            let info = model::catalog::OwnerInfo { namespace, pod_uid, user, ..Default::default() };
            QuotaKey::from_owner(&Owner { info, ..Owner::unknown() })
        };
        assert_eq!(of("ml", "uid-1", ""), of("ml", "uid-2", ""));
        assert_ne!(of("", "uid-1", ""), of("", "uid-2", ""));
        assert_ne!(of("alice", "", ""), of("", "", "alice"), "a namespace is no user");
    }
}
