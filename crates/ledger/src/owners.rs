//! Owners of the work on the GPUs, with their time and energy.
//!
//! The sampler lists processes, a collector finds their owners later, and the driver's samples arrive even later.
//! [`timeline`] joins them by time, [`accounts`] adds up, [`judge`] finds step, ranks and cause, and [`publish`]
//! creates the series. `docs/OWNERS.md` defines all figures.

mod accounts;
mod classes;
mod collectives;
mod gpm;
mod gpus;
mod host_use;
mod judge;
mod mig_hint;
mod past;
mod publish;
mod pulse;
mod ranks;
mod records;
mod remote;
mod sums;
mod tenants;
mod timeline;
mod tracks;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::bottleneck::is_work;
use accounts::{AccountKey, Accounts};
use collectives::Collectives;
use gpm::UnitWindow;
use host_use::HostUse;
use model::catalog::schema::KnownLabel;
use model::catalog::{self as m, Gpu, SampleBuffer, StartPhase, Subject};
use model::clock::Mono;
use model::owner_records::OwnerRecords;
use model::owners::{GpuProcess, Owner, OwnerReading, OwnerUpdate};
use model::sample::{Batch, GpmWindow};
use model::snapshot::Histogram;
use ranks::Ranks;
use records::Records;
use remote::Readings;
use tenants::Tenants;
use timeline::{Amount, AmountKind, InstanceId, ListedProcess, Listing, Timeline};
use tracks::Tracks;

/// Share of used memory from which on it counts as full.
const FULL: f64 = 0.98;
/// Maximum age of the previous process list for a new process to count as just started.
const WATCHED: std::time::Duration = std::time::Duration::from_secs(3);
/// Maximum number of owners with readings.
const MOST_READ: usize = 2048;

/// Bounds of the histogram of start times, in seconds. Processes are listed once a second, so shorter times cannot be
/// distinguished.
static START_SECONDS: [f64; 10] = [1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0];

#[derive(Default)]
pub(crate) struct OwnerState {
    settings: settings::Owners,
    unknown: Arc<Owner>,
    tenants: Tenants,
    lines: BTreeMap<Gpu, Timeline>,
    accounts: Accounts,
    readings: HashMap<Arc<str>, Readings>,
    host_use: HostUse,
    tracks: BTreeMap<(Gpu, InstanceId), Tracks>,
    ranks: Ranks,
    /// Time of the last judgement.
    judged: Option<Mono>,
    /// GPUs that were unhealthy in the last snapshot, by UUID.
    pub unhealthy: BTreeSet<Arc<str>>,
    starts: Vec<(StartPhase, Histogram)>,
    records: Records,
    collectives: Collectives,
    /// Wall clock minus monotonic clock, in seconds.
    offset: f64,
}

impl OwnerState {
    /// Creates the state. `records`: the owner records of an earlier daemon.
    pub fn new(settings: settings::Owners, records: OwnerRecords) -> OwnerState {
        let starts = StartPhase::ALL.iter().map(|phase| (*phase, Histogram::new(&START_SECONDS)));
        OwnerState {
            accounts: Accounts::new(settings.max_series as usize),
            settings,
            starts: starts.collect(),
            records: Records::new(records),
            offset: model::clock::unix_seconds() - Mono::now().0 as f64 * 1e-9,
            ..OwnerState::default()
        }
    }

    /// Applies new settings. Owners with series keep them, even if the limit is lower now.
    pub fn configure(&mut self, settings: settings::Owners) {
        self.accounts.allow(settings.max_series as usize);
        self.settings = settings;
    }

    /// Updates the labels of an owner everywhere.
    fn relabel(&mut self, owner: &Arc<Owner>) {
        let of_tenants = self.tenants.all.values_mut().filter_map(|tenant| tenant.owner.as_mut());
        let of_accounts = self.accounts.all.iter_mut().map(|(_, account)| &mut account.owner);
        of_tenants.chain(of_accounts).filter(|one| one.id == owner.id).for_each(|one| {
            one.clone_from(owner);
        });
    }

    pub fn update(&mut self, update: OwnerUpdate, now: Mono) {
        match update {
            OwnerUpdate::Attributed(list) => {
                for one in &list {
                    self.tenants.attribute(one, self.offset, now);
                    self.relabel(&one.owner);
                }
            }
            OwnerUpdate::Read(list) => list.into_iter().for_each(|reading| self.read(reading)),
            OwnerUpdate::Collectives(answer) => self.collectives.record(answer),
        }
    }

    fn read(&mut self, reading: OwnerReading) {
        if !self.readings.contains_key(&reading.owner) && self.readings.len() >= MOST_READ {
            return;
        }
        self.host_use.read(&reading);
        self.readings.entry(Arc::clone(&reading.owner)).or_default().push(reading);
    }

    /// Counts a process that the OOM killer ended. Without its control group, the process must be known. The kill
    /// count of the owner's own group is read separately.
    pub(super) fn killed(&mut self, group: Option<&str>, pid: u32) {
        if let Some(owner) = self.tenants.owner_in(group, pid).filter(|owner| **owner != *self.unknown.id) {
            self.host_use.killed(owner);
        }
    }

    /// Records a process list of a GPU. `full`: the places with full memory.
    pub(super) fn listed(&mut self, gpu: &Gpu, at: Mono, processes: &[GpuProcess], full: Vec<InstanceId>) {
        if !self.settings.enabled {
            return;
        }
        let line = self.lines.entry(gpu.clone()).or_default();
        let fresh = line.newest.as_ref().is_some_and(|(then, _)| at.since(*then) <= WATCHED);
        let processes = processes.iter().map(|one| ListedProcess {
            tenant: self.tenants.listed(one.pid, at, fresh),
            place: one.instance.map(|(gpu_instance, _)| gpu_instance),
            memory: one.memory,
        });
        line.listed(at, Listing { processes: processes.collect(), full });
    }

    /// Records one of the driver's samples, which describes the interval since the previous one.
    pub(super) fn sampled(&mut self, gpu: &Gpu, buffer: SampleBuffer, at: Mono, seconds: f64, amount: f64) {
        if !self.settings.enabled {
            return;
        }
        self.records.sampled(gpu, buffer, at);
        let quantity = match buffer {
            SampleBuffer::Power => {
                self.tracks(gpu, None).drew(at, seconds, amount);
                AmountKind::Joules
            }
            SampleBuffer::Utilization => {
                self.tracks(gpu, None).worked(at, seconds, amount);
                AmountKind::Busy(None)
            }
        };
        self.measured(gpu, quantity, at, seconds, amount);
    }

    /// Records a GPM window that was just read.
    pub(super) fn gpm(&mut self, gpu: &Gpu, window: &GpmWindow, at: Mono) {
        if !self.settings.enabled {
            return;
        }
        let place = match &window.subject {
            Subject::Gpu(_) => None,
            Subject::GpuInstance(instance) => Some(instance.gpu_instance),
            _ => return,
        };
        let window = UnitWindow::new(window, at);
        self.tracks(gpu, place).add_window(place, &window);
        if window.sm.is_some() {
            self.note_activity(gpu, place, &window);
        }
        if let (Some(amount), Some(_)) = (window.graphics, place) {
            self.tracks(gpu, place).worked(at, window.seconds, amount);
            self.measured(gpu, AmountKind::Busy(place), at, window.seconds, amount);
        }
    }

    /// Adds an amount of the last `seconds` before `to`, to be divided among owners.
    fn measured(&mut self, gpu: &Gpu, quantity: AmountKind, to: Mono, seconds: f64, amount: f64) {
        if let Some(line) = self.lines.get_mut(gpu) {
            let from = Mono(to.0.saturating_sub((seconds * 1e9) as u64));
            line.measured(Amount { quantity, from, to, amount });
        }
    }

    /// Records multiprocessor activity and work for an owner that has the place to itself.
    fn note_activity(&mut self, gpu: &Gpu, place: InstanceId, window: &UnitWindow) {
        let Some((_, listing)) = self.newest_listing(gpu) else { return };
        let present = self.present(listing, window.at);
        let mut here = present.iter().filter(|one| one.place == place);
        let (Some(one), None) = (here.next(), here.next()) else { return };
        let processes = listing.at(place);
        let key = AccountKey { gpu: gpu.clone(), place, owner: Arc::clone(&one.owner.id) };
        if let Some(account) = self.accounts.all.get_mut(&key) {
            let sm = window.share(window.sm);
            account.multiprocessors.add(sm.min(1.0), window.seconds);
            if is_work(sm, window.share(window.pipes), window.share(window.dram)) {
                account.past.worked(&processes, window.seconds, window.at);
            }
        }
    }

    fn newest_listing(&self, gpu: &Gpu) -> Option<&(Mono, Listing)> {
        self.lines.get(gpu)?.newest.as_ref()
    }

    fn tracks(&mut self, gpu: &Gpu, place: InstanceId) -> &mut Tracks {
        self.tracks.entry((gpu.clone(), place)).or_default()
    }

    /// Returns the owners at each place of a listing. Processes without a known owner are left out.
    fn present(&self, listing: &Listing, now: Mono) -> Vec<timeline::PresentOwner> {
        let owner = |id| self.tenants.owner(id, now, &self.unknown);
        let known = listing.processes.iter().filter(|one| owner(one.tenant).is_some());
        let known: Vec<ListedProcess> = known.copied().collect();
        timeline::present(&known, owner).unwrap_or_default()
    }

    /// Settles the time of a GPU, and divides the amounts measured in it.
    fn settle(&mut self, gpu: &Gpu, now: Mono, share: impl Fn(u32) -> Option<f64>, total: Option<f64>) {
        let OwnerState { lines, tenants, accounts, records, unknown, .. } = self;
        let Some(line) = lines.get_mut(gpu) else { return };
        for settled in line.settle(|id| tenants.owner(id, now, unknown)) {
            accounts.settle(gpu, &settled, &share, total);
            records.settle(gpu, &settled, accounts);
        }
        let (parts, works) = line.divide(share);
        accounts.add(gpu, parts);
        for (id, at) in works {
            self.worked(id, at);
        }
    }

    /// Records the first work of a process that had its GPU to itself.
    fn worked(&mut self, id: u64, at: Mono) {
        let offset = self.offset;
        let Some(tenant) = self.tenants.all.get_mut(&id) else { return };
        if tenant.fresh
            && !std::mem::replace(&mut tenant.work_counted, true)
            && let Some(started) = tenant.started
        {
            let seconds = at.0 as f64 * 1e-9 + offset - started;
            self.observe(StartPhase::FirstBusy, seconds);
        }
    }

    /// Counts the first contexts of processes whose start time is known by now.
    fn count_contexts(&mut self) {
        let mut seconds = Vec::new();
        for tenant in self.tenants.all.values_mut().filter(|t| t.fresh && !t.context_counted) {
            if let Some(started) = tenant.started {
                tenant.context_counted = true;
                seconds.push(tenant.first.0 as f64 * 1e-9 + self.offset - started);
            }
        }
        seconds.into_iter().for_each(|seconds| self.observe(StartPhase::FirstContext, seconds));
    }

    fn observe(&mut self, phase: StartPhase, seconds: f64) {
        // Clocks and readings differ slightly. A start in the future is an error.
        if seconds < -2.0 {
            return;
        }
        if let Some((_, histogram)) = self.starts.iter_mut().find(|(of, _)| *of == phase) {
            histogram.observe(seconds.max(0.0));
        }
    }

    /// Returns the owner of a process, or if that is unknown, the only owner on the GPU or GPU instance.
    pub(super) fn owner_of(
        &self,
        gpu: Option<&Gpu>,
        place: InstanceId,
        pid: Option<u32>,
    ) -> Option<Arc<str>> {
        if let Some(owner) = pid.and_then(|pid| self.tenants.owner_of_pid(pid)) {
            return Some(Arc::clone(&owner.id));
        }
        let (at, listing) = self.newest_listing(gpu?)?;
        // Contains only processes with a known owner.
        let present = self.present(listing, *at);
        let mut here = present.iter().filter(|one| place.is_none() || one.place == place);
        let (Some(one), None) = (here.next(), here.next()) else { return None };
        Some(Arc::clone(&one.owner.id)).filter(|id| **id != *self.unknown.id)
    }

    /// Forgets a GPU that was replaced.
    pub(super) fn forget(&mut self, gpu: &Gpu) {
        self.lines.remove(gpu);
        self.records.forget(gpu, &mut self.accounts);
        self.accounts.forget(gpu);
        self.tracks.retain(|(of, _), _| of != gpu);
    }
}

/// Returns the places with full memory, according to a visit.
pub(super) fn full_memory(batch: &Batch) -> Vec<InstanceId> {
    let of = |rows: &[model::sample::Row], free: m::MetricId, total: m::MetricId| {
        let value = |metric| rows.iter().find(|row| row.metric == metric).map(|row| row.value);
        let (free, total) = (value(free)?, value(total).filter(|total| *total > 0.0)?);
        Some(1.0 - free / total >= FULL)
    };
    let places = batch.rows.groups().iter().filter_map(|(subject, rows)| match subject {
        Subject::Gpu(_) => {
            let full = of(rows, m::gpu_memory_free_bytes.id(), m::gpu_memory_total_bytes.id())?;
            full.then_some(None)
        }
        Subject::GpuInstance(instance) => {
            let full = of(rows, m::gpu_mig_memory_free_bytes.id(), m::gpu_mig_memory_total_bytes.id())?;
            full.then_some(Some(instance.gpu_instance))
        }
        _ => None,
    });
    places.collect()
}

#[cfg(test)]
mod tests;
