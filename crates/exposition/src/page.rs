//! The status page `/`: the node's verdict, a card for each GPU, and what is around the GPUs. One HTML document, which works
//! without JavaScript; with JavaScript it is live and has charts.
//!
//! The verdicts are those of the snapshot. Every text is escaped by the templates. `live.js` loads the document again when
//! a publication is announced and changes what has changed; `charts.js` draws `/page/history`.

mod canary;
mod card;
mod figures;
pub mod history;
mod machine;
mod mig;
mod owners;
mod spark;
mod tables;

use std::sync::LazyLock;

use maud::{DOCTYPE, Markup, html};

use crate::paths;
use model::catalog::{self as m, Node};
use model::health::{Condition, GpuHealth, HealthLevel};
use model::snapshot::Snapshot;
use model::{text, window};

/// Fetched once: the name of a node does not change while it runs.
static HOST: LazyLock<String> = LazyLock::new(|| match node_name() {
    name if name.is_empty() => "this node".to_owned(),
    name => name,
});

/// The node's name: what Kubernetes hands over, as a pod has a host name of its own, else the host's.
pub fn node_name() -> String {
    let given = std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty());
    given.unwrap_or_else(|| nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned())
}

/// What a browser may load and do: script, style sheet and answers of this server; no text becomes markup or script.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
     trusted-types 'none'";

/// Appends the page.
pub fn encode(snapshot: &Snapshot, out: &mut String) {
    let look = look(snapshot.health.level);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (look.symbol) " " (*HOST) " · GPUs" }
                link rel="icon" href="data:,";
                link rel="stylesheet" href="page/style.css";
                script src="page/script.js" defer {}
                noscript { meta http-equiv="refresh" content="10"; }
            }
            body {
                a.skip href="#gpus" { "Skip to the GPUs" }
                (header(snapshot))
                main {
                    (gpus(snapshot))
                    // Filled by the script, which keeps both.
                    section #charts hidden data-keep aria-labelledby="history" {}
                    (tables::stuck_calls(snapshot))
                    div.columns {
                        div { (canary::table(snapshot)) (tables::events(snapshot)) }
                        div { (machine::map(snapshot)) (tables::collectors(snapshot)) }
                    }
                }
                (footer())
            }
        }
    };
    out.push_str(&page.0);
}

fn header(snapshot: &Snapshot) -> Markup {
    html! {
        header {
            div.title {
                h1 { (*HOST) }
                p #live data-keep hidden { span #live-state role="status" {} " " button #pause type="button" {} }
            }
            p.facts { @for (at, fact) in facts(snapshot).iter().enumerate() { @if at > 0 { " · " } (fact) } }
            (verdict(snapshot))
        }
    }
}

fn facts(snapshot: &Snapshot) -> Vec<String> {
    let node = Node {};
    let driver = |label| snapshot.info(&m::gpu_driver_info, &node, label).filter(|text| !text.is_empty());
    let mut facts = match driver("driver_version") {
        Some(version) => vec![format!("Driver {version}")],
        None => vec![format!("Driver: {}", snapshot.driver.text())],
    };
    facts.extend(driver("cuda_version").map(|cuda| format!("CUDA {cuda}")));
    let version = snapshot.info(&m::gpu_exporter_build_info, &node, "version");
    facts.push(format!("gpu-node-exporter {}", version.unwrap_or(env!("CARGO_PKG_VERSION"))));
    if let Some(start) = snapshot.number(&m::process_start_time_seconds, &node, ()) {
        facts.push(format!("up {}", text::duration(figures::seconds(snapshot.unix_seconds - start))));
    }
    facts.push(format!("updated {}", text::time_of_day(snapshot.unix_seconds)));
    facts
}

/// The verdict, the most serious reason of each GPU that has one, and planned work.
fn verdict(snapshot: &Snapshot) -> Markup {
    let health = &snapshot.health;
    let look = look(health.level);
    let ill = || health.gpus.iter().filter(|gpu| gpu.level > HealthLevel::Note);
    html! {
        section.verdict.(look.class) aria-label="Verdict" {
            // The word alone is announced: the text has times that go on.
            p { (mark(health.level)) " " strong role="status" { (look.word) } " " (health.text) }
            @if ill().next().is_some() || !health.absent.is_empty() {
                ul {
                    @for (at, absent) in health.absent.iter().enumerate() {
                        (reason(&absent.health, html! { a href={ "#missing-" (at) } { (absent.gpu.uuid) } }))
                    }
                    @for gpu in ill() { (reason(gpu, link(gpu.gpu.gpu))) }
                }
            }
            @for text in windows(snapshot) { p.facts { (mark(HealthLevel::Note)) " " (text) } }
        }
    }
}

fn reason(health: &GpuHealth, link: Markup) -> Markup {
    html! {
        @if let Some(worst) = health.reasons.first() {
            li {
                (mark(worst.level)) " " (link) " " (worst.text)
                // An event has its action in the text, as the driver's request is one.
                @let is_named = worst.condition == Condition::RecoveryAction || worst.text.contains("First: ");
                @if let Some(action) = worst.action.order().filter(|_| !is_named) {
                    " " strong { "First: " (action) }
                }
                @if health.reasons.len() > 1 { " " small { "and " (health.reasons.len() - 1) " more" } }
            }
        }
    }
}

/// Planned work: what lasts, and what comes next.
fn windows(snapshot: &Snapshot) -> Vec<String> {
    let now = snapshot.unix_seconds;
    let open = snapshot.windows.iter().filter(|window| window.is_open(now));
    let mut texts: Vec<String> = open.map(|window| text::capitalized(&window.describe())).collect();
    let coming = snapshot.windows.iter().filter(|window| now < window.start);
    if let Some(next) = coming.min_by(|a, b| a.start.total_cmp(&b.start)) {
        texts.push(format!("Next, from {}: {}", window::write(next.start), next.describe()));
    }
    texts
}

fn gpus(snapshot: &Snapshot) -> Markup {
    html! {
        section #gpus tabindex="-1" aria-labelledby="gpus-title" {
            h2 #gpus-title { "GPUs" @if !snapshot.trends.step.is_zero() { " " small { (history_text(snapshot)) } } }
            @if snapshot.gpus.is_empty() { p.empty { "The driver lists no GPU" } }
            @for (at, absent) in snapshot.health.absent.iter().enumerate() { (card::absent(at, absent)) }
            @for (view, health) in snapshot.gpus.iter().zip(&snapshot.health.gpus) {
                (card::card(snapshot, view, health))
            }
        }
    }
}

/// The length of the sparklines.
fn history_text(snapshot: &Snapshot) -> String {
    let length = snapshot.trends.step * model::trends::POINTS as u32;
    format!("last {}", text::duration(length))
}

fn footer() -> Markup {
    html! {
        footer {
            (tables::files())
            nav aria-label="Other views" {
                @for (path, description) in paths::linked() {
                    a href=(path.trim_start_matches('/')) title=(description) { (path) }
                    " "
                }
            }
        }
    }
}

/// A link to a GPU's card.
fn link(index: u32) -> Markup {
    html! { a href={ "#gpu-" (index) } { "GPU " (index) } }
}

/// The symbol that goes with a word, which screen readers read instead.
fn mark(level: HealthLevel) -> Markup {
    let look = look(level);
    html! { span.mark.(look.class) aria-hidden="true" { (look.symbol) } }
}

/// How a level looks.
struct Look {
    /// The class in the style sheet.
    class: &'static str,
    /// A symbol that needs no colour.
    symbol: &'static str,
    word: &'static str,
}

fn look(level: HealthLevel) -> Look {
    let (class, symbol, word) = match level {
        HealthLevel::Ok => ("ok", "✓", "OK"),
        HealthLevel::Note => ("note", "i", "Note"),
        HealthLevel::Waiting => ("waiting", "…", "Waiting"),
        HealthLevel::Degraded => ("warn", "▲", "Degraded"),
        HealthLevel::Faulty => ("bad", "✕", "Faulty"),
    };
    Look { class, symbol, word }
}

#[cfg(test)]
mod tests;
