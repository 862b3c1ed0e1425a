//! The status page of the shipped program: what a browser gets, with and without JavaScript. `make prove PARTS=page` looks at it
//! in a browser.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use crate::node::{Node, Setup};

/// With a history that is there at once.
fn start(scenario: &str) -> Node {
    Setup::new(scenario).with("PAGE__HISTORY", "18s").start()
}

/// Curves of the charts, as (metric, GPU, points).
fn curves(node: &Node) -> Vec<(String, u64, usize)> {
    let json: serde_json::Value = serde_json::from_str(&node.get("/page/history").1).unwrap();
    let curve = |curve: &serde_json::Value| {
        let points = curve["points"].as_array().map_or(0, Vec::len);
        (curve["metric"].as_str().unwrap().to_owned(), curve["gpu"].as_u64().unwrap(), points)
    };
    json["curves"].as_array().unwrap().iter().map(curve).collect()
}

#[test]
fn a_node_of_any_size_has_its_cards_and_their_history() {
    for (scenario, gpus, charts) in [
        ("tests/scenarios/no-gpu.toml", 0, 0),
        ("tests/scenarios/still-1xh200.toml", 1, 4),
        ("tests/page/scenarios/sixteen.toml", 16, 4 * 16),
    ] {
        let node = start(scenario);
        node.wait_for("the history of each GPU", |node| {
            let curves = curves(node);
            curves.len() == charts && curves.iter().all(|(.., points)| *points > 2)
        });
        let page = node.get("/").1;
        assert_eq!(page.matches("<article").count(), gpus, "{scenario}");
        assert_eq!(page.matches("<path").count(), 5 * gpus, "{scenario}");
        assert!(page.len() < 20_000 * (gpus + 1), "{scenario}: {} bytes", page.len());
    }
}

#[test]
fn each_slice_has_its_memory_and_its_history() {
    let node = start("tests/page/scenarios/slices.toml");
    node.wait_for("the memory and history of each slice", |node| {
        let page = node.get("/").1;
        // Four curves of each GPU, which has no utilization in MIG mode, and one of each slice.
        page.matches("<path").count() == 8 * (4 + 7)
            && page.matches("<b>1g.18gb</b>").count() == 56
            && page.matches("<small>not in MIG mode</small>").count() == 8
    });
}

#[test]
fn without_a_history_the_page_has_no_curves() {
    let node = Setup::new("tests/scenarios/still-1xh200.toml").with("PAGE__HISTORY", "0s").start();
    node.wait_ready();
    let page = node.get("/").1;
    assert!(page.contains("<article") && !page.contains("<path") && !page.contains("<small>last "));
    assert_eq!(curves(&node), []);
}

#[test]
fn an_open_page_is_called_at_each_publication() {
    let node = start("tests/scenarios/still-1xh200.toml");
    let mut stream = TcpStream::connect(node.addr()).unwrap();
    stream.set_read_timeout(Some(crate::node::PATIENCE)).unwrap();
    write!(stream, "GET /page/updates HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    let mut numbers = lines.filter_map(|line| line.strip_prefix("data: ")?.parse::<u64>().ok());
    let first = numbers.next().unwrap();
    assert!(numbers.next().unwrap() > first);
}
