//! Which format and encoding a client gets, from what its `Accept` headers say.
//!
//! Prometheus names what it takes with weights and versions, protobuf first if it is allowed to; what is
//! not served here is passed over. A client that names nothing served here gets the text format, as from
//! every other exporter: a scrape that can be read beats a 406.

use super::{Encoding, Format};

/// The format for `/metrics`, given the value of the `Accept` header; empty if there is none.
pub fn accepted_metrics_format(accept: &str) -> Format {
    let mut best = (Format::Text, 0.0);
    for (range, weight) in weighted(accept) {
        // Not `>=`: of two alike, the first named wins.
        if let Some(format) = served(range).filter(|_| weight > best.1) {
            best = (format, weight);
        }
    }
    best.0
}

/// The encoding, given the value of the `Accept-Encoding` header; empty if there is none.
pub fn accepted_encoding(accept_encoding: &str) -> Encoding {
    let (mut gzip, mut any, mut identity) = (None, None, None);
    for (range, weight) in weighted(accept_encoding) {
        let coding = range.trim();
        if coding.eq_ignore_ascii_case("gzip") {
            gzip = Some(weight);
        } else if coding.eq_ignore_ascii_case("identity") {
            identity = Some(weight);
        } else if coding == "*" {
            any = Some(weight);
        }
    }
    let gzip = gzip.or(any).unwrap_or(0.0);
    if gzip > 0.0 && gzip >= identity.unwrap_or(0.0) { Encoding::Gzip } else { Encoding::Identity }
}

/// The format behind one media range, if it is served in that version.
fn served(range: &str) -> Option<Format> {
    let mut parts = range.split(';').map(str::trim);
    let media = parts.next()?.to_ascii_lowercase();
    let version = parts.find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("version").then(|| value.trim().trim_matches('"'))
    });
    match (media.as_str(), version) {
        ("application/openmetrics-text", None | Some("1.0.0")) => Some(Format::OpenMetrics),
        ("text/plain", None | Some("0.0.4")) | ("text/*" | "*/*", _) => Some(Format::Text),
        _ => None,
    }
}

/// The ranges of a header with their weights: 1 where none is given, 0 where it is no number.
fn weighted(header: &str) -> impl Iterator<Item = (&str, f64)> {
    header.split(',').filter(|range| !range.trim().is_empty()).map(|range| {
        let weight = range.split(';').skip(1).find_map(|parameter| {
            let (name, value) = parameter.split_once('=')?;
            name.trim().eq_ignore_ascii_case("q").then(|| value.trim().parse().unwrap_or(0.0))
        });
        // The encoding's name ends at the first semicolon; a media range keeps its parameters.
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
                Format::OpenMetrics,
            ),
            // 2.5x, with native histograms and without
            (
                format!("{PROTOBUF};q=0.6,application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"),
                Format::OpenMetrics,
            ),
            (
                "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
                    .to_owned(),
                Format::OpenMetrics,
            ),
            // 3.x
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
                    .to_owned(),
                Format::OpenMetrics,
            ),
            // 3.x told to scrape with PrometheusText1.0.0, then 0.0.4
            (
                "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.5,*/*;q=0.4"
                    .to_owned(),
                Format::Text,
            ),
            (format!("{PROTOBUF};q=0.7,text/plain;version=0.0.4;q=0.3"), Format::Text),
            (PROTOBUF.to_owned(), Format::Text),
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
            assert_eq!(accepted_metrics_format(accept), Format::Text, "{accept}");
        }
        for accept in [
            "application/openmetrics-text",
            "Application/OpenMetrics-Text; Version=\"1.0.0\"; charset=utf-8",
            "text/plain;q=0.1, application/openmetrics-text ; q=0.2",
        ] {
            assert_eq!(accepted_metrics_format(accept), Format::OpenMetrics, "{accept}");
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
