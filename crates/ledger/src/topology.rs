//! Location of every GPU: the topology joined with the GPUs by PCI address.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::accounting::Accounting;
use super::builder::Builder;
use super::intake::{LedgerMoment, label};
use model::catalog::schema::KnownLabel;
use model::catalog::{
    self as m, ComputeInstance, Gpu, HostObject, LinkAspect, MigInfo, MigTopologyInfo, Nic, NicInfo, Node,
    Tier, TopologyAgainst, TopologyInfo,
};
use model::clock::Mono;
use model::cpus::CpuSet;
use model::topology as host;
use model::topology::TopologyUpdate;
use model::topology::divide::{self, CpuShare};
use model::topology::place::{self, GpuPlacement};
use model::topology::{Device, DeviceKind};

/// Time at work after which a slow link will not become faster.
const AT_WORK: Duration = Duration::from_secs(30);
/// Time after its last work for which a GPU counts as working.
const PAUSE: Duration = Duration::from_secs(3);

#[derive(Default)]
pub(crate) struct TopologyState {
    update: Option<Arc<TopologyUpdate>>,
    /// Time of the update; `None` until the next publication.
    updated: Option<Mono>,
    /// All GPUs of the machine, with their shares of the CPUs.
    places: Vec<(GpuPlacement, CpuShare)>,
    speeds: BTreeMap<Arc<str>, Speed>,
}

/// Verdict on the generation of a GPU's link.
#[derive(Default)]
struct Speed {
    /// Time since which the GPU has been at work.
    busy_since: Option<Mono>,
    verdict: Option<bool>,
}

impl Speed {
    /// Judges a reading. A fast enough link passes. A slower one fails if the GPU was at work long enough before to
    /// speed it up.
    fn judge(
        &mut self,
        (generation, read): (f64, Mono),
        wanted: f64,
        last_work: Option<Mono>,
        now: Mono,
    ) -> Option<bool> {
        let busy = last_work.is_some_and(|last| now.since(last) <= PAUSE);
        self.busy_since = if busy { self.busy_since.or(Some(now)) } else { None };
        if generation >= wanted {
            self.verdict = Some(true);
        } else if self.busy_since.is_some_and(|since| read.since(since) >= AT_WORK) {
            self.verdict = Some(false);
        }
        self.verdict
    }
}

impl TopologyState {
    /// Applies a new topology.
    pub fn replace(&mut self, update: TopologyUpdate) {
        self.places = divide::placed(&update.topology);
        self.update = Some(Arc::new(update));
        self.updated = None;
    }

    /// Returns the location of a GPU of the topology.
    fn place(&self, device: &Device) -> Option<&(GpuPlacement, CpuShare)> {
        self.places.iter().find(|(place, _)| place.address == device.address)
    }

    pub fn gpu(&self, address: &str) -> Option<&Device> {
        self.update.as_ref()?.topology.gpu(address)
    }

    /// Returns the CPUs near a GPU, and their last-level caches: those of its NUMA node, or of the only node.
    pub fn near(&self, device: &Device) -> Option<(CpuSet, Vec<CpuSet>)> {
        let topology = &self.update.as_ref()?.topology;
        let nodes = topology.numa_nodes.iter().filter(|node| !node.cpus.is_empty()).count();
        if device.numa_node.is_none() && nodes != 1 {
            return None;
        }
        let caches = topology.l3_groups.iter().map(|group| group.cpus.and(&device.cpus));
        let caches = caches.filter(|cpus| !cpus.is_empty()).collect();
        Some((device.cpus.clone(), caches))
    }

    /// Returns the CPUs of the last-level caches in the share of a GPU (`None`) and of its GPU instances.
    pub fn caches_of_shares(
        &self,
        moment: &LedgerMoment<'_>,
        gpu: &Gpu,
        device: &Device,
    ) -> BTreeMap<Option<u32>, CpuSet> {
        let mut found = BTreeMap::new();
        let (Some(update), Some((_, share))) = (&self.update, self.place(device)) else { return found };
        let slices = slices(moment, &update.topology, gpu, share);
        let slices = slices.iter().map(|slice| (Some(slice.instance.gpu_instance), &slice.share));
        for (place, share) in [(None, share)].into_iter().chain(slices) {
            let caches = update.topology.l3_groups.iter().filter(|group| share.l3.contains(&group.index));
            let cpus = caches.fold(CpuSet::default(), |cpus, group| cpus.or(&group.cpus));
            let of_place = found.entry(place).or_insert_with(CpuSet::default);
            *of_place = of_place.or(&cpus);
        }
        found
    }

    /// Publishes all series about the topology.
    pub fn publish(
        &mut self,
        b: &mut Builder<'_>,
        moment: &LedgerMoment<'_>,
        accounting: &Accounting,
    ) -> Option<Arc<TopologyUpdate>> {
        let update = self.update.clone()?;
        self.updated.get_or_insert(moment.now);
        publish_objects(b, &update.topology);
        for (against, differences) in [
            (TopologyAgainst::FirstSeen, &update.against_first_seen),
            (TopologyAgainst::Declared, &update.against_declared),
        ] {
            if let Some(differences) = differences {
                b.flag(&m::gpu_host_topology_matches, &Node {}, (against,), differences.is_empty());
            }
        }
        let mut nics = BTreeSet::new();
        for (gpu, up) in moment.gpus() {
            let Some(address) = moment.intake.info_of(gpu, "pci_address") else { continue };
            let Some(device) = update.topology.gpu(&address) else { continue };
            self.publish_links(b, moment, gpu, device, up, accounting.last_work(gpu));
            let Some((place, share)) = self.place(device) else { continue };
            publish_place(b, gpu, place, share);
            if up {
                for Slice { instance, mig_uuid, share } in slices(moment, &update.topology, gpu, share) {
                    let share = share.cpus.to_string();
                    let labels = MigTopologyInfo { mig_uuid, numa_node: number(place.numa_node), share };
                    b.add(&m::gpu_mig_host_topology_info, instance, labels, 1.0);
                }
            }
            let nic = place.nic.as_ref().and_then(|near| {
                let nic = update.topology.devices.iter().find(|device| device.address == near.address)?;
                publish_nic(b, gpu, nic, near.path);
                Some(nic)
            });
            nics.extend(nic.map(|nic| nic.address.as_str()));
        }
        for nic in update.topology.devices.iter().filter(|device| nics.contains(device.address.as_str())) {
            let Some(network) = &nic.network else { continue };
            let name = || (Nic(nic.network_name().into()),);
            if let Some(up) = network.up {
                b.flag(&m::gpu_host_nic_up, &Node {}, name(), up);
            }
            b.add_known(&m::gpu_host_nic_speed_bytes_per_second, &Node {}, name(), network.bytes_per_second);
        }
        self.speeds.retain(|uuid, _| moment.gpus().any(|(gpu, _)| gpu.uuid == *uuid));
        Some(update)
    }

    /// Publishes the port above a GPU, and whether the link is as fast as both ends allow. NVML's values take
    /// precedence over those in sysfs, because they are fresher.
    fn publish_links(
        &mut self,
        b: &mut Builder<'_>,
        moment: &LedgerMoment<'_>,
        gpu: &Gpu,
        device: &Device,
        up: bool,
        last_work: Option<Mono>,
    ) {
        let Some(port) = device.port else { return };
        b.add(&m::gpu_host_pcie_port_max_generation, gpu, (), f64::from(port.generation));
        b.add(&m::gpu_host_pcie_port_max_width_lanes, gpu, (), f64::from(port.lanes));
        // The driver's values of a GPU that does not answer are withdrawn.
        let read = |metric| moment.intake.value_of(gpu, metric, None, moment.now).filter(|_| up);
        let (most, current) = (device.link.map(|link| link.most), device.link.map(|link| link.now));
        let own = read(m::gpu_pcie_link_max_width_lanes.id()).or(most.map(|most| f64::from(most.lanes)));
        let lanes = read(m::gpu_pcie_link_width_lanes.id()).or(current.map(|now| f64::from(now.lanes)));
        if let (Some(own), Some(lanes)) = (own, lanes) {
            let matches = lanes >= own.min(f64::from(port.lanes));
            b.flag(&m::gpu_host_pcie_link_matches, gpu, (LinkAspect::Width,), matches);
        }
        let own = read(m::gpu_pcie_link_max_generation.id()).or(most.map(|most| f64::from(most.generation)));
        let asked = moment.intake.fresh(gpu, Tier::Slow, moment.now).map(|stored| stored.taken);
        let generation = read(m::gpu_pcie_link_generation.id()).zip(asked);
        let generation = generation.or(current.map(|now| f64::from(now.generation)).zip(self.updated));
        if let (Some(own), Some(generation)) = (own, generation) {
            let wanted = own.min(f64::from(port.generation));
            let speed = self.speeds.entry(Arc::clone(&gpu.uuid)).or_default();
            if let Some(matches) = speed.judge(generation, wanted, last_work, moment.now) {
                b.flag(&m::gpu_host_pcie_link_matches, gpu, (LinkAspect::Generation,), matches);
            }
        }
    }
}

/// MIG device and its share of the CPUs.
struct Slice<'a> {
    instance: &'a ComputeInstance,
    mig_uuid: String,
    share: CpuShare,
}

/// Returns the shares of the MIG devices of a GPU.
fn slices<'a>(
    moment: &'a LedgerMoment<'_>,
    topology: &host::Topology,
    gpu: &Gpu,
    share: &CpuShare,
) -> Vec<Slice<'a>> {
    let Some(stored) = moment.intake.fresh(gpu, Tier::Normal, moment.now) else { return Vec::new() };
    let text = |row, name| label::<MigInfo>(row, name).unwrap_or_default().to_owned();
    let slices = stored.mig_devices().filter_map(|(slice, row)| {
        let row = row?;
        Some((slice, text(row, "mig_uuid"), text(row, "mig_profile")))
    });
    let mut slices: Vec<_> = slices.collect();
    if slices.is_empty() {
        return Vec::new();
    }
    slices.sort_by_key(|(slice, ..)| (slice.gpu_instance, slice.compute_instance));
    let weights: Vec<u32> = slices.iter().map(|(.., profile)| divide::compute_slices(profile)).collect();
    let shares = divide::among_slices(topology, &share.cpus, &weights);
    let slices = slices.into_iter().zip(shares);
    slices.map(|((instance, mig_uuid, _), share)| Slice { instance, mig_uuid, share }).collect()
}

fn number(number: Option<u32>) -> String {
    number.map(|number| number.to_string()).unwrap_or_default()
}

fn publish_objects(b: &mut Builder<'_>, topology: &host::Topology) {
    let devices = |kind| topology.devices.iter().filter(|device| device.kind == kind).count();
    for (object, count) in [
        (HostObject::Package, topology.packages.len()),
        (HostObject::NumaNode, topology.numa_nodes.len()),
        (HostObject::L3, topology.l3_groups.len()),
        (HostObject::Core, topology.cores.len()),
        (HostObject::Cpu, topology.cpus.len()),
        (HostObject::Gpu, devices(DeviceKind::Gpu)),
        (HostObject::Nvswitch, devices(DeviceKind::Nvswitch)),
        (HostObject::Network, devices(DeviceKind::Network)),
        (HostObject::Storage, devices(DeviceKind::Storage)),
    ] {
        b.add(&m::gpu_host_objects, &Node {}, (object,), count as f64);
    }
}

fn publish_place(b: &mut Builder<'_>, gpu: &Gpu, place: &GpuPlacement, share: &CpuShare) {
    let l3: CpuSet = share.l3.iter().copied().collect();
    let labels = TopologyInfo {
        numa_node: number(place.numa_node),
        cpus: place.cpus.to_string(),
        l3: l3.to_string(),
        package: number(place.package),
        root_port: place.root_port.clone().unwrap_or_default(),
        pcie_switch: place.switch.clone().unwrap_or_default(),
        share: share.cpus.to_string(),
    };
    b.add(&m::gpu_host_topology_info, gpu, labels, 1.0);
}

fn publish_nic(b: &mut Builder<'_>, gpu: &Gpu, nic: &Device, path: place::DevicePath) {
    let labels = NicInfo {
        nic: nic.network_name().to_owned(),
        device: nic.network.as_ref().map(|network| network.interface.clone()).unwrap_or_default(),
        pci_address: nic.address.clone(),
        path: path.known().to_owned(),
    };
    b.add(&m::gpu_host_nic_info, gpu, labels, 1.0);
}

#[cfg(test)]
mod tests;
