//! `gpu-node-exporter assets`: lists the embedded files, or writes them as files or Kubernetes objects.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use exposition::assets::rules::{Source, Values};
use exposition::assets::{ASSETS, Asset, prometheusrule};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AssetsFormat {
    /// Files as in the repository; without --out a list of the files
    Files,
    /// Kubernetes objects for the Prometheus operator, on standard output, or in DIR/prometheusrule.yml with
    /// --out
    Prometheusrule,
}

/// List the alert rules and Grafana dashboards of this release, or write them to a directory
///
/// Needs no daemon, no configuration and no GPU.
#[derive(Args)]
#[command(after_help = include_str!("help/assets.txt").trim_end())]
pub(crate) struct AssetsArguments {
    /// Directory to write to, created if missing; existing files of the same names are replaced
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// File with values that replace those of alerts/values.yml: severities, thresholds, the scrape job,
    /// links
    #[arg(long, value_name = "FILE")]
    values: Option<PathBuf>,
    /// Single value, which takes precedence over the file; can be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Output format of the alert rules
    #[arg(long, value_enum, default_value = "files")]
    format: AssetsFormat,
    /// Optional rule file to include in the Kubernetes objects, for example `kubernetes`; can be repeated
    #[arg(long, value_name = "NAME")]
    with: Vec<String>,
}

pub fn run(arguments: &AssetsArguments) -> Result<String, String> {
    match (arguments.format, &arguments.out) {
        (AssetsFormat::Files, _) if !arguments.with.is_empty() => {
            Err("--with needs --format prometheusrule; --out writes all files".into())
        }
        (AssetsFormat::Files, None) if arguments.values.is_some() || !arguments.set.is_empty() => {
            Err("--values and --set need --out DIR".into())
        }
        (AssetsFormat::Files, None) => {
            let line = |asset: &Asset| format!("{:>8}  {}\n", asset.text.len(), relative(asset));
            Ok(ASSETS.iter().map(line).collect())
        }
        (AssetsFormat::Files, Some(out)) => {
            let values = arguments.values()?;
            let defaults = Values::defaults().map_err(|error| error.to_string())?;
            for asset in ASSETS {
                let text = match Source::for_path(asset.path) {
                    Some(source) => source.render(&values).map_err(|error| error.to_string())?,
                    None => values.replace_in(asset.text, &defaults),
                };
                write(&out.join(relative(asset)), &text)?;
            }
            Ok(format!("{} files written to {}\n", ASSETS.len(), out.display()))
        }
        (AssetsFormat::Prometheusrule, out) => {
            let text = prometheusrule::render(&arguments.with, &arguments.values()?)
                .map_err(|error| error.to_string())?;
            let Some(out) = out else { return Ok(text) };
            let file = out.join("prometheusrule.yml");
            write(&file, &text)?;
            Ok(format!("{} written\n", file.display()))
        }
    }
}

impl AssetsArguments {
    /// Returns the defaults, replaced by values of the file and of the command line.
    fn values(&self) -> Result<Values, String> {
        let mut values = Values::defaults().map_err(|error| error.to_string())?;
        if let Some(file) = &self.values {
            let named = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
            let text = fs::read_to_string(file).map_err(|error| named(&error))?;
            values.merge(&text).map_err(|error| named(&error))?;
        }
        self.set.iter().try_for_each(|one| values.set(one)).map_err(|error| format!("--set: {error}"))?;
        Ok(values)
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

    fn arguments(out: Option<&Path>) -> AssetsArguments {
        AssetsArguments {
            out: out.map(Path::to_owned),
            values: None,
            set: Vec::new(),
            format: AssetsFormat::Files,
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
    fn values_go_into_rules_and_dashboards() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("values.yml");
        fs::write(&file, "job: gpu-nodes\nseverity: {GpuWatchdog: page}\n").unwrap();
        let set = vec!["severity.GpuWatchdog=ticket".into(), "links.grafana=https://g.my.net/sub".into()];
        run(&AssetsArguments { values: Some(file.clone()), set: set.clone(), ..arguments(Some(dir.path())) })
            .unwrap();
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        assert!(read("alerts/exporter.rules.yml").contains(r#"up{job=~"gpu-nodes"}"#));
        let windows = read("alerts/windows.rules.yml");
        assert!(windows.contains("https://g.my.net/sub/d/"), "{windows}");
        let (_, watchdog) = windows.split_once("alert: GpuWatchdog").unwrap();
        assert!(watchdog.split_once("severity: ").unwrap().1.starts_with("ticket,"), "--set goes first");
        let all: String = ASSETS.iter().map(|asset| read(relative(asset))).collect();
        assert!(!all.contains("grafana.example.com/d/"));
        let error = run(&AssetsArguments { values: Some(file), ..arguments(None) }).unwrap_err();
        assert!(error.contains("need --out DIR"));
        let objects = AssetsArguments { format: AssetsFormat::Prometheusrule, set, ..arguments(None) };
        assert!(run(&objects).unwrap().contains("https://g.my.net/sub/d/"));
    }

    #[test]
    fn an_error_names_the_path_or_the_value() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "nothing: 1\n").unwrap();
        let error = run(&arguments(Some(&file.join("below")))).unwrap_err();
        assert!(error.contains("file/below/alerts"), "{error}");
        let with = AssetsArguments { with: vec!["slurm".into()], ..arguments(Some(dir.path())) };
        assert!(run(&with).unwrap_err().contains("--format prometheusrule"));
        let values = AssetsArguments { values: Some(file), ..arguments(Some(dir.path())) };
        let error = run(&values).unwrap_err();
        assert!(error.contains("/file: unknown value \"nothing\""), "{error}");
        let set =
            AssetsArguments { set: vec!["severity.GpuWatchdog=loud".into()], ..arguments(Some(dir.path())) };
        assert!(run(&set).unwrap_err().contains("page, ticket or info"));
    }
}
