//! Facts of the ledger on which the canary decides.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::mig_devices;
use canary::gate::GateFacts;
use model::canary::{Instance, Place};
use model::catalog::schema::{KnownLabel, Metric};
use model::catalog::{self as m, CollectorName, Gpu};
use model::clock::{Mono, unix_seconds};
use model::sample::Missing;
use model::snapshot::{DriverState, GpuState, Snapshot};
use model::window;

/// Facts of one publication.
#[derive(Clone, Debug)]
pub struct CanaryFacts(Arc<Snapshot>);

impl CanaryFacts {
    /// Creates the facts of a snapshot.
    pub fn new(snapshot: &Arc<Snapshot>) -> CanaryFacts {
        CanaryFacts(Arc::clone(snapshot))
    }

    /// Returns all GPUs with the places for runs: the whole GPU, or its MIG instances. A GPU in MIG mode without
    /// instances has no place. A GPU that does not answer keeps its places in `known`.
    pub(crate) fn places(&self, known: &BTreeMap<Gpu, Vec<Place>>) -> BTreeMap<Gpu, Vec<Place>> {
        let views = self.0.gpus.iter().filter(|view| !view.gpu.uuid.is_empty());
        let places = views.map(|view| {
            let gpu = &view.gpu;
            let mig = self.0.number(&m::gpu_mig_mode_enabled, gpu, ()).map(|on| on > 0.0);
            let unsupported = view.gaps.iter().any(|gap| {
                gap.metrics.contains(&m::gpu_mig_mode_enabled.id()) && gap.missing == Missing::Unsupported
            });
            let places = match (view.state == GpuState::Up, mig) {
                (true, Some(true)) => self.instances(gpu),
                (true, mig) if mig.is_some() || unsupported => {
                    vec![Place { gpu: gpu.clone(), instance: None }]
                }
                _ => known.get(gpu).cloned().unwrap_or_default(),
            };
            (gpu.clone(), places)
        });
        places.collect()
    }

    fn instances(&self, gpu: &Gpu) -> Vec<Place> {
        let own = mig_devices(&self.0).filter(|(mig, uuid)| mig.uuid == gpu.uuid && !uuid.is_empty());
        let places = own.map(|(mig, uuid)| Place {
            gpu: gpu.clone(),
            instance: Some(Instance {
                gpu_instance: mig.gpu_instance,
                compute_instance: mig.compute_instance,
                profile: mig.profile.to_string(),
                mig_uuid: uuid.to_owned(),
            }),
        });
        let mut places: Vec<Place> = places.collect();
        places.sort();
        places
    }

    /// Returns the values of a place for the gate.
    pub(crate) fn gate(&self, place: &Place, fresh_for: Duration, now: Mono) -> GateFacts {
        let mut facts = GateFacts::read(&*self.0, place, fresh_for);
        // The values have aged since the publication.
        facts.age = facts.age.map(|age| age + now.since(self.0.taken));
        facts
    }

    /// Returns whether the GPU answers in time.
    pub(crate) fn is_up(&self, gpu: &Gpu) -> bool {
        self.0.gpus.iter().any(|view| view.gpu == *gpu && view.state == GpuState::Up)
    }

    /// Returns a published timestamp in seconds since 1970, and its age at the publication.
    pub(crate) fn timestamp(&self, metric: &Metric<Gpu, ()>, gpu: &Gpu) -> Option<(f64, Duration)> {
        let unix_seconds = self.0.number(metric, gpu, ())?;
        let age = Duration::try_from_secs_f64(self.0.unix_seconds - unix_seconds).unwrap_or_default();
        Some((unix_seconds, age))
    }

    pub(crate) fn pci_address(&self, gpu: &Gpu) -> Option<String> {
        let address = self.0.info(&m::gpu_info, gpu, "pci_address")?;
        (!address.is_empty()).then(|| address.to_owned())
    }

    /// Returns the minor number of the GPU's device file.
    pub(crate) fn minor_number(&self, gpu: &Gpu) -> Option<u32> {
        self.0.info(&m::gpu_info, gpu, "minor_number")?.parse().ok()
    }

    /// Returns the reason if maintenance keeps the canary away. It does while a window is open, and until the windows
    /// have been read.
    pub(crate) fn maintenance(&self) -> Option<String> {
        window::maintenance(&self.0.windows, unix_seconds()).or_else(|| {
            let name = CollectorName::Windows.known();
            let unknown = self.0.collectors.iter().any(|view| view.name == name && view.age.is_none());
            unknown.then(|| "it is not known yet which windows of planned work are open".into())
        })
    }

    /// Returns the reason if the GPU does not answer.
    pub(crate) fn no_answer(&self, gpu: &Gpu) -> Option<String> {
        if self.0.driver != DriverState::Up {
            return Some("the driver is away or stuck".into());
        }
        match self.0.gpus.iter().find(|view| view.gpu == *gpu).map(|view| &view.state) {
            Some(GpuState::Up) => None,
            Some(GpuState::Stuck { call, .. }) => Some(format!("{call} on the GPU does not return")),
            _ => Some("the GPU does not answer any more".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::snapshot::CollectorView;

    #[test]
    fn until_the_windows_were_read_one_may_be_open() {
        let refused = |age: Option<Duration>| {
            let name = CollectorName::Windows.known();
            let view = CollectorView { name, up: age.is_some(), age, text: String::new() };
            let snapshot = Snapshot { collectors: vec![view], ..Snapshot::default() };
            CanaryFacts(Arc::new(snapshot)).maintenance()
        };
        assert!(refused(None).unwrap().contains("not known yet"));
        assert_eq!(refused(Some(Duration::from_secs(3600))), None, "the last reading counts");
    }
}
