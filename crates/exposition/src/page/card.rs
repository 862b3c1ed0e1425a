//! The card of one GPU on the status page.

use maud::{Markup, html};

use super::{canary, figures, look, mark, owners, spark};
use model::catalog::schema::KnownLabel;
use model::catalog::schema::{LabelSet, Metric};
use model::catalog::{
    self as m, ClockDomain, ClockEvent, EccCounter, EccError, Gpu, PowerLimit, RemapCause, Sensor, Subject,
};
use model::health::{AbsentGpu, GpuHealth, HealthLevel};
use model::sample::Missing;
use model::snapshot::{GpuState, GpuView, Snapshot, Value};
use model::window;

/// Renders the card of one GPU.
pub fn card(snapshot: &Snapshot, view: &GpuView, health: &GpuHealth) -> Markup {
    let gpu = &view.gpu;
    let info = |label| snapshot.info(&m::gpu_info, gpu, label).unwrap_or("");
    let card = Card { snapshot, view };
    html! {
        article.gpu.(look(health.level).class) id={ "gpu-" (gpu.gpu) } aria-labelledby={ "name-" (gpu.gpu) } {
            header {
                h3 id={ "name-" (gpu.gpu) } { "GPU " (gpu.gpu) }
                p.state { (mark(health.level)) " " (health.word) }
                p.id { (info("model")) }
                p.id { code { (uuid(&gpu.uuid)) } }
                p.id { code { (info("pci_address")) } }
            }
            div.course {
                (card.metrics())
                @if !health.reasons.is_empty() {
                    ul.reasons {
                        @for reason in &health.reasons { li { (mark(reason.level)) " " (reason.text) } }
                    }
                }
            }
            (card.facts())
            (super::mig::instances(snapshot, gpu))
        }
    }
}

/// Renders the card of a GPU that the driver no longer lists. `at` is its position among the missing GPUs and identifies
/// the card, because another GPU may have its index.
pub fn absent(at: usize, absent: &AbsentGpu) -> Markup {
    let AbsentGpu { gpu, pci_address, last_seen_unix_seconds, health } = absent;
    html! {
        article.gpu.absent.(look(health.level).class) id={ "missing-" (at) } aria-labelledby={ "missing-name-" (at) } {
            header {
                h3 id={ "missing-name-" (at) } { "Missing GPU" }
                p.state { (mark(health.level)) " " (health.word) }
                p.id { code { (uuid(&gpu.uuid)) } }
                @if !pci_address.is_empty() { p.id { code { (pci_address) } } }
            }
            dl.facts {
                div {
                    dt { "Last seen" }
                    dd {
                        @match last_seen_unix_seconds {
                            Some(seconds) => { (window::write(*seconds as f64)) " as GPU " (gpu.gpu) },
                            None => { "in this boot as GPU " (gpu.gpu) },
                        }
                    }
                }
                @for reason in &health.reasons {
                    div { dt { "Reason" } dd { (reason.text) } }
                    @if let Some(action) = reason.action.order() { div { dt { "First" } dd { (action) } } }
                }
            }
        }
    }
}

/// Renders a UUID in two lines.
fn uuid(uuid: &str) -> Markup {
    let halves = uuid.match_indices('-').nth(3).map(|(at, _)| uuid.split_at(at + 1));
    let (first, second) = halves.unwrap_or((uuid, ""));
    html! { (first) @if !second.is_empty() { wbr; (second) } }
}

struct Card<'a> {
    snapshot: &'a Snapshot,
    view: &'a GpuView,
}

/// A value, or the reason for which it is missing.
type CardValue = Result<f64, String>;

/// A value with its unit and limit, above its history.
struct Meter<'a> {
    name: &'a str,
    value: CardValue,
    unit: &'a str,
    limit: String,
    /// Value at the upper edge of the history.
    top: f64,
    points: &'a [f32],
    digits: fn(f64) -> String,
}

impl Meter<'_> {
    fn draw(self) -> Markup {
        let Meter { name, unit, digits, .. } = self;
        html! {
            div {
                dt { (name) }
                @match &self.value {
                    Ok(value) => dd { b { (digits(*value)) } (unit) " " small { (self.limit) } },
                    Err(why) => dd.none title=(why) { b { "–" } " " small { (why) } },
                }
                dd { (spark::area(self.points, self.top, |value| format!("{}{unit}", digits(value)))) }
            }
        }
    }
}

impl<'a> Card<'a> {
    fn read<L: LabelSet>(&self, metric: &Metric<Gpu, L>, labels: L) -> CardValue {
        self.snapshot.number(metric, &self.view.gpu, labels).ok_or_else(|| {
            match self.view.gaps.iter().find(|gap| gap.metrics.contains(&metric.id())) {
                Some(gap) => match &gap.missing {
                    Missing::Unsupported if self.is_divided() => "not in MIG mode".into(),
                    Missing::Unsupported => "not supported by GPU or driver".into(),
                    Missing::Failed { text, .. } => format!("{} failed: {text}", gap.call),
                    Missing::Dropped(_) => format!("{}: value out of range", gap.call),
                },
                None => match &self.view.state {
                    GpuState::Up | GpuState::Waiting => "not read yet".into(),
                    // The reasons on the card explain the missing value.
                    _ => "withdrawn".into(),
                },
            }
        })
    }

    fn is_divided(&self) -> bool {
        self.snapshot.number(&m::gpu_mig_mode_enabled, &self.view.gpu, ()) == Some(1.0)
    }

    fn points<L: LabelSet>(&self, metric: &Metric<Gpu, L>, labels: L) -> &'a [f32] {
        self.snapshot.trends.points(metric, &self.view.gpu, labels)
    }

    fn metrics(&self) -> Markup {
        let total = self.read(&m::gpu_memory_total_bytes, ()).ok();
        let power_limit = self.read(&m::gpu_power_limit_watts, (PowerLimit::Enforced,)).ok();
        let temperature = self.read(&m::gpu_temperature_celsius, (Sensor::Gpu,));
        let margin = self.read(&m::gpu_temperature_margin_celsius, ()).ok();
        let hottest = temperature.as_ref().ok().zip(margin).map(|(now, margin)| now + margin);
        let clock_max = self.read(&m::gpu_clock_max_hertz, (ClockDomain::Sm,)).ok();
        let of = |limit: Option<f64>, text: fn(f64) -> String| {
            limit.map(|l| format!("of {}", text(l))).unwrap_or_default()
        };
        let whole = |value: f64| format!("{value:.0}");
        let meters = [
            Meter {
                name: "Utilization",
                value: self.read(&m::gpu_utilization_ratio, ()),
                unit: " %",
                limit: String::new(),
                top: 1.0,
                points: self.points(&m::gpu_utilization_ratio, ()),
                digits: figures::percent,
            },
            Meter {
                name: "Memory",
                value: self.read(&m::gpu_memory_used_bytes, ()),
                unit: " GiB",
                limit: of(total, figures::gib),
                top: total.unwrap_or(0.0),
                points: self.points(&m::gpu_memory_used_bytes, ()),
                digits: figures::gib,
            },
            Meter {
                name: "Power",
                value: self.read(&m::gpu_power_watts, ()),
                unit: " W",
                limit: of(power_limit, whole),
                top: power_limit.unwrap_or(0.0),
                points: self.points(&m::gpu_power_watts, ()),
                digits: whole,
            },
            Meter {
                name: "Temperature",
                value: temperature,
                unit: " °C",
                limit: hottest.map(|limit| format!("slowdown at {limit:.0}")).unwrap_or_default(),
                top: hottest.unwrap_or(100.0),
                points: self.points(&m::gpu_temperature_celsius, (Sensor::Gpu,)),
                digits: whole,
            },
            Meter {
                name: "SM clock",
                value: self.read(&m::gpu_clock_hertz, (ClockDomain::Sm,)),
                unit: " MHz",
                limit: of(clock_max, figures::mhz),
                top: clock_max.unwrap_or(0.0),
                points: self.points(&m::gpu_clock_hertz, (ClockDomain::Sm,)),
                digits: figures::mhz,
            },
        ];
        html! { dl.metrics { @for meter in meters { (meter.draw()) } } }
    }

    fn facts(&self) -> Markup {
        let throttled = self.throttle_reasons();
        html! {
            dl.facts {
                div {
                    dt { "Throttle" }
                    dd {
                        @if self.view.state != GpuState::Up { (none("withdrawn")) }
                        @else if throttled.is_empty() { "none" }
                        @else { ul { @for event in throttled {
                            li { (mark(throttle_level(event))) " " (figures::clock_event(event)) }
                        } } }
                    }
                }
                div { dt { "Errors" } dd { (self.errors()) } }
                div { dt { "Memory" } dd { (self.memory()) } }
                div { dt { "Links" } dd { (self.links()) } }
                @if let Some(line) = canary::line(self.snapshot, &self.view.gpu) {
                    div { dt { "Canary" } dd { (mark(line.level)) " " (line.text) } }
                }
                (owners::of_gpu(self.snapshot, &self.view.gpu))
            }
        }
    }

    /// Returns the active reasons for lower clocks, except for idleness.
    fn throttle_reasons(&self) -> Vec<ClockEvent> {
        let holds = |event: &ClockEvent| self.read(&m::gpu_clock_event_active, (*event,)) == Ok(1.0);
        ClockEvent::ALL.iter().copied().filter(|event| *event != ClockEvent::GpuIdle).filter(holds).collect()
    }

    /// Renders temperature and clock of the device memory.
    fn memory(&self) -> Markup {
        let temperature = self.read(&m::gpu_temperature_celsius, (Sensor::Memory,));
        let clock = self.read(&m::gpu_clock_hertz, (ClockDomain::Memory,));
        html! {
            @match &temperature { Ok(celsius) => { (format!("{celsius:.0} °C")) }, Err(why) => { (none(why)) } }
            @if let Ok(clock) = clock { " · " (figures::mhz(clock)) " MHz" }
        }
    }

    /// Renders the error counts that are not zero.
    fn errors(&self) -> Markup {
        let ecc = |error| self.read(&m::gpu_ecc_total_errors, (EccCounter::Volatile, error));
        let rows = |cause| self.read(&m::gpu_remapped_rows, (cause,)).unwrap_or(0.0);
        let counts = [
            (ecc(EccError::Uncorrected), "ECC uncorrected"),
            (ecc(EccError::Corrected), "ECC corrected"),
            (Ok(self.xids()), "Xid"),
            (Ok(rows(RemapCause::Correctable) + rows(RemapCause::Uncorrectable)), "rows remapped"),
            (Ok(self.read(&m::gpu_pcie_replays_total, ()).unwrap_or(0.0)), "PCIe replays"),
        ];
        let count = |(count, name): &(CardValue, &str)| match count {
            Ok(count) if *count > 0.0 => Some(format!("{} {name}", figures::count(*count))),
            _ => None,
        };
        let found: Vec<String> = counts.iter().filter_map(count).collect();
        html! {
            @match &counts[0].0 {
                Err(why) if found.is_empty() => { (none(why)) },
                _ if found.is_empty() => { "none" },
                _ => { (found.join(", ")) },
            }
        }
    }

    /// Returns the number of Xid errors since the exporter started.
    fn xids(&self) -> f64 {
        let own = self.snapshot.series(&m::gpu_xid_errors_total).iter();
        let own = own
            .filter(|series| matches!(&series.subject.subject, Subject::Gpu(gpu) if *gpu == self.view.gpu));
        own.filter_map(|series| if let Value::Number(count) = series.value { Some(count) } else { None })
            .sum()
    }

    fn links(&self) -> Markup {
        let pcie =
            (self.read(&m::gpu_pcie_link_generation, ()), self.read(&m::gpu_pcie_link_width_lanes, ()));
        let nvlinks =
            self.read(&m::gpu_nvlink_links_up, ()).ok().zip(self.read(&m::gpu_nvlink_links, ()).ok());
        html! {
            @match pcie {
                (Ok(generation), Ok(lanes)) => { "PCIe gen " (generation) " ×" (lanes) },
                (Err(why), _) | (_, Err(why)) => { "PCIe " (none(&why)) },
            }
            @if let Some((up, all)) = nvlinks.filter(|(_, all)| *all > 0.0) { " · NVLink " (up) " of " (all) }
        }
    }
}

/// Returns the severity of a reason for lower clocks. Heat and hardware slowdowns require attention, but a configured
/// limit does not.
fn throttle_level(event: ClockEvent) -> HealthLevel {
    match event {
        ClockEvent::HwSlowdown
        | ClockEvent::HwThermalSlowdown
        | ClockEvent::SwThermalSlowdown
        | ClockEvent::HwPowerBrakeSlowdown => HealthLevel::Degraded,
        _ => HealthLevel::Note,
    }
}

/// Renders a missing value.
pub fn none(why: &str) -> Markup {
    html! { abbr title=(why) { "–" } }
}
