//! Renders rule files with values. The sources in `alerts/rules` contain placeholders `$(NAME)`. `alerts/values.yml`
//! defines the defaults, which the operator's values replace.

use std::collections::BTreeMap;

use regex_lite::Regex;

use super::Asset;

/// Folder of the rule sources.
const SOURCES: &str = "/alerts/rules/";
/// File with the default values.
const DEFAULTS: &str = "/alerts/values.yml";

/// Reason for which a value was rejected.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ValueError {
    /// The text is not valid YAML or contains lists.
    #[error("invalid values: {0}")]
    Yaml(String),
    /// The value has no default, so that no rule uses it.
    #[error("unknown value \"{0}\"{1}; alerts/values.yml lists all values")]
    Unknown(String, String),
    /// The text is not valid at the position of the value.
    #[error("{0} cannot be \"{1}\": {2}")]
    Unfit(String, String, &'static str),
    /// The argument of `--set` contains no `=`.
    #[error("\"{0}\" does not have the form NAME=VALUE")]
    NoValue(String),
}

/// Values by name. A name consists of the levels of the file, joined by dots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Values(BTreeMap<String, String>);

/// A rule source before rendering.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// Name without the extension, for example `hardware` or `optional/slurm`.
    pub name: &'static str,
    text: &'static str,
}

impl Source {
    /// Returns all rule sources, sorted by name.
    pub fn all() -> impl Iterator<Item = Source> {
        Asset::below(SOURCES).filter_map(|asset| {
            let name = asset.path.strip_prefix(SOURCES)?.strip_suffix(".yml")?;
            Some(Source { name, text: asset.text })
        })
    }

    /// Returns the source of the rule file at this path.
    pub fn for_path(path: &str) -> Option<Source> {
        let name = path.strip_prefix("/alerts/")?.strip_suffix(".rules.yml")?;
        Source::all().find(|source| source.name == name)
    }

    /// Returns the path of the rendered file.
    pub fn path(&self) -> String {
        format!("/alerts/{}.rules.yml", self.name)
    }

    /// Renders the rule file with these values.
    pub fn render(&self, values: &Values) -> Result<String, ValueError> {
        let header = format!("# Rendered from rules/{}.yml and values.yml: change those.\n#\n", self.name);
        Ok(header + &values.fill(self.text)?)
    }
}

impl Values {
    /// Returns the values in `alerts/values.yml`.
    pub fn defaults() -> Result<Values, ValueError> {
        let text = Asset::at(DEFAULTS).map_or("", |asset| asset.text);
        Ok(Values(read(text)?))
    }

    /// Replaces the values that are set in the text of a values file.
    pub fn merge(&mut self, text: &str) -> Result<(), ValueError> {
        read(text)?.into_iter().try_for_each(|(name, value)| self.replace(&name, value))
    }

    /// Replaces one value. The assignment has the form `NAME=VALUE`.
    pub fn set(&mut self, assignment: &str) -> Result<(), ValueError> {
        let (name, value) =
            assignment.split_once('=').ok_or_else(|| ValueError::NoValue(assignment.to_owned()))?;
        self.replace(name.trim(), value.trim().to_owned())
    }

    /// Returns the value with this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Returns the names of all values.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Replaces the default links and the default scrape job in a text without placeholders, such as a dashboard or an
    /// example configuration of another tool.
    pub fn replace_in(&self, text: &str, defaults: &Values) -> String {
        ["links.grafana", "links.runbooks", "job"].iter().fold(text.to_owned(), |text, name| {
            match (defaults.get(name), self.get(name)) {
                (Some(default), Some(value)) if default != value => text.replace(default, value),
                _ => text,
            }
        })
    }

    fn replace(&mut self, name: &str, value: String) -> Result<(), ValueError> {
        if !self.0.contains_key(name) {
            return Err(self.unknown(name));
        }
        if let Some(why) = unfit(name, &value) {
            return Err(ValueError::Unfit(name.to_owned(), value, why));
        }
        self.0.insert(name.to_owned(), value);
        Ok(())
    }

    fn unknown(&self, name: &str) -> ValueError {
        let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_lowercase();
        let near: Vec<&str> = self.names().filter(|known| last(known) == last(name)).collect();
        let hint =
            if near.is_empty() { String::new() } else { format!(" (did you mean {}?)", near.join(", ")) };
        ValueError::Unknown(name.to_owned(), hint)
    }

    /// Replaces the placeholders in a text.
    fn fill(&self, text: &str) -> Result<String, ValueError> {
        let mut out = String::with_capacity(text.len() * 5 / 4);
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("$(") {
            let (name, behind) = after.split_once(')').unwrap_or((after, ""));
            out.push_str(before);
            out.push_str(self.get(name).ok_or_else(|| self.unknown(name))?);
            rest = behind;
        }
        out.push_str(rest);
        Ok(out)
    }
}

/// Returns the reason for which a text is not a valid value, or `None` if it is valid. Prometheus rejects a whole rule
/// file because of one invalid value, so that every kind of value is checked here.
fn unfit(name: &str, value: &str) -> Option<&'static str> {
    let all = |good: fn(char) -> bool| !value.is_empty() && value.chars().all(good);
    let (fits, why) = match name.split('.').next().unwrap_or_default() {
        "severity" => (["page", "ticket", "info"].contains(&value), "it must be page, ticket or info"),
        "threshold" => (is_number(value), "it must be a number without a unit, such as 0.05"),
        "for" => (matches(DURATION, value), "it must be a duration, such as 10m, 1h30m or 0s"),
        "fleet" | "node" | "rack" | "target" => (
            value.split(',').all(|label| matches(LABEL, label.trim())),
            "it must be a list of labels, such as cluster, job",
        ),
        "links" => (
            is_query(value)
                || (value.starts_with("http://") || value.starts_with("https://")) && all(is_of_url),
            "it must begin with https:// or http:// and contain no spaces or quotes; for variables, NAME=VALUE&NAME=VALUE",
        ),
        "texts" => (all(|c| !c.is_control()), "it must be a single line"),
        "metrics" => (matches(LABEL, &value.replace(':', "_")), "it must be a metric name"),
        kind => {
            let regex = all(|c| !c.is_control() && !"\"'\\`#{}".contains(c))
                .then(|| Regex::new(&format!("^(?:{value})$")).ok())
                .flatten();
            // Work without an account has an empty label. An expression that matches it would page for all such work.
            let for_all = kind == "page" && regex.as_ref().is_some_and(|regex| regex.is_match(""));
            (
                regex.is_some() && !for_all,
                if for_all {
                    "it matches the empty text; use .+ to match all work"
                } else {
                    "it must be a regular expression without quotes, backslashes and braces"
                },
            )
        }
    };
    (!fits).then_some(why)
}

/// Returns true for a finite number. `inf` and `nan` are not useful as thresholds.
fn is_number(value: &str) -> bool {
    value.parse::<f64>().is_ok_and(f64::is_finite)
}

/// Regular expression of Prometheus durations: units in descending order, every unit at most once, or `0`.
const DURATION: &str = r"(\d{1,9}y)?(\d{1,9}w)?(\d{1,9}d)?(\d{1,9}h)?(\d{1,9}m)?(\d{1,9}s)?(\d{1,9}ms)?|0";
/// Regular expression of label names.
const LABEL: &str = "[A-Za-z_][A-Za-z0-9_]*";

fn matches(pattern: &str, value: &str) -> bool {
    !value.is_empty() && Regex::new(&format!("^(?:{pattern})$")).is_ok_and(|regex| regex.is_match(value))
}

/// Returns true for dashboard variables whose values are Prometheus templates.
fn is_query(value: &str) -> bool {
    value.split('&').all(|variable| {
        variable.split_once('=').is_some_and(|(name, text)| {
            let template = text.strip_prefix("{{").and_then(|text| text.strip_suffix("}}"));
            name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
                && template.map_or_else(
                    || !text.is_empty() && text.chars().all(is_of_url),
                    |inner| {
                        !inner.contains(['"', '\'', '\\', '{', '}', '`', '#'])
                            && !inner.contains(char::is_control)
                    },
                )
        })
    })
}

fn is_of_url(c: char) -> bool {
    !c.is_whitespace() && !c.is_control() && !"\"'\\{}<>#$`".contains(c)
}

fn read(text: &str) -> Result<BTreeMap<String, String>, ValueError> {
    let value: yaml_serde::Value =
        yaml_serde::from_str(text).map_err(|error| ValueError::Yaml(error.to_string()))?;
    let mut all = BTreeMap::new();
    flatten(String::new(), &value, &mut all)?;
    Ok(all)
}

fn flatten(
    name: String,
    value: &yaml_serde::Value,
    all: &mut BTreeMap<String, String>,
) -> Result<(), ValueError> {
    use yaml_serde::Value as V;
    let text = match value {
        V::Mapping(levels) => {
            return levels.iter().try_for_each(|(level, value)| {
                let level = level
                    .as_str()
                    .ok_or_else(|| ValueError::Yaml(format!("\"{name}\" contains a key that is not text")))?;
                let name = if name.is_empty() { level.to_owned() } else { format!("{name}.{level}") };
                flatten(name, value, all)
            });
        }
        V::Null => return Ok(()),
        V::String(text) => text.clone(),
        V::Number(number) => number.to_string(),
        V::Bool(_) | V::Sequence(_) | V::Tagged(_) => {
            return Err(ValueError::Yaml(format!(
                "\"{name}\" must be a text or a number, not a list or a boolean"
            )));
        }
    };
    all.insert(name, text);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaults() -> Values {
        Values::defaults().unwrap()
    }

    #[test]
    fn every_name_in_a_source_has_a_value_and_every_value_is_used() {
        let values = defaults();
        let mut used = String::new();
        for source in Source::all() {
            let text = source.render(&values).unwrap();
            assert!(!text.contains("$("), "{}", source.name);
            used.push_str(source.text);
        }
        let unused: Vec<&str> = values.names().filter(|name| !used.contains(&format!("$({name})"))).collect();
        assert_eq!(unused, [""; 0]);
        for name in values.names() {
            assert_eq!(unfit(name, values.get(name).unwrap()), None, "{name}");
        }
    }

    #[test]
    fn a_value_is_set_by_name_or_by_a_file() {
        let mut values = defaults();
        values.set("severity.GpuWatchdog=ticket").unwrap();
        values.merge("job: gpu\nlinks:\n  grafana: https://g.my.net/sub\n").unwrap();
        let text = values.fill("$(severity.GpuWatchdog) $(job) $(links.grafana)/d $labels.x").unwrap();
        assert_eq!(text, "ticket gpu https://g.my.net/sub/d $labels.x");
        values.merge("").unwrap();
        for value in [
            "threshold.GpuSlo=1e-3",
            "for.GpuAllocatedIdle=1h30m",
            "for.GpuAllocatedIdle=0",
            "job=gpu|gpu-.*",
            "rack=cluster,rack",
            "page.owners=.+",
            "page.owners=pod/llm-prod/.+|physics-prod",
            "metrics.queue_wait=vllm:request_queue_time_seconds",
        ] {
            values.set(value).unwrap();
        }
    }

    #[test]
    fn every_severity_but_those_of_sources_of_inhibitions_can_be_set() {
        for source in Source::all() {
            let fixed: Vec<&str> = source
                .text
                .lines()
                .filter(|line| line.contains("severity: page") || line.contains("severity: ticket"))
                .collect();
            assert_eq!(fixed, [""; 0], "{}", source.name);
        }
    }

    #[test]
    fn what_cannot_be_set_is_refused_with_its_name() {
        let refused = |assignment: &str| defaults().set(assignment).unwrap_err().to_string();
        assert!(refused("severity.GpuWatchdog=loud").contains("page, ticket or info"));
        assert!(refused("severitty.GpuWatchdog=page").contains("did you mean severity.GpuWatchdog"));
        for (value, why) in [
            ("job=a\"b", "quotes"),
            ("job=(", "regular expression"),
            ("node=cluster, zone rack", "list of labels"),
            ("node=cluster,,job", "list of labels"),
            ("threshold.GpuSlo=5m", "number"),
            ("threshold.GpuSlo=1.2.3", "number"),
            ("threshold.GpuSlo=inf", "number"),
            ("for.GpuAllocatedIdle=10", "duration"),
            ("for.GpuAllocatedIdle=5minutes", "duration"),
            ("for.GpuAllocatedIdle=1m1h", "duration"),
            ("for.GpuAllocatedIdle=", "duration"),
            ("links.grafana={{\"'", "https://"),
            ("metrics.queue_wait=queue wait", "metric"),
            ("page.owners=", "regular expression"),
            ("page.owners=.*", "empty text"),
            ("page.owners=physics-prod|", "empty text"),
            ("page.windows=(page-.+)?", "empty text"),
        ] {
            assert!(refused(value).contains(why), "{value}: {}", refused(value));
        }
        assert!(refused("node=a) or vector(1").contains("labels"));
        assert!(refused("links.grafana=grafana.my.net").contains("https://"));
        assert!(refused("job").contains("NAME=VALUE"));
        let error = defaults().merge("severity: [page]").unwrap_err().to_string();
        assert!(error.contains("severity"), "{error}");
        assert!(defaults().fill("$(nothing)").is_err());
        assert!(defaults().fill("$(nothing").is_err());
    }
}
