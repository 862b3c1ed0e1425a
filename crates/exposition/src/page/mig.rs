//! The MIG instances of a GPU, drawn as a strip. The width of an instance is proportional to its share of the GPU.

use maud::{Markup, html};

use super::{figures, owners, spark};
use model::catalog::{self as m, GpmUnit, Gpu, GpuInstance, Subject};
use model::snapshot::{OwnerView, Snapshot};

/// Maximum number of owners shown per instance.
const MOST_OWNERS: usize = 2;
/// Maximum width of a part for which the style sheet has a class, in compute slices.
const WIDEST: u32 = 7;

/// Renders the strip of a GPU in MIG mode, and nothing for other GPUs.
pub fn instances(snapshot: &Snapshot, gpu: &Gpu) -> Markup {
    let instances = instances_of(snapshot, gpu);
    let is_on = snapshot.number(&m::gpu_mig_mode_enabled, gpu, ()) == Some(1.0);
    html! {
        @if !instances.is_empty() {
            ul.strip aria-label="MIG instances" {
                @for instance in instances {
                    li.{ "w" (slices(&instance.profile).clamp(1, WIDEST)) } { (segment(snapshot, instance)) }
                }
                @for (slices, name) in free_slices(snapshot, gpu) {
                    li.free.{ "w" (slices.min(WIDEST)) } { (slices) " " (name) }
                }
            }
        } @else if is_on {
            p.mig { "MIG mode without instances" }
        }
    }
}

fn segment(snapshot: &Snapshot, instance: &GpuInstance) -> Markup {
    let number = |metric| snapshot.number(metric, instance, ());
    let (used, total) = (number(&m::gpu_mig_memory_used_bytes), number(&m::gpu_mig_memory_total_bytes));
    let unit = || (GpmUnit::Graphics,);
    let active = snapshot.number(&m::gpu_mig_gpm_active_ratio, instance, unit());
    let history = snapshot.trends.points(&m::gpu_mig_gpm_active_ratio, instance, unit());
    let memory = snapshot.trends.points(&m::gpu_mig_memory_used_bytes, instance, ());
    let memory_text = |value| format!("{} GiB", figures::gib(value));
    let is_here = |view: &&OwnerView| {
        view.gpu == instance.parent()
            && view.gpu_instance == Some(instance.gpu_instance)
            && !view.processes.is_empty()
    };
    html! {
        p {
            span { b { (instance.profile) } " " small { "#" (instance.gpu_instance) } }
            @if let Some(active) = active { span { (figures::percent(active)) " %" small { " active" } } }
        }
        p {
            @match (used, total) {
                (Some(used), Some(total)) => { (figures::gib(used)) small { " of " (figures::gib(total)) " GiB" } },
                _ => { small { "no compute instance" } },
            }
        }
        @if history.is_empty() {
            (spark::area(memory, total.unwrap_or(0.0), memory_text))
        } @else {
            (spark::area(history, 1.0, |value| format!("{} %", figures::percent(value))))
        }
        @for view in snapshot.owners.iter().filter(is_here).take(MOST_OWNERS) { p { (owners::owner(view)) } }
    }
}

/// Returns the numbers of unused compute slices: those that a new instance could use, and those that none could use.
/// The list is empty if the numbers are unknown.
fn free_slices(snapshot: &Snapshot, gpu: &Gpu) -> Vec<(u32, &'static str)> {
    let number = |metric| snapshot.number(metric, gpu, ());
    let all = number(&m::gpu_mig_slices).zip(number(&m::gpu_mig_slices_used));
    let Some(free) = all.map(|(all, used)| (all - used).max(0.0)) else { return Vec::new() };
    let stranded = number(&m::gpu_mig_slices_unplaceable).unwrap_or(0.0).min(free);
    let parts = [((free - stranded) as u32, "free"), (stranded as u32, "unplaceable")];
    parts.into_iter().filter(|(slices, _)| *slices > 0).collect()
}

/// Returns the GPU instances in the order of their placement, including those without compute instances.
fn instances_of<'a>(snapshot: &'a Snapshot, gpu: &Gpu) -> Vec<&'a GpuInstance> {
    let metrics = [&m::gpu_mig_placement_start, &m::gpu_mig_memory_total_bytes];
    let mut own: Vec<(u32, &GpuInstance)> = Vec::new();
    for series in metrics.iter().flat_map(|metric| snapshot.series(metric)) {
        let Subject::GpuInstance(instance) = &series.subject.subject else { continue };
        if instance.parent() == *gpu && own.iter().all(|(_, known)| *known != instance) {
            let start = snapshot.number(&m::gpu_mig_placement_start, instance, ());
            own.push((start.map_or(u32::MAX, |start| start as u32), instance));
        }
    }
    own.sort_by_key(|(start, instance)| (*start, instance.gpu_instance));
    own.into_iter().map(|(_, instance)| instance).collect()
}

/// Returns the `3` of `3g.71gb`, or 0 if the profile name has another form.
fn slices(profile: &str) -> u32 {
    profile.split_once('g').and_then(|(slices, _)| slices.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use model::sample::Rows;

    use super::*;
    use crate::fixtures;

    #[test]
    fn a_profile_has_its_slices() {
        assert_eq!(["3g.71gb", "1g.18gb+me", "7g.141gb", "odd", ""].map(slices), [3, 1, 7, 0, 0]);
    }

    #[test]
    fn a_gpu_of_four_slices_is_drawn_with_four() {
        let gpu = fixtures::gpu(0);
        let mut rows = Rows::default();
        for (metric, value) in
            [(&m::gpu_mig_slices, 4.0), (&m::gpu_mig_slices_used, 2.0), (&m::gpu_mig_slices_unplaceable, 1.0)]
        {
            rows.entity(&gpu).record(metric, (), value).unwrap();
        }
        // The second instance has the first placement on the GPU, and no compute instance.
        for (gpu_instance, start) in [(3, 3.0), (5, 0.0)] {
            let (uuid, profile) = (gpu.uuid.clone(), "1g.6gb".into());
            let instance = GpuInstance { gpu: gpu.gpu, uuid, gpu_instance, profile };
            rows.entity(&instance).record(&m::gpu_mig_placement_start, (), start).unwrap();
        }
        let strip = instances(&Snapshot::with_rows(&rows), &gpu).0;
        assert_eq!(strip.matches("<li class=\"w1\">").count(), 2, "{strip}");
        assert!(strip.contains("1 free</li>") && strip.contains("1 unplaceable</li>"), "{strip}");
        assert!(strip.find("#5").unwrap() < strip.find("#3").unwrap());
    }
}
