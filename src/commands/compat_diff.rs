//! `gpu-node-exporter compat-diff URL`: compares the pages of dcgm-exporter and of this exporter on one node.

mod scrape;
mod text;

use std::time::Duration;

use clap::Args;
use dcgm::diff::{DiffConfig, NotComparable, PageDiff, PageSide, SwitchVerdict, compare};
use dcgm::list::FieldList;
use dcgm::parse::ParsedPage;
use host::terminal::progress;
use serde::Serialize;
use settings::{Config, Overrides};

use super::{CommandResult, Failure, Output, OutputFormat, checked_config};
use crate::drop_in;
use scrape::PageSource;

/// Exit code if the pages cannot be compared.
const EXIT_NOT_COMPARABLE: u8 = 2;

/// Compare the metrics of this exporter with those of a running dcgm-exporter, before you replace it
///
/// Lists each family and label as same, missing, extra, of another type, or with values outside the tolerance. Prints which
/// settings to change, what is lost, and whether the switch is safe. Changes nothing.
#[derive(Args)]
#[command(after_help = include_str!("help/compat-diff.txt").trim_end())]
pub(crate) struct CompatDiffArguments {
    /// dcgm-exporter's page on this node, for example `http://localhost:9400/metrics`, or a file with a saved
    /// page
    #[arg(value_name = "URL|FILE")]
    theirs: PageSource,
    /// Page of this exporter, or a file with a saved page [default: /dcgm/metrics of the daemon with this
    /// configuration]
    #[arg(long, value_name = "URL|FILE")]
    ours: Option<PageSource>,
    /// Output format of the report
    #[arg(long, value_enum, default_value = "text")]
    format: OutputFormat,
    /// Factor for all tolerances of values; 0 requires equal values
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = factor)]
    tolerance: f64,
    /// Time between the two scrapes of a page; by default dcgm-exporter updates its values every 30 s
    #[arg(long, value_name = "TIME", default_value = "35s", value_parser = humantime::parse_duration)]
    pause: Duration,
}

fn factor(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "expected a number such as 2 or 0.5".to_owned())?;
    if (0.0..=1e6).contains(&number) { Ok(number) } else { Err("expected 0 to 1000000".into()) }
}

/// Report. Field names are stable; new fields may be added.
#[derive(Debug, Serialize)]
struct CompatReport {
    /// Release of this exporter.
    version: &'static str,
    /// URLs or files of the pages.
    theirs: String,
    ours: String,
    #[serde(flatten)]
    diff: PageDiff,
}

pub fn run(overrides: &Overrides, arguments: &CompatDiffArguments) -> CommandResult {
    let loaded = checked_config(overrides)?;
    let fields = loaded.dcgm_fields().map_err(Failure::bad_configuration)?;
    let report = diff(&loaded.config, fields, arguments);
    let report = report.map_err(|error| Failure::new(EXIT_NOT_COMPARABLE, error))?;
    let text = arguments.format.render(&report, |colours| text::report(&report, colours))?;
    Ok(Output { text, code: u8::from(report.diff.advice.verdict != SwitchVerdict::Safe) })
}

/// Scrapes both pages and compares them.
fn diff(config: &Config, fields: FieldList, arguments: &CompatDiffArguments) -> Result<CompatReport, String> {
    let ours = match &arguments.ours {
        Some(source) => source.clone(),
        None => PageSource::daemon_page(config.http.listen)?,
    };
    let sources = [arguments.theirs.clone().with_path("/metrics"), ours.with_path("/dcgm/metrics")];
    let both = sources.iter().all(PageSource::is_url);
    let pages = scrape_twice(&sources, both.then_some(arguments.pause))?;
    let diff = compare(
        &pages[0],
        &pages[1],
        DiffConfig {
            page: &drop_in::page(&config.dcgm, fields),
            own_list: config.dcgm.fields_file.is_some(),
            same_time: both,
            factor: arguments.tolerance,
        },
    );
    let [theirs, ours] = sources.map(|source| source.to_string());
    let diff = diff.map_err(|error| match &error {
        NotComparable::OtherNode { .. } => format!("{theirs}, {ours}: {error}"),
        NotComparable::Empty(side)
        | NotComparable::OwnPage(side, _)
        | NotComparable::NotDcgm(side, _)
        | NotComparable::NoGpu(side) => {
            format!("{}: {error}", if *side == PageSide::Theirs { &theirs } else { &ours })
        }
    })?;
    Ok(CompatReport { version: env!("CARGO_PKG_VERSION"), theirs, ours, diff })
}

/// Scrapes both pages in turn, and again after a pause. A saved page is read once.
fn scrape_twice(sources: &[PageSource; 2], pause: Option<Duration>) -> Result<[Vec<ParsedPage>; 2], String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("failed to start the HTTP client: {error}"))?;
    runtime.block_on(async {
        let mut pages = [Vec::new(), Vec::new()];
        for scrape in 0..if pause.is_some() { 2 } else { 1 } {
            if let Some(pause) = pause.filter(|_| scrape > 0) {
                progress(&format!("second scrape in {} s  ", pause.as_secs()));
                tokio::time::sleep(pause).await;
                progress("");
            }
            for (pages, source) in pages.iter_mut().zip(sources) {
                pages.push(source.read().await.map_err(|error| format!("{source}: {error}"))?);
            }
        }
        Ok(pages)
    })
}
