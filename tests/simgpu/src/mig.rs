//! MIG layouts: which GPU instances and compute instances a GPU is cut into.

use std::sync::Arc;

use crate::model::{MigProfile, Model};

/// Memory slices of a GPU.
const SLICES: u32 = 8;

/// A compute instance.
#[derive(Clone, Debug)]
pub struct ComputeInstance {
    /// Its id within the GPU instance.
    pub id: u32,
    /// Its compute slices, and the first of them.
    pub slices: u32,
    /// See `slices`.
    pub start: u32,
}

/// A GPU instance.
#[derive(Clone, Debug)]
pub struct GpuInstance {
    /// Its id.
    pub id: u32,
    /// Its profile.
    pub profile: MigProfile,
    /// Its first memory slice.
    pub start: u32,
    /// Its compute instances.
    pub compute: Vec<ComputeInstance>,
}

/// How a GPU is cut.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// Whether MIG is on.
    pub enabled: bool,
    /// The GPU instances.
    pub instances: Vec<GpuInstance>,
}

impl Layout {
    /// Cuts a GPU into the profiles given, first fit. `3g.71gb` has one compute instance,
    /// `3g.71gb:1c+2c` two, `3g.71gb:none` none.
    pub fn new(model: &Arc<Model>, profiles: &[String]) -> Result<Layout, String> {
        if model.mig_profiles.is_empty() {
            return Err("this model has no MIG".into());
        }
        let mut layout = Layout { enabled: true, instances: Vec::new() };
        for text in profiles {
            let (name, cut) = text.split_once(':').map_or((text.as_str(), None), |(n, c)| (n, Some(c)));
            let profile = model.mig_profiles.iter().find(|p| p.name == name).ok_or_else(|| {
                let known: Vec<&str> = model.mig_profiles.iter().map(|p| p.name.as_str()).collect();
                format!("no MIG profile '{name}', there are {}", known.join(", "))
            })?;
            let place = layout.place(profile).ok_or_else(|| format!("MIG profile '{name}' does not fit"))?;
            let compute = compute_instances(profile, cut)?;
            layout.instances.push(GpuInstance {
                id: profile.first_id + place as u32,
                profile: profile.clone(),
                start: profile.starts[place],
                compute,
            });
        }
        Ok(layout)
    }

    /// The first free start of a profile, as an index.
    fn place(&self, profile: &MigProfile) -> Option<usize> {
        let same = self.instances.iter().filter(|i| i.profile.id == profile.id).count();
        if same >= profile.count as usize {
            return None;
        }
        profile.starts.iter().position(|start| {
            let end = start + profile.size;
            end <= SLICES
                && self.instances.iter().all(|i| end <= i.start || i.start + i.profile.size <= *start)
        })
    }

    /// How many more of a profile fit.
    pub fn remaining(&self, profile: &MigProfile) -> u32 {
        let mut layout = self.clone();
        let mut n = 0;
        while let Some(place) = layout.place(profile) {
            layout.instances.push(GpuInstance {
                id: profile.first_id + place as u32,
                profile: profile.clone(),
                start: profile.starts[place],
                compute: Vec::new(),
            });
            n += 1;
        }
        n
    }

    /// The MIG devices, that is the compute instances, in NVML's order.
    pub fn devices(&self) -> impl Iterator<Item = (&GpuInstance, &ComputeInstance)> {
        self.instances.iter().flat_map(|i| i.compute.iter().map(move |c| (i, c)))
    }

    /// The GPU instance of that id.
    pub fn instance(&self, id: u32) -> Option<&GpuInstance> {
        self.instances.iter().find(|i| i.id == id)
    }
}

fn compute_instances(profile: &MigProfile, cut: Option<&str>) -> Result<Vec<ComputeInstance>, String> {
    let Some(cut) = cut else {
        return Ok(vec![ComputeInstance { id: 0, slices: profile.slices, start: 0 }]);
    };
    let mut list = Vec::new();
    let mut start = 0;
    for part in cut.split('+').filter(|_| cut != "none") {
        let slices: u32 = part
            .strip_suffix('c')
            .and_then(|n| n.parse().ok())
            .ok_or_else(|| format!("'{part}' is no compute instance such as '1c'"))?;
        list.push(ComputeInstance { id: list.len() as u32, slices, start });
        start += slices;
    }
    if start > profile.slices {
        return Err(format!("compute instances '{cut}' do not fit into {}", profile.name));
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn h200() -> Arc<Model> {
        Model::named("H200").expect("the model reads")
    }

    fn layout(profiles: &[&str]) -> Result<Layout, String> {
        Layout::new(&h200(), &profiles.iter().map(|p| p.to_string()).collect::<Vec<_>>())
    }

    #[test]
    fn instances_take_the_first_free_slices() {
        let cut = layout(&["3g.71gb", "2g.35gb", "1g.18gb"]).expect("fits");
        let places: Vec<_> = cut.instances.iter().map(|i| (i.id, i.start, i.profile.size)).collect();
        assert_eq!(places, [(1, 0, 4), (5, 4, 2), (13, 6, 1)]);
        assert_eq!(cut.remaining(&h200().mig_profiles[0]), 0);
        assert_eq!(layout(&["4g.71gb"]).expect("fits").remaining(&h200().mig_profiles[0]), 3);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert_eq!(layout(&["7g.141gb", "1g.18gb"]).unwrap_err(), "MIG profile '1g.18gb' does not fit");
        assert!(layout(&["5g.1gb"]).unwrap_err().starts_with("no MIG profile '5g.1gb', there are 1g.18gb"));
        assert!(layout(&["2g.35gb:1c+2c"]).is_err());
        assert_eq!(layout(&["3g.71gb:1c+2c"]).expect("fits").devices().count(), 2);
        let none = layout(&["3g.71gb:none"]).expect("fits");
        assert_eq!((none.instances.len(), none.devices().count()), (1, 0));
    }
}
