//! Everything that readers get: `/metrics` in two formats, JSON, the status page, rules and dashboards.
//!
//! - [`snapshot_cell`]: the published snapshot · [`encode`]: the formats · [`response_cache`]: encoded responses
//! - [`http`]: connections and routes · [`page`]: the status page · [`words`]: states as sentences
//! - [`assets`]: embedded rules and dashboards · [`docs`]: the catalogue as documentation

#![forbid(unsafe_code)]

pub mod assets;
pub mod docs;
pub mod encode;
pub mod http;
pub mod page;
pub mod response_cache;
pub mod snapshot_cell;
pub mod words;
