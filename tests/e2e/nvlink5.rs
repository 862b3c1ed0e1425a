//! NVLink of the fifth generation (Blackwell), the position in a rack and the newest Xid: simulated alone.

use super::node::{Metrics, Node, Setup};

const FIRST: (&str, &str) = ("gpu", "0");
const ERRORS: &str = "gpu_nvlink_errors_total";
const OF_LINK: &str = "gpu_nvlink_link_errors_total";

/// The node, once each tier of both GPUs was read.
fn started(setup: Setup) -> (Node, Metrics) {
    let node = setup.with("SAMPLER__NVLINK_INTERVAL", "200ms").start();
    node.wait_ready();
    node.wait_for("links of both GPUs", |node| {
        let everything = node.everything();
        let tier = |gpu| [("gpu", gpu), ("tier", "nvlink")];
        let read = |gpu| everything.all("gpu_exporter_sample_timestamp_seconds", &tier(gpu)).len() == 1;
        read("0") && read("1")
    });
    let page = node.metrics();
    (node, page)
}

fn unsupported(page: &Metrics, metric: &str) -> Option<f64> {
    page.value("gpu_exporter_metric_unsupported", &[("metric", metric)])
}

#[test]
fn counters_of_nvlink_5_are_kinds_of_the_errors() {
    let (_node, page) = started(Setup::new("tests/scenarios/b200.toml"));
    let of_gpu = |error| page.value(ERRORS, &[FIRST, ("error", error)]);
    for (error, count) in [
        ("link_recovery", 3.0),
        ("link_recovery_successful", 3.0),
        ("link_recovery_failed", 0.0),
        ("symbol", 40.0),
        ("effective", 0.0),
        ("malformed_packet", 2.0),
        ("buffer_overrun", 0.0),
        ("receive", 0.0),
        ("receive_remote", 0.0),
        ("receive_general", 0.0),
        ("local_link_integrity", 0.0),
        ("transmit_discard", 0.0),
    ] {
        assert_eq!(of_gpu(error), Some(count), "{error}");
    }
    assert_eq!(page.all(ERRORS, &[FIRST]).len(), 12, "no kind of older links");
    let of_link = |link, error| page.value(OF_LINK, &[FIRST, ("link", link), ("error", error)]);
    assert_eq!(of_link("3", "link_recovery"), Some(3.0));
    assert_eq!(of_link("3", "symbol"), Some(40.0));
    assert_eq!(of_link("7", "malformed_packet"), Some(2.0));
    assert_eq!(page.all(OF_LINK, &[FIRST]).len(), 4, "links without errors are left out");

    let ratio =
        |link, of| page.value("gpu_nvlink_link_bit_error_ratio", &[FIRST, ("link", link), ("errors", of)]);
    assert_eq!(ratio("3", "symbol"), Some(3e-9));
    assert_eq!(ratio("4", "effective"), Some(1e-15));
    let words = |link, count| {
        let labels = [FIRST, ("link", link), ("symbol_errors", count)];
        page.value("gpu_nvlink_link_fec_codewords_total", &labels)
    };
    assert_eq!(words("3", "2"), Some(5.0));
    assert_eq!(words("4", "0"), Some(9e12));
    assert_eq!(page.all("gpu_nvlink_link_fec_codewords_total", &[FIRST]).len(), 18 * 16);
}

#[test]
fn errors_that_no_generation_counts_are_unsupported() {
    let (_node, page) = started(Setup::new("tests/scenarios/b200.toml"));
    for metric in [ERRORS, OF_LINK] {
        assert_eq!(unsupported(&page, metric), Some(1.0), "{metric}: of the second GPU alone");
        assert_eq!(page.all(metric, &[("gpu", "1")]).len(), 0);
    }
}

#[test]
fn counters_of_links_that_were_down_at_the_start_are_found_later() {
    let late = Setup::new("tests/scenarios/b200-late-links.toml");
    let node = late.with("SAMPLER__NVLINK_INTERVAL", "200ms").with("SAMPLER__SLOW_INTERVAL", "200ms").start();
    node.wait_metrics("no link is up", |m| m.value("gpu_nvlink_links_up", &[FIRST]) == Some(0.0));
    node.wait_metrics("the counters were asked", |m| {
        unsupported(m, "gpu_nvlink_link_bit_error_ratio") == Some(1.0)
    });
    node.sim().open_gate("trained").unwrap();
    node.wait_metrics("the links have counters", |m| {
        m.value(ERRORS, &[FIRST, ("error", "link_recovery")]) == Some(18.0)
    });
}

#[test]
fn a_link_that_comes_up_later_has_its_counters_and_the_gpu_its_sum() {
    let late = Setup::new("tests/scenarios/b200-late-link.toml");
    let node = late.with("SAMPLER__NVLINK_INTERVAL", "200ms").with("SAMPLER__SLOW_INTERVAL", "200ms").start();
    let recoveries = |m: &Metrics| m.value(ERRORS, &[FIRST, ("error", "link_recovery")]);
    node.wait_metrics("the links that are up have counters", |m| {
        m.value("gpu_nvlink_links_up", &[FIRST]) == Some(17.0)
            && m.value(OF_LINK, &[FIRST, ("link", "3"), ("error", "link_recovery")]) == Some(3.0)
    });
    assert_eq!(recoveries(&node.metrics()), None, "a sum without a link would step back");
    node.sim().open_gate("trained").unwrap();
    let m = node.wait_metrics("the sum of all links", |m| recoveries(m) == Some(4.0));
    let of_link = |name, label, value| m.value(name, &[FIRST, ("link", "5"), (label, value)]);
    assert_eq!(of_link("gpu_nvlink_link_fec_codewords_total", "symbol_errors", "2"), Some(9.0));
    assert_eq!(of_link("gpu_nvlink_link_bytes_total", "direction", "tx"), Some(7.0 * 1024.0));
}

#[test]
fn older_links_have_the_kinds_that_they_had() {
    let (_node, page) = started(Setup::new("tests/scenarios/widen.toml"));
    assert_eq!(page.all(ERRORS, &[FIRST]).len(), 3);
    for metric in [ERRORS, OF_LINK] {
        assert_eq!(unsupported(&page, metric), None, "{metric}");
    }
    for metric in ["gpu_nvlink_link_bit_error_ratio", "gpu_nvlink_link_fec_codewords_total"] {
        assert_eq!(unsupported(&page, metric), Some(2.0), "{metric}");
    }
}

#[test]
fn recoveries_of_single_links_need_no_group() {
    let (_node, page) = started(Setup::new("tests/scenarios/b200.toml").with("METRICS__GROUPS", ""));
    assert_eq!(page.value(OF_LINK, &[FIRST, ("link", "3"), ("error", "link_recovery")]), Some(3.0));
    assert_eq!(page.all(OF_LINK, &[FIRST, ("error", "symbol")]).len(), 0);
    assert_eq!(page.all("gpu_nvlink_link_bit_error_ratio", &[]).len(), 0);
}

#[test]
fn the_position_in_the_platform_is_served() {
    let (_node, page) = started(Setup::new("tests/scenarios/b200.toml").with("METRICS__GROUPS", "limits"));
    let place = [("slot", "26"), ("tray", "12"), ("host_id", "1"), ("module_id", "3")];
    let with = |gpu, serial| -> Vec<(&str, &str)> {
        place.into_iter().chain([("gpu", gpu), ("chassis_serial", serial)]).collect()
    };
    assert_eq!(page.value("gpu_platform_info", &with("0", "1821325191344")), Some(1.0));
    assert_eq!(
        page.value("gpu_platform_info", &with("1", "")),
        Some(1.0),
        "the first version has a rack instead"
    );
}

#[test]
fn the_code_of_the_newest_xid_is_served() {
    let (node, page) = started(Setup::new("tests/scenarios/b200.toml").with("METRICS__GROUPS", ""));
    assert_eq!(page.all("gpu_xid_last_code", &[]).len(), 0);
    for (gate, code) in [("xid", 31.0), ("another", 63.0)] {
        node.sim().open_gate(gate).unwrap();
        node.wait_metrics("the code", |m| m.value("gpu_xid_last_code", &[FIRST]) == Some(code));
    }
    assert_eq!(node.metrics().all("gpu_xid_last_code", &[]).len(), 1);
}
