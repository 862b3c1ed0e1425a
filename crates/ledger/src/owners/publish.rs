//! What is told of owners.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::accounts::{Account, Key};
use super::remote::Readings;
use super::sketch::{Need, PERCENTILE, smallest};
use super::timeline::{Look, Place, Present};
use super::tracks::{Tracks, link_rate};
use super::{Ledger, Owners};
use crate::bottleneck::Evidence;
use crate::publish::Builder;
use model::catalog::schema::{Entity, KnownLabel, Label};
use model::catalog::{self as m, Cause, ClockEvent, Gpu, Node, ProfileName};
use model::clock::Mono;
use model::snapshot::{GpuState, OwnerView, Value};
use model::topology::Device;

/// What the ledger knows of a GPU that owners need.
struct About {
    gpu: Gpu,
    /// Whether it answers: what was measured is withdrawn while it does not.
    up: bool,
    /// Whether it is known who is on it now.
    listed: bool,
    /// Memory, in bytes.
    memory: Option<f64>,
    /// Compute slices in MIG mode.
    slices: Option<f64>,
    /// Compute slices of each GPU instance.
    instances: Vec<(u32, f64)>,
    /// Highest rate of the PCIe link of late, bytes a second one way.
    link: Option<f64>,
    /// Where it sits.
    device: Option<Device>,
    /// MIG profiles that it has.
    profiles: Vec<Arc<str>>,
}

impl About {
    /// The share of the GPU that an instance is.
    fn share(&self, instance: u32) -> Option<f64> {
        let slices = self.instances.iter().find(|(id, _)| *id == instance)?.1;
        self.slices.filter(|all| *all >= slices && *all > 0.0).map(|all| slices / all)
    }
}

impl Ledger {
    /// Everything about owners.
    pub(crate) fn put_owners(
        &mut self,
        b: &mut Builder<'_>,
        now: Mono,
        unix_seconds: f64,
        states: &[(Gpu, GpuState)],
    ) -> Vec<OwnerView> {
        if !self.settings.owners.enabled {
            return Vec::new();
        }
        let mut about: Vec<About> =
            states.iter().map(|(gpu, state)| self.about(gpu, *state == GpuState::Up, now)).collect();
        for one in &mut about {
            let held = |events: [ClockEvent; 2]| -> Option<f64> {
                let book = self.gpus.get(&one.gpu).filter(|_| one.up)?;
                Some(events.iter().map(|event| book.clock_events.seconds(*event)).sum())
            };
            let power = held([ClockEvent::SwPowerCap, ClockEvent::HwPowerBrakeSlowdown]);
            let heat = held([ClockEvent::SwThermalSlowdown, ClockEvent::HwThermalSlowdown]);
            let tracks = self.owners.tracks(&one.gpu, None);
            one.link = tracks.link(now, one.link);
            if let (Some(power), Some(heat)) = (power, heat) {
                tracks.power_held.total(now, power);
                tracks.heat_held.total(now, heat);
            }
        }
        let owners = &mut self.owners;
        owners.offset = unix_seconds - now.0 as f64 * 1e-9;
        for one in &about {
            owners.settle(&one.gpu, now, |instance| one.share(instance), one.memory);
        }
        owners.count_contexts();
        owners.accounts.tidy(now, owners.settings.retention);
        owners.tenants.forget(now);
        owners.readings.retain(|_, readings| readings.newest(now).is_some());
        let accounts = &owners.accounts;
        owners.kills.retain(|owner, _| accounts.is_seated(owner) || owners.readings.contains_key(owner));
        let views = about.iter().flat_map(|one| owners.put_gpu(b, one, now)).collect();
        owners.put_node(b);
        views
    }

    fn about(&self, gpu: &Gpu, up: bool, now: Mono) -> About {
        let value = |metric| self.value_of(gpu, metric, None, now);
        let generation = value(m::gpu_pcie_link_generation.id());
        let lanes = value(m::gpu_pcie_link_width_lanes.id());
        let topology = self.topology.newest().map(|news| &news.topology);
        let address = self.info_of(gpu, m::gpu_info.id(), "pci_address").filter(|text| !text.is_empty());
        let device = topology.zip(address).and_then(|(topology, address)| topology.gpu(&address).cloned());
        let (mut instances, mut profiles) = (Vec::new(), Vec::new());
        let held =
            self.parts.iter().filter(|(part, held)| part.gpu.as_ref() == Some(gpu) && !held.expired(now));
        for (subject, rows) in held.flat_map(|(_, held)| held.rows.groups()) {
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
            listed: up && self.processes_of(gpu, now).is_some(),
            memory: value(m::gpu_memory_total_bytes.id()),
            slices: value(m::gpu_mig_slices.id()),
            instances,
            link: generation.zip(lanes).and_then(|(generation, lanes)| link_rate(generation, lanes)),
            device,
            profiles,
        }
    }
}

impl Owners {
    /// Ids of the processes of each owner at each place.
    fn pids(&self, look: &Look, now: Mono) -> BTreeMap<(Place, Arc<str>), Vec<u32>> {
        let mut all: BTreeMap<(Place, Arc<str>), BTreeSet<u32>> = BTreeMap::new();
        for seat in &look.seats {
            let owner = self.tenants.owner(seat.tenant, now, &self.unknown);
            if let (Some(owner), Some(tenant)) = (owner, self.tenants.get(seat.tenant)) {
                all.entry((seat.place, Arc::clone(&owner.id))).or_default().insert(tenant.pid);
            }
        }
        all.into_iter().map(|(key, pids)| (key, pids.into_iter().collect())).collect()
    }

    /// The accounts of one GPU.
    fn put_gpu(&mut self, b: &mut Builder<'_>, about: &About, now: Mono) -> Vec<OwnerView> {
        let look = self.lines.get(&about.gpu).and_then(|line| line.newest()).filter(|_| about.listed);
        let present = look.map(|(_, look)| self.present(look, now)).unwrap_or_default();
        let pids = look.map(|(_, look)| self.pids(look, now)).unwrap_or_default();
        let Owners { accounts, readings, tracks, works, powered, .. } = self;
        let mut views = Vec::new();
        for (key, account) in accounts.seated().filter(|(key, _)| key.gpu == about.gpu) {
            let here = present.iter().find(|p| p.place == key.place && p.owner.id == key.owner);
            let pids = pids.get(&(key.place, Arc::clone(&key.owner))).cloned().unwrap_or_default();
            let entity = key.entity();
            let place = (key.gpu.clone(), key.place);
            b.put(&m::gpu_owner_info, &entity, account.owner.info.clone(), 1.0);
            if about.listed {
                b.put(&m::gpu_owner_processes, &entity, (), pids.len() as f64);
                // After its end it holds none.
                if let Some(bytes) = here.map_or(Some(0), |here| here.memory) {
                    b.put(&m::gpu_owner_memory_used_bytes, &entity, (), bytes as f64);
                }
            }
            // Without its share of the GPU nothing of an instance can be counted.
            let counted =
                |sum: f64| sum > 0.0 || key.place.is_none_or(|instance| about.share(instance).is_some());
            if counted(account.allocated) {
                b.put(&m::gpu_owner_allocated_seconds_total, &entity, (), account.allocated);
            }
            if works.contains(&place) && counted(account.busy) {
                b.put(&m::gpu_owner_busy_seconds_total, &entity, (), account.busy);
            }
            if powered.contains(&key.gpu) && counted(account.joules) {
                b.put(&m::gpu_owner_energy_joules_total, &entity, (), account.joules);
            }
            b.put(&m::gpu_owner_ended_at_full_memory_total, &entity, (), account.ended_full);
            let read = readings.get(&key.owner);
            let (mut cause, live) = (None, here);
            if let Some(here) = live {
                let evidence = evidence(about, key.place, here, read, tracks, now);
                cause = account.cause.found(evidence.cause(), now);
                if let Some(remote) = evidence.cpu_remote {
                    b.put(&m::gpu_owner_cpu_remote_ratio, &entity, (), remote);
                }
                if let Some(remote) = evidence.memory_remote {
                    b.put(&m::gpu_owner_memory_remote_ratio, &entity, (), remote);
                }
                for one in Cause::ALL.iter().filter(|_| cause.is_some()) {
                    b.put(&m::gpu_bottleneck, &entity, (*one,), f64::from(u8::from(cause == Some(*one))));
                }
            } else {
                account.cause = Default::default();
            }
            if let Some(profile) = hint(about, key, account) {
                b.put(&m::gpu_owner_mig_profile_hint_info, &entity, (ProfileName(profile),), 1.0);
            }
            views.push(OwnerView {
                owner: Arc::clone(&account.owner),
                gpu: key.gpu.clone(),
                gpu_instance: key.place,
                processes: pids,
                cause,
            });
        }
        views
    }

    /// What is about no single GPU.
    fn put_node(&self, b: &mut Builder<'_>) {
        for (owner, kills) in self.kills.iter().filter(|(owner, _)| self.accounts.is_seated(owner)) {
            let entity = m::Owner { owner: Arc::clone(owner) };
            b.put(&m::gpu_owner_host_oom_kills_total, &entity, (), kills.sum());
        }
        b.put(&m::gpu_exporter_owners_dropped, &Node {}, (), self.accounts.dropped() as f64);
        for (phase, histogram) in &self.starts {
            let value = Value::Histogram(Arc::new(histogram.clone()));
            b.row(&Node {}.subject(), m::gpu_owner_start_seconds.id(), vec![phase.text()], value);
        }
    }
}

/// What is known of what holds an owner back.
fn evidence(
    about: &About,
    place: Place,
    here: &Present,
    read: Option<&Readings>,
    tracks: &BTreeMap<(Gpu, Place), Tracks>,
    now: Mono,
) -> Evidence {
    let whole = tracks.get(&(about.gpu.clone(), None));
    let own = tracks.get(&(about.gpu.clone(), place));
    let pcie = own.and_then(|t| {
        let rates = t.pcie.iter().filter_map(|track| track.rate(now));
        rates.reduce(f64::max).zip(about.link).map(|(rate, link)| (rate / link).min(1.0))
    });
    let device = about.device.as_ref();
    Evidence {
        power_held: whole.and_then(|t| t.power_held.share(now)),
        heat_held: whole.and_then(|t| t.heat_held.share(now)),
        owners: here.owners,
        busy: own.and_then(|t| t.busy.share(now)),
        busiest_thread: read.and_then(|r| r.busiest_thread(now)),
        quota_used: read.and_then(|r| r.quota_used(now)),
        cpu_remote: read.zip(device).and_then(|(r, device)| r.cpu_remote(now, device)),
        memory_remote: read.zip(device).and_then(|(r, device)| r.memory_remote(now, device)),
        pcie,
        dram: own.and_then(|t| t.dram.share(now)),
        sm: own.and_then(|t| t.sm.share(now)),
    }
}

/// The smallest MIG profile that would have been enough.
fn hint(about: &About, key: &Key, account: &Account) -> Option<Arc<str>> {
    let of_gpu = key.place.map_or(Some(1.0), |instance| about.share(instance))?;
    let need = Need {
        memory: account.memory.percentile(PERCENTILE)? * about.memory?,
        multiprocessors: account.multiprocessors.percentile(PERCENTILE)? * of_gpu,
    };
    let found = smallest(about.profiles.iter().map(|name| &**name), about.slices?, need)?;
    Some(found.into())
}
