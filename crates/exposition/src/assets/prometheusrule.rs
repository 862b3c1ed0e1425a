//! The rules as objects of Kubernetes that the Prometheus operator takes: one for each rule file, so that each stays
//! below the 256 KiB that `kubectl apply` can keep of an object. Comments stay where they are.

use std::fmt::Write;

use super::rules::{self, Source, Values};

/// The header of the list.
const ABOUT: &str = "\
# The rules as objects for the Prometheus operator, made by
#   gpu-node-exporter assets --format prometheusrule
# The operator takes what its `ruleSelector` matches; add the labels that it asks for.
";

/// Where the rules are that only some need.
const OPTIONAL: &str = "optional/";

/// Why there is no such object.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ObjectError {
    /// It was asked for by name.
    #[error("there is no optional rule file {0:?}; there is: {1}")]
    Unknown(String, String),
    /// The values do not suit the rules.
    #[error(transparent)]
    Values(#[from] rules::ValueError),
}

/// Names of the optional rule files, as they may be asked for.
pub fn optional() -> impl Iterator<Item = &'static str> {
    Source::all().filter_map(|source| source.name.strip_prefix(OPTIONAL))
}

/// The objects of all rule files that everybody wants, and of these optional ones.
pub fn render(with: &[String], values: &Values) -> Result<String, ObjectError> {
    if let Some(unknown) = with.iter().find(|name| !optional().any(|known| known == **name)) {
        return Err(ObjectError::Unknown(unknown.clone(), optional().collect::<Vec<_>>().join(", ")));
    }
    let wanted = |source: &Source| {
        source.name.strip_prefix(OPTIONAL).is_none_or(|name| with.iter().any(|wanted| wanted == name))
    };
    let mut out = String::from(ABOUT);
    for source in Source::all().filter(wanted) {
        push_object(&mut out, source.name, &source.render(values)?);
    }
    Ok(out)
}

/// Appends one object: its groups are the text of the file, moved to the right.
fn push_object(out: &mut String, name: &str, rules: &str) {
    let name = name.replace('/', "-");
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "---\napiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  \
         name: gpu-node-exporter-{name}\n  labels:\n    app.kubernetes.io/name: gpu-node-exporter\nspec:"
    );
    for line in rules.lines() {
        let _ = if line.is_empty() { writeln!(out) } else { writeln!(out, "  {line}") };
    }
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
        let values = Values::defaults().unwrap();
        let text = render(&all, &values).unwrap();
        let objects: Vec<&str> = text.split("---\napiVersion").skip(1).collect();
        assert_eq!(objects.len(), Source::all().count());
        for (object, source) in objects.into_iter().zip(Source::all()) {
            assert!(object.len() < 200_000, "{}: {} bytes", source.name, object.len());
            let object: Object = yaml_serde::from_str(&format!("apiVersion{object}")).unwrap();
            assert_eq!(object.kind, "PrometheusRule");
            let rules: Rules = yaml_serde::from_str(&source.render(&values).unwrap()).unwrap();
            assert_eq!(object.spec, rules, "{}", source.name);
        }
    }

    #[test]
    fn what_is_not_there_is_named_with_what_is() {
        let error = render(&["nothing".into()], &Values::defaults().unwrap()).unwrap_err();
        assert!(error.to_string().contains("\"nothing\"; there is: "), "{error}");
    }
}
