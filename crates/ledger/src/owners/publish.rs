//! The series of owners.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::OwnerState;
use super::accounts::{Account, AccountKey};
use super::classes::ClassWindow;
use super::pulse;
use super::ranks::{OwnerGpu, RanksFound};
use super::remote::{NearCpus, Readings};
use super::sketch::{PERCENTILE, smallest};
use super::timeline::{self, InstanceId, Listing, PresentOwner};
use super::tracks::{Track, Tracks};
use crate::accounting::Accounting;
use crate::bottleneck::{Evidence, Pace, RESTS};
use crate::builder::Builder;
use crate::intake::LedgerMoment;
use crate::topology::TopologyState;
use model::catalog::schema::KnownLabel;
use model::catalog::{
    self as m, Cause, ClockEvent, Gpu, GpuTimeClass, Node, OwnedGpu, OwnerKind, ProfileName, StepPeriod,
};
use model::clock::Mono;
use model::cpus::CpuSet;
use model::pci::link_rate;
use model::snapshot::OwnerView;
use model::topology::Device;

/// Reasons for which clocks are held down that are no power cap. Several at once are one time.
const HELD: [ClockEvent; 3] =
    [ClockEvent::HwSlowdown, ClockEvent::SwThermalSlowdown, ClockEvent::HwPowerBrakeSlowdown];

/// A window of GPM comes within this time: every 10 s, and of an instance every minute.
fn latest(place: InstanceId) -> Duration {
    Duration::from_secs(if place.is_some() { 90 } else { 30 })
}

/// What the ledger knows of a GPU that owners need.
struct About {
    gpu: Gpu,
    /// Whether it answers: what was measured is withdrawn while it does not.
    up: bool,
    /// Whether its processes are known now.
    listed: bool,
    /// Memory, in bytes.
    memory: Option<f64>,
    /// Compute slices in MIG mode.
    slices: Option<f64>,
    /// Compute slices of each GPU instance.
    instances: Vec<(u32, f64)>,
    /// Highest rate of the PCIe link of late, bytes a second one way.
    link: Option<f64>,
    /// Its place in the topology.
    device: Option<Device>,
    /// CPUs near it, and their last-level caches.
    near: Option<(CpuSet, Vec<CpuSet>)>,
    /// MIG profiles that it has.
    profiles: Vec<Arc<str>>,
}

impl About {
    /// CPUs near the GPU, for an owner whose shares have caches with these CPUs.
    fn near_cpus(&self, own: Option<CpuSet>) -> NearCpus {
        let (node, caches) = self.near.clone().unzip();
        let own = own.zip(node.as_ref()).map(|(own, node)| own.and(node));
        NearCpus { node, caches: caches.unwrap_or_default(), own }
    }

    /// The share of the GPU that an instance is.
    fn share(&self, instance: u32) -> Option<f64> {
        let slices = self.instances.iter().find(|(id, _)| *id == instance)?.1;
        self.slices.filter(|all| *all >= slices && *all > 0.0).map(|all| slices / all)
    }
}

fn about(moment: &LedgerMoment<'_>, topology: &TopologyState, gpu: &Gpu, up: bool) -> About {
    let (intake, now) = (moment.intake, moment.now);
    let value = |metric| intake.value_of(gpu, metric, None, now);
    let generation = value(m::gpu_pcie_link_generation.id());
    let lanes = value(m::gpu_pcie_link_width_lanes.id());
    let address = intake.info_of(gpu, "pci_address").filter(|text| !text.is_empty());
    let device = address.and_then(|address| topology.gpu(&address).cloned());
    let (mut instances, mut profiles) = (Vec::new(), Vec::new());
    let fresh = intake.of_gpu(gpu).filter(|(_, stored)| !stored.expired(now));
    for (subject, rows) in fresh.flat_map(|(_, stored)| stored.rows.groups()) {
        match subject {
            m::Subject::GpuInstance(instance) => {
                let slices = instance.profile.split_once('g').and_then(|(n, _)| n.parse().ok());
                instances.extend(slices.map(|slices: f64| (instance.gpu_instance, slices)));
            }
            m::Subject::Gpu(_) => {
                let listed = rows.iter().filter(|r| r.metric == m::gpu_mig_profile_capacity.id());
                profiles.extend(listed.filter_map(|row| match row.labels.first() {
                    Some(m::schema::LabelText::Text(name)) => Some(Arc::clone(name)),
                    _ => None,
                }));
            }
            _ => {}
        }
    }
    About {
        gpu: gpu.clone(),
        up,
        listed: up && intake.processes_of(gpu, now).is_some(),
        memory: value(m::gpu_memory_total_bytes.id()),
        slices: value(m::gpu_mig_slices.id()),
        instances,
        link: generation.zip(lanes).and_then(|(generation, lanes)| link_rate(generation, lanes)),
        near: device.as_ref().and_then(|device| topology.near(device)),
        device,
        profiles,
    }
}
impl OwnerState {
    pub fn put(
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
        let mut about: Vec<About> = moment.gpus().map(|(gpu, up)| about(moment, topology, gpu, up)).collect();
        for one in &mut about {
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
        for one in &about {
            self.settle(&one.gpu, now, |instance| one.share(instance), one.memory);
        }
        self.count_contexts();
        self.records.retire(&mut self.accounts, now, self.settings.retention);
        self.accounts.tidy(now, self.settings.retention);
        self.tenants.forget(now);
        self.readings.retain(|_, readings| readings.newest(now).is_some());
        let without_series = self.accounts.without_series();
        let starts = self.starts(&about, now);
        self.records.started(&starts);
        self.host_use.present(starts);
        let OwnerState { accounts, readings, host_use, .. } = self;
        host_use.divide(accounts, &without_series, |owner| readings.contains_key(owner));
        let shares = self.caches_of_owners(&about, moment, topology);
        let here = self.here(&about, now);
        self.follow_steps(&about, &here, now);
        let mut ranks = self.follow_ranks(&here, now);
        let judged = self.judge(&here, &ranks, now);
        self.name_missing(&mut ranks, &judged, now);
        self.classify(&about, &here, accounting, now);
        let views = about.iter().flat_map(|one| {
            let found = OwnersFound { here: &here, judged: &judged, ranks: &ranks, shares: &shares };
            self.put_gpu(b, one, &found, &without_series, now)
        });
        let views = views.collect();
        self.put_node(b, &without_series);
        views
    }

    /// The owners with processes on GPUs whose processes are known, each with the start of the first of them.
    fn starts(&self, about: &[About], now: Mono) -> HashMap<Arc<str>, f64> {
        let mut starts: HashMap<Arc<str>, f64> = HashMap::new();
        let listed =
            about.iter().filter(|one| one.listed).filter_map(|one| self.lines.get(&one.gpu)?.newest());
        for process in listed.flat_map(|(_, listing)| &listing.processes) {
            let owner = self.tenants.owner(process.tenant, now, &self.unknown);
            let started = self.tenants.get(process.tenant).and_then(|tenant| tenant.started);
            if let (Some(owner), Some(started)) = (owner, started) {
                let first = starts.entry(Arc::clone(&owner.id)).or_insert(started);
                *first = first.min(started);
            }
        }
        starts
    }

    /// CPUs of the last-level caches in the shares of all places where an owner has work; `None`: one of them is not known.
    /// No owner while a GPU lists no processes: each may have work there.
    fn caches_of_owners(
        &self,
        about: &[About],
        moment: &LedgerMoment<'_>,
        topology: &TopologyState,
    ) -> BTreeMap<Arc<str>, Option<CpuSet>> {
        let mut found: BTreeMap<Arc<str>, Option<CpuSet>> = BTreeMap::new();
        if about.iter().any(|one| !one.listed) {
            return found;
        }
        for one in about {
            let Some((_, listing)) = self.lines.get(&one.gpu).and_then(|line| line.newest()) else {
                continue;
            };
            let present = self.present(listing, moment.now);
            // The shares of slices cost time to divide: not for a GPU without work.
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

    /// Ids of the processes of each owner at each place.
    fn pids(&self, listing: &Listing, now: Mono) -> BTreeMap<(InstanceId, Arc<str>), Vec<u32>> {
        let mut all: BTreeMap<(InstanceId, Arc<str>), BTreeSet<u32>> = BTreeMap::new();
        for process in &listing.processes {
            let owner = self.tenants.owner(process.tenant, now, &self.unknown);
            if let (Some(owner), Some(tenant)) = (owner, self.tenants.get(process.tenant)) {
                all.entry((process.place, Arc::clone(&owner.id))).or_default().insert(tenant.pid);
            }
        }
        all.into_iter().map(|(key, pids)| (key, pids.into_iter().collect())).collect()
    }

    /// The owners at each place now, with the evidence of their work.
    fn here(&self, about: &[About], now: Mono) -> BTreeMap<AccountKey, Here> {
        let mut all = BTreeMap::new();
        for one in about.iter().filter(|one| one.listed) {
            let Some((_, listing)) = self.lines.get(&one.gpu).and_then(|line| line.newest()) else {
                continue;
            };
            for present in self.present(listing, now) {
                let place = present.place;
                let key = AccountKey { gpu: one.gpu.clone(), place, owner: Arc::clone(&present.owner.id) };
                let read = self.readings.get(&key.owner);
                let evidence = evidence(one, place, &present, read, &self.tracks, now);
                // Whose kernels wait is known of one that is alone.
                let pace = evidence.pace().filter(|_| present.owners == 1);
                let PresentOwner { owners, memory, .. } = present;
                all.insert(key, Here { owners, processes: listing.at(place), memory, evidence, pace });
            }
        }
        all
    }

    /// Finds the step of each owner that has a whole GPU alone.
    fn follow_steps(&mut self, about: &[About], here: &BTreeMap<AccountKey, Here>, now: Mono) {
        for one in about {
            let tracks = self.tracks(&one.gpu, None);
            let (measured, rests) = (std::mem::take(&mut tracks.measured), tracks.rests(now));
            let mut present = here.iter().filter(|(key, _)| key.gpu == one.gpu);
            let alone = match (present.next(), present.next()) {
                (Some((key, alone)), None) if key.place.is_none() => Some((key, alone)),
                _ => None,
            };
            let others = self.accounts.iter_mut().filter(|(key, _)| key.gpu == one.gpu);
            others.filter(|(key, _)| alone.is_none_or(|(alone, _)| alone != *key)).for_each(
                |(_, account)| {
                    account.pulse.interrupt();
                },
            );
            if let Some((key, alone)) = alone
                && let Some(account) = self.accounts.get_mut(key)
            {
                let busy = alone.evidence.busy.is_some_and(|busy| busy > RESTS);
                let works = alone.pace.map_or(busy, |pace| pace == Pace::Moves);
                account.pulse.follow(&alone.processes, measured, works, rests, now);
            }
        }
    }

    /// Compares the GPUs of each owner that has them alone.
    fn follow_ranks(
        &mut self,
        here: &BTreeMap<AccountKey, Here>,
        now: Mono,
    ) -> BTreeMap<Arc<str>, RanksFound> {
        let mut owners: BTreeMap<Arc<str>, Vec<OwnerGpu>> = BTreeMap::new();
        for (key, one) in here {
            let Some(account) = self.accounts.get_mut(key) else { continue };
            // Other processes of a user may be of other work.
            let one_job = !matches!(account.owner.kind, OwnerKind::User | OwnerKind::Unknown);
            let rank = OwnerGpu {
                gpu: key.gpu.gpu,
                pace: one.pace,
                of_work: one_job && account.past.is_of_work(&one.processes),
                longer_than_waits: account.past.longer_than_waits(),
                sm: one.evidence.sm,
                step: account.pulse.newest(),
                beats: one_job && account.pulse.step().is_some(),
                still: account.pulse.is_still(),
            };
            owners.entry(Arc::clone(&key.owner)).or_default().push(rank);
        }
        let whole = |owner: &Arc<str>| {
            let of = here.iter().filter(|(key, _)| key.owner == *owner);
            of.into_iter().all(|(key, one)| key.place.is_none() && one.owners == 1)
        };
        owners.retain(|owner, _| whole(owner));
        self.ranks.follow(&owners, self.settings.wedged_after, now)
    }

    /// Names what holds each owner back.
    fn judge(
        &mut self,
        here: &BTreeMap<AccountKey, Here>,
        ranks: &BTreeMap<Arc<str>, RanksFound>,
        now: Mono,
    ) -> BTreeMap<AccountKey, OwnerJudgement> {
        let mut all = BTreeMap::new();
        let elapsed = self.judged.replace(now).map_or(Duration::ZERO, |before| now.since(before));
        let OwnerState { accounts, tracks, settings, .. } = self;
        for (key, account) in accounts.iter_mut() {
            let Some(one) = here.get(key) else {
                account.cause = Default::default();
                account.past.interrupt(now);
                continue;
            };
            let halted = account.past.halted(
                &one.processes,
                one.pace,
                account.pulse.newest().is_some(),
                settings,
                now,
            );
            let ranks = ranks.get(&key.owner);
            let cause = match ranks {
                Some(ranks) if ranks.missing.is_some() => account.cause.name(Cause::Wedged),
                Some(ranks) if ranks.stalled => account.cause.name(Cause::Stalled),
                // It goes on: nothing to be sure of for long.
                Some(_) if account.cause.named() == Some(Cause::Stalled) && one.pace != Some(Pace::Rests) => {
                    account.cause.name(one.evidence.cause().unwrap_or(Cause::Unknown))
                }
                _ => account.cause.found(halted.or_else(|| one.evidence.cause()), now),
            };
            if ranks.and_then(|ranks| ranks.slow).is_some_and(|(gpu, _)| gpu == key.gpu.gpu) {
                account.slow += elapsed.min(timeline::LONGEST).as_secs_f64();
            }
            let worked = || tracks.get(&(key.gpu.clone(), key.place)).and_then(Tracks::newest_work);
            let progress = match cause {
                Some(Cause::Wedged) if one.pace != Some(Pace::Rests) => account.past.progress(),
                Some(Cause::Wedged | Cause::Stalled) => account.past.progress().max(worked()),
                _ => None,
            };
            all.insert(key.clone(), OwnerJudgement { cause, progress });
        }
        all
    }

    /// Has NCCL name the missing rank of owners that are wedged, where it was asked.
    fn name_missing(
        &self,
        ranks: &mut BTreeMap<Arc<str>, RanksFound>,
        judged: &BTreeMap<AccountKey, OwnerJudgement>,
        now: Mono,
    ) {
        for (owner, found) in ranks {
            let wedged = || {
                let mut of = judged.iter().filter(|(key, _)| key.owner == *owner);
                of.all(|(_, judged)| judged.cause == Some(Cause::Wedged))
            };
            if let Some(gpu) = self.collectives.fewest(owner, now).filter(|_| wedged()) {
                found.missing = Some(vec![gpu]);
            }
        }
    }

    /// Puts the allocated time of which enough is measured by now into classes.
    fn classify(
        &mut self,
        about: &[About],
        here: &BTreeMap<AccountKey, Here>,
        accounting: &Accounting,
        now: Mono,
    ) {
        let mut gpus: BTreeMap<&Arc<str>, BTreeSet<&Gpu>> = BTreeMap::new();
        for key in here.keys() {
            gpus.entry(&key.owner).or_default().insert(&key.gpu);
        }
        for one in about {
            let held = HELD.map(|event| accounting.clock_event_seconds(&one.gpu, &[event]));
            let faulted = self.unhealthy.contains(&one.gpu.uuid);
            // Also a place without an owner: what was measured there is of none.
            let of_gpu = self.tracks.keys().filter(|(gpu, _)| *gpu == one.gpu);
            let mut places: BTreeSet<InstanceId> = of_gpu.map(|(_, place)| *place).collect();
            let accounts = self.accounts.iter_mut().filter(|(key, _)| key.gpu == one.gpu);
            places.extend(accounts.map(|(key, _)| key.place));
            for place in places {
                let gathered = &mut self.tracks(&one.gpu, place).gathered;
                gathered.held(held);
                let Some(stretch) = gathered.take(latest(place), now) else { continue };
                let of = |key: &AccountKey| key.gpu == one.gpu && key.place == place;
                for (key, account) in self.accounts.iter_mut().filter(|(key, _)| of(key)) {
                    let cause = account.cause.named().filter(|_| here.contains_key(key));
                    let several = gpus.get(&key.owner).is_some_and(|gpus| gpus.len() > 1);
                    account.divide(&ClassWindow { faulted, cause, several, ..stretch }.divide());
                }
            }
        }
    }

    /// The accounts of one GPU.
    fn put_gpu(
        &mut self,
        b: &mut Builder<'_>,
        about: &About,
        found: &OwnersFound<'_>,
        without_series: &BTreeSet<Arc<str>>,
        now: Mono,
    ) -> Vec<OwnerView> {
        let listing = self.lines.get(&about.gpu).and_then(|line| line.newest()).filter(|_| about.listed);
        let present = listing.map(|(_, listing)| self.present(listing, now)).unwrap_or_default();
        let pids = listing.map(|(_, listing)| self.pids(listing, now)).unwrap_or_default();
        let unix = |at: Mono| pulse::seconds(at) + self.offset;
        let OwnerState { accounts, readings, tracks, collectives, .. } = self;
        let others = Others::of(without_series, &present, &pids);
        let other = Arc::clone(accounts.other());
        let mut views = Vec::new();
        for (key, account) in accounts.iter_mut().filter(|(key, _)| key.gpu == about.gpu) {
            let here = found.here.get(key);
            let (pids, memory) = if key.owner == other.id {
                (others.pids.clone(), others.memory)
            } else {
                let pids = pids.get(&(key.place, Arc::clone(&key.owner))).cloned();
                // After its end it holds none.
                (pids.unwrap_or_default(), here.map_or(Some(0), |here| here.memory))
            };
            let entity = OwnedGpu::new(&key.gpu, key.place, &key.owner);
            let has =
                |place, what: fn(&Tracks) -> bool| tracks.get(&(key.gpu.clone(), place)).is_some_and(what);
            b.put(&m::gpu_owner_info, &entity, account.owner.info.clone(), 1.0);
            if about.listed {
                b.put(&m::gpu_owner_processes, &entity, (), pids.len() as f64);
                if let Some(bytes) = memory {
                    b.put(&m::gpu_owner_memory_used_bytes, &entity, (), bytes as f64);
                }
            }
            // Without its share of the GPU nothing of an instance can be counted.
            let counted =
                |sum: f64| sum > 0.0 || key.place.is_none_or(|instance| about.share(instance).is_some());
            if counted(account.allocated) {
                b.put(&m::gpu_owner_allocated_seconds_total, &entity, (), account.allocated);
            }
            let measured = account.busy > 0.0 || has(key.place, |tracks| tracks.has_work);
            if measured && counted(account.busy) {
                b.put(&m::gpu_owner_busy_seconds_total, &entity, (), account.busy);
            }
            if has(None, |tracks| tracks.has_power) && counted(account.joules) {
                b.put(&m::gpu_owner_energy_joules_total, &entity, (), account.joules);
            }
            b.put(&m::gpu_owner_ended_at_full_memory_total, &entity, (), account.ended_full);
            let classes = GpuTimeClass::ALL.iter().zip(account.classes);
            for (class, seconds) in classes.filter(|_| counted(account.allocated)) {
                b.put(&m::gpu_owner_gpu_seconds_total, &entity, (*class,), seconds);
            }
            let steps = account.pulse.steps();
            if steps > 0.0 {
                b.put(&m::gpu_owner_steps_total, &entity, (), steps);
            }
            let read = readings.get(&key.owner);
            let mut cause = None;
            if let Some(here) = here {
                let evidence = &here.evidence;
                let judged = found.judged.get(key);
                cause = judged.and_then(|judged| judged.cause);
                if let Some(remote) = evidence.cpu_remote {
                    b.put(&m::gpu_owner_cpu_remote_ratio, &entity, (), remote);
                }
                let near = about.near_cpus(found.shares.get(&key.owner).cloned().flatten());
                if let Some(remote) = read.and_then(|read| read.cpu_on_other_cache(now, &near)) {
                    b.put(&m::gpu_owner_cpu_remote_cache_ratio, &entity, (), remote);
                }
                if let Some(remote) = evidence.memory_remote {
                    b.put(&m::gpu_owner_memory_remote_ratio, &entity, (), remote);
                }
                for one in Cause::ALL.iter().filter(|_| cause.is_some()) {
                    b.flag(&m::gpu_bottleneck, &entity, (*one,), cause == Some(*one));
                }
                if let Some(progress) = judged.and_then(|judged| judged.progress) {
                    b.put(&m::gpu_owner_last_progress_timestamp_seconds, &entity, (), unix(progress));
                }
                if let Some(beat) = account.pulse.step() {
                    b.put(&m::gpu_owner_step_seconds, &entity, (), beat.seconds);
                    b.put(&m::gpu_owner_step_confidence_ratio, &entity, (kind(beat.kind),), beat.confidence);
                    b.put(&m::gpu_owner_step_jitter_ratio, &entity, (), beat.jitter);
                }
                if let Some(slowdown) = account.pulse.slowdown() {
                    b.put(&m::gpu_owner_step_slowdown_ratio, &entity, (), slowdown);
                }
                let ranks = found.ranks.get(&key.owner).filter(|_| key.place.is_none());
                if let Some(missing) = ranks.and_then(|ranks| ranks.missing.as_ref()) {
                    b.flag(&m::gpu_owner_missing_rank, &entity, (), missing.contains(&key.gpu.gpu));
                }
                if let Some((_, share)) =
                    ranks.and_then(|ranks| ranks.slow).filter(|(gpu, _)| *gpu == key.gpu.gpu)
                {
                    b.put(&m::gpu_owner_slow_rank_ratio, &entity, (), share);
                }
            }
            if let Some(profile) = hint(about, key, account) {
                b.put(&m::gpu_owner_mig_profile_hint_info, &entity, (ProfileName(profile),), 1.0);
            }
            collectives.put(b, key, &pids, now);
            views.push(OwnerView {
                owner: Arc::clone(&account.owner),
                gpu: key.gpu.clone(),
                gpu_instance: key.place,
                processes: pids,
                cause,
                worked: account.past.progress(),
                waits_since: account.past.waits_since(),
            });
        }
        views
    }

    /// What is about no single GPU.
    fn put_node(&self, b: &mut Builder<'_>, without_series: &BTreeSet<Arc<str>>) {
        self.host_use.put(b, &self.accounts, without_series);
        b.put(&m::gpu_exporter_owners_dropped, &Node {}, (), without_series.len() as f64);
        for (phase, histogram) in &self.starts {
            b.histogram(&m::gpu_owner_start_seconds, &Node {}, (*phase,), histogram);
        }
    }
}

/// An owner at a place now.
#[derive(Debug)]
struct Here {
    /// Owners there, this one counted.
    owners: usize,
    /// Its processes among the tenants.
    processes: Vec<u64>,
    /// Device memory of its processes; `None` where the driver lists none.
    memory: Option<u64>,
    evidence: Evidence,
    /// Whether its kernels get on; known of one that is alone.
    pace: Option<Pace>,
}

/// What is said of an owner at a place.
#[derive(Debug)]
struct OwnerJudgement {
    cause: Option<Cause>,
    /// Its last progress, while it is wedged or stalled.
    progress: Option<Mono>,
}

/// What is found of all owners, for their series.
struct OwnersFound<'a> {
    here: &'a BTreeMap<AccountKey, Here>,
    judged: &'a BTreeMap<AccountKey, OwnerJudgement>,
    ranks: &'a BTreeMap<Arc<str>, RanksFound>,
    shares: &'a BTreeMap<Arc<str>, Option<CpuSet>>,
}

fn kind(kind: heartbeat::PeriodKind) -> StepPeriod {
    match kind {
        heartbeat::PeriodKind::Step => StepPeriod::Step,
        heartbeat::PeriodKind::SmallestUnit => StepPeriod::SmallestUnit,
    }
}

/// What the owners of a GPU that have no series have together.
struct Others {
    pids: Vec<u32>,
    /// Bytes; `None` where the driver lists none.
    memory: Option<u64>,
}

impl Others {
    fn of(
        without_series: &BTreeSet<Arc<str>>,
        present: &[PresentOwner],
        pids: &BTreeMap<(InstanceId, Arc<str>), Vec<u32>>,
    ) -> Others {
        let all = pids.iter().filter(|((_, owner), _)| without_series.contains(owner));
        let mut memory =
            present.iter().filter(|one| without_series.contains(&one.owner.id)).map(|one| one.memory);
        let first = memory.next().unwrap_or(Some(0));
        let sum = memory.flatten().fold(first, |sum, bytes| Some(sum.unwrap_or(0).saturating_add(bytes)));
        Others { pids: all.flat_map(|(_, pids)| pids.iter().copied()).collect(), memory: sum }
    }
}

/// Evidence of what slows an owner down.
fn evidence(
    about: &About,
    place: InstanceId,
    here: &PresentOwner,
    read: Option<&Readings>,
    tracks: &BTreeMap<(Gpu, InstanceId), Tracks>,
    now: Mono,
) -> Evidence {
    let whole = tracks.get(&(about.gpu.clone(), None));
    let own = tracks.get(&(about.gpu.clone(), place));
    let busier = |ways: &[Track; 2]| ways.iter().filter_map(|way| way.rate(now)).reduce(f64::max);
    let pcie_bytes = own.and_then(|t| busier(&t.pcie));
    let pcie = pcie_bytes.zip(about.link).map(|(rate, link)| (rate / link).min(1.0));
    let device = about.device.as_ref();
    Evidence {
        power_held: whole.and_then(|t| t.power_held.share(now)),
        heat_held: whole.and_then(|t| t.heat_held.share(now)),
        owners: here.owners,
        busy: own.and_then(|t| t.busy.share(now)),
        busiest_thread: read.and_then(|r| r.busiest_thread(now)),
        quota_used: read.and_then(|r| r.quota_used(now)),
        cpu_remote: read.zip(device).and_then(|(r, device)| r.cpu_on_other_node(now, device)),
        memory_remote: read.zip(device).and_then(|(r, device)| r.memory_remote(now, device)),
        pcie,
        dram: own.and_then(|t| t.dram.share(now)),
        sm: own.and_then(|t| t.sm.share(now)),
        // Several pipes at once add up to more than 1.
        pipes: own.and_then(|t| t.pipes.rate(now)),
        pcie_bytes,
        nvlink_bytes: own.and_then(|t| busier(&t.nvlink)),
        power_deviation: whole.and_then(|t| t.power_deviation(now)),
        instance: place.is_some(),
    }
}

/// The smallest MIG profile that would have been enough.
fn hint(about: &About, key: &AccountKey, account: &Account) -> Option<Arc<str>> {
    let of_gpu = key.place.map_or(Some(1.0), |instance| about.share(instance))?;
    let memory = account.memory.percentile(PERCENTILE)? * about.memory?;
    let multiprocessors = account.multiprocessors.percentile(PERCENTILE)? * of_gpu;
    let need = (memory, multiprocessors);
    let found = smallest(about.profiles.iter().map(|name| &**name), about.slices?, need)?;
    Some(found.into())
}
