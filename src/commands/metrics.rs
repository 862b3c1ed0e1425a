//! `gpu-node-exporter metrics`: the catalogue of metrics.

use clap::{Args, ValueEnum};
use exposition::docs;

/// Print every metric that the exporter can publish
#[derive(Args)]
pub(crate) struct MetricsArguments {
    /// Output format of the list
    #[arg(long, value_enum, default_value = "text")]
    format: CatalogueFormat,
}

#[derive(Clone, Copy, ValueEnum)]
enum CatalogueFormat {
    Json,
    Markdown,
    Text,
}

pub fn run(arguments: &MetricsArguments) -> String {
    match arguments.format {
        CatalogueFormat::Json => docs::json(),
        CatalogueFormat::Markdown => docs::markdown(),
        CatalogueFormat::Text => docs::text(),
    }
}
