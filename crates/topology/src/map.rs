//! The complete map: the machine, the GPUs that the driver lists, their locality, and the division of the CPUs among
//! them.

use serde::Serialize;

use super::latency::Latency;
use model::catalog::schema::KnownLabel;
use model::cpus::CpuSet;
use model::pci::pci_address;
use model::topology::Topology;
use model::topology::divide::{self, CpuShare};
use model::topology::place::{self, GpuPlacement, NearestDevice};

/// A GPU as the driver reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverGpu {
    pub index: u32,
    pub uuid: String,
    /// Product name; empty if unknown.
    pub model: String,
    /// PCI address, in any form.
    pub pci_address: String,
    /// Minor number N of the device file `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// MIG devices of the GPU, in the order of their instances. The CPUs of the GPU are divided among them.
    pub slices: Vec<DriverMigDevice>,
}

/// A MIG device as the driver reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DriverMigDevice {
    /// UUID in the form that `CUDA_VISIBLE_DEVICES` accepts.
    pub uuid: String,
    /// Profile, such as `3g.71gb` or `1c.3g.71gb`.
    pub profile: String,
    /// NVML's GPU instance id.
    pub gpu_instance: u32,
    /// NVML's compute instance id.
    pub compute_instance: u32,
}

/// The complete map. Its JSON contains the whole topology, so that the JSON can serve as a declared topology.
#[derive(Clone, Debug, Serialize)]
pub struct Map {
    #[serde(flatten)]
    pub topology: Topology,
    /// GPUs in the order of the driver, followed by the GPUs that the driver does not list.
    pub gpus: Vec<MapGpu>,
    /// CPUs that are near no GPU and therefore in no share.
    pub left_over: CpuSet,
    /// Memory latency, if it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
}

/// A GPU on the map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MapGpu {
    /// Label on the map: the driver's index, or `P1`, `P2`, … for GPUs that the driver does not list.
    pub label: String,
    pub index: Option<u32>,
    pub uuid: Option<String>,
    /// Product name; empty if unknown.
    pub model: String,
    /// Minor number N of the device file `/dev/nvidiaN`.
    pub minor: Option<u32>,
    #[serde(flatten)]
    pub place: GpuPlacement,
    pub share: CpuShare,
    pub slices: Vec<MapMigDevice>,
}

/// A MIG device on the map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MapMigDevice {
    /// Label on the map: the label of the GPU, a dot and a number that starts at 1.
    pub label: String,
    #[serde(flatten)]
    pub device: DriverMigDevice,
    /// Share of the GPU's CPUs.
    pub share: CpuShare,
}

/// Holder of a share of the CPUs: a GPU without MIG devices, or a MIG device.
#[derive(Clone, Copy, Debug)]
pub struct ShareHolder<'a> {
    pub gpu: &'a MapGpu,
    /// MIG device of the GPU, or `None` if the GPU itself holds the share.
    pub slice: Option<&'a MapMigDevice>,
}

impl<'a> ShareHolder<'a> {
    /// Returns the label on the map.
    pub fn label(&self) -> &'a str {
        self.slice.map_or(&self.gpu.label, |slice| &slice.label)
    }

    /// Returns the UUID, if the driver reported one.
    pub fn uuid(&self) -> Option<&'a str> {
        self.slice.map(|slice| &*slice.device.uuid).or(self.gpu.uuid.as_deref())
    }

    pub fn share(&self) -> &'a CpuShare {
        self.slice.map_or(&self.gpu.share, |slice| &slice.share)
    }

    /// Returns a name such as `GPU 3 NVIDIA H200, MIG 3g.71gb`.
    pub fn name(&self) -> String {
        let slice = self.slice.map(|slice| format!(", MIG {}", slice.device.profile)).unwrap_or_default();
        format!("{}{slice}", self.gpu.name())
    }
}

impl MapGpu {
    /// Returns a name such as `GPU 3 NVIDIA H200`, with the PCI address if the driver does not list the GPU.
    pub fn name(&self) -> String {
        let model = if self.model.is_empty() { String::new() } else { format!(" {}", self.model) };
        match self.index {
            Some(index) => format!("GPU {index}{model}"),
            None => format!("GPU at {}{model}", self.place.address),
        }
    }
}

impl Map {
    /// Joins the machine with the GPUs that the driver reports, by PCI address.
    pub fn new(mut topology: Topology, known: &[DriverGpu]) -> Map {
        let mut rest = place::gpus(&topology);
        let mut joined: Vec<(Option<&DriverGpu>, GpuPlacement)> = Vec::new();
        let mut known: Vec<&DriverGpu> = known.iter().collect();
        known.sort_by_key(|gpu| gpu.index);
        for gpu in known {
            let address = pci_address(&gpu.pci_address);
            let at = rest.iter().position(|p| address.is_some() && pci_address(&p.address) == address);
            let place = match at {
                Some(at) => rest.remove(at),
                None => {
                    let text =
                        format!("GPU {} is not in the PCI tree, so its locality is unknown", gpu.index);
                    topology.notes.push(text);
                    nowhere(&topology, gpu)
                }
            };
            joined.push((Some(gpu), place));
        }
        if !joined.is_empty() {
            for place in &rest {
                topology.notes.push(format!("the driver does not list the GPU at {}", place.address));
            }
        }
        joined.extend(rest.into_iter().map(|place| (None, place)));
        let shares = shares(&topology, &joined);
        let left_over = divide::left_over(&topology, &shares);
        let mut unlisted = 0;
        let gpu = |((known, place), share): ((Option<&DriverGpu>, GpuPlacement), CpuShare)| {
            let label = known.map_or_else(
                || {
                    unlisted += 1;
                    format!("P{unlisted}")
                },
                |known| known.index.to_string(),
            );
            MapGpu {
                index: known.map(|known| known.index),
                uuid: known.map(|known| known.uuid.clone()).filter(|uuid| !uuid.is_empty()),
                model: known.map(|known| known.model.clone()).unwrap_or_default(),
                minor: known.and_then(|known| known.minor),
                slices: slices(&topology, known, &label, &share),
                label,
                place,
                share,
            }
        };
        let gpus = joined.into_iter().zip(shares).map(gpu).collect();
        Map { topology, gpus, left_over, latency: None }
    }

    /// Returns all holders of a share, in the order of the GPUs.
    pub fn share_holders(&self) -> Vec<ShareHolder<'_>> {
        let of = |gpu| ShareHolder { gpu, slice: None };
        let each = self.gpus.iter().flat_map(|gpu| {
            let whole = gpu.slices.is_empty().then_some(of(gpu));
            let slices = gpu.slices.iter().map(move |slice| ShareHolder { slice: Some(slice), ..of(gpu) });
            whole.into_iter().chain(slices)
        });
        each.collect()
    }

    /// Formats the nearest network device with its nearness in parentheses.
    pub fn nic(&self, near: &NearestDevice) -> String {
        let device = self.topology.devices.iter().find(|device| device.address == near.address);
        let name = device.and_then(|device| device.names.first()).unwrap_or(&near.address);
        format!("{name} ({})", near.path.known())
    }

    /// Returns the name of the GPU at this PCI address.
    pub fn gpu_name(&self, address: &str) -> Option<String> {
        self.gpu(address).map(MapGpu::name)
    }

    /// Returns the GPU at this PCI address, which must be in the form that the topology uses.
    pub fn gpu(&self, address: &str) -> Option<&MapGpu> {
        self.gpus.iter().find(|gpu| gpu.place.address == address)
    }
}

/// Divides the CPUs among the GPUs in the order of their addresses, as the daemon does. The result does not depend on
/// the order in which the driver lists the GPUs.
fn shares(topology: &Topology, joined: &[(Option<&DriverGpu>, GpuPlacement)]) -> Vec<CpuShare> {
    let mut order: Vec<usize> = (0..joined.len()).collect();
    order.sort_by_key(|at| &joined[*at].1.address);
    let near: Vec<CpuSet> = order.iter().map(|at| joined[*at].1.cpus.clone()).collect();
    let mut shares = vec![CpuShare::default(); joined.len()];
    for (at, share) in order.into_iter().zip(divide::among_gpus(topology, &near)) {
        shares[at] = share;
    }
    shares
}

/// Returns the placement of a GPU that is not in the PCI tree: all CPUs count as near.
fn nowhere(topology: &Topology, gpu: &DriverGpu) -> GpuPlacement {
    GpuPlacement {
        address: gpu.pci_address.clone(),
        cpus: topology.cpus.clone(),
        l3: place::l3_of(topology, &topology.cpus),
        ..GpuPlacement::default()
    }
}

fn slices(
    topology: &Topology,
    known: Option<&DriverGpu>,
    label: &str,
    share: &CpuShare,
) -> Vec<MapMigDevice> {
    let Some(known) = known else { return Vec::new() };
    let weights: Vec<u32> = known.slices.iter().map(|slice| divide::compute_slices(&slice.profile)).collect();
    let mut shares = divide::among_slices(topology, &share.cpus, &weights);
    for of_slice in &mut shares {
        of_slice.shared |= share.shared;
    }
    let slice = |(at, (slice, share)): (usize, (&DriverMigDevice, CpuShare))| MapMigDevice {
        label: format!("{label}.{}", at + 1),
        device: slice.clone(),
        share,
    };
    known.slices.iter().zip(shares).enumerate().map(slice).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::topology::DeviceKind;
    use model::topology::fixtures::{device, machine};

    fn known(index: u32, address: &str, profiles: &[&str]) -> DriverGpu {
        let slice =
            |profile: &&str| DriverMigDevice { profile: (*profile).into(), ..DriverMigDevice::default() };
        DriverGpu {
            index,
            uuid: format!("GPU-{index}"),
            pci_address: address.into(),
            slices: profiles.iter().map(slice).collect(),
            ..DriverGpu::default()
        }
    }

    #[test]
    fn gpus_are_joined_by_address_and_slices_divide_what_their_gpu_has() {
        let mut topology = machine(&[("0-23", &["0-7", "8-15", "16-23"]), ("24-31", &["24-31"])]);
        topology.devices = vec![
            device(DeviceKind::Gpu, "0000:06:00.0", Some(0), "0-23", &[]),
            device(DeviceKind::Gpu, "0000:86:00.0", Some(1), "24-31", &[]),
            device(DeviceKind::Gpu, "0000:87:00.0", Some(1), "24-31", &[]),
        ];
        // The driver need not count as the PCI tree does.
        let listed = [known(1, "00000000:06:00.0", &["2g.35gb"; 3]), known(0, "00000000:87:00.0", &[])];
        let map = Map::new(topology.clone(), &listed);
        let shares: Vec<(String, String)> = map
            .share_holders()
            .iter()
            .map(|holder| (holder.label().to_owned(), holder.share().cpus.to_string()))
            .collect();
        let of = |label: &str, cpus: &str| (label.to_owned(), cpus.to_owned());
        assert_eq!(
            shares,
            [of("0", "28-31"), of("1.1", "0-7"), of("1.2", "8-15"), of("1.3", "16-23"), of("P1", "24-27")]
        );
        assert_eq!(map.topology.notes, ["the driver does not list the GPU at 0000:86:00.0"]);
        assert_eq!(map.left_over.to_string(), "");
        let json = serde_json::to_string(&map).unwrap();
        let again: Topology = serde_json::from_str(&json).unwrap();
        assert_eq!(again, map.topology, "it can be declared");
        assert!(Map::new(topology, &[]).topology.notes.is_empty(), "without a driver nothing is missing");
    }

    #[test]
    fn a_gpu_that_no_pci_tree_shows_has_a_share_all_the_same() {
        let map = Map::new(machine(&[("0-7", &["0-7"])]), &[known(0, "00000000:06:00.0", &[])]);
        assert_eq!(map.gpus[0].share.cpus.to_string(), "0-7");
        assert_eq!(map.topology.notes.len(), 1);
    }
}
