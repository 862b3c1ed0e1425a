//! Series of the owners, and their views in the snapshot.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::OwnerState;
use super::accounts::{Account, AccountKey};
use super::gpus::{GpuFacts, facts};
use super::judge::{JudgedOwners, OwnerJudgement};
use super::mig_hint::{PERCENTILE, smallest};
use super::pulse::{self, Pulse};
use super::timeline::{InstanceId, Listing, PresentOwner};
use super::tracks::Tracks;
use crate::accounting::Accounting;
use crate::bottleneck::Evidence;
use crate::builder::Builder;
use crate::intake::LedgerMoment;
use crate::topology::TopologyState;
use model::catalog::schema::KnownLabel;
use model::catalog::{
    self as m, Cause, ClockEvent, Gpu, GpuTimeClass, Node, OwnedGpu, ProfileName, StepPeriod,
};
use model::clock::Mono;
use model::cpus::CpuSet;
use model::snapshot::OwnerView;

type OwnerIds = BTreeSet<Arc<str>>;
/// CPUs of the last-level caches that an owner should use; `None` if unknown.
type OwnerCaches = BTreeMap<Arc<str>, Option<CpuSet>>;
/// Process ids by place and owner.
type OwnerPids = BTreeMap<(InstanceId, Arc<str>), Vec<u32>>;
type GpuTracks = BTreeMap<(Gpu, InstanceId), Tracks>;

impl OwnerState {
    pub fn publish(
        &mut self,
        b: &mut Builder<'_>,
        moment: &LedgerMoment<'_>,
        topology: &TopologyState,
        accounting: &Accounting,
    ) -> Vec<OwnerView> {
        if !self.settings.enabled {
            return Vec::new();
        }
        let now = moment.now;
        let mut facts: Vec<GpuFacts> =
            moment.gpus().map(|(gpu, up)| facts(moment, topology, gpu, up)).collect();
        for one in &mut facts {
            let tracks = self.tracks(&one.gpu, None);
            one.link = tracks.link(now, one.link);
            if one.up {
                let held = |events: [ClockEvent; 2]| accounting.clock_event_seconds(&one.gpu, &events);
                let power = held([ClockEvent::SwPowerCap, ClockEvent::HwPowerBrakeSlowdown]);
                tracks.power_held.total(now, power);
                let heat = held([ClockEvent::SwThermalSlowdown, ClockEvent::HwThermalSlowdown]);
                tracks.heat_held.total(now, heat);
            }
        }
        self.offset = moment.unix_seconds - now.0 as f64 * 1e-9;
        self.complete_records(now);
        for one in &facts {
            self.settle(&one.gpu, now, |instance| one.share(instance), one.memory);
        }
        self.count_contexts();
        self.records.retire(&mut self.accounts, now, self.settings.retention);
        self.accounts.tidy(now, self.settings.retention);
        self.tenants.forget(now);
        self.readings.retain(|_, readings| readings.newest(now).is_some());
        let without_series = self.accounts.without_series();
        let starts = self.starts(&facts, now);
        self.records.started(&starts);
        self.host_use.present(starts);
        let OwnerState { accounts, readings, host_use, .. } = self;
        host_use.divide(accounts, &without_series, |owner| readings.contains_key(owner));
        let shares = self.caches_of_owners(&facts, moment, topology);
        let judged = self.judge(&facts, accounting, now);
        let views =
            facts.iter().flat_map(|one| self.publish_gpu(b, one, &judged, &shares, &without_series, now));
        let views = views.collect();
        self.publish_node(b, &without_series);
        views
    }

    /// Returns the owners with processes on listed GPUs, with the start time of their first process.
    fn starts(&self, facts: &[GpuFacts], now: Mono) -> HashMap<Arc<str>, f64> {
        let mut starts: HashMap<Arc<str>, f64> = HashMap::new();
        let listed = facts.iter().filter(|one| one.listed);
        let listed = listed.filter_map(|one| self.newest_listing(&one.gpu));
        for process in listed.flat_map(|(_, listing)| &listing.processes) {
            let owner = self.tenants.owner(process.tenant, now, &self.unknown);
            let started = self.tenants.all.get(&process.tenant).and_then(|tenant| tenant.started);
            if let (Some(owner), Some(started)) = (owner, started) {
                let first = starts.entry(Arc::clone(&owner.id)).or_insert(started);
                *first = first.min(started);
            }
        }
        starts
    }

    /// Returns the CPUs of the last-level caches in the shares of all places of an owner, or `None` if one of them is
    /// unknown. Returns no owner while a GPU lists no processes, because any owner may have work there.
    fn caches_of_owners(
        &self,
        facts: &[GpuFacts],
        moment: &LedgerMoment<'_>,
        topology: &TopologyState,
    ) -> OwnerCaches {
        let mut found: OwnerCaches = BTreeMap::new();
        if facts.iter().any(|one| !one.listed) {
            return found;
        }
        for one in facts {
            let Some((_, listing)) = self.newest_listing(&one.gpu) else { continue };
            let present = self.present(listing, moment.now);
            // Dividing shares among slices is slow, so GPUs without work are skipped.
            let shares = match &one.device {
                Some(device) if !present.is_empty() => topology.caches_of_shares(moment, &one.gpu, device),
                _ => BTreeMap::new(),
            };
            for present in present {
                let of_owner =
                    found.entry(Arc::clone(&present.owner.id)).or_insert_with(|| Some(CpuSet::default()));
                let share = shares.get(&present.place);
                *of_owner = of_owner.take().zip(share).map(|(all, share)| all.or(share));
            }
        }
        found
    }

    fn pids(&self, listing: &Listing, now: Mono) -> OwnerPids {
        let mut all: BTreeMap<(InstanceId, Arc<str>), BTreeSet<u32>> = BTreeMap::new();
        for process in &listing.processes {
            let owner = self.tenants.owner(process.tenant, now, &self.unknown);
            if let (Some(owner), Some(tenant)) = (owner, self.tenants.all.get(&process.tenant)) {
                all.entry((process.place, Arc::clone(&owner.id))).or_default().insert(tenant.pid);
            }
        }
        all.into_iter().map(|(key, pids)| (key, pids.into_iter().collect())).collect()
    }

    /// Publishes the accounts of one GPU.
    fn publish_gpu(
        &mut self,
        b: &mut Builder<'_>,
        facts: &GpuFacts,
        judged: &JudgedOwners,
        shares: &OwnerCaches,
        without_series: &OwnerIds,
        now: Mono,
    ) -> Vec<OwnerView> {
        let listing = self.newest_listing(&facts.gpu).filter(|_| facts.listed);
        let present = listing.map(|(_, listing)| self.present(listing, now)).unwrap_or_default();
        let pids = listing.map(|(_, listing)| self.pids(listing, now)).unwrap_or_default();
        let OwnerState { accounts, readings, tracks, collectives, offset, .. } = self;
        let others = Others::collect(without_series, &present, &pids);
        let other = Arc::clone(&accounts.other);
        let mut views = Vec::new();
        for (key, account) in accounts.all.iter_mut().filter(|(key, _)| key.gpu == facts.gpu) {
            let here = judged.here.get(key);
            let (pids, memory) = if key.owner == other.id {
                (others.pids.clone(), others.memory)
            } else {
                let pids = pids.get(&(key.place, Arc::clone(&key.owner))).cloned();
                // An ended owner uses no memory.
                (pids.unwrap_or_default(), here.map_or(Some(0), |here| here.memory))
            };
            let entity = OwnedGpu::new(&key.gpu, key.place, &key.owner);
            b.add(&m::gpu_owner_info, &entity, account.owner.info.clone(), 1.0);
            if facts.listed {
                b.add(&m::gpu_owner_processes, &entity, (), pids.len() as f64);
                b.add_known(&m::gpu_owner_memory_used_bytes, &entity, (), memory.map(|bytes| bytes as f64));
            }
            publish_sums(b, &entity, key, account, facts, tracks);
            if let Some(here) = here {
                let near = facts.near_cpus(shares.get(&key.owner).cloned().flatten());
                let read = readings.get(&key.owner);
                let other_cache = read.and_then(|read| read.cpu_on_other_cache(now, &near));
                publish_distances(b, &entity, &here.evidence, other_cache);
                publish_judgement(b, &entity, key, judged, *offset);
                publish_step(b, &entity, &account.pulse);
            }
            if let Some(profile) = hint(facts, key, account) {
                b.add(&m::gpu_owner_mig_profile_hint_info, &entity, (ProfileName(profile),), 1.0);
            }
            collectives.publish(b, key, &pids, now);
            views.push(OwnerView {
                owner: Arc::clone(&account.owner),
                gpu: key.gpu.clone(),
                gpu_instance: key.place,
                processes: pids,
                cause: judged.judgements.get(key).filter(|_| here.is_some()).and_then(|judged| judged.cause),
                worked: account.past.progress,
                waits_since: account.past.waits_since(),
            });
        }
        views
    }

    /// Publishes the series that are not about a single GPU.
    fn publish_node(&self, b: &mut Builder<'_>, without_series: &OwnerIds) {
        self.host_use.publish(b, &self.accounts, without_series);
        b.add(&m::gpu_exporter_owners_dropped, &Node {}, (), without_series.len() as f64);
        for (phase, histogram) in &self.starts {
            b.histogram(&m::gpu_owner_start_seconds, &Node {}, (*phase,), histogram);
        }
    }
}

/// Publishes the counters of an owner: time, energy, steps.
fn publish_sums(
    b: &mut Builder<'_>,
    entity: &OwnedGpu,
    key: &AccountKey,
    account: &Account,
    facts: &GpuFacts,
    tracks: &GpuTracks,
) {
    let sums = &account.sums;
    let has = |place, what: fn(&Tracks) -> bool| tracks.get(&(key.gpu.clone(), place)).is_some_and(what);
    // Without the instance's share of the GPU, nothing can be counted.
    let shared = key.place.is_none_or(|instance| facts.share(instance).is_some());
    let counted = |sum: f64| (sum > 0.0 || shared).then_some(sum);
    let allocated = counted(sums.allocated);
    let busy = counted(sums.busy).filter(|busy| *busy > 0.0 || has(key.place, |tracks| tracks.has_work));
    let joules = counted(sums.joules).filter(|_| has(None, |tracks| tracks.has_power));
    let steps = Some(account.pulse.steps()).filter(|steps| *steps > 0.0);
    b.add_known(&m::gpu_owner_allocated_seconds_total, entity, (), allocated);
    b.add_known(&m::gpu_owner_busy_seconds_total, entity, (), busy);
    b.add_known(&m::gpu_owner_energy_joules_total, entity, (), joules);
    b.add_known(&m::gpu_owner_steps_total, entity, (), steps);
    b.add(&m::gpu_owner_ended_at_full_memory_total, entity, (), sums.ended_full);
    for (class, seconds) in GpuTimeClass::ALL.iter().zip(sums.classes).filter(|_| allocated.is_some()) {
        b.add(&m::gpu_owner_gpu_seconds_total, entity, (*class,), seconds);
    }
}

/// Publishes how much of an owner's CPUs and memory is far from the GPU.
fn publish_distances(b: &mut Builder<'_>, entity: &OwnedGpu, evidence: &Evidence, other_cache: Option<f64>) {
    b.add_known(&m::gpu_owner_cpu_remote_ratio, entity, (), evidence.cpu_remote);
    b.add_known(&m::gpu_owner_cpu_remote_cache_ratio, entity, (), other_cache);
    b.add_known(&m::gpu_owner_memory_remote_ratio, entity, (), evidence.memory_remote);
}

/// Publishes the bottleneck of an owner, its last progress, and its missing and slow ranks. `offset`: wall clock
/// minus monotonic clock, in seconds.
fn publish_judgement(
    b: &mut Builder<'_>,
    entity: &OwnedGpu,
    key: &AccountKey,
    judged: &JudgedOwners,
    offset: f64,
) {
    if let Some(OwnerJudgement { cause, progress }) = judged.judgements.get(key) {
        for one in Cause::ALL.iter().filter(|_| cause.is_some()) {
            b.flag(&m::gpu_bottleneck, entity, (*one,), *cause == Some(*one));
        }
        let progress = progress.map(|at| pulse::seconds(at) + offset);
        b.add_known(&m::gpu_owner_last_progress_timestamp_seconds, entity, (), progress);
    }
    let Some(ranks) = judged.ranks.get(&key.owner).filter(|_| key.place.is_none()) else { return };
    if let Some(missing) = &ranks.missing {
        b.flag(&m::gpu_owner_missing_rank, entity, (), missing.contains(&key.gpu.gpu));
    }
    let slow = ranks.slow.filter(|(gpu, _)| *gpu == key.gpu.gpu).map(|(_, share)| share);
    b.add_known(&m::gpu_owner_slow_rank_ratio, entity, (), slow);
}

/// Publishes the step of an owner's work, if known.
fn publish_step(b: &mut Builder<'_>, entity: &OwnedGpu, pulse: &Pulse) {
    if let Some(beat) = pulse.step() {
        b.add(&m::gpu_owner_step_seconds, entity, (), beat.seconds);
        b.add(&m::gpu_owner_step_confidence_ratio, entity, (kind(beat.kind),), beat.confidence);
        b.add(&m::gpu_owner_step_jitter_ratio, entity, (), beat.jitter);
    }
    b.add_known(&m::gpu_owner_step_slowdown_ratio, entity, (), pulse.slowdown());
}

fn kind(kind: heartbeat::PeriodKind) -> StepPeriod {
    match kind {
        heartbeat::PeriodKind::Step => StepPeriod::Step,
        heartbeat::PeriodKind::SmallestUnit => StepPeriod::SmallestUnit,
    }
}

/// Processes and memory of all owners of a GPU without series.
struct Others {
    pids: Vec<u32>,
    /// Bytes; `None` if the driver does not report them.
    memory: Option<u64>,
}

impl Others {
    fn collect(without_series: &OwnerIds, present: &[PresentOwner], pids: &OwnerPids) -> Others {
        let all = pids.iter().filter(|((_, owner), _)| without_series.contains(owner));
        let mut memory =
            present.iter().filter(|one| without_series.contains(&one.owner.id)).map(|one| one.memory);
        let first = memory.next().unwrap_or(Some(0));
        let sum = memory.flatten().fold(first, |sum, bytes| Some(sum.unwrap_or(0).saturating_add(bytes)));
        Others { pids: all.flat_map(|(_, pids)| pids.iter().copied()).collect(), memory: sum }
    }
}

/// Returns the smallest MIG profile that would have been enough.
fn hint(facts: &GpuFacts, key: &AccountKey, account: &Account) -> Option<Arc<str>> {
    let of_gpu = key.place.map_or(Some(1.0), |instance| facts.share(instance))?;
    let memory = account.memory.percentile(PERCENTILE)? * facts.memory?;
    let multiprocessors = account.multiprocessors.percentile(PERCENTILE)? * of_gpu;
    let need = (memory, multiprocessors);
    let found = smallest(facts.profiles.iter().map(|name| &**name), facts.slices?, need)?;
    Some(found.into())
}
