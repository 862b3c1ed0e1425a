//! Imitation of dcgm-exporter's page, with its names, labels and number formats, for its existing users.
//!
//! - [`fields`]: all supported fields and the series of ours that provide them
//! - [`list`]: the fields of a page and their types
//! - [`page`]: the encoder of the page
//! - [`parse`]: the parser for such a page
//! - [`diff`]: the comparison of two pages

#![forbid(unsafe_code)]

pub mod diff;
pub mod fields;
pub mod list;
pub mod page;
pub mod parse;
