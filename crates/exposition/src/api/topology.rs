//! The machine around the GPUs as one JSON document, served at `/api/v1/topology`.
//!
//! ```text
//! topology             what was found: see `topology::model::Topology`; fit for `topology.expected_file`
//! gpus[]               gpu, uuid, place (where it sits), share (its fair share of CPUs and memory nodes)
//! against_first_seen[] what differs from the first look at this machine, as text; null: not compared
//! against_declared[]   what differs from the declared topology; null: none is declared
//! ```

use serde::Serialize;

use model::catalog as m;
use model::snapshot::Snapshot;
use model::topology::divide::{self, CpuShare};
use model::topology::place::{self, GpuPlacement};
use model::topology::{Topology, TopologyUpdate};

#[derive(Serialize)]
struct TopologyDocument<'a> {
    topology: &'a Topology,
    gpus: Vec<PlacedGpu<'a>>,
    against_first_seen: &'a Option<Vec<String>>,
    against_declared: &'a Option<Vec<String>>,
}

#[derive(Serialize)]
struct PlacedGpu<'a> {
    gpu: u32,
    uuid: &'a str,
    place: &'a GpuPlacement,
    share: &'a CpuShare,
}

/// The document; `null` while nothing was found.
pub fn document(snapshot: &Snapshot) -> Result<Vec<u8>, serde_json::Error> {
    let Some(update) = &snapshot.topology.update else { return serde_json::to_vec(&()) };
    let TopologyUpdate { topology, against_first_seen, against_declared } = &**update;
    let places = place::gpus(topology);
    let near: Vec<_> = places.iter().map(|place| place.cpus.clone()).collect();
    let shares = divide::among_gpus(topology, &near);
    let gpus = snapshot.gpus.iter().filter_map(|view| {
        let address = snapshot.info(&m::gpu_info, &view.gpu, "pci_address")?;
        let device = topology.gpu(address)?;
        let at = places.iter().position(|place| place.address == device.address)?;
        let (place, share) = (places.get(at)?, shares.get(at)?);
        Some(PlacedGpu { gpu: view.gpu.gpu, uuid: &view.gpu.uuid, place, share })
    });
    let document = TopologyDocument { topology, gpus: gpus.collect(), against_first_seen, against_declared };
    serde_json::to_vec(&document)
}
