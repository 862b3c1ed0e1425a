//! Whether a program should move to a GPU, and whether a move paid: judgement of what was counted. Pure; the command
//! `assess` runs the program and counts.
//!
//! - [`flops`]: which events are floating-point operations on which processor · [`recording`]: what was counted of a run
//! - [`figures`]: what follows from it · [`thresholds`]: every threshold with its source
//! - [`verdict`]: the verdict table, the split matrix, Amdahl's bound · [`roofline`]: the plot
//! - [`report`]: all of it, as JSON; [`text`]: as a page · [`compare`]: two recordings against targets

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
