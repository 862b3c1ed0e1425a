//! Which devices a process sees: `CUDA_VISIBLE_DEVICES`, as the driver reads it.

use crate::device::{gpu_uuid, mig_uuid};
use crate::sim::Sim;

/// A device that CUDA can use: a GPU without MIG, or a MIG device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visible {
    /// The GPU.
    pub gpu: usize,
    /// The generation of its layout and the index of the MIG device.
    pub mig: Option<(usize, usize)>,
}

/// The devices that a list names; all without a list. As the driver does it: a name that fits nothing ends
/// the list, one named twice makes it empty, the beginning of a UUID is enough, and of MIG devices a process
/// gets one, and nothing else.
pub fn visible(sim: &Sim, list: Option<&str>) -> Vec<Visible> {
    let all: Vec<Visible> = (0..sim.scenario.gpus.len()).filter_map(|gpu| first(sim, gpu)).collect();
    let mut found: Vec<Visible> = Vec::new();
    match list {
        None => found = all,
        Some(list) => {
            for name in list.split(',').map(str::trim) {
                let Some(device) = named(sim, name, &all) else { break };
                if found.contains(&device) {
                    return Vec::new();
                }
                found.push(device);
            }
        }
    }
    if let Some(device) = found.iter().find(|d| d.mig.is_some()).copied() {
        found = vec![device];
    }
    found.retain(|device| !sim.lost(device.gpu));
    found
}

/// What CUDA takes for a GPU: its first MIG device if MIG is on, and nothing if there is none.
fn first(sim: &Sim, gpu: usize) -> Option<Visible> {
    let (generation, layout) = sim.layout(gpu).ok()?;
    if !layout.enabled {
        return Some(Visible { gpu, mig: None });
    }
    layout.devices().next().map(|_| Visible { gpu, mig: Some((generation, 0)) })
}

fn named(sim: &Sim, name: &str, all: &[Visible]) -> Option<Visible> {
    if let Ok(index) = name.parse::<usize>() {
        return all.get(index).copied();
    }
    for gpu in 0..sim.scenario.gpus.len() {
        if name.len() > 4 && gpu_uuid(gpu).starts_with(name) {
            return first(sim, gpu);
        }
        let (generation, layout) = sim.layout(gpu).ok()?;
        let is = |index: &usize| mig_uuid(gpu, generation, *index) == name;
        if let Some(index) = (0..layout.devices().count()).find(is) {
            return Some(Visible { gpu, mig: Some((generation, index)) });
        }
    }
    None
}
