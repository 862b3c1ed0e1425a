//! Where each GPU sits: the topology joined with the GPUs by PCI address.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::Ledger;
use super::publish::Builder;
use model::catalog::schema::{LabelSet, LabelText};
use model::catalog::{
    self as m, Gpu, HostObject, LinkAspect, MigInfo, MigTopologyInfo, Nic, NicInfo, Node, Subject, Tier,
    TopologyAgainst, TopologyInfo,
};
use model::clock::Mono;
use model::sample::{Part, Source};
use model::snapshot::{GpuState, TopologyView};
use model::topology as host;
use model::topology::News;
use model::topology::divide::{self, Share};
use model::topology::place::{self, Place};
use model::topology::{Device, DeviceKind};

/// After so long at work a link that is still slow will not become faster.
const AT_WORK: Duration = Duration::from_secs(30);
/// A GPU that was busy so short a time ago is at work.
const PAUSE: Duration = Duration::from_secs(3);

/// What was told last, and what follows from it.
#[derive(Debug, Default)]
pub struct Topology {
    news: Option<Arc<News>>,
    /// When that was; `None` until the next publication.
    told: Option<Mono>,
    /// Each GPU of the machine with its share of CPUs.
    places: Vec<(Place, Share)>,
    speeds: BTreeMap<Arc<str>, Speed>,
}

/// Whether the link of a GPU has its generation.
#[derive(Debug, Default)]
struct Speed {
    /// Since when the GPU has been at work.
    busy_since: Option<Mono>,
    verdict: Option<bool>,
}

impl Speed {
    /// Judges what was read at this moment: a link that is fast enough is, one that is not is slow if the GPU had long
    /// enough before to wake it.
    fn judge(
        &mut self,
        (generation, read): (f64, Mono),
        wanted: f64,
        last_busy: Option<Mono>,
        now: Mono,
    ) -> Option<bool> {
        let busy = last_busy.is_some_and(|last| now.since(last) <= PAUSE);
        self.busy_since = if busy { self.busy_since.or(Some(now)) } else { None };
        if generation >= wanted {
            self.verdict = Some(true);
        } else if self.busy_since.is_some_and(|since| read.since(since) >= AT_WORK) {
            self.verdict = Some(false);
        }
        self.verdict
    }
}

impl Topology {
    /// Takes in what was found.
    pub fn take(&mut self, news: News) {
        let places = place::gpus(&news.topology);
        let near: Vec<_> = places.iter().map(|place| place.cpus.clone()).collect();
        let shares = divide::among_gpus(&news.topology, &near);
        self.places = places.into_iter().zip(shares).collect();
        self.news = Some(Arc::new(news));
        self.told = None;
    }

    /// The place of a GPU of the topology.
    fn place(&self, device: &Device) -> Option<&(Place, Share)> {
        self.places.iter().find(|(place, _)| place.address == device.address)
    }
}

impl Topology {
    /// What was told last.
    pub fn newest(&self) -> Option<&News> {
        self.news.as_deref()
    }
}

impl Ledger {
    /// Everything about the topology.
    pub(super) fn put_topology(
        &mut self,
        b: &mut Builder<'_>,
        now: Mono,
        states: &[(Gpu, GpuState)],
    ) -> TopologyView {
        let Some(news) = self.topology.news.clone() else { return TopologyView::default() };
        let looked = *self.topology.told.get_or_insert(now);
        put_objects(b, &news.topology);
        for (against, differences) in [
            (TopologyAgainst::FirstSeen, &news.against_first_seen),
            (TopologyAgainst::Declared, &news.against_declared),
        ] {
            if let Some(differences) = differences {
                b.put(&m::gpu_host_topology_matches, &Node {}, (against,), flag(differences.is_empty()));
            }
        }
        let mut nics = BTreeSet::new();
        for (gpu, state) in states {
            let up = *state == GpuState::Up;
            let Some(address) = self.info_of(gpu, m::gpu_info.id(), "pci_address") else { continue };
            let Some(device) = news.topology.gpu(&address) else { continue };
            self.put_links(b, gpu, device, up, looked, now);
            let Some((place, share)) = self.topology.place(device) else { continue };
            put_place(b, gpu, place, share);
            if up {
                self.put_slices(b, &news.topology, gpu, place, share, now);
            }
            let nic = place.nic.as_ref().and_then(|near| {
                let nic = news.topology.devices.iter().find(|device| device.address == near.address)?;
                put_nic(b, gpu, nic, near.path);
                Some(nic)
            });
            nics.extend(nic.map(|nic| nic.address.as_str()));
        }
        for nic in news.topology.devices.iter().filter(|device| nics.contains(device.address.as_str())) {
            put_network(b, nic);
        }
        self.topology.speeds.retain(|uuid, _| states.iter().any(|(gpu, _)| gpu.uuid == *uuid));
        TopologyView { news: Some(news) }
    }

    /// The port above a GPU, and whether the link is what both could have. NVML's word counts before sysfs': it is
    /// fresher.
    fn put_links(
        &mut self,
        b: &mut Builder<'_>,
        gpu: &Gpu,
        device: &Device,
        up: bool,
        looked: Mono,
        now: Mono,
    ) {
        if let Some(port) = device.port {
            b.put(&m::gpu_host_pcie_port_max_generation, gpu, (), f64::from(port.generation));
            b.put(&m::gpu_host_pcie_port_max_width_lanes, gpu, (), f64::from(port.lanes));
        }
        // What the driver said of a GPU that does not answer is told no longer.
        let told = |metric| self.value_of(gpu, metric, None, now).filter(|_| up);
        let (most, current) = (device.link.map(|link| link.most), device.link.map(|link| link.now));
        let own = told(m::gpu_pcie_link_max_width_lanes.id()).or(most.map(|most| f64::from(most.lanes)));
        let lanes = told(m::gpu_pcie_link_width_lanes.id()).or(current.map(|now| f64::from(now.lanes)));
        if let (Some(own), Some(lanes), Some(port)) = (own, lanes, device.port) {
            let matches = lanes >= own.min(f64::from(port.lanes));
            b.put(&m::gpu_host_pcie_link_matches, gpu, (LinkAspect::Width,), flag(matches));
        }
        let own = told(m::gpu_pcie_link_max_generation.id()).or(most.map(|most| f64::from(most.generation)));
        let slow = Part { collector: Source::Nvml, gpu: Some(gpu.clone()), tier: Tier::Slow };
        let asked = self.parts.get(&slow).map(|held| held.taken);
        let generation = told(m::gpu_pcie_link_generation.id()).zip(asked);
        let generation = generation.or(current.map(|now| (f64::from(now.generation), looked)));
        if let (Some(own), Some(generation), Some(port)) = (own, generation, device.port) {
            let last_busy = self.busy.last(gpu);
            let wanted = own.min(f64::from(port.generation));
            let speed = self.topology.speeds.entry(Arc::clone(&gpu.uuid)).or_default();
            if let Some(matches) = speed.judge(generation, wanted, last_busy, now) {
                b.put(&m::gpu_host_pcie_link_matches, gpu, (LinkAspect::Generation,), flag(matches));
            }
        }
    }

    /// The share of each MIG device of a GPU.
    fn put_slices(
        &self,
        b: &mut Builder<'_>,
        topology: &host::Topology,
        gpu: &Gpu,
        place: &Place,
        share: &Share,
        now: Mono,
    ) {
        let part = Part { collector: Source::Nvml, gpu: Some(gpu.clone()), tier: Tier::Normal };
        let Some(held) = self.parts.get(&part).filter(|held| !held.expired(now)) else { return };
        let info = m::gpu_mig_info.id();
        let text = |labels: &[LabelText], name: &str| -> String {
            let at = MigInfo::DEFS.iter().position(|def| def.name == name);
            let label = at.and_then(|at| Some(labels.get(at)?.text(&MigInfo::DEFS[at])));
            label.unwrap_or_default().to_owned()
        };
        let mut slices: Vec<_> = held
            .rows
            .groups()
            .iter()
            .filter_map(|(subject, rows)| match subject {
                Subject::ComputeInstance(slice) => {
                    let row = rows.iter().find(|row| row.metric == info)?;
                    Some((slice, text(&row.labels, "mig_uuid"), text(&row.labels, "mig_profile")))
                }
                _ => None,
            })
            .collect();
        slices.sort_by_key(|(slice, ..)| (slice.gpu_instance, slice.compute_instance));
        let weights: Vec<u32> = slices.iter().map(|(.., profile)| divide::compute_slices(profile)).collect();
        let shares = divide::among_slices(topology, &share.cpus, &weights);
        for ((slice, mig_uuid, _), share) in slices.into_iter().zip(shares) {
            let labels = MigTopologyInfo {
                mig_uuid,
                numa_node: number(place.numa_node),
                share: share.cpus.to_string(),
            };
            b.put(&m::gpu_mig_host_topology_info, slice, labels, 1.0);
        }
    }
}

fn flag(set: bool) -> f64 {
    f64::from(u8::from(set))
}

fn number(number: Option<u32>) -> String {
    number.map(|number| number.to_string()).unwrap_or_default()
}

fn put_objects(b: &mut Builder<'_>, topology: &host::Topology) {
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
        b.put(&m::gpu_host_objects, &Node {}, (object,), count as f64);
    }
}

fn put_place(b: &mut Builder<'_>, gpu: &Gpu, place: &Place, share: &Share) {
    let l3: model::cpus::CpuSet = share.l3.iter().copied().collect();
    let labels = TopologyInfo {
        numa_node: number(place.numa_node),
        cpus: place.cpus.to_string(),
        l3: l3.to_string(),
        package: number(place.package),
        root_port: place.root_port.clone().unwrap_or_default(),
        pcie_switch: place.switch.clone().unwrap_or_default(),
        share: share.cpus.to_string(),
    };
    b.put(&m::gpu_host_topology_info, gpu, labels, 1.0);
}

/// What a network device is called: its RDMA device, else its interface, else where it sits.
fn nic_name(nic: &Device) -> &str {
    let network = nic.network.as_ref();
    let names = network.map(|network| [network.rdma.as_str(), network.interface.as_str()]);
    names.into_iter().flatten().find(|name| !name.is_empty()).unwrap_or(&nic.address)
}

fn put_nic(b: &mut Builder<'_>, gpu: &Gpu, nic: &Device, path: place::Path) {
    let labels = NicInfo {
        nic: nic_name(nic).to_owned(),
        device: nic.network.as_ref().map(|network| network.interface.clone()).unwrap_or_default(),
        pci_address: nic.address.clone(),
        path: path.name().to_owned(),
    };
    b.put(&m::gpu_host_nic_info, gpu, labels, 1.0);
}

fn put_network(b: &mut Builder<'_>, nic: &Device) {
    let Some(network) = &nic.network else { return };
    let name = || (Nic(nic_name(nic).into()),);
    if let Some(up) = network.up {
        b.put(&m::gpu_host_nic_up, &Node {}, name(), flag(up));
    }
    if let Some(rate) = network.bytes_per_second {
        b.put(&m::gpu_host_nic_speed_bytes_per_second, &Node {}, name(), rate);
    }
}

#[cfg(test)]
mod tests;
