//! `gpu-node-exporter assets`: the embedded files, listed, written out, or as objects of Kubernetes.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use exposition::assets::{ASSETS, Asset, prometheusrule};

/// What follows the help of the command.
pub const AFTER_HELP: &str = "\
Examples:
  gpu-node-exporter assets                          list the files
  gpu-node-exporter assets --out /etc/prometheus/gpu-node-exporter
                                                    write alerts/... and dashboards/... there, as they are in the
                                                    repository
  gpu-node-exporter assets --out DIR --grafana-url https://grafana.my.net \\
                           --runbook-url https://wiki.my.net/gpu
                                                    the same with links that lead to your Grafana and your pages
  gpu-node-exporter assets --format prometheusrule --with kubernetes | kubectl apply -n monitoring -f -
                                                    the rules for the Prometheus operator

In prometheus.yml:
  rule_files: [/etc/prometheus/gpu-node-exporter/alerts/*.rules.yml]
Rules of alerts/optional need metrics of others (kube-state-metrics, a Slurm exporter, your services); add those
that you scrape. Boards are imported by hand or found by Grafana's provisioning of dashboards.

The running daemon serves the same files at /alerts/ and /dashboards/.";

/// Base of the links to boards, as it is in the files.
pub const GRAFANA_URL: &str = "https://grafana.example.com";
/// Base of the links to runbooks, as it is in the files.
pub const RUNBOOK_URL: &str =
    "https://github.com/gpu-node-exporter/gpu-node-exporter/blob/main/docs/runbooks";

/// How the rules are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Files as they are in the repository; without --out the list of them
    Files,
    /// Objects of Kubernetes for the Prometheus operator, on standard output; with --out in DIR/prometheusrule.yml
    Prometheusrule,
}

/// What is asked for.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Folder that the files are written to, which is made if it is not there; files of the same names are replaced
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Where your Grafana is, for the alerts' links to boards
    #[arg(long, value_name = "URL", value_parser = url)]
    pub grafana_url: Option<String>,
    /// Where your runbooks are: `/NAME.md` of the alert follows
    #[arg(long, value_name = "URL", value_parser = url)]
    pub runbook_url: Option<String>,
    /// What is written
    #[arg(long, value_enum, default_value = "files")]
    pub format: Format,
    /// Optional rule file to have among the Kubernetes objects, as `kubernetes`; may be given again
    #[arg(long, value_name = "NAME")]
    pub with: Vec<String>,
}

/// A base that can stand in YAML and JSON as it is; without a slash at its end.
fn url(text: &str) -> Result<String, String> {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let odd = |c: char| c.is_whitespace() || c.is_control() || "\"'\\{}<>#$`".contains(c);
    match rest {
        None => Err("it begins with https:// or http://".into()),
        Some(rest) if rest.is_empty() || rest.starts_with('/') => Err("it names no host".into()),
        Some(rest) if rest.contains(odd) => Err("it has a character that no such address has".into()),
        Some(_) => Ok(text.trim_end_matches('/').to_owned()),
    }
}

/// Does what is asked for, and gives what is to be printed.
pub fn run(arguments: &Arguments) -> Result<String, String> {
    let moved = arguments.grafana_url.is_some() || arguments.runbook_url.is_some();
    match (arguments.format, &arguments.out) {
        (Format::Files, _) if !arguments.with.is_empty() => {
            Err("--with chooses among the objects of --format prometheusrule; --out writes all files".into())
        }
        (Format::Files, None) if moved => {
            Err("--grafana-url and --runbook-url change what is written: give --out DIR too".into())
        }
        (Format::Files, None) => {
            let line = |asset: &Asset| format!("{:>8}  {}\n", asset.text.len(), relative(asset));
            Ok(ASSETS.iter().map(line).collect())
        }
        (Format::Files, Some(out)) => {
            for asset in ASSETS {
                write(&out.join(relative(asset)), &arguments.moved(asset.text))?;
            }
            Ok(format!("{} files written to {}\n", ASSETS.len(), out.display()))
        }
        (Format::Prometheusrule, out) => {
            let text = prometheusrule::render(&arguments.with).map_err(|error| error.to_string())?;
            let text = arguments.moved(&text);
            let Some(out) = out else { return Ok(text) };
            let file = out.join("prometheusrule.yml");
            write(&file, &text)?;
            Ok(format!("{} written\n", file.display()))
        }
    }
}

impl Arguments {
    /// A text with the bases of links that are wanted.
    fn moved(&self, text: &str) -> String {
        let grafana = self.grafana_url.as_deref().unwrap_or(GRAFANA_URL);
        text.replace(GRAFANA_URL, grafana)
            .replace(RUNBOOK_URL, self.runbook_url.as_deref().unwrap_or(RUNBOOK_URL))
    }
}

fn relative(asset: &Asset) -> &'static str {
    asset.path.trim_start_matches('/')
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    let folder = file.parent().map_or(Ok(()), fs::create_dir_all);
    folder
        .and_then(|()| fs::write(file, text))
        .map_err(|error| format!("cannot write {}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(out: Option<&Path>) -> Arguments {
        Arguments {
            out: out.map(Path::to_owned),
            grafana_url: None,
            runbook_url: None,
            format: Format::Files,
            with: Vec::new(),
        }
    }

    #[test]
    fn files_are_written_byte_by_byte() {
        let dir = tempfile::tempdir().unwrap();
        let said = run(&arguments(Some(dir.path()))).unwrap();
        assert!(said.starts_with(&format!("{} files written to ", ASSETS.len())), "{said}");
        for asset in ASSETS {
            let written = fs::read_to_string(dir.path().join(relative(asset))).unwrap();
            assert!(written == asset.text, "{}", asset.path);
        }
        assert_eq!(run(&arguments(None)).unwrap().lines().count(), ASSETS.len());
    }

    #[test]
    fn links_lead_to_the_configured_addresses() {
        let wanted = Arguments {
            grafana_url: Some(url("https://g.my.net/sub/").unwrap()),
            runbook_url: Some(url("http://wiki/gpu").unwrap()),
            ..arguments(None)
        };
        let text = format!("a: {RUNBOOK_URL}/GpuLost.md\nb: {GRAFANA_URL}/d/x?var-gpu=1\n");
        assert_eq!(
            wanted.moved(&text),
            "a: http://wiki/gpu/GpuLost.md\nb: https://g.my.net/sub/d/x?var-gpu=1\n"
        );
        assert!(run(&wanted).unwrap_err().contains("give --out DIR"));
    }

    #[test]
    fn odd_addresses_are_refused() {
        for odd in ["grafana.my.net", "https://", "https:///x", "https://a b", "https://a\"", "https://{{x}}"]
        {
            assert!(url(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn an_error_names_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let error = run(&arguments(Some(&file.join("below")))).unwrap_err();
        assert!(error.contains("file/below/alerts"), "{error}");
        let with = Arguments { with: vec!["slurm".into()], ..arguments(Some(dir.path())) };
        assert!(run(&with).unwrap_err().contains("--format prometheusrule"));
    }
}
