//! The page of the hand-made node.

use base64::Engine;
use sha2::{Digest, Sha256};

use super::*;
use crate::fixtures;
use model::catalog::{self as m, CanaryMode, FaultAction, GpuInstance, Severity};
use model::sample::Rows;
use model::snapshot::{CanaryView, DriverState, Event, EventKind, GpuState, GpuView};

fn page(snapshot: &Snapshot) -> String {
    let mut out = String::new();
    encode(snapshot, &mut out);
    out
}

#[test]
fn the_policy_allows_the_style_sheet_that_is_there() {
    let hash = base64::engine::general_purpose::STANDARD.encode(Sha256::digest(STYLE));
    let source = format!("'sha256-{hash}'");
    assert!(
        content_security_policy().contains(&source),
        "style.css has changed: the policy must name {source}"
    );
}

#[test]
fn every_gpu_has_a_card_that_says_how_it_is() {
    let page = page(&fixtures::node());
    assert_eq!(page.matches("<article").count(), 8);
    assert_eq!(page.matches("</article>").count(), 8);
    for text in [
        "nvmlDeviceGetPowerUsage has not returned for 12 s",
        "a memory row waits for a GPU reset",
        "PCIe uses 8 of 16 lanes",
        "Driver 580.95.05 · CUDA 13.0",
        "NVIDIA H200",
        "3g.71gb #1",
        "41.0 / 69.8 GiB",
        "Driver calls without an answer",
        "values of 11:06:40 UTC",
    ] {
        assert!(page.contains(text), "{text}");
    }
}

#[test]
fn every_path_and_every_file_is_linked() {
    let page = page(&fixtures::node());
    let paths = PATHS.iter().map(|(path, _)| *path).filter(|path| *path != "/");
    for path in paths.chain(ASSETS.iter().map(|asset| asset.path)) {
        assert_eq!(page.matches(&format!("href=\"{path}\"")).count(), 1, "{path}");
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
    snapshot.events = std::sync::Arc::from([std::sync::Arc::new(event)]);
    let page = page(&snapshot);
    assert_eq!(
        page.matches("canary, sm_sdc: SM 17 &lt;computes&gt; wrongly.").count(),
        1,
        "in the list alone"
    );
}

#[test]
fn a_value_that_is_missing_says_why() {
    let page = page(&fixtures::node());
    assert!(page.contains("title=\"withdrawn: nvmlDeviceGetPowerUsage has not returned for 12 s\""));
    assert!(page.contains("title=\"not read yet\""));
}

#[test]
fn nothing_needs_a_script_an_inline_style_or_another_host() {
    let page = page(&fixtures::node());
    for text in ["<script", "style=\"", "http://", "https://", "onload"] {
        assert!(!page.contains(text), "{text}");
    }
}

#[test]
fn text_from_the_driver_is_never_markup() {
    let mut snapshot = fixtures::node_taken(1, model::clock::Mono(1));
    let evil = "<script>\"'&";
    snapshot.driver = DriverState::Away { text: evil.into() };
    snapshot.collectors[0].text = evil.into();
    snapshot.gpus[0].state = model::snapshot::GpuState::Failing { error: None, text: evil.into() };
    snapshot.gpus[1].gpu.uuid = evil.into();
    let page = page(&snapshot.evaluated());
    assert!(page.contains("&lt;script&gt;&quot;&#39;&amp;"));
    assert!(!page.contains("<script"));
}

#[test]
fn a_node_without_driver_or_gpus_has_a_page() {
    let empty = page(&Snapshot::default().evaluated());
    assert!(empty.contains("Waiting for the driver") && !empty.contains("<article"));
}

#[test]
fn a_gpu_of_four_slices_is_drawn_with_four() {
    let gpu = fixtures::gpu(0);
    let mut rows = Rows::default();
    for (metric, value) in
        [(&m::gpu_mig_slices, 4.0), (&m::gpu_mig_slices_used, 2.0), (&m::gpu_mig_slices_unplaceable, 1.0)]
    {
        rows.of(&gpu).put(metric, (), value).unwrap();
    }
    // The second comes first on the board, and has no compute instance.
    for (gpu_instance, start) in [(3, 3.0), (5, 0.0)] {
        let (uuid, profile) = (gpu.uuid.clone(), "1g.6gb".into());
        let instance = GpuInstance { gpu: gpu.gpu, uuid, gpu_instance, profile };
        rows.of(&instance).put(&m::gpu_mig_placement_start, (), start).unwrap();
    }
    let mut snapshot = Snapshot::with_rows(&rows);
    let (parts, gaps) = (Vec::new(), Vec::new());
    snapshot.gpus = vec![GpuView { gpu, state: GpuState::Up, parts, gaps, processes: Vec::new() }];
    let page = page(&snapshot.evaluated());
    let strip = "<span class=\"w1\">1g</span><span class=\"w1\">1g</span>\
                 <span class=\"w1 free\">free</span><span class=\"w1 free\">no fit</span></div>";
    assert!(page.contains(strip), "{page}");
    assert!(page.find("1g.6gb #5").unwrap() < page.find("1g.6gb #3").unwrap());
}
