//! The commands beside `serve`.

pub mod assess;
pub mod assets;
pub mod bundle;
pub mod canary;
pub mod compat_diff;
pub mod doctor;
pub mod health;
pub mod manual;
pub mod pod;
pub mod recording;
pub mod topology;
pub mod window;

use clap::ValueEnum;
use serde::Serialize;

/// How a command prints what it found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// For programs
    Json,
    /// For people
    Text,
}

/// One JSON document with a newline.
pub fn json(document: &impl Serialize) -> Result<String, String> {
    serde_json::to_string_pretty(document).map(|text| text + "\n").map_err(|error| error.to_string())
}
