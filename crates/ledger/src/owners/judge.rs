//! Judgement of the owners that have processes on GPUs: step, ranks, bottleneck and time by class.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::OwnerState;
use super::accounts::AccountKey;
use super::classes::ClassWindow;
use super::gpus::GpuFacts;
use super::ranks::{OwnerGpu, RanksFound};
use super::remote::Readings;
use super::timeline::{self, InstanceId, PresentOwner};
use super::tracks::{Track, Tracks};
use crate::accounting::Accounting;
use crate::bottleneck::{Evidence, Pace, RESTS};
use model::catalog::{Cause, ClockEvent, Gpu, OwnerKind};
use model::clock::Mono;

/// Reasons for reduced clocks other than a power cap. Overlapping reasons count once.
const HELD: [ClockEvent; 3] =
    [ClockEvent::HwSlowdown, ClockEvent::SwThermalSlowdown, ClockEvent::HwPowerBrakeSlowdown];

/// Returns the time within which a GPM window must come: every 10 s, or every minute for an instance.
fn latest(place: InstanceId) -> Duration {
    Duration::from_secs(if place.is_some() { 90 } else { 30 })
}

/// Owner that is present at a place.
pub(crate) struct Here {
    /// Number of owners at the place, including this one.
    pub owners: usize,
    /// Tenant numbers of its processes.
    pub processes: Vec<u64>,
    /// Device memory of its processes; `None` if the driver does not report it.
    pub memory: Option<u64>,
    pub evidence: Evidence,
    /// Progress of its kernels, if it has the place to itself.
    pub pace: Option<Pace>,
}

/// Judgement of an owner at a place.
pub(crate) struct OwnerJudgement {
    pub cause: Option<Cause>,
    /// Time of its last progress, while it is wedged or stalled.
    pub progress: Option<Mono>,
}

pub(crate) type PresentOwners = BTreeMap<AccountKey, Here>;
pub(crate) type Judgements = BTreeMap<AccountKey, OwnerJudgement>;
pub(crate) type RanksByOwner = BTreeMap<Arc<str>, RanksFound>;

/// Judgement of all owners.
pub(crate) struct JudgedOwners {
    pub here: PresentOwners,
    pub judgements: Judgements,
    /// Findings by owner, for owners that have their GPUs whole and to themselves.
    pub ranks: RanksByOwner,
}

impl OwnerState {
    /// Judges all owners, and adds the time since the last call to their classes.
    pub fn judge(&mut self, facts: &[GpuFacts], accounting: &Accounting, now: Mono) -> JudgedOwners {
        let here = self.here(facts, now);
        self.follow_steps(facts, &here, now);
        let mut ranks = self.follow_ranks(&here, now);
        let judgements = self.judgements(&here, &ranks, now);
        self.name_missing(&mut ranks, &judgements, now);
        self.classify(facts, &here, accounting, now);
        JudgedOwners { here, judgements, ranks }
    }

    /// Returns the owners at all places, with the evidence of their work.
    fn here(&self, facts: &[GpuFacts], now: Mono) -> PresentOwners {
        let mut all = BTreeMap::new();
        for one in facts.iter().filter(|one| one.listed) {
            let Some((_, listing)) = self.newest_listing(&one.gpu) else { continue };
            for present in self.present(listing, now) {
                let place = present.place;
                let key = AccountKey { gpu: one.gpu.clone(), place, owner: Arc::clone(&present.owner.id) };
                let read = self.readings.get(&key.owner);
                let evidence = evidence(one, place, &present, read, &self.tracks, now);
                // With several owners, it is unknown whose kernels wait.
                let pace = evidence.pace().filter(|_| present.owners == 1);
                let PresentOwner { owners, memory, .. } = present;
                all.insert(key, Here { owners, processes: listing.at(place), memory, evidence, pace });
            }
        }
        all
    }

    /// Finds the step of every owner that has a whole GPU to itself.
    fn follow_steps(&mut self, facts: &[GpuFacts], here: &PresentOwners, now: Mono) {
        for one in facts {
            let tracks = self.tracks(&one.gpu, None);
            let (measured, rests) = (std::mem::take(&mut tracks.measured), tracks.rests(now));
            let mut present = here.iter().filter(|(key, _)| key.gpu == one.gpu);
            let alone = match (present.next(), present.next()) {
                (Some((key, alone)), None) if key.place.is_none() => Some((key, alone)),
                _ => None,
            };
            let others = self.accounts.all.iter_mut().filter(|(key, _)| key.gpu == one.gpu);
            others.filter(|(key, _)| alone.is_none_or(|(alone, _)| alone != *key)).for_each(
                |(_, account)| {
                    account.pulse.interrupt();
                },
            );
            if let Some((key, alone)) = alone
                && let Some(account) = self.accounts.all.get_mut(key)
            {
                let busy = alone.evidence.busy.is_some_and(|busy| busy > RESTS);
                let works = alone.pace.map_or(busy, |pace| pace == Pace::Moves);
                account.pulse.follow(&alone.processes, measured, works, rests, now);
            }
        }
    }

    /// Compares the GPUs of each owner that has them to itself.
    fn follow_ranks(&mut self, here: &PresentOwners, now: Mono) -> RanksByOwner {
        let mut owners: BTreeMap<Arc<str>, Vec<OwnerGpu>> = BTreeMap::new();
        for (key, one) in here {
            let Some(account) = self.accounts.all.get_mut(key) else { continue };
            // Other processes of a user may belong to other work.
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

    /// Names the cause that limits every owner.
    fn judgements(&mut self, here: &PresentOwners, ranks: &RanksByOwner, now: Mono) -> Judgements {
        let mut all = BTreeMap::new();
        let elapsed = self.judged.replace(now).map_or(Duration::ZERO, |before| now.since(before));
        let OwnerState { accounts, tracks, settings, .. } = self;
        for (key, account) in accounts.all.iter_mut() {
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
                // The work continues, so no waiting is needed to be sure.
                Some(_) if account.cause.named == Some(Cause::Stalled) && one.pace != Some(Pace::Rests) => {
                    account.cause.name(one.evidence.cause().unwrap_or(Cause::Unknown))
                }
                _ => account.cause.found(halted.or_else(|| one.evidence.cause()), now),
            };
            if ranks.and_then(|ranks| ranks.slow).is_some_and(|(gpu, _)| gpu == key.gpu.gpu) {
                account.sums.slow += elapsed.min(timeline::LONGEST).as_secs_f64();
            }
            let worked = || tracks.get(&(key.gpu.clone(), key.place)).and_then(|tracks| tracks.newest_work);
            let progress = match cause {
                Some(Cause::Wedged) if one.pace != Some(Pace::Rests) => account.past.progress,
                Some(Cause::Wedged | Cause::Stalled) => account.past.progress.max(worked()),
                _ => None,
            };
            all.insert(key.clone(), OwnerJudgement { cause, progress });
        }
        all
    }

    /// Names the missing rank of wedged owners, if NCCL reported it.
    fn name_missing(&self, ranks: &mut RanksByOwner, judged: &Judgements, now: Mono) {
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

    /// Assigns allocated time to classes where enough is measured.
    fn classify(&mut self, facts: &[GpuFacts], here: &PresentOwners, accounting: &Accounting, now: Mono) {
        let mut gpus: BTreeMap<&Arc<str>, BTreeSet<&Gpu>> = BTreeMap::new();
        for key in here.keys() {
            gpus.entry(&key.owner).or_default().insert(&key.gpu);
        }
        for one in facts {
            let held = HELD.map(|event| accounting.clock_event_seconds(&one.gpu, &[event]));
            let faulted = self.unhealthy.contains(&one.gpu.uuid);
            // Includes places without an owner, whose measurements belong to no owner.
            let of_gpu = self.tracks.keys().filter(|(gpu, _)| *gpu == one.gpu);
            let mut places: BTreeSet<InstanceId> = of_gpu.map(|(_, place)| *place).collect();
            let accounts = self.accounts.all.iter_mut().filter(|(key, _)| key.gpu == one.gpu);
            places.extend(accounts.map(|(key, _)| key.place));
            for place in places {
                let gathered = &mut self.tracks(&one.gpu, place).gathered;
                gathered.held(held);
                let Some(stretch) = gathered.close_window(latest(place), now) else { continue };
                let of = |key: &AccountKey| key.gpu == one.gpu && key.place == place;
                for (key, account) in self.accounts.all.iter_mut().filter(|(key, _)| of(key)) {
                    let cause = account.cause.named.filter(|_| here.contains_key(key));
                    let several = gpus.get(&key.owner).is_some_and(|gpus| gpus.len() > 1);
                    account.divide(&ClassWindow { faulted, cause, several, ..stretch }.divide());
                }
            }
        }
    }
}

/// Returns the evidence for the causes that slow an owner down.
fn evidence(
    facts: &GpuFacts,
    place: InstanceId,
    here: &PresentOwner,
    read: Option<&Readings>,
    tracks: &BTreeMap<(Gpu, InstanceId), Tracks>,
    now: Mono,
) -> Evidence {
    let whole = tracks.get(&(facts.gpu.clone(), None));
    let own = tracks.get(&(facts.gpu.clone(), place));
    let busier = |ways: &[Track; 2]| ways.iter().filter_map(|way| way.rate(now)).reduce(f64::max);
    let pcie_bytes = own.and_then(|t| busier(&t.pcie));
    let pcie = pcie_bytes.zip(facts.link).map(|(rate, link)| (rate / link).min(1.0));
    let device = facts.device.as_ref();
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
        // Several active pipes add up to more than 1.
        pipes: own.and_then(|t| t.pipes.rate(now)),
        pcie_bytes,
        nvlink_bytes: own.and_then(|t| busier(&t.nvlink)),
        power_deviation: whole.and_then(|t| t.power_deviation(now)),
        instance: place.is_some(),
    }
}
