//! From a snapshot to bytes: the formats, which of them a client is given, and the bytes made ahead.
//!
//! Every format is a pure function of a [`Snapshot`]. [`Renderings`] calls them on a thread of its own
//! whenever the ledger publishes, so that a scrape sends bytes that are there already.

pub mod events;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
pub mod gzip;
mod json;
mod negotiate;
mod number;
mod openmetrics;
pub mod owners;
mod text;
pub mod topology;
pub mod windows;
#[cfg(test)]
mod wire_tests;

use std::sync::Arc;

pub use negotiate::{accepted_encoding, accepted_metrics_format};

use crate::page;
use model::snapshot::Snapshot;

/// What a snapshot can be shown as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus's text format 0.0.4.
    Text,
    /// The document of `/api/v1/snapshot`; [`crate::encode`]'s `json` module describes its fields.
    Json,
    /// The status page.
    Page,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 4] = [Format::OpenMetrics, Format::Text, Format::Json, Format::Page];

    /// The value of the `Content-Type` header.
    pub const fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::Json => "application/json",
            Format::Page => "text/html; charset=utf-8",
        }
    }

    /// The snapshot in this format.
    pub fn render(self, snapshot: &Arc<Snapshot>) -> String {
        let mut out = String::new();
        self.render_into(snapshot, &mut out);
        out
    }

    /// Appends the snapshot in this format.
    pub fn render_into(self, snapshot: &Arc<Snapshot>, out: &mut String) {
        match self {
            Format::OpenMetrics => openmetrics::render(snapshot, out),
            Format::Text => text::render(snapshot, out),
            Format::Json => json::render(snapshot, out),
            Format::Page => page::render(snapshot, out),
        }
    }
}

/// How the bytes of a format travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// As they are.
    Identity,
    /// Compressed with gzip.
    Gzip,
}

impl Encoding {
    /// All encodings.
    pub const ALL: [Encoding; 2] = [Encoding::Identity, Encoding::Gzip];

    /// The value of the `Content-Encoding` header; none for bytes as they are.
    pub const fn content_encoding(self) -> Option<&'static str> {
        match self {
            Encoding::Identity => None,
            Encoding::Gzip => Some("gzip"),
        }
    }
}
