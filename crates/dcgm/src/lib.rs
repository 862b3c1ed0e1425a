//! The page of dcgm-exporter, made of the snapshot: its names, labels and number formats, for who reads them today.
//!
//! - [`fields`]: every field that the page can have, and the series of ours that it is made of
//! - [`list`]: which fields a page has, as which type
//! - [`page`]: the text
//! - [`parse`]: the reader of such a text
//! - [`diff`]: two of them compared

#![forbid(unsafe_code)]

pub mod diff;
pub mod fields;
pub mod list;
pub mod page;
pub mod parse;
