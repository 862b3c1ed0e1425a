//! An exporter that is away, and one that starts again.

use std::collections::BTreeMap;

use super::collector::{Collector, Kind, Point, Texts, scrapes};
use super::node::Setup;

const SCENARIO: &str = "tests/scenarios/still-1xh200.toml";

/// What a series is.
fn series(point: &Point) -> (Texts, String, Texts) {
    (point.resource.clone(), point.name.clone(), point.attributes.clone())
}

fn is_of_the_scrape(point: &Point) -> bool {
    point.name == "up" || point.name.starts_with("scrape_")
}

#[test]
fn an_exporter_away_is_absent_and_one_that_is_back_starts_its_counters_again() {
    let mut node = Setup::new(SCENARIO).start();
    node.wait_ready();
    let files = ["deploy/otel/collector.yaml", "deploy/otel/hw-gpu.yaml"];
    let collector = Collector::start(node.addr(), &files);
    collector.wait("three scrapes", |points| scrapes(points, true).len() >= 3);
    node.terminate();
    let failed = |points: &[Point]| -> Vec<u64> {
        let last = *scrapes(points, true).last().unwrap();
        scrapes(points, false).into_iter().filter(|time| *time > last).collect()
    };
    let points = collector.wait("two failed scrapes", |points| failed(points).len() >= 2);

    // Each series ends with a point without value; none has a value while the exporter is away.
    let away = failed(&points)[0];
    let mut last: BTreeMap<_, &Point> = BTreeMap::new();
    for point in points.iter().filter(|p| !is_of_the_scrape(p)) {
        assert!(point.time < away || point.value.is_none(), "invented: {point:?}");
        last.insert(series(point), point);
    }
    for point in last.values() {
        assert!(point.value.is_none() && point.time == away, "not ended: {point:?}");
    }
    assert!(last.len() > 200 && last.keys().any(|(_, name, _)| name == "hw.status"), "{}", last.len());

    // Asked by the Collector alone, so that it has answered less often than the first one.
    let _node = Setup::new(SCENARIO).at(node.addr()).with_state_of(&node).start();
    let read = |point: &&Point| point.name == "hw.energy" && point.value.is_some() && point.time > away;
    let points = collector.wait("two scrapes more", |points| points.iter().filter(read).count() >= 2);
    // What a reader adds up: differences since the last point, or since the start if that is another one.
    let mut before: BTreeMap<_, &Point> = BTreeMap::new();
    let mut restarted = Vec::new();
    for point in points.iter().filter(|p| p.kind == Kind::Counter && p.value.is_some()) {
        assert!(0 < point.start && point.start <= point.time, "{point:?}");
        if let Some(last) = before.insert(series(point), point) {
            if point.start == last.start {
                assert!(point.value >= last.value, "back without a new start: {last:?} {point:?}");
            } else {
                assert!(
                    point.start >= away && point.value < last.value,
                    "a start for nothing: {last:?} {point:?}"
                );
                restarted.push(point.name.as_str());
            }
        }
    }
    // Only counters start.
    assert!(points.iter().all(|p| p.start == 0 || matches!(p.kind, Kind::Counter | Kind::Histogram)));
    assert!(restarted.contains(&"gpu_exporter_http_requests_total"), "{restarted:?}");
    // The driver's own counter goes on.
    let energy: Vec<&Point> = points.iter().filter(|p| p.name == "hw.energy" && p.value.is_some()).collect();
    assert!(energy.iter().all(|p| (p.start, p.value) == (energy[0].start, energy[0].value)), "{energy:?}");
    assert_eq!(collector.complaints(), Vec::<String>::new());
}
