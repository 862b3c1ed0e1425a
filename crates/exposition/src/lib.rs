//! The HTTP server and its responses: `/metrics` in two formats, JSON documents, the status page, rules and dashboards.
//!
//! | module | content |
//! |---|---|
//! | [`http`] | connections and routes |
//! | [`paths`] | list of all HTTP paths |
//! | [`response_cache`] | cache of encoded responses |
//! | [`format`] | formats and their negotiation |
//! | [`openmetrics`], [`text`] | metrics |
//! | [`api`] | JSON documents |
//! | [`page`] | status page |
//! | [`assets`] | embedded rules and dashboards |
//! | [`docs`] | METRICS.md |

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
