//! The response formats, and their negotiation by the `Accept` headers.
//!
//! Prometheus requests formats with weights and versions, starting with protobuf if it is enabled. Unsupported formats
//! are ignored. A client that requests only unsupported formats receives the text format, as from every other exporter,
//! because a readable scrape is more useful than a 406.

use std::sync::Arc;

use crate::api::owners::OwnerQuery;
use crate::{api, openmetrics, page, text};
use dcgm::page::PageConfig;
use model::snapshot::Snapshot;

/// A format of the snapshot or of a part of it. The response is a pure function of the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseFormat {
    /// The metrics in OpenMetrics 1.0.
    OpenMetrics,
    /// The metrics in Prometheus's text format 0.0.4.
    Text,
    /// The document of `/api/v1/snapshot`, whose fields [`crate::api::snapshot`] describes.
    Json,
    /// The status page as HTML.
    Page,
    /// The document of `/api/v1/owners`, with all owners and the newest records of ended owners.
    Owners,
    /// The document of `/api/v1/topology`.
    Topology,
    /// The document of `/api/v1/windows`.
    Windows,
    /// The points of the status page's charts.
    History,
    /// The document of `/api/v1/events`, with the newest events.
    Events,
    /// The metrics of dcgm-exporter.
    Dcgm,
}

impl ResponseFormat {
    pub const ALL: [ResponseFormat; 10] = [
        ResponseFormat::OpenMetrics,
        ResponseFormat::Text,
        ResponseFormat::Json,
        ResponseFormat::Page,
        ResponseFormat::Owners,
        ResponseFormat::Topology,
        ResponseFormat::Windows,
        ResponseFormat::History,
        ResponseFormat::Events,
        ResponseFormat::Dcgm,
    ];

    /// Returns true for the formats that scrapers request at their own interval. They change with every publication.
    pub const fn is_metrics(self) -> bool {
        matches!(self, ResponseFormat::OpenMetrics | ResponseFormat::Text | ResponseFormat::Dcgm)
    }

    /// Returns the value of the `Content-Type` header.
    pub const fn content_type(self) -> &'static str {
        match self {
            ResponseFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            ResponseFormat::Text | ResponseFormat::Dcgm => "text/plain; version=0.0.4; charset=utf-8",
            ResponseFormat::Json
            | ResponseFormat::Owners
            | ResponseFormat::Topology
            | ResponseFormat::Windows
            | ResponseFormat::History
            | ResponseFormat::Events => "application/json",
            ResponseFormat::Page => "text/html; charset=utf-8",
        }
    }

    /// Returns the snapshot in this format. The page of dcgm-exporter has its default fields.
    pub fn encode(self, snapshot: &Arc<Snapshot>) -> String {
        let mut out = String::new();
        self.encode_into(snapshot, &PageConfig::default(), &mut out);
        out
    }

    /// Appends the snapshot in this format.
    pub fn encode_into(self, snapshot: &Arc<Snapshot>, dcgm: &PageConfig, out: &mut String) {
        match self {
            ResponseFormat::OpenMetrics => openmetrics::encode(snapshot, out),
            ResponseFormat::Text => text::encode(snapshot, out),
            ResponseFormat::Json => api::snapshot::encode(snapshot, out),
            ResponseFormat::Page => page::encode(snapshot, out),
            ResponseFormat::Owners => api::owners::encode(snapshot, &OwnerQuery::default(), out),
            ResponseFormat::Topology => api::topology(snapshot, out),
            ResponseFormat::Windows => api::windows(snapshot, out),
            ResponseFormat::History => page::history::encode(snapshot, out),
            ResponseFormat::Events => api::events::newest(snapshot, out),
            ResponseFormat::Dcgm => dcgm::page::encode(dcgm, snapshot, out),
        }
    }
}

/// The content coding of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    Identity,
    Gzip,
}

impl Encoding {
    pub const ALL: [Encoding; 2] = [Encoding::Identity, Encoding::Gzip];

    /// Returns the value of the `Content-Encoding` header, or `None` for `Identity`.
    pub const fn content_encoding(self) -> Option<&'static str> {
        match self {
            Encoding::Identity => None,
            Encoding::Gzip => Some("gzip"),
        }
    }
}

/// Returns the format for `/metrics`, given the value of the `Accept` header, which is empty if the header is missing.
pub fn accepted_metrics_format(accept: &str) -> ResponseFormat {
    let mut best = (ResponseFormat::Text, 0.0);
    for (range, weight) in weighted(accept) {
        // With `>`, the first of two ranges with equal weights wins.
        if let Some(format) = served(range).filter(|_| weight > best.1) {
            best = (format, weight);
        }
    }
    best.0
}

/// Returns the encoding, given the value of the `Accept-Encoding` header, which is empty if the header is missing.
pub fn accepted_encoding(accept_encoding: &str) -> Encoding {
    let weight = |coding: &str| {
        let named = weighted(accept_encoding).filter(|(range, _)| range.trim().eq_ignore_ascii_case(coding));
        named.last().map(|(_, weight)| weight)
    };
    let gzip = weight("gzip").or(weight("*")).unwrap_or(0.0);
    if gzip > 0.0 && gzip >= weight("identity").unwrap_or(0.0) { Encoding::Gzip } else { Encoding::Identity }
}

/// Returns the format of a media range, or `None` if the format or its version is not supported.
fn served(range: &str) -> Option<ResponseFormat> {
    let mut parts = range.split(';').map(str::trim);
    let media = parts.next()?.to_ascii_lowercase();
    let version = parts.find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("version").then(|| value.trim().trim_matches('"'))
    });
    match (media.as_str(), version) {
        ("application/openmetrics-text", None | Some("1.0.0")) => Some(ResponseFormat::OpenMetrics),
        ("text/plain", None | Some("0.0.4")) | ("text/*" | "*/*", _) => Some(ResponseFormat::Text),
        _ => None,
    }
}

/// Returns the ranges of a header with their weights. A missing weight is 1, and an invalid weight is 0.
fn weighted(header: &str) -> impl Iterator<Item = (&str, f64)> {
    header.split(',').filter(|range| !range.trim().is_empty()).map(|range| {
        let weight = range.split(';').skip(1).find_map(|parameter| {
            let (name, value) = parameter.split_once('=')?;
            name.trim().eq_ignore_ascii_case("q").then(|| value.trim().parse().unwrap_or(0.0))
        });
        // The name of an encoding ends at the first semicolon. A media range keeps its parameters.
        let range = if range.contains('/') { range } else { range.split(';').next().unwrap_or(range) };
        (range, weight.unwrap_or(1.0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_prometheus_gets_the_best_format_it_reads() {
        const PROTOBUF: &str =
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
        let cases = [
            // 2.42
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
                    .to_owned(),
                ResponseFormat::OpenMetrics,
            ),
            // 2.5x, with native histograms and without
            (
                format!("{PROTOBUF};q=0.6,application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"),
                ResponseFormat::OpenMetrics,
            ),
            (
                "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
                    .to_owned(),
                ResponseFormat::OpenMetrics,
            ),
            // 3.x
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
                    .to_owned(),
                ResponseFormat::OpenMetrics,
            ),
            // 3.x configured for PrometheusText1.0.0, then 0.0.4
            (
                "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.5,*/*;q=0.4"
                    .to_owned(),
                ResponseFormat::Text,
            ),
            (format!("{PROTOBUF};q=0.7,text/plain;version=0.0.4;q=0.3"), ResponseFormat::Text),
            (PROTOBUF.to_owned(), ResponseFormat::Text),
        ];
        for (accept, format) in cases {
            assert_eq!(accepted_metrics_format(&accept), format, "{accept}");
        }
    }

    #[test]
    fn other_clients_get_text_unless_they_ask_for_openmetrics() {
        for accept in [
            "",
            "*/*",
            "text/plain",
            "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
            "application/json",
            "application/openmetrics-text;version=0.0.1",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=0.2, text/plain;q=0.9",
            "application/openmetrics-text;q=nonsense",
            ";;,,=",
        ] {
            assert_eq!(accepted_metrics_format(accept), ResponseFormat::Text, "{accept}");
        }
        for accept in [
            "application/openmetrics-text",
            "Application/OpenMetrics-Text; Version=\"1.0.0\"; charset=utf-8",
            "text/plain;q=0.1, application/openmetrics-text ; q=0.2",
        ] {
            assert_eq!(accepted_metrics_format(accept), ResponseFormat::OpenMetrics, "{accept}");
        }
    }

    #[test]
    fn gzip_only_for_those_who_want_it() {
        for accept in
            ["gzip", "gzip, deflate, br, zstd", "GZIP;q=0.5", "br;q=1, *;q=0.1", "identity;q=0, gzip"]
        {
            assert_eq!(accepted_encoding(accept), Encoding::Gzip, "{accept}");
        }
        for accept in
            ["", "identity", "gzip;q=0", "gzip; q=0.000", "br", "*;q=0", "gzip;q=0,*", "identity, gzip;q=0.5"]
        {
            assert_eq!(accepted_encoding(accept), Encoding::Identity, "{accept}");
        }
    }
}
