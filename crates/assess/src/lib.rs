//! Decides whether to port a program to a GPU, and whether a port paid off. Everything here is pure; the
//! command `assess` runs the program and reads the counters.
//!
//! - [`flops`]: events that count floating-point operations, by processor
//! - [`recording`]: counts of a run, as a recording stores them
//! - [`figures`]: figures derived from the counts
//! - [`thresholds`]: all thresholds with their sources
//! - [`verdict`]: verdict table, split matrix and Amdahl's bound
//! - [`roofline`]: roofline plot
//! - [`report`] and [`text`]: report as JSON and as text
//! - [`compare`]: comparison of two recordings with targets

#![forbid(unsafe_code)]

pub mod compare;
pub mod figures;
pub mod flops;
pub mod recording;
pub mod report;
pub mod roofline;
pub mod text;
pub mod thresholds;
pub mod verdict;

#[cfg(test)]
mod tests;
