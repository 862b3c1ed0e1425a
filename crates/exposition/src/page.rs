//! The status page `/`: the verdict on the node, a card per GPU, and tables below the cards. It is a single HTML document
//! that works without JavaScript. With JavaScript, it updates itself and has charts.
//!
//! The verdicts come from the snapshot, and the templates escape every text. `live.js` reloads the document when the
//! server announces a publication, and updates only the changed elements. `charts.js` draws `/page/history`.

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

/// Name of the node, which is read only once because it does not change while the node runs.
static HOST: LazyLock<String> = LazyLock::new(|| match node_name() {
    name if name.is_empty() => "this node".to_owned(),
    name => name,
});

/// Returns the name of the node: in a pod the name that Kubernetes provides, because a pod has its own host name, and
/// otherwise the host name.
pub fn node_name() -> String {
    let given = std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty());
    given.unwrap_or_else(|| nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned())
}

/// Content security policy of every response. A browser may load scripts, style sheets and data only from this server,
/// and must not interpret text as markup or script.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
     trusted-types 'none'";

/// Appends the page as HTML.
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
                    // The script fills both elements, and updates keep them.
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

/// Renders the verdict, the most serious reason of every GPU with a condition, and planned work.
fn verdict(snapshot: &Snapshot) -> Markup {
    let health = &snapshot.health;
    let look = look(health.level);
    let ill = || health.gpus.iter().filter(|gpu| gpu.level > HealthLevel::Note);
    html! {
        section.verdict.(look.class) aria-label="Verdict" {
            // Screen readers announce only the word, because the times in the text change continually.
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
                // The text of an event already contains the action, and so does an action that the driver requests.
                @let is_named = worst.condition == Condition::RecoveryAction || worst.text.contains("First: ");
                @if let Some(action) = worst.action.order().filter(|_| !is_named) {
                    " " strong { "First: " (action) }
                }
                @if health.reasons.len() > 1 { " " small { "and " (health.reasons.len() - 1) " more" } }
            }
        }
    }
}

/// Describes open windows of planned work and the next window.
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

/// Describes the time range of the sparklines.
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

/// Renders a link to a GPU's card.
fn link(index: u32) -> Markup {
    html! { a href={ "#gpu-" (index) } { "GPU " (index) } }
}

/// Renders the symbol of a level. Screen readers ignore it and read the word next to it.
fn mark(level: HealthLevel) -> Markup {
    let look = look(level);
    html! { span.mark.(look.class) aria-hidden="true" { (look.symbol) } }
}

/// Appearance of a level on the page.
struct Look {
    /// Class in the style sheet.
    class: &'static str,
    /// Symbol that is distinguishable without colour.
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
