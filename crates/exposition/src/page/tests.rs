//! Tests of the status page with the node of the fixtures.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::assets::{ASSETS, PAGE_FILES};
use crate::fixtures;
use model::catalog::schema::Entity;
use model::catalog::{CanaryMode, FaultAction, Severity};
use model::health::HealthReason;
use model::snapshot::{CanaryView, DriverState, Event, EventKind, GpuState};
use model::trends::{FOLLOWED, POINTS, Trends};

fn page(snapshot: &Snapshot) -> String {
    let mut out = String::new();
    encode(snapshot, &mut out);
    out
}

/// Adds an hour of values that differ between all GPUs.
fn with_history(mut snapshot: Snapshot) -> Snapshot {
    let mut noise = 1u32;
    let mut points = || -> Box<[f32]> {
        let mut next = |_| {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (noise >> 8) as f32 / (1 << 24) as f32
        };
        (0..POINTS).map(&mut next).collect()
    };
    let gpus = snapshot.gpus.iter().map(|view| view.gpu.subject());
    let curves = gpus.flat_map(|gpu| (0..FOLLOWED.len() - 2).map(move |at| (at, gpu.clone())));
    let curves = curves.map(|key| (key, points())).collect();
    snapshot.trends = Arc::new(Trends { step: Duration::from_secs(10), end: snapshot.taken, curves });
    snapshot
}

/// Panics if an element is not closed, or if elements overlap.
fn assert_well_formed(page: &str) {
    const VOID: [&str; 4] = ["meta", "link", "wbr", "!DOCTYPE"];
    let mut open: Vec<&str> = Vec::new();
    for tag in page.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("a tag ends");
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        let name = tag.split(' ').next().unwrap_or_default();
        match name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name), "{page}"),
            None if VOID.contains(&name) => {}
            None => open.push(name),
        }
    }
    assert!(open.is_empty(), "{open:?}");
    let ids = page.split(" id=\"").skip(1).map(|rest| rest.split('"').next().unwrap_or_default());
    let mut known = HashSet::new();
    for id in ids {
        assert!(known.insert(id), "{id} twice");
    }
    for target in page.split("href=\"#").skip(1).chain(page.split("aria-labelledby=\"").skip(1)) {
        let target = target.split('"').next().unwrap_or_default();
        // The script adds the heading of the charts.
        assert!(known.contains(target) || target == "history", "nothing is named {target}");
    }
}

#[test]
fn every_gpu_has_a_card_that_says_how_it_is() {
    let page = page(&fixtures::node());
    assert_eq!(page.matches("<article").count(), 8);
    for text in [
        "nvmlDeviceGetPowerUsage has not returned for 12 s",
        "a memory row waits for a GPU reset",
        "PCIe uses 8 of 16 lanes",
        "Driver 580.95.05 · CUDA 13.0",
        "NVIDIA H200",
        "<b>3g.71gb</b> <small>#1</small>",
        "41.0<small> of 69.8 GiB</small>",
        "Stuck driver calls",
        "updated 11:06:40 UTC",
        "<b>689</b> W <small>of 700</small>",
        "<b>64</b> °C <small>slowdown at 85</small>",
        "HW thermal slowdown</li>",
        "First: reset the GPU",
    ] {
        assert!(page.contains(text), "{text} in {page}");
    }
}

#[test]
fn what_the_driver_asks_for_is_said_once() {
    let mut snapshot = fixtures::node_taken(1, model::clock::Mono(1));
    let condition = Condition::RecoveryAction;
    let (level, text) = (condition.level(), "the driver asks for a reset of the GPU".to_owned());
    let health = &mut snapshot.health.gpus[0];
    health.level = level;
    health.reasons = vec![HealthReason { condition, level, text, action: FaultAction::ResetGpu }];
    let page = page(&snapshot);
    assert!(page.contains("GPU 0</a> the driver asks for a reset of the GPU</li>"), "{page}");
}

#[test]
fn a_missing_gpu_has_a_card_with_its_identity() {
    let mut snapshot = fixtures::node_taken(1, model::clock::Mono(1));
    let mut never = fixtures::absent();
    (never.pci_address, never.last_seen_unix_seconds) = (String::new(), None);
    snapshot.health.absent = vec![fixtures::absent(), never];
    let gone = Event {
        gpu: Some(fixtures::absent().gpu),
        ..Event::new(EventKind::GpuLost, snapshot.unix_seconds, Severity::Page, FaultAction::RebootNode)
    };
    snapshot.events = Arc::from([Arc::new(gone)]);
    let page = page(&snapshot.evaluated());
    assert_well_formed(&page);
    assert_eq!(page.matches("<article").count(), 10);
    for text in [
        "<h3 id=\"missing-name-0\">Missing GPU</h3>",
        "<code>GPU-fa11e4a0-0b1d-4c3e-<wbr>9f2a-7b6c5d4e3f21</code>",
        "<code>0000:0a:00</code>",
        "<dd>2026-11-18T08:20:00Z as GPU 0</dd>",
        "<dd>in this boot as GPU 0</dd>",
        "<td><a href=\"#missing-0\">GPU 0</a></td>",
        "<a href=\"#missing-0\">GPU-fa11e4a0-0b1d-4c3e-9f2a-7b6c5d4e3f21</a> the driver does not list it any more \
         <strong>First: reboot the node</strong>",
    ] {
        assert!(page.contains(text), "{text} in {page}");
    }
}

#[test]
fn the_markup_is_well_formed_whatever_the_node() {
    assert_well_formed(&page(&fixtures::node()));
    assert_well_formed(&page(&with_history(fixtures::node_taken(1, model::clock::Mono(1)))));
    assert_well_formed(&page(&Snapshot::default().evaluated()));
}

#[test]
fn every_path_and_every_file_is_linked() {
    let page = page(&fixtures::node());
    let paths = paths::linked().map(|(path, _)| path);
    for path in paths.chain(ASSETS.iter().map(|asset| asset.path)) {
        let path = path.trim_start_matches('/');
        assert_eq!(page.matches(&format!("href=\"{path}\"")).count(), 1, "{path}");
    }
    for file in &PAGE_FILES {
        assert_eq!(page.matches(&format!("\"page/{}\"", file.path)).count(), 1, "{}", file.path);
    }
}

#[test]
fn a_card_has_the_result_of_the_canary() {
    let mut snapshot = fixtures::node_taken(1, model::clock::Mono(1));
    assert!(!page(&snapshot).contains("Canary"), "there is none");
    snapshot.canary = CanaryView { mode: Some(CanaryMode::Idle), ..CanaryView::default() };
    assert_eq!(page(&snapshot).matches("<dt>Canary</dt>").count(), 8);
    assert_eq!(page(&snapshot).matches("never ran").count(), 8);
    let event = Event {
        gpu: Some(fixtures::gpu(0)),
        check: Some("sm_sdc"),
        text: "SM 17 <computes> wrongly.".into(),
        ..Event::new(EventKind::Canary, snapshot.unix_seconds, Severity::Page, FaultAction::CheckHardware)
    };
    snapshot.events = Arc::from([Arc::new(event)]);
    let page = page(&snapshot);
    let text = "canary, sm_sdc: SM 17 &lt;computes&gt; wrongly.";
    assert_eq!(page.matches(text).count(), 1, "in the list alone");
}

#[test]
fn a_value_that_is_missing_says_why() {
    let page = page(&fixtures::node());
    assert!(page.contains("<small>withdrawn</small>"));
    assert!(page.contains("<small>not read yet</small>"));
}

#[test]
fn nothing_is_inline_and_nothing_comes_from_another_host() {
    let page = page(&with_history(fixtures::node_taken(1, model::clock::Mono(1))));
    for text in ["<style", " style=", "http://", "https://", " onclick", " onload", "javascript:"] {
        let found =
            page.match_indices(text).filter(|(at, _)| page[..*at].rfind('<') > page[..*at].rfind('>'));
        assert_eq!(found.count(), 0, "{text} within a tag");
    }
    assert_eq!(page.matches("<script").count(), 1);
    assert!(!CONTENT_SECURITY_POLICY.contains("unsafe") && !CONTENT_SECURITY_POLICY.contains("http"));
    for file in &PAGE_FILES {
        // A browser does not load addresses in comments or in the SVG namespace.
        for loading in ["url(", "@import", "src=\"http", "import("] {
            assert!(!file.text.contains(loading), "{} has {loading}", file.path);
        }
    }
}

#[test]
fn text_from_the_driver_is_never_markup() {
    let mut snapshot = fixtures::node_taken(1, model::clock::Mono(1));
    let evil = "<script>\"'&";
    snapshot.driver = DriverState::Away { text: evil.into() };
    snapshot.collectors[0].text = evil.into();
    snapshot.gpus[0].state =
        GpuState::Failing { error: model::catalog::DriverError::Unknown, text: evil.into() };
    snapshot.gpus[1].gpu.uuid = evil.into();
    let page = page(&snapshot.evaluated());
    assert!(page.contains("&lt;script&gt;&quot;'&amp;"));
    assert_eq!(page.matches("<script").count(), 1, "the page's own");
    assert_well_formed(&page);
}

#[test]
fn a_node_without_driver_or_gpus_has_a_page() {
    let empty = page(&Snapshot::default().evaluated());
    assert!(empty.contains("Waiting for the driver") && !empty.contains("<article"));
}

#[test]
fn curves_are_drawn_where_there_is_a_history() {
    assert!(!page(&fixtures::node()).contains("<path"));
    let page = page(&with_history(fixtures::node_taken(1, model::clock::Mono(1))));
    assert_eq!(page.matches("<path d=\"M0 24V").count(), 8 * 5, "of the whole hour");
    assert!(
        page.contains("<small>last 60 min</small>") && page.contains("aria-label=\"History: 0 % to 100 %\"")
    );
}

/// Limits the total size of everything that a browser loads: a page with an hour of noise, the style sheet, the script
/// and the points of the charts.
#[test]
fn all_of_the_page_is_below_60_kb_on_the_wire() {
    let gzip = |text: &str| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(2));
        std::io::Write::write_all(&mut encoder, text.as_bytes()).unwrap();
        encoder.finish().unwrap().len()
    };
    let snapshot = with_history(fixtures::node_taken(1, model::clock::Mono(1)));
    let mut points = String::new();
    history::encode(&snapshot, &mut points);
    let files: Vec<usize> = PAGE_FILES.iter().map(|file| file.gzip.unwrap().len()).collect();
    let (document, history) = (gzip(&page(&snapshot)), gzip(&points));
    let sum = document + history + files.iter().sum::<usize>();
    println!("document {document}, history {history}, style sheet and script {files:?}: {sum} bytes");
    assert!(sum < 60_000, "{sum}");
}
