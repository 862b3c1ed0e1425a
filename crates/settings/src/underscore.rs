//! Warnings about environment variables with one underscore in front of the section instead of two.

use std::ffi::OsString;

use super::file::keys;
use super::load::{ENV_PREFIX, nearest};

/// Common prefix of the exporter's variables and of the variables that Kubernetes sets for a Service of this name.
const PREFIX: &str = "GPU_NODE_EXPORTER_";

/// Returns a warning for every variable of this process that was probably intended as a setting.
pub fn environment_warnings() -> Vec<String> {
    warnings(std::env::vars_os())
}

fn warnings(variables: impl Iterator<Item = (OsString, OsString)>) -> Vec<String> {
    let names = variables.filter_map(|(name, _)| name.into_string().ok());
    let mut names: Vec<String> = names.filter(|name| is_ours(name)).collect();
    names.sort();
    names.into_iter().map(|name| warning(&name)).collect()
}

fn is_ours(name: &str) -> bool {
    !name.starts_with(ENV_PREFIX) && name.strip_prefix(PREFIX).is_some_and(|rest| !is_of_service(rest))
}

/// Returns true if Kubernetes sets the variable for a Service. Such a name consists of an optional rest of the Service's
/// name and `SERVICE_HOST`, `SERVICE_PORT`, `SERVICE_PORT_METRICS`, `PORT`, `PORT_9408_TCP`, `PORT_9408_TCP_ADDR` or
/// similar.
fn is_of_service(rest: &str) -> bool {
    let words: Vec<&str> = rest.split('_').collect();
    (0..words.len()).any(|name| match words[name..] {
        ["SERVICE", "HOST"] | ["SERVICE", "PORT", ..] | ["PORT"] => true,
        ["PORT", port, "TCP" | "UDP" | "SCTP", ..] => port.parse::<u16>().is_ok(),
        _ => false,
    })
}

fn warning(name: &str) -> String {
    let wanted = name.strip_prefix(PREFIX).unwrap_or(name).trim_matches('_').to_lowercase();
    // The name may include the section or not.
    let flat = |key: &str| key.replace('.', "_");
    let exact = keys()
        .map(|key| key.name)
        .find(|key| flat(key) == wanted || key.split_once('.').is_some_and(|(_, last)| last == wanted));
    let near = || nearest(&wanted.replacen('_', ".", 1), keys().map(|key| key.name));
    let meant = exact.or_else(near).map(|key| key.to_uppercase().replace('.', "__"));
    let meant = meant.map(|meant| format!("; did you mean {ENV_PREFIX}{meant}?")).unwrap_or_default();
    format!("environment variable {name} is ignored: variables for settings start with {ENV_PREFIX}{meant}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warnings_for(names: &[&str]) -> Vec<String> {
        warnings(names.iter().map(|name| ((*name).into(), "x".into())))
    }

    #[test]
    fn what_kubernetes_sets_for_a_service_is_no_mistake() {
        let kubernetes = [
            "GPU_NODE_EXPORTER_SERVICE_HOST",
            "GPU_NODE_EXPORTER_SERVICE_PORT",
            "GPU_NODE_EXPORTER_SERVICE_PORT_METRICS",
            "GPU_NODE_EXPORTER_PORT",
            "GPU_NODE_EXPORTER_PORT_9408_TCP",
            "GPU_NODE_EXPORTER_PORT_9408_TCP_PROTO",
            "GPU_NODE_EXPORTER_PORT_9408_TCP_PORT",
            "GPU_NODE_EXPORTER_PORT_9408_TCP_ADDR",
            "GPU_NODE_EXPORTER_METRICS_SERVICE_HOST",
            "GPU_NODE_EXPORTER_METRICS_SERVICE_PORT_HTTP",
            "GPU_NODE_EXPORTER_METRICS_PORT",
            "GPU_NODE_EXPORTER_METRICS_PORT_9408_TCP_ADDR",
            "GPU_NODE_EXPORTER__HTTP__LISTEN",
            "PATH",
        ];
        assert_eq!(warnings_for(&kubernetes), [""; 0]);
    }

    #[test]
    fn one_underscore_is_named_with_what_was_meant() {
        let said =
            warnings_for(&["GPU_NODE_EXPORTER_LISTEN", "GPU_NODE_EXPORTER_LOG_LEVEL", "GPU_NODE_EXPORTER_X"]);
        assert_eq!(said.len(), 3, "{said:?}");
        assert!(
            said[0].contains("GPU_NODE_EXPORTER_LISTEN ") && said[0].contains("__HTTP__LISTEN?"),
            "{said:?}"
        );
        assert!(said[1].ends_with("did you mean GPU_NODE_EXPORTER__LOG__LEVEL?"), "{said:?}");
        assert!(!said[2].contains("did you mean"), "{said:?}");
    }
}
