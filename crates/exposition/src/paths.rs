//! What the HTTP server serves, for the answer to an unknown path and for the links of the status page.

use crate::assets::FOLDERS;

/// Every path, with what it shows.
pub const PATHS: [(&str, &str); 15] = [
    ("/", "status page"),
    ("/page/updates", "for the status page: the number of each publication, as text/event-stream"),
    ("/page/history", "for the status page: the points of its charts, as JSON"),
    ("/page/", "for the status page: style.css and script.js"),
    ("/metrics", "metrics: OpenMetrics 1.0 or Prometheus text 0.0.4, by the Accept header"),
    ("/dcgm/metrics", "the metrics that dcgm-exporter has, under its names"),
    ("/livez", "200 while the exporter itself works"),
    ("/readyz", "200 once every collector has answered or been found absent"),
    ("/api/v1/snapshot", "everything, as JSON"),
    ("/api/v1/events", "faults and other events, as JSON (since=ID, limit=N) or as text/event-stream"),
    ("/api/v1/topology", "the machine around the GPUs and what has changed of it, as JSON"),
    ("/api/v1/windows", "windows of planned work, as JSON"),
    ("/api/v1/owners", "whose work is on the GPUs, and what holds it back, as JSON"),
    FOLDERS[0],
    FOLDERS[1],
];
