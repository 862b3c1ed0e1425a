//! Seconds and bytes from GPM's windows, added up for each GPU and GPU instance.

use std::collections::BTreeMap;

use super::tally::Key;
use model::catalog::schema::LabelText;
use model::catalog::{Gpu, MetricId, Subject};
use model::sample::GpmWindow;

/// The sums.
#[derive(Debug, Default)]
pub struct GpmSums(BTreeMap<Subject, BTreeMap<(MetricId, Vec<LabelText>), f64>>);

impl GpmSums {
    /// Adds a window.
    pub fn add(&mut self, window: &GpmWindow) {
        let sums = self.0.entry(window.subject.clone()).or_default();
        for row in &window.sums {
            *sums.entry((row.metric, row.labels.clone())).or_insert(0.0) += row.value;
        }
    }

    /// Forgets the GPU instances of a GPU: its layout is another.
    pub fn forget_instances(&mut self, gpu: &Gpu) {
        self.0.retain(|subject, _| {
            !matches!(subject, Subject::GpuInstance(i) if i.gpu == gpu.gpu && i.uuid == gpu.uuid)
        });
    }

    /// Forgets a GPU.
    pub fn forget(&mut self, gpu: &Gpu) {
        self.0.retain(|subject, _| subject.gpu() != Some((gpu.gpu, &gpu.uuid)));
    }

    /// The sums of a GPU and its instances.
    pub fn of<'a>(&'a self, gpu: &'a Gpu) -> impl Iterator<Item = (Key, f64)> + 'a {
        self.0.iter().filter(|(subject, _)| subject.gpu() == Some((gpu.gpu, &gpu.uuid))).flat_map(
            |(subject, sums)| {
                sums.iter().map(|((metric, labels), sum)| ((*metric, subject.clone(), labels.clone()), *sum))
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::catalog::schema::{Entity, Label};
    use model::catalog::{self as m, GpmUnit, GpuInstance};
    use model::sample::Row;

    #[test]
    fn windows_add_up_and_a_new_layout_starts_anew() {
        let gpu = Gpu { gpu: 1, uuid: "a".into() };
        let part = GpuInstance { gpu: 1, uuid: "a".into(), gpu_instance: 3, profile: "1g".into() };
        let window = |subject, metric: MetricId, value| GpmWindow {
            subject,
            seconds: 10.0,
            sums: vec![Row { metric, labels: vec![GpmUnit::Sm.text()], value }],
        };
        let whole = m::gpu_gpm_active_seconds_total.id();
        let mut sums = GpmSums::default();
        sums.add(&window(gpu.subject(), whole, 2.0));
        sums.add(&window(gpu.subject(), whole, 3.0));
        sums.add(&window(part.subject(), m::gpu_mig_gpm_active_seconds_total.id(), 1.0));
        assert_eq!(sums.of(&gpu).map(|(_, sum)| sum).collect::<Vec<_>>(), [5.0, 1.0]);
        sums.forget_instances(&gpu);
        assert_eq!(sums.of(&gpu).map(|(_, sum)| sum).collect::<Vec<_>>(), [5.0]);
        let other = Gpu { gpu: 2, uuid: "b".into() };
        assert_eq!(sums.of(&other).count(), 0);
    }
}
