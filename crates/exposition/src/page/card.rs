//! One GPU on the page.

use super::html::{esc, put};
use super::{canary, html, look, mark};
use model::catalog::schema::{LabelSet, Metric};
use model::catalog::{
    self as m, Cause, ClockDomain, EccCounter, EccError, Gpu, GpuInstance, PowerLimit, ProcessType, Sensor,
    Subject,
};
use model::health::GpuHealth;
use model::owners::cause_text;
use model::sample::Missing;
use model::snapshot::{GpuState, GpuView, Snapshot};

/// Most owners of one GPU that are named.
const MOST_OWNERS: usize = 4;
/// Longest name that is shown whole, in characters.
const LONGEST: usize = 64;
/// Widest part of a strip that the style sheet knows.
const WIDEST: u32 = 7;

/// Appends the card of one GPU.
pub fn put(out: &mut String, snapshot: &Snapshot, view: &GpuView, health: &GpuHealth) {
    let gpu = &view.gpu;
    let info = |label| snapshot.info(&m::gpu_info, gpu, label).unwrap_or("");
    put!(
        out,
        "<article class=\"gpu {}\">\n<header><h2>GPU {} <small>{}</small></h2><p class=\"state\">{} {}</p></header>\n\
         <p class=\"id\"><code title=\"{}\">{}</code> <code>{}</code></p>\n",
        look(health.level).0,
        gpu.gpu,
        esc(info("model")),
        mark(health.level),
        health.word,
        esc(&gpu.uuid),
        esc(short(&gpu.uuid)),
        esc(info("pci_address")),
    );
    if !health.reasons.is_empty() {
        put!(out, "<ul class=\"reasons\">\n");
        for reason in &health.reasons {
            put!(out, "<li>{} {}</li>\n", mark(reason.level), esc(&reason.text));
        }
        put!(out, "</ul>\n");
    }
    let card = Card { snapshot, view };
    card.put_bars(out);
    card.put_facts(out);
    card.put_instances(out);
    put!(out, "</article>\n");
}

/// `GPU-` and the first eight digits: enough to distinguish the boards of a node.
fn short(uuid: &str) -> &str {
    uuid.get(..12).unwrap_or(uuid)
}

struct Card<'a> {
    snapshot: &'a Snapshot,
    view: &'a GpuView,
}

/// A value, or why there is none.
type CardValue = Result<f64, String>;

impl Card<'_> {
    fn read<L: LabelSet>(&self, metric: &Metric<Gpu, L>, labels: L) -> CardValue {
        self.snapshot.number(metric, &self.view.gpu, labels).ok_or_else(|| {
            match self.view.gaps.iter().find(|gap| gap.metrics.contains(&metric.id())) {
                Some(gap) => match &gap.missing {
                    Missing::Unsupported => "this GPU or its driver does not have it".into(),
                    Missing::Failed { text, .. } => format!("{} failed: {text}", gap.call),
                    Missing::Dropped(_) => format!("{} gave no value that can be true", gap.call),
                },
                None => match &self.view.state {
                    GpuState::Up | GpuState::Waiting => "not read yet".into(),
                    state => format!("withdrawn: {}", state.text()),
                },
            }
        })
    }

    fn put_bars(&self, out: &mut String) {
        let busy = self.read(&m::gpu_utilization_ratio, ());
        let used = self.read(&m::gpu_memory_used_bytes, ());
        let total = self.read(&m::gpu_memory_total_bytes, ());
        let power = self.read(&m::gpu_power_watts, ());
        let limit = self.read(&m::gpu_power_limit_watts, (PowerLimit::Enforced,));
        put!(out, "<dl class=\"bars\">\n");
        put_bar(out, "Busy", &busy, &Ok(1.0), |busy, _| format!("{} %", html::percent(busy)));
        put_bar(out, "Memory", &used, &total, gib_of);
        put_bar(out, "Power", &power, &limit, |power, limit| match limit {
            Some(limit) => format!("{power:.0} / {limit:.0} W"),
            None => format!("{power:.0} W"),
        });
        put!(out, "</dl>\n");
    }

    fn put_facts(&self, out: &mut String) {
        let celsius = |value: f64| format!("{value:.0} °C");
        let core = show(&self.read(&m::gpu_temperature_celsius, (Sensor::Gpu,)), celsius);
        let memory = show(&self.read(&m::gpu_temperature_celsius, (Sensor::Memory,)), celsius);
        let margin = show(&self.read(&m::gpu_temperature_margin_celsius, ()), celsius);
        let clock = show(&self.read(&m::gpu_clock_hertz, (ClockDomain::Sm,)), html::mhz);
        let clock_max = show(&self.read(&m::gpu_clock_max_hertz, (ClockDomain::Sm,)), html::mhz);
        let state = show(&self.read(&m::gpu_performance_state, ()), |state| format!("P{state:.0}"));
        let errors =
            |error| show(&self.read(&m::gpu_ecc_total_errors, (EccCounter::Volatile, error)), html::count);
        let (uncorrected, corrected) = (errors(EccError::Uncorrected), errors(EccError::Corrected));
        let generation = show(&self.read(&m::gpu_pcie_link_generation, ()), html::count);
        let lanes = show(&self.read(&m::gpu_pcie_link_width_lanes, ()), html::count);
        let processes = show(&self.processes(), html::count);
        put!(
            out,
            "<dl class=\"facts\">\n\
             <div><dt>Temperature</dt><dd>{core} · <small>memory</small> {memory}</dd></div>\n\
             <div><dt>To slowdown</dt><dd>{margin}</dd></div>\n\
             <div><dt>SM clock</dt><dd>{clock} / {clock_max} MHz · {state}</dd></div>\n\
             <div><dt>ECC errors</dt>\
             <dd>{uncorrected} <small>uncorrected</small> · {corrected} <small>corrected</small></dd></div>\n\
             <div><dt>PCIe</dt><dd><small>gen</small> {generation} · {lanes} <small>lanes</small></dd></div>\n\
             <div><dt>Processes</dt><dd>{processes}</dd></div>\n"
        );
        put_owners(out, self.snapshot, &self.view.gpu);
        if let Some(line) = canary::line(self.snapshot, &self.view.gpu) {
            let text = esc(&line.text).to_string();
            put!(out, "<div><dt>Canary</dt><dd>{} {text}</dd></div>\n", mark(line.level));
        }
        put!(out, "</dl>\n");
    }

    /// Processes of all kinds; an unknown kind counts as none if another is known.
    fn processes(&self) -> CardValue {
        let kinds = [ProcessType::Compute, ProcessType::Graphics, ProcessType::Mps];
        let kinds = kinds.map(|kind| self.read(&m::gpu_processes, (kind,)));
        let known: Vec<f64> = kinds.iter().filter_map(|kind| kind.as_ref().ok().copied()).collect();
        if known.is_empty() { kinds.into_iter().next().unwrap_or(Ok(0.0)) } else { Ok(known.iter().sum()) }
    }

    /// The MIG instances: their shares of the GPU as a strip, and each one's memory.
    fn put_instances(&self, out: &mut String) {
        let instances = self.instances();
        if instances.is_empty() {
            if self.snapshot.number(&m::gpu_mig_mode_enabled, &self.view.gpu, ()) == Some(1.0) {
                put!(out, "<p class=\"mig\">In MIG mode, without instances.</p>\n");
            }
            return;
        }
        put!(out, "<h3>MIG instances</h3>\n<div class=\"strip\" aria-hidden=\"true\">");
        for instance in &instances {
            let slices = slices(&instance.profile).clamp(1, WIDEST);
            put!(out, "<span class=\"w{slices}\">{slices}g</span>");
        }
        for (slices, name) in self.free_slices() {
            put!(out, "<span class=\"w{} free\">{name}</span>", slices.min(WIDEST));
        }
        put!(out, "</div>\n<dl class=\"bars instances\">\n");
        for instance in &instances {
            let number = |metric| self.snapshot.number(metric, *instance, ());
            let absent = || match number(&m::gpu_mig_memory_total_bytes) {
                None => "it has no compute instance to ask, or was not read yet".to_owned(),
                Some(_) => "not read yet".to_owned(),
            };
            let used = number(&m::gpu_mig_memory_used_bytes).ok_or_else(absent);
            let total = number(&m::gpu_mig_memory_total_bytes).ok_or_else(absent);
            let name = format!("{} #{}", instance.profile, instance.gpu_instance);
            put_bar(out, &name, &used, &total, gib_of);
        }
        put!(out, "</dl>\n");
    }

    /// Compute slices that no instance has: those that could be given, and those that could not; none if
    /// that is not known.
    fn free_slices(&self) -> Vec<(u32, &'static str)> {
        let number = |metric| self.snapshot.number(metric, &self.view.gpu, ());
        let all = number(&m::gpu_mig_slices).zip(number(&m::gpu_mig_slices_used));
        let Some(free) = all.map(|(all, used)| (all - used).max(0.0)) else { return Vec::new() };
        let stranded = number(&m::gpu_mig_slices_unplaceable).unwrap_or(0.0).min(free);
        let parts = [((free - stranded) as u32, "free"), (stranded as u32, "no fit")];
        parts.into_iter().filter(|(slices, _)| *slices > 0).collect()
    }

    /// The GPU instances in the order of their places, those without compute instances too.
    fn instances(&self) -> Vec<&GpuInstance> {
        let metrics = [&m::gpu_mig_placement_start, &m::gpu_mig_memory_total_bytes];
        let mut own: Vec<(u32, &GpuInstance)> = Vec::new();
        for series in metrics.iter().flat_map(|metric| self.snapshot.series(metric)) {
            let Subject::GpuInstance(instance) = &series.subject.subject else { continue };
            if instance.parent() == self.view.gpu && own.iter().all(|(_, known)| *known != instance) {
                let start = self.snapshot.number(&m::gpu_mig_placement_start, instance, ());
                own.push((start.map_or(u32::MAX, |start| start as u32), instance));
            }
        }
        own.sort_by_key(|(start, instance)| (*start, instance.gpu_instance));
        own.into_iter().map(|(_, instance)| instance).collect()
    }
}

/// The `3` of `3g.71gb`; 0 if the profile is not named so.
fn slices(profile: &str) -> u32 {
    profile.split_once('g').and_then(|(slices, _)| slices.parse().ok()).unwrap_or(0)
}

/// Appends a name, a bar and the value in figures; `–` with the reason where there is no value.
fn gib_of(used: f64, total: Option<f64>) -> String {
    match total {
        Some(total) => format!("{} / {} GiB", html::gib(used), html::gib(total)),
        None => format!("{} GiB", html::gib(used)),
    }
}

fn put_bar(
    out: &mut String,
    name: &str,
    value: &CardValue,
    of: &CardValue,
    text: impl Fn(f64, Option<f64>) -> String,
) {
    put!(out, "<div><dt>{}</dt>", esc(name));
    match value {
        Ok(value) => {
            let of = of.as_ref().ok().copied();
            let share = of.map_or(0.0, |of| if of > 0.0 { (value / of).clamp(0.0, 1.0) } else { 0.0 });
            put!(
                out,
                "<dd><svg class=\"bar\" viewBox=\"0 0 100 1\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\
                 <rect width=\"{:.1}\" height=\"1\"/></svg><span>{}</span></dd>",
                share * 100.0,
                esc(&text(*value, of))
            );
        }
        Err(why) => put!(
            out,
            "<dd><svg class=\"bar none\" viewBox=\"0 0 100 1\" preserveAspectRatio=\"none\" aria-hidden=\"true\"/>{}</dd>",
            none(why)
        ),
    }
    put!(out, "</div>\n");
}

/// A value as markup; `–` with the reason where there is none.
fn show(value: &CardValue, text: impl Fn(f64) -> String) -> String {
    match value {
        Ok(value) => esc(&text(*value)).to_string(),
        Err(why) => none(why),
    }
}

fn none(why: &str) -> String {
    format!("<abbr title=\"{0}\" aria-label=\"no value: {0}\">–</abbr>", esc(why))
}

/// Appends the owners with processes on a GPU now; nothing if there is none.
fn put_owners(out: &mut String, snapshot: &Snapshot, gpu: &Gpu) {
    let here: Vec<_> =
        snapshot.owners.iter().filter(|view| view.gpu == *gpu && !view.processes.is_empty()).collect();
    if here.is_empty() {
        return;
    }
    put!(out, "<div><dt>Owner</dt><dd>");
    for (at, view) in here.iter().take(MOST_OWNERS).enumerate() {
        let separator = if at > 0 { "<br>" } else { "" };
        put!(out, "{separator}<span title=\"{}\">{}</span>", esc(&view.owner.id), esc(&cut(&view.owner.id)));
        if let Some(instance) = view.gpu_instance {
            put!(out, " <small>on instance {instance}</small>");
        }
        if let Some(cause) = view.cause.filter(|cause| *cause != Cause::None) {
            put!(out, " <small>· {}</small>", esc(cause_text(cause)));
        }
    }
    if here.len() > MOST_OWNERS {
        put!(out, "<br><small>and {} more</small>", here.len() - MOST_OWNERS);
    }
    put!(out, "</dd></div>\n");
}

fn cut(id: &str) -> String {
    match id.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &id[..at]),
        None => id.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use model::owners::Owner;
    use model::snapshot::OwnerView;

    #[test]
    fn a_profile_has_its_slices() {
        assert_eq!(["3g.71gb", "1g.18gb+me", "7g.141gb", "odd", ""].map(slices), [3, 1, 7, 0, 0]);
    }

    #[test]
    fn owners_with_processes_are_named_and_no_name_is_markup() {
        let gpu = Gpu { gpu: 0, uuid: "a".into() };
        let mut snapshot = Snapshot::default();
        let view = |id: &str, processes, cause| OwnerView {
            owner: Arc::new(Owner { id: id.into(), ..Owner::unknown() }),
            gpu: gpu.clone(),
            gpu_instance: None,
            processes,
            cause,
        };
        let mut text = String::new();
        put_owners(&mut text, &snapshot, &gpu);
        assert_eq!(text, "");
        snapshot.owners = vec![
            view("<b>", vec![1], Some(Cause::HostCpuBound)),
            view("gone", vec![], None),
            view(&"é".repeat(200), vec![2], Some(Cause::None)),
        ];
        put_owners(&mut text, &snapshot, &gpu);
        assert!(!text.contains("<b>") && text.contains(cause_text(Cause::HostCpuBound)), "{text}");
        assert!(!text.contains("gone") && text.contains(&format!(">{}…<", "é".repeat(LONGEST))), "{text}");
    }
}
