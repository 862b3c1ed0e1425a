//! The HTTP paths. The routers, the 404 response, the links of the status page and the table in `docs/api.md` come from
//! these lists.

/// Expands the macro `$then` with the paths of `http.listen`, their handlers in `http::routes`, and their descriptions.
/// A path that ends with a slash also serves the files below it.
macro_rules! main_paths {
    ($then:ident) => {
        $then! {
            "/" => document(ResponseFormat::Page), "status page";
            "/page/updates" => get(live::respond), "publication numbers for the status page, as text/event-stream";
            "/page/history" => document(ResponseFormat::History), "points of the charts on the status page, as JSON";
            "/page/" => get(page_file), "style.css and script.js of the status page";
            "/metrics" => get(metrics), "metrics: OpenMetrics 1.0 or Prometheus text 0.0.4, by the Accept header";
            "/dcgm/metrics" => document(ResponseFormat::Dcgm), "metrics of dcgm-exporter, under their own names";
            "/livez" => get(livez), "200 while the exporter itself works";
            "/readyz" => get(readyz), "200 once every collector has answered or been found absent";
            "/api/v1/snapshot" => document(ResponseFormat::Json), "all published data, as JSON";
            "/api/v1/events" => get(events::respond), "faults and other events, as JSON (since=ID, limit=N) or as text/event-stream";
            "/api/v1/topology" => get(topology), "hardware around the GPUs and its changes, as JSON";
            "/api/v1/windows" => document(ResponseFormat::Windows), "windows of planned work, as JSON";
            "/api/v1/owners" => get(owners::respond), "owners of GPU work and their bottlenecks, as JSON (owner=ID, slurm_job=JOB, limit=N)";
            "/alerts/" => get(asset), "list of the alert rules, recording rules and related files";
            "/dashboards/" => get(asset), "list of the Grafana dashboards";
        }
    };
}

/// Expands the macro `$then` with the paths of `dcgm.listen`, which imitates dcgm-exporter.
macro_rules! dcgm_paths {
    ($then:ident) => {
        $then! {
            "/" => get(index), "index";
            "/metrics" => document(ResponseFormat::Dcgm), "metrics";
            "/health" => get(health), "200 while the exporter itself works";
        }
    };
}

pub(crate) use {dcgm_paths, main_paths};

macro_rules! descriptions {
    ($($path:literal => $handler:expr, $description:literal;)*) => { &[$(($path, $description)),*] };
}

/// Every path of `http.listen` with its description.
pub(crate) const PATHS: &[(&str, &str)] = main_paths!(descriptions);
/// Every path of `dcgm.listen` with its description.
pub(crate) const DCGM_PATHS: &[(&str, &str)] = dcgm_paths!(descriptions);

/// Returns the paths that the status page links to, with their descriptions.
pub(crate) fn linked() -> impl Iterator<Item = (&'static str, &'static str)> {
    PATHS.iter().copied().filter(|(path, _)| *path != "/" && !path.starts_with("/page/"))
}

#[cfg(test)]
mod tests {
    use super::PATHS;

    #[test]
    fn docs_list_every_path() {
        let rows: Vec<String> = include_str!("../../../docs/api.md")
            .lines()
            .filter(|line| line.starts_with("| `/"))
            .map(str::to_owned)
            .collect();
        let wanted: Vec<String> =
            PATHS.iter().map(|(path, description)| format!("| `{path}` | {description} |")).collect();
        assert_eq!(rows, wanted, "docs/api.md");
    }
}
