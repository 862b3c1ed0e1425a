//! The exposition: `/metrics` in two formats, JSON, the status page, rules and dashboards.
//!
//! - [`response_cache`]: the published snapshot and encoded responses
//! - [`format`]: the formats and their negotiation · [`openmetrics`], [`text`]: the metrics · [`api`]: JSON · [`page`]:
//!   the status page
//! - [`http`]: connections and routes · [`paths`]: what is served · [`assets`]: embedded rules and dashboards · [`docs`]: METRICS.md

#![forbid(unsafe_code)]

pub mod api;
pub mod assets;
pub mod docs;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
pub mod format;
pub mod http;
pub mod nameless;
mod openmetrics;
mod page;
mod paths;
pub mod response_cache;
mod text;
#[cfg(test)]
mod wire_tests;

pub use page::node_name;
