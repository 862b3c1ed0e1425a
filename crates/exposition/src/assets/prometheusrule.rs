//! The rules as objects of Kubernetes that the Prometheus operator takes: one for each rule file, so that each stays
//! below the 256 KiB that `kubectl apply` can keep of an object. Comments stay where they are.

use std::fmt::Write;

use super::Asset;

/// The header of the list.
const ABOUT: &str = "\
# The rules of this folder as objects for the Prometheus operator. Made by
#   gpu-node-exporter assets --format prometheusrule
# from the rule files: change those. The operator takes what its `ruleSelector` matches; add the labels that it asks
# for.
";

/// Ending of the files that hold rules.
const ENDING: &str = ".rules.yml";
/// Where the rules are that only some need.
const OPTIONAL: &str = "optional/";

/// Why there is no such object.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// It was asked for by name.
    #[error("there is no optional rule file {0:?}; there is: {1}")]
    Unknown(String, String),
    /// Its text does not begin as a rule file does.
    #[error("{0} has no line `groups:`")]
    NoGroups(&'static str),
}

/// Names of the optional rule files, as they may be asked for.
pub fn optional() -> impl Iterator<Item = &'static str> {
    rules().filter_map(|(name, _)| name.strip_prefix(OPTIONAL))
}

/// The objects of all rule files that everybody wants, and of these optional ones.
pub fn render(with: &[String]) -> Result<String, Error> {
    if let Some(unknown) = with.iter().find(|name| !optional().any(|known| known == **name)) {
        let known = optional().collect::<Vec<_>>().join(", ");
        let known = if known.is_empty() { "none".to_owned() } else { known };
        return Err(Error::Unknown(unknown.clone(), known));
    }
    let wanted =
        |name: &str| name.strip_prefix(OPTIONAL).is_none_or(|name| with.iter().any(|wanted| wanted == name));
    let mut out = String::from(ABOUT);
    for (name, asset) in rules().filter(|(name, _)| wanted(name)) {
        put(&mut out, name, asset)?;
    }
    Ok(out)
}

/// Rule files by their names without folder and ending.
fn rules() -> impl Iterator<Item = (&'static str, &'static Asset)> {
    Asset::below("/alerts/")
        .filter_map(|asset| Some((asset.path.strip_prefix("/alerts/")?.strip_suffix(ENDING)?, asset)))
}

/// Appends one object: its groups are the text of the file, moved to the right.
fn put(out: &mut String, name: &str, asset: &Asset) -> Result<(), Error> {
    let name = name.replace('/', "-");
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "---\napiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  \
         name: gpu-node-exporter-{name}\n  labels:\n    app.kubernetes.io/name: gpu-node-exporter\nspec:"
    );
    for line in asset.text.lines() {
        let _ = if line.is_empty() { writeln!(out) } else { writeln!(out, "  {line}") };
    }
    let whole = asset.text.lines().any(|line| line.trim_end() == "groups:");
    whole.then_some(()).ok_or(Error::NoGroups(asset.path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize, PartialEq)]
    struct Rules {
        groups: Vec<yaml_serde::Value>,
    }

    #[derive(Debug, Deserialize)]
    struct Object {
        kind: String,
        spec: Rules,
    }

    #[test]
    fn every_object_has_the_groups_of_its_file() {
        let all: Vec<String> = optional().map(str::to_owned).collect();
        let text = render(&all).unwrap();
        let objects: Vec<&str> = text.split("---\napiVersion").skip(1).collect();
        assert_eq!(objects.len(), rules().count());
        for (object, (name, asset)) in objects.into_iter().zip(rules()) {
            assert!(object.len() < 200_000, "{name}: {} bytes", object.len());
            let object: Object = yaml_serde::from_str(&format!("apiVersion{object}")).unwrap();
            assert_eq!(object.kind, "PrometheusRule");
            assert_eq!(object.spec, yaml_serde::from_str(asset.text).unwrap(), "{name}");
        }
    }

    #[test]
    fn what_is_not_there_is_named_with_what_is() {
        let error = render(&["nothing".into()]).unwrap_err();
        assert!(error.to_string().contains("\"nothing\"; there is: "), "{error}");
        let empty = Asset { path: "/alerts/x.rules.yml", text: "# no groups\n" };
        assert_eq!(put(&mut String::new(), "x", &empty), Err(Error::NoGroups(empty.path)));
    }
}
